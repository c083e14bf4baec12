"Objects of other libraries raise whatever they like when they are asked for anything: they may be held anywhere"
from collections.abc import MutableMapping
from itertools import cycle
from unittest.mock import MagicMock
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,TensorDataset
from learner.all import *

class Pools(MutableMapping):
    "As the connections of an HTTP client, which cannot be iterated"
    def __init__(self): self.pools = {}
    def __getitem__(self, k): return self.pools[k]
    def __setitem__(self, k, v): self.pools[k] = v
    def __delitem__(self, k): del self.pools[k]
    def __len__(self): return len(self.pools)
    def __iter__(self): raise NotImplementedError('not safe among threads')

def archive(folder):
    "An open `.npz` file: its attribute `f` takes each name for that of an array"
    np.savez(folder/'a.npz', x=np.ones(3))
    return np.load(folder/'a.npz')

foreign = dict(archive=archive, pools=lambda folder: Pools(),
    batches=lambda folder: iter(DataLoader(TensorDataset(torch.arange(40.)), 4, shuffle=True)),
    cycle=lambda folder: cycle(iter(DataLoader(TensorDataset(torch.arange(40.)), 4))),
    nested=lambda folder: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), mock=lambda folder: MagicMock())

class Kept(Dataset):
    def __init__(self, held): self.held = held
    def __len__(self): return 24
    def __getitem__(self, i): return torch.full((2,), float(i)),torch.tensor([1.])

class KeptByLoss:
    def __init__(self, held): self.held = held
    def __call__(self, pred, y): return F.mse_loss(pred, y)

@pytest.mark.sample(2)
@pytest.mark.parametrize('kind', foreign)
@pytest.mark.parametrize('where', ['dataset','model','loss','callback'])
@pytest.mark.filterwarnings('ignore:.*cannot be put back')
def test_objects_of_other_libraries_may_be_held_anywhere(kind, where, tmp_path):
    held = foreign[kind](tmp_path)
    model,loss_func = nn.Linear(2, 1),KeptByLoss(held if where=='loss' else None)
    if where=='model': object.__setattr__(model, 'held', held)
    cbs = []
    if where=='callback': cbs.append(keeps := Callback()); keeps.held = held
    dl = DataLoader(Kept(held if where=='dataset' else None), 8)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), model, loss_func, lr=.01, path=tmp_path, cbs=cbs)
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, cbs=[Checkpoint(), Fingerprint()])
        learn.validate()
        assert len(learn.get_preds()[0])==24
        learn.lr_find(num_it=11, show_plot=False)
    assert learn.train_iter==6
