"Every notebook is a test: it runs from top to bottom"
import os
from concurrent.futures import ThreadPoolExecutor
import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbrun import run_nb,unlabelled

nbs = get_config().nbs_path
quick = 'tutorials/01_digits','tutorials/from_pytorch'
def name(fn): return fn.relative_to(nbs).with_suffix('').as_posix()
def case(fn):
    return pytest.param(fn, id=name(fn),
        marks=pytest.mark.slow if name(fn).startswith('tutorials/') and name(fn) not in quick else ())

@pytest.fixture(scope='session')
def runs(request):
    """`runs(fn)` is the error of a notebook, or None. Those selected run as many at a time as there are cores; one
    after the other, where tests do so side by side"""
    opt = request.config.getoption
    def run(fn): return run_nb(fn, opt('flags').split(), opt('save'), opt('fresh'))
    if 'PYTEST_XDIST_WORKER' in os.environ: yield run; return
    fns = [o.callspec.params['fn'] for o in request.session.items if getattr(o, 'function', None) is test_notebook
        and not o.get_closest_marker('skip')]
    with ThreadPoolExecutor(os.cpu_count()) as ex:
        res = {fn:ex.submit(run, fn) for fn in fns}
        yield lambda fn: res[fn].result()
        ex.shutdown(cancel_futures=True)

@pytest.mark.parametrize('fn', [case(o) for o in sorted(nbglob(as_path=True))])
def test_notebook(fn, runs):
    if err := runs(fn): pytest.fail(err, pytrace=False)

def test_axes_without_labels_are_found():
    "A notebook fails if a figure that it stores has an axis with numbers and no label; names and images need none"
    from matplotlib.figure import Figure
    def found(draw):
        fig = Figure()
        draw(fig.subplots(1, 2, sharey=True))
        fig.canvas.draw()
        return [*unlabelled(fig)]
    def plot(axs, **kwargs):
        for ax in axs: ax.plot([1,2]); ax.set(**kwargs)
    assert found(plot)==['x', 'y', 'x']
    assert found(lambda axs: plot(axs, xlabel='batch', title='loss'))==['y loss']
    assert not found(lambda axs: plot(axs, xlabel='batch', ylabel='loss'))
    assert not found(lambda axs: [ax.barh(['a','b'], [1,2]) and ax.set(xlabel='µs') for ax in axs])
    assert not found(lambda axs: [ax.axis('off') for ax in axs])
