"""Two processes that train together, against `DistributedDataParallel` by hand, on the same batches

By hand there is no meeting before the backward pass: processes that have other numbers of items get other weights than
one process would, and one that leaves a batch lets the others hang. A second loop by hand has one message there, and
weighs each part by its items. What such a message takes does not grow with the batch, so that there are a small and a
large one.

`python -m bench.processes REPEATS` runs in each of the processes; the first one prints what all took.
"""
import json,socket,subprocess,sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import perf_counter,process_time
import torch
from torch import distributed,nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler,DataLoader,SequentialSampler,TensorDataset
from learner.all import *
from .fresh import env,root
from .shared import interleaved,laps,loss_func,opt_func,times

clocks = dict(wall=perf_counter, cpu=process_time)

@dataclass
class Size:
    "What is trained"
    name:str
    n_batch:int
    bs:int
    width:int # of the model's layers

    def data(self):
        n,gen = self.n_batch*self.bs,torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(n, 512, generator=gen), torch.randint(0, 10, (n,), generator=gen))

    def model(self):
        torch.manual_seed(1)
        w = self.width
        return nn.Sequential(nn.Linear(512,w), nn.ReLU(), nn.Linear(w,w), nn.ReLU(), nn.Linear(w,10))

sizes = Size('small', 60, 256, 1024),Size('large', 20, 1024, 2048)

class Half:
    "The half of each batch that belongs to this process"
    def __init__(self, batches, rank): self.batches,self.rank = batches,rank
    def __len__(self): return len(self.batches)
    def __iter__(self):
        for o in self.batches:
            n = len(o)//2
            yield o[n*self.rank:n*(self.rank+1)]

def weighed(loss, n, group):
    "A mean over `n` items, with the weight that it has in the mean of all processes"
    told = torch.tensor([loss.item()*n, n], dtype=torch.float64)
    distributed.all_reduce(told, group=group)
    total,n_all = told.tolist()
    share = n*distributed.get_world_size()/n_all
    return loss if share==1 else loss*share

def by_hand(size, n, meets=False):
    m,ds,group = size.model(),size.data(),distributed.new_group(backend='gloo') if meets else None
    batches = BatchSampler(SequentialSampler(ds), size.bs, False)
    train = DataLoader(ds, batch_sampler=Half(batches, distributed.get_rank()))
    opt = opt_func(m.parameters())
    laps.mark()
    ddp = DistributedDataParallel(m)
    for i in range(n):
        if i: laps.mark()
        ddp.train()
        for xb,yb in train:
            loss = loss_func(ddp(xb), yb)
            if meets: loss = weighed(loss, len(yb), group)
            loss.backward()
            opt.step()
            opt.zero_grad()
    laps.mark()
    return [*m.state_dict().values()]

def ours(size, n):
    m = size.model()
    def mark(learn): laps.mark()
    cbs = [TrainEvalCallback, Recorder, Callback(before_epoch=mark, after_fit=mark)]
    dls = DataLoaders(DataLoader(size.data(), size.bs), device='cpu')
    learn = Learner(dls, m, loss_func, opt_func, default_cbs=False, cbs=cbs)
    with learn.distrib_ctx(): learn.fit(n)
    return [*m.state_dict().values()]

def run(repeats):
    "In one of the processes"
    torch.set_num_threads(1)
    distributed.init_process_group('gloo')
    res = {}
    for size in sizes:
        hand = partial(by_hand, size)
        runs = {'by hand': hand, 'that meets': partial(hand, meets=True), 'ours': partial(ours, size)}
        res[size.name] = {k:interleaved('two processes', runs, max(repeats//2, 3), 1, clock, atol=1e-5)
            for k,clock in clocks.items()}
    if distributed.get_rank()==0: print(json.dumps(res))
    distributed.destroy_process_group()

def two_processes(repeats):
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    here = env | dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE='2', LOCAL_WORLD_SIZE='2')
    cmd = [sys.executable, '-W', 'ignore', '-m', 'bench.processes', str(repeats)]
    procs = [subprocess.Popen(cmd, env=here | dict(RANK=str(i), LOCAL_RANK=str(i)), cwd=root, text=True,
        stdout=subprocess.PIPE if i==0 else subprocess.DEVNULL) for i in range(2)]
    out = procs[0].communicate()[0]
    if any(o.wait() for o in procs): raise RuntimeError("One of the two processes has failed")
    res = json.loads(out.splitlines()[-1])
    for size,k,hand in product(sizes, clocks, ('by hand','that meets')):
        what = 'time on the wall' if k=='wall' else 'CPU time'
        name = f"a {size.name} batch, {what}, against DDP by hand{'' if hand=='by hand' else ' that meets'}"
        seconds = {o:res[size.name][k][o] for o in (hand,'ours')}
        yield times('two_processes', name, seconds, size.n_batch, 'ms a batch', 1.03 if k=='wall' else None,
            'needs a core for each process')

groups = [two_processes]

if __name__=='__main__': run(int(sys.argv[1]))
