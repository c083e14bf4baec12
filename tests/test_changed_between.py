"What was changed between a stop and its resume, and would silently make another epoch of the one that was begun"
import warnings
import pytest,torch
from learner.all import *
from learner.inspect.testing import synth_dls,synth_learner

def stopped(ev='after_pred', n=4, **kwargs):
    learn = synth_learner(**kwargs)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise(ev, KeyboardInterrupt, n))
    return learn

def resumed(learn):
    "The warnings of its resume"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.resume(cbs=[])
    return [o for m in seen if 'in the middle of a batch' not in (o := str(m.message)) and '`raise`' not in o]

def test_nothing_was_changed(): assert resumed(stopped())==[]

def test_limits_that_are_changed_in_the_middle_of_an_epoch_are_named():
    learn = stopped()
    learn.limits = dict(train=6)
    msg, = resumed(learn)
    assert '`limits.train` was None, and is 6' in msg

def test_another_loader_in_the_middle_of_an_epoch_is_named():
    learn = stopped()
    learn.dls = synth_dls(seed=1)
    msg, = [o for o in resumed(learn) if 'not the loader' in o]
    assert 'stopped in epoch 0: the first 3 batches' in msg

def test_another_loader_between_two_epochs_is_a_choice():
    learn = stopped('before_epoch', 2)
    learn.dls = synth_dls(seed=1)
    assert not [o for o in resumed(learn) if 'not the loader' in o]

class Shifts(Callback):
    "Adds to the dataset while training runs, by a random number that no resume knows, and takes it back"
    def before_train(self):
        y = self.learn.dls.train.dataset.tensors[1]
        self.was = y.clone()
        y.add_(torch.rand(()))
    def cleanup_train(self): self.learn.dls.train.dataset.tensors[1].copy_(self.was)

@pytest.mark.parametrize('same', [True, False])
def test_what_a_callback_has_changed_in_a_dataset_is_named(same, tmp_path):
    "Also where its cleanup had undone it by the time that the file was written"
    def fit(learn, *cbs, **kwargs): return learn.fit(2, cbs=[Shifts, Checkpoint(folder=tmp_path), *cbs], **kwargs)
    stop = on(event.after_batch(once=4))(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))
    learn = fit(synth_learner(), stop)
    other = synth_learner()
    torch.manual_seed(9)
    with pytest.warns(UserWarning, match='`dataset.tensors` of the training loader changed during the run'):
        learn.resume() if same else fit(other, resume=True)
