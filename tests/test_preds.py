"Predictions of every sample, in the order of the data; inference that changes nothing; no holes, no copies"
import gc,itertools,os,random,warnings,weakref
from collections import OrderedDict,namedtuple
from dataclasses import InitVar,dataclass,field
from functools import partial
from pathlib import Path
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler,DataLoader,Dataset,IterableDataset,RandomSampler,SequentialSampler, \
    SubsetRandomSampler,TensorDataset,WeightedRandomSampler
import matplotlib
from learner.all import *
from processes import run_script
matplotlib.use('agg')
import matplotlib.pyplot as plt

N,C = 23,3
class Net(nn.Module):
    def __init__(self, n_in=4, n_out=C): super().__init__(); self.lin,self.drop = nn.Linear(n_in, n_out),nn.Dropout(.5)
    def forward(self, *xs): return self.drop(self.lin(sum(xs)))

gen = torch.Generator().manual_seed(0)
X,Y,V = torch.randn(N, 4, generator=gen),torch.randint(C, (N,), generator=gen),torch.randn(N, 2, generator=gen)
ds = TensorDataset(X, Y)

def mk(valid=None, model=None, loss_func=None, train=None, **kwargs):
    torch.manual_seed(0)
    dls = DataLoaders([(X[:4], Y[:4])]*2 if train is None else train, DataLoader(ds, 5) if valid is None else valid,
        device='cpu')
    return Learner(dls, model or Net(), loss_func or nn.CrossEntropyLoss(), opt_func=SGD,
        **kwargs).remove_cb(ProgressCallback)

def logits(learn, x=X):
    with torch.no_grad(): return learn.model.lin(x)
def close(a, b): return a.shape==b.shape and torch.allclose(a, b, atol=1e-6)
def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b))

# Order
class Pairs:
    "A batch sampler of one's own: long and short batches, from both ends"
    def __iter__(self): yield from ([0, N-1], list(range(N-2, 5, -1)), [3, 2, 1], [4, 5])
    def __len__(self): return 4

def gens(): return torch.Generator().manual_seed(7)
loaders = dict(plain=lambda: DataLoader(ds, 5), shuffled=lambda: DataLoader(ds, 5, shuffle=True),
    drop_last=lambda: DataLoader(ds, 5, drop_last=True), both=lambda: DataLoader(ds, 5, shuffle=True, drop_last=True),
    own=lambda: DataLoader(ds, 5, shuffle=True, generator=gens()),
    batches=lambda: DataLoader(ds, batch_sampler=Pairs()),
    subset=lambda: DataLoader(ds, 5, sampler=SubsetRandomSampler(range(N))),
    random=lambda: DataLoader(ds, 5, sampler=RandomSampler(ds, generator=gens())),
    batch_random=lambda: DataLoader(ds, batch_sampler=BatchSampler(RandomSampler(ds), 4, True)),
    workers=lambda: DataLoader(ds, 5, shuffle=True, num_workers=1),
    one=lambda: DataLoader(ds, 1, shuffle=True), all=lambda: DataLoader(ds, N, shuffle=True))

@pytest.mark.parametrize('name', loaders)
@pytest.mark.parametrize('where', ['dl','ds_idx'])
def test_all_samples_in_their_order(name, where):
    dl = loaders[name]()
    learn = mk(dl if where=='ds_idx' else None)
    inp,preds,targs,dec,losses = learn.get_preds(dl=dl if where=='dl' else None, with_input=True, with_decoded=True,
        with_loss=True)
    out = logits(learn)
    assert (torch.equal(inp, X) and torch.equal(targs, Y) and close(preds, out.softmax(1))
        and torch.equal(dec, out.argmax(1)) and close(losses, F.cross_entropy(out, Y, reduction='none')))

@pytest.mark.parametrize('make,n',
    [(lambda: WeightedRandomSampler(torch.arange(N, dtype=torch.float), 17), 17),
        (lambda: WeightedRandomSampler([1.]*N, 40), 40), (lambda: RandomSampler(ds, replacement=True), N),
    (lambda: RandomSampler(ds, num_samples=9), 9), (lambda: SubsetRandomSampler([7, 3, 20, 4]), 4),
    (lambda: RandomSampler(range(N-1), num_samples=N), N)],
    ids=['weighted','more','replacement','fewer','subset','twice'])
def test_samplers_that_repeat_or_leave_out(make, n):
    "Rows stand in the order of the dataset, as often as they were drawn"
    torch.manual_seed(5)
    dl = DataLoader(ds, 4, sampler=make())
    state = torch.get_rng_state()
    drawn = sorted(i for b in dl.batch_sampler for i in b)
    torch.set_rng_state(state)
    learn = mk()
    torch.set_rng_state(state)
    preds,targs = learn.get_preds(dl=dl)
    assert len(drawn)==n and torch.equal(targs, Y[drawn]) and close(preds, logits(learn, X[drawn]).softmax(1))

class Backwards(torch.utils.data.Sampler):
    "A sampler of one's own: the last ones first, and a few of them not at all"
    def __iter__(self): return iter(range(N-1, 3, -1))
    def __len__(self): return N-4

@pytest.mark.parametrize('reorder', [True, False])
@pytest.mark.parametrize('own', [False, True], ids=['sampler','batch_sampler'])
@pytest.mark.parametrize('make',
    [Backwards, lambda: SubsetRandomSampler(range(3, N-1)), lambda: WeightedRandomSampler([1.]*N, 22),
        lambda: SequentialSampler(range(6)), lambda: [9,4,11]],
    ids=['own','subset','weighted','part','list'])
def test_an_incomplete_last_batch_is_not_left_out(make, own, reorder):
    "Whatever draws the samples, `drop_last` is for training"
    def loader():
        sampler = make()
        if isinstance(sampler, torch.utils.data.Sampler): sampler.generator = gens()
        return (DataLoader(ds, batch_sampler=BatchSampler(sampler, 5, True))
            if own else DataLoader(ds, 5, sampler=sampler, drop_last=True))
    drawn = list(loader().batch_sampler.sampler)
    rows = sorted(drawn) if reorder else drawn
    learn = mk()
    preds,targs = learn.get_preds(dl=loader(), reorder=reorder)
    assert len(rows)%5 and torch.equal(targs, Y[rows]) and close(preds, logits(learn, X[rows]).softmax(1))

def test_a_batch_sampler_of_ones_own_has_its_will():
    class Full(Pairs):
        def __iter__(self): return (o for o in super().__iter__() if len(o)>2)
        def __len__(self): return 2
    preds,targs = mk().get_preds(dl=DataLoader(ds, batch_sampler=Full()))
    assert torch.equal(targs, Y[[1,2,3,*range(6, N-1)]])

class Keyed(Dataset):
    "Samples by name, or by number and scale"
    def __len__(self): return N
    def __getitem__(self, k):
        i,scale = k if isinstance(k, tuple) else (int(k), 1.)
        return X[i]*scale,Y[i]

@pytest.mark.parametrize('key', [lambda i: f'{i:02}', lambda i: (i, 1.+i%2), np.int64, torch.tensor],
    ids=['name','pair','numpy','tensor'])
def test_samples_that_are_drawn_by_something_else_than_a_number(key):
    drawn = [key(i) for i in torch.randperm(N, generator=gen).tolist()]
    learn,scale = mk(dl := DataLoader(Keyed(), 5, sampler=drawn)),torch.ones(N, 1)
    if isinstance(drawn[0], tuple): scale[1::2] = 2.
    preds,targs = learn.get_preds()
    assert torch.equal(targs, Y) and close(preds, logits(learn, X*scale).softmax(1))
    some = Interpretation(learn)[[3,8]]
    assert close(some.inputs, (X*scale)[[3,8]]) and torch.equal(some.targs, Y[[3,8]])
    preds,targs = learn.get_preds(dl=dl, reorder=False)
    right = [int(o[0] if isinstance(o, tuple) else o) for o in drawn]
    assert torch.equal(targs, Y[right])

def test_without_reordering_the_order_is_the_loaders():
    learn = mk()
    inp,preds,targs = learn.get_preds(dl=DataLoader(ds, 5, shuffle=True, generator=gens()), reorder=False,
        with_input=True)
    rows = [int((X==o).all(1).nonzero()) for o in inp]
    assert (rows!=sorted(rows)==list(range(N)) and torch.equal(targs, Y[rows])
        and close(preds, logits(learn, inp).softmax(1)))

class Stream(IterableDataset):
    def __iter__(self): return iter(zip(X, Y))
def in_batches(n=5): return [(X[i:i+n], Y[i:i+n]) for i in range(0, N, n)]
streams = dict(list=in_batches, generator=lambda: (o for o in in_batches()), stream=lambda: DataLoader(Stream(), 5))

@pytest.mark.parametrize('kind', streams)
def test_any_iterable(kind):
    learn = mk()
    preds,targs = learn.get_preds(dl=streams[kind]())
    assert torch.equal(targs, Y) and close(preds, logits(learn).softmax(1))

@pytest.mark.parametrize('kind', streams)
def test_files_of_any_iterable(kind, tmp_path):
    preds,_ = mk().get_preds(dl=streams[kind](), save_preds=tmp_path/'p.npy')
    assert np.array_equal(np.load(tmp_path/'p.npy'), preds.numpy())

# Arguments
@pytest.mark.parametrize('inp,dec,loss,p,t', [*itertools.product([False, True], repeat=5)])
def test_what_is_returned(inp, dec, loss, p, t):
    learn = mk()
    res = learn.get_preds(with_input=inp, with_decoded=dec, with_loss=loss, with_preds=p, with_targs=t)
    out = logits(learn)
    expected = [*([X] if inp else []), out.softmax(1) if p else None, Y if t else None,
        *([out.argmax(1)] if dec else []), *([F.cross_entropy(out, Y, reduction='none')] if loss else [])]
    assert (type(res) is tuple and len(res)==len(expected)
        and all(a is None if b is None else close(a, b) for a,b in zip(res, expected)))

acts = [(nn.CrossEntropyLoss(), lambda o: o.softmax(1), lambda o: o.argmax(1)),
    (F.cross_entropy, lambda o: o.softmax(1), lambda o: o.argmax(1)),
    (CrossEntropyLossFlat(), lambda o: o.softmax(1), lambda o: o.argmax(1)),
    (LabelSmoothingCrossEntropy(), lambda o: o.softmax(1), lambda o: o.argmax(1)),
    (lambda p,t: F.cross_entropy(p, t), lambda o: o, lambda o: o)]
@pytest.mark.parametrize('loss_func,act,dec', acts, ids=['module','function','flat','smooth','lambda'])
def test_activation_and_decision_belong_to_the_loss(loss_func, act, dec):
    learn = mk(loss_func=loss_func)
    preds,_,said = learn.get_preds(with_decoded=True)
    assert (close(preds, act(logits(learn)))
        and torch.equal(said, dec(logits(learn))) if loss_func is not acts[-1][0] else close(said, preds))
    raw,_,said = learn.get_preds(act=lambda o: o*2, with_decoded=True)
    assert close(raw, logits(learn)*2) and close(said.float(), dec(raw).float())

def test_loaders_by_name_and_number():
    learn = mk(dict(a=DataLoader(ds, 5), b=[(X[:3], Y[:3])]), train=[(X[3:8], Y[3:8])])
    for i,n in ((0, 5), (1, N), (2, 3), ('train', 5), ('a', N), ('b', 3), (-1, 3)): assert len(learn.get_preds(i)[0])==n
    with pytest.raises(KeyError, match="No loader 'bb'.*`b`"): learn.get_preds('bb')
    with pytest.raises(IndexError, match='No loader 3'): learn.get_preds(3)
    with pytest.raises(TypeError, match='no argument `with_inputs`.*`with_input`'): learn.get_preds(with_inputs=True)

def test_inner_and_callbacks():
    trace,inside = Trace(),Trace()
    learn = mk()
    learn.get_preds(cbs=trace); learn.get_preds(cbs=[inside], inner=True)
    assert trace.seen==['after_create','before_fit','before_epoch',*inside.seen[1:],'after_epoch','cleanup_epoch',
        'after_fit','cleanup_fit'] and inside.seen[1]=='before_validate' and inside.seen[-1]=='cleanup_validate'
    assert trace not in learn.cbs and not any(isinstance(o, GatherPredsCallback) for o in learn.cbs)

class Count(Callback):
    "Counts batches from its `before_fit` on"
    def before_fit(self): self.n,self.ended = 0,[]
    def after_batch(self): self.n += 1
    def after_epoch(self): self.ended.append('epoch')
    def cleanup_fit(self): self.ended.append('fit')

@pytest.mark.parametrize('ev', ['before_fit','before_train','after_batch','cleanup_validate'])
@pytest.mark.parametrize('f', [Learner.validate, Learner.get_preds])
def test_a_callback_for_one_inference_begins_there_also_inside_a_fit(f, ev):
    learn,own,of_fit = synth_learner(),Count(),Trace()
    learn.on(ev)(lambda learn: f(learn, cbs=own) if learn.mode=='fit' else None)
    learn.fit(1, cbs=of_fit)
    assert own.n==len(learn.dls.valid) and own.ended==['epoch','fit'] and own.learn is None
    assert of_fit.seen.count('before_fit')==of_fit.seen.count('after_epoch')==of_fit.seen.count('cleanup_fit')==1

@pytest.mark.parametrize('ev,cleaned', [('before_fit', False), ('before_epoch', True), ('after_epoch', True)])
def test_a_callback_for_one_inference_inside_a_fit_that_fails_undoes_what_it_has_begun(ev, cleaned):
    learn,own = synth_learner(),Count()
    fails = Raise(ev, ValueError, 1)
    fails.order = own.order-1
    learn.on(event.after_train)(lambda learn: learn.validate(cbs=[own, fails]))
    with pytest.raises(ValueError) as e: learn.fit(1)
    assert hasattr(own, 'ended')==cleaned and (not cleaned or own.ended[-1]=='fit') and own not in learn.cbs
    assert f'raised by `Raise.{ev}`' in e.value.__notes__ and not any('came into' in o for o in e.value.__notes__)

def test_callbacks_change_what_is_predicted():
    learn = mk()
    cb = Callback(after_pred=lambda self: setattr(self.learn, 'pred', self.pred+1))
    assert close(learn.get_preds(cbs=cb, act=lambda o: o)[0], logits(learn)+1)

def test_as_a_callback():
    cb = GatherPredsCallback(with_loss=True, with_input=True)
    learn = mk()
    learn.validate(cbs=cb)
    assert (close(cb.preds, logits(learn)) and torch.equal(cb.targets, Y) and torch.equal(cb.inputs, X)
        and close(cb.losses, F.cross_entropy(logits(learn), Y, reduction='none')))

# Structures
Out = namedtuple('Out', 'a b')
class HF(OrderedDict):
    "As the outputs of Hugging Face models: a mapping with attributes"
    def __getattr__(self, k):
        if k in self: return self[k]
        raise AttributeError(k)

shapes = dict(tuple=lambda o: (o, o*2), list=lambda o: [o, o*2], dict=lambda o: dict(a=o, b=o*2),
    named=lambda o: Out(o, o*2), HF=lambda o: HF(a=o, b=o*2), nested=lambda o: dict(a=o, b=(o, [o*2])))
def leaves(o):
    return ([] if o is None else [o]
        if isinstance(o, torch.Tensor) else [p for v in (o.values() if isinstance(o, dict) else o) for p in leaves(v)])

@pytest.mark.parametrize('dl', ['plain','shuffled','batches','stream'])
@pytest.mark.parametrize('shape', shapes)
def test_structured_predictions(shape, dl):
    class Many(Net):
        def forward(self, x): return shapes[shape](self.lin(x))
    learn = mk(model=Many(), loss_func=lambda p,t: leaves(p)[0].mean())
    preds,targs = learn.get_preds(dl=DataLoader(Stream(), 5) if dl=='stream' else loaders[dl]())
    expected = shapes[shape](logits(learn))
    assert (type(preds) is (dict if shape=='HF' else type(expected)) and torch.equal(targs, Y)
        and all(close(a, b) for a,b in zip(leaves(preds), leaves(expected), strict=True)))

@pytest.mark.parametrize('dl', ['plain', 'batches'])
def test_models_of_hugging_face(dl):
    "Called by keyword, with a loss in the output and parts that are None"
    class Model(Net):
        def forward(self, x, labels=None):
            out = self.lin(x)
            return HF(loss=None if labels is None else F.cross_entropy(out, labels), logits=out, hidden=None)
    class Dicts(Dataset):
        def __len__(self): return N
        def __getitem__(self, i): return dict(x=X[i], labels=Y[i])
    learn = Learner(DataLoaders(DataLoader(Dicts(), 5), device='cpu'), Model(),
        opt_func=SGD).remove_cb(ProgressCallback)
    preds,targs = learn.get_preds(
        dl=DataLoader(Dicts(), 5, shuffle=True) if dl=='plain' else DataLoader(Dicts(), batch_sampler=Pairs()))
    assert close(preds, logits(learn).softmax(1)) and torch.equal(targs, Y)
    no_labels = [dict(x=X[i:i+5]) for i in range(0, N, 5)]
    preds,targs = learn.get_preds(dl=no_labels)
    assert close(preds, logits(learn).softmax(1)) and targs is None
    learn.loss_func = lambda out,y: out.loss # one's own loss gets the whole output
    preds,targs = learn.get_preds(dl=no_labels)
    assert close(preds['logits'], logits(learn)) and targs is None and [*preds]==['logits']

def test_named_tuples_may_have_none():
    class Model(Net):
        def forward(self, x): return Out(self.lin(x), None)
    learn = mk(model=Model(), loss_func=lambda p,t: p.a.mean())
    preds,_ = learn.get_preds()
    assert type(preds) is Out and close(preds.a, logits(learn)) and preds.b is None

def test_inputs_are_those_before_the_model_changes_them():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, C))
    assert close(mk(model=model).get_preds(with_input=True)[0], X)

def test_several_inputs_and_targets():
    both = TensorDataset(X, X*2, Y, V)
    learn = Learner(DataLoaders([(X, X, Y, V)], DataLoader(both, 5, shuffle=True), device='cpu', n_inp=2), Net(),
        lambda p,y,v: F.cross_entropy(p, y)+v.mean(), opt_func=SGD).remove_cb(ProgressCallback)
    inp,preds,targs,losses = learn.get_preds(with_input=True, with_loss=True)
    assert (same(inp, (X, X*2)) and {type(inp), type(targs)}=={tuple} and same(targs, (Y, V))
        and close(preds, logits(learn, X*3)))
    assert close(losses, F.cross_entropy(preds, Y, reduction='none')+V.mean(1))

@pytest.mark.parametrize('dl', [[X[:9], X[9:]], [(X[:9],), (X[9:],)], DataLoader(X, 5, shuffle=True)],
    ids=['tensors','tuples','loader'])
def test_no_targets(dl):
    learn = mk()
    preds,targs,dec,losses = learn.get_preds(dl=dl, with_decoded=True, with_loss=True)
    assert (close(preds, logits(learn).softmax(1)) and targs is None and losses is None
        and torch.equal(dec, logits(learn).argmax(1)))

class Masked(nn.Module):
    "Has a second input that may be left out"
    def __init__(self): super().__init__(); self.lin = nn.Linear(4, 4)
    def forward(self, x, mask=None): return self.lin(x if mask is None else x*mask)

def masked(train):
    torch.manual_seed(0)
    return Learner(DataLoaders(train, train, device='cpu'), Masked(), nn.MSELoss()).remove_cb(ProgressCallback)

two = TensorDataset(X, X.sign())
@pytest.mark.parametrize('train', [DataLoader(TensorDataset(X, X.sign(), X), 5), [(X, X.sign(), X)]],
    ids=['loader','list'])
@pytest.mark.parametrize('dl', [[two[:9], two[9:]], DataLoader(two, 5, shuffle=True), [[X, X.sign()]]],
    ids=['tuples','loader','lists'])
def test_several_inputs_without_targets(train, dl):
    "As many parts as there are inputs in training: the last one is no target, though a loss could compare it"
    learn = masked(train)
    preds,targs = learn.get_preds(dl=dl)
    assert targs is None and close(preds, learn.model(X, X.sign()).detach()) and close(preds, learn.get_preds()[0])
    assert close(learn.get_preds(dl=[(X,)])[0], learn.model(X).detach())

def test_what_is_said_of_inputs_decides_where_there_are_no_targets():
    learn = masked(DataLoader(TensorDataset(X, X.sign(), X), 5))
    for k,v in dict(n_inp=1, split=lambda b: (b[:1], b[1:])).items():
        learn.dls = DataLoaders(learn.dls.train, learn.dls.valid, device='cpu', **{k:v})
        assert close(learn.get_preds(dl=[(X, X.sign())])[1], X.sign())

@pytest.mark.parametrize('dim', [None, 0, 1])
@pytest.mark.parametrize('save', [False, True])
def test_batches_are_put_together_along(dim, save, tmp_path):
    dl = [(X[:5], V[:5]), (X[5:10], V[5:10])]
    learn = mk(loss_func=nn.MSELoss(), model=Net(4, 2))
    preds,targs = learn.get_preds(dl=dl, concat_dim=dim,
        save_preds=tmp_path/'sub'/'p.npy' if save and dim is not None else None)
    outs = [logits(learn, x) for x,_ in dl]
    if dim is None:
        assert all(map(close, preds, outs)) and same(targs, [v for _,v in dl]) and type(preds) is list and len(preds)==2
    else: assert close(preds, torch.cat(outs, dim)) and torch.equal(targs, torch.cat([v for _,v in dl], dim))

class Stack(nn.Module):
    "Three members, `(members, bs, n_classes)`"
    def __init__(self): super().__init__(); self.members = nn.ModuleList(nn.Linear(4, C) for _ in range(3))
    def forward(self, x): return torch.stack([m(x) for m in self.members])
def of_members(p, t): return F.cross_entropy(p.flatten(0, 1), t.repeat(3), reduction='none').view(3, -1).mean()

@pytest.mark.parametrize('dl',
    [lambda: DataLoader(ds, 6), lambda: DataLoader(ds, 6, shuffle=True), lambda: in_batches(6)],
    ids=['loader','shuffled','list'])
def test_a_stacked_ensemble_is_put_together_along_its_samples(dl, tmp_path):
    learn = mk(model=Stack(), loss_func=of_members)
    with pytest.raises(ValueError, match=r'of 6 samples have shape \(3, 6, 3\).*`get_preds\(concat_dim=1\)`'):
        learn.get_preds(dl=dl())
    with torch.no_grad(): expected = learn.model(X)
    x,preds,targs,losses = learn.get_preds(dl=dl(), concat_dim=1, with_input=True, with_loss=True)
    assert close(preds, expected) and torch.equal(targs, Y) and torch.equal(x, X)
    assert close(losses, torch.stack([of_members(expected[:,i:i+1], Y[i:i+1]) for i in range(N)]))
    _,targs = learn.get_preds(dl=dl(), concat_dim=1, save_targs=tmp_path/'t.npy')
    assert torch.equal(targs, Y) and np.array_equal(np.load(tmp_path/'t.npy'), Y)
    assert close(learn.get_preds(dl=dl(), with_preds=False, with_loss=True)[2], losses)

def test_targets_beside_predictions_along_another_dimension():
    "Several targets of a sample are along the first dimension, and time steps before samples are not"
    def batches(*parts): return [*zip(*(o.split(5, d) for o,d in parts))]
    learn = mk(model=Stack(), loss_func=lambda p,*t: p.mean())
    learn.dls.n_inp = 1
    _,(v,y) = learn.get_preds(dl=batches((X, 0), (V, 0), (Y, 0)), concat_dim=1)
    assert torch.equal(v, V) and torch.equal(y, Y)
    seqs,t = torch.stack([X]*7),torch.stack([Y]*7) # (time, bs, n_in), (time, bs)
    learn = mk(loss_func=lambda p,t: p.mean())
    x,preds,targs = learn.get_preds(dl=batches((seqs, 1), (t, 1)), concat_dim=1, with_input=True)
    assert torch.equal(x, seqs) and torch.equal(targs, t) and close(preds, logits(learn, seqs))

@pytest.mark.parametrize('dim', [1, -2])
@pytest.mark.parametrize('steps', [2, 5])
def test_time_steps_before_samples_may_be_as_many(steps, dim):
    "As many steps as samples in a batch"
    seqs,t = torch.stack([X+i for i in range(steps)]),torch.stack([Y]*steps)
    learn = mk(loss_func=lambda p,t: p.mean())
    dl = [*zip(seqs.split(5, 1), t.split(5, 1))]
    x,preds,targs = learn.get_preds(dl=dl, concat_dim=dim, with_input=True)
    assert torch.equal(x, seqs) and torch.equal(targs, t) and close(preds, logits(learn, seqs))

@pytest.mark.parametrize('bs', [3, 4, 5])
def test_boxes_of_all_samples_may_come_together(bs):
    "Four numbers for each box, also where a batch has four samples"
    n_boxes = 1+torch.arange(N)%4
    class Boxes(Net):
        def forward(self, i): return self.lin(X)[i,:1].repeat_interleave(n_boxes[i], 0).repeat(1, 4)
    learn = mk(model=Boxes(), loss_func=lambda p,t: p.mean())
    dl = [*zip(torch.arange(N).split(bs), Y.split(bs))]
    preds,targs = learn.get_preds(dl=dl)
    assert torch.equal(targs, Y) and close(preds, logits(learn)[:,:1].repeat_interleave(n_boxes, 0).repeat(1, 4))

@pytest.mark.parametrize('members', [3, 10])
def test_a_stacked_ensemble_is_refused_where_it_is_certain(members):
    "A multiple of the samples may also be several rows for each of them, unless their number is known"
    class Members(Net):
        def forward(self, x): return self.lin(x).repeat(members, 1, 1)
    learn = mk(model=Members(), loss_func=lambda p,t: p.mean())
    told = rf'of 5 samples have shape \({members}, 5, {C}\).*`get_preds\(concat_dim=1\)`'
    with pytest.raises(ValueError, match=told): learn.get_preds(dl=DataLoader(ds, 5))
    if members%5:
        with pytest.raises(ValueError, match=told): learn.get_preds(dl=in_batches(5))
    assert learn.get_preds(dl=in_batches(5), concat_dim=1)[0].shape==(members, N, C)

@pytest.mark.parametrize('f,n', [(lambda o: o.repeat(2, 1), 2*N), (lambda o: o[:2], 10), (lambda o: o.T[:2].T, N),
    (lambda o: o.mean(), 5)], ids=['views','pooled','fewer outputs','one'])
def test_predictions_with_other_rows_than_samples_stay_as_they_come(f, n):
    learn = mk(model=Varying(lambda o,i: f(o)), loss_func=lambda p,t: p.mean())
    preds,targs = learn.get_preds(dl=in_batches())
    assert len(preds)==n and torch.equal(targs, Y) and close(preds, torch.cat([torch.atleast_1d(f(logits(learn, x)))
        for x,_ in in_batches()]))

@pytest.mark.parametrize('dl', ['loader','list'])
def test_ragged_predictions(dl):
    "Padded to the longest of a batch, as sequences are"
    class Ragged(Net):
        def forward(self, x): return self.lin(x).repeat(1, 1+int(x[0,0]==X[5,0]))
    learn = mk(model=Ragged(), loss_func=lambda p,t: p.mean())
    dl = DataLoader(ds, 5) if dl=='loader' else [(X[i:i+5], Y[i:i+5]) for i in range(0, N, 5)]
    advice = 'Predictions cannot be put together.*all be padded to one width, in the `collate_fn`.*`concat_dim=None`'
    with pytest.raises(ValueError, match=advice): learn.get_preds(dl=dl)
    preds,targs = learn.get_preds(dl=dl, concat_dim=None)
    assert [tuple(o.shape) for o in preds]==[(5,3),(5,6),(5,3),(5,3),(3,3)] and len(targs)==5
    assert learn.mode is None and learn.fit(1).train_iter==2

# Holes
@pytest.mark.parametrize('dl', ['plain','shuffled','batches'])
@pytest.mark.parametrize('what', ['model','collate','act'])
def test_fewer_rows_than_samples_leave_no_holes(what, dl):
    """A model or an activation that pools, a `collate_fn` that leaves samples out: rows that were never written are
    not returned"""
    class Pools(Net):
        def forward(self, x): return self.lin(x)[::2 if what=='model' else 1]
    dl = loaders[dl]()
    if what=='collate':
        dl.collate_fn = lambda items: torch.utils.data.default_collate([o for o in items if o[1]!=1] or items[:1])
    learn = mk(model=Pools(), loss_func=lambda p,t: p.mean())
    try: preds,targs = learn.get_preds(dl=dl, act=(lambda o: o[::2]) if what=='act' else None)
    except (ValueError, RuntimeError) as e: assert 'rows' in str(e) or 'samples' in str(e)
    else:
        expected = {tuple(o) for o in logits(learn).round(decimals=4).tolist()}
        assert (all(tuple(o) in expected for o in preds.round(decimals=4).tolist()) and len(preds)<N
            and (what!='collate' or len(targs)==len(preds)))

def test_more_rows_than_samples():
    class Doubles(Net):
        def forward(self, x): return self.lin(x).repeat(2, 1)
    learn = mk(model=Doubles(), loss_func=lambda p,t: p.mean())
    with pytest.raises(ValueError, match='more rows than the loader has samples, 23'): learn.get_preds()
    assert len(learn.get_preds(concat_dim=None)[0])==5

@pytest.mark.parametrize('inner', [False, True])
@pytest.mark.parametrize('exc,ev,order', [(e, ev, o)
    for e in (CancelBatchException,CancelValidException)
    for ev in ('before_batch','after_pred','after_loss','before_validate','after_batch','before_draw')
    for o in (-5, 5)])
def test_cancelled_is_never_silent(exc, ev, order, inner):
    "Either everything is there, or it is an error"
    learn = mk()
    try:
        preds,_ = learn.get_preds(cbs=Raise(ev, exc('enough'), 1 if ev=='before_validate' else 2, order=order),
            inner=inner)
    except RuntimeError as e:
        assert 'cancel' in str(e).lower() and (exc is CancelBatchException or 'enough' in str(e)+str(e.__cause__))
    else: assert close(preds, logits(learn).softmax(1))
    assert learn.mode is None and close(learn.get_preds()[0], logits(learn).softmax(1))

@pytest.mark.parametrize('ev', ['before_fit','before_epoch','before_validate','before_batch','after_pred'])
@pytest.mark.parametrize('exc', (CancelEpochException, CancelFitException), ids=['epoch','fit'])
def test_cancelled_epochs_and_fits_say_so(exc, ev):
    if ev=='before_fit' and exc is CancelEpochException: exc = CancelFitException
    with pytest.raises(RuntimeError, match='cancelled'): mk().get_preds(cbs=Raise(ev, exc))

def test_an_error_leaves_everything_as_it_was():
    learn = mk().fit(1)
    def state():
        return {k:getattr(learn, k)
            for k in ('mode','training','epoch','train_iter','dl','dl_name','batch','xb','yb','pred','loss','iter',
                'n_iter')},len(learn.cbs),torch.get_rng_state().tolist()
    before = state()
    with pytest.raises(ValueError): learn.get_preds(cbs=Raise('after_pred', ValueError, 2))
    with pytest.raises(KeyboardInterrupt): learn.get_preds(cbs=Raise('after_pred', KeyboardInterrupt, 2))
    assert state()==before and learn.fit(1).train_iter==2

looks = dict(get_preds=Learner.get_preds, tta=Learner.tta, predict=lambda o: o.predict(X[0]),
    show_results=Learner.show_results,
    interpretation=lambda o: ClassificationInterpretation.from_learner(o).show_results([1,2]))

@pytest.mark.parametrize('f', looks.values(), ids=looks)
def test_results_and_history_stay_those_of_the_last_fit(f):
    learn = mk(metrics=accuracy).fit(2)
    def state():
        rec = learn.recorder
        rows = [tuple(o) for o in rec.rows]
        return dict(learn.results),rows,list(rec.losses),list(rec.lrs),list(rec.iters),rec.metric_names
    before = state()
    f(learn)
    assert state()==before and len(before[1])==2

@pytest.mark.parametrize('f', looks.values(), ids=looks)
@pytest.mark.parametrize('ev', ['before_fit','before_epoch','before_validate','after_epoch','after_fit','cleanup_fit'])
def test_after_an_error_the_next_inference_works(ev, f):
    "fastai's would wait for its own lock, for ever"
    learn = mk()
    n = len(learn.cbs)
    with learn.added_cbs(Raise(ev, ZeroDivisionError)):
        with pytest.raises(ZeroDivisionError): f(learn)
        f(learn)
    assert len(learn.cbs)==n and learn.mode is None and close(learn.get_preds()[0], logits(learn).softmax(1))

def test_attributes_of_the_model_are_its_own():
    "A model may have attributes called like callbacks and events"
    model = Net()
    model.gather_preds = model.fetch_preds = model.activation_stats = model.lr_finder = True
    model.before_batch = model.after_validate = lambda *args: 1/0
    learn = mk(model=model, cbs=[FetchPredsCallback(), ActivationStats()]).fit(1)
    assert close(learn.fetch_preds.preds[0], logits(learn).softmax(1)) and len(learn.activation_stats.stats)==2

# Losses of samples
w = torch.tensor([1., 2., 3.])
class Focal(nn.Module):
    "A module of one's own without `reduction`"
    def forward(self, p, t): ce = F.cross_entropy(p, t, reduction='none'); return ((1-(-ce).exp())**2*ce).mean()

@pytest.mark.parametrize('loss_func,expected', [
    (nn.CrossEntropyLoss(), F.cross_entropy), (F.cross_entropy, F.cross_entropy),
    (CrossEntropyLossFlat(), F.cross_entropy),
    (partial(F.cross_entropy, label_smoothing=.1), partial(F.cross_entropy, label_smoothing=.1)),
    (lambda p,t: F.cross_entropy(p, t), F.cross_entropy), (nn.CrossEntropyLoss(reduction='sum'), F.cross_entropy),
    (nn.CrossEntropyLoss(ignore_index=1), partial(F.cross_entropy, ignore_index=1)),
    (nn.CrossEntropyLoss(weight=w), partial(F.cross_entropy, weight=w)),
    (CrossEntropyLossFlat(weight=w), partial(F.cross_entropy, weight=w)),
    (LabelSmoothingCrossEntropy(.1), partial(F.cross_entropy, label_smoothing=.1)),
    (LabelSmoothingCrossEntropyFlat(.1), partial(F.cross_entropy, label_smoothing=.1)),
    (lambda p,t,**kw: F.cross_entropy(p, t), F.cross_entropy),
    (lambda p,t,reduction='mean': F.cross_entropy(p, t, reduction=reduction), F.cross_entropy)],
    ids=['module','function','flat','partial','lambda','sum','ignore','weight','flat weight','smooth','smooth flat',
        'kwargs','reduction'])
@pytest.mark.parametrize('bs', [5, 1, N])
def test_losses_of_classes(loss_func, expected, bs):
    learn = mk(loss_func=loss_func)
    assert close(learn.get_preds(dl=DataLoader(ds, bs, shuffle=True), with_loss=True)[-1],
        expected(logits(learn), Y, reduction='none')) and learn.loss_func is loss_func
    assert getattr(loss_func, 'reduction',
        'mean')==('sum' if 'sum' in str(getattr(loss_func, 'reduction', '')) else 'mean')

@pytest.mark.parametrize('loss_func', [nn.MSELoss(), MSELossFlat(), F.mse_loss, lambda p,t: ((p-t)**2).mean()],
    ids=['module','flat','function','lambda'])
def test_losses_are_averaged_over_the_rest_of_a_sample(loss_func):
    learn = mk(loss_func=loss_func, model=Net(4, 2))
    assert close(learn.get_preds(dl=DataLoader(TensorDataset(X, V), 5), with_loss=True)[-1],
        ((logits(learn)-V)**2).mean(1))

@pytest.mark.parametrize('loss_func',
    [CrossEntropyLossFlat(axis=1), nn.CrossEntropyLoss(), lambda p,t: F.cross_entropy(p, t)],
    ids=['flat','module','lambda'])
def test_losses_of_sequences(loss_func):
    pred,targ = torch.randn(6, C, 7, generator=gen),torch.randint(C, (6, 7), generator=gen)
    assert close(per_sample(loss_func)(pred, targ), F.cross_entropy(pred, targ, reduction='none').mean(1))

@pytest.mark.parametrize('loss_func', [nn.L1Loss(), F.mse_loss, BCEWithLogitsLossFlat()],
    ids=['module','function','flat'])
def test_whole_numbers_are_numbers_where_they_are_no_classes(loss_func):
    pred,targ = torch.randn(3, 2, generator=gen),torch.tensor([[-100,1], [0,-100], [1,0]])
    alone = torch.stack([loss_func(p, t.to(p.dtype)) for p,t in zip(pred, targ)])
    assert close(per_sample(loss_func)(pred, targ), alone)

def test_losses_of_sequences_are_those_that_the_mean_is_of():
    pred,lengths = torch.randn(9, 4, C, generator=gen).log_softmax(2),torch.tensor([1,2,3,3])
    args = pred,torch.randint(1, C, (4, 3), generator=gen),torch.full((4,), 9),lengths
    for f in (nn.CTCLoss(), F.ctc_loss): assert per_sample(f)(*args).mean().item()==pytest.approx(f(*args).item())

def test_losses_of_modules_that_know_no_reduction():
    learn = mk(loss_func=Focal())
    ce = F.cross_entropy(logits(learn), Y, reduction='none')
    assert close(learn.get_preds(with_loss=True)[-1], (1-(-ce).exp())**2*ce)

class Terms(nn.Module):
    "A loss that keeps one of its terms"
    def forward(self, pred, y): self.norm = pred.square().mean(); return F.cross_entropy(pred, y)+self.norm

def test_losses_of_samples_leave_the_terms_of_a_loss_alone():
    learn = mk(loss_func=Terms(), metrics=LossMetrics('norm'))
    res = learn.validate(cbs=GatherPredsCallback(with_loss=True))
    assert res.norm==pytest.approx(logits(learn).square().mean().item())

def test_losses_of_structured_predictions_and_targets():
    pred,targ = dict(a=X, b=(V, [Y.float()])),(V, Y)
    def loss(p, v, y): return (p['a'].sum(1)*y + (p['b'][0]-v).abs().sum(1) + p['b'][1][0]).mean()
    assert close(per_sample(loss)(pred, *targ), X.sum(1)*Y+Y)

# Looks
all_events = [ev for ev,_ in moments() if 'cancel' not in ev]
def run(look, only_fit=True, **kwargs):
    torch.manual_seed(0); random.seed(0); np.random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.3), nn.ReLU(), nn.Linear(8, C))
    dls = DataLoaders(DataLoader(ds, 5, shuffle=True, generator=gens()), DataLoader(ds, 5, shuffle=True), device='cpu')
    learn = Learner(dls, model, nn.CrossEntropyLoss(), opt_func=Adam, metrics=accuracy, cbs=look,
        **kwargs).remove_cb(ProgressCallback).fit(2)
    return same_state(learn)

def same_state(learn):
    rec = learn.recorder
    return ([b.numpy().tobytes() for b in learn.model.state_dict().values()], rec.losses,
        [tuple(o)[:-1] for o in rec.rows], rec.iters, torch.get_rng_state().tolist(), random.getstate(),
        learn.dls.train.generator.get_state().tolist(), learn.train_iter, learn.opt_step, dict(learn.results))

class Look(Callback):
    "Predicts, now and then"
    def __init__(self, ev, order, f):
        self.n,self.order,self.f,self.busy = 0,order,f,False; super().__init__(**{ev: Look.look})
    def look(self):
        if self.busy: return
        self.n += 1
        if self.n not in (1, 3): return
        self.busy = True
        self.f(self.learn)
        self.busy = False

@pytest.fixture(scope='module')
def undisturbed(): return run(None)

@pytest.mark.sample(2)
@pytest.mark.parametrize('order', [-100, 100])
@pytest.mark.parametrize('ev', all_events)
def test_inference_inside_a_fit_changes_nothing(ev, order, undisturbed):
    cb = Look(ev, order, lambda learn: (learn.get_preds(0, with_loss=True, with_decoded=True), learn.predict(X[0])))
    assert run(cb)==undisturbed and cb.n

@pytest.mark.parametrize('f',
    [lambda o: o.tta(aug=lambda x: x+torch.randn_like(x)), lambda o: o.get_preds(dl=o.dl),
        lambda o: o.get_preds(inner=True, reorder=False)], ids=['tta','dl','inner'])
@pytest.mark.parametrize('ev', ['before_batch','after_loss','after_batch','after_validate'])
def test_other_inference_inside_a_fit(ev, f, undisturbed): assert run(Look(ev, 100, f))==undisturbed

def test_fetching(undisturbed):
    cb = FetchPredsCallback(with_decoded=True)
    assert run(cb)==undisturbed
    seen = []
    class Keep(Callback):
        order = 10
        def after_validate(self):
            if self.mode=='fit': seen.append((self.fetch_preds.preds, logits(self.learn)))
    cb = FetchPredsCallback(with_input=True, with_decoded=True)
    learn = mk(cbs=[cb, Keep()]).fit(3)
    assert (len(seen)==3 and all(
        close(preds, out.softmax(1)) and torch.equal(inp, X)
        and torch.equal(dec, out.argmax(1)) for (inp,preds,targs,dec),out in seen))
    cb.preds = 'kept'
    learn.validate(); learn.get_preds()
    assert cb.preds=='kept'

def test_nested_predictions():
    "A callback that predicts while others are predicted"
    learn,inner = mk(),[]
    class Nested(Callback):
        def after_pred(self):
            if self.iter==1 and not inner: inner.append(None); inner[0] = self.learn.get_preds(dl=[(X[:3], Y[:3])])[0]
    preds,targs = learn.get_preds(cbs=Nested())
    assert (close(preds, logits(learn).softmax(1)) and close(inner[0], logits(learn, X[:3]).softmax(1))
        and torch.equal(targs, Y))

# Files
@pytest.mark.parametrize('dl', ['plain','shuffled','batches'])
def test_files_are_the_result(dl, tmp_path):
    learn = mk()
    expected = learn.get_preds(dl=loaders[dl]())
    preds,targs = learn.get_preds(dl=loaders[dl](), save_preds=str(tmp_path/'a'/'p.npy'), save_targs=tmp_path/'t.npy')
    assert torch.equal(preds, expected[0]) and torch.equal(targs, Y)
    for fn,o in ((tmp_path/'a/p.npy', preds), (tmp_path/'t.npy', targs)):
        disk = np.load(fn, mmap_mode='r+')
        assert np.array_equal(disk, o.numpy()) and disk.dtype==o.numpy().dtype
        disk[0] = 7; disk.flush()
        assert (o[0]==7).all() # one memory

@pytest.mark.skipif(not os.path.exists('/proc/self/maps'), reason='asks Linux for what is mapped')
@pytest.mark.parametrize('dl', ['plain','shuffled','batches'])
def test_a_file_of_predictions_is_renamed_when_it_is_not_mapped(dl, tmp_path, monkeypatch):
    "Windows refuses to rename a file that is mapped into memory"
    def replace(a, b, real=os.replace):
        if str(a) in Path('/proc/self/maps').read_text(): raise PermissionError(f'{a} is used by another process')
        real(a, b)
    monkeypatch.setattr(os, 'replace', replace)
    preds,_ = mk().get_preds(dl=loaders[dl](), save_preds=tmp_path/'p.npy')
    assert np.array_equal(np.load(tmp_path/'p.npy'), preds) and os.listdir(tmp_path)==['p.npy']

def test_files_of_structured_predictions(tmp_path):
    class Many(Net):
        def forward(self, x): return dict(a=self.lin(x), b=(x.double(), x>0))
    learn = mk(model=Many(), loss_func=lambda p,t: p['a'].mean())
    preds,_ = learn.get_preds(save_preds=tmp_path/'p.npy')
    assert (close(preds['a'], logits(learn)) and torch.equal(preds['b'][0], X.double())
        and torch.equal(preds['b'][1], X>0))
    assert (np.array_equal(np.load(tmp_path/'p.a.npy'), preds['a'].numpy())
        and np.array_equal(np.load(tmp_path/'p.b.1.npy'), X>0))

def test_only_npy_is_cut_off_before_the_number_of_a_part(tmp_path):
    "Not what follows the last point, or files of predictions and targets would have one name"
    class Two(Net):
        def forward(self, x): return self.lin(x),x
    targs = TensorDataset(X, Y, Y+1)
    learn = mk(DataLoader(targs, 5), model=Two(), loss_func=lambda p,*t: p[0].mean())
    learn.dls.n_inp = 1
    for end in ('', '.npy'):
        preds,targs = learn.get_preds(save_preds=f'{tmp_path}/test.preds{end}', save_targs=tmp_path/f'test.targs{end}')
        assert {o.name for o in tmp_path.iterdir()}=={f'test.{o}.{i}.npy' for o in ('preds','targs') for i in (0,1)}
        for nm,o in (('preds', preds), ('targs', targs)):
            for i in (0,1): assert np.array_equal(np.load(tmp_path/f'test.{nm}.{i}.npy'), o[i])
    assert close(preds[0], logits(learn)) and torch.equal(targs[1], Y+1)

def test_two_results_are_not_saved_in_one_file(tmp_path):
    "Predictions would be overwritten with targets"
    learn,trace = mk(),Trace()
    learn.path = tmp_path
    for a,b in (('s.npy','s.npy'), ('s.npy',Path('./s.npy')), ('s.npy',tmp_path/'s.npy')):
        with pytest.raises(ValueError, match='Two results would be saved as `s.npy`: give `save_preds`'):
            learn.get_preds(save_preds=a, save_targs=b, cbs=trace)
    assert 'before_batch' not in trace.seen
    with pytest.raises(ValueError, match='Two results would be saved as'):
        GatherPredsCallback(save_preds='s.npy', save_targs='s.npy')
    class Two(Net):
        def forward(self, x): return self.lin(x),x
    learn = mk(model=Two(), loss_func=lambda p,t: p[0].mean())
    with pytest.raises(ValueError, match='Two results would be saved as `s.1.npy`'):
        learn.get_preds(save_preds=tmp_path/'s.npy', save_targs=tmp_path/'s.1.npy')
    assert os.listdir(tmp_path)==[]
    preds,targs = learn.get_preds(save_preds=tmp_path/'s.npy', save_targs=tmp_path/'s.2.npy')
    assert np.array_equal(np.load(tmp_path/'s.1.npy'), X) and np.array_equal(np.load(tmp_path/'s.2.npy'), Y)

def test_a_file_may_have_a_name_to_which_nothing_can_be_added(tmp_path):
    file = tmp_path/('p'*240+'.npy')
    preds,_ = mk().get_preds(save_preds=file)
    assert np.array_equal(np.load(file), preds) and os.listdir(tmp_path)==[file.name]

def test_files_cannot_hold_bfloat16(tmp_path):
    learn = mk()
    with pytest.raises(ValueError, match='bfloat16, which `.npy` files cannot hold'):
        learn.get_preds(act=lambda o: o.bfloat16(), save_preds=tmp_path/'p.npy')
    assert learn.get_preds(act=lambda o: o.bfloat16())[0].dtype==torch.bfloat16

# Memory
script = '''
import gc,sys,torch
from torch import nn
from learner.all import *
from torch.utils.data import DataLoader,Dataset,WeightedRandomSampler
torch.set_num_threads(1)
c = 1000
class DS(Dataset):
    def __len__(self): return 30000
    def __getitem__(self, i): return torch.full((4,), float(i)),0
class Sized: # a loader with a length that is no `DataLoader`
    def __init__(self, sizes): self.sizes = sizes
    def __len__(self): return len(self.sizes)
    def __iter__(self): return ((torch.ones(o, 4), torch.zeros(o, dtype=torch.long)) for o in self.sizes)
def status(k): return next(int(o.split()[1])/1024 for o in open('/proc/self/status') if o.startswith(k))
small = [(torch.ones(100, 4), torch.zeros(100, dtype=torch.long))]*3

def measure(dl, path=None):
    learn = Learner(DataLoaders(dl, device='cpu'), nn.Linear(4, c), nn.CrossEntropyLoss()).remove_cb(ProgressCallback)
    learn.get_preds(dl=small, save_preds=path and path+'0')
    anon,n = [],sum(dl.sizes) if isinstance(dl, Sized) else 30000
    gc.collect()
    open('/proc/self/clear_refs','w').write('5')
    base,base_anon = status('VmRSS'),status('RssAnon')
    preds,_ = learn.get_preds(0, cbs=Callback(after_batch=lambda self: anon.append(status('RssAnon'))),
        save_preds=path)
    assert preds.shape==(n, c)
    print((status('VmHWM')-base)/(n*c*4/2**20), (max(anon)-base_anon)/(n*c*4/2**20))

measure(DataLoader(DS(), 100, shuffle=True))
measure(DataLoader(DS(), 100, sampler=WeightedRandomSampler([1.]*30000, 30000)))
measure(DataLoader(DS(), 100), sys.argv[1])
measure(Sized([101]*297 + [3]))
measure(Sized([50+(i*37)%101 for i in range(300)]))
'''
@pytest.fixture(scope='module')
def extra_memory(tmp_path_factory):
    path = tmp_path_factory.mktemp('preds')/'p.npy'
    res = run_script(script, path)
    assert not res.returncode, res.stderr
    return dict(zip(['shuffled','weighted','file','sized','varied'], res.stdout.splitlines(), strict=True))

@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='needs Linux')
@pytest.mark.parametrize('kind', ['shuffled','weighted','file','sized','varied'])
def test_extra_memory_is_the_result(kind, extra_memory):
    most,anon = map(float, extra_memory[kind].split())
    assert .9<most<1.05 and (anon<.1 if kind=='file' else anon<1.05)

@pytest.mark.parametrize('sizes', [[4,4,4,2], [1,7,2,9], [5,0,3], [0,4], [1,2,3,4,5,6,7]], ids=str)
@pytest.mark.parametrize('wrong', [0, -2, 3])
def test_rows_of_a_known_number_of_batches(sizes, wrong):
    "Batches of any sizes, also more or fewer of them than `len` says, come out as they came"
    class Sized(list):
        def __len__(self): return max(super().__len__()+wrong, 1)
    xs = [torch.randn(o, 4) for o in sizes]
    ys = [o[:,0].long().abs()%3 for o in xs]
    learn = mk()
    preds,targs = learn.get_preds(dl=Sized(zip(xs, ys)), act=lambda o: o)
    assert close(preds, logits(learn, torch.cat(xs))) and torch.equal(targs, torch.cat(ys))

# One item, and test-time augmentation
@pytest.mark.parametrize('vocab',
    [None, ['cat','dog','owl'], {0:'cat', 1:'dog', 2:'owl'}, np.array(['cat','dog','owl'])],
    ids=['none','list','dict','array'])
def test_predict(vocab):
    learn = mk()
    if vocab is not None: learn.dls.vocab = vocab
    for i in range(5):
        said,dec,probs = learn.predict(X[i])
        best = logits(learn)[i].argmax()
        assert (torch.equal(dec, best) and said==(best.item() if vocab is None else ['cat','dog','owl'][best])
            and close(probs, logits(learn)[i].softmax(0)))
    item = X[0]
    assert learn.predict(item, with_input=True)[0] is item and len(learn.predict(item, with_input=True))==4
    assert torch.equal(learn.predict(X[0].numpy())[2], learn.predict(X[0])[2])

def test_predict_gives_fastais_triple_raw_where_the_loss_says_nothing():
    own = mk(loss_func=lambda p,t: F.cross_entropy(p, t))
    said,dec,pred = own.predict(X[0])
    assert torch.equal(said, dec) and torch.equal(dec, pred) and close(pred, logits(own)[0])
    said,dec,pred = mk().predict(X[0])
    assert (type(said), dec.shape, pred.shape)==(int, (), (3,)) and pred.sum()==pytest.approx(1)

def test_predict_with_several_inputs_and_with_mappings():
    learn = mk()
    assert (close(learn.predict((X[0], X[1]))[2], logits(learn, X[0]+X[1]).softmax(0))
        and close(learn.predict((X[0],))[2], logits(learn, X[0]).softmax(0)))
    class ByName(Net):
        def forward(self, a, b): return super().forward(a, b)
    learn = mk(model=ByName())
    assert close(learn.predict(dict(a=X[0], b=X[1]))[2], logits(learn, X[0]+X[1]).softmax(0))

def test_predict_numbers():
    learn = mk(loss_func=nn.MSELoss(), model=Net(4, 2))
    said,dec,pred = learn.predict(X[0])
    assert close(said, logits(learn, X[0])) and torch.equal(dec, pred)
    learn = mk(loss_func=nn.MSELoss(), model=Net(4, 1))
    assert learn.predict(X[0])[0]==pytest.approx(logits(learn, X[0]).item())

def noise(x): return x+torch.randn_like(x)
def by_hand(learn, n, dl, combine):
    "Looks at batches in order, with the random numbers that come"
    def look(aug):
        next(iter(dl)) # a loader draws a seed
        return torch.cat([logits(learn, aug(X[i:i+5])).softmax(1) for i in range(0, N, 5)])
    return combine(torch.stack([look(noise) for _ in range(n)]))

@pytest.mark.parametrize('name', ['plain','shuffled','drop_last'])
@pytest.mark.parametrize('n', [1, 4])
def test_tta_is_the_average_by_hand(n, name):
    learn,dl = mk(),loaders[name]()
    plain = logits(learn).softmax(1)
    torch.manual_seed(3); mean = by_hand(learn, n, DataLoader(ds, 5), lambda o: o.mean(0))
    for beta in (.25, 0., 1., .6):
        torch.manual_seed(3); preds,targs = learn.tta(dl=dl, n=n, aug=noise, beta=beta)
        assert close(preds, mean*(1-beta)+plain*beta) and torch.equal(targs, Y)
    torch.manual_seed(3); (changed,unchanged),targs = learn.tta(dl=dl, n=n, aug=noise, beta=None)
    assert close(changed, mean) and close(unchanged, plain) and torch.equal(targs, Y)
    torch.manual_seed(3); most = by_hand(learn, n, DataLoader(ds, 5), lambda o: o.amax(0))
    torch.manual_seed(3); assert close(learn.tta(dl=dl, n=n, aug=noise, use_max=True)[0], torch.maximum(most, plain))

def test_tta_passes_differ_and_leave_no_trace():
    learn,seen = mk(),[]
    state = torch.get_rng_state()
    learn.tta(n=3, aug=lambda x: seen.append(noise(x)) or seen[-1])
    assert len({o.sum().item() for o in seen})==len(seen)==15 and torch.equal(torch.get_rng_state(), state)
    assert (close(learn.tta(n=2)[0], logits(learn).softmax(1))
        and close(learn.tta('valid', n=1, aug=lambda x: (x,))[0], logits(learn).softmax(1)))

@pytest.mark.parametrize('dl', ['list','loader','shuffled','stream'])
def test_torchs_loaders_are_enough(dl):
    "fastai asks them for methods that only its own have"
    dl = dict(list=in_batches, loader=loaders['plain'], shuffled=loaders['both'], stream=streams['stream'])[dl]()
    learn = mk(dl, train=dl)
    for o in (learn.get_preds(), learn.tta(n=1), learn.show_results(), learn.predict(X[0])): assert len(o)
    plt.close('all')

def test_nothing_of_an_inference_is_kept():
    "Batches and predictions are let go of, whatever ends it"
    class Watch(Callback):
        def after_loss(self): refs.extend(weakref.ref(o) for o in (self.x, self.pred, self.loss) if o is not None)
    for look in (lambda: learn.get_preds(with_loss=True), lambda: learn.validate(), lambda: learn.predict(X[0]),
            lambda: learn.get_preds(cbs=Raise('after_loss', ValueError, order=9))):
        refs,learn = [],mk(DataLoader(ds, 5))
        learn.add_cb(Watch)
        try: look()
        except ValueError: pass
        gc.collect()
        assert refs and not any(o() is not None for o in refs) and learn.xb is None is learn.pred

# Showing
def titles(axs): return [o.get_title() for o in axs]

def images(n=6, c=1, **kwargs):
    "A learner that takes the brightest row for the class, and is wrong about the third"
    x = torch.zeros(n, c, 4, 4)
    for i in range(n): x[i,:,i%3] = 5
    y = torch.arange(n)%3
    y[2] = 0
    class Rows(nn.Module):
        def forward(self, x): return x.float().mean((1,3))[:,:3]
    dls = DataLoaders([(x, y)], [(x, y)], device='cpu')
    return Learner(dls, Rows(), nn.CrossEntropyLoss(), **kwargs).remove_cb(ProgressCallback)

def test_results_are_shown():
    learn = images()
    axs = learn.show_results(shuffle=False)
    assert (titles(axs)==['0','1','2, is 0','0','1','2']
        and [o.title.get_color() for o in axs]==['0.3','0.3','C3','0.3','0.3','0.3'])
    assert [int(o.images[0].get_array().mean(1).argmax()) for o in axs]==[0,1,2,0,1,2]
    learn.dls.vocab = ['cat','dog','owl']
    assert titles(learn.show_results(shuffle=False, max_n=3))==['cat','dog','owl, is cat']
    assert sorted(titles(learn.show_results()))==sorted(titles(learn.show_results(0, max_n=99)))==['cat','cat','dog',
        'dog','owl','owl, is cat']
    assert titles(learn.show_results(dl=[(learn.dls.valid[0][0],)], shuffle=False))==['cat','dog','owl']*2 # no targets
    with pytest.raises(TypeError, match='`show_results` has no argument `maxn`. Did you mean `max_n`'):
        learn.show_results(maxn=2)
    plt.close('all')

@pytest.mark.parametrize('shape,seen',
    [((1,4,4), (4,4)), ((3,4,5), (4,5,3)), ((4,4), (4,4)), ((2,4,4), None), ((16,), None)])
def test_what_is_an_image(shape, seen):
    img = as_image(torch.randn(shape)*9-4)
    assert img is None if seen is None else img.shape==seen and (img.min(), img.max())==(0,1)
    assert as_image(torch.ones(4,4)).max()==0 and as_image('a') is None

@pytest.mark.parametrize('shape', [(30,1), (1,30), (1,30,1), (4,30), (16,4), (32,8)])
def test_what_is_long_and_narrow_is_a_series_and_no_image(shape):
    x = torch.randn(shape)
    assert as_image(x) is None
    axs = show_samples(x[None], torch.tensor([0]), torch.tensor([1]))
    lines = np.stack([o.get_ydata() for o in axs[0].lines])
    assert not axs[0].images and axs[0].get_title()=='1, is 0'
    few = x.reshape(-1, x.shape[-1]) if shape[0]!=1 else x.reshape(-1, 1)
    assert np.array_equal(lines, (few if len(few)<few.shape[1] else few.T).numpy())
    plt.close('all')

@pytest.mark.parametrize('n_targ', [30, 12])
def test_series_of_targets_are_lines_over_those_of_decisions(n_targ):
    x,t = torch.randn(2, 30, 1),torch.randn(2, n_targ, 2)
    axs = show_samples(x, t, t+1, losses=torch.tensor([1.,2]))
    assert [len(o.lines) for o in axs]==[1,4]*2 and not any(o.images for o in axs)
    assert [o.get_title().replace('\n', ' ') for o in axs[:2]]==['input', 'decision, target dotted loss 1.00']
    for i in range(2):
        drawn = {o.get_linestyle():[l.get_ydata() for l in axs[2*i+1].lines if l.get_linestyle()==o.get_linestyle()]
            for o in axs[1].lines}
        assert np.array_equal(drawn['-'], (t[i]+1).T.numpy()) and np.array_equal(drawn[':'], t[i].T.numpy())
    assert [len(o.lines) for o in show_samples(x, None, t)]==[1,2]*2
    plt.close('all')

def test_what_is_no_image_makes_a_table():
    learn = mk(loss_func=nn.MSELoss(), model=Net(4, 2), valid=[(X, V)])
    res = learn.show_results(shuffle=False, max_n=3)
    assert len(res)==3 and [o.target for o in res]==[', '.join(f'{v:.4g}' for v in o) for o in V[:3].tolist()]
    assert [o.decision for o in res]==[', '.join(f'{v:.4g}' for v in o) for o in logits(learn)[:3].tolist()]
    assert res._repr_html_().count('<tr>')==4 and repr(res).startswith(f'input={res[0].input}, target=')
    class ByName(Net):
        def forward(self, a, b): return super().forward(a, b.mean((1,2,3))[:,None])
    learn = mk(model=ByName(), valid=[dict(b=torch.zeros(3,4,4,4), a=X[:3])]) # a column for each input
    res = learn.show_results(shuffle=False)
    assert res[0].names==('b','a','target','decision') and res[0].a==', '.join(f'{v:.4g}' for v in X[0].tolist())
    assert ([o.b for o in res]==['(4 x 4 x 4)']*3 and [o.target for o in res]==['']*3
        and [int(o.decision) for o in res]==logits(learn, X[:3]).argmax(1).tolist())

def test_a_table_of_several_inputs_shows_all_of_them():
    targs = dec = torch.tensor([1])
    row, = show_samples((torch.tensor([[1.,2.]]), torch.tensor([7])), targs, dec)
    assert row.names==('input0','input1','target','decision') and (row.input0,row.input1)==('1, 2','7')
    row, = show_samples(dict(words=torch.tensor([[3,4]]), target=torch.tensor([5])), targs, dec)
    assert row.names==('words','input target','target','decision') and tuple(row)==('3, 4','5','1','1')
    assert show_samples(dict(words=torch.tensor([[3,4]])), targs, dec)[0].names==('input','target','decision')

@pytest.mark.parametrize('with_loss', [False, True])
def test_long_names_of_classes_do_not_overlap(with_loss):
    vocab = ['cat','a much longer name','an exceedingly long-winded classification']
    dec,targs = torch.arange(9)%3,torch.arange(9)//3
    for size in (None, (5,6)):
        axs = show_samples(torch.eye(4).expand(9, 1, 4, 4), targs, dec, torch.eye(3)[dec],
            torch.rand(9) if with_loss else None, vocab, figsize=size)
        axs[0].figure.draw_without_rendering()
        boxes = [o.title.get_window_extent() for o in axs]
        assert not any(a.overlaps(b) for i,a in enumerate(boxes) for b in boxes[:i])
    plt.close('all')

@pytest.mark.parametrize('ev', ['before_batch','after_loss','after_validate'])
def test_showing_inside_a_fit_changes_nothing(ev, undisturbed):
    assert run(Look(ev, 100, lambda o: (o.show_results(0), o.show_results())))==undisturbed

def test_showing_leaves_workers_of_the_training_alone():
    drawn = []
    def look(cb): drawn.append(cb.x); cb.iter==1 and cb.learn.show_results(0)
    dl = DataLoader(ds, 5, num_workers=1, persistent_workers=True)
    learn = mk(train=dl).fit(1,
        cbs=Callback(before_batch=lambda cb: look(cb) if cb.learn.training and cb.learn.mode=='fit' else None))
    assert torch.equal(torch.cat(drawn), X) and learn.train_iter==5

def test_arguments_of_tta():
    with pytest.raises(ValueError, match='`n` is 1 or more, but got 0'): mk().tta(n=0)
    with pytest.raises(TypeError, match='no argument `augs`.*`aug`'): mk().tta(augs=noise)
    with pytest.raises(TypeError, match='`n` is a whole number, but got 2.5'): mk().tta(n=2.5)
    for beta in (2., -.1, float('nan')):
        with pytest.raises(ValueError, match=r'`beta` is a weight in \[0,1\], or None, but got'): mk().tta(beta=beta)
    with pytest.raises(TypeError, match='`aug` is a function of the inputs, but got 3'): mk().tta(aug=3)
    with pytest.raises(TypeError, match='`aug` returns changed inputs, one or a tuple, but got NoneType'):
        mk().tta(aug=lambda x: None)
    assert close(mk().tta(n=1, aug=lambda x: [x], beta=0.)[0], mk().get_preds()[0])

# What cannot be put together, and what is kept out
class Boxes(Net):
    "As detectors: a list with a dict for each sample, with some rows"
    def __init__(self, n=lambda i: 1+i%2): super().__init__(); self.n = n
    def forward(self, x): return [dict(boxes=o.repeat(self.n(i), 1)) for i,o in enumerate(self.lin(x))]
def first_box(p, t): return p[0]['boxes'].mean()
several = 'cannot be put together.*`concat_dim=None` of `get_preds` gives a list of batches'

@pytest.mark.parametrize('dl',
    [lambda: DataLoader(ds, 5), lambda: DataLoader(ds, 23),
        lambda: DataLoader(TensorDataset(X[:20], Y[:20]), 5, shuffle=True), in_batches,
        lambda: [(X[:3], Y[:3]), (X[3:], Y[3:])]],
    ids=['loader','one','equal','list','short first'])
@pytest.mark.parametrize('n', [lambda i: 1+i%2, lambda i: 1, lambda i: 5*(i<1)], ids=['some','one each','of the first'])
def test_one_item_for_each_sample(dl, n):
    learn = mk(model=Boxes(n), loss_func=first_box)
    with pytest.raises(ValueError, match=r"Predictions.*"+several): learn.get_preds(dl=dl())
    preds,targs = learn.get_preds(dl=dl(), concat_dim=None, reorder=False)
    assert [len(o) for o in preds]==[len(o) for o in targs] and sum(map(len, preds))==len(torch.cat(targs))
    with torch.no_grad():
        expected = [[dict(boxes=b) for b in [o['boxes'] for o in learn.model(x)]] for x,_ in in_batches()]
    preds,_ = learn.get_preds(dl=in_batches(), concat_dim=None)
    assert all(close(p['boxes'], e['boxes']) for b,c in zip(preds, expected, strict=True)
        for p,e in zip(b, c, strict=True))

class Varying(Net):
    "`f(output, batch)` is what it returns"
    def __init__(self, f): super().__init__(); self.f,self.calls = f,0
    def forward(self, x): self.calls += 1; return self.f(self.lin(x), self.calls)

@pytest.mark.parametrize('f,first,later', [
    (lambda o,i: dict(a=o, b=None if i==1 else o), "'a'", "'a', 'b'"),
    (lambda o,i: dict(a=o) if i==1 else dict(a=o, b=o), "'a'", "'a', 'b'"),
    (lambda o,i: dict(a=o, b=o) if i==1 else dict(a=o), "'a', 'b'", "'a'"),
    (lambda o,i: (o, None) if i==1 else (o, o), '0', '0, 1'), (lambda o,i: (o,)*i, '0', '0, 1'),
    (lambda o,i: o if i==1 else (o,), 'no parts', '0'), (lambda o,i: (o,) if i==1 else o, '0', 'no parts')],
    ids=['None first','late','gone','None in a tuple','longer','tensor first','tuple first'])
def test_batches_of_another_form(f, first, later):
    learn = mk(model=Varying(f), loss_func=lambda p,t: leaves(p)[0].mean())
    def parts(o): return o if o=='no parts' else f'the parts {o}'
    with pytest.raises(ValueError,
            match=f'Predictions cannot be put together: a batch has {parts(later)}, and those before {parts(first)}. '
            f'`concat_dim=None`'):
        learn.get_preds()
    learn.model.calls = 0
    preds,_ = learn.get_preds(concat_dim=None)
    expected = [f(logits(learn, x), i+1) for i,(x,_) in enumerate(in_batches())]
    assert (all(type(p) is type(e) for p,e in zip(preds, expected))
        and all(close(a, b) for a,b in zip(leaves(preds), leaves(expected), strict=True)))
def leaves_or_none(o):
    return ([o] if o is None
        or isinstance(o, torch.Tensor) else [
            p for v in (o.values() if isinstance(o, dict) else o) for p in leaves_or_none(v)])

@pytest.mark.parametrize('dl', ['loader','list'])
@pytest.mark.parametrize('first,later,wide',
    [(torch.int64, torch.float32, torch.float32), (torch.float32, torch.float64, torch.float64),
        (torch.bool, torch.int64, torch.int64), (torch.float16, torch.bfloat16, torch.float32),
        (torch.float64, torch.int64, torch.float64)])
def test_types_are_widened(first, later, wide, dl, tmp_path):
    learn = mk(model=Varying(lambda o,i: (10*o).to(first if i==1 else later)), loss_func=lambda p,t: p.float().mean())
    # their products and sums are exact, so that batches of any size give the same
    def quarters(o): return (4*o).round()/4
    for p in learn.model.parameters(): p.data = quarters(p.data)
    x = quarters(X)
    def get(**kwargs):
        learn.model.calls = 0
        return learn.get_preds(dl=DataLoader(TensorDataset(x, Y), 5)
            if dl=='loader' else list(zip(x.split(5), Y.split(5))), **kwargs)[0]
    out = 10*logits(learn, x)
    assert torch.equal(get(), torch.cat([out[:5].to(first).to(wide), out[5:].to(later).to(wide)]))
    if wide==first: assert torch.equal(get(save_preds=tmp_path/'p.npy'), get())
    elif dl=='loader':
        with pytest.raises(ValueError,
                match=f'Predictions were {first}, and a batch has {later}, which `.*p.npy` cannot hold'):
            get(save_preds=tmp_path/'p.npy')

def test_targets_are_widened():
    class Mixed(Dataset):
        def __len__(self): return N
        def __getitem__(self, i): return X[i],1 if i<5 else .5
    assert mk(DataLoader(Mixed(), 5), loss_func=lambda p,t: p.mean()).get_preds()[1].tolist()==[1.]*5+[.5]*18

@pytest.mark.parametrize('f,expected',
    [(lambda o: dict(loss=o.mean(), logits=o), lambda o: dict(logits=o)),
        (lambda o: HF(loss=o.mean(), logits=o, n=3), lambda o: dict(logits=o)),
        (lambda o: (o.mean(), o), lambda o: (None, o)),
    (lambda o: (o, .5, o.detach().numpy()), lambda o: (o, None, o)),
    (lambda o: Out(o, o.mean()), lambda o: Out(o, None)),
    (lambda o: dict(a=dict(loss=o.mean(), b=o)), lambda o: dict(a=dict(b=o)))],
    ids=['dict','HF','tuple','numbers and arrays','named','nested'])
def test_a_value_for_a_whole_batch_is_no_prediction(f, expected):
    learn = mk(model=Varying(lambda o,i: f(o)), loss_func=lambda p,t: torch.zeros(()))
    preds,_ = learn.get_preds()
    exp = expected(logits(learn))
    assert (type(preds) is type(exp)
        and all(a is b is None or close(a, b) for a,b in zip(leaves_or_none(preds), leaves_or_none(exp), strict=True)))
    if isinstance(exp, dict): assert [*preds]==[*exp]

def test_arrays_are_taken(tmp_path):
    learn = mk()
    preds,_ = learn.get_preds(act=lambda o: o.softmax(1).numpy()[:,::-1], dl=DataLoader(ds, 5, shuffle=True),
        save_preds=tmp_path/'p.npy')
    assert close(preds, logits(learn).softmax(1).flip(1)) and np.array_equal(np.load(tmp_path/'p.npy'), preds.numpy())

@pytest.mark.parametrize('act,got',
    [(lambda o: None, 'None'), (lambda o: .5, '0.5'), (lambda o: 'cat', "'cat'"),
        (lambda o: np.array(['cat']*len(o)), 'array')], ids=['None','number','text','texts'])
def test_what_is_no_tensor(act, got):
    with pytest.raises(TypeError,
            match=f'Predictions cannot be put together: rows are tensors, but got {got}.*`concat_dim=None`'):
        mk().get_preds(act=act)

def test_targets_that_are_texts():
    class Texts(Dataset):
        def __len__(self): return N
        def __getitem__(self, i): return X[i],Y[i],f'img{i}'
    learn = mk(loss_func=lambda p,y,name: F.cross_entropy(p, y))
    learn.dls.n_inp = 1
    with pytest.raises(TypeError, match=r"Targets\[1\]\[0\] cannot be put together: rows are tensors, but got 'img0'"):
        learn.get_preds(dl=DataLoader(Texts(), 5))
    _,targs = learn.get_preds(dl=DataLoader(Texts(), 5), concat_dim=None)
    assert [*targs[1][1]]==['img5','img6','img7','img8','img9'] and torch.equal(torch.cat([y for y,_ in targs]), Y)

# Loaders whose dataset makes the batches
class Whole(Dataset):
    "Each item is a batch of five"
    def __len__(self): return 4
    def __getitem__(self, i): return X[5*i:5*i+5],torch.arange(5*i, 5*i+5)
class Lists(Dataset):
    "Asked for a list, gives a batch"
    def __len__(self): return N
    def __getitem__(self, idxs):
        return X[idxs],torch.as_tensor(idxs) if not isinstance(idxs, slice) else torch.arange(N)[idxs]
by_dataset = dict(whole=lambda: DataLoader(Whole(), batch_size=None, shuffle=True),
    workers=lambda: DataLoader(Whole(), batch_size=None, shuffle=True, num_workers=1),
    some=lambda: DataLoader(Whole(), batch_size=None, sampler=[3,1]),
    lists=lambda: DataLoader(Lists(), batch_size=None, sampler=BatchSampler(RandomSampler(range(N)), 5, True)),
    tensors=lambda: DataLoader(Lists(), batch_size=None, sampler=[torch.arange(5, N), torch.arange(5)]),
    own=lambda: DataLoader(Lists(), batch_size=None, sampler=Pairs()))

@pytest.mark.parametrize('name', by_dataset)
def test_batches_that_the_dataset_makes_come_in_its_order(name):
    learn = mk(loss_func=lambda p,t: p.mean())
    preds,targs = learn.get_preds(dl=by_dataset[name]())
    assert targs.tolist()=={'some': [*range(5,10), *range(15,20)], 'whole': [*range(20)],
        'workers': [*range(20)]}.get(name, [*range(N)]) and close(preds, logits(learn, X[targs]))
    torch.manual_seed(3)
    _,drawn = learn.get_preds(dl=by_dataset[name](), reorder=False)
    assert sorted(drawn.tolist())==targs.tolist()!=drawn.tolist()

def test_slices_are_left_in_their_order():
    targs = mk(loss_func=lambda p,t: p.mean()).get_preds(
        dl=DataLoader(Lists(), batch_size=None, sampler=[slice(5, 9), slice(0, 5)]))[1]
    assert targs.tolist()==[5,6,7,8,0,1,2,3,4]

# Files and consumers
@pytest.mark.parametrize('kind', ['loader', *streams])
def test_files_without_the_predictions(kind, tmp_path):
    learn = mk()
    def dl(): return DataLoader(ds, 5, shuffle=True) if kind=='loader' else streams[kind]()
    assert learn.get_preds(dl=dl(), with_preds=False, save_preds=tmp_path/'p.npy', with_targs=False,
        save_targs=tmp_path/'t.npy')==(None, None)
    assert (close(torch.tensor(np.load(tmp_path/'p.npy')), logits(learn).softmax(1))
        and np.array_equal(np.load(tmp_path/'t.npy'), Y))

@pytest.mark.parametrize('kwargs,match',
    [(dict(save_preds='p.npy', concat_dim=None), '`save_preds` needs concatenated batches, but `concat_dim` is None'),
        (dict(save_targs='t.npy', concat_dim=None), '`save_targs` needs'),
    (dict(save_preds='.'), '`save_preds` is a `.npy` file, but `.*` is a folder'),
    (dict(save_targs='t.npy', dl=[(X,)]), 'There is nothing to save in `.*t.npy`: the batches have no targets')],
    ids=['concat','targs','folder','none'])
def test_files_that_cannot_be_written(kwargs, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        mk().get_preds(**{k:tmp_path/v if k.startswith('save') else v for k,v in kwargs.items()})
    assert not any(tmp_path.iterdir())

def test_a_consumer():
    "A callback sees everything that comes by, and whose it is; nothing is kept"
    learn,seen,refs = mk(),{},[]
    class Consume(Callback):
        def after_batch(self):
            refs.append(weakref.ref(self.pred))
            seen.update(zip(self.idxs, self.pred.softmax(1).tolist()))
    assert learn.get_preds(dl=DataLoader(ds, 5, shuffle=True, drop_last=True), reorder=False, with_preds=False,
        with_targs=False, cbs=Consume())==(None, None)
    assert (close(torch.tensor([seen[i] for i in range(N)]), logits(learn).softmax(1)) and len(refs)==5
        and not any(o() is not None for o in refs))

# Which loader
@pytest.mark.parametrize('f', [Learner.get_preds, partial(Learner.tta, n=1)], ids=['get_preds','tta'])
def test_which_loader_is_meant(f):
    learn = mk(valid=[(X[:3], Y[:3])])
    for o in (DataLoader(ds, 5), in_batches()): assert len(f(learn, o)[0])==len(f(learn, dl=o)[0])==N
    for o in (np.int64(1), np.int32(-1), 'valid'): assert len(f(learn, o)[0])==3
    for o in (1., 3., object()):
        with pytest.raises(TypeError,
                match='`(ds_idx|dl)` is the position or name of a loader in `dls`, or a loader, but got'):
            f(learn, o)
    with pytest.raises(IndexError, match='No loader 3: there are `train`, `valid`'): f(learn, dl=3)
    assert (len(learn.show_results([(X[:2], Y[:2])]))==2 and len(learn.show_results(np.int64(1)))==3
        and len(Interpretation.from_learner(learn, in_batches()).preds)==N)

# Items and inference of any form
several_outputs = dict(tuple=lambda o: (o, o*2), dict=lambda o: dict(logits=o, loss=o.sum()),
    HF=lambda o: HF(logits=o, hidden=(o, o*3)), named=lambda o: Out(o, None))
@pytest.mark.parametrize('shape', several_outputs)
def test_inference_with_models_that_return_several(shape):
    f = several_outputs[shape]
    learn = mk(model=Varying(lambda o,i: f(o)), loss_func=lambda p,t: F.cross_entropy(leaves(p)[0], t))
    def kept(o): p = f(o); return {k:v for k,v in p.items() if k!='loss'} if isinstance(p, dict) else p
    said,dec,pred = learn.predict(X[7])
    for got in (said, dec, pred):
        assert all(a is b is None or close(a, b)
            for a,b in zip(leaves_or_none(got), leaves_or_none(kept(logits(learn, X[7]))), strict=True))
    for beta in (.25, None):
        preds = learn.tta(DataLoader(ds, 5, shuffle=True), n=3, aug=lambda x: x+1, beta=beta)[0]
        plain,changed = kept(logits(learn)),kept(logits(learn, X+1))
        expected = [a*.75+b*.25 if beta else a for a,b in zip(leaves(changed), leaves(plain))]
        assert all(map(close, leaves(preds), expected))
    assert all(map(close, leaves(learn.tta(n=2, use_max=True)[0]), leaves(kept(logits(learn)))))
    table = learn.show_results(DataLoader(ds, 5), max_n=2, shuffle=False)
    out = ', '.join(f'{v:.4g}' for v in logits(learn)[0].tolist())
    assert len(table)==2 and out in table[0].decision and table[0].target==str(Y[0].item())
    b = Interpretation.from_learner(learn, DataLoader(ds, 5, shuffle=True))[[20,3]]
    assert (torch.equal(b.inputs, X[[20,3]]) and torch.equal(b.targs, Y[[20,3]])
        and all(map(close, leaves(b.preds), leaves(kept(logits(learn, X[[20,3]]))))))

def test_a_model_of_hugging_face_with_labels():
    "Called with them, it returns the loss of each batch"
    class Model(Net):
        def forward(self, x, labels=None):
            out = self.lin(x)
            return HF(logits=out) if labels is None else HF(loss=F.cross_entropy(out, labels), logits=out)
    class Dicts(Dataset):
        def __len__(self): return N
        def __getitem__(self, i): return dict(x=X[i], labels=Y[i])
    dl = DataLoader(Dicts(), 5)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), Model(), opt_func=SGD).remove_cb(ProgressCallback)
    preds,targs = learn.get_preds()
    def probs(*x): return logits(learn, *x).softmax(-1)
    assert close(preds, probs()) and torch.equal(targs, Y)
    assert (close(learn.predict(dict(x=X[3]))[2], probs(X[3]))
        and close(learn.predict(dict(x=X[3], labels=Y[3]))[2], probs(X[3])))
    assert (len(learn.show_results(max_n=4))==4
        and close(learn.tta(n=1, aug=lambda x,labels: dict(x=x+1), beta=0.)[0], probs(X+1)))
    interp = ClassificationInterpretation.from_learner(learn)
    assert (interp.confusion_matrix().trace()==(logits(learn).argmax(1)==Y).sum()
        and torch.equal(interp[22].inputs['x'], X[22]))

class Pictures(Dataset):
    def __len__(self): return N
    def __getitem__(self, i): return dict(image=X[i], labels=Y[i])
def of_pictures(b): return dict(x=b['image']),(b['labels'],)

def test_items_are_no_batches_to_split():
    "`split` takes targets apart, and an item has none"
    class Model(Net):
        def forward(self, x): return self.lin(x)
    dl = DataLoader(Pictures(), 5)
    learn = Learner(DataLoaders(dl, dl, device='cpu', split=of_pictures), Model(),
        nn.CrossEntropyLoss()).remove_cb(ProgressCallback)
    dls = learn.dls
    assert (close(learn.predict(dict(x=X[3]))[2], logits(learn, X[3]).softmax(0))
        and close(learn.predict(X[3])[2], logits(learn, X[3]).softmax(0)) and learn.dls is dls
        and dls.split is of_pictures)
    with pytest.raises(KeyError) as e: learn.get_preds(dl=[dict(image=X)])
    note = ('raised by `split`, which separates the inputs and targets of a batch: '
        'where there are no targets, they are `()`')
    assert note in e.value.__notes__ and learn.dls is dls
    assert close(learn.tta(n=2, aug=lambda x: dict(x=x+1), beta=0.)[0], logits(learn, X+1).softmax(1))
    for aug in (lambda x: x+1, lambda x: None):
        with pytest.raises(TypeError, match='`aug` returns changed inputs, a mapping, but got'): learn.tta(n=1, aug=aug)

@pytest.mark.parametrize('n_out,loss_func,vocab,expected',
    [(1, nn.BCEWithLogitsLoss(), ['no','yes'], lambda o: ['no','yes'][int(o>0)]),
        (3, nn.BCEWithLogitsLoss(), ['a','b','c'], lambda o: [v for v,p in zip('abc', o) if p>0]),
    (3, nn.CrossEntropyLoss(), ['a','b','c'], lambda o: 'abc'[o.argmax()]),
    (3, nn.CrossEntropyLoss(), {0:'a',1:'b',2:'c'}, lambda o: 'abc'[o.argmax()]),
    (1, nn.BCEWithLogitsLoss(), ['a'], lambda o: ['a']*int(o>0)),
    (1, nn.MSELoss(), ['a','b'], lambda o: o.item()), (3, nn.BCEWithLogitsLoss(), None, lambda o: (o>0).tolist()),
    (1, nn.BCEWithLogitsLoss(), None, lambda o: bool(o>0))],
    ids=['one logit','labels','classes','a dict','one label','a number','unnamed labels','unnamed logit'])
def test_decisions_by_name(n_out, loss_func, vocab, expected):
    learn = mk(model=Net(4, n_out), loss_func=loss_func)
    if vocab is not None: learn.dls.vocab = vocab
    for x in X:
        said = learn.predict(x)[0]
        assert (said.tolist() if isinstance(said, torch.Tensor) else said)==expected(logits(learn, x))

def test_labels_are_shown_by_name():
    y = torch.tensor([[1.,0,1],[0,0,0],[1,1,1]])
    learn = mk(valid=[(X[:3], y)], loss_func=nn.BCEWithLogitsLoss())
    learn.dls.vocab = ['a','b','c']
    res = learn.show_results(shuffle=False)
    assert ([o.target for o in res]==['a, c','none','a, b, c']
        and [o.decision for o in res]
        ==[', '.join(v for v,p in zip('abc', o) if p>0) or 'none' for o in logits(learn, X[:3])])

def test_classes_without_a_name():
    learn = mk(valid=[(X[:3], torch.tensor([-100, 1, 2]))])
    learn.dls.vocab = ['a','b','c']
    assert [o.target for o in learn.show_results(shuffle=False)]==['-100','b','c']
    for vocab in (['a'], {0: 'a'}):
        learn.dls.vocab = vocab
        with pytest.raises(ValueError, match='`vocab` names 1 classes, but there is a class [12]'):
            learn.show_results(shuffle=False)

def test_arguments_of_predict():
    with pytest.raises(TypeError, match='`predict` has no argument `with_inputs`. Did you mean `with_input`'):
        mk().predict(X[0], with_inputs=True)
    class One(Net):
        def forward(self, x): return self.lin(x)
    with pytest.raises(TypeError) as e: mk(model=One()).predict(ds[0])
    assert any('leave out the target of a sample, as in `predict(x)`' in o for o in e.value.__notes__)
    assert not any('n_inp' in o for o in e.value.__notes__)
    with pytest.raises(TypeError) as e: mk(model=One()).predict('a cat')
    assert e.value.__notes__[-1].endswith('no `collate_fn` is called, so it has to be what the model takes')

# Looks at the same samples
number = TensorDataset(X, torch.arange(N))
class Reshuffled:
    def __iter__(self): return iter([(X[i], i) for i in torch.randperm(N).split(5)])
class ReshuffledStream(IterableDataset):
    def __iter__(self): return iter([(X[i], i) for i in torch.randperm(N).tolist()])

@pytest.mark.parametrize('make',
    [lambda: WeightedRandomSampler([1.]*N, N), lambda: RandomSampler(X, num_samples=9),
        lambda: RandomSampler(X, replacement=True), lambda: SubsetRandomSampler([3,9,1,7])],
        ids=['weighted','fewer','replacement','subset'])
def test_passes_use_the_samples_that_were_drawn_once(make):
    learn = mk(loss_func=lambda p,t: p.mean())
    preds,targs = learn.tta(dl=DataLoader(number, 4, sampler=make(), drop_last=True), n=4)
    assert close(preds, logits(learn, X[targs])) and targs.tolist()==sorted(targs.tolist())
    preds,targs = learn.tta(dl=by_dataset['whole'](), n=3)
    assert close(preds, logits(learn, X[:20]))

@pytest.mark.parametrize('make', [Reshuffled, lambda: DataLoader(ReshuffledStream(), 5)], ids=['own','stream'])
def test_tta_refuses_to_average_other_samples(make):
    with pytest.raises(ValueError,
            match='`tta` cannot average predictions of different samples: the loader draws other ones in each pass. '
            'Give one that keeps its order'):
        mk(loss_func=lambda p,t: p.mean()).tta(dl=make(), n=1)

def test_a_dataset_that_changes_samples_itself():
    "Targets may change with them, where the loader says whose they are"
    class Augmented(Dataset):
        def __len__(self): return N
        def __getitem__(self, i): return X[i]+torch.rand(1),V[i]+torch.rand(1)
    preds,_ = mk(model=Net(4, 2), loss_func=nn.MSELoss()).tta(dl=DataLoader(Augmented(), 5), n=2)
    assert preds.shape==(N, 2)

def test_predictions_that_are_true_or_false():
    learn = mk(loss_func=lambda p,t: p.float().mean(), model=Varying(lambda o,i: o>0))
    preds,_ = learn.tta(n=4, aug=lambda x: -x, beta=.5)
    expected = .5*(logits(learn, -X)>0)+.5*(logits(learn)>0)
    assert torch.allclose(preds, expected)

# Parts of a validation
def test_a_limited_validation_is_not_complete(monkeypatch):
    cb = GatherPredsCallback()
    with pytest.warns(UserWarning,
            match='Predictions are of the first 1 batches only, because a limit ended the validation'):
        mk(cbs=Limit(valid=1)).fit(1, cbs=cb)
    assert len(cb.preds)==5 and not cb.complete
    monkeypatch.setenv('LEARNER_LIMIT_BATCHES', '2')
    with pytest.warns(UserWarning, match='first 2 batches'): mk().validate(cbs=(cb := GatherPredsCallback()))
    assert len(cb.preds)==10 and not cb.complete and len(mk().get_preds()[0])==N # predictions are whole
    monkeypatch.delenv('LEARNER_LIMIT_BATCHES')
    for n,dl in ((5, DataLoader(ds, 5)), (6, streams['stream']())):
        mk(dl, cbs=Limit(valid=n)).fit(1, cbs=cb)
        assert cb.complete and len(cb.preds)==N

def test_a_permanent_short_epoch_leaves_predictions_whole():
    learn = mk(cbs=ShortEpochCallback(.5))
    assert close(learn.fit(1).get_preds()[0], logits(learn).softmax(1))

def test_nan_is_predicted():
    learn = mk(cbs=TerminateOnNaNCallback())
    x = X[:4].clone(); x[1] = torch.nan
    preds,targs = learn.get_preds(dl=[(x, Y[:4]), (X[4:], Y[4:])])
    assert (preds.isnan().any(1).tolist()==[i==1 for i in range(N)] and torch.equal(targs, Y)
        and np.isnan(learn.validate(dl=[(x, Y[:4])]).valid_loss))
    assert learn.tta(dl=[(x, Y[:4])], n=2)[0].isnan().any(1).tolist()==[False,True,False,False]

def test_named_tuples_as_batches():
    Sample = namedtuple('Sample', 'x y')
    learn = mk()
    inp,preds,targs = learn.get_preds(dl=[Sample(X[:9], Y[:9]), Sample(X[9:], Y[9:])], with_input=True)
    assert torch.equal(inp, X) and torch.equal(targs, Y) and close(preds, logits(learn).softmax(1))

def test_a_model_without_parameters():
    learn = mk(model=nn.Softmax(1), loss_func=lambda p,t: p.mean())
    assert (close(learn.get_preds()[0], X.softmax(1)) and close(learn.predict(X[2])[2], X[2].softmax(0))
        and close(learn.tta(n=2, aug=lambda x: x*2, beta=0.)[0], (2*X).softmax(1)))

# Fetching
def test_fetching_after_the_last_of_several_validations():
    n,cb = [],FetchPredsCallback('a')
    learn = mk(dict(a=DataLoader(ds, 5), b=[(X[:3], Y[:3])]))
    learn.fit(2, cbs=[cb, Callback(before_validate=lambda cb: n.append((cb.mode, cb.learn.dl_name)))])
    assert n==[('fit','a'),('fit','b'),('predict','valid')]*2 and close(cb.preds[0], logits(learn).softmax(1))
    with pytest.raises(ValueError, match='`FetchPredsCallback` would never run.*`dls` has no validation loader'):
        Learner(DataLoaders([(X, Y)], device='cpu'), Net(), nn.CrossEntropyLoss()).remove_cb(ProgressCallback).fit(1,
            cbs=FetchPredsCallback(0))
    mk(cbs=FetchPredsCallback()).fit(1, cbs=Overfit(1))

# Showing, of nothing
def test_nothing_to_show():
    with pytest.raises(ValueError, match='The loader is empty: it gave no batch'): mk().show_results(dl=[])
    with pytest.raises(ValueError, match='`max_n` is 1 or more, but got 0'): mk().show_results(max_n=0)
    with pytest.raises(TypeError, match='`max_n` is a whole number, but got 2.5'): mk().show_results(max_n=2.5)
    it = iter(in_batches())
    with pytest.raises(ValueError,
            match=r'A batch that is taken from an iterator is gone: give a batch, `dl=\[batch\]`'):
        mk(valid=it).show_results()
    assert len([*it])==5

@pytest.mark.parametrize('exc', [KeyboardInterrupt, ValueError, cancels['validate']])
def test_predictions_that_were_interrupted_leave_the_file_of_before(tmp_path, exc):
    "It takes its name when all rows are in it"
    learn = mk()
    whole,_ = learn.get_preds(save_preds=tmp_path/'p.npy')
    whole = whole.clone()
    with torch.no_grad(): learn.model.lin.weight.mul_(2)
    with pytest.raises((KeyboardInterrupt,ValueError,RuntimeError)):
        learn.get_preds(save_preds=tmp_path/'p.npy', cbs=Raise('after_pred', exc, n=2))
    assert [o.name for o in tmp_path.iterdir()]==['p.npy'] and np.array_equal(np.load(tmp_path/'p.npy'), whole)
    again,_ = learn.get_preds(save_preds=tmp_path/'p.npy')
    assert np.array_equal(np.load(tmp_path/'p.npy'), again) and not torch.equal(again, whole)

# Callbacks that are removed while predictions are fetched
class Adds(Callback):
    "Changes what is predicted"
    def before_validate(self): self.began = getattr(self, 'began', 0)+1
    def after_pred(self):
        if not self.training: self.learn.pred = self.learn.pred+100
    def cleanup_validate(self): self.ended = getattr(self, 'ended', 0)+1

@pytest.mark.parametrize('order', [-5, 5])
@pytest.mark.parametrize('which', ['instance','class','list'])
def test_fetching_removes_callbacks(which, order):
    adds = Adds()
    adds.order = order
    fetch = FetchPredsCallback(cbs=dict(instance=adds, **{'class': Adds, 'list': [adds, EMA]})[which])
    learn = mk(cbs=[adds, fetch], loss_func=lambda p,t: F.cross_entropy(p, t)).fit(3)
    assert close(fetch.preds[0], logits(learn)) # without it
    assert adds in learn.cbs and learn.adds is adds and close(learn.get_preds()[0], logits(learn)+100) # which is back
    assert adds.began==adds.ended==4 # three validations and the predictions

def test_fetching_with_all_callbacks():
    adds,fetch = Adds(),FetchPredsCallback()
    learn = mk(cbs=[adds, fetch], loss_func=lambda p,t: F.cross_entropy(p, t)).fit(1)
    assert close(fetch.preds[0], logits(learn)+100)

def test_what_fetching_removes_are_callbacks():
    with pytest.raises(TypeError, match="`cbs` are callbacks, or classes of them, but got 'ema'"):
        FetchPredsCallback(cbs='ema')

# Masks
def segmenter(targ, loss_func=None, out=lambda x: torch.cat([-x, x], 1), c=1, **kwargs):
    "A learner that takes pixels above 0 for class 1"
    class Pixels(nn.Module):
        def forward(self, x): return out(x)
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(6, c, 4, 8, generator=gen)
    b = [(x, targ(x))]
    return x,Learner(DataLoaders(b, b, device='cpu', **kwargs), Pixels(),
        loss_func or nn.CrossEntropyLoss()).remove_cb(ProgressCallback)

def layers(ax): return [o.get_array() for o in ax.images]

def test_masks_are_shown_beside_their_targets():
    def targ(x):
        m = (x[:,0]>0).long()
        m[1] = 1-m[1]       # all wrong
        m[2,:,:4] = 1-m[2,:,:4]
        m[3,0] = -100       # do not count
        m[3,1,:2] = 1-m[3,1,:2]
        return m
    x,learn = segmenter(targ)
    axs = learn.show_results(shuffle=False)
    assert titles(axs)==['target','100% right','target','0% right','target','50% right','target','92% right','target',
        '100% right','target','100% right']
    (_,t),(img,d) = layers(axs[6]),layers(axs[7])
    assert img.shape==(4,8) and t.shape==d.shape==(4,8,4)
    assert (((d[...,3]>0)==(x[3,0]>0).numpy()).all() and ((t[...,3]>0)==(targ(x)[3]>0).numpy()).all()
        and not t[0,:,3].any())
    interp = Interpretation.from_learner(learn)
    axs = interp.plot_top_losses(2)
    assert ([o.split('\n')[0] for o in titles(axs)]==['target','0% right','target','50% right']
        and titles(axs)[1].endswith(f'loss {interp.losses.max():.2f}'))
    learn.dls.vocab = ['sky','tree']
    assert [o.get_text() for o in learn.show_results(max_n=2)[0].figure.legends[0].get_texts()]==['tree']
    plt.close('all')

def test_pixels_that_the_loss_ignores_do_not_count():
    x,learn = segmenter(lambda x: torch.where(x[:,0]>1, 255, (x[:,0]>0).long()), nn.CrossEntropyLoss(ignore_index=255))
    axs = learn.show_results(shuffle=False)
    assert (set(titles(axs)[1::2])=={'100% right'}
        and ((layers(axs[0])[1][...,3]>0)==((x[0,0]>0) & (x[0,0]<=1)).numpy()).all())
    x,learn = segmenter(lambda x: torch.full((6,4,8), -100))
    assert set(titles(learn.show_results()))=={'target','decision'} # nothing counts
    plt.close('all')

masks = dict(dice=(DiceLoss(), lambda x: (x[:,0]>0).long(), lambda x: torch.cat([-x, x], 1)),
    flat=(CrossEntropyLossFlat(axis=1), lambda x: (x[:,0]>0).long(), lambda x: torch.cat([-x, x], 1)),
    binary=(BCEWithLogitsLossFlat(), lambda x: (x>0).float(), lambda x: x),
    several=(nn.BCEWithLogitsLoss(), lambda x: torch.cat([x>0, x<-1], 1).float(), lambda x: torch.cat([x, -1-x], 1)),
    scores=(lambda p,t: F.cross_entropy(p, t), lambda x: (x[:,0]>0).long(), lambda x: torch.cat([-x, x], 1)),
    channel=(nn.CrossEntropyLoss(), lambda x: (x[:,0]>0).long(), lambda x: torch.cat([-x, x], 1)))
@pytest.mark.parametrize('name', masks)
def test_masks_of_every_loss(name):
    loss_func,targ,out = masks[name]
    x,learn = segmenter(targ, loss_func, out)
    axs = learn.show_results(shuffle=False, max_n=3)
    assert (titles(axs)==['target','100% right']*3
        and all((layers(a)[1]==layers(b)[1]).all() for a,b in zip(axs[::2], axs[1::2])))
    assert ((layers(axs[0])[1][...,3]>0)==((x[0,0]>0) | ((x[0,0]<-1) & (name=='several'))).numpy()).all()
    plt.close('all')

def test_masks_of_another_resolution_without_targets_or_over_what_is_no_image():
    x,learn = segmenter(lambda x: (F.avg_pool2d(x, 2)[:,0]>0).long(),
        out=lambda x: F.avg_pool2d(torch.cat([-x, x], 1), 2))
    axs = learn.show_results(max_n=2)
    assert titles(axs)[1]=='100% right' and axs[1].images[1].get_extent()==axs[1].images[0].get_extent()
    x,learn = segmenter(lambda x: (x[:,0]>0).long())
    assert titles(learn.show_results(dl=[(x,)], max_n=2))==['decision']*2
    x,learn = segmenter(lambda x: (x[:,0]>0).long(), out=lambda x: torch.cat([-x, x], 1)[:,:2], c=5)
    learn.model.forward = lambda x: torch.stack([-x[:,0], x[:,0]], 1)
    assert learn.show_results(max_n=2)[0].input=='(5 x 4 x 8)'
    plt.close('all')

def test_images_as_decisions():
    x,learn = segmenter(lambda x: x*2, F.mse_loss, lambda x: x*2+1)
    axs = learn.show_results(max_n=2)
    assert titles(axs)==['input','target','decision']*2 and len(axs)==6
    assert 'loss 1.00' in titles(Interpretation.from_learner(learn).plot_top_losses(1))[2]
    plt.close('all')

# Augmented inputs, and the way back
def test_masks_are_flipped_back():
    "A model that sees the side: its mask depends on where a pixel is"
    ramp = torch.linspace(-1, 1, 8)
    x,learn = segmenter(lambda x: (x[:,0]>0).long(), out=lambda x: torch.cat([-x, x+ramp], 1))
    def flip(x): return x.flip(-1),lambda pred: pred.flip(-1)
    def act(x): return learn.model(x).softmax(1)
    expected = .75*act(x.flip(-1)).flip(-1)+.25*act(x)
    assert close(learn.tta(aug=flip)[0], expected) and not close(learn.tta(aug=lambda x: x.flip(-1))[0], expected)
    (changed,plain),targs = learn.tta(aug=flip, beta=None)
    assert (close(changed, act(x.flip(-1)).flip(-1)) and close(plain, act(x))
        and torch.equal(targs, learn.dls.valid[0][1]))

def test_each_augmentation_has_its_way_back():
    "Drawn for each batch; one that changes nothing has none"
    x,learn = segmenter(lambda x: (x[:,0]>0).long())
    def sometimes(x): return (x.flip(-1), lambda pred: pred.flip(-1)) if torch.rand(())<.5 else x
    # each pixel by itself
    assert close(learn.tta([(o[None], (o>0).long()) for o in x], n=6, aug=sometimes)[0], learn.get_preds()[0])

def test_a_way_back_with_several_or_named_inputs():
    class Two(Net):
        def forward(self, a, b): return super().forward(a+b)
    back = lambda p: p*0
    two = Learner(DataLoaders([(X, X, Y)], [(X, X, Y)], device='cpu'), Two(),
        nn.CrossEntropyLoss()).remove_cb(ProgressCallback)
    named = Learner(DataLoaders([dict(a=X, b=X)], [dict(a=X, b=X)], device='cpu'), Two(),
        lambda p: p.mean()).remove_cb(ProgressCallback)
    even = torch.full((N,C), 1/C)
    assert (close(mk().tta(n=1, aug=lambda x: (x, back), beta=0.)[0], even)
        and close(two.tta(n=1, aug=lambda a,b: (a, b, back), beta=0.)[0], even))
    assert not named.tta(n=1, aug=lambda a,b: (dict(a=a+1), back), beta=0.)[0].any()
    with pytest.raises(TypeError, match='The function that `aug` has returned takes predictions back, but gave None'):
        mk().tta(aug=lambda x: (x, lambda p: None))

@pytest.mark.parametrize('f,match',
    [(lambda o: o.tta(batch_tfms=[]), 'tta` has no argument `batch_tfms`. Did you mean `aug`'),
        (lambda o: o.tta(item_tfms=[]), 'tta` has no argument `item_tfms`. Did you mean `aug`'),
    (lambda o: load_learner('x.pkl', cpu=True), '`load_learner` has no argument `cpu`. Did you mean `device`')],
    ids=['batch_tfms','item_tfms','cpu'])
def test_arguments_of_fastai_are_answered_with_ours(f, match):
    with pytest.raises(TypeError, match=match): f(mk())

@pytest.mark.parametrize('targets', [True, False])
def test_predictions_compute_the_loss_where_there_are_targets(targets):
    "Callbacks may read it, whether or not one waits for it; the Learner's docstring says so"
    seen = []
    learn = mk()
    dl = None if targets else [(o[0],) for o in learn.dls.valid]
    learn.get_preds(dl=dl, cbs=Callback(after_batch=lambda self: seen.append(self.loss)))
    assert seen and all((o is not None)==targets for o in seen)
    assert 'a loss stays None where `predict` has no targets' in Learner.__doc__

def test_losses_of_samples_can_be_asked_for_while_gradients_are_recorded():
    pred,y = torch.randn(8, 3, requires_grad=True),torch.randint(0, 3, (8,))
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            losses = per_sample(lambda p, t: F.cross_entropy(p, t))(pred, y)
    finally: torch.set_warn_always(False)
    assert not said and losses.requires_grad
    assert torch.allclose(losses, F.cross_entropy(pred, y, reduction='none'))

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('shape,n', [((), 9), ((3,), 9), ((3,), 5)])
@pytest.mark.parametrize('known', [True, False])
def test_a_last_batch_of_one_from_a_model_that_squeezes(shape, n, known):
    class Squeezes(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(3, shape[0] if shape else 1)
        def forward(self, x): return self.lin(x).squeeze()
    x,y = torch.randn(n, 3),torch.randn(n, *shape)
    data = list(zip(x.split(4), y.split(4)))
    learn = Learner(DataLoaders(data, data if known else map(list, data), device='cpu'), Squeezes(), nn.MSELoss())
    preds,targs = learn.get_preds()
    assert torch.equal(targs, y) and torch.allclose(preds, learn.model(x), atol=1e-6)

def test_a_callback_predicts_inside_of_a_prediction():
    class Sample(Callback):
        inside = None
        def after_validate(self):
            if self.inside is not None: return
            self.inside = () # not for ever
            self.inside = self.learn.predict(torch.ones(3))
    b = torch.randn(4, 3),torch.randn(4, 1)
    learn = Learner(DataLoaders([b], [b], device='cpu'), nn.Linear(3, 1), nn.MSELoss()).remove_cb(ProgressCallback)
    right = learn.predict(torch.ones(3))
    learn = Learner(learn.dls, learn.model, nn.MSELoss(), cbs=Sample).remove_cb(ProgressCallback)
    learn.dls = DataLoaders([b], [b], device='cpu') # of which nothing is known yet
    learn.predict(torch.zeros(3))
    assert torch.equal(learn.sample.inside[2], right[2])

# Dataclasses
@dataclass(frozen=True, slots=True)
class Frozen:
    logits:torch.Tensor
    loss:torch.Tensor
    hidden:torch.Tensor|None = None

@dataclass
class Checked:
    "Made of something else than its fields"
    logits:torch.Tensor = field(init=False)
    hidden:torch.Tensor = field(init=False)
    x:InitVar[torch.Tensor]
    def __post_init__(self, x): self.logits,self.hidden = x*2,x.sum(1)

class OfClass(Net):
    def __init__(self, cls): super().__init__(); self.cls = cls
    def forward(self, x):
        o = super().forward(x)
        return Checked(o) if self.cls is Checked else Frozen(o, o.mean(), None)

@pytest.mark.parametrize('cls', [Frozen, Checked])
@pytest.mark.parametrize('known', [True, False])
def test_predictions_that_are_dataclasses(cls, known):
    def loss_func(p, y): return F.cross_entropy(p.logits, y)
    learn = mk(None if known else [(X[:5], Y[:5]), (X[5:], Y[5:])], OfClass(cls), loss_func)
    preds,o = learn.get_preds()[0],logits(learn)
    assert type(preds) is cls and close(preds.logits, 2*o if cls is Checked else o)
    if cls is Checked: assert close(preds.hidden, o.sum(1))
    else: assert preds.hidden is None and preds.loss is None
    assert all(type(p) is cls for p in learn.get_preds(concat_dim=None)[0])

def test_dataclasses_have_files_for_their_fields(tmp_path):
    learn = mk(model=OfClass(Checked), loss_func=lambda p, y: F.cross_entropy(p.logits, y))
    preds = learn.get_preds(save_preds=tmp_path/'p.npy')[0]
    assert type(preds) is Checked and {o.name for o in tmp_path.iterdir()}=={'p.logits.npy','p.hidden.npy'}
    assert close(torch.from_numpy(np.load(tmp_path/'p.hidden.npy')), logits(learn).sum(1))

def test_one_prediction_that_is_a_dataclass():
    learn = mk(model=OfClass(Checked), loss_func=lambda p, y: F.cross_entropy(p.logits, y))
    res = learn.predict(X[0])
    assert type(res[-1]) is Checked and close(res[-1].logits, 2*logits(learn)[0])

@pytest.mark.parametrize('loader', [dict(batch_size=4, sampler=torch.randperm(12).tolist()),
    dict(batch_sampler=[[11,3,0],[5,1,2,4],[6,10,9,8,7]])], ids=['sampler','batch_sampler'])
def test_predictions_come_in_the_order_of_the_dataset_along_any_axis(loader):
    x,y = torch.arange(24.).view(12, 2),torch.arange(12)
    class Sideways(nn.Module):
        def forward(self, x): return x.T
    learn = Learner(DataLoaders([(x, y)], device='cpu'), Sideways(), lambda p,t: p.mean())
    preds,_ = learn.get_preds(dl=DataLoader(TensorDataset(x, y), **loader), concat_dim=1, with_targs=False)
    assert torch.equal(preds, x.T)

@pytest.mark.parametrize('kind', [lambda o: o, tuple, list, torch.Tensor.byte], ids=['tensor','tuple','list','bytes'])
@pytest.mark.parametrize('n', [None, 12])
def test_rows_are_put_in_their_places(n, kind):
    x,places = torch.arange(12.)[:,None],torch.randperm(12)
    learn = Learner(DataLoaders(x.split(4), x.split(4), device='cpu', split=lambda b: ((b,), ())), nn.Identity(),
        lambda p: p.mean())
    learn.validate(cbs=(cb := GatherPredsCallback(n=n, to=kind(places))))
    assert torch.equal(cb.preds[places], x)

@pytest.mark.parametrize('places', [[0]*3, [0,2], [1,2,3], [-1,0,1]], ids=str)
def test_places_that_would_leave_rows_empty_are_refused(places):
    with pytest.raises(ValueError, match='`to` has each place from 0 on once'): GatherPredsCallback(to=places)

def test_single_numbers_for_batches_of_one_come_in_the_order_of_the_dataset():
    x,y = torch.arange(6.)[:,None],torch.arange(6)
    class Squeezes(nn.Module):
        def forward(self, x): return x.squeeze()
    learn = Learner(DataLoaders([(x, y)], device='cpu'), Squeezes(), lambda p,t: p.mean())
    preds,targs = learn.get_preds(dl=DataLoader(TensorDataset(x, y), 1, sampler=[3,1,5,0,4,2]))
    assert preds.tolist()==targs.tolist()==[0,1,2,3,4,5]

@pytest.mark.parametrize('dtype', [torch.bfloat16,torch.float16,torch.float32])
def test_decisions_about_predictions_in_half_precision_are_those_of_accuracy(dtype):
    "Their probabilities would be rounded to equal ones, and across a threshold"
    class Same(nn.Module):
        def __init__(self): super().__init__(); self.p = nn.Parameter(torch.zeros(1))
        def forward(self, x): return x+self.p.to(x.dtype)*0
    torch.manual_seed(0)
    pred = (torch.randn(400, 5)*.02).to(dtype)
    for loss_func,targ in (nn.CrossEntropyLoss(),pred.argmax(1)),(nn.BCEWithLogitsLoss(),(pred>0).to(dtype)):
        dl = DataLoader(TensorDataset(pred, targ), 64)
        probs,_,decided = Learner(DataLoaders(dl, dl, device='cpu'), Same(), loss_func).get_preds(with_decoded=True)
        assert torch.equal(decided, targ.to(decided.dtype)) and probs.dtype==torch.float32

def test_losses_are_those_of_what_the_model_has_returned_whatever_the_activation_does():
    y = torch.randint(0, 2, (N, C), generator=torch.Generator().manual_seed(1)).float()
    learn = mk(DataLoader(TensorDataset(X, y), 5), loss_func=nn.BCEWithLogitsLoss())
    *_,losses = learn.get_preds(with_loss=True)
    *_,same = learn.get_preds(with_loss=True, act=torch.sigmoid_)
    assert torch.equal(losses, same)
