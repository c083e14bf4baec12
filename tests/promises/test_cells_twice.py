"Promise 6: cells can be run again. Nothing doubles, and what is defined anew takes the place of what was there"
import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbrun import run_nb

# Whole notebooks
nbs = get_config().nbs_path
quick = '01_events','index','02b_dispatch'
fns = {o.relative_to(nbs).with_suffix('').as_posix():o for o in sorted(nbglob(as_path=True))}

def learners(names):
    "Who listens to what in each learner of a notebook, and where they are"
    def count(learn, o): return getattr(learn, o, None)
    res = {}
    for k,o in names.items():
        if k.startswith('_') or isinstance(o, type) or not hasattr(o, 'cbs') or not hasattr(o, 'ordered_cbs'): continue
        hooks = [len(m._forward_hooks)+len(m._forward_pre_hooks)+len(m._backward_hooks) for m in o.model.modules()] if hasattr(o, 'model') else []
        res[k] = dict(cbs=sorted(cb.name for cb in o.cbs), handlers={str(ev):len(hs) for ev,hs in o.handlers.items()}, hooks=hooks, **{n:count(o, n) for n in ('epoch','train_iter','opt_step','mode')})
    return res

def check_twice(fn):
    once,twice = (run_nb(fn, look=learners, times=n) for n in (1, 2))
    assert isinstance(once, dict), once
    if not isinstance(twice, dict): pytest.fail(f'with each cell run twice: {twice}', pytrace=False)
    assert twice==once

@pytest.mark.parametrize('name', [pytest.param(o, marks=() if o in quick else pytest.mark.slow) for o in fns])
def test_a_notebook(name): check_twice(fns[name])
