"The entry of a public name, as Markdown: signature, what it does, a table of its parameters, and its methods"
import inspect,re,sys
from enum import Enum
from functools import cache,partial
from inspect import formatannotation
from types import WrapperDescriptorType
from fastcore.docments import DocmentTbl,docments,empty
from fastcore.foundation import L
from catalogue import comment,lib,own_methods,said_of,syms

class Text(str): __repr__ = str.__str__
def short(s): return Text(s if len(s)<60 else '...')
def type_text(o):
    if o in (empty, type(None)): return empty
    return short(re.sub(r'\b(\w+\.)+(?=[A-Z])', '', formatannotation(o).strip("'")))
def default_text(o): return empty if o is empty else short(getattr(o, '__name__', repr(o)))

def said_by_bases(cls, method, name):
    "What the method of the same name says of a parameter, in the first base class that says anything"
    for o in cls.__mro__[1:]:
        f = vars(o).get(method)
        if inspect.isfunction(f) and (text := docments(f, args_kwargs=True).get(name)): return text

def signature_of(sym):
    "The signature of a function or a class. A metaclass such as that of `L` would tell another one"
    return inspect.signature(partial(sym.__init__, None) if isinstance(sym, type(L)) else sym)

@cache
def words(sym, owner=None):
    "What is said of each parameter of `sym`, a method of the class `owner` or a class itself"
    cls = sym if isinstance(sym, type) else owner
    method = '__init__' if isinstance(sym, type) else getattr(sym, '__name__', '')
    own = docments(sym, args_kwargs=True)
    def text(k):
        said = own.get(k)
        return said if said and said is not empty else (cls and said_by_bases(cls, method, k)) or empty
    return {k:text(k) for k in signature_of(sym).parameters if k not in ('self','cls')}

def table(sym, owner=None):
    "Parameters of `sym`, which may be a method of the class `owner`, as Markdown"
    tbl,s = DocmentTbl(sym),signature_of(sym)
    said = docments(sym, args_kwargs=True) # the table would give the comment of `**kwargs` to what is returned
    said |= words(sym, owner)
    for k,p in tbl.dm.items(): p['docment'] = said.get(k) or empty
    types = {k:p.annotation for k,p in s.parameters.items()} | {'return': s.return_annotation} # as written, not guessed
    for k,p in tbl.dm.items():
        cols = dict(anno=type_text(types.get(k, empty)), default=default_text(p.get('default', empty)))
        p.update({c:o if o is empty else f'`{o}`' for c,o in cols.items()})
    return str(tbl)

def signature(sym, types):
    "Parameters in brackets, with their `types` where no table has them"
    s = signature_of(sym)
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

def api(sym, name, mod, shown=(), depth=3, owner=None):
    "A Sphinx object for `sym`. A class comes with its methods, except those `shown` elsewhere, and links to later ones"
    is_cls,kind = isinstance(sym, type),kind_of(sym, name)
    bare = kind in ('data','property') or is_cls and not has_own_init(sym)
    tbl = '' if bare else table(sym, owner)
    opts = [f':module: {lib}.{mod}']
    if isinstance(getattr(sym, '__self__', None), type): opts.append(':classmethod:')
    said = (kind=='data' and comment(mod, name)) or said_of(type(sym) if kind=='data' else sym)
    later = later_methods(sym, name) if is_cls else []
    parts = ['\n'.join(opts), said, later and 'Added by other chapters: ' + ', '.join(f'`{o}`' for o in later)]
    if tbl: parts.append(f'```{{rst-class}} params\n```\n\n{tbl}')
    for k in own_methods(sym) if is_cls else ():
        if f'{name}.{k}' not in shown and f'{name}.{k}' not in later:
            parts.append(api(getattr(sym, k), f'{name}.{k}', mod, depth=depth+1, owner=sym))
    fence = ':'*(9-depth)
    head = f'{fence}{{py:{kind}}} {name}' + ('' if bare else signature(sym, not tbl))
    return f'{head}\n' + '\n\n'.join(filter(None, parts)) + f'\n{fence}'

def entry(mod, name, shown=()):
    "The entry of what is called `name` in a module, such as `Learner.fit_one_cycle` in `schedule.fits`"
    sym = sys.modules[f'{lib}.{mod}']
    for o in name.split('.'): sym = getattr(sym, o)
    return api(sym, name, mod, shown)
