"""Whatever ends a fit, wherever: the techniques leave learner, model and torch as they found them, and the next fit
works"""
import itertools,random,signal,tempfile
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
import learner.all as learner_all
from learner.all import *

folder = tempfile.TemporaryDirectory()

class Net(nn.Sequential):
    def reset(self): pass
    def half(self, x): return nn.Sequential.forward(self, x)/2

def model():
    torch.manual_seed(0)
    return Net(nn.Conv2d(1,2,3,padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(.1), nn.Flatten(), nn.Linear(32,3))

techniques = dict(
    schedule=lambda: ParamScheduler(dict(lr=SchedCos(.1, .01), mom=SchedLin(.9, .8))),
    torch_schedule=lambda: TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1)),
    fp16=lambda: MixedPrecision('fp16', init_scale=2.**10), bf16=lambda: MixedPrecision('bf16'), clip=GradientClip,
    accumulation=lambda: GradientAccumulation(6),
    micro=lambda: MicroBatch(3), micro_auto=MicroBatch, ema=lambda: EMA(.9),
    ema_both=lambda: EMA(.9, buffers=True, validate='both'), swa=lambda: SWA(.5, lr=.01),
    swa_valid=lambda: SWA(0, validate=True),
    bn_freeze=BnFreeze, short=lambda: ShortEpochCallback(.5), mc_dropout=MCDropoutCallback, collect=CollectDataCallback,
    channels_last=ChannelsLast, prefetch=Prefetch, compile=lambda: Compile(backend='eager'),
    mixup=MixUp, cutmix=CutMix, preds=FetchPredsCallback,
    early=lambda: EarlyStoppingCallback(patience=2), best=lambda: SaveModelCallback(fname=None),
    plateau=ReduceLROnPlateau, nan=TerminateOnNaNCallback, better=lambda: OnBetter(Learner.validate),
    timer=Timer, profile=lambda: Profile(waits_every=1), csv=lambda: CSVLogger(f'{folder.name}/history.csv'),
    json=lambda: JSONLogger(f'{folder.name}/history.jsonl', batches=1),
    tensorboard=lambda: TensorBoardLogger(folder.name),
    validate=lambda: Validate(every=2, unit='iter'),
    extra=lambda: ExtraValid([(torch.randn(4,1,4,4), torch.tensor([0,1,2,0]))], error_rate, every=2, unit='iter'),
    sanity=Sanity,
    limit=lambda: Limit(train=2, valid=1), overfit=Overfit, time=lambda: TimeLimit(30),
    recorder=lambda: Recorder(train_metrics=True), progress=lambda: ProgressCallback('tqdm'),
    print=lambda: ProgressCallback('text', print_every=1, mark_best=True), graph=ShowGraphCallback,
    ledger=Ledger, card=lambda: RunCard(folder.name),
    checkpoint=lambda: Checkpoint(2, 'iter', folder=f'{folder.name}/checkpoints', best=1),
    rewind=lambda: Rewind(2), fingerprint=Fingerprint, guard=lambda: SpikeGuard(2), warmup=lambda: Warmup(3),
    print_progress=lambda: PrintProgress(2), freeze=lambda: FreezeSchedule({0: 0}), resetter=ModelResetter,
    map_batch=lambda: MapBatch(tuple), map_pred=lambda: MapPred(abs), forward=lambda: Forward(train='half'),
    hook=lambda: HookCallback(hook=lambda m, i, o: o.mean()), stats=lambda: ActivationStats(every=2, with_hist=True))
elsewhere = {TrainEvalCallback: 'is in every learner', FuncCallback: 'undoes nothing', Trace: 'is for tests',
    Raise: 'is what ends them here', LRFinder: 'is in test_lr_find', GatherPredsCallback: 'is in test_preds',
    RNNCallback: 'needs another model, and is in test_modes', MatchArgs: 'needs another loader, and is in test_mapping',
    WandbLogger: 'takes seconds, and is in test_loggers',
    Distributed: 'does nothing in one process, and is in test_dist'}
ends = dict(error=ValueError, interrupt=KeyboardInterrupt, **cancels)
places = [o for o in dict(moments()) if not o.startswith('after_cancel')]

def learner():
    torch.manual_seed(0)
    ds = TensorDataset(torch.randn(12,1,4,4), torch.randint(0, 3, (12,)))
    dls = DataLoaders(DataLoader(ds, 4, shuffle=True), DataLoader(ds, 6), device='cpu')
    return Learner(dls, model(), nn.CrossEntropyLoss(),
        opt_func=lambda ps,lr=.01: torch.optim.SGD(ps, lr=lr, momentum=.9),
        metrics=accuracy).remove_cb(ProgressCallback)

def state(learn):
    m = learn.model
    return dict(modes=[o.training for o in m.modules()],
        hooks=[len(o._forward_hooks)+len(o._forward_pre_hooks)+len(o._backward_hooks) for o in m.modules()],
        own=[sorted(vars(o)) for o in m.modules()], strides=[p.stride() for p in m.parameters()],
        grads=[p.grad for p in m.parameters()], trainable=[p.requires_grad for p in m.parameters()],
        loss=id(learn.loss_func), reduction=learn.loss_func.reduction,
        hypers={k:get_hyper(learn.opt, k) for k in hypers(learn.opt)}, cbs=list(learn.cbs),
        dls=[id(o) for o in learn.dls],
        of_batch=[getattr(learn, o) for o in ('dl','batch','xb','yb','pred','loss','loss_grad','mode','exc')],
        training=learn.training, replaced=[k for k in vars(learn) if callable(getattr(type(learn), k, None))],
        torch=(torch.is_grad_enabled(), torch.is_autocast_enabled('cpu'), torch.get_default_dtype(),
            (torch.ones(2,2)@torch.ones(2,2)).dtype), sigint=signal.getsignal(signal.SIGINT))

def removes(cb, place, n, order):
    "Removes `cb` when `place` comes for the `n`-th time"
    count = itertools.count(1)
    res = Callback(**{place: lambda self: next(count)==n and cb.learn and self.learn.remove_cb(cb)})
    res.order = order
    return res

def check(names, place, end, order=None):
    if 'compile' in names: torch.compiler.reset() # what another test has compiled calls no hooks
    learn = learner().fit(1)
    before = state(learn)
    rng = random.Random(place+end+str(names))
    cbs,n,order = ([o() if isinstance(o := techniques[k](), type) else o for k in names],
        1 if place.endswith('_fit') else rng.choice([1, 2]),order or rng.choice([-200, 5, 200]))
    end = Raise(place, ends[end], n=n, order=order) if end in ends else removes(cbs[0], place, n, order)
    try: learn.fit(2, cbs=[*cbs, end])
    except (ValueError, RuntimeError, KeyboardInterrupt) as e:
        if not isinstance(end, Raise): raise
        # `FetchPredsCallback` was the one whose validation was cancelled
        assert type(e) is end.exc or type(e.__cause__) is end.exc or 'have predictions' in str(e)
    after = state(learn)
    assert after==before, {k for k in before if after[k]!=before[k]}
    learn.fit(1, cbs=[techniques[o]() for o in names])
    assert state(learn)==before and all(p.isfinite().all() for p in learn.model.parameters())

def test_every_callback_is_here():
    "Those that are the base of others are with them"
    here = {c for o in techniques.values() for c in type(o()).__mro__} | {*elsewhere}
    assert not [o.__name__ for o in vars(learner_all).values() if isinstance(o, type) and issubclass(o, Callback)
        and o not in here]

every = list(itertools.product(techniques, places, [*ends,'removed']))
def some(n): return random.Random(1).sample(every, n)

@pytest.mark.parametrize('name,place,end', some(80))
def test_one(name, place, end): check([name], place, end)

@pytest.mark.sample(12)
@pytest.mark.parametrize('name', techniques)
@pytest.mark.parametrize('place', ['before_fit','before_batch','before_validate'])
@pytest.mark.parametrize('end', ['error','fit','removed'])
def test_not_reached(end, place, name):
    "Cleanup also comes to callbacks that have not been called before"
    check([name], place, end, order=-200)

@pytest.mark.parametrize('name', techniques)
def test_a_fit_without_epochs_leaves_nothing_behind(name):
    learn = learner().fit(1)
    before,weights = state(learn),[p.clone() for p in learn.model.parameters()]
    learn.fit(0, cbs=techniques[name]())
    assert state(learn)==before and all(map(torch.equal, weights, learn.model.parameters())) and learn.at is None
    assert state(learn.fit(1))==before

# Refused: two that set one rate, hooks of a compiled model, losses of samples that no batch consists of
refused = [('fp16','bf16'), ('micro','micro_auto'), ('mixup','cutmix'), ('schedule','torch_schedule'),
    ('schedule','plateau'), ('torch_schedule','plateau'), ('schedule','warmup'), ('torch_schedule','warmup'),
    ('compile','stats'), ('mixup','ledger'), ('cutmix','ledger'), ('overfit','ledger')]
pairs = [o for o in itertools.combinations(techniques, 2) if o not in refused]

@pytest.mark.parametrize('names', refused, ids='+'.join)
def test_a_pair_that_is_refused_leaves_nothing_behind(names):
    learn = learner().fit(1)
    before = state(learn)
    with pytest.raises((ValueError,RuntimeError)): learn.fit(2, cbs=[techniques[o]() for o in names])
    assert state(learn)==before

@pytest.mark.sample(40, together=0)
@pytest.mark.parametrize('i', range(len(pairs)), ids=lambda i: '+'.join(pairs[i]))
def test_two(i):
    rng = random.Random(i)
    check(pairs[i], rng.choice(places), rng.choice([*ends,'removed']))

def test_one_mixed_precision_at_a_time():
    with pytest.raises(ValueError, match='two `MixedPrecision`'):
        learner().fit(1, cbs=[MixedPrecision('fp16'), MixedPrecision('bf16')])

@pytest.mark.slow
@pytest.mark.parametrize('name', techniques)
def test_everywhere(name):
    for place,end in itertools.product(places, [*ends,'removed']): check([name], place, end)
