"""What a newcomer meets in the first five minutes: the error says what model and loss got, and what to write; that
line is then run as it stands"""
import pickle,re
from collections import namedtuple
from copy import copy,deepcopy
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
import pytest, torch
from fastcore.foundation import L
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
class Training(namedtuple('Training', 'logits aux')): pass
class ToNamedTuple(Net):
    "As GoogLeNet: a tensor in evaluation"
    def forward(self, x): return Training(self.lin(x), self.lin(x)) if self.training else self.lin(x)
@dataclass
class Sample:
    sample: torch.Tensor
class ToSample(Net):
    def forward(self, x): return Sample(self.lin(x))
class ToTuple(Net):
    def forward(self, x): return self.lin(x),x
class MayTakeTwo(Net):
    def forward(self, x, z=0): return self.lin(x+z)
class Forecasts(Net):
    "Of as many days as there are samples"
    def __init__(self): super().__init__(8)
    def forward(self, x): return self.lin(x)[..., None]
class MeanAndVar(Net):
    def forward(self, x): return self.lin(x),self.lin(x).exp()
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
    'an object of one':     (ToSample, (x,x[:,:2]), mse_loss, 'the loss got Sample',
        'cbs=MapPred(lambda o: o.sample)'),
    'a tuple in training':  (ToNamedTuple, (x,y), ce, 'the loss got Training of',
        "cbs=MapPred(lambda o: getattr(o, 'logits', o))"),
    'a tuple of outputs':   (ToTuple, (x,y), ce, 'the loss got tuple of', 'cbs=MapPred(lambda o: o[0])'),
    'too many inputs':      (Net, (x,y,y), lambda p,a,b: F.cross_entropy(p, a), 'It takes 1, and a batch has 3 parts',
        'DataLoaders(…, n_inp=1)'),
    'too few inputs':       (TwoInputs, (x,x,y), ce, 'It takes 2, and a batch has 3 parts', 'DataLoaders(…, n_inp=2)'),
    'two views':            (TwoInputs, (x,x), lambda p: p.square().mean(), 'It takes 2, and a batch has 2 parts',
        'DataLoaders(…, n_inp=2)'),
    'nested inputs':        (lambda: TwoInputs(), ((x,x),y), ce, 'It takes 2, and got a tuple of 2',
        'cbs=MapBatch(lambda b: (*b[0], *b[1:]))'),
    'too many targets':     (MayTakeTwo, (x,x,y), ce, r'targets \(8, 4\) float32, \(8,\) int64',
        'DataLoaders(…, n_inp=2)'),
    'float classes':        (Net, (x,y.float()), ce, r'targets \(8,\) float32. Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].long()))'),
    'a column of classes':  (Net, (x,y[:,None]), ce, r'targets \(8, 1\) int64',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].squeeze(1)))'),
    'a float column':       (Net, (x,y[:,None].float()), F.cross_entropy, 'Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].squeeze(1).long()))'),
    'integers for yes, no': (lambda: Net(1), (x,y), bce, r'the loss got \(8, 1\) float32',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][..., None].float()))'),
    'a row for yes, no':    (lambda: Net(1), (x,y.float()), bce, r'targets \(8,\) float32',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][..., None]))'),
    'broadcast numbers':    (lambda: Net(1), (x,y.float()), mse_loss, '`MSELoss` would compare 64 pairs',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][..., None]))'),
    'forecasts':            (Forecasts, (x,x.repeat(1, 2)), mse_loss, '`MSELoss` would compare 512 pairs',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1][..., None]))'),
    'mean and variance':    (MeanAndVar, (x,x[:,:2]), nn.GaussianNLLLoss(), 'It takes means, targets and variances',
        'loss_func=lambda p, t: F.gaussian_nll_loss(p[0], t, p[1])'),
    'doubles':              (Net, (x.double(),y), ce, r'the model got \(8, 4\) float64. Its weights are float32',
        'cbs=MapBatch(lambda b: (b[0].float(), *b[1:]))'),
    'bytes':                (Net, (x.byte(),y), ce, r'the model got \(8, 4\) uint8',
        'cbs=MapBatch(lambda b: (b[0].float(), *b[1:]))'),
    'arrays':               (Net, (x.numpy(),y.numpy()), ce, 'the model got ndarray',
        'cbs=MapBatch(lambda b: tuple(map(torch.as_tensor, b)))'),
    'one-hot classes':      (Net, (x,F.one_hot(y)), ce, r'targets \(8, 2\) int64. Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].argmax(1)))'),
    'classes of 32 bits':   (Net, (x,y.int()), ce, 'Targets are classes',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].long()))'),
    'truth values':         (lambda: Net(1), (x,y[:,None]>0), bce, r'targets \(8, 1\) bool',
        'cbs=MapBatch(lambda b: (*b[:-1], b[-1].float()))'),
    'double weights':       (lambda: Net().double(), (x,y), ce, 'Its weights are float64',
        'cbs=MapBatch(lambda b: (b[0].double(), *b[1:]))'),
    'named, float classes': (Net, dict(x=x, labels=y.float()), ce, 'Targets are classes',
        "cbs=MapBatch(lambda b: {**b, 'labels': b['labels'].long()})"),
}

def fit(model, batch, loss_func, n_inp=None, **kwargs):
    torch.manual_seed(0)
    with torch.random.fork_rng(): model = model()
    return Learner(DataLoaders([batch], [batch], n_inp=n_inp, device='cpu'), model, loss_func,
        **kwargs).remove_cb(ProgressCallback).fit(1)
def text(e): return '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())])

def test_the_input_with_the_wrong_type_is_named_rather_than_categories():
    class Both(Net):
        def forward(self, cats, conts): return self.lin(conts)+cats[:, None]
    with pytest.raises(RuntimeError) as e: fit(Both, (y,x.double(),y), ce, n_inp=2)
    assert 'Its weights are float32: write `cbs=MapBatch(lambda b: (b[0], b[1].float(), *b[2:]))`' in text(e)
    fit(Both, (y,x.double(),y), ce, n_inp=2, cbs=MapBatch(lambda b: (b[0], b[1].float(), *b[2:])))

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('model,batch,loss_func,says,line', cases.values(), ids=cases)
def test_the_error_says_what_to_write_and_that_works(model, batch, loss_func, says, line):
    n_inp = 1 if model in (TwoInputs,MayTakeTwo) else None
    with pytest.raises(Exception) as e: fit(model, batch, loss_func, n_inp)
    assert re.search(says, text(e)) and f'`{line}`' in text(e), text(e)
    if line.startswith('Learner'): learn = fit(model, batch, eval(re.search(r'nn\.\w+\(\)', line)[0]))
    elif line.startswith('loss_func'): learn = fit(model, batch, eval(line.removeprefix('loss_func=')))
    elif line.startswith('DataLoaders'): learn = fit(model, batch, loss_func, int(line[-2]))
    else: learn = fit(model, batch, loss_func, n_inp, cbs=eval(line.removeprefix('cbs=')))
    assert learn.recorder[-1].valid_loss>0

class Squeezed(Net):
    def forward(self, x): return super().forward(x).squeeze()
@pytest.mark.parametrize('n_out,targ,loss_func,line', [(1, y.float(), bce, 'cbs=MapPred(lambda o: o.view(-1))'),
    (3, torch.rand(8, 3), bce, 'cbs=MapPred(lambda o: o.view(-1, 3))')], ids=['yes or no','labels'])
def test_a_model_that_drops_the_axis_of_a_last_batch_of_one_is_told(n_out, targ, loss_func, line):
    def fit(**kwargs):
        batches = [(x[:4],targ[:4]), (x[4:5],targ[4:5])]
        learn = Learner(DataLoaders(batches, batches, device='cpu'), Squeezed(n_out), loss_func, **kwargs)
        return learn.remove_cb(ProgressCallback).fit(1)
    with pytest.raises(Exception) as e: fit()
    assert 'The model drops the axis of samples where a batch has one' in text(e) and f'`{line}`' in text(e), text(e)
    assert fit(cbs=eval(line.removeprefix('cbs='))).recorder[-1].valid_loss>0

@pytest.mark.parametrize('model,batch,loss_func,says', [
    (Net, (x.view(8, 1, 4, 1), y), ce, r'the model got \(8, 1, 4, 1\) float32'),
    (Net, (x, y+1), ce, 'There are 2 scores for each sample, for classes from 0 to 1, and targets up to 2'),
    (lambda: Net(1), (x, y), ce,
        'one score for each sample: give the model one for each class, or use `nn.BCEWithLogitsLoss'),
    (Net, (x, ['a']*8), ce, r'and targets list. Targets are numbers: `names,codes = np.unique\(targets, return'),
    (Net, (x, [{}]*8), ce, 'and targets list. Targets are tensors of numbers'),
    (Net, (x, y-1), ce, 'for classes from 0 to 1, and targets from -1 on: `ignore_index=-1`'),
    (Net, (x, y[:,None].repeat(1, 2).float()), nn.BCELoss(), r'write `loss_func=nn.BCEWithLogitsLoss\(\)`'),
    (lambda: Net().half(), (x, y), ce, r'Its weights are float16: write `learn.model.float\(\)`'),
    (lambda: nn.Sequential(nn.BatchNorm1d(4), Net()), (x[:1], y[:1]), ce, 'several samples .* `DataLoader.*drop_last'),
    (Net, (x, y), lambda targ,pred: F.cross_entropy(pred, targ),
        r'the loss got \(8, 2\) float32, and targets \(8,\) int64$'),
    (lambda: nn.Sequential(nn.Unflatten(1, (2,2)), nn.Linear(2, 5)), (x, torch.stack([y,y], 1)), ce,
        'There are 5 scores on the last axis, and `CrossEntropyLoss` .* write `CrossEntropyLossFlat'),
    (TwoInputs, (x, y), ce, 'It takes 2, and a batch has 2 parts$'),
])
def test_the_error_says_what_model_and_loss_got(model, batch, loss_func, says):
    with pytest.raises(Exception) as e: fit(model, batch, loss_func)
    assert re.search(says, text(e), re.M), text(e)

tokens,w3 = torch.tensor([[1,2,0,0],[2,1,1,0]]),torch.tensor([1.,2,3])
padded = {
    'module': (nn.CrossEntropyLoss(ignore_index=0), 'CrossEntropyLossFlat(ignore_index=0)'),
    'all': (nn.CrossEntropyLoss(w3, ignore_index=0, label_smoothing=.1, reduction='sum'),
        "CrossEntropyLossFlat(weight=…, ignore_index=0, reduction='sum', label_smoothing=0.1)"),
    'partial': (partial(F.cross_entropy, ignore_index=0, weight=w3), 'CrossEntropyLossFlat(weight=…, ignore_index=0)'),
    'focal': (FocalLoss(1., ignore_index=0), 'FocalLossFlat(gamma=1.0, ignore_index=0)')}
@pytest.mark.parametrize('loss_func,written', padded.values(), ids=padded)
def test_a_loss_that_is_proposed_has_the_settings_of_the_one_that_there_is(loss_func, written):
    with pytest.raises(Exception) as e: fit(lambda: nn.Embedding(3, 3), (tokens,tokens), loss_func)
    assert f'write `{written}`' in text(e) and 'has nothing like' not in text(e), text(e)
    scores = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(eval(written.replace('…', 'w3'))(scores, tokens), loss_func(scores.mT, tokens))

@pytest.mark.parametrize('model,batch,loss_func,says', [
    (lambda: Net(1), (x, y), nn.CrossEntropyLoss(ignore_index=7, reduction='sum'),
        "or use `nn.BCEWithLogitsLoss(reduction='sum')`, which has nothing like your `ignore_index`"),
    (Net, (x, y[:,None].repeat(1, 2).float()), nn.BCELoss(torch.ones(2), reduction='sum'),
        "write `loss_func=nn.BCEWithLogitsLoss(weight=…, reduction='sum')`"),
    (Net, (x, y), nn.BCEWithLogitsLoss(pos_weight=torch.ones(2), reduction='sum'),
        "give `loss_func=nn.CrossEntropyLoss(reduction='sum')`, which has nothing like your `pos_weight`"),
    (Net, (x, y), nn.BCEWithLogitsLoss(torch.ones(2)),
        "give `loss_func=nn.CrossEntropyLoss()`, which has nothing like your `weight`"),
    (MeanAndVar, (x, x[:,:2]), nn.GaussianNLLLoss(full=True, reduction='sum'),
        "`loss_func=lambda p, t: F.gaussian_nll_loss(p[0], t, p[1], full=True, reduction='sum')`")])
def test_what_a_loss_of_another_kind_takes_over_and_what_not(model, batch, loss_func, says):
    with pytest.raises(Exception) as e: fit(model, batch, loss_func)
    assert says in text(e), text(e)

def test_inputs_that_an_embedding_cannot_look_up_are_named():
    class Rows(Net):
        def __init__(self): super().__init__(); self.embs = nn.ModuleList([nn.Embedding(9, 4), nn.Embedding(4, 4)])
        def forward(self, a, b): return self.lin(self.embs[0](a)+self.embs[1](b))
    for codes,got in ((torch.arange(8), '0 to 7'), (torch.arange(8)%4-1, '-1 to 2')):
        with pytest.raises(IndexError) as e: fit(Rows, (y, codes, y), ce, n_inp=2)
        assert f'`embs.1` has 4 rows, for codes from 0 to 3, and got codes from {got}' in text(e), text(e)
    batch = y,(y%4).double(),y
    with pytest.raises(RuntimeError) as e: fit(Rows, batch, ce, n_inp=2)
    remedy = 'cbs=MapBatch(lambda b: (b[0], b[1].long(), *b[2:]))'
    assert f'`embs.1` takes whole numbers, and its input is float64: write `{remedy}`' in text(e), text(e)
    fit(Rows, batch, ce, n_inp=2, cbs=eval(remedy.removeprefix('cbs=')))

class Slope(Net):
    "Adds the slope of its output, as a physics-informed network does"
    def forward(self, x):
        x = x.clone().requires_grad_()
        pred = super().forward(x)
        return pred + torch.autograd.grad(pred.square().sum(), x, create_graph=True)[0].sum()
class SlopeInValidation(Slope):
    def forward(self, x):
        with torch.enable_grad(): return super().forward(x)
def penalized(pred, y): return ce(pred, y) + torch.autograd.grad(pred.square().sum(), pred, create_graph=True)[0].sum()
@pytest.mark.parametrize('model,loss_func', [(Slope, ce), (Net, penalized)], ids=['model','loss'])
def test_gradients_within_the_model_or_the_loss_need_to_be_switched_on_in_validation(model, loss_func):
    with pytest.raises(RuntimeError) as e: fit(model, (x,y), loss_func)
    assert 'batch 0 of `valid`' in text(e) and 'write `with torch.enable_grad():`' in text(e), text(e)
    fit(SlopeInValidation, (x,y), ce)

def test_errors_of_callbacks_get_no_advice():
    class Backward(Callback):
        run_train = False
        def after_pred(self): self.pred.sum().backward()
    with pytest.raises(RuntimeError, match='does not require grad') as e: fit(Net, (x,y), ce, cbs=Backward)
    assert 'enable_grad' not in text(e)
    with pytest.raises(TypeError) as e: fit(Net, (x,y), ce, cbs=Raise('before_batch', TypeError('mine')))
    assert 'the model got' not in text(e)

class NotMade(Net):
    scale = None
    def forward(self, x): return self.lin(x)*self.scale.abs()
def none_in(learn): return learn.loss.missing
@pytest.mark.parametrize('model,cb', [(NotMade, None), (Net, Callback(before_batch=none_in))], ids=['model','callback'])
def test_none_before_the_model_is_done_is_no_missing_return(model, cb):
    with pytest.raises(AttributeError, match="'NoneType'") as e: fit(model, (x,y), ce, cbs=cb)
    assert 'has no `return`' not in text(e)

def test_targets_in_a_list_of_fastcore_are_as_good_as_in_a_tuple():
    def listed(learn): learn.learn.yb = L(learn.y)
    fit(Net, (x,y), ce, cbs=Callback(before_batch=listed))
    with pytest.raises(TypeError) as e: fit(Net, (x,y), lambda pred,y: pred+'a', cbs=Callback(before_batch=listed))
    assert 'is a tuple' not in text(e) and 'the loss got' in text(e)

def test_a_failing_advice_does_not_hide_the_error():
    class Odd(torch.Tensor):
        @property
        def dtype(self): raise RuntimeError('no device')
    class Fails(Net):
        def forward(self, x): raise RuntimeError('illegal memory access')
    with pytest.raises(RuntimeError, match='illegal memory access'): fit(Fails, (x.as_subclass(Odd),y), ce)

@pytest.mark.parametrize('where', ['model','loss','callback'])
def test_an_assert_of_a_device_says_what_it_mostly_is_and_how_to_go_on(where):
    def fails(*args): raise RuntimeError('CUDA error: device-side assert triggered')
    class Fails(Net):
        forward = fails
    with pytest.raises(RuntimeError, match='device-side') as e: fit(Fails if where=='model' else Net, (x,y),
        fails if where=='loss' else ce, cbs=Callback(after_pred=fails) if where=='callback' else None)
    assert 'a target or an index is out of range' in text(e) and "`learn.dls.to('cpu')`" in text(e)

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('shape', [(8,3), (3,), (1,3), (8,1)])
def test_targets_that_predictions_share_are_fine(shape): fit(lambda: Net(3), (x,torch.zeros(shape)), mse_loss)

def test_a_metric_of_classes_is_told_how_one_hot_targets_become_classes():
    with pytest.raises(ValueError) as e: fit(Net, (x,F.one_hot(y).float()), ce, metrics=accuracy)
    line = 'cbs=MapBatch(lambda b: (*b[:-1], b[-1].argmax(1)))'
    assert f'The metric takes classes: write `{line}`' in text(e)
    assert fit(Net, (x,F.one_hot(y).float()), ce, metrics=accuracy, cbs=eval(line[4:])).final_record['accuracy']>=0

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

# What functions of batches return
def dicts(**kwargs):
    data = [dict(age=a, label=(a>.5).long()) for a in torch.rand(16, generator=torch.Generator().manual_seed(0))]
    return DataLoaders.from_dsets(data, bs=8, device='cpu', **kwargs)
class OfAge(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(1, 2)
    def forward(self, age): return self.lin(age[:,None])
class OfYears(OfAge):
    def forward(self, years): return super().forward(years)

def error_of(f):
    with pytest.raises(Exception) as e: f()
    return '\n'.join([str(e.value), *getattr(e.value, '__notes__', ())])
def told(model=OfAge, dls=None, **kwargs):
    return error_of(lambda: Learner(dls or dicts(), model(), ce, **kwargs).fit(1))

@pytest.mark.parametrize('split,got', [
    (lambda b: b['age'], r'(8,) float32'), (lambda b: (b['age'], b['label']), 'tuple of (8,) float32, (8,) int64'),
    (lambda b: ((b['age'],), b['label']), 'tuple of tuple of (8,) float32, (8,) int64'), (lambda b: None, 'NoneType'),
    (lambda b: (b['age'], b['age'], b['label']), 'tuple of (8,) float32, (8,) float32, (8,) int64')],
    ids=['tensor','tensors','one part','nothing','three'])
def test_a_split_that_returns_something_else_is_named_with_what_it_returned(split, got):
    said = told(dls=dicts(split=split))
    assert f"`split` returned {got}: it returns a tuple of inputs, or a mapping, and a tuple of targets" in said
    Learner(dicts(split=lambda b: ((b['age'],), (b['label'],))), OfAge(), ce).fit(1)

def test_a_function_of_map_batch_returns_the_batch():
    assert '`changes` is to return the changed batch to `MapBatch`, but returned None' in told(cbs=MapBatch(changes))
    said = told(TwoInputs, cbs=MapBatch(lambda b: b['age']))
    assert "the model got (8,) float32. The function of a `MapBatch` returns the whole batch" in said
def changes(b): b['age'] = b['age']*2

@pytest.mark.parametrize('cbs', [(), MatchArgs], ids=['as it is','matched'])
def test_a_field_that_the_model_calls_otherwise_is_renamed_by_what_the_error_says(cbs):
    line = re.search(r'`cbs=(MapBatch\(.*?\))`', told(OfYears, cbs=cbs))[1]
    Learner(dicts(), OfYears(), ce, cbs=[eval(line), *([cbs] if cbs else [])]).fit(1)

def test_a_metric_of_a_batch_is_told_what_it_gets():
    said = error_of(lambda: Learner(DataLoaders([(x,y)], [(x,y)], device='cpu'), Net(), ce,
        metrics=lambda batch: batch[0].mean()).fit(1))
    assert 'A metric is called with the predictions and the targets of a batch, here 2 arguments' in said

of_losses = [CrossEntropyLossFlat(), LabelSmoothingCrossEntropyFlat(), FocalLossFlat(), BCEWithLogitsLossFlat(),
    BCELossFlat(), MSELossFlat(), L1LossFlat(), LabelSmoothingCrossEntropy(), FocalLoss(), DiceLoss()]
def own_ce(p, t): return F.cross_entropy(p.flatten(1), t.flatten())

@pytest.mark.parametrize('loss_func', [*of_losses, own_ce], ids=lambda f: getattr(f, '__name__', type(f).__name__))
@pytest.mark.parametrize('model,line', [(ToTuple, 'lambda o: o[0]'), (ToDict, "lambda o: o['out']")])
def test_each_loss_says_which_part_of_an_output_is_the_prediction(loss_func, model, line):
    said = error_of(lambda: fit(model, (x, x[:,:2] if 'Flat' in type(loss_func).__name__ else y), loss_func))
    assert '\nthe loss got ' in said and f'write `cbs=MapPred({line})`' in said

@pytest.mark.parametrize('loss_func', [*of_losses, own_ce], ids=lambda f: getattr(f, '__name__', type(f).__name__))
def test_each_loss_says_that_targets_are_tensors(loss_func):
    said = error_of(lambda: fit(Net, (x, [*y]), loss_func))
    assert '\nthe loss got (8, 2) float32, and targets list. Targets are tensors of numbers' in said

def counted(p, t, w): return (F.cross_entropy(p, t, reduction='none')*w).sum()/w.sum()
def fit_counted(loss_func, valid=True, metrics=None, cbs=None):
    batches,seen = [(x, y, torch.ones(8))]*2,[]
    learn = Learner(DataLoaders(batches, *[batches]*valid, n_inp=1, device='cpu'), Net(), loss_func, metrics=metrics,
        cbs=cbs)
    learn.remove_cb(ProgressCallback).add_cb(Callback(after_batch=lambda cb: seen.append(cb.training)))
    try: learn.fit(1)
    except Exception as e: return seen,'\n'.join([str(e), *e.__notes__])
    return seen,''
def n_of_one(t): return len(t)

@pytest.mark.parametrize('how', ['loss','metric'])
def test_what_a_mean_is_over_fails_at_the_first_batch_and_is_named(how):
    def f(p, t, w): return counted(p, t, w)
    f.n_items = n_of_one
    seen,said = fit_counted(f) if how=='loss' else fit_counted(counted, metrics=f)
    assert len(seen)<2 and 'raised by `n_items`, which is called with all targets of a batch, here 2' in said
    assert 'n_of_one() takes 1 positional argument but 2 were given' in said and 'A metric is called' not in said

@pytest.mark.parametrize('valid,cbs', [(False, None), (True, Recorder(count=lambda learn: 8))], ids=['none','count'])
def test_what_a_mean_is_over_is_not_tried_where_nothing_uses_it(valid, cbs):
    def f(p, t, w): return counted(p, t, w)
    f.n_items = n_of_one
    assert fit_counted(f, valid, cbs=cbs)==([True]*2+[False]*2*valid, '')

class OwnVector(Net):
    def forward(self, x, labels): return dict(loss=F.cross_entropy(self.lin(x), labels, reduction='none'))
class OwnVectorLogits(Net):
    def forward(self, x, labels):
        p = self.lin(x)
        return dict(logits=p, loss=F.cross_entropy(p, labels, reduction='none'))
@pytest.mark.parametrize('model', [OwnVector, OwnVectorLogits])
def test_a_loss_of_the_model_that_is_no_number_is_refused_with_its_shape(model):
    said = error_of(lambda: fit(model, dict(x=x, labels=y), None))
    assert 'The loss must be one number, but has shape (8,): reduce it, for example by `.mean()`' in said

# Names of fastai
@pytest.mark.parametrize('f,instead', [
    (lambda o: o.loss_not_reduced(), 'per_sample(learn.loss_func)'),
    (lambda o: o.validation_context(), 'learn.validate()'),
    (lambda o: o.to_parallel(), 'nn.DataParallel(model)'), (lambda o: o.dls.test_dl([1]), 'learn.get_preds(dl='),
    (lambda o: o.dls.bs, 'dls.train.batch_size'), (lambda o: o.dls.cuda(), "dls.to('cuda')"),
    (lambda o: o.dls.show_batch(), 'dls.one_batch()'), (lambda o: o.dls.after_batch, 'cbs=MapBatch(f)'),
    (lambda o: o.recorder.loss_not_reduced, 'per_sample(learn.loss_func)'),
    (lambda o: o.to_detach(1), 'x.detach()'), (lambda o: o.logger, 'learn.no_logging()'),
    (lambda o: setattr(o.recorder, 'metric_names', ['x']), 'ValueMetric(f, '),
    (lambda o: o.recorder.log.append(1.), 'ValueMetric(f, '),
    (lambda o: o.fit(1).recorder.log.append(1.), 'learn.recorder.add(x=v)'),
    (lambda o: o.metrics.append(mae), 'learn.metrics += [m]'),
    (lambda o: o.metrics.remove(mae), 'assign a list of others'),
    (lambda o: GatherPredsCallback().all_tensors(), '`preds`, `targets`, `inputs` and `losses`'),
    (lambda o: DataLoaders([1], path='x'), 'Learner(…, path=…)'),
    (lambda o: o.dls.tarin, 'Did you mean `train`')])
def test_an_attribute_of_fastai_is_answered_with_ours(f, instead):
    assert instead in error_of(lambda: f(synth_learner()))

@pytest.mark.parametrize('f', [lambda opt: opt.set_hyper('lr', 1), lambda opt: opt.hypers[-1],
    lambda opt: opt.set_hypers(lr=1)], ids=['set_hyper','hypers','set_hypers'])
def test_a_method_of_fastais_optimizers_is_answered_in_a_callback(f):
    said = error_of(lambda: synth_learner(cbs=Callback(before_batch=lambda self: f(self.opt))).fit(1))
    assert "Write `learn.set_hyper('lr', v)`; `get_hyper(learn.opt, 'lr')` reads" in said

@pytest.mark.parametrize('f,instead', [(lambda o: o.opt.param_lists, '`param_groups`'),
    (lambda o: o.opt.frozen_idx, 'learn.freeze_to(n)'), (lambda o: o.dls.train.bs, 'Write `dl.batch_size`'),
    (lambda o: o.dls.train.n, 'len(dl.dataset)')], ids=['param_lists','frozen_idx','bs','n'])
def test_an_attribute_of_fastais_loaders_and_optimizers_is_answered_in_a_callback(f, instead):
    assert instead in error_of(lambda: synth_learner(cbs=Callback(before_batch=f)).fit(1))

@pytest.mark.parametrize('name,instead', [('run', 'learn.fit(n_epoch)'), ('get_model', 'learn.model'),
    ('optimizer', 'learn.opt'), ('scheduler', 'ParamScheduler(…)'), ('callback_handler', 'learn.add_cb(cb)'),
    ('driver', 'learn.device'), ('model_device', 'learn.device'), ('test', 'learn.validate(dl=dl)'),
    ('save_model', 'learn.save(name)'), ('save_checkpoint', 'learn.save_state(name)'),
    ('load_checkpoint', 'learn.load_state(name)'), ('n_batches', 'learn.n_iter'), ('cur_epoch_idx', 'learn.epoch'),
    ('eval_dataloader', 'dls.valid'), ('evaluate_dataloaders', 'dls.valids'), ('run_history', 'learn.recorder'),
    ('log', 'learn.recorder.add(name=value)'), ('add_callback_fn', 'learn.on(event)(f)'),
    ('recorder.get_latest_metric', 'learn.recorder.last(name)'), ('recorder.get_metric_values', 'learn.recorder[name]'),
    ('recorder.update_metric', 'learn.recorder.add(name=value)')])
def test_an_attribute_of_another_trainer_is_answered_with_ours(name, instead):
    said = error_of(lambda: attrgetter(name)(synth_learner()))
    assert f'`{instead}`' in said and 'Did you mean' not in said

def test_a_setting_of_a_run_that_there_is_not_is_answered_with_the_nearest():
    config = synth_learner().fit(1).run_config
    said = error_of(lambda: config.num_epochs)
    assert "read as `run_config['n_epoch']`. Did you mean `n_epoch`?" in said
    with pytest.raises(KeyError, match='No setting is called `num_epochs`. Did you mean `n_epoch`'):
        config['num_epochs']
    assert config.get('num_epochs') is None and not hasattr(config, 'num_epochs')
    assert deepcopy(config)==pickle.loads(pickle.dumps(config))==config

def test_loaders_without_validation_say_so_and_are_copied():
    dls = synth_dls(n_valid=0)
    assert "'NoneType' object has no attribute 'dataset'" in error_of(lambda: dls.valid_ds)
    for o in (copy(dls), deepcopy(dls), pickle.loads(pickle.dumps(dls))): assert len(o.train)==len(dls.train)
