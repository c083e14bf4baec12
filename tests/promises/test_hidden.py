"""Promises 1 and 2 for hidden state: whatever kind it is of, wherever it is, inference leaves it alone, and a resumed
run has it, or says what it has not"""
import random,warnings
from collections import Counter,OrderedDict,defaultdict,deque
from contextlib import redirect_stdout
from functools import cache,lru_cache
from io import StringIO
from types import SimpleNamespace
import matplotlib
import matplotlib.pyplot as plt
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,Dataset,Sampler,Subset
from learner.all import *
from learner.restore.held import Holders
import hidden

matplotlib.use('agg')
X,Y = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)),torch.arange(16)%2

# Places. Each gives what the learner is made with; `draw` is called in training and in validation
class Data(Dataset):
    def __init__(self, draw=None): self.draw = draw
    def __len__(self): return len(X)
    def __getitem__(self, i): return X[i]*(1+(self.draw() if self.draw else 0)),Y[i]
class Order(Sampler):
    def __init__(self, draw): self.draw = draw
    def __len__(self): return len(X)
    def __iter__(self): return iter(sorted(range(len(X)), key=lambda i: (i*(1+float(self.draw())*7))%5))
class Net(nn.Module):
    def __init__(self, draw=None):
        super().__init__()
        torch.manual_seed(0)
        self.l,self.draw = nn.Linear(3, 2),draw
    def forward(self, x): return self.l(x)*(1 if self.draw is None else 1+self.draw())
class Loss(nn.Module):
    def __init__(self, draw): super().__init__(); self.draw = draw
    def forward(self, p, y): return F.cross_entropy(p, y)*(1+self.draw())
class Scales(Callback):
    def __init__(self, draw): self.draw = draw
    def before_batch(self): self.learn.xb = tuple(o*(1+self.draw()) for o in self.learn.xb)
class Opt(torch.optim.SGD):
    def __init__(self, params, lr, draw): super().__init__(params, lr=lr); self.draw = draw
    def step(self, *args): self.param_groups[0]['params'][0].data.mul_(1+self.draw()/10); return super().step(*args)

def loaders(ds, valid=None, collate=None, **kwargs):
    return DataLoader(ds, 4, collate_fn=collate, **kwargs),DataLoader(valid or Subset(ds, range(8)), 4,
        collate_fn=collate)
def function(draw): return lambda p, y: F.cross_entropy(p, y)*(1+draw())
def scaling(draw):
    return on(event.before_batch)(lambda learn: setattr(learn, 'xb', tuple(o*(1+draw()) for o in learn.xb)))
def collated(draw):
    def collate(samples): x,y = torch.utils.data.default_collate(samples); return x*(1+draw()),y
    return loaders(Data(), collate=collate)
def metric(draw):
    def noisy(p, y): return draw()
    return dict(metrics=AccumMetric(noisy),
        cbs=[on(event.before_batch)(
            lambda learn: learn.training and setattr(learn, 'xb', tuple(o*(1+draw()) for o in learn.xb)))])
of_modules = dict(model=lambda draw: dict(model=Net(draw)), loss=lambda draw: dict(loss_func=Loss(draw)))
of_generators = of_modules | dict(loss_function=lambda draw: dict(loss_func=function(draw)),
    callback=lambda draw: dict(cbs=[Scales(draw)]), function_on=lambda draw: dict(cbs=[scaling(draw)]), metric=metric,
    dataset=lambda draw: dict(dls=loaders(Data(draw), shuffle=True)),
    sampler=lambda draw: dict(dls=loaders(Data(), sampler=Order(draw))), collate=lambda draw: dict(dls=collated(draw)))

def made(kind, place, path='.', valid=True):
    draw = {**hidden.buffers, **hidden.attributes, **{f'rare {k}':v for k,v in hidden.rare.items()},
        **hidden.generators}[kind]()
    torch.manual_seed(1); np.random.seed(1); random.seed(1)
    kwargs = dict(model=Net(), loss_func=F.cross_entropy, dls=None) | {**of_generators, **of_optimizers}[place](draw)
    train,v = kwargs.pop('dls') or loaders(Data(), shuffle=True)
    return Learner(DataLoaders(train, v if valid else None, device='cpu'), lr=.1, path=path,
        **dict(opt_func=lambda ps,lr=.1: torch.optim.SGD(ps, lr=lr, momentum=.9)) | kwargs).remove_cb(ProgressCallback)
of_optimizers = dict(optimizer=lambda draw: dict(opt_func=lambda ps,lr=.1: Opt(ps, lr, draw)))

class Steps(Callback):
    order,run_valid,only_fit = 2000,False,True
    def before_fit(self):
        if not hasattr(self, 'losses'): self.losses = []
    def after_batch(self): self.losses.append(self.learn.loss.item())

def outcome(learn, steps): return [*steps.losses,*(p.sum().item() for p in learn.model.parameters())]

# Looking
class Looks(Callback):
    "Calls `f(learn)` at the second `ev` in training"
    only_fit = True
    def __init__(self, ev, f): self.n,self.f = 0,f; super().__init__(**{ev: Looks._tell})
    def _tell(self):
        if not self.training: return
        self.n += 1
        if self.n==2: self.f(self.learn)

def failing(learn):
    with pytest.raises(ZeroDivisionError): learn.validate(1, cbs=Raise('after_loss', ZeroDivisionError))
def unless_refused(f):
    "A loss that draws random numbers has no loss of a sample, which is said"
    def _f(learn):
        try: return f(learn)
        except ValueError as e: assert 'no sample has a loss of its own' in str(e)
    return _f
@unless_refused
def interpreted(learn):
    interp = ClassificationInterpretation.from_learner(learn)
    interp.top_losses(2), interp.show_results([0])
looks = dict(validate=lambda learn: learn.validate(1), validate_on_training=lambda learn: learn.validate(0),
    get_preds=unless_refused(lambda learn: learn.get_preds(with_loss=True)),
    get_preds_inner=lambda learn: learn.get_preds(inner=True),
    predict=lambda learn: learn.predict(torch.ones(3)), tta=lambda learn: learn.tta(n=1, aug=lambda x: x),
    show_results=lambda learn: learn.show_results(), summary=lambda learn: learn.summary(),
    one_batch=lambda learn: learn.dls.one_batch(),
    an_error=failing, interpretation=interpreted)
between = looks | dict(lr_find=lambda learn: learn.lr_find(num_it=6), smoke=lambda learn: learn.smoke())
calls = {**{f'{k} before a fit':dict(around=f) for k,f in between.items()},
    **{f'{k} in training':dict(inside=f) for k,f in looks.items()}, 'own validations':dict(valid=True),
    'validations in the epoch':dict(valid=True, cbs=lambda: [Validate(2, 'iter')])}

def run(kind, place, around=None, inside=None, valid=False, cbs=lambda: []):
    learn,steps = made(kind, place, valid=True),Steps()
    if not valid: learn.dls.valids = {}
    with redirect_stdout(StringIO()):
        for i in range(2):
            if around: around(learn)
            learn.fit(1+i, cbs=[steps, *([Looks('before_draw' if i else 'after_batch', inside)] if inside else []),
                *cbs()])
    plt.close('all')
    return outcome(learn, steps)

alone = {}
def check_look(kind, place, call):
    if (kind,place) not in alone: alone[kind,place] = run(kind, place)
    assert run(kind, place, **calls[call])==alone[kind,place]

modules = {**hidden.buffers, **hidden.attributes}
rare = [pytest.param(f'rare {k}', marks=pytest.mark.slow) if k=='compiled' else f'rare {k}' for k in hidden.rare]
@pytest.mark.sample(48)
@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('place', of_modules)
@pytest.mark.parametrize('kind', modules)
def test_looking_leaves_modules_alone(kind, place, call, tally): check_look(kind, place, call); tally('exact')

@pytest.mark.sample(100)
@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('place', of_modules)
@pytest.mark.parametrize('kind', rare)
def test_looking_leaves_rare_kinds_of_state_alone_or_names_them(kind, place, call, tally):
    if (kind, place)==('rare new_parameter','model'): return tally('refused') # by the second fit, whoever looks
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        if kind!='rare yielding': check_look(kind, place, call)
        else: run(kind, place, **calls[call])
    named = [o for o in said if 'cannot be put back after an inference' in str(o.message)]
    assert bool(named)==(kind=='rare yielding' and not call.startswith('one_batch')) # which runs no model
    tally('warned' if named else 'exact')

def test_a_look_leaves_a_chain_of_iterators_alone_that_has_not_begun():
    check_look('rare chained', 'model', 'validate before a fit')

@pytest.mark.sample(120)
@pytest.mark.parametrize('call', calls)
@pytest.mark.parametrize('place', of_generators)
@pytest.mark.parametrize('kind', hidden.generators)
def test_looking_leaves_generators_alone(kind, place, call, tally): check_look(kind, place, call); tally('exact')

class CountsEpochs(Sampler):
    "Its order depends on how often it was iterated"
    def __init__(self): self.epoch = 0
    def __len__(self): return len(X)
    def __iter__(self): self.epoch += 1; return iter(sorted(range(len(X)), key=lambda i: i*self.epoch%7))

of_training = {**{k:looks[k] for k in ('validate_on_training',)},
    'get_preds': unless_refused(lambda learn: learn.get_preds(0)), 'show_results': lambda learn: learn.show_results(0),
    'lr_find': between['lr_find'], 'smoke': between['smoke']}
@pytest.mark.parametrize('look', of_training)
def test_a_look_at_the_training_loader_leaves_the_epochs_of_its_sampler(look, tally):
    def outcome_of(f):
        torch.manual_seed(0)
        learn = Learner(DataLoaders(*loaders(Data(), sampler=CountsEpochs()), device='cpu'), Net(), F.cross_entropy,
            lr=.1).remove_cb(ProgressCallback)
        with redirect_stdout(StringIO()):
            for _ in range(2): learn.fit(1, cbs=[steps := Steps()]); f(learn)
        plt.close('all')
        return outcome(learn, steps)
    assert outcome_of(of_training[look])==outcome_of(lambda learn: None)
    tally('exact')

# Resuming
class Stop(Callback):
    "Ends the fit before the `n`-th training batch is drawn, or in it"
    order,watches = 500,True
    def __init__(self, n, how): self.n,self.how = n,how
    def before_draw(self):
        if self.training and self.train_iter==self.n and self.how=='pause':
            self.n = -1; self.learn.at_pause(self.stop, stops=True)
    def after_pred(self):
        if self.training and self.train_iter==self.n and self.how=='error': raise InterruptedError
    def stop(self): raise KeyboardInterrupt

def stopped(path, kind, place, how):
    "Losses and weights of a run that is stopped and resumed, and what it says then"
    learn,steps = made(kind, place, path),Steps()
    if how=='memory':
        with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=[steps, stop := Stop(6, 'pause')])
        return outcome(learn.resume(cbs=[steps, stop]), steps)
    saver = Checkpoint(**dict(epoch={}, batch=dict(every=2, unit='iter'))[how], on_exc=False)
    with pytest.raises(InterruptedError): learn.fit(2, cbs=[steps, saver, Stop(6, 'error')])
    learn = made(kind, place, path) # as in another process
    learn.fit(2, cbs=[later := Steps(), saver, Stop(-1, 'error')], resume=True)
    return outcome(learn, later)

ways = 'memory','epoch','batch'
def check_resume(path, kind, place, how, tally=lambda outcome: None):
    "Exact, or refused where a weight has another shape than in a new model"
    learn,steps = made(kind, place, path/'whole'),Steps()
    whole = outcome(learn.fit(2, cbs=[steps, Stop(-1, 'error')]), steps)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        try: res = stopped(path/'cut', kind, place, how)
        except ValueError as e:
            assert kind=='resized' and 'do not fit the model' in str(e)
            return tally('refused')
    n = len(res)
    assert res==whole[-n:] and (how!='memory' or n==len(whole))
    assert not [str(o.message) for o in said if issubclass(o.category, UserWarning)
        and not issubclass(o.category, Mistake)]
    tally('exact')

@pytest.mark.sample(6)
@pytest.mark.parametrize('how', ways)
@pytest.mark.parametrize('place', of_modules)
@pytest.mark.parametrize('kind', modules)
def test_a_resumed_run_has_the_hidden_state_of_modules(kind, place, how, tmp_path, tally):
    check_resume(tmp_path, kind, place, how, tally)

@pytest.mark.sample(100)
@pytest.mark.parametrize('how', ways)
@pytest.mark.parametrize('place', of_modules)
@pytest.mark.parametrize('kind', rare)
def test_a_resumed_run_has_rare_kinds_of_state_or_says_what_it_has_not(kind, place, how, tmp_path, tally):
    if (kind, place)==('rare new_parameter','model'): return tally('refused')
    if how=='memory' or kind.removeprefix('rare ') not in hidden.unsaved: # `yielding` is named by its validations
        if kind!='rare yielding': return check_resume(tmp_path, kind, place, how, tally)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        try: stopped(tmp_path, kind, place, how)
        except TypeError as e:
            assert 'cannot be saved: it is of type `Kept`' in str(e)
            return tally('refused')
    named = [str(o.message) for o in said if 'cannot be saved: a run that is resumed' in str(o.message)
        or 'cannot be put back' in str(o.message)]
    assert any('draw' in o or 'Rare.h' in o for o in named)
    tally('warned')

@pytest.mark.sample(20)
@pytest.mark.parametrize('how', ways)
@pytest.mark.parametrize('place', [*of_generators, *of_optimizers])
@pytest.mark.parametrize('kind', hidden.generators)
def test_a_resumed_run_has_all_generators(kind, place, how, tmp_path, tally):
    check_resume(tmp_path, kind, place, how, tally)

# What cannot be put back is named
class Large(nn.Module):
    "A table whose values are too many to be held"
    def __init__(self):
        super().__init__(); self.l,self.table = nn.Linear(3, 2),nn.Parameter(torch.zeros(2**24+1), requires_grad=False)
    def forward(self, x): self.table.data[:2000].add_(1); return self.l(x)

def test_a_parameter_that_is_too_large_to_be_held_is_named_if_inference_moves_it():
    learn = Learner(DataLoaders([(X[:4], Y[:4])], [(X[:4], Y[:4])], device='cpu'), Large(), F.cross_entropy,
        default_cbs=False, cbs=TrainEvalCallback)
    with pytest.warns(UserWarning,
            match='Inference has changed `model.table`, which has too many values to be put back'):
        learn.validate()

def test_a_search_that_is_cut_says_where():
    from learner.data.generators import is_generator
    from learner.data.search import search
    class Thing: pass
    with pytest.warns(UserWarning, match='holds more than 50 objects'):
        search(dict(ds=[Thing() for _ in range(100)]), is_generator, warns=True, most=50)

# Datasets and callbacks that hold much
class Thing:
    def __init__(self, i): self.i = i

class Beside(Dataset):
    "Draws from a generator that was made after a list of many objects, or inside of something that comes after it"
    def __init__(self, n, entry=Thing, deep=False):
        self.items,rng = [entry(i) for i in range(n)],np.random.default_rng(0)
        self.aug = [[SimpleNamespace(rng=rng)]] if deep else rng
    def __len__(self): return 8
    def __getitem__(self, i):
        rng = self.aug[0][0].rng if isinstance(self.aug, list) else self.aug
        return torch.full((4,), float(rng.normal())),torch.zeros(1)

def of_data(ds, path='.', valid=True, **kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(DataLoader(ds, 4), DataLoader(ds, 4) if valid else None, device='cpu'), nn.Linear(4, 1),
        nn.MSELoss(), path=path, default_cbs=False, cbs=TrainEvalCallback, **kwargs)

class Tagged(Thing):
    def __init__(self, i): self.tags = [i]

@pytest.mark.parametrize('n,entry,deep', [(100_001, Thing, False), (100_001, Thing, True), (60_000, Tagged, True)])
def test_a_generator_beside_more_objects_than_are_searched_is_put_back(n, entry, deep):
    ends = []
    for valid in (False, True):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter('always')
            ends.append(of_data(Beside(n, entry, deep), valid=valid).fit(2, .1).model.weight)
        assert len(told)==1 and '`0.dataset.items' in str(told[0].message) and 'more than 100,000 obj' in str(told[0])
    assert torch.equal(*ends)

entries = dict(dicts=lambda i: dict(x=i), lists=lambda i: [i, i], tuples=lambda i: (i, i), texts=str)
@pytest.mark.parametrize('entry', entries)
@pytest.mark.parametrize('kind', [list, lambda o: dict(enumerate(o))], ids=['list','dict'])
def test_a_table_is_searched_once_in_a_fit(entry, kind, tmp_path, monkeypatch):
    from learner.data.search import Search
    ds,looked,further = Beside(0),[],Search._further
    def counted(self, name, o): looked.append(o is ds.items); return further(self, name, o)
    monkeypatch.setattr(Search, '_further', counted)
    ds.items = kind([entries[entry](i) for i in range(5_000)])
    def n_read(n):
        looked.clear()
        of_data(ds, tmp_path).fit(n, cbs=Checkpoint())
        return sum(looked)
    assert n_read(2)==n_read(5)>0

def put_inside(table, v): table[5][0] = v
def put_in_its_place(table, v): table[5] = v
def put_in_a_new_entry(table, v): table[5] = [(0, [v])]
kinds_of_tables = dict(list=list, tuple=tuple, deque=deque, dict=lambda o: dict(enumerate(o)))
ways_in = put_inside,put_in_its_place,put_in_a_new_entry

@pytest.mark.sample(3, together=2)
@pytest.mark.parametrize('n', [150, 5_000, 20_000])
@pytest.mark.parametrize('put', ways_in)
@pytest.mark.parametrize('entry', [lambda i: [i], lambda i: {0: i}, lambda i: i], ids=['lists','dicts','numbers'])
@pytest.mark.parametrize('kind', kinds_of_tables.values(), ids=kinds_of_tables)
def test_a_generator_that_comes_anywhere_into_a_table_is_found(n, put, entry, kind):
    from learner.data.generators import has_state
    from learner.restore.contents import WatchedSearch
    roots = dict(ds=SimpleNamespace(table=kind(entry(i) for i in range(n))))
    search,rng = WatchedSearch(roots, has_state),np.random.default_rng(0)
    assert search.holds(roots) and not search.found
    try: put(roots['ds'].table, rng)
    except TypeError: return # a tuple or a number
    assert not search.holds(roots) and [*WatchedSearch(roots, has_state).found.values()]==[rng]

@pytest.mark.parametrize('new', [[.7], [1.]*1500], ids=len)
def test_a_list_that_is_replaced_may_get_a_generator_later(new):
    from learner.data.generators import has_state
    from learner.restore.contents import WatchedSearch
    ds,rng = SimpleNamespace(aug=[.5]*len(new), betas=(.9,.99)),np.random.default_rng(0)
    roots = dict(ds=ds)
    search = WatchedSearch(roots, has_state)
    ds.betas = .8,.99
    assert search.holds(roots) # numbers in a tuple stay numbers
    ds.aug = new
    if not search.holds(roots): search = WatchedSearch(roots, has_state)
    assert not search.found
    ds.aug[0] = rng
    assert not search.holds(roots) and [*WatchedSearch(roots, has_state).found.values()]==[rng]

class OfItsOwn(Dataset):
    "Each sample has a generator, which is made when the sample is first drawn"
    def __init__(self, rngs): self.rngs = rngs
    def __len__(self): return 8
    def __getitem__(self, i):
        if self.rngs[i] is None: self.rngs[i] = np.random.default_rng(i)
        return torch.full((4,), float(self.rngs[i].normal())),torch.zeros(1)

class InBetween(Callback):
    def after_train(self): self.learn.get_preds(dl=self.dls.train)

@pytest.mark.parametrize('n', [200, 5_000, 20_000])
@pytest.mark.parametrize('kind', [lambda n: [None]*n, lambda n: dict.fromkeys(range(n))], ids=['list','dict'])
def test_generators_that_come_into_a_long_table_are_put_back(n, kind):
    def end(cbs=()): return of_data(OfItsOwn(kind(n)), valid=False).fit(3, .1, cbs=cbs).model.weight
    assert torch.equal(end(), end(InBetween()))

class Around:
    "A loader around another one"
    def __init__(self, dl): self.dl = dl

def test_the_iterator_that_a_wrapped_loader_keeps_is_its_own():
    from learner.restore.loader_counts import parts_of_loader
    dl = DataLoader(Beside(0), 4)
    dl._iterator = iter(range(9)) # as of persistent workers, but without processes
    parts = parts_of_loader(Around(dl))
    next(dl._iterator)
    assert parts and not any(o.restore() for o in parts)

class Replay(Callback):
    "Keeps what it has seen: much, and nothing that learns"
    def __init__(self): self.buf = [(torch.zeros(2) if i<9 else i, i) for i in range(100_001)]

def test_a_long_buffer_in_a_callback_is_data_and_no_warning_names_it(tmp_path, recwarn):
    of_data(Beside(0), tmp_path).fit(2, cbs=[Replay(), Checkpoint()])
    assert not recwarn.list

def tree(n=40):
    root = dict(name='root', children=[], parent=None)
    root['children'] += [dict(name=i, children=[], parent=root) for i in range(n)]
    return root
def nested(n=2000):
    res = []
    for _ in range(n): res = [res]
    return res
deep = dict(tree=tree(), nested=nested())

@pytest.mark.sample(2)
@pytest.mark.parametrize('name', deep)
@pytest.mark.parametrize('place', ['model','loss','global','dataset'])
def test_a_tree_with_links_to_parents_and_deep_lists_are_no_values(name, place, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), 'structure', deep[name])
    def reads(p, y): return F.mse_loss(p, y)+0*len(structure) # noqa: F821
    ds = Beside(0)
    if place=='dataset': ds.nodes = [*deep[name]['children']]*9 if name=='tree' else [deep[name]]*9
    learn = of_data(ds, tmp_path)
    if place=='model': learn.model.held = deep[name]
    if place=='loss': learn.loss_func.held = deep[name]
    if place=='global': learn.loss_func = reads
    learn.fit(2, cbs=Checkpoint())
    assert of_data(ds, tmp_path).load_state(next((tmp_path/'checkpoints').rglob('*.pt'))).validate()

class ManyBuffers(nn.Module):
    "A small and a large buffer, and what inference does to them"
    def __init__(self, moves):
        super().__init__()
        self.l,self.moves = nn.Linear(4, 1),moves
        self.register_buffer('large', torch.zeros(2**24, dtype=torch.int8))
        self.register_buffer('n', torch.zeros(8))
    def forward(self, x):
        for k in self.moves: getattr(self, k).data[:2000] += 1 # past the version that torch counts
        return self.l(x)

def test_small_buffers_are_put_back_beside_one_that_is_too_large(recwarn):
    learn = of_data(Beside(0), valid=True)
    learn.model = ManyBuffers(['n'])
    learn.validate()
    learn.predict(torch.zeros(4))
    assert learn.model.n.sum()==0 and not recwarn.list
    learn.model.moves = ['n','large']
    with pytest.warns(UserWarning, match='Inference has changed `model.large`, which has too many values'):
        learn.validate()
    assert learn.model.n.sum()==0

# Containers whose methods change what is assigned
class Percent(dict):
    def __setitem__(self, k, v): super().__setitem__(k, 100*v)
class OrderedPercent(OrderedDict):
    def __setitem__(self, k, v): super().__setitem__(k, 100*v)
class CountedPercent(Counter):
    def __setitem__(self, k, v): super().__setitem__(k, 100*v)
class DefaultPercent(defaultdict):
    def __setitem__(self, k, v): super().__setitem__(k, 100*v)
class Doubled(list):
    def __setitem__(self, i, v): super().__setitem__(i, [*v, *v] if isinstance(i, slice) else 2*v)
class Moved(set):
    def update(self, items): super().update(o+1 for o in items)
class Shifted(deque):
    def extend(self, items): super().extend(o+1 for o in items)
def seen(o): o['seen'] = 1
@pytest.mark.parametrize('make,move', [(lambda: Percent(a=1), seen), (lambda: OrderedPercent(b=1, a=2), seen),
    (lambda: CountedPercent('ab'), seen), (lambda: DefaultPercent(int, a=1), seen),
    (lambda: Doubled([1,2]), lambda o: o.append(3)), (lambda: Moved([1,2]), lambda o: o.add(3)),
    (lambda: Shifted([1,2], 3), lambda o: o.append(3))])
def test_contents_are_put_back_as_they_were_whatever_is_made_of_what_is_assigned(make, move):
    model = Net()
    model.held,was = make(),str(make())
    model.draw = lambda: move(model.held) or 0
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), model, F.cross_entropy)
    for _ in range(2): learn.get_preds(0)
    assert str(model.held)==was

class Refusing(list):
    def __setitem__(self, i, v): raise TypeError('only `append` is possible')
@pytest.mark.parametrize('make', [Doubled, Refusing])
def test_a_run_that_resumes_has_lists_as_they_were_whatever_is_made_of_what_is_assigned(make):
    model = Net()
    model.held = make([1,2])
    learn = Learner(DataLoaders([(X[:4], Y[:4])]*3, [(X[:4], Y[:4])], device='cpu'), model, F.cross_entropy)
    learn.fit(2, cbs=on(event.after_batch(once=2, unit='iter'))(lambda learn: learn.stop_soon()))
    learn.resume(cbs=[])
    assert model.held==[1,2]

class Frozen(Net):
    def forward(self, x): self.l.requires_grad_(self.training); return super().forward(x)
def test_a_layer_that_is_frozen_in_evaluation_is_trained_again():
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), Frozen(), F.cross_entropy)
    learn.model.l.bias.requires_grad_(False)
    learn.get_preds(0)
    assert learn.model.l.weight.requires_grad and not learn.model.l.bias.requires_grad

class Rounded(Net):
    def __init__(self): super().__init__(); self.register_buffer('scale', torch.tensor([.123456789]))
    def forward(self, x): self.scale = self.scale.half(); return super().forward(x)*self.scale.float()
def test_a_buffer_that_is_replaced_by_one_of_another_type_is_put_back():
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), Rounded(), F.cross_entropy)
    scale = learn.model.scale
    learn.get_preds(0)
    assert learn.model.scale is scale and torch.equal(scale, torch.tensor([.123456789]))

class Expert:
    def __init__(self): self.calls = 0
    def __call__(self): self.calls += 1; return 0
def test_objects_that_are_keys_are_put_back():
    model = Net()
    model.shares = {Expert(): .5, Expert(): .5}
    model.draw = lambda: sum(o() for o in model.shares)
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), model, F.cross_entropy)
    learn.get_preds(0)
    assert [o.calls for o in model.shares]==[0,0]

class Key:
    "Its hash follows its state"
    n = 0
    def __hash__(self): return self.n
    def __eq__(self, o): return type(o) is Key and o.n==self.n
@pytest.mark.parametrize('also', [False, True], ids=['in the dict alone','elsewhere too'])
def test_keys_that_a_model_changes_are_found_in_their_dict(also):
    model,key = Net(),Key()
    model.d = {key: 0}
    model.both = [key, model.d] if also else []
    def draw():
        k,v = model.d.popitem()
        k.n += 1
        model.d[k] = v+1
        return 0
    model.draw = draw
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), model, F.cross_entropy)
    for _ in range(2): learn.get_preds(0)
    assert [k in model.d for k in model.d]==[True]

def test_keys_of_a_vocabulary_are_not_searched():
    model = Net()
    few = len(Holders([model]).noted)
    model.ids = {Expert(): i for i in range(2000)}
    assert len(Holders([model]).noted)<few+5

def test_what_a_loss_records_in_a_list_outside_stays():
    seen,models = [],dict(first=1)
    def loss(p, y): seen.append(len(y)); models[f'{len(seen)}'] = p.shape; return F.cross_entropy(p, y)
    loss.n_items = len # or it would be tried on two batches at once
    learn = Learner(DataLoaders([(X[:4], Y[:4])], [(X[:4], Y[:4])]*3, device='cpu'), Net(), loss, default_cbs=False,
        cbs=TrainEvalCallback)
    learn.validate()
    assert seen==[4]*3 and len(models)==4

def test_an_iterator_in_a_model_cannot_be_saved_and_is_named(tmp_path):
    model = Net()
    model.it = iter(range(99))
    learn = Learner(DataLoaders([(X[:4], Y[:4])], device='cpu'), model, F.cross_entropy, path=tmp_path,
        default_cbs=False, cbs=TrainEvalCallback)
    with pytest.warns(UserWarning, match='`model.it` cannot be saved'): learn.fit(1, cbs=Checkpoint())

# Caches, and what functions read
@cache
def table(n): return list(range(n))
@lru_cache(2)
def positions(n): return torch.arange(float(n))
@cache
def loaded(name): return nn.Linear(3, 2)
names = dict(a=1)
class LooksUp(Net):
    def forward(self, x): return super().forward(x)*table(3)[1]+positions(len(x))[1]*names['a']+loaded('teacher')(x)*0

def test_a_cache_of_results_that_stay_what_they_are_is_no_state(tmp_path, recwarn):
    for f in (table, positions, loaded): f.cache_clear()
    learn = Learner(DataLoaders([(X[:4], Y[:4])]*2, [(X[:4], Y[:4])], device='cpu'), LooksUp(), F.cross_entropy,
        path=tmp_path, default_cbs=False, cbs=TrainEvalCallback)
    learn.validate()
    first = loaded('teacher') # what takes long to load stays
    learn.fit(2, cbs=Checkpoint(1, 'iter'))
    learn.validate()
    assert loaded('teacher') is first and loaded.cache_info().misses==1 and table(3)==[0,1,2] and names==dict(a=1)
    assert not recwarn.list

class PerChannel(nn.Module):
    "Observers whose buffers get their shape from the first batch"
    def __init__(self):
        super().__init__()
        from torch.ao.quantization import FakeQuantize,MovingAveragePerChannelMinMaxObserver,PerChannelMinMaxObserver
        torch.manual_seed(0)
        self.l,self.o = nn.Linear(3, 2),PerChannelMinMaxObserver(ch_axis=1)
        self.q = FakeQuantize(observer=MovingAveragePerChannelMinMaxObserver, ch_axis=0,
            qscheme=torch.per_channel_symmetric, dtype=torch.qint8, quant_min=-128, quant_max=127)
    def forward(self, x): return F.linear(self.o(x), self.q(self.l.weight), self.l.bias)

@pytest.mark.filterwarnings('ignore')
def test_observers_that_get_their_shape_from_the_first_batch_are_saved_loaded_and_resumed(tmp_path):
    def new():
        return Learner(DataLoaders([(X[:8], Y[:8])]*3, [(X[8:16], Y[8:16])], device='cpu'), PerChannel(),
            F.cross_entropy, lr=.1, path=tmp_path).remove_cb(ProgressCallback)
    whole,cut = new().fit(2),new()
    whole.save('w')
    assert new().load('w').validate()==whole.validate()
    saver = Checkpoint(1, 'iter', on_exc=False)
    with pytest.raises(InterruptedError): cut.fit(2, cbs=[saver, Stop(4, 'error')])
    again = new().fit(2, cbs=saver, resume=True)
    assert all(map(torch.equal, whole.model.state_dict().values(), again.model.state_dict().values()))
