"""What it costs to be able to go on: microseconds a batch to keep the position, milliseconds a file

    python bench/resume.py [repeats]

Runs of two kinds are interleaved; shown are medians of the time of the processor, and where there are workers or files, of the clock. A model with 25 million parameters is saved with Adam's state.
"""
import sys,tempfile
from pathlib import Path
from statistics import median
from time import perf_counter,process_time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.data.draws import Draws

ds = TensorDataset(torch.randn(3200, 64), torch.randint(0, 10, (3200,)))
def loader(workers=0): return DataLoader(ds, 16, shuffle=True, num_workers=workers)
def learner(dl, **kwargs):
    return Learner(DataLoaders(dl, device='cpu'), nn.Linear(64, 10), F.cross_entropy, lr=.01, path=tempfile.gettempdir(), **kwargs).remove_cb(ProgressCallback)

def seconds(f, clock=process_time):
    start = clock()
    f()
    return clock()-start

def drawn(it):
    for _ in it: pass

def extra(run, base, n, repeats, clock=process_time):
    "Microseconds of one of `n` that `base` takes, and those that `run` takes more"
    times = [(seconds(run, clock), seconds(base, clock)) if i%2 else (seconds(base, clock), seconds(run, clock))[::-1] for i in range(repeats)]
    return 1e6*median(o for _,o in times)/n,1e6*median(a-b for a,b in times)/n

def fitted(n=1, dl=None, cbs=None):
    learn = learner(loader() if dl is None else dl)
    return lambda: learn.fit(n, cbs=cbs and cbs())

def save_rarely(): return Checkpoint(every=10**9, unit='iter', folder=folder/'rare', keep=1)

def main(repeats=9):
    global folder
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        folder,n = Path(tmp),len(loader())
        short = [(torch.randn(16,64), torch.randint(0, 10, (16,)))]*10
        def epochs(f):
            learn = learner(short)
            if f is not None: learn.route.pause = f
            return lambda: learn.fit(100)
        rows = { # name: (run, its counterpart, in how many parts, allowed)
            'draws that know their position':            (lambda: drawn(Draws(loader(), resumable=True)), lambda: drawn(loader()), n, 2),
            'a `Checkpoint` that is not due':            (fitted(5, cbs=save_rarely), fitted(5), 5*n, None),
            '... less the files of beginning and end':   (fitted(20, short*20, save_rarely), fitted(20, short*20), 4000, None),
            'two workers, and their generators':         (lambda: drawn(Draws(loader(2), True, carry=True)), lambda: drawn(Draws(loader(2), True)), n, None, perf_counter)}
        print(f'{"µs a batch":45}{"without":>9}{"extra":>8}{"allowed":>9}    {repeats} interleaved runs, torch {torch.__version__}')
        for name,(run,base,parts,allowed,*clock) in rows.items():
            without,more = extra(run, base, parts, repeats, *clock)
            print(f'{name:45}{without:9.1f}{more:8.1f}{"" if allowed is None else f"{allowed:9.1f}"}')
        without,more = extra(epochs(None), epochs(lambda *args, **kwargs: None), 100, repeats)
        print(f'{"pauses of an epoch of 10 batches, µs an epoch":45}{without:9.1f}{more:8.1f}')
        big = Learner(DataLoaders([(torch.randn(1,1250), torch.zeros(1, dtype=torch.long))], device='cpu'), nn.Sequential(*(nn.Linear(1250,1250) for _ in range(16))), F.cross_entropy, path=folder).remove_cb(ProgressCallback).fit(1)
        times = [seconds(lambda: big.save_state('big'), perf_counter) for _ in range(3)]
        file = folder/'models'/'big.pth'
        raw = [seconds(lambda: torch.save(dict(model=big.model.state_dict(), opt=big.opt.state_dict()), folder/'raw.pth'), perf_counter) for _ in range(3)]
        print(f'{sum(p.numel() for p in big.model.parameters())/1e6:.1f} million parameters with Adam: {1000*median(times):.0f} ms, {file.stat().st_size/1e6:.0f} MB; `torch.save` alone {1000*median(raw):.0f} ms, {(folder/"raw.pth").stat().st_size/1e6:.0f} MB')

if __name__=='__main__': main(*map(int, sys.argv[1:]))
