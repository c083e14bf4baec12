"""Two files for language models, written beside the pages: `llms.txt` lists all pages, by the map of the site;
`llms-full.txt` has the text of the pages that teach, then every module with its public names and their parameters"""
import inspect,sys
from fastcore.nbio import read_nb
import catalogue as cat
from catalogue import lib
from entries import default_text,empty,has_own_init,kind_of,signature_of,type_text,words
from pages import Page,nbs,pages_below

def read(doc): return Page.read(nbs/f'{doc}.ipynb')

def module_of(doc):
    "The module that a chapter exports"
    part,_,name = doc.partition('/')
    mod = f'{part}.{name.partition("_")[2]}'
    return mod if mod in cat.chapters() else None

def listed(doc, docs, depth=0):
    "A line for a page, and lines for those below it"
    page,mod = read(doc),module_of(doc)
    yield f'{"  "*depth}- [{page.title}]({doc}.html){f" (`{lib}.{mod}`)" if mod else ""}: {page.summary}'
    for o in pages_below(doc, docs): yield from listed(o, docs, depth+1)

def index(docs):
    "All pages, with their summaries, by the map of the site"
    home = read('index')
    yield from (f'# {home.title}', '', f'> {home.summary}', '', 'All of it as text: [llms-full.txt](llms-full.txt)')
    for doc in pages_below('index', docs):
        page = read(doc)
        yield from ('', f'## {page.title}', '', f'[{page.summary}]({doc}.html)', '')
        for o in pages_below(doc, docs): yield from listed(o, docs)

def teaching(doc):
    "A page as a reader has it: prose, and code without hidden cells and outputs"
    for c in read_nb(nbs/f'{doc}.ipynb').cells:
        if {'hide','include'} & c.directives.keys() or c.directives.get('echo')=='false': continue
        lines = [o for o in c.source.splitlines() if not o.startswith('#|')]
        text = '\n'.join(lines).replace('\n# ', '\n### ').strip()
        if text: yield f'```python\n{text}\n```' if c.cell_type=='code' else text

def parameters(sym, owner):
    "A line for each parameter: name, type, default, and what is said of it"
    said = words(sym, owner)
    for k,p in signature_of(sym).parameters.items():
        if k not in said: continue
        facts = [f'`{o}`' for o in (type_text(p.annotation),) if o is not empty]
        if p.default is not empty: facts.append(f'default `{default_text(p.default)}`')
        yield f"- `{k}`{' (' + ', '.join(facts) + ')' if facts else ''}: {said[k]}"

def named(mod, name, sym, owner=None):
    "A public name: what it is, its parameters, and the methods of a class"
    kind = kind_of(sym, name)
    text = (kind=='data' and cat.comment(mod, name)) or cat.said_of(type(sym) if kind=='data' else sym)
    yield from ('', f'### {kind} `{name}`', '', inspect.cleandoc(text))
    if kind not in ('data','property') and (kind!='class' or has_own_init(sym)):
        yield from ('', *parameters(sym, owner))
    for k in cat.own_methods(sym) if kind=='class' else ():
        if f'{name}.{k}' not in cat.names_of(mod): yield from named(mod, f'{name}.{k}', getattr(sym, k), sym)

def full(docs):
    "The pages that teach, then every module"
    home = read('index')
    yield from (f'# {home.title}', '', f'> {home.summary}')
    for doc in ['index', *(o for top in ('start/index','howto/index','concepts/index') for o in pages_below(top, docs)
            if '/index' not in o)]:
        yield from ('', *teaching(doc))
    for mod in cat.chapters():
        yield from ('', f'## {lib}.{mod}', '', inspect.cleandoc(sys.modules[f'{lib}.{mod}'].__doc__))
        for name,sym in cat.names_of(mod).items(): yield from named(mod, name, sym)

def write(app, exc):
    "Write both files into the built site"
    if exc or app.builder.format!='html': return
    for name,lines in {'llms.txt':index, 'llms-full.txt':full}.items():
        (app.outdir/name).write_text('\n'.join(lines(app.env.found_docs))+'\n', encoding='utf-8')

def setup(app):
    app.connect('build-finished', write)
    return dict(parallel_read_safe=True)
