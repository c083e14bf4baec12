"""Scripts in processes of their own, without the seconds that importing torch takes: a server that has it imported
forks one for each"""
import atexit,gc,json,os,signal,subprocess,sys,tempfile,threading,types
from functools import cache
from pathlib import Path

root = Path(__file__).parents[1]
env = os.environ | dict(OMP_NUM_THREADS='1',
    PYTHONPATH=os.pathsep.join([str(root), str(root/'tests'), str(root/'tests'/'promises')]))

def serve():
    "Fork a process for each line of standard input. Returns in the forked ones, with what they are to run"
    for line in sys.stdin:
        job = json.loads(line)
        if (pid := os.fork())==0: return job
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

def become(code, args, cwd, folder, timeout):
    "Turn a forked process into one that was started for `code`"
    os.setsid()
    for fd,name in (0, os.devnull),(1, f'{folder}/out'),(2, f'{folder}/err'):
        new = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(new, fd)
        os.close(new)
    os.chdir(cwd)
    sys.argv[:] = ['-c', *args]
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

def start(file):
    "A server: `file`, run by Python, imports what is needed, and then calls `serve`"
    p = subprocess.Popen([sys.executable, '-W', 'ignore', file], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=env, text=True)
    atexit.register(p.communicate)
    return p

@cache
def server(): return start(__file__)

def run_script(code, *args, cwd=root, timeout=300, server=server):
    """Run `code` in a process and a session of its own, as `python -W ignore -c` would, only that torch and learner
    are imported and a first step has been made"""
    p = server()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([code, [str(o) for o in args], str(cwd), folder, timeout]), file=p.stdin, flush=True)
        returncode = int(p.stdout.readline())
        out,err = (Path(folder, o).read_text() for o in ('out','err'))
    return subprocess.CompletedProcess(['python', '-c', code], returncode, out, err)

if __name__=='__main__':
    import runs # and learner with it
    runs.warm_up()
    gc.freeze() # what a collection in a child would go through, and copy
    if job := serve(): become(*job)
