"A small classifier, its data, and a Learner for it: what tests of techniques train"
from weakref import WeakKeyDictionary
import torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

def net(n_out=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,8), nn.Tanh(), nn.Linear(8,n_out))

gen = torch.Generator().manual_seed(0)
X,Y = torch.randn(60, 3, generator=gen),torch.randint(0, 2, (60,), generator=gen)
T = torch.randn(60, 2, generator=gen)
def cut(bs, y=Y, n=60): return list(zip(*(o[:n].clone().split(bs) for o in (X, y)))) # some tests change theirs

class NoLength:
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return iter(self.dl)

def sgd(ps, lr=.1): return torch.optim.SGD(ps, lr=lr, momentum=.9)
def mk(*cbs, data=None, model=None, loss_func=F.cross_entropy, valid=None, **kwargs):
    torch.manual_seed(1)
    data = (data if isinstance(data, DataLoaders) else DataLoaders(cut(10) if data is None else data, valid,
        device='cpu'))
    return Learner(data, net() if model is None else model, loss_func, opt_func=sgd, lr=.1, cbs=cbs,
        **kwargs).remove_cb(ProgressCallback)

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b)) and len(a)==len(b)
def gap(a, b): return max((x-y).abs().max().item() for x,y in zip(a, b, strict=True))

def tokens(seed=0, n=24, t=5):
    gen = torch.Generator().manual_seed(seed)
    x,y = torch.randn(n, t, 3, generator=gen),torch.randint(0, 2, (n, t), generator=gen)
    y[torch.rand(n, t, generator=gen)<.6] = -100
    y[0,0] = 1
    return x,y
def token_loss(pred, y): return F.cross_entropy(pred.flatten(0,1), y.flatten())
def counted(learn): return (learn.y!=-100).sum()

_tried = WeakKeyDictionary() # what a model holds is put back by a resume

class Room(nn.Module):
    "Has room for `most` samples, in forward or backward"
    def __init__(self, most, where='forward', error=torch.OutOfMemoryError('CUDA out of memory')):
        super().__init__()
        self.net,self.drop,self.bn = net(),nn.Dropout(.3),nn.BatchNorm1d(3)
        self.most,self.where,self.error = most,where,error
    @property
    def tried(self): return _tried.setdefault(self, [])
    def forward(self, x):
        if self.training: self.tried.append(len(x))
        h = self.net[0](self.drop(self.bn(x))) # moves generators and statistics before it fails
        if len(x)>self.most and self.training:
            if self.where=='forward': raise self.error
            h.register_hook(self.fail) # gradients of later layers are there already
        return self.net[1:](h)
    def fail(self, g): raise self.error

class Recurrent(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        torch.manual_seed(0)
        self.rnn,self.out,self.h,self.resets = nn.RNN(3, 4, batch_first=True),nn.Linear(4,1),None,0
    def reset(self): self.h = None; self.resets += 1
    def forward(self, x):
        raw,h = self.rnn(x, self.h)
        self.h = h.detach()
        return self.out(raw),[raw*0,raw],[raw*0,raw*2]

def sequences(n=6):
    g = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 5, 3, generator=g), torch.randn(4, 5, 1, generator=g)) for _ in range(n)]
