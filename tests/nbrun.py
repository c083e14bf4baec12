"Run a notebook from top to bottom, in a process of its own"
import os,pickle,re,sys,warnings
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception
from execnb.shell import CaptureShell
from fastcore.nbio import write_nb
from fastcore.xtras import working_directory
from nbdev.clean import _nbdev_clean
from nbdev.config import get_config
from nbdev.process import NBProcessor
from nbdev.test import _skip_cell
from processes import run_script

class Shell(CaptureShell):
    "As in a notebook, a display that is updated is one output: its last state"
    def _run_res(self, result, c):
        res = super()._run_res(result, c)
        res.display_objects = list({o.transient.get('display_id', id(o)):o for o in res.display_objects}.values())
        return res

    def run_cells(self, nb, skip, times, timeout):
        "Each cell so many times in a row. As in a notebook, a cell that is run again has the file name that it had"
        self.compile.get_code_name = lambda raw,code,number: f'<ipython-input-{hash(raw)}>'
        def again(c):
            for _ in range(times-1):
                if not skip(c): self.cell(c, timeout=timeout)
                if self.exc: return True
            return skip(c)
        self.run_all(nb, exc_stop=True, preproc=again, cell_timeout=timeout)

def _without_place(nb):
    "Warnings name files of the library as they stand in the repository, not where the repository lies"
    for c in nb.cells:
        for o in c.get('outputs', []):
            if 'text' in o: o['text'] = [l.replace(f'{get_config().config_path}/', '') for l in o['text']]

def unlabelled(fig):
    "Axes of a drawn figure that have numbers and do not say of what, as `x` and `y` with the title of their plot"
    def numbers(axis): return [o for o in axis.get_ticklabels() if re.match('[-−]?[$0-9]', o.get_text())]
    for ax in fig.axes:
        for k,axis,of_all in ('x', ax.xaxis, fig.get_supxlabel()),('y', ax.yaxis, fig.get_supylabel()):
            seen = ax.get_visible() and ax.axison and axis.get_visible()
            if seen and numbers(axis) and not (axis.get_label_text() or of_all): yield f'{k} {ax.get_title()}'.strip()

@contextmanager
def noting_unlabelled(bad, cell):
    "Note in `bad` the axes without labels of each figure that is stored, with the name of the running `cell()`"
    from matplotlib.backend_bases import FigureCanvasBase
    draw,idle = FigureCanvasBase.print_figure,FigureCanvasBase.draw_idle
    def print_figure(self, *args, **kwargs):
        res = draw(self, *args, **kwargs)
        bad.extend(f'#{cell()}: {o}' for o in unlabelled(self.figure))
        return res
    FigureCanvasBase.print_figure = print_figure
    FigureCanvasBase.draw_idle = lambda self: None # each figure would be drawn a second time, and not shown
    try: yield
    finally: FigureCanvasBase.print_figure,FigureCanvasBase.draw_idle = draw,idle

def _kinds(c): return [(o['output_type'], sorted(o.get('data', ()))) for o in c.get('outputs', [])]

def _run(fn, force, save, fresh, times, look):
    import torch
    torch.set_num_threads(1)           # notebooks run side by side; and sums do not depend on the number of cores
    os.environ['IN_TEST'] = '1'
    warnings.filterwarnings('error', message='.*now hides') # a callback that means to write to the Learner
    cfg = get_config(fn.parent)
    sys.path.insert(0, str(cfg.config_path))
    from learner.diagnose.mistakes import Mistake
    warnings.filterwarnings('error', category=Mistake) # no false alarms
    warnings.filterwarnings('ignore', r'`(Reads|TwoHops|Typo|Careless)\b', Mistake) # planted ones
    nb = NBProcessor(fn, rm_directives=False, process=True).nb
    skip,old = _skip_cell(nb, cfg.tst_flags.split(), force),{c.id:_kinds(c) for c in nb.cells}
    k = Shell(fn, mpl_format='png')
    bad = []
    try:
        with working_directory(fn.parent), noting_unlabelled(bad, lambda: nb.cells[k._cell_idx-1].id):
            k.run_cells(nb, skip, times, cfg.cell_timeout)
    except BaseException as e:
        tb = e.__traceback__
        # from the cell on
        while tb.tb_next and not tb.tb_frame.f_code.co_filename.startswith('<ipython'): tb = tb.tb_next
        return f'{fn}, cell #{nb.cells[k._cell_idx-1].id}\n' + ''.join(format_exception(e.with_traceback(tb)))
    if bad: return f'{fn}: these axes have no label: {", ".join(dict.fromkeys(bad))}'
    if save:
        _nbdev_clean(nb)
        _without_place(nb)
        write_nb(nb, fn)
    if fresh and (stale := [c.id for c in nb.cells if not skip(c) and _kinds(c)!=old[c.id]]):
        return f'{fn}: the outputs of these cells are stale, run `make nbs`: {" ".join(stale)}'
    return look and look(k.user_ns)

def run_nb(fn, force=(), save=False, fresh=False,
    times=1,   # How often to run each cell
    look=None, # `look(names)` at the end
):
    "Error of running the notebook `fn`, or else what `look` returns"
    with TemporaryDirectory() as folder:
        Path(folder, 'args').write_bytes(pickle.dumps((Path(fn).absolute(), list(force), save, fresh, times, look)))
        p = run_script(f'import nbrun; nbrun.main({folder!r})', timeout=3600, quiet=False)
        if p.returncode: return f'{fn}: the process that ran it died\n{p.stderr}'
        return pickle.loads(Path(folder, 'result').read_bytes())

def warm_up():
    "Read what figures need, once for all processes: entry points of backends, and fonts"
    from matplotlib.backends.registry import backend_registry
    from matplotlib.figure import Figure
    backend_registry.list_all()
    Figure().subplots().figure.savefig(BytesIO())

def main(folder):
    "In the process of the notebook"
    args = pickle.loads(Path(folder, 'args').read_bytes())
    Path(folder, 'result').write_bytes(pickle.dumps(_run(*args)))
