"What was changed between a stop and its resume, and would silently make another epoch of the one that was begun"
import warnings
import pytest
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
