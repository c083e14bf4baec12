"""Lists that are made when the site is built: a page asks for one with the directive `{listing} name`

Each is a function here, which yields lines of Markdown. Nothing in them is written by hand but the words for events."""
import re
from docutils import nodes
from fastcore.docments import docstring
from sphinx.util.docutils import SphinxDirective
import catalogue as cat
from catalogue import every,lib,listens,names_of,summary
from entries import api
from pages import Page,chapters,nbs,pages_below,part_page,parts
from scopes import picture

def cell(s): return s.replace('|', '\\|').replace('\n', ' ')

def table(heads, rows, cls='names'):
    "A table, with a class for its looks"
    yield from ('', '```{rst-class} '+cls, '```', '', f'| {" | ".join(heads)} |', '|---'*len(heads)+'|')
    for row in rows: yield f'| {" | ".join(map(cell, row))} |'
    yield ''

def pages(env):
    "The pages below this one, with their summaries"
    for o in pages_below(env.docname, env.found_docs):
        page = Page.read(nbs/f'{o}.ipynb')
        yield f'- [{page.title}](/{o}.ipynb): {page.summary}'

def as_called(name): return name.replace('Learner.', 'learn.')

def rows_of(mod, keep=lambda o: True): return [(f'`{as_called(nm)}`', summary(o, mod, nm)) for nm,o in names_of(mod).items() if keep(o)]

def by_name(env):
    "All public names from A to Z"
    found = {nm:summary(o, mod, nm) for mod in cat.chapters() for nm,o in names_of(mod).items() if '.' not in nm}
    yield f'{len(found)} names, besides the [methods of a Learner](/reference/02_learner.ipynb).'
    letters = sorted({o[0].upper() for o in found})
    for letter in letters:
        yield f'\n## {letter}\n'
        yield from table(['name', 'what it is'], [(f'`{o}`', found[o]) for o in sorted(found, key=str.lower) if o[0].upper()==letter])

def chapter_of(mod):
    "The page of a module"
    part,name = mod.split('.')
    return chapters(part)[name]

def titled(mods, keep=lambda o: True):
    "What each chapter gives to users, under its title"
    for mod in mods:
        rows,page = rows_of(mod, keep),chapter_of(mod)
        if not rows: continue
        yield f'\n**[{page.title}](/{page.path.relative_to(nbs).as_posix()})**: {page.summary}\n'
        yield from table(['name', 'what it is'], rows)

def by_task(env):
    "All public names, by part and chapter: the loop first, and last what it stands on"
    order = sorted(parts(), key=lambda o: {'loop':-1, 'core':1}.get(o, 0))
    for part in order:
        page = part_page(part)
        yield f'\n## {page.title}\n\n{page.summary}.'
        yield from titled(o for o in cat.chapters() if o.split('.')[0]==part)

def learner(env):
    "Methods of a Learner by chapter, then the entries of those that it inherits"
    found = cat.methods()
    known = cat.chapters()
    loop = [o for o in known if o.startswith('loop.')][::-1] # from the Learner back to the loop
    mods = sorted({*found.values()}, key=lambda o: (o.startswith('core.'), [*loop, *known].index(o)))
    for mod in mods:
        page = chapter_of(mod)
        yield f'\n**[{page.title}](/{page.path.relative_to(nbs).as_posix()})**\n'
        yield from table(['method', 'what it does'],
            [(f'`learn.{k}`', summary(getattr(every.Learner, k))) for k,m in found.items() if m==mod])
    yield '\n## Inherited methods\n\nMethods that a chapter adds to the Learner have their entries there, the others here.\n'
    for k in found:
        if cat.targets()[f'Learner.{k}']==f'{lib}.loop.learner.Learner.{k}' and k not in vars(every.Learner): yield api(getattr(every.Learner, k), f'Learner.{k}', 'loop.learner', depth=4)+'\n'

def purpose(cls): return summary(cls)

def order_of(cls): return f'{cls.order:g}' if isinstance(cls.order, (int,float)) else 'its own'

def callbacks(env):
    "All callbacks, with their events and order"
    for part in parts():
        rows = [(f'`{k}`', purpose(o), ' '.join(f'`{ev}`' for ev in listens(o)) or '–', order_of(o))
            for k,o in cat.callbacks().items() if o.__module__.split('.')[1]==part]
        if not rows: continue
        yield f'\n## {part_page(part).title}\n'
        yield from table(['callback', 'what it does', 'events', 'order'], rows, 'names callbacks')

def better(o): return {True:'higher', False:'lower', None:'–'}[getattr(o, 'higher_is_better', None)]

def is_metric(o): return getattr(o, 'higher_is_better', None) is not None and 'Abstract' not in (docstring(o) or '')

def metrics(env):
    "All metrics, and which of their values are better"
    for mod in cat.chapters():
        found = {nm:o for nm,o in names_of(mod).items() if is_metric(o) and mod.startswith('measure.')}
        if not found: continue
        page = chapter_of(mod)
        yield f'\n## {page.title}\n'
        yield from table(['metric', 'what it measures', 'better'], [(f'`{k}`', summary(o), better(o)) for k,o in found.items()])

def schedules(env):
    "Schedules, the callbacks that apply them, and the fits that have one built in"
    yield from titled(o for o in cat.chapters() if o in ('schedule.schedules','schedule.schedulers','schedule.fits'))

def errors(env):
    "Exceptions and warnings"
    found = {nm:o for mod in cat.chapters() for nm,o in names_of(mod).items()
        if isinstance(o, type) and issubclass(o, BaseException)}
    for head,keep in {'Signals that end a scope': lambda o: issubclass(o, every.CancelException),
            'Warnings': lambda o: issubclass(o, Warning),
            'Errors': lambda o: not issubclass(o, (every.CancelException,Warning))}.items():
        yield f'\n## {head}\n'
        yield from table(['name', 'when'], [(f'`{k}`', summary(o)) for k,o in found.items() if keep(o)])

words = dict(fit='the whole fit', epoch='one epoch: training, then validation', train='all training batches of an epoch',
    validate='all batches of a validation loader', batch='one batch', backward='the backward pass', step='the optimizer step')
points = dict(before_draw='A batch is about to be taken from the loader; also before the draw that finds it empty',
    after_draw='The batch has come, and is on the device', after_pred='The model has been run', after_loss='The loss is computed',
    before_zero_grad='Gradients are about to be cleared', after_zero_grad='Gradients are cleared',
    after_create='The callback is attached to a learner', before_row='The recorder is about to write a row of results',
    after_row='A row of results is written', before_sanity='`Sanity` is about to validate a few batches',
    after_sanity='`Sanity` has validated', before_save='`learn.save` is about to write `saved`',
    after_save='`learn.save` has written the file', before_load='`learn.load` is about to read the file',
    after_load='`learn.load` has put everything in place', before_save_state='`learn.save_state` is about to write `saved`',
    after_save_state='`learn.save_state` has written the file', before_load_state='`learn.load_state` is about to read the file',
    after_load_state='`learn.load_state` has put everything in place', after_exception='An error or Ctrl-C leaves the loop, and is in `exc`')

def when(ev):
    "When an event fires, in words"
    if ev in points: return points[ev]
    kind,scope = ev.rsplit('_', 1)
    return dict(before=f'Before {words[scope]}', after_cancel=f'Only if the scope was cancelled: `{every.cancels[scope].__name__}`',
        after='The scope is over, finished or cancelled',
        cleanup='Always, also after an error or Ctrl-C, callbacks in reverse: undo what you changed')[kind]

attrs = ('mode scopes n_epoch epoch n_train pct_train train_iter opt_step to_validate results training dl dl_name '
    'n_iter iter idxs batch xb yb x y pred loss loss_grad run_config').split()

def new_at():
    "Attributes that are new or have changed at each event, as seen by a callback in a short fit"
    seen,before = {},{}
    def look(ev):
        def f(self):
            now = {o:v for o in attrs if (v := getattr(self.learn, o, None)) is not None}
            now = {o:(str(v) if isinstance(v, (int,float,str,list,dict)) else id(v)) for o,v in now.items()}
            seen.setdefault((ev, 'train' if self.learn.training else 'validate'), [o for o in now if before.get(o)!=now[o]])
            before.clear(), before.update(now)
        return f
    probe = type('Probe', (every.Callback,), {ev:look(ev) for ev in every.event if ev!='after_create'} | dict(order=1000))
    every.synth_learner().fit(1, cbs=probe())
    return seen

def ticks(names): return ' '.join(f'`{o}`' for o in names) or '–'

def events(env):
    "All events: when each fires, what is new there, what can be cancelled, who listens"
    new,listening = new_at(),{ev:[k for k,o in cat.callbacks().items() if 'Abstract' not in (o.__doc__ or '') and hasattr(o, ev)] for ev in every.event}
    def row(ev, running, phase):
        found = new.get((ev, phase), new.get((ev, 'train'), []))
        return f'`{ev}`',when(ev),ticks(found),', '.join(running) or '–',ticks(listening[ev])
    shown,rows = set(),[]
    for ev,running in every.moments():
        if ev in shown: continue
        shown.add(ev)
        rows.append(row(ev, running, 'validate' if 'validate' in running or ev.endswith('validate') else 'train'))
    heads = 'event','when','new or changed there','can be cancelled','who listens'
    yield '\n### Events of the loop, in order\n'
    yield from table(heads, rows, 'names events')
    yield '\n### Events outside of the loop\n'
    yield from table((heads[0],heads[1],heads[4]), [(f'`{o}`', when(o), ticks(listening[o])) for o in every.outside_loop], 'names events')

def scopes(env):
    "The loop as a picture"
    yield '```{raw} html\n' + picture() + '\n```'

listings = {f.__name__:f for f in (pages,by_name,by_task,learner,callbacks,metrics,schedules,errors,events,scopes)}

class Listing(SphinxDirective):
    "`{listing} name` stands for what the function `name` says in Markdown"
    required_arguments = 1
    def run(self):
        found = self.parse_text_to_nodes('\n'.join(listings[self.arguments[0]](self.env)), allow_section_headings=True)
        if self.arguments[0]=='events':
            for o in found: self.name_events(o)
        return found

    def name_events(self, node):
        "Make the row of each event its entry"
        for row in node.findall(nodes.row):
            ev = row[0].astext()
            if ev not in every.event: continue
            row[0]['ids'].append(f'event.{ev}')
            self.env.domains.python_domain.note_object(f'{lib}.core.events.event.{ev}', 'attribute', f'event.{ev}', location=row)
