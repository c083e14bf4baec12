"""Promise 1, where a gap is easy to miss: state that is in no `state_dict`, handlers that run twice, settings that
have changed"""
import os,random,signal,time,warnings
from functools import partial
from pathlib import Path
import numpy as np
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler,DataLoader,RandomSampler,Sampler,WeightedRandomSampler,default_collate, \
    get_worker_info
from learner.all import *
from parts import shown
import runs
from runs import CtrlC,Net,Samples,differences,outcome,seed_all

def made(path, seed=1, train=None, model=lambda: Net(.3), loss=F.mse_loss, valid=True, **kwargs):
    seed_all(seed)
    return Learner(DataLoaders(train() if train else DataLoader(Samples(), 8, shuffle=True),
        DataLoader(Samples(16), 8) if valid else None, n_inp=2, device='cpu'),
        model(), loss() if isinstance(loss, type) else loss, metrics=runs.mae, path=path,
        **dict(lr=.01) | kwargs).remove_cb(ProgressCallback)

@pytest.fixture(autouse=True)
def as_errors():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*pin_memory|.*fork|.*it had: `raise` is gone$|.*replays its batches')
        yield

def cut(path, make, cbs, stop, how, fit=None, every=2, unit='iter', between=lambda learn: None):
    "A run that is stopped and resumed: by a new learner from a file, or by the same one"
    fit,learn = fit or {},make(path)
    if how=='file':
        with pytest.raises(InterruptedError):
            learn.fit(3, cbs=[*cbs(), Checkpoint(every, unit, on_exc=False),
                Raise(stop[0], InterruptedError, stop[1], order=500)], **fit)
        return make(path, seed=77).fit(3, cbs=[*cbs(), Checkpoint()], resume=True, **fit)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[*cbs(), CtrlC(*stop)], **fit)
    between(learn)
    return learn.resume()

hows = dict(file=dict(how='file'), epochs=dict(how='file', every=1, unit='epoch'), ctrl_c=dict(how='ctrl_c'))
@pytest.fixture(params=hows)
def how(request): return hows[request.param]

def check(path, make, how, cbs=lambda: [], stop=('after_pred', 9), fit=None):
    for o in ('a','b'): (path/o).mkdir()
    whole = make(path/'a').fit(3, cbs=cbs(), **fit or {})
    assert not differences(outcome(whole), outcome(cut(path/'b', make, cbs, stop, fit=fit, **how)))

# Validations in validations
class InExtra(Callback):
    "Stops in the `n`-th batch of the loader `extra`"
    def __init__(self, n, error=None): self.left,self.error = n,error
    def after_pred(self):
        self.left -= self.learn.dl_name=='extra'
        if self.left==0:
            self.left = -1
            if self.error: raise self.error
            signal.raise_signal(signal.SIGINT)

@pytest.mark.parametrize('n', [1,3])
@pytest.mark.parametrize('error', [None, InterruptedError()])
def test_a_stop_in_the_second_of_two_validations_between_batches(n, error, tmp_path):
    def cbs(): return [Validate(2, 'iter'), ExtraValid(DataLoader(Samples(10), 5, shuffle=True), every=2, unit='iter')]
    ref = made(tmp_path).fit(3, cbs=cbs())
    learn = made(tmp_path)
    with pytest.raises((KeyboardInterrupt,InterruptedError)), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.fit(3, cbs=[*cbs(), InExtra(n, error), *([Checkpoint()] if error else [])])
    if error:
        with pytest.warns(UserWarning, match='`in_extra` is gone$'):
            learn = made(tmp_path, seed=9).fit(3, cbs=[*cbs(), Checkpoint()], resume=True)
    else: learn.resume()
    assert not differences(outcome(ref), outcome(learn)) and learn.train_iter==18

# State of modules
class Scaled(nn.Module):
    "A loss that knows how large it has been, and has a parameter"
    def __init__(self):
        super().__init__(); self.register_buffer('m', torch.ones(())); self.w = nn.Parameter(torch.randn(()))
    def forward(self, p, y):
        loss = (p*self.w-y).pow(2).mean()
        if self.training: self.m.mul_(.9).add_(.1*loss.detach())
        return loss/self.m

def with_scaled(path, seed=1):
    learn = made(path, seed, loss=Scaled)
    learn.splitter = lambda m: [*m.parameters(), *learn.loss_func.parameters()]
    return learn
def test_state_of_the_loss(how, tmp_path): check(tmp_path, with_scaled, how)

class Hidden(Net):
    "A buffer that is in no `state_dict`, and is replaced by a new tensor each time"
    def __init__(self): super().__init__(.3); self.register_buffer('h', torch.zeros(8), persistent=False)
    def forward(self, x, ids):
        z = self.body(x)
        if self.training: self.h = .9*self.h + .1*z.detach().mean(0)
        return self.head(z+self.h)
def test_buffers_in_no_state_dict(how, tmp_path): check(tmp_path, partial(made, model=Hidden), how)

class Weighing(Callback):
    "Trains a parameter of its own"
    _stateattrs = ('w','o')
    def before_fit(self): self.w = nn.Parameter(torch.zeros(1)); self.o = torch.optim.Adam([self.w], lr=.1)
    def after_loss(self):
        if self.learn.training: self.learn.loss_grad = self.learn.loss_grad*(1+self.w.sigmoid().squeeze())
    def after_step(self): self.o.step(); self.o.zero_grad()

def test_modules_and_optimizers_of_callbacks(how, tmp_path): check(tmp_path, made, how, lambda: [Weighing()])

def test_optimizers_and_parameters_that_are_not_saved_are_named(tmp_path):
    class Forgetful(Weighing): _stateattrs = ()
    with pytest.warns(UserWarning,
            match='`forgetful` has `w`, `o`, .* is not saved: name it in `Forgetful._stateattrs`'):
        made(tmp_path).fit(1, cbs=[Forgetful(), Checkpoint()])
    # and nothing else is
    made(tmp_path).fit(1, cbs=[EMA(.9), SaveModelCallback(), ActivationStats(), MixUp(), Checkpoint(folder='b')])

# Data
class Own(Sampler):
    def __init__(self, rng): self.rng = rng
    def __len__(self): return 42
    def __iter__(self):
        order = list(range(42))
        if isinstance(self.rng, torch.Generator): order = torch.randperm(42, generator=self.rng).tolist()
        else: self.rng.shuffle(order)
        return iter(order)
class Telling(Sampler):
    "Its randomness can only be had from its `state_dict`"
    def __init__(self): self.epoch = 0
    def __len__(self): return 42
    def __iter__(self):
        self.epoch += 1; return iter(torch.randperm(42, generator=torch.Generator().manual_seed(self.epoch)).tolist())
    def state_dict(self): return dict(epoch=self.epoch)
    def load_state_dict(self, state): self.epoch = state['epoch']
class Noisy(Samples):
    def __init__(self, rng): super().__init__(aug=False); self.rng = rng
    def __getitem__(self, i): x,i,y = super().__getitem__(i); return x+.1*float(self.rng.random()),i,y
class Made(Noisy):
    "Its generator is made where it is first needed"
    def __init__(self): super().__init__(None)
    def __getitem__(self, i):
        if self.rng is None: self.rng = np.random.default_rng(get_worker_info().seed if get_worker_info() else 0)
        return super().__getitem__(i)
class Batches:
    def __init__(self): self.rng,self.ds = random.Random(0),Samples(aug=False)
    def __len__(self): return 6
    def __iter__(self):
        order = list(range(42)); self.rng.shuffle(order)
        for i in range(0, 42, 8): yield default_collate([self.ds[j] for j in order[i:i+8]])

rngs = dict(numpy=lambda: np.random.default_rng(0), mt=lambda: np.random.Generator(np.random.MT19937(0)),
    old=lambda: np.random.RandomState(0), python=lambda: random.Random(0))
own = dict(
    **{f'sampler {k}': lambda f=f: DataLoader(Samples(), 8, sampler=Own(f()))
        for k,f in (rngs | dict(torch=torch.Generator)).items()},
    telling=lambda: DataLoader(Samples(), 8, sampler=Telling()),
    batch_sampler=lambda: DataLoader(Samples(), batch_sampler=BatchSampler(Own(random.Random(1)), 8, False)),
    **{f'dataset {k}': lambda f=f: DataLoader(Noisy(f()), 8, shuffle=True) for k,f in rngs.items()},
    subset=lambda: DataLoader(
        torch.utils.data.ConcatDataset([torch.utils.data.Subset(Noisy(random.Random(0)), range(42))]), 8),
        collate=lambda: DataLoader(Samples(), 8, collate_fn=partial(noisy_collate, np.random.default_rng(0))),
        loader=Batches)
def noisy_collate(rng, samples):
    return [o+float(rng.random()) if o.is_floating_point() else o for o in default_collate(samples)]

@pytest.mark.sample(3)
@pytest.mark.parametrize('kind', own)
def test_randomness_of_ones_own(kind, how, tmp_path): check(tmp_path, partial(made, train=own[kind]), how)

in_workers = {
    'made there': lambda: dict(dataset=Made()), 'brought along': lambda: dict(dataset=Noisy(np.random.default_rng(0))),
    'collate': lambda: dict(dataset=Samples(), collate_fn=partial(noisy_collate, np.random.default_rng(0)))}
@pytest.mark.parametrize('kind', in_workers)
def test_randomness_of_ones_own_in_workers(kind, tmp_path):
    check(tmp_path, partial(made, train=lambda: DataLoader(**in_workers[kind](), batch_size=8, shuffle=True,
        num_workers=2)), dict(how='file', every=1), stop=('after_pred', 11))

def test_a_generator_that_is_not_there_yet_is_named(tmp_path):
    with pytest.warns(UserWarning, match='had `dataset.rng`, whose state was saved, but has it no longer, or not yet'):
        cut(tmp_path, partial(made, train=lambda: DataLoader(Made(), 8)), lambda: [], ('after_pred', 9), 'file')

class Weigh(Callback):
    def after_epoch(self): self.learn.dls.train.sampler.weights[:21] += 1
@pytest.mark.parametrize('before,after,cbs,match', [
    (dict(sampler=WeightedRandomSampler(torch.ones(42), 42)), dict(sampler=WeightedRandomSampler(torch.ones(42), 42)),
        [Weigh()], r'`sampler.weights` was \(42,\) #\w+, and is'),
    (dict(shuffle=True), dict(), [], '`sampler` was RandomSampler, and is SequentialSampler'),
    (dict(sampler=RandomSampler(range(42))), dict(sampler=RandomSampler(range(42), replacement=True)), [],
        '`sampler.replacement` was False, and is True')], ids=['weights','order','replacement'])
def test_a_loader_that_is_another_at_the_end_of_an_epoch(before, after, cbs, match, tmp_path):
    with pytest.raises(InterruptedError):
        made(tmp_path, train=lambda: DataLoader(Samples(), 8, **before)).fit(3,
            cbs=[*cbs, Checkpoint(on_exc=False), Raise('after_pred', InterruptedError, 11)])
    with pytest.warns(UserWarning, match=match):
        made(tmp_path, train=lambda: DataLoader(Samples(), 8, **after)).fit(3, cbs=[*cbs, Checkpoint()], resume=True)

# Handlers that run again when a run is resumed
class Shrinks(Callback):
    only_fit = True
    def before_epoch(self):
        with torch.no_grad():
            for p in self.learn.model.parameters(): p.mul_(.9)
            for p in self.learn.model.parameters(): p.data.add_(.01)
            self.learn.model.body[1].running_mean.add_(1.)
class Forgets(Callback):
    def before_train(self): self.learn.opt.state.clear()
class Collects(Callback):
    _stateattrs = ('t',)
    def before_fit(self): self.t = torch.zeros(2)
    def before_epoch(self): self.t += 1
    def after_batch(self): self.learn.state['n'] = self.learn.state.get('n', 0)+float(self.t[0])

@pytest.mark.parametrize('cb', [Shrinks, Forgets, Collects])
def test_handlers_that_run_again_act_once(cb, how, tmp_path):
    check(tmp_path, made, how, lambda: [cb()], stop=('after_pred', 11))

def test_a_resume_that_fails_before_its_position_changes_nothing(tmp_path):
    ref,learn = outcome(made(tmp_path).fit(3, cbs=Shrinks())),made(tmp_path)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[Shrinks(), CtrlC('after_pred', 11)])
    for ev in ('before_fit','before_epoch','before_train'):
        with pytest.raises(InterruptedError), learn.added_cbs(Raise(ev, InterruptedError, order=1000)): learn.resume()
    assert not differences(ref, outcome(learn.resume()))

class Counts(Callback):
    def after_batch(self):
        if not self.learn.training:
            self.learn.state['v'] = self.learn.state.get('v', 0)+1
            self.learn.state.setdefault('t', torch.zeros(1)).add_(1)
@pytest.mark.parametrize('stop', [('after_pred', 8), ('after_validate', 1)])
def test_the_state_of_ones_own_is_that_of_the_position(stop, tmp_path):
    ref,learn = outcome(made(tmp_path).fit(3, cbs=Counts())),made(tmp_path)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[Counts(), CtrlC(*stop), Checkpoint()])
    assert 'v' not in learn.state # the validation that was cut is done again
    with pytest.warns(UserWarning, match='`ctrl_c` is gone$'):
        other = made(tmp_path, seed=5).fit(3, cbs=[Counts(), Checkpoint()], resume=True)
    assert not differences(ref, outcome(other))
    learn.state.note = 'mine'
    learn.resume()
    assert learn.state.pop('note')=='mine' and not differences(ref, outcome(learn))

# Changes between stop and resume
@pytest.mark.parametrize('opt', [SGD, torch.optim.Adam, Adam])
def test_weight_decay_that_is_changed_between(opt, tmp_path):
    class Decay(Callback):
        def before_batch(self):
            if self.learn.training and self.learn.train_iter==7: self.learn.set_hyper('wd', .1)
    ref,learn = made(tmp_path, opt_func=opt).fit(3, cbs=Decay()),made(tmp_path, opt_func=opt)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=CtrlC('after_batch', 9))
    assert learn.at.counters.train_iter==7
    learn.set_hyper('wd', .1)
    learn.resume()
    assert (not differences(dict(ref.model.state_dict()), dict(learn.model.state_dict()))
        and len(learn.recorder.raw_losses)==18)

def test_accumulated_gradients_survive_split_groups(tmp_path):
    learn = made(tmp_path, opt_func=SGD)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[GradientAccumulation(40), CtrlC('after_pred', 9)])
    grads = {k:learn.at.hypers_and_grads.grads[p].clone() for k,p in learn.model.named_parameters()}
    learn.set_hyper('wd', .1)
    learn.save_state('split')
    other = made(tmp_path, seed=3, opt_func=SGD).load_state('split')
    assert (not differences(grads, {k:other.at.hypers_and_grads.grads[p] for k,p in other.model.named_parameters()})
        and get_hyper(other.opt, 'wd')==[.1])
    seen = []
    def first(self):
        seen.append({k:p.grad.clone()
            for k,p in self.learn.model.named_parameters()}) if self.learn.training and not seen else None
    with pytest.warns(UserWarning, match='is gone'):
        other.resume(cbs=[GradientAccumulation(40), Callback(before_batch=first)])
    assert not differences(grads, seen[0])

def test_a_metric_that_is_new_gets_its_column(tmp_path):
    learn = made(tmp_path)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=CtrlC('after_pred', 9))
    def twice(p, y): return 2*runs.mae(p, y)
    learn.metrics = [runs.mae, twice]
    row = learn.resume().recorder.rows[-1]
    assert row.twice==pytest.approx(2*row.mae)

# Optimizers
def several(groups):
    return OptimList(torch.optim.Adam(groups[:1], lr=.01), torch.optim.SGD(groups[1:], lr=.01, momentum=.9),
        every=(2,1))
class Counting(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for g in self.param_groups:
            for p in g['params']:
                s = self.state[p]
                s['n'] = s.get('n', torch.zeros((), dtype=torch.int64))+1; s['q'] = (p.detach()*10).to(torch.int8)
def two(m): return [list(m.body.parameters()), list(m.head.parameters())]
class Half(Net):
    def forward(self, x, ids): return super().forward(x.bfloat16(), ids).float()

@pytest.mark.parametrize('kwargs,fit',
    [(dict(opt_func=several, splitter=two, lr=None), dict(wd=.1)), (dict(opt_func=several, splitter=two, lr=None), {}),
        (dict(opt_func=Counting), {}), (dict(opt_func=SGD), dict(wd=.1)),
    *((dict(opt_func=o, model=lambda: Half(0.).bfloat16(), lr=.001), {})
        for o in (torch.optim.NAdam, partial(torch.optim.ASGD, t0=3), torch.optim.Adam))], ids=shown)
def test_optimizers(kwargs, fit, how, tmp_path):
    check(tmp_path, partial(made, **kwargs), how, stop=('after_pred', 11), fit=fit)

# Files
def test_load_state_does_all_or_nothing(tmp_path):
    with silence('optimizer'): # the scale of the loss stays as it is
        file = made(tmp_path, loss=Scaled).fit(1).save_state('one')
        learn = made(tmp_path, 3, loss=Scaled).fit(1)
    learn.state.mine = 1
    before = {k:v.clone()
        for k,v in (learn.model.state_dict() | learn.loss_func.state_dict()).items()},learn.opt.state_dict()
    saved = read_plain(file)
    saved['opt']['param_groups'] *= 2
    torch.save(saved, tmp_path/'bad.pth')
    with pytest.raises(ValueError) as e: learn.load_state(tmp_path/'bad.pth')
    assert not differences(before,
        (dict(learn.model.state_dict() | learn.loss_func.state_dict()),learn.opt.state_dict())) and learn.state=={
        'mine': 1}
    assert any('bad.pth' in o for o in e.value.__notes__)

@pytest.mark.parametrize('n', [None, 0, 99])
def test_a_file_of_another_format_is_refused(n, tmp_path):
    file = made(tmp_path).fit(1).save_state('one')
    saved = read_plain(file)
    torch.save({k:v for k,v in (saved | dict(format=n)).items() if v is not None or k!='format'}, file)
    learn = made(tmp_path, 3)
    before = {k:v.clone() for k,v in learn.model.state_dict().items()}
    for load in (lambda: learn.load_state('one'), lambda: learn.fit(2, resume='one')):
        with pytest.raises(ValueError, match=f'in format {n}, but learner .* reads format'): load()
    assert not differences(before, dict(learn.model.state_dict()))
    learn.load('one') # the weights are there
    assert not differences(dict(saved['model']), dict(learn.model.state_dict()))

def test_a_checkpoint_that_has_not_saved_yet_does_not_hinder_a_save(tmp_path):
    made(tmp_path, cbs=Checkpoint()).save_state('early')
    assert made(tmp_path, 3, cbs=Checkpoint()).load_state('early').at is None

def test_a_dict_with_the_key_that_marks_kinds_in_files(tmp_path):
    learn = made(tmp_path)
    learn.state.a = {'__kind__': 'mine', 'b': [1]}
    learn.save_state('one')
    assert made(tmp_path, 3).load_state('one').state.a=={'__kind__': 'mine', 'b': [1]}

def test_a_file_that_was_just_written_is_kept(tmp_path):
    "Also by a run that was resumed from an earlier one of its files"
    made(tmp_path).fit(3, cbs=Checkpoint(keep=None))
    first = Checkpoints(tmp_path/'checkpoints').entries[1]
    seen = []
    class Looks(Callback):
        order,watches = Checkpoint.order+1,True
        def before_draw(self):
            seen.append(self.learn.checkpoint.last_saved_path.exists()) if hasattr(self.learn.checkpoint,
                'last_saved_path') else None
    made(tmp_path, 3).fit(3, cbs=[Checkpoint(), Looks()], resume=tmp_path/'checkpoints'/first.name)
    assert seen and all(seen)

def test_a_lazy_model_is_saved_from_its_first_batch_on(tmp_path):
    class Lazy(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.LazyLinear(1)
        def forward(self, x, ids): return self.l(x)
    with pytest.raises(ValueError, match='no weights before it has seen a batch, so the model cannot be saved yet'):
        made(tmp_path, model=Lazy).save_state('early')
    check(tmp_path, partial(made, model=Lazy), dict(how='file'))

def test_a_trial_is_not_saved(tmp_path):
    learn = made(tmp_path)
    with learn.on('after_step')(lambda learn: learn.save_state('trial')), pytest.raises(RuntimeError,
            match='only tries'):
        learn.lr_find(show_plot=False)

@pytest.fixture
def sigterm():
    "`sigterm(handler)` sets one; afterwards all is as before, also for workers that die"
    before = {o:signal.getsignal(o) for o in (signal.SIGTERM, signal.SIGCHLD)}
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    for k,v in before.items(): signal.signal(k, v)

def test_sigterm_is_not_lost_if_its_batch_fails(tmp_path, sigterm):
    def fails(self): os.kill(os.getpid(), signal.SIGTERM); time.sleep(.01); 1/0
    with pytest.raises(SystemExit) as e: made(tmp_path).fit(1, cbs=[Checkpoint(), Callback(after_loss=fails)])
    assert e.value.code==143 and isinstance(e.value.__cause__, ZeroDivisionError)

def terminated(self): os.kill(os.getpid(), signal.SIGTERM)

def test_sigterm_that_is_ignored_is_ignored_in_a_fit_too(tmp_path, sigterm):
    sigterm(signal.SIG_IGN)
    learn = made(tmp_path).fit(1, cbs=[Checkpoint(), Callback(after_loss=terminated)])
    assert learn.epoch==0 and not learn.at and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

def test_a_handler_of_ones_own_for_sigterm_decides(tmp_path, sigterm):
    "Once, between two batches, however many `Checkpoint`s there are"
    learn,heard = made(tmp_path),[]
    def handler(signum, frame): heard.append((signum, learn.train_iter, [*learn.scopes]))
    sigterm(handler)
    @on(event.after_loss(once=2, unit='iter'))
    def send(learn): terminated(learn)
    learn.fit(1, cbs=[Checkpoint(), Checkpoint(folder='more'), send])
    assert heard==[(signal.SIGTERM, 3, ['fit','epoch','train'])] and learn.train_iter==learn.n_train
    assert signal.getsignal(signal.SIGTERM) is handler

@pytest.mark.parametrize('kwargs,error,match',
    [(dict(every=.5), ValueError, '`every` is a whole number of `epoch`s above 0, but got 0.5'),
        (dict(every='epoch'), TypeError, "`every` is a whole number of `epoch`s above 0, but got 'epoch'"),
        (dict(every='1h', unit='s'), TypeError, 'number of seconds'),
    (dict(keep='all'), TypeError, "`keep` is a whole number, but got 'all'"),
    (dict(best='x'), TypeError, '`best` is a whole number'),
    (dict(monitor='mae'), ValueError, "`monitor='mae'` says what is best, and no best files are kept")], ids=str)
def test_settings_of_a_checkpoint(kwargs, error, match):
    with pytest.raises(error, match=match): Checkpoint(**kwargs)

def test_auto_is_written_small(tmp_path):
    with pytest.raises(FileNotFoundError, match='Did you mean `auto`'):
        made(tmp_path).fit(1, cbs=Checkpoint(), resume='Auto')

@pytest.mark.parametrize('named', ['checkpoints', Path('run/checkpoints'), './run/checkpoints'], ids=str)
def test_a_folder_to_resume_from_is_found_as_a_checkpoint_names_it_and_from_here(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    made('run').fit(2, cbs=Checkpoint())
    assert [*made('run').fit(3, cbs=Checkpoint(), resume=named).recorder['epoch']]==[0,1,2]

def test_what_is_not_there_to_resume_from_is_told_with_the_folders_that_were_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made('run').fit(1, cbs=Checkpoint())
    with pytest.raises(FileNotFoundError) as e: made('run').fit(2, resume='checkpoint')
    folders = ', '.join(f'`{o}`' for o in (tmp_path/'run/models', tmp_path/'run', tmp_path))
    assert str(e.value)==f"There is no `checkpoint` to resume from in {folders}. Did you mean `checkpoints`?"

# Settings
def warned(path, first, then, before=dict(), after=dict(), fit=dict()):
    with pytest.raises(InterruptedError):
        made(path, **before).fit(3,
            cbs=[*first, Checkpoint(6, 'iter', on_exc=False), Raise('after_pred', InterruptedError, 9)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn = made(path, 2, **after).fit(3, cbs=[*then, Checkpoint()], resume=True, **fit)
    return ' '.join(str(o.message) for o in seen),learn

def powered(pred, y, k): return (pred-y).abs().pow(k).mean()
def enclosing(k): return lambda pred,y: (pred-y).pow(2).mean()*k
losses = [(F.mse_loss, F.l1_loss, '`loss` was mse_loss, and is l1_loss'),
    (nn.MSELoss(), nn.L1Loss(), '`loss.name` was MSELoss, and is L1Loss'),
    (partial(powered, k=1), partial(powered, k=3), '`loss.k` was 1, and is 3'),
    (nn.SmoothL1Loss(beta=1.), nn.SmoothL1Loss(beta=.1), '`loss.beta` was 1.0, and is 0.1'),
    (enclosing(1.), enclosing(3.), '(loss_func) has been changed')]
@pytest.mark.parametrize('first,then,before,after,match',
    [([MixUp()], [], {}, {}, '`mix_up` is gone'), ([], [MixUp()], {}, {}, '`mix_up` is new'),
        ([MixUp(.4)], [MixUp(4.)], {}, {}, '`mix_up.alpha` was 0.4, and is 4.0'),
    ([GradientAccumulation(16)], [GradientAccumulation(64)], {}, {}, 'n_acc` was 16, and is 64'),
    ([ParamScheduler(dict(lr=SchedCos(.1, .01)))], [ParamScheduler(dict(lr=SchedCos(.01, .001)))], {}, {},
        '`param_scheduler.scheds.lr'),
    ([ParamScheduler(dict(lr=SchedPoly(.1, 0., 1)))], [ParamScheduler(dict(lr=SchedPoly(.1, 0., 3)))], {}, {},
        'power=1.0), and is sched_poly(0.1 → 0.0, power=3.0)'),
    ([], [], {}, dict(opt_func=RAdam), '`opt.name` was AdamW, and is RAdam'),
    *(([], [], dict(loss=a), dict(loss=b), o) for a,b,o in losses)], ids=shown)
def test_changed_settings_are_named(first, then, before, after, match, tmp_path):
    assert match in warned(tmp_path, first, then, before, after)[0]

def test_equal_settings_are_not_named(tmp_path):
    def cbs():
        return [MixUp(), GradientAccumulation(16), EMA(.9), FreezeSchedule({0:0}), SaveModelCallback(), CSVLogger(),
            ParamScheduler(dict(lr=SchedCos(.1, .01))), on('after_epoch')(lambda learn: None)]
    # callbacks that only watch, such as the one that cut the run, are not missed
    assert not warned(tmp_path, cbs(), cbs(), fit=dict(lr=.01))[0]

def test_equal_lambdas_count_as_the_same(tmp_path):
    def make(seed):
        return made(tmp_path, seed, loss=lambda a,b: (a-b).pow(2).mean(), splitter=lambda m: list(m.parameters()),
            opt_func=lambda ps,lr=.01: torch.optim.SGD(ps, lr=lr))
    make(1).fit(1, cbs=Checkpoint())
    make(2).fit(2, cbs=Checkpoint(), resume=True) # warnings are errors

def test_a_learning_rate_that_is_given_holds_from_the_position_on(tmp_path):
    msg,learn = warned(tmp_path, [], [], fit=dict(lr=.5))
    assert ('`lr` was [0.01] when the fit began, and is [0.5] from here on' in msg
        and learn.recorder.lrs==[.01]*6+[.5]*12)

def test_resume_after_load_state_names_changes_too(tmp_path):
    learn = made(tmp_path)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[MixUp(), CtrlC('after_pred', 9)])
    learn.save_state('here')
    with pytest.warns(UserWarning, match='`mix_up` is gone'): made(tmp_path, 2).load_state('here').resume()

# Several fits of a script
@pytest.mark.parametrize('ev,n',
    [('after_pred', 3), ('after_epoch', 1), ('before_epoch', 2), ('after_pred', 12), ('after_epoch', 3),
        ('after_fit', 1), ('after_fit', 2), (None, 0)])
def test_each_fit_of_a_script_resumes_from_its_own_file(ev, n, tmp_path):
    def script(path, seed, stop=None, **kwargs):
        learn = made(path, seed, splitter=two)
        if stop: learn.add_cb(Raise(*stop, order=2000))
        learn.freeze()
        learn.fit(1, **kwargs)
        between = {k:v.clone() for k,v in learn.model.state_dict().items()}
        learn.unfreeze()
        return between,learn.fit(2, **kwargs)
    (tmp_path/'a').mkdir()
    (ref,whole),auto = script(tmp_path/'a', 1),lambda: dict(cbs=Checkpoint(2, 'iter', on_exc=False), resume='auto')
    whole = outcome(whole)
    if ev:
        with pytest.raises(InterruptedError): script(tmp_path, 1, (ev, InterruptedError, n), **auto())
    between,learn = script(tmp_path, 1 if ev is None else 8, **auto())
    assert not differences((ref,whole), (between,outcome(learn)))
    # all over: nothing is done again
    assert not differences((ref,whole), (lambda a,b: (a,outcome(b)))(*script(tmp_path, 9, **auto())))

def test_files_of_an_older_script_in_the_folder_are_ignored(tmp_path):
    made(tmp_path, 5).fit(1, cbs=Checkpoint()).fit(1, cbs=Checkpoint())
    made(tmp_path, 6).fit(1, cbs=Checkpoint()) # a new one, killed before its second fit
    learn = made(tmp_path, 7).fit(1, cbs=Checkpoint(), resume='auto').fit(1, cbs=Checkpoint(), resume='auto')
    assert not differences(dict(made(tmp_path, 6).fit(1).fit(1).model.state_dict()), dict(learn.model.state_dict()))

def test_the_same_cell_again(tmp_path):
    learn = made(tmp_path)
    def cell(): learn.fit(2, cbs=Checkpoint(), resume='auto')
    with pytest.raises(KeyboardInterrupt), learn.added_cbs(CtrlC('after_pred', 9)): cell()
    with pytest.warns(UserWarning, match='`ctrl_c` is gone$'): cell()
    cell() # the first was over
    assert not differences(dict(made(tmp_path).fit(2).fit(2).model.state_dict()), dict(learn.model.state_dict()))

def test_more_epochs_begin_with_the_last_weights_not_the_best(tmp_path):
    def cbs(): return [SaveModelCallback(), Checkpoint()]
    ref = outcome(made(tmp_path, lr=.1).fit(4, cbs=SaveModelCallback()))
    two = made(tmp_path, lr=.1).fit(2, cbs=cbs())
    again = made(tmp_path, 3, lr=.1).fit(2, cbs=cbs(), resume=True)
    # what had ended has the best ones
    assert not differences(dict(two.model.state_dict()), dict(again.model.state_dict()))
    assert not differences(ref, outcome(made(tmp_path, 4, lr=.1).fit(4, cbs=cbs(), resume=True)))

class Until(TimeLimit):
    def __init__(self, n): super().__init__('1h'); self.n = n
    @property
    def over(self): return self.learn.train_iter>=self.n
@pytest.mark.parametrize('n', [4,8,16])
def test_a_fit_that_reached_its_time_limit_can_be_resumed(n, tmp_path):
    learn = made(tmp_path, lr=.1).fit(3, cbs=[SaveModelCallback(), Until(n)])
    assert 'time limit' in learn.stop_reason and learn.at.counters.train_iter==n
    learn.resume(cbs=[SaveModelCallback()])
    cut = outcome(learn)
    assert not differences(outcome(made(tmp_path, lr=.1).fit(3, cbs=SaveModelCallback())), cut)

def test_a_time_limit_where_a_file_and_a_point_are_due(tmp_path):
    "They are of the fit that stops there, and not of one that is over"
    def cbs(*more): return [Checkpoint(every=4, unit='iter'), Rewind(every=4), *more]
    learn = made(tmp_path, lr=.1).fit(3, cbs=cbs(Until(8)))
    assert 'time limit' in learn.stop_reason and learn.train_iter==8
    assert all(o.n_iter<8 for o in learn.held_run.points)
    warnings.filterwarnings('ignore', '.*`until` is gone')
    resumed = outcome(made(tmp_path, 3, lr=.1).fit(3, cbs=cbs(), resume=True))
    assert not differences(outcome(made(tmp_path, lr=.1).fit(3)), resumed)

# Persistent workers
def persistent(aug=False): return DataLoader(Samples(aug=aug), 8, shuffle=True, num_workers=2, persistent_workers=True)
@pytest.mark.parametrize('stop', [('after_pred', 3), ('after_pred', 11)])
def test_persistent_workers(stop, tmp_path):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        check(tmp_path, partial(made, train=persistent), dict(how='ctrl_c'), stop=stop)
    seen = [str(o.message) for o in seen if 'fork' not in str(o.message)]
    assert all("workers persist from epoch to epoch" in o for o in seen) and len(seen)==1, seen

def test_a_warning_that_persistent_workers_begin_anew(tmp_path):
    with pytest.warns(UserWarning, match='begin anew in each epoch while a `Checkpoint`'):
        made(tmp_path, train=persistent).fit(1, cbs=Checkpoint())

def test_a_scheduler_of_several_optimizers_trains_nothing_of_its_own(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*lr_scheduler.step')
        made(tmp_path, opt_func=several, splitter=two, lr=None).fit(1,
            cbs=[TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, .5)), Checkpoint()])
