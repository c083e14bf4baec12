"""Whatever breaks, nothing is lost: files appear whole or not at all, earlier ones stay, everything is undone, memory
is freed, and the next fit works"""
import builtins,contextlib,errno,gc,json,multiprocessing,os,pickle,random,signal,socket,sys,threading,weakref
from collections import OrderedDict
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.utils.data import DataLoader,Dataset,TensorDataset
from learner.all import *
from learner.resume.checkpoint_folder import Checkpoints
from learner.record.files import read_plain
from processes import run_script

posix = pytest.mark.skipif(os.name!='posix', reason='other systems have no such signals and files')

def learner(path, seed=0, bs=4, **kwargs):
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)
    ds = TensorDataset(torch.randn(24,4, generator=torch.Generator().manual_seed(0)), torch.arange(24)%3)
    model = nn.Sequential(nn.Linear(4,6), nn.Dropout(.2), nn.ReLU(), nn.Linear(6,3))
    return Learner(DataLoaders(DataLoader(ds, bs, shuffle=True), DataLoader(ds, 8), device='cpu'), model,
        nn.CrossEntropyLoss(), opt_func=lambda ps,lr=.05: SGD(ps, lr, mom=.9), path=path,
        **kwargs).remove_cb(ProgressCallback)

def saver(**kwargs): return Checkpoint(**dict(dict(every=2, unit='iter', keep=2), **kwargs))
def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def same(a, b): return all(torch.equal(x, y) for x,y in zip(a, b, strict=True))

@pytest.fixture(scope='module')
def reference(tmp_path_factory): return weights(learner(tmp_path_factory.mktemp('reference')).fit(2, cbs=saver()))

def world(learn=None):
    "What a fit must leave as it was"
    res = dict(grad=torch.is_grad_enabled(), autocast=torch.is_autocast_enabled('cpu'),
        signals=[signal.getsignal(o) for o in (signal.SIGINT, signal.SIGTERM)],
        threads=sorted(o.name for o in threading.enumerate() if o.name!='QueueFeederThread'),
        children=len(multiprocessing.active_children()),
        fds=len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0, cwd=os.getcwd())
    if learn is not None:
        res |= dict(modes=[m.training for m in learn.model.modules()],
            hooks=[len(m._forward_hooks)+len(m._forward_pre_hooks)+len(m._backward_hooks)
                for m in learn.model.modules()],
        grads=[p.grad for p in learn.model.parameters()], cbs=list(learn.cbs), mode=learn.mode,
        batch=[getattr(learn, o) for o in ('batch','xb','yb','pred','loss','loss_grad','dl','exc','file','saved')],
        carry=learn.route.carry)
    return res

def check_folder(folder, at_least=0):
    "No half-written file under a final name, and no file that nobody knows"
    files = {o.name for o in folder.iterdir()} if folder.exists() else set()
    assert not [o for o in files if o.endswith('.tmp')]
    whole = [o for o in files if o.endswith('.pt')]
    for o in whole: assert {'model','opt','at','callbacks'}<=read_plain(folder/o).keys()
    listed = [o['name'] for o in json.loads((folder/'manifest.json').read_text())] if 'manifest.json' in files else []
    assert len(whole)>=at_least and {*listed}<=files
    return whole

# Errors of the disk
class Broken:
    "From its `n`-th use on, `op` of a file in `folder` fails, as long as this is active"
    def __init__(self, monkeypatch, folder, op, n, code):
        self.folder,self.op,self.n,self.code,self.count,self.active,self.fds = str(folder),op,n,code,0,True,{}
        m,self.open,self.fsync,self.replace = monkeypatch,builtins.open,os.fsync,os.replace
        m.setattr(builtins, 'open', self._open)
        m.setattr(os, 'fsync', self._fsync); m.setattr(os, 'replace', self._replace)
    def use(self, op, path):
        if op!=self.op or not self.active or not str(path).startswith(self.folder): return
        self.count += 1
        if self.count>=self.n: raise OSError(self.code, os.strerror(self.code), str(path))
    def _open(self, file, mode='r', *args, **kwargs):
        if mode[0] in 'wx': self.use('open', file)
        res = self.open(file, mode, *args, **kwargs)
        if mode[0] not in 'wx' or not str(file).startswith(self.folder): return res
        self.fds[res.fileno()] = file
        return _File(res, lambda: self.use('write', file))
    def _fsync(self, fd): self.use('sync', self.fds.get(fd, '')); self.fsync(fd)
    def _replace(self, a, b): self.use('rename', b); self.replace(a, b)

class _File:
    def __init__(self, f, before): self.f,self.before = f,before
    def write(self, b): self.before(); return self.f.write(b)
    def __getattr__(self, k): return getattr(self.f, k)
    def __enter__(self): return self
    def __exit__(self, *args): self.f.close()

disk = [(op, n, code) for op in ('open','write','sync','rename') for n in (1, 2, 3, 7, 8)
    for code in ([errno.ENOSPC, errno.EACCES] if n==7 else [errno.ENOSPC])]

@pytest.mark.parametrize('op,n,code', disk)
def test_a_disk_that_fails_during_a_fit(op, n, code, tmp_path, reference, monkeypatch):
    learn = learner(tmp_path)
    before,broken = world(learn),Broken(monkeypatch, tmp_path, op, n, code)
    with pytest.raises(Exception) as e: learn.fit(2, cbs=saver())
    assert isinstance(e.value, OSError) and e.value.errno==code, e.value
    broken.active = False
    assert world(learn)==before
    whole = check_folder(tmp_path/'checkpoints')
    monkeypatch.undo()
    res = learner(tmp_path, seed=5).fit(2, cbs=saver(), resume='auto')
    if whole: assert same(weights(res), reference) # it went on from one of them
    learn.fit(1, cbs=saver())
    check_folder(tmp_path/'checkpoints', at_least=2)

@pytest.mark.parametrize('op', ['open','write','sync','rename'])
def test_a_disk_that_fails_while_a_state_is_saved(op, tmp_path, monkeypatch):
    learn = learner(tmp_path).fit(1)
    file = learn.save_state('mine')
    old,before,broken = file.read_bytes(),world(learn),Broken(monkeypatch, tmp_path, op, 1, errno.ENOSPC)
    with pytest.raises(OSError, match='No space left'):
        learn.fit(1, cbs=Callback(after_epoch=lambda self: self.learn.save_state('mine')))
    with pytest.raises(OSError, match='No space left'): learn.save_state('mine')
    broken.active = False
    assert file.read_bytes()==old and [o.name for o in file.parent.iterdir()]==[file.name] and world(learn)==before
    learn.fit(1).load_state('mine')

@posix
def test_a_disk_that_is_really_full(tmp_path, reference):
    "The system itself allows no larger files"
    import resource
    learn = learner(tmp_path)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    cb = saver()
    def fill(self):
        if self.learn.train_iter==5: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, old[1]))
    try:
        with pytest.raises(OSError, match='File too large'): learn.fit(2, cbs=[cb, Callback(after_batch=fill)])
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert len(check_folder(tmp_path/'checkpoints', 1))==2
    assert same(weights(learner(tmp_path, seed=5).fit(2, cbs=saver(), resume='auto')), reference)

@posix
def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path/'checkpoints').write_text('mine')
    learn = learner(tmp_path)
    before = world(learn)
    with pytest.raises(OSError, match='checkpoints'): learn.fit(1, cbs=saver())
    with pytest.raises(OSError, match='checkpoints'): learn.save_state(tmp_path/'checkpoints'/'x')
    assert (tmp_path/'checkpoints').read_text()=='mine' and world(learn)==before
    learn.fit(1, cbs=saver(folder='others'))

@posix
def test_a_device_that_is_full(tmp_path):
    learn = learner(tmp_path).fit(1)
    (tmp_path/'models').symlink_to('/dev')
    with pytest.raises(OSError): learn.save_state('full/x')
    learn.fit(1)

# Damaged files
@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
    "The folder of a run that an error ended in its second epoch"
    path = tmp_path_factory.mktemp('stopped')
    with pytest.raises(ZeroDivisionError):
        learner(path).fit(2, cbs=[saver(on_exc=False), Raise('before_draw', ZeroDivisionError, n=12, order=2000)])
    files = Checkpoints(path/'checkpoints')
    assert len(files.entries)==2
    return {o.name:o.read_bytes() for o in files.folder.iterdir()},[o.name for o in files.entries]

def put_back(path, stopped):
    "The same files in `path`"
    files,names = stopped
    folder = path/'checkpoints'
    folder.mkdir(exist_ok=True)
    for o in folder.iterdir(): o.unlink()
    for k,v in files.items(): (folder/k).write_bytes(v)
    return folder,folder/names[-1],folder/names[0]

def flat(o, where=''):
    if isinstance(o, dict):
        for k,v in o.items(): yield from flat(v, f'{where}.{k}')
    elif isinstance(o, (list,tuple)):
        for i,v in enumerate(o): yield from flat(v, f'{where}.{i}')
    else: yield where,type(o),o.numpy().tobytes() if isinstance(o, torch.Tensor) else o

damages = st.one_of(st.tuples(st.just('cut'), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just('flip'), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just('zeros'), st.floats(0, 1, exclude_max=True)))
def damaged(b, kind, where):
    i = int(where*len(b))
    if kind=='cut': return b[:i]
    if kind=='flip': return b[:i] + bytes([b[i]^16]) + b[i+1:]
    n = min(512, len(b)-i)
    return b[:i] + bytes(n) + b[i+n:]

@given(damages)
def test_a_damaged_file_is_noticed(tmp_path_factory, stopped, damage):
    path = tmp_path_factory.mktemp('damaged')
    folder,newest,before = put_back(path, stopped)
    b = newest.read_bytes()
    newest.write_bytes(damaged(b, *damage))
    if newest.read_bytes()==b: return
    with pytest.warns(UserWarning, match=f'{newest.name}.*going back to the one before'):
        assert Checkpoints(folder).newest()[0]==before
    newest.unlink() # the same under a name that no manifest knows
    alone = path/'alone.pt'
    alone.write_bytes(damaged(b, *damage))
    try: res = read_plain(alone)
    except ValueError as e: assert 'alone.pt' in str(e)
    else:
        assert (list(flat(res))==list(flat(read_plain(before.parent.parent/'good.pt')))
            if (before.parent.parent/'good.pt').write_bytes(b) else False)

@pytest.mark.parametrize('damage',
    [('cut',0), ('cut',.5), ('cut',.999), ('flip',.1), ('flip',.5), ('flip',.9), ('zeros',.5)], ids=str)
def test_a_run_goes_on_from_the_file_before(tmp_path, stopped, reference, damage):
    folder,newest,before = put_back(tmp_path, stopped)
    newest.write_bytes(damaged(newest.read_bytes(), *damage))
    with pytest.warns(UserWarning, match='going back'):
        learn = learner(tmp_path, seed=9).fit(2, cbs=saver(), resume=True)
    assert same(weights(learn), reference)

@pytest.mark.parametrize('damage', [('cut',0), ('cut',.5), ('flip',.2), ('flip',.5)], ids=str)
def test_a_damaged_file_that_is_named_changes_nothing(tmp_path, stopped, damage):
    folder,newest,before = put_back(tmp_path, stopped)
    newest.write_bytes(damaged(newest.read_bytes(), *damage))
    learn = learner(tmp_path).fit(1)
    old,was = weights(learn),world(learn)
    for load in (lambda: learn.load_state(newest), lambda: learn.fit(2, resume=newest)):
        with pytest.raises(ValueError, match=newest.name): load()
        assert same(weights(learn), old) and world(learn)==was
    learn.fit(1)

@pytest.mark.parametrize('resume', [True, 'auto'])
def test_a_run_whose_files_are_all_damaged_is_not_begun_anew(tmp_path, stopped, resume):
    folder,newest,before = put_back(tmp_path, stopped)
    for o in (newest, before): o.write_bytes(o.read_bytes()[:100])
    with pytest.warns(UserWarning, match=f'{newest.name}.*going back') as seen, \
            pytest.raises(ValueError, match=f'{before.name}.*no other whole file.*without `resume` begins anew'):
        learner(tmp_path).fit(2, cbs=saver(), resume=resume)
    assert len(seen)==1
    assert learner(tmp_path).fit(2, cbs=saver()).opt_step==12

@posix
@pytest.mark.parametrize('resume', [True, 'auto'])
def test_a_file_that_the_disk_does_not_give_now_is_not_given_up(tmp_path, stopped, reference, resume):
    folder,newest,before = put_back(tmp_path, stopped)
    b = newest.read_bytes()
    newest.unlink()
    newest.symlink_to(newest) # an error of the system, which says nothing of the file
    with pytest.raises(OSError, match=f'symbolic links.*{newest.name}'):
        learner(tmp_path).fit(2, cbs=saver(), resume=resume)
    newest.unlink()
    newest.write_bytes(b)
    assert same(weights(learner(tmp_path, seed=9).fit(2, cbs=saver(), resume=resume)), reference)

# Manifests
@pytest.mark.parametrize('damage', ['missing','empty','cut','flip','binary','number','object','names','no keys'])
def test_a_manifest_that_is_no_manifest(tmp_path, stopped, reference, damage):
    folder,newest,before = put_back(tmp_path, stopped)
    file = folder/'manifest.json'
    b = file.read_bytes()
    if damage=='missing': file.unlink()
    else:
        file.write_bytes(dict(empty=b'', cut=b[:len(b)//2], flip=b[:5]+bytes([b[5]^128])+b[6:],
            binary=bytes(range(256)), number=b'5', object=b'{"name": "a"}', names=json.dumps([newest.name]).encode())
        .get(damage, json.dumps([dict(name=newest.name)]).encode()))
    assert same(weights(learner(tmp_path, seed=9).fit(2, cbs=saver(), resume=True)), reference)
    check_folder(folder, 1)

@pytest.mark.parametrize('name', ['../out.pt', '..', '.', '', '/etc/hostname', 'sub/../../out.pt', 'a\0b.pt', None, 5])
def test_a_manifest_with_evil_names(tmp_path, stopped, name):
    folder,newest,before = put_back(tmp_path, stopped)
    (tmp_path/'out.pt').write_bytes(newest.read_bytes())
    entries = json.loads((folder/'manifest.json').read_text())
    for o in entries: o['name'] = name
    (folder/'manifest.json').write_text(json.dumps(entries))
    learn,before = learner(tmp_path),{o:o.read_bytes() for o in tmp_path.rglob('*') if o.is_file()}
    old = weights(learn)
    for resume in (True, 'auto', folder):
        with pytest.raises(ValueError, match='manifest.json'): learn.fit(1, cbs=saver(), resume=resume)
    with pytest.raises(ValueError, match='manifest.json'): learn.fit(1, cbs=saver(keep=1))
    assert {o:o.read_bytes() for o in tmp_path.rglob('*') if o.is_file()}==before and same(weights(learn), old)
    learn.fit(1)

def test_a_manifest_that_names_files_that_are_gone(tmp_path, stopped, reference):
    folder,newest,before = put_back(tmp_path, stopped)
    newest.unlink()
    with pytest.warns(UserWarning, match=f'{newest.name}.*going back'):
        learn = learner(tmp_path, seed=9).fit(2, cbs=saver(), resume=True)
    assert same(weights(learn), reference)
    check_folder(folder, 1)

# Errors in training
places = [o for o in dict(moments()) if not o.startswith('after_cancel')]
once = 'before_fit','after_fit','cleanup_fit' # in a fit
@pytest.mark.sample(4)
@pytest.mark.parametrize('n', [1, 3])
@pytest.mark.parametrize('ev', places)
def test_an_error_anywhere_while_checkpoints_are_made(ev, n, tmp_path):
    if ev in once: n = 1
    learn = learner(tmp_path, bs=6) # four batches an epoch
    before = world(learn)
    with pytest.raises(ZeroDivisionError) as e:
        learn.fit(3, cbs=[saver(every=1),
            Raise(ev, ZeroDivisionError, n=n, order=random.Random(ev).choice([-200, 5, 2000]))])
    assert f'raised by `Raise.{ev}`' in e.value.__notes__ and world(learn)==before
    whole = check_folder(tmp_path/'checkpoints', at_least=n>1 or ev not in ('before_fit','before_epoch','before_train'))
    learn.fit(1, cbs=saver(folder='others'))
    if not whole: return
    res = learner(tmp_path, seed=4, bs=6).fit(3, cbs=saver(), resume='auto')
    assert res.train_iter==12 and [o.epoch for o in res.recorder.rows]==[0,1,2]

class OOM(nn.Module):
    "Runs out of memory in its `n`-th forward or backward pass"
    def __init__(self, where, n): super().__init__(); self.where,self.n,self.count = where,n,0
    def forward(self, x):
        if not self.training: return x
        self.count += 1
        self.seen = weakref.ref(x)
        if self.where=='forward':
            if self.count==self.n: raise torch.OutOfMemoryError('Tried to allocate 2.00 GiB')
            return x
        return Fails.apply(x, self.count==self.n)

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails): ctx.fails = fails; return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if ctx.fails: raise torch.OutOfMemoryError('Tried to allocate 2.00 GiB')
        return grad,None

@pytest.mark.parametrize('precision', [None,'bf16'])
@pytest.mark.parametrize('where', ['forward','backward'])
def test_out_of_memory(where, precision, tmp_path):
    learn = learner(tmp_path)
    learn.model = nn.Sequential(learn.model, OOM(where, 4))
    before = world(learn)
    cbs = [saver(), GradientAccumulation(8), EMA(.9), *([MixedPrecision(precision)] if precision else [])]
    with pytest.raises(torch.OutOfMemoryError) as e: learn.fit(2, cbs=cbs)
    assert any('batch 3 of `train`' in o for o in e.value.__notes__) and world(learn)==before
    check_folder(tmp_path/'checkpoints', 1)
    learn.fit(1, cbs=cbs)
    assert learn.train_iter==6 and all(p.isfinite().all() for p in learn.model.parameters())

class Dies(Dataset):
    "Its worker dies at a sample, once"
    def __init__(self, how, mark): self.how,self.mark = how,mark
    def __len__(self): return 24
    def __getitem__(self, i):
        if i==13 and not self.mark.exists():
            self.mark.touch()
            os._exit(3) if self.how=='exit' else os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), i/24),i%3

@posix
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.parametrize('how', ['exit','kill'])
@pytest.mark.parametrize('which', ['train','valid'])
def test_a_worker_dies(which, how, persistent, tmp_path):
    learn = learner(tmp_path)
    dl = DataLoader(Dies(how, tmp_path/'mark'), 4, num_workers=2, multiprocessing_context='fork',
        persistent_workers=persistent)
    learn.dls = (DataLoaders(dl, learn.dls.valid, device='cpu')
        if which=='train' else DataLoaders(learn.dls.train, dl, device='cpu'))
    # torch's handler of SIGCHLD may raise while they are being ended
    def without_workers(): return {k:v for k,v in world(learn).items() if k not in ('children','fds')}
    before = without_workers()
    # what torch raises depends on the moment
    with pytest.raises((RuntimeError, OSError, EOFError)) as e: learn.fit(1, cbs=saver())
    assert any(f'of `{which}`' in o for o in e.value.__notes__), e.value.__notes__
    del e
    vars(dl)['_iterator'] = None
    gc.collect()
    assert (without_workers()==before
        and not [o for o in gc.get_objects() if type(o).__name__=='_MultiProcessingDataLoaderIter'])
    check_folder(tmp_path/'checkpoints', 1)
    learn.fit(1, cbs=saver())
    vars(dl)['_iterator'] = None
    assert learn.train_iter==6
    for o in multiprocessing.active_children(): o.terminate(); o.join()

pipe = '''
import sys,os,signal,threading
from learner.all import *
read,write = os.pipe()
os.dup2(write, 1)
learn = synth_learner(show=True, path=sys.argv[1])
cb = Checkpoint()
before = [signal.getsignal(o) for o in (signal.SIGINT, signal.SIGTERM)],threading.active_count()
os.close(read)
learn.fit(3, cbs=cb)
assert ([signal.getsignal(o) for o in (signal.SIGINT, signal.SIGTERM)],threading.active_count())==before
assert learn.mode is None and learn.model.training and all(p.grad is None for p in learn.model.parameters())
with learn.no_logging(): learn.fit(3, cbs=Checkpoint(), resume='auto')
print('then', learn.epoch, learn.train_iter, file=sys.stderr)
sys.stderr.flush()
os._exit(0)
'''

@posix
def test_a_broken_pipe(tmp_path):
    "Nobody reads any more: training goes on"
    p = run_script(pipe, tmp_path)
    assert p.returncode==0 and 'then 2 30' in p.stderr, p.stderr
    check_folder(tmp_path/'checkpoints', 1)

# Memory
class Watch(Callback):
    "Weak references to what a batch is made of"
    def __init__(self): self.refs = {}
    def before_batch(self):
        self.refs.update(batch=weakref.ref(self.learn.batch[0]), target=weakref.ref(self.learn.batch[1]))
    def after_loss(self): self.refs.update(pred=weakref.ref(self.learn.pred), loss=weakref.ref(self.learn.loss))
    def after_backward(self): self.refs['grad'] = weakref.ref(next(self.learn.model.parameters()).grad)

class CtrlC(Callback):
    "In the third batch, as a notebook sends it"
    def after_step(self):
        if self.learn.train_iter==2: signal.raise_signal(signal.SIGINT)

def alive(refs): return [k for k,o in refs.items() if o() is not None]

def failing(kind, path):
    learn,watch = learner(path),Watch()
    if kind in ('forward','backward'): learn.model = nn.Sequential(learn.model, OOM(kind, 4))
    more = {'callback': [Raise('after_backward', ZeroDivisionError, n=4, order=5)],
        'interrupt': [Raise('after_backward', KeyboardInterrupt, n=4, order=5)], 'ctrl-c': [CtrlC()],
        'validation': [Raise('after_validate', ZeroDivisionError)],
        'with techniques': [Raise('after_step', ZeroDivisionError, n=2, order=5), EMA(.9), GradientAccumulation(8),
            MixedPrecision('bf16'), ActivationStats(), saver()]}.get(kind, [])
    return learn,watch,[watch,*more]

@pytest.mark.parametrize('kind', ['callback','interrupt','ctrl-c','forward','backward','validation','with techniques'])
def test_what_a_batch_was_made_of_is_dropped(kind, tmp_path):
    "The exception is kept, as a notebook keeps it"
    learn,watch,cbs = failing(kind, tmp_path)
    kept = None
    gc.disable() # at once
    try:
        try: learn.fit(1, cbs=cbs)
        except BaseException as e: kept = e
        assert kept is not None and len(watch.refs)>=4 and alive(watch.refs)==[]
        assert (kept.__traceback__ is not None
            and any(f.f_code.co_name.startswith('test_what_a_batch') for f in _frames(kept)))
    finally: gc.enable()

def _frames(e):
    tb = e.__traceback__
    while tb: yield tb.tb_frame; tb = tb.tb_next

@pytest.mark.parametrize('call', ['validate','get_preds','lr_find'])
def test_what_a_look_was_made_of_is_dropped(call, tmp_path):
    learn,watch = learner(tmp_path),Watch()
    learn.add_cbs([watch, Raise('after_batch', ZeroDivisionError, n=2)])
    kept = None
    try: getattr(learn, call)()
    except ZeroDivisionError as e: kept = e
    assert kept is not None and len(watch.refs)>=4 and alive(watch.refs)==[]

def test_the_model_is_freed_after_an_exception_in_a_kernel(tmp_path):
    "After `del learn` and the next exception: as in a kernel, the last exception is kept"
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    cfg = Config()
    cfg.HistoryManager.hist_file = ':memory:'
    shell = InteractiveShell(config=cfg)
    shell.showtraceback = lambda *args, **kwargs: setattr(sys, 'last_value', shell._get_exc_info()[1])
    def cell(src): return shell.run_cell(src, store_history=False)
    try:
        shell.user_ns.update(learner=learner, Raise=Raise, path=tmp_path, Watch=Watch, refs=(refs := {}),
            weakref=weakref, saver=saver)
        assert cell("learn = learner(path); watch = Watch(); refs['model'] = weakref.ref(learn.model); refs['learn'] "
            "= weakref.ref(learn)").success
        res = cell("learn.fit(1, cbs=[watch, saver(), Raise('after_backward', ZeroDivisionError, n=3)])")
        assert isinstance(res.error_in_exec, ZeroDivisionError)
        del res
        assert cell("assert not [k for k,o in watch.refs.items() if o() is not None], watch.refs").success
        assert cell("del learn, watch").success
        cell("1/0")
        gc.collect()
        assert alive(refs)==[]
    finally:
        for o in ('last_value','last_traceback','last_type','last_exc'): vars(sys).pop(o, None)

# What files hold
def types(o):
    yield type(o)
    if isinstance(o, dict): yield from (t for p in (*o, *o.values()) for t in types(p))
    elif isinstance(o, (list,tuple)): yield from (t for p in o for t in types(p))

def test_files_hold_tensors_and_plain_values(tmp_path):
    learn = learner(tmp_path)
    learn.state.update(a=[1, 'b', None, torch.ones(2), dict(c=(1., True))])
    learn.dls.train.generator = torch.Generator().manual_seed(1)
    cbs = [saver(), EMA(.9), GradientAccumulation(8), MixUp(), ActivationStats(),
        ParamScheduler(dict(lr=SchedCos(.1, .01))), on(event.after_batch(every=2))(lambda learn: None)]
    learn.fit(1, cbs=cbs)
    res = read_plain(Checkpoints(tmp_path/'checkpoints').newest()[0])
    assert {*types(res)}<={dict,list,tuple,str,int,float,bool,type(None),torch.Tensor,OrderedDict}
    assert ({'python','numpy','torch','own'}<=res['at']['loader']['now'].keys()
        and len(res['at']['loader']['now']['own'])==1)

class Mine: pass
@pytest.mark.parametrize('o,path',
    [(Mine(), r"learn.state\['a'\]\['b'\]\[1\]"), (lambda: 0, r"learn.state\['a'\]\['b'\]\[1\]"), (Path('x'), r"\[1\]"),
        (np.array(['x']), r"\[1\]"), (torch.Generator(), r"\[1\]"), (Mine, r"\[1\]")], ids=lambda o: type(o).__name__)
def test_anything_else_is_refused_with_its_path(o, path, tmp_path):
    learn = learner(tmp_path)
    learn.state['a'] = dict(b=[0, o])
    before = world(learn)
    with pytest.raises(TypeError, match=path+'.*'+type(o).__name__): learn.save_state('x')
    with pytest.raises(TypeError, match=path): learn.fit(1, cbs=saver())
    assert not [*tmp_path.rglob('*.pt*')] and world(learn)==before
    learn.state.clear()
    class Odd(Callback):
        _stateattrs = 'odd',
        def before_fit(self): self.odd = dict(k=o)
    with pytest.raises(TypeError, match=r"learn.odd\['odd'\]\['k'\]"): learn.fit(1, cbs=[saver(), Odd])
    assert not [*tmp_path.rglob('*.pt*')]
    learn.fit(1, cbs=saver())

# Files that would run code
class Evil:
    def __init__(self, mark): self.mark = mark
    def __reduce__(self): return os.system, (f'touch {self.mark}',)
class EvilEval(Evil):
    def __reduce__(self): return eval, (f'open({str(self.mark)!r}, "w").close()',)

def evil_files(folder, good):
    "Files by kind, each of which leaves a mark when it is unpickled the usual way"
    mark = folder/'mark'
    saved = read_plain(good)
    def put(name, o, how=torch.save): how(o, folder/name); return folder/name
    def raw(o, file): file.write_bytes(pickle.dumps(o))
    yield put('whole.pt', Evil(mark))
    yield put('eval.pt', EvilEval(mark))
    yield put('state.pt', {**saved, 'state': dict(a=[Evil(mark)])})
    yield put('model.pt', {**saved, 'model': {**saved['model'], 'x': Evil(mark)}})
    yield put('callbacks.pt', {**saved, 'callbacks': dict(recorder=EvilEval(mark))})
    yield put('random.pt', {**saved, 'at': {**(saved['at'] or {}), 'random': Evil(mark)}})
    yield put('old.pt', {**saved, 'state': dict(a=Evil(mark))},
        lambda o,f: torch.save(o, f, _use_new_zipfile_serialization=False))
    yield put('raw.pt', Evil(mark), raw)
    yield put('raw_dict.pt', dict(model={}, opt=Evil(mark), at=None, callbacks={}), raw)

def no_network(*args, **kwargs): raise AssertionError('the network was asked')

def test_nothing_that_a_file_brings_along_is_run(tmp_path, stopped, monkeypatch):
    monkeypatch.setattr(socket.socket, 'connect', no_network)
    monkeypatch.setattr(socket, 'getaddrinfo', no_network)
    folder,newest,_ = put_back(tmp_path, stopped)
    good,mark = tmp_path/'good.pt',tmp_path/'evil'/'mark'
    newest.rename(good)
    mark.parent.mkdir()
    learn = learner(tmp_path)
    old = weights(learn)
    for file in evil_files(mark.parent, good):
        pickled = file.read_bytes()
        for o in folder.iterdir(): o.unlink()
        (folder/'007-00000-000000002.pt').write_bytes(pickled) # with no manifest
        for load in (lambda: learn.load_state(file), lambda: learn.fit(1, resume=file), lambda: learn.load(file)):
            with pytest.raises((pickle.UnpicklingError, ValueError), match=file.name): load()
        for resume in (True, folder):
            with pytest.raises((pickle.UnpicklingError, FileNotFoundError)): learn.fit(1, cbs=saver(), resume=resume)
        assert not mark.exists(), file
    assert same(weights(learn), old)
    with contextlib.suppress(Exception): torch.load(mark.parent/'eval.pt', weights_only=False)
    assert mark.exists() # they would have
    learn.fit(1)

@pytest.mark.parametrize('name',
    ['http://127.0.0.1:9/x.pt', 'https://example.com/x.pth', 'file:///etc/hostname', 's3://bucket/x', 'hub://a/b'])
def test_nothing_is_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setattr(socket.socket, 'connect', no_network)
    monkeypatch.setattr(socket, 'getaddrinfo', no_network)
    learn = learner(tmp_path)
    for load in (lambda: learn.load_state(name), lambda: learn.fit(1, resume=name)):
        with pytest.raises(FileNotFoundError): load()

@pytest.mark.parametrize('name', ['../x', 'a/../../x', '..'])
def test_names_do_not_lead_out(name, tmp_path):
    learn = learner(tmp_path)
    for f in (learn.save_state, learn.load_state, lambda o: learn.fit(1, resume=o)):
        with pytest.raises(ValueError, match='names no file in'): f(name)
