"""Each argument of the core and of the loop × values of the wrong type or size: accepted where they make sense, else
refused where they are given, with the name of the argument and the value"""
import math,re
from functools import partial
import pytest,torch
from torch import nn
from learner.all import *

values = dict(text='x', negative=-1, fraction=1.5, nan=math.nan, inf=math.inf, empty=[], dict={}, object=object(),
    true=True, cls=dict, zero=0, bytes=b'x')

def a_learner(**kwargs):
    return Learner(**(dict(dls=synth_dls(2, 1), model=RegModel(), loss_func=nn.MSELoss(), default_cbs=False) | kwargs))
def fit(**kwargs): return synth_learner(2, 1).fit(**(dict(n_epoch=1) | kwargs))
def listen(**kwargs): return on(**(dict(ev='after_batch') | kwargs))(lambda learn: 0)
def a_filter(**kwargs): return Filter(**(dict(event='after_batch') | kwargs))
def pause(**kwargs): return synth_learner(2, 1).at_pause(**(dict(f=print) | kwargs))
def raises(**kwargs): return Raise(**(dict(ev='after_batch', exc=ValueError) | kwargs))
def set_hyper(v): return synth_learner(2, 1).set_hyper('lr', v)
def freeze_to(n): return synth_learner(2, 1).freeze_to(n)
def name(name): GradientClip().name = name

counts,bounds,ranks,flags,rates = {'zero'},{'negative','fraction','zero'},{'negative','fraction','zero'},{'true',
    'zero'},{'fraction','zero'}
functions = {'cls'} # a class can be called
ok = { # values that are accepted, by function and argument
    a_learner: dict(dls=set(), model=set(), loss_func=functions, opt_func=set(), splitter=functions, lr=rates, wd=rates,
        path={'text'}, model_dir={'text'}, wd_bn_bias=flags, train_bn=flags, default_cbs=flags, moms=set()),
    fit: dict(n_epoch=counts, start_epoch=counts, n_iter=counts, n_step=counts, lr=rates, wd=rates, reset_opt=flags),
    listen: dict(ev={'text'}, order=ranks, every=set(), once=set(), after=bounds, before=bounds, unit=set(),
        when=functions, filter_fn=functions, valid=flags),
    a_filter: dict(event={'text'}, every=set(), once=set(), after=bounds, before=bounds, unit=set(), when=functions,
        filter_fn=functions, valid=flags),
    pause: dict(f=functions, stops=flags), raises: dict(exc=set(), n=set(), order=ranks),
    freeze_to: dict(n={'negative','zero'}), name: dict(name={'text'}),
    synth_dls: dict(n_train=set(), n_valid=counts, bs=set(), shuffle=flags, num_workers=counts)}

@pytest.mark.parametrize('f,arg', [(f, k) for f,args in ok.items() for k in args],
    ids=lambda o: getattr(o, '__name__', o))
def test_a_wrong_value_is_refused_where_it_is_given(f, arg, tally):
    for kind,v in values.items():
        if kind in ok[f][arg]: f(**{arg: v}); tally('accepted, as it means something'); continue
        with pytest.raises((TypeError,ValueError)) as e: f(**{arg: v})
        text = str(e.value)
        assert f'`{arg}`' in text and any(o in text for o in (repr(v), str(v), type(v).__name__)), text
        tally('refused clearly')

@pytest.mark.parametrize('v,text',
    [(-1, '`lr` is 0 or more, but got -1.0$'), (True, '`lr` is a number, or one per parameter group, but got'),
        ([.1, -.1], '`lr` is 0 or more')])
def test_rates_that_no_optimizer_could_have(v, text):
    learn = synth_learner(2, 1, splitter=lambda m: [[m.a], [m.b]], opt_func=SGD)
    with pytest.raises((TypeError,ValueError), match=text): learn.fit(1, lr=v)
    with pytest.raises((TypeError,ValueError), match=text): learn.set_hyper('lr', v)

@pytest.mark.parametrize('kwargs',
    [dict(lr=slice(1e-4, 1e-2)), dict(lr=[.1, .2]), dict(lr=torch.tensor([.1, .2])), dict(lr=torch.tensor(.1)),
        dict(wd=[0., .1]), dict(lr=0, wd=0)])
def test_rates_in_every_form(kwargs):
    learn = a_learner(splitter=lambda m: [[m.a], [m.b]], **kwargs)
    assert learn.fit(1).opt_step==2

@pytest.mark.parametrize('f,theirs,ours',
    [('fit', 'callbacks', 'cbs'), ('fit', 'max_lr', 'lr'), ('fit', 'n_epochs', 'n_epoch'),
        ('fit_one_cycle', 'max_lr', 'lr_max'), ('fit', 'weight_decay', 'wd'), ('fit', 'max_steps', 'n_step'),
        ('fit', 'n_batches', 'n_iter'), ('fit', 'ckpt_path', 'resume'), ('fine_tune', 'n_epochs', 'epochs')])
def test_names_of_arguments_of_other_libraries_are_answered_with_ours(f, theirs, ours):
    with pytest.raises(TypeError, match=f'has no argument `{theirs}`. Did you mean `{ours}`'):
        getattr(synth_learner(), f)(1, **{theirs: 1})
    with pytest.raises(TypeError, match='has no argument `criterion`. Did you mean `loss_func`'):
        Learner(synth_learner().dls, torch.nn.Linear(1, 1), criterion=torch.nn.MSELoss())

@pytest.mark.parametrize('name,instead', [('n_epochs', 'learn.fit(n_epoch)'), ('fp16', 'learn.to_fp16()'),
    ('evaluate_every', 'cbs=Validate(every=2)'), ('monitor', "learn.monitor = 'accuracy'"),
    ('accumulation_steps', 'cbs=GradientAccumulation(n)'), ('overfit_batches', 'cbs=Overfit(k)'),
    ('train_dataloader', 'Learner(DataLoaders(train_dl, valid_dl), model, …)'),
    ('train_fn', "cbs=Forward('train_step'"),
    ('input_mapping', 'cbs=[MapBatch(f), MatchArgs]'), ('progress_bar', 'cbs=ProgressCallback(bars)'),
    ('create_scheduler_fn', 'cbs=TorchScheduler(make'), ('gradient_clip_val', 'cbs=GradientClip(max_norm)'),
    ('batch_size', 'DataLoaders.from_dsets(train, valid, bs=64)')])
def test_an_argument_of_another_trainer_is_answered_with_what_does_the_same(name, instead):
    with pytest.raises(TypeError, match=f'has no argument `{name}`.*{re.escape(instead)}'):
        Learner(synth_learner().dls, torch.nn.Linear(1, 1), **{name: 1})

@pytest.mark.parametrize('cls,theirs,ours', [
    (EarlyStoppingCallback, 'early_stopping_patience', 'Did you mean `patience`'),
    (EarlyStoppingCallback, 'mode', 'Did you mean `comp`'),
    (SaveModelCallback, 'watch_metric', 'Did you mean `monitor`'),
    (SaveModelCallback, 'save_top_k', 'Write `SaveModelCallback(monitor, keep=k, load_best=False)`'),
    (Checkpoint, 'topk', 'Did you mean `best`'), (TorchScheduler, 'step_on', 'Did you mean `unit`')])
def test_an_argument_of_another_librarys_callback_is_answered_with_ours(cls, theirs, ours):
    with pytest.raises(TypeError, match=f'has no argument `{theirs}`. {re.escape(ours)}'): cls(**{theirs: 3})

@pytest.mark.parametrize('make', [partial(TorchScheduler, torch.optim.lr_scheduler.StepLR), Validate, Checkpoint],
    ids=['TorchScheduler','Validate','Checkpoint'])
def test_a_unit_of_batches_is_answered_with_both_that_exist(make):
    with pytest.raises(ValueError, match="but got 'batch'. `iter` counts training batches, `step` optimizer steps"):
        make(unit='batch')
