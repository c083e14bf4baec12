"Ctrl-C where it is easily lost, or the handler easily left behind: in `lr_find`, while workers start or are awaited, while a file is written, in a fit inside a fit"
import os,signal,time
from pickle import PicklingError
import pytest,torch
from torch.utils.data import DataLoader,Dataset
from learner.all import *

if os.name=='nt': pytest.skip('Windows has other signals', allow_module_level=True)

def ctrl_c(): signal.raise_signal(signal.SIGINT)
def handler(): return signal.getsignal(signal.SIGINT)

@pytest.fixture(autouse=True)
def python_handler():
    "Each test begins with Python's own handler, and must end with it"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler

class CtrlC(Callback):
    "Ctrl-C at the `n`-th `ev`; `survived` says whether it waited"
    survived,watches = False,True
    def __init__(self, ev, n=1, order=0):
        self.left,self.order = n,order
        super().__init__(**{ev: CtrlC.hit})
    def hit(self):
        self.left -= 1
        if self.left==0: ctrl_c(); self.survived = True

def weights(learn): return {k:v.tolist() for k,v in learn.model.state_dict().items()}

# A search for a learning rate
@pytest.mark.parametrize('fails', [False,True])
def test_in_a_batch_of_lr_find_it_waits_and_is_not_swallowed_by_an_error(fails):
    cb = CtrlC('after_pred', 3)
    learn = synth_learner(cbs=[cb, *([Raise('after_loss', ZeroDivisionError, 3)] if fails else [])])
    before = weights(learn)
    with pytest.raises(KeyboardInterrupt) as e: learn.lr_find(num_it=20, show_plot=False)
    assert cb.survived and weights(learn)==before and learn.mode is None
    assert isinstance(e.value.__cause__, ZeroDivisionError)==fails

def test_in_the_last_batch_of_lr_find_it_is_not_lost():
    cb = CtrlC('after_pred', 20)
    learn = synth_learner(cbs=cb)
    before = weights(learn)
    with pytest.raises(KeyboardInterrupt): learn.lr_find(num_it=20, show_plot=False)
    assert cb.survived and weights(learn)==before

@pytest.mark.parametrize('fails', [False, True])
def test_a_handler_of_the_user_is_called_once_after_a_batch_of_lr_find(fails):
    calls = []
    signal.signal(signal.SIGINT, lambda signum, frame: calls.append(signum))
    try:
        learn = synth_learner(cbs=[CtrlC('after_pred', 3), *([Raise('after_loss', ZeroDivisionError, 3)] if fails else [])])
        try: learn.lr_find(num_it=20, show_plot=False)
        except (ZeroDivisionError,KeyboardInterrupt): assert fails
        assert calls==[signal.SIGINT]
    finally: signal.signal(signal.SIGINT, signal.default_int_handler)

# Loaders
class Unpicklable(Dataset):
    def __init__(self): self.f = lambda i: (torch.zeros(1),torch.zeros(1))
    def __len__(self): return 4
    def __getitem__(self, i): return self.f(i)

class Broken:
    "A loader that fails when one begins to go over it"
    def __len__(self): return 4
    def __iter__(self): raise InterruptedError

loaders = dict(workers=lambda: DataLoader(Unpicklable(), 2, num_workers=1, multiprocessing_context='spawn'), iterator=Broken)

@pytest.mark.filterwarnings('ignore:Got pickle error')
@pytest.mark.parametrize('phase', ['train','valid'])
@pytest.mark.parametrize('kind', loaders)
def test_the_handler_is_restored_when_starting_a_loader_fails(kind, phase):
    learn = synth_learner(n_train=2)
    dls = dict(learn.dls.loaders) | {phase: loaders[kind]()}
    learn.dls = DataLoaders(dls['train'], dls['valid'], device='cpu')
    with pytest.raises((InterruptedError,AttributeError,PicklingError)): learn.fit(1)
    assert handler() is signal.default_int_handler
    learn.dls = synth_dls(2)
    learn.add_cb(cb := CtrlC('after_pred'))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    assert cb.survived # the next fit waits for the end of a batch as ever

class Presses(Dataset):
    "Its worker interrupts the process that awaits a batch"
    def __init__(self, at): self.at,self.main = at,os.getpid()
    def __len__(self): return 8
    def __getitem__(self, i):
        if i==self.at: time.sleep(.1); os.kill(self.main, signal.SIGINT); time.sleep(.1)
        return torch.ones(1),torch.ones(1)

@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_while_a_batch_is_awaited_from_a_worker_it_acts_at_once():
    learn = synth_learner(dls=DataLoaders(DataLoader(Presses(5), 2, num_workers=1, multiprocessing_context='fork'), device='cpu'), cbs=[trace := Trace('before_draw','after_draw')])
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    assert learn.train_iter==learn.opt_step==2 and trace.seen[-1]=='before_draw' # the third batch was not waited for
    learn.dls.train.dataset.at = None
    learn.resume(cbs=[])
    assert learn.train_iter==learn.opt_step==4 # nothing was lost

# Who else uses the signal
def test_a_handler_that_a_callback_installs_for_good_stays():
    def mine(signum, frame): pass
    synth_learner(cbs=Callback(before_epoch=lambda self: signal.signal(signal.SIGINT, mine))).fit(1)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is mine

def test_after_one_that_did_not_wait_the_next_fit_waits_again():
    learn = synth_learner(n_train=4)
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[first := CtrlC('after_pred', order=1), second := CtrlC('after_pred', order=2)])
    assert first.survived and not second.survived
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[third := CtrlC('after_pred')])
    assert third.survived and learn.opt_step==1

@pytest.mark.parametrize('ev', ['before_save_state','after_save_state'])
def test_while_a_checkpoint_is_written_it_waits_for_the_file(ev, tmp_path):
    def made(): return synth_learner(n_train=4, n_valid=0, path=tmp_path)
    whole = made().fit(2)
    with pytest.raises(KeyboardInterrupt): made().fit(2, cbs=[Checkpoint(every=1, unit='iter', keep=None, on_exc=False), cb := CtrlC(ev, 4)])
    assert cb.survived and not [*(tmp_path/'checkpoints').glob('.*')]
    learn = made().fit(2, cbs=Checkpoint(), resume=True)
    assert learn.train_iter==8 and weights(learn)==weights(whole)

# A fit inside a batch of another
def inside(cb, ev='after_loss'):
    "What an outer fit was when Ctrl-C in the fit of another learner inside its second batch had ended it"
    inner = synth_learner(n_train=3, cbs=cb)
    outer = synth_learner(n_train=4, cbs=Callback(**{ev: lambda self: self.training and self.iter==1 and inner.fit(2)}))
    with pytest.raises(KeyboardInterrupt): outer.fit(1)
    assert handler() is signal.default_int_handler and outer.mode is inner.mode is None
    return outer

@pytest.mark.parametrize('ev,n', [('after_pred', 2), ('before_draw', 2), ('before_epoch', 2), ('before_validate', 1), ('after_epoch', 1)])
def test_wherever_it_comes_in_an_inner_fit_the_outer_batch_ends(ev, n):
    outer = inside(cb := CtrlC(ev, n))
    assert cb.survived and outer.opt_step==outer.train_iter==2

def test_an_inner_fit_leaves_the_outer_one_its_handler():
    seen = []
    inner = synth_learner(n_train=2)
    def fit(self): seen.append(handler()); inner.fit(1); seen.append(handler())
    synth_learner(n_train=2, cbs=Callback(before_step=fit)).fit(1)
    assert len({*seen})==1 and seen[0] is not signal.default_int_handler
