"""Mistakes that do not fail are told within the first batches, once, and silenced by a word; nothing is told of what
is right. Mutants of callbacks are noticed"""
import itertools,random,re,runpy,sys,warnings
from functools import partial
from types import SimpleNamespace
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler,DataLoader,Sampler,Subset,SubsetRandomSampler,TensorDataset
from torch.utils.data import WeightedRandomSampler
from learner.all import *
from learner.core.dispatch import Watched
from learner.diagnose.mistakes import kinds
from learner.diagnose.code import functions_of
from learner.diagnose.names import check_names,one_letter
import mutants

def warned(learn, n=1, **kwargs):
    "Texts of mistakes that a fit tells"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn.fit(n, **kwargs)
    return [str(o.message) for o in found if o.category is Mistake]

# Planted mistakes
class Unused(RegModel):
    def __init__(self): super().__init__(); self.head = nn.Linear(1, 1)

class Flat(nn.Module):
    "Its loss is the same for every batch"
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x): return 0*self.l(x)

class State(nn.Module):
    def __init__(self): super().__init__(); self.l,self.h = nn.Linear(1, 1),torch.zeros(())
    def reset(self): self.h = torch.zeros(())
    def forward(self, x):
        self.h = .9*self.h + .1*self.l(x).mean().detach()
        return self.l(x)+self.h

class Double(Callback):
    def after_loss(self): self.learn.loss_grad = 2*self.loss_grad
class Cut(Callback):
    def after_loss(self): self.learn.loss_grad = self.loss_grad.clamp(max=1.)
class Norm(Callback):
    def __init__(self, k): self.k = k
    def before_step(self): torch._foreach_mul_([p.grad for p in self.model.parameters()], self.k)
class ToOne(Callback):
    def before_step(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.)
class Doubles(Callback):
    def before_batch(self): self.learn.hx = 2*self.x

same = [(torch.ones(4, 1), torch.ones(4, 1))]*20
def only_b(learn): learn.opt_func = torch.optim.SGD([learn.model.b], .01); return learn
class NoTargets(AvgMetric):
    def accumulate(self, learn): pass

class Looks(Callback):
    "Looks at predictions in the middle of training, and leaves the model as that needs it"
    def after_batch(self):
        if self.training and self.iter==1: self.model.eval()
def classes(*last, loss_func=None, n=3):
    y = torch.arange(12)%3 if n==3 else torch.arange(12)[:,None]%2.
    return synth_learner(dls=DataLoaders([(torch.randn(12, 4), y)]*3, device='cpu'),
        model=nn.Sequential(nn.Linear(4, n), *last), loss_func=loss_func or nn.CrossEntropyLoss())

class Renamed(nn.CrossEntropyLoss): "Computes what the class of torch computes"
class OfProbs(nn.CrossEntropyLoss):
    "Takes probabilities"
    def forward(self, p, y): return F.nll_loss(p.log(), y)
class OfProbsToo(nn.BCEWithLogitsLoss):
    def forward(self, p, y): return F.binary_cross_entropy(p, y)
class OfProbsFlat(CrossEntropyLossFlat):
    def __call__(self, p, y): return F.nll_loss(p.log(), y)
class OfFirst(nn.NLLLoss):
    "Takes the first of two outputs"
    def forward(self, out, y): return super().forward(out[0], y)
class AndInputs(nn.Module):
    def forward(self, x): return x.log_softmax(1),x
class GivesFirst(Callback):
    "Gives the loss the first of two outputs, and others both"
    def after_pred(self): self.both = self.pred; self.learn.pred = self.pred[0]
    def after_loss(self): self.learn.pred = self.both

class InList(nn.Module):
    "Has layers in a plain list or dict"
    def __init__(self, kind):
        super().__init__()
        self.l,self.body = nn.Linear(1, 1),kind(nn.Linear(1, 1))
    def forward(self, x): return self.l([*(self.body.values() if isinstance(self.body, dict) else self.body)][0](x))
class ScaledLoss(nn.MSELoss):
    def __init__(self): super().__init__(); self.scale = nn.Parameter(torch.ones(()))
    def forward(self, p, t): return self.scale*super().forward(p, t)
class MadeLate(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x):
        if not hasattr(self, 'first'): self.first = nn.Linear(1, 1)
        return self.l(self.first(x))

class Drops(RegModel):
    "Drops inputs by a function, which has to be told the mode"
    def forward(self, x): return super().forward(F.dropout(x, .1))
class DropsInside(RegModel):
    def forward(self, x):
        def drop(x): return torch.nn.functional.dropout1d(x[None], p=.1, inplace=False)[0]
        return super().forward(drop(x))
class Attends(RegModel):
    drop = .1
    def forward(self, x):
        return super().forward(F.scaled_dot_product_attention(x[None], x[None], x[None], None, self.drop)[0])
class MeansToDrop(RegModel):
    "Drops values always, or is told when"
    @property
    def p(self): return .1 if self.training else 0.
    def forward(self, x, given=dict(training=True)):
        x,q = F.dropout(F.dropout(F.dropout(x, .1, True), .1, training=True), .1, **given),x[None]
        y = F.scaled_dot_product_attention(q, q, q) + F.scaled_dot_product_attention(q, q, q, dropout_p=self.p)
        return super().forward(x + y[0] + F.scaled_dot_product_attention(q, q, q, dropout_p=0.)[0])
class AsksForMode(RegModel):
    "Drops values by a method that is called in training only"
    def drop(self, x): return F.dropout(x, .1)
    def forward(self, x): return super().forward(self.drop(x) if self.training else x)

planted = dict(
    mode_dropout=(lambda: synth_learner(model=nn.Sequential(Drops())),
        r"`F.dropout` in `Drops.forward` drops values in validation, too: write `training=self.training`"),
    mode_dropout_inside=(lambda: synth_learner(model=DropsInside()),
        r"`torch.nn.functional.dropout1d` in `DropsInside.forward` drops values in validation"),
    mode_attention=(lambda: synth_learner(model=Attends()),
        r"`F.scaled_dot_product_attention` in `Attends.forward` .*`dropout_p=self.drop if self.training else 0.`"),
    optimizer_list=(lambda: synth_learner(model=nn.Sequential(InList(lambda o: [o]))),
        r"`0.body` has modules that PyTorch does not see. .*nothing trains them.*`nn.ModuleList\(…\)`"),
    optimizer_loss=(lambda: synth_learner(loss_func=ScaledLoss()),
        r"`loss_func.scale` is not in the optimizer.*`splitter=lambda m: \[\*m.parameters\(\), \*loss_func"),
    optimizer_dict=(lambda: synth_learner(model=InList(lambda o: dict(a=o))), r"`body` .*`nn.ModuleDict\(…\)`"),
    scores=(lambda: classes(nn.Softmax(1)),
        "The model ends in a softmax, and `CrossEntropyLoss` computes a softmax itself: leave it out of the model"),
    scores_flat=(lambda: classes(nn.Sigmoid(), nn.Flatten(), loss_func=CrossEntropyLossFlat()),
        "The model ends in a sigmoid, and `CrossEntropyLoss` computes a softmax itself"),
    scores_of_two=(lambda: classes(nn.Sigmoid(), loss_func=nn.BCEWithLogitsLoss(), n=1),
        "The model ends in a sigmoid, and `BCEWithLogitsLoss` computes a sigmoid itself"),
    scores_without_log=(lambda: classes(nn.Softmax(1), loss_func=nn.NLLLoss()),
        "`NLLLoss` takes the logarithms of probabilities.*write `log_softmax`"),
    scores_of_a_kind=(lambda: classes(nn.Softmax(1), loss_func=Renamed()),
        "The model ends in a softmax, and `Renamed`"),
    scores_for_weighted_nll=(lambda: classes(loss_func=nn.NLLLoss(ignore_index=9)),
        r"give it scores, and `loss_func=nn.CrossEntropyLoss\(ignore_index=9\)`"),
    scores_for_nll=(lambda: classes(loss_func=nn.NLLLoss()),
        r"`NLLLoss` takes the logarithms of probabilities.*`loss_func=nn.CrossEntropyLoss\(\)`"),
    mode=(lambda: synth_learner(cbs=Looks), "in evaluation mode in the middle of training.*`with learn.keep_modes"),
    order=(lambda: synth_learner(cbs=[Double, Cut]),
        r"`double` and `cut` both change `loss_grad` at `after_loss`.*the same `order`, 0.*write `order = 1` in the "
        r"class `Cut`"),
    order_of_gradients=(lambda: synth_learner(cbs=[Norm(2.), ToOne]),
        "`norm` and `to_one` both change `gradients` at `before_step`"),
    order_of_two=(lambda: synth_learner(cbs=[Norm(2.), Norm(3.)]),
        r"`norm` and `norm_2` both change `gradients`.*write `learn.norm_2.order = 1`"),
    names=(lambda: synth_learner(cbs=Doubles),
        "`Doubles.before_batch` assigns `hx`, which nothing reads. Did you mean `x`?"),
    gradient=(lambda: synth_learner(model=Unused()),
        r"`head.weight`, `head.bias` never got a gradient, in `head` \(Linear\).*`requires_grad_\(False\)`"),
    optimizer=(lambda: only_b(synth_learner()), "The optimizer does not have `a`, so they are not trained"),
    metric=(lambda: synth_learner(dls=synth_dls(3, 0), metrics=mae), "`mae` will see no batch.*no validation loader"),
    metric_without_value=(lambda: synth_learner(metrics=NoTargets(mae)),
        "`mae` had no value after a validation with `valid`"),
    loss=(lambda: synth_learner(dls=DataLoaders(same, same, device='cpu'), model=Flat()),
        "The loss was 1 in each of the first 8 batches"),
    reset=(lambda: synth_learner(model=nn.Sequential(State(), nn.Linear(1, 1))),
        "`0` keeps a state from batch to batch, and its `reset` is not called.*`cbs=ModelResetter`"))

@pytest.mark.parametrize('name', planted)
def test_planted_mistakes_are_told_once_and_silenced_by_a_word(name):
    make,text = planted[name]
    word = name.split('_')[0]
    learn = make()
    msg, = warned(learn, 2)
    assert warned(learn)==[] and msg.endswith(f"(To silence this: `silence('{word}')`)")
    assert re.search(text, msg), msg
    with silence(word): assert warned(make(), 2)==[]
    assert len(warned(make(), 2))==1

@pytest.mark.parametrize('model', [MeansToDrop,AsksForMode])
def test_dropout_that_knows_the_mode_is_not_told(model): assert warned(synth_learner(model=model()), 2)==[]

def test_layers_whose_turn_comes_later_are_not_told_where_the_fit_is_stopped():
    class Stop(Callback):
        def after_batch(self):
            if self.learn.iter==1: self.learn.stop_soon()
    class Late(Unused):
        "Trains its `head` from the third batch on, as a GAN does its generator"
        n = 0
        def forward(self, x):
            self.n += 1
            return super().forward(x) + (self.head(x[:, None])[:, 0] if self.n>2 else 0)
    assert warned(synth_learner(model=Late(), cbs=Stop))==[]
    assert len(warned(synth_learner(model=Unused())))==1 # of a whole epoch

def test_an_empty_loader_is_told_before_training():
    learn = synth_learner(dls=DataLoaders(same, [], device='cpu'))
    with pytest.warns(Mistake, match=r"`dls\['valid'\]` is empty"), pytest.raises(ValueError, match='it gave no batch'):
        learn.fit(1)

def test_a_callback_that_belongs_to_no_learner_is_told():
    "Where a cell or a script makes it and mentions its name nowhere else"
    def told(code):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            exec(compile(code, '<cell>', 'exec'), {**globals(), '__name__': 'cell'})
        return [str(o.message) for o in found if o.category is Mistake]
    msg, = told("clip = GradientClip(2.)\nsynth_learner().fit(1)")
    assert '`clip`, which is GradientClip(max_norm=2.0' in msg and 'or `cbs=clip` in the call of `fit`' in msg
    msg, = told("@on('after_batch')\ndef look(learn): pass\nsynth_learner().fit(1)")
    assert msg.startswith('`look`')
    # meant for later
    assert not told("clip = GradientClip(2.)\nsynth_learner().fit(1)\nsynth_learner().fit(1, cbs=clip)")
    assert not told("clips = [GradientClip(2.)]\nsynth_learner().fit(1)")

def test_words():
    with pytest.raises(ValueError, match="`words` is one of .* but got 'gradeint'. Did you mean `gradient`?"):
        silence('gradeint')
    with silence(): assert warned(synth_learner(model=Unused(), cbs=[Double, Cut]))==[]
    assert len(warned(synth_learner(model=Unused(), cbs=[Double, Cut])))==2
    assert all(len(o)>10 for o in kinds.values())

def test_ties_are_told_before_the_first_batch():
    learn = synth_learner(cbs=[Double, Cut, Callback(before_epoch=lambda self: 1/0)])
    with pytest.warns(Mistake, match='`double` and `cut`'), pytest.raises(ZeroDivisionError): learn.fit(1)

# No false alarms
class Adds(Callback):
    def after_loss(self): self.learn.loss_grad += self.model.a.abs().sum()
class AddsToo(Callback):
    def after_loss(self): self.learn.loss_grad = self.learn.loss_grad + self.model.b.abs().sum()
class Later(Cut): order = 1
class ByHand(Callback):
    "Sets gradients without a backward"
    def before_backward(self):
        for p,g in zip(self.model.parameters(), torch.autograd.grad(self.loss_grad, [*self.model.parameters()])):
            p.grad = g
        raise CancelBackwardException
class InTurn(nn.Module):
    "Each of two layers learns from every second batch"
    def __init__(self): super().__init__(); self.layers,self.n = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]),0
    def forward(self, x): self.n += 1; return self.layers[self.n%2](x)
class Keeps(Callback):
    "Names that are near one another on purpose"
    def before_fit(self):
        self.loss1,self.loss2,self.norm,self.norms,self.dx,self.dy,self.lr_a,self.lr_b = 0,0,0,[],0,0,0,0
    def after_loss(self):
        self.learn.preds = self.pred
        if self.learn.loss_grad is not None: self.loss1 = self.loss
class Guarded(Callback):
    def before_batch(self):
        if self.loss is not None: self.last = self.loss
class Open(Callback):
    def before_fit(self): vars(self).update(count=0)
    def after_batch(self): self.last = self.count

@on(event.after_batch(every=2, unit='iter'))
def look(learn): learn.loss.item() # it also listens to `before_fit`, to count anew
class Gives(Callback):
    order = -1
    def after_pred(self): self.out = self.learn.pred
class Takes(Callback):
    def after_loss(self): self.gives.out.sum()
def lazy(): return synth_learner(model=nn.LazyLinear(1))

def test_a_layer_that_comes_after_the_optimizer_is_told():
    learn = synth_learner(model=MadeLate())
    assert re.search(r"Parameters of shape .* are not in the optimizer.*nothing trains them.*in "
        "`__init__` of the model", warned(learn)[0])
    with pytest.raises(ValueError, match='that `opt` does not know'): learn.fit(1)

class OwnOptimizer(Callback):
    "Trains what is in a plain list by an optimizer of its own"
    def before_fit(self): self.sgd = torch.optim.SGD(self.model.body[0].parameters(), lr=.1)
    def after_step(self): self.sgd.step(); self.sgd.zero_grad()
    def cleanup_fit(self): del self.sgd

class Forwards(nn.Module):
    "Has what the module that it wraps has"
    def __init__(self, o): super().__init__(); self.wrapped = o
    def __getattr__(self, k):
        try: return super().__getattr__(k)
        except AttributeError: return getattr(super().__getattr__('wrapped'), k)
class Wraps(Callback):
    "Reads modules and parameters of modules"
    def __init__(self):
        self.avg,self.fwd = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1)),Forwards(nn.Bilinear(1, 1, 1))
        self.found = self.avg.module, self.fwd.in2_features, self.fwd.wrapped.weight

class Adversary(Callback):
    "Trains a part of the model by an optimizer of its own"
    run_valid,_stateattrs = False,('sgd',)
    def before_fit(self): self.sgd = torch.optim.SGD(self.model.head.parameters(), lr=.1)
    def before_batch(self): self.model.head(self.x).mean().backward(); self.sgd.step(); self.sgd.zero_grad()

def with_state(*cbs, cls=Learner):
    learn = synth_learner()
    return cls(learn.dls, nn.Sequential(State(), nn.Linear(1, 1)), nn.MSELoss(), lr=.01,
        cbs=cbs).remove_cb(ProgressCallback)
class ResetsItself(Learner):
    "Resets its model before each epoch"
    def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs); self.on(event.before_epoch)(self.begin)
    def begin(self, learn): self.model[0].reset()
class AtFit(Learner):
    def fit(self, *args, **kwargs): self.model[0].reset(); return super().fit(*args, **kwargs)
@on(event.before_epoch)
def begin_anew(learn): learn.model[0].reset()
class Resets:
    def begin(self, learn): learn.model[0].reset()

class Saliency(Callback):
    "Reads the gradient of inputs, and settings that are called `grad`"
    def __init__(self): self.cfg = SimpleNamespace(grad=2.)
    def before_batch(self):
        if self.training: self.x.requires_grad_()
    def after_batch(self):
        if not self.training: return
        x,h = self.learn.x,self.xb[0].detach()
        self.norms = self.x.grad.norm(),x.grad.norm(),[o.grad for o in self.xb],h.grad,self.cfg.grad*self.cfg.grad
class OfLayer(Callback):
    "Reads the gradient of what the model has made of inputs"
    def before_batch(self): self.out = self.model(self.x).detach().requires_grad_()
    def after_batch(self): self.norm = self.out.grad
class Stored:
    "Keeps something of a layer, which has a gradient of its own"
    def __init__(self, of): self.grad = 1.
class AsLongAs(Callback):
    "Gradients of what was only made with the help of the model"
    def before_fit(self):
        self.delta = torch.zeros(2, device=next(self.model.parameters()).device).requires_grad_()
        self.one,self.all = Stored(self.model),[Stored(m) for m in self.model.modules()]
    def after_batch(self): self.norms = [self.delta.grad,self.one.grad,[o.grad for o in self.all]]
@on(event.after_batch)
def salient(learn): learn.state['norm'] = learn.x.grad

def read_by_lambda():
    learn = synth_learner(cbs=Callback(before_fit=lambda self: self.learn.criterion))
    learn.criterion = 1.
    return learn

def first_of_two():
    learn = classes(AndInputs(), loss_func=nn.NLLLoss())
    return learn.add_cb(GivesFirst)

fine = dict(of_probs=lambda: classes(nn.Softmax(1), loss_func=OfProbs()),
    of_probs_too=lambda: classes(nn.Sigmoid(), loss_func=OfProbsToo(), n=1),
    of_probs_flat=lambda: classes(nn.Softmax(1), loss_func=OfProbsFlat()),
    reset_by_function=lambda: with_state(begin_anew), reset_by_lambda=lambda: with_state(
        Callback(before_epoch=lambda self: self.model[0].reset())),
    saliency=lambda: synth_learner(cbs=Saliency), of_layer=lambda: synth_learner(cbs=OfLayer),
    as_long_as=lambda: synth_learner(cbs=AsLongAs),
    salient=lambda: synth_learner(cbs=salient),
    read_by_lambda=read_by_lambda, reset_by_method=lambda: with_state(on(event.before_epoch)(Resets().begin)),
    reset_by_learner=lambda: with_state(cls=ResetsItself), reset_at_fit=lambda: with_state(cls=AtFit),
    of_first=lambda: classes(AndInputs(), loss_func=OfFirst()), first_of_two=first_of_two,
    wraps=lambda: synth_learner(cbs=Wraps), adversary=lambda: synth_learner(model=Unused(), cbs=Adversary,
        splitter=lambda m: [m.a, m.b]),
    own_optimizer=lambda: synth_learner(model=InList(lambda o: [o]), cbs=OwnOptimizer),
    no_list=lambda: synth_learner(model=InList(lambda o: nn.ModuleList([o]))),
    trained_loss=lambda: (lambda f: synth_learner(loss_func=f,
        splitter=lambda m: [*m.parameters(), *f.parameters()]))(ScaledLoss()),
    frozen_list=lambda: synth_learner(model=InList(lambda o: [o.requires_grad_(False)])),
    filtered=lambda: synth_learner(cbs=look), given_later=lambda: synth_learner(cbs=[Gives, Takes]), lazy=lazy,
    additions=lambda: synth_learner(cbs=[Adds, AddsToo]), ordered=lambda: synth_learner(cbs=[Double, Later]),
    by_hand=lambda: synth_learner(cbs=ByHand), in_turn=lambda: synth_learner(model=InTurn()),
    frozen=lambda: synth_learner(model=Unused().requires_grad_(False),
        splitter=lambda m: [[m.a.requires_grad_(), m.b.requires_grad_()]]), near=lambda: synth_learner(cbs=Keeps),
        guarded=lambda: synth_learner(cbs=Guarded), open=lambda: synth_learner(cbs=Open),
    reset=lambda: synth_learner(model=State(), cbs=ModelResetter), low_lr=lambda: synth_learner(20, lr=1e-9),
    one_batch=lambda: synth_learner(1, 1, lr=0.), half=lambda: synth_learner(20, cbs=MixedPrecision('bf16')),
    closure=lambda: synth_learner(opt_func=partial(torch.optim.LBFGS, lr=.1)),
    two=lambda: synth_learner(cbs=[MapBatch(lambda b: (b[0]*2, b[1])), GradientAccumulation(64), GradientClip(1.)]))

class InLoop(Callback):
    def after_batch(self): self.norms = [p.grad for p in self.model.parameters()]
class OfModel(Callback):
    def after_batch(self): self.norm = self.learn.model.a.grad
class ByName(Callback):
    def after_batch(self):
        m = self.model
        w = m.a
        self.norm = w.grad
class OfOptimizer(Callback):
    def after_batch(self):
        for g in self.opt.param_groups:
            for p in g['params']: self.norm = p.grad
class Filled(Callback):
    def before_fit(self): self.ps = list(self.learn.model.parameters())
    def after_batch(self): self.norm = sum(0 if (g := p.grad) is None else g.norm() for p in self.ps)
class FilledByName(Callback):
    def before_fit(self):
        m = self.model
        self.ps = {k:p for k,p in m.named_parameters() if p.requires_grad}
    def after_batch(self): self.norms = [p.grad for k,p in self.ps.items()]
class FilledElsewhere(Callback):
    def before_fit(self): self.choose()
    def choose(self): self.of = self.model.a
    def after_batch(self): self.norm = self.of.grad
@on(event.after_batch)
def of_learner(learn): learn.state['norm'] = [*learn.model.parameters()][0].grad

@pytest.mark.parametrize('cb',
    [InLoop, OfModel, ByName, OfOptimizer, Filled, FilledByName, FilledElsewhere, of_learner])
def test_gradients_of_weights_that_are_gone_are_told(cb):
    msg, = warned(synth_learner(cbs=cb))
    assert 'uses gradients, and there are none: they are there in `before_step`' in msg

def test_functions_that_reset_something_else_hide_no_mistake():
    "Neither those of this library nor an `__init__`, which runs once, reset the model"
    class Counts(Callback):
        def __init__(self): self.reset()
        def reset(self): self.n = 0
    assert len(warned(with_state(Counts, GradientClip(1.))))==1

@pytest.mark.parametrize('name', fine)
def test_nothing_is_told_of_what_is_right(name): assert warned(fine[name](), 2)==[]

def test_nothing_is_told_of_callbacks_of_the_library():
    for name,make in mutants.built_in.items():
        cb = make(getattr(mutants, name))
        learn = synth_learner()
        if not any(type(o) is type(cb) for o in learn.cbs): learn.add_cb(cb)
        assert check_names(cb, learn, {id(o):functions_of(o) for o in [cb, *learn.cbs]})==[]

# Cost
def test_nothing_is_watched_after_the_first_batches():
    learn,seen = synth_learner(20, 2),[]
    def watching(): return sum(isinstance(h, Watched) for ev in event for h in learn.handlers[ev])
    learn.on('before_batch')(lambda learn: seen.append((learn.epoch, watching())))
    learn.fit(3)
    assert seen[0][1]>0 and not any(n for epoch,n in seen if epoch==2)
    assert not any(p._post_accumulate_grad_hooks for p in learn.model.parameters()
        if p._post_accumulate_grad_hooks is not None)
    seen.clear(); learn.fit(1)
    assert not any(n for _,n in seen) # the same parts were watched before

def test_without_a_recorder_nothing_is_watched():
    learn,seen = synth_learner(default_cbs=False, cbs=TrainEvalCallback, model=Unused()),[]
    learn.on('before_batch')(
        lambda learn: seen.append(any(isinstance(h, Watched) for ev in event for h in learn.handlers[ev])))
    assert warned(learn)==[] and not any(seen)

def test_watching_changes_no_run():
    def run():
        learn = synth_learner(20, 2, cbs=[GradientClip(.1), MixedPrecision('bf16')]).fit(2)
        return learn.recorder.raw_losses,learn.model.a.item()
    one = run()
    with silence(): assert run()==one

# Names
@pytest.mark.parametrize('a,b,same',
    [('loss','los',True), ('loss','lsos',True), ('loss','losss',True), ('loss','lose',True), ('loss','loss',False),
        ('loss','lsso',False), ('pred','pre_d',True), ('x','y',True), ('ab','ba',True), ('abc','cba',False),
        ('norm','orn',False)])
def test_one_letter(a, b, same): assert one_letter(a, b)==one_letter(b, a)==same

class OfClass(Callback):
    patience,rates = 3,()
    @classmethod
    def least(cls): cls.rate = cls.patience; return cls.patience
    @staticmethod
    def fill(o): o.scale = 2.
    def after_batch(self): self.least(); self.fill(self); self.seen = self.rate,self.scale

def test_methods_of_the_class_use_no_gradients_and_may_set_attributes(): assert warned(synth_learner(cbs=OfClass()))==[]

def test_a_method_of_the_class_that_reads_any_attribute_of_it_hides_no_mistake():
    "as the one by which trackers refuse subclasses"
    class Mine(EarlyStoppingCallback):
        def act(self, val):
            if val is None: print(self.patinece)
    told, = warned(synth_learner(cbs=Mine()))
    assert "`Mine.act` reads `patinece`, which does not exist. Did you mean `patience`?" in told

# Mutants
def noticed(name, source, original, path):
    "How a mutant is noticed in a fit of one epoch; None if it is not"
    try: told = mutants.fitted(mutants.define(source, name, mutants.source(name)[1]), name, path)[0]
    except BaseException as e: return f'{type(e).__name__}: {e}'
    return next((o for o in told if o not in original), None)

def sample(seed, n):
    "Mutants of random callbacks, a quarter of them with a method at a wrong event"
    rng,names = random.Random(seed),[*mutants.built_in, *mutants.tutorials]
    while n:
        name = rng.choice(names)
        make = mutants.moved if n%4==0 else mutants.letters_wrong
        if (m := next(make(name, rng), None)) is None: continue
        n -= 1
        yield name,*m

@pytest.fixture(scope='module')
def originals(tmp_path_factory):
    "What is told of callbacks that are as they should be"
    path,res = tmp_path_factory.mktemp('originals'),{}
    def of(name):
        if name not in res:
            res[name] = mutants.fitted(mutants.define(mutants.source(name)[0], name, mutants.source(name)[1]), name,
                path)[0]
        return res[name]
    return of

@pytest.mark.parametrize('seed', [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 11))])
def test_mutants_are_noticed_in_the_first_epoch(seed, originals, tmp_path, capsys, tally, request):
    """A letter of an attribute, method, event or argument is wrong, or a method stands where the values are missing
    that it works with"""
    lines,missed = [],[]
    for name,kind,what,src in sample(seed, 20):
        assert originals(name)==[]
        how = noticed(name, src, [], tmp_path)
        tally(f'noticed ({kind})' if how else 'missed')
        lines.append(f"{name}: {kind} {what}: {(how or 'MISSED').splitlines()[0][:100]}")
        if not how: missed.append(lines[-1])
    capsys.readouterr()
    if 'slow' in request.config.getoption('flags').split():
        with capsys.disabled(): print('', *lines, sep='\n  ')
    assert not missed

# What a callback gathers, when a fit resumes
class Gathers(Callback):
    def before_fit(self): self.seen = []
    def after_batch(self): self.seen.append(float(self.loss.detach()))
class Counts(Callback):
    def __init__(self): self.n = 0
    def after_batch(self): self.n += 1
class FromOne(Callback):
    def __init__(self): self.sums = torch.ones(2)
    def after_batch(self): self.sums += 1
class OfEpoch(Callback):
    def before_epoch(self): self.total = 0.
    def after_batch(self): self.total += float(self.loss.detach())
class Best(Callback):
    def before_fit(self): self.best = float('inf')
    def after_batch(self): self.best = min(self.best, float(self.loss.detach()))
class Scaled(Callback):
    def before_fit(self): self.std = 1.
    def after_step(self): self.std *= .9
class ByEpoch(Callback):
    def before_fit(self): self.by_epoch = {}
    def after_batch(self): self.by_epoch[self.epoch] = float(self.loss.detach())
class Tallies(Callback):
    def before_fit(self): self.tally = dict(good=0)
    def after_batch(self): self.tally['good'] += 1
class Averages(Callback):
    def before_fit(self): self.avgs = [p.detach().clone() for p in self.model.parameters()]
    def after_step(self):
        for i,(a,p) in enumerate(zip(self.avgs, self.model.parameters())): a.lerp_(p.detach(), .1)
class AtOnce(Averages):
    def after_step(self): torch._foreach_mul_(self.avgs, .9)
class Frozen(Averages):
    "Changes nothing that could be gathered"
    def after_step(self):
        for a,p in zip(self.avgs, self.model.parameters()): a.requires_grad_(False).copy_(p.detach())
class Named(Gathers): _stateattrs = ('seen',)
class OwnState(Gathers):
    def state_dict(self): return dict(n=len(self.seen))
    def load_state_dict(self, state): self.seen = [0.]*state['n']
class Validated(OfEpoch): run_train = False
class Swaps(Callback):
    "Sets a value in each batch before it adds to it"
    def before_batch(self): self.parts = []
    def after_loss(self): self.parts.append(self.loss)
class Only(Gathers): watches = True
class Anew(Callback):
    "Adds up anew in each batch"
    def before_fit(self): self.norm = 0.
    def after_backward(self):
        self.norm = 0.
        for p in self.model.parameters(): self.norm += float(p.grad.norm())
class Cleared(Callback):
    def before_fit(self): self.losses = []
    def before_validate(self): self.losses.clear()
    def after_batch(self): self.losses.append(self.loss)
class Redrawn(Callback):
    def before_fit(self): self.noise,self.by_key = torch.zeros(3),{}
    def before_batch(self): self.noise.normal_(); self.by_key['now'] = 1
class Handles(Callback):
    "Undoes what it has done"
    def __init__(self): self.handles = []
    def before_train(self): self.handles.append(self.model.register_forward_hook(lambda m, i, o: None))
    def cleanup_train(self):
        for o in self.handles: o.remove()
        self.handles.clear()
class AfterEpoch(Callback):
    def __init__(self): self.seen = []
    def before_fit(self): self.seen = []
    def after_batch(self): self.seen.append(1)
    def after_epoch(self): self.seen = []

class Ring(Callback):
    "A queue of keys, as in MoCo, and where to write"
    def __init__(self): self.queue,self.ptr = torch.zeros(6),0
    def after_batch(self):
        self.queue[self.ptr:self.ptr+2] = self.pred.detach().flatten()[:2]
        self.ptr = (self.ptr+2)%6
class Center(Callback):
    def __init__(self): self.center = torch.zeros(1)
    def after_pred(self): self.center[:] = .9*self.center+.1*self.pred.detach().mean()
class Overwritten(Callback):
    def __init__(self): self.last = torch.zeros(3)
    def after_pred(self): self.last[:] = self.pred.detach().mean(); self.last[:2] = 0

def said_on_resume(cls, at, folder, same):
    "Texts of mistakes when a run with a `cls` resumes, in the same Learner or in another one"
    def fit(learn, *cbs, **kwargs): return learn.fit(3, cbs=[cls, Checkpoint(folder=folder), *cbs], **kwargs)
    stop = on(event.after_batch(once=6, unit='iter') if at=='batch' else event.after_epoch(once=2))(
        lambda learn: learn.at_pause(learn.stop_for_now, stops=True))
    learn = fit(synth_learner(n_train=4, n_valid=2, path=folder), stop)
    if not same: learn = synth_learner(n_train=4, n_valid=2, path=folder)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn.resume() if same else fit(learn, resume=True)
    return [str(o.message) for o in found if o.category is Mistake]

everywhere = ['batch same','batch other','epoch same','epoch other']
@pytest.mark.parametrize('cls,lost', [(Gathers, everywhere),
    (Counts, ['batch other','epoch other']), (FromOne, ['batch other','epoch other']),
    (Best, everywhere), (Scaled, everywhere), (ByEpoch, everywhere), (Tallies, everywhere), (Averages, everywhere),
    (AtOnce, everywhere), (Frozen, []), (OfEpoch, ['batch same','batch other']),
    (Center, ['batch other','epoch other']), (Overwritten, []),
    (Named, []), (OwnState, []), (Validated, []), (Swaps, []), (Only, []),
    (Anew, []), (Cleared, []), (Redrawn, []), (Handles, []), (AfterEpoch, ['batch same','batch other'])])
@pytest.mark.parametrize('where', everywhere)
@pytest.mark.sample(4)
def test_what_a_callback_gathers_and_no_resume_restores_is_named(cls, lost, where, tmp_path):
    at,who = where.split()
    said = said_on_resume(cls, at, tmp_path, who=='same')
    assert len(said)==(where in lost)
    for o in said: assert re.match(rf"`{cls.__name__}` gathers `(\w+)` in training.* `_stateattrs = \('\1',\)`", o)

class Scratch(Callback):
    "Room for a batch, written anew in each"
    def before_fit(self): self.room = torch.zeros(64, 2, 2)
    def before_batch(self): n = len(self.x); self.room[:n] = 1; self.room[:n,:n] = 2

@pytest.mark.parametrize('at', ['batch','epoch'])
def test_room_that_is_written_anew_in_each_batch_gathers_nothing(at, tmp_path):
    assert not said_on_resume(Scratch, at, tmp_path, same=False)

def test_all_of_a_queue_that_is_written_by_slices_is_named(tmp_path):
    said, = said_on_resume(Ring, 'batch', tmp_path, same=False)
    assert "`_stateattrs = ('ptr', 'queue')`" in said

class SecondLoader(Callback):
    run_valid = False
    def __init__(self): self.loader = [torch.ones(1)]*3
    def before_train(self): self.it = iter(self.loader)
    def before_batch(self):
        try: self.u = next(self.it)
        except StopIteration:
            self.it = iter(self.loader)
            self.u = next(self.it)
class WholeFit(SecondLoader):
    def before_fit(self): self.it = iter(self.loader)
    def before_train(self): pass
class Cycled(SecondLoader):
    def before_fit(self): self.it = itertools.cycle(self.loader)
    def before_train(self): pass
class EachBatch(SecondLoader):
    def before_batch(self): self.u = next(iter(self.loader))
class Numbers(Callback):
    "No loader, so that one training loader of both is no help"
    run_valid = False
    def before_fit(self): self.it = itertools.count()
    def before_batch(self): self.u = next(self.it)
class FromItsPlace(Numbers):
    def before_fit(self): self.it = itertools.islice(itertools.cycle([1, 2, 3]), self.learn.train_iter, None)

@pytest.mark.sample(2)
@pytest.mark.parametrize('cls,lost',
    [(SecondLoader, ['batch same','batch other']), (WholeFit, everywhere), (Cycled, everywhere), (EachBatch, []),
    (Numbers, []), (FromItsPlace, [])])
@pytest.mark.parametrize('where', everywhere)
def test_a_second_loader_of_a_callback_that_begins_anew_in_a_resume_is_told(cls, lost, where, tmp_path):
    at,who = where.split()
    said = said_on_resume(cls, at, tmp_path, who=='same')
    assert len(said)==(where in lost)
    for o in said: assert re.match(rf"`{cls.__name__}` draws from `it`.*`zip\(a, b\)`", o)

class InTraining(Counts):
    def after_batch(self):
        if self.training: self.n += 1
class ByValidation(Counts):
    def before_validate(self): self.n = 0
class NamedCount(Counts): _stateattrs = 'n',
class Steps(Callback):
    def __init__(self): self.n = 0
    def after_step(self): self.n += 1

@pytest.mark.parametrize('cls,named', [(Counts, True), (Gathers, True), (OfEpoch, True), (InTraining, False),
    (ByValidation, False), (NamedCount, False), (Steps, False)])
def test_what_is_gathered_in_a_validation_that_was_cut_is_named(cls, named):
    "One batch of it had run. It begins again, and a count of the same callback would have that batch twice"
    learn = synth_learner(cbs=cls)
    def cut(learn):
        if not learn.training and learn.iter==1: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=Callback(before_batch=cut))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn.resume(cbs=())
    assert sum(o.category is Mistake for o in found)==named
    if cls is NamedCount: assert learn.named_count.n==len(learn.dls.train)+len(learn.dls.valid)

@pytest.mark.parametrize('other', [[], [Overfit(2)]], ids=['plain','overfit'])
def test_nothing_counts_twice_where_a_fit_was_stopped_before_its_validation(other):
    learn = synth_learner(n_train=2, n_valid=2, cbs=[Counts, *other])
    stop = on(event.after_train)(lambda learn: learn.at_pause(learn.stop_for_now, stops=True))
    learn.fit(1, cbs=stop)
    assert learn.route.stopped.position.next=='validate'
    with warnings.catch_warnings(): warnings.simplefilter('error', Mistake); learn.resume()
    assert learn.counts.n==4

@pytest.mark.parametrize('names,n', [(dict(__file__='sweep.py'), 1), ({}, 3)], ids=['script','notebook'])
def test_a_script_that_trains_many_learners_is_told_once_and_a_cell_each_time(names, n):
    "What was told may have been mended, in another cell, since the cell ran"
    sweep = "for _ in range(3): synth_learner(model=Unused()).fit(1)"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('default')
        exec(compile(sweep, 'sweep.py', 'exec'), dict(synth_learner=synth_learner, Unused=Unused) | names)
    assert [o.category for o in found]==[Mistake]*n

def test_a_file_that_is_edited_meanwhile_ends_no_fit(tmp_path):
    "What is read of the code of a callback may have become anything since the callback was imported"
    path = tmp_path/'edited.py'
    path.write_text('from learner.all import *\n\nclass Doubled(Callback):\n    def after_loss(self):\n'
        '        self.learn.loss_grad = 2*self.loss_grad\n')
    cls = runpy.run_path(str(path))['Doubled']
    path.write_text('x = [\n'*10)
    learn = synth_learner(cbs=[cls, Fingerprint])
    assert learn.fit(1).train_iter==len(learn.dls.train)

def test_a_warning_stands_at_the_line_that_has_called_the_library():
    def train(learn): learn.fit(1)
    with pytest.warns(Mistake, match='gradient') as w: train(synth_learner(model=Unused()))
    assert {(o.filename, o.lineno) for o in w if o.category is Mistake}=={(__file__, train.__code__.co_firstlineno)}

# Which samples a sampler draws
data,trained,kept = TensorDataset(torch.randn(22, 4), torch.randn(22, 1)),[*range(16)],[*range(16, 22)]
def batch_sampler(idxs): return BatchSampler(SubsetRandomSampler(idxs), 4, False)
def weighted(idxs): return WeightedRandomSampler([float(i in idxs) for i in range(22)], 16)
class OwnSampler(Sampler):
    def __iter__(self): return iter(trained)
    def __len__(self): return 16

@pytest.mark.parametrize('train,n', [(dict(sampler=trained), 0), (dict(sampler=range(16)), 0),
    (dict(sampler=[*trained, 20]), 1), (dict(batch_sampler=batch_sampler(trained)), 0),
    (dict(batch_sampler=batch_sampler([*trained, 16, 17])), 2), (dict(sampler=weighted(trained)), 0),
    (dict(sampler=weighted([*trained, 21])), 1), (dict(sampler=OwnSampler()), 0), (dict(shuffle=True), 6)],
    ids=lambda o: '' if isinstance(o, int) else '+'.join(type(v).__name__ for v in o.values()))
@pytest.mark.parametrize('valid', [dict(sampler=kept), dict(batch_sampler=batch_sampler(kept))],
    ids=['list','batch sampler'])
def test_samples_that_a_sampler_leaves_out_are_not_trained_on(train, n, valid):
    dls = DataLoaders(DataLoader(data, **train), DataLoader(data, **valid), device='cpu')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        Learner(dls, nn.Linear(4, 1), nn.MSELoss()).remove_cb(ProgressCallback).fit(1)
    said = [str(o.message) for o in said if 'are trained on' in str(o.message)]
    assert [int(o.split()[0]) for o in said]==[n]*(n>0)

class OnGpu(torch.Tensor):
    "numpy refuses it, as it does a tensor on a GPU"
    def __array__(self, *args): raise TypeError("can't convert cuda:0 device type tensor to numpy")
    def cpu(self): return self.as_subclass(torch.Tensor)
def on_gpu(o): return torch.tensor(o).as_subclass(OnGpu)

@pytest.mark.parametrize('train,n', [(lambda: DataLoader(data, sampler=SubsetRandomSampler(on_gpu([*trained, 20]))), 1),
    (lambda: DataLoader(Subset(data, on_gpu([*trained, 16, 17]))), 2),
    (lambda: DataLoader(data, sampler=on_weights()), 1),
    (lambda: DataLoader(data, sampler=[*on_gpu([*trained, 20])]), 0)], ids=['indices','subset','weights','list'])
def test_samples_that_are_chosen_on_a_gpu_end_no_fit(train, n):
    dls = DataLoaders(train(), DataLoader(data, sampler=kept), device='cpu')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        Learner(dls, nn.Linear(4, 1), nn.MSELoss()).remove_cb(ProgressCallback).fit(1)
    said = [str(o.message) for o in said if 'are trained on' in str(o.message)]
    assert [int(o.split()[0]) for o in said]==[n]*(n>0)

def on_weights():
    res = weighted([*trained, 21])
    res.weights = res.weights.as_subclass(OnGpu)
    return res

def test_attributes_that_are_set_between_two_fits_are_told():
    learn = synth_learner(2)
    learn.fit(1)
    learn.loss_fnc = F.l1_loss
    with pytest.warns(Mistake, match='`learn.loss_fnc` was set, and nothing reads it. Did you mean `learn.loss_func`'):
        learn.fit(1)

class SecondOptimizer(Learner):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.copt = torch.optim.SGD(self.model.parameters(), lr=.1)
    def _do_grad_opt(self):
        super()._do_grad_opt()
        self.copt.step()

def test_what_only_a_learner_of_ones_own_reads_is_read():
    base = synth_learner(2)
    learn = SecondOptimizer(base.dls, base.model, base.loss_func, lr=.1)
    assert not [o for o in warned(learn) if 'copt' in o]

def test_a_flag_with_a_letter_too_many_is_told():
    class Sees(Callback):
        run_valids = False
        def after_batch(self): pass
    with pytest.warns(Mistake, match='`Sees.run_valids` is read by nothing. Did you mean `run_valid`'):
        synth_learner(2).fit(1, cbs=Sees())

# A loss that is logged, and one that is trained on
class Penalty(Callback):
    def after_loss(self): self.learn.loss = self.loss + sum(p.abs().sum() for p in self.model.parameters())
class InPlace(Callback):
    def after_loss(self): self.learn.loss += 1
class Both(Callback):
    def after_loss(self): self.learn.loss = self.learn.loss_grad = self.loss_grad*2
class Shown(Callback):
    def after_loss(self): self.learn.loss = self.loss.detach()/10
class OfValidation(Callback):
    run_train = False
    def after_loss(self): self.learn.loss = self.loss/10
class OfValidationByName(Callback):
    def after_loss(self):
        if self.dl_name=='valid': self.learn.loss = self.loss/10
class BothInTurn(Callback):
    def after_loss(self): self.learn.loss = self.loss*2
    def before_backward(self): self.learn.loss_grad = self.loss
class ShownAsData(Callback):
    def after_loss(self): self.learn.loss = self.loss.data/10

@pytest.mark.parametrize('cb,told', [(Penalty, True), (InPlace, True), (Both, False), (Shown, False),
    (OfValidation, False), (OfValidationByName, False), (BothInTurn, False), (ShownAsData, False)])
def test_a_penalty_that_is_not_trained_on_is_told(cb, told):
    said = [o for o in warned(synth_learner(cbs=cb)) if 'change `learn.loss_grad` too' in o]
    assert len(said)==told

# How other libraries stop a fit
class OfLightning(Callback):
    def after_epoch(self): self.learn.should_stop = True
class OfKeras(Callback):
    def after_epoch(self): self.model.stop_training = True
class OfItsOwn(Callback):
    def before_fit(self): self.should_stop = False
    def after_epoch(self): self.should_stop = True

search = SimpleNamespace(should_stop=False) # the loop that reads it is around the fit
class OfASearch(Callback):
    def after_epoch(self): search.should_stop = True
class OfSearches(Callback):
    def after_epoch(self): [search][0].should_stop = True

class Heeds(RegModel):
    should_stop = False
    def forward(self, x): return super().forward(x)*(not self.should_stop)
class OfTheModel(Callback):
    def after_epoch(self): self.learn.model.should_stop = True

class Asks(Callback):
    def before_epoch(self):
        if getattr(self.model, 'stop_training', False): raise CancelFitException
class Reads(Callback):
    def before_epoch(self):
        if self.model.stop_training: raise CancelFitException

@pytest.mark.parametrize('cb,model,told', [(OfLightning, RegModel, True), (OfKeras, RegModel, True),
    (OfItsOwn, RegModel, False), (OfASearch, RegModel, False), (OfSearches, RegModel, False),
    (OfTheModel, Heeds, False), ([OfKeras, Asks], RegModel, False),
    (Reads, type('Stopped', (RegModel,), dict(stop_training=False)), False)])
def test_an_attribute_that_stops_nothing_is_told(cb, model, told):
    said = warned(synth_learner(model=model(), cbs=cb))
    assert len([o for o in said if '`raise CancelFitException` ends the fit' in o])==told

# Settings that go against each other, or would do nothing
finder = SuggestionMethod.Slide
in_vain = dict(
    keep_of_all=(lambda: SaveModelCallback(every_epoch=True, keep=2), ValueError,
        '`keep=2` is for the best: `every_epoch` keeps all that it saves'),
    keep_at_end=(lambda: SaveModelCallback(at_end=True, keep=3), ValueError, '`keep=3` is for the best: `at_end`'),
    never=(lambda: event.before_batch(after=5, before=3), ValueError,
        '`after=5` and `before=3` leave no call between them.*a larger `before`'),
    two_whens=(lambda: ExtraValid([(torch.ones(1),)], unit='iter', on_better='valid_loss'), ValueError,
        "`on_better` says when to validate: give no `unit='iter'`"),
    no_rate=(lambda: SWA(lr=[]), ValueError, '`lr` has 0 values'),
    no_name=(lambda: Forward(3), TypeError, '`train` is a string, but got 3'),
    one_name=(lambda: synth_learner().lr_find(suggest_funcs=[finder, partial(finder, lr_diff=30)], show_plot=False),
        ValueError, 'Two of `suggest_funcs` are called `slide`'),
    layers=(lambda: synth_learner(model=nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)),
        splitter=lambda m: [m[0], m[1]]).fit(1), TypeError, 'group 0 is Linear.*: write `list\\(layer.parameters'),
    no_pred=(lambda: synth_learner(cbs=MapPred(lambda p: None)).fit(1), TypeError,
        'is to return the changed prediction to `MapPred`, but returned None'),
    no_norm=(lambda: GradientClip().last_norm(), RuntimeError, 'has no norm before the first step'),
    no_norm_of_values=(lambda: GradientClip(max_value=1.).last_norm(), RuntimeError, 'has no norm with a `max_value`'))

@pytest.mark.parametrize('k', in_vain)
def test_what_would_do_nothing_or_fails_later_is_refused(k):
    make,error,match = in_vain[k]
    with pytest.raises(error, match=match): make()

# Numbers of numpy
def test_whole_numbers_of_numpy_are_whole_numbers():
    n,ds = np.int64(4),torch.utils.data.TensorDataset(torch.ones(10, 1))
    assert len(weighted_dl(ds, n, [1.]*10, n=np.int64(7)))==2 and len(partial_dl(ds, n, np.int64(8)))==2
    dls = DataLoaders.from_dsets(ds, ds, bs=n)
    assert (dls.train.batch_size,dls.valid.batch_size)==(4,8)
    seen = []
    learn = synth_learner(2, 1, cbs=[TimeLimit(np.int64(300)), FreezeSchedule({np.int64(0): np.int64(0)}),
        on(event.before_batch(once=np.int64(2)))(lambda learn: seen.append(learn.iter))]).fit(1)
    assert seen==[1] and learn.epoch==0

def test_arrays_are_values_of_a_schedule_as_lists_are():
    learn = synth_learner(8, 1, opt_func=Adam)
    learn.fit_one_cycle(1, moms=np.array([.95,.85,.95]))
    assert LRFinder(np.array([1e-7,1e-6]), np.array([1.,10.])).sched(1.)==pytest.approx([1.,10.])

def test_a_batch_can_be_moved_to_a_device_by_its_name():
    assert torch.equal(to_device((torch.ones(2),), 'cpu')[0], torch.ones(2))

@pytest.mark.parametrize('keep', ['self.opts = [opt]', 'self.opts = dict(head=opt)', 'self.learn.opt_head = opt'])
def test_optimizers_that_callbacks_keep_in_containers_or_on_the_learner_train(keep, recwarn):
    "As lists of optimizers in a GAN, or from `configure_optimizers`"
    ns = dict(Callback=Callback, torch=torch)
    exec(f"""class HeadOpt(Callback):
    run_valid = False
    def before_fit(self):
        opt = torch.optim.SGD(self.learn.model[1].parameters(), lr=.1)
        {keep}""", ns)
    learn = synth_learner(model=nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)), splitter=lambda m: m[0].parameters())
    learn.fit(1, cbs=ns['HeadOpt'])
    assert not [o for o in recwarn if 'The optimizer does not have' in str(o.message)]

class Trainer:
    "Trains a part of a model, as an object that a callback holds"
    def __init__(self, m): self.opt = torch.optim.SGD(m.parameters(), lr=.01)
    def step(self): self.opt.step(); self.opt.zero_grad()
class Holds(Callback):
    def before_fit(self): self.trainer = Trainer(self.model[1])
    def after_step(self): self.trainer.step()
trains = [True]
def of_closure(m):
    trainer = Trainer(m[1])
    return on(event.after_step)(lambda learn: trainer.step() if trains else None)
def half_in_opt(cbs=None, n=8):
    m = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    return synth_learner(n, 1, model=m, splitter=lambda m: m[0].parameters(),
        cbs=of_closure(m) if cbs is of_closure else cbs)

@pytest.mark.parametrize('n', [1, 8, 150])
@pytest.mark.parametrize('cbs', [of_closure, Holds])
def test_an_optimizer_that_is_not_seen_trains_too(cbs, n):
    learn = half_in_opt(cbs, n)
    assert warned(learn)==warned(learn)==[]
    before = [p.detach().clone() for p in learn.model[1].parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter('error', Mistake)
        learn.trace(); half_in_opt(cbs, n).trace()
    assert all(map(torch.equal, before, learn.model[1].parameters()))

def test_parameters_that_nothing_trains_are_told_wherever_the_fit_ends(monkeypatch):
    "Also where it is stopped in the middle, in a trace, in a long epoch before it is over, and in a later fit"
    class Stop(Callback):
        def after_batch(self):
            if self.iter==1: self.learn.stop_soon()
    told = dict(match='The optimizer does not have `1.weight`, `1.bias`')
    with pytest.warns(Mistake, **told): half_in_opt().fit(1)
    with pytest.warns(Mistake, **told): half_in_opt(Stop).fit(1)
    with pytest.warns(Mistake, **told): half_in_opt().trace()
    class Fails(Callback):
        def after_batch(self):
            if self.iter==120: raise ZeroDivisionError
    with pytest.warns(Mistake, **told), pytest.raises(ZeroDivisionError): half_in_opt(Fails, 150).fit(1)
    learn = half_in_opt(of_closure)
    assert warned(learn)==[]
    monkeypatch.setattr(sys.modules[__name__], 'trains', [])
    with pytest.warns(Mistake, **told): learn.fit(1)

class Fails(Callback):
    at = None
    def before_batch(self):
        if (self.epoch, self.iter)==self.at: raise ZeroDivisionError

@pytest.mark.parametrize('n_acc', [1, 10**9]) # the only step is that of the last batch
@pytest.mark.parametrize('n', [8, 150])
@pytest.mark.parametrize('again', [False, True])
def test_parameters_that_nothing_trains_are_told_where_a_fit_fails_after_a_step(again, n, n_acc):
    "Also in a fit with callbacks that have been watched before"
    learn = half_in_opt([GradientAccumulation(n_acc), Fails()], n)
    if again:
        with silence('optimizer'): assert warned(learn)==[]
    learn.fails.at = (1, 0) if n==8 or n_acc>1 else (0, 110)
    with pytest.warns(Mistake, match='The optimizer does not have `1.weight`, `1.bias`') as told:
        with pytest.raises(ZeroDivisionError): learn.fit(2)
    assert len(told)==1 and not learn.handler_watchers

def test_a_tanh_is_no_view_of_what_it_is_given():
    "Its name in autograd begins as that of a transposition"
    def said(*layers): return warned(classes(*layers, loss_func=nn.BCEWithLogitsLoss(), n=1))
    assert any('ends in a sigmoid' in o for o in said(nn.Sigmoid())) and not said(nn.Sigmoid(), nn.Tanh())
