"""What the loop costs: microseconds a batch, above the same training written by hand

    python bench/overhead.py [repeats]

A loader that looks at the clock times each batch, from one draw to the next. Runs are interleaved with hand-written ones that do the same work;
shown are medians over all batches of all runs. Both end with the same weights, which is asserted.
"""
import sys
from statistics import median
from time import perf_counter
import torch
from torch import nn
from learner.all import *

class Timed:
    "Batches, and how long each took whoever drew it, in microseconds"
    def __init__(self, n, bs=16): self.batches,self.times = [(torch.randn(bs,64), torch.randint(0, 10, (bs,))) for _ in range(n)],[]
    def __len__(self): return len(self.batches)
    def __iter__(self):
        start = perf_counter()
        for o in self.batches:
            yield o
            now = perf_counter()
            self.times.append(1e6*(now-start))
            start = now

torch.manual_seed(0)
train,valid = Timed(400),Timed(100)
loss_func = nn.CrossEntropyLoss()

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64,64), nn.ReLU(), nn.Linear(64,64), nn.ReLU(), nn.Linear(64,10))

def opt_func(params, lr=.01): return torch.optim.SGD(params, lr=lr, momentum=.9)

def by_hand(each=None):
    m = model()
    opt = opt_func(m.parameters())
    m.train()
    for xb,yb in train:
        if each: each()
        pred = m(xb)
        loss = loss_func(pred, yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    m.eval()
    total,right,n = 0,0,0
    with torch.no_grad():
        for xb,yb in valid:
            pred = m(xb)
            total += loss_func(pred, yb)*len(yb)
            right += accuracy(pred, yb)*len(yb)
            n += len(yb)
    total.item()/n,right.item()/n
    return m

class Terminal:
    "A terminal that nobody looks at, so that bars are drawn"
    encoding = 'utf-8'
    def write(self, s): return len(s)
    def flush(self): pass
    def isatty(self): return True

def ours(dls=(train,valid), cbs=(), **kwargs):
    m = model()
    learn = Learner(DataLoaders(*dls, device='cpu'), m, loss_func, opt_func=opt_func, cbs=cbs, **kwargs)
    out,sys.stdout = sys.stdout,Terminal()
    try: learn.fit(1)
    finally: sys.stdout = out
    return m

class Idle(Callback):
    def after_epoch(self): pass

class PerBatch(Callback):
    count = 0
    def before_batch(self): self.count += 1

def by_hand_calling():
    cb = PerBatch()
    Dispatcher().add_cb(cb)
    return by_hand(each=cb.before_batch)

def lean(*cbs): return ours(dls=(train,), cbs=[TrainEvalCallback, *cbs], default_cbs=False)
def main(repeats=30):
    torch.set_num_threads(1)
    rows = { # name: (run, its counterpart, batches that are timed, microseconds allowed)
        'lean':                                (lean, by_hand, train, 8),
        'defaults, validation, metric, bar':   (lambda: ours(metrics=accuracy), by_hand, train, 20),
        '    in validation':                   (lambda: ours(metrics=accuracy), by_hand, valid, None),
        'ten callbacks that idle in batches':  (lambda: lean(*(Idle() for _ in range(10))), lean, train, 1),
        'lean, and a batch method':            (lambda: lean(PerBatch), by_hand_calling, train, 9), # by hand it is called too
    }
    print(f'{"µs a batch":36}{"without":>9}{"extra":>8}{"allowed":>9}    {repeats} interleaved runs of {len(train)} batches, torch {torch.__version__}')
    for name,(run,base,timed,allowed) in rows.items():
        times = {}
        for i in range(repeats):
            models = {}
            for f in (run,base) if i%2 else (base,run):
                timed.times.clear()
                models[f] = f()
                times.setdefault(f, []).extend(timed.times)
            for u,v in zip(*(o.parameters() for o in models.values()), strict=True): assert torch.equal(u, v), name
        print(f'{name:36}{median(times[base]):9.1f}{median(times[run])-median(times[base]):8.1f}{"" if allowed is None else f"{allowed:9.1f}"}')

if __name__=='__main__': main(*map(int, sys.argv[1:]))
