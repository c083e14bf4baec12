"""What a GPU does differently: its own generator of random numbers, its memory, copies that nobody waits for, graphs"""
import copy,gc,os,pickle,signal,subprocess,sys
from contextlib import contextmanager
from pathlib import Path
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Subset,TensorDataset
from learner.all import *
from learner.dist.engine import number_on
from learner.record.loss_stream import LossStream
import small_fits
from small_fits import X,Y,T,cut,gap,same,sgd,weights

pytestmark = pytest.mark.cuda
device = 'cuda'

def noisy(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3,16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(.3), nn.Linear(16,2))
def plain(seed=0, n_out=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3,16), nn.Tanh(), nn.Linear(16,n_out))

class Noise(Callback):
    "Draws on the device"
    run_valid = False
    def before_batch(self): self.learn.x = self.x + .1*torch.randn_like(self.x)

class Drawn(TensorDataset):
    "Samples on the device, with noise of a generator of its own there"
    def __init__(self, n=60):
        super().__init__(X[:n].to(device), Y[:n].to(device))
        self.gen = torch.Generator(device).manual_seed(5)
    def __getitem__(self, i):
        x,y = super().__getitem__(i)
        return x+.1*torch.randn(3, device=device, generator=self.gen),y

def mk(*cbs, train=None, valid=None, model=noisy, seed=0, **kwargs):
    dls = DataLoaders(cut(10) if train is None else train, cut(30) if valid is None else valid, device=device)
    learn = small_fits.mk(*cbs, data=dls, model=model(seed), **kwargs)
    torch.manual_seed(1+seed)
    return learn

def outcome(learn):
    "Weights and statistics, losses, results"
    rows = [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
    return [o.tolist() for o in learn.model.state_dict().values()],learn.recorder.raw_losses,rows

def stop(n): return on('after_pred', once=n)(lambda learn: learn.stop_soon())
def ctrl_c(n): return on('after_pred', once=n)(lambda learn: signal.raise_signal(signal.SIGINT))
def on_device(bs): return [tuple(o.to(device) for o in b) for b in bs]
def steps(model, bs, n_epoch=1, loss_func=F.cross_entropy):
    "Losses of a loop by hand"
    opt,res = sgd(model.to(device).train().parameters()),[]
    for x,y in on_device(bs)*n_epoch:
        loss = loss_func(model(x), y)
        loss.backward(); opt.step(); opt.zero_grad()
        res.append(loss.item())
    return res

precisions = dict(fp32=lambda: [], bf16=lambda: [MixedPrecision('bf16')],
    fp16=lambda: [MixedPrecision('fp16', init_scale=2.**24, growth_interval=3)]) # overflows, and grows again

# Stopping and resuming
@pytest.mark.parametrize('half', precisions)
def test_a_stopped_fit_draws_on_the_device_where_it_was(half):
    def new(): return mk(Noise, *precisions[half](), metrics=accuracy)
    whole = outcome(new().fit(3))
    learn = new().fit(3, cbs=stop(8))
    torch.randn(5, device=device)
    assert learn.train_iter==8 and learn.resume().train_iter==18
    assert outcome(learn)==whole
    learn = new()
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=ctrl_c(9))
    learn.validate(); learn.get_preds()
    assert outcome(learn.resume())==whole

@pytest.mark.parametrize('half', precisions)
def test_a_new_learner_resumes_from_a_file(half, tmp_path):
    def new(seed=0): return mk(Noise, *precisions[half](), metrics=accuracy, seed=seed, path=tmp_path)
    whole = outcome(new().fit(3))
    with pytest.raises(InterruptedError): new().fit(3, cbs=[Checkpoint(every=2, unit='iter', on_exc=False),
        Raise('after_backward', InterruptedError, 10)])
    torch.randn(7, device=device)
    assert outcome(new(5).fit(3, cbs=Checkpoint(every=2, unit='iter'), resume=True))==whole

def test_a_run_goes_back_and_forks():
    def new(): return mk(Noise, *precisions['fp16'](), train=DataLoader(Drawn(), 10, shuffle=True), metrics=accuracy)
    whole = outcome(new().fit(3))
    learn = new().fit(3, cbs=Rewind(every=4))
    assert outcome(learn)==whole
    alt = learn.fork(10)
    assert {o.device.type for o in alt.model.parameters()}=={device} and alt.train_iter==10
    assert outcome(alt.resume())==whole==outcome(learn)
    assert learn.rewind(7).train_iter==7 and outcome(learn)!=whole and outcome(learn.resume())==whole

def test_pinned_batches_of_workers_resume():
    def new():
        train = DataLoader(TensorDataset(X, Y), 10, shuffle=True, num_workers=2, pin_memory=True)
        return mk(Noise, Prefetch, train=train)
    whole = outcome(new().fit(2))
    learn = new().fit(2, cbs=stop(4))
    assert learn.train_iter==4 and outcome(learn.resume())==whole

# Results
def test_fp16_skips_the_step_of_a_batch_that_overflows():
    "as a loop with torch's own scaler does"
    bs,seen = cut(10, T),[]
    bs[2] = bs[2][0],1e5*bs[2][1]
    amp = MixedPrecision('fp16', init_scale=2.**10, growth_interval=4)
    @on('after_batch')
    def look(learn):
        if learn.training: seen.append((weights(learn.model), learn.opt_step, amp.scaler.get_scale()))
    learn = mk(amp, look, train=bs, valid=cut(30, T), model=plain, loss_func=F.mse_loss).fit(2)
    assert same(seen[1][0], seen[2][0]) and not same(seen[0][0], seen[1][0])
    assert [n for _,n,_ in seen]==[1,2,2,3,4,5,6,7,7,8,9,10] and seen[2][2]==seen[1][2]/2
    model,scales = plain().to(device),[]
    opt,scaler = sgd(model.parameters()),torch.amp.GradScaler(device, 2.**10, growth_interval=4)
    for x,y in on_device(bs)*2:
        with torch.autocast(device, dtype=torch.float16): loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); opt.zero_grad()
        scales.append(scaler.get_scale())
    assert scales==[s for *_,s in seen] and same(weights(learn.model), weights(model))

def allocated(): gc.collect(); return torch.cuda.memory_allocated()

def test_predictions_are_on_the_cpu_and_keep_no_memory_of_the_device():
    valid = cut(1)[:50]
    learn = mk(valid=valid, metrics=accuracy).fit(1)
    learn.get_preds()
    before = allocated()
    preds,targs,dec,losses = learn.get_preds(with_decoded=True, with_loss=True)
    assert allocated()==before
    assert {o.device.type for o in (preds, targs, dec, losses)}=={'cpu'}
    model = learn.model.eval()
    with torch.no_grad(): out = torch.cat([model(x) for x,_ in on_device(valid)]).cpu()
    y = torch.cat([y for _,y in valid])
    assert gap([preds], [out.softmax(1)])<1e-6 and torch.equal(targs, y) and torch.equal(dec, out.argmax(1))
    assert gap([losses], [F.cross_entropy(out, y, reduction='none')])<1e-6
    res = learn.validate()
    assert res.valid_loss==pytest.approx(F.cross_entropy(out, y).item(), rel=1e-5) and isinstance(res.valid_loss, float)
    assert res.accuracy==pytest.approx((out.argmax(1)==y).float().mean().item())
    first = learn.predict(X[3])
    assert not any(o.is_cuda for o in first if isinstance(o, torch.Tensor))
    assert int(first[0])==out[3].argmax()

@pytest.mark.parametrize('n', [6, 300])
def test_losses_arrive_as_those_of_a_loop(n):
    "Bundles of 256 are sent to the host, and nobody waits for them"
    bs = (cut(10)*50)[:n]
    learn = mk(train=bs, model=plain).fit(2)
    expected = steps(model := plain(), bs, 2)
    assert learn.recorder.raw_losses==expected and same(weights(learn.model), weights(model))

def test_averages_of_weights():
    seen = []
    look = on('after_step')(lambda learn: seen.append(weights(learn.model)))
    ema = EMA(decay=.5, warmup=False)
    learn = mk(ema, look, model=plain).fit(2)
    avg = [o.to(device) for o in weights(plain())]
    for ws in seen: avg = [.5*a+.5*w for a,w in zip(avg, ws)]
    assert {o.device.type for o in ema.avg}=={device} and gap(ema.avg, avg)<1e-6
    assert same(weights(learn.model), seen[-1])
    seen.clear()
    learn = mk(SWA(start=0, every=1), look, model=plain).fit(2)
    assert gap(weights(learn.model), [sum(o)/len(seen) for o in zip(*seen)])<1e-6 and len(seen)==12

def test_gradients_of_several_batches_and_mixed_batches():
    learn = mk(GradientAccumulation(20), model=plain).fit(2)
    steps(model := plain(), cut(20), 2)
    assert gap(weights(learn.model), weights(model))<1e-5 and learn.opt_step==6
    mix,seen = MixUp(),[]
    @on('after_batch', order=100)
    def look(learn):
        if not learn.training: return
        a,b = (F.cross_entropy(learn.pred, y, reduction='none') for y in (learn.y, mix.others[0]))
        seen.append(((mix.lam*a + (1-mix.lam)*b).mean()-learn.loss).abs().item())
    mk(mix, look, model=plain).fit(2)
    assert len(seen)==12 and max(seen)<1e-5

looks = dict(lr_find=lambda o: o.lr_find(num_it=12, show_plot=False), summary=lambda o: o.summary(),
    profile=lambda o: o.profile(4), smoke=lambda o: o.smoke(), repeatable=lambda o: o.repeatable(),
    memory=lambda o: o.memory(bs=100), predictions=lambda o: (o.get_preds(), o.validate(), o.predict(X[0])))
@pytest.mark.parametrize('look', looks)
def test_a_look_changes_nothing(look):
    "Weights, statistics, generators, what comes after it"
    def new(): return mk(Noise, MixedPrecision('fp16', init_scale=2.**8, growth_interval=3), metrics=accuracy).fit(1)
    whole,learn = outcome(new().fit(1)),new()
    before = outcome(learn)
    looks[look](learn)
    assert outcome(learn)==before
    assert outcome(learn.fit(1))==whole

def test_fingerprints_of_equal_runs_are_equal():
    def run(lr=.1):
        cb = Fingerprint()
        mk(Noise, cb).fit(2, lr=lr)
        return cb
    a,b,c = run(),run(),run(.05)
    def rows(o): return {k:[*v.values] for k,v in o.trail.columns.items()}
    assert rows(a)==rows(b) and rows(a)['weights']!=rows(c)['weights']
    assert len({*rows(a)['weights']})==13 and rows(a)['inputs'][:3]==rows(c)['inputs'][:3]
    assert mk(Noise).repeatable()

def test_a_target_that_is_a_column_has_a_checksum():
    def split(b): return (b[0],),(b[1][:,0],)
    table = list(zip(X.split(10), torch.stack([Y,Y], 1).split(10)))
    dls = DataLoaders(table, table, device=device, split=split)
    assert small_fits.mk(Fingerprint, data=dls, model=noisy()).fit(1).repeatable()

@pytest.mark.parametrize('cb', [Timer, Profile])
def test_a_timed_learner_is_copied(cb):
    learn = mk(cb).fit(1)
    a,b = copy.deepcopy(learn),pickle.loads(pickle.dumps(learn))
    assert outcome(a)[0]==outcome(b)[0]==outcome(learn)[0]

def test_a_value_for_each_class_is_read_on_the_cpu():
    rows = mk(metrics=F1Score(average=None)).fit(2).recorder.rows
    assert [v.device.type for o in rows for v in dict(o).values() if isinstance(v, torch.Tensor)]==['cpu']*2

def test_results_are_shown_where_the_batches_are_on_the_device():
    ds = TensorDataset(X.to(device), Y.to(device))
    interp = ClassificationInterpretation.from_learner(mk(valid=DataLoader(ds, 10)).fit(1))
    assert interp[3] and len(interp.top_losses(3, items=True))==3

def test_metrics_and_histograms_with_deterministic_algorithms(monkeypatch):
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8') # without it, torch refuses products of matrices
    cb = ActivationStats(with_hist=True)
    def fit(): return outcome(mk(cb, metrics=[RocAucBinary(), APScoreBinary()]).fit(1)),cb.stats
    usual = fit()
    torch.use_deterministic_algorithms(True)
    try: res = fit()
    finally: torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(res[1][...,3:].sum(-1), usual[1][...,3:].sum(-1))

def test_weights_travel_to_the_cpu_and_back(tmp_path):
    "and train on there as if they had stayed"
    def new(where, seed):
        learn = mk(model=plain, seed=seed, path=tmp_path)
        learn.dls.device = where
        return learn
    a = new(device, 0).fit(1)
    a.save('a')
    new('cpu', 1).load('a').save('b')
    c,d = new(device, 2).load('b'),new('cpu', 3).load('b')
    a.export()
    e = load_learner(tmp_path/'export.pkl', trust=True)
    assert same([o.cpu() for o in weights(a.model)], weights(e.model))
    e.export(tmp_path/'again.pkl')
    e,f = load_learner(tmp_path/'again.pkl', device, trust=True),new(device, 4).load('a', with_opt=False)
    e.dls = a.dls
    for o in (a, c, d, e, f): o.fit(1, lr=.1)
    assert same(weights(a.model), weights(c.model)) and gap([o.cpu() for o in weights(a.model)], weights(d.model))<1e-5
    assert {o.device.type for o in d.model.parameters()}=={'cpu'}
    assert same(weights(e.model), weights(f.model)) and {o.device.type for o in e.model.parameters()}=={device}

def test_the_optimizer_goes_with_the_model_between_devices():
    learn = mk(model=plain)
    learn.dls.to('cpu'); learn.fit(1)
    learn.dls.to(device); learn.fit(1)
    learn.dls.to('cpu'); learn.fit(1)
    once = mk(model=plain).fit(1).fit(1).fit(1)
    assert gap(weights(learn.model), [o.cpu() for o in weights(once.model)])<1e-5
    for opt_func in (torch.optim.Adagrad, Adam, lambda ps: Adam(ps, fused=True)):
        learn = mk(model=plain)
        learn.opt_func = opt_func
        learn.fit_one_cycle(1)
        learn.dls.to('cpu'); learn.fit(1)
        assert all(o.isfinite().all() for o in weights(learn.model))

@pytest.mark.parametrize('cb', [GradientAccumulation, MicroBatch])
def test_a_count_may_be_on_the_cpu(cb):
    a,b = (mk(cb(20, count=lambda learn: where(len(learn.y))), model=plain).fit(1) for where in (torch.tensor, int))
    assert gap(weights(a.model), weights(b.model))<1e-6

def test_a_count_that_is_a_number_is_not_waited_for():
    torch.cuda.set_sync_debug_mode('error')
    try: assert number_on(3, torch.device(device)).dtype is torch.float64
    finally: torch.cuda.set_sync_debug_mode('default')

# What users have put on a device themselves
def test_a_default_device_changes_no_fit():
    def run():
        learn = mk(Noise, *precisions['fp16'](), train=cut(10), metrics=[accuracy, F1Score()]).fit(2)
        return outcome(learn),[o.tolist() for o in learn.get_preds(with_loss=True)]
    expected = run()
    new = mk(Noise, *precisions['fp16'](), train=cut(10), metrics=[accuracy, F1Score()])
    with torch.device(device): new.fit(2); preds = [o.tolist() for o in new.get_preds(with_loss=True)]
    assert (outcome(new), preds)==expected

def test_weights_and_positions_on_a_device_choose_samples():
    data,wgts = TensorDataset(X.to(device), Y.to(device)),torch.arange(len(X)).double()
    def drawn(where):
        dl = weighted_dl(data, 10, wgts.to(where), generator=torch.Generator().manual_seed(3))
        return torch.cat([x for x,_ in dl])
    assert torch.equal(drawn('cpu'), drawn(device))
    part = Subset(data, torch.arange(20, device=device))
    with pytest.warns(UserWarning, match='20 samples of .* are trained on'):
        mk(train=DataLoader(part, 10), valid=DataLoader(data, sampler=[*range(30)])).fit(1)

def test_batches_that_move_in_place_stay_where_they_are():
    class Held:
        def __init__(self, x): self.x = x
        def to(self, *args, **kwargs): self.x = self.x.to(*args, **kwargs); return self
    bs = [(Held(x),y) for x,y in cut(10)]
    class OfHeld(nn.Module):
        def __init__(self, model): super().__init__(); self.model = model
        def forward(self, b): return self.model(b.x)
    learn = mk(train=bs, valid=bs[:2], model=lambda seed: OfHeld(plain(seed))).fit(2)
    assert {b.x.device.type for b,_ in bs}=={'cpu'}
    assert learn.recorder.raw_losses==mk(train=cut(10), model=plain).fit(2).recorder.raw_losses

def test_tied_weights_are_written_once(tmp_path):
    def size(tie):
        model = nn.Sequential(nn.Linear(100,100), nn.Linear(100,100)).to(device)
        if tie: model[1].weight = model[0].weight
        file = mk(model=lambda seed: model, path=tmp_path).save('a')
        return file.stat().st_size
    assert size(tie=False)-size(tie=True)==pytest.approx(4*100*100, abs=500)

@pytest.mark.skipif(torch.cuda.device_count()<2, reason="needs two devices")
def test_losses_of_a_device_that_is_not_the_current_one_are_read_when_they_are_there():
    losses,other = LossStream(),torch.device('cuda', 1)
    a = torch.randn(4096, 4096, device=other)
    for i in range(20): losses.append((a@a@a).sum()*0+i)
    losses.arrived()
    assert losses.all()[0]==[*range(20)]

def test_a_scale_at_which_trial_batches_overflow_changes_no_forecast():
    a,b = (mk(MixedPrecision('fp16', init_scale=o)).memory(bs=100).kinds for o in (2.**24, 1.))
    assert a==b

# Memory
@contextmanager
def little_memory(n_bytes):
    "Have `n_bytes` more than is in use now, in this process"
    torch.cuda.empty_cache()
    before,total = torch.cuda.get_per_process_memory_fraction(),torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved()+n_bytes)/total)
    try: yield
    finally: torch.cuda.set_per_process_memory_fraction(before); torch.cuda.empty_cache()

def test_pieces_fit_into_the_memory_that_there_is():
    "A whole batch takes 512 MB, for two layers and their gradients"
    def wide(seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3,1024), nn.Tanh(), nn.Linear(1024,1024), nn.Tanh(), nn.Linear(1024,2))
    n = 2**15
    torch.manual_seed(3)
    bs = list(zip(torch.randn(2*n, 3).split(n), torch.randint(0, 2, (2*n,)).split(n)))
    steps(model := wide(), bs)
    with little_memory(400*2**20):
        with pytest.raises(torch.OutOfMemoryError): mk(train=bs, model=wide).fit(1)
        gc.collect()
        learn = mk(MicroBatch(), train=bs, model=wide).fit(1)
    assert learn.micro_batch.fits<n and gap(weights(learn.model), weights(model))<1e-5 and learn.opt_step==2

@pytest.mark.parametrize('end', ['over','error','Ctrl-C','stopped'])
def test_no_memory_is_kept_when_a_learner_is_gone(end):
    def use():
        learn = mk(Noise, MixedPrecision('fp16'), EMA(), metrics=[accuracy, F1Score()])
        if end=='over': learn.fit(2)
        elif end=='stopped': learn.fit(2, cbs=stop(3))
        else:
            exc = KeyboardInterrupt if end=='Ctrl-C' else InterruptedError
            with pytest.raises(exc): learn.fit(2, cbs=ctrl_c(3) if end=='Ctrl-C' else Raise('after_loss', exc, 3))
        learn.validate()
    use() # torch allocates some for itself
    before = allocated()
    for _ in range(3): use()
    assert allocated()==before

def test_fits_keep_no_memory():
    learn = mk(Noise, EMA(), metrics=accuracy).fit(1).fit(1)
    before = allocated()
    for _ in range(20): learn.fit(1)
    assert allocated()<=before

# Graphs
accumulated,pieces = (lambda: GradientAccumulation(24)),(lambda: MicroBatch(5))
@pytest.mark.parametrize('with_loss,more', [(False, ()), (True, ()), (False, [accumulated]), (True, [accumulated]),
    (False, [pieces]), (False, [accumulated, pieces])])
def test_graphs_train_as_the_plain_model_does(with_loss, more):
    def right(pred, targ): return (pred.argmax(1)==targ).float().mean()
    def new(*cbs):
        return mk(*cbs, *[f() for f in more], train=cut(12), model=plain, metrics=[accuracy, F1Score(), right])
    a,b = new().fit(2),new(Compile(mode='reduce-overhead', with_loss=with_loss)).fit(2)
    assert gap(weights(a.model), weights(b.model))<1e-5
    assert b.recorder.raw_losses==pytest.approx(a.recorder.raw_losses, abs=1e-5)
    for k in ('valid_loss','accuracy','f1_score'):
        assert [o[k] for o in b.recorder.rows]==pytest.approx([o[k] for o in a.recorder.rows], abs=1e-5)

@pytest.mark.parametrize('own', [False, True])
def test_losses_and_predictions_of_graphs_are_kept(own):
    class Own(nn.Module):
        def __init__(self, seed=0): super().__init__(); self.net = plain(seed)
        def forward(self, x, labels):
            logits = self.net(x)
            return dict(loss=F.cross_entropy(logits, labels), logits=logits)
    bs = [dict(x=x, labels=y) for x,y in cut(12)] if own else cut(12)
    def new(*cbs): return mk(CollectDataCallback, *cbs, train=bs, valid=bs, model=Own if own else plain,
        **dict(loss_func=None) if own else {}).fit(2)
    a,b = new(),new(Compile(mode='reduce-overhead'))
    assert b.recorder.raw_losses==pytest.approx(a.recorder.raw_losses, abs=1e-5)
    for (*_,loss),(*_,other) in zip(a.collect_data.data, b.collect_data.data): assert abs(loss-other)<1e-5

# An error after which the device cannot be used any more
bad_target = """
import torch
from torch import nn
from learner.all import *
bs = [(torch.randn(4, 3), torch.tensor([0, 1, 1, 7]))]
Learner(DataLoaders(bs, device=%r), nn.Linear(3,2), nn.CrossEntropyLoss()).fit(1)
"""
def test_a_target_out_of_range_fails():
    root = Path(sys.modules['learner'].__file__).parents[1] # in a process of its own, whose device is lost
    p = subprocess.run([sys.executable, '-c', bad_target % device], env=os.environ | dict(PYTHONPATH=str(root)),
        capture_output=True, text=True, timeout=120)
    assert p.returncode and 'device-side assert' in p.stderr and 'a target or an index is out of range' in p.stderr
