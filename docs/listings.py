"""Lists that are made when the site is built: a page asks for one with the directive `{listing} name`

Each is a function here, which yields lines of Markdown. Nothing in them is written by hand."""
import base64,io,re
from collections import Counter
from functools import cache
from html import escape
from pathlib import Path
import numpy as np
from docutils import nodes
from fastcore.docments import docstring
from fastcore.nbio import read_nb
from PIL import Image
from sphinx.util.docutils import SphinxDirective
import catalogue as cat
import events,state
from catalogue import every,lib,listens,names_of,summary
from entries import api
from pages import Page,chapters,directive,door_list,nbs,pages_below,part_page,parts
from scopes import caption,picture

def cell(s): return s.replace('|', '\\|').replace('\n', ' ')

def table(heads, rows, cls='names'):
    "A table, with a class for its looks"
    yield from ('', '```{rst-class} '+cls, '```', '', f'| {" | ".join(heads)} |', '|---'*len(heads)+'|')
    for row in rows: yield f'| {" | ".join(map(cell, row))} |'
    yield ''

def doors(env):
    "The six pages to begin with, as cards"
    yield from (':::{container} doors', door_list().replace('): ', ') '), ':::')

def pictures(nb):
    "The pictures that a notebook has stored, with their words"
    for c in nb.cells:
        alt = directive('fig-alt', c.source)
        for o in c.get('outputs', ()):
            if 'image/png' not in o.get('data', ()): continue
            png = base64.b64decode(''.join(o['data']['image/png']))
            yield Image.open(io.BytesIO(png)).convert('RGB'),alt

card = 1.7 # width of the picture on a card, by its height

def last_part(img):
    "A picture that fits on a card: of a row of plots the last ones, from a gap on, because results come last"
    most = round(card*img.height)
    if img.width<1.3*most: return img
    white = np.flatnonzero((np.asarray(img)==255).all((0,2)))
    gaps = np.split(white, np.flatnonzero(np.diff(white)>1)+1)
    at = [o[-1] for o in gaps if len(o)>4 and most/2<=img.width-o[-1]<=most]
    return img.crop((at[0] if at else img.width-most, 0, img.width, img.height))

def gallery(env):
    "Cards for the pages below, each with that of its own pictures which fits best"
    yield from ('```{raw} html', '<div class="gallery">')
    for doc in pages_below(env.docname, env.found_docs):
        page = Page.read(nbs/f'{doc}.ipynb')
        img,alt = min(pictures(read_nb(page.path)), key=lambda o: abs(o[0].width/o[0].height-card),
            default=(None,''))
        name = f'{doc.replace("/", "_")}.png'
        if img:
            thumbs = Path(env.app.outdir)/'_images'/'thumbnails'
            thumbs.mkdir(parents=True, exist_ok=True)
            last_part(img).save(thumbs/name)
        src,cls = (f'../_images/thumbnails/{name}','') if img else ('../_static/favicon.svg','none')
        tag = f'<img src="{src}" class="{cls}" alt="{escape(alt or page.title)}" loading="lazy"/>'
        href = env.app.builder.get_relative_uri(env.docname, doc)
        yield (f'<a class="card" href="{href}"><span class="thumb cell_output">{tag}</span>'
            f'<strong>{inline(page.title)}</strong><span>{inline(page.summary)}</span></a>')
    yield from ('</div>', '```')

def inline(s): return re.sub('`([^`]+)`', r'<code>\1</code>', escape(s))

def as_called(name): return name.replace('Learner.', 'learn.')

def rows_of(mod, keep=lambda nm: True):
    return [(f'`{as_called(nm)}`', summary(o, mod, nm)) for nm,o in names_of(mod).items() if keep(nm)]

def code_of(c):
    "The code that readers of a cell see: of a text, what stands in backticks"
    if c.cell_type=='code': return '' if 'hide' in c.directives else c.source
    return ' '.join(re.findall(r'`+[^`]+`+', c.source))

@cache
def guide_words():
    "How often each word is there in the code of the pages that show how to use the library"
    found = [o for part in ('start','howto','recipes','tutorials') for o in (nbs/part).glob('*.ipynb')]
    return Counter(w for fn in found for c in read_nb(fn).cells for w in re.findall(r'\w+', code_of(c)))

def n_uses(nm): return guide_words()[nm.rpartition('.')[2]]
def in_guides(nm): return nm.startswith('Learner.') or n_uses(nm)

def by_name(env):
    "All public names from A to Z"
    found = {nm:summary(o, mod, nm) for mod in cat.chapters() for nm,o in names_of(mod).items() if '.' not in nm}
    yield f'{len(found)} names, besides the [methods of a Learner](/reference/02_learner.ipynb).'
    letters = sorted({o[0].upper() for o in found})
    for letter in letters:
        yield f'\n## {letter}\n'
        names = sorted((o for o in found if o[0].upper()==letter), key=str.lower)
        yield from table(['name', 'what it is'], [(f'`{o}`', found[o]) for o in names])

def chapter_of(mod):
    "The page of a module"
    part,name = mod.split('.')
    return chapters(part)[name]

def titled(mods, keep=lambda nm: True):
    "What each chapter gives to users, under its title; only names that `keep` takes"
    for mod in mods:
        rows,page = rows_of(mod, keep),chapter_of(mod)
        if not rows: continue
        yield f'\n**[{page.title}](/{page.path.relative_to(nbs).as_posix()})**: {page.summary}\n'
        yield from table(['name', 'what it is'], rows)

def by_task(env):
    "All public names, by part and chapter: the loop first, then what it stands on, and last what no guide uses"
    order = sorted(parts(), key=lambda o: {'loop':-1, 'core':1}.get(o, 0))
    for part in order:
        page,mods = part_page(part),[o for o in cat.chapters() if o.split('.')[0]==part]
        names = [*titled(mods[::-1] if part=='loop' else mods, in_guides)] # the Learner before the loop
        if names: yield from (f'\n## {page.title}\n\n{page.summary}.', *names)
    yield '\n## For authors\n\nNames that no guide uses: for authors of callbacks and metrics, and of the library.'
    yield from titled(cat.chapters(), lambda nm: not in_guides(nm))

def learner(env):
    """Methods of a Learner by chapter, those of the loop by use, and last those that no guide uses; then the entries of
    what it inherits, in this order"""
    found = cat.methods()
    by_use = sorted(found, key=n_uses, reverse=True)
    loop = [*dict.fromkeys(found[k] for k in by_use if found[k].startswith('loop.'))]
    mods = sorted({*found.values()}, key=lambda o: (o.startswith('core.'), [*loop, *cat.chapters()].index(o)))
    def is_part(k): return found[k].startswith(('core.','loop.')) and not n_uses(k)
    def row(k): return f'`learn.{k}`',summary(getattr(every.Learner, k))
    users = {m:[k for k in (by_use if m in loop else found) if found[k]==m and not is_part(k)] for m in mods}
    for mod,names in users.items():
        page = chapter_of(mod)
        if not names: continue
        yield f'\n**[{page.title}](/{page.path.relative_to(nbs).as_posix()})**\n'
        yield from table(['method', 'what it does'], map(row, names))
    authors = [k for k in found if is_part(k)]
    yield '\n**Parts of the loop**, for authors of callbacks and subclasses\n'
    yield from table(['method', 'what it does'], map(row, authors))
    home = every.Learner.__module__.partition('.')[2]
    yield '\n## Inherited methods\n\nMethods that a chapter adds to the Learner have their entries there.\n'
    for k in (*(k for names in users.values() for k in names), *authors):
        inherited = k not in vars(every.Learner) and cat.targets()[f'Learner.{k}']==f'{lib}.{home}.Learner.{k}'
        if inherited: yield api(getattr(every.Learner, k), f'Learner.{k}', home, depth=4, owner=every.Learner)+'\n'

def attributes(env):
    "What a Learner holds, and when it can be read"
    def at(since, stays): return {'always':'always', None:'–'}.get(since, f'`{since}`'),'yes' if stays else '–'
    yield from table(['attribute', 'what it is', 'from', 'after the fit'],
        [(f'`{k}`', text, *at(*when)) for k,text,*when in state.rows()], 'names attributes')

def order_of(cls): return f'{cls.order:g}' if isinstance(cls.order, (int,float)) else 'its own'

def callbacks(env):
    "All callbacks, with their events and order"
    for part in parts():
        rows = [(f'`{k}`', summary(o), ticks(listens(o)), order_of(o))
            for k,o in cat.callbacks().items() if o.__module__.split('.')[1]==part]
        if not rows: continue
        yield f'\n## {part_page(part).title}\n'
        yield from table(['callback', 'what it does', 'events', 'order'], rows, 'names callbacks')

def better(o): return {True:'higher', False:'lower', None:'–'}[getattr(o, 'higher_is_better', None)]

def is_metric(o):
    return getattr(o, 'higher_is_better', None) is not None and 'Abstract' not in (docstring(o) or '')

def metrics(env):
    "All metrics, and which of their values are better"
    for mod in cat.chapters():
        found = {nm:o for nm,o in names_of(mod).items() if is_metric(o) and mod.startswith('measure.')}
        if not found: continue
        page = chapter_of(mod)
        yield f'\n## {page.title}\n'
        yield from table(['metric', 'what it measures', 'better'],
            [(f'`{k}`', summary(o), better(o)) for k,o in found.items()])

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

def ticks(names): return ' '.join(f'`{o}`' for o in names) or '–'

def folded(names, most=6, what='attributes'):
    "Names; only their number, if there are many, until the reader opens the list"
    if len(names)<=most: return ticks(names)
    return f'<details><summary>{len(names)} {what}</summary>{ticks(names)}</details>'

def first(names, most=3):
    "The first names; how many more there are is a link to the list of all callbacks, which has their events"
    more = f' and [{len(names)-most} more](/reference/03_callbacks.ipynb)' if len(names)>most else ''
    return ticks(names[:most])+more

def cancellable(running): return ', '.join(running).replace('train, validate', 'train or validate') or '–'

def event_table(env):
    "All events: when each fires, what is new there, what can be cancelled, where else it fires, who listens"
    yield '\n### Events of the loop, in order\n'
    modes = events.modes()
    def row(ev, when, new, running, by):
        return f'`{ev}`',when,folded(new),cancellable(running),ticks(modes.get(ev, ())),first(by)
    yield from table(['event', 'when', 'new or changed', 'can be cancelled', 'also fired by', 'who listens'],
        [row(*o) for o in events.in_loop()], 'names events')
    yield '\n### Events outside of the loop\n'
    yield from table(['event', 'when', 'who listens'],
        [(f'`{ev}`', when, first(by)) for ev,when,by in events.outside()], 'names events')

def scopes(env):
    "The loop as a picture"
    figure = f'<figure class="loop">{picture()}<figcaption>{caption}</figcaption></figure>'
    yield f'```{{raw}} html\n{figure}\n```'

listings = dict(doors=doors, gallery=gallery, by_name=by_name, by_task=by_task, learner=learner,
    attributes=attributes,
    callbacks=callbacks, metrics=metrics, schedules=schedules, errors=errors, events=event_table, scopes=scopes)

class Listing(SphinxDirective):
    "`{listing} name` stands for what the function `name` says in Markdown; readers of the notebook see what is in it"
    required_arguments,has_content = 1,True
    def run(self):
        text = '\n'.join(listings[self.arguments[0]](self.env))
        return self.parse_text_to_nodes(text, allow_section_headings=True)

def name_events(app, doctree):
    "Make the row of each event in the table of events its entry"
    for row in doctree.findall(nodes.row):
        if 'events' not in row.parent.parent.parent['classes'] or (ev := row[0].astext()) not in every.event: continue
        row[0]['ids'].append(f'event.{ev}')
        full = f'{lib}.core.events.event.{ev}'
        app.env.domains.python_domain.note_object(full, 'attribute', f'event.{ev}', location=row)
