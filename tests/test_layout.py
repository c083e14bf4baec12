"The rules that keep the library readable: see the docstring of each test"
import ast,json,re,subprocess,sys
from functools import cache
import pytest
from fastcore.basics import listify
from fastcore.nbio import read_nb
from nbdev.config import get_config
from nbdev.doclinks import nbglob,patch_name

cfg = get_config()
root,nbs,lib = cfg.config_path,cfg.nbs_path,cfg.lib_path

def name_of(f): return '.'.join(f.relative_to(lib).with_suffix('').parts)
# with helper modules, that have no chapter
modules = {name_of(f):f for f in sorted(lib.rglob('*.py')) if f.stem[0]!='_'}
@cache
def tree_of(mod): return ast.parse(modules[mod].read_text(encoding='utf-8'))

notebooks = sorted(nbglob(as_path=True))
def path_of(fn): return fn.relative_to(nbs).with_suffix('').as_posix()
def exported(fn):
    return next((c.directives['default_exp'] for c in read_nb(fn).cells if 'default_exp' in c.directives), None)

# in the order of `learner.all`
parts = list(dict.fromkeys(o.module.split('.')[0] for o in tree_of('all').body if isinstance(o, ast.ImportFrom)))
def chapter_of(fn): return f"{fn.parent.name}.{fn.stem.split('_', 1)[1]}"
chapters = [chapter_of(fn) for part in parts for fn in sorted((nbs/part).glob('[0-9]*.ipynb'))] # in order

def absolute(o, mod):
    "The module that `o` imports from, as seen from inside of the library"
    if not o.level: return (o.module or '').removeprefix(lib.name).lstrip('.')
    return '.'.join([*mod.split('.')[:-o.level], *filter(None, [o.module])])

def imports(body, mod):
    "`(module, names)` for each import of one of our modules that runs when the module is loaded"
    for o in body:
        if isinstance(o, ast.ImportFrom) and (o.level or (o.module or '').split('.')[0]==lib.name):
            names,source = [a.name for a in o.names],absolute(o, mod)
            if source in modules: yield source,names
            else: yield from ((f'{source}.{n}'.lstrip('.'), []) for n in names) # from learner.core import x
        elif isinstance(o, ast.Import):
            yield from ((a.name.partition('.')[2], []) for a in o.names if a.name.partition('.')[0]==lib.name)
        elif not isinstance(o, (ast.FunctionDef,ast.AsyncFunctionDef)):
            yield from imports([c for f in ('body','orelse','handlers','finalbody') for c in getattr(o, f, [])], mod)

def reach(mod):
    "The chapters that `mod` imports, itself or through helper modules"
    for m,_ in imports(tree_of(mod).body, mod):
        if m in chapters: yield m
        elif m in modules: yield from reach(m)

pages_for_users = 'start','tutorials','howto','recipes','concepts','reference','migration','project'

def test_parts_are_folders():
    """A part is a folder of notebooks and one of modules, both of its name, with three to eight chapters; a chapter
    has the name of its module"""
    assert {o.name for o in nbs.iterdir() if o.is_dir() and any(o.glob('[0-9]*.ipynb'))}-{*pages_for_users}=={*parts}=={
        m.split('.')[0] for m in modules if '.' in m}
    assert all(3<=len([m for m in chapters if m.split('.')[0]==p])<=8 for p in parts)
    assert ({m.split('.')[0] for m in chapters}=={*parts}
        and all(exported(fn)==chapter_of(fn) for p in parts for fn in (nbs/p).glob('[0-9]*.ipynb')))

def test_all_lists_the_chapters():
    "`learner.all` imports every chapter, in order"
    assert [o.module for o in tree_of('all').body if isinstance(o, ast.ImportFrom)]==chapters

@pytest.mark.parametrize('mod', chapters)
def test_imports_point_up(mod):
    """Parts are in import order, and so are the chapters of a part: a chapter builds on earlier ones only, so that
    there are no cycles and it can be read in order"""
    later = chapters[chapters.index(mod):]
    assert not [m for m in reach(mod) if m in later]
    assert not [m for m,_ in imports(tree_of(mod).body, mod) if not m] # the whole library

def test_the_loop_fits_on_a_screen():
    "From `_fit` to `_step` it takes 70 lines at most"
    loop = next(o for o in tree_of('loop.loop').body if isinstance(o, ast.ClassDef) and o.name=='Loop')
    pieces = [o for o in loop.body if isinstance(o, ast.FunctionDef)]
    first,last = pieces[0],pieces[-1]
    assert (first.name,last.name)==('_fit','_step')
    assert last.end_lineno-first.decorator_list[0].lineno+1 <= 70

@pytest.mark.parametrize('mod', modules)
def test_no_star_imports(mod):
    "Between our modules names are imported, so that a reader sees where each comes from; `*` is for users"
    assert mod=='all' or not [m for m,names in imports(tree_of(mod).body, mod) if '*' in names]

@pytest.mark.parametrize('mod', sorted(modules.keys()-{'core.checks'}))
def test_signatures_are_read_in_one_way(mod):
    "`inspect.signature` of Python 3.14 fails for annotations of names that only a type checker knows: ours does not"
    assert not [o for o in ast.walk(tree_of(mod)) if isinstance(o, ast.ImportFrom) and o.module=='inspect'
        and 'signature' in [a.name for a in o.names]]

def test_import_is_light():
    "`import learner.all` loads our dependencies and nothing else; matplotlib waits for the first plot"
    code = '''if True:
        import json,sys
        import torch,torch.utils.data,numpy,tqdm
        base = set(sys.modules)
        import learner.all
        print(json.dumps(sorted({o.partition('.')[0] for o in sys.modules.keys()-base} - sys.stdlib_module_names)))'''
    new = set(json.loads(subprocess.run([sys.executable, '-c', code], cwd=root, check=True, capture_output=True,
        text=True).stdout))
    assert new <= {lib.name,'torch','fastcore','numpy','tqdm'}

def test_methods_of_later_chapters_are_known_to_editors():
    "The stub of `Learner` lists the methods that later chapters `@patch` onto it"
    stub = ast.parse((lib/'loop/learner.pyi').read_text(encoding='utf-8'))
    listed = {o.name for cls in stub.body if isinstance(cls, ast.ClassDef) for o in cls.body
        if isinstance(o, ast.FunctionDef)}
    patched = {(m,o.name) for m in modules for o in tree_of(m).body
        if isinstance(o, ast.FunctionDef) and f'Learner.{o.name}' in listify(patch_name(o))}
    assert not [o for o in patched if o[0]=='loop.learner'], 'these belong into the class'
    assert {'fit','validate','add_cb','freeze'} | {name for _,name in patched if name[0]!='_'} <= listed

fences = re.compile(r'^```[^\n]*\n(.*?)^```', re.M|re.S)

def code_in(cell): return [cell.source] if cell.cell_type=='code' else fences.findall(cell.source)

@pytest.mark.parametrize('fn', notebooks, ids=path_of)
def test_columns(fn):
    "Code has at most 120 columns, and 95 in pages for users, where the site would cut it off"
    most = 95 if fn.parent.name in pages_for_users else 120
    lines = [(c.id, l) for c in read_nb(fn).cells for code in code_in(c) for l in code.splitlines()]
    assert not [f'#{k}: {l}' for k,l in lines if len(l)>most]

link = re.compile(r'\]\(([^)#\s]+\.ipynb)')

def links(fn):
    return {(fn.parent/o).resolve() for c in read_nb(fn).cells if c.cell_type=='markdown'
        for o in link.findall(c.source)}

@pytest.mark.parametrize('fn', notebooks, ids=path_of)
def test_links(fn):
    "Links to other notebooks lead to files"
    assert not [o for o in links(fn) if not o.exists()]

@pytest.mark.parametrize('part', parts)
def test_page_of_part(part):
    """Each part has a page, which says of each of its chapters what to change there; its summary is the docstring of
    the package"""
    page = nbs/part/'index.ipynb'
    assert not {*(nbs/part).glob('[0-9]*.ipynb')}-links(page)
    summary = re.search('^> (.+)', read_nb(page).cells[0].source, re.M)[1]
    assert summary==ast.get_docstring(ast.parse((lib/part/'__init__.py').read_text(encoding='utf-8')))

def private(name): return name.startswith('_') and not name.startswith('__')

def defined_in(tree):
    "Private names that a module defines: functions, classes, variables, attributes"
    for o in ast.walk(tree):
        if isinstance(o, (ast.FunctionDef,ast.ClassDef)): yield o.name
        elif isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store): yield o.id
        elif isinstance(o, ast.Attribute) and isinstance(o.ctx, ast.Store): yield o.attr

@cache
def private_names():
    "By module"
    return {m:{*filter(private, defined_in(tree_of(m)))} for m in modules}

def foreign(o, mod):
    """Whether an attribute is a private one of another module. Those of torch are none of ours; a class may use what
    it has inherited"""
    inherited = isinstance(o.value, ast.Name) and o.value.id in ('self','cls')
    if inherited or not private(o.attr): return False
    return o.attr not in private_names()[mod] and any(o.attr in names for names in private_names().values())

@pytest.mark.parametrize('mod', modules)
def test_private_names_stay_at_home(mod):
    "No module imports a private name of another one, or touches a private member of its objects"
    assert not [n for _,names in imports(tree_of(mod).body, mod) for n in names if private(n)]
    assert not [ast.unparse(o) for o in ast.walk(tree_of(mod)) if isinstance(o, ast.Attribute) and foreign(o, mod)]

alien = re.compile(r'(?<![\w.])/(?:root|home|mnt)/|index[-]url')

def test_no_place_names():
    "No file speaks of the machine that it was made on, or of a package index"
    p = subprocess.run(['git', 'ls-files', '-z'], cwd=root, capture_output=True, text=True)
    if p.returncode: pytest.skip('not a git checkout')
    fs = [f for o in p.stdout.split('\0') if (f := root/o).is_file() and f.suffix not in ('.png','.gif','.pt')]
    assert not [f'{f.relative_to(root)}: {l.strip()[:100]}' for f in fs
        for l in f.read_text(encoding='utf-8').splitlines() if alien.search(l)]

numbered = re.compile(r'^\| *\d+ *\|')
head = re.compile(r'^\|.*\| *$\n\|(?: *:?-+:? *\|)+ *$', re.M)

def cells_of(row): return [o.strip() for o in row.strip().strip('|').split('|')]

def flows(fn):
    "Names in the column of a numbered table that says where each step is: the one called `where`, or else the second"
    for c in read_nb(fn).cells:
        for m in head.finditer(c.source) if c.cell_type=='markdown' else ():
            names = cells_of(m[0].split('\n')[0])
            rows = [cells_of(o) for o in c.source[m.end():].split('\n\n')[0].splitlines() if numbered.match(o)]
            col = names.index('where') if 'where' in names else 1
            if len(rows)>5: yield [name for row in rows for name in re.findall('`([^`]+)`', row[col])]

@cache
def definitions():
    return [o for m in modules for o in ast.walk(tree_of(m)) if isinstance(o, (ast.FunctionDef,ast.ClassDef))]
def in_code(name):
    "Whether `name`, such as `Class.method`, `route.method` or `function(…)`, is a function or class of the library"
    owner,_,attr = re.match(r'[\w.]+', name)[0].rpartition('.')
    if not owner: return any(o.name==attr for o in definitions())
    owners = {'route': ('Route','WayBack','Whereabouts','Pauses','ResumableRoute'),
        'learn': ('LoopState','Loop','StopMixin','FitMixin','Learner')}.get(owner, (owner,))
    return any(m.name==attr for o in definitions() if isinstance(o, ast.ClassDef)
        and o.name in owners for m in o.body if isinstance(m, ast.FunctionDef))

@pytest.mark.parametrize('name', ['loop/01_loop','loop/04_interrupt','resume/06_checkpoint'])
def test_tables_of_flows_name_what_is_there(name):
    """A reader can follow each step of a batch, of a stop and of a resume in another process: the functions of these
    tables exist"""
    found = [o for o in flows(nbs/f'{name}.ipynb') if len(o)>5]
    assert found and not [n for names in found for n in names if not in_code(n)]

def test_the_table_of_mixins_is_that_of_the_class():
    "The chapter of the Learner says what each class that it derives from adds, and where"
    from learner.all import Learner
    src = next(c.source for c in read_nb(nbs/'loop/08_learner.ipynb').cells if c.id=='md_chain')
    rows = re.findall(r'^\| `(\w+)` \| .*?\(([\w./]+)\.ipynb\)', src, re.M)
    bases = [o for o in Learner.__mro__ if o is not object][::-1]
    assert [k for k,_ in rows]==[o.__name__ for o in bases]
    for (_,link),o in zip(rows, bases):
        assert re.sub(r'\d+_', '', (nbs/'loop'/link).resolve().relative_to(nbs).as_posix()).replace('/',
            '.')==o.__module__.removeprefix('learner.')
