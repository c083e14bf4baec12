"""Filters in a second fit, the order in which new callbacks are told, what a callback gives back to the model, and
small learners for tests"""
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader
from learner.all import *

def weights(learn): return {k:v.tolist() for k,v in learn.model.state_dict().items()}

# Filters
moments_ = dict(iter=('after_batch', 'train_iter'), step=('after_step', 'opt_step'), epoch=('after_epoch', 'epoch'))

@pytest.mark.parametrize('unit', moments_)
@pytest.mark.parametrize('n_epoch', [1,3])
@pytest.mark.parametrize('given,expected',
    [(dict(once=1), {1}), (dict(once=[1,3]), {1,3}), (dict(every=1), {1,2,3}), (dict(every=2), {2})], ids=str)
def test_a_filter_with_a_unit_counts_anew_in_each_fit(unit, n_epoch, given, expected):
    ev,k = moments_[unit]
    seen = []
    @on(ev, unit=unit, **given)
    def note(learn):
        if learn.training or unit=='epoch': seen.append(getattr(learn, k) + (unit=='epoch'))
    learn = synth_learner(n_train=1, n_valid=0, cbs=note) # one batch in an epoch: all units count alike
    for _ in range(3):
        seen.clear()
        learn.fit(n_epoch)
        assert {*seen}=={o for o in expected if o<=n_epoch}

def test_a_filter_without_a_unit_counts_its_calls_through_all_fits():
    seen = []
    learn = synth_learner(n_train=2, n_valid=0,
        cbs=on(event.after_batch(once=[1,3]))(lambda learn: seen.append(learn.train_iter)))
    learn.fit(1).fit(1)
    assert seen==[1,1] # the first and the third batch

def test_a_filter_in_a_run_that_is_resumed_does_not_count_anew():
    def made():
        return synth_learner(n_train=6, n_valid=0,
            cbs=on(event.after_batch(every=4, unit='iter'))(
                lambda learn: learn.state.setdefault('at', []).append(learn.train_iter)))
    learn = made()
    class Stop(Callback):
        def before_draw(self):
            if self.learn.train_iter==5: self.learn.at_pause(lambda: self.learn.stop_for_now('enough'))
    learn.fit(2, cbs=Stop())
    assert learn.train_iter==5
    learn.resume(cbs=[])
    assert learn.state['at']==made().fit(2).state['at']==[4,8,12]

def test_a_moment_that_a_filter_has_seen_is_not_another_one_when_the_run_resumes():
    "A resumed epoch begins again for callbacks, but it is no further one"
    seen = []
    learn = synth_learner(n_train=2, n_valid=0,
        cbs=on(event.before_epoch(every=1, unit='epoch'))(lambda learn: seen.append(learn.epoch)))
    class Stop(Callback):
        def before_draw(self):
            if self.learn.train_iter==3: self.learn.at_pause(lambda: self.learn.stop_for_now('enough'))
    learn.fit(3, cbs=Stop())
    learn.resume(cbs=[])
    assert seen==[0,1,2]

@pytest.mark.parametrize('given,expected', [(dict(every=4), (4,8)), (dict(once=[1,6]), (1,6))], ids=str)
def test_a_filter_follows_a_search_for_a_learning_rate_from_its_beginning(given, expected):
    seen = []
    learn = synth_learner(n_train=10, n_valid=0,
        cbs=on(event.after_batch(unit='iter', **given))(lambda learn: seen.append((learn.mode,learn.train_iter))))
    learn.fit(1)
    learn.lr_find(num_it=10, show_plot=False)
    learn.fit(1)
    assert seen==[(m,i) for m in ('fit','lr_find','fit') for i in expected]

# Coming and going
def test_new_callbacks_hear_of_it_in_their_order_however_they_are_given():
    told = []
    class Tells(Callback):
        def __init__(self, order): self.order = order
        # all are there
        def after_create(self):
            told.append(self.order); assert len([o for o in self.learn.cbs if isinstance(o, Tells)])==3
    learn = synth_learner(cbs=[Tells(5), Tells(-5), Tells(0)])
    assert told==[-5,0,5]
    told.clear()
    with learn.removed_cbs(Tells): pass # they come back, and are not new
    assert told==[] and [o.order for o in learn.cbs if isinstance(o, Tells)]==[5,-5,0]

# Methods in the place of `forward`
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
    def forward(self, x): return x*self.a
    def double(self, x): return 2*x*self.a

@pytest.mark.parametrize('own', [False,True])
def test_a_model_keeps_the_forward_of_its_own_that_it_had(own):
    "A model may have a `forward` of its own, that of its class aside, as patched models do"
    m,calls = Twice(),[]
    def patched(x): calls.append('own'); return x*m.a
    if own: m.forward = patched
    before = dict(vars(m))
    learn = synth_learner(n_train=2, n_valid=1, model=m, cbs=Forward(train='double'))
    learn.fit(1)
    assert vars(m).get('forward') is before.get('forward') and calls==['own']*own # in validation
    with pytest.raises(ZeroDivisionError): learn.fit(1, cbs=Raise('after_pred', ZeroDivisionError))
    assert vars(m).get('forward') is before.get('forward')
    x = torch.ones(2, 1)
    assert torch.equal(m(x), x*m.a)

# Small learners for tests
def data(dls):
    return [torch.cat([o.flatten() for b in dl for o in b]) for dl in (DataLoader(o.dataset, 64) for o in dls)]

def test_the_seed_of_synthetic_data_makes_them():
    a,b,c = data(synth_dls(seed=1)),data(synth_dls(seed=1)),data(synth_dls(seed=2))
    for i in range(2): assert torch.equal(a[i], b[i]) and not torch.equal(a[i], c[i])
    assert not torch.equal(data(synth_learner(seed=3).dls)[0], data(synth_learner(seed=4).dls)[0])

def test_the_seed_of_a_synthetic_learner_makes_data_weights_and_order():
    a,b,c = (synth_learner(seed=s).fit(1) for s in (1,1,2))
    assert weights(a)==weights(b)!=weights(c) and a.recorder.raw_losses==b.recorder.raw_losses

def test_synthetic_data_are_as_asked_for():
    dls = synth_dls(3, 2, bs=5, a=-4., b=1., shuffle=False)
    assert [len(o) for o in dls]==[3,2] and all(b[0].shape==b[1].shape==(5,1) for dl in dls for b in dl)
    x,y = (torch.cat(o) for o in zip(*dls.train))
    assert (y-(-4*x+1)).std()<.3 and torch.equal(torch.cat([b[0] for b in dls.train]), x)
    assert synth_dls(2, 0).valid is None and synth_dls(num_workers=1).train.num_workers==1

def test_trace_records_the_given_events_in_order():
    trace = Trace('before_step','after_epoch')
    synth_learner(n_train=2, cbs=trace).fit(2)
    assert (trace.seen==['before_step','before_step','after_epoch']*2
        and trace.after('before_step')==['before_step','after_epoch'])

class Strict:
    "Answers attributes that it lacks with an error of its own, as classes of other libraries do"
    __slots__ = 'a','b'
    def __init__(self): self.a = [1]
    def __getattr__(self, k): raise RuntimeError(f'no {k}')

def test_objects_that_refuse_to_be_searched_stop_no_fit():
    class Keeps(Callback):
        def before_fit(self): self.strict = [Strict()]
    learn = synth_learner(cbs=Keeps).fit(2)
    learn.validate(); learn.get_preds()
    assert learn.keeps.strict[0].a==[1] and learn.opt_step==20

@pytest.mark.parametrize('late', [True, False])
def test_a_callback_that_came_too_late_to_set_up_is_told_so(late):
    "But not one whose own code is wrong"
    class Sums(Callback):
        def before_fit(self): self.sum = 0.
        def after_batch(self): self.sum += self.loss.item() if late else self.loss.itme()
    learn = synth_learner(2, 1)
    if late: learn.on('before_epoch')(lambda learn: learn.add_cb(Sums))
    with pytest.raises(AttributeError) as e: learn.fit(1, cbs=None if late else Sums)
    said = [o for o in e.value.__notes__ if 'came into a running fit' in o]
    assert said==["`Sums` came into a running fit, so that its `before_fit` was not called: add it before the fit"]*late

@pytest.mark.parametrize('make', [EMA, SWA, lambda: Limit(1), Overfit, lambda: MicroBatch(2), SpikeGuard, Checkpoint,
    Timer, lambda: Compile(backend='eager')])
def test_what_would_do_nothing_in_a_running_fit_is_refused_there(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path) # for files of a `Checkpoint`
    learn = synth_learner(2)
    def add(cb):
        if cb.training and cb.train_iter==2: cb.learn.add_cb(make())
    name,n = type(make()).__name__,len(learn.cbs)
    with pytest.raises(RuntimeError, match=f'`{name}` sets itself up at the beginning of a fit, and one is running'):
        learn.fit(1, cbs=Callback(after_batch=add))
    assert len(learn.cbs)==n and learn.fit(1, cbs=make()).mode is None

@pytest.mark.parametrize('make', [EMA, SpikeGuard, lambda: GradientAccumulation(32), lambda: Compile(backend='eager')])
def test_what_comes_when_a_fit_ends_is_for_the_next_one(make):
    learn,cb = synth_learner(4),make()
    learn.fit(1, cbs=Callback(cleanup_fit=lambda self: self.learn.add_cb(cb)))
    assert cb in learn.cbs and learn.fit(1).opt_step==(2 if type(cb) is GradientAccumulation else 4)

@pytest.mark.parametrize('again', [False,True], ids=['new','again'])
@pytest.mark.parametrize('ev',
    ['before_batch','after_pred','after_loss','before_backward','after_backward','before_step'])
@pytest.mark.parametrize('make', [lambda: MixedPrecision('bf16'), lambda: GradientAccumulation(10**6), Prefetch],
    ids=['amp','accumulation','prefetch'])
def test_what_comes_within_a_batch_leaves_its_rest_as_it_is(make, ev, again):
    "And begins with the next one; an accumulation, which has nothing to do before the backward pass, with this one"
    def run(ev, n):
        cb,learn = make(),synth_learner(6, 1)
        def add(learn):
            if learn.training and learn.train_iter==n and cb not in learn.cbs: learn.add_cb(cb)
        def fit(): return learn.fit(1, cbs=on(ev, order=-50)(add))
        with learn.no_logging():
            if again: fit().remove_cb(cb)
            return fit().recorder.raw_losses
    with_this = type(make()) is GradientAccumulation and ev in ('before_batch','after_pred','after_loss')
    assert run(ev, 2)==pytest.approx(run('before_draw', 2 if with_this else 3), abs=1e-6)

def test_any_error_of_a_callback_that_came_too_late_tells_it():
    class Halves(Callback):
        n = None
        def before_fit(self): self.n = 2
        def after_batch(self): self.x = 1/self.n
    with pytest.raises(TypeError) as e: synth_learner(2, 1).fit(1, cbs=on('before_epoch')(lambda o: o.add_cb(Halves)))
    assert any('came into a running fit' in o for o in e.value.__notes__)

@pytest.mark.skipif(sys.version_info<(3,14), reason='annotations are evaluated where they are written')
def test_a_callback_may_have_annotations_that_only_a_type_checker_knows():
    class Follows(Callback):
        def __init__(self, other:Follows|None=None, leader:Leader|None=None): # noqa: F821
            self.other,self.leader = other,leader
        def after_epoch(self): self.n = self.learn.epoch
    learn = synth_learner(cbs=Follows()).fit(2)
    assert learn.follows.n==1 and learn.run_config

def test_what_is_there_may_be_added_again():
    ema = EMA()
    again = on('before_epoch')(lambda learn: learn.add_cb(ema))
    assert synth_learner(2, cbs=ema).fit(2, cbs=again).opt_step==4 and ema.n

def test_accumulation_may_be_taken_out_and_put_back_between_epochs():
    acc = GradientAccumulation(32)
    def again(learn): learn.remove_cb(acc); learn.add_cb(acc)
    assert synth_learner(4, cbs=acc).fit(2, cbs=on('after_epoch')(again)).opt_step==4

def test_an_inference_inside_of_a_fit_fires_no_before_fit_and_refuses_what_needs_it():
    with pytest.raises(RuntimeError, match='`EMA` sets itself up at the beginning of a fit'):
        synth_learner(2).fit(1, cbs=on('after_epoch')(lambda learn: learn.validate(cbs=EMA())))

def test_channels_last_in_an_inference_before_the_first_fit():
    data = [(torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    learn = Learner(DataLoaders(data, data, device='cpu'), model, nn.CrossEntropyLoss())
    assert learn.validate(cbs=ChannelsLast())['valid_loss']==pytest.approx(learn.validate()['valid_loss'], abs=1e-5)

def test_a_callback_may_be_a_dataclass_whose_instances_are_told_apart():
    def made(**kwargs):
        @dataclass(**kwargs)
        class Counts(Callback):
            n:int=1
            def after_epoch(self): self.n += 1
        return Counts
    a,b = map(made(eq=False), (1,5))
    synth_learner(2, 0, cbs=[a, b]).fit(2)
    assert (a.n,b.n)==(3,7)
    with pytest.raises(TypeError, match=r'`Counts` compares its instances.*`@dataclass\(eq=False\)`'):
        synth_learner(cbs=made()())

# Names and handlers that are none
def test_a_name_that_is_no_text_is_refused():
    class Tagged(Callback):
        def __init__(self, tag): self.tag = tag
        @property
        def name(self): return f'tagged_{self.tag}'
    learn = synth_learner()
    with pytest.raises(TypeError, match=r"`Tagged.name` is a text, but got <property .*`self.name = …` in `__init__`"):
        learn.add_cb(Tagged('a'))
    assert [o.name for o in learn.cbs]==['train_eval','recorder']
    class Named(Callback):
        def __init__(self, tag): self.name = f'tagged_{tag}' # as the error says
    learn.add_cbs([Named('a'), Named('b')])
    assert [o.name for o in learn.cbs][2:]==['tagged_a','tagged_b'] and learn.tagged_b.learn is learn

def wrapped(f):
    @wraps(f)
    def _f(*args): return f(*args)
    return _f

async def later(self): pass
def stepwise(self): yield

@pytest.mark.parametrize('f,why', [(later, 'async'), (stepwise, 'yield')], ids=['async','yield'])
@pytest.mark.parametrize('around', [wrapped, lambda f: wrapped(wrapped(f)), contextmanager, staticmethod],
    ids=['wraps','twice','contextmanager','staticmethod'])
def test_a_handler_that_would_never_run_is_refused_beneath_its_decorators(f, why, around):
    with pytest.raises(TypeError, match=f'`Mine.after_batch` would never run, because of its `{why}`'):
        type('Mine', (Callback,), dict(after_batch=around(f)))
    with pytest.raises(TypeError, match='would never run'): Callback(after_batch=wrapped(f))
    with pytest.raises(TypeError, match='would never run'): on(event.after_batch)(wrapped(f))

def test_a_decorated_handler_runs():
    seen = []
    class Mine(Callback):
        @wrapped
        def after_batch(self): seen.append(self.train_iter)
    synth_learner(n_train=2, n_valid=0, cbs=Mine).fit(1)
    assert len(seen)==2

# The list
def test_callbacks_are_found_by_their_class():
    class Count(Callback): pass
    class Twice(Count): pass
    first,second = Twice(),Count()
    learn = synth_learner(cbs=[first,second])
    assert learn.cbs.of(Count)==[first,second] and learn.cbs.of(Twice)==[first] and learn.cbs.of(Checkpoint)==[]
    assert learn.cbs.one(Count) is first and learn.cbs.one(Recorder) is learn.recorder
    assert learn.cbs.one(Checkpoint) is None
