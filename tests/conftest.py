import gc,os,random,signal,sys
from collections import Counter
from itertools import combinations
from zlib import crc32
import numpy as np, pytest, torch
from hypothesis import settings
import processes

signal.signal(signal.SIGINT, signal.default_int_handler) # shells start what runs in the background without
torch.set_num_threads(1) # sums do not depend on the number of cores, and tiny models are faster
for devices in (torch.cuda, torch.xpu, torch.mtia): # a seed for devices that are not there is kept, with a traceback
    if not devices.is_available(): devices.manual_seed_all = lambda seed: None

fsync,os.fsync = os.fsync,os.fstat # waiting for the disk tells nothing about the code, but for tests that ask for it
@pytest.fixture
def sync(monkeypatch): monkeypatch.setattr(os, 'fsync', fsync)

os.environ.pop('PYTHONDONTWRITEBYTECODE', None) # or each process that a test starts would compile the library
sys.dont_write_bytecode = False

settings.register_profile('default', deadline=None, derandomize=True, max_examples=30) # the same cases on every machine
settings.register_profile('soak', deadline=None, max_examples=2000)                     # new ones on every run
settings.load_profile('default')

def pytest_addoption(parser):
    g = parser.getgroup('learner')
    g.addoption('--flags', default='',
        help='"slow": run tests and notebook cells with this flag too. "cuda": run the tests for a GPU, and no others')
    g.addoption('--save', action='store_true', help='Store the outputs in the notebooks that pass')
    g.addoption('--other-cpu', action='store_true',
        help='Let the last bits of results depend on shapes, as they do on some machines')
    g.addoption('--fresh', action='store_true',
        help='Fail if stored outputs are missing, or of another kind than the new ones')

def pytest_configure(config):
    if 'cuda' not in flags_of(config): os.environ['CUDA_VISIBLE_DEVICES'] = '' # the same on machines with a GPU
    if config.getoption('--other-cpu'):
        import other_cpu
        other_cpu.install()
    if getattr(config.option, 'numprocesses', None): processes.server() # one for all workers

@pytest.hookimpl(optionalhook=True) # of pytest-xdist, which `-p no:xdist` leaves out
def pytest_xdist_auto_num_workers():
    "One for each CPU, with about 0.7 GB; two of them keep two CPUs busy for 96 % of the time"
    return min(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count(), 8)

gc.disable() # until tests are collected
def pytest_collection_finish():
    "Modules and cases stay until the end: collections of garbage, which some tests ask for, need not visit them"
    gc.freeze()
    gc.enable()

def pytest_runtest_teardown(item, nextitem):
    if plt := sys.modules.get('matplotlib.pyplot'): plt.close('all') # others may count what is open
    if nextitem is None or nextitem.path==item.path: return
    gc.collect()
    gc.freeze() # what the tests of a file have imported stays, too

def pytest_runtest_setup(item):
    for seed in (random.seed, np.random.seed, torch.manual_seed): seed(0) # the same numbers, whatever ran before

def sampled(cases, name, n, together=1):
    """One in `n` of the cases of a test, or more: any `together` values of its lists of parameters meet in one of
    them. The same ones on every machine"""
    order = sorted(cases, key=lambda o: crc32(f'{name}[{o.id}]'.encode()))
    meetings = [{*combinations(enumerate(o._idlist), together)} for o in order]
    chosen,met = {},set() # by place
    for n_new in range(max(map(len, meetings)), 0, -1): # first those in which most meet that have not met yet
        for i,there in enumerate(meetings):
            if len(there-met)>=n_new: chosen[i] = order[i]; met |= there
    others = [o for i,o in enumerate(order) if i not in chosen]
    return [*chosen.values(), *others[:max(0, len(cases)//n-len(chosen))]]

@pytest.hookimpl(trylast=True) # when the lists of parameters have been multiplied
def pytest_generate_tests(metafunc):
    "Leave the other cases of tests marked with `sample` to `--flags slow`"
    mark = metafunc.definition.get_closest_marker('sample')
    if mark and 'slow' not in flags_of(metafunc.config):
        metafunc._calls = sampled(metafunc._calls, metafunc.function.__name__, *mark.args, **mark.kwargs)

def flags_of(config):
    "What `--flags` lists. To store outputs, or to compare them, all notebooks are needed"
    flags = {*config.getoption('flags').split()}
    return flags | {'slow'} if config.getoption('--save') or config.getoption('--fresh') else flags

def pytest_collection_modifyitems(config, items):
    flags = flags_of(config)
    for flag in {'slow','cuda'} - flags:
        for o in items:
            if flag in o.keywords: o.add_marker(pytest.mark.skip(reason=f'runs with `--flags {flag}`'))
    if 'cuda' in flags:
        config.hook.pytest_deselected(items=[o for o in items if 'cuda' not in o.keywords])
        items[:] = [o for o in items if 'cuda' in o.keywords]

# Matrices: tests with many cells, whose outcomes are counted
_matrices = pytest.StashKey()

@pytest.fixture
def tally(request):
    "A function that counts the outcome of a cell, such as `exact` or `refused`"
    counts = request.config.stash.setdefault(_matrices, {}).setdefault(request.node.nodeid.split('[')[0], Counter())
    def count(outcome): counts[outcome] += 1
    return count

def pytest_terminal_summary(terminalreporter, config):
    "The size and the result of each matrix"
    if 'slow' not in flags_of(config): return
    for name,counts in config.stash.get(_matrices, {}).items():
        kinds = ', '.join(f'{n:,} {k}' for k,n in counts.most_common())
        terminalreporter.write_line(f'{name}: {sum(counts.values()):,} cells, of which {kinds}')

class Clock:
    t = 0.
    def __call__(self): return self.t
    def sleep(self, s): self.t += s

@pytest.fixture
def clock(monkeypatch):
    "The clock of profiles and timers, which moves only when a test advances it"
    res = Clock()
    for mod in ('speed.timer','inspect.profile'): monkeypatch.setattr(f'learner.{mod}.perf_counter', res)
    return res
