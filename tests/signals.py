"Ctrl-C in tests, and the handler that they leave behind"
import signal
import pytest

def ctrl_c(n=1):
    for _ in range(n): signal.raise_signal(signal.SIGINT)

def handler(): return signal.getsignal(signal.SIGINT)

@pytest.fixture(autouse=True)
def python_handler():
    "Each test begins with Python's own handler, and must end with it"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
