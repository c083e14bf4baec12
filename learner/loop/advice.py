"What to write where a model, its batches and its loss do not fit together"
from collections.abc import Mapping
from inspect import Parameter,signature
import torch
from ..core.checks import listed,short_name
from ..data.loaders import target_names
from ..model.mapping import part_of,pred_names,takes,takes_tensors
from ..model.weights import unwrapped

# No loss

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

# Errors of model and loss

def _text(o):
    "What `o` is, as far as shapes and types tell"
    if isinstance(o, torch.Tensor): return f"{tuple(o.shape)} {str(o.dtype).removeprefix('torch.')}"
    if isinstance(o, Mapping): return ', '.join(f'{k}: {_text(v)}' for k,v in o.items())
    kind = type(o).__name__
    return f"{kind} of {', '.join(map(_text, o))}" if isinstance(o, (tuple,list)) and 0<len(o)<=4 else kind

def _texts(os): return _text(os) if isinstance(os, Mapping) else ', '.join(map(_text, os)) or 'nothing'

def _changed(learn, part, call):
    "A `MapBatch` that changes the first or last part of a batch by `call`"
    b = learn.batch
    if isinstance(b, Mapping):
        k = next((k for k,v in b.items() if v is (learn.yb[0] if part=='last' else [*b.values()][0])), [*b][0])
        return f"`cbs=MapBatch(lambda b: {{**b, '{k}': b['{k}']{call}}})`"
    return f"`cbs=MapBatch(lambda b: (b[0]{call}, *b[1:]))`" if part=='first' else \
        f"`cbs=MapBatch(lambda b: (*b[:-1], b[-1]{call}))`"

def _of_inputs(learn, e):
    "What to write, if inputs do not fit the model"
    xb,b = learn.xb,learn.batch
    if isinstance(xb, Mapping) or not isinstance(b, (tuple,list)): return ''
    ps = [p for p in signature(unwrapped(learn.model).forward).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    least,most = sum(p.default is Parameter.empty for p in ps),len(ps)
    if not any(p.kind is p.VAR_POSITIONAL for p in ps) and not least<=len(xb)<=most:
        wanted = least if len(xb)<least else most
        if 0<wanted<len(b):
            return f"It takes {wanted}, and a batch has {len(b)} parts: write `DataLoaders(…, n_inp={wanted})`"
        return f"It takes {wanted}, and a batch has {len(b)} parts"
    if any(type(o).__module__=='numpy' for o in b):
        return "Arrays become tensors by `cbs=MapBatch(lambda b: tuple(map(torch.as_tensor, b)))`"
    types = {p.dtype for p in learn.model.parameters()}
    if isinstance(xb[0], torch.Tensor) and types=={torch.float32}!={xb[0].dtype} and 'type' in str(e):
        return f"Its weights are float32: write {_changed(learn, 'first', '.float()')}"
    return ''

def _is_class_loss(f): return any(o in short_name(f).lower() for o in ('cross_entropy','crossentropy','nll')) \
    and 'binary' not in short_name(f)

def _of_targets(learn, e):
    "What to write, if predictions and targets do not fit the loss"
    pred,yb,f = learn.pred,learn.yb,learn.loss_func
    if not isinstance(pred, torch.Tensor):
        k = next((k for k in pred_names if isinstance(part_of(pred, k), torch.Tensor)), None)
        tensors = isinstance(pred, (tuple,list)) and any(isinstance(o, torch.Tensor) for o in pred)
        part = '[0]' if k is None and tensors else k and (f"['{k}']" if isinstance(pred, Mapping) else f'.{k}')
        return f"If predictions are one part of it, write `cbs=MapPred(lambda o: o{part})`" if part else ''
    if len(yb)>1 and isinstance(e, TypeError) and isinstance(learn.batch, (tuple,list)):
        return f"For one target, write `DataLoaders(…, n_inp={len(learn.batch)-1})`"
    targ = yb[0] if yb else None
    if not isinstance(targ, torch.Tensor):
        return "Arrays become tensors by `cbs=MapBatch(lambda b: tuple(map(torch.as_tensor, b)))`" \
            if type(targ).__module__=='numpy' else "Targets are tensors of numbers"
    if not takes_tensors(f): return '' # one's own, which may want anything
    return _of_classes(learn, pred, targ) if _is_class_loss(f) else _of_numbers(learn, pred, targ)

def _of_classes(learn, pred, targ):
    calls = '.long()' if targ.is_floating_point() and targ.shape!=pred.shape else ''
    if targ.ndim==pred.ndim and targ.shape[1:2]==(1,): calls = '.squeeze(1)'+calls
    if calls: return f"Targets are classes, one for each sample: write {_changed(learn, 'last', calls)}"
    n = pred.shape[1] if pred.ndim>1 else len(pred)
    if targ.is_floating_point() or not targ.numel() or targ.max()<n: return ''
    if n==1: return ("There is one score for each sample: give the model one for each class, "
        "or use `nn.BCEWithLogitsLoss()`")
    return f"There are {n} scores for each sample, for classes from 0 to {n-1}, and targets up to {targ.max()}"

def _of_numbers(learn, pred, targ):
    calls = ''
    if targ.shape!=pred.shape and targ.numel()==pred.numel():
        calls = '[:, None]' if pred.shape==(*targ.shape, 1) else f'.view({", ".join(map(str, (-1, *pred.shape[1:])))})'
    if not targ.is_floating_point(): calls += '.float()'
    return f"Write {_changed(learn, 'last', calls)}" if calls else ''

def advice(learn, e):
    "A note on an error `e` of model or loss: what they got, and what to write; empty where the error says enough"
    try: return _advice(learn, e)
    except Exception: return '' # after an error of a device, no tensor can be read

def _advice(learn, e):
    known = (TypeError,ValueError,RuntimeError,IndexError,NotImplementedError)
    if type(e) not in known or learn.xb is None or learn.loss is not None: return ''
    if any(o.startswith('raised by') for o in getattr(e, '__notes__', ())) or '`' in str(e): return ''
    if learn.pred is None: got,instead = f"the model got {_texts(learn.xb)}",_of_inputs(learn, e)
    elif learn.yb and learn.loss_func is not None:
        got,instead = f"the loss got {_text(learn.pred)}, and targets {_texts(learn.yb)}",_of_targets(learn, e)
    else: return ''
    return f"{got}. {instead}" if instead else got
