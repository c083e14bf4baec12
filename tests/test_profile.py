"What a profile says of planted times, waits and traces. Its clock moves only when a test advances it"
import json,sys
from time import perf_counter,sleep
import pytest,torch
from torch.nn import functional as F
from learner.all import *
from learner.loop.interrupt import in_callback

def slow(clock, name, order=0, **events):
    "A callback that takes so many seconds at each of `events`, in training only"
    cb = type(name, (Callback,),
        {k: (lambda self, s=s: clock.sleep(s)) for k,s in events.items()} | dict(run_valid=False, order=order))
    return cb()

class Slow:
    def __init__(self, dl, f): self.dl,self.f = dl,f
    def __len__(self): return len(self.dl)
    def __iter__(self):
        for b in self.dl: self.f(); yield b

def phases(report): return {o.phase:o.sum_s for o in report.phases}
def calls(report): return {(o.callback, o.event): (o.phase, o.n, o.sum_s) for o in report.callbacks}

def test_phases_and_callbacks_have_the_time_that_was_planted(clock):
    class Model(RegModel):
        def forward(self, x): clock.sleep(.2); return super().forward(x)
    # in training; a validation may try it twice
    def loss(pred, targ): clock.sleep(.03*pred.requires_grad); return F.mse_loss(pred, targ)
    cbs = slow(clock, 'A', before_batch=1., after_pred=2., before_backward=4., before_step=8.,
        after_batch=16.),slow(clock, 'B', before_batch=.5, after_epoch=32.)
    learn = synth_learner(3, 2, model=Model(), loss_func=loss, cbs=cbs)
    learn.dls.loaders['train'] = Slow(learn.dls.train, lambda: clock.sleep(.1))
    ended = []
    learn.add_cb(Callback(after_fit=lambda cb: ended.append(clock.t)))
    r = learn.profile(10) # a trial, after which the clock of the model is what it was before
    assert phases(r)==pytest.approx(
        dict(draw=.3, move=0, forward=3*1.7, loss=3*2.03, backward=12, step=24, validate=.4, other=48+32,
            total=.3+5.1+6.09+36+.4+80))
    found = calls(r)
    assert (found['a','before_batch']==('forward', 3, 3) and found['a','after_pred']==('loss', 3, 6)
        and found['a','after_batch']==('other', 3, 48) and found['b','after_epoch']==('other', 1, 32)
        and found['b','before_batch']==('forward', 3, 1.5))
    assert sum(v for k,v in phases(r).items() if k!='total')==pytest.approx(ended[0])==pytest.approx(phases(r)['total'])

def test_what_runs_inside_a_callback_counts_once(clock):
    "A custom event, and a validation in the middle of training"
    class Inner(Callback):
        def asked(self): clock.sleep(1.)
        def before_validate(self): clock.sleep(100.)
    class Outer(Callback):
        run_valid = False
        def before_step(self): clock.sleep(10.); self.learn('asked')
        def before_draw(self):
            if self.train_iter==1: clock.sleep(1000.); self.learn.validate_now()
    r = synth_learner(2, 1, cbs=[Inner, Outer]).fit(1, cbs=[p := Profile()]) and p.report()
    found = calls(r)
    assert (found['outer','before_step']==('step', 2, 20) and found['inner','asked']==('step', 2, 2)
        and found['outer','before_draw'][2]==1000 and found['inner','before_validate']==('validate', 2, 200))
    assert phases(r)['step']==22 and phases(r)['validate']==200 and phases(r)['draw']==1000 and phases(r)['total']==1222

def reader(text):
    def f(*args): return eval(text, dict(t=args[0], torch=torch))
    return f

@pytest.mark.parametrize('text,n',
    [('t.item()', 1), ('float(t)+int(t)', 2), ('1 if t>0 else 2', 1), ('torch.equal(t, t)', 1),
        ('t.view(1).nonzero()', 1), ('t.view(1)[t.view(1)>0]', 1), ('t.view(1).masked_select(t.view(1)>0)', 1),
        ('torch.isfinite(t)', 0), ('t.detach().clone()+1', 0), ('t.view(1)[torch.tensor([0])]', 0)])
def test_a_planted_read_is_counted(text, n):
    read = reader(text)
    r = synth_learner(9, 1, cbs=Callback(before_backward=lambda self: read(self.learn.loss.detach()))).profile(9,
        waits_every=2)
    assert (sum(o.per_batch for o in r.waits)==n
        and {o.during for o in r.waits}=={'callback.before_backward'}-({'callback.before_backward'} if n==0 else set()))
    assert r.about['Waits of the device']==f'{n} a batch'

class Reader(Callback):
    def after_batch(self):
        if self.training and self.iter%2==0: self.learn.loss.item() # planted
def reading_loss(pred, targ):
    res = F.mse_loss(pred, targ)
    if res<-1: print(res) # planted too
    return res
class ReadingModel(RegModel):
    def forward(self, x): x.sum().item(); return super().forward(x)

def test_a_wait_has_the_line_that_caused_it():
    r = synth_learner(12, 1, cbs=Reader, loss_func=reading_loss, model=ReadingModel()).profile(12, waits_every=1)
    lines = open(__file__).read().splitlines()
    found = {o.during:(o.per_batch, o.line, o.code) for o in r.waits}
    for during,per_batch,words in (('reader.after_batch', .5, '# planted'), ('loss', 1, '# planted too'),
            ('forward', 1, 'x.sum().item()')):
        code = next(l.strip() for l in lines if l.strip().endswith(words) or f'{words}; return' in l)
        assert found.pop(during)==(per_batch, f'test_profile.py:{[l.strip() for l in lines].index(code)+1}', code)
    assert not found

@pytest.mark.parametrize('opt_func', [Adam, SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_plain_batch_waits_for_nothing(opt_func):
    r = synth_learner(6, 1, cbs=[GradientClip, EMA], opt_func=opt_func, lr=.01, metrics=mae).profile(6, waits_every=1)
    assert list(r.waits)==[] and r.about['Waits of the device']=='0 a batch'

def test_a_callback_of_the_library_that_reads_is_named():
    r = synth_learner(6, 1, cbs=TerminateOnNaNCallback).profile(6, waits_every=1)
    assert ([(o.during.split('.')[0], o.per_batch) for o in r.waits]==[('terminate_on_na_n', 1)]
        or [o.during for o in r.waits][0].startswith('terminate'))
    assert all(o.line.startswith('tracker.py') or o.line for o in r.waits)

def test_a_profile_leaves_no_trace():
    learn = synth_learner(5, 2, cbs=TrackerCallback('valid_loss')).fit(1)
    def state():
        return str(([p.detach().clone() for p in learn.model.parameters()],list(learn.recorder.losses),
            learn.tracker.best,torch.get_rng_state().tolist(),list(learn.cbs),learn.recorder.log,learn.train_iter,
            learn.opt.state_dict()['state']))
    before = state()
    learn.profile(3)
    assert state()==before

def test_a_fit_is_the_same_with_a_profile():
    def end(*cbs): return [p.tolist() for p in synth_learner(40, 2, cbs=[GradientClip, *cbs]).fit(2).model.parameters()]
    assert end()==end(Profile(waits_every=3))

@pytest.mark.parametrize('place',
    ['before_fit','after_draw','before_batch','after_pred','before_step','after_batch','before_validate','after_epoch'])
@pytest.mark.parametrize('exc', [ZeroDivisionError, CancelFitException, CancelBatchException])
def test_however_a_fit_ends_nothing_watches_it_any_more(place, exc):
    learn = synth_learner(6, 1, cbs=[p := Profile(waits_every=1), Raise(place, exc)])
    try: learn.fit(1)
    except (ZeroDivisionError, RuntimeError): pass
    assert (torch._C._len_torch_dispatch_stack()==0
        and not any(type(h).__name__=='Watched' for ev in event for h in learn.handlers[ev]))
    p.report()
    learn.remove_cb(Raise).fit(1)
    assert len(p.times['forward'])==6

def test_removed_in_a_fit_it_stops_watching():
    learn = synth_learner(6, 1, cbs=Profile)
    learn.fit(1, cbs=Callback(
        after_batch=lambda self: self.training and self.iter==3 and self.learn.remove_cb(Profile)))
    assert (torch._C._len_torch_dispatch_stack()==0
        and not any(type(h).__name__=='Watched' for ev in event for h in learn.handlers[ev]))

def test_a_stop_may_still_come_in_a_callback_of_the_user():
    seen = []
    synth_learner(2, 1).fit(1,
        cbs=[Profile(), Callback(before_step=lambda self: seen.append(in_callback(sys._getframe())))])
    assert seen==[True, True]

def test_traces_of_some_batches_are_written(tmp_path):
    synth_learner(8, 1).fit(1,
        cbs=Profile(trace=tmp_path/'traces', schedule=dict(wait=1, warmup=1, active=2, repeat=2)))
    files = sorted((tmp_path/'traces').iterdir())
    assert len(files)==2 and all(json.loads(f.read_text())['traceEvents'] for f in files)
    assert Profile(trace='x').writes and not Profile().writes

def test_the_report_is_shown_and_plotted(clock):
    import matplotlib
    matplotlib.use('Agg')
    r = synth_learner(3, 1, cbs=slow(clock, 'A', before_step=2.)).profile(3)
    assert 'before_step' in repr(r) and '<table>' in r._repr_html_()
    ax = r.plot()
    widths = {l.get_text():[p.get_width() for p in b] for l,b in zip(ax.get_legend().get_texts(), ax.containers)}
    ax.figure.canvas.draw()
    assert not ax.get_legend().get_window_extent().overlaps(ax.get_window_extent()) # it would hide bars
    assert max(widths['in all'])==max(widths['callbacks'])==6 and 'Waiting for data: 0.0% of training' in repr(r)

def test_learners_without_a_profile_pay_nothing():
    learn = synth_learner(2, 1)
    assert all(type(h).__name__!='Watched' for ev in event for h in learn.handlers[ev])

@pytest.mark.parametrize('kwargs,match',
    [(dict(n=0), '`n` is 1 or more'), (dict(waits_every=0), '`waits_every` is 1 or more'),
        (dict(m=3), 'has no argument `m`')])
def test_bad_arguments_are_refused(kwargs, match):
    with pytest.raises((ValueError,TypeError), match=match): synth_learner(2, 1).profile(**kwargs)

def test_it_cannot_start_inside_a_fit():
    with pytest.raises(RuntimeError, match='`profile` cannot start inside a running `fit`'):
        synth_learner(2, 1, cbs=Callback(after_batch=lambda self: self.learn.profile())).fit(1)

def test_a_schedule_of_traces_has_known_parts():
    with pytest.raises(ValueError,
            match="`schedule` is one of `wait`, `warmup`, `active`, `repeat`, but got 'warm_up'. "
                "Did you mean `warmup`?"):
        Profile(trace='x', schedule=dict(warm_up=1))

def test_graphs_that_were_compiled_are_counted():
    torch._dynamo.reset()
    assert 'Graphs compiled' not in synth_learner(4, 1).profile(4).about
    # of training, and of validation
    assert synth_learner(4, 1, cbs=Compile(warm_up=False, backend='eager')).profile(4).about['Graphs compiled'] in ('1',
        '2')
    assert 'Graphs compiled' not in synth_learner(4, 1, cbs=Compile(backend='eager')).profile(4).about # but before

def test_what_watches_is_not_asked_for_names_it_has_not(monkeypatch):
    "Suggestions for a name that is missing take milliseconds: none are made while a fit is profiled"
    made,learn = [],synth_learner(3, 1, cbs=Profile())
    for mod in ('callback','checks'):
        monkeypatch.setattr(f'learner.core.{mod}.nearest', lambda name, names: made.append(name) or '')
    learn.fit(1)
    assert made==[]

# On a real clock
@pytest.mark.slow
def test_the_sums_of_a_profile_are_the_time_on_the_wall():
    """Phases, and what is between them, add up to the whole fit within 5%, however busy the machine is: another process
    that takes the core lengthens both. One of three fits counts, since what comes before the first epoch and after the
    last one is no phase, and may have been interrupted"""
    class Model(RegModel):
        def forward(self, x): sleep(.002); return super().forward(x)
    shares = []
    for seed in range(3):
        p,waits = Profile(),Callback(before_step=lambda self: sleep(.001))
        learn = synth_learner(30, 5, seed, model=Model(), cbs=waits)
        walls = dict(fit=0., epochs=0.)
        learn.add_cb(Callback(before_epoch=lambda self: walls.setdefault('start', perf_counter()),
            after_epoch=lambda self: walls.update(epochs=perf_counter()-walls['start'])))
        start = perf_counter()
        learn.fit(3, cbs=p)
        walls['fit'] = perf_counter()-start
        seconds = phases(p.report())
        total = seconds.pop('total')
        assert sum(seconds.values())==pytest.approx(total, rel=1e-6)
        assert seconds['forward']>=90*.002 and seconds['step']>=90*.001 and seconds['validate']>=15*.002
        shares.append((total/walls['epochs'], total/walls['fit']))
    assert any(.95<=of_epochs<=1.05 and .95<=of_fit<=1.05 for of_epochs,of_fit in shares), shares
