"What was changed between a stop and its resume, and would silently make another epoch of the one that was begun"
import warnings
import pytest,torch
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
