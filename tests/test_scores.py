"""Scores from counts, moments and ranks equal scikit-learn's of the whole epoch, and ask nothing of the device before
their value is read"""
import copy,pickle,sys
from functools import partial
from types import SimpleNamespace
import numpy as np, pytest, torch
from hypothesis import example,given,settings,strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from learner.all import *
from parts import shown
from learner.measure.scores import *
from learner.measure.measures import *

sk,tm = pytest.importorskip('sklearn.metrics'),pytest.importorskip('torchmetrics')
pytestmark = pytest.mark.filterwarnings('ignore::sklearn.exceptions.UndefinedMetricWarning')

gen = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=gen)
def randint(hi, *shape): return torch.randint(0, hi, shape, generator=gen)

@pytest.fixture(autouse=True)
def seeded(): gen.manual_seed(0) # the same numbers, whatever ran before

def batch(pred, targ, loss_func=None, loss=None):
    return SimpleNamespace(pred=pred, yb=(targ,), y=targ, xb=(pred,), loss_func=loss_func, loss=loss,
        device=torch.device('cpu'))
def fed(metric, pred, targ, sizes=None, **kwargs):
    (m,) = mk_metrics(metric)
    m.reset()
    sizes = [len(targ)] if sizes is None else sizes
    for p,t in zip(pred.split(sizes), targ.split(sizes), strict=True): m.accumulate(batch(p, t, **kwargs))
    return m
def value(*args, **kwargs):
    v = fed(*args, **kwargs).value
    return v.numpy() if isinstance(v, torch.Tensor) else v

n = 24
sizes = st.lists(st.integers(0, n-1),
    max_size=6).map(lambda cuts: [b-a for a,b in zip([0, *sorted({*cuts}-{0})], [*sorted({*cuts}-{0}), n])])
def however_cut(make, pred, targ, expected, **kwargs):
    "`make()` has the value `expected`, at once and in batches of any size"
    def near(v): return v==pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)
    assert near(value(make(), pred, targ, **kwargs))
    @settings(max_examples=settings().max_examples//3)
    @example([1]*len(targ))
    @given(sizes)
    def cut(o): assert near(value(make(), pred, targ, o, **kwargs))
    cut()

# Scores of classes
def data(n_classes, absent=()):
    "Scores and targets; the classes in `absent` are neither said nor actual"
    pred,some = randn(n, n_classes),torch.tensor([o for o in range(n_classes) if o not in absent])
    pred[:,list(absent)] -= 100
    return pred,some[randint(len(some), n)]

of_class = dict(precision=(Precision, PrecisionMulti, sk.precision_score),
    recall=(Recall, RecallMulti, sk.recall_score), f1=(F1Score, F1ScoreMulti, sk.f1_score),
    f2=(lambda **kw: FBeta(2, **kw), lambda **kw: FBetaMulti(2, **kw),
        lambda *o, **kw: sk.fbeta_score(*o, beta=2, **kw)),
    f_half=(lambda **kw: FBeta(.5, **kw), lambda **kw: FBetaMulti(.5, **kw),
        lambda *o, **kw: sk.fbeta_score(*o, beta=.5, **kw)), jaccard=(Jaccard, JaccardMulti, sk.jaccard_score))

@pytest.mark.parametrize('pos_label', [0, 1])
@pytest.mark.parametrize('k', of_class)
def test_of_two_classes(k, pos_label):
    ours,_,theirs = of_class[k]
    pred,targ = data(2)
    however_cut(lambda: ours(pos_label=pos_label), pred, targ, theirs(targ, pred.argmax(1), pos_label=pos_label))

@pytest.mark.parametrize('labels', [None, [2,0], [1,3]], ids=str)
@pytest.mark.parametrize('average', ['micro','macro','weighted'])
@pytest.mark.parametrize('absent', [(), (1,), (0,3)], ids=str)
@pytest.mark.parametrize('k', of_class)
@pytest.mark.sample(3, together=2)
def test_of_classes(k, absent, average, labels):
    ours,_,theirs = of_class[k]
    pred,targ = data(4, absent)
    however_cut(lambda: ours(average=average, labels=labels), pred, targ,
        theirs(targ, pred.argmax(1), average=average, labels=labels))

@pytest.mark.parametrize('k', of_class)
def test_a_class_that_is_said_or_actual_only_occurs(k):
    ours,_,theirs = of_class[k]
    pred,targ = torch.eye(4)[torch.tensor([0,0,2,3])],torch.tensor([0,1,1,3])
    for o in ('micro','macro','weighted'):
        assert value(ours(average=o), pred, targ)==pytest.approx(theirs(targ, pred.argmax(1), average=o))

@pytest.mark.parametrize('k', of_class)
def test_no_average_gives_all_classes(k):
    ours,_,theirs = of_class[k]
    pred,targ = data(4, (1,))
    however_cut(lambda: ours(average=None), pred, targ, theirs(targ, pred.argmax(1), average=None, labels=range(4)))

agreement = dict(
    hamming=(HammingLoss, sk.hamming_loss), balanced=(BalancedAccuracy, sk.balanced_accuracy_score),
    adjusted=(lambda: BalancedAccuracy(adjusted=True), lambda *o: sk.balanced_accuracy_score(*o, adjusted=True)),
    mcc=(MatthewsCorrCoef, sk.matthews_corrcoef), kappa=(CohenKappa, sk.cohen_kappa_score),
    some=(lambda: CohenKappa(labels=(3,0)), lambda *o: sk.cohen_kappa_score(*o, labels=[3,0])),
    linear=(lambda: CohenKappa(weights='linear'),
        lambda *o: sk.cohen_kappa_score(*o, weights='linear', labels=range(4))),
    quadratic=(lambda: CohenKappa(weights='quadratic'),
        lambda *o: sk.cohen_kappa_score(*o, weights='quadratic', labels=range(4))))

@pytest.mark.filterwarnings('ignore:y_pred contains classes')
@pytest.mark.parametrize('absent', [(), (1,), (1,2)], ids=str)
@pytest.mark.parametrize('k', agreement)
def test_agreement(k, absent):
    ours,theirs = agreement[k]
    pred,targ = data(4, absent)
    however_cut(ours, pred, targ, theirs(targ, pred.argmax(1)))

def test_agreement_where_nothing_varies():
    pred,targ = torch.tensor([[1.,0]]).expand(4, 2),torch.tensor([0,0,1,0])
    assert [value(o, pred, targ) for o in (MatthewsCorrCoef, CohenKappa, BalancedAccuracy)]==pytest.approx([0, 0, .5])

everything = [Precision, Recall, F1Score, Jaccard]
@pytest.mark.parametrize('metric',
    [lambda axis: Recall(axis=axis, average='macro'), lambda axis: CohenKappa(axis=axis),
        lambda axis: BalancedAccuracy(axis), lambda axis: MatthewsCorrCoef(axis),
    lambda axis: HammingLoss(axis), lambda axis: RocAuc(axis), lambda axis: BrierScore(axis),
    lambda axis: DiceMulti(axis), lambda axis: foreground_acc(axis=axis)])
@pytest.mark.parametrize('axis', [1, 2, -1])
def test_classes_on_any_axis(axis, metric):
    pred,targ = randn(6, 4, 5, 3),randint(3, 6, 4, 5)
    assert value(metric(axis), pred.movedim(-1, axis), targ,
        [4,2])==pytest.approx(value(metric(-1), pred.reshape(-1, 3), targ.reshape(-1)))

@pytest.mark.parametrize('loss_func', [F.cross_entropy, CrossEntropyLossFlat(ignore_index=2)], ids=['default','given'])
@pytest.mark.parametrize('metric',
    [lambda: F1Score(average='macro'), lambda: Precision(average='micro'), CohenKappa, MatthewsCorrCoef,
        BalancedAccuracy, HammingLoss, lambda: DiceMulti(-1), lambda: foreground_acc(axis=-1)])
def test_what_the_loss_ignores_does_not_count(metric, loss_func):
    pred,targ,out = randn(n, 4),randint(4, n),ignore_index_of(loss_func)
    if out==-100: targ[::3] = out
    kept = targ!=out
    assert 5<kept.sum()<n
    assert value(metric(), pred, targ, [10,14],
        loss_func=loss_func)==pytest.approx(value(metric(), pred[kept], targ[kept]))

# Scores of labels
@pytest.mark.parametrize('labels', [None, [2,0]], ids=str)
@pytest.mark.parametrize('average', ['micro','macro','weighted','samples',None])
@pytest.mark.parametrize('k', of_class)
@pytest.mark.parametrize('thresh,sigmoid', [(.5,True), (.8,True), (.2,False)])
@pytest.mark.sample(6, together=2)
def test_of_labels(thresh, sigmoid, k, average, labels):
    _,ours,theirs = of_class[k]
    pred,targ = randn(n, 4),randint(2, n, 4)
    # a label that is never given, one that never is, and samples without any
    pred[:,3] = -1; targ[:,1] = 0; pred[:4] = -1; targ[:4] = 0
    said = (pred.sigmoid() if sigmoid else pred)>thresh
    however_cut(lambda: ours(average=average, labels=labels, thresh=thresh, sigmoid=sigmoid), pred,
        targ.float() if sigmoid else targ.bool(), theirs(targ, said, average=average, labels=labels))

@pytest.mark.parametrize('ours,theirs',
    [(HammingLossMulti, lambda t,p: sk.hamming_loss(t, p)),
        (MatthewsCorrCoefMulti, lambda t,p: sk.matthews_corrcoef(t.reshape(-1), p.reshape(-1))),
    (lambda: accuracy_multi, lambda t,p: (t==p).float().mean().item())])
def test_over_all_labels(ours, theirs):
    pred,targ = randn(n, 4),randint(2, n, 4)
    however_cut(ours, pred, targ, theirs(targ, pred.sigmoid()>.5))

@pytest.mark.parametrize('make', [HammingLossMulti, F1ScoreMulti, MatthewsCorrCoefMulti, RocAucMulti, APScoreMulti,
    lambda: from_sklearn('r2_score', flatten=False)])
def test_a_prediction_of_one_sample_may_have_no_axes(make):
    "A model that squeezes drops that of the samples, where the last batch has one"
    pred,targ = randn(9),(torch.arange(9)%2).float()
    m,whole = make(),value(make(), pred, targ)
    m.reset()
    for o in (slice(4), slice(4, 8), slice(8, 9)): m.accumulate(batch(pred[o].squeeze(), targ[o]))
    assert float(m.value)==pytest.approx(float(whole))

def test_one_label():
    pred,targ = randn(n),randint(2, n)
    for p,t in ((pred, targ), (pred[:,None], targ), (pred[:,None], targ[:,None])):
        assert (value(F1ScoreMulti, p, t, [20,4])==pytest.approx(sk.f1_score(targ, pred>0))
            and value(RocAucMulti, p, t, [20,4])==pytest.approx(sk.roc_auc_score(targ, pred)))

# Areas
areas = dict(dice=(Dice, DiceMulti, lambda a,b,both: 2*both/(a+b)),
    jaccard=(JaccardCoeff, JaccardCoeffMulti, lambda a,b,both: both/(a+b-both)))
@pytest.mark.parametrize('k', areas)
def test_areas(k):
    binary,multi,f = areas[k]
    pred,mask = randn(n, 4, 3, 3),randint(4, n, 3, 3)
    pred[:,2] = -9; mask[mask==2] = 1 # a class that does not occur
    def area(said, mask, c): return f((said==c).sum(), (mask==c).sum(), ((said==c)&(mask==c)).sum()).item()
    however_cut(multi, pred, mask, np.mean([area(pred.argmax(1), mask, c) for c in (0,1,3)]))
    however_cut(binary, pred[:,:2], mask.clamp(max=1), area(pred[:,:2].argmax(1), mask.clamp(max=1), 1))
    assert value(multi, pred, mask[:,None])==value(multi, pred, mask)

def test_areas_without_foreground():
    assert [value(o, torch.eye(2)[torch.zeros(4).long()], torch.zeros(4))
        for o in (Dice, JaccardCoeff, foreground_acc)]==[0,0,0]

@pytest.mark.parametrize('bkg', [0, 2])
def test_foreground_accuracy(bkg):
    pred,mask = randn(n, 3, 4, 4),randint(3, n, 4, 4)
    mask[:12] = bkg # batches without any foreground
    right = (pred.argmax(1)==mask)[mask!=bkg].float().mean().item()
    however_cut(lambda: foreground_acc(bkg_idx=bkg), pred, mask, right)

# Numbers
def pearson(p, t): return np.corrcoef(p, t)[0,1]
@pytest.mark.parametrize('scale,offset', [(1., 0.), (1., 1e4), (1e3, -1e6)])
@pytest.mark.parametrize('ours,theirs',
    [(R2Score, lambda p,t: sk.r2_score(t, p)), (ExplainedVariance, lambda p,t: sk.explained_variance_score(t, p)),
        (PearsonCorrCoef, pearson),
    (rmse, lambda p,t: sk.root_mean_squared_error(t, p))])
def test_moments(ours, theirs, scale, offset):
    targ = randn(n).double()*scale+offset
    pred = targ + randn(n)*scale/2
    however_cut(ours, pred, targ, theirs(pred.numpy(), targ.numpy()))

def test_moments_of_sorted_data_in_single_precision():
    targ = torch.arange(10_000.)+1e5 # batches whose means are far apart
    pred = targ+randn(10_000)
    p,t = pred.double().numpy(),targ.double().numpy()
    assert 1-value(R2Score, pred, targ, [64]*156+[16])==pytest.approx(1-sk.r2_score(t, p), rel=1e-6)
    assert 1-value(PearsonCorrCoef, pred, targ, [64]*156+[16])==pytest.approx(1-pearson(p, t), rel=1e-5)

def test_targets_may_be_integers():
    assert value(R2Score, torch.tensor([1.,2,4]), torch.tensor([[1],[2],[3]]))==pytest.approx(.5)

@pytest.mark.parametrize('n_classes', [2, 4])
def test_brier(n_classes):
    pred,targ = randn(n, n_classes),randint(n_classes, n)
    p = pred.double().softmax(1)
    however_cut(BrierScore, pred, targ,
        sk.brier_score_loss(targ, p[:,1]) if n_classes==2 else sk.brier_score_loss(targ, p, labels=range(n_classes)))

def test_brier_of_labels():
    pred,targ = randn(n, 3),randint(2, n, 3)
    p = pred.double().sigmoid()
    however_cut(BrierScoreMulti, pred, targ, np.mean([sk.brier_score_loss(targ[:,i], p[:,i]) for i in range(3)]))
    however_cut(lambda: BrierScoreMulti(sigmoid=False), pred.sigmoid(), targ,
        np.mean([sk.brier_score_loss(targ[:,i], p[:,i]) for i in range(3)]))

# Ranks
def ties(*shape): return randint(4, *shape).float()

@pytest.mark.parametrize('scores', [randn, ties], ids=['all differ','many equal'])
def test_areas_under_curves(scores):
    targ = torch.arange(n)%2
    pred = scores(n, 2)
    for ours,theirs in ((RocAucBinary, sk.roc_auc_score), (APScoreBinary, sk.average_precision_score)):
        however_cut(ours, pred, targ, theirs(targ, pred[:,1]-pred[:,0]))
    pred,targ = scores(n, 3),torch.stack([targ, targ.roll(3)*randint(2, n), randint(2, n)], 1)
    for average in ('macro','weighted','micro',None):
        for ours,theirs in ((RocAucMulti, sk.roc_auc_score), (APScoreMulti, sk.average_precision_score)):
            however_cut(lambda: ours(average=average), pred, targ, theirs(targ, pred, average=average))

@pytest.mark.parametrize('average', ['macro','weighted','micro',None])
def test_area_of_each_class_against_the_rest(average):
    pred,targ = randn(n, 4),torch.arange(n)%4
    however_cut(lambda: RocAuc(average=average), pred, targ,
        sk.roc_auc_score(targ, pred.softmax(1), multi_class='ovr', average=average))

def test_classes_that_cannot_be_ranked_are_left_out():
    pred,targ = randn(n, 4),torch.arange(n)%3 # none of the last
    p = pred.softmax(1)
    assert value(RocAuc, pred, targ)==pytest.approx(np.mean([sk.roc_auc_score(targ==i, p[:,i]) for i in range(3)]))
    targ = F.one_hot(targ, 4)
    targ[:,0] = 1
    assert value(RocAucMulti, pred,
        targ)==pytest.approx(np.mean([sk.roc_auc_score(targ[:,i], pred[:,i]) for i in (1,2)]))
    assert value(APScoreMulti, pred,
        targ)==pytest.approx(np.mean([sk.average_precision_score(targ[:,i], pred[:,i]) for i in (0,1,2)]))
    assert np.isnan(value(RocAucBinary, pred[:,:2], torch.zeros(n)))

nan = float('nan')
of_ranks = dict(roc_binary=(RocAucBinary, 2), roc=(RocAuc, 2), roc_multi=(partial(RocAucMulti, 'weighted'), 2),
    roc_micro=(partial(RocAucMulti, 'micro'), 2), ap_binary=(APScoreBinary, 2), ap_multi=(APScoreMulti, 2),
    spearman=(SpearmanCorrCoef, 1))
@pytest.mark.parametrize('k', of_ranks)
@pytest.mark.parametrize('lost', [slice(None), slice(-1, None)], ids=['all','one'])
def test_a_dead_model_has_no_area_and_no_rank_correlation(k, lost):
    "Whatever the order of the samples"
    make,n_scores = of_ranks[k]
    pred,targ = randn(n, n_scores),(torch.arange(n)>=n//2).long()
    if make not in (RocAucBinary, APScoreBinary, RocAuc): targ = torch.stack([targ]*n_scores, 1)
    pred[lost] = nan
    assert np.isnan(value(make(), pred, targ)) and np.isnan(value(make(), pred.flip(0), targ.flip(0)))

def test_a_label_without_scores_leaves_no_average():
    pred,targ = randn(n, 3),randint(2, n, 3)
    pred[0,1] = nan
    each = value(RocAucMulti(None), pred, targ)
    assert np.isnan(value(RocAucMulti, pred, targ)) and np.isnan(each).tolist()==[False, True, False]

@pytest.mark.parametrize('metric', [RocAuc, RocAucBinary, APScoreBinary, HammingLoss])
def test_there_is_no_score_where_no_target_counts(metric):
    for pred,targ in ((randn(6, 2), torch.full((6,), -100)), (z(0, 2), z(0).long())):
        assert np.isnan(value(metric, pred, targ))

@pytest.mark.parametrize('metric', [RocAucMulti, APScoreMulti, HammingLossMulti])
def test_there_is_no_score_of_labels_without_samples(metric): assert np.isnan(value(metric, z(0, 3), z(0, 3)))

def test_sure_predictions_keep_their_order():
    z,targ = torch.tensor([40.,41,42,43]),torch.tensor([0,1,0,1])
    assert ((z.sigmoid()==1).all()
        and value(RocAucBinary, torch.stack([-z, z], 1), targ)==value(RocAucMulti, z, targ)
        ==value(RocAuc, torch.stack([-z, z], 1), targ)==.75)

@pytest.mark.parametrize('metric', [SpearmanCorrCoef, RocAucBinary, RocAuc, R2Score, F1Score, BrierScore, rmse],
    ids=lambda o: o.__name__)
def test_half_precision(metric):
    pred,targ = randn(n, 2),torch.arange(n)%2
    if metric in (SpearmanCorrCoef, R2Score, rmse): pred,targ = pred[:,0],randn(n)
    low = pred.bfloat16()
    assert value(metric, low, targ, [20,4])==pytest.approx(value(metric, low.float(), targ), rel=1e-5)

# Words
def texts(n_words, length, same=.6):
    targ = randint(n_words, 10, length)
    said = torch.where(torch.rand(10, length, generator=gen)<same, targ, randint(n_words, 10, length))
    return F.one_hot(said, n_words).float(),targ

def bleu(said, targ):
    from torchmetrics.functional.text import bleu_score
    def words(o): return [' '.join(f'w{i}' for i in s if i>=0) for s in o.tolist()]
    return float(bleu_score(words(said), [[o] for o in words(targ)]))

@pytest.mark.parametrize('n_words,length', [(3,12), (50,12), (10,5), (10,4)])
def test_bleu(n_words, length):
    pred,targ = texts(n_words, length, .8)
    expected = bleu(pred.argmax(2), targ)
    for cuts in ([10], [3,7], [1]*10):
        assert value(CorpusBLEUMetric, pred, targ, cuts)==pytest.approx(expected, rel=1e-5)
    assert value(CorpusBLEUMetric(axis=1), pred.movedim(2, 1), targ)==pytest.approx(expected, rel=1e-5)
    with pytest.raises(TypeError, match='positional argument'): CorpusBLEUMetric(5000) # the number of words, in fastai

def test_bleu_of_short_and_padded_texts():
    pred,targ = texts(6, 12, .9)
    # too short
    assert value(CorpusBLEUMetric, pred[:,:10], targ)==pytest.approx(bleu(pred[:,:10].argmax(2), targ), rel=1e-5)
    # no four words
    assert value(CorpusBLEUMetric, pred[:,:3], targ[:,:3])==0 and value(CorpusBLEUMetric, pred[:,:1], targ[:,:1])==0
    said = pred.argmax(2)
    for i in range(10): targ[i,6+i//2:] = said[i,6+i//2:] = -100
    assert value(CorpusBLEUMetric, pred, targ, [4,6])==pytest.approx(bleu(said, targ), rel=1e-5)

def test_perplexity_is_of_words_that_count():
    pred,targ,total,words = randn(9, 5, 7),randint(7, 9, 5),0.,0
    for i in range(9): targ[i,1+i%5:] = -100
    targ[8] = -100 # a batch without words
    m = Perplexity()
    for p,t in zip(pred.split(4), targ.split(4)):
        m.accumulate(batch(p, t, CrossEntropyLossFlat(), F.cross_entropy(p.reshape(-1, 7), t.reshape(-1))))
        total,words = total+F.cross_entropy(p.reshape(-1, 7), t.reshape(-1), reduction='sum'),words+(t>=0).sum()
    assert (float(m.value)==pytest.approx(float((total/words).exp()), rel=1e-5) and m.name=='perplexity'
        and m.higher_is_better is False)
    assert Perplexity().value is None and perplexity().name=='perplexity'

# Parts of a loss
class Both:
    def __call__(self, pred, targ):
        self.near,self.far = F.mse_loss(pred, targ),F.l1_loss(pred, targ); return self.near+self.far

@pytest.mark.parametrize('given,names',
    [('near,far', ['near','far']), ('near, far', ['near','far']), (['far'], ['far']), (('near,far', 'a,b'), ['a','b'])],
    ids=str)
def test_parts_of_a_loss(given, names):
    bs = [(randn(k, 1), randn(k, 1)) for k in (4, 3)]
    learn = Learner(DataLoaders(bs, bs, device='cpu'), nn.Linear(1, 1), Both(),
        metrics=[mse, *(LossMetrics(*given) if isinstance(given, tuple) else LossMetrics(given))]).remove_cb(
        ProgressCallback).fit(1)
    x,y = (torch.cat(o) for o in zip(*bs))
    with torch.no_grad():
        expected = {k:v.item()
            for k,v in zip(('near','far','a','b'), 2*(F.mse_loss(learn.model(x), y), F.l1_loss(learn.model(x), y)))}
    assert dict(learn.results)=={'valid_loss': pytest.approx(expected['near']+expected['far'], rel=1e-5),
        'mse': pytest.approx(expected['near'], rel=1e-5), **{k:pytest.approx(expected[k], rel=1e-5) for k in names}}

# Functions of scikit-learn
def test_functions_of_sklearn():
    pred,targ = randn(n, 4),randint(4, n)
    for f in ('cohen_kappa_score', sk.cohen_kappa_score):
        m = fed(from_sklearn(f, weights='quadratic'), pred, targ, [20,4])
        assert (m.value==pytest.approx(sk.cohen_kappa_score(targ, pred.argmax(1), weights='quadratic'))
            and m.name=='cohen_kappa_score' and type(m.value) is float)
    assert value(from_sklearn('f1_score', axis=1, average='macro'), pred[:,:,None],
        targ[:,None])==pytest.approx(sk.f1_score(targ, pred.argmax(1), average='macro'))
    assert value(from_sklearn('f1_score', thresh=.7), pred[:,0],
        targ>1)==pytest.approx(sk.f1_score(targ>1, pred[:,0].sigmoid()>.7))
    assert value(from_sklearn('f1_score', thresh=0, activation=lambda x: x), pred[:,0],
        targ>1)==pytest.approx(sk.f1_score(targ>1, pred[:,0]>0))
    assert value(from_sklearn('max_error', is_class=False), pred[:,0].bfloat16(),
        targ.float())==pytest.approx(sk.max_error(targ, pred[:,0].bfloat16().float()))
    assert value(from_sklearn('roc_auc_score', is_class=False, activation=lambda x: x.softmax(1), flatten=False,
        multi_class='ovo', max_fpr=None), pred, targ,
        [20,4])==pytest.approx(sk.roc_auc_score(targ, pred.softmax(1), multi_class='ovo'))

@pytest.mark.parametrize('f,better',
    [('f1_score', True), ('hamming_loss', False), ('max_error', False), ('matthews_corrcoef', True),
        ('mean_gamma_deviance', False), (lambda t,p: 0, None)], ids=shown)
def test_names_of_sklearn_tell_the_direction(f, better):
    m = from_sklearn(f)
    assert (m.higher_is_better is better and (callable(f) or m.name==f)
        and from_sklearn(f, name='x', higher_is_better=False).name=='x'
        and from_sklearn(f, higher_is_better=False).higher_is_better is False)

def test_without_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, 'sklearn.metrics', None)
    with pytest.raises(ImportError,
            match=r"`from_sklearn\('f1_score'\)` needs scikit-learn: `pip install scikit-learn`"):
        from_sklearn('f1_score')

# Objects of torchmetrics
from torchmetrics.classification import MulticlassAccuracy,MulticlassAUROC,MulticlassConfusionMatrix,MulticlassF1Score

class Whole:
    "Something else with those three methods, whose state changes in place"
    def __init__(self): self.seen,self.at = [],None
    def update(self, pred, targ): self.seen.append(targ)
    def compute(self): return float(torch.cat(self.seen).float().mean())
    def reset(self): self.seen.clear()
    def to(self, device): self.at = device; return self

@pytest.mark.parametrize('make,theirs', [
    (lambda: MulticlassF1Score(3), lambda p,t: sk.f1_score(t, p.argmax(1), average='macro')),
    (lambda: MulticlassAUROC(3), lambda p,t: sk.roc_auc_score(t, p, multi_class='ovr')),
    (lambda: MulticlassAccuracy(3, average='micro')*100, lambda p,t: 100*sk.accuracy_score(t, p.argmax(1))),
    (Whole, lambda p,t: t.float().mean().item())], ids=['counts','lists','compound','other'])
def test_torchmetrics(make, theirs):
    pred,targ = randn(n, 3),torch.arange(n)%3
    pred[:,1] += targ==1
    pred = pred.softmax(1) # of single samples, torchmetrics would have to guess whether they are probabilities
    however_cut(make, pred, targ, theirs(pred, targ))
    m = fed(make(), pred, targ, [20,4])
    first = m.value
    m.reset(); assert m.value is None and repr(m)
    for p,t in zip(pred.split(8), targ.split(8)): m.accumulate(batch(p, t))
    assert float(m.value)==pytest.approx(float(first))

def test_the_object_that_was_given_stays_as_it_is():
    m,w = MulticlassAccuracy(3),Whole()
    w.seen = [torch.ones(2)] # from before
    pred,targ = randn(n, 3),randint(3, n)
    assert fed(w, pred, targ).value==pytest.approx(targ.float().mean().item()) and len(w.seen)==1 and w.at is None
    fed(m, pred, targ)
    assert m.update_count==0 and not m.tp.any()

def test_torchmetrics_go_to_the_device_of_the_predictions():
    m = fed(Whole(), randn(n, 3), randint(3, n))
    assert m.running.at==torch.device('cpu')

acc,confused = (lambda: MulticlassAccuracy(3, average='micro')),(lambda: MulticlassConfusionMatrix(3))
@pytest.mark.parametrize('given,names',
    [(acc(), ['multiclass_accuracy']), ([acc(), acc()], ['multiclass_accuracy','multiclass_accuracy_2']),
        (dict(a=acc()), ['a']), ([Whole()], ['whole']), ([Whole, accuracy], ['whole','accuracy']),
    (tm.MetricCollection([acc(), MulticlassF1Score(3)]), ['multiclass_accuracy','multiclass_f1_score']),
    ([mae, tm.MetricCollection(dict(Acc=acc(), f1=MulticlassF1Score(3)))], ['mae','Acc','f1']),
    (tm.MetricCollection([acc()], prefix='my_'), ['my_MulticlassAccuracy']),
    (dict(all=tm.MetricCollection([acc(), MulticlassF1Score(3)])),
        ['all_multiclass_accuracy','all_multiclass_f1_score']),
    (dict(all=tm.MetricCollection([acc()])), ['all'])],
    ids=lambda o: '-'.join(o) if isinstance(o, list) and isinstance(o[0], str) else '')
def test_names_of_torchmetrics(given, names): assert [o.name for o in mk_metrics(given)]==names

def test_a_partial_of_a_class_is_a_metric():
    from functools import partial
    (m,) = mk_metrics(partial(F1Score, average='macro'))
    assert (type(m) is F1Score and m.average=='macro'
        and mk_metrics([partial(partial(MulticlassAccuracy, 3), average='micro')])[0].name=='multiclass_accuracy')

def test_direction_of_torchmetrics():
    assert [o.higher_is_better for o in mk_metrics([acc(), tm.MeanSquaredError(), Whole()])]==[True, False, None]

def learner(metrics, cbs=(), train_metrics=False, n_batches=3):
    g = torch.Generator().manual_seed(1)
    def bs(*sizes): return [(torch.randn(k, 4, generator=g), torch.randint(0, 3, (k,), generator=g)) for k in sizes]
    torch.manual_seed(0)
    return Learner(DataLoaders(bs(*[6]*n_batches, 2), bs(6, 6, 3), device='cpu'), nn.Linear(4, 3),
        CrossEntropyLossFlat(), metrics=metrics, cbs=[TrainEvalCallback, Recorder(train_metrics=train_metrics), *cbs],
        default_cbs=False)

def test_torchmetrics_in_a_fit():
    learn = learner(tm.MetricCollection([acc(), MulticlassF1Score(3)])).fit(2)
    x,y = (torch.cat(o) for o in zip(*learn.dls.valid))
    said = learn.model(x).argmax(1)
    assert (learn.results.multiclass_accuracy==pytest.approx(sk.accuracy_score(y, said))
        and learn.results.multiclass_f1_score==pytest.approx(sk.f1_score(y, said, average='macro')))
    assert learn.recorder.metric_names[3:5]==['multiclass_accuracy','multiclass_f1_score']

def test_a_value_may_be_a_matrix():
    learn = learner([confused(), accuracy]).fit(1)
    cm = learn.results.multiclass_confusion_matrix
    assert (cm.shape==(3,3) and cm.sum()==15 and cm.diagonal().sum()/15==pytest.approx(learn.results.accuracy)
        and repr(learn.metrics[0]))

# What all have in common
c3,two,one,labels = [lambda k: (randn(k, 3), randint(3, k))],[lambda k: (randn(k, 2), randint(2, k))],[
    lambda k: (randn(k), randn(k))],[lambda k: (randn(k, 3), randint(2, k, 3))]
area,text = [lambda k: (randn(k, 2, 3, 3), randint(2, k, 3, 3))],[lambda k: (randn(k, 6, 3), randint(3, k, 6))]
streaming = [ # keep sums only: how to make it, data, whether higher is better
    *[(m, two[0], True) for m in (Precision, Recall, F1Score, lambda: FBeta(2), Jaccard, BalancedAccuracy,
        MatthewsCorrCoef, CohenKappa)], (HammingLoss, two[0], False), (BrierScore, c3[0], False),
    *[(m, labels[0], True) for m in (PrecisionMulti, RecallMulti, F1ScoreMulti, lambda: F1ScoreMulti(average='samples'),
        lambda: FBetaMulti(2), JaccardMulti, MatthewsCorrCoefMulti, lambda: accuracy_multi)],
    (HammingLossMulti, labels[0], False), (BrierScoreMulti, labels[0], False),
    *[(m, area[0], True) for m in (foreground_acc, Dice, DiceMulti, JaccardCoeff, JaccardCoeffMulti)],
    *[(m, one[0], True) for m in (R2Score, ExplainedVariance, PearsonCorrCoef)], (rmse, one[0], False),
    (exp_rmspe, one[0], False), (Perplexity, text[0], False), (CorpusBLEUMetric, text[0], True),
    (lambda: accuracy, c3[0], True), (lambda: mae, one[0], False), (AvgLoss, c3[0], False)]
gathering = [(RocAuc, c3[0], True), (RocAucBinary, two[0], True), (RocAucMulti, labels[0], True),
    (APScoreBinary, two[0], True), (APScoreMulti, labels[0], True), (SpearmanCorrCoef, one[0], True),
    (lambda: AccumMetric(mae), one[0], False), (lambda: from_sklearn('accuracy_score'), c3[0], True)]
foreign = [(lambda: MulticlassF1Score(3), c3[0], True), (lambda: MulticlassAUROC(3), c3[0], True), (Whole, c3[0], None)]
def named(o): return mk_metrics(o())[0].name if callable(o) and not hasattr(o, '__code__') else ''
every = pytest.mark.parametrize('make,data,better', [*streaming, *gathering, *foreign],
    ids=lambda o: getattr(o, '__name__', ''))

class Reads(TorchDispatchMode):
    "Operators that wait for the device"
    names = '_local_scalar_dense','is_nonzero','equal','nonzero','masked_select','bincount','_unique2','unique_dim', \
        'unique_consecutive','item'
    def __init__(self): super().__init__(); self.seen = []
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if (name in self.names or (name in ('index','index_put_')
                and any(o is not None and o.dtype is torch.bool for o in args[1]))):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))

@pytest.mark.parametrize('make,data,better', [*streaming, *gathering], ids=lambda o: getattr(o, '__name__', ''))
def test_no_batch_waits_for_the_device(make, data, better):
    (m,) = mk_metrics(make())
    with Reads() as r:
        for _ in range(3): p,t = data(4); m.accumulate(batch(p, t, loss=p.mean()))
    assert not r.seen and np.isfinite(float(m.value))

def test_the_counter_sees_reads():
    t = torch.arange(3)
    for f in (lambda: t.sum().item(), lambda: t[t>1], lambda: t.unique(), lambda: t.bincount(), lambda: bool(t[0])):
        with Reads() as r: f()
        assert r.seen

class Repeatable(TorchDispatchMode):
    "Refuses what `torch.use_deterministic_algorithms` refuses on a GPU"
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        res,name = func(*args, **(kwargs or {})),func.overloadpacket.__name__
        if name in ('histc','kthvalue') or (name=='cumsum' and res.is_floating_point()):
            raise RuntimeError(f'{name} does not have a deterministic implementation')
        return res

@pytest.mark.parametrize('make,data,better', [*streaming, *gathering], ids=lambda o: getattr(o, '__name__', ''))
def test_metrics_are_computed_with_deterministic_algorithms(make, data, better):
    (m,) = mk_metrics(make())
    p,t = data(4)
    with Repeatable(): m.accumulate(batch(p, t, loss=p.mean())); assert np.isfinite(float(m.value))

def attrs(m):
    "What a metric has gathered, without notes that have not been added up"
    if hasattr(m, 'settle'): m.settle()
    return vars(m)
def state(m): return copy.deepcopy(vars(m))
def same(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys()==b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(same, a, b))
    return True if callable(a) or isinstance(a, Whole) else a==b

@every
def test_kept_state_stays(make, data, better):
    "Who keeps `vars(m)` can go on from there, whatever happened in between"
    (m,),bs = mk_metrics(make()),[data(k) for k in (5, 4, 3)]
    def go(o): m.accumulate(batch(*o, loss=o[0].mean()))
    for o in bs: go(o)
    expected = float(m.value)
    m.reset(); go(bs[0]); go(bs[1])
    kept = vars(m).copy()
    before = state(m)
    m.reset(); go(bs[2]); go(bs[0]) # a phase inside
    assert same({k:v for k,v in kept.items() if k!='running'}, {k:v for k,v in before.items() if k!='running'})
    vars(m).clear(); vars(m).update(kept)
    go(bs[2])
    assert float(m.value)==pytest.approx(expected, rel=1e-6)

@pytest.mark.parametrize('make,data,better', [*streaming, *gathering], ids=lambda o: getattr(o, '__name__', ''))
def test_accumulating_changes_nothing_in_place(make, data, better):
    (m,) = mk_metrics(make())
    for k in (5, 4): o = data(k); m.accumulate(batch(*o, loss=o[0].mean()))
    kept,before = vars(m).copy(),state(m)
    o = data(3); m.accumulate(batch(*o, loss=o[0].mean()))
    assert same(kept, before) and not same(vars(m), before)

plain = int,float,str,bool,type(None),torch.Tensor
@pytest.mark.parametrize('make,data,better', [*streaming, *gathering], ids=lambda o: getattr(o, '__name__', ''))
def test_what_is_accumulated_is_plain(make, data, better):
    "A checkpoint can hold it: tensors, numbers, and lists of them; the rest does not change"
    (m,) = mk_metrics(make())
    fresh = dict(vars(m))
    o = data(4); m.accumulate(batch(*o, loss=o[0].mean()))
    changed = {k:v for k,v in attrs(m).items() if k not in fresh or v is not fresh[k]}
    assert changed and all(isinstance(v, plain) or all(isinstance(p, plain) for p in v) for v in changed.values())
    (other,) = mk_metrics(make())
    vars(other).update(changed)
    o = data(3)
    for k in (m, other): k.accumulate(batch(*o, loss=o[0].mean()))
    assert float(m.value)==float(other.value)

def elements(o):
    return o.numel() if isinstance(o, torch.Tensor) else sum(map(elements, o)) if isinstance(o, (list,tuple)) else 0
@pytest.mark.parametrize('make,data,better', streaming, ids=lambda o: getattr(o, '__name__', ''))
def test_memory_is_constant(make, data, better):
    (m,),seen = mk_metrics(make()),[]
    for _ in range(20):
        o = data(9); m.accumulate(batch(*o, loss=o[0].mean())); seen.append(elements(list(attrs(m).values())))
    assert len(set(seen))==1 and seen[0]<=16

def test_notes_of_averages_take_little_memory():
    "Two numbers a batch until the value is read, in few tensors"
    m = AvgMetric(mae)
    for i in range(1000): m.accumulate(batch(torch.full((3,), float(i)), torch.zeros(3)))
    assert len(m._noted)<64 and len(m._bundles)==1000//64 and elements([m._noted, m._bundles])==1000
    assert m.value.item()==499.5 and m.count==3000 and not m._noted and not m._bundles

@pytest.mark.parametrize('every', [1, 7, 64, 65, 1000])
def test_the_sum_does_not_depend_on_when_it_is_read(every):
    "To the last bit: a fit that was stopped reads it in between"
    torch.manual_seed(0)
    data,ms = [(torch.randn(1+i%5), torch.zeros(1+i%5)) for i in range(300)],[AvgMetric(mae), AvgMetric(mae)]
    for i,o in enumerate(data):
        for m in ms: m.accumulate(batch(*o))
        if i%every==every-1: assert ms[1].value is not None
    assert ms[0].value.item()==ms[1].value.item()
    assert ms[0].value.item()==pytest.approx(torch.cat([p for p,_ in data]).double().abs().mean().item(), rel=1e-6)

def test_fractions_of_batches_become_numbers_of_right_ones_again():
    "The product is rounded as the fraction was; in double precision it would be 18.0000004 of 25"
    for right,n in ((18, 25), (483, 800), (7, 12)):
        m = AvgMetric(accuracy)
        for k in (right, right): m.accumulate(batch(torch.eye(2)[torch.ones(n).long()], (torch.arange(n)<k).long()))
        assert m.total.item()==2*right and m.value.item()==right/n

def test_a_function_may_write_into_what_it_returned():
    buffer,m = torch.zeros(()),AvgMetric(lambda p,t: buffer.copy_(p.mean()))
    for v in (1., 2., 6.): m.accumulate(batch(torch.full((2,), v), torch.zeros(2)))
    assert m.value.item()==3

def test_a_count_may_write_into_what_it_returned():
    n = torch.zeros(())
    m = AvgLoss(lambda learn: n.copy_(learn.pred.sum()))
    for v in (1., 3.): m.accumulate(batch(torch.full((2,), v), torch.zeros(2), loss=torch.tensor(v)))
    assert m.count==8 and m.value.item()==(1*2+3*6)/8

def test_averages_of_numbers_tensors_and_nothing():
    m = AvgMetric(lambda p,t: None)
    assert m.value is None and m.total is None and m.count==0
    nan = float('nan')
    for v,n in ((torch.tensor(2.), 1), (4., torch.tensor(3)), (torch.tensor([1.]), torch.tensor([2.])), (nan, 0),
        (torch.tensor(nan), torch.tensor(0))): m.add(v, n)
    assert m.value==pytest.approx((2+12+2)/6) and m.count==6 and m.total==16
    m.total,m.count = 2*m.total,2*m.count
    m.add(0., 12)
    assert m.value==pytest.approx(32/24)
    m.reset(); m.add(3., 2)
    assert isinstance(m.value, float) and m.value==3

@every
def test_direction_copies_and_pickles(make, data, better):
    (m,) = mk_metrics(make())
    assert m.higher_is_better is better and m.value is None and repr(m)
    o = data(6); m.accumulate(batch(*o, loss=o[0].mean()))
    for c in (copy.deepcopy(m), *([pickle.loads(pickle.dumps(m))] if type(m) is not TorchMetric else [])):
        assert float(c.value)==float(m.value) and c.name==m.name and repr(c)

def F1(): return F1Score(average='macro')
ms = [lambda: MulticlassF1Score(3), lambda: MulticlassAUROC(3), F1, CohenKappa, RocAuc,
    lambda: from_sklearn('accuracy_score'), BrierScore, lambda: accuracy, Whole]
@pytest.mark.parametrize('make', ms, ids=['tm','tm lists','f1','kappa','auc','sklearn','brier','accuracy','other'])
def test_a_validation_inside_training(make):
    "It leaves what the training phase has accumulated, and has values of its own"
    inside = []
    def look(self):
        if self.training and self.iter in (1, 2): inside.append(self.learn.validate()[1])
    plain,looking = learner(make(), train_metrics=True).fit(2),learner(make(), [Callback(after_batch=look)],
        train_metrics=True).fit(2)
    assert [list(o[:-1]) for o in looking.recorder.rows]==[list(o[:-1]) for o in plain.recorder.rows]
    assert len(inside)==4 and all(np.isfinite(inside)) and [float(o) for o in plain.recorder.rows[-1][2:3]]

@pytest.mark.parametrize('make', ms[:-1], ids=['tm','tm lists','f1','kappa','auc','sklearn','brier','accuracy'])
def test_batches_that_were_cancelled_do_not_count(make):
    def cancel(self):
        if not self.training and self.iter==1: raise CancelBatchException
    learn = learner(make(), [Callback(after_pred=cancel)]).fit(1)
    (x1,y1),_,(x3,y3) = learn.dls.valid
    with torch.no_grad(): expected = value(make(), learn.model(torch.cat([x1, x3])), torch.cat([y1, y3]))
    assert learn.results[1]==pytest.approx(float(expected), rel=1e-5)

# Axes of predictions and targets
def mean_error(pred, targ): return ((pred-targ)**2).mean()

of_numbers = [SpearmanCorrCoef, R2Score, lambda: AccumMetric(mean_error), lambda: from_sklearn('mean_squared_error')]
of_labels = [RocAucMulti, APScoreMulti, F1ScoreMulti, lambda: BrierScoreMulti(sigmoid=True),
    lambda: from_sklearn('roc_auc_score', is_class=False, average='macro')]
of_classes = [RocAuc, BrierScore, lambda: F1Score(average='macro')]
of_two = [RocAucBinary, APScoreBinary, F1Score]

def cases(metrics, *args): return [(o, *args) for o in metrics]

@pytest.mark.parametrize('make,pred,targ,n_classes', [*cases(of_numbers, (5,3), (3,5), 9),
    *cases(of_numbers, (5,2,3), (5,3,2), 9), *cases(of_labels, (5,3), (3,5), 2),
    *cases(of_classes, (4,5,3), (5,4), 3), *cases(of_two, (4,5,2), (5,4), 2)], ids=shown)
def test_targets_whose_axes_are_in_another_order_are_refused_with_their_batch(make, pred, targ, n_classes):
    with pytest.raises(ValueError, match='must have the same shape, but have'):
        make().accumulate(batch(randn(*pred), randint(n_classes, *targ)))

@pytest.mark.parametrize('make,pred,targ,others', [*cases(of_numbers, (6,1), (6,1), [(6,), (1,6)]),
    *cases(of_numbers, (4,1,3), (4,1,3), [(4,3), (4,3,1), (12,)]), *cases(of_labels[:4], (5,1), (5,1), [(5,)]),
    *cases(of_classes, (4,5,3), (4,5), [(20,), (4,5,1), (20,1), (1,4,5)]),
    *cases(of_two, (4,5,2), (4,5), [(20,), (4,5,1), (20,1), (1,4,5)])], ids=shown)
def test_axes_of_length_1_and_several_axes_as_one_change_nothing(make, pred, targ, others):
    x,y = randn(*pred),torch.arange(torch.Size(targ).numel())%(3 if make in (*of_numbers, *of_classes) else 2)
    expected = make()(x, y.view(targ))
    for shape in others: assert make()(x, y.view(shape))==pytest.approx(expected)

@pytest.mark.parametrize('average', ['macro','weighted','micro',None])
@pytest.mark.parametrize('axis', [-1,1])
def test_the_area_of_sentences_of_different_lengths_is_that_of_all_words(axis, average):
    x,y = [randn(4, n, 3) for n in (5,7,1,5)],[torch.arange(4*n).view(4, n)%3 for n in (5,7,1,5)]
    y[1][:,4:] = -100 # padding
    m = RocAuc(axis=axis, average=average)
    for p,t in zip(x, y): m.accumulate(batch(p.movedim(-1, axis), t))
    words,right = torch.cat([o.reshape(-1, 3) for o in x]),torch.cat([o.reshape(-1) for o in y])
    assert m.value==pytest.approx(RocAuc(average=average)(words[right>=0], right[right>=0]))

@pytest.mark.parametrize('make,pred,targ', [(RocAucMulti, (4,5), (4,5)),
    (lambda: from_sklearn('r2_score', flatten=False), (4,5), (4,5)), (lambda: AccumMetric(torch.dist), (4,5,2), (4,5)),
    (lambda: AccumMetric(torch.dist), (4,2), (4,5)), (lambda: AccumMetric(mean_error, flatten=False), (4,5), (4,5))],
    ids=shown)
def test_batches_that_cannot_be_put_together_are_refused_by_shape(make, pred, targ):
    m = make()
    m.accumulate(batch(randn(*pred), randint(2, *targ)))
    m.accumulate(batch(randn(3, *pred[1:]), randint(2, 3, *targ[1:])))
    with pytest.raises(ValueError, match=r"puts all batches together, which may differ in the first axis only, but one "
            r"has shape \(3, 5.*\), and the next \(4, 7.*\): pad all batches to one length, or write a `Metric`"):
        m.accumulate(batch(randn(*(7 if o==5 else o for o in pred)), randint(2, *(7 if o==5 else o for o in targ))))

# Bad input
def err(make, pred, targ):
    def _f(): m = make(); m.accumulate(batch(pred, targ)); m.value
    return _f
z = torch.zeros
@pytest.mark.parametrize('f,error,match', [
    (err(F1Score, z(4, 3), z(4)), ValueError,
        r"`F1Score\(\)` is for two classes, but predictions have 3 in axis -1: give `average='macro'`, `'micro'` or "
        r"`'weighted'`"),
    (err(Dice, z(4, 3, 2), z(4, 2)), ValueError,
        r"`Dice\(\)` is for two classes, but predictions have 3 in axis 1: `DiceMulti` averages over classes"),
    (err(JaccardCoeff, z(4, 3, 2), z(4, 2)), ValueError, "`JaccardCoeffMulti` averages over classes"),
    (err(Recall, z(4, 1), z(4)), ValueError,
        r"`recall` takes the class with the highest score, but predictions have shape \(4, 1\), with one score in "
        r"axis -1"),
    (err(CohenKappa, z(4, 3), z(5)), ValueError, r"as many elements, but their shapes are \(4,\) and \(5,\)"),
    (err(F1ScoreMulti, z(4, 3), z(4)), ValueError, r"as many elements, but their shapes are \(4, 3\) and \(4,\)"),
    (err(F1ScoreMulti, z(4, 3, 2), z(4, 3, 2)), ValueError,
        r"`f1_score_multi` is of predictions `\(bs, n_labels\)`, but their shape is \(4, 3, 2\)"),
    (err(RocAuc, z(4, 3), z(8)), ValueError, "one target for each sample, but there are 8 for 4"),
    (err(RocAucMulti, z(4, 3), z(4)), ValueError,
        r"one target for each score, but predictions are \(4, 3\), and targets \(4,\)"),
    (err(RocAuc, z(4, 1), z(4)), ValueError, r"several classes, but predictions have shape \(4, 1\), with one score in "
        "axis -1: `RocAucMulti` is for scores that say yes or no"),
    (err(APScoreBinary, z(4, 3), z(4)), ValueError,
        r"two classes, but predictions have shape \(4, 3\), with 3 in axis -1"),
        (err(R2Score, z(4), z(8)), ValueError, "as many elements"),
    (lambda: F1Score(average='makro'), ValueError,
        "`average` of `F1Score` is one of 'binary', 'micro', 'macro', 'weighted', None, but got 'makro'. Did you mean "
        "`macro`"),
    (lambda: F1ScoreMulti(average='binary'), ValueError,
        "`average` of `F1ScoreMulti` is one of 'micro', 'macro', 'weighted', 'samples', None, but got 'binary'"),
    (lambda: RocAuc(average='samples'), ValueError,
        "`average` of `RocAuc` is one of 'macro', 'weighted', 'micro', None, but got 'samples'"),
    (lambda: APScoreMulti(average='makro'), ValueError, "but got 'makro'. Did you mean `macro`"),
    (lambda: Precision(labels=[-1]), ValueError, r"`labels` are different classes, numbers from 0, but got \[-1\]"),
    (lambda: F1Score(labels=[0,0]), ValueError, r"`labels` are different classes, numbers from 0, but got \[0, 0\]"),
    (lambda: CohenKappa(labels=['a']), ValueError, "`labels` are different classes, numbers from 0, but got"),
    (lambda: F1ScoreMulti(labels=[]), ValueError, "`labels` are different classes, numbers from 0, but got"),
    (lambda: Recall(labels='ab'), TypeError, "`labels` is a list of classes, but got 'ab'"),
    (lambda: F1Score(labels={0:'cat', 1:'dog'}), TypeError,
        "`labels` is a list of classes, but got {0: 'cat', 1: 'dog'}"),
    (lambda: CohenKappa(labels={0,1}), TypeError, "`labels` is a list of classes, but got {0, 1}"),
    (err(partial(Recall, average='macro', labels=[7]), z(4, 3), z(4)), ValueError,
        r"`labels` of `Recall` are from 0 to 2, as there are 3 scores for each sample, but got \[7\]"),
    (err(partial(CohenKappa, labels=[0,3]), z(4, 3), z(4)), ValueError, "`labels` of `CohenKappa` are from 0 to 2"),
    (err(partial(F1ScoreMulti, average='samples', labels=[3]), z(4, 3), z(4, 3)), ValueError,
        "`labels` of `F1ScoreMulti` are from 0 to 2"),
    (lambda: Precision(pos_label=2), ValueError, "`pos_label` is 0 or 1, but got 2"),
    (lambda: FBeta(-1), ValueError, "`beta` is 0 or more, but got -1"),
    (lambda: FBetaMulti(-1), ValueError, "`beta` is 0 or more, but got -1"),
    (lambda: CohenKappa(weights='quadratik'), ValueError,
        "`weights` is None, 'linear' or 'quadratic', but got 'quadratik'. Did you mean `quadratic`"),
    (lambda: Recall(avrage='macro'), TypeError, '`Recall` has no argument `avrage`. Did you mean `average`'),
    (lambda: Dice(axes=1), TypeError, '`Dice` has no argument `axes`. Did you mean `axis`'),
    (lambda: RocAucMulti(averge='micro'), TypeError, '`RocAucMulti` has no argument `averge`. Did you mean `average`'),
    (lambda: AccumMetric(mae, activation='sigmoid'), TypeError,
        "`activation` is a function of predictions, such as `torch.sigmoid`, but got 'sigmoid'"),
    (lambda: from_sklearn('f1_scor'), ValueError, "`sklearn.metrics` has no `f1_scor`. Did you mean `f1_score`"),
    (lambda: from_sklearn('f1_score', averge='macro'), TypeError, 'has an argument `averge`. Did you mean `average`'),
    (lambda: LossMetrics('a,b', 'c'), ValueError, '`names` has one for each of `attrs`, but there are 1 for 2'),
    (lambda: learner(LossMetric('nera')).fit(1), AttributeError,
        '`CrossEntropyLossFlat` has no attribute `nera` that could be averaged'),
    (lambda: F1Score().accumulate(SimpleNamespace(pred=(z(2), z(2)), yb=(z(2), z(2)))), TypeError,
        r'`f1_score` compares one tensor of predictions with one of targets, but the model gives a tuple of Tensor, '
        r'Tensor, and the batch has a tuple of Tensor, Tensor'),
    (lambda: AccumMetric(mae).accumulate(SimpleNamespace(pred=z(2), yb=())), TypeError,
        '`mae` compares one tensor .* if it '
        'averages over samples; for all samples at once, write a `Metric` with `reset`, `accumulate` and `value`'),
])
def test_bad_input(f, error, match):
    with pytest.raises(error, match=match): f()

def test_users_of_fastai_find_what_they_look_for():
    names = '''rmse exp_rmspe perplexity AccumMetric accuracy error_rate top_k_accuracy APScoreBinary
        BalancedAccuracy BrierScore CohenKappa F1Score FBeta HammingLoss Jaccard Precision Recall RocAuc
        RocAucBinary MatthewsCorrCoef accuracy_multi APScoreMulti BrierScoreMulti F1ScoreMulti FBetaMulti
        HammingLossMulti JaccardMulti MatthewsCorrCoefMulti PrecisionMulti RecallMulti RocAucMulti mse mae
        msle ExplainedVariance R2Score PearsonCorrCoef SpearmanCorrCoef foreground_acc Dice DiceMulti
        JaccardCoeff JaccardCoeffMulti CorpusBLEUMetric Perplexity LossMetric LossMetrics AvgMetric AvgLoss
        AvgSmoothLoss ValueMetric Metric BaseLoss CrossEntropyLossFlat FocalLoss FocalLossFlat DiceLoss'''.split()
    assert not [o for o in names if o not in globals()]

@pytest.mark.parametrize('f', [DiceMulti(), JaccardCoeffMulti(), F1Score(average='macro', axis=1)],
    ids=lambda o: o.name)
def test_each_class_weighs_the_same_however_rare(f):
    mask = z(1, 10, 10).long(); mask[0,0,0] = 1
    assert value(f, F.one_hot(z(1, 10, 10).long(), 2).movedim(-1, 1).float(), mask)==pytest.approx(.5, abs=.01)

@pytest.mark.parametrize('metric',
    [lambda: F1Score(average='macro'), lambda: DiceMulti(-1), lambda: JaccardCoeffMulti(-1), CohenKappa,
        BalancedAccuracy, MatthewsCorrCoef, HammingLoss, lambda: foreground_acc(axis=-1), BrierScore, RocAuc])
@pytest.mark.parametrize('bad', [-1, 3, 255])
def test_targets_that_are_no_classes(metric, bad):
    with pytest.raises(ValueError,
            match=f'Targets are classes from 0 to 2, as there are 3 scores for each, but go from {min(0, bad)} to '
            f'{max(2, bad)}'):
        value(metric(), randn(4, 3), torch.tensor([0,2,bad,1]))

@pytest.mark.parametrize('metric', [RocAucBinary, APScoreBinary])
@pytest.mark.parametrize('bad', [-1, 2])
def test_targets_that_are_neither_of_two_classes(metric, bad):
    with pytest.raises(ValueError, match=f'from 0 to 1, .*, but go from {min(0, bad)} to {max(1, bad)}'):
        value(metric(), randn(4, 2), torch.tensor([0,1,bad,1]))

def test_a_threshold_of_sklearn_is_for_decisions():
    for name in ('log_loss','roc_auc_score','brier_score_loss'):
        with pytest.raises(ValueError, match=f'`{name}` measures scores, not decisions: leave out `thresh`'):
            from_sklearn(name, thresh=.5)
    with pytest.raises(ValueError, match='`thresh=0.5` makes decisions, which `is_class=False` does without'):
        from_sklearn('f1_score', is_class=False, thresh=.5)
    pred,targ = randn(n)*3,randint(2, n)
    with pytest.raises(ValueError) as e: value(from_sklearn('log_loss'), pred, targ)
    assert 'activation=torch.sigmoid' in e.value.__notes__[0] and 'thresh' not in e.value.__notes__[0]
    assert value(from_sklearn('log_loss', activation=torch.sigmoid), pred,
        targ)==pytest.approx(sk.log_loss(targ, pred.sigmoid()))

@pytest.mark.parametrize('score,name', [(DiceMulti, 'f1_score'), (JaccardCoeff, 'jaccard_score'),
    (foreground_acc, 'recall_score')])
def test_one_score_for_each_pixel_is_led_to_a_score_that_takes_it(score, name):
    pred,targ = randn(2, 1, 4, 4),randint(2, 2, 4, 4)
    with pytest.raises(ValueError, match=f"`?'{name}'"): score()(pred, targ)
    two = score()(torch.cat([-pred, pred], 1), targ)
    if score is not DiceMulti: assert value(from_sklearn(name, thresh=.5), pred, targ)==pytest.approx(float(two))

def test_classes_that_a_score_is_about_are_numbers_of_classes():
    pred,targ = data(2)
    assert F1Score(pos_label=1.)(pred, targ)==F1Score()(pred, targ)
    with pytest.raises(ValueError, match='`bkg_idx` is a class from 0 to 1, as there are 2 scores .*, but got 7'):
        foreground_acc(bkg_idx=7)(randn(2, 2, 3, 3), randint(2, 2, 3, 3))

def test_a_metric_that_is_called_without_targets_says_so():
    with pytest.raises(TypeError, match='the model gives a Tensor, and the batch has none'): rmse(torch.ones(3))

class Squeezes(nn.Module):
    "A model that drops the axis of a batch of one sample"
    def __init__(self): super().__init__(); self.p = nn.Parameter(torch.zeros(1))
    def forward(self, x): return (x+self.p*0).squeeze()

@pytest.mark.parametrize('bs', [1,4,9])
def test_labels_of_a_model_that_drops_the_axis_of_a_single_sample(bs):
    x,y = randn(9, 5),(randn(9, 5)>0).float()
    dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), bs)
    metrics = [F1ScoreMulti(), F1ScoreMulti(average='samples'), PrecisionMulti(), HammingLossMulti()]
    learn = Learner(DataLoaders(dl, dl, device='cpu'), Squeezes(), BCEWithLogitsLossFlat(), metrics=metrics)
    targ,pred = y.numpy(),(x>0).numpy()
    _,*found = dict(learn.validate()).values()
    assert [*map(float, found)]==pytest.approx([sk.f1_score(targ, pred, average='macro', zero_division=0),
        sk.f1_score(targ, pred, average='samples', zero_division=0),
        sk.precision_score(targ, pred, average='macro', zero_division=0), sk.hamming_loss(targ, pred)])

@pytest.mark.parametrize('average', ['macro','weighted','micro'])
@pytest.mark.parametrize('name', ['roc_auc_score','average_precision_score'])
def test_the_average_over_labels_that_a_function_of_scikit_learn_is_given(name, average):
    p = randn(50, 4)+torch.arange(4)*2.
    t = (randn(50, 4)+p*.3-torch.arange(4)*.6>0).float()
    f = getattr(sk, name)
    for m in from_sklearn(name, average=average), from_sklearn(partial(f, average=average)):
        assert float(fed(m, p, t, [20, 30]).value)==pytest.approx(f(t, p, average=average))
    assert float(fed(from_sklearn(name), p, t, [20, 30]).value)==pytest.approx(f(t.view(-1), p.view(-1)))

@pytest.mark.parametrize('metric,f', [
    (lambda: from_sklearn(partial(sk.f1_score, average='binary'), thresh=.5), lambda t,p: sk.f1_score(t, p>0)),
    (lambda: from_sklearn(partial(sk.jaccard_score, average='micro'), thresh=.5),
        lambda t,p: sk.jaccard_score(t, p>0, average='micro')),
    (lambda: from_sklearn('roc_auc_score', average='macro'), sk.roc_auc_score)], ids=['f1','jaccard','auc'])
def test_masks_are_flattened_whatever_the_average(metric, f):
    p,t = randn(16, 1, 4, 4),(randn(16, 1, 4, 4)>0).float()
    assert float(fed(metric(), p, t, [10, 6]).value)==pytest.approx(f(t.flatten(), p.flatten()))
