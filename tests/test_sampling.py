"Loaders that weigh samples, or draw a part of them"
import pytest,torch
from learner.all import *

def test_weighted_loader():
    torch.manual_seed(0)
    seen = torch.cat(list(weighted_dl(range(4), 50, [1,0,2,5], n=8000))).bincount(minlength=4)/8000
    assert torch.allclose(seen, torch.tensor([1,0,2,5])/8, atol=.02)
    assert len(weighted_dl(range(4), 3, [1,1,1,1]))==2
    dl = weighted_dl(range(100), 10, torch.ones(100), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    a = torch.cat(list(dl))
    dl.generator.manual_seed(0); torch.manual_seed(1)
    assert torch.equal(a, torch.cat(list(dl))) # its own generator, and no other

def test_weights_are_checked_on_the_cpu_whatever_the_default_device():
    with torch.device('meta'):
        assert len(weighted_dl(range(4), 2, [1,0,2,5]))==2
        with pytest.raises(ValueError, match='they go from -2 to 1'): weighted_dl(range(2), 2, [1,-2])

def test_partial_loader():
    torch.manual_seed(0)
    dl = partial_dl(range(100), 8, 20)
    a,b = [torch.cat(list(dl)) for _ in range(2)]
    assert len(dl)==3 and len(a)==len({*a.tolist()})==20 and not torch.equal(a, b)
    dl = partial_dl(range(100), 8, 20, generator=torch.Generator().manual_seed(0))
    a = torch.cat(list(dl))
    dl.generator.manual_seed(0); torch.rand(1)
    assert torch.equal(a, torch.cat(list(dl)))
    assert len(partial_dl(range(100), 8, 20, drop_last=True))==2

@pytest.mark.parametrize('make,match', [
    (lambda: weighted_dl(range(4), 2, [1,2]), '`dataset` has 4 samples, but there are 2 weights in `wgts`'),
    (lambda: weighted_dl(range(2), 2, [1,-2]), 'Weights are 0 or more, and not all 0, but they go from -2 to 1'),
    (lambda: weighted_dl(range(2), 2, [0,0]), 'not all 0'),
    (lambda: weighted_dl(range(2), 2, [1,float('nan')]), 'not all 0'),
    (lambda: partial_dl(range(4), 2, 5), '`partial_n` is a number of samples, and `dataset` has 4, but got 5'),
    (lambda: partial_dl(range(4), 2, 0), 'but got 0')])
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match): make()
