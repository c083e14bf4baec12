"What a run that resumes tells: where it resumes, and what is not as it was"
import os,warnings
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,Subset,TensorDataset,random_split
from learner.all import *
from learner.inspect.testing import Raise,Trace

pytestmark = pytest.mark.filterwarnings('error')

def points(n=48, seed=0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=gen)
    return TensorDataset(x, x.sum(1, keepdim=True))

def made(path, train=None, valid=None, seed=1, bs=8, **kwargs):
    "A learner with dropout, so that a run that is not exact has other weights"
    torch.manual_seed(seed)
    dls = DataLoaders(DataLoader(points() if train is None else train, bs, shuffle=True),
        DataLoader(points(16, 1) if valid is None else valid, 16), device='cpu')
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(.5), nn.Linear(8, 1))
    kwargs = dict(loss_func=F.mse_loss, opt_func=Adam, lr=.01, path=path) | kwargs
    return Learner(dls, model, **kwargs).remove_cb(ProgressCallback)

def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])
def messages(seen): return [str(o.message) for o in seen]

class StopAfter(Callback):
    "Stops the fit for now when `n` training batches are done"
    watches = True
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.train_iter==self.n: self.learn.at_pause(self.learn.stop_for_now, stops=True)

# After an error inside a batch
def cut_in_batch(path, n, ev='after_pred', **kwargs):
    "The learner of a fit that failed at training batch `n`; the file of that place"
    learn,cb = made(path),Checkpoint(**dict(every=2, unit='iter') | kwargs)
    with pytest.raises(InterruptedError): learn.fit(2, cbs=[cb, Raise(ev, InterruptedError, n)])
    return learn,cb.last_saved_path

@pytest.mark.parametrize('resume', [True, 'auto'])
@pytest.mark.parametrize('ev', ['after_pred','after_loss','before_step','after_step'])
def test_after_an_error_in_a_batch_the_newest_exact_file_is_taken(tmp_path, resume, ev):
    whole = made(tmp_path/'whole').fit(2)
    _,file = cut_in_batch(tmp_path, 5, ev)
    again,trace = made(tmp_path, seed=7),Trace('after_batch')
    with pytest.warns(UserWarning, match='an error had cut a batch') as seen:
        again.fit(2, cbs=[Checkpoint(every=2, unit='iter'), trace], resume=resume)
    assert torch.equal(weights(again), weights(whole))
    text, = messages(seen)
    assert file.name in text and '-iter4.pt' in text and 'resume=' in text

def test_the_line_in_the_warning_resumes_where_the_error_was(tmp_path):
    cut_in_batch(tmp_path, 6)
    with pytest.warns(UserWarning, match='iter4.pt., 1 training batch before') as seen, pytest.raises(InterruptedError):
        made(tmp_path).fit(2, cbs=[Checkpoint(), Raise('before_fit', InterruptedError)], resume='auto')
    line = messages(seen)[0].split('`fit(…, ')[1].split(')`')[0]
    trace = Trace('before_backward')
    with pytest.warns(UserWarning, match='in the middle of a batch.*`fit\\(…, resume=True\\)`'):
        made(tmp_path/'b').fit(2, cbs=[trace, Checkpoint(folder=tmp_path/'checkpoints')], **eval(f'dict({line})'))
    assert len(trace.seen)==12-5

def test_a_file_that_is_not_exact_is_taken_where_there_is_no_other(tmp_path):
    "The only whole file of the fit is that of the error"
    learn,file = cut_in_batch(tmp_path, 5, every=100)
    for o in (tmp_path/'checkpoints').glob('*.pt'):
        if o!=file: o.write_bytes(b'')
    with pytest.warns(UserWarning) as seen: made(tmp_path).fit(2, cbs=Checkpoint(), resume='auto')
    assert any('going back' in o for o in messages(seen)) and any('in the middle of a batch' in o for o in messages(seen))

def test_nothing_is_told_where_the_newest_file_is_exact(tmp_path):
    made(tmp_path).fit(2, cbs=[Checkpoint(every=2, unit='iter'), StopAfter(5)])
    made(tmp_path).fit(2, cbs=Checkpoint(), resume='auto')
