"Batches keep their structure on the way to the device; loaders have names; generators are put back"
import random,warnings
from collections import OrderedDict,UserDict,defaultdict,namedtuple
from functools import partial
from types import MappingProxyType
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence,pack_sequence
from torch.utils.data import BatchSampler,DataLoader,Dataset,DistributedSampler,IterableDataset,RandomSampler
from torch.utils.data import SequentialSampler,TensorDataset
from learner.all import *
from learner.data.generators import moving_parts
from learner.data.loader_state import describe

meta,cpu = torch.device('meta'),torch.device('cpu')
Pair = namedtuple('Pair', 'a b')
class Movable:
    def __init__(self, device=cpu): self.device = device
    def to(self, device): return Movable(device)
class MyList(list): pass
class MyDict(dict): pass

# To the device
leaves = st.one_of(st.builds(torch.zeros, st.integers(0, 3)), st.integers(), st.text(max_size=2), st.none(),
    st.builds(Movable))
structures = st.recursive(leaves,
    lambda o: st.one_of(st.lists(o, max_size=3), st.lists(o, max_size=3).map(tuple),
        st.lists(o, max_size=3).map(MyList), st.builds(Pair, o, o),
    *(st.dictionaries(st.text(max_size=2), o, max_size=3).map(t) for t in (dict, MyDict, OrderedDict, UserDict))),
    max_leaves=8)

def check_same(a, b, device, path=''):
    "`b` is `a` on `device`: the same types all the way down"
    assert type(a) is type(b), path
    if isinstance(a, (torch.Tensor, Movable)): assert torch.device(b.device)==device
    elif isinstance(a, (tuple, list)):
        assert len(a)==len(b)
        for i,(x,y) in enumerate(zip(a, b)): check_same(x, y, device, f'{path}[{i}]')
    elif isinstance(a, (dict, UserDict)):
        assert list(a)==list(b)
        for k in a: check_same(a[k], b[k], device, f'{path}[{k!r}]')
    else: assert a is b

@given(structures)
def test_structure_and_types_survive_the_move(b):
    before = repr(b)
    check_same(b, to_device(b, meta), meta)
    assert repr(b)==before # what was given is not changed

def test_a_batch_moves_to_the_default_device_unless_another_is_named(monkeypatch):
    monkeypatch.setattr('learner.data.batches.default_device', lambda: meta)
    b = dict(x=[torch.zeros(2)], y=Pair(torch.zeros(1), 'a'))
    check_same(b, to_device(b), meta)
    assert to_device(torch.zeros(1)).device==meta and to_device(torch.zeros(1), cpu).device==cpu

def test_tensors_that_are_there_are_not_copied():
    x = torch.zeros(2)
    assert to_device(x, cpu) is x and to_device((x, [x]), cpu)[1][0] is x and to_device(Pair(x, x), cpu).b is x

@pytest.mark.parametrize('b', [defaultdict(list, x=torch.zeros(1)), MappingProxyType(dict(x=torch.zeros(1)))],
    ids=['defaultdict','read-only'])
def test_other_mappings(b):
    res = to_device(b, meta)
    assert (res['x'].device==meta and b['x'].device==cpu
        and (not isinstance(b, defaultdict) or res.default_factory is list))

def test_objects_with_a_method_to():
    assert isinstance(to_device(pack_sequence([torch.zeros(2)]), meta), PackedSequence)
    assert to_device(dict(x=[Movable()]), meta)['x'][0].device==meta
    assert to_device([np.zeros(2), 'a', None, {1}], meta)[1:]==['a', None, {1}]

class InPlace:
    "As the encodings of a tokenizer do, or graphs: what it holds moves, and it returns itself"
    def __init__(self): self.x,self.asked = torch.zeros(2),{}
    def to(self, device, *, non_blocking=False):
        self.asked = dict(non_blocking=non_blocking)
        if torch.device(device).type!='cuda': self.x = self.x.to(device) # there is none here
        return self

def test_a_list_keeps_its_batches_where_they_are_although_they_move_in_place():
    bs = [(InPlace(), torch.zeros(2))]*2
    dls = DataLoaders(bs, device='meta')
    b = dls.one_batch()
    assert b[0].x.device==meta and bs[0][0].x.device==cpu

def test_objects_go_to_a_gpu_without_waiting_if_they_know_how():
    class Passes(InPlace):
        def to(self, *args, **kwargs): return super().to(*args, **kwargs)
    class Waits(InPlace):
        def to(self, device): return super().to(device)
    assert [to_device(o, 'cuda').asked['non_blocking'] for o in (InPlace(), Passes(), Waits())]==[True, True, False]
    assert not to_device(InPlace(), meta).asked['non_blocking']

def test_an_object_that_cannot_be_copied_is_moved():
    class Wrapper:
        def __init__(self): self.b = InPlace()
        def __getattr__(self, k): return getattr(self.b, k) # `copy` asks before there is a `b`
    assert to_device(Wrapper(), meta).x.device==meta

def test_map_batch_keeps_structure():
    assert (map_batch(dict(a=1, b=2), str)=={'a':'1', 'b':'2'} and map_batch(Pair(1, 2), str)==Pair('1', '2')
        and map_batch([1], str)==['1'])

# Inputs and targets
x,y,z = (torch.full((2,1), float(i)) for i in range(3))
@pytest.mark.parametrize('b,kwargs,xb,yb', [
    ((x,), {}, [x], []), ((x, y), {}, [x], [y]), ([x, y], {}, [x], [y]), ((x, y, z), {}, [x, y], [z]),
    (Pair(x, y), {}, [x], [y]),
    ((x, y, z), dict(n_inp=1), [x], [y, z]), ((x, y), dict(n_inp=2), [x, y], []),
    ([x, y, z], dict(n_inp=3), [x, y, z], []),
    (x, {}, [x], []), ((x, y, z), dict(split=lambda b: (b[1:], b[:1])), [y, z], [x]),
], ids=lambda o: '')
def test_split(b, kwargs, xb, yb):
    a,c = DataLoaders([b], **kwargs).split(b)
    assert list(map(id, a))==list(map(id, xb)) and list(map(id, c))==list(map(id, yb))

@pytest.mark.parametrize('kind', [dict, UserDict, OrderedDict])
def test_split_of_mappings(kind):
    b = kind(x=x, labels=y)
    assert DataLoaders([]).split(b)==(b, (y,)) and DataLoaders([]).split(kind(x=x))==(kind(x=x), ())

def test_split_by_a_subclass():
    class Mine(DataLoaders):
        def split(self, b): return (b['image'],),(b['mask'],)
    learn = synth_learner(dls=Mine([dict(image=x, mask=y)], device='cpu')).fit(1)
    assert learn.opt_step==1

@pytest.mark.parametrize('train', [[(x, y)], [[x, y]], [Pair(x, y)], DataLoader(TensorDataset(x, y), 2)],
    ids=['tuple','list','named','loader'])
def test_inputs_and_targets_are_tuples(train):
    seen = []
    synth_learner(dls=DataLoaders(train, device='cpu'),
        cbs=Callback(before_batch=lambda self: seen.append((type(self.xb), type(self.yb))))).fit(1)
    assert seen==[(tuple, tuple)]

def test_targets_of_several_parts_go_to_the_loss_side_by_side():
    seen = []
    def loss(pred, a, b): seen.append((a, b)); return F.mse_loss(pred, a)
    learn = synth_learner(dls=DataLoaders([(x, y, z)], n_inp=1, device='cpu'), loss_func=loss,
        cbs=Callback(before_batch=lambda self: seen.append((self.x, self.y)))).fit(1)
    assert seen==[(x, (y, z)), (y, z)] and learn.opt_step==1

# Loaders
def test_names_and_positions():
    a,b,c,d = ([(x, y)]*i for i in range(1, 5))
    dls = DataLoaders(a, dict(easy=b, hard=c), d)
    assert [dls[i] for i in range(4)]==[dls[i-4] for i in range(4)]==[
        dls[o] for o in ('train','easy','hard',dls.name(3))]==[a, b, c, d]==list(dls) and len(dls)==4
    assert dls.train is a and dls.valid is b and list(dls.valids)==['easy','hard'] and dls.name(-1)==dls.name(3)
    assert DataLoaders(a).valid is None and DataLoaders(a, b)['valid'] is b and DataLoaders(a, b, c, d)[3] is d
    assert 'train: 1 batches' in repr(dls) and 'unknown length' in repr(DataLoaders(iter(a)))

@pytest.mark.parametrize('n,n_batches', [(100, 3), (32, 1), (5, 1)])
def test_from_dsets(n, n_batches):
    ds,valid = TensorDataset(torch.arange(float(n))[:,None], torch.zeros(n)),TensorDataset(torch.arange(70.)[:,None],
        torch.zeros(70))
    torch.manual_seed(0)
    dls = DataLoaders.from_dsets(ds, valid, bs=32, device='cpu', num_workers=0)
    first = torch.cat([b[0] for b in dls.train]).flatten().tolist()
    # shuffled; an incomplete last batch is dropped, unless it is the only one
    assert len(dls.train)==n_batches and len({*first})==min(n, 32*n_batches) and first!=sorted(first)
    assert ([len(b[0]) for b in dls.valid]==[64, 6]
        and torch.cat([b[0] for b in dls.valid]).flatten().tolist()==list(range(70)))
    assert dls.train_ds is ds and dls.valid_ds is valid and dls.device==cpu and DataLoaders.from_dsets(ds).valid is None

def test_devices():
    dls = DataLoaders([(x, y)], [(x, y)], device='meta')
    assert dls.device==meta and all(o.device==meta for o in dls.one_batch(1)) and dls.to('cpu').device==cpu
    assert DataLoaders([]).device==default_device()

def test_model_loss_and_batches_go_to_the_device():
    seen = []
    def note(self): seen.extend([self.x.device, self.y.device, self.pred.device, self.loss.device])
    learn = Learner(DataLoaders([(x, y)], [(x, y)], device='meta'), torch.nn.Linear(1, 1),
        torch.nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)), default_cbs=False,
        cbs=[TrainEvalCallback, Callback(after_batch=note)])
    learn.fit(1)
    assert {*seen}=={meta}=={p.device for g in learn.opt.param_groups for p in g['params']}=={
        p.device for p in learn.model.parameters()} and learn.opt_step==1

def test_one_batch_is_the_first_and_moves_no_generator():
    dl = DataLoader(Draws(), 2, shuffle=True)
    dls = DataLoaders(dl, device='cpu')
    state = states()
    b = dls.one_batch()
    assert states()==state and torch.equal(b, next(iter(dl)))

@pytest.mark.parametrize('dl,n', [([1,2], 2), (iter([1]), None), (DataLoader(range(5), 2), 3), ((o for o in ()), None)])
def test_length(dl, n): assert length(dl)==n

def test_length_of_a_stream():
    class Stream(IterableDataset):
        def __iter__(self): return iter(range(3))
    assert length(DataLoader(Stream(), 2)) is None

# Generators
class Draws(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i, random.random(), np.random.rand(), torch.rand(()).item()])

def states(*gens):
    return random.getstate(),[
        o.tolist() if hasattr(o, 'tolist') else o for o in np.random.get_state()],torch.get_rng_state().tolist(),[
        g.get_state().tolist() for g in gens]

def draw(kind, gens):
    if kind=='python': return random.gauss(0, 1)
    if kind=='numpy': return np.random.randn()
    if kind=='torch': return torch.randn(3).tolist()
    return torch.rand(2, generator=gens[int(kind)]).tolist()

@given(st.lists(st.sampled_from(['python','numpy','torch','0','1','2','3']), max_size=12),
    st.lists(st.sampled_from(['python','numpy','torch','0','1','2','3']), max_size=4))
def test_keep_random_puts_every_generator_back(inside, before):
    gens = [torch.Generator().manual_seed(i) for i in range(4)]
    loaders = [DataLoader(Draws(), 2, shuffle=True, generator=gens[0]),
        DataLoader(Draws(), 2, sampler=RandomSampler(Draws(), generator=gens[1])),
        DataLoader(Draws(), batch_sampler=BatchSampler(RandomSampler(Draws(), generator=gens[2]), 2, False)),
        DataLoader(Draws(), 2, generator=gens[3])]
    for o in before: draw(o, gens)
    state = states(*gens)
    with keep_random(*loaders):
        first = [draw(o, gens) for o in inside]
    assert states(*gens)==state
    assert [draw(o, gens) for o in inside]==first # and what comes next is what came inside

def test_keep_random_after_an_error_and_inside_itself():
    state = states()
    with pytest.raises(ZeroDivisionError), keep_random():
        random.random()
        with keep_random(): torch.rand(1); np.random.rand()
        1/0
    assert states()==state

def test_random_state_can_be_set_again_and_again():
    g = torch.Generator()
    dl = DataLoader(Draws(), 2, generator=g)
    saved = random_state(dl)
    res = []
    for _ in range(2):
        set_random_state(saved, dl)
        res.append([draw(o, [g]) for o in ('python','numpy','torch','0')])
    assert res[0]==res[1]

@pytest.mark.parametrize('kwargs',
    [{}, dict(num_workers=1, multiprocessing_context='fork'),
        dict(num_workers=1, persistent_workers=True, multiprocessing_context='fork')], ids=['0','1','persistent'])
def test_a_twin_gives_the_same_batches_and_shares_no_iterator(kwargs):
    dl = DataLoader(range(12), 3, shuffle=True, **kwargs)
    def order(dl): torch.manual_seed(1); return [b.tolist() for b in dl]
    expected = order(dl)
    it = iter(dl)
    first = [next(it).tolist()]
    other = twin(dl)
    assert order(other)==expected and len(first+[b.tolist() for b in it])==4 # the one in use goes on
    assert sorted(sum(order(dl), []))==list(range(12)) and twin([1,2])==[1,2]
    for o in (dl, other): vars(o)['_iterator'] = None

class Around:
    "A loader around another one, as users write them"
    def __init__(self, dl): self.dl = dl
    def __iter__(self):
        for b in self.dl: yield b
    def __len__(self): return len(self.dl)
class Forwarding(Around): # a copy of it has no `dl` when it is asked for `__setstate__`
    def __getattr__(self, k): return getattr(self.dl, k)
class Safe(Around):
    def __getattr__(self, k):
        if k.startswith('__') or k=='dl': raise AttributeError(k)
        return getattr(self.dl, k)
class Several(Around):
    def __init__(self, dl): self.parts = dict(dls=[dl])
    def __iter__(self): return iter(self.parts['dls'][0])
    def __len__(self): return len(self.parts['dls'][0])

def persistent(ds):
    return DataLoader(ds, len(ds)//4, shuffle=True, num_workers=1, persistent_workers=True,
        multiprocessing_context='fork')

@pytest.mark.parametrize('around', [Around, Forwarding, Safe, Several])
def test_training_on_a_wrapped_loader_with_persistent_workers_is_not_disturbed(around):
    def run(wrap, *cbs):
        learn,seen = synth_learner(n_train=4, n_valid=2),[]
        dl = persistent(learn.dls.train_ds)
        learn.dls = DataLoaders(wrap(dl), [*learn.dls.valid], device='cpu')
        torch.manual_seed(0)
        class See(Callback):
            only_fit,run_valid = True,False
            def after_batch(self): seen.append(self.x.tolist())
        learn.fit(2, cbs=[See, *cbs])
        workers = dl._iterator
        vars(dl)['_iterator'] = None
        return seen,[o.tolist() for o in learn.model.parameters()],workers is not None
    found = []
    class Inner(Callback):
        only_fit,run_valid = True,False
        def after_batch(self):
            if self.iter!=2: return
            found.append([dict(self.learn.validate(**kw))[k] for k,kw in (('train/loss', dict(ds_idx='train')),
                ('valid_loss', dict(dl=self.dl)))])
            assert self.dls.one_batch()[0].shape==self.x.shape
    expected = run(lambda dl: dl)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert run(around, Inner)==expected and len(expected[0])==8 and expected[-1]
    assert len(found)==2 and all(a==pytest.approx(b) for a,b in found)

@pytest.mark.parametrize('around', [Around, Forwarding, Safe, Several])
def test_a_twin_of_a_wrapper_has_iterators_of_its_own(around):
    inner = persistent(range(12))
    dl = around(inner)
    def order(o): torch.manual_seed(1); return [b.tolist() for b in o]
    expected = order(dl)
    torch.manual_seed(1)
    passes,workers = [iter(dl), iter(twin(dl)), iter(twin(twin(dl)))],[]
    steps = []
    for it in passes: torch.manual_seed(1); steps.append([next(it).tolist()])
    for _ in range(2):
        for it,seen in zip(passes, steps): seen.append(next(it).tolist())
        workers.append(inner._iterator)
    for it,seen in zip(passes, steps): seen.append(next(it).tolist()); assert next(it, None) is None
    assert steps[1:]==[expected]*2 and sorted(sum(steps[0], []))==list(range(12)) # the first one had old workers
    assert workers[0] is workers[1] is not None and len(twin(dl))==4
    vars(inner)['_iterator'] = None

def test_lr_find_and_evaluation_of_a_wrapper_that_forwards_everything():
    learn = synth_learner(n_train=4, n_valid=2)
    inner = persistent(learn.dls.train_ds)
    learn.dls = DataLoaders(Forwarding(inner), learn.dls.valid, device='cpu')
    assert learn.dls.one_batch()[0].shape==next(iter(learn.dls.valid))[0].shape
    assert dict(learn.validate(0))['train/loss']>0
    learn.lr_find(num_it=6, show_plot=False)
    learn.smoke()
    assert inner._iterator is None and learn.fit(1).train_iter==4
    vars(inner)['_iterator'] = None

def test_a_stateful_loader_that_cannot_be_copied_says_why():
    class Stateful(Forwarding):
        def state_dict(self): return {}
        def load_state_dict(self, s): pass
    with pytest.raises(TypeError, match=r"`Stateful` cannot be copied.*Begin it with `if k.startswith\('__'\)"):
        twin(Stateful([1]))

def test_a_loader_in_place_of_valid_is_refused_as_it_would_not_be_validated():
    class Mixin:
        @property
        def valid(self): return []
    for bases in (Mixin, DataLoaders),(DataLoaders,):
        with pytest.raises(TypeError, match=r'`Own.valid` would not be .*write `super\(\).__init__\(train, valid'):
            type('Own', bases, dict(valid=property(lambda self: [])) if len(bases)==1 else {})
    class Mine(DataLoaders):
        @property
        def train(self): return self.loaders['train'][:3]
    class More(Mine): pass
    assert len(More([x]*4, [x]).train)==3

@pytest.mark.parametrize('weights', [np.arange(8), torch.arange(8)], ids=['array','tensor'])
def test_a_sampler_is_described_by_numbers_of_any_width(weights):
    "A run that was saved on Windows, where numpy 1 makes integers of 32 bits, resumes elsewhere"
    def described(o):
        sampler = RandomSampler(range(8))
        sampler.weights = o
        return describe(DataLoader(range(8), sampler=sampler))
    short = weights.to(torch.int32) if isinstance(weights, torch.Tensor) else weights.astype(np.int32)
    assert described(short)==described(weights)==described([*range(8)])!=described([*range(1, 9)])

def test_a_dataset_is_no_loader():
    learn = synth_learner()
    for call in (lambda ds: learn.validate(dl=ds), lambda ds: learn.validate(ds)):
        with pytest.raises(TypeError,
                match=r'`(dl|ds_idx)` is a dataset, and a loader gives batches: write `DataLoader\(dataset'):
            call(learn.dls.train_ds)
    with pytest.raises(TypeError, match='`dl` is not iterable'): learn.validate(dl=7)

@pytest.mark.parametrize('dl,message', [
    (x, r'`train` is an iterable of batches, but got a tensor of shape \(2, 1\): write `DataLoader\(TensorDataset'),
    (x.numpy(), r'`train` is an iterable of batches, but got an array of shape \(2, 1\)'),
    (DataLoader, '`train` is a loader, but got the class `DataLoader`'),
    ((DataLoader(TensorDataset(x)),)*2, r'`train` is one loader, but got 2 in a tuple: write `DataLoaders')])
def test_what_gives_no_batches_is_refused(dl, message):
    with pytest.raises(TypeError, match=message): DataLoaders(dl)

# Parts with a state
def test_moving_parts_are_found_wherever_they_are():
    class Holds:
        def __init__(self, o): self.anything = o
        def __len__(self): return 4
        def __getitem__(self, i): return i
        def method(self, o): return o
    gens = [torch.Generator(), np.random.default_rng(), np.random.RandomState(), random.Random(), torch.Generator(),
        np.random.default_rng(), random.Random()]
    def closure(o): return o, gens_5
    gens_5 = gens[5]
    dl = DataLoader(Holds([gens[0], dict(a=(gens[1],)), Holds(gens[2])]), sampler=Holds(gens[3]), generator=gens[4],
        collate_fn=partial(closure, Holds(gens[6]).method))
    found = moving_parts(dl, DataLoader(Holds(gens[0])))
    assert {id(o) for o in found.values()}=={id(o) for o in gens} and len(found)==7 and '0.sampler.anything' in found
    before = random_state(dl)
    def draws():
        return [float(torch.rand(1, generator=g)) if isinstance(g, torch.Generator) else g.uniform()
            if hasattr(g, 'integers') else float(g.uniform(0, 1)) for g in gens]
    a = draws()
    assert set_random_state(before, dl)==[] and draws()==a
    assert set_random_state(before, DataLoader(range(3), sampler=Holds(None)))==[k for k in before['own']]

def test_a_loader_whose_state_has_not_changed_is_not_restored():
    class Knows:
        def __init__(self): self.at,self.told = 0,0
        def __iter__(self): yield from range(3)
        def state_dict(self): return dict(at=torch.tensor(self.at))
        def load_state_dict(self, s): self.at,self.told = int(s['at']),self.told+1
    dl = Knows()
    with keep_random(dl): pass
    assert dl.told==0
    with keep_random(dl): dl.at = 2
    assert (dl.at,dl.told)==(0,1)
    assert twin(dl) is not dl

def test_a_learner_or_callback_is_no_part_of_a_loader():
    learn = synth_learner()
    learn.dls.train_ds.learn,learn.dls.train_ds.cb = learn,learn.recorder
    assert moving_parts(learn.dls.train)=={k:o
        for k,o in moving_parts(learn.dls.train).items() if isinstance(o, torch.Generator)}

def test_every_module_goes_to_the_device():
    class Has(Callback):
        def __init__(self): self.one,self.more,self.named = nn.Linear(1, 1),[nn.Linear(1, 1)],dict(a=nn.Linear(1, 1))
    class Far(nn.Module):
        def __init__(self): super().__init__(); self.register_buffer('w', torch.ones(1))
        def forward(self, p, y): return (p-y).mean()
    learn = synth_learner(cbs=[cb := Has()], loss_func=CrossEntropyLossFlat(weight=torch.ones(2)),
        metrics=[AvgMetric(metric := Far())])
    data = nn.Linear(1, 1)
    learn.dls.train_ds.transform = data
    learn.dls.device = torch.device('meta')
    learn.to_device()
    assert {o.device.type for m in (learn.model, cb.one, *cb.more, cb.named['a']) for o in m.parameters()}=={'meta'}
    assert learn.loss_func.func.weight.device.type==metric.w.device.type=='meta' and data.weight.device.type=='cpu'

def test_a_quantized_model_that_is_there_already_is_not_moved():
    "It refuses to be"
    class Quantized(nn.Linear):
        def to(self, *args, **kwargs): raise ValueError('`.to` is not supported for 8-bit models')
    learn = Learner(DataLoaders([(torch.ones(2, 3), torch.ones(2, 1))], device='cpu'), Quantized(3, 1), nn.MSELoss())
    assert learn.fit(1).opt_step==1
    learn.dls.to('meta')
    with pytest.raises(ValueError, match='8-bit'): learn.fit(1)

# The number of the epoch
class Batches(BatchSampler):
    "Shuffles by the number of the epoch"
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter([order[:4], order[4:]])
class Stream(IterableDataset):
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self): return iter(X[torch.randperm(8, generator=torch.Generator().manual_seed(self.epoch))])
class Epochs(list):
    "A loader"
    def set_epoch(self, epoch): self[:] = self[-1:]+self[:-1] if epoch else self

X = torch.arange(8.)[:,None]
of_epochs = dict(
    sampler=lambda: DataLoader(TensorDataset(X), 4, sampler=DistributedSampler(X, 1, 0)),
    batches=lambda: DataLoader(TensorDataset(X), batch_sampler=Batches(range(8), 4, False)),
    inside=lambda: DataLoader(TensorDataset(X), batch_sampler=BatchSampler(DistributedSampler(X, 1, 0), 4, False)),
    stream=lambda: DataLoader(Stream(), 4), loader=lambda: Epochs(X.split(4)))

class Own(nn.Module):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(()))
    def forward(self, x): return dict(loss=self.w*x.mean())

def of_epoch(kind, seen, path='.', cbs=()):
    @on('after_batch')
    def see(learn):
        if learn.training: seen.append(tuple(learn.x.flatten().tolist()))
    dls = DataLoaders(of_epochs[kind](), X.split(4), device='cpu', split=lambda b: ((single(b),), ()))
    return Learner(dls, Own(), lr=.1, path=path, cbs=[see, *cbs]).remove_cb(ProgressCallback)
def single(b): return b[0] if isinstance(b, (tuple,list)) else b

@pytest.mark.parametrize('kind', of_epochs)
def test_loaders_that_shuffle_by_the_epoch_are_told_its_number(kind):
    seen,right = [],[]
    of_epoch(kind, seen).fit(3)
    dl = of_epochs[kind]()
    for epoch in range(3):
        for o in (dl, getattr(dl, 'batch_sampler', None), getattr(dl, 'sampler', None), getattr(dl, 'dataset', None),
            getattr(getattr(dl, 'batch_sampler', None), 'sampler', None)):
            if hasattr(o, 'set_epoch'): o.set_epoch(epoch)
        right += [tuple(single(b).flatten().tolist()) for b in dl]
    assert seen==right and len({tuple(seen[i:i+2]) for i in (0,2,4)})>1

@pytest.mark.parametrize('kind', ['sampler','batches','inside','stream'])
def test_what_shuffles_by_the_epoch_resumes_exactly_and_inference_leaves_no_trace(kind, tmp_path):
    seen,parts = [],[]
    of_epoch(kind, seen).fit(3)
    @on('after_batch')
    def stop(learn):
        if learn.training and learn.train_iter==3 and len(parts)==3: learn.stop_soon()
    @on('before_epoch')
    def look(learn):
        if learn.mode=='fit': learn.validate(dl=learn.dls.train)
    of_epoch(kind, parts, tmp_path, [stop, look]).fit(3, cbs=Checkpoint())
    there = of_epoch(kind, parts, tmp_path, [stop, look])
    there.lr_find(show_plot=False, num_it=6)
    del parts[3:]
    there.fit(3, cbs=Checkpoint(), resume='auto')
    assert parts==seen

@pytest.mark.parametrize('kind', ['sampler','batches','inside','stream'])
def test_an_epoch_set_by_hand_before_each_fit_holds(kind):
    seen,right = [],[]
    of_epoch(kind, right).fit(3)
    learn = of_epoch(kind, seen)
    dl = learn.dls.train
    parts = dl.dataset,dl.batch_sampler,dl.batch_sampler.sampler
    part = next(o for o in parts if hasattr(o, 'set_epoch'))
    for epoch in range(3):
        part.set_epoch(epoch)
        learn.fit(1)
    assert seen==right and part.epoch==2

def test_a_part_that_begins_before_epoch_0_is_told_and_one_of_another_kind_is_not():
    told = []
    class Told(list):
        def set_epoch(self, epoch): told.append(epoch)
    for epoch in (-1, torch.zeros(2)):
        dl = Told([X[:4]])
        dl.epoch = epoch
        Learner(DataLoaders(dl, device='cpu', split=lambda b: ((b,), ())), nn.Linear(1, 1), lambda p: p.mean()).fit(2)
    assert told==[0, 1, 0]

def test_fits_one_after_another_begin_with_epoch_0_also_after_an_error():
    seen = []
    @on('after_batch')
    def fails(learn):
        if learn.epoch==1: raise OSError('disk full')
    learn = of_epoch('sampler', seen)
    with pytest.raises(OSError): learn.fit(3, cbs=fails)
    assert learn.dls.train.sampler.epoch==0
    del seen[:]
    for _ in range(2): learn.fit(2)
    assert seen[:4]==seen[4:] and seen[:2]!=seen[2:4]

def test_loaders_that_are_replaced_within_a_fit_are_told_the_epoch():
    seen,right = [],[]
    of_epoch('sampler', right).fit(3)
    learn = of_epoch('sampler', seen)
    old,new = learn.dls,of_epoch('sampler', []).dls
    @on('after_epoch')
    def replace(learn): learn.dls = new
    learn.fit(3, cbs=replace)
    assert seen==right and old.train.sampler.epoch==new.train.sampler.epoch==0

@pytest.mark.parametrize('set_epoch', [3, lambda epoch, total: 1/0])
def test_what_is_no_set_epoch_of_one_number_is_left_alone(set_epoch):
    seen = []
    learn = of_epoch('batches', seen)
    learn.dls.train.batch_sampler.set_epoch = set_epoch
    learn.fit(2)
    assert seen[:2]==seen[2:]

def test_a_callback_may_set_another_epoch():
    seen,later = [],[]
    of_epoch('sampler', seen).fit(4)
    of_epoch('sampler', later, cbs=[on('before_epoch')(lambda l: l.dls.train.sampler.set_epoch(l.epoch+2))]).fit(2)
    assert later==seen[4:]

# A default device, as by `torch.set_default_device('cuda')`
def by_default(default, use, path):
    "What `use` comes to for a Learner on the CPU, where tensors are made on `default`"
    torch.manual_seed(0)
    x,y = torch.randn(30, 3),torch.randint(0, 2, (30,))
    bs = [*zip(x.split(10), y.split(10))]
    learn = Learner(DataLoaders(bs, bs, device='cpu'), nn.Linear(3, 2), nn.CrossEntropyLoss(), lr=.1, path=path,
        metrics=[accuracy, F1Score()], opt_func=torch.optim.SGD).remove_cb(ProgressCallback)
    with torch.device(default): res = use(learn)
    rows = [{k:v for k,v in dict(o).items() if k!='time'} for o in learn.recorder.rows]
    return rows,[p.tolist() for p in learn.model.parameters()],torch.get_rng_state().tolist(),res

@pytest.mark.parametrize('use', [
    lambda learn: learn.fit(2, cbs=Fingerprint()).recorder.raw_losses,
    lambda learn: [o.tolist() for o in learn.get_preds(with_loss=True)],
    lambda learn: learn.get_preds(save_preds=learn.path/'p.npy')[0].tolist(),
    lambda learn: learn.fit(2, cbs=Checkpoint(every=2, unit='iter')).train_iter,
    lambda learn: learn.fit(2, cbs=Rewind(every=2)).rewind(3).resume().train_iter,
    lambda learn: learn.fit(1, cbs=MixedPrecision('fp16', init_scale=4.)).recorder.raw_losses,
    lambda learn: Interpretation.from_learner(learn).top_losses(3).losses.tolist()],
    ids='fit preds file checkpoint rewind fp16 interpret'.split())
def test_what_the_library_makes_for_itself_is_on_the_cpu_whatever_the_default_device(use, tmp_path):
    assert by_default('meta', use, tmp_path/'a')==by_default('cpu', use, tmp_path/'b')

def test_rows_find_their_places_whatever_the_default_device():
    dl = DataLoader(torch.arange(5), batch_sampler=[[3, 0], [4, 1, 2]])
    with torch.device('meta'):
        _,to,n = in_order(dl)
        rows = Rows(n, to)
        for i in dl.batch_sampler: rows.add(dl.dataset[i])
    assert rows.value.tolist()==[0, 1, 2, 3, 4]

def test_generators_are_put_back_whatever_the_default_device():
    gen = torch.Generator().manual_seed(3)
    dl = DataLoader(torch.arange(5), sampler=RandomSampler(range(5), generator=gen))
    with torch.device('meta'):
        with keep_random(dl): a = gen.get_state(); torch.rand(3, device='cpu', generator=gen)
    assert torch.equal(gen.get_state(), a)

@pytest.mark.parametrize('v', [np.array([1, 'a', None], object), np.array([2., 3.]), np.array(['x','yy']), np.array(5),
    np.zeros((0, 3)), np.array(['2020-01-01'], 'datetime64[D]'), torch.tensor([1, 2])], ids=lambda v: str(v.dtype))
def test_arrays_of_every_kind_in_a_sampler_are_described(v):
    "By shape and contents, so that a fit that resumes can tell that they are others"
    from learner.data.loader_state import describe
    class Has(torch.utils.data.Sampler):
        def __init__(self): self.weights = v
        def __iter__(self): return iter(range(4))
        def __len__(self): return 4
    dl = DataLoader(range(4), 2, sampler=Has())
    shape,_,digest = describe(dl)['sampler.weights'].rpartition(' ')
    assert shape==str(tuple(v.shape)) and digest.startswith('#') and describe(dl)==describe(dl)

def test_that_a_batch_to_look_at_is_taken_from_an_iterator_is_told():
    dls = DataLoaders(batches := iter([torch.ones(2), torch.zeros(2)]), device='cpu')
    with pytest.warns(match=r"`dls\['train'\]` is an iterator: .* training does not get the batch"): dls.one_batch()
    assert len([*batches])==1

def test_no_sampler_shuffles_and_a_batch_sampler_goes_into_loaders_of_ones_own():
    ds = TensorDataset(torch.arange(10.), torch.arange(10.))
    dls = DataLoaders.from_dsets(ds, ds, bs=2, sampler=None, device='cpu')
    assert type(dls.train.sampler) is RandomSampler and type(dls.valid.sampler) is SequentialSampler
    with pytest.raises(TypeError, match=r'`batch_sampler` makes batches of one dataset: write `DataLoaders\('):
        DataLoaders.from_dsets(ds, bs=2, batch_sampler=[[0,1]], device='cpu')
