"""State that a model, a loss, a callback or a loader may hide, of every kind: each `draw` moves it, and returns a
number that depends on it"""
import io,itertools,queue,random,threading
from array import array
from collections import ChainMap,Counter,OrderedDict,UserDict,UserList,defaultdict,deque,namedtuple
from contextvars import ContextVar
from dataclasses import dataclass,field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import cache,lru_cache,partial
from tempfile import TemporaryFile
from types import SimpleNamespace
from weakref import WeakKeyDictionary,ref
import numpy as np, torch
from fastcore.foundation import L
from torch import nn
from torch.nn.utils import parametrizations,spectral_norm,weight_norm

# State of modules
class Draw(nn.Module):
    def forward(self): return self.move()/10

class InPlace(Draw):
    def __init__(self): super().__init__(); self.register_buffer('n', torch.zeros(()))
    def move(self): self.n += 1; return self.n.clone()
class Hidden(InPlace):
    def __init__(self): super().__init__(); del self.n; self.register_buffer('n', torch.zeros(()), persistent=False)
class Replaced(InPlace):
    def move(self): self.n = self.n+1; return self.n
class PastVersion(InPlace):
    def move(self): self.n.data.add_(1); return self.n.clone()
class ByNumpy(InPlace):
    def move(self): self.n.numpy()[...] += 1; return self.n.clone()
class Resized(InPlace):
    def __init__(self): super().__init__(); self.n = torch.zeros(1)
    def move(self): self.n.resize_(len(self.n)+1).fill_(len(self.n)); return self.n.mean()
class MovingNorm(nn.BatchNorm1d):
    def move(self): self.running_mean += 1; return self.running_mean.mean()
    def forward(self): return self.move()/10
    def __init__(self): super().__init__(1)
class EagerNorm(Draw):
    "Always in training mode"
    def __init__(self): super().__init__(); self.bn = nn.BatchNorm1d(1)
    def move(self): self.bn.train(); self.bn(torch.tensor([[1.],[3.]])); return self.bn.running_mean.mean()
class Observed(Draw):
    "Quantization-aware training: observers move in evaluation too"
    def __init__(self):
        super().__init__()
        from torch.ao.quantization import FakeQuantize,MovingAverageMinMaxObserver
        self.q,self.i = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255),1.
        self.register_buffer('x', torch.ones(1))
    def move(self): self.q(self.x); self.x *= 1.1; return self.q.scale.mean()*100
class Frozen(Draw):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(()), requires_grad=False)
    def move(self): self.w.add_(1); return self.w.clone()
class FrozenData(Frozen):
    def move(self): self.w.data.add_(1); return self.w.clone()
class MaxNorm(Draw):
    "An embedding that shortens the rows that it is asked for"
    def __init__(self):
        super().__init__(); self.e,self.i = nn.Embedding(60, 2, max_norm=.5),0; nn.init.ones_(self.e.weight)
    def move(self):
        i = int((self.e.weight.detach().norm(dim=1)<1).sum())
        self.e(torch.tensor([min(i, 59)])); return torch.tensor(float(i))
class InGradient(Draw):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(()))
    def move(self):
        with torch.enable_grad(): (self.w*1.).backward()
        return self.w.grad.clone()

class Own(Draw):
    "An attribute"
    def __init__(self): super().__init__(); self.h = self.first()
    def first(self): return None
class Count(Own):
    def first(self): return 0
    def move(self): self.h += 1; return torch.tensor(float(self.h))
class Rebound(Own):
    def move(self): self.h = torch.ones(()) if self.h is None else self.h+1; return self.h
class TensorInPlace(Own):
    def first(self): return torch.zeros(())
    def move(self): self.h += 1; return self.h.clone()
class Array(Own):
    def first(self): return np.zeros(1)
    def move(self): self.h += 1; return torch.tensor(float(self.h[0]))
class Grows(Own):
    def first(self): return []
    def add(self): self.h.append(1)
    def move(self): self.add(); return torch.tensor(float(len(self.h)))
class Queue(Grows):
    def first(self): return deque()
class Members(Grows):
    def first(self): return set()
    def add(self): self.h.add(len(self.h))
class Names(Grows):
    def first(self): return {}
    def add(self): self.h[str(len(self.h))] = 1
class Counted(Own):
    def first(self): return Counter()
    def move(self): self.h['n'] += 1; return torch.tensor(float(self.h['n']))
class Ordered(Names):
    def first(self): return OrderedDict()
class Nested(Grows):
    def first(self): return dict(a=[dict(b=[])])
    def move(self): o = self.h['a'][0]['b']; o.append(torch.ones(())); return sum(o)
class ListedTensors(Own):
    def first(self): return [torch.zeros(())]
    def move(self): self.h[0].data.add_(1); return self.h[0].clone()
class New(Own):
    "An attribute that the first call makes"
    def __init__(self): nn.Module.__init__(self)
    def move(self): self.h = getattr(self, 'h', 0)+1; return torch.tensor(float(self.h))
class Cache:
    def __init__(self): self.n = 0
class Slots:
    __slots__ = 'n',
    def __init__(self): self.n = 0
class PrivateSlots:
    "Python keeps the slot as `_PrivateSlots__n`"
    __slots__ = '__n',
    def __init__(self): self.__n = 0
    def up(self): self.__n += 1; return self.__n
class InObject(Own):
    first = Cache
    def move(self): self.h.n += 1; return torch.tensor(float(self.h.n))
class InSlots(InObject): first = Slots
class InPrivateSlots(Own):
    first = PrivateSlots
    def move(self): return torch.tensor(float(self.h.up()))
class InNamespace(InObject):
    def first(self): return SimpleNamespace(n=0)
class Unregistered(Own):
    def first(self): return [Count()]
    def move(self): return self.h[0].move()

buffers = dict(in_place=InPlace, hidden=Hidden, replaced=Replaced, past_version=PastVersion, by_numpy=ByNumpy,
    resized=Resized, moving_norm=MovingNorm, eager_norm=EagerNorm, observed=Observed,
    frozen=Frozen, frozen_data=FrozenData, max_norm=MaxNorm, gradient=InGradient)
attributes = dict(count=Count, rebound=Rebound, tensor=TensorInPlace, array=Array, list=Grows, deque=Queue, set=Members,
    dict=Names, counter=Counted, ordered=Ordered, nested=Nested, listed_tensors=ListedTensors,
    new=New, object=InObject, slots=InSlots, private_slots=InPrivateSlots, namespace=InNamespace,
    unregistered=Unregistered)

# Rarer kinds. `first` makes the state, and `then` moves it, in place where it can, and returns it and a number
def kind(first, then):
    class Rare(Own):
        def move(self):
            self.h,n = then(self.h)
            return n if isinstance(n, torch.Tensor) else torch.tensor(float(n))
    Rare.first = lambda self: first()
    return Rare
def in_place(f, number):
    "A state that `f` moves in place"
    def then(h): f(h); return h,number(h)
    return then
def adds(h): h += 1
def adds_data(h): h.data.add_(1)
def counts(h): h['n'] += 1
def value_of(h): return h.as_subclass(torch.Tensor).sum().clone()
def rekey(h): n = next(iter(h)); h[n+1] = h.pop(n)
def requeue(h): h.put(h.get()+1)

class Kept(torch.Tensor): pass
@dataclass
class Noted: n:int=0
@dataclass(slots=True)
class NotedSlots: n:int=0
@dataclass(frozen=True)
class NotedFrozen: n:list = field(default_factory=list)
Stage = Enum('Stage', 'a b c d e f g')
def stages(h): h = [*Stage][h.value%7]; return h,h.value
def numbers():
    for i in range(1000): yield i
def drawn(h): return h,next(h)
def in_closure():
    n = 0
    def f(): nonlocal n; n += 1; return n
    return f
def in_closed_dict():
    o = dict(n=0)
    def f(): o['n'] += 1; return o['n']
    return f
def in_closed_tensor():
    t = torch.zeros(())
    def f(): t.data.add_(1); return t.clone()
    return f
def on_function():
    def f(): f.n += 1; return f.n
    f.n = 0
    return f
def in_default():
    def f(o=dict(n=0)): o['n'] += 1; return o['n']
    f.__defaults__ = dict(n=0),
    return f
def in_keyword():
    def f(*, o=None): o['n'] += 1; return o['n']
    f.__kwdefaults__ = dict(o=dict(n=0))
    return f
def called(f): return f,f()
kept = []
def weakly(): kept.append(Cache()); return ref(kept[-1])
def by_weak(r): r().n += 1; return r,r().n
class ByName(Own):
    "Equal values under other names"
    def __init__(self): nn.Module.__init__(self); self.a = 1
    def move(self):
        if hasattr(self, 'a'): del self.a; self.b = 1; return torch.tensor(1.)
        del self.b; self.a = 1; return torch.tensor(2.)
class KeyedWeakly(Own):
    def first(self): return WeakKeyDictionary()
    def move(self): self.h[self] = self.h.get(self, 0)+1; return torch.tensor(float(self.h[self]))
_calls = 0
class InGlobal(Own):
    def __init__(self): super().__init__(); global _calls; _calls = 0
    def move(self): global _calls; _calls += 1; return torch.tensor(float(_calls))
def in_method():
    "A variable around a method"
    n = 0
    class InMethod(Draw):
        def move(self): nonlocal n; n += 1; return torch.tensor(float(n))
    return InMethod()
def in_method_default():
    class InDefault(Draw):
        def move(self, o=None): o[0] += 1; return torch.tensor(float(o[0]))
    InDefault.move.__defaults__ = [0],
    return InDefault()
class Other: calls = 0
class OnOther(Draw):
    "A class that is called by its name"
    def __init__(self): super().__init__(); Other.calls = 0
    def move(self): Other.calls += 1; return torch.tensor(float(Other.calls))
def counted(): global _calls; _calls += 1; return _calls
class InCalled(Draw):
    "A function that is called by its name, and assigns a global variable"
    def __init__(self): super().__init__(); global _calls; _calls = 0
    def move(self): return torch.tensor(float(counted()))
class InStatic(InCalled):
    @staticmethod
    def count(): global _calls; _calls += 1; return _calls
    def move(self): return torch.tensor(float(self.count()))
class InProperty(InCalled):
    @property
    def count(self): global _calls; _calls += 1; return _calls
    def move(self): return torch.tensor(float(self.count))
namespace = SimpleNamespace(n=0)
class InNamespace(Draw):
    def __init__(self): super().__init__(); namespace.n = 0
    def move(self): namespace.n += 1; return torch.tensor(float(namespace.n))
class Counts:
    n = 0
    def __call__(self, m, i, o): self.n += 1; return o*self.n
def in_hook(hook):
    "The state of a hook"
    class Hooked(Draw):
        def __init__(self): super().__init__(); self.m = nn.Identity(); self.m.register_forward_hook(hook())
        def move(self): return self.m(torch.ones(()))
    return Hooked
def counting_hook():
    n = 0
    def hook(m, i, o): nonlocal n; n += 1; return o*n
    return hook
def on_class(first, then):
    "The state of a class"
    def make():
        class OnClass(Draw):
            def move(self):
                type(self).h,n = then(self.h); return n if isinstance(n, torch.Tensor) else torch.tensor(float(n))
        OnClass.h = first()
        return OnClass()
    return make
context,global_counts,global_list,global_tensor = ContextVar('context', default=0),{},[],torch.zeros(())
class InContext(Draw):
    def __init__(self): super().__init__(); context.set(0)
    def move(self): context.set(context.get()+1); return torch.tensor(float(context.get()))
class InGlobalDict(Draw):
    "A container of the module, which no function assigns"
    def __init__(self): super().__init__(); global_counts.clear(); global_counts['n'] = 0
    def move(self): global_counts['n'] += 1; return torch.tensor(float(global_counts['n']))
class InGlobalList(Draw):
    def __init__(self): super().__init__(); global_list[:] = [0]
    def move(self): global_list[0] += 1; return torch.tensor(float(global_list[0]))
class InGlobalTensor(Draw):
    def __init__(self): super().__init__(); global_tensor.zero_()
    def move(self): global_tensor.add_(1); return global_tensor.clone()
class InCache(Draw):
    "What a function with a cache has returned, for each number of calls"
    def __init__(self):
        super().__init__()
        @cache
        def results(): return dict(n=0)
        self.results = results
    def move(self): o = self.results(); o['n'] += 1; return torch.tensor(float(o['n']))
class InBoundedCache(Draw):
    def __init__(self):
        super().__init__()
        @lru_cache(4)
        def results(i): return [0]
        self.results = results
    def move(self):
        self.results(0)[0] += 1
        self.results(1)[0] += 2; return torch.tensor(float(self.results(0)[0]+self.results(1)[0]))
class OnMember(Draw):
    "Attributes of a member of an enumeration"
    def __init__(self): super().__init__(); Stage.a.calls = 0
    def move(self): Stage.a.calls += 1; return torch.tensor(float(Stage.a.calls))
class OnParameter(Draw):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(())); self.w.calls = 0
    def move(self): self.w.calls += 1; return torch.tensor(float(self.w.calls))
def buffer(first, f, number):
    class InBuffer(Draw):
        def __init__(self): super().__init__(); self.register_buffer('n', first())
        def move(self): f(self.n); return number(self.n)
    return InBuffer
class SubParameter(Draw):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(1).as_subclass(Kept), requires_grad=False)
    def move(self): adds_data(self.w); return value_of(self.w)
class NewParameter(Draw):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(()), requires_grad=False)
    def move(self): self.w = nn.Parameter(self.w+1, requires_grad=False); return self.w.clone()
class NewModule(Draw):
    def __init__(self): super().__init__(); self.m = Count()
    def move(self): m = Count(); m.h = self.m.h+1; self.m = m; return torch.tensor(float(m.h))
class NewModuleWithBuffer(Draw):
    def __init__(self): super().__init__(); self.m = InPlace()
    def move(self): m = InPlace(); m.n = self.m.n+1; self.m = m; return m.n.clone()
class BufferObject(InPlace):
    def __init__(self): nn.Module.__init__(self); self.n = nn.Buffer(torch.zeros(()), persistent=False)
class Tied(Draw):
    def __init__(self): super().__init__(); self.a,self.b = InPlace(),InPlace(); self.b.n = self.a.n
    def move(self): self.a.move(); return self.b.move()
class View(Draw):
    "Shows memory of a parameter"
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(2)); self.v = self.view()
    def view(self): return self.w.data.view(-1)[:1]
    def move(self): self.v += 1; return self.w.detach().sum().clone()
class ArrayView(View):
    def view(self): return self.w.data.numpy()[1:]
class Spectral(Draw):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l = self.norm(nn.Linear(3, 3))
    norm = staticmethod(parametrizations.spectral_norm)
    def move(self): self.l.train(); return self.l(torch.ones(3)).detach().sum()
class OldSpectral(Spectral): norm = staticmethod(spectral_norm)
class WeightNorm(Spectral):
    norm = staticmethod(parametrizations.weight_norm)
    def move(self): adds_data(self.l.parametrizations.weight.original0); return self.l(torch.ones(3)).detach().sum()
class OldWeightNorm(Spectral):
    norm = staticmethod(weight_norm)
    def move(self): adds_data(self.l.weight_g); return self.l(torch.ones(3)).detach().sum()
class Recurrent(Own):
    "Hidden states as a list of tuples"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.r = nn.LSTM(2, 2)
    def first(self): return [(torch.zeros(1,1,2), torch.zeros(1,1,2))]
    def move(self):
        o,h = self.r(torch.ones(1,1,2), self.h[0]); self.h[0] = tuple(t.detach() for t in h); return o.detach().sum()
class Compiled(Draw):
    def __init__(self): super().__init__(); self.c = torch.compile(InPlace(), backend='eager')
    def move(self): return self.c()*10

coo,csr = lambda: torch.tensor([0.,1.]).to_sparse(),lambda: torch.tensor([[0.,1.]]).to_sparse_csr()
def dense(h): return h.to_dense().sum()
rare = dict(partial=kind(lambda: partial(len, []), in_place(lambda h: h.args[0].append(1), lambda h: h())),
    rekeyed=kind(lambda: {0: True}, in_place(rekey, lambda h: next(iter(h)))),
    reordered=kind(lambda: OrderedDict.fromkeys(range(5)),
        in_place(lambda h: h.move_to_end(next(iter(h))), lambda h: next(iter(h)))),
    renamed=ByName, default_dict=kind(lambda: defaultdict(int), in_place(counts, lambda h: h['n'])),
    chain_map=kind(lambda: ChainMap(dict(n=0)), in_place(counts, lambda h: h['n'])),
    user_dict=kind(lambda: UserDict(n=0), in_place(counts, lambda h: h['n'])),
    user_list=kind(UserList, in_place(lambda h: h.append(1), len)),
    fastcore_list=kind(L, in_place(lambda h: h.append(1), len)),
    queue=kind(lambda: (lambda q: q.put(0) or q)(queue.Queue()), in_place(requeue, lambda h: h.queue[0])),
    thread_local=kind(threading.local, in_place(lambda h: setattr(h, 'n', getattr(h, 'n', 0)+1), lambda h: h.n)),
    bytearray=kind(lambda: bytearray(1), in_place(lambda h: h.__setitem__(0, h[0]+1), lambda h: h[0])),
    array_of_bytes=kind(lambda: array('i', [0]), in_place(lambda h: h.__setitem__(0, h[0]+1), lambda h: h[0])),
    bytes_io=kind(io.BytesIO, in_place(lambda h: h.write(b'x'), lambda h: h.tell())),
    string_io=kind(io.StringIO, in_place(lambda h: h.write('x'), lambda h: h.tell())),
    object_array=kind(lambda: np.array([0, None]), in_place(lambda h: h.__setitem__(0, h[0]+1), lambda h: h[0])),
    masked_array=kind(lambda: np.ma.array([0.,0.], mask=[False,True]), in_place(adds, lambda h: h[0])),
    memory_map=kind(lambda: np.memmap(TemporaryFile(), 'f4', 'w+', shape=2), in_place(adds, lambda h: h[0])),
    numpy_number=kind(lambda: np.float32(0), lambda h: (h+np.float32(1), h)),
    count=kind(itertools.count, drawn), cycle=kind(lambda: itertools.cycle([1,2,3,5,7,11,13]), drawn),
    list_iterator=kind(lambda: iter([*range(1000)]), drawn),
    chained=kind(lambda: itertools.chain([1], itertools.count(5)), drawn),
    zipped=kind(lambda: map(sum, zip(itertools.count(), range(1000))), drawn), yielding=kind(numbers, drawn),
    sobol=kind(lambda: torch.quasirandom.SobolEngine(1), lambda h: (h, h.draw(1).sum())),
    bit_generator=kind(lambda: np.random.PCG64(1), lambda h: (h, h.random_raw()%1000/100)),
    seed_sequence=kind(lambda: np.random.SeedSequence(1), lambda h: (h, h.spawn(1)[0].spawn_key[0])),
    sparse=buffer(coo, lambda n: n._values().add_(1), dense),
    sparse_grows=buffer(coo, lambda n: n.add_(torch.ones(2).to_sparse()), dense),
    sparse_rows=buffer(csr, lambda n: n.values().add_(1), dense),
    subclass=buffer(lambda: torch.zeros(1).as_subclass(Kept), adds_data, value_of),
    subclass_attribute=kind(lambda: torch.zeros(1).as_subclass(Kept), in_place(adds_data, value_of)),
    subclass_parameter=SubParameter,
    bfloat=buffer(lambda: torch.zeros((), dtype=torch.bfloat16), adds, lambda n: n.float().clone()),
    bfloat_attribute=kind(lambda: torch.zeros((), dtype=torch.bfloat16), in_place(adds, lambda h: h.float().clone())),
    new_parameter=NewParameter, new_module=NewModule, new_module_with_buffer=NewModuleWithBuffer,
    buffer_object=BufferObject, tied=Tied, view=View, array_view=ArrayView, on_parameter=OnParameter,
    spectral_norm=Spectral, old_spectral_norm=OldSpectral, weight_norm=WeightNorm, old_weight_norm=OldWeightNorm,
    recurrent=Recurrent, compiled=Compiled, in_method=in_method, in_method_default=in_method_default,
    on_other_class=OnOther, in_called=InCalled, in_static_method=InStatic, in_property=InProperty,
    in_namespace=InNamespace, in_hook=in_hook(counting_hook), on_hook=in_hook(Counts),
    on_class=on_class(lambda: 0, lambda h: (h+1, h)),
    tensor_on_class=on_class(lambda: torch.zeros(()), in_place(adds_data, torch.clone)),
    **{f.__name__:kind(f, called)
        for f in (in_closure, in_closed_dict, in_closed_tensor, on_function, in_default, in_keyword)},
        in_global=InGlobal,
    dataclass=kind(Noted, in_place(lambda h: setattr(h, 'n', h.n+1), lambda h: h.n)),
    dataclass_slots=kind(NotedSlots, in_place(lambda h: setattr(h, 'n', h.n+1), lambda h: h.n)),
    frozen_dataclass=kind(NotedFrozen, in_place(lambda h: h.n.append(1), lambda h: len(h.n))),
    context=InContext, context_attribute=kind(lambda: ContextVar('own', default=0),
        in_place(lambda h: h.set(h.get()+1), lambda h: h.get())), global_dict=InGlobalDict, global_list=InGlobalList,
        global_tensor=InGlobalTensor,
    cached=InCache, bounded_cache=InBoundedCache, on_member=OnMember, enum=kind(lambda: Stage.a, stages),
    decimal=kind(lambda: Decimal(0), lambda h: (h+1, h)), time=kind(timedelta, lambda h: (h+timedelta(1), h.days)),
    range=kind(lambda: range(0), lambda h: (range(len(h)+1), len(h))),
    size=kind(lambda: torch.Size((0,)), lambda h: (torch.Size((h[0]+1,)), h[0])),
    named_tuple=kind(lambda: Point(0, 1), lambda h: (h._replace(x=h.x+1), h.x)), weak_reference=kind(weakly, by_weak),
    weak_keys=KeyedWeakly)
Point = namedtuple('Point', 'x y')
unsaved = ('array_of_bytes','bytes_io','string_io','object_array','masked_array','memory_map','count','cycle',
    'list_iterator','chained','zipped','yielding','seed_sequence','subclass','subclass_attribute','subclass_parameter',
    # a file cannot hold them: they are named in a warning, or refused
    'cached','bounded_cache','enum','decimal','time','range','named_tuple','weak_keys')

# Generators
def number(rng):
    return (torch.rand((), generator=rng)
        if isinstance(rng, torch.Generator) else torch.tensor(
            float(rng.random() if hasattr(rng, 'random') else rng.random_sample())))
def called_as(f): return lambda: torch.tensor(float(f()))
rngs = dict(torch=lambda: torch.Generator().manual_seed(1), numpy=lambda: np.random.default_rng(1),
    old_numpy=lambda: np.random.RandomState(1), python=lambda: random.Random(1))

class Holds:
    def __init__(self, **kwargs): vars(self).update(kwargs)
    def __call__(self): return number(self.get())
class Attribute(Holds):
    def get(self): return self.rng
class Slotted:
    __slots__ = 'rng',
class PrivatelySlotted:
    __slots__ = '__rng',
    def __init__(self, rng): self.__rng = rng
    @property
    def rng(self): return self.__rng
class Pair(namedtuple('Pair', 'a rng')): pass
class LongList(Holds):
    def get(self): return self.o[-1].rng
class Deep(Holds):
    def get(self):
        o = self.o
        while not hasattr(o, 'rng'): o = o.o
        return o.rng
class Inside(Holds):
    def get(self): return self.o.rng
class InList(Holds):
    def get(self): return [*self.o][-1] if not isinstance(self.o, dict) else [*self.o.values()][-1]

def of_class(rng):
    class OnClass(Attribute): pass
    OnClass.rng = rng
    return OnClass()
def of_base(rng):
    class Base(Attribute): pass
    class Derived(Base): pass
    Base.rng = rng
    return Derived()
def deep(rng):
    o = Holds(rng=rng)
    for _ in range(12): o = Holds(o=o)
    return Deep(o=o)
def in_slots(rng):
    o = Slotted()
    o.rng = rng
    return Inside(o=o)
def closure(rng):
    def draw(): return number(rng)
    return draw
def default(rng):
    def draw(rng=rng): return number(rng)
    return draw
def keyword(rng):
    def draw(*, rng=rng): return number(rng)
    return draw
def of_function(rng):
    def draw(): return number(draw.rng)
    draw.rng = rng
    return draw
_global = None
def by_global(): return number(_global)
def global_variable(rng):
    global _global
    _global = rng
    return by_global
def bound(rng): return Attribute(rng=rng).__call__
def hooked(rng):
    m = nn.Identity()
    m.register_forward_hook(lambda m, i, o: o+number(rng))
    return partial(m, torch.zeros(()))

ways = dict(attribute=lambda rng: Attribute(rng=rng), slots=in_slots,
    private_slots=lambda rng: Inside(o=PrivatelySlotted(rng)), on_class=of_class, on_base=of_base, deep=deep,
    long_list=lambda rng: LongList(o=[*(Holds() for _ in range(300)), Holds(rng=rng)]),
    tuple=lambda rng: InList(o=(1, rng)), named_tuple=lambda rng: Inside(o=Pair(1, rng)),
    dict=lambda rng: InList(o={**{str(i):i for i in range(500)}, 'rng': rng}), set=lambda rng: InList(o={rng}),
    deque=lambda rng: InList(o=deque([rng])),
    list_of_tuples=lambda rng: Holds.__new__(Pairs)._with([*((str(i), i) for i in range(3000)), ('x', rng)]),
    closure=closure, default=default, keyword=keyword, function=of_function, partial=lambda rng: partial(number, rng),
    global_variable=global_variable, bound=bound, hook=hooked)
class Pairs(Holds):
    def _with(self, o): self.o = o; return self
    def get(self): return self.o[-1][1]
generators = {**{f'{k} in an attribute':partial(lambda f: Attribute(rng=f()), f) for k,f in rngs.items()},
    'a bound method of Python':lambda: called_as(random.Random(1).random),
    'an endless iterator of calls':lambda: called_as(partial(next, iter(random.Random(1).random, 2.))),
    **{f'in {k}':partial(lambda w, f: w(f()), w, rngs[[*rngs][i%4]])
        for i,(k,w) in enumerate(ways.items()) if k!='attribute'}}
