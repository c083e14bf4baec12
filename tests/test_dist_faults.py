"Full disks, kills and SIGTERM: files stay whole, and the run goes on with another number of processes"
import os,random,signal,subprocess,time
import pytest
from test_dist import also,close,compared,env,goes_on_as_one,launcher,one,slow
from together import together

def test_a_full_disk(tmp_path):
    """The first process cannot write a file: the error has the number of the process, all end, nothing half written
    is left, and the run goes on in one process from the last whole file"""
    res = together(2, 'on_a_full_disk', str(tmp_path), 6)
    kind,text = res[0]['exc']
    assert kind=='OSError' and 'File too large' in text and 'in process 0 of 2' in text
    assert 'Process 0 of 2 has failed: OSError' in res[1]['exc'][1] and max(o['seconds'] for o in res)<30
    assert not [o for o in res[0]['names'] if 'tmp' in o]
    goes_on_as_one(together(1, 'resumed', str(tmp_path), None, every=2), tmp_path, every=2)

@pytest.mark.parametrize('procs,seed', [((1,2,1), 1), *also(((1,2,1), 0), ((1,2,1), 2),
    *((procs, seed) for procs in ((2,3,1), (3,1,2)) for seed in (0, 1, 2)))])
def test_processes_killed_at_random_batches(procs, seed, tmp_path):
    """A process is killed, twice, at batches drawn at random; the run goes on from its files with another number of
    processes, and ends as one that was never killed"""
    draw = random.Random(f'{seed} {procs}')
    for n,at in zip(procs, (draw.randint(3, 9), draw.randint(10, 19))):
        res = together(n, 'resumed', str(tmp_path), at, how='kill', every=2, fails=True)
        assert -signal.SIGKILL in res.codes
    goes_on_as_one(together(procs[-1], 'resumed', str(tmp_path), None, every=2), tmp_path, every=2)

@pytest.mark.parametrize('bf16,procs,seed', [(False, (1,2,1), 0), *also(*((bf16, procs, seed)
    for bf16 in (False, True) for procs in ((1,2,1), (2,1,2)) for seed in (1, 2, 3)))])
def test_all_together_killed_and_resumed(bf16, procs, seed, tmp_path):
    """Accumulation, clipping, EMA, MixUp, early stopping, the best weights, in 16 bits or not: killed at two batches
    drawn at random, and resumed with other numbers of processes, it is the run of one process"""
    draw,eps = random.Random(f'{seed} {procs} {bf16}'),3e-3 if bf16 else 1e-6
    ref = one('all_together', str(tmp_path/'one'), bf16=bf16)
    for n,at in zip(procs, (draw.randint(3, 8), draw.randint(9, 17))):
        assert -signal.SIGKILL in together(n, 'all_together', str(tmp_path), at, bf16, fails=True).codes
    res = together(procs[-1], 'all_together', str(tmp_path), None, bf16)
    assert ref['iters'][0]==18 and ref['reason']
    for o in res: close({k:o[k] for k in (*compared, 'reason')}, {k:ref[k] for k in (*compared, 'reason')}, eps)

@slow
@pytest.mark.parametrize('after', [1, 3])
def test_sigterm_to_the_launcher(after, tmp_path):
    "`torchrun` passes SIGTERM on: a file is written, and resumed by fewer or more processes"
    (file := tmp_path/'script.py').write_text(f'''if True:
        import sys,time
        sys.path.insert(0, {str(os.path.dirname(__file__))!r})
        from dist_cases import *
        class Slow(Callback):
            def after_batch(self):
                time.sleep(.2)
                if self.learn.training and self.learn.train_iter==4: Path({str(tmp_path)!r}, f'go').touch()
        learn = make('weights', path={str(tmp_path)!r})
        cbs = [Checkpoint(every=1000, unit='iter'), GradientAccumulation(20), Slow()]
        with learn.distrib_ctx(): learn.fit(3, cbs=cbs, resume='auto')''')
    cmd = [*launcher, '--standalone', '--nproc-per-node', '2', file]
    p = subprocess.Popen(cmd, env=env, stdout=-1, stderr=-1, text=True)
    until = time.monotonic()+60
    while not (tmp_path/'go').exists() and time.monotonic()<until: time.sleep(.05)
    p.terminate()
    out,err = p.communicate(timeout=60)
    assert p.returncode,err
    res = together(after, 'resumed', str(tmp_path), None, every=1000)
    goes_on_as_one(res, tmp_path, every=1000)
    assert res[0]['began']>=4
