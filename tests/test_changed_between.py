"What was changed between a stop and its resume, and would silently make another epoch of the one that was begun"
import copy,warnings
from functools import partial
import pytest,torch
from torch.nn import functional as F
from learner.all import *
from learner.inspect.testing import synth_dls,synth_learner

def stopped(ev='after_pred', n=4, **kwargs):
    learn = synth_learner(**kwargs)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise(ev, KeyboardInterrupt, n))
    return learn

def resumed(learn):
    "The warnings of its resume"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.resume(cbs=[])
    return [o for m in seen if 'in the middle of a batch' not in (o := str(m.message)) and '`raise`' not in o]

def test_nothing_was_changed(): assert resumed(stopped())==[]

def test_limits_that_are_changed_in_the_middle_of_an_epoch_are_named():
    learn = stopped()
    learn.limits = dict(train=6)
    msg, = resumed(learn)
    assert '`limits.train` was None, and is 6' in msg

def test_another_loader_in_the_middle_of_an_epoch_is_named():
    learn = stopped()
    learn.dls = synth_dls(seed=1)
    msg, = [o for o in resumed(learn) if 'not the loader' in o]
    assert 'stopped in epoch 0: the first 3 batches' in msg

@pytest.mark.parametrize('other', [True, False])
def test_a_loader_that_a_callback_replaces_in_the_fit_is_the_same(other):
    learn = synth_learner(n_train=4)
    learn.fit(2, cbs=[Overfit(2), on(event.after_batch(once=3, unit='iter'))(lambda learn: learn.stop_soon())])
    if other: learn.dls = synth_dls(seed=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.resume()
    assert any('is not the loader with which' in str(o.message) for o in seen)==other and learn.train_iter==4

def test_another_loader_between_two_epochs_is_a_choice():
    learn = stopped('before_epoch', 2)
    learn.dls = synth_dls(seed=1)
    assert not [o for o in resumed(learn) if 'not the loader' in o]

class Shifts(Callback):
    "Adds to the dataset while training runs, by a random number that no resume knows, and takes it back"
    def before_train(self):
        y = self.learn.dls.train.dataset.tensors[1]
        self.was = y.clone()
        y.add_(torch.rand(()))
    def cleanup_train(self): self.learn.dls.train.dataset.tensors[1].copy_(self.was)

@pytest.mark.parametrize('same', [True, False])
def test_what_a_callback_has_changed_in_a_dataset_is_named(same, tmp_path):
    "Also where its cleanup had undone it by the time that the file was written"
    def fit(learn, *cbs, **kwargs): return learn.fit(2, cbs=[Shifts, Checkpoint(folder=tmp_path), *cbs], **kwargs)
    stop = on(event.after_batch(once=4))(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))
    learn = fit(synth_learner(), stop)
    other = synth_learner()
    torch.manual_seed(9)
    with pytest.warns(UserWarning, match='`dataset.tensors` of the training loader changed during the run'):
        learn.resume() if same else fit(other, resume=True)

# Weights, flags and attributes
def sgd(ps, lr=.01): return SGD(ps, lr, mom=.9)

class Stop(Callback):
    "Stops the fit for now, or raises, before training batch 3"
    watches = True
    def __init__(self, e=None): self.e,self.done = e,False
    def before_draw(self):
        if not self.learn.training or self.learn.train_iter!=3 or self.done: return
        self.done = True
        if self.e: raise self.e
        self.learn.at_pause(self.learn.stop_for_now, stops=True)

class Doubles(Callback):
    "Puts other weights in their place when the fit ends, as a callback that loads its best ones"
    def after_fit(self):
        with torch.no_grad():
            for p in self.learn.model.parameters(): p *= 2

class Next(Callback):
    "Keeps the weights before the step of training batch 3"
    watches,order = True,-500
    def before_step(self):
        if self.learn.train_iter==3: self.learn.next_weights = weights(self.learn)

def weights(learn): return [p.tolist() for p in learn.model.parameters()]

def paused(*cbs, how='stop', **kwargs):
    learn = synth_learner(n_train=4, n_valid=0, opt_func=sgd, **kwargs)
    if how=='stop': return learn.fit(2, cbs=[Stop(), Next(), *cbs])
    with pytest.raises(ValueError): learn.fit(2, cbs=[Stop(ValueError()), Next(), *cbs])
    return learn

ends = pytest.mark.parametrize('how,cbs', [('stop', ()), ('stop', (Doubles,)), ('error', ())],
    ids=['stop','other weights at the end','error'])

@ends
def test_weights_that_are_loaded_between_are_trained(how, cbs, tmp_path):
    learn,other = paused(*cbs, how=how, path=tmp_path),synth_learner(n_train=4, path=tmp_path, seed=3)
    other.save('other')
    learn.load('other', with_opt=False).resume()
    assert learn.next_weights==weights(other)

@ends
def test_weights_that_nobody_changes_are_those_of_the_stop(how, cbs):
    whole = synth_learner(n_train=4, n_valid=0, opt_func=sgd).fit(2, cbs=Next())
    learn = paused(*cbs, how=how)
    learn.resume(cbs=[Next()])
    assert learn.next_weights==whole.next_weights and (how=='error' or weights(learn)==weights(whole))

def test_what_was_not_changed_by_hand_is_that_of_the_stop():
    "Callbacks had put other weights in their place, and one of two has been changed since"
    whole,learn = paused(),paused(Doubles)
    with torch.no_grad(): learn.model.a.fill_(7.)
    learn.resume()
    assert learn.next_weights==[[7.], weights(whole)[1]]

def test_an_optimizer_whose_state_is_loaded_between_has_that(tmp_path):
    learn,other = paused(path=tmp_path),synth_learner(n_train=4, opt_func=sgd, path=tmp_path, seed=3).fit(1)
    other.save('other')
    seen = []
    learn.load('other').resume(cbs=[Callback(before_step=lambda cb: seen.append([s['momentum_buffer'].clone()
        for s in cb.opt.state.values()]))])
    assert seen[0]==[s['momentum_buffer'] for s in other.opt.state.values()]

@pytest.mark.parametrize('how', ['stop','file'])
def test_flags_and_attributes_that_are_set_between_hold(how, tmp_path):
    class Sets(Callback):
        "What holds at the beginning; a resumed fit fires it again"
        def before_fit(self):
            self.learn.model.a.requires_grad_(False)
            self.learn.model.drop,self.learn.model.scale = .5,1.
        def before_batch(self): self.learn.model.scale = .9
    learn = paused(Sets(), path=tmp_path)
    if how=='file':
        learn.save_state('here')
        learn = synth_learner(n_train=4, n_valid=0, opt_func=sgd, path=tmp_path).load_state('here')
    learn.model.a.requires_grad_(True)
    learn.model.drop,seen = .1,[]
    def look(cb): seen.append((cb.learn.model.a.requires_grad, cb.learn.model.drop, cb.learn.model.scale))
    learn.resume(cbs=[Sets(), Callback(before_draw=look)])
    assert {*seen}=={(True, .1, .9)}

@pytest.mark.parametrize('how', ['stop','file'])
def test_an_attribute_that_is_deleted_between_is_gone(how, tmp_path):
    learn = synth_learner(n_train=4, n_valid=0, opt_func=sgd, path=tmp_path)
    learn.model.extra,learn.model.kept = 10.,5.
    learn.fit(2, cbs=Stop())
    if how=='file':
        learn.save_state('here')
        learn.load_state('here')
    del learn.model.extra
    learn.resume()
    assert not hasattr(learn.model, 'extra') and learn.model.kept==5.

@pytest.mark.parametrize('cbs', [(), (Doubles,)], ids=['stop','other weights at the end'])
def test_a_file_that_is_saved_between_resumes_as_memory_does(cbs, tmp_path):
    learn = paused(*cbs, path=tmp_path)
    before = weights(learn)
    learn.save_state('here')
    assert weights(learn)==before
    other = synth_learner(n_train=4, n_valid=0, opt_func=sgd, path=tmp_path).load_state('here')
    assert weights(other.resume(cbs=[Next()]))==weights(learn.resume(cbs=[Next()]))

@pytest.mark.parametrize('how', ['stop','file'])
def test_fine_tune_that_is_stopped_resumes_with_what_was_frozen(how, tmp_path):
    def made():
        return synth_learner(n_train=4, n_valid=0, path=tmp_path, splitter=lambda m: [[m.a], [m.b]], opt_func=sgd)
    whole,learn = made().fine_tune(1, freeze_epochs=2),made().fine_tune(1, freeze_epochs=2, cbs=Stop())
    assert not learn.model.a.requires_grad # it is still in its first phase
    if how=='file':
        learn.save_state('here')
        cbs,learn = learn.route.stopped.cbs,made().load_state('here')
        learn.resume(cbs=cbs)
    else: learn.resume()
    assert weights(learn)==weights(whole) and learn.model.a.requires_grad

# Other objects in the place of model and loss
def stops_at(n): return on(event.after_batch(once=n, unit='iter'))(lambda learn: learn.stop_soon())

class Scaled(torch.nn.Module):
    def __init__(self, lin): super().__init__(); self.lin,self.gain = lin,1.
    def forward(self, x): return self.gain*self.lin(x)

class Edited(Scaled):
    gain = 5.
    def __init__(self, lin): torch.nn.Module.__init__(self); self.lin = lin

def stopped_with(loss_func, model=None, **kwargs):
    dls,model = synth_dls(4, 2),Scaled(torch.nn.Linear(1, 1)) if model is None else model
    learn = Learner(dls, model, loss_func, lr=.01, **kwargs).remove_cb(ProgressCallback)
    return learn.fit(2, cbs=stops_at(3))

@pytest.mark.parametrize('copied', [lambda o: o, copy.deepcopy], ids=['itself','a copy'])
def test_a_model_that_was_replaced_keeps_its_own_attributes(copied):
    learn = copied(stopped_with(F.mse_loss))
    learn.model.lin.scale = 2.
    learn.model = Edited(learn.model.lin)
    learn.resume()
    assert learn.model.gain==5. and learn.model.lin.scale==2. and learn.train_iter==8

def test_a_part_of_the_model_that_was_replaced_keeps_its_own_attributes_and_the_others_get_those_of_the_stop():
    learn = stopped_with(F.mse_loss, torch.nn.Sequential(Scaled(torch.nn.Linear(1, 1)), Scaled(torch.nn.Identity())))
    class Sets(Callback):
        "What holds at the beginning; a resumed fit fires it again"
        def before_fit(self):
            for m in self.learn.model: m.gain = 3.
    learn.model[0].gain = 2.
    learn.model[1] = Edited(torch.nn.Identity())
    seen = []
    learn.resume(cbs=[Sets(), Callback(before_draw=lambda cb: seen.append([m.gain for m in cb.learn.model]))])
    assert seen[0]==[2., 3.] # what was set for the new one is no value of the stopped run

class OwnLoss:
    "Has a value of its own"
    def __init__(self): self.delta,self.beta = 2.,.5
    def __call__(self, pred, y): return F.mse_loss(pred, y)
class WithMethods(OwnLoss):
    def __init__(self): pass
    def delta(self): return 1.
    def __call__(self, pred, y): return self.delta()*F.mse_loss(pred, y)
class Slots:
    __slots__ = 'reduction',
    def __init__(self): self.reduction = 'sum'
    def __call__(self, pred, y): return F.mse_loss(pred, y, reduction=self.reduction)

def mse(pred, y): return F.mse_loss(pred, y)
def closure(factor): return lambda pred,y: factor*F.mse_loss(pred, y)
def held(f):
    "What a loss says about itself"
    if isinstance(f, partial): return f.keywords
    return {k:getattr(f, k) for k in ('delta','beta','reduction') if hasattr(f, k)}

losses = dict(module=torch.nn.MSELoss, smooth=torch.nn.SmoothL1Loss, own=OwnLoss, methods=WithMethods, slots=Slots,
    function=lambda: mse, closure=lambda: closure(2.), partial=lambda: partial(F.smooth_l1_loss, beta=2.))

@pytest.mark.parametrize('first', ['module','own','slots','partial','closure'])
@pytest.mark.parametrize('then', losses)
def test_a_loss_that_was_replaced_keeps_its_own_attributes(first, then, tmp_path):
    learn = stopped_with(losses[first](), path=tmp_path)
    learn.loss_func = losses[then]()
    was = held(learn.loss_func)
    learn.save_state('here')
    learn.resume()
    assert str(held(learn.loss_func))==str(was) and learn.train_iter==8

class Counts(torch.nn.MSELoss):
    def __init__(self): super().__init__(); self.n = 0
    def forward(self, pred, y): self.n += 1; return super().forward(pred, y)

@pytest.mark.parametrize('then', losses)
def test_a_file_is_resumed_with_another_loss_and_names_what_that_has_no_place_for(then, tmp_path):
    stopped_with(Counts(), path=tmp_path).save_state('here')
    learn = Learner(synth_dls(4, 2), Scaled(torch.nn.Linear(1, 1)), losses[then](), lr=.01, path=tmp_path)
    learn.remove_cb(ProgressCallback)
    has_place = then in ('module','smooth','own','methods') # with attributes that may be added
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.load_state('here').resume()
    told = any('`loss_func.n`, and has no place for it' in str(o.message) for o in seen)
    assert told!=has_place and learn.train_iter==8

class Base(torch.nn.MSELoss):
    n = 0
class OfClass(Base):
    "Counts in its class, which has inherited the first value"
    def forward(self, pred, y): type(self).n += 1; return super().forward(pred, y)*(1+type(self).n/10)
def test_a_value_that_a_class_has_inherited_comes_back_from_a_file(tmp_path):
    stopped_with(OfClass(), path=tmp_path).save_state('here')
    n = OfClass.n
    del OfClass.n # as in another process
    learn = Learner(synth_dls(4, 2), Scaled(torch.nn.Linear(1, 1)), OfClass(), lr=.01, path=tmp_path)
    seen = []
    note = Callback(before_batch=lambda self: seen.append(OfClass.n))
    learn.remove_cb(ProgressCallback).load_state('here').resume(cbs=note)
    assert 0<n==seen[0]
