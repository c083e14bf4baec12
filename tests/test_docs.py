"What `docs/` makes of the library"
import json,sys
import pytest
from nbdev.config import get_config
from learner.all import *

@pytest.fixture(scope='module')
def entries():
    path = str(get_config().config_path/'docs')
    sys.path.insert(0, path)
    try: import entries
    finally: sys.path.remove(path)
    return entries

def rows(md): return [[o.strip() for o in l.strip(' |').split(' | ')] for l in md.splitlines()[2:]]

@pytest.mark.parametrize('sym,row',
    [(Learner.to_fp16, 'For `MixedPrecision`'), (Learner.on, '`order`, or a filter: see `on`'),
        (ActivationStats, 'For `HookCallback`'),
    (DataLoaders.from_dsets, "For torch's `DataLoader`, such as `num_workers`; those about order are for training")],
    ids=lambda o: getattr(o, '__name__', ''))
def test_what_is_said_of_kwargs_stands_with_them(sym, row, entries):
    tbl = rows(entries.table(sym))
    assert [o[-1] for o in tbl if o[0]=='kwargs']==[row]
    assert not [o for o in tbl if o[0]=='**Returns**' and row in o[-1]]

def test_table_of_parameters(entries):
    tbl = rows(entries.table(Learner.fine_tune))
    assert (tbl[0]==['epochs', '`int`', '', 'Epochs with everything trainable']
        and tbl[1][:3]==['base_lr', '`float`', '`0.002`'])
    names = [o[0] for o in tbl]
    assert (names[:6]==['epochs','base_lr','freeze_epochs','lr_mult','pct_start','div'] and names[-1]=='**Returns**'
        and '`Learner`' in tbl[-1][1])
    # those of `fit_one_cycle` and `fit` that it passes on
    assert 'wd' in names and 'resume' in names and not {'kwargs','n_epoch','lr_max','lr'} & {*names}

recipes = sorted((get_config().config_path/'nbs/recipes').glob('[0-9]*.ipynb'))
@pytest.mark.parametrize('fn', recipes, ids=lambda o: o.stem)
def test_a_recipe_has_at_most_twenty_lines_of_ones_own_and_a_check(fn):
    cells = {c['id']:''.join(c['source']).splitlines() for c in json.loads(fn.read_text())['cells']
        if c['cell_type']=='code'}
    own = [l for k,v in cells.items() if k.startswith(('recipe','fit')) for l in v if l.strip()
        and not l.strip().startswith('#')]
    assert len(own)<=20 and any('assert' in l for l in cells['check'])
