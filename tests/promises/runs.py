"""Small runs with all that a run can have, to be stopped anywhere. Run as a program, it kills some, lets new processes
go on with them, and compares"""
import copy,gc,json,math,mmap,os,random,re,shutil,signal,sys,tempfile,time,traceback,warnings
from pathlib import Path
import numpy as np
import torch
from fastcore.foundation import L
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler,DataLoader,Dataset,IterableDataset,RandomSampler,Sampler,get_worker_info
from learner.all import *

# Data whose samples know who they are
class Samples(Dataset):
    "Fixed samples, seen through noise from all three generators"
    def __init__(self, n=42, aug=True):
        gen = torch.Generator().manual_seed(0)
        self.x,self.y,self.aug = torch.randn(n, 4, generator=gen),torch.randn(n, 1, generator=gen),aug
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        noise = .1*(torch.randn(4) + random.random() + float(np.random.rand())) if self.aug else 0.
        return self.x[i]+noise,i,self.y[i]

class Stream(IterableDataset):
    "The same samples in a new order each time, shared out among workers"
    def __init__(self, aug): self.ds = Samples(aug=aug)
    def __iter__(self):
        w = get_worker_info()
        order = torch.randperm(len(self.ds),
            generator=torch.Generator().manual_seed(
                w.seed-w.id if w else torch.empty((), dtype=torch.int64).random_().item())).tolist()
        for i in order[w.id::w.num_workers] if w else order: yield self.ds[i]

class Knowing(IterableDataset):
    "Has an order of its own, and says where it is"
    def __init__(self, aug):
        self.ds,self.gen,self.order,self.i = Samples(aug=aug),torch.Generator().manual_seed(torch.initial_seed()),[],0
    def __iter__(self):
        if not self.order: self.order = torch.randperm(len(self.ds), generator=self.gen).tolist()
        while self.i<len(self.order):
            self.i += 1
            yield self.ds[self.order[self.i-1]]
        self.order,self.i = [],0
    def state_dict(self): return dict(order=list(self.order), i=self.i, gen=self.gen.get_state())
    def load_state_dict(self, s): self.order,self.i = list(s['order']),s['i']; self.gen.set_state(s['gen'])

class Endless:
    "Batches without end, and without a length"
    def __iter__(self):
        ds,i = Samples(aug=False),0
        while True: yield torch.utils.data.default_collate([ds[(i+j)%len(ds)] for j in range(8)]); i += 8

class Order(Sampler):
    "Has a generator of its own, under a name of its own"
    def __init__(self, n): self.n,self.rng = n,np.random.default_rng(torch.initial_seed())
    def __len__(self): return self.n
    def __iter__(self): return iter(self.rng.permutation(self.n).tolist())

def train_loader(kind, workers=0, aug=True, persistent=False):
    ds,kw = Samples(aug=aug),dict(num_workers=workers, persistent_workers=persistent)
    if kind=='shuffled': return DataLoader(ds, 8, shuffle=True, **kw)
    if kind=='own':
        return DataLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(torch.initial_seed()), **kw)
    if kind=='sampler': return DataLoader(ds, 8, sampler=Order(len(ds)), **kw)
    if kind=='weighted': return weighted_dl(ds, 8, torch.arange(42)+1., **kw)
    if kind=='batch_sampler':
        return DataLoader(ds, batch_sampler=BatchSampler(RandomSampler(ds), 8, drop_last=False), **kw)
    if kind=='stream': return DataLoader(Stream(aug), 8, **kw)
    if kind=='knowing': return DataLoader(Knowing(aug), 8)
    if kind=='list': return list(DataLoader(Samples(aug=False), 8))
    if kind=='endless': return Endless()
kinds = 'shuffled','own','sampler','weighted','batch_sampler','stream','knowing','list','endless'

class Net(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.body,self.head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(),
            nn.Dropout(drop)),nn.Linear(8, 1)
    def forward(self, x, ids): return self.head(self.body(x))

class Scaled(nn.Module):
    "A loss that knows how large it has been"
    def __init__(self): super().__init__(); self.register_buffer('m', torch.ones(()))
    def forward(self, pred, y):
        loss = (pred-y).pow(2).mean()
        if self.training: self.m.mul_(.9).add_(.1*loss.detach())
        return loss/self.m

class Log(Callback):
    "Writes the samples of each training batch to a file, as they come"
    order = -20 # before batches are counted
    def __init__(self, path): self.file = Path(path)/'log.txt'
    def after_batch(self):
        if not self.learn.training: return
        with open(self.file, 'a') as f: f.write(json.dumps([self.learn.train_iter, self.learn.xb[1].tolist()])+'\n')
    def read(self): return dict(json.loads(o) for o in self.file.read_text().splitlines()) # the last time counts

def mae(pred, y): return (pred-y).abs().mean()
def counter(k): return lambda learn: learn.state.update({k: learn.state.get(k, 0)+1})

def seed_all(seed): random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)

def learner(case, path, seed):
    "A new process would do the same: other weights, other generators"
    seed_all(seed)
    workers = case.get('workers', 0)
    dls = DataLoaders(train_loader(case.get('loader', 'shuffled'), workers, case.get('aug', True),
        case.get('persistent', False)), DataLoader(Samples(16), 8) if case.get('valid', True) else None, n_inp=2,
        device='cpu')
    groups = case.get('groups')
    several = dict(opt_func=lambda gs: OptimList(torch.optim.AdamW(gs[:1], lr=.003), SGD(gs[1:], lr=.01, mom=.9),
        every=(2,1))) if groups=='several' else {}
    learn = Learner(dls, Net(case.get('drop', .3)), Scaled() if case.get('loss')=='module' else F.mse_loss, metrics=mae,
        path=path, lr=None if several else [.003,.01] if groups else .01, **several,
        **dict(splitter=lambda m: [list(m.body.parameters()), list(m.head.parameters())]) if groups else {}).remove_cb(
        ProgressCallback)
    if groups=='frozen': learn.freeze()
    learn.recorder.train_metrics = case.get('train_metrics', False)
    return learn

scheds = dict(
    step_lr=lambda: TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, .5)),
    torch_cycle=lambda: TorchScheduler(
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, [g['lr'] for g in opt.param_groups], total_steps=40),
        unit='step'),
    plateau=lambda: TorchScheduler(
        lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=.5)))

def lacks(case):
    "What is asked for in `case` whose state is not kept by its callback, so that nobody could go on with it"
    def keeps(cls): return cls._stateattrs or cls.state_dict is not Callback.state_dict
    needs = [*([GradientAccumulation] if case.get('acc') else []),
        *([TorchScheduler] if case.get('sched') in scheds else []),
        *([ParamScheduler] if case.get('sched')=='one_cycle' else [])]
    return [o.__name__ for o in needs if not keeps(o)]

def callbacks(case):
    res = [*([GradientAccumulation(20)] if case.get('acc') else []), *([EMA(.9)] if case.get('ema') else []),
        *([MixUp()] if case.get('mix') else []),
        *([MixedPrecision(case['amp'], init_scale=2.**10, growth_interval=4)] if case.get('amp') else []),
        *([ShortEpochCallback(.5)] if case.get('short') else [])]
    if case.get('between'):
        res += [Validate(4, 'iter'), ExtraValid(DataLoader(Samples(10), 5, shuffle=True), every=4, unit='iter')]
    if case.get('best'): res += [SaveModelCallback(keep=2), EarlyStoppingCallback(patience=3)]
    if case.get('swa'): res.append(SWA(.3, lr=.005))
    if case.get('micro'): res.append(MicroBatch(3))
    if case.get('sched') in scheds: res.append(scheds[case['sched']]())
    if case.get('filters'):
        # all called <lambda>
        res += [on(event.after_batch(every=4))(counter('a')), on(event.before_batch(every=3))(counter('b')),
            on(event.after_step(every=3, unit='step'))(counter('c')),
            on(event.before_draw(once=[5,11]))(counter('d')), on(event.after_epoch(every=2))(counter('e')),
            on(event.before_epoch(every=1, unit='epoch', after=1))(counter('f'))]
    return res

def fit(learn, case, cbs=(), **kwargs):
    bounds = case.get('bounds') or (dict(n_iter=14) if case.get('loader')=='endless' else dict(n_epoch=3))
    f = learn.fit_one_cycle if case.get('sched')=='one_cycle' else learn.fit
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*lr_scheduler.step.*before.*optimizer.step|.*replays its batches')
        return f(cbs=[*callbacks(case), *L(cbs)], **bounds, **kwargs)

def outcome(learn, log=None):
    "All that must be equal, as plain values"
    rec = learn.recorder
    res = dict(weights=dict(learn.model.state_dict()),
        loss=dict(learn.loss_func.state_dict()) if isinstance(learn.loss_func, nn.Module) else None,
        opt=learn.opt.state_dict(), rows=[{k:v for k,v in dict(o).items() if k!='time'} for o in rec.rows],
        iters=rec.iters, lrs=rec.lrs,
        raw=rec.raw_losses, smooth=rec.losses, hps=rec.hps, state=dict(learn.state),
        counts=(learn.epoch, learn.train_iter, learn.opt_step), random=random_state(learn.dls.train))
    return res | (dict(ids=log.read()) if log else {})

wholes = {}
def whole(case):
    "What comes out of a run that is neither stopped nor saved. It is trained once"
    about = str(sorted((k, v) for k,v in case.items() if k not in ('every','unit','keep'))) # which are of its files
    if about not in wholes:
        with tempfile.TemporaryDirectory() as path:
            learn,log = learner(case, path, 1),Log(path)
            fit(learn, case, log)
            wholes[about] = copy.deepcopy(outcome(learn, log)) # without the tensors of the learner
    return wholes[about]

def differences(a, b, where=''):
    "Where two outcomes are not the same, to the last bit"
    if isinstance(a, torch.Tensor) or isinstance(a, np.ndarray):
        return [] if type(a) is type(b) and a.shape==b.shape and a.dtype==b.dtype and bool((a==b).all()) else [where]
    if isinstance(a, dict) and isinstance(b, dict):
        return [o for k in [*a, *(k for k in b if k not in a)]
            for o in (differences(a[k], b[k], f'{where}.{k}') if k in a and k in b else [f'{where}.{k}'])]
    if isinstance(a, (list,tuple)) and isinstance(b, (list,tuple)):
        if len(a)!=len(b): return [f'{where}: {len(a)} and {len(b)}']
        return [o for i,(u,v) in enumerate(zip(a, b)) for o in differences(u, v, f'{where}[{i}]')]
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b): return []
    return [] if a==b else [f'{where}: {a!r} and {b!r}']

class CtrlC(Callback):
    "Ctrl-C at the `n`-th `ev`"
    def __init__(self, ev, n=1, order=0): self.left,self.order = n,order; super().__init__(**{ev: CtrlC.hit})
    def hit(self):
        self.left -= 1
        if self.left==0: signal.raise_signal(signal.SIGINT)
    def state_dict(self): return {} # its count is of this process, and no part of a run
    def load_state_dict(self, state): pass

# Processes that die
places = ['start','draw','batch','validate','between','save','end']
where = mmap.mmap(-1, 1) # shared with the children: where one was when it died

class Where(Callback):
    "Says where the process is"
    order = 2000
    def before_fit(self): where[0] = 0
    def before_draw(self): where[0] = 1 if self.training else 3
    def before_batch(self):
        if self.training: where[0] = 2
    def before_validate(self): where[0] = 3
    def before_epoch(self): where[0] = 4
    def after_epoch(self): where[0] = 4
    def before_save_state(self): self.before = where[0]; where[0] = 5
    def after_save_state(self): where[0] = self.before
    def after_fit(self): where[0] = 6

def die(): os.kill(os.getpid(), signal.SIGKILL)

def die_in_call(module, name, n, after):
    "Die just before or after the `n`-th call of a function of the system"
    f,left,me = getattr(module, name),[n],os.getpid()
    def _f(*args, **kwargs):
        if os.getpid()==me: left[0] -= 1
        if left[0]==0 and not after: die()
        res = f(*args, **kwargs)
        if left[0]==0: die()
        return res
    setattr(module, name, _f)

def die_in_write(n):
    "Die after a write, when `n` bytes of files have been written in all"
    from learner.resume.state_file import HashingFile
    f,left = HashingFile.write,[n]
    def write(self, b):
        left[0] -= len(b)
        if left[0]>0: return f(self, b)
        f(self, bytes(b)[:len(b)+left[0]]); self.flush(); die()
    HashingFile.write = write

def arm(how):
    "What makes this process die; returns callbacks"
    kind,n = how['kind'],how['n']
    if kind=='event': return [Dying(how['ev'], n, how['order'])]
    if kind=='write': die_in_write(n)
    elif kind!='time': die_in_call(os if kind!='unlink' else Path, kind, n, how['after'])
    return []

class Dying(Callback):
    def __init__(self, ev, n, order): self.left,self.order = n,order; super().__init__(**{ev: Dying.hit})
    def hit(self):
        self.left -= 1
        if self.left==0: die()

def child(case, path, seed, how, resume, out):
    "One process: train until the end or death. Writes what came out of it"
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        learn,log = learner(case, path, seed),Log(path)
        save = ([] if case.get('bare') else [
            Checkpoint(every=case.get('every', 2), unit=case.get('unit', 'iter'), keep=case.get('keep', 1),
                on_exc=False)])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            fit(learn, case, [*save, log, Where(), *(arm(how) if how else [])],
                **(dict(resume=resume) if resume else {}))
        warned = [str(o.message) for o in seen if o.category is not DeprecationWarning] # of forks
        torch.save(dict(outcome(learn, log), warned=warned), out)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def spawn(case, path, seed, how=None, resume=None):
    "Run a child; returns its outcome, or None if it was killed"
    out = Path(path)/'out'
    out.unlink(missing_ok=True)
    where[0] = 0
    if (pid := os.fork())==0: child(case, path, seed, how, resume, out)
    if how and how['kind']=='time':
        time.sleep(how['n'])
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status): return None
    if os.WEXITSTATUS(status): raise RuntimeError(f'{case}: a run failed, see above')
    return torch.load(out, weights_only=False)

events = [o for o in dict(moments()) if 'cancel' not in o]
def some_death(rng, seconds):
    kind = rng.choice(['time']*4 + ['event']*4 + ['write','write','fsync','replace','unlink'])
    if kind=='time': return dict(kind=kind, n=rng.uniform(0, seconds))
    if kind=='event':
        return dict(kind=kind, n=rng.randint(1, 12), ev=rng.choice(events), order=rng.choice([-100,0,1500]))
    if kind=='write': return dict(kind=kind, n=rng.randint(1, 60_000))
    return dict(kind=kind, n=rng.randint(1, 12), after=rng.random()<.5)

def some_case(rng):
    case = dict(loader=rng.choice(kinds[:7]*2+kinds[7:]), workers=rng.choice([0,0,2]), aug=rng.random()<.8,
        drop=rng.choice([0.,.3]), acc=rng.random()<.5, ema=rng.random()<.4, mix=rng.random()<.3,
        sched=rng.choice([None,'one_cycle','step_lr','torch_cycle']), filters=rng.random()<.5,
        unit=rng.choice(['iter','iter','step','epoch']), keep=rng.choice([1,2,None]), train_metrics=rng.random()<.3,
        groups=rng.choice([None,None,'two','frozen','several']), loss=rng.choice([None,None,'module']),
        between=rng.random()<.3, best=rng.random()<.3, swa=rng.random()<.2, micro=rng.random()<.2,
        amp=rng.choice([None,None,'bf16','fp16']))
    if case['mix'] or case['acc'] or case['amp']=='fp16': case |= dict(micro=False)
    if case['ema'] or case['sched'] or case['loader'] in ('stream','knowing','endless'): case |= dict(swa=False)
    if case['amp']=='fp16' or case['sched']=='torch_cycle':
        case |= dict(groups='two' if case['groups']=='several' else case['groups'])
    if case['loader'] in ('stream','knowing','endless') and case['sched']=='one_cycle': case['bounds'] = dict(n_iter=14)
    return case | dict(every=1 if case['unit']=='epoch' else rng.choice([1,2,3,5]),
        workers=case['workers'] if case['loader'] not in ('knowing','list','endless') else 0)

def kill_and_go_on(rng, figures, n=1, case=None):
    """Kill a run and those that go on with it, in all `n` times; compare the end with that of a run that nobody
    disturbed"""
    while case is None or lacks(case): case = some_case(rng)
    folder = Path(tempfile.mkdtemp())
    try:
        def new(name): (folder/name).mkdir(); return folder/name
        start = time.perf_counter()
        whole = spawn(case | dict(bare=True), new('whole'), 1)
        seconds,path = 1.5*(time.perf_counter()-start),new('cut')
        deaths = []
        while len(deaths)<n:
            how = some_death(rng, seconds)
            had = (path/'checkpoints'/'manifest.json').exists()
            res = spawn(case, path, 1 if not had else rng.randrange(10**6), how, 'auto' if had else None)
            if res is None:
                deaths.append(how)
                figures['hits'][places[where[0]]] += 1
            else: # it came to its end before
                figures['survivors'] += 1
                shutil.rmtree(path)
                path,deaths = new('cut'),[]
                continue
            if (path/'checkpoints'/'manifest.json').exists():
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter('always')
                    if Checkpoints(path/'checkpoints').newest() is None: figures['unreadable'].append([case, deaths])
                figures['went back'] += len(seen)
            elif had: figures['unreadable'].append([case, deaths])
        had = (path/'checkpoints'/'manifest.json').exists()
        figures['from the start'] += not had
        figures['resumes'] += len(deaths)-(not had)
        figures['kills'] += len(deaths)
        res = spawn(case, path, rng.randrange(10**6) if had else 1, None, 'auto' if had else None)
        if warned := [o for o in res.pop('warned')
                if not re.search('again|lr_scheduler|is no average over samples', o) # of the loss that knows its size
                and not re.search('it had: (`(dying|log|where)` is (gone|new)(; )?)+$', o)]:
            figures['warned'].append([warned[0][:200], case])
        whole.pop('warned')
        if wrong := differences(whole, res): figures['mismatches'].append([wrong[:5], case, deaths])
        left = [o.name for o in (path/'checkpoints').iterdir()]
        listed = [o.name for o in Checkpoints(path/'checkpoints').entries]
        figures['left over'] += len([o for o in left if o not in (*listed, 'manifest.json')])
    finally: shutil.rmtree(folder)

def warm_up():
    """Do once what a first fit does, so that children need not: imports of torch, and reading the source of callbacks.
    No backward pass here: its threads would not survive a fork"""
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.zeros(1)
    Adam([p]).step()
    with tempfile.TemporaryDirectory() as folder: learner({}, folder, 1).fit(0, cbs=[Checkpoint(), Log(folder)])
    gc.collect()
    gc.freeze() # collections in children would copy the memory of all that they visit

def main(kills, seed, case=None):
    torch.set_num_threads(1)
    warm_up()
    rng = random.Random(seed)
    figures = {**dict.fromkeys(['kills','resumes','from the start','survivors','went back','left over'], 0),
        'hits': dict.fromkeys(places, 0), 'mismatches': [], 'unreadable': [], 'warned': []}
    start = time.perf_counter()
    while figures['kills']<kills: kill_and_go_on(rng, figures, rng.choice([1,1,2,3]), case)
    figures['seconds'] = round(time.perf_counter()-start, 1)
    print(json.dumps(figures))

if __name__=='__main__': main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv)>3 else None)
