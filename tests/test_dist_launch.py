"`learn.fit(…, procs=2)`: workers train, and everything is brought back"
import copy,errno,logging,os,re,signal,subprocess,sys,threading,time,warnings
from base64 import b64decode
from functools import partial
from pathlib import Path
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.dist.launch import shown_by
from test_dist import close,slow

class Seen(Callback):
    "Keeps losses, and touches a file at a batch"
    def __init__(self, file=None): self.file,self.losses = file,[]
    def after_batch(self):
        if self.learn.training: self.losses.append(self.learn.loss.item())
        if self.file and self.learn.training and self.learn.train_iter==4: Path(self.file).touch(); time.sleep(1)

class Fails(Callback):
    def __init__(self, rank, ev='after_pred', killed=False):
        def fail(self):
            if rank_distrib()!=rank: return
            if killed: os.kill(os.getpid(), signal.SIGKILL)
            raise OSError('a broken file')
        super().__init__(**{ev: fail})

def weights(learn): return [o.detach().clone() for o in learn.model.parameters()]
def rows(learn): return [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
def learner(**kwargs): return synth_learner(**dict(metrics=rmse, opt_func=Adam, lr=.01) | kwargs)

@slow # a notebook of this part does the same
def test_everything_comes_back(capfd):
    """Weights, optimizer, rows, callbacks, generators: the objects are the same ones, and the next fit goes on as in
    one process; one table is shown"""
    a,b = Seen(),Seen()
    ref = learner().fit_one_cycle(2, cbs=a)
    learn = learner(show=True) # which seeds the generators again
    params,opt = [*learn.model.parameters()],learn.create_opt()
    learn.fit_one_cycle(2, cbs=b, procs=2)
    assert capfd.readouterr().out.count('valid_loss')==1
    assert all(o is p for o,p in zip(learn.model.parameters(), params)) and learn.opt is opt
    close([weights(learn), rows(learn), b.losses, learn.train_iter, learn.stop_reason],
        [weights(ref), rows(ref), a.losses, ref.train_iter, ref.stop_reason], 1e-5)
    torch.manual_seed(5); ref.fit(1)
    torch.manual_seed(5); learn.fit(1)
    close(weights(learn), weights(ref), 1e-5)

class Lookahead(torch.optim.SGD):
    "Slow weights, and the number of steps, are attributes"
    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.n,self.slow = 0,{p:p.detach().clone() for g in self.param_groups for p in g['params']}
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.n += 1
        if self.n%3==0:
            for p,v in self.slow.items(): v.lerp_(p, .5); p.copy_(v)

def test_attributes_of_an_optimizer_come_back():
    "Those of its own, which no `state_dict` has; they refer to the parameters of here"
    def make(): return learner(opt_func=Lookahead)
    ref,learn = make(),make()
    for o,procs in ((ref, None), (learn, 1)): torch.manual_seed(1); o.fit(1, procs=procs)
    assert learn.opt.n==10 and [*map(id, learn.opt.slow)]==[*map(id, learn.model.parameters())]
    for o in (ref, learn): torch.manual_seed(5); o.fit(1)
    close(weights(learn), weights(ref), 1e-5)

class Box: n = 0
class CountsSteps(torch.optim.SGD):
    "Counts steps in an argument of its own, in an object, and beside its groups"
    def __init__(self, params, n=0, **kwargs):
        super().__init__(params, **kwargs)
        self.n,self.box,self.pairs = n,Box(),[[g, torch.zeros(())] for g in self.param_groups]
    def step(self, closure=None):
        super().step(closure)
        self.n += 1
        self.box.n += 1
        for _,t in self.pairs: t += 1

@pytest.mark.filterwarnings('error')
def test_attributes_of_an_optimizer_come_back_that_no_file_could_have():
    learn = learner(opt_func=CountsSteps).fit(1, procs=1)
    assert learn.opt.n==learn.opt.box.n==10
    assert [(g is o, t.item()) for (g,t),o in zip(learn.opt.pairs, learn.opt.param_groups)]==[(True, 10)]

class Slower(nn.Module):
    "Its buffer counts batches, and is in no file"
    def __init__(self): super().__init__(); self.register_buffer('n', torch.zeros(()), persistent=False)
    def forward(self, x):
        if self.training: self.n = self.n+1
        return x/self.n.clamp(min=1)

class Epochs(torch.utils.data.Sampler):
    "Counts its passes, and has a generator"
    def __init__(self, n): self.n,self.passes,self.g = n,0,torch.Generator().manual_seed(5)
    def __len__(self): return self.n
    def __iter__(self):
        self.passes += 1
        return iter([(i*5+self.passes)%self.n for i in torch.randperm(self.n, generator=self.g).tolist()])

def test_what_the_next_fit_depends_on_comes_back():
    """Generators and counts of loaders, buffers that are in no file, a new optimizer, what was frozen: a fit in
    workers, and one here, are two fits here"""
    def fitted(procs):
        torch.manual_seed(3)
        data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 3))
        dl,model = torch.utils.data.DataLoader(data, 4, sampler=Epochs(12)),nn.Sequential(nn.Linear(4, 4), Slower(),
            nn.Linear(4, 3))
        learn = Learner(DataLoaders(dl, device='cpu'), model, nn.MSELoss(), opt_func=torch.optim.RMSprop, lr=.1,
            splitter=lambda m: [[*m[0].parameters()], [*m[2].parameters()]]).remove_cb(ProgressCallback)
        learn.create_opt()
        learn.opt_func = partial(torch.optim.SGD, momentum=.9)
        learn.fit(1, reset_opt=True, cbs=Callback(before_fit=lambda learn: learn.freeze()), procs=procs)
        learn.unfreeze().fit(1)
        return weights(learn),[*learn.recorder.losses],model[1].n.item(),dl.sampler.passes,type(learn.opt)
    here,there = fitted(None),fitted(2)
    assert here[2:]==(6, 2, torch.optim.SGD)
    close(there, here)

class Says(Callback):
    "In the first worker, warns, logs, prints, and writes bytes that are no text, as a library in C may"
    def after_epoch(self):
        warnings.warn('take care')
        warnings.warn('nothing of importance')
        logging.warning('logged')
        print('printed', file=sys.stderr)
        for fd in 1,2: os.write(fd, b'caf\xe9\n')
        print('größe')
        self.learn.monitor = 'rmse'

def test_warnings_logs_and_output_are_shown_and_metrics_come_back(capfd, monkeypatch):
    "What is silenced here is silent in the workers, and what is no text is shown as far as possible"
    monkeypatch.setenv('PYTHONIOENCODING', 'latin-1')
    with warnings.catch_warnings():
        warnings.simplefilter('always')
        warnings.filterwarnings('ignore', 'nothing')
        learn = learner().fit(1, cbs=Says(), procs=2)
    out,err = capfd.readouterr()
    assert all(err.count(o)==1 for o in ('UserWarning: take care', 'WARNING:root:logged', 'printed\n', 'caf\ufffd\n'))
    assert 'nothing' not in err and out.count('caf\ufffd\n')==out.count('größe\n')==1 and learn.train_iter==10
    assert learn.metrics[0].value==learn.recorder[-1,'rmse'] and learn.monitor=='rmse'

def test_workers_train_when_nobody_reads_their_output(monkeypatch):
    "As in `python script.py | head -1`, and in one process"
    for o in 'stdout','stderr':
        closed = open(os.devnull, 'w')
        closed.close()
        monkeypatch.setattr(sys, o, closed)
    assert learner(show=True).fit(1, cbs=Says(), procs=1).train_iter==10

shift = 0.
def shifted(pred, targ): return pred.mean()*0+shift
class Scales(Callback):
    "Has functions as attributes"
    def __init__(self): self.f,self.fs = shifted,dict(a=[partial(shifted, targ=None)])

def count_steps(): count_steps.n = getattr(count_steps, 'n', 0)+1
class Counts(Callback):
    "Calls a function that counts in a variable that it closes over, and one that counts in an attribute of itself"
    def __init__(self):
        n = 0
        def steps():
            nonlocal n
            n += 1
            return n
        self.steps,self.others = steps,[count_steps]
    def after_step(self): self.steps(); self.others[0]()

def test_functions_of_metrics_and_callbacks_are_those_of_here():
    "So what is defined anew after a fit in workers is seen; and what functions have counted comes back"
    global shift
    for o in shifted,Scales: o.__module__ = '__main__' # a function of a notebook or script is sent as it is
    try:
        learn,cb,counts = synth_learner(metrics=shifted),Scales(),Counts()
        learn.fit(1, cbs=[cb, counts], procs=2)
        shift = 5.
        assert learn.validate()['shifted']==5 and cb.f is cb.fs['a'][0].func is shifted
        assert counts.steps()==11 and count_steps.n==10 and counts.others==[count_steps]
    finally:
        for o in shifted,Scales: o.__module__ = __name__
        shift = 0.

@slow
def test_warnings_that_are_errors_here_are_errors_in_the_workers():
    with warnings.catch_warnings(), pytest.raises(UserWarning, match='take care'):
        warnings.filterwarnings('error', 'take')
        learner().fit(1, cbs=Says(), procs=2)

@slow
def test_settings_of_distributed_hold_in_workers(tmp_path):
    "A learner that divides its model does so there, and writes files in parts; one process resumes from such a file"
    ref = learner(path=tmp_path/'one').fit(1)
    learn = learner(path=tmp_path).to_distributed(shard=True, timeout=50)
    had,saves = learn.distributed,Checkpoint(2, 'iter', keep=None, sharded=True)
    learn.fit(1, cbs=saves, procs=2)
    assert learn.distributed is had and (had.shard,had.timeout)==(True,50)
    folder = next((tmp_path/'checkpoints').glob('*iter4.pt.parts'))
    with warnings.catch_warnings(action='error', category=UserWarning): # nothing has changed
        other = learner(path=tmp_path).fit(1, cbs=Checkpoint(folder='other'), resume=folder.with_suffix(''))
    for o in learn,other: close([weights(o), rows(o)], [weights(ref), rows(ref)], 1e-5)

@slow
def test_the_stop_button(tmp_path):
    "Ctrl-C stops the workers between two batches; `resume` goes on here"
    ref,learn,cb = learner().fit(2),learner(),Seen(str(tmp_path/'now'))
    def stop():
        while not (tmp_path/'now').exists(): time.sleep(.05)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match='Stopped in epoch 0, after batch'): learn.fit(2, cbs=cb, procs=2)
    assert 4<=learn.at.batch<10 and len(cb.losses)==learn.at.batch
    learn.resume()
    close([weights(learn), rows(learn), cb.losses], [weights(ref), rows(ref), ref.recorder.raw_losses], 1e-5)

@slow
def test_the_stop_button_on_windows(tmp_path, monkeypatch):
    "There only Ctrl-Break can be sent to another process. Another signal is in its place here"
    (tmp_path/'sitecustomize.py').write_text('import signal\nsignal.SIGBREAK = signal.SIGUSR1')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(signal, 'CTRL_BREAK_EVENT', signal.SIGUSR1, raising=False)
    def send_signal(self, sig, real=subprocess.Popen.send_signal):
        if sig==signal.SIGINT: raise ValueError('Unsupported signal: 2')
        real(self, sig)
    monkeypatch.setattr(subprocess.Popen, 'send_signal', send_signal)
    learn = learner()
    press(tmp_path/'now')
    with pytest.raises(KeyboardInterrupt, match='Stopped in epoch 0, after batch'):
        learn.fit(2, cbs=Seen(str(tmp_path/'now')), procs=1)
    assert learn.resume().train_iter==20

class SlowValidation(Callback):
    "Batches of validations take time; touches a file in the first of them"
    run_train = False
    def __init__(self, file, seconds): self.file,self.seconds,self.batches = file,seconds,0
    def after_batch(self):
        self.batches += 1
        if self.batches==2: Path(self.file).touch()
        time.sleep(self.seconds)

def press(file, times=1, apart=.3):
    "Ctrl-C in this process, some times, as soon as `file` is there"
    def run():
        while not file.exists(): time.sleep(.02)
        for _ in range(times): os.kill(os.getpid(), signal.SIGINT); time.sleep(apart)
    threading.Thread(target=run, daemon=True).start()

@slow
@pytest.mark.parametrize('times,seconds,apart', [(1, .1, 0), (2, .1, .01), (2, 1., .3), (2, .1, .3)])
def test_the_stop_button_in_a_validation(times, seconds, apart, tmp_path):
    """Ctrl-C, once or twice, while workers validate: they leave the validation at once, everything comes back, and the
    fit goes on here, exactly"""
    ref,learn,cb = learner(n_valid=30).fit(2),learner(n_valid=30),SlowValidation(tmp_path/'now', seconds)
    n = len(learn.dls.valid)
    press(tmp_path/'now', times, apart)
    with pytest.raises(KeyboardInterrupt, match='Stopped in epoch 0.*`learn.resume\\(\\)` continues'):
        learn.fit(2, cbs=cb, procs=2)
    assert learn.at.next=='validate' and learn.train_iter==10 and 2<=cb.batches<n
    close(learn.recorder.raw_losses, ref.recorder.raw_losses[:10], 1e-5)
    cb.seconds = 0
    learn.resume()
    close([weights(learn), rows(learn), learn.recorder.raw_losses, learn.opt_step],
        [weights(ref), rows(ref), ref.recorder.raw_losses, ref.opt_step], 1e-5)

@slow
def test_ctrl_c_twice_in_a_long_batch(tmp_path):
    "The second one does not wait for the end of the batch, as in one process; what was done before comes back"
    class Long(Callback):
        run_valid = False
        def after_pred(self):
            if self.learn.train_iter==5 and rank_distrib()==0: (tmp_path/'now').touch(); time.sleep(30)
    learn,t = learner(),time.monotonic()
    press(tmp_path/'now', 2, 1.)
    with pytest.raises(KeyboardInterrupt, match='not exactly: a batch was cut'): learn.fit(2, cbs=Long, procs=2)
    assert time.monotonic()-t<28 and learn.train_iter==5
    close(learn.recorder.raw_losses, learner().fit(1).recorder.raw_losses[:5], 1e-5)

@slow
def test_ctrl_c_before_training(monkeypatch):
    "While workers start, nothing has been done yet, and nothing is awaited"
    from learner.dist.launch import Workers
    echo = Workers._echo
    def echo_interrupted(self): os.kill(os.getpid(), signal.SIGINT); echo(self)
    monkeypatch.setattr(Workers, '_echo', echo_interrupted)
    learn = learner()
    with pytest.raises(KeyboardInterrupt, match='Stopped before training'): learn.fit(1, procs=2)
    assert learn.at is None and learn.fit(1).train_iter==10

@slow
def test_a_stopped_fit_goes_on_in_workers():
    "`resume(procs=2)`: stopped in this process, stopped again in two, ended in this one"
    def stopped(at): return Callback(after_batch=lambda learn: learn.train_iter==at and learn.at_pause(
        lambda: learn.stop_for_now('later'), stops=True))
    ref,learn = learner().fit(3),learner()
    learn.fit(3, cbs=[stopped(4), stopped(17)])
    assert learn.train_iter==4
    learn.resume(procs=2)
    assert learn.train_iter==18 # all hear of it at the meeting of the next batch
    learn.resume()
    close([weights(learn), rows(learn), learn.opt_step], [weights(ref), rows(ref), ref.opt_step], 1e-5)

@slow
@pytest.mark.parametrize('rank', [0, 1])
@pytest.mark.parametrize('ev', ['after_pred','before_backward'])
def test_errors_of_workers(rank, ev):
    "The first error is raised, also where others fail since their connection was closed"
    with pytest.raises(OSError, match='a broken file') as e: learner().fit(1, cbs=Fails(rank, ev), procs=2)
    notes = '\n'.join(e.value.__notes__)
    assert 'in fail' in notes and f'in process {rank} of 2' in notes

@slow
def test_the_error_of_a_worker_is_raised_when_its_files_cannot_be_deleted(monkeypatch):
    "As on a network drive, where a file that a killed process has open stays for a while"
    def rmdir(*args, **kwargs): raise OSError(errno.ENOTEMPTY, 'Directory not empty')
    monkeypatch.setattr(os, 'rmdir', rmdir)
    with pytest.raises(OSError, match='a broken file'): learner().fit(1, cbs=Fails(0), procs=1)

class Lost(Exception):
    "Cannot be made again from its `args`"
    def __init__(self, file, line): super().__init__(f'{file}, line {line}')

@slow
def test_an_error_that_cannot_be_sent_is_told():
    def lose(learn):
        if rank_distrib()==1: raise Lost('a.csv', 3)
    with pytest.raises(RuntimeError, match=r"Lost\('a.csv, line 3'\)(?s:.*)in process 1 of 2"):
        learner().fit(1, cbs=Callback(after_pred=lose), procs=2)

@slow
def test_a_worker_that_ends_by_itself_is_named():
    "And not the one that has waited for it, and says so"
    def leave(learn):
        if rank_distrib()==1: os._exit(3)
    with pytest.raises(RuntimeError, match='Process 1 of 2 has ended with code 3'):
        learner().fit(1, cbs=Callback(after_pred=leave), procs=2)

@slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_killed_worker_is_named(rank):
    learn = learner()
    with pytest.raises(RuntimeError, match=f'Process {rank} of 2 was ended by SIGKILL') as e:
        learn.fit(1, cbs=Fails(rank, killed=True), procs=2)
    assert f'in process {1-rank} of 2' in '\n'.join(e.value.__cause__.__notes__) # what the other had to say

@slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_worker_that_ends_before_it_trains_is_named_and_not_the_one_that_waits_for_it(rank, tmp_path, monkeypatch):
    from learner.dist.launch import Workers
    (tmp_path/'sitecustomize.py').write_text(f"import os\nif os.environ.get('RANK')=='{rank}': exit('no memory')")
    monkeypatch.setattr(Workers._watch, '__defaults__', (2,)) # seconds that the other one is waited for
    monkeypatch.syspath_prepend(str(tmp_path))
    said = f'^Process {rank} of 2 has ended with code 1. Its last lines: (?s:.*)no memory'
    with pytest.raises(RuntimeError, match=said): learner().fit(1, procs=2)

class Ended:
    "A process that runs until it has been looked at some times"
    def __init__(self, looks): self.looks,self.killed = looks,False
    def poll(self): self.looks -= 1; return 0 if self.looks<0 or self.killed else None
    def kill(self): self.killed = True

@pytest.mark.parametrize('writing,rank,killed', [(True, 0, False), (False, 0, True), (True, 1, True)])
def test_the_first_process_has_time_to_write(writing, rank, killed):
    "When one has ended, another one that still runs is killed, because it hangs, unless it is the first, and writes"
    from learner.dist.launch import Workers
    workers = object.__new__(Workers)
    workers.writing,workers.procs,workers.hung = writing,[Ended(0), Ended(0)],[]
    workers.procs[rank].looks = 6
    workers._watch(grace=0)
    assert [o.killed for o in workers.procs]==[killed and i==rank for i in range(2)]

class Keeps(torch.utils.data.IterableDataset):
    def __init__(self): self.it = (o for o in range(9))
    def __iter__(self): return self.it

class Connected(Callback):
    def __init__(self): self.lock = threading.Lock()

class Refuses(Callback):
    def __getstate__(self): raise TypeError("cannot pickle 'Connection' object")

@pytest.mark.parametrize('name,kind,remedy,change', [
    ("learn.dls['train']", 'generator', 'a list of batches',
        lambda learn: DataLoaders((o for o in learn.dls.train))),
    ("learn.dls['valid'].dataset", 'Keeps', 'keeps no generator',
        lambda learn: DataLoaders(learn.dls.train, torch.utils.data.DataLoader(Keeps()))),
    ('learn.model', 'RegModel', '__getstate__', lambda learn: setattr(learn.model, 'lock', threading.Lock())),
    ('connected', 'Connected', 'before_fit', lambda learn: learn.add_cb(Connected)),
    ('refuses', 'Refuses', 'before_fit', lambda learn: learn.add_cb(Refuses))])
def test_what_cannot_be_sent_is_named(name, kind, remedy, change):
    "With what it is and what to write, before a worker is started"
    learn = learner()
    if isinstance(dls := change(learn), DataLoaders): learn.dls = dls
    with pytest.raises(TypeError, match=f"`{re.escape(name)}` is a `{kind}` that cannot be sent to the worker.*"
        f"cannot pickle '.*' object.*{remedy}.*train without `procs`"): learn.fit(1, procs=2)
    assert learn.at is None

def test_a_learner_that_trains_in_workers_cannot_be_run_by_another_thread(monkeypatch):
    "What it trained would be lost when the workers are done"
    from learner.dist import launch
    learn,said = learner(),[]
    def act(f):
        try: f()
        except RuntimeError as e: said.append(str(e))
    class Workers:
        pressed = 0
        def __init__(self, n, folder): pass
        def wait(self):
            for f in (lambda: learn.fit(1), learn.validate):
                thread = threading.Thread(target=act, args=[f])
                thread.start()
                thread.join()
        def end(self): pass
        raise_error = end
    monkeypatch.setattr(launch, 'Workers', Workers)
    learn.fit(1, procs=2)
    assert said==['A run of this Learner runs in another thread: wait until it is over']*2 and not learn.lineage

def test_a_fit_in_workers_cannot_start_inside_of_one():
    "That is said, and not what cannot be sent"
    learn = learner()
    def again(cb): learn.fit(1, procs=2)
    with pytest.raises(RuntimeError, match='`fit` cannot start inside a running `fit`: train another Learner'):
        learn.fit(1, cbs=[Callback(after_batch=again), Connected()])

@slow
def test_a_script_without_a_guard(tmp_path):
    "Workers do not run the script again; its classes are sent along"
    from processes import run_script
    p = run_script('''if True:
        from learner.all import *
        class Mine(Callback):
            def after_fit(self): self.n = num_distrib()
        cb = Mine()
        print('once')
        learn = synth_learner().fit(1, cbs=cb, procs=2)
        print(cb.n, num_distrib())''', cwd=tmp_path)
    assert p.stdout.split()==['once', '2', '1'],p.stderr

@slow
def test_one_table_in_the_cell(monkeypatch, tmp_path):
    "In a notebook, the cell shows what a fit in this process would show there: one display, which ends as a table"
    from html.parser import HTMLParser
    import IPython,IPython.display
    class Shell: user_global_ns = {}
    class Handle:
        def __init__(self, shown): self.shown = [shown]
        def update(self, shown, raw): self.shown.append(shown)
    handles = []
    def display(shown, raw, display_id): handles.append(Handle(shown)); return handles[-1]
    monkeypatch.setattr(IPython, 'get_ipython', lambda: Shell())
    monkeypatch.setattr(IPython.display, 'display', display)
    def cells(html):
        found,parser = [],HTMLParser()
        parser.handle_data = found.append
        parser.feed(html)
        return [float(o) if '.' in o else o for o in found if o.strip() and ':' not in o] # without times
    learner(show=True).fit(2)
    learn = learner(show=True).fit(2, cbs=ShowGraphCallback(), procs=2)
    alone,here,graph = handles
    assert [{*o}=={'image/png','text/plain'} for o in graph.shown]==[True]*2 # one in the place of the other
    here.shown,alone.shown = ([o['text/html'] for o in h.shown] for h in (here, alone))
    close(cells(alone.shown[-1]), cells(here.shown[-1]), 1e-5)
    assert '<table' in here.shown[-1]
    assert all('put' not in vars(o) for o in learn.cbs)

def test_each_of_a_graph_and_a_table_has_a_display_of_its_own():
    import matplotlib; matplotlib.use('Agg')
    sent,learn = {},learner(show=True, cbs=ShowGraphCallback())
    with shown_by([*learn.cbs], lambda i, shown: sent.setdefault(i, []).append(shown)): learn.fit(2)
    table,graph = sent.values()
    assert {k for o in table for k in o}=={'text/html','text/plain'} and 'valid_loss' in table[-1]['text/plain']
    assert len(graph)==2 and all(b64decode(o['image/png']).startswith(b'\x89PNG') for o in graph)
    assert not any('put' in vars(o) for o in learn.cbs)

@slow
def test_what_an_error_of_a_worker_says_it_says_once():
    with pytest.raises(OSError, match='a broken file') as e: learner().fit(1, cbs=Fails(0), procs=2)
    text = ''.join(e.value.__notes__)
    assert 'In the worker' in text and 'in fail' in text
    for o in ('raised by', 'in epoch 0', 'in process 0 of 2'): assert text.count(o)==1

class Order(Callback):
    "Notes what was drawn, and stops after three batches"
    def __init__(self): self.drawn = []
    _stateattrs = 'drawn',
    def after_batch(self):
        self.drawn.append([*self.idxs])
        if self.train_iter==3: self.learn.stop_soon()

@pytest.mark.parametrize('first,then', [(2, None), pytest.param(None, 2, marks=slow)])
def test_a_sampler_with_a_generator_of_its_own_draws_on_in_another_number_of_processes(first, then):
    def fit(first, then):
        ds = TensorDataset(x := torch.linspace(-1, 1, 29)[:,None], x)
        train = DataLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(5))
        learn = synth_learner(dls=DataLoaders(train, device='cpu'))
        learn.fit(3, cbs=(order := Order()), procs=first).resume(procs=then)
        return order.drawn
    assert fit(first, then)==fit(None, None)

class MeanTeacher(Callback):
    "Has an average of the weights, and a list of its tensors"
    def before_fit(self):
        if hasattr(self, 'teacher'): return
        self.teacher = copy.deepcopy(self.learn.model).requires_grad_(False)
        self.weights = [*self.teacher.parameters()]
    @torch.no_grad()
    def after_step(self):
        for t,p in zip(self.weights, self.learn.model.parameters()): t.lerp_(p, .1)
class CountsIn(Callback):
    "In a slot, and in a dict that another one reads"
    __slots__ = 'n',
    def __init__(self, d): self.n,self.d = 0,d
    def after_batch(self): self.n += 1; self.d['n'] = self.d.get('n', 0)+1
class ReadsIn(Callback):
    watches = True
    def __init__(self, d): self.d,self.seen,self.lock = d,[],threading.Lock()
    def __getstate__(self): return {k:v for k,v in vars(self).items() if k!='lock'}
    def after_epoch(self): self.seen.append(self.d['n'])
class Rebuilds(Callback):
    "Weighs classes, and trains the first layer, from the second epoch on; looks at its output"
    def before_fit(self): self.learn.model[0].register_forward_hook(lambda m,i,o: None)
    def before_epoch(self):
        if self.learn.epoch!=1 or len(self.learn.opt.param_groups)==2: return
        self.learn.loss_func = nn.CrossEntropyLoss(weight=torch.tensor([1.,3.]))
        self.learn.opt.add_param_group(dict(params=[*self.learn.model[0].parameters()], lr=.01))

def two_layers(**kwargs):
    torch.manual_seed(0)
    ds = TensorDataset(x := torch.randn(48, 5), (x[:,0]>0).long())
    return Learner(DataLoaders(DataLoader(ds, 8, shuffle=True), device='cpu'), nn.Sequential(nn.Linear(5, 8), nn.ReLU(),
        nn.Linear(8, 2)), nn.CrossEntropyLoss(), opt_func=SGD, lr=.5, **kwargs).remove_cb(ProgressCallback)

def test_objects_that_callbacks_share_come_back_as_one_and_what_they_rebuild_with_them():
    "Two fits in a worker are two fits here"
    def fitted(procs):
        learn,d = two_layers(splitter=lambda m: [[*m[2].parameters()]]),{}
        teacher,counts,reads = cbs = MeanTeacher(),CountsIn(d),ReadsIn(d)
        for _ in range(2): learn.fit(2, cbs=[*cbs, Rebuilds()], procs=procs)
        sizes,one = [len(g['params']) for g in learn.opt.param_groups],teacher.weights[0] is teacher.teacher[0].weight
        return weights(learn),[*teacher.weights],counts.n,reads.seen,sizes,learn.loss_func.weight,one
    here = fitted(None)
    with pytest.warns(UserWarning, match='Hooks that a callback has registered stay in the workers: here, `0` runs '):
        there = fitted(1)
    assert here[2:5]==(24, [6,12,18,24], [2,2]) and here[6]
    close(there, here)

def test_a_model_that_was_rebuilt_in_the_workers_is_refused_before_anything_is_changed():
    learn = two_layers()
    before = weights(learn)
    def cut(cb):
        from torch.nn.utils import prune
        prune.l1_unstructured(cb.learn.model[2], 'weight', amount=.5)
    with pytest.raises(RuntimeError, match='a callback has rebuilt the model in the workers: `2.weight`, '
        '`2.weight_mask`, `2.weight_orig` are not the same there. Everything here is as before'):
        learn.fit(1, cbs=Callback(after_epoch=cut), procs=2)
    close([weights(learn), len(learn.recorder.rows)], [before, 0])

def test_what_would_come_back_to_a_model_of_another_shape_is_refused():
    "Before a tensor is copied"
    from learner.dist.brought_back import _check_model
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 2))
    _check_model(model, copy.deepcopy(model).state_dict())
    other = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)).state_dict()
    with pytest.raises(RuntimeError, match='`1.bias`, `1.weight` are not the same there'): _check_model(model, other)
    lazy,init = (nn.Sequential(nn.LazyLinear(3)) for _ in range(2))
    init(torch.ones(1, 2))
    _check_model(lazy, init.state_dict())

def fit_a_copy(here, **kwargs):
    "Fit a copy, as a worker does, and bring everything back"
    from learner.dist.brought_back import Known,brought_back,take_in
    worker = copy.deepcopy(here)
    known_here,known_there = Known(here, []),Known(worker, []) # before the fit
    worker.fit(1, **kwargs)
    take_in(here, known_here, brought_back(worker, known_there))
    return worker

class HoldsLayers:
    "A loss that is no module, with a layer that is trained and one that gathers statistics"
    def __init__(self): self.scale,self.bn = nn.Linear(2, 2),nn.BatchNorm1d(2, affine=False)
    def __call__(self, pred, targ): return nn.functional.cross_entropy(self.bn(self.scale(pred)), targ)

class AllParams:
    def __init__(self, loss): self.loss = loss
    def __call__(self, model): return [[*model.parameters(), *self.loss.scale.parameters()]]

def test_layers_that_a_loss_holds_come_back():
    here = two_layers()
    loss = here.loss_func = HoldsLayers()
    here.splitter = AllParams(loss)
    here.create_opt()
    before = copy.deepcopy(loss)
    there = fit_a_copy(here).loss_func
    assert here.loss_func is loss
    for k in 'scale','bn':
        now,trained,began = (getattr(o, k).state_dict() for o in (loss, there, before))
        for n in now: assert torch.equal(now[n], trained[n])
        assert any(not torch.equal(now[n], began[n]) for n in now)

class HoldsASet:
    def __init__(self, **kwargs): self.heads = {nn.Linear(2, n, **kwargs) for n in range(2, 9)}
    def __call__(self, pred, targ):
        return nn.functional.cross_entropy(pred, targ)+sum(o(pred).pow(2).mean() for o in self.heads)

@pytest.mark.filterwarnings('ignore:.*are not in the optimizer')
def test_modules_of_a_loss_in_a_set_stay_in_the_workers_and_are_not_trained_there():
    "They have another order there"
    here = two_layers()
    loss = here.loss_func = HoldsASet()
    here.create_opt()
    before = {o:copy.deepcopy(o.state_dict()) for o in loss.heads}
    there = fit_a_copy(here)
    close(weights(here), weights(there))
    assert len(here.recorder.rows)==1
    for o,state in before.items(): close(o.state_dict(), state)
    here.splitter = lambda m: [[*m.parameters(), *(p for o in loss.heads for p in o.parameters())]]
    here.create_opt()
    with pytest.raises(ValueError, match=r'`loss_func.heads.0`.* are trained, and in a set.*use an `nn.ModuleList`'):
        here.fit(1, procs=2)

@pytest.mark.filterwarnings('ignore:.*are not in the optimizer')
@pytest.mark.parametrize('makes_opt', [False, True])
def test_what_a_callback_has_rebuilt_in_the_loss_with_other_shapes_is_told_and_all_else_comes_back(makes_opt):
    here = two_layers()
    here.opt_func = partial(torch.optim.SGD, momentum=.9)
    loss = here.loss_func = HoldsLayers()
    here.splitter = AllParams(loss)
    here.create_opt()
    before = copy.deepcopy(loss.scale.state_dict())
    class Rebuild(Callback):
        def before_fit(self):
            self.learn.loss_func.scale,self.learn.loss_func.bn = nn.Linear(2, 3),nn.BatchNorm1d(3, affine=False)
            if makes_opt: self.learn.create_opt()
    with pytest.warns(UserWarning, match='has rebuilt `loss_func.scale`, `loss_func.bn` in the workers, with other '
        'shapes: their weights here are as before the fit'): there = fit_a_copy(here, cbs=Rebuild())
    close([weights(here), rows(here), here.train_iter], [weights(there), rows(there), there.train_iter])
    assert here.lineage==there.lineage!=() and len(here.recorder.rows)==1
    close(loss.scale.state_dict(), before)
    here.fit(1)

def test_a_layer_that_a_callback_has_replaced_and_its_new_group_come_back():
    "Of the loss, with the same shapes"
    here = two_layers()
    here.opt_func = partial(torch.optim.SGD, momentum=.9)
    loss = here.loss_func = HoldsLayers()
    here.splitter = AllParams(loss)
    here.create_opt()
    def replace(cb):
        cb.learn.loss_func.scale = new = nn.Linear(2, 2)
        cb.learn.opt.add_param_group(dict(params=[*new.parameters()]))
    there = fit_a_copy(here, cbs=Callback(before_epoch=replace))
    close([weights(here), rows(here)], [weights(there), rows(there)])
    close(loss.scale.state_dict(), there.loss_func.scale.state_dict())
    assert [len(g['params']) for g in here.opt.param_groups]==[len(g['params']) for g in there.opt.param_groups]

def test_settings_that_a_callback_has_changed_come_back():
    new = dict(lr=.05, wd=.3, moms=(.9,.8,.9), wd_bn_bias=True, train_bn=False, monitor='train_loss',
        path=Path('there').absolute(), model_dir=Path('weights'))
    here = two_layers()
    here.create_opt()
    fit_a_copy(here, cbs=Callback(after_fit=lambda cb: vars(cb.learn).update(new)))
    assert {k:getattr(here, k) for k in new}==new

@pytest.mark.parametrize('reset', [False, True])
def test_a_rate_that_the_optimizer_brought_along_is_still_its_own(reset):
    "Another optimizer brings another"
    here = two_layers()
    here.lr,here.opt_func = None,torch.optim.RMSprop
    here.create_opt()
    fit_a_copy(here, reset_opt=reset)
    here.opt_func = torch.optim.SGD
    here.create_opt()
    assert here.lr==1e-3

@pytest.mark.parametrize('adds,empty', [(False, False), (True, False), (False, True)])
def test_groups_that_weight_decay_has_split_in_the_workers_come_back(adds, empty):
    "With those that a callback has added. The next fit is that of a learner which has trained here"
    def add(learn): learn.opt.add_param_group(dict(params=[*learn.model[2].parameters()], lr=.1))
    cbs = [Callback(before_train=add)]*adds
    splitter = lambda m: [[*m[0].parameters()] if adds else [*m.parameters()], *[[]]*empty]
    here = two_layers(wd=.1, splitter=splitter)
    here.create_opt()
    worker = fit_a_copy(here, cbs=cbs)
    sizes = [len(g['params']) for g in here.opt.param_groups]
    assert sizes==[len(g['params']) for g in worker.opt.param_groups]==([1,1,2] if adds else [2,2]+[0]*empty)
    close([weights(here), rows(here)], [weights(worker), rows(worker)])
    for o in here,worker: torch.manual_seed(1); o.fit(1)
    close(weights(here), weights(worker))
