"Losses equal torch's, metrics equal scikit-learn's, however the data are cut into batches"
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
import pickle
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from parts import shown

gen = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=gen)
def randint(hi, *shape): return torch.randint(0, hi, shape, generator=gen)

@pytest.fixture(autouse=True)
def seeded(): gen.manual_seed(0) # the same numbers, whatever ran before
def close(a, b, tol=1e-6): assert a.shape==b.shape and torch.allclose(a, b, rtol=1e-5, atol=tol); return True

# Losses
w3,pw3 = torch.tensor([.2, 1., 3.]),torch.tensor([1., 2., .5])
shapes = [((4,3), 1, (4,)), ((4,5,3), -1, (4,5)), ((4,3,5), 1, (4,5)), ((2,3,4,5), 1, (2,4,5)),
    ((2,4,5,3), -1, (2,4,5)), ((2,4,5,3), 3, (2,4,5))]

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('kwargs',
    [{}, dict(weight=w3), dict(ignore_index=1), dict(label_smoothing=.2), dict(weight=w3, ignore_index=0)],
    ids=lambda o: '-'.join(o))
@pytest.mark.parametrize('shape,axis,targ', shapes)
def test_cross_entropy(shape, axis, targ, kwargs, reduction):
    pred,t = randn(*shape),randint(3, *targ)
    expected = F.cross_entropy(pred.movedim(axis, 1), t, reduction=reduction, **kwargs)
    loss = CrossEntropyLossFlat(axis=axis, reduction=reduction, **kwargs)
    close(loss(pred, t), expected if reduction!='none' else expected.reshape(-1))
    close(loss(pred, t.int()), loss(pred, t)) # smaller integers too
    p = loss.activation(pred)
    close(p, pred.softmax(axis)); assert torch.equal(loss.decodes(p), pred.argmax(axis)) and loss.y_int

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('eps', [0., .1, 1.])
@pytest.mark.parametrize('shape,axis,targ', shapes)
def test_label_smoothing(shape, axis, targ, eps, reduction):
    pred,t = randn(*shape),randint(3, *targ)
    # the same where classes have no weights
    expected = F.cross_entropy(pred.movedim(axis, 1), t, reduction=reduction, label_smoothing=eps)
    loss = LabelSmoothingCrossEntropyFlat(axis=axis, eps=eps, reduction=reduction)
    close(loss(pred, t), expected if reduction!='none' else expected.reshape(-1))
    if len(shape)==2: close(LabelSmoothingCrossEntropy(eps=eps, reduction=reduction)(pred, t), expected)

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('kwargs', [{}, dict(weight=w3), dict(ignore_index=1), dict(weight=w3, ignore_index=0)],
    ids=lambda o: '-'.join(o))
@pytest.mark.parametrize('gamma', [0., .5, 1., 2.])
@pytest.mark.parametrize('shape,axis,targ', shapes)
@pytest.mark.sample(3, together=2)
def test_focal(shape, axis, targ, gamma, kwargs, reduction):
    pred,t = randn(*shape),randint(3, *targ)
    # probability of the right class
    at = pred.movedim(axis, -1).reshape(-1, 3).double().softmax(1)[range(t.numel()), t.reshape(-1)]
    w = kwargs.get('weight', torch.ones(3)).double()[t.reshape(-1)]*(t.reshape(-1)!=kwargs.get('ignore_index', -1))
    expected = -w*(1-at)**gamma*at.log()
    expected = dict(none=expected, sum=expected.sum(), mean=expected.sum()/w.sum())[reduction].float()
    loss = FocalLossFlat(gamma=gamma, axis=axis, reduction=reduction, **kwargs)
    close(loss(pred, t), expected); close(loss(pred, t.int()), expected)
    p = loss.activation(pred)
    close(p, pred.softmax(axis)); assert torch.equal(loss.decodes(p), pred.argmax(axis)) and loss.y_int
    if axis==1: close(FocalLoss(gamma, reduction=reduction, **kwargs)(pred, t).reshape(expected.shape), expected)
    if gamma==0: close(loss(pred, t), CrossEntropyLossFlat(axis=axis, reduction=reduction, **kwargs)(pred, t))

@pytest.mark.parametrize('gamma', [0., .5, 1., 2.])
def test_focal_of_what_is_certain(gamma):
    pred = torch.tensor([[200., 0, 0], [0, 200., 0]], requires_grad=True)
    FocalLoss(gamma, reduction='sum')(pred, torch.tensor([0, 2])).backward()
    assert torch.isfinite(pred.grad).all() and not pred.grad[0].any() and pred.grad[1,2]==pytest.approx(-1)

@pytest.mark.parametrize('axis', [1, -1, 2])
@pytest.mark.parametrize('square', [False, True])
def test_dice(axis, square):
    pred,t = randn(2, 4, 5, 3).movedim(3, axis),randint(3, 2, 4, 5)
    prob,expected = pred.double().softmax(axis).movedim(axis, 1),torch.zeros(2, 3).double()
    for i in range(2):
        for c in range(3):
            p,y = prob[i,c],(t[i]==c).double()
            expected[i,c] = 1 - (2*(p*y).sum()+.1)/((p**square*p).sum()+y.sum()+.1)
    for reduction,e in dict(none=expected, sum=expected.sum(), mean=expected.mean()).items():
        close(DiceLoss(axis=axis, smooth=.1, reduction=reduction, square_in_union=square)(pred, t), e.float())
    loss = DiceLoss(axis=axis)
    p = loss.activation(pred)
    close(loss(pred, t.unsqueeze(axis)), loss(pred, t)) # masks may keep an axis for the class
    close(p, pred.softmax(axis))
    assert torch.equal(loss.decodes(p), pred.argmax(axis)) and loss.y_int and loss.reduction=='mean'

def test_dice_of_large_areas_in_half_precision():
    pred,t = torch.zeros(1, 2, 400, 400, dtype=torch.float16),torch.zeros(1, 400, 400).long()
    assert float(DiceLoss(reduction='none')(pred, t)[0,0])==pytest.approx(1-2*.5/1.5, rel=1e-3)

def test_dice_of_vectors():
    close(DiceLoss(reduction='none', smooth=0)(torch.zeros(4, 2), torch.tensor([0,1,1,0])),
        torch.tensor([[1/3,1],[1,1/3],[1,1/3],[1/3,1]]))

@pytest.mark.parametrize('f,error,match', [
    (lambda: FocalLoss(gamma=-1), ValueError, '`gamma` is 0 or more, but got -1'),
    (lambda: FocalLossFlat(gamma=float('nan')), ValueError, 'but got nan'),
    (lambda: DiceLoss(reduction='avg'), ValueError, "one of `mean`, `sum`, `none`, but got 'avg'"),
    (lambda: DiceLoss()(torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4)), ValueError,
        r'one target for all scores in axis 1, but predictions are \(2, 3, 4, 4\), and targets \(2, 3, 4, 4\)')])
def test_bad_input_of_losses(f, error, match):
    with pytest.raises(error, match=match): f()

@pytest.mark.parametrize('loss',
    [FocalLoss(), FocalLossFlat(axis=1), DiceLoss(),
        lambda p,t: FocalLossFlat(axis=1)(p, t) + DiceLoss(reduction='mean')(p, t)], ids=['focal','flat','dice','both'])
def test_segmentation_learns(loss):
    torch.manual_seed(0)
    mask = (torch.rand(8, 6, 6)<.1).long()
    x = mask[:,None]+torch.randn(8, 1, 6, 6)/10
    learn = Learner(DataLoaders([(x, mask)], [(x, mask)], device='cpu'), nn.Conv2d(1, 2, 1), loss,
        lr=.3).remove_cb(ProgressCallback).fit(60)
    assert learn.recorder.losses[-1]<learn.recorder.losses[0]/2 and (learn.model(x).argmax(1)==mask).float().mean()>.99

@pytest.mark.parametrize('loss', [FocalLoss(), FocalLossFlat(), DiceLoss()], ids=lambda o: type(o).__name__)
def test_probabilities_and_losses_of_samples(loss):
    bs = [(randn(k, 3), randint(4, k)) for k in (6, 4)]
    x,y = (torch.cat(o) for o in zip(*bs))
    learn,before = Learner(DataLoaders(bs, bs, device='cpu'), nn.Linear(3, 4),
        loss).remove_cb(ProgressCallback),loss.reduction
    preds,_,losses = learn.get_preds(with_loss=True)
    loss.reduction,out = 'none',learn.model(x).detach()
    expected = loss(out, y)
    loss.reduction = before
    close(preds, out.softmax(1)); close(losses, expected if expected.ndim==1 else expected.mean(1))

@pytest.mark.parametrize('loss,index',
    [(F.cross_entropy, -100), (nn.CrossEntropyLoss(ignore_index=255), 255), (CrossEntropyLossFlat(ignore_index=3), 3),
        (FocalLossFlat(ignore_index=0), 0), (FocalLoss(), -100),
    (partial(F.cross_entropy, ignore_index=0), 0), (None, -100), (nn.MSELoss(), -100), (DiceLoss(), -100),
    (lambda p,t: 0, -100)], ids=lambda o: '')
def test_what_a_loss_ignores(loss, index): assert ignore_index_of(loss)==index

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('shape,targ', [((4,3), (4,3)), ((4,1), (4,)), ((4,), (4,1)), ((2,3,4), (2,3,4))])
@pytest.mark.parametrize('loss,f,act,to_targ',
    [(MSELossFlat, F.mse_loss, None, torch.Tensor.float), (L1LossFlat, F.l1_loss, None, torch.Tensor.float),
    (BCEWithLogitsLossFlat, F.binary_cross_entropy_with_logits, torch.sigmoid, torch.Tensor.float),
    (BCEWithLogitsLossFlat, F.binary_cross_entropy_with_logits, torch.sigmoid, torch.Tensor.long),
    (BCEWithLogitsLossFlat, F.binary_cross_entropy_with_logits, torch.sigmoid, torch.Tensor.bool),
    (BCELossFlat, F.binary_cross_entropy, None, torch.Tensor.long)], ids=lambda o: getattr(o, '__name__', ''))
def test_elementwise_losses(loss, f, act, to_targ, shape, targ, reduction):
    pred,t = randn(*shape),randint(2, *targ)
    if loss is BCELossFlat: pred = pred.sigmoid()
    l = loss(reduction=reduction)
    close(l(pred, to_targ(t)), f(pred.reshape(-1), t.float().reshape(-1), reduction=reduction))
    close(l.activation(pred), act(pred) if act else pred)

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
@pytest.mark.parametrize('kwargs', [dict(pos_weight=pw3), dict(weight=w3, pos_weight=pw3)], ids=lambda o: '-'.join(o))
def test_bce_with_weights_per_class(kwargs, reduction):
    pred,t = randn(4, 3),randint(2, 4, 3)
    close(BCEWithLogitsLossFlat(reduction=reduction, **kwargs)(pred, t),
        F.binary_cross_entropy_with_logits(pred, t.float(), reduction=reduction, **kwargs))

@pytest.mark.parametrize('reduction', ['mean','sum','none'])
def test_bce_of_few_yes_flattens_with_one_weight(reduction):
    pred,t,w = randn(4, 1),randint(2, 4),torch.tensor([2.])
    close(BCEWithLogitsLossFlat(reduction=reduction, pos_weight=w)(pred, t),
        F.binary_cross_entropy_with_logits(pred[:,0], t.float(), reduction=reduction, pos_weight=w))

@pytest.mark.parametrize('loss,f', [(BCEWithLogitsLossFlat, F.binary_cross_entropy_with_logits),
    (BCELossFlat, F.binary_cross_entropy)])
def test_weights_of_classes_samples_and_elements_are_those_of_torch(loss, f):
    pred,t = torch.rand(4, 3),randint(2, 4, 3).float()
    for w in (torch.rand(3), torch.rand(4, 3), torch.rand(4, 1)): close(loss(weight=w)(pred, t), f(pred, t, weight=w))
    w = torch.rand(4)
    close(loss(w)(pred[:,:1], t[:,0]), f(pred[:,0], t[:,0], weight=w))
    w,image = torch.rand(3),torch.rand(2, 3, 5)
    close(loss(weight=w, axis=1)(image, (image>.5).long()), f(image, (image>.5).float(), weight=w[:,None]))

@pytest.mark.parametrize('thresh', [.2, .5, .8])
def test_bce_decides_by_probability(thresh):
    loss,pred = BCEWithLogitsLossFlat(thresh=thresh),randn(20, 3)
    assert torch.equal(loss.decodes(loss.activation(pred)), pred.sigmoid()>thresh)

def test_reduction_can_be_changed():
    loss,pred,t = CrossEntropyLossFlat(weight=w3),randn(4, 3),randint(3, 4)
    loss.reduction = 'none'
    close(loss(pred, t), F.cross_entropy(pred, t, weight=w3, reduction='none'))
    assert loss.reduction=='none' and 'none' in repr(loss)

@pytest.mark.parametrize('loss',
    [CrossEntropyLossFlat(), LabelSmoothingCrossEntropyFlat(), FocalLoss(), FocalLossFlat(), DiceLoss(),
        BCEWithLogitsLossFlat(), MSELossFlat(), L1LossFlat()], ids=lambda o: type(o).__name__)
def test_losses_have_gradients_and_can_be_copied_and_pickled(loss):
    import copy,pickle
    pred = randn(4, 3).requires_grad_()
    t = randint(3, 4) if loss.y_int else randint(2, 4, 3)
    for l in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert repr(l)
        (g,) = torch.autograd.grad(l(pred, t), pred)
        assert torch.isfinite(g).all() and g.abs().sum()>0

x = randn(6, 3)
@pytest.mark.parametrize('loss,act,dec', [
    (nn.CrossEntropyLoss(), x.softmax(1), x.argmax(1)), (F.cross_entropy, x.softmax(1), x.argmax(1)),
    (partial(F.cross_entropy, label_smoothing=.1), x.softmax(1), x.argmax(1)),
    (nn.NLLLoss(), x.exp(), x.argmax(1)), (nn.BCEWithLogitsLoss(), x.sigmoid(), x>0),
    (F.binary_cross_entropy_with_logits, x.sigmoid(), x>0),
    (nn.BCELoss(), x, x>.5), (nn.MSELoss(), x, x), (F.mse_loss, x, x), (lambda p,t: 0, x, x), (None, x, x),
    (CrossEntropyLossFlat(), x.softmax(1), x.argmax(1)), (FocalLoss(), x.softmax(1), x.argmax(1)),
    (DiceLoss(), x.softmax(1), x.argmax(1)),
    (SimpleNamespace(activation=torch.exp, decodes=torch.round), x.exp(), x.exp().round()),
], ids=lambda o: getattr(o, '__name__', type(o).__name__) if not isinstance(o, torch.Tensor) else '')
def test_activation_and_decision(loss, act, dec):
    close(activation_of(loss)(x), act)
    assert torch.equal(decodes_of(loss)(activation_of(loss)(x)), dec)

# Metrics: values
sk = pytest.importorskip('sklearn.metrics')
def np_(*o): return [v.double().numpy() if v.is_floating_point() else v.numpy() for v in o]
def flat(f): return lambda *o: f(*[v.reshape(-1) for v in o])
def rank(a): return np.array([(a<v).sum() + ((a==v).sum()+1)/2 for v in a])

classes,reals = (lambda n: (randn(n, 6), randint(6, n))),(lambda n: (randn(n, 1), randn(n, 1)))
positive = lambda n: (randn(n).abs(), randn(n).abs())
ties = lambda n: (randint(3, n).float(), randint(4, n).float())
values = { # metric, data, value of all data, of (predictions, targets)
    'accuracy':            (lambda: accuracy, classes, lambda p,t: sk.accuracy_score(t, p.argmax(1))),
    'error_rate':          (lambda: error_rate, classes, lambda p,t: 1-sk.accuracy_score(t, p.argmax(1))),
    'top_k_accuracy':      (lambda: top_k_accuracy, classes,
        lambda p,t: sk.top_k_accuracy_score(t, p, k=5, labels=range(6))),
    'top 2':               (lambda: partial(top_k_accuracy, k=2), classes,
        lambda p,t: sk.top_k_accuracy_score(t, p, k=2, labels=range(6))),
    'mse':                 (lambda: mse, reals, flat(lambda p,t: sk.mean_squared_error(t, p))),
    'mae':                 (lambda: mae, reals, flat(lambda p,t: sk.mean_absolute_error(t, p))),
    'msle':                (lambda: msle, positive, flat(lambda p,t: sk.mean_squared_log_error(t, p))),
    'rmse':                (lambda: rmse, reals, flat(lambda p,t: sk.root_mean_squared_error(t, p))),
    'exp_rmspe':           (lambda: exp_rmspe, reals,
        flat(lambda p,t: np.sqrt(np.mean(((np.exp(t)-np.exp(p))/np.exp(t))**2)))),
    'R2Score':             (lambda: R2Score, reals, flat(lambda p,t: sk.r2_score(t, p))),
    'ExplainedVariance':   (lambda: ExplainedVariance, reals, flat(lambda p,t: sk.explained_variance_score(t, p))),
    'PearsonCorrCoef':     (lambda: PearsonCorrCoef, reals, flat(lambda p,t: np.corrcoef(p, t)[0,1])),
    'SpearmanCorrCoef':    (lambda: SpearmanCorrCoef, reals, flat(lambda p,t: np.corrcoef(rank(p), rank(t))[0,1])),
    'Spearman with ties':  (lambda: SpearmanCorrCoef, ties, flat(lambda p,t: np.corrcoef(rank(p), rank(t))[0,1])),
    'to_np':               (lambda: AccumMetric(sk.f1_score, dim_argmax=-1, to_np=True, invert_arg=True,
        average='macro'), classes, lambda p,t: sk.f1_score(t, p.argmax(1), average='macro')),
    'thresh=0':            (lambda: AccumMetric(lambda p,t: (p==t.bool()).float().mean(), thresh=0),
        lambda n: (randn(n), randint(2, n)), lambda p,t: np.mean((p>0)==(t>0))),
    'activation':          (lambda: AccumMetric(sk.roc_auc_score, activation=torch.sigmoid, to_np=True,
        invert_arg=True), lambda n: (randn(n), torch.arange(n)%2), lambda p,t: sk.roc_auc_score(t, p)),
}

def evaluate(metric, pred, targ, sizes):
    (m,) = mk_metrics(metric)
    m.reset()
    for p,t in zip(pred.split(sizes), targ.split(sizes), strict=True):
        m.accumulate(SimpleNamespace(pred=p, yb=(t,), y=t))
    return float(m.value)

def parts(n):
    return st.lists(st.integers(0, n-1),
        max_size=6).map(lambda cuts: [b-a for a,b in zip([0, *sorted({*cuts}-{0})], [*sorted({*cuts}-{0}), n])])

def test_a_function_of_scores_gets_them_for_all_samples_as_for_a_batch():
    def of_kept(pred, targ): return (pred.argmax(-1)==targ)[targ!=-100].float().mean()
    pred,targ = torch.randn(9, 4),torch.arange(9)%4
    targ[::3] = -100
    m = AccumMetric(of_kept)
    for rows in (slice(5), slice(5, 9)): m.accumulate(SimpleNamespace(pred=pred[rows], yb=(targ[rows],)))
    assert m.value==of_kept(pred, targ)


@pytest.mark.parametrize('name', values)
def test_metrics_however_the_data_are_cut(name):
    make,data,f = values[name]
    pred,targ = data(24)
    expected = float(f(*np_(pred, targ)))
    assert evaluate(make(), pred, targ, [24])==pytest.approx(expected, abs=1e-5, rel=1e-5)
    @given(parts(24))
    def cut(sizes):
        assert sum(sizes)==24 and evaluate(make(), pred, targ, sizes)==pytest.approx(expected, abs=1e-5, rel=1e-5)
    cut()

def test_arguments_that_are_zero_count():
    m = AccumMetric(lambda p,t: p, dim_argmax=0, flatten=False)
    m.accumulate(SimpleNamespace(pred=torch.tensor([[1.,2.],[3.,0.]]), yb=(torch.zeros(2),), y=torch.zeros(2)))
    assert m.value.tolist()==[1, 0]

@pytest.mark.parametrize('axis', [1, -1, 2])
def test_classes_on_any_axis(axis):
    pred,targ = randn(4, 5, 6),randint(5, 4, 6) if axis==1 else randint(6, 4, 5)
    expected = (pred.argmax(axis)==targ).float().mean()
    close(accuracy(pred, targ, axis=axis), expected); close(error_rate(pred, targ, axis=axis), 1-expected)
    close(top_k_accuracy(pred, targ, k=1, axis=axis), expected)

def test_shapes_that_differ_but_fit():
    close(mse(torch.ones(4,1), torch.zeros(4)), torch.tensor(1.))
    close(mae(torch.ones(4), torch.zeros(4,1)), torch.tensor(1.))

@pytest.mark.parametrize('f', [accuracy, error_rate, mse, mae, msle])
def test_shapes_that_do_not_fit(f):
    with pytest.raises(ValueError, match=r'as many elements, but their shapes are \(.*\) and \(5,\)'):
        f(torch.ones(4, 2), torch.zeros(5).long())

def test_averages_of_many_bf16_batches_are_not_rounded():
    m = AvgMetric(lambda p,t: p.mean())
    v = torch.tensor([[.3]], dtype=torch.bfloat16)
    for _ in range(2000): m.accumulate(SimpleNamespace(pred=v, yb=(v,)))
    assert float(m.value)==pytest.approx(float(v), rel=1e-4) and m.total.dtype==torch.float64

def test_no_batch_no_value():
    for m in mk_metrics([mae, rmse, AvgLoss, AvgSmoothLoss]): assert m.value is None and repr(m)

def test_smooth_loss_is_a_debiased_average():
    m,xs = AvgSmoothLoss(beta=.9),[3., 1., 4.]
    for o in xs: m.accumulate(SimpleNamespace(loss=torch.tensor(o), yb=()))
    assert float(m.value)==pytest.approx(np.average(xs, weights=[.81, .9, 1]))
    m.reset(); assert m.value is None

@pytest.mark.parametrize('dtype,acc',
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32),
        (torch.float64, torch.float64)], ids=str)
def test_smooth_loss_is_not_rounded_to_the_type_of_the_loss(dtype, acc):
    m,xs = AvgSmoothLoss(),(1+torch.rand(300, generator=torch.Generator().manual_seed(0))).to(dtype)
    for o in xs: m.accumulate(SimpleNamespace(loss=o, yb=()))
    assert (m.value.dtype==acc
        and float(m.value)==pytest.approx(np.average(xs.double().numpy(), weights=.98**np.arange(300)[::-1]), rel=1e-5))

@pytest.mark.filterwarnings('ignore:The training loss is nan')
@pytest.mark.parametrize('reduction', ['mean','sum'])
@pytest.mark.parametrize('ignored', [slice(8, 12), slice(16, None)], ids=['in the middle','at the end'])
def test_the_smooth_loss_is_the_train_loss(reduction, ignored):
    targ = torch.arange(18)%3
    targ[ignored] = -100
    dl = DataLoader(TensorDataset(torch.randn(18, 2, generator=torch.Generator().manual_seed(0)), targ), 4)
    learn = Learner(DataLoaders(dl, device='cpu'), nn.Linear(2, 3), nn.CrossEntropyLoss(reduction=reduction),
        metrics=dict(smooth=AvgSmoothLoss()), lr=.01, default_cbs=False,
        cbs=[TrainEvalCallback, Recorder(train_metrics=True)])
    row = learn.fit(1).recorder[-1]
    assert row.train_smooth==pytest.approx(row.train_loss, rel=1e-5, nan_ok=True)

# Metrics: how they are given
class Mine(Metric):
    higher_is_better = True
    def reset(self): self.n = 0
    def accumulate(self, learn): self.n += len(learn.y)
    @property
    def value(self): return self.n

@pytest.mark.parametrize('lacks,match', [('reset', 'has no `reset`: values of one phase would add to'),
    ('accumulate', 'has no `accumulate`: it takes in `learn.pred`'), ('value', 'has no `value`'),
    ('@', '`Own.value` is read, and not called: write `@property` above it')])
def test_a_metric_that_lacks_a_part_is_refused_before_training(lacks, match):
    parts = dict(reset=lambda self: None, accumulate=lambda self, learn: None, value=property(lambda self: 1))
    parts.pop(lacks, None)
    if lacks=='@': parts['value'] = lambda self: 1
    for m in type('Own', (Metric,), parts), type('Own', (Metric,), parts)():
        with pytest.raises(TypeError, match=match): mk_metrics(m)
    assert mk_metrics(Mine)[0].name=='mine'

def test_accumulate_of_predictions_and_targets_is_told_what_it_gets():
    class Own(Mine):
        def accumulate(self, pred, targ): pass
    with pytest.raises(TypeError) as e: synth_learner(metrics=Own).fit(1)
    assert any('`accumulate(self, learn)` gets the learner' in o for o in e.value.__notes__)

class Foreign:
    "From somewhere else, with the same methods"
    name,n = 'foreign',0
    def reset(self): self.n = 0
    def accumulate(self, learn): self.n += 1
    @property
    def value(self): return self.n

@pytest.mark.parametrize('given,names', [
    (accuracy, ['accuracy']), ([mae, mse], ['mae','mse']), ((mae, mse), ['mae','mse']), (rmse, ['rmse']),
    ([rmse()], ['rmse']), (R2Score, ['r2_score']), (Mine, ['mine']), (Mine(), ['mine']),
    (partial(top_k_accuracy, k=2), ['top_k_accuracy']),
    (partial(partial(top_k_accuracy, k=2), axis=1), ['top_k_accuracy']), (nn.L1Loss(), ['l1_loss']),
    (CrossEntropyLossFlat(), ['cross_entropy_loss_flat']),
    ([mae, mae, mae], ['mae','mae_2','mae_3']),
    ([partial(top_k_accuracy, k=1), partial(top_k_accuracy, k=2)], ['top_k_accuracy','top_k_accuracy_2']),
    (dict(a=mae, b=mse), ['a','b']), (dict(a=rmse), ['a']),
    (AvgMetric(mae, name='MAE'), ['MAE']), (Foreign(), ['foreign']), (ValueMetric(lambda: 3, name='three'), ['three']),
    (None, []), ([], []),
], ids=lambda o: '-'.join(o) if isinstance(o, list) and o and isinstance(o[0], str) else '')
def test_metrics_in_every_form(given, names):
    ms = mk_metrics(given)
    assert [o.name for o in ms]==names
    x,y = (randn(4, 3),randint(3, 4)) if any(k in str(names) for k in ('acc','entropy')) else (randn(4, 1),randn(4, 1))
    model = nn.Linear(x.shape[1], x.shape[1])
    learn = Learner(DataLoaders([(x, y)], [(x, y)], device='cpu'), model,
        F.cross_entropy if y.dtype==torch.long else F.mse_loss, metrics=given).remove_cb(ProgressCallback).fit(1)
    assert (list(learn.results.names)==['valid_loss', *names]
        and learn.recorder.metric_names==['epoch','train_loss','valid_loss',*names,'time'])
    assert all(np.isfinite(o) for o in learn.results)

def test_a_metric_from_elsewhere_may_have_no_state_before_its_reset():
    class Late(Foreign):
        @property
        def value(self): return self.count
        def reset(self): self.count = 0
    assert mk_metrics(Late())[0].name=='foreign'

@pytest.mark.parametrize('o,name', [(nn.MSELoss(), 'mse_loss'), (nn.BCEWithLogitsLoss(), 'bce_with_logits_loss')],
    ids=['MSE','BCE'])
def test_names_of_objects_are_as_those_of_callbacks(o, name): assert mk_metrics(o)[0].name==name

def test_the_same_metric_can_serve_two_learners():
    m = AvgMetric(mae)
    a,b = mk_metrics([m, mae]),mk_metrics([mae])
    assert [o.name for o in a]==['mae','mae_2'] and b[0].name=='mae' and rmse() is not rmse()
    ms = [partial(mae), mae]
    assert [o.name for o in mk_metrics(ms)]==[o.name for o in mk_metrics(ms)]==['mae','mae_2']

def test_names_do_not_change_when_metrics_are_given_again():
    learn = synth_learner(metrics=[AvgMetric(mae), AvgMetric(mae)])
    learn.metrics = learn.metrics
    assert [o.name for o in learn.metrics]==['mae','mae_2']

@pytest.mark.parametrize('metric,better',
    [(accuracy, True), (error_rate, False), (top_k_accuracy, True), (partial(top_k_accuracy, k=2), True), (mse, False),
        (mae, False), (msle, False), (rmse, False), (exp_rmspe, False),
    (R2Score, True), (ExplainedVariance, True), (PearsonCorrCoef, True), (SpearmanCorrCoef, True), (AvgLoss, False),
    (AvgSmoothLoss, False), (lambda p,t: 0, None),
    (AvgMetric(lambda p,t: 0, higher_is_better=True), True), (AvgMetric(accuracy, higher_is_better=False), False),
    (AccumMetric(accuracy), True), (Mine, True)], ids=lambda o: '')
def test_each_metric_declares_its_direction(metric, better): assert mk_metrics(metric)[0].higher_is_better is better

def test_functions_are_not_changed_by_their_metrics():
    before = dict(vars(mae))
    mk_metrics(dict(other=mae)); mk_metrics([mae, mae])
    assert vars(mae)==before and mk_metrics(mae)[0].name=='mae'

def test_metrics_of_a_model_with_several_outputs():
    class Two(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
        def forward(self, x): return self.l(x),x
    learn = Learner(DataLoaders([(randn(2,1), randn(2,1))], [(torch.ones(2,1), torch.zeros(2,1))], device='cpu'), Two(),
        lambda p,t: F.mse_loss(p[0], t), metrics=lambda p,t: mae(p[1], t)).remove_cb(ProgressCallback)
    assert learn.fit(1).results[1]==1.

def test_find_bs():
    for b,n in [(torch.zeros(3,2), 3), ((torch.zeros(3),), 3), (dict(a=torch.zeros(4)), 4),
            ([dict(a=[torch.zeros(2)])], 2), (torch.tensor(1.), 1), ((), None), ((1, 'a'), None),
            ((torch.tensor(2.), torch.zeros(3)), 3), (dict(scale=torch.tensor(2.), x=[torch.zeros(3)]), 3),
            (Sides(torch.tensor(2.), torch.zeros(3)), 3), (np.zeros((3,2)), 3), ((np.zeros(5), torch.zeros(3)), 3)]:
        assert find_bs(b)==n

def test_a_list_in_a_batch_has_samples_or_fields_as_default_collate_makes_them():
    def zeros(*lens): return [torch.zeros(o, 4) for o in lens]
    collate = torch.utils.data.default_collate
    for part,n in [(zeros(5,2,1), 3), (zeros(5,5,5), 5), (zeros(5), 5), ([torch.tensor(o) for o in range(3)], 3),
            ([np.zeros(5), np.zeros(2), np.zeros(1)], 3), ([dict(label=torch.tensor(1))], 1),
            ([dict(boxes=o, label=torch.tensor(1)) for o in zeros(5,5,5)], 3),
            ([(o, 'a') for o in zeros(5,2)], 2), ([Sides(o, 1) for o in zeros(5,2)], 2),
            ([(o,) for o in zeros(5,5)], 5), ([dict(boxes=o) for o in zeros(5,2)], 2),
            (collate([[dict(a=torch.zeros(2)), dict(a=torch.zeros(3))]]*5), 5),
            ([['a'], zeros(5)], 5), (zeros(0,3), 2), ([torch.tensor(1.), torch.zeros(5)], 5), ([dict(a='x')]*3, None),
            (collate([(torch.zeros(2), dict(a=1))]*5), 5), (collate([(dict(a=1.), dict(b=1.))]*5), 5)]:
        assert find_bs((part,))==n and find_bs(dict(x=part))==n
    pair = collate([(dict(a=1.), dict(a=1.))]*5)
    assert find_bs(pair)==5 # a batch, as the loader gives it

@dataclass
class Sides: left:object; right:object

def target(v, y): return v,y # a number for all samples comes first
@pytest.mark.parametrize('make,target_of', [(target, lambda v,y: y), (lambda v,y: (y.numpy(),), torch.as_tensor),
    (lambda v,y: (Sides(v, y),), lambda o: o.right)], ids=['number first','array','dataclass'])
def test_a_short_batch_counts_by_its_samples_whatever_targets_are_made_of(make, target_of):
    x,y = torch.randn(9, 3),torch.randn(9)
    def loss(pred, *yb): return (pred[:,0]-target_of(*yb)).square().mean()
    batches = [(x[o], *make(torch.tensor(2.), y[o])) for o in (slice(8), slice(8, 9))]
    learn = Learner(DataLoaders(batches, batches, device='cpu', n_inp=1), nn.Linear(3, 1), loss, metrics=loss)
    with torch.no_grad(): right = (learn.model(x)[:,0]-y).square().mean().item()
    assert [*dict(learn.validate()).values()]==pytest.approx([right, right])

# What a loss says of its mean
@pytest.mark.parametrize('loss,expected',
    [(nn.CrossEntropyLoss(), 'mean'), (nn.CrossEntropyLoss(reduction='sum'), 'sum'),
        (partial(F.cross_entropy, reduction='sum'), 'sum'), (CrossEntropyLossFlat(reduction='sum'), 'sum'),
        (DiceLoss(reduction='sum'), 'sum'), (DiceLoss(), 'mean'),
    (F.cross_entropy, 'mean'), (lambda p,y: p.sum(), 'mean'), (partial(partial(F.mse_loss, reduction='sum')), 'sum'),
    (None, 'mean')], ids=shown)
def test_reduction_of(loss, expected): assert reduction_of(loss)==expected

def test_items_of():
    y,w = torch.tensor([[0,2],[-100,1]]),torch.tensor([.5, 2., 4.])
    for loss,expected in ((nn.CrossEntropyLoss(), 3), (F.cross_entropy, 3), (CrossEntropyLossFlat(weight=w), 6.5),
            (nn.NLLLoss(w), 6.5), (FocalLoss(weight=w), 6.5), (FocalLossFlat(), 3),
            (partial(F.cross_entropy, weight=w, ignore_index=2), None)):
        if expected is None: assert items_of(loss, y.clamp(0)).item()==3 # 0, 0 and 1
        else: assert items_of(loss, y).item()==expected
    for loss,targs,n in ((nn.MSELoss(), (y,), 4), (nn.CrossEntropyLoss(), (torch.rand(2,3),), 2),
            (nn.BCEWithLogitsLoss(), (y,), 4), (LabelSmoothingCrossEntropy(), (y,), 3), (DiceLoss(), (y,), 2)):
        assert items_of(loss, *targs)==n
    for loss,targs in ((nn.CrossEntropyLoss(), ()), (nn.CrossEntropyLoss(), (y,y)), (lambda p,t: 0, (y,)), (None, (y,)),
            (LabelSmoothingCrossEntropy(weight=w), (y,))):
        assert items_of(loss, *targs) is None
    pred = torch.randn(6, 3, generator=gen)
    y = torch.tensor([0,1,2,2,-100,1])
    # it is what the sum is divided by
    for loss in (nn.CrossEntropyLoss(w), nn.CrossEntropyLoss(w, label_smoothing=.2), FocalLoss(weight=w)):
        assert loss(pred, y).item()==pytest.approx(
            (type(loss)(weight=w, reduction='sum',
                **(dict(label_smoothing=loss.label_smoothing) if isinstance(loss, nn.CrossEntropyLoss) else {}))(pred,
                y)/items_of(loss, y)).item(), rel=1e-5)

# Mistakes
@pytest.mark.parametrize('make,match',
    [(lambda: CrossEntropyLossFlat(wieght=None),
        '`CrossEntropyLossFlat` has no argument `wieght`. Did you mean `weight`'),
        (lambda: CrossEntropyLossFlat(axs=1), '`axs`. Did you mean `axis`'),
        (lambda: BCEWithLogitsLossFlat(tresh=.3), 'Did you mean `thresh`'),
    (lambda: MSELossFlat(axi=1), 'has no argument `axi`. Did you mean `axis`'),
    (lambda: BaseLoss(nn.CrossEntropyLoss, fltten=True), 'Did you mean `flatten`'),
    (lambda: FocalLoss(gama=1), '`FocalLoss` has no argument `gama`. Did you mean `gamma`'),
    (lambda: FocalLossFlat(gama=1), 'Did you mean `gamma`'),
    (lambda: LabelSmoothingCrossEntropy(epss=.1), 'Did you mean `eps`'),
    (lambda: LabelSmoothingCrossEntropyFlat(epss=.1),
        '`LabelSmoothingCrossEntropyFlat` has no argument `epss`. Did you mean `eps`'),
        (lambda: DiceLoss(smoth=1), 'Did you mean `smooth`')])
def test_misspelt_arguments_of_losses(make, match):
    with pytest.raises(TypeError, match=match): make()

@pytest.mark.parametrize('k', [3,5])
def test_the_top_of_all_classes_is_told(k):
    match = f'is 1 whatever the model predicts: `k` is {k}, and there are 3 classes'
    with pytest.warns(UserWarning, match=match) as told:
        data = DataLoaders(*[[(randn(4, 2), randint(3, 4))]*2]*2, device='cpu')
        learn = Learner(data, nn.Linear(2, 3), nn.CrossEntropyLoss(), metrics=partial(top_k_accuracy, k=k)).fit(2)
    assert [o[-1] for o in learn.recorder.values]==[1,1] and [o.filename for o in told]==[__file__]*len(told)

@pytest.mark.parametrize('f', [accuracy, error_rate, top_k_accuracy])
@pytest.mark.parametrize('shape,axis', [((4,1), -1), ((4,1,5), 1)])
def test_one_score_is_no_class(f, shape, axis):
    with pytest.raises(ValueError,
            match=rf'predictions have shape \({", ".join(map(str, shape))}\), with one score in axis {axis}: '
            rf'`accuracy_multi` is for scores that say yes or no'):
        f(torch.randn(shape), torch.zeros(shape[:1]+shape[2:]).long(), axis=axis)

def test_targets_that_are_no_classes():
    for targ,lo,hi in ((torch.full((4,5), 255), 255, 255), (torch.tensor([[0,2,1,-1,2]]*4), -1, 2)):
        with pytest.raises(ValueError,
                match=f'Targets are classes from 0 to 2, as there are 3 scores for each, but go from {lo} to {hi}'):
            DiceLoss()(torch.randn(4,3,5), targ)

@pytest.mark.parametrize('cls', [BCELossFlat, MSELossFlat, L1LossFlat])
def test_flat_losses_of_numbers_are_classes(cls):
    loss = pickle.loads(pickle.dumps(cls(reduction='sum')))
    assert isinstance(loss, cls) and repr(loss)==f"{cls.__name__}(axis=-1, reduction='sum')"
    with pytest.raises(TypeError, match=f'`{cls.__name__}` has no argument `reducton`. Did you mean `reduction`'):
        cls(reducton='sum')

@pytest.mark.parametrize('cls', [CrossEntropyLossFlat, MSELossFlat, BCEWithLogitsLossFlat])
@pytest.mark.parametrize('kwargs,match', [(dict(reduction='x'), '`reduction`'), (dict(weight=[1.,2.]), '`weight`')])
def test_an_argument_that_torch_would_fail_with_later_is_refused(cls, kwargs, match):
    with pytest.raises((TypeError,ValueError), match=match): cls(**kwargs)

def test_settings_of_cross_entropy_are_checked_where_they_are_given():
    with pytest.raises(ValueError, match='`label_smoothing`'): CrossEntropyLossFlat(label_smoothing=3)
    with pytest.raises(TypeError, match='`ignore_index` is a whole number'): CrossEntropyLossFlat(ignore_index='x')

@pytest.mark.parametrize('reduction', ['mean','sum'])
@pytest.mark.parametrize('shape,axis', [((4,3), -1), ((4,5,3), -1), ((4,3,5), 1), ((2,3,4,5), 1)])
def test_cross_entropy_of_probabilities(shape, axis, reduction):
    pred,targ = randn(*shape),randn(*shape).softmax(axis)
    loss = CrossEntropyLossFlat(axis=axis, reduction=reduction)
    close(loss(pred, targ), F.cross_entropy(pred.movedim(axis, 1), targ.movedim(axis, 1), reduction=reduction))
    assert items_of(loss, targ)==targ.numel()//3

@pytest.mark.parametrize('score', [R2Score, ExplainedVariance, PearsonCorrCoef])
def test_a_batch_of_nothing_adds_nothing_to_a_score(score):
    x,y = randn(8, 2),randn(8, 2)
    def value(*sizes):
        m = score()
        for a,b in zip(x.split(sizes), y.split(sizes)): m.accumulate(SimpleNamespace(pred=a, yb=(b,), y=b))
        return m.value
    assert value(4,0,4)==pytest.approx(value(8)) and score().value is None

def test_targets_of_8_bits_are_not_compared_with_numbers_of_8_bits():
    "-100 is no class, though torch makes 156 of it there"
    targ = torch.arange(150, 160).to(torch.uint8)
    pred = torch.eye(200)[targ.long()]
    pred[0] = pred[6] # predicts 156 of a 150
    for f,expected in (accuracy, .9), (error_rate, .1), (top_k_accuracy, .9):
        assert float(f(pred, targ))==pytest.approx(expected)==float(f(pred, targ.long()))
    loss_func = nn.CrossEntropyLoss()
    assert items_of(loss_func, targ)==10==items_of(nn.CrossEntropyLoss(weight=torch.ones(200)), targ)
    for m in (F1Score(average='micro'), BrierScore(), AvgMetric(accuracy)):
        expected = float(m(pred, targ.long(), loss_func=loss_func))
        assert float(m(pred, targ, loss_func=loss_func))==pytest.approx(expected)
    eight = LabelSmoothingCrossEntropy()(pred, targ)
    torch.testing.assert_close(eight, LabelSmoothingCrossEntropy()(pred, targ.long()))

# Pairs of the wrong elements
@pytest.mark.parametrize('shape', [(6,1), (6,)])
def test_the_top_classes_are_compared_with_one_target_each(shape):
    pred,targ = randn(6, 3),randint(3, 6)
    expected = (pred.topk(2).indices==targ[:,None]).any(1).float().mean()
    close(top_k_accuracy(pred, targ.view(shape), k=2), expected)

def test_the_top_classes_of_pixels_may_have_targets_with_an_axis_of_length_1():
    pred,targ = randn(2, 5, 3, 4),randint(5, 2, 3, 4)
    expected = (pred.topk(2, dim=1).indices==targ[:,None]).any(1).float().mean()
    for t in (targ, targ[:,None]): close(top_k_accuracy(pred, t, k=2, axis=1), expected)
    with pytest.raises(ValueError, match='as many elements'): top_k_accuracy(pred, targ[:1,:1,:1], k=2, axis=1)

@pytest.mark.parametrize('loss,pred,targ', [(MSELossFlat(), (2,3,4), (2,4,3)), (L1LossFlat(), (1,6), (6,2)),
    (BCEWithLogitsLossFlat(), (2,3), (3,2)), (CrossEntropyLossFlat(), (2,3,4,5), (2,4,3)),
    (DiceLoss(), (2,3,4,5), (2,5,4)), (DiceLoss(axis=-1), (2,4,5,3), (5,4,2))], ids=str)
def test_flat_losses_refuse_other_shapes_as_the_metrics_do(loss, pred, targ):
    with pytest.raises(ValueError, match=r'must have the same shape, but have \('):
        loss(randn(*pred), randint(2, *targ))

@pytest.mark.parametrize('shape', [(2,20), (2,1,4,5), (2,4,5,1), (2,1,20), (40,)])
def test_dice_takes_axes_of_length_1_and_several_axes_as_one(shape):
    x,y = randn(2, 3, 4, 5),randint(3, 2, 4, 5)
    close(DiceLoss()(x, y.view(shape)), DiceLoss()(x, y))

def test_flat_losses_take_axes_of_length_1_and_several_axes_as_one():
    for a,b in (((4,1), (4,)), ((4,1,3), (4,3,1)), ((2,3,4), (2,12)), ((2,3,4), (2,1,12)), ((6,1,4), (2,3,4))):
        x,y = randn(*a),randn(*b)
        close(MSELossFlat()(x, y), F.mse_loss(x.flatten(), y.flatten()))

def test_one_channel_in_the_axis_of_classes_is_compared_with_the_same_pixel():
    x,y = randn(2, 1, 4, 5),randn(2, 4, 5)
    close(MSELossFlat(axis=1)(x, y), F.mse_loss(x[:,0], y))

@pytest.mark.parametrize('loss,f',
    [(BCEWithLogitsLossFlat, F.binary_cross_entropy_with_logits), (MSELossFlat, F.mse_loss)])
@pytest.mark.parametrize('axis', [1,'negative'])
@pytest.mark.parametrize('pred,targ', [((2,3,5,1), (2,3,5)), ((2,3,5), (2,3,5,1)), ((2,3,5), (1,2,3,5)),
    ((2,3,4,5), (2,3,20)), ((2,1,4,5), (2,4,5)), ((2,1,4,5), (2,1,4,5)), ((2,3,3,1), (2,3,3)),
    ((2,3,4,5), (2,3,4,5))], ids=str)
def test_numeric_targets_with_other_axes_are_compared_with_their_own_elements(loss, f, axis, pred, targ):
    x,y = randn(*pred),randint(2, *targ).float()
    close(loss(axis=1 if axis==1 else 1-len(pred))(x, y), f(x.flatten(), y.flatten()))

def test_numeric_targets_whose_classes_are_last_may_lack_an_axis_of_length_1():
    x,y = randn(2, 3, 5, 1),randn(2, 5, 3)
    close(MSELossFlat(axis=1)(x, y), F.mse_loss(x[...,0], y.movedim(-1, 1)))
    for axis,pred in ((0, (3,3,5)), (1, (2,4,1,4)), (1, (2,4,4,1)), (0, (3,1,3))):
        x = randn(*pred).movedim(axis, -1)
        y = randn(*x.shape)
        close(MSELossFlat(axis=axis)(x.movedim(-1, axis), y), F.mse_loss(x, y))

def test_numeric_targets_may_be_rows_of_classes():
    for pred,targ in (((2,3,5), (10,3)), ((2,3,5,7), (70,3)), ((2,3,5,7), (2,35,3))):
        x = randn(*pred)
        y = randn(*targ)
        close(MSELossFlat(axis=1)(x, y), F.mse_loss(x.movedim(1, -1).reshape(-1, 3), y.reshape(-1, 3)))

def test_flat_numeric_targets_are_refused_where_classes_are_not_last():
    for shape in ((30,), (6,5), (10,)):
        with pytest.raises(ValueError, match=r'same shape, but have \(2, 3, 5\) and'):
            MSELossFlat(axis=1)(randn(2, 3, 5), randn(*shape))

@pytest.mark.parametrize('shape', [(24,), (1,24), (24,1)])
def test_packed_class_targets_may_have_an_axis_of_length_1(shape):
    x,y = randn(4, 6, 7),randint(7, 24)
    close(CrossEntropyLossFlat()(x, y.view(shape)), F.cross_entropy(x.view(24, 7), y))

def test_top_k_accuracy_of_no_sample_is_nan():
    assert top_k_accuracy(randn(0, 7), torch.zeros(0, dtype=torch.long), k=2).isnan()

@pytest.mark.parametrize('f', [mse, mae, msle])
def test_errors_of_halves_do_not_overflow_and_targets_may_be_booleans(f):
    x,y = torch.tensor([300.,1.]),torch.tensor([0.,1.])
    close(f(x.half(), y.half()), f(x, y))
    close(f(x, y.bool()), f(x, y))

@pytest.mark.parametrize('make', [lambda: BCEWithLogitsLossFlat(thresh=2), lambda: F1ScoreMulti(thresh=5)])
def test_a_threshold_that_no_probability_reaches_is_refused(make):
    with pytest.raises(ValueError, match=r'`thresh` is in \[0,1\], but got'): make()
    assert F1ScoreMulti(thresh=5, sigmoid=False).thresh==5
