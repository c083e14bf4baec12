"Techniques of chapter 14 against loops by hand: clipped, accumulated, cut into pieces, a step is that of the formula"
from collections import OrderedDict,namedtuple
from functools import partial
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.nn import functional as F
from learner.all import *

def net(n_out=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,8), nn.Tanh(), nn.Linear(8,n_out))

gen = torch.Generator().manual_seed(0)
X,Y = torch.randn(60, 3, generator=gen),torch.randint(0, 2, (60,), generator=gen)
T = torch.randn(60, 2, generator=gen)
def cut(bs, y=Y, n=60): return list(zip(X[:n].split(bs), y[:n].split(bs)))

class NoLength:
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return iter(self.dl)

def sgd(ps, lr=.1): return torch.optim.SGD(ps, lr=lr, momentum=.9)
def mk(*cbs, data=None, model=None, loss_func=F.cross_entropy, valid=None, **kwargs):
    torch.manual_seed(1)
    data = data if isinstance(data, DataLoaders) else DataLoaders(cut(10) if data is None else data, valid, device='cpu')
    return Learner(data, net() if model is None else model, loss_func, opt_func=sgd, lr=.1, cbs=cbs, **kwargs).remove_cb(ProgressCallback)

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b)) and len(a)==len(b)
def gap(a, b): return max((x-y).abs().max().item() for x,y in zip(a, b, strict=True))

# Clipping
def clipped(clip, n_epoch=2, lr=.1):
    m = net()
    opt = sgd(m.parameters())
    for x,y in cut(10)*n_epoch:
        F.cross_entropy(m(x), y).backward()
        clip(m); opt.step(); opt.zero_grad()
    return weights(m)

def test_clip_by_norm():
    norms = []
    def clip(m):
        norms.append(torch.cat([p.grad.flatten() for p in m.parameters()]).norm())
        for p in m.parameters(): p.grad *= min(1., .4/(norms[-1]+1e-6))
    learn = mk(GradientClip(.4)).fit(2)
    assert gap(weights(learn.model), clipped(clip))<1e-6 and torch.allclose(learn.gradient_clip.norms, torch.stack(norms)) and max(norms)>.4>min(norms)

@pytest.mark.parametrize('norm_type', [1., 3., float('inf')])
def test_other_norms(norm_type):
    def clip(m):
        norm = torch.cat([p.grad.flatten() for p in m.parameters()]).norm(norm_type)
        for p in m.parameters(): p.grad *= min(1., .2/(norm+1e-6))
    assert gap(weights(mk(GradientClip(.2, norm_type)).fit(2).model), clipped(clip))<1e-6

def test_clip_by_value():
    def clip(m):
        for p in m.parameters(): p.grad.clamp_(-.03, .03)
    learn = mk(GradientClip(max_value=.03)).fit(2)
    assert gap(weights(learn.model), clipped(clip))<1e-7 and learn.gradient_clip.norms is None

def test_clip_some():
    def clip(m):
        norm = m[2].weight.grad.norm()
        m[2].weight.grad *= min(1., .05/(norm+1e-6))
    learn = mk(GradientClip(.05, params=lambda m: [m[2].weight])).fit(2)
    assert gap(weights(learn.model), clipped(clip))<1e-6

@pytest.mark.parametrize('order', [0,1])
def test_clip_after_unscaling(order):
    cbs = [GradientClip(.2), MixedPrecision('fp16', init_scale=1024.)]
    learn = mk(*(cbs[::-1] if order else cbs)).fit(1)
    plain = mk(GradientClip(.2)).fit(1)
    assert torch.allclose(learn.gradient_clip.norms, plain.gradient_clip.norms, rtol=.02)

def test_looks_keep_the_norms():
    learn = mk(GradientClip(.2), valid=cut(10)).fit(1)
    before = learn.gradient_clip.norms.clone()
    learn.validate(); learn.lr_find(num_it=3, show_plot=False)
    assert torch.equal(learn.gradient_clip.norms, before) and len(before)==6

def test_many_norms():
    learn = mk(GradientClip(.2), data=cut(1)).fit(10)
    assert learn.gradient_clip.norms.shape==(600,)

# Accumulation
def ends(bs, n_acc, n=60):
    "Samples of each window: batches of `bs` until there are `n_acc`"
    per = -(-n_acc//bs)*bs
    return [min(per, n-i) for i in range(0, n, per)]

@pytest.mark.parametrize('bs,n_acc', [(10,10), (10,30), (7,28), (7,20), (16,40), (60,60), (10,1000), (1,9), (25,26)])
@pytest.mark.parametrize('length', [True,False])
@pytest.mark.parametrize('loss', ['mean','sum'])
def test_accumulation_is_the_big_batch(bs, n_acc, length, loss):
    def crit(): return nn.CrossEntropyLoss(reduction=loss)
    data = cut(bs)
    learn = mk(GradientAccumulation(n_acc), data=data if length else NoLength(data), loss_func=crit()).fit(2)
    sizes = ends(bs, n_acc)
    big = mk(data=list(zip(X.split(sizes), Y.split(sizes))), loss_func=crit()).fit(2)
    assert learn.opt_step==big.opt_step==2*len(sizes) and gap(weights(learn.model), weights(big.model))<(2e-6 if loss=='mean' else 2e-5) and not any(p.grad is not None for p in learn.model.parameters())

def tokens(seed=0, n=24, t=5):
    gen = torch.Generator().manual_seed(seed)
    x,y = torch.randn(n, t, 3, generator=gen),torch.randint(0, 2, (n, t), generator=gen)
    y[torch.rand(n, t, generator=gen)<.6] = -100
    y[0,0] = 1
    return x,y
def token_loss(pred, y): return F.cross_entropy(pred.flatten(0,1), y.flatten())
def counted(learn): return (learn.y!=-100).sum()

def test_accumulation_counts_tokens():
    x,y = tokens()
    def run(bs, *cbs): return weights(mk(*cbs, data=list(zip(x.split(bs), y.split(bs))), loss_func=token_loss).fit(3).model)
    big = run(12)
    assert gap(run(4, GradientAccumulation(12, counted)), big)<1e-6 < 1e-3 < gap(run(4, GradientAccumulation(12)), big)

def test_accumulation_starts_each_epoch_anew():
    seen = []
    mk(GradientAccumulation(20), on(event.after_step)(lambda learn: seen.append((learn.epoch, learn.iter))), data=cut(10, n=50), valid=cut(30)).fit(2)
    assert seen==[(e,i) for e in (0,1) for i in (1,3,4)]

def test_accumulation_of_a_short_epoch():
    "Its last window is closed where it is cut"
    seen = []
    mk(GradientAccumulation(1000), ShortEpochCallback(.5), on(event.after_step)(lambda learn: seen.append(learn.iter))).fit(2)
    assert seen==[2,2]

def test_a_batch_without_backward_is_not_accumulated():
    class Skip(Callback):
        order = -100
        def before_backward(self):
            if self.iter==1: raise CancelBackwardException
    for order in (-100, 100):
        Skip.order = order
        learn = mk(GradientAccumulation(30), Skip, data=cut(10, n=40)).fit(1)
        rows = torch.cat([torch.arange(10), torch.arange(20,40)])
        big = mk(data=[(X[rows], Y[rows])]).fit(1)
        assert learn.opt_step==1 and gap(weights(learn.model), weights(big.model))<1e-6

@pytest.mark.parametrize('mode', ['fp16','bf16'])
def test_accumulation_and_mixed_precision(mode):
    seen = []
    grads = on(event.before_step, order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    mk(GradientAccumulation(30), MixedPrecision(mode, init_scale=1024.), GradientClip(100.), grads).fit(1)
    acc,seen[:] = list(seen),[]
    mk(grads, data=cut(30)).fit(1)
    assert len(acc)==len(seen)==2 and gap(acc[0], seen[0])<5e-3

@pytest.mark.parametrize('summed', [lambda: partial(F.cross_entropy, reduction='sum'), lambda: CrossEntropyLossFlat(reduction='sum')], ids=['partial','flat'])
def test_sums_add_up_as_they_are(summed):
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs), loss_func=summed()).fit(2, lr=.002).model)
    assert gap(run(30, GradientAccumulation(30)), run(30))<1e-6 and gap(run(10, GradientAccumulation(30)), run(30))<1e-6 and gap(run(30, MicroBatch(4)), run(30))<1e-6

W,ignored = torch.tensor([.1,2.5]),Y.clone()
ignored[::3] = -100
ignored[30:34] = -100 # a whole piece
void = torch.where(ignored<0, 1, ignored)
means = dict(weight=(lambda: nn.CrossEntropyLoss(weight=W), Y), partial=(lambda: partial(F.cross_entropy, weight=W), Y), flat=(lambda: CrossEntropyLossFlat(weight=W), Y), smooth=(lambda: nn.CrossEntropyLoss(weight=W, label_smoothing=.1), Y),
    focal=(lambda: FocalLoss(weight=W), Y), focal_flat=(lambda: FocalLossFlat(weight=W), ignored), ignore=(nn.CrossEntropyLoss, ignored), plain=(lambda: F.cross_entropy, ignored), both=(lambda: nn.CrossEntropyLoss(weight=W), ignored),
    other=(lambda: nn.CrossEntropyLoss(ignore_index=1), void), partial_ignore=(lambda: partial(F.cross_entropy, ignore_index=1), void), nll=(lambda: nn.NLLLoss(weight=W, ignore_index=1), void))
@pytest.mark.parametrize('name', means)
def test_what_a_mean_is_over_is_known(name):
    "Of weighted means, and of targets that are ignored"
    make,y = means[name]
    model = lambda: nn.Sequential(net(), nn.LogSoftmax(1)) if name=='nll' else net()
    def run(bs, *cbs):
        learn = mk(*cbs, data=cut(bs, y), loss_func=make(), model=model()).fit(2)
        return weights(learn.model),learn.recorder.raw_losses
    (big,losses),(acc,_),(micro,mlosses),(both,_) = run(30),run(6, GradientAccumulation(30)),run(30, MicroBatch(4)),run(15, MicroBatch(4), GradientAccumulation(30))
    assert gap(acc, big)<1e-6 and gap(micro, big)<1e-6 and gap(both, big)<1e-6 and mlosses==pytest.approx(losses, rel=1e-5)

def test_probabilities_all_count():
    p = torch.rand(60, 2, generator=gen).softmax(1)
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs, p), loss_func=nn.CrossEntropyLoss(weight=W)).fit(2).model)
    assert gap(run(6, GradientAccumulation(30)), run(30))<1e-6 and gap(run(30, MicroBatch(4)), run(30))<1e-6

def test_counts_may_be_fractions():
    def loss(pred, y): return F.cross_entropy(pred, y, weight=W)
    def count(learn): return W[learn.y].sum()
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs), loss_func=loss).fit(2).model)
    assert gap(run(6, GradientAccumulation(30, count)), run(30))<1e-6 and gap(run(30, MicroBatch(4, count)), run(30))<1e-6

def test_a_window_without_anything_leaves_the_weights():
    learn = mk(GradientAccumulation(20), data=cut(10, torch.full_like(Y, -100))).fit(1)
    assert same(weights(learn.model), weights(net()))

@pytest.mark.parametrize('cb', [GradientAccumulation, MicroBatch])
def test_means_that_do_not_add_up_say_so(cb):
    for loss in (LabelSmoothingCrossEntropy(weight=W), LabelSmoothingCrossEntropyFlat(weight=W)):
        with pytest.warns(UserWarning, match='will not be exactly the big batch: one part of `LabelSmoothingCrossEntropy` is weighted'): mk(cb, loss_func=loss).fit(1)

def test_one_accumulation_at_a_time():
    with pytest.raises(ValueError, match='`gradient_accumulation_2` and `gradient_accumulation` would both put batches together: use one of them'): mk(GradientAccumulation(20), GradientAccumulation(40)).fit(1)

def test_one_micro_batch_at_a_time():
    with pytest.raises(ValueError, match='`micro_batch_2` and `micro_batch` would both cut the batch: use one of them'): mk(MicroBatch(4), MicroBatch(8)).fit(1)

# Micro-batches
def micro(n, *cbs, bs=30, y=Y, count=None, **kwargs): return mk(MicroBatch(n, count), *cbs, data=cut(bs, y), **kwargs).fit(2)

@pytest.mark.parametrize('bs', [1,7,16,30,60])
@pytest.mark.parametrize('n', [1,2,5,8,30,100,'auto'])
@pytest.mark.parametrize('loss', ['mean','sum'])
def test_micro_batches_are_the_batch(bs, n, loss):
    if bs==1 and n!=1: return
    def crit(): return nn.CrossEntropyLoss(reduction=loss)
    runs = []
    for cbs in ([], [MicroBatch(n)]):
        learn = Learner(DataLoaders(cut(bs), cut(25), device='cpu'), net(), crit(), opt_func=sgd, lr=.1 if loss=='mean' else .1/bs, cbs=cbs, metrics=accuracy).remove_cb(ProgressCallback)
        runs.append(learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=True)).fit(2))
    a,b = runs
    assert gap(weights(a.model), weights(b.model))<1e-6
    assert a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, rel=1e-5)
    assert [o for r in a.recorder.values for o in r]==pytest.approx([o for r in b.recorder.values for o in r], rel=1e-5)
    if n in (100,'auto'): assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses # one piece: the very same bits

@given(sizes=st.lists(st.integers(1,20), min_size=1, max_size=5), n=st.integers(1,25), momentum=st.booleans())
def test_batches_of_any_sizes(sizes, n, momentum):
    x,y = [o[:sum(sizes)].split(sizes) for o in (torch.cat([X,X]),torch.cat([T,T]))]
    def run(*cbs): return weights(mk(*cbs, data=list(zip(x,y)), loss_func=F.mse_loss).fit(1).model)
    assert gap(run(), run(MicroBatch(n)))<1e-6

def test_micro_batches_by_tokens():
    x,y = tokens()
    y[4:8] = -100 # a piece without any
    def run(*cbs):
        learn = mk(*cbs, data=list(zip(x.split(12), y.split(12))), loss_func=token_loss).fit(3)
        return weights(learn.model),learn.recorder.raw_losses
    (a,la),(b,lb),(c,_) = run(),run(MicroBatch(4, counted)),run(MicroBatch(4))
    assert gap(a, b)<1e-6 and la==pytest.approx(lb, rel=1e-5) and not gap(a, c)<1e-3

def test_micro_batches_by_tokens_with_a_mean_by_hand():
    "0/0 is NaN, and so is its gradient"
    x,y = tokens()
    y[4:8] = -100
    def loss(pred, y):
        mask = y!=-100
        return (F.cross_entropy(pred.flatten(0,1), y.flatten().clamp(0), reduction='none')*mask.flatten()).sum()/mask.sum()
    def run(*cbs): return weights(mk(*cbs, data=list(zip(x.split(12), y.split(12))), loss_func=loss).fit(3).model)
    assert gap(run(), run(MicroBatch(4, lambda learn: (learn.y!=-100).sum().item())))<1e-6

def test_nothing_to_count_leaves_the_weights():
    x,y = tokens()
    learn = mk(MicroBatch(4, counted), data=[(x, torch.full_like(y, -100))], loss_func=token_loss).fit(1)
    assert torch.tensor(learn.recorder.raw_losses).isnan().all() and same(weights(learn.model), weights(net()))

Pair = namedtuple('Pair', 'a b')
def test_inputs_and_predictions_of_any_nesting():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
        def forward(self, d, pair, names, mask, weight):
            assert len(names)==len(d['x'])==len(pair.a)==len(pair.b[0]) and mask.shape==(1,3) and weight.ndim==0 and names==[f'n{o:.4f}' for o in d['x'][:,0].tolist()]
            out = self.net((d['x']+pair.a*pair.b[0]*mask)*weight)
            return OrderedDict(out=out, hidden=(out.T, [out*2]), one=out.mean(), name='net')
    def batches(bs):
        for x,y in cut(bs): yield dict(x=x),Pair(x*2,[x*3]),[f'n{o:.4f}' for o in x[:,0].tolist()],torch.ones(1,3),torch.tensor(.5),y
    seen = {}
    def run(*cbs):
        last = on(event.after_batch)(lambda learn: seen.update({bool(cbs): learn.pred}))
        return mk(*cbs, last, data=DataLoaders(list(batches(20)), device='cpu'), model=Net(), loss_func=lambda p,y: F.cross_entropy(p['out'], y)+p['hidden'][1][0].pow(2).mean()).fit(2)
    assert gap(weights(run().model), weights(run(MicroBatch(6)).model))<4e-6
    a,b = seen[False],seen[True]
    assert type(b) is OrderedDict and list(a)==list(b) and a['out'].shape==b['out'].shape==(20,2) and b['name']=='net' and a['hidden'][0].shape==b['hidden'][0].shape==(2,20)
    for x,y in ((a['out'], b['out']), (a['hidden'][0], b['hidden'][0]), (a['hidden'][1][0], b['hidden'][1][0]), (a['one'], b['one'])): assert torch.allclose(x, y, atol=4e-6)

def test_mappings_and_models_that_return_their_loss():
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, labels):
            logits = self.net(x)
            return dict(loss=F.cross_entropy(logits, labels), logits=logits)
    def run(*cbs): return mk(*cbs, data=[dict(x=x, labels=y) for x,y in cut(20)], model=Net(), loss_func=None).fit(2)
    a,b = run(),run(MicroBatch(6))
    assert gap(weights(a.model), weights(b.model))<1e-6 and a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, rel=1e-5)

def test_what_events_see():
    seen = []
    class See(Callback):
        run_valid = False
        def note(self, ev):
            learn = self.learn
            seen.append((ev, len(learn.xb[0]), len(learn.yb[0]), None if learn.pred is None else len(learn.pred), learn.loss is None, any(p.grad is not None for p in learn.model.parameters())))
    for ev in dict(moments()):
        if 'cancel' not in ev: setattr(See, ev, lambda self, ev=ev: self.note(ev) if self.learn.training and self.learn.xb else None)
    learn = mk(MicroBatch(4), See, data=cut(10, n=10), valid=cut(5, n=5)).fit(1)
    one = [('before_batch',10,10,None,True,False),
        ('after_pred',3,3,3,True,False), ('after_loss',3,3,3,False,False), ('after_pred',3,3,3,True,True), ('after_loss',3,3,3,False,True), ('after_pred',4,4,4,True,True), ('after_loss',4,4,4,False,True),
        ('before_backward',10,10,10,False,False), *[(o,10,10,10,False,True) for o in ('after_backward', 'cleanup_backward', 'before_step', 'after_step', 'cleanup_step', 'before_zero_grad')],
        *[(o,10,10,10,False,False) for o in ('after_zero_grad', 'after_batch', 'cleanup_batch')]]
    assert [o for o in seen if o[0] in {e for e,*_ in one}]==one
    assert learn.forward_with is None

def test_a_cancelled_backward_hands_out_nothing():
    class Skip(Callback):
        def before_backward(self):
            if self.iter==0: raise CancelBackwardException
    a,b = mk(MicroBatch(4), Skip).fit(1),mk(Skip).fit(1)
    assert gap(weights(a.model), weights(b.model))<1e-6

@pytest.mark.parametrize('ev', ['after_pred', 'after_loss', 'before_backward', 'after_backward', 'before_step'])
@pytest.mark.parametrize('n', [1,2,4])
def test_a_cancelled_batch_is_gone(ev, n):
    "Whichever piece was running: what other batches have accumulated stays as it was"
    learn = mk(MicroBatch(4), Raise(ev, CancelBatchException, n=n), data=cut(12), valid=cut(12)).fit(1)
    inside = ev in ('after_pred','after_loss')
    assert len(learn.recorder.raw_losses)==(4 if inside else 5)
    plain = mk(Raise(ev, CancelBatchException, n=1+(n-1)//3 if inside else n), data=cut(12), valid=cut(12)).fit(1)
    if inside: assert gap(weights(learn.model), weights(plain.model))<1e-6

def test_the_loss_may_be_added_to():
    class Decay(Callback):
        run_valid = False
        def __init__(self, ev): self.ev = ev; super().__init__(**{ev: Decay.add})
        def add(self): self.learn.loss_grad = self.learn.loss_grad + .01*sum(p.pow(2).sum() for p in self.learn.model.parameters())
    for ev in ('after_loss','before_backward'): assert gap(weights(mk(Decay(ev), data=cut(30)).fit(2).model), weights(micro(7, Decay(ev)).model))<1e-6

def test_a_validation_inside_a_batch_is_whole():
    seen = []
    look = on(event.after_loss, when=lambda f,learn: learn.training)(lambda learn: seen.append(learn.validate().valid_loss))
    a,b = mk(MicroBatch(4), look, valid=cut(30)).fit(1),mk(valid=cut(30)).fit(1)
    assert gap(weights(a.model), weights(b.model))<1e-6 and len(seen)==18 and a.recorder[-1,'valid_loss']==pytest.approx(b.recorder[-1,'valid_loss'])

# with others
together = dict(clip=lambda: GradientClip(.2), accumulation=lambda: GradientAccumulation(60), mixup=lambda: MixUp(.4), mixup_clip=lambda: [MixUp(.4), GradientClip(.2)],
    mixup_acc=lambda: [MixUp(.4), GradientAccumulation(60), GradientClip(.2)], ema=lambda: EMA(.9), schedule=lambda: ParamScheduler(dict(lr=SchedCos(.2,.01))))
@pytest.mark.parametrize('name', together)
@pytest.mark.parametrize('first', [True,False])
@pytest.mark.parametrize('y', [Y,T], ids=['classes','numbers'])
def test_micro_batches_with_others(name, first, y):
    def run(*m):
        cbs = together[name]()
        cbs = cbs if isinstance(cbs, list) else [cbs]
        torch.manual_seed(1)
        return weights(mk(*(m if first else ()), *cbs, *(() if first else m), data=cut(15, y), loss_func=F.cross_entropy if y is Y else F.mse_loss).fit(3).model)
    assert gap(run(), run(MicroBatch(4)))<1e-6

def test_accumulated_tokens_of_micro_batches():
    x,y = tokens()
    def run(bs, *cbs): return weights(mk(*cbs, data=list(zip(x.split(bs), y.split(bs))), loss_func=token_loss).fit(3).model)
    assert gap(run(24), run(8, MicroBatch(3, counted), GradientAccumulation(24, counted)))<1e-6

def test_cutmix():
    imgs,y = torch.randn(24, 1, 6, 6),torch.randint(0, 3, (24,))
    def run(*cbs):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Flatten(), nn.Linear(36,3))
        return weights(mk(*cbs, data=list(zip(imgs.split(8), y.split(8))), model=m).fit(2).model)
    assert gap(run(CutMix()), run(CutMix(), MicroBatch(3)))<1e-6

@pytest.mark.parametrize('mode', ['bf16','fp16'])
def test_all_pieces_are_in_half_precision(mode):
    seen,dtypes = [],[]
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x):
            out = self.net(x)
            dtypes.append((self.training, out.dtype))
            return out
    grads = on(event.before_step, order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    def run(*cbs): learn = mk(*cbs, MixedPrecision(mode, init_scale=1024.), grads, model=Net(), data=cut(30), valid=cut(30)).fit(1); return weights(learn.model)
    a,b = run(),run(MicroBatch(7))
    assert {*dtypes}=={(t, torch.float16 if mode=='fp16' else torch.bfloat16) for t in (True,False)} and gap(a, b)<2e-3 and gap(seen[0], seen[2])<5e-3
    assert not torch.is_autocast_enabled('cpu')

def test_the_scaler_keeps_small_gradients():
    "In fp16, what is less than 6e-8 is nothing, unless the loss of each piece is scaled"
    def loss(pred, y): return F.mse_loss(pred, y)*1e-7
    seen = []
    grads = on(event.before_step, order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    mk(MixedPrecision('fp16', init_scale=2.**16), MicroBatch(7), grads, data=cut(30, T), loss_func=loss).fit(1)
    half,seen[:] = list(seen),[]
    mk(grads, data=cut(30, T), loss_func=loss).fit(1)
    for a,b in zip(half[0], seen[0]): assert torch.allclose(a, b, rtol=.05, atol=1e-10) and b.abs().max()<1e-6

def test_overflow_skips_the_step():
    class Spike(Callback):
        run_valid,n = False,0
        def after_loss(self):
            self.n += 1
            if self.n==2: self.learn.loss_grad = self.learn.loss_grad*1e38
    learn = mk(MixedPrecision('fp16', init_scale=1024.), MicroBatch(4), Spike, data=cut(10)).fit(1)
    assert learn.opt_step==5 and learn.mixed_precision.scaler.get_scale()==512 and all(p.isfinite().all() for p in learn.model.parameters())

# running out of memory
class Room(nn.Module):
    "Has room for `most` samples, in forward or backward"
    def __init__(self, most, where='forward', error=torch.OutOfMemoryError('CUDA out of memory')):
        super().__init__()
        self.net,self.drop,self.bn = net(),nn.Dropout(.3),nn.BatchNorm1d(3)
        self.most,self.where,self.error,self.tried = most,where,error,[]
    def forward(self, x):
        if self.training: self.tried.append(len(x))
        h = self.net[0](self.drop(self.bn(x))) # moves generators and statistics before it fails
        if len(x)>self.most and self.training:
            if self.where=='forward': raise self.error
            h.register_hook(self.fail) # gradients of later layers are there already
        return self.net[1:](h)
    def fail(self, g): raise self.error

errors = dict(torch=torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'), text=RuntimeError('CUDA error: out of memory'), cpu=RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
@pytest.mark.parametrize('where', ['forward','backward'])
@pytest.mark.parametrize('error', errors)
def test_auto_finds_the_size(where, error):
    m = Room(7, where, errors[error])
    learn = mk(MicroBatch, model=m, data=cut(30)).fit(2)
    expected = Room(7)
    fixed = mk(MicroBatch(4), model=expected, data=cut(30)).fit(2)
    tried = [30, 15, 7,8, *[3,4,4,4]*2*4] # halves, and pieces as equal as can be
    assert m.tried==tried and learn.micro_batch.fits==4
    assert same(weights(m), weights(expected)) and same([*m.buffers()], [*expected.buffers()]) and learn.recorder.raw_losses==fixed.recorder.raw_losses # the very same bits: same dropout, same statistics

def test_the_size_is_remembered():
    m = Room(7)
    learn = mk(MicroBatch, model=m, data=cut(30)).fit(1)
    m.tried.clear()
    learn.fit(1)
    assert max(m.tried)==4 and learn.micro_batch.state_dict()=={'fits': 4}
    other = mk(MicroBatch, model=m, data=cut(30))
    other.micro_batch.load_state_dict({'fits': 5})
    m.tried.clear()
    other.fit(1)
    assert m.tried==[5]*12

def test_what_was_accumulated_before_stays():
    class Late(Room):
        def forward(self, x):
            self.most = 30 if len(self.tried)<2 else 10 # memory gets scarce in the second batch
            return super().forward(x)
    m,plain = Late(30, 'backward'),Room(100)
    for o in (m,plain): o.drop.p = 0.; o.bn = nn.Identity()
    a = mk(MicroBatch, GradientAccumulation(45), model=m, data=cut(15, n=45)).fit(1)
    mk(model=plain, data=cut(45, n=45)).fit(1)
    assert a.micro_batch.fits==8 and gap(weights(m), weights(plain))<1e-6

def test_one_sample_that_does_not_fit_is_an_error():
    m = Room(0)
    m.bn = nn.Identity() # it takes no batch of one
    learn = mk(MicroBatch, model=m, data=cut(4))
    with pytest.raises(torch.OutOfMemoryError, match='out of memory'): learn.fit(1)
    assert m.tried==[4,2,1] and all(p.grad is None for p in m.parameters()) and learn.forward_with is None

@pytest.mark.parametrize('bs,error', [('auto', ValueError('out of memory')), ('auto', RuntimeError('shapes do not match')), (7, torch.OutOfMemoryError('CUDA out of memory'))])
def test_other_errors_are_not_caught(bs, error):
    m = Room(5, error=error)
    with pytest.raises(type(error), match=str(error)): mk(MicroBatch(bs), model=m, data=cut(30)).fit(1)
    assert len(m.tried)==1

def test_out_of_memory_in_validation_is_not_ours():
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x):
            if not self.training: raise torch.OutOfMemoryError('CUDA out of memory')
            return self.net(x)
    with pytest.raises(torch.OutOfMemoryError): mk(MicroBatch, model=Net(), valid=cut(30)).fit(1)

@pytest.mark.parametrize('order', [-100,100])
def test_a_batch_that_is_run_again_is_mixed_once(order):
    m,plain = Room(7),Room(100)
    for o in (m,plain): o.drop.p = 0.; o.bn = nn.Identity()
    class Mix(MixUp): pass
    Mix.order = order
    a = mk(MicroBatch, Mix(.4), MixedPrecision('bf16'), model=m, data=cut(30)).fit(2)
    mk(Mix(.4), MixedPrecision('bf16'), model=plain, data=cut(30)).fit(2)
    assert a.micro_batch.fits==4 and gap(weights(m), weights(plain))<2e-3 and not torch.is_autocast_enabled('cpu')

# refused
def test_sizes_from_numpy(): assert type(MicroBatch(np.int64(4)).bs) is int

@pytest.mark.parametrize('bs', [0, -1, 2.5, 'automatic', None, True])
def test_bad_micro_batch(bs):
    with pytest.raises(ValueError, match="`bs` is a number of samples, 1 or more, or 'auto', but got"): MicroBatch(bs)

def test_what_cannot_be_cut():
    data = [(torch.randn(6,5,3), torch.randint(0, 2, (5,)))] # sequences first
    with pytest.raises(ValueError, match=r'along the first axis, which has 5 samples, but a tensor of the batch has shape \(6, 5, 3\)'): mk(MicroBatch(2), data=data).fit(1)
    class Odd(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, o): return self.net(X)
    with pytest.raises(ValueError, match='cannot know how many samples'): mk(MicroBatch(2), data=DataLoaders(['a','b'], device='cpu'), model=Odd(), loss_func=None).fit(1)

@pytest.mark.parametrize('loss,match', [(lambda p,y: 3., 'must be a tensor, but'), (lambda p,y: p, 'must be one number, but has shape'), (lambda p,y: p.detach().mean(), 'does not depend on any trainable')])
def test_bad_losses_are_named(loss, match):
    with pytest.raises((TypeError,ValueError), match=match): mk(MicroBatch(4), loss_func=loss).fit(1)

# Small ones
@pytest.mark.parametrize('what', ['affine','frozen','trained','sync'])
def test_bn_freeze(what):
    m = nn.Sequential(nn.Linear(3,4), nn.SyncBatchNorm(4) if what=='sync' else nn.BatchNorm1d(4, affine=what!='affine'), nn.Linear(4,2))
    if what in ('frozen','sync'): m[1].requires_grad_(False)
    mk(BnFreeze, model=m, valid=cut(30)).fit(2)
    assert torch.equal(m[1].running_mean, torch.zeros(4))==(what!='trained') and m[1].training

@pytest.mark.parametrize('pct,n', [(.01,1), (.1,1), (.2,2), (.25,2), (.5,3), (.99,6), (1.,6)])
def test_short_epochs(pct, n):
    drawn = dict(train=0, valid=0)
    count = on(event.after_draw)(lambda learn: drawn.update({learn.dl_name: drawn[learn.dl_name]+1}))
    lens = []
    learn = mk(ShortEpochCallback(pct), count, on(event.before_batch)(lambda learn: lens.append(learn.n_iter)), valid=cut(10)).fit(2)
    assert drawn=={'train': 2*n, 'valid': 2*n} and {*lens}=={n} and len(learn.recorder.raw_losses)==2*n
    drawn.update(valid=0); learn.add_cb(count).validate()
    assert drawn['valid']==6
    drawn.update(train=0, valid=0)
    mk(ShortEpochCallback(pct, short_valid=False), count, data=cut(10), valid=NoLength(cut(10))).fit(1)
    assert drawn=={'train': n, 'valid': 6}

def test_short_epochs_need_a_length():
    with pytest.raises(ValueError, match='a fraction of the batches, but `train` has no length'): mk(ShortEpochCallback(.5), data=NoLength(cut(10))).fit(1)
    with pytest.raises(ValueError, match='a fraction of the batches, but `valid` has no length'): mk(ShortEpochCallback(.5), valid=NoLength(cut(10))).fit(1)
    with pytest.raises(ValueError, match='`pct` is a fraction above 0 and up to 1, but got 0'): ShortEpochCallback(0)

class Recurrent(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        torch.manual_seed(0)
        self.rnn,self.out,self.h,self.resets = nn.RNN(3, 4, batch_first=True),nn.Linear(4,1),None,0
    def reset(self): self.h = None; self.resets += 1
    def forward(self, x):
        raw,h = self.rnn(x, self.h)
        self.h = h.detach()
        return self.out(raw),[raw*0,raw],[raw*0,raw*2]

def sequences(n=6): g = torch.Generator().manual_seed(3); return [(torch.randn(4, 5, 3, generator=g), torch.randn(4, 5, 1, generator=g)) for _ in range(n)]

def test_model_resetter_and_rnn_callback():
    def hand():
        m = Recurrent()
        opt = sgd(m.parameters())
        for _ in range(2):
            m.h = None
            for x,y in sequences(): F.mse_loss(m(x)[0], y).backward(); opt.step(); opt.zero_grad()
        m.h,total = None,0
        with torch.no_grad():
            for x,y in sequences(2): total += F.mse_loss(m(x)[0], y).item()/2
        return weights(m),total
    learn = mk(ModelResetter, RNNCallback, data=sequences(), valid=sequences(2), model=Recurrent(), loss_func=F.mse_loss).fit(2)
    ws,total = hand()
    assert gap(weights(learn.model), ws)<1e-6 and learn.recorder[-1,'valid_loss']==pytest.approx(total, rel=1e-5) and learn.model.h is None
    assert torch.equal(learn.rnn.raw_out*2, learn.rnn.out)
    assert learn.get_preds()[0].shape==(8,5,1)

@pytest.mark.parametrize('ev', ['before_train', 'after_pred', 'after_batch', 'before_batch'])
def test_a_look_leaves_the_state_of_the_model(ev):
    def run(look):
        cb = on(getattr(event, ev), order=50)(lambda learn: learn.validate() if look and learn.training else None)
        return mk(ModelResetter, RNNCallback, cb, data=sequences(), valid=sequences(2), model=Recurrent(), loss_func=F.mse_loss).fit(2)
    a,b = run(False),run(True)
    assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses

def test_mc_dropout():
    class WordDropout(nn.Module):
        def __init__(self): super().__init__(); self.inner = nn.BatchNorm1d(3)
        def forward(self, x): return self.inner(x)*torch.rand(()) if self.training else self.inner(x)
    m = nn.Sequential(WordDropout(), nn.Linear(3,8), nn.Dropout(), nn.AlphaDropout(), nn.Dropout1d(), nn.Linear(8,2))
    learn = mk(MCDropoutCallback, model=m, valid=cut(30))
    modes = []
    learn.validate(cbs=on(event.before_batch)(lambda learn: modes.append([o.training for o in m.modules()])))
    assert modes[0]==[False, True, False, False, True, True, True, False] and all(o.training for o in m.modules())
    ps = [learn.get_preds(cbs=on(event.before_validate)(lambda learn,i=i: torch.manual_seed(i)))[0] for i in range(3)]
    assert not torch.equal(ps[0], ps[1]) and not torch.equal(ps[1], ps[2])

def test_mc_dropout_draws_anew_each_time():
    "And is a look all the same: the run goes on as without it"
    def mk_(*cbs): return mk(*cbs, model=nn.Sequential(net(64), nn.Dropout(.5), nn.Linear(64,2)), valid=cut(30)).fit(1)
    learn,plain = mk_(),mk_()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for look in (lambda: learn.get_preds(cbs=MCDropoutCallback)[0], lambda: torch.tensor(learn.validate(cbs=MCDropoutCallback).valid_loss)):
        ps = torch.stack([look() for _ in range(200)])
        assert len({o.numpy().tobytes() for o in ps})==200 and torch.equal(torch.get_rng_state(), state)
        if ps.ndim>1: # as many draws by hand
            torch.manual_seed(1)
            with torch.no_grad(): own = torch.stack([learn.model.train()(X).softmax(1) for _ in range(200)])
            assert torch.allclose(ps.std(0).mean(), own.std(0).mean(), rtol=.05) and torch.allclose(ps.mean((0,1)), own.mean((0,1)), atol=.03)
            torch.set_rng_state(state)
    assert same(weights(learn.fit(1).model), weights((torch.set_rng_state(state), plain.fit(1))[1].model))
    torch.manual_seed(3)
    a,b = (mk_().get_preds(cbs=MCDropoutCallback)[0] for _ in range(2))
    assert torch.equal(a, b) # a script gives the same again
    seen = []
    mk(on(event.after_epoch)(lambda learn: seen.extend(learn.get_preds(cbs=MCDropoutCallback)[0] for _ in range(3))), model=nn.Sequential(net(), nn.Dropout()), valid=cut(30)).fit(1)
    assert len({o.numpy().tobytes() for o in seen})==3

def test_collected_data():
    learn = mk(CollectDataCallback, data=cut(20), valid=cut(30)).fit(1)
    data = learn.collect_data.data
    assert len(data)==5
    for ((x,),(y,),pred,loss),(x0,y0) in zip(data, cut(20)+cut(30)): assert torch.equal(x, x0) and torch.equal(y, y0) and not pred.requires_grad and F.cross_entropy(pred, y).item()==pytest.approx(loss.item())
    Out = namedtuple('Out', 'logits extra')
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, labels): return Out(self.net(x), dict(h=x))
    learn = mk(CollectDataCallback, data=[dict(x=x, labels=y) for x,y in cut(20)], model=Net(), loss_func=lambda o,y: F.cross_entropy(o.logits, y)).fit(1)
    xb,yb,pred,loss = learn.collect_data.data[0]
    assert torch.equal(xb['x'], X[:20]) and type(pred) is Out and not pred.logits.requires_grad and torch.equal(pred.extra['h'], X[:20])

# Memory format, compilation
def test_channels_last():
    imgs,y = torch.randn(12, 3, 4, 4),torch.randint(0, 2, (12,))
    seen = []
    class Net(nn.Module):
        def __init__(self): super().__init__(); torch.manual_seed(0); self.conv,self.lin = nn.Conv2d(3,4,3),nn.Linear(16,2)
        def forward(self, x, more):
            seen.append((x.is_contiguous(memory_format=torch.channels_last), more['y'].is_contiguous(memory_format=torch.channels_last), self.conv.weight.is_contiguous(memory_format=torch.channels_last)))
            return self.lin(self.conv(x+more['y']).flatten(1))
    def run(*cbs, model=None): return mk(*cbs, data=[(a,dict(y=a*2),b) for a,b in zip(imgs.split(4), y.split(4))], model=model or Net()).fit(2)
    plain = run()
    assert not any(map(any, seen)); seen.clear()
    learn = run(ChannelsLast)
    assert all(map(all, seen)) and gap(weights(plain.model), weights(learn.model))<1e-6 and learn.model.conv.weight.is_contiguous()
    learn = run(ChannelsLast, model=Net().to(memory_format=torch.channels_last)) # stays as it was
    assert learn.model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    learn = mk(model=Net())
    assert learn.to_channelslast() is learn and learn.to_channelslast().channels_last in learn.cbs and learn.to_contiguous() is learn and not any(isinstance(o, ChannelsLast) for o in learn.cbs)

def test_compile():
    plain,learn = mk(valid=cut(30)).fit(2),mk(Compile(backend='eager'), valid=cut(30)).fit(2)
    assert same(weights(plain.model), weights(learn.model)) and list(plain.model.state_dict())==list(learn.model.state_dict()) and 'forward' not in vars(learn.model)
    m = net()
    m.forward = own = lambda x: nn.Sequential.forward(m, x)*2
    mk(Compile(backend='eager'), model=m).fit(1)
    assert m.forward is own

# Which samples
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
    (lambda: weighted_dl(range(4), 2, [1,2]), 'There are 4 samples, but 2 weights'), (lambda: weighted_dl(range(2), 2, [1,-2]), 'Weights are 0 or more, and not all 0, but they go from -2 to 1'),
    (lambda: weighted_dl(range(2), 2, [0,0]), 'not all 0'), (lambda: weighted_dl(range(2), 2, [1,float('nan')]), 'not all 0'),
    (lambda: partial_dl(range(4), 2, 5), '`partial_n` is a number of samples, of which there are 4, but got 5'), (lambda: partial_dl(range(4), 2, 0), 'but got 0'),
    (lambda: GradientClip(0), '`max_norm` is above 0, but got 0'), (lambda: GradientClip(max_value=-1), '`max_value` is above 0, but got -1'), (lambda: GradientAccumulation(0), '`n_acc` is above 0'), (lambda: GradientClip(float('nan')), '`max_norm` is above 0, but got nan')])
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match): make()

@pytest.mark.parametrize('make,match', [(lambda: GradientClip(None), '`max_norm` is a number above 0, but got None'), (lambda: GradientClip('a'), "`max_norm` is a number above 0, but got 'a'"), (lambda: GradientAccumulation('8'), "`n_acc` is a number above 0, but got '8'"),
    (lambda: GradientClip(params='0.weight'), "`params` is a function of the model that returns parameters, such as .* but got '0.weight'")])
def test_settings_of_other_types(make, match):
    with pytest.raises(TypeError, match=match): make()

# A fit that is stopped goes on as if it had not been
kinds = dict(clip=lambda: [GradientClip(.3)], accumulation=lambda: [GradientAccumulation(25)], tokens=lambda: [GradientAccumulation(25, lambda learn: len(learn.y))], micro=lambda: [MicroBatch], several=lambda: [MicroBatch(4), GradientAccumulation(25), MixUp(), GradientClip(.3)],
    short=lambda: [ShortEpochCallback(.5)], rnn=lambda: [ModelResetter, RNNCallback])
@pytest.mark.parametrize('name', kinds)
@pytest.mark.parametrize('at', [1, 4, 8])
@pytest.mark.parametrize('file', [False,True])
def test_going_on(name, at, file, tmp_path):
    def make():
        torch.manual_seed(1)
        if name=='rnn': return mk(*kinds[name](), data=sequences(), valid=sequences(2), model=Recurrent(), loss_func=F.mse_loss)
        model = Room(4) if name=='micro' else nn.Sequential(net(), nn.Dropout(.1))
        return mk(*kinds[name](), model=model, valid=cut(20))
    def stop(learn):
        if learn.training and learn.train_iter==at: learn.at_pause(interrupt, stops=True)
    def interrupt(): raise KeyboardInterrupt
    whole,learn = make().fit(3),make()
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=on(event.after_batch)(stop))
    if file:
        learn.save_state(tmp_path/'state.pt')
        learn = make()
        for p in learn.model.parameters(): p.data.zero_()
        learn.load_state(tmp_path/'state.pt')
    learn.resume(cbs=[])
    assert same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses and whole.opt_step==learn.opt_step
    if name=='clip': assert torch.equal(whole.gradient_clip.norms, learn.gradient_clip.norms)
    if name=='micro': assert learn.micro_batch.fits==3 and max(learn.model.tried)==(3 if file else 10)
