"Groups of runs that differ in random numbers of one kind, and whether two groups differ"
import os,random,warnings
import numpy as np,pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,TensorDataset
from learner.all import *
from learner.compare.comparison import Estimate,power,seeds_needed,t_quantile,t_within
from learner.compare.seeds import Proof
from learner.compare.streams import draw_again

masks,batches,starts = [],[],[]

class Net(nn.Module):
    "Notes its initial weights and its dropout"
    def __init__(self, p=.3):
        super().__init__()
        self.a,self.b,self.p = nn.Linear(3, 6),nn.Linear(6, 2),p
    def forward(self, x):
        h = self.a(x).relu()
        if self.training:
            mask = F.dropout(torch.ones_like(h), self.p)
            masks.append(mask)
            h = h*mask
        return self.b(h)

class Witness(Callback):
    run_valid,watches = False,True
    def before_fit(self): starts.append([p.detach().clone() for p in self.learn.model.parameters()])
    def before_batch(self): batches.append(self.learn.batch[0].clone())

gen = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=gen)
Y = (X[:,0]+X[:,1]>0).long()

def mk(model=None, data=None, cbs=(), metrics=accuracy, loss_func=None, lr=.05, **loader):
    torch.manual_seed(0)
    data = TensorDataset(X, Y) if data is None else data
    train = DataLoader(data, **(dict(batch_size=8, shuffle=True) | loader))
    dls = DataLoaders(train, DataLoader(TensorDataset(X, Y), 40), device='cpu')
    return Learner(dls, Net() if model is None else model, loss_func or nn.CrossEntropyLoss(), metrics=metrics, lr=lr,
        cbs=cbs).remove_cb(ProgressCallback)

def witnessed(learn, vary, n=3, **kwargs):
    "What each run began with, its batches in order, its dropout"
    for o in (masks, batches, starts): o.clear()
    res = learn.seeds(n, 2, vary=vary, cbs=Witness(), **kwargs)
    def cut(v): k = len(v)//n; return [v[i*k:(i+1)*k] for i in range(n)]
    return res,dict(init=starts[:], order=cut(batches), dropout=cut(masks))

def same(a, b): return len(a)==len(b) and all(map(torch.equal, a, b))

class Augmented(Dataset):
    "Noise from all global generators, and from one of its own"
    def __init__(self): self.gen = np.random.default_rng(0)
    def __len__(self): return len(X)
    def __getitem__(self, i): return X[i]+torch.rand(3)+random.random()+np.random.rand()+float(self.gen.random()),Y[i]

own = torch.Generator()
@pytest.mark.parametrize('vary', ['init','order','dropout','all',['init','dropout']])
@pytest.mark.parametrize('loader', [dict(), dict(data=Augmented), dict(shuffle=True, generator=own)],
    ids=['plain','augmented','own generator'])
def test_only_what_is_named_differs(vary, loader):
    "Initial weights, batches and dropout masks, as the model and a callback see them"
    loader = dict(loader) | (dict(data=loader['data']()) if 'data' in loader else {})
    res,seen = witnessed(mk(**loader), vary)
    named = ('init','order','dropout') if vary=='all' else (vary,) if isinstance(vary, str) else tuple(vary)
    for k,(first,*others) in seen.items():
        for o in others: assert same(first, o)==(k not in named), k
    assert res.proof.differ==tuple(k for k in ('init','order','dropout') if k in named) and res.proof

@pytest.mark.parametrize('vary', ['init','order','dropout'])
def test_mixing_belongs_to_the_batch(vary):
    "MixUp draws while a batch is trained"
    res,_ = witnessed(mk(cbs=MixUp()), vary)
    assert res.proof.differ==(vary,)

def test_a_generator_of_the_model_is_that_of_dropout():
    class Noisy(Net):
        def __init__(self): super().__init__(0.); self.gen = torch.Generator()
        def forward(self, x):
            return super().forward(x + torch.rand(x.shape, generator=self.gen) if self.training else x)
    a = mk(Noisy()).seeds(2, 1, vary='dropout')
    assert a.proof.differ==('dropout',) and len({*a['train_loss']})==2
    assert len({*mk(Noisy()).seeds(2, 1, vary='order').proof.differ})==1

@pytest.mark.slow
@pytest.mark.parametrize('vary', ['init','order','dropout'])
def test_workers_draw_from_the_stream_of_the_loader(vary):
    res,_ = witnessed(mk(data=Augmented(), num_workers=1), vary, n=2)
    assert res.proof.differ==(vary,)

def test_the_same_seed_gives_the_same_run():
    a,b = mk().seeds(4, 2),mk().seeds([3,1], 2)
    assert (a['train_loss'][[3,1]]==b['train_loss']).all() and a.seeds==[0,1,2,3] and b.seeds==[3,1]

def test_the_learner_is_left_alone():
    "Weights, optimizer, history, callbacks, generators; the next fit is the one that would have been without"
    def run(between):
        learn = mk().fit(1)
        rows,cbs,lineage = learn.recorder.rows,[*learn.cbs],learn.lineage
        before = [p.detach().clone() for p in learn.model.parameters()]
        state = random.getstate(),torch.get_rng_state(),np.random.get_state()[1].tolist()
        if between:
            learn.seeds(2, 1, cbs=MixUp())
            assert (same(before, [*learn.model.parameters()]) and learn.recorder.rows is rows and [*learn.cbs]==cbs
                and learn.lineage==lineage)
            assert (random.getstate()==state[0] and torch.equal(torch.get_rng_state(), state[1])
                and np.random.get_state()[1].tolist()==state[2])
        return [p.detach().clone() for p in learn.fit(1).model.parameters()]
    assert same(run(False), run(True))

def test_generators_come_back_after_an_error():
    learn,state = mk(),torch.get_rng_state()
    with pytest.raises(ZeroDivisionError): learn.seeds(2, 1, cbs=Raise('before_step', ZeroDivisionError, 3))
    assert torch.equal(torch.get_rng_state(), state)

def test_callbacks_that_write_are_left_out(tmp_path):
    learn = mk()
    learn.path = tmp_path
    learn.seeds(2, 1, cbs=SaveModelCallback(monitor='valid_loss'))
    learn.add_cb(CSVLogger(tmp_path/'log.csv'))
    learn.seeds(2, 1)
    assert not [*tmp_path.rglob('*')]

def test_arguments_of_the_fit_are_passed_on():
    a = mk().seeds(2, n_iter=3, lr=.01, wd=.1)
    setup = a.runs[0].trail.setups[0][1]
    assert len(a.runs[0].trail)==4 and setup.settings['opt.lr']==(.01,) and setup.settings['opt.wd']==(.1,)
    assert len(mk().seeds(2, 3, fit='fit_one_cycle', lr_max=.1).runs[0].rows)==3

# Initial weights

def test_a_learner_that_has_trained_is_warned_of_and_begins_there():
    learn = mk().fit(1)
    now = [p.detach().clone() for p in learn.model.parameters()]
    with pytest.warns(UserWarning, match='has been trained: all runs begin with the weights that it has now'):
        _,seen = witnessed(learn, 'order', n=2)
    assert all(same(now, o) for o in seen['init'])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        _,seen = witnessed(learn, 'init', n=2)
        learn.seeds(2, 1, vary='order', model=Net)
    assert not any(same(now, o) for o in seen['init'])

def test_a_new_model_is_made_by_a_function():
    _,seen = witnessed(mk(), 'init', model=Net)
    assert not same(*seen['init'][:2])
    _,seen = witnessed(mk(), 'order', model=Net)
    assert same(*seen['init'][:2])

class Pos(nn.Module):
    def __init__(self): super().__init__(); self.lin,self.pos = nn.Linear(3, 2),nn.Parameter(torch.zeros(3))
    def forward(self, x): return self.lin(x+self.pos)
class Resets(Pos):
    def reset_parameters(self): nn.init.normal_(self.pos)
def tiny(std, n=200):
    res = nn.Sequential(nn.Linear(3, n), nn.Linear(n, 2))
    nn.init.normal_(res[0].weight, std=std)
    return res

@pytest.mark.parametrize('model, match', [
    (Pos(), 'parameters `pos` cannot be drawn again'),
    (nn.Sequential(Pos(), Pos()), 'parameters `0.pos`, `1.pos` cannot'),
    (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), 'original0'),
    (nn.Sequential(nn.LazyLinear(2)), '`LazyLinear` has no weights before it has seen a batch.* or give `model=`'),
    (tiny(.02), '`0.weight` is not as `reset_parameters` would draw it.*give `model=`'),
    (nn.Sequential(nn.LayerNorm(3), Pos()), 'pos'),
], ids=['parameter','two','parametrized','lazy','other spread','norm'])
def test_what_cannot_be_drawn_again_is_named(model, match):
    with pytest.raises(ValueError, match=match): mk(model).seeds(2, 1, vary='init')

def test_weights_that_are_constant_where_they_would_be_drawn():
    model = Net()
    nn.init.zeros_(model.b.weight)
    with pytest.raises(ValueError, match='`b.weight` is not as'): mk(model).seeds(2, 1)

def test_layers_of_all_kinds_are_drawn_again():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb,self.att,self.rnn = nn.Embedding(9, 4),nn.MultiheadAttention(4, 2, kdim=3, vdim=3),nn.LSTM(4, 5)
            self.conv,self.bn,self.norm,self.reset = nn.Conv1d(3, 4, 3),nn.BatchNorm1d(4),nn.GroupNorm(2, 4),Resets()
            self.tied = nn.Linear(4, 9, bias=False)
            self.tied.weight = self.emb.weight
            self.enc = nn.Transformer(4, 2, 1, 1, 8)
    learn = mk(Attention())
    was = {k:p.detach().clone() for k,p in learn.model.named_parameters()}
    draw_again(learn, untrained=False)
    now = dict(learn.model.named_parameters())
    drawn = [k for k,p in was.items() if p.std()>0 or k=='reset.pos']
    assert not [k for k in drawn if torch.equal(was[k], now[k])] and learn.model.tied.weight is learn.model.emb.weight

class Phase(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin,self.w = nn.Linear(3, 2),nn.Parameter(torch.randn(3, dtype=torch.complex64))
    def forward(self, x): return self.lin(x*self.w.abs())
class DrawnPhase(Phase):
    std = 1.
    def reset_parameters(self): self.w.copy_(torch.randn(3, dtype=torch.complex64)*self.std)
def test_complex_parameters_are_drawn_again():
    with pytest.raises(ValueError, match='parameters `w` cannot be drawn again'): mk(Phase()).seeds(2, 1, vary='init')
    _,seen = witnessed(mk(DrawnPhase()), 'init')
    assert not any(same(a[:1], b[:1]) for a,b in zip(seen['init'], seen['init'][1:]))
    learn = mk(DrawnPhase())
    learn.model.std = 0.
    with pytest.raises(ValueError, match='`w` is not as .*: its values have mean .*j and'):
        draw_again(learn, untrained=True)

def test_running_statistics_begin_anew_and_frozen_parameters_stay():
    learn = mk(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).fit(1)
    learn.model[0].requires_grad_(False)
    frozen = learn.model[0].weight.clone()
    draw_again(learn, untrained=False)
    assert torch.equal(learn.model[0].weight, frozen) and learn.model[1].running_mean.abs().sum()==0

def test_parameters_of_the_loss_are_drawn_again():
    class Weighted(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(2, 2)
        def forward(self, p, y): return F.cross_entropy(self.lin(p), y)
    learn = mk(loss_func=Weighted())
    was = learn.loss_func.lin.weight.clone()
    draw_again(learn, untrained=True)
    assert not torch.equal(was, learn.loss_func.lin.weight)

# What the fingerprints show

@pytest.mark.parametrize('vary, learn, match', [
    ('dropout', lambda: mk(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.))), 'no random number is drawn'),
    ('dropout', lambda: mk(nn.Linear(3, 2)), 'no random number is drawn while a batch is trained'),
    ('order', lambda: mk(shuffle=False), 'all runs have had the same batches'),
    (['init','order'], lambda: mk(shuffle=False), 'all runs have had the same batches')])
def test_a_kind_that_changes_nothing_is_refused(vary, learn, match):
    with pytest.raises(ValueError, match=match): learn().seeds(2, 1, vary=vary)

def test_a_factory_with_a_seed_of_its_own_is_refused():
    def make(): torch.manual_seed(0); return Net()
    with pytest.raises(ValueError, match='does `model` set a seed'): mk().seeds(2, 1, vary='init', model=make)

def test_of_all_kinds_some_may_not_be_used():
    assert mk(nn.Linear(3, 2), shuffle=False).seeds(2, 1).proof.differ==('init',)

class Outside(Dataset):
    "Random numbers that nothing can seed"
    def __len__(self): return len(X)
    def __getitem__(self, i): return X[i]+int.from_bytes(os.urandom(1), 'big')/256,Y[i]

def test_random_numbers_from_outside_are_told():
    with pytest.warns(UserWarning, match='`order` should be shared by all runs, and differs'):
        a = mk(data=Outside()).seeds(2, 1, vary='init')
    assert not a.proof and 'order should have been the same' in repr(a)

# Mistakes

@pytest.mark.parametrize('kwargs, error, match', [
    (dict(n=1), ValueError, '`n` is 2 or more'), (dict(n=[1,1]), ValueError, 'two or more different ones'),
    (dict(n='5'), TypeError, '`n` is a whole number'),
    (dict(n=[1,-1]), ValueError, '`n` is 0 or more'),
    (dict(vary='initial'), ValueError, 'Did you mean `init`'), (dict(model=Net()), TypeError, 'write `lambda'),
    (dict(model=3), TypeError, 'makes a model'),
    (dict(fit='fit_onecycle'), ValueError, 'Did you mean `fit_one_cycle`'),
    (dict(n_epochs=3), TypeError, 'Did you mean `n_epoch`'),
    (dict(model=lambda: 3), TypeError, 'but it made 3')])
def test_mistakes(kwargs, error, match):
    with pytest.raises(error, match=match):
        mk().seeds(**(dict(n=2) | ({} if 'n_epochs' in kwargs else dict(n_epoch=1)) | kwargs))

def test_a_function_that_gives_the_same_model_is_refused():
    model = Net()
    with pytest.raises(ValueError, match='gave the same model again'): mk().seeds(2, 1, model=lambda: model)

def test_a_recorder_is_needed():
    with pytest.raises(ValueError, match='Recorder'): mk().remove_cbs(Recorder).seeds(2, 1)

def test_not_in_a_running_fit():
    learn = mk(cbs=Callback(after_epoch=lambda self: self.learn.seeds(2, 1)))
    with pytest.raises(RuntimeError, match='cannot start inside a running `fit`'): learn.fit(1)

# Statistics

def test_t_agrees_with_scipy():
    stats = pytest.importorskip('scipy.stats')
    for df in (1, 1.7, 4, 7.3, 40, 500):
        for level in (.5, .9, .95, .999):
            assert t_quantile(level, df)==pytest.approx(stats.t.ppf((1+level)/2, df), rel=1e-5)
        for t in (0, .3, 2, 12): assert t_within(t, df)==pytest.approx(1-2*stats.t.sf(t, df), abs=1e-7)

def test_tests_agree_with_scipy():
    stats,rng = pytest.importorskip('scipy.stats'),np.random.default_rng(0)
    for n,m in ((5,5), (3,9), (12,4)):
        a,b = rng.normal(size=n),rng.normal(.5, 2, size=m)
        assert Estimate.of_difference(a, b).p==pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-5)
        ci = stats.ttest_ind(b, a, equal_var=False).confidence_interval(.9)
        assert Estimate.of_difference(a, b).interval(.9)==pytest.approx((ci.low, ci.high), rel=1e-5)
        c = rng.normal(size=n)
        assert Estimate.of_mean(c-a).p==pytest.approx(stats.ttest_rel(a, c).pvalue, rel=1e-5)

def test_power_agrees_with_scipy():
    stats = pytest.importorskip('scipy.stats')
    for df in (4, 8.4, 60):
        for shift in (0., 1., 2.8, 6.):
            t = stats.t.ppf(.975, df)
            exact = stats.nct.sf(t, df, shift)+stats.nct.cdf(-t, df, shift) if shift else .05
            assert power(shift, df)==pytest.approx(exact, abs=1e-4)

def test_seeds_needed():
    assert seeds_needed(0., [1.]) is None and seeds_needed(1e-6, [1.]) is None and seeds_needed(1., [0.,0.])==2
    assert seeds_needed(.5, [1.])==34 and seeds_needed(-.5, [1.,1.])==64 and seeds_needed(5., [1.])<=4

def test_intervals_cover_at_five_runs():
    "Of 4000 comparisons of equal groups, 5% are said to differ"
    rng,n = np.random.default_rng(1),4000
    t = t_quantile(.95, 4)
    d = rng.normal(size=(n,5))
    rate = (abs(d.mean(1))>t*d.std(1, ddof=1)/5**.5).mean()
    assert abs(rate-.05)<.012

def group(vals, seeds=None, vary=('init','order','dropout'), name='accuracy', higher=True):
    "A group of runs with these results"
    from learner.compare.seeds import SeedRun,SeedRuns
    runs = [SeedRun(s, History([Row(**{name:float(v)})]), mk_trail, {name:higher})
        for s,v in zip(range(len(vals)) if seeds is None else seeds, vals)]
    return SeedRuns(runs, Proof(vary, vary))
from learner.compare.fingerprint import Setup,Trail
mk_trail = Trail()
mk_trail.add_setup(Setup(dict(python=''), {}, [], {}, {}, {}, []))

def test_runs_are_paired_by_seed():
    a,b = group([1,2,3,4], [0,1,2,3]),group([4.1,3.1,2.1,1.1], [3,2,1,0])
    c = compare(a, b)
    assert c.paired and np.allclose(c.b-c.a, .1) and c and c.diff==pytest.approx(.1)
    assert len(compare(a, group([4.1,3.1,5], [3,2,9])).a)==2

def test_other_seeds_or_other_kinds_are_no_pairs():
    a = group([1,2,3])
    assert not compare(a, group([1,2,3], [5,6,7])).paired
    assert not compare(a, group([1,2,3], vary=('init',))).paired
    with pytest.raises(ValueError, match='share one seed, 2'): compare(a, group([1,2,3], [2,6,7]))

@pytest.mark.parametrize('higher, word', [(True,'better'), (False,'worse'), (None,'different')])
def test_the_answer_knows_which_direction_is_better(higher, word):
    c = compare(group([1,2,3], higher=higher), group([9,8,9.5], [5,6,7], higher=higher))
    assert c and f'b is {word}: its `accuracy` is higher by 6.8' in c.answer

def test_equal_runs_make_no_difference():
    c = compare(group([1,2,3]), group([1,2,3]))
    assert not c and 'It makes no difference: in all 3 pairs' in c.answer and repr(c) and c.p==1

def test_values_without_spread():
    c = compare(group([1,1,1]), group([2,2,2]))
    assert c and c.p==0 and c.needed==2
    assert 'no width, because the differences of all pairs are the same: in few runs, that happens by chance' in repr(c)
    assert 'the results within each group are the same' in repr(compare(group([1,1,1]), group([2,2,2], [5,6,7])))
    assert 'no width' not in repr(compare(group([1,1,2]), group([2,2,2]))) + repr(compare(group([1,1]), group([1,1])))

def test_a_run_without_a_number_is_named():
    with pytest.raises(ValueError, match='`accuracy` of the run with seed 1 in `b` is nan'):
        compare(group([1,2]), group([1,float('nan')]))
    with pytest.raises(ValueError, match='seed 0 in `a` is inf'): compare(group([float('inf'),2]), group([1,2]))

def test_the_best_value_of_each_run():
    a = mk(lr=.3).seeds(2, 4)
    for name,f in (('accuracy',np.max), ('valid_loss',np.min)):
        assert (a.values(name, best=True)==[f(o.rows[name]) for o in a.runs]).all()
    with pytest.raises(KeyError, match='Did you mean `accuracy`'): a['acuracy']

def test_the_metric_comes_before_the_loss():
    a = mk().seeds(2, 1)
    assert compare(a, a).name=='accuracy' and compare(a, a, 'valid_loss').higher is False
    assert compare(*[mk(metrics=None).seeds(2, 1)]*2).name=='valid_loss'

def test_what_differs_in_the_settings_is_told():
    a,b = mk().seeds(2, 1, vary='init'),mk(nn.Sequential(nn.Linear(3, 2), nn.Dropout(.1))).seeds(2, 1, vary='init',
        lr=.1)
    text = repr(compare(a, b))
    assert '`opt.lr` is (0.05,) in a, and (0.1,) in b' in text and 'the model differs' in text
    assert 'All runs share one order and one dropout' in text

class Scaled(nn.Module):
    def __init__(self, scale): super().__init__(); self.l,self.scale = nn.Linear(3, 2),scale
    def forward(self, x): return self.l(x)*self.scale
def test_attributes_that_differ_are_told_and_not_missed_in_older_files():
    a,b = (mk(Scaled(v)).seeds(2, 1) for v in (1., 2.))
    text = repr(compare(a, b))
    assert 'Settings: `model.scale` is 1.0 in a, and 2.0 in b.' in text and 'attributes.' not in text
    for run in a.runs:
        for _,o in run.trail.setups: o.settings = {k:v for k,v in o.settings.items() if not k.startswith('attributes.')}
    assert 'scale' not in repr(compare(a, b))

one_draw = dict(
    of_one=(lambda: mk().seeds(3, 1), lambda: mk().seeds([7,8,9], 1, vary='dropout'),
        'All runs of `b` have one init and one order, and the others have several'),
    of_each=(lambda: mk().seeds(3, 1, vary='dropout'), lambda: mk(other_net()).seeds(3, 1, vary='dropout'),
        'All runs of `a` have one init, and those of `b` another one'))
def other_net(): torch.manual_seed(5); return Net()
@pytest.mark.parametrize('how', one_draw)
def test_what_one_group_has_drawn_once_is_told(how):
    "It is no part of the spread, so that equal settings would often be told apart"
    a,b,text = one_draw[how]
    a,b = a(),b()
    with pytest.warns(UserWarning, match=f'{text}.* So `compare` may tell equal settings apart'): c = compare(a, b)
    assert f'{text}: the difference may be that of these draws' in repr(c) and 'All runs share one init' not in repr(c)

@pytest.mark.parametrize('kwargs', [dict(vary='dropout'), dict(vary='init'), {}], ids=str)
def test_groups_of_one_learner_in_which_the_same_varies_are_compared_without_a_word(kwargs, recwarn):
    compare(mk().seeds(2, 1, **kwargs), mk().seeds(2, 1, lr=.2, **kwargs))
    compare(mk(cbs=MixUp()).seeds(2, 1, **kwargs), mk().seeds(2, 1, **kwargs))
    compare(mk().seeds(2, 2, **kwargs), mk(batch_size=5).seeds(2, 2, **kwargs)) # the same samples in the same order
    assert not [o for o in recwarn if 'tell equal settings apart' in str(o.message)]

def test_plots():
    import matplotlib.pyplot as plt
    a = mk().seeds(3, 2)
    for b in (mk().seeds(3, 2, lr=.01), mk().seeds(range(3, 6), 2)): compare(a, b).plot()
    for ax in (a.plot(), a.plot('train_loss')):
        assert all(float(t).is_integer() for t in ax.get_xticks()) # epochs
        assert [list(o.get_xdata()) for o in ax.lines]==[list(o.rows['epoch']) for o in a.runs]
    plt.close('all')

def test_a_bar_is_shown_as_those_of_fits(monkeypatch, capsys):
    import learner.compare.seeds as module
    shown = []
    mk().seeds(2, 1) # a learner that shows nothing
    monkeypatch.setattr(module, 'Display', lambda: shown.append)
    monkeypatch.setattr(module, 'in_notebook', lambda: True)
    learn = mk().add_cb(ProgressCallback)
    learn.seeds(3, 1)
    bars = [o['text/plain'] for o in shown]
    assert bars==['seeds 0/3', 'seeds 1/3', 'seeds 2/3', ''] and capsys.readouterr().err==''
    with pytest.raises(ZeroDivisionError): learn.seeds(3, 1, cbs=Raise('after_fit', ZeroDivisionError))
    assert shown[-1]['text/plain']=='' # no bar stays
    monkeypatch.setattr(module, 'in_notebook', lambda: False)
    learn.seeds(2, 1)
    assert 'seeds' in capsys.readouterr().err

def test_a_slice_is_a_group():
    a = mk().seeds(4, 1)
    assert (a[1:3].seeds==[1,2] and (a[1:3]['train_loss']==a['train_loss'][1:3]).all()
        and compare(a[:2], a[2:]).paired is False)

def test_a_loss_that_uses_the_model_of_the_learner_is_told():
    model = Net()
    def loss(pred, y): return F.cross_entropy(pred, y) + model.a.weight.pow(2).sum()
    with pytest.warns(UserWarning, match="A run would use its parent's model, optimizer or learner in `loss_func`"):
        mk(model, loss_func=loss).seeds(2, 1)

def test_a_function_that_uses_the_learner_is_told():
    learn = mk()
    @learn.on(event.after_batch)
    def look(_): learn.model.a.weight
    with pytest.warns(UserWarning, match="A run would use its parent's .* in `look`"): learn.seeds(2, 1)

def test_a_callback_with_data_of_its_own_shares_it():
    "Loaders in callbacks are copied with their generators, and their data are not"
    class Extra(Callback):
        def __init__(self, more): self.more = more
        def before_epoch(self): seen.append(next(iter(self.more))[0]); data.append(self.more.dataset.tensors[0] is X)
    seen,data = [],[]
    learn = mk(cbs=Extra(DataLoader(TensorDataset(X, Y), 8, shuffle=True, generator=torch.Generator())))
    learn.seeds(2, 1, vary='init')
    assert all(data) and same(*[[o] for o in seen])
    seen.clear()
    learn.seeds(2, 1, vary='dropout')
    assert not same(*[[o] for o in seen])

class Counting(Dataset):
    "Changes a list while it is read, and has a large array"
    def __init__(self): self.seen,self.x = [],X.numpy()
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        self.seen.append(i); held.append(self.x); return torch.from_numpy(self.x[i])+.01*len(self.seen),Y[i]
held = []

@pytest.mark.parametrize('fitted', [False,True])
def test_runs_share_the_data_and_not_what_a_dataset_counts(fitted):
    data = Counting()
    learn = mk(data=data)
    if fitted: learn.fit(1)
    n = len(data.seen)
    held.clear()
    a = learn.seeds(3, 1)
    assert len(data.seen)==n and all(o is data.x for o in held) and len(held)>=120
    assert (a['train_loss']==learn.seeds([0,2,1], 1)['train_loss'][[0,2,1]]).all()

@pytest.mark.parametrize('cbs',
    [EMA, lambda: EarlyStoppingCallback(monitor='valid_loss'), lambda: GradientClip(.1),
        lambda: GradientAccumulation(16), lambda: [MixUp(), EMA()]])
def test_techniques_take_part(cbs):
    a,b = mk().seeds(3, 3, cbs=cbs()),mk(cbs=cbs()).seeds(3, 3)
    assert (a['train_loss']==b['train_loss']).all() and len({*a['train_loss']})==3 and compare(a, b, 'valid_loss').same

def test_a_stopped_fit_can_still_be_resumed():
    def stopped():
        learn = mk()
        return learn.fit(2, cbs=Callback(
            after_batch=lambda self: self.train_iter==3 and self.learn.at_pause(self.learn.stop_for_now, stops=True)))
    a,b = stopped(),stopped()
    with pytest.warns(UserWarning, match='has been trained'): b.seeds(2, 1, vary='order')
    state = torch.get_rng_state()
    a.resume(); torch.set_rng_state(state); b.resume()
    assert same([*a.model.parameters()], [*b.model.parameters()])

def test_runs_that_were_saved_are_the_same(tmp_path):
    runs,others = mk().seeds(2, 1, vary='order'),mk(lr=.5).seeds(2, 1, vary='order')
    file = runs.save(tmp_path/'baseline')
    again = load_seeds(file)
    assert repr(again)==repr(runs) and again.seeds==runs.seeds and again.better==runs.better
    assert bool(again.proof) and not diff(again.runs[0].trail, runs.runs[0].trail)
    assert repr(compare(again, others))==repr(compare(runs, others))
    with pytest.raises(ValueError, match='has no runs of `learn.seeds`'):
        mk().save(tmp_path/'weights')
        load_seeds(tmp_path/'weights')
    with pytest.raises(FileNotFoundError, match='nothing'): load_seeds(tmp_path/'nothing')
