"What a batch will need, against what one holds that is trained by hand"
import copy
import pytest,torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

class Block(nn.Module):
    "Attention, which saves what no other layer does"
    def __init__(self):
        super().__init__(); self.att,self.out = nn.MultiheadAttention(8, 2, batch_first=True),nn.Linear(8,5)
    def forward(self, x): x = x.flatten(2).mT; return self.out(self.att(x, x, x)[0].mean(1))

class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.head = nn.Sequential(nn.Flatten(), nn.Linear(8*36,64), nn.Tanh(), nn.Linear(64,64),
            nn.Tanh()),nn.Linear(64,5)
    def forward(self, x): return self.head(checkpoint(self.body, x, use_reentrant=False))

class Rnn(nn.Module):
    def __init__(self):
        super().__init__(); self.rnn,self.out = nn.LSTM(8, 12, 2, batch_first=True, dropout=.1),nn.Linear(12,5)
    def forward(self, x): return self.out(self.rnn(x.flatten(2).mT)[0][:,-1])

def conv():
    return nn.Sequential(nn.Conv2d(8,16,3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Dropout(.2),
        nn.Conv2d(16,8,3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8,5))
models = dict(conv=conv, attention=Block, checkpoint=Checkpointed, rnn=Rnn)
opts = dict(sgd=lambda ps,lr=.1: torch.optim.SGD(ps, lr),
    momentum=lambda ps,lr=.1: torch.optim.SGD(ps, lr, momentum=.9), adam=torch.optim.Adam,
    amsgrad=lambda ps,lr=.1: torch.optim.AdamW(ps, lr, amsgrad=True), adafactor=torch.optim.Adafactor)

def learner(model, bs=24, opt_func=torch.optim.Adam, **kwargs):
    torch.manual_seed(0)
    ds = TensorDataset(torch.randn(bs,8,6,6), torch.randint(0, 5, (bs,)))
    return Learner(DataLoaders(DataLoader(ds, bs), DataLoader(ds, bs), device='cpu'), model, nn.CrossEntropyLoss(),
        opt_func=opt_func, lr=.01, **kwargs).remove_cb(ProgressCallback)

def storage(t): return t.untyped_storage().data_ptr(),t.untyped_storage().nbytes()
def n_bytes(ts): return sum(t.numel()*t.element_size() for t in ts)

def by_hand(learn, autocast=False):
    "Bytes that a copy of the model holds between its forward and its backward pass, and after a step"
    model = copy.deepcopy(learn.model).train()
    xb,yb = learn.dls.one_batch()
    known,saved = {storage(o)[0] for o in (*model.parameters(), *model.buffers(), xb, yb)},{}
    def pack(t): saved.update([storage(t)]); return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast('cpu', torch.bfloat16,
            enabled=autocast):
        loss = learn.loss_func(model(xb), yb)
    activations = sum(n for k,n in saved.items() if k not in known)
    loss.backward()
    opt = learn.opt_func(model.parameters())
    opt.step()
    return dict(parameters=n_bytes(model.parameters()), buffers=n_bytes(model.buffers()),
        gradients=n_bytes(p.grad for p in model.parameters() if p.grad is not None),
        state=n_bytes(t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)),
        batch=n_bytes((xb,yb)), activations=activations)

def close(found, expected):
    assert {k:v for k,v in found.items() if k!='activations'}=={k:v for k,v in expected.items() if k!='activations'}
    assert found['activations']==pytest.approx(expected['activations'], rel=.05)

@pytest.mark.parametrize('name', models)
@pytest.mark.parametrize('bs', [7, 96])
def test_activations_are_what_saved_tensors_hold(name, bs):
    "The forecast from a loader with another batch size"
    close(learner(models[name]()).memory(bs=bs).kinds, by_hand(learner(models[name](), bs)))

class WithTable(nn.Module):
    def __init__(self): super().__init__(); self.a,self.b = nn.Linear(6, 64),nn.Linear(64, 3)
    def forward(self, x, table): return self.b(self.a(x).relu() + self.a(table).relu().mean(0))

@pytest.mark.parametrize('bs', [16, 40])
def test_what_all_samples_share_is_not_cut(bs):
    "A table beside the samples, such as prototypes, has its rows in a batch of any size"
    def batch(n):
        torch.manual_seed(0)
        return torch.randn(n, 6),torch.randn(500, 6),torch.randint(0, 3, (n,))
    def made(n):
        torch.manual_seed(0)
        return Learner(DataLoaders([batch(n)], n_inp=2, device='cpu'), WithTable(), nn.CrossEntropyLoss(),
            opt_func=torch.optim.Adam, lr=.01).remove_cb(ProgressCallback)
    learn = made(16)
    found,model = learn.memory(bs=bs).kinds,learn.model
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.update([storage(t)]) or t, lambda t: t):
        x,table,y = batch(bs)
        known = {storage(o)[0] for o in (*model.parameters(), x, table, y)}
        nn.functional.cross_entropy(model(x, table), y)
    assert found['batch']==n_bytes((x, table, y))
    assert found['activations']==pytest.approx(sum(n for k,n in saved.items() if k not in known), rel=.02)

@pytest.mark.parametrize('opt', opts)
def test_parameters_gradients_and_state_are_exact(opt):
    learn = learner(conv(), opt_func=opts[opt])
    close(learn.memory().kinds, by_hand(learn))

def test_the_state_that_is_there_counts():
    learn = learner(conv())
    a = learn.memory()
    assert learn.fit(1).memory().kinds==a.kinds

def test_frozen_layers_have_no_gradients_and_no_state():
    learn = learner(conv())
    for p in learn.model[:6].parameters(): p.requires_grad_(False)
    kinds,rows = learn.memory().kinds,{o.layer:o for o in learn.memory().layers}
    assert (kinds['gradients']==4*45 and kinds['state']==2*4*45+2*4
        and rows['0'].gradients==rows['0'].activations==0<rows['0'].parameters)
    close(kinds, by_hand(learn) | dict(state=kinds['state']))

def test_mixed_precision_counts_as_what_it_is():
    learn = learner(conv(), cbs=MixedPrecision('bf16'))
    close(learn.memory(bs=24).kinds, by_hand(learn, autocast=True))

def test_accumulated_batches_have_the_state_of_a_step():
    assert learner(conv(), cbs=GradientAccumulation(64)).memory().kinds==learner(conv()).memory().kinds

@pytest.mark.parametrize('opt', ['sgd','adam'])
def test_a_scale_at_which_trial_batches_overflow_changes_no_forecast(opt):
    def kinds(scale):
        learn = learner(conv(), cbs=MixedPrecision('fp16', init_scale=scale), opt_func=opts[opt])
        res = learn.memory().kinds
        assert all(p.grad is None and p.isfinite().all() for p in learn.model.parameters())
        return res
    assert kinds(2.**100)==kinds(1.)

def test_layers_add_up_and_shared_weights_count_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a,self.b,self.out = nn.Linear(288,288),nn.Linear(288,288),nn.Linear(288,5)
            self.b.weight = self.a.weight
        def forward(self, x): return self.out(self.b(self.a(x.flatten(1)).relu()).tanh())
    mem = learner(Shared()).memory(bs=10)
    close(mem.kinds, by_hand(learner(Shared(), 10)))
    rows = {o.layer:o for o in mem.layers}
    assert list(rows)==['','a','b','out'] and rows['b'].parameters==4*288 and rows['a'].parameters==4*288*289
    assert mem.total==sum(sum(o[1:]) for o in mem.layers)+mem.kinds['batch']

def test_at_another_size_it_is_the_forecast_for_it():
    learn = learner(conv())
    assert learn.memory(bs=8).at(100).kinds==learn.memory(bs=100).kinds and learn.memory().bs==24

def test_a_forecast_changes_nothing():
    learn = learner(conv(), cbs=[EMA, TrackerCallback('valid_loss')]).fit(1)
    def state():
        return str((learn.model.state_dict(), learn.opt.state_dict(), torch.get_rng_state().tolist(),
            learn.recorder.log, learn.tracker.best, list(learn.cbs), learn.model.training,
            [len(m._forward_hooks)+len(m._forward_pre_hooks) for m in learn.model.modules()],
            [p.grad for p in learn.model.parameters()]))
    before = state()
    learn.memory(bs=1000)
    assert state()==before

def test_a_model_that_fails_is_left_without_hooks():
    class Fails(nn.Sequential):
        def forward(self, x): raise ZeroDivisionError
    learn = learner(Fails(nn.Linear(2,2)))
    with pytest.raises(ZeroDivisionError): learn.memory()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in learn.model.modules())

def test_it_is_shown_in_megabytes():
    mem = learner(conv()).memory(bs=64)
    assert 'MB for a batch of 64: parameters' in repr(mem) and 'activations' in mem._repr_html_()

@pytest.mark.parametrize('bs,match', [(0, '`bs` is 1 or more, but got 0'), ('a', "`bs` is a whole number")])
def test_the_batch_size_is_checked(bs, match):
    with pytest.raises((ValueError,TypeError), match=match): learner(conv()).memory(bs=bs)
    with pytest.raises((ValueError,TypeError), match=match): learner(conv()).memory().at(bs)

class Head(nn.Module):
    "A loss with weights of its own"
    def __init__(self):
        super().__init__(); self.w = nn.Parameter(torch.randn(5,2000)*.1); self.register_buffer('scale', torch.ones(7))
    def forward(self, pred, targ): return nn.functional.cross_entropy(pred@self.w, targ)

def test_a_trained_loss_counts():
    head = Head()
    learn = learner(conv(), splitter=lambda m: [*m.parameters(), *head.parameters()])
    learn.loss_func = head
    mem,without,n = learn.memory(bs=50),by_hand(learner(conv(), 50)),4*5*2000
    own = dict(parameters=n, buffers=4*7, gradients=n, state=2*n+4) # Adam: two averages and a count
    expected = {k:v+own.get(k, 0) for k,v in without.items()} # the plain loss saves 50 x 5, and this one
    expected['activations'] += 4*50*2000                        # as many probabilities as it has classes
    close(mem.kinds, expected)
    row = {o.layer:o for o in mem.layers}['loss_func']
    assert {k:getattr(row, k) for k in own}==own and row.activations==pytest.approx(4*50*2000, rel=.05)
