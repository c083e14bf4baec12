"A run belongs to the thread that has begun it: another one can look at the learner, but not run it"
import threading
import pytest,torch
from learner.all import *

class Waits(Callback):
    "Lets another thread act within batch `n` of training, until it is done"
    run_valid = False
    def __init__(self, n=3): self.n,self.inside,self.done = n,threading.Event(),threading.Event()
    def after_batch(self):
        if self.learn.train_iter!=self.n: return
        self.inside.set()
        assert self.done.wait(60)

def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])

def meanwhile(act, run=lambda learn, cb: learn.fit(2, cbs=cb)):
    "What `act(learn)` returns or raises while `run` is in another thread; the learner; what `run` has raised"
    learn,cb,failed = synth_learner(6),Waits(),[]
    def go():
        try: run(learn, cb)
        except BaseException as e: failed.append(e)
    thread = threading.Thread(target=go)
    thread.start()
    assert cb.inside.wait(60)
    try: res = act(learn)
    except Exception as e: res = e
    finally:
        cb.done.set()
        thread.join()
    return res,learn,failed

x = torch.zeros(1)
refused = dict(validate=lambda learn: learn.validate(), get_preds=lambda learn: learn.get_preds(),
    predict=lambda learn: learn.predict(x), tta=lambda learn: learn.tta(), summary=lambda learn: learn.summary(),
    fit=lambda learn: learn.fit(1), resume=lambda learn: learn.resume(), smoke=lambda learn: learn.smoke(),
    lr_find=lambda learn: learn.lr_find(show_plot=False), no_logging=lambda learn: learn.no_logging().__enter__())
@pytest.mark.parametrize('name', refused)
def test_another_thread_cannot_run_a_learner_that_trains(name):
    res,learn,failed = meanwhile(refused[name])
    assert isinstance(res, RuntimeError) and 'A `fit` of this Learner runs in another thread' in str(res)
    begins_training = name in ('fit','resume','smoke','lr_find') # which callbacks cannot do either
    assert ('or call this in one of its callbacks' in str(res)) is not begins_training
    assert not failed and learn.train_iter==12 and len(learn.recorder.rows)==2
    assert torch.equal(weights(learn), weights(synth_learner(6).fit(2)))
    assert learn.validate()['valid_loss']==learn.recorder.rows[-1]['valid_loss'] # now that it is over

allowed = dict(repr=repr, save=lambda learn: learn.save('x'), export=lambda learn: learn.export('x.pkl'),
    losses=lambda learn: learn.recorder.losses)
@pytest.mark.parametrize('name', allowed)
def test_another_thread_can_look_at_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    res,learn,failed = meanwhile(allowed[name])
    assert not isinstance(res, Exception) and not failed
    assert torch.equal(weights(learn), weights(synth_learner(6).fit(2)))

def test_another_thread_can_stop_it():
    _,learn,failed = meanwhile(lambda learn: learn.stop_soon())
    assert not failed and learn.train_iter==3
    learn.resume(cbs=[]) # in this thread
    assert torch.equal(weights(learn), weights(synth_learner(6).fit(2)))

def test_a_fit_is_refused_while_another_thread_validates():
    class Hold(Waits):
        run_valid = True
        def after_batch(self):
            self.inside.set()
            assert self.done.wait(60)
    learn,cb,rows = synth_learner(6),Hold(),[]
    thread = threading.Thread(target=lambda: rows.append(learn.validate(cbs=cb)))
    thread.start()
    assert cb.inside.wait(60)
    try:
        with pytest.raises(RuntimeError, match='A `validate` of this Learner runs in another thread'): learn.fit(1)
    finally:
        cb.done.set()
        thread.join()
    assert rows[0]==synth_learner(6).validate()

def test_learners_train_in_threads_of_their_own_within_what_this_one_has_begun():
    learn = synth_learner(6, show=True)
    def fit(): fitted.append(synth_learner(6).fit(2))
    fitted = []
    with learn.no_logging(): # which another thread may train in
        for f in lambda: learn.fit(2),fit:
            thread = threading.Thread(target=f)
            thread.start()
            thread.join()
    res,*_ = meanwhile(lambda _: fit())
    assert res is None
    for o in (learn, *fitted): assert torch.equal(weights(o), weights(synth_learner(6).fit(2)))
