"""What the loop costs: microseconds a batch, above the same training written by hand

    python bench/overhead.py [repeats]

The loader times each batch, from one draw to the next. Runs are interleaved with hand-written ones that do the same
work; shown are medians over all batches of all runs. Both end with the same weights, which is asserted.

A second table is about techniques: what each adds to a batch of the lean loop, what the same technique adds to a loop
by hand, and the difference, which is what its events cost.
"""
import sys
from functools import partial
from statistics import median
from time import perf_counter
import torch
from torch import nn
from learner.all import *

class Timed:
    "Batches, and how long each took whoever drew it, in microseconds"
    def __init__(self, n, shape=(64,), bs=16):
        self.batches,self.times = [(torch.randn(bs,*shape), torch.randint(0, 10, (bs,))) for _ in range(n)],[]
    def __len__(self): return len(self.batches)
    def __iter__(self):
        start = perf_counter()
        for o in self.batches:
            yield o
            now = perf_counter()
            self.times.append(1e6*(now-start))
            start = now

torch.manual_seed(0)
train,valid,images = Timed(400),Timed(100),Timed(400, (1,8,8))
loss_func = nn.CrossEntropyLoss()

def model(*first):
    torch.manual_seed(1)
    return nn.Sequential(*first, nn.Linear(64,64), nn.ReLU(), nn.Linear(64,64), nn.ReLU(), nn.Linear(64,10))

def opt_func(params, lr=.01): return torch.optim.SGD(params, lr=lr, momentum=.9)

def by_hand(each=None):
    m = model()
    opt = opt_func(m.parameters())
    m.train()
    for xb,yb in train:
        if each: each()
        pred = m(xb)
        loss = loss_func(pred, yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    m.eval()
    total,right,n = 0,0,0
    with torch.no_grad():
        for xb,yb in valid:
            pred = m(xb)
            total += loss_func(pred, yb)*len(yb)
            right += accuracy(pred, yb)*len(yb)
            n += len(yb)
    total.item()/n,right.item()/n
    return m

class Terminal:
    "A terminal that nobody looks at, so that bars are drawn"
    encoding = 'utf-8'
    def write(self, s): return len(s)
    def flush(self): pass
    def isatty(self): return True

def ours(dls=(train,valid), cbs=(), **kwargs):
    m = model()
    learn = Learner(DataLoaders(*dls, device='cpu'), m, loss_func, opt_func=opt_func, cbs=cbs, **kwargs)
    out,sys.stdout = sys.stdout,Terminal()
    try: learn.fit(1)
    finally: sys.stdout = out
    return m

class Idle(Callback):
    def after_epoch(self): pass

class PerBatch(Callback):
    count = 0
    def before_batch(self): self.count += 1

def by_hand_calling():
    cb = PerBatch()
    Dispatcher().add_cb(cb)
    return by_hand(each=cb.before_batch)

def predict_by_hand():
    m = model().eval()
    with torch.no_grad(): preds,targs = zip(*((m(xb).softmax(1), yb) for xb,yb in valid))
    torch.cat(preds),torch.cat(targs)
    return m

def predict():
    learn = Learner(DataLoaders(train, valid, device='cpu'), model(), loss_func, opt_func=opt_func)
    learn.get_preds()
    return learn.model

def lean(*cbs): return ours(dls=(train,), cbs=[TrainEvalCallback, *cbs], default_cbs=False)
def main(repeats=30):
    torch.set_num_threads(1)
    rows = { # name: (run, its counterpart, batches that are timed, microseconds allowed)
        'lean':                                (lean, by_hand, train, 8),
        'defaults, validation, metric, bar':   (lambda: ours(metrics=accuracy), by_hand, train, 20),
        '    in validation':                   (lambda: ours(metrics=accuracy), by_hand, valid, None),
        'get_preds':                           (predict, predict_by_hand, valid, None),
        'ten callbacks that idle in batches':  (lambda: lean(*(Idle() for _ in range(10))), lean, train, 1),
        'lean, and a batch method':            (lambda: lean(PerBatch), by_hand_calling, train, 9), # by hand, too
    }
    print(f'{"µs a batch":36}{"without":>9}{"extra":>8}{"allowed":>9}',
        f'   {repeats} interleaved runs of {len(train)} batches, torch {torch.__version__}')
    for name,(run,base,timed,allowed) in rows.items():
        times = {}
        for i in range(repeats):
            models = {}
            for f in (run,base) if i%2 else (base,run):
                timed.times.clear()
                models[f] = f()
                times.setdefault(f, []).extend(timed.times)
            for u,v in zip(*(o.parameters() for o in models.values()), strict=True): assert torch.equal(u, v), name
        without,whole = median(times[base]),median(times[run])
        print(f'{name:36}{without:9.1f}{whole-without:8.1f}' + ('' if allowed is None else f'{allowed:9.1f}'))

# Techniques by hand: each gets model and optimizer, and returns what it does with batch `i`
def plain(m, opt):
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        opt.step(); opt.zero_grad()
    return batch

def clip(m, opt):
    norms = []
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        norms.append(nn.utils.clip_grad_norm_(m.parameters(), .5))
        opt.step(); opt.zero_grad()
    return batch

def accumulate(m, opt):
    def batch(i, xb, yb):
        (loss_func(m(xb), yb)*.25).backward()
        if i%4==3: opt.step(); opt.zero_grad()
    return batch

def ema(m, opt):
    avg = [p.detach().clone() for p in m.parameters()]
    def batch(i, xb, yb):
        loss_func(m(xb), yb).backward()
        opt.step()
        with torch.no_grad(): torch._foreach_lerp_(avg, list(m.parameters()), 1-min(.999, (2+i)/(11+i)))
        opt.zero_grad()
    return batch

def mixed(mix):
    def technique(m, opt):
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

def bf16(m, opt):
    def batch(i, xb, yb):
        with torch.autocast('cpu', dtype=torch.bfloat16): loss = loss_func(m(xb).float(), yb)
        loss.backward()
        opt.step(); opt.zero_grad()
    return batch

lr,mom = SchedCos(.02, .001),SchedCos(.95, .85)
def schedule(m, opt):
    def batch(i, xb, yb):
        for g in opt.param_groups: g['lr'],g['momentum'] = lr(i/len(train)),mom(i/len(train))
        loss_func(m(xb), yb).backward()
        opt.step(); opt.zero_grad()
    return batch

def stats(m, opt):
    kept,layers = [],[o for o in m if has_params(o)]
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

def pieces(m, opt):
    def batch(i, xb, yb):
        for x,y in zip(xb.split(4), yb.split(4)): (loss_func(m(x), y)*.25).backward()
        opt.step(); opt.zero_grad()
    return batch

techniques = { # name: (callback, by hand)
    'GradientClip':             (lambda: GradientClip(.5), clip),
    'GradientAccumulation':     (lambda: GradientAccumulation(64), accumulate),
    'EMA':                      (EMA, ema),
    'MixUp':                    (lambda: MixUp(by_sample=False), mixed(mixup)),
    'CutMix':                   (CutMix, mixed(cutmix)),
    "MixedPrecision('bf16')":   (lambda: MixedPrecision('bf16'), bf16),
    'ParamScheduler':           (lambda: ParamScheduler(dict(lr=lr, mom=mom)), schedule),
    'ActivationStats':          (ActivationStats, stats),
    'BnFreeze':                 (BnFreeze, plain),
    'MicroBatch(4)':            (lambda: MicroBatch(4), pieces),
    "MicroBatch('auto')":       (MicroBatch, plain),
    'Recorder':                 (Recorder, plain),
}

def each_technique(repeats=10):
    print(f'\n{"µs a batch, above a loop without":36}{"costs":>9}{"by hand":>9}{"events":>8}')
    for name,(make,by_hand) in techniques.items():
        data,first = (images,[nn.Flatten()]) if name=='CutMix' else (train,[])
        def ours(*cbs):
            m = model(*first)
            learn = Learner(DataLoaders(data, device='cpu'), m, loss_func, opt_func=opt_func,
                cbs=[TrainEvalCallback, *cbs], default_cbs=False)
            learn.fit(1)
            return m
        def hand(technique):
            m = model(*first)
            batch = technique(m.train(), opt_func(m.parameters()))
            for i,(xb,yb) in enumerate(data): batch(i, xb, yb)
            return m
        runs = dict(lean=ours, ours=lambda: ours(make()), plain=lambda: hand(plain), hand=lambda: hand(by_hand))
        times,models = {k:[] for k in runs},{}
        for i in range(repeats):
            for k in (runs,list(runs)[::-1])[i%2]:
                data.times.clear()
                models[k] = runs[k]()
                times[k] += data.times
        def differ(k, v):
            pairs = zip(models[k].parameters(), models[v].parameters())
            return max((a-b).abs().max().item() for a,b in pairs)
        assert not differ('lean', 'plain') and differ('ours', 'hand')<1e-4, name # mixtures are rounded in another order
        t = {k:median(v) for k,v in times.items()}
        costs,alone = t['ours']-t['lean'],t['hand']-t['plain']
        print(f'{name:36}{costs:9.1f}{alone:9.1f}{costs-alone:8.1f}')

if __name__=='__main__':
    main(*map(int, sys.argv[1:]))
    each_technique(*(max(1, int(o)//3) for o in sys.argv[1:]))
