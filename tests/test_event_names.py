"""Names of events of other libraries, and decorators that would lose a method, are refused with what is meant here;
functions hear events of one's own"""
import json,re
from pathlib import Path
import pytest
from learner.all import *
from learner.core.events import ours

# Keras
meant = dict(on_train_begin='before_fit', on_train_end='after_fit', on_epoch_begin='before_epoch',
    on_epoch_end='after_epoch',
    on_train_batch_begin='before_batch', on_test_begin='before_validate', on_predict_batch_end='after_batch',
    # fastai
    begin_fit='before_fit', begin_epoch='before_epoch', begin_train='before_train', begin_validate='before_validate',
    begin_batch='before_batch',
    on_batch_begin='before_batch', on_loss_begin='after_pred', on_backward_begin='before_backward',
    on_backward_end='after_backward',
    # Lightning
    on_fit_start='before_fit', on_train_epoch_start='before_train', on_train_epoch_end='after_train',
    on_train_batch_end='after_batch',
    on_validation_epoch_end='after_validate', on_validation_batch_start='before_batch',
    on_before_backward='before_backward',
    on_before_optimizer_step='before_step', on_before_zero_grad='before_zero_grad', on_exception='after_exception',
    on_sanity_check_start='before_sanity',
    on_save_checkpoint='before_save_state', training_step='before_batch', validation_step='before_batch',
    # Hugging Face
    on_step_end='after_batch', on_evaluate='after_validate', on_log='after_row', on_pre_optimizer_step='before_step',
    on_init_end='after_create', on_substep_end='after_backward', on_prediction_step='after_batch',
    on_save='after_save_state',
    # fastNLP
    on_after_trainer_initialized='after_create', on_evaluate_begin='before_validate',
    on_evaluate_end='after_validate', on_fetch_data_begin='before_draw',
    # pytorch-accelerated
    on_training_run_start='before_fit', on_train_step_start='before_batch', on_eval_epoch_end='after_validate',
    on_train_step_end='after_loss', on_training_run_epoch_end='after_epoch',
    on_stop_training_error='after_cancel_fit', on_evaluation_run_start='before_fit', on_evaluation_run_end='after_fit')

def made_class(name): return type('Mine', (Callback,), {name: lambda self: None})
def made_keyword(name): return Callback(**{name: lambda self: None})
def made_function(name): return on(name)(lambda learn: None)

@pytest.mark.parametrize('make', [made_class, made_keyword, made_function], ids=['class','keyword','on'])
@pytest.mark.parametrize('name', meant)
def test_names_of_other_libraries_are_refused_with_ours(name, make):
    assert meant[name] in event
    with pytest.raises(TypeError,
            match=f'would never run, because no event is called `{name}`: here it is `{meant[name]}`'):
        make(name)

own = dict(batch_end='after_batch', epoch_start='before_epoch', fit_begin='before_fit',
    validation_end='after_validate', step_end='after_batch', **{k:f'after_{k}' for k in cancels})
@pytest.mark.parametrize('name', own)
def test_a_name_that_looks_like_an_event_of_the_library_is_told_where_it_is_listened_to(name, recwarn):
    "It may be an event of one's own, and a callback may have a method of this name"
    heard = []
    synth_learner(cbs=[on(name)(heard.append), type('Mine', (Callback,), {name: lambda self, x: x})])
    assert len(recwarn)==1 and f'`{name}` is an event of your own' in str(recwarn[0].message)
    assert f'Did you mean `{own[name]}`?' in str(recwarn[0].message)

@pytest.mark.parametrize('name', ['stage_end','my_start','warm_up_begin','end','started'])
def test_events_of_your_own_may_be_called_anything_else(name):
    heard = []
    learn = synth_learner(cbs=on(name)(heard.append))
    learn(name)
    assert heard==[learn]

# Names that mean another moment in Lightning than elsewhere, or less than our event
differs = dict(on_train_epoch_end='as in Lightning, comes `after_epoch`', on_train_step_end='ends with `after_batch`',
    on_evaluation_run_start="`learn.mode` is 'validate'", on_evaluation_run_end="`learn.mode` is 'validate'")
pages = sorted((Path(__file__).parent.parent/'nbs/tutorials').glob('from_*.ipynb'))

def rows(page):
    "The rows of a page's tables that give an event for one of another library: its name, and what the row says"
    for cell in json.loads(page.read_text())['cells']:
        if cell['cell_type']!='markdown': continue
        for line in ''.join(cell['source']).splitlines():
            theirs,_,here = line.strip('| ').partition(' | ')
            if line.startswith('| `') and {*re.findall(r'`(\w+)`', here)} & {*event}:
                yield from ((o, here) for o in re.findall(r'\bon_\w+', theirs))

@pytest.mark.parametrize('page', pages, ids=lambda o: o.stem)
def test_an_error_names_the_event_that_the_page_of_that_library_names(page):
    wrong = {o: (ours(o), here) for o,here in rows(page) if f'`{ours(o)}`' not in here and o not in differs}
    assert not wrong

@pytest.mark.parametrize('name', differs)
def test_an_error_says_what_differs_between_libraries(name):
    with pytest.raises(TypeError, match=f'here it is `{meant[name]}`, .*{differs[name]}'): made_class(name)

def test_the_attribute_of_another_library_names_ours_too():
    with pytest.raises(AttributeError, match='No event is called `on_train_begin`: here it is `before_fit`'):
        event.on_train_begin

@pytest.mark.parametrize('name', ['on_monday','begin','verify_batch','on_train','step_size'])
def test_other_names_are_events_of_ones_own(name):
    seen = []
    cls = type('Mine', (Callback,), {name: lambda self, v: seen.append(v)})
    learn = synth_learner(cbs=cls)
    learn.on(name)(lambda learn, v: seen.append(v))
    learn(name, 3)
    assert seen==[3, 3]

def test_a_keyword_of_a_callback_is_an_event():
    with pytest.raises(TypeError,
            match="`Callback\\(foo=…\\)` would never run, because no event is called `foo`.*`@on\\('foo'\\)`, or a "
            "class"):
        Callback(foo=print)
    after_foo = event.register('after_foo')
    try: assert callable(Callback(after_foo=print).handler(after_foo))
    finally: vars(event).pop('after_foo')

def test_functions_take_keyword_arguments_of_events_of_ones_own():
    seen,learn = [],synth_learner()
    @learn.on('verified', every=2)
    def look(learn, a, b=0, *, c): seen.append((a, b, c))
    for i in range(4): learn('verified', i, b=1, c=2)
    assert seen==[(1, 1, 2), (3, 1, 2)]

def test_a_filter_above_a_method_is_refused():
    with pytest.raises(TypeError,
            match=r"`@after_train\(every=2\)` above `look` would lose it: write `@on\(event.after_train\(every=2\)\)`"):
        class Mine(Callback):
            @event.after_train(every=2)
            def look(self): pass
    with pytest.raises(TypeError, match='above `look` would lose it'):
        @Filter('after_train', every=2)
        def look(learn): pass

def test_on_above_a_method_is_refused():
    with pytest.raises(TypeError,
            match=r"`Mine.look` would never run: a method is named after its event, and `@on\(…\)` stands above "
            r"functions"):
        class Mine(Callback):
            @on('after_train', every=2)
            def look(self): pass
    class Holder: # any other class
        @staticmethod
        @on('after_train')
        def look(learn): pass
    assert isinstance(Holder.look, FuncCallback)

# Several events, names of instances, validation batches
def test_several_events_are_fired_in_turn():
    learn = synth_learner(cbs=[trace := Trace('after_loss','before_step')])
    trace.seen.clear()
    learn([event.after_loss, 'before_step'])
    learn(event.before_step|event.after_loss)
    assert trace.seen==['after_loss','before_step','before_step','after_loss']
    got = []
    learn.on('verified')(lambda learn, v, k=0: got.append((v, k)))
    learn(['verified','verified'], 1, k=2)
    assert got==[(1, 2)]*2
    with pytest.raises(TypeError, match='Did you mean `after_batch`'): learn(['after_loss','after_bacth'])
    for o in (3, None, {}): # no name
        with pytest.raises(TypeError, match='An event is a name, or a list of names, but got'): learn(o)

def test_a_name_that_is_given_to_an_instance_stays_in_any_order():
    def clips():
        a,b = GradientClip(1.),GradientClip(2.)
        a.name,b.name = 'first','second'
        return a,b
    for turn in (1, -1):
        learn = synth_learner(cbs=clips()[::turn])
        assert (learn.first.max_norm,learn.second.max_norm)==(1., 2.)
    learn.remove_cb(cb := learn.first)
    assert not hasattr(learn, 'first') and learn.add_cb(cb).first is cb

def test_the_state_of_two_of_one_class_finds_its_own_in_another_order(tmp_path):
    class Counts(Callback):
        _stateattrs = ('n',)
        def __init__(self, step, name): self.step,self.name = step,name
        def before_fit(self): self.n = 0
        def after_step(self): self.n += self.step
    def cbs(): return [Counts(1, 'ones'), Counts(10, 'tens')]
    with pytest.raises(ZeroDivisionError):
        synth_learner(path=tmp_path, cbs=[*cbs(), Checkpoint(), Raise('after_epoch', ZeroDivisionError, 2)]).fit(3)
    learn = synth_learner(path=tmp_path,
        cbs=[*cbs()[::-1], Checkpoint(), Raise('after_epoch', ZeroDivisionError, 9)]).fit(3, resume=True)
    assert (learn.ones.n,learn.tens.n)==(30, 300)

def test_names_that_cannot_be_are_refused():
    cb,other = GradientClip(),GradientClip()
    with pytest.raises(ValueError, match="`name` is an identifier, as in `learn.gradient_clip`, but got 'my clip'"):
        cb.name = 'my clip'
    cb.name = other.name = 'mine'
    learn = synth_learner(cbs=cb)
    with pytest.raises(ValueError, match='Another callback is called `mine` already'): learn.add_cb(other)
    with pytest.raises(ValueError, match='`GradientClip` is attached as `mine` already: give it a `name` before'):
        cb.name = 'yours'
    other.name = 'model'
    with pytest.raises(ValueError, match='would replace `learn.model`'): learn.add_cb(other)
    assert learn.cbs.attrgot('name').count('mine')==1

@pytest.mark.parametrize('given,seen',
    [(dict(every=2), [2,4,2,4]), (dict(every=2, valid=True), [2,4,1,2,4,1]), (dict(once=5), [1]),
        (dict(once=5, valid=True), [0])])
def test_a_filter_counts_training_batches_unless_asked(given, seen):
    got,learn = [],synth_learner(4, 2)
    learn.on(event.after_batch(**given))(
        lambda learn: got.append(learn.iter+1 if given.keys()&{'every'} else learn.epoch))
    learn.fit(2)
    if 'valid' in given and 'every' in given: seen = [2,4,2,2,4,2]
    assert got==seen

@pytest.mark.parametrize('given,seen', [({}, [(True,1), (True,3)]), (dict(unit='iter'), [(True,1), (True,3)]),
    (dict(valid=True), [(True,1), (True,3), (False,1)])], ids=['training','unit','valid'])
@pytest.mark.parametrize('name', ['when','filter_fn'])
def test_a_condition_on_the_count_counts_training_batches_too(name, given, seen):
    got,learn = [],synth_learner(4, 2)
    odd = {name: lambda filt, learn: filt.num_called%2}
    learn.on(event.before_batch(**odd, **given))(lambda learn: got.append((learn.training, learn.iter+1)))
    learn.fit(1)
    assert got==seen

def test_a_filter_counts_in_a_validation_of_its_own():
    got = []
    synth_learner(2, 4).validate(cbs=on(event.after_batch(every=2))(lambda learn: got.append(learn.iter)))
    assert got==[1,3]

def test_valid_is_a_flag():
    with pytest.raises(TypeError, match='`valid` is True or False, but got 2'): event.after_batch(every=2, valid=2)
    assert repr(event.after_batch(every=2, valid=True))=='after_batch(every=2, valid=True)'

def test_a_logger_of_fastai_is_refused_aloud():
    learn = synth_learner()
    learn.logger = print
    with pytest.raises(ValueError, match='`learn.logger` is not called here.*`after_row`'): learn.fit(1)
    del learn.logger
    class Logger(Callback): pass
    assert synth_learner(cbs=Logger).fit(1).train_iter==10

def test_a_plain_event_above_a_method_is_refused():
    with pytest.raises(TypeError,
            match=r"`event.after_train` takes a filter by name, such as `every=2`, but got <function "
            r".*`@on\(event.after_train\)`"):
        class Mine(Callback):
            @event.after_train
            def look(self): pass

def test_events_of_ones_own_obey_run_alone():
    class Listens(Callback):
        only_fit,run_train,run_valid,heard = True,False,False,0
        def verified(self): self.heard += 1
    learn = synth_learner(cbs=Listens)
    learn('verified')
    learn.listens.run = False
    learn('verified')
    assert learn.listens.heard==1

def test_a_handler_that_needs_more_than_the_callback_is_refused_when_it_is_defined():
    def mk(**fns): return type('Mine', (Callback,), fns)
    def of_lightning(self, trainer, batch): pass
    def nothing(): pass
    for make in (lambda: mk(after_batch=of_lightning), lambda: Callback(after_batch=of_lightning)):
        with pytest.raises(TypeError, match="after_batch.*` takes `trainer`, `batch`, which the event does not give: a "
                "handler takes `self` alone, and reads what the Learner has as `self.learn`"): make()
    with pytest.raises(TypeError, match="`Mine.after_fit` takes nothing, .* write `self` first"): mk(after_fit=nothing)
    with pytest.raises(TypeError, match='`nothing` takes nothing, and is called with the Learner: write `learn` first'):
        on(event.after_batch(every=10))(nothing)
    with pytest.raises(TypeError, match='takes `trainer`, `batch`, .* a handler takes `learn` alone'):
        on('after_batch')(lambda learn, trainer, batch: None)
    on('look')(lambda learn, trainer, batch: None) # an event of one's own may give more
    seen = []
    def usual(self, n=1, *args, **kwargs): seen.append(n)
    fs = dict(before_fit=usual, before_epoch=staticmethod(lambda: seen.append(2)), look=of_lightning)
    synth_learner(cbs=mk(**fs)).fit(1)
    assert seen==[1, 2]

# What a subclass would extend, and what fastai has for the order
def test_a_tracker_that_extends_what_trackers_do_not_have_is_refused():
    "fastai's trackers act in `after_epoch`"
    with pytest.raises(TypeError, match=r'`Late.after_epoch` calls `super\(\).after_epoch\(\)`, which trackers do not'):
        class Late(EarlyStoppingCallback):
            def after_epoch(self):
                if self.epoch>3: super().after_epoch()
    class Extends(EarlyStoppingCallback):
        def act(self, val): super().act(val)
        def after_epoch(self): pass

@pytest.mark.parametrize('name', ['run_after','run_before'])
def test_what_decides_the_order_in_fastai_is_refused(name):
    with pytest.raises(TypeError, match=rf'`Mine.{name}` would have no effect: write `order = Other.order.1`'):
        type('Mine', (Callback,), {name:Recorder})
