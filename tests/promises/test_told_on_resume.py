"What a run that resumes tells: where it resumes, and what is not as it was"
import copy,os,shutil,warnings
from math import cos,nan,pi
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader,Dataset,Subset,TensorDataset,random_split
from learner.all import *
from learner.inspect.testing import Raise,Trace

pytestmark = pytest.mark.filterwarnings('error')

def points(n=48, seed=0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=gen)
    return TensorDataset(x, x.sum(1, keepdim=True))

def made(path, train=None, valid=None, seed=1, bs=8, **kwargs):
    "A learner with dropout, so that a run that is not exact has other weights"
    torch.manual_seed(seed)
    dls = DataLoaders(DataLoader(points() if train is None else train, bs, shuffle=True),
        DataLoader(points(16, 1) if valid is None else valid, 16), device='cpu')
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(.5), nn.Linear(8, 1))
    kwargs = dict(loss_func=F.mse_loss, opt_func=Adam, lr=.01, path=path) | kwargs
    return Learner(dls, model, **kwargs).remove_cb(ProgressCallback)

def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])
def messages(seen): return [str(o.message) for o in seen]

class StopAfter(Callback):
    "Stops the fit for now when `n` training batches are done"
    watches = True
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.train_iter==self.n: self.learn.at_pause(self.learn.stop_for_now, stops=True)

# After an error inside a batch
def cut_in_batch(path, n, ev='after_pred', **kwargs):
    "The learner of a fit that failed at training batch `n`; the file of that place"
    learn,cb = made(path),Checkpoint(**dict(every=2, unit='iter') | kwargs)
    with pytest.raises(InterruptedError): learn.fit(2, cbs=[cb, Raise(ev, InterruptedError, n)])
    return learn,cb.last_saved_path

@pytest.mark.parametrize('ev,resume', [('after_pred', True), ('after_loss', 'auto'), ('after_step', 'auto')])
def test_after_an_error_in_a_batch_the_newest_exact_file_is_taken(tmp_path, ev, resume):
    whole = made(tmp_path/'whole').fit(2)
    _,file = cut_in_batch(tmp_path, 5, ev)
    again,trace = made(tmp_path, seed=7),Trace('after_batch')
    with pytest.warns(UserWarning, match='an error had cut a batch') as seen:
        again.fit(2, cbs=[Checkpoint(every=2, unit='iter'), trace], resume=resume)
    assert torch.equal(weights(again), weights(whole))
    text, = messages(seen)
    assert file.name in text and '-iter4.pt' in text and 'resume=' in text

def test_the_line_in_the_warning_resumes_where_the_error_was(tmp_path):
    cut_in_batch(tmp_path, 6)
    with pytest.warns(UserWarning, match='iter4.pt., 1 training batch before') as seen, pytest.raises(InterruptedError):
        made(tmp_path).fit(2, cbs=[Checkpoint(), Raise('before_fit', InterruptedError)], resume='auto')
    line = messages(seen)[0].split('`fit(…, ')[1].split(')`')[0]
    trace = Trace('before_backward')
    with pytest.warns(UserWarning, match='in the middle of a batch.*`fit\\(…, resume=True\\)`'):
        made(tmp_path/'b').fit(2, cbs=[trace, Checkpoint(folder=tmp_path/'checkpoints')], **eval(f'dict({line})'))
    assert len(trace.seen)==12-5

def test_a_file_that_is_not_exact_is_taken_where_there_is_no_other(tmp_path):
    "The only whole file of the fit is that of the error"
    learn,file = cut_in_batch(tmp_path, 5, every=100)
    for o in (tmp_path/'checkpoints').glob('*.pt'):
        if o!=file: o.write_bytes(b'')
    with pytest.warns(UserWarning) as seen: made(tmp_path).fit(2, cbs=Checkpoint(), resume='auto')
    for text in ('going back','in the middle of a batch'): assert any(text in o for o in messages(seen))

def test_nothing_is_told_where_the_newest_file_is_exact(tmp_path):
    made(tmp_path).fit(2, cbs=[Checkpoint(every=2, unit='iter'), StopAfter(5)])
    made(tmp_path).fit(2, cbs=Checkpoint(), resume='auto')

# Another split of the data
class Files(Dataset):
    "Names of files, in a folder of which a part is left out for validation"
    def __init__(self, files): self.files = files
    def __len__(self): return len(self.files)
    def __getitem__(self, i):
        x = torch.tensor([float(sum(map(ord, self.files[i].split('/')[-1])))])/1000
        return x.repeat(3),x

class Noisy(Dataset):
    "Draws its samples at random, and keeps what it has drawn"
    def __init__(self, n=48): self.n,self.cache,self.seen,self.gen = n,[None]*n,[0]*n,torch.Generator()
    def __len__(self): return self.n
    def __getitem__(self, i):
        self.seen[i] += 1
        self.cache[i] = x = torch.randn(3)
        return x+torch.randn(3, generator=self.gen),x[:1]

class Endless(torch.utils.data.IterableDataset):
    def __init__(self): self.given = [0]*48
    def __iter__(self):
        for i in range(48): self.given[i] += 1; x = torch.randn(3); yield x,x[:1]

def split(seed, i):
    return random_split(points(64), [48, 16], torch.Generator().manual_seed(seed))[i]

def part(k=0, seed=0): return Subset(points(64, seed), [*range(k, 48+k)])

def names(k=0, root='/data'): return [f'{root}/{o:03}.png' for o in range(k, 48+k)]

def cut(path, **kwargs): return made(path, **kwargs).fit(2, cbs=[Checkpoint(every=2, unit='iter'), StopAfter(5)])

def resumed(path, **kwargs):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        made(path, **kwargs).fit(2, cbs=Checkpoint(), resume='auto')
    return [o for o in messages(seen) if 'other samples, or' in o]

other_splits = {
    'subset':     (dict(train=split(0, 0)), dict(train=split(1, 0)), 'train.dataset.indices'),
    'valid':      (dict(valid=split(0, 1)), dict(valid=split(1, 1)), 'valid.dataset.indices'),
    'number':     (dict(train=split(0, 0)), dict(train=Subset(points(64), range(49))), 'had length 48, and has 49'),
    'tensors':    (dict(train=points()), dict(train=points(seed=3)), 'train.dataset.tensors[0]'),
    'order':      (dict(train=Files(names())), dict(train=Files(names()[::-1])), 'train.dataset.files'),
    'files':      (dict(train=Files(names())), dict(train=Files(names(1))), 'train.dataset.files'),
    'range':      (dict(train=part()), dict(train=part(1)), 'train.dataset.indices'),
    'inner':      (dict(train=part()), dict(train=part(seed=2)),
        'train.dataset.dataset.tensors[0]'),
}

rarely = 'number','range','inner','tensors'
@pytest.mark.parametrize('was,now,named', [pytest.param(*o, id=k, marks=[pytest.mark.slow]*(k in rarely))
    for k,o in other_splits.items()])
def test_a_run_that_resumes_names_another_split(tmp_path, was, now, named):
    cut(tmp_path, **was)
    told, = resumed(tmp_path, **now)
    assert named in told and 'split with a seed' in told

same_splits = {
    'subset':     lambda: dict(train=split(0, 0), valid=split(0, 1)),
    'tensors':    lambda: dict(train=points()),
    'noisy':      lambda: dict(train=Noisy(), valid=Noisy(16)),
    'files':      lambda: dict(train=Files(names(root=f'/elsewhere/{os.urandom(2).hex()}'))),
}

@pytest.mark.parametrize('kwargs', same_splits.values(), ids=same_splits)
def test_the_same_split_gives_no_alarm(tmp_path, kwargs):
    "Whatever was drawn at random, cached or moved meanwhile"
    cut(tmp_path, **kwargs())
    assert not resumed(tmp_path, **kwargs())

class Stateful(DataLoader):
    "Knows its place, as torchdata's `StatefulDataLoader` does"
    n = 0
    def __iter__(self):
        for self.n,b in enumerate([*super().__iter__()][self.n:], self.n+1): yield b
        self.n = 0
    def state_dict(self): return dict(n=self.n)
    def load_state_dict(self, state): self.n = state['n']

@pytest.mark.parametrize('workers', [0, 2])
def test_a_loader_that_puts_itself_back_without_the_generators_of_its_workers_is_told(tmp_path, workers):
    def new():
        learn = made(tmp_path)
        learn.dls = DataLoaders(Stateful(points(), 8, num_workers=workers), device='cpu')
        return learn
    warnings.filterwarnings('ignore', '.*fork')
    new().fit(2, cbs=[Checkpoint(), StopAfter(5)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        new().fit(2, cbs=[Checkpoint(), StopAfter(5)], resume=True)
    assert any('not the generators of its 2 workers' in o for o in messages(seen))==(workers>0)

@pytest.mark.parametrize('persistent', [False, True])
def test_persistent_workers_of_validation_that_are_gone_are_told(tmp_path, persistent):
    def new():
        learn = made(tmp_path)
        learn.dls = DataLoaders(learn.dls.train, DataLoader(Noisy(16), 16, num_workers=1,
            persistent_workers=persistent, multiprocessing_context='fork'), device='cpu')
        return learn
    def rows(learn):
        vars(learn.dls.valid)['_iterator'] = None
        return [o.valid_loss for o in learn.recorder.rows]
    warnings.filterwarnings('ignore', '.*fork')
    whole,_ = rows(new().fit(3, cbs=Checkpoint(folder='whole'))),rows(new().fit(2, cbs=Checkpoint()))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        again = rows(new().fit(3, cbs=Checkpoint(), resume=True))
    assert any('workers of `valid` are persistent' in o for o in messages(seen))==persistent==(again!=whole)

@pytest.mark.parametrize('loader', [lambda: DataLoader(Endless(), 8), lambda: DataLoader(points(), 8, num_workers=2),
    lambda: [(torch.ones(8, 3)*i, torch.ones(8, 1)) for i in range(6)]], ids=['iterable','workers','list'])
def test_other_loaders_give_no_alarm(tmp_path, loader):
    def run(**kwargs):
        learn = made(tmp_path)
        learn.dls.loaders['train'] = loader()
        return learn.fit(2, **kwargs)
    run(cbs=[Checkpoint(every=1), StopAfter(7)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        run(cbs=Checkpoint(), resume='auto')
    assert not [o for o in messages(seen) if 'other samples, or' in o]

def test_the_samples_are_noted_once_per_fit(tmp_path, monkeypatch):
    "A pause costs nothing for it"
    from learner.loop import way_back
    calls,samples_of = [],way_back.samples_of
    monkeypatch.setattr(way_back, 'samples_of', lambda o: calls.append(o) or samples_of(o))
    made(tmp_path).fit(2, cbs=Checkpoint(every=1, unit='iter'))
    assert len(calls)==1

# The line that a warning names
def other_settings(path):
    cut(path)
    return lambda: made(path).fit(2, cbs=[Checkpoint(), GradientClip(1.)], resume='auto'),'other settings'

def other_loader(path):
    cut(path)
    return lambda: made(path, bs=6).fit(2, cbs=Checkpoint(), resume='auto'),'training loader has changed'

def other_samples(path):
    cut(path)
    return lambda: made(path, points(seed=4)).fit(2, cbs=Checkpoint(), resume='auto'),'other samples, or'

def cut_by_error(path):
    cut_in_batch(path, 5)
    return lambda: made(path).fit(2, cbs=Checkpoint(), resume='auto'),'an error had cut'

def in_memory(path):
    learn = made(path)
    with pytest.raises(InterruptedError): learn.fit(2, cbs=[Raise('after_pred', InterruptedError, 4)])
    return lambda: learn.resume(cbs=[]),'in the middle of a batch'

def callback_gone(path):
    made(path).fit(2, cbs=[Checkpoint(every=2, unit='iter'), EMA(), StopAfter(5)])
    return lambda: made(path).fit(2, cbs=Checkpoint(), resume='auto'),'No callback takes the state'

def other_version(path):
    cut(path)
    file = max((path/'checkpoints').glob('*.pt'))
    saved = torch.load(file, weights_only=True)
    saved['versions']['torch'] = '0.0'
    torch.save(saved, path/'old.pt')
    return lambda: made(path).fit(2, resume=path/'old.pt'),'torch was 0.0'

@pytest.mark.parametrize('case', [other_settings, other_loader, in_memory, other_version,
    *(pytest.param(o, marks=pytest.mark.slow) for o in (other_samples, cut_by_error, callback_gone))])
def test_a_warning_names_the_line_of_the_user(tmp_path, case):
    again,text = case(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        again()
    assert any(text in o for o in messages(seen)), messages(seen)
    for o in seen: assert o.filename==__file__, o

# A job that was started twice
class StartedAgain(Callback):
    "Another process starts the same script, after the first epoch"
    def __init__(self, script): self.script = script
    def after_epoch(self):
        if self.epoch==1: self.script()

def test_two_fits_that_write_to_the_same_folder_are_told(tmp_path):
    def script(*cbs): return made(tmp_path).fit(3, cbs=[*cbs, Checkpoint()])
    script() # one after another is no harm
    with pytest.warns(UserWarning, match='Another fit is writing to .*checkpoints'): script(StartedAgain(script))

# A fit that is over, or of another length
def test_a_fit_that_is_over_says_so(tmp_path, capsys):
    made(tmp_path).fit(2, cbs=Checkpoint())
    assert not capsys.readouterr().out
    again = made(tmp_path, seed=3).fit(2, cbs=[Checkpoint(), trace := Trace('before_batch')], resume='auto')
    assert not trace.seen and again.train_iter==12
    assert 'the fit is over after 12 training batches' in capsys.readouterr().out
    made(tmp_path).fit(3, cbs=Checkpoint(), resume='auto')
    assert capsys.readouterr().out=='Resumes a run that was stopped after epoch 1\n'

@pytest.mark.parametrize('first,then,told', [(dict(n_iter=8), dict(n_iter=12), True),
    (dict(n_step=8), dict(n_step=12), True), (dict(n_iter=8), dict(n_iter=8), False),
    (dict(n_iter=6), dict(n_iter=12), False)], ids=str)
def test_an_epoch_that_the_shorter_fit_had_cut_is_told(tmp_path, capsys, first, then, told):
    made(tmp_path).fit(**first, cbs=Checkpoint())
    made(tmp_path).fit(**then, cbs=Checkpoint(), resume=True)
    assert ('after epoch 1, which its bound had ended after 2 of 6 batches' in capsys.readouterr().out)==told

def test_a_script_that_is_past_its_first_fit_says_nothing_of_it(tmp_path, capsys):
    def script(n):
        learn = made(tmp_path)
        return learn.fit(1, cbs=Checkpoint(), resume='auto').fit(2, cbs=[Checkpoint(), StopAfter(n)], resume='auto')
    script(4)
    script(100)
    assert 'Nothing is left' not in capsys.readouterr().out
    script(100)
    assert capsys.readouterr().out.count('Nothing is left')==1

def test_a_cell_that_is_run_again_says_that_it_is_another_fit(tmp_path, capsys):
    def cell(learn):
        learn.fit(1, cbs=Checkpoint(), resume='auto')
        return capsys.readouterr().out
    learn = made(tmp_path)
    assert cell(learn)=='' and 'Begins fit 2 in' in (out := cell(learn)) and 'fit 1 of this learner is over' in out
    learn = made(tmp_path)
    assert 'Fit 1 in' in (out := cell(learn)) and 'fit 2 had begun' in out
    assert 'Nothing is left' in cell(learn) and 'Begins fit 3' in cell(learn)

@pytest.mark.parametrize('n', [3, 2])
def test_a_schedule_of_another_length_says_how_its_values_change(tmp_path, capsys, n):
    made(tmp_path).fit_one_cycle(2, .1, cbs=[Checkpoint(), StopAfter(9)])
    made(tmp_path).fit_one_cycle(n, .1, cbs=[Checkpoint(), rates := Rates()], resume='auto')
    out = capsys.readouterr().out
    if n==2: assert 'another length' not in out; return
    assert out.count('another length')==1 and '50% of it is done, which was 75%' in out
    old,new = (1e-6+(.1-1e-6)*(1+cos(pi*(o-.25)/.75))/2 for o in (.75, .5)) # the second part of the policy
    assert f'`lr` continues at {new:.4g}, not at {old:.4g}' in out and rates.lrs[0]==pytest.approx(new)

class Progress(Callback):
    "How much of the fit is done where a validation, an epoch or a batch begins or ends"
    watches = True
    def __init__(self): self.seen = []
    def note(self, ev): self.seen.append((ev, self.epoch, self.n_train, self.pct_train))
    def before_batch(self): self.note('batch')
    def before_validate(self): self.note('validate')
    def after_epoch(self): self.note('epoch')

class StopIn(Callback):
    "Stops the fit at the first `ev` of epoch 1"
    watches,done = True,False
    def __init__(self, ev): super().__init__(**{ev: StopIn.stop})
    def stop(self):
        if self.done or self.epoch!=1: return
        self.done = True
        self.learn.stop_soon()

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('ev', ['after_batch','after_train','after_epoch'])
@pytest.mark.parametrize('limited', [lambda: Limit(3), lambda: Overfit(3), lambda: ShortEpochCallback(.5)],
    ids=['Limit','Overfit','ShortEpoch'])
@pytest.mark.parametrize('in_file', [False, True])
def test_shorter_epochs_are_no_other_length(tmp_path, capsys, in_file, limited, ev):
    "Progress and rates are those of a run that was not stopped, wherever that was"
    def fit(name, *cbs):
        learn = made(tmp_path/name)
        return learn.fit_one_cycle(3, .1, cbs=[limited(), Checkpoint(), *cbs], resume='auto')
    whole = fit('whole', progress := Progress())
    learn,rest = fit('stopped', first := Progress(), StopIn(ev)),Progress()
    if in_file: learn = fit('stopped', rest)
    else: learn.resume()
    assert first.seen + rest.seen==progress.seen and torch.equal(weights(learn), weights(whole))
    assert 'another length' not in capsys.readouterr().out

def test_a_schedule_whose_epoch_is_over_with_a_shorter_loader_says_where_it_continues(tmp_path, capsys):
    "After 5 of 6 batches in the second of three epochs, there are loaders with two batches"
    stop = on(event.after_batch(once=11, unit='iter'))(lambda learn: learn.stop_soon())
    learn = made(tmp_path).fit_one_cycle(3, .1, cbs=[stop, rates := Rates()])
    learn.dls = made(tmp_path, points(16)).dls
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # the batches are others
        learn.resume()
    new = 1e-6+(.1-1e-6)*(1+cos(pi*(2/3-.25)/.75))/2
    out = capsys.readouterr().out
    assert '67% of it is done, which was 61%' in out and f'`lr` continues at {new:.4g},' in out
    assert rates.lrs[0]==pytest.approx(new) and learn.pct_train==1

def test_a_constant_schedule_of_another_length_says_nothing(tmp_path, capsys):
    def fit(n):
        made(tmp_path).fit(n, cbs=[Checkpoint(), ParamScheduler(dict(lr=SchedLin(.1, .1)))], resume='auto')
    fit(1), fit(2)
    assert 'another length' not in capsys.readouterr().out

class Rates(Callback):
    "The learning rates of all steps"
    watches = True
    def before_fit(self): self.lrs = []
    def before_step(self): self.lrs.append(self.learn.opt.param_groups[0]['lr'])

# Settings are those of the moment at which a file is written
class CallIn(Callback):
    "Calls `f(learn)` as epoch `n` begins"
    watches = True
    def __init__(self, n, f): self.n,self.f = n,f
    def before_epoch(self):
        if self.epoch==self.n: self.f(self.learn)

def cut_at_2(path, *cbs, **kwargs):
    "A run of which the last file is that of the end of epoch 1"
    with pytest.raises(InterruptedError):
        made(path, **kwargs).fit(4, cbs=[Checkpoint, *cbs, Raise('before_epoch', InterruptedError, 3)])

def again(path, *cbs, edit=None, **kwargs):
    learn = made(path, **kwargs)
    if edit: edit(learn)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.fit(4, cbs=[Checkpoint, *cbs], resume=True)
    return learn,' '.join(str(o.message) for o in seen)

def with_beta(beta): return nn.SmoothL1Loss(beta=beta)

def test_a_loss_that_was_swapped_in_the_fit_is_named(tmp_path):
    cut_at_2(tmp_path, CallIn(1, lambda o: setattr(o, 'loss_func', with_beta(.25))), loss_func=with_beta(1.))
    text = again(tmp_path, loss_func=with_beta(1.))[1]
    assert '`loss.beta` was 0.25, and is 1.0' in text

def test_callbacks_added_and_removed_in_the_fit_are_named(tmp_path):
    first = GradientClip(5.)
    cut_at_2(tmp_path, first, CallIn(1, lambda o: o.remove_cb(first).add_cb(MixUp)))
    text = again(tmp_path, GradientClip(5.))[1]
    assert '`mix_up` is gone' in text and '`gradient_clip` is new' in text

def test_a_setting_of_a_callback_that_was_edited_in_the_fit_is_named(tmp_path):
    clip = GradientClip(5.)
    cut_at_2(tmp_path, clip, CallIn(1, lambda o: setattr(clip, 'max_norm', 2.)))
    assert '`gradient_clip.max_norm` was 2.0, and is 5.0' in again(tmp_path, GradientClip(5.))[1]

def test_a_layer_with_other_arguments_is_named(tmp_path):
    def edit(learn): learn.model[1].p = .1
    cut_at_2(tmp_path)
    assert '`layers.1` was Dropout(p=0.5, inplace=False), and is Dropout(p=0.1' in again(tmp_path, edit=edit)[1]

def test_many_other_layers_are_counted(tmp_path):
    def put(act):
        def edit(learn): learn.model[1] = nn.Sequential(*[act() for _ in range(14)])
        return edit
    learn = made(tmp_path)
    put(nn.ReLU)(learn)
    learn.fit(4, cbs=[Checkpoint, StopAfter(8)])
    text = again(tmp_path, edit=put(nn.Tanh))[1]
    assert text.count('was ReLU()')==10 and 'and 4 more' in text

def test_an_edited_rate_of_the_learner_holds_from_here_on(tmp_path):
    cut_at_2(tmp_path)
    learn,text = again(tmp_path, lr=.003)
    assert learn.recorder.lrs==[.01]*12+[.003]*12
    assert '`lr` was [0.01] when the fit began, and is [0.003] from here on' in text

def test_a_rate_of_the_learner_that_no_fit_uses_changes_nothing(tmp_path):
    def fit(learn, resume, lr=.02, cbs=()): learn.fit(2, lr=lr, resume=resume, cbs=[Checkpoint(every=1), *cbs])
    sched = ParamScheduler(dict(lr=SchedLin(.02, .01)))
    for kwargs in (dict(), dict(lr=None, cbs=[sched])):
        path = tmp_path/str(len(kwargs))
        fit(made(path), None, **kwargs|dict(cbs=[StopAfter(8), *kwargs.get('cbs', ())]))
        last = made(path, lr=.5)
        fit(last, True, **kwargs) # warnings are errors
        whole = made(tmp_path/'whole')
        fit(whole, None, **kwargs)
        assert torch.equal(weights(last), weights(whole))

def test_a_callback_may_be_called_as_schedulers_call_their_hyper_parameters(tmp_path):
    "`cb.sets` would then find it, in the learner"
    class Sets(Callback): pass
    for n in (1, 2):
        learn = synth_learner(path=tmp_path, n_train=2).fit(n, cbs=[Sets(), Checkpoint(folder=tmp_path)], resume='auto')
    assert learn.train_iter==4

class OwnStep(Learner):
    @scope
    def _step(self): self.opt.step(); self.opt_step += 1

def test_what_the_library_attaches_to_watch_is_no_setting(tmp_path):
    def mk():
        dls = DataLoaders(DataLoader(points(), 8), device='cpu')
        return OwnStep(dls, nn.Linear(3, 1), F.mse_loss, path=tmp_path).remove_cb(ProgressCallback)
    mk().fit(2, cbs=[Checkpoint(), StopAfter(8)]) # pieces are checked in the first epoch
    assert mk().fit(2, cbs=Checkpoint(), resume=True).train_iter==12 # and no warning

class Prunes(Callback):
    run_valid = False
    def before_epoch(self): prune.l1_unstructured(self.model[0], 'weight', .5)

def test_a_model_that_the_fit_had_pruned_is_to_be_pruned_before_it_resumes(tmp_path):
    made(tmp_path, cbs=Prunes).fit(2, cbs=[Checkpoint(), StopAfter(3)])
    learn = made(tmp_path)
    with pytest.raises(ValueError, match='weight_orig') as e: learn.fit(2, cbs=Checkpoint(), resume=True)
    assert any('as by pruning, change this one so before it resumes' in o for o in e.value.__notes__)
    prune.identity(learn.model[0], 'weight')
    with pytest.warns(UserWarning, match='`prunes` is gone'): learn.fit(2, cbs=Checkpoint(), resume=True)
    assert (learn.model[0].weight==0).sum()==12 # of 24

# What is not saved: networks, optimizers and counts of callbacks, and of a Learner of one's own
def lerp_to(target, model):
    with torch.no_grad():
        for p,q in zip(target.parameters(), model.parameters()): p.lerp_(q, .1)

class MomentumTarget(Callback):
    "As in BYOL, or a mean teacher"
    run_valid = False
    def before_fit(self): self.target = copy.deepcopy(self.model).requires_grad_(False)
    def after_loss(self): self.learn.loss_grad = self.loss_grad+F.mse_loss(self.pred, self.target(self.x))
    def after_step(self): lerp_to(self.target, self.model)

class Critic(Callback):
    run_valid = False
    def before_fit(self):
        with keep_random(): torch.manual_seed(4); self.target = nn.Linear(1, 1)
        self.opt_d = torch.optim.Adam(self.target.parameters(), .1)
    def after_loss(self):
        self.opt_d.zero_grad()
        F.softplus(self.target(self.pred.detach())).mean().backward()
        self.opt_d.step()

class Teacher(MomentumTarget):
    "A fixed one, which is read again"
    def before_fit(self):
        with keep_random(): torch.manual_seed(4); self.target = nn.Linear(3, 1).requires_grad_(False)
    def after_step(self): pass

class NotANumber(Teacher):
    "NaN is another number than itself, and has not changed"
    def before_fit(self):
        super().before_fit()
        self.target.mask = nn.Parameter(torch.tensor([nan, 1.]), requires_grad=False)

class NamedTarget(MomentumTarget): _stateattrs = 'target',

class TiedTeacher(Teacher):
    "A part of the model itself, which is saved, beside what is fixed"
    def before_fit(self): super().before_fit(); self.target.tied = self.model[0].weight

class DataTarget(MomentumTarget):
    "As in the code of MoCo"
    def after_step(self):
        for p,q in zip(self.target.parameters(), self.model.parameters()): p.data = p.data*.9+q.data*.1

class DataInPlaceTarget(MomentumTarget):
    "As in the code of DINO"
    def after_step(self):
        for p,q in zip(self.target.parameters(), self.model.parameters()): p.data.mul_(.9).add_(.1*q.detach().data)

@pytest.mark.parametrize('cls,told', [(MomentumTarget, True), (Critic, True), (Teacher, False), (NamedTarget, False)])
def test_a_network_that_a_callback_makes_anew_is_named(tmp_path, cls, told):
    learn = made(tmp_path, cbs=cls).fit(2, cbs=StopAfter(3))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.resume()
    assert len([o for o in messages(seen) if '.target`' in o and 'anew' in o and '_stateattrs' in o])==told

@pytest.mark.parametrize('cls,told', [(MomentumTarget, True), (DataTarget, True), (DataInPlaceTarget, True),
    (Critic, True), (Teacher, False), (NotANumber, False), (TiedTeacher, False), (NamedTarget, False)])
def test_a_network_of_a_callback_that_a_file_lacks_is_named(tmp_path, cls, told):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        made(tmp_path, cbs=cls).fit(2, cbs=Checkpoint())
    assert [o for o in messages(seen) if '`target`' in o and 'is not saved' in o and '_stateattrs' in o]==messages(seen)
    assert bool(seen)==told

class Own(Learner):
    "Gathers in attributes of its own"
    k,first = 0,None
    def _do_grad_opt(self):
        self.first,self.turn = self.loss,0
        self.turn += 1
        super()._do_grad_opt()
        self.k += 1
        self.state['n'] = self.state.get('n', 0)+1

class OwnTarget(Learner):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
    def _do_grad_opt(self): super()._do_grad_opt(); lerp_to(self.target, self.model)

def of_class(cls, path):
    base = made(path)
    return cls(base.dls, base.model, base.loss_func, opt_func=Adam, lr=.01, path=path).remove_cb(ProgressCallback)

def test_what_a_learner_of_ones_own_gathers_is_named_where_a_file_lacks_it(tmp_path):
    learn = of_class(Own, tmp_path).fit(2, cbs=StopAfter(3))
    file = learn.save_state('here')
    learn.resume() # in memory it is there
    assert learn.k==12
    with pytest.warns(Mistake, match=r"`Own` gathers `k` in training.*write `self.state\['k'\]`"):
        of_class(Own, tmp_path).load_state(file).resume()

def test_a_network_of_a_learner_of_ones_own_that_a_file_lacks_is_named(tmp_path):
    with pytest.warns(UserWarning, match='`learn` has `target`.* not saved: keep it in a callback'):
        of_class(OwnTarget, tmp_path).fit(2, cbs=Checkpoint())

def test_what_a_notebook_keeps_in_a_learner_takes_no_part_in_training(tmp_path):
    for cls in (Learner,Own):
        learn = of_class(cls, tmp_path)
        if cls is Learner: learn.best,learn.teacher = copy.deepcopy(learn.model),nn.Linear(3, 1)
        learn.baseline = made(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            learn.fit(1, cbs=Checkpoint())

class Holds(Callback):
    def __init__(self, net): self.net = net

def test_a_frozen_network_of_inference_tensors_is_no_obstacle(tmp_path):
    with torch.inference_mode(): net = nn.Linear(3, 1).requires_grad_(False)
    learn = made(tmp_path).fit(2, cbs=[Holds(net), Checkpoint()])
    assert learn.train_iter==12

def test_a_teacher_that_is_loaded_again_between_two_fits_is_not_trained(tmp_path):
    net = nn.Linear(3, 1).requires_grad_(False)
    learn = made(tmp_path, cbs=Holds(net)).fit(2, cbs=Checkpoint())
    net.load_state_dict(copy.deepcopy(net.state_dict()))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.save_state('between')
        net.load_state_dict(copy.deepcopy(net.state_dict()))
        learn.save_state('between')
        learn.fit(2, cbs=Checkpoint())

# Groups that weight decay spares
@pytest.mark.parametrize('opt_func', [torch.optim.AdamW, by_shape()], ids=['AdamW','by_shape'])
def test_the_same_weight_decay_is_no_change_where_a_group_is_spared(opt_func, tmp_path):
    def run(*cbs, **kwargs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        learn = Learner(DataLoaders(DataLoader(points(), 8), device='cpu'), model, F.mse_loss, opt_func=opt_func,
            splitter=lambda m: [[*o.parameters()] for o in m], path=tmp_path).remove_cb(ProgressCallback)
        return learn.fit(2, wd=.1, cbs=[Checkpoint(), *cbs], **kwargs)
    whole = weights(run())
    run(StopAfter(3))
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*`stop_after` is gone')
        assert torch.equal(weights(run(resume=True)), whole)

@pytest.mark.parametrize('ev', ['after_row','after_epoch','cleanup_epoch'])
def test_a_rate_that_the_epoch_that_fails_has_lowered_is_no_other_setting(ev, tmp_path, recwarn):
    "The run resumes before its row, where the rate was not lowered yet"
    def begun(): return synth_learner(lr=3., path=tmp_path, opt_func=SGD, cbs=[ReduceLROnPlateau(), Checkpoint()])
    def fails(at): return Raise(ev, ZeroDivisionError, at, order=500)
    whole = begun().fit(3, cbs=fails(10))
    shutil.rmtree(tmp_path/'checkpoints')
    with pytest.raises(ZeroDivisionError): begun().fit(3, cbs=fails(2))
    recwarn.clear()
    learn = begun().fit(3, cbs=fails(10), resume='auto')
    assert whole.recorder.lrs[0]!=whole.recorder.lrs[-1] and learn.recorder.lrs==whole.recorder.lrs
    assert not [o for o in recwarn if 'opt.lr' in str(o.message)]
