"A run that is resumed with changed code warns, and one that is resumed with the same code does not"
import json,sys,traceback,types,warnings
import pytest
from torch import nn
import learner.resume.origin
from learner.all import *
from learner.inspect.testing import synth_learner
from learner.values.digests import digest
from learner.restore.containers import functions_in
from learner.resume.origin import code_of
from processes import run_script

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
    return synth_learner(path=path, model=here['Net'](), loss_func=here['my_loss'],
        cbs=[here['Counter'](), on('after_batch')(here['each'])])

def warned(learn):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learn.fit(2, cbs=Checkpoint(), resume=True)
    return [str(o.message) for o in seen if 'not exactly' in str(o.message)]

@pytest.mark.parametrize('change,culprit',
    [(dict(scale=2), 'Net'), (dict(by=2.), 'Net'), (dict(factor=3.), 'Net'), (dict(power=4), 'my_loss'),
        (dict(n=2), 'Counter'), (dict(m=2), 'each')], ids=str)
def test_changed(tmp_path, change, culprit):
    made(tmp_path).fit(1, cbs=Checkpoint())
    assert [o.split('`')[1].split('.')[-1] for o in warned(made(tmp_path, **change))]==[culprit]

def test_versions(tmp_path, monkeypatch):
    made(tmp_path).fit(1, cbs=Checkpoint())
    monkeypatch.setattr(learner.resume.origin, '__version__', '99.0')
    msg, = warned(made(tmp_path))
    assert 'learner was' in msg and 'is 99.0' in msg

def test_comments_and_docstrings_may_change(tmp_path):
    made(tmp_path).fit(1, cbs=Checkpoint())
    assert not warned(made(tmp_path, doc='second'))

def annotated(learn, text):
    "As Python 3.14 makes a class with annotations: they are what a function of its own returns"
    ns = dict(Elsewhere=type('Elsewhere', (), dict(__module__=__name__)))
    exec(f"def around(__classdict__):\n def __annotate__(format): return dict(a=__classdict__, b={text}, c=Elsewhere)\n"
        " return __annotate__", ns)
    type(learn.model).__annotate_func__ = ns['around']({})
    return learn

def test_annotations_may_change(tmp_path):
    annotated(made(tmp_path), 'int').fit(1, cbs=Checkpoint())
    assert not warned(annotated(made(tmp_path), 'float'))

def test_what_only_annotations_name_is_no_code():
    learn = made('.')
    before,cls = code_of(learn),type(learn.model)
    kept = functions_in(cls),digest(cls)
    annotated(learn, 'int')
    assert code_of(learn)==before and (functions_in(cls),digest(cls))==kept

# What is no change of code
RUN = '''
import sys,warnings
from functools import partial
import torch
from torch import nn
from learner.all import *
from learner.inspect.testing import synth_learner

class Opt(torch.optim.SGD):
    def step(self, closure=None): return super().step(closure)
class Inherits(Opt): "No `step` of its own"
class Plain(torch.optim.Adam): pass

class Net(RegModel):
    calls,seen,cache,kinds = 0,[],{{}},set()
    def forward(self, x, last=[], *, known={{}}):
        Net.calls += 1; self.seen.append(len(x)); self.cache[len(self.seen)] = 1; self.kinds.add(str(self.calls))
        last.append(1); known[len(last)] = 1
        return super().forward(x)

class Sampler(torch.utils.data.Sampler):
    epoch = 0
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self):
        return iter(torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist())

def counting():
    n,seen = 0,[]
    def count(learn):
        nonlocal n
        n += 1; seen.append(n)
    return count

def sets_epoch(learn): learn.dls.train.sampler.set_epoch(learn.epoch)

def made(opt, path):
    torch.manual_seed(0)
    ds = torch.utils.data.TensorDataset(torch.randn(8, 1), torch.randn(8, 1))
    dls = DataLoaders(torch.utils.data.DataLoader(ds, 4, sampler=Sampler(8)), device='cpu')
    return synth_learner(dls=dls, model=Net(), opt_func=opt, path=path,
        cbs=[on('after_batch')(counting()), on('before_epoch')(sets_epoch)])

warnings.simplefilter('error')
made({opt}, {path!r}).fit({n}, cbs=Checkpoint(), resume='auto')
'''

opts = ['Opt', 'Inherits', 'Plain', 'partial(Opt, momentum=.9)', 'lambda ps, lr=.1: Opt(ps, lr)']
def error_of(code):
    "Of a script, as in a process of its own"
    with pytest.MonkeyPatch.context() as m, warnings.catch_warnings():
        m.setitem(sys.modules, '__main__', main := types.ModuleType('__main__'))
        try: exec(compile(code, '<string>', 'exec'), vars(main))
        except Exception: return traceback.format_exc()

def outcomes(path, n):
    "Errors of the script with each optimizer, and digests of code"
    scripts = {o:RUN.format(opt=o, path=f'{path}/{i}', n=n) for i,o in enumerate(opts)}
    return dict(errors={k:error_of(o) for k,o in scripts.items()}, code=code_of(made('.')))

ELSEWHERE = "import json,sys; from test_changed_code import outcomes; print(json.dumps(outcomes(sys.argv[1], 2)))"
def outcomes_elsewhere(path):
    "In another process, in which sets have another order"
    p = run_script(ELSEWHERE, path)
    assert not p.returncode, p.stderr
    return json.loads(p.stdout.splitlines()[-1])

def test_the_same_script_again_warns_of_nothing(tmp_path):
    """Though torch wraps `step` of optimizers, though classes and functions count, and though a sampler is told its
    epoch. Digests do not depend on hashes of strings or on addresses"""
    first,again = outcomes(tmp_path, 1),outcomes_elsewhere(tmp_path)
    assert first['errors']==again['errors']==dict.fromkeys(opts)
    assert first['code']==again['code'] and 'Net' in str(first['code'])

def base(factor):
    here = dict(nn=nn, __name__=__name__)
    exec(f'''
class Base(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x): return self.l(x)*{factor}
class Derived(Base): pass
class Opt(SGD):
    def step(self, closure=None): return {factor} and super().step(closure)
''', here | dict(SGD=__import__('torch').optim.SGD), here)
    return synth_learner(model=here['Derived'](), opt_func=lambda ps,lr=.1: here['Opt'](ps, lr))

def test_a_change_in_a_base_class_is_noticed(tmp_path):
    def mk(factor): learn = base(factor); learn.path = tmp_path; return learn
    mk(1.).fit(1, cbs=Checkpoint())
    assert not warned(mk(1.))
    msg, = warned(mk(2.))
    assert '`Base` (model) has been changed' in msg

def test_a_change_in_the_step_of_an_optimizer_is_noticed_whether_or_not_torch_has_wrapped_it():
    import torch
    from learner.resume.origin import CodeReader
    def opt(k):
        here = dict(torch=torch, __name__=__name__)
        exec(f"class Opt(torch.optim.SGD):\n    def step(self, closure=None): return {k}", here)
        return here['Opt']
    one,same,other = opt(1),opt(1),opt(2)
    for o in (one,other): o([nn.Parameter(torch.zeros(1))], lr=.1)
    assert hasattr(one.step, 'hooked') and not hasattr(same.step, 'hooked')
    digest = CodeReader().digest
    assert digest(one)==digest(same)!=digest(other)

def test_code_beside_objects_that_have_any_attribute(tmp_path):
    "`Self` of fastcore makes a function of each attribute that is asked for; the module of `AttrDict` has one"
    import torch
    from fastcore.basics import AttrDict
    class Opt(torch.optim.SGD):
        def step(self, closure=None): self.seen = AttrDict(n=1); return super().step(closure)
    def new(): return synth_learner(path=tmp_path, opt_func=lambda ps, lr=.01: Opt(ps, lr=lr))
    file = new().fit(1).save_state('here')
    learn = new()
    learn.load_state(file)
    assert type(learn.opt.seen) is AttrDict and learn.opt.seen.n==1

class Missing:
    "A module that is not installed, as MONAI has it"
    def __getattr__(self, k): raise RuntimeError('cupy is not installed')
class InSlots(Missing): __slots__ = ()
cupy,no_dict = Missing(),InSlots()

class Optional(nn.Module):
    cupy,no_dict = cupy,no_dict
    def __init__(self): super().__init__(); self.l,self.cupy,self.cupies = nn.Linear(1, 1),cupy,[no_dict]
    def forward(self, x): return self.l(x if cupy is self.cupy else 2*x)
class CountsOptional(Callback):
    cupy,no_dict = cupy,no_dict
    def __init__(self): self.cupy,self.cupies = cupy,[no_dict]
    def after_step(self): self.learn.state.n = self.learn.state.get('n', 0)+1

def test_code_beside_objects_that_raise_whatever_they_are_asked_for(tmp_path):
    def new(): return synth_learner(path=tmp_path, model=Optional(), cbs=[CountsOptional(), Fingerprint()])
    new().fit(1, cbs=Checkpoint())
    learn = new()
    assert not warned(learn) and learn.state.n==2*len(learn.dls.train)

PATCHED = '''
from fastcore.basics import patch
first = second = third = 0
class Reads(Callback):
    def before_batch(self): self.seen = first,second,third
@patch
def count(self:Learner):
    global first
    first += 1
class Elsewhere:
    def count(self):
        global second
        second += 1
    @property
    def counted(self):
        global third
        third += 1
        return third
Elsewhere.__module__ = 'a_package' # as where it is shown to users
'''
def test_what_a_function_in_a_class_of_another_module_counts_is_no_constant():
    module = types.ModuleType('patches')
    vars(module).update(Callback=Callback, Learner=Learner)
    exec(PATCHED, vars(module))
    learn = synth_learner(cbs=module.Reads())
    before = code_of(learn)
    assert any('Reads' in k for k in before)
    try:
        learn.count(); module.Elsewhere().count(); module.Elsewhere().counted
        assert (module.first, module.second, module.third)==(1, 1, 1) and code_of(learn)==before
    finally: del Learner.count
