"""Promise 1 for what callbacks make anew at the beginning of an epoch: where a fit resumes in that epoch, they make it
once more"""
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
def other_opt(learn):
    cls = torch.optim.SGD if isinstance(learn.opt, torch.optim.Adam) else torch.optim.Adam
    learn.opt = cls(learn.model.parameters(), lr=.05)
def wider(learn):
    n = learn.model[2].in_features+1
    learn.model[0],learn.model[1],learn.model[2] = nn.Linear(3, n),nn.BatchNorm1d(n),nn.Linear(n, 1)
    learn.create_opt()

class Remakes(Callback):
    only_fit = True
    def __init__(self, remake, first): self.remake,self.first = remake,first
    def before_epoch(self):
        if self.learn.epoch==1 or self.learn.epoch==2 and not self.first: self.remake(self.learn)

def remaking(path, remake, first, *cbs, opt_func=torch.optim.Adam, **kwargs):
    "Of three epochs with 6 batches, two of which make a step"
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    dls = DataLoaders.from_dsets(TensorDataset(x, x.sum(1, keepdim=True)), bs=4, device='cpu')
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), head())
    learn = Learner(dls, model, nn.MSELoss(), opt_func=opt_func, lr=.05, path=path)
    return learn.fit(3, cbs=[Remakes(remake, first), GradientAccumulation(8), *cbs], **kwargs)

@pytest.mark.parametrize('how', ['memory','file'])
@pytest.mark.parametrize('n', [7, 8, 9, 15])
@pytest.mark.parametrize('first', [True, False])
@pytest.mark.parametrize('remake', [new_opt, assigned_opt, new_head, new_head_in_old_opt, new_model])
def test_what_a_callback_makes_anew_on_the_way_gets_what_the_run_had_there(remake, first, n, how, tmp_path, recwarn):
    whole = remaking(None, remake, first)
    stop = Stop(n)
    if how=='memory': learn = remaking(tmp_path, remake, first, stop).resume()
    else:
        remaking(tmp_path, remake, first, stop, Checkpoint())
        learn = remaking(tmp_path, remake, first, Checkpoint(), resume=True)
    assert learn.opt_step==whole.opt_step==9 and not recwarn.list
    assert same(learn.model.state_dict(), whole.model.state_dict())
    pairs = zip(learn.model.parameters(), whole.model.parameters())
    assert all(same(learn.opt.state[a], whole.opt.state[b]) for a,b in pairs)

@pytest.mark.parametrize('remake,match', [(other_opt, '`Adam` for `SGD`: what was remembered there is lost'),
    (wider, r'has made `model.0.weight`, .* anew, in another shape')])
def test_what_cannot_be_handed_on_is_told(remake, match):
    "Each time is another one: the optimizer is of the other class, the layers are wider"
    learn = remaking(None, remake, True, Stop(9))
    with pytest.warns(match=match): learn.resume()

class Zeroes(torch.optim.SGD):
    "Has zeros in place of gradients, where torch's own have None"
    def zero_grad(self, set_to_none=True):
        for p in self.param_groups[0]['params']:
            if p.grad is not None: p.grad.zero_()

@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('how', ['memory','file'])
def test_gradients_that_an_optimizer_zeroes_in_place_wait_for_their_step(how, several, tmp_path):
    def opt_func(params, lr=.05): return OptimList(Zeroes(params, lr)) if several else Zeroes(params, lr)
    def run(*cbs, **kwargs): return remaking(tmp_path, nothing, True, *cbs, opt_func=opt_func, **kwargs)
    whole = remaking(None, nothing, True, opt_func=opt_func)
    stop = Stop(7)
    if how=='memory': learn = run(stop).resume()
    else:
        run(stop, Checkpoint())
        learn = run(Checkpoint(), resume=True)
    assert same(learn.model.state_dict(), whole.model.state_dict())
