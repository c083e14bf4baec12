"What a batch costs on a GPU, above the loop by hand, and what is gained there. Without a GPU these groups have no rows"
from time import perf_counter
import torch
from torch import nn
from .batches import n_batch,slope
from .shared import *
from .shared import learner as make_learner

def synced():
    "Seconds on the wall, when the GPU has done all that it was given"
    torch.cuda.synchronize()
    return perf_counter()

def there(batches): return [tuple(o.cuda() for o in b) for b in batches]
def pinned(batches): return [tuple(o.pin_memory() for o in b) for b in batches]

class Residual(nn.Module):
    def __init__(self, n, stride=1):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(n//stride, n, 3, stride, 1, bias=False), nn.BatchNorm2d(n), nn.ReLU(),
            nn.Conv2d(n, n, 3, 1, 1, bias=False), nn.BatchNorm2d(n))
        self.short = nn.Conv2d(n//stride, n, 1, stride) if stride>1 else nn.Identity()
    def forward(self, x): return (self.body(x)+self.short(x)).relu()

def resnet():
    "Of 18 layers, for images of 64 by 64"
    blocks = [b for n in (64,128,256,512) for b in (Residual(n, 1 if n==64 else 2), Residual(n))]
    return nn.Sequential(*conv(3, 64, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

def deep():
    "16 residual layers of 256 features"
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers,self.last = nn.ModuleList([nn.Linear(256,256) for _ in range(16)]),nn.Linear(256,10)
        def forward(self, x):
            for o in self.layers: x = x + .1*o(x).relu()
            return self.last(x)
    return Layers()

on_gpu = {'ResNet of 18 layers': (resnet, (3,64,64)), '16 layers of 256': (deep, (256,))}

def on_device(name):
    "The model of that name, on the GPU"
    torch.manual_seed(1)
    return (models|on_gpu)[name][0]().cuda()

def bf16_by_hand(m, opt, n):
    def step(i, xb, yb):
        with torch.autocast('cuda', dtype=torch.bfloat16): pred = m(xb)
        loss_func(pred.float(), yb).backward()
        opt.step()
        opt.zero_grad()
    return step

def fits_there(name, train, valid=None, step=plain_step, **contenders):
    "Functions of the number of epochs: the fit by hand on the GPU, and by Learners with other settings"
    def run(kwargs): return lambda n: ours(on_device(name), train, valid, n, device='cuda', **kwargs)
    by = {'by hand': lambda n: by_hand(on_device(name), train, valid, n, step)} if step else {}
    return by | {k:run(v) for k,v in contenders.items()}

def timed(name, runs, repeats, n, **kwargs):
    "As `interleaved`, with sums in the same order in all runs"
    was,torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic,True
    try: return interleaved(name, runs, repeats, n, synced, **kwargs)
    finally: torch.backends.cudnn.deterministic = was

n_large = 10 # large batches of an epoch

def gpu_fits(repeats):
    "Whole fits of a tiny model, in which the GPU waits for Python, and of a ResNet in bfloat16, for which Python waits"
    if not torch.cuda.is_available(): return
    train,valid = Marked(there(batches(n_batch))),there(batches(1))
    for name,valid_,kwargs in ('lean', None, lean),('defaults', valid, defaults):
        seconds = timed(name, fits_there('tiny', train, valid_, ours=kwargs), repeats, 4)
        yield times('on a GPU', f'tiny model, {name}', seconds, n_batch, allowed=1.05)
    shape = on_gpu['ResNet of 18 layers'][1]
    train = Marked(there(batches(n_large, shape, 256)))
    for name,kwargs in ('lean', lean),('defaults', defaults):
        half = dict(kwargs, cbs=[*kwargs.get('cbs', ()), MixedPrecision('bf16')])
        runs = fits_there('ResNet of 18 layers', train, None, bf16_by_hand, ours=half)
        seconds = timed(name, runs, min(repeats, 5), 3, atol=1e-2)
        yield times('on a GPU', f'ResNet of 18 layers in bfloat16, {name}', seconds, n_large, allowed=1.01)

def gpu_inference(repeats):
    if not torch.cuda.is_available(): return
    valid = there(batches(n_batch))
    def run(n):
        learn = make_learner(on_device('tiny'), [], valid, device='cuda', **recorded)
        def validate(dl): return outcome(learn.model, [*map(float, dict(learn.validate(dl=dl)).values())])
        return [slope(validate, valid) for _ in range(n)][-1]
    def hand(n):
        m = on_device('tiny')
        return [outcome(m, slope(lambda dl: validate_by_hand(m, dl), valid)) for _ in range(n)][-1]
    seconds = interleaved('validation', dict(hand=hand, ours=run), repeats, 4, synced, 1e-5)
    yield above('on a GPU', 'validation, with a metric', 'µs a batch', seconds, n_batch, 30)
    name,shape = 'ResNet of 18 layers',on_gpu['ResNet of 18 layers'][1]
    valid = there(batches(n_large, shape, 256))
    def preds(n):
        learn = make_learner(on_device(name), [], valid, device='cuda', default_cbs=False, cbs=TrainEvalCallback)
        return [slope(lambda dl: [*learn.get_preds(dl=dl)], valid) for _ in range(n)][-1]
    @torch.no_grad()
    def by_hand(m, dl):
        preds,targs = zip(*((m(xb).softmax(1), yb) for xb,yb in dl))
        return [torch.cat(preds).cpu(),torch.cat(targs).cpu()]
    def preds_by_hand(n):
        m = on_device(name).eval()
        return [slope(lambda dl: by_hand(m, dl), valid) for _ in range(n)][-1]
    seconds = timed(name, dict(hand=preds_by_hand, ours=preds), min(repeats, 5), 3, atol=1e-5)
    yield times('on a GPU', f'get_preds of a {name}', seconds, n_large, allowed=1.05)

def gpu_techniques(repeats):
    "Fits with a technique, in multiples of fits without"
    if not torch.cuda.is_available(): return
    repeats = min(repeats, 3)
    name,shape = 'ResNet of 18 layers',(3,96,96)
    host = pinned(batches(8, shape, 256))
    half = dict(lean, cbs=[*lean['cbs'], MixedPrecision('bf16')])
    def alone(k): return k # sums in another order, in bfloat16: weights differ
    for what,loader,cb,alike in (('copies of pinned batches, with `Prefetch`', host, Prefetch, lambda k: 0),
            ('`ChannelsLast`', there(host), ChannelsLast, alone)):
        runs = fits_there(name, Marked(loader), None, None, without=half, ours=dict(half, cbs=[*half['cbs'], cb]))
        seconds = timed(what, runs, repeats, 3, alike=alike)
        yield times('gained on a GPU', f'{name} in bfloat16: {what}', seconds, 8, 'ms a batch')
    train = Marked(there(batches(n_batch, (256,))))
    graphs = dict(mode='reduce-overhead')
    for what,kwargs in (('Compile()', {}), ("Compile(mode='reduce-overhead')", graphs),
            ("Compile(with_loss=True, mode='reduce-overhead')", graphs | dict(with_loss=True))):
        compiled = dict(lean, cbs=[*lean['cbs'], Compile(**kwargs)])
        runs = fits_there('16 layers of 256', train, None, None, without=lean, ours=compiled)
        yield times('gained on a GPU', f'16 layers of 256: `{what}`', timed(what, runs, 1, 4, atol=.05), n_batch)

groups = gpu_fits,gpu_inference,gpu_techniques
