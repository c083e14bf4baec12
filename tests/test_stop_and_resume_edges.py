"""Stopping and resuming where it is easy to get it wrong: what loaders and workers were in the middle of, what a
position holds, files that are not what they were"""
import os,random,shutil,signal,warnings
from pathlib import Path
import numpy as np
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,Dataset,IterableDataset,Sampler,WeightedRandomSampler,get_worker_info
from learner.all import *
from signals import python_handler # noqa: F401

if os.name=='nt': pytest.skip('Windows has other signals', allow_module_level=True)

# Runs that are stopped and resumed
class Batches(Callback):
    "Keeps the inputs of each training batch that was trained on, as lists"
    watches = True
    def __init__(self): self.seen = []
    def after_batch(self):
        if self.learn.training: self.seen.append(self.learn.x.flatten().tolist())

class CtrlC(Callback):
    "Ctrl-C at the `n`-th `ev`"
    watches = True
    def __init__(self, ev, n=1): self.left = n; super().__init__(**{ev: CtrlC.hit})
    def hit(self):
        self.left -= 1
        if self.left==0: signal.raise_signal(signal.SIGINT)

def seed_all(seed): random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)

def learner(train, path='.', seed=1, model=None, **kwargs):
    "A learner as a new process would make it: `train()` is its loader"
    seed_all(seed)
    return synth_learner(seed=seed, dls=DataLoaders(train(), device='cpu'), model=model and model(), path=path,
        **kwargs)

def whole(train, path, n_epoch=2, cbs=()):
    "Batches and learner of a run that nothing stopped"
    learn = learner(train, path/'whole').fit(n_epoch, cbs=[seen := Batches(), *cbs])
    return seen.seen,learn

def interrupted(learn, ev, n, n_epoch=2, cbs=()):
    with pytest.raises(KeyboardInterrupt): learn.fit(n_epoch, cbs=[seen := Batches(), CtrlC(ev, n), *cbs])
    return seen.seen

def died(learn, n, n_epoch=2, **kwargs):
    "A run that saved itself before each batch, and then died in the `n`-th"
    with pytest.raises(InterruptedError):
        learn.fit(n_epoch, cbs=[seen := Batches(), Checkpoint(every=1, unit='iter', on_exc=False, **kwargs),
            Raise('after_pred', InterruptedError, n)])
    return seen.seen

def resumed(learn, n_epoch=2):
    "The rest of it, in a new learner"
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*`raise`') # the callback that made it die is gone
        learn.fit(n_epoch, cbs=[seen := Batches(), Checkpoint(every=1, unit='iter')], resume=True)
    return seen.seen

def weights(learn): return {k:v.tolist() for k,v in learn.model.state_dict().items()}

loaded = [] # samples, in this process
class Points(Dataset):
    "Sample `i` is about `i`; workers may change the scale"
    def __init__(self, n=20, noise=0.): self.n,self.noise,self.scale = n,noise,1.
    def __len__(self): return self.n
    def __getitem__(self, i):
        loaded.append(i)
        return (torch.tensor([float(i)]) + self.noise*torch.rand(1))*self.scale/100,torch.tensor([i/50])

# Loaders
def double(worker): get_worker_info().dataset.scale = 2.

def test_workers_that_resume_are_initialized_by_the_function_of_the_user(tmp_path):
    def train(): return DataLoader(Points(noise=.5), 4, shuffle=True, num_workers=2, worker_init_fn=double)
    batches,learn = whole(train, tmp_path, 1, cbs=[Checkpoint(every=1, unit='iter')])
    before = died(learner(train, tmp_path), 4, n_epoch=1)
    other = learner(train, tmp_path, seed=2)
    assert (before+resumed(other, n_epoch=1)==batches and max(max(o) for o in batches)>.2
        and weights(other)==weights(learn))

def test_workers_leave_the_generator_of_a_macs_gpu_alone(tmp_path, monkeypatch):
    "They may have been forked"
    def only_here(*args): assert get_worker_info() is None; return torch.zeros(4, dtype=torch.uint8)
    for k in ('get_rng_state','set_rng_state','manual_seed'): monkeypatch.setattr(torch.mps, k, only_here)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: True)
    def train(): return DataLoader(Points(noise=.5), 4, num_workers=1)
    batches,_ = whole(train, tmp_path, 1, cbs=[Checkpoint(every=1, unit='iter')])
    assert died(learner(train, tmp_path), 3, n_epoch=1)+resumed(learner(train, tmp_path, seed=2), n_epoch=1)==batches

class Stream(IterableDataset):
    "Gives the numbers below `n`, knows how far it has come, and begins again when it was over"
    def __init__(self, n=10): self.n,self.i = n,0
    def __iter__(self):
        while self.i<self.n:
            self.i += 1
            yield torch.tensor([self.i/10]),torch.tensor([0.])
        self.i = 0
    def state_dict(self): return dict(i=self.i)
    def load_state_dict(self, state): self.i = state['i']

def stream(): return DataLoader(Stream(), 4) # the last batch has 2

@pytest.mark.parametrize('n', [2,3,5,6]) # before the last batch of the first epoch, in it, and the same in the second
def test_a_stream_that_has_ended_does_not_begin_again(n, tmp_path):
    batches,_ = whole(stream, tmp_path)
    assert [len(o) for o in batches]==[4,4,2]*2
    learn = learner(stream, tmp_path)
    before = interrupted(learn, 'after_pred', n)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches and learn.train_iter==6

def test_a_stream_that_had_ended_in_another_process_does_not_begin_again(tmp_path):
    batches,_ = whole(stream, tmp_path)
    learn = learner(stream, tmp_path)
    interrupted(learn, 'after_pred', 3) # when the last batch of the epoch is done, and nothing has asked for another
    learn.save_state('there')
    other = learner(stream, tmp_path, seed=2).load_state('there')
    other.resume(cbs=[seen := Batches()])
    assert seen.seen==batches[3:] and other.train_iter==6

class Rows:
    "A part of `Shards`, with a state only while it is iterated"
    at = None
    def state_dict(self):
        if self.at is None: raise RuntimeError('there is no state yet')
        return dict(at=self.at)
    def load_state_dict(self, state): self.at = state['at']

class Shards(IterableDataset):
    "As a stream of Hugging Face: it tells where its latest iterator is, and a state that is loaded is for the next"
    def __init__(self): self.rows,self.epoch,self.at,self.loaded = Rows(),0,dict(epoch=0, i=0),None
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self):
        begin = self.loaded['i'] if self.loaded and self.loaded['epoch']==self.epoch else 0
        for i in range(begin, 10):
            self.at = dict(epoch=self.epoch, i=i+1)
            yield torch.tensor([i/10+self.epoch]),torch.tensor([0.])
    def state_dict(self): return dict(self.at)
    def load_state_dict(self, state): self.loaded = state

def shards(): return DataLoader(Shards(), 4)

@pytest.mark.parametrize('n', [2,3,5]) # within an epoch, in its last batch, in the second
def test_a_stream_that_loads_a_state_for_its_next_iterator_goes_on(n, tmp_path):
    batches,_ = whole(shards, tmp_path)
    assert [len(o) for o in batches]==[4,4,2]*2
    learn = learner(shards, tmp_path)
    before = interrupted(learn, 'after_pred', n)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches and learn.train_iter==6
    before = died(learner(shards, tmp_path), n)
    assert before+resumed(learner(shards, tmp_path, seed=2))==batches

class OwnIterator:
    "Begins anew with each `iter`, and is its own iterator, as what copies batches to a device ahead of time"
    def __init__(self, dl): self.dl = dl
    def __len__(self): return len(self.dl)
    def __iter__(self): self.it = iter(self.dl); return self
    def __next__(self): return next(self.it)

class AlsoNext(OwnIterator):
    "Gives one batch at a time, too, from a pass of its own"
    def __iter__(self): return iter(self.dl)
    def __next__(self): return next(iter(self.dl))

@pytest.mark.parametrize('kind', [OwnIterator, AlsoNext])
@pytest.mark.parametrize('ev,n', [('after_pred', 2), ('after_batch', 2), ('after_batch', 3), ('after_draw', 5)])
def test_a_loader_that_is_its_own_iterator_and_starts_anew_goes_on(ev, n, kind, tmp_path):
    def train(): return kind(DataLoader(Points(), 4, shuffle=True))
    batches,ref = whole(train, tmp_path)
    learn = learner(train, tmp_path)
    before = interrupted(learn, ev, n)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches and learn.train_iter==ref.train_iter
    assert all(map(torch.equal, learn.model.state_dict().values(), ref.model.state_dict().values()))

class Drifts:
    "An augmentation with a state, which the dataset does not save with its own"
    def __init__(self): self.n = 0
    def __call__(self, x): self.n += 1; return x+self.n
    def state_dict(self): return dict(n=self.n)
    def load_state_dict(self, state): self.n = state['n']

class Drifting(Points):
    def __init__(self): super().__init__(); self.drift,self.calls = Drifts(),0
    def __getitem__(self, i):
        self.calls += 1
        x,y = super().__getitem__(i)
        return self.drift(x)/10,y
    def state_dict(self): return dict(calls=self.calls)
    def load_state_dict(self, state): self.calls = state['calls']

@pytest.mark.parametrize('n', [2,5,7])
def test_what_has_a_state_inside_of_what_has_one_resumes_too(n, tmp_path):
    def train(): return DataLoader(Drifting(), 4)
    batches,_ = whole(train, tmp_path)
    learn = learner(train, tmp_path)
    before = interrupted(learn, 'after_pred', n)
    learn.get_preds(0)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches
    assert died(learner(train, tmp_path), n)+resumed(learner(train, tmp_path, seed=2))==batches

class Ahead:
    "A loader that has read one batch more from its source, which has a state too"
    class Source:
        i = 0
        def next(self): self.i += 1; return self.i
        def state_dict(self): return dict(i=self.i)
        def load_state_dict(self, state): self.i = state['i']
    def __init__(self): self.source,self.n,self.fresh = Ahead.Source(),0,True
    def __len__(self): return 6
    def __iter__(self):
        if self.fresh: self.n = self.source.i = 0
        self.fresh,following = True,self.source.next()
        while self.n<6:
            b,following = following,self.source.next()
            self.n += 1
            yield torch.tensor([[b/10]]),torch.zeros(1, 1)
    def state_dict(self): return dict(n=self.n)
    def load_state_dict(self, state): self.n = self.source.i = state['n']; self.fresh = False

@pytest.mark.parametrize('n', [2,4,9])
def test_a_loader_places_what_it_reads_from(n, tmp_path):
    batches,_ = whole(Ahead, tmp_path)
    learn = learner(Ahead, tmp_path)
    before = interrupted(learn, 'after_pred', n)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches

class Reseeds(Drifts):
    "Restoring it moves the generator that it holds"
    def __init__(self): super().__init__(); self.rng = torch.Generator().manual_seed(0)
    def load_state_dict(self, state): super().load_state_dict(state); self.rng.manual_seed(self.n)

def test_what_restoring_an_object_moves_inside_of_it_is_restored_too(tmp_path):
    class Noisy(Points):
        def __init__(self, aug, draws): super().__init__(); self.aug,self.draws = aug,draws
        def __getitem__(self, i):
            self.aug.n += 1
            x,y = super().__getitem__(i)
            return x + (torch.rand(1, generator=self.aug.rng) if self.draws else 0),y
    def run(*cbs):
        aug = Reseeds()
        learn = learner(lambda: DataLoader(Noisy(aug, True), 4), tmp_path)
        learn.dls = DataLoaders(learn.dls.train, DataLoader(Noisy(aug, False), 4), device='cpu')
        learn.fit(2, cbs=[seen := Batches(), *cbs])
        return seen.seen
    assert run()==run(on('after_batch')(lambda learn: learn.training and learn.iter==2 and learn.validate()))

class Eager:
    "A loader that looks at once where its dataset is, which counts"
    class Place: pos = 0
    def __init__(self): self.dataset = Eager.Place()
    def __len__(self): return 3
    def __iter__(self):
        start = self.dataset.pos%3
        def rest():
            for _ in range(start, 3):
                self.dataset.pos += 1
                yield torch.tensor([[self.dataset.pos/10]]),torch.zeros(1, 1)
        return rest()
    def state_dict(self): return dict(pos=self.dataset.pos)
    def load_state_dict(self, state): self.dataset.pos = state['pos']

@pytest.mark.parametrize('n', [2,5])
def test_a_loader_that_counts_in_its_dataset_begins_where_its_state_says(n, tmp_path):
    batches,_ = whole(Eager, tmp_path)
    assert died(learner(Eager, tmp_path), n)+resumed(learner(Eager, tmp_path, seed=2))==batches

def test_a_loader_whose_batches_can_be_taken_once_resumes_with_the_next_one(tmp_path):
    def train(): return iter([(torch.tensor([[float(i)]]),torch.zeros(1, 1)) for i in range(6)])
    learn = learner(train, tmp_path)
    before = interrupted(learn, 'after_pred', 2, n_epoch=1)
    learn.resume(cbs=[seen := Batches()])
    assert before+seen.seen==[[float(i)] for i in range(6)]

def test_a_loader_that_knows_its_place_is_put_back_there_not_gone_over(tmp_path):
    class Knows:
        "A loader with a state of its own"
        drawn = 0
        def __init__(self): self.i = 0
        def __len__(self): return 5
        def __iter__(self):
            while self.i<5:
                self.i += 1; Knows.drawn += 1
                yield torch.full((2,1), self.i/5),torch.zeros(2, 1)
            self.i = 0
        def state_dict(self): return dict(i=self.i)
        def load_state_dict(self, state): self.i = state['i']
    batches,_ = whole(Knows, tmp_path)
    before = died(learner(Knows, tmp_path), 8)
    Knows.drawn = 0
    assert before+resumed(learner(Knows, tmp_path, seed=2))==batches and Knows.drawn==3

def test_a_loader_with_a_way_of_its_own_keeps_it(tmp_path):
    class Halved(DataLoader):
        def __iter__(self):
            for x,y in super().__iter__(): yield x/2,y
    def train(): return Halved(Points(), 4, shuffle=True)
    batches,_ = whole(train, tmp_path)
    assert max(max(o) for o in batches)<.1
    before = died(learner(train, tmp_path), 8)
    with pytest.warns(UserWarning): after = resumed(learner(train, tmp_path, seed=2)) # it has to be gone over again
    assert before+after==batches

@pytest.mark.parametrize('loader', [lambda: DataLoader(Points(8), batch_size=None, shuffle=True),
    lambda: DataLoader(Points(), 4, shuffle=True, drop_last=True), lambda: DataLoader(Points(18), 4)],
    ids=['no batches','shuffled','in order'])
def test_batches_before_the_place_are_not_loaded_again(loader, tmp_path):
    batches,_ = whole(loader, tmp_path)
    n = len(batches)*3//4
    before = died(learner(loader, tmp_path), n+1)
    loaded.clear()
    after = resumed(learner(loader, tmp_path, seed=2))
    assert before+after==batches and len(before)==n and len(loaded)==sum(map(len, after))

def test_a_loader_that_has_become_shorter_ends_the_epoch(tmp_path):
    died(learner(lambda: DataLoader(Points(20), 4), tmp_path), 5)
    learn = learner(lambda: DataLoader(Points(8), 4), tmp_path, seed=2)
    with pytest.warns(UserWarning, match='`batches`'), warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*batch 3 had samples')
        seen = resumed(learn)
    assert [[round(o*100) for o in b] for b in seen]==[[0,1,2,3],[4,5,6,7]] # those of the second epoch

@pytest.mark.parametrize('workers,prefetch', [(0,None), (1,2), (2,3)])
def test_the_samples_of_each_batch_are_known_however_many_are_prefetched(workers, prefetch, tmp_path):
    ids,inputs = [],[]
    @on(event.after_batch)
    def note(learn):
        ids.append(learn.idxs)
        inputs.append([round(o*100) for o in learn.x.flatten().tolist()])
    learner(lambda: DataLoader(Points(32), 2, shuffle=True, num_workers=workers, prefetch_factor=prefetch),
        tmp_path).fit(1, cbs=note)
    assert ids==inputs and len(ids)==16

def test_persistent_workers_that_are_lost_are_said_and_the_samples_stay_the_same(tmp_path):
    def train(): return DataLoader(Points(16), 4, shuffle=True, num_workers=1, persistent_workers=True)
    batches,_ = whole(train, tmp_path)
    learn = learner(train, tmp_path)
    before = interrupted(learn, 'after_pred', 6)
    learn.save_state('there')
    other = learner(train, tmp_path, seed=2).load_state('there')
    with pytest.warns(UserWarning, match='workers'): other.resume(cbs=[seen := Batches()])
    assert before+seen.seen==batches
    for o in (learn,other): o.dls.train._iterator = None

class Listed(Sampler):
    "Gives the indices of a list"
    def __init__(self, order): self.order = order
    def __len__(self): return len(self.order)
    def __iter__(self): return iter(self.order)

@pytest.mark.parametrize('order,match', [(range(16), None), (range(15, -1, -1), '`sampler.order`')],
    ids=['the same','another'])
def test_a_sampler_that_is_another_in_the_next_epoch_is_said(order, match, tmp_path):
    "Between two epochs no batch says so"
    def train(order): return lambda: DataLoader(Points(16), 4, sampler=Listed([*order]))
    learn = learner(train(range(16)), tmp_path)
    interrupted(learn, 'after_epoch', 1)
    learn.save_state('there')
    other = learner(train(order), tmp_path, seed=2).load_state('there')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        other.resume(cbs=[])
    assert len(said)==(match is not None) and all(match in str(o.message) for o in said)

class HardExamples(Callback):
    "Samples of a batch that was trained on weigh more from `ev` on: in the sampler's own tensor, or in a new one"
    only_fit,run_valid = True,False
    def __init__(self, ev, in_place): self.in_place = in_place; super().__init__(**{ev: HardExamples.weigh})
    def weigh(self):
        sampler = self.learn.dls.train.batch_sampler.sampler
        if not self.in_place: sampler.weights = sampler.weights.clone()
        sampler.weights[self.learn.idxs or [0]] += 10

@pytest.mark.parametrize('n', range(1, 9))
@pytest.mark.parametrize('ev,in_place', [('after_batch', True), ('after_batch', False), ('before_draw', True)])
def test_the_rest_of_an_epoch_is_drawn_from_the_weights_that_it_began_with(n, ev, in_place):
    "A callback has changed them since; the changed ones are for the next epoch"
    def train(): return weighted_dl(Points(16), 4, torch.arange(1, 17))
    def cbs(): return [seen := Batches(), HardExamples(ev, in_place)],seen.seen
    def chosen(o): return o.dls.train.batch_sampler.sampler.weights.tolist()
    both,batches = cbs()
    learn = learner(train).fit(3, cbs=both)
    both,first = cbs()
    stopped = learner(train)
    with pytest.raises(KeyboardInterrupt): stopped.fit(3, cbs=[*both, CtrlC('after_pred', n)])
    both,then = cbs()
    with pytest.raises(KeyboardInterrupt): stopped.resume(cbs=[*both, CtrlC('after_pred', 2)])
    both,rest = cbs()
    stopped.resume(cbs=both)
    assert first+then+rest==batches and chosen(stopped)==chosen(learn) and weights(stopped)==weights(learn)

def test_samples_that_are_removed_while_a_run_is_stopped_are_not_drawn():
    points = Points(16)
    learn = learner(lambda: weighted_dl(points, 4, torch.ones(16)))
    interrupted(learn, 'after_pred', 2)
    points.n = 8
    learn.dls.train.batch_sampler.sampler.weights = torch.ones(8)
    loaded.clear()
    with pytest.warns(UserWarning, match='gives other batches'): learn.resume(cbs=[])
    assert loaded and max(loaded)<8

class ByWeight(Sampler):
    def __init__(self): self.w = torch.ones(16)
    def __len__(self): return 16
    def __iter__(self): return iter(torch.multinomial(self.w, 16, True).tolist())
class ByWeightKept(ByWeight):
    def state_dict(self): return dict(w=self.w.clone())
    def load_state_dict(self, state): self.w = state['w'].clone()

@pytest.mark.parametrize('cls', [ByWeight,ByWeightKept])
def test_a_sampler_whose_weights_the_run_changes_needs_a_state(cls):
    "The order of the epoch was drawn before"
    def run(*more):
        class Reweigh(Callback):
            run_valid = False
            def after_batch(self): self.dls.train.sampler.w[self.idxs] = 1e3
        learn = learner(lambda: DataLoader(Points(16), 4, sampler=cls()), cbs=Reweigh)
        if not more: return learn.fit(2)
        interrupted(learn, 'after_batch', 2)
        return learn
    whole,learn = run(),run('stop')
    if cls is ByWeight:
        with pytest.warns(UserWarning, match=r'what its sampler draws by\? A sampler with `state_dict`'):
            learn.resume(cbs=[])
    else:
        learn.resume(cbs=[])
        assert weights(learn)==weights(whole)

class Raising(Sampler):
    "A batch sampler that raises weights when a pass begins"
    def __init__(self, sampler): self.sampler = sampler
    def __len__(self): return 4
    def __iter__(self):
        self.sampler.weights[:8] += 30
        idxs = [*self.sampler]
        for i in range(0, 16, 4): yield idxs[i:i+4]

def test_weights_that_a_pass_begins_with_stay_those():
    def train():
        return DataLoader(Points(16), batch_sampler=Raising(WeightedRandomSampler(torch.arange(1.,17), 16)))
    batches,learn = whole(train, Path('.'))
    stopped = learner(train)
    first = interrupted(stopped, 'after_pred', 1)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt): stopped.resume(cbs=[then := Batches(), CtrlC('after_pred', 1)])
        first += then.seen
    stopped.resume(cbs=[rest := Batches()])
    assert first+rest.seen==batches and weights(stopped)==weights(learn)

# Positions
class Counts(Callback):
    "Counts in `learn.state`, in place, whatever happens, and reports each validation batch"
    def before_fit(self):
        if not self.learn.state:
            self.learn.state.update(array=np.zeros(2), tensor=torch.zeros(2),
                nested=dict(list=[0], inner=[np.zeros(1)]))
    def after_batch(self):
        s = self.learn.state
        s.array[0] += 1; s.tensor[0] += 1; s.nested['list'][0] += 1; s.nested['inner'][0][0] += 1

def counted(learn): s = learn.state; return s.array[0],s.tensor[0].item(),s.nested['list'][0],s.nested['inner'][0][0]

def test_what_is_counted_in_place_in_the_state_of_ones_own_is_that_of_the_position():
    "An error in the validation: the fit resumes before it, and the batches of the validation count once"
    learn = synth_learner(n_train=4, n_valid=3)
    # the second of the validation
    with pytest.raises(InterruptedError): learn.fit(2, cbs=[Counts(), Raise('after_pred', InterruptedError, n=6)])
    assert counted(learn)==(4,)*4
    learn.resume(cbs=[Counts()])
    assert counted(learn)==(14,)*4

def test_a_position_does_not_share_the_state_of_ones_own():
    "What is changed in place after a run has stopped for now does not change what was saved of it"
    learn = synth_learner(n_train=4, n_valid=0)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=[Counts(), CtrlC('after_pred', 3)])
    kept = learn.at.state
    for o in (learn.state.array,learn.state.tensor): o += 100
    assert kept['array'][0]==kept['tensor'][0]==3
    learn.resume(cbs=[Counts()]) # with what has been changed meanwhile
    assert learn.state.array.tolist()==[108,100] and learn.state.tensor.tolist()==[108,100]

def two_groups(m): return [[m.a],[m.b]]

def test_what_callbacks_do_when_a_fit_has_stopped_is_undone():
    """A run that ended for now resumes with the weights and the optimizer of that moment: momentum of parameters that
    were frozen then is not kept"""
    class Enough(Callback):
        def before_draw(self):
            if self.learn.training and self.learn.train_iter==3:
                self.learn.at_pause(lambda: self.learn.stop_for_now('enough'))
        def after_fit(self):
            if self.learn.train_iter!=3: return
            for p in self.learn.model.parameters(): p.requires_grad_().grad = torch.ones_like(p)
            self.learn.opt.step(); self.learn.opt.zero_grad()
            self.learn.model.a.requires_grad_(False)
    def made():
        return synth_learner(n_train=4, n_valid=0, splitter=two_groups, opt_func=lambda ps,lr=.05: SGD(ps, lr, mom=.9))
    ref = made(); ref.freeze(); ref.fit(2)
    learn = made(); learn.freeze(); learn.fit(2, cbs=Enough())
    assert learn.train_iter==3 and len(learn.opt.state)==2
    learn.resume(cbs=[])
    assert [*learn.opt.state]==[learn.model.b] and weights(learn)==weights(ref)

# Interrupts
@pytest.mark.parametrize('where', ['before_fit','before_epoch','after_epoch','before_train','cleanup_train'])
def test_ctrl_c_while_a_function_registers_inside_a_fit_is_not_lost(where):
    "A handler of `after_create` runs while `learn.on` registers it"
    pressed = []
    def register(self):
        @self.learn.on(event.after_create)
        def note(learn):
            pressed.append(where)
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): synth_learner(n_train=2, n_valid=0).fit(1, cbs=Callback(**{where: register}))
    assert pressed==[where]

# Files
def checkpointed(path, seed=1, n=7, **kwargs):
    "The files of a run that saved itself before each batch and died in the `n`-th"
    died(learner(points, path, seed), n, keep=None, **kwargs)
    return Checkpoints(path/'checkpoints')

def points(): return DataLoader(Points(16), 4, shuffle=True)

@pytest.mark.parametrize('other', ['an older file of the run','a file of another run'])
def test_a_whole_file_that_is_not_the_one_that_was_written_is_passed_over(other, tmp_path):
    "It can be read, but is not what the manifest lists: the run resumes from the file before, and ends alike"
    batches,whole_learn = whole(points, tmp_path)
    files = checkpointed(tmp_path)
    names = [o.name for o in files.found]
    source = (files.folder/names[1]
        if other=='an older file of the run' else checkpointed(tmp_path/'other', seed=5).found[-1])
    shutil.copy(source, files.folder/names[-1])
    learn = learner(points, tmp_path, seed=2)
    with pytest.warns(UserWarning, match=names[-1]): seen = resumed(learn)
    assert seen==batches[5:] and weights(learn)==weights(whole_learn)

def test_files_that_nobody_touched_are_taken_without_a_word(tmp_path):
    batches,_ = whole(points, tmp_path)
    checkpointed(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert resumed(learner(points, tmp_path, seed=2))==batches[6:]

def test_a_manifest_that_is_deleted_during_a_fit_is_no_second_fit(tmp_path):
    "The list is then made of the files in the folder, some of which it did not have before"
    folder = tmp_path/'checkpoints'
    learner(points, tmp_path).fit(1, cbs=Checkpoint)
    shutil.copy(next(folder.glob('*.pt')), folder/'00001-abcdef-epoch0-iter1.pt')
    @on('after_epoch')
    def deleted(learn):
        if learn.epoch==0: os.remove(folder/'manifest.json')
    with warnings.catch_warnings():
        warnings.filterwarnings('error', 'Another fit is writing')
        learner(points, tmp_path).fit(2, cbs=[Checkpoint, deleted])

class Remembers(nn.Module):
    """Keeps its last outputs in buffers that are in no `state_dict`: one that has no value at first, one whose shape
    is that of the batch"""
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.register_buffer('first', None, persistent=False)
        self.register_buffer('last', torch.zeros(1, 1), persistent=False)
    def forward(self, x):
        y = self.a*x + self.last.mean()
        if self.training:
            self.last = y.detach()
            if self.first is None: self.first = y.detach()
        return y

@pytest.mark.parametrize('how', ['file','checkpoint'])
def test_hidden_buffers_of_other_shapes_come_back(how, tmp_path):
    "In a new process they have the shapes that they begin with"
    whole_learn = learner(points, tmp_path, model=Remembers).fit(2)
    learn = learner(points, tmp_path, model=Remembers)
    if how=='file':
        interrupted(learn, 'after_pred', 6)
        learn.save_state('there')
        other = learner(points, tmp_path, seed=2, model=Remembers).load_state('there')
        assert (other.model.last.shape==(4,1) and torch.equal(other.model.last, learn.model.last)
            and torch.equal(other.model.first, learn.model.first))
        other.resume()
    else:
        died(learn, 6)
        other = learner(points, tmp_path, seed=2, model=Remembers)
        resumed(other)
    assert (weights(other)==weights(whole_learn) and torch.equal(other.model.last, whole_learn.model.last)
        and torch.equal(other.model.first, whole_learn.model.first))

def test_hidden_buffers_that_a_model_does_not_have_are_left_out(tmp_path):
    learn = learner(points, tmp_path, model=Remembers).fit(1)
    learn.save_state('there')
    class Forgets(Remembers):
        def __init__(self): super().__init__(); del self.first
    other = learner(points, tmp_path, model=Forgets)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # the class is another one
        other.load_state('there')
    assert not hasattr(other.model, 'first') and torch.equal(other.model.last, learn.model.last)

class StopIn(Callback):
    "Stop for now in the `n`-th batch of training or validation, counted together"
    def __init__(self, n): self.n = n
    def after_batch(self):
        self.n -= 1
        if not self.n: self.learn.at_pause(self.learn.stop_for_now, stops=True)

@pytest.mark.parametrize('technique', [lambda: EMA(.6), lambda: EMA(.6, validate='both'),
    lambda: SWA(start=0, every=1, validate=True)], ids=['EMA','both','SWA'])
@pytest.mark.parametrize('n,cbs', [(11, []), (3, [lambda: Validate(every=2, unit='iter')])], ids=['epoch','inside'])
def test_a_stop_in_a_validation_with_averaged_weights_resumes_from_those_that_are_trained(n, cbs, technique):
    def mk(): return synth_learner(cbs=[technique(), *(f() for f in cbs)]) # seeds what draws the order
    whole = mk().fit(3)
    cut = mk().fit(3, cbs=(stop := StopIn(n)))
    assert stop.n==0 and cut.at is not None
    cut.resume(cbs=[])
    assert [*map(torch.equal, whole.model.parameters(), cut.model.parameters())]==[True,True]
    assert [o.valid_loss for o in whole.recorder.rows]==[o.valid_loss for o in cut.recorder.rows]

# What optimizers count themselves, where the best weights are loaded with their optimizer at the end of a fit
class Growing(torch.optim.SGD):
    "Steps that grow by their number, which its `state_dict` has"
    def __init__(self, params, lr=.01): super().__init__(params, lr=lr); self.n = 0
    def step(self, closure=None):
        self.n += 1
        for g in self.param_groups: g['lr'] = .01*self.n
        return super().step(closure)
    def state_dict(self): return super().state_dict() | dict(n=self.n)
    def load_state_dict(self, state):
        self.n = state['n']
        super().load_state_dict({k:v for k,v in state.items() if k!='n'})

def halves(groups):
    return OptimList(torch.optim.SGD(groups[:1], lr=.05), torch.optim.Adam(groups[1:], lr=.01), every=[1,2])

@pytest.mark.parametrize('opt_func', [Growing, halves], ids=['own','list'])
def test_counts_of_optimizers_are_those_of_the_stop(tmp_path, opt_func):
    torch.manual_seed(0)
    x,y = torch.randn(24, 4),torch.randn(24, 1)
    batches = [(x[i:i+4], y[i:i+4]) for i in range(0, 24, 4)]
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        return Learner(DataLoaders(batches, batches, device='cpu'), model, nn.MSELoss(), opt_func=opt_func,
            splitter=lambda m: [[*m[0].parameters()], [*m[2].parameters()]], path=tmp_path).remove_cb(ProgressCallback)
    def stop(learn):
        if learn.training and learn.train_iter==9: learn.stop_soon()
    whole,learn = make(),make()
    for o,cbs in ((whole, []), (learn, [on(event.after_batch, order=3000)(stop)])):
        o.fit(3, cbs=[SaveModelCallback(with_opt=True), *cbs])
    learn.resume()
    assert learn.opt.n==whole.opt.n
    for a,b in zip(learn.model.parameters(), whole.model.parameters()): assert torch.equal(a, b)

class Counting(torch.optim.SGD):
    "Each third step is larger; its counter is called like the arguments that it passes on"
    def __init__(self, params, *n, **k): super().__init__(params, *n, **k); self.k = self.n = 0
    def step(self, closure=None):
        self.k,self.n = self.k+1,self.n+1
        for g in self.param_groups: g['lr'] = .01*(1+(self.k+self.n)%3)
        return super().step(closure)

def test_a_counter_of_an_optimizer_may_be_called_like_its_passed_on_arguments(tmp_path):
    def make(): return synth_learner(opt_func=Counting, n_train=4, n_valid=0, path=tmp_path)
    def weights(learn): return [p.tolist() for p in learn.model.parameters()]
    stop = on(event.after_batch(once=4, unit='iter'))(lambda learn: learn.stop_soon())
    whole,learn = make().fit(2),make().fit(2, cbs=stop)
    learn.save_state('here')
    again = make().load_state('here').resume(cbs=())
    assert (again.opt.k, again.opt.n)==(8, 8) and weights(again)==weights(whole)

# Functions with filters at events that a fit which resumes fires again, on its way to where the run was stopped
@pytest.mark.sample(2)
@pytest.mark.parametrize('given', [dict(once=3), dict(every=2), dict(after=2), dict(once=3, unit='epoch'),
    dict(when=lambda f, learn: f.num_executed<2)], ids=['once','every','after','epoch','when'])
@pytest.mark.parametrize('ev', ['before_epoch','before_train'])
def test_an_event_that_is_fired_again_is_no_further_call(tmp_path, ev, given):
    def made(folder):
        torch.manual_seed(0)
        batches = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(3)]
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        return Learner(DataLoaders(batches, batches[:1], device='cpu'), model, nn.MSELoss(), opt_func=SGD, lr=.1,
            splitter=lambda m: [[*m[0].parameters()], [*m[1].parameters()]], path=folder
            ).remove_cb(ProgressCallback).freeze()
    def cbs(stop=None):
        def thaw(learn): learn.unfreeze()
        def halt(learn):
            if learn.training and learn.train_iter==stop: learn.stop_soon()
        return [on(getattr(event, ev)(**given))(thaw), on(event.after_batch)(halt), Checkpoint(every=10)]
    whole = made(tmp_path/'whole').fit(4, cbs=cbs())
    for stop in 1,4,7,9,10:
        learn = made(tmp_path/str(stop)).fit(4, cbs=cbs(stop))
        other = made(tmp_path/str(stop)).fit(4, cbs=cbs(), resume=True) # in memory and from a file
        for o in (learn.resume(), other): assert weights(o)==weights(whole),stop

@pytest.mark.parametrize('every', [None, 3], ids=['after the epoch','within it'])
@pytest.mark.parametrize('how', ['soon','now'])
def test_what_a_cut_validation_has_counted_in_the_state_counts_once(how, every):
    "It begins again where the run resumes; what `after_fit` writes into the state stays"
    class Counts(Callback):
        def after_batch(self):
            if not self.training: self.learn.state.n += 1
        def after_fit(self): self.learn.state.ends = self.learn.state.get('ends', 0) + 1
    def run(stop):
        learn,stops = synth_learner(n_train=4, n_valid=4),[]
        learn.state.n = 0
        def cut(learn):
            if learn.training or learn.epoch!=1 or learn.iter!=1 or stops or not stop: return
            stops.append(1)
            learn.stop_soon() if how=='soon' else learn.stop_for_now()
        cbs = [Counts(), on(event.after_batch)(cut), *([Validate(every=every, unit='iter')] if every else [])]
        learn.fit(3, cbs=cbs)
        if stop:
            assert stops and learn.at.next==('batch' if every else 'validate') and learn.state.ends==1
            learn.resume()
        return learn.state.n
    assert run(True)==run(False)

# What fails leaves what was there
@pytest.mark.parametrize('e', [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize('call', [lambda l,cb: l.validate(cbs=cb), lambda l,cb: l.get_preds(cbs=cb)],
    ids=['validate','get_preds'])
@pytest.mark.parametrize('ev', ['before_validate','after_pred','after_validate','cleanup_fit'])
def test_results_stay_if_an_inference_fails(e, call, ev):
    learn = synth_learner().fit(1)
    was = dict(learn.results)
    with pytest.raises(e): call(learn, Raise(ev, e))
    assert dict(learn.results)==was and 'valid_loss' in was
    assert dict(learn.validate())==dict(learn.results)

class Fails(Callback):
    "Fails in its first fit"
    def __init__(self, ev): self.left = 1; super().__init__(**{ev: Fails.fail})
    def fail(self):
        self.left -= 1
        if self.left>=0: raise ValueError('not set up')

@pytest.mark.parametrize('ev,kept', [('before_fit', True), ('before_epoch', True), ('before_train', True),
    ('before_batch', False)])
@pytest.mark.parametrize('how', ['stop','file'])
def test_the_callbacks_of_a_fit_stay_until_a_resume_trains_on(ev, kept, how, tmp_path):
    "Then those of the resume take their place"
    learn = synth_learner(path=tmp_path)
    stop = on(event.after_batch(once=3, unit='iter'))(lambda learn: learn.stop_soon())
    learn.fit_one_cycle(2, .1, cbs=stop)
    if how=='file':
        learn.save_state('here')
        learn.load_state('here') # a file has no callbacks
    with pytest.raises(ValueError, match='not set up'), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.resume(cbs=[Fails(ev)])
    kinds,kept = [type(o) for o in learn.route.stopped.cbs],kept and how=='stop'
    assert (ParamScheduler in kinds)==kept and (Fails in kinds)!=kept
    learn.resume()
    assert learn.epoch==1 and len(learn.recorder.hps.get('lr', ()))==kept*learn.train_iter

# Cancels on the way back
def same_weights(a, b): return all(map(torch.equal, a.model.parameters(), b.model.parameters()))

def n_at_random(ev, cancel):
    "A callback that cancels now and then, but not the first time"
    def f(self):
        if random.random()<.3 and self.learn.train_iter: raise cancel
    return type('Skips', (Callback,), {ev: f})

@pytest.mark.filterwarnings('error:`Cancel.* on the way to where the run was stopped')
@pytest.mark.parametrize('seed', [2, 4])
@pytest.mark.parametrize('ev,cancel', [('before_epoch', CancelEpochException), ('before_train', CancelEpochException),
    ('before_train', CancelTrainException)])
def test_an_epoch_that_is_skipped_at_random_is_no_other_in_a_run_that_resumes(ev, cancel, seed):
    def run(*cbs):
        learn = synth_learner()
        random.seed(seed)
        return learn.fit(4, cbs=[n_at_random(ev, cancel), *cbs])
    whole,n = run(),len(synth_learner().dls.train)
    learn = run(on(event.after_batch(once=n+1, unit='iter'))(lambda learn: learn.stop_soon()))
    learn.resume()
    assert learn.train_iter==whole.train_iter<4*n and same_weights(learn, whole)

def stopped_in_epoch_1():
    learn = synth_learner()
    return learn.fit(2, cbs=on(event.after_batch(once=len(learn.dls.train)+1, unit='iter'))(lambda o: o.stop_soon()))

def test_a_cancel_that_comes_too_late_to_skip_an_epoch_is_named():
    learn = stopped_in_epoch_1()
    with pytest.warns(UserWarning, match='`CancelEpochException` was raised by `Raise.before_epoch` on the way'):
        learn.resume(cbs=Raise('before_epoch', CancelEpochException))

class SkipsSecond(Callback):
    _stateattrs = 'n',
    n = 0
    def before_epoch(self):
        self.n += 1
        if self.n==2: raise CancelEpochException

@pytest.mark.filterwarnings('error:`Cancel.* on the way to where the run was stopped')
def test_an_epoch_that_is_skipped_by_a_count_is_no_other_in_a_run_that_goes_back():
    whole = synth_learner().fit(3, cbs=SkipsSecond())
    n = whole.train_iter//2
    learn = synth_learner().fit(3, cbs=[SkipsSecond(), Rewind(2, keep=99)])
    for i in (1, n, n+1): assert same_weights(learn.rewind(i).resume(), whole)

@pytest.mark.parametrize('ev,cancel', [('before_fit', CancelEpochException), ('before_fit', CancelTrainException),
    ('before_epoch', CancelTrainException)])
def test_on_the_way_back_too_a_cancel_of_what_is_not_running_is_an_error(ev, cancel):
    learn = stopped_in_epoch_1()
    with pytest.raises(RuntimeError, match=f'`{cancel.__name__}` was raised by `Raise.{ev}`, where no'):
        learn.resume(cbs=Raise(ev, cancel))

@pytest.mark.parametrize('ev', ['before_fit','before_epoch','before_train'])
def test_a_run_is_not_lost_if_the_fit_is_cancelled_on_the_way_back_to_it(ev):
    learn,whole = stopped_in_epoch_1(),synth_learner().fit(2)
    with pytest.warns(UserWarning, match=r'The fit was cancelled on the way to .*, in epoch 1, after batch 1: `learn'):
        learn.resume(cbs=Raise(ev, CancelFitException))
    assert same_weights(learn.resume(), whole)

@pytest.mark.parametrize('where', ['memory','file'])
@pytest.mark.parametrize('given', [{'mine': 1.}, None, {0: 1}], ids=str)
def test_results_that_a_callback_has_set_come_back_as_they_were(where, given, tmp_path):
    def put(cb): cb.learn.results = given
    def make(): return synth_learner(path=tmp_path, cbs=Callback(after_epoch=put))
    learn,seen = make(),[]
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=[Checkpoint(), CtrlC('before_batch', 14)])
    assert learn.epoch==1
    def see(cb): seen.append(cb.learn.results)
    if where=='memory': learn.resume(cbs=Callback(before_batch=see))
    else: make().fit(2, cbs=[Checkpoint(), Callback(before_batch=see)], resume=True)
    assert seen[0]==given and type(seen[0]) is type(given)

class Rollout(Callback):
    "Data from the model for each epoch, as in `concepts/05_data`"
    _stateattrs,data = ('data',),None
    def use(self): self.learn.dls = DataLoaders([*zip(*(o.split(4) for o in self.data))], device='cpu')
    def before_epoch(self):
        if not self.resuming: self.make()
        if self.data is not None: self.use()
    def make(self):
        x = torch.randn(16, 1)
        with torch.no_grad(): self.data = x,self.model(x) + torch.randn(16, 1)
    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.data is not None and self.learn.mode=='fit': self.use()

@pytest.mark.parametrize('n', range(1, 9))
@pytest.mark.parametrize('where', ['memory','file'])
def test_data_made_from_the_model_come_back_as_state_of_their_callback(n, where, tmp_path):
    def new(): return learner(lambda: [(torch.ones(4, 1), torch.ones(4, 1))]*4, tmp_path)
    expected = new().fit(2, cbs=Rollout)
    learn = new()
    if where=='memory':
        interrupted(learn, 'after_batch', n, cbs=[Rollout()])
        learn.resume(cbs=Rollout)
    else:
        with pytest.raises(InterruptedError): learn.fit(2, cbs=[Rollout(),
            Checkpoint(every=1, unit='iter', on_exc=False), Raise('after_pred', InterruptedError, n)])
        learn = new().fit(2, cbs=[Rollout(), Checkpoint(every=1, unit='iter', on_exc=False)], resume='auto')
    assert weights(learn)==weights(expected) and learn.recorder.raw_losses==expected.recorder.raw_losses

def test_batches_that_a_callback_has_made_and_did_not_keep_are_told_of(tmp_path):
    class Forgetful(Rollout): _stateattrs = ()
    def new(): return learner(lambda: [(torch.ones(4, 1), torch.ones(4, 1))]*4, tmp_path)
    save = Checkpoint(every=1, unit='iter', on_exc=False)
    stop = Raise('after_pred', InterruptedError, 6)
    with pytest.raises(InterruptedError): new().fit(2, cbs=[Forgetful(), save, stop])
    with pytest.warns(UserWarning, match=r'`batches\[0\]` of the training loader changed during the run'):
        new().fit(2, cbs=[Forgetful(), save], resume='auto')

