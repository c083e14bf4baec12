"`d.ops()` names the first operation that differs, `learn.repeatable()` those that do not repeat; neither moves the run"
import time
import pytest,torch
from torch import library,nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.compare.operations import NoteOps,first_op
from small_fits import mk,same,weights

kernel = dict(scale=1.)
@library.custom_op('tests::scaled', mutates_args=())
def scaled(x:torch.Tensor) -> torch.Tensor: return x*kernel['scale']
scaled.register_autograd(lambda ctx, g: g)

class Machine(Callback):
    "Stands for the machine that a run is on"
    watches = True
    def __init__(self, scale): self.scale = scale
    def before_batch(self): kernel['scale'] = self.scale(self.learn.train_iter)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0); self.a,self.drop,self.b = nn.Linear(3, 8),nn.Dropout(.2),nn.Linear(8, 2)
    def forward(self, x): return self.b(scaled(self.drop(self.a(x))))

def data():
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(24, 3, generator=g), torch.randint(0, 2, (24,), generator=g))
def make(scale=lambda n: 1., **kwargs):
    return mk(Machine(scale), data=DataLoaders(DataLoader(data(), 4, shuffle=True), device='cpu'), model=Net(),
        **kwargs)
def fitted(*args, cbs=(), **kwargs): return make(*args, **kwargs).fit(2, cbs=[Fingerprint(), Rewind(every=4), *cbs])

def test_the_operation_is_named():
    d = diff(fitted(), fitted(lambda n: 1.+1e-6*(n>=9)))
    assert (d.step, d.kind)==(9, 'arithmetic')
    res = d.ops()
    assert (res and (res.a.name, res.computes)==('tests.scaled.default', True) and 'forward, layer `Net`' in repr(res)
        and 'gives something else' in repr(res))

def test_runs_stand_before_the_batch_and_continue_as_before():
    a,b = fitted(),fitted(lambda n: 1.+1e-6*(n>=9))
    ends = [weights(o.model) for o in (a, b)]
    diff(a, b).ops()
    for o,end in zip((a, b), ends):
        assert o.at.counters.train_iter==9
        assert same(weights(o.resume().model), end)

def test_equal_runs_have_equal_operations():
    a,b = fitted().operations(7),fitted().operations(7)
    res = first_op(a, b)
    assert not res and f'All {len(a)} operations' in repr(res)
    assert {o.where.split(',')[0] for o in a}=={'data','forward','loss','backward','step'}
    with pytest.raises(ValueError, match='The runs are equal'): diff(fitted(), fitted()).ops()

def test_weights_that_differ_are_values_from_outside():
    def nudge(learn):
        if learn.train_iter in when: learn.model.a.weight.data[0,0] += 1e-3
    when = set()
    a = fitted(cbs=[on('before_batch', order=-2000)(nudge)])
    of_a = a.operations(5)
    when = {5}
    b = fitted(cbs=[on('before_batch', order=-2000)(nudge)])
    res = first_op(of_a, b.operations(5))
    assert res and not res.computes and 'a weight, or a value from outside' in repr(res)

def test_other_operations_are_named():
    a = fitted().operations(3)
    b = fitted(loss_func=lambda pred, y: F.cross_entropy(pred*1, y)).operations(3)
    assert 'in a, and' in repr(first_op(a, b)) and 'in a only' in repr(first_op(a, a[:-1]))

def test_between_processes(tmp_path):
    "The other side is a file"
    a,b = fitted(path=tmp_path),fitted(lambda n: 1.+1e-6*(n>=9))
    a.operations(9, file=tmp_path/'ops_a.pth')
    b.held_fingerprint.save(tmp_path/'b.pth')
    d = diff(a, tmp_path/'b.pth')
    with pytest.raises(ValueError, match=r'Run b is not in this process.*learn.operations\(9, file=…\).*ops\(b=…\)'):
        d.ops()
    b.operations(9, file=tmp_path/'ops_b.pth')
    assert d.ops(b=tmp_path/'ops_b.pth').a.name=='tests.scaled.default'==diff(tmp_path/'b.pth',
        a).ops(a=tmp_path/'ops_b.pth', b=tmp_path/'ops_a.pth').a.name

def test_a_run_that_was_not_held_says_so():
    learn = make().fit(1, cbs=Fingerprint())
    with pytest.raises(RuntimeError, match='cbs=Rewind'): learn.operations(3)

@pytest.mark.parametrize('cbs', [[Rewind(every=4)], [Fingerprint(), Rewind(every=4)]], ids=['held','both'])
def test_another_fit_than_the_one_that_was_compared_is_refused(cbs):
    runs = fitted(),fitted(lambda n: 1.+1e-6*(n>=9))
    d = diff(*runs)
    runs[1].fit(2, cbs=cbs)
    was = [weights(o.model) for o in runs]
    for o in [d] if cbs[1:] else [d, diff(*runs)]: # a fingerprint is of the last fit that had one
        with pytest.raises(ValueError, match='Run b is .* before the learner trains again'): o.ops()
    assert all(same(weights(o.model), w) for o,w in zip(runs, was))

def test_a_fit_that_is_not_held_does_not_count_and_a_fork_is_a_run_of_its_own():
    a,b = fitted(),fitted(lambda n: 1.+1e-6*(n>=9))
    d = diff(a, b)
    a.fit(1)
    assert d.ops().a.name=='tests.scaled.default'
    other = b.fork(10, lr=.05).resume()
    assert diff(b, other).step==10 and diff(b, other).ops()

def test_a_fork_that_has_not_resumed_can_be_compared():
    a,b = fitted(),fitted(lambda n: 1.+1e-6*(n>=9))
    assert diff(a, b.fork(4)).ops().a.name=='tests.scaled.default'
    b.fit(2, cbs=Rewind(every=4)) # its fingerprint is that of the fit before
    with pytest.raises(ValueError, match='Run b is .* before the learner trains again'): diff(a, b.fork(4)).ops()

def test_runs_that_share_a_fingerprint_have_their_own_names(tmp_path):
    cb,machines = Fingerprint(),dict(a=lambda n: 1., b=lambda n: 1.+1e-6*(n>=9))
    a,b = (make(f, path=tmp_path/k).fit(2, cbs=[cb, Rewind(every=4)]) for k,f in machines.items())
    assert diff(a, b).ops().a.name=='tests.scaled.default'
    assert a.held_fingerprint.save('own').parent==tmp_path/'a'/'models'

@pytest.mark.parametrize('cbs',
    [(), (GradientAccumulation(8), EMA()), (MixedPrecision('bf16'), GradientClip()), (MicroBatch(2), MixUp())], ids=str)
def test_a_batch_repeats_and_nothing_is_moved(cbs):
    learn = make().fit(1)
    before,random = weights(learn.model),random_state()
    res = learn.repeatable(cbs=cbs)
    assert res and res.n>20 and f'All {res.n} operations' in repr(res)
    assert (same(before, weights(learn.model))
        and all((a==b).all() if hasattr(a, 'all') else a==b
            for a,b in zip([random['torch']], [random_state()['torch']])))
    assert same(weights(make().fit(2).model), weights((lambda o: (o.repeatable(), o.fit(2))[1])(make()).model))

def test_what_does_not_repeat_is_named():
    times = iter(range(100))
    res = make(lambda n: 1.+next(times)/100).repeatable()
    assert not res and res.ops==['`tests.scaled.default` in forward, layer `Net`'] and 'do not repeat' in repr(res)

def test_a_value_from_outside_is_named():
    class Timed(Net):
        def forward(self, x): return super().forward(x+time.perf_counter()%1) # float32 of all seconds stands still
    res = mk(data=DataLoaders(DataLoader(data(), 4), device='cpu'), model=Timed()).repeatable()
    assert not res and len(res.ops)==1 and 'a value from outside' in res.ops[0]

def test_a_loader_that_does_not_repeat_is_named():
    times = iter(range(100))
    class Ds(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, i): return torch.randn(3)+next(times),torch.tensor(0)
    res = mk(data=DataLoaders(DataLoader(Ds(), 4), device='cpu')).repeatable()
    assert not res and res.ops==['The batch has other inputs or targets']
    with pytest.raises(RuntimeError, match='`repeatable` cannot start inside'):
        make().fit(1, cbs=on('before_batch')(lambda learn: learn.repeatable()))

@pytest.mark.parametrize('fits', [0, 1])
def test_operations_of_what_only_watches_do_not_count(fits):
    "A recorder tries its metrics in the first batch, and writes each loss to another place"
    def shrink(learn): learn.model.weight.data.mul_(.9)
    dl,notes = DataLoader(data(), 4, shuffle=True),NoteOps()
    learn = mk(on('after_batch')(shrink), data=DataLoaders(dl, dl, device='cpu'), model=nn.Linear(3, 2),
        metrics=accuracy)
    for _ in range(fits): learn.fit(1)
    res = learn.repeatable(cbs=Fingerprint())
    assert res, res
    learn.fit(1, cbs=notes)
    assert [o.name for o in notes.ops if o.where=='`shrink.after_batch`']==['aten.detach.default','aten.mul_.Tensor']*6

def test_an_operation_of_a_callback_has_its_name():
    class Scale(Callback):
        "Has settings that no fingerprint sees"
        def before_step(self):
            for p in self.learn.model.parameters(): p.grad.mul_(factors[self.train_iter>7])
    factors = {False: 1., True: 1.}
    a = fitted(cbs=[Scale])
    factors = {False: 1., True: .5}
    d = diff(a, fitted(cbs=[Scale]))
    ops = a.operations(d.step)
    factors = {False: 1., True: 1.}
    res = first_op(ops, a.operations(d.step))
    assert d.step==8 and res.a.where==res.b.where=='`scale.before_step`' and res.a.name=='aten.mul_.Tensor'

@pytest.mark.parametrize('named', [False, True])
def test_a_model_that_returns_its_loss_with_predictions(named):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 2))
        def forward(self, inp, labels):
            scores = self.layer(inp)
            return dict(loss=nn.functional.cross_entropy(scores, labels), logits=scores)
    b = dict(inp=torch.randn(8, 8), labels=torch.arange(8)%2)
    dls = DataLoaders([b if named else (*b.values(),)], device='cpu', n_inp=None if named else 2)
    assert Learner(dls, Own(), metrics=accuracy).repeatable()
