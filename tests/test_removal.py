"A callback that is removed in the middle of a run undoes what it has done, once, and hears no more"
import gc
import pytest,torch
from torch.nn.utils import clip_grad_norm_
from learner.all import *

class Heard(Callback):
    "Keeps the events that it hears, by epoch and batch"
    def __init__(self): super().__init__(); self.seen = []
for ev in dict(moments()) | {f'cleanup_{o}':0 for o in cancels}:
    def _f(self, ev=ev): self.seen.append((ev, self.learn.epoch, self.learn.iter))
    setattr(Heard, ev, _f)
class Early(Heard): order = -20
class Late(Heard): order = 20

def at(ev, f, n=1, order=0):
    "A callback that calls `f(learn)` when `ev` comes for the `n`-th time"
    def _f(cb):
        cb.n = getattr(cb, 'n', 0)+1
        if cb.n==n: f(cb.learn)
    cb = Callback(**{ev: _f})
    cb.order = order
    return cb

def fit(cb, *cbs, n_epoch=2):
    learn = synth_learner(n_train=3, n_valid=2)
    learn.fit(n_epoch, cbs=[cb, *cbs])
    return learn
def names(cb, since=0): return [o[0] for o in cb.seen[since:]]

def test_between_batches():
    cb = Heard()
    fit(cb, at('before_draw', lambda learn: learn.remove_cb(cb), n=2, order=10))
    assert (names(cb)[-5:]==['cleanup_batch','before_draw','cleanup_train','cleanup_epoch','cleanup_fit']
        and cb.seen[-1][1:]==(0, 0) and cb.learn is None)

@pytest.mark.parametrize('ev', ['before_batch','after_pred','before_step','after_batch'])
@pytest.mark.parametrize('order', [-10, 10])
def test_in_a_batch_it_stays_until_that_is_over(ev, order):
    "A step of which one half is another's would be neither"
    cb,whole = Heard(),Heard()
    fit(cb, at(ev, lambda learn: learn.remove_cb(cb), n=2, order=order))
    fit(whole)
    n = [i for i,o in enumerate(whole.seen) if o[0]=='cleanup_batch'][1]+1 # of the second batch
    assert names(cb)[:n]==names(whole)[:n] and names(cb, n)==['cleanup_train','cleanup_epoch','cleanup_fit']

@pytest.mark.parametrize('ev,open',
    [('before_epoch', ['fit']), ('before_train', ['epoch','fit']), ('before_validate', ['epoch','fit']),
        ('before_fit', [])])
def test_scopes_that_it_has_not_heard_of_are_not_its_own(ev, open):
    cb = Late()
    fit(cb, at(ev, lambda learn: learn.remove_cb(cb)))
    assert (ev not in names(cb) and names(cb)[len(names(cb))-len(open):]==[f'cleanup_{o}' for o in open]
        and sum(o.startswith('cleanup_') for o in names(cb) if o!='cleanup_batch' and 'step' not in o
            and 'backward' not in o)==len(open)+('cleanup_train' in names(cb)))

def test_scopes_that_were_there_before_it_are_not_its_own():
    cb = Heard()
    fit(at('before_train', lambda learn: learn.add_cb(cb)),
        at('before_validate', lambda learn: learn.remove_cb(cb), order=10))
    assert {o for o in names(cb) if o.startswith('cleanup')}=={'cleanup_batch','cleanup_backward','cleanup_step',
        'cleanup_validate'} and names(cb)[-1]=='cleanup_validate'

def test_it_can_remove_itself():
    class Once(Heard):
        def before_train(self): self.learn.remove_cb(self); self.seen.append(self.learn.model is not None)
    cb = Once()
    fit(cb)
    assert [o if isinstance(o, bool) else o[0] for o in cb.seen]==['before_fit','before_epoch','cleanup_train',
        'cleanup_epoch','cleanup_fit',True]
    assert cb.learn is None

def test_while_its_own_method_runs():
    "A validation inside, in which somebody removes it, ends first"
    class Looks(Heard):
        def before_draw(self):
            if self.learn.training and self.learn.train_iter==1:
                self.learn.validate(); self.seen.append(('looked', 0, self.learn.iter))
    cb = Looks()
    fit(cb, at('before_validate', lambda learn: learn.remove_cb(cb), order=10))
    looked = names(cb).index('looked')
    assert ('cleanup_fit' not in names(cb)[:looked] and names(cb)[-3:]==['cleanup_train','cleanup_epoch','cleanup_fit']
        and cb.seen[-1][1]==0)

def test_doing_without_it_for_a_while_is_no_removal():
    cb,whole = Heard(),Heard()
    def look(learn):
        with learn.removed_cbs(cb): learn.validate()
    fit(cb, at('after_loss', look, n=2, order=-10))
    fit(whole)
    assert cb.seen==whole.seen

def test_it_can_come_back():
    cb = Heard()
    learn = synth_learner(n_train=3, n_valid=2)
    learn.fit(2, cbs=[at('before_train', lambda learn: learn.add_cb(cb)),
        at('before_validate', lambda learn: learn.remove_cb(cb), order=10),
        at('before_epoch', lambda learn: learn.add_cb(cb), n=2)])
    # it came after `before_fit`, and stays
    assert cb in learn.cbs and cb.learn is learn and not {'before_fit','cleanup_fit'} & {*names(cb)}
    learn.fit(1)
    assert names(cb)[-1]=='cleanup_fit'

@pytest.mark.parametrize('ev', ['before_train','after_pred'])
def test_an_error_in_its_cleanup(ev):
    class Bad(Heard):
        def cleanup_fit(self): raise ValueError('bad')
    cb = Bad()
    learn = synth_learner()
    with pytest.raises(ValueError, match='bad'):
        learn.fit(1, cbs=[cb, at(ev, lambda learn: learn.remove_cb(cb), order=10)])
    assert cb not in learn.cbs and learn.mode is None and cb.learn is None
    learn.fit(1)

@pytest.mark.parametrize('err', [ValueError, CancelTrainException, CancelFitException, KeyboardInterrupt])
def test_what_ends_the_batch_in_which_it_was_removed(err):
    cb = Heard()
    def f(learn): learn.remove_cb(cb); raise err
    try: fit(cb, at('after_pred', f, n=2, order=-10))
    except (ValueError,KeyboardInterrupt): pass
    for o in ('fit','epoch','train'): assert names(cb).count(f'cleanup_{o}')==1
    assert names(cb)[-3:]==['cleanup_train','cleanup_epoch','cleanup_fit'] and cb.seen[-1][1]==0 and cb.learn is None

def test_not_only_in_fits():
    cb = Heard()
    learn = synth_learner(n_valid=3)
    learn.validate(cbs=[cb, at('after_pred', lambda learn: learn.remove_cb(cb), n=2)])
    assert names(cb).count('after_batch')==2 and names(cb)[-3:]==['cleanup_validate','cleanup_epoch','cleanup_fit']
    def weights(learn): return learn.model.a.item(),learn.model.b.item()
    assert weights(learn)==weights(synth_learner(n_valid=3))

def test_a_technique_off_from_a_batch_on():
    "The fit goes on as one without it does"
    def after_three(learn, clip): return [clip, at('after_batch', lambda learn: learn.remove_cb(clip), n=3)]
    def by_hand(learn):
        return [on('before_step')(lambda learn: learn.train_iter<3 and clip_grad_norm_(learn.model.parameters(), .01))]
    def end(cbs):
        learn = synth_learner()
        torch.manual_seed(0)
        learn.fit(n_iter=6, cbs=cbs(learn))
        return learn.model.a.item(),learn.model.b.item()
    assert end(lambda learn: after_three(learn, GradientClip(.01)))==end(by_hand)!=end(lambda learn: [])

class Only(Heard): only_one = True

@pytest.mark.parametrize('ev,order',
    [('before_draw', 0), ('before_train', 10), ('before_batch', 10), ('after_pred', 0), ('before_step', 0),
        ('after_batch', 0)])
def test_a_callback_that_is_replaced_undoes_its_changes_once(ev, order):
    old,new,when = Only(),Only(),[]
    def replace(learn): when.append((len(old.seen), [*learn.scopes])); learn.add_cb(new)
    learn = fit(old, at(ev, replace, n=2 if ev!='before_train' else 1, order=order))
    n,scopes = when[0]
    assert names(old, n)==[f'cleanup_{o}' for o in reversed(scopes)] and old.learn is None
    assert learn.cbs.filter(lambda o: isinstance(o, Only))==[new] and learn.only is new
    assert [o for o in names(new) if o in ('cleanup_train','cleanup_epoch','cleanup_fit')]==['cleanup_train',
        'cleanup_epoch'], "of the second epoch"

@pytest.mark.parametrize('order', [-10, 10])
@pytest.mark.parametrize('ev', ['cleanup_batch','cleanup_train'])
def test_replaced_in_a_cleanup_it_is_cleaned_up_once(ev, order):
    old,new = Only(),Only()
    fit(old, at(ev, lambda learn: learn.add_cb(new), order=order))
    for o in ('batch','train','epoch','fit'): assert names(old).count(f'cleanup_{o}')==names(old).count(f'before_{o}')>0

def test_a_callback_that_replaces_itself():
    class Again(Heard):
        only_one = True
        def after_batch(self):
            if self.learn.train_iter==2: self.learn.add_cb(type(self)())
    cb = Again()
    learn = fit(cb)
    assert (names(cb)[-4:]==[f'cleanup_{o}' for o in ('batch','train','epoch','fit')] and cb.learn is None
        and learn.again is not cb)

def test_what_is_replaced_for_a_while_keeps_its_changes():
    old,whole = Only(),Only()
    fit(old, at('after_loss', lambda learn: learn.validate(cbs=Only()), n=2, order=-10))
    fit(whole)
    assert old.seen==whole.seen

@pytest.mark.parametrize('err', [ValueError, CancelFitException])
def test_a_new_version_that_cannot_start_leaves_the_old_one_in_the_middle_of_a_fit(err):
    class Bad(Only):
        def after_create(self): raise err
    old,errs = Only(),[]
    def replace(learn):
        try: learn.add_cb(Bad())
        except (ValueError,RuntimeError) as e: errs.append(e)
    fit(old, at('before_draw', replace, n=2))
    assert len(errs)==1 and names(old).count('cleanup_fit')==1, "it undid its changes when it was replaced"
    assert ([o for o in names(old) if 'after_' in o and 'epoch' in o]==['after_epoch']*2
        and names(old).count('cleanup_epoch')==2)

@pytest.mark.parametrize('ev', ['before_batch','after_pred','before_step','after_batch'])
def test_removed_and_added_again_within_a_batch_it_stays(ev):
    cb,whole = Heard(),Heard()
    def again(learn): learn.remove_cb(cb); learn.add_cb(cb)
    fit(cb, at(ev, again, n=2))
    fit(whole)
    assert cb.seen==whole.seen

@pytest.mark.parametrize('ev,training', [('cleanup_train', None), ('after_batch', False), ('after_pred', False)])
def test_what_is_undone_in_a_validation_is_not_brought_back(ev, training):
    "A validation restores the attributes of the model: one that a callback has set is gone with it"
    class Wraps(Callback):
        def before_fit(self): m = self.learn.model; m.forward = lambda x: type(m).forward(m, x)
        def cleanup_fit(self): del self.learn.model.forward
    cb,seen = Wraps(),[]
    def remove(learn):
        if training in (None, learn.training) and cb.learn is learn: learn.remove_cb(cb)
    learn = synth_learner(n_valid=3)
    learn.fit(2, cbs=[cb, Callback(**{ev: lambda self: remove(self.learn)}),
        Callback(before_epoch=lambda self: seen.append('forward' in vars(self.model)))])
    assert seen==[True, False] and 'forward' not in vars(learn.model)

class Failing(Heard):
    def cleanup_batch(self):
        self.seen.append(('cleanup_batch', self.learn.epoch, self.learn.iter))
        raise ZeroDivisionError('undo')

def test_a_cleanup_that_fails_does_not_keep_the_outer_ones_from_running():
    cb = Failing()
    learn = synth_learner(n_train=3, n_valid=2)
    remove = at('after_loss', lambda learn: learn.attendance.remove_now(cb))
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1, cbs=[cb, remove])
    seen = names(cb)
    assert [o for o in seen if o.startswith('cleanup_')]==[f'cleanup_{o}' for o in ('batch','train','epoch','fit')]
    assert cb not in learn.cbs and 'raised by `Failing.cleanup_batch`' in e.value.__notes__

def test_what_is_removed_or_replaced_while_others_are_away_stays_so():
    learn = synth_learner(cbs=[MixUp, GradientClip]).add_cb(ProgressCallback).to_fp16()
    half = learn.mixed_precision
    with learn.no_logging():
        learn.remove_cb(MixUp)
        learn.to_bf16()
        with learn.removed_cbs(GradientClip): learn.remove_cb(Recorder)
    assert [o.name for o in learn.cbs]==['train_eval','gradient_clip','progress','mixed_precision']
    assert learn.mixed_precision is not half and learn.mixed_precision.amp_mode=='bf16'

@pytest.mark.parametrize('how', ['no_logging','no_bar','removed_cbs','added_cbs'])
def test_a_learner_that_is_replaced_in_the_block_comes_back_whole(how):
    args = dict(removed_cbs=[Recorder], added_cbs=[Late]).get(how, ())
    learn = synth_learner().add_cbs([ProgressCallback])
    cbs,before = learn.cbs,list(learn.cbs)
    with getattr(learn, how)(*args):
        learn = synth_learner()
        gc.collect()
        assert how=='no_bar' or list(cbs)!=before
    assert list(cbs)==before

class Equal(Callback):
    "Equal to all others of its class"
    def __eq__(self, other): return type(other) is type(self)
    def __hash__(self): return 0
class OneEqual(Equal): only_one = True

def test_a_callback_comes_back_where_another_is_equal_to_it():
    a,b = Equal(),Equal()
    learn = synth_learner(cbs=[a, GradientClip, b])
    before = [*map(id, learn.cbs)]
    with learn.removed_cbs(a): assert [*map(id, learn.cbs)]==[o for o in before if o!=id(a)]
    assert [*map(id, learn.cbs)]==before and learn.equal is a
    with learn.removed_cbs([a, b]): assert a not in learn.cbs and b not in learn.cbs
    assert [*map(id, learn.cbs)]==before

def test_a_callback_that_an_equal_one_replaces_for_a_while_comes_back():
    a,b = OneEqual(),OneEqual()
    learn = synth_learner(cbs=[a, GradientClip])
    before = [*map(id, learn.cbs)]
    with learn.added_cbs(b): assert learn.one_equal is b
    assert [*map(id, learn.cbs)]==before and learn.one_equal is a
