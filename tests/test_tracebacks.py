"""Tracebacks show only the user's code, and a stop is told in one line: in scripts, in IPython and in the kernel of a
notebook"""
import gc,os,re,runpy,signal,site,subprocess,sys,traceback,weakref
import pytest,torch
from torch import nn
import learner
from learner.all import *
from kernels import new_kernel

here = __file__
def files(e): return [o.filename for o in traceback.extract_tb(e.__traceback__)]
def ours(e):
    return [o.filename for o in traceback.extract_tb(e.__traceback__) if o.filename.startswith(learner.__path__[0])]
def mine(e): return [o.name for o in traceback.extract_tb(e.__traceback__) if o.filename==here]

class Broken(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
    def forward(self, x): return self.l(x)/broken()
def broken(): raise ZeroDivisionError('broken')
class Fails(Callback):
    def after_pred(self): broken()

# what fails; the user's lines
kinds = {
    'callback': (lambda: synth_learner(cbs=Fails), ['after_pred','broken']),
    'function': (lambda: synth_learner(cbs=on('after_pred')(lambda learn: broken())), ['<lambda>','broken']),
    'keyword': (lambda: synth_learner(cbs=Callback(after_pred=lambda self: broken())), ['<lambda>','broken']),
    'model': (lambda: synth_learner(model=Broken()), ['forward','broken']),
    'wrapped model': (lambda: synth_learner(model=nn.Sequential(nn.Sequential(Broken()))), ['forward','broken'])}

calls = {
    'fit': lambda l: l.fit(1), 'fit_one_cycle': lambda l: l.fit_one_cycle(1),
    'fit_flat_cos': lambda l: l.fit_flat_cos(1),
    'fit_sgdr': lambda l: l.fit_sgdr(1, 1), 'fine_tune': lambda l: l.fine_tune(1, freeze_epochs=0),
    'lr_find': lambda l: l.lr_find(), 'smoke': lambda l: l.smoke(),
    'validate': lambda l: l.validate(), 'get_preds': lambda l: l.get_preds(),
    'predict': lambda l: l.predict(torch.zeros(1)), 'tta': lambda l: l.tta()}

@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('kind', kinds)
def test_from_the_users_line_to_the_users_line(kind, call):
    make,lines = kinds[kind]
    with pytest.raises(ZeroDivisionError) as e: calls[call](make())
    assert mine(e.value)==['test_from_the_users_line_to_the_users_line', '<lambda>', *lines]
    # the one that raises it again, which IPython and pytest hide
    assert len(ours(e.value))==1 and len(files(e.value))==len(lines)+3

def test_after_a_stop_resume_too_is_short():
    learn = synth_learner(cbs=Raise('after_batch', KeyboardInterrupt, 3))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    learn.add_cb(Fails)
    with pytest.raises(ZeroDivisionError) as e: learn.resume()
    assert mine(e.value)==['test_after_a_stop_resume_too_is_short','after_pred','broken'] and len(files(e.value))==4

def test_frames_of_torch_stay_after_the_last_line_of_the_user():
    with pytest.raises(RuntimeError, match='shapes') as e: synth_learner(model=nn.Linear(3, 1)).fit(1)
    names = files(e.value)
    assert len(ours(e.value))==1 and 'linear.py' in names[-1] and names[0]==here

fails = calls | {'an unknown argument': lambda l: l.fit(1, epochs=2), 'a wrong value': lambda l: l.fit(-1)}

@pytest.mark.parametrize('call', fails)
@pytest.mark.parametrize('kind', ['callback','model'])
def test_an_error_that_is_kept_does_not_keep_a_learner(kind, call):
    "As a notebook keeps the last one, with its traceback, in which only lines of one's own have variables"
    learn = kinds[kind][0]()
    with pytest.raises((ZeroDivisionError,TypeError,ValueError)) as e: fails[call](weakref.proxy(learn))
    error,refs = e.value,(weakref.ref(learn), weakref.ref(learn.model))
    del learn,e
    gc.collect()
    assert [o() for o in refs]==[None, None] and error.__traceback__ is not None

def test_an_inference_in_a_callback_shows_the_callback():
    cb = Callback(after_loss=lambda self: self.training and self.learn.validate(cbs=Fails))
    with pytest.raises(ZeroDivisionError) as e: synth_learner(cbs=cb).fit(1)
    assert (mine(e.value)==['test_an_inference_in_a_callback_shows_the_callback','<lambda>','after_pred','broken']
        and len(ours(e.value))==1)

def test_causes_are_short_too():
    def f(self):
        try: broken()
        except ZeroDivisionError as e: raise ValueError('instead') from e
    with pytest.raises(ValueError) as e: synth_learner(cbs=Callback(after_pred=f)).fit(1)
    assert mine(e.value.__cause__)==['f','broken'] and not ours(e.value.__cause__)
    with pytest.raises(RuntimeError) as e: synth_learner(cbs=Raise('after_fit', CancelBatchException)).fit(1)
    assert isinstance(e.value.__cause__, CancelBatchException) and not ours(e.value.__cause__)

def test_all_frames_on_demand():
    learn = synth_learner(cbs=Fails)
    learner.full_traceback(True)
    try:
        with pytest.raises(ZeroDivisionError) as e: learn.fit(1)
    finally: learner.full_traceback(False)
    assert len(ours(e.value))>8
    tb = e.value.__traceback__
    while tb.tb_frame.f_code.co_name!='after_pred': tb = tb.tb_next
    assert tb.tb_frame.f_locals['self'].learn is learn # a debugger finds the variables
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1)
    assert len(ours(e.value))==1
    with pytest.raises(TypeError, match='`on` is True or False, but got 1'): learner.full_traceback(1)

# A stop
def stopped(ev, n=1, call=lambda l: l.fit(2), **kwargs):
    def press(self): self.count = getattr(self, 'count', 0)+1; self.count==n and signal.raise_signal(signal.SIGINT)
    learn = synth_learner(3, 2, cbs=Callback(**{ev: press}), **kwargs)
    with pytest.raises(KeyboardInterrupt) as e: call(learn)
    return e.value

resumes = "`learn.resume()` continues."
@pytest.mark.skipif(os.name=='nt', reason='Windows has other signals')
@pytest.mark.parametrize('ev,n,said',
    [('before_fit', 1, "Stopped before training. `fit` begins anew."),
        ('before_train', 1, f"Stopped in epoch 0, before the first batch. {resumes}"),
    ('after_step', 2, f"Stopped in epoch 0, after batch 2 of 3. {resumes}"),
    ('after_step', 5, f"Stopped in epoch 1, after batch 2 of 3. {resumes}"),
    ('before_validate', 1, f"Stopped in epoch 0, after its training. {resumes}"),
    ('after_epoch', 1, f"Stopped in epoch 0, after its training. {resumes}"),
    ('cleanup_validate', 1, f"Stopped after epoch 0. {resumes}"),
    ('cleanup_fit', 1, f"Stopped after the last epoch. {resumes}")])
def test_a_stop_says_where_and_what_continues(ev, n, said):
    e = stopped(ev, n)
    assert (str(e)==said and e._render_traceback_()==[said]
        and not [o for o in getattr(e, '__notes__', ()) if not o.startswith('raised by ')])
    assert len(ours(e))==1

@pytest.mark.parametrize('call', ['validate','get_preds','lr_find'])
def test_a_stop_elsewhere_leaves_everything(call):
    assert str(stopped('after_loss', call=calls[call]))=="Stopped. Everything is as it was before."

def test_samples_are_told_for_errors():
    with pytest.raises(ZeroDivisionError) as e: synth_learner(cbs=Fails).fit(1)
    assert any('samples' in o for o in e.value.__notes__)

def test_a_stop_keeps_the_error_that_it_replaces():
    learn = synth_learner(cbs=[Callback(after_pred=lambda self: signal.raise_signal(signal.SIGINT)),
        Raise('after_loss', ZeroDivisionError)])
    with pytest.raises(KeyboardInterrupt) as e: learn.fit(1)
    # so that it is shown
    assert isinstance(e.value.__cause__, ZeroDivisionError) and not hasattr(e.value, '_render_traceback_')

# What is shown
script = '''from learner.all import *
import os,signal
class Fails(Callback):
    def after_pred(self): return 1/0
class Stops(Callback):
    def after_step(self): signal.raise_signal(signal.SIGINT)
learn = synth_learner(3)
learn.fit(1, cbs=CB)
'''

def test_in_a_terminal(tmp_path):
    "Also from a folder beside the library whose name begins alike: it is of the user"
    (tmp_path/'learner').symlink_to(learner.__path__[0])
    folder = tmp_path/'learner_runs'
    folder.mkdir()
    (folder/'train.py').write_text(script.replace('CB', 'Fails'))
    env = os.environ | dict(PYTHONPATH=str(tmp_path), OMP_NUM_THREADS='1')
    p = subprocess.run([sys.executable, folder/'train.py'], cwd=folder, env=env, capture_output=True, text=True)
    frames = re.findall('File "(.+)", line (\\d+)', p.stderr)
    assert ([os.path.basename(k) for k,_ in frames]==['train.py','checks.py','train.py']
        and [frames[0][1],frames[2][1]]==['8','4'])
    assert ('`learner.full_traceback(True)` shows the frames' in p.stderr
        and 'ZeroDivisionError: division by zero' in p.stderr)

@pytest.fixture(scope='module')
def kernel(tmp_path_factory):
    with new_kernel(tmp_path_factory.mktemp('kernel')) as client:
        run_cell(client, script.rpartition('learn.fit')[0])
        yield client

def run_cell(client, code):
    "The error of a cell, without colours: its name, its text, its traceback"
    msgs = []
    client.execute_interactive(code, timeout=300, output_hook=msgs.append)
    o = next((o['content'] for o in msgs if o['msg_type']=='error'), None)
    return o and (o['ename'], o['evalue'], re.sub('\x1b\\[[0-9;]*m', '', '\n'.join(o['traceback'])))

def test_a_notebook_shows_two_frames_of_an_error(kernel):
    name,text,shown = run_cell(kernel, 'learn.fit(1, cbs=Fails)')
    assert name=='ZeroDivisionError' and text=='division by zero'
    heads = re.findall(r'^(?:Cell In|File) ?.*', shown, re.M)
    assert len(heads)==2 and all(o.startswith('Cell In') for o in heads) and 'learner' not in ''.join(heads)
    assert '----> 1 learn.fit(1, cbs=Fails)' in shown and 'def after_pred(self): return 1/0' in shown
    assert len(shown.splitlines())<30

def test_a_notebook_shows_one_line_for_a_stop(kernel):
    name,text,shown = run_cell(kernel, 'learn.fit(1, cbs=Stops)')
    assert (name=='KeyboardInterrupt'
        and shown==text=="Stopped in epoch 0, after batch 1 of 3. `learn.resume()` continues.")
    assert run_cell(kernel, 'learn.resume(cbs=[])\nassert learn.train_iter==3') is None

def test_a_notebook_shows_all_frames_on_demand(kernel):
    run_cell(kernel, 'import learner; learner.full_traceback()')
    _,_,shown = run_cell(kernel, 'learn.fit(1, cbs=Fails)')
    assert len(re.findall(r'^(?:Cell In|File) ?.*', shown, re.M))>8
    assert run_cell(kernel, 'learner.full_traceback(False)') is None

@pytest.mark.parametrize('magic', ['', '%time '])
def test_a_notebook_shows_arguments_and_then_lets_go_of_them(kernel, magic):
    "Also where a magic shows the error; a variable of the user's own function stays for `%debug`"
    code = """import gc,weakref
class Net(nn.Linear):
    def forward(self, x): return fails(x)
def fails(x):
    refs.append(weakref.ref(x))
    raise ValueError('no')
def go(n): synth_learner(model=Net(1, 1)).fit(n)
refs = []
"""
    run_cell(kernel, 'from torch import nn\n'+code)
    _,_,shown = run_cell(kernel, f'{magic}go(1)')
    assert 'in go(n)' in shown and 'in fails(x)' in shown and 'failed resolving' not in shown
    assert run_cell(kernel, """import sys
gc.collect()
assert len(refs)==1 and refs[0]() is None
tb = sys.last_value.__traceback__
while tb.tb_frame.f_code.co_name!='go': tb = tb.tb_next
assert tb.tb_frame.f_locals=={'n': 1}""") is None

def test_a_cell_that_handles_an_error_lets_go_of_it_at_once(kernel):
    "As one that tries smaller batches when memory is short; a later error of another cell keeps its variables"
    assert run_cell(kernel, """import gc,weakref
from torch import nn
refs = []
class Net(nn.Linear):
    def forward(self, x):
        x = x+1
        refs.append(weakref.ref(x))
        raise MemoryError
try: synth_learner(model=Net(1, 1)).fit(1)
except MemoryError: pass
gc.collect()
assert refs[0]() is None""") is None
    run_cell(kernel, 'def other(n): return n/0\nother(1)')
    assert run_cell(kernel, """import sys
tb = sys.last_value.__traceback__
while tb.tb_next: tb = tb.tb_next
assert tb.tb_frame.f_locals=={'n': 1}""") is None

@pytest.mark.parametrize('keep', ['err = e','errs.append(e)'])
def test_an_error_that_a_cell_handles_and_keeps_lets_go_of_its_variables_with_the_cell(kernel, keep):
    assert run_cell(kernel, f"""import gc,weakref
from torch import nn
refs,errs = [],[]
class Net(nn.Linear):
    def forward(self, x):
        x = x+1
        refs.append(weakref.ref(x))
        raise RuntimeError('no')
for _ in range(2):
    try: synth_learner(model=Net(1, 1)).validate()
    except RuntimeError as e: {keep}""") is None
    assert run_cell(kernel, """gc.collect()
assert [o() for o in refs]==[None]*2""") is None

def test_an_error_of_a_fit_can_be_sent_to_another_process(kernel):
    assert run_cell(kernel, """import copy,pickle
def no(learn): raise KeyError('no')
try: synth_learner(cbs=Callback(after_batch=no)).fit(1)
except KeyError as e: assert pickle.loads(pickle.dumps(e)).args==copy.deepcopy(e).args==('no',)""") is None

def test_an_error_on_the_way_to_the_device_names_the_batch():
    class Stuck:
        def to(self, *args, **kwargs): raise RuntimeError('cannot be moved')
    x = torch.zeros(2, 3)
    dls = DataLoaders([(x, x), (x, x), (x, Stuck())], device='meta')
    learn = Learner(dls, nn.Linear(3, 3, device='meta'), nn.MSELoss(), default_cbs=False, cbs=TrainEvalCallback)
    with pytest.raises(RuntimeError, match='cannot be moved') as e: learn.fit(1)
    assert learn.iter==2 and learn.pred is None and any('batch 2' in o for o in e.value.__notes__)

def test_an_error_that_is_its_own_cause_comes_out():
    @on(event.after_pred)
    def broken(learn):
        try: 1/0
        except ZeroDivisionError as e: raise e from e
    for call in (Learner.validate, lambda learn: learn.fit(1)):
        with pytest.raises(ZeroDivisionError): call(synth_learner(cbs=broken))

def test_a_generator_that_has_caught_an_error_goes_on():
    "As one that skips samples which cannot be read, and keeps their errors"
    errors = []
    def parsed(texts):
        for o in texts:
            try: yield int(o)
            except ValueError as e: errors.append(e)
    numbers = parsed(['1','x','3','4'])
    assert [next(numbers), next(numbers)]==[1,3]
    @on(event.after_pred)
    def broken(learn): raise RuntimeError from errors[0]
    for call in (Learner.validate, lambda learn: learn.fit(1), lambda learn: Learner(None, None, optfunc=1)):
        with pytest.raises(Exception):
            try: raise errors[0]
            except ValueError: call(synth_learner(cbs=broken))
    assert [*numbers]==[4]

@pytest.mark.parametrize('file,mine', [(torch.__file__,False),
    (os.path.join(site.getusersitepackages(), 'timm', 'layers.py'),False), (os.path.abspath('train.py'),True)])
def test_packages_that_are_installed_elsewhere_are_not_the_users(monkeypatch, file, mine):
    "As by `pip install --user`, or `--target` and `PYTHONPATH`"
    monkeypatch.setattr(site, 'getsitepackages', lambda: [])
    of_user = runpy.run_path(learner.core.tracebacks.__file__)['of_user']
    exec(compile('import sys; frame = sys._getframe()', file, 'exec'), names := {})
    assert of_user(names['frame'])==mine

def test_to_shorten_a_traceback_imports_nothing():
    "Another Ctrl-C may come meanwhile, and would show the import that it has cut"
    code = "import sys; from learner.core.tracebacks import shortened\nbefore = {*sys.modules}\n" \
        "try: 1/0\nexcept ZeroDivisionError as e: shortened(e); print({*sys.modules}-before)"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip()=='set()'
