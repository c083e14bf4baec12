"A run with a spike guard is the run without the batches that it leaves out; on clean data it is the run itself"
import random
from functools import cache,partial
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from runs import Log,differences,fit,learner,outcome

def rows(bad, value, n=320):
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(n, 3, generator=gen),torch.randn(n, 1, generator=gen)
    for i in bad: y[i] = value
    return x,y

def make(bad=(), value=1e4):
    torch.manual_seed(0)
    dl = DataLoader(TensorDataset(*rows(bad, value)), 8)
    return Learner(DataLoaders(dl, device='cpu'), nn.Linear(3, 1), F.mse_loss, lr=.05,
        opt_func=SGD).remove_cb(ProgressCallback)

def by_hand(bad, value, without, n_epoch=2):
    "The same training, written as a loop that leaves out batches"
    torch.manual_seed(0)
    m = nn.Linear(3, 1)
    opt,i = torch.optim.SGD(m.parameters(), lr=.05),0
    for _ in range(n_epoch):
        for x,y in zip(*(o.split(8) for o in rows(bad, value))):
            if i not in without:
                F.mse_loss(m(x), y).backward()
                opt.step()
                opt.zero_grad()
            i += 1
    return m

@pytest.mark.sample(2)
@pytest.mark.parametrize('value', [1e4, float('nan'), float('inf')], ids=str)
@pytest.mark.parametrize('back', [1, 7, 50])
def test_what_is_left_out_is_left_out(value, back):
    "Rows 250 and 301 of 320 are in batches 31 and 37 of 40; the same in the second epoch"
    learn = make((250, 301), value)
    learn.fit(2, cbs=(guard := SpikeGuard(back)))
    assert guard.left_out=={31, 37, 71, 77}
    assert {k:250 in v or 301 in v for k,v in guard.idxs.items()}==dict.fromkeys(guard.left_out, True)
    hand = by_hand((250, 301), value, guard.left_out)
    assert (torch.allclose(learn.model.weight, hand.weight, rtol=1e-5)
        and torch.allclose(learn.model.bias, hand.bias, rtol=1e-5))
    assert len(learn.recorder.losses)==76 and learn.train_iter==80 and learn.at is None

def test_the_first_batch_is_no_number():
    learn = make((3,), float('nan'))
    learn.fit(1, cbs=(guard := SpikeGuard(10)))
    assert guard.left_out=={0} and learn.model.weight.isfinite().all()

cases = [dict(), dict(workers=2, ema=True, acc=True, sched='one_cycle'), dict(mix=True, loader='own'),
    dict(amp='fp16', acc=True),
    dict(filters=True, loss='module', loader='stream'), dict(groups='several'), dict(sched='torch_cycle')]

@pytest.mark.parametrize('case', cases, ids=str)
def test_clean_runs_are_as_without(tmp_path, case):
    runs = []
    for i,cbs in enumerate(([], [SpikeGuard(4)])):
        (tmp_path/str(i)).mkdir()
        learn = learner(case, tmp_path/str(i), 1)
        fit(learn, case, [*cbs, Log(learn.path)])
        runs.append(outcome(learn, Log(learn.path)))
    assert not cbs[0].left_out and not differences(*runs)

class LeaveOut(Callback):
    name,order,run_valid = 'spike_guard',1001,False
    def __init__(self, which): self.which = which
    def before_batch(self):
        if self.learn.train_iter in self.which: raise CancelBatchException

@pytest.mark.parametrize('case', cases[:4], ids=str)
def test_the_rest_is_as_if_the_batch_had_been_left_out_at_once(tmp_path, case):
    runs = []
    for i,cb in enumerate((SpikeGuard(4, factor=1e9), LeaveOut({7}))):
        (tmp_path/str(i)).mkdir()
        learn = learner(case, tmp_path/str(i), 1)
        spoil = on('after_pred', order=-300)(
            lambda learn: learn.training and learn.train_iter==7 and setattr(learn, 'pred', learn.pred*float('nan')))
        fit(learn, case, [cb, spoil, Log(learn.path)])
        runs.append(outcome(learn, Log(learn.path)))
    assert not differences(*runs)

def test_without_skip_it_stops_before_the_batch():
    learn = make((250,), 1e4)
    learn.fit(2, cbs=(guard := SpikeGuard(7, skip=False)))
    assert (learn.at.counters.train_iter, guard.left_out)==(31, set())
    assert torch.allclose(learn.model.weight, by_hand((250,), 1e4, range(31, 80)).weight, rtol=1e-5)

def test_too_many_spikes_stop_the_fit():
    learn = make((250, 260, 270, 280), float('nan'))
    learn.fit(1, cbs=SpikeGuard(7, most=2))
    assert 'left out' in learn.stop_reason and learn.at is not None

def stopped(n, *bad, cbs=()):
    "A run with a guard that `stop_soon` ends when `n` batches are done for the first time"
    learn,stops = make(bad).add_cbs([SpikeGuard(), *cbs]),[]
    def stop(learn):
        if learn.train_iter==n and not stops: stops.append(n); learn.stop_soon()
    learn.fit(2, cbs=on(event.after_batch)(stop))
    assert learn.at.counters.train_iter==n
    return learn

def compiled(): return [Compile(backend='eager')]
@cache
def never_stopped(cbs): return make((266,)).add_cbs([SpikeGuard(), *cbs()]).fit(2)

@pytest.mark.sample(2)
@pytest.mark.parametrize('how', ['in memory','in a fork','after a trial'])
@pytest.mark.parametrize('n', [34, 37, 40])
def test_a_fit_that_is_stopped_before_it_has_gone_back_does_so_when_it_is_resumed(n, how):
    "Row 266 is in batch 33, which is noticed after batch 39: where that is the last one, the stop holds all the same"
    cbs = compiled if how=='after a trial' else list
    whole,learn = never_stopped(cbs),stopped(n, 266, cbs=cbs())
    if how=='in a fork': learn = learn.fork()
    learn.resume()
    assert learn.spike_guard.left_out==whole.spike_guard.left_out=={33, 73}
    assert torch.equal(learn.model.weight, whole.model.weight) and learn.recorder.losses==whole.recorder.losses

def test_a_run_resumes_from_a_file_with_the_values_that_wait_to_be_judged(tmp_path):
    stopped(37).save_state(tmp_path/'state.pt')
    whole,learn = (make().add_cb(SpikeGuard()).fit(2, resume=o) for o in (None, tmp_path/'state.pt'))
    assert ([[*o.recent] for o in learn.spike_guard.watches_of]==[[*o.recent] for o in whole.spike_guard.watches_of])

def test_a_spike_before_the_file_from_which_a_run_resumes_is_named(tmp_path):
    stopped(37, 266).save_state(tmp_path/'state.pt')
    with pytest.warns(UserWarning, match='in training batch 33, and the run was stopped .* Resume from an earlier'):
        make((266,)).add_cb(SpikeGuard()).fit(1, resume=tmp_path/'state.pt')

def test_arguments_are_checked():
    for kw in (dict(back=0), dict(factor=1), dict(factor='x'), dict(window=0), dict(most=-1)):
        with pytest.raises((ValueError,TypeError), match=f'`{[*kw][0]}`'): SpikeGuard(**kw)

# Random runs: some in the short form, a hundred of each kind in the long one
hundred = [*range(5), *(pytest.param(i, marks=pytest.mark.slow) for i in range(5, 100))]

def random_rows(rng, gen):
    "Rows of a task, and a model for it"
    n,classes = rng.randrange(320, 640),rng.choice([0, 3])
    if rng.random()<.3:
        x,body = torch.randn(n, 1, 6, 6, generator=gen),nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Flatten(), nn.Linear(64, max(classes, 1)))
    else:
        x,body = torch.randn(n, 5, generator=gen),nn.Sequential(nn.Linear(5, 16), rng.choice([nn.ReLU, nn.Tanh])(),
            nn.Linear(16, max(classes, 1)))
    score = x.flatten(1)[:,:1]*2+x.flatten(1)[:,1:2]+.3*torch.randn(n, 1, generator=gen)
    return (x,(score.squeeze(1)>0).long()+(score.squeeze(1)>1).long() if classes else score,body,
        F.cross_entropy if classes else F.mse_loss)

def random_run(seed, plant):
    "A learner and the batches that have a bad row, by number; they fill while it trains"
    rng,gen = random.Random(seed),torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x,y,body,loss_func = random_rows(rng, gen)
    bs,bad,finite = rng.choice([4, 8]),set(),loss_func is F.mse_loss and rng.random()<.6
    if plant: # a large target is judged only after a quarter of a window, what is no number at once
        bad = {rng.randrange(30*bs if finite else 0, len(x)) for _ in range(rng.choice([1, 2]))}
        for i in bad:
            if finite: y[i] = rng.choice([-1e4, 1e3])
            else: x[i] = rng.choice([float('nan'), float('inf')])
    dl = DataLoader(TensorDataset(x, y), bs, shuffle=not (plant and finite))
    learn = Learner(DataLoaders(dl, device='cpu'), body, loss_func, lr=rng.choice([1e-3, 5e-3]),
        opt_func=rng.choice([Adam, partial(SGD, mom=.9)])).remove_cb(ProgressCallback)
    with_bad = set()
    def note(learn):
        if bad & {*learn.idxs}: with_bad.add(learn.train_iter)
    learn.add_cb(on('before_batch', order=-900)(note))
    return learn,with_bad,rng

@pytest.mark.parametrize('seed', hundred)
def test_planted_rows_are_found_and_no_others(seed):
    learn,with_bad,rng = random_run(seed, plant=True)
    learn.fit(2, cbs=(guard := SpikeGuard(rng.choice([5, 20, 50]))))
    assert with_bad and guard.left_out==with_bad and guard.idxs.keys()==with_bad
    assert all(p.isfinite().all() for p in learn.model.parameters())

@pytest.mark.parametrize('seed', hundred)
def test_nothing_is_left_out_of_clean_runs(seed):
    runs = []
    for cbs in ([], [guard := SpikeGuard(20)]):
        learn,_,rng = random_run(seed, plant=False)
        getattr(learn, 'fit' if rng.random()<.5 else 'fit_one_cycle')(3, cbs=cbs)
        runs.append(learn)
    assert not guard.left_out and all(map(torch.equal, *(o.model.state_dict().values() for o in runs)))
    assert runs[0].recorder.raw_losses==runs[1].recorder.raw_losses

@pytest.mark.parametrize('cbs', [[], [GradientClip(1.)], [GradientClip(1., max_value=None), MixedPrecision('bf16')]],
    ids=['plain','clipped','bf16'])
def test_gradients_that_leave_their_range_are_noticed_where_the_loss_does_not(cbs):
    class Steep(torch.autograd.Function):
        "The value itself, with a steep gradient"
        @staticmethod
        def forward(ctx, v): return v.clone()
        @staticmethod
        def backward(ctx, grad): return grad*1e4
    def steepen(learn):
        if learn.training and learn.train_iter==33: learn.loss_grad = Steep.apply(learn.loss_grad)
    learn = make()
    learn.fit(1, cbs=[guard := SpikeGuard(10), on('before_backward')(steepen), *cbs])
    assert guard.left_out=={33} and guard.idxs=={33: [*range(264, 272)]}

def test_it_is_a_setting_of_the_run_because_it_changes_training():
    from learner.loop.position import settings_of
    learn = make().add_cb(SpikeGuard(10))
    learn.fit(1)
    assert settings_of(learn)['callbacks.spike_guard.factor']==5

class Length(nn.Module):
    "Its gradient is no number where an input is 0"
    def __init__(self): super().__init__(); torch.manual_seed(0); self.lin = nn.Linear(3, 1, bias=False)
    def forward(self, x): return self.lin(x).square().sum(1).sqrt()

class NoLength:
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return iter(self.dl)

@pytest.mark.filterwarnings('ignore:The training loader replays')
@pytest.mark.parametrize('n_acc,bad,left_out', [(12, 4, {3,4,5}), (12, 0, {0,1,2}), (12, 11, {9,10,11}),
    (32, 10, {8,9,10,11}), (4, 4, {4})])
@pytest.mark.parametrize('known', [True, False])
def test_a_step_of_several_batches_leaves_out_all_of_them(n_acc, bad, left_out, known):
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(48, 3, generator=gen),torch.randn(48, generator=gen)
    x[4*bad+1] = 0.
    def run(without=(), *cbs):
        data = [o for i,o in enumerate(zip(x.split(4), y.split(4))) if i not in without]
        learn = Learner(DataLoaders(data if known else NoLength(data), device='cpu'), Length(), F.mse_loss,
            opt_func=SGD, lr=.05, cbs=[GradientAccumulation(n_acc), *cbs]).remove_cb(ProgressCallback)
        return learn.fit(1)
    guard = SpikeGuard(2, window=4, factor=1e9)
    learn = run((), guard)
    assert guard.left_out==left_out and learn.train_iter==12
    assert torch.allclose(learn.model.lin.weight, run(left_out).model.lin.weight, atol=1e-6)

@pytest.mark.parametrize('how', ['own backward','two steps'])
def test_steps_without_a_batch_of_the_loop(how):
    class Own(Callback):
        run_valid = False
        order = -100
        def before_backward(self):
            if how=='own backward': self.learn.loss_grad.backward(); raise CancelBackwardException
        def before_zero_grad(self):
            if how=='two steps': self.learn.take_step()
    learn = make().fit(1, cbs=[Own(), (guard := SpikeGuard())])
    assert learn.opt_step==40*(1+(how=='two steps')) and not guard.left_out
