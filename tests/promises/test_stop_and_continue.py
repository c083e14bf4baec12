"""Promise 4: stop the cell, look, continue the cell: nothing is left behind, and if nothing was changed the end is the
same to the last bit"""
import os,random,re,signal,sys,threading,time,warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest,torch
from learner.all import *
import runs
from kernels import new_kernel
from processes import run_script
from runs import CtrlC,Log,differences,fit,lacks,learner,outcome,whole

if sys.platform=='win32': pytest.skip('Windows has other signals', allow_module_level=True)
here = Path(__file__).parent

@pytest.fixture(autouse=True)
def python_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler

def stop(learn, case, ev, n):
    "Ctrl-C at the `n`-th `ev` of a fit; whether it came to that"
    try: fit(learn, case, [cb := CtrlC(ev, n), Log(learn.path)])
    except KeyboardInterrupt: return True
    assert cb.left>0

def look(learn):
    "All that one does while a run is stopped"
    learn.validate()
    learn.get_preds()
    learn.dls.one_batch()
    learn.lr_find(num_it=8, show_plot=False)
    repr(learn), learn.recorder.values
    learn.summary()

def state(learn):
    m = learn.model
    return dict(modes=[o.training for o in m.modules()],
        hooks=[len(o._forward_hooks)+len(o._forward_pre_hooks)+len(o._backward_hooks) for o in m.modules()],
        grads=[p.grad for p in m.parameters()],
        trainable=[p.requires_grad for p in m.parameters()], cbs=[o.name for o in learn.cbs],
        hypers={k:get_hyper(learn.opt, k) for k in hypers(learn.opt)}, keys=[{*g} for g in learn.opt.param_groups],
        of_batch=[getattr(learn, o) for o in ('dl','batch','xb','yb','pred','loss','loss_grad','mode','exc')]
        + [learn.route.carry], torch=(torch.is_grad_enabled(), torch.is_autocast_enabled('cpu'),
            torch.get_default_dtype()),
        signals=[signal.getsignal(o) for o in (signal.SIGINT,signal.SIGTERM)])

def check(case, path, ev, n, look=look):
    if lacking := lacks(case): pytest.xfail(f"{lacking} do not keep their state")
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*replays its batches|.*lr_scheduler.step|.*fork|.*lr_find')
        path.mkdir(exist_ok=True)
        learn = learner(case, path, 1)
        learn.create_opt()
        before,threads = state(learn),threading.enumerate()
        if not stop(learn, case, ev, n): return
        assert not differences(before, state(learn)), ev
        if learn.at is None: # nothing has been trained, and nothing is to be resumed
            assert n==1 and ev in ('before_epoch','before_train','before_draw') and learn.train_iter==0
            return
        if look: look(learn)
        learn.resume()
        assert not differences(before, state(learn)), ev
        left = [o for o in threading.enumerate() if o not in threads and type(o).__name__!='TMonitor'] # which is tqdm's
        for o in left: o.join(30) # those of workers end on their own
        assert not [o for o in left if o.is_alive()]
        assert not differences(whole(case), outcome(learn, Log(path)))

cases = [dict(), dict(loader='knowing'), dict(loader='list'), dict(loader='weighted', acc=True),
    dict(loader='batch_sampler', ema=True), dict(mix=True, amp='bf16'), dict(amp='fp16', acc=True),
    dict(filters=True, loader='own'),
    dict(sched='one_cycle'), dict(sched='step_lr'), dict(sched='torch_cycle', acc=True),
    dict(groups='two', train_metrics=True), dict(groups='frozen'), dict(bounds=dict(n_iter=10)),
    dict(bounds=dict(n_step=10)), dict(short=True)]
spots = [(ev, n) for ev in runs.events for n in (1, 2, 8)]

@pytest.mark.parametrize('case', cases, ids=lambda o: ' '.join(f'{k}={v}' for k,v in o.items()) or 'plain')
def test_stop_look_continue(case, tmp_path):
    exact = [o for o in spots if o[0] not in ('before_fit','cleanup_fit','after_fit')]
    for i,(ev,n) in enumerate(random.Random(str(case)).sample(exact, 2)): check(case, tmp_path/str(i), ev, n)

@pytest.mark.slow
@pytest.mark.parametrize('case', cases, ids=lambda o: ' '.join(f'{k}={v}' for k,v in o.items()) or 'plain')
def test_everywhere(case, tmp_path):
    for i,(ev,n) in enumerate(spots):
        if ev not in ('before_fit','cleanup_fit','after_fit'):
            check(case, tmp_path/str(i), ev, n, look if i%4==0 else None)

@pytest.mark.parametrize('case', [dict(workers=2), dict(workers=2, loader='stream', drop=0.)], ids=str)
def test_workers(case, tmp_path): check(case, tmp_path, 'after_loss', 8)

def test_stopped_many_times(tmp_path):
    learn,n = learner(dict(filters=True), tmp_path, 1),0
    on_ = learn.add_cb(cb := CtrlC('after_pred', 3))
    try: fit(learn, dict(filters=True), Log(tmp_path))
    except KeyboardInterrupt: n += 1
    while learn.at:
        cb.left = 4
        try: learn.resume()
        except KeyboardInterrupt: n += 1
    assert n>5 and not differences(whole(dict(filters=True)), outcome(on_, Log(tmp_path)))

def test_with_a_checkpoint_in_between(tmp_path):
    "Stopped, saved by hand, and continued in another learner"
    learn = learner({}, tmp_path, 1)
    stop(learn, {}, 'after_pred', 9)
    learn.save_state('here')
    other = learner({}, tmp_path, 2).load_state('here')
    other.resume(cbs=Log(tmp_path))
    assert not differences(whole({}), outcome(other, Log(tmp_path)))

def test_nothing_to_continue(tmp_path):
    learn = learner({}, tmp_path, 1)
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()
    stop(learn, {}, 'after_pred', 9)
    learn.fit(1)
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()

def test_a_plain_fit_afterwards(tmp_path):
    "It begins anew, with weights and optimizer as they are"
    learn = learner(dict(acc=True), tmp_path, 1)
    stop(learn, dict(acc=True), 'after_pred', 9)
    learn.fit(2)
    assert (learn.epoch, learn.train_iter, len(learn.recorder.rows), learn.recorder.iters)==(1, 12, 2, [6,12])

def test_a_changed_learning_rate_is_respected(tmp_path):
    "The other half of the run is as if a callback had changed it there"
    def make(): return learner({}, tmp_path, 1)
    class Change(Callback):
        def before_batch(self):
            if self.training and self.train_iter==9: self.learn.set_hyper('lr', .05)
    ref = make().fit(3, cbs=Change())
    learn = make()
    stop(learn, {}, 'after_batch', 11) # with two validation batches among them
    assert learn.train_iter==9
    learn.set_hyper('lr', .05)
    learn.resume()
    assert not differences(outcome(ref)['weights'], outcome(learn)['weights']) and learn.recorder.lrs[8:10]==[.01,.05]

def test_a_learning_rate_that_is_kept(tmp_path):
    learn = learner({}, tmp_path, 1)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, lr=.02, cbs=CtrlC('after_pred', 9))
    learn.resume()
    assert {*learn.recorder.lrs}=={.02} and get_hyper(learn.opt, 'lr')==[.01]

def test_a_batch_that_was_drawn_already(tmp_path):
    "A loader that is an iterator goes on where it is"
    learn = learner({}, tmp_path, 1)
    learn.dls.loaders['train'] = (b for b in list(learn.dls.train))
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[CtrlC('after_pred', 3), Log(tmp_path)])
    learn.resume()
    assert sorted(i for o in Log(tmp_path).read().values() for i in o)==list(range(42))

def test_a_look_inside_training_is_not_cut(tmp_path):
    "Ctrl-C that has come before waits until it is over, so that the run can go on exactly"
    class Look(Callback):
        order = 5
        def before_draw(self):
            if self.training and self.train_iter==8: self.learn.validate()
    def make(): return learner({}, tmp_path, 1)
    learn = make()
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[Look(), CtrlC('after_draw', 10, order=-1)])
    with pytest.raises(KeyboardInterrupt): make().fit(3, cbs=[Look(), CtrlC('before_draw', 11)])
    learn.resume()
    assert not differences(outcome(make().fit(3)), outcome(learn))

# In a real terminal
script = '''
import os,select,signal,sys,time,torch,warnings
import runs
from learner.all import *
torch.set_num_threads(1)
warnings.simplefilter('ignore')
case = CASE
def make(): return runs.learner(case, PATH, 1).add_cb(ProgressCallback)
came,byte = os.pipe() # gets the number of each signal
os.set_blocking(byte, False)
signal.set_wakeup_fd(byte, warn_on_full_buffer=False)
class Slow(Callback):
    "Asks for a signal, and does not let the fit end before it came, however long it takes"
    only_fit,asked,had = True,0,0
    def before_fit(self): self.due = True
    def before_batch(self):
        if self.due: print('ready', flush=True)
        self.asked,self.due = self.asked+self.due,False
    def after_pred(self): time.sleep(.01)
    def before_validate(self):
        if self.learn.epoch==2: self.wait()
    def after_fit(self): self.wait()
    def wait(self):
        while self.had<min(self.asked, TIMES) and select.select([came], [], [], 300)[0]:
            self.had += os.read(came, 1)[0]==signal.SIGINT
ref = make()
runs.fit(ref, case)
learn,n = make(),0
try: runs.fit(learn, case, Slow())
except KeyboardInterrupt: n += 1
while learn.at:
    try:
        learn.validate()
        learn.resume()
    except KeyboardInterrupt: n += 1
signal.signal(signal.SIGINT, signal.SIG_IGN) # one that comes too late
print('stopped', n, 'differences', runs.differences(runs.outcome(ref), runs.outcome(learn)), flush=True)
'''
take_terminal = '''
import fcntl,os,termios
terminal = os.open(TERMINAL, os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
for o in range(3): os.dup2(terminal, o)
'''
def in_terminal(case, path, times, rng):
    import pty
    main,side = pty.openpty()
    code = take_terminal.replace('TERMINAL', repr(os.ttyname(side))) + script.replace('CASE', repr(case)).replace(
        'PATH', repr(str(path))).replace('TIMES', '3')
    out,left = b'',times
    with ThreadPoolExecutor(1) as pool:
        process = pool.submit(run_script, code)
        process.add_done_callback(lambda _: os.close(side)) # the last end: there is nothing more to be read
        while True:
            try: new = os.read(main, 4096)
            except OSError: break
            if not new: break
            out += new
            if left and b'ready' in new:
                time.sleep(rng.uniform(.0, .12))
                os.write(main, b'\x03') # the terminal makes a signal for the whole group of it
                left -= 1
    os.close(main)
    return out.decode() + process.result().stderr

@pytest.mark.parametrize('case',
    [dict(drop=.3), pytest.param(dict(workers=2), marks=pytest.mark.slow),
        pytest.param(dict(acc=True, filters=True), marks=pytest.mark.slow)], ids=str)
def test_terminal(case, tmp_path):
    if lacking := lacks(case): pytest.xfail(f"{lacking} do not keep their state")
    out = in_terminal(case, tmp_path, 3, random.Random(str(case)))
    assert re.search(r'stopped [1-3] differences \[\]', out), out[-3000:]

# In a real kernel
def cells(case, path):
    head = script.split('learn,n = make(),0')[0].replace('CASE', repr(case)).replace('PATH',
        repr(str(path))).replace('TIMES', '3')
    return head+'learn = make()', 'runs.fit(learn, case, Slow())', \
        'learn.validate(); learn.get_preds(); learn.lr_find(num_it=6, show_plot=False)', 'learn.resume()', \
            'print(learn.at is None, runs.differences(runs.outcome(ref), runs.outcome(learn)))'

def in_kernel(case, path, times, rng):
    texts = []
    def run(kc, code, interrupt=None):
        "Interrupted so many seconds after it said that it is ready"
        timer = interrupt and threading.Timer(interrupt, lambda: os.kill(pid, signal.SIGINT))
        def hook(msg):
            if msg['msg_type']!='stream': return
            texts.append(msg['content']['text'])
            if timer and 'ready' in texts[-1]: timer.start()
        try:
            return kc.execute_interactive(code, output_hook=hook, timeout=300, allow_stdin=False,
                user_expressions=dict(pid='os.getpid()'))['content']
        finally:
            if timer: timer.join()
    with new_kernel(path, here) as kc:
        setup,go,looks,resume,compare = cells(case, path)
        res = run(kc, setup)
        assert res['status']=='ok', texts
        pid = int(res['user_expressions']['pid']['data']['text/plain'])
        stopped,res = 0,run(kc, go, rng.uniform(.01, .2))
        while res['status']=='error':
            assert res['ename']=='KeyboardInterrupt', res
            stopped += 1
            res = run(kc, looks)
            assert res['status']=='ok', res
            res = run(kc, resume, rng.uniform(.01, .2) if stopped<times else None)
        texts.clear()
        assert run(kc, compare)['status']=='ok'
        return stopped,''.join(texts) # a line may come in pieces

@pytest.mark.parametrize('case',
    [dict(ema=True), pytest.param(dict(workers=2), marks=pytest.mark.slow),
        pytest.param(dict(sched='one_cycle', mix=True, filters=True), marks=pytest.mark.slow)], ids=str)
def test_kernel(case, tmp_path):
    if lacking := lacks(case): pytest.xfail(f"{lacking} do not keep their state")
    stopped,text = in_kernel(case, tmp_path, 3, random.Random(str(case)))
    assert stopped and text=='True []\n', (stopped, text)

def test_bounds_of_a_fit_are_not_those_of_a_look(tmp_path):
    for bounds in (dict(n_step=5), dict(n_iter=5)):
        learn = learner({}, tmp_path, 1).fit(**bounds)
        assert (len(learn.get_preds()[0])==16 and learn.validate().valid_loss>0
            and len(learn.lr_find(num_it=20, show_plot=False, stop_div=False).lrs)==13)
        assert (learn.n_step, learn.n_train_iter)==(bounds.get('n_step'), bounds.get('n_iter'))
