"Learning rates that are tensors stay tensors: what changes one in place, or reads one, is not cut off"
import warnings
from functools import partial
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from learner.all import *
from learner.model.hypers import set_in_group

def batches(n=4):
    gen = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 6, generator=gen), torch.randint(3, (4,), generator=gen)) for _ in range(n)]
def model(): torch.manual_seed(0); return nn.Sequential(nn.Linear(6,5), nn.Linear(5,3))
def mk(t, path='.', cls=torch.optim.SGD, **kwargs):
    return Learner(DataLoaders(batches(), device='cpu'), model(), F.cross_entropy, opt_func=partial(cls, lr=t),
        path=path, **kwargs).remove_cb(ProgressCallback)
def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def same(a, b): return len(a)==len(b) and all(map(torch.equal, a, b))
def rate(v=.5): return torch.tensor(v, dtype=torch.float64)
def two(m): return [[*o.parameters()] for o in m]

class Decay(Callback):
    "Changes a tensor in place"
    def __init__(self, t): self.t = t
    def after_epoch(self): self.t.mul_(.1)

@pytest.mark.parametrize('splitter', [lambda m: [*m.parameters()], two])
def test_a_rate_that_is_changed_in_place_is_used(splitter):
    t = rate()
    learn = mk(t, splitter=splitter).fit(3, cbs=Decay(t))
    m,lr = model(),rate()
    opt = torch.optim.SGD(m.parameters(), lr=lr)
    for _ in range(3):
        for x,y in batches(): F.cross_entropy(m(x), y).backward(); opt.step(); opt.zero_grad()
        lr.mul_(.1)
    assert same(weights(learn), [p.detach() for p in m.parameters()])
    lrs = [.5]*4 + [.05]*4 + [.005]*4
    torch.testing.assert_close(learn.recorder.lrs, lrs)
    assert all(g['lr'] is t for g in learn.opt.param_groups) and t==.5 # restored when the fit ends

@pytest.mark.parametrize('cls', [torch.optim.SGD, torch.optim.Adam])
def test_a_schedule_writes_into_the_tensor(cls):
    t,seen = rate(.01),[]
    cls = partial(cls, foreach=False)
    learn = mk(t, cls=cls)
    @learn.on('before_step')
    def note(learn): seen.append((learn.opt.param_groups[0]['lr'] is t, t.item()))
    learn.fit_one_cycle(2, .05)
    ref = mk(.01, cls=cls).fit_one_cycle(2, .05)
    assert all(o for o,_ in seen) and [v for _,v in seen]==ref.recorder.lrs==learn.recorder.lrs
    for a,b in zip(weights(learn), weights(ref)): torch.testing.assert_close(a, b)
    assert t==.01

def test_groups_that_share_a_tensor_may_have_other_values():
    t = rate()
    learn = mk(t, splitter=two, lr=[.1, .2])
    learn.create_opt()
    opt = torch.optim.SGD([dict(params=ps) for ps in two(model())], lr=t)
    set_hyper(opt, 'lr', .3)
    assert get_hyper(opt, 'lr')==[.3, .3] and t==.3 and all(g['lr'] is t for g in opt.param_groups)
    set_hyper(opt, 'lr', [.1, .2])
    assert get_hyper(opt, 'lr')==[.1, .2] and t==.1 and opt.param_groups[0]['lr'] is t
    set_in_group(opt, opt.param_groups[0], 'lr', .7)
    assert get_hyper(opt, 'lr')==[.7, .2] and t==.7

def test_weight_decay_that_is_spared_leaves_a_tensor_alone():
    wd = rate(.1)
    ps = [[o.weight, o.bias] for o in model()]
    opt = torch.optim.SGD([dict(params=p, weight_decay=wd) for p in ps], lr=.1)
    spare(opt, [p[1] for p in ps])
    assert wd==.1 and [float(g['weight_decay']) for g in opt.param_groups]==[.1, 0, .1, 0]
    set_hyper(opt, 'wd', .2)
    assert wd==.2 and [float(g['weight_decay']) for g in opt.param_groups]==[.2, 0, .2, 0]

@pytest.mark.parametrize('how', ['file', 'rewind', 'memory'])
def test_a_run_resumes_with_the_tensor(how, tmp_path):
    t,ref = rate(),None
    ref = mk(t, tmp_path).fit(3, cbs=Decay(t))
    t = rate()
    class Stop(Callback):
        def after_batch(self):
            if self.training and self.train_iter==6 and how!='rewind': self.learn.stop_soon()
    learn = mk(t, tmp_path).fit(3, cbs=[Decay(t), *([Rewind(every=2)] if how=='rewind' else [Stop()])])
    if how=='file':
        learn.save_state('s')
        t = rate()
        learn = mk(t, tmp_path)
        learn.load_state('s')
        learn.resume(cbs=Decay(t))
    elif how=='rewind': learn.rewind(6).resume()
    else: learn.resume()
    assert same(weights(learn), weights(ref))
    assert learn.opt.param_groups[0]['lr'] is t and t==.5
    torch.testing.assert_close(learn.recorder.lrs, ref.recorder.lrs)

class Grows(torch.optim.Optimizer):
    "As Prodigy and D-Adaptation: the first step makes tensors in a group, which all steps change"
    def __init__(self, params, lr): super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            if g.get('d') is None: g['d'],g['n'] = torch.ones(1),torch.tensor(0)
            for p in g['params']: p.sub_(p.grad*g['lr']*g['d'].mul_(1+p.grad.abs().mean()))
            g['n'] += 1

class GrowsFromNone(Grows):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        for g in self.param_groups: g['d'] = None

@pytest.mark.parametrize('cls', [Grows, GrowsFromNone])
@pytest.mark.parametrize('how', ['file', 'memory', 'used'])
def test_a_tensor_that_a_step_makes_is_resumed(cls, how, tmp_path):
    def new(): return mk(.01, tmp_path, cls, splitter=two)
    ref = new().fit(3)
    learn = new().fit(3, cbs=on(event.after_batch(once=6, unit='iter'))(lambda learn: learn.stop_soon()))
    if how!='memory':
        learn.save_state('s')
        learn = new()
        if how=='used': learn.fit(1)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            learn.load_state('s')
    learn.resume(cbs=[])
    assert same(weights(learn), weights(ref))
    for a,b in zip(learn.opt.param_groups, ref.opt.param_groups):
        assert all(torch.equal(a[k], b[k]) and a[k].dtype==b[k].dtype for k in ('d','n'))

def test_trials_leave_the_tensor_alone():
    t = rate(.01)
    learn = mk(t).fit(1)
    before = weights(learn)
    learn.lr_find(num_it=8)
    assert learn.opt.param_groups[0]['lr'] is t and t==.01 and same(weights(learn), before)

def test_a_file_that_cannot_be_loaded_leaves_the_tensor_alone(tmp_path):
    class Breaks(Callback):
        def after_load_state(self): raise OSError('no')
    t = rate()
    other = mk(rate(.1), tmp_path).fit(1)
    other.save('a')
    learn = mk(t, tmp_path)
    learn.create_opt()
    def broken(*args): raise OSError('no')
    from learner.result import saving
    with pytest.MonkeyPatch.context() as m:
        m.setattr(saving, 'to_train', broken)
        with pytest.raises(OSError): learn.load('a')
    assert t==.5 and learn.opt.param_groups[0]['lr'] is t
    learn.load('a')
    assert t==.1 and learn.opt.param_groups[0]['lr'] is t

def test_a_scheduler_of_torch_writes_into_the_tensor():
    t = rate()
    learn = mk(t).fit(3, cbs=TorchScheduler(partial(StepLR, step_size=1, gamma=.1)))
    torch.testing.assert_close(learn.recorder.lrs, [.5]*4 + [.05]*4 + [.005]*4)
    assert learn.opt.param_groups[0]['lr'] is t and t==.5

def test_a_compiled_optimizer_is_not_compiled_again_for_each_rate():
    from torch._dynamo.testing import CompileCounter
    torch._dynamo.reset()
    count = CompileCounter()
    def opt_func(ps):
        opt = torch.optim.Adam(ps, lr=rate(.01), foreach=False)
        opt.step = torch.compile(opt.step, backend=count)
        return opt
    learn = mk(None)
    learn.opt_func = opt_func
    learn.fit(3, cbs=ParamScheduler(dict(lr=SchedCos(.01, .001))))
    assert count.frame_count==1
