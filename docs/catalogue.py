"What the library offers, read from its modules: public names, methods of a Learner, events, and what is said of each"
import ast,inspect,re
from functools import cache
from importlib import import_module
from fastcore.docments import docstring
from nbdev.config import get_config
from nbdev.doclinks import patch_name
from fastcore.basics import listify

cfg = get_config()
lib = cfg.lib_path.name
syms = {} # full name of each symbol, by itself and by its name in the module
for mod,d in import_module(f'{lib}._modidx').d['syms'].items():
    import_module(mod) # so that every `@patch` is in place
    for o in d: syms[o] = syms[o.removeprefix(f'{mod}.')] = o

every = import_module(f'{lib}.all')
Learner,Callback,event = every.Learner,every.Callback,every.event

def text_of(mod): return (cfg.lib_path/f'{mod.replace(".", "/")}.py').read_text(encoding='utf-8')
def tree(mod): return ast.parse(text_of(mod))

def chapters() -> list[str]:
    "Modules in the order in which `learner.all` imports them, such as `core.events`"
    return [o.module for o in tree('all').body if isinstance(o, ast.ImportFrom)]

def defined(code) -> list[str]:
    "Public names that `code` defines, in order: functions, methods that are patched on a class, classes, and values"
    res = []
    for o in ast.parse(code).body:
        if isinstance(o, (ast.FunctionDef,ast.ClassDef)): res += listify(patch_name(o))
        elif isinstance(o, ast.Assign): res += [n.id for t in o.targets for n in ast.walk(t) if isinstance(n, ast.Name)
            and n.id in every.__all__]
    return [o for o in res if o.rpartition('.')[2][0]!='_']

@cache
def names_of(mod) -> dict[str, object]:
    "What a chapter gives to users, by name: those of its names that `learner.all` has, and methods of public classes"
    return {nm:get(nm) for nm in defined(text_of(mod)) if nm.partition('.')[0] in every.__all__}

def get(name):
    "The object called `name`, such as `Learner.fit`, among the public ones"
    res = every
    for o in name.split('.'): res = getattr(res, o)
    return res

def home_of(mod, name):
    "Where a value is assigned, as a statement"
    return next(o for o in tree(mod).body if isinstance(o, ast.Assign)
        and name in {n.id for t in o.targets for n in ast.walk(t) if isinstance(n, ast.Name)})

def comment(mod, name) -> str:
    "What is said of a value: the comment at the end of its statement"
    last = home_of(mod, name).end_lineno
    return text_of(mod).splitlines()[last-1].partition(' # ')[2]

def is_value(o): return not (callable(o) or isinstance(o, property))

def said_of(o) -> str:
    "The docstring of an object, without the list of parameters that `learner.all` adds"
    return docstring(o).partition('Parameters:\n\n- `')[0].strip()

def summary(o, mod='', name='') -> str:
    "The first sentence about an object, on one line"
    text = (is_value(o) and comment(mod, name)) or said_of(type(o) if is_value(o) else o)
    text = re.sub(r'\s+', ' ', text.split('\n\n')[0]).strip()
    return re.split(r'(?<=[a-z`)])\. (?=[A-Z])', text)[0].rstrip('.:')

@cache
def methods(cls=Learner) -> dict[str, str]:
    "Public methods and properties of a class that say what they do, with the name of the module that defines each"
    res = {}
    for c in reversed(cls.__mro__):
        for k,v in vars(c).items():
            f = getattr(v, 'fget', getattr(v, '__func__', v))
            is_method = k[0]!='_' and inspect.isfunction(inspect.unwrap(f)) and f.__module__.startswith(f'{lib}.')
            if is_method and f.__doc__: res[k] = f.__module__.partition('.')[2]
    return res

def callbacks() -> dict[str, type]:
    return {k:o for k in every.__all__ if isinstance(o := getattr(every, k), type) and issubclass(o, Callback)}

def listens(cls) -> list[str]:
    "Events that callbacks of a class act on"
    return [ev for ev in event if hasattr(cls, ev)]

def public_classes(): return [o for k in every.__all__ if isinstance(o := getattr(every, k), type)]

@cache
def own_methods(cls) -> dict[str, str]:
    """Methods that have their entries with a class: those that it defines, or inherits from classes that are not
    public. The entries of what a Learner inherits have a page of their own"""
    public = public_classes()
    bases = [o for o in cls.__mro__[1:] if o in public]
    def is_own(k):
        home = next(o for o in cls.__mro__ if k in vars(o))
        return home is cls or cls is not Learner and home not in public and not any(k in methods(o) for o in bases)
    return {k:mod for k,mod in methods(cls).items() if is_own(k)}

def all_names():
    "Public names, and methods of public classes: the module, the name, what it means, and the class of a method"
    for mod in chapters():
        for name,o in names_of(mod).items():
            yield mod,name,o,None
            for k in own_methods(o) if isinstance(o, type) else (): yield mod,f'{name}.{k}',getattr(o, k),o

@cache
def targets() -> dict[str, str]:
    "Full name of the entry that a short one means, such as `Checkpoint`, `Learner.fit`, `fit`, `event.before_fit`"
    res = {nm:f'{lib}.{mod}.{nm}' for mod in chapters() for nm in names_of(mod)}
    public = {o for o in public_classes() if o.__module__.startswith(lib)}
    for cls in public:
        for k in methods(cls):
            home = next((o for o in cls.__mro__ if o in public and k in own_methods(o)), cls)
            if cls is Learner: home = cls
            inherited = res.get(f'{home.__name__}.{k}', f'{home.__module__}.{home.__name__}.{k}')
            res.setdefault(f'{cls.__name__}.{k}', inherited)
    by_method = {}
    for nm,full in res.items():
        if '.' in nm: by_method.setdefault(nm.partition('.')[2], set()).add(full)
    one = {k:min(v) for k,v in by_method.items() if len(v)==1 and '_' in k} # `text` or `name` may mean other things
    short = one | {k:res[f'Learner.{k}'] for k in methods()}
    return short | res | {o:f'{lib}.core.events.event.{ev}' for ev in event for o in (ev, f'event.{ev}')}

of_learner = dict(recorder='Recorder', dls='DataLoaders', cbs='CallbackList')

def target(text):
    "Full name of the entry that `text` in backticks means, with or without arguments; or None"
    text = re.sub(r'\(.*\)$| \| None$', '', text, flags=re.S)
    m = re.fullmatch(r'(?:self\.)?learn(?:\.(\w+))?\.(\w+)', text)
    if m: text = f'{of_learner.get(m[1], m[1]) if m[1] else "Learner"}.{m[2]}'
    return targets().get(text.removeprefix(f'{lib}.'))
