"Data and models that several tests train on"
import random,re
import numpy as np, torch
from torch import nn
from torch.utils.data import Dataset

class Noisy(Dataset):
    "Points on a line, with noise from every global generator"
    def __init__(self, n): self.x = torch.linspace(-1, 1, n)[:,None]
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        x = self.x[i] + random.random()/10 + np.random.rand()/10 + torch.rand(1)/10
        return x.float(),2*self.x[i]+3

class Net(nn.Module):
    "A model with everything that has a mode or draws random numbers"
    def __init__(self):
        super().__init__()
        self.l1,self.bn,self.drop,self.l2 = nn.Linear(1, 8),nn.BatchNorm1d(8),nn.Dropout(.3),nn.Linear(8, 1)
    def forward(self, x): return self.l2(self.drop(torch.relu(self.bn(self.l1(x)))))

class Stream:
    "Batches of a loader without a length"
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return iter(self.dl)

def shown(o):
    "`o` as the name of a case, the same in every process"
    return re.sub(' at 0x[0-9a-f]+', '', str(sorted(o) if isinstance(o, set) else o))
