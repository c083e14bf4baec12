"""What it costs that a run can be resumed: microseconds a batch to keep the position, milliseconds a file

    python bench/resume.py [repeats]

Runs of two kinds are interleaved; shown are medians of CPU time, or of wall time where there are workers or files.
A model with 25 million parameters is saved with Adam's state.
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
from learner.resume.rewind import Point

ds = TensorDataset(torch.randn(3200, 64), torch.randint(0, 10, (3200,)))
def loader(workers=0): return DataLoader(ds, 16, shuffle=True, num_workers=workers)
def learner(dl, **kwargs):
    kwargs = dict(lr=.01, path=tempfile.gettempdir()) | kwargs
    learn = Learner(DataLoaders(dl, device='cpu'), nn.Linear(64, 10), F.cross_entropy, **kwargs)
    return learn.remove_cb(ProgressCallback)

def seconds(f, clock=process_time):
    start = clock()
    f()
    return clock()-start

def drawn(it):
    for _ in it: pass

def extra(run, base, n, repeats, clock=process_time):
    "Microseconds of one of `n` that `base` takes, and those that `run` takes more"
    def pair(f, g): return seconds(f, clock),seconds(g, clock)
    times = [pair(run, base) if i%2 else pair(base, run)[::-1] for i in range(repeats)]
    return 1e6*median(o for _,o in times)/n,1e6*median(a-b for a,b in times)/n

def fitted(n=1, dl=None, cbs=None):
    learn = learner(loader() if dl is None else dl)
    return lambda: learn.fit(n, cbs=cbs and cbs())

def save_rarely(): return Checkpoint(every=10**9, unit='iter', folder=folder/'rare', keep=1)

def time_files(folder):
    "Print how long a state file takes, and `torch.save` of weights and optimizer alone"
    data = [(torch.randn(1,1250), torch.zeros(1, dtype=torch.long))]
    model = nn.Sequential(*(nn.Linear(1250,1250) for _ in range(16)))
    big = Learner(DataLoaders(data, device='cpu'), model, F.cross_entropy, path=folder)
    big.remove_cb(ProgressCallback).fit(1)
    def save_raw(): torch.save(dict(model=big.model.state_dict(), opt=big.opt.state_dict()), folder/'raw.pth')
    def timed(f, file):
        ms = 1000*median(seconds(f, perf_counter) for _ in range(3))
        return f'{ms:.0f} ms, {file.stat().st_size/1e6:.0f} MB'
    ours = timed(lambda: big.save_state('big'), folder/'models'/'big.pth')
    raw = timed(save_raw, folder/'raw.pth')
    n = sum(p.numel() for p in model.parameters())/1e6
    print(f'{n:.1f} million parameters with Adam: {ours}; `torch.save` alone {raw}')

def time_rewind(repeats):
    "Print what it costs to hold a small convolutional network each 100 batches, from the time of a point"
    data = [(torch.randn(64,1,28,28), torch.randint(0, 10, (64,)))]*20
    model = nn.Sequential(nn.Conv2d(1,16,3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16,32,3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32,10))
    learn,points = Learner(DataLoaders(data, device='cpu'), model, F.cross_entropy).remove_cb(ProgressCallback),[]
    def hold(): points.append(seconds(lambda: Point.of(learn, 2**30)))
    class Hold(Callback):
        def before_draw(self): self.learn.at_pause(hold)
    batches = [seconds(lambda: learn.fit(1))/20 for _ in range(repeats+1)]
    for _ in range(repeats): learn.fit(1, cbs=Hold)
    base,more = 1e6*median(batches[1:]),1e6*median(points)/100
    print(f'{"`Rewind(every=100)`, convolutional network":45}{base:9.1f}{more:8.1f}   {more/base:.2%}')

def main(repeats=9):
    global folder
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as tmp:
        folder,n = Path(tmp),len(loader())
        short = [(torch.randn(16,64), torch.randint(0, 10, (16,)))]*10
        long = short*20
        def draws(workers=0, **kwargs): return lambda: drawn(Draws(loader(workers), resumable=True, **kwargs))
        def epochs(f):
            learn = learner(short)
            if f is not None: learn.route.pause = f
            return lambda: learn.fit(100)
        rows = { # name: (run, its counterpart, in how many parts, allowed)
            'draws that know their position':            (draws(), lambda: drawn(loader()), n, 2),
            'a `Checkpoint` that is not due':            (fitted(5, cbs=save_rarely), fitted(5), 5*n, None),
            '... less the files of beginning and end':   (fitted(20, long, save_rarely), fitted(20, long), 4000, None),
            'two workers, and their generators':         (draws(2, carry=True), draws(2), n, None, perf_counter)}
        print(f'{"µs a batch":45}{"without":>9}{"extra":>8}{"allowed":>9}',
            f'   {repeats} interleaved runs, torch {torch.__version__}')
        for name,(run,base,parts,allowed,*clock) in rows.items():
            without,more = extra(run, base, parts, repeats, *clock)
            print(f'{name:45}{without:9.1f}{more:8.1f}' + ('' if allowed is None else f'{allowed:9.1f}'))
        without,more = extra(epochs(None), epochs(lambda *args, **kwargs: None), 100, repeats)
        print(f'{"pauses of an epoch of 10 batches, µs an epoch":45}{without:9.1f}{more:8.1f}')
        time_rewind(max(repeats//3, 1))
        time_files(folder)

if __name__=='__main__': main(*map(int, sys.argv[1:]))
