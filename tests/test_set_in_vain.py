"""A hyper-parameter that a callback sets before a schedule sets it again is named once; one that has an effect is not.
A callback of a Learner that is gone is no mistake"""
import textwrap,warnings
import pytest
from learner.all import *

def told(f):
    "Texts of mistakes that `f` tells"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        f()
    return [str(o.message) for o in found if o.category is Mistake]

def sets(order=0, ev='before_batch', f=lambda learn: learn.set_hyper('lr', .01)):
    class Sets(Callback):
        run_valid = False
    setattr(Sets, ev, lambda self: f(self.learn))
    Sets.order = order
    return Sets()

class SetsInCode(Callback):
    "In a branch that the first batches do not reach"
    run_valid = False
    def before_batch(self):
        if self.train_iter>1000: self.learn.set_hyper('lr', .01)

def by_group(learn):
    for g in learn.opt.param_groups: g['lr'] = .01

def lr(): return ParamScheduler(dict(lr=SchedCos(.1, 0)))
def mom(): return ParamScheduler(dict(mom=SchedCos(.9, .8)))

@pytest.mark.parametrize('make', [sets, lambda: sets(f=by_group), SetsInCode, lambda: sets(59)],
    ids=['set_hyper','groups','code','just before'])
def test_a_learning_rate_that_is_set_in_vain_is_named_once_with_the_remedy(make):
    learn = synth_learner(cbs=make())
    name = learn.cbs[-1].name
    found = told(lambda: (learn.fit(2, cbs=lr()), learn.fit(1, cbs=lr())))
    assert len(found)==1 and f"`{name}` sets `lr` at `before_batch`, where `param_scheduler`, a schedule" in found[0]
    assert f"`order = ParamScheduler.order+1` in the class `{type(learn.cbs[-1]).__name__}`" in found[0]

def test_it_is_named_in_the_methods_that_schedule():
    for nm in ('fit_one_cycle','fit_flat_cos'):
        learn = synth_learner(cbs=sets())
        assert len(told(lambda: getattr(learn, nm)(1)))==1

def test_a_function_is_told_how_to_come_later():
    @on(event.before_batch)
    def half(learn): learn.set_hyper('lr', .01)
    [text] = told(lambda: synth_learner(cbs=half).fit(1, cbs=lr()))
    assert '`half` sets `lr`' in text and '`@on(event.before_batch, order=ParamScheduler.order+1)` above it' in text

def test_what_is_told_is_true_and_the_remedy_works():
    seen = []
    see = Callback(before_backward=lambda self: seen.append(self.opt.param_groups[0]['lr']))
    synth_learner(cbs=[sets(), see]).fit(1, cbs=lr())
    assert .01 not in seen
    seen.clear()
    synth_learner(cbs=[sets(ParamScheduler.order+1), see]).fit(1, cbs=lr())
    assert {*seen}=={.01}

@pytest.mark.parametrize('cb,sched', [
    (lambda: sets(ParamScheduler.order+1), lr), (lambda: sets(), mom), (lambda: sets(), lambda: []),
    (lambda: sets(ev='before_step'), lr), (lambda: sets(f=lambda learn: get_hyper(learn.opt, 'lr')), lr),
    (lambda: sets(), lambda: Warmup(3)), (lambda: mom(), lr), (lambda: MixUp(.4), lr)],
    ids=['after it','another','no schedule','at the step','reads','warm-up','two schedules','other'])
def test_nothing_is_told_of_what_has_an_effect(cb, sched):
    assert not told(lambda: synth_learner(cbs=cb()).fit(1, cbs=sched()))

# Callbacks and their learners
def run_script(text, name='<module>'):
    "As a script: its top-level code is the one that is read"
    return told(lambda: exec(compile(textwrap.dedent(text), 'script.py', 'exec').replace(co_name=name), {}))

def test_a_callback_of_a_learner_that_is_gone_is_no_mistake():
    assert not run_script("""
        from learner.all import *
        learn = synth_learner()
        @learn.on(event.after_batch)
        def show(learn): pass
        learn.fit(1)
        learn = synth_learner()
        learn.fit(1)""")

@pytest.mark.parametrize('name', ['<module>','<cell line: 1>']) # as IPython 7 calls it, which Colab has
def test_a_callback_that_was_never_given_to_a_learner_is_one(name):
    [text] = run_script("""
        from learner.all import *
        @on(event.after_batch)
        def show(learn): pass
        learn = synth_learner()
        learn.fit(1)""", name)
    assert '`show`' in text and 'belongs to no Learner' in text and '`learn.add_cb(show)`' in text
