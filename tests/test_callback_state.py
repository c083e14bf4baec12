"States of callbacks that cannot be told yet, or at all"
import copy,re,warnings
from types import SimpleNamespace
import pytest,torch
from learner.all import *
from signals import ctrl_c,python_handler # noqa: F401
from small_fits import mk,same,weights

class Late(Callback):
    "Sets what it saves when the first epoch is over"
    _stateattrs = 'best',
    def after_epoch(self): self.best = self.learn.epoch

def at_batch(n, f):
    def _f(self):
        if self.train_iter==n: f()
    return Callback(after_batch=_f)

def test_an_attribute_that_is_not_set_yet_is_no_part_of_the_state():
    learn,whole = mk(late := Late()),mk().fit(2)
    with warnings.catch_warnings():
        warnings.simplefilter('error', Mistake)
        with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=at_batch(3, lambda: 1/0))
        warnings.simplefilter('ignore') # a batch was cut
        learn.resume(cbs=[])
    assert late.best==1 and same(weights(learn.model), weights(whole.model))

class SetsOnce(Callback):
    "Has its attribute from the third batch on"
    _stateattrs = 'first',
    run_valid = False
    def before_batch(self):
        if self.train_iter>=2 and 'first' not in vars(self): self.first = self.train_iter

def test_an_attribute_that_was_not_set_at_a_position_is_unset_there(tmp_path):
    learn = mk(cb := SetsOnce(), Rewind()).fit(1)
    assert cb.first==2
    learn.rewind(0)
    assert 'first' not in vars(cb) and learn.resume() and cb.first==2
    learn = mk(cb := SetsOnce(), path=tmp_path)
    early = on('after_batch')(lambda learn: learn.save_state('early') if learn.train_iter==1 else None)
    learn.fit(1, cbs=early).load_state('early')
    assert 'first' not in vars(cb)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # `early` is gone
        assert learn.resume(cbs=[]) and cb.first==2

def test_an_attribute_that_is_set_while_the_fit_is_stopped_is_unset_again():
    learn = mk(cb := SetsOnce(), at_batch(1, lambda: learn.stop_soon()))
    learn.fit(1)
    cb.first = 50
    assert learn.resume() and cb.first==2

class Wraps(Callback):
    "Keeps its count in a dict of its own"
    _stateattrs = 'count',
    def __init__(self): self.inner = dict(count=0)
    def __getattr__(self, k):
        if k in vars(self).get('inner', {}): return self.inner[k]
        return super().__getattr__(k)
    def __setattr__(self, k, v):
        if k=='count': self.inner[k] = v
        else: super().__setattr__(k, v)
    def after_batch(self): self.count += 1

class Forwards(Callback):
    "Reads what it does not have from an object, which does not have it yet"
    _stateattrs = 'best',
    def __init__(self): self.inner = SimpleNamespace()
    def __getattr__(self, k): return getattr(self.inner, k) if k=='best' else super().__getattr__(k)
    def after_epoch(self): self.inner.best = self.learn.epoch

class OfLearner(Callback): _stateattrs = 'train_iter',

def test_what_an_attribute_is_read_through_does_not_keep_it_from_being_saved():
    learn = mk(cb := Wraps(), Rewind(every=2)).fit(1)
    assert cb.state_dict()==dict(count=6)
    learn.rewind(2)
    assert cb.count==2
    cb = Forwards()
    assert 'best' not in cb.state_dict()
    mk(cb).fit(1)
    assert cb.state_dict()==dict(best=0)
    learn = mk(cb := OfLearner()).fit(1)
    assert cb.state_dict()==dict(_unset=['train_iter']) # it is not the callback's

class Best(Callback):
    "Has the name of what it saves, `learn.best`, and nothing to save at first"
    _stateattrs = 'best',
    def after_epoch(self): self.best = self.learn.epoch

def test_what_the_learner_has_is_no_state_of_a_callback(tmp_path):
    learn = mk(cb := Best(), path=tmp_path)
    learn.fit(2, cbs=Checkpoint(every=1, unit='iter'))
    assert learn.best is cb and cb.best==1

class Untold(Callback):
    def state_dict(self): raise KeyError('n')

def test_a_state_that_cannot_be_told_hides_no_error():
    learn = mk()
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1, cbs=[Untold, at_batch(3, lambda: 1/0)])
    why = r"The fit cannot be resumed: KeyError\('n'\) was raised by `Untold.state_dict`"
    assert sum(re.match(why, o) is not None for o in e.value.__notes__)==1
    with pytest.raises(KeyboardInterrupt, match=f'Stopped. {why}'):
        learn.fit(1, cbs=[Untold, at_batch(3, lambda: (ctrl_c(), ctrl_c()))]) # the second one waits for no position

def test_names_of_what_is_saved_are_checked_before_training():
    with pytest.raises(TypeError, match="`Best._stateattrs` is a tuple of names, but got 'best': "
            "write `_stateattrs = 'best',`"):
        class Best(Callback): _stateattrs = 'best'
    class Typo(Callback):
        _stateattrs = 'lossses',
        def before_fit(self): self.losses = []
    with pytest.warns(Mistake, match='`Typo._stateattrs` names `lossses`, which nothing sets. Did you mean `losses`'):
        mk().fit(1, cbs=Typo)
    class Unmarked(Callback): stateattrs = 'losses',
    with pytest.warns(Mistake, match='`Unmarked.stateattrs` is read by nothing. Did you mean `_stateattrs`'):
        mk().fit(1, cbs=Unmarked)

def setup(cb): cb.seen = 0
class SetByAFunction(Callback):
    _stateattrs = 'seen',
    def before_fit(self): setup(self)
class SetInItsDict(Callback):
    _stateattrs = 'seen',
    def before_fit(self): self.__dict__['seen'] = 3
class StateOfItsOwn(Callback):
    _stateattrs = 'lossses',
    def before_fit(self): self.losses = []
    def state_dict(self): return dict(lossses=len(self.losses))

@pytest.mark.parametrize('cb', [SetByAFunction, SetInItsDict, StateOfItsOwn])
def test_what_is_saved_may_be_set_where_it_is_not_seen(cb):
    with warnings.catch_warnings():
        warnings.simplefilter('error', Mistake)
        mk().fit(1, cbs=cb)

class KeepsBest(Callback):
    _stateattrs = 'best',
    best = None
    def after_epoch(self): self.best = copy.deepcopy(self.learn.model.state_dict())

def test_weights_that_a_callback_keeps_are_there_as_soon_as_a_stopped_run_is_loaded(tmp_path):
    stop = on(event.after_batch(once=8, unit='iter'))(lambda learn: learn.stop_soon())
    mk(kept := KeepsBest(), path=tmp_path).fit(3, cbs=stop).save_state('here')
    mk(loaded := KeepsBest(), path=tmp_path).load_state('here')
    assert same([*loaded.best.values()], [*kept.best.values()])

def stop_at(n): return Callback(after_batch=lambda self: self.learn.stop_soon() if self.train_iter==n else None)

class Ensemble(Callback):
    "Has helpers of its own that are called `snapshot` and `rescale`"
    _stateattrs = 'snaps',
    def before_fit(self): self.snaps = []
    def snapshot(self): self.snaps.append([p.tolist() for p in self.model.parameters()])
    def rescale(self, x): return x*.5
    def before_batch(self): self.learn.x = self.rescale(self.x)
    def after_epoch(self): self.snapshot()

@pytest.mark.parametrize('how', ['memory','file','lr'])
def test_methods_of_a_callback_called_snapshot_and_rescale_are_its_own(how, tmp_path):
    def new(*cbs): return mk(Ensemble(), *cbs, path=tmp_path)
    whole = new().fit(3)
    learn = new(stop_at(8)).fit(3)
    assert len(learn.ensemble.snaps)==1
    if how=='file': learn = new(stop_at(8)).load_state(learn.save_state('here'))
    learn.resume(**dict(lr=.1) if how=='lr' else {})
    assert same(weights(learn.model), weights(whole.model)) and learn.ensemble.snaps==whole.ensemble.snaps
    assert len(whole.ensemble.snaps)==3

@pytest.mark.parametrize('sets', [{}, dict(sets=('lr',))], ids=str)
def test_a_callback_that_schedules_a_rate_is_asked_to_rescale_it(sets):
    "Whether or not it names what it sets"
    asked = []
    def rescale_hyper(self, name, values): asked.append((name, values)); return True
    learn = mk(type('Mine', (Callback,), dict(rescale_hyper=rescale_hyper, **sets)), stop_at(8)).fit(3)
    learn.resume(lr=.03)
    assert asked==[('lr', [.03])]

def test_a_state_snapshot_is_asked_for_its_state_where_the_run_stops():
    told = []
    class Long(Callback):
        def before_fit(self): self.seen = []
        def after_batch(self): self.seen.append(self.train_iter)
        def state_snapshot(self):
            n = len(self.seen)
            return SimpleNamespace(state_dict=lambda: (told.append(n), dict(seen=self.seen[:n]))[1])
    learn = mk(Long, stop_at(8)).fit(3)
    assert told==[8] # not after each phase
    learn.resume()
    assert learn.long.seen==[*range(1, 19)]

class OfItsOwn(Callback):
    _stateattrs = ('p',)
    def __init__(self): self.p = torch.nn.Parameter(torch.zeros(2))

def test_a_callback_without_a_learner_loads_its_parameters():
    "And they stay the same objects"
    cb,other = OfItsOwn(),OfItsOwn()
    with torch.no_grad(): other.p += 1
    p = cb.p
    cb.load_state_dict(other.state_dict())
    assert cb.p is p and p.tolist()==[1,1]
