"Numbers of regression metrics of scikit-learn, and of a Dice loss, are those computed by hand, at any batch size"
import pytest,torch
from torch import nn
from learner.all import *

g = torch.Generator().manual_seed(0)
X,Y = torch.randn(23, 2, generator=g),torch.randn(23, generator=g)
def cut(x, y, bs): return [(x[i:i+bs], y[i:i+bs]) for i in range(0, len(x), bs)]
def results(model, loss, x, y, bs, **kwargs):
    torch.manual_seed(0)
    data = cut(x, y, bs)
    dls = DataLoaders(data, data, device='cpu')
    return Learner(dls, model(), loss, **kwargs).remove_cb(ProgressCallback).validate()

# Regression
@pytest.mark.parametrize('bs', [1, 8, 23])
@pytest.mark.parametrize('shape', [(-1,), (-1, 1)])
@pytest.mark.parametrize('name', ['r2_score','mean_absolute_error','explained_variance_score'])
def test_a_regression_metric_gets_predictions_and_no_classes_of_them(name, shape, bs):
    sk = pytest.importorskip('sklearn.metrics')
    def model(): return nn.Linear(2, 1)
    res = results(model, MSELossFlat(), X, Y.view(shape), bs, metrics=from_sklearn(name))
    torch.manual_seed(0)
    with torch.no_grad(): pred = model()(X)
    assert float(res[1])==pytest.approx(getattr(sk, name)(Y, pred[:,0]), rel=1e-5)

def test_a_classification_metric_still_decides_for_the_highest_score():
    sk = pytest.importorskip('sklearn.metrics')
    scores,targ = torch.randn(23, 4, generator=g),torch.arange(23)%4
    want = sk.f1_score(targ, scores.argmax(1), average='macro')
    assert float(from_sklearn('f1_score', average='macro')(scores, targ))==pytest.approx(want)

# Dice
masks = torch.randint(0, 3, (10, 4, 4), generator=g)
images = torch.randn(10, 2, 4, 4, generator=g)
def by_hand(pred, targ):
    "For each sample and class"
    p,t = pred.softmax(1).flatten(2),nn.functional.one_hot(targ, 3).movedim(-1, 1).flatten(2)
    return 1-2*(p*t).sum(-1)/(p.sum(-1)+t.sum(-1))

def test_dice_is_a_mean_over_samples_and_classes_by_default():
    pred = torch.randn(10, 3, 4, 4, generator=g)
    assert DiceLoss()(pred, masks).item()==pytest.approx(by_hand(pred, masks).mean().item(), rel=1e-4)

@pytest.mark.parametrize('reduction', ['mean','sum'])
def test_dice_in_validation_does_not_depend_on_the_batch_size(reduction):
    def dice(bs): return results(lambda: nn.Conv2d(2, 3, 1), DiceLoss(reduction=reduction), images, masks, bs)[0]
    res = [*map(dice, (1, 3, 10))]
    assert res==pytest.approx([res[0]]*3, rel=1e-5)

def test_dice_beside_a_cross_entropy_has_its_size_in_large_batches_too():
    "A sum over the batch would drown the rest"
    pred = torch.randn(10, 3, 4, 4, generator=g)
    assert all(0<DiceLoss()(pred[:n], masks[:n])<1 for n in (1, 10))
