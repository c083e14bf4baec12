"""Promise 11: a fork continues as its parent would have, to the last bit, and leaves it alone; both know where they
come from"""
import copy,json,pickle,random,warnings
from contextlib import contextmanager
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader,Dataset,Subset,TensorDataset
from learner.all import *
from learner.inspect.testing import synth_learner
from learner.model.optimizer import parts_of
from runs import differences,fit,learner,outcome
from test_rewind import Moments,same,weights

@contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*replays its batches|.*lr_scheduler.step|.*os.fork|.*The workers')
        yield

def trained(case, path, cbs, seed=1):
    learn = learner(case, path, seed)
    fit(learn, case, cbs)
    return learn
def moments(learn): return next(o for o in learn.route.stopped.cbs if isinstance(o, Moments)).seen
def own(res): return {k:v for k,v in res.items() if k!='random'} | dict(random=res['random']['own'])

everything = dict(workers=2, ema=True, acc=True, sched='one_cycle') # the samples are augmented, too
cases = [dict(), dict(mix=True, loader='own'), dict(groups=True, loss='module'), dict(filters=True, loader='stream'),
    dict(loader='knowing', sched='torch_cycle'),
    dict(best=True, short=True), dict(between=True, amp='bf16'), dict(groups='several', micro=True),
    dict(groups='frozen', loader='batch_sampler'), dict(loader='sampler')]

def continues(case, path, rng):
    "An unchanged fork of a finished run, and of one that is stopped, at some batch; and the parent after each"
    with silent():
        learn = trained(case, path, [Rewind(every=rng.choice([2, 5]), keep=10), Moments()])
        # with the tensors of the moment
        seen,end = dict(learn.held_run.points[0].cbs[-1].seen),copy.deepcopy(outcome(learn))
        n = rng.randrange(1, max(seen))
        alt = learn.fork(n)
        assert same(weights(alt), seen[n])
        then = moments(alt)
        then.clear()
        alt.resume()
        assert then.keys()=={k for k in seen if k>n} and all(same(then[k], seen[k]) for k in then)
        assert not differences(end, outcome(alt))
        assert not differences(own(end), own(outcome(learn))) and learn.at is None
        learn.rewind(n)
        other,twin = learn.fork(lr=.003),learn.fork()
        other.resume(); twin.resume()
        assert not differences(end, outcome(twin)) and differences(end, outcome(other))
        then = moments(learn)
        then.clear()
        learn.resume()
        assert all(same(then[k], seen[k]) for k in seen if k>n) and not differences(end, outcome(learn))

@pytest.mark.parametrize('seed', [*range(2), *(pytest.param(i, marks=pytest.mark.slow) for i in range(2, 100))])
def test_a_fork_anywhere_is_its_parent_and_does_not_move_it(tmp_path, seed):
    continues(everything, tmp_path, random.Random(seed))

@pytest.mark.parametrize('case', cases, ids=str)
def test_whatever_a_run_consists_of(tmp_path, case): continues(case, tmp_path, random.Random(0))

# What is its own, and what is shared
class Noisy(Dataset):
    "Samples seen through noise from a generator of its own, and a count of them"
    def __init__(self): self.x,self.rng,self.n,self.seen = torch.randn(24, 3),np.random.default_rng(0),0,[]
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        self.n += 1
        return self.x[i]+torch.tensor(self.rng.normal(), dtype=torch.float32),self.x[i,:1]

def stopped(dl, cbs=(), n=5, **kwargs):
    torch.manual_seed(0)
    learn = Learner(DataLoaders(dl, DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), 4), device='cpu'),
        nn.Linear(3, 1), **dict(loss_func=nn.MSELoss(), lr=.01)|kwargs).remove_cb(ProgressCallback)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=[*cbs, Raise('before_draw', KeyboardInterrupt, n)])
    learn.route.stopped.cbs = [o for o in learn.route.stopped.cbs if not isinstance(o, Raise)]
    return learn

def tensors(learn):
    return [*learn.model.parameters(),
        *(t for o in parts_of(learn.opt) for s in o.state.values() for t in s.values() if isinstance(t, torch.Tensor)),
    *(t for cb in [*learn.cbs, *learn.route.stopped.cbs] for t in vars(cb).values() if isinstance(t, torch.Tensor))]

def test_a_fork_shares_the_data_and_nothing_else():
    learn = stopped(DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(0)),
        [EMA(.9), GradientAccumulation(2)])
    alt = learn.fork()
    assert not {o.data_ptr() for o in tensors(learn)} & {o.data_ptr() for o in tensors(alt)}
    assert all(a is not b
        for a,b in [(alt.model, learn.model), (alt.opt, learn.opt), (alt.loss_func, learn.loss_func),
            (alt.recorder, learn.recorder), (alt.state, learn.state), (alt.route, learn.route)])
    assert not {*map(id, [*learn.cbs, *learn.route.stopped.cbs])} & {*map(id, [*alt.cbs, *alt.route.stopped.cbs])}
    a,b = learn.dls.train,alt.dls.train
    assert b.dataset is not a.dataset and b.dataset.x is a.dataset.x and b.dataset.rng is not a.dataset.rng
    assert (b.generator is not a.generator and b.sampler is not a.sampler and b.sampler.generator is b.generator
        and b.sampler.data_source is b.dataset)
    assert alt.dls['valid'].dataset.tensors is learn.dls['valid'].dataset.tensors
    assert [o.learn for o in alt.cbs]==[alt]*len(alt.cbs) and [o.learn for o in learn.cbs]==[learn]*len(learn.cbs)
    assert [p for g in alt.opt.param_groups for p in g['params']]==[*alt.model.parameters()]

def pruned(layer): return prune.l1_unstructured(layer, 'weight', .5)
parametrized = (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm,
    nn.utils.parametrizations.orthogonal, pruned)
@pytest.mark.parametrize('n', [None, 4])
@pytest.mark.parametrize('wrap', parametrized, ids=lambda f: f.__name__)
def test_a_layer_whose_weight_is_computed(wrap, n):
    torch.manual_seed(0)
    learn = synth_learner(model=nn.Sequential(wrap(nn.Linear(1, 2)), nn.Linear(2, 1)))
    learn.fit(2, cbs=[Rewind(3), on(event.after_batch(once=5, unit='iter'))(lambda o: o.stop_soon())])
    fork = learn.fork(n)
    assert fork.model[0].weight is not learn.model[0].weight
    if n: fork.resume() # it is stopped where its parent was
    assert same([*fork.resume().model.parameters()], [*learn.resume().model.parameters()])

def test_a_count_of_the_dataset_is_its_own():
    learn = stopped(DataLoader(Noisy(), 4))
    n,alt = learn.dls.train.dataset.n,learn.fork()
    alt.resume()
    assert (learn.dls.train.dataset.n, alt.dls.train.dataset.n)==(n, 72)

def test_a_dataset_in_a_dataset():
    learn = stopped(DataLoader(Subset(Noisy(), range(16)), 4))
    a,b = (o.dls.train.dataset.dataset for o in (learn, learn.fork()))
    assert a is not b and a.x is b.x and a.rng is not b.rng and a.rng.bit_generator.state==b.rng.bit_generator.state

@pytest.mark.filterwarnings('ignore:The loader.s workers persist')
def test_persistent_workers_stay_with_the_parent():
    learn = stopped(DataLoader(TensorDataset(torch.randn(24, 3), torch.randn(24, 1)), 4, num_workers=1,
        persistent_workers=True), n=9)
    it = learn.dls.train._iterator
    alt = learn.fork()
    assert it is not None and learn.dls.train._iterator is it and alt.dls.train._iterator is None
    assert len(alt.resume().recorder.losses)==len(learn.resume().recorder.losses)==18

def test_ready_batches_are_shared():
    batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
    learn = stopped(batches)
    assert learn.fork().dls.train[0][0] is batches[0][0]

class Shuffling:
    "A loader of one's own, which shuffles its list in place; `stateful` ones say where they are"
    def __init__(self): self.x,self.y,self.order = torch.randn(24, 3),torch.randn(24, 1),list(range(24))
    def __iter__(self):
        random.shuffle(self.order)
        for i in range(0, 24, 4): yield self.x[self.order[i:i+4]],self.y[self.order[i:i+4]]
class Stateful(Shuffling):
    def state_dict(self): return dict(order=[*self.order])
    def load_state_dict(self, state): self.order[:] = state['order']

@pytest.mark.filterwarnings('ignore:.*replays its batches|.*changed during the run')
@pytest.mark.parametrize('cls', [Shuffling, Stateful])
def test_a_list_that_changes_in_place_is_its_own(cls):
    random.seed(0)
    learn = stopped(cls(), n=9)
    a,b = learn.dls.train,learn.fork().dls.train
    assert a.order==b.order and a.order is not b.order and (b.x is a.x)==(cls is Shuffling)

def test_what_cannot_be_copied_is_said():
    learn = stopped(DataLoader(Noisy(), 4))
    learn.state.file = open(__file__)
    with learn.state.file, pytest.raises(TypeError) as e: learn.fork()
    assert 'except for the attributes of datasets' in e.value.__notes__[0] and learn.dls.train.dataset.n

def test_a_function_that_uses_the_parents_model_is_named():
    model = nn.Linear(3, 1)
    learn = stopped(DataLoader(Noisy(), 4), loss_func=lambda p, y: F.mse_loss(p, y)+1e-3*model.weight.norm())
    learn.fork() # another model
    learn.model.load_state_dict(model.state_dict())
    mine = learn.model
    learn.loss_func = lambda p, y: F.mse_loss(p, y)+1e-3*mine.weight.norm()
    learn.add_cb(on('after_epoch')(lambda _: learn.recorder.losses))
    with pytest.warns(UserWarning,
            match="would use its parent's model, optimizer or learner in `loss_func`, `<lambda>`"):
        learn.fork()

# What is changed
def test_rates_as_in_resume():
    def make():
        torch.manual_seed(0)
        return stopped(DataLoader(Noisy(), 4), metrics=mae)
    learn = make()
    a,b = outcome(learn.fork(lr=.1, wd=.2).resume()),outcome(make().resume(lr=.1, wd=.2))
    for o in (a, b): o['opt'].pop('param_groups') # what comes after the fit
    assert not differences(a, b)
    with pytest.raises((TypeError,ValueError), match='lr'): learn.fork(lr='fast')
    learn.resume()
    assert differences(a, outcome(learn))

def test_a_schedule_is_scaled():
    torch.manual_seed(0)
    learn = synth_learner(lr=.1)
    learn.fit_one_cycle(2, cbs=Rewind(every=4))
    alt = learn.fork(8, lr=.05).resume()
    assert (alt.recorder.lrs[:8]==learn.recorder.lrs[:8]
        and alt.recorder.lrs[8:]==pytest.approx([o/2 for o in learn.recorder.lrs[8:]]))

class Once(Callback):
    "Counts its batches"
    _stateattrs = 'n',
    def before_fit(self): self.n = 0
    def after_batch(self): self.n += self.learn.training

def test_callbacks_are_added_and_left_out_without_a_warning():
    learn = synth_learner(cbs=Once).remove_cb(ProgressCallback)
    clip = GradientClip(.1)
    learn.fit(2, cbs=[Rewind(every=4), clip, EMA(.9), seen := Moments()])
    with silent(): alt = learn.fork(8, cbs=[other := Once(), MixUp], without=[clip, EMA]).resume()
    assert alt.once.n==20 and other.n==12 and 'ema' not in alt.recorder.metric_names
    assert not any(o.learn is alt for o in (clip, seen, learn.once)) and learn.once.n==20
    with silent(): bare = learn.fork(8, without=Once)
    assert not hasattr(bare, 'once') and learn.once in learn.cbs
    with silent(): bare.resume()

def test_functions_of_one_name_keep_their_own_counts():
    def made(k):
        def f(learn): learn.state[k] = learn.state.get(k, 0)+1
        return f
    learn = synth_learner()
    fs = [on('after_step', every=n)(made(k)) for k,n in dict(a=2, b=3).items()]
    learn.fit(2, cbs=[*fs, Rewind(every=4)])
    with silent(): alt = learn.fork(7, without=fs[0]).resume()
    assert learn.state==dict(a=10, b=6) and alt.state==dict(a=3, b=6)

# Files
def read(folder):
    return {o.relative_to(folder):o.read_bytes() for o in folder.rglob('*') if o.is_file()
        and not any(p.startswith('fork-') for p in o.relative_to(folder).parts)}

def test_files_of_the_parent_stay_and_those_of_the_fork_are_whole(tmp_path):
    learn = synth_learner(path=tmp_path, metrics=mae).remove_cb(ProgressCallback)
    learn.fit(4, cbs=[Rewind(every=4, keep=9), CSVLogger(), JSONLogger(batches=1), SaveModelCallback(),
        Checkpoint(every=4, unit='iter', keep=2)])
    before = read(tmp_path)
    with silent():
        # the parent has written over them
        warnings.filterwarnings('ignore', 'The best weights so far are gone|`valid_loss` was never better')
        alt = learn.fork(14, lr=.03).resume()
    assert read(tmp_path)==before and alt.path.parent==tmp_path and alt.path.name=='fork-'+alt.lineage[-1].run
    rows = [dict(o) for o in CSVLogger.read_log(alt_csv(alt))]
    assert [o['train_loss'] for o in rows]==[o.train_loss for o in alt.recorder.rows] and len(rows)==4
    assert (rows[0]['train_loss']==learn.recorder.rows[0].train_loss
        and rows[-1]['train_loss']!=learn.recorder.rows[-1].train_loss)
    lines = [json.loads(o) for o in (alt.path/'history.jsonl').read_text().splitlines()]
    assert ([o['how'] for o in lines[0]['config']['lineage']]==['fit','fork']
        and lines[0]['config']['lineage'][-1]==alt.lineage[-1]._asdict())
    assert [o['row']['loss'] for o in lines if o['kind']=='batch']==alt.recorder.raw_losses
    files = Checkpoints(alt.path/'checkpoints').entries
    assert {o.run for o in files}=={alt.lineage[-1].run} and (alt.path/'models'/'model.pth').exists()
    saved = read_plain(alt.path/'checkpoints'/files[-1].name)
    assert [o['how'] for o in saved['lineage']]==['fit','fork']

def alt_csv(alt):
    res = next(o for o in alt.held_run.points[-1].cbs if isinstance(o, CSVLogger))
    res.file = alt.path/'history.csv'
    return res

def test_best_weights_come_along(tmp_path):
    learn = synth_learner(path=tmp_path, lr=.1).remove_cb(ProgressCallback)
    learn.fit(2, cbs=[Rewind(every=4), SaveModelCallback()])
    alt = learn.fork(16, lr=10.).resume() # it becomes no better
    assert alt.recorder.rows[-1].valid_loss>alt.recorder.rows[0].valid_loss
    assert same(weights(alt), [*alt.load('model').model.state_dict().values()]) and not alt.lineage==learn.lineage

def test_best_weights_that_have_been_written_over_are_not_taken(tmp_path):
    learn = synth_learner(path=tmp_path, lr=.02).remove_cb(ProgressCallback)
    learn.fit(3, cbs=[Rewind(every=5, keep=9), SaveModelCallback()])
    assert learn.recorder.rows[0].valid_loss>learn.recorder.rows[1].valid_loss
    alt = learn.fork(15, lr=10.)
    with pytest.warns(UserWarning, match='weights so far are gone: .*model.pth` has been written over'): alt.resume()

def test_an_absolute_path_is_refused(tmp_path):
    learn = synth_learner(path=tmp_path)
    learn.fit(1, cbs=[Rewind(every=4), CSVLogger(tmp_path/'log.csv')])
    with pytest.raises(ValueError, match='`csv_logger` writes to `.*log.csv`.*without=CSVLogger'): learn.fork(4)
    learn.fork(4, without=CSVLogger, cbs=CSVLogger('log.csv')).resume()

# Where a run comes from
def turns(learn): return [(o.how, o.n_iter) for o in learn.lineage]

def test_the_lineage_of_runs(tmp_path):
    learn = synth_learner(path=tmp_path).remove_cb(ProgressCallback)
    assert learn.lineage==()
    learn.fit(2, cbs=Rewind(every=4))
    first = learn.lineage
    assert turns(learn)==[('fit', 0)]
    learn.rewind(10)
    assert turns(learn)==[('fit', 0), ('rewind', 10)] and len({o.run for o in learn.lineage})==1
    assert (turns(learn.fork())==[('fit', 0), ('rewind', 10), ('fork', 10)]
        and turns(learn.fork(6))==[('fit', 0), ('fork', 6)])
    learn.resume()
    assert (turns(learn)==[('fit', 0), ('rewind', 10)]
        and [o['how'] for o in learn.run_config['lineage']]==['fit','rewind'])
    learn.fit(1)
    assert turns(learn)==[('fit', 0)] and learn.lineage!=first

def test_a_fork_of_a_fork():
    learn = synth_learner().remove_cb(ProgressCallback)
    learn.fit(2, cbs=Rewind(every=4, keep=9))
    alt = learn.fork(6, lr=.02).resume()
    third = alt.fork(14)
    assert turns(third)==[('fit', 0), ('fork', 6), ('fork', 14)] and len({o.run for o in third.lineage})==3
    assert third.resume().recorder.losses==alt.recorder.losses
    alt.rewind(4) # into its parent's part
    assert (turns(alt)==[('fit', 0), ('rewind', 4)]
        and [o.run for o in alt.lineage]==[learn.lineage[0].run, third.lineage[1].run])

def test_a_lineage_in_files(tmp_path):
    def make(): return synth_learner(path=tmp_path).remove_cb(ProgressCallback)
    learn = make()
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise('before_draw', KeyboardInterrupt, 7))
    learn.fork().save_state(tmp_path/'fork')
    other = make().load_state(tmp_path/'fork')
    assert turns(other)==[('fit', 0), ('fork', 6)]
    with pytest.raises(KeyboardInterrupt): other.resume(cbs=Raise('before_draw', KeyboardInterrupt, 3))
    other.resume(cbs=[])
    assert turns(other)==[('fit', 0), ('fork', 6), ('resume', 8)]
    learn.resume(cbs=[])
    assert turns(learn)==[('fit', 0)] + [('resume', 6)]

def test_a_guard_notes_where_it_went_back():
    def spoil(learn):
        if learn.training and learn.train_iter==13: learn.pred = learn.pred*float('nan')
    learn = synth_learner().remove_cb(ProgressCallback)
    learn.fit(2, cbs=[SpikeGuard(4), on('after_pred')(spoil)])
    assert turns(learn)==[('fit', 0), ('rewind', 13)]

# Errors, copies
def test_errors(tmp_path):
    learn = synth_learner().remove_cb(ProgressCallback)
    with pytest.raises(RuntimeError, match='no place to fork from.*cbs=Rewind'): learn.fork()
    with pytest.raises(RuntimeError, match='cbs=Rewind'): learn.fork(3)
    learn.fit(1, cbs=Rewind(every=4, keep=1))
    with pytest.raises(ValueError, match='held after 8'): learn.fork(3)
    with pytest.raises(ValueError, match='n_iter'): learn.fork(-1)
    with pytest.raises(RuntimeError, match='cannot copy a running `fit`'):
        learn.fit(1, cbs=on('after_batch')(lambda learn: learn.fork()))

@pytest.mark.parametrize('memory', [1, 2**30])
@pytest.mark.parametrize('how', [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=['deepcopy','pickle'])
def test_copies_of_a_learner_that_held_its_run(how, memory):
    dl = DataLoader(TensorDataset(torch.randn(40, 3), torch.randn(40, 1)), 4, shuffle=True)
    learn = Learner(DataLoaders(dl, device='cpu'), nn.Linear(3, 1), nn.MSELoss()).remove_cb(ProgressCallback)
    learn.fit(2, cbs=Rewind(every=4, memory=memory))
    twin,end = how(learn),learn.recorder.losses
    assert twin.rewind(10).resume().recorder.losses==end
    del twin
    assert learn.rewind(10).resume().recorder.losses==end

@pytest.mark.parametrize('log_dir', [None, 'board'])
@pytest.mark.parametrize('n', [8, 9])
def test_boards_of_forks_lie_over_that_of_their_parent(tmp_path, log_dir, n):
    "Each has event files of its own, with the whole curve, at the steps that its parent has"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    def board(learn):
        return next(o for o in learn.held_run.points[0].cbs if isinstance(o, TensorBoardLogger)).folder
    def curve(folder):
        return {o.step:o.value for o in EventAccumulator(folder,
            size_guidance=dict(scalars=0)).Reload().Scalars('batch/loss')}
    def expected(learn, start): return {start+i+1:pytest.approx(v) for i,v in enumerate(learn.recorder.raw_losses)}
    learn = synth_learner(path=tmp_path).remove_cb(ProgressCallback)
    logger = TensorBoardLogger(log_dir)
    learn.fit(1, cbs=logger)
    learn.fit(2, cbs=[Rewind(every=4), logger])
    start = 10 if log_dir else 0 # a second fit goes on in a folder that is given
    before,files = curve(board(learn)),read(tmp_path)
    alt = learn.fork(n, lr=.01).resume()
    assert (read(tmp_path)==files and curve(board(learn))==before
        and {k:before[k] for k in expected(learn, start)}==expected(learn, start))
    assert board(alt).startswith(str(alt.path)) and curve(board(alt))==expected(alt, start)
    third = alt.fork(14).resume()
    assert curve(board(third))==expected(third, start) and len({board(o) for o in (learn, alt, third)})==3
    learn.rewind(n).resume()
    assert curve(board(learn))==before

def test_batches_of_plotted_curves_are_whole_numbers():
    learn = synth_learner(metrics=mae).remove_cb(ProgressCallback)
    learn.fit(2, cbs=Rewind(every=4))
    alt = learn.fork(6, lr=.01).resume()
    ax = learn.recorder.plot_loss(skip_start=17)
    alt.recorder.plot_loss(skip_start=17, ax=ax)
    for o in (ax, *learn.recorder.plot_metrics()):
        o.set_xlim(17.6, 20.2)
        assert all(float(t).is_integer() for t in o.get_xticks())
    learn.recorder.plot_loss(log=True)

def test_a_class_attribute_of_the_dataset_that_has_changed():
    "As one in which data are kept once they are read"
    class Cached(Noisy):
        read = None
        def __getitem__(self, i):
            if Cached.read is None: Cached.read = torch.ones(3)
            return super().__getitem__(i)
    learn = stopped(DataLoader(Cached(), 4))
    twin = learn.fork()
    for o in learn,twin: o.resume()
    assert same(weights(learn), weights(twin))

def test_a_splitter_that_names_parts_of_the_parent_is_told():
    class Scaled(nn.Module):
        def __init__(self): super().__init__(); self.s = nn.Parameter(torch.ones(1))
        def forward(self, p, y): return F.mse_loss(p*self.s, y)
    loss = Scaled()
    learn = stopped(DataLoader(Noisy(), 4), loss_func=loss, splitter=lambda m: [params(m), params(loss)])
    with pytest.warns(UserWarning, match="would use its parent's .* in `splitter`"): learn.fork()
