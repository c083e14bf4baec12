"What to write where a model, its batches and its loss do not fit together"
from collections.abc import Mapping
import torch
from ..core.checks import listed
from ..data.loaders import target_names
from ..model.mapping import takes

def _loss_for(yb):
    "A loss that fits the targets, or nothing"
    if len(yb)!=1 or not isinstance(yb[0], torch.Tensor): return ''
    return 'MSELoss' if yb[0].is_floating_point() else 'CrossEntropyLoss'

def _without_loss_func(learn, out):
    xb,model = learn.xb,learn.model
    if isinstance(xb, Mapping) and takes(model, 'labels') and 'labels' not in xb:
        given = [k for k in target_names if k in xb] or [*xb][-1:]
        return (f"`{type(model).__name__}.forward` computes it from `labels`: "
            f"write `cbs=MapBatch(dict({given[0]}='labels'))`")
    if isinstance(out, (tuple,list)) and (at := [i for i,o in enumerate(out) if getattr(o, 'ndim', 1)==0]):
        return f"Write `cbs=MapPred(lambda o: dict(loss=o[{at[0]}], logits=o[{int(at[0]==0)}]))`"
    name = _loss_for(learn.yb)
    return "Give a `loss_func`" + (f", such as `Learner(dls, model, nn.{name}())`" if name else "")

def _without_targets(learn):
    xb = learn.xb
    if isinstance(xb, Mapping):
        return f"Its fields are {listed(xb)}. Of one of them, write `cbs=MapBatch(dict({[*xb][-1]}='labels'))`"
    return ("`DataLoaders(…, split=f)` says what the targets are: of a model that reconstructs its inputs, "
        "`split=lambda b: ((b,), (b,))`")

def no_loss(learn, out):
    "Why there is no loss, and what to write"
    if learn.loss_func is None: why,instead = "`loss_func` is None",_without_loss_func(learn, out)
    else: why,instead = f"a batch of `{learn.dl_name}` has no targets",_without_targets(learn)
    return f"There is no loss: {why}, and the model returned no loss, but {type(out).__name__}. {instead}"
