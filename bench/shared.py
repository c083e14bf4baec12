"""What all benchmarks share: models, the loop by hand, interleaved runs, and rows of results"""
import gc,os,platform,sys
from array import array
from dataclasses import dataclass
from statistics import median,quantiles
from time import process_time
import torch
from torch import nn
from torch.utils.data import BatchSampler,DataLoader,RandomSampler,TensorDataset
from learner.all import *

@dataclass
class Row:
    "One measurement: medians over interleaved runs, and between which values half of them lie"
    group:str
    name:str
    unit:str # 'µs a batch' and the like, or '×': then `value` is a multiple of `base`
    base:float # what the counterpart takes, mostly the loop by hand; in the unit, or in `base_unit`
    value:float # what comes on top of that, or that many times as much
    low:float
    high:float
    allowed:float|None = None
    base_unit:str = ''
    note:str = ''
    @property
    def holds(self): return self.allowed is None or self.value<=self.allowed

class SkipsWork(AssertionError): "A contender has not done the same work"

# Work to be done: models, batches, and a loop by hand
loss_func = nn.CrossEntropyLoss()
def opt_func(params, lr=.01): return torch.optim.SGD(params, lr=lr, momentum=.9)

def batches(n, shape=(64,), bs=64):
    "The same batches for every contender"
    gen = torch.Generator().manual_seed(0)
    return [(torch.randn(bs, *shape, generator=gen), torch.randint(0, 10, (bs,), generator=gen)) for _ in range(n)]

class Laps:
    "Seconds from one epoch to the next"
    clock = process_time
    def __init__(self): self.begin()
    def begin(self): self.last,self.taken = None,array('d') # a list would be searched: the batches refer to it
    def mark(self):
        now = self.clock()
        if self.last is not None: self.taken.append(now-self.last)
        self.last = now
    def median(self, n):
        if len(self.taken)<n: raise SkipsWork(f"{len(self.taken)} epochs instead of {n}")
        return median(self.taken[1:] or self.taken)
laps = Laps()

class Marked:
    "Batches; a lap begins with each pass over them"
    def __init__(self, batches, n=None): self.batches,self.n = batches,len(batches) if n is None else n
    def __len__(self): return self.n
    def __iter__(self): laps.mark(); return iter(self.batches[:self.n])

class MarkedSampler(BatchSampler):
    def __iter__(self): laps.mark(); return super().__iter__()

def loader(n, shape=(64,), bs=64):
    "A loader of single samples that shuffles them; a lap begins with each pass"
    xs,ys = zip(*batches(n, shape, bs))
    data = TensorDataset(torch.cat(xs), torch.cat(ys))
    return DataLoader(data, batch_sampler=MarkedSampler(RandomSampler(data), bs, False))

class SmallTensors(nn.Module):
    "99 residual layers of 16 features and a last one: 200 tensors"
    def __init__(self):
        super().__init__()
        self.layers,self.last = nn.ModuleList([nn.Linear(16,16) for _ in range(99)]),nn.Linear(16,10)
    def forward(self, x):
        for o in self.layers: x = x + .1*o(x).relu()
        return self.last(x)

def conv(i, o, stride=2): return [nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.ReLU()]

def mnist():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))

models = { # name: (model, shape of a sample)
    'tiny': (lambda: nn.Sequential(nn.Linear(64,64), nn.ReLU(), nn.Linear(64,10)), (64,)),
    'MLP 784-256-10': (lambda: nn.Sequential(nn.Linear(784,256), nn.ReLU(), nn.Linear(256,10)), (784,)),
    'digits network': (lambda: nn.Sequential(*conv(1,16,1), *conv(16,32), *conv(32,64), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64,10)), (1,8,8)),
    '200 small tensors': (SmallTensors, (16,)),
    'images of 32 by 32': (lambda: nn.Sequential(*conv(3,16), *conv(16,32), *conv(32,64), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64,10)), (3,32,32))}

def seeded(name='tiny', *first):
    "The model of that name, with the same weights each time"
    torch.manual_seed(1)
    return nn.Sequential(*first, models[name][0]()) if first else models[name][0]()

def plain_step(m, opt, n):
    "A training step by hand: a function of the number of the batch, of `n`, and of the batch"
    def step(i, xb, yb):
        pred = m(xb)
        loss = loss_func(pred, yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    return step

@torch.no_grad()
def validate_by_hand(m, valid):
    "Loss and accuracy"
    m.eval()
    total,right,n = 0,0,0
    for xb,yb in valid:
        pred = m(xb)
        total += loss_func(pred, yb)*len(yb)
        right += (pred.argmax(-1)==yb).float().mean()*len(yb)
        n += len(yb)
    return total.item()/n,right.item()/n

def by_hand(m, train, valid, n_epoch, step=plain_step):
    "A whole fit by hand. Returns what it has come to: weights, and results of the last validation"
    n = len(train)
    step,results = step(m, opt_func(m.parameters()), n*n_epoch),()
    for epoch in range(n_epoch):
        m.train()
        for i,(xb,yb) in enumerate(train, n*epoch): step(i, xb, yb)
        if valid: results = validate_by_hand(m, valid)
    return outcome(m, results)

class Terminal:
    "A terminal without a screen, so that bars are drawn"
    encoding = 'utf-8'
    def write(self, s): return len(s)
    def flush(self): pass
    def isatty(self): return True

lean = dict(default_cbs=False, cbs=[TrainEvalCallback])
recorded = dict(default_cbs=False, cbs=[TrainEvalCallback, Recorder], metrics=accuracy)
defaults = dict(metrics=accuracy) # with a bar

def learner(m, train, valid=None, device='cpu', **kwargs):
    kwargs = dict(loss_func=loss_func, opt_func=opt_func) | kwargs
    return Learner(DataLoaders(train, valid or None, device=device), m, **kwargs)

def ours(m, train, valid, n_epoch, fit_cbs=(), **kwargs):
    "The same fit by a Learner"
    learn = learner(m, train, valid, **kwargs)
    out,sys.stdout = sys.stdout,Terminal()
    try: learn.fit(n_epoch, cbs=fit_cbs)
    finally: sys.stdout = out
    return outcome(m, [learn.results[k] for k in ('valid_loss','accuracy')] if valid and 'metrics' in kwargs else ())

# Contenders
def outcome(m, results=()): return [*m.state_dict().values(), torch.tensor(results)]

def check_same(name, outcomes, atol=0.):
    "Refuse a contender that has come to other weights or results than the first one"
    (first,ref),*others = outcomes.items()
    for k,res in others:
        if len(ref)!=len(res): raise SkipsWork(f"{name}: `{k}` returns {len(res)} tensors, and `{first}` {len(ref)}")
        for a,b in zip(ref, res):
            if a.shape!=b.shape: raise SkipsWork(f"{name}: `{k}` returns {(*b.shape,)}, and `{first}` {(*a.shape,)}")
            gap = (a.double()-b.double()).abs().max().item() if a.numel() else 0.
            if not gap<=atol: raise SkipsWork(f"{name}: what `{k}` comes to differs by {gap:.2g} from `{first}`")

def interleaved(name, runs, repeats, n=None, clock=process_time, atol=0., alike=lambda k: 0):
    """Seconds of each of `runs`, by name: `repeats` runs of all in turn, forwards and backwards. With `n`, a run is a
    function of a number of epochs, at least `n+2`, and its seconds are the median of its laps but for the first: all
    that happens between two epochs is part of them, and beginning and end are not. Those for which `alike` is the same
    come to the same"""
    seconds,outcomes = {k:[] for k in runs},{}
    laps.clock = clock
    for i in range(repeats):
        for k in [*runs][::-1 if i%2 else 1]:
            gc.collect()
            laps.begin()
            start = clock()
            outcomes[k] = runs[k]() if n is None else runs[k](n+2)
            seconds[k].append(clock()-start if n is None else laps.median(n))
        for o in dict.fromkeys(map(alike, runs)): check_same(name, {k:outcomes[k] for k in runs if alike(k)==o}, atol)
    return seconds

def spread(vals):
    "Median, and between which values half of them lie"
    if len(vals)<2: return vals[0],vals[0],vals[0]
    low,_,high = quantiles(vals, n=4, method='inclusive')
    return median(vals),low,high

units = {'µs':1e6, 'ms':1e3, 's':1.}
def above(group, name, unit, seconds, parts=1, allowed=None, note=''):
    "A row of how much longer the last contender takes than the first, in each of `parts`"
    by = units[unit.split()[0]]/parts
    base,*_,run = seconds.values()
    return Row(group, name, unit, by*median(base), *spread([by*(b-a) for a,b in zip(base, run)]), allowed, unit, note)

def times(group, name, seconds, parts=1, unit='µs a batch', allowed=None, note=''):
    "A row of how many times as long the last contender takes as the first"
    base,*_,run = seconds.values()
    by = units[unit.split()[0]]/parts
    return Row(group, name, '×', by*median(base), *spread([b/a for a,b in zip(base, run)]), allowed, unit, note)

# Results
def cpu_name():
    try: lines = open('/proc/cpuinfo').read().splitlines()
    except OSError: return platform.processor() or platform.machine()
    return next((o.split(':',1)[1].strip() for o in lines if o.startswith('model name')), platform.machine())

def hardware():
    "What the figures depend on"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    gpu = dict(gpu=torch.cuda.get_device_name()) if torch.cuda.is_available() else {}
    return dict(cpu=cpu_name(), **gpu, cores=cores, threads=torch.get_num_threads(), system=platform.system(),
        python=platform.python_version(), torch=torch.__version__)
