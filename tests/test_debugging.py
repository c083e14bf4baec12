"Short epochs and collected batches"
import warnings
from collections import namedtuple
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from small_fits import net,X,cut,NoLength,mk

@pytest.mark.parametrize('pct,n', [(.01,1), (.1,1), (.2,2), (.25,2), (.5,3), (.99,6), (1.,6)])
def test_short_epochs(pct, n):
    drawn = dict(train=0, valid=0)
    count = on(event.after_draw)(lambda learn: drawn.update({learn.dl_name: drawn[learn.dl_name]+1}))
    lens = []
    learn = mk(ShortEpochCallback(pct), count, on(event.before_batch)(lambda learn: lens.append(learn.n_iter)),
        valid=cut(10)).fit(2)
    assert drawn=={'train': 2*n, 'valid': 2*n} and {*lens}=={n} and len(learn.recorder.raw_losses)==2*n
    drawn.update(valid=0); learn.add_cb(count).validate()
    assert drawn['valid']==6
    drawn.update(train=0, valid=0)
    mk(ShortEpochCallback(pct, short_valid=False), count, data=cut(10), valid=NoLength(cut(10))).fit(1)
    assert drawn=={'train': n, 'valid': 6}

def test_short_epochs_need_a_length():
    with pytest.raises(ValueError, match='a fraction of the batches, but `train` has no length'):
        mk(ShortEpochCallback(.5), data=NoLength(cut(10))).fit(1)
    with pytest.raises(ValueError, match='a fraction of the batches, but `valid` has no length'):
        mk(ShortEpochCallback(.5), valid=NoLength(cut(10))).fit(1)
    with pytest.raises(ValueError, match=r'`pct` is in \(0,1\], but got 0'): ShortEpochCallback(0)

@pytest.mark.parametrize('pct,n', [(.5,30), (1.,len(X))])
def test_predictions_are_kept_of_the_validation_of_a_short_epoch(pct, n):
    "A limit ends the validation; nothing cancels it"
    trace,kept = Trace('after_cancel_validate'),GatherPredsCallback()
    short = n<len(X)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        mk(ShortEpochCallback(pct), trace, valid=cut(10)).fit(1, cbs=kept)
    assert ['of the first 3 batches only, because a limit' in str(o.message) for o in seen]==[True]*short
    assert len(kept.preds)==n and kept.complete is not short and not trace.seen

def test_collected_data():
    learn = mk(CollectDataCallback, data=cut(20), valid=cut(30)).fit(1)
    data = learn.collect_data.data
    assert len(data)==5
    for ((x,),(y,),pred,loss),(x0,y0) in zip(data, cut(20)+cut(30)):
        assert (torch.equal(x, x0) and torch.equal(y, y0) and not pred.requires_grad
            and F.cross_entropy(pred, y).item()==pytest.approx(loss.item()))
    Out = namedtuple('Out', 'logits extra')
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, labels): return Out(self.net(x), dict(h=x))
    learn = mk(CollectDataCallback, data=[dict(x=x, labels=y) for x,y in cut(20)], model=Net(),
        loss_func=lambda o,y: F.cross_entropy(o.logits, y)).fit(1)
    xb,yb,pred,loss = learn.collect_data.data[0]
    assert (torch.equal(xb['x'], X[:20]) and type(pred) is Out and not pred.logits.requires_grad
        and torch.equal(pred.extra['h'], X[:20]))
