"""What a newcomer meets in the first five minutes: the error says what model and loss got, and what to write; that
line is then run as it stands"""
import re
import pytest, torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

x,y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)),torch.arange(8)%2
ce,mse_loss,bce = nn.CrossEntropyLoss(),nn.MSELoss(),nn.BCEWithLogitsLoss()

class Net(nn.Module):
    def __init__(self, no=2): super().__init__(); self.lin = nn.Linear(4, no)
    def forward(self, x): return self.lin(x)
class ToDict(Net):
    def forward(self, x): return dict(out=self.lin(x), aux=x)
class ToOddDict(Net):
    def forward(self, x): return dict(scores=self.lin(x))
class Attrs:
    def __init__(self, logits): self.logits = logits
class ToObject(Net):
    def forward(self, x): return Attrs(self.lin(x))
class ToTuple(Net):
    def forward(self, x): return self.lin(x),x
class MayTakeTwo(Net):
    def forward(self, x, z=0): return self.lin(x+z)
class TwoInputs(Net):
    def forward(self, x, z): return self.lin(x+z)

# model, batch, loss, what the note says, the line to write
cases = {
    'no loss, classes':     (Net, (x,y), None, '`loss_func` is None', 'Learner(dls, model, nn.CrossEntropyLoss())'),
    'no loss, numbers':     (Net, (x,x[:,:2]), None, '`loss_func` is None', 'Learner(dls, model, nn.MSELoss())'),
    'a dict of outputs':    (ToDict, (x,y), ce,
        r'the loss got out: \(8, 2\) float32, aux: \(8, 4\) float32, and targets \(8,\) int64',
        "cbs=MapPred(lambda o: o['out'])"),
    'a dict of odd names':  (ToOddDict, (x,y), ce, r'the loss got scores: \(8, 2\) float32, and targets',
        "cbs=MapPred(lambda o: o['scores'])"),
    'an object of outputs': (ToObject, (x,y), ce, 'the loss got Attrs', 'cbs=MapPred(lambda o: o.logits)'),
    'a tuple of outputs':   (ToTuple, (x,y), ce, 'the loss got tuple of', 'cbs=MapPred(lambda o: o[0])'),
    'too many inputs':      (Net, (x,y,y), lambda p,a,b: F.cross_entropy(p, a), 'It takes 1, and a batch has 3 parts',
        'DataLoaders(…, n_inp=1)'),
    'too few inputs':       (TwoInputs, (x,x,y), ce, 'It takes 2, and a batch has 3 parts', 'DataLoaders(…, n_inp=2)'),
    'too many targets':     (MayTakeTwo, (x,x,y), ce, r'targets \(8, 4\) float32, \(8,\) int64',
        'DataLoaders(…, n_inp=2)'),
    'float classes':        (Net, (x,y.float()), ce, r'targets \(8,\) float32. Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].long()))'),
    'a column of classes':  (Net, (x,y[:,None]), ce, r'targets \(8, 1\) int64',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].squeeze(1)))'),
    'a float column':       (Net, (x,y[:,None].float()), F.cross_entropy, 'Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].squeeze(1).long()))'),
    'integers for yes, no': (lambda: Net(1), (x,y), bce, r'the loss got \(8, 1\) float32',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][:, None].float()))'),
    'a row for yes, no':    (lambda: Net(1), (x,y.float()), bce, r'targets \(8,\) float32',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][:, None]))'),
    'broadcast numbers':    (lambda: Net(1), (x,y.float()), mse_loss, '`MSELoss` would compare 64 pairs',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][:, None]))'),
    'doubles':              (Net, (x.double(),y), ce, r'the model got \(8, 4\) float64. Its weights are float32',
        'cbs=MapBatch(lambda b: (b[0].float(), *b[1:]))'),
    'bytes':                (Net, (x.byte(),y), ce, r'the model got \(8, 4\) uint8',
        'cbs=MapBatch(lambda b: (b[0].float(), *b[1:]))'),
    'arrays':               (Net, (x.numpy(),y.numpy()), ce, 'the model got ndarray',
        'cbs=MapBatch(lambda b: tuple(map(torch.as_tensor, b)))'),
    'named, float classes': (Net, dict(x=x, labels=y.float()), ce, 'Targets are classes',
        "cbs=MapBatch(lambda b: {**b, 'labels': b['labels'].long()})"),
}

def fit(model, batch, loss_func, n_inp=None, **kwargs):
    torch.manual_seed(0)
    with torch.random.fork_rng(): model = model()
    return Learner(DataLoaders([batch], [batch], n_inp=n_inp, device='cpu'), model, loss_func,
        **kwargs).remove_cb(ProgressCallback).fit(1)
def text(e): return '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())])

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('model,batch,loss_func,says,line', cases.values(), ids=cases)
def test_the_error_says_what_to_write_and_that_works(model, batch, loss_func, says, line):
    n_inp = 1 if model in (TwoInputs,MayTakeTwo) else None
    with pytest.raises(Exception) as e: fit(model, batch, loss_func, n_inp)
    assert re.search(says, text(e)) and f'`{line}`' in text(e), text(e)
    if line.startswith('Learner'): learn = fit(model, batch, eval(re.search(r'nn\.\w+\(\)', line)[0]))
    elif line.startswith('DataLoaders'): learn = fit(model, batch, loss_func, int(line[-2]))
    else: learn = fit(model, batch, loss_func, n_inp, cbs=eval(line.removeprefix('cbs=')))
    assert learn.recorder[-1].valid_loss>0

@pytest.mark.parametrize('model,batch,loss_func,says', [
    (Net, (x.view(8, 1, 4, 1), y), ce, r'the model got \(8, 1, 4, 1\) float32'),
    (Net, (x, y+1), ce, 'There are 2 scores for each sample, for classes from 0 to 1, and targets up to 2'),
    (lambda: Net(1), (x, y), ce,
        'one score for each sample: give the model one for each class, or use `nn.BCEWithLogitsLoss'),
    (Net, (x, ['a']*8), ce, 'and targets list. Targets are tensors of numbers'),
    (Net, (x, y), lambda targ,pred: F.cross_entropy(pred, targ),
        r'the loss got \(8, 2\) float32, and targets \(8,\) int64$'),
    (TwoInputs, (x, y), ce, 'It takes 2, and a batch has 2 parts$'),
])
def test_the_error_says_what_model_and_loss_got(model, batch, loss_func, says):
    with pytest.raises(Exception) as e: fit(model, batch, loss_func)
    assert re.search(says, text(e), re.M), text(e)

def test_errors_of_callbacks_get_no_advice():
    with pytest.raises(TypeError) as e: fit(Net, (x,y), ce, cbs=Raise('before_batch', TypeError('mine')))
    assert 'the model got' not in text(e)

def test_a_failing_advice_does_not_hide_the_error():
    class Odd(torch.Tensor):
        @property
        def dtype(self): raise RuntimeError('no device')
    class Fails(Net):
        def forward(self, x): raise RuntimeError('illegal memory access')
    with pytest.raises(RuntimeError, match='illegal memory access'): fit(Fails, (x.as_subclass(Odd),y), ce)

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('shape', [(8,3), (3,), (1,3), (8,1)])
def test_targets_that_predictions_share_are_fine(shape): fit(lambda: Net(3), (x,torch.zeros(shape)), mse_loss)

# Parts that are assigned later
def part_learner():
    x,y = torch.randn(8, 3),torch.arange(8)%2
    return Learner(DataLoaders([(x, y)], [(x, y)], device='cpu'), nn.Linear(3, 2),
        nn.CrossEntropyLoss()).remove_cb(ProgressCallback)

uses = dict(fit=lambda learn: learn.fit(1), validate=lambda learn: learn.validate(),
    get_preds=lambda learn: learn.get_preds(), show_results=lambda learn: learn.show_results(),
    interpretation=Interpretation.from_learner)
@pytest.mark.parametrize('use', uses)
@pytest.mark.parametrize('part,v,match',
    [('model', nn.Linear, '`model` is an `nn.Module`.*Did you mean `Linear'),
        ('loss_func', nn.CrossEntropyLoss, '`loss_func` is a function.*Did you mean `CrossEntropyLoss'),
    ('loss_func', 'mse', "`loss_func` is a function of predictions and targets, but got 'mse'"),
    ('dls', [1], '`dls` is a `DataLoaders`, but got list')])
def test_a_part_that_is_assigned_later_is_checked_by_whatever_comes_next(part, v, match, use):
    learn = part_learner()
    setattr(learn, part, v)
    with pytest.raises(TypeError, match=match): uses[use](learn)
