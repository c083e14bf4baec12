"Promise 11: a run goes back to any of its batches, and is there what it was: the rest of it comes out the same"
import copy,gc,random,warnings
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from runs import Log,differences,fit,learner,outcome

cases = [dict(), dict(workers=2, ema=True, acc=True, sched='one_cycle'), dict(mix=True, loader='own'),
    dict(swa=True, groups=True),
    dict(filters=True, loss='module', loader='stream'), dict(loader='knowing', sched='torch_cycle'),
    dict(best=True, short=True),
    dict(between=True, amp='bf16'), dict(groups='several', micro=True), dict(loader='endless'),
    dict(groups='frozen', loader='batch_sampler')]

class Moments(Callback):
    "What the run was after each batch of training"
    order,writes,watches = 2000,True,True
    def __init__(self): self.seen = {}
    def after_batch(self):
        if self.learn.training and self.learn.mode=='fit': self.seen[self.learn.train_iter] = weights(self.learn)
def weights(learn): return [t.detach().clone() for t in learn.model.state_dict().values()]
def same(a, b): return len(a)==len(b) and all(map(torch.equal, a, b))

@pytest.mark.sample(18)
@pytest.mark.parametrize('seed', range(9))
@pytest.mark.parametrize('case', cases, ids=str)
def test_any_place_of_a_run(tmp_path, case, seed):
    rng = random.Random(seed)
    learn,moments = learner(case, tmp_path, 1),Moments()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*replays its batches|.*lr_scheduler.step|.*fork')
        fit(learn, case, [Rewind(every=rng.choice([1, 3, 4]), keep=8), moments, Log(learn.path)])
        end,seen = outcome(learn, Log(learn.path)),dict(moments.seen)
        oldest = learn.held_run.points[0].n_iter
        for n in rng.sample(range(max(oldest, 1), max(seen)+1), 1 if seed else 2):
            learn.rewind(max(n, learn.held_run.points[0].n_iter))
            n = learn.at.counters.train_iter
            if n: assert same(weights(learn), seen[n])
            moments.seen.clear()
            learn.resume()
            assert all(same(moments.seen[k], seen[k]) for k in seen if k>n)
            assert not differences(end, outcome(learn, Log(learn.path)))

def test_errors_say_where_a_run_can_go_back_to(tmp_path):
    learn = learner({}, tmp_path, 1)
    with pytest.raises(RuntimeError, match='cbs=Rewind'): learn.rewind(3)
    fit(learn, {}, Rewind(every=4, keep=2))
    before = weights(learn)
    with pytest.raises(ValueError, match='back to 3 training batches: it is held after 12, 16'): learn.rewind(3)
    with pytest.raises(ValueError, match='n_iter'): learn.rewind(-1)
    assert same(before, weights(learn)) and learn.at is None
    with pytest.raises(ValueError, match='ends after 18'): learn.rewind(19)
    with pytest.raises(RuntimeError, match='inside a running `fit`'):
        fit(learn, {}, on('after_batch')(lambda learn: learn.rewind(0)))

def test_a_rewind_that_another_learner_has_used_since_is_refused(tmp_path):
    "Its points are of that fit: their weights would come into this learner"
    shared,(first,second) = Rewind(every=4),(learner({}, tmp_path/k, 1) for k in 'ab')
    for o in first,second: fit(o, {}, shared)
    before = weights(first)
    with pytest.raises(RuntimeError, match='Another learner has trained with the same `Rewind`'): first.rewind(4)
    with pytest.raises(RuntimeError, match='Another learner has trained with the same `Rewind`'): first.fork(4)
    assert same(before, weights(first)) and first.at is None
    for o in second,copy.deepcopy(second),second.fork(8).resume(): assert o.rewind(4).at.counters.train_iter==4
    del second,o
    gc.collect()
    with pytest.raises(RuntimeError, match='Another learner has trained with the same `Rewind`'): first.rewind(4)

def test_a_stopped_run_holds_its_own_points_though_another_learner_has_used_its_rewind(tmp_path):
    shared,(first,second) = Rewind(every=4, keep=9),(learner({}, tmp_path/k, 1) for k in 'ab')
    fit(first, {}, [shared, on(event.after_batch(once=6, unit='iter'))(lambda learn: learn.stop_soon())])
    fit(second, {}, shared)
    first.resume()
    assert [o.n_iter for o in shared.points]==[6, 8, 12, 16]
    with pytest.raises(ValueError, match='it is held after 6, 8, 12, 16'): first.rewind(4)

def test_a_run_that_a_learner_made_anew_resumes_keeps_its_points(tmp_path):
    "The cell that makes the learner was run again, and that of the callbacks was not"
    rewind,saves = Rewind(every=2, keep=9),Checkpoint(every=2, unit='iter')
    stop = on(event.after_batch(once=6, unit='iter'))(lambda learn: learn.stop_soon())
    for cbs,resume in ([rewind, saves, stop], None),([rewind, saves], True):
        learn = synth_learner(n_train=10, path=tmp_path).fit(1, cbs=cbs, resume=resume)
    assert learn.rewind(3).at.counters.train_iter==3

class Patience(Callback):
    "Ends the fit by a count that it does not save"
    n = 0
    def before_epoch(self):
        if self.n==2: raise CancelFitException
    def after_epoch(self): self.n += 1

@pytest.mark.filterwarnings('ignore:`Patience` gathers', 'ignore:The fit was cancelled on the way')
@pytest.mark.parametrize('how', ['rewind','fork'])
def test_a_run_that_does_not_come_to_that_place_again_says_so(how, tmp_path):
    learn = learner({}, tmp_path, 1)
    fit(learn, {}, [Patience(), Rewind(4, keep=9)])
    with pytest.raises(ValueError, match='it cannot go back to 7'): getattr(learn, how)(7)

def test_a_log_has_each_row_once(tmp_path):
    learn = learner({}, tmp_path, 1)
    # without the time
    def rows(): return [o.rsplit(',', 1)[0] for o in (tmp_path/'history.csv').read_text().splitlines()]
    fit(learn, {}, [Rewind(every=4), CSVLogger()])
    before = rows()
    learn.rewind(9).resume()
    assert rows()==before and len(before)==4

def test_a_point_that_is_large_is_on_the_disk(tmp_path):
    learn = learner({}, tmp_path, 1)
    fit(learn, {}, [rewind := Rewind(every=4, memory=1), Log(tmp_path)])
    end = outcome(learn, Log(tmp_path))
    assert all(o.file._rolled for o in rewind.points)
    learn.rewind(9).resume()
    assert not differences(end, outcome(learn, Log(tmp_path)))

def test_what_lies_ahead_is_forgotten(tmp_path):
    learn = learner({}, tmp_path, 1)
    fit(learn, {}, rewind := Rewind(every=4, keep=9))
    assert [o.n_iter for o in rewind.points]==[0, 4, 8, 12, 16]
    learn.rewind(9)
    assert [o.n_iter for o in rewind.points]==[0, 4, 8]

def test_a_run_that_goes_back_again_is_not_stopped_where_it_was_stopped_before(tmp_path):
    learn = learner({}, tmp_path, 1)
    fit(learn, {}, [Rewind(every=4, keep=9), Log(tmp_path)])
    end = outcome(learn, Log(tmp_path))
    learn.rewind(11).rewind(9).resume()
    assert not differences(end, outcome(learn, Log(tmp_path)))

@pytest.mark.parametrize('cb,why',
    [(Rewind, 'while a `Rewind` holds the run'), (Checkpoint, 'while a `Checkpoint` saves the run')])
def test_persistent_workers_that_do_not_persist_are_named(cb, why, tmp_path):
    dl = DataLoader(TensorDataset(torch.randn(8, 3), torch.arange(8)%2), 4, num_workers=1, persistent_workers=True,
        multiprocessing_context='fork')
    learn = Learner(DataLoaders(dl, device='cpu'), nn.Linear(3, 2), nn.CrossEntropyLoss(),
        path=tmp_path).remove_cb(ProgressCallback)
    with pytest.warns(UserWarning, match=f'persistent, but begin anew in each epoch {why}'): learn.fit(1, cbs=cb())

def shown(learn):
    "What a learner says of how far its run is"
    return dict(train_iter=learn.train_iter, opt_step=learn.opt_step, epoch=learn.epoch, iter=learn.iter,
        pct_train=learn.pct_train, results=dict(learn.results), history=[*map(dict, learn.recorder.values)],
        losses=list(learn.recorder.losses), lrs=list(learn.recorder.lrs), state=dict(learn.state))

class Shown(Callback):
    "What the learner said after each batch, and a count in its state"
    order,writes = 2000,True
    def __init__(self): self.seen = {}
    def after_batch(self):
        if not self.learn.training: return
        self.learn.state['n'] = self.learn.train_iter
        self.seen[self.learn.train_iter] = shown(self.learn)

@pytest.mark.parametrize('n', [4, 6, 9, 12])
def test_a_run_that_went_back_says_so_at_once(tmp_path, n):
    "At held points (4 and 12), between them, and at the end of an epoch of 6 batches: not only when it resumes"
    learn,said = learner(dict(sched='one_cycle'), tmp_path, 1),Shown()
    fit(learn, dict(sched='one_cycle'), [Rewind(every=4, keep=9), said])
    end,seen = shown(learn),dict(said.seen)
    learn.rewind(n)
    now = shown(learn)
    assert {k for k in now if now[k]!=seen[n][k]}==set()
    alt = learn.fork(n)
    assert shown(alt)==now==shown(learn)
    assert shown(learn.resume())==end

def test_a_run_that_went_back_to_its_beginning_has_no_history(tmp_path):
    learn = learner({}, tmp_path, 1)
    fit(learn, {}, Rewind(every=4, keep=9))
    learn.rewind(0)
    now = shown(learn)
    assert (learn.train_iter, learn.opt_step, learn.epoch)==(0, 0, 0) and not now['history'] and not now['losses']

@pytest.mark.parametrize('loader,n', [('shuffled', 3), ('stream', 6), ('knowing', 6)])
def test_a_run_that_stops_where_it_resumes(tmp_path, loader, n):
    "Before the first batch, or where no batch is left in the epoch, as in a loader that knows where it is"
    case,moments = dict(loader=loader),Moments()
    learn = learner(case, tmp_path, 1)
    def stop(): learn.at_pause(learn.stop_for_now, stops=True)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*replays its batches')
        fit(learn, case, [Rewind(every=3, keep=9), moments, Log(tmp_path)])
        end,seen = outcome(learn, Log(tmp_path)),dict(moments.seen)
        learn.rewind(n)
        for _ in range(2):
            with learn.added_cbs(Callback(before_fit=lambda learn: stop())): learn.resume()
            assert learn.at.counters.train_iter==learn.train_iter==n
        moments.seen.clear()
        learn.resume()
    assert all(same(moments.seen[k], seen[k]) for k in seen if k>n)
    assert not differences(end, outcome(learn, Log(tmp_path)))

class Queue(nn.Module):
    "MoCo's: of the latest outputs; `ptr` says where the next one goes"
    def __init__(self):
        super().__init__()
        self.lin,self.queue,self.ptr,self.drop = nn.Linear(1, 1),torch.zeros(5),0,0.
    def forward(self, x):
        y = self.lin(x)*(1+self.queue.sum())
        if self.training:
            if not hasattr(self, 'seen'): self.seen = 0
            self.seen += 1
            self.queue[self.ptr] = y.detach().mean()
            self.ptr = (self.ptr+1)%5
        return y

class CountingLoss:
    n = 0
    def __call__(self, pred, y):
        if torch.is_grad_enabled(): self.n += 1
        return nn.functional.mse_loss(pred, y)*(1+self.n%3)

def queued(path):
    torch.manual_seed(0)
    x = torch.arange(28.)[:,None]/28
    dls = DataLoaders.from_dsets(TensorDataset(x, x), bs=4, device='cpu')
    return Learner(dls, Queue(), CountingLoss(), opt_func=SGD, lr=.01, path=path).remove_cb(ProgressCallback)
def attrs(learn):
    own = {k:getattr(learn.model, k, None) for k in ('ptr','seen')}
    return own | dict(queue=learn.model.queue.tolist(), n=learn.loss_func.n)

class Attrs(Callback):
    "Attributes of model and loss before each batch of training, and a file of the run there"
    run_valid,watches = False,True
    def __init__(self): self.seen = {}
    def before_draw(self):
        self.seen[self.learn.train_iter] = copy.deepcopy(attrs(self.learn))
        if (n := self.learn.train_iter) in (0,3,6): self.learn.save_state(str(n))

@pytest.mark.parametrize('n', [0, 3])
@pytest.mark.parametrize('how', ['rewind', 'fork', 'load_state', 'fit'])
def test_attributes_that_had_their_first_values_have_them_again(n, how, tmp_path):
    learn,noted = queued(tmp_path),Attrs()
    learn.fit(2, cbs=[Rewind(every=5), noted])
    end = weights(learn),attrs(learn)
    learn.remove_cb(noted)
    if how=='fit': learn.fit(2, resume=str(n))
    else:
        learn = getattr(learn, how)(str(n) if how=='load_state' else n)
        assert attrs(learn)==noted.seen[n]
        learn.resume(cbs=[])
    assert same(weights(learn), end[0]) and attrs(learn)==end[1]

def test_a_second_file_leaves_nothing_of_the_first(tmp_path):
    queued(tmp_path).fit(1, cbs=Attrs())
    learn = queued(tmp_path).load_state('6').load_state('0')
    assert attrs(learn)==attrs(queued(tmp_path))

def test_an_attribute_that_no_fit_has_changed_is_that_of_the_user(tmp_path):
    learn = queued(tmp_path)
    learn.save_state('here')
    learn.fit(1)
    learn.model.drop = .5
    assert learn.load_state('here').model.drop==.5

@pytest.mark.parametrize('v', [2, 7])
def test_an_attribute_that_was_set_by_hand_after_a_fit_is_that_of_the_user(v, tmp_path):
    class Moves(Callback):
        def before_epoch(self): self.learn.model.drop = .5
    learn = queued(tmp_path)
    learn.save_state('here')
    learn.fit(1, cbs=Moves())
    learn.model.drop,learn.model.ptr = .25,v # the fit has left `ptr` at 2
    learn.load_state('here')
    assert (learn.model.drop, learn.model.ptr)==(.25, 0 if v==2 else v)

def test_a_loss_that_another_learner_has_used_since_goes_on_from_there(tmp_path):
    one,other = queued(tmp_path),queued(tmp_path)
    other.loss_func = one.loss_func
    one.save_state('here')
    one.fit(1)
    other.fit(1)
    assert one.load_state('here').loss_func.n==14 and one.model.ptr==0

calls = dict(n=0)
def counting(pred, y):
    calls['n'] += 1
    return nn.functional.mse_loss(pred, y)

def test_variables_of_a_module_that_functions_count_in_are_never_reset(tmp_path):
    learn = queued(tmp_path)
    learn.loss_func = counting
    learn.save_state('here')
    learn.fit(1)
    n = calls['n']
    assert n and learn.load_state('here') is learn and calls['n']==n

class Unwilling(Callback):
    def state_dict(self): return dict(n=1)
    def load_state_dict(self, state): raise OSError('not mine')

@pytest.mark.parametrize('cbs', [[], [Unwilling]])
def test_a_file_that_cannot_be_loaded_leaves_attributes_as_they_were(cbs, tmp_path):
    here = queued(tmp_path)
    here.fit(2)
    here.add_cbs(cbs)
    here.save_state('here')
    if not cbs: synth_learner(path=tmp_path).save_state('here')
    learn = queued(tmp_path)
    learn.fit(1, cbs=cbs)
    learn.add_cbs(cbs)
    queue,end = learn.model.queue,attrs(learn)
    with pytest.raises((OSError,ValueError), match='not mine|do not fit'): learn.load_state('here')
    assert attrs(learn)==end and learn.model.queue is queue

def test_a_file_that_cannot_be_loaded_leaves_it_to_the_next_one_what_is_reset(tmp_path):
    queued(tmp_path).fit(2).add_cbs(Unwilling).save_state('longer')
    learn = queued(tmp_path)
    begin = attrs(learn)
    learn.save_state('begin')
    learn.fit(1).add_cbs(Unwilling)
    with pytest.raises(OSError, match='not mine'): learn.load_state('longer')
    learn.remove_cb(Unwilling).load_state('begin')
    assert attrs(learn)==begin

class Counting(torch.utils.data.Dataset):
    "A sample is how many were drawn before it"
    def __init__(self): self.n,self.noise = 0,1
    def __len__(self): return 8
    def __getitem__(self, i): self.n += 1; return torch.tensor([float(self.n)]),torch.ones(1)

def counting_learner(*cbs):
    return Learner(DataLoaders(DataLoader(Counting(), 2), None), nn.Linear(1, 1), nn.MSELoss(),
        opt_func=torch.optim.SGD, default_cbs=False, cbs=[TrainEvalCallback, *cbs])

@pytest.mark.parametrize('how', ['rewind','fork'])
@pytest.mark.parametrize('n', [0, 1, 4, 6])
def test_what_a_dataset_counts_goes_back_or_is_told(how, n):
    "It goes back to where it had counted before. What changes for the first time later may belong to other things"
    learn = counting_learner()
    learn.fit(2, cbs=Rewind(every=2))
    end = weights(learn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        other = getattr(learn, how)(n)
        other.resume()
    lost = [str(o.message) for o in told if 'dataset.n` of the training loader' in str(o.message)]
    assert (len(lost), same(weights(other), end))==((1, False) if n<2 else (0, True))
    assert not lost or f'`{how}({n})` does not put back `dataset.n`' in lost[0]

def test_what_has_moved_is_told_each_time_that_the_run_goes_back():
    def larger(cb):
        if cb.epoch==1: cb.dls.train.dataset.noise = 3
    learn = counting_learner(Callback(before_epoch=larger))
    learn.fit(2, cbs=Rewind(every=2, keep=20))
    for n in (3, 1):
        with pytest.warns(UserWarning, match='does not put back .*`dataset.noise`'): learn.rewind(n)

def test_nothing_is_told_of_what_is_set_by_hand_after_a_fit():
    learn = counting_learner()
    learn.fit(2, cbs=Rewind(every=2))
    learn.dls.train.dataset.noise = 2
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.rewind(6).resume()
    assert learn.dls.train.dataset.noise==2

def test_nothing_is_told_of_another_loader():
    "What differs between two loaders has not moved. It is not written into the second one"
    def larger(learn):
        if learn.epoch==1: learn.learn.dls = DataLoaders(DataLoader(Counting(), 4), None)
    learn = counting_learner(Callback(before_epoch=larger))
    learn.fit(2, cbs=Rewind(every=1, keep=20))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        learn.rewind(5)
    assert learn.dls.train.batch_size==4 and not any('does not put back' in str(o.message) for o in told)

def test_weights_of_a_sampler_that_move_only_later_are_told():
    sampler = torch.utils.data.WeightedRandomSampler([1.]*8, 8)
    def harder(learn): sampler.weights[:4] = 0
    data = TensorDataset(torch.randn(8, 1), torch.randn(8, 1))
    learn = Learner(DataLoaders(DataLoader(data, 2, sampler=sampler), None), nn.Linear(1, 1), nn.MSELoss(),
        default_cbs=False, cbs=[TrainEvalCallback, Callback(after_epoch=harder)])
    learn.fit(2, cbs=Rewind(every=2))
    with pytest.warns(UserWarning, match='does not put back `sampler.weights` of the training loader'): learn.rewind(2)
