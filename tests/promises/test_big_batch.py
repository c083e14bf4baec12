"Promise 3 has a limit: a loss that compares samples does not add up over batches, and that is said"
import warnings
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

w = torch.tensor([.2,1.,3.])
def batches():
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, generator=g), (torch.arange(4)+i)%3) for i in range(4)]
def contrastive(p, t): return F.cross_entropy(p@p.T/.5, torch.arange(len(p)))
def weighs(p, t): return F.cross_entropy(p, t, weight=w)
def mean(p, t): return F.cross_entropy(p, t)

def said(loss, cbs, valid=None):
    learn = Learner(DataLoaders(batches(), valid, device='cpu'), nn.Linear(3, 3), loss, cbs=cbs)
    learn.remove_cb(ProgressCallback)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.fit(2)
    return [str(o.message) for o in seen if 'no average over samples' in str(o.message)]

@pytest.mark.parametrize('loss', [contrastive, weighs])
def test_accumulation_says_once_that_a_loss_does_not_add_up_over_batches(loss):
    found, = said(loss, GradientAccumulation(8))
    assert found.startswith(f'`{loss.__name__}` is no average over samples: for the first two batches together it is ')
    assert '`GradientAccumulation` does not give the step of the big batch' in found

@pytest.mark.parametrize('loss', [mean, nn.CrossEntropyLoss(w), nn.CrossEntropyLoss(reduction='sum')])
def test_accumulation_says_nothing_of_losses_that_add_up(loss):
    assert not said(loss, GradientAccumulation(8))

def test_accumulation_says_nothing_where_the_items_are_given():
    assert not said(weighs, GradientAccumulation(8, count=lambda learn: w[learn.y].sum()))

def test_micro_batches_say_it_too(): assert 'its pieces' in said(contrastive, MicroBatch(2))[0]
