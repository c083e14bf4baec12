"""Promise 2 for what loaders count: kinds of state × places in a loader × looks.

Training depends on the state after each sample, and an inference moves it: with the inference, a run ends as without
it, or a
warning names what has moved."""
import importlib,itertools,random,sys,warnings
from collections import OrderedDict
from contextlib import redirect_stdout
from functools import cache,cached_property,lru_cache,partial
from io import StringIO
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset,DataLoader,Dataset,Sampler,Subset
from learner.all import *
from learner.values.functions import is_own
from learner.data.search import search
from test_kinds_of_state import kinds

matplotlib.use('agg')

# Places
class Moves:
    "Moves its state and returns a factor that depends on it"
    def __init__(self, kind): self.kind,self.v = kind,kind.make()
    def __call__(self, x=None):
        self.v = self.kind.move(self.v)
        f = 1+self.kind.number(self.v)/50
        return f if x is None else x*f

class Points(Dataset):
    def __init__(self, transform=None):
        self.x,self.transform = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)),transform
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        x,y = self.x[i],self.x[i].sum(0, keepdim=True)
        return (x if self.transform is None else self.transform(x)),y

class Counting(Points):
    def __init__(self, kind): super().__init__(); self.kind,self.v = kind,kind.make()
    def __getitem__(self, i):
        x,y = super().__getitem__(i)
        self.v = self.kind.move(self.v)
        return x*(1+self.kind.number(self.v)/50),y

class Slotted:
    __slots__ = 'kind','v'
    __init__,__call__ = Moves.__init__,Moves.__call__

class ListMoves(list):
    def __init__(self, kind): super().__init__([abs]); self.kind,self.v = kind,kind.make()
    __call__ = Moves.__call__

class ModuleMoves(nn.Module):
    def __init__(self, kind): super().__init__(); self.kind,self.v = kind,kind.make()
    forward = Moves.__call__

class Compose:
    def __init__(self, *fs): self.fs = fs
    def __call__(self, x):
        for f in self.fs: x = f(x)
        return x

class Collate(Moves):
    def __call__(self, samples): x,y = torch.utils.data.default_collate(samples); return x*super().__call__(),y

class Order(Sampler):
    def __init__(self, kind): self.moves = Moves(kind)
    def __len__(self): return 12
    def __iter__(self): return iter(random.Random(float(self.moves())).sample(range(12), 12))

def collate_function(kind):
    moves = Moves(kind)
    v = moves.v
    def collate(samples):
        nonlocal v
        x,y = torch.utils.data.default_collate(samples)
        v = kind.move(v)
        return x*(1+kind.number(v)/50),y
    return collate

def both(ds, **kwargs):
    return DataLoader(ds, 3, **kwargs),DataLoader(Subset(ds, range(6)), 3,
        **{k:v for k,v in kwargs.items() if k!='sampler'})
places = dict(
    dataset=lambda kind: both(Counting(kind)),
    in_subsets=lambda kind: both(Subset(ConcatDataset([Counting(kind)]), range(12))),
    transform=lambda kind: both(Points(Moves(kind))), in_a_list=lambda kind: both(Points(Compose(Moves(kind), abs))),
    slots=lambda kind: both(Points(Slotted(kind))), own_list=lambda kind: both(Points(ListMoves(kind))),
    module=lambda kind: both(Points(ModuleMoves(kind))),
    method=lambda kind: both(Points(Moves(kind).__call__)),
    collate=lambda kind: both(Points(), collate_fn=Collate(kind)),
    collate_function=lambda kind: both(Points(), collate_fn=collate_function(kind)),
    sampler=lambda kind: both(Points(), sampler=Order(kind)))

# Looks
def quiet(f):
    def _f(learn):
        with redirect_stdout(StringIO()): f(learn)
        plt.close('all')
    return _f
looks = {k:quiet(f)
    for k,f in dict(validate=lambda learn: learn.validate(), on_training=lambda learn: learn.validate(0),
        one_batch=lambda learn: learn.dls.one_batch(), get_preds=lambda learn: learn.get_preds(0),
        predict=lambda learn: learn.predict(torch.ones(2)), tta=lambda learn: learn.tta(n=1, aug=lambda x: x)).items()}
between = looks | {k:quiet(f)
    for k,f in dict(lr_find=lambda learn: learn.lr_find(num_it=6), smoke=lambda learn: learn.smoke()).items()}
class Looks(Callback):
    "Calls `f(learn)` before the second batch is drawn"
    only_fit,run_valid = True,False
    def __init__(self, f): self.f = f
    def after_batch(self):
        if self.train_iter==2: self.f(self.learn)
calls = {**{f'{k} between fits':dict(around=f) for k,f in between.items()},
    **{f'{k} in training':dict(inside=f) for k,f in looks.items()}, 'own validations':dict(valid=True),
    'validations in the epoch':dict(valid=True, cbs=lambda: [Validate(2, 'iter')])}

def learner(dls):
    torch.manual_seed(0); random.seed(0)
    return Learner(DataLoaders(*dls, device='cpu'), nn.Linear(2, 1), F.mse_loss, opt_func=SGD,
        lr=.05).remove_cb(ProgressCallback)

def run(place, kind, around=None, inside=None, valid=False, cbs=lambda: []):
    learn = learner(places[place](kind))
    if not valid: valids,learn.dls.valids = learn.dls.valids,{}
    for i in range(2):
        if around:
            if not valid: learn.dls.valids = valids
            around(learn)
            if not valid: learn.dls.valids = {}
        learn.fit(1, cbs=[*([Looks(inside_with(inside, valids))] if inside else []), *cbs()])
    return [p.tolist() for p in learn.model.parameters()]

def inside_with(f, valids):
    def _f(learn):
        learn.dls.valids = valids
        try: f(learn)
        finally: learn.dls.valids = {}
    return _f

said = 'drawn outside of training have changed|Inference has changed|cannot be put back after an inference'
@pytest.mark.sample(120)
@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('place', places)
@pytest.mark.parametrize('kind', kinds)
def test_inference_leaves_what_a_loader_counts_alone_or_names_it(kind, place, call, tally):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        alone = run(place, kinds[kind])
        seen.clear()
        res = run(place, kinds[kind], **calls[call])
    named = [o for o in seen if any(k in str(o.message) for k in said.split('|'))]
    assert res==alone or named
    if kind not in ('iterator','counting','yielding','bytes_io','locked'): assert res==alone and not named
    tally('warned' if named else 'exact')

# Caches, readers, and what is too large to be held
def looked(ds, **kwargs):
    "Two inferences on a dataset, and what they say"
    learn = learner((DataLoader(ds, 3, **kwargs),DataLoader(ds, 3, **kwargs)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        for _ in range(2): learn.validate()
        learn.get_preds(0)
    return [str(o.message) for o in seen]

class Caches(Points):
    "Keeps what is slow to make, in several ways"
    def __init__(self):
        super().__init__()
        self.decoded,self.recent,self.all,self.table,self.file = {},OrderedDict(),[None]*12,torch.zeros(12, 200),None
    @cached_property
    def scale(self): return 2.
    @lru_cache
    def slow(self, i): return torch.ones(1)
    def __getitem__(self, i):
        x,y = super().__getitem__(i)
        self.decoded[i] = self.recent[i] = x
        if self.all[i] is None: self.all[i] = x
        if len(self.recent)>4: self.recent.popitem(last=False)
        self.table[i] = x[0]
        self.file = self.file or StringIO()
        return x*self.scale*self.slow(i),y

def test_caches_stay_and_nothing_is_said_of_them():
    ds = Caches()
    assert not looked(ds)
    assert (len(ds.decoded)==12 and len(ds.recent)==4 and None not in ds.all and 'scale' in vars(ds)
        and ds.slow.cache_info().misses==12)

class Reads(Points):
    "Knows at which line its file is"
    def __init__(self): super().__init__(); self.f,self.at = StringIO(''.join(f'{i}\n' for i in range(12))),0
    def __getitem__(self, i):
        if i!=self.at: self.f.seek(0); [self.f.readline() for _ in range(i)]
        self.at = i+1
        assert int(self.f.readline())==i
        return super().__getitem__(i)

def test_a_number_beside_an_open_file_stays_where_the_file_is_and_is_named_once():
    ds = Reads()
    said, = looked(ds)
    assert ds.at==12 and 'have changed `dataset.at` of a loader' in said and '`state_dict`' in said
    ds[11],ds[0],ds[1]

class Grows(Points):
    def __init__(self, v, move): super().__init__(); self.v,self.move = v,move
    def __getitem__(self, i): self.move(self.v); return super().__getitem__(i)

large = dict(long_list=([0]*1001, lambda v: v.append(1)), pool=([], lambda v: v.append(torch.ones(1))),
    replaced=([torch.ones(1)], lambda v: v.__setitem__(0, torch.zeros(1))),
    large_tensor=(torch.ones(2000), lambda v: v.add_(1)),
    table=(dict.fromkeys(range(2000), 0), lambda v: v.__setitem__(3, v[3]+1)),
    yielding=((i for i in range(1000)), next), counting=(itertools.count(), next))
@pytest.mark.parametrize('kind', large)
def test_what_is_too_large_to_be_held_or_has_no_copy_is_named_once(kind):
    said, = looked(Grows(*large[kind]))
    assert 'have changed `dataset.v`' in said

@pytest.mark.parametrize('kind', large)
def test_what_does_not_move_is_not_named(kind):
    if kind!='yielding': assert not looked(Grows(large[kind][0], lambda v: None)) # of which nothing can be told

data = dict(names=np.array(['a']*2000), dates=np.array(['2024-01-01']*2000, 'datetime64[D]'),
    fields=np.zeros(2000, [('n', 'f4')]), sparse=torch.eye(2000).to_sparse(),
    complex=torch.ones(2000, dtype=torch.complex64), booleans=torch.ones(2000, dtype=bool),
    turned=torch.ones(60, 50).t(), bfloat=torch.ones(2000, dtype=torch.bfloat16),
    mixed={**dict.fromkeys(range(20), 1), 'x': torch.ones(2)})
@pytest.mark.parametrize('kind', data)
def test_large_data_of_all_kinds_are_left_alone(kind):
    assert not [o for o in looked(Grows(data[kind], lambda v: None)) if 'Inference' in o]

def test_a_dict_of_mixed_values_is_a_cache():
    assert not looked(Grows({**dict.fromkeys(range(20), 1), 'x': torch.ones(2)},
        lambda v: v.__setitem__('x', torch.ones(2))))

class Budget(Points):
    "Counts what its cache holds"
    used = 0
    def __init__(self): super().__init__(); self.kept = {}
    def __getitem__(self, i): self.used += i not in self.kept; return self.kept.setdefault(i, super().__getitem__(i))
def test_a_number_beside_a_cache_stays_with_it_and_is_named():
    ds = Budget()
    said, = looked(ds)
    assert ds.used==len(ds.kept)==12 and '`dataset.used`' in said

class OnClass(Points):
    n = 0
    def __getitem__(self, i): type(self).n += 1; return super().__getitem__(i)
def test_a_number_that_a_class_counts_in_is_put_back():
    assert not looked(OnClass()) and OnClass.n==0

seen = []
def recorded(samples): seen.append(len(samples)); return torch.utils.data.default_collate(samples)
def test_a_global_list_records_what_inference_does():
    seen.clear()
    assert not looked(Points(), collate_fn=recorded) and len(seen)==12

class CountsInCache(Points):
    "Counts in what a method with a cache has returned"
    @lru_cache
    def counts(self, name): return [0]
    def __getitem__(self, i): self.counts('a')[0] += 1; return super().__getitem__(i)
class CountsInTypedCache(CountsInCache):
    @lru_cache(typed=True)
    def counts(self, name): return [0]
@pytest.mark.parametrize('dataset', [CountsInCache, CountsInTypedCache])
def test_a_count_in_a_cached_result_is_put_back(dataset):
    ds = dataset()
    assert not looked(ds) and ds.counts('a')==[0]
    for i in range(3): ds[i]
    assert not looked(ds) and ds.counts('a')==[3]

class Downloads(Points):
    "Reads each file once, and deletes it"
    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        for i in range(12): (folder/str(i)).touch()
    @lru_cache
    def fetch(self, i): (self.folder/str(i)).unlink(); return [i]
    def __getitem__(self, i): self.fetch(i); return super().__getitem__(i)
def test_a_function_with_a_cache_may_fail_when_it_is_called_again(tmp_path):
    assert not looked(Downloads(tmp_path))

PACKAGE = """
import random
from functools import lru_cache
rng,others,calls = random.Random(1),[random.Random(2)],[]
@lru_cache
def pieces(i): calls.append(i); others[0]; return [i*int(rng.random()+1)]
"""
@pytest.mark.parametrize('folder', ['site-packages', 'mine', 'my-site-packages'])
def test_functions_of_installed_packages_are_not_called_again_and_lead_to_generators(folder, tmp_path, monkeypatch):
    (tmp_path/folder).mkdir()
    (tmp_path/folder/f'pieces_{folder[:4]}.py').write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path/folder)
    package = importlib.import_module(f'pieces_{folder[:4]}')
    class Tokens(Points):
        def __getitem__(self, i): package.pieces(i); return super().__getitem__(i)
        pieces = package.pieces
    assert not looked(Tokens())
    assert (len(package.calls)==12)==(folder=='site-packages')
    found = search(dict(f=package.pieces.__wrapped__), lambda cls: cls is random.Random)
    assert {*found.values()}=={package.rng, *([] if folder=='site-packages' else package.others)}

def test_a_cache_of_a_partial_of_the_users_function_is_the_users():
    class Counting(Points):
        def __init__(self):
            super().__init__()
            def slots(n, k): return [0]*n
            self.counts = cache(partial(slots, 2))
        def __getitem__(self, i): self.counts('a')[0] += 1; return super().__getitem__(i)
    ds = Counting()
    looked(ds)
    assert ds.counts('a')==[0,0]

def test_what_a_notebook_defines_is_the_users_even_if_what_runs_it_is_installed(monkeypatch):
    monkeypatch.setattr(sys.modules['__main__'], '__file__', '/lib/site-packages/run.py', raising=False)
    def collate(samples): return samples
    collate.__module__ = '__main__'
    assert is_own(collate)

class Replaces(nn.Module):
    "Has another part after each sample"
    def __init__(self): super().__init__(); self.part = nn.Identity()
    def forward(self, x): self.part = nn.Identity(); return x
def test_a_part_of_a_module_that_was_replaced_is_put_back_in_its_place():
    f = Replaces()
    part = f.part
    assert not looked(Points(f))
    assert f.part is part and [*f.children()]==[part]

class Passes(list):
    "A list of batches that counts how often it is iterated"
    n = 0
    def __iter__(self): self.n += 1; return super().__iter__()
def test_passes_that_a_list_counts_are_put_back():
    dl = Passes([(torch.ones(2, 2), torch.ones(2, 1))])
    learn = learner((dl, Passes(dl)))
    dl.n = 0
    learn.validate(); learn.get_preds(0)
    assert dl.n==learn.dls.valid.n==0
    learn.fit(2)
    assert (dl.n,learn.dls.valid.n)==(2,0)

# Counts of a run that resumes from a file
class CountsSamples(Points):
    "An augmentation that grows with each sample"
    n = 0
    def __getitem__(self, i):
        self.n += 1
        x,y = super().__getitem__(i)
        return x+.01*self.n,y
class CountsBatches:
    def __init__(self): self.n = 0
    def __call__(self, samples):
        self.n += 1
        x,y = torch.utils.data.default_collate(samples)
        return x+.01*self.n,y

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('stop', [2, 6])
@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('what', [dict(dataset=CountsSamples), dict(collate_fn=CountsBatches),
    dict(collate_fn=lambda: CountsBatches().__call__), dict(collate_fn=lambda: partial(partial(CountsBatches())))],
    ids=['dataset','collate_fn','method','partial'])
def test_a_run_resumes_with_what_its_loader_has_counted(what, workers, stop, tmp_path):
    def fit(path, at, **kwargs):
        made = dict(dataset=Points()) | {k:f() for k,f in what.items()}
        train = DataLoader(**made, batch_size=3, shuffle=True, num_workers=workers)
        torch.manual_seed(0)
        learn = Learner(DataLoaders(train, device='cpu'), nn.Linear(2, 1), F.mse_loss, opt_func=SGD, lr=.05, path=path)
        stops = on(event.after_batch(once=at, unit='iter'))(lambda learn: learn.stop_soon())
        learn.remove_cb(ProgressCallback).fit(2, cbs=[stops, Checkpoint()], **kwargs)
        return [p.tolist() for p in learn.model.parameters()]
    whole = fit(tmp_path/'whole', 100)
    assert fit(tmp_path, stop)!=whole and fit(tmp_path, 100, resume=True)==whole
