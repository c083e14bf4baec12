"""What a batch costs above a hand-written loop, counted rather than timed: bytecodes, torch operators, reads from the
device"""
import copy,gc,random,sys
from collections import Counter
from functools import partial
import numpy as np,pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from learner.all import *
from learner.values.copies import copied

loss_func = nn.CrossEntropyLoss()
def opt_func(params, lr=.01): return torch.optim.SGD(params, lr=lr, momentum=.9)
def model(): return nn.Sequential(nn.Linear(8,16), nn.ReLU(), nn.Linear(16,2))
def batches(n): return [(torch.randn(4,8), torch.randint(0, 2, (4,))) for _ in range(n)]

def by_hand(n):
    m = model()
    opt = opt_func(m.parameters())
    def run(bs):
        for xb,yb in bs:
            pred = m(xb)
            loss = loss_func(pred, yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
    bs = batches(n)
    return lambda: run(bs)

def ours(n, cbs=TrainEvalCallback, default_cbs=False):
    learn = Learner(DataLoaders(batches(n), device='cpu'), model(), loss_func, opt_func=opt_func, cbs=cbs,
        default_cbs=default_cbs)
    return lambda: learn.fit(1)

def per_batch(count, run, **kwargs):
    "By how much `count` grows with each further batch"
    few,many = 10,20
    for _ in range(2): run(few, **kwargs)() # what is loaded at first use, and noted when callbacks are used again
    return (count(run(many, **kwargs)) - count(run(few, **kwargs)))/(many-few)

def bytecodes(f):
    n = 0
    def trace(frame, ev, arg):
        nonlocal n
        frame.f_trace_opcodes,frame.f_trace_lines = True,False
        n += ev=='opcode'
        return trace
    old = sys.gettrace()
    gc.disable() # finalizers of other objects are not our cost
    sys.settrace(trace)
    try: f()
    finally: sys.settrace(old); gc.enable()
    return n

class Operators(TorchDispatchMode):
    def __init__(self): super().__init__(); self.seen = Counter()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

def operators(f):
    with Operators() as mode: f()
    return mode.seen.total()

def reads(f):
    with Operators() as mode: f()
    return sum(mode.seen[o] for o in ('_local_scalar_dense', '_to_copy', 'is_nonzero', 'equal'))

def waits(f):
    "The same where types are changed, which copies too"
    with Operators() as mode: f()
    return sum(mode.seen[o] for o in ('_local_scalar_dense', 'is_nonzero', 'equal'))

only_311 = pytest.mark.skipif(sys.version_info[:2]!=(3,11), reason='bytecodes are counted as CPython 3.11 has them')

class Idle(Callback):
    def after_epoch(self): pass

@only_311
def test_lean_bytecodes():
    "Most of what the loop costs is won back where gradients are dropped without an entry for torch's profiler"
    assert per_batch(bytecodes, ours) - per_batch(bytecodes, by_hand) <= 100

@only_311
def test_default_bytecodes(capsys, monkeypatch):
    # how often a bar is drawn depends on the time
    monkeypatch.setattr(sys.modules[ProgressCallback.__module__], 'perf_counter', lambda: 0.)
    assert per_batch(bytecodes, ours, default_cbs=True, cbs=None) - per_batch(bytecodes, by_hand) <= 260

def test_lean_operators(): assert per_batch(operators, ours) - per_batch(operators, by_hand) <= 1

@pytest.mark.parametrize('default_cbs', [False, True])
def test_no_reads(default_cbs, capsys, monkeypatch):
    # how often a bar is drawn depends on the time
    monkeypatch.setattr(sys.modules[ProgressCallback.__module__], 'perf_counter', lambda: 0.)
    assert per_batch(reads, ours, default_cbs=default_cbs, cbs=None if default_cbs else TrainEvalCallback)==0

@only_311
def test_idle_callbacks_are_free():
    idle = per_batch(bytecodes, ours, cbs=[TrainEvalCallback, *(Idle() for _ in range(10))])
    assert round(idle - per_batch(bytecodes, ours))==0

@only_311
@pytest.mark.parametrize('n', [1, 2])
def test_schedules_in_training(n):
    scheds = dict(lr=combined_cos(.25, .01, .1, 0.), mom=combined_cos(.25, .95, .85, .95))
    assert per_batch(bytecodes, ours,
        cbs=[TrainEvalCallback, ParamScheduler({k:scheds[k] for k in list(scheds)[:n]})]) - per_batch(bytecodes,
        ours) <= 530*n

def validation_by_hand(n):
    m,bs = model().eval(),batches(n)
    def run():
        total,right,count = 0,0,0
        with torch.no_grad():
            for xb,yb in bs:
                pred = m(xb)
                total += loss_func(pred, yb)*len(yb)
                right += (pred.argmax(-1)==yb).float().mean()*len(yb)
                count += len(yb)
    return run

def validation(n):
    return Learner(DataLoaders([], batches(n), device='cpu'), model(), loss_func, opt_func=opt_func, metrics=accuracy,
        default_cbs=False, cbs=[TrainEvalCallback, Recorder]).validate

@only_311
def test_validation_bytecodes():
    "What a loss and a metric average over is not looked up anew for each batch, nor settings by slow misses"
    assert per_batch(bytecodes, validation) - per_batch(bytecodes, validation_by_hand) <= 1040

def test_validation_operators():
    assert per_batch(operators, validation) - per_batch(operators, validation_by_hand) <= 8

# Epochs
def epochs_by_hand(n, valid=False):
    m,bs = model(),batches(1)
    opt = opt_func(m.parameters())
    def run():
        for _ in range(n):
            m.train()
            for xb,yb in bs:
                loss_func(m(xb), yb).backward()
                opt.step()
                opt.zero_grad()
            if not valid: continue
            m.eval()
            with torch.no_grad():
                for xb,yb in bs: pred = m(xb); loss_func(pred, yb)*len(yb),(pred.argmax(-1)==yb).float().mean()*len(yb)
    return run

def epochs(n, valid=False):
    "A fit of `n` epochs of one batch: lean, or with a recorder, a validation of one batch and a metric"
    cbs,metrics = ([TrainEvalCallback, Recorder],accuracy) if valid else (TrainEvalCallback,None)
    learn = Learner(DataLoaders(batches(1), batches(1) if valid else None, device='cpu'), model(), loss_func,
        opt_func=opt_func, metrics=metrics, cbs=cbs, default_cbs=False)
    return lambda: learn.fit(n)

@only_311
@pytest.mark.parametrize('valid,most', [(False, 3150), (True, 11_500)], ids=['lean','recorded'])
def test_epoch_bytecodes(valid, most):
    "Nothing is searched again, copied or read that is as it was; a batch of each phase is part of this"
    assert per_batch(bytecodes, epochs, valid=valid) - per_batch(bytecodes, epochs_by_hand, valid=valid) <= most

@pytest.mark.parametrize('draw',
    [random.random, lambda: random.gauss(0, 1), lambda: random.shuffle([1,2,3]), lambda: random.getrandbits(8),
        lambda: np.random.rand(), lambda: np.random.randn()])
def test_states_of_global_generators_are_new_where_they_have_moved(draw):
    "Their states are long, and stay the same objects until a draw: what compares or copies them is done at once"
    names = 'python','numpy'
    first,again = random_state(),random_state()
    assert all(again[k] is first[k] for k in names)
    for _ in range(3):
        before = random_state()
        drawn = draw()
        assert sum(random_state()[k] is before[k] for k in names)==1 # one has moved
        after = random.getstate(),np.random.get_state()[1].tolist()
        set_random_state(before)
        assert draw()==drawn and (random.getstate(),np.random.get_state()[1].tolist())==after

@only_311
def test_epochs_do_not_grow_with_history():
    ns = 10,20,60,70
    epochs(10, valid=True)()
    first,second,third,fourth = (bytecodes(epochs(n, valid=True)) for n in ns)
    assert fourth-third <= 1.01*(second-first)

def test_validation_reads_nothing_in_its_batches():
    def validate(n):
        return Learner(DataLoaders([], batches(n), device='cpu'), model(), loss_func, opt_func=opt_func,
            metrics=[accuracy, F1Score(), top_k_accuracy], default_cbs=False,
            cbs=[TrainEvalCallback, Recorder]).validate
    assert per_batch(waits, validate)==0

losses = dict(weights=nn.CrossEntropyLoss(weight=torch.tensor([.2,1.]), ignore_index=1),
    sum=nn.CrossEntropyLoss(reduction='sum'), single=nn.CrossEntropyLoss(reduction='none'),
    focal=FocalLoss(weight=torch.tensor([.2,1.])),
    smooth=LabelSmoothingCrossEntropyFlat(), own=lambda p,t: F.cross_entropy(p, t), margin=nn.MultiMarginLoss(),
    dice=DiceLoss())
@pytest.mark.parametrize('name', losses)
def test_weights_of_batches_read_nothing(name):
    def validate(n):
        return Learner(DataLoaders([], batches(n), device='cpu'), model(), losses[name], opt_func=opt_func,
            metrics=[accuracy, error_rate, partial(top_k_accuracy, k=1), BrierScore(), Perplexity(), F1Score(),
                AccumMetric(F.cross_entropy, flatten=False)], default_cbs=False,
                cbs=[TrainEvalCallback, Recorder]).validate
    assert per_batch(waits, validate)==0

# Techniques
techniques = dict(clip=GradientClip, clip_value=lambda: GradientClip(max_value=.1),
    accumulation=lambda: GradientAccumulation(8), micro=lambda: MicroBatch(2), micro_auto=MicroBatch, mixup=MixUp,
    cutmix=CutMix,
    ema=EMA, ema_every=lambda: EMA(every=2, buffers=True), swa=lambda: SWA(0, every=1, lr=.1),
    schedule=lambda: ParamScheduler(dict(lr=SchedCos(.1, 0), mom=wsd(.9))),
    torch_schedule=lambda: TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1), 'step'),
    freeze=lambda: FreezeSchedule({0: 0}), bn_freeze=BnFreeze, short=lambda: ShortEpochCallback(.9),
    channels_last=ChannelsLast, prefetch=Prefetch, collect=CollectDataCallback, mc_dropout=MCDropoutCallback,
    several=lambda: [MicroBatch(2), GradientAccumulation(8), MixUp(), GradientClip(), EMA()])

@pytest.mark.sample(2)
@pytest.mark.parametrize('name', techniques)
@pytest.mark.parametrize('loss',
    [loss_func, nn.CrossEntropyLoss(weight=torch.ones(2)), partial(F.cross_entropy, reduction='sum')],
    ids=['plain','weights','sum'])
def test_techniques_read_nothing(name, loss):
    "Tensors without values: who reads one fails"
    imgs = [(torch.randn(4,1,2,4, device='meta'), torch.zeros(4, dtype=torch.long, device='meta')) for _ in range(3)]
    cbs = techniques[name]()
    learn = Learner(DataLoaders(imgs, device='meta'), nn.Sequential(nn.Flatten(), model()), copy.deepcopy(loss),
        opt_func=opt_func, cbs=[TrainEvalCallback, *(cbs if isinstance(cbs, list) else [cbs])], default_cbs=False)
    assert learn.fit(2).train_iter==6

def test_half_precision_reads_nothing():
    assert per_batch(waits, ours, cbs=[TrainEvalCallback, MixedPrecision('bf16'), GradientClip()])==0

# Predictions
class Sized:
    "A loader that is no list and no `DataLoader`, and holds one batch, so that a longer one has no more to be searched"
    def __init__(self, bs): self.b,self.n = bs[0],len(bs)
    def __len__(self): return self.n
    def __iter__(self): return (self.b for _ in range(self.n))

def preds_by_hand(n):
    m,bs = model().eval(),Sized(batches(n))
    def run():
        with torch.no_grad(): preds,targs = zip(*((m(xb).softmax(1), yb) for xb,yb in bs))
        return torch.cat(preds),torch.cat(targs)
    return run

def get_preds(n, kind=Sized):
    learn = Learner(DataLoaders([], kind(batches(n)), device='cpu'), model(), loss_func, opt_func=opt_func,
        default_cbs=False, cbs=TrainEvalCallback)
    return learn.get_preds

@only_311
def test_predictions_bytecodes():
    assert per_batch(bytecodes, get_preds) - per_batch(bytecodes, preds_by_hand) <= 800

def test_predictions_operators():
    """By hand, a batch is put at the end of others; here it is copied to its place: a slice and a copy, twice. The loss
    takes two"""
    assert per_batch(operators, get_preds) - per_batch(operators, preds_by_hand) <= 6

def test_callbacks_read_the_loss_of_predictions():
    seen = []
    get_preds(3).__self__.get_preds(cbs=[Callback(after_batch=lambda cb: seen.append(cb.loss))])
    assert len(seen)==3 and all(o.ndim==0 for o in seen)

def test_a_forward_of_ones_own_predicts_too():
    class Own(Learner):
        def _forward(self): self.pred = self.model(*self.xb)*0
    learn = Own(DataLoaders([], batches(2), device='cpu'), model(), loss_func, default_cbs=False, cbs=TrainEvalCallback)
    assert learn.get_preds(act=lambda o: o)[0].abs().max()==0

def test_predictions_wait_for_nothing():
    assert per_batch(waits, get_preds)==0

# Devices: what would make the host wait for one, counted without it
class Syncs(TorchDispatchMode):
    "Counts operators whose results, or sizes of results, the host has to read"
    names = {'_local_scalar_dense','is_nonzero','equal','nonzero','masked_select','unique_dim','_unique2',
        'unique_consecutive','repeat_interleave','bincount'}
    def __init__(self): super().__init__(); self.seen = Counter()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_index = args[1] if name in ('index','index_put','index_put_') else ()
        masked = any(o is not None and o.dtype is torch.bool for o in by_index)
        if name in self.names or masked: self.seen[name] += 1
        return func(*args, **(kwargs or {}))

def syncs(f):
    with Syncs() as mode: f()
    return mode.seen.total()

def whole_fit(n, *cbs, **kwargs):
    learn = Learner(DataLoaders(batches(n), batches(2), device='cpu'), model(), loss_func, opt_func=opt_func,
        metrics=[accuracy, F1Score()], cbs=[*cbs], **kwargs)
    return lambda: learn.fit(1)

@pytest.mark.parametrize('cbs', [(), ('bf16',)], ids=['fp32','bf16'])
def test_a_training_batch_with_the_defaults_waits_for_no_device(cbs, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules[ProgressCallback.__module__], 'perf_counter', lambda: 0.) # how often a bar is drawn
    def fit(n): return whole_fit(n, *map(MixedPrecision, cbs))
    assert per_batch(syncs, fit)==0

def test_no_batch_of_a_first_fit_waits_for_a_device():
    "Nor do its checks of the first batches"
    class Within(Callback):
        def before_train(self): self.was = mode.seen.copy()
        def after_batch(self): assert mode.seen==self.was
    within = Within()
    within.run_valid = False
    with Syncs() as mode: whole_fit(20, within)()

def test_what_waits_is_counted():
    class Reads(Callback):
        def after_batch(self): self.learn.loss.item()
    class Chooses(Callback):
        def after_batch(self): self.learn.pred[self.learn.pred>0]
    for cb in Reads,Chooses: assert per_batch(syncs, lambda n: whole_fit(n, cb, default_cbs=False))>=1

@pytest.mark.cuda
@pytest.mark.parametrize('half', [False, True], ids=['fp32','bf16'])
def test_a_training_batch_never_waits_for_the_gpu(half, capsys):
    "The mode makes torch refuse what waits, between the first batch and the last one"
    class Strict(Callback):
        order = -1000
        def before_batch(self): torch.cuda.set_sync_debug_mode('error' if self.learn.training else 'default')
        def cleanup_train(self): torch.cuda.set_sync_debug_mode('default')
    moved = [(x.cuda(), y.cuda()) for x,y in batches(20)]
    cbs = [Strict(), *([MixedPrecision('bf16')] if half else [])]
    learn = Learner(DataLoaders(moved, moved[:2]), model(), loss_func, opt_func=opt_func, metrics=accuracy, cbs=cbs)
    try: assert learn.fit(2).train_iter==40
    finally: torch.cuda.set_sync_debug_mode('default')

# What does not change is not looked through again, copied or written
def one_cycle(n):
    learn = Learner(DataLoaders(batches(1), device='cpu'), model(), loss_func, cbs=TrainEvalCallback, default_cbs=False)
    return lambda: learn.fit_one_cycle(n, .01)

@only_311
def test_epochs_of_a_schedule_search_nothing_again():
    "Momentum is an entry of a tuple that is replaced in each batch"
    assert per_batch(bytecodes, one_cycle) <= 12_500

def test_a_list_of_numbers_is_copied_at_once():
    long,seen = [i+.5 for i in range(100_000)],{}
    first,again = (copied(dict(a=long), seen=seen)['a'] for _ in range(2))
    assert first==long and first is again and first is not long
    assert bytecodes(lambda: copied(dict(a=long), seen={})) < 1000
    assert [*map(type, copied([1, True, None, 'a', 2.]))]==[int, bool, type(None), str, float]

class Bank(nn.Module):
    "Has 12 MB beside its weights, of which it writes some values"
    def __init__(self, write):
        super().__init__()
        self.l,self.bank,self.write = nn.Linear(8, 2),torch.zeros(3_000_000),write
    def forward(self, x):
        if self.training: self.write(self)
        return self.l(x) + self.bank[17:19]

def by_index(m): m.bank[15:20] += .1
def replaced(m): m.bank = m.bank+.1
def in_data(m): m.bank.data[15:20] += .1 # torch does not count this write, nor the next
def by_numpy(m): m.bank.numpy()[15:20] += .1
@pytest.mark.parametrize('write', [by_index, replaced, in_data, by_numpy])
def test_a_large_attribute_is_resumed_however_it_is_written(write, tmp_path):
    "Looking at some of its values, as a cheap test of whether it has changed, would miss a write"
    def mk():
        torch.manual_seed(0)
        return Learner(DataLoaders(batches(3), device='cpu'), Bank(write), loss_func, opt_func=opt_func, path=tmp_path,
            cbs=TrainEvalCallback, default_cbs=False)
    stopped,whole,resumed = mk(),mk(),mk()
    whole.fit(2)
    stopped.fit(2, cbs=[Checkpoint(every=1), Callback(after_epoch=lambda self: self.learn.stop_soon())])
    resumed.fit(2, cbs=Checkpoint(every=1), resume=True)
    for a,b in zip((resumed.model.bank, resumed.model.l.weight), (whole.model.bank, whole.model.l.weight)):
        assert torch.equal(a, b)

def test_files_have_no_tables_of_callbacks(tmp_path):
    class Has(Callback):
        def __init__(self, table): self.table = table
    learn = Learner(DataLoaders(batches(2), device='cpu'), model(), loss_func, opt_func=opt_func, path=tmp_path,
        cbs=TrainEvalCallback, default_cbs=False)
    learn.fit(1, cbs=[Checkpoint(every=1), Has({str(i):i for i in range(50_000)})])
    assert max(o.stat().st_size for o in tmp_path.rglob('*') if o.is_file()) < 100_000
