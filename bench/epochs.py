"""What an epoch costs besides its batches, what whole fits cost, and whether long fits cost more

    python bench/epochs.py [epochs]

Epochs of a single batch, above the same epochs written by hand over the same loader: the loop's time between batches,
which a clock inside the loader does not see. An epoch is the difference between fits of `n` and of `3n` epochs, so that
making a learner and beginning a fit are not part of it. CPU time of the process, so that a busy machine matters less;
medians of interleaved runs. Then whole epochs of 100 batches, and one fit of many epochs: its beginning and its end.
"""
import sys
from statistics import median
from time import process_time
import torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

torch.manual_seed(0)
def batches(n): return [(torch.randn(64,64), torch.randint(0, 10, (64,))) for _ in range(n)]
loss_func = nn.CrossEntropyLoss()
def opt_func(params, lr=.01): return torch.optim.SGD(params, lr=lr, momentum=.9)
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64,64), nn.ReLU(), nn.Linear(64,10))

class Loader:
    "A loader object that holds batches, and gives the first `n`"
    def __init__(self, batches, n): self.batches,self.n = batches,n
    def __len__(self): return self.n
    def __iter__(self): return iter(self.batches[:self.n])

def by_hand(train, valid, n_epoch):
    m = model()
    opt = opt_func(m.parameters())
    for _ in range(n_epoch):
        m.train()
        for xb,yb in train:
            loss_func(m(xb), yb).backward()
            opt.step(); opt.zero_grad()
        if not valid: continue
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

def ours(train, valid, n_epoch, **kwargs):
    m = model()
    Learner(DataLoaders(train, valid or None, device='cpu'), m, loss_func, opt_func=opt_func, **kwargs).fit(n_epoch)
    return m

lean = dict(default_cbs=False, cbs=TrainEvalCallback)
recorded = dict(default_cbs=False, cbs=[TrainEvalCallback, Recorder], metrics=accuracy)

def above(f, g, n_epoch, repeats):
    "Microseconds an epoch that `f` takes above `g`, and what `g` takes; both end with the same weights"
    times = {f: [], g: []}
    for i in range(repeats):
        ends = {}
        for o in (f,g) if i%2 else (g,f):
            took = []
            for n in (n_epoch, 3*n_epoch):
                start = process_time()
                ends[o] = o(n)
                took.append(process_time()-start)
            times[o].append(1e6*(took[1]-took[0])/(2*n_epoch))
        for a,b in zip(ends[f].parameters(), ends[g].parameters()): assert torch.equal(a, b)
    hand = median(times[g])
    return median(times[f])-hand,hand

def growth(train, valid, n_epoch, of):
    "Microseconds of the first and of the last `of` epochs of one fit"
    marks = torch.zeros(n_epoch+1, dtype=torch.double) # a list that grows would be compared with what it was
    def mark(cb): marks[cb.epoch] = process_time()
    ours(train, valid, n_epoch+1, **recorded | dict(cbs=[*recorded['cbs'], Callback(before_epoch=mark)]))
    took = [1e6*o for o in marks.diff().tolist()]
    return median(took[:of]),median(took[-of:])

def main(n_epoch=300):
    torch.set_num_threads(1)
    one,hundred,valid = batches(1),batches(100),batches(1)
    shuffled = DataLoader(TensorDataset(*one[0]), 64, shuffle=True)
    rows = { # name: (train, valid, settings, microseconds allowed)
        'lean':                                         (one, None, lean, 120),
        'lean, a loader that holds 100 batches':        (Loader(hundred, 1), None, lean, 120),
        'lean, a DataLoader that shuffles':             (shuffled, None, lean, 120),
        'recorder, validation, a metric':               (one, valid, recorded, 300),
    }
    print(f'{"µs an epoch, besides its batches":44}{"by hand":>9}{"extra":>8}{"allowed":>9}')
    for name,(train,valid_,kwargs,allowed) in rows.items():
        extra,hand = above(lambda n: ours(train, valid_, n, **kwargs), lambda n: by_hand(train, valid_, n), n_epoch, 7)
        print(f'{name:44}{hand:9.0f}{extra:8.0f}{allowed:9}')
    print(f'\n{"whole epochs of 100 batches, µs a batch":44}{"by hand":>9}{"extra":>8}{"allowed":>9}')
    whole = ('lean', None, lean, 9),('recorder, validation, a metric', valid, recorded, 16)
    n = max(3, n_epoch//20)
    for name,valid_,kwargs,allowed in whole:
        extra,hand = above(lambda n: ours(hundred, valid_, n, **kwargs), lambda n: by_hand(hundred, valid_, n), n, 7)
        print(f'{name:44}{hand/100:9.1f}{extra/100:8.1f}{allowed:9}')
    n = 67*n_epoch
    first,last = growth(one, valid, n, n//20)
    print(f'\none fit of {n:,} epochs: {first:.0f} µs an epoch in the first twentieth, {last:.0f} in the last')

if __name__=='__main__': main(*map(int, sys.argv[1:]))
