"Ctrl-C at a safe point: inside a batch it waits until the batch has ended"
import os,signal,threading

class HeldInterrupt:
    "While active, Ctrl-C acts at once unless `busy()`; then it waits for `act`. The second one never waits. Loader workers ignore it"
    def __init__(self, busy): self.busy,self.pending,self.old = busy,False,None

    def __enter__(self):
        "Take over SIGINT: in the main thread only, and only where a Python function handles it now"
        old = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(old):
            self.old,self.pid,self.pending = old,os.getpid(),False
            signal.signal(signal.SIGINT, self.handle)
        return self

    def handle(self, signum, frame):
        if os.getpid()!=self.pid: return # a forked worker
        if self.busy() and not self.pending: self.pending = True
        else: self.pending = False; self.old(signum, frame)

    def act(self):
        "Do what the waiting Ctrl-C asked for"
        self.pending = False
        self.old(signal.SIGINT, None)

    def __exit__(self, typ, e, tb):
        if self.old is None: return
        if signal.getsignal(signal.SIGINT)==self.handle: signal.signal(signal.SIGINT, self.old)
        if isinstance(e, Exception) and self.pending: raise KeyboardInterrupt from e # a worker died of the same Ctrl-C
        if self.pending and e is None: self.act()
