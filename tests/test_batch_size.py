"Validation losses, metrics and losses of samples do not depend on how the data are cut into batches"
import math,re
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,default_collate
from learner.all import *

n = 17
gen = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=gen)
def rand(*shape): return torch.rand(*shape, generator=gen)
def randint(hi, *shape): return torch.randint(0, hi, shape, generator=gen)
def sign(*shape): return randint(2, *shape)*2-1
def with_holes(t, v=-100):
    "Some targets do not count, but not in the first place"
    t = t.clone()
    t.view(-1)[1::3] = v
    return t
w4 = torch.tensor([.1, 1., 3., .5])

class Same(nn.Module):
    "Predicts its input"
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(()))
    def forward(self, x): return x*self.w

def learner(batches, loss_func, metrics=None, n_inp=1, model=None, cbs=None):
    return Learner(DataLoaders([batches[0]], batches, n_inp=n_inp, device='cpu'), Same() if model is None else model,
        loss_func, metrics=metrics, cbs=cbs).remove_cb(ProgressCallback)

def cut(tensors, bs): return list(zip(*[o.split(bs) for o in tensors]))

# Every loss of torch: data, and functions of a reduction
pos = lambda: randint(4, n)
classes,tokens,pixels = (lambda: (randn(n, 4), pos())),(lambda: (randn(n, 4, 6), randint(4, n, 6))),(
    lambda: (randn(n, 4, 3, 2), randint(4, n, 3, 2)))
holes = lambda data, v=-100: lambda: (lambda p,t: (p, with_holes(t, v)))(*data())
numbers,many = (lambda: (randn(n, 3), randn(n, 3))),(lambda: (randn(n, 3), randint(2, n, 3).float()))
probs = lambda: (rand(n, 3), randint(2, n, 3).float())
triple = lambda: (randn(n, 5), randn(n, 5), randn(n, 5))
def logp(f): return lambda **kwargs: (lambda p,t: f(**kwargs)(p.log_softmax(1), t))
class NLL(nn.NLLLoss):
    def forward(self, p, t): return super().forward(p.log_softmax(1), t)
class KL(nn.KLDivLoss):
    def forward(self, p, t): return super().forward(p.log_softmax(1), t.softmax(1))
class Gauss(nn.GaussianNLLLoss):
    def forward(self, p, t, v): return super().forward(p, t, v.exp())
losses = {
    'ce': (nn.CrossEntropyLoss, classes), 'ce weight': (partial(nn.CrossEntropyLoss, weight=w4), classes),
    'ce ignored': (nn.CrossEntropyLoss, holes(classes)),
    'ce ignore 2': (partial(nn.CrossEntropyLoss, ignore_index=2), classes),
    'ce ignore weight': (partial(nn.CrossEntropyLoss, ignore_index=2, weight=w4), tokens),
    'ce smooth': (partial(nn.CrossEntropyLoss, label_smoothing=.2, weight=w4), holes(tokens)),
    'ce tokens': (nn.CrossEntropyLoss, holes(tokens)),
    'ce pixels': (partial(nn.CrossEntropyLoss, weight=w4, ignore_index=255), holes(pixels, 255)),
    'ce probs': (partial(nn.CrossEntropyLoss, weight=w4), lambda: (randn(n, 4), randn(n, 4).softmax(1))),
    'ce probs of pixels': (nn.CrossEntropyLoss, lambda: (randn(n, 4, 3), randn(n, 4, 3).softmax(1))),
    'nll': (NLL, classes), 'nll weight': (partial(NLL, weight=w4), holes(tokens)),
    'l1': (nn.L1Loss, numbers), 'mse': (nn.MSELoss, numbers), 'smooth l1': (nn.SmoothL1Loss, numbers),
    'huber': (nn.HuberLoss, numbers), 'poisson': (nn.PoissonNLLLoss, lambda: (randn(n, 3), randint(5, n, 3).float())),
    'gauss': (Gauss, triple), 'kl': (KL, numbers), 'bce': (nn.BCELoss, probs),
    'bce logits': (nn.BCEWithLogitsLoss, many),
    'bce weights': (partial(nn.BCEWithLogitsLoss, weight=w4[:3], pos_weight=w4[1:]), many),
    'soft margin': (nn.SoftMarginLoss, lambda: (randn(n, 3), sign(n, 3).float())),
    'hinge': (nn.HingeEmbeddingLoss, lambda: (randn(n, 3), sign(n, 3))),
    'ranking': (partial(nn.MarginRankingLoss, margin=.3), lambda: (randn(n), randn(n), sign(n))),
    'cosine': (nn.CosineEmbeddingLoss, lambda: (randn(n, 5), randn(n, 5), sign(n))),
    'multi margin': (partial(nn.MultiMarginLoss, weight=w4), classes),
    'multilabel margin': (nn.MultiLabelMarginLoss, lambda: (randn(n, 4), torch.tensor([[2,0,-1,1]]*n))),
    'multilabel soft': (partial(nn.MultiLabelSoftMarginLoss, weight=w4[:3]), many),
    'triplet': (nn.TripletMarginLoss, triple), 'triplet distance': (nn.TripletMarginWithDistanceLoss, triple),
    # of this library
    'flat ce': (partial(CrossEntropyLossFlat, weight=w4, axis=1), holes(pixels)),
    'flat smooth': (partial(LabelSmoothingCrossEntropyFlat, axis=1), holes(tokens)),
    'smooth': (LabelSmoothingCrossEntropy, holes(classes)),
    'focal': (partial(FocalLoss, weight=w4), holes(tokens)),
    'flat focal': (partial(FocalLossFlat, axis=1, weight=w4, ignore_index=1), pixels), 'dice': (DiceLoss, pixels),
    'flat bce': (BCEWithLogitsLossFlat, many),
    'flat bce weights': (partial(BCEWithLogitsLossFlat, pos_weight=w4[1:]), many),
    'flat bce probs': (BCELossFlat, probs), 'flat mse': (MSELossFlat, lambda: (randn(n, 1), randn(n))),
    'flat l1': (L1LossFlat, numbers),
}
functions = {
    'F.ce': (partial(F.cross_entropy, weight=w4), holes(tokens)), 'F.ce plain': (F.cross_entropy, holes(classes)),
    'F.ce index': (partial(F.cross_entropy, ignore_index=1), classes), 'F.mse': (F.mse_loss, numbers),
    'F.l1': (F.l1_loss, numbers),
    'F.smooth l1': (F.smooth_l1_loss, numbers), 'F.huber': (F.huber_loss, numbers),
    'F.bce': (F.binary_cross_entropy, probs), 'F.bce logits': (F.binary_cross_entropy_with_logits, many),
    'F.poisson': (F.poisson_nll_loss, many),
    'F.gauss': (F.gaussian_nll_loss, lambda: (randn(n, 3), randn(n, 3), rand(n, 3)+.1)),
    'F.triplet': (F.triplet_margin_loss, triple), 'F.multi margin': (F.multi_margin_loss, classes),
    'F.cosine': (F.cosine_embedding_loss, lambda: (randn(n, 5), randn(n, 5), sign(n))),
    'F.soft margin': (F.soft_margin_loss, lambda: (randn(n, 3), sign(n, 3).float())),
}
for k,(f,data) in functions.items(): losses[k] = partial(partial, f),data
if hasattr(nn, 'LinearCrossEntropyLoss'): # a newer torch
    losses['linear ce'] = partial(nn.LinearCrossEntropyLoss, 4, 4, weight=w4),classes

def seeded_loss(make, reduction):
    torch.manual_seed(0) # a loss may have weights of its own
    return make(reduction=reduction)

def of_all(loss, data, reduction):
    "The loss of all samples at once: of sums, for one sample; of single losses, their mean"
    with torch.no_grad(): res = loss(*data).double()
    return (res.sum()/n if reduction=='sum' else res.mean()).item()

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('name', losses)
def test_the_validation_loss_is_that_of_all_samples_at_once(name, reduction):
    gen.manual_seed(0)
    make,make_data = losses[name]
    data,loss = make_data(),seeded_loss(make, reduction)
    expected = of_all(loss, data, reduction)
    # 17 samples: the last batch is short
    for bs in (1, 5, n):
        assert learner(cut(data, bs), loss).validate()[0]==pytest.approx(expected, rel=1e-6, abs=1e-6), bs

def test_every_loss_of_torch_is_tried():
    tried = {type(seeded_loss(make, 'mean')) for make,_ in losses.values()}
    tried |= {b for o in tried for b in o.__mro__}
    # below
    assert {k for k in dir(nn) if k.endswith('Loss')} - {o.__name__ for o in tried} == {'CTCLoss',
        'AdaptiveLogSoftmaxWithLoss'}

def test_a_loss_that_is_no_tensor_says_so():
    gen.manual_seed(0)
    with pytest.raises(TypeError,
            match='`loss` is an average of losses, which are tensors, but the loss of a batch is a _ASMoutput'):
        learner([classes()], nn.AdaptiveLogSoftmaxWithLoss(4, 9, [2])).validate()

def test_a_batchmean_is_of_samples():
    gen.manual_seed(0)
    data,loss = numbers(),KL(reduction='batchmean')
    expected = loss(*data).item()
    for bs in (1, 5, n): assert learner(cut(data, bs), loss).validate()[0]==pytest.approx(expected, rel=1e-6)

@pytest.mark.parametrize('reduction', ['mean','sum'])
def test_the_mean_of_ctc_is_of_sequences(reduction):
    gen.manual_seed(0)
    scores,targ,lens = randn(n, 9, 5),1+randint(4, n, 4),1+randint(4, n)
    class CTC(nn.CTCLoss):
        def forward(self, pred, targ, lens):
            return super().forward(pred.log_softmax(2).transpose(0, 1), targ, torch.full((len(pred),), 9), lens)
    loss = CTC(reduction=reduction)
    expected = loss(scores, targ, lens).item()/(n if reduction=='sum' else 1)
    for bs in (1, 5, n):
        assert learner(cut((scores, targ, lens), bs), loss).validate()[0]==pytest.approx(expected, rel=1e-5)

# Batches whose first tensor does not have a row for each sample
class Boxes(nn.Module):
    "Takes a list of images, and returns a list of boxes"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l = nn.Linear(4, 4)
    def forward(self, imgs): return [self.l(o.mean((1,2))) for o in imgs]
def box_loss(preds, targs): return torch.stack([(p-t['boxes']).abs().mean() for p,t in zip(preds, targs)]).mean()
def images_and_boxes(): return [(randn(4, 6, 6), dict(boxes=rand(1+5*i%7, 4))) for i in range(12)]

class Tagger(nn.Module):
    "Takes a list of sequences, and returns the mean of their losses"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l = nn.Linear(3, 1)
    def forward(self, seqs): return dict(loss=torch.stack([self.l(o).pow(2).mean() for o in seqs]).mean())
def sequences(): return [(randn(1+5*i%7, 3),) for i in range(12)]

class Speech(nn.Module):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l = nn.Linear(3, 4)
    def forward(self, x): return self.l(x).log_softmax(-1).transpose(0, 1)
def speech(): return [(randn(9, 3), 1+randint(3, 1+i%4)) for i in range(12)]
def joined(items):
    xs,ys = zip(*items)
    return torch.stack(xs),torch.cat(ys),torch.full((len(xs),), 9),torch.tensor([*map(len, ys)])

class Scales(nn.Module):
    "Finds something at four scales: the targets have a field for each"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.ls = nn.ModuleList(nn.Linear(3, o) for o in (1,2,3,4))
    def forward(self, x): return [l(x) for l in self.ls]
def scales(): return [(randn(3), [dict(c=randn(o)) for o in (1,2,3,4)]) for _ in range(12)]
def scale_loss(preds, targs): return sum((p-t['c']).square().mean() for p,t in zip(preds, targs))
def in_tuples(items):
    x,targs = default_collate(items)
    return x,[(t['c'],) for t in targs]
def tuple_loss(preds, targs): return scale_loss(preds, [dict(c=t) for t, in targs])

def in_lists(items): return tuple(map(list, zip(*items)))
@pytest.mark.parametrize('items,collate,model,loss_func',
    [(images_and_boxes, in_lists, Boxes, box_loss), (sequences, in_lists, Tagger, None),
        (speech, joined, Speech, nn.CTCLoss()), (scales, default_collate, Scales, scale_loss),
        (scales, in_tuples, Scales, tuple_loss)], ids=['boxes','own loss','ctc','scales','scales in tuples'])
def test_samples_in_lists_and_joined_targets_are_counted(items, collate, model, loss_func):
    ds = items()
    def fit(bs, cbs=None):
        dls = DataLoaders([collate(ds[i:i+bs]) for i in range(0, 12, bs)], [collate(ds[:5]), collate(ds[5:])],
            n_inp=1, device='cpu')
        return Learner(dls, model(), loss_func, opt_func=torch.optim.SGD, lr=.1, cbs=cbs).remove_cb(ProgressCallback)
    def loss_of(learn, part):
        xb,*yb = collate(part)
        with torch.no_grad(): return learn.model(xb)['loss'] if loss_func is None else loss_func(learn.model(xb), *yb)
    learn,whole = fit(2, GradientAccumulation(4)).fit(1),fit(4).fit(1)
    assert learn.opt_step==3
    for a,b in zip(learn.model.parameters(), whole.model.parameters()): torch.testing.assert_close(a, b)
    assert learn.results.valid_loss==pytest.approx(loss_of(learn, ds).item(), rel=1e-5)
    if loss_func is None: return
    losses = learn.get_preds(with_preds=False, with_targs=False, with_loss=True)[2]
    torch.testing.assert_close(losses, torch.stack([loss_of(learn, [o]) for o in ds]))

class OneBox(Boxes):
    def forward(self, imgs): return [o[None] for o in super().forward(imgs)]
def sum_loss(preds, targs):
    return torch.stack([(p.mean(0)-t['boxes'].sum(0)).square().mean() for p,t in zip(preds, targs)]).mean()

def test_as_many_fields_of_targets_as_a_batch_has_samples_are_no_samples():
    "Three crops of each of two samples have two fields of six targets"
    x,fields = randn(9, 3),[randn(9, 1), randn(9, 1)]
    def loss(p, t): return sum((p-o).square().mean() for o in t)
    def crops(o, idxs): return torch.cat([o[3*i:3*i+3] for i in idxs])
    dl = DataLoader(range(3), 2, collate_fn=lambda idxs: (crops(x, idxs), [crops(o, idxs) for o in fields]))
    learn = Learner(DataLoaders(dl, dl, device='cpu'), nn.Linear(3, 1), loss)
    with torch.no_grad(): whole = loss(learn.model(x), fields).item()
    assert learn.validate().valid_loss==pytest.approx(whole)

class Streamed(torch.utils.data.IterableDataset):
    def __init__(self, ds): self.ds = ds
    def __iter__(self): return iter(self.ds)

class TakesBoth(nn.Module):
    "Takes images and what is in them, and returns its loss"
    def __init__(self): super().__init__(); self.head = nn.Linear(3, 4)
    def forward(self, images, targets):
        boxes = self.head(torch.stack([*images]).mean((2,3)))
        return dict(loss=torch.stack([(b-t['boxes']).abs().mean() for b,t in zip(boxes, targets)]).mean())

@pytest.mark.parametrize('of', [list,tuple])
@pytest.mark.parametrize('how', ['loader','stream','ready'])
def test_images_of_one_size_that_come_with_dicts_as_inputs_are_counted(how, of):
    ds = [(randn(3, 6, 6), dict(boxes=rand(1+i%3, 4))) for i in range(10)]
    dl = DataLoader(Streamed(ds) if how=='stream' else ds, 4, collate_fn=lambda rows: of(map(of, zip(*rows))))
    if how=='ready': dl = [*dl]
    learn = Learner(DataLoaders(dl, dl, device='cpu', n_inp=2), TakesBoth(), lr=.01)
    with torch.no_grad(): whole = learn.model(*zip(*ds))['loss'].item()
    assert learn.validate()['valid_loss']==pytest.approx(whole) # batches of 4, 4 and 2
    learn.fit(1, cbs=GradientAccumulation(8))
    assert learn.opt_step==2

@pytest.mark.parametrize('n_boxes', [1,2])
def test_images_with_equally_many_boxes_are_counted(n_boxes, recwarn):
    "The sampler tells that they are samples"
    ds = [(randn(4, 6, 6), dict(boxes=rand(n_boxes, 4))) for _ in range(12)]
    dls = DataLoaders(*[DataLoader(ds, bs, collate_fn=in_lists) for bs in (2,5)], device='cpu')
    learn = Learner(dls, OneBox(), sum_loss, cbs=GradientAccumulation(4)).remove_cb(ProgressCallback).fit(1)
    imgs,targs = in_lists(ds)
    assert learn.opt_step==3 and learn.results.valid_loss==pytest.approx(sum_loss(learn.model(imgs), targs).item())
    assert not said_of_averages(recwarn)

def test_numbers_in_sequences_of_different_lengths_count_alike():
    gen.manual_seed(0)
    batches = [(randn(4, t, 2), randn(4, t, 2)) for t in (3, 9, 1)]
    expected = F.mse_loss(*[torch.cat([o.reshape(-1) for o in p]) for p in zip(*batches)]).item()
    assert learner(batches, nn.MSELoss(), metrics=[mse, mae]).validate()[:2]==pytest.approx((expected, expected),
        rel=1e-6)

def test_a_batch_whose_targets_are_all_ignored_adds_nothing():
    gen.manual_seed(0)
    p,t = classes()
    batches = [(p[:8], t[:8]), (p[8:], torch.full_like(t[8:], -100))]
    res = learner(batches, nn.CrossEntropyLoss(), metrics=[accuracy, Perplexity()]).validate()
    expected = F.cross_entropy(p[:8], t[:8]).item()
    assert res==pytest.approx(
        (expected, (p[:8].argmax(1)==t[:8]).float().mean().item(), torch.tensor(expected).exp().item()), rel=1e-5)

def test_a_batch_without_samples_adds_nothing():
    gen.manual_seed(0)
    p,t = classes()
    metrics = [accuracy, F1Score(average='macro'), Perplexity(), lambda p,t: p.mean()]
    full = learner([(p, t)], nn.CrossEntropyLoss(), metrics).validate()
    assert learner([(p[:0], t[:0]), (p[:8], t[:8]), (p[:0], t[:0]), (p[8:], t[8:])], nn.CrossEntropyLoss(),
        metrics).validate()==pytest.approx(full, rel=1e-6)
    x,y = randn(n, 1),randn(n, 1)
    assert learner([(x, y), (x[:0], y[:0])], nn.MSELoss(),
        [R2Score(), rmse, mse]).validate()==pytest.approx(
        learner([(x, y)], nn.MSELoss(), [R2Score(), rmse, mse]).validate(), rel=1e-6)

def test_a_loss_whose_mean_cannot_be_put_together_says_so():
    gen.manual_seed(0)
    data = classes()
    for loss in (LabelSmoothingCrossEntropy(weight=w4), LabelSmoothingCrossEntropyFlat(weight=w4)):
        with pytest.warns(UserWarning,
                match='`valid_loss` depends on the batch size: one part of the mean of `LabelSmoothingCrossEntropy` '
                'is weighted'):
            learner(cut(data, 5), loss).validate()

# Losses that say nothing, say it themselves, or belong to the model
def masked(p, t): return ((p-t)**2*(t>0)).sum()/(t>0).sum()
class Masked:
    n_items = staticmethod(lambda t: (t>0).sum())
    def __call__(self, p, t): return masked(p, t)

@pytest.mark.parametrize('how', ['attribute','class','recorder'])
def test_a_loss_of_ones_own_says_what_it_averages_over(how):
    gen.manual_seed(0)
    data = numbers()
    def f(p, t): return masked(p, t)
    if how=='attribute': f.n_items = lambda t: (t>0).sum()
    loss = Masked() if how=='class' else f
    expected = masked(*data).item()
    for bs in (1, 5, n):
        learn = learner(cut(data, bs), loss,
            cbs=Recorder(count=lambda learn: (learn.y>0).sum()) if how=='recorder' else None)
        assert learn.validate()[0]==pytest.approx(expected, rel=1e-6)

def test_metrics_of_the_loss_count_as_the_recorder_does():
    "One with a count of its own keeps it"
    gen.manual_seed(0)
    def loss(p, t): return masked(p, t)
    metrics = dict(avg=AvgLoss(), ppl=Perplexity(), own=AvgLoss(count=lambda learn: 1))
    learn = learner(cut(numbers(), 5), loss, metrics, cbs=Recorder(count=lambda learn: (learn.y>0).sum()))
    res = learn.validate()
    assert res.avg==res.valid_loss!=res.own and res.ppl==pytest.approx(math.exp(res.valid_loss), rel=1e-5)

def test_a_function_around_cross_entropy_counts_the_targets_that_it_does_not_ignore():
    gen.manual_seed(0)
    data = holes(tokens)()
    def loss(p, t): return F.cross_entropy(p.movedim(1, -1).flatten(0, 1), t.flatten())
    for bs in (1, 5, n): assert learner(cut(data, bs), loss).validate()[0]==pytest.approx(loss(*data).item(), rel=1e-6)

class WithLoss(nn.Module):
    "Returns its loss, as models of Hugging Face do"
    def __init__(self, loss=F.cross_entropy): super().__init__(); self.w,self.f = nn.Parameter(torch.ones(())),loss
    def forward(self, x, labels): return SimpleNamespace(loss=self.f(x*self.w, labels), logits=x*self.w)
class TinyForCausalLM(WithLoss):
    def forward(self, x, labels): return SimpleNamespace(loss=self.f(x[...,:-1]*self.w, labels[...,1:]), logits=x)

@pytest.mark.parametrize('data,loss',
    [(holes(tokens), F.cross_entropy), (holes(classes), F.cross_entropy), (numbers, F.mse_loss)])
@pytest.mark.parametrize('model', [WithLoss, TinyForCausalLM])
def test_the_loss_of_a_model_counts_its_labels(data, loss, model):
    gen.manual_seed(0)
    x,y = data()
    if model is TinyForCausalLM and y.ndim<2 or loss is F.mse_loss and model is TinyForCausalLM: return
    m = model(loss)
    expected = m(x, y).loss.item()
    for bs in (1, 5, n):
        batches = [dict(x=a, labels=b) for a,b in cut((x, y), bs)]
        learn = Learner(DataLoaders(batches[:1], batches, device='cpu'), m).remove_cb(ProgressCallback)
        assert learn.validate()[0]==pytest.approx(expected, rel=1e-6)

def test_terms_of_a_loss_are_averaged_as_the_loss_is():
    gen.manual_seed(0)
    data = holes(tokens)()
    class Two(nn.CrossEntropyLoss):
        def forward(self, p, t):
            self.ce = super().forward(p, t)
            return self.ce*2
    for bs in (1, 5, n):
        assert learner(cut(data, bs), Two(weight=w4),
            metrics=LossMetrics('ce')).validate().ce==pytest.approx(F.cross_entropy(*data, weight=w4).item(), rel=1e-6)

# Metrics
@pytest.mark.parametrize('loss,v',
    [(nn.CrossEntropyLoss(), -100), (CrossEntropyLossFlat(axis=1, ignore_index=255), 255),
        (FocalLoss(ignore_index=3), 3), (partial(F.cross_entropy, ignore_index=-1), -1)], ids=['ce','flat','focal','F'])
@pytest.mark.parametrize('data', [classes, tokens, pixels], ids=['classes','tokens','pixels'])
def test_metrics_leave_out_what_the_loss_ignores(loss, v, data):
    sk = pytest.importorskip('sklearn.metrics')
    gen.manual_seed(0)
    p,t = data()
    t = with_holes(t, v)
    scores,targ = p.movedim(1, -1).reshape(-1, 4),t.reshape(-1)
    kept = targ!=v
    scores,targ = scores[kept],targ[kept]
    dec,top2 = scores.argmax(1),(scores.topk(2).indices==targ[:,None]).any(1)
    expected = dict(accuracy=(dec==targ).float().mean(), error_rate=(dec!=targ).float().mean(),
        top_k_accuracy=top2.float().mean(), brier=((scores.softmax(1)-F.one_hot(targ, 4))**2).sum(1).mean(),
        f1=sk.f1_score(targ, dec, average='macro'), sk_f1=sk.f1_score(targ, dec, average='macro'),
        kappa=sk.cohen_kappa_score(targ, dec), hamming=sk.hamming_loss(targ, dec),
        fore=(dec==targ)[targ!=0].float().mean(),
        perplexity=F.cross_entropy(scores, targ).exp() if not isinstance(loss, FocalLoss) else None)
    if v!=3: expected['auc'] = sk.roc_auc_score(targ, scores.softmax(1), multi_class='ovr')
    metrics = dict(accuracy=partial(accuracy, axis=1), error_rate=partial(error_rate, axis=1),
        top_k_accuracy=partial(top_k_accuracy, k=2, axis=1), brier=BrierScore(axis=1),
        f1=F1Score(axis=1, average='macro'), sk_f1=from_sklearn('f1_score', axis=1, average='macro'),
        kappa=CohenKappa(axis=1),
        hamming=HammingLoss(axis=1), fore=foreground_acc(axis=1), perplexity=Perplexity(), auc=RocAuc(axis=1))
    expected = {k:float(o) for k,o in expected.items() if o is not None}
    for bs in (1, 5, n):
        res = learner(cut((p, t), bs), loss, {k:metrics[k] for k in expected}).validate()
        assert {**res, 'valid_loss':0}==pytest.approx({**expected, 'valid_loss':0}, abs=1e-5)

def test_two_classes_leave_out_what_the_loss_ignores():
    sk = pytest.importorskip('sklearn.metrics')
    gen.manual_seed(0)
    p,t = randn(n, 2),with_holes(randint(2, n))
    s,y = (p[:,1]-p[:,0])[t!=-100],t[t!=-100]
    assert learner(cut((p, t), 5), nn.CrossEntropyLoss(),
        [RocAucBinary(), APScoreBinary()]).validate()[1:]==pytest.approx(
        (sk.roc_auc_score(y, s), sk.average_precision_score(y, s)))

def test_accuracy_can_be_called_with_targets_that_do_not_count():
    p,t = torch.eye(3),torch.tensor([0,-100,0])
    assert (accuracy(p, t)==.5 and error_rate(p, t)==.5 and top_k_accuracy(p, t, k=1)==.5
        and accuracy(p, torch.tensor([0,9,0]), ignore_index=9)==.5)

def test_a_loss_of_torch_can_be_a_metric_and_averages_over_the_same():
    gen.manual_seed(0)
    data = holes(tokens)()
    metrics = dict(a=partial(F.cross_entropy, weight=w4), b=nn.CrossEntropyLoss(weight=w4), c=F.cross_entropy)
    res = learner(cut(data, 5), nn.CrossEntropyLoss(weight=w4), metrics).validate()
    assert (res[:3]==pytest.approx([F.cross_entropy(*data, weight=w4).item()]*3, rel=1e-6)
        and res.c==pytest.approx(F.cross_entropy(*data).item(), rel=1e-6))

def test_numbers_of_minus_100_count_in_a_regression():
    sk = pytest.importorskip('sklearn.metrics')
    x,y = torch.tensor([[-90],[3],[7],[-101]]).float(),torch.tensor([[-100],[2],[8],[-100]])
    res = learner(cut((x, y.float()), 3), nn.MSELoss(),
        [mae, from_sklearn('r2_score'), SpearmanCorrCoef(),
            AccumMetric(lambda p,t: (p-t).abs().mean(), name='all')]).validate()
    assert res.mae==res['all']==(10+1+1+1)/4 and res.r2_score==pytest.approx(sk.r2_score(y, x))

# Training
def test_a_summed_loss_is_shown_per_sample_whatever_the_batch_size():
    gen.manual_seed(0)
    x,y = torch.ones(16, 1),torch.full((16, 1), 3.)
    for bs in (2, 8):
        learn = Learner(DataLoaders(cut((x, y), bs), cut((x, y), bs), device='cpu'), Same(),
            nn.MSELoss(reduction='sum'), lr=0.).remove_cb(ProgressCallback).fit(1)
        assert learn.recorder.raw_losses==[4.]*(16//bs) and learn.recorder[-1][1:3]==pytest.approx((4., 4.))

def test_dice_is_in_0_1_by_default_and_does_not_grow_with_the_batch():
    gen.manual_seed(0)
    p,t = pixels()
    assert DiceLoss().reduction=='mean' and 0<DiceLoss()(p, t)<1
    assert DiceLoss()(p, t).item()==pytest.approx(DiceLoss(reduction='none')(p, t).mean().item())

@pytest.mark.parametrize('reduction', ['mean','sum'])
@pytest.mark.parametrize('name', ['ce ignore weight', 'flat smooth', 'mse', 'kl', 'dice', 'flat bce weights'])
@pytest.mark.parametrize('tech', [lambda: GradientAccumulation(n), lambda: MicroBatch(4)], ids=['accumulation','micro'])
def test_parts_of_a_batch_add_up_to_its_gradients(name, reduction, tech):
    gen.manual_seed(0)
    make,make_data = losses[name]
    data = make_data()
    def trained(batches, cbs):
        m = Same()
        Learner(DataLoaders(batches, device='cpu'), m, seeded_loss(make, reduction), opt_func=torch.optim.SGD, lr=.01,
            cbs=cbs).remove_cb(ProgressCallback).fit(1)
        return m.w.item()
    cbs = tech()
    assert trained(cut(data, 5) if isinstance(cbs, GradientAccumulation) else [data],
        cbs)==pytest.approx(trained([data], None), rel=1e-5)

# Losses of samples
def alone(loss, *data):
    "The loss of each sample, computed alone; class weights kept"
    return torch.stack([loss(*[o[i:i+1] for o in data]) for i in range(n)])

@pytest.mark.parametrize('name',
    ['ce tokens','ce ignored','mse','kl','dice','bce weights','flat mse','F.ce plain','multi margin','triplet','huber'])
@pytest.mark.parametrize('reduction', ['mean','sum'])
def test_losses_of_samples_are_those_of_the_samples_alone(name, reduction):
    gen.manual_seed(0)
    make,make_data = losses[name]
    data,loss = make_data(),seeded_loss(make, reduction)
    expected = alone(loss, *data).nan_to_num() # a sample whose targets are all ignored costs nothing
    for bs in (1, 5, n):
        learn = learner(cut(data, bs), loss)
        got = learn.get_preds(with_loss=True)[-1]
        assert got.shape==(n,) and torch.allclose(got, expected, atol=1e-6)
        if reduction=='sum': assert got.mean().item()==pytest.approx(learn.validate()[0], rel=1e-5)

def test_losses_of_samples_keep_class_weights_and_do_not_depend_on_padding():
    p,t = torch.tensor([[0., 1.], [0., 1.]]),torch.tensor([0, 1])
    w = torch.tensor([4., 1.])
    expected = F.cross_entropy(p, t, reduction='none')*w[t]
    assert torch.allclose(per_sample(nn.CrossEntropyLoss(w))(p, t), expected)
    short,long = randn(1, 4, 3),torch.zeros(1, 4, 9)
    long[...,:3] = short
    ts,tl = torch.tensor([[1,2,3]]),torch.tensor([[1,2,3]+[-100]*6])
    for loss in (nn.CrossEntropyLoss(), FocalLoss()):
        assert torch.allclose(per_sample(loss)(short, ts), per_sample(loss)(long, tl))

def contrastive(p, t): return F.cross_entropy(p@p.T/.5, torch.arange(len(p)))
def spread(p, t): return torch.cdist(p, p).mean()
def far(p, t): return -torch.pdist(p).mean()

@pytest.mark.parametrize('loss', [contrastive, spread, far])
def test_a_loss_that_compares_samples_has_none_for_each(loss):
    gen.manual_seed(0)
    data = randn(n, 5),pos()
    learn = learner(cut(data, 8), loss)
    learn.validate()
    with pytest.raises(ValueError,
            match=f'`{loss.__name__}` compares samples with each other, and no sample has a loss of its own'):
        learn.get_preds(with_loss=True)
    learn.get_preds()

@pytest.mark.parametrize('loss',
    [lambda p,t: F.cross_entropy(p, t, weight=w4), lambda p,t: ((p-t[:,None])**2).sum(),
        lambda p,t: F.cross_entropy(p, with_holes(t)), lambda p,t: p.abs().mean()],
        ids=['weights','sum','holes','plain'])
def test_a_loss_that_can_only_be_called_once_per_sample_is_no_comparison(loss):
    gen.manual_seed(0)
    p,t = classes()
    assert per_sample(loss)(p, t).shape==(n,)

@pytest.mark.parametrize('loss', [nn.CrossEntropyLoss(), lambda p,t: F.cross_entropy(p, t),
    lambda p,t: F.cross_entropy(p, t.where(t!=-100, 255), ignore_index=255)], ids=['torch','own','own index'])
@pytest.mark.parametrize('ignored', [[1, 4], [*range(8)]], ids=['some','all'])
def test_a_sample_that_the_loss_ignores_costs_nothing_and_one_that_is_no_number_is_seen(loss, ignored):
    gen.manual_seed(0)
    p,t = classes()
    p,t = p[:8].clone(),t[:8].clone()
    t[ignored] = -100
    losses = per_sample(loss)(p, t)
    assert losses.isfinite().all() and (losses==0).nonzero()[:,0].tolist()==ignored
    p[0] = torch.nan # the loss of the batch is none, either, unless this sample is ignored
    assert per_sample(loss)(p, t).isnan().nonzero()[:,0].tolist()==([] if 0 in ignored else [0])

# Batches without samples
@pytest.mark.parametrize('where', [0, 1, 2])
def test_an_empty_validation_batch_changes_nothing(where):
    x,y = torch.randn(6,3),torch.tensor([0,1,1,0,1,1])
    full = [(x[:4], y[:4]), (x[4:], y[4:])]
    with_empty = [*full[:where], (x[:0], y[:0]), *full[where:]]
    def mk(valid):
        torch.manual_seed(0)
        return Learner(DataLoaders([(x, y)], valid, device='cpu'), nn.Linear(3,2), nn.CrossEntropyLoss(),
            metrics=[accuracy, error_rate, partial(top_k_accuracy, k=1), F1Score(), Perplexity(),
                lambda p,t: (p.argmax(1)==t).float().mean()])
    a,b = mk(full),mk(with_empty)
    for p,q in zip(a.validate(), b.validate(), strict=True): assert abs(float(p)-float(q))<1e-6
    for p,q in zip(a.get_preds(with_loss=True, with_decoded=True), b.get_preds(with_loss=True, with_decoded=True),
            strict=True):
        assert torch.equal(p, q)
    for p,q in zip(a.fit(2).recorder['valid_loss'], b.fit(2).recorder['valid_loss']): assert abs(p-q)<1e-6

@pytest.mark.parametrize('n', [1, 2])
def test_validation_batches_without_any_sample_have_no_loss_and_no_predictions(n):
    learn = Learner(DataLoaders([(torch.randn(4,3), torch.zeros(4).long())],
        [(torch.zeros(0,3), torch.zeros(0).long())]*n, device='cpu'), nn.Linear(3,2), nn.CrossEntropyLoss(),
        metrics=accuracy)
    assert all(math.isnan(o) for o in learn.validate()) and learn.get_preds(with_loss=True)[2].shape==(0,)
    with pytest.warns(match='`early_stopping` did nothing: `valid_loss` had no value in any row of this fit'):
        learn.fit(2, cbs=EarlyStoppingCallback)

# Losses of one's own of which nothing is known
def weighs(p, t): return F.cross_entropy(p, t, weight=w4)
class Weighs(nn.Module):
    def forward(self, p, t): return weighs(p, t)
class Says(Weighs):
    def n_items(self, t): return w4[t].sum()
class Counts:
    "Its value depends on how often it was called"
    def __init__(self): self.n = 0
    def __call__(self, p, t): self.n += 1; return F.cross_entropy(p, t)*self.n
def noisy(p, t): return F.cross_entropy(p+torch.randn_like(p), t)
def fit_with(loss_func, cbs=None, bs=5):
    gen.manual_seed(1)
    learn = learner(cut(classes(), bs), loss_func, cbs=cbs)
    learn.lr = .1
    return learn.fit(2)

@pytest.mark.parametrize('f,name', [(weighs, 'weighs'), (Weighs(), 'Weighs'), (contrastive, 'contrastive')])
def test_a_loss_of_which_nothing_is_known_says_when_it_depends_on_the_batch_size(f, name, recwarn):
    learn = fit_with(f)
    said = [str(o.message) for o in recwarn if 'no average over samples' in str(o.message)]
    assert (len(said)==1 and said[0].startswith(
        f'`{name}` is no average over samples: for the first two batches together it is ')
        and 'So the validation loss depends on the batch size' in said[0])
    assert same_run(learn, f)

def same_run(learn, f):
    "Whether the fit is that of a learner whose recorder is told what the loss averages over, so that nothing is asked"
    gen.manual_seed(1)
    other = learner(cut(classes(), 5), f)
    other.lr = .1
    other.remove_cb(Recorder).add_cb(Recorder(count=lambda learn: len(learn.y)))
    other.fit(2)
    return torch.equal(learn.model.w, other.model.w) and learn.recorder.raw_losses==other.recorder.raw_losses

@pytest.mark.parametrize('f',
    [Says(), lambda p,t: F.cross_entropy(p, t), noisy, nn.CrossEntropyLoss(w4),
        nn.CrossEntropyLoss(w4, reduction='sum')], ids=['says','average','noisy','torch','sum'])
def test_losses_that_are_averages_or_say_what_they_are_need_no_warning(f, recwarn):
    fit_with(f)
    assert not [o for o in recwarn if 'average over samples' in str(o.message)]

def test_first_batches_without_a_target_that_counts_are_no_average(recwarn):
    p,t = randn(20, 4),torch.cat([torch.full((10,), -100), randint(4, 10)])
    def f(p, t): return F.cross_entropy(p, t)
    assert learner(cut((p, t), 5), f).validate().valid_loss==pytest.approx(f(p, t).item(), rel=1e-5)
    assert not [o for o in recwarn if 'average over samples' in str(o.message)]

class MeanOfSum(nn.CrossEntropyLoss):
    def __init__(self, reduction='sum'): super().__init__(reduction=reduction)
    def forward(self, p, t): return super().forward(p, t)/len(t)
class MeanBySum(MeanOfSum):
    def __init__(self): super().__init__('mean')
    def forward(self, p, t): return F.cross_entropy(p, t, reduction='sum')/len(t)
class WeighsOfNone(MeanOfSum):
    def __init__(self): super().__init__('none')
    def forward(self, p, t): return (F.cross_entropy(p, t, reduction='none')*w4[t]).sum()/w4[t].sum()
class SaysWeights(WeighsOfNone):
    def n_items(self, t): return w4[t].sum()
class Doubled(nn.CrossEntropyLoss):
    def forward(self, p, t): return super().forward(p, t)*2
class SumWithoutTorch(nn.Module):
    reduction = 'sum'
    def forward(self, p, t): return F.cross_entropy(p, t)

def trained_on(batches, f, cb=None):
    return Learner(DataLoaders(batches, batches, device='cpu'), Same(), f, lr=.01, cbs=cb).remove_cb(ProgressCallback)

steps = pytest.mark.parametrize('cb', [lambda: None, lambda: MicroBatch(2), lambda: GradientAccumulation(10)],
    ids=['none','MicroBatch','GradientAccumulation'])
@steps
@pytest.mark.parametrize('f,kind,advice', [(MeanOfSum(), 'sum', 'One that averages needs `reduction=\'mean\'`'),
    (SumWithoutTorch(), 'sum', 'One that averages needs `reduction=\'mean\'`'),
    (WeighsOfNone(), 'average', 'averages over something else')], ids=['sum','without torch','none'])
def test_a_class_of_ones_own_may_average_whatever_reduction_it_has(f, kind, advice, cb, recwarn):
    cb = cb()
    trained_on(cut(classes(), 5), f, cb).fit(1)
    said = [str(o.message) for o in recwarn if f'`{type(f).__name__}` is no {kind} over samples' in str(o.message)]
    assert len(said)==(1 if cb is None else 2) and advice in said[-1]
    assert cb is None or any(f'`{type(cb).__name__}` does not give the step of the ' in o for o in said)

class OnceABatch(MeanOfSum):
    "Adds a term that does not grow with the batch, such as the distance of weights from their prior"
    def forward(self, p, t): return F.cross_entropy(p, t, reduction='sum')+3
def spread(p, t): return F.cross_entropy(p, t, reduction='sum')+torch.cdist(p, p).sum()
spread.reduction = 'sum'

@steps
@pytest.mark.parametrize('f', [OnceABatch(), spread])
def test_the_advice_for_a_sum_that_is_none_begins_with_what_may_be_meant(f, cb, recwarn):
    trained_on(cut(classes(), 5), f, cb()).fit(1)
    said = [str(o.message) for o in recwarn if 'is no sum over samples' in str(o.message)]
    assert said
    for o in said:
        follows = re.search(r'So (`\w+` does not give the step of|the validation loss depends)[^.]*\. (.*)', o)[2]
        assert follows.startswith('That is so for a loss that compares samples, or adds a term once for a batch')
        assert re.findall(r'\w+ inherit\w+', o)==([] if f is spread else ['perhaps inherited'])

class Unreduced(nn.CrossEntropyLoss):
    def __init__(self): super().__init__(reduction='none')
    def forward(self, p, t): return super().forward(p, t)
def unreduced(p, t): return F.cross_entropy(p, t, reduction='none')

@steps
@pytest.mark.parametrize('f', [Unreduced(), unreduced, nn.CrossEntropyLoss(reduction='none')],
    ids=['class','function','torch'])
def test_a_loss_for_each_sample_is_averaged_by_a_callback_and_not_asked(f, cb, recwarn):
    "Batches are of different sizes, and so are the pieces of the last one"
    data = classes()
    batches = [tuple(o[i:j] for o in data) for i,j in ((0,6),(6,10),(10,n))]
    def average(cb): cb.learn.loss_grad = cb.loss.mean()
    def train(f, *cbs):
        torch.manual_seed(0)
        learn,seen = Learner(DataLoaders(batches, batches, device='cpu'), nn.Linear(4, 4), f, lr=.01, cbs=cbs),[]
        learn.remove_cb(ProgressCallback).fit(1, cbs=Callback(before_backward=lambda cb: seen.append(cb.loss)))
        return [*learn.model.parameters()],[o.mean() for o in seen],[len(o) for o in seen if o.ndim]
    given = [o for o in [cb()] if o]
    ps,losses,sizes = train(f, Callback(after_loss=average), *given)
    torch.testing.assert_close((ps, losses), train(F.cross_entropy, *given)[:2])
    assert sizes==[6,4,7] and not recwarn.list

@steps
@pytest.mark.parametrize('f', [MeanBySum(), SaysWeights(), Doubled(reduction='sum'), Doubled(reduction='mean'),
    KL(reduction='batchmean')], ids=['mean by sum','says','sum','mean','batchmean'])
def test_a_class_of_ones_own_with_the_right_reduction_needs_no_warning(f, cb, recwarn):
    data = numbers() if isinstance(f, KL) else classes()
    learn = trained_on(cut(data, 5), f, cb())
    at_once = f(*data).item()/(n if getattr(f, 'reduction', '')=='sum' else 1)
    assert learn.validate().valid_loss==pytest.approx(at_once, rel=1e-5)
    learn.fit(1)
    assert not [o for o in recwarn if 'over samples' in str(o.message)]

def test_a_loss_that_a_callback_changes_is_not_asked(recwarn):
    class Twice(Callback):
        def after_loss(self): self.learn.loss = self.learn.loss*2
    fit_with(weighs, Twice())
    assert not [o for o in recwarn if 'average over samples' in str(o.message)]

@pytest.mark.parametrize('batch', [0,1])
def test_a_loss_that_a_callback_changes_in_one_batch_is_not_asked(batch, recwarn):
    class Adds(Callback):
        run_train = False
        def after_loss(self): self.learn.loss = self.learn.loss+(self.iter==batch)
    fit_with(lambda p,t: F.cross_entropy(p, t), Adds())
    assert not [o for o in recwarn if 'average over samples' in str(o.message)]

def test_a_loss_of_the_model_that_a_callback_changes_is_not_asked(recwarn):
    fit_own(Weighted(), True, cbs=Callback(after_loss=lambda cb: setattr(cb.learn, 'loss', cb.learn.loss*2)))
    assert not said_of_averages(recwarn)

def test_asking_a_loss_leaves_its_state_alone():
    f = Counts()
    learn = fit_with(f)
    assert f.n==2 and same_run(learn, Counts()) # one training batch in each of two epochs

# Models with a loss of their own
class OwnLoss(WithLoss):
    "The loss is `f(pred, labels)`; in tuples, the model takes both and returns a number"
    def forward(self, x, labels): out = super().forward(x, labels); return out if self.named else out.loss
class Weighted(OwnLoss):
    def __init__(self): super().__init__(weighs)
class Ignores(OwnLoss):
    "Targets of 0 do not count"
    def __init__(self): super().__init__(partial(F.cross_entropy, ignore_index=0))
class Padded(OwnLoss):
    "Inputs of 0 are padding"
    def forward(self, x, labels):
        self.f = lambda p,y: (F.cross_entropy(p, y, reduction='none')*kept(x)).sum()/kept(x).sum()
        return super().forward(x, labels)
class Total(OwnLoss):
    def __init__(self): super().__init__(partial(F.cross_entropy, reduction='sum'))
class Contrasts(OwnLoss):
    def __init__(self): super().__init__(contrastive)
class Noise(OwnLoss):
    def __init__(self): super().__init__(noisy)
class Drops(OwnLoss):
    def __init__(self): super().__init__(); self.d,self.bn = nn.Dropout(),nn.BatchNorm1d(4)
    def forward(self, x, labels): return super().forward(self.bn(self.d(x)), labels)
class Remembers(OwnLoss):
    "Its hidden state decides the loss"
    h = 0
    def forward(self, x, labels): self.h += 1; return super().forward(x*self.h, labels)
class Alone(OwnLoss):
    "A single sample loses its axis"
    def forward(self, x, labels): return super().forward(x.squeeze()+0, labels)
class Sometimes(OwnLoss):
    "Another task than the loss of the model"
    def forward(self, x, labels): super().forward(x, labels); return super().forward(x, labels)
def kept(x): return (x[:,1]>-.5).float()

def fit_own(model, named, bs=5, cbs=None, data=classes):
    gen.manual_seed(2)
    model.named = named
    batches = [dict(x=a, labels=b) if named else (a, b) for a,b in cut(data(), bs)]
    learn = Learner(DataLoaders([batches[0]], batches, n_inp=None if named else 2, device='cpu'), model, lr=.1,
        cbs=cbs).remove_cb(ProgressCallback)
    return learn.fit(2)

def said_of_averages(recwarn): return [str(o.message) for o in recwarn if 'no average over samples' in str(o.message)]

@pytest.mark.parametrize('named', [True,False])
@pytest.mark.parametrize('bs', [3, 5, n])
@pytest.mark.parametrize('model', [Weighted, Ignores, Padded, Total, Contrasts])
def test_a_model_whose_own_loss_is_another_mean_says_that_the_validation_loss_depends_on_the_batch_size(model, bs,
        named, recwarn):
    fit_own(model(), named, bs)
    said, = said_of_averages(recwarn)
    assert (said.startswith(f'The loss that `{model.__name__}` returns is no average over samples: for ')
        and '`cbs=Recorder(count=lambda learn: ' in said)

@pytest.mark.parametrize('named', [True,False])
@pytest.mark.parametrize('model', [OwnLoss, partial(OwnLoss, F.mse_loss), Noise, Drops, Remembers, Alone, Sometimes])
def test_a_model_whose_own_loss_is_a_plain_mean_needs_no_warning(model, named, recwarn):
    for bs in (2, 5, n): fit_own(model(), named, bs, data=numbers if isinstance(model, partial) else classes)
    assert not said_of_averages(recwarn)

@pytest.mark.parametrize('data,model',
    [(holes(tokens), WithLoss), (holes(tokens), TinyForCausalLM), (tokens, TinyForCausalLM),
        (holes(classes), WithLoss)])
def test_targets_that_do_not_count_for_a_usual_loss_need_no_warning(data, model, recwarn):
    for bs in (2, 5, n): fit_own(model(), True, bs, data=data)
    assert not said_of_averages(recwarn)

def test_what_the_loss_of_a_model_averages_over_can_be_said(recwarn):
    "As the warning says: then it does not depend on the batch size"
    losses = [fit_own(Weighted(), False, bs, Recorder(count=lambda learn: w4[learn.xb[1]].sum())).validate()[0]
        for bs in (n, 5, 1)]
    gen.manual_seed(2)
    p,y = classes()
    assert (not said_of_averages(recwarn)
        and losses[0]==pytest.approx(weighs(p*fit_own(Weighted(), False, n).model.w.detach(), y).item()))
    for bs in (1, 5): # of one model
        learn = fit_own(Weighted(), False, n)
        learn.remove_cb(Recorder).add_cb(Recorder(count=lambda learn: w4[learn.xb[1]].sum()))
        assert learn.validate(dl=cut((p, y), bs))[0]==pytest.approx(losses[0], rel=1e-6)

def test_asking_a_model_for_its_loss_leaves_the_run_alone():
    for cls in (Remembers, Weighted, Noise):
        runs = []
        for count in (None, lambda learn: len(learn.xb[0])):
            torch.manual_seed(0)
            learn = fit_own(cls(), False, cbs=Recorder(count=count))
            runs.append((learn.model.w.item(), getattr(learn.model, 'h', 0), learn.recorder.raw_losses))
        assert runs[0]==runs[1]

def test_a_model_with_hooks_or_with_changed_predictions_is_not_asked_for_its_loss(recwarn):
    model,calls = Weighted(),[]
    model.register_forward_hook(lambda *args: calls.append(1))
    fit_own(model, True)
    assert len(calls)==2*(1+4) and not said_of_averages(recwarn)
    fit_own(Weighted(), True, cbs=MapPred(lambda o: SimpleNamespace(loss=o.loss*2, logits=o.logits)))
    assert not said_of_averages(recwarn)

# Everywhere that a loss of one's own is used
class Hides(nn.CrossEntropyLoss):
    def forward(self, p, t): return weighs(p, t)
class FlatHides(CrossEntropyLossFlat):
    def __call__(self, p, t): return weighs(p, t)
hidden = {'subclass': Hides(), 'flat subclass': FlatHides(),
    'lambda': lambda p,t: F.cross_entropy(p, t, weight=w4), 'function': weighs, 'module': Weighs(),
    'partial': partial(lambda p,t,w: F.cross_entropy(p, t, weight=w), w=w4)}
class Doubles(nn.CrossEntropyLoss):
    def forward(self, p, t): return 2*super().forward(p, t)
plain = {'subclass': Doubles(w4),
    'lambda': lambda p,t: F.cross_entropy(p, t), 'torch': nn.CrossEntropyLoss(w4), 'says': Says(),
    'F': partial(F.cross_entropy, weight=w4), 'sum of torch': nn.CrossEntropyLoss(w4, reduction='sum'), 'noisy': noisy,
    'tensors': lambda p,t: (p-1).abs().mean()}

def places(learn, batches):
    "Calls that compute losses, by name"
    def nested():
        class Inner(Callback):
            def before_train(self): self.learn.validate(dl=batches)
        other = Learner(DataLoaders(batches[:1], device='cpu'), Same(), learn.loss_func).remove_cb(ProgressCallback)
        other.fit(1, cbs=Inner())
    def top_losses(): Interpretation.from_learner(learn).top_losses(3)
    return dict(validate=learn.validate, validate_dl=lambda: learn.validate(dl=batches), nested=nested,
        without_recorder=lambda: learn.remove_cb(Recorder).validate(), fit=lambda: learn.fit(1),
        get_preds=lambda: learn.get_preds(with_loss=True), top_losses=top_losses,
        ledger=lambda: learn.fit(1, cbs=Ledger()))

def said_in(place, loss_func, recwarn, bs=5):
    gen.manual_seed(3)
    data = classes()
    dls = DataLoaders.from_dsets(torch.utils.data.TensorDataset(*data), bs=bs, device='cpu')
    learn = Learner(DataLoaders(dls.train, cut(data, bs), device='cpu'), Same(), loss_func, lr=0.)
    learn.remove_cb(ProgressCallback)
    places(learn, cut(data, bs))[place]()
    return said_of_averages(recwarn)

every_place = ['validate','validate_dl','nested','without_recorder','fit','get_preds','top_losses','ledger']

@pytest.mark.sample(4)
@pytest.mark.parametrize('f', hidden)
@pytest.mark.parametrize('place', every_place)
def test_hidden_weights_are_told_wherever_a_loss_is_computed(place, f, recwarn):
    assert said_in(place, hidden[f], recwarn)

@pytest.mark.sample(4)
@pytest.mark.parametrize('f', plain)
@pytest.mark.parametrize('place', every_place)
def test_no_place_warns_of_averages_and_of_losses_that_say_what_they_are(place, f, recwarn):
    assert not said_in(place, plain[f], recwarn)

@pytest.mark.parametrize('call', ['fit','validate'])
def test_hidden_weights_are_told_for_a_validation_set_that_is_sorted_by_class(call, recwarn):
    "The first batches have one class only, and their averages are right"
    gen.manual_seed(3)
    p,t = randn(64, 4),torch.arange(64)//16
    learn = learner(cut((p, t), 5), weighs)
    learn.validate() if call=='validate' else learn.fit(1)
    said, = said_of_averages(recwarn)
    assert 'for batches 1 and 8 together' in said

def test_a_metric_that_is_no_average_is_told_by_a_validation_of_its_own(recwarn):
    gen.manual_seed(3)
    learn = learner(cut(classes(), 5), nn.CrossEntropyLoss(), metrics=lambda p,t: p.max())
    learn.validate()
    assert len(said_of_averages(recwarn))==1
    learn.validate() # told
    assert len(said_of_averages(recwarn))==1

def test_a_metric_of_training_alone_is_told(recwarn):
    gen.manual_seed(3)
    learn = Learner(DataLoaders(cut(classes(), 5), device='cpu'), Same(), nn.CrossEntropyLoss(),
        metrics=lambda p,t: p.max(), cbs=Recorder(train_metrics=True)).remove_cb(ProgressCallback)
    learn.fit(1)
    assert len(said_of_averages(recwarn))==1

def test_a_loss_that_is_replaced_is_asked_again(recwarn):
    gen.manual_seed(3)
    learn = learner(cut(classes(), 5), F.cross_entropy)
    for loss,n_said in ((F.cross_entropy, 0), (weighs, 1), (weighs, 1), (Weighs(), 2), (contrastive, 3)):
        learn.loss_func = loss
        learn.validate()
        assert len(said_of_averages(recwarn))==n_said

def test_what_has_been_asked_is_not_kept_alive():
    from weakref import ref
    gen.manual_seed(3)
    learn = learner(cut(classes(), 5), Weighs())
    with pytest.warns(UserWarning): learn.validate()
    loss,model = ref(learn.loss_func),ref(learn.model)
    learn.loss_func,learn.model = F.cross_entropy,Same()
    assert loss() is None and model() is None

def test_losses_of_samples_that_do_not_make_up_the_loss_say_what_to_write():
    gen.manual_seed(3)
    learn = learner(cut(classes(), 5), weighs)
    with pytest.warns(UserWarning, match="`weighs` is no average over samples: for the first batch it is .*leave out "
            "what it weights samples by. Give it an argument `reduction`"):
        learn.get_preds(with_loss=True)

@pytest.mark.parametrize('place', ['validate','fit','get_preds','top_losses'])
def test_targets_that_do_not_count_are_no_reason_for_a_warning(place, recwarn):
    gen.manual_seed(3)
    data = holes(tokens)()
    learn = learner(cut(data, 5), lambda p,t: F.cross_entropy(p, t))
    places(learn, cut(data, 5))[place]()
    assert not said_of_averages(recwarn)

def test_a_metric_of_training_is_compared_for_the_batches_after_a_resume_alone(recwarn):
    gen.manual_seed(3)
    def mean(p, t): return p.mean()
    learn = Learner(DataLoaders(cut(classes(), 3), device='cpu'), Same(), nn.CrossEntropyLoss(), metrics=mean,
        cbs=Recorder(train_metrics=True)).remove_cb(ProgressCallback)
    class Stops(Callback):
        def after_batch(self):
            if self.train_iter==3: self.learn.at_pause(self.learn.stop_for_now, stops=True)
    learn.fit(1, cbs=Stops())
    assert learn.resume(cbs=[]).recorder.log.train_mean and not said_of_averages(recwarn)

@pytest.mark.parametrize('bs', [4, 16])
def test_hidden_weights_in_a_model_are_told_for_a_validation_set_that_is_sorted_by_class(bs, recwarn):
    gen.manual_seed(3)
    p,t = randn(64, 4),torch.arange(64)//16
    for cls,n_said in ((WithLoss, 0), (Weighted, 1)):
        model = cls()
        model.named = True
        batches = [dict(x=a, labels=b) for a,b in cut((p, t), bs)]
        Learner(DataLoaders(batches[:1], batches, device='cpu'), model).remove_cb(ProgressCallback).validate()
        assert len(said_of_averages(recwarn))==n_said

def test_targets_that_do_not_count_are_no_reason_for_a_warning_of_accumulation(recwarn):
    gen.manual_seed(3)
    p,t = tokens()
    t[:4,1:] = -100
    batches = cut((p, t), 5)
    Learner(DataLoaders(batches, device='cpu'), Same(), lambda p,t: F.cross_entropy(p, t), lr=.1,
        cbs=GradientAccumulation(10)).remove_cb(ProgressCallback).fit(1)
    assert not said_of_averages(recwarn)

def test_a_callback_of_training_alone_does_not_keep_the_loss_of_validation_from_being_asked(recwarn):
    gen.manual_seed(3)
    fit_with(weighs, MixUp())
    assert len(said_of_averages(recwarn))==1

# Batches in which the first tensor has another length than the batch has samples
@dataclass
class Graphs:
    "Nodes of all graphs of a batch, the graph of each node, and what is to be predicted for each graph"
    nodes:torch.Tensor
    graph:torch.Tensor
    targ:torch.Tensor

class Opaque:
    "The same, where no tensor is found"
    def __init__(self, nodes, graph, targ): self.parts = nodes,graph,targ
    def to(self, *args, **kwargs): return self

class OwnLoss(nn.Module):
    "Returns the average loss of the samples of a batch"
    def __init__(self): super().__init__(); self.layer = nn.Linear(3, 1)
    def forward(self, *b): return dict(loss=torch.stack([o.square().mean() for o in self.values(*b)]).mean())
class Detector(OwnLoss):
    "Of a list of images and a list of dicts"
    def values(self, images, targs):
        return [self.layer(o.mean((1,2)))-t['boxes'].mean() for o,t in zip(images, targs)]
class OfGraphs(OwnLoss):
    def values(self, b):
        nodes,graph,targ = b.parts if isinstance(b, Opaque) else (b.nodes, b.graph, b.targ)
        return torch.zeros(len(targ)).index_add(0, graph, self.layer(nodes)[:,0])-targ

def collate_images(samples): return tuple(map(list, zip(*samples)))
def collate_graphs(cls):
    def _f(samples):
        ns = torch.tensor([len(x) for x,_ in samples])
        return cls(torch.cat([x for x,_ in samples]), torch.arange(len(ns)).repeat_interleave(ns),
            torch.stack([y for _,y in samples]))
    return _f
images = [(rand(3, 8, 8+i%3), dict(boxes=rand(i%3+1, 4))) for i in range(n)]
graphs = [(randn(3*i%7+1, 3), torch.tensor(float(i))) for i in range(n)]
kinds_of_batch = {'lists': (images, Detector, collate_images, 2),
    'dataclass': (graphs, OfGraphs, collate_graphs(Graphs), 1),
    'opaque': (graphs, OfGraphs, collate_graphs(Opaque), 1)}

@pytest.mark.parametrize('kind', kinds_of_batch)
def test_samples_are_counted_by_what_was_drawn(kind):
    "Validation losses are averages over images or graphs, and so many are accumulated"
    data,cls,collate,n_inp = kinds_of_batch[kind]
    def dls(bs): return DataLoaders(*[DataLoader(data, bs, collate_fn=collate)]*2, n_inp=n_inp, device='cpu')
    torch.manual_seed(0)
    model,values = cls(),[]
    for bs in (2, 4, 5, n): values.append(Learner(dls(bs), model, lr=0.).validate()['valid_loss'])
    assert values==pytest.approx(values[:1]*4, rel=1e-5)
    learn = Learner(dls(4), model, lr=0., cbs=GradientAccumulation(8)).remove_cb(ProgressCallback).fit(1)
    assert learn.opt_step==3 # 17 in steps of 8

def test_samples_that_are_whole_batches_are_counted_by_their_rows():
    "One by one from a loader, also where a part of them has length 1"
    gen.manual_seed(0)
    x,w = randn(40, 3),torch.tensor([2.])
    class Rows(nn.Module):
        def __init__(self): super().__init__(); self.layer = nn.Linear(3, 1)
        def forward(self, x, scale): return dict(loss=(self.layer(x)*scale).square().mean())
    model = Rows()
    ready = [dict(x=o, scale=w) for o in x.split([3, 4, 5, 6, 22])]
    dl = DataLoader(ready, 1, collate_fn=lambda s: s[0])
    res = Learner(DataLoaders(dl, dl, device='cpu'), model).validate()['valid_loss']
    assert res==pytest.approx(model(x, w)['loss'].item(), rel=1e-5)

@pytest.mark.parametrize('data', [classes,tokens], ids=['classes','tokens'])
def test_losses_that_a_callback_averages(data):
    "The loss function has `reduction='none'`, as for weights of samples"
    def average(self): self.learn.loss = self.learn.loss_grad = self.loss.mean()
    pred,targ = data()
    for weight in (None, torch.tensor([1.,5.,.1,2.,3.])[:pred.shape[1]]):
        loss_func = nn.CrossEntropyLoss(weight, reduction='none')
        for bs in (1, 4, 6, n):
            learn = learner(cut((pred, targ), bs), loss_func, cbs=Callback(after_loss=average))
            assert learn.validate()['valid_loss']==pytest.approx(loss_func(pred, targ).mean().item(), rel=1e-5)

# Samples in tuples, as `tuple(zip(*samples))` makes them, and fields in tuples
class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, images): return self.layer(torch.stack([*images]))
def loss_of_boxes(pred, targets): return F.mse_loss(pred[:,0], torch.stack([o['y'] for o in targets]))
boxes = [(torch.tensor([i/3, 1.]), dict(y=torch.tensor(i*i/9), boxes=torch.zeros(i%4, 4))) for i in range(7)]

@pytest.mark.parametrize('how', ['drawn','ready','dropped'])
def test_the_average_of_a_phase_is_that_of_its_samples_also_in_tuples(how):
    def collate(samples): return tuple(zip(*(samples[1:] if how=='dropped' else samples)))
    dl = DataLoader(boxes, 3 if how!='dropped' else 4, collate_fn=collate)
    learn = Learner(DataLoaders([*dl] if how=='ready' else dl, device='cpu'), Boxes(), loss_of_boxes)
    kept = [o for i,o in enumerate(boxes) if how!='dropped' or i%4]
    with torch.no_grad(): whole = loss_of_boxes(learn.model([o[0] for o in kept]), [o[1] for o in kept]).item()
    assert learn.validate(0)['train/loss']==pytest.approx(whole)

@pytest.mark.parametrize('named', [False, True])
def test_fields_in_a_tuple_are_no_samples_where_as_many_were_drawn(named):
    "A collate function makes two rows of each sample, and a batch of two has targets of two fields"
    Pair = namedtuple('Pair', 'a b')
    def collate(samples):
        x = torch.cat([o.expand(2, 2) for o,_ in samples])
        y = (x[:,:1]*2, x[:,1:]*3)
        return x[None].expand(1, *x.shape).squeeze(0).unbind(1),Pair(*y) if named else y
    data = [(torch.tensor([i/5, 1.]), None) for i in range(5)]
    class Sums(nn.Module):
        def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(1))
        def forward(self, xs): return self.w*(xs[0]+xs[1])
    def loss(pred, ys): return (pred-ys[0][:,0]-ys[1][:,0]).square().mean()
    learn = Learner(DataLoaders(DataLoader(data, 2, collate_fn=collate), device='cpu', n_inp=1), Sums(), loss)
    x = torch.tensor([[i/5, 1.] for i in range(5)])
    assert learn.validate(0)['train/loss']==pytest.approx(loss(x.sum(1), (x[:,:1]*2, x[:,1:]*3)).item())

def test_fields_of_several_lengths_in_a_tuple_are_no_samples():
    "Targets of nodes, and of the graph that they are of, in ready batches"
    x = torch.arange(5.)[:,None]
    batches = [(x[:3], (x[:3,0], torch.ones(1))), (x[3:], (x[3:,0], torch.ones(1)))]
    learn = Learner(DataLoaders([(([o],), y) for o,y in batches], device='cpu', split=lambda b: (b[0], (b[1],))),
        Boxes(), lambda p,y: y[0].square().mean()+0*p)
    learn.model.forward = lambda o: learn.model.layer.weight.sum()
    assert learn.validate(0)['train/loss']==pytest.approx(x.square().mean().item())

# Batches of text, each padded to its own longest sequence
def scores_of(t): return F.one_hot(t.roll(1, 1), 9)*4.
def padded(bs, n=22):
    gen.manual_seed(3)
    seqs = [randint(8, int(k))+1 for k in randint(8, n)+2]
    cut_seqs = [nn.utils.rnn.pad_sequence(seqs[i:i+bs], batch_first=True) for i in range(0, n, bs)]
    return [(scores_of(o), o) for o in cut_seqs]
def padded_learner(f, metrics=None, bs=5, cbs=None):
    learn = Learner(DataLoaders(padded(bs), padded(bs), device='cpu'), Same(), f, lr=.1, metrics=metrics, cbs=cbs)
    return learn.remove_cb(ProgressCallback)
def token_mean(): # each test gives it other attributes
    def of_tokens(p, t): return F.cross_entropy(p.flatten(0,1), t.flatten(), ignore_index=0)
    return of_tokens
def per_token(p, t): return F.cross_entropy(p.mT, t, ignore_index=0, reduction='none')
def in_top3(): # likewise
    def top3(p, t): return (p.topk(3).indices==t[...,None]).any(-1)[t!=0].float().mean()
    return top3

def test_a_mean_over_tokens_of_batches_of_different_widths_is_found_and_put_right_as_the_warning_says(recwarn):
    f,m = token_mean(),in_top3()
    (p,t), = padded(22)
    whole = f(p, t).item(),m(p, t).item(),(p.argmax(-1)==t)[t!=0].float().mean().item()
    wrong = padded_learner(f, [m, accuracy]).validate()
    said = sorted(said_of_averages(recwarn))
    assert abs(wrong.valid_loss-whole[0])>1e-3 and len(said)==2
    assert all(re.search('samples: for batch [12] it is .* for each of its halves is ', o) for o in said)
    assert '`f.ignore_index = 0`. Metrics then leave them out too' in said[0]
    assert '`AccumMetric(top3)` computes it for all samples at once, if batches have one width' in said[1]
    m.n_items = eval(re.search(r'`f.n_items = (.*?)`', said[1])[1])
    f.ignore_index = 0
    recwarn.clear()
    assert [*padded_learner(f, [m, accuracy]).validate()]==pytest.approx(whole, rel=1e-5)
    assert not said_of_averages(recwarn)

def test_a_mean_over_tokens_of_batches_of_different_widths_gives_no_big_step(recwarn):
    f = token_mean()
    def step(batches, *cbs):
        learn = Learner(DataLoaders(batches, device='cpu'), Same(), f, opt_func=SGD, lr=1., cbs=cbs)
        return learn.remove_cb(ProgressCallback).fit(1).model.w.item()
    big = step(padded(22))
    assert step(padded(5), GradientAccumulation(22))!=pytest.approx(big, rel=1e-4)
    said, = said_of_averages(recwarn)
    assert (said.startswith('`of_tokens` is no average over samples: for some samples it is ')
        and '`f.ignore_index = 0`' in said)
    f.ignore_index = 0
    recwarn.clear()
    assert step(padded(5), GradientAccumulation(22))==pytest.approx(big, rel=1e-5) and not said_of_averages(recwarn)

def of_samples(p, t): return (per_token(p, t).sum(1)/(t!=0).sum(1)).mean()
def of_padding(p, t): return F.cross_entropy(p.mT, t)
def of_numbers(p, t): return (p.sum(-1)-t).square().mean()
def drawn(p, t): return token_mean()(p+torch.randn_like(p), t)
def one_by_one(p, t): return torch.stack([per_token(a[None], b[None]).sum()/len(b[b>0]) for a,b in zip(p, t)]).mean()
class Calls:
    n = 0
    def __call__(self, p, t): self.n += 1; return of_samples(p, t)*self.n
@pytest.mark.parametrize('f', [of_samples, of_padding, of_numbers, drawn, one_by_one, Calls()],
    ids=['samples','padding','numbers','drawn','one by one','calls'])
@pytest.mark.parametrize('bs', [1, 2, 3, 5, 21])
def test_averages_of_batches_of_different_widths_need_no_warning(f, bs, recwarn):
    padded_learner(f, f, bs).fit(1)
    padded_learner(f, f, bs, GradientAccumulation(10)).fit(1)
    assert not said_of_averages(recwarn)

class OfTokens(Same):
    "Its loss leaves out padding"
    def forward(self, x, labels):
        p = super().forward(x)
        return dict(logits=p, loss=token_mean()(p, labels))
def test_a_model_whose_own_loss_is_another_mean_is_found_in_a_later_batch_of_another_width(recwarn):
    full = [torch.randint(1, 9, (4, w), generator=gen) for w in (5,4,3)]
    t = torch.randint(1, 9, (8, 6), generator=gen)
    t[:4,2:] = 0
    late = scores_of(t)
    late[:4] = 0 # short ones are easier
    batches = [*((scores_of(o), o) for o in full), (late, t)]
    dls = DataLoaders(batches, [dict(x=a, labels=b) for a,b in batches], device='cpu')
    def validate(metrics, *cbs): return Learner(dls, OfTokens(), metrics=metrics, cbs=cbs).validate()
    validate(accuracy)
    said, = said_of_averages(recwarn)
    count,metric = re.search(r'such as padding: `(.*?)`, and for metrics `(.*?)`', said).groups()
    ns = [(b!=0).sum().item() for _,b in batches]
    whole = [sum(f(*o).item()*n for o,n in zip(batches, ns))/sum(ns) for f in (token_mean(), eval(metric))]
    recwarn.clear()
    assert [*validate(eval(metric), Recorder(count=eval(count)))]==pytest.approx(whole, rel=1e-5)
    assert not said_of_averages(recwarn)
