"What the processes of `together` run: each function returns what a test compares"
import os,signal,threading,time,warnings
from contextlib import suppress
from functools import cache,partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,DistributedSampler,IterableDataset,TensorDataset,random_split
from learner.all import *
from learner.dist import sharding
from learner.dist.processes import processes
from learner.schedule import limits,validation

class Ids(Callback):
    "Ids of the samples that count, by epoch: they are the first feature"
    order = 90
    def __init__(self): self.seen = {}
    def after_batch(self):
        self.seen.setdefault((self.learn.epoch, self.learn.dl_name),
            []).extend(self.learn.xb[0].flatten(1)[:,0].long().tolist())

class Syncs(Callback):
    "For each batch, whether its gradients are averaged over the processes"
    def __init__(self): self.syncs = []
    def after_loss(self):
        if self.learn.training and num_distrib()>1:
            self.syncs.append(self.learn.distributed.engine.averaged.ddp.require_backward_grad_sync)

def numbers(n, kind):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, 5, generator=g)
    x[:,0] = torch.arange(n)
    if kind=='tokens':
        y = torch.randint(0, 3, (n, 4), generator=g)
        y[torch.rand(n, 4, generator=g)<.4] = -100
        y[n//2:n//2+3] = -100 # samples without any token
        return x,y
    return x,(torch.randn(n, 3, generator=g) if kind=='elements' else torch.randint(0, 3, (n,), generator=g))

class Head(nn.Module):
    "Scales the id away; for tokens, scores of shape (bs, classes, 4)"
    def __init__(self, kind):
        super().__init__()
        self.body,self.kind = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 12 if kind=='tokens' else 3)),kind
    def forward(self, x):
        x = self.body(x*torch.tensor([.01,1,1,1,1]))
        return x.view(-1, 3, 4) if self.kind=='tokens' else x

losses = dict(
    classes=nn.CrossEntropyLoss(), weights=nn.CrossEntropyLoss(torch.tensor([.2,1.,3.])), tokens=nn.CrossEntropyLoss(),
    elements=nn.MSELoss(), summed=partial(F.cross_entropy, reduction='sum'), model=None)

class OwnLoss(nn.Module):
    def __init__(self): super().__init__(); self.head = Head('classes')
    def forward(self, x, y): return F.cross_entropy(self.head(x), y)

class Batches(IterableDataset):
    def __init__(self, *tensors): self.tensors = tensors
    def __iter__(self): return iter(zip(*self.tensors))

def loader(tensors, bs, how, shuffle=True):
    if how=='list': return [tuple(t[i:i+bs] for t in tensors) for i in range(0, len(tensors[0]), bs)]
    if how=='stateful':
        from torchdata.stateful_dataloader import StatefulDataLoader
        return StatefulDataLoader(TensorDataset(*tensors), bs, shuffle=shuffle)
    if how=='iterable': return DataLoader(Batches(*tensors), bs)
    if how=='arrays': # of indices, backwards: one has nothing but a zero for the last process
        order = np.arange(len(tensors[0]))[::-1]
        return DataLoader(TensorDataset(*tensors), batch_sampler=[order[i:i+bs] for i in range(0, len(order), bs)])
    if how=='weighted': return weighted_dl(TensorDataset(*tensors), bs, torch.linspace(.1, 1, len(tensors[0])))
    return DataLoader(TensorDataset(*tensors), bs, shuffle=shuffle, num_workers=1 if how=='workers' else 0)

def make(kind='classes', n=53, bs=8, n_valid=11, how='map', seed=1, lr=.1, metrics=(), **kwargs):
    torch.manual_seed(seed)
    train,valid = numbers(n, kind),numbers(n_valid, kind)
    dls = DataLoaders(loader(train, bs, how), loader(valid, 4, 'map', False), device='cpu',
        n_inp=2 if kind=='model' else None)
    kwargs = dict(opt_func=partial(torch.optim.SGD, momentum=.9)) | kwargs
    return Learner(dls, OwnLoss() if kind=='model' else Head(kind), lr=lr, metrics=metrics,
        **dict(loss_func=losses[kind]) | kwargs)

def state(learn, **more):
    rows = [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
    return dict(rank=rank_distrib(), weights=[p.detach().clone() for p in learn.model.parameters()], rows=rows,
        losses=[*learn.recorder.losses],
        iters=(learn.train_iter, learn.opt_step, learn.n_iter), random=torch.rand(3), **more)

techniques = dict(clip=lambda: GradientClip(.1), bf16=lambda: MixedPrecision('bf16'), ema=lambda: EMA(.9),
    ema_buffers=lambda: EMA(.9, buffers=True), accumulate=lambda: GradientAccumulation(20),
    mixup=MixUp, mixup_alike=lambda: MixUp(by_sample=False))

def fit(*cbs, n_epoch=2, ids=False, **kwargs):
    learn,seen,syncs = make(**kwargs),Ids(),Syncs()
    with learn.distrib_ctx(): learn.fit(n_epoch, cbs=[*(techniques[o]() for o in cbs), seen, syncs])
    return state(learn, ids=seen.seen, syncs=syncs.syncs, model=type(learn.model).__name__)

metrics = [accuracy, 'f1', 'auc', 'torchmetrics']
class Seconds(AvgMetric):
    "A metric of a known kind that gathers more: the fraction of the targets that are of the second class"
    def __init__(self): super().__init__(accuracy, 'seconds')
    def reset(self): super().reset(); self.found = self.seen = 0
    def accumulate(self, learn):
        super().accumulate(learn)
        self.found,self.seen = self.found+int((learn.y==1).sum()),self.seen+len(learn.y)
    def merge(self, states): self.found,self.seen = (sum(o[k] for o in states) for k in ('found','seen'))
    @property
    def value(self): return self.found/self.seen if self.seen else None

def alternations(pred, targ):
    "Depends on the order of the samples"
    right = (pred==targ).float()
    return (right[1:]-right[:-1]).abs().sum()/len(right)

def fit_with_metrics(n_valid):
    import torchmetrics
    mets = [accuracy, F1Score(average='macro'), RocAuc(), Perplexity(), Seconds(),
        AccumMetric(alternations, dim_argmax=1),
        torchmetrics.Accuracy('multiclass', num_classes=3, average='macro'),
        torchmetrics.ConfusionMatrix('multiclass', num_classes=3)] # a sum, which shows if it is added up twice
    learn = make(n_valid=n_valid, metrics=mets, default_cbs=False,
        cbs=[TrainEvalCallback, Recorder(train_metrics=True)])
    with learn.distrib_ctx():
        learn.fit(2)
        return state(learn, alone=dict(learn.validate()), after=dict(learn.validate(dl=learn.dls.train)))

def regression_metrics():
    learn = make('elements', n_valid=9, metrics=[rmse, R2Score(), PearsonCorrCoef(), SpearmanCorrCoef()])
    with learn.distrib_ctx(): return state(learn.fit(1))

def preds(how):
    learn = make(how=how, n=22)
    with learn.distrib_ctx():
        learn.fit(1)
        return [*learn.get_preds(0, with_input=True, with_decoded=True, with_loss=True), *learn.get_preds(),
            learn.get_preds(concat_dim=None)[0]]

def kept_in_validation():
    "What a validation keeps, and the average of the losses of its batches"
    learn,kept = make(n=49, n_valid=9, metrics=AvgSmoothLoss(), default_cbs=False,
        cbs=[TrainEvalCallback, Recorder(train_metrics=True)]),GatherPredsCallback(with_loss=True)
    with learn.distrib_ctx():
        learn.fit(1, cbs=kept)
        alone = GatherPredsCallback()
        return state(learn, kept=[kept.preds, kept.targets, kept.losses],
            results=dict(learn.validate(dl=loader(numbers(9, 'classes'), 4, 'list'), cbs=alone)), alone=alone.preds)

def norms_in_validation():
    "Losses of validations that were recorded, and those of the model of this process on all samples at that time"
    torch.manual_seed(1)
    x,y = numbers(9, 'classes')
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    learn = Learner(DataLoaders(loader(numbers(44, 'classes'), 8, 'map'), loader((x, y), 4, 'map', False),
        device='cpu'), model, F.cross_entropy, lr=.1).remove_cb(ProgressCallback)
    res,found = [],[]
    class Alone(Callback):
        order,run_train = -1000,False # while the weights are there that were validated
        def after_validate(self):
            with torch.no_grad(): found[-1].append(F.cross_entropy(self.model(x), y).item())
    with learn.distrib_ctx():
        for cbs in [Validate(2, 'iter')],[EMA(.5, buffers=True, validate=True)]:
            found.append([])
            learn.fit(2, cbs=[Alone(), *cbs])
            res.append((found.pop(), list(learn.recorder['valid_loss'])))
    return res

class Letters(nn.Module):
    "For each text its length, and what does not depend on it; or a sum, which cannot be put together"
    def __init__(self): super().__init__(); self.weight,self.sums = nn.Parameter(torch.ones(3)),False
    def forward(self, texts):
        lengths = torch.tensor([float(len(o)) for o in texts])
        return lengths.sum()*self.weight if self.sums else lengths[:,None]*self.weight

def texts():
    "Predictions for batches without a tensor, and the texts that later events see"
    words,seen = ['x'*i for i in range(1, 10)],[]
    learn = Learner(DataLoaders([(['x'],)], device='cpu'), Letters(), cbs=[])
    def see(cb): seen.extend(cb.learn.x)
    loaders = DataLoader(words, 4, collate_fn=lambda o: (o,)),[(words[:4],), (words[4:8],), (words[8:],)]
    with learn.distrib_ctx():
        res,refused = [learn.get_preds(dl=o, reorder=False, cbs=Callback(after_batch=see))[0] for o in loaders],None
        learn.model.sums = True
        try: learn.get_preds(dl=loaders[0], reorder=False)
        except ValueError as e: refused = str(e)
    return res,seen,refused

class OfImages(nn.Module):
    "Scores for a list of images; the loss, if it gets targets"
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
    def forward(self, images, targets=None):
        scores = self.layer(torch.stack([*images]))
        return scores if targets is None else loss_of_images(scores, targets)
def loss_of_images(scores, targets): return F.cross_entropy(scores, torch.stack([o['label'] for o in targets]))

class OfGraphs(nn.Module):
    "The loss of graphs: nodes of all of them, the graph of each node, and a label for each graph"
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
    def forward(self, nodes, graphs, y):
        return F.cross_entropy(torch.zeros(len(y), 3).index_add(0, graphs, self.layer(nodes)), y)

def joined_graphs(samples):
    ns = [int(y['label'])+1 for _,y in samples]
    graphs = torch.repeat_interleave(torch.arange(len(ns)), torch.tensor(ns))
    nodes = torch.cat([x.expand(n, 5) for (x,_),n in zip(samples, ns)])
    return nodes,graphs,torch.stack([y['label'] for _,y in samples])

def listed(kind, own_loss, n, *cbs):
    "A fit with batches that are lists of images and dicts, as for detectors, or graphs"
    torch.manual_seed(1)
    x,y = numbers(n+9, 'classes')
    data = [(a/10, dict(label=b, boxes=torch.zeros(int(b), 4))) for a,b in zip(x, y)]
    def collate(samples):
        if kind=='graphs': return joined_graphs(samples)
        return tuple(map(list if kind=='lists' else tuple, zip(*samples)))
    dls = DataLoaders(DataLoader(data[:n], 8, shuffle=True, collate_fn=collate),
        DataLoader(data[n:], 4, collate_fn=collate), device='cpu', n_inp=3 if kind=='graphs' else 2 if own_loss else 1)
    learn = Learner(dls, OfGraphs() if kind=='graphs' else OfImages(), None if own_loss else loss_of_images,
        opt_func=partial(torch.optim.SGD, momentum=.9), lr=.1).remove_cb(ProgressCallback)
    return state(learn.to_distributed().fit(2, cbs=[GradientAccumulation(20) if o=='accumulate' else o for o in cbs]))

def masked_out():
    "Batches in which no target counts have a loss of 0"
    def masked(pred, y):
        counts = (y!=1).float()
        return (F.cross_entropy(pred, y, reduction='none')*counts).sum()/counts.sum().clamp(min=1)
    masked.n_items = lambda y: (y!=1).sum()
    torch.manual_seed(1)
    x,y = numbers(41, 'classes')
    y[:8] = 1
    batches = [(a/10, b) for a,b in zip(x.split(4), y.split(4))]
    learn = Learner(DataLoaders(batches, device='cpu'), nn.Linear(5, 3), masked,
        opt_func=SGD, lr=.1).remove_cb(ProgressCallback)
    return state(learn.to_distributed().fit(2))

def validated_inside():
    "A fit whose batches are cut, with a validation inside of each, whose batches are cut too"
    learn,valid = make(how='list', n=21),loader(numbers(5, 'classes'), 4, 'list')
    def look(cb):
        if cb.learn.training: cb.learn.validate(dl=valid)
    with learn.distrib_ctx(): learn.fit(1, cbs=Callback(after_pred=look))
    return state(learn)

def several(cases): return [globals()[name](*args, **kwargs) for name,args,kwargs in cases]

class Loud(Callback):
    "Warns, draws random numbers, and notes from what each process draws them in training"
    def before_train(self): warnings.warn('loud')
    def after_step(self): self.drawn = torch.get_rng_state().tolist()
    def after_train(self): torch.rand(3)

def outputs(folder):
    "A fit that shows, logs and saves, in a folder of its own"
    # the rate is too high: the best epoch is not the last
    learn,loud = make(path=folder, metrics=accuracy, lr=2.),Loud()
    cbs = [CSVLogger(), SaveModelCallback('accuracy', fname='best'), Checkpoint(), loud]
    with learn.distrib_ctx(), warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter('always')
        learn.fit(3, cbs=cbs)
    there = sorted(o.name for o in Path(folder).rglob('*') if o.is_file())
    names = [o.name for o in learn.cbs]
    return state(learn, files=there, drawn=loud.drawn, warned=sum('loud' in str(o.message) for o in ws), names=names)

def afterwards():
    "The learner is as usual after a distributed fit: one process trains on alone, then all together again"
    learn = make()
    with learn.distrib_ctx(): learn.fit(1)
    same = type(learn.model) is Head and learn.forward_with is None and not learn.route.peers
    if rank_distrib()==0: learn.fit(1)
    with learn.distrib_ctx(): learn.fit(1) # the others begin with the weights of the first one
    return state(learn, same=same)

def stop_early():
    learn = make(lr=1e-3)
    with learn.distrib_ctx():
        learn.fit(9, cbs=[EarlyStoppingCallback(min_delta=1., patience=2), ReduceLROnPlateau(patience=1)])
    return state(learn, reason=learn.stop_reason)

def by_clock(kind):
    "A fit in which callbacks read the clock, and that of the second process is twice as fast"
    learn = make()
    def clock(): return learn.train_iter*(1+rank_distrib())
    limits.monotonic = validation.monotonic = clock
    cbs = dict(limit=lambda: TimeLimit(5), validate=lambda: Validate(every=4, unit='s'))[kind]()
    with learn.distrib_ctx(): learn.fit(2, cbs=cbs)
    return state(learn, reason=learn.stop_reason)

def find_lr():
    learn = make()
    with learn.distrib_ctx(): res = learn.lr_find(num_it=12, show_plot=False)
    return state(learn.fit(0), found=[float(o) for o in res] if isinstance(res, tuple) else float(res))

class Act(Callback):
    """Does something in one process, -1 for the last one, at one event of one batch or epoch; in training or not, where
    that is given"""
    def __init__(self, f, ev, rank, at=3, training=None):
        def act(self):
            learn = self.learn
            who = num_distrib()-1 if rank==-1 else rank # which is not known before the fit
            if rank_distrib()!=who or learn.train_iter<at or self.done: return
            if training in (None, learn.training): self.done = True; f(learn)
        self.done = False
        super().__init__(**{ev: act})

def raises(e):
    def f(learn): raise e
    return f

def signals(signum): return lambda learn: os.kill(os.getpid(), signum)

def killed_at(pattern):
    "Kills this process when the next file or folder of that name appears"
    def f(learn):
        def found(): return {*Path(learn.path).rglob(pattern)}
        def watch():
            while True:
                with suppress(OSError): # a folder is gone
                    if not found()<=before: os.kill(os.getpid(), signal.SIGKILL)
        before = found()
        threading.Thread(target=watch, daemon=True).start()
    return f

acts = dict(cancel=raises(CancelFitException('enough')), skip=raises(CancelBatchException),
    epoch=raises(CancelEpochException('next')),
    train=raises(CancelTrainException), error=raises(ValueError('oops')), interrupt=signals(signal.SIGINT),
    terminate=signals(signal.SIGTERM), kill=signals(signal.SIGKILL),
    stop_now=lambda learn: learn.stop_for_now('now'),
    stop=lambda learn: learn.at_pause(lambda: learn.stop_for_now('later'), stops=True),
    sleep=lambda learn: time.sleep(3))

def act(what, ev='after_batch', rank=1, at=3, folder='.', resume=False, **kwargs):
    "A fit in which something happens in one process; what is left of it"
    learn,exc,t = make(path=folder),None,time.monotonic()
    if kwargs.get('shard'): kwargs['shard'] = plugin()
    with learn.distrib_ctx(**kwargs):
        try: learn.fit(2, cbs=Act(acts[what], ev, rank, at))
        except BaseException as e: exc = type(e).__name__,str(e),' '.join(getattr(e, '__notes__', ()))
        done = learn.train_iter
        if resume: learn.resume()
    return dict(exc=exc, done=done, reason=learn.stop_reason, seconds=time.monotonic()-t,
        at=learn.at and learn.at.where(), rows=len(learn.recorder.rows),
        model=type(learn.model).__name__, peers=learn.route.peers or None,
        weights=[p.detach().clone() for p in learn.model.parameters()])

class Validated(Callback):
    "Batches of each validation, of which each takes time; in one process something happens in the first one"
    run_train = False
    def __init__(self, what=None, rank=1, at=3, seconds=.05):
        self.f,self.rank,self.at,self.seconds,self.batches = acts.get(what),rank,at,seconds,[]
    def before_validate(self): self.batches.append(0)
    def after_batch(self):
        self.batches[-1] += 1
        if not self.f or self.learn.mode!='fit': return
        time.sleep(self.seconds)
        if rank_distrib()==self.rank and len(self.batches)==1 and self.batches[0]==self.at: self.f(self.learn)

def stopped_in_validation(what, rank=1, n_valid=400, resume=True, how='map', **kwargs):
    "A fit that is stopped by one process in its first validation, and resumed"
    learn,seen,exc = make(n_valid=n_valid, how=how, metrics=accuracy),Validated(what, rank),None
    with learn.distrib_ctx(**kwargs):
        try: learn.fit(2, cbs=seen)
        except BaseException as e: exc = type(e).__name__,str(e)
        cut,at,seen.f = [*seen.batches],learn.at and learn.at.next,None
        if what and resume: learn.resume()
    return state(learn, exc=exc, cut=cut, at=at, batches=seen.batches)

class Began(Callback):
    "The first training batch of this process"
    at = None
    def after_batch(self):
        if self.at is None and self.learn.training: self.at = self.learn.train_iter

def resumed(folder, stop_at, n=53, how='stop', every=None, shard=False, cbs=(), loads='map', sharded=False, rank=-1,
    **kwargs):
    "Continue a saved run, and stop again after some batches; None: at its end"
    learn = make('weights', n=n, path=folder, how=loads, **kwargs)
    stop = [] if stop_at is None else [Act(acts.get(how) or killed_at(how), 'after_batch', rank, stop_at)]
    saves,began = Checkpoint(every, 'iter', sharded=sharded) if every else Checkpoint(),Began()
    cbs = [saves, GradientAccumulation(20), *(techniques[o]() for o in cbs), began, *stop]
    with learn.distrib_ctx(shard=plugin() if shard else False): learn.fit(3, cbs=cbs, resume='auto')
    return state(learn, began=began.at)

def dropout_resumed():
    "Weights of a run with dropout: whole, stopped and resumed, and resumed from a file"
    def trained(*cbs, again=lambda learn: None, **kwargs):
        learn = make(n=26, path=folder)
        learn.model = nn.Sequential(nn.Dropout(.3), learn.model)
        learn.to_distributed().fit(2, cbs=cbs, **kwargs)
        again(learn)
        return [p.detach().clone() for p in learn.model.parameters()]
    def halt(learn): learn.at_pause(learn.stop_for_now, stops=True)
    stop = on(event.after_batch(once=3, unit='iter'))(halt)
    folder = processes().from_first(mkdtemp)
    whole,resumed = trained(),trained(stop, again=Learner.resume)
    trained(stop, Checkpoint())
    return whole,resumed,trained(stop, Checkpoint(), resume=True)

def train_metrics(shard=False):
    "Metrics of training: in rows in the middle of an epoch, where a run was stopped, and resumed there and from a file"
    import torchmetrics
    make().to_distributed() # connects the processes
    folder = processes().from_first(mkdtemp) if num_distrib()>1 else mkdtemp()
    def new():
        mets = [accuracy, HammingLoss(), torchmetrics.ConfusionMatrix('multiclass', num_classes=3)]
        return make(n=49, n_valid=9, metrics=mets, path=folder, default_cbs=False,
            cbs=[TrainEvalCallback, Recorder(train_metrics=True), Validate(3, 'iter')])
    def look(cb):
        if cb.learn.training: cb.learn.validate()
    def train(stop_at=None, *cbs, **kwargs):
        learn,cbs = new(),[*cbs, Callback(after_pred=look)] if cbs else []
        if stop_at: cbs.append(on(event.after_batch(once=stop_at, unit='iter'))(acts['stop']))
        with learn.distrib_ctx(shard=plugin() if shard else False): learn.fit(1, cbs=cbs, **kwargs)
        return learn
    whole,stopped = train(),train(4)
    at,metrics = stopped.at.batch,stopped.at.callbacks['recorder']['metrics']
    seen = [8*at, int(metrics[0]['_count']), int(metrics[2]['confmat'].sum())] # samples
    with stopped.distrib_ctx(): stopped.resume()
    train(5, Checkpoint(2, 'iter', keep=None, sharded=shard))
    file = next(Path(folder).rglob('*iter4.pt')) # written by the first process alone
    resumed = train(None, Checkpoint(), resume=file)
    return state(whole, seen=seen, others=[state(stopped)['rows'], state(resumed)['rows']])

class MaskedMean(nn.Module):
    "A mean over the samples that count, and NaN without any"
    def forward(self, pred, y):
        kept = y>=0
        loss = F.cross_entropy(pred, y.clamp(min=0), reduction='none')
        return (loss*kept).sum()/kept.sum()
    def n_items(self, y): return (y>=0).sum()

def masked_mean(shard=False):
    "In some batches no sample counts in the part of a process"
    learn = make(n=33, how='list')
    learn.loss_func = MaskedMean()
    for rows,i in zip((slice(4, 8), slice(4)), (0, 2)): learn.dls.train[i][1][rows] = -1
    with learn.distrib_ctx(shard=plugin() if shard else False): learn.fit(2)
    return state(learn)

class Short:
    "Gives fewer batches of indices than its length says"
    def __init__(self, n, bs): self.n,self.bs = n,bs
    def __len__(self): return self.n+1
    def __iter__(self): return iter(torch.arange(self.n*self.bs).view(self.n, self.bs).tolist())

def half_accumulated(end, fp16=False):
    "Epochs whose last step follows no batch: the last one is cancelled, comes not though announced, or is unknown"
    learn,cbs = make(n=40),[GradientAccumulation(20)]
    if end=='short': learn.dls.loaders['train'] = DataLoader(learn.dls.train.dataset, batch_sampler=Short(4, 8))
    if end=='unknown':
        learn.dls.loaders['train'] = DataLoader(Batches(*learn.dls.train.dataset.tensors), 8)
        learn.limits = dict(train=9)
    def skip(learn):
        if learn.training and learn.iter==4: raise CancelBatchException
    if end=='cancelled': cbs.append(Callback(before_batch=skip))
    if fp16: cbs += [MixedPrecision('fp16'), GradientClip(.1)]
    with learn.distrib_ctx(): learn.fit(2, cbs=cbs)
    return state(learn)

def stopped_in_accumulation():
    "Stopped between accumulated batches, and resumed"
    learn,at = make(n=48),2 if num_distrib()>1 else 3 # processes hear of it with the next batch
    def stop(learn):
        if learn.training and learn.train_iter==at: learn.at_pause(learn.stop_for_now, stops=True)
    with learn.distrib_ctx():
        learn.fit(1, cbs=[GradientAccumulation(40), stopper := Callback(after_batch=stop)])
        batch,grads = learn.at.batch,[o.clone() for o in learn.at.hypers_and_grads.grads.values()]
        stopper.run = False
        learn.resume()
    return state(learn, at=batch, grads=grads)

@cache
def pairing(n):
    "A seed with which `torch.randperm(n)` exchanges neighbours"
    pairs = torch.arange(n) ^ 1
    return next(i for i in count() if torch.equal(torch.randperm(n, generator=torch.Generator().manual_seed(i)), pairs))

class Paired(MixUp):
    "Mixes neighbours, so that a mixture does not depend on how an even batch is divided"
    def draw(self, n): return torch.full((n,), .7)
    def before_batch(self):
        before = torch.get_rng_state()
        torch.manual_seed(pairing(len(self.learn.x)))
        super().before_batch()
        torch.set_rng_state(before)

def all_together(folder, kill_at=None, bf16=False, every=2):
    "Whatever may be combined, with files; the last process may be killed at a batch"
    learn = make('weights', n=48, path=folder, lr=.05)
    cbs = [Checkpoint(every, 'iter'), GradientAccumulation(20), GradientClip(.1), EMA(.9), Paired(),
        EarlyStoppingCallback(min_delta=1., patience=2), SaveModelCallback(fname='best')]
    if bf16: cbs.append(MixedPrecision('bf16'))
    if kill_at is not None: cbs.append(Act(acts['kill'], 'after_batch', -1, kill_at))
    with learn.distrib_ctx(): learn.fit(9, cbs=cbs, resume='auto')
    return state(learn, reason=learn.stop_reason)

def batch_norm():
    "Statistics of the parts differ; what is left in the end is that of the first process"
    learn = make(n=48)
    learn.model.body.insert(1, nn.BatchNorm1d(8))
    with learn.distrib_ctx(): learn.fit(1)
    return state(learn, buffers=[o.clone() for o in learn.model.buffers()])

def plugin(): # every layer by itself, where the default would keep so small a model in one piece
    from accelerate import FullyShardedDataParallelPlugin
    return FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy='size_based_wrap', min_num_params=20,
        cpu_ram_efficient_loading=False)

class Parts(Callback):
    "How many numbers of the weights and of the state of the optimizer this process has, in training and in validation"
    def __init__(self): self.sizes = {}
    def after_batch(self):
        def n(t): return (t.to_local() if hasattr(t, 'to_local') else t).numel()
        learn = self.learn
        state = [v for s in learn.opt.state.values() for v in s.values() if isinstance(v, torch.Tensor) and v.ndim]
        self.sizes[learn.training] = sum(map(n, learn.model.parameters())),sum(map(n, state)),type(learn.model).__name__

def fit_sharded(*cbs, n_epoch=2, shard=None, **kwargs):
    "A fit with model and optimizer in parts; with `shard=False` as usual"
    learn,seen,parts = make(**kwargs),Ids(),Parts()
    shard = shard is not False and (shard or plugin())
    with learn.distrib_ctx(shard=shard): learn.fit(n_epoch, cbs=[*(techniques[o]() for o in cbs), seen, parts])
    plain = all(type(p) is nn.Parameter for p in learn.model.parameters())
    return state(learn, ids=seen.seen, sizes=parts.sizes, model=type(learn.model).__name__, plain=plain)

class Warmed(nn.Module):
    "Its output grows with the batches that it counts"
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(), nn.Linear(8, 3))
        self.step,self.counts,self.is_new = 0,dict(n=0),True
    def forward(self, x):
        if self.training:
            self.step,self.counts['n'] = self.step+1,self.counts['n']+1
            if hasattr(self, 'is_new'): del self.is_new
        return self.body(x*torch.tensor([.01,1,1,1,1]))*min(1, self.step/20)

class ChangesModules(Callback):
    "Sets, freezes, replaces and hooks what the model consists of, while it may be in parts"
    run_valid = False
    def before_fit(self): self.had = self.learn.model.body[1]
    def before_batch(self): self.had.negative_slope = self.learn.train_iter/30
    def after_step(self):
        i,body = self.learn.train_iter,self.learn.model.body
        if i==3: body[0].weight.requires_grad_(False)
        if i==5: self.handles = [body[0].register_forward_hook(lambda m,x,o: o*.5), body.register_forward_pre_hook(
            lambda m,x: x[0]*1.1, prepend=True)]
        if i==8: body[0].weight.requires_grad_(True); body.append(nn.Tanh())
        if i==10: body[2].bias.requires_grad_(False); body[2].scaled = True
        if i==12: self.handles.pop(0).remove()

def changes_modules(folder, shard=True):
    "What is changed in training, without pauses, with those that need the whole model, and with files in parts"
    def pause(learn):
        if learn.training and learn.train_iter%3==0: learn.at_pause(lambda: None)
    res = []
    for i,cb in enumerate((Callback, on(event.after_step)(pause), Checkpoint(2, 'iter', sharded=shard))):
        learn,model = make(path=f'{folder}/{i}'),Warmed()
        learn.model,attrs = model,[{*vars(m)} for m in model.modules()]
        with learn.distrib_ctx(shard=plugin() if shard else False): learn.fit(2, cbs=[ChangesModules, cb])
        added = [sorted({*vars(m)}-had) for m,had in zip(model.modules(), attrs)] # before the `Tanh`
        added += [sorted(vars(p)) for p in model.parameters()]
        hooks = [len(o) for m in model.modules() for k,o in vars(m).items() if '_hooks' in k and isinstance(o, dict)]
        res.append(state(learn, same=learn.model is model, counts=[model.step, model.counts, hasattr(model, 'is_new')],
            slope=model.body[1].negative_slope, trained=[p.requires_grad for p in model.parameters()], added=added,
            types=[type(m).__name__ for m in model.modules()], hooks=hooks))
    return res

class LastOfLSTM(nn.Module):
    def __init__(self): super().__init__(); self.rnn,self.lin = nn.LSTM(1, 4, batch_first=True),nn.Linear(4, 3)
    def forward(self, x): return self.lin(self.rnn(x[...,None]*.01)[0][:,-1])

class CallsAsListed(nn.Module):
    "Has its layer in a list, too"
    def __init__(self): super().__init__(); self.lin = nn.Linear(5, 3); self.listed = [self.lin]
    def forward(self, x): return self.listed[0](x*.01)

def other_modules(name, shard=True):
    learn = make()
    learn.model = globals()[name]()
    with learn.distrib_ctx(shard=plugin() if shard else False): return state(learn.fit(2))

class Looks(nn.Module):
    def __init__(self): super().__init__(); self.lin,self.table = nn.Linear(5, 3),nn.Embedding(4, 3, sparse=True)
    def forward(self, x): return self.lin(x)+self.table((x[:,0]%4).long())

class LossOfHead(nn.Module):
    "A loss that has a layer of the model, and a parameter"
    def __init__(self, head): super().__init__(); self.head,self.scale = head,nn.Parameter(torch.ones(3))
    def forward(self, x, y): return F.cross_entropy(self.head(x)*self.scale, y)

def refused_in_parts(name):
    "The error of a fit, and batches before it"
    learn = make(opt_func=getattr(torch.optim, name, torch.optim.SGD))
    if name=='fused': learn.opt_func = partial(torch.optim.SGD, fused=True)
    if name=='sparse': learn.model = Looks()
    if name in ('loss','trained loss'):
        head = nn.Linear(3, 3)
        learn.model,learn.loss_func = nn.Sequential(nn.Linear(5, 3), head),LossOfHead(head)
        if name=='trained loss': learn.splitter = lambda m: [[*m.parameters(), learn.loss_func.scale]]
    if name=='hook': learn.model.body[0].weight.register_hook(lambda g: g*.1)
    if name=='late hook': learn.add_cb(Halves())
    how = plugin()
    if name=='ignored': how.ignored_modules = [learn.model.body[2]]
    with learn.distrib_ctx(shard=how, timeout=20):
        try: learn.fit(1)
        except Exception as e: return f'{type(e).__name__}: {e}',learn.train_iter

class Halves(Callback):
    "Halves gradients as they come"
    def before_fit(self):
        for p in self.learn.model.parameters(): p.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(.5))

class SmallTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0., batch_first=True)
        self.inp,self.enc,self.out = nn.Linear(5, 8),nn.TransformerEncoder(layer, 2),nn.Linear(8, 3)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True) # does not call its last layer
    def forward(self, x):
        h = self.enc(self.inp(x*.01)[:,None])
        return self.out(self.attn(h, h, h)[0][:,0])

class TiedWords(nn.Module):
    "Scores of words by their embeddings"
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
        self.ends = nn.ModuleList([nn.Embedding(4, 8), nn.Linear(8, 4, bias=False)])
        self.ends[1].weight = self.ends[0].weight
        self.same = nn.ModuleList([nn.Linear(8, 8)]*2)
    def forward(self, x):
        h = self.body(x*.01)+self.ends[0]((x[:,0]%4).long())
        return self.ends[1](self.same[1](torch.tanh(self.same[0](h))))[:,:3]

class Containers(nn.Module):
    "Layers in a dict, of which one has parametrized weights; calls those in a `Sequential` one by one"
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict(dict(a=nn.Linear(5, 8), b=nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))))
        self.ways = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))])
    def forward(self, x):
        x = self.heads['b'](self.heads['a'](x*.01))
        for o in self.ways[0]: x = o(x)
        return x

def sharded_simply(name, shard=True):
    "A fit with `shard=True`, for which 30 parameters are enough to be by themselves, and how many modules are"
    torch.manual_seed(1)
    sharding.least_alone,learn,seen = 30,make(n=17),set()
    learn.model = globals()[name]()
    def count(learn): seen.add(sum('FSDP' in type(m).__name__ for m in learn.model.modules()))
    with learn.distrib_ctx(shard=shard): return state(learn.fit(2, cbs=on(event.after_step)(count)), alone=seen)

def norms_averaged(shard=True):
    "An average of weights and of the statistics of batch norms"
    torch.manual_seed(1)
    learn,ema = make(n=48),EMA(.9, buffers=True)
    learn.model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    with learn.distrib_ctx(shard=plugin() if shard else False): return state(learn.fit(2, cbs=ema), avg=ema.avg)

class Kept(Callback):
    "Clips weights that it has noted before the fit"
    def before_fit(self): self.params = [*self.learn.model.parameters()]
    def after_step(self):
        with torch.no_grad():
            for p in self.params: p.clamp_(-.2, .2)

class Slow(Head):
    "Has a slow copy of a layer, and a list of both weights"
    def __init__(self):
        super().__init__('classes')
        self.slow = nn.Linear(5, 8).requires_grad_(False)
        self.pairs = [*zip(self.slow.parameters(), self.body[0].parameters())]
    def forward(self, x):
        with torch.no_grad():
            for slow,p in self.pairs: slow.lerp_(p, .1)
        return super().forward(x)

def adds_layer(learn):
    if learn.train_iter!=2: return
    layer = nn.Linear(3, 3)
    learn.model.body.append(layer)
    learn.opt.add_param_group(dict(learn.opt.param_groups[0], params=[*layer.parameters()]))

def hooks_weights(learn):
    if learn.epoch==1: learn.model.body[0].weight.register_hook(lambda g: g*.5)

class Tempered(Callback):
    "The loss has a temperature, which is trained by the optimizer and belongs to no module"
    def before_fit(self):
        self.t = nn.Parameter(torch.ones(1))
        self.learn.opt.add_param_group(dict(self.learn.opt.param_groups[0], params=[self.t]))
    def after_loss(self):
        if self.learn.training: self.learn.loss_grad = self.learn.loss_grad*self.t.mean()

def uses_average(learn):
    if learn.train_iter!=2: return
    with learn.ema.averaged(): pass

def penalizes(learn):
    if learn.training: learn.loss_grad = learn.loss_grad+sum(p.pow(2).sum() for p in learn.model.parameters())

fails = dict(kept=Kept, hook=lambda: on(event.before_train)(hooks_weights), outside=Tempered,
    layer=lambda: on(event.after_step)(adds_layer),
    average=lambda: on(event.after_step)(uses_average),
    save=lambda: on(event.after_step)(lambda learn: learn.save('mid')),
    penalty=lambda: on(event.after_loss)(penalizes), pairs=lambda: [])

def fails_in_parts(name, folder):
    "The error of a fit, with its notes; and whether nothing of parts stays on the model"
    learn = make(path=folder, cbs=EMA(.9))
    if name=='pairs': learn.model = Slow()
    with learn.distrib_ctx(shard=plugin(), timeout=20):
        try: learn.fit(2, cbs=fails[name]())
        except Exception as e:
            return '\n'.join([f'{type(e).__name__}: {e}', *e.__notes__]),{type(p) for p in learn.model.parameters()}

class NextTokens(nn.Module):
    "Returns a loss, which compares shifted targets, and scores"
    def __init__(self): super().__init__(); self.lin = nn.Linear(5, 12)
    def forward(self, x, labels):
        logits = self.lin(x*.01).view(-1, 4, 3).clone()
        return dict(loss=F.cross_entropy(logits[:,:-1].flatten(0, 1), labels[:,1:].flatten())*3, logits=logits)

def with_own_loss():
    torch.manual_seed(1)
    samples = [dict(x=x, labels=y.relu()) for x,y in zip(*numbers(53, 'tokens'))]
    dls = DataLoaders(DataLoader(samples, 8, shuffle=True), DataLoader(samples[:11], 8), device='cpu')
    return Learner(dls, NextTokens(), lr=.1, opt_func=torch.optim.SGD)

class LossWithLayer(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(3, 3)
    def forward(self, x, y): return F.cross_entropy(self.lin(x), y)

class Sums(nn.Module):
    def __init__(self): super().__init__(); self.register_buffer('sum', torch.zeros(3))
    def forward(self, x): self.sum += x.detach().sum(0)

class HoldsLayers:
    "A loss that is no module, with a layer that is trained, one that gathers a sum, and one that is not trained"
    def __init__(self):
        torch.manual_seed(7)
        self.scale,self.sums,self.teacher = nn.Linear(3, 3),Sums(),nn.Linear(3, 3)
    def parameters(self): return self.scale.parameters()
    def __call__(self, pred, targ):
        with torch.no_grad(): self.sums(self.teacher(pred))
        return F.cross_entropy(self.scale(pred), targ)

class OverlappingLayers:
    "A loss that is no module, with a layer that is also in another one that it holds"
    def __init__(self):
        self.scale = nn.Linear(3, 3)
        self.both = nn.Sequential(self.scale, nn.Tanh(), nn.Linear(3, 3))
    def parameters(self): return self.both.parameters()
    def __call__(self, pred, targ): return sum(F.cross_entropy(o(pred), targ) for o in (self.both, self.scale))

def freezes_loss(learn):
    if learn.epoch==1: learn.loss_func.requires_grad_(False)

def replaces_layer(learn):
    if learn.epoch!=1: return
    torch.manual_seed(3)
    learn.model.body[2] = layer = nn.Linear(8, 3)
    learn.opt.add_param_group(dict(learn.opt.param_groups[0], params=[*layer.parameters()]))

def moves_inputs(learn):
    "As adversarial training does"
    if not learn.training: return
    x = learn.xb[0].clone().requires_grad_()
    grad, = torch.autograd.grad(learn.loss_func(learn.model(x), *learn.yb), x)
    learn.xb = x.detach()+.1*F.normalize(grad),

allowed = dict(freezes_loss=lambda: on(event.before_epoch)(freezes_loss), inputs=lambda: on(event.before_batch)(
    moves_inputs), replaced=lambda: on(event.before_epoch)(replaces_layer),
    graphs=lambda: Compile(mode='reduce-overhead', backend=lambda gm, inputs, mode: gm))

def allowed_in_parts(name, shard=True):
    "A fit with something that is trained, frozen, replaced, computed or left out; and warnings of the optimizer"
    torch.manual_seed(5)
    losses = dict(layer_in_loss=HoldsLayers, overlapping_loss=OverlappingLayers)
    loss,kwargs = losses.get(name, LossWithLayer)(),{}
    if 'loss' in name: kwargs = dict(loss_func=loss, splitter=lambda m: [[*m.parameters(), *loss.parameters()]])
    if name=='frozen_loss': loss.requires_grad_(False)
    if name=='left_out': kwargs = dict(splitter=lambda m: [[*m.body[0].parameters()]])
    learn = with_own_loss() if name=='own_loss' else make(**kwargs)
    with learn.distrib_ctx(shard=plugin() if shard else False), warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter('always')
        learn.fit(2, cbs=allowed[name]() if name in allowed else None)
    return state(learn, warned=[str(o.message) for o in ws if 'optimizer' in str(o.message)])

class Branches(nn.Module):
    "Has layers in a list, which torch can divide only if it has few parameters"
    def __init__(self): super().__init__(); self.layers = nn.ModuleList([nn.Linear(5, 6), nn.Linear(6, 3)])
    def forward(self, x): return self.layers[1](self.layers[0](x*.01))

class Scaled(nn.Module):
    def __init__(self): super().__init__(); self.lin,self.scale = nn.Linear(5, 3),nn.Parameter(torch.tensor(1.))
    def forward(self, x): return self.lin(x*.01)*self.scale

def fails_to_divide(name):
    "The error of a sharded fit; what the model is then, and a fit of it without `shard`"
    learn,exc = make(),None
    learn.model = globals()[name]()
    with learn.distrib_ctx(shard=plugin(), timeout=20):
        try: learn.fit(1)
        except ValueError as e: exc = '\n'.join([str(e), *getattr(e, '__notes__', ())])
    attrs = [sorted(vars(o)) for o in (*learn.model.modules(), *learn.model.parameters())]
    types = [type(o).__name__ for o in (*learn.model.modules(), *learn.model.parameters())]
    with learn.distrib_ctx(): return exc,types,attrs,state(learn.fit(1))['weights']

class Watched(nn.Module):
    "Keeps the sum of a weight that is in parts until its layer is called"
    def __init__(self):
        super().__init__()
        self.lin,self.out,self.sum = nn.Linear(5, 8),nn.Linear(8, 3),torch.zeros(())
    def forward(self, x):
        if self.training: self.sum = self.lin.weight.detach().sum()
        return self.out(self.lin(x*.01))

def watched(folder, shard=True, error=False):
    "A fit with a sum and an average, with files or ended by an error; and how both were before the second epoch"
    learn,ema,exc,seen = make(path=folder),EMA(.9),None,{}
    learn.model = Watched()
    def note(learn): seen.update(sum=learn.model.sum, avg=[o.clone() for o in ema.avg], n=ema.n)
    def fail(learn):
        if error and learn.train_iter==10: raise ValueError('oops')
    with learn.distrib_ctx(shard=plugin() if shard else False, timeout=20):
        cbs = [ema, on(event.before_train)(note), on(event.after_step)(fail)]
        if not error: cbs.append(Checkpoint(2, 'iter', sharded=shard))
        try: learn.fit(2, cbs=cbs)
        except ValueError as e: exc = str(e)
    now = dict(sum=learn.model.sum, avg=ema.avg, n=ema.n)
    return dict(exc=exc, before=seen, now=now, weights=state(learn)['weights'])

def full_disk(learn):
    "From now on this process can write no file of more than a few bytes"
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))

def on_a_full_disk(folder, at, rank=0, shard=False):
    "A fit with files at every second batch; from batch `at` on, the disk of one process is full"
    learn,exc,t = make('weights', path=folder),None,time.monotonic()
    with learn.distrib_ctx(shard=plugin() if shard else False):
        full = Act(full_disk, 'before_batch', rank, at)
        cbs = [Checkpoint(2, 'iter', sharded=shard), GradientAccumulation(20), full]
        try: learn.fit(3, cbs=cbs, resume='auto')
        except BaseException as e: exc = type(e).__name__,'\n'.join([str(e), *getattr(e, '__notes__', ())])
    names = [o.name for o in Path(folder).rglob('*') if o.is_file()]
    return dict(exc=exc, seconds=time.monotonic()-t, names=names)

def looks_at_weights(folder, rank):
    "A run with files in parts, in which one process needs the whole weights where the first one writes a file"
    learn,seen = make('weights', path=folder),[]
    def note(): seen.extend(p.detach().clone() for p in learn.model.parameters())
    def look(cb):
        if learn.training and learn.train_iter==4 and rank_distrib()==rank: learn.at_pause(note)
    with learn.distrib_ctx(shard=plugin()):
        saves = Checkpoint(2, 'iter', keep=None, sharded=True)
        learn.fit(1, cbs=[saves, GradientAccumulation(20), EMA(.9), Callback(before_draw=look)])
    return state(learn, seen=seen)

class Mixes(Callback):
    "What `MixUp` makes of each training batch"
    order = MixUp.order+1
    def __init__(self): self.batches = []
    def before_batch(self):
        learn = self.learn
        if learn.training: self.batches.append((learn.x.clone(), learn.y, learn.mix_up.others[0], learn.mix_up.lam))

def fit_mixed():
    learn,mixes = make(),Mixes()
    with learn.distrib_ctx(): learn.fit(2, cbs=[MixUp(.4), mixes])
    return state(learn, mixed=mixes.batches)

def synced_norms():
    learn = make()
    learn.model.body.insert(1, nn.BatchNorm1d(8))
    with learn.distrib_ctx(sync_bn=True):
        try: learn.fit(1)
        except ValueError as e: return str(e),[type(o).__name__ for o in learn.model.body]

class Weights(Callback):
    "Weights of this process at the end of each phase, before any are taken over from another"
    order = 95
    def __init__(self): self.seen = {}
    def note(self): self.seen[self.learn.train_iter] = [p.detach().clone() for p in self.learn.model.parameters()]
    before_validate = after_epoch = note

def lone_cancel(name, ev, rank, at, cbs=(), shard=False, **kwargs):
    "A fit in which one process raises a cancel"
    learn,weights,exc,t = make(**kwargs),Weights(),None,time.monotonic()
    lone = Act(raises(globals()[name]('lone')), ev, rank, at, False if name=='CancelValidException' else None)
    with learn.distrib_ctx(timeout=40, shard=plugin() if shard else False):
        try: learn.fit(3, cbs=[lone, weights, *(techniques[o]() for o in cbs)])
        except BaseException as e: exc = type(e).__name__,str(e),' '.join(getattr(e, '__notes__', ()))
    return dict(exc=exc, seconds=time.monotonic()-t, weights=weights.seen, rows=len(learn.recorder.rows),
        counts=(learn.train_iter, learn.opt_step), done=lone.done)

def collectives(batches, by_hand=False, epochs=1):
    "How often processes wait for each other in a fit of some batches, or one by hand with `DistributedDataParallel`"
    from torch.profiler import ProfilerActivity,profile
    learn = make(n=8*batches)
    def train():
        ddp = nn.parallel.DistributedDataParallel(learn.model)
        for x,y in learn.dls.train:
            losses['classes'](ddp(x), y).backward()
            ddp.zero_grad()
    with learn.distrib_ctx(), profile(activities=[ProfilerActivity.CPU]) as prof:
        if by_hand: train()
        else: learn.fit(epochs)
    return sum(o.name.startswith('gloo:') for o in prof.events())

def sums():
    "Numbers of a host, and tensors, which are added up where they are, as those of a device"
    from learner.dist.processes import processes
    procs,rank = processes(),rank_distrib()
    first = torch.tensor(1.+rank, dtype=torch.float64)
    return procs.meet([1.+rank, 5.]),procs.meet([first, torch.tensor(5., dtype=torch.float64)]),procs.meet([first, 5.])

# What callbacks change in the middle of training
class At3(Callback):
    "Calls a method of the learner before its fourth training batch"
    def __init__(self, method, rank=None): self.method,self.rank = method,rank
    def before_batch(self):
        here = self.rank in (None, rank_distrib())
        if here and self.training and self.train_iter==3: getattr(self.learn, self.method)()

class Penalty(Callback):
    "Doubles the loss, and adds the squares of all weights: to both losses, or to that which is differentiated"
    def __init__(self, logged): self.logged = logged
    def after_loss(self):
        if not self.training: return
        self.learn.loss_grad = 2*self.learn.loss + .1*sum(p.pow(2).sum() for p in self.model.parameters())
        if self.logged: self.learn.loss = self.learn.loss_grad

class OwnBackward(Callback):
    "Replaces the gradient of a step by that of the batch at other weights, as sharpness-aware minimization does"
    @torch.no_grad()
    def before_step(self):
        learn,ps = self.learn,[*self.model.parameters()]
        for p in ps: p.add_(p.grad, alpha=.1)
        moved = [p.grad for p in ps]
        for p in ps: p.grad = None
        with torch.enable_grad(): learn.loss_func(learn.model(*learn.xb), *learn.yb).backward()
        for p,g in zip(ps, moved): p.sub_(g, alpha=.1)

def halves(head): return [[*head.body[0].parameters()], [*head.body[2].parameters()]]
def refrozen(method, *cbs, rank=None):
    "A fit in whose middle layers are frozen or unfrozen"
    learn = make(splitter=halves)
    if method=='unfreeze': learn.freeze()
    with learn.distrib_ctx(): learn.fit(1, cbs=[At3(method, rank), *(techniques[o]() for o in cbs)])
    return state(learn)

def penalized(kind, logged, n):
    learn = make(kind=kind, n=n, lr=.01)
    with learn.distrib_ctx(): learn.fit(1, cbs=Penalty(logged))
    return state(learn)

class OtherWeights(Callback):
    "Class weights of the loss that change within an epoch"
    def before_batch(self):
        if self.learn.training: self.loss_func.weight = torch.tensor([1.,1.,1.] if self.iter<1 else [9.,1.,.1])

def reweighted():
    learn = make(loss_func=nn.CrossEntropyLoss(torch.ones(3)))
    with learn.distrib_ctx(): learn.fit(1, cbs=OtherWeights())
    return state(learn)

class OwnOptimizer(Callback):
    "Trains the loss, as center loss is trained"
    def before_fit(self): self.opt = torch.optim.SGD(self.learn.loss_func.parameters(), lr=.5)
    def before_step(self): self.opt.step(); self.opt.zero_grad()

def layer_in_loss(how=''):
    "A layer that the loss holds; beside a list of the model and a layer that nothing uses, or trained by a callback"
    loss,cbs = HoldsLayers(),OwnOptimizer() if how=='by_callback' else None
    learn = make(loss_func=loss, splitter=lambda m: [[*m.parameters(), *([] if cbs else loss.parameters())]])
    if how=='with_model': loss.models = nn.ModuleList([learn.model, nn.Linear(2, 2)])
    with learn.distrib_ctx(): learn.fit(2, cbs=cbs)
    return state(learn, trained=[p.detach().clone() for p in loss.parameters()], sum=loss.sums.sum.clone())

class BareParameter:
    "A loss that trains a parameter which no module has"
    def __init__(self): self.scale = nn.Parameter(torch.ones(3))
    def parameters(self): return [self.scale]
    def __call__(self, pred, targ): return F.cross_entropy(pred*self.scale, targ)

class OwnHead(Callback):
    "A callback that adds the loss of a layer of its own"
    def __init__(self): self.head = nn.Linear(3, 3)
    def parameters(self): return self.head.parameters()
    def after_loss(self):
        if self.learn.training: self.learn.loss_grad = self.learn.loss_grad+self.head(self.learn.pred).pow(2).mean()

def not_averaged(what):
    "The error of a fit that trains what no module of model or loss has, and the steps before it"
    o = BareParameter() if what=='loss' else OwnHead()
    kwargs = dict(loss_func=o) if what=='loss' else dict(cbs=o)
    learn = make(splitter=lambda m: [[*m.parameters(), *o.parameters()]], **kwargs)
    try: learn.to_distributed().fit(1)
    except RuntimeError as e: return str(e),learn.opt_step

def goes_backward():
    learn = make()
    with learn.distrib_ctx(): learn.fit(2, cbs=OwnBackward())

def two_views(*cbs):
    "A collate function returns two views of each sample, so that batches have twice as many rows as indices"
    def both(samples):
        x,y = map(torch.stack, zip(*samples))
        return torch.cat([x, x+.1]),torch.cat([y, y])
    learn = make()
    learn.dls.loaders['train'] = DataLoader(learn.dls.train.dataset, 8, collate_fn=both)
    with learn.distrib_ctx(): learn.fit(2, cbs=[techniques[o]() for o in cbs])
    return state(learn)

def draws_outside():
    "What a callback draws outside of batches, in processes with other seeds"
    learn,drawn = make(n=20),[]
    torch.manual_seed(int(os.environ.get('RANK', 0)))
    events = 'before_epoch','before_train','after_train','before_validate','after_epoch'
    learn.to_distributed().fit(2, cbs=[on(getattr(event, o))(lambda learn: drawn.append(torch.rand(1).item()))
        for o in events])
    return drawn

class Counted(Metric):
    "Does not say how it is put together"
    def reset(self): self.n = 0
    def accumulate(self, learn): self.n += len(learn.y)
    @property
    def value(self): return self.n

class Transformed:
    "The samples of another dataset, which each process reads in its own way"
    def __init__(self, dataset): self.dataset,self.noise = dataset,torch.rand(len(dataset)).tolist()
    def __len__(self): return len(self.dataset)
    def __getitem__(self, i): return self.dataset[i]

def refused_at_once(what):
    "The error of a fit, and batches before it"
    learn = make(metrics=Counted()) if what=='metric' else make()
    if what in ('split','inside','tensors'):
        g,data = torch.Generator().manual_seed(int(os.environ['RANK'])),learn.dls.train.dataset
        if what=='tensors': data = TensorDataset(torch.randn(53, 5, generator=g), data.tensors[1])
        train,valid = random_split(data, [40, 13], None if what=='tensors' else g)
        learn.dls = DataLoaders.from_dsets(Transformed(train) if what=='inside' else train, valid, bs=8, device='cpu')
    try: learn.to_distributed().fit(1, cbs=MicroBatch(4) if what=='pieces' else None)
    except (TypeError,ValueError) as e: return str(e),learn.train_iter

class Reads(TensorDataset):
    "Counts in its last tensor how often each sample was read in this process, and keeps what it has read"
    def __init__(self, *tensors):
        super().__init__(*tensors, torch.zeros(len(tensors[0])))
        self.kept = [None]*len(tensors[0])
    def __getitem__(self, i):
        *self.kept[i],n = super().__getitem__(i)
        n += 1
        return tuple(self.kept[i])

def kept_in_dataset():
    "A fit that is stopped, resumed, and followed by another one, with a dataset that each process changes"
    learn = make()
    learn.dls.loaders['train'] = DataLoader(Reads(*learn.dls.train.dataset.tensors), 8, shuffle=True)
    def stop(learn):
        if learn.train_iter==3: learn.stop_for_now()
    learn.to_distributed().fit(1, cbs=on(event.after_batch)(stop))
    return state(learn.resume().fit(1))

def metrics_of_before_fit():
    "A callback replaces metrics that could not be put together"
    def replace(learn): learn.metrics = [accuracy]
    return state(make(metrics=Counted()).to_distributed().fit(1, cbs=on(event.before_fit)(replace)))

class Preempted(Exception):
    "Cannot be made again from its `args`"
    def __init__(self, host, minutes): super().__init__(f'{host} ends in {minutes} minutes')

def preempted(local):
    "The error of a fit in which SIGTERM comes to the second process, and the script has a handler that raises"
    class Local(Exception): pass
    def handle(signum, frame): raise Local('now') if local else Preempted('node3', 2)
    old = signal.signal(signal.SIGTERM, handle)
    try: make().to_distributed(timeout=20).fit(1, cbs=Act(signals(signal.SIGTERM), 'after_batch', 1))
    except Exception as e: return type(e).__name__,str(e)
    finally: signal.signal(signal.SIGTERM, old)

def lists_apart():
    "A fit in which only the first process has all batches in its list"
    learn = make(how='list')
    if int(os.environ.get('RANK', 0)): learn.dls.loaders['train'] = learn.dls.train[:2]
    return state(learn.to_distributed().fit(1))

def asked_for_16_bits(by, shard):
    """The type of predictions in training under `accelerate launch --mixed_precision bf16`, or in a script that has an
    `Accelerator` for bf16, and what warns of it"""
    import accelerate
    if by=='launch': os.environ['ACCELERATE_MIXED_PRECISION'] = 'bf16'
    else: own = accelerate.Accelerator(cpu=True, mixed_precision='bf16')
    learn,types = make(n=8).to_distributed(shard=shard and plugin()),set()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        learn.fit(1, cbs=on(event.after_pred)(lambda learn: types.add(learn.pred.dtype)))
        if not shard: learn.fit(1, cbs=MixedPrecision('bf16'))
    assert by=='launch' or own.native_amp # and stays as it was
    return types,sum("add `MixedPrecision('bf16')`" in str(o.message) for o in said)

def refused(name):
    "Callbacks that hold what one process has"
    learn = make()
    try:
        with learn.distrib_ctx(): learn.fit(1, cbs=globals()[name]())
    except ValueError as e: return str(e)

class Augmented(TensorDataset):
    "Each sample comes with new noise"
    def __getitem__(self, i): x,y = super().__getitem__(i); return x+.5*torch.randn(5),y

def augmented_resumed(workers):
    "Weights of a run with random augmentation, whole and resumed from a file; the noise of the first batch"
    noise = []
    def note(learn):
        if learn.training and not learn.train_iter: noise.extend(learn.xb[0][:,1].tolist())
    def halt(learn): learn.at_pause(learn.stop_for_now, stops=True)
    def run(seed, *cbs, **kwargs):
        torch.manual_seed(seed)
        learn = make(path=folder)
        learn.dls.loaders['train'] = DataLoader(Augmented(torch.zeros(53, 5), learn.dls.train.dataset.tensors[1]), 8,
            shuffle=True, num_workers=workers)
        learn.to_distributed().fit(2, cbs=[on(event.before_batch)(note), *cbs], **kwargs)
        return [p.detach().clone() for p in learn.model.parameters()]
    make().to_distributed() # connects the processes
    folder = processes().from_first(mkdtemp)
    stop = on(event.after_batch(once=9, unit='iter'))(halt)
    whole = run(0)
    run(0, stop, Checkpoint())
    return whole,run(5, stop, Checkpoint(), resume=True),noise[:4]

def cancels_the_last_batch():
    "One process cancels a batch that would be averaged, and the next one only adds"
    class Skip(Callback):
        def after_loss(self):
            if self.training and (rank_distrib(), self.epoch, self.learn.iter)==(0, 0, 6): raise CancelBatchException
    learn = make()
    learn.to_distributed(timeout=20).fit(2, cbs=[Skip, GradientAccumulation(20)])
    return state(learn)

def predicts_alone():
    def predict(learn):
        if rank_distrib()==0: learn.get_preds()
    make().to_distributed(timeout=20).fit(1, cbs=on(event.after_epoch)(predict))

def own_value():
    "A callback computes a column from what its process sees, and the learning rate follows it"
    class Own(Callback):
        order,new_columns = 45,('own',)
        def before_validate(self): self.total = 0.
        def after_batch(self):
            if not self.training: self.total += self.learn.loss.item()*len(self.learn.y)
    own,rates = Own(),[]
    learn = make(metrics=ValueMetric(lambda: own.total, 'own_loss', higher_is_better=False)).to_distributed()
    note = on(event.after_epoch)(lambda learn: rates.append(learn.opt.param_groups[0]['lr']))
    learn.fit(8, .4, cbs=[own, ReduceLROnPlateau(monitor='own_loss', patience=1), note])
    return rates,[o.own_loss for o in learn.recorder.rows]

def hypers_of_the_first():
    learn = make().to_distributed()
    learn.create_opt()
    if rank_distrib()==0: learn.opt.param_groups[0]['momentum'] = .5
    seen = []
    learn.fit(1, cbs=on(event.after_train)(lambda learn: seen.append(learn.opt.param_groups[0]['momentum'])))
    return seen

def sharded_with(name, folder):
    "Warnings and weights with a callback, or the error"
    cbs = dict(guard=lambda: SpikeGuard(), checkpoint=lambda: Checkpoint(2, 'iter', sharded=True, folder=folder),
        validation=lambda: Validate(every=4, unit='iter'))
    learn = make()
    with warnings.catch_warnings(record=True) as said, learn.distrib_ctx(shard=plugin()):
        warnings.simplefilter('always')
        try: learn.fit(1, cbs=cbs[name]())
        except ValueError as e: return str(e)
    return [str(o.message) for o in said if issubclass(o.category, UserWarning)]

def rewound():
    learn = make().to_distributed()
    learn.fit(2, cbs=Rewind(every=2))
    before = [p.detach().clone() for p in learn.model.parameters()]
    learn.rewind(6)
    learn.resume()
    return before,[p.detach().clone() for p in learn.model.parameters()]

def lr_find_skips():
    "A learning rate finder in which one process skips a batch: suggestions, and weights afterwards"
    learn = make(n=200)
    with learn.distrib_ctx(timeout=40), learn.added_cbs([Act(acts['skip'], 'after_loss', 1, 3)]):
        found = learn.lr_find(num_it=12)
    return dict(lrs=found.lrs, losses=found.losses, weights=[p.detach().clone() for p in learn.model.parameters()])

def skips_at(ev, kind, rank=None):
    "A fit in which two batches of each epoch are cancelled, in one process or in all; the last batch has one sample"
    def skip(cb):
        if cb.training and cb.iter in (2, 6) and rank in (None, rank_distrib()): raise CancelBatchException
    learn,skips = make(kind, n=49, lr=.01),Callback(**{ev: skip})
    skips.order = -950 # before `Distributed`
    with learn.distrib_ctx(timeout=40): learn.fit(2, cbs=skips)
    return state(learn)

def error_and_cancel():
    "One process fails and the other cancels the same batch"
    learn,exc = make(),None
    cbs = [Act(acts['error'], 'after_loss', 1, 3), Act(acts['skip'], 'after_loss', 0, 3)]
    with learn.distrib_ctx(timeout=40):
        try: learn.fit(2, cbs=cbs)
        except BaseException as e: exc = type(e).__name__,str(e)
    return exc

def contrast(z, y):
    "Compares samples"
    z = F.normalize(z, dim=1)
    return F.cross_entropy(z@z.T/.5, torch.arange(len(z)))

def said_of_losses():
    "What is said of losses that compare samples, and of those that do not"
    res = []
    for loss in (contrast, lambda p,y: F.cross_entropy(p, y), MaskedMean()):
        learn = make(n=32)
        learn.loss_func,learn.dls.valids = loss,{}
        with warnings.catch_warnings(record=True) as found, learn.distrib_ctx():
            warnings.simplefilter('always')
            learn.fit(2)
        res.append([str(o.message) for o in found if 'no average' in str(o.message)])
    return res

def sampled_apart():
    learn = make()
    dataset = learn.dls.train.dataset
    make().to_distributed() # connects the processes
    learn.dls.loaders['train'] = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    try:
        with learn.distrib_ctx(): learn.fit(1)
    except ValueError as e: return str(e)

class Thirds(AvgMetric):
    "Gathers more than its kind, and does not say how that is put together"
    def __init__(self): super().__init__(accuracy, 'thirds')
    def reset(self): super().reset(); self.found = 0
    def accumulate(self, learn): super().accumulate(learn); self.found += int((learn.y==2).sum())
    @property
    def value(self): return self.found
class Renamed(AvgMetric):
    "Gathers nothing more"
    def __init__(self): super().__init__(accuracy, 'renamed'); self.factor = 2
    @property
    def value(self): return None if super().value is None else super().value*self.factor

def gathers_more(cls):
    learn = make(metrics=[globals()[cls]()])
    with learn.distrib_ctx(): return dict(learn.fit(1).recorder.rows[-1])[cls.lower()]

class Distinct:
    "Like a metric of torchmetrics, with a set"
    def __init__(self): self.reset()
    def reset(self): self.seen,self._n = set(),dict(samples=0)
    def update(self, pred, y): self.seen |= {*y.tolist()}; self._n['samples'] += len(y)
    def compute(self): return len(self.seen)+self._n['samples']/1000
    def merge_state(self, other): self.seen |= other.seen; self._n['samples'] += other._n['samples']

def distinct():
    learn = make(metrics=[TorchMetric(Distinct())], default_cbs=False,
        cbs=[TrainEvalCallback, Recorder(train_metrics=True)])
    with learn.distrib_ctx(): row = dict(learn.fit(1).recorder.rows[-1])
    return row['train_distinct'],row['valid_distinct']
