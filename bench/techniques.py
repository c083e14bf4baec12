"""What each technique adds to a batch of the lean loop, and the same technique to a loop by hand; what observers add"""
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from statistics import median
from time import process_time
import torch
from torch import nn
from .shared import *

n_batch = 100 # of an epoch

# Techniques by hand: each gets model and optimizer, and returns what it does with batch `i`
def clip(m, opt, n):
    norms = []
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        norms.append(nn.utils.clip_grad_norm_(m.parameters(), .5))
        opt.step(); opt.zero_grad()
    return batch

def accumulate(m, opt, n):
    def batch(i, xb, yb):
        (loss_func(m(xb), yb)*.25).backward()
        if i%4==3: opt.step(); opt.zero_grad()
    return batch

def ema(m, opt, n):
    avg = [p.detach().clone() for p in m.parameters()]
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        opt.step()
        with torch.no_grad(): torch._foreach_lerp_(avg, list(m.parameters()), 1-min(.999, (2+i)/(11+i)))
        opt.zero_grad()
    return batch

def mixed(mix):
    def technique(m, opt, n):
        def batch(i, xb, yb):
            perm = torch.randperm(len(xb))
            xb,lam = mix(xb, xb[perm])
            pred = m(xb)
            (loss_func(pred, yb)*lam + loss_func(pred, yb[perm])*(1-lam)).backward()
            opt.step(); opt.zero_grad()
        return batch
    return technique

def mixup(a, b):
    lam = torch.distributions.Beta(.4, .4).sample().item()
    lam = max(lam, 1-lam)
    return a*lam + b*(1-lam),lam

def cutmix(a, b):
    h,w = a.shape[-2:]
    side = (1-torch.distributions.Beta(1., 1.).sample().item())**.5/2
    def span(n):
        half,mid = round(n*side),torch.randint(n, ()).item()
        return slice(max(mid-half, 0), min(mid+half, n))
    ys,xs = span(h),span(w)
    a = a.clone()
    a[...,ys,xs] = b[...,ys,xs]
    return a,1-(ys.stop-ys.start)*(xs.stop-xs.start)/(h*w)

def bf16(m, opt, n):
    def batch(i, xb, yb):
        with torch.autocast('cpu', dtype=torch.bfloat16): loss = loss_func(m(xb).float(), yb)
        loss.backward()
        opt.step(); opt.zero_grad()
    return batch

lr,mom = SchedCos(.02, .001),SchedCos(.95, .85)
def schedule(m, opt, n):
    def batch(i, xb, yb):
        for g in opt.param_groups: g['lr'],g['momentum'] = lr(i/n),mom(i/n)
        loss_func(m(xb), yb).backward()
        opt.step(); opt.zero_grad()
    return batch

def stats(m, opt, n):
    kept,layers = [],[o for o in m.modules() if isinstance(o, nn.Linear)]
    @torch.no_grad()
    def look(rows, m, inp, o):
        std,mean = torch.std_mean(o)
        rows.append(torch.stack([mean, std, (o.abs()<=.05).float().mean()]))
    def batch(i, xb, yb):
        rows = []
        hooks = [o.register_forward_hook(partial(look, rows)) for o in layers]
        loss_func(m(xb), yb).backward()
        kept.append(torch.stack(rows))
        opt.step(); opt.zero_grad()
        for o in hooks: o.remove()
    return batch

def pieces(m, opt, n):
    def batch(i, xb, yb):
        for x,y in zip(xb.split(16), yb.split(16)): (loss_func(m(x), y)*.25).backward()
        opt.step(); opt.zero_grad()
    return batch

for_hidden = partial(torch.optim.Muon, lr=.01, weight_decay=0.)
for_others = partial(torch.optim.AdamW, lr=.01, weight_decay=0.)
def muon(m, opt, n):
    hidden = hidden_matrices(m)
    rest = [p for p in m.parameters() if not any(p is o for o in hidden)]
    opts = [for_hidden(hidden),for_others(rest)]
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        for o in opts: o.step()
        for o in opts: o.zero_grad()
    return batch

techniques = { # name: (callbacks, by hand)
    'GradientClip':             (lambda: GradientClip(.5), clip),
    'GradientAccumulation':     (lambda: GradientAccumulation(256), accumulate),
    'EMA':                      (EMA, ema),
    'MixUp':                    (lambda: MixUp(by_sample=False), mixed(mixup)),
    'CutMix':                   (CutMix, mixed(cutmix)),
    "MixedPrecision('bf16')":   (lambda: MixedPrecision('bf16'), bf16),
    'ParamScheduler':           (lambda: ParamScheduler(dict(lr=lr, mom=mom)), schedule),
    'ActivationStats':          (ActivationStats, stats),
    'BnFreeze':                 (BnFreeze, plain_step),
    'MicroBatch(16)':           (lambda: MicroBatch(16), pieces),
    "MicroBatch('auto')":       (MicroBatch, plain_step),
    'Recorder':                 (Recorder, plain_step),
    'Prefetch':                 (Prefetch, plain_step),
    'by_shape':                 (None, muon)}

def each_technique(repeats):
    flat,images = Marked(batches(n_batch)),Marked(batches(n_batch, (1,8,8)))
    def data(name): return ([nn.Flatten()],images) if name=='CutMix' else ([],flat)
    def fit(name, make=None, **kwargs):
        first,train = data(name)
        return lambda n: ours(seeded('tiny', *first), train, None, n, make and make(), **lean | kwargs)
    def loop(name, step=plain_step):
        first,train = data(name)
        return lambda n: by_hand(seeded('tiny', *first), train, None, n, step)
    runs = {}
    for o in '','CutMix': runs |= {('hand',o): loop(o), ('ours',o): fit(o)} # without any
    for o,(make,hand) in techniques.items():
        own = fit(o, make) if make else fit(o, opt_func=by_shape(for_hidden, for_others))
        runs |= {('hand',f'with {o}'): loop(o, hand), ('ours',f'with {o}'): own}
    s = interleaved('techniques', runs, repeats, 1, atol=1e-3, alike=lambda k: k[1]) # mixtures round in another order
    for name in techniques:
        base = name if name=='CutMix' else ''
        added = {who: [b-a for a,b in zip(s[who,base], s[who,f'with {name}'])] for who in ('hand','ours')}
        yield above('technique', name, 'µs a batch', added, n_batch, note='what it adds by hand; what ours adds more')

rewind = 'Rewind, a point each 100 batches' # measured with a point in each lap, which is shorter
def rarely(s, name, n, rare=100):
    "What it would have taken if what is added in each of `n` batches were added in each of `rare`"
    return [a + (b-a)*n/rare for a,b in zip(s['none'], s[name])]

def observers(folder):
    "Callbacks that watch a training, or keep it, by name"
    res = {'Timer': Timer, 'Profile': Profile, 'Ledger': Ledger, 'Fingerprint': Fingerprint,
        'CSVLogger': lambda: CSVLogger(folder/'log.csv'), 'JSONLogger': lambda: JSONLogger(folder/'log.jsonl'),
        rewind: lambda: Rewind(20),
        'Checkpoint, not due': lambda: Checkpoint(10**9, 'iter', folder=folder/'rare', keep=1),
        'Checkpoint, each epoch of 20 batches': lambda: Checkpoint(folder=folder/'often', keep=1)}
    if find_spec('tensorboard'): res['TensorBoardLogger'] = lambda: TensorBoardLogger(folder/'board')
    if find_spec('wandb'): res['WandbLogger, offline'] = WandbLogger
    return res

class InHandlers(Callback):
    "CPU seconds in the handlers of `cb`, epoch by epoch: what else a batch takes, and its noise, is no part of them"
    only_fit,watches,order = True,True,-10**6
    def __init__(self, cb): self.cb,self.epochs = cb,[]
    def before_fit(self): self.learn.watch_handlers(self)
    def cleanup_fit(self): self.learn.watch_handlers(self, on=False)
    def before_epoch(self): self.epochs.append(0.)
    def handler_began(self, cb, ev): self.begun = process_time() if cb is self.cb else None
    def handler_ended(self):
        if self.begun is not None and self.epochs: self.epochs[-1] += process_time()-self.begun
        self.begun = None

def in_handlers(name, fit, cls, base, n, repeats, allowed=None):
    "A row of what callbacks of the class `cls` take in their handlers, which is all of their work"
    seconds = []
    for _ in range(repeats):
        cb = InHandlers(own := cls())
        fit(lambda: [own, cb])(5)
        seconds.append(median(cb.epochs[1:])/n*1e6)
    return Row('observer', name, 'µs a batch', 1e6*median(base)/n, *spread(seconds), allowed, 'µs a batch')

def watched(repeats):
    "Watching a convolutional network on images of 32 by 32; an epoch has 20 batches of 32"
    name,n = 'images of 32 by 32',20
    train = loader(n, models[name][1], 32)
    settings = recorded | dict(metrics=None)
    def fit(make=None): return lambda k: ours(seeded(name), train, None, k, make and make(), **settings)
    with tempfile.TemporaryDirectory() as tmp:
        cbs = observers(Path(tmp))
        if 'WandbLogger, offline' in cbs:
            import wandb
            board = wandb.init(mode='offline', dir=tmp, settings=wandb.Settings(silent=True))
        s = interleaved('observers', dict(none=fit()) | {k:fit(f) for k,f in cbs.items()}, max(2*repeats//3, 3), 4)
        if 'WandbLogger, offline' in cbs: board.finish()
    s[rewind] = rarely(s, rewind, n)
    for k in cbs: yield above('observer', k, 'µs a batch', dict(none=s['none'], ours=s[k]), n)
    for o in (Ledger, Fingerprint):
        yield in_handlers(f'{o.__name__}, in its handlers', fit, o, s['none'], n, max(2*repeats//3, 3))

def accounts(repeats):
    "Observers of PyTorch's MNIST example, with 1.2 million weights, on 64 images of 28 by 28: at most 3% of a batch"
    n,train = 4,loader(4, (1,28,28), 64)
    def fit(make=None):
        def run(k):
            torch.manual_seed(1)
            return ours(mnist(), train, None, k, make and make(), **recorded | dict(metrics=None))
        return run
    cbs = dict(Ledger=Ledger, Fingerprint=Fingerprint, Profile=Profile) | {rewind: lambda: Rewind(n)}
    s = interleaved('accounts', dict(none=fit()) | {k:fit(f) for k,f in cbs.items()}, repeats, 3)
    s[rewind] = rarely(s, rewind, n)
    allowed = .03*1e6*median(s['none'])/n
    for k in cbs:
        yield above('observer', f'{k}, 1.2 million weights', 'µs a batch', dict(none=s['none'], ours=s[k]), n, allowed)
    for o in (Ledger, Fingerprint):
        name = f'{o.__name__}, in its handlers, 1.2 million weights'
        yield in_handlers(name, fit, o, s['none'], n, max(repeats//2, 2), allowed)

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(d), nn.Linear(d,2*d), nn.GELU(), nn.Linear(2*d,d))
    def forward(self, x): return x+self.layers(x)

to_compile = { # name: (model, features)
    '16 residual blocks of 32 features': (lambda: nn.Sequential(*[Block(32) for _ in range(16)], nn.Linear(32,10)), 32),
    'MLP 784-256-10': (models['MLP 784-256-10'][0], 784)}

def compiled(repeats):
    "Training steps with a compiled model, and with model and loss in one program, against plain ones, by hand"
    if not which('c++'): return
    for name,(make,d) in to_compile.items():
        (xb,yb),steps = batches(1, (d,))[0],{}
        for kind in 'plain','model','model and loss':
            torch.manual_seed(1)
            m = make()
            opt,run = opt_func(m.parameters()),m if kind=='plain' else torch.compile(m.forward)
            def loss_of(xb, yb, run=run): return loss_func(run(xb), yb)
            if kind=='model and loss': loss_of = torch.compile(lambda xb,yb,m=m: loss_func(m(xb), yb))
            def step(m=m, opt=opt, loss_of=loss_of):
                loss_of(xb, yb).backward()
                opt.step(); opt.zero_grad()
                return outcome(m)
            steps[kind] = step
        interleaved(name, steps, 3, atol=1e-3) # compiles
        s = interleaved(name, steps, 10*repeats, atol=1e-3)
        for k in [*s][1:]: yield times('compiled', f'{k}: {name}', {'plain':s['plain'], k:s[k]}, 1, 'µs a step')

groups = each_technique,watched,accounts,compiled
