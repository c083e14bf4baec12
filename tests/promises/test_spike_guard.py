"A run with a spike guard is the run without the batches that it leaves out; on clean data it is the run itself"
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
    return Learner(DataLoaders(dl, device='cpu'), nn.Linear(3, 1), F.mse_loss, lr=.05, opt_func=SGD).remove_cb(ProgressCallback)

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

@pytest.mark.parametrize('value', [1e4, float('nan'), float('inf')], ids=str)
@pytest.mark.parametrize('back', [1, 7, 50])
def test_what_is_left_out_is_left_out(value, back):
    "Rows 250 and 301 of 320 are in batches 31 and 37 of 40; the same in the second epoch"
    learn = make((250, 301), value)
    learn.fit(2, cbs=(guard := SpikeGuard(back)))
    assert guard.left_out=={31, 37, 71, 77}
    assert {k:250 in v or 301 in v for k,v in guard.idxs.items()}==dict.fromkeys(guard.left_out, True)
    hand = by_hand((250, 301), value, guard.left_out)
    assert torch.allclose(learn.model.weight, hand.weight, rtol=1e-5) and torch.allclose(learn.model.bias, hand.bias, rtol=1e-5)
    assert len(learn.recorder.losses)==76 and learn.train_iter==80 and learn.at is None

def test_the_first_batch_is_no_number():
    learn = make((3,), float('nan'))
    learn.fit(1, cbs=(guard := SpikeGuard(10)))
    assert guard.left_out=={0} and learn.model.weight.isfinite().all()

cases = [dict(), dict(workers=2, ema=True, acc=True, sched='one_cycle'), dict(mix=True, loader='own'), dict(amp='fp16', acc=True),
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
        spoil = on('after_pred', order=-300)(lambda learn: learn.training and learn.train_iter==7 and setattr(learn, 'pred', learn.pred*float('nan')))
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

def test_arguments_are_checked():
    for kw in (dict(back=0), dict(factor=1), dict(factor='x'), dict(window=0), dict(most=-1)):
        with pytest.raises((ValueError,TypeError), match=f'`{[*kw][0]}`'): SpikeGuard(**kw)
