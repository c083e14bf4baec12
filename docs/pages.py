"""The map of the site, and what the page of a part shows of its chapters: a picture and a list

Nothing but the map is written by hand: names, order and one-line summaries are read from the notebooks, arrows from
the imports of the modules. A page that lists others makes the list in a hidden cell and stores it, so that it reads
the same on the site and in a clone.
"""
import ast,fnmatch,re
from dataclasses import dataclass
from io import BytesIO
from itertools import permutations
from pathlib import Path
from textwrap import fill
from fastcore.nbio import read_nb
from IPython.display import Image,Markdown

root = Path(__file__).parent.parent
nbs,lib = root/'nbs',root/'learner'

@dataclass
class Page:
    "A notebook by its first cell, `# title` and `> summary`"
    path:Path
    title:str
    summary:str
    @classmethod
    def read(cls, path):
        first = read_nb(path).cells[0].source
        title,summary = (re.search(rf'^{mark} (.+)', first, re.M) for mark in '#>')
        if not (title and summary): raise ValueError(f'{path} has to open with `# Title` and `> one-line summary`')
        return cls(path, title[1], summary[1])

def directive(name, source):
    "The text of a directive of a cell: one line, or several that begin alike"
    return ' '.join(re.findall(rf'^#\| {name}: (.+)', source, re.M))

def parts() -> list[str]:
    "Names of the parts, in the order in which `learner.all` imports them"
    return list(dict.fromkeys(re.findall(r'^from \.(\w+)\.', (lib/'all.py').read_text(encoding='utf-8'), re.M)))

# The map of the site: what stands below a page in the side bar, in this order, as patterns of paths in nbs/.
# A page `FOLDER/index` that is not listed has the other pages of its folder below it
below = {
    'index': ['start/index', 'tutorials/index', 'howto/index', 'concepts/index', 'reference/index', 'migration/index',
        'performance', 'built/index', 'project/index'],
    'tutorials/index': ['tutorials/[0-9]*'],
    'howto/index': ['howto/*', 'recipes/index'],
    'reference/index': ['all', 'reference/*'],
    'migration/index': ['tutorials/from_*'],
    'built/index': [f'{o}/index' for o in parts()]}

def pages_below(docname, docs) -> list[str]:
    "The pages among `docs` that stand below `docname` in the side bar"
    folder,_,name = docname.rpartition('/')
    patterns = below.get(docname, [f'{folder}/*'] if name=='index' else [])
    found = dict.fromkeys(o for p in patterns for o in fnmatch.filter(sorted(docs), p))
    return [o for o in found if o!=docname]

# The parts in storeys: each builds on those above it
storeys = {
    'What all parts share': ['core','values'],
    'What a run is made of': ['data','model','measure'],
    'The loop': ['record','restore','loop'],
    'Ways to train': ['schedule','technique','speed'],
    'What comes out': ['result','resume'],
    'Why it came out so': ['inspect','diagnose','compare'],
    'More than one process': ['dist']}

def part_page(part) -> Page: return Page.read(nbs/part/'index.ipynb')

def chapters(part) -> dict[str, Page]:
    "Chapters of a part in order, by the name of their module"
    return {fn.stem.split('_', 1)[1]:Page.read(fn) for fn in sorted((nbs/part).glob('[0-9]*.ipynb'))}

def imported(part, mod) -> set[str]:
    "The modules of ours that a module imports, such as `core.checks`"
    tree = ast.parse((lib/part/f'{mod}.py').read_text(encoding='utf-8'))
    res = set()
    for o in tree.body:
        if not (isinstance(o, ast.ImportFrom) and o.level): continue
        names = [o.module] if o.module else [a.name for a in o.names] # `from . import checks`
        res |= {f'{part}.{n}' if o.level==1 else n for n in names}
    return {o for o in res if o.split('.')[0] in parts()}

def needed(part, mod) -> set[str]:
    "The chapters of its own part that a chapter imports. A helper module without a chapter stands for what it imports"
    res,chs = set(),chapters(part)
    for o in imported(part, mod):
        p,_,name = o.partition('.')
        if p==part: res |= {name} if name in chs else needed(part, name)
    return res

def arrows(part) -> dict[str, set[str]]:
    "What each chapter imports, without the imports that follow from others"
    direct = {o:needed(part, o) for o in chapters(part)}
    def reach(o): return direct[o].union(*map(reach, direct[o]))
    return {o:{p for p in ps if not any(p in reach(q) for q in ps-{p})} for o,ps in direct.items()}

def rows(arrows) -> list[list[str]]:
    "Chapters in rows: each is below what it imports, and as close as possible to those that import it"
    row = {}
    for o,ps in arrows.items(): row[o] = max((row[p]+1 for p in ps), default=0)
    for o in reversed(arrows): row[o] = min((row[p]-1 for p in arrows if o in arrows[p]), default=row[o])
    return [[o for o in row if row[o]==i] for i in range(max(row.values())+1)]

def columns(rows, arrows) -> dict[str, int]:
    "A column for each chapter, so that arrows are short"
    n,col = max(map(len, rows)),{}
    for row in rows:
        def dist(cols): return sum((c-col[p])**2 for o,c in zip(row, cols) for p in arrows[o]),cols
        col |= zip(row, min(permutations(range(n), len(row)), key=dist))
    return col

width,height,gap,rise = 1.9,.6,.25,.35 # of a box, and between two boxes, in inches

def canvas(w, h):
    "A figure of so many inches, and its axes, with the origin at the top left"
    from matplotlib.figure import Figure
    fig = Figure((w+.1, h+.1), dpi=150)
    ax = fig.add_axes((0,0,1,1))
    ax.set(xlim=(-.05, w+.05), ylim=(-h-.05, .05))
    ax.axis('off')
    return fig,ax

def draw(part):
    "The chapters of a part in boxes. An arrow leads from a chapter to one that it imports"
    chs,to = chapters(part),arrows(part)
    lines = rows(to)
    col = columns(lines, to)
    left = (4-max(map(len, lines)))/2*(width+gap)
    x = {o:left+c*(width+gap)+width/2 for o,c in col.items()}
    y = {o:-i*(height+rise)-height/2 for i,line in enumerate(lines) for o in line}
    fig,ax = canvas(4*width+3*gap, len(lines)*(height+rise)-rise)
    for i,(o,ps) in enumerate(to.items(), 1):
        for p in sorted(ps): ax.annotate('', (x[p], y[p]-height/2), (x[o], y[o]+height/2), zorder=0,
            arrowprops=dict(arrowstyle='-|>', color='#777', lw=1.2, shrinkA=0, shrinkB=0))
        ax.text(x[o], y[o]+.09, fill(chs[o].title, 26), ha='center', va='center', fontsize=9, linespacing=1)
        ax.text(x[o], y[o]-.2, f'{i} {o}', ha='center', va='center', fontsize=7, family='monospace', color='#555')
        ax.add_patch(box(x[o], y[o]))
    return fig

def box(x, y):
    from matplotlib.patches import FancyBboxPatch
    return FancyBboxPatch((x-width/2+.05, y-height/2+.05), width-.1, height-.1, boxstyle='round,pad=.05',
        facecolor='#e8f0fb', edgecolor='#4a6fa5', lw=1)

def as_image(fig):
    png = BytesIO()
    fig.savefig(png, format='png')
    return Image(png.getvalue())

def listing(part) -> str:
    "The chapters of a part with their summaries, and the parts that it builds on, as Markdown"
    chs = chapters(part)
    items = [f'{i}. [{o.title}]({o.path.name}): {o.summary}' for i,o in enumerate(chs.values(), 1)]
    below = {m.split('.')[0] for o in chs for m in imported(part, o)}
    links = [f'[{o}](../{o}/index.ipynb)' for o in parts() if o in below-{part}]
    around = f'The part imports from: {", ".join(links)}.' if links else 'The part imports from no other part.'
    return '\n'.join([*items, '', around])

doors = 'start','tutorials','howto','concepts','reference','migration'

def door_list() -> str:
    "The six pages to begin with and their summaries, as Markdown"
    found = {o:Page.read(nbs/o/'index.ipynb') for o in doors}
    return '\n'.join(f'- [{page.title}]({o}/index.ipynb): {page.summary}' for o,page in found.items())

def draw_storeys():
    "The parts in boxes, storey by storey, each with the number of its chapters"
    step,n = height+.15,max(map(len, storeys.values()))
    fig,ax = canvas((n+1)*width+(n-1)*gap, len(storeys)*step-.15)
    for i,(name,of_storey) in enumerate(storeys.items()):
        y = -i*step-height/2
        ax.text(0, y, name, va='center', fontsize=9)
        for j,o in enumerate(of_storey):
            x = width+j*(width+gap)+width/2
            ax.text(x, y+.09, part_page(o).title, ha='center', va='center', fontsize=9)
            ax.text(x, y-.15, f'{o}/  {len(chapters(o))} chapters', ha='center', va='center', fontsize=7,
                family='monospace', color='#555')
            ax.add_patch(box(x, y))
    return fig

def by_storey() -> str:
    "The parts with their summaries, storey by storey, as Markdown"
    def line(o): return f'- [{part_page(o).title}](../{o}/index.ipynb): {part_page(o).summary}'
    return '\n\n'.join(f'**{name}**\n\n' + '\n'.join(map(line, ps)) for name,ps in storeys.items())

def page_list(docname) -> str:
    "The pages below one, with their summaries, as Markdown"
    docs = [o.relative_to(nbs).with_suffix('').as_posix() for o in nbs.glob('*/*.ipynb')]
    found = {o:Page.read(nbs/f'{o}.ipynb') for o in pages_below(docname, [*docs, 'all'])}
    return '\n'.join(f'- [{page.title}](../{o}.ipynb): {page.summary}' for o,page in found.items())

# What pages call in hidden cells: each displays what it returns
def picture_of(part): return as_image(draw(part))
def list_part(part): return Markdown(listing(part))
def picture_of_storeys(): return as_image(draw_storeys())
def list_storeys(): return Markdown(by_storey())
def list_pages(docname): return Markdown(page_list(docname))
