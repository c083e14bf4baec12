"""Promise 1 as a matrix: kinds of state × places where it is kept × ways to stop and resume.

Each cell is a run whose weights depend on the state after every batch. Resumed, it ends as one that was never stopped,
with the same types; or the state is refused when it is saved; or a warning names it before the next batch is trained.
Nothing is silent."""
import itertools,queue,random,threading,warnings
from array import array
from collections import Counter,OrderedDict,UserDict,defaultdict,deque,namedtuple
from contextlib import redirect_stdout
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache,partial
from io import BytesIO,StringIO
from types import SimpleNamespace
from typing import Any,Callable as Function,NamedTuple
from weakref import ref
import numpy as np
import pytest,torch
from fastcore.basics import AttrDict
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,Sampler
from learner.all import *

# Kinds: how a state begins, how it moves (in place where it can), and a number that depends on all of it
class Kind(NamedTuple):
    make:Function
    move:Function # returns the state, the same object where it is moved in place
    number:Function

class Box: # of no type that is known
    def __init__(self): self.n = 0
    def add(self): self.n += 1
class Kept(torch.Tensor): pass
class Tally(dict): pass
class Trail(list): pass
@dataclass
class Noted: n:int=0
Stage,Point = Enum('Stage', 'a b c'),namedtuple('Point', 'x y')
def numbers(): yield from range(1000)
def closure():
    n = 0
    def f(): nonlocal n; n += 1
    return f
def in_context(): res = ContextVar('n'); res.set(0); return res
alive = []
def with_number(): res = nn.Identity(); res.n = 0; return res
def weakly(): alive.append(Box()); return ref(alive[-1])

def inplace(f):
    def move(v): f(v); return v
    return move

def moved_in_place(v): v += 1; return v
def both(v): v['a'].append(1); return v # the same list under two keys
def longer(v): v.append(len(v)); return v
def numbered(v): return float(sum(i*(hash(o)%7) for i,o in enumerate(v, 1)))

kinds = dict(
    int=Kind(lambda: 0, lambda v: v+1, float),
    float=Kind(lambda: .5, lambda v: v*1.5, float),
    bool=Kind(lambda: True, lambda v: not v, float),
    complex=Kind(lambda: 1j, lambda v: v*1j+1, lambda v: v.real+2*v.imag),
    str=Kind(lambda: '', lambda v: v+'x', len),
    bytes=Kind(lambda: b'', lambda v: v+b'ab', len),
    none=Kind(lambda: None, lambda v: 1 if v is None else None, lambda v: float(v is None)),
    numpy_float=Kind(lambda: np.float64(.5), lambda v: np.float64(v+1), float),
    numpy_half=Kind(lambda: np.float16(.5), lambda v: np.float16(v+1), float),
    numpy_int=Kind(lambda: np.int32(1), lambda v: np.int32(v+1), float),
    numpy_bool=Kind(lambda: np.bool_(True), lambda v: np.bool_(not v), float),
    tensor=Kind(lambda: torch.zeros(2), lambda v: v+1, lambda v: float(v.sum())),
    tensor_in_place=Kind(lambda: torch.zeros(2), moved_in_place, lambda v: float(v.sum())),
    tensor_int=Kind(lambda: torch.zeros((), dtype=torch.int64), moved_in_place, float),
    tensor_grad=Kind(lambda: torch.zeros(2, requires_grad=True), inplace(lambda v: v.data.add_(1)),
        lambda v: float(v.detach().sum())),
    array=Kind(lambda: np.zeros(2), lambda v: v+1, lambda v: float(v.sum())),
    array_in_place=Kind(lambda: np.zeros(2), moved_in_place, lambda v: float(v.sum())),
    array_fortran=Kind(lambda: np.zeros((2,3), order='F'), moved_in_place, lambda v: float(v.sum())),
    array_objects=Kind(lambda: np.array([0, None]), inplace(lambda v: v.__setitem__(0, v[0]+1)), lambda v: float(v[0])),
    list=Kind(list, longer, numbered),
    long_list=Kind(lambda: [.5]*200, inplace(lambda v: v.append(1.5)), sum),
    tuple=Kind(tuple, lambda v: (*v, len(v)), numbered),
    nested=Kind(lambda: dict(a=[dict(n=0)]), inplace(lambda v: v['a'][0].update(n=v['a'][0]['n']+1)),
        lambda v: float(v['a'][0]['n'])),
    dict=Kind(dict, inplace(lambda v: v.update({(len(v),'k'): len(v)})), lambda v: float(sum(v.values())+len(v))),
    dict_numpy_keys=Kind(dict, inplace(lambda v: v.update({np.int64(len(v)): 1})),
        lambda v: float(len(v)+all(type(k) is np.int64 for k in v))),
    ordered=Kind(OrderedDict, inplace(lambda v: (v.update({len(v): 1}), v.move_to_end(0))),
        lambda v: numbered(v)+len(v)),
    counter=Kind(Counter, inplace(lambda v: v.update('ab')), lambda v: float(v['a']+v['c'])),
    defaultdict=Kind(lambda: defaultdict(int), inplace(lambda v: v.__setitem__('n', v['n']+1)),
        lambda v: float(v['n']+v['m'])),
    attrdict=Kind(AttrDict, inplace(lambda v: v.__setitem__('n', v.get('n', 0)+1)), lambda v: float(v.n if v else 0)),
    set=Kind(set, inplace(lambda v: v.add(len(v))), len),
    frozenset=Kind(frozenset, lambda v: v|{len(v)}, len),
    deque=Kind(lambda: deque(maxlen=3), longer, lambda v: float(sum(v)+v.maxlen)),
    bytearray=Kind(bytearray, inplace(lambda v: v.append(1)), len),
    shared=Kind(lambda: (lambda l: dict(a=l, b=l))([]), both, lambda v: float(len(v['b']))),
    tagged=Kind(lambda: {'__kind__': 'mine', 'of': [0]}, inplace(lambda v: v['of'].append(1)),
        lambda v: float(len(v['of']))),
    box=Kind(Box, inplace(lambda v: setattr(v, 'n', v.n+1)), lambda v: float(v.n)),
    # rare ones
    sparse=Kind(lambda: torch.tensor([0.,1.]).to_sparse(), inplace(lambda v: v._values().add_(1)),
        lambda v: float(v.to_dense().sum())),
    bfloat=Kind(lambda: torch.zeros(2, dtype=torch.bfloat16), moved_in_place, lambda v: float(v.sum())),
    subclass=Kind(lambda: torch.zeros(2).as_subclass(Kept), inplace(lambda v: v.data.add_(1)),
        lambda v: float(v.as_subclass(torch.Tensor).sum())),
    masked_array=Kind(lambda: np.ma.array([0.,0.], mask=[False,True]), moved_in_place, lambda v: float(v[0])),
    array_dates=Kind(lambda: np.array(['2024-01-01'], 'datetime64[D]'), moved_in_place,
        lambda v: float(v.astype(int)[0]%100)),
    array_fields=Kind(lambda: np.zeros(1, [('n', 'f4')]), inplace(lambda v: v['n'].__iadd__(1)),
        lambda v: float(v['n'][0])),
    queue=Kind(queue.Queue, inplace(lambda v: v.put(1)), lambda v: float(v.qsize())),
    user_dict=Kind(lambda: UserDict(n=0), inplace(lambda v: v.update(n=v['n']+1)), lambda v: float(v['n'])),
    namespace=Kind(lambda: SimpleNamespace(n=0), inplace(lambda v: setattr(v, 'n', v.n+1)), lambda v: float(v.n)),
    dict_subclass=Kind(lambda: Tally(n=0), inplace(lambda v: v.update(n=v['n']+1)), lambda v: float(v['n'])),
    list_subclass=Kind(Trail, longer, numbered),
    iterator=Kind(lambda: iter(range(1000)), inplace(next), lambda v: float(next(copy(v)))),
    counting=Kind(itertools.count, inplace(next), lambda v: float(repr(v)[len('count('):-1])),
    yielding=Kind(lambda: [numbers(), 0], inplace(lambda v: v.__setitem__(1, next(v[0]))), lambda v: float(v[1])),
    closure=Kind(lambda: closure(), inplace(lambda v: v()), lambda v: float(v.__closure__[0].cell_contents)),
    method=Kind(lambda: Box().add, inplace(lambda v: v()), lambda v: float(v.__self__.n)),
    on_class=Kind(lambda: type('OnClass', (), dict(n=0)), inplace(lambda v: setattr(v, 'n', v.n+1)),
        lambda v: float(v.n)),
    array_of_bytes=Kind(lambda: array('i', [0]), inplace(lambda v: v.append(1)), len),
    bytes_io=Kind(BytesIO, inplace(lambda v: v.write(b'x')), lambda v: float(v.tell())),
    enum=Kind(lambda: Stage.a, lambda v: Stage(v.value%3+1), lambda v: float(v.value)),
    decimal=Kind(lambda: Decimal(0), lambda v: v+1, float),
    fraction=Kind(lambda: Fraction(1, 2), lambda v: v+1, float),
    time=Kind(timedelta, lambda v: v+timedelta(1), lambda v: float(v.days)),
    range=Kind(lambda: range(0), lambda v: range(len(v)+1), len),
    size=Kind(lambda: torch.Size([0]), lambda v: torch.Size([v[0]+1]), lambda v: float(v[0])),
    named_tuple=Kind(lambda: Point(0, 0), lambda v: Point(v.x+1, 0), lambda v: float(v.x)),
    dataclass=Kind(lambda: Noted(), inplace(lambda v: setattr(v, 'n', v.n+1)), lambda v: float(v.n)),
    context=Kind(lambda: in_context(), inplace(lambda v: v.set(v.get()+1)), lambda v: float(v.get())),
    cached=Kind(lambda: cache(lambda: [0]), inplace(lambda v: v().__setitem__(0, v()[0]+1)), lambda v: float(v()[0])),
    weak=Kind(lambda: weakly(), inplace(lambda v: setattr(v(), 'n', v().n+1)), lambda v: float(v().n)),
    locked=Kind(lambda: [threading.Lock(), 0], inplace(lambda v: v.__setitem__(1, v[1]+1)), lambda v: float(v[1])),
    csr=Kind(lambda: torch.tensor([[0.,1.]]).to_sparse_csr(), inplace(lambda v: v.values().add_(1)),
        lambda v: float(v.to_dense().sum())),
    parameter=Kind(lambda: nn.Parameter(torch.zeros(2)), inplace(lambda v: v.data.add_(1)),
        lambda v: float(v.detach().sum())),
    module=Kind(lambda: nn.BatchNorm1d(1), inplace(lambda v: v.num_batches_tracked.add_(1)),
        lambda v: float(v.num_batches_tracked)),
    module_number=Kind(lambda: with_number(), inplace(lambda v: setattr(v, 'n', v.n+1)), lambda v: float(v.n)),
    partial=Kind(lambda: partial(len, []), inplace(lambda v: v.args[0].append(1)), lambda v: float(v())))

with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    kinds['csr'].make() # torch says once that it may change

# Places: what keeps the state, and lets training depend on it
def scale(learn, kind, v): learn.loss_grad = learn.loss_grad*(1+kind.number(v)/50)

class InState(Callback):
    only_fit = True
    def __init__(self, kind): self.kind = kind
    def before_fit(self): self.learn.state['v'] = self.kind.make()
    def after_loss(self):
        if self.learn.training: scale(self.learn, self.kind, self.learn.state['v'])
    def after_batch(self): self.learn.state['v'] = self.kind.move(self.learn.state['v'])

class InCallback(Callback):
    _stateattrs = ('v',)
    only_fit = True
    def __init__(self, kind): self.kind = kind
    def before_fit(self): self.v = self.kind.make()
    def after_loss(self):
        if self.learn.training: scale(self.learn, self.kind, self.v)
    def after_batch(self): self.v = self.kind.move(self.v)

class OwnDict(InCallback):
    _stateattrs = ()
    def state_dict(self): return dict(of=[getattr(self, 'v', None)])
    def load_state_dict(self, state): self.v, = state['of']

class InTwo(InCallback):
    "The state of a callback is also in `learn.state`"
    def before_fit(self): super().before_fit(); self.learn.state['v'] = self.v
    def after_loss(self):
        if self.learn.training: scale(self.learn, self.kind, self.learn.state['v'])
    def after_batch(self):
        v = self.kind.move(self.v)
        if v is not self.v: self.learn.state['v'] = v
        self.v = v

class Gathers(Metric):
    def __init__(self, kind): self.kind = kind; self.reset()
    def reset(self): self.v = self.kind.make()
    def accumulate(self, learn): self.v = self.kind.move(self.v)
    @property
    def value(self): return self.kind.number(self.v)

class OptAttr(torch.optim.SGD):
    def __init__(self, params, lr, kind): super().__init__(params, lr); self._kind,self.v = lambda: kind,kind.make()
    def step(self, closure=None):
        for g in self.param_groups:
            lr,g['lr'] = g['lr'],g['lr']*(1+self._kind().number(self.v)/50)
        super().step(closure)
        for g in self.param_groups: g['lr'] = lr
        self.v = self._kind().move(self.v)

class OptState(torch.optim.SGD):
    def __init__(self, params, lr, kind): super().__init__(params, lr); self._kind = lambda: kind
    def step(self, closure=None):
        kind = self._kind()
        for p in self.param_groups[0]['params']:
            if 'v' not in self.state[p]: self.state[p]['v'] = kind.make()
            with torch.no_grad(): p.grad *= 1+kind.number(self.state[p]['v'])/50
            self.state[p]['v'] = kind.move(self.state[p]['v'])
        super().step(closure)

class OptGroup(torch.optim.SGD):
    def __init__(self, params, lr, kind):
        super().__init__(params, lr); self._kind = lambda: kind; self.param_groups[0]['v'] = kind.make()
    def step(self, closure=None):
        kind,g = self._kind(),self.param_groups[0]
        for p in g['params']:
            with torch.no_grad(): p.grad *= 1+kind.number(g['v'])/50
        g['v'] = kind.move(g['v'])
        super().step(closure)

class Order(Sampler):
    "Counts its epochs in a state, which decides the order"
    def __init__(self, kind, n): self.kind,self.n,self.v = kind,n,kind.make()
    def __len__(self): return self.n
    def __iter__(self):
        self.v = self.kind.move(self.v)
        rng = random.Random(self.kind.number(self.v))
        return iter(rng.sample(range(self.n), self.n))

class Points(Dataset):
    def __init__(self, n=12): g = torch.Generator().manual_seed(0); self.x = torch.randn(n, 2, generator=g)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i],self.x[i].sum(0, keepdim=True)

class CountingPoints(Points):
    "Each sample that is loaded moves the state, which decides the next one"
    def __init__(self, kind): super().__init__(); self.kind,self.v = kind,kind.make()
    def __getitem__(self, i):
        x,y = super().__getitem__(i)
        self.v = self.kind.move(self.v)
        return x,y*(1+self.kind.number(self.v)/100)

class Loader:
    "An iterable of batches that counts its epochs in a state"
    def __init__(self, kind): self.kind,self.v,self.ds = kind,kind.make(),Points()
    def __len__(self): return 4
    def __iter__(self):
        self.v = self.kind.move(self.v)
        idxs = random.Random(self.kind.number(self.v)).sample(range(12), 12)
        for i in range(0, 12, 3): yield self.ds.x[idxs[i:i+3]],self.ds.x[idxs[i:i+3]].sum(1, keepdim=True)

class StatefulLoader(Loader):
    def state_dict(self): return dict(v=self.v)
    def load_state_dict(self, state): self.v = state['v']
    def __iter__(self): # may be resumed in the middle of an epoch
        n = int(self.kind.number(self.v)*100)%3
        for i in range(0, 12, 3):
            self.v = self.kind.move(self.v) if i==0 else self.v
            yield self.ds.x[i:i+3]*(1+n),self.ds.x[i:i+3].sum(1, keepdim=True)

def loader(**kwargs): return DataLoader(**dict(dataset=Points(), batch_size=3) | kwargs)
def made(place, kind, path):
    random.seed(0); np.random.seed(0); torch.manual_seed(0)
    cbs,opt,train,kwargs = [],None,loader(),{}
    if place in callbacks: cbs = [callbacks[place](kind)]
    elif place in opts: opt = lambda ps,lr=.05: opts[place](ps, lr, kind)
    elif place=='sampler': train = loader(sampler=Order(kind, 12))
    elif place=='dataset': train = loader(dataset=CountingPoints(kind))
    elif place=='loader': train = Loader(kind)
    elif place=='metric': kwargs = dict(metrics=Gathers(kind))
    learn = Learner(DataLoaders(train, DataLoader(Points(6), 3), device='cpu'), nn.Linear(2, 1), F.mse_loss,
        opt_func=opt or SGD, lr=.05, path=path, cbs=cbs, **kwargs)
    learn.remove_cb(ProgressCallback)
    if place=='metric': learn.recorder.train_metrics = True
    return learn

callbacks = dict(state=InState, callback=InCallback, own_dict=OwnDict, shared_with_state=InTwo)
opts = dict(opt_attribute=OptAttr, opt_state=OptState, opt_group=OptGroup)
places = [*callbacks, 'metric', *opts, 'sampler', 'dataset', 'loader']

def state_of(place, learn):
    "The state at the end"
    if place in ('state','shared_with_state'): return learn.state['v']
    if place in callbacks: return next(o for o in learn.cbs if type(o) is callbacks[place]).v
    if place=='opt_attribute': return learn.opt.v
    if place=='opt_state': return learn.opt.state[learn.model.weight]['v']
    if place=='opt_group': return learn.opt.param_groups[0]['v']
    if place=='metric': return [o.train_gathers for o in learn.recorder.rows]
    train = learn.dls.train
    return dict(sampler=lambda: train.sampler.v, dataset=lambda: train.dataset.v, loader=lambda: train.v)[place]()

def outcome(place, kind, learn):
    v = state_of(place, learn)
    return ([p.tolist() for p in learn.model.parameters()],[dict(o, time=0) for o in learn.recorder.rows],type(v),
        v if place=='metric' else kind.number(v))

# Calls: ways to stop and to resume
class Interrupts(Callback):
    "Ctrl-C, or an error, at the `n`-th `ev`"
    order,watches = 500,True
    def __init__(self, ev, n, error=None):
        self.left,self.error = n,error
        super().__init__(**{ev: Interrupts.hit})
    def hit(self):
        self.left -= 1
        if self.left: return
        if self.error: raise self.error
        self.learn.at_pause(self.stop, stops=True)
    def stop(self): raise KeyboardInterrupt

class Call(NamedTuple):
    stop:tuple       # event, and how often it comes before
    resume:str       # `memory`, `file`: that a `Checkpoint` has written; or `saved`: by `save_state` after the stop
    every:Any = None # of the `Checkpoint`
    error:Any = None

# 4 batches of training, 2 of validation
in_train,in_valid,between = ('after_pred', 9),('after_pred', 6+5),('after_epoch', 1)
calls = dict(
    train_memory=Call(in_train, 'memory'), train_saved=Call(in_train, 'saved'),
    valid_memory=Call(in_valid, 'memory'), valid_saved=Call(in_valid, 'saved'),
    epoch_memory=Call(between, 'memory'), epoch_saved=Call(between, 'saved'),
    train_file=Call(in_train, 'file', 'iter', InterruptedError),
    valid_file=Call(in_valid, 'file', 'iter', InterruptedError),
    epoch_file=Call(in_train, 'file', 'epoch', InterruptedError))

def run(place, kind, call, path):
    "Stop a run and resume it; returns the learner"
    learn = made(place, kind, path)
    cbs = [Interrupts(*call.stop, call.error)]
    if call.resume=='file': cbs.append(Checkpoint(every=1, unit=call.every, on_exc=False))
    try: learn.fit(3, cbs=cbs)
    except (KeyboardInterrupt,InterruptedError): pass
    else: raise AssertionError('it was not stopped')
    if call.resume=='memory': return learn.resume(cbs=[])
    if call.resume=='saved':
        learn.save_state('here')
        return made(place, kind, path).load_state('here').resume()
    return made(place, kind, path).fit(3, cbs=Checkpoint(every=1, unit=call.every), resume=True)

known = '.*(`interrupts` is gone|replays its batches).*' # of the test itself; and of a loader that has no state

def verdict(place, kind, call, path):
    "`exact`, `refused`, `warned` or `silent`, and why"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        want = outcome(place, kind, made(place, kind, path/'whole').fit(3))
        seen.clear()
        try: learn = run(place, kind, call, path/'cut')
        except TypeError as e:
            if 'cannot be saved' in str(e): return 'refused',str(e)
            raise
    found = [str(o.message) for o in seen if 'other settings than it had: `interrupts` is gone' not in str(o.message)]
    if outcome(place, kind, learn)==want: return ('exact' if not found else 'warned'),found
    return ('warned' if found else 'silent'),found

@pytest.mark.sample(80)
@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('place', places)
@pytest.mark.parametrize('kind', kinds)
def test_nothing_is_silent(kind, place, call, tmp_path, tally):
    res,why = verdict(place, kinds[kind], calls[call], tmp_path)
    tally(res)
    assert res!='silent'

@pytest.mark.parametrize('kind,place,call',
    [('locked', 'sampler', 'epoch_saved'), ('yielding', 'loader', 'epoch_saved'),
        ('yielding', 'state', 'valid_memory')])
def test_a_list_of_objects_that_moved_is_named(kind, place, call, tmp_path):
    "One of the same length as before, and one in which only an iterator has moved"
    res,why = verdict(place, kinds[kind], calls[call], tmp_path)
    assert res=='warned' and any('could not be put back' in o or 'cannot be put back' in o for o in why)

# A trial puts an optimizer back
trials = dict(lr_find=lambda learn: learn.lr_find(num_it=6, show_plot=False), smoke=lambda learn: learn.smoke(),
    profile=lambda learn: learn.profile(n=2))

@pytest.mark.sample(24)
@pytest.mark.parametrize('trial', trials)
@pytest.mark.parametrize('place', opts)
@pytest.mark.parametrize('kind', kinds)
def test_a_trial_leaves_the_state_of_an_optimizer_alone(kind, place, trial, tmp_path, tally):
    ends = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        warnings.simplefilter('ignore', DeprecationWarning) # of copies of iterators, which `kinds` make
        for tried in (False, True):
            learn = made(place, kinds[kind], tmp_path).fit(1)
            if tried:
                with redirect_stdout(StringIO()): trials[trial](learn)
            ends.append(outcome(place, kinds[kind], learn.fit(1)))
    if kind=='yielding': assert any('cannot be put back after an inference' in str(o.message) for o in seen)
    else: assert ends[0]==ends[1] and not seen
    tally('warned' if seen else 'exact')

# What a loader keeps further inside
class InTransform(Points):
    "A transform that can be called counts in an attribute"
    def __init__(self): super().__init__(); self.transform = Scales()
    def __getitem__(self, i): x,y = super().__getitem__(i); return self.transform(x),y
class Scales:
    def __init__(self): self.n = 0
    def __call__(self, x): self.n += 1; return x*(1+self.n/100)
class InMethodCache(Points):
    "Counts in what a method with a cache has returned"
    @cache
    def counts(self, name): return dict(n=0)
    def __getitem__(self, i):
        x,y = super().__getitem__(i)
        o = self.counts('a')
        o['n'] += 1
        return x*(1+o['n']/100),y

def on_dataset(ds, path, **kwargs):
    dls = DataLoaders(loader(dataset=ds, **kwargs), device='cpu')
    return Learner(dls, nn.Linear(2, 1), F.mse_loss, path=path).remove_cb(ProgressCallback)

def resume_from_file(new):
    "A fit is cut in training and saved, and resumed by a new learner"
    learn = new()
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Interrupts(*in_train))
    learn.save_state('here')
    new().load_state('here').resume(cbs=[])

@pytest.mark.parametrize('ds,named', [(InTransform, 'dataset.transform'), (InMethodCache, 'dataset.counts')])
def test_a_resume_from_a_file_names_what_counts_inside_of_a_dataset(ds, named, tmp_path):
    def new(): return on_dataset(ds(), tmp_path)
    learn = new()
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Interrupts(*in_train))
    learn.save_state('here')
    InMethodCache.counts.cache_clear() # as in another process
    with pytest.warns(UserWarning, match=f'`{named}`.* of the training loader changed during the run'):
        new().load_state('here').resume(cbs=[])

class Tokenizer:
    "Notes what it has warned of, and is no part of the run"
    def __init__(self): self.said = {}
class Collates:
    "Scales by what a container counts; `same` does not change"
    def __init__(self, seen): self.seen,self.same,self.tokenizer = seen,{'a': [1, torch.ones(1)]},Tokenizer()
    def __call__(self, samples):
        self.tokenizer.said[len(self.tokenizer.said)] = True
        if isinstance(self.seen, list): self.seen.append(len(self.seen))
        elif self.seen is not None: self.seen += 1
        x,y = torch.utils.data.default_collate(samples)
        return x*(1+.01*(0 if self.seen is None else float(max(self.seen)))),y
    def method(self, samples): return self(samples)

@pytest.mark.parametrize('how', ['called','method','partial'])
@pytest.mark.parametrize('seen', [list, lambda: torch.zeros(1), lambda: np.zeros(1), lambda: None],
    ids=['list','tensor','array','none'])
def test_a_resume_from_a_file_names_containers_in_which_a_collate_function_counts(seen, how, tmp_path):
    def new():
        o = Collates(seen())
        f = dict(called=o, method=o.method, partial=partial(o))[how]
        return Learner(DataLoaders(loader(collate_fn=f), device='cpu'), nn.Linear(2, 1), F.mse_loss,
            path=tmp_path).remove_cb(ProgressCallback)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        resume_from_file(new)
    said = [str(o.message) for o in said if 'of the training loader' in str(o.message)]
    assert len(said)==(seen() is not None) and all(o.startswith('`collate_fn.seen` of') for o in said)

class Fails(dict):
    def __copy__(self): raise RuntimeError('no copy')
class Strange:
    "Has what cannot be looked through, and a method of its class collates"
    n,fails = 0,Fails(a=1)
    def __init__(self):
        self.fails,self.long,self.deep = Fails(a=1),[*range(10**5)],[]
        for _ in range(3000): self.deep = [self.deep]
    @classmethod
    def of_class(cls, samples): return torch.utils.data.default_collate(samples)
    def __call__(self, samples): return torch.utils.data.default_collate(samples)
@pytest.mark.parametrize('collate', [Strange(), Strange.of_class, partial(Strange.of_class)],
    ids=['object','method of a class','partial'])
def test_whatever_collates_can_be_looked_at(collate, tmp_path, recwarn):
    def new():
        dls = DataLoaders(*[loader(collate_fn=collate)]*2, device='cpu') # and `validate` has a loader
        return Learner(dls, nn.Linear(2, 1), F.mse_loss, path=tmp_path).remove_cb(ProgressCallback)
    new().validate()
    resume_from_file(new)
    assert not [o for o in recwarn if 'of the training loader' in str(o.message)]

class MethodCollates(Points):
    "A dataset whose method collates, and counts in a list"
    def __init__(self): super().__init__(); self.seen = []
    def collate(self, samples): self.seen.append(1); return torch.utils.data.default_collate(samples)
@pytest.mark.parametrize('inside', [False, True])
def test_a_list_of_a_dataset_that_collates_is_named_once(inside, tmp_path):
    "Also where it is inside of another one"
    def new():
        ds = MethodCollates()
        return on_dataset(torch.utils.data.Subset(ds, range(9)) if inside else ds, tmp_path, collate_fn=ds.collate)
    with pytest.warns(UserWarning) as said: resume_from_file(new)
    said = [str(o.message) for o in said if 'of the training loader changed' in str(o.message)]
    assert len(said)==1 and said[0].startswith('`dataset.dataset`' if inside else '`dataset.seen` of')

class Looks(Points):
    "A cache of results that stay what they are"
    @cache
    def tokens(self, i): return [i, i+1]
    def __getitem__(self, i): assert self.tokens(i)==[i, i+1]; return super().__getitem__(i)
def test_a_resume_from_a_file_says_nothing_of_a_cache_that_only_grows(tmp_path):
    def new(): return on_dataset(Looks(), tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        resume_from_file(new)
    assert not [o for o in said if 'of the training loader' in str(o.message)]
