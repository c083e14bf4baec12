"Optimizers that begin anew, several as one, and what each setting of the factories does"
import io,pickle,re
from contextlib import nullcontext
from copy import copy,deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from learner.model.hypers import all_hypers,parts_of

class TwoParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.head = nn.Sequential(nn.Linear(1, 3), nn.LayerNorm(3)),nn.Linear(3, 1)
    def forward(self, x): return self.head(self.body(x))

def parts(m): return [list(m.body.parameters()),list(m.head.parameters())]

def several(m, every=1):
    return OptimList(torch.optim.Adam(m.body.parameters(), lr=.01),
        torch.optim.SGD(m.head.parameters(), lr=.01, momentum=.9), every=every)

def made(opt, n_train=3, **kwargs):
    "A learner with a ready optimizer: `opt(model)`"
    torch.manual_seed(0)
    m = TwoParts()
    return synth_learner(n_train=n_train, n_valid=0, model=m, opt_func=opt(m), lr=None, **kwargs)

def weights(learn): return {k:v.clone() for k,v in learn.model.state_dict().items()}
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

# Beginning anew
ready = dict(one=lambda m: torch.optim.Adam(m.parameters(), lr=.01), several=several,
    seldom=lambda m: several(m, every=(2,1)))

@pytest.mark.parametrize('kind', ready)
def test_a_ready_optimizer_that_is_reset_remembers_nothing(kind):
    "Three batches, so that one that steps every second time is in between when the second fit begins"
    learn = made(ready[kind]).fit(1)
    assert learn.opt.state
    learn.create_opt()
    assert not learn.opt.state
    other = made(ready[kind])
    other.model.load_state_dict(learn.model.state_dict())
    for o in (learn,other): torch.manual_seed(1); o.fit(1)
    assert same(weights(learn), weights(other))
    learn.fit(1, reset_opt=True)
    assert all(s['step']<=3 for s in learn.opt.state.values() if 'step' in s)

@pytest.mark.parametrize('kind', ready)
def test_a_ready_optimizer_keeps_what_it_remembers_without_a_reset(kind):
    a,b = made(ready[kind]),made(ready[kind])
    torch.manual_seed(1); a.fit(2)
    torch.manual_seed(1); b.fit(1).fit(1)
    assert same(weights(a), weights(b))

# Several as one
def test_each_of_several_steps_when_it_is_its_turn_with_the_gradients_of_then():
    "By hand: Adam steps with the second and fourth gradient, SGD with each"
    learn = made(lambda m: several(m, every=(2,1)), n_train=4)
    ref = made(lambda m: several(m, every=(2,1))).model
    one,two = torch.optim.Adam(ref.body.parameters(), lr=.01),torch.optim.SGD(ref.head.parameters(), lr=.01,
        momentum=.9)
    batches = []
    learn.fit(1, cbs=Callback(after_batch=lambda self: batches.append((self.x,self.y))))
    for i,(x,y) in enumerate(batches, 1):
        ref.zero_grad()
        F.mse_loss(ref(x), y).backward()
        if i%2==0: one.step()
        two.step()
    for (k,a),b in zip(learn.model.state_dict().items(), ref.state_dict().values()):
        torch.testing.assert_close(a, b, msg=k)

def test_the_state_of_several_goes_to_another_optimizer_and_back():
    a,b = made(ready['seldom']).fit(1),made(ready['seldom'])
    b.create_opt()
    b.model.load_state_dict(a.model.state_dict())
    b.opt.load_state_dict(deepcopy(a.opt.state_dict())) # torch shares tensors
    for o in (a,b): torch.manual_seed(1); o.fit(1)
    assert same(weights(a), weights(b))
    with pytest.raises(ValueError): b.opt.load_state_dict(dict(n=0, opts=a.opt.state_dict()['opts'][:1]))
    with pytest.raises(TypeError): b.opt.add_param_group(dict(params=[nn.Parameter(torch.ones(1))]))

def test_several_take_a_closure_as_one_optimizer_does():
    "It computes loss and gradients once, also where they are switched off, before those step whose turn it is"
    p,q = one(),one()
    opt = OptimList(SGD([p], lr=.1), SGD([q], lr=.2), every=(1,2))
    def closure():
        opt.zero_grad()
        loss = (p+q).sum()
        loss.backward()
        return loss
    with torch.no_grad(): losses = [opt.step(closure).item() for _ in range(2)]
    assert losses==pytest.approx([2,1.9]) and [p.item(),q.item()]==pytest.approx([.8,.8]) and opt.step() is None

@pytest.mark.parametrize('when', ['pre','post'])
def test_a_hook_of_a_step_belongs_to_one_of_several(when):
    opt,steps = OptimList(SGD([one()]), SGD([one()]), every=(1,2)),[]
    name = f'register_step_{when}_hook'
    with pytest.raises(TypeError, match=rf'hook to one of the optimizers: `opt.opts\[i\].{name}\(…\)`'):
        getattr(opt, name)(print)
    getattr(opt.opts[1], name)(lambda *args: steps.append(opt.n))
    for _ in range(4): opt.step()
    assert steps==[2,4]

def test_settings_of_several_are_written_to_each_of_them():
    learn = made(several, splitter=parts)
    learn.create_opt()
    learn.set_hyper('lr', [.1,.2])
    assert [g['lr'] for o in learn.opt.opts for g in o.param_groups]==[.1,.2] and get_hyper(learn.opt, 'lr')==[.1,.2]
    learn.opt.zero_grad()
    assert all(p.grad is None for p in learn.model.parameters())

ready_made = dict(one=lambda m: SGD(m.parameters(), lr=.1),
    groups=lambda m: torch.optim.AdamW([dict(params=o) for o in parts(m)], lr=.1, weight_decay=0.),
    several=lambda m: OptimList(SGD(m.body.parameters(), lr=.1), torch.optim.Adam(m.head.parameters(), lr=.2)))

@pytest.mark.parametrize('kind', ready_made)
def test_weight_decay_can_be_given_to_a_fit_with_a_ready_optimizer(kind):
    "Norms and biases are spared, each group keeps its learning rate, and the optimizer its decay of before"
    learn = made(ready_made[kind])
    learn.create_opt()
    lrs,n,seen = get_hyper(learn.opt, 'lr'),n_groups(learn.opt),[]
    @on(event.after_step)
    def look(learn): seen.append((get_hyper(learn.opt, 'wd'),get_hyper(learn.opt, 'lr')))
    learn.fit(1, wd=.2, cbs=look)
    assert seen==[([.2]*n,lrs)]*3 and (get_hyper(learn.opt, 'wd'),get_hyper(learn.opt, 'lr'))==([0.]*n,lrs)
    spared = {id(p) for g in learn.opt.param_groups if g.get('spared') for p in g['params']}
    assert spared=={id(p) for k,p in learn.model.named_parameters() if k.endswith('bias') or k.startswith('body.1')}
    learn.fit(1, wd=.2).fit(1)
    assert (get_hyper(learn.opt, 'wd'),get_hyper(learn.opt, 'lr'))==([0.]*n,lrs)

@pytest.mark.parametrize('kind', ready_made)
def test_a_fit_with_weight_decay_and_a_ready_optimizer_resumes_from_a_file(kind, tmp_path):
    def fit(cbs, **kwargs): return made(ready_made[kind], path=tmp_path).fit(2, wd=.2, cbs=cbs, **kwargs)
    whole = fit([])
    with pytest.raises(InterruptedError):
        fit([Checkpoint(every=1, unit='iter', on_exc=False), Raise('after_pred', InterruptedError, 5)])
    learn = fit([Checkpoint()], resume=True)
    assert same(weights(learn), weights(whole))

# A ready optimizer with weight decay
decaying = dict(adamw=lambda m: torch.optim.AdamW(m.parameters(), lr=.1, weight_decay=.3),
    sgd=lambda m: SGD(m.parameters(), lr=.1, mom=.9, wd=.3),
    several=lambda m: OptimList(SGD(m.body.parameters(), lr=.1, wd=.2), torch.optim.AdamW(m.head.parameters(), lr=.2)))

@pytest.mark.parametrize('decay', ['given','scheduled'])
@pytest.mark.parametrize('kind', decaying)
def test_that_norms_and_biases_of_a_ready_optimizer_decay_no_longer_is_told_once(kind, decay, recwarn):
    "And they do where `wd_bn_bias` is set"
    def fit(learn):
        schedule = [ParamScheduler(dict(wd=SchedLin(.4, .6)))] if decay=='scheduled' else []
        return learn.fit(1, wd=.5 if decay=='given' else None, cbs=schedule)
    fit(made(decaying[kind], wd_bn_bias=True))
    assert not recwarn.list
    told = 'norms and biases are spared from then on: .*wd_bn_bias=True'
    with pytest.warns(match=told): learn = fit(made(decaying[kind]))
    recwarn.clear()
    fit(learn)
    assert not recwarn.list

@pytest.mark.parametrize('how', ['deepcopy','pickle','export','assigned'])
@pytest.mark.parametrize('kind', decaying)
def test_a_copy_of_a_ready_optimizer_decays(kind, how, tmp_path):
    def new(): return made(decaying[kind], path=tmp_path)
    if how=='deepcopy': copy = deepcopy(new())
    if how=='pickle': copy = pickle.loads(pickle.dumps(new()))
    if how=='export':
        copy = load_learner(new().fit(0).export('here.pkl'), trust=True)
        copy.dls = new().dls
    if how=='assigned':
        copy = new()
        copy.model,copy.opt = deepcopy((copy.model, copy.opt_func))
    def trained(learn):
        torch.manual_seed(5)
        return weights(learn.fit(2))
    assert same(trained(copy), trained(new()))

class Hides(torch.optim.Optimizer):
    "Takes the steps of another optimizer, which it holds where nobody looks, with its groups"
    def __init__(self, opt):
        super().__init__(opt.param_groups, {})
        self.held,self.param_groups = SimpleNamespace(opt=opt),opt.param_groups
    def step(self, closure=None): return self.held.opt.step()

def test_a_wrapper_of_an_optimizer_that_decays_does_not_decay_again():
    def fit(wrap): return weights(made(lambda m: wrap(SGD(m.parameters(), lr=.1, wd=.3))).fit(2))
    assert same(fit(Hides), fit(lambda opt: opt))

# Factories
def steps(opt_func, n=7, **kwargs):
    "Weights after `n` steps with the gradient of a square"
    w = nn.Parameter(torch.tensor([1.,-2.,3.]))
    opt = opt_func([w], lr=.1, **kwargs)
    for _ in range(n):
        opt.zero_grad()
        (w**2/2).sum().backward()
        opt.step()
    return w.detach()

def shrunk(opt_func, lr=.1, wd=.1, n=7, **kwargs):
    "Decoupled decay by hand: shrink, then step"
    w = nn.Parameter(torch.tensor([1.,-2.,3.]))
    opt = opt_func([w], lr=lr, **kwargs)
    for _ in range(n):
        opt.zero_grad()
        (w**2/2).sum().backward()
        with torch.no_grad(): w.mul_(1-lr*wd)
        opt.step()
    return w.detach()

theirs = {SGD: (torch.optim.SGD, dict(momentum=.5), dict(mom=.5)),
    RMSProp: (torch.optim.RMSprop, dict(momentum=.5, alpha=.9, eps=1e-3), dict(mom=.5, sqr_mom=.9, eps=1e-3)),
    Adam: (torch.optim.Adam, dict(betas=(.8,.9), eps=1e-3), dict(mom=.8, sqr_mom=.9, eps=1e-3)),
    RAdam: (torch.optim.RAdam, dict(betas=(.8,.9), eps=1e-3), dict(mom=.8, sqr_mom=.9, eps=1e-3))}

@pytest.mark.parametrize('f', theirs, ids=lambda f: f.__name__)
def test_each_setting_of_a_factory_reaches_torch(f):
    cls,theirs_,ours = theirs[f]
    penalty,beside,none = (steps(f, **ours, **o)
        for o in (dict(wd=.1, decouple_wd=False), dict(wd=.1, decouple_wd=True), dict(wd=0.)))
    torch.testing.assert_close(penalty, steps(cls, weight_decay=.1, **theirs_))
    torch.testing.assert_close(beside, shrunk(cls, **theirs_))
    torch.testing.assert_close(none, steps(cls, weight_decay=0, **theirs_))
    for a,b in ((penalty,beside), (penalty,none), (beside,none)): assert (a-b).abs().max()>1e-5
    for k in ours:
        assert (steps(f, **ours, wd=0.)-steps(f, **{n:v for n,v in ours.items() if n!=k}, wd=0.)).abs().max()>1e-5, k

@pytest.mark.parametrize('f', theirs, ids=lambda f: f.__name__)
@pytest.mark.parametrize('decouple', [True,False])
def test_weight_decay_can_be_changed_between_steps(f, decouple):
    w = nn.Parameter(torch.ones(3))
    opt = f([w], lr=.1, wd=.1, decouple_wd=decouple)
    for wd in (.1,0.,.5):
        set_hyper(opt, 'wd', wd)
        assert get_hyper(opt, 'wd')==[wd]
        before = w.detach().clone()
        w.grad = torch.zeros(3)
        opt.step()
        # the gradient is zero, so that nothing else moves it
        if decouple: torch.testing.assert_close(w.detach(), before*(1-.1*wd))
    assert f([w], lr=.1, wd=.3, decouple_wd=decouple).step() is None

# Groups
def test_a_learning_rate_of_each_group_is_that_of_its_parameters():
    learn = synth_learner(model=TwoParts(), splitter=parts, lr=[0.,.1], n_train=2)
    before = weights(learn)
    after = weights(learn.fit(1))
    assert {k for k in before if not torch.equal(before[k], after[k])}=={k for k in before if k.startswith('head')}

def test_a_setting_of_each_group_stays_with_it_when_decay_splits_them():
    learn = synth_learner(model=TwoParts(), splitter=parts, lr=[.1,.2], wd=.1)
    learn.create_opt()
    learn.set_hyper('wd', [.1,.2]); learn.set_hyper('mom', [.5,.6])
    whose = {id(p):g for g in learn.opt.param_groups for p in g['params']}
    for k,p in learn.model.named_parameters():
        g,i = whose[id(p)],int(k.startswith('head'))
        assert (g['lr'],g['momentum'])==((.1,.5),(.2,.6))[i]
        assert g['decoupled_wd']==(0. if k.endswith('bias') or k.startswith('body.1') else (.1,.2)[i])
    assert (get_hyper(learn.opt, 'lr'),get_hyper(learn.opt, 'wd'),n_groups(learn.opt))==([.1,.2],[.1,.2],2)

@pytest.mark.parametrize('n,trained',
    [(0, ('body','head')), (1, ('head',)), (-1, ('head',)), (2, ()), (-2, ('body','head'))])
def test_freezing_counts_from_either_end(n, trained):
    learn = synth_learner(model=TwoParts(), splitter=parts, train_bn=False)
    learn.freeze_to(n)
    assert {k.split('.')[0] for k,p in learn.model.named_parameters() if p.requires_grad}=={*trained}
    assert {id(p) for p in trainable_params(learn.model)}=={id(p)
        for k,p in learn.model.named_parameters() if k.startswith(trained or ('-',))}

# Groups and optimizers that are added during a fit
@pytest.mark.parametrize('method,ev', [('fit','before_epoch'), ('fit','after_batch'), ('fit_one_cycle','before_epoch')])
def test_a_group_that_is_added_during_a_fit_is_trained(method, ev):
    "The others have what they had before, at its end; decay has split one of them"
    learn = synth_learner(n_train=3, n_valid=0, model=TwoParts(), opt_func=torch.optim.SGD, lr=.1,
        splitter=lambda m: [[*m.body.parameters()]])
    learn.create_opt()
    n,head = len(learn.opt.param_groups),learn.model.head.weight.detach().clone()
    def adds(learn):
        if learn.epoch==1 and len(learn.opt.param_groups)==n:
            learn.opt.add_param_group(dict(params=[*learn.model.head.parameters()], lr=.02))
    getattr(learn, method)(3, .01, cbs=on(getattr(event, ev))(adds))
    assert [g['lr'] for g in learn.opt.param_groups[:n]]==[.1]*n and learn.opt_step==9
    assert not torch.equal(head, learn.model.head.weight)
    learn.set_hyper('lr', [.3, .4])
    assert [g['lr'] for g in learn.opt.param_groups]==[*[.3]*n, .4]

@pytest.mark.parametrize('wd', [None, .1])
@pytest.mark.parametrize('how', ['memory','file','rewind'])
@pytest.mark.parametrize('method', ['fit','fit_one_cycle'])
def test_a_fit_that_has_added_a_group_resumes(tmp_path, method, how, wd):
    """The weights are those of a run that was not stopped; in another learner, the group has to be there before. The
    group has its own decay, of its bias too, where decay spares the other biases"""
    def run(name, *cbs, **kwargs):
        torch.manual_seed(0)
        learn = synth_learner(n_train=4, n_valid=1, model=TwoParts(), opt_func=torch.optim.SGD, lr=.1,
            splitter=lambda m: [[*m.body.parameters()]], path=tmp_path/name, wd=wd)
        def adds(learn):
            if learn.epoch==1 and n_groups(learn.opt)==1: add(learn)
        learn.create_opt()
        if kwargs: add(learn)
        return getattr(learn, method)(3, .01, cbs=[Callback(before_epoch=adds), *cbs], **kwargs)
    def add(learn): learn.opt.add_param_group(dict(params=[*learn.model.head.parameters()], lr=.02, **decay))
    decay = {} if wd is None else dict(weight_decay=.3)
    whole = run('whole')
    class Stop(Callback):
        watches = True
        def after_batch(self):
            if self.training and self.train_iter==5: self.learn.stop_soon()
    if how=='memory': learn = run('a', Stop()).resume()
    elif how=='rewind': learn = run('a', Rewind(every=3)).rewind(6).resume()
    else:
        run('a', Checkpoint(), Stop())
        learn = run('a', Checkpoint(), resume=True)
    assert same(weights(learn), weights(whole)) and learn.opt_step==12
    assert len(learn.opt.param_groups)==len(whole.opt.param_groups) and learn.opt.param_groups[0]['lr']==.1

def test_a_file_of_a_fit_that_has_added_a_group_says_that_it_has_to_be_there(tmp_path):
    learn = synth_learner(path=tmp_path).fit(1)
    learn.opt.add_param_group(dict(params=[nn.Parameter(torch.ones(1))]))
    file = learn.save_state('run')
    with pytest.raises(ValueError, match=r'has [23] parameter groups.*has [12]: .*`learn.opt.add_param_group\(…\)`'):
        synth_learner(path=tmp_path).load_state(file)

def test_a_state_without_decay_is_loaded_where_decay_has_split_groups_and_one_was_added(tmp_path):
    "The state of each parameter is that of the parameter with its name"
    def made(**kwargs):
        learn = synth_learner(n_train=2, n_valid=0, model=TwoParts(), opt_func=Adam, path=tmp_path,
            splitter=lambda m: [[*m.body.parameters()]], **kwargs)
        learn.create_opt()
        return learn
    def add(learn): learn.opt.add_param_group(dict(params=[*learn.model.head.parameters()], lr=.02))
    a,b = made(),made(wd=.1).fit(1)
    for o in (a, b): add(o)
    a.fit(1)
    b.load(a.save('run'))
    def state(learn): return {k:learn.opt.state[p] for k,p in learn.model.named_parameters()}
    assert all(same(state(b)[k], v) for k,v in state(a).items())
    assert [len(g['params']) for g in b.opt.param_groups]==[1, 3, 2] # body.0.weight has decay

@pytest.mark.parametrize('by_hand', ['create_opt','assigned','none'])
def test_an_optimizer_that_is_made_by_hand_before_a_resume_spares_norms_and_biases(by_hand):
    class Stop(Callback):
        def after_batch(self):
            if self.train_iter==2: self.learn.stop_soon()
    learn = synth_learner(n_train=4, n_valid=0, model=TwoParts(), opt_func=torch.optim.SGD, lr=.01)
    learn.fit(1, wd=.1, cbs=Stop)
    if by_hand=='create_opt': learn.create_opt()
    else: learn.opt = None if by_hand=='none' else torch.optim.SGD(learn.model.parameters(), lr=.01)
    seen = []
    def note(learn): seen.append({id(p):g['weight_decay'] for g in learn.opt.param_groups for p in g['params']})
    with learn.added_cbs(Callback(after_step=lambda cb: note(cb.learn))): learn.resume()
    body,head = learn.model.body[0],learn.model.head
    decayed = {id(body.weight), id(head.weight)}
    assert len(seen)==2 and all(o=={id(p):.1*(id(p) in decayed) for p in learn.model.parameters()} for o in seen)

@pytest.mark.parametrize('i', [0, 1])
def test_a_group_that_is_added_to_one_of_two_optimizers_has_a_number_of_its_own(tmp_path, i):
    "Also in a part; so a state in which decay has split it is loaded where it has not"
    def opts(params, lr=.1):
        a,b = params
        return OptimList(torch.optim.SGD([a], lr=lr), torch.optim.Adam([b], lr=lr))
    def made():
        model = nn.ModuleDict(dict(a=nn.Linear(1, 3), b=nn.Linear(3, 3), c=nn.Linear(3, 1)))
        model.forward = lambda x: model.c(model.b(model.a(x)))
        learn = synth_learner(n_train=2, n_valid=0, model=model, opt_func=opts, lr=.1, path=tmp_path,
            splitter=lambda m: [[*m.a.parameters()], [*m.b.parameters()]])
        learn.create_opt()
        learn.opt.opts[i].add_param_group(dict(params=[*model.c.parameters()], lr=.02))
        return learn
    a,b = made(),made()
    a.fit(1, wd=.1)
    b.load(a.save('run', with_opt=True))
    assert get_hyper(b.opt, 'lr')==get_hyper(a.opt, 'lr')==([.1, .1, .02] if i else [.1, .02, .1])
    def state(learn): return {k:learn.opt.opts[1].state[p] for k,p in learn.model.named_parameters() if k[0]=='b'}
    assert all(same(state(b)[k], v) for k,v in state(a).items())

def test_an_optimizer_that_is_made_during_a_fit_trains_with_its_rate_and_ends_with_its_own_settings():
    def makes(learn):
        if learn.epoch==1: learn.create_opt()
    learn = synth_learner(n_train=3, n_valid=0, opt_func=Adam, lr=.01)
    learn.fit(2, .02, cbs=on(event.before_epoch)(makes))
    assert learn.recorder.lrs==[.02]*6 and get_hyper(learn.opt, 'lr')==[.01]
    learn.fit_one_cycle(3, .02, cbs=on(event.before_epoch)(makes))
    assert get_hyper(learn.opt, 'mom')==[.9] and get_hyper(learn.opt, 'lr')==[.01]

class Wraps(torch.optim.SGD):
    "Steps with another optimizer, whose groups it has"
    def __init__(self, opt):
        super().__init__([torch.zeros(1)], lr=1.)
        self.param_groups,self.inner = opt.param_groups,opt
    def step(self): self.inner.step()

def remade(learn): learn.create_opt()
def assigned(learn): learn.opt = torch.optim.SGD(learn.model.parameters(), lr=.01, momentum=.5)
def wrapped(learn): learn.opt = Wraps(learn.opt)
def alternating(learn):
    learn.opts = getattr(learn, 'opts', None) or [torch.optim.SGD(learn.model.parameters(), .01, .5), learn.opt]
    learn.opt = learn.opts[learn.epoch%2]
@pytest.mark.parametrize('ready', [True,False])
@pytest.mark.parametrize('how', [remade,assigned,wrapped,alternating])
def test_each_optimizer_of_a_fit_ends_with_the_settings_that_it_came_with(how, ready):
    model = nn.Linear(1, 1)
    opt = partial(torch.optim.SGD, momentum=.5, weight_decay=.3)
    learn = synth_learner(n_train=3, n_valid=0, model=model, lr=.01, wd_bn_bias=True,
        opt_func=opt(model.parameters(), lr=.01) if ready else opt)
    first = learn.create_opt()
    sched = ParamScheduler(dict(mom=SchedLin(.95, .85), wd=SchedLin(.2, 0)))
    learn.fit(3, cbs=[sched, on(event.before_epoch)(lambda learn: how(learn) if learn.epoch else None)])
    for o in (first, learn.opt, *getattr(learn, 'opts', ())):
        wd = .3 if how in (remade, wrapped) or o is first else 0
        assert all_hypers(o)==dict(lr=[.01], mom=[.5], wd=[wd])

@pytest.mark.parametrize('momentum', [.9, 0], ids=['same','none'])
def test_a_schedule_resumes_as_it_was_where_the_optimizer_was_assigned_in_the_fit(momentum):
    def go(stops):
        learn = synth_learner(n_train=4, n_valid=0, lr=.01, opt_func=partial(torch.optim.SGD, momentum=.9))
        def assigns(learn):
            if learn.epoch==1 and not learn.resuming:
                learn.opt = torch.optim.SGD(learn.model.parameters(), lr=.05, momentum=momentum)
        def stop(learn):
            if stops and learn.train_iter==6: learn.stop_soon()
        learn.fit_one_cycle(3, .1, cbs=[on(event.before_epoch)(assigns), on(event.after_batch)(stop)])
        if stops: learn.resume()
        return learn.recorder.lrs,[p.tolist() for p in learn.model.parameters()]
    assert go(True)==go(False)

@dataclass
class Plain(torch.optim.SGD):
    "Equal to others of equal fields, and without a hash"
    params:list
    lr:float = .01
    def __post_init__(self): torch.optim.SGD.__init__(self, self.params, self.lr)
def test_an_optimizer_without_a_hash_trains():
    learn = synth_learner(n_train=3, n_valid=0, lr=.01, opt_func=Plain)
    assert learn.fit(1, .5).opt_step==3 and get_hyper(learn.opt, 'lr')==[.01]

@pytest.mark.parametrize('fails', [True,False])
def test_a_fit_ends_where_an_optimizer_that_it_had_has_lost_a_group(fails):
    learn,held = synth_learner(n_train=3, n_valid=0, lr=.01, model=TwoParts(), splitter=parts),[]
    def change(learn):
        if learn.epoch==1: held.append(learn.opt); learn.create_opt(); held[0].param_groups.pop()
        if learn.epoch==2 and fails: raise KeyError('the real one')
    with pytest.raises(KeyError, match='the real one') if fails else nullcontext():
        learn.fit(3, .5, cbs=on(event.before_epoch)(change))
    assert get_hyper(held[0], 'lr')==[.01] and get_hyper(learn.opt, 'lr')==[.01, .01]

halves = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=.5)
@pytest.mark.parametrize('sched', [lambda: Warmup(2), lambda: TorchScheduler(halves)], ids=['warmup','torch'])
def test_a_group_that_was_added_in_a_fit_keeps_a_rate_that_no_schedule_has_replaced(sched):
    extra = nn.Parameter(torch.zeros(1))
    def adds(learn): learn.opt.add_param_group(dict(params=[extra], lr=.003))
    learn = synth_learner(n_train=3, n_valid=0, lr=.01, opt_func=torch.optim.SGD)
    learn.fit(2, cbs=[sched(), on(event.after_fit)(adds)])
    assert get_hyper(learn.opt, 'lr')==[.01, .003]

@pytest.mark.parametrize('several', [True,False])
def test_a_group_that_was_added_in_a_fit_is_left_with_no_value_of_a_schedule(several):
    extra = nn.Parameter(torch.zeros(1))
    def opt(groups):
        o = torch.optim.SGD(groups, lr=.01, momentum=.5)
        return OptimList(o) if several else o
    def adds(learn):
        if learn.epoch==1: parts_of(learn.opt)[0].add_param_group(dict(params=[extra]))
    learn = synth_learner(n_train=3, n_valid=0, opt_func=opt)
    learn.fit_one_cycle(3, .1, cbs=on(event.before_epoch)(adds))
    assert get_hyper(learn.opt, 'mom')==[.5, .5]

def test_layers_that_come_in_a_fit_without_an_optimizer_are_named(recwarn):
    def fit(**kwargs):
        learn = synth_learner(2, model=nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
        def replace(cb):
            if cb.epoch!=1: return
            cb.model[1] = nn.Linear(2, 1)
            if kwargs: learn.create_opt()
        return learn.fit(3, cbs=Callback(before_epoch=replace))
    with pytest.warns(UserWarning, match='`1.weight`, `1.bias` came into the model during the fit, and had no'):
        fit()
    recwarn.clear()
    fit(new=True)
    assert not [o for o in recwarn if 'came into' in str(o.message)]

class Two(nn.Module):
    "The splitter leaves out one of its layers, whose gradients nobody needs"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.a,self.b = nn.Linear(1, 2),nn.Linear(2, 1)
    def forward(self, x): return self.b(self.a(x))

@pytest.mark.filterwarnings('ignore:The optimizer does not have')
@pytest.mark.parametrize('cbs', [[], [MicroBatch(4)], [GradientAccumulation(32)]])
def test_a_fit_begins_and_ends_without_gradients_of_what_it_trains(cbs):
    "Somebody may have looked at some by hand"
    def run(looks):
        torch.manual_seed(0)
        learn = synth_learner(4, model=Two(), opt_func=torch.optim.SGD, splitter=lambda m: [[*m.a.parameters()]])
        if looks: learn.model(torch.ones(3, 1)).sum().backward()
        learn.fit(1, lr=.1, cbs=[*cbs])
        assert not any(p.grad is not None for p in learn.model.a.parameters())
        return [p.detach() for p in learn.model.parameters()]
    assert all(map(torch.equal, run(False), run(True)))
def rates_in(learn, **kwargs):
    seen = []
    learn.fit(1, cbs=Callback(before_step=lambda cb: seen.append(get_hyper(cb.opt, 'lr'))), **kwargs)
    return seen[0]
def test_a_rate_that_was_not_given_is_that_of_the_optimizer_when_it_was_made(tmp_path):
    "And not that of a moment in a schedule, in a file or in a fit"
    learn = synth_learner(4, opt_func=torch.optim.Adam, lr=None, path=tmp_path)
    save = on(event.before_batch(once=3))(lambda learn: learn.save('mid'))
    learn.fit_one_cycle(1, .3, cbs=save)
    learn.load('mid')
    assert rates_in(learn)==[1e-3] and learn.lr==1e-3
    learn.fit(1, .5, cbs=on(event.before_epoch)(lambda learn: learn.create_opt()))
    assert rates_in(learn)==[1e-3] and learn.lr==1e-3
    learn.lr = None
    learn.create_opt()
    assert learn.lr==1e-3 and learn.fit_one_cycle(1).mode is None

@pytest.mark.parametrize('lrs,told', [([.5], '0.5'), ([.1,.2], r'\[0.1, 0.2\]'), ([.03], None)])
def test_an_optimizer_that_is_assigned_with_another_rate_is_told(lrs, told, recwarn):
    "Once, and not where a fit is given a rate"
    def assigned(learn):
        groups = [learn.model.parameters()] if len(lrs)==1 else parts(learn.model)
        learn.opt = torch.optim.SGD([dict(params=ps, lr=lr) for ps,lr in zip(groups, lrs)])
        return learn
    learn = synth_learner(2, 0, model=TwoParts(), lr=.03)
    rates_in(learn)
    assert rates_in(assigned(learn), lr=.001)==[.001]*len(lrs)
    assert rates_in(learn)==[.03]*len(lrs)==rates_in(deepcopy(learn))
    assert rates_in(assigned(learn))==[.03]*len(lrs)
    text = f'The optimizer that was assigned to `learn.opt` has the learning rate {told}'
    assert [bool(re.search(text, str(o.message))) for o in recwarn]==[True]*(told is not None)
    rates_in(learn)
    assert len(recwarn)==(told is not None)

class Counting(torch.optim.Optimizer):
    "Counts in its groups from the first step on, as the Lamb of timm does"
    def __init__(self, params, lr=.1): super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            g['step'] = g['step']+1 if 'step' in g else 1
            for p in g['params']: p -= p.grad*g['lr']/(1+g['step'])

def counting(path, **kwargs):
    return synth_learner(4, 0, lr=.1, opt_func=Counting, path=path, **kwargs)
def counts(learn): return [{k:v for k,v in g.items() if k not in ('params','group')} for g in learn.opt.param_groups]

@pytest.mark.parametrize('cb', [None, TorchScheduler(partial(torch.optim.lr_scheduler.ConstantLR, factor=1.)),
    TorchScheduler(partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=.1, total_steps=99, cycle_momentum=False)),
    ParamScheduler(dict(lr=SchedNo(.1,.1)))], ids=['plain','constant','cycle','ours'])
def test_what_an_optimizer_counts_in_its_groups_goes_on_from_fit_to_fit(tmp_path, cb):
    learn = counting(tmp_path).fit(1, cbs=cb)
    g,n = learn.opt.param_groups[0],learn.n_train
    assert {*g}=={'params','group','lr','step'} and g['step']==n
    learn.fit(1, cbs=cb)
    assert g['step']==2*n and g['lr']==.1

@pytest.mark.parametrize('how', ['state','weights'])
def test_what_an_optimizer_counts_in_its_groups_is_in_a_file(tmp_path, how):
    one = counting(tmp_path).fit(1, cbs=TorchScheduler(partial(torch.optim.lr_scheduler.ConstantLR, factor=1.)))
    (one.save_state if how=='state' else one.save)('one')
    other = counting(tmp_path)
    other.load_state('one') if how=='state' else other.load('one', with_opt=True)
    assert counts(other)==counts(one)
    ends = []
    for learn in (one, other): torch.manual_seed(0); ends.append([*learn.fit(1).model.parameters()])
    assert all(map(torch.equal, *ends)) and counts(other)==counts(one)

def test_keys_of_a_scheduler_in_a_file_of_the_middle_of_a_fit_stay_in_the_run(tmp_path):
    sched = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=.5, total_steps=12, cycle_momentum=False)
    def stop(learn): learn.stop_soon()
    one = counting(tmp_path)
    one.fit(3, cbs=[TorchScheduler(sched, 'iter'), on(event.after_batch(once=6, unit='iter'))(stop)])
    one.save_state('one')
    other = counting(tmp_path, cbs=TorchScheduler(sched, 'iter')).load_state('one')
    assert {*other.opt.param_groups[0]}=={'params','group','lr','step'}
    for learn in (one, other): learn.resume()
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters())) and counts(other)==counts(one)

def write_rates(learn, k, v):
    for g in learn.opt.param_groups: g[k] = v

def test_a_rate_that_is_written_into_the_groups_counts_where_nothing_else_has_one(recwarn):
    "As PyTorch's own loops do it: by hand, or with a scheduler that is stepped between fits"
    learn = synth_learner(2, 0, lr=None, opt_func=partial(torch.optim.SGD, lr=.1))
    assert rates_in(learn)==[.1]
    write_rates(learn, 'lr', .01)
    assert rates_in(learn)==rates_in(learn)==[.01] and learn.lr==.01
    sched = torch.optim.lr_scheduler.ExponentialLR(learn.opt, .5)
    seen = []
    for _ in range(3): seen += rates_in(learn); sched.step()
    assert seen==[.01,.005,.0025]
    learn.create_opt()
    assert rates_in(learn)==[.1] and not recwarn.list

@pytest.mark.parametrize('k,what', [('lr','learning rate'), ('wd','weight decay')])
def test_a_rate_that_is_written_into_the_groups_in_vain_is_told(k, what, recwarn):
    "Once, and neither where a fit is given one, nor after `set_hyper` and `load`"
    learn = synth_learner(2, 0, lr=.03, opt_func=torch.optim.SGD)
    learn.wd,learn.wd_bn_bias = .5,True
    learn.fit(1)
    write_rates(learn, dict(lr='lr', wd='weight_decay')[k], .25)
    learn.fit(1, **{k: .75}); learn.fit(1)
    assert not recwarn.list
    write_rates(learn, dict(lr='lr', wd='weight_decay')[k], .125)
    used = []
    learn.fit(1, cbs=on(event.before_step)(lambda learn: used.append(get_hyper(learn.opt, k)[0])))
    assert {*used}=={getattr(learn, k)} and len(recwarn)==1
    assert f'The {what} in the groups of `learn.opt` is 0.125 now' in str(recwarn[0].message)
    learn.fit(1); learn.set_hyper(k, .5); setattr(learn, k, .25); learn.fit(1)
    assert len(recwarn)==1

@pytest.mark.parametrize('lr', [None,.02])
@pytest.mark.parametrize('make', [
    lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=.1, total_steps=40, cycle_momentum=False),
    lambda opt: torch.optim.lr_scheduler.LinearLR(opt, .1)], ids=['cycle','linear'])
def test_the_rate_with_which_a_ready_scheduler_begins_is_not_that_of_later_fits(make, lr, recwarn):
    learn = synth_learner(2, 0, lr=lr, opt_func=partial(torch.optim.SGD, lr=.05))
    learn.create_opt()
    learn.fit(1, cbs=TorchScheduler(make(learn.opt), 'iter'))
    assert rates_in(learn)==[lr or .05] and learn.lr==(lr or .05) and not recwarn.list

def test_a_rate_that_is_written_after_other_settings_counts(tmp_path, recwarn):
    learn = synth_learner(2, 0, lr=None, opt_func=partial(torch.optim.SGD, lr=.1, momentum=.9), path=tmp_path).fit(1)
    learn.set_hyper('mom', .5)
    write_rates(learn, 'lr', .8)
    learn.set_hyper('mom', .6)
    assert rates_in(learn)==[.8]
    learn.save('one')
    learn.load('one', with_opt=True)
    write_rates(learn, 'lr', .4)
    assert rates_in(learn)==[.4] and not recwarn.list

def test_groups_that_are_added_and_schedules_are_no_news(recwarn):
    learn = synth_learner(2, 0, opt_func=partial(torch.optim.SGD, lr=.05), lr=None)
    learn.wd = .1
    learn.fit(1)
    learn.lr = .1
    learn.fit(1)
    learn.model.extra = nn.Linear(1, 1)
    learn.opt.add_param_group(dict(params=[*learn.model.extra.parameters()]))
    learn.fit(1)
    write_rates(learn, 'lr', .7)
    learn.fit_one_cycle(1, .1)
    assert not [o for o in recwarn if 'in the groups of' in str(o.message)]

def test_rates_of_a_file_are_not_taken_for_written_by_hand(tmp_path, recwarn):
    one,other = (synth_learner(2, 0, lr=lr, path=tmp_path).fit(1) for lr in (.5, .25))
    one.save('one')
    other.load('one', with_opt=True)
    assert rates_in(other)==[.25] and not recwarn.list

class Own(Learner):
    def create_opt(self): self.opt = self.opt_func(self.model.parameters()); return self.opt
def test_what_makes_the_optimizer_in_another_way_is_not_told(recwarn):
    "A `create_opt` of one's own, or a callback in a fit"
    learn = Own(synth_learner(2, 0).dls, nn.Linear(1, 1), F.mse_loss, opt_func=torch.optim.SGD, lr=.3)
    assert rates_in(learn)==[.3] and learn.lr==.3
    learn = synth_learner(2, 0, lr=.03)
    @on(event.before_epoch)
    def swap(learn): learn.opt = torch.optim.SGD(learn.model.parameters(), .2)
    learn.fit_one_cycle(2, .3, cbs=swap)
    assert rates_in(learn)==[.03] and learn.lr==.03 and not recwarn.list
    def anew(learn): learn.opt = None; learn.create_opt()
    assert synth_learner(2, 0, lr=.03).fit(1, cbs=on(event.before_fit)(anew)).recorder.lrs==[.03]*2

class Flat(torch.optim.SGD):
    "Gradients are parts of one tensor, which the optimizer owns"
    def __init__(self, params, lr=.1):
        super().__init__(params, lr)
        self.ps = [p for g in self.param_groups for p in g['params']]
        self.buf = torch.zeros(sum(p.numel() for p in self.ps))
        self.zero_grad()
    def zero_grad(self, set_to_none=True):
        self.buf.zero_()
        for p,g in zip(self.ps, self.buf.split([p.numel() for p in self.ps])): p.grad = g.view_as(p)
    @torch.no_grad()
    def step(self):
        for p,g in zip(self.ps, self.buf.split([p.numel() for p in self.ps])): p.sub_(.1*g.view_as(p))
def test_an_optimizer_may_own_the_memory_of_gradients():
    def run(opt_func):
        torch.manual_seed(0)
        learn = synth_learner(4, model=nn.Linear(1, 1), opt_func=opt_func)
        learn.fit(1, lr=.1)
        return [p.detach() for p in learn.model.parameters()]
    assert all(torch.allclose(a, b, atol=1e-6) for a,b in zip(run(Flat), run(torch.optim.SGD)))

def test_parameters_that_are_put_back_after_training_are_no_new_ones(recwarn):
    def put(cb): cb.model.weight = nn.Parameter(cb.model.weight.detach().clone())
    synth_learner(2, model=nn.Linear(1, 1), cbs=Callback(after_fit=put)).fit(1)
    assert not [o for o in recwarn if 'came into' in str(o.message)]

@pytest.mark.parametrize('fit', [lambda learn, cbs: learn.fit_one_cycle(2, .1, cbs=cbs),
    lambda learn, cbs: learn.fit(2, .5, cbs=cbs)])
def test_an_optimizer_that_begins_anew_in_a_fit_has_the_rate_it_was_given_with(fit):
    model = nn.Linear(1, 1)
    learn = synth_learner(4, model=model, opt_func=torch.optim.SGD(model.parameters(), lr=.25), lr=None)
    def again(learn):
        if learn.train_iter==5: learn.create_opt()
    fit(learn, on('before_batch')(again))
    assert learn.lr==.25 and rates_in(learn)==[.25]

@pytest.mark.parametrize('opt_func', [torch.optim.RMSprop,torch.optim.AdamW])
def test_an_optimizer_that_a_callback_has_made_resumes_with_the_rates_it_had(opt_func):
    def change(learn):
        if learn.epoch!=1 or learn.opt_func is opt_func: return
        learn.opt_func = opt_func
        learn.create_opt()
    def run(stop):
        torch.manual_seed(0)
        rates,learn = [],synth_learner(4, opt_func=partial(torch.optim.AdamW), lr=.02)
        learn.set_hyper('wd', .3)
        def note(learn):
            rates.append([get_hyper(learn.opt, k) for k in ('lr','wd')])
            if learn.train_iter==stop: learn.stop_soon()
        learn.fit(3, cbs=[on('before_epoch')(change), on('after_batch')(lambda learn: learn.training and note(learn))])
        if stop: learn.resume()
        return rates,weights(learn)
    (rates,whole),(resumed,cut) = run(None),run(6)
    assert rates==resumed and same(whole, cut)

def test_a_fit_inside_of_a_window_leaves_gradients_that_are_not_its_own():
    def run(inner):
        torch.manual_seed(0)
        shared,probe = nn.Linear(1, 1),nn.Linear(1, 1)
        learn = synth_learner(6, model=shared, opt_func=torch.optim.SGD)
        other = synth_learner(2, model=nn.Sequential(shared, probe), splitter=lambda m: [[*m[1].parameters()]])
        def look(cb):
            if not inner or not cb.training or cb.train_iter!=3: return
            shared.requires_grad_(False)
            with other.no_logging(), silence('optimizer'): other.fit(1)
            shared.requires_grad_(True)
        learn.fit(1, lr=.1, cbs=[GradientAccumulation(32), Callback(after_batch=look)])
        return [p.detach() for p in shared.parameters()]
    torch.manual_seed(0)
    assert all(map(torch.equal, run(False), run(True)))

# Groups with settings of their own, and groups that come later
plain = {SGD: torch.optim.SGD, RMSProp: torch.optim.RMSprop, Adam: torch.optim.AdamW, RAdam: torch.optim.RAdam}

@pytest.mark.parametrize('f', plain, ids=lambda f: f.__name__)
@pytest.mark.parametrize('decouple', [True,False])
def test_a_group_may_have_settings_by_our_names_or_by_those_of_torch(f, decouple):
    a,b,c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    groups = [dict(params=[a], wd=.3, mom=.5), dict(params=[b], weight_decay=.2), dict(params=[c])]
    opt = f(groups, wd=.1, mom=.8, decouple_wd=decouple)
    assert (get_hyper(opt, 'wd'),get_hyper(opt, 'mom'))==([.3,.2,.1],[.5,.8,.8])
    assert groups[0].keys()=={'params','wd','mom'} # another optimizer can be made of them
    for o in (a,b,c): o.grad = torch.zeros(2)
    opt.step()
    if decouple: torch.testing.assert_close(torch.stack([a,b,c])[:,0], 1-1e-3*torch.tensor([.3,.2,.1]))

def test_a_setting_that_the_optimizer_lacks_is_refused_in_a_group_too():
    with pytest.raises(ValueError, match='`SGD` has no hyper-parameter `sqr_mom`, but `lr`, `mom`, `wd`'):
        SGD([dict(params=[nn.Parameter(torch.ones(2))], sqr_mom=.9)])

@pytest.mark.parametrize('f', [SGD, RMSProp])
def test_a_group_that_is_added_decays_as_the_others(f):
    a,b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = f([a], lr=.1, wd=.5)
    opt.add_param_group(dict(params=[b]))
    a.grad = b.grad = torch.zeros(2)
    opt.step()
    assert torch.equal(a, b) and a[0].item()==pytest.approx(.95)

def shrunk_to(opt):
    "The parameters, each of which was 1 with a gradient of 0, after a step"
    ps = [p for g in opt.param_groups for p in g['params']]
    for p in ps: p.grad = torch.zeros_like(p)
    opt.step()
    return pytest.approx([p.item() for p in ps])

def one(): return nn.Parameter(torch.ones(1))

@pytest.mark.parametrize('f', [SGD, RMSProp])
@pytest.mark.parametrize('group,wd,left', [({}, 0., [1.,1.]), ({}, .3, [.7,.7]), ({}, [.3,.4], [.7,.6]),
    (dict(weight_decay=.5), None, [.9,.5]), (dict(weight_decay=.5), .3, [.7,.7]),
    (dict(weight_decay=0.), None, [.9,1.])], ids=str)
def test_weight_decay_set_before_the_first_step_of_an_added_group_counts_once(f, group, wd, left):
    opt = f([one()], lr=1., wd=.1)
    opt.add_param_group(dict(params=[one()], **group))
    if wd is not None: set_hyper(opt, 'wd', wd)
    assert get_hyper(opt, 'wd')==pytest.approx([1-o for o in left])
    assert shrunk_to(opt)==left and get_hyper(opt, 'wd')==pytest.approx([1-o for o in left])

def test_a_group_that_would_decay_twice_is_refused():
    opt = SGD([one()], lr=1., wd=.1)
    opt.add_param_group(dict(params=[one()], decoupled_wd=.5))
    with pytest.raises(ValueError, match='`decoupled_wd=0.5` and `weight_decay=0.1`, and would'): shrunk_to(opt)

@pytest.mark.parametrize('f', [SGD, RMSProp])
def test_the_weight_decay_in_a_state_of_torch_is_decoupled_and_counts_once(f):
    opt = f([one()], lr=1., wd=.01)
    opt.load_state_dict(plain[f]([one()], lr=1., weight_decay=.1).state_dict())
    assert get_hyper(opt, 'wd')==[.1] and shrunk_to(opt)==[.9]
    set_hyper(opt, 'wd', 0.)
    assert shrunk_to(opt)==[.9]

@pytest.mark.parametrize('f', [SGD, RMSProp])
def test_each_group_keeps_its_own_decay_where_a_state_of_torch_has_none(f):
    opt = f([dict(params=[one()]), dict(params=[one()], wd=0.)], lr=1., wd=.7)
    opt.load_state_dict(plain[f]([dict(params=[one()]), dict(params=[one()])], lr=1.).state_dict())
    assert get_hyper(opt, 'wd')==[.7,0.]
    with pytest.raises(ValueError, match='different number of parameter groups'):
        opt.load_state_dict(plain[f]([one()]).state_dict())

def test_a_learner_that_loads_a_file_of_an_optimizer_of_torch_decays_once(tmp_path):
    learn = synth_learner(opt_func=partial(torch.optim.SGD, weight_decay=.1), path=tmp_path)
    learn.create_opt()
    learn.save('of_torch', with_opt=True)
    learn = synth_learner(opt_func=partial(SGD, wd=.2), path=tmp_path).load('of_torch', with_opt=True)
    assert [(g['decoupled_wd'],g['weight_decay']) for g in learn.opt.param_groups]==[(.1,0)]

def test_a_group_that_was_added_decays_once_after_lr_find_and_in_a_copy():
    learn = synth_learner(opt_func=partial(SGD, wd=.1), n_train=3)
    learn.create_opt()
    learn.opt.add_param_group(dict(params=[one()], lr=1.))
    learn.lr_find(num_it=6, show_plot=False)
    learn = deepcopy(learn)
    assert shrunk_to(learn.opt).expected[-1]==pytest.approx(.9)

def reread(o):
    torch.save(o, file := io.BytesIO())
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)

@pytest.mark.parametrize('f', [SGD, RMSProp, Adam])
@pytest.mark.parametrize('again', [deepcopy, copy, reread, lambda o: pickle.loads(pickle.dumps(o)),
    lambda o: deepcopy(dict(opt=o))['opt'], lambda o: reread(dict(opt=o))['opt'],
    lambda o: deepcopy(deepcopy(o)), lambda o: deepcopy(OptimList(o)).opts[0]])
def test_copies_of_an_optimizer_decay_as_it_does(f, again):
    opt = again(f([one()], lr=1., wd=.1))
    opt.load_state_dict(deepcopy(opt.state_dict()))
    assert type(opt) is type(f([one()])) and get_hyper(opt, 'wd')==[.1]
    assert shrunk_to(opt)==[.9] and shrunk_to(opt)==[.81]
    opt.load_state_dict(f([one()], lr=1., wd=.2, decouple_wd=False).state_dict())
    assert shrunk_to(opt)==[.81*.8]

def test_a_copy_of_model_and_optimizer_trains_the_copied_model():
    model,opt = deepcopy((m := nn.Linear(1, 1), SGD(m.parameters(), lr=1., wd=.1)))
    before = weights(SimpleNamespace(model=m))
    shrunk_to(opt)
    assert same(weights(SimpleNamespace(model=m)), before) and not torch.equal(model.weight, m.weight)

@pytest.mark.parametrize('f', [torch.optim.SGD, torch.optim.RMSprop, partial(SGD, decouple_wd=False)])
def test_copies_of_an_optimizer_of_torch_are_left_to_torch(f):
    opt = f([one()], lr=1.)
    for o in (deepcopy(opt), reread(opt)): assert vars(o).keys()<=vars(opt).keys() and not o._optimizer_step_pre_hooks

dtypes = torch.float32,torch.bfloat16,torch.float64

@pytest.mark.parametrize('rate', [float, torch.tensor])
def test_a_fused_step_that_a_scaler_skips_does_not_decay(rate):
    "And the next decays as ever: the factor is not rounded to the precision of parameters"
    ps = [nn.Parameter(torch.linspace(1, 3, 200).to(o)) for o in dtypes]
    was = [p.detach().clone() for p in ps]
    opt,scaler = SGD(ps, lr=.1, wd=.03, fused=True),torch.amp.GradScaler('cpu')
    for g in opt.param_groups: g['lr'] = rate(.1)
    def step(slope):
        opt.zero_grad()
        scaler.scale(sum((p.float()*slope).sum() for p in ps)).backward()
        scaler.step(opt)
        scaler.update()
        return ps
    assert all(map(torch.equal, step(torch.inf), was))
    assert all(map(torch.equal, step(0.), [o*(1-rate(.1)*.03) for o in was]))

# The usual `no decay for biases`, in an `opt_func` that splits the dicts that it gets
@pytest.mark.parametrize('f', [SGD, RMSProp, Adam, RAdam])
@pytest.mark.parametrize('key', ['wd','weight_decay'])
def test_each_of_two_dicts_of_one_group_has_its_own_weight_decay(f, key):
    def opt_func(groups): return f([{**g, 'params': [p], key: wd, 'mom': m}
        for g in groups for p,wd,m in zip(g['params'], (.1,0.), (.5,.6))])
    opt = make_opt(opt_func, [[one(), one()], [one(), one()]], lr=1.)
    assert shrunk_to(opt)==[.9,1.,.9,1.]
    moms = [g['betas'][0] if 'betas' in g else g['momentum'] for g in opt.param_groups]
    assert moms==[.5,.6]*2 and [g['group'] for g in opt.param_groups]==[0,0,1,1]

@pytest.mark.parametrize('f', [SGD, Adam])
def test_a_spared_group_with_a_weight_decay_of_its_own_has_that(f):
    opt = f([dict(params=[one()], spared=True, weight_decay=.3), dict(params=[one()], weight_decay=.2)], lr=1.)
    assert shrunk_to(opt)==[.7,.8]

@pytest.mark.parametrize('f', [SGD, RMSProp])
def test_the_state_of_an_optimizer_of_torch_leaves_the_decoupled_decay_as_it_was(f):
    a,b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = f([a], lr=.1, wd=.5)
    opt.load_state_dict(plain[f]([b], lr=.2).state_dict())
    a.grad = torch.zeros(2)
    opt.step()
    assert a[0].item()==pytest.approx(1-.2*.5) and get_hyper(opt, 'wd')==[.5]

# An optimizer that lets another take its steps: the groups are the same dicts, perhaps in a list of its own
momentum = partial(torch.optim.SGD, momentum=.9)
class Outer(torch.optim.Optimizer):
    def __init__(self, groups, lr=.05, weight_decay=0., make=momentum, keep=lambda o: o):
        base = make(groups, lr=lr, weight_decay=weight_decay)
        super().__init__(base.param_groups, base.defaults)
        self.kept = keep(base)
    @property
    def base(self): return self.kept if isinstance(self.kept, torch.optim.Optimizer) else self.kept[0]
    def step(self, closure=None): return self.base.step()

class Same(Outer):
    "Saves and loads the state of the other"
    def state_dict(self): return self.base.state_dict()
    def load_state_dict(self, state):
        self.base.load_state_dict(state)
        self.param_groups = self.base.param_groups

def params_in(opt): return [p for g in opt.param_groups for p in g['params']]
class Lookahead(Outer):
    "Zhang et al. 2019, with a format of its own"
    def __init__(self, groups, **kwargs):
        super().__init__(groups, **kwargs)
        self.n,self.slow = 0,{p:p.detach().clone() for p in params_in(self)}
    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        self.n += 1
        if self.n%3: return
        for p,q in self.slow.items(): p.copy_(q.lerp_(p, .5))
    def state_dict(self):
        return dict(base=self.base.state_dict(), n=self.n, slow=[self.slow[p] for p in params_in(self)])
    def load_state_dict(self, state):
        self.base.load_state_dict(state['base'])
        self.param_groups = self.base.param_groups
        self.slow = dict(zip(params_in(self), state['slow']))
        self.n = state['n']

def of_two_parts(opt_func, seed=0, **kwargs):
    kwargs = dict(lr=None, splitter=parts) | kwargs
    learn = synth_learner(4, 2, model=TwoParts(), opt_func=opt_func, **kwargs)
    torch.manual_seed(seed)
    for p in learn.model.parameters(): nn.init.normal_(p)
    return learn
def fitted(learn, n=2, **kwargs):
    torch.manual_seed(1)
    return weights(learn.fit(n, **kwargs))

bases = dict(attribute={}, list=dict(keep=lambda o: [o]), dict=dict(keep=lambda o: {0: o}),
    deeper=dict(make=Outer))
decays = dict(made=(.1,None), fit=(0.,.1), both=(.1,.2))
@pytest.mark.parametrize('base', bases)
@pytest.mark.parametrize('decay', decays)
def test_norms_and_biases_are_trained_where_an_inner_optimizer_has_a_list_of_its_own(base, decay):
    "Weight decay splits the groups in every list, whether the optimizer was made with some or a fit brings it"
    made,fit = decays[decay]
    learn = of_two_parts(partial(Outer, weight_decay=made, **bases[base]))
    before = weights(learn)
    after = fitted(learn, wd=fit)
    assert not any(torch.equal(before[k], after[k]) for k in after)
    assert same(after, fitted(of_two_parts(partial(momentum, lr=.05, weight_decay=made)), wd=fit))

@pytest.mark.parametrize('opt_func', [Outer,Same,Lookahead])
def test_a_trial_or_a_failed_load_leaves_the_groups_of_an_inner_optimizer_as_they_were(opt_func, tmp_path):
    "Both may split groups on the way"
    learn,other = (of_two_parts(opt_func, path=tmp_path) for _ in range(2))
    of_torch = of_two_parts(partial(momentum, weight_decay=.1), path=tmp_path)
    of_torch.fit(1)
    of_torch.save('split', with_opt=True)
    def break_it(learn): learn.saved['opt'] = {**learn.saved['opt'], 'state': {0: None}}
    for o in (learn, other): o.create_opt()
    groups = learn.opt.param_groups
    learn.smoke()
    splits = on('before_fit')(lambda learn: learn.set_hyper('wd', .3))
    with learn.added_cbs(splits): learn.lr_find(num_it=8, show_plot=False)
    with pytest.raises(ValueError, match='does not fit'), learn.added_cbs(Callback(before_load=break_it)):
        learn.load('split', with_opt=True)
    assert learn.opt.param_groups is groups and len(groups)==len(learn.opt.base.param_groups)==2
    assert same(fitted(learn), fitted(other)) and same(fitted(learn, wd=.1), fitted(other, wd=.1))

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('opt_func', [Same,Lookahead])
@pytest.mark.parametrize('decay', [*decays,'none'])
@pytest.mark.parametrize('how', ['checkpoint','state'])
def test_a_run_with_an_inner_optimizer_resumes_exactly_from_a_file(opt_func, decay, how, tmp_path):
    made,fit = decays.get(decay, (0.,None))
    f = partial(opt_func, weight_decay=made)
    @on('after_batch')
    def stop(learn):
        if learn.training and learn.train_iter==6: learn.stop_soon()
    learn = of_two_parts(f, path=tmp_path)
    fitted(learn, 3, wd=fit, cbs=[Checkpoint(), stop])
    if how=='state': learn.save_state('run')
    again = of_two_parts(f, seed=5, path=tmp_path)
    if how=='state': again.load_state('run'); again.resume()
    else: again.fit(3, wd=fit, cbs=Checkpoint(), resume=True)
    assert same(weights(again), fitted(of_two_parts(f), 3, wd=fit))

@pytest.mark.parametrize('opt_func', [Same,Lookahead])
@pytest.mark.parametrize('there,here', [(0.,.1),(.1,0.)])
def test_a_file_of_weights_may_have_the_groups_of_an_inner_optimizer_split_or_not(opt_func, there, here, tmp_path):
    a = of_two_parts(partial(opt_func, weight_decay=there), path=tmp_path)
    a.fit(1)
    a.save('a')
    b = of_two_parts(partial(opt_func, weight_decay=here), seed=5, path=tmp_path).load('a', with_opt=True)
    assert same(fitted(b, lr=.05, wd=.2), fitted(a, lr=.05, wd=.2))

def test_a_state_in_another_format_is_refused_by_name(tmp_path):
    learn = of_two_parts(Lookahead, path=tmp_path)
    learn.fit(1)
    learn.save('lookahead')
    with pytest.raises(ValueError, match='not one of `SGD`, because it has no `param_groups`'):
        of_two_parts(momentum, path=tmp_path).load('lookahead')

@pytest.mark.parametrize('opts', [{'lr': .05}, 'fast', (1,2)], ids=str)
def test_an_optimizer_may_call_something_else_its_opts(opts, tmp_path):
    class Named(torch.optim.SGD):
        def __init__(self, groups): super().__init__(groups, lr=.05, weight_decay=.1); self.opts = opts
    learn = of_two_parts(Named, path=tmp_path)
    assert same(fitted(learn), fitted(of_two_parts(partial(torch.optim.SGD, lr=.05, weight_decay=.1))))
    learn.save('named')
    assert same(weights(of_two_parts(Named, path=tmp_path).load('named', with_opt=True)), weights(learn))

def test_an_optimizer_that_is_made_without_being_returned_can_be_loaded(tmp_path):
    class Makes(Learner):
        def create_opt(self): self.opt = momentum(self.model.parameters(), lr=.05)
    def mk(): return Makes(synth_learner(4, 0).dls, nn.Linear(1, 1), F.mse_loss, path=tmp_path)
    learn = mk().fit(1)
    learn.save('made')
    again = mk().load('made', with_opt=True)
    assert same(fitted(again, 1), fitted(learn, 1))

# An optimizer that is assigned
def test_an_optimizer_that_is_assigned_to_a_learner_without_a_rate_keeps_its_own(recwarn):
    learn = synth_learner(2, 0, lr=None)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=.02)
    assert rates_in(learn)==[.02] and not recwarn.list

@pytest.mark.parametrize('moment',
    ['before_fit','before_epoch','before_train','before_batch','after_pred','after_batch'])
@pytest.mark.parametrize('first,second', [('SGD','LBFGS'),('LBFGS','SGD')])
def test_an_optimizer_that_is_assigned_in_a_fit_steps_in_its_own_way(moment, first, second):
    "With a function that computes the loss again, or without; each batch is run as often as by hand"
    dls = synth_learner(4, 0).dls
    dls = DataLoaders(list(dls.train), device='cpu')
    make = dict(SGD=partial(torch.optim.SGD, lr=.05), LBFGS=partial(torch.optim.LBFGS, lr=.1, max_iter=2))
    def model(seen):
        torch.manual_seed(0)
        res = nn.Linear(1, 1)
        res.register_forward_hook(lambda *args: seen.append(1))
        return res
    at = dict(before_fit=0).get(moment, 5 if moment=='after_batch' else 4) # batches before it
    def swap(cb):
        if cb.train_iter==at and type(cb.opt).__name__==first: cb.learn.opt = make[second](cb.model.parameters())
    learn = Learner(dls, model(ours := []), F.mse_loss, opt_func=make[first], lr=None, cbs=Callback(**{moment: swap}))
    learn.fit(2)
    m,n,opt = model(hand := []),0,None
    for x,y in [*dls.train]*2:
        name = first if n<at else second
        if type(opt).__name__!=name: opt = make[name](m.parameters())
        opt.zero_grad()
        def loss():
            opt.zero_grad()
            res = F.mse_loss(m(x), y)
            res.backward()
            return res
        if name=='LBFGS': F.mse_loss(m(x), y); opt.step(loss)
        else: loss(); opt.step()
        n += 1
    assert all(map(torch.equal, learn.model.parameters(), m.parameters())) and len(ours)==len(hand)

@pytest.mark.parametrize('o', [lambda ps: torch.optim.SGD, lambda ps: partial(torch.optim.SGD, lr=.1),
    lambda ps: object(), lambda ps: [torch.optim.SGD(ps, lr=.1)]], ids=['class','partial','object','list'])
def test_what_is_no_optimizer_is_refused_when_it_is_assigned(o):
    learn = synth_learner(2, 0)
    was = learn.create_opt()
    with pytest.raises(TypeError, match="(?s)`opt` is a `torch.optim.Optimizer`, but got .* is an `opt_func`"):
        learn.opt = o(learn.model.parameters())
    assert learn.opt is was and learn.fit(1).opt is was
    learn.opt = None
    assert learn.fit(1).opt is not was

# Optimizers with a format of their own
class ByPosition(torch.optim.Optimizer):
    "Momentum; its state goes by the order of the parameters, and has nothing of their groups"
    def __init__(self, groups, lr=.05, weight_decay=0.):
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g['params']:
                m = self.state[p].setdefault('m', torch.zeros_like(p)).mul_(.9).add_(p.grad)
                p.mul_(1-g['lr']*g['weight_decay']).sub_(m, alpha=g['lr'])
    def state_dict(self): return dict(ms=[self.state[p].get('m') for p in params_in(self)])
    def load_state_dict(self, state):
        for p,m in zip(params_in(self), state['ms'], strict=True): self.state[p]['m'] = m

class FastAndSlow(Lookahead):
    "Has groups as torch has them, and states of its own"
    def state_dict(self):
        base = self.base.state_dict()
        slow = {i:self.slow[p] for i,p in enumerate(params_in(self))}
        return dict(fast=base['state'], slow=slow, n=self.n, param_groups=base['param_groups'])
    def load_state_dict(self, state):
        slow = [*state['slow'].values()]
        base = dict(state=state['fast'], param_groups=state['param_groups'])
        super().load_state_dict(dict(base=base, n=state['n'], slow=slow))

@pytest.mark.parametrize('opt_func', [ByPosition,FastAndSlow])
@pytest.mark.parametrize('made,wd', [(.1,None), (0.,.1), (0.,None)])
@pytest.mark.parametrize('how', ['state','weights','used'])
def test_a_state_in_a_format_of_its_own_goes_to_its_parameters(opt_func, made, wd, how, tmp_path):
    "Weight decay splits the groups, and so changes the order of parameters"
    def new(seed=0):
        f,one = partial(opt_func, weight_decay=made),lambda m: [*m.parameters()]
        return of_two_parts(f, seed=seed, path=tmp_path, wd=wd, splitter=one)
    learn = new()
    fitted(learn)
    learn.save('all', with_opt=True)
    learn.save_state('all_state')
    again = new(5)
    if how=='used': fitted(again)
    again.load_state('all_state') if how=='state' else again.load('all', with_opt=True)
    assert same(fitted(again), fitted(learn))

def test_a_state_that_is_not_of_torch_is_refused(tmp_path):
    learn = of_two_parts(momentum, path=tmp_path).fit(1)
    def break_it(learn): learn.saved['opt'] = dict(param_groups=learn.saved['opt']['param_groups'])
    learn.save('a')
    with pytest.raises(ValueError, match='not one of `SGD`, because it has no `state`'):
        with learn.added_cbs(Callback(before_load=break_it)): learn.load('a', with_opt=True)

class InPlace(ByPosition):
    def load_state_dict(self, state):
        for p,m in zip(params_in(self), state['ms']): self.state[p]['m'].copy_(m)
        raise RuntimeError('another version')

class Around(Outer):
    "The state of the other is loaded in place"
    def __init__(self, groups, **kwargs): super().__init__(groups, make=InPlace, **kwargs)
    def state_dict(self): return self.base.state_dict()
    def load_state_dict(self, state): self.base.load_state_dict(state)

@pytest.mark.parametrize('opt_func', [InPlace, Around, lambda groups: OptimList(InPlace(groups))],
    ids=['one','held','of several'])
def test_a_load_that_fails_leaves_a_state_that_is_changed_in_place(opt_func, tmp_path):
    learn,other = (of_two_parts(opt_func, path=tmp_path) for _ in range(2))
    fitted(learn, 1)
    learn.save('a', with_opt=True)
    fitted(other, 1)
    for o in (learn, other): fitted(o)
    with pytest.raises(ValueError, match='another version'): learn.load('a', with_opt=True)
    assert same(fitted(learn), fitted(other))

class WritesDecay(Callback):
    "As some scripts do by hand: in all groups of the optimizer, also those of norms and biases"
    run_valid = False
    def before_epoch(self):
        if self.epoch!=1: return
        for g in self.opt.param_groups: g['weight_decay'] = .5

@pytest.mark.parametrize('n', [4, 7])
@pytest.mark.parametrize('from_file', [False, True])
def test_weight_decay_that_was_written_into_a_spared_group_stays_where_a_run_resumes(n, from_file, tmp_path):
    def begun():
        torch.manual_seed(0)
        return synth_learner(n_train=3, n_valid=0, model=TwoParts(), lr=.1, path=tmp_path, cbs=WritesDecay(),
            opt_func=partial(torch.optim.AdamW, weight_decay=.1))
    def decays(learn): return [g['weight_decay'] for g in learn.opt.param_groups]
    whole = begun()
    inside = []
    whole.fit(3, cbs=Callback(after_batch=lambda cb: inside.append(decays(cb.learn))))
    assert len(inside[0])==2 and 0. in inside[0] and inside[-1]==[.5,.5]
    learn,rest = begun(),[]
    def stop(cb):
        if cb.train_iter==n: cb.learn.stop_soon()
    learn.fit(3, cbs=Callback(after_batch=stop))
    if from_file:
        learn.save_state('stopped')
        learn = begun()
        learn.fit(3, resume='stopped', cbs=Callback(after_batch=lambda cb: rest.append(decays(cb.learn))))
    else: learn.resume(cbs=Callback(after_batch=lambda cb: rest.append(decays(cb.learn))))
    assert rest==inside[n:] and same(weights(learn), weights(whole))

step_lr = partial(torch.optim.lr_scheduler.StepLR, step_size=1)
begin_with_rates = {'fit': dict(), 'Warmup': dict(cbs=lambda: Warmup(2)), 'TorchScheduler': dict(
    cbs=lambda: TorchScheduler(step_lr)), 'fit_flat_cos': dict(method='fit_flat_cos'),
    'fit_one_cycle': dict(method='fit_one_cycle'), 'fit_sgdr': dict(method='fit_sgdr', cycle_len=1)}
@pytest.mark.parametrize('how', begin_with_rates)
def test_a_rate_that_was_written_is_that_with_which_a_schedule_begins(how, recwarn):
    "As in a loop where a scheduler is made for the optimizer. If `learn.lr` was given, a warning says so"
    def highest(lr):
        learn = synth_learner(4, 0, lr=lr, opt_func=partial(torch.optim.SGD, lr=.001))
        learn.fit(1)
        write_rates(learn, 'lr', .5)
        kwargs = dict(begin_with_rates[how])
        method,cbs = kwargs.pop('method', 'fit'),kwargs.pop('cbs', lambda: None)()
        getattr(learn, method)(1, cbs=cbs, **kwargs)
        return max(learn.recorder.lrs)
    assert highest(None)==pytest.approx(.5) and not recwarn.list
    assert highest(.1)==pytest.approx(.1) and len(recwarn)==1
    assert 'in the groups of `learn.opt` is 0.5 now' in str(recwarn[0].message)

@pytest.mark.parametrize('lr,used', [(None, .5), (.1, .1)])
def test_what_was_written_or_assigned_is_known_after_a_search_for_a_rate(lr, used, recwarn):
    "`lr_find` leaves rates as they were, and the next fit sees whose they are"
    learn = synth_learner(4, 0, lr=lr, opt_func=partial(torch.optim.SGD, lr=.001)).fit(1)
    write_rates(learn, 'lr', .5)
    learn.lr_find(num_it=6, show_plot=False)
    assert rates_in(learn)==[used] and len(recwarn)==(lr is not None)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=.25)
    learn.lr_find(num_it=6, show_plot=False)
    recwarn.clear()
    learn.fit(1)
    assert len(recwarn)==1 and 'The optimizer that was assigned to `learn.opt`' in str(recwarn[0].message)

def test_a_ready_scheduler_has_rates_of_its_own_of_which_nothing_is_told(recwarn):
    learn = synth_learner(4, 0, lr=.1, opt_func=torch.optim.SGD)
    learn.fit(1)
    write_rates(learn, 'lr', .5)
    learn.fit(1, cbs=TorchScheduler(step_lr(learn.opt)))
    assert learn.recorder.lrs[-1]==.5 and not recwarn.list

@pytest.mark.parametrize('lr', [None,.001])
def test_a_group_that_is_added_between_fits_trains_with_its_own_rate(lr, recwarn):
    "As PyTorch's users unfreeze: by hand it moves as far. Where `learn.lr` was given, a warning names both"
    def freed():
        torch.manual_seed(0)
        model = TwoParts()
        first,last = parts(model)
        for p in first: p.requires_grad_(False)
        return model,first,last
    model,first,last = freed()
    learn = synth_learner(4, 0, model=model, lr=lr, opt_func=partial(torch.optim.SGD, lr=.001),
        splitter=lambda m: [parts(m)[1]])
    learn.fit(1)
    for p in first: p.requires_grad_(True)
    learn.opt.add_param_group(dict(params=first, lr=1e-5))
    used = []
    learn.fit(1, cbs=on(event.before_step)(lambda learn: used.append([g['lr'] for g in learn.opt.param_groups])))
    assert all(o==([.001,1e-5] if lr is None else [.001,.001]) for o in used) and len(used)==4
    assert len(recwarn)==(lr is not None)
    if lr is not None: assert '[0.001, 1e-05] now, and the fit begins with `learn.lr`, 0.001' in str(recwarn[0].message)

@pytest.mark.parametrize('method', ['fit','fit_one_cycle','fit_flat_cos'])
def test_a_rate_that_was_written_does_not_count_where_a_schedule_resumes(method, tmp_path, recwarn):
    "The run resumes with the rates that it had"
    def made(): return synth_learner(4, 0, lr=None, opt_func=partial(torch.optim.SGD, lr=.1), path=tmp_path)
    whole = getattr(made(), method)(3).recorder.lrs
    learn = made()
    getattr(learn, method)(3, cbs=on(event.after_batch)(lambda learn: learn.train_iter==6 and learn.stop_soon()))
    file = learn.save_state('stopped')
    for o in learn,made():
        o.create_opt() if o.opt is None else None
        write_rates(o, 'lr', .5)
        getattr(o, method)(3, resume=file)
        assert o.recorder.lrs[-6:]==whole[-6:] and o.lr==.1
    assert not [o for o in recwarn if 'groups of' in str(o.message)]

@pytest.mark.parametrize('fit', [lambda learn: learn.fit_one_cycle(1), lambda learn: learn.fit_flat_cos(1),
    lambda learn: learn.fit_sgdr(1, 1)], ids=['one_cycle','flat_cos','sgdr'])
def test_a_schedule_of_the_rate_leaves_the_warning_about_weight_decay(fit, recwarn):
    learn = synth_learner(4, 0, lr=.01, wd=.01, opt_func=torch.optim.SGD).fit(1)
    write_rates(learn, 'weight_decay', .25)
    fit(learn)
    assert len(recwarn)==1 and 'The weight decay in the groups of `learn.opt` is 0.25 now' in str(recwarn[0].message)

@pytest.mark.parametrize('opt_func,lr,added', [(partial(torch.optim.SGD, lr=.01), .5, dict(lr=.5)),
    (partial(torch.optim.SGD, lr=torch.tensor(.02)), .5, {})], ids=['that of the fit','the usual one'])
def test_a_group_that_is_added_with_the_rate_that_it_would_have_is_no_news(opt_func, lr, added, recwarn):
    learn = synth_learner(4, 0, model=TwoParts(), lr=.01, opt_func=opt_func, splitter=lambda m: [parts(m)[1]]).fit(1)
    learn.lr = lr
    learn.opt.add_param_group(dict(params=parts(learn.model)[0], **added))
    assert rates_in(learn)==[lr, lr] and not [o for o in recwarn if 'groups of' in str(o.message)]
