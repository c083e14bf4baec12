"""What callbacks that keep an account of each batch cost: CPU time of their handlers, in microseconds a batch

    python bench/callbacks.py [epochs]

Fits of two convolutional networks: a tiny one with 24 thousand weights on 32 images of 32 by 32, and that of PyTorch's
MNIST example, with 1.2 million weights, on 64 images of 28 by 28. Handlers are timed one by one within the fit, where
caches are as the network leaves them; shown are medians over all batches, their sum, and its share of a batch without
it. What is done once in many batches or at the end of the fit is spread over all batches.
"""
import sys
from collections import defaultdict
from statistics import median
from time import thread_time
import torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

n = 64 # batches of an epoch
def down(i, o): return [nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU()]
def conv(i, o): return [nn.Conv2d(i, o, 3), nn.ReLU()]
def linear(i, o): return [nn.Flatten(), nn.Linear(i, o)]
def tiny(): return nn.Sequential(*down(3, 16), *down(16, 32), *down(32, 64), nn.AdaptiveAvgPool2d(1), *linear(64, 10))
def mnist():
    return nn.Sequential(*conv(1, 32), *conv(32, 64), nn.MaxPool2d(2), nn.Dropout(.25),
        *linear(9216, 128), nn.ReLU(), nn.Dropout(.5), *linear(128, 10))
images = {tiny: (32,3,32,32), mnist: (64,1,28,28)}

class Times(Callback):
    "CPU seconds of the handlers of `cb`, by event, and when batches began"
    order = -10000
    def __init__(self, cb): self.cb,self.begun,self.of_event,self.began = cb,[],defaultdict(list),[]
    def before_fit(self): self.learn.watch_handlers(self)
    def before_batch(self): self.begun.append(thread_time())
    def handler_began(self, cb, ev): self.began.append((cb, ev, thread_time()))
    def handler_ended(self):
        cb,ev,start = self.began.pop()
        if cb is self.cb: self.of_event[ev].append(thread_time()-start)

def measure(cb, make, n_epoch):
    torch.manual_seed(1)
    bs,*size = images[make]
    data = TensorDataset(torch.randn(n*bs, *size), torch.randint(0, 10, (n*bs,)))
    dls = DataLoaders(DataLoader(data, bs, shuffle=True), device='cpu')
    learn = Learner(dls, make(), nn.CrossEntropyLoss()).remove_cb(ProgressCallback)
    learn.fit(n_epoch, cbs=[times := Times(cb), cb])
    often = {ev:1e6*median(o) for ev,o in times.of_event.items() if len(o)>=n*n_epoch}
    rare = 1e6*sum(sum(o) if ev not in often else sum(v for v in o if v>10*median(o))
        for ev,o in times.of_event.items())/n/n_epoch
    batch = 1e6*median(b-a for a,b in zip(times.begun, times.begun[1:]))
    total = sum(often.values())
    parts = ', '.join(f'{ev} {o:.0f}' for ev,o in often.items())
    numbers = f'{batch-total:9.0f}{total+rare:9.0f}{(total+rare)/(batch-total):9.2%}'
    print(f'{make.__name__:8}{type(cb).__name__:14}{numbers}   {parts}; rarely {rare:.0f}')

def main(n_epoch=3):
    torch.set_num_threads(1)
    print(f'{"µs a batch":22}{"without":>9}{"extra":>9}{"share":>9}   torch {torch.__version__}')
    for make in images:
        for cb in (Ledger(), Fingerprint()): measure(cb, make, n_epoch)

if __name__=='__main__': main(*map(int, sys.argv[1:]))
