"Prefetching draws each batch where a loop without it draws it, whatever the device"
from collections import namedtuple
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.speed import prefetch
from small_fits import X,Y,cut,mk,weights,same

class FakeStream:
    "Copies on the CPU, and notes what it was given"
    made = []
    def __init__(self, device): self.device,self.given = device,[]; self.made.append(self)
    def __call__(self, b): self.given.append(b); return [o.clone() for o in b]

@pytest.fixture
def stream(monkeypatch):
    monkeypatch.setitem(prefetch.copy_streams, 'cpu', FakeStream)
    FakeStream.made.clear()
    return FakeStream

class Noise(TensorDataset):
    "Draws from the generator that dropout draws from"
    def __getitem__(self, i): x,y = super().__getitem__(i); return x+.1*torch.randn(3),y

def run(*cbs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3,8), nn.Dropout(.3), nn.Linear(8,2))
    return mk(*cbs, data=DataLoaders(DataLoader(Noise(X, Y), 10, shuffle=True), cut(30), device='cpu'), model=model)

def test_batches_are_those_of_a_fit_without_it(stream):
    "Order, augmentation and dropout draw from one generator, in one order"
    def fit(*cbs):
        ids = []
        learn = run(*cbs, on('before_batch')(lambda learn: ids.append(learn.idxs)))
        return ids,weights(learn.fit(3).model)
    (ids,plain),(others,learn) = fit(),fit(Prefetch)
    assert ids==others and same(plain, learn) and len(stream.made)==1 and len(stream.made[0].given)==3*(6+2)

@pytest.mark.parametrize('n', [1, 5, 6, 8])
def test_a_stop_loses_no_batch(stream, n):
    whole = run(Prefetch).fit(3)
    learn = run(Prefetch, on('after_step', once=n)(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))).fit(3)
    if learn.at: learn.resume()
    assert same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses

def test_it_copies_what_other_callbacks_have_made(stream):
    "and nothing is left of a stream after the fit"
    @on('after_draw')
    def double(learn): learn.batch = [2*learn.batch[0], learn.batch[1]]
    learn = mk(Prefetch, double).fit(1)
    assert torch.equal(stream.made[0].given[0][0], 2*X[:10]) and learn.prefetch.copy is None
    assert same(weights(learn.model), weights(mk(double).fit(1).model))

def test_a_cpu_has_nothing_to_copy():
    heard = []
    learn = mk(Prefetch, on('before_batch')(lambda learn: heard.append(bool(learn.handlers['after_draw'])))).fit(1)
    assert not any(heard) and same(weights(learn.model), weights(mk().fit(1).model))

def test_every_tensor_of_a_batch_is_found():
    "Objects with a `to` of their own are left to the loop"
    class Own:
        def to(self, device): raise AssertionError
    Pair,own = namedtuple('Pair', 'a b'),Own()
    seen = []
    b = (torch.zeros(1), [torch.ones(2), 'name'], dict(k=torch.ones(3), n=4), Pair(torch.ones(4), own))
    res = prefetch.each_tensor(b, lambda o: seen.append(len(o)) or o+1)
    assert (seen==[1,2,3,4] and res[0].item()==1 and res[1][1]=='name' and res[2]['n']==4 and type(res[3]) is Pair
        and res[3].b is own)

# On a GPU
def big(n=20, pin=True):
    return [tuple(o.pin_memory() if pin else o for o in (torch.randn(4096, 4096), torch.randn(4096, 10)))
        for _ in range(n)]
def deep(): torch.manual_seed(0); return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)], nn.Linear(4096, 10))
def on_gpu(bs, *cbs):
    return Learner(DataLoaders(bs, device='cuda'), deep(), nn.MSELoss(), opt_func=torch.optim.SGD, lr=1e-3,
        cbs=[TrainEvalCallback, *cbs], default_cbs=False)

@pytest.mark.cuda
@pytest.mark.parametrize('pin', [True, False])
def test_weights_are_equal_on_a_gpu(pin):
    bs = big(pin=pin)
    plain,learn = on_gpu(bs).fit(2),on_gpu(bs, Prefetch).fit(2)
    assert same(weights(plain.model), weights(learn.model))

@pytest.mark.cuda
def test_copies_take_no_time_beside_the_computation():
    "Copies of 64 MB beside eight products: at least half of their time is gone"
    bs,there = big(),[tuple(o.cuda() for o in b) for b in big()]
    def ms(bs, *cbs):
        learn = on_gpu(bs, *cbs).fit(1)
        a,b = torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(); a.record(); learn.fit(2); b.record(); torch.cuda.synchronize()
        return a.elapsed_time(b)
    times = sorted((ms(there), ms(bs), ms(bs, Prefetch)) for _ in range(3))
    without,plain,ahead = (min(o) for o in zip(*times))
    assert ahead-without < .5*(plain-without)

@pytest.mark.cuda
def test_no_batch_waits_for_the_gpu():
    learn = on_gpu(big(4), Prefetch).fit(1)
    @on('before_train')
    def strict(learn): torch.cuda.set_sync_debug_mode('error')
    @on('cleanup_train')
    def loose(learn): torch.cuda.set_sync_debug_mode('default')
    learn.fit(1, cbs=[strict, loose])
