"""Lists that are made when the site is built: a page asks for one with the directive `{listing} name`"""
from pathlib import Path
from sphinx.util.docutils import SphinxDirective
from pages import Page,pages_below

nbs = Path(__file__).parent.parent/'nbs'

def pages(env):
    "The pages below this one, with their summaries"
    for o in pages_below(env.docname, env.found_docs):
        page = Page.read(nbs/f'{o}.ipynb')
        yield f'- [{page.title}](/{o}.ipynb): {page.summary}'

listings = dict(pages=pages)

class Listing(SphinxDirective):
    "`{listing} name` stands for what the function `name` says in Markdown"
    required_arguments = 1
    def run(self): return self.parse_text_to_nodes('\n'.join(listings[self.arguments[0]](self.env)))
