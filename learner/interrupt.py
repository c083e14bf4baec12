"Ctrl-C at a safe point: inside a batch it waits until the batch has ended"
import os,signal,sys,threading
from contextlib import contextmanager

@contextmanager
def workers_ignore_interrupts():
    "Processes that are forked meanwhile ignore Ctrl-C: it is the process with the loop that deals with it"
    old,pid = signal.getsignal(signal.SIGINT),os.getpid()
    if threading.current_thread() is not threading.main_thread() or not callable(old): yield; return
    signal.signal(signal.SIGINT, lambda signum, frame: old(signum, frame) if os.getpid()==pid else None)
    try: yield
    finally: signal.signal(signal.SIGINT, old)

class HeldInterrupt:
    "While active, Ctrl-C acts at once, unless `owner` is inside `method`: then it waits for `act`. The second one never waits. Loader workers ignore it"
    def __init__(self, owner, method): self.owner,self.method,self.pending,self.old = owner,method,False,None

    def __enter__(self):
        "Take over SIGINT: in the main thread only, and only where a Python function handles it now"
        old = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(old):
            self.old,self.pid,self.pending = old,os.getpid(),False
            signal.signal(signal.SIGINT, self.handle)
        return self

    def inside(self, frame):
        "Whether `frame` was called, however deep, by `method` of `owner`. Asked once in a while, so that batches need not tell"
        while frame is not None:
            if frame.f_code.co_name==self.method and frame.f_locals.get('self') is self.owner: return True
            frame = frame.f_back
        return False

    def handle(self, signum, frame):
        if os.getpid()!=self.pid: return # a forked worker
        if self.inside(frame) and not self.waiting: self.pending = True
        else: self.now(signum, frame)

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
        "Do what a waiting Ctrl-C asked for, unless a batch around this one is running still"
        if self.inside(sys._getframe(1)): return
        self.pending = False
        self.old(signal.SIGINT, sys._getframe())

    def __exit__(self, typ, e, tb):
        if self.old is None: return
        if signal.getsignal(signal.SIGINT)==self.handle: signal.signal(signal.SIGINT, self.old)
        if not self.pending: return
        self.pending = False
        if e is None: self.old(signal.SIGINT, sys._getframe())
        elif isinstance(e, Exception): raise KeyboardInterrupt from e # a worker died of the same Ctrl-C
