"""What a profile costs, and whether its sums are the time that the clock on the wall shows

    python bench/profiling.py [repeats]

Fits of a small convolutional network on images of 32 by 32, with the default callbacks, gradient clipping and a metric.
Runs with and without `Profile` are interleaved; shown are medians over all runs, in milliseconds a batch. The sum is
that of all rows of `callbacks` and of the loop's own phases, against the clock around the same `fit`.
"""
import sys
from statistics import median
from time import perf_counter,process_time
import torch
from torch import nn
from learner.all import *

torch.manual_seed(0)
n,bs = 64,32
batches = [(torch.randn(bs,3,32,32), torch.randint(0, 10, (bs,))) for _ in range(n)]
def conv(i, o): return [nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU()]

def learner():
    torch.manual_seed(1)
    layers = [*conv(3, 16), *conv(16, 32), *conv(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*layers)
    dls = DataLoaders(batches, batches[:8], device='cpu')
    return Learner(dls, model, nn.CrossEntropyLoss(), metrics=accuracy, cbs=GradientClip).remove_cb(ProgressCallback)

def fit(cbs):
    "Milliseconds a batch by the clock and of the CPU, and the weights at the end"
    learn = learner()
    wall,cpu = perf_counter(),process_time()
    learn.fit(1, cbs=cbs)
    return 1000*(perf_counter()-wall)/n,1000*(process_time()-cpu)/n,[*learn.model.parameters()]

def measured(p):
    "Milliseconds a batch that a profile accounts for"
    return 1000*p.summary()[-1].sum_s/n

def main(repeats=20):
    torch.set_num_threads(1)
    kinds = {'none': lambda: [], 'timer': Timer, 'profile': Profile,
        'waits in every batch': lambda: Profile(waits_every=1)}
    times,sums,weights = {k:[] for k in kinds},[],{}
    fit([])
    for i in range(repeats):
        for k in [*kinds][::1 if i%2 else -1]:
            cbs = kinds[k]()
            wall,cpu,weights[k] = fit(cbs)
            times[k].append(cpu)
            if k=='profile': sums.append(measured(cbs)/wall)
    for k in kinds:
        for u,v in zip(weights['none'], weights[k], strict=True): assert torch.equal(u, v), k
    base = median(times['none'])
    print(f'CPU milliseconds a batch, medians of {repeats} interleaved fits of {n} batches, torch {torch.__version__}')
    for k,v in times.items():
        extra = median(a-b for a,b in zip(v, times['none']))
        print(f'{k:24}{median(v):9.3f}{extra:9.3f}{extra/base:9.2%}')
    print(f'sum of the profile against the clock: {median(sums):.2%}, from {min(sums):.2%} to {max(sums):.2%}')

if __name__=='__main__': main(*map(int, sys.argv[1:]))
