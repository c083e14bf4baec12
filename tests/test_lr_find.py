"`lr_find` restores everything, however it ends; suggestions on curves with a known answer"
import io,os,random
from copy import deepcopy
from functools import partial
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader,RandomSampler,TensorDataset
from learner.all import *

class Net(nn.Module):
    "Has everything that training changes: weights, buffers, random numbers of three kinds, a module of its own mode"
    def __init__(self):
        super().__init__()
        self.body,self.bn,self.drop,self.head = nn.Linear(2, 6),nn.BatchNorm1d(6),nn.Dropout(.3),nn.Linear(6, 1)
        self.register_buffer('seen', torch.zeros((), dtype=torch.long))
        self.register_buffer('hidden', torch.zeros(1), persistent=False)
    def forward(self, x):
        if self.training: self.seen += 1; self.hidden += random.random()+np.random.rand()
        return self.head(self.drop(F.relu(self.bn(self.body(x)))))

class WeightedLoss(nn.Module):
    "A loss with weights and a buffer of its own"
    def __init__(self):
        super().__init__(); self.w = nn.Parameter(torch.ones(1)); self.register_buffer('avg', torch.zeros(1))
    def forward(self, pred, y):
        loss = F.mse_loss(pred, y)*self.w.exp()
        if self.training: self.avg.lerp_(loss.detach(), .1)
        return loss.mean()

def mk(n=12, num_workers=0, own=True, **kwargs):
    torch.manual_seed(0); random.seed(0); np.random.seed(0)
    ds = TensorDataset(torch.randn(4*n, 2), torch.randn(4*n, 1))
    gen = torch.Generator().manual_seed(1) if own else None
    train = DataLoader(ds, 4, sampler=RandomSampler(ds, generator=gen), generator=gen, num_workers=num_workers,
        persistent_workers=bool(num_workers))
    kwargs = dict(loss_func=WeightedLoss(), opt_func=Adam, metrics=mae, lr=.01) | kwargs
    return Learner(DataLoaders(train, DataLoader(ds, 8), device='cpu'), Net(), **kwargs).remove_cb(ProgressCallback)

def frozen(o):
    "A copy that can be compared"
    if isinstance(o, torch.Tensor): return o.detach().numpy().tobytes(),str(o.dtype),tuple(o.shape)
    if isinstance(o, np.ndarray): return o.tobytes()
    if isinstance(o, dict): return {k:frozen(v) for k,v in o.items()}
    return [frozen(v) for v in o] if isinstance(o, (list,tuple)) else o

counters = '''mode training epoch n_epoch iter n_iter train_iter opt_step pct_train dl dl_name batch xb yb pred
    loss loss_grad stop_reason exc results lr'''.split()
def everything(learn):
    rec,mods = learn.recorder,[*learn.model.modules(), *learn.loss_func.modules()]
    return frozen(dict(
        weights=[p for m in mods for p in m.parameters(recurse=False)],
        buffers=[b for m in mods for b in m.buffers(recurse=False)], modes=[m.training for m in mods],
        grads=[None if p.grad is None else (id(p.grad), p.grad) for m in mods for p in m.parameters(recurse=False)],
        requires_grad=[p.requires_grad for p in learn.model.parameters()],
        opt=id(learn.opt), opt_state=learn.opt.state_dict(), python=random.getstate(), numpy=np.random.get_state(),
        torch=torch.get_rng_state(),
        loader=learn.dls.train.generator.get_state() if learn.dls.train.generator else None,
        iterator=id(getattr(learn.dls.train, '_iterator', None)),
        history=[rec.rows, rec.losses, rec.raw_losses, rec.lrs, rec.iters, rec.hps, rec.metric_names],
        cbs=[id(o) for o in learn.cbs], run=[o.run for o in learn.cbs],
        counters={k:getattr(learn, k) for k in counters}, grad_mode=torch.is_grad_enabled(), state=dict(learn.state)))

def differences(a, b): return [k for k in a if a[k]!=b[k]]

@pytest.fixture(scope='module')
def folder(tmp_path_factory): return tmp_path_factory.mktemp('lr_find')

@pytest.fixture(autouse=True)
def nothing_is_written(folder, monkeypatch):
    monkeypatch.chdir(folder)
    yield
    assert not os.listdir(folder)
    plt.close('all')

# Everything is restored
@pytest.mark.parametrize('when', ['first','between','with gradients','in eval','frozen'])
@pytest.mark.parametrize('own', [True, False], ids=['own generator','global generator'])
def test_nothing_changes(when, own):
    learn = mk(own=own)
    learn.create_opt()
    if when!='first': learn.fit(2)
    if when=='with gradients': learn.loss_func(learn.model(torch.ones(3, 2)), torch.ones(3, 1)).backward()
    if when=='in eval': learn.model.eval(); learn.model.bn.train()
    if when=='frozen': learn.model.body.requires_grad_(False)
    before = everything(learn)
    res = learn.lr_find(num_it=30, stop_div=False, show_plot=False)
    assert not differences(before, everything(learn)) and len(res.lrs)==22

@pytest.mark.parametrize('opt_func',
    [SGD, lambda ps, lr=.01: SGD(ps, lr, mom=.9, wd=.1), Adam, RMSProp, RAdam, torch.optim.Adagrad, torch.optim.ASGD,
        torch.optim.NAdam], ids=lambda o: o.__name__)
def test_lr_find_does_not_change_later_fits(opt_func):
    def run(trial):
        learn = mk(opt_func=opt_func)
        for _ in range(2):
            if trial: learn.lr_find(num_it=15, show_plot=False)
            learn.fit(1)
        return {k:v for k,v in everything(learn).items()
            if k in ('weights','buffers','python','numpy','torch','loader')},frozen(
            [[r[:-1] for r in learn.recorder.rows], learn.recorder.losses])
    assert run(True)==run(False)

@pytest.mark.parametrize('ev', ['before_fit','before_epoch','before_train','before_batch'])
def test_cancelled_before_the_first_loss(ev, capsys):
    assert (mk(cbs=Raise(ev, CancelFitException)).lr_find(show_plot=False).valley is None
        and 'diverged' not in capsys.readouterr().out)

class Stop(Exception): pass
events = [ev for ev,running in moments() if 'validate' not in ev and 'cancel' not in ev]

@pytest.mark.sample(4)
@pytest.mark.parametrize('exc', [Stop, KeyboardInterrupt, CancelFitException], ids=lambda o: o.__name__)
@pytest.mark.parametrize('ev', events)
def test_nothing_changes_after_an_interrupt(ev, exc):
    learn = mk().fit(1)
    cb = Raise(ev, exc, 1 if ev.endswith(('_fit','_epoch','_train')) else 4, order=100)
    reached = [] # `cb.count` is restored, too
    learn.add_cbs([Callback(**{ev: lambda self: reached.append(ev)}), cb])
    before = everything(learn)
    # nothing to judge
    funcs = None if exc is CancelFitException and ev in ('before_fit','before_epoch','before_train') else valley
    try:
        learn.lr_find(num_it=16, show_plot=False, suggest_funcs=funcs)
        assert exc is CancelFitException or not reached
    except (Stop, KeyboardInterrupt): assert exc is not CancelFitException
    # no fit that it could cancel
    except RuntimeError: assert exc is CancelFitException and (ev.startswith('cleanup') or ev=='after_fit')
    assert not differences(before, everything(learn))
    if exc is CancelFitException or ev in ('after_epoch','after_train'): return
    assert reached

@pytest.mark.sample(2)
@pytest.mark.parametrize('scope', cancels)
@pytest.mark.parametrize('ev',
    ['before_batch','after_pred','after_loss','before_backward','after_backward','before_step','after_step',
        'after_batch'])
def test_nothing_changes_with_any_cancel(scope, ev):
    learn = mk().fit(1)
    before = everything(learn.add_cb(Raise(ev, cancels[scope], 4, order=100)))
    try: learn.lr_find(num_it=16, show_plot=False)
    except RuntimeError as e: assert isinstance(e.__cause__, cancels[scope])
    assert not differences(before, everything(learn))

def test_ctrl_c_in_the_model_and_in_the_loader():
    class Loader(list):
        n = -1
        def __iter__(self):
            for i,b in enumerate(super().__iter__()):
                if i==self.n: raise KeyboardInterrupt
                yield b
    train = Loader([(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(8)])
    learn = mk()
    learn.dls.loaders['train'] = train
    learn.fit(1)
    def snap():
        return {k:getattr(learn, k) for k in counters},frozen(
            [learn.model.state_dict(), learn.opt.state_dict(), torch.get_rng_state()])
    train.n,before = 3,snap()
    with pytest.raises(KeyboardInterrupt): learn.lr_find(show_plot=False, stop_div=False)
    assert snap()==before

def test_not_inside_a_fit():
    learn = mk(cbs=Callback(after_batch=lambda self: self.learn.lr_find()))
    with pytest.raises(RuntimeError, match='cannot start inside a running `fit`'): learn.fit(1)

@pytest.mark.parametrize('run', ['lr_find','validate','smoke'])
def test_a_stopped_fit_is_not_resumed_inside_another_run(run):
    learn = mk()
    def stop(cb): cb.learn.stop_soon()
    learn.fit(2, cbs=Callback(before_batch=stop))
    at,weights = learn.at,frozen(learn.model.state_dict())
    learn.add_cb(Callback(before_batch=lambda cb: cb.learn.resume()))
    with torch.enable_grad(), pytest.raises(RuntimeError, match='`resume` cannot start inside a running'):
        dict(lr_find=partial(learn.lr_find, show_plot=False), validate=learn.validate, smoke=learn.smoke)[run]()
    assert learn.at is at and learn.mode is None and frozen(learn.model.state_dict())==weights

def test_callbacks_with_only_fit_are_not_called():
    class Quiet(Trace): only_fit = True
    quiet,trace = Quiet(),Trace()
    learn = mk(cbs=[quiet, trace])
    learn.fit(0)
    quiet.seen.clear(); trace.seen.clear()
    modes = []
    learn.add_cb(Callback(before_batch=lambda self: modes.append(self.mode)))
    learn.lr_find(num_it=10, show_plot=False)
    assert (not quiet.seen and trace.seen.count('before_step')==10 and 'before_validate' not in trace.seen
        and {*modes}=={'lr_find'})

def test_persistent_workers_are_undisturbed():
    def run(trial):
        learn = mk(num_workers=1).fit(1)
        iterator,state = learn.dls.train._iterator,everything(learn)
        if trial: learn.lr_find(num_it=14, show_plot=False)
        assert learn.dls.train._iterator is iterator and not differences(state, everything(learn))
        res = frozen([learn.fit(1).model.state_dict(), learn.recorder.losses])
        iterator._shutdown_workers() # the garbage collector would take seconds
        return res
    assert run(True)==run(False)

def test_the_optimizer_is_made_as_in_a_fit():
    learn = mk()
    learn.lr_find(num_it=10, show_plot=False)
    assert get_hyper(learn.opt, 'lr')==[.01] and not learn.opt.state and learn.fit(1).opt is learn.opt

# Rates and losses
@pytest.mark.parametrize('start,end,n', [(1e-6, 1e-1, 20), (1e-7, 10, 100), (1e-3, 1., 6)])
def test_rates_rise_in_equal_ratios(start, end, n):
    seen = []
    learn = mk(cbs=Callback(before_step=lambda self: seen.append(self.opt.param_groups[0]['lr'])))
    learn.lr_find(start, end, num_it=n, stop_div=False, show_plot=False)
    assert seen==pytest.approx([start*(end/start)**(i/n) for i in range(n)])

def test_losses_are_smoothed_and_cut():
    raw = []
    learn = mk(cbs=Callback(after_loss=lambda self: raw.append(self.loss.item())))
    res = learn.lr_find(1e-5, 1e-2, num_it=40, stop_div=False, show_plot=False)
    avg = [sum(.98**(i-j)*.02*raw[j] for j in range(i+1))/(1-.98**(i+1)) for i in range(40)]
    assert (res.losses.tolist()==pytest.approx(avg[4:-5], rel=1e-5)
        and res.lrs.tolist()==pytest.approx([1e-5*1e3**(i/40) for i in range(4, 35)]))

@pytest.mark.parametrize('stop_div', [True, False])
def test_it_stops_when_the_loss_is_four_times_the_best(stop_div):
    n = []
    learn = mk(opt_func=SGD, cbs=Callback(before_step=lambda self: n.append(1)))
    learn.lr_find(1e-3, 1e2, num_it=60, stop_div=stop_div, show_plot=False)
    assert len(n)<60 if stop_div else len(n)<=60

def test_groups_keep_their_rates():
    "Neighbouring rates of a group have a constant ratio"
    seen = []
    learn = mk(splitter=lambda m: [[*m.body.parameters(), *m.bn.parameters()], list(m.head.parameters())],
        cbs=Callback(before_step=lambda self: seen.append(get_hyper(self.learn.opt, 'lr'))))
    res = learn.lr_find([1e-7,1e-6], [1e-2,1e-1], num_it=10, show_plot=False)
    assert all(b==pytest.approx(10*a) for a,b in seen) and res.lrs[0]==seen[1][1]

# Suggestions
def curve(f, n=100, lo=-7, hi=1):
    x = np.linspace(lo, hi, n)
    return 10**x,np.array([f(o) for o in x])

def test_valley():
    "One descent of points 20 to 79: after a third of its 60 and half of the next, counted from the point before it"
    lrs,losses = curve(lambda o: 0.)
    losses[:] = [1+i for i in range(20)] + [100-i for i in range(60)] + [200+i for i in range(20)]
    lr,point = valley(lrs, losses, 100)
    assert lr==lrs[19+20+10] and point==(lrs[49], losses[49])

@pytest.mark.parametrize('f', [lambda o: 1., lambda o: o, np.exp], ids=['flat','line','exp'])
def test_no_descent_suggests_no_large_rate(f):
    lrs,losses = curve(f)
    assert valley(lrs, losses, 100)[0]==lrs[0]

@pytest.mark.parametrize('f,steepest',
    [(lambda o: 1/(1+np.exp(4*(o+3))), -3), (lambda o: -np.exp(-(o+2)**2)*(o<-2)-(o>=-2), -2-.5**.5)],
    ids=['sigmoid','gauss'])
def test_steep(f, steepest):
    lrs,losses = curve(f, 801)
    lr,(x,y) = steep(lrs, losses, 100)
    assert np.log10(lr)==pytest.approx(steepest, abs=.02) and x==lr and y in losses

@pytest.mark.parametrize('at', [-5, -3.2, 0])
def test_minimum(at):
    lrs,losses = curve(lambda o: (o-at)**2, 801)
    lr,(x,y) = minimum(lrs, losses, 100)
    # the suggestion is marked, not where it comes from
    assert np.log10(lr)==pytest.approx(at-1, abs=.01) and x==lr and y==pytest.approx(1, abs=.03)

def test_slide():
    "Flat, then rising ever faster: the right end of the flat part"
    lrs,losses = curve(lambda o: 0.)
    losses[:] = [1.]*60 + [1+.01*i*i for i in range(40)]
    lr,(x,y) = slide(lrs, losses, 100)
    g = np.gradient(losses)
    right = next(r for r in range(99, 14, -1) if abs(g[r]-g[r-15])<=.005)
    assert lr==x==pytest.approx(lrs[right+1-15]) and y==pytest.approx(losses[right+1-15])
    assert slide(lrs, losses, 100, adjust_value=.1)[0]==pytest.approx(lr/10)

@pytest.mark.parametrize('f', [valley, slide, minimum, steep])
@pytest.mark.parametrize('shape',
    [lambda i: 1., lambda i: -i, lambda i: float(i), lambda i: (-1)**i, lambda i: np.sin(i)],
    ids=['flat','falling','rising','zigzag','waves'])
@pytest.mark.parametrize('n', [1, 2, 3, 15, 16, 17, 90])
def test_suggestions_are_floats_on_any_curve(f, shape, n):
    lrs,losses = np.geomspace(1e-7, 10, n),np.array([shape(i) for i in range(n)], dtype=float)
    try: lr,(x,y) = f(lrs, losses, 100)
    except (IndexError, ValueError): assert n<3
    else: assert {type(lr), type(x), type(y)}=={float} and 0<lr<=10 and x==lr and losses.min()<=y<=losses.max()

def test_suggestions_by_name():
    res = mk().lr_find(num_it=60, show_plot=False,
        suggest_funcs=(SuggestionMethod.Valley, SuggestionMethod.Slide, SuggestionMethod.Minimum,
            SuggestionMethod.Steep))
    assert res.names==('valley','slide','minimum','steep') and all(isinstance(o, float) for o in res)
    assert res.valley==valley(res.lrs, res.losses, 60)[0]==mk().lr_find(num_it=60,
        show_plot=False).valley==mk().lr_find(num_it=60, show_plot=False)[0]
    def mine(lrs, losses, num_it): return num_it,(lrs[0], losses[0])
    assert mk().lr_find(num_it=20, show_plot=False, suggest_funcs=mine).mine==20
    assert tuple(mk().lr_find(num_it=20, show_plot=False, suggest_funcs=None))==()
    with pytest.raises(TypeError, match='no argument `num_iter`.*`num_it`'): mk().lr_find(num_iter=3)

def test_functions_of_your_own():
    "A rate alone will do; a `partial` has the name of its function"
    def mine(lrs, losses, num_it): return lrs[3]
    res = mk().lr_find(num_it=60, show_plot=False,
        suggest_funcs=(mine, partial(slide, adjust_value=.5), lambda lrs, losses, n: np.float32(.01)))
    assert (res.names==('mine','slide','<lambda>') and res.mine==res.lrs[3]
        and res.points['mine']==pytest.approx((res.lrs[3], res.losses[3]))
        and res.slide==slide(res.lrs, res.losses, 60)[0]/2)
    assert len(res.plot().lines)==4 and {*map(type, res)}=={float}

@pytest.mark.parametrize('kwargs,exc,match',
    [(dict(suggest_funcs='valley'), TypeError,
        "`suggest_funcs` are functions .* but got 'valley'. Did you mean `Valley`"),
        (dict(suggest_funcs=(valley, .1)), TypeError, '`suggest_funcs` are functions .* but got 0.1'),
    (dict(num_it=100.5), TypeError, '`num_it` is a whole number, but got 100.5'),
    (dict(start_lr=0), ValueError, '`start_lr` is above 0, but got 0')])
def test_bad_settings_before_anything_is_trained(kwargs, exc, match):
    trace = Trace()
    with pytest.raises(exc, match=match): mk(cbs=trace).lr_find(**kwargs)
    assert 'before_fit' not in trace.seen

def test_negative_losses():
    "Smoothed like any other loss, and not taken for a divergence at once"
    class Likelihood(nn.Module):
        def forward(self, pred, y): return F.mse_loss(pred, y)-5
    a,b = (mk(loss_func=f).lr_find(1e-6, 1e-3, num_it=30, show_plot=False) for f in (Likelihood(), nn.MSELoss()))
    assert len(a.lrs)==len(b.lrs)==22 and a.losses+5==pytest.approx(b.losses, abs=1e-4)
    class Diverging(nn.Module):
        calls = [] # of the class: attributes of the loss itself are put back
        def __init__(self): super().__init__(); self.n = 0
        def forward(self, pred, y):
            self.n += 1; self.calls.append(self.n); return pred.sum()*0 - 5 + max(0, self.n-20)**3
    learn = mk(loss_func=Diverging())
    learn.lr_find(num_it=100, show_plot=False)
    assert 20<len(Diverging.calls)<40 and learn.loss_func.n==0

def test_after_fine_tuning(capsys):
    learn = mk(splitter=lambda m: [[*m.body.parameters(), *m.bn.parameters()], list(m.head.parameters())])
    for o in (learn.fine_tune(2, .01), learn.freeze()):
        res = o.lr_find(num_it=60, show_plot=False, suggest_funcs=(valley, slide, minimum, steep))
        assert all(isinstance(o, float) and 0<o<=10 for o in res)
    # too few points for most
    res = learn.lr_find(show_plot=False, suggest_funcs=(valley, slide, minimum, steep), num_it=6)
    assert all(o is None or 0<o<=10 for o in res)

# Without a suggestion
@pytest.mark.parametrize('num_it,found', [(6, False), (10, False), (11, True)])
def test_a_search_of_a_few_batches_suggests_nothing_and_says_why(num_it, found, capsys):
    res = mk().lr_find(num_it=num_it, show_plot=False)
    assert (res.valley is not None)==found
    assert ('too few for a suggestion. Try a higher `num_it`' in capsys.readouterr().out)!=found

class Diverges(nn.Module):
    "Its loss is `bad` from the `n`-th batch on"
    def __init__(self, n, bad): super().__init__(); self.n,self.bad,self.count = n,bad,0
    def forward(self, pred, y):
        self.count += 1; return F.mse_loss(pred, y) if self.count<=self.n else pred.sum()*0 + self.bad

@pytest.mark.parametrize('bad', [float('nan'), float('inf'), 1e9], ids=str)
@pytest.mark.parametrize('n', [0, 1, 5, 10, 14])
def test_early_divergence_is_reported(n, bad, capsys):
    learn = mk(loss_func=Diverges(n, bad))
    learn.create_opt()
    before = everything(learn)
    funcs = valley,slide,minimum,steep
    res = learn.lr_find(suggest_funcs=funcs)
    out = capsys.readouterr().out
    assert (res.names==tuple(f.__name__ for f in funcs) and all(o is None or np.isfinite(o) for o in res)
        and not differences(before, everything(learn)))
    if n<14 and not (n==0 and bad==1e9):
        said = [f'diverged after {n+1} batches','lower `start_lr`'] if n else [f'first batch is {bad}, before any step']
        assert tuple(res)==(None,)*4 and all(o in out for o in said) and 'None' in repr(res)

def classes(loss_func, targ, bs=8):
    torch.manual_seed(0)
    dl = DataLoader(TensorDataset(torch.randn(len(targ), 5), targ), bs)
    return Learner(DataLoaders(dl, device='cpu'), nn.Linear(5, 4), loss_func, lr=.01).remove_cb(ProgressCallback)

def test_a_batch_without_targets_is_no_divergence(capsys):
    "Of one in four batches the loss is NaN: the curve is that of the others"
    targ = torch.arange(32)%4
    targ[8:16] = -100
    res = classes(nn.CrossEntropyLoss(), targ).lr_find(show_plot=False)
    assert np.isfinite(res.losses).all() and len(res.lrs)==len(res.losses)>50 and 1e-7<res.valley<10
    assert not capsys.readouterr().out
    bad = classes(lambda p,t: F.cross_entropy(p, t)*float('nan'), targ).lr_find(show_plot=False)
    assert bad.valley is None and 'the first batch is nan, before any step' in capsys.readouterr().out

def test_a_summed_loss_is_that_of_a_sample_also_in_a_small_last_batch():
    "So small a rate trains nothing: both curves are of one model"
    targ = torch.arange(33)%4
    a,b = (classes(nn.CrossEntropyLoss(reduction=o), targ).lr_find(1e-9, 1e-8, show_plot=False) for o in ('mean','sum'))
    assert a.losses==pytest.approx(b.losses, rel=1e-4)

def test_the_curve_ends_at_the_first_nan():
    res = mk(loss_func=Diverges(60, float('nan'))).lr_find(show_plot=False, suggest_funcs=(valley, steep))
    assert np.isfinite(res.losses).all() and 40<=len(res.losses)<=51 and all(0<o<10 for o in res)

@pytest.mark.parametrize('show', [True, False])
def test_plot(show):
    res = mk().lr_find(num_it=30, show_plot=show)
    assert bool(plt.get_fignums())==show
    ax = res.plot()
    assert (ax.get_xscale()=='log' and [o.get_text() for o in ax.get_legend().get_texts()]==['valley']
        and ax.lines[0].get_xdata().tolist()==res.lrs.tolist())

def test_plot_shows_the_whole_curve():
    fig = mk().lr_find(num_it=30, show_plot=False).plot().figure
    fig.savefig(io.BytesIO())
    for o in (fig.axes[0].xaxis.label, fig.axes[0].yaxis.label):
        assert (fig.bbox.containsx(o.get_window_extent().x0) and fig.bbox.containsy(o.get_window_extent().y0)
            and fig.bbox.containsy(o.get_window_extent().y1))

@pytest.mark.parametrize('ends', [(1e-3, 1e-1), (1e-2, 3e-2), (1e-7, 10.)])
def test_labels_of_any_range_do_not_overlap(ends):
    ax = mk().lr_find(*ends, num_it=20, show_plot=False).plot()
    ax.figure.draw_without_rendering()
    labels = [*ax.xaxis.get_ticklabels(), *ax.xaxis.get_ticklabels(minor=True)]
    boxes = sorted((o.get_window_extent() for o in labels if o.get_text()), key=lambda o: o.x0)
    assert len(boxes)>2 and all(a.x1<b.x0 for a,b in zip(boxes, boxes[1:]))

# Modules, optimizers and buffers
class Critic(Callback):
    "Trains a network of its own beside the model"
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.own_opt = torch.optim.Adam(self.net.parameters(), lr=.1)
    def after_pred(self):
        if not self.training: return
        self.net(self.pred.detach()).mean().backward()
        self.own_opt.step(); self.own_opt.zero_grad()

trials = dict(lr_find=lambda learn: learn.lr_find(num_it=12, show_plot=False), smoke=Learner.smoke)
@pytest.mark.parametrize('trial', trials)
def test_modules_of_callbacks_are_restored(trial):
    learn = mk(cbs=Critic()).fit(1)
    def snap():
        return frozen([learn.critic.net.state_dict(),
            [learn.critic.own_opt.state[p] for p in learn.critic.net.parameters()]])
    before = snap()
    trials[trial](learn)
    assert snap()==before
    learn.fit(1)
    assert snap()!=before

class Temperature(Callback):
    "Is trained; decays a factor; keeps an average in place"
    run_valid,_stateattrs = False,('t','avg')
    def __init__(self):
        self.t,self.avg,self.beta = nn.Parameter(torch.ones(())),torch.ones(()),1.
        self.own_opt = torch.optim.SGD([self.t], lr=.1)
    def after_pred(self): self.learn.pred = self.pred*self.t
    def after_step(self): self.own_opt.step(); self.own_opt.zero_grad(); self.avg.mul_(.9)
    def after_batch(self): self.beta *= .5

class UnnamedTemperature(Temperature): _stateattrs = 'avg',

@pytest.mark.parametrize('cls', [Temperature, UnnamedTemperature])
@pytest.mark.parametrize('trial', trials)
def test_a_trained_parameter_and_plain_attributes_of_a_callback_are_restored(trial, cls):
    cb = cls()
    learn,t,opt = mk(cbs=cb),cb.t,cb.own_opt
    t.grad = torch.full((), 3.)
    trials[trial](learn)
    assert cb.t is t and cb.own_opt is opt and opt.param_groups[0]['params'][0] is t
    assert (t.item(), t.grad.item(), cb.avg.item(), cb.beta)==(1., 3., 1., 1.)

class InPlace(Callback):
    "Its state are its own objects, and is loaded into them"
    def __init__(self): self.w,self.seen = torch.zeros(2),[]
    def state_dict(self): return dict(w=self.w, seen=self.seen)
    def load_state_dict(self, state):
        self.w.copy_(state['w'])
        self.seen.clear(); self.seen += state['seen']
    def after_step(self): self.w += 1; self.seen.append(1)

class Average:
    "Holds a module, and is none itself"
    def __init__(self, m): self.m = deepcopy(m)
    def state_dict(self): return self.m.state_dict()
    def load_state_dict(self, state): self.m.load_state_dict(state)

class Averaged(Callback):
    _stateattrs = 'ema',
    def __init__(self): self.ema = Average(nn.Linear(1, 1))
    @property
    def w(self): return self.ema.m.weight
    @torch.no_grad()
    def after_step(self): self.w.add_(1.)

@pytest.mark.parametrize('cls', [InPlace, Averaged])
@pytest.mark.parametrize('trial', trials)
def test_a_state_that_is_loaded_in_place_is_restored(trial, cls):
    learn = mk(cbs=(cb := cls())).fit(1)
    def snap(): return frozen([cb.w, cb.state_dict()])
    before,w = snap(),cb.w
    trials[trial](learn)
    assert snap()==before and cb.w is w
    learn.fit(1)
    assert snap()!=before

class Probe(Callback):
    def __init__(self): self.all = []
    def before_fit(self): self.vals = []
    def after_batch(self): self.vals.append(self.loss.item()); self.all.append(self.vals[-1])

def test_a_probe_of_the_search_keeps_what_it_appends_to_a_list_that_was_there_before():
    learn,probe = mk(),Probe()
    with learn.added_cbs(probe): learn.lr_find(num_it=12, show_plot=False)
    assert len(probe.all)==12 and not hasattr(probe, 'vals') # as the text of `restored` says

class RemovesItself(Callback):
    def before_batch(self): self.learn.remove_cb(self)

@pytest.mark.parametrize('trial', trials)
def test_a_callback_that_removes_itself_in_a_trial_is_back_for_the_fit(trial):
    learn = mk(cbs=[cb := RemovesItself(), Callback()])
    names = learn.cbs.attrgot('name')
    trials[trial](learn)
    assert learn.cbs.attrgot('name')==names and cb.learn is learn
    learn.fit(1)
    assert cb not in learn.cbs and cb.learn is None

@pytest.mark.parametrize('trial', trials)
def test_several_optimizers_are_restored(trial):
    def opts(groups):
        return OptimList(Adam(groups[0]['params'], lr=.01), SGD(groups[1]['params'], lr=.01, mom=.9), every=[1,2])
    def run(trial):
        learn = mk(opt_func=opts, lr=None,
            splitter=lambda m: [[*m.body.parameters(), *m.bn.parameters()], list(m.head.parameters())]).fit(1)
        before = frozen(learn.opt.state_dict())
        if trial: trials[trial](learn)
        assert frozen(learn.opt.state_dict())==before
        return frozen(learn.fit(1).model.state_dict())
    assert run(trial)==run(None)

def test_state_that_is_changed_in_place():
    "Lists in the state of an optimizer"
    learn = mk(opt_func=lambda ps, lr=.1: torch.optim.LBFGS([p for g in ps for p in g['params']], lr=lr,
        max_iter=2)).fit(1)
    before = frozen([*learn.opt.state.values()])
    learn.lr_find(1e-6, 1e-3, num_it=8, show_plot=False)
    assert frozen([*learn.opt.state.values()])==before

@pytest.mark.parametrize('trial', trials)
def test_lazy_modules_need_a_batch_first(trial):
    learn = mk()
    learn.model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    learn.opt_func = SGD
    with pytest.raises(ValueError,
            match=r'`LazyLinear` has no weights before it has seen a '
            r'batch.*`learn.model\(learn.dls.one_batch\(\)\[0\]\)`'):
        trials[trial](learn)
    learn.model(learn.dls.one_batch()[0])
    trials[trial](learn)

# Buffers that change
class Caches(nn.Module):
    "Makes one buffer when needed, and lets another grow"
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 1)
        self.register_buffer('mask', None)
        self.register_buffer('queue', torch.zeros(0))
    def forward(self, x):
        if self.grow=='mask' and self.mask is None: self.mask = torch.ones(2)
        if self.grow=='queue': self.queue = torch.cat([self.queue, x.new_ones(1)])
        return self.lin(x)

@pytest.mark.parametrize('grow', ['mask','queue'])
def test_new_and_grown_buffers_are_restored(grow):
    learn = mk()
    learn.model = Caches()
    learn.model.grow = grow
    before = frozen(learn.model.state_dict())
    learn.lr_find(num_it=10, show_plot=False)
    assert frozen(learn.model.state_dict())==before

# Modules that callbacks change
def prunes(m): prune.l1_unstructured(m[0], 'weight', amount=.5)
def appends(m): m.append(nn.Linear(1, 1))
def replaces(m): m[2] = nn.Linear(6, 1)
def normalizes(m): nn.utils.parametrizations.weight_norm(m[0])
def counts(m): m.n = getattr(m, 'n', 0)+1

@pytest.mark.parametrize('trial', trials)
@pytest.mark.parametrize('change', [prunes, appends, replaces, normalizes, counts])
def test_what_callbacks_change_in_modules_is_restored(change, trial):
    "The fit that follows is that without a trial"
    def run(tries):
        torch.manual_seed(0)
        learn = mk(cbs=Callback(before_fit=lambda self: change(self.model)))
        learn.model = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1))
        names,attrs = [*learn.model.state_dict()],[{*vars(m)} for m in learn.model.modules()]
        if tries: trials[trial](learn)
        assert [*learn.model.state_dict()]==names and [{*vars(m)} for m in learn.model.modules()]==attrs
        torch.manual_seed(1)
        learn.fit(1)
        return learn.model.state_dict(),learn.recorder.losses
    (weights,losses),(weights_before,losses_before) = run(True),run(False)
    assert frozen(weights)==frozen(weights_before) and losses==losses_before

@pytest.mark.parametrize('trial', trials)
def test_hooks_whose_handles_a_callback_keeps_in_a_list_stay(trial):
    "As the list does"
    class Hooks(Callback):
        def __init__(self): self.handles,self.calls = [],[]
        def before_fit(self):
            if not self.handles: self.handles.append(self.model.register_forward_hook(lambda *_: self.calls.append(1)))
    learn = mk(cbs=(cb := Hooks()))
    trials[trial](learn)
    n = len(cb.calls)
    learn.fit(1)
    assert len(cb.handles)==1 and len(cb.calls)>n

@pytest.mark.parametrize('kwargs,text', [(dict(num_it=5), '`num_it` is 6 or more, but got 5'),
    (dict(start_lr=1, end_lr=.1), '`end_lr` is above `start_lr`, but they are 0.1 and 1'),
    (dict(start_lr=1, end_lr=1), '`end_lr` is above `start_lr`'),
    (dict(start_lr=[1e-7,20]), r'`end_lr` is above `start_lr`, but they are 10 and \[1e-07, 20\]')])
def test_a_search_that_could_find_nothing_is_refused(kwargs, text):
    with pytest.raises(ValueError, match=text): mk().lr_find(**kwargs)

def test_an_iterator_is_not_used_up():
    data = iter([(torch.randn(4, 1), torch.randn(4, 1)) for _ in range(30)])
    learn = synth_learner(dls=DataLoaders(data, device='cpu'))
    with pytest.raises(ValueError, match=r"its batches only once: `lr_find` would use it up\. Give a list"):
        learn.lr_find(num_it=6)
    assert len([*data])==30

def test_a_length_that_is_too_high_does_not_end_the_search_early():
    class Says:
        "Batches with another length than there are"
        def __init__(self, dl, n): self.dl,self.n = dl,n
        def __iter__(self): return iter(self.dl)
        def __len__(self): return self.n
    def found(n):
        learn = mk()
        learn.dls.loaders['train'] = Says([*learn.dls.train], n)
        res = learn.lr_find(show_plot=False)
        return res.valley,[*res.lrs]
    assert found(12)==found(24) and len(found(24)[1])>50
