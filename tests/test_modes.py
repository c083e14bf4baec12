"Modes and states of layers in training and validation"
import copy,gc,warnings,weakref
import numpy as np,pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from small_fits import net,X,cut,sgd,mk,weights,same,gap,Recurrent,sequences

@pytest.mark.parametrize('what', ['affine','frozen','trained','sync'])
def test_bn_freeze(what):
    m = nn.Sequential(nn.Linear(3,4), nn.SyncBatchNorm(4) if what=='sync' else nn.BatchNorm1d(4, affine=what!='affine'),
        nn.Linear(4,2))
    if what in ('frozen','sync'): m[1].requires_grad_(False)
    mk(BnFreeze, model=m, valid=cut(30)).fit(2)
    assert torch.equal(m[1].running_mean, torch.zeros(4))==(what!='trained') and m[1].training

def test_model_resetter_and_rnn_callback():
    def hand():
        m = Recurrent()
        opt = sgd(m.parameters())
        for _ in range(2):
            m.h = None
            for x,y in sequences(): F.mse_loss(m(x)[0], y).backward(); opt.step(); opt.zero_grad()
        m.h,total = None,0
        with torch.no_grad():
            for x,y in sequences(2): total += F.mse_loss(m(x)[0], y).item()/2
        return weights(m),total
    kept = []
    note = Callback(after_batch=lambda cb: kept.append((cb.rnn.raw_out, cb.rnn.out)))
    learn = mk(ModelResetter, RNNCallback, note, data=sequences(), valid=sequences(2), model=Recurrent(),
        loss_func=F.mse_loss).fit(2)
    ws,total = hand()
    assert (gap(weights(learn.model), ws)<1e-6 and learn.recorder[-1,'valid_loss']==pytest.approx(total, rel=1e-5)
        and learn.model.h is None)
    assert all(torch.equal(raw*2, out) for raw,out in kept)
    assert learn.get_preds()[0].shape==(8,5,1)

@pytest.mark.parametrize('ev', ['before_train', 'after_pred', 'after_batch', 'before_batch'])
def test_validation_leaves_the_state_of_the_model(ev):
    def run(look):
        cb = on(getattr(event, ev), order=50)(lambda learn: learn.validate() if look and learn.training else None)
        return mk(ModelResetter, RNNCallback, cb, data=sequences(), valid=sequences(2), model=Recurrent(),
            loss_func=F.mse_loss).fit(2)
    a,b = run(False),run(True)
    assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses

@pytest.mark.parametrize('stop', [True, False])
def test_outputs_of_a_recurrent_model_go_with_their_batch(stop):
    "What is left of a fit holds no graph of a batch, and can be copied"
    learn = mk(RNNCallback, data=sequences(), model=Recurrent(), loss_func=F.mse_loss)
    learn.fit(1, cbs=[on(event.after_batch(once=3, unit='iter'))(lambda learn: learn.stop_soon())] if stop else None)
    assert learn.rnn.raw_out is None and learn.rnn.out is None
    child = copy.deepcopy(learn)
    for o in (learn, child): o.resume() if stop else o.fit(1)
    assert child.train_iter==6 and same(weights(child.model), weights(learn.model))

def test_a_validation_leaves_the_outputs_of_the_batch_that_trains():
    seen = []
    look = on(event.after_pred, order=50)(lambda learn: learn.validate() if learn.training else None)
    note = Callback(after_loss=lambda cb: seen.append((cb.rnn.raw_out*2).equal(cb.rnn.out)
        and cb.rnn.out.requires_grad==cb.training))
    mk(RNNCallback, look, note, data=sequences(), valid=sequences(2), model=Recurrent(), loss_func=F.mse_loss).fit(1)
    assert seen==[True]*len(seen)

def test_mc_dropout():
    class WordDropout(nn.Module):
        def __init__(self): super().__init__(); self.inner = nn.BatchNorm1d(3)
        def forward(self, x): return self.inner(x)*torch.rand(()) if self.training else self.inner(x)
    m = nn.Sequential(WordDropout(), nn.Linear(3,8), nn.Dropout(), nn.AlphaDropout(), nn.Dropout1d(), nn.Linear(8,2))
    learn = mk(MCDropoutCallback, model=m, valid=cut(30))
    modes = []
    learn.validate(cbs=on(event.before_batch)(lambda learn: modes.append([o.training for o in m.modules()])))
    assert modes[0]==[False, True, False, False, True, True, True, False] and all(o.training for o in m.modules())
    ps = [learn.get_preds(cbs=on(event.before_validate)(lambda learn,i=i: torch.manual_seed(i)))[0] for i in range(3)]
    assert not torch.equal(ps[0], ps[1]) and not torch.equal(ps[1], ps[2])

def test_mc_dropout_draws_anew_each_time():
    "And leaves no trace, like any evaluation: training continues as without it"
    def mk_(*cbs): return mk(*cbs, model=nn.Sequential(net(64), nn.Dropout(.5), nn.Linear(64,2)), valid=cut(30)).fit(1)
    learn,plain = mk_(),mk_()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for look in (lambda: learn.get_preds(cbs=MCDropoutCallback)[0],
            lambda: torch.tensor(learn.validate(cbs=MCDropoutCallback).valid_loss)):
        ps = torch.stack([look() for _ in range(200)])
        assert len({o.numpy().tobytes() for o in ps})==200 and torch.equal(torch.get_rng_state(), state)
        if ps.ndim>1: # as many draws by hand
            torch.manual_seed(1)
            with torch.no_grad(): own = torch.stack([learn.model.train()(X).softmax(1) for _ in range(200)])
            assert (torch.allclose(ps.std(0).mean(), own.std(0).mean(), rtol=.05)
                and torch.allclose(ps.mean((0,1)), own.mean((0,1)), atol=.03))
            torch.set_rng_state(state)
    assert same(weights(learn.fit(1).model), weights((torch.set_rng_state(state), plain.fit(1))[1].model))
    torch.manual_seed(3)
    a,b = (mk_().get_preds(cbs=MCDropoutCallback)[0] for _ in range(2))
    assert torch.equal(a, b) # a script gives the same again
    seen = []
    mk(on(event.after_epoch)(lambda learn: seen.extend(learn.get_preds(cbs=MCDropoutCallback)[0] for _ in range(3))),
        model=nn.Sequential(net(), nn.Dropout()), valid=cut(30)).fit(1)
    assert len({o.numpy().tobytes() for o in seen})==3

def test_reset_is_called_by_the_callback_alone(recwarn):
    "A `reset` may make new weights, as for the next fold of a cross-validation"
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(3, 2)
        def reset(self): self.l.reset_parameters()
        def forward(self, x): return self.l(x)
    learn = mk(model=(model := Net()), valid=cut(30))
    before = model.l.weight.clone()
    learn.fit(2, 0.); learn.validate(); learn.get_preds()
    assert torch.equal(model.l.weight, before) and not recwarn.list
    model = Recurrent()
    with pytest.warns(Mistake, match='The model keeps a state from batch to batch.*`cbs=ModelResetter`'):
        mk(RNNCallback, data=sequences(), valid=sequences(2), model=model, loss_func=F.mse_loss).fit(1)
    assert model.resets==0

def test_a_model_without_reset_is_named():
    with pytest.raises(TypeError, match='`model_resetter` calls `model.reset\\(\\)`, which `Linear` does not') as e:
        synth_learner(model=nn.Linear(1, 1), cbs=ModelResetter).fit(1)
    assert not any('cleanup_fit' in o for o in e.value.__notes__)

@pytest.mark.parametrize('n', [1, 2])
def test_a_model_that_returns_too_little_is_told_what_to_return(n):
    class Returns(nn.Linear):
        def forward(self, x): return (super().forward(x),)*n if n>1 else super().forward(x)
    with pytest.raises(TypeError, match='`rnn` is for a model that returns predictions, raw outputs, and outputs after '
        f"dropout, but it returned {'.' if n>1 else ''}<Tensor of shape"):
        synth_learner(model=Returns(1, 1), cbs=RNNCallback).fit(1)

def test_a_buffer_with_nan_may_be_a_column_of_a_tensor():
    "NaN is compared by its bits, whatever the strides are"
    model = net()
    model.register_buffer('col', torch.full((3,2), torch.nan)[:,0])
    learn = mk(model=model, valid=cut(10)).fit(1)
    assert len(learn.get_preds()[0])==60 and model.col.isnan().all() and model.col.stride()==(2,)

# What the batches of a validation leave in a model is put back when they are over
class Leaves(nn.Linear):
    "Leaves the largest input of its last batch, in many kinds of state"
    def __init__(self):
        super().__init__(2, 1)
        self.aux,self.cell,self.terms,self.by_name = 0.,torch.zeros(()),[],{}
        self.array,self.bytes = np.zeros(1),bytearray(1)
        for k in ('here','new'): self.register_buffer(k, torch.zeros(()))
        self.register_buffer('late', None)
    def forward(self, x):
        v = x.detach().max()
        self.aux = self.by_name['v'] = self.array[0] = v.item()
        for o in (self.cell, self.here): o.copy_(v)
        self.new,self.late = v.clone(),v.clone()
        self.terms.append(v.item())
        self.bytes[0] = int(v)
        return super().forward(x)
    def left(self):
        return [float(o) for o in (self.aux, self.cell, self.terms[-1], self.by_name['v'], self.array[0], self.bytes[0],
            self.here, self.new, self.late)]

def leaving(*cbs, valid=True, metrics=None):
    torch.manual_seed(0)
    train,held_out = ([(torch.full((3,2), v), torch.ones(3, 1)) for v in vs] for vs in ((1.,2.), (10.,20.)))
    return Learner(DataLoaders(train, held_out if valid else None, device='cpu'), Leaves(), nn.MSELoss(), lr=.01,
        metrics=metrics, default_cbs=False, cbs=[TrainEvalCallback, Recorder, *cbs])

def state_of(m): return {k:v.tolist() for k,v in m.state_dict().items()},m.left(),m.terms,m.training

@pytest.mark.parametrize('ev', ['before_validate','after_validate','cleanup_validate','after_epoch'])
def test_between_the_batches_of_validations_the_model_is_as_training_has_left_it(ev):
    seen,last,plain = [],[],leaving(valid=False)
    learn = leaving(Callback(**{ev: lambda self: seen.append(self.learn.model.left())},
        after_batch=lambda self: self.learn.training or last.append(self.learn.model.left())))
    for o in (learn, plain): o.fit(2)
    assert seen==[[2.]*9]*2 and last[1]==[20.]*9 and state_of(learn.model)==state_of(plain.model)

def test_what_a_callback_changes_after_a_validation_stays():
    class Changes(Callback):
        def after_validate(self):
            m = self.model
            m.aux,m.mine,m.by_name['mine'] = -1.,-2.,-3.
            m.terms.append(-4.)
            m.here.fill_(-5.)
            m.array[0],m.bytes[0] = -6.,7
    learn = leaving(Changes)
    learn.fit(1)
    m = learn.model
    assert m.left()==[-1., 2., -4., 2., -6., 7., -5., 2., 2.] and m.mine==-2. and m.by_name==dict(v=2., mine=-3.)
    assert m.terms==[1., 2., -4.]

@pytest.mark.parametrize('back', ['after_validate', 'cleanup_validate'])
def test_other_weights_for_a_validation(back):
    "Swapped in before it, and out again when it is over, buffers too"
    class Swaps(Callback):
        def before_validate(self):
            self.kept = copy.deepcopy(self.model.state_dict())
            for o in self.model.state_dict().values(): o.zero_()
    def put_back(self): self.learn.model.load_state_dict(self.kept)
    setattr(Swaps, back, put_back)
    learn,plain = leaving(Swaps),leaving(valid=False)
    for o in (learn, plain): o.fit(2)
    assert state_of(learn.model)==state_of(plain.model)
    assert learn.recorder.rows[-1]['valid_loss']==1. # of predictions that are 0

@pytest.mark.parametrize('ev', ['after_pred','after_batch','after_validate'])
@pytest.mark.parametrize('e', [CancelValidException, CancelFitException, RuntimeError, KeyboardInterrupt])
def test_however_a_validation_ends_the_model_is_as_training_has_left_it(ev, e):
    raised = []
    def ends(self):
        if self.learn.training or self.learn.epoch!=1 or raised: return
        raised.append(e)
        raise e
    if ev=='after_validate' and e is CancelValidException: pytest.skip("nothing is left to cancel")
    learn,plain = leaving(Callback(**{ev: ends})),leaving(valid=False)
    try: learn.fit(2)
    except (RuntimeError,KeyboardInterrupt): pass
    plain.fit(2)
    assert state_of(learn.model)[:3]==state_of(plain.model)[:3]
    if not issubclass(e, CancelException):
        learn.resume(cbs=[])
        assert state_of(learn.model)[:3]==state_of(plain.model)[:3]

def test_an_inference_when_a_validation_is_over_changes_nothing():
    class Looks(Callback):
        def after_validate(self):
            if self.learn.mode!='fit': return
            before = self.model.left()
            self.learn.validate()
            assert self.model.left()==before==[2.]*9
    learn,plain = leaving(Looks),leaving(valid=False)
    for o in (learn, plain): o.fit(2)
    assert state_of(learn.model)==state_of(plain.model)

# A mode that a callback changes in the middle of an epoch
class FreezeLate(Callback):
    "Puts the batch norm in evaluation mode after some batches, and perhaps back again"
    run_valid = False
    def __init__(self, until=99): self.until = until
    def before_batch(self):
        if self.iter==2: self.model[1].eval()
        if self.iter==self.until: self.model[1].train()

@pytest.mark.parametrize('n', [1, 3, 6, 8])
@pytest.mark.parametrize('how', ['stop','from a file'])
def test_a_mode_that_a_callback_has_set_is_missed_where_a_run_resumes(n, how, tmp_path):
    "Callbacks and you may set modes, so none is put back; a warning names what trains again"
    def begun():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return mk(FreezeLate(), model=model, valid=cut(30), path=tmp_path)
    def rest(resume):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            resume()
        return [o for o in seen if 'was in evaluation mode where the run was stopped' in str(o.message)]
    learn = begun()
    learn.fit(2, cbs=on(event.after_batch(once=n, unit='iter'))(lambda learn: learn.stop_soon()))
    learn.model.eval() # as to look at its predictions
    if how=='from a file':
        learn.save_state('stopped')
        learn = begun()
        told = rest(lambda: learn.fit(2, resume='stopped'))
    else: told = rest(learn.resume)
    assert len(told)==(n==3) and all('`model.1` was' in str(o.message) for o in told)

@pytest.mark.parametrize('exc', [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_between_two_modes_leaves_none_of_them(exc, recwarn):
    "A callback evaluates in the middle of an epoch, and fails"
    class Look(Callback):
        run_valid,fails = False,True
        def after_batch(self):
            if self.train_iter!=3: return
            self.model.eval()
            if self.fails: self.fails = False; raise exc
            self.model.train()
    modes = []
    learn = mk(Look, model=nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    note = Callback(after_pred=lambda cb: modes.append(cb.model[1].training))
    with pytest.raises(exc): learn.fit(2, cbs=note)
    learn.resume()
    assert all(modes) and not [o for o in recwarn if 'evaluation mode' in str(o.message)]

class Compares(nn.Module):
    "Compares features of a trained network, which is in evaluation mode; what else it has is not"
    def __init__(self):
        super().__init__()
        self.net,self.drop = nn.Sequential(nn.Linear(2,8), nn.BatchNorm1d(8)).eval().requires_grad_(False),nn.Dropout()
    def forward(self, p, y): return (self.net(p)-self.net(y)).pow(2).mean()

@pytest.mark.parametrize('ev,back', [('before_epoch',False), ('before_epoch',True), ('after_train',False)])
def test_a_loss_that_comes_in_a_fit_keeps_the_modes_in_which_it_came(ev, back):
    "Also one that goes and comes again; afterwards it has its modes"
    f,first,seen = Compares(),nn.MSELoss(),set()
    def switch(cb):
        if cb.epoch: cb.learn.loss_func = first if back and cb.epoch==2 else f
    def look(cb):
        if cb.loss_func is f: seen.add((cb.training, f.drop.training, f.net.training, f.net[1].training))
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(4)]
    learn = Learner(DataLoaders(batches, batches, device='cpu'), nn.Linear(3, 2), first, opt_func=sgd, lr=.1,
        cbs=[Callback(**{ev: switch}), Callback(after_loss=look)]).remove_cb(ProgressCallback)
    learn.fit(4)
    assert seen=={(True,True,False,False), (False,False,False,False)}
    assert not f.net[1].running_mean.any() and [o.training for o in (f, f.drop, f.net, first)]==[True,True,False,True]

def test_losses_that_a_fit_has_replaced_are_gone():
    "Also with what they hold: one may be made anew in each epoch"
    made = []
    def switch(cb):
        cb.learn.loss_func = Compares()
        made.append(weakref.ref(cb.loss_func))
    def count(cb): gc.collect(); assert sum(o() is not None for o in made)==1
    batches = [(torch.randn(4, 3), torch.randn(4, 2))]
    Learner(DataLoaders(batches, device='cpu'), nn.Linear(3, 2), nn.MSELoss(), opt_func=sgd, lr=.1,
        cbs=[Callback(before_epoch=switch), Callback(after_epoch=count)]).remove_cb(ProgressCallback).fit(4)
