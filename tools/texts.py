"""Write `learner/_texts.py`: what the code says of each parameter of a public name, which `learner.all` adds to its
docstring. The library is imported, and the site's words are taken, so that `help()` and the site say the same"""
import inspect,sys
from pathlib import Path
from pprint import pformat
from types import SimpleNamespace

root = Path(__file__).parent.parent
sys.path[:0] = [str(root), str(root/'docs')]
sys.modules['learner._texts'] = SimpleNamespace(texts={}) # docstrings as the code has them
import catalogue
from entries import words

head = '# Written from the modules by tools/texts.py: run `make lib`\n'

def function_of(o):
    "The function of the library whose docstring `help()` shows for `o`, or None"
    o = o.__init__ if isinstance(o, type) else getattr(o, '__func__', o)
    return o if inspect.isfunction(o) and o.__module__.startswith(catalogue.lib) else None

def named():
    "Public functions, classes and methods, with the class of each method"
    yield from ((name, o, owner) for _,name,o,owner in catalogue.all_names())
    yield from ((f'Learner.{k}', getattr(catalogue.Learner, k), catalogue.Learner) for k in catalogue.methods())

def texts():
    """What to add to the docstring of each public function and method, as Markdown: its parameters, below the inherited
    docstring where it has none. A class has that of its `__init__`"""
    res,seen = {},set()
    for name,o,owner in named():
        f = function_of(o)
        if f is None or f in seen: continue # several classes may inherit one method
        seen.add(f)
        said = [f'- `{k}`: {text}' for k,text in words(o, owner).items() if isinstance(text, str)]
        above = [] if f.__doc__ or isinstance(o, type) else [inspect.getdoc(f), '']
        key = f'{name}.__init__' if isinstance(o, type) else name
        if said: res[key] = '\n'.join([*above, 'Parameters:', '', *said])
    return res

if __name__=='__main__':
    text = f'{head}texts = {pformat(texts(), width=118, sort_dicts=True)}\n'
    (root/'learner'/'_texts.py').write_text(text, encoding='utf-8')
