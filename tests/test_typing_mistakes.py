"Typing mistakes of a first notebook: each is answered by an error that names the culprit and what to write"
import re
from functools import partial,wraps
import numpy as np,pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

x,y = torch.randn(40,3),torch.arange(40)%2
ds = TensorDataset(x, y)
dl = DataLoader(ds, 8)
def dls(): return DataLoaders(dl, dl, device='cpu')
def mk(**kwargs):
    return Learner(**(dict(dls=dls(), model=nn.Linear(3,2), loss_func=nn.CrossEntropyLoss(), metrics=accuracy,
        path='nowhere') | kwargs))
def then(**kwargs):
    "Attributes that are assigned to a learner"
    learn = mk()
    cbs = kwargs.pop('add', None)
    for k,v in kwargs.items(): setattr(learn, k, v)
    learn.fit(1, cbs=cbs)

class Skips(Callback):
    def run_valid(self): return False
class Says(Callback): run_valid = 'no'

class DataFrame:
    "As that of pandas"
    def __len__(self): return 4
    def __getitem__(self, k): raise KeyError(k)

def then_flag(**kwargs):
    learn = mk(cbs=GradientClip)
    for k,v in kwargs.items(): setattr(learn.gradient_clip, k, v)

mistakes = {
    'monitor':            (lambda: mk().fit(1, cbs=EarlyStoppingCallback('val_loss')),
        "`val_loss` is to be monitored and is not recorded, but `train_loss`, `valid_loss`, `accuracy`. Did you mean "
        "`valid_loss`?"),
    'monitor, in short':  (lambda: mk().fit(1, cbs=EarlyStoppingCallback('acc')), "Did you mean `accuracy`?"),
    'monitor of all':     (lambda: then(monitor='acc', add=EarlyStoppingCallback),
        "`acc`, which `learn.monitor` names, is to be monitored and is not recorded"),
    'stream':             (lambda: mk().seeds(2, 1, vary='weights'), "but got 'weights'. Did you mean `init`?"),
    'unit':               (lambda: Timer(unit='step'), 
        "but got 'step'. `iter` counts training batches"),
    'called metric':      (lambda: accuracy(axis=1), "write `metrics=partial(accuracy, axis=1)`"),
    'its k':              (lambda: top_k_accuracy(5), "`top_k_accuracy` is called with predictions and targets"),
    'average by place':   (lambda: F1Score('macro'),
        "`axis` is a whole number, but got 'macro'. Did you mean `average='macro'`?"),
    'average of areas':   (lambda: RocAuc('macro'), "Did you mean `average='macro'`?"),
    'unit by place':      (lambda: Timer('iter'),
        "`every` is a whole number, but got 'iter'. Did you mean `unit='iter'`?"),
    'project by place':   (lambda: WandbLogger('proj'), "Did you mean `project='proj'`?"),
    'lr by place':        (lambda: Learner(dls(), nn.Linear(3,2), nn.CrossEntropyLoss(), 1e-3),
        "Did you mean `lr=0.001`?"),
    'device by place':    (lambda: DataLoaders(dl, dl, 'cpu'),
        "`loader_2` is a loader, but got a device: write `device='cpu'`"),
    'device object':      (lambda: DataLoaders(dl, torch.device('cpu')), "write `device='cpu'`"),
    'loader as its name': (lambda: dls().one_batch(dl),
        "A loader in `dls` is known by its position or name, but got <torch"),
    'loss of elements':   (lambda: mk(loss_func=nn.CrossEntropyLoss(reduction='none')).fit(1),
        "The loss must be one number, but has shape (8,): give `CrossEntropyLoss` a `reduction='mean'`"),
    'factor of torch':    (lambda: ReduceLROnPlateau(factor=.1), "so that torch's `factor=0.1` is 10 here"),
    'no default_cbs':     (lambda: mk(default_cbs=[]), "Did you mean `default_cbs=False`?"),
    'layer by name':      (lambda: hook_output('layer1'), "write `model.get_submodule('layer1')`"),
    'layers by name':     (lambda: hook_outputs(['layer1']), "write `model.get_submodule('layer1')`"),
    'activation by name': (lambda: mk().get_preds(act='softmax'),
        "such as `partial(torch.softmax, dim=-1)`, but got 'softmax'"),
    'fp32':               (lambda: MixedPrecision('fp32'), "but got 'fp32'. `learn.to_fp32()` ends mixed precision"),
    'no metric':          (lambda: mk(metrics=None).fit(1, cbs=SaveModelCallback('accuracy')),
        "`accuracy` is to be monitored and is not recorded"),
    'no validation':      (lambda: mk(dls=DataLoaders(dl, device='cpu')).fit(1, cbs=SaveModelCallback),
        "`valid_loss` is to be monitored and is not recorded, but `train_loss`. `dls` has no validation loader"),
    'no value':           (lambda: EarlyStoppingCallback(3),
        "`monitor` is the name of a column, such as `valid_loss`, or a function of a row, but got 3"),
    'patience':           (lambda: EarlyStoppingCallback(patience='3'), "`patience` is a whole number, but got '3'"),
    'mode':               (lambda: EarlyStoppingCallback('accuracy', comp='max'),
        "`comp` is `np.less` or `np.greater`, or compares as they do, but got 'max'"),
    'metrics':            (lambda: mk(metrics=['accuracy']),
        "but got 'accuracy'. Write the function itself: `accuracy`, without quotes"),
    'metric':             (lambda: mk(metrics=dict(acc='accuracy')), "but got 'accuracy'. Write the function itself"),
    'number as a metric': (lambda: mk(metrics=int),
        "A metric is a function of predictions and targets, or a `Metric`, but got <class 'int'>"),
    'dls':                (lambda: mk(dls=([(x, y)], [(x, y)])),
        "`dls` is a `DataLoaders`, but got tuple: write `DataLoaders(train, valid)`"),
    'a loader':           (lambda: mk(dls=dl), "`dls` is a `DataLoaders`, but got DataLoader"),
    'swapped':            (lambda: Learner(nn.Linear(3,2), dls()),
        "`dls` is a `DataLoaders`, but got Linear: write `Learner(dls, model, …)`"),
    'datasets':           (lambda: DataLoaders(ds, ds),
        "`train` is a dataset, and a loader gives batches: write `DataLoaders.from_dsets(train, valid, bs=64)`"),
    'path':               (lambda: DataLoaders('data/train'),
        "`train` is an iterable of batches, but got 'data/train'"),
    'dict of loaders':    (lambda: DataLoaders(dict(train=dl, valid=dl)),
        "`train` is an iterable of batches, but got {'train': "),
    'tensors':            (lambda: mk(dls=DataLoaders((x, y), device='cpu')).fit(1),
        "`train` is a tuple of 2 tensors, each of which is a batch. If they are inputs and targets, write "
        "`DataLoaders.from_dsets(TensorDataset(x, y), bs=64)`"),
    'loader of datasets': (lambda: DataLoaders.from_dsets(dl),
        "`train` is a dataset, but got a loader: write `DataLoaders(…)`"),
    'arrays':             (lambda: DataLoaders.from_dsets(x, y),
        "like inputs and targets: write `TensorDataset(x, y)` for each, of tensors"),
    'bs':                 (lambda: DataLoaders.from_dsets(ds, bs='64'), "`bs` is a whole number, but got '64'"),
    'no bs':              (lambda: DataLoaders.from_dsets(ds, bs=0), "`bs` is 1 or more, but got 0"),
    'device':             (lambda: DataLoaders(dl, device='gpu'),
        "`device` is a device of this machine, such as `cpu`, but got 'gpu'"),
    'loss class':         (lambda: mk(loss_func=nn.CrossEntropyLoss),
        "`loss_func` is a function of predictions and targets, but got a class. Did you mean `CrossEntropyLoss()`?"),
    'loss name':          (lambda: mk(loss_func='mse'),
        "`loss_func` is a function of predictions and targets, but got 'mse'"),
    'model class':        (lambda: mk(model=nn.Linear), "Linear'>. Did you mean `Linear()`?"),
    'other optimizer':    (lambda: mk(opt_func=torch.optim.SGD(nn.Linear(3,2).parameters(), lr=.1)).fit(1),
        "the optimizer in `opt_func` was made of others. Make it of `model.parameters()`, or write "
        "`opt_func=torch.optim.SGD`"),
    'optimizer name':     (lambda: mk(opt_func='adam'),
        "`opt_func` is a class of `torch.optim`, or a function of groups that makes one, but got 'adam'"),
    'list of callbacks':  (lambda: mk(cbs=[GradientClip, [MixUp]]), "Write `add_cbs([…])`, or one flat list, as in"),
    'flag as a method':   (lambda: mk(cbs=Skips), "`Skips.run_valid` is True or False, but got a method"),
    'flag':               (lambda: mk(cbs=Says), "`Says.run_valid` is True or False, but got 'no'"),
    'flag later':         (lambda: then_flag(run='no'),
        "`GradientClip.run` is True or False, but got 'no'"),
    'loss_grad.item()':   (lambda: mk().fit(1, cbs=Callback(after_loss=lambda o: setattr(o.learn, 'loss_grad', .5))),
        "The loss must be a tensor, but a callback has set `loss_grad` to 0.5: leave out `.item()`"),
    'empty dl':           (lambda: mk().validate(dl=[]), "`dl` is empty: it gave no batch"),
    'empty dataset':      (lambda: DataLoaders.from_dsets(x[:0]), "`train` is empty: nothing to train on"),
    'data frame':         (lambda: DataLoaders.from_dsets(DataFrame()),
        "`train` is a dataset, but got a DataFrame, whose `df[0]` is a column: write `TensorDataset(x, y)`"),
    'tuples of arrays':   (lambda: DataLoaders.from_dsets((x, y), (x, y)),
        "`train` is a dataset, but got a tuple of two arrays: if they are inputs and targets, write"),
    'batch_size=':        (lambda: DataLoaders(ds, ds, batch_size=8),
        "`DataLoaders` has no argument `batch_size`. A loader makes batches: write `DataLoaders.from_dsets("),
    'callback name':      (lambda: mk(cbs='mixup'), "A callback is a `Callback` or a class of them, but got 'mixup'"),
    'removed by name':    (lambda: mk().remove_cb('MixUp'),
        "Attached callbacks are named by themselves or their classes, but got 'MixUp'"),
    'removed by its name':(lambda: mk(cbs=GradientClip).remove_cb('gradient_clip'),
        "but got 'gradient_clip': write `learn.gradient_clip`"),
    'None as a callback': (lambda: mk(cbs=[GradientClip, None]),
        "but got None. Leave it out, as in `cbs=[a, *([b] if flag else [])]`"),
    'callback by place':  (lambda: mk().fit(1, GradientClip()),
        "`lr` is a number, or one per parameter group, but got GradientClip(max_norm=1.0, norm_type=2.0, "
        "max_value=None, params=None). Callbacks go to `cbs=…`"),
    'callback as wd':     (lambda: mk().fit(1, 1e-3, GradientClip),
        "gradients.GradientClip'>. Callbacks go to `cbs=…`"),
    'callback as div':    (lambda: mk().fit_one_cycle(1, 1e-2, GradientClip()), "). Callbacks go to `cbs=…`"),
    'number by place':    (lambda: mk().fit(1, .1, .2, .3), "but got 0.3. Give numbers by name, as in `lr=0.3`"),
    'metric by place':    (lambda: Learner(dls(), nn.Linear(3,2), nn.CrossEntropyLoss(), accuracy),
        "`opt_func` is a class of `torch.optim`, or a function of groups that makes one, but got <function accuracy"),
    'its hint':           (lambda: Learner(dls(), nn.Linear(3,2), nn.CrossEntropyLoss(), partial(accuracy, axis=1)),
        "Metrics go to `metrics=…`"),
    'splitter as a list': (lambda: mk(splitter=[params(nn.Linear(3,2))]),
        "`splitter` is a function of the model, such as `lambda m: [m.body.parameters(), m.head.parameters()]`, but "
        "got [[<Parameter of shape (2, 3), torch.float32>, "),
    'mixed twice':        (lambda: mk(cbs=[MixUp(), MixUp()]).fit(1),
        "`mix_up_2` and `mix_up` would both mix the batch"),
    'epochs':             (lambda: mk().fit('3'), "`n_epoch` is a whole number, but got '3'"),
    'epochs=':            (lambda: mk().fit(epochs=3),
        "`Learner.fit` has no argument `epochs`. Did you mean `n_epoch`?"),
    'callbacks=':         (lambda: mk(callbacks=[]), "`Learner` has no argument `callbacks`. Did you mean `cbs`?"),
    'learning_rate=':     (lambda: mk().fit(1, learning_rate=.1),
        "`Learner.fit` has no argument `learning_rate`. Did you mean `lr`?"),
    'no epochs':          (lambda: mk().fit(), "`fit` needs an end: `n_epoch`, `n_iter` or `n_step`"),
    'lr':                 (lambda: mk().fit(1, lr='1e-3'),
        "`lr` is a number, or one per parameter group, but got '1e-3'"),
    'lr before':          (lambda: mk(lr='1e-3'), "`lr` is a number, or one per parameter group, but got '1e-3'"),
    'swapped in fit':     (lambda: mk().fit(1e-3, 5), "`n_epoch` is a whole number, but got 0.001"),
    'resume':             (lambda: mk().fit(1, resume=[]),
        "`resume` is True, 'auto', or the file of a checkpoint, but got []"),
    'folder':             (lambda: mk().save('models/'), "'models/' names a folder, not a file"),
    'loader later':       (lambda: then(dls=dl), "`dls` is a `DataLoaders`, but got DataLoader"),
    'loss later':         (lambda: then(loss_func=nn.MSELoss),
        "`loss_func` is a function of predictions and targets, but got a class. Did you mean `MSELoss()`?"),
    'model later':        (lambda: then(model=nn.Linear), "Did you mean `Linear()`?"),
    'callbacks later':    (lambda: then(cbs=[3]),
        "`learn.cbs` has been replaced by [3]: callbacks are attached by `learn.add_cbs([…])`"),
    'no optimizer yet':   (lambda: get_hyper(mk().opt, 'lr'), "`learn.create_opt()` makes it now"),
    'reader':             (lambda: mk().predict(object()),
        "`item` is one input as in a dataset, of tensors, arrays, numbers or strings, but got <object"),
}
@pytest.mark.parametrize('what', mistakes)
def test_a_typing_mistake_is_answered(what):
    f,text = mistakes[what]
    with pytest.raises((TypeError,ValueError), match=re.escape(text)): f()

wide = nn.Sequential(*[nn.Linear(300, 300) for _ in range(30)])
large = {
    'splitter': lambda: mk(splitter=[params(wide)]), 'lr': lambda: mk().fit(1, torch.rand(5000)),
    'loss_func': lambda: mk(loss_func=[wide]), 'model': lambda: mk(model=[wide]), 'cbs': lambda: mk(cbs=wide),
    'opt_func': lambda: mk(opt_func=wide.state_dict()), 'n_epoch': lambda: mk().fit(wide), 'bs': lambda:
    DataLoaders.from_dsets(ds, bs=torch.rand(40, 40)), 'ds_idx': lambda: mk().validate(wide),
    'compared': lambda: compare(mk(), mk()), 'metrics': lambda: mk(metrics=[[torch.rand(90, 90)]]),
    'text': lambda: GradientClip('x'*5000), 'dict': lambda: GradientClip({i:torch.rand(90, 90) for i in range(90)})}
class Attrs(dict): __getattr__ = dict.__getitem__
odd = [type('array', (), {})(), type('deque', (), {})(), Attrs(a=1), [Attrs(a=1)]]
@pytest.mark.parametrize('v', odd, ids=['array','deque','dict with attributes','list'])
@pytest.mark.parametrize('call', [lambda v: mk(opt_func=v), lambda v: mk(splitter=v),
    lambda v: GradientClip(max_norm=[v])], ids=['opt_func','splitter','max_norm'])
def test_a_value_that_raises_when_it_is_shown_is_refused_like_others(call, v):
    with pytest.raises((TypeError,ValueError), match='but got'): call(v)

def test_a_wrapped_function_of_groups_makes_an_optimizer():
    def two(groups, lr): return SGD(groups, lr=lr)
    assert mk(opt_func=wraps(two)(lambda groups: two(groups, .1))).fit(1).lr==.1

def test_a_misspelt_argument_of_a_metric_is_told():
    with pytest.raises(TypeError, match='Did you mean `pred`'): accuracy(preds=torch.rand(2, 3), targ=y[:2])
    with pytest.raises(TypeError, match='`pred` is a `Tensor`'): accuracy(np.zeros((2, 3)), np.zeros(2))

def test_a_callback_may_have_metrics_of_its_own_kind():
    cb = type('Mine', (Callback,), dict(new_columns=('other',)))()
    cb.own_metrics = [print]
    assert mk(cbs=cb).fit(1).mode is None

@pytest.mark.parametrize('what', large)
def test_a_large_value_is_shown_in_one_line(what):
    with pytest.raises((TypeError,ValueError)) as e: large[what]()
    assert len(str(e.value))<400 and '\n' not in str(e.value)

class Silent(nn.Linear):
    def __init__(self): super().__init__(3, 2)
    def forward(self, x): super().forward(x)

notes = {
    'classes as numbers': (lambda: mk(loss_func=nn.BCEWithLogitsLoss()).fit(1),
        "There are 2 scores for each target: if targets are classes, give `loss_func=nn.CrossEntropyLoss()`"),
    'splitter':           (lambda: Learner(dls(), nn.Linear(3,2), nn.CrossEntropyLoss(), Adam, 1e-3, accuracy).fit(1),
        "raised by the splitter `accuracy`, which is called with the model"),
    'opt_func':           (lambda: mk(opt_func=lambda: torch.optim.SGD).fit(1),
        "raised by `opt_func`, which is called with nothing but a list of parameter groups: dicts, which have the"),
    'no return':          (lambda: mk(model=Silent()).fit(1),
        "If it returned None, `Silent.forward` has no `return`"),
    'no return, own loss':(lambda: mk(model=Silent(), loss_func=lambda pred, y: pred.sum(), metrics=None).fit(1),
        "If it returned None, `Silent.forward` has no `return`"),
    'yb':                 (lambda: mk().fit(1, cbs=Callback(before_batch=lambda o: setattr(o.learn, 'yb', o.y))),
        "`yb` is a tuple of targets, but is a Tensor now: a callback that changes the only target writes "
        "`self.learn.y = …`"),
    'loss.item()':        (lambda: mk().fit(1, cbs=Callback(after_loss=lambda o: setattr(o.learn, 'loss', .5))),
        "`loss` is a tensor, but the loss function or a callback made it 0.5: leave out `.item()`"),
    'loss of predictions':(lambda: mk(loss_func=lambda pred: pred.sum()).fit(1),
        "`<lambda>` takes predictions alone, and a batch has targets: if it needs none, write "
        "`loss_func=lambda pred, *targets: f(pred)`"),
    'backward':           (lambda: mk().fit(1, cbs=Callback(after_loss=lambda o: o.loss.backward())),
        "The loop calls `backward` itself: leave it out of callbacks and loss"),
    'sample':             (lambda: mk().predict(ds[0]), "leave out the target of a sample, as in `predict(x)`"),
    'list of inputs':     (lambda: mk().predict([*ds[0]]), "several are a tuple: write `predict((x1, x2))`")}
@pytest.mark.parametrize('what', notes)
def test_an_error_of_torch_gets_a_note(what):
    f,text = notes[what]
    with pytest.raises(Exception) as e: f()
    assert any(text in o for o in e.value.__notes__)

def test_a_rate_that_begins_above_the_highest_is_told():
    with pytest.warns(UserWarning, match=r'`div=0.5` begins above .* Did you mean `pct_start=0.5`'):
        mk().fit_one_cycle(1, 1e-2, .5)

def test_a_type_names_mixed_precision():
    assert MixedPrecision(torch.bfloat16).amp_mode=='bf16' and MixedPrecision(torch.float16).amp_mode=='fp16'

def test_a_project_is_given_to_wandb():
    assert WandbLogger(project='a', entity='b').kwargs==dict(project='a', entity='b')

@pytest.mark.parametrize('f', [lambda o: o.get_preds(), lambda o: o.show_results(), lambda o: Interpretation(o),
    lambda o: o.dls[1]])
def test_without_data_to_validate_on_the_training_data_are_proposed(f):
    with pytest.raises(IndexError, match='nothing to validate on. `ds_idx=0` is training'):
        f(mk(dls=DataLoaders(dl, device='cpu')))

def test_a_loader_to_predict_is_known_before_training():
    learn = mk()
    with pytest.raises(KeyError, match="No loader 'test'"): learn.fit(1, cbs=FetchPredsCallback('test'))
    assert not learn.recorder.rows

def test_one_callback_twice_is_attached_once():
    cb = GradientClip()
    assert [o for o in mk(cbs=[cb, cb]).cbs if isinstance(o, GradientClip)]==[cb]

def test_arguments_that_have_no_name_are_not_proposed():
    dl = [(torch.zeros(2, 1), torch.zeros(2, 1))]
    with pytest.raises(TypeError, match='DataLoaders` has no argument `test`') as e: DataLoaders(dl, dl, test=dl)
    assert '`more`' not in str(e.value) and '`n_inp`' in str(e.value)
    with pytest.raises(TypeError, match='no argument `more`'): DataLoaders(dl, more=[dl])

def load(**kwargs): return load_learner(trust=True, **kwargs)
arguments = [ # what is called; an argument that it does not have; what to write
    (mk, 'device', "`DataLoaders(…, device='cuda')`, or `dls.to('cuda')`"),
    (mk, 'momentum', "`opt_func=partial(SGD, mom=.9)`"),
    (partial(SGD, []), 'momentum', "Did you mean `mom`?"),
    (lambda **kw: mk().fine_tune(1, **kw), 'lr_max', "Did you mean `base_lr`?"),
    (lambda **kw: mk().fine_tune(1, **kw), 'n_iter', "Batches are counted by `learn.fit(n_iter=…)`"),
    (lambda **kw: mk().fit_sgdr(**kw), 'n_epoch', "Did you mean `n_cycles=1, cycle_len=10`?"),
    (Checkpoint, 'n_iter', "Did you mean `every=100, unit='iter'`?"), (Checkpoint, 'path', "Did you mean `folder`?"),
    (CSVLogger, 'path', "Did you mean `fname`?"), (CSVLogger, 'file', "Did you mean `fname`?"),
    (lambda **kw: mk().save(**kw), 'path', "Did you mean `file`?"),
    (lambda **kw: mk().save(**kw), 'fname', "Did you mean `file`?"), (load, 'path', "Did you mean `fname`?"),
    (lambda **kw: mk().export(**kw), 'file', "Did you mean `fname`?"),
    (JSONLogger, 'every', "Did you mean `batches`?"), (TensorBoardLogger, 'every', "Did you mean `batches`?"),
    (partial(top_k_accuracy, torch.rand(2, 3), y[:2]), 'n', "Did you mean `k`?"),
    (lambda **kw: mk().lr_find(**kw), 'n', "Did you mean `num_it`?"),
    (lambda **kw: mk().seeds(**kw), 'k', "Did you mean `n`?"),
    (lambda **kw: mk().show_results(**kw), 'n', "Did you mean `max_n`?")]
@pytest.mark.parametrize('f,k,right', arguments)
def test_an_argument_of_another_name_is_answered(f, k, right):
    with pytest.raises(TypeError, match=re.escape(right)) as e: f(**{k: 3})
    assert f'has no argument `{k}`' in str(e.value)

def test_the_usual_arguments_of_other_libraries_have_their_names_here():
    for k,ours in dict(epochs='n_epoch', max_epochs='n_epoch', learning_rate='lr', weight_decay='wd',
            callbacks='cbs').items():
        with pytest.raises(TypeError, match=f'no argument `{k}`. Did you mean `{ours}`'): mk().fit(1, **{k: 1})
    for k in ('loss','loss_fn','criterion'):
        with pytest.raises(TypeError, match=f'no argument `{k}`. Did you mean `loss_func`'): mk(**{k: 1})
    with pytest.raises(TypeError, match='no argument `max_lr`. Did you mean `lr_max`'): mk().fit_one_cycle(1, max_lr=.1)

@pytest.mark.parametrize('read,right', [
    (lambda o: o.recorder.plot_losses, "Did you mean `plot_loss`"),
    (lambda o: o.plot_losses, "Did you mean `plot_loss` of `learn.recorder`"),
    (lambda o: o.plot_loss, r"Write `learn.recorder.plot_loss\(\)`"),
    (lambda o: o.recorder.plot_metric, "Did you mean `plot_metrics`"),
    (lambda o: o.recorder.valid_loss, r"Write `learn.recorder\['valid_loss'\]`"),
    (lambda o: o.recorder.trainer, "A callback's Learner is `self.learn`"),
    (lambda o: o.callbacks, "Did you mean `cbs`"), (lambda o: o.criterion, "Did you mean `loss_func`"),
    (lambda o: mk(default_cbs=False).recorder, "leave out `default_cbs=False`"),
    (lambda o: o.compile, "Write `cbs=Compile`"), (lambda o: o.history, "Write `learn.recorder.rows`"),
    (lambda o: o.dls.train_dl, "Write `dls.train`"), (lambda o: MixUp().opt, "has no Learner yet")])
def test_a_name_of_another_library_is_answered(read, right):
    learn = mk(cbs=(cb := GradientClip()))
    with pytest.raises(AttributeError, match=right): read(learn)
    learn.remove_cb(cb)
    with pytest.raises(AttributeError, match='which has no Learner now'): cb.opt

def test_a_metric_that_fails_for_another_reason_is_told_no_axis():
    learn = mk(model=nn.Linear(3,3), metrics=F1Score())
    with pytest.raises(ValueError, match="give `average='macro'`") as e: learn.fit(1)
    assert not any('write `metrics=' in o for o in e.value.__notes__)

def test_in_after_epoch_there_is_no_row_yet():
    with pytest.raises(KeyError, match='Nothing recorded as `valid_loss`: there is no row yet: a fit has one for each'):
        synth_learner().recorder['valid_loss']
    with pytest.raises(IndexError, match='There is no row yet: .* from `after_row` on'):
        mk().fit(1, cbs=Callback(after_epoch=lambda o: o.recorder[-1, 'valid_loss']))

@pytest.mark.parametrize('opt,shown', [(Adam, 'AdamW'), (partial(Adam, decouple_wd=False), 'Adam'), (SGD, 'SGD')],
    ids=['Adam', 'with an L2 penalty', 'SGD'])
def test_the_optimizer_that_trains_is_shown_before_and_after_the_first_fit(opt, shown):
    learn = mk(opt_func=opt)
    before = repr(learn)
    assert f'optimizer: {shown}\n' in before and repr(learn.fit(1))==before

@pytest.mark.parametrize('name,right', dict(modle='model', dsl='dls', bx='xb', by='yb', mdoe='mode').items())
def test_letters_in_another_order_are_closest(name, right):
    with pytest.raises(AttributeError, match=f'Did you mean `{right}`'): getattr(mk(), name)
