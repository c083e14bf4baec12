"Pages for users: what they show runs as it stands, in an empty folder, and is short"
import os,re,subprocess,sys
from configparser import ConfigParser
import matplotlib,pytest
from fastcore.nbio import read_nb
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from learner import __version__

cfg = get_config()
sys.path.insert(0, str(cfg.config_path/"docs"))
from pages import directive
sys.path.pop(0)
root,nbs = cfg.config_path,cfg.nbs_path
def pages(*folders): return [o for f in folders for o in sorted((nbs/f).glob('[0-9]*.ipynb'))]
def path_of(fn): return fn.relative_to(nbs).with_suffix('').as_posix()
readme = root/'README.md'
quickstart = nbs/'start/02_quickstart.ipynb'
shown = pages('start','howto','concepts','project','tutorials')

fence = re.compile(r'^```(\w+)\n(.*?)^```', re.M|re.S)

def text_of(fn):
    if fn.suffix=='.md': return fn.read_text(encoding='utf-8')
    return '\n'.join(c.source for c in read_nb(fn).cells if c.cell_type=='markdown')
def code_cells(fn): return [c for c in read_nb(fn).cells if c.cell_type=='code']
def hidden(c): return bool({'hide','echo','include'} & c.directives.keys())
def code_of(fn):
    "The code of a page, as a reader would copy it"
    if fn.suffix=='.md': return '\n'.join(code for lang,code in fence.findall(text_of(fn)) if lang=='python')
    return '\n'.join(c.source for c in code_cells(fn) if not hidden(c))

run_each = 'import runpy,sys\nfor o in sys.argv[1:]: runpy.run_path(o)'

@pytest.mark.parametrize('fns', [(readme, quickstart), pytest.param(pages('howto'), marks=pytest.mark.slow)],
    ids=['readme and quickstart','how-to'])
def test_code_runs_when_it_is_copied(fns, tmp_path):
    "Without hidden cells, in a new process, an empty folder and an environment without settings"
    for o in fns: (tmp_path/f'{o.stem}.py').write_text(code_of(o), encoding='utf-8')
    keep = {k:v for k,v in os.environ.items() if k in ('PATH','SYSTEMROOT')}
    env = keep | dict(HOME=str(tmp_path), PYTHONPATH=str(root), MPLBACKEND='Agg', OMP_NUM_THREADS='1')
    env['MPLCONFIGDIR'] = matplotlib.get_cachedir() # its list of fonts takes seconds to make
    p = subprocess.run([sys.executable, '-c', run_each, *(f'{o.stem}.py' for o in fns)], cwd=tmp_path, env=env,
        capture_output=True, text=True)
    assert not p.returncode, p.stderr[-3000:]

def test_the_first_page_and_the_readme_name_the_version():
    for text in (text_of(readme), text_of(nbs/'index.ipynb')): assert f'version {__version__}' in text

targets = set(re.findall(r'^(\w+):.*?##', (root/'Makefile').read_text(encoding='utf-8'), re.M))
setup = ConfigParser()
setup.read(root/'setup.cfg')
def commands(fn):
    "Lines of shell code: in fences, in indented blocks, and in backticks"
    text = text_of(fn)
    for lang,code in fence.findall(text):
        if lang in ('bash','sh'): yield from code.splitlines()
    yield from re.findall(r'^    (make .*)', text, re.M)
    yield from re.findall(r'`((?:make|pip) [^`]+)`', text)

@pytest.mark.parametrize('fn', [readme, *shown], ids=lambda o: o.stem)
def test_commands_exist(fn):
    "Each `make` has its target, each extra is one of setup.cfg, and each file is there"
    for line in commands(fn):
        words = line.partition('#')[0].split()
        if words[:1]==['make']: assert words[1] in targets, line
        extras = {o for s in re.findall(r'\.\[([\w,]+)\]', line) for o in s.split(',')}
        assert extras<={*setup['options.extras_require']}, line
        files = re.findall(r'(?<!\S)((?:tools|nbs|learner|docs|tests)/\S+\.\w+)', line)
        assert all((root/o).exists() for o in files), line

@pytest.mark.parametrize('fn', shown, ids=path_of)
def test_no_tests_are_shown(fn):
    "What only tests is hidden from readers"
    assert not [c.id for c in code_cells(fn) if not hidden(c) and re.search(r'^\s*(assert|test_\w+\()', c.source, re.M)]

def lines_of(c): return [l for l in c.source.splitlines() if l.strip() and not l.strip().startswith('#|')]

def n_words(text): return len([o for o in re.sub(r'```.*?```', '', text, flags=re.S).split() if re.search(r'\w', o)])

@pytest.mark.parametrize('fn', pages('howto'), ids=path_of)
def test_how_to_is_short(fn):
    "At most sixty lines of code that readers see, and 450 words"
    assert sum(len(lines_of(c)) for c in code_cells(fn) if not hidden(c))<=60
    assert n_words(text_of(fn))<=450

def test_the_way_to_a_first_run_is_read_in_ten_minutes():
    "From Home to a model on own data, with an own callback, and a run that resumes: at most 2,400 words"
    way = [nbs/'index.ipynb', *pages('start')[:4], nbs/'howto/01_resume.ipynb']
    assert sum(n_words(text_of(o)) for o in way)<=2400

def figures(fn):
    return [c for c in code_cells(fn) if any('image/png' in o.get('data', {}) for o in c.get('outputs', ()))]
with_figures = [o for o in sorted(nbglob(as_path=True)) if '"image/png"' in o.read_text(encoding='utf-8')]

@pytest.mark.parametrize('fn', with_figures, ids=path_of)
def test_figures_say_what_to_see(fn):
    "A cell that stores a figure has a caption and an alternative text, and they are not the same"
    for c in figures(fn):
        cap,alt = (directive(o, c.source) for o in ('fig-cap','fig-alt'))
        assert len(cap)>15 and len(alt)>15 and cap!=alt, c.id
