"When validation happens, on what data, limits and smoke tests; none of it changes how the model is trained"
import math,random,signal
from copy import deepcopy
from functools import partial
import numpy as np, pytest, torch
from fastcore.foundation import L
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.schedule import limits,validation
from learner.result.tracker import *
from parts import Net,Noisy,Stream

class Seen(Callback):
    "Writes down all that training is made of"
    order = 900
    def before_fit(self): self.xs,self.drawn,self.modes,self.phases,self.weights,self.wrote = [],[],set(),[],[],[]
    def before_batch(self):
        if self.learn.training: self.xs.append(self.learn.x.clone()); self.drawn.append(self.learn.train_iter)
        self.modes |= {(self.learn.training, m.training, torch.is_grad_enabled()) for m in self.learn.model.modules()}
    def after_batch(self):
        if self.learn.training: self.weights.append(weights(self.learn))
    def before_validate(self): self.phases.append((self.learn.dl_name, self.learn.train_iter))
    def after_row(self):
        self.wrote.append((self.learn.epoch, self.learn.train_iter,
            not math.isnan(self.learn.recorder[-1].get('valid_loss'))))

def seed(s=0): random.seed(s); np.random.seed(s); torch.manual_seed(s)
def weights(learn): return torch.cat([o.detach().flatten().float() for o in learn.model.state_dict().values()])
def generators(): return random.getstate(),str(np.random.get_state()),torch.get_rng_state().tolist()

def mk(*cbs, n=10, stream=False, valid=True, **kwargs):
    seed()
    train = DataLoader(Noisy(4*n), 4, shuffle=True)
    dls = DataLoaders(Stream(train) if stream else train, DataLoader(Noisy(10), 4, shuffle=True) if valid else None,
        device='cpu')
    kwargs = dict(opt_func=partial(torch.optim.SGD, lr=.05, momentum=.9), metrics=mae) | kwargs
    return Learner(dls, Net(), F.mse_loss, cbs=[Seen, *cbs], **kwargs).remove_cb(ProgressCallback)

def same(a, b): return len(a)==len(b) and all(torch.equal(x, y) for x,y in zip(a, b))
def rows(learn): return [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]

class Clock:
    "A clock that advances by one second with each training batch"
    def __init__(self): self.t = 100.
    def __call__(self): return self.t
    def tick(self): return Callback(after_batch=self._tick, )
    def _tick(self, cb): self.t += cb.learn.training

@pytest.fixture
def clock(monkeypatch):
    res = Clock()
    for o in (validation,limits): monkeypatch.setattr(o, 'monotonic', res)
    return res

# Validation does not change training
schedules = dict(iter=lambda: Validate(every=3, unit='iter'), step=lambda: Validate(every=2, unit='step'),
    part=lambda: Validate(every=.25), rare=lambda: Validate(every=2),
    when=lambda: Validate(when=lambda l: l.train_iter%4==1),
    extra=lambda: ExtraValid(DataLoader(Noisy(6), 3, shuffle=True), mae, every=4, unit='iter'), sanity=Sanity,
    both=lambda: [Validate(every=4, unit='iter'),
        ExtraValid(DataLoader(Noisy(6), 3, shuffle=True), every=6, unit='iter'),
        ExtraValid(DataLoader(Noisy(4), 2, shuffle=True), name='b', on_better='mae'), Sanity()])
around = dict(plain=lambda: [], accumulation=lambda: [GradientAccumulation(12)], ema=lambda: [EMA(.9)],
    bf16=lambda: [MixedPrecision('bf16')],
    all=lambda: [GradientAccumulation(12), EMA(.9), MixedPrecision('bf16'), GradientClip(), MixUp(),
        ParamScheduler(dict(lr=SchedCos(.1, .01)))])

@pytest.mark.sample(8)
@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
@pytest.mark.parametrize('cbs', around)
@pytest.mark.parametrize('when', schedules)
def test_training_is_the_same_to_the_last_bit(when, cbs, stream):
    if stream and (cbs=='all' or when=='part'): return # a schedule needs a length
    a,b = mk(*around[cbs](), stream=stream).fit(3),mk(*L(schedules[when]()), *around[cbs](), stream=stream).fit(3)
    assert (same(a.seen.xs, b.seen.xs) and same(a.seen.weights, b.seen.weights)
        and a.recorder.losses==b.recorder.losses and a.recorder.lrs==b.recorder.lrs)
    assert a.opt_step==b.opt_step and generators()==generators()
    if hasattr(a, 'ema'): assert same(a.ema.avg, b.ema.avg)
    assert b.seen.modes=={(True,True,True), (False,False,False)}
    if not stream: assert a.recorder.rows[-1].valid_loss==b.recorder.rows[-1].valid_loss

def test_validation_leaves_generators_unchanged():
    res = []
    for cbs in ([], [Validate(every=3, unit='iter'), Sanity()]): mk(*cbs).fit(2); res.append(generators())
    assert res[0]==res[1]

# When
def ends(n_epoch, due, n=10):
    "Batches after which a validation is expected: where `due(pos)` holds, and at the end"
    return sorted({o for o in range(1, n*n_epoch+1) if due(o)} | {n*n_epoch})

@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
@pytest.mark.parametrize('every', [1, 3, 5, 7, 10, 12, 100])
def test_every_so_many_batches(every, stream):
    learn = mk(Validate(every=every, unit='iter'), stream=stream).fit(3)
    expected = ends(3, lambda i: i%every==0)
    assert [i for _,i in learn.seen.phases]==expected
    assert [i for _,i,v in learn.seen.wrote if v]==expected
    mids = [(e, i) for e,i,_ in learn.seen.wrote]
    without = {o for o in (10,20,30) if not any(o-10<i<=o for i in expected)} # epochs without a validation
    # one row for each, and none that is empty
    if not stream: assert mids==[((i-1)//10, i) for i in sorted({*expected, *without})]

@pytest.mark.parametrize('every', [1, 2, 3, 5])
def test_every_so_many_epochs(every):
    learn = mk(Validate(every=every)).fit(5)
    assert ([i for _,i in learn.seen.phases]==ends(5, lambda i: i%(10*every)==0) and len(learn.recorder.rows)==5
        and 'iter' not in learn.recorder.metric_names)

@pytest.mark.parametrize('every,expected',
    [(.5, [5,10,15,20,25,30]), (.25, [3,5,8,10,13,15,18,20,23,25,28,30]), (.1, [*range(1,31)]), (1.5, [15,30]),
        (.7, [7,14,21,28,30])])
def test_parts_of_epochs(every, expected):
    assert [i for _,i in mk(Validate(every=every)).fit(3).seen.phases]==expected

@pytest.mark.parametrize('n', [14, 25])
def test_parts_of_epochs_are_those_of_a_whole_one_where_the_last_is_cut(n):
    assert [i for _,i in mk(Validate(every=.5)).fit(n_iter=n).seen.phases]==[*range(5, n, 5)] + [n]

@pytest.mark.parametrize('stop', [None,'after_batch','after_row'])
def test_a_step_that_comes_when_training_ends_is_validated(stop, tmp_path):
    "Where a loader has no length, it is not known that the batch that was just validated was the last one"
    cbs = lambda: [Validate(every=5, unit='iter'), GradientAccumulation(12)]
    def ends(learn):
        if learn.train_iter==10 and not learn.at: learn.stop_soon()
    learn = mk(*cbs(), stream=True, path=tmp_path)
    learn.fit(1, cbs=on(stop)(ends) if stop else None)
    if stop: file,learn = learn.save_state('one'),mk(*cbs(), stream=True, path=tmp_path); learn.fit(1, resume=file)
    rows = learn.recorder.rows
    assert [o.iter for o in rows]==[5,10,10] and learn.opt_step==4 and learn.at is None
    assert rows[-1].valid_loss==learn.validate().valid_loss!=rows[-2].valid_loss

@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
def test_steps(stream):
    "Windows of 3 batches, the last of each epoch with 1: steps after 3, 6, 9, 10, 13, …"
    learn = mk(Validate(every=3, unit='step'), GradientAccumulation(12), stream=stream).fit(3)
    assert learn.opt_step==12 and [i for _,i in learn.seen.phases]==[9,16,23,30]

def test_seconds(clock):
    learn = mk(Validate(every=4, unit='s'), clock.tick()).fit(2)
    assert [i for _,i in learn.seen.phases]==[4,8,12,16,20]

def test_when_is_called_once_for_each_position():
    asked = []
    def when(learn): asked.append((learn.epoch, learn.train_iter)); return learn.train_iter%3==0
    learn = mk(ExtraValid(fixed(6), when=when)).fit(2)
    assert (len({*asked})==len(asked)==22
        and [o.iter for o in learn.recorder.rows if not math.isnan(o['extra/loss'])]==[0,3,6,9,12,15,18])

def test_when_decides():
    asked = []
    def when(learn): asked.append((learn.epoch, learn.train_iter)); return learn.train_iter in (0,4,10,11)
    learn = mk(Validate(when=when)).fit(2)
    assert [i for _,i in learn.seen.phases]==[0,4,10,11,20]
    # once for each, and the first epoch's end is the second one's beginning
    assert len({*asked})==len(asked)==22 and {i for _,i in asked}=={*range(21)}

@pytest.mark.parametrize('bounds,expected',
    [(dict(n_iter=14), [4,8,12,14]), (dict(n_iter=12), [4,8,12]), (dict(n_epoch=1, n_iter=8), [4,8]),
        (dict(n_step=9), [4,8,9])], ids=str)
@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
def test_the_end_of_the_fit(bounds, expected, stream):
    learn = mk(Validate(every=4, unit='iter'), stream=stream).fit(**bounds)
    assert [i for _,i in learn.seen.phases]==expected

def test_short_epochs_and_limits():
    assert [i for _,i in mk(Validate(every=4, unit='iter'), Limit(train=6)).fit(3).seen.phases]==[4,8,12,16,18]
    assert [i for _,i in mk(Validate(every=2), ShortEpochCallback(.5, short_valid=False)).fit(3).seen.phases]==[10,15]

def test_start_epoch():
    learn = mk(Validate(every=2)).fit(5, start_epoch=1)
    assert [i for _,i in learn.seen.phases]==[10,30,40]
    assert [i for _,i in mk(Validate(every=7, unit='iter')).fit(5, start_epoch=3).seen.phases]==[7,14,20]

def test_the_next_fit_counts_from_zero():
    learn = mk(Validate(every=4, unit='iter')).fit(1).fit(1)
    assert [i for _,i in learn.seen.phases]==[4,8,10]
    with learn.removed_cbs(Validate): assert [i for _,i in learn.fit(2).seen.phases]==[10,20]

# Values
def by_hand(learn, w, dl):
    "Loss and mae of the state `w` over the batches of `dl`"
    m = Net().eval()
    m.load_state_dict(w)
    with torch.no_grad(): preds,ys = map(torch.cat, zip(*[(m(x), y) for x,y in dl]))
    return F.mse_loss(preds, ys).item(),(preds-ys).abs().mean().item()

def fixed(n, bs=4):
    x = torch.linspace(-1, 1, n)[:,None]
    return list(zip(x.split(bs), (2*x+3).split(bs)))

def states(learn): # state of the model after each batch, by number
    res = {}
    learn.on(event.before_draw,
        order=-1000)(lambda l: res.setdefault(l.train_iter, {k:v.clone() for k,v in l.model.state_dict().items()})
        if l.training else None)
    return res

def test_values_belong_to_the_current_weights():
    learn = mk(Validate(every=3, unit='iter'))
    learn.dls.valids['valid'] = valid = fixed(10)
    at = states(learn)
    learn.fit(2)
    for row in learn.recorder.rows:
        if math.isnan(row.valid_loss): assert row.iter==10; continue
        assert (row.valid_loss,row.mae)==pytest.approx(
            by_hand(learn, at.get(row.iter, learn.model.state_dict()), valid), rel=1e-5)

def test_loaders_that_replace_others_within_a_fit_are_validated():
    "Those that are new have columns from then on, and those that are gone have no more values"
    learn,small = mk(),fixed(6)
    @learn.on(event.before_epoch)
    def _(learn):
        if learn.epoch==1: learn.dls = DataLoaders(learn.dls.train, dict(valid=small, hard=fixed(5)), device='cpu')
        if learn.epoch==2: learn.dls = DataLoaders(learn.dls.train, dict(hard=small), device='cpu')
    at = states(learn)
    rows = learn.fit(3).recorder.rows
    assert (rows[1].valid_loss,rows[1].mae)==pytest.approx(by_hand(learn, at[20], small), rel=1e-5)
    assert (rows[2]['hard/loss'],rows[2]['hard/mae'])==pytest.approx([*learn.validate()], rel=1e-5)
    assert not math.isnan(rows[1]['hard/loss']) and math.isnan(rows[2].valid_loss)

def test_loaders_that_replace_others_in_an_inference_within_a_fit_are_validated():
    learn,small = mk(),fixed(6)
    @on('after_validate')
    def replace(learn): learn.dls = DataLoaders(learn.dls.train, small, device='cpu')
    at = states(learn)
    row = learn.fit(1, cbs=on('before_epoch')(lambda learn: learn.validate(cbs=replace))).recorder.rows[-1]
    assert (row.valid_loss,row.mae)==pytest.approx(by_hand(learn, at[10], small), rel=1e-5)

def test_loaders_that_were_chosen_for_a_fit_stay_when_others_replace_the_rest():
    learn = mk()
    @learn.on(event.before_fit | event.before_epoch)
    def _(learn):
        if 'epoch' not in learn.scopes: learn.to_validate = {'own': fixed(6)}
        else: learn.dls = DataLoaders(learn.dls.train, fixed(7), device='cpu')
    rows = learn.fit(2).recorder.rows
    assert rows['own/mae'].all() and math.isnan(rows[1].valid_loss)

def test_training_metrics_are_unchanged():
    def fit(*cbs):
        learn = mk(*cbs)
        learn.recorder.train_metrics = True
        return learn.fit(2)
    a,b = fit(Validate(every=3, unit='iter')),fit()
    assert ([r.train_mae for r in a.recorder.rows if r.iter in (10,20)]==list(b.recorder['train_mae'])
        and all(not math.isnan(o) for o in a.recorder['train_mae']))
    assert list(b.recorder['train_loss'])==[r.train_loss for r in a.recorder.rows if r.iter in (10,20)]

def test_the_averaged_weights_are_validated():
    learn = mk(Validate(every=5, unit='iter'), ema := EMA(.5, buffers=True))
    learn.dls.valids['valid'] = valid = fixed(10)
    seen = []
    def compare(self):
        sd = {k:v.clone() for k,v in self.learn.model.state_dict().items()}
        with ema.averaged(): avg = {k:v.clone() for k,v in self.learn.model.state_dict().items()}
        assert all(torch.equal(v, sd[k]) for k,v in self.learn.model.state_dict().items())
        seen.append(by_hand(self.learn, avg, valid)[0])
    learn.add_cb(Callback(after_row=compare)).fit(2)
    assert list(learn.recorder['valid_loss'])==pytest.approx(seen, rel=1e-5) and len(seen)==4

# Callbacks act on rows in the middle of an epoch
def test_early_stopping_in_the_middle_of_an_epoch():
    learn = mk(Validate(every=2, unit='iter'), EarlyStoppingCallback('score', np.less, patience=2),
        Score([3., 2., 5., 5., 1.])).fit(3)
    assert learn.train_iter==8 and [o.iter for o in learn.recorder.rows]==[2,4,6,8] and learn.stop_reason
    assert not any(p.grad is not None for p in learn.model.parameters()) and learn.dls.valids==learn.to_validate

class Score(Callback):
    order = 55
    new_columns = 'score',
    def __init__(self, vals): self.vals = vals
    def before_fit(self): self.it = iter(self.vals)
    def before_row(self): self.learn.recorder.add(score=next(self.it))

def test_the_best_model_of_the_middle_of_an_epoch_is_saved(tmp_path):
    learn = mk(Validate(every=3, unit='iter'), SaveModelCallback('score', np.less),
        SaveModelCallback(every_epoch=1, fname='e'), Score([3., 1., 2., 4., 5., 6., 7., 8.]), path=tmp_path)
    at = states(learn)
    learn.fit(2)
    assert all(torch.equal(v, at[6][k]) for k,v in learn.model.state_dict().items())
    assert sorted(o.name for o in (tmp_path/'models').iterdir())==['e_0.pth','e_1.pth','model.pth']
    learn.load('e_0')
    assert all(torch.equal(v, at[10][k]) for k,v in learn.model.state_dict().items())

def test_plateau_in_the_middle_of_an_epoch():
    learn = mk(Validate(every=4, unit='iter'), ReduceLROnPlateau('score', np.less, factor=2),
        Score([1., 1., 1., 0., 0.])).fit(1, lr=.08)
    assert learn.recorder.lrs==[.08]*8+[.04]*2 # the first is a new best

def test_epochs_without_validation_do_not_count_as_bad():
    learn = mk(Validate(every=2), cb := EarlyStoppingCallback(patience=100)).fit(5)
    assert cb.wait+1<=3 and [not math.isnan(o) for o in learn.recorder['valid_loss']]==[False,True,False,True,True]

def test_cancels_in_the_middle_of_an_epoch():
    learn = mk(Validate(every=4, unit='iter'), Raise('before_validate', CancelValidException, n=1)).fit(1)
    assert [(o.iter, math.isnan(o.valid_loss)) for o in learn.recorder.rows]==[(4,True),(8,False),(10,False)]
    learn = mk(Validate(every=4, unit='iter'), Raise('after_pred', CancelFitException('enough'), n=5)).fit(1)
    assert learn.train_iter==4 and learn.stop_reason=='enough' and learn.recorder.rows==[]
    learn = mk(Validate(every=4, unit='iter'), Raise('after_pred', CancelEpochException, n=5)).fit(2)
    # what was cut is still due
    assert [(o.epoch, o.iter) for o in learn.recorder.rows]==[(0,4),(1,4),(1,8),(1,12),(1,14)]

# Resuming
resumed = dict(iter=lambda: [Validate(every=3, unit='iter')], rare=lambda: [Validate(every=3)],
    part=lambda: [Validate(every=.4)], step=lambda: [Validate(every=2, unit='step'), GradientAccumulation(12)],
    when=lambda: [Validate(when=lambda l: l.train_iter%4==1)],
    extra=lambda: [ExtraValid(fixed(6), mae, every=4, unit='iter')],
    epochs=lambda: [ExtraValid(fixed(6), mae, every=2)],
    both=lambda: [Validate(every=3, unit='iter'), ExtraValid(fixed(6), every=6, unit='iter'),
        ExtraValid(fixed(4), name='b', on_better='mae'), EMA(.9)])

class Stop(Callback):
    "Ctrl-C at the `n`-th `ev`"
    def __init__(self, ev, n, training=None):
        self.n,self.phase = n,training
        super().__init__(**{ev: Stop.at_last})
    def at_last(self):
        if self.phase not in (None, self.learn.training): return
        self.n -= 1
        if self.n==0: signal.raise_signal(signal.SIGINT)

@pytest.mark.sample(10)
@pytest.mark.parametrize('how', resumed)
@pytest.mark.parametrize('ev,n,training',
    [('before_validate',1,None), ('after_validate',2,None), ('after_pred',2,False), ('after_pred',7,False),
        ('before_draw',3,False), ('before_draw',10,False),
    ('before_epoch',2,None), ('after_epoch',1,None), ('before_row',1,None), ('before_row',2,None)])
def test_an_interrupted_validation_is_repeated(how, ev, n, training):
    whole = mk(*resumed[how]()).fit(3)
    learn = mk(*resumed[how]())
    try: learn.fit(3, cbs=Stop(ev, n, training))
    except KeyboardInterrupt: learn.resume(cbs=[])
    assert (rows(learn)==rows(whole) and torch.equal(weights(learn), weights(whole))
        and learn.recorder.losses==whole.recorder.losses)

def test_resuming_from_a_file(tmp_path):
    mks = lambda: [Validate(every=3, unit='iter'), ExtraValid(fixed(6), every=4, unit='iter'),
        EarlyStoppingCallback(patience=4), SaveModelCallback(fname=None)]
    whole = mk(*mks()).fit(3)
    for at in (3, 4, 9, 10, 12):
        learn = mk(*mks(), path=tmp_path)
        def save(self):
            if self.learn.training and self.learn.train_iter==at: self.learn.save_state('now')
        learn.fit(3, cbs=Callback(after_batch=save))
        other = mk(*mks(), path=tmp_path)
        seed(7)
        other.load_state('now').resume()
        assert rows(other)==rows(whole) and torch.equal(weights(other), weights(whole))

# Bad input
bad = {
    'unit':        (lambda: Validate(unit='iters'), ValueError,
        "`unit` is one of `iter`, `step`, `epoch`, `s`, but got 'iters'. Did you mean `iter`"),
    'both':        (lambda: Validate(every=2, when=print), ValueError, "`every` and `when` exclude each other"),
    'when':        (lambda: Validate(when=3), TypeError, "`when` is a function of the learner, but got 3"),
    'zero':        (lambda: Validate(every=0), ValueError, "`every` is a number of `epoch`s above 0, but got 0"),
    'negative':    (lambda: Validate(every=-1, unit='s'), ValueError,
        "`every` is a number of seconds above 0, but got -1"),
    'part':        (lambda: Validate(every=1.5, unit='iter'), ValueError,
        "`every` is a whole number of `iter`s above 0, but got 1.5"),
    'file':        (lambda: Checkpoint(every=1.5), ValueError,
        "`every` is a whole number of `epoch`s above 0, but got 1.5"),
    'seconds':     (lambda: Checkpoint(every=math.inf, unit='s'), ValueError, "`every` is a number of seconds above 0"),
    'point':       (lambda: Rewind(every=0), ValueError, "`every` is a whole number of `iter`s above 0, but got 0"),
    'calls':       (lambda: event.after_batch(every=.5), ValueError, "`every` is a whole number of calls above 0"),
    'text':        (lambda: Validate(every='2'), TypeError, "`every` is a number of `epoch`s above 0, but got '2'"),
    'argument':    (lambda: Validate(evry=2), TypeError, "has no argument `evry`. Did you mean `every`"),
    'two':         (lambda: mk(Validate(), Validate()).fit(1), ValueError, "There are two `Validate` callbacks"),
    'nothing':     (lambda: mk(Validate(), valid=False).fit(1), ValueError,
        "There is nothing to validate on: `dls` has no validation loader"),
    'no length':   (lambda: mk(Validate(every=.5), stream=True).fit(1), ValueError,
        "`every=0.5` epochs cannot be counted in a training loader without a length"),
    'no recorder': (lambda: mk(Validate()).remove_cb(Recorder).fit(1), ValueError,
        "`Validate` reads the rows of a `Recorder`"),
    'extra name':  (lambda: mk(ExtraValid(fixed(4), name='valid')).fit(1), ValueError,
        "`valid` is already the name of a loader: give `ExtraValid` another `name`"),
    'two extras':  (lambda: mk(ExtraValid(fixed(4)), ExtraValid(fixed(4))).fit(1), ValueError,
        "`extra` is already the name of a loader"),
    'extra both':  (lambda: ExtraValid([], every=2, on_better='mae'), ValueError,
        "`on_better` and `every` exclude each other"),
    'extra when':  (lambda: ExtraValid([], when=print, on_better='mae'), ValueError,
        "`on_better` and `when` exclude each other"),
    'extra dl':    (lambda: ExtraValid(3), TypeError,
        "`dl` is not iterable: a loader is an iterable of batches, but got 3"),
    'dataset':     (lambda: ExtraValid(Noisy(4)), TypeError,
        "`dl` is a dataset, and a loader gives batches: write `DataLoader\\(dataset, batch_size=64\\)`"),
    'datasets':    (lambda: ExtraValid(dict(a=fixed(4), b=Noisy(4))), TypeError, "`dl` is a dataset"),
    'dict, name':  (lambda: ExtraValid(dict(a=fixed(4)), name='b'), ValueError,
        "The loaders of a dict have names already: give no `name='b'` with it"),
    'dict taken':  (lambda: mk(ExtraValid(dict(a=fixed(4), valid=fixed(4)))).fit(1), ValueError,
        "`valid` is already the name of a loader"),
    'on_better':   (lambda: mk(ExtraValid(fixed(4), on_better='mea')).fit(1), ValueError,
        "`mea` is to be monitored and is not recorded, but .*Did you mean `mae`"),
    'its own':     (lambda: mk(ExtraValid(fixed(4), on_better='extra/mae')).fit(1), ValueError,
        "`extra/mae` is to be monitored and is not recorded, but `train_loss`, `valid_loss`, `mae`\\."),
    'valid_':      (lambda: mk(ExtraValid(fixed(4), on_better='valid_mae')).fit(1), ValueError,
        "`valid_mae` is to be monitored and is not recorded, but .*Did you mean `mae`"),
    'sanity':      (lambda: Sanity(0), ValueError, "`n` is 1 or more, but got 0"),
    'limit':       (lambda: Limit(), ValueError, "`Limit` bounds `train`, `valid`, or both"),
    'limit train': (lambda: Limit(train=0), ValueError, "`train` is 1 or more, but got 0"),
    'limit valid': (lambda: Limit(valid=.5), TypeError, "`valid` is a whole number, but got 0.5"),
    'batches':     (lambda: limit_batches(0).__enter__(), ValueError, "`n` is 1 or more, but got 0"),
    'overfit':     (lambda: Overfit(-1), ValueError, "`k` is 1 or more, but got -1"),
    'overfit once': (lambda: synth_learner(dls=DataLoaders(iter(fixed(8)), device='cpu')).fit(1, cbs=Overfit),
        ValueError,
        "`dls\\['train'\\]` is an iterator, which may give its batches only once: a resumed fit .* Give a list"),
    'smoke':       (lambda: mk().smoke(0), ValueError, "`n` is 1 or more, but got 0"),
    'smoke cb':    (lambda: mk().smoke(cb=[]), TypeError, "has no argument `cb`. Did you mean `cbs`"),
    'smoke once':  (lambda: synth_learner(dls=DataLoaders(iter(fixed(8)), device='cpu')).smoke(), ValueError,
        "`dls\\['train'\\]` is an iterator, which may give its batches only once: a trial would use it up\\. Give"),
    'smoke in fit': (lambda: mk(Callback(before_epoch=lambda self: self.learn.smoke())).fit(1), RuntimeError,
        "`smoke` cannot start inside a running `fit`"),
} | {f'time {v!r}': (lambda v=v: TimeLimit(v), ValueError,
    "`limit` is a number of seconds, or a time such as '90s', '20m' or '1h30m', but got ")
    for v in ('', '20', '3x', 'h', '-5s', 0, -1, None, True, '20m1h', [1])}

@pytest.mark.parametrize('k', bad)
def test_bad_input(k):
    f,exc,match = bad[k]
    with pytest.raises(exc, match=match): f()

def test_the_learner_is_usable_after_bad_input():
    learn = mk()
    before = weights(learn)
    with pytest.raises(ValueError): learn.fit(1, cbs=[Validate(), Validate()])
    assert torch.equal(weights(learn), before) and learn.mode is None
    learn.fit(1)

# Other data
@pytest.mark.parametrize('main', [[], [Validate(every=3, unit='iter')]], ids=['epochs','iter'])
def test_extra_values(main):
    other = fixed(7, 3)
    extra = ExtraValid(other, [mae, R2Score], name='test', every=5, unit='iter')
    learn = mk(*main, extra, metrics=dict(err=mae))
    at = states(learn)
    learn.fit(2)
    assert learn.recorder.metric_names==['epoch','train_loss','valid_loss','err','iter','test/loss','test/mae',
        'test/r2_score','time']
    its = {o.iter:o for o in learn.recorder.rows if not math.isnan(o['test/loss'])}
    assert [*its]==[5,10,15,20]
    for i,o in its.items():
        assert (o['test/loss'],o['test/mae'])==pytest.approx(by_hand(learn, at.get(i, learn.model.state_dict()), other),
            rel=1e-5)
    assert ([o.name for o in learn.metrics]==['err']
        and {*learn.results.names}=={'valid_loss','err','test/loss','test/mae','test/r2_score'})
    assert {o.iter for o in learn.recorder.rows if not math.isnan(o.valid_loss)}==(
        {10,20} if not main else {3,6,9,12,15,18,20})
    # one row where both are due
    assert [o.iter for o in learn.recorder.rows]==sorted({5,10,15,20} | ({3,6,9,12,18} if main else set()))

def test_extra_loaders_by_name():
    others = dict(a=fixed(7, 3), c=fixed(5, 2))
    learn = mk(ExtraValid(others, dict(err=mae), every=2), cb := SaveModelCallback('c/err', fname=None))
    learn.fit(4)
    assert learn.recorder.metric_names==['epoch','train_loss','valid_loss','mae','a/loss','a/err','c/loss','c/err',
        'time']
    rec = learn.recorder
    assert [math.isnan(o) for o in rec['a/loss']]==[True,False,True,False] and cb.best==np.nanmin(rec['c/err'])
    for k,dl in others.items(): # the best weights are loaded
        i = int(np.nanargmin(rec['c/err']))
        assert (rec[i, f'{k}/loss'], rec[i, f'{k}/err'])==pytest.approx(by_hand(learn, learn.model.state_dict(), dl),
            rel=1e-5)

def test_extra_without_a_validation_loader():
    learn = mk(ExtraValid(fixed(6)), cb := TrackerCallback('extra/mae'), valid=False).fit(3)
    assert cb.best==learn.recorder['extra/mae'].min() and len(learn.recorder.rows)==3 and learn.dls.valids=={}
    assert cb.higher is False

def test_own_metrics_know_their_direction():
    learn = mk(ExtraValid(fixed(6), R2Score), cb := TrackerCallback('extra/r2_score')).fit(2)
    assert cb.higher is True and cb.best==learn.recorder['extra/r2_score'].max()

@pytest.mark.parametrize('vals,metric', [([3.,5.,2.,2.,1.,4.], 'score'), ([math.nan,5.,2.,math.nan,1.,4.], 'score')])
def test_on_better(vals, metric):
    class Low(Score): order = -300
    learn = mk(Low(vals), ExtraValid(fixed(6), on_better=metric))
    with pytest.warns(UserWarning, match='It is not declared whether higher `score`'): learn.fit(6) # a guess: higher
    best,expected = -math.inf,[]
    for i,v in enumerate(vals):
        if v>best: best = v; expected.append(i)
    assert [i for i,o in enumerate(learn.recorder['extra/loss']) if not math.isnan(o)]==expected

def test_on_better_in_the_middle():
    learn = mk(Validate(every=2, unit='iter'), ExtraValid(fixed(6), on_better='valid_loss')).fit(2)
    vals,found = learn.recorder['valid_loss'],learn.recorder['extra/loss']
    best = math.inf
    for v,o in zip(vals, found):
        assert math.isnan(o)==(math.isnan(v) or not v<best)
        if v<best: best = v

def test_an_error_in_extra_data():
    def broken(pred, targ): raise ZeroDivisionError
    learn = mk(ExtraValid(fixed(6), broken, every=3, unit='iter'))
    with pytest.raises(ZeroDivisionError): learn.fit(1)
    assert [o.name for o in learn.metrics]==['mae'] and learn.mode is None
    learn.remove_cb(ExtraValid).fit(1)

# Sanity
def test_sanity_changes_nothing_and_comes_first():
    seen = []
    class Watch(Callback):
        def before_sanity(self): seen.append('before')
        def after_sanity(self): seen.append('after')
        def before_train(self): seen.append('train')
        def before_batch(self): seen.append(self.learn.mode)
    learn = mk(Sanity(2), Watch, EarlyStoppingCallback(patience=9))
    state,w,lims = generators(),weights(learn),learn.limits
    learn.on(event.before_epoch,
        order=-1000)(lambda l: seen.append(
            (generators()==state, torch.equal(weights(l), w), l.limits is lims, l.results==Row(), list(l.recorder.rows),
                l.train_iter)))
    learn.fit(1)
    assert (seen[:6]==['before','validate','validate','after',(True,True,True,True,[],0),'train']
        and seen.count('before')==1)
    assert learn.sanity.found['valid'].names==('valid_loss','mae') and math.isfinite(learn.sanity.found['valid'].mae)
    plain = mk().fit(1)
    assert rows(plain)==rows(learn)

def test_sanity_finds_errors_before_an_epoch_is_lost():
    def broken(pred, targ): raise ZeroDivisionError('in a metric')
    learn = mk(Sanity, metrics=broken)
    before = weights(learn)
    with pytest.raises(ZeroDivisionError): learn.fit(1)
    assert torch.equal(weights(learn), before) and learn.limits=={}
    learn.metrics = mae
    learn.fit(1)

def test_sanity_skips_iterators():
    learn = mk(Sanity)
    learn.dls.valids = {'once': iter(fixed(8)), 'valid': fixed(12)}
    learn.fit(1)
    assert [*learn.sanity.found]==['valid'] and math.isfinite(learn.recorder[-1]['once/loss'])
    assert mk(Sanity, valid=False).fit(1).sanity.found=={}

# A few batches only
def test_limit():
    learn = mk(Limit(train=3, valid=2))
    n = []
    learn.on(event.after_batch)(lambda l: n.append(l.training))
    learn.fit(2)
    assert n==([True]*3+[False]*2)*2 and learn.limits=={} and learn.pct_train==1
    n.clear()
    learn.validate()
    assert n==[False]*3
    learn.limits = {'train': 2, 'valid': 1, 'other': 1}
    learn.fit(1)
    assert n[3:]==[True]*2+[False] and learn.limits=={'train': 2, 'valid': 1, 'other': 1}
    assert mk(Limit(valid=1)).fit(1).train_iter==10 and mk(Limit(train=50)).fit(1).train_iter==10

def test_limit_trains_like_a_shorter_loader():
    a = mk(Limit(train=4)).fit_one_cycle(3)
    b = mk(ShortEpochCallback(.4, short_valid=False)).fit(3,
        cbs=ParamScheduler(dict(lr=lambda pos: 0., mom=lambda pos: 0.)))
    # the same order of data, and the whole schedule
    assert same(a.seen.xs, b.seen.xs) and a.recorder.lrs[-1]<a.recorder.lrs[0]

def test_limit_batches(monkeypatch):
    import os
    monkeypatch.delenv('LEARNER_LIMIT_BATCHES', raising=False)
    learn = mk()
    with limit_batches(3):
        with limit_batches(2): assert learn.fit(2).train_iter==4 and learn.pct_train==1
        assert learn.fit(1).train_iter==3
    assert 'LEARNER_LIMIT_BATCHES' not in os.environ and learn.fit(1).train_iter==10
    with pytest.raises(ZeroDivisionError):
        with limit_batches(2): 1/0
    assert 'LEARNER_LIMIT_BATCHES' not in os.environ

# Overfitting
def test_overfit_is_training_on_a_list():
    def mk2(*cbs):
        learn = mk(*cbs)
        x = torch.linspace(-1, 1, 40)[:,None]
        learn.dls = DataLoaders(DataLoader(TensorDataset(x, 2*x+3), 4, shuffle=True), fixed(8), device='cpu')
        return learn
    first = mk2().fit(1).seen.xs[:2]
    learn = mk2(Overfit(2))
    dls,m = learn.dls,deepcopy(learn.model)
    state = torch.get_rng_state()
    learn.fit(3)
    assert (same(learn.seen.xs, first*3) and learn.dls is dls
        and learn.seen.phases==[('valid',2),('valid',4),('valid',6)] and learn.pct_train==1)
    opt = torch.optim.SGD(m.parameters(), lr=.05, momentum=.9)
    torch.set_rng_state(state)
    for _ in range(3):
        for x in first: F.mse_loss(m(x), 2*x+3).backward(); opt.step(); opt.zero_grad()
    assert all(torch.equal(v, m.state_dict()[k]) for k,v in learn.model.state_dict().items())

def overfitting(s, *cbs, workers=0):
    learn = mk(Overfit(2), *cbs)
    seed(s)
    x = torch.linspace(-1, 1, 40)[:,None]
    learn.dls = DataLoaders(DataLoader(TensorDataset(x, 2*x+3), 4, shuffle=True, num_workers=workers,
        generator=torch.Generator().manual_seed(s)), fixed(8), device='cpu')
    return learn

@pytest.mark.parametrize('ev,at', [('before_validate',1), ('before_validate',3), ('before_epoch',2)])
@pytest.mark.parametrize('workers', [0, pytest.param(1, marks=pytest.mark.slow)])
def test_overfit_resumes_with_the_same_batches(ev, at, workers):
    whole = overfitting(0, workers=workers).fit(5)
    learn = overfitting(0, workers=workers)
    with pytest.raises(KeyboardInterrupt): learn.fit(5, cbs=Raise(ev, KeyboardInterrupt, n=at))
    torch.rand(7) # unrelated draws in between
    learn.resume()
    assert torch.equal(weights(learn), weights(whole)) and rows(learn)==rows(whole)
    assert {o.sum().item() for o in learn.seen.xs}<={o.sum().item() for o in whole.seen.xs} and len(learn.seen.xs)>=2

@pytest.mark.parametrize('every', [1, 3, 4])
def test_overfit_resumes_in_another_process(every, tmp_path):
    whole = overfitting(0).fit(5)
    def saver(): return Checkpoint(every=every, unit='iter', on_exc=False)
    learn = overfitting(0, saver())
    learn.path = tmp_path
    with pytest.raises(ZeroDivisionError): learn.fit(5, cbs=Raise('before_step', ZeroDivisionError, n=7))
    other = overfitting(5, saver())
    other.path = tmp_path
    other.fit(5, resume=True)
    assert torch.equal(weights(other), weights(whole)) and rows(other)==rows(whole)
    assert {o.sum().item() for o in other.seen.xs}<={o.sum().item() for o in whole.seen.xs}

def test_overfit_keeps_the_names_of_loaders():
    learn = mk(Overfit(1), cb := TrackerCallback('b/mae'))
    learn.dls = DataLoaders(fixed(8), dict(a=fixed(6), b=fixed(7)), device='cpu')
    learn.fit(2)
    rec = learn.recorder
    assert (rec.metric_names==['epoch','train_loss','a/loss','a/mae','b/loss','b/mae','time']
        and cb.best==min(rec['a/mae']))
    assert list(rec['a/loss'])==list(rec['b/loss']) and len(learn.dls['a'])==2
    assert rec[-1,'b/mae']==pytest.approx(by_hand(learn, learn.model.state_dict(), fixed(8)[:1])[1], rel=1e-5)

def test_overfit_validates_on_them_too():
    learn = mk(Overfit(1), metrics=mae)
    seen = []
    learn.on(event.before_batch)(lambda l: seen.append((l.training, l.x)))
    learn.fit(2)
    assert [o for o,_ in seen]==[True,False]*2 and all(torch.equal(x, seen[0][1]) for _,x in seen)
    learn = mk(Overfit(1), valid=False).fit(2)
    assert len(learn.recorder['valid_loss'])==2 and learn.dls.valids=={}
    with pytest.raises(ZeroDivisionError): learn.fit(1, cbs=Raise('before_epoch', ZeroDivisionError))
    assert len(learn.dls.train)==10

# Time limits
@pytest.mark.parametrize('t,s',
    [(5, 5), (.5, .5), ('90s', 90), ('20m', 1200), ('20min', 1200), ('1h30m', 5400), ('1h', 3600), ('0.5h', 1800),
        ('1h 2m 3s', 3723)])
def test_times(t, s): assert TimeLimit(t).seconds==s

def test_time_limit_in_the_middle_of_an_epoch(clock):
    learn = mk(TimeLimit('13s'), clock.tick()).fit(5)
    assert learn.train_iter==13 and learn.stop_reason=='the time limit of 13s is over'
    assert learn.seen.wrote==[(0,10,True),(1,13,True)] and learn.recorder[-1].iter==13
    assert learn.fit(1).train_iter==10 and learn.stop_reason is None # a new fit has new time

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
@pytest.mark.parametrize('cbs',
    [[], [Validate(every=3)], [Validate(every=7, unit='iter')], [Validate(every=10, unit='iter')]],
    ids=['plain','rare','7','10'])
@pytest.mark.parametrize('t', [1, 7, 10, 14, 20, 25, 30, 40])
def test_time_limit_validates_once(t, cbs, stream, clock):
    learn = mk(TimeLimit(t), clock.tick(), *cbs, stream=stream).fit(3)
    assert learn.train_iter==min(t, 30)
    seen = [i for _,i in learn.seen.phases]
    assert seen[-1]==min(t, 30) and len({*seen})==len(seen)
    # the end of a stream is not known before it comes
    assert (learn.stop_reason is None)==(t>30 or (t==30 and not stream))

def test_time_limit_counts_validation(clock):
    def slow(self): clock.t += 100*(not self.learn.training)
    learn = mk(TimeLimit(50), Callback(after_validate=slow)).fit(3)
    assert learn.train_iter==10 and [i for _,i in learn.seen.phases]==[10] and learn.stop_reason

def test_time_limit_without_validation(clock):
    learn = mk(TimeLimit(3), clock.tick(), valid=False)
    learn.remove_cb(Seen)
    learn.fit(3)
    assert learn.train_iter==3 and math.isfinite(learn.recorder[-1]['train_loss'])

@pytest.mark.sample(2)
@pytest.mark.parametrize('t', [4, 10, 13, 20, 27])
@pytest.mark.parametrize('cbs',
    [lambda: [], lambda: [GradientAccumulation(12), Validate(every=4, unit='iter')],
        lambda: [EMA(.9), EarlyStoppingCallback(patience=9)]], ids=['plain','accumulation','ema'])
def test_the_next_session_resumes_exactly(t, cbs, clock, tmp_path):
    whole = mk(*cbs(), SaveModelCallback(load_best=False), path=tmp_path).fit(3)
    mks = lambda: [*cbs(), SaveModelCallback(), Checkpoint(), TimeLimit(t), clock.tick()]
    learn = mk(*mks(), path=tmp_path).fit(3)
    assert learn.train_iter==t and learn.stop_reason
    while learn.stop_reason:
        learn = mk(*mks(), path=tmp_path)
        seed(7)
        learn.save_model.load_best = False
        learn.fit(3, resume=True)
    assert (rows(learn)==rows(whole) and torch.equal(weights(learn), weights(whole))
        and learn.recorder.losses==whole.recorder.losses)
    assert mk(*mks(), path=tmp_path).fit(3, resume=True).seen.xs==[] # what has ended stays ended

# Smoke tests
def found(learn):
    opt = (learn.opt and {id(p):{k:v.clone() if isinstance(v, torch.Tensor) else v for k,v in s.items()}
        for p,s in learn.opt.state.items()})
    return dict(model={k:v.clone() for k,v in learn.model.state_dict().items()},
        grads=[p.grad for p in learn.model.parameters()], opt=opt,
        hypers={k:get_hyper(learn.opt, k) for k in hypers(learn.opt)},
        random=generators(), rows=list(learn.recorder.rows), losses=list(learn.recorder.losses),
        lrs=list(learn.recorder.lrs), results=learn.results, modes=[m.training for m in learn.model.modules()],
        run={k:getattr(learn, k)
            for k in ('epoch','n_epoch','train_iter','opt_step','stop_reason','mode','pct_train','limits','dls','at')},
            state=deepcopy(dict(learn.state)), hps=dict(learn.recorder.hps),
            norms=[*learn.gradient_clip.norms] if hasattr(learn, 'gradient_clip') else [], cbs=list(learn.cbs),
        cb_states={cb.name:cb.state_dict() for cb in learn.cbs})

def equal(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys()==b.keys() and all(equal(v, b[k]) for k,v in a.items())
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(equal, a, b))
    return a==b or (a!=a and b!=b)

everything = lambda: [EMA(.9), GradientAccumulation(8), EarlyStoppingCallback(patience=3),
    Validate(every=3, unit='iter'), ExtraValid(fixed(6), name='x', on_better='mae'), GradientClip()]
def no_time(o):
    o['cb_states'] = {k:{a:b for a,b in v.items() if a not in ('time','spent')} for k,v in o['cb_states'].items()}
    return o

@pytest.mark.parametrize('error', [False, True])
@pytest.mark.parametrize('cbs', [lambda: [], everything, lambda: [MixedPrecision('fp16', init_scale=4.)]],
    ids=['plain','everything','fp16'])
def test_smoke_restores_everything(cbs, error):
    learn = mk(*cbs()).fit(2)
    learn.state.mine = [1]
    learn.on(event.after_batch)(lambda l: l.state.mine.append(2))
    before = no_time(found(learn))
    seen = []
    mine = [ParamScheduler(dict(lr=SchedLin(.1, 1.))),
        Callback(after_batch=lambda self: seen.append(self.learn.training))]
    if error:
        with pytest.raises(ZeroDivisionError): learn.smoke(cbs=[*mine, Raise('after_validate', ZeroDivisionError)])
    else: assert isinstance(learn.smoke(cbs=mine), Row)
    after = no_time(found(learn))
    assert equal(before, after), [k for k in before if not equal(before[k], after[k])]
    assert seen[:4]==[True,True,False,False] and seen.count(True)==2

def test_smoke_does_not_change_the_next_fit():
    a,b = mk(*everything()).fit(2),mk(*everything())
    b.smoke()
    b.fit(2)
    assert same(a.seen.weights, b.seen.weights) and rows(a)==rows(b) and same(a.ema.avg, b.ema.avg)

@pytest.mark.parametrize('by_hand', [False, True])
def test_smoke_leaves_what_is_frozen(by_hand):
    learn = mk(splitter=lambda m: [[p] for p in m.parameters()])
    next(learn.model.parameters()).requires_grad_(not by_hand)
    def trained(): return [p.requires_grad for p in learn.model.parameters()]
    before = trained()
    learn.smoke(cbs=FreezeSchedule({0: -1}))
    assert trained()==before
    frozen = learn.freeze() and trained()
    learn.smoke(cbs=FreezeSchedule({0: 0}))
    assert trained()==frozen!=before and learn.unfreeze() and trained()==before

def test_smoke_restores_states_inside_callbacks():
    class Inner:
        n = 0
    class Own(Callback):
        def __init__(self): self.inner = Inner()
        def after_batch(self): self.inner.n += 1
        def state_dict(self): return dict(n=self.inner.n)
        def load_state_dict(self, state): self.inner.n = state['n']
    learn = mk(own := Own()).fit(1)
    n = own.inner.n
    learn.smoke()
    assert own.inner.n==n>0

def test_smoke_leaves_out_callbacks_that_write(tmp_path):
    class Log(Callback):
        writes = True
        def before_fit(self): (tmp_path/'log').write_text('began')
    learn = mk(SaveModelCallback(), Log, Checkpoint(), path=tmp_path)
    learn.smoke(3, cbs=[SaveModelCallback(at_end=True, fname='end'), Log, CSVLogger(tmp_path/'a.csv')])
    assert ([*tmp_path.iterdir()]==[] and hasattr(learn, 'save_model') and hasattr(learn, 'log')
        and hasattr(learn, 'checkpoint'))

def test_smoke_prints_nothing(capsys):
    learn = mk().add_cb(ProgressCallback(bars=False))
    learn.smoke()
    assert capsys.readouterr().out==''
    learn.fit(1)
    assert 'valid_loss' in capsys.readouterr().out

def test_smoke_draws_no_graph():
    seen = []
    class Graph(ShowGraphCallback):
        def after_row(self): seen.append(self.learn.epoch)
    learn = mk(Graph)
    learn.smoke()
    assert not seen
    learn.fit(1)
    assert seen==[0]

def test_smoke_between_a_stop_and_a_resume():
    whole = mk(EMA(.9)).fit(2)
    learn = mk(EMA(.9))
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Stop('before_draw', 7, True))
    learn.smoke()
    learn.resume(cbs=[])
    assert torch.equal(weights(learn), weights(whole)) and rows(learn)==rows(whole)

@pytest.mark.slow
def test_smoke_starts_its_own_workers():
    seed()
    mks = lambda: DataLoader(Noisy(16), 4, shuffle=True, num_workers=1, persistent_workers=True,
        multiprocessing_context='fork')
    res = []
    for trial in (False, True):
        seed()
        learn = Learner(DataLoaders(mks(), mks(), device='cpu'), Net(), F.mse_loss,
            cbs=Seen).remove_cb(ProgressCallback)
        if trial: learn.smoke()
        learn.fit(2)
        res.append(learn.seen.xs)
        for o in learn.dls: vars(o)['_iterator'] = None
    assert same(*res)

def test_the_smallest_of_nested_limits_holds(monkeypatch):
    monkeypatch.setenv('LEARNER_LIMIT_BATCHES', '4')
    def trained(): return synth_learner(n_train=6, n_valid=0).fit(1).train_iter
    with limit_batches(2):
        with limit_batches(5): assert trained()==2
        assert trained()==2
    with limit_batches(5): assert trained()==4
