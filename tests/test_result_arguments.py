"""Arguments of predictions, pictures, mixtures, hooks and loggers are checked where they are given: name, value,
expectation"""
import matplotlib
matplotlib.use('agg')
import pytest,torch
from torch import nn
from learner.all import *

class Learn:
    "Made when it is needed"
    def __get__(self, *args): return synth_learner()
class Here: learn = Learn()
here = Here()
def interp(): return ClassificationInterpretation.from_learner(here.learn)

flags = ['yes', 2, None, [], .5]
number = ['a', [], {}, object()]
cases = dict(
    get_preds=(lambda **k: here.learn.get_preds(**k),
        dict(with_input=flags, with_decoded=flags, with_loss=flags, inner=flags, reorder=flags, with_preds=flags,
            with_targs=flags, act=[3, 'softmax'], save_preds=[3, [], 1.5], save_targs=[3], concat_dim=['a', 1.5, -99])),
    gather=(GatherPredsCallback,
        dict(with_input=flags, with_loss=flags, act=[3], dec=['argmax'], save_preds=[3], n=[-1, 1.5, 'a'],
            concat_dim=['a', 1.5])),
    fetch=(FetchPredsCallback, dict(with_input=flags, with_decoded=flags, reorder=flags, cbs=[3, 'ema', [3]])),
    per_sample=(per_sample, dict(loss_func=[3, None, 'mse'])),
    predict=(lambda **k: here.learn.predict(torch.zeros(1), **k), dict(with_input=flags)),
    tta=(lambda **k: here.learn.tta(**k),
        dict(n=[0, -1, 1.5, 'a', None], aug=[3, 'flip'], beta=['a', 2, -.1, float('nan'), []], use_max=flags)),
    show=(lambda **k: here.learn.show_results(**k),
        dict(max_n=[0, 1.5, 'a', None], shuffle=flags, ncols=[0, 1.5, 'a'],
            figsize=[3, 'big', (1,), (1,2,3), (0,3), ('a',3), (3,float('inf'))])),
    interp=(lambda **k: Interpretation.from_learner(here.learn, **k), dict(act=[3, 'softmax'])),
    top_losses=(lambda **k: interp().top_losses(**k), dict(k=[0, -1, 1.5, 'a'], largest=flags, items=flags)),
    plot_top_losses=(lambda **k: interp().plot_top_losses(**k),
        dict(k=[0, -1, 1.5], largest=flags, ncols=[0, 'a'], figsize=[3, (0,1)])),
    confusion=(lambda **k: interp().plot_confusion_matrix(**k),
        dict(normalize=flags, title=[3, None], norm_dec=[-1, 1.5, 'a'], plot_txt=flags, figsize=[3, (0,1)])),
    most_confused=(lambda **k: interp().most_confused(**k), dict(min_val=[-1, 1.5, 'a'])),
    mixup=(MixUp, dict(alpha=[0, -1, float('nan'), float('inf'), *number, None], by_sample=['yes', 2, []])),
    cutmix=(CutMix, dict(alpha=[0, -1, float('nan'), float('inf'), *number, None])),
    hook=(lambda **k: Hook(nn.Linear(1,1), print, **k), dict(is_forward=flags, detach=flags, cpu=flags, when=[3])),
    hook_output=(lambda **k: hook_output(nn.Linear(1,1), **k), dict(detach=flags, cpu=flags, grad=flags)),
    hook_callback=(lambda **k: HookCallback(**{'hook': print} | k),
        dict(every=[0, -1, 1.5, 'a'], remove_end=flags, is_forward=flags, detach=flags, cpu=flags,
            include_paramless=flags, hook=[3, 'f'])),
    stats=(ActivationStats, dict(with_hist=flags, every=[0, 'a'])),
    csv=(CSVLogger, dict(append=flags, fname=[3, None, '', '../x'])),
    json=(JSONLogger, dict(append=flags, batches=[-1, 1.5, 'a', None], fname=[3, '..'])),
    board=(TensorBoardLogger, dict(batches=[-1, 1.5, 'a', None], graph=flags, log_dir=[3, '', '../x'])),
    wandb=(WandbLogger, dict(batches=[-1, 1.5, 'a', None])),
)
@pytest.mark.parametrize('name', cases)
def test_arguments_are_checked_where_they_are_given(name, tally):
    f,args = cases[name]
    for k,values in args.items():
        for v in values:
            with pytest.raises((TypeError,ValueError)) as e: f(**{k:v})
            text = str(e.value)
            said = f'`{k}`' in text or 'A file is' in text or 'names no file' in text
            assert said and ('but got' in text or 'names no file' in text), (k, v, text)
            tally('refused clearly')

def test_good_values_are_taken():
    for k,(f,_) in cases.items():
        k in ('confusion','most_confused') or f(**({'loss_func': print} if f is per_sample else {}))
    here.learn.get_preds(concat_dim=None); here.learn.get_preds(act=None, save_preds=None)
    MixUp(by_sample=None); MixUp(torch.tensor(.4)); here.learn.tta(beta=None); here.learn.tta(beta=1)
    here.learn.show_results(ncols=None, figsize=None)
