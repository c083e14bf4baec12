"What `docs/` makes of the library"
import ast,inspect,json,pydoc,re,subprocess,sys
from enum import Enum
from importlib import import_module
import pytest
from fastcore.docments import docments
from fastcore.nbio import read_nb
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from learner.all import *
from learner.resume.origin import CodeReader

docs = get_config().config_path/'docs'

@pytest.fixture(scope='module', autouse=True)
def path():
    sys.path.insert(0, str(docs))
    yield
    sys.path.remove(str(docs))

@pytest.fixture
def entries(): return import_module('entries')

@pytest.fixture
def catalogue(): return import_module('catalogue')

def rows(md): return [[o.strip() for o in l.strip(' |').split(' | ')] for l in md.splitlines()[2:]]

@pytest.mark.parametrize('sym,row',
    [(Learner.to_fp16, 'For `MixedPrecision`'), (Learner.on, '`order`, or a filter: see `on`'),
        (ActivationStats, 'For `HookCallback`'),
    (DataLoaders.from_dsets, "For torch's `DataLoader`, such as `num_workers`; those about order are for training")],
    ids=lambda o: getattr(o, '__name__', ''))
def test_what_is_said_of_kwargs_stands_with_them(sym, row, entries):
    tbl = rows(entries.table(sym))
    assert [o[-1] for o in tbl if o[0]=='kwargs']==[row]
    assert not [o for o in tbl if o[0]=='**Returns**' and row in o[-1]]

def test_table_of_parameters(entries):
    tbl = rows(entries.table(Learner.fine_tune))
    assert (tbl[0]==['epochs', '`int`', '', 'Epochs with everything trainable']
        and tbl[1][:3]==['base_lr', '`float`', '`0.002`'])
    names = [o[0] for o in tbl]
    assert (names[:6]==['epochs','base_lr','freeze_epochs','lr_mult','pct_start','div'] and names[-1]=='**Returns**'
        and '`Learner`' in tbl[-1][1])
    # those of `fit_one_cycle` and `fit` that it passes on
    assert 'wd' in names and 'resume' in names and not {'kwargs','n_epoch','lr_max','lr'} & {*names}

recipes = sorted((get_config().config_path/'nbs/recipes').glob('[0-9]*.ipynb'))
@pytest.mark.parametrize('fn', recipes, ids=lambda o: o.stem)
def test_a_recipe_has_at_most_twenty_lines_of_ones_own_and_a_check(fn):
    cells = {c['id']:''.join(c['source']).splitlines() for c in json.loads(fn.read_text())['cells']
        if c['cell_type']=='code'}
    own = [l for k,v in cells.items() if k.startswith(('recipe','fit')) for l in v if l.strip()
        and not l.strip().startswith('#')]
    assert len(own)<=20 and any('assert' in l for l in cells['check'])

def test_every_public_name_is_in_the_catalogue_with_a_summary(catalogue):
    import learner.all
    found = {nm:catalogue.summary(o, mod, nm) for mod,nm,o,_ in catalogue.all_names()}
    assert {*learner.all.__all__} <= found.keys()
    assert not [nm for nm,text in found.items() if not text or 'Built-in' in text or 'dict()' in text]

def has_parameters(o):
    return callable(o) and not (isinstance(o, type)
        and (issubclass(o, (BaseException,Enum)) or not inspect.isfunction(inspect.unwrap(o.__init__))))

def test_every_parameter_of_a_public_name_has_text_in_the_code(catalogue, entries):
    "A comment beside it, there or in a base class: nothing is said on the site that the code does not say"
    found = {nm:entries.words(o, cls) for _,nm,o,cls in catalogue.all_names() if has_parameters(o)}
    assert len(found)>300
    assert not [f'{nm}({k})' for nm,texts in found.items() for k,text in texts.items() if not isinstance(text, str)]

@pytest.mark.parametrize('text,entry', [('fit', 'Learner.fit'), ('learn.resume', 'Learner.resume'),
    ('learn.fit(5, lr=3e-3)', 'Learner.fit'), ('Learner.add_cb', 'Learner.add_cb'), ('lr_find()', 'Learner.lr_find'),
    ('Checkpoint(every=3)', 'Checkpoint'), ('learn.recorder.plot_loss()', 'Recorder.plot_loss'), ('cancels', 'cancels'),
    ('before_fit', 'event.before_fit'), ('event.after_batch(every=2)', 'event.after_batch'), ('xb', None)])
def test_what_a_name_in_backticks_leads_to(text, entry, catalogue):
    full = catalogue.target(text)
    assert full==entry or full.startswith('learner.') and full.split('.', 3)[3]==entry

def test_the_table_of_events_is_that_of_the_loop():
    found = {ev:(new,running,by) for ev,_,new,running,by in import_module('events').in_loop()}
    assert [*found]==[*dict.fromkeys(ev for ev,_ in moments())]
    assert 'n_epoch' in found['before_fit'][0] and 'xb' in found['before_batch'][0]
    assert 'pred' in found['after_pred'][0] and 'loss' in found['after_loss'][0]
    assert 'opt_step' in found['after_step'][0] and 'results' in found['after_validate'][0]
    assert found['before_step'][1]==('fit','epoch','train','batch','step') and found['cleanup_fit'][1]==()
    assert 'GradientClip' in found['before_step'][2] and 'Recorder' in found['after_epoch'][2]
    assert {*found} | {ev for ev,_,_ in import_module('events').outside()}=={*event}

def test_the_picture_of_the_loop_has_its_events():
    picture = import_module('scopes').picture()
    assert picture.count('<rect')==8 # `batch` is there twice
    assert not [o for o,_ in moments() if not o.startswith(('after_cancel_','cleanup_')) and o not in picture]

def test_the_map_has_every_page_once():
    "From the first page, lists of pages lead to each notebook by one way"
    pages = import_module('pages')
    nbs = get_config().nbs_path
    found = {o.relative_to(nbs).with_suffix('').as_posix() for o in nbglob(as_path=True)}
    children = [o for page in found for o in pages.pages_below(page, found)]
    assert sorted(children)==sorted(found-{'index'})
    assert pages.pages_below('index', found)[0]=='start/index'

def test_each_part_is_in_a_storey():
    pages = import_module('pages')
    assert [o for ps in pages.storeys.values() for o in ps]==pages.parts()

def found_docs(): return {o.relative_to(get_config().nbs_path).with_suffix('').as_posix() for o in nbglob(as_path=True)}

def test_llms_txt_has_every_page_and_every_module(catalogue):
    text = '\n'.join(import_module('llms').index(found_docs()))
    assert not [o for o in found_docs()-{'index'} if f']({o}.html)' not in text]
    assert not [o for o in catalogue.chapters() if f'(`learner.{o}`)' not in text]

def test_llms_full_txt_has_every_public_name_with_its_parameters(catalogue):
    text = '\n'.join(import_module('llms').full(found_docs()))
    assert not [o for o in catalogue.chapters() if f'\n## learner.{o}\n' not in text]
    assert not [nm for _,nm,*_ in catalogue.all_names() if not any(f' `{nm}`' in l for l in text.splitlines()
        if l.startswith('### '))]
    assert '- `patience` (`int`, default `1`): ' in text and '- `n_epoch` (`int | None`' in text
    assert '\n'.join(['```python','class Noise(Callback):']) in text # pages that teach are there too, with their code

def test_many_attributes_are_folded():
    folded = import_module('listings').folded
    assert folded(['A','B'])=='`A` `B`' and folded([])=='–'
    assert folded([*'ABC'], most=2)=='<details><summary>3 attributes</summary>`A` `B` `C`</details>'

def test_of_many_callbacks_the_first_three_are_named():
    first = import_module('listings').first
    assert first([*'ABC'])=='`A` `B` `C`' and first([])=='–'
    assert first([*'ABCDE'])=='`A` `B` `C` and [2 more](/reference/03_callbacks.ipynb)'

def test_names_by_task_begin_with_what_guides_use_and_have_all(catalogue):
    daily,_,rest = '\n'.join(import_module('listings').by_task(None)).partition('## For authors')
    assert '| `Checkpoint` |' in daily and '| `learn.fit_one_cycle` |' in daily and '| `accuracy` |' in daily
    assert '| `snake_name` |' in rest and '| `by_number` |' in rest
    assert '| `named` |' in rest # a word of many texts, and a name in no code
    found = re.findall(r'^\| `([^`]+)`', daily+rest, re.M)
    assert found[0]=='Learner'
    names = [nm.replace('Learner.', 'learn.') for mod in catalogue.chapters() for nm in catalogue.names_of(mod)]
    assert sorted(found)==sorted(names)

def test_methods_of_a_learner_begin_with_what_guides_use(catalogue):
    daily,_,rest = '\n'.join(import_module('listings').learner(None)).partition('**Parts of the loop**')
    methods,entries = (re.findall(o, daily+rest, re.M) for o in (r'^\| `learn\.([^`]+)` ', r'} Learner\.(\w+)'))
    assert methods[0]==entries[0]=='fit' and entries==[o for o in methods if o in entries]
    assert '| `learn.fit` |' in daily and '| `learn.repeatable` |' in daily
    assert '| `learn.forget_batch` |' in rest and '| `learn.keep_attrs` |' in rest
    found = re.findall(r'^\| `learn\.([^`]+)` ', daily+rest.partition('\n## ')[0], re.M)
    assert sorted(found)==sorted(catalogue.methods())

def test_readers_of_tutorials_see_no_tests():
    without_tests = import_module('chapters').without_tests
    code = ("x = f()\n# as it should be\nassert x==1\nfor o in x: test_eq(o, 1)\n\n"
        "y = x # kept\nassert y, (\n    'two lines')\ny")
    assert without_tests(code)=='x = f()\n\ny = x # kept\ny'
    for fn in sorted((get_config().nbs_path/'tutorials').glob('[0-9f]*.ipynb')):
        for c in json.loads(fn.read_text(encoding='utf-8'))['cells']:
            if c['cell_type']!='code': continue
            lines = without_tests(''.join(c['source'])).splitlines()
            assert not [o for o in lines if o.startswith(('assert ','test_'))], (fn.stem, c['id'])

def test_editors_show_the_text_of_each_parameter_of_the_learner(catalogue, entries):
    "The stub of `Learner` says of a parameter what the code and the site say"
    stub = ast.parse((get_config().lib_path/'loop/learner.pyi').read_text(encoding='utf-8')).body[-1]
    shown = {o.name:ast.get_docstring(o) or '' for o in stub.body if isinstance(o, ast.FunctionDef)}
    found = {(k,p):text for k in catalogue.methods() if inspect.isfunction(f := getattr(Learner, k))
        for p,text in docments(f, args_kwargs=True).items()
        if text and p not in ('return','self') and p in inspect.unwrap(f).__code__.co_varnames}
    assert len(found)>100
    assert not [o for o,text in found.items() if f'- `{o[1]}`: {text}' not in shown[o[0]]]

def test_help_shows_the_text_of_each_parameter(catalogue, entries):
    "`help()` and Jupyter's `?` say of a parameter what the code and the site say; if one is stale, run `make lib`"
    of_learner = [(f'Learner.{k}', getattr(Learner, k), Learner) for k in catalogue.methods()]
    missing,n = [],0
    for name,o,cls in [(nm,o,cls) for _,nm,o,cls in catalogue.all_names()]+of_learner:
        if not has_parameters(o): continue
        shown = pydoc.render_doc(o, renderer=pydoc.plaintext)
        texts = [f'- `{k}`: {text}' for k,text in entries.words(o, cls).items() if isinstance(text, str)]
        missing += [f'{name}: {text}' for text in texts if text not in shown]
        n += len(texts)
    assert n>1300 and not missing, missing[:10]

class Mine(EarlyStoppingCallback):
    def act(self, val): pass

def test_a_docstring_says_first_what_a_function_does(catalogue):
    "A list of parameters stands below the docstring, below an inherited one too, and the site's summary has none"
    assert inspect.getdoc(Learner.fit).startswith('Train for `n_epoch` epochs')
    assert inspect.getdoc(EarlyStoppingCallback.act).startswith(inspect.getdoc(TrackerCallback.act).split('\n')[0])
    assert inspect.getdoc(Mine().act)==inspect.getdoc(EarlyStoppingCallback.act)
    assert not [nm for mod,nm,o,_ in catalogue.all_names() if 'Parameters:' in catalogue.summary(o, mod, nm)]
    doubled = [nm for _,nm,o,_ in catalogue.all_names() if callable(o) and (o.__doc__ or '').count('Parameters:')>1]
    assert not doubled

def test_parameters_in_a_docstring_are_no_other_code():
    "A saved run knows code again, whether or not `learner.all` was imported where it was saved"
    def f(x):
        "What it does"
        return x, "What it does not"
    before = CodeReader().describe(f)
    f.__doc__ += '\n\nParameters:\n\n- `x`: Anything'
    assert CodeReader().describe(f)==before

@pytest.mark.slow
def test_help_works_without_docstrings():
    "`python -OO` drops what the code says; a learner trains, is pickled and tells what its parameters mean"
    code = "import pickle; from learner.all import *; synth_learner().fit(1); print(Learner.fit.__doc__); " + (
        "assert pickle.loads(pickle.dumps(Learner.fit)) is Learner.fit")
    p = subprocess.run([sys.executable, '-OO', '-c', code], capture_output=True, text=True)
    assert p.returncode==0, p.stderr[-2000:]
    assert '- `n_epoch`: ' in p.stdout

def shown_code(nb):
    "The code of cells that are run and shown, without that of the library"
    hidden = {'hide','include','eval','default_exp','export','exports','exporti'}
    for c in nb.cells:
        if c.cell_type=='code' and not hidden & c.directives.keys() and c.directives.get('echo')!='false':
            yield '\n'.join(o for o in c.source.splitlines() if not o.startswith(('#|','%','!')))

def test_every_public_name_has_an_example_that_runs():
    "A cell of some page uses it, is shown to readers, and is run by the tests of notebooks"
    import learner.all
    nodes = [o for fn in nbglob(as_path=True) for code in shown_code(read_nb(fn)) for o in ast.walk(ast.parse(code))]
    used = {o.id for o in nodes if isinstance(o, ast.Name)} | {o.attr for o in nodes if isinstance(o, ast.Attribute)}
    assert not [o for o in learner.all.__all__ if o not in used]

def test_the_table_of_attributes_is_that_of_a_learner():
    "Each is named in the docstring of `Learner` or can be read from one, and the loop says when it is there"
    state = import_module('state')
    found = {k:(since, stays) for k,_,since,stays in state.rows()}
    named = {o for o in re.findall(r'`(\w+)`', Learner.__doc__) if o not in (*event, 'predict')}
    assert named=={*found}
    assert found['model']==('always', True) and found['pred']==('after_pred', False)
    assert found['xb']==('before_batch', False) and found['loss_grad'][0]=='after_loss'

def test_events_of_batches_can_be_cancelled_in_both_phases():
    found = {ev:running for ev,_,_,running,_ in import_module('events').in_loop()}
    assert found['after_pred']==('fit','epoch','train','validate','batch') and 'validate' not in found['before_step']
    assert import_module('listings').cancellable(found['after_pred'])=='fit, epoch, train or validate, batch'
    modes = import_module('events').modes()
    assert [*modes['after_pred']]==['validate','get_preds']
    assert not {'before_step','before_train','before_save'} & {*modes}
