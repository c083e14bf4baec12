"""Promise 1 for what callbacks make anew at the beginning of an epoch, or keep: where a fit resumes in that epoch, its
beginning is announced once more"""
import warnings
from itertools import product
import pytest,torch
from torch import nn
from torch.utils.data import TensorDataset
from learner.all import *

def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

class Stop(Callback):
    watches = True
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.learn.train_iter==self.n: self.learn.stop_soon()

def nothing(learn): pass
def head(): return nn.Linear(6, 1)
def new_opt(learn): learn.create_opt()
def assigned_opt(learn): learn.opt = torch.optim.Adam(learn.model.parameters(), lr=.05)
def new_head(learn):
    learn.model[2] = head()
    learn.create_opt()
def new_head_in_old_opt(learn):
    old,learn.model[2] = learn.model[2],head()
    new = dict(zip(old.parameters(), learn.model[2].parameters()))
    for p in new: learn.opt.state.pop(p, None)
    for g in learn.opt.param_groups: g['params'] = [new.get(p, p) for p in g['params']]
def new_model(learn):
    learn.model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), head())
    learn.create_opt()

class Remakes(Callback):
    "In epoch 1, or from then on"
    only_fit = True
    def __init__(self, remake, once, guarded): self.remake,self.once,self.guarded = remake,once,guarded
    def before_epoch(self):
        due = self.learn.epoch==1 or self.learn.epoch==2 and not self.once
        if due and not (self.guarded and self.resuming): self.remake(self.learn)

def remaking(path, remake, *cbs, once=True, guarded=True, opt_func=torch.optim.Adam, **kwargs):
    "Three epochs with 6 batches, two of which make a step"
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    dls = DataLoaders.from_dsets(TensorDataset(x, x.sum(1, keepdim=True)), bs=4, device='cpu')
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), head())
    learn = Learner(dls, model, nn.MSELoss(), opt_func=opt_func, lr=.05, path=path)
    return learn.fit(3, cbs=[Remakes(remake, once, guarded), GradientAccumulation(8), *cbs], **kwargs)

def resumed(how, path, n, *args, **kwargs):
    "The same run, stopped after batch `n`"
    if how=='memory': return remaking(path, *args, Stop(n), **kwargs).resume()
    remaking(path, *args, Stop(n), Checkpoint(), **kwargs)
    return remaking(path, *args, Checkpoint(), resume=True, **kwargs)

def assert_same(learn, whole):
    assert learn.opt_step==whole.opt_step==9 and same(learn.model.state_dict(), whole.model.state_dict())
    pairs = zip(learn.model.parameters(), whole.model.parameters())
    assert all(same(learn.opt.state[a], whole.opt.state[b]) for a,b in pairs)

remakes = {new_opt: '`opt` was', assigned_opt: '`opt` was', new_head: '`model.2.weight`, `model.2.bias`, `opt` were',
    new_head_in_old_opt: '`model.2.weight`, `model.2.bias` were', new_model: '`model.0.weight`, '}

@pytest.mark.sample(4, together=2)
@pytest.mark.parametrize('how', ['memory','file'])
@pytest.mark.parametrize('n', [7, 8, 9, 15])
@pytest.mark.parametrize('once', [True, False])
@pytest.mark.parametrize('remake', remakes)
def test_a_callback_that_makes_nothing_anew_on_the_way_loses_nothing(remake, once, n, how, tmp_path, recwarn):
    learn = resumed(how, tmp_path, n, remake, once=once)
    assert not recwarn.list
    assert_same(learn, remaking(None, remake, once=once))

@pytest.mark.parametrize('remake,how', [*product(remakes, ['memory']),
    *product([new_opt, new_head, new_model], ['file'])])
def test_what_is_lost_because_a_callback_makes_it_anew_on_the_way_is_told(remake, how, tmp_path):
    with pytest.warns(match=remakes[remake]+".*what the run had learned there is lost.*`if not self.resuming`"):
        resumed(how, tmp_path, 9, remake, guarded=False)

class Keeps(Callback):
    "Trains a head and an optimizer of its own, which are in their place during a fit"
    def __init__(self): self.head = self.opt = None
    def swap(self):
        learn = self.learn
        learn.model[2],self.head = self.head,learn.model[2]
        learn.opt,self.opt = self.opt,learn.opt
    def before_fit(self):
        if self.head is None:
            self.head = head()
            params = [*self.model[:2].parameters(), *self.head.parameters()]
            self.opt = torch.optim.Adam(params, lr=.05)
        self.swap()
    def cleanup_fit(self): self.swap()

@pytest.mark.parametrize('n', [2, 7, 12, 15])
def test_what_a_callback_keeps_and_puts_in_its_place_again_is_as_it_was(n, tmp_path, recwarn):
    ours,theirs = Keeps(),Keeps()
    learn,whole = remaking(None, nothing, ours, Stop(n)).resume(),remaking(None, nothing, theirs)
    assert not [o for o in recwarn if 'lost' in str(o.message)]
    assert same(learn.model.state_dict(), whole.model.state_dict())
    assert same(ours.head.state_dict(), theirs.head.state_dict())

class Zeroes(torch.optim.SGD):
    "Has zeros in place of gradients, where torch's own have None"
    def zero_grad(self, set_to_none=True):
        for p in self.param_groups[0]['params']:
            if p.grad is not None: p.grad.zero_()

@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('how', ['memory','file'])
def test_gradients_that_an_optimizer_zeroes_in_place_wait_for_their_step(how, several, tmp_path):
    def opt_func(params, lr=.05): return OptimList(Zeroes(params, lr)) if several else Zeroes(params, lr)
    learn,whole = resumed(how, tmp_path, 7, nothing, opt_func=opt_func),remaking(None, nothing, opt_func=opt_func)
    assert same(learn.model.state_dict(), whole.model.state_dict())

class Adapter(nn.Module):
    "A layer, and what is added to its result"
    def __init__(self, base):
        super().__init__()
        self.base,self.add = base,nn.Linear(3, 6)
    def forward(self, x): return self.base(x)+self.add(x)

class Adapts(Callback):
    "Has an adapter in the model during a fit, and keeps it or not"
    only_fit,adapter = True,None
    def __init__(self, keeps): self.keeps = keeps
    def before_fit(self):
        learn = self.learn
        if self.adapter is None:
            self.adapter = Adapter(learn.model[0])
            learn.opt.add_param_group(dict(params=[*self.adapter.add.parameters()]))
        learn.model[0] = self.adapter
    def cleanup_fit(self):
        self.learn.model[0] = self.adapter.base
        if not self.keeps:
            self.adapter = None
            self.learn.create_opt()

def adapting(keeps, *cbs): return remaking(None, nothing, Adapts(keeps), *cbs)

@pytest.mark.parametrize('n', [2, 7, 12])
def test_a_part_that_is_there_during_a_fit_only_is_kept_or_its_loss_is_told(n, recwarn):
    learn = adapting(True, Stop(n)).resume()
    assert not recwarn.list
    assert_same(learn, adapting(True))
    learn = adapting(False, Stop(n))
    with pytest.warns(match="`model.0.add.bias`, `model.0.add.weight` were trained where the fit was stopped, and "
        "removed when it ended.*what the run had learned there is lost"): learn.resume()

class Aux(Callback):
    "Makes a head anew for each fit, which is in the model during it, and saves the head and its optimizer"
    only_fit,_stateattrs = True,('head','own_opt')
    def before_fit(self):
        torch.manual_seed(3)
        self.head = self.learn.model[0].aux = nn.Linear(3, 6)
        self.own_opt = torch.optim.Adam(self.head.parameters(), .1)
    def after_loss(self):
        self.own_opt.zero_grad()
        self.head(self.xb[0]).square().mean().backward()
        self.own_opt.step()
    def cleanup_fit(self): del self.learn.model[0].aux

def test_a_part_that_its_callback_saves_is_not_lost(recwarn):
    def heads(*cbs, resumes=False):
        learn = remaking(None, nothing, aux := Aux(), *cbs)
        if resumes: learn.resume()
        return [*aux.head.parameters()]
    assert all(map(torch.equal, heads(Stop(9), resumes=True), heads())) and not recwarn.list

class Steps(Callback):
    "Keeps a scheduler of torch that it makes when a fit begins"
    run_valid = False
    def before_fit(self): self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, 30)
    def after_step(self): self.sched.step()
class Names(Steps): _stateattrs = ('sched',)
class Restores(Steps):
    "Saves what the scheduler returns"
    _stateattrs,saved = ('saved',),None
    def before_fit(self):
        super().before_fit()
        if self.saved: self.sched.load_state_dict(self.saved)
    def after_step(self): super().after_step(); self.saved = self.sched.state_dict()

@pytest.mark.parametrize('cls', [Steps, Names, Restores])
def test_a_scheduler_that_a_fit_makes_is_named_or_restored(cls, tmp_path):
    "It begins anew, unless the callback saves it; a file lacks it, and says so"
    def fitted(*cbs):
        torch.manual_seed(0)
        return synth_learner(cbs=cls, path=tmp_path, lr=.1, opt_func=SGD).fit(3, cbs=cbs)
    ref,learn,lost = fitted().model.state_dict(),fitted(Stop(14)),cls is Steps
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        learn.save_state('stopped')
        learn.resume()
    told = [str(o.message) for o in told]
    for text in ('has made `steps.sched` anew, and the state that was there is lost',
        '`steps` has `sched`, which takes part in training but is not saved'): assert any(text in o for o in told)==lost
    assert same(learn.model.state_dict(), ref)!=lost
