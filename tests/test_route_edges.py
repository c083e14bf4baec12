"Stops and errors where a run is seldom stopped: the position is right, or there is none"
import random
import numpy as np, pytest, torch
from torch.utils.data import DataLoader,Dataset
from learner.all import *

def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def same(a, b): return all(map(torch.equal, weights(a), weights(b)))
class Failure(Exception): pass
def fails(ev, when): return Callback(**{ev: lambda self: when(self.learn) and raise_failure()})
def raise_failure(): raise Failure

def test_a_validation_that_fails_again_after_a_resume_can_be_resumed_again():
    whole = synth_learner(4, 2).fit(2)
    learn,left = synth_learner(4, 2),[3]
    def bad(learn):
        if not learn.training and left[0]: left[0] -= 1; return True
    cb = fails('after_pred', bad)
    with pytest.raises(Failure): learn.fit(2, cbs=cb)
    for _ in range(2):
        with pytest.raises(Failure): learn.resume()
        assert learn.at.next=='validate' and learn.at.exact
    learn.resume()
    assert same(learn, whole) and learn.train_iter==8

@pytest.mark.parametrize('stop', [lambda learn: learn.stop_for_now(), lambda learn: raise_failure()],
    ids=['stop','error'])
def test_the_first_draw_of_an_epoch_is_before_its_first_batch(stop):
    learn = synth_learner(6, 4)
    def once(learn): return learn.training and learn.epoch==1 and learn.train_iter==6 and stop(learn)
    try: learn.fit(2, cbs=on(event.before_draw)(once))
    except Failure: pass
    assert (learn.at.counters.epoch, learn.at.batch)==(1, 0)
    with pytest.warns(UserWarning): learn.resume(cbs=[])
    assert learn.train_iter==12

@pytest.mark.parametrize('ev', ['before_fit','before_epoch','before_train'])
def test_a_stop_before_training_leaves_nothing_to_resume(ev):
    learn = synth_learner(3, 2)
    learn.fit(2, cbs=Callback(**{ev: lambda self: self.learn.stop_for_now()}))
    with pytest.raises(RuntimeError, match='nothing to resume'): learn.resume()

def test_a_stop_inside_a_validation_inside_training_is_resumed_in_training():
    learn = synth_learner(4, 2)
    inner = Callback(after_loss=lambda self: self.learn.stop_for_now())
    @on(event.before_draw)
    def validate(learn): learn.training and learn.train_iter==2 and learn.validate(cbs=inner)
    learn.fit(1, cbs=validate)
    assert learn.at.batch==2
    with pytest.warns(UserWarning): learn.resume(cbs=[])
    assert learn.train_iter==4

@pytest.mark.parametrize('ev,n', [('before_batch', 3), ('after_pred', 3), ('before_step', 3), ('after_batch', 2)])
def test_stop_soon_finishes_the_batch_and_can_be_resumed_exactly(ev, n):
    "In the third batch, or at the end of the second"
    whole,learn = synth_learner(4, 2).fit(2),synth_learner(4, 2)
    stop = Callback(**{ev: lambda self: self.training and self.train_iter==2 and self.learn.stop_soon('enough')})
    learn.fit(2, cbs=stop)
    assert (learn.stop_reason, learn.train_iter, learn.at.batch, learn.at.exact)==('enough', n, n, True)
    learn.resume(cbs=[])
    assert same(learn, whole) and learn.train_iter==8

def test_a_stop_that_is_asked_for_when_the_fit_is_over():
    learn = synth_learner(3, 0)
    learn.fit(1, cbs=Callback(after_fit=lambda self: self.learn.at_pause(self.learn.stop_for_now, stops=True)))
    assert learn.train_iter==3 and learn.mode is None

@pytest.mark.parametrize('ev', ['after_epoch','after_fit'])
def test_a_stop_that_waits_when_the_fit_is_over_ends_no_validation_after_it(ev):
    def stop(self):
        if self.learn.mode=='fit': self.learn.stop_soon()
    def over(self):
        if self.learn.mode=='fit': raise CancelFitException('over')
    results = []
    def check(self):
        if self.learn.mode=='fit': results.append(self.learn.validate())
    cbs = [Callback(**{ev: stop}), Callback(after_epoch=over), Callback(after_fit=check)]
    learn = synth_learner(3, 2).fit(2, cbs=cbs)
    assert learn.stop_reason=='over' and len(results)==1 and learn.at is None and learn.train_iter==3

def test_a_request_that_fails_does_not_swallow_a_stop():
    learn = synth_learner(4, 0)
    def ask(learn):
        if learn.train_iter!=1: return
        learn.at_pause(raise_failure)
        learn.at_pause(lambda: (_ for _ in ()).throw(SystemExit(143)), stops=True)
    with pytest.raises(SystemExit): learn.fit(1, cbs=on(event.after_batch)(ask))

def test_numpys_waiting_number_is_part_of_its_state():
    rng,states = random.Random(0),[]
    def now(): s = np.random.get_state(); return s[1].tolist(),*s[2:]
    for _ in range(1000):
        what = rng.randrange(4)
        if what==0: np.random.randn()
        if what==1: np.random.rand()
        if what==2: states.append((now(), random_state()))
        if what==3 and states:
            was,state = rng.choice(states)
            set_random_state(state)
            assert now()==was

class Lazy(Dataset):
    "Makes a generator of its own when it is `ready`, which training and validation then draw from"
    rng,ready = None,False
    def __len__(self): return 4
    def __getitem__(self, i):
        if self.ready and self.rng is None: self.rng = random.Random(0)
        return torch.full((1,), float(i) + (self.rng.random() if self.rng else 0)),torch.zeros(1)

@pytest.mark.parametrize('epoch', [0, 1, 3])
def test_a_generator_that_is_made_in_any_epoch_belongs_to_training(epoch):
    def fitted(validates):
        ds = Lazy()
        torch.manual_seed(0)
        learn = synth_learner(dls=DataLoaders(DataLoader(ds, 2), DataLoader(ds, 2) if validates else None,
            device='cpu'))
        @on(event.before_train)
        def get_ready(learn): ds.ready = learn.epoch>=epoch
        return learn.fit(6, cbs=get_ready)
    assert same(fitted(False), fitted(True))

def test_index_after_draw():
    "`after_draw` is about the batch that was drawn: its index and its samples"
    seen = []
    dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(6.)[:,None], torch.zeros(6, 1)), 2)
    learn = synth_learner(dls=DataLoaders(dl, device='cpu'))
    @learn.on('after_draw')
    def note(learn): seen.append((learn.iter, learn.idxs, learn.batch[0].flatten().tolist()))
    learn.fit(1)
    assert seen==[(i, [2*i,2*i+1], [2.*i,2.*i+1]) for i in range(3)]

@pytest.mark.parametrize('ev',
    ['before_train','before_draw','after_pred','after_batch','before_validate','after_epoch'])
def test_a_stop_that_is_swallowed_is_none(ev):
    def swallows(self):
        try: self.learn.stop_for_now('not meant')
        except CancelFitException: pass
    learn = synth_learner(4, 2).fit(1, cbs=Callback(**{ev: swallows}))
    assert learn.at is None and learn.stop_reason is None and learn.train_iter==4

def test_a_swallowed_stop_does_not_make_another_cancel_one():
    def swallows(self):
        try: self.learn.stop_for_now('not meant')
        except CancelFitException: raise CancelFitException('meant')
    learn = synth_learner(4, 2).fit(1, cbs=Callback(after_pred=swallows))
    assert learn.at is None and learn.stop_reason=='meant'

def test_a_stop_before_training_names_fit():
    learn = synth_learner(4, 2)
    def stop(self): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match='`fit` begins anew'): learn.fit(1, cbs=Callback(before_fit=stop))
    assert learn.at is None
    with pytest.raises(RuntimeError, match=r'nothing to resume.* Write `fit\(…\)`'): learn.resume()
    assert same(learn.fit(1), synth_learner(4, 2).fit(1))

def test_a_position_is_shown_in_one_line():
    learn = synth_learner(4, 2)
    @on(event.before_draw)
    def stop(learn): learn.training and learn.train_iter==6 and learn.at_pause(learn.stop_for_now, stops=True)
    learn.fit(2, cbs=stop)
    assert repr(learn.at)=='Position(in epoch 1, after batch 2)'

@pytest.mark.parametrize('training', [True, False])
def test_a_callback_that_stops_the_iteration_over_batches_is_named(training):
    class Stops(Callback):
        def before_draw(self):
            if self.learn.training==training and self.learn.epoch: raise StopIteration
    learn = synth_learner(4, 2)
    with pytest.raises(RuntimeError, match='raised by `Stops.before_draw`.* `raise CancelEpochException` ends'):
        learn.fit(2, cbs=Stops)
    assert learn.train_iter==(4 if training else 8) and learn.resume(cbs=[]).train_iter==8
