"""Promise 1 for what callbacks set on the way: a fit that resumes fires `before_fit` and `before_epoch` again, which
set what holds at the beginning"""
import pytest
from learner.all import *

pytestmark = pytest.mark.filterwarnings('ignore:The run was stopped in the middle of a batch')

class Stop(Callback):
    "Stops the fit for now, or raises, at the `n`-th of an event"
    watches,order = True,500
    def __init__(self, ev, n, e=None):
        self.left,self.e = n,e
        super().__init__(**{ev: Stop.hit})
    def hit(self):
        self.left -= 1
        if self.left: return
        if self.e is not None: raise self.e
        self.learn.at_pause(self.learn.stop_for_now, stops=True)

class Off(Callback):
    "Switches itself off in training batch 3, and another callback on"
    _stateattrs = 'seen',
    def __init__(self, other): self.seen,self.other = [],other
    def before_fit(self): self.seen,self.other.run = [],False
    def after_batch(self):
        if not self.learn.training: return
        self.seen.append(self.learn.train_iter)
        if self.learn.train_iter==3: self.run,self.other.run = False,True # from the next batch on

class Seen(Callback):
    _stateattrs = 'seen',
    def before_fit(self): self.seen = []
    def after_batch(self): self.seen.append(self.learn.train_iter)

@pytest.mark.parametrize('n', [2, 6])
@pytest.mark.parametrize('how', ['stop','error','file'])
def test_callbacks_that_were_switched_off_or_on_stay_so(how, n, tmp_path):
    def made():
        off = Off(late := Seen())
        return synth_learner(n_train=4, n_valid=0, path=tmp_path),off,[off, late, Checkpoint(every=2, unit='iter')]
    learn,off,cbs = made()
    if how=='error':
        with pytest.raises(ValueError): learn.fit(3, cbs=[*cbs, Stop('before_draw', n, ValueError)])
    else: learn.fit(3, cbs=[*cbs, Stop('after_batch', n)])
    if how!='file': learn.resume()
    else:
        learn,off,cbs = made()
        learn.fit(3, cbs=cbs, resume='auto')
    assert off.seen==[1, 2, 3] and off.other.seen==[*range(4, 13)]
    assert off.run and off.other.run # as every callback between two fits

def test_a_run_that_is_over_still_says_what_ended_it(tmp_path):
    def run():
        cbs = [EarlyStoppingCallback(patience=1), Checkpoint()]
        return synth_learner(path=tmp_path).fit(9, lr=0., cbs=cbs, resume='auto') # with `lr=0.` nothing gets better
    first,again = run(),run()
    assert again.stop_reason==first.stop_reason and 'was not better' in first.stop_reason
    with pytest.warns(match='No callback takes the state of `early_stopping`'):
        longer = synth_learner(path=tmp_path).fit(first.epoch+2, lr=0., cbs=Checkpoint(), resume='auto')
    assert longer.stop_reason is None # it went on

@pytest.mark.parametrize('ev,n', [('after_batch', 6), ('after_epoch', 1)])
@pytest.mark.parametrize('how', ['stop','file','load'])
def test_callbacks_that_get_their_state_know_that_the_fit_resumes(how, ev, n, tmp_path):
    class Knows(Callback):
        _stateattrs,n = ('n',),0
        def __init__(self): self.told = []
        def before_fit(self): self.told.append(self.resuming)
        def load_state_dict(self, state): self.told.append((self.mode, self.resuming)); super().load_state_dict(state)
        def before_draw(self): self.told.append(self.resuming)
    learn = synth_learner(path=tmp_path).fit(2, cbs=[cb := Knows(), Stop(ev, n), Checkpoint(every=2, unit='iter')])
    assert not any(cb.told)
    cb.told.clear()
    if how=='stop': learn.resume()
    elif how=='file': synth_learner(path=tmp_path).fit(2, cbs=[cb := Knows(), Checkpoint()], resume='auto')
    else:
        learn = synth_learner(path=tmp_path, cbs=[cb := Knows(), Checkpoint()])
        learn.load_state(next((tmp_path/'checkpoints').glob('*.pt'))).resume()
    first = [] if how=='stop' else [(None, False)] # the file is read before the fit
    assert cb.told[:len(first)+3]==[*first, True, ('fit', True), False]
