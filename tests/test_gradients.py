"Clipped and accumulated, a step is the step of the formula, computed by hand"
import warnings
from functools import partial
import pytest,torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.nn import functional as F
from learner.all import *
from learner.technique.gradients import scale_grads
from small_fits import net,gen,X,Y,cut,NoLength,sgd,mk,weights,same,gap,tokens,token_loss,counted

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
    assert (gap(weights(learn.model), clipped(clip))<1e-6
        and torch.allclose(learn.gradient_clip.norms, torch.stack(norms)) and max(norms)>.4>min(norms))

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

class Bag(nn.Module):
    "Embeddings whose gradients can be sparse; some rows are drawn twice, others never"
    def __init__(self, sparse):
        super().__init__(); torch.manual_seed(0); self.e,self.l = nn.Embedding(6, 3, sparse=sparse),nn.Linear(6, 2)
    def forward(self, x): return self.l(self.e(x).flatten(1))

bags = [(torch.tensor([[0,1],[1,3],[1,1],[4,0]]), torch.tensor([0,1,0,1]))]*3
def with_bags(sparse, *cbs):
    return Learner(DataLoaders(bags, device='cpu'), Bag(sparse), F.cross_entropy,
        opt_func=partial(torch.optim.SGD, lr=.5), cbs=[TrainEvalCallback, *cbs], default_cbs=False).fit(2)

@pytest.mark.parametrize('kwargs',
    [dict(max_norm=.1), dict(max_norm=.1, norm_type=1.), dict(max_norm=.1, norm_type=float('inf')), dict(max_value=.01),
        dict(max_norm=float('inf'))], ids=str)
@pytest.mark.parametrize('n_acc', [None, 8])
def test_sparse_gradients_are_clipped_as_dense_ones(kwargs, n_acc):
    dense,sparse = (with_bags(o, GradientClip(**kwargs), *([GradientAccumulation(n_acc)] if n_acc else []))
        for o in (False, True))
    assert gap(weights(dense.model), weights(sparse.model))<1e-6
    if 'max_norm' in kwargs:
        assert (torch.allclose(dense.gradient_clip.norms, sparse.gradient_clip.norms)
            and len(sparse.gradient_clip.norms)==(4 if n_acc else 6))
    # something was clipped
    if kwargs=={'max_norm': .1}:
        assert (sparse.gradient_clip.norms>.1).any() and gap(weights(sparse.model), weights(with_bags(True).model))>1e-3

def test_a_guard_against_spikes_reads_sparse_gradients():
    assert gap(weights(with_bags(True, SpikeGuard()).model), weights(with_bags(False).model))<1e-6

@pytest.mark.parametrize('n_acc', [15, 25, 100])
@pytest.mark.parametrize('length', [True, False])
def test_a_clip_of_ones_own_sees_the_mean_over_a_window(n_acc, length):
    """Also over the last one, which is not full: in a loop by hand, its gradients are divided by its samples. After
    training, the weights have had that step"""
    seen,ends,hand,norms = [],[],net(),[]
    class Clip(Callback):
        run_valid = False
        def before_step(self): seen.append(nn.utils.clip_grad_norm_(self.model.parameters(), .1))
        def after_train(self): ends.append(weights(self.model))
    data = cut(10, n=50)
    learn = mk(Clip(), GradientAccumulation(n_acc), data=data if length else NoLength(data)).fit(1)
    opt,n = sgd(hand.parameters()),0
    for i,(x,y) in enumerate(data):
        F.cross_entropy(hand(x), y, reduction='sum').backward()
        n += len(x)
        if n<n_acc and i+1<len(data): continue
        for p in hand.parameters(): p.grad /= n
        norms.append(nn.utils.clip_grad_norm_(hand.parameters(), .1))
        opt.step(); opt.zero_grad(); n = 0
    assert (len(seen)==len(norms) and torch.allclose(torch.stack(seen), torch.stack(norms), rtol=1e-4)
        and gap(weights(learn.model), weights(hand))<1e-6 and same(ends[0], weights(learn.model)))

def test_clip_some():
    def clip(m):
        norm = m[2].weight.grad.norm()
        m[2].weight.grad *= min(1., .05/(norm+1e-6))
    learn = mk(GradientClip(.05, params=lambda m: [m[2].weight])).fit(2)
    assert gap(weights(learn.model), clipped(clip))<1e-6

class TrainedLoss(nn.Module):
    "A loss with a parameter that is trained too, and has the largest gradient"
    def __init__(self): super().__init__(); self.scale = nn.Parameter(torch.ones(()))
    def forward(self, pred, y): return F.cross_entropy(pred, y) + (5*self.scale).square()

@pytest.mark.parametrize('trained', ['all','head'])
def test_clip_what_the_optimizer_trains(trained):
    "Parameters of the loss with it, and none of a body that is left out, whose gradients pile up"
    loss_func,m,loss = TrainedLoss(),net(),TrainedLoss()
    def of(m, loss): return [*m.parameters(), loss.scale] if trained=='all' else [*m[2].parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', Mistake) # nothing trains the body
        learn = mk(GradientClip(.4), loss_func=loss_func, splitter=lambda m: of(m, loss_func)).fit(1)
    opt = sgd(of(m, loss))
    norms = []
    for x,y in cut(10):
        opt.zero_grad()
        loss(m(x), y).backward()
        norms.append(torch.cat([p.grad.flatten() for p in of(m, loss)]).norm())
        for p in of(m, loss): p.grad *= min(1., .4/(norms[-1]+1e-6))
        opt.step()
    assert gap(weights(learn.model), weights(m))<1e-6 and torch.allclose(loss_func.scale, loss.scale, atol=1e-6)
    assert torch.allclose(learn.gradient_clip.norms, torch.stack(norms))

@pytest.mark.parametrize('order', [0,1])
def test_clip_after_unscaling(order):
    cbs = [GradientClip(.2), MixedPrecision('fp16', init_scale=1024.)]
    learn = mk(*(cbs[::-1] if order else cbs)).fit(1)
    plain = mk(GradientClip(.2)).fit(1)
    assert torch.allclose(learn.gradient_clip.norms, plain.gradient_clip.norms, rtol=.02)

def test_evaluation_keeps_the_norms():
    learn = mk(GradientClip(.2), valid=cut(10)).fit(1)
    before = learn.gradient_clip.norms.clone()
    learn.validate(); learn.lr_find(num_it=6, show_plot=False)
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
    data,lr = cut(bs),dict(mean=.1, sum=.01)[loss]
    learn = mk(GradientAccumulation(n_acc), data=data if length else NoLength(data), loss_func=crit()).fit(2, lr)
    sizes = ends(bs, n_acc)
    big = mk(data=list(zip(X.split(sizes), Y.split(sizes))), loss_func=crit()).fit(2, lr)
    assert (learn.opt_step==big.opt_step==2*len(sizes) and gap(weights(learn.model), weights(big.model))<2e-6
        and not any(p.grad is not None for p in learn.model.parameters()))

def test_accumulation_counts_tokens():
    x,y = tokens()
    def run(bs, *cbs):
        return weights(mk(*cbs, data=list(zip(x.split(bs), y.split(bs))), loss_func=token_loss).fit(3).model)
    big = run(12)
    assert gap(run(4, GradientAccumulation(12, counted)), big)<1e-6 and gap(run(4, GradientAccumulation(12)), big)<1e-6
    # samples are not what it averages over
    assert gap(run(4, GradientAccumulation(12, lambda learn: len(learn.y))), big)>1e-3

class AsOnGPUs(TorchDispatchMode):
    "Multiplies a list only by a number on its device, as the kernels of a GPU do"
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._foreach_mul_.Tensor: assert {o.device for o in args[0]}=={args[1].device}
        return func(*args, **(kwargs or {}))

@pytest.mark.parametrize('cb', [GradientAccumulation, MicroBatch])
def test_a_count_may_be_on_the_cpu(cb):
    data = [tuple(o.to('meta') for o in b) for b in cut(10)]
    learn = mk(TrainEvalCallback, cb(20, count=lambda learn: torch.tensor(10.)), data=DataLoaders(data, device='meta'),
        default_cbs=False)
    with AsOnGPUs(): learn.fit(1)
    assert learn.train_iter==6

@pytest.mark.parametrize('count,hooked', [(len, False), (lambda y: torch.tensor(len(y)), True)])
def test_a_count_that_is_a_number_is_not_copied_to_the_device(count, hooked):
    "It is known here that there is something, and predictions need no hook"
    seen = []
    note = on('after_backward', order=-100)(lambda learn: seen.append(bool(learn.pred._backward_hooks)))
    mk(GradientAccumulation(20, count=lambda learn: count(learn.y)), note).fit(1)
    assert {*seen}=={hooked}

def test_gradients_of_a_model_that_is_spread_over_devices_are_scaled():
    grads = [torch.ones(2), torch.ones(3, device='meta'), torch.ones(1)]
    with AsOnGPUs(): scale_grads(grads, torch.tensor(2.))
    assert grads[0].tolist()==[2,2] and grads[2].tolist()==[2]

def test_accumulation_starts_each_epoch_anew():
    seen = []
    mk(GradientAccumulation(20), on(event.after_step)(lambda learn: seen.append((learn.epoch, learn.iter))),
        data=cut(10, n=50), valid=cut(30)).fit(2)
    assert seen==[(e,i) for e in (0,1) for i in (1,3,4)]

def test_accumulation_of_a_short_epoch():
    "Its last window is closed where it is cut"
    seen = []
    mk(GradientAccumulation(1000), ShortEpochCallback(.5),
        on(event.after_step)(lambda learn: seen.append(learn.iter))).fit(2)
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

class OwnGradients(Callback):
    "Computes gradients in place of the backward pass, but none in batch `skips`"
    run_valid = False
    def __init__(self, skips=None, order=0): self.skips,self.order = skips,order
    def before_backward(self):
        ps = [] if self.iter==self.skips else [*self.model.parameters()]
        for p,g in zip(ps, torch.autograd.grad(self.loss_grad, ps) if ps else ()):
            p.grad = g if p.grad is None else p.grad+g
        raise CancelBackwardException

@pytest.mark.parametrize('skips', [None,0,1,3])
def test_gradients_that_a_callback_computes_itself_are_accumulated(skips):
    parts = [o for i,o in enumerate(zip(X.split(10), Y.split(10))) if i!=skips][:4]
    learn = mk(GradientAccumulation(20), OwnGradients(skips, order=GradientAccumulation.order+1),
        data=cut(10, n=40 if skips is None else 50)).fit(1)
    big = mk(data=[[torch.cat(o) for o in zip(*parts[i:i+2])] for i in (0, 2)]).fit(1)
    assert learn.opt_step==2 and gap(weights(learn.model), weights(big.model))<2e-6

class LeavesZeros(torch.optim.SGD):
    def zero_grad(self, set_to_none=False): super().zero_grad(False)

def test_zeros_that_an_optimizer_leaves_are_no_gradients_of_a_callback():
    class Skip(Callback):
        def before_backward(self):
            if self.iter==2: raise CancelBackwardException
    def run(*cbs, **kw):
        learn = mk(*cbs, **kw)
        learn.opt_func = LeavesZeros
        return learn.fit(1)
    learn = run(GradientAccumulation(20), Skip, data=cut(10, n=50))
    rows = torch.cat([torch.arange(20), torch.arange(30, 50)]).split(20)
    assert learn.opt_step==2 and gap(weights(learn.model), weights(run(data=[(X[r], Y[r]) for r in rows]).model))<2e-6

def test_gradients_that_a_callback_computes_before_the_loss_is_weighted_are_refused():
    learn = mk(GradientAccumulation(20), OwnGradients, data=cut(10))
    with pytest.raises(RuntimeError, match=r'give it `order = GradientAccumulation.order\+1`'): learn.fit(1)
    assert learn.opt_step==0 and not any(p.grad is not None for p in learn.model.parameters())

@pytest.mark.parametrize('mode', ['fp16','bf16'])
def test_accumulation_and_mixed_precision(mode):
    seen = []
    grads = on(event.before_step,
        order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    mk(GradientAccumulation(30), MixedPrecision(mode, init_scale=1024.), GradientClip(100.), grads).fit(1)
    acc,seen[:] = list(seen),[]
    mk(grads, data=cut(30)).fit(1)
    assert len(acc)==len(seen)==2 and gap(acc[0], seen[0])<5e-3

class Skips(Callback):
    "Skips batch 5"
    run_valid,order = False,-100
    def before_batch(self):
        if self.iter==5: raise CancelBatchException

@pytest.mark.parametrize('others', [lambda: (), lambda: (MicroBatch(4),)], ids=['whole','pieces'])
@pytest.mark.parametrize('first', [True, False])
@pytest.mark.parametrize('end', ['unknown','cancelled'])
def test_a_step_that_follows_no_batch_has_true_gradients(end, first, others):
    "Open windows of 20 and 10 samples: two big batches by hand"
    norms,opt,steps = [],sgd((m := net()).parameters()),[slice(0, 40), slice(40, 60 if end=='unknown' else 50)]*2
    for rows in steps:
        F.cross_entropy(m(X[rows]), Y[rows]).backward()
        norms.append(nn.utils.clip_grad_norm_(m.parameters(), .1)); opt.step(); opt.zero_grad()
    seen = []
    cbs = [GradientAccumulation(40), GradientClip(.1), on(event.before_step, order=-2000 if first else 50)(lambda learn:
        seen.append(torch.stack([p.grad.norm() for p in learn.model.parameters()]).norm())), *others()]
    data = DataLoaders(NoLength(cut(10)), device='cpu') if end=='unknown' else cut(10)
    learn = mk(*cbs, MixedPrecision('fp16'), *([Skips()] if end=='cancelled' else []), data=data).fit(2)
    assert learn.opt_step==4 and gap(weights(learn.model), weights(m))<2e-3
    assert torch.allclose(learn.gradient_clip.norms, torch.stack(norms), rtol=.02) and len(seen)==4
    assert all(o<2 for o in seen)

def test_an_overflow_in_a_step_that_follows_no_batch_skips_it():
    def spike(learn):
        if learn.iter==5 and learn.epoch==0: learn.loss_grad = learn.loss*1e38*10
    learn = mk(GradientAccumulation(40), MixedPrecision('fp16', init_scale=1024.),
        on(event.after_loss, order=20)(spike), data=DataLoaders(NoLength(cut(10)), device='cpu')).fit(2)
    assert learn.opt_step==3 and learn.mixed_precision.scaler.get_scale()==512.
    assert all(p.isfinite().all() for p in learn.model.parameters())

@pytest.mark.parametrize('ev', ['before_draw','before_batch','after_batch'])
def test_gradients_that_wait_when_mixed_precision_is_removed_are_no_longer_scaled(ev):
    def remove(learn):
        if learn.train_iter==2: learn.remove_cb(MixedPrecision)
    learn = mk(GradientAccumulation(40), MixedPrecision('fp16'), on(ev)(remove)).fit(1)
    assert gap(weights(learn.model), weights(mk(GradientAccumulation(40)).fit(1).model))<2e-3

@pytest.mark.parametrize('ev', ['before_draw','before_batch','after_batch'])
def test_an_open_window_is_dropped_when_the_callback_is_removed(ev):
    "The first window of 40 is whole; of the second, 10 or 20 samples have no step; then each batch has one"
    def remove(learn):
        if learn.train_iter==5: learn.remove_cb(GradientAccumulation)
    learn = mk(GradientAccumulation(40), on(ev)(remove), data=cut(10)*2).fit(1)
    m,left = net(),6 if ev=='before_batch' else 5
    opt = sgd(m.parameters())
    for rows in [slice(0, 40), *(slice(i%6*10, i%6*10+10) for i in range(left, 12))]:
        F.cross_entropy(m(X[rows]), Y[rows]).backward()
        opt.step(); opt.zero_grad()
    assert gap(weights(learn.model), weights(m))<1e-6 and learn.opt_step==1+12-left

@pytest.mark.parametrize('other', [False, True])
@pytest.mark.parametrize('n', [5, 6])
def test_gradients_that_wait_are_those_of_the_run_where_it_resumes(n, other, tmp_path):
    "After the last batch of a loader without a length, the next thing is a step"
    def make(*cbs): return mk(GradientAccumulation(40), MixedPrecision('fp16'), *cbs, data=DataLoaders(
        NoLength(cut(10)), device='cpu'), path=tmp_path)
    def stop(learn):
        if learn.train_iter==n: learn.at_pause(learn.stop_for_now, stops=True)
    whole,learn = make().fit(2),make().fit(2, cbs=[on('after_batch')(stop), Checkpoint(folder=tmp_path)])
    assert learn.route.stopped.position.batch==n
    if other: learn = make().fit(2, cbs=Checkpoint(folder=tmp_path), resume=True)
    else: learn.resume(cbs=())
    assert same(weights(learn.model), weights(whole.model)) and learn.opt_step==whole.opt_step==4

@pytest.mark.parametrize('by', ['one before it','one after it','an overflow'])
def test_after_a_cancelled_step_the_window_begins_anew(by):
    "Windows of 20: the step of the first one is cancelled, and the others are those of big batches"
    def cancel(learn):
        if learn.iter==1: raise CancelStepException
    def spike(learn):
        if learn.iter==1: learn.loss_grad = learn.loss*1e38*10
    cbs = [on(event.before_step, order=-100 if by=='one before it' else 100)(cancel)]
    if by=='an overflow': cbs = [MixedPrecision('fp16', init_scale=1024.), on(event.after_loss, order=20)(spike)]
    learn,big = mk(GradientAccumulation(20), *cbs).fit(1),mk(data=cut(20)[1:]).fit(1)
    assert learn.opt_step==2 and gap(weights(learn.model), weights(big.model))<(2e-3 if by=='an overflow' else 1e-6)

@pytest.mark.parametrize('exc', [CancelStepException, CancelEpochException])
def test_a_cancelled_step_that_follows_no_batch_leaves_the_next_ones_alone(exc):
    def cancel(learn):
        if learn.epoch==0 and learn.train_iter==6: raise exc
    a,b = (mk(GradientAccumulation(40), *amp, on(event.before_step, order=20)(cancel),
        data=DataLoaders(NoLength(cut(10)), device='cpu')).fit(2) for amp in ([], [MixedPrecision('fp16')]))
    assert a.opt_step==b.opt_step==3 and gap(weights(a.model), weights(b.model))<2e-3

@pytest.mark.parametrize('summed',
    [lambda: partial(F.cross_entropy, reduction='sum'), lambda: CrossEntropyLossFlat(reduction='sum')],
    ids=['partial','flat'])
def test_sums_add_up_as_they_are(summed):
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs), loss_func=summed()).fit(2, lr=.002).model)
    assert (gap(run(30, GradientAccumulation(30)), run(30))<1e-6
        and gap(run(10, GradientAccumulation(30)), run(30))<1e-6 and gap(run(30, MicroBatch(4)), run(30))<1e-6)

W,ignored = torch.tensor([.1,2.5]),Y.clone()
ignored[::3] = -100
ignored[30:34] = -100 # a whole piece
void = torch.where(ignored<0, 1, ignored)
means = dict(weight=(lambda: nn.CrossEntropyLoss(weight=W), Y), partial=(lambda: partial(F.cross_entropy, weight=W), Y),
    flat=(lambda: CrossEntropyLossFlat(weight=W), Y),
    smooth=(lambda: nn.CrossEntropyLoss(weight=W, label_smoothing=.1), Y),
    focal=(lambda: FocalLoss(weight=W), Y), focal_flat=(lambda: FocalLossFlat(weight=W), ignored),
    ignore=(nn.CrossEntropyLoss, ignored), plain=(lambda: F.cross_entropy, ignored),
    both=(lambda: nn.CrossEntropyLoss(weight=W), ignored),
    other=(lambda: nn.CrossEntropyLoss(ignore_index=1), void),
    partial_ignore=(lambda: partial(F.cross_entropy, ignore_index=1), void),
    nll=(lambda: nn.NLLLoss(weight=W, ignore_index=1), void))
@pytest.mark.parametrize('name', means)
def test_what_a_mean_is_over_is_known(name):
    "Of weighted means, and of targets that are ignored"
    make,y = means[name]
    model = lambda: nn.Sequential(net(), nn.LogSoftmax(1)) if name=='nll' else net()
    def run(bs, *cbs):
        learn = mk(*cbs, data=cut(bs, y), loss_func=make(), model=model()).fit(2)
        return weights(learn.model),learn.recorder.raw_losses
    (big,losses),(acc,_),(micro,mlosses),(both,_) = run(30),run(6, GradientAccumulation(30)),run(30,
        MicroBatch(4)),run(15, MicroBatch(4), GradientAccumulation(30))
    assert (gap(acc, big)<1e-6 and gap(micro, big)<1e-6 and gap(both, big)<1e-6
        and mlosses==pytest.approx(losses, rel=1e-5))

def test_probabilities_all_count():
    p = torch.rand(60, 2, generator=gen).softmax(1)
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs, p), loss_func=nn.CrossEntropyLoss(weight=W)).fit(2).model)
    assert gap(run(6, GradientAccumulation(30)), run(30))<1e-6 and gap(run(30, MicroBatch(4)), run(30))<1e-6

def test_counts_may_be_fractions():
    def loss(pred, y): return F.cross_entropy(pred, y, weight=W)
    def count(learn): return W[learn.y].sum()
    def run(bs, *cbs): return weights(mk(*cbs, data=cut(bs), loss_func=loss).fit(2).model)
    assert (gap(run(6, GradientAccumulation(30, count)), run(30))<1e-6
        and gap(run(30, MicroBatch(4, count)), run(30))<1e-6)

def test_a_window_without_anything_leaves_the_weights():
    learn = mk(GradientAccumulation(20), data=cut(10, torch.full_like(Y, -100))).fit(1)
    assert same(weights(learn.model), weights(net()))

@pytest.mark.parametrize('size,cbs',
    [(4, [GradientAccumulation(8)]), (8, [MicroBatch(4)]), (8, [MicroBatch(1)]),
        (4, [GradientAccumulation(8), MicroBatch(2)])])
@pytest.mark.parametrize('loss', [nn.CrossEntropyLoss, FocalLoss])
def test_parts_whose_classes_have_no_weight_have_no_gradient(size, cbs, loss):
    "0/0 is NaN, as is its gradient, also times a share of 0"
    x,y = X[:8],torch.tensor([1,0,1,1,0,0,0,0])
    def run(size, *cbs):
        data = list(zip(x.split(size), y.split(size)))
        return weights(mk(*cbs, data=data, loss_func=loss(weight=torch.tensor([0.,1]))).fit(2).model)
    whole = run(8)
    assert gap(run(size, *cbs), whole)<1e-6 and gap(whole, weights(net()))>.01

@pytest.mark.parametrize('cb', [GradientAccumulation, MicroBatch])
def test_means_that_do_not_add_up_say_so(cb):
    for loss in (LabelSmoothingCrossEntropy(weight=W), LabelSmoothingCrossEntropyFlat(weight=W)):
        with pytest.warns(UserWarning,
                match='will not be exactly the big batch: one part of the mean of `LabelSmoothingCrossEntropy`'):
            mk(cb, loss_func=loss).fit(1)

class Scaled(nn.Module):
    "Divides by a mean of what it has been, which autograd keeps and the next call changes in place"
    def __init__(self): super().__init__(); self.register_buffer('m', torch.ones(()))
    def forward(self, pred, y):
        loss = F.cross_entropy(pred, y)
        self.m.mul_(.9).add_(.1*loss.detach())
        return loss/self.m

def test_a_loss_that_changes_its_buffer_in_place_can_be_accumulated():
    "Whether such a loss adds up is tried only after the backward pass"
    m,loss = net(),Scaled()
    opt = sgd(m.parameters())
    for i,(x,y) in enumerate(cut(10)):
        (loss(m(x), y)/2).backward()
        if i%2: opt.step(); opt.zero_grad()
    learn = mk(GradientAccumulation(20), loss_func=Scaled()).fit(1)
    assert gap(weights(learn.model), weights(m))<1e-6 and torch.allclose(learn.loss_func.m, loss.m)

def test_one_accumulation_at_a_time():
    with pytest.raises(ValueError,
            match='`gradient_accumulation_2` and `gradient_accumulation` would both put batches together: use one of '
            'them'):
        mk(GradientAccumulation(20), GradientAccumulation(40)).fit(1)

@pytest.mark.parametrize('make,match', [
    (lambda: GradientClip(0), '`max_norm` is above 0, but got 0'),
    (lambda: GradientClip(max_value=-1), '`max_value` is above 0, but got -1'),
    (lambda: GradientAccumulation(0), '`n_acc` is 1 or more, but got 0'),
    (lambda: GradientClip(float('nan')), r'`max_norm` is above 0, but got nan')])
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match): make()

@pytest.mark.parametrize('make,match',
    [(lambda: GradientClip(None), '`max_norm` is a number above 0, but got None'),
        (lambda: GradientClip('a'), "`max_norm` is a number above 0, but got 'a'"),
        (lambda: GradientAccumulation('8'), "`n_acc` is a whole number, but got '8'"),
    (lambda: GradientClip(params='0.weight'),
        "`params` is a function of the model that returns parameters, such as .* but got '0.weight'")])
def test_settings_of_other_types(make, match):
    with pytest.raises(TypeError, match=match): make()

# A number of samples
def said_of_size(n_acc, *sizes, n=2):
    "What accumulation says of its `n_acc` in batches of these sizes"
    data = [(torch.ones(o, 1), torch.ones(o, 1)) for o in sizes]
    learn = synth_learner(dls=DataLoaders(data, device='cpu'), cbs=GradientAccumulation(n_acc))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        for _ in range(n): learn.fit(2)
    return [str(o.message) for o in found if 'adds up nothing' in str(o.message)]

def test_a_number_of_batches_in_place_of_samples_is_named_once_with_what_to_write():
    [said] = said_of_size(4, 16, 16, 16)
    assert '`GradientAccumulation(4)`' in said and 'counts samples, and each batch has 16' in said
    assert 'For steps of 4 batches, write `GradientAccumulation(64)`' in said
    assert len(said_of_size(32, 64))==1 # one batch in an epoch

@pytest.mark.parametrize('n_acc,sizes', [(16, [16]*3), (17, [16]*3), (1, [16]*3), (8, [16,4,16]), (8, [4,16,16]),
    (64, [16]*2), (3, [3,2])])
def test_an_n_acc_that_may_be_meant_is_not_named(n_acc, sizes): assert not said_of_size(n_acc, *sizes)

class Ones(nn.Module):
    "Its gradient is 1, whatever the batch"
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.zeros(1))
    def forward(self, x): return self.w.expand(len(x), 1)

@pytest.mark.parametrize('ev', ['before_draw','after_draw','before_batch','after_pred','after_loss','before_backward',
    'after_backward','after_batch'])
@pytest.mark.parametrize('at', [1, 2, 3, 5])
def test_an_error_in_an_open_window_leaves_no_half_of_it(ev, at):
    "The next step is an average over what it counts"
    model,seen,failed = Ones(),[],[]
    def fail(cb):
        if cb.training and cb.iter==at and not failed: failed.append(cb); raise ValueError('once')
    learn = mk(GradientAccumulation(32), model=model, loss_func=lambda p,y: p.mean(), data=cut(8, n=48))
    learn.opt_func = lambda ps: torch.optim.SGD(ps, lr=1.)
    note = Callback(after_step=lambda cb: seen.append(model.w.item()))
    with pytest.raises(ValueError): learn.fit(1, lr=1., cbs=[note, Callback(**{ev: fail})])
    learn.resume()
    assert seen==[-1., -2.][:len(seen)] and learn.opt_step==len(seen)

@pytest.mark.parametrize('ev', ['before_draw','after_draw'])
def test_an_error_before_a_batch_keeps_what_waits(ev):
    def run(*cbs): return mk(GradientAccumulation(32), *cbs, data=cut(8, n=48))
    failed = []
    def fail(cb):
        if cb.training and cb.iter==2 and not failed: failed.append(cb); raise ValueError('once')
    learn = run(Callback(**{ev: fail}))
    with pytest.raises(ValueError): learn.fit(1)
    assert same(weights(learn.resume().model), weights(run().fit(1).model))

def test_overflows_are_not_told_as_cancelled_batches(recwarn):
    mk(GradientAccumulation(20), MixedPrecision('fp16', init_scale=2.**40)).fit(1)
    assert not [o for o in recwarn if 'has taken no step' in str(o.message)]

@pytest.mark.parametrize('loss', [nn.CrossEntropyLoss, lambda **kwargs: partial(F.cross_entropy, **kwargs)])
@pytest.mark.parametrize('cb', [GradientAccumulation, lambda: MicroBatch(2)])
def test_smoothed_targets_without_weight_are_told_of(loss, cb, recwarn):
    "They have a share in the sum, and none in what it is divided by"
    weight = torch.tensor([0.,1])
    with pytest.warns(UserWarning, match='will not be exactly the big batch: targets of a class with a weight of 0'):
        mk(cb(), loss_func=loss(weight=weight, label_smoothing=.1)).fit(1)
    recwarn.clear()
    for kwargs in (dict(weight=weight), dict(weight=weight+1, label_smoothing=.1), dict(label_smoothing=.1),
            dict(weight=weight, label_smoothing=.1, reduction='sum')): mk(cb(), loss_func=loss(**kwargs)).fit(1)
    assert not [o for o in recwarn if 'exactly' in str(o.message)]

@pytest.mark.parametrize('at', ['before_backward','after_pred'])
def test_gradients_of_a_batch_that_goes_backward_itself_do_not_count_twice(at):
    "An error comes later in the batch, which is then trained on again"
    def run(fails):
        class Own(Callback):
            run_valid = False
            def before_backward(self):
                if at=='before_backward': self.learn.loss_grad.backward(); raise CancelBackwardException
            def after_pred(self):
                if at=='after_pred': sum(p.square().sum() for p in self.model.parameters()).backward()
        def fail(cb):
            if cb.training and cb.iter==2 and fails: fails.clear(); raise ValueError('once')
        later = 'before_step' if at=='before_backward' else 'after_loss'
        learn = mk(Own(), Callback(**{later: fail}), data=cut(8))
        try: learn.fit(1)
        except ValueError: learn.resume()
        return weights(learn.model)
    assert same(run([]), run([1]))

def test_predictions_that_are_parameters_keep_no_hook():
    "What no target counts in is one batch, and not all later ones"
    class Shifted(nn.Module):
        def __init__(self): super().__init__(); self.lin,self.shift = net(),nn.Parameter(torch.ones(()))
        def forward(self, x): return self.lin(x),self.shift
    def loss(pred, y): return F.cross_entropy(pred[0], y) + (pred[1]-2)**2
    y = Y.clone()
    y[:10] = -100
    model = Shifted()
    def count(learn): return (learn.y>=0).sum()
    mk(GradientAccumulation(10, count), data=cut(10, y), loss_func=loss, model=model).fit(1)
    assert model.shift.item()>1.2 and not model.shift._backward_hooks

def test_smoothing_of_ignored_targets_has_no_gradient():
    y = Y[:8].clone()
    y[:4] = -100
    def run(size, *cbs):
        data = list(zip(X[:8].split(size), y.split(size)))
        return weights(mk(*cbs, data=data, loss_func=LabelSmoothingCrossEntropy()).fit(2).model)
    assert gap(run(8), run(4, GradientAccumulation(8)))<1e-6 and gap(run(8), run(8, MicroBatch(4)))<1e-6

def test_another_callback_may_keep_the_gradients_of_a_window():
    class Elsewhere(Callback):
        order = -50
        def before_fit(self): self.kept = {}
        def after_backward(self):
            for p in self.model.parameters(): self.kept[p] = self.kept.get(p, 0)+p.grad; p.grad = None
        def before_step(self):
            for p,g in self.kept.items(): p.grad = g
            self.kept = {}
    learn,plain = (mk(GradientAccumulation(20), *cbs).fit(2) for cbs in ([Elsewhere()], []))
    assert learn.opt_step==plain.opt_step and gap(weights(learn.model), weights(plain.model))<1e-6

class Graphs:
    "A batch that is no tensor and has none at hand, as of graphs"
    def __init__(self, x, y): self.x,self.y = x,y
    def to(self, device, **kwargs): return self
class OwnLoss(nn.Module):
    def __init__(self): super().__init__(); self.net = net()
    def forward(self, b): return dict(loss=F.cross_entropy(self.net(b.x), b.y))

def test_batches_of_an_unknown_size_are_counted_as_is_said():
    def bags(size): return [Graphs(x, y) for x,y in zip(X.split(size), Y.split(size))]
    def run(size, *cbs): return weights(mk(*cbs, data=bags(size), model=OwnLoss(), loss_func=None).fit(1).model)
    def count(learn): return len(learn.batch.y)
    learn = mk(data=[], valid=bags(50), model=(m := OwnLoss()), loss_func=None)
    with pytest.warns(UserWarning, match='`loss` counts every batch alike.*`cbs=Recorder\\(count=f\\)`'):
        learn.validate()
    right = learn.validate(cbs=Recorder(count=count)).valid_loss
    assert right==pytest.approx(F.cross_entropy(m.net(X), Y).item(), rel=1e-5)
    assert gap(run(20), run(5, GradientAccumulation(20, count)))<1e-6
    with pytest.raises(ValueError, match=r'cannot know how many samples.*`GradientAccumulation\(20, count=f\)`'):
        run(5, GradientAccumulation(20))

class Annealed:
    "An average over samples whose second term grows with each training batch"
    n = 0
    def __call__(self, pred, y):
        if torch.is_grad_enabled(): self.n += 1
        return F.cross_entropy(pred, y) + min(1, self.n/9)*pred.abs().mean()
@pytest.mark.parametrize('cb', [lambda: GradientAccumulation(20), lambda: MicroBatch(5)])
def test_a_loss_that_changes_while_it_trains_is_not_told_to_compare_samples(cb, recwarn):
    mk(cb(), loss_func=Annealed()).fit(1)
    assert not recwarn.list

def test_a_window_that_grows_is_the_mean_over_its_samples():
    "`n_acc` may change at any batch: what was added before counts as much as what comes after"
    data = torch.utils.data.TensorDataset(torch.randn(48, 3), torch.randn(48, 2))
    def model(): torch.manual_seed(0); return nn.Linear(3, 2)
    def grow(learn):
        if learn.train_iter==3: learn.gradient_accumulation.n_acc = 32
    learn = Learner(DataLoaders(torch.utils.data.DataLoader(data, 8), device='cpu'), model(), nn.MSELoss(),
        opt_func=torch.optim.SGD, lr=.5).remove_cb(ProgressCallback)
    learn.fit(1, cbs=[GradientAccumulation(16), Callback(before_batch=grow)])
    m,loss_func = model(),nn.MSELoss()
    opt = torch.optim.SGD(m.parameters(), lr=.5)
    for first,last in (0,16),(16,48):
        opt.zero_grad()
        loss_func(m(data.tensors[0][first:last]), data.tensors[1][first:last]).backward()
        opt.step()
    for p,q in zip(learn.model.parameters(), m.parameters()): torch.testing.assert_close(p, q)
