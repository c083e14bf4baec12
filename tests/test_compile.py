"""A compiled model is compiled and compared before the fit, computes what the plain one does, and says what was
compiled again"""
import copy,math,pickle,warnings
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from small_fits import X,Y,net,cut,gap,mk,weights,same

@pytest.fixture(autouse=True)
def fresh():
    "What other tests have compiled makes torch compile for all sizes"
    torch.compiler.reset()

class Counted:
    "A backend that counts what it compiles, and runs it as it is"
    def __init__(self): self.n = 0
    def __call__(self, gm, inputs): self.n += 1; return gm

class Noted(Callback):
    "Notes the count of a backend when the fit itself begins; a trial leaves it out"
    writes,order = True,500
    def __init__(self, backend): self.backend = backend
    def before_fit(self): self.at_start = self.backend.n

def loader(bs=10): return DataLoader(TensorDataset(X, Y), bs, shuffle=True)
def noisy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,8), nn.BatchNorm1d(8), nn.Dropout(.3), nn.Linear(8,2))

@pytest.mark.parametrize('more', [(), ('bf16',)], ids=['fp32','bf16'])
def test_nothing_is_compiled_once_the_fit_has_begun(more):
    backend = Counted()
    learn = mk(Compile(backend=backend), noted := Noted(backend), *map(MixedPrecision, more),
        data=DataLoaders(loader(), cut(30), device='cpu')).fit(2)
    assert noted.at_start==backend.n>0 and learn.compile.recompiled==[]
    learn.fit(1)
    assert noted.at_start==backend.n # nor in the next fit

def test_without_a_warm_up_the_first_batch_compiles():
    backend = Counted()
    mk(Compile(warm_up=False, backend=backend), noted := Noted(backend)).fit(1)
    assert noted.at_start==0<backend.n

@pytest.mark.parametrize('model', [net, noisy])
def test_the_warm_up_leaves_no_trace(model):
    "The same order of samples, dropout, running statistics, weights, history"
    def run(*cbs):
        torch.manual_seed(7)
        return mk(*cbs, data=DataLoaders(loader(), cut(30), device='cpu'), model=model(), metrics=accuracy).fit(3)
    plain,learn = run(),run(Compile(backend='eager'))
    assert all(torch.equal(a, b)
        for a,b in zip(plain.model.state_dict().values(), learn.model.state_dict().values(), strict=True))
    assert plain.recorder.raw_losses==learn.recorder.raw_losses and plain.recorder.values==learn.recorder.values
    assert learn.train_iter==plain.train_iter and 'forward' not in vars(learn.model)

def test_a_compiled_fit_resumes_exactly():
    def run(*cbs):
        torch.manual_seed(7)
        return mk(Compile(backend='eager'), *cbs, data=DataLoaders(loader(), device='cpu'), model=noisy())
    whole = run().fit(3)
    stop = on('after_step', once=8)(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))
    cut_short = run(stop).fit(3)
    assert cut_short.at is not None
    cut_short.resume()
    assert (same(weights(whole.model), weights(cut_short.model))
        and whole.recorder.raw_losses==cut_short.recorder.raw_losses)

@pytest.mark.parametrize('cb', [lambda: Checkpoint(2, 'iter'), lambda: Rewind(every=2), lambda: SpikeGuard(back=2)],
    ids=['checkpoint','rewind','spike guard'])
def test_the_compiled_forward_pass_is_no_state_that_is_lost(cb, tmp_path, recwarn):
    mk(Compile(backend='eager'), cb(), path=tmp_path).fit(1)
    assert not [o for o in recwarn if 'cannot be saved' in str(o.message)]

def test_the_gap_is_that_of_the_gradients():
    learn = mk(Compile(backend='eager')).fit(1)
    assert learn.compile.gap==0
    def half(gm, inputs): return lambda *args: tuple(o*1.01 for o in gm(*args))
    learn = mk(Compile(backend=half, tol=1)).fit(1)
    assert .001<learn.compile.gap<.1
    with pytest.raises(RuntimeError, match=r'gradients of one batch differ by 0\.0.* `tol` is 0.001'):
        mk(Compile(backend=half, tol=.001)).fit(1)
    learn = mk(Compile(backend='eager'), model=noisy()).fit(1)
    assert learn.compile.gap is None # of other dropouts

def test_a_refused_fit_changes_nothing():
    def zeros(gm, inputs): return lambda *args: tuple(o*0 for o in gm(*args))
    learn = mk(Compile(backend=zeros))
    before,rng = weights(learn.model),torch.get_rng_state()
    with pytest.raises(RuntimeError, match='computes something else'): learn.fit(1)
    assert (same(before, weights(learn.model)) and torch.equal(rng, torch.get_rng_state())
        and 'forward' not in vars(learn.model) and learn.mode is None)
    learn.remove_cb(learn.compile).fit(1)
    assert same(weights(learn.model), weights(mk().fit(1).model))

def test_what_is_compiled_again_is_named():
    learn = mk(Compile(backend='eager'), data=cut(25)) # 25, 25, 10
    with pytest.warns(UserWarning,
            match=r'compiled again during epoch 0, 1 times: .*expected 25, actual 10.*drop_last=True.*dynamic=True'):
        learn.fit(2)
    assert len(learn.compile.recompiled)==1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.validate(cut(7)) # inference is not warmed up, and not told
        assert len(learn.compile.recompiled)==1
        torch.compiler.reset()
        assert mk(Compile(backend='eager', dynamic=True), data=cut(25)).fit(2).compile.recompiled==[]

def test_what_is_compiled_again_after_unfreezing_is_not_blamed_on_sizes():
    learn = mk(splitter=lambda m: [[p] for p in m.parameters()])
    with pytest.warns(UserWarning, match='compiled again during epoch 1') as told:
        learn.fine_tune(2, cbs=Compile(backend='eager'))
    said, = [str(o.message) for o in told if 'compiled again' in str(o.message)]
    assert 'drop_last' not in said

def test_an_iterator_is_not_used_up():
    learn = mk(Compile(backend=(backend := Counted())), noted := Noted(backend), data=iter(cut(10))).fit(1)
    assert learn.train_iter==6 and noted.at_start==0
    valid = iter(cut(30))
    assert mk(Compile(backend='eager'), valid=valid).fit(1).results and next(valid, None) is None

def test_what_a_sampler_counts_is_not_moved():
    class Turns(torch.utils.data.Sampler):
        def __init__(self): self.passes = 0
        def __len__(self): return 60
        def __iter__(self): self.passes += 1; return iter([(i*7+self.passes)%60 for i in range(60)])
    def run(*cbs):
        return mk(*cbs, data=DataLoaders(DataLoader(TensorDataset(X, Y), 10, sampler=Turns()), device='cpu')).fit(2)
    assert same(weights(run().model), weights(run(Compile(backend='eager')).model))

def test_arguments():
    with pytest.raises(ValueError, match="`tol`"): Compile(tol=-1)

@pytest.mark.slow
def test_torchs_own_compiler():
    "Its dropout is another, unless it is told to draw like the plain model"
    mk(Compile(), model=noisy()).fit(1)
    learn = mk(Compile(options=dict(fallback_random=True)), model=noisy()).fit(1)
    assert (learn.compile.gap is None
        and torch.allclose(torch.cat([o.flatten() for o in weights(learn.model)]),
            torch.cat([o.flatten() for o in weights(mk(model=noisy()).fit(1).model)]), atol=1e-5))

# Model and loss as one program
def test_with_loss_is_one_program_that_computes_the_same():
    backend = Counted()
    learn = mk(Compile(with_loss=True, backend=backend), noted := Noted(backend), valid=cut(30)).fit(2)
    plain = mk(valid=cut(30)).fit(2)
    assert (same(weights(plain.model), weights(learn.model)) and plain.recorder.values==learn.recorder.values
        and learn.compile.gap==0)
    assert noted.at_start==backend.n==2 # for training and for validation
    assert learn.forward_with is None and learn.compile.whole is None

def test_callbacks_can_change_the_loss_of_a_whole_program():
    @on('after_loss')
    def double(learn): learn.loss_grad = learn.loss_grad*2
    learn,plain = mk(Compile(with_loss=True, backend='eager'), double).fit(1),mk(double).fit(1)
    assert same(weights(plain.model), weights(learn.model)) and plain.recorder.raw_losses==learn.recorder.raw_losses

def test_what_waits_between_model_and_loss_is_named():
    with pytest.warns(UserWarning, match='without its loss, because `mixed_precision` waits for `after_pred`'):
        learn = mk(Compile(with_loss=True, backend='eager'), MixedPrecision('bf16')).fit(1)
    assert same(weights(learn.model), weights(mk(MixedPrecision('bf16')).fit(1).model))
    with pytest.raises(ValueError, match='`learn.forward_with` is set already'):
        mk(Compile(with_loss=True, backend='eager'), MicroBatch(5)).fit(1)

def test_a_model_or_a_loss_that_is_replaced_in_the_fit_is_the_one_that_trains():
    class Replace(Callback):
        def before_epoch(self):
            learn = self.learn
            if learn.epoch==1: learn.loss_func = nn.CrossEntropyLoss(label_smoothing=.3)
            if learn.epoch==2: learn.model = net(); learn.create_opt()
    learn,plain = mk(Compile(with_loss=True, backend='eager'), Replace).fit(3),mk(Replace).fit(3)
    assert same(weights(plain.model), weights(learn.model)) and plain.recorder.raw_losses==learn.recorder.raw_losses
    assert not same(weights(learn.model), weights(net()))

def test_a_loss_of_the_models_own_is_compiled_with_it():
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(3, 1)
        def forward(self, x, y): return (self.lin(x)[:,0]-y).pow(2).mean()
    def data(): return DataLoaders(cut(10, Y.float()), device='cpu', n_inp=2)
    with pytest.raises(ValueError, match=r'`Compile\(with_loss=True\)` needs a `loss_func`'):
        mk(Compile(with_loss=True), data=data(), model=Own(), loss_func=None).fit(1)
    assert mk(Compile(backend='eager'), data=data(), model=Own(), loss_func=None).fit(1).compile.gap==0

def test_what_is_kept_of_a_batch_is_not_overwritten_by_the_next_one_as_cuda_graphs_do():
    "A loss of the model's own, which is read much later, and collected predictions"
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, labels):
            logits = self.net(x)
            return dict(loss=nn.functional.cross_entropy(logits, labels), logits=logits)
    returned = []
    def one_memory(gm, inputs, mode):
        def run(*args):
            for o in returned: o.data.fill_(math.nan)
            returned[:] = res = gm(*args)
            return tuple(res)
        return run
    def fit(*cbs):
        data = [dict(x=x, labels=y) for x,y in cut(10)]
        return mk(CollectDataCallback, *cbs, data=data, valid=data, model=Own(), loss_func=None).fit(2)
    plain,learn = fit(),fit(Compile(mode='reduce-overhead', backend=one_memory))
    assert learn.recorder.raw_losses==plain.recorder.raw_losses and learn.recorder.values==plain.recorder.values
    for (*_,pred,loss),(*_,p,l) in zip(learn.collect_data.data, plain.collect_data.data, strict=True):
        assert torch.equal(pred, p) and loss==l

@pytest.mark.parametrize('with_loss,pieces', [(False, ()), (True, ()), (False, [MicroBatch(4)])])
def test_gradients_that_wait_are_not_overwritten_by_the_next_batch_as_cuda_graphs_do(with_loss, pieces):
    made = []
    def backend(gm, inputs, mode):
        def run(*args):
            for g in made: g.data.fill_(math.nan)
            return tuple(gm(*args))
        return run
    class Lend(Callback):
        "Gradients lie in memory of the program"
        order,run_valid = -1000,False
        def after_backward(self): made[:] = [p.grad for p in self.learn.model.parameters()]
    def fit(*cbs):
        return mk(GradientAccumulation(20), *pieces, *cbs, data=cut(10), model=net()).fit(2)
    plain = fit()
    learn = fit(Lend, Compile(mode='reduce-overhead', backend=backend, with_loss=with_loss, warm_up=False))
    assert gap(weights(learn.model), weights(plain.model))<1e-6

def test_gradients_that_overflow_in_the_trial_of_fp16_are_not_compared():
    learn = mk(MixedPrecision('fp16', init_scale=2.**40), Compile(backend='eager'), model=net())
    assert learn.fit(1).compile.gap is None

def test_callbacks_that_wait_for_validation_losses_come_along():
    "The trial before the fit validates too"
    learn = mk(Compile(backend='eager'), EarlyStoppingCallback(patience=2), SaveModelCallback(fname=None),
        data=DataLoaders(loader(), cut(30), device='cpu')).fit(2)
    assert len(learn.recorder.rows)==2 and learn.compile.gap<1e-4

def test_a_backward_pass_that_is_cancelled_is_not_compared():
    learn = synth_learner(n_train=4, cbs=[Compile(backend='eager'), Raise('before_backward', CancelBackwardException)])
    learn.fit(1)
    assert learn.opt_step==3 and learn.compile.gap is None # the first batch took no step

@pytest.mark.parametrize('copied', [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=['copy','pickle'])
def test_a_copy_that_is_made_during_a_fit_computes_with_its_own_weights(copied):
    class Teacher(Callback):
        order = 1 # after `Compile`
        def before_fit(self): self.teacher = copied(self.learn.model)
    learn = mk(Compile(backend=(backend := Counted())), t := Teacher()).fit(1)
    n = backend.n
    with torch.no_grad():
        by_hand = [m[2](torch.tanh(m[0](X))) for m in (t.teacher, learn.model)]
        assert torch.allclose(t.teacher(X), by_hand[0]) and torch.allclose(learn.model(X), by_hand[1])
    assert not torch.allclose(*by_hand) and backend.n==n>0

def test_a_compiled_language_model_shows_that_its_targets_are_the_next_ones(recwarn):
    class Words(nn.Module):
        def __init__(self): super().__init__(); self.emb,self.head = nn.Embedding(11, 8),nn.Linear(8, 11)
        def forward(self, ids, labels):
            logits = self.head(self.emb(ids))
            loss = nn.functional.cross_entropy(logits[:,:-1].flatten(0, 1), labels[:,1:].flatten(), label_smoothing=.3)
            return dict(loss=loss, logits=logits)
    ids = torch.randint(0, 11, (8, 6), generator=torch.Generator().manual_seed(0))
    data = [dict(ids=ids, labels=ids)]
    learn = mk(Compile(backend='aot_eager', warm_up=False), data=DataLoaders(data, data, device='cpu'), model=Words(),
        loss_func=None, metrics=accuracy).fit(1)
    with torch.no_grad(): right = (learn.model(ids, ids)['logits'][:,:-1].argmax(-1)==ids[:,1:]).float().mean()
    assert learn.recorder[-1].accuracy==pytest.approx(right.item())
    assert not [o for o in recwarn if 'does not show' in str(o.message)]
