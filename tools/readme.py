"""Write README.md from nbs/index.ipynb; with `--check`, only say whether it is up to date

Nothing is run: outputs are those stored in the notebook. Links to files beside it become links into nbs/, and lists
that the site makes when it is built become what they are there.
"""
import base64,re,sys
from pathlib import Path
from nbdev.config import get_config
from nbdev.process import NBProcessor
from nbdev.processors import clean_magics,filter_stream_,hide_,hide_line
from nbdev.processors import populate_language,rm_export,rm_header_dash,strip_ansi

cfg = get_config(Path(__file__).parent)
sys.path[:0] = [str(cfg.config_path), str(cfg.config_path/'docs')]
from pages import door_list
from scopes import caption,picture,title

root,figures = cfg.config_path,'docs/readme'
procs = [populate_language, strip_ansi, hide_line, filter_stream_, rm_header_dash, rm_export, clean_magics, hide_]
link = re.compile(r'(\]\()(?!\w+:|[#/])')
made = re.compile(r'```\{listing\} (\w+)\n```')
mark = '<!-- Written from nbs/index.ipynb: edit that, and run `make lib` -->\n\n'

def from_root(s): return link.sub(rf'\1{cfg.nbs_path.name}/', s)
def fence(s, lang): return f'```{lang}\n{s.rstrip()}\n```'

def output(o, name, files):
    "Markdown for one output; a plot goes to `files`"
    data = {k:''.join(v) for k,v in o.get('data', {}).items()}
    if o['output_type']=='stream': return fence(''.join(o['text']), 'text') if o['name']=='stdout' else ''
    if 'text/markdown' in data: return from_root(data['text/markdown'])
    if 'text/html' in data: return re.sub(r'<style.*?</style>\s*', '', data['text/html'], flags=re.S)
    if 'image/png' not in data: return fence(data['text/plain'], 'text')
    files[f'{figures}/{name}.png'] = base64.b64decode(data['image/png'])
    return f'![]({figures}/{name}.png)'

def listing(name, files):
    "What stands for a list that the site makes: the picture of the loop, or the pages to begin with"
    if name=='doors': return from_root(door_list())
    files[f'{figures}/loop.svg'] = picture().encode()
    return f'![{title}]({figures}/loop.svg)\n\n{re.sub("</?code>", "`", caption)}'

def readme():
    "All that belongs to README.md, by path"
    nb,res,files = NBProcessor(cfg.nbs_path/cfg.readme_nb, procs, process=True).nb,[],{}
    for c in nb.cells:
        d = c.directives_
        if d.get('include')=='false' or not c.source.strip(): continue
        if c.cell_type=='markdown': res.append(made.sub(lambda m: listing(m[1], files), from_root(c.source)))
        if c.cell_type!='code': continue
        if d.get('echo')!='false': res.append(fence(c.source, 'python'))
        if d.get('output')!='false': res += [output(o, f'{c.id}-{i}', files) for i,o in enumerate(c.get('outputs', []))]
    return {'README.md': (mark + '\n\n'.join(filter(None, res)) + '\n').encode(), **files}

if __name__=='__main__':
    if not (cfg.nbs_path/cfg.readme_nb).exists(): sys.exit()
    files = readme()
    old = {'README.md', *(f'{figures}/{f.name}' for f in (root/figures).glob('*.*'))}
    bad = sorted(old-files.keys()) + [k for k,v in files.items() if not (root/k).exists() or (root/k).read_bytes()!=v]
    if '--check' in sys.argv: sys.exit(f'stale: {", ".join(bad)}; run `make lib`' if bad else 0)
    for k in bad:
        (root/k).parent.mkdir(parents=True, exist_ok=True)
        if k in files: (root/k).write_bytes(files[k])
        else: (root/k).unlink()
