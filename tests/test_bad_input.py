"Mistakes cannot hide: each is an error that says what was given, what was expected and what to write, and does no harm"
import copy,warnings
import math,re
from functools import partial
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,TensorDataset
from learner.all import *

def learner(**kwargs): return synth_learner(n_train=3, n_valid=1, metrics=mae, **kwargs)
def const(*shape, n=2, **kwargs): return [(torch.zeros(shape), torch.ones(shape))]*n

def check_usable(learn):
    "A fit works, as if nothing had happened"
    assert learn.mode is None and [o for o in ('dl','xb','pred','loss','exc') if getattr(learn, o) is not None]==[]
    learn.fit(1)
    assert learn.train_iter==3 and math.isfinite(learn.results.valid_loss)

class Misspelt(Callback):
    def after_batch(self): self.recordr
class NoGuess(Callback):
    def after_batch(self): self.zzzzzz
def two_groups(learn): learn.splitter = lambda m: [[m.a], [m.b]]; return learn
def loss(f): return lambda learn: setattr(learn, 'loss_func', f)
def broken(ds_or_batches): return lambda learn: learn.validate(dl=ds_or_batches)

# what is done with a learner; the error; its text
mistakes = {
    'attribute':          (lambda l: l.recordr, AttributeError,
        "`Learner` has no attribute `recordr`. Did you mean `recorder`"),
    'method':             (lambda l: l.validte(), AttributeError,
        "`Learner` has no attribute `validte`. Did you mean `validate`"),
    'callback attribute': (lambda l: l.fit(1, cbs=Misspelt), AttributeError,
        "Neither `Misspelt` nor its Learner has `recordr`. Did you mean `recorder`"),
    'no guess':           (lambda l: l.fit(1, cbs=NoGuess), AttributeError,
        r"Neither `NoGuess` nor its Learner has `zzzzzz`\.\n"),
    'fired event':        (lambda l: l('after_bacth'), TypeError, "`after_bacth`.*Did you mean `after_batch`"),
    'listened event':     (lambda l: l.on('after_epcoh'), TypeError,
        "no event is called `after_epcoh`. Did you mean `after_epoch`"),
    'fit argument':       (lambda l: l.fit(1, cb=Trace()), TypeError,
        "`Learner.fit` has no argument `cb`. Did you mean `cbs`"),
    'validate argument':  (lambda l: l.validate(ds_ix=1), TypeError,
        "`Learner.validate` has no argument `ds_ix`. Did you mean `ds_idx`"),
    'hyper-parameter':    (lambda l: (l.create_opt(), l.set_hyper('moms', .9)), ValueError,
        "`SGD` has no hyper-parameter `moms`, but `lr`, `mom`.*Did you mean `mom`"),
    'not a callback':     (lambda l: l.fit(1, cbs='trace'), TypeError,
        "A callback is a `Callback` or a class of them, but got 'trace'"),
    'function':           (lambda l: l.fit(1, cbs=check_usable), TypeError,
        "A callback is .* but got <function check_usable.*Did you mean `@on"),
    'negative epochs':    (lambda l: l.fit(-1), ValueError, "`n_epoch` is 0 or more, but got -1"),
    'fraction of epochs': (lambda l: l.fit(1.5), TypeError, "`n_epoch` is a whole number, but got 1.5"),
    'boolean epochs':     (lambda l: l.fit(True), TypeError, "`n_epoch` is a whole number, but got True"),
    'text epochs':        (lambda l: l.fit('3'), TypeError, "`n_epoch` is a whole number, but got '3'"),
    'negative start':     (lambda l: l.fit(1, start_epoch=-1), ValueError, "`start_epoch` is 0 or more, but got -1"),
    'start after the end': (lambda l: l.fit(2, start_epoch=3), ValueError,
        "`start_epoch` counts epochs that are done, and is at most `n_epoch`, 2, but got 3"),
    'NaN lr':             (lambda l: l.fit(1, lr=math.nan), ValueError, "`lr` must be finite, but got nan"),
    'infinite lr':        (lambda l: l.fit(1, lr=torch.tensor(math.inf)), ValueError,
        "`lr` must be finite, but got inf"),
    'text lr':            (lambda l: l.fit(1, lr='1e-3x'), TypeError,
        "`lr` is a number, or one per parameter group, but got"),
    'NaN wd':             (lambda l: l.fit(1, wd=math.nan), ValueError, "`wd` must be finite, but got nan"),
    'too many lrs':       (lambda l: l.fit(1, lr=[.1, .2]), ValueError,
        r"`lr` has 2 values, \[0.1, 0.2\], but there is 1 parameter group"),
    'slice without end':  (lambda l: l.fit(1, lr=slice(1e-3, None)), ValueError,
        r"`lr=slice\(first, last\)` needs a last value, but got slice\(0.001, None, None\)"),
    'freeze one group':   (lambda l: l.freeze(), ValueError, "There is 1 parameter group.*give a `splitter`"),
    'freeze too far':     (lambda l: l.freeze_to(2), ValueError, r"`freeze_to\(2\)`: there is only 1 parameter group"),
    'unknown loader':     (lambda l: l.validate('vlid'), KeyError,
        "No loader 'vlid'.*`train`, `valid`.*Did you mean `valid`"),
    'loader position':    (lambda l: l.validate(2), IndexError, "No loader 2.*`train`, `valid`"),
    'empty loader':       (lambda l: l.validate(dl=[]), ValueError, '`dl` is empty'),
    'no targets':         (lambda l: l.validate(dl=[(torch.zeros(2,1),)]), ValueError,
        "There is no loss.*`valid` has no targets.*returned no loss, but Tensor"),
    'metric':             (lambda l: setattr(l, 'metrics', ['mae']), TypeError,
        "A metric is a function of predictions and targets, or a `Metric`, but got 'mae'"),
    'recorded name':      (lambda l: (l.fit(1), l.recorder['valid_los']), KeyError,
        "Nothing recorded as `valid_los`, but `epoch`, `train_loss`.*Did you mean `valid_loss`"),
    'result':             (lambda l: l.validate()['mea'], KeyError,
        "No `mea` here, but `valid_loss`, `mae`.*Did you mean `mae`"),
    'result attribute':   (lambda l: l.validate().valid_lss, AttributeError,
        "No `valid_lss` here, but `valid_loss`, `mae`.*Did you mean `valid_loss`"),
    'shapes':             (lambda l: l.validate(dl=[(torch.zeros(2,1), torch.zeros(3,1))]), (ValueError, RuntimeError),
        "size|shape"),
}

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('what', mistakes)
def test_a_mistake_is_named_and_does_no_harm(what):
    f,exc,match = mistakes[what]
    learn = learner()
    cbs = list(learn.cbs)
    with pytest.raises(exc, match=match): f(learn)
    assert list(learn.cbs)==cbs
    check_usable(learn)

def test_an_attribute_error_inside_a_property_is_not_hidden():
    class C(Callback):
        @property
        def half(self): return self.learn.pred.nonsense
        def after_batch(self): self.half
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nonsense'"): learner().fit(1, cbs=C)

def test_an_attribute_error_inside_a_property_of_the_learner_is_not_hidden():
    class Mine(Learner):
        @property
        def half(self): return self.model.nonsense
    learn = Mine(synth_dls(2, 1), RegModel(), F.mse_loss, cbs=Callback(before_fit=lambda self: self.half))
    for f in (lambda: learn.half, lambda: learn.fit(1)):
        with pytest.raises(AttributeError, match="'RegModel' object has no attribute 'nonsense'"): f()

def test_number_of_lrs_with_several_groups():
    learn = two_groups(learner())
    with pytest.raises(ValueError, match=r"`lr` has 3 values, \[0.1, 0.1, 0.1\], but there are 2 parameter groups"):
        learn.fit(1, lr=[.1]*3)
    check_usable(learn)

# Losses
class Detached(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x): return self.l(x).detach()

@pytest.mark.parametrize('f,exc,match', [
    (lambda p,t: (p-t)**2, ValueError, r"The loss must be one number, but has shape \(16, 1\)"),
    (lambda p,t: 0.5, TypeError, "The loss must be a tensor, but .* returned 0.5"),
    (lambda p,t: None, TypeError, "The loss must be a tensor, but .* returned None"),
    (lambda p,t: F.mse_loss(p, t).detach(), ValueError, "The loss does not depend on any trainable parameter"),
], ids=['not one number','a float','nothing','detached'])
def test_losses_that_cannot_be_differentiated(f, exc, match):
    learn = learner()
    good,learn.loss_func = learn.loss_func,f
    with pytest.raises(exc, match=match) as e: learn.fit(1)
    assert any('in epoch 0, batch 0 of `train`' in o for o in e.value.__notes__)
    learn.loss_func = good
    check_usable(learn)

def test_a_model_that_detaches():
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"): learner(model=Detached()).fit(1)

@pytest.mark.parametrize('loss_func,match',
    [(None, "`loss_func` is None, and the model returned no loss, but Tensor. Give a `loss_func`"),
    (F.mse_loss, "a batch of `train` has no targets, and the model returned no loss, but Tensor")])
def test_no_targets_and_no_loss(loss_func, match):
    learn = learner(dls=DataLoaders([torch.zeros(2,1)]*2, device='cpu'), loss_func=loss_func)
    before = [p.clone() for p in learn.model.parameters()]
    with pytest.raises(ValueError, match=match): learn.fit(1)
    assert all(map(torch.equal, before, learn.model.parameters()))

def test_a_loss_of_predictions_alone_may_have_settings():
    def spread(z, t=.5): return (z/t).square().mean()
    learn = learner(dls=DataLoaders([torch.ones(2,1)]*2, device='cpu'), loss_func=spread).fit(1)
    assert learn.recorder.raw_losses[0]>0

# Models, data
@pytest.mark.parametrize('model', [nn.ReLU(), nn.Sequential()])
def test_a_model_without_parameters(model):
    learn = learner(model=model)
    with pytest.raises(ValueError, match=f"`{type(model).__name__}` has no parameters to train"): learn.fit(1)
    assert learn.validate().names==('valid_loss', 'mae') # but it can be validated

def test_a_loss_is_trained_on_a_frozen_model():
    "Such as a classifier in the loss, on features that stay as they are"
    class Head(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(2, 3)
        def forward(self, pred, y): return F.cross_entropy(self.lin(pred), y)
    torch.manual_seed(0)
    model,head = nn.Linear(4, 2).requires_grad_(False),Head()
    by_hand,before = copy.deepcopy(head),copy.deepcopy(model)
    data = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(4)]
    def opt_func(ps): return torch.optim.SGD(ps, lr=.1)
    learn = Learner(DataLoaders(data, device='cpu'), model, head, opt_func=opt_func, lr=.1,
        splitter=lambda m: [*head.parameters()])
    learn.fit(1)
    opt = opt_func(by_hand.parameters())
    for x,y in data: by_hand(before(x), y).backward(); opt.step(); opt.zero_grad()
    for a,b in zip(head.parameters(), by_hand.parameters()): torch.testing.assert_close(a, b)
    for a,b in zip(model.parameters(), before.parameters()): assert torch.equal(a, b)
    head.requires_grad_(False)
    with pytest.raises(ValueError, match="All parameters are frozen"): learn.fit(1)

def test_everything_is_frozen():
    learn = learner()
    for p in learn.model.parameters(): p.requires_grad_(False)
    with pytest.raises(ValueError,
            match="All parameters are frozen.*`learn.unfreeze\\(\\)` frees what `freeze` has frozen, and "
            "`learn.model.requires_grad_\\(True\\)` everything"):
        learn.fit(1)
    learn.model.requires_grad_(True)
    check_usable(learn)

@pytest.mark.parametrize('train,valid,name',
    [([], None, 'train'), (const(2,1), [], 'valid'), (const(2,1), dict(easy=[]), 'easy')])
def test_an_empty_loader(train, valid, name):
    learn = learner(dls=DataLoaders(train, valid, device='cpu'))
    with pytest.raises(ValueError, match=rf"`dls\['{name}'\]` is empty: it gave no batch in epoch 0"): learn.fit(1)
    assert list(learn.recorder.rows)==[]

def test_a_generator_that_is_used_up():
    learn = learner(dls=DataLoaders((o for o in const(2,1)), device='cpu'))
    with pytest.raises(ValueError, match=r"`dls\['train'\]` is empty: it gave no batch in epoch 1"): learn.fit(2)

@pytest.mark.parametrize('what', [{}, dict(ds_idx=1), dict(ds_idx='valid')])
def test_validation_without_a_loader(what):
    learn = learner(dls=DataLoaders(const(2,1,n=3), device='cpu'))
    with pytest.raises((ValueError, LookupError), match="nothing to validate on"): learn.validate(**what)
    learn.fit(1)

class Bad(Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        if i==self.bad: raise OSError(5, f'sample {i} cannot be read')
        return torch.zeros(1),torch.ones(1)
    bad = None

@pytest.mark.parametrize('num_workers', [0, 1])
@pytest.mark.parametrize('where', ['train', 'valid'])
@pytest.mark.parametrize('sample', [1, 9])
def test_a_loader_that_fails_in_mid_epoch(where, sample, num_workers):
    ds,good = Bad(),const(4,1,n=3)
    bad = DataLoader(ds, 4, num_workers=num_workers)
    learn = learner(dls=DataLoaders(*((bad,good) if where=='train' else (good,bad)), device='cpu'))
    ds.bad = sample
    try: learn.fit(1)
    # torch takes 5 seconds for workers that the garbage collector finds
    except OSError as e: text,notes,e.__traceback__ = str(e),e.__notes__,None
    ds.bad = None
    check_usable(learn)
    # the batch that could not be drawn
    assert (f'sample {sample} cannot be read' in text and len(notes)==1
        and re.fullmatch(rf'in epoch 0, batch {sample//4} of `{where}`(, samples .*\b{sample}\b.*)?', notes[0]))

def test_errors_keep_type_arguments_and_identity():
    e = OSError(28, 'No space left', 'f.pth')
    with pytest.raises(OSError) as info: learner(cbs=Raise('after_loss', e)).fit(1)
    assert info.value is e and e.args==(28, 'No space left') and e.filename=='f.pth'
    assert (e.__notes__[0]=='raised by `Raise.after_loss`'
        and re.fullmatch(r'in epoch 0, batch 0 of `train`, samples (\d+, ){7}\d+ and 8 more', e.__notes__[1])
        and len(e.__notes__)==2)

def test_an_error_of_a_metric_names_the_recorder():
    def bad(pred, targ): raise ZeroDivisionError
    learn = learner().__class__(synth_dls(), RegModel(), F.mse_loss, metrics=bad)
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1)
    assert e.value.__notes__[:2]==[
        'The metric `bad` was tried on the first training batch: predictions are (16, 1), and targets (16, 1)',
        'raised by `Recorder.after_batch`'] and 'batch 0 of `train`' in e.value.__notes__[2]
    with pytest.raises(ZeroDivisionError) as e: learn.validate()
    assert e.value.__notes__==['raised by `Recorder.after_batch`',
        'in epoch 0, batch 0 of `valid`, samples 0, 1, 2, 3, 4, 5, 6, 7 and 8 more']

@pytest.mark.parametrize('ev,where', [
    ('before_train', [f"in epoch {i}, before the first batch of `train`" for i in range(2)]),
    ('before_validate', [f"in epoch {i}, before the first batch of `valid`" for i in range(2)]),
    ('after_validate', [f"in epoch {i}, batch 0 of `valid`, samples 0, 1, 2, 3" for i in range(2)])])
def test_an_error_before_a_phase_has_drawn_names_no_batch(ev, where):
    "That of the phase before is none of its own"
    for epoch in range(2):
        def fail(self):
            if self.learn.epoch==epoch: raise ZeroDivisionError
        data = torch.utils.data.TensorDataset(torch.randn(4, 1), torch.randn(4, 1))
        learn = synth_learner(dls=DataLoaders.from_dsets(data, data, bs=2, device='cpu'))
        with pytest.raises(ZeroDivisionError) as e: learn.fit(2, cbs=Callback(**{ev: fail}))
        assert where[epoch] in e.value.__notes__[-1]
        if ev[:6]=='before': assert 'samples' not in e.value.__notes__[-1]

def test_a_learner_that_was_exported_has_no_data_to_train_on(tmp_path):
    synth_learner(2).export(file := tmp_path/'x.pkl')
    learn = load_learner(file, trust=True)
    with pytest.raises(ValueError, match=r'an empty list, as `load_learner` leaves it.*`learn.dls = DataLoaders\(…\)`'):
        learn.fit(1)
    learn.dls = synth_dls(2)
    assert learn.fit(1).train_iter==2

# Putting a learner together
dls,model = synth_dls(2, 1),RegModel()

@pytest.mark.parametrize('f,exc,match', [
    (lambda: Learner([1,2], model), TypeError,
        r"`dls` is a `DataLoaders`, but got list: write `DataLoaders\(train, valid\)`"),
    (lambda: Learner(dls, RegModel), TypeError, "`model` is an `nn.Module`, but got <class"),
    (lambda: Learner(dls, model, 'mse'), TypeError,
        "`loss_func` is a function of predictions and targets, but got 'mse'"),
    (lambda: Learner(dls, model, metrcs=mae), TypeError, "`Learner` has no argument `metrcs`. Did you mean `metrics`"),
    (lambda: Learner(dls, model, metrics=3), TypeError, "A metric is a function.*but got 3"),
    (lambda: Learner(dls, model, cbs=[3]), TypeError, "A callback is.*but got 3"),
    (lambda: Learner(dls, model, F.mse_loss, opt_func=lambda ps: 3).fit(1), TypeError,
        "`<lambda>` must return a `torch.optim.Optimizer`, but returned 3"),
    (lambda: Learner(dls, model, F.mse_loss, splitter=lambda m: []).fit(1), ValueError,
        "`RegModel` has no parameters to train that `<lambda>` would return"),
    (lambda: Learner(dls, model, F.mse_loss, splitter=lambda m: [[m.a],[m.a]]).fit(1), ValueError,
        r"`<lambda>` returns a parameter of shape \(1,\) twice"),
    (lambda: Learner(dls, model, F.mse_loss, splitter=lambda m: [[m.a],['b']]).fit(1), TypeError,
        "`<lambda>` returns lists of parameters, but group 1 has 'b'"),
    (lambda: DataLoaders(3), TypeError, "`train` is not iterable: a loader is an iterable of batches, but got 3"),
    (lambda: DataLoaders([], 3), TypeError, "`valid` is not iterable"),
    (lambda: DataLoaders([], dict(easy=3)), TypeError, "`easy` is not iterable"),
    (lambda: DataLoaders([], dict(train=[])), ValueError, "A validation loader cannot be called `train`"),
    (lambda: DataLoaders([], devise='cpu'), TypeError, "`DataLoaders` has no argument `devise`. Did you mean `device`"),
    (lambda: DataLoaders([], n_inp=1, split=len), ValueError, "give no `n_inp` with it"),
    (lambda: Recorder(beta=1.), ValueError, r"`beta` is in \[0,1\), but got 1.0"),
    (lambda: LabelSmoothingCrossEntropyFlat(eps=1.5), ValueError, r"`eps` is in \[0,1\], but got 1.5"),
    (lambda: event.after_bacth, AttributeError, "No event is called `after_bacth`. Did you mean `after_batch`"),
    (lambda: event.register('verify'), ValueError, "`verify` needs no registration"),
    (lambda: Callback(befor_fit=print), TypeError, "no event is called `befor_fit`. Did you mean `before_fit`"),
    (lambda: Callback(before_fit=3), TypeError, "`before_fit` is a function of the callback, but got 3"),
    (lambda: type('C', (Callback,), dict(after_epcoh=print)), TypeError,
        "`C.after_epcoh` would never run.*Did you mean `after_epoch`"),
    (lambda: type('C', (Callback,), dict(after_cancel_valid=print)), TypeError,
        "`C.after_cancel_valid` would never run.*Did you mean `after_cancel_validate`"),
    (lambda: on(event.after_batch, evry=2), TypeError, "`on` has no argument `evry`. Did you mean `every`"),
    (lambda: event.after_batch(evry=2), TypeError, "has no argument `evry`. Did you mean `every`"),
], ids=lambda o: None)
def test_what_is_refused_when_things_are_put_together(f, exc, match):
    with pytest.raises(exc, match=match): f()

@pytest.mark.parametrize('f,wrong,right',
    [(Learner, 'opt_fnc', 'opt_func'), (Recorder, 'train_metric', 'train_metrics'),
    (ProgressCallback, 'bar', 'bars'), (Adam, 'sqrmom', 'sqr_mom'), (partial(AccumMetric, mae), 'treshold', 'thresh')],
    ids=lambda o: getattr(o, '__qualname__', None))
def test_a_misspelt_argument_is_answered_with_the_right_one(f, wrong, right):
    with pytest.raises(TypeError, match=f"(has no|has an) argument `{wrong}`. Did you mean `{right}`"): f(**{wrong: 1})

# Names of callbacks
def test_two_callbacks_of_one_class():
    a,b = Trace(),Trace()
    learn = learner(cbs=[a, b])
    assert learn.tracer is a and learn.tracer_2 is b
    learn.remove_cb(a)
    assert learn.tracer_2 is b and not hasattr(learn, 'tracer')
    check_usable(learn)

@pytest.mark.parametrize('name',
    ['Model', 'Fit', 'Dls', 'Cbs', 'Opt', 'Pred', 'State', 'PctTrain', 'NoBar', 'DefaultCbs'])
def test_a_callback_may_not_replace_an_attribute(name):
    learn,C = learner(),type(f'{name}Callback', (Callback,), {})
    with pytest.raises(ValueError,
            match=f"`{name}Callback` would replace `learn.{C.name}`: give the class another name"):
        learn.add_cb(C)
    check_usable(learn)

def test_a_callback_moves_to_another_learner_but_not_in_the_middle_of_a_fit():
    cb,two = Trace(),learner()
    one = learner(cbs=[cb, Callback(after_batch=lambda self: two.add_cb(cb))])
    cbs = list(two.cbs)
    with pytest.raises(ValueError, match='is taking part in the `fit` of another Learner'): one.fit(1)
    assert list(two.cbs)==cbs and cb.learn is one
    two.add_cb(cb)
    assert cb.learn is two is two.tracer.learn and cb not in one.cbs
    check_usable(two)

# What looks odd but is right
@pytest.mark.parametrize('n', [np.int64(1), np.int32(1), torch.tensor(1)], ids=['int64','int32','tensor'])
def test_whole_numbers_of_any_kind_are_epochs(n):
    assert len(learner().fit(n).recorder.rows)==1

def test_a_zero_lr_and_one_batch_are_fine():
    learn = synth_learner(n_train=1, n_valid=1)
    before = [p.clone() for p in learn.model.parameters()]
    learn.fit(1, lr=0)
    assert all(map(torch.equal, before, learn.model.parameters()))

# What to write
def _drops():
    ds = torch.utils.data.TensorDataset(torch.randn(3, 1), torch.randn(3, 1))
    return DataLoaders(torch.utils.data.DataLoader(ds, 8, drop_last=True), device='cpu')
def _in_fit(f): return synth_learner(cbs=Callback(before_epoch=lambda self: f(self.learn))).fit(1)
def _no_counts():
    learn = synth_learner()
    learn.remove_cb(TrainEvalCallback).fit(n_iter=2)
def _taken():
    cb,other = GradientClip(),synth_learner()
    synth_learner(cbs=[cb, Callback(before_epoch=lambda self: other.add_cb(cb))]).fit(1)
@pytest.mark.parametrize('f,says', [
    (lambda: synth_learner(dls=_drops()).fit(1),
        r'gave no batch in epoch 0. `drop_last=True` leaves out a batch that is not full'),
    (lambda: synth_learner(dls=DataLoaders(synth_dls(2).train, [], device='cpu')).fit(1),
        r'gave no batch in epoch 0. If there is nothing to validate on, leave it out'),
    (lambda: synth_learner(loss_func=lambda p,t: ((p-t)**2).mean().item()).fit(1),
        r'The loss must be a tensor.*: leave out `.item\(\)`'),
    (lambda: _in_fit(lambda learn: learn.fit(1)),
        'cannot start inside a running `fit`: train another Learner, or `raise CancelFitException`'),
    (lambda: _in_fit(copy.deepcopy),
        'copied or pickled inside a running `fit`: copy it when that is over, or only `learn.model`'),
    (lambda: _in_fit(lambda learn: learn.load_state('x')),
        r'cannot replace what a running `fit` is working with: load before it, and then write `learn.resume\(\)`'),
    (_no_counts, r'there is none: write `learn.add_cb\(TrainEvalCallback\)`'),
    (_taken, 'in the `fit` of another Learner: give this one an instance of its own')],
    ids=['drop last','no valid','item','inner fit','copy','load','counts','taken'])
def test_errors_say_what_to_write(f, says):
    with pytest.raises((ValueError,TypeError,RuntimeError), match=says): f()

def test_a_callback_may_have_a_value_of_its_own_name():
    "`learn.lowest` is the callback itself, so that its `lowest` hides nothing of the Learner"
    class Lowest(Callback):
        def before_fit(self): self.lowest = 9.
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = synth_learner(2, 1, cbs=Lowest).fit(1)
    assert learn.lowest.lowest==9.

def test_arguments_of_other_places_are_named():
    with pytest.raises(TypeError, match="`from_dsets` has no argument `path`, and torch's `DataLoader` neither"):
        DataLoaders.from_dsets([1.], path='.')
    with pytest.raises(IndexError, match=r'`axis` is an axis of the predictions, whose shape is \(4, 3\), but got 9'):
        accuracy(torch.zeros(4, 3), torch.zeros(4), axis=9)

class Detector(nn.Module):
    "Returns losses in training, and predictions in evaluation"
    def __init__(self, several): super().__init__(); self.layer,self.several = nn.Linear(2, 1),several
    def forward(self, x, targ):
        pred = self.layer(x)
        if not self.training: return [dict(scores=o) for o in pred]
        losses = dict(of_boxes=F.mse_loss(pred, targ), of_classes=pred.abs().mean())
        return losses if self.several else dict(loss=sum(losses.values()))

class Seen(Metric):
    "How many predictions there were"
    def reset(self): self.value = 0
    def accumulate(self, learn): self.value += len(learn.pred)
    value = 0

@pytest.mark.parametrize('several', [False, True])
def test_what_to_write_for_a_detector_trains_it(several):
    "The message says how: metrics get the predictions, and the validation loss is NaN"
    torch.manual_seed(0)
    x,y = torch.randn(20, 2),torch.randn(20, 1)
    def learner(loss_func=None):
        torch.manual_seed(0)
        dl = DataLoader(TensorDataset(x, y), 5)
        return Learner(DataLoaders(dl, dl, n_inp=2, device='cpu'), Detector(several), loss_func, torch.optim.SGD, lr=.1,
            metrics=Seen()).remove_cb(ProgressCallback)
    with pytest.raises(ValueError, match='There is no loss') as e: learner().fit(1)
    learn = learner(eval(re.search('`loss_func=(lambda.*)`', str(e.value))[1])).fit(1)
    torch.manual_seed(0)
    model = Detector(several)
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for xb,yb in zip(x.split(5), y.split(5)):
        opt.zero_grad()
        sum(model(xb, yb).values()).backward()
        opt.step()
    assert torch.allclose(learn.model.layer.weight, model.layer.weight, atol=1e-6)
    assert learn.recorder.log.seen==20 and math.isnan(learn.recorder.log.valid_loss)
