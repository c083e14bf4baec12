"""A state may refer to parameters and buffers of the model and the loss, as `{p: average of p}` does. However it is
resumed, the run trains with references to its own ones, and ends as one that was never stopped"""
import copy,pickle,warnings
from functools import partial
import pytest,torch
from torch import nn
from learner.all import *
from learner.inspect.testing import synth_learner

class Scaled(nn.Module):
    "A loss with a parameter that nothing but a callback moves, and a buffer"
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer('last', torch.zeros(()))
    def forward(self, pred, y):
        loss = (pred-y).pow(2).mean()
        if self.training: self.last.copy_(loss.detach())
        return self.scale*loss

def model(): return nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

def slowly(pairs):
    "Lookahead: half way back to slow weights"
    for p,v in pairs: v.lerp_(p, .5); p.copy_(v)

class Slow(Callback):
    "Slow weights of all that model and loss have, in one of many forms"
    run_valid,only_fit,_stateattrs = False,True,('slow','n')
    def make(self, ts): return {t:t.detach().clone() for t in ts}
    def pairs(self): return self.slow.items()
    def before_fit(self):
        self.n = 0
        roots = self.learn.model,self.learn.loss_func
        self.slow = self.make([*(p for m in roots for p in m.parameters()), self.learn.loss_func.last,
            self.learn.model[1].running_mean])
    @torch.no_grad()
    def after_step(self):
        self.n += 1
        self.learn.loss_func.scale.add_(.02)
        if self.n%3==0: slowly(self.pairs())

class Pairs(Slow):
    def make(self, ts): return [(t, t.detach().clone()) for t in ts]
    def pairs(self): return self.slow

class Deep(Slow):
    def make(self, ts): return dict(all=tuple(dict(ref=t, slow=t.detach().clone()) for t in ts))
    def pairs(self): return [(o['ref'], o['slow']) for o in self.slow['all']]

class InState(Slow):
    _stateattrs = ('n',)
    def before_fit(self):
        super().before_fit()
        if not self.resuming: self.learn.state.pairs,self.learn.state.slow = [*self.slow.items()],self.slow
    def pairs(self):
        shared = self.learn.state.slow
        return [(p, shared[p]) for p,_ in self.learn.state.pairs]

class OwnDict(Slow):
    _stateattrs = ()
    def state_dict(self): return dict(n=self.n, slow=self.slow) if hasattr(self, 'slow') else {}
    def load_state_dict(self, state): vars(self).update(state)

class OneByOne(Slow):
    "Of its parameters, one at a time is moved"
    _stateattrs = 'now','i'
    def before_fit(self): self.i,self.now = 0,self.learn.model[0].weight
    @torch.no_grad()
    def after_step(self):
        self.now.mul_(.9)
        self.i += 1
        if self.i%4==0: self.now = [self.learn.model[0].weight, self.learn.model[0].bias.detach().clone(),
            self.learn.model[2].weight.detach().view(4, 1).clone(), self.learn.loss_func.scale][self.i//4%4]

class Lookahead(torch.optim.SGD):
    "An optimizer without a `state_dict` of its own"
    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.n,self.slow = 0,self.make([p for g in self.param_groups for p in g['params']])
    def make(self, ps): return {p:p.detach().clone() for p in ps}
    def pairs(self): return self.slow.items()
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.n += 1
        if self.n%3==0: slowly(self.pairs())

class LookaheadPairs(Lookahead):
    def make(self, ps): return [(p, p.detach().clone()) for p in ps]
    def pairs(self): return self.slow

class Keeps(Lookahead):
    "Has what it was made with, too, which is in its `state_dict`"
    def __init__(self, params, **kwargs):
        self.params,self.first = params,params[0]['params'][0]
        super().__init__(params, **kwargs)

def learner(form, path, seed=0, cbs=()):
    torch.manual_seed(seed)
    is_opt = issubclass(form, torch.optim.Optimizer)
    learn = synth_learner(6, model=model(), loss_func=Scaled(), path=path, lr=.05,
        opt_func=partial(form if is_opt else torch.optim.SGD, momentum=.5), cbs=[*cbs, *([] if is_opt else [form()])])
    for p in learn.model.parameters(): nn.init.normal_(p, std=.3)
    return learn

def values(learn): return [t.detach().clone() for m in (learn.model, learn.loss_func) for t in m.state_dict().values()]
def fit(learn, **kwargs): torch.manual_seed(1); learn.fit(3, **kwargs)
class Stop(Callback):
    run_valid,watches = False,True
    def after_batch(self):
        if self.learn.train_iter==11: self.learn.stop_soon()

def fit_a_part(learn):
    fit(learn, cbs=Stop())
    return learn

def in_memory(form, path):
    learn = fit_a_part(learner(form, path))
    learn.validate()
    return learn.resume()
def by_checkpoint(form, path):
    fit_a_part(learner(form, path, cbs=[Checkpoint()]))
    learn = learner(form, path, seed=5, cbs=[Checkpoint()])
    fit(learn, resume=True)
    return learn
def by_state(form, path):
    fit_a_part(learner(form, path)).save_state('run')
    return learner(form, path, seed=5).load_state('run').resume()
def by_rewind(form, path):
    learn = learner(form, path)
    fit(learn, cbs=Rewind(every=4))
    return learn.rewind(10).resume()
def by_fork(form, path):
    learn = fit_a_part(learner(form, path))
    was = values(learn)
    res = learn.fork().resume()
    assert all(map(torch.equal, values(learn), was))
    return res
def by_fork_from_earlier(form, path):
    learn = learner(form, path)
    fit(learn, cbs=Rewind(every=4))
    return learn.fork(10).resume()
def by_deepcopy(form, path): return copy.deepcopy(fit_a_part(learner(form, path))).resume()
def by_pickle(form, path): return pickle.loads(pickle.dumps(fit_a_part(learner(form, path)))).resume()
ways = in_memory,by_checkpoint,by_state,by_rewind,by_fork,by_fork_from_earlier,by_deepcopy,by_pickle

forms = Slow,Pairs,Deep,InState,OwnDict,OneByOne,Lookahead,LookaheadPairs,Keeps
@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    def values_of(form):
        learn = learner(form, tmp_path_factory.mktemp('whole'))
        fit(learn)
        return values(learn)
    return {form:values_of(form) for form in forms}

@pytest.mark.parametrize('form', forms)
@pytest.mark.parametrize('way', ways)
def test_a_run_whose_state_refers_to_weights_ends_as_one_that_was_never_stopped(form, way, whole, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = way(form, tmp_path)
    for a,b in zip(values(learn), whole[form]): torch.testing.assert_close(a, b)

@pytest.mark.parametrize('form', [Slow,Pairs,Deep,InState])
@pytest.mark.parametrize('way', [in_memory,by_state,by_fork,by_deepcopy])
def test_references_are_to_the_weights_of_the_learner_that_resumes(form, way, tmp_path):
    learn = way(form, tmp_path)
    cb,own = learn.cbs.one(form),[*learn.model.parameters(), *learn.loss_func.parameters()]
    own += [learn.loss_func.last, learn.model[1].running_mean]
    found = [p for p,_ in cb.pairs()]
    assert [*map(id, found)]==[*map(id, own)]

def test_a_tied_weight_has_the_names_of_all_its_places(tmp_path):
    def tied(path, seed):
        learn = learner(Slow, path, seed)
        learn.model.append(nn.Linear(1, 4)).append(learn.model[2])
        return learn
    whole = tied(tmp_path, 0)
    fit(whole)
    fit_a_part(tied(tmp_path, 0)).save_state('run')
    resumed = tied(tmp_path, 5).load_state('run').resume()
    for a,b in zip(values(resumed), values(whole)): torch.testing.assert_close(a, b)

class ByState(Slow):
    "Refers to a parameter of the loss alone"
    _stateattrs = ('ref',)
    def before_fit(self): self.ref = [self.learn.loss_func.scale]
    def after_step(self): pass

class Other(nn.Module):
    def forward(self, pred, y): return (pred-y).pow(2).mean()
class Larger(Other):
    def __init__(self): super().__init__(); self.scale = nn.Parameter(torch.ones(2), requires_grad=False)

@pytest.mark.parametrize('loss,there', [(Other, 'there is none here'), (Larger, r'it has the shape \[2\] here')])
def test_what_a_state_refers_to_must_be_there_with_its_shape(loss, there, tmp_path):
    "And the learner stays as it is"
    fit_a_part(learner(ByState, tmp_path)).save_state('run')
    learn = learner(ByState, tmp_path, seed=5)
    learn.loss_func = loss()
    was = values(learn)
    with pytest.raises(ValueError, match=rf'refers to `loss_func.scale` of shape \[\], but {there}: a run resumes'):
        with warnings.catch_warnings():
            warnings.simplefilter('ignore') # of another loss
            learn.load_state('run')
    assert all(map(torch.equal, values(learn), was))

class Outside(Lookahead):
    "Trains a parameter that no module has"
    def __init__(self, params, **kwargs):
        self.more = nn.Parameter(torch.ones(1))
        super().__init__([*params, dict(params=[self.more])], **kwargs)

class ByModule(Lookahead):
    "Keys that no file can have"
    def make(self, ps): self.of = {}; return super().make(ps)
    def step(self, closure=None):
        super().step(closure)
        self.of = {nn.Identity(): torch.ones(1)}

class OfGroups(Lookahead):
    "Has groups beside values of its own"
    def make(self, ps): self.with_groups = [(self.param_groups[0], ps[0].detach().clone())]; return super().make(ps)

@pytest.mark.parametrize('form,names', [(Outside, ['more','slow']), (ByModule, ['of']), (OfGroups, ['with_groups'])])
def test_an_attribute_of_an_optimizer_that_cannot_be_saved_is_named(form, names, tmp_path):
    learn = fit_a_part(learner(form, tmp_path))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn.save_state('run')
    told = [str(o.message).split('`')[1] for o in found if 'is not saved' in str(o.message)]
    assert told==[f'learn.opt.{k}' for k in names]

class InPart:
    "A loss that is no module, but has one"
    def __init__(self): self.scales = nn.ParameterList([torch.ones(1) for _ in range(2)])
    def __call__(self, pred, y): return (pred-y).pow(2).mean()*self.scales[0]*self.scales[1]

class Grows(Callback):
    "One scale grows, and then the other"
    run_valid,_stateattrs = False,('now',)
    def before_fit(self): self.now = self.learn.loss_func.scales[0]
    @torch.no_grad()
    def after_batch(self):
        self.now += 1
        if self.learn.train_iter==7: self.now = self.learn.loss_func.scales[1]

@pytest.mark.parametrize('at', [5, 10])
def test_weights_of_a_loss_that_is_no_module_are_references_too(at):
    def scales(stop):
        learn = synth_learner(6, loss_func=InPart(), cbs=Grows(), opt_func=torch.optim.SGD, lr=1e-4)
        learn.fit(2, cbs=Callback(before_batch=lambda cb: cb.learn.stop_soon() if cb.learn.train_iter==stop else None))
        if stop is not None: learn.resume()
        return [p.item() for p in learn.loss_func.scales]
    assert scales(at)==scales(None)
