"Functions of `dist_cases` run in several processes that train together, forked from one that has torch imported"
import os,pickle,sys,tempfile,traceback
from pathlib import Path
from processes import run_script

def run_case(name, args, kwargs, file):
    import torch,dist_cases
    torch.set_num_threads(1)
    res = getattr(dist_cases, name)(*args, **kwargs)
    Path(file).write_bytes(pickle.dumps(res))

def fork_all(n, folder):
    "Fork `n` processes, with the environment that torchrun would give them, and wait for all"
    name,args,kwargs = pickle.loads(Path(folder, 'case').read_bytes())
    if n==0: run_case(name, args, kwargs, f'{folder}/0'); return
    from learner.dist.launch import free_port # with what the processes need, once for all
    env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(free_port()), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n))
    pids = []
    for rank in range(n):
        sys.stdout.flush()
        if pid := os.fork(): pids.append(pid); continue
        for fd,o in (1, 'out'),(2, 'err'): os.dup2(os.open(f'{folder}/{o}{rank}', os.O_RDWR|os.O_CREAT), fd)
        os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
        code = 0
        try: run_case(name, args, kwargs, f'{folder}/{rank}')
        except BaseException as e:
            traceback.print_exc(); code = e.code if isinstance(e, SystemExit) and type(e.code) is int else 1
        finally: sys.stdout.flush(); sys.stderr.flush(); os._exit(code)
    Path(folder, 'codes').write_bytes(pickle.dumps([os.waitstatus_to_exitcode(os.waitpid(o, 0)[1]) for o in pids]))

class Together(list):
    "What a function returned in each process; `out`, `err` and `codes` are lists too"

def together(procs, name, *args, limit=60, fails=False, **kwargs):
    "What `dist_cases.name` returns in each of `procs` processes; 0: in one, without a process group"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, 'case').write_bytes(pickle.dumps((name, args, kwargs)))
        code = f'import together,os; together.fork_all({procs}, {folder!r}); os._exit(0)' # without tearing down torch
        p = run_script(code, timeout=limit)
        def read(o): return Path(folder, o).read_text() if Path(folder, o).exists() else ''
        res = Together(pickle.loads(f.read_bytes()) if (f := Path(folder, str(i))).exists() else None
            for i in range(max(procs, 1)))
        res.out,res.err = [[read(f'{o}{i}') for i in range(procs)] for o in ('out','err')]
        assert p.returncode==0,p.stderr[-3000:]
        res.codes = pickle.loads(Path(folder, 'codes').read_bytes()) if procs else [0]
    assert fails or not any(res.codes),'\n'.join(res.err)[-6000:]
    return res
