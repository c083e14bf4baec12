import signal
import pytest,torch
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler) # shells start what runs in the background without
torch.set_num_threads(1) # sums do not depend on the number of cores, and tiny models are faster

settings.register_profile('default', deadline=None, derandomize=True, max_examples=50) # the same cases on every machine
settings.register_profile('soak', deadline=None, max_examples=2000)                     # new ones on every run
settings.load_profile('default')

def pytest_addoption(parser):
    g = parser.getgroup('learner')
    g.addoption('--flags', default='', help='Run the tests and notebook cells with these flags too, such as "slow cuda"')
    g.addoption('--save', action='store_true', help='Store the outputs in the notebooks that pass')
    g.addoption('--other-cpu', action='store_true', help='Let the last bits of results depend on shapes, as they do on some machines')
    g.addoption('--fresh', action='store_true', help='Fail if stored outputs are missing, or of another kind than the new ones')

def pytest_configure(config):
    if config.getoption('--other-cpu'):
        import other_cpu
        other_cpu.install()

def pytest_collection_modifyitems(config, items):
    for flag in {'slow','cuda'} - set(config.getoption('flags').split()):
        for o in items:
            if flag in o.keywords: o.add_marker(pytest.mark.skip(reason=f'runs with `--flags {flag}`'))
