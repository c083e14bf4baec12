"Times of a timer, by a clock that moves only when a test advances it"
import copy
import numpy as np, pytest, torch
from learner.all import *
from learner.record.history import missing

class Slow:
    "A loader that takes `draw` seconds for a batch, and `end` to find that there is no more"
    def __init__(self, dl, clock, draw=0., end=0.): self.dl,self.clock,self.draw,self.end = dl,clock,draw,end
    def __len__(self): return len(self.dl)
    def __iter__(self):
        for b in self.dl: self.clock.sleep(self.draw); yield b
        self.clock.sleep(self.end)

def takes(clock, order=0, **events):
    "A callback that takes so many seconds at each of `events`"
    def f(s): return lambda self: clock.sleep(s)
    cb = Callback(**{k:f(s) for k,s in events.items()})
    cb.order = order
    return cb

def learner(clock, *cbs, n_train=3, n_valid=2, draw=0., end=0., **kwargs):
    learn = synth_learner(n_train=n_train, n_valid=n_valid, cbs=[kwargs.pop('timer', None) or Timer(), *cbs], **kwargs)
    learn.dls.loaders['train'] = Slow(learn.dls.train, clock, draw, end)
    return learn
def sums(t): return {o.phase:o.sum_s for o in t.summary()}

def test_each_phase_has_its_time(clock):
    def forward(self, x): clock.sleep(.2); return RegModel.forward(self, x)
    model = type('Model', (RegModel,), dict(forward=forward))()
    # in training; a validation may try it twice
    def loss(pred, targ): clock.sleep(.03*pred.requires_grad); return torch.nn.functional.mse_loss(pred, targ)
    learn = learner(clock, takes(clock, before_step=.004, after_epoch=10.), draw=1., end=5., model=model,
        loss_func=loss).fit(2)
    t = learn.timer
    assert {k:pytest.approx(list(v)) for k,v in t.times.items()}==dict(draw=[1.]*6, forward=[.2]*6, backward=[.03]*6,
        step=[.004]*6, validate=[.4]*2, total=[3*1.234+5+.4+10]*2)
    assert [o.phase for o in t.summary()]==['draw','forward','backward','step','validate','other','total']
    # `other`: the end of the loader, and the callback after each epoch
    assert sums(t)==pytest.approx(
        dict(draw=6, forward=1.2, backward=.18, step=.024, validate=.8, other=30, total=38.204))

def test_what_callbacks_do_counts_to_the_phase_they_do_it_in(clock):
    # in training; each is before or after what the loop does itself
    cb = takes(clock, after_draw=1., before_batch=2., after_pred=4., after_loss=8., before_backward=16.,
        after_backward=32., before_step=64., after_step=128., after_zero_grad=256., after_batch=512.)
    cb.run_valid = False
    assert sums(learner(clock, cb, n_train=1, n_valid=0).fit(1).timer)==dict(draw=1, forward=2, backward=4+8+16+32,
        step=64+128, other=256+512, total=1023)

def test_medians_means_and_shares(clock):
    times = iter([1,2,3,4,100, 7])
    learn = learner(clock, Callback(before_batch=lambda self: clock.sleep(next(times)) if self.training else None),
        n_train=5, n_valid=0)
    learn.fit(1)
    o = learn.timer.summary()[1]
    assert (o.phase, o.n, o.median_ms, o.mean_ms, o.sum_s, o.share)==('forward', 5, 3000, 22000, 110, 1)

def test_summary_of_one_epoch(clock):
    def wait(self): clock.sleep(1+self.epoch)
    t = learner(clock, Callback(before_batch=wait), n_valid=1).fit(3).timer
    assert ([t.summary(i)[1].sum_s for i in (0,1,2,-1)]==[3,6,9,9] and t.summary()[1].sum_s==18
        and [t.summary(i)[-1].n for i in range(3)]==[1]*3)
    assert [t.summary(i, )[4].sum_s for i in range(3)]==[1,2,3] # validation
    with pytest.raises(IndexError, match='There are 3 epochs, but no epoch 3'): t.summary(3)

@pytest.mark.parametrize('epochs,waits', [(range(-2,0), 2+3), (range(0,3,2), 1+3), (range(2,-1,-1), 1+2+3),
    (range(1), 1), (range(-3,3), 1+2+3), (np.int64(1), 2), (torch.tensor(-1), 3), ([0,2], 1+3),
    (np.arange(2), 1+2)], ids=repr)
def test_summary_of_some_epochs(clock, epochs, waits):
    def wait(self): clock.sleep(1+self.epoch)
    t = learner(clock, Callback(before_batch=wait), n_train=1, n_valid=0).fit(3).timer
    assert [o.sum_s for o in t.summary(epochs) if o.phase in ('forward','total')]==[waits]*2

@pytest.mark.parametrize('epochs,exc,match', [(range(2,9), IndexError, 'There are 3 epochs, but no epoch 3'),
    (range(-4,0), IndexError, 'There are 3 epochs, but no epoch -4'),
    (np.int64(3), IndexError, 'There are 3 epochs, but no epoch 3'),
    (range(0), ValueError, r'`epochs` names no epoch: range\(0, 0\) is empty'),
    (1.5, TypeError, '`epochs` is a whole number or a `range`, but got 1.5')], ids=repr)
def test_a_summary_of_epochs_that_are_not_there(clock, epochs, exc, match):
    t = learner(clock).fit(3).timer
    with pytest.raises(exc, match=match): t.summary(epochs)

def test_a_cancelled_batch_keeps_the_time_that_it_took(clock):
    cb = takes(clock, before_batch=1., before_backward=2.)
    cb.run_valid = False
    t = learner(clock, cb, Raise('before_backward', CancelBatchException, 2, order=5), n_train=3).fit(1).timer
    assert list(t.times['forward'])==[1]*3 and list(t.times['backward'])==[2]*3 and len(t.times['step'])==2

def test_a_loader_that_ends_early_draws_no_batch(clock):
    t = learner(clock, Raise('before_draw', CancelTrainException, 3), draw=1.).fit(1).timer
    assert list(t.times['draw'])==[1,1]

def test_a_validation_in_the_middle_is_not_time_of_the_phase_around_it(clock):
    def middle(self):
        if self.training and self.iter==1: clock.sleep(1); self.learn.validate_now(); clock.sleep(2)
    inner = Callback(before_batch=lambda self: clock.sleep(10) if not self.training else None)
    t = learner(clock, inner, Callback(before_step=middle)).fit(1).timer
    assert list(t.times['step'])==[0,3,0] and list(t.times['validate'])==[20,20] and sums(t)['total']==43

def test_inference_counts_to_the_phase_that_runs(clock):
    inner = Callback(before_batch=lambda self: clock.sleep(10) if not self.training else None)
    def look(self): self.learn.validate()
    learn = learner(clock, inner, Callback(before_step=look), n_train=1, n_valid=1).fit(1)
    assert list(learn.timer.times['step'])==[10] and list(learn.timer.times['validate'])==[10]
    learn.validate()
    assert list(learn.timer.times['validate'])==[10] # of the fit

def test_accumulated_batches_have_fewer_steps(clock):
    t = learner(clock, GradientAccumulation(32), n_train=4).fit(1).timer
    assert (len(t.times['forward']), len(t.times['step']))==(4, 2)

def test_it_prints_after_some_epochs(clock, capsys):
    learn = learner(clock, takes(clock, before_batch=.5), timer=Timer(every=2), n_valid=0).fit(5)
    out = capsys.readouterr().out
    assert (out.count('median_ms')==2
        and [l.split()[:2]+l.split()[4:5] for l in out.splitlines() if l.split()[0]=='forward']
        ==[['forward','6','3.000000']]*2)
    with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=Raise('after_loss', ZeroDivisionError, n=5))
    assert capsys.readouterr().out=='' and len(learn.timer.ends)==2

@pytest.mark.parametrize('every,exc,match',
    [(0, ValueError, '`every` is 1 or more, but got 0'), (1.5, TypeError, '`every` is a whole number, but got 1.5'),
        ('a', TypeError, "`every` is a whole number, but got 'a'")])
def test_epochs_are_counted(every, exc, match):
    with pytest.raises(exc, match=match): Timer(every=every)

def test_a_broken_pipe_is_no_reason_to_stop(clock, monkeypatch):
    class Broken:
        closed = False
        def write(self, s): raise BrokenPipeError
        def flush(self): raise BrokenPipeError
    monkeypatch.setattr('sys.stdout', Broken())
    learner(clock, timer=Timer(every=1)).fit(2)

def test_each_fit_begins_anew_and_nothing_is_measured_before(clock):
    learn = learner(clock).fit(2).fit(1)
    assert len(learn.timer.times['total'])==1 and len(learn.timer.times['draw'])==3
    learn = learner(clock, Raise('before_epoch', CancelFitException)).fit(1)
    assert [(o.phase, o.sum_s, o.share) for o in learn.timer.summary()]==[('other', 0, missing), ('total', 0, missing)]
    learn = synth_learner(cbs=[Timer, Raise('before_fit', CancelFitException)]).fit(1)
    assert learn.timer.summary()==[]

class FakeDevice:
    "A device that works through its queue, one item after the other, behind the clock"
    def __init__(self, clock): self.clock,self.busy_until,self.waits = clock,0.,0
    def work(self, s): self.busy_until = max(self.busy_until, self.clock.t) + s
    def event(self): return FakeEvent(self, max(self.busy_until, self.clock.t))
class FakeEvent:
    def __init__(self, device, at): self.device,self.at = device,at
    def query(self): return self.device.clock.t>=self.at
    def synchronize(self):
        self.device.waits += not self.query(); self.device.clock.t = max(self.device.clock.t, self.at)
    def elapsed_time(self, other):
        assert self.query() and other.query(), 'not passed yet'
        return 1000*(other.at-self.at)
    def __reduce__(self): raise TypeError("cannot pickle 'Event' object") # as those of CUDA

class OnDevice(Timer):
    def __init__(self, device): super().__init__(); self.fake = device
    def before_fit(self): super().before_fit(); self.watch.event = self.fake.event

def test_a_learner_that_was_timed_on_a_gpu_can_be_copied(clock):
    learn = learner(clock, takes(clock, before_batch=.5), timer=OnDevice(FakeDevice(clock))).fit(1)
    t = copy.deepcopy(learn).on_device
    assert t.times==learn.on_device.times and len(t.times['forward'])==3

def test_a_device_that_is_behind_is_timed_by_itself_and_not_waited_for(clock):
    device = FakeDevice(clock)
    def work(self):
        if self.training: device.work(.2); clock.sleep(.01) # asking for it takes the loop 10 ms
    def back(self): device.work(.4)
    waits = []
    note = Callback(after_batch=lambda self: waits.append(device.waits))
    t = learner(clock, Callback(before_batch=work), Callback(before_backward=back), note, timer=OnDevice(device),
        n_train=10, n_valid=0, draw=.05).fit(1).on_device
    assert (list(t.times['forward'])==pytest.approx([.2]*10) and list(t.times['backward'])==pytest.approx([.4]*10)
        and list(t.times['step'])==pytest.approx([0.]*10, abs=1e-9))
    assert list(t.times['draw'])==pytest.approx([.05]*10) and waits==[0]*10 and device.waits>0
    assert 'other' not in sums(t) # device and loop work at the same time

def test_sync_waits(clock):
    device = FakeDevice(clock)
    watch = Stopwatch(['a','b'], wait=lambda: device.event().synchronize())
    watch.start('a'); device.work(2.); watch.start('b'); device.work(3.); watch.start(None)
    assert [list(o) for o in watch.times.values()]==[[2.],[3.]]

@pytest.mark.cuda
@pytest.mark.parametrize('sync', [False, True])
def test_on_a_gpu(sync):
    model = torch.nn.Sequential(*[torch.nn.Linear(4096,4096) for _ in range(4)]).cuda()
    dls = DataLoaders([(torch.randn(512,4096), torch.randn(512,4096))]*20, device='cuda')
    learn = Learner(dls, model, torch.nn.functional.mse_loss, cbs=Timer(sync=sync)).remove_cb(ProgressCallback).fit(2)
    t = learn.timer.times
    a,b = torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
    x = torch.randn(512,4096, device='cuda')
    torch.cuda.synchronize(); a.record(); model(x); b.record(); torch.cuda.synchronize()
    mid = sorted(t['forward'])[20]
    assert (len(t['forward'])==len(t['backward'])==40 and .3<1000*mid/a.elapsed_time(b)<3+10*sync
        and sorted(t['backward'])[20]>mid)

def test_it_prints_after_some_batches(clock, capsys):
    learn = learner(clock, takes(clock, before_batch=.5), timer=Timer(every=2, unit='iter'), n_train=5, n_valid=1,
        draw=.1).fit(2)
    lines = [l.split() for l in capsys.readouterr().out.splitlines()]
    assert [l[0] for l in lines if l[1:]==['batches']]==['2','4','6','8','10']
    assert ([(l[1],l[4]) for l in lines if l[0]=='forward']==[('2','1.000000')]*5
        and [l[4] for l in lines if l[0]=='draw'][:2]==['0.200000']*2)
    assert [l[1] for l in lines if l[0]=='validate']==['1'] and learn.timer.summary()[0].n==10
    with pytest.raises(ValueError, match="`unit` is one of `epoch`, `iter`, but got 'iters'. Did you mean `iter`?"):
        Timer(every=2, unit='iters')

def test_a_batch_that_is_cancelled_ends_its_phase(clock):
    "What comes after it is no part of the backward pass"
    cbs = takes(clock, before_backward=2., after_batch=10.),GradientAccumulation(32)
    cbs[0].run_valid = False
    t = learner(clock, *cbs, n_train=4, n_valid=0).fit(1).timer
    assert list(t.times['backward'])==[2]*4 and sums(t)['other']==40

class InPieces(RegModel):
    "In training, the forward pass takes 1 second and the backward pass 4"
    clock = None
    def forward(self, x):
        res = super().forward(x)
        if self.training: self.clock.sleep(1.); res.register_hook(lambda g: self.clock.sleep(4.))
        return res
def slow_loss(clock): # 2 seconds, in training
    return lambda pred, targ: clock.sleep(2.*pred.requires_grad) or torch.nn.functional.mse_loss(pred, targ)

def test_pieces_of_a_batch_add_up(clock):
    (model := InPieces()).clock = clock
    t = learner(clock, MicroBatch(4), model=model, loss_func=slow_loss(clock), draw=.5, n_valid=0).fit(1).timer
    n = 16//4
    assert {k:list(v) for k,v in t.times.items() if v}==dict(draw=[.5]*3, forward=[n]*3, backward=[6*n]*3, step=[0]*3,
        total=[3*(.5+7*n)])

def test_pieces_of_a_batch_add_up_in_a_profile(clock):
    (model := InPieces()).clock = clock
    learn = synth_learner(3, 0, model=model, loss_func=slow_loss(clock), cbs=[MicroBatch(4), p := Profile()])
    learn.fit(1)
    n = 16//4
    assert {k:list(v) for k,v in p.times.items() if v}==dict(draw=[0]*3, move=[0]*3, forward=[n]*3, loss=[2*n]*3,
        backward=[4*n]*3, step=[0]*3, total=[21*n])

def test_pieces_on_a_device_add_up(clock):
    device = FakeDevice(clock)
    watch = Stopwatch(['a','b'], event=device.event)
    for phase,again,s in [('a',False,1.), ('b',False,2.), ('a',True,4.), ('b',True,8.), ('a',False,16.)]:
        watch.start(phase, again); device.work(s)
    watch.start(None); watch.collect(wait=True)
    assert [list(o) for o in watch.times.values()]==[[5.,16.],[10.]]
