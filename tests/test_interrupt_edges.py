"""Ctrl-C where it is easily lost, or the handler easily left behind: in `lr_find`, while workers start or are awaited,
while a file is written, in a fit inside a fit"""
import os,signal,subprocess,sys,time
from multiprocessing import get_context
from pathlib import Path
from pickle import PicklingError
import pytest,torch
from torch.utils.data import DataLoader,Dataset
from learner.all import *
from processes import run_script
from signals import ctrl_c,handler,python_handler # noqa: F401

if os.name=='nt': pytest.skip('Windows has other signals', allow_module_level=True)


class CtrlC(Callback):
    "Ctrl-C at the `n`-th `ev`; `survived` is not empty if it waited"
    watches = True
    def __init__(self, ev, n=1, order=0):
        self.left,self.order,self.survived = n,order,[] # which `lr_find` leaves, unlike an attribute that is set
        super().__init__(**{ev: CtrlC.hit})
    def hit(self):
        self.left -= 1
        if self.left==0: ctrl_c(); self.survived.append(True)

def weights(learn): return {k:v.tolist() for k,v in learn.model.state_dict().items()}

# Where nothing can be resumed, because everything is put back
runs = dict(smoke=lambda learn, cb: learn.smoke(5, cbs=cb), profile=lambda learn, cb: learn.profile(5, cbs=cb),
    trace=lambda learn, cb: learn.trace(cbs=cb), seeds=lambda learn, cb: learn.seeds(2, 1, 'order', cbs=cb))
@pytest.mark.parametrize('name', runs)
def test_a_run_that_is_put_back_names_no_way_to_resume(name):
    learn = synth_learner(6).fit(1)
    before = weights(learn)
    with pytest.raises(KeyboardInterrupt) as e: runs[name](learn, CtrlC('after_step'))
    assert str(e.value)=='Stopped. Everything is as it was before.' and weights(learn)==before and learn.at is None

def test_words_of_the_users_own_stay():
    "Of a stop that the model raises; those of the library are replaced where a run around it puts everything back"
    learn = synth_learner(6)
    def forward(*args): raise KeyboardInterrupt('my own words')
    in_fit = Callback(after_step=forward)
    for run in (lambda: learn.smoke(cbs=in_fit), lambda: learn.seeds(2, 1, 'order', cbs=in_fit)):
        with pytest.raises(KeyboardInterrupt) as e: run()
        assert str(e.value)=='my own words'
    learn.model.forward = forward
    for run in (learn.get_preds, learn.validate):
        with pytest.raises(KeyboardInterrupt) as e: run()
        assert str(e.value)=='my own words'

def test_what_resume_lacks_is_said(tmp_path):
    learn = synth_learner(4, path=tmp_path)
    with pytest.raises(RuntimeError, match=r'no fit of this Learner has begun\. Write `fit\(…\)`$'): learn.resume()
    learn.fit(1, cbs=Checkpoint(every=1))
    with pytest.raises(RuntimeError, match=r'the last fit has ended.* Write `fit\(…\)`$'): learn.resume()
    new = synth_learner(4, path=tmp_path, cbs=Checkpoint(every=1)) # in another process
    with pytest.raises(RuntimeError, match=r"`fit\(…, resume='auto'\)` continues from the newest file of "
        '`checkpoint`, or begins anew where there is none$'): new.resume()
    assert weights(new.fit(2, resume='auto'))==weights(synth_learner(4).fit(2))
    fresh = synth_learner(4, path=tmp_path/'new', cbs=Checkpoint(every=1))
    with pytest.raises(RuntimeError, match="resume='auto'"): fresh.resume()
    assert weights(fresh.fit(2, resume='auto'))==weights(new) # as it says

# Together with another stop, and with an error
def test_with_a_stop_that_waits_too_the_fit_can_be_resumed_where_it_was():
    def both(learn):
        if learn.train_iter==3: learn.stop_soon('enough'); ctrl_c()
    learn = synth_learner(4, cbs=[stop := on('after_batch')(both)])
    with pytest.raises(KeyboardInterrupt, match='Stopped in epoch 0, after batch 3 of 4'): learn.fit(2)
    learn.remove_cb(stop)
    assert weights(learn.resume())==weights(synth_learner(4).fit(2))

def test_a_stop_that_waits_hides_no_error():
    def both(learn): learn.stop_soon('enough'); raise ZeroDivisionError
    learn = synth_learner(4, cbs=on('after_batch')(both))
    with pytest.raises(ZeroDivisionError): learn.fit(2)
    assert learn.at.counters.train_iter==1

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
        learn = synth_learner(cbs=[CtrlC('after_pred', 3),
            *([Raise('after_loss', ZeroDivisionError, 3)] if fails else [])])
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

loaders = dict(workers=lambda: DataLoader(Unpicklable(), 2, num_workers=1, multiprocessing_context='spawn'),
    iterator=Broken)

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

awaited = get_context('fork').Event()
class Presses(Dataset):
    "Its worker interrupts the process that awaits a batch"
    def __init__(self, at): self.at,self.main = at,os.getpid()
    def __len__(self): return 8
    def __getitem__(self, i):
        if i==self.at: awaited.wait(); time.sleep(.1); os.kill(self.main, signal.SIGINT); time.sleep(.1)
        return torch.ones(1),torch.ones(1)

@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_while_a_batch_is_awaited_from_a_worker_it_acts_at_once():
    learn = synth_learner(dls=DataLoaders(DataLoader(Presses(5), 2, num_workers=1, multiprocessing_context='fork'),
        device='cpu'), cbs=[trace := Trace('before_draw','after_draw')])
    learn.on('before_draw')(lambda learn: learn.train_iter==2 and awaited.set())
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
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, cbs=[first := CtrlC('after_pred', order=1), second := CtrlC('after_pred', order=2)])
    assert first.survived and not second.survived
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[third := CtrlC('after_pred')])
    assert third.survived and learn.opt_step==1

@pytest.mark.parametrize('ev', ['before_save_state','after_save_state'])
def test_while_a_checkpoint_is_written_it_waits_for_the_file(ev, tmp_path):
    def made(): return synth_learner(n_train=4, n_valid=0, path=tmp_path)
    whole = made().fit(2)
    with pytest.raises(KeyboardInterrupt):
        made().fit(2, cbs=[Checkpoint(every=1, unit='iter', keep=None, on_exc=False), cb := CtrlC(ev, 4)])
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

@pytest.mark.parametrize('ev,n',
    [('after_pred', 2), ('before_draw', 2), ('before_epoch', 2), ('before_validate', 1), ('after_epoch', 1)])
def test_wherever_it_comes_in_an_inner_fit_the_outer_batch_ends(ev, n):
    outer = inside(cb := CtrlC(ev, n))
    assert cb.survived and outer.opt_step==outer.train_iter==2

def test_an_inner_fit_leaves_the_outer_one_its_handler():
    seen = []
    inner = synth_learner(n_train=2)
    def fit(self): seen.append(handler()); inner.fit(1); seen.append(handler())
    synth_learner(n_train=2, cbs=Callback(before_step=fit)).fit(1)
    assert len({*seen})==1 and seen[0] is not signal.default_int_handler

# From the first line of `fit` to its last
def run_anew(code):
    "What a script prints in a process that has imported nothing yet"
    env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(Path(__file__).parents[1]))
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, env=env,
        timeout=300)
    return printed(res)
def printed(res):
    assert not res.stderr, res.stderr
    return res.stdout.splitlines()

late_import = '''
import os,signal,sys
from learner.all import *
class CtrlC:
    "Ctrl-C at the fiftieth import from now on"
    n = 0
    def find_spec(self, *args):
        self.n += 1
        if self.n==50: os.kill(os.getpid(), signal.SIGINT)
cb = CtrlC()
sys.meta_path.insert(0, cb)
try: CALL
except KeyboardInterrupt as e: print('stopped', cb.n>100)
print(synth_learner(2).fit(1).opt_step)
'''

@pytest.mark.parametrize('call', ['synth_learner(2)', pytest.param('synth_learner(2).fit(1)', marks=pytest.mark.slow)])
def test_no_import_is_cut_when_the_first_optimizer_is_made(call):
    "It is imported for when the first learner is made"
    assert run_anew(late_import.replace('CALL', call))==['stopped True', '2']

forked = '''
import os,signal,sys
from torch.utils.data import DataLoader
from learner.all import *
pressed = []
def ctrl_c():
    if learn.mode==MODE and learn.training==TRAINING and not pressed:
        pressed.append(1)
        os.kill(os.getpid(), signal.SIGINT)
os.register_at_fork(WHEN=ctrl_c)
ds = synth_dls().train.dataset
def dl(): return DataLoader(ds, 40, num_workers=2, multiprocessing_context='fork')
learn = synth_learner(dls=DataLoaders(dl(), dl(), device='cpu'))
try: CALL; print('lost')
except KeyboardInterrupt: print('stopped', learn.opt_step, pressed)
'''

@pytest.mark.parametrize('call,mode,training,when,steps',
    [('learn.fit(1)','fit',True,'before',0), ('learn.fit(1)','fit',False,'before',4),
    ('learn.fit(1)','fit',False,'after_in_parent',4), ('learn.validate()','validate',False,'after_in_parent',0)])
def test_a_stop_is_not_lost_while_workers_are_forked(call, mode, training, when, steps):
    code = forked.replace('CALL', call).replace('MODE', repr(mode)).replace('TRAINING', str(training)).replace('WHEN',
        when)
    # where Python cannot raise, it would only write the exception to stderr
    assert printed(run_script(code))==[f'stopped {steps} [1]']

def test_a_second_one_acts_while_workers_start():
    class Slow(DataLoader):
        def __iter__(self): ctrl_c(); first.append(1); ctrl_c(); first.append(2); return super().__iter__()
    first,ds = [],synth_dls().train.dataset
    learn = synth_learner(dls=DataLoaders(Slow(ds, 16, num_workers=1), device='cpu'))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    assert first==[1]

class Prepared(Callback):
    "Ctrl-C when the fit is prepared: no scope is running"
    def after_create(self): ctrl_c(); self.survived = True

def test_while_a_fit_is_prepared_it_waits_until_the_loop_would_begin():
    learn = synth_learner(cbs=[trace := Trace('before_fit')])
    with pytest.raises(KeyboardInterrupt, match='Stopped before training'): learn.fit(1, cbs=[cb := Prepared()])
    assert cb.survived and not trace.seen and learn.opt is not None and learn.mode is None and learn.at is None
    assert learn.fit(1).train_iter==10

def test_a_resume_that_is_stopped_before_it_has_begun_can_be_resumed():
    whole,learn = synth_learner().fit(1),synth_learner()
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=CtrlC('after_pred', 3))
    with pytest.raises(KeyboardInterrupt): learn.resume(cbs=Prepared())
    assert weights(learn.resume(cbs=[]))==weights(whole)

def test_what_a_fit_restores_at_its_end_is_not_cut():
    learn = synth_learner(2)
    class Restored(torch.nn.Module):
        def __setattr__(self, k, v):
            if k=='training' and 'armed' in vars(self): ctrl_c(); vars(self).pop('armed')
            super().__setattr__(k, v)
    learn.model.last = Restored()
    arm = Callback(cleanup_fit=lambda self: vars(learn.model.last).update(armed=True))
    with pytest.raises(KeyboardInterrupt): learn.fit(1, lr=.5, cbs=arm)
    assert (learn.model.training and learn.model.last.training and learn.mode is None
        and learn.opt.param_groups[0]['lr']==.05)

# A stop where Python looks for signals: when a function begins
class PressAt:
    """A trace function that presses Ctrl-C where the `at`-th function of dispatch and scopes begins, outside of
    training and of batches"""
    def __init__(self, learn, at): self.learn,self.at,self.names = learn,at,[]
    def __call__(self, frame, ev, arg):
        if not frame.f_code.co_filename.endswith(('dispatch.py','scopes.py')): return
        if {'train','batch'} & {*self.learn.scopes}: return
        if (name := (frame.f_code.co_qualname, *self.learn.scopes)) in self.names: return
        self.names.append(name)
        if len(self.names)==self.at: handler()(signal.SIGINT, frame) # as Python would call it there

def stopped_at(at):
    learn = synth_learner(1, 1, cbs=Trace())
    learn.create_opt()
    press,old = PressAt(learn, at),sys.gettrace()
    @learn.on('before_fit')
    def begin(learn): press.names or sys.settrace(press) # not when it is resumed
    try: learn.fit(2)
    except KeyboardInterrupt: pass
    else: assert at==0
    finally: sys.settrace(old)
    return learn,len(press.names)

def test_between_phases_no_scope_loses_its_cleanup():
    whole,n = stopped_at(0)
    assert n>20
    for at in range(1, n+1):
        learn,_ = stopped_at(at)
        seen = learn.tracer.seen
        assert (learn.mode is None and not learn.scopes
            and [o for o in cancels if seen.count(f'before_{o}')!=seen.count(f'cleanup_{o}')]==[])
        if learn.at is not None: assert weights(learn.resume())==weights(whole)

# Signals at any time: many runs, each with a Ctrl-C from outside after a random while
timed = '''
import os,random,signal,sys,threading,time,warnings
from torch.utils.data import DataLoader
from learner.all import *
warnings.simplefilter('ignore')
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = random.Random(SEED)
def pressed(longest):
    "Ctrl-C in a while"
    t = threading.Timer(rng.random()*longest, os.kill, (os.getpid(), signal.SIGINT))
    t.start()
    return t
'''
at_forks = timed + '''
ds,ended = synth_dls().train.dataset,[]
def dl(): return DataLoader(ds, 40, num_workers=2, multiprocessing_context='fork')
for _ in range(25):
    learn = synth_learner(dls=DataLoaders(dl(), dl(), device='cpu'))
    t = pressed(.1)
    try: learn.fit(1000, n_iter=200); ended.append('lost')
    except KeyboardInterrupt: ended.append('stopped' if learn.mode is None else learn.mode)
    t.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    learn.fit(1)
print(*{*ended}, len(ended))
'''
at_imports = timed + '''
ended = []
for _ in range(25):
    if pid := os.fork(): ended.append(os.waitpid(pid, 0)[1]); rng.random(); continue
    res = 1
    try:
        t = pressed(1.5)
        try: learn = synth_learner(4); learn.fit(10**6)
        except KeyboardInterrupt: res = 0
        t.join()
        synth_learner(2).fit(1) # the kernel is usable
    except BaseException as e: res = 2; print(repr(e)[:300])
    sys.stdout.flush()
    os._exit(res)
print(*{*ended}, len(ended))
'''

@pytest.mark.slow
@pytest.mark.parametrize('seed', [0])
def test_of_25_stops_while_workers_come_and_go_none_is_lost(seed):
    res = run_script(at_forks.replace('SEED', str(seed)))
    # a worker that ends while it sends a tensor may say so there
    assert res.stdout.splitlines()==['stopped 25'], res.stderr

@pytest.mark.slow
@pytest.mark.parametrize('seed', [0])
def test_after_25_stops_around_the_first_optimizer_the_kernel_is_usable(seed):
    assert run_anew(at_imports.replace('SEED', str(seed)))==['0 25']
