"State that a model, a loss, a callback or a loader may hide, of every kind: each `draw` moves it, and returns a number that depends on it"
import random
from collections import Counter,OrderedDict,deque,namedtuple
from functools import partial
from types import SimpleNamespace
import numpy as np, torch
from torch import nn

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
    def __init__(self): super().__init__(); self.e,self.i = nn.Embedding(60, 2, max_norm=.5),0; nn.init.ones_(self.e.weight)
    def move(self): i = int((self.e.weight.detach().norm(dim=1)<1).sum()); self.e(torch.tensor([min(i, 59)])); return torch.tensor(float(i))
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
class InObject(Own):
    first = Cache
    def move(self): self.h.n += 1; return torch.tensor(float(self.h.n))
class InSlots(InObject): first = Slots
class InNamespace(InObject):
    def first(self): return SimpleNamespace(n=0)
class Unregistered(Own):
    def first(self): return [Count()]
    def move(self): return self.h[0].move()

buffers = dict(in_place=InPlace, hidden=Hidden, replaced=Replaced, past_version=PastVersion, by_numpy=ByNumpy, resized=Resized, moving_norm=MovingNorm, eager_norm=EagerNorm, observed=Observed,
    frozen=Frozen, frozen_data=FrozenData, max_norm=MaxNorm, gradient=InGradient)
attributes = dict(count=Count, rebound=Rebound, tensor=TensorInPlace, array=Array, list=Grows, deque=Queue, set=Members, dict=Names, counter=Counted, ordered=Ordered, nested=Nested, listed_tensors=ListedTensors,
    new=New, object=InObject, slots=InSlots, namespace=InNamespace, unregistered=Unregistered)

# Generators
def number(rng): return torch.rand((), generator=rng) if isinstance(rng, torch.Generator) else torch.tensor(float(rng.random() if hasattr(rng, 'random') else rng.random_sample()))
rngs = dict(torch=lambda: torch.Generator().manual_seed(1), numpy=lambda: np.random.default_rng(1), old_numpy=lambda: np.random.RandomState(1), python=lambda: random.Random(1))

class Holds:
    def __init__(self, **kwargs): vars(self).update(kwargs)
    def __call__(self): return number(self.get())
class Attribute(Holds):
    def get(self): return self.rng
class Slotted:
    __slots__ = 'rng',
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

ways = dict(attribute=lambda rng: Attribute(rng=rng), slots=in_slots, on_class=of_class, on_base=of_base, deep=deep, long_list=lambda rng: LongList(o=[*(Holds() for _ in range(300)), Holds(rng=rng)]),
    tuple=lambda rng: InList(o=(1, rng)), named_tuple=lambda rng: Inside(o=Pair(1, rng)), dict=lambda rng: InList(o={**{str(i):i for i in range(500)}, 'rng': rng}), set=lambda rng: InList(o={rng}), deque=lambda rng: InList(o=deque([rng])),
    list_of_tuples=lambda rng: Holds.__new__(Pairs)._with([*((str(i), i) for i in range(3000)), ('x', rng)]), closure=closure, default=default, keyword=keyword, function=of_function, partial=lambda rng: partial(number, rng), global_variable=global_variable, bound=bound, hook=hooked)
class Pairs(Holds):
    def _with(self, o): self.o = o; return self
    def get(self): return self.o[-1][1]
generators = {**{f'{k} in an attribute':partial(lambda f: Attribute(rng=f()), f) for k,f in rngs.items()}, **{f'in {k}':partial(lambda w, f: w(f()), w, rngs[[*rngs][i%4]]) for i,(k,w) in enumerate(ways.items()) if k!='attribute'}}
