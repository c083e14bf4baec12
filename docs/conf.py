"Sphinx settings. The pages are the notebooks themselves: `chapters.py` prepares each one as it is read"
import re,sys
from html import escape
from importlib import import_module
from pathlib import Path
from docutils.utils.math.latex2mathml import tex2mathml
from docutils import nodes
from nbdev.config import get_config
from sphinx.errors import ExtensionError

root = Path(__file__).parent.parent
sys.path[:0] = [str(root), str(root/'docs')] # this tree, whatever is installed

from pages import Page

cfg = get_config(root)
project = cfg.title
release = import_module(cfg.lib_path.name).__version__
html_title = f'{project} {release}'
author = copyright = 'The learner authors'
extensions = ['myst_nb', 'sphinx.ext.viewcode', 'sphinx.ext.githubpages', 'chapters', 'llms']
exclude_patterns = ['**.ipynb_checkpoints']

nb_execution_mode = 'off'
nb_merge_streams = True
nb_output_stderr = 'remove'
nb_render_markdown_format = 'myst' # links in outputs are checked, as all others
myst_enable_extensions = ['dollarmath', 'colon_fence', 'alert']
myst_heading_anchors = 4

html_theme = 'furo'
html_static_path = ['_static']
html_logo = html_favicon = '_static/favicon.svg'
html_css_files = ['custom.css']
html_search_scorer = str(root/'docs/scorer.js')
html_show_sourcelink = html_show_sphinx = html_copy_source = html_use_index = False
pygments_style,pygments_dark_style = 'friendly','github-dark'
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 84
toc_object_entries_show_parents = 'hide'

def mathml(block):
    def visit(self, node):
        self.body.append(tex2mathml(node.astext(), as_block=block))
        raise nodes.SkipNode
    return visit, None
html_math_renderer = 'mathml' # read by browsers as it is: no script from another host

remote = re.compile(r'<(?:script|link|img|source|iframe)\b[^>]*\b(?:src|href)=["\']?(?:https?:)?//')

def stays_here(app, exc):
    "Reading a page asks no other host for anything"
    bad = [str(f) for f in Path(app.outdir).rglob('*.html') if remote.search(f.read_text(encoding='utf-8'))]
    if bad: raise ExtensionError(f'These pages load something from another host: {", ".join(bad)}')

def describe(app, pagename, templatename, context, doctree):
    "What search engines and previews say of a page: the line below its title"
    path = root/'nbs'/f'{pagename}.ipynb'
    if not path.exists(): return
    summary = re.sub(r'\[([^]]+)\]\([^)]*\)|[`*]', r'\1', Page.read(path).summary)
    context['metatags'] += f'<meta name="description" content="{escape(summary)}"/>'

back_link = re.compile(r'(class="viewcode-back" href="[^"#]*?([^"#./][^"#]*)\.html#)([^"]+)"')

def lead_back(app, pagename, templatename, context, doctree):
    """Links from the source to entries. Sphinx takes the name of one module for all entries of a file, where some of
    them stand under that of another"""
    if not pagename.startswith('_modules/'): return
    entries = app.env.domains.python_domain.objects
    def own(m):
        name = m[3].split('.', 3)[-1]
        found = [o.node_id for k,o in entries.items() if o.docname==m[2] and k.split('.', 3)[-1]==name]
        return f'{m[1]}{found[0] if found else ""}"'
    context['body'] = back_link.sub(own, context['body'])

def setup(app):
    app.add_html_math_renderer('mathml', mathml(False), mathml(True))
    app.connect('html-page-context', describe)
    app.connect('html-page-context', lead_back)
    app.connect('build-finished', stays_here)
