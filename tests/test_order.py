"""Two callbacks that change the same value without a declared order are named before training; callbacks of the
library give the same run in any order in which they are given"""
import random,warnings
from itertools import groupby
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from learner.core.scopes import scope
from learner.diagnose.order import Changes,ties

# Permutations
class Net(nn.Module):
    "An image classifier with everything that callbacks act on: norms, dropout, a state, several outputs"
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(.2),
            nn.Flatten())
        self.head = nn.Linear(64, 3)
        self.seen = 0.
    def reset(self): self.seen = 0.
    def forward(self, x):
        h = self.body(x)
        self.seen = .5*self.seen + h.detach().mean()
        return self.head(h) + .01*self.seen,[h],[h]

def split(m): return [[*m.body.parameters()], [*m.head.parameters()]]
def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(6, 1, 4, 4, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(n)]
def opt(ps, lr=.05): return torch.optim.SGD(ps, lr=lr, momentum=.9)

always = TrainEvalCallback,RNNCallback,ModelResetter
together = dict(recorder=Recorder, progress=lambda: PrintProgress(),
    map_batch=lambda: MapBatch(lambda b: (b[0]*2, b[1])), map_pred=lambda: MapPred(lambda o: (o[0]/2, *o[1:])),
    stats=lambda: ActivationStats(every=1),
    channels=ChannelsLast, frozen_norms=BnFreeze, collect=CollectDataCallback, mix=lambda: MixUp(.4),
    fetch=FetchPredsCallback, freeze=lambda: FreezeSchedule({0: -1, 1: 0}), dropout=MCDropoutCallback,
    micro=lambda: MicroBatch(3), short=lambda: ShortEpochCallback(.8), time=lambda: TimeLimit(1e6), ema=lambda: EMA(.9),
    swa=lambda: SWA(.3, every=1, lr=.02), accumulate=lambda: GradientAccumulation(12),
    half=lambda: MixedPrecision('bf16'), clip=lambda: GradientClip(.1), nan=TerminateOnNaNCallback, csv=CSVLogger,
    json=lambda: JSONLogger(batches=2), momentum=lambda: ParamScheduler(dict(mom=SchedCos(.9, .5))),
    warmup=lambda: Warmup(3),
    save=SaveModelCallback, stop=lambda: EarlyStoppingCallback(patience=1),
    checkpoint=lambda: Checkpoint(every=2, unit='iter'), rewind=lambda: Rewind(every=2),
    fingerprint=lambda: Fingerprint(), sanity=lambda: Sanity(1),
    validate=lambda: Validate(2, unit='iter'), timer=Timer, hooks=lambda: HookCallback(hook=lambda m,i,o: None))
needs = 'recorder' # of files, graphs and trackers

def learner(path, names, order):
    torch.manual_seed(0)
    cbs = [*always, *(together[k]() for k in names)]
    if 'micro' in names: cbs[always.index(ModelResetter)] = Callback # it refuses pieces
    dls = DataLoaders(batches(5, 0), batches(2, 1), device='cpu')
    return Learner(dls, Net(), F.cross_entropy, opt_func=opt, lr=.05, splitter=split, path=path, metrics=accuracy,
        default_cbs=False, cbs=[cbs[i] for i in order])

def traced(learn):
    "Rows of a trace. Callbacks whose places may be exchanged are put in order of their names"
    def moment(o): return o.epoch,o.batch,o.scopes,o.event
    orders = {o.name:o.order for o in learn.cbs}
    groups = [[*g] for _,g in groupby(learn.trace(2), moment)]
    def line(o): return *moment(o),o.callback,tuple(sorted(o.reads.split(', '))),tuple(sorted(o.writes.split(', ')))
    return [([orders.get(o.callback) for o in g], sorted(map(line, g))) for g in groups]

def run(path, names, order):
    learn = learner(path, names, order)
    assert not ties(learn)
    changes,trace = Changes(learn),traced(learn)
    torch.manual_seed(1)
    learn.watch_handlers(changes)
    learn.fit(2)
    assert not changes.ties()
    rows = [{k:v for k,v in dict(o).items() if k!='time' and 'time' not in k} for o in learn.recorder.rows]
    return trace,[p.detach().clone() for p in learn.model.state_dict().values()],rows,learn.recorder.raw_losses

@pytest.mark.parametrize('seed', [*range(5), *(pytest.param(i, marks=pytest.mark.slow) for i in range(5, 100))])
def test_callbacks_of_the_library_give_the_same_run_in_any_order(seed, tmp_path, capsys):
    rng = random.Random(seed)
    names = ['recorder', *rng.sample([*together][1:], rng.randint(6, 16))]
    order = [*range(len(always)+len(names))]
    (tmp_path/'a').mkdir(); (tmp_path/'b').mkdir()
    one = run(tmp_path/'a', names, order)
    rng.shuffle(order)
    other = run(tmp_path/'b', names, order)
    for a,b in zip(one[0], other[0], strict=True): assert a==b
    assert all(map(torch.equal, one[1], other[1])) and str(one[2:])==str(other[2:])

# Values that an optimizer computes again
class Penalty(Callback):
    run_valid = False
    def after_loss(self): self.learn.loss_grad = self.loss_grad + sum(p.square().sum() for p in self.model.parameters())
class PlusOne(Callback):
    run_valid = False
    def before_backward(self): self.learn.loss_grad += 1
class Tripled(Callback):
    def after_pred(self): self.learn.pred = self.pred*3
@on('after_loss')
def doubled(learn): learn.loss_grad = 2*learn.loss_grad
class Reads(Callback):
    def after_loss(self): self.seen = self.loss.detach()+self.pred.detach().sum()

@pytest.mark.parametrize('opt_func', [torch.optim.LBFGS, torch.optim.SGD])
@pytest.mark.parametrize('cb,value', [(Penalty, 'loss_grad'), (PlusOne, 'loss_grad'), (Tripled, 'pred'),
    (doubled, 'loss_grad'), (Reads, None)], ids=lambda o: getattr(o, '__name__', str(o)))
def test_what_an_optimizer_with_a_closure_computes_again_is_named(cb, value, opt_func):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        learn,plain = (synth_learner(opt_func=opt_func, lr=.01, cbs=o).fit(1) for o in (cb, None))
    in_vain = opt_func is torch.optim.LBFGS and value is not None
    said = [str(o.message) for o in found if o.category is Mistake]
    assert len(said)==in_vain and all(f'changes `{value}` at' in o and 'computes' in o for o in said)
    if in_vain: assert all(map(torch.equal, learn.model.parameters(), plain.model.parameters())) # as is said

class OwnForward(Learner):
    def _forward(self):
        self.pred = self.model(self.x); self('after_pred')
        self.loss_grad = self.loss = (self.pred-5).square().mean(); self('after_loss')
class OwnBackward(Learner):
    @scope
    def _backward(self): (self.loss_grad + 100*sum(p.square().sum() for p in self.model.parameters())).backward()
class OwnBatch(Learner):
    def _do_grad_opt(self): super()._do_grad_opt()

@pytest.mark.parametrize('opt_func', [torch.optim.LBFGS, torch.optim.SGD])
@pytest.mark.parametrize('cls,piece', [(OwnForward, '_forward'), (OwnBackward, '_backward'), (OwnBatch, None)])
def test_a_loss_of_a_subclass_that_an_optimizer_with_a_closure_does_not_use_is_named(cls, piece, opt_func):
    xs = torch.randn(8, 1)
    def weight(cls):
        model = nn.Linear(1, 1)
        for p in model.parameters(): nn.init.ones_(p)
        cls(DataLoaders([(xs, xs)], device='cpu'), model, nn.MSELoss(), opt_func=opt_func, lr=.01).fit(1)
        return model.weight
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        own,plain = weight(cls),weight(Learner)
    said = [str(o.message) for o in found if 'gradients again' in str(o.message)]
    in_vain = opt_func is torch.optim.LBFGS and piece is not None
    assert len(said)==in_vain and all(f'without `{cls.__name__}.{piece}`' in o for o in said)
    assert torch.equal(own, plain)==(in_vain or piece is None) # as is said

# Pairs that do not meet, or are meant
class Shifts(Callback):
    run_valid = False
    def before_batch(self): self.learn.x = self.x+1
class Doubles(Callback):
    run_train = False
    def before_batch(self): self.learn.x = self.x*2
class NotesA(Callback):
    def before_batch(self): self.learn.state['a'] = 1
class NotesB(Callback):
    def before_batch(self): self.learn.state['b'] = 2
class DoublesToo(Callback):
    def before_batch(self): self.learn.x = self.x*2

@pytest.mark.parametrize('cbs,n', [((Shifts, Doubles), 0), ((NotesA, NotesB), 0), ((Shifts, DoublesToo), 1),
    ((lambda: ExtraValid([], name='easy'), lambda: ExtraValid([], name='hard')), 0),
    ((lambda: GradientClip(.1, params=lambda m: [m.a]), lambda: GradientClip(1., params=lambda m: [m.b])), 0)],
    ids=['phases','state','meet','validations','clips'])
def test_callbacks_that_do_not_meet_are_no_ties(cbs, n):
    learn = synth_learner(cbs=[o() for o in cbs])
    assert len({(o.first, o.second) for o in ties(learn)})==n
