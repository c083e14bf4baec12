"States of callbacks that cannot be told yet, or at all"
import re,warnings
import pytest
from learner.all import *
from signals import ctrl_c,python_handler # noqa: F401
from small_fits import mk,same,weights

class Late(Callback):
    "Sets what it saves when the first epoch is over"
    _stateattrs = 'best',
    def after_epoch(self): self.best = self.learn.epoch

def at_batch(n, f):
    def _f(self):
        if self.train_iter==n: f()
    return Callback(after_batch=_f)

def test_an_attribute_that_is_not_set_yet_is_no_part_of_the_state():
    learn,whole = mk(late := Late()),mk().fit(2)
    with warnings.catch_warnings():
        warnings.simplefilter('error', Mistake)
        with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=at_batch(3, lambda: 1/0))
        warnings.simplefilter('ignore') # a batch was cut
        learn.resume(cbs=[])
    assert late.best==1 and same(weights(learn.model), weights(whole.model))

class Untold(Callback):
    def state_dict(self): raise KeyError('n')

def test_a_state_that_cannot_be_told_hides_no_error():
    learn = mk()
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1, cbs=[Untold, at_batch(3, lambda: 1/0)])
    why = r"The fit cannot be resumed, because of KeyError\('n'\), raised by `Untold.state_dict`"
    assert sum(re.match(why, o) is not None for o in e.value.__notes__)==1
    with pytest.raises(KeyboardInterrupt, match=f'Stopped. {why}'):
        learn.fit(1, cbs=[Untold, at_batch(3, lambda: (ctrl_c(), ctrl_c()))]) # the second one waits for no position

def test_names_of_what_is_saved_are_checked_before_training():
    with pytest.raises(TypeError, match="`Best._stateattrs` is a tuple of names, but got 'best': "
            "write `_stateattrs = 'best',`"):
        class Best(Callback): _stateattrs = 'best'
    class Typo(Callback):
        _stateattrs = 'lossses',
        def before_fit(self): self.losses = []
    with pytest.warns(Mistake, match='`Typo._stateattrs` names `lossses`, which nothing sets. Did you mean `losses`'):
        mk().fit(1, cbs=Typo)
    class Unmarked(Callback): stateattrs = 'losses',
    with pytest.warns(Mistake, match='`Unmarked.stateattrs` is read by nothing. Did you mean `_stateattrs`'):
        mk().fit(1, cbs=Unmarked)
