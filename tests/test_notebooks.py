"Every notebook is a test: it runs from top to bottom"
import os
from concurrent.futures import ThreadPoolExecutor
import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbrun import run_nb

nbs = get_config().nbs_path

@pytest.fixture(scope='session')
def runs(request):
    "Run the selected notebooks, as many at a time as there are cores"
    opt = request.config.getoption
    fns = [o.callspec.params['fn'] for o in request.session.items if getattr(o, 'function', None) is test_notebook]
    with ThreadPoolExecutor(os.cpu_count()) as ex:
        yield {fn:ex.submit(run_nb, fn, opt('flags').split(), opt('save'), opt('fresh')) for fn in fns}
        ex.shutdown(cancel_futures=True)

@pytest.mark.parametrize('fn', sorted(nbglob(as_path=True)), ids=lambda o: o.relative_to(nbs).with_suffix('').as_posix())
def test_notebook(fn, runs):
    if err := runs[fn].result(): pytest.fail(err, pytrace=False)
