"""Write `learner.pyi` beside the module of `Learner`: what editors know of it, with the methods that later chapters add

With `--check`, only say whether it is up to date. Nothing is imported: the text of the modules is read."""
import ast,io,sys
from pathlib import Path
from tokenize import COMMENT,generate_tokens

root = Path(__file__).parent.parent
lib = root/'learner'
target = lib/'loop'/'learner.pyi'
head = '''# Written from the modules by tools/stub.py: run `make lib`
from contextlib import contextmanager
from typing import Any

def __getattr__(name: str) -> Any: ...

class Learner:
    def __getattr__(self, name: str) -> Any: ...
'''
simple = {'int','float','str','bool','list','dict','tuple','None'} # types that need no import

def decorators(f):
    names = [ast.unparse(o) for o in f.decorator_list]
    return [p for o in names for p in (['patch','property'] if o=='patch(as_prop=True)' else [o])]
def of_property(o): return o=='property' or o.endswith('.setter')
def is_patched(f): return 'patch' in decorators(f) and ast.unparse(f.args.args[0].annotation)=='Learner'

def known_type(o, also=()):
    "A type, if it can be written without an import"
    if o is not None and {n.id for n in ast.walk(o) if isinstance(n, ast.Name)} <= {*simple,*also}: return o

def parsed(file):
    "The tree of a module, in which each function has the `comments` of the module by line"
    text = file.read_text(encoding='utf-8')
    tokens = generate_tokens(io.StringIO(text).readline)
    comments = {o.start[0]:o.string.lstrip('# ') for o in tokens if o.type==COMMENT}
    tree = ast.parse(text)
    for o in ast.walk(tree):
        if isinstance(o, ast.FunctionDef): o.comments = comments
    return tree

def described(f):
    "The docstring of a function, and what is said of each of its parameters, as editors show it"
    a,doc = f.args,ast.get_docstring(f)
    args = [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]
    last = {o.lineno:o for o in args} # a comment belongs to the last parameter of its line
    said = [f'- `{o.arg}`: {f.comments[n]}' for n,o in last.items() if n in f.comments and o.arg!='self'
        and (f.returns is None or f.returns.lineno!=n)]
    return '\n\n'.join(filter(None, [doc, '\n'.join(said)])) if doc else None

def method(f):
    "A method as a stub has it, with its docstring"
    a,doc = f.args,described(f)
    for o in (*a.posonlyargs, *a.args, *a.kwonlyargs): o.annotation = known_type(o.annotation)
    a.defaults,a.kw_defaults = [ast.Constant(...) for _ in a.defaults],[o and ast.Constant(...) for o in a.kw_defaults]
    keep = ''.join(f'    @{o}\n' for o in decorators(f) if of_property(o) or o=='contextmanager')
    returns = known_type(f.returns, ['Learner'])
    body = f'\n        {doc!r}\n        ...\n' if doc else ' ...\n'
    return f"{keep}    def {f.name}({ast.unparse(a)}){f' -> {ast.unparse(returns)}' if returns else ''}:" + body

def methods():
    "Public methods of the classes that a Learner inherits from, then those that are patched on it"
    trees = [parsed(f) for f in sorted(lib.rglob('*.py')) if f.stem!='_modidx']
    classes,functions = ({o.name:o for t in trees for o in t.body if isinstance(o, ast.ClassDef)},
        [o for t in trees for o in t.body if isinstance(o, ast.FunctionDef)])
    mro,todo = [],['Learner']
    while todo:
        if (cls := classes.get(todo.pop(0))) is not None: mro.insert(0, cls); todo += map(ast.unparse, cls.bases)
    for cls in mro:
        own = [o for o in cls.body if isinstance(o, ast.FunctionDef)]
        kept = ('__init__','__call__') if cls.name in ('Learner','Notifier') else ()
        yield from (o for o in own if o.name[0]!='_' or o.name in kept)
    yield from sorted(filter(is_patched, functions), key=lambda o: o.name)

def stub():
    found = [f for f in methods() if f.name!='__init__' or len(f.args.args)>5]
    last = {(f.name, 'setter' in ' '.join(decorators(f))):f for f in found}
    return head + ''.join(map(method, last.values()))

if __name__=='__main__':
    if '--check' not in sys.argv: target.write_text(stub(), encoding='utf-8')
    elif target.read_text(encoding='utf-8')!=stub(): sys.exit(f'stale: {target.relative_to(root)}; run `make lib`')
