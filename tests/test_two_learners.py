"A callback belongs to one Learner; one that lost it says so when it runs without"
import warnings
import pytest
from learner.all import *

class Counting(Callback):
    def __init__(self): self.batches = [] # which `lr_find` leaves, unlike an attribute that is set
    def after_batch(self): self.batches.append(self.iter)

runs = dict(fit=lambda o: o.fit(1), validate=lambda o: o.validate(), get_preds=lambda o: o.get_preds(),
    lr_find=lambda o: o.lr_find(num_it=6, show_plot=False), one_cycle=lambda o: o.fit_one_cycle(1))
@pytest.mark.parametrize('run', runs)
def test_the_first_of_two_learners_says_that_it_runs_without(run):
    cb = Counting()
    a,b = synth_learner(cbs=cb),synth_learner(cbs=cb)
    with warnings.catch_warnings(): warnings.simplefilter('error'); runs[run](b)
    assert cb.learn is b and cb.batches
    with pytest.warns(UserWarning,
            match='This Learner runs without `counting`, which went to another one: a callback belongs to one Learner'):
        runs[run](a)
    with warnings.catch_warnings(): warnings.simplefilter('error'); runs[run](a) # said once

def test_it_is_said_at_the_line_that_runs():
    cb = Counting()
    a,_ = synth_learner(cbs=cb),synth_learner(cbs=cb)
    with pytest.warns(UserWarning, match='runs without `counting`') as found: a.fit(1)
    assert found[0].filename==__file__

@pytest.mark.parametrize('back',
    [lambda a, cb: a.add_cb(cb), lambda a, cb: a.add_cb(Counting), lambda a, cb: a.cbs.lost.clear()],
    ids=['again','another','told'])
def test_nothing_is_said_if_the_callback_is_back_or_another_is_there(back):
    cb = Counting()
    a = synth_learner(cbs=cb); synth_learner(cbs=cb)
    back(a, cb)
    with warnings.catch_warnings(): warnings.simplefilter('error'); a.fit(1)

def test_functions_too_and_for_one_fit():
    @on(event.after_epoch)
    def look(learn): pass
    a,b = synth_learner(cbs=look),synth_learner()
    b.fit(1, cbs=look)
    with pytest.warns(UserWarning, match='without `look`'): a.fit(1)

def test_a_cell_that_is_run_again_and_a_sweep_are_silent():
    cb = Counting()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for _ in range(3): synth_learner(cbs=cb).fit(1)
        a,b = synth_learner(),synth_learner()
        for o in (a, b, a, b): o.fit(1, cbs=cb) # for one fit at a time
    assert cb.batches
