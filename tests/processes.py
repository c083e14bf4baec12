"""Scripts in processes of their own, without the seconds that importing torch takes: a server that has it imported
forks one for each. All workers of a test session share it"""
import atexit,gc,json,os,select,shutil,signal,socket,subprocess,sys,tempfile,threading,types,warnings,weakref
from contextlib import suppress
from pathlib import Path

root = Path(__file__).parents[1]
env = os.environ | dict(OMP_NUM_THREADS='1',
    PYTHONPATH=os.pathsep.join([str(root), str(root/'tests'), str(root/'tests'/'promises')]))
place = 'TEST_SERVER' # environment variable with the path of its socket
other_hashes = dict(PYTHONHASHSEED='2' if os.environ.get('PYTHONHASHSEED')=='1' else '1') # than those of the tests

def serve(listener):
    """Fork a process for each job that comes through the socket, and answer with its exit code. Returns in the forked
    ones, with what they are to run"""
    ended,at_end = socket.socketpair()
    for o in (ended, at_end): o.setblocking(False)
    signal.set_wakeup_fd(at_end.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None) # or it would not wake
    clients = {}
    while True:
        ready,_,_ = select.select([sys.stdin, listener, ended], [], [])
        if sys.stdin in ready: os._exit(0) # closed: the session is over
        if ended in ready:
            ended.recv(4096)
            for pid in [*clients]:
                done,status = os.waitpid(pid, os.WNOHANG)
                if not done: continue
                with clients.pop(pid) as c, suppress(OSError): # who asked may be gone
                    c.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if listener in ready:
            c,_ = listener.accept()
            job = json.loads(c.makefile().readline())
            if pid := os.fork(): clients[pid] = c; continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for o in (listener, ended, at_end, c, *clients.values()): o.close()
            return job

def become(code, args, cwd, folder, timeout, quiet):
    "Turn a forked process into one that was started for `code`"
    os.setsid()
    for fd,name in (0, os.devnull),(1, f'{folder}/out'),(2, f'{folder}/err'):
        new = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(new, fd)
        os.close(new)
    os.chdir(cwd)
    sys.argv[:] = ['-c', *args]
    if quiet:
        sys.warnoptions[:] = ['ignore']
        warnings.simplefilter('ignore')
    signal.alarm(timeout)
    main = sys.modules['__main__'] = types.ModuleType('__main__')
    code = compile(code, '<string>', 'exec')
    try: exec(code, vars(main))
    except Exception: sys.excepthook(*sys.exc_info()); end(1)
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int): end(e.code or 0)
        raise
    else: end(0)

def end(code):
    "End as Python does, only that the kernel takes the memory back: to free each object takes half a second"
    threading._shutdown() # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

def said_by(path): return f'{path}.err'

def server():
    "The path of the server's socket. The first call starts it"
    if place not in os.environ:
        os.environ[place] = path = f'{tempfile.mkdtemp()}/socket'
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            fd = listener.fileno()
            with open(said_by(path), 'w') as err: p = subprocess.Popen([sys.executable, __file__, str(fd)],
                stdin=subprocess.PIPE, stderr=err, env=env | other_hashes, pass_fds=[fd], start_new_session=True)
        pid = os.getpid()
        def stop():
            if os.getpid()!=pid: return # a fork of this process ends
            p.communicate()
            shutil.rmtree(Path(path).parent)
        atexit.register(stop)
    return os.environ[place]

def run_script(code, *args, cwd=root, timeout=300, quiet=True):
    """Run `code` in a process and a session of its own, as `python -c` would, only that torch and learner are imported
    and a first step has been made. Texts have other hashes than here; `quiet` as with `-W ignore`"""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(server())
            s.sendall(json.dumps([code, [str(o) for o in args], str(cwd), folder, timeout, quiet]).encode() + b'\n')
            returncode = int(s.makefile().read())
        except (ConnectionError,ValueError) as e:
            raise RuntimeError(f"The server has ended:\n{Path(said_by(server())).read_text()[-2000:]}") from e
        out,err = (Path(folder, o).read_text() for o in ('out','err'))
    return subprocess.CompletedProcess(['python', '-c', code], returncode, out, err)

if __name__=='__main__':
    gc.disable() # searches for garbage would take as long as all these imports
    import runs # and learner with it
    import dist_cases,nbrun # seconds that each process would need # noqa: F401
    import accelerate,matplotlib.pyplot,sklearn.datasets,sklearn.metrics,torch._dynamo,torchmetrics # noqa: F401
    import fastcore.test,torch.distributed.algorithms.ddp_comm_hooks # noqa: F401
    import IPython.core.application,IPython.core.magics.execution,matplotlib_inline.backend_inline,sqlite3 # noqa: F401
    runs.warm_up()
    nbrun.warm_up()
    # would write a table of times to a log at the end of each process, for 25 ms
    atexit.unregister(torch._dynamo.utils.dump_compile_times)
    for o in [*weakref.finalize._registry]: o.atexit = False # of torch's libraries, which the kernel takes back too
    gc.freeze() # what a collection in a child would go through, and copy
    gc.enable()
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
