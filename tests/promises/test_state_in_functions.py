"""Promise 1 for what functions hold: a transform, a hook, the class of an optimizer. A run that is resumed from a file
has it, or a warning names it"""
import itertools,random,warnings,weakref
from collections import deque
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset
from learner.all import *

class Points(Dataset):
    def __init__(self, tfm=None):
        self.x,self.tfm = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)),tfm
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        return (self.x[i] if self.tfm is None else self.tfm(self.x[i])),self.x[i].sum(0, keepdim=True)

def made(path, train=None, **kwargs):
    torch.manual_seed(0)
    train = DataLoader(Points(), 3) if train is None else train
    dls = DataLoaders(train, device='cpu')
    return Learner(dls, **dict(model=nn.Linear(2, 1), loss_func=F.mse_loss, opt_func=SGD, lr=.05, path=path) | kwargs
        ).remove_cb(ProgressCallback)

class Stops(Callback):
    "Ctrl-C before batch `n`: in an epoch, or between two"
    watches = True
    def __init__(self, n): self.n = n
    def before_batch(self):
        if self.n%4 and self.learn.train_iter==self.n-1: self.learn.at_pause(self.stop, stops=True)
    def after_epoch(self):
        if self.learn.train_iter==self.n: self.learn.at_pause(self.stop, stops=True)
    def stop(self): raise KeyboardInterrupt

def weights(learn): return [p.tolist() for p in learn.model.parameters()]
def resumed(make, path, n=6):
    "Weights of a run, those of one that is resumed from a file after `n` batches, and what it was warned of"
    whole = weights(make(path/'whole').fit(3))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        learn = make(path)
        with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Stops(n))
        learn.save_state('here')
        res = weights(make(path).load_state('here').resume(cbs=[]))
    return whole,res,[t for o in said if '`stops` is gone' not in (t := str(o.message))]

# What the functions of a loader hold
calls = 0
def counted(): global calls; calls += 1; return calls
def in_default(): return lambda x, n=[0]: (n.__setitem__(0, n[0]+1), x*(1+n[0]/9))[1]
def in_keyword():
    def tfm(x, *, n=deque([0])): n.append(n[-1]+1); return x*(1+n[-1]/9)
    tfm.__kwdefaults__ = dict(n=deque([0]))
    return tfm
def in_iterator():
    it = itertools.cycle([1.,2.,3.,5.,8.])
    return lambda x: x*next(it)
def in_module():
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=2)
    return lambda x: x+engine.draw(1)[0]
def in_view():
    view = memoryview(bytearray(1))
    def tfm(x): view[0] += 1; return x*(1+view[0]/9)
    return tfm
def in_attribute():
    def tfm(x): tfm.n += 1; return x*(1+tfm.n/9)
    tfm.n = 0
    return tfm
def in_called():
    global calls
    calls = 0
    return lambda x: x*(1+counted()/9)
def in_file(): f = open(__file__); return lambda x: x+len(f.readline())/99

holding = in_default,in_keyword,in_iterator,in_module,in_view,in_attribute,in_called,in_file
@pytest.mark.filterwarnings('ignore:unclosed file')
@pytest.mark.parametrize('n', [6, 4])
@pytest.mark.parametrize('tfm', holding, ids=lambda f: f.__name__)
def test_what_a_transform_holds_is_named(tfm, n, tmp_path):
    whole,res,said = resumed(lambda path: made(path, DataLoader(Points(tfm()), 3)), tmp_path, n)
    assert res!=whole and [o for o in said if o.startswith('`dataset.tfm` of the training loader changed')]

def test_a_transform_that_holds_a_constant_is_not_named(tmp_path):
    factor,table = 2.,{i:i for i in range(50)}
    def tfm(x, k=[3]): return x*factor*k[0]+table[1]
    whole,res,said = resumed(lambda path: made(path, DataLoader(Points(tfm), 3)), tmp_path)
    assert res==whole and not said

def test_what_is_on_the_class_of_a_dataset_is_named(tmp_path):
    def make(path):
        class Counting(Points):
            n = 0
            def __getitem__(self, i): Counting.n += 1; x,y = super().__getitem__(i); return x*(1+Counting.n/9),y
        return made(path, DataLoader(Counting(), 3))
    whole,res,said = resumed(make, tmp_path)
    assert res!=whole and [o for o in said if o.startswith('`type(dataset)` of the training loader changed')]

def test_what_a_method_of_a_loader_has_around_it_is_named_between_two_epochs(tmp_path):
    def make(path):
        n = 0
        class Batches:
            def __len__(self): return 4
            def __iter__(self):
                nonlocal n
                for _ in range(4): n += 1; x = torch.tensor([[n/9,1.]]); yield x,x.sum(1, keepdim=True)
        return made(path, Batches())
    whole,res,said = resumed(make, tmp_path, n=4)
    assert res!=whole and [o for o in said if o.startswith('`type(loader)` of the training loader changed')]

def test_workers_that_persisted_are_named_between_two_epochs_too(tmp_path):
    rng = torch.Generator().manual_seed(5)
    ds = Points(lambda x: x+torch.rand((), generator=rng))
    def make(path): return made(path, DataLoader(ds, 3, num_workers=1, persistent_workers=True))
    *_,said = resumed(make, tmp_path, n=4)
    assert [o for o in said if 'workers persist from epoch to epoch' in o]

# Optimizers
class Scaled(torch.optim.SGD):
    n = 0
    def step(self, closure=None):
        Scaled.n += 1
        for p in self.param_groups[0]['params']: p.grad *= 1+Scaled.n/9
        super().step(closure)

def on_class(ps, lr=.1): Scaled.n = 0; return Scaled(ps, lr)
def with_hook(ps, lr=.1):
    n,opt = 0,torch.optim.SGD(ps, lr)
    def hook(opt, args, kwargs):
        nonlocal n
        n += 1
        for p in opt.param_groups[0]['params']: p.grad *= 1+n/9
    opt.register_step_pre_hook(hook)
    return opt

@pytest.mark.parametrize('opt_func', [on_class, with_hook])
def test_a_resumed_run_has_what_the_class_and_the_hooks_of_an_optimizer_hold(opt_func, tmp_path):
    whole,res,said = resumed(lambda path: made(path, opt_func=opt_func), tmp_path)
    assert res==whole and not said

# Ways back in the same process
def growing_loss():
    k = 1.
    def loss(pred, targ): nonlocal k; k *= 1.01; return F.mse_loss(pred, targ)*k
    return dict(loss_func=loss)
def global_loss():
    global calls
    calls = 0
    return dict(loss_func=lambda pred, targ: F.mse_loss(pred, targ)*(1+counted()/9))
def loss_with_attribute():
    def loss(pred, targ): loss.n = getattr(loss, 'n', 0)+1; return F.mse_loss(pred, targ)*(1+loss.n/9)
    return dict(loss_func=loss)

counting = {f.__name__:f for f in (growing_loss, global_loss, loss_with_attribute)} | dict(
    hook=lambda: dict(opt_func=with_hook), optimizer_class=lambda: dict(opt_func=on_class))
@pytest.mark.parametrize('make', counting.values(), ids=counting)
def test_a_run_that_goes_back_has_what_functions_held_there(make, tmp_path):
    whole,learn = weights(made(tmp_path, **make()).fit(3)),made(tmp_path, **make()).fit(3, cbs=Rewind(3, keep=9))
    for n in (7, 4): assert weights(learn.rewind(n).resume())==whole
    assert weights(learn.fork(4).resume())==whole

@pytest.mark.parametrize('how', ['rewind','fork'])
@pytest.mark.parametrize('make', counting.values(), ids=counting)
def test_where_functions_had_not_changed_yet_a_run_that_goes_back_names_what_they_keep(make, how, tmp_path):
    learn = made(tmp_path, **make()).fit(2, cbs=Rewind(3, keep=9))
    with pytest.warns(UserWarning, match=fr'`{how}\(2\)` does not put back `(loss_func|opt|type\(opt\))[.\w ]*\w`, '
        'which training has changed only after batch 0'): getattr(learn, how)(2)

def growing_in_dict(shared):
    def loss(pred, targ): shared['k'] *= 1.01; return F.mse_loss(pred, targ)*shared['k']
    return loss
@pytest.mark.parametrize('make', [growing_loss, global_loss, lambda: dict(loss_func=growing_in_dict(dict(k=1.)))])
def test_a_fork_from_the_beginning_leaves_its_parent_what_functions_hold(make, tmp_path):
    whole,learn = weights(made(tmp_path, **make()).fit(3)),made(tmp_path, **make())
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[Rewind(3), Stops(6)])
    with pytest.warns(UserWarning, match=r'`fork\(0\)` does not put back'): learn.fork(0)
    assert weights(learn.resume())==whole

def test_figures_that_a_loss_gathers_stay_without_a_warning(tmp_path, recwarn):
    figures = {}
    def loss(pred, targ): figures[len(figures)] = 1.; return F.mse_loss(pred, targ)
    made(tmp_path, loss_func=loss).fit(2, cbs=Rewind(3, keep=9)).rewind(0)
    assert len(figures)==8 and not recwarn

class ByClass(nn.Linear):
    scale,mask = 1.,None
    def forward(self, x):
        if self.mask is None: type(self).mask = torch.ones(2)
        return super().forward(x*self.mask)*self.scale
def test_what_is_set_by_hand_in_a_class_and_its_cache_stay_without_a_warning(tmp_path, monkeypatch, recwarn):
    for k in ('scale','mask'): monkeypatch.setattr(ByClass, k, getattr(ByClass, k))
    learn = made(tmp_path, model=ByClass(2, 1)).fit(1)
    ByClass.scale = 2.
    learn.fit(2, cbs=Rewind(3, keep=9)).rewind(6).fork()
    learn.rewind(0).save_state('begin')
    learn.load_state('begin')
    assert ByClass.scale==2. and not recwarn

def two_names():
    "One object has two names, until one of them gets another"
    last = now = torch.zeros(1)
    def loss(pred, targ):
        nonlocal last,now
        loss = F.mse_loss(pred, targ)
        res = loss*(1+last[0]+now[0]/9)
        last,now = now,loss.detach().reshape(1).clone()
        return res
    return loss
def from_a_constant():
    "A state that begins anew as the same constant in each epoch"
    zero,n = torch.zeros(1),0
    state = zero
    def loss(pred, targ):
        nonlocal state,n
        if n%4==0: state = zero
        loss = F.mse_loss(pred, targ)
        state,n = state/2+loss.detach(),n+1
        return loss*(1+state[0]/9)
    return loss
def read_only():
    state = np.zeros(2)
    state.flags.writeable = False
    def loss(pred, targ):
        nonlocal state
        state = state/2+1
        state.flags.writeable = False
        return F.mse_loss(pred, targ)*state[0]
    return loss
@pytest.mark.parametrize('make', [two_names, from_a_constant, read_only])
def test_a_loss_whose_variables_get_other_objects_has_their_values_after_a_resume(make, tmp_path):
    whole,res,_ = resumed(lambda path: made(path, loss_func=make()), tmp_path)
    assert res==whole

class Unwilling(Callback):
    def state_dict(self): return dict(n=1)
    def load_state_dict(self, state): raise OSError('not mine')
def test_a_file_that_cannot_be_loaded_leaves_what_the_loss_holds(tmp_path):
    made(tmp_path, **growing_loss()).add_cb(Unwilling).save_state('here')
    learn = made(tmp_path, **growing_loss()).fit(2).add_cb(Unwilling)
    k = learn.loss_func.__closure__[0].cell_contents
    with pytest.raises(OSError, match='not mine'): learn.load_state('here')
    assert learn.loss_func.__closure__[0].cell_contents==k>1

class OwnScheduler(Callback):
    "A scheduler of torch, made and used by hand"
    _stateattrs = 'sched',
    def before_fit(self): self.sched = torch.optim.lr_scheduler.ExponentialLR(self.learn.opt, .9)
    def after_batch(self): self.sched.step()
    def state_dict(self): return dict(sched=self.sched.state_dict()) if hasattr(self, 'sched') else {}
    def load_state_dict(self, state):
        if hasattr(self, 'sched'): self.sched.load_state_dict(state['sched'])
def test_a_run_with_a_scheduler_of_torch_in_a_callback_resumes_from_a_file(tmp_path):
    whole,res,said = resumed(lambda path: made(path, cbs=OwnScheduler()), tmp_path)
    assert res==whole

# Models
def test_a_resumed_run_has_what_a_hook_of_a_weight_holds(tmp_path):
    def make(path):
        model,n = nn.Linear(2, 1),0
        def hook(grad): nonlocal n; n += 1; return grad*(1+n/9)
        model.weight.register_hook(hook)
        return made(path, model=model)
    def begun(path): torch.manual_seed(0); return make(path)
    whole,res,said = resumed(begun, tmp_path)
    assert res==whole and not said

def test_a_model_may_have_a_weak_proxy():
    class Keeps: n = 1
    class Model(nn.Linear):
        def __init__(self, of): super().__init__(2, 1); self.of = weakref.proxy(of)
        def forward(self, x): return super().forward(x)*self.of.n
    made('.', model=Model(kept := Keeps())).fit(1).validate(0)
    assert kept.n==1

def test_a_generator_of_python_may_be_held_by_one_of_its_methods(tmp_path):
    def make(path):
        draw = random.Random(3).random
        return made(path, loss_func=lambda p,t: F.mse_loss(p, t)*(1+draw()))
    whole,res,said = resumed(make, tmp_path)
    assert res==whole and not said

# Names of attributes are no global variables
class Settings: apart = None
apart = nn.Linear(4, 3) # a model that has nothing to do with the runs below
def scaled_loss(pred, targ): return F.cross_entropy(pred, targ)*(1 if Settings.apart is None else 2)
def doubles(self): self.learn.x = self.learn.x*2 # a notebook has a global `learn`
learn = None

def plain_learner(**kwargs):
    torch.manual_seed(0)
    batches = [(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(6)]
    return Learner(DataLoaders(batches, device='cpu'), nn.Linear(4, 3), scaled_loss, **kwargs
        ).remove_cb(ProgressCallback)

def test_a_global_that_is_called_like_an_attribute_is_left_alone(tmp_path):
    first = plain_learner()
    first.fit(2, cbs=Rewind(every=3))
    with torch.no_grad(): apart.weight.add_(1.)
    now = apart.weight.clone()
    first.rewind(5)
    assert torch.equal(apart.weight, now)
    plain_learner(path=tmp_path).fit(1, cbs=Checkpoint(2, 'iter'))
    with torch.no_grad(): apart.weight.add_(1.)
    plain_learner(path=tmp_path).fit(2, cbs=Checkpoint(2, 'iter'), resume=True)
    assert torch.equal(apart.weight, now+1)

def test_a_fork_does_not_take_an_attribute_for_the_learner_of_the_notebook(recwarn):
    global learn
    learn = plain_learner(cbs=Callback(before_batch=doubles)).fit(2, cbs=Rewind(every=3))
    learn.fork(5)
    learn = None
    assert not [o for o in recwarn if 'fork would use' in str(o.message)]

def test_instructions_tell_globals_from_attributes():
    from learner.values.functions import globals_in
    def f(o):
        global set_here
        set_here = [p.attribute for p in o.other]
        class Inside: value = apart
        return Inside
    assert globals_in(f.__code__) - {'__name__'}=={'apart','set_here'}

# A loss that a callback exchanges from an epoch on
class Weighs:
    "Has a weight in a tensor, an array, a dict or a number"
    def __init__(self, w, kind): self.kind,self.w = kind,kinds_of_weights[kind](w)
    def __call__(self, pred, y): return F.mse_loss(pred, y)*float(self.w['w'] if self.kind=='dict' else self.w)
class Exchanges(Callback):
    def __init__(self, kind): self.kind = kind
    def before_epoch(self):
        if self.epoch>=1: self.learn.loss_func = Weighs(3., self.kind)
kinds_of_weights = dict(tensor=torch.tensor, array=np.array, dict=lambda w: dict(w=w), number=float)

@pytest.mark.parametrize('kind', kinds_of_weights)
@pytest.mark.parametrize('in_memory', [True, False])
@pytest.mark.parametrize('n', [6, 7])
def test_a_loss_that_is_exchanged_on_the_way_keeps_its_own_values(tmp_path, n, in_memory, kind):
    "Those of the loss before do not come into it"
    def make(name): return made(tmp_path/name, loss_func=Weighs(1., kind)).add_cb(Exchanges(kind))
    whole,learn = make('whole').fit(2),make('a')
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Stops(n))
    learn.save_state('here')
    if not in_memory: learn = make('a').load_state('here')
    assert weights(learn.resume(cbs=[]))==weights(whole)

# A queue around a loss
@pytest.mark.parametrize('n', [1, 3])
def test_a_queue_of_the_latest_comes_back_whether_or_not_it_was_full(tmp_path, n):
    def make(path):
        queue = deque([torch.zeros(1)]*n, maxlen=3)
        def loss(pred, y):
            res = F.mse_loss(pred, y) + (pred.mean()-torch.stack([*queue]).mean()).square()
            if pred.requires_grad: queue.append(pred.detach().mean(0))
            return res
        return made(path, loss_func=loss)
    whole,res,said = resumed(make, tmp_path)
    assert res==whole and not said
