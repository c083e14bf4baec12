"Whoever replaces a piece of the loop keeps its events, or is told what is missing"
import warnings
from types import MethodType
from unittest import mock
import pytest,torch
from learner.all import *
from learner.diagnose.order import StepsCheck
from learner.loop.fitting import StopMixin

def made(*cbs, **pieces):
    "A learner of a class with `pieces` of its own"
    cls = type('Mine', (Learner,), pieces)
    base = synth_learner()
    return cls(base.dls, base.model, base.loss_func, opt_func=lambda ps,lr=.01: torch.optim.SGD(ps, lr=lr),
        cbs=cbs).remove_cb(ProgressCallback)

def bare(self, i=None, b=None):
    if b is not None: self.xb,self.yb = self.dls.split(b)
    loss = self.loss_func(self.model(*self.xb), *self.yb)
    if self.training: loss.backward(); self.opt.step(); self.opt.zero_grad()

@pytest.mark.parametrize('bounds', [dict(n_epoch=2), dict(n_iter=5), dict(n_step=5)], ids=str)
def test_batches_that_nobody_counts(bounds):
    "A fit to the fifth batch would have no end"
    learn = made(one_batch=bare)
    with pytest.raises(TypeError, match=r'`Mine.one_batch` does not announce `before_batch` and `after_batch`'):
        learn.fit(**bounds)
    assert learn.mode is None and [o.name for o in learn.cbs]==['train_eval','recorder']

def test_events_that_a_callback_waits_for():
    def _batch(self):
        bare(self)
        self.opt_step += self.training
        self.loss = torch.rand(()) # not the same each time
        self('after_loss')
    _batch.__name__ = '_batch'
    learn = made(_batch=scope(_batch))
    with pytest.warns(UserWarning) as seen: learn.fit(2, cbs=GradientClip(1e-6))
    assert [str(o.message) for o in seen]==[
        "`Mine._batch` does not announce `before_step`, for which `gradient_clip` waits: write `self('before_step')` "
        "where its moment is"]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(2) # nobody waits

@pytest.mark.parametrize('pieces', [
    dict(one_batch=lambda self, i, b: [Learner.one_batch(self, i, b) for _ in range(2)]),
    dict(_do_grad_opt=lambda self: Learner._do_grad_opt(self)),
    dict(all_batches=lambda self: Learner.all_batches(self))], ids=lambda o: [*o][0])
@pytest.mark.parametrize('cbs',
    [[], [GradientClip()], [GradientAccumulation(32)], [MicroBatch(2)], [Raise('after_pred', CancelBatchException)],
        [Raise('before_batch', CancelTrainException, n=2)], [Raise('before_batch', CancelTrainException)],
        [Raise('before_train', CancelTrainException)]], ids=str)
def test_pieces_that_announce_all(pieces, cbs):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        made(**pieces).fit(2, cbs=cbs)

class Twice(Learner):
    def _do_grad_opt(self): super()._do_grad_opt(); self._forward(); super()._do_grad_opt()

@pytest.mark.parametrize('n', [3, 4, 8], ids=['in an epoch','after its last batch','after the last one of the fit'])
@pytest.mark.parametrize('how', ['memory','file'])
def test_a_loop_with_own_pieces_resumes_after_any_batch(n, how, tmp_path):
    def new(*cbs):
        base = synth_learner(n_train=4, n_valid=0)
        return Twice(base.dls, base.model, base.loss_func, opt_func=SGD, lr=.1, cbs=cbs, path=tmp_path)
    def weights(learn): return [p.tolist() for p in learn.model.parameters()]
    whole = new().fit(2)
    learn = new().fit(2, cbs=on(event.after_batch(once=n, unit='iter'))(lambda learn: learn.stop_soon()))
    if how=='file':
        learn.save_state('here')
        learn = new().load_state('here')
    assert weights(learn.resume(cbs=[]))==weights(whole)

def test_a_loop_that_announces_no_batch_is_told_so_in_the_epoch_after_a_resume(tmp_path):
    learn = made()
    stop = on(event.after_batch(once=len(learn.dls.train), unit='iter'))(lambda learn: learn.stop_soon())
    file = learn.fit(2, cbs=stop).save_state(tmp_path/'here')
    with pytest.raises(TypeError, match='does not announce'): made(one_batch=bare).load_state(file).resume()

def by_data(self, i, b):
    "A step on `p.data`, which leaves the version of a parameter as it is"
    xb,yb = self.dls.split(b)
    self.loss_func(self.model(*xb), *yb).backward()
    for p in self.model.parameters(): p.data -= .01*p.grad
    self.opt.zero_grad()

def test_batches_that_nobody_counts_where_no_version_tells_of_a_step():
    learn = made(one_batch=by_data)
    with pytest.raises(TypeError, match='does not announce `before_batch`'): learn.fit(n_step=5)

def test_a_loop_of_your_own_is_checked_without_a_recorder_and_whatever_is_silent():
    learn = made(one_batch=bare).remove_cb(Recorder)
    with silence(), pytest.raises(TypeError, match='does not announce `before_batch`'): learn.fit(2)

# A piece that takes steps counts them
def uncounted(self): self.opt.step()
def counted(self): self.opt.step(); self.opt_step += 1
for f in (uncounted, counted): f.__name__ = '_step'

def not_counted(piece): return (f"`Mine.{piece}` takes steps that are not counted, so that `fit(n_step=…)` would not "
    "end, and schedules and averages that go by steps stay where they are: write `self.opt_step += 1` after each")

def test_a_fit_whose_steps_are_not_counted_says_so_before_it_has_no_end():
    learn = made(_step=scope(uncounted))
    with pytest.raises(TypeError) as e: learn.fit(n_step=4)
    assert str(e.value)==not_counted('_step') and learn.train_iter==len(learn.dls.train)
    assert not learn.opt._optimizer_step_post_hooks and [o.name for o in learn.cbs]==['train_eval','recorder']

def whole_batch(self):
    if self.training: bare(self)
    else: self._forward()
whole_batch.__name__ = '_batch'

@pytest.mark.parametrize('pieces', [dict(_step=scope(uncounted)), dict(_batch=scope(whole_batch)),
    dict(_do_grad_opt=lambda self: [self._backward(), self.opt.step(), self.opt.zero_grad()])], ids=lambda o: [*o][0])
def test_steps_that_are_not_counted(pieces):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        made(**pieces).fit(3)
    assert [str(o.message) for o in seen]==[not_counted(*pieces)] and seen[0].filename==__file__

@pytest.mark.parametrize('cbs', [[], [GradientAccumulation(32)], [MicroBatch(2)],
    [Raise('before_step', CancelStepException, n=2)]], ids=str)
def test_steps_that_are_counted(cbs):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = made(*cbs, _step=scope(counted)).fit(n_step=4)
        made(_forward=lambda self: Learner._forward(self)).fit(n_step=4)
    assert learn.opt_step==4

def test_a_callback_that_steps_itself_is_not_taken_for_the_piece():
    class Steps(Callback):
        def before_step(self): self.learn.opt.step(); raise CancelStepException
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        made(Steps(), _step=scope(counted)).fit(1)

class Clamps(Callback):
    run_valid = False
    @torch.no_grad()
    def before_batch(self):
        for p in self.learn.model.parameters(): p.clamp_(-.1, .1)

def test_weights_that_change_otherwise_are_no_step():
    "As by a callback that clamps them, while gradients accumulate"
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert made(Clamps(), GradientAccumulation(32), _step=scope(counted)).fit(n_step=4).opt_step==4

@pytest.mark.parametrize('first', ['critic','generator'])
def test_one_of_several_optimizers_may_be_counted(first):
    def _do_grad_opt(self):
        self._backward()
        others,own = self.opt.opts
        turn = self.train_iter%3==(0 if first=='generator' else 2)
        if turn: own.step(); self.opt_step += 1
        else: others.step()
        self.opt.zero_grad()
    learn = made(_do_grad_opt=_do_grad_opt)
    ps = [*learn.model.parameters()]
    learn.opt = OptimList(*[torch.optim.SGD([p], lr=.01) for p in ps[:2]])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert learn.fit(n_step=2).opt_step==2

def test_a_fit_whose_epoch_has_no_end_says_so_too(monkeypatch):
    monkeypatch.setattr(StepsCheck, 'many', 7)
    learn = made(_step=scope(uncounted))
    class Endless:
        def __init__(self, dl): self.dl = dl
        def __iter__(self):
            while True: yield from self.dl
    learn.dls = DataLoaders(Endless(learn.dls.train), learn.dls.valid, device='cpu')
    with pytest.raises(TypeError, match='takes steps that are not counted'): learn.fit(n_step=4)
    assert learn.iter==6

class NoHooks(torch.optim.Optimizer):
    "Passes all on to another one, and has no hooks"
    def __init__(self, params): self.base = torch.optim.SGD(params, lr=.01)
    names = "param_groups","state","defaults"
    param_groups,state,defaults = (property(lambda self, k=k: getattr(self.base, k)) for k in names)
    def step(self, closure=None): return self.base.step(closure)
    def zero_grad(self, set_to_none=True): self.base.zero_grad()
    def state_dict(self): return self.base.state_dict()
    def load_state_dict(self, state): self.base.load_state_dict(state)

def test_an_optimizer_without_hooks_may_have_a_piece_beside_it():
    learn = made(_step=scope(counted))
    learn.opt = NoHooks([*learn.model.parameters()])
    assert learn.fit(n_step=4).opt_step==4

def test_steps_of_an_optimizer_that_comes_in_training_are_looked_at():
    learn = made(_step=scope(uncounted))
    with pytest.raises(TypeError, match='takes steps that are not counted'):
        learn.fit(n_step=4, cbs=Callback(before_train=lambda cb: cb.learn.create_opt()))

def test_weights_without_a_shape_are_no_step():
    "Those of lazy modules come with the first batch"
    learn = made(GradientAccumulation(1000), _step=scope(counted))
    learn.model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(1)

def test_a_fit_runs_without_its_checks(monkeypatch):
    "Those of a later part: `checks_of_fit` is where it joins in"
    monkeypatch.setattr(Learner, 'checks_of_fit', StopMixin.checks_of_fit)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert made(_step=scope(uncounted)).fit(2).epoch==1

@pytest.mark.parametrize('bounds', [dict(n_iter=5), dict(n_iter=13), dict(n_step=5)], ids=str)
def test_an_all_batches_that_goes_beyond_the_bounds_says_so(bounds):
    def by_loader(self):
        for i,b in enumerate(self.dl): self.one_batch(i, b)
    def by_route(self):
        for i,b in self.route.batches(): self.one_batch(i, b)
    n = max(bounds.values())
    learn = made(all_batches=by_loader)
    with pytest.warns(UserWarning) as seen: learn.fit(**bounds)
    per_epoch = len(learn.dls.train)
    assert [str(o.message) for o in seen]==[f'`Mine.all_batches` goes on after {n%per_epoch} batches, where the phase '
        'is to end. If it loops over the loader itself: loop over `self.route.batches()` instead']
    assert seen[0].filename==__file__ and [o.name for o in learn.cbs]==['train_eval','recorder']
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert made(all_batches=by_route).fit(**bounds).train_iter==n
        assert made(all_batches=by_loader).fit(2).train_iter==2*per_epoch # without a bound

def test_an_all_batches_that_ends_by_itself_still_learns_of_the_bound():
    "A loader without an end"
    def by_loader(self):
        for i,b in enumerate(self.dl):
            if i==20: return
            self.one_batch(i, b)
    learn = made(all_batches=by_loader)
    class Endless:
        def __init__(self, dl): self.dl = dl
        def __iter__(self):
            while True: yield from self.dl
    learn.dls = DataLoaders(Endless(learn.dls.train), learn.dls.valid, device='cpu')
    at = []
    with pytest.warns(UserWarning, match='goes on after 5 batches'):
        learn.fit(n_iter=5, cbs=Callback(before_step=lambda self: at.append(self.iter)))
    assert at==[*range(20)]
# Scopes that have lost their events. Others are seen to in `test_mapping`
class Bodies: # without `@scope`
    def _fit(self):
        for self.epoch in self.route.epochs(): self._epoch()
    def _epoch(self):
        for o in self.route.phases(): self.train_all() if o=='train' else self.validate_all()
    def _train(self): self.all_batches()
    def _validate(self): self.all_batches()
    def _batch(self):
        self._forward()
        if self.training: self._do_grad_opt()
    def _backward(self):
        self.loss_grad.backward()
        self.backward_done = True
    def _step(self):
        self.opt.step()
        self.opt_step += 1
bodies = {k:f for k,f in vars(Bodies).items() if callable(f)}

@pytest.mark.parametrize('call', [lambda learn: learn.fit(1), lambda learn: learn.fit(n_step=5),
    lambda learn: learn.lr_find(num_it=6, show_plot=False), lambda learn: learn.validate(),
    lambda learn: learn.get_preds()], ids=['fit','n_step','lr_find','validate','get_preds'])
@pytest.mark.parametrize('nm', bodies)
def test_a_scope_that_is_patched_in_must_keep_its_events(nm, call, monkeypatch):
    learn,on_one = synth_learner(),synth_learner()
    before = [p.tolist() for p in learn.model.parameters()]
    setattr(on_one, nm, MethodType(bodies[nm], on_one))
    with pytest.raises(TypeError, match=f"`learn.{nm}` has lost its events, `before{nm}` and the others: .*@scope"):
        call(on_one)
    monkeypatch.setattr(Learner, nm, bodies[nm])
    with pytest.raises(TypeError, match=f"`Learner.{nm}` has lost its events"): call(learn)
    for o in (learn, on_one):
        assert [p.tolist() for p in o.model.parameters()]==before and o.mode is None and o.train_iter==0

@pytest.mark.parametrize('nm', bodies)
def test_a_scope_that_is_patched_in_with_its_events_runs(nm, monkeypatch):
    def trained(learn):
        torch.manual_seed(0)
        return [p.tolist() for p in learn.fit(1).model.parameters()]
    whole,learn = trained(synth_learner()),synth_learner()
    setattr(learn, nm, MethodType(scope(bodies[nm]), learn))
    assert trained(learn)==whole
    monkeypatch.setattr(Learner, nm, scope(bodies[nm]))
    assert trained(synth_learner())==whole

def test_a_run_that_was_stopped_can_be_resumed_when_its_patch_is_gone():
    def new(): return synth_learner(n_train=4, n_valid=1)
    whole = new().fit(2)
    learn = new().fit(2, cbs=on(event.after_batch(once=3, unit='iter'))(lambda learn: learn.stop_soon()))
    learn._step = MethodType(bodies['_step'], learn)
    with pytest.raises(TypeError, match='lost its events'): learn.resume()
    del learn._step
    learn.resume()
    assert [p.tolist() for p in learn.model.parameters()]==[p.tolist() for p in whole.model.parameters()]

@pytest.mark.parametrize('where', ['Learner','Loop','learn'])
@pytest.mark.parametrize('nm', ['one_batch','all_batches','_train'])
def test_pieces_that_are_patched_in_announce_batches_too(where, nm, monkeypatch):
    def _train(self):
        for b in self.dl: bare(self, 0, b)
    learn,f = synth_learner(),dict(one_batch=bare, all_batches=_train, _train=scope(_train))[nm]
    if where=='learn': setattr(learn, nm, MethodType(f, learn))
    else: monkeypatch.setattr(dict(Learner=Learner, Loop=Loop)[where], nm, f)
    with pytest.raises(TypeError, match=f'`Learner.{nm}` does not announce `before_batch`'): learn.fit(n_iter=5)

noted = None
def around(learn, nm, calls, how):
    global noted
    f = noted = getattr(learn, nm)
    def by_closure(): calls.append(nm); return f()
    def by_variable(): calls.append(nm); return noted()
    setattr(learn, nm, dict(closure=by_closure, variable=by_variable, mock=mock.Mock(side_effect=by_closure))[how])
    return learn

@pytest.mark.parametrize('how', ['closure','variable','mock'])
@pytest.mark.parametrize('nm,n', dict(_fit=1, _epoch=2, _train=2, _validate=2, _batch=12, _step=8).items())
def test_a_function_around_a_scope_of_one_learner_runs(nm, n, how):
    def trained(learn):
        torch.manual_seed(0)
        return [p.tolist() for p in learn.fit(2, cbs=GradientClip(.1)).model.parameters()]
    calls,(learn,ref) = [],(synth_learner(n_train=4, n_valid=2) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert trained(around(learn, nm, calls, how))==trained(ref)
    assert len(calls)==n

def test_a_method_around_that_of_the_class_runs():
    learn,calls = synth_learner(),[]
    def _train(self): calls.append(self.epoch); type(self)._train(self)
    learn._train = MethodType(_train, learn)
    learn.fit(2)
    assert calls==[0,1] and learn.train_iter==2*len(learn.dls.train)

class SkipsFirst(Learner):
    @scope
    def _train(self):
        if self.epoch: self.all_batches()

@pytest.mark.parametrize('bounds', [dict(n_epoch=3), dict(n_iter=8)], ids=str)
def test_an_epoch_may_be_skipped(bounds):
    base = synth_learner(n_train=4, n_valid=2)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = SkipsFirst(base.dls, base.model, base.loss_func, opt_func=SGD, lr=.1).fit(**bounds)
    assert learn.train_iter==8

def test_a_loop_that_announces_no_batch_is_told_so_after_an_epoch_that_it_skips():
    class Mine(SkipsFirst): one_batch = bare
    base = synth_learner()
    learn = Mine(base.dls, base.model, base.loss_func, opt_func=SGD, lr=.1)
    with pytest.raises(TypeError, match='does not announce'): learn.fit(3)
    assert learn.epoch==1
