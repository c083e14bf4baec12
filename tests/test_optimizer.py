"Any optimizer of torch, as it is; one name for each hyper-parameter; decay that spares what it should"
import copy,math,warnings
from functools import partial
from inspect import signature
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from learner.model.optimizer import go_with_params
from parts import shown

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.norm,self.head = nn.Linear(2, 3),nn.LayerNorm(3),nn.Linear(3, 1)
        self.free = nn.Parameter(torch.ones(1)) # never used
    def forward(self, x): return self.head(self.norm(self.body(x)))

def split(m): return [[*m.body.parameters(), *m.norm.parameters()], list(m.head.parameters())]
def bs(n=3):
    gen = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=gen), torch.randn(4, 1, generator=gen)) for _ in range(n)]

def mk(opt_func=Adam, **kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(bs(), device='cpu'), Net(), F.mse_loss, opt_func=opt_func,
        **kwargs).remove_cb(ProgressCallback)

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b))
def close(a, b): return all(torch.allclose(x, y, rtol=1e-5, atol=1e-7) for x,y in zip(a, b, strict=True))

def by_hand(opt, model):
    for x,y in bs():
        F.mse_loss(model(x), y).backward()
        opt.step(); opt.zero_grad()
    return weights(model)

def decay_groups(m):
    "Parameters that decay, and those that do not"
    no = {id(p) for p in [m.body.bias, m.head.bias, *m.norm.parameters()]}
    return [[p for p in m.parameters() if id(p) not in no], [p for p in m.parameters() if id(p) in no]]

# Every optimizer of torch
special = dict(SparseAdam='wants sparse gradients', Muon='takes matrices only')
optimizers = sorted(k for k,v in vars(torch.optim).items()
    if isinstance(v, type) and issubclass(v, torch.optim.Optimizer) and k not in (*special, 'Optimizer'))
@pytest.mark.parametrize('name', optimizers)
def test_every_optimizer_of_torch_does_what_it_does_by_hand(name):
    opt_func = getattr(torch.optim, name)
    learn = mk(opt_func)
    model = copy.deepcopy(learn.model)
    if name=='LBFGS':
        opt = opt_func(model.parameters())
        for x,y in bs():
            def closure():
                opt.zero_grad()
                (loss := F.mse_loss(model(x), y)).backward()
                return loss
            opt.step(closure)
        expected = weights(model)
    else:
        yes,no = decay_groups(model)
        has_wd = 'weight_decay' in opt_func([nn.Parameter(torch.zeros(1))]).defaults
        expected = by_hand(opt_func([dict(params=yes), dict(params=no, **(dict(weight_decay=0) if has_wd else {}))]),
            model)
    assert same(weights(learn.fit(1).model), expected) and type(learn.opt) is opt_func

@pytest.mark.parametrize('name,model',
    [('SparseAdam', lambda: nn.Embedding(5, 2, sparse=True)), ('Muon', lambda: nn.Embedding(5, 2))])
def test_optimizers_of_special_parameters(name, model):
    if not (opt_func := getattr(torch.optim, name, None)): pytest.skip(f'this torch has no {name}')
    torch.manual_seed(0)
    a,b = model(),model()
    b.load_state_dict(a.state_dict())
    data = [(torch.tensor([0,1,1]), torch.ones(3,2)), (torch.tensor([1,3]), torch.zeros(2,2))]
    Learner(DataLoaders(data, device='cpu'), a, F.mse_loss, opt_func=opt_func).remove_cb(ProgressCallback).fit(1)
    opt = opt_func(b.parameters())
    for x,y in data: F.mse_loss(b(x), y).backward(); opt.step(); opt.zero_grad()
    assert torch.equal(a.weight, b.weight)

@pytest.mark.parametrize('opt_func',
    [partial(torch.optim.SGD, lr=.1, momentum=.9, nesterov=True),
        partial(torch.optim.Adam, lr=.01, amsgrad=True, foreach=False),
    partial(torch.optim.AdamW, lr=.01, fused=True, weight_decay=0),
    lambda ps: torch.optim.RMSprop(ps, lr=.02, centered=True)], ids=['nesterov','amsgrad','fused','function'])
def test_partials_and_functions(opt_func):
    learn = mk(opt_func)
    expected = by_hand(opt_func((model := copy.deepcopy(learn.model)).parameters()), model)
    assert same(weights(learn.fit(1).model), expected) and learn.lr==learn.opt.param_groups[0]['lr']

def test_a_ready_optimizer_keeps_its_own_lr():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=.5, momentum=.9)
    learn = Learner(DataLoaders(bs(), device='cpu'), model, F.mse_loss, opt_func=opt).remove_cb(ProgressCallback)
    expected = by_hand(torch.optim.SGD((m := copy.deepcopy(model)).parameters(), lr=.5, momentum=.9), m)
    learn.fit(1)
    assert learn.opt is opt and learn.recorder.lrs==[.5]*3 and same(weights(model), expected)
    assert learn.fit(1, lr=.1).recorder.lrs==[.1]*3 and opt.param_groups[0]['lr']==.5 and len(opt.param_groups)==1

def test_torch_schedulers_and_loops_take_the_optimizer():
    learn = mk(partial(torch.optim.SGD, lr=1.))
    learn.create_opt()
    sched = torch.optim.lr_scheduler.ExponentialLR(learn.opt, .5)
    learn.add_cb(Callback(after_batch=lambda self: sched.step()))
    learn.lr = None # the optimizer's own, also in the middle
    assert learn.fit(1).recorder.lrs==[.5, .25, .125]

# Names of hyper-parameters
@pytest.mark.parametrize('opt_func,expected', [
    (torch.optim.SGD, dict(lr=1e-3, mom=0., wd=0.)),
    (torch.optim.Adam, dict(lr=1e-3, mom=.9, sqr_mom=.999, wd=0., eps=1e-8)),
    (torch.optim.AdamW, dict(lr=1e-3, mom=.9, sqr_mom=.999, wd=.01, eps=1e-8)),
    (torch.optim.RMSprop, dict(lr=1e-2, mom=0., sqr_mom=.99, wd=0., eps=1e-8)),
    (torch.optim.RAdam, dict(lr=1e-3, mom=.9, sqr_mom=.999, wd=0., eps=1e-8)),
    (torch.optim.Adagrad, dict(lr=1e-2, wd=0., eps=1e-10)),
    (torch.optim.NAdam, dict(lr=2e-3, mom=.9, sqr_mom=.999, wd=0., eps=1e-8)),
    (SGD, dict(lr=1e-3, mom=0., wd=0.)), (Adam, dict(lr=1e-3, mom=.9, sqr_mom=.99, wd=.01, eps=1e-5)),
    (RMSProp, dict(lr=1e-3, mom=0., sqr_mom=.99, wd=0., eps=1e-8)),
    (RAdam, dict(lr=1e-3, mom=.9, sqr_mom=.99, wd=0., eps=1e-5)),
], ids=lambda o: getattr(o, '__module__', '')[:5]+'.'+o.__name__ if callable(o) else '')
def test_hypers_have_one_name_each(opt_func, expected):
    learn = mk(opt_func, splitter=split)
    opt = learn.create_opt()
    assert ({*expected}<={*hypers(opt)}
        and {*hypers(opt)}.isdisjoint({'betas','momentum','alpha','weight_decay','params','group'}))
    assert {k:get_hyper(opt, k) for k in expected}=={k:[v]*2 for k,v in expected.items()} and n_groups(opt)==2
    for k in expected:
        learn.set_hyper(k, [.25, .5])
        assert get_hyper(opt, k)==[.25, .5] and n_groups(opt)==2
        learn.set_hyper(k, .125)
        assert get_hyper(opt, k)==[.125]*2
    g = opt.param_groups[0] # written where torch reads it
    if 'betas' in g: assert g['betas']==(.125, .125)
    if 'sqr_mom' in expected and 'alpha' in g: assert g['alpha']==.125
    assert g['lr']==.125 and g.get('decoupled_wd', g['weight_decay'])==.125

def test_the_power_by_which_asgd_lowers_its_rate_is_no_momentum():
    opt = torch.optim.ASGD([nn.Parameter(torch.zeros(1))], alpha=.5)
    assert hypers(opt)==['lr','wd','lambd','t0']
    with pytest.raises(ValueError, match='`ASGD` has no hyper-parameter `sqr_mom`'): set_hyper(opt, 'sqr_mom', .9)
    assert opt.param_groups[0]['alpha']==.5

@pytest.mark.parametrize('name', ['mom', 'sqr_mom', 'nonsense'])
def test_a_hyper_that_the_optimizer_lacks(name):
    opt = torch.optim.Adagrad([nn.Parameter(torch.zeros(1))])
    for f in (lambda: get_hyper(opt, name), lambda: set_hyper(opt, name, .1)):
        with pytest.raises(ValueError, match=f"`Adagrad` has no hyper-parameter `{name}`, but `lr`"): f()

@pytest.mark.parametrize('opt_func,name,ours', [(torch.optim.AdamW, 'weight_decay', '`wd`'),
    (torch.optim.SGD, 'momentum', '`mom`'), (torch.optim.AdamW, 'betas', '`mom`, `sqr_mom`'),
    (torch.optim.RMSprop, 'alpha', '`sqr_mom`')])
def test_what_torch_calls_a_hyper_is_no_second_name_of_it(opt_func, name, ours):
    "A schedule of `weight_decay` beside one of `wd` would set it twice, and let norms and biases decay"
    learn = mk(partial(opt_func, lr=.1))
    learn.create_opt()
    before = [dict(g, params=None) for g in learn.opt.param_groups]
    for f in (lambda: learn.set_hyper(name, .5), lambda: set_hyper(learn.opt, name, .5),
            lambda: get_hyper(learn.opt, name), lambda: learn.fit(1, cbs=ParamScheduler({name: SchedNo(.5, .5)}))):
        with pytest.raises(ValueError, match=f'has no hyper-parameter `{name}`.*Here that is {ours}'): f()
    assert before==[dict(g, params=None) for g in learn.opt.param_groups]

def test_an_optimizer_without_weight_decay_stays_as_it_is_when_it_is_asked_for():
    learn = mk(partial(torch.optim.Rprop, lr=.1))
    learn.create_opt()
    groups = [[*map(id, g['params'])] for g in learn.opt.param_groups]
    for f in (lambda: learn.fit(1, wd=.1), lambda: spare(learn.opt, [*learn.model.parameters()])):
        with pytest.raises(ValueError, match='`Rprop` has no hyper-parameter `wd`, but `lr`'): f()
    assert groups==[[*map(id, g['params'])] for g in learn.opt.param_groups]

class NoDecay(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, dict(lr=.1))

def test_of_several_optimizers_only_those_whose_parameters_are_spared_need_weight_decay():
    a,b = nn.Linear(3, 3),nn.Linear(3, 1)
    opt = OptimList(torch.optim.AdamW(a.parameters(), weight_decay=.1), NoDecay(b.parameters()))
    spare(opt, [a.bias])
    assert [(g.get('weight_decay'), len(g['params'])) for g in opt.param_groups]==[(.1, 1), (0, 1), (None, 2)]
    with pytest.raises(ValueError, match='no hyper-parameter `wd`'): spare(opt, [a.weight, b.bias])
    assert [len(g['params']) for g in opt.param_groups]==[1, 1, 2]

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.emb,self.norm,self.head = nn.Embedding(5, 4, sparse=True),nn.LayerNorm(4),nn.Linear(4, 5)
    def forward(self, x): return self.head(self.norm(self.emb(x)))

words = [(torch.tensor([0,1,2]), torch.tensor([1,2,3])), (torch.tensor([2,3,4]), torch.tensor([3,4,0]))]
def some_decay(groups, wd=.5):
    return OptimList(torch.optim.SparseAdam(groups[:1]), torch.optim.AdamW(groups[1:], weight_decay=wd))
def read_words(opt_func=some_decay, **kwargs):
    return Learner(DataLoaders(words, device='cpu'), Words(), F.cross_entropy, opt_func=opt_func, lr=.01,
        splitter=lambda m: [[*m.emb.parameters()], [*m.norm.parameters(), *m.head.parameters()]],
        **kwargs).remove_cb(ProgressCallback)

@pytest.mark.parametrize('wd_bn_bias', [False, True])
def test_norms_and_biases_are_spared_also_beside_an_optimizer_without_weight_decay(wd_bn_bias):
    model = Words()
    spared = dict(params=[*model.norm.parameters(), model.head.bias], weight_decay=.5*wd_bn_bias)
    opts = [torch.optim.SparseAdam([model.emb.weight], lr=.01),
        torch.optim.AdamW([dict(params=[model.head.weight], weight_decay=.5), spared], lr=.01)]
    for x,y in words*2:
        F.cross_entropy(model(x), y).backward()
        for o in opts: o.step(); o.zero_grad()
    assert close(weights(read_words(wd_bn_bias=wd_bn_bias).fit(2).model), weights(model))

def test_a_fit_of_several_of_which_some_decay_resumes_exactly():
    whole,cut = read_words().fit(2),read_words()
    cut.fit(2, cbs=on(event.after_batch)(lambda learn: learn.stop_soon() if learn.train_iter==3 else None))
    assert not same(weights(cut.model), weights(whole.model))
    assert same(weights(cut.resume(cbs=[]).model), weights(whole.model))

def test_a_hyper_parameter_that_only_some_of_several_have_is_told_where():
    told = r'`OptimList` has no hyper-parameter `wd`, but .*Only `opts\[1\]` of it has one: set it there, in `opt_func`'
    with pytest.raises(ValueError, match=told): read_words(wd=.5).fit(1)
    learn = read_words(lambda gs: OptimList(torch.optim.SparseAdam(gs[:1]), torch.optim.Adagrad(gs[1:])))
    learn.create_opt()
    for k,of in dict(mom=0, wd=1).items():
        told = rf'`{k}`, but `lr`, `eps`. Only `opts\[{of}\]` of it'
        with pytest.raises(ValueError, match=told): get_hyper(learn.opt, k)
    before = [[*map(id, g['params'])] for g in learn.opt.param_groups]
    with pytest.raises(ValueError, match=r'`opts\[1\]`'): learn.set_hyper('wd', .1)
    assert before==[[*map(id, g['params'])] for g in learn.opt.param_groups]

def test_what_set_hyper_writes_is_what_the_step_uses():
    learn = mk(partial(torch.optim.SGD, lr=.1), cbs=Callback(before_step=lambda self: self.learn.set_hyper('lr', 0)))
    before = weights(learn.model)
    assert same(before, weights(learn.fit(1).model))

@pytest.mark.parametrize('lr,expected',
    [(.1, [.1]*3), (1, [1.]*3), ([.1,.2,.3], [.1,.2,.3]), ((.1,.2,.3), [.1,.2,.3]),
        (slice(1e-3, 1e-1), [1e-3, 1e-2, 1e-1]), (slice(1e-1), [1e-2, 1e-2, 1e-1]),
    (np.float64(.1), [.1]*3), (np.float32(.5), [.5]*3), (np.array(.1), [.1]*3), (np.array([.1,.2,.3]), [.1,.2,.3]),
    (torch.tensor(.5), [.5]*3), (torch.tensor([.5,.25,1.]), [.5,.25,1.]),
    ([np.float64(.1), torch.tensor(.5), 1], [.1, .5, 1.])], ids=repr)
def test_anything_that_is_a_number_is_a_float_per_group(lr, expected):
    res = per_group(lr, 3)
    assert res==pytest.approx(expected) and {type(o) for o in res}=={float}
    groups = lambda m: [*split(m), [m.free]]
    a,b = mk(splitter=groups, lr=lr),mk(splitter=groups).fit(0)
    a.create_opt()
    b.add_cb(Callback(before_batch=lambda self: None)).fit(1, lr=lr)
    assert get_hyper(a.opt, 'lr')==pytest.approx(expected) and b.recorder.lrs==pytest.approx([expected[-1]]*3)
    assert {type(g['lr']) for o in (a, b) for g in o.opt.param_groups}=={float}

def test_one_group_takes_the_last_of_a_slice():
    assert per_group(slice(1e-3, 1e-1), 1)==per_group(slice(1e-1), 1)==[1e-1]

# Decoupled weight decay in closed form
def run(opt, p, grads):
    for g in grads: p.grad = torch.tensor([g], dtype=p.dtype); opt.step()
    return p.item()

gs,lr,wd = [.5, -1., 2.],.1,.3
@pytest.mark.parametrize('decouple', [True, False])
@pytest.mark.parametrize('mom', [0., .9])
def test_sgd_in_closed_form(mom, decouple):
    p,x,v = nn.Parameter(torch.ones(1, dtype=torch.double)),1.,0.
    for g in gs:
        v = mom*v + g + (0 if decouple else wd*x)
        x = x*(1 - (lr*wd if decouple else 0)) - lr*v
    assert run(SGD([p], lr, mom=mom, wd=wd, decouple_wd=decouple), p, gs)==pytest.approx(x)

@pytest.mark.parametrize('decouple', [True, False])
@pytest.mark.parametrize('mom', [0., .9])
def test_rmsprop_in_closed_form(mom, decouple):
    p,x,v,s = nn.Parameter(torch.ones(1, dtype=torch.double)),1.,0.,0.
    for g in gs:
        if decouple: x *= 1-lr*wd
        else: g = g+wd*x
        s = .99*s + .01*g*g
        v = mom*v + g/(math.sqrt(s)+1e-8)
        x -= lr*v
    assert run(RMSProp([p], lr, mom=mom, wd=wd, decouple_wd=decouple), p, gs)==pytest.approx(x)

@pytest.mark.parametrize('decouple', [True, False])
def test_adam_in_closed_form(decouple):
    p,x,m,s = nn.Parameter(torch.ones(1, dtype=torch.double)),1.,0.,0.
    for t,g in enumerate(gs, 1):
        if decouple: x *= 1-lr*wd
        else: g = g+wd*x
        m,s = .9*m+.1*g, .99*s+.01*g*g
        x -= lr*(m/(1-.9**t))/(math.sqrt(s/(1-.99**t))+1e-5)
    assert run(Adam([p], lr, wd=wd, decouple_wd=decouple), p, gs)==pytest.approx(x)

@pytest.mark.parametrize('opt_func', [SGD, RMSProp, Adam, RAdam])
def test_parameters_without_gradient_do_not_decay(opt_func):
    p,q = (nn.Parameter(torch.ones(1)) for _ in range(2))
    run(opt_func([p, q], .1, wd=.5), p, gs)
    assert q.item()==1.

# Who decays
class Zero(nn.Module):
    "All kinds of layers, and no gradient but zero"
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(
            dict(lin=nn.Linear(2,2), conv=nn.Conv1d(2,2,1), bn=nn.BatchNorm1d(2), ln=nn.LayerNorm(2),
                gn=nn.GroupNorm(1,2), inorm=nn.InstanceNorm1d(2, affine=True), emb=nn.Embedding(2,2)))
        for p in self.parameters(): p.data.fill_(1.)
    def forward(self, x): return sum(p.sum() for p in self.parameters())*0 + x.sum()*0

spared = ['bn.bias','bn.weight','conv.bias','gn.bias','gn.weight','inorm.bias','inorm.weight','lin.bias','ln.bias',
    'ln.weight']
decaying = ['conv.weight','emb.weight','lin.weight']
def zero(opt_func=SGD, n=2, **kwargs):
    return Learner(DataLoaders([torch.ones(1)]*n, device='cpu'), Zero(), opt_func=opt_func,
        **kwargs).remove_cb(ProgressCallback)
def changed(learn):
    return sorted(k.removeprefix('layers.')
        for k,p in learn.model.named_parameters() if not torch.equal(p, torch.ones_like(p)))

@pytest.mark.parametrize('wd_bn_bias', [False, True])
@pytest.mark.parametrize('where', ['learner','fit','partial','callback'])
@pytest.mark.parametrize('opt_func', [SGD, RMSProp, Adam, torch.optim.AdamW, partial(torch.optim.SGD, lr=1e-3)],
    ids=['SGD','RMSProp','Adam','AdamW','torch SGD'])
def test_norms_and_biases_do_not_decay(opt_func, where, wd_bn_bias):
    if where=='partial':
        opt_func = partial(opt_func, **{'wd' if 'wd' in signature(opt_func).parameters else 'weight_decay': .5})
    decay = Callback(before_batch=lambda self: self.learn.set_hyper('wd', .5))
    learn = zero(opt_func, lr=.1, wd_bn_bias=wd_bn_bias,
        wd=.5 if where=='learner' else None if where=='partial' else 0., cbs=decay if where=='callback' else None)
    learn.fit(1, wd=.5 if where=='fit' else None)
    assert changed(learn)==(sorted(decaying+spared) if wd_bn_bias else decaying)
    assert learn.model.layers['lin'].weight[0,0].item()==pytest.approx((1-.1*.5)**2, rel=1e-4)

def test_wd_given_at_fit_time_is_for_that_fit():
    learn = zero(lr=.1).fit(1, wd=.5)
    before = weights(learn.model)
    assert same(before, weights(learn.fit(1).model)) and get_hyper(learn.opt, 'wd')==[0.]

def test_the_split_for_decay_is_invisible_and_keeps_what_the_optimizer_remembers():
    learn,other = mk(partial(torch.optim.Adam, lr=.1), splitter=split),mk(partial(torch.optim.Adam, lr=.1),
        splitter=split)
    learn.fit(1); other.fit(1)
    state = {id(p):s for p,s in learn.opt.state.items()}
    learn.fit(0, wd=.5) # splits the groups now
    assert len(learn.opt.param_groups)==4 and {id(p):s for p,s in learn.opt.state.items()}==state
    assert (n_groups(learn.opt)==2 and all(len(get_hyper(learn.opt, k))==2 for k in hypers(learn.opt))
        and get_hyper(learn.opt, 'wd')==[0., 0.])
    # nobody is lost or doubled
    assert sorted(id(p) for g in learn.opt.param_groups for p in g['params'])==sorted(
        id(p) for g in split(learn.model) for p in g)
    learn.set_hyper('lr', [.1, .2])
    assert get_hyper(learn.opt, 'lr')==[.1, .2]
    learn.set_hyper('lr', .1)
    assert same(weights(learn.fit(1).model), weights(other.fit(1).model)) # with no decay they go the same way

def test_a_group_of_biases_alone():
    learn = zero(splitter=lambda m: [[m.layers['lin'].weight], [m.layers['lin'].bias]], lr=.1).fit(1, wd=[.5, .25])
    assert changed(learn)==['lin.weight'] and n_groups(learn.opt)==2 and get_hyper(learn.opt, 'lr')==[.1, .1]

# Freezing
def trainable(m): return [k for k,p in m.named_parameters() if p.requires_grad]

def test_freezing():
    learn = mk(splitter=split)
    everything = trainable(learn.model)
    # norms of frozen groups are trained
    assert trainable(learn.freeze().model)==['free', 'norm.weight', 'norm.bias', 'head.weight', 'head.bias']
    assert trainable(learn.unfreeze().model)==everything==trainable(learn.freeze_to(0).model)
    assert trainable(learn.freeze_to(1).model)==trainable(learn.freeze_to(-1).model)
    learn.train_bn = False
    assert trainable(learn.freeze().model)==['free', 'head.weight', 'head.bias']
    assert trainable(learn.freeze_to(2).model)==['free']

def test_frozen_weights_stay_and_the_optimizer_remembers():
    learn = mk(partial(torch.optim.Adam, lr=.1), splitter=split, train_bn=False).fit(1)
    state = {id(p):int(s['step']) for p,s in learn.opt.state.items()}
    before = weights(learn.model.body)
    learn.freeze().fit(1)
    assert same(before, weights(learn.model.body))
    steps = {k:int(learn.opt.state[p]['step']) for k,p in learn.model.named_parameters() if p in learn.opt.state}
    assert (steps=={'body.weight':3, 'body.bias':3, 'norm.weight':3, 'norm.bias':3, 'head.weight':6, 'head.bias':6}
        and {*state.values()}=={3})
    learn.unfreeze().fit(1)
    assert not same(before, weights(learn.model.body))

def test_what_was_frozen_before_the_optimizer_was_made_can_be_unfrozen():
    learn = mk()
    for p in learn.model.body.parameters(): p.requires_grad_(False)
    learn.fit(1)
    before = weights(learn.model.body)
    learn.model.body.requires_grad_(True)
    assert not same(before, weights(learn.fit(1).model.body))
    assert len(trainable_params(learn.model))==7 and len(params(learn.model))==7

class LoRA(nn.Module):
    "A layer that was trained before, and a low-rank change of it"
    def __init__(self, lin):
        super().__init__()
        self.lin,self.a,self.b = lin.requires_grad_(False),nn.Linear(lin.in_features, 1, bias=False),nn.Linear(1,
            lin.out_features, bias=False)
    def forward(self, x): return self.lin(x)+self.b(self.a(x))

def lora():
    torch.manual_seed(0)
    model = nn.Sequential(LoRA(nn.Linear(1,4)), nn.ReLU(), nn.Linear(4,1))
    return synth_learner(model=model, splitter=lambda m: [list(m[0].parameters()), list(m[2].parameters())])

untrained = ['0.lin.weight','0.lin.bias']
frozen_fits = dict(unfreeze=lambda o: o.unfreeze().fit(1), freeze=lambda o: o.freeze().unfreeze().fit(1),
    twice=lambda o: o.freeze_to(2).freeze_to(1).freeze_to(0).fit(1), fine_tune=lambda o: o.fine_tune(1),
    schedule=lambda o: o.fit(3, cbs=FreezeSchedule({0: -1, 2: 0})),
    copied=lambda o: copy.deepcopy(o.freeze()).unfreeze().fit(1))
@pytest.mark.parametrize('name', frozen_fits)
def test_what_was_frozen_by_hand_stays_frozen(name):
    before,learn = weights(lora().model[0].lin),frozen_fits[name](lora())
    assert {k for k,p in learn.model.named_parameters() if not p.requires_grad}=={*untrained}
    assert same(before, weights(learn.model[0].lin)) and not same(weights(lora().model[0].a), weights(learn.model[0].a))

def test_a_fit_that_resumes_in_another_process_knows_what_was_frozen_by_hand(tmp_path):
    def stop(learn): learn.at_pause(learn.stop_for_now, stops=True)
    cb = on(event.before_batch(once=3))(stop)
    whole,learn = lora().fit(2, cbs=FreezeSchedule({0: -1, 1: 0})),lora()
    learn.fit(2, cbs=[FreezeSchedule({0: -1, 1: 0}), cb]).save_state(tmp_path/'state.pt')
    again = lora().load_state(tmp_path/'state.pt')
    assert trainable(again.model)==['2.weight','2.bias']
    again.resume(cbs=[FreezeSchedule({0: -1, 1: 0}), on(event.before_batch(once=3))(stop)])
    assert (trainable(again.model)==['0.a.weight','0.b.weight','2.weight','2.bias']
        and same(weights(whole.model), weights(again.model)))

def test_what_is_freed_by_hand_can_be_frozen_again():
    learn = lora().freeze()
    learn.model[0].a.requires_grad_(True)
    assert (trainable(learn.model)[0]=='0.a.weight' and trainable(learn.freeze().model)==['2.weight','2.bias']
        and trainable(learn.unfreeze().model)==['0.a.weight','0.b.weight','2.weight','2.bias'])

def test_what_an_exported_learner_has_frozen_can_be_unfrozen_and_what_was_by_hand_stays(tmp_path):
    lora().freeze().export(tmp_path/'f.pkl')
    again = load_learner(tmp_path/'f.pkl', trust=True)
    assert trainable(again.model)==['2.weight','2.bias']
    assert trainable(again.unfreeze().model)==['0.a.weight','0.b.weight','2.weight','2.bias']

def compiled(m): return torch.compile(m, backend='eager')
def compiled_in_part(m): m[0] = compiled(m[0]); return m

@pytest.mark.parametrize('before', [lambda m: m, compiled], ids=['plain','compiled'])
@pytest.mark.parametrize('wrap', [compiled, nn.DataParallel, compiled_in_part, lambda m: nn.DataParallel(compiled(m))],
    ids=['compiled','parallel','part','both'])
def test_what_was_frozen_is_known_in_a_model_that_is_wrapped_or_unwrapped_later(wrap, before, recwarn):
    learn = lora()
    inner,learn.model = learn.model,before(learn.model)
    learn.splitter = lambda m: [params(unwrapped(m)[0]), params(unwrapped(m)[2])]
    learn.freeze()
    learn.model = wrap(inner)
    assert len(trainable(learn.unfreeze().model))==4 and len(trainable(learn.freeze().model))==2
    learn.model = inner
    assert trainable(learn.unfreeze().model)[-2:]==['2.weight','2.bias'] and len(trainable(inner))==4
    assert not [o for o in recwarn if 'not by this Learner' in str(o.message)]

@pytest.mark.parametrize('train_bn', [True, False])
@pytest.mark.parametrize('by', ['hand','Learner'])
@pytest.mark.parametrize('f', [Learner.unfreeze, lambda o: o.fine_tune(1)], ids=['unfreeze','fine_tune'])
def test_a_body_that_was_frozen_before_is_named_once_where_it_is_to_train(f, by, train_bn):
    m = nn.Sequential(nn.Sequential(nn.Linear(4,4), nn.BatchNorm1d(4)), nn.Linear(4,2))
    dls = DataLoaders([(torch.randn(4,4), torch.tensor([0,1,0,1]))], device='cpu')
    def mk(): return Learner(dls, m, nn.CrossEntropyLoss(), train_bn=train_bn,
        splitter=lambda m: [params(m[0]), params(m[1])])
    if by=='Learner': mk().freeze()
    else: m[0].requires_grad_(False)
    with pytest.warns(UserWarning, match='`0.0.weight`, `0.0.bias`.*not by this Learner') as seen: f(mk())
    assert len(seen)==1 and '0.0.weight' not in trainable(m)
    m.requires_grad_(True)
    with warnings.catch_warnings(): warnings.simplefilter('error'); f(mk())

def test_freezing_needs_no_optimizer_and_survives_a_new_one():
    learn = mk(splitter=split).freeze()
    assert learn.opt is None
    frozen = trainable(learn.model)
    assert trainable(learn.fit(1, reset_opt=True).model)==frozen

# State
@pytest.mark.parametrize('opt_func', [Adam, SGD, RMSProp, torch.optim.AdamW, partial(SGD, mom=.9, wd=.1)],
    ids=['Adam','SGD','RMSProp','AdamW','decay'])
def test_state_dict_goes_to_another_learner_and_back(opt_func):
    a,b = (mk(opt_func, splitter=split, lr=[.1,.2], wd=.1) for _ in range(2))
    a.fit(1)
    b.create_opt(); b.fit(0)
    b.model.load_state_dict(a.model.state_dict())
    b.opt.load_state_dict(copy.deepcopy(a.opt.state_dict()))
    assert ({k:get_hyper(b.opt, k) for k in hypers(b.opt)}=={k:get_hyper(a.opt, k) for k in hypers(a.opt)}
        and n_groups(b.opt)==2)
    assert same(weights(a.fit(2).model), weights(b.fit(2).model))

def test_groups_of_other_splitters():
    model = Net()
    assert [len(o) for o in param_groups(model)]==[7] and [len(o) for o in param_groups(model, split)]==[4, 2]
    assert [len(o) for o in param_groups(model, lambda m: (o.parameters() for o in (m.body, m.head)))]==[2, 2]
    assert [len(o) for o in param_groups(model, lambda m: m.parameters())]==[7]

def test_several_optimizers_in_one_fit():
    "As a GAN does it: the callback owns the steps"
    class Alternate(Callback):
        def before_fit(self): self.opts = [torch.optim.SGD(g, lr=.1) for g in split(self.model)]
        def before_step(self): self.opts[self.iter%2].step(); raise CancelStepException
    learn = mk(torch.optim.SGD, cbs=Alternate)
    a = weights(learn.model.head)
    learn.fit(1)
    model = Net(); torch.manual_seed(0); model = Net()
    opts = [torch.optim.SGD(g, lr=.1) for g in split(model)]
    for i,(x,y) in enumerate(bs()): F.mse_loss(model(x), y).backward(); opts[i%2].step(); model.zero_grad()
    assert same(weights(learn.model), weights(model)) and not same(a, weights(learn.model.head))

def _sgd(): return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=.1)
@pytest.mark.parametrize('f,error,match',
    [(lambda: OptimList(), ValueError, 'one optimizer or more, but got none'),
        (lambda: OptimList(torch.optim.SGD), TypeError, 'made of their parameters, but got <class'),
    (lambda: OptimList(_sgd(), every=0), ValueError, '`every` counts steps: whole numbers, 1 or more, but got 0'),
    (lambda: OptimList(_sgd(), every=-1), ValueError, 'but got -1'),
    (lambda: OptimList(_sgd(), every=1.5), ValueError, 'but got 1.5'),
    (lambda: OptimList(_sgd(), _sgd(), every=[1]), ValueError,
        r'`every` is one number, or one for each of 2 optimizers, but got \[1\]'),
        (lambda: make_opt([torch.optim.SGD], [[torch.zeros(1)]]), TypeError,
            r'`opt_func` is a class .* Several as one: `lambda groups: OptimList')], ids=shown)
def test_several_optimizers_are_checked(f, error, match):
    with pytest.raises(error, match=match): f()

@pytest.mark.parametrize('make',
    [partial(SGD, mom=.9, wd=.1), partial(SGD, mom=.9, wd=.1, decouple_wd=False), Adam,
        partial(Adam, decouple_wd=False)], ids=['sgd','sgd_l2','adam','adam_l2'])
def test_a_fused_step_is_equal_up_to_rounding(make):
    "also with gradients scaled or clipped; and a fit that was stopped resumes to the bit"
    plain,fused = make,partial(make, fused=True)
    assert (all(g['fused'] for g in fused([nn.Parameter(torch.ones(1))]).param_groups)
        and not any(g['fused'] for g in plain([nn.Parameter(torch.ones(1))]).param_groups))
    for cbs in ((), (GradientClip(.1), MixedPrecision('bf16'), GradientAccumulation(8))):
        a,b = (mk(f, lr=.1, cbs=copy.deepcopy(cbs)).fit(4) for f in (plain, fused))
        assert close(weights(a.model), weights(b.model)) and not close(weights(a.model), weights(mk().model))
    learn = mk(fused, lr=.1, cbs=on('after_step',
        once=5)(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))).fit(4)
    assert learn.at is not None
    assert same(weights(learn.resume().model), weights(mk(fused, lr=.1).fit(4).model))

# Gradients are dropped without an entry for torch's profiler, unless the optimizer has a `zero_grad` of its own
class Counting(torch.optim.SGD):
    n = 0
    def zero_grad(self, set_to_none=True): self.n += 1; super().zero_grad(set_to_none)

def assigned(ps, lr=.1):
    opt = torch.optim.SGD(ps, lr=lr)
    opt.n,opt.zero_grad = 0,lambda: setattr(opt, 'n', opt.n+1)
    return opt

@pytest.mark.parametrize('opt_func', [Counting, assigned, lambda ps, lr=.1: OptimList(Counting(ps, lr=lr))])
def test_an_own_zero_grad_is_called(opt_func):
    learn = synth_learner(opt_func=opt_func, n_train=3)
    with learn.no_logging(): learn.fit(1)
    opt = learn.opt.opts[0] if isinstance(learn.opt, OptimList) else learn.opt
    assert opt.n==4 # after each batch, and at the end of training

def test_a_zero_grad_that_was_patched_for_all_optimizers_is_called(monkeypatch):
    n,was = [],torch.optim.Optimizer.zero_grad
    monkeypatch.setattr(torch.optim.Optimizer, 'zero_grad', lambda self, *args: (n.append(1), was(self, *args)))
    with (learn := synth_learner(n_train=3)).no_logging(): learn.fit(1)
    assert len(n)==4

def test_gradients_of_all_groups_are_dropped():
    learn,seen = synth_learner(opt_func=torch.optim.SGD),[]
    learn.create_opt()
    extra = torch.nn.Parameter(torch.ones(2))
    learn.opt.add_param_group(dict(params=[extra]))
    def see(cb): seen.append([p.grad is None for p in (extra, *cb.learn.model.parameters())])
    def before_step(cb): extra.grad = torch.ones(2)
    with learn.no_logging(): learn.fit(1, cbs=Callback(before_step=before_step, after_zero_grad=see))
    assert seen and all(map(all, seen))

# Another device
@pytest.fixture
def moves_in_place():
    "Have `module.to('meta')` keep the parameters, as a GPU does"
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)

def devices(opt):
    tensors = (v for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor))
    return {v.device.type for v in tensors if v.ndim}
on_meta = partial(DataLoaders, [tuple(o.to('meta') for o in b) for b in bs()], device='meta')
only = dict(default_cbs=False, cbs=TrainEvalCallback)

@pytest.mark.parametrize('opt_func', [partial(SGD, mom=.9), Adam, torch.optim.LBFGS,
    lambda gs: OptimList(SGD(gs[0]['params'], mom=.9))], ids=['sgd','adam','lbfgs','several'])
def test_what_an_optimizer_remembers_goes_with_the_model(moves_in_place, opt_func):
    learn = mk(opt_func, **only).fit(1)
    assert devices(learn.opt)=={'cpu'}
    learn.dls = on_meta()
    learn.fit(0) # LBFGS would read the loss
    assert devices(learn.opt)=={'meta'}

@pytest.mark.parametrize('fit', [Learner.fit, Learner.fit_one_cycle, Learner.fine_tune])
@pytest.mark.parametrize('ready', [False, True])
def test_an_optimizer_that_has_a_state_from_the_beginning_goes_with_the_model(moves_in_place, fit, ready):
    learn = mk(torch.optim.Adagrad, splitter=split, **only)
    if ready: learn.opt_func = torch.optim.Adagrad([dict(params=ps) for ps in split(learn.model)])
    learn.dls = on_meta()
    fit(learn, 1)
    assert devices(learn.opt)=={'meta'}

class Remembers(torch.optim.SGD):
    "Remembers more than a dict for each parameter, some of it elsewhere on purpose"
    def step(self, closure=None):
        super().step(closure)
        self.state['global'] = dict(norms=torch.zeros(3))
        self.state['n'] = 1
        for p in self.param_groups[0]['params'][:1]: self.state[p] = torch.ones(2, device='meta')
        for p in self.param_groups[0]['params'][1:]: self.state[p]['far'] = torch.ones(2, device='meta')

def test_what_an_optimizer_keeps_elsewhere_stays_there_while_the_model_does():
    learn = mk(Remembers, **only).fit(1).fit(1)
    kept = [v['far'] for v in learn.opt.state.values() if isinstance(v, dict) and 'far' in v]
    assert kept and {o.device.type for o in kept}=={'meta'}

def test_what_an_optimizer_shares_with_its_state_stays_shared():
    class Shares(torch.optim.SGD):
        def __init__(self, ps, lr=.1):
            super().__init__(ps, lr)
            self.steps = []
            for p in self.param_groups[0]['params']: self.state[p]['steps'] = self.steps
        def step(self, closure=None): self.steps.append(1); return super().step(closure)
    learn = mk(Shares, **only).fit(1)
    assert learn.opt.steps and all(v['steps'] is learn.opt.steps for v in learn.opt.state.values())

def test_what_goes_with_the_model_keeps_its_type():
    p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device='meta'))
    opt = SGD([p], mom=.9)
    opt.state[p] = dict(avg=torch.ones(2), codes=[torch.ones(2, dtype=torch.uint8)], step=torch.tensor(3.))
    go_with_params(opt)
    avg,(codes,),step = opt.state[p].values()
    assert (avg.dtype,avg.device.type,codes.dtype,codes.device.type)==(torch.float32,'meta',torch.uint8,'meta')
    assert step.device.type=='cpu'

def test_numbers_stay_where_torch_reads_them():
    "A step would wait for each on a device"
    p = nn.Parameter(torch.ones(2, device='meta'))
    opt = torch.optim.NAdam([p])
    opt.state[p] = dict(step=torch.tensor(1.), mu_product=torch.tensor(.9), exp_avg=torch.ones(2))
    go_with_params(opt)
    assert [v.device.type for v in opt.state[p].values()]==['cpu','cpu','meta']

@pytest.mark.parametrize('v', [.1, 1, [.1]], ids=str)
def test_what_is_no_optimizer_is_named_where_a_value_is_set(v):
    with pytest.raises(TypeError, match='but got None.*`learn.create_opt'): set_hyper(None, 'lr', v)
