"Modes and states of layers in training and validation"
import copy
import pytest,torch
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
    with pytest.raises(TypeError, match='`model_resetter` calls `model.reset\\(\\)`, which `Linear` does not have'):
        synth_learner(model=nn.Linear(1, 1), cbs=ModelResetter).fit(1)

def test_a_buffer_with_nan_may_be_a_column_of_a_tensor():
    "NaN is compared by its bits, whatever the strides are"
    model = net()
    model.register_buffer('col', torch.full((3,2), torch.nan)[:,0])
    learn = mk(model=model, valid=cut(10)).fit(1)
    assert len(learn.get_preds()[0])==60 and model.col.isnan().all() and model.col.stride()==(2,)
