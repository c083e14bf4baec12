"Prepare a notebook for Sphinx: nbdev's directives, a reference after each exported cell, links from names in backticks"
import ast,inspect,json,re
from enum import Enum
from importlib import import_module
from inspect import formatannotation,isfunction
from itertools import groupby
from types import WrapperDescriptorType
from docutils import nodes
from fastcore.docments import DocmentTbl,docments,docstring,empty
from fastcore.nbio import dict2nb,mk_cell,nb2str
from nbdev.config import get_config
from nbdev.doclinks import patch_name
from nbdev.process import NBProcessor,Processor
from nbdev.processors import add_show_docs,clean_magics,filter_stream_,hide_,hide_line,mv_exports
from nbdev.processors import populate_language,rm_export,rm_header_dash,strip_ansi
from sphinx.addnodes import desc,pending_xref
from sphinx.pycode import ModuleAnalyzer
from listings import Listing
from pages import pages_below

cfg = get_config()
lib = cfg.lib_path.name
syms = {} # full name of each symbol, by itself and by its name in the module
for mod,d in import_module(f'{lib}._modidx').d['syms'].items():
    import_module(mod) # so that every `@patch` is in place
    for o in d: syms[o] = syms[o.removeprefix(f'{mod}.')] = o

class in_order(Processor):
    "`add_show_docs` lists the definitions of one cell from last to first"
    def begin(self):
        runs = groupby(self.nb.cells, lambda c: hasattr(c, 'has_sd'))
        self.nb.cells = [c for is_doc,cs in runs for c in (reversed(list(cs)) if is_doc else cs)]

procs = [populate_language, add_show_docs, in_order, strip_ansi, hide_line, filter_stream_, rm_header_dash, rm_export,
    clean_magics, hide_, mv_exports]

class Text(str): __repr__ = str.__str__
def short(s): return Text(s if len(s)<60 else '...')
def type_text(o):
    if o in (empty, type(None)): return empty
    return short(re.sub(r'\b(\w+\.)+(?=[A-Z])', '', formatannotation(o).strip("'")))
def default_text(o): return empty if o is empty else short(getattr(o, '__name__', repr(o)))

def table(sym):
    "Parameters that have a docment, as Markdown"
    tbl,s = DocmentTbl(sym),inspect.signature(sym)
    said = docments(sym, args_kwargs=True) # the table would give the comment of `**kwargs` to what is returned
    for k,p in tbl.dm.items(): p['docment'] = said.get(k) or empty
    types = {k:p.annotation for k,p in s.parameters.items()} | {'return': s.return_annotation} # as written, not guessed
    for k,p in tbl.dm.items():
        cols = dict(anno=type_text(types.get(k, empty)), default=default_text(p.get('default', empty)))
        p.update({c:o if o is empty else f'`{o}`' for c,o in cols.items()})
    return str(tbl)

def signature(sym, types):
    "Parameters in brackets, with their `types` where no table has them"
    s = inspect.signature(sym)
    def text(o): return type_text(o) if types else empty
    ps = [p.replace(annotation=text(p.annotation), default=default_text(p.default))
        for p in s.parameters.values() if p.name!='self']
    returns = empty if isinstance(sym, type) else text(s.return_annotation)
    return str(s.replace(parameters=ps, return_annotation=returns))

def kind_of(sym, name):
    "What Sphinx calls an object like `sym`"
    if isinstance(sym, type): return 'class'
    if isinstance(sym, property): return 'property'
    if not callable(sym): return 'data'
    return 'method' if '.' in name else 'function'

def has_own_init(cls):
    "Whether a class is constructed with arguments of its own"
    return not (isinstance(cls.__init__, WrapperDescriptorType) or issubclass(cls, (Enum,BaseException)))

def later_methods(cls, name):
    "Methods that later chapters add to a class"
    own = f'{cls.__module__}.'
    return [o for o in syms if o.startswith(f'{name}.') and '._' not in o and not syms[o].startswith(own)]

def api(sym, name, mod, shown=(), depth=3):
    "A Sphinx object for `sym`. A class comes with its methods, except those `shown` elsewhere, and links to later ones"
    is_cls,kind = isinstance(sym, type),kind_of(sym, name)
    bare = kind in ('data','property') or is_cls and not has_own_init(sym)
    tbl = '' if bare else table(sym)
    opts = [f':module: {lib}.{mod}'] if mod else [':no-index:']
    if isinstance(getattr(sym, '__self__', None), type): opts.append(':classmethod:')
    later = ', '.join(f'`{o}`' for o in later_methods(sym, name)) if is_cls else ''
    parts = ['\n'.join(opts), docstring(sym) if kind!='data' else '', later]
    if tbl: parts.append(f'```{{rst-class}} params\n```\n\n{tbl}')
    for k,v in vars(sym).items() if is_cls else ():
        f = getattr(v, 'fget', getattr(v, '__func__', v))
        if isfunction(f) and k[0]!='_' and f.__doc__ and f.__module__==sym.__module__ and f'{name}.{k}' not in shown:
            parts.append(api(getattr(sym, k), f'{name}.{k}', mod, depth=depth+1))
    fence = ':'*(9-depth)
    head = f'{fence}{{py:{kind}}} {name}' + ('' if bare else signature(sym, not tbl))
    return f'{head}\n' + '\n\n'.join(filter(None, parts)) + f'\n{fence}'

def sidebar(docname, docs):
    "What a page adds to the side bar"
    return '\n'.join(['```{toctree}', ':hidden:', '', *(f'/{o}' for o in pages_below(docname, docs)), '```'])

def prepare(app, docname, source):
    "Turn the nbdev notebook in `source` into one that myst-nb shows as meant"
    p = NBProcessor(nb=dict2nb(json.loads(source[0])), procs=procs)
    mod = next((c.directives_['default_exp'] for c in p.nb.cells if 'default_exp' in c.directives_), None)
    p.process()
    cells = p.nb.cells
    def shown_by(c): return ast.unparse(ast.parse(c.source).body[0].value.args[0])
    show = {c.idx_:shown_by(c) for c in cells if c.source.startswith('show_doc(')}
    for i,nm in show.items():
        sym = eval(nm, vars(import_module(f'{lib}.{mod or "all"}')))
        cells[i] = mk_cell(api(sym, nm, mod, show.values()), 'markdown')
    for c in cells:
        d = getattr(c, 'directives_', {})
        tags = {'include':'remove-cell', 'echo':'remove-input', 'output':'remove-output'}
        c.metadata['tags'] = [v for k,v in tags.items() if d.get(k)=='false']
    if pages_below(docname, app.env.found_docs): cells.append(mk_cell(sidebar(docname, app.env.found_docs), 'markdown'))
    source[0] = nb2str(p.nb)

def in_signature(name, o):
    "Whether `name` is, around `o`, the object described or one of its parameters"
    while o and not isinstance(o, desc): o = o.parent
    return o and re.search(rf'\b{re.escape(name)}\b', o[0].astext())

def link_names(app, doctree):
    "Make `name` in backticks a link, where it is one of ours"
    for o in list(doctree.findall(nodes.literal)):
        text = re.sub(r'\(\)$| \| None$', '', o.astext())
        nm = syms.get(text)
        if nm and not isinstance(o.parent, (nodes.reference,pending_xref)) and not in_signature(text, o):
            ref = pending_xref('', refdomain='py', reftype='obj', reftarget=nm, refwarn=False)
            o.replace_self(ref)
            ref += o

def source_of(app, modname):
    "Text of a module, and the lines of its symbols, with those that `@patch` adds to a class"
    if not modname.startswith(lib): return
    a = ModuleAnalyzer.for_module(modname)
    tags = dict(a.find_tags())
    for o in ast.parse(a.code).body:
        nms = patch_name(o) if isinstance(o, ast.FunctionDef) else ()
        for nm in [nms] if isinstance(nms, str) else nms: tags[nm] = ('def', o.lineno, o.end_lineno)
    return a.code,tags

def setup(app):
    app.add_directive('listing', Listing)
    app.connect('source-read', prepare)
    app.connect('doctree-read', link_names)
    app.connect('viewcode-find-source', source_of)
    return dict(parallel_read_safe=True)
