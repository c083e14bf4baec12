"The opening script of the page for users of fastai runs as it stands, and asks for nothing that fastai lacks"
import ast
from pathlib import Path
import matplotlib
import pytest
from fastcore.nbio import read_nb

matplotlib.use('agg')
page = Path(__file__).parents[2]/'nbs'/'tutorials'/'from_fastai.ipynb'
cells = {o.id:o.source for o in read_nb(page).cells}
ours,theirs = 'from learner.all import *','from fastai.vision.all import *'

def test_only_the_line_of_imports_differs():
    "The page says which line is changed, and the script has that line once, and no other one of this library"
    assert f'`{theirs}` becomes `{ours}`' in cells['md_imports']
    assert cells['imports'].count(ours)==1
    assert 'learner' not in cells['imports'].replace(ours, '') and 'learner' not in cells['script']

# What fastai 2.8 has, as its documentation lists it: names, and the arguments that the script gives them
known = {
    'DataLoaders.from_dsets': 'bs device', 'Learner': 'loss_func opt_func splitter path metrics cbs', 'Adam': 'wd',
    'CrossEntropyLossFlat': '', 'F1Score': 'average', 'CSVLogger': '', 'SaveModelCallback': 'monitor fname',
    'learn.no_bar': '', 'learn.lr_find': 'suggest_funcs show_plot', 'learn.fine_tune': 'freeze_epochs cbs', 'MixUp': '',
    'EarlyStoppingCallback': 'patience', 'learn.fit_one_cycle': 'cbs', 'learn.recorder.plot_loss': '',
    'learn.validate': '', 'learn.get_preds': 'with_loss', 'learn.save': '', 'learn.load': '', 'params': '',
    'CancelFitException': '', 'NoiseCallback': '', 'test_close': '', 'conv': ''}
others = 'nn torch noise preds targs losses Path splitter abs self slice'.split() # of Python, torch, the script
names = 'accuracy error_rate valley slide GradientClip TrainEvalCallback Callback'.split()

def test_the_script_calls_what_fastai_documents_with_its_arguments():
    tree = ast.parse(cells['script'])
    for o in ast.walk(tree):
        if not isinstance(o, ast.Call): continue
        f,given = ast.unparse(o.func),{k.arg for k in o.keywords}
        if f.split('.')[0] in others: continue
        if f=='partial': f,given = ast.unparse(o.args[0]),given
        if '(' in f: continue # a method of what another call has returned
        assert f in known, f'{f} is not in the list of what fastai has'
        assert given<={*known[f].split()}, (f, given)
    used = {o.id for o in ast.walk(tree) if isinstance(o, ast.Name)}
    assert {*names}<=used

@pytest.mark.slow # the page runs with the notebooks, whatever its script asserts
def test_the_script_runs_and_trains_here():
    pytest.importorskip('sklearn')
    found = {}
    exec(cells['imports']+'\n'+cells['script'], found) # its own assertions: accuracy, predictions, losses, files
    assert found['learn'].recorder.rows and found['acc']>.95
    assert len(found['lrs'])==2 and (Path(found['folder'].name)/'history.csv').exists()
