"Trackers know the best value and act on it: checked against lists of values, sorted and searched by hand"
from copy import deepcopy
import itertools,math,re,warnings
import numpy as np, pytest, torch
from hypothesis import given,settings,strategies as st
from learner.all import *
from learner.record.files import check_plain
from learner.result.tracker import *
from learner.result.tracker import higher_is_better

nan,inf = math.nan,math.inf

class Score(Callback):
    "Puts `vals` into the rows as `score`, one after the other; None leaves it out"
    order = 55
    def __init__(self, vals): self.vals = vals
    def before_fit(self): self.i = 0; self.learn.recorder.metric_names.append('score')
    def before_row(self):
        v,self.i = self.vals[self.i],self.i+1
        if v is not None: self.learn.recorder.add(score=v)

class Look(Callback):
    "After each row and all trackers: weights and learning rate"
    order = 100
    def before_fit(self): self.weights,self.rates = [],[]
    def after_row(self): self.weights.append(weights(self.learn)); self.rates.append(get_hyper(self.learn.opt, 'lr'))

def weights(learn): return torch.cat([o.detach() for o in learn.model.parameters()])
def learner(*cbs, n_train=2, n_valid=1, **kwargs):
    return synth_learner(n_train=n_train, n_valid=n_valid, cbs=[Look, *cbs], **kwargs)
def files(learn): return sorted(o.name for o in (learn.path/learn.model_dir).glob('*'))

# What is watched
values = st.lists(st.one_of(st.none(), st.just(nan), st.just(inf), st.just(-inf), st.integers(-3, 3), st.floats(-3, 3)),
    min_size=1, max_size=8)

def improvements(vals, higher, delta=0.):
    "Positions of the new bests, by hand"
    res,best = [],None
    for i,v in enumerate(vals):
        if v is None or math.isnan(v) or v==(-inf if higher else inf): continue
        if best is None or (v-best if higher else best-v)>delta: res.append(i); best = v
    return res

@settings(max_examples=25)
@given(values, st.booleans(), st.sampled_from([0., .5, 1.]))
def test_best_is_the_best(vals, higher, delta):
    seen,comp = [],np.greater if higher else np.less
    cb = OnBetter(lambda learn: seen.append(learn.epoch), 'score', comp, delta)
    learner(Score(vals), cb, n_train=1).fit(len(vals))
    assert seen==improvements(vals, higher, delta)
    assert cb.best==(vals[seen[-1]] if seen else -inf if higher else inf) and cb.new_best==(len(vals)-1 in seen)

def test_each_value_is_seen_once():
    class Keep(TrackerCallback):
        def before_fit(self): super().before_fit(); self.vals = []
        def act(self, val): self.vals.append((val, self.new_best))
    cb = Keep('valid_loss')
    learn = learner(cb).fit(5)
    vals = learn.recorder['valid_loss']
    assert ([v for v,_ in cb.vals]==list(vals)
        and [b for _,b in cb.vals]==[v==min(vals[:i+1]) for i,v in enumerate(vals)])

def test_a_phase_that_did_not_take_place():
    cb = EarlyStoppingCallback(patience=2)
    learn = learner(cb, Callback(before_validate=cancel_odd)).fit(8)
    assert len(learn.recorder.rows)==8 and cb.best==np.nanmin(learn.recorder['valid_loss'])
def cancel_odd(self):
    if self.learn.epoch%2: raise CancelValidException

def test_a_function_of_a_row():
    cb = TrackerCallback(lambda row: row.valid_loss+row.mae, np.less)
    learn = learner(cb, metrics=mae).fit(3)
    assert cb.best==(learn.recorder['valid_loss']+learn.recorder['mae']).min()
    cb = TrackerCallback(lambda row: row.get('nothing'), np.less) # missing in each row
    learner(cb).fit(3)
    assert cb.best==inf and not cb.new_best

def test_default_is_the_learners():
    cb,other = TrackerCallback(),TrackerCallback('valid_loss')
    learn = learner(cb, other, metrics=R2Score)
    learn.monitor = 'r2_score'
    learn.fit(3)
    assert cb.best==learn.recorder['r2_score'].max() and other.best==learn.recorder['valid_loss'].min()

def test_the_learners_may_be_a_function():
    learn = learner(EarlyStoppingCallback(comp=np.less), cb := TrackerCallback(comp=np.less), metrics=mae)
    learn.monitor = lambda row: row.valid_loss+row.mae
    learn.fit(2)
    assert cb.best==(learn.recorder['valid_loss']+learn.recorder['mae']).min()
    learn.add_cb(SaveModelCallback())
    with pytest.raises(ValueError,
            match="`monitor` is a function of a row, for which the better direction is not known: give `comp=np.less`"):
        learn.fit(1)

def test_a_column_that_comes_while_training_is_named_before():
    class Norm(Callback):
        def after_train(self): self.recorder.add(size=float(len(self.recorder.rows)))
    with pytest.raises(ValueError,
            match="`size` is to be monitored and is not recorded, but .*A callback that adds a column during training "
            "announces it in its `new_columns`"):
        learner(Norm, TrackerCallback('size', np.greater)).fit(1)
    Norm.new_columns = ('size',)
    learner(Norm, cb := TrackerCallback('size', np.greater)).fit(3)
    assert cb.best==2.

def test_best_of_one_fit_or_of_all():
    each,total = TrackerCallback('score', np.less),TrackerCallback('score', np.less, reset_on_fit=False)
    score = Score([1., 2.])
    learn = learner(score, each, total).fit(2)
    score.vals = [3., 2.]
    learn.fit(2)
    assert (each.best,total.best)==(2.,1.)

def test_inference_makes_no_rows():
    cb = SaveModelCallback('score', np.less)
    score = Score([3., 1., 2.])
    learn = learner(score, cb, Callback(before_epoch=lambda self: self.learn.validate()), path=tmp()).fit(3)
    before = files(learn),(learn.path/'models/model.pth').read_bytes(),cb.best
    learn.validate(); learn.get_preds()
    learn.lr_find(num_it=6, show_plot=False)
    assert (files(learn),(learn.path/'models/model.pth').read_bytes(),cb.best)==before

@pytest.fixture(autouse=True)
def folder(tmp_path):
    global tmp
    tmp = lambda: tmp_path

# Direction
def test_metrics_know_it():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = learner(metrics=[accuracy, error_rate, mae, R2Score], n_valid=2)
        learn.recorder.metric_names[:] = names = ['valid_loss','train_loss','more/loss','accuracy','valid_accuracy',
            'train_accuracy','more/accuracy','error_rate','mae','more/r2_score']
        better = {o:higher_is_better(learn, learn.recorder, o) for o in names}
    assert [k for k,v in better.items() if v]==['accuracy','valid_accuracy','train_accuracy','more/accuracy',
        'more/r2_score']

def undeclared(pred, targ): return (pred-targ).abs().mean()
def some_error(pred, targ): return (pred-targ).abs().mean()

def test_a_guess_warns():
    for f,better in ((undeclared, True), (some_error, False)):
        cb = TrackerCallback(f.__name__)
        msg = (f"It is not declared whether higher `{f.__name__}` is better. By its name, it "
            f"{'is:' if better else 'is not:'} make sure with `comp=np.less`")
        with pytest.warns(UserWarning, match=msg) as w:
            learner(cb, metrics=f).fit(1)
        assert cb.higher==better and [o.filename for o in w]==[__file__]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learner(TrackerCallback('undeclared', np.less), metrics=undeclared).fit(1)
        learner(TrackerCallback('undeclared'), metrics=AvgMetric(undeclared, higher_is_better=False)).fit(1)

# A wrong name
@pytest.mark.parametrize('name,near', [('val_loss','valid_loss'), ('acuracy','accuracy'), ('trainloss','train_loss')])
@pytest.mark.parametrize('mk',
    [TrackerCallback, EarlyStoppingCallback, SaveModelCallback, ReduceLROnPlateau, lambda o: OnBetter(print, o)])
def test_a_wrong_name_is_refused_before_training(name, near, mk):
    learn = learner(mk(name), metrics=accuracy)
    before = weights(learn)
    with pytest.raises(ValueError,
            match=f"`{name}` is to be monitored and is not recorded, but `train_loss`, `valid_loss`, `accuracy`. Did "
            f"you mean `{near}`"):
        learn.fit(1)
    assert torch.equal(weights(learn), before) and learn.mode is None

@pytest.mark.parametrize('name', ['epoch','time'])
def test_these_are_nothing_to_watch(name):
    with pytest.raises(ValueError, match=f"`{name}` is to be monitored and is not recorded"):
        learner(TrackerCallback(name)).fit(1)

def test_no_validation():
    with pytest.raises(ValueError, match="`valid_loss` is to be monitored and is not recorded, but `train_loss`"):
        learner(EarlyStoppingCallback, n_valid=0).fit(1)
    cb = TrackerCallback('train_loss')
    learn = learner(cb, n_valid=0).fit(2)
    assert cb.best==learn.recorder['train_loss'].min()

def test_no_recorder():
    learn = synth_learner(default_cbs=False, cbs=EarlyStoppingCallback)
    with pytest.raises(ValueError, match="`EarlyStoppingCallback` reads the rows of a `Recorder`, and there is none"):
        learn.fit(1)

bad = {
    'function':       (lambda: TrackerCallback(max), ValueError,
        "`monitor` is a function of a row, for which the better direction is not known: give `comp=np.less`"),
    'comp':           (lambda: TrackerCallback(comp='min'), ValueError,
        "`comp` is `np.less` or `np.greater`, or compares as they do, but got 'min'"),
    'no order':       (lambda: TrackerCallback(comp=np.equal), ValueError, "`comp` is `np.less` or `np.greater`"),
    'min_delta':      (lambda: TrackerCallback(min_delta=-.1), ValueError,
        "`min_delta` is 0 or more, whichever direction is better, but got -0.1"),
    'NaN min_delta':  (lambda: TrackerCallback(min_delta=nan), ValueError, "`min_delta` is 0 or more"),
    'no min_delta':   (lambda: TrackerCallback(min_delta=None), ValueError,
        "`min_delta` is 0 or more, whichever direction is better, but got None"),
    'text min_delta': (lambda: TrackerCallback(min_delta='1'), ValueError,
        "`min_delta` is 0 or more, whichever direction is better, but got '1'"),
    'comp of tensors': (lambda: TrackerCallback(comp=torch.lt), ValueError,
        "`comp` is `np.less` or `np.greater`, or compares as they do, but got <built-in method lt"),
    'patience':       (lambda: EarlyStoppingCallback(patience=0), ValueError, "`patience` is 1 or more, but got 0"),
    'half patience':  (lambda: ReduceLROnPlateau(patience=1.5), TypeError, "`patience` is a whole number, but got 1.5"),
    'factor':         (lambda: ReduceLROnPlateau(factor=.1), ValueError, "`factor` is above 1, but got 0.1"),
    'min_lr':         (lambda: ReduceLROnPlateau(min_lr=-1), ValueError, "`min_lr` is 0 or more, but got -1"),
    'both':           (lambda: SaveModelCallback(every_epoch=2, at_end=True), ValueError,
        "`every_epoch` and `at_end` exclude each other"),
    'every half':     (lambda: SaveModelCallback(every_epoch=.5), TypeError,
        "`every_epoch` is a whole number, but got 0.5"),
    'every zero':     (lambda: SaveModelCallback(every_epoch=0), ValueError, "`every_epoch` is 1 or more, but got 0"),
    'keep':           (lambda: SaveModelCallback(keep=0), ValueError, "`keep` is 1 or more, but got 0"),
    'memory at end':  (lambda: SaveModelCallback(fname=None, at_end=True), ValueError,
        "`fname=None` keeps the best one in memory: it goes with no"),
    'several in memory': (lambda: SaveModelCallback(fname=None, keep=2), ValueError,
        "`fname=None` keeps the best one in memory: it goes with no"),
    'f':              (lambda: OnBetter('save'), TypeError, "`f` is a function of the learner, but got 'save'"),
    'argument':       (lambda: EarlyStoppingCallback(patiense=3), TypeError,
        "has no argument `patiense`. Did you mean `patience`"),
    'values':         (lambda: learner(Score([torch.ones(2)]), TrackerCallback('score', np.less)).fit(1), TypeError,
        "`score` is monitored and must be a number, but is tensor"),
}
@pytest.mark.parametrize('k', bad)
def test_mistakes(k):
    f,exc,match = bad[k]
    with pytest.raises(exc, match=match): f()

# Early stopping
@settings(max_examples=25)
@given(values, st.booleans(), st.sampled_from([0., .5]), st.integers(1, 3))
def test_early_stopping(vals, higher, delta, patience):
    learn = learner(Score(vals), EarlyStoppingCallback('score', np.greater if higher else np.less, delta, patience),
        n_train=1).fit(len(vals))
    better,wait,end = improvements(vals, higher, delta),0,len(vals)
    for i,v in enumerate(vals):
        if v is None: continue
        wait = 0 if i in better else wait+1
        if wait==patience: end = i+1; break
    assert len(learn.recorder.rows)==learn.train_iter==end
    assert (learn.stop_reason is not None)==(wait==patience)

def test_reasons():
    reason = lambda vals,**kwargs: learner(Score(vals),
        EarlyStoppingCallback('score', np.less, **kwargs)).fit(len(vals)).stop_reason
    assert (reason([1., 2.])=='`score` was not better than 1, once'
        and reason([nan]*3, patience=3)=='`score` was never a finite number, 3 times in a row')
    assert reason([3., 2., 1.]) is None

def test_the_reason_is_shown(capsys):
    learn = learner(Score([1., 2., 3.]),
        EarlyStoppingCallback('score', np.less)).add_cb(ProgressCallback(bars=False)).fit(3)
    assert capsys.readouterr().out.splitlines()[-1]==f'Stopped: {learn.stop_reason}'
    learn.fit(1)
    assert 'Stopped' not in capsys.readouterr().out

# Learning rate on a plateau
@settings(max_examples=25)
@given(values.filter(lambda vals: all(v is not None and math.isfinite(v) for v in vals)), st.booleans(),
    st.integers(1, 3), st.sampled_from([2., 10.]))
def test_reduce_lr_is_torchs(vals, higher, patience, factor):
    "Torch waits for one more, and compares in the other order"
    p = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([p], lr=.08)
    ref,expected = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, 'max' if higher else 'min', 1/factor, patience-1, .5,
        'abs', min_lr=1e-3, eps=0),[]
    for v in vals: ref.step(v); expected.append(opt.param_groups[0]['lr'])
    cb = ReduceLROnPlateau('score', np.greater if higher else np.less, .5, patience, factor, min_lr=1e-3)
    learn = learner(Score(vals), cb, lr=.08, n_train=1).fit(len(vals))
    assert [o for o,in learn.look.rates]==pytest.approx(expected)
    assert get_hyper(learn.opt, 'lr')==[.08] # as every fit

def test_each_group_its_own_rate():
    learn = learner(Score([1.]*4), ReduceLROnPlateau('score', np.less, factor=2, min_lr=.03),
        splitter=lambda m: [[m.a],[m.b]]).fit(4, lr=[.02, .1])
    assert np.array(learn.look.rates)==pytest.approx(np.array([[.02,.1], [.02,.05], [.02,.03], [.02,.03]]))

def test_reduce_lr_trains_as_by_hand():
    vals = [1., 2., .5, 3.]
    learn = learner(Score(vals), ReduceLROnPlateau('score', np.less, factor=10)).fit(4)
    by_hand = learner()
    @by_hand.on(event.before_epoch)
    def lower(l):
        if l.epoch==2: l.set_hyper('lr', .005)
    by_hand.fit(4)
    assert torch.equal(weights(learn), weights(by_hand))

@pytest.mark.parametrize('mk',
    [lambda: ParamScheduler(dict(lr=SchedLin(.1, .01))),
        lambda: TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1))])
def test_no_two_set_the_rate(mk):
    with pytest.raises(ValueError,
            match="`ReduceLROnPlateau` and `(Param|Torch)Scheduler` would both set the learning rate"):
        learner(mk(), ReduceLROnPlateau()).fit(1)
    learner(ParamScheduler(dict(mom=SchedLin(.9, .8))), ReduceLROnPlateau()).fit(1)
    with pytest.raises(ValueError, match='would both set'): learner(ReduceLROnPlateau()).fit_one_cycle(1)

def test_a_scheduler_of_ones_own_and_a_plateau_are_refused():
    class Mine(HyperScheduler):
        sets = ('lr',)
    with pytest.raises(ValueError, match="`ReduceLROnPlateau` and `Mine` would both set the learning rate"):
        learner(Mine(), ReduceLROnPlateau()).fit(1)

def test_the_rate_is_lowered_on_a_plateau_after_a_warmup_and_not_in_it():
    learn = learner(Score([1.]*6), Warmup(5), ReduceLROnPlateau('score', np.less, patience=2, factor=2), lr=.1)
    last = learn.fit(6).recorder.lrs[1::2] # the rate that each epoch ends with
    assert last==pytest.approx([.04, .08, .1, .1, .05, .05])

# Saving
vals_of = st.lists(st.one_of(st.just(nan), st.integers(-3, 3)), min_size=1, max_size=7)

@settings(max_examples=25)
@given(vals_of, st.booleans(), st.sampled_from([None, 'model']))
def test_the_best_weights_are_loaded(tmp_path_factory, vals, higher, fname):
    learn = learner(Score(vals), SaveModelCallback('score', np.greater if higher else np.less, fname=fname), n_train=1,
        path=tmp_path_factory.mktemp('m'))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.fit(len(vals))
    better = improvements(vals, higher)
    assert torch.equal(weights(learn), learn.look.weights[better[-1] if better else -1])
    assert files(learn)==(['model.pth'] if fname and better else [])

@settings(max_examples=25)
@given(vals_of, st.booleans(), st.integers(2, 4))
def test_the_k_best_are_kept(tmp_path_factory, vals, higher, keep):
    cb = SaveModelCallback('score', np.greater if higher else np.less, keep=keep, load_best=False)
    learn = learner(Score(vals), cb, n_train=1, path=tmp_path_factory.mktemp('m')).fit(len(vals))
    # the earlier of two that are equal
    ranked = sorted([i for i,v in enumerate(vals) if not math.isnan(v)],
        key=lambda i: -vals[i] if higher else vals[i])[:keep]
    assert (cb.kept==[[vals[i], f'model_{i+1}'] for i in ranked]
        and files(learn)==sorted(f'model_{i+1}.pth' for i in ranked))
    for i in ranked: assert torch.equal(weights(learn.load(f'model_{i+1}')), learn.look.weights[i])

def test_what_you_have_is_what_you_saw():
    learn = learner(SaveModelCallback, EarlyStoppingCallback(patience=2), lr=.6, n_train=5, path=tmp()).fit(30)
    vals = learn.recorder['valid_loss']
    assert learn.stop_reason and vals[-1]>min(vals) and learn.validate().valid_loss==min(vals)==learn.save_model.best
    assert learn.save_model.last_saved_path==tmp()/'models/model.pth'

@pytest.mark.parametrize('fname', [None, 'model'])
def test_averaged_weights_are_saved_where_they_were_measured(fname):
    ema = EMA(.9)
    learn = learner(SaveModelCallback(fname=fname), ema, lr=.3, path=tmp()).fit(11)
    vals = learn.recorder['valid_loss']
    assert vals[-1]>min(vals) and learn.validate().valid_loss==min(vals)
    raw = learner(EMA(.9, validate=False), SaveModelCallback(fname=fname), lr=.3, path=tmp()).fit(11)
    assert raw.validate().valid_loss==min(raw.recorder['valid_loss'])!=min(vals)

@pytest.mark.parametrize('fname', [None, 'model'])
@pytest.mark.parametrize('monitor', ['valid_loss','ema/valid_loss','slow/valid_loss'])
def test_of_both_those_weights_are_saved_that_are_watched(fname, monitor):
    class Slow(EMA): name = 'slow'
    learn = learner(SaveModelCallback(monitor, fname=fname), EMA(.5, warmup=False, validate='both'),
        Slow(.8, warmup=False, validate='both'), lr=.5, path=tmp()).fit(12)
    best = {k:min(learn.recorder[k]) for k in ('valid_loss','ema/valid_loss','slow/valid_loss')}
    assert len({*best.values()})==3 and learn.validate().valid_loss==best[monitor]

@pytest.mark.parametrize('late_first', [False, True])
def test_of_two_averages_that_validate_those_weights_are_saved_that_were_in_the_model(late_first):
    class Late(EMA): order = EMA.order+1
    avgs = [EMA(.5, warmup=False), Late(.8, warmup=False)]
    learn = learner(SaveModelCallback, *(avgs[::-1] if late_first else avgs), lr=.5, path=tmp()).fit(12)
    assert learn.validate().valid_loss==min(learn.recorder['valid_loss'])

def test_two_do_not_save_to_one_file():
    class Two(Score):
        new_columns = ('other',)
        def before_row(self): super().before_row(); self.recorder.add(other=-self.recorder.coming.score)
    def mk(**kwargs): return SaveModelCallback('other', np.less, **kwargs)
    for a,b in ((mk(), mk(fname='model.pth')), (mk(), SaveModelCallback(at_end=True)),
            (mk(keep=2), SaveModelCallback(every_epoch=True)), (mk(fname='a/b'), mk(fname=tmp()/'models/a/b'))):
        with pytest.raises(ValueError, match="Two `SaveModelCallback`s save as `.*`: give each an `fname` of its own"):
            learner(Two([1.]), a, b, path=tmp()).fit(1)
        assert files(learner(path=tmp()))==[]
    cbs = mk(), mk(fname='other'), mk(fname=None), mk(fname=None), SaveModelCallback(
        every_epoch=True), SaveModelCallback(at_end=True, fname='end')
    learn = learner(Two([1., 3., 2.]), *cbs, path=tmp()).fit(3)
    assert files(learn)==['end.pth','model.pth','model_0.pth','model_1.pth','model_2.pth','other.pth']
    for f in ('model','other','end'): assert f=='end' or torch.equal(weights(learn.load(f)), learn.look.weights[1])

@pytest.mark.parametrize('fname', [None, 'model'])
def test_the_optimizer_too(fname):
    score = Score([1., 0., 2., 3.])
    def momentum(learn): return torch.cat([learn.opt.state[p]['momentum_buffer'] for p in learn.model.parameters()])
    seen = []
    learn = learner(score, SaveModelCallback('score', np.less, fname=fname, with_opt=True),
        Callback(after_row=lambda self: seen.append(momentum(self.learn).clone())), path=tmp()).fit(4)
    assert torch.equal(momentum(learn), seen[1])
    learn = learner(score, SaveModelCallback('score', np.less), path=tmp()).fit(4)
    assert torch.equal(momentum(learn), seen[3]) and {*torch.load(tmp()/'models/model.pth')}=={'a','b'}

def test_never_better():
    other = learner(path=tmp())
    other.save('model') # of another run
    learn = learner(Score([nan]*3), SaveModelCallback('score', np.less), path=tmp())
    with pytest.warns(UserWarning,
            match="`score` was never better than inf: nothing was saved, and the weights stay as they are"):
        learn.fit(3)
    assert torch.equal(weights(learn), learn.look.weights[-1])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(0)

def test_only_what_this_fit_has_saved_is_loaded():
    score = Score([1., 2.])
    learn = learner(score, SaveModelCallback('score', np.less), path=tmp()).fit(2)
    score.vals = [nan, nan]
    with pytest.warns(UserWarning, match="never better than inf:"): learn.fit(2)
    assert torch.equal(weights(learn), learn.look.weights[-1])

@pytest.mark.parametrize('kwargs', [dict(), dict(fname=None), dict(keep=2)], ids=str)
def test_the_best_of_all_fits_comes_back(kwargs):
    "With `reset_on_fit=False`, whichever fit it was in"
    score = Score([2., 1., 3.])
    learn = learner(score, cb := SaveModelCallback('score', np.less, reset_on_fit=False, **kwargs), path=tmp()).fit(3)
    best = learn.look.weights[1]
    assert torch.equal(weights(learn), best)
    for vals in ([5., 6.], [1.5, 4.]):
        score.vals = vals
        learn.fit(2)
        assert torch.equal(weights(learn), best) and cb.best==1.
    score.vals = [5., .5, 7.]
    learn.fit(3)
    assert torch.equal(weights(learn), learn.look.weights[-2]) and cb.best==.5

@pytest.mark.parametrize('from_file', [False, True])
def test_the_best_of_several_fits_do_not_write_over_each_other(from_file):
    "Names count the batches of all fits in which something is remembered"
    path = tmp()
    def mk(vals):
        return learner(Score(vals), SaveModelCallback('score', np.less, keep=2, reset_on_fit=False), path=path)
    learn = mk([.2, .3]).fit(2)
    first = learn.look.weights
    if from_file: learn.save_state('between'); learn = mk([]).load_state('between')
    learn.score.vals = [.25, .4, .1]
    learn.fit(3)
    assert learn.save_model.kept==[[.1,'model_10'],[.2,'model_2']]
    assert [o for o in files(learn) if 'between' not in o]==['model_10.pth','model_2.pth']
    assert torch.equal(weights(learn), learn.look.weights[2])
    assert torch.equal(weights(learn.load('model_2')), first[0])

@pytest.mark.parametrize('fname', [None, 'model'])
def test_the_best_of_all_fits_comes_back_in_another_process(fname):
    "From a state that was saved between two fits"
    path = tmp()
    def mk(vals):
        return learner(Score(vals), SaveModelCallback('score', np.less, fname=fname, reset_on_fit=False), path=path)
    learn = mk([2., 1., 3.]).fit(3)
    best = weights(learn).clone()
    learn.save_state('between')
    again = mk([5., 6.]).load_state('between')
    assert torch.equal(weights(again.fit(2)), best) and again.save_model.best==1.

def test_a_best_file_that_is_gone_is_named_before_training():
    score = Score([1., 2., 5., 6.])
    learn = learner(score, SaveModelCallback('score', np.less, reset_on_fit=False), path=tmp()).fit(2)
    (learn.path/'models'/'model.pth').unlink()
    with pytest.warns(UserWarning) as seen: learn.fit(2)
    assert [bool(re.search(o, str(m.message)))
        for o,m in zip(['are gone: there is no .*model.pth', 'never better than 1:'], seen, strict=True)]==[True]*2
    assert torch.equal(weights(learn), learn.look.weights[-1])

def test_files_of_others_stay():
    learn = learner(Score([3., 2., 1.]), SaveModelCallback('score', np.less, keep=2), path=tmp())
    learn.save('model_99'); learn.save('model')
    learn.fit(3)
    assert files(learn)==['model.pth','model_4.pth','model_6.pth','model_99.pth']
    learn.fit(3) # files of the last fit are not this one's, unless it writes them itself
    assert files(learn)==['model.pth','model_4.pth','model_6.pth','model_99.pth']
    learn.cbs[-1].vals = [3., 2., 1., 0.]
    learn.fit(3)
    assert 'model_99.pth' in files(learn)

def test_every_epoch():
    learn = learner(SaveModelCallback(every_epoch=True, fname='m'), path=tmp()).fit(3)
    assert files(learn)==['m_0.pth','m_1.pth','m_2.pth'] and torch.equal(weights(learn), learn.look.weights[-1])
    for i in range(3): assert torch.equal(weights(learn.load(f'm_{i}')), learn.look.weights[i])

def test_every_epoch_has_a_file_also_if_it_ends_without_a_validation():
    "And so has one at whose row another tracker ends the fit"
    learn = learner(SaveModelCallback(every_epoch=True), Validate(3, 'iter'), n_train=5, path=tmp()).fit(4)
    ends = {o.epoch:w for o,w in zip(learn.recorder.rows, learn.look.weights) if o.iter%5==0}
    assert files(learn)==[f'model_{i}.pth' for i in range(4)] and 3 in ends
    assert torch.equal(weights(learn.load('model_3')), ends[3])
    stops = learner(SaveModelCallback(every_epoch=True, fname='s'), EarlyStoppingCallback('score', np.less),
        Score([1.,2.]), path=tmp()).fit(4)
    assert [o for o in files(stops) if o[0]=='s']==['s_0.pth','s_1.pth']

def test_every_second_epoch_and_the_end_without_validation():
    learn = learner(SaveModelCallback(every_epoch=2), SaveModelCallback(at_end=True, fname='end'), n_valid=0,
        path=tmp()).fit(5)
    assert files(learn)==['end.pth','model_1.pth','model_3.pth']
    for f,i in (('end',-1), ('model_1',1), ('model_3',3)):
        assert torch.equal(weights(learn.load(f)), learn.look.weights[i])

@pytest.mark.parametrize('swa_first', [True, False])
def test_at_the_end_those_weights_are_saved_that_the_model_then_has(swa_first):
    cbs = SWA(1),SaveModelCallback(at_end=True)
    learn = learner(*(cbs if swa_first else cbs[::-1]), lr=.1, path=tmp()).fit(4)
    final = weights(learn).clone()
    assert not torch.equal(final, learn.look.weights[-1]) and torch.equal(weights(learn.load('model')), final)

def test_an_order_of_ones_own_stays():
    class First(SaveModelCallback): order = 3
    assert First(at_end=True).order==3 and SaveModelCallback(at_end=True).order>SWA.order>SaveModelCallback().order

def test_a_fit_that_is_stopped_before_its_first_value_is_not_told_that_there_was_none(recwarn):
    "It may come when the fit is resumed"
    def stop(cb):
        if cb.train_iter==3: cb.learn.stop_soon()
    more = ExtraValid([(torch.ones(2, 1),)*2], every=2, unit='iter')
    learn = learner(SaveModelCallback('valid_loss'), ReduceLROnPlateau('valid_loss'), more, Callback(after_batch=stop),
        n_train=6, path=tmp())
    learn.fit(2)
    assert learn.recorder.rows and learn.at is not None
    assert not [o for o in recwarn if 'nothing was saved' in str(o.message) or 'did nothing' in str(o.message)]
    learn.resume()
    assert not [o for o in recwarn if 'nothing was saved' in str(o.message) or 'did nothing' in str(o.message)]

def test_the_last_epoch_is_saved_before_the_fit_stops():
    learn = learner(Score([1., 2., 3.]), EarlyStoppingCallback('score', np.less), SaveModelCallback(every_epoch=1),
        path=tmp()).fit(3)
    assert files(learn)==['model_0.pth','model_1.pth']

@pytest.mark.parametrize('exc', [ValueError, KeyboardInterrupt])
def test_after_an_error_weights_stay(exc):
    learn = learner(Score([1., 2., 3.]), SaveModelCallback('score', np.less), Raise('before_epoch', exc, n=3),
        path=tmp())
    with pytest.raises(exc): learn.fit(3)
    assert torch.equal(weights(learn), learn.look.weights[-1]) and files(learn)==['model.pth']

def test_names_of_files():
    pytest.importorskip('safetensors')
    learner(Score([1., 0.]), SaveModelCallback('score', np.less, fname='sub/best.safetensors', keep=2),
        path=tmp()).fit(2)
    assert sorted(o.name for o in (tmp()/'models/sub').iterdir())==['best_2.safetensors','best_4.safetensors']

@pytest.mark.parametrize('fname,expected',
    [('r1.2', 'r1.2_{}.pth'), ('r1.2.pth', 'r1.2_{}.pth'), ('a.b/r', 'a.b/r_{}.pth'), ('v.1.pt', 'v.1_{}.pt')])
def test_a_dot_in_a_name_is_no_suffix(fname, expected):
    learn = learner(SaveModelCallback(fname=fname, every_epoch=True), path=tmp()).fit(2)
    assert (all((tmp()/'models'/expected.format(i)).exists() for i in range(2))
        and len([o for o in (tmp()/'models').rglob('*') if o.is_file()])==2)
    learn = learner(Score([1., 0.]), SaveModelCallback('score', np.less, fname='v1.5', keep=2), path=tmp()).fit(2)
    assert ({f for _,f in learn.save_model.kept}=={'v1.5_2','v1.5_4'}
        and torch.equal(weights(learn), learn.look.weights[1]))

# Not a number
def bad_batches(i, v): return [(torch.randn(4,1), torch.full((4,1), v if j==i else 1.)) for j in range(5)]

@pytest.mark.parametrize('v', [nan, inf, -inf])
@pytest.mark.parametrize('cbs',
    [(), (GradientAccumulation(8),), (GradientClip(),), (MixedPrecision('bf16'),), (EMA(),), (MixUp(),)], ids=str)
def test_the_step_is_not_taken(v, cbs):
    data = bad_batches(3, v)
    learn = learner(TerminateOnNaNCallback, *deepcopy(cbs), dls=DataLoaders(data, data[:1], device='cpu')).fit(2)
    n = 2 if any(isinstance(o, GradientAccumulation) for o in cbs) else 3 # half a window is left
    ref = learner(*deepcopy(cbs), dls=DataLoaders(data[:n], data[:1], device='cpu')).fit(1)
    assert (learn.train_iter==3 and torch.equal(weights(learn), weights(ref))
        and all(p.grad is None for p in learn.model.parameters()))
    bad = learn.terminate_on_nan.bad_batch
    assert bad[1] is data[3][1] and 'in epoch 0, batch 3' in learn.stop_reason
    assert learn.recorder.rows==[] and len(learn.recorder.losses)==3
    learn.dls = DataLoaders(data[:3], device='cpu')
    assert learn.fit(1).terminate_on_nan.bad_batch is None and learn.train_iter==3

def test_losses_of_validation_are_left_alone():
    learn = learner(TerminateOnNaNCallback,
        dls=DataLoaders(bad_batches(9, nan), bad_batches(0, nan), device='cpu')).fit(2)
    assert learn.train_iter==10 and math.isnan(learn.results.valid_loss)

def test_the_gradient_loss_counts():
    def spoil(self): self.learn.loss_grad = self.learn.loss_grad*nan
    learn = learner(TerminateOnNaNCallback, Callback(after_loss=spoil)).fit(1)
    assert learn.train_iter==0 and learn.stop_reason.startswith('`loss_grad` is nan')

# Together
def test_in_any_order():
    res = []
    for cbs in itertools.permutations(
            [SaveModelCallback, lambda: EarlyStoppingCallback(patience=3),
                lambda: ReduceLROnPlateau(patience=2, factor=3)]):
        learn = learner(*(o() for o in cbs), lr=.6, path=tmp()).fit(30)
        res.append((weights(learn).tolist(), learn.look.rates, learn.train_iter))
    assert all(o==res[0] for o in res) and 2<len(learn.recorder.rows)<30
    assert learn.look.rates[-1][0]<.6

def test_two_of_a_kind():
    a,b = EarlyStoppingCallback('score', np.less, patience=2),EarlyStoppingCallback('valid_loss', patience=50)
    learn = learner(Score([1.,2.,3.,4.]), a, b).fit(4)
    assert learn.early_stopping is a and learn.early_stopping_2 is b and len(learn.recorder.rows)==3

@pytest.mark.parametrize('mk',
    [lambda: EarlyStoppingCallback('score', np.less, patience=3),
        lambda: ReduceLROnPlateau('score', np.less, patience=3),
    lambda: SaveModelCallback('score', np.less), lambda: SaveModelCallback('score', np.less, fname=None)])
def test_state_survives(mk):
    "A fit that is cut in two, with the states carried over, is the same as a whole one"
    vals = [3., 1., 2., 2., 2., 5.]
    whole = learner(Score(vals), cb := mk(), path=tmp()).fit(6)
    first = learner(Score(vals), half := mk(), Raise('before_epoch', KeyboardInterrupt, n=4), path=tmp())
    with pytest.raises(KeyboardInterrupt): first.fit(6)
    state,opt = half.state_dict(),first.opt.state_dict()
    check_plain(state, 'state')
    second = learner(Score(vals[3:]), rest := mk(), path=tmp())
    class Restore(Callback):
        order = 99
        def before_fit(self): rest.load_state_dict(state); self.learn.opt.load_state_dict(opt)
    second.model.load_state_dict(first.model.state_dict())
    second.add_cb(Restore).fit(6, start_epoch=3)
    assert second.epoch==whole.epoch and rest.best==cb.best==1.
    if isinstance(cb, SaveModelCallback): assert torch.equal(weights(second), whole.look.weights[1])
    elif isinstance(cb, EarlyStoppingCallback): assert whole.epoch==4
    else: assert second.look.rates==whole.look.rates[3:]

def test_a_fit_that_is_cancelled_before_it_begins_loads_nothing(tmp_path):
    "The best weights of the fit before are of the fit before"
    learn = synth_learner(path=tmp_path)
    cb = SaveModelCallback(fname=None)
    learn.fit(2, cbs=cb)
    with torch.no_grad(): learn.model.a.fill_(5)
    learn.fit(1, cbs=[cb, Raise('before_fit', CancelFitException, order=-100)])
    assert learn.model.a.item()==5

def test_a_tracker_leaves_attributes_of_subclasses_alone():
    class Noted(TrackerCallback):
        def before_fit(self): super().before_fit(); self.seen,self.had_value = [],[]
        def act(self, val): self.seen.append(val)
    cb = Noted()
    learn = synth_learner(2, 1).fit(3, cbs=cb)
    assert cb.seen==list(learn.recorder['valid_loss']) and cb.had_value==[]

@pytest.mark.parametrize('n,when,i', [(4, dict(every=1), 1), (3, dict(every=10, unit='iter'), 3)],
    ids=['an epoch','the last validation'])
def test_a_run_that_resumes_from_an_older_file_reaches_its_best_weights_again(n, when, i):
    "They have replaced those that were the best at that time, as also where a process was killed between two files"
    path = tmp()
    def fit(**kwargs):
        learn = synth_learner(path=path)
        best = SaveModelCallback(keep=2)
        learn.fit(n, cbs=[best, Checkpoint(folder=path/'runs', keep=None, **when)], **kwargs)
        return learn,best
    whole,best = fit()
    second = sorted((path/'runs').glob('*.pt'))[i]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn,again = fit(resume=second)
    assert again.kept==best.kept and learn.final_record==whole.final_record
    for o in (path/'models').glob('*.pth'): o.unlink()
    with pytest.warns(UserWarning, match='best weights so far are gone'): fit(resume=second)

@pytest.mark.parametrize('keep', [1,2])
def test_weights_that_another_run_has_written_into_the_file_are_not_loaded(tmp_path, keep):
    "As where two runs that save best weights share a folder, the first is stopped, and resumed after the second"
    def learner(seed):
        torch.manual_seed(seed)
        return synth_learner(4, path=tmp_path, lr=1.)
    learn,other = learner(0),learner(1)
    vals = iter([2,1,3,4])
    learn.fit(4, cbs=[SaveModelCallback(lambda row: next(vals), np.less, keep=keep), on('after_batch')(
        lambda learn: learn.training and learn.train_iter==11 and learn.stop_soon())])
    other.fit(2, cbs=SaveModelCallback(keep=keep))
    with pytest.warns(UserWarning, match='best weights so far are gone: .* has been written over'): learn.resume()
    assert not torch.equal(learn.model.a, other.model.a)
