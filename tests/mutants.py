"""Mutants of callbacks: one letter of a name is wrong, or a method stands at the wrong event. Made of source, run in a
small fit"""
import ast,inspect,keyword,linecache,re,textwrap,warnings
from math import cos,pi # noqa: F401, callbacks of the tutorials use them
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from fastcore.nbio import read_nb
from learner.all import *

letters = 'abcdefghijklmnopqrstuvwxyz'

def misspelt(name, rng):
    "`name` with one mistake: a letter left out, another one, one too many, or two that have changed places"
    if name.strip('_')=='' : return name
    i = rng.choice([i for i,c in enumerate(name) if c!='_'])
    kinds = [name[:i]+rng.choice(letters)+name[i+1:], name[:i]+rng.choice(letters)+name[i:]]
    if len(name)>2: kinds.append(name[:i]+name[i+1:])
    if i+1<len(name): kinds.append(name[:i]+name[i+1]+name[i]+name[i+2:])
    return rng.choice(kinds)

known = {k for t in (Callback,Learner,torch,nn,F,torch.Tensor,list,dict,str) for k in dir(t)} | {*dir(synth_learner())}

class Places(ast.NodeVisitor):
    """Where names of attributes, methods, events and arguments stand: line, column, name, kind. A name that nothing
    else mentions cannot be known to be wrong, such as that of a result for the user"""
    def __init__(self, src):
        self.lines,self.found = src.splitlines(),[]
        self.visit(ast.parse(src))
        names = [o[2] for o in self.found]
        self.found = [o for o in self.found if o[3]=='event'
            or ((names.count(o[2])>1 or o[2] in known) and (len(o[2])>2 or o[2] in known))]
    def add(self, line, col, name, kind):
        assert self.lines[line-1][col:col+len(name)]==name, (self.lines[line-1], col, name)
        self.found.append((line, col, name, kind))
    def visit_Attribute(self, o):
        root = o
        while isinstance(root, ast.Attribute): root = root.value
        own = (getattr(o.value, 'id', '') in ('self','learn') or getattr(o.value, 'attr', '')=='learn'
            or getattr(root, 'id', '') in ('torch','nn','F'))
        if not o.attr.startswith('__') and own:
            self.add(o.end_lineno, o.end_col_offset-len(o.attr), o.attr, 'attribute')
        self.generic_visit(o)
    def visit_FunctionDef(self, o):
        if not o.name.startswith('__'):
            col = self.lines[o.lineno-1].index('def ', o.col_offset)+4
            self.add(o.lineno, col, o.name, 'event' if o.name in event else 'method')
        used = {n.id for n in ast.walk(o) if isinstance(n, ast.Name)}
        for a in [a for a in (*o.args.args[1:], *o.args.kwonlyargs) if a.arg in used]:
            self.add(a.lineno, a.col_offset, a.arg, 'argument')
        self.generic_visit(o)
    def visit_Call(self, o):
        if getattr(o.func, 'id', '')!='dict': # its keys are no arguments
            for k in o.keywords:
                if k.arg: self.add(k.lineno, k.col_offset, k.arg, 'argument')
        self.generic_visit(o)
    def visit_Lambda(self, o): self.generic_visit(o)

def replaced(src, line, col, old, new):
    lines = src.splitlines()
    lines[line-1] = lines[line-1][:col]+new+lines[line-1][col+len(old):]
    return '\n'.join(lines)

_n = 0
def define(src, name, names):
    "The class of that name, of source, as a module of the user's has it"
    global _n
    _n += 1
    fname = f'<mutant {_n}>'
    linecache.cache[fname] = len(src),None,src.splitlines(True),fname
    ns = dict(names, __name__='mutants')
    exec(compile(src, fname, 'exec'), ns)
    return ns[name]

def of_notebook(path, name):
    "Source of a class in a notebook"
    for c in read_nb(Path(__file__).parent.parent/'nbs'/path).cells:
        if c.cell_type=='code' and re.search(rf'^class {name}\(', c.source, re.M):
            tree = ast.parse(c.source)
            o = next(o for o in tree.body if getattr(o, 'name', '')==name)
            return '\n'.join(c.source.splitlines()[o.lineno-1:o.end_lineno])

def of_library(cls): return textwrap.dedent(inspect.getsource(cls)), vars(inspect.getmodule(cls))

# What makes each callback of an argument: its class, or that of a mutant
built_in = dict(TrainEvalCallback=lambda c: c(), RNNCallback=lambda c: c(), ModelResetter=lambda c: c(),
    PrintProgress=lambda c: c(), MapBatch=lambda c: c(lambda b: (b[0]*2, b[1])),
    MapPred=lambda c: c(lambda o: (o[0]/2, *o[1:])),
    ActivationStats=lambda c: c(every=1), ChannelsLast=lambda c: c(), BnFreeze=lambda c: c(),
    CollectDataCallback=lambda c: c(), MixUp=lambda c: c(.4), FetchPredsCallback=lambda c: c(),
    FreezeSchedule=lambda c: c({0: -1, 1: 0}), MCDropoutCallback=lambda c: c(),
    MicroBatch=lambda c: c(3), ShortEpochCallback=lambda c: c(.8), EMA=lambda c: c(.9),
    SWA=lambda c: c(.3, every=1, lr=.02), GradientAccumulation=lambda c: c(12), MixedPrecision=lambda c: c('bf16'),
    GradientClip=lambda c: c(.1), TerminateOnNaNCallback=lambda c: c(),
    CSVLogger=lambda c: c(), ParamScheduler=lambda c: c(dict(mom=SchedCos(.9, .5))), Warmup=lambda c: c(3),
    SaveModelCallback=lambda c: c(), EarlyStoppingCallback=lambda c: c(patience=1), Sanity=lambda c: c(1),
    Validate=lambda c: c(2, unit='iter'), HookCallback=lambda c: c(hook=lambda m,i,o: None))
tutorials = dict(Cosine=('tutorials/01_digits', lambda c: c(.01)), Jitter=('tutorials/01_digits', lambda c: c()),
    SAM=('tutorials/06_sam', lambda c: c()), NoiseCallback=('tutorials/from_fastai', lambda c: c(.05)),
    GradNorm=('tutorials/from_pytorch_accelerated', lambda c: c()),
    Every2nd=('tutorials/from_pytorch_accelerated', lambda c: c()),
    Distill=('recipes/12_distillation', lambda c: c(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), .5)),
    FGSM=('recipes/13_fgsm', lambda c: c(.1)))

def source(name):
    "Source of a callback, and the variables around it"
    if name in built_in: return of_library(globals()[name])
    return of_notebook(f'{tutorials[name][0]}.ipynb', name),globals()

class Net(nn.Module):
    "A classifier of small images with norms, dropout and a state"
    def __init__(self, several):
        super().__init__()
        self.body,self.head = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(.2),
            nn.Flatten()),nn.Linear(64, 3)
        self.seen,self.several = 0.,several
    def reset(self): self.seen = 0.
    def forward(self, x):
        h = self.body(x)
        self.seen = .5*self.seen + h.detach().mean()
        return (self.head(h)+.01*self.seen, [h], [h]) if self.several else self.head(h)+.01*self.seen

def split(m): return [[*m.body.parameters()], [*m.head.parameters()]]
def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(6, 1, 4, 4, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(n)]

def fitted(cls, name, path):
    """A fit of one epoch with a callback of `cls`, in the place of the one called `name`: what is told, and what
    became of it"""
    torch.manual_seed(0)
    make = built_in.get(name) or tutorials[name][1]
    several = name not in tutorials and name!='MapBatch'
    base = [TrainEvalCallback, Recorder, *([RNNCallback] if several else []), ModelResetter]
    cbs = [*(o for o in base if o.__name__!=name), make(cls)]
    dls = DataLoaders(batches(5, 0), batches(2, 1), device='cpu')
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        learn = Learner(dls, Net(several), F.cross_entropy,
            opt_func=lambda ps,lr=.05: torch.optim.SGD(ps, lr=lr, momentum=.9), splitter=split, path=path,
            metrics=accuracy, default_cbs=False, cbs=cbs)
        learn.fit(1)
    rows = ([{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
        if hasattr(learn, 'recorder') else [])
    return [str(o.message) for o in told],(str([p.tolist() for p in learn.model.state_dict().values()]),str(rows))

def letters_wrong(name, rng):
    "Endless mutants of one callback: kind, what was changed, source"
    src,_ = source(name)
    places = Places(src).found
    while True:
        line,col,old,kind = rng.choice(places)
        new = misspelt(old, rng)
        if (new!=old and new.isidentifier() and not keyword.iskeyword(new)
                and sorted((old, new), key=len)[0]+'s'!=max(old, new, key=len)):
            yield kind,f'{old} → {new}',replaced(src, line, col, old, new)

# Where a value of the batch can be read, and where a change of it takes effect. Everywhere else is a wrong hook for a
# method that does so
in_loop = [ev for ev,_ in moments() if not ev.startswith('after_cancel')]
batch = '''after_draw before_batch after_pred after_loss before_backward after_backward before_step after_step
    before_zero_grad after_zero_grad after_batch'''.split()
def between(first, last): return batch[batch.index(first):batch.index(last)+1]
no_hook = dict(cleanup=['cleanup_batch','cleanup_backward','cleanup_step'])
writable = dict(batch=['after_draw'], x=['before_batch'], xb=['before_batch'],
    yb=between('before_batch', 'after_batch'), pred=between('after_pred', 'after_batch'),
    loss_grad=between('after_loss', 'before_backward'))
readable = dict(pred='after_pred', loss='after_loss', loss_grad='after_loss', grad='after_backward')

def wrong_events(text):
    "Events at which a method with this source has nothing to work with, or works in vain"
    written = [k for k in writable if re.search(rf'learn\.{k}\b[^=\n]*(?<![=!<>])=(?!=)', text)]
    read = [k for k in readable if re.search(rf'(?<!_)\b(self|learn|p|o|self\.learn)\.{k}\b(?!\s*=[^=])', text)
        and not re.search(rf'{k} is (not )?None', text)]
    wrong = {ev for k in written for ev in in_loop if ev not in writable[k] and ev not in no_hook['cleanup']}
    return wrong | {ev for k in read
        for ev in ('before_fit','before_epoch','before_train',*batch[:batch.index(readable[k])])}

def moved(name, rng):
    "Mutants with a method at a wrong event, in random order"
    src,_ = source(name)
    hooks = [o for o in Places(src).found if o[3]=='event']
    cls = ast.parse(src).body[0]
    bodies = {o.name:ast.get_source_segment(src, o) for o in cls.body if isinstance(o, ast.FunctionDef)}
    todo = [(o, ev) for o in hooks for ev in sorted(wrong_events(bodies[o[2]])) if ev not in bodies]
    rng.shuffle(todo)
    for (line,col,old,_),new in todo: yield 'hook',f'{old} → {new}',replaced(src, line, col, old, new)
