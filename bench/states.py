"""What it costs that a run can be resumed: to know the position, to write files"""
import tempfile
from pathlib import Path
from time import perf_counter
import torch
from torch import nn
from learner.data.draws import Draws
from .shared import *

def draws(repeats):
    "Draws that know their position, from a loader that shuffles"
    dl = loader(200, (64,), 16)
    def passes(make):
        def run(n):
            torch.manual_seed(0)
            for _ in range(n): total = sum(yb.sum()*i for i,(_,yb) in enumerate(make()))
            return [total]
        return run
    runs = dict(plain=passes(lambda: dl), ours=passes(lambda: Draws(dl, resumable=True)))
    seconds = interleaved('draws', runs, repeats, 5)
    yield above('resume', 'draws that know their position', 'µs a batch', seconds, 200, 2)

def files(repeats):
    "A state file of a model with 25 million parameters and Adam, and weights and optimizer by `torch.save` alone"
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        data = [(torch.randn(1,1250), torch.zeros(1, dtype=torch.long))]
        m = nn.Sequential(*(nn.Linear(1250,1250) for _ in range(16)))
        learn = learner(m, data, opt_func=torch.optim.Adam, lr=.001, path=folder, **lean)
        learn.fit(1)
        def raw(): torch.save(dict(model=learn.model.state_dict(), opt=learn.opt.state_dict()), folder/'raw.pth')
        def run(): learn.save_state('big')
        def same(f):
            def _f():
                f()
                return outcome(m)
            return _f
        s = interleaved('files', dict(raw=same(raw), ours=same(run)), max(repeats//3, 2), clock=perf_counter)
        size = (folder/'models'/'big.pth').stat().st_size/(folder/'raw.pth').stat().st_size
        yield times('resume', 'a state file of 25 million parameters with Adam', s, 1, 'ms',
            note=f'{size:.3f} times the size of what `torch.save` writes')

groups = draws,files
