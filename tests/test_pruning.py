"""Pruning in a fit changes names and order of the model's parameters, but not the parameters: state and averages stay
with theirs"""
import warnings
from copy import deepcopy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from learner.all import *

def data():
    torch.manual_seed(9)
    x = torch.randn(40, 6)
    return (x[:32], x[:32,:2].sum(1)),(x[32:], x[32:,:2].sum(1))

def mk(path='.', opt_func=torch.optim.Adam, pruned=False, **kw):
    train,valid = ([*zip(x.split(8), y[:,None].split(8))] for x,y in data())
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    if pruned: pruned_alike(m)
    return Learner(DataLoaders(train, valid), m, nn.MSELoss(), opt_func=opt_func, lr=.05, path=path, **kw)

def pruned_alike(m, ks=(0, 1)):
    "Weight and bias of the batch norm have one shape, and those of the linear layer have not"
    for i in ks: prune.l1_unstructured(m[i], 'weight', .5)

def removed(m):
    pruned_alike(m)
    for i in (0, 1): prune.remove(m[i], 'weight')

class Prune(Callback):
    "In the middle of an epoch, or after its training"
    def __init__(self, how, epoch=0, iter=None): self.how,self.at,self.iter_ = how,epoch,iter
    def before_step(self):
        if (self.epoch, self.iter)==(self.at, self.iter_): self.how(self.learn.model)
    def after_train(self):
        if self.epoch==self.at and self.iter_ is None: self.how(self.learn.model)

def weights(learn): return {k:v.clone() for k,v in learn.model.state_dict().items()}
def rows(learn): return [{k:v for k,v in dict(r).items() if k!='time'} for r in learn.recorder.rows]
def equal(a, b): return a.keys()==b.keys() and all(torch.equal(v, b[k]) for k,v in a.items())

def stop(learn):
    def interrupt(): raise KeyboardInterrupt
    if learn.training and learn.epoch==1 and learn.iter==1: learn.at_pause(interrupt, stops=True)

@pytest.mark.parametrize('how,pruned', [(removed, False), (pruned_alike, True)], ids=['removed','pruned'])
@pytest.mark.parametrize('ema', [False, True], ids=['','ema'])
@pytest.mark.parametrize('accumulates', [False, True], ids=['','accumulates'])
def test_a_run_that_pruned_resumes_from_a_file(tmp_path, how, pruned, ema, accumulates):
    "In a new model, in which the optimizer has the order of this model"
    def cbs(): return [Prune(how), *[EMA(.9)]*ema, *[GradientAccumulation(24)]*accumulates]
    whole,a = mk().fit(3, cbs=cbs()),mk(tmp_path)
    with pytest.raises(KeyboardInterrupt): a.fit(3, cbs=[*cbs(), on(event.after_batch)(stop)])
    assert [p.shape for p in a.opt.param_groups[0]['params'][:2]]==[(4, 6), (4,)]
    a.save_state('a')
    b = mk(tmp_path, pruned=pruned).load_state('a')
    assert bool(b.at.hypers_and_grads.grads)==accumulates
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # `stop` is gone
        b.resume(cbs=cbs())
    assert equal(weights(whole), weights(b)) and rows(whole)==rows(b)

@pytest.mark.parametrize('kw', [{}, dict(wd=.1)], ids=['','wd'])
def test_a_file_of_a_pruned_model_is_loaded_by_name(tmp_path, kw):
    a = mk(tmp_path).fit(1, **kw)
    pruned_alike(a.model)
    a.save('a')
    b = mk(tmp_path, pruned=True).load('a')
    assert [n for n,_ in b.model.named_parameters()][:2]==['0.bias','0.weight_orig']
    def moments(learn): return {k:learn.opt.state[p]['exp_avg'] for k,p in learn.model.named_parameters()}
    assert equal(moments(a), moments(b))
    b.save('b') # and back, where the optimizer has another order than the model
    mine = moments(a)
    a.opt.state.clear()
    assert equal(moments(a.load('b')), mine)

def test_names_hold_where_a_hook_replaces_values(tmp_path):
    "The optimizer of the file has another order than the model"
    a = mk(tmp_path).fit(1)
    pruned_alike(a.model)
    a.save('a')
    b = mk(tmp_path, pruned=True)
    b.on(event.before_load)(lambda learn: learn.saved.update(model={k:v*1 for k,v in learn.saved['model'].items()}))
    b.load('a')
    def moments(learn): return {k:learn.opt.state[p]['exp_avg'] for k,p in learn.model.named_parameters()}
    assert equal(moments(a), moments(b))

def test_a_hook_can_apply_the_masks_of_a_pruned_model(tmp_path):
    "A weight that it has computed takes the place that is left"
    a = mk(tmp_path).fit(1)
    pruned_alike(a.model)
    a.save('a')
    b = mk(tmp_path)
    @b.on(event.before_load)
    def masked(learn):
        w = learn.saved['model']
        for i in (0, 1): w[f'{i}.weight'] = w.pop(f'{i}.weight_orig')*w.pop(f'{i}.weight_mask')
    b.load('a')
    def moments(learn): return {k:learn.opt.state[p]['exp_avg'] for k,p in learn.model.named_parameters()}
    assert equal({k.replace('_orig', ''):v for k,v in moments(a).items()}, moments(b))

def test_the_state_of_lbfgs_of_a_pruned_model_is_refused(tmp_path):
    a = mk(tmp_path, torch.optim.LBFGS).fit(1)
    pruned_alike(a.model)
    a.save('a')
    with pytest.raises(ValueError, match='another order, and the state of `LBFGS`'):
        mk(tmp_path, torch.optim.LBFGS, pruned=True).load('a')

def test_a_parameter_in_another_group_is_named(tmp_path):
    def first(i): # a group of two parameters, and one of the others
        def f(m): return [[*m[i].parameters()], [p for k,p in m.named_parameters() if k[0]!=str(i)]]
        return f
    mk(tmp_path, splitter=first(0)).fit(1).save('a')
    with pytest.raises(ValueError, match='`model.0.weight` was in another parameter group: give the `splitter`'):
        mk(tmp_path, splitter=first(1)).load('a')

def test_state_of_another_shape_than_its_parameter_names_it(tmp_path):
    "A file of a script, by the optimizer of before the pruning"
    learn = mk()
    m = learn.model
    opt = torch.optim.Adam(m.parameters())
    F.mse_loss(m(data()[0][0]), data()[0][1][:,None]).backward()
    opt.step()
    pruned_alike(m)
    torch.save(dict(model=m.state_dict(), optimizer=opt.state_dict()), tmp_path/'a.pth')
    b = mk(pruned=True)
    before = weights(b)
    with pytest.raises(ValueError, match=r'`exp_avg` of parameter `model.0.bias` has the shape \(4, 6\), and the '
            r'parameter \(4,\)'): b.load(tmp_path/'a.pth', with_opt=True)
    assert equal(before, weights(b)) and b.opt is None

@pytest.mark.parametrize('cb', [lambda: EMA(.9), lambda: EMA(.9, validate='both'), lambda: SWA(1),
    lambda: SWA(1, every=1, validate=True)], ids=['ema','both','swa','swa-every'])
@pytest.mark.parametrize('epoch,i', [(0, None), (2, None), (2, 1)])
def test_an_average_stays_with_its_parameters(cb, epoch, i):
    "`prune.identity` changes no number"
    def identity(m):
        for i in (0, 1): prune.identity(m[i], 'weight')
    def run(*cbs):
        learn = mk().fit(3, cbs=[*cbs, cb()])
        return rows(learn),dict(learn.validate()),{k.replace('_orig', ''):p for k,p in learn.model.named_parameters()}
    whole,pruned = run(),run(Prune(identity, epoch, i))
    assert whole[:2]==pruned[:2] and equal(whole[2], pruned[2])

def test_an_average_of_before_pruning_is_restored_to_its_parameters():
    "In memory, too: `rewind` would have the order of then"
    ema = EMA(.9)
    learn = mk(cbs=ema).fit(1)
    avg = dict(zip([k for k,_ in learn.model.named_parameters()], ema.avg))
    state = ema.state_dict()
    prune.identity(learn.model[1], 'weight')
    ema.load_state_dict(state)
    with ema.averaged(): now = {k.replace('_orig', ''):p.detach().clone() for k,p in learn.model.named_parameters()}
    assert equal({k:now[k] for k in avg}, avg)

def test_a_state_of_copies_goes_by_the_order_of_parameters():
    "As `torch.load` makes them: `params` are those of no model here"
    ema = EMA(.9)
    mk(cbs=ema).fit(1)
    new = EMA(.9)
    new.load_state_dict(deepcopy(ema.state_dict())) # before it has a learner
    other = mk(cbs=new)
    with new.averaged(): now = [p.detach().clone() for p in other.model.parameters()]
    assert all(map(torch.equal, now, ema.avg))
    state = deepcopy(ema.state_dict())
    other.fit(1)
    new.load_state_dict(state) # and with one
    assert new.n==4 and all(map(torch.equal, new.avg, ema.avg))
    other.fit(1)
    assert new.n==8

@pytest.mark.parametrize('what', ['weight','bias'])
@pytest.mark.parametrize('i', [None, 1])
def test_averages_of_buffers_stay_with_them(what, i):
    "Pruning adds a buffer before those of the batch norm, of the shape of these in the case of the bias"
    def run(*cbs):
        learn = mk(cbs=EMA(.9, buffers=True)).fit(3, cbs=cbs)
        return learn,{k.replace('_orig', ''):a for k,a in zip(names(learn.model), learn.ema.avg)}
    def names(m): return [k for o in (m.named_parameters(), m.named_buffers()) for k,v in o if v.is_floating_point()]
    whole,(learn,avg) = run()[1],run(Prune(lambda m: prune.identity(m[0], what), 1, i))
    assert torch.equal(avg.pop(f'0.{what}_mask'), getattr(learn.model[0], f'{what}_mask')) and avg.keys()==whole.keys()
    assert all(torch.equal(avg[k], v) for k,v in whole.items())
    prune.remove(learn.model[0], what)
    assert [a.shape for a in learn.ema.avg]==[t.shape for t in learn.ema.tensors()] and learn.fit(1)

def test_averages_of_buffers_are_loaded_by_name(tmp_path):
    def f(order):
        torch.manual_seed(0)
        m = nn.ModuleDict({k:nn.BatchNorm1d(6) for k in order} | {'head': nn.Linear(6, 1)})
        m.forward = lambda x: m['head'](m['b'](m['a'](x).exp()))
        return Learner(mk().dls, m, nn.MSELoss(), lr=.05, path=tmp_path, cbs=EMA(.9, buffers=True))
    a,b = f('ab').fit(1),f('ba')
    a.save_state('a')
    b.load_state('a')
    for learn in (a, b): learn.ema.apply()
    now,then = weights(b),weights(a)
    assert not torch.equal(then['a.running_var'], then['b.running_var']) and equal(now, then)

def test_averages_have_the_order_of_the_model_whenever_they_are_read():
    learn = mk(cbs=EMA(.9)).fit(1)
    avg = {k:a for (k,_),a in zip(learn.model.named_parameters(), learn.ema.avg)}
    prune.identity(learn.model[0], 'weight')
    now = {k.replace('_orig', ''):a for (k,_),a in zip(learn.model.named_parameters(), learn.ema.avg)}
    assert [*now][:2]==['0.bias','0.weight'] and equal(now, avg)

class Strict(torch.optim.SGD):
    "A format of its own, with groups that have torch's keys alone"
    def state_dict(self):
        groups = super().state_dict()['param_groups']
        return dict(param_groups=groups, buffers=[self.state[p]['momentum_buffer'] for p in groups_of(self)])
    def load_state_dict(self, state):
        for g,o in zip(self.param_groups, state['param_groups'], strict=True):
            if o.keys()!=g.keys(): raise KeyError(f'{o.keys()^g.keys()}')
        for p,b in zip(groups_of(self), state['buffers'], strict=True): self.state[p]['momentum_buffer'] = b
def groups_of(opt): return [p for g in opt.param_groups for p in g['params']]

@pytest.mark.parametrize('several', [False, True])
def test_a_format_of_its_own_gets_no_names(tmp_path, several):
    def opt_func(groups): return (OptimList if several else lambda o: o)(Strict(groups, .1, .9))
    a = mk(tmp_path, opt_func).fit(1)
    a.save('a'); a.save_state('b')
    moments = [a.opt.state[p]['momentum_buffer'] for p in groups_of(a.opt)]
    for b in (mk(tmp_path, opt_func).load('a'), mk(tmp_path, opt_func).load_state('b')):
        now = [b.opt.state[p]['momentum_buffer'] for p in groups_of(b.opt)]
        assert len(now)==len(moments) and all(map(torch.equal, now, moments))

def test_what_a_callback_keeps_in_the_state_of_a_parameter_comes_back(tmp_path):
    class Hist(Callback):
        def after_step(self):
            for i,p in enumerate(groups_of(self.learn.opt)): self.learn.opt.state[p]['hist'] = torch.full((5,), 1.*i)
    a = mk(tmp_path, cbs=Hist()).fit(1)
    a.save('a'); a.save_state('b')
    for b in (mk(tmp_path, cbs=Hist()).load('a'), mk(tmp_path, cbs=Hist()).load_state('b')):
        assert [b.opt.state[p]['hist'].tolist() for p in groups_of(b.opt)]==[[i]*5 for i in range(6)]

def test_momentum_of_a_weight_that_a_hook_has_enlarged_is_refused(tmp_path):
    mk(tmp_path).fit(1).save('a')
    b = mk(tmp_path)
    b.model[3] = nn.Linear(4, 2)
    def larger(learn):
        w = learn.saved['model']
        w.update({k:torch.cat([w[k]]*2) for k in ('3.weight','3.bias')})
    b.on(event.before_load)(larger)
    with pytest.raises(ValueError, match=r'`exp_avg` of parameter `model.3.weight` has the shape \(1, 4\)'): b.load('a')
