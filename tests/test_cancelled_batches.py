"""What a cancelled batch leaves out is said, with the number of samples and the callback; what it counts in is fixed;
a reason is kept where it stopped a fit; an epoch that is over has its row"""
import warnings
import numpy as np
import pytest,torch
from torch.nn import functional as F
from learner.all import *

before_loss,in_inference = ['before_batch','after_pred'],['before_batch','after_pred','after_loss']

def mk(*cbs, n_train=3, n_valid=3, **kwargs): return synth_learner(n_train, n_valid, cbs=cbs, **kwargs)
def cancel(ev, n=2, reason=''): return Raise(ev, CancelBatchException(reason) if reason else CancelBatchException, n=n)

def losses_of(learn):
    "Loss of each validation batch"
    with torch.no_grad(): return [F.mse_loss(learn.model(x), y).item() for x,y in learn.dls.valid]

# Inference
@pytest.mark.parametrize('ev', in_inference)
def test_predictions_have_no_holes(ev):
    learn = mk()
    with pytest.raises(RuntimeError, match=rf"Only 2 of 3 batches have predictions: 1 batch, with 16 samples, was "
        rf"cancelled by `Raise.{ev}` \(too dark\)\. .*`run_valid = False`"):
        learn.get_preds(cbs=cancel(ev, 2, 'too dark'))
    assert len(learn.get_preds()[0])==48

@pytest.mark.parametrize('ev', in_inference)
def test_predict_and_tta_refuse_a_cancelled_batch(ev):
    x = torch.zeros(1)
    with pytest.raises(RuntimeError, match=f"1 batch, with 1 sample, was cancelled by `Raise.{ev}`"):
        mk(cancel(ev, 1)).predict(x)
    with pytest.raises(RuntimeError, match=f"1 batch, with 16 samples, was cancelled by `Raise.{ev}`"):
        mk(cancel(ev, 5)).tta(n=1)

def test_several_callbacks_and_batches_are_counted_together():
    with pytest.raises(RuntimeError, match="Only 1 of 3 .*2 batches, with 32 samples, were cancelled by "
        "`Raise.before_batch` and `Raise.after_loss`"):
        mk().get_preds(cbs=[cancel('before_batch', 1), cancel('after_loss', 2)])

def test_a_batch_that_the_model_cancels_is_named_too():
    class Refuses(RegModel):
        def forward(self, x):
            if not self.training: raise CancelBatchException
            return super().forward(x)
    with pytest.raises(RuntimeError, match="were cancelled by the model or the loss"): mk(model=Refuses()).get_preds()

@pytest.mark.parametrize('exc', [CancelValidException, CancelEpochException, CancelFitException])
def test_predictions_that_were_cancelled_as_a_whole_name_the_callback(exc):
    with pytest.raises(RuntimeError, match=r"cancelled by `Raise.before_batch` \(enough\)"):
        mk().get_preds(cbs=Raise('before_batch', exc('enough'), n=2))

@pytest.mark.parametrize('ev', before_loss)
def test_validate_says_which_samples_it_leaves_out(ev):
    learn = mk()
    a,_,c = losses_of(learn)
    with pytest.warns(UserWarning, match=f"results of `valid` leave out samples: 1 batch, with 16 samples, was "
        f"cancelled by `Raise.{ev}`. .*`run_valid = False`"): res = learn.validate(cbs=cancel(ev))
    assert res.valid_loss==pytest.approx((a+c)/2, rel=1e-5)

def test_a_batch_that_is_cancelled_after_its_loss_counts_in_validate_without_a_word(recwarn):
    learn = mk()
    assert learn.validate(cbs=cancel('after_loss')).valid_loss==pytest.approx(sum(losses_of(learn))/3, rel=1e-5)
    assert not recwarn.list

def test_a_fit_says_once_that_its_validation_leaves_out_samples(recwarn):
    class Skips(Callback):
        run_train = False
        def before_batch(self):
            if self.iter==1: raise CancelBatchException
    mk(Skips()).fit(3)
    assert len(recwarn.list)==1 and 'The results of `valid` leave out samples' in str(recwarn.list[0].message)

@pytest.mark.parametrize('ev', ['before_batch','after_pred','after_batch'])
def test_a_validation_that_is_cancelled_says_that_its_results_are_those_of_some_batches(ev):
    "In a fit once, as an incomplete one may be taken for the best"
    class Cuts(Callback):
        order,run_train = 60,False
        def cut(self):
            if self.iter==1: raise CancelValidException('enough')
    setattr(Cuts, ev, Cuts.cut)
    with pytest.warns(UserWarning, match=r"The results of `valid` may leave out batches: the validation "
        rf"was cancelled in batch 1 by `Cuts.{ev}` \(enough\)\. `cbs=Limit\(valid=…\)` ends") as w:
        mk(Cuts()).fit(3)
    assert [o.filename for o in w]==[__file__]
    with pytest.warns(UserWarning, match="may leave out batches"): mk(Cuts()).validate()

def test_a_validation_without_any_results_says_nothing(recwarn):
    learn = mk(Raise('before_validate', CancelValidException, n=2)).fit(3)
    assert [o.valid_loss is missing for o in learn.recorder.rows]==[False,True,False] and not recwarn.list

def test_an_inner_validation_is_counted_apart(recwarn):
    "A validation within one, of which a batch is cancelled, does not make the outer one incomplete, nor the other way"
    class Inner(Callback):
        def after_batch(self):
            if self.mode!='validate' or self.learn.n_outer: return
            with pytest.warns(UserWarning, match='1 batch, with 16'): self.learn.validate(cbs=cancel('before_batch', 1))
    learn = mk()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        whole = learn.validate(cbs=Inner())
    assert whole==learn.validate()

# Training
def skip(ev, when=lambda learn: True):
    "A callback that cancels training batches at `ev`"
    def f(self):
        if self.training and when(self.learn): raise CancelBatchException('none is good')
    return type('Skip', (Callback,), {ev: f})()

def told(recwarn, text): return [m for o in recwarn.list if text in (m := str(o.message))]

@pytest.mark.parametrize('ev', ['before_batch','after_pred','after_loss','before_backward'])
def test_a_fit_of_which_every_batch_was_cancelled_says_so_once(ev, recwarn):
    learn = mk(skip(ev)).fit(3)
    [said] = told(recwarn, 'taken no step')
    assert f"3 batches, with 48 samples, were cancelled by `Skip.{ev}` (none is good)" in said
    assert learn.opt_step==0 and learn.train_iter==9 and learn.stop_reason is None

@pytest.mark.parametrize('cbs', [[GradientAccumulation(1000)], [skip('before_batch', lambda o: o.train_iter<2)],
    [skip('after_loss', lambda o: o.iter>0)], [Raise('before_step', CancelStepException)]],
    ids=['accumulated','begins late','ends early','a step'])
def test_a_fit_that_trains_says_nothing_of_batches_that_were_cancelled(cbs, recwarn):
    mk(*cbs).fit(2)
    assert not told(recwarn, 'cancelled')

@pytest.mark.parametrize('scope', [*cancels][1:])
def test_only_the_end_of_a_fit_has_a_reason_to_stop(scope, capsys):
    "A part that was skipped is no reason why the fit was stopped"
    learn = mk(Raise(f'before_{scope}', cancels[scope]('just this one')), show=True)
    with learn.no_bar(): learn.fit(2)
    assert learn.stop_reason is None and 'Stopped' not in capsys.readouterr().out
    learn.fit(1, cbs=Raise('before_batch', CancelFitException('enough')))
    assert learn.stop_reason=='enough' and learn.fit(1).stop_reason is None

@pytest.mark.parametrize('ev,counts', [('before_batch',False), ('after_pred',False), ('after_loss',True),
    ('before_backward',True), ('after_backward',True), ('before_step',True), ('after_step',True)])
def test_a_training_batch_counts_once_it_has_a_loss(ev, counts):
    "As in fastai: a callback that accumulates gradients cancels batches that are trained on"
    seen = []
    class See(Callback):
        order,run_valid = -1,False
        def after_loss(self): seen.append(self.loss.item())
    learn = mk(See(), Raise(ev, CancelBatchException, n=2)).fit(1)
    assert len(seen)==2+counts and learn.recorder.raw_losses==pytest.approx(seen) and learn.train_iter==3

def test_a_batch_without_a_loss_is_left_out_of_the_record():
    "A callback that leaves a bad batch out of `train_loss` too forgets its loss before it cancels"
    class LeaveOut(Callback):
        run_valid = False
        def after_loss(self):
            if self.iter==1: self.learn.loss = None; raise CancelBatchException
    learn = mk(LeaveOut()).fit(1)
    assert len(learn.recorder.raw_losses)==2 and learn.opt_step==2 and learn.train_iter==3

# The row of an epoch that is over
class StopAfter(Callback):
    "Ends the fit when an epoch is over, and `order` says whether that is before the recorder"
    def __init__(self, order, epoch=0): self.order,self.at = order,epoch
    def after_epoch(self):
        if self.epoch==self.at: raise CancelFitException('enough')

@pytest.mark.parametrize('order', [-300, 0, 49, 51, 300])
def test_an_epoch_that_is_over_has_its_row_wherever_the_callback_stands_that_ends_the_fit(order, capsys):
    ref = mk().fit(2).recorder
    learn = mk(StopAfter(order, 1), show=True, metrics=mae)
    with learn.no_bar(): learn.fit(5)
    rec = learn.recorder
    assert [o.epoch for o in rec.rows]==[0,1] and rec.iters==ref.iters and learn.stop_reason=='enough'
    assert list(rec['train_loss'])==list(ref['train_loss']) and list(rec['valid_loss'])==list(ref['valid_loss'])
    head,_,last,stopped = capsys.readouterr().out.strip().splitlines()
    assert last.split()[0]=='1' and stopped=='Stopped: enough'

@pytest.mark.parametrize('ev', ['before_epoch','before_train','after_train','before_validate','after_batch'])
def test_an_epoch_that_was_cut_has_no_row(ev):
    "At `after_batch`, in training or validation"
    for order in (0, 100):
        for n in (2, 5):
            o = Raise(ev, CancelFitException, n=n, order=order)
            learn = mk(o, n_train=3, n_valid=3).fit(6 if ev!='after_batch' else 1)
            assert len(learn.recorder.rows)==(n-1 if ev!='after_batch' else 0)

def test_a_tracker_that_would_end_the_fit_at_the_same_row_does_no_harm():
    learn = mk(StopAfter(0, 1), EarlyStoppingCallback('train_loss', np.greater, patience=1)).fit(5)
    assert len(learn.recorder.rows)==2 and learn.stop_reason=='enough'

@pytest.mark.parametrize('order', [0, 100])
def test_a_fit_that_stops_for_now_when_an_epoch_is_over_has_its_row_and_once_when_it_has_resumed(order):
    class StopsForNow(StopAfter):
        def after_epoch(self):
            if self.epoch==self.at: self.learn.stop_for_now()
    learn,ref = mk(cb := StopsForNow(order, 1)).fit(3),mk().fit(3).recorder
    assert [o.epoch for o in learn.recorder.rows]==[0,1]
    learn.remove_cb(cb).resume()
    rec = learn.recorder
    assert [o.epoch for o in rec.rows]==[0,1,2] and rec.iters==ref.iters
    assert list(rec['valid_loss'])==list(ref['valid_loss']) and list(rec['train_loss'])==list(ref['train_loss'])

@pytest.mark.parametrize('exc', [CancelTrainException, CancelEpochException, CancelFitException])
@pytest.mark.parametrize('order', [-100, 0, 40, 60])
def test_the_batch_after_which_training_was_ended_is_recorded(exc, order):
    class Stop(Callback):
        run_valid = False
        def after_batch(self):
            if self.iter==2: raise exc
    Stop.order = order
    learn = synth_learner(5, cbs=[Stop()])
    learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=True)).fit(2)
    n = 3 if exc is CancelFitException else 6
    assert len(learn.recorder.raw_losses)==len(learn.recorder.lrs)==learn.opt_step==n

def test_all_know_of_the_batch_after_which_training_was_ended():
    "Also callbacks that come later; and changes of the loss that come earlier are recorded"
    class Doubles(Callback):
        order = -200
        def after_batch(self): self.learn.loss = self.loss*2
    class Stop(Callback):
        run_valid = False
        def after_batch(self):
            if self.iter==2: raise CancelTrainException
    def run(*cbs): return synth_learner(5, 0, cbs=[*cbs])
    learn = run(Stop(), Doubles()).fit_one_cycle(2, 1e-2)
    rec = learn.recorder
    assert len(rec.lrs)==len(rec.hps['lr'])==6 and rec.hps['lr']==pytest.approx(rec.lrs)
    alone = run(Stop()).fit_one_cycle(2, 1e-2).recorder
    assert rec.raw_losses==pytest.approx([2*o for o in alone.raw_losses])

@pytest.mark.parametrize('first,second,epochs', [(CancelTrainException, CancelFitException, 1),
    (CancelFitException, CancelTrainException, 1), (CancelTrainException, CancelTrainException, 2)])
def test_of_two_cancels_after_a_batch_that_of_the_outer_scope_counts(first, second, epochs):
    def raises(exc, order):
        def f(cb):
            if cb.training: raise exc
        cb = Callback(after_batch=f)
        cb.order = order
        return cb
    learn = synth_learner(5, 0, cbs=[raises(first, 1), raises(second, 2)]).fit(2)
    assert learn.train_iter==len(learn.recorder.raw_losses)==epochs

def test_an_error_of_a_later_callback_replaces_a_cancel_after_a_batch():
    def cancel(cb): raise CancelFitException
    def fail(cb): raise KeyError('later')
    late = Callback(after_batch=fail)
    late.order = 100
    learn = synth_learner(5, 0, cbs=[Callback(after_batch=cancel), late])
    with pytest.raises(KeyError, match='later'): learn.fit(1)
    assert learn.mode is None

@pytest.mark.parametrize('first', ['run','order','remove','other','flags'])
@pytest.mark.parametrize('at', [0, 1, 2])
@pytest.mark.parametrize('order', [-500, 5])
def test_all_know_of_it_also_where_callbacks_change_before_the_cancel(first, at, order):
    "Handlers are looked up again then, and while the first batches are watched"
    other = Callback(after_batch=lambda cb: None)
    class Stop(Callback):
        run_valid = False
        def after_batch(self):
            if self.iter!=at: return
            if first=='run': self.run = False
            if first=='order': self.order = 7
            if first=='remove': self.learn.remove_cb(self)
            if first=='other': other.run = False
            if first=='flags': self.run_train = False
            raise CancelFitException
    Stop.order = order
    learn = synth_learner(4, 0, cbs=[Stop(), other]).fit(1)
    assert learn.train_iter==learn.opt_step==len(learn.recorder.raw_losses)==at+1
