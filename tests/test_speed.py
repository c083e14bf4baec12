"What makes training faster changes no result, and is undone after a fit"
import subprocess,sys
import pytest,torch
from torch import nn
from learner.all import *
from small_fits import net,cut,mk,weights,same,gap

def test_channels_last():
    imgs,y = torch.randn(12, 3, 4, 4),torch.randint(0, 2, (12,))
    seen = []
    class Net(nn.Module):
        def __init__(self):
            super().__init__(); torch.manual_seed(0); self.conv,self.lin = nn.Conv2d(3,4,3),nn.Linear(16,2)
        def forward(self, x, more):
            seen.append((x.is_contiguous(memory_format=torch.channels_last),
                more['y'].is_contiguous(memory_format=torch.channels_last),
                self.conv.weight.is_contiguous(memory_format=torch.channels_last)))
            return self.lin(self.conv(x+more['y']).flatten(1))
    def run(*cbs, model=None):
        return mk(*cbs, data=[(a,dict(y=a*2),b) for a,b in zip(imgs.split(4), y.split(4))], model=model or Net()).fit(2)
    plain = run()
    assert not any(map(any, seen)); seen.clear()
    learn = run(ChannelsLast)
    assert (all(map(all, seen)) and gap(weights(plain.model), weights(learn.model))<1e-6
        and learn.model.conv.weight.is_contiguous())
    learn = run(ChannelsLast, model=Net().to(memory_format=torch.channels_last)) # stays as it was
    assert learn.model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    learn = mk(model=Net())
    assert (learn.to_channelslast() is learn and learn.to_channelslast().channels_last in learn.cbs
        and learn.to_contiguous() is learn and not any(isinstance(o, ChannelsLast) for o in learn.cbs))

def test_compile():
    plain,learn = mk(valid=cut(30)).fit(2),mk(Compile(backend='eager'), valid=cut(30)).fit(2)
    assert (same(weights(plain.model), weights(learn.model))
        and list(plain.model.state_dict())==list(learn.model.state_dict()) and 'forward' not in vars(learn.model))
    m = net()
    m.forward = own = lambda x: nn.Sequential.forward(m, x)*2
    mk(Compile(backend='eager'), model=m).fit(1)
    assert m.forward is own

def test_channels_last_takes_what_it_takes_in_fastai():
    def kinds(learn):
        return [type(o).__name__ for o in learn.cbs if isinstance(o, (ChannelsLast,MixedPrecision))],[
            o.amp_mode for o in learn.cbs if isinstance(o, MixedPrecision)]
    learn = mk()
    assert kinds(learn.to_channelslast(use_amp=True))==(['MixedPrecision','ChannelsLast'], ['fp16'])
    assert kinds(learn.to_channelslast())==(['MixedPrecision','ChannelsLast'], ['fp16']) # the precision stays
    assert kinds(learn.to_channelslast(use_amp=True, amp_mode='bf16'))==(['MixedPrecision','ChannelsLast'], ['bf16'])
    assert (kinds(learn.to_contiguous())==(['MixedPrecision'], ['bf16'])
        and kinds(learn.to_contiguous(to_fp32=True))==([], []))
    assert (learn.to_channelslast(use_amp=True, amp_mode=AMPMode.FP16, init_scale=8.).mixed_precision.init_scale==8.
        and learn.to_contiguous(True) is learn)
    with pytest.raises(ValueError, match="`init_scale` of mixed precision: give `use_amp=True` with it"):
        learn.to_channelslast(init_scale=8.)
    with pytest.raises(TypeError, match="no argument `use_ammp`. Did you mean `use_amp`"):
        learn.to_channelslast(use_ammp=True)
    with pytest.raises(TypeError, match="no argument `fp32`. Did you mean `to_fp32`"): learn.to_contiguous(fp32=True)

first_fit = '''
import sys,torch
from torch import nn
from learner.all import *
bs = [(torch.randn(4, 2), torch.randn(4, 1))]*3
learn = Learner(DataLoaders(bs, bs), nn.Linear(2, 1), nn.MSELoss(), metrics=mse)
before = {*sys.modules}
learn.fit(1)
print(sorted(o for o in {*sys.modules}-before if o.startswith('torch')))
'''
def test_the_first_fit_imports_nothing_of_torch():
    "Its late imports, of a compiler, take seconds. They are made when the learner is, not when a fit has begun"
    out = subprocess.run([sys.executable, '-c', first_fit], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1]=='[]'

class Counting(nn.Module):
    "Counts training batches in a buffer of four dimensions, which has two names; another buffer is replaced"
    def __init__(self):
        super().__init__()
        self.conv,self.inner = nn.Conv2d(3, 2, 3),nn.Module()
        self.register_buffer('n', torch.zeros(2,3,4,4)); self.inner.register_buffer('n', self.n)
        self.register_buffer('last', torch.zeros(2,3,4,4))
    def forward(self, x):
        if self.training: self.n += 1; self.last = self.n.to(memory_format=torch.channels_last)*2
        return self.conv(x).mean((2,3))

@pytest.mark.parametrize('cbs', [(), (ChannelsLast,)])
def test_channels_last_keeps_buffers(cbs):
    m = Counting()
    n,strides = m.n,m.n.stride()
    Learner(DataLoaders([(torch.randn(4,3,8,8), torch.zeros(4).long())]*3, device='cpu'), m, nn.CrossEntropyLoss(),
        cbs=cbs).remove_cb(ProgressCallback).fit(2)
    assert m.n is m.inner.n is n and n.stride()==strides and bool((n==6).all())
    assert bool((m.last==12).all())
    if cbs: assert m.last.stride()==strides

@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('order', [(1,0), (0,1), (1,1)])
def test_what_an_optimizer_remembers_lies_in_memory_as_the_weights_do(order, fused):
    "A fused optimizer goes through both as they lie there"
    def run(order):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        data = [(torch.randn(8, 3, 8, 8), torch.randint(0, 2, (8,))) for _ in range(4)]
        learn = Learner(DataLoaders(data, device='cpu'), model, nn.CrossEntropyLoss(), lr=1e-2,
            opt_func=lambda ps: torch.optim.Adam(ps, fused=fused)).remove_cb(ProgressCallback)
        for last in order: learn.fit(2, cbs=[ChannelsLast] if last else [])
        state = learn.opt.state[model[0].weight]
        assert {o.stride() for o in state.values() if o.ndim}=={model[0].weight.stride()}
        return [p.detach() for p in model.parameters()]
    assert all(torch.allclose(a, b, atol=1e-5) for a,b in zip(run(order), run((0,0))))
