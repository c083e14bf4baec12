"Prepare a notebook for Sphinx: nbdev's directives, an entry for each exported name, links from names in backticks"
import ast,json,re
from functools import cache
from docutils import nodes
from fastcore.basics import listify
from fastcore.nbio import dict2nb,mk_cell,nb2str
from nbdev.doclinks import patch_name
from nbdev.process import NBProcessor,Processor
from nbdev.processors import clean_magics,filter_stream_,hide_,hide_line,mv_exports
from nbdev.processors import populate_language,rm_export,rm_header_dash,strip_ansi
from sphinx.addnodes import desc,pending_xref
from sphinx.pycode import ModuleAnalyzer
from catalogue import defined,every,lib,methods,names_of,public_classes,target
from entries import entry
from listings import Listing,name_events
from pages import directive,pages_below

class entries(Processor):
    "After each exported cell, the entries of the names that it defines"
    def begin(self):
        mod = next((c.directives_['default_exp'] for c in self.nb.cells if 'default_exp' in c.directives_), 'all')
        if mod=='all': return
        names = {c.id:[o for o in defined(c.source) if o in names_of(mod)] for c in self.nb.cells
            if c.cell_type=='code' and {'export','exports','exporti'} & {*c.directives_}}
        shown = [nm for nms in names.values() for nm in nms]
        for i,c in reversed([*enumerate(self.nb.cells)]):
            if not names.get(c.id): continue
            new = mk_cell('\n\n'.join(entry(mod, nm, shown) for nm in names[c.id]), 'markdown')
            new.has_sd = True # so that `mv_exports` moves it
            self.nb.cells.insert(i+1, new)

def only_tests(o):
    "Whether a statement only tests: `assert`, a call of `test_…`, or a block of nothing else"
    if isinstance(o, (ast.For,ast.With)): return all(map(only_tests, o.body))
    return isinstance(o, ast.Assert) or (isinstance(o, ast.Expr) and isinstance(o.value, ast.Call)
        and isinstance(o.value.func, ast.Name) and o.value.func.id.startswith('test_'))

def without_tests(code):
    "The lines of `code` that do not only test, and that are no comment of such a line"
    tests,others = set(),set()
    for o in ast.parse(code).body:
        (tests if only_tests(o) else others).update(range(o.lineno, o.end_lineno+1))
    lines = code.splitlines()
    for i in sorted(tests-others, reverse=True):
        del lines[i-1]
        above = i-1
        while above and lines[above-1].startswith('#') and above not in others and (
                above>=len(lines) or not lines[above].strip() or above+1 in tests):
            del lines[above-1]
            above -= 1
    return re.sub('\n{3,}', '\n\n', '\n'.join(lines)).strip()

class teaching(Processor):
    "A tutorial shows what teaches: its tests run with the notebook, and readers do not see them"
    def cell(self, cell):
        if cell.cell_type=='code': cell.source = without_tests(cell.source)
    def end(self):
        self.nb.cells = [c for c in self.nb.cells if c.source.strip() or c.get('outputs')]

procs = [populate_language, entries, strip_ansi, hide_line, filter_stream_, rm_header_dash, rm_export,
    clean_magics, hide_, mv_exports]

def toctree(pages):
    "What a page adds to the side bar"
    return '\n'.join(['```{toctree}', ':hidden:', '', *(f'/{o}' for o in pages), '```'])

def settings(d, source, heading):
    """What myst-nb has to know of a cell with directives `d` in its `source`, below a `heading`: what to leave out, and
    the words of its picture"""
    tags = {'include':'remove-cell', 'echo':'remove-input', 'output':'remove-output'}
    res = dict(tags=[v for k,v in tags.items() if d.get(k)=='false'])
    alt = directive('fig-alt', source) or f'Figure: {heading}'
    words = dict(image=dict(alt=alt), figure=dict(caption=directive('fig-cap', source)))
    return res | dict(mystnb={k:v for k,v in words.items() if all(v.values())})

def prepare(app, docname, source):
    "Turn the nbdev notebook in `source` into one that myst-nb shows as meant"
    nb = dict2nb(json.loads(source[0]))
    written = {c.id:c.source for c in nb.cells} # with the directives, which `NBProcessor` takes out
    p = NBProcessor(nb=nb, procs=[*procs, *([teaching] if docname.startswith('tutorials/') else [])])
    said,heading = {},''
    for c in p.nb.cells:
        if c.cell_type=='markdown': heading = next(reversed(re.findall('^#+ (.+)', c.source, re.M)), heading)
        said[c.id] = settings(c.directives_, written[c.id], heading)
    p.process()
    for c in p.nb.cells: c.metadata.update(said.get(c.id, {}))
    below = pages_below(docname, app.env.found_docs)
    if below: p.nb.cells.append(mk_cell(toctree(below), 'markdown'))
    source[0] = nb2str(p.nb)

def in_signature(name, o):
    "Whether `name` is, around `o`, the object described or one of its parameters"
    while o and not isinstance(o, desc): o = o.parent
    return o and re.search(rf'\b{re.escape(name)}\b', o[0].astext())

def link_names(app, doctree):
    "Make `name` in backticks a link, where it is one of ours"
    for o in list(doctree.findall(nodes.literal)):
        text = o.astext()
        nm = target(text)
        if nm and not isinstance(o.parent, (nodes.reference,pending_xref)) and not in_signature(text, o):
            ref = pending_xref('', refdomain='py', reftype='obj', reftarget=nm, refwarn=False)
            o.replace_self(ref)
            ref += o

def source_of(app, modname): return found_in(modname) if modname.startswith(lib) else None

@cache
def found_in(modname):
    """Text of a module, and the lines of its symbols, with those that `@patch` adds to a class. Sphinx asks for each
    signature"""
    a = ModuleAnalyzer.for_module(modname)
    tags = dict(a.find_tags())
    for o in ast.parse(a.code).body:
        names = listify(patch_name(o)) if isinstance(o, ast.FunctionDef) else defined(ast.unparse(o))
        tags |= {nm:('def', o.lineno, o.end_lineno) for nm in names}
    for cls in public_classes(): # and the methods that a class inherits
        bases = [o.__name__ for o in cls.__mro__ if o.__module__==modname]
        tags |= {f'{cls.__name__}.{k}':tags[f'{o}.{k}'] for o in bases for k in methods(cls) if f'{o}.{k}' in tags}
    return a.code,tags

def follow(app, modname, name):
    "The module of a method that a class inherits"
    cls,_,k = name.partition('.')
    found = methods(getattr(every, cls, object)).get(k) if k else None
    return found and f'{lib}.{found}'

def setup(app):
    app.add_directive('listing', Listing)
    app.connect('source-read', prepare)
    app.connect('doctree-read', name_events)
    app.connect('doctree-read', link_names)
    app.connect('viewcode-find-source', source_of)
    app.connect('viewcode-follow-imported', follow)
    return dict(parallel_read_safe=True)
