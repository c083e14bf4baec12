"What a fit writes down, and what it shows while it runs"
import copy,gc,io,json,math,operator,os,pickle,re,sys,warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from collections import Counter
from html.parser import HTMLParser
import numpy as np, pytest, torch
from torch.overrides import TorchFunctionMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from learner.all import *
from learner.record.history import missing
from learner.record.loss_stream import LossStream
from learner.record.progress import Best
from learner.record.run_config import plain
from elsewhere import Elsewhere

def const(v, n=2): return [(torch.zeros(2,1), torch.full((2,1), float(v)))]*n
def learner(train=(1,2,3), valid=(2,4), cbs=None, recorder=None, **kwargs):
    "A model that does not learn: predictions are 0, so that losses are the squares of `train` and `valid`"
    model = torch.nn.Linear(1, 1)
    for p in model.parameters(): p.data.zero_()
    dls = DataLoaders([b for o in train for b in const(o, 1)],
        *([] if valid is None else [valid if isinstance(valid, dict) else [b for o in valid for b in const(o, 1)]]),
        device='cpu')
    learn = Learner(dls, model, F.mse_loss,
        **dict(lr=0., metrics=mae) | kwargs).remove_cbs([ProgressCallback, *([] if recorder is None else [Recorder])])
    return learn.add_cbs([*([] if recorder is None else [recorder]), *(cbs or [])])

def dicts(rows): return [dict(o) for o in rows]

def ewma(xs, beta=.98):
    "Average of `xs` with weights that fade by `beta`: written as a weighted sum, not as a recursion"
    return [float(np.average(xs[:n], weights=beta**np.arange(n)[::-1])) for n in range(1, len(xs)+1)]

# Columns
@pytest.mark.parametrize('recorder,valid,names', [
    (Recorder(), (2,), 'epoch train_loss valid_loss mae time'),
    (Recorder(add_time=False), (2,), 'epoch train_loss valid_loss mae'),
    (Recorder(False, True), (2,), 'epoch train_loss train_mae valid_loss valid_mae'), # in the order of fastai
    (Recorder(train_metrics=True), (2,), 'epoch train_loss train_mae valid_loss valid_mae time'),
    (Recorder(valid_metrics=False), (2,), 'epoch train_loss valid_loss time'),
    (Recorder(train_metrics=True, valid_metrics=False), (2,), 'epoch train_loss train_mae valid_loss time'),
    (Recorder(), None, 'epoch train_loss time'),
    (Recorder(train_metrics=True), None, 'epoch train_loss train_mae time'),
    (Recorder(), dict(a=const(2), b=const(3)), 'epoch train_loss a/loss a/mae b/loss b/mae time'),
    (Recorder(train_metrics=True), dict(a=const(2), b=const(3)),
        'epoch train_loss train_mae a/loss a/mae b/loss b/mae time'),
], ids=lambda o: o if isinstance(o, str) else '')
def test_columns(recorder, valid, names):
    learn = learner(valid=valid, recorder=recorder).fit(2)
    rec = learn.recorder
    assert rec is recorder and rec.metric_names==names.split() and [list(o.names) for o in rec.rows]==[names.split()]*2
    expected = dict(epoch=1, train_loss=ewma([1.,4.,9.]*2)[-1], train_mae=2., valid_loss=4., valid_mae=2.,
        mae=2.) | {'a/loss':4., 'a/mae':2., 'b/loss':9., 'b/mae':3.}
    assert {k:v for k,v in dict(rec.rows[-1]).items() if k!='time'}==pytest.approx(
        {k:expected[k] for k in names.split() if k!='time'})

nan = float('nan')
@pytest.mark.parametrize('cb,expected', [
    (Raise('before_batch', CancelTrainException, 3), [(0, ewma([1,4])[-1], 10, 3), (1, ewma([1,4,1,4,9])[-1], 10, 3)]),
    (Raise('before_train', CancelTrainException),    [(0, nan, 10, 3), (1, ewma([1,4,9])[-1], 10, 3)]),
    (Raise('before_validate', CancelValidException),
        [(0, ewma([1,4,9])[-1], nan, nan), (1, ewma([1,4,9]*2)[-1], 10, 3)]),
    (Raise('before_batch', CancelValidException, 5), [(0, ewma([1,4,9])[-1], 4, 2), (1, ewma([1,4,9]*2)[-1], 10, 3)]),
    (Raise('before_batch', CancelEpochException, 5),
        [(0, ewma([1,4,9])[-1], nan, nan), (1, ewma([1,4,9]*2)[-1], 10, 3)]),
    (Raise('before_train', CancelEpochException),    [(0, nan, nan, nan), (1, ewma([1,4,9])[-1], 10, 3)]),
    (Raise('before_validate', CancelFitException, 2), [(0, ewma([1,4,9])[-1], 10, 3)]),
    (Raise('after_pred', CancelBatchException, 2),   [(0, ewma([1,9])[-1], 10, 3), (1, ewma([1,9,1,4,9])[-1], 10, 3)]),
    (Raise('before_batch', CancelBatchException, 1), [(0, ewma([4,9])[-1], 10, 3), (1, ewma([4,9,1,4,9])[-1], 10, 3)]),
    (Raise('after_pred', CancelBatchException, 4),   [(0, ewma([1,4,9])[-1], 16, 4), (1, ewma([1,4,9]*2)[-1], 10, 3)]),
], ids=lambda o: f'{o.exc.__name__}-{o.ev}-{o.n}' if isinstance(o, Raise) else '')
def test_what_was_cancelled_does_not_shift_columns_or_count(cb, expected):
    cb.count = 0
    learn = learner(cbs=[cb], recorder=Recorder(add_time=False)).fit(2)
    assert [tuple(o) for o in learn.recorder.rows]==[pytest.approx(o, nan_ok=True) for o in expected]
    assert (len(learn.recorder.lrs)==len(learn.recorder.raw_losses)
        and len(learn.recorder.iters)==len(learn.recorder.rows))

def test_metrics_in_training_are_of_the_completed_batches_of_one_epoch():
    learn = learner(recorder=Recorder(train_metrics=True), cbs=[Raise('after_pred', CancelBatchException, 3)]).fit(2)
    assert list(learn.recorder['train_mae'])==[1.5, 2.]

def test_each_fit_begins_a_new_history_and_validation_keeps_it():
    learn = learner().fit(2)
    learn.validate(); learn.validate(0)
    assert len(learn.recorder.rows)==2 and len(learn.recorder.losses)==6
    learn.fit(1)
    assert len(learn.recorder.rows)==1 and len(learn.recorder.losses)==3

def test_a_metric_that_is_added_later():
    learn = learner(metrics=None).fit(1)
    assert 'mae' not in learn.recorder.metric_names
    learn.metrics = [mae, mse]
    assert learn.fit(1).recorder.metric_names==['epoch', 'train_loss', 'valid_loss', 'mae', 'mse', 'time']

def test_metrics_that_are_replaced_within_a_fit():
    def before_epoch(self):
        if self.epoch==1: self.learn.metrics = [mse, accuracy_of_sign]
    def accuracy_of_sign(pred, targ): return (pred.sign()==targ.sign()).float().mean()
    accuracy_of_sign.higher_is_better = True
    learn = learner(cbs=[Callback(before_epoch=before_epoch)]).fit(3)
    expected = learn.validate()
    rec,names = learn.recorder,['mse','accuracy_of_sign']
    assert [k for k in rec.metric_names if k in names]==names
    assert not np.isnan(rec['mae'][0]) and np.isnan(rec['mae'][1:]).all()
    for k in names: assert np.isnan(rec[k][0]) and not np.isnan(rec[k][1:]).any() and rec[-1, k]==expected[k]
    assert rec.higher_is_better['mse'] is False and rec.higher_is_better['accuracy_of_sign'] is True

def test_time_is_seconds_of_each_epoch(monkeypatch):
    now = [100.]
    monkeypatch.setattr('learner.record.table.time', SimpleNamespace(perf_counter=lambda: now[0]))
    def wait(self): now[0] += .5*(1+self.epoch)
    # 3 batches for training, and 2
    ts = learner(cbs=[Callback(before_epoch=wait, after_batch=wait)]).fit(2).recorder['time']
    assert list(ts)==[.5*6, 1.*6] and isinstance(ts[0], float)

# Access
def test_rows_and_columns():
    rec = learner().fit(4).recorder
    assert rec[-1]==rec.rows[-1] and rec[:2]==rec.rows[:2]
    assert (isinstance(rec['epoch'], np.ndarray) and list(rec['epoch'])==[0,1,2,3] and list(rec[2:, 'epoch'])==[2,3]
        and list(rec[::2, 'epoch'])==[0,2])
    assert rec[-1, 'valid_loss']==10. and rec[1].mae==rec[1]['mae']==rec[1][3]==3.
    assert rec.values[-1].names==('train_loss', 'valid_loss', 'mae')==rec.final_record.names and rec.log==rec[-1]
    assert rec.iters==[3,6,9,12] and rec.smooth_loss==rec.losses[-1]
    with pytest.raises(KeyError): rec[0, 'acc']

class EachClass(Metric):
    "A value for each class, which stays on the device"
    def reset(self): pass
    def accumulate(self, learn): pass
    @property
    def value(self): return Elsewhere(torch.tensor([.25,.75]))

def test_columns_of_metrics_with_several_values_are_read_where_the_batches_are_on_a_gpu():
    rec = learner(metrics=EachClass()).fit(2).recorder
    assert [o.each_class.tolist() for o in rec.rows]==[[.25,.75]]*2 and {o.each_class.device.type for o in rec}=={'cpu'}
    assert np.array_equal(np.stack(rec['each_class']), [[.25,.75]]*2)

def test_rows_are_tuples_with_names_that_can_be_pickled_and_copied():
    row = Row(a=1, b=2.)
    assert row==(1, 2.) and dict(row)=={'a':1, 'b':2.} and {*'ab'}<={*dir(row)} and isinstance(row, tuple)
    for o in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row)): assert o==row and o.names==row.names and o.b==2.

def test_rows_have_items_and_values_unless_these_are_columns():
    row = Row(a=1, b=2.)
    assert [*row.items()]==[('a', 1), ('b', 2.)] and [*row.values()]==[1, 2.]
    assert (other := Row(items=3, a=1)).items==3 and [*other.values()]==[3, 1]

def test_rows_may_have_columns_of_any_name():
    row = Row(**{'cls':1, 'self':2, 'a b':3, 'keys':4})
    assert (row['cls'], row['self'], row['a b'], row['keys'])==row==(1,2,3,4)
    rec = learner(metrics=dict(cls=mae, self=mse),
        cbs=[Callback(after_train=lambda cb: cb.recorder.add(**{'self/x': 1}))]).fit(1).recorder
    assert (rec[0]['cls'], rec[0]['self'], rec[0]['self/x'])==(3., 10., 1.)

# Columns that come and go
def adding(*vals, names=('x',)):
    "Adds one of `vals` in each epoch, but for None"
    vals = iter(vals)
    def add(self):
        if (v := next(vals)) is not None: self.recorder.add(**{k:v for k in names})
    return Callback(after_train=add)

def test_a_value_is_a_number_if_it_can_be():
    vals = [1, 2.5, torch.tensor(3), torch.tensor([4.]), np.float32(5), np.int64(6), np.array(7.), True]
    rec = learner(cbs=[adding(*vals)]).fit(8).recorder
    # Python's own stay what they are
    assert list(rec['x'])==[1,2.5,3,4,5,6,7,1] and {type(o.x) for o in rec.rows}=={float,int,bool}
    rec = learner(cbs=[adding('a', [1,2], np.arange(2))]).fit(3).recorder
    assert [rec[0].x, rec[1].x, list(rec[2].x)]==['a', [1,2], [0,1]]

def test_what_is_no_real_number_is_kept():
    one = np.array([2j])
    vals = [np.array(['cat','dog'])[1], np.array('cat'), np.complex64(1j), torch.tensor(2j), one, np.datetime64(3,'ns')]
    rec = learner(cbs=[adding(*vals)]).fit(6).recorder
    assert [o.x for o in rec.rows]==['dog','cat',*vals[2:]] and type(rec[0].x) is type(rec[1].x) is str
    one[0] = 0
    assert rec[4].x==[2j] and repr(rec) # a copy

def test_integers_that_float_cannot_hold_stay_exact():
    rec = learner(cbs=[adding(torch.tensor(2**60+1), np.uint64(2**64-1), torch.tensor(2**60))]).fit(3).recorder
    assert [o.x for o in rec.rows]==[2**60+1, 2**64-1, 2**60] and type(rec[2].x) is float

@pytest.mark.parametrize('name', ['epoch','train_loss','valid_loss','mae','time'])
def test_a_column_of_the_recorder_is_its_own(name):
    with pytest.raises(ValueError,
            match=f"`{name}` is a column that the recorder fills itself: .* such as `my_{name}`"):
        learner(cbs=[adding(1., names=[name])]).fit(1)

def test_a_column_can_be_dropped():
    def drop(self):
        if self.epoch==1: self.recorder.drop('mae')
    learn = learner(cbs=[adding(1,2,3), Callback(after_train=drop)]).fit(3)
    rec = learn.recorder
    assert (rec.metric_names==['epoch', 'train_loss', 'valid_loss', 'time', 'x']==rec.rows.names
        and all(o.names==tuple(rec.metric_names) for o in rec.rows))
    assert list(rec['x'])==[1,2,3] and learn.results.mae==3.
    rec.drop('x')
    assert [o.get('x') for o in rec.rows]==[missing]*3
    with pytest.raises(KeyError, match='Nothing recorded as `mae`, but `epoch`'): rec['mae']
    with pytest.raises(KeyError, match='Did you mean `valid_loss`'): rec.drop('val_loss')

def test_what_was_to_come_can_be_dropped():
    def f(self): self.recorder.add(x=1, y=2); self.recorder.drop('x')
    assert learner(cbs=[Callback(after_train=f)]).fit(1).recorder.metric_names[-2:]==['time', 'y']

def test_last_is_the_latest_that_is_not_missing():
    rec = learner(cbs=[adding(None,5,6,None), Raise('before_validate', CancelValidException, 4)]).fit(4).recorder
    assert rec[-1,'x'] is missing and rec.last('x')==6. and rec.last('valid_loss')==10. and rec.last('epoch')==3
    rec.rows.clear()
    assert rec.last('valid_loss') is missing
    with pytest.raises(KeyError, match='Did you mean `valid_loss`'): rec.last('vald_loss')

def test_history_finds_the_best():
    h = History([Row(a=3.), Row(a=nan), Row(a=1.), Row(b='x'), Row(a=1.), Row(a=4.)])
    assert (h.best('a', higher=True), h.best('a', higher=False), h.best('b', higher=True),
        History().best('a', True))==(5, 2, None, None)
    assert (h.names==['a','b'] and isinstance(h[1:3], History) and list(h[4:, 'a'])==[1.,4.]
        and copy.deepcopy(h)[0]==h[0] and pickle.loads(pickle.dumps(h))[3].b=='x')
    h.drop('a')
    assert h.names==['b'] and len(h)==6

def test_the_best_may_be_of_numpy_or_torch():
    vals = np.float64(nan),np.float32(2),torch.tensor([3.]),np.int64(1),torch.ones(2)*9,1j,np.str_('9')
    h = History([Row(a=o) for o in vals])
    assert h.best('a', higher=True)==2 and h.best('a', higher=False)==3

def test_history_as_a_data_frame():
    pandas = pytest.importorskip('pandas')
    df = learner(cbs=[adding(None, 'a')]).fit(2).recorder.rows.to_df()
    assert (isinstance(df, pandas.DataFrame)
        and list(df.columns)==['epoch', 'train_loss', 'valid_loss', 'mae', 'time', 'x']
        and list(df['valid_loss'])==[10.,10.])

@pytest.mark.parametrize('kind', ['tensor','list'])
def test_a_metric_of_several_values_is_a_column_with_gaps(kind):
    class Several(Metric):
        def accumulate(self, learn): pass
        def reset(self): pass
        value = torch.tensor([1.,2.]) if kind=='tensor' else [1.,2.]
    rows = learner(metrics=Several(), cbs=[Validate(2)]).fit(3).recorder.rows
    assert np.array_equal(rows['several'], [[np.nan]*2, [1.,2.], [1.,2.]], equal_nan=True)
    pytest.importorskip('pandas')
    assert np.isnan((column := rows.to_df()['several'])[0]) and list(column[1])==[1.,2.]

def test_what_is_better_is_known_by_column():
    class Wild(Metric):
        name,higher_is_better,value = 'wild',True,1.
        def reset(self): pass
        def accumulate(self, learn): pass
    valid = dict(a=const(2), valid=const(3))
    rec = learner(valid=valid, metrics=[mae, Wild(), AvgMetric(lambda p,t: p.mean(), 'neutral')],
        recorder=Recorder(train_metrics=True)).fit(1).recorder
    assert rec.higher_is_better=={'train_loss':False, 'train_mae':False, 'train_wild':True, 'a/loss':False,
        'a/mae':False, 'a/wild':True, 'valid_loss':False, 'valid_mae':False, 'valid_wild':True}

def test_a_metric_that_is_also_of_training_is_monitored_in_validation():
    with pytest.raises(ValueError, match='`mae` is to be monitored and is not recorded, but .*Did you mean '
            '`valid_mae`'):
        learner(recorder=Recorder(train_metrics=True)).fit(1, cbs=EarlyStoppingCallback('mae'))

def test_metrics_that_know_nothing_of_what_is_better_are_fine():
    class Duck:
        name,value = 'duck',1.
        def reset(self): pass
        def accumulate(self, learn): pass
    rec = learner(metrics=Duck(), recorder=Recorder(train_metrics=True)).fit(1).recorder
    assert rec.higher_is_better=={'train_loss':False, 'valid_loss':False} and rec[0].train_duck==rec[0].valid_duck==1.

# What a fit is made of
def print_nothing(learn): pass

def test_columns_that_begin_alike():
    h = History([Row(loss=1., **{'ema/loss':2., 'ema/acc':.5}), Row(loss=3., **{'ema/loss':4.})])
    assert (h['ema/'].names==['ema/loss','ema/acc']
        and dicts(h['ema/'])==[{'ema/loss':2., 'ema/acc':.5}, {'ema/loss':4., 'ema/acc':missing}])
    assert (list(h['ema/']['ema/loss'])==[2.,4.] and dict(h[0, 'ema/'])=={'ema/loss':2., 'ema/acc':.5}
        and dicts(h[1:, 'ema/'])==dicts(h['ema/'])[1:])
    assert 'ema/acc' in str(h['ema/']).split() and 'loss' not in str(h['ema/']).split()
    with pytest.raises(KeyError, match="Nothing recorded as `eme/`, but `loss`, `ema/loss`, `ema/acc`"): h['eme/']
    rec = synth_learner(metrics=mae, cbs=EMA(.9, validate='both')).fit(2).recorder
    assert rec['ema/'].names==['ema/valid_loss','ema/mae'] and list(rec['ema/']['ema/mae'])==list(rec['ema/mae'])

def test_nothing_is_added_where_no_row_will_come():
    learn = synth_learner()
    with pytest.raises(RuntimeError, match="`add` puts `a`, `b` into the coming row of a fit, and none is running$"):
        learn.recorder.add(a=1, b=2)
    learn.fit(1)
    names = list(learn.recorder.metric_names)
    with pytest.raises(RuntimeError, match="into the coming row of a fit, and none is running"): learn.recorder.add(a=1)
    learn.add_cb(Callback(after_validate=lambda self: self.recorder.add(a=1)))
    with pytest.raises(RuntimeError,
            match="none is running, but `predict`: a callback with `only_fit = True` is not called there"):
        learn.get_preds()
    assert learn.recorder.metric_names==names
    assert learn.fit(1).recorder['a']==[1]
    with pytest.raises(RuntimeError, match="none is running$"): Recorder().add(a=1)

def test_run_config():
    ds = torch.utils.data.TensorDataset(torch.randn(24,1), torch.randn(24,1))
    model = torch.nn.Sequential(torch.nn.Linear(1,3), torch.nn.Linear(3,1))
    loss = torch.nn.HuberLoss(delta=.5)
    learn = Learner(DataLoaders.from_dsets(ds, ds, bs=4, device='cpu'), model, loss, opt_func=partial(Adam, mom=.8),
        lr=[.1,.2], splitter=lambda m: [list(o.parameters()) for o in m],
        metrics=[mae, rmse()], cbs=GradientClip(.5)).remove_cb(ProgressCallback)
    learn.freeze().fit(2, n_iter=9, cbs=[ShortEpochCallback(.75), on('after_batch', every=2)(print_nothing)])
    c = learn.run_config
    assert (c['n_epoch'], c['n_iter'], c['n_step'], c['start_epoch'])==(2, 9, None, 0)
    assert (c['bs']==dict(train=4, valid=8) and c['n_batches']==dict(train=6, valid=3)
        and c['model']==dict(name='Sequential', n_params=10, n_trainable=4))
    assert (c['loss']==dict(name='HuberLoss', reduction='mean', delta=.5) and c['metrics']==('mae','rmse')
        and c['device']=='cpu')
    assert c['opt']==dict(name='AdamW', lr=(.1,.2), mom=(.8,.8), sqr_mom=(.99,.99), wd=(.01,.01), eps=(1e-5,1e-5))
    assert (list(c['callbacks'])==['train_eval', 'short_epoch', 'print_nothing', 'gradient_clip', 'recorder']
        and c['callbacks']['short_epoch']==dict(name='ShortEpochCallback', pct=.75, short_valid=True))
    assert (c['callbacks']['gradient_clip']['max_norm']==.5
        and c['callbacks']['print_nothing']==('after_batch(every=2)',) and c['versions']['torch']==torch.__version__
        and {*c['versions']}=={'python','torch','learner'})
    assert c.flat()['opt.lr']==(.1,.2) and c.flat()['callbacks.short_epoch.pct']==.75 and 'opt.lr' in repr(c)
    learn.validate(); learn.get_preds()
    assert learn.run_config is c
    learn.unfreeze().fit(1)
    assert (learn.run_config['model']['n_trainable']==10 and c['model']['n_trainable']==4
        and learn.run_config['n_epoch']==1)

def test_run_config_says_bounds_limits_and_schedules(monkeypatch):
    learn = synth_learner(n_train=10)
    def config(*cbs, fit=learn.fit, **kwargs):
        fit(cbs=list(cbs), **(kwargs or dict(n_epoch=1))); return learn.run_config
    c = config(n_iter=3)
    assert (c['n_epoch'], c['n_iter'])==(None, 3) and c['limits']=={}
    assert config(Limit(train=3))['limits']==dict(train=3) and config(Limit(valid=1))['limits']==dict(valid=1)
    with limit_batches(2): assert config(Limit(train=1))['limits']==dict(train=1, valid=2)
    monkeypatch.setenv('LEARNER_LIMIT_BATCHES', '1')
    assert config()['limits']==dict(train=1, valid=1)
    monkeypatch.delenv('LEARNER_LIMIT_BATCHES')
    assert (config(TrackerCallback(comp=np.less))['callbacks']['tracker']['comp']=='less'
        and config(TrackerCallback(comp=operator.lt))['callbacks']['tracker']['comp']=='lt')
    assert config(fit=learn.fit_one_cycle, n_epoch=1, lr_max=.5, div=5.,
        div_final=2.)['callbacks']['param_scheduler']['scheds'][
        'lr']=='[25% sched_cos(0.1 → 0.5), 75% sched_cos(0.5 → 0.25)]'
    assert learn.run_config['callbacks']['recorder']==dict(name='Recorder', train_metrics=False, valid_metrics=True,
        add_time=True, beta=.98, count=None)
    assert config(fit=learn.fit_sgdr, n_cycles=2, cycle_len=1,
        lr_max=.5)['callbacks']['param_scheduler']['scheds'][
        'lr']=='[33.33% sched_cos(0.5 → 0.0), 66.67% sched_cos(0.5 → 0.0)]'
    sched = ParamScheduler(dict(lr=SchedPoly([.1], [0.], 2)))
    assert config(sched)['callbacks']['param_scheduler']['scheds']['lr']=='sched_poly([0.1] → [0.0], power=2.0)'

def test_run_config_is_json_and_cannot_be_changed():
    c = synth_learner().fit(1).run_config
    assert (json.loads(json.dumps(c))==json.loads(json.dumps(dict(c)))
        and json.loads(json.dumps(c))['bs']==dict(train=16, valid=16))
    for f in (lambda: c.update(a=1), lambda: c.pop('bs'), lambda: c['bs'].clear(), lambda: c.setdefault('a', 1),
            lambda: c['opt'].__setitem__('lr', 2), lambda: c.popitem(), lambda: c.__delitem__('bs')):
        with pytest.raises(TypeError, match='cannot be changed, but a copy of them can'): f()
    with pytest.raises(TypeError, match='cannot be changed'): c |= dict(a=1)
    for o in (pickle.loads(pickle.dumps(c)), copy.deepcopy(c), copy.copy(c)):
        assert o==c and type(o) is type(c) and type(o['opt']) is type(c)
    free = dict(c)
    free['bs'] = 1

def test_plain_reads_nothing_and_comes_to_an_end():
    class Odd:
        def __init__(self, a, weight, me=None): self.a,self.weight,self.me = a,weight,self
    with Scalars() as ops: res = plain(Odd(float('inf'), torch.randn(3,2)))
    assert (not ops.seen.total() and res['weight']=='Tensor (3, 2)' and res['a']=='inf'
        and res['me']['me']['me']['me']=='Odd')
    assert plain([missing, nan, np.float32(.5), torch.float16, Path('a/b'), {1:{2}}, partial(mae, x=1), mae,
        torch.nn.ReLU, list(range(101))])==(
        None, 'nan', .5, 'torch.float16', 'a/b', {'1':(2,)}, dict(name='mae', x=1), 'mae', 'ReLU', 'list')

def test_a_model_that_does_not_know_its_size_yet_can_be_described():
    learn = synth_learner(model=torch.nn.LazyLinear(1)).fit(1)
    assert (learn.run_config['model']==dict(name='LazyLinear', n_params=0, n_trainable=2)
        or learn.run_config['model']['n_params']==0)
    assert learn.fit(1).run_config['model']==dict(name='Linear', n_params=2, n_trainable=2)

def test_tables():
    rec = learner().fit(2).recorder
    lines = text_table(rec.metric_names, rec.rows).splitlines()
    assert (lines[0].split()==rec.metric_names
        and lines[1].split()==['0', f'{rec[0].train_loss:.6f}', '10.000000', '3.000000', '00:00'])
    assert len({len(o) for o in lines})==1 and str(rec)=='\n'.join(lines)
    assert table_of(rec._repr_html_())==[o.split() for o in lines]
    assert text_row(['time'], [3661.]).strip()=='61:01' and text_row(['x'], [nan]).strip()=='nan'

class Cells(HTMLParser):
    rows,inside = (),False
    def handle_starttag(self, tag, attrs):
        if tag=='table': self.rows = []
        if tag=='tr': self.rows.append([])
        if tag in ('td','th'): self.rows[-1].append('')
        self.inside = tag in ('td','th','b')
    def handle_endtag(self, tag): self.inside = False
    def handle_data(self, data):
        if self.inside: self.rows[-1][-1] += data
def table_of(html):
    p = Cells(); p.feed(html); p.close()
    return [[o.strip() for o in r] for r in p.rows]

def test_names_that_look_like_html_are_shown():
    rec = learner(metrics={'<lambda>': lambda pred,targ: pred.mean()}).fit(1).recorder
    assert table_of(rec._repr_html_())[0]==['epoch', 'train_loss', 'valid_loss', '<lambda>', 'time']

def leave_out(learn): raise CancelBatchException

def test_a_loss_that_is_nan_can_be_seen():
    learn = learner(train=(nan,), valid=None).fit(1)
    assert 'nan' in str(learn.recorder)

@pytest.mark.parametrize('cbs,where,advice', [
    (lambda: [], 'batch 4 of the fit', True),
    (lambda: [on(event.before_batch(before=4))(leave_out)], 'batch 1 of those with a loss', True),
    (lambda: [on(event.after_loss(before=4))(leave_out)], 'batch 4 of the fit', True),
    (lambda: [SpikeGuard(skip=False)], 'batch 4 of the fit', False)], ids=['none','cancelled','after loss','guard'])
def test_a_loss_that_is_nan_is_told_with_its_place_and_what_helps(cbs, where, advice, recwarn):
    def spoil(learn):
        if learn.train_iter==4 and learn.training: learn.xb = learn.x*nan,
    synth_learner(n_train=6, n_valid=0, cbs=[on(event.before_batch, order=9)(spoil),
        *cbs()]).fit(1)
    told, = [str(o.message) for o in recwarn if 'training loss' in str(o.message)]
    assert f'is nan in {where}, counted from 0' in told and ('TerminateOnNaNCallback' in told)==advice

def test_what_is_missing_is_not_shown():
    rec = learner(cbs=[Raise('before_validate', CancelValidException)]).fit(1).recorder
    assert ('nan' not in str(rec) and str(rec).split()[-2:]==[f'{rec[0].train_loss:.6f}', '00:00']
        and np.isnan(rec[0].mae))

# Losses
@pytest.mark.parametrize('n', [1, 255, 256, 257, 513])
def test_losses_are_those_of_the_batches_also_in_bundles(n):
    assert Recorder.bundle==256
    seen,lrs = [],[]
    def note(self):
        if self.training: seen.append(self.loss.item()); lrs.append(self.opt.param_groups[-1]['lr'])
    def anneal(self): self.learn.set_hyper('lr', .1*(1-self.pct_train))
    learn = synth_learner(n_train=n, n_valid=0, cbs=[Callback(after_loss=note), Callback(before_batch=anneal)]).fit(2)
    rec = learn.recorder
    assert rec.raw_losses==seen and rec.lrs==lrs and rec.iters==[n, 2*n] and lrs[0]==.1
    assert rec.losses==pytest.approx(ewma(seen), rel=1e-6)
    assert rec['train_loss']==pytest.approx([rec.losses[n-1], rec.losses[-1]])

@pytest.mark.parametrize('beta', [0., .5, .9])
def test_beta(beta):
    rec = learner(train=(1,2,3,4), recorder=Recorder(beta=beta)).fit(1).recorder
    assert rec.losses==pytest.approx(ewma([1.,4.,9.,16.], beta))

def test_losses_can_be_read_in_the_middle_of_an_epoch():
    class Look(Callback):
        order = Recorder.order+1
        def after_batch(self): seen.append((len(self.recorder.losses), self.recorder.latest()))
    seen = []
    learner(cbs=[Look()]).fit(1)
    assert [o for o,_ in seen]==[1,2,3,3,3] and [o for _,o in seen[:3]]==pytest.approx(ewma([1.,4.,9.]))

# Snapshots
def plain_state(state): return {k:dicts(v) if k=='rows' else v for k,v in copy.deepcopy(state).items() if k!='time'}

class Moments(Callback):
    "Takes a snapshot and the state of the recorder between batches and phases, and compares them whenever asked"
    order = Recorder.order+1
    def __init__(self): self.pairs = []
    def take(self): self.pairs.append((self.recorder.state_snapshot(), plain_state(self.recorder.state_dict())))
    def before_draw(self): self.take()
    def before_validate(self): self.take()
    def after_validate(self): self.take()
    def after_epoch(self): self.take()
    def check(self):
        for snap,state in self.pairs:
            for _ in range(2): assert_same(plain_state(snap.state_dict()), state)
        return len(self.pairs)

def assert_same(a, b):
    assert a.keys()==b.keys()
    for k in a: assert pickle.dumps(a[k])==pickle.dumps(b[k]) or a[k]==b[k] or repr(a[k])==repr(b[k]), k

class Gathers(Metric):
    "Grows a list in place, and a nested one"
    name = 'gathers'
    def reset(self): self.seen,self.nested = [],[[]]
    def accumulate(self, learn): self.seen.append(learn.iter); self.nested[0].append(learn.iter)
    @property
    def value(self): return len(self.seen)

def moments(**kwargs):
    cb = Moments()
    return learner(cbs=[cb, *kwargs.pop('cbs', [])], metrics=[mae, Gathers()], **kwargs),cb

@pytest.mark.parametrize('bundle', [1, 2, 256])
def test_a_snapshot_is_the_state_of_its_moment(bundle, monkeypatch):
    monkeypatch.setattr(Recorder, 'bundle', bundle)
    learn,cb = moments(recorder=Recorder(train_metrics=True))
    learn.fit(3)
    n = cb.check()
    assert n>20 and len({len(state['_raw']) for _,state in cb.pairs})==10
    learn.fit(2)                                  # new lists: the old moments keep theirs
    assert cb.check()>n

def test_a_snapshot_keeps_a_column_that_is_dropped_later():
    def drop(self):
        if self.epoch==1: self.recorder.drop('mae')
    lists = []
    learn,cb = moments(cbs=[adding([1], [2], None), Callback(after_train=drop),
        Callback(after_row=lambda self: lists.append(self.recorder.rows))])
    learn.fit(3)
    assert cb.check() and {'mae' in state['names'] for _,state in cb.pairs}=={True,False}

def test_a_snapshot_keeps_values_that_are_changed_later():
    val = []
    def grow(self): val.append(self.epoch); self.recorder.add(x=val)
    learn,cb = moments(cbs=[Callback(before_validate=grow)])
    cb.order = 100
    learn.fit(2)
    snaps = [(snap.state_dict()['vals'].get('x'), state['vals'].get('x')) for snap,state in cb.pairs]
    assert ([0],[0]) in snaps and all(a==b for a,b in snaps)

def test_a_snapshot_does_not_wait_for_the_device():
    learn,cb = moments(recorder=Recorder())
    class Look(Callback):
        order = Recorder.order+2
        def after_batch(self):
            if not self.training: return
            snaps.append(self.recorder.state_snapshot()); seen.append(len(self.recorder.stream.waiting))
    snaps,seen = [],[]
    learner(cbs=[Look()]).fit(1)
    assert seen==[1,2,3] and [len(o.state_dict()['_raw']) for o in snaps]==[1,2,3] # nothing was read

def test_a_snapshot_costs_the_same_after_many_epochs():
    "None of the recorder's lists is read"
    class Closed(list):
        def __iter__(self, *args): raise AssertionError('read')
        __getitem__ = copy = __iter__
    rec = learner().fit(2).recorder
    rec.iters,rec.lrs,rec.stream.raw,rec.stream.smooth = map(Closed, (rec.iters, rec.lrs, rec.raw_losses, rec.losses))
    snap = rec.state_snapshot()
    with pytest.raises(AssertionError, match='read'): snap.state_dict()

@pytest.mark.parametrize('beta', [.98, .5])
def test_a_restored_recorder_goes_on_as_if_it_had_not_stopped(beta):
    whole = learner(recorder=Recorder(add_time=False)).fit(4).recorder
    half = learner(recorder=Recorder(add_time=False)).fit(2).recorder
    state,snaps = half.state_snapshot().state_dict(),[]
    class Restore(Callback):
        order = Recorder.order+1
        def before_fit(self): self.recorder.load_state_dict(state)
        def after_batch(self): snaps.append((self.recorder.state_snapshot(), self.recorder.state_dict()))
    rest = learner(recorder=Recorder(add_time=False, beta=beta), cbs=[Restore()]).fit(4, start_epoch=2).recorder
    if beta==.98: assert dicts(rest.rows)==dicts(whole.rows) and rest.losses==whole.losses
    assert rest.raw_losses==whole.raw_losses and rest.iters==whole.iters and rest.lrs==whole.lrs
    # the average too, whatever `beta` was before
    assert all(a.state_dict()|dict(time=0)==b|dict(time=0) for a,b in snaps)

def test_the_recorded_loss_is_the_logged_one():
    def replace(self): self.learn.loss = self.loss.detach()*0+7; self.learn.loss_grad = self.loss_grad*2
    learn = learner(cbs=[Callback(after_loss=replace)]).fit(1)
    assert learn.recorder.raw_losses==[7.]*3 and learn.results.valid_loss==7.

@pytest.mark.parametrize('value', ['nan', 'inf'])
@pytest.mark.parametrize('bad,first,n', [(range(4, 9), 4, 2), ([1, *range(5, 9)], 1, 2), ([1], None, 0), ([], None, 0)])
def test_the_first_loss_that_is_not_finite_is_told_once_if_the_last_of_an_epoch_is_not(bad, first, n, value):
    def spoil(self):
        if self.train_iter in bad: self.learn.loss = self.loss*float(value)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn = learner(cbs=[Callback(after_loss=spoil)]).fit(3)
    said = [str(o.message) for o in found if 'TerminateOnNaNCallback' in str(o.message)]
    assert len(said)==(first is not None)
    assert all(f'is {value} in batch {first} of the fit' in o and f'in {n} of 6 so far' in o for o in said)
    finite = [math.isfinite(o) for o in learn.recorder['train_loss']]
    assert finite==[3*i-1 not in bad for i in (1,2,3)] # the last loss of the epoch

@pytest.mark.parametrize('bad', ['nan', 'inf', '-inf'])
def test_a_loss_that_is_not_finite_is_left_out_of_the_average_and_of_a_restored_one(bad):
    def filled(losses):
        res = LossStream(bundle=2)
        for o in losses: res.append(torch.tensor(o))
        return res
    whole,without = filled([2., float(bad), 3., 1.]),filled([2., 3., 1.])
    assert whole.all()[1][2:]==without.all()[1][1:] and whole.state_dict(3)['avg']==without.state_dict(2)['avg']
    rest = LossStream()
    rest.load_state_dict(whole.state_dict(3))
    rest.append(torch.tensor(1.))
    assert rest.all()[1][-1]==without.all()[1][-1]

def test_losses_of_a_gpu_that_is_not_the_current_one_are_read_when_its_copies_are_done(monkeypatch):
    "Each device has a queue of its own: `queues` says where work is waiting"
    other,queues = torch.device('cuda', 1),{torch.device('cuda', i): False for i in range(2)}
    class OnOther(torch.Tensor):
        is_cuda,device = True,other
        def to(self, *args, **kwargs):
            queues[other] = True
            return self.as_subclass(torch.Tensor)
    class Event:
        def record(self, queue=torch.device('cuda', 0)): self.queue = queue
        def query(self): return not queues[self.queue]
        def synchronize(self): queues[self.queue] = False
    monkeypatch.setattr(torch.cuda, 'Event', Event)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device=torch.device('cuda', 0): device)
    losses = LossStream()
    for o in (1., 2.): losses.append(torch.tensor(o).as_subclass(OnOther))
    assert losses.arrived()[0]==[] and len(losses)==2
    queues[other] = False
    assert losses.arrived()[0]==[1., 2.]

def test_validation_losses_weigh_samples_not_batches():
    valid = [*const(1, 1), (torch.zeros(6,1), torch.full((6,1), 3.))]
    learn = learner(valid=dict(v=valid)).fit(1)
    assert dict(learn.results)=={'v/loss':(2*1+6*9)/8, 'v/mae':(2*1+6*3)/8}

def test_plots_need_no_validation_and_find_columns_by_name():
    import matplotlib; matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    for kwargs in (dict(valid=None), dict(recorder=Recorder(train_metrics=True)),
            dict(valid=dict(a=const(2), b=const(3)))):
        learn = learner(**kwargs).fit(2)
        ax = learn.recorder.plot_loss(skip_start=0, show_epochs=True)
        lines = {o.get_label():o for o in ax.lines if not o.get_label().startswith('_')}
        assert (list(lines['train, smoothed'].get_ydata())==learn.recorder.losses
            and list(lines['train, smoothed'].get_xdata())==[1,2,3,4,5,6])
        assert [*lines][1:]=={None:[],
            2:['a','b']}.get(kwargs.get('valid') and len(kwargs['valid']) if 'valid' in kwargs else 1, ['valid'])
        for k in [*lines][1:]:
            assert list(lines[k].get_ydata())==list(learn.recorder['valid_loss' if k=='valid' else f'{k}/loss'])
        plt.close('all')

def drawn(ax): return {o.get_label():list(o.get_xdata()) for o in ax.lines if not o.get_label().startswith('_')}

def test_the_loss_of_a_short_fit_is_seen():
    import matplotlib; matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    def of_full_batches(n): return synth_learner(n_train=1).fit(n).recorder.plot_loss()
    assert drawn(of_full_batches(4))=={'train, smoothed': [1,2,3,4], 'valid': [1,2,3,4]}
    ax = of_full_batches(1)
    assert drawn(ax)=={'train, smoothed': [1], 'valid': [1]} and {o.get_marker() for o in ax.lines}=={'o'}
    assert drawn(synth_learner(n_train=20).fit(1).recorder.plot_loss())['train, smoothed']==[*range(3, 21)]
    assert drawn(synth_learner(n_train=99).fit(1).recorder.plot_loss())['train, smoothed']==[*range(6, 100)]
    plt.close('all')

def test_without_losses_there_is_nothing_to_plot():
    learn = learner()
    with pytest.raises(ValueError, match='nothing to plot: the last fit has recorded 0 losses$'):
        learn.recorder.plot_loss()
    with pytest.raises(ValueError, match='recorded 3 losses, and `skip_start=3` leaves them out$'):
        learn.fit(1).recorder.plot_loss(skip_start=3)

def test_epochs_end_where_they_end_also_if_there_are_validations_within():
    import matplotlib; matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    rec = synth_learner(n_train=6).fit(2, cbs=Validate(2, 'iter')).recorder
    ax = rec.plot_loss(show_epochs=True)
    assert rec.iters==[2,4,6,8,10,12] and [o.get_xdata()[0] for o in ax.lines if len({*o.get_xdata()})==1]==[6,12]
    plt.close('all')

class Event:
    "Of a device: it cannot be copied"
    def query(self): return False
    def synchronize(self): pass
    def __reduce__(self): raise TypeError("cannot pickle 'Event' object")

@pytest.mark.parametrize('copied', [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=['deepcopy','pickle'])
def test_losses_on_their_way_from_a_gpu_can_be_copied(copied):
    stream = LossStream()
    stream.sent.append((torch.tensor([1.,2.]), Event()))
    stream.append(torch.tensor(3.))
    assert copied(stream).all()==stream.all() and stream.raw==[1.,2.,3.]

# The device is not asked for anything during a batch
class Reads(TorchFunctionMode):
    "Counts what makes Python wait for a tensor"
    names = '''item tolist cpu numpy __float__ __int__ __bool__ __index__ __array__ __repr__ __format__
        is_nonzero equal allclose to'''.split()
    def __init__(self): super().__init__(); self.seen = Counter()
    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, '__name__', '')
        if name in self.names: self.seen[name] += 1
        return func(*args, **(kwargs or {}))

class Scalars(TorchDispatchMode):
    "The same among operators"
    def __init__(self): super().__init__(); self.seen = Counter()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (name := func.overloadpacket.__name__) in ('_local_scalar_dense','is_nonzero','equal','nonzero'):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))

def reads(n_train, n_valid, dtype=torch.float32, **kwargs):
    model = torch.nn.Linear(1, 1).to(dtype)
    def bs(n): return [(torch.randn(2,1,dtype=dtype), torch.randn(2,1,dtype=dtype)) for _ in range(n)]
    learn = Learner(DataLoaders(bs(n_train), bs(n_valid), device='cpu'), model, F.mse_loss,
        opt_func=lambda ps: torch.optim.SGD(ps, .1), **kwargs)
    with Scalars() as a, Reads() as b: learn.fit(1)
    return a.seen,b.seen

@pytest.mark.parametrize('kwargs',
    [dict(default_cbs=False, cbs=TrainEvalCallback), {}, dict(metrics=[mae, mse, rmse()]),
    dict(default_cbs=False, cbs=[TrainEvalCallback, Recorder(train_metrics=True)], metrics=[mae, mse])],
    ids=['lean','default','metrics','train metrics'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_no_reads_in_a_batch(kwargs, dtype, capsys, monkeypatch):
    # how often a bar is drawn depends on the time
    monkeypatch.setattr(sys.modules[ProgressCallback.__module__], 'perf_counter', lambda: 0.)
    assert reads(10, 10, dtype, **kwargs)==reads(40, 10, dtype, **kwargs)==reads(10, 40, dtype, **kwargs)

def test_the_counters_see_reads():
    f = lambda self: self.loss.item()
    a,b = [reads(n, 1, default_cbs=False, cbs=[TrainEvalCallback, Callback(after_loss=f)]) for n in (10, 40)]
    assert b[0]['_local_scalar_dense']-a[0]['_local_scalar_dense']==b[1]['item']-a[1]['item']==30
    with Reads() as r: torch.ones(2).tolist(); float(torch.ones(1)); bool(torch.ones(1))
    assert r.seen.total()>=3

# What is shown
def shown(f, terminal=True, columns=80):
    "What `f()` writes to a terminal, or to a pipe"
    import fcntl,pty,struct,termios
    out,inp = pty.openpty() if terminal else os.pipe()
    if terminal: fcntl.ioctl(inp, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        pid = os.fork()
    if pid==0:
        res = 1
        try:
            os.close(out)
            sys.stdout = sys.stderr = open(inp, 'w')
            f()
            res = 0
        finally: sys.stdout.flush(); os._exit(res)
    os.close(inp)
    text = b''
    while True:
        try: b = os.read(out, 4096)
        except OSError: break # a terminal that nobody holds any more
        if not b: break
        text += b
    os.close(out)
    assert os.waitpid(pid, 0)[1]==0, text.decode()
    return text.decode()

def screen(text):
    "Lines that a terminal shows in the end"
    lines,x,y = [[]],0,0
    for tok in re.findall(r'\x1b\[[0-9;?]*[A-Za-z]|.', text, re.S):
        if tok=='\r': x = 0
        elif tok=='\n':
            x,y = 0,y+1
            if y==len(lines): lines.append([])
        elif tok=='\x1b[2K': lines[y] = []
        elif tok=='\x1b[1A': y -= 1
        elif tok.startswith('\x1b'):
            assert tok.endswith('m') or tok in ('\x1b[?25l', '\x1b[?25h'), f'{tok!r} is not understood here'
        else:
            line = lines[y]
            line.extend(' '*(x+1-len(line)))
            line[x] = tok; x += 1
    return [o for l in lines if (o := ''.join(l).rstrip())]

def check_table(lines, n_epoch=2):
    assert lines[0].split()==['epoch', 'train_loss', 'valid_loss', 'mae', 'time'] and len(lines)==n_epoch+1
    assert [o.split()[0] for o in lines[1:]]==[str(i) for i in range(n_epoch)] and len({len(o) for o in lines})==1
    ends = [[m.end() for m in re.finditer(r'\S+', o)] for o in lines]
    assert all(o==ends[0] for o in ends) # columns are aligned

of_fit = ['epoch','train_loss','valid_loss','mae','time']
@pytest.mark.parametrize('columns,names,digits', [(56, of_fit, 6), (55, of_fit, 4), (47, of_fit, 4), (46, of_fit, 3),
    (44, of_fit, 3), (43, of_fit[:4], 3), (40, of_fit[:4], 3), (30, of_fit[:3], 3), (20, of_fit[:2], 3),
    (5, of_fit[:2], 3)])
def test_a_narrow_table_has_fewer_digits_and_columns(columns, names, digits):
    lines = screen(shown(lambda: bars_learner('text' if columns<20 else 'tqdm').fit(2), columns=columns))
    assert lines[0].split()==names and len(lines)==3 and (columns<20 or max(map(len, lines))<=columns)
    assert len(lines[1].split()[1].partition('.')[2])==digits

def bars_learner(bars='auto', **kwargs):
    return synth_learner(n_train=4, n_valid=3, metrics=mae).add_cb(ProgressCallback(bars=bars, every=0, **kwargs))
backends = [('auto',True), ('auto',False), ('tqdm',True), ('tqdm',False), ('rich',True), ('rich',False), ('text',True),
    ('text',False), (True,True), (False,True), (None,True), (None,False)]
posix = pytest.mark.skipif(sys.platform=='win32', reason='needs `fork`')

@posix
def test_a_terminal_has_bars_that_vanish_and_a_table():
    text = shown(lambda: bars_learner().fit(2))
    check_table(screen(text))
    frames = [o for o in re.split(r'[\r\n]+', text) if '%' in o]
    for desc in ('epoch 0 train', 'epoch 0 valid', 'epoch 1 train', 'epoch 1 valid'):
        assert any(desc in o for o in frames), desc
    assert any('4/4' in o and 'train' in o for o in frames) and any('3/3' in o and 'valid' in o for o in frames)
    assert all(len(o)<=80 for o in frames)
    shown_loss = re.findall(r'epoch 1 train (\d+\.\d{4})', text)
    assert len(shown_loss)>=4 # the smoothed loss, with 4 decimals

@posix
@pytest.mark.parametrize('bars,terminal', backends)
def test_every_screen_ends_as_a_table(bars, terminal):
    if bars=='rich': pytest.importorskip('rich')
    text = shown(lambda: bars_learner(bars).fit(2).validate(), terminal)
    check_table(screen(text))
    has_bars = bars=='tqdm' or (terminal and bars in ('auto','rich',True))
    assert ('epoch 0 train' in text and 'epoch 1 valid' in text)==has_bars
    if not has_bars:
        assert not re.sub(r'\x1b\[[0-9;]*m', '', text).count('\x1b') and text.count('\n')==3 and '%' not in text

@posix
def test_rich_has_a_bar_for_the_fit_and_lets_others_print():
    pytest.importorskip('rich')
    text = shown(lambda: bars_learner('rich',
        mark_best=True).add_cb(Callback(after_epoch=lambda self: print('hello'))).fit(2))
    lines = screen(text)
    check_table([o for o in lines if o!='hello'])
    assert (lines.count('hello')==2 and re.search(r'fit.*100%', text) and re.search(r'epoch 1 valid.*3/3', text)
        and '\x1b[1;32m' in text)
    assert text.count('\x1b[?25h')==text.count('\x1b[?25l') # the cursor is back

@posix
@pytest.mark.parametrize('exc', [ZeroDivisionError, KeyboardInterrupt])
def test_rich_leaves_a_clean_terminal(exc):
    pytest.importorskip('rich')
    def fail():
        learn = bars_learner('rich').add_cb(Raise('after_loss', exc, n=10, order=100))
        try: learn.fit(2)
        except (ZeroDivisionError, KeyboardInterrupt): pass
        print('prompt')
    text = shown(fail)
    assert screen(text)[2:]==['prompt'] and text.rindex('\x1b[?25h')>text.rindex('\x1b[?25l')

@posix
def test_rich_does_not_know_how_many_it_does_not_know():
    pytest.importorskip('rich')
    def f():
        bs = [(torch.randn(2,1), torch.randn(2,1))]*3
        class It:
            def __iter__(self): return iter(bs)
        synth_learner(dls=DataLoaders(It(), bs, device='cpu'),
            metrics=mae).add_cb(ProgressCallback('rich', every=0)).fit(2)
    text = shown(f)
    check_table(screen(text))
    assert '3/?' in text and '3/3' in text

# Lines for a log
def printed(capsys, *args, n_epoch=2, cbs=(), **kwargs):
    capsys.readouterr()
    learn = synth_learner(n_train=5, n_valid=2, metrics=mae,
        cbs=cbs).add_cb(ProgressCallback(*args, **kwargs)).fit(n_epoch)
    return learn,capsys.readouterr().out.splitlines()
def means(lines): return [o for o in lines if ': loss ' in o]

@pytest.mark.parametrize('k', [1,2,5,7,10,11])
def test_text_prints_means_of_the_losses_since_the_last_line(capsys, k):
    learn,lines = printed(capsys, 'text', print_every=k)
    raw,said = learn.recorder.raw_losses,means(lines)
    assert said==[f'epoch {(n-1)//5} train {(n-1)%5+1}/5: loss {np.mean(raw[n-k:n]):.4f}' for n in range(k, 11, k)]
    check_table([o for o in lines if o not in said])
    rows = [i for i,o in enumerate(lines) if o.split()[0] in '01']
    assert all((lines.index(o)<rows[0])==o.startswith('epoch 0') for o in said) # each stands above the row of its epoch

def test_text_counts_batches_that_have_a_loss(capsys):
    learn,lines = printed(capsys, 'text', print_every=2, n_epoch=1, cbs=[Raise('after_pred', CancelBatchException, 3)])
    raw = learn.recorder.raw_losses
    assert (len(raw)==4 and means(lines)
        ==[f'epoch 0 train 2/5: loss {np.mean(raw[:2]):.4f}', f'epoch 0 train 5/5: loss {np.mean(raw[2:]):.4f}'])

def test_text_says_nothing_of_looks(capsys):
    learn = synth_learner().add_cb(ProgressCallback('text', print_every=1))
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=8, show_plot=False)
    assert not means(capsys.readouterr().out.splitlines())
    with learn.no_bar(): learn.fit(1)
    out = capsys.readouterr().out.splitlines()
    assert len(out)==2 and not means(out)

@pytest.mark.parametrize('args,match',
    [(dict(bars='tdqm'), "`bars` is one of `'auto'`, .*, but got 'tdqm'. Did you mean `tqdm`"),
        (dict(bars=1.5), 'got 1.5'), (dict(print_every=3), "needs `bars='text'`"),
    *((dict(bars='text', print_every=v),
        f"`print_every` is a whole number of batches, 1 or more, and needs `bars='text'`, but got {v!r}")
        for v in (0, -1, 1.5, '2'))], ids=str)
def test_bars_that_do_not_exist(args, match):
    with pytest.raises(ValueError, match=match): ProgressCallback(**args)

class Given(Metric):
    "Says what it was given, validation by validation"
    def __init__(self, name, vals, higher): self._name,self.vals,self.higher_is_better,self.i = name,vals,higher,-1
    def reset(self): self.i += 1
    def accumulate(self, learn): pass
    @property
    def value(self): return self.vals[self.i]
class Restless(Recorder):
    "Lets metrics keep what a validation has left in them"
    name = 'recorder'
    def cleanup_validate(self): self.phase.now = self.phase.outer.pop()[0]

def given(*metrics, n_epoch=5, **kwargs):
    return Learner(DataLoaders(const(1), const(1), device='cpu'), torch.nn.Linear(1,1), F.mse_loss, lr=0.,
        metrics=metrics, default_cbs=False,
        cbs=[TrainEvalCallback, Restless(add_time=False), ProgressCallback('text', **kwargs)]).fit(n_epoch)

def test_the_best_so_far_has_a_star(capsys):
    given(Given('up', [1.,2.,2.,nan,3.], True), Given('down', [1.,2.,.5,.5,-1.], False),
        Given('any', [1.,2.,3.,4.,5.], None), mark_best=True)
    cols,*rows = [o.split() for o in capsys.readouterr().out.splitlines()]
    stars = [[c for c,o in zip(cols, row, strict=True) if o.endswith('*')] for row in rows]
    assert stars==[['train_loss','valid_loss','up','down'], ['up'], ['down'], [], ['up','down']] # losses stay the same

def test_stars_are_those_of_the_whole_history():
    rng = np.random.default_rng(0)
    better,rows,best = dict(a=True, b=False, c=True),History(),Best(dict(a=True, b=False, c=True))
    for _ in range(200):
        vals = {k:[missing, nan, 'x', float(rng.integers(10))][min(rng.integers(6), 3)]
            for k in rng.permutation(['a','b','c'])[:rng.integers(1, 4)]}
        rows.append(Row(**vals))
        if rng.random()<.5: continue # several rows at once, as after a resume
        assert best.marks(rows)==[k for k,v in better.items() if rows.best(k, v)==len(rows)-1]

def test_a_star_moves_no_column(capsys):
    given(Given('up', [1.,2.], True), n_epoch=2)
    a = capsys.readouterr().out.splitlines()
    given(Given('up', [1.,2.], True), n_epoch=2, mark_best=True)
    b = capsys.readouterr().out.splitlines()
    assert [o.split()[2] for o in a[1:]]!=[o.split()[2] for o in b[1:]] or b[1].endswith('1.000000*')
    assert b[2].endswith('2.000000*') and [len(o.replace('*', ' ').rstrip()) for o in b]==[len(o) for o in a]

def test_bold_in_html():
    rows = [Row(a=1., b='<x>'), Row(b='y'), Row(a=2.)]
    html = html_table(['a','b'], History(rows).table(), [(2,'a'), (1,'b'), (None,'a')])
    assert (table_of(html)==[['a','b'], ['1.000000','<x>'], ['','y'], ['2.000000','']]
        and re.findall('<b>(.*?)</b>', html)==['y','2.000000'])

def test_names_with_an_underscore_are_recorded_and_not_shown(capsys):
    def _acc(pred, targ): return (pred-targ).abs().mean()
    learn = synth_learner(metrics=[_acc, mae], cbs=adding(1, names=['_seen'])).add_cb(ProgressCallback('text')).fit(1)
    assert capsys.readouterr().out.splitlines()[0].split()==['epoch', 'train_loss', 'valid_loss', 'mae', 'time']
    assert learn.recorder[0, '_acc']==pytest.approx(learn.recorder[0].mae) and learn.recorder[0, '_seen']==1.

# Nobody looks any more
class Gone:
    "A stream that cannot be written to after a while"
    encoding,closed = 'utf-8',False
    def __init__(self, exc, terminal): self.exc,self.terminal,self.left,self.closed = exc,terminal,200,exc is ValueError
    def isatty(self): return self.terminal
    def fileno(self): raise OSError
    def write(self, s):
        self.left -= len(s)
        if self.left<0: raise self.exc
        return len(s)
    def flush(self):
        if self.left<0: raise self.exc

@pytest.mark.parametrize('exc', [BrokenPipeError, OSError(28, 'No space left on device'), ValueError], ids=str)
@pytest.mark.parametrize('terminal', [True, False])
@pytest.mark.parametrize('kwargs',
    [dict(bars='auto'), dict(bars='tqdm'), dict(bars='rich'), dict(bars='text', print_every=1), dict(bars=None)],
    ids=str)
@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_training_goes_on_when_output_is_gone(monkeypatch, exc, terminal, kwargs):
    if kwargs['bars']=='rich': pytest.importorskip('rich')
    learn = bars_learner(**kwargs)
    gone = Gone(exc, terminal)
    monkeypatch.setattr(sys, 'stdout', gone)
    learn.fit(5)
    learn.validate()
    assert len(learn.recorder.rows)==5 and gone.left<0 and sys.stdout is gone

@pytest.mark.parametrize('bars', ['auto','tqdm','rich','text'])
@pytest.mark.parametrize('closed', [False, True])
def test_training_goes_on_without_any_stdout(monkeypatch, bars, closed):
    if bars=='rich': pytest.importorskip('rich')
    learn = bars_learner(bars)
    stdout = open(os.devnull, 'w') if closed else None
    if closed: stdout.close()
    monkeypatch.setattr(sys, 'stdout', stdout)
    assert len(learn.fit(2).recorder.rows)==2

def no_stdout():
    res = open(os.devnull, 'w')
    res.close()
    return res
def ascii_stdout(): return io.TextIOWrapper(io.BytesIO(), encoding='ascii')
def gone_stdout():
    res = Gone(BrokenPipeError, False)
    res.left = 0
    return res

class StopsAfterAnEpoch(Callback):
    def after_epoch(self): self.learn.stop_soon()
def stopped(): return synth_learner().fit_one_cycle(2, cbs=[Checkpoint(), StopsAfterAnEpoch])

@pytest.mark.parametrize('stdout', [no_stdout, gone_stdout, ascii_stdout])
@pytest.mark.parametrize('f', [
    lambda: bars_learner().fit(5, cbs=EarlyStoppingCallback(min_delta=1e6, patience=1)),
    lambda: synth_learner().lr_find(num_it=6, show_plot=False),
    lambda: stopped().resume(lr=.01),
    lambda: [stopped(), synth_learner().fit_one_cycle(3, cbs=Checkpoint(), resume='auto')],
    lambda: [stopped(), synth_learner().fit_one_cycle(2, cbs=Checkpoint(), resume='auto').fit(1, cbs=Checkpoint(),
        resume='auto')],
], ids=['early stopping','lr_find','another rate','a longer fit','the next fit'])
@pytest.mark.filterwarnings('ignore:The run resumes with other settings')
def test_what_a_fit_says_on_the_way_cannot_end_it(monkeypatch, tmp_path, f, stdout):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'stdout', stdout())
    f()

@posix
def test_training_goes_on_when_the_reader_of_a_pipe_leaves():
    out,inp = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        pid = os.fork()
    if pid==0:
        res = 99
        try:
            os.close(out)
            sys.stdout = open(inp, 'w')
            res = len(bars_learner('text', print_every=1).fit(3).recorder.rows)
        finally: os._exit(res)
    os.close(inp); os.close(out)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])==3

def test_what_stdout_cannot_spell_is_shown_as_it_can(monkeypatch):
    stdout = ascii_stdout()
    monkeypatch.setattr(sys, 'stdout', stdout)
    synth_learner(metrics={'größe': mae}).add_cb(ProgressCallback('text')).fit(1)
    assert b'gr??e' in stdout.buffer.getvalue()

@pytest.mark.parametrize('base,notebook', [('ZMQInteractiveShell',True), ('TerminalInteractiveShell',False),
    ('SpyderShell',False)])
def test_consoles_of_editors_show_text(monkeypatch, base, notebook):
    "As the console of PyCharm does, whose shell is one of a terminal"
    shell = type('PyDevTerminalInteractiveShell', (type(base, (), {}),), {})()
    monkeypatch.setitem(sys.modules, 'IPython', SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()==notebook

def test_errors_of_ours_are_not_swallowed(monkeypatch):
    for exc in (ZeroDivisionError, ValueError):
        def bad(*args, **kwargs): raise exc
        monkeypatch.setattr('learner.record.progress.text_row', bad)
        with pytest.raises(exc): bars_learner('text').fit(1)

@posix
def test_a_pipe_has_plain_lines():
    text = shown(lambda: bars_learner().fit(2), terminal=False)
    assert '\r' not in text and '\x1b' not in text
    check_table(text.splitlines())

@posix
@pytest.mark.parametrize('terminal', [True, False])
def test_no_logging_shows_nothing_and_no_bar_the_table_alone(terminal):
    def quiet():
        learn = bars_learner()
        with learn.no_logging(): learn.fit(1); learn.validate()
    assert shown(quiet, terminal)==''
    def no_bar():
        learn = bars_learner()
        with learn.no_bar(): learn.fit(2); learn.validate()
    text = shown(no_bar, terminal)
    check_table(text.splitlines())
    assert '%' not in text and '\r\r' not in text
    assert screen(shown(lambda: bars_learner(bars=False).fit(2), terminal))[0].split()[0]=='epoch'

def test_no_bar_and_no_logging_put_back_what_was_there():
    learn = synth_learner()
    cb = ProgressCallback(bars=True, every=.7)
    learn.add_cb(cb)
    cbs = list(learn.cbs)
    for ctx in (learn.no_bar, learn.no_logging):
        with pytest.raises(ZeroDivisionError), ctx(): 1/0
        assert list(learn.cbs)==cbs and learn.progress is cb and (cb.bars, cb.every)==(True, .7)

@posix
@pytest.mark.parametrize('exc', [ZeroDivisionError, KeyboardInterrupt, CancelFitException])
def test_a_fit_that_ends_early_leaves_a_clean_terminal(exc):
    def fail():
        learn = bars_learner().add_cb(Raise('after_loss', exc, n=10, order=100))
        try: learn.fit(2)
        except (ZeroDivisionError, KeyboardInterrupt): pass
        print('prompt')
    lines = screen(shown(fail))
    check_table(lines[:2], 1)
    assert lines[2:]==['prompt']

@posix
def test_a_standalone_validation_leaves_nothing():
    text = shown(lambda: bars_learner().validate())
    assert screen(text)==[] and 'valid' in text and 'epoch' not in text

@posix
def test_unknown_lengths_have_a_count():
    def f():
        bs = [(torch.randn(2,1), torch.randn(2,1))]*3
        class It:
            def __iter__(self): return iter(bs)
        synth_learner(dls=DataLoaders(It(), It(), device='cpu'), metrics=mae).add_cb(ProgressCallback(every=0)).fit(2)
    text = shown(f)
    check_table(screen(text))
    assert '3it' in text

@posix
def test_what_callbacks_print_between_phases_is_not_torn_by_bars():
    lines = screen(shown(lambda: bars_learner().add_cb(Callback(after_epoch=lambda self: print('hello'))).fit(1)))
    assert 'hello' in lines

def test_progress_without_recorder_is_no_error(capsys):
    learn = synth_learner(default_cbs=False, cbs=[TrainEvalCallback, ProgressCallback(every=0)], show=True)
    learn.fit(1).validate()
    assert capsys.readouterr().out==''

def test_bars_are_drawn_seldom():
    drawn = []
    class Screen:
        def bar(self, *args): drawn.append(args)
        def row(self, row): pass
        def end_bar(self): pass
        def close(self): pass
    class Watch(Callback):
        order = ProgressCallback.order+1
        def before_fit(self): self.progress.screen = Screen()
    synth_learner(n_train=200).add_cbs([ProgressCallback(every=10), Watch]).fit(1)
    assert drawn==[]

# In a notebook, where `put` stands for its display
def notebook_learner(cbs=None, **kwargs):
    "A learner and the list of all HTML that its fits send"
    sent,progress = [],ProgressCallback(**kwargs)
    progress.put = lambda shown: sent.append(shown['text/html'])
    return synth_learner(n_train=2, n_valid=1, cbs=cbs, show=True).add_cb(progress),sent

def epochs_in(html): return [int(o[0]) for o in table_of(html)[1:]]

def test_a_fit_of_many_short_epochs_sends_its_table_seldom_and_at_last_whole():
    learn,sent = notebook_learner(every=1e6)
    learn.fit(30)
    assert [epochs_in(o) for o in sent]==[[0], [*range(30)]]

def test_a_front_end_without_html_gets_the_lines_of_a_terminal(capsys):
    "With each table, in less than half of its size"
    def fit(bars, put=None):
        progress = ProgressCallback(bars, every=0., mark_best=True)
        progress.put = put
        synth_learner(n_train=2, n_valid=1, show=True, cbs=Recorder(add_time=False)).add_cb(progress).fit(3)
    sent = []
    fit('auto', sent.append)
    fit('text')
    assert re.fullmatch('epoch 0 train 1/2 [0-9.]+', sent[0]['text/plain'])
    *_,last = sent
    lines,shown = capsys.readouterr().out.splitlines(),last['text/plain'].splitlines()
    assert [o.replace('*', '').split() for o in shown]==[o.replace('*', '').split() for o in lines]
    assert shown[-1]==lines[-1] and '*' in lines[-1] # where the last row is the best
    assert len(last['text/plain'])<.5*len(last['text/html'])

def test_a_long_table_is_not_sent_again_with_each_bar():
    sent = []
    screen = Notebook({}, sent.append, every=1e6)
    screen.row(History([Row(epoch=0)]))
    for n in range(10): screen.bar('train', n, 10, '', None)
    screen.close()
    assert len(sent)==2

@pytest.mark.parametrize('exc', [ZeroDivisionError, KeyboardInterrupt, CancelFitException])
def test_however_a_fit_ends_the_table_has_all_of_its_rows(exc):
    learn,sent = notebook_learner(Raise('before_epoch', exc, n=6), every=1e6)
    try: learn.fit(9)
    except (ZeroDivisionError,KeyboardInterrupt): pass
    assert epochs_in(sent[-1])==[*range(5)] and '<progress' not in sent[-1]

def test_a_fit_that_resumes_shows_its_rows_with_the_first_bar():
    learn,sent = notebook_learner(Raise('before_train', KeyboardInterrupt, n=3), every=0)
    with pytest.raises(KeyboardInterrupt): learn.fit(3)
    sent.clear()
    learn.resume()
    assert '<progress' in sent[0] and epochs_in(sent[0])==[0,1]
    sent.clear()
    learn.validate(); learn.fit(1)
    assert not any('<table' in o for o in sent[:2]) # rows of an earlier fit are not theirs

def test_a_table_asks_once_for_its_columns():
    "They may be read from all rows: a table that asks in each row takes quadratic time"
    asked = []
    class Asked(History):
        @property
        def names(self): asked.append(1); return super().names
    rows = Asked([Row(a=1, b=2)]*50)
    assert rows.table()==[[1,2]]*50 and len(asked)==1

def test_in_a_list_a_recorder_is_short():
    learn = synth_learner().fit(2)
    assert 'train_loss' in str(learn.recorder) and '\n' not in repr([*learn.cbs]) and 'Recorder(' in repr([*learn.cbs])

kernel = '''
from learner.all import *
import contextlib
def learner(**kwargs):
    return synth_learner(n_train=4, n_valid=3, metrics=mae, **kwargs).add_cb(ProgressCallback(every=0))
--
_ = learner().fit(2)
--
learn = learner()
with learn.no_logging(): learn.fit(1); learn.validate();
--
learn = learner()
with learn.no_bar(): learn.fit(2)
--
_ = learner().validate()
--
with contextlib.suppress(ZeroDivisionError): learner(cbs=Raise('after_loss', ZeroDivisionError, n=10)).fit(2)
--
learner().fit(1).recorder
--
_ = synth_learner(n_train=4, n_valid=3, metrics=mae).add_cb(ProgressCallback('rich', every=0, mark_best=True)).fit(2)
--
_ = synth_learner(n_train=4, n_valid=3, metrics=mae).add_cb(ProgressCallback('text', print_every=2)).fit(2)
--
learner().fit_flat_cos(1).recorder.plot_sched()
--
import torch; show_samples(torch.eye(4).expand(2, 1, 4, 4), None, torch.tensor([0,1]))
'''

def test_a_notebook_has_one_display_that_ends_as_a_table(tmp_path):
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell,new_notebook
    updates = Counter()
    class Client(NotebookClient):
        def process_message(self, msg, cell, i):
            updates[i, msg['msg_type']] += 1
            return super().process_message(msg, cell, i)
    nb = new_notebook(cells=[new_code_cell(o) for o in kernel.split('--\n')])
    # ports could be taken by others meanwhile
    km = AsyncKernelManager(kernel_name='python3', transport='ipc', ip=str(tmp_path/'kernel'))
    Client(nb, km, timeout=300,
        resources=dict(metadata=dict(path=os.path.dirname(os.path.dirname(__file__))))).execute()
    del km
    with warnings.catch_warnings(action='ignore'): gc.collect() # sockets that its client leaves open
    outs = [[(o.output_type, table_of(html), '<progress' in html) for o in c.outputs
        for html in [o.get('data', {}).get('text/html', '')]] for c in nb.cells]
    header = ['epoch', 'train_loss', 'valid_loss', 'mae', 'time']
    def table(out, kind='display_data'):
        ((typ, rows, bar),) = out
        assert typ==kind and not bar and (rows[:1] in ([header], [])); return [r[0] for r in rows[1:]]
    assert outs[0]==[] and outs[2]==[]                             # nothing under `no_logging`
    assert table(outs[1])==['0','1'] and updates[1,'display_data']==1 and updates[1,'update_display_data']>=14
    assert table(outs[3])==['0','1'] and updates[3,'update_display_data']<=4 # rows, but no bars
    assert outs[4]==[] or table(outs[4])==[]                       # a validation has a bar, and no table
    assert table(outs[5])==['0']                                   # an error ends the bar
    assert [o[0] for o in outs[6]]==['display_data', 'execute_result'] and outs[6][0][1]==outs[6][1][1]
    assert table(outs[7])==['0','1'] and updates[7,'display_data']==1 # rich has its place in terminals
    best = [min(col, key=float) for col in list(zip(*outs[7][0][1][1:]))[1:4]] # all of these are better when lower
    assert sorted(re.findall('<b>(.*?)</b>', nb.cells[7].outputs[0].data['text/html']))==sorted(best)
    text = ''.join(o.text for o in nb.cells[8].outputs if o.output_type=='stream')
    assert (len(text.splitlines())==7
        and [l.split(':')[0] for l in text.splitlines() if ': loss' in l]
        ==[f'epoch {i} train {n}/4' for i in (0,1) for n in (2,4)])
    figures = nb.cells[9:]
    assert figures
    for c in figures: assert sum('image/png' in o.get('data', {}) for o in c.outputs)==1 # a figure is shown once

@pytest.mark.parametrize('what', ['validate','get_preds','predict'])
def test_an_inference_before_the_bar_is_ready(what):
    class Early(Callback):
        order = -1000
        def before_fit(self):
            if self.learn.mode=='fit': getattr(self.learn, what)(*([torch.zeros(1)] if what=='predict' else []))
    learn = synth_learner(2, cbs=Early).remove_cb(ProgressCallback).add_cb(ProgressCallback())
    assert learn.fit(1).opt_step==2
