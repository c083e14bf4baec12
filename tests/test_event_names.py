"Names of events of other libraries, and decorators that would lose a method, are refused with what is meant here; functions hear events of one's own"
import pytest
from learner.all import *

meant = dict(on_train_begin='before_fit', on_train_end='after_fit', on_epoch_begin='before_epoch', on_epoch_end='after_epoch',         # Keras
    on_train_batch_begin='before_batch', on_test_begin='before_validate', on_predict_batch_end='after_batch',
    begin_fit='before_fit', begin_epoch='before_epoch', begin_train='before_train', begin_validate='before_validate', begin_batch='before_batch', # fastai
    on_batch_begin='before_batch', on_loss_begin='after_pred', on_backward_begin='before_backward', on_backward_end='after_backward',
    on_fit_start='before_fit', on_train_epoch_start='before_train', on_train_epoch_end='after_train', on_train_batch_end='after_batch', # Lightning
    on_validation_epoch_end='after_validate', on_validation_batch_start='before_batch', on_before_backward='before_backward',
    on_before_optimizer_step='before_step', on_before_zero_grad='before_zero_grad', on_exception='after_exception', on_sanity_check_start='before_sanity',
    on_save_checkpoint='before_save_state', training_step='before_batch', validation_step='before_batch',
    on_step_end='after_batch', on_evaluate='after_validate', on_log='after_row', on_pre_optimizer_step='before_step',              # Hugging Face
    on_evaluate_begin='before_validate', on_evaluate_end='after_validate', on_fetch_data_begin='before_draw',                     # fastNLP
    on_training_run_start='before_fit', on_train_step_start='before_batch', on_eval_epoch_end='after_validate', on_training_run_epoch_end='after_epoch') # pytorch-accelerated

def made_class(name): return type('Mine', (Callback,), {name: lambda self: None})
def made_keyword(name): return Callback(**{name: lambda self: None})
def made_function(name): return on(name)(lambda learn: None)

@pytest.mark.parametrize('make', [made_class, made_keyword, made_function], ids=['class','keyword','on'])
@pytest.mark.parametrize('name', meant)
def test_names_of_other_libraries_are_refused_with_ours(name, make):
    assert meant[name] in event
    with pytest.raises(TypeError, match=f'would never run, because no event is called `{name}`: here it is `{meant[name]}`'): make(name)

def test_the_attribute_of_another_library_names_ours_too():
    with pytest.raises(AttributeError, match='No event is called `on_train_begin`: here it is `before_fit`'): event.on_train_begin

@pytest.mark.parametrize('name', ['on_monday','begin','verify_batch','on_train','step_size'])
def test_other_names_are_events_of_ones_own(name):
    seen = []
    cls = type('Mine', (Callback,), {name: lambda self, v: seen.append(v)})
    learn = synth_learner(cbs=cls)
    learn.on(name)(lambda learn, v: seen.append(v))
    learn(name, 3)
    assert seen==[3, 3]

def test_a_keyword_of_a_callback_is_an_event():
    with pytest.raises(TypeError, match="`Callback\\(foo=…\\)` would never run, because no event is called `foo`.*`@on\\('foo'\\)`, or a class"): Callback(foo=print)
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
    with pytest.raises(TypeError, match=r"`@after_train\(every=2\)` above `look` would lose it: write `@on\(event.after_train\(every=2\)\)`"):
        class Mine(Callback):
            @event.after_train(every=2)
            def look(self): pass
    with pytest.raises(TypeError, match='above `look` would lose it'):
        @Filter('after_train', every=2)
        def look(learn): pass

def test_on_above_a_method_is_refused():
    with pytest.raises(TypeError, match=r"`Mine.look` would never run: a method is named after its event, and `@on\(…\)` stands above functions"):
        class Mine(Callback):
            @on('after_train', every=2)
            def look(self): pass
    class Holder: # any other class
        @staticmethod
        @on('after_train')
        def look(learn): pass
    assert isinstance(Holder.look, FuncCallback)
