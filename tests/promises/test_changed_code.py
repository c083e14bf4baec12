"A run that is resumed with changed code warns, and one that is resumed with the same code does not"
import subprocess,sys,warnings
import pytest
from torch import nn
import learner.resume.fingerprints
from learner.all import *
from learner.loop.testing import synth_learner

MODEL = '''
class Net(nn.Module):
    "{doc}"
    scale = {scale}
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x, by={by}):
        "{doc}"
        # {doc}
        if self.scale in {{'a', 'b', 'c', 'd'}}: return x # a set, whose order is another one in each process
        return self.l(x)*{factor}*by
'''
LOSS = "def my_loss(pred, y): return (pred-y).pow({power}).mean()"
COUNTER = '''
class Counter(Callback):
    def after_batch(self): self.learn.state.n = self.learn.state.get('n', 0)+{n}
'''
FUNC = "def each(learn): learn.state.m = {m}"
values = dict(doc='first', scale=1, by=1., factor=2., power=2, n=1, m=1)

def made(path, **kwargs):
    "A learner of code as a cell makes it"
    here = dict(nn=nn, Callback=Callback, __name__=__name__)
    exec('\n'.join([MODEL, LOSS, COUNTER, FUNC]).format(**values | kwargs), here)
    return synth_learner(path=path, model=here['Net'](), loss_func=here['my_loss'], cbs=[here['Counter'](), on('after_batch')(here['each'])])

def warned(learn):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.fit(2, cbs=Checkpoint(), resume=True)
    return [str(o.message) for o in seen if 'not exactly' in str(o.message)]

@pytest.mark.parametrize('change,culprit', [(dict(scale=2), 'Net'), (dict(by=2.), 'Net'), (dict(factor=3.), 'Net'), (dict(power=4), 'my_loss'), (dict(n=2), 'Counter'), (dict(m=2), 'each')], ids=str)
def test_changed(tmp_path, change, culprit):
    made(tmp_path).fit(1, cbs=Checkpoint())
    assert [o.split('`')[1].split('.')[-1] for o in warned(made(tmp_path, **change))]==[culprit]

def test_versions(tmp_path, monkeypatch):
    made(tmp_path).fit(1, cbs=Checkpoint())
    monkeypatch.setattr(learner.resume.fingerprints, '__version__', '99.0')
    msg, = warned(made(tmp_path))
    assert 'learner was' in msg and 'is 99.0' in msg

def test_comments_and_docstrings_may_change(tmp_path):
    made(tmp_path).fit(1, cbs=Checkpoint())
    assert not warned(made(tmp_path, doc='second'))

def test_same_code_in_other_processes(tmp_path):
    "Fingerprints do not depend on hashes of strings or on addresses"
    run = f"import sys; sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r}); from test_changed_code import *; print(sorted(learner.resume.fingerprints.code_of(made('.')).items()))"
    outs = {subprocess.run([sys.executable, '-c', run], env=dict(PYTHONHASHSEED=str(i), PATH=''), capture_output=True, text=True, check=True, cwd=str(__file__.rsplit('/tests', 1)[0])).stdout for i in range(3)}
    assert len(outs)==1 and 'Net' in outs.pop()
