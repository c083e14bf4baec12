"Ctrl-C waits for the end of a batch and for nothing else, cleans up, and leaves signals as it found them"
import os,signal,sys,threading
import pytest, torch
from learner.all import *
from parts import shown
from processes import run_script
from signals import ctrl_c,handler,python_handler # noqa: F401

if sys.platform=='win32': pytest.skip('Windows has other signals', allow_module_level=True)

class CtrlC(Callback):
    "Ctrl-C at the `n`-th `ev`, `times` times"
    survived = False
    def __init__(self, ev, n=1, times=1, order=0, training=None, press=ctrl_c):
        self.ev,self.n,self.times,self.count,self.order,self.phase,self.press = ev,n,times,0,order,training,press
        super().__init__(**{ev: CtrlC.at})
    def at(self):
        if self.phase not in (None, self.learn.training): return
        self.count += 1
        if self.count!=self.n: return
        self.press(self.times)
        self.survived = True # it was held

def interrupted(*cbs, n_train=4, **kwargs):
    "A learner whose fit was interrupted, and what it saw"
    trace = Trace()
    learn = synth_learner(n_train=n_train, cbs=[*cbs, trace], **kwargs)
    with pytest.raises(KeyboardInterrupt): learn.fit(2)
    return learn,trace

def check_clean(learn):
    assert learn.mode is None and learn.exc is None and learn.pred is None and learn.dl is None
    assert all(p.grad is None for p in learn.model.parameters()) and learn.model.training and torch.is_grad_enabled()
    learn.fit(1) # nothing is pending
    assert learn.train_iter==len(learn.dls.train) and learn.pct_train==1.

def events_of(training):
    "Events of one whole batch, and those that unwind the scopes around it"
    phase = 'train' if training else 'validate'
    scope = next(o for o in training_loop[1] if o[0]==phase)
    batch = next(o for o in scope if o[0]=='batch')
    return [ev for ev,_ in moments(batch) if 'cancel' not in ev],[f'cleanup_{o}' for o in (phase, 'epoch', 'fit')]

@pytest.mark.parametrize('training,ev', [(t, ev) for t in (True, False) for ev in events_of(t)[0]])
def test_inside_a_batch_it_waits_for_the_end_of_the_batch(training, ev):
    cb = CtrlC(ev, n=2, training=training)
    learn,trace = interrupted(cb)
    batch,unwind = events_of(training)
    assert cb.survived
    last = trace.after('before_batch')
    assert [o for o in last if o!='after_exception']==batch+['before_draw']+unwind and last.count('after_exception')==1
    assert learn.opt_step==learn.train_iter==(2 if training else 4) and learn.epoch==0
    check_clean(learn)

@pytest.mark.parametrize('ev', ['before_train','before_draw','after_draw','after_train','cleanup_train'])
def test_in_training_it_waits_until_nothing_is_half_done(ev):
    cb = CtrlC(ev)
    learn,trace = interrupted(cb)
    assert (cb.survived and learn.train_iter==learn.opt_step
        =={'before_train':0, 'before_draw':0, 'after_draw':1}.get(ev, 4))
    assert learn.at.next==('validate' if ev in ('after_train','cleanup_train') else 'batch') and learn.at.exact
    check_clean(learn)

outside = ['before_fit','before_epoch','before_validate','after_validate','after_epoch','after_fit']

@pytest.mark.parametrize('ev', outside)
def test_in_a_callback_between_phases_it_acts_at_once(ev):
    cb = CtrlC(ev)
    learn,trace = interrupted(cb)
    assert not cb.survived and ('cleanup_fit' in trace.seen)==(ev!='before_fit') # where its turn had not come
    # nothing more of that scope
    if ev.startswith('before_'): assert 'after_'+ev.removeprefix('before_') not in trace.seen
    check_clean(learn)

@pytest.mark.parametrize('ev', ['cleanup_validate', 'cleanup_epoch', 'cleanup_fit'])
def test_a_cleanup_is_not_cut(ev):
    cb,undone = CtrlC(ev, order=1),[]
    learn,trace = interrupted(cb, Callback(**{ev: lambda self: undone.append(ev)}))
    assert cb.survived and undone[0]==ev # callbacks are called in reverse order
    check_clean(learn)

@pytest.mark.parametrize('n', [0, 2])
def test_it_waits_while_a_batch_is_drawn_in_this_process(n):
    class Loader(list):
        press = survived = False
        def __iter__(self):
            for i,b in enumerate(super().__iter__()):
                if i==n and self.press: ctrl_c(); self.survived = True
                yield b
    train = Loader([(torch.randn(2,1), torch.randn(2,1))]*4)
    train.press = True
    learn,trace = interrupted(dls=DataLoaders(train, device='cpu'))
    assert train.survived and trace.seen.count('before_batch')==n+1
    train.press = False
    check_clean(learn)

def test_a_second_one_acts_at_once():
    cb = CtrlC('after_pred', n=2, times=2)
    learn,trace = interrupted(cb)
    assert (not cb.survived and trace.after('before_batch')[-4:]
        ==['cleanup_batch', 'cleanup_train', 'cleanup_epoch', 'cleanup_fit'])
    assert trace.seen.count('after_step')==1
    check_clean(learn)

def test_a_second_one_in_a_later_callback_acts_at_once():
    first,second = CtrlC('after_pred', order=1),CtrlC('after_loss', order=2)
    learn,trace = interrupted(first, second)
    assert first.survived and not second.survived and 'before_step' not in trace.seen
    check_clean(learn)

def test_in_the_last_batch_of_a_fit():
    cb = CtrlC('after_loss', n=4)
    learn = synth_learner(n_train=4, n_valid=0, cbs=cb)
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    assert cb.survived and learn.opt_step==4
    check_clean(learn)

def test_after_exception_sees_it_once():
    seen = []
    cb = Callback(after_exception=lambda self: seen.append(self.exc))
    learn,_ = interrupted(CtrlC('after_pred', n=2), cb)
    assert [type(o) for o in seen]==[KeyboardInterrupt]
    check_clean(learn)

def test_a_batch_that_fails_after_it():
    learn = synth_learner(cbs=[CtrlC('after_pred'), Raise('after_loss', ZeroDivisionError)])
    with pytest.raises(KeyboardInterrupt) as e: learn.fit(1)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    check_clean(learn)

@pytest.mark.parametrize('exc', [CancelBatchException, CancelTrainException, CancelFitException])
def test_it_is_not_lost_when_the_batch_is_cancelled(exc):
    learn,_ = interrupted(CtrlC('after_pred', n=2), Raise('after_loss', exc, n=2))
    check_clean(learn)

def test_inside_a_validation_inside_a_batch():
    class Look(Callback):
        looked = False
        def after_loss(self):
            if self.training and self.iter==1: self.result = self.learn.validate(cbs=cb); self.looked = True
    cb,look = CtrlC('after_pred'),Look()
    learn,trace = interrupted(look)
    assert (cb.survived and look.looked and look.result.names==('valid_loss',) and learn.opt_step==2
        and trace.seen.count('before_backward')==2)
    check_clean(learn)

def test_inside_a_fit_of_another_learner_inside_a_batch():
    inner = synth_learner(n_train=3, cbs=CtrlC('after_pred', times=1))
    learn,_ = interrupted(Callback(after_loss=lambda self: self.training and self.iter==1 and inner.fit(1)))
    assert learn.opt_step==2 and inner.opt_step==3 # the outer batch has ended, and so what it needed
    check_clean(learn)

def test_who_stops_a_fit_inside_a_batch_is_told_once_that_it_was_heard(capsys):
    inner = synth_learner(n_train=3, cbs=[CtrlC('after_pred'), on('after_batch')(lambda learn: print(learn.iter))])
    interrupted(Callback(after_loss=lambda self: self.training and self.iter==1 and inner.fit(1)))
    first,told,*rest = capsys.readouterr().out.splitlines()
    assert first=='0' and 'Stopping at the next pause of the fit around' in told and rest[:2]==['1','2']
    assert not any('Stopping' in o for o in rest)

def test_a_second_one_in_a_fit_inside_a_batch_acts_at_once():
    first,second = CtrlC('after_pred', n=1),CtrlC('after_loss', n=2)
    inner = synth_learner(n_train=3, cbs=[first, second])
    interrupted(Callback(after_loss=lambda self: self.training and self.iter==1 and inner.fit(1)))
    assert first.survived and not second.survived

# Whose handler
@pytest.mark.parametrize('run', [lambda learn: learn.fit(1), Learner.validate], ids=['fit','validate'])
def test_the_handler_is_set_for_the_run_alone(run):
    seen = []
    learn = synth_learner(cbs=Callback(before_fit=lambda self: seen.append(handler()),
        after_fit=lambda self: seen.append(handler())))
    run(learn)
    assert signal.default_int_handler not in seen and seen[0]==seen[1] and handler() is signal.default_int_handler

@pytest.mark.parametrize('cb',
    [Raise('before_fit', ZeroDivisionError), Raise('after_loss', ZeroDivisionError),
        Raise('cleanup_fit', ZeroDivisionError), CtrlC('before_fit')], ids=shown)
def test_the_handler_is_restored_after_errors(cb):
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)): synth_learner(cbs=cb).fit(1)
    assert handler() is signal.default_int_handler

def test_a_standalone_validation_is_interrupted_at_once():
    cb = CtrlC('after_pred')
    learn = synth_learner(cbs=cb)
    with pytest.raises(KeyboardInterrupt): learn.validate()
    assert not cb.survived
    check_clean(learn)

def test_a_handler_of_the_user_is_called_once_at_the_end_of_the_batch():
    calls,trace = [],Trace()
    def mine(signum, frame): calls.append((signum, trace.seen[-1]))
    signal.signal(signal.SIGINT, mine)
    try:
        # it raises nothing, so training goes on
        learn = synth_learner(n_train=4, cbs=[CtrlC('after_loss', n=2), trace]).fit(1)
        assert calls==[(signal.SIGINT, 'before_draw')] and handler() is mine and learn.opt_step==4
    finally: signal.signal(signal.SIGINT, signal.default_int_handler)

def test_a_handler_of_the_user_may_raise_something_else():
    class Stop(Exception): pass
    def mine(signum, frame): raise Stop
    signal.signal(signal.SIGINT, mine)
    try:
        learn = synth_learner(n_train=4, cbs=CtrlC('after_loss', n=2))
        with pytest.raises(Stop): learn.fit(1)
        assert handler() is mine and learn.opt_step==2
    finally: signal.signal(signal.SIGINT, signal.default_int_handler)

@pytest.mark.parametrize('given', [signal.SIG_IGN, signal.SIG_DFL])
def test_ignored_and_default_signals_are_left_alone(given):
    signal.signal(signal.SIGINT, given)
    seen = []
    try:
        learn = synth_learner(n_train=4,
            cbs=[Callback(after_batch=lambda self: seen.append(handler())),
                *([CtrlC('after_loss')] if given==signal.SIG_IGN else [])]).fit(1)
        assert {*seen}=={given}=={handler()} and learn.opt_step==4
    finally: signal.signal(signal.SIGINT, signal.default_int_handler)

def test_in_another_thread_signals_are_left_alone():
    seen,learn = [],synth_learner(cbs=Callback(after_batch=lambda self: seen.append(handler())))
    t = threading.Thread(target=lambda: learn.fit(1))
    t.start(); t.join()
    assert {*seen}=={signal.default_int_handler} and learn.opt_step==10

@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('ev', ['before_draw', 'after_pred'])
def test_a_forked_child_does_not_act(ev):
    def fork(_):
        if (pid := os.fork())==0:
            try: ctrl_c(2); os._exit(0)
            finally: os._exit(1)
        status.append(os.waitpid(pid, 0)[1])
    status,cb = [],CtrlC(ev, n=2, press=fork)
    learn = synth_learner(cbs=cb).fit(1)
    assert status==[0] and learn.opt_step==10

# With workers, in a process group of its own, as in a terminal: everybody gets the signal
script = '''
import os,signal,sys,time
import torch
from torch.utils.data import DataLoader
from learner.all import *
class DS(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): time.sleep(.001); return torch.randn(1),torch.randn(1)
def dl(): return DataLoader(DS(), 4, num_workers=2, persistent_workers=PERSISTENT, multiprocessing_context='fork')
class CtrlC(Callback):
    def __init__(self): self.armed = True
    def EVENT(self):
        if not self.armed or not self.training or self.iter!=2: return
        self.armed = False
        os.killpg(0, signal.SIGINT)
        time.sleep(.2) # the workers have time to die of it
learn = synth_learner(dls=DataLoaders(dl(), dl(), device='cpu'), cbs=CtrlC())
if FIRST: learn.validate(); learn.dls.one_batch()
try: learn.fit(2)
except KeyboardInterrupt as e: print('interrupted', learn.train_iter, learn.opt_step, flush=True)
learn.fit(1)
print('then', learn.train_iter, flush=True)
for o in learn.dls: o._iterator = None
'''

@pytest.mark.parametrize('ev,persistent,first',
    [('before_draw', False, False), ('after_pred', True, False), ('after_pred', True, True)],
    ids=['between batches','in a batch','started before the fit'])
def test_workers_survive(ev, persistent, first):
    code = script.replace('PERSISTENT', str(persistent)).replace('EVENT', ev).replace('FIRST', str(first))
    res = run_script(code)
    assert res.stdout.splitlines()==['interrupted 3 3', 'then 10'], res.stdout+res.stderr
    assert res.stderr=='' # no traceback of a worker
