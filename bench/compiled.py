"""What `torch.compile` gains in a training step: the model alone, and model and loss in one program

    python bench/compiled.py [repeats]

Steps are interleaved; shown is the shortest time of each, on one core, without the loop around it.
"""
import sys
from time import thread_time
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(d), nn.Linear(d,2*d), nn.GELU(), nn.Linear(2*d,d))
    def forward(self, x): return x+self.layers(x)

models = {
    '16 residual blocks of 32 features':
        (lambda: nn.Sequential(*[Block(32) for _ in range(16)], nn.Linear(32,10)), (64,32)),
    'MLP 784-256-10': (lambda: nn.Sequential(nn.Linear(784,256), nn.ReLU(), nn.Linear(256,10)), (64,784)),
    'MLP 64-64-8000': (lambda: nn.Sequential(nn.Linear(64,64), nn.GELU(), nn.Linear(64,8000)), (256,64))}

def step_of(kind, make, shape):
    "One training step"
    torch.manual_seed(0)
    model,loss_func = make(),nn.CrossEntropyLoss()
    x,y,opt = torch.randn(shape),torch.randint(0, 10, shape[:1]),torch.optim.SGD(model.parameters(), lr=.01)
    forward = model if kind=='plain' else torch.compile(model.forward)
    def both(x, y):
        pred = model(x)
        return pred,loss_func(pred, y)
    together = torch.compile(both) if kind=='with loss' else None
    def step():
        res = together(x, y)[1] if together else loss_func(forward(x), y)
        res.backward()
        opt.step()
        opt.zero_grad()
    return step

def main(repeats=60):
    torch.set_num_threads(1)
    for name,(make,shape) in models.items():
        steps = {k:step_of(k, make, shape) for k in ('plain','compiled','with loss')}
        times = {k:[] for k in steps}
        for i in range(3+repeats):
            for k,step in steps.items():
                start = thread_time()
                step()
                if i>=3: times[k].append(thread_time()-start)
        print(name, *(f'{k} {1e6*min(v):.0f} µs' for k,v in times.items()), sep=', ')

if __name__=='__main__': main(*map(int, sys.argv[1:]))
