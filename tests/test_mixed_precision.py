"Half precision inside the batch and nowhere else; true gradients for everybody; nothing leaks, however a batch ends"
import pytest, torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

class Net(nn.Module):
    "Notes the types that its forward sees"
    def __init__(self):
        super().__init__()
        self.a,self.b = nn.Linear(4, 8),nn.Linear(8, 1)
        self.seen.clear()
    seen = set() # of the class: inference puts back what a model holds
    def forward(self, x):
        h = self.a(x)
        self.seen.add((self.training, h.dtype))
        return self.b(F.relu(h))

def bs(n=6, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 4, generator=gen), torch.randn(8, 1, generator=gen)) for _ in range(n)]

def mk(mode=None, n=6, model=None, lr=.05, **kwargs):
    torch.manual_seed(0)
    amp = {k:kwargs.pop(k) for k in ('init_scale','growth_factor','backoff_factor','growth_interval') if k in kwargs}
    learn = Learner(DataLoaders(bs(n), bs(2, 1), device='cpu'), model or Net(),
        **dict(loss_func=F.mse_loss, opt_func=SGD, lr=lr)|kwargs).remove_cb(ProgressCallback)
    return learn.to_fp16(**amp) if mode=='fp16' else learn.to_bf16() if mode=='bf16' else learn

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b))
def close(a, b, tol): return all(torch.allclose(x, y, rtol=tol, atol=tol) for x,y in zip(a, b, strict=True))
def leaked(): return torch.is_autocast_enabled('cpu') or torch.mm(torch.ones(2,2), torch.ones(2,2)).dtype!=torch.float32

@pytest.fixture(autouse=True)
def no_leak():
    assert not leaked()
    yield
    assert not leaked()

modes = pytest.mark.parametrize('mode', ['bf16','fp16'])
half = dict(bf16=torch.bfloat16, fp16=torch.float16)

# Inside
@modes
def test_forward_is_half_and_weights_are_not(mode):
    seen = []
    class Look(Callback):
        order = 100
        def after_pred(self): seen.append(self.pred.dtype)
        def after_loss(self): seen.append(self.loss.dtype)
        def before_step(self): seen.extend(p.grad.dtype for p in self.model.parameters())
    learn = mk(mode, cbs=Look()).fit(1)
    assert (learn.model.seen=={(True,half[mode]), (False,half[mode])} and {*seen}=={torch.float32}
        and {p.dtype for p in learn.model.parameters()}=={torch.float32})

@modes
def test_validation_and_predictions_are_half_too(mode):
    learn = mk(mode).fit(1)
    for look in (learn.validate, learn.get_preds, lambda: learn.predict(torch.ones(4)), learn.tta):
        learn.model.seen.clear(); look()
        assert learn.model.seen=={(False,half[mode])}
    assert learn.get_preds()[0].dtype==torch.float32
    learn.to_fp32().model.seen.clear(); learn.fit(1)
    assert {o for _,o in learn.model.seen}=={torch.float32}

@modes
def test_the_loss_is_computed_under_autocast(mode):
    seen = []
    def loss(pred, y): seen.append((pred.dtype, torch.mm(y.T, y).dtype)); return F.mse_loss(pred, y)
    loss.n_items = len # or what it averages over is asked for
    mk(mode, loss_func=loss).fit(1)
    assert {*seen}=={(torch.float32,half[mode])}

@modes
@pytest.mark.parametrize('wrap', [lambda o: dict(pred=o, more=[o]), lambda o: (o, o), lambda o: [o]],
    ids=['dict','tuple','list'])
def test_structured_predictions_are_floats(mode, wrap):
    class Wraps(Net):
        def forward(self, x): return wrap(super().forward(x))
    seen = []
    def first(o):
        return o if isinstance(o, torch.Tensor) else first(next(iter(o.values() if isinstance(o, dict) else o)))
    def loss(pred, y): seen.append((type(pred), first(pred).dtype)); return F.mse_loss(first(pred), y)
    mk(mode, model=Wraps(), loss_func=loss).fit(1)
    assert {*seen}=={(type(wrap(0)),torch.float32)}

@modes
@pytest.mark.parametrize('opt_func', [SGD, Adam])
def test_close_to_full_precision(mode, opt_func):
    a,b = mk(opt_func=opt_func, lr=.02).fit(4),mk(mode, opt_func=opt_func, lr=.02).fit(4)
    assert (a.recorder.losses==pytest.approx(b.recorder.losses, rel=.03)
        and a.recorder['valid_loss']==pytest.approx(b.recorder['valid_loss'], rel=.03))
    assert a.recorder.losses!=b.recorder.losses and b.opt_step==24

def test_full_precision_is_untouched_by_having_been_half():
    a,b = mk(),mk('bf16').to_fp32()
    assert same(weights(a.fit(1).model), weights(b.fit(1).model)) and a.recorder.losses==b.recorder.losses

# True gradients
def by_hand(dtype, scale, n=6):
    "Scaled and unscaled by powers of two, so exactly what it is without"
    torch.manual_seed(0)
    model = Net()
    opt,grads = torch.optim.SGD(model.parameters(), lr=.05),[]
    for x,y in bs(n):
        with torch.autocast('cpu', dtype=dtype): loss = F.mse_loss(model(x).float(), y)
        (loss*scale).backward()
        for p in model.parameters(): p.grad /= scale
        grads.append([p.grad.clone() for p in model.parameters()])
        opt.step(); opt.zero_grad()
    return weights(model),grads

@pytest.mark.parametrize('mode,scale', [('bf16', 1), ('fp16', 2.**16), ('fp16', 2.**7)])
def test_same_as_by_hand(mode, scale):
    kwargs = dict(init_scale=scale) if mode=='fp16' else {}
    assert close(weights(mk(mode, **kwargs).fit(1).model), by_hand(half[mode], scale)[0], 1e-6)

@modes
@pytest.mark.parametrize('order', [-1000, 0, 9, 10, 11, 1000])
def test_gradients_are_true_for_callbacks_of_any_order(mode, order):
    seen = []
    class Look(Callback):
        def before_step(self): seen.append([p.grad.clone() for p in self.model.parameters()])
        def after_step(self): seen.append([p.grad.clone() for p in self.model.parameters()])
    cb = Look(); cb.order = order
    mk(mode, cbs=cb).fit(1)
    grads = by_hand(half[mode], 2.**16 if mode=='fp16' else 1)[1]
    assert len(seen)==12 and all(close(a, b, 1e-5) for a,b in zip(seen, [g for g in grads for _ in range(2)]))

@pytest.mark.parametrize('order', [5, 15])
def test_clipping_works(order):
    class Clip(Callback):
        def before_step(self): nn.utils.clip_grad_norm_(self.model.parameters(), .1)
    a,b = Clip(),Clip()
    a.order = b.order = order
    assert close(weights(mk(cbs=a).fit(1).model), weights(mk('fp16', cbs=b).fit(1).model), 1e-3)

def test_the_logged_loss_is_not_scaled():
    seen = []
    learn = mk('fp16', cbs=Callback(
        before_backward=lambda self: seen.append((self.loss.item(), self.loss_grad.item())))).fit(1)
    assert learn.recorder.raw_losses==pytest.approx([o[0] for o in seen]) and max(learn.recorder.raw_losses)<10

# Overflow
class Spike(Callback):
    "A loss whose gradient overflows, in some batches"
    order = 20
    def __init__(self, *at): self.at = at
    def after_loss(self):
        if self.training and self.train_iter in self.at: self.learn.loss_grad = self.loss*1e38*10
def scale(learn): return learn.mixed_precision.scaler.get_scale()

def test_overflow_cancels_the_step_and_halves_the_scale():
    trace,w = Trace('before_step','after_cancel_step','after_step','after_zero_grad'),[]
    learn = mk('fp16', init_scale=1024.,
        cbs=[Spike(1, 3), trace, Callback(before_batch=lambda self: w.append(weights(self.model)))]).fit(1)
    assert scale(learn)==256. and learn.opt_step==4 and learn.train_iter==6
    assert learn.stop_reason is None # only steps were skipped
    assert trace.seen.count('after_cancel_step')==2 and trace.seen.count('after_step')==6
    assert [same(a, b) for a,b in zip(w[:5], w[1:6])]==[False, True, False, True, False]
    assert all(p.isfinite().all() for p in learn.model.parameters())

@pytest.mark.parametrize('interval', [1, 2, 4])
def test_the_scale_grows(interval):
    learn = mk('fp16', init_scale=16., growth_factor=4., growth_interval=interval).fit(1)
    assert scale(learn)==16*4**(6//interval)

def test_growth_counts_steps_since_the_last_overflow():
    # two steps, overflow, three steps
    learn = mk('fp16', init_scale=16., backoff_factor=.25, growth_interval=3, cbs=Spike(2)).fit(1)
    assert scale(learn)==16*.25*2

def test_a_scale_too_high_comes_down():
    learn = mk('fp16', n=40, init_scale=2.**40).fit(1)
    assert 5<learn.opt_step<35 and scale(learn)==2.**(40-(40-learn.opt_step)) # halved as often as no step was taken

def test_bf16_scales_nothing():
    same_loss = []
    learn = mk('bf16', cbs=Callback(
        before_backward=lambda self: same_loss.append(self.loss_grad.item()==self.loss.item()))).fit(1)
    assert same_loss==[True]*6 and learn.mixed_precision.scaler is None

# However a batch ends
in_batch = ['before_batch','after_pred','after_loss','before_backward','after_backward','before_step','after_step',
    'before_zero_grad','after_zero_grad','after_batch']
endings = [*cancels.values(), ValueError, KeyboardInterrupt]

@pytest.mark.sample(8)
@pytest.mark.parametrize('order', [5, 15])
@pytest.mark.parametrize('exc', endings, ids=lambda o: o.__name__)
@pytest.mark.parametrize('ev', in_batch)
@modes
def test_nothing_leaks(mode, ev, exc, order):
    cb = Raise(ev, exc, 2, order=order)
    learn = mk(mode, cbs=cb)
    outside = Callback(cleanup_train=lambda self: self.learn.state.update(leak=leaked()),
        before_draw=lambda self: self.learn.state.update(leak=leaked()))
    try: learn.fit(1, cbs=outside)
    except (ValueError, KeyboardInterrupt, RuntimeError) as e: assert type(e) is exc or type(e.__cause__) is exc
    assert (not leaked() and not learn.state.leak and cb.count>=2
        and all(p.grad is None for p in learn.model.parameters()))
    learn.remove_cb(cb).model.seen.clear()
    learn.fit(1) # as if nothing had been
    assert (learn.opt_step==6 and learn.model.seen=={(True,half[mode]), (False,half[mode])}
        and all(p.isfinite().all() for p in learn.model.parameters()))

@modes
@pytest.mark.parametrize('where', ['model','loss'])
@pytest.mark.parametrize('training', [True, False])
def test_errors_of_model_and_loss_leak_nothing(mode, where, training):
    class Bad(Net):
        def forward(self, x):
            if where=='model' and self.training==training: raise ZeroDivisionError
            return super().forward(x)
    def loss(pred, y):
        if where=='loss' and learn.training==training: raise ZeroDivisionError
        return F.mse_loss(pred, y)
    learn = mk(mode, model=Bad(), loss_func=loss)
    with pytest.raises(ZeroDivisionError): learn.fit(1)
    assert not leaked()

@modes
@pytest.mark.parametrize('ev', in_batch)
def test_a_look_inside_a_batch_leaves_it_as_it_is(mode, ev):
    class Look(Callback):
        run_valid,order = False,20
        def look(self):
            before = torch.is_autocast_enabled('cpu'),torch.get_autocast_dtype('cpu')
            self.learn.validate(); self.learn.get_preds()
            assert (torch.is_autocast_enabled('cpu'),torch.get_autocast_dtype('cpu'))==before
    look = Look(); look._fns = {ev: Look.look}
    a,b = mk(mode).fit(2),mk(mode, cbs=look).fit(2)
    assert same(weights(a.model), weights(b.model)) and a.recorder.losses==b.recorder.losses
    if mode=='fp16': assert scale(a)==scale(b)

@modes
@pytest.mark.parametrize('exc', [ValueError, CancelValidException, CancelBatchException, CancelFitException])
def test_a_look_that_fails_inside_a_batch(mode, exc):
    class Look(Callback):
        run_valid,order = False,20
        def after_pred(self):
            try: self.learn.validate(cbs=Raise('after_pred', exc))
            except ValueError: pass
            assert torch.is_autocast_enabled('cpu')
    learn = mk(mode, cbs=Look()).fit(1)
    assert not leaked() and learn.opt_step==(0 if exc is CancelFitException else 6)

@modes
def test_autocast_around_the_fit_is_left_as_it_is(mode):
    with torch.autocast('cpu', dtype=torch.bfloat16):
        mk(mode).fit(1)
        assert torch.is_autocast_enabled('cpu') and torch.get_autocast_dtype('cpu')==torch.bfloat16

# Inside of another autocast, which keeps weights that it has cast
def around(enabled=True): return torch.autocast('cpu', dtype=torch.bfloat16, enabled=enabled)
@pytest.mark.parametrize('mode,enabled', [(None,True), ('bf16',True), ('bf16',False)])
def test_a_fit_within_autocast_trains_on_the_weights_of_the_moment(mode, enabled):
    whole = mk('bf16').fit(2)
    with around(enabled):
        learn = mk(mode)
        learn.model(bs()[0][0]) # which casts them
        learn.fit(2)
        assert close(weights(learn.model), weights(whole.model), 1e-6)
        assert torch.is_autocast_cache_enabled() and torch.is_autocast_enabled('cpu')==enabled
        after = learn.model(bs()[0][0])
    with around(enabled): assert torch.equal(learn.model(bs()[0][0]), after)
    assert learn.recorder.losses==pytest.approx(whole.recorder.losses, abs=1e-6)

def test_a_fit_that_fails_within_autocast_leaves_it_as_it_is():
    with around():
        with pytest.raises(ZeroDivisionError): mk(cbs=Raise('after_loss', ZeroDivisionError)).fit(1)
        assert torch.is_autocast_cache_enabled()

def test_inference_within_autocast_is_with_the_weights_of_the_moment():
    learn = mk()
    with around(): right = learn.validate()
    with torch.no_grad():
        for p in learn.model.parameters(): p.mul_(3)
    with around():
        learn.validate()
        learn.model(bs()[0][0]) # which casts the weights once more
        with torch.no_grad():
            for p in learn.model.parameters(): p.div_(3)
        assert learn.validate()==pytest.approx(right)

@pytest.mark.parametrize('mode', [None,'bf16'])
@pytest.mark.parametrize('ev', ['before_batch','after_pred','after_loss'])
def test_another_learner_trains_in_a_batch_with_mixed_precision(mode, ev):
    inner,whole = mk(mode),mk('bf16').fit(2)
    class Trains(Callback):
        run_valid,order = False,MixedPrecision.order+(ev!='after_loss')
        def train(self):
            if self.learn.train_iter==1: inner.fit(2)
    cb = Trains()
    cb._fns = {ev: Trains.train}
    a = mk('bf16', cbs=cb).fit(2)
    assert close(weights(inner.model), weights(whole.model), 1e-6)
    assert close(weights(a.model), weights(whole.model), 1e-6)

# Accumulation by hand
class Tokens(torch.utils.data.Dataset):
    "Long rows, each of which has many targets"
    def __len__(self): return 32
    def __getitem__(self, i): return torch.arange(i, i+256)%50,torch.arange(i+1, i+257)%50

@pytest.mark.parametrize('bs,cbs', [(4, lambda: GradientAccumulation(16)), (16, lambda: MicroBatch(4))],
    ids=['accumulated','in_pieces'])
def test_long_rows_overflow_no_sooner_in_parts_than_at_once(bs, cbs):
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    nn.init.normal_(model[1].weight, std=20.)
    dls = DataLoaders.from_dsets(Tokens(), bs=bs, device='cpu')
    learn = Learner(dls, model, CrossEntropyLossFlat(), opt_func=torch.optim.SGD, lr=1e-3, cbs=cbs()).to_fp16()
    with learn.no_logging(): learn.fit(1)
    assert learn.opt_step==2 and scale(learn)==2.**16

def test_a_first_batch_of_few_targets_overflows_no_sooner():
    "One of its 16 rows has a target"
    torch.manual_seed(0)
    x,y = next(iter(torch.utils.data.DataLoader(Tokens(), 16)))
    few = torch.full_like(y, -100)
    few[0,0] = y[0,0]
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    learn = Learner(DataLoaders([(x, few), (x, y)], device='cpu'), model, CrossEntropyLossFlat(),
        opt_func=torch.optim.SGD, lr=1e-3, cbs=GradientAccumulation(32)).to_fp16(init_scale=2.**11)
    with learn.no_logging(): learn.fit(2)
    assert learn.opt_step==2 and scale(learn)==2.**11

class Accumulate(Callback):
    def __init__(self, n, order): self.n,self.order = n,order
    def after_loss(self):
        if self.training: self.learn.loss_grad = self.loss_grad/self.n
    def before_step(self):
        if (self.train_iter+1)%self.n: raise CancelBatchException

class KeepGradients(Accumulate):
    "Cancels the step, and goes past `zero_grad`"
    def before_step(self):
        if (self.train_iter+1)%self.n: raise CancelStepException
    def before_zero_grad(self):
        if (self.train_iter+1)%self.n: raise CancelBatchException

@pytest.mark.parametrize('order', [5, 15])
@pytest.mark.parametrize('n', [2, 3, 4])
@pytest.mark.parametrize('how', [Accumulate, KeepGradients])
def test_accumulation_by_hand(order, n, how):
    "Also where gradients wait from one epoch to the next"
    a,b = (mk(m, cbs=how(n, order)).fit(2) for m in (None, 'fp16'))
    assert (a.opt_step==b.opt_step==2*6//n and close(weights(a.model), weights(b.model), 2e-3)
        and a.recorder.losses==pytest.approx(b.recorder.losses, rel=.01))

@pytest.mark.parametrize('order', [5, 15])
def test_accumulated_gradients_are_the_sum(order):
    "To rounding: scales are powers of two"
    grads = []
    class Look(Accumulate):
        def before_step(self):
            grads.append([p.grad.clone() for p in self.model.parameters()])
            super().before_step()
    mk('fp16', n=3, cbs=Look(3, order), lr=0.).fit(1)
    torch.manual_seed(0)
    model,expected = Net(),[]
    for x,y in bs(3):
        with torch.autocast('cpu', dtype=torch.float16): loss = F.mse_loss(model(x).float(), y)/3
        (loss*2**16).backward()
        expected.append([p.grad.clone()/2**16 for p in model.parameters()])
    assert all(close(a, b, 1e-5) for a,b in zip(grads, expected, strict=True))

@pytest.mark.parametrize('order', [5, 15])
def test_overflow_while_accumulating(order):
    "Its batch is dropped"
    learn = mk('fp16', init_scale=1024., cbs=[Accumulate(2, order), Spike(0)]).fit(1)
    assert learn.opt_step==3 and scale(learn)==512. and all(p.isfinite().all() for p in learn.model.parameters())

@pytest.mark.parametrize('always', [True, False])
@pytest.mark.parametrize('order', [5, 15])
@pytest.mark.parametrize('scope', ['backward','step'])
def test_cancelled_backwards_and_steps(scope, order, always):
    def cancel(self):
        if always or self.train_iter%2: raise cancels[scope]
    cb = Callback(**{f'before_{scope}': cancel})
    cb.order = order
    learn = mk('fp16', init_scale=1024., cbs=cb)
    before = weights(learn.model)
    learn.fit(1)
    assert learn.opt_step==(0 if always else 3) and same(before, weights(learn.model))==always and scale(learn)==1024.

# Its life
def test_the_scaler_survives_between_fits_and_is_new_with_to_fp16():
    # overflow, five steps: one growth, one step towards the next
    learn = mk('fp16', init_scale=1024., growth_interval=4, cbs=Spike(0)).fit(1)
    assert scale(learn)==1024. and learn.mixed_precision.scaler.state_dict()['_growth_tracker']==1
    learn.remove_cb(Spike)
    learn.validate(); learn.get_preds()
    assert learn.mixed_precision.scaler.state_dict()['_growth_tracker']==1
    learn.fit(1)
    assert scale(learn)==2048. and learn.mixed_precision.scaler.state_dict()['_growth_tracker']==3
    assert scale(learn.to_fp16(init_scale=8.).fit(0))==8.

@pytest.mark.parametrize('end_lr', [1e-8, 10])
def test_lr_find_leaves_the_scaler_as_it_is(end_lr):
    learn = mk('fp16', init_scale=1024., growth_interval=4).fit(1)
    before = learn.mixed_precision.scaler.state_dict()
    learn.lr_find(num_it=9, start_lr=1e-9, end_lr=end_lr, show_plot=False, suggest_funcs=None)
    assert learn.mixed_precision.scaler.state_dict()==before

def test_a_temporary_one():
    cb = MixedPrecision('fp16', init_scale=8.)
    learn = mk().fit(1, cbs=cb)
    assert learn.model.seen=={(True,torch.float16), (False,torch.float16)}
    learn.model.seen.clear(); learn.fit(1)
    assert {o for _,o in learn.model.seen}=={torch.float32}

@pytest.mark.parametrize('to', ['fp16','bf16','fp32'])
def test_methods_do_not_stack(to):
    learn = mk()
    for o in (learn.to_fp16, learn.to_bf16, learn.to_fp16, getattr(learn, f'to_{to}'), getattr(learn, f'to_{to}')):
        assert o() is learn
    assert [o.amp_mode for o in learn.cbs if isinstance(o, MixedPrecision)]==([] if to=='fp32' else [to])
    assert hasattr(learn, 'mixed_precision')==(to!='fp32') and not hasattr(learn, 'mixed_precision_2')

@modes
def test_state_goes_to_another(mode):
    a,b = mk(mode, n=9, **(dict(init_scale=64., growth_interval=5) if mode=='fp16' else {})),mk(mode, n=9,
        **(dict(growth_interval=5) if mode=='fp16' else {}))
    a.fit(1)
    assert a.mixed_precision._stateattrs
    b.fit(0)
    b.mixed_precision.load_state_dict(a.mixed_precision.state_dict())
    if mode=='bf16': assert b.mixed_precision.scaler is None; return
    assert scale(b)==scale(a)==128. and b.mixed_precision.scaler.state_dict()==a.mixed_precision.scaler.state_dict()
    b.model.load_state_dict(a.model.state_dict())
    assert same(weights(a.fit(1).model), weights(b.fit(1).model)) and scale(a)==scale(b)==512.

def test_arguments():
    assert (MixedPrecision().amp_mode=='fp16' and MixedPrecision(AMPMode.BF16).amp_mode=='bf16'
        and MixedPrecision('bf16').amp_mode==AMPMode.BF16)
    for bad in ('fp8','bf 16','float16',None,16):
        with pytest.raises(ValueError, match='`amp_mode` is `fp16` or `bf16`, but got'): MixedPrecision(bad)
    with pytest.raises(TypeError, match='no argument `init_scal`.*`init_scale`'): mk().to_fp16(init_scal=3)

def test_a_device_without_it_is_told_before_training():
    trace = Trace('before_batch')
    learn = mk(cbs=trace)
    learn.dls.device = torch.device('meta')
    learn.to_bf16()
    with pytest.raises(ValueError, match='`bf16` is not available on `meta`'): learn.fit(1)
    assert not trace.seen

# Gradients that are no numbers
def test_a_scale_is_not_halved_for_ever():
    "The weights stay as they are, and the next fit begins with a new scale"
    learn = mk('fp16', n=60, loss_func=lambda pred, y: F.mse_loss(pred, y)*float('nan'))
    before = weights(learn.model)
    with pytest.raises(RuntimeError,
            match=r'Gradients overflow in fp16 even with the loss scaled down to 7.6e-06: they are too large, or not '
            r'numbers at all'):
        learn.fit(1)
    assert same(before, weights(learn.model)) and learn.iter==32 and learn.opt_step==0
    learn.loss_func = F.mse_loss
    assert (learn.fit(1).opt_step>50 and learn.mixed_precision.scaler.get_scale()>=2.**10
        and all(o.isfinite().all() for o in weights(learn.model)))

def test_a_few_overflows_are_survived():
    n = 0
    def loss(pred, y):
        nonlocal n
        n += pred.requires_grad
        return F.mse_loss(pred, y)*(float('inf') if pred.requires_grad and n<=30 else 1)
    learn = mk('fp16', n=40, loss_func=loss).fit(1)
    assert learn.opt_step==10 and learn.mixed_precision.scaler.get_scale()==2.**-14

@pytest.mark.parametrize('kwargs,exc,match',
    [(dict(init_scale=0), ValueError, '`init_scale` is above 0, but got 0'),
        (dict(init_scale=-1.), ValueError, '`init_scale` is above 0'),
        (dict(growth_factor=1.), ValueError, '`growth_factor` is above 1, but got 1'),
    (dict(backoff_factor=2), ValueError, r'`backoff_factor` is in \(0,1\), but got 2'),
    (dict(backoff_factor=0), ValueError, r'`backoff_factor` is in \(0,1\), but got 0'),
    (dict(growth_interval=0), ValueError, '`growth_interval` is 1 or more, but got 0'),
    (dict(init_scale='a'), TypeError, "`init_scale` is a number above 0, but got 'a'"),
    (dict(inti_scale=2.), TypeError, 'no argument `inti_scale`. Did you mean `init_scale`')])
def test_bad_scales(kwargs, exc, match):
    with pytest.raises(exc, match=match): mk().to_fp16(**kwargs)

def test_bf16_has_no_scale():
    with pytest.raises(TypeError, match='`to_bf16` has no argument `init_scale`'): mk().to_bf16(init_scale=2.)

# Optimizers that compute gradients by themselves
def lbfgs(ps, lr=.1): return torch.optim.LBFGS([p for g in ps for p in g['params']], lr=lr, max_iter=1)

@pytest.mark.parametrize('cb',
    [lambda: MixedPrecision('fp16'), lambda: MixedPrecision('bf16'), GradientClip, GradientAccumulation,
        lambda: MicroBatch(2), MixUp, CutMix], ids=['fp16','bf16','clip','accumulation','micro','mixup','cutmix'])
def test_closures_go_past_callbacks(cb):
    learn,trace = mk(opt_func=lbfgs),Trace('before_epoch')
    with pytest.raises(ValueError,
            match='`LBFGS` computes loss and gradients again within its step, without `.*`: use another optimizer'):
        learn.fit(1, cbs=[cb(), trace])
    assert not trace.seen and learn.fit(1, cbs=EMA()).opt_step==6 and len(learn.add_cb(cb()).validate())==1

@modes
def test_an_inference_before_it_has_set_up(mode):
    "Such as one in the `before_fit` of a callback that comes first"
    learn = mk(mode, 3)
    learn.on('before_fit')(lambda learn: learn.validate())
    assert same(weights(learn.fit(1).model), weights(mk(mode, 3).fit(1).model))

@modes
def test_switched_on_in_a_fit(mode):
    learn,cb = mk(None, 3),MixedPrecision(mode)
    cb.run = False
    learn.on('before_epoch')(lambda learn: setattr(cb, 'run', learn.epoch==1))
    learn.fit(2, cbs=cb)
    assert learn.model.seen>={(True, torch.float32), (True, half[mode])} and cb.autocast is None
