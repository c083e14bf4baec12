"""What the loop does, as a simulation without tensors, data or a library: the words of the contract in the shortest
code that says them

A `Program` says what some callbacks do at which of their calls: raise a cancel or an error, run a validation, switch
themselves off.
`Model` plays it and predicts who is called when, what escapes, what is counted.
Nothing here uses Python's own exceptions: what leaves a scope is a value, `Out`, so that no `finally` can do by
accident what the contract demands."""
from collections import Counter
from dataclasses import dataclass,field

scopes = 'fit','epoch','train','validate','batch','backward','step'
# Events that `run_train` and `run_valid` gate
batch_events = {f'{o}_{s}' for s in ('batch','backward','step') for o in ('before','after_cancel','after','cleanup')} \
    | {'before_draw','after_draw','after_pred','after_loss','before_zero_grad','after_zero_grad'}
events = sorted(batch_events
    | {f'{o}_{s}' for s in ('fit','epoch','train','validate') for o in ('before','after_cancel','after','cleanup')})
# what a callback may raise besides cancels
errors = 'ValueError','KeyError','OSError','NoArgs','StopIteration','KeyboardInterrupt'

@dataclass
class Cb:
    "A callback: `acts[event, n]` is what it does at the `n`-th call of its handler for `event`"
    name:str
    order:int = 0
    lacks:frozenset = frozenset() # events without handler
    run_train:bool = True
    run_valid:bool = True
    only_fit:bool = False
    acts:dict = field(default_factory=dict) # ('cancel', scope, reason) | ('error', name) | ('validate',) | ('off',)

@dataclass
class Program:
    cbs:list
    n_epoch:int = 2
    n_train:int = 2
    n_valid:int = 1
    calls:tuple = ('fit',)

@dataclass
class Out:
    "What leaves a scope: the cancel of another one, or an error"
    cancel:str = None # scope
    error:str = None  # type of the exception
    reason:str = None
    cause:str = None  # the scope whose cancel became this error
    by:tuple = None   # callback and event
    later:list = field(default_factory=list) # cleanups that failed after it: `(callback, event, type)`

class Model:
    def __init__(self, program):
        p = self.p = program
        self.all = [Cb('train_eval', -10, run_valid=False), Cb('recorder', 50), *p.cbs]
        self.trace,self.calls,self.off,self.errors = [],Counter(),set(),[]
        self.mode,self.training,self.running,self.grads = None,False,[],False
        self.train_iter = self.opt_step = self.losses = 0
        self.has_loss,self.stepped,self.stop_reason = False,False,None

    # Who is called
    def listeners(self, ev):
        return [c for c in sorted(self.all, key=lambda c: c.order) if ev not in c.lacks and c.name not in self.off
            and (self.mode=='fit' or not c.only_fit)
            and (ev not in batch_events or (c.run_train if self.training else c.run_valid))]

    def tell(self, c, ev):
        "Call the handler of one callback"
        if c.name=='train_eval':
            if ev=='before_fit': self.train_iter = 0
            if ev=='after_batch': self.train_iter += 1
        elif c.name=='recorder':
            if ev=='before_fit' and self.mode=='fit': self.losses = 0
            if ev=='after_batch' and self.training and self.mode=='fit' and self.has_loss: self.losses += 1
        else:
            self.trace.append((c.name,ev))
            if c.name=='witness' and ev=='before_batch' and self.training: self.trace.append(('grads',self.grads))
            self.calls[c.name,ev] += 1
            match c.acts.get((ev,self.calls[c.name,ev])):
                case ('cancel',scope,reason): return self.raised(c, ev, scope, reason)
                # comes through a generator, which raises it as this
                case ('error','StopIteration') if ev=='before_draw':
                    return Out(error='RuntimeError', by=(c.name,ev))
                case ('error',name):          return Out(error=name, by=(c.name,ev))
                case ('validate',):           return self.nested()
                case ('off',):                self.off.add(c.name)

    def raised(self, c, ev, scope, reason):
        "A cancel, if its scope is running here; else an error. A cleanup has no scope to cancel"
        inside = self.running[::-1]
        # a nested validation lets only these two out
        if '|' in inside: inside = inside[:inside.index('|')] + [o for o in inside if o in ('fit','epoch')]
        if scope in inside and not ev.startswith('cleanup_'): return Out(cancel=scope, reason=reason, by=(c.name,ev))
        return Out(error='RuntimeError', cause=scope, by=(c.name,ev))

    def emit(self, ev):
        """Tell all listeners, until one of them raises. Also returns those whose turn did not come. A cancel after a
        batch waits until all know that it is done; of several, that of the outermost scope counts"""
        todo,cancel = self.listeners(ev),None
        while todo:
            if not (out := self.tell(todo.pop(0), ev)): continue
            if ev!='after_batch' or out.error: return out,{c.name for c in todo}
            if not cancel or self.running.index(out.cancel)<self.running.index(cancel.cancel): cancel = out
        return cancel,set()

    # The shape of a scope
    def scope(self, name, body):
        self.running.append(name)
        out,unreached = self.emit(f'before_{name}')
        out = out or body()
        self.running.pop()
        if out and out.cancel==name:
            if name=='batch' and self.stepped: self.grads = False
            if name=='fit': self.stop_reason = out.reason
            out,_ = self.emit(f'after_cancel_{name}')
        out = out or self.emit(f'after_{name}')[0]
        return self.cleanup(name, unreached, out)

    def cleanup(self, name, unreached, out):
        """All of them, the last one first, whatever fails. An error goes before a cancel, and the first error before
        later ones"""
        for c in reversed(self.listeners(f'cleanup_{name}')):
            if c.name in unreached: continue
            new = self.tell(c, f'cleanup_{name}')
            if not new: continue
            if out and out.error: out.later.append((*new.by, new.error))
            else: out = new
        return out

    def each(self, *steps):
        "One after the other, until one fails"
        for f in steps:
            if out := f(): return out

    def point(self, ev): return lambda: self.emit(ev)[0]

    # The loop
    def epoch(self): return self.each(*[self.train]*(self.mode=='fit'), *[self.validate]*(self.p.n_valid>0))

    def train(self):
        self.training = True
        out = self.scope('train', lambda: self.batches(self.p.n_train))
        self.grads = False
        return out

    def validate(self):
        self.training = False
        return self.scope('validate', lambda: self.batches(self.p.n_valid))

    def batches(self, n):
        for _ in range(n):
            if out := self.each(self.point('before_draw'), self.point('after_draw'), self.batch): return out
        return self.emit('before_draw')[0]

    def batch(self):
        self.has_loss = self.stepped = False
        def loss(): self.has_loss = True
        learning = [self.backward,self.step,self.zero_grad]*self.training
        return self.scope('batch',
            lambda: self.each(self.point('after_pred'), loss, self.point('after_loss'), *learning))

    def backward(self):
        def grad(): self.grads = True
        return self.scope('backward', grad)

    def step(self):
        can = self.grads
        def update():
            if can: self.opt_step += 1; self.stepped = True
        return self.scope('step', update)

    def zero_grad(self):
        def zero(): self.grads = False
        return self.each(self.point('before_zero_grad'), zero, self.point('after_zero_grad'))

    def nested(self):
        "A validation inside a run: two scopes, and everything as it was"
        saved = self.mode,self.training,self.has_loss,self.stepped,self.stop_reason
        self.running.append('|')
        self.mode = 'validate'
        out = self.validate()
        self.running.pop()
        self.mode,self.training,self.has_loss,self.stepped,self.stop_reason = saved
        return out

    # What users call
    def call(self, name):
        "Run `fit` or `validate`: what escapes, or None"
        train_iter,reason = self.train_iter,self.stop_reason
        self.mode,self.training = name,False
        if name=='fit': self.train_iter,self.opt_step,self.stop_reason = 0,0,None
        out = self.scope('fit', lambda: self.each(
            *[lambda: self.scope('epoch', self.epoch)]*(self.p.n_epoch if name=='fit' else 1)))
        self.mode,self.training = None,False
        self.off.clear()
        if name=='validate': self.train_iter,self.stop_reason = train_iter,reason
        return out
