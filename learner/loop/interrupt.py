"Ctrl-C at a safe point: in training it waits until the batch has ended"
import os,signal,sys,threading
from contextlib import contextmanager
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

@contextmanager
def workers_ignore_interrupts():
    "Processes that are forked meanwhile ignore Ctrl-C: it is the process with the loop that deals with it"
    old,pid = signal.getsignal(signal.SIGINT),os.getpid()
    if threading.current_thread() is not threading.main_thread() or not callable(old): yield; return
    signal.signal(signal.SIGINT, lambda signum, frame: old(signum, frame) if os.getpid()==pid else None)
    try: yield
    finally: signal.signal(signal.SIGINT, old)

_waiting = {f.__code__ for f in (_MultiProcessingDataLoaderIter._next_data, _MultiProcessingDataLoaderIter._get_data, _MultiProcessingDataLoaderIter._try_get_data)}

def awaits_workers(frame):
    "Whether a batch is being awaited from worker processes at `frame`"
    while frame is not None:
        if frame.f_code in _waiting: return True
        frame = frame.f_back
    return False

class HeldInterrupt:
    """While active, Ctrl-C waits for the next pause of `owner`, if it comes in the middle of a batch, or of training.
    It acts at once between phases, and while a batch is awaited from worker processes. The second one never waits. Loader workers ignore it"""
    def __init__(self, owner): self.owner,self.pending,self.old = owner,False,None

    def __enter__(self):
        "Take over SIGINT: in the main thread only, and only where a Python function handles it now"
        old = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(old):
            self.old,self.pid,self.pending = old,os.getpid(),False
            signal.signal(signal.SIGINT, self.handle)
        return self

    def held(self, frame):
        "Whether stopping at `frame` would leave something half done: the innermost phase decides"
        scopes = self.owner.scopes
        if 'batch' in scopes: return True
        phase = next((o for o in reversed(scopes) if o in ('train','validate')), None)
        return phase=='train' and not awaits_workers(frame)

    def handle(self, signum, frame):
        if os.getpid()!=self.pid: return # a forked worker
        if self.waiting or not self.held(frame): return self.now(signum, frame)
        self.pending = True
        self.owner.at_pause(self.act, stops=True)

    @property
    def outer(self):
        "That of a fit around this one, which belongs to another Learner"
        res = getattr(self.old, '__self__', None)
        return res if isinstance(res, HeldInterrupt) else None
    @property
    def waiting(self): return self.pending or (self.outer is not None and self.outer.waiting)

    def now(self, signum, frame):
        "Wait no more, and neither do those around this one"
        self.pending = False
        (self.old if self.outer is None else self.outer.now)(signum, frame)

    def act(self):
        "Do what a waiting Ctrl-C asked for"
        self.pending = False
        self.old(signal.SIGINT, sys._getframe())

    def __exit__(self, typ, e, tb):
        if self.old is None: return
        if signal.getsignal(signal.SIGINT)==self.handle: signal.signal(signal.SIGINT, self.old)
        if not self.pending: return
        self.pending = False
        if e is None: self.old(signal.SIGINT, sys._getframe())
        elif isinstance(e, Exception): raise KeyboardInterrupt from e # a worker died of the same Ctrl-C
