"Hooks that are removed again, and statistics that do not wait for the device"
import copy,warnings
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from learner.all import *
from learner.inspect.activations import output_stats

def n_hooks(*ms): return sum(len(o._forward_hooks)+len(o._backward_hooks) for m in ms for o in m.modules())

def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1,8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(.5), nn.Linear(8,1))

class Keeper(HookCallback):
    "Notes which training batch each call was in, and what came out"
    def __init__(self, **kwargs): super().__init__(**kwargs); self.calls,self.outs = [],[]
    def hook(self, m, inp, out): self.calls.append((self.learn.train_iter, self.learn.training)); self.outs.append(out)

# Hook
def test_hook_keeps_what_the_function_returns():
    m,x = nn.Linear(3,2),torch.randn(4,3)
    h = Hook(m, lambda m,i,o: (m, i[0].sum(), o.shape))
    out = m(x)
    assert h.stored[0] is m and h.stored[1]==x.sum() and h.stored[2]==(4,2) and h.calls==1
    assert out.requires_grad # what the function returns does not replace the output
    h.remove(); h.remove()
    m(x)
    assert h.calls==1 and n_hooks(m)==0

def test_detach():
    m,x = nn.Linear(3,2),torch.randn(4,3)
    with hook_output(m) as h, hook_output(m, detach=False) as raw: out = m(x)
    assert not h.stored.requires_grad and raw.stored is out
    lstm = nn.LSTM(3,2)
    with hook_output(lstm) as h: out,(hid,cell) = lstm(x[None])
    assert not any(o.requires_grad for o in (h.stored[0], *h.stored[1])) and torch.equal(h.stored[1][1], cell)

def test_hook_comes_off_after_an_error():
    m = mlp()
    with pytest.raises(ZeroDivisionError):
        with hook_outputs(m): 1/0
    assert n_hooks(m)==0

def test_hooks_are_all_put_on_or_none():
    m = mlp()
    with pytest.raises(TypeError, match=r"`ms\[\d\]` is an `nn.Module`, but got 'a'"): Hooks([*m, 'a'], print)
    assert n_hooks(m)==0

def test_hooks_are_a_list():
    m,x = mlp(),torch.randn(4,1)
    with hook_outputs(m) as hs: out = m(x)
    assert len(hs)==5 and [o.stored.shape for o in hs]==[o.shape for o in hs.stored] and torch.equal(hs[-1].stored, out)

def test_gradients_equal_those_of_autograd():
    m,x,y = mlp().eval(),torch.randn(4,1),torch.randn(4,1)
    with hook_outputs(m, grad=True) as hs: F.mse_loss(m(x.requires_grad_()), y).backward()
    expected = torch.autograd.grad(F.mse_loss(_again(m, x, outs := []), y), outs)
    for (got,),o in zip(hs.stored, expected): torch.testing.assert_close(got, o)
    assert n_hooks(m)==0

def _again(m, x, outs):
    for o in m: x = o(x); outs.append(x)
    return x

def test_a_backward_hook_that_was_removed_is_silent():
    m = nn.Linear(1,1)
    with hook_output(m, grad=True) as h: loss = m(torch.ones(1,1, requires_grad=True)).sum()
    loss.backward()
    assert h.calls==0 and h.stored is None

def test_when():
    m,on = nn.Linear(1,1),True
    with Hook(m, lambda *args: 1, when=lambda: on) as h:
        m(torch.ones(1,1))
        on = False
        m(torch.ones(1,1))
    assert h.calls==1

# Parts of a model
def test_parts():
    m = nn.Sequential(nn.Linear(2,3), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)))
    m.append(m[0]) # used twice, and one layer
    assert flatten_model(m)==[m[0], m[1][0], m[1][1]] and flatten_model(m[0])==[m[0]]
    assert [has_params(o) for o in flatten_model(m)]==[True, False, True]
    assert total_params(m)==(15, True) and total_params(m[1][0])==(0, False)
    m.requires_grad_(False)
    assert total_params(m)==(15, False)

# HookCallback
@pytest.mark.parametrize('every,expected',
    [(None, range(12)), (1, range(12)), (3, (0,3,6,9)), (5, (0,5,10)), (100, (0,))])
def test_every(every, expected):
    cb = Keeper(every=every)
    on = []
    class Look(Callback):
        order = 100
        def before_batch(self): on.append(n_hooks(self.learn.model)>0)
    synth_learner(n_train=4, cbs=[cb, Look]).fit(3)
    assert cb.calls==[(i,True) for i in expected]
    train = [o for i,o in enumerate(on) if i%6<4]
    assert [i for i,o in enumerate(train) if o]==list(expected) # off between, really
    assert not any(o for i,o in enumerate(on) if i%6>=4)        # and in validation

def test_hooks_ignore_inference_inside_a_batch():
    cb = Keeper()
    def look(cb):
        if cb.learn.training: cb.learn.get_preds(); cb.learn.validate()
    learn = synth_learner(n_train=2,
        cbs=[cb, *(Callback(**{ev: look}) for ev in ('before_batch','after_pred','after_backward'))]).fit(1)
    assert cb.calls==[(0,True),(1,True)]
    learn.validate(); learn.get_preds(); learn.lr_find(show_plot=False)
    assert len(cb.calls)==2

@pytest.mark.sample(2, together=2)
@pytest.mark.filterwarnings('ignore:Full backward hook is firing') # torch, of the first layer
@pytest.mark.parametrize('order', [-50, 50])
@pytest.mark.parametrize('exc',
    [ValueError, KeyboardInterrupt, CancelFitException, CancelTrainException, CancelBatchException],
    ids=lambda o: o.__name__)
@pytest.mark.parametrize('ev',
    ['before_fit', 'before_batch', 'after_pred', 'after_loss', 'before_backward', 'after_step', 'after_batch',
        'cleanup_batch', 'before_validate', 'after_fit'])
def test_nothing_is_left_whatever_happens(ev, exc, order):
    stats = ActivationStats(modules=(model := mlp())[0], with_hist=True)
    learn = synth_learner(n_train=2, model=model,
        cbs=[stats, Keeper(is_forward=False), Raise(ev, exc('stop'), n=2 if 'batch' in ev else 1, order=order)])
    try: learn.fit(1)
    except (ValueError,KeyboardInterrupt,RuntimeError): pass
    assert n_hooks(model)==0 and stats.hooked is False
    learn.fit(1)
    assert n_hooks(model)==0 and stats.batches==[0,1]

def test_removed_at_the_end_or_not():
    cb = HookCallback(hook=lambda m,i,o: o.shape, remove_end=False)
    learn = synth_learner(n_train=2, cbs=cb).fit(1)
    assert n_hooks(learn.model)==1
    learn.fit(1)
    assert n_hooks(learn.model)==1 # not doubled
    assert cb.hooks.stored==[(16,1)] # of the last batch, until there is another
    learn.model(torch.zeros(5,1))
    assert cb.hooks.stored==[(5,1)]
    cb.hooks.remove()
    assert n_hooks(learn.model)==0

@pytest.mark.parametrize('end', ['fit','remove','batch','replaced','with'])
def test_hooks_do_not_outlive_their_owner(end):
    cb = HookCallback(hook=lambda m,i,o: o.shape, remove_end=False)
    learn = synth_learner(n_train=2, cbs=None if end in ('fit','with') else cb)
    if end=='fit': learn.fit(1, cbs=cb)
    elif end=='batch':
        learn.fit(1, cbs=Callback(after_pred=lambda o: o.learn.remove_cb(cb) if o.learn.training else None))
        assert not cb.hooked
    elif end=='with':
        with learn.added_cbs(cb):
            learn.fit(1)
            assert n_hooks(learn.model)==1 and cb.learn is learn
    else:
        learn.fit(1)
        assert n_hooks(learn.model)==1
        if end=='remove': learn.remove_cb(HookCallback)
        else: synth_learner(cbs=cb) # another Learner takes it
    assert n_hooks(learn.model)==0

def test_a_callback_with_hooks_still_reads_its_learner():
    cb = Keeper()
    assert cb.learn is None
    with pytest.raises(AttributeError, match='`Keeper`, which has no Learner yet, has no `trian_iter`'): cb.trian_iter
    learn = synth_learner(cbs=cb)
    assert cb.learn is learn and cb.model is learn.model

def test_what_is_hooked():
    model = mlp()
    def hooked(**kwargs):
        cb = HookCallback(hook=lambda m,i,o: m, **kwargs)
        synth_learner(model=model, cbs=cb).fit(1)
        assert list(cb.hooks.stored)==cb.modules
        return cb.modules
    assert hooked()==[model[0], model[2], model[4]]
    assert hooked(include_paramless=True)==[*model]
    assert hooked(modules=model)==[model] and hooked(modules=(o for o in model[:2]))==[model[0], model[1]]

@pytest.mark.filterwarnings('ignore:Full backward hook is firing')
def test_gradients_while_training():
    cb = Keeper(is_forward=False)
    learn = synth_learner(n_train=1, cbs=cb, lr=0.).fit(1)
    learn = synth_learner(n_train=1, lr=0.)
    x,y = next(iter(learn.dls.train))
    pred = learn.model(x)
    torch.testing.assert_close(cb.outs[0][0].sort(0)[0], torch.autograd.grad(F.mse_loss(pred, y), pred)[0].sort(0)[0])

@pytest.mark.parametrize('f,exc,match', [
    (lambda: HookCallback(), TypeError, '`HookCallback` needs something to call'),
    (lambda: Keeper(every=0), ValueError, '`every` is 1 or more, but got 0'),
    (lambda: Keeper(every=2.5), TypeError, '`every` is a whole number, but got 2.5'),
    (lambda: ActivationStats(every='a'), TypeError, "`every` is a whole number, but got 'a'"),
    (lambda: ActivationStats(every=float('nan')), TypeError, '`every` is a whole number, but got nan'),
    (lambda: ActivationStats(modules=3), TypeError, '`modules` is a list of modules, but got 3'),
    (lambda: ActivationStats(modules=[]), ValueError, 'nothing to listen to: `modules` is empty'),
    (lambda: ActivationStats(modules=iter(())), ValueError, 'nothing to listen to: `modules` is empty'),
    (lambda: Hook(nn.Linear(1,1), 3), TypeError,
        '`hook_func` is a function of a module, its input and its output, but got 3'),
    (lambda: hook_outputs(nn.Linear(1,1)), TypeError,
        r'`modules` are several modules, but got Linear\(.*write `Hook`, or `\[module\]`'),
    (lambda: Hooks(3, print), TypeError, '`ms` is a list of modules, but got 3'),
    (lambda: Hook(nn.Linear(1,1), print, detatch=True), TypeError,
        '`Hook` has no argument `detatch`. Did you mean `detach`'),
    (lambda: Hooks([], print, detatch=True), TypeError, '`Hooks` has no argument `detatch`'),
    (lambda: hook_output(nn.Linear(1,1), detatch=True), TypeError, '`hook_output` has no argument `detatch`'),
    (lambda: hook_outputs([], detatch=True), TypeError, '`hook_outputs` has no argument `detatch`'),
    (lambda: ActivationStats().color_dim(0, figsze=1), TypeError,
        'color_dim` has no argument `figsze`. Did you mean `figsize`'),
    (lambda: ActivationStats(evry=2), TypeError, 'has no argument `evry`. Did you mean `every`'),
    (lambda: synth_learner(cbs=Keeper(modules=nn.Linear(1,1))).fit(1), RuntimeError,
        'None of the 1 modules of `Keeper` took part in the batch: are they of another model'),
    (lambda: Keeper(modules=['a']), TypeError, r"`modules\[0\]` is an `nn.Module`, but got 'a'"),
], ids=lambda o: '')
def test_errors(f, exc, match):
    with pytest.raises(exc, match=match): f()

def test_a_model_without_layers_with_parameters():
    class Bare(nn.Module):
        def __init__(self): super().__init__(); self.w,self.act = nn.Parameter(torch.ones(1)),nn.ReLU()
        def forward(self, x): return self.act(x*self.w)
    with pytest.raises(ValueError,
            match='nothing to listen to: the model has no layer with parameters. `include_paramless=True`'):
        synth_learner(model=Bare(), cbs=Keeper()).fit(1)
    synth_learner(model=Bare(), cbs=Keeper(include_paramless=True)).fit(1)

@pytest.mark.filterwarnings('ignore:Full backward hook is firing')
def test_training_is_the_same_with_hooks():
    def weights(*cbs):
        return torch.cat([o.flatten()
            for o in synth_learner(model=mlp(), cbs=list(cbs)).fit(2).model.state_dict().values()])
    plain = weights()
    assert (torch.equal(plain, weights(ActivationStats(with_hist=True)))
        and torch.equal(plain, weights(Keeper(is_forward=False)))
        and torch.equal(plain, weights(Keeper(every=3, detach=False))))

# ActivationStats
def outputs(model, learn, n):
    "What the layers of `model` return for the first `n` batches of an epoch, with weights that stay the same"
    torch.manual_seed(9)
    return [_each(model, x) for x,_ in list(learn.dls.train)[:n]]
def _each(model, x): _again(model, x, outs := []); return [o.detach().double().numpy() for o in outs]

@pytest.mark.parametrize('every', [None, 2])
def test_statistics_equal_those_of_numpy(every):
    model = nn.Sequential(nn.Linear(1,8), nn.Tanh(), nn.Linear(8,4), nn.ReLU(), nn.Linear(4,1))
    stats = ActivationStats(with_hist=True, every=every, include_paramless=True)
    learn = synth_learner(n_train=5, model=model, lr=0., cbs=stats)
    outs = outputs(model, learn, 5)
    torch.manual_seed(9)
    learn.fit(1)
    seen = list(range(0, 5, every or 1))
    assert stats.batches==seen and stats.stats.shape==(len(seen), 5, 43)
    for i in range(5):
        mean,std,near = (o.numpy() for o in stats.layer_stats(i))
        xs = [outs[b][i] for b in seen]
        np.testing.assert_allclose(mean, [o.mean() for o in xs], atol=1e-6)
        np.testing.assert_allclose(std, [o.std(ddof=1) for o in xs], rtol=1e-5)
        np.testing.assert_allclose(near, [(np.abs(o)<=.05).mean() for o in xs], rtol=1e-6)
        np.testing.assert_allclose(np.expm1(stats.hist(i).numpy().T),
            [np.histogram(o.clip(0, 10), 40, (0,10))[0] for o in xs], atol=.01)
    assert stats.layer_stats(-1).std.equal(stats.layer_stats(4).std)

class NoHistc(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket is not torch.ops.aten.histc, 'not deterministic on a GPU'
        return func(*args, **(kwargs or {}))

@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_histograms_with_deterministic_algorithms_are_the_same(dtype):
    x = torch.cat([torch.linspace(-1, 11, 500), torch.arange(11.), torch.tensor([torch.nan, torch.inf, .25])]).to(dtype)
    usual = output_stats(x.view(2, -1), .05, 40, 10.)
    torch.use_deterministic_algorithms(True)
    try:
        with NoHistc(): res = output_stats(x.view(2, -1), .05, 40, 10.)
    finally: torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(res, usual, rtol=0, atol=0, equal_nan=True)
    assert res[3:].sum()==len(x)-1

class Counts(TorchDispatchMode):
    "Counts the operations that make a device wait"
    def __init__(self): super().__init__(); self.n = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero,
            torch.ops.aten.equal, torch.ops.aten.bincount) \
            or (func.overloadpacket is torch.ops.aten._to_copy and (kwargs or {}).get('device') is not None)
        return func(*args, **(kwargs or {}))

def test_nothing_waits_for_the_device():
    counts = []
    for cbs in ([], [ActivationStats(with_hist=True)]):
        learn = synth_learner(model=mlp(), cbs=cbs, default_cbs=False)
        with Counts() as c: learn.fit(1)
        counts.append(c.n)
    assert counts[0]==counts[1]

def test_layers_that_do_not_run_or_return_several():
    class Odd(nn.Module):
        def __init__(self): super().__init__(); self.rnn,self.out,self.idle = nn.LSTM(1,4),nn.Linear(4,1),nn.Linear(1,1)
        def forward(self, x): return self.out(self.rnn(x[None])[0][0])
    stats = ActivationStats()
    learn = synth_learner(n_train=2, model=Odd(), cbs=stats, lr=0.).fit(1)
    assert stats.layer_stats(2).mean.isnan().all() and not stats.layer_stats(0).mean.isnan().any()
    out = []
    # its hooks hear this too, the same
    cb = Callback(after_pred=lambda cb: out.append(cb.learn.model.rnn(cb.learn.x[None])[0].mean())
        if cb.learn.training else None)
    learn.fit(1, cbs=cb)
    torch.testing.assert_close(stats.layer_stats(0).mean, torch.stack(out).detach())

def test_nothing_is_left_out_of_a_histogram():
    stats = ActivationStats(with_hist=True)
    learn = synth_learner(model=nn.Linear(1,8), lr=0., cbs=stats, loss_func=lambda p,y: p.mean())
    with torch.no_grad(): learn.model.weight.fill_(0.); learn.model.bias.copy_(torch.tensor([-99.,-1,0,.1,5,9.9,11,99]))
    learn.fit(1)
    counts = stats.hist(0).expm1().round()
    assert ((counts.sum(0)==8*16).all() and (counts[0]==4*16).all() and (counts[20]==16).all()
        and (counts[-1]==3*16).all())

def test_histograms_of_large_layers_count_all_values():
    "In steps of 1, float32 counts to 2**24"
    o = torch.zeros(2**24+2**20)
    o[-6:] = 9.
    assert output_stats(o, .05, 4, 10.)[3:].tolist()==[len(o)-6,0,0,6]

def test_infinite_activations_are_followed_too():
    stats = ActivationStats(with_hist=True)
    synth_learner(model=nn.Sequential(nn.Linear(1,4), nn.Linear(4,1)), lr=1e30, cbs=stats).fit(1)
    assert len(stats.batches)==10 and not stats.layer_stats(0).mean.isfinite().all()

def test_one_number_and_bf16():
    class One(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(1,1)
        def forward(self, x): return x.mean() + self.l(torch.ones(1,1))
    stats = ActivationStats()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        synth_learner(model=One(), cbs=stats, loss_func=lambda p,y: F.mse_loss(p.expand_as(y), y)).to_bf16().fit(1)
    assert (stats.layer_stats(0).std==0).all() and stats.stats.dtype==torch.float32

def test_each_fit_begins_again_and_inference_does_not_count():
    stats = ActivationStats()
    learn = synth_learner(n_train=3, cbs=stats).fit(2)
    assert stats.batches==[0,1,2,3,4,5] and len(stats.stats)==6
    learn.validate(); learn.lr_find(show_plot=False)
    assert len(stats.stats)==6
    assert len(learn.fit(1).activation_stats.stats)==3

def test_cancelled_batches():
    stats = ActivationStats()
    synth_learner(n_train=4, cbs=[stats, Raise('before_batch', CancelBatchException, 2),
        Raise('after_pred', CancelBatchException, 3)]).fit(1)
    assert stats.batches==[0,2,3] # the second did not run, the fourth ran and was cancelled after that

def test_read_in_the_middle_and_saved():
    stats,seen = ActivationStats(),[]
    synth_learner(n_train=4, cbs=[stats,
        Callback(after_step=lambda cb: seen.append(stats.stats is None or len(stats.stats)))]).fit(1)
    assert seen==[True,1,2,3] and len(stats.stats)==4
    other = ActivationStats()
    other.load_state_dict(copy.deepcopy(stats.state_dict()))
    assert other.stats.equal(stats.stats) and other.batches==stats.batches

def test_plots():
    import matplotlib
    matplotlib.use('agg')
    import matplotlib.pyplot as plt
    stats = ActivationStats(every=2, with_hist=True)
    synth_learner(n_train=4, model=mlp(), cbs=stats).fit(1)
    ax = stats.color_dim(0)
    assert (ax.images[0].get_array().shape==(40,2) and ax.get_xlabel()=='training batch'
        and tuple(ax.figure.get_size_inches())==(10,5))
    assert stats.color_dim(0, ax=ax) is ax
    axs = stats.plot_layer_stats(1)
    np.testing.assert_allclose([o.lines[0].get_ydata() for o in axs], stats.stats[:,1,:3].T)
    assert list(axs[0].lines[0].get_xdata())==[0,2] and axs[0].figure.get_suptitle()=='layer 1: BatchNorm1d'
    n = len(stats.modules)
    assert stats.plot_layer_stats(-1)[0].figure.get_suptitle().startswith(f'layer {n-1}: ')
    plt.close('all')

def test_errors_of_statistics():
    stats = ActivationStats()
    with pytest.raises(ValueError, match='`ActivationStats` has seen no training batch yet'): stats.layer_stats(0)
    synth_learner(cbs=stats).fit(1)
    with pytest.raises(IndexError, match='no layer 1, but 1 of them: 0 to 0'): stats.layer_stats(1)
    for i in ('a', slice(1), 1.):
        with pytest.raises(TypeError, match='A layer is known by its position in `modules`, 0 to 0, but got'):
            stats.layer_stats(i)
    with pytest.raises(ValueError, match=r'No histograms were kept: `ActivationStats\(with_hist=True\)` keeps them'):
        stats.hist(0)

# Layers that are made, or get their shape, when the model sees its first batch
class Late(nn.Module):
    "Makes its body from the first batch"
    def __init__(self): super().__init__(); self.body,self.head = nn.Module(),nn.Linear(5, 3)
    def forward(self, x):
        if not hasattr(self.body, 'lin'): self.body.lin = nn.Linear(x.shape[1], 5)
        return self.head(self.body.lin(x))

def late(model, *cbs, n_epoch=2):
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 4, generator=gen), torch.randint(3, (8,), generator=gen)) for _ in range(3)]
    torch.manual_seed(0)
    return Learner(DataLoaders(data, device='cpu'), model, nn.CrossEntropyLoss(), opt_func=SGD, lr=0.,
        cbs=cbs).remove_cb(ProgressCallback).fit(n_epoch)

@pytest.mark.parametrize('with_hist', [False, True])
def test_layers_that_are_made_late_are_listened_to(with_hist):
    stats,seen = ActivationStats(with_hist=with_hist),[]
    class Keeper(HookCallback):
        order = 100
        def hook(self, m, inp, out): seen.append(type(m).__name__+str(tuple(m.weight.shape)))
    learn = late(Late(), stats, Keeper())
    assert (seen==['Linear(3, 5)', *['Linear(5, 4)','Linear(3, 5)']*5]
        and stats.modules==[learn.model.body.lin, learn.model.head])
    assert stats.stats.shape==(6, 2, 43 if with_hist else 3)
    assert stats.stats[0,0].isnan().all() and not stats.stats[0,1].isnan().any() and not stats.stats[1:].isnan().any()
    # a rate of 0: weights are as they were
    with torch.no_grad(): out = [learn.model.body.lin(x) for x,_ in learn.dls.train]*2
    assert torch.allclose(stats.layer_stats(0).mean[1:], torch.stack(out).mean((1,2))[1:], atol=1e-6)
    assert torch.allclose(stats.layer_stats(1).std, torch.stack([learn.model.head(o).detach().std() for o in out]),
        atol=1e-6)

def test_layers_of_which_none_is_there_at_first():
    class Bare(nn.Module):
        def __init__(self): super().__init__(); self.scale,self.body = nn.Parameter(torch.ones(())),nn.Module()
        def forward(self, x):
            if not hasattr(self.body, 'lin'): self.body.lin = nn.Linear(x.shape[1], 3)
            return self.body.lin(x)*self.scale
    stats = ActivationStats()
    late(Bare(), stats)
    assert stats.stats.shape==(5,1,3) and stats.batches==[1,2,3,4,5] and not stats.stats.isnan().any()

def test_a_lazy_model_can_be_counted_and_shown():
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1))
    assert total_params(model)==(9, True) and 'Sequential with 9 parameters' in repr(synth_learner(model=model))

def test_lazy_layers():
    stats = ActivationStats(include_paramless=True)
    late(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)), stats)
    assert (stats.stats.shape==(6,3,3) and not stats.stats.isnan().any()
        and [type(o) for o in stats.modules]==[nn.Linear, nn.ReLU, nn.Linear])
    summary = late(nn.Sequential(nn.LazyLinear(5)), n_epoch=1).summary()
    assert [o.params for o in summary.layers]==[25]

def test_layers_that_come_and_go():
    class Swaps(nn.Module):
        def __init__(self): super().__init__(); self.a,self.b,self.n = nn.Linear(4, 3),nn.Linear(4, 3),0
        def forward(self, x):
            self.n += 1
            if self.n==3: self.b = nn.Linear(4, 3)
            return self.a(x)+self.b(x)
    stats = ActivationStats()
    learn = late(Swaps(), stats)
    assert stats.modules==[learn.model.a, learn.model.b] and stats.stats.shape==(6,2,3)
    # of what is there now
    assert not stats.stats[:,0].isnan().any() and stats.stats[:,1,0].isnan().tolist()==[True]*3+[False]*3

def test_layers_are_chosen_by_fastais_name():
    stats = ActivationStats(with_hist=True)
    late(nn.Sequential(nn.Linear(4, 3)), stats)
    assert (torch.equal(stats.layer_stats(idx=0).mean, stats.layer_stats(0).mean)
        and torch.equal(stats.hist(idx=0), stats.hist(0)))
    with pytest.raises(TypeError, match='`ActivationStats.hist` has no argument `index`. Did you mean `idx`'):
        stats.hist(index=0)

def test_a_layer_whose_weights_are_computed_is_a_layer():
    from torch.nn.utils.parametrizations import spectral_norm,weight_norm
    m = nn.Sequential(weight_norm(nn.Linear(4, 8)), nn.ReLU(), spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3))
    assert flatten_model(m)==[*m] and flatten_model(m[0])==[m[0]]
    batches = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(2)]
    stats = ActivationStats()
    Learner(DataLoaders(batches, device='cpu'), m, nn.MSELoss()).remove_cb(ProgressCallback).fit(1, cbs=stats)
    assert stats.modules==[m[0],m[2],m[3]]

def test_outputs_of_the_last_piece_are_told_once():
    with pytest.warns(UserWarning, match='`activation_stats` has the outputs of the last piece of each batch') as found:
        synth_learner(4, model=nn.Linear(1, 1), cbs=[ActivationStats(), MicroBatch(4)]).fit(1)
    assert len([o for o in found if 'last piece' in str(o.message)])==1

@pytest.mark.parametrize('own', [[1], {'a': 1}, 3, torch.ones(2)], ids=['list', 'dict', 'number', 'tensor'])
def test_a_module_may_call_anything_its_hooks(own, tmp_path):
    "transformers keeps the handles of hooks in a list"
    learn,calls = synth_learner(model=mlp(), path=tmp_path),[]
    learn.model.register_forward_hook(lambda *args: calls.append(1))
    learn.model[0].my_hooks = own
    learn.fit(1)
    n = len(calls)
    learn.get_preds()
    learn.summary()
    learn.export('model.pkl')
    assert n and len(calls)>n and learn.model[0].my_hooks is own

# Outputs that are no plain real tensors
class Returns(nn.Module):
    "Returns `f` of its input, times a parameter"
    def __init__(self, f): super().__init__(); self.f,self.p = f,nn.Parameter(torch.ones(()))
    def forward(self, x): return self.f(x*self.p)

def test_statistics_of_complex_outputs_are_those_of_torch():
    gen = torch.Generator().manual_seed(0)
    o = torch.complex(torch.randn(50, 6, generator=gen)+.5, 3*torch.randn(50, 6, generator=gen))
    o[0] = .01j
    res = output_stats(o, .05, 10, 10.)
    torch.testing.assert_close(res[:3], torch.stack([o.mean().abs(), o.std(), (o.abs()<=.05).float().mean()]))
    torch.testing.assert_close(res[3:], o.abs().clamp(0, 10).histc(10, 0, 10))

@pytest.mark.parametrize('layout', [torch.strided, torch.jagged])
def test_statistics_of_nested_outputs_are_those_of_their_values(layout):
    parts = [torch.arange(6.).view(3, 2), torch.tensor([[9.,-4.]])]
    res = output_stats(torch.nested.nested_tensor(parts, layout=layout), .05, 4, 10.)
    torch.testing.assert_close(res, output_stats(torch.cat(parts), .05, 4, 10.))

@pytest.mark.parametrize('to_sparse', [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_outputs_have_no_statistics(to_sparse):
    class Dense(nn.Module):
        def forward(self, x): return x.to_dense()
    model = nn.Sequential(Returns(to_sparse), Dense(), nn.Linear(3,1))
    stats = ActivationStats(modules=[model[0], model[2]], with_hist=True)
    data = [(torch.randn(4,3), torch.randn(4,1)) for _ in range(2)]
    Learner(DataLoaders(data, device='cpu'), model, nn.MSELoss(), opt_func=SGD).fit(1, cbs=stats)
    assert stats.stats[:,0].isnan().all() and not stats.stats[:,1].isnan().any()

def test_a_copy_on_the_cpu_stays_what_the_layer_has_returned():
    "Also where it was on the CPU: a ReLU after a norm often works in place"
    m,x = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(inplace=True)).eval(),torch.randn(8, 3)
    with torch.no_grad():
        expected = m[0](x)
        with hook_output(m[0], cpu=True) as h: m(x)
    assert torch.equal(h.stored, expected) and h.stored.min()<0
