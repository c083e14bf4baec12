"""Every cancel exception at every place of the loop. The tables are written by hand: what they say is the contract

A letter says which scope ends: `B`atch, `S`tep, bac`K`ward, `T`rain, `V`alidate, `E`poch, `F`it.
An `x` is a `RuntimeError`, because no such scope is running there.
`draw`, `forward`, `loss`, `backward` and `step` are the insides: the loader, the model, the loss function, autograd
and the optimizer raise the exception themselves."""
from functools import cache
from weakref import WeakValueDictionary
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

columns = dict(B=CancelBatchException, S=CancelStepException, K=CancelBackwardException, T=CancelTrainException,
    V=CancelValidException, E=CancelEpochException, F=CancelFitException)
ended_by = dict(B='batch', S='step', K='backward', T='train', V='validate', E='epoch', F='fit')

training = """          B S K T V E F
before_train            x x x T x E F
before_draw             x x x T x E F
draw                    x x x T x E F
after_draw              x x x T x E F
before_batch            B x x T x E F
forward                 B x x T x E F
after_pred              B x x T x E F
loss                    B x x T x E F
after_loss              B x x T x E F
before_backward         B x K T x E F
backward                B x K T x E F
after_cancel_backward   B x x T x E F
after_backward          B x x T x E F
cleanup_backward        x x x x x x x
before_step             B S x T x E F
step                    B S x T x E F
after_cancel_step       B x x T x E F
after_step              B x x T x E F
cleanup_step            x x x x x x x
before_zero_grad        B x x T x E F
after_zero_grad         B x x T x E F
after_cancel_batch      x x x T x E F
after_batch             x x x T x E F
cleanup_batch           x x x x x x x
after_cancel_train      x x x x x E F
after_train             x x x x x E F
cleanup_train           x x x x x x x"""

validation = """        B S K T V E F
before_validate         x x x x V E F
before_draw             x x x x V E F
draw                    x x x x V E F
after_draw              x x x x V E F
before_batch            B x x x V E F
forward                 B x x x V E F
after_pred              B x x x V E F
loss                    B x x x V E F
after_loss              B x x x V E F
after_cancel_batch      x x x x V E F
after_batch             x x x x V E F
cleanup_batch           x x x x x x x
after_cancel_validate   x x x x x E F
after_validate          x x x x x E F
cleanup_validate        x x x x x x x"""

around = """            B S K T V E F
before_fit              x x x x x x F
before_epoch            x x x x x E F
after_cancel_epoch      x x x x x x F
after_epoch             x x x x x x F
cleanup_epoch           x x x x x x x
after_cancel_fit        x x x x x x x
after_fit               x x x x x x x
cleanup_fit             x x x x x x x"""

# A cancel in a `validate()` inside a run ends its own scopes, or the fit and epoch around it. Where it is called, and
# which of `E` and `F` are running there
hosts = [('', 'before_fit', 'F'), ('', 'before_epoch', 'EF'),
    ('train', 'before_train', 'EF'), ('train', 'after_pred', 'EF'), ('train', 'after_batch', 'EF'),
    ('validate', 'after_loss', 'EF'), ('validate', 'after_validate', 'EF'), ('', 'after_epoch', 'F'),
    ('', 'after_fit', '')]

# What happens when nobody cancels
train_batch = '''before_draw draw after_draw before_batch forward after_pred loss after_loss
    before_backward backward after_backward cleanup_backward  before_step step after_step cleanup_step
    before_zero_grad after_zero_grad  after_batch cleanup_batch'''.split()
valid_batch = '''before_draw draw after_draw before_batch forward after_pred loss after_loss after_batch
    cleanup_batch'''.split()

# the last draw finds the loader empty
def a_train():    return ['before_train',    *train_batch*2, 'before_draw', 'after_train',    'cleanup_train']
def a_validate(): return ['before_validate', *valid_batch*2, 'before_draw', 'after_validate', 'cleanup_validate']
def a_fit(n):
    return ['before_fit', *['before_epoch', *a_train(), *a_validate(), 'after_epoch', 'cleanup_epoch']*n, 'after_fit',
        'cleanup_fit']
def a_standalone():
    return ['before_fit', 'before_epoch', *a_validate(), 'after_epoch', 'cleanup_epoch', 'after_fit', 'cleanup_fit']

insides = 'draw','forward','loss','backward','step'
scopes = ended_by.values()
@cache
def scope_of(o, prefix):
    return o.removeprefix(prefix) if o.startswith(prefix) and o.removeprefix(prefix) in scopes else None

def opened(trace, i):
    "Scopes whose cleanup is still to come after moment `i`: `(scope, index of its before)`, outermost first"
    res = []
    for j,o in enumerate(trace[:i+1]):
        if s := scope_of(o, 'before_'): res.append((s,j))
        if scope_of(o, 'cleanup_'): res.pop()
    return res

def ending(trace, i, scope):
    "The trace if `scope` is cancelled at moment `i`; if `scope` is None, an error there"
    stack = [s for s,_ in opened(trace, i)]
    depth = -1 if scope is None else max(d for d,s in enumerate(stack) if s==scope)
    trace_so_far = trace[:i+1] + [f'cleanup_{s}' for s in reversed(stack[depth+1:])]
    if scope is None: return trace_so_far
    rest = trace[next(k for k in range(i, len(trace)) if len(opened(trace, k))<=depth)+1:]
    if scope=='backward': rest.remove('step') # a step without gradients does nothing
    return trace_so_far + [f'after_cancel_{scope}', f'after_{scope}', f'cleanup_{scope}'] + rest

def find(trace, phase, name, start=0):
    "Index of the first `name` in `phase`"
    def there(i): return not phase or name==f'cleanup_{phase}' or phase in [s for s,_ in opened(trace, i)]
    return next(i for i,o in enumerate(trace) if i>=start and o==name and there(i))

# A learner whose every moment is logged, and can be made to raise
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, key): ctx.key = key; return x.clone()
    @staticmethod
    def backward(ctx, g): _all_scenes[ctx.key].inside('backward'); return g,None

class Early(Callback):
    order,watches = -100,True # like `Raise` and `Trace`: what it holds is not searched, in its handlers for each event
    def __init__(self, scene):
        super().__init__(**{o: self._log(o, scene) for o in event
            if o not in ('after_create','before_row','after_row')})
    @staticmethod
    def _log(ev, scene):
        def _f(self):
            if ev=='after_exception': scene.errors.append(self.exc); return
            if ev=='before_batch' and self.training:
                scene.carried.append(any(p.grad is not None for p in self.model.parameters()))
            scene.log.append(ev)
        return _f

class Bomb(Callback):
    watches = True
    def __init__(self, scene):
        super().__init__(**{o: self._tick(o, scene) for o in event
            if o not in ('after_create','before_row','after_row','after_exception')})
    @staticmethod
    def _tick(ev, scene): return lambda self: scene.tick(ev)

class Host(Callback):
    "Validates at the first `ev` in `phase`, inside the run"
    order = 1
    def __init__(self, phase, ev): self.phase,self.done = phase,False; super().__init__(**{ev: Host._validate})
    def _validate(self):
        if self.done or (self.phase and self.dl_name!={'train':'train','validate':'valid'}[self.phase]): return
        self.done = True
        self.learn.validate()

_all_scenes = WeakValueDictionary() # by number: what model and loss hold is searched, and put back after inference
class Scene:
    def __init__(self, *cbs):
        self.log,self.errors,self.carried,self.counts,self.bombs = [],[],[],{},{}
        key,b = id(self),(torch.ones(4, 1),torch.zeros(4, 1))
        _all_scenes[key] = self
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a,self.child = nn.Parameter(torch.ones(1)),nn.Dropout(0.)
                self.child.eval() # modes are put back module by module
            def forward(self, x): _all_scenes[key].inside('forward'); return Boom.apply(self.child(x*self.a), key)
        class Loader:
            def __iter__(self):
                for _ in range(2): _all_scenes[key].inside('draw'); yield b
            def __len__(self): return 2
        class Opt(torch.optim.SGD):
            def step(self, *args): _all_scenes[key].inside('step'); return super().step(*args)
        def loss_func(p, y): _all_scenes[key].inside('loss'); return F.mse_loss(p, y)
        loss_func.n_items = len # else it would be called once more, to find out
        self.late = Trace(*[o for o in event if o not in ('after_create','before_row','after_row','after_exception')])
        self.learn = synth_learner(dls=DataLoaders(Loader(), Loader(), device='cpu'), model=Net(), loss_func=loss_func,
            opt_func=lambda ps,lr=.01: Opt(ps, lr), cbs=[Early(self), Bomb(self), self.late, *cbs])

    def reset(self):
        for o in (self.log,self.errors,self.carried,self.counts,self.bombs,self.late.seen): o.clear()

    def inside(self, name): self.log.append(name); self.tick(name)
    def tick(self, name):
        n = self.counts[name] = self.counts.get(name, 0) + 1
        if (name,n) in self.bombs: raise self.bombs[name,n]

_scenes = {}
def scene_with(*host):
    "A scene, with a `Host` if `host` is given. A learner that has come through one cell serves for the next one"
    scene = _scenes.pop(host, None) or Scene(*([Host(*host)] if host else []))
    scene.reset()
    for o in scene.learn.cbs:
        if isinstance(o, Host): o.done = False
    return scene

def seen_late(trace, raised):
    "What a callback sees that comes after the one that raises, of which it does not hear at the moments `raised`"
    res = []
    for i,o in enumerate(trace):
        befores = [j for s,j in opened(trace, i-1) if o==f'cleanup_{s}'][-1:]
        if o in insides or (i in raised and not o.startswith('cleanup_')) or (befores and befores[0] in raised):
            continue
        res.append(o)
    return res

def batch_ends(trace):
    "Training batches that reached `after_batch`: the moment, and whether there was a loss"
    loss = None
    for i,o in enumerate(trace):
        if o=='before_batch': loss = False
        if o=='after_loss': loss = True
        if o=='after_batch' and [s for s,_ in opened(trace, i) if s in ('train','validate')][-1]=='train': yield i,loss

def check(scene, run, trace, phase, name, exc, letter, start=0):
    "Raise `exc` at `name`, and compare all that follows with the cell's `letter`"
    raised = []
    if s := scope_of(name, 'after_cancel_'): # to get there, cancel that scope first
        i = find(trace, phase, f'before_{s}', start)
        scene.bombs[trace[i], trace[:i+1].count(trace[i])] = cancels[s]
        trace,start = ending(trace, i, s),i
        raised.append(i)
    i = find(trace, phase, name, start)
    scene.bombs[name, trace[:i+1].count(name)] = exc
    trace = ending(trace, i, ended_by.get(letter))
    if name!='after_batch' or letter=='x': raised.append(i) # all are to know that a batch is done
    learn = scene.learn
    if letter=='x':
        with pytest.raises(RuntimeError) as info: run(learn)
        e = info.value
        assert type(e) is RuntimeError and type(e.__cause__) is exc and exc.__name__ in str(e)
        if name not in insides: assert 'Bomb' in str(e) and name in str(e)
        assert scene.errors==[e]
    else:
        run(learn)
        assert scene.errors==[]
    assert scene.log==trace
    assert learn.exc is None and learn.mode is None
    assert learn.model.training and not learn.model.child.training
    assert all(p.grad is None for p in learn.model.parameters())
    return trace,raised

def again(scene, *host):
    "The learner can be used as if nothing had happened"
    scene.reset()
    scene.learn.fit(1)
    assert (scene.log==a_fit(1) and scene.learn.opt_step==2 and len(scene.learn.recorder.losses)==2
        and len(scene.learn.recorder.rows)==1)
    _scenes[host] = scene

def cells(table, phase=''):
    head,*rows = [o.split() for o in table.splitlines()]
    return [pytest.param(phase, name, columns[c], letter, id=f"{phase}-{name}-{c}{letter}".lstrip('-'))
        for name,*letters in rows for c,letter in zip(head, letters, strict=True)]

def test_tables_are_complete():
    "Every event of the loop is in the tables"
    rows = {o.split()[0] for t in (training,validation,around) for o in t.splitlines()[1:]}
    assert rows-{*insides}=={ev for ev,_ in moments()}
    assert {*columns.values()}=={*cancels.values()}

@pytest.mark.parametrize('phase,name,exc,letter',
    cells(around) + cells(training, 'train') + cells(validation, 'validate'))
def test_fit(phase, name, exc, letter):
    scene = Scene() if name in ('before_fit','after_cancel_fit') else scene_with()
    trace,raised = check(scene, lambda learn: learn.fit(2), a_fit(2), phase, name, exc, letter)
    assert scene.late.seen==seen_late(trace, raised)
    learn,ends = scene.learn,[*batch_ends(trace)]
    assert learn.opt_step==trace.count('step') - (name=='step')
    assert learn.train_iter==len(ends)
    assert len(learn.recorder.losses)==sum(loss and i not in raised for i,loss in ends)
    if phase=='train' and letter=='B': # the first batch ended early; what does the second find?
        if name in ('after_backward','before_step','step'):
            assert scene.carried[1], 'between backward and step, gradients are kept'
        elif name!='after_cancel_step':
            assert not scene.carried[1], 'before the backward there are none, and after a step they are spent'
        assert not any(scene.carried[2:])
    else: assert not any(scene.carried)
    again(scene)

@pytest.mark.parametrize('phase,name,exc,letter', cells(around) + cells(validation, 'validate'))
def test_standalone_validate(phase, name, exc, letter):
    scene = scene_with()
    def counts(learn):
        rec = learn.recorder
        return learn.opt_step,learn.train_iter,learn.epoch,learn.n_epoch,len(rec.losses),len(rec.rows)
    before = counts(scene.learn)
    trace,raised = check(scene, lambda learn: learn.validate(), a_standalone(), phase, name, exc, letter)
    assert scene.late.seen==seen_late(trace, raised)
    assert counts(scene.learn)==before
    again(scene)

@pytest.mark.sample(14)
@pytest.mark.parametrize('phase,name,exc,letter', cells(validation, 'validate'))
@pytest.mark.parametrize('where,host,outer', hosts, ids=lambda o: o)
def test_nested_validate(where, host, outer, phase, name, exc, letter):
    """Only `V` and `B` are caught inside; `E` and `F` end the epoch and the fit around it, if they are running;
    nothing else around it can be reached"""
    scene = scene_with(where, host)
    full = a_fit(2)
    i = find(full, where, host)
    if letter in 'EF' and letter not in outer: letter = 'x'
    trace,_ = check(scene, lambda learn: learn.fit(2), full[:i+1] + a_validate() + full[i+1:], phase, name, exc, letter,
        start=i+1)
    assert scene.learn.opt_step==trace.count('step')
    again(scene, where, host)

@pytest.mark.parametrize('name', ['before_batch','after_pred','after_loss'])
def test_batch_cancelled_in_nested_validate_is_not_that_of_the_fit(name):
    "The batch of training, in which the validation runs, has its own predictions and loss again, and steps"
    seen = []
    spy = Callback(after_pred=lambda self: seen.append(
        (self.pred.shape, self.loss, self.dl_name, self.iter, self.learn.mode, self.training)))
    spy.order = 2
    scene = Scene(Host('train', 'after_pred'), spy)
    full = a_fit(1)
    i = find(full, 'train', 'after_pred')
    check(scene, lambda learn: learn.fit(1), full[:i+1] + a_validate() + full[i+1:], 'validate', name,
        CancelBatchException, 'B', start=i+1)
    assert [o for o in seen if o[2]=='train']==[((4,1), None, 'train', 0, 'fit', True),
        ((4,1), None, 'train', 1, 'fit', True)]
    assert scene.learn.opt_step==2 and len(scene.learn.recorder.losses)==2

@pytest.mark.parametrize('c,letter', [*zip('BSKTVEF', 'BxxxVEF')], ids=list('BSKTVEF'))
def test_nested_in_a_standalone_validate(c, letter):
    scene,full = scene_with('validate', 'after_batch'),a_standalone()
    i = find(full, 'validate', 'after_batch')
    check(scene, lambda learn: learn.validate(), full[:i+1] + a_validate() + full[i+1:], 'validate', 'after_loss',
        columns[c], letter, start=i+1)

@pytest.mark.parametrize('as_instance', [False, True], ids=['class','instance'])
@pytest.mark.parametrize('scope', cancels)
def test_reason_is_kept(scope, as_instance):
    """Raising the class works; the reason of an instance is in `exc` at `after_cancel_…`; that of a fit ends up in
    `stop_reason`, until the next fit, and that of a smaller scope, which stopped no fit, does not"""
    reasons = []
    learn = synth_learner(2, 1, cbs=[
        r := Raise(f'before_{scope}', cancels[scope]('enough') if as_instance else cancels[scope]),
        Callback(**{f'after_cancel_{scope}': lambda self: reasons.append(str(self.exc))})])
    learn.fit(1)
    assert learn.stop_reason==('enough' if as_instance and scope=='fit' else None) and learn.exc is None
    assert reasons==['enough' if as_instance else '']
    learn.remove_cb(r)
    assert learn.fit(1).stop_reason is None

def test_except_exception_does_not_swallow_a_cancel():
    "Cancels are signals, not errors"
    assert all(issubclass(o, CancelException) and not issubclass(o, Exception) for o in cancels.values())
