"""Promise 12: a difference is real or it is not. Equal settings are said to differ at the nominal rate, planted
effects are found"""
import numpy as np,pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.compare.comparison import t_quantile

gen = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=gen)
Y = (X[:,0]+X[:,1]>0).long()

def net(): return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(.2), nn.Linear(4, 2))
def small(**kwargs):
    torch.manual_seed(0)
    dls = DataLoaders(DataLoader(TensorDataset(X, Y), 20, shuffle=True), DataLoader(TensorDataset(X, Y), 40),
        device='cpu')
    return Learner(dls, net(), nn.CrossEntropyLoss(), lr=.03, **kwargs).remove_cb(ProgressCallback)

def other_start():
    "The same distribution of initial weights, other weights for the same seed"
    torch.rand(7)
    return net()

def said_to_differ(n, paired, n_epoch=1, **kwargs):
    "How many of `n` comparisons of 5 with 5 runs see a difference"
    res,learn = 0,small()
    for i in range(n):
        first,second = range(10*i, 10*i+5),range(10*i+5, 10*i+10)
        a = learn.seeds(first, n_epoch)
        b = (learn.seeds(first, n_epoch, model=other_start, **kwargs)
            if paired else learn.seeds(second, n_epoch, **kwargs))
        c = compare(a, b)
        assert c.paired==paired and a.proof.differ==b.proof.differ==('init','order','dropout') and not (c.a==c.b).any()
        res += bool(c)
    return res

@pytest.mark.parametrize('paired', [False,True])
def test_equal_settings_are_rarely_said_to_differ(paired):
    assert said_to_differ(8, paired)<=3 # more has a probability of 0.04%

@pytest.mark.slow
@pytest.mark.parametrize('paired', [False,True])
def test_equal_settings_are_said_to_differ_at_the_nominal_rate(paired):
    "5% of 200, within the 99.8% interval of the binomial distribution"
    n = said_to_differ(200, paired)
    print(f'{n} of 200')
    assert 2<=n<=20

@pytest.mark.slow
def test_the_rate_in_many_groups_drawn_from_300_pairs():
    """Sharper than counting 200: groups of 5 are drawn again and again from the differences of 300 pairs of equal
    settings"""
    learn = small()
    a,b = learn.seeds(range(5000, 5300), 1),learn.seeds(range(5000, 5300), 1, model=other_start)
    d = b['valid_loss']-a['valid_loss']
    assert abs(d.mean())<4*d.std()/300**.5
    d = (d-d.mean())[np.random.default_rng(0).integers(300, size=(100_000,5))]
    rate = (abs(d.mean(1))>t_quantile(.95, 4)*d.std(1, ddof=1)/5**.5).mean()
    print(f'{rate:.1%}')
    assert .035<rate<.065

@pytest.mark.parametrize('paired', [False,True])
def test_a_planted_effect_is_found(paired):
    assert said_to_differ(3, paired, n_epoch=4, lr=.3)==3
