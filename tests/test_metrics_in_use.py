"""Metrics and the recorder as callbacks and users meet them: results for every order, states of nested phases, values
for one batch, plots"""
import re,sys,warnings,weakref
from collections import Counter,deque
from functools import partial,update_wrapper,wraps
from types import SimpleNamespace
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from learner.measure.batch_checks import BatchCheck

gen = torch.Generator().manual_seed(0)
def randn(*shape): return torch.randn(*shape, generator=gen)
def randint(hi, *shape): return torch.randint(0, hi, shape, generator=gen)

@pytest.fixture(autouse=True)
def seeded(): gen.manual_seed(0)

def data(n=4, bs=6): return [(randn(bs, 3), randint(4, bs)) for _ in range(n)]
def learner(train=None, valid=None, metrics=accuracy, loss_func=None, model=None, cbs=None, recorder=None):
    torch.manual_seed(0)
    learn = Learner(DataLoaders(train or data(), valid or data(2), device='cpu'),
        nn.Linear(3, 4) if model is None else model, loss_func or nn.CrossEntropyLoss(), metrics=metrics, lr=.01)
    learn.remove_cbs([ProgressCallback, *([] if recorder is None else [Recorder])])
    return learn.add_cbs([*([] if recorder is None else [recorder]), *(cbs or [])])

# Metrics that are added later
def test_metrics_are_added_to_a_learner_as_to_a_list():
    from copy import deepcopy
    import pickle
    learn = learner(metrics=accuracy)
    learn.metrics += [error_rate]
    learn.metrics = learn.metrics + [ValueMetric(lambda: 1., 'one')] + accuracy + dict(top=accuracy)
    learn.metrics = [mae] + learn.metrics
    names = 'mae accuracy error_rate one accuracy_2 top'.split()
    assert [o.name for o in learn.metrics]==names
    for o in (deepcopy(learn.metrics), pickle.loads(pickle.dumps(learner().metrics))): assert len(o+[mae])==len(o)+1
    learn.metrics = learn.metrics[1:4]
    res = learn.fit(1).results
    assert list(res.keys())==['valid_loss',*names[1:4]] and res.error_rate==pytest.approx(1-res.accuracy)

def test_a_callback_adds_a_metric_for_its_fit():
    class Norm(Callback):
        order = Recorder.order-1 # which makes its columns when a fit begins
        def before_fit(self):
            self.before = self.learn.metrics
            self.learn.metrics = self.learn.metrics + [ValueMetric(lambda: 2., 'norm')]
        def cleanup_fit(self): self.learn.metrics = self.before
    learn = learner().fit(2, cbs=Norm)
    assert list(learn.recorder['norm'])==[2.,2.] and [o.name for o in learn.metrics]==['accuracy']

# Results
@pytest.mark.parametrize('order', [-1000, -1, 0, 49, 51, 1000])
@pytest.mark.parametrize('mode', ['fit','validate'])
def test_at_after_validate_the_results_are_there_for_every_order(order, mode):
    seen = []
    class See(Callback):
        def after_validate(self): seen.append(dict(self.learn.results))
    cb = See()
    cb.order = order
    learn = learner(cbs=[cb])
    res = learn.fit(1).results if mode=='fit' else learn.validate()
    assert seen==[dict(res)] and {*seen[0]}=={'valid_loss','accuracy'}

def test_results_of_several_loaders_arrive_one_after_the_other():
    seen = []
    learn = learner(valid=dict(a=data(1), b=data(1)),
        cbs=[Callback(after_validate=lambda cb: seen.append([*cb.learn.results.keys()]))])
    learn.fit(1)
    assert seen==[['a/loss','a/accuracy'], ['a/loss','a/accuracy','b/loss','b/accuracy']]

def test_a_value_that_a_callback_computes_at_after_validate_is_in_the_row():
    class Computes(Callback):
        val = None
        def after_validate(self): self.val = 1 if self.val is None else self.val+1
    cb = Computes()
    learn = learner(metrics=[accuracy, ValueMetric(lambda: cb.val, 'mine')], cbs=[cb])
    assert list(learn.fit(3).recorder['mine'])==[1,2,3] and learn.results.mine==3 and learn.validate().mine==4

@pytest.mark.parametrize('ev', ['before_validate','after_batch','after_validate'])
def test_a_callback_adds_a_column_to_validate_as_to_a_fit(ev):
    class Adds(Callback):
        order = 60
    cb = Callback(**{ev: lambda cb: cb.learn.recorder.add(mine=7., other=torch.tensor(2.))
        if not cb.learn.training else None})
    learn = learner(cbs=[cb])
    res = learn.validate()
    assert (res.mine==7 and res.other==2. and isinstance(res.other, float)
        and {*res.keys()}=={'valid_loss','accuracy','mine','other'})
    assert learn.fit(1).recorder[-1, 'mine']==7
    assert 'mine' in learn.validate().keys() and len(learn.recorder.rows)==1

# Nested phases
class InPlace(Metric):
    "Mean of the targets; `reset` empties what it has"
    def __init__(self, kind):
        self.kind = kind
        self.total,self.array,self.seen,self.hist,self.keys = torch.zeros(()),np.zeros(1),[],Counter(),set()
        self.n = torch.zeros(()) # in place as well
    def reset(self):
        self.total.zero_(); self.array[:] = 0; self.seen.clear(); self.hist.clear(); self.keys.clear(); self.n.zero_()
    def accumulate(self, learn):
        y = learn.y.double()
        self.total += y.sum()
        self.array += y.sum().item()
        self.seen += y.tolist()
        self.hist.update(y.tolist()); self.keys.add((len(self.keys), y.sum().item())); self.n += len(y)
    @property
    def value(self):
        if not self.n: return None
        tot = dict(tensor=lambda: self.total, array=lambda: self.array[0], list=lambda: sum(self.seen),
            dict=lambda: sum(k*v for k,v in self.hist.items()), set=lambda: sum(v for _,v in self.keys))[self.kind]()
        return float(tot)/float(self.n)
class Meter:
    def __init__(self): self.reset()
    def reset(self): self.vals = [] if not hasattr(self, 'vals') else self.vals.clear() or self.vals
class WithMeter(Metric):
    def __init__(self, kind): self.meter = Meter()
    def reset(self): self.meter.reset()
    def accumulate(self, learn): self.meter.vals += learn.y.tolist()
    @property
    def value(self): return sum(self.meter.vals)/len(self.meter.vals) if self.meter.vals else None
class InModule(Metric):
    "Counts in the buffers and attributes of a module, which has no `reset`"
    def __init__(self, kind): self.m = nn.Module(); self.m.register_buffer('total', torch.zeros(())); self.m.n = 0
    def reset(self): self.m.total = torch.zeros(()); self.m.n = 0
    def accumulate(self, learn): self.m.total += learn.y.sum(); self.m.n += len(learn.y)
    @property
    def value(self): return float(self.m.total)/self.m.n if self.m.n else None
class Foreign:
    "No `Metric`, but like one"
    name,higher_is_better = 'in_place',True
    def __init__(self, kind): self.vals = []
    def reset(self): self.vals.clear()
    def accumulate(self, learn): self.vals.extend(learn.y.tolist())
    @property
    def value(self): return sum(self.vals)/len(self.vals) if self.vals else None

kinds = {**{k:partial(InPlace, k) for k in ('tensor','array','list','dict','set')}, 'meter':partial(WithMeter, ''),
    'foreign':partial(Foreign, ''), 'module':partial(InModule, '')}
@pytest.mark.parametrize('kind', kinds)
@pytest.mark.parametrize('how', ['validate','get_preds','scheduled','nested'])
def test_metrics_of_training_keep_their_sums_when_something_is_validated_in_mid_epoch(kind, how):
    train = data()
    expected = torch.cat([y for _,y in train]).float().mean().item()
    def look(learn):
        if not learn.training: return
        learn.validate() if how!='get_preds' else learn.get_preds()
    class Nested(Callback):
        def after_batch(self):
            if (not self.learn.training and self.learn.mode=='validate' and self.learn.iter==0
                    and not getattr(self, 'deep', False)):
                self.deep = True
                self.learn.validate(0)
                self.deep = False
    m = kinds[kind]()
    cbs = ([Validate(every=2, unit='iter')]
        if how=='scheduled' else [on(event.after_batch(every=1))(look), *([Nested()] if how=='nested' else [])])
    learn = learner(train, metrics=dict(m=m), recorder=Recorder(train_metrics=True), cbs=cbs).fit(2)
    assert (learn.recorder[-1, 'train_m']==pytest.approx(expected)
        and learn.recorder[-1, 'valid_m']==pytest.approx(learn.validate().valid_m))

def test_what_a_metric_refers_to_is_not_copied():
    model = nn.Linear(3, 4)
    class Refers(Metric):
        def __init__(self): self.model,self.f,self.seen = model,model.forward,[]
        def reset(self): self.seen = []
        def accumulate(self, learn): self.seen.append((self.model is model, self.model is learn.model))
        @property
        def value(self): return float(all(map(all, self.seen)))
    learn = learner(model=model, metrics=Refers(), recorder=Recorder(train_metrics=True),
        cbs=[on(event.after_batch(every=2))(lambda learn: learn.training and learn.validate())]).fit(1)
    assert learn.recorder[-1][2]==1. and learn.metrics[0].model is model

def test_metrics_show_the_last_validation_after_a_fit():
    learn = learner(recorder=Recorder(train_metrics=True)).fit(1)
    assert float(learn.metrics[0].value)==learn.results.valid_accuracy

# Metrics as functions
def value_of(m, p, t): v = m(p, t); return v.item() if isinstance(v, torch.Tensor) else v
def test_metrics_can_be_called_with_predictions_and_targets():
    sk = pytest.importorskip('sklearn.metrics')
    p,t,x,y = randn(20, 3),randint(3, 20),randn(20),randn(20)
    assert (value_of(R2Score(), x, y)==pytest.approx(sk.r2_score(y, x))
        and value_of(F1Score(average='macro'), p, t)==pytest.approx(sk.f1_score(t, p.argmax(1), average='macro')))
    for m in (R2Score, ExplainedVariance, PearsonCorrCoef, SpearmanCorrCoef): assert m(x, y)==m()(x, y)
    assert (rmse(x, y).item()==rmse()(x, y).item()==pytest.approx(((x-y)**2).mean().sqrt().item())
        and exp_rmspe(x, y)==exp_rmspe()(x, y))
    assert (value_of(AvgMetric(accuracy), p, t)==accuracy(p, t).item()
        and value_of(from_sklearn('cohen_kappa_score'), p, t)==pytest.approx(sk.cohen_kappa_score(t, p.argmax(1))))
    mask,scores = randint(3, 2, 4, 4),randn(2, 3, 4, 4)
    dec = scores.argmax(1)
    assert foreground_acc(scores, mask).item()==foreground_acc()(scores,
        mask).item()==pytest.approx((dec==mask)[mask!=0].float().mean().item())
    assert foreground_acc(scores, mask, bkg_idx=1).item()==foreground_acc(scores, mask,
        1)==foreground_acc(bkg_idx=1)(scores, mask)
    assert F1Score(average='macro')(p, torch.where(t==0, 9, t),
        loss_func=nn.CrossEntropyLoss(ignore_index=9)).item()==pytest.approx(
        F1Score(average='macro')(p[t!=0], t[t!=0]).item())

@pytest.mark.parametrize('m',
    [lambda: R2Score(), lambda: mk_metrics(mae)[0], lambda: AccumMetric(mse), lambda: kinds['tensor'](),
        lambda: rmse()])
def test_calling_a_metric_leaves_what_it_has_gathered(m):
    m = m()
    x,y = randn(8),randint(3, 8).float()
    m.reset()
    m.accumulate(SimpleNamespace(pred=x, yb=(y,), y=y, xb=(x,)))
    before = float(m.value)
    if not isinstance(m, InPlace): m(randn(5), randn(5))
    assert float(m.value)==before

def test_classes_of_metrics_are_still_made_by_calling_them():
    assert (isinstance(rmse(), Metric) and isinstance(foreground_acc(1, axis=2), Metric)
        and foreground_acc(1, axis=2).bkg_idx==1)
    learn = learner(loss_func=lambda p,t: p.mean(), metrics=[foreground_acc, accuracy])
    assert learn.validate().names==('valid_loss','foreground_acc','accuracy')

def test_a_lambda_has_a_readable_name():
    learn = learner(metrics=[lambda p,t: p.mean(), partial(lambda p,t,k: p.max(), k=1), AccumMetric(lambda p,t: 1.)])
    assert learn.validate().names==('valid_loss','metric','metric_2','metric_3')

# Targets that a function leaves out
def no_zeros(pred, targ, ignore_index=0):
    kept = targ!=ignore_index
    return (pred.argmax(1)==targ)[kept].float().mean()

class Rmse(AccumMetric):
    "Has a method of a name that many classes have"
    def __init__(self): super().__init__(F.mse_loss); self.n = 0
    def add(self, n): self.n += n
    def accumulate(self, learn): self.add(len(learn.y)); super().accumulate(learn)

def test_a_metric_of_a_class_with_methods_of_its_own():
    m = Rmse()
    learn = synth_learner(metrics=m).fit(1)
    assert m.n>0 and m.value==pytest.approx(learn.final_record['valid_loss'])

@pytest.mark.parametrize('kind', [AvgMetric, partial(AccumMetric, flatten=False)], ids=['average','whole'])
@pytest.mark.parametrize('f,loss_func,index', [
    (partial(no_zeros, ignore_index=2), nn.CrossEntropyLoss(ignore_index=1), 2),
    (no_zeros, nn.CrossEntropyLoss(ignore_index=1), 1), (no_zeros, nn.CrossEntropyLoss(), -100),
    (no_zeros, F.cross_entropy, -100), (no_zeros, lambda p,t: F.cross_entropy(p, t), 0)],
    ids=['partial','loss','default of the loss','function','own loss'])
def test_what_is_ignored_is_said_by_a_partial_then_by_the_loss_then_by_the_function(kind, f, loss_func, index):
    valid = data(3, 20)
    learn = learner(valid=valid, metrics=kind(f), loss_func=loss_func)
    x,y = (torch.cat(o) for o in zip(*valid))
    with torch.no_grad(): expected = no_zeros(learn.model(x), y, index)
    assert learn.validate()[1]==pytest.approx(expected.item())

# Regression by scikit-learn
@pytest.mark.parametrize('shape', [(17,), (17,1), (17,3)])
@pytest.mark.parametrize('name',
    ['r2_score','mean_absolute_error','median_absolute_error','explained_variance_score','max_error'])
def test_scikit_learn_measures_a_regression_as_it_is(name, shape):
    f = getattr(pytest.importorskip('sklearn.metrics'), name)
    p,t = randn(*shape),randn(*shape)*torch.arange(1, shape[-1]+1)
    def measured(metric, bs):
        return Learner(DataLoaders([], list(zip(p.split(bs), t.split(bs))), device='cpu'), nn.Identity(), nn.MSELoss(),
            metrics=metric).remove_cb(ProgressCallback).validate()[1]
    for bs in (5, 17):
        for metric in (f, from_sklearn(name), AccumMetric(f)):
            assert measured(metric, bs)==pytest.approx(f(t.reshape(-1), p.reshape(-1)), rel=1e-5)
        if name=='max_error' and shape[-1]==3: continue # of one output only
        assert measured(from_sklearn(name, flatten=False), bs)==pytest.approx(f(t, p), rel=1e-5)
    # one column, and none
    one,none = p.reshape(17, -1)[:,:1],t.reshape(17, -1)[:,0]
    assert value_of(from_sklearn(name), one, none)==pytest.approx(f(none, one[:,0]), rel=1e-5)

@pytest.mark.parametrize('make', [lambda f: f, AccumMetric], ids=['itself','AccumMetric'])
def test_a_function_of_scikit_learn_gets_targets_first_however_it_is_given(make):
    sk = pytest.importorskip('sklearn.metrics')
    p,t = randn(17, 1),randn(17, 1)
    metrics = dict(r2=make(sk.r2_score), loss=make(partial(sk.mean_pinball_loss, alpha=.9)))
    res = Learner(DataLoaders([], list(zip(p.split(5), t.split(5))), device='cpu'), nn.Identity(), nn.MSELoss(),
        metrics=metrics).remove_cb(ProgressCallback).validate()
    assert res.r2==pytest.approx(sk.r2_score(t, p)) and res.loss==pytest.approx(sk.mean_pinball_loss(t, p, alpha=.9))

def test_the_order_of_arguments_can_be_said_for_a_function_of_scikit_learn():
    sk = pytest.importorskip('sklearn.metrics')
    p,t = randn(17),randn(17)
    assert AccumMetric(sk.r2_score, invert_arg=False)(p, t)==pytest.approx(sk.r2_score(p, t))

def test_an_average_over_batches_of_a_function_of_scikit_learn_gives_it_targets_first():
    sk = pytest.importorskip('sklearn.metrics')
    p,t = randn(16, 1),randn(16, 1)
    fs = dict(mse=sk.mean_squared_error, loss=partial(sk.mean_pinball_loss, alpha=.9))
    res = Learner(DataLoaders([], list(zip(p.split(8), t.split(8))), device='cpu'), nn.Identity(), nn.MSELoss(),
        metrics={k: AvgMetric(f) for k,f in fs.items()}).remove_cb(ProgressCallback).validate()
    assert [res[k] for k in fs]==[pytest.approx(f(t, p), rel=1e-6) for f in fs.values()]
    assert AvgMetric(sk.mean_squared_error).name=='mean_squared_error'

def test_a_function_of_ones_own_that_has_the_name_of_one_of_scikit_learn_gets_predictions_first():
    sk = pytest.importorskip('sklearn.metrics')
    @wraps(sk.precision_score)
    def precision(pred, targ): return sk.precision_score(targ, pred.argmax(-1))
    p,t = randn(16, 2),torch.arange(16)%2
    res = Learner(DataLoaders([], [(p, t)], device='cpu'), nn.Identity(), nn.CrossEntropyLoss(),
        metrics=precision).remove_cb(ProgressCallback).validate()
    assert res.precision_score==pytest.approx(sk.precision_score(t, p.argmax(-1)))

@pytest.mark.parametrize('name', ['log_loss','brier_score_loss','roc_auc_score'])
def test_several_labels_as_floats_count_alike_as_whole_numbers(name):
    f = getattr(pytest.importorskip('sklearn.metrics'), name)
    p,t = torch.rand(16, 3),torch.arange(48).reshape(16, 3)%2
    assert value_of(from_sklearn(name), p, t.float())==pytest.approx(f(t.reshape(-1), p.reshape(-1)), rel=1e-5)

@pytest.mark.parametrize('n', [9, 1])
def test_scores_of_the_last_sample_may_lack_its_axis(n):
    "A model that squeezes drops the axis of samples, where the last batch has one"
    class Squeezes(nn.Module):
        def forward(self, x): return x.squeeze()
    def hits(p, t): return (p.view(-1, 3).argmax(1)==t).float().mean()
    p,t = randn(n, 3),torch.arange(n)%3
    learn = Learner(DataLoaders([], list(zip(p.split(4), t.split(4))), device='cpu'), Squeezes(),
        lambda p,t: F.cross_entropy(p.view(-1, 3), t), metrics=AccumMetric(hits)).remove_cb(ProgressCallback)
    assert learn.validate().hits==pytest.approx(hits(p, t).item())

def test_one_score_for_each_class_label_is_refused_where_classes_were_asked_for():
    with pytest.raises(ValueError, match=r'predictions have shape \(4, 1\), with one score in axis -1'):
        from_sklearn('f1_score', is_class=True)(torch.randn(4, 1), torch.zeros(4).long())

def test_decisions_of_one_score_for_each_target_need_a_threshold():
    sk = pytest.importorskip('sklearn.metrics')
    p,t = randn(20, 1),torch.arange(20)[:,None]%2
    with pytest.raises(ValueError) as e: value_of(from_sklearn('f1_score'), p, t)
    assert '`from_sklearn(…, thresh=.5)` decides about scores, after a sigmoid' in e.value.__notes__[0]
    with pytest.raises(ValueError, match='contains NaN') as e: # of a regression, which decides nothing
        from_sklearn('r2_score')(torch.tensor([1.,2.]), torch.tensor([1.,torch.nan]))
    assert not hasattr(e.value, '__notes__')
    assert value_of(from_sklearn('f1_score', thresh=.5), p, t)==pytest.approx(sk.f1_score(t, p>0))

# Reading a history
def test_the_learner_has_the_smoothed_loss_and_the_final_record():
    learn = learner().fit(2)
    assert (learn.smooth_loss==learn.recorder.losses[-1] and learn.final_record==learn.recorder.final_record
        and learn.final_record.names==('train_loss','valid_loss','accuracy'))

def test_the_best_row_by_the_direction_of_the_metric():
    vals = iter([.3,.9,.5, .3,.9,.5])
    up = AvgMetric(lambda p,t: val[0], 'up', higher_is_better=True)
    down,open_ = AvgMetric(lambda p,t: val[0], 'down', higher_is_better=False),AvgMetric(lambda p,t: val[0], 'open')
    val = [0.]
    learn = learner(metrics=[up, down, open_],
        cbs=[Callback(before_validate=lambda cb: val.__setitem__(0, next(vals)))]).fit(3)
    rec = learn.recorder
    assert (rec.best('up').epoch==1 and rec.best('down').epoch==0
        and rec.best('valid_loss').valid_loss==min(rec['valid_loss']) and rec.best('open', higher=True).epoch==1)
    with pytest.raises(ValueError,
            match=r"It is not declared whether higher `open` is better: write `best\('open', higher=True\)`"):
        rec.best('open')
    with pytest.raises(KeyError, match='Did you mean `valid_loss`'): rec.best('valid_los')

def test_the_direction_of_a_column_that_a_callback_announces_is_that_of_its_metric():
    learn = learner(cbs=[ExtraValid(data(2), [error_rate, accuracy])]).fit(3)
    rec = learn.recorder
    for k,f in {'extra/loss':min, 'extra/error_rate':min, 'extra/accuracy':max}.items():
        assert rec.best(k)[k]==f(rec[k])

@pytest.fixture
def plt():
    import matplotlib.pyplot as plt
    yield plt
    plt.close('all')

def labels(ax): return [o.get_label() for o in ax.lines]
def test_metrics_are_plotted_with_one_pair_of_axes_each_and_several_runs_on_the_same(plt):
    a,b = (learner(metrics=[accuracy, dict(x=1) and mk_metrics(dict(xent=F.cross_entropy))[0]],
        recorder=Recorder(train_metrics=True)).fit(n) for n in (3, 2))
    axs = a.recorder.plot_metrics(label='a')
    assert (b.recorder.plot_metrics(axs=axs, label='b') is axs and len(axs)==2
        and [o.get_ylabel() for o in axs]==['accuracy','xent'])
    assert labels(axs[0])==['a: train_accuracy','a: valid_accuracy','b: train_accuracy','b: valid_accuracy']
    assert (list(axs[0].lines[1].get_ydata())==list(a.recorder['valid_accuracy'])
        and list(axs[0].lines[1].get_xdata())==a.recorder.iters)
    assert ([labels(o) for o in a.recorder.plot_metrics('valid_xent')]==[['valid_xent']]
        and len(a.recorder.plot_metrics(['valid_xent','train_loss']))==2)
    with pytest.raises(KeyError, match='Did you mean `valid_xent`'): a.recorder.plot_metrics('valid_xen')
    with pytest.raises(ValueError, match='There is nothing to plot: the last fit has recorded no metric'):
        learner(metrics=None).fit(1).recorder.plot_metrics()

def test_metrics_in_another_order_are_drawn_where_they_belong():
    "By name, and a column without values has no point"
    rmse = AccumMetric(lambda p,t: (p-t).square().mean().sqrt(), name='rmse')
    a,b = (synth_learner(2, 2, metrics=o).fit(1) for o in ([mae,rmse], [rmse,mae]))
    axs = b.recorder.plot_metrics(axs=a.recorder.plot_metrics(label='a'), label='b')
    assert [[o.get_ylabel(), *(l.get_label() for l in o.lines)] for o in axs]==[
        ['mae','a: mae','b: mae'], ['rmse','a: rmse','b: rmse']]
    for ax,k in zip(axs, ('mae','rmse')): assert ax.lines[1].get_ydata()[0]==b.final_record[k]
    learn = synth_learner(2, 2, cbs=ExtraValid({'test': [*synth_learner(1, 1).dls.valid]}, every=5)).fit(2)
    first,second = learn.recorder.plot_metrics(['valid_loss','test/loss'])
    assert len(first.lines)==1 and not second.lines and second.get_ylabel()=='test/loss'

def test_many_metrics_are_plotted_four_in_a_row(plt):
    metrics = mk_metrics({f'm{i}': partial(F.cross_entropy, label_smoothing=i/9) for i in range(6)})
    axs = learner(metrics=metrics).fit(1).recorder.plot_metrics()
    assert [o.get_ylabel() for o in axs]==[f'm{i}' for i in range(6)] and len(axs[0].figure.axes)==6
    assert axs[0].figure.get_size_inches().tolist()==[16,6]

def test_the_loss_of_a_single_batch_is_above_a_whole_number(plt):
    ax = learner().fit(n_iter=1).recorder.plot_loss(with_valid=False)
    ax.figure.canvas.draw()
    assert [o for o in ax.get_xticks() if o!=int(o)]==[]

def test_plots_of_metrics_have_a_size_and_name_our_arguments(plt):
    learn = learner().fit(1)
    assert learn.recorder.plot_metrics(figsize=(5,2))[0].figure.get_size_inches().tolist()==[5,2]
    with pytest.raises(TypeError, match='plot_metrics` has no argument `nrows`. Did you mean `axs`'):
        learn.recorder.plot_metrics(nrows=1)
    with pytest.raises(TypeError, match='plot_loss` has no argument `skip_strat`. Did you mean `skip_start`'):
        learn.recorder.plot_loss(skip_strat=3)
    with pytest.raises(ValueError, match='`skip_start` is 0 or more, but got -1'):
        learn.recorder.plot_loss(skip_start=-1)

def test_losses_of_several_runs_have_labels_on_one_axis(plt):
    a,b = learner().fit(1),learner().fit(1)
    ax = a.recorder.plot_loss(skip_start=0, label='a')
    assert labels(b.recorder.plot_loss(skip_start=0, ax=ax, label='b'))==[
        'a: train, smoothed','a: valid','b: train, smoothed','b: valid']
    assert labels(a.recorder.plot_loss(skip_start=0))==['train, smoothed','valid']
    ax = a.recorder.plot_loss(skip_start=0, log=True, label='a')
    assert b.recorder.plot_loss(skip_start=0, ax=ax, label='b').get_xscale()=='log' # without saying it again

def test_plots_leave_out_rows_without_a_validation(plt):
    learn = learner(cbs=[Validate(every=2)]).fit(4)
    (ax,) = learn.recorder.plot_metrics()
    assert len(ax.lines[0].get_xdata())==2 and all(v==v for v in ax.lines[0].get_ydata())

# The trial on the first batch
def images(n=3, bs=2, c=4, h=5, w=6): return [(randn(bs, 3, h, w), randint(c, bs, h, w)) for _ in range(n)]
def segmenter(metrics, cbs=None, model=None, **kwargs):
    return learner(images(), images(), metrics, model=nn.Conv2d(3, 4, 1) if model is None else model, cbs=cbs, **kwargs)
@pytest.mark.parametrize('make,write', [
    (lambda: accuracy, 'partial(accuracy, axis=1)'), (lambda: error_rate, 'partial(error_rate, axis=1)'),
    (lambda: partial(top_k_accuracy, k=2), 'partial(top_k_accuracy, axis=1)'),
    (lambda: F1Score(average='macro'), 'F1Score(axis=1)'),
    (lambda: BalancedAccuracy(), 'BalancedAccuracy(axis=1)'), (lambda: BrierScore(), 'BrierScore(axis=1)'),
    (lambda: from_sklearn('f1_score', average='macro'), "from_sklearn('f1_score', axis=1)"),
    (lambda: CohenKappa(), 'CohenKappa(axis=1)')])
def test_a_metric_that_does_not_fit_fails_at_the_first_batch_and_names_the_line_to_write(make, write):
    if 'from_sklearn' in write: pytest.importorskip('sklearn')
    learn = segmenter(make())
    with pytest.raises((ValueError,RuntimeError,IndexError)) as e: learn.fit(1)
    note = [o for o in e.value.__notes__ if 'tried on the first training batch' in o]
    assert (len(note)==1 and note[0].endswith(
        f"predictions are (2, 4, 5, 6), and targets (2, 5, 6). The classes are in axis 1: write `metrics={write}`")
        and len(learn.recorder.rows)==0)

def test_a_metric_of_classes_where_a_collate_function_mixes_those_of_training_batches():
    def mixed(rows):
        x,y = torch.utils.data.default_collate(rows)
        y = F.one_hot(y, 3).float()
        return x,.7*y+.3*y.flip(0)
    ds = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.arange(12)%3)
    dls = DataLoaders(torch.utils.data.DataLoader(ds, 4, collate_fn=mixed), torch.utils.data.DataLoader(ds, 4),
        device='cpu')
    learn = Learner(dls, nn.Linear(4, 3), nn.CrossEntropyLoss(), metrics=accuracy).fit(1)
    preds,targs = learn.get_preds()
    assert learn.recorder.rows[0]['accuracy']==pytest.approx(float((preds.argmax(1)==targs).float().mean()))

def test_a_metric_that_fits_passes_the_trial():
    learn = segmenter([partial(accuracy, axis=1), F1Score(axis=1, average='macro'), BrierScore(axis=1), foreground_acc])
    assert len(learn.fit(1).recorder.rows)==1

@pytest.mark.parametrize('f,got',
    [(lambda p,t: 'good', "'good'"), (lambda p,t: None, 'None'),
        (lambda p,t: (p.argmax(1)==t).float(), r'a tensor of shape \(6,\): `.mean\(\)` makes one number of it'),
    (lambda p,t: np.zeros(6), r'an array of shape \(6,\)'), (lambda p,t: [1.], r'\[1\.0\]'), (lambda p,t: {}, r'\{\}')])
def test_a_metric_that_returns_no_number_fails_at_the_first_batch(f, got):
    with pytest.raises(TypeError,
            match=f'The metric `mine` is averaged over batches, so it returns one number, but it returned {got}'):
        learner(metrics=dict(mine=f)).fit(1)
    with pytest.raises(TypeError, match='The metric `mine`'): learner(metrics=dict(mine=f)).validate()

def test_an_array_of_one_number_is_one_number():
    assert learner(metrics=dict(mine=lambda p,t: np.array([3.]))).validate().mine==3

@pytest.mark.parametrize('f,got', [(lambda p,t: 'good', "'good'"), (lambda p,t: None, 'None')])
def test_a_metric_of_all_samples_that_returns_no_number_says_so(f, got):
    with pytest.raises(TypeError, match=f'The metric `mine` returns a number, or several, but it returned {got}'):
        learner(metrics=dict(mine=AccumMetric(f))).validate()

class TwoFaced(nn.Module):
    "Returns a pair in training, as models with an auxiliary output do"
    def __init__(self, kind): super().__init__(); self.l,self.kind = nn.Linear(3, 4),kind
    def forward(self, x):
        res = self.l(x)
        return res if not self.training else (res,res) if self.kind=='pair' else res[:,None]
def two_loss(p, t): return F.cross_entropy(p[0] if isinstance(p, tuple) else p.reshape(len(t), -1), t)

@pytest.mark.parametrize('kind', ['pair','shape'])
def test_a_model_that_returns_something_else_in_training_is_no_error(kind):
    learn = learner(model=TwoFaced(kind), loss_func=two_loss, metrics=[accuracy, F1Score(average='macro')])
    assert len(learn.fit(1).recorder.rows)==1 and learn.model.training

def test_what_callbacks_change_is_no_error():
    class First(Callback):
        def after_pred(self): self.learn.pred = self.learn.pred[0] if not self.learn.training else self.learn.pred
    class Both(nn.Linear):
        def forward(self, x): return super().forward(x),x
    learn = learner(model=Both(3, 4), loss_func=two_loss, cbs=[First()])
    assert len(learn.fit(1).recorder.rows)==1
    class Pairs(Callback):
        run_valid = False
        def before_batch(self): self.learn.yb = (*self.learn.yb, *self.learn.yb)
    assert len(learner(loss_func=lambda p,t,*_: F.cross_entropy(p, t), cbs=[Pairs()]).fit(1).recorder.rows)==1

class Random(Metric):
    "Draws numbers, has a state, changes modes"
    def __init__(self): self.reset()
    def reset(self): self.n = 0
    def accumulate(self, learn): torch.rand(1); np.random.rand(); self.n += 1
    @property
    def value(self): return self.n

@pytest.mark.parametrize('fails', [False, True])
def test_the_trial_does_not_change_the_run(fails):
    class Drops(nn.Module):
        def __init__(self):
            super().__init__(); self.l,self.bn,self.drop = nn.Linear(3, 4),nn.BatchNorm1d(4),nn.Dropout(.5)
        def forward(self, x):
            res = self.drop(self.bn(self.l(x)))
            return (res,) if fails and self.training else res
    def run(metrics):
        torch.manual_seed(3); np.random.seed(3)
        events = []
        class Seen(Callback): pass
        for ev in ('before_batch','after_pred','after_loss','after_batch','before_validate','before_train'):
            setattr(Seen, ev, lambda cb, ev=ev: events.append(ev))
        Seen.watches = True
        gen.manual_seed(0)
        learn = learner(model=Drops(), metrics=metrics, loss_func=two_loss, cbs=[Seen()])
        learn.fit(1)
        modes = [o.training for o in learn.model.modules()]
        return [p.detach().clone()
            for p in learn.model.state_dict().values()],learn.recorder.raw_losses,events,modes,torch.rand(
            1),np.random.rand()
    a,b = run(None),run([accuracy, Random()] if fails else [accuracy, Random(), F1Score(average='macro')])
    assert all(map(torch.equal, a[0], b[0])) and a[1:4]==b[1:4]

def test_metric_states_are_as_they_were_after_the_trial():
    m = Random()
    learn = learner(metrics=[m], recorder=Recorder(),
        cbs=[on(event.after_batch(once=1))(lambda learn: seen.append(m.n))])
    m.n,seen = 17,[]
    learn.fit(1)
    assert seen==[17]

def test_the_trial_is_made_once_in_a_fit_and_costs_nothing_afterwards():
    calls = []
    def f(p, t): calls.append(torch.is_grad_enabled()); return p.mean()
    learn = learner(metrics=[f], cbs=[Callback(before_validate=lambda cb: calls.append('valid'))]).fit(2)
    assert calls==[False, *['valid',False,False], False,
        *['valid',False,False]] and learn.recorder.phase.now==[], "two calls besides those of validation"
    calls.clear()
    learner(metrics=[f], recorder=Recorder(valid_metrics=False)).fit(1)
    Learner(DataLoaders(data(), device='cpu'), nn.Linear(3, 4), nn.CrossEntropyLoss(),
        metrics=f).remove_cb(ProgressCallback).fit(1)
    assert calls==[]

def test_after_the_first_batch_nothing_is_left_of_the_trial():
    seen = []
    class Look(Callback):
        order = 1000
        def after_batch(self):
            if self.learn.training:
                seen.append((list(self.learn.recorder.phase.now), len(self.learn.cbs),
                    {ev:len(self.learn.handlers[ev]) for ev in event}))
    learner(metrics=[accuracy, F1Score(average='macro')], cbs=[Look()]).fit(2)
    assert len(seen)==8 and all(o==seen[0] for o in seen) and seen[0][0]==[]

def f1(p, t): p = p.argmax(1)==1; return 2*(p&(t==1)).sum()/(p.sum()+(t==1).sum())
def recall_at_1(p, t):
    d = torch.cdist(p, p).fill_diagonal_(torch.inf).argmin(1)
    return (t[d]==t).float().mean()
def largest(p, t): return p.max()
@pytest.mark.parametrize('f', [f1, recall_at_1, largest])
def test_a_function_that_is_no_average_over_samples_is_named(f):
    with pytest.warns(UserWarning,
            match=f'`{f.__name__}` is no average over samples: for the first two batches together it is .* So it '
            f'depends on the batch size. `AccumMetric\\({f.__name__}\\)` computes it for all samples at once'):
        learner(data(bs=12), metrics=f).fit(1)

@pytest.fixture
def large(monkeypatch):
    "As if batches of more than 40 values were large"
    monkeypatch.setattr(sys.modules[BatchCheck.__module__], 'most_values', 40)

@pytest.mark.parametrize('f', [f1, recall_at_1, largest])
def test_a_function_that_is_no_average_is_named_by_some_samples_of_large_batches(f, large):
    with pytest.warns(UserWarning, match=f'`{f.__name__}` is no average over samples: for '):
        learner(data(bs=12), metrics=f).fit(1)

def test_nothing_is_said_of_averages_over_large_batches(large, recwarn):
    learner(data(bs=12), metrics=right, loss_func=lambda p,t: F.cross_entropy(p, t)).fit(2)
    assert not [o for o in recwarn if 'no average' in str(o.message)]

def test_predictions_of_large_batches_are_not_kept(large):
    refs,alive = [],[]
    def note(self):
        alive.append(sum(o() is not None for o in refs))
        refs.append(weakref.ref(self.learn.pred))
    with pytest.warns(UserWarning, match='no average'):
        learner(data(1, 64), data(8, 64), metrics=[largest, right], cbs=[Callback(after_pred=note)]).validate()
    assert len(alive)==8 and max(alive)<=1 # that of the batch before

def right(p, t): return (p.argmax(1)==t).float().mean()
@pytest.mark.parametrize('loss,metrics', [(None, [largest, right]), (lambda p,t: F.cross_entropy(p, t), largest)],
    ids=['two metrics','loss and metric'])
@pytest.mark.parametrize('how', [lambda learn: learn.fit(1), lambda learn: learn.validate()], ids=['fit','validate'])
def test_a_function_that_is_no_average_is_named_beside_one_that_is(loss, metrics, how):
    "The other one is compared in later batches"
    with pytest.warns(UserWarning, match='`largest` is no average over samples') as said:
        how(learner(data(bs=12), data(8, 12), metrics, loss))
    assert len([o for o in said if 'no average' in str(o.message)])==1

@pytest.mark.parametrize('f', [f1, recall_at_1, largest])
def test_one_batch_alone_is_an_average(f, recwarn):
    row = learner(data(bs=12), data(1, 12), metrics=f).fit(1).recorder.rows[0]
    assert not [o for o in recwarn if 'average over samples' in str(o.message)] and f.__name__ in dict(row)

def test_the_check_of_averages_is_made_in_a_validation_of_any_kind(recwarn):
    learn = learner(metrics=largest, cbs=[Validate(every=2, unit='iter')])
    learn.fit(2)
    assert len([o for o in recwarn if 'average over samples' in str(o.message)])==1 and len(learn.recorder.rows)==4

class Steps(nn.Module):
    "Counts its calls in an attribute that its output depends on, and returns a tuple in training"
    def __init__(self): super().__init__(); self.l,self.n = nn.Linear(3, 4),0
    def forward(self, x):
        self.n += 1
        res = self.l(x)+self.n
        return (res,) if self.training else res

def test_the_trial_leaves_the_state_of_a_model_alone():
    gen.manual_seed(0)
    a,b = [learner(data(), data(2), model=Steps(), loss_func=two_loss, metrics=m).fit(1) for m in (None, accuracy)
        if gen.manual_seed(0)]
    assert (all(map(torch.equal, a.model.parameters(), b.model.parameters())) and a.model.n==b.model.n==4
        and a.recorder.raw_losses==b.recorder.raw_losses)

class Robust(Metric):
    "The loss of inputs moved along their gradient, by a backward pass that leaves gradients in the weights"
    def reset(self): self.vals = []
    def accumulate(self, learn):
        with torch.enable_grad():
            x = learn.x.clone().requires_grad_()
            learn.loss_func(learn.model(x), learn.y).backward()
        self.vals.append(learn.loss_func(learn.model(learn.x+.1*x.grad.sign()), learn.y).item())
    @property
    def value(self): return sum(self.vals)/len(self.vals)

@pytest.mark.parametrize('of', [lambda net: Robust(), lambda net: dict(own=lambda p,t: net(p[:, :3]).mean())])
def test_a_metric_that_calls_the_model_leaves_statistics_and_gradients_of_training_alone(of):
    "In the trial on the first batch, as in validations"
    def fit(of):
        gen.manual_seed(0); torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        return learner(data(), data(2), of(net), model=net).fit(2)
    a,b = fit(lambda net: None),fit(of)
    assert (all(map(torch.equal, a.model.state_dict().values(), b.model.state_dict().values()))
        and a.recorder['valid_loss'].tolist()==b.recorder['valid_loss'].tolist())

@pytest.mark.parametrize('f',
    [accuracy, error_rate, mae, lambda p,t: (p.argmax(1)==t).float().mean(), partial(top_k_accuracy, k=2),
        F.cross_entropy, nn.CrossEntropyLoss(weight=torch.tensor([.1,1.,2.,3.])), AccumMetric(f1, flatten=False),
        lambda p,t: 0, lambda p,t: float('nan')], ids=lambda o: getattr(o, '__name__', 'x'))
def test_averages_are_not_warned_of(f, recwarn):
    learn = learner(data(bs=7), metrics=f if f is not mae else lambda p,t: mae(p.argmax(1).float(), t.float()))
    learn.fit(1)
    assert not [o for o in recwarn if 'average over samples' in str(o.message)]

def kept(f):
    "A metric of the targets that count"
    def g(p, t, ignore_index=-100): k = t!=ignore_index; return f(p[k], t[k])
    g.__name__ = f.__name__
    return g
def with_ignored(n, bs, index=-100):
    "Batches of which ever more targets are ignored"
    return [(x, torch.where(torch.arange(bs)<i, index, y)) for i,(x,y) in enumerate(data(n, bs))]

@pytest.mark.parametrize('f', [f1, recall_at_1, largest])
@pytest.mark.parametrize('index', [-100, 7])
def test_a_function_that_ignores_targets_is_compared_too(f, index):
    loss,learned = nn.CrossEntropyLoss(ignore_index=index),with_ignored(4, 12, index)
    with pytest.warns(UserWarning, match=f'`{f.__name__}` is no average over samples: .* it is ([0-9.]+),') as said:
        learner(learned, learned, [kept(f), accuracy], loss, model := nn.Linear(3, 4)).validate()
    two = [torch.cat(o) for o in zip(*learned[:2])]
    told = re.search(r'it is ([0-9.]+), and', str(said[0].message))[1]
    assert len(said)==1 and float(told)==pytest.approx(float(kept(f)(model(two[0]).detach(), two[1], index)), rel=1e-5)

@pytest.mark.parametrize('f', [kept(right), partial(kept(right), ignore_index=3), partial(accuracy, ignore_index=0),
    wraps(accuracy)(lambda *args, **kwargs: accuracy(*args, **kwargs)), AccumMetric(kept(f1), flatten=False)],
    ids=['mean','partial','library','wrapper','all'])
@pytest.mark.parametrize('size', [2**24, 40])
def test_functions_that_average_over_targets_that_count_are_not_warned_of(f, size, monkeypatch, recwarn):
    monkeypatch.setattr(sys.modules[BatchCheck.__module__], 'most_values', size)
    batches = with_ignored(6, 12)
    batches[1] = batches[1][0],torch.full((12,), -100) # none counts
    learner(batches, batches, f, nn.CrossEntropyLoss()).fit(1)
    assert not [o for o in recwarn if 'over samples' in str(o.message)]

class Lengths(nn.Module):
    "Predicts numbers of texts, as a tensor or as a list"
    def __init__(self, of=torch.tensor): super().__init__(); self.w,self.of = nn.Parameter(torch.zeros(1)),of
    def forward(self, texts): return self.of([float(len(o)) for o in texts])
def gap(pred, targ): return (torch.as_tensor(pred)-torch.tensor([float(len(o)) for o in targ])).abs().mean()
def same_length(pred, targ): return sum(int(p)==len(t) for p,t in zip(pred, targ))/len(targ)
texts = [(['a','bb'], ['x','yyy']), (['a','bb','c'], ['x','yyy','zz']), (['a'], ['xx']), (['a'], ['x'])]

@pytest.mark.parametrize('count', [None, lambda learn: len(learn.y)], ids=['alike','count'])
@pytest.mark.parametrize('of', [torch.tensor, list], ids=['tensor','list'])
@pytest.mark.parametrize('says', [False, True])
def test_batches_without_a_tensor_count_alike_unless_their_number_is_told(says, of, count, recwarn):
    def right(pred, targ): return same_length(pred, targ)
    if says: right.n_items = lambda targ: len(targ)
    row = learner(texts, texts, right, gap, Lengths(of), recorder=Recorder(count=count)).validate()
    told = {str(o.message).split(' ')[0] for o in recwarn if 'counts every batch alike' in str(o.message)}
    known = says or of is torch.tensor
    assert told=={*(['`loss`'] if count is None else []), *([] if known else ['`right`'])}
    assert row.valid_loss==pytest.approx(4/7 if count else (1/2+2/3+1+0)/4)
    assert row.right==pytest.approx(3/7 if known else (1/2+1/3+0+1)/4)

class LeavesBehind(nn.Linear):
    "Leaves a number of the batch in itself, as a variational autoencoder may leave its divergence"
    def forward(self, x): self.kl = x.pow(2).mean(); return super().forward(x)
def elbo(net):
    def f(p, t): return F.cross_entropy(p, t)+net.kl
    return f
def summed_elbo(net):
    class Summed(nn.CrossEntropyLoss):
        def forward(self, p, t): return super().forward(p, t)+net.kl*len(t)
    return Summed(reduction='sum')

@pytest.mark.parametrize('most,loss', [(2**24, elbo), (2**24, summed_elbo), (40, elbo)], ids=['mean','sum','large'])
def test_functions_of_what_the_model_left_behind_are_not_compared(most, loss, monkeypatch, recwarn):
    monkeypatch.setattr(sys.modules[BatchCheck.__module__], 'most_values', most)
    net,batches = LeavesBehind(3, 4),data(6, 12)
    f,metrics = loss(net),dict(kl=lambda p,t: net.kl, twice=lambda p,t: 2*learn.loss, elbo=elbo(net))
    learn = learner(batches, batches, metrics, f, net)
    row = learn.validate()
    assert not [o for o in recwarn if 'over samples' in str(o.message)]
    x,y = (torch.cat(o) for o in zip(*batches))
    at_once = f(net(x), y).item()/(len(y) if loss is summed_elbo else 1)
    assert row.valid_loss==pytest.approx(at_once, rel=1e-5) and row.kl==pytest.approx(net.kl.item())

def spans(p, t): return p.amax()*10-p.amin()*10
@pytest.mark.parametrize('half', [False, True])
def test_functions_of_predictions_are_compared_in_half_precision_too(half):
    net,batches = LeavesBehind(3, 4),data(6, 12)
    if half: net,batches = net.bfloat16(),[(x.bfloat16(), y) for x,y in batches]
    with pytest.warns(UserWarning, match='`spans` is no average over samples'):
        learner(batches, batches, loss_func=spans, model=net).validate()

# A log
def test_print_progress_prints_lines_and_takes_the_place_of_the_bar(capsys):
    learn = learner(data(6), cbs=[PrintProgress(every=3)])
    learn.fit(2)
    out = capsys.readouterr().out.splitlines()
    assert [o.split(':')[0] for o in out if 'loss ' in o and 'train_loss' not in o]==[
        f'epoch {e} train {i}/6' for e in (0,1) for i in (3,6)] and '\r' not in ''.join(out)
    assert sum(o.split()[:1]==[str(e)] for o in out for e in (0,1))==2 and 'valid_loss' in out[2]
    full = Learner(learn.dls, learn.model, learn.loss_func, cbs=PrintProgress)
    assert [type(o) for o in full.cbs if isinstance(o, ProgressCallback)]==[PrintProgress]
    with pytest.raises(ValueError, match='`every` is 1 or more, but got 0'): PrintProgress(every=0)

# Rows
def test_an_epoch_that_ends_without_a_validation_after_rows_of_its_own_has_no_empty_row():
    learn = learner(data(5), cbs=[Validate(every=2, unit='iter')]).fit(2)
    assert ([(o.epoch, o.iter) for o in learn.recorder.rows]==[(0,2),(0,4),(1,6),(1,8),(1,10)]
        and not np.isnan(learn.recorder['valid_loss']).any())
    assert learn.recorder.iters==[2,4,6,8,10]
    # its row has metrics of the whole epoch
    kept = learner(data(5), recorder=Recorder(train_metrics=True), cbs=[Validate(every=2, unit='iter')]).fit(2).recorder
    assert [o.iter for o in kept.rows]==[2,4,5,6,8,10]
    # at order 0, before the recorder
    added = learner(data(5), cbs=[Validate(every=2, unit='iter'),
        Callback(after_epoch=lambda cb: cb.learn.recorder.add(x=1))])
    assert [o.iter for o in added.fit(2).recorder.rows]==[2,4,5,6,8,10]
    assert len(learner(cbs=[Validate(every=2)]).fit(4).recorder.rows)==4 # the only row of its epoch

def test_what_a_metric_of_all_samples_keeps_is_a_short_list_however_many_batches():
    m = AccumMetric(lambda p,t: (p*2-t).sum())
    m.reset()
    for i in range(1500): m.accumulate(SimpleNamespace(pred=torch.tensor([float(i)]), yb=(torch.tensor([float(i)]),)))
    assert (len(m.preds)==1500//256 + 1500%256 and abs(m.value/sum(range(1500))-1)<1e-5
        and torch.cat(m.preds).tolist()==[*range(1500)])

# Arguments
@pytest.mark.parametrize('kwargs,match',
    [(dict(axis='last'), "`axis` is a whole number, but got 'last'"),
        (dict(ignore_index=.5), "`ignore_index` is a whole number, but got 0.5"),
        (dict(axs=1), "`accuracy` has no argument `axs`. Did you mean `axis`")])
def test_what_a_partial_of_a_metric_sets_is_checked_before_training(kwargs, match):
    with pytest.raises(TypeError, match=match): synth_learner(metrics=partial(accuracy, **kwargs))

def test_the_functions_of_metrics_are_not_checked_in_each_batch(monkeypatch):
    learn = Learner(DataLoaders([(torch.randn(4,1), torch.tensor([0,1,0,1]))]*3, device='cpu'), nn.Linear(1,2),
        nn.CrossEntropyLoss(), metrics=[accuracy, partial(error_rate, axis=-1)])
    monkeypatch.setattr('learner.core.checks._check', lambda *args: 1/0)
    with pytest.raises(ZeroDivisionError): accuracy(torch.zeros(1,2), torch.tensor([0]))
    for m in learn.metrics:
        m.accumulate(SimpleNamespace(pred=torch.tensor([[1.,0.],[0.,1.]]), yb=(torch.tensor([0,0]),),
            xb=(torch.zeros(2,1),), loss_func=None, device=None))
    assert [float(m.value) for m in learn.metrics]==[.5,.5]

class Refills:
    "A loader with one buffer for all batches"
    def __init__(self, x, y, bs): self.x,self.y,self.bs = x,y,bs
    def __iter__(self):
        bx,by = self.x[:self.bs].clone(),self.y[:self.bs].clone()
        for x,y in zip(self.x.split(self.bs), self.y.split(self.bs)): yield bx.copy_(x),by.copy_(y)
class OwnBuffer(nn.Module):
    "A model that returns the same tensor each time"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.lin,self.out = nn.Linear(3, 4),None
    def forward(self, x):
        res = self.lin(x)
        if self.training: return res
        if self.out is None: self.out = torch.empty_like(res)
        return self.out.copy_(res)

def test_loaders_and_models_may_use_their_memory_again():
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(40, 3, generator=gen),torch.randint(0, 4, (40,), generator=gen)
    def run(valid, model):
        metrics = [accuracy, from_sklearn('accuracy_score'), F1Score(average='macro'),
            AccumMetric(lambda p,t: p.softmax(-1)[range(len(t)),t].mean(), flatten=False, name='right')]
        learn = Learner(DataLoaders(valid, valid, device='cpu'), model, nn.CrossEntropyLoss(), metrics=metrics)
        return [*dict(learn.validate()).values()],learn.get_preds(concat_dim=None, act=lambda o: o)
    plain = nn.Sequential()
    plain.lin = OwnBuffer().lin
    vals,(preds,targs) = run(list(zip(x.split(8), y.split(8))), plain)
    for valid,model in (Refills(x, y, 8),plain),(list(zip(x.split(8), y.split(8))),OwnBuffer()):
        others,(ps,ts) = run(valid, model)
        assert others==pytest.approx(vals, abs=1e-6)
        assert torch.allclose(torch.cat(ps), torch.cat(preds), atol=1e-6) and torch.equal(torch.cat(ts), y)

def test_values_of_several_numbers_stay_as_they_were():
    class PerClass(Metric):
        def __init__(self): self.n = torch.zeros(4)
        def reset(self): self.n.zero_()
        def accumulate(self, learn): self.n += torch.bincount(learn.y, minlength=4)
        @property
        def value(self): return self.n
    class Counts(Callback):
        new_columns = ['t','a']
        def __init__(self): self.t,self.a = torch.zeros(2),np.zeros(2)
        def before_row(self): self.t += 1; self.a += 1; self.learn.recorder.add(t=self.t, a=self.a)
    x,y = torch.randn(12, 3),torch.tensor([0,1,2,3]*3)
    data = list(zip(x.split(4), y.split(4)))
    learn = Learner(DataLoaders(data, dict(valid=data, one=data[:1]), device='cpu'), nn.Linear(3, 4), F.cross_entropy,
        metrics=PerClass(), cbs=Counts).remove_cb(ProgressCallback).fit(3)
    for i,row in enumerate(learn.recorder.rows):
        assert row['per_class'].tolist()==[3.]*4 and row['one/per_class'].tolist()==[1.]*4
        assert row['t'].tolist()==row['a'].tolist()==[i+1.]*2
    res = learn.validate()
    learn.validate('one')
    assert res['per_class'].tolist()==[3.]*4

class Distinct:
    "Like a metric of torchmetrics, which gathers in containers of its own"
    def __init__(self): self.reset()
    def reset(self): self.seen,self.counts,self._n,self.last = set(),Counter(),dict(samples=0),deque(maxlen=3)
    def update(self, pred, y):
        y = y.tolist()
        self.seen |= {*y}; self.counts.update(y); self._n['samples'] += len(y); self.last.extend(y)
    def compute(self): return len(self.seen)+10*max(self.counts.values())+1000*self._n['samples']+1e5*sum(self.last)

@pytest.mark.parametrize('wrapped', [False, True])
@pytest.mark.parametrize('where', ['memory','file'])
def test_a_stop_keeps_what_metrics_of_torchmetrics_have_gathered(wrapped, where, tmp_path):
    import torchmetrics
    from torchmetrics.wrappers import MinMaxMetric
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=gen), torch.randint(0, 4, (8,), generator=gen)) for _ in range(5)]
    def make():
        torch.manual_seed(0)
        inner = MinMaxMetric(torchmetrics.Accuracy('multiclass', num_classes=4)) if wrapped else Distinct()
        return Learner(DataLoaders(data, device='cpu'), nn.Linear(3, 4), F.cross_entropy, path=tmp_path,
            metrics=TorchMetric(inner, 'm'), default_cbs=False, cbs=[TrainEvalCallback, Recorder(train_metrics=True)])
    def value(learn):
        v = learn.recorder.rows[-1]['train_m']
        return float(v['raw']) if wrapped else v
    whole,learn = make().fit(1),make()
    stop = on(event.after_batch(once=3))(lambda learn: learn.stop_soon())
    learn.fit(1, cbs=[stop, *([Checkpoint()] if where=='file' else [])])
    learn = learn.resume(cbs=[]) if where=='memory' else make().fit(1, cbs=Checkpoint(), resume=True)
    assert value(learn)==value(whole)!=0

def test_values_in_containers_stay_as_they_were():
    counts = dict(a=torch.zeros(2))
    def value(): counts['a'] += 1; return counts
    data = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    learn = Learner(DataLoaders(data, data, device='cpu'), nn.Linear(3, 4), F.cross_entropy,
        metrics=ValueMetric(value, 'v')).remove_cb(ProgressCallback).fit(3)
    rows = [o['v']['a'][0].item() for o in learn.recorder.rows]
    assert len({*rows})==3 and rows==sorted(rows)

# One metric in several places
class Gathers(Metric):
    "Its `reset` empties its lists, as users write it"
    def __init__(self): self.preds,self.n = [],0
    def reset(self): self.preds.clear(); self.n = 0
    def accumulate(self, learn): self.preds.append(learn.pred.detach().sum()); self.n += len(learn.yb[0])
    @property
    def value(self): return float(sum(self.preds)/self.n)

class InSlots(Gathers):
    __slots__ = 'preds','n','__hidden'
    def reset(self): super().reset(); self.__hidden = 0
    def accumulate(self, learn): super().accumulate(learn); self.__hidden += 1
    @property
    def value(self): return super().value+self.__hidden

@pytest.mark.parametrize('how', ['validation', 'training', 'training and validation'])
def test_another_learner_with_the_same_metric_in_the_middle_of_a_phase(how):
    "A teacher, for example"
    train,valid = data(),data(3)
    def run(shared, inner):
        m = Gathers()
        def new(m): return learner(train, valid, metrics=m, recorder=Recorder(train_metrics=True))
        other = new(m if shared else Gathers())
        def at(learn):
            if learn.training!=('training' in how): return
            if inner: (other.fit(1) if 'and' in how else other.validate()); seen.append(m.n)
        seen,learn = [],new(m)
        learn.fit(2, cbs=on(event.after_batch)(at))
        rows = [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
        alone = other.validate()
        return rows,seen,m.n,dict(alone) if inner else None
    apart,same = run(False, True),run(True, True)
    assert same[:2]==apart[:2] and same[0]==run(False, False)[0] and same[3]==apart[3] and same[2]==18

class Failing(Callback):
    run_train = False
    def after_batch(self): 1/0

def test_a_metric_in_another_learner_after_a_phase_that_failed():
    m,train,valid = Gathers(),data(),data(3)
    first,second = (learner(train, valid, metrics=m) for _ in range(2))
    with pytest.raises(ZeroDivisionError): first.fit(1, cbs=Failing())
    assert second.validate().gathers==m.value and m.n==18 # it is the second one's now

def test_a_metric_with_slots_keeps_what_it_has_gathered():
    train,valid = data(),data(3)
    def inner(learn):
        if not learn.training and learn.mode=='fit' and learn.iter==1: learn.validate(dl=train)
    def run(m, *cbs): return learner(train, valid, metrics=m).fit(1, cbs=cbs).results
    assert dict(run(InSlots(), on(event.after_batch)(inner)))==dict(run(InSlots()))
    pred,targ = randn(6, 4),randint(4, 6)
    m = InSlots()
    m.reset(); m.preds.append(torch.tensor(3.)); m.n = 1
    assert m(pred, targ)==pytest.approx(float(pred.sum()/6)+1) and m.value==3

def test_a_metric_with_slots_resumes(tmp_path):
    "In the middle of an epoch, in which it has gathered some batches of training"
    train,valid = data(4),data(2)
    def new(): return learner(train, valid, metrics=InSlots(), recorder=Recorder(train_metrics=True))
    def rows(learn): return [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
    class Stop(Callback):
        run_valid = False
        def after_batch(self):
            if self.train_iter==2: self.learn.stop_soon()
    file = new().fit(1, cbs=Stop).save_state(tmp_path/'here')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert rows(new().load_state(file).resume(cbs=Stop))==rows(new().fit(1))

class Right(Metric):
    "Reads the one target as `learn.y`"
    def reset(self): self.right,self.n = 0,0
    def accumulate(self, learn): self.right += int((learn.pred==learn.y).sum()); self.n += len(learn.y)
    @property
    def value(self): return self.right/self.n if self.n else None

def test_a_metric_that_is_called_has_the_target_of_a_batch():
    pred,targ = torch.tensor([1.,2,3]),torch.tensor([1.,0,3])
    assert Right()(pred, targ)==2/3
    loss = AvgLoss(count=lambda learn: learn.y.sum())
    assert loss(pred, targ, loss_func=torch.nn.functional.mse_loss).item()==pytest.approx(4/3)

@pytest.mark.parametrize('func', [accuracy, mse, partial(accuracy, axis=-1)], ids=['accuracy','mse','partial'])
@pytest.mark.parametrize('whole', [False, True], ids=['two arguments','all arguments'])
def test_a_wrapper_of_ones_own_around_a_metric_of_the_library_is_called(func, whole):
    "`functools.wraps` gives it all attributes of what it wraps, and the signature"
    def scaled(pred, *args): return (pred.argmax(1).float() if func is mse else pred),*args
    @wraps(func.func if isinstance(func, partial) else func)
    def ten_times(pred, targ, **kwargs): return 10*func(*scaled(pred, targ), **kwargs)
    @wraps(ten_times)
    def without(pred, targ): return ten_times(pred, targ)
    learn = learner(metrics=[func if func is not mse else mse_of_classes, ten_times if whole else without])
    learn.fit(1)
    _,plain,tenfold = learn.results
    assert tenfold==pytest.approx(10*plain) and plain>0

def passing_on(f):
    @wraps(f)
    def g(*args, **kwargs): return f(*args, **kwargs)
    return g

def test_a_wrapper_that_passes_all_on_to_one_that_takes_less_is_called_with_less():
    @passing_on
    @wraps(accuracy)
    def two(pred, targ): return accuracy(pred, targ)
    for metric in (two, torch.no_grad()(two), AccumMetric(two, dim_argmax=None, flatten=False, name='all')):
        learn = learner(metrics=metric)
        learn.fit(1)
        assert learn.results[1]>0

def test_the_default_of_a_wrapper_decides_what_is_ignored():
    def plain(pred, targ): return (pred.argmax(1)==targ).float().mean()
    @wraps(plain)
    def without_class_0(pred, targ, ignore_index=0):
        return plain(pred[targ!=ignore_index], targ[targ!=ignore_index])
    batches = data(2)
    learn = learner(valid=batches, metrics=without_class_0, loss_func=lambda p,t: F.cross_entropy(p, t))
    learn.validate()
    pred,targ = torch.cat([learn.model(x) for x,_ in batches]),torch.cat([y for _,y in batches])
    assert learn.results[1]==pytest.approx(without_class_0(pred, targ).item())

def test_a_metric_of_ones_own_moves_no_generator_when_it_is_tried():
    rng = np.random.default_rng(0)
    class Noisy:
        def __init__(self): update_wrapper(self, accuracy)
        def __call__(self, pred, targ): return accuracy(pred, targ)+rng.normal()
        @wraps(accuracy)
        def method(self, pred, targ): return self(pred, targ)
    def noisy(pred, targ, by): return accuracy(pred, targ)+by.normal()
    for metric in (Noisy(), Noisy().method, partial(noisy, by=rng), torch.no_grad()(wraps(accuracy)(Noisy()))):
        before = rng.bit_generator.state
        learner(metrics=metric).fit(1)
        assert rng.bit_generator.state==before

def mse_of_classes(pred, targ): return mse(pred.argmax(1).float(), targ)

def test_the_generator_of_a_wrapper_around_a_metric_is_put_back():
    def noisy(rng):
        @wraps(mse_of_classes)
        def f(pred, targ): return mse(pred.argmax(1).float(), targ + rng.normal())
        return f
    @wraps(accuracy)
    def from_default(pred, targ, rng=np.random.default_rng(1)): return accuracy(pred, targ)+rng.normal()
    rng = np.random.default_rng(0)
    for metric,own in ((noisy(rng), rng), (from_default, from_default.__defaults__[0])):
        learn,before = learner(metrics=metric),own.bit_generator.state
        learn.fit(1)
        assert own.bit_generator.state==before # validation moves nothing

@pytest.mark.parametrize('metric,told', [(accuracy, 'partial(accuracy, axis=1)'), (partial(accuracy, axis=1), None),
    (BalancedAccuracy(), 'BalancedAccuracy(axis=1)'), (BalancedAccuracy(axis=1), None), (mse, None)],
    ids=['function','partial','class','class of axis 1','numbers'])
@pytest.mark.parametrize('fits', [False,True])
def test_a_metric_that_takes_another_axis_for_the_classes_than_the_loss_is_named(metric, told, fits, recwarn):
    "Where axes are of one length, it would be computed, and wrong"
    pred = torch.randn(6, 4, 4)
    dl = [(pred[i:i+3], pred[i:i+3].argmax(1)) for i in (0,3)]
    if metric is mse: dl = [(x, torch.zeros_like(x)) for x,_ in dl]
    loss_func = nn.MSELoss() if metric is mse else nn.CrossEntropyLoss()
    learn = Learner(DataLoaders(dl, dl, device='cpu'), Scaled(), loss_func, opt_func=torch.optim.SGD, lr=0.,
        metrics=metric).remove_cb(ProgressCallback)
    res = learn.fit(1).recorder.rows[-1] if fits else learn.validate()
    said = {str(o.message) for o in recwarn if 'for the classes' in str(o.message)}
    if told: assert len(said)==1 and f'`CrossEntropyLoss` axis 1: write `metrics={told}`' in said.pop()
    else: assert not said
    if metric is not mse and not told: assert float(dict(res)[learn.metrics[0].name])==1

def test_a_loss_of_ones_own_class_may_take_any_axis_for_the_classes(recwarn):
    class ClassesLast(nn.CrossEntropyLoss):
        def forward(self, p, y): return super().forward(p.transpose(1, 2), y)
    pred = torch.randn(6, 4, 4)
    dl = [(pred, pred.argmax(2))]
    learn = Learner(DataLoaders(dl, dl, device='cpu'), nn.Identity(), ClassesLast(),
        metrics=accuracy).remove_cb(ProgressCallback)
    assert float(dict(learn.validate())['accuracy'])==1
    assert not [o for o in recwarn if 'for the classes' in str(o.message)]

class Scaled(nn.Module):
    def __init__(self): super().__init__(); self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x): return x*self.scale

def spread(pred, targ, axis=0): return pred.std(axis).mean()
@pytest.mark.parametrize('loss_func,metric', [(partial(CrossEntropyLossFlat()), accuracy),
    (nn.CrossEntropyLoss(), spread)], ids=['the same axis','another meaning'])
def test_an_axis_that_is_right_or_not_that_of_classes_is_not_named(loss_func, metric, recwarn):
    pred = torch.randn(4, 3, 3)
    dl = [(pred, pred.argmax(-1))]
    Learner(DataLoaders(dl, dl, device='cpu'), Scaled(), loss_func, metrics=metric).validate()
    assert not [o for o in recwarn if 'for the classes' in str(o.message)]
