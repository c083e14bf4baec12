"""What a fresh process takes: imports, the first batch, memory, and whether time and memory grow in proportion

Each measurement runs in a process of its own: `python -m bench.fresh NAME` runs one function, and prints numbers.
"""
import json,os,resource,subprocess,sys
from pathlib import Path
from statistics import median
from time import process_time
from .shared import Row,spread,times

root = Path(__file__).parents[1]
env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(root))
env.pop('PYTHONDONTWRITEBYTECODE', None) # or each process would compile our modules, and not those of others

def child(*args):
    "CPU seconds of a Python process"
    def used():
        o = resource.getrusage(resource.RUSAGE_CHILDREN)
        return o.ru_utime+o.ru_stime
    before = used()
    subprocess.run([sys.executable, *args], env=env, cwd=root, check=True, stdout=subprocess.DEVNULL)
    return used()-before

def numbers(name, *args):
    "What a function of this module prints in a process of its own"
    out = subprocess.run([sys.executable, '-m', 'bench.fresh', name, *map(str, args)], env=env, cwd=root, check=True,
        capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])

# From the start of Python to the end of the first batch
imports = 'import torch,torch.utils.data,numpy,tqdm,fastcore.basics,fastcore.foundation,fastcore.meta'
first = '''
from torch import nn
xb,yb = torch.randn(64,64),torch.randint(0, 10, (64,))
model,loss_func = nn.Linear(64,10),nn.CrossEntropyLoss()
'''
hand_batch = f'''import torch{first}
opt = torch.optim.SGD(model.parameters(), lr=.01)
loss_func(model(xb), yb).backward()
opt.step()
opt.zero_grad()
'''
our_batch = f'''import torch
from learner.all import *{first}
learn = Learner(DataLoaders([(xb,yb)], device='cpu'), model, loss_func, opt_func=torch.optim.SGD, lr=.01)
with learn.no_bar(): learn.fit(1)
'''

def start(repeats):
    repeats = max(repeats//2, 3)
    for name,hand,run,allowed in (
            ('import learner.all, against torch, fastcore and tqdm', imports, 'import learner.all', 1.03),
            ('from import to the end of the first batch', hand_batch, our_batch, 1.1)):
        child('-c', run) # compiles modules
        s = dict(hand=[], ours=[])
        for i in range(repeats):
            for k,code in list(dict(hand=hand, ours=run).items())[::-1 if i%2 else 1]: s[k].append(child('-c', code))
        yield times('start', name, s, 1, 's', allowed)

# Memory of `get_preds`, of what a process needs at most
def peak():
    "Bytes that the process has needed at most, since `reset_peak`"
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(1024*int(o.split()[1]) for o in lines if o.startswith('VmHWM'))

def reset_peak(): Path('/proc/self/clear_refs').write_text('5')

def memory_of(kind, n=40_000, width=500, bs=100):
    """Bytes at the peak above those before, and bytes of the result. Batches are small beside it: what one of them
    needs on its way through model, activation and loss is no part of what is kept"""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader,TensorDataset
    from learner.all import DataLoaders,Learner
    class Wide(nn.Module):
        def forward(self, x): return x.expand(-1, width).contiguous()
    class Batches:
        def __len__(self): return n//bs
        def __iter__(self): return (b for b in DataLoader(TensorDataset(x, y), bs))
    x,y = torch.randn(n, 1),torch.zeros(n, dtype=torch.long)
    dl = DataLoader(TensorDataset(x, y), bs) if kind=='DataLoader' else Batches()
    learn = Learner(DataLoaders([(x[:bs],y[:bs])], device='cpu'), Wide(), nn.CrossEntropyLoss())
    learn.get_preds(dl=DataLoader(TensorDataset(x[:bs], y[:bs]), bs)) # what is loaded and kept at first use
    reset_peak()
    before = peak()
    res = learn.get_preds(dl=dl)
    return dict(extra=peak()-before, result=sum(o.nbytes for o in res))

def memory(repeats):
    if not Path('/proc/self/clear_refs').exists(): return # Linux alone tells
    for kind in 'DataLoader','another iterable with a length':
        o = [numbers('memory_of', kind) for _ in range(3)]
        share = spread([v['extra']/v['result'] for v in o])
        yield Row('get_preds', f'memory, {kind}', '×', o[0]['result']/2**20, *share, 1.05, 'MiB', 'of its result')

# Growth: the first tenth of a long run against the last one
def rss():
    "Bytes that the process needs now"
    return int(Path('/proc/self/statm').read_text().split()[1])*resource.getpagesize()

def grown(marks):
    "Of marks `(seconds, bytes)` of equal parts: seconds of the second part and the last, and bytes of both halves"
    (sec,mem),n = zip(*marks),len(marks)-1
    took = [b-a for a,b in zip(sec, sec[1:])]
    return dict(seconds=sum(took), first=median(took[1:4]), last=median(took[-3:]),
        bytes1=mem[n//2]-mem[1], bytes2=mem[-1]-mem[n//2+1])

def mark(): return process_time(),rss()

def one_fit(n_epoch, n_batch, valid, kwargs):
    "A fit, in 20 parts"
    from learner.all import Callback
    from .shared import batches,ours,seeded
    marks,n = [mark()],n_epoch*n_batch//20
    def after_batch(cb):
        if cb.learn.training and cb.learn.train_iter%n==0: marks.append(mark())
    cbs = [Callback(after_batch=after_batch)]
    cbs[0].order = 1000
    ours(seeded(), batches(min(n_batch, 100))*max(n_batch//100, 1), valid, n_epoch, cbs, **kwargs)
    return grown(marks)

def many_batches(n):
    from .shared import recorded
    return one_fit(1, int(n), None, dict(recorded, metrics=None))

def many_epochs(n):
    from .shared import batches,recorded
    return one_fit(int(n), 1, batches(1), recorded)

def many_learners(n):
    from .shared import batches,defaults,ours,seeded
    train,valid,marks = batches(2),batches(1),[]
    for i in range(int(n)+1):
        if i%(int(n)//20)==0: marks.append(mark())
        ours(seeded(), train, valid, 1, **defaults)
    return grown(marks)

def growth(repeats):
    scale = 1 if repeats>3 else 10
    for f,n,what in ((many_batches, 100_000, 'batches in one epoch'),
            (many_epochs, 20_000, 'epochs of one batch, with a validation'),
            (many_learners, 1000, 'learners, each with a fit')):
        n //= scale
        o = numbers(f.__name__, n)
        ratio = o['last']/o['first']
        yield Row('growth', f'time, {n:,} {what}', '×', o['seconds'], ratio, ratio, ratio, 1.2, 's',
            'the last against the first')
        more = (o['bytes2']-o['bytes1'])/n
        yield Row('growth', f'memory, {n:,} {what}', 'bytes each', o['bytes1']*2/n, more, more, more,
            max(200., .5*o['bytes1']/n), 'bytes each', 'in all; more in the second half than in the first')

groups = start,memory,growth

if __name__=='__main__':
    _,name,*args = sys.argv
    print(json.dumps(globals()[name](*args)))
