"Promise 6: cells can be run again. Nothing doubles, and what is defined anew takes the place of what was there"
from functools import partial
import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from kernels import new_kernel
from nbrun import run_nb
from learner.all import *

# Whole notebooks
nbs = get_config().nbs_path
quick = 'core/02_events','index','core/06_dispatch','core/07_scopes'
fns = {o.relative_to(nbs).with_suffix('').as_posix():o for o in sorted(nbglob(as_path=True))}

def learners(names):
    "Who listens to what in each learner of a notebook, and where they are"
    def count(learn, o): return getattr(learn, o, None)
    res = {}
    for k,o in names.items():
        if k.startswith('_') or isinstance(o, type) or not hasattr(o, 'cbs') or not hasattr(o, 'ordered_cbs'): continue
        hooks = ([len(m._forward_hooks)+len(m._forward_pre_hooks)+len(m._backward_hooks) for m in o.model.modules()]
            if hasattr(o, 'model') else [])
        res[k] = dict(cbs=sorted(cb.name for cb in o.cbs), handlers={str(ev):len(o.handlers[ev]) for ev in event},
            hooks=hooks, **{n:count(o, n) for n in ('epoch','train_iter','opt_step','mode')})
    return res

def check_twice(fn):
    once,twice = (run_nb(fn, look=learners, times=n) for n in (1, 2))
    assert isinstance(once, dict), once
    if not isinstance(twice, dict): pytest.fail(f'with each cell run twice: {twice}', pytrace=False)
    assert twice==once

@pytest.mark.parametrize('name', [pytest.param(o, marks=() if o in quick else pytest.mark.slow) for o in fns])
def test_a_notebook(name): check_twice(fns[name])

# Single cells, as a kernel runs them: the same text has the same file name
def cell(src, **names): exec(compile(src, f'<cell {hash(src)}>', 'exec'), dict(globals(), __name__='__main__', **names))
def names(learn): return sorted(o.name for o in learn.cbs)

@pytest.mark.parametrize('src',
    ['learn.add_cb(GradientClip(1.))', 'learn.add_cb(GradientClip)',
        'learn.add_cbs([GradientClip(1.), GradientClip(2.)])', 'learn.add_cb(ParamScheduler(dict(lr=lambda pct: .1)))',
    'for o in (1., 2.): learn.add_cb(GradientClip(o))',
    'learn.add_cb(GradientClip(1.)); learn.add_cb(GradientClip(2.))',
    'learn.add_cb(Callback(before_fit=lambda self: None)); learn.add_cb(Callback(after_fit=lambda self: None))',
    'def add(o): learn.add_cb(GradientClip(o))\nadd(1.)\nadd(2.)',
    'learn.on(event.after_batch(every=2))(lambda learn: None)',
    'class Mine(Callback): pass\nlearn.add_cbs([Mine(), Mine])'])
def test_a_cell_that_attaches(src):
    learn,once = synth_learner(),synth_learner()
    cell(src, learn=once)
    for _ in range(3): cell(src, learn=learn)
    assert names(learn)==names(once) and len(learn.cbs)==len(once.cbs)>2
    learn.fit(1)
    assert len(learn.cbs)==len(once.cbs)

def test_its_last_settings_count():
    learn = synth_learner()
    for o in (1., 2., 3.): cell('learn.add_cb(GradientClip(o))', learn=learn, o=o)
    assert learn.gradient_clip.max_norm==3. and len(learn.cbs)==3

def test_other_cells_add_more():
    learn = synth_learner()
    cell('learn.add_cb(GradientClip(1.))', learn=learn); cell('learn.add_cb(GradientClip(1.)) # more', learn=learn)
    assert (learn.gradient_clip.max_norm, learn.gradient_clip_2.max_norm)==(1., 1.)

@pytest.mark.parametrize('file', ['<stdin>', '<string>', '<console>'])
def test_lines_of_plain_python_have_no_names_and_add_more(file):
    learn = synth_learner()
    for o in (1., 2.): exec(compile('learn.add_cb(GradientClip(o))', file, 'single'), dict(globals(), learn=learn, o=o))
    assert (learn.gradient_clip.max_norm, learn.gradient_clip_2.max_norm)==(1., 2.)

def test_callbacks_of_one_fit_are_gone_and_those_attached_stay():
    learn = synth_learner()
    cell('learn.add_cb(GradientClip(1.))', learn=learn)
    mine = learn.gradient_clip
    for _ in range(2): cell('learn.fit(1, cbs=GradientClip(2.))', learn=learn)
    assert learn.gradient_clip is mine and len(learn.cbs)==3

def test_one_that_cannot_start_leaves_the_one_before():
    learn,fails = synth_learner(),[]
    class Mine(Callback):
        def after_create(self):
            if fails: raise ValueError
    cell('learn.add_cb(Mine())', learn=learn, Mine=Mine)
    mine = learn.mine
    fails.append(1)
    with pytest.raises(ValueError): cell('learn.add_cb(Mine())', learn=learn, Mine=Mine)
    assert learn.mine is mine and mine.learn is learn

# Cells that are edited, in the kernel of a notebook, which sends the id of each cell with its text
def run_cell(client, cell, src):
    "Runs a cell as JupyterLab and VS Code do, and returns what it prints"
    content = dict(code=src, silent=False, store_history=True, user_expressions={}, allow_stdin=False)
    request = client.session.msg('execute_request', content, metadata=dict(cellId=cell))
    client.shell_channel.send(request)
    out = ''
    while True:
        o = client.get_iopub_msg(timeout=60)
        if o['parent_header'].get('msg_id')!=request['header']['msg_id']: continue
        if o['msg_type']=='error': raise AssertionError('\n'.join(o['content']['traceback']))
        if o['msg_type']=='stream': out += o['content']['text']
        if o['msg_type']=='status' and o['content']['execution_state']=='idle': return out

def test_a_cell_that_was_edited(tmp_path):
    "Its callbacks take the places of those that it attached before, and of no others"
    with new_kernel(tmp_path) as client:
        run = partial(run_cell, client)
        run('first', 'from learner.all import *\nlearn = synth_learner()\n'
            'class Add(Callback):\n    def __init__(self, n): self.n = n\n'
            '    def before_batch(self): told.append(self.n)')
        def told():
            src = 'told = []\nwith learn.no_bar(): learn.fit(1)\nprint(*dict.fromkeys(told))'
            return run('told', src).split()
        run('other', 'learn.add_cb(Add(1)); first = Add(0)')
        for n in 2,30,4: run('edited', f'learn.add_cb(Add({n}))'); assert told()==['1', str(n)]
        run('edited', '# a new line\nlearn.add_cb(Add(5)); learn.add_cb(Add(6))')
        assert told()==['1', '5', '6']
        run('edited', 'for o in 7,8,9: learn.add_cb(Add(o))')
        assert told()==['1', '7', '8', '9']
        run('edited', 'learn.add_cb(Add(10))')
        run('timed', '%%time\nlearn.add_cb(Add(11))'); run('timed', '%%time\nlearn.add_cb(Add(12))')
        run('timed too', '%%time\nlearn.add_cb(Add(13))')
        assert told()==['1', '10', '12', '13']
        for _ in range(2): run('same', 'learn.add_cb(first); learn.add_cb(Add(20))')
        assert told()==['1', '10', '12', '13', '0', '20']
        run('same', 'learn.fit(1, cbs=Add(21))') # for a while: those that stay do not go
        run('same', 'learn.remove_cb(first)'); run('none', 'learn.remove_cb(learn.cbs[-1])')
        for n in 14,15: run('lambda', f'learn.on("before_batch")(lambda learn: told.append({n}))')
        run('lambda too', 'learn.on("before_batch")(lambda learn: told.append(16))')
        assert told()==['1', '10', '12', '13', '15', '16']
