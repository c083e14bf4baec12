"Files hold what was saved, all of it or what was there before; reading them runs no code; what fails leaves no trace"
import errno,io,os,pickle,random,shutil,signal,socket,stat,subprocess,sys,tarfile,threading,time,warnings,zipfile
from collections import Counter,OrderedDict,defaultdict,namedtuple
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
import numpy as np, pytest, torch
from fastcore.foundation import L
from torch import nn
from torch.nn import functional as F
from hypothesis import given,strategies as st
from learner.all import *
from parts import shown
from processes import run_script
from torch.distributed import checkpoint
from learner.record import files
from learner.record.files import hash_of,parts_folder,patiently

pytestmark = [pytest.mark.filterwarnings(f'ignore:.*{o}')
    for o in ('multi-threaded, use of fork', 'TypedStorage is deprecated', 'torch.jit.* is deprecated',
        'looks like a TorchScript archive', 'Detected pickle protocol')]

class Net(nn.Module):
    "Weights in two parts, running statistics, and a weight under two names"
    def __init__(self, n=4):
        super().__init__()
        self.body,self.head = nn.Sequential(nn.Linear(3, n), nn.BatchNorm1d(n), nn.ReLU()),nn.Linear(n, 2)
        self.tied = nn.Linear(n, 2)
        self.tied.weight = self.head.weight
    def forward(self, x): h = self.body(x); return self.head(h) + self.tied(h)

def batches(n=4, bs=6, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [(torch.randn(bs, 3, generator=gen), torch.randn(bs, 2, generator=gen)) for _ in range(n)]

def mk(path='.', seed=0, model=None, opt_func=partial(torch.optim.SGD, momentum=.9), **kwargs):
    torch.manual_seed(seed)
    kwargs = dict(loss_func=nn.MSELoss(), lr=.05, path=path) | kwargs
    return Learner(DataLoaders(batches(), batches(1, seed=1), device='cpu'), Net() if model is None else model,
        opt_func=opt_func, **kwargs).remove_cb(ProgressCallback)

def clone(o):
    if isinstance(o, torch.Tensor): return o.detach().clone()
    if isinstance(o, dict): return {k:clone(v) for k,v in o.items()}
    return [clone(v) for v in o] if isinstance(o, (list,tuple)) else o
def equal(a, b):
    if isinstance(a, torch.Tensor): return isinstance(b, torch.Tensor) and a.dtype==b.dtype and torch.equal(a, b)
    if isinstance(a, dict): return isinstance(b, dict) and [*a]==[*b] and all(equal(v, b[k]) for k,v in a.items())
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(equal, a, b))
    return a==b
def weights(learn): return clone(learn.model.state_dict())
def state(learn):
    "All that a load may change"
    return clone(dict(model=learn.model.state_dict(), opt=learn.opt and learn.opt.state_dict(), lr=learn.lr,
        is_opt=id(learn.opt), file=learn.file, saved=learn.saved, mode=learn.mode,
        identity=[(k, id(p), p.requires_grad) for k,p in learn.model.named_parameters(remove_duplicate=False)],
        own=[id(p) for g in learn.opt.param_groups for p in g['params']] if learn.opt else None))
def same(learn, before): return equal(state(learn), before)
def listing(folder):
    return sorted(o.relative_to(folder).as_posix() for o in Path(folder).rglob('*') if o.is_file() or o.is_symlink())
def noted(e): return str(e.value)+'\n'+'\n'.join(getattr(e.value, '__notes__', ()))

# What comes back
@pytest.mark.parametrize('suffix', ['','.pth','.pt','.safetensors'])
def test_weights_come_back(tmp_path, suffix):
    learn = mk(tmp_path).fit(1)
    file = learn.save('best'+suffix)
    assert file==tmp_path/'models'/('best'+(suffix or '.pth')) and listing(tmp_path)==['models/best'+(suffix or '.pth')]
    other = mk(tmp_path, seed=1)
    assert not equal(weights(other), weights(learn)) and other.load('best'+suffix) is other
    assert equal(weights(other), weights(learn))

def test_the_file_is_fastais():
    "`{'model', 'opt'}` with an optimizer, the bare weights without, for `torch.load` as it is"
    learn,buf = mk(),io.BytesIO()
    def read(): buf.seek(0); res = torch.load(buf, weights_only=True); buf.seek(0); buf.truncate(); return res
    learn.save(buf)
    assert equal(dict(read()), dict(learn.model.state_dict()))
    learn.fit(1).save(buf)
    res = read()
    torch.optim.SGD(mk().model.parameters(), .1, .9).load_state_dict(res['opt']) # the names do not disturb torch
    names = [g.pop('param_places') for g in res['opt']['param_groups']]
    assert names==[[f'model.{k}' for k,_ in learn.model.named_parameters()]]
    assert ([*res]==['model','opt'] and equal(dict(res['model']), dict(learn.model.state_dict()))
        and equal(res['opt'], learn.opt.state_dict()))
    learn.save(buf, with_opt=False)
    assert equal(dict(read()), dict(learn.model.state_dict()))
    mk(seed=1).model.load_state_dict(torch.load((learn.save(buf), buf.seek(0))[0], weights_only=True)['model'])

class Centres(nn.Module):
    "A loss with parameters, which are trained with the model if `trained`"
    def __init__(self, n=2): super().__init__(); self.w = nn.Parameter(torch.zeros(n))
    def forward(self, pred, y): return F.cross_entropy(pred+self.w, y)
def with_loss(path, trained=True, n=2, **kwargs):
    f = Centres(n)
    kw = dict(splitter=lambda m: [*m.parameters(), *f.parameters()]) if trained else {}
    return mk(path, loss_func=f, **kw, **kwargs)

def test_a_loss_that_is_trained_is_saved_with_the_model(tmp_path):
    "With or without the optimizer, and before there is one; a run's own file has it too"
    learn = with_loss(tmp_path).fit(1, cbs=[SaveModelCallback(fname='best')])
    assert learn.loss_func.w.abs().min()>0 and [*files.read_plain(learn.save('a'))]==['model','loss','opt']
    with_loss(tmp_path, seed=1).load(learn.save('b', with_opt=False)).save('c')
    for name in ('a','b','c','best',learn.save_state('d')):
        other = with_loss(tmp_path, seed=1).load(name)
        assert torch.equal(other.loss_func.w, learn.loss_func.w) and equal(weights(other), weights(learn))
    untrained = with_loss(tmp_path, trained=False).load('a', with_opt=False) # to validate
    assert untrained.validate()==learn.validate()

def test_the_best_weights_are_those_of_the_loss_too(tmp_path):
    class Worse(Callback):
        run_valid = False
        def before_batch(self):
            if self.learn.epoch: self.learn.set_hyper('lr', 50.)
    learn = with_loss(tmp_path).fit(2, .1, cbs=[SaveModelCallback(), Worse])
    best,worse = learn.recorder['valid_loss']
    assert best<worse and learn.validate().valid_loss==pytest.approx(best)

def test_a_file_has_no_loss_unless_it_is_trained(tmp_path):
    with pytest.warns(UserWarning, match="not in the optimizer"):
        learn = with_loss(tmp_path, trained=False).fit(1)
    assert [*files.read_plain(learn.save('a'))]==['model','opt']
    assert equal(dict(files.read_plain(learn.save('b', with_opt=False))), dict(learn.model.state_dict()))
    files.write_plain(files.read_plain(tmp_path/'models'/'a.pth') | dict(loss=.3), tmp_path/'models'/'c.pth', 'x')
    assert equal(weights(mk(tmp_path, seed=1).load('c')), weights(learn))

def test_a_loss_of_other_parameters_is_refused_or_left(tmp_path):
    with_loss(tmp_path).fit(1).save('a')
    other = with_loss(tmp_path, n=1, seed=1)
    before = state(other)
    others = '`loss_func` has parameters of other names or shapes'
    with pytest.raises(ValueError, match=f'{others}. With `strict=False`'): other.load('a')
    assert same(other, before)
    with pytest.warns(UserWarning, match=f'in part. {others}. The optimizer was not'):
        other.load('a', strict=False)
    assert other.loss_func.w.tolist()==[0] and other.fit(1)

def test_safetensors_hold_no_loss(tmp_path):
    learn = with_loss(tmp_path).fit(1)
    with pytest.warns(UserWarning, match='holds the weights of the model, without those of `loss_func`'):
        learn.save('a.safetensors')

def test_class_weights_of_a_loss_are_not_those_of_a_run_that_is_loaded(tmp_path):
    "They are settings: only a loss that is trained has weights"
    def weighted(*vals, seed=0):
        return mk(tmp_path, seed, loss_func=nn.CrossEntropyLoss(weight=torch.tensor(vals)))
    learn = weighted(1., 5.).fit(1, cbs=Checkpoint)
    other = weighted(1., 1., seed=1).load(next((tmp_path/'checkpoints').glob('*.pt')))
    assert other.loss_func.weight.tolist()==[1,1] and equal(weights(other), weights(learn))

class Penalty(nn.Module):
    "A loss that holds the model, of which it has all its parameters"
    def __init__(self, model): super().__init__(); self.model = model
    def forward(self, pred, y): return F.mse_loss(pred, y)+self.model.weight.square().sum()

def test_a_loss_that_holds_the_model_has_no_weights_of_its_own(tmp_path):
    model = nn.Linear(3, 2)
    learn = mk(tmp_path, model=model, loss_func=Penalty(model)).fit(1)
    other = nn.Linear(3, 2)
    other.load_state_dict(torch.load(learn.save('a', with_opt=False), weights_only=True))
    assert equal(other.state_dict(), model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.save('a.safetensors')

@pytest.mark.parametrize('file', ['a.b','run1/best','v1.2.pth.bak','résumé 中','a'*200])
def test_names(tmp_path, file):
    learn = mk(tmp_path)
    assert learn.save(file)==tmp_path/'models'/f'{file}.pth'
    assert learn.load(file) and learn.load(Path(file)) and learn.load(tmp_path/'models'/f'{file}.pth')

def test_an_absolute_path_can_be_anywhere(tmp_path):
    learn = mk(tmp_path/'here')
    assert (learn.save(tmp_path/'there'/'x')==tmp_path/'there'/'x.pth' and learn.load(str(tmp_path/'there'/'x'))
        and listing(tmp_path)==['there/x.pth'])

def test_memory_and_open_files(tmp_path):
    learn,other,buf = mk(tmp_path).fit(1),mk(tmp_path, seed=1),io.BytesIO()
    assert learn.save(buf) is buf and not listing(tmp_path)
    buf.seek(0)
    assert equal(weights(other.load(buf)), weights(learn)) and equal(other.opt.state_dict(), learn.opt.state_dict())
    for name in ('x.pth','x.safetensors'):
        with open(tmp_path/name, 'wb') as f: learn.save(f)
        with open(tmp_path/name, 'rb') as f: assert equal(weights(mk(seed=2).load(f)), weights(learn))
        assert equal(weights(mk(seed=2).load(tmp_path/name)), weights(learn))

def test_what_save_returns_can_be_loaded(tmp_path, monkeypatch):
    "From anywhere, also where the learner's path is relative, as by default"
    monkeypatch.chdir(tmp_path)
    learn = mk().fit(1)
    for name in ('a','a.safetensors'): assert equal(weights(mk(seed=1).load(learn.save(name))), weights(learn))
    file,pkl = learn.save('b'),learn.export()
    (tmp_path/'other').mkdir(); monkeypatch.chdir(tmp_path/'other')
    assert (file==tmp_path/'models'/'b.pth' and equal(weights(mk(seed=1).load(file)), weights(learn))
        and equal(weights(load_learner(pkl, trust=True)), weights(learn)))

def test_memory_that_was_not_rewound():
    learn,buf = mk(),io.BytesIO()
    learn.save(buf)
    with pytest.raises(ValueError, match=fr'position {buf.tell()}: `file.seek\(0\)`'): learn.load(buf)

def test_tied_weights_stay_tied(tmp_path):
    for name in ('a.pth','a.safetensors'):
        learn,other = mk(tmp_path).fit(1),mk(tmp_path, seed=1)
        learn.save(name); other.load(name)
        assert other.model.tied.weight is other.model.head.weight and equal(weights(other), weights(learn))

def test_a_nested_tensor_is_saved(tmp_path):
    learn = mk(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # torch: nested tensors are a prototype
        learn.model.register_buffer('rows', torch.nested.nested_tensor([torch.ones(2), torch.ones(3)*2]))
    res = torch.load(learn.save('a', with_opt=False), weights_only=True)
    assert [o.tolist() for o in res['rows'].unbind()]==[[1.]*2,[2.]*3]

def test_tied_weights_are_written_once_where_they_are_copied_first(tmp_path):
    "as those on a GPU are, and here what is a part of something larger"
    def size(tie):
        model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
        for m in model: m.weight = nn.Parameter(torch.randn(2, 100, 100)[0])
        if tie: model[1].weight = model[0].weight
        Learner(DataLoaders([], device='cpu'), model, F.mse_loss, path=tmp_path).save('a')
        saved = torch.load(tmp_path/'models'/'a.pth')
        assert all(torch.equal(v, saved[k]) for k,v in model.state_dict().items())
        return (tmp_path/'models'/'a.pth').stat().st_size
    assert size(tie=False)-size(tie=True)==pytest.approx(4*100*100, abs=500)

def test_views_of_the_same_memory_keep_their_own_values(tmp_path):
    z,t = torch.randn(2, 3, dtype=torch.complex64),torch.arange(6.)
    saved = dict(z=z, conj=z.conj(), t=t, rows=t.view(2, 3), mT=t.view(3, 2).mT, some=t[:3], every=t[::2],
        none=t[:0], ones=torch.ones(0), param=nn.Parameter(t))
    files.write_plain(saved, tmp_path/'a')
    found = files.read_plain(tmp_path/'a')
    assert all(torch.equal(v, found[k]) and v.dtype is found[k].dtype for k,v in saved.items())
    assert [k for k,v in found.items() if type(v) is nn.Parameter]==['param']

def test_a_file_holds_no_more_than_the_weights(tmp_path):
    "A weight that is a small part of something large does not take the large thing along; tied ones are there once"
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(500_000)[:10]); self.register_buffer('u', self.w.detach())
        def forward(self, x): return x*self.w.sum()
    assert mk(tmp_path, model=Part()).save('part').stat().st_size<5000
    one,two = nn.Linear(100, 100, bias=False),nn.Sequential(nn.Linear(100, 100, bias=False),
        nn.Linear(100, 100, bias=False))
    two[1].weight = two[0].weight
    assert mk(tmp_path, model=two).save('two').stat().st_size < mk(tmp_path, model=one).save('one').stat().st_size+1000

dtypes = [torch.float64,torch.float16,torch.bfloat16,torch.int64,torch.bool,torch.complex64]
@pytest.mark.parametrize('dtype', dtypes, ids=str)
def test_dtypes(tmp_path, dtype):
    "Those of the file are those of the model that was saved; the model that loads keeps its own"
    class M(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1)); self.register_buffer('b', torch.tensor([1,0,1]).to(dtype))
        def forward(self, x): return x
    learn = mk(tmp_path, model=M(dtype))
    for name in ('x.pth',) if dtype.is_complex else ('x.pth','x.safetensors'):
        learn.save(name)
        other = mk(tmp_path, model=M(dtype)); other.model.b.zero_(); other.load(name)
        assert other.model.b.dtype==dtype and torch.equal(other.model.b, learn.model.b)
        if not dtype.is_complex:
            other = mk(tmp_path, model=M(torch.float32)); other.model.b.zero_(); other.load(name)
            assert other.model.b.dtype==torch.float32 and other.model.b.tolist()==[1,0,1]

def test_parameters_stay_themselves(tmp_path):
    "So that an optimizer goes on working; frozen ones stay frozen"
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    learn.model.head.bias.requires_grad_(False)
    learn.fit(1)
    before = state(learn)['identity']
    learn.load('a')
    assert state(learn)['identity']==before
    at = weights(learn)
    learn.fit(1)
    assert equal(learn.model.head.bias, at['head.bias']) and not equal(learn.model.body[0].weight, at['body.0.weight'])

class Versioned(nn.Module):
    "Before version 2, weights were stored negated"
    _version = 2
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(2))
    def forward(self, x): return x*self.w.sum()
    def _load_from_state_dict(self, sd, prefix, meta, *args):
        if meta.get('version', 1)<2 and prefix+'w' in sd: sd[prefix+'w'] = -sd[prefix+'w']
        super()._load_from_state_dict(sd, prefix, meta, *args)

@pytest.mark.parametrize('wrap', ['plain','whole','part','parallel'])
def test_versions_of_modules_travel(tmp_path, wrap):
    "torch keeps beside the weights which version of a class they are from"
    def model(): return nn.Sequential(Versioned())
    wraps = dict(plain=lambda m: m, whole=compiled, part=lambda m: nn.Sequential(compiled(m[0])),
        parallel=nn.DataParallel)
    mk(tmp_path, model=model()).save('v')
    learn = mk(tmp_path, model=wraps[wrap](model()))
    def value(): return next(learn.model.parameters()).tolist()
    learn.load('v')
    assert value()==[1,1]
    learn.save('w'); learn.load('w')
    assert value()==[1,1]
    torch.save(learn.model.state_dict(), tmp_path/'x.pth')
    learn.load(tmp_path/'x.pth'); mk(model=(m := model())).load(tmp_path/'x.pth')
    assert value()==[1,1]==next(m.parameters()).tolist()

def test_a_plain_dict_is_of_no_version():
    "torch's rule"
    m = Versioned()
    load_weights(m, {'w': torch.ones(2)})
    assert m.w.tolist()==[-1,-1]

def test_weights_are_copied_whatever_the_file_says():
    "torch notes in a state whether it was last assigned instead of copied"
    a,b = nn.Linear(3, 2),nn.Linear(3, 2)
    state = a.state_dict()
    b.load_state_dict(state, assign=True)
    assert state._metadata['']['assign_to_params_buffers']
    c = nn.Linear(3, 2)
    w = c.weight
    load_weights(c, state)
    assert c.weight is w and c.weight.data_ptr()!=a.weight.data_ptr() and torch.equal(w, a.weight)

def test_what_is_put_back_is_of_this_version(tmp_path):
    m = nn.Sequential(Versioned(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match='other shapes: `1.bias'):
        load_weights(m, {**weights_of(m), '0.w': torch.zeros(2), '1.bias': torch.zeros(3)})
    assert m[0].w.tolist()==[1,1]

def test_state_that_modules_add():
    class Extra(nn.Linear):
        def get_extra_state(self): return dict(seen=self.seen)
        def set_extra_state(self, o): self.seen = o['seen']
    a,b,buf = Extra(3, 2),Extra(3, 2),io.BytesIO()
    a.seen,b.seen = 3,0
    mk(model=a).save(buf); buf.seek(0); mk(model=b).load(buf)
    assert b.seen==3 and equal(a.weight, b.weight)
    with pytest.raises(ValueError, match='missing: `_extra_state`'): load_weights(b, nn.Linear(3, 2).state_dict())
    with pytest.raises(ValueError, match=r'`weight no tensor → \(2, 3\)`'):
        load_weights(b, {**weights_of(a), 'weight': 3})

def test_modules_that_rename_old_weights():
    "What torch would load, loads: hooks that rename, and batch norm without its counter"
    m = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    load_weights(m, dict(bias=torch.zeros(2), weight_g=torch.ones(2, 1), weight_v=torch.ones(2, 3)))
    assert torch.allclose(m.weight, torch.full((2,3), 3**-.5))
    old = {k:v for k,v in nn.BatchNorm1d(2).state_dict().items() if k!='num_batches_tracked'}
    assert not any(load_weights(nn.BatchNorm1d(2), old))

def test_buffers_whose_shape_is_not_known_before():
    class Grows(nn.Module):
        def __init__(self): super().__init__(); self.register_buffer('seen', torch.zeros(0))
        def _load_from_state_dict(self, sd, prefix, *args):
            self.seen = torch.zeros_like(sd[prefix+'seen'])
            super()._load_from_state_dict(sd, prefix, *args)
    m = Grows()
    load_weights(m, dict(seen=torch.ones(3)))
    assert m.seen.tolist()==[1,1,1]

def test_a_lazy_model_takes_its_shapes_from_the_file(tmp_path):
    learn = mk(tmp_path, model=nn.Linear(3, 2))
    learn.save('a')
    lazy = nn.LazyLinear(2)
    mk(tmp_path, model=lazy).load('a')
    assert equal(weights(learn), clone(lazy.state_dict()))
    lazy = nn.Sequential(nn.LazyLinear(3), Refuses())
    lazy[1].fails = ZeroDivisionError()
    before = lazy[1].a.weight.clone()
    with pytest.raises(ZeroDivisionError): load_weights(lazy, nn.Sequential(nn.Linear(3, 3), Refuses()).state_dict())
    assert torch.equal(lazy[1].a.weight, before)

def test_a_model_without_values(tmp_path):
    mk(tmp_path, model=nn.Linear(3, 2)).save('a')
    with pytest.raises(NotImplementedError, match='meta'): mk(tmp_path, model=nn.Linear(3, 2, device='meta')).load('a')

# Wrapped models
def compiled(m): return torch.compile(m, backend='eager') # its names are those of every backend
def wrapped():
    def part(m, k, f): setattr(m, k, f(getattr(m, k))); return m
    def deep(m): m.body[0] = compiled(m.body[0]); return m
    return dict(plain=lambda m: m, compiled=compiled, parallel=nn.DataParallel,
        both=lambda m: compiled(nn.DataParallel(m)), twice=lambda m: nn.DataParallel(compiled(m)),
        part=lambda m: part(m, 'body', compiled), deep=deep, parallel_part=lambda m: part(m, 'body', nn.DataParallel),
        all=lambda m: nn.DataParallel(compiled(part(deep(m), 'body', nn.DataParallel))))
plain_names = [*Net().state_dict()]

@pytest.mark.parametrize('name', wrapped())
def test_names_in_files_are_plain(tmp_path, name):
    learn = mk(tmp_path, model=wrapped()[name](Net()))
    for suffix in ('.pth','.safetensors'):
        file = learn.save('w'+suffix)
        saved = files.read_plain(file) if suffix=='.pth' else __import__('safetensors.torch').torch.load_file(file)
        assert sorted(saved)==sorted(plain_names)
        other = mk(tmp_path, seed=1).load(file)
        assert equal([*weights(other).values()], [*weights(learn).values()])
        learn.model.load_state_dict({k:torch.zeros_like(v) for k,v in learn.model.state_dict().items()})
        learn.load(file)
        assert equal([*weights(other).values()], [*weights(learn).values()])
    assert weights_of(learn.model)['head.weight'].data_ptr()==next(p
        for k,p in learn.model.named_parameters() if k.endswith('head.weight')).data_ptr()

@pytest.mark.parametrize('name', wrapped())
def test_names_that_others_wrote_are_understood(tmp_path, name):
    "A file with prefixes, made by `torch.save`, in a plain model and in a wrapped one"
    m = wrapped()[name](Net())
    torch.save(dict(model=m.state_dict(), opt={}), tmp_path/'p.pth')
    for inner in ('plain','both','part'):
        learn = mk(model=wrapped()[inner](Net()))
        learn.load(tmp_path/'p.pth', with_opt=False)
        assert equal([*weights(learn).values()], [*clone(m.state_dict()).values()])

def test_a_model_with_a_module_of_that_name(tmp_path):
    class Holds(nn.Module):
        def __init__(self): super().__init__(); self.module,self.submodule = nn.Linear(3, 2),nn.Linear(2, 2)
        def forward(self, x): return self.submodule(self.module(x))
    a = mk(tmp_path, model=Holds())
    file = a.save('a')
    assert [*files.read_plain(file)]==['module.weight','module.bias','submodule.weight','submodule.bias']
    for wrap in (lambda m: m, nn.DataParallel, torch.compile):
        b = mk(tmp_path, seed=1, model=wrap(Holds()))
        assert equal([*weights(b.load('a')).values()], [*weights(a).values()])
    load_weights(Holds(), nn.DataParallel(a.model).state_dict())

@pytest.mark.skipif(not torch.distributed.is_available(), reason='needs torch.distributed')
def test_distributed_data_parallel(tmp_path):
    import torch.distributed as dist
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        m = nn.parallel.DistributedDataParallel(Net())
        assert [*weights_of(m)]==plain_names and unwrapped(m) is m.module
        other = Net()
        load_weights(other, m.state_dict())
        load_weights(m, {k:v+1 if v.is_floating_point() else v for k,v in weights_of(other).items()})
        assert torch.equal(m.module.head.weight, other.head.weight+1)
    finally:
        m = None # were it the last to hold the group, it would wait for threads that wait for Python's lock
        dist.destroy_process_group()

# Strict, in part, by pattern
def test_strict(tmp_path):
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    big = mk(tmp_path, seed=1, model=Net(5))
    big.model.extra = nn.Linear(1, 1)
    del big.model.tied
    before = state(big)
    with pytest.raises(ValueError,
            match=r"missing: `extra.weight`, `extra.bias`; unexpected: `tied.weight`, `tied.bias`; other shapes: "
            r"`body.0.weight \(4, 3\) → \(5, 3\)`.* and 3 more.*`learn.load\(file, strict=False\)`(?s:.*)`.*a\.pth`"):
        big.load('a')
    assert same(big, before)

def test_what_fits_is_loaded(tmp_path):
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    big = mk(tmp_path, seed=1)
    big.model.head = nn.Linear(4, 3)
    before = weights(big)
    with pytest.warns(UserWarning,
            match=r"`.*a\.pth` was loaded in part.*other shapes: `head.weight \(2, 4\) → \(3, 4\)`, "
            r"`head.bias.*optimizer") as w:
        big.load('a', strict=False)
    assert [o.filename for o in w]==[__file__]
    after = weights(big)
    assert equal({k:v for k,v in after.items() if not k.startswith('head')},
        {k:v for k,v in weights(learn).items() if not k.startswith('head')})
    assert equal(after['head.weight'], before['head.weight']) and equal(after['head.bias'], before['head.bias'])
    assert big.opt is None

def test_the_list_of_what_did_not_match():
    m = nn.Linear(3, 2)
    res = load_weights(m, dict(weight=torch.ones(2, 3), bias=torch.zeros(5), more=torch.ones(1)), strict=False)
    assert (res==([], ['more'], ['bias (5,) → (2,)']) and res.missing==[] and res.unexpected==['more']
        and m.weight.eq(1).all())
    assert load_weights(m, dict(weight=torch.ones(2, 3)), strict=False)==(['bias'], [], [])
    assert not any(load_weights(m, weights_of(m)))

def test_nothing_that_fits_is_a_mistake():
    m = nn.Linear(3, 2)
    before = clone(m.state_dict())
    with pytest.raises(ValueError, match='Nothing .* fits.*unexpected: `epoch`, `state_dict`'):
        load_weights(m, dict(epoch=3, state_dict=nn.Linear(3, 2).state_dict()), strict=False)
    assert equal(clone(m.state_dict()), before)

@pytest.mark.parametrize('only,which',
    [('head.*', {'head.weight','head.bias'}), ('body.0.weight', {'body.0.weight'}),
        (['body.*','tied.bias'], {*(o for o in plain_names if o.startswith('body')), 'tied.bias'}),
        ('*.bias', {o for o in plain_names if o.endswith('.bias')}),
    ((o for o in ('head.*','body.1.*')), {o for o in plain_names if o.startswith(('head.','body.1.'))}),
    ('*', {*plain_names})], ids=shown)
@pytest.mark.parametrize('wrap', ['plain','both','part'])
def test_only_some(tmp_path, only, which, wrap):
    if not isinstance(only, (str,list)): only = (o for o in ('head.*','body.1.*')) # a generator lasts once
    mk(tmp_path).fit(1).save('a')
    learn = mk(tmp_path, seed=1, model=wrapped()[wrap](Net())).fit(1)
    file,before,opt = files.read_plain(tmp_path/'models'/'a.pth')['model'],clone(weights_of(learn.model)),clone(
        learn.opt.state_dict())
    with warnings.catch_warnings(): warnings.simplefilter('error'); learn.load('a', only=only)
    after = weights_of(learn.model)
    which = which | ({'head.weight','tied.weight'} if which & {'head.weight','tied.weight'} else set()) # one weight
    for k in plain_names: assert equal(after[k], (file if k in which else before)[k]), k
    assert equal(learn.opt.state_dict(), opt)

def test_only_mistakes(tmp_path):
    learn = mk(tmp_path)
    learn.save('a')
    before = state(learn)
    for only in ('heda.*', ['body.*','heda.*']):
        with pytest.raises(ValueError,
                match=r"'heda\.\*'.* matches no name of a weight: they begin with `body`, `head`, `tied`. Did you "
                r"mean `head`"):
            learn.load('a', only=only)
    small = mk(tmp_path, model=nn.Sequential(OrderedDict(head=nn.Linear(4, 2))))
    small.save('small')
    with pytest.raises(ValueError, match='missing: `body.0.weight`'): learn.load('small', only=['body.0.*','head.*'])
    assert same(learn, before)
    learn.load('small', only='head.*')
    assert torch.equal(learn.model.head.weight, small.model.head.weight)

# Errors leave everything
def broken_files(tmp_path):
    good = mk(tmp_path).fit(1)
    f = dict(files.read_plain(good.save('good')))
    def put(name, o): torch.save(o, tmp_path/'models'/f'{name}.pth')
    put('tensor', torch.ones(2))
    put('list', [torch.ones(2)])
    put('numbers', {1: torch.ones(1)}); put('values', dict(f, model={k:1. for k in f['model']}))
    put('text', 'weights')
    put('none', None)
    put('empty', {})
    put('empty_model', dict(model={}, opt={}))
    put('one', dict(f, model={**f['model'], 'head.bias': torch.ones(7)}))
    put('model_is_tensor', dict(model=torch.ones(1), opt={}))
    put('opt_none', dict(f, opt=3))
    put('opt_text', dict(f, opt='x'))
    put('opt_groups', dict(f, opt=dict(state={}, param_groups=5)))
    put('opt_empty', dict(f, opt=dict(state={}, param_groups=[])))
    put('opt_no_params', dict(f, opt=dict(state={}, param_groups=[{'lr': .1}])))
    put('opt_state', dict(f, opt=dict(f['opt'], state=[1])))
    put('opt_lens', dict(f, opt=dict(f['opt'], param_groups=[{**f['opt']['param_groups'][0], 'params': [0]}])))
    return [o.stem for o in (tmp_path/'models').iterdir() if o.stem!='good']

def test_files_of_something_else(tmp_path):
    names = broken_files(tmp_path)
    for fitted in (False, True):
        learn = mk(tmp_path, seed=1)
        if fitted: learn.fit(1)
        before = state(learn)
        for name in names:
            with pytest.raises((ValueError,TypeError), match=fr'{name}\.pth`') as e: learn.load(name)
            assert same(learn, before), name
            if name.startswith('opt') and name!='opt_none':
                assert 'with_opt=False' in str(e.value), (name, str(e.value))
        for name in names:
            if name.startswith('opt'): learn.load(name, with_opt=False)
    learn.load('good').fit(1)

class Refuses(nn.Module):
    "Fails after its children have been loaded"
    def __init__(self): super().__init__(); self.a,self.b = nn.Linear(3, 2),nn.Linear(2, 2); self.fails = None
    def forward(self, x): return self.b(self.a(x))
    def get_extra_state(self): return 1
    def set_extra_state(self, o):
        if self.fails: e,self.fails = self.fails,None; raise e

@pytest.mark.parametrize('exc', [RuntimeError('no'), ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize('fitted', [False,True])
def test_an_error_in_the_middle_puts_all_weights_back(tmp_path, exc, fitted):
    def model(): return nn.Sequential(nn.Linear(3, 3), Refuses(), nn.Linear(2, 2))
    mk(tmp_path, model=model()).fit(1).save('a')
    learn = mk(tmp_path, seed=1, model=model())
    if fitted: learn.fit(1)
    before = state(learn)
    for kw in ({}, dict(strict=False), dict(only='[01].*'), dict(with_opt=False)):
        learn.model[1].fails = exc
        with pytest.raises((ValueError, type(exc))): learn.load('a', **kw)
        assert same(learn, before), kw
    learn.load('a').fit(1)

class Scaled(nn.Module):
    "A number and a tensor that are in files as extra state"
    def __init__(self, scale):
        super().__init__()
        self.l,self.scale,self.table = nn.Linear(3, 2),scale,torch.tensor(scale)
    def forward(self, x): return self.l(x)*self.scale
    def get_extra_state(self): return self.scale
    def set_extra_state(self, scale): self.scale = scale; self.table.fill_(scale)

def test_an_error_puts_extra_state_back(tmp_path):
    mk(tmp_path, model=Scaled(5.)).fit(1).save('a')
    learn = mk(tmp_path, model=Scaled(1.), opt_func=torch.optim.Adam)
    with pytest.raises(ValueError, match='optimizer does not fit'): learn.load('a')
    model = learn.model
    assert (model.scale,float(model.table))==(1., 1.)
    learn.load('a', with_opt=False)
    assert (model.scale,float(model.table))==(5., 5.)

class Trained(nn.Module):
    "Has an extra state when it has been trained"
    def __init__(self, fails=False): super().__init__(); self.l,self.n,self.fails = nn.Linear(3, 2),None,fails
    def forward(self, x): self.n = {'seen': 1}; return self.l(x)
    def get_extra_state(self):
        if self.fails and self.n is None: raise RuntimeError('not trained yet')
        return self.n
    def set_extra_state(self, n): self.n = {'seen': n['seen']}

def test_an_error_is_that_of_the_load_whatever_extra_state_can_be_put_back(tmp_path):
    mk(tmp_path, model=Trained()).fit(1).save('a')
    mk(tmp_path).save('other')
    def load(name, model, match):
        with pytest.raises((ValueError,RuntimeError), match=match) as e: mk(tmp_path, model=model).load(name)
        assert f"while loading `{tmp_path/'models'/name}.pth`" in e.value.__notes__
        return e.value.__notes__
    assert len(load('other', Trained(), 'do not fit'))==1 # the state is none, as it was
    load('other', Trained(fails=True), 'not trained yet')
    learn = mk(tmp_path, model=Trained(), opt_func=torch.optim.Adam)
    with pytest.raises(ValueError, match='optimizer does not fit') as e: learn.load('a')
    assert 'not everything could be put back' in e.value.__notes__[-1] and 'NoneType' in e.value.__notes__[-1]

def test_a_damaged_optimizer_leaves_the_weights(tmp_path):
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    two = mk(tmp_path, seed=1, splitter=lambda m: [[*m.body.parameters()], [*m.head.parameters(), m.tied.bias]])
    before = state(two)
    with pytest.raises(ValueError, match=r'optimizer.*number of parameter groups.*`with_opt=False`(?s:.*)`.*a\.pth`'):
        two.load('a')
    assert same(two, before)
    assert equal(weights(two.load('a', with_opt=False)), weights(learn))

@pytest.mark.parametrize('fitted', [False,True])
def test_a_file_whose_groups_are_split_and_wrong(tmp_path, fitted):
    "Groups and learning rate are as before, although loading had begun to split them, or made the optimizer"
    a = mk(tmp_path, opt_func=torch.optim.SGD).fit(1, wd=.1)
    saved = files.read_plain(a.save('a'))
    assert len(saved['opt']['param_groups'])==2
    saved['opt']['param_groups'][1]['params'].pop()
    torch.save(saved, tmp_path/'models'/'wrong.pth')
    b = mk(tmp_path, seed=1, opt_func=torch.optim.SGD, lr=None)
    if fitted: b.fit(1)
    before = state(b)
    with pytest.raises(ValueError, match='size of optimizer'): b.load('wrong')
    assert same(b, before) and (b.lr is None)!=fitted
    assert len(b.load('a').opt.param_groups)==2

@pytest.mark.parametrize('a,b,lacks',
    [('SGD','Adam','betas'), ('Adam','SGD','momentum'), ('SGD','RMSprop','alpha'), ('Adagrad','SGD','momentum')])
def test_the_state_of_another_kind_of_optimizer(tmp_path, a, b, lacks):
    mk(tmp_path, opt_func=getattr(torch.optim, a)).fit(1).save('a')
    learn = mk(tmp_path, seed=1, opt_func=getattr(torch.optim, b)).fit(1)
    before = state(learn)
    for kw in ({}, dict(with_opt=True)):
        with pytest.raises(ValueError, match=fr"`{b}`.*`{lacks}`.*`with_opt=False`"): learn.load('a', **kw)
        assert same(learn, before)
    learn.load('a', with_opt=False).fit(1)

def test_warnings_that_are_errors_leave_everything_too(tmp_path):
    learn = mk(tmp_path)
    learn.save('a')
    learn.model.more = nn.Linear(1, 1)
    for p in learn.model.parameters(): p.data.add_(1)
    before = state(learn)
    with warnings.catch_warnings(), pytest.raises(UserWarning, match='in part'):
        warnings.simplefilter('error'); learn.load('a', strict=False)
    assert same(learn, before)

# With and without the optimizer
@pytest.mark.parametrize('has', [False,True])
@pytest.mark.parametrize('fresh', [False,True])
@pytest.mark.parametrize('with_opt', [None,False,True])
def test_with_opt(tmp_path, has, fresh, with_opt):
    a = mk(tmp_path).fit(1)
    a.save('a', with_opt=has)
    b = mk(tmp_path, seed=1)
    if not fresh: b.fit(2)
    before,own = state(b),clone(b.opt and b.opt.state_dict())
    if with_opt and not has:
        with pytest.raises(ValueError, match=r"the file has no state.*`with_opt=False`"): b.load('a', with_opt=True)
        assert same(b, before)
        return
    b.load('a', with_opt=with_opt)
    assert equal(weights(a), weights(b))
    if has and with_opt is not False: assert equal(b.opt.state_dict(), a.opt.state_dict())
    else: assert equal(b.opt and b.opt.state_dict(), own) and (b.opt is None)==fresh

def test_save_with_opt(tmp_path):
    learn = mk(tmp_path)
    with pytest.raises(ValueError, match='no optimizer yet.*`with_opt=False`'): learn.save('a', with_opt=True)
    with pytest.raises(ValueError, match='`a.safetensors` holds weights only'):
        learn.fit(1).save('a.safetensors', with_opt=True)
    assert not listing(tmp_path)
    with pytest.raises(TypeError, match="no argument `with_optt`.*`with_opt`"): learn.save('a', with_optt=True)
    with pytest.raises(TypeError, match="no argument `stric`.*`strict`"): learn.load('a', stric=True)

opts = dict(sgd=partial(torch.optim.SGD, momentum=.9), adam=Adam, torch_adam=torch.optim.AdamW,
    rms=partial(RMSProp, mom=.9, wd=.1), decoupled=partial(SGD, mom=.9, wd=.1),
    amsgrad=partial(torch.optim.Adam, amsgrad=True), adagrad=torch.optim.Adagrad)
def two(m): return [[*m.body.parameters()], [*m.head.parameters(), m.tied.bias]]
@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('opt', opts)
@pytest.mark.parametrize('splitter', [params,two], ids=['one','two'])
@pytest.mark.parametrize('kw', [{}, dict(wd=.2)], ids=['','wd'])
def test_training_goes_on_as_if_nothing_had_been(tmp_path, opt, splitter, kw):
    "In a fresh learner, bit for bit"
    def new(seed=0):
        return mk(tmp_path, seed=seed, opt_func=opts[opt], splitter=splitter,
            lr=.01 if splitter is params else [.001,.01])
    ref = new().fit(2, **kw)
    ref.save('half')
    ref.fit(2, **kw)
    learn = new(seed=1).load('half')
    assert equal(weights(learn.fit(2, **kw)), weights(ref)) and equal(learn.opt.state_dict(), ref.opt.state_dict())
    cold = new(seed=1).load('half', with_opt=False)
    assert not equal(weights(cold.fit(2, **kw)), weights(ref)) # the state matters

@pytest.mark.parametrize('first,then', [({}, dict(wd=.1)), (dict(wd=.1), {}), (dict(wd=.1), dict(wd=.1))],
    ids=['later','before','both'])
@pytest.mark.parametrize('opt', [partial(torch.optim.SGD, momentum=.9), torch.optim.AdamW], ids=['sgd','adamw'])
def test_groups_that_weight_decay_has_split(tmp_path, first, then, opt):
    """Norms and biases leave the decay when it is first set: a file from before or after is understood by a learner
    from after or before"""
    a = mk(tmp_path, opt_func=opt).fit(1, **first)
    a.save('a')
    b = mk(tmp_path, opt_func=opt, seed=1).fit(1, **then).load('a')
    def by_name(learn): return {k:learn.opt.state[p] for k,p in learn.model.named_parameters()}
    assert equal(by_name(a), by_name(b)) and equal(weights(a), weights(b))
    assert equal(weights(a.fit(1, wd=.3)), weights(b.fit(1, wd=.3))) and equal(by_name(a), by_name(b))

class Layers(nn.Module):
    "The same layers whatever their `order`, two of them with one weight and all of one shape"
    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        layers = dict(p=nn.Linear(3, 3), q=nn.Linear(3, 3), r=nn.Linear(3, 3), o=nn.Linear(3, 2))
        layers['r'].weight = layers['q'].weight
        for k in order: setattr(self, k, layers[k])
    def forward(self, x): return self.o(self.r(self.q(self.p(x).tanh()).tanh()))

def last_apart(m): return [[p for k,p in m.named_parameters() if k[0]!='o'], [*m.o.parameters()]]

@pytest.mark.parametrize('opt', [partial(torch.optim.SGD, momentum=.9), torch.optim.AdamW], ids=['sgd','adamw'])
@pytest.mark.parametrize('splitter', [params,last_apart], ids=['one','two'])
@pytest.mark.parametrize('kw', [{}, dict(wd=.2)], ids=['','wd'])
def test_the_optimizers_state_finds_its_parameters_in_another_order(tmp_path, opt, splitter, kw):
    "By hand: what each name had, it has"
    def new(order): return mk(tmp_path, model=Layers(order), opt_func=opt, splitter=splitter)
    a,b = new('pqro').fit(1, **kw),new('orqp')
    a.save('a')
    b.load('a')
    def by_name(learn): return {k:learn.opt.state[getattr(getattr(learn.model, k[0]), k[2:])]
        for k in [f'{i}.{j}' for i in 'pqro' for j in ('weight','bias')]}
    assert equal(by_name(a), by_name(b))
    a.fit(1, **kw); b.fit(1, **kw)
    for k,v in weights(a).items(): torch.testing.assert_close(v, b.model.state_dict()[k])

@pytest.mark.parametrize('how', ['state','checkpoint'])
def test_a_run_resumes_in_a_model_of_another_order(tmp_path, how):
    "With gradients that wait for their step, it ends as one that was never stopped"
    def new(order): return mk(tmp_path, model=Layers(order), cbs=GradientAccumulation(18))
    whole,a,b = new('pqro').fit(2),new('pqro'),new('orqp')
    def stop(learn):
        if learn.training and learn.train_iter==5: learn.at_pause(interrupt, stops=True)
    def interrupt(): raise KeyboardInterrupt
    saves = [Checkpoint()] if how=='checkpoint' else []
    with pytest.raises(KeyboardInterrupt): a.fit(2, cbs=[on(event.after_batch)(stop), *saves])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # the code differs
        if saves: b.fit(2, cbs=Checkpoint(), resume=True)
        else:
            b.load_state(a.save_state('a.pt'))
            assert b.at.hypers_and_grads.grads
            b.resume(cbs=[])
    assert b.opt_step==whole.opt_step and b.train_iter==8
    for k,v in weights(whole).items(): torch.testing.assert_close(v, b.model.state_dict()[k])

def test_one_state_of_all_parameters_is_refused_in_another_order(tmp_path):
    def new(order): return mk(tmp_path, model=Layers(order), opt_func=torch.optim.LBFGS)
    new('pqro').fit(1).save('a')
    new('pqro').load('a')
    with pytest.raises(ValueError, match="another order, and the state of `LBFGS`"): new('orqp').load('a')

def test_a_split_optimizer_reads_one_that_torch_has_saved(tmp_path):
    "Made by torch alone, all parameters in one group, as fastai's `OptimWrapper` does: bits of a hand-written loop"
    torch.manual_seed(0)
    m = Net()
    opt = torch.optim.AdamW(m.parameters(), lr=.01, weight_decay=0.)
    def step():
        for x,y in batches(): F.mse_loss(m(x), y).backward(); opt.step(); opt.zero_grad()
    step()
    torch.save(dict(model=m.state_dict(), opt=opt.state_dict()), tmp_path/'t.pth')
    step()
    learn = mk(seed=1, opt_func=torch.optim.AdamW, lr=.01, wd=0.).load(tmp_path/'t.pth')
    assert equal(weights(learn.fit(1)), clone(m.state_dict()))
    torch.save(dict(model=m.state_dict(), opt=torch.optim.AdamW(m.parameters(), weight_decay=.2).state_dict()),
        tmp_path/'t.pth')
    learn = mk(opt_func=torch.optim.AdamW).load(tmp_path/'t.pth') # norms and biases are spared by the learner's rule
    assert [(len(g['params']), g['weight_decay']) for g in learn.opt.param_groups]==[(2, .2), (5, 0.)]

def test_a_file_without_our_own_hyper_parameters(tmp_path):
    "torch has no decoupled decay for SGD: ours stays"
    torch.manual_seed(0)
    m = Net()
    torch.save(dict(model=m.state_dict(), opt=torch.optim.SGD(m.parameters(), .02, momentum=.9).state_dict()),
        tmp_path/'t.pth')
    learn = mk(opt_func=partial(SGD, wd=.1)).load(tmp_path/'t.pth')
    assert (get_hyper(learn.opt, 'wd')==[.1] and get_hyper(learn.opt, 'lr')==[.02]
        and get_hyper(learn.opt, 'mom')==[.9] and n_groups(learn.opt)==1)
    learn.fit(1, wd=.2)

def test_how_steps_are_computed_is_not_state(tmp_path):
    "A file of a fused optimizer, as from a GPU, does not make that of this learner one"
    a = mk(tmp_path, opt_func=partial(torch.optim.AdamW, foreach=True)).fit(1)
    a.save('a')
    b = mk(tmp_path, opt_func=partial(torch.optim.AdamW, foreach=False), seed=1).load('a')
    assert [g['foreach'] for g in b.opt.param_groups]==[False]*2
    a.fit(1); b.fit(1)
    for v,w in zip(weights(a).values(), weights(b).values()): torch.testing.assert_close(v, w)

def test_an_optimizer_that_was_given_as_it_is(tmp_path):
    def new(seed):
        torch.manual_seed(seed)
        m = Net()
        return mk(tmp_path, model=m, opt_func=torch.optim.SGD(m.parameters(), .05, momentum=.9))
    a = new(0).fit(1)
    a.save('a')
    b = new(1)
    h = b.on(event.after_load)(lambda learn: 1/0)
    with pytest.raises(ZeroDivisionError): b.load('a')
    h.remove()
    assert b.opt is None and not b.opt_func.state
    assert equal(b.load('a').opt.state_dict(), a.opt.state_dict()) and b.opt is b.opt_func
    assert equal(weights(b.fit(1)), weights(a.fit(1)))

def test_inside_a_fit(tmp_path):
    "Weights and momentum go back to those of the file, the fit goes on, its hyper-parameters come back at its end"
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    a = state(learn)
    seen = []
    def back(self):
        if self.train_iter!=2: return
        self.learn.load('a')
        seen.append(equal(state(self.learn)['model'], a['model']) and equal(state(self.learn)['opt'], a['opt']))
    learn.fit(1, lr=.2, cbs=[Callback(after_step=lambda self: None), Callback(before_draw=back)])
    assert seen==[True] and get_hyper(learn.opt, 'lr')==[.05]
    after = weights(learn)
    learn.load('a')
    learn.dls = DataLoaders(batches()[2:], device='cpu')
    assert equal(weights(learn.fit(1, lr=.05)), after)

def test_saved_inside_a_fit(tmp_path):
    "After a step: what is in the file is what was trained so far"
    ref = mk().fit(n_iter=1)
    learn = mk(tmp_path).fit(1,
        cbs=Callback(after_step=lambda self: self.learn.save('in') if self.opt_step==1 else None))
    assert equal(weights(mk(tmp_path, seed=1).load('in')), weights(ref)) and not equal(weights(learn), weights(ref))

# fastai's files
def fastai_file(path, learn, **opt):
    torch.save(dict(model=learn.model.state_dict(), opt=opt), path)
    return path

def test_fastais_files(tmp_path):
    a = mk()
    state = [dict(grad_avg=torch.ones_like(p), sqr_avg=torch.ones_like(p), step=4) for p in a.model.parameters()]
    native = fastai_file(tmp_path/'fa.pth', a, state=state,
        hypers=L([dict(wd=.01, sqr_mom=.99, lr=.001, mom=.9, eps=1e-5)]))
    for b in (mk(seed=1), mk(seed=1).fit(1)):
        before = clone(b.opt and b.opt.state_dict())
        with pytest.warns(UserWarning, match=r"`.*fa\.pth`.*fastai.*`with_opt=False`") as w: b.load(native)
        assert ([o.filename for o in w]==[__file__] and equal(weights(a), weights(b))
            and equal(b.opt and b.opt.state_dict(), before))
        with warnings.catch_warnings(): warnings.simplefilter('error'); b.load(native, with_opt=False)
        before = b.model.state_dict()
        with pytest.raises(ValueError, match=r"fastai's own.*`with_opt=False`"): b.load(native, with_opt=True)
    assert files.read_plain(native)['opt']['hypers']==[dict(wd=.01, sqr_mom=.99, lr=.001, mom=.9, eps=1e-5)]
    ref = mk().fit(1)
    wrapped = fastai_file(tmp_path/'fw.pth', ref,
        **{k:v if k=='state' else [{n:o for n,o in g.items() if n!='group'} for g in v]
            for k,v in ref.opt.state_dict().items()})
    b = mk(seed=1).load(wrapped)
    assert equal(weights(b.fit(1)), weights(ref.fit(1)))

@pytest.mark.parametrize('core', ['core','_core'])
def test_fastais_files_after_a_scheduled_fit(tmp_path, core):
    "Hyper-parameters are numbers of numpy then, of its first or second version"
    def old(path):
        with zipfile.ZipFile(path) as z: parts = [(o, z.read(o)) for o in z.infolist()]
        with zipfile.ZipFile(path, 'w') as z:
            for o,b in parts:
                z.writestr(o, b.replace(b'cnumpy._core.multiarray\n',
                    b'cnumpy.core.multiarray\n').replace(b'cnumpy.core.multiarray\n',
                    f'cnumpy.{core}.multiarray\n'.encode()))
        return path
    ref = mk(opt_func=torch.optim.Adam).fit(1)
    native = old(fastai_file(tmp_path/'fa.pth', ref, state=[],
        hypers=L([dict(lr=np.float64(.25), mom=np.float32(.5), n=np.int64(3))])))
    with pytest.warns(UserWarning, match="fastai's own"): assert equal(weights(mk(seed=1).load(native)), weights(ref))
    hypers = files.read_plain(native)['opt']['hypers']
    assert (hypers==[dict(lr=.25, mom=.5, n=3)] and type(hypers) is list
        and {type(o) for o in hypers[0].values()}=={float,int})
    groups = [{**g, 'lr': np.float64(g['lr']), 'betas': (np.float64(.9), .999)}
        for g in ref.opt.state_dict()['param_groups']]
    wrapped = old(fastai_file(tmp_path/'fw.pth', ref, state=ref.opt.state_dict()['state'], param_groups=groups))
    b = mk(tmp_path, seed=1, opt_func=torch.optim.Adam).load(wrapped)
    assert (type(b.opt.param_groups[0]['lr']) is float and b.load(b.save('again'))
        and equal(weights(b.fit(1)), weights(ref.fit(1))))

@pytest.mark.parametrize('legacy', [False,True])
def test_both_formats_of_torch(tmp_path, legacy):
    a = mk().fit(1)
    torch.save(dict(model=a.model.state_dict(), opt=a.opt.state_dict()), tmp_path/'a.pth',
        _use_new_zipfile_serialization=not legacy)
    b = mk(seed=1).load(tmp_path/'a.pth')
    assert equal(weights(a), weights(b)) and equal(a.opt.state_dict(), b.opt.state_dict())

# What a file can hold
atoms = st.none()|st.booleans()|st.integers()|st.integers(-2**2100,
    2**2100)|st.floats(allow_nan=False)|st.text()|st.binary()|st.sampled_from(
    [torch.float32, torch.device('cpu'), torch.Size([1,2]), torch.Size([])])
others = st.sampled_from(
    [{1}, frozenset(), 1j, range(2), np.float64(1), np.float32(1), np.zeros(2), np.bool_(True), print, int, object(),
        bytearray(), Path('x'), Counter('ab'), defaultdict(int), L(1), torch.Generator(), Ellipsis,
    namedtuple('P', 'x')(1), nn.Linear(1, 1), slice(1), OrderedDict(a=1), event.before_fit,
    torch.ones(1).as_subclass(type('Sub', (torch.Tensor,), {})), nn.UninitializedParameter(),
    type('D', (dict,), {})(a=1), type('F', (float,), {})(1), torch.strided])
things = st.recursive(atoms|others,
    lambda o: st.lists(o, max_size=3)
    |st.dictionaries(st.text(max_size=2)|st.integers(0, 3)|st.tuples(st.integers(0, 2)), o, max_size=3)|st.tuples(o, o),
    max_leaves=5)

@given(things)
def test_what_can_be_saved_can_be_read(o):
    "Either it is refused, with its place, before anything is written; or it comes back the same"
    learn,buf = mk(model=nn.Linear(3, 2)),io.BytesIO()
    learn.on(event.before_save)(lambda learn: learn.saved.update(note=o))
    try: learn.save(buf)
    except TypeError as e:
        assert str(e).startswith(("`learn.saved['note']", "`a key of learn.saved['note']")) and not buf.getvalue()
        return
    back = files.read_plain((buf.seek(0), buf)[1])['note']
    assert equal_or_dicts(o, back)
def equal_or_dicts(a, b): # dicts of any kind come back as dicts
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys()==b.keys() and all(equal_or_dicts(v, b[k]) for k,v in a.items())
    if isinstance(a, (list,tuple)): return type(a) is type(b) and len(a)==len(b) and all(map(equal_or_dicts, a, b))
    return type(a) is type(b) and a==b

def test_what_cannot_be_saved_is_named(tmp_path):
    learn = mk(tmp_path).fit(1)
    good = learn.save('a').read_bytes()
    learn.opt.param_groups[0]['note'] = {1,2}
    with pytest.raises(TypeError,
            match=r"`learn\.saved\['opt'\]\['param_groups'\]\[0\]\['note'\]` cannot be saved: it is of type `set`"):
        learn.save('a')
    assert (tmp_path/'models'/'a.pth').read_bytes()==good and listing(tmp_path)==['models/a.pth']
    with pytest.raises(TypeError, match=r"cannot be saved: .*`Sub`"):
        check_plain(dict(x=torch.ones(1).as_subclass(type('Sub', (torch.Tensor,), {}))), 'o')
    del learn.opt.param_groups[0]['note']
    learn.on(event.before_save)(lambda learn: learn.saved['model']._metadata['head'].update(seen={1}))
    with pytest.raises(TypeError, match=r"`learn\.saved\['model'\]\._metadata\['head'\]\['seen'\]` cannot"):
        learn.save('a')
    meta = mk(tmp_path, model=nn.Linear(3, 2, device='meta'))
    for name in ('m','m.safetensors'):
        with pytest.raises((TypeError,NotImplementedError), match='meta'): meta.save(name)
    assert listing(tmp_path)==['models/a.pth']

# Events
def test_events_tell_file_and_content(tmp_path):
    seen = []
    def note(what):
        return lambda self: seen.append(
            (what, self.file.name, sorted(self.saved), (tmp_path/'models'/'a.pth').exists()))
    learn = mk(tmp_path, cbs=Callback(
        **{o:note(o) for o in ('before_save','after_save','before_load','after_load')})).fit(1)
    learn.save('a'); learn.load('a')
    keys = ['model','opt']
    assert seen==[('before_save','a.pth',keys,False), ('after_save','a.pth',keys,True),
        ('before_load','a.pth',keys,True), ('after_load','a.pth',keys,True)]
    assert learn.file is None and learn.saved is None

def test_hooks_add_and_change(tmp_path):
    learn = mk(tmp_path).fit(1)
    learn.on(event.before_save)(
        lambda learn: learn.saved.update(note=[1, 'two'],
            model={k:v+1 if v.is_floating_point() else v for k,v in learn.saved['model'].items()}))
    before = weights(learn)
    learn.save('a')
    assert equal(weights(learn), before)
    got = []
    other = mk(tmp_path, seed=1).load('a') # who does not know the note is not disturbed by it
    assert (torch.equal(other.model.head.bias, learn.model.head.bias+1)
        and equal(other.opt.state_dict(), learn.opt.state_dict()))
    other.on(event.after_load)(lambda learn: got.append(learn.saved['note']))
    other.on(event.before_load)(
        lambda learn: setattr(learn, 'saved',
            {**learn.saved, 'model': {k:torch.zeros_like(v) for k,v in learn.saved['model'].items()}}))
    other.load('a')
    assert got==[[1, 'two']] and not any(v.any() for v in other.model.state_dict().values())

@pytest.mark.parametrize('order', ['ab','ba'])
@pytest.mark.parametrize('names', [dict(a='b', b='a'), dict(a='b', b='c'), dict(a='c', b='d')],
    ids=['swapped','shifted','others'])
@pytest.mark.parametrize('value', [lambda v: v, lambda v: v*1], ids=['same','replaced'])
def test_momentum_follows_weights_that_a_hook_renames(tmp_path, names, order, value):
    "Also into a model that defines them in another order; and by their order where the tensors are others"
    def f(first, second, order):
        torch.manual_seed(1)
        m = nn.ModuleDict({k:nn.Linear(8, 8) for k in order})
        m.forward = lambda x: m[second](m[first](x).relu())
        return Learner(DataLoaders([(x8, x8)], [(x8, x8)]), m, nn.MSELoss(), opt_func=torch.optim.Adam, path=tmp_path)
    def new(k): return names[k[0]]+k[1:]
    def moments(learn): return {k:learn.opt.state[p]['exp_avg'] for k,p in learn.model.named_parameters()}
    x8 = torch.linspace(-1, 1, 128).view(16, 8)
    a = f('a', 'b', 'ab').fit(1)
    a.save('a')
    b = f(names['a'], names['b'], [names[k] for k in order])
    b.on(event.before_load)(
        lambda learn: learn.saved.update(model={new(k):value(v) for k,v in learn.saved['model'].items()}))
    b.load('a')
    for of in (weights, moments):
        now,then = of(b),of(a)
        assert {*now}=={*map(new, then)} and all(torch.equal(now[new(k)], v) for k,v in then.items())

def test_another_shape_of_file_takes_one_hook(tmp_path):
    a,b = mk().fit(1),mk(seed=1)
    torch.save(dict(epoch=3, net=a.model.state_dict()), tmp_path/'ckpt.pth')
    with pytest.raises(ValueError, match='unexpected: `epoch`, `net`'): b.load(tmp_path/'ckpt.pth')
    b.on(event.before_load)(lambda learn: setattr(learn, 'saved', learn.saved['net']))
    assert equal(weights(b.load(tmp_path/'ckpt.pth')), weights(a))

hook_errors = [ZeroDivisionError, KeyboardInterrupt, *cancels.values()]
@pytest.mark.sample(2)
@pytest.mark.parametrize('exc', hook_errors)
@pytest.mark.parametrize('ev', ['before_save','after_save','before_load','after_load'])
def test_an_error_in_a_hook_leaves_nothing_half_done(tmp_path, ev, exc):
    a = mk(tmp_path, seed=1).fit(1)
    old = weights(a)
    a.save('a')
    learn = mk(tmp_path).fit(1)
    before = state(learn)
    learn.add_cb(Raise(ev, exc))
    expected = RuntimeError if issubclass(exc, CancelException) else exc
    with pytest.raises(expected) as e: getattr(learn, ev.split('_')[1])('a')
    if expected is RuntimeError:
        assert (isinstance(e.value.__cause__, exc) and f'`{exc.__name__}`' in str(e.value)
            and f'Raise.{ev}' in str(e.value))
    assert same(learn, before) and listing(tmp_path)==['models/a.pth']
    there = weights(mk(tmp_path, seed=2).load('a'))
    assert equal(there, weights(learn) if ev=='after_save' else old)
    learn.remove_cb(Raise)
    learn.save('a'); learn.load('a').fit(1)

@pytest.mark.parametrize('ev', ['before_save','after_save','before_load','after_load'])
def test_a_hook_can_end_the_fit(tmp_path, ev):
    learn = mk(tmp_path).fit(1)
    learn.save('a')
    trace = Trace()
    learn.fit(3, cbs=[Callback(after_epoch=lambda self: getattr(self.learn, ev.split('_')[1])('a')),
        Raise(ev, CancelFitException('enough')), trace])
    assert (learn.stop_reason=='enough' and len(learn.recorder.rows)<=1 and 'after_cancel_fit' in trace.seen
        and learn.saved is None and listing(tmp_path)==['models/a.pth'])

def test_a_save_inside_a_save(tmp_path):
    learn = mk(tmp_path)
    @learn.on(event.before_save)
    def also(learn):
        if learn.file.name=='a.pth': learn.save('b')
    @learn.on(event.after_load)
    def again(learn):
        if learn.file.name=='a.pth': learn.load('b'); assert learn.file.name=='a.pth' and learn.saved
    learn.save('a')
    assert (equal(files.read_plain(tmp_path/'models'/'a.pth'), files.read_plain(tmp_path/'models'/'b.pth'))
        and learn.saved is None)
    learn.load('a')

def test_safetensors_hold_tensors(tmp_path):
    learn = mk(tmp_path)
    learn.save('a.safetensors')
    good = (tmp_path/'models'/'a.safetensors').read_bytes()
    learn.on(event.before_save)(lambda learn: learn.saved.update(note='x'))
    with pytest.raises(TypeError, match=r"safetensors.*`learn\.saved\['note'\]`.*`str`"): learn.save('a.safetensors')
    assert (tmp_path/'models'/'a.safetensors').read_bytes()==good and listing(tmp_path)==['models/a.safetensors']

def test_without_the_package(tmp_path, monkeypatch):
    learn = mk(tmp_path)
    learn.save('a.safetensors')
    before = state(learn)
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    monkeypatch.setitem(sys.modules, 'safetensors.torch', None)
    for f in (learn.save, learn.load):
        with pytest.raises(ImportError, match='pip install safetensors'): f('a.safetensors')
    assert same(learn, before) and listing(tmp_path)==['models/a.safetensors']

# Faults
class Full:
    "An open file that has room for `n` bytes"
    def __init__(self, f, n, exc): self.f,self.n,self.exc = f,n,exc
    def write(self, b):
        self.n -= len(b)
        if self.n<0: raise self.exc
        return self.f.write(b)
    def __getattr__(self, k): return getattr(self.f, k)
    def __enter__(self): self.f.__enter__(); return self
    def __exit__(self, *args): return self.f.__exit__(*args)

class Big(nn.Module):
    "Large enough that a file is written in several parts"
    def __init__(self, v=0.):
        super().__init__(); self.w,self.u = (nn.Parameter(torch.full((50_000,), v)) for _ in range(2))
    def forward(self, x): return x*self.w.sum()*self.u.sum()

def of(v, path, **kwargs): return mk(path, model=Big(v), **kwargs)
def value(path, name='a.pth'):
    learn = of(-1., path).load(name)
    both = torch.cat([learn.model.w, learn.model.u]).unique()
    assert len(both)==1
    return both.item()

def inject(monkeypatch, where, exc, folder):
    real_open,real = open,{k:getattr(os, k) for k in ('fsync','replace')}
    def mine(p): return isinstance(p, (str,os.PathLike)) and str(p).startswith(str(folder))
    def broken_open(p, mode='r', *args, **kwargs):
        if not (mine(p) and 'w' in mode or mine(p) and 'x' in mode): return real_open(p, mode, *args, **kwargs)
        if where=='open': raise exc
        f = real_open(p, mode, *args, **kwargs)
        return Full(f, where, exc) if isinstance(where, int) else f
    def fail(*args): raise exc
    monkeypatch.setattr('builtins.open', broken_open)
    if where in real: monkeypatch.setattr(os, where, fail)
    if where=='folder':
        monkeypatch.setattr(os, 'fsync', lambda fd: fail() if stat.S_ISDIR(os.fstat(fd).st_mode) else real['fsync'](fd))

wheres = ['open', 0, 1, 1000, 100_000, 200_000, 400_000, 'fsync', 'replace']
faults = [OSError(errno.ENOSPC, 'No space left on device'), PermissionError(errno.EACCES, 'Permission denied'),
    OSError(errno.EIO, 'Input/output error')]
@pytest.mark.parametrize('name', ['a.pth','a.safetensors'])
@pytest.mark.parametrize('where,exc',
    [*((o, faults[0]) for o in wheres), ('open', faults[1]), ('replace', faults[1]), (1000, faults[2]),
        ('fsync', faults[2])], ids=lambda o: errno.errorcode[o.errno] if isinstance(o, OSError) else str(o))
@pytest.mark.parametrize('old', [True,False])
def test_faults(tmp_path, monkeypatch, where, exc, name, old):
    if old: of(1., tmp_path).save(name)
    there,learn = listing(tmp_path),of(2., tmp_path)
    before = state(learn)
    with monkeypatch.context() as m:
        inject(m, where, exc, tmp_path)
        with pytest.raises(type(exc), match=exc.strerror) as e: learn.save(name)
    assert f'`{tmp_path}/models/{name}`' in noted(e) and e.value.errno==exc.errno
    assert listing(tmp_path)==there and same(learn, before)
    if old: assert value(tmp_path, name)==1
    learn.save(name)
    assert value(tmp_path, name)==2 and listing(tmp_path)==[f'models/{name}']

@pytest.mark.parametrize('save', [lambda o: o.save('a'), lambda o: o.export()], ids=['save','export'])
@pytest.mark.parametrize('where', [1, 1000, 100_000])
def test_interrupting_a_save_is_an_interrupt(tmp_path, monkeypatch, where, save):
    learn = of(1., tmp_path)
    inject(monkeypatch, where, KeyboardInterrupt(), tmp_path)
    with pytest.raises(KeyboardInterrupt): save(learn)
    assert listing(tmp_path)==[]

@pytest.mark.parametrize('where', ['open', 0, 1000, 'fsync', 'replace'])
def test_faults_while_exporting(tmp_path, monkeypatch, where):
    of(1., tmp_path).export()
    learn = of(2., tmp_path)
    with monkeypatch.context() as m:
        inject(m, where, faults[0], tmp_path)
        with pytest.raises(OSError, match='No space left') as e: learn.export()
    assert (f'`{tmp_path}/export.pkl`' in noted(e) and 'cannot be exported' not in noted(e)
        and listing(tmp_path)==['export.pkl'])
    assert load_learner(tmp_path/'export.pkl', trust=True).model.w[0]==1

def test_the_disk_has_all_before_the_name_changes(tmp_path, monkeypatch, sync):
    of(1., tmp_path).save('a')
    seen,fsync,replace = [],os.fsync,os.replace
    monkeypatch.setattr(os, 'fsync', lambda fd: (seen.append(os.fstat(fd)), fsync(fd)))
    monkeypatch.setattr(os, 'replace',
        lambda a,b: (seen.append((os.path.getsize(a), b, value(tmp_path))), replace(a, b)))
    file = of(2., tmp_path).save('a')
    data,rename,folder = seen
    assert (data.st_size==rename[0]==file.stat().st_size and rename[1:]==(file, 1) and data.st_ino==file.stat().st_ino
        and folder.st_ino==file.parent.stat().st_ino and value(tmp_path)==2)

def test_a_folder_that_cannot_be_synced(tmp_path, monkeypatch):
    "Some file systems know no syncing of folders; a real failure of one is an error, with the new file whole"
    learn = of(1., tmp_path)
    with monkeypatch.context() as m:
        inject(m, 'folder', OSError(errno.EINVAL, 'Invalid argument'), tmp_path)
        learn.save('a')
    assert value(tmp_path)==1
    with monkeypatch.context() as m:
        inject(m, 'folder', faults[2], tmp_path)
        with pytest.raises(OSError, match='Input/output'): of(2., tmp_path).save('a')
    assert value(tmp_path)==2 and listing(tmp_path)==['models/a.pth']

@pytest.mark.parametrize('no', [errno.ENOSYS, errno.EBADF, errno.EPERM, errno.EOPNOTSUPP], ids=errno.errorcode.get)
@pytest.mark.parametrize('where', ['fsync','folder'])
def test_a_file_system_that_cannot_sync(tmp_path, monkeypatch, where, no):
    "As some network drives: the file is written as safely as they can"
    inject(monkeypatch, where, OSError(no, 'not possible'), tmp_path)
    of(1., tmp_path).save('a')
    assert value(tmp_path)==1 and listing(tmp_path)==['models/a.pth']

def test_a_folder_that_cannot_be_opened(tmp_path, monkeypatch):
    def refuse(*args): raise OSError(errno.EISDIR, 'Is a directory')
    monkeypatch.setattr(os, 'open', refuse)
    of(1., tmp_path).save('a')
    assert value(tmp_path)==1

@pytest.mark.parametrize('no', [errno.EPERM, errno.ENOTSUP], ids=errno.errorcode.get)
def test_a_file_system_without_modes(tmp_path, monkeypatch, no):
    "As memory cards, and network drives: a file is overwritten there too"
    def refuse(*args): raise OSError(no, 'not possible')
    of(1., tmp_path).save('a')
    monkeypatch.setattr(os, 'chmod', refuse)
    of(2., tmp_path).save('a')
    assert value(tmp_path)==2

def busy(times):
    "`os.replace` of Windows, where another program has the file open at the first `times` calls"
    def replace(a, b, real=os.replace):
        nonlocal times
        times -= 1
        if times>=0:
            e = PermissionError(errno.EACCES, 'The process cannot access the file')
            e.winerror = 32
            raise e
        real(a, b)
    return replace

def test_a_file_that_another_program_holds_for_a_moment(tmp_path, monkeypatch):
    "As virus scanners do on Windows; one that stays open is an error, and the file stays"
    learn = of(1., tmp_path)
    monkeypatch.setattr(os, 'replace', busy(2))
    learn.save('a')
    assert value(tmp_path)==1
    monkeypatch.setattr(os, 'replace', busy(10**9))
    monkeypatch.setitem(patiently.__kwdefaults__, 'patience', .1)
    with pytest.raises(PermissionError, match='cannot access'): of(2., tmp_path).save('a')
    assert value(tmp_path)==1 and listing(tmp_path)==['models/a.pth']

@contextmanager
def nobody(path, mode):
    "Be somebody who has no more rights than `mode` gives for `path`: root may do anything"
    if not hasattr(os, 'seteuid'): pytest.skip('needs users')
    root,tmp = os.geteuid()==0,next(o for o in path.parents if o.name.startswith('test_'))
    for o in (tmp, *tmp.parents):
        if 'pytest-' in str(o): o.chmod(0o755)
    path.chmod(mode)
    if root: os.seteuid(65534)
    try: yield
    finally:
        if root: os.seteuid(0)
        path.chmod(0o755)

def test_a_folder_that_is_read_only(tmp_path):
    models = of(1., tmp_path).save('a').parent
    with nobody(models, 0o555):
        with pytest.raises(PermissionError, match='Permission denied') as e: of(2., tmp_path).save('a')
        assert value(tmp_path)==1
    assert f'`{tmp_path}/models/a.pth`' in noted(e) and listing(tmp_path)==['models/a.pth'] and value(tmp_path)==1

def test_a_folder_that_can_be_written_but_not_read(tmp_path):
    models = tmp_path/'models'
    models.mkdir()
    with nobody(models, 0o333):
        of(1., tmp_path).save('a')
        assert value(tmp_path)==1

def test_a_name_that_windows_reserves_is_refused(tmp_path, monkeypatch):
    "It would write to a hidden stream of the file `loss`"
    monkeypatch.setattr(os.path, 'isreserved', lambda o: ':' in str(o), raising=False) # from Python 3.13, on Windows
    said = "Windows has no file of the name 'loss:best'"
    with pytest.raises(ValueError, match=said): of(1., tmp_path).save('loss:best')
    assert listing(tmp_path)==[]

@pytest.mark.parametrize('name', ['a.pth','a.safetensors'])
def test_a_file_that_may_not_be_read(tmp_path, name):
    file = of(1., tmp_path).save(name)
    with nobody(file, 0):
        for f in (lambda: of(2., tmp_path).load(name),
                *([lambda: load_learner(file, trust=True)] if name=='a.pth' else [])):
            with pytest.raises(PermissionError, match=fr'{name}'): f()

@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs /dev/full')
def test_a_device_that_is_full():
    learn = of(1., '.')
    with pytest.raises(OSError, match='No space left on device') as e:
        with open('/dev/full', 'wb', buffering=0) as f: learn.save(f)
    assert e.value.errno==errno.ENOSPC and learn.saved is None

def test_a_limit_on_the_size_of_files(tmp_path):
    "A real failure in the middle of a write"
    resource = pytest.importorskip('resource')
    of(1., tmp_path).save('a'); of(1., tmp_path).save('a.safetensors')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ('a.pth','a.safetensors'):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError, match='File too large') as e: of(2., tmp_path).save(name)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert e.value.errno==errno.EFBIG and f'models/{name}`' in noted(e) and value(tmp_path, name)==1
    assert listing(tmp_path)==['models/a.pth','models/a.safetensors']

@pytest.mark.slow
def test_a_file_system_that_is_full(tmp_path):
    code = '''if True:
        import os,errno,sys
        from pathlib import Path
        from tests.test_files import of,value
        from learner.all import *
        of(1., '.').save('a')
        for name in ('a','b','c.safetensors','run/d'):
            try: of(2., '.').save(name); print('room', name)
            except OSError as e: assert e.errno==errno.ENOSPC, e
        assert value('.')==1
        assert sorted(os.listdir('models'))==['a.pth','run'] and not os.listdir('models/run'), os.listdir('models')
        print('full')'''
    sh = f'mount -t tmpfs -o size=600k none {tmp_path} && cd {tmp_path} && exec {sys.executable} -c "$0"'
    if (shutil.which('unshare') is None
            or subprocess.run(['unshare','-rm','sh','-c',f'mount -t tmpfs -o size=600k none {tmp_path}'],
                capture_output=True).returncode):
        pytest.skip('may not mount')
    root = Path(__file__).parent.parent
    p = subprocess.run(['unshare','-rm','sh','-c',sh,code], capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(root)})
    assert p.stdout=='full\n', p.stdout+p.stderr

def test_places_that_cannot_be(tmp_path):
    (tmp_path/'file').write_text('x')
    learn = of(1., tmp_path/'file')
    with pytest.raises((NotADirectoryError,FileExistsError), match='file'): learn.save('a')
    with pytest.raises((NotADirectoryError,FileExistsError), match='file'): learn.export()
    learn.path = tmp_path
    (tmp_path/'models'/'dir.pth').mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match='dir.pth'): learn.save('dir')
    with pytest.raises(IsADirectoryError, match='dir.pth'): learn.load('dir')
    with pytest.raises(OSError, match='name too long'): learn.save('x'*300)
    with pytest.raises(OSError, match='name too long'): learn.save('y'*252+'.pth')
    with pytest.raises(OSError, match='name too long|There is no'): learn.load('x'*300)
    with pytest.raises(OSError, match='name too long'): learn.save('/'.join(['d'*200]*30))
    assert [o for o in listing(tmp_path) if o!='file']==[]
    for name in ('z'*251, 'é'*125): assert learn.save(name) and learn.load(name) # as long as a name can be

# Killed
def alive_until(f):
    "Run `f` in a child that is killed when `f` says so"
    pid = os.fork()
    if pid: return pid
    try: f()
    except BaseException: import traceback; traceback.print_exc()
    finally: os._exit(7)
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')

@needs_fork
@pytest.mark.parametrize('where', ['open', 1, 100_000, 300_000, 'fsync', 'replace', 'folder'])
@pytest.mark.parametrize('name', ['a.pth','a.safetensors'])
def test_killed_at(tmp_path, where, name):
    of(1., tmp_path).save(name)
    def child():
        class Dies(Exception):
            def __init__(self): pass
        m = pytest.MonkeyPatch()
        inject(m, where, Dies(), tmp_path)
        if isinstance(where, int):
            m.setattr(Full, 'write', lambda self, b, w=Full.write: w(self, b) if self.n>len(b) else die())
        elif where in ('fsync','replace'): m.setattr(os, where, die)
        elif where=='open':
            m.setattr('builtins.open',
                lambda p, *a, o=io.open, **k: o(p, *a, **k) if not str(p).endswith('.tmp') else (o(p, *a, **k), die()))
        else: m.setattr(os, 'fsync', lambda fd, f=files.os.fsync: die() if stat.S_ISDIR(os.fstat(fd).st_mode) else None)
        of(2., tmp_path).save(name)
    _,status = os.waitpid(alive_until(child), 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status)==signal.SIGKILL
    assert value(tmp_path, name)==(2 if where=='folder' else 1)
    of(3., tmp_path).save(name)
    assert value(tmp_path, name)==3
    left = [o for o in (tmp_path/'models').iterdir() if o.name!=name]
    (tmp_path/'models'/f'.{name}.00000000.tmp').touch() # somebody else is writing this one now
    for o in left: os.utime(o, (0, 0))
    of(4., tmp_path).save(name)
    # what somebody left who was killed long ago is taken away
    assert listing(tmp_path)==sorted([f'models/.{name}.00000000.tmp', f'models/{name}'])

def kill_at_random(tmp_path, n, seed, name):
    rng,learn,last,seen = random.Random(seed),of(0., tmp_path),0.,Counter()
    learn.save(name)
    t = time.perf_counter(); learn.save(name); t = time.perf_counter()-t
    for i in range(1, n+1):
        r,w = os.pipe()
        def child():
            for k in range(100):
                learn.model.load_state_dict({o:torch.full((50_000,), last+k+1.) for o in 'wu'})
                learn.save(name)
                os.write(w, b'x')
        pid = alive_until(child)
        os.close(w)
        time.sleep(rng.random()*8*t)
        os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
        done = 0
        while b := os.read(r, 1000): done += len(b)
        os.close(r)
        now = value(tmp_path, name)
        assert now-last in (done, done+1), (last, done, now)
        seen['in the middle'] += any(o.name.endswith('.tmp') for o in (tmp_path/'models').iterdir())
        last = now
        for o in (tmp_path/'models').glob('.*.tmp'): o.unlink()
    return seen

@needs_fork
@pytest.mark.parametrize('name', ['a.pth','a.safetensors'])
def test_killed_anywhere(tmp_path, name, sync): kill_at_random(tmp_path, 6, 0, name)

@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize('name', ['a.pth','a.safetensors'])
def test_killed_anywhere_often(tmp_path, name, sync): assert kill_at_random(tmp_path, 150, 1, name)['in the middle']>5

def test_many_writers(tmp_path):
    "Threads that save under one name, and others that read: always a whole file, and nothing is left"
    of(0., tmp_path).save('a')
    stop,bad = threading.Event(),[]
    def write(v):
        learn = of(v, tmp_path)
        try:
            while not stop.is_set(): learn.save('a')
        except Exception as e: bad.append(e)
    ts = [threading.Thread(target=write, args=(float(i),)) for i in range(3)]
    for t in ts: t.start()
    try: seen = {value(tmp_path) for _ in range(20)}
    finally:
        stop.set()
        for t in ts: t.join()
    assert not bad and seen<={0.,1.,2.} and listing(tmp_path)==['models/a.pth']

def test_atomic_write_alone(tmp_path):
    with atomic_write(tmp_path/'deep'/'a') as f, atomic_write(tmp_path/'deep'/'b') as g:
        f.write(b'1'); g.write(b'2'); assert not (tmp_path/'deep'/'a').exists()
    assert (tmp_path/'deep'/'a').read_bytes()==b'1' and (tmp_path/'deep'/'b').read_bytes()==b'2'
    for e in (ZeroDivisionError, KeyboardInterrupt, CancelFitException, GeneratorExit):
        with pytest.raises(e):
            with atomic_write(tmp_path/'deep'/'a') as f: f.write(b'3'); raise e
    assert (tmp_path/'deep'/'a').read_bytes()==b'1' and listing(tmp_path)==['deep/a','deep/b']

@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='needs pipes')
def test_a_pipe_is_written_into_and_not_replaced(tmp_path):
    os.mkfifo(pipe := tmp_path/'pipe')
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    with atomic_write(pipe) as f: f.write(b'all of it')
    reader.join(10)
    assert got==[b'all of it'] and pipe.is_fifo() and listing(tmp_path)==[]

def test_a_device_is_written_into_and_not_replaced(tmp_path):
    null = tmp_path/'null'
    try: os.mknod(null, 0o666|stat.S_IFCHR, os.makedev(1, 3)); null.write_bytes(b'')
    except (AttributeError,OSError): pytest.skip('only root makes devices, on some file systems')
    with atomic_write(null) as f: f.write(b'1')
    assert null.is_char_device() and [o.name for o in tmp_path.iterdir()]==['null']

def test_the_file_is_as_readable_as_others(tmp_path):
    old = os.umask(0o027)
    try: file = of(1., tmp_path).save('a')
    finally: os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode)==0o640

@pytest.mark.parametrize('name',
    ['.a.pth.backup.tmp', '.a.pth.1f3a9c0.tmp', '.ab.pth.1f3a9c07.tmp', 'a.pth.1f3a9c07.tmp', '.a.pth.1F3A9C07.tmp'])
def test_only_our_own_temporary_files_are_swept(tmp_path, name):
    learn = of(1., tmp_path)
    folder = learn.save('a').parent
    for o in (name, '.a.pth.1f3a9c07.tmp'): (folder/o).touch(); os.utime(folder/o, (0, 0))
    learn.save('a')
    assert listing(tmp_path)==sorted(['models/a.pth', f'models/{name}'])

@pytest.mark.skipif(os.name!='posix', reason='needs symbolic links and modes')
@pytest.mark.parametrize('exists', [True, False])
@pytest.mark.parametrize('save',
    [lambda learn: learn.save('link'), lambda learn: learn.save('link.safetensors'),
        lambda learn: learn.export('models/link.pth'),
    lambda learn: learn.save_state('link')], ids=['save','safetensors','export','save_state'])
def test_saving_through_a_link_writes_to_what_it_points_to_and_keeps_its_mode(tmp_path, save, exists):
    (there := tmp_path/'elsewhere').mkdir()
    (tmp_path/'models').mkdir()
    for o in ('pth','safetensors'):
        (tmp_path/'models'/f'link.{o}').symlink_to(f'../elsewhere/file.{o}')
        if exists: (there/f'file.{o}').write_text('old'); (there/f'file.{o}').chmod(0o600)
    learn = of(1., tmp_path)
    file = save(learn)
    assert file.is_symlink() and file.parent==tmp_path/'models'
    if file.suffix=='.pth': assert (there/'file.pth').stat().st_size>100
    if exists: assert stat.S_IMODE(file.stat().st_mode)==0o600
    assert [o for o in listing(tmp_path) if o.endswith('.tmp')]==[]

@pytest.mark.skipif(os.name!='posix', reason='needs symbolic links')
def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path/'models').mkdir()
    (tmp_path/'models'/'a.pth').symlink_to('b.pth')
    (tmp_path/'models'/'b.pth').symlink_to('a.pth')
    with pytest.raises(OSError, match='symbolic links'): of(1., tmp_path).save('a')
    assert (tmp_path/'models'/'a.pth').is_symlink()

# Damaged files
def damaged(learn, file, before, calls):
    for f in calls:
        with pytest.raises((ValueError,pickle.UnpicklingError), match='`.*damaged') as e: f()
        assert f'`{file}`' in str(e.value)
    assert same(learn, before)

@pytest.mark.parametrize('name', ['a.pth','a.safetensors','legacy.pth'])
def test_truncated(tmp_path, name):
    "At every length"
    learn = mk(tmp_path, model=nn.Linear(3, 2))
    file = learn.save(name) if name!='legacy.pth' else tmp_path/'models'/name
    if name=='legacy.pth':
        file.parent.mkdir(); torch.save(learn.model.state_dict(), file, _use_new_zipfile_serialization=False)
    raw,before = file.read_bytes(),state(learn)
    n = len(raw)
    for i in sorted({*range(0, n, max(1, n//80)), *range(20), *range(n-20, n)}):
        file.write_bytes(raw[:i])
        damaged(learn, file, before, [lambda: learn.load(file)])
        if name!='a.safetensors' and i%7==0:
            with pytest.raises(ValueError, match='damaged'): load_learner(file, trust=True)
    file.write_bytes(raw)
    learn.load(file)

def flips(path, name, bits, legacy=False):
    "What becomes of files with one wrong bit: refused, or all as it was"
    learn = mk(path, model=nn.Linear(3, 2)).fit(1)
    file = learn.save(name)
    if legacy: torch.save(files.read_plain(file), file, _use_new_zipfile_serialization=False)
    raw,before,seen = file.read_bytes(),state(learn),Counter()
    for i in bits(len(raw)*8):
        b = bytearray(raw); b[i//8] ^= 1<<i%8
        file.write_bytes(b)
        try: learn.load(file)
        except (ValueError,pickle.UnpicklingError,TypeError) as e:
            assert f'`{file}`' in '\n'.join([str(e), *getattr(e, '__notes__', ())]) and same(learn, before), (i, e)
            seen['refused'] += 1
        else:
            seen['same' if same(learn, before) else 'other'] += 1
            if not same(learn, before):
                file.write_bytes(raw)
                learn.load(file); assert equal(weights(learn), before['model']); before = state(learn)
    return seen

def some_bits(n): return random.Random(0).sample(range(n), 250)
def test_wrong_bits(tmp_path):
    assert not flips(tmp_path, 'a.pth', some_bits)['other']
    flips(tmp_path, 'a.safetensors', lambda n: some_bits(n)[:150])
    flips(tmp_path, 'b.pth', lambda n: some_bits(n)[:150], legacy=True)

@pytest.mark.slow
def test_every_wrong_bit(tmp_path):
    "The checksums that torch writes find all of them; the other formats have none, and at least nothing crashes"
    assert not flips(tmp_path, 'a.pth', range)['other']
    print(flips(tmp_path, 'a.safetensors', range), flips(tmp_path, 'b.pth', range, legacy=True))

def test_wrong_bytes(tmp_path):
    rng,learn = random.Random(0),mk(tmp_path, model=nn.Linear(3, 2)).fit(1)
    file = learn.save('a')
    raw,before = file.read_bytes(),state(learn)
    for i in range(60):
        b = bytearray(raw)
        for _ in range(rng.choice([1, 10, 100])): b[rng.randrange(len(b))] = rng.randrange(256)
        file.write_bytes(bytes(b) if i%3 else rng.randbytes(rng.randrange(2000)))
        try: learn.load(file)
        except (ValueError,pickle.UnpicklingError,TypeError) as e: assert f'`{file}`' in str(e)
        assert same(learn, before)

def test_an_archive_that_was_packed_again(tmp_path):
    "By other tools, with folders, rights and compression"
    learn = mk(tmp_path)
    file = learn.save('a')
    with zipfile.ZipFile(file) as z: parts = {o.filename:z.read(o) for o in z.infolist()}
    with zipfile.ZipFile(file, 'w') as z:
        z.writestr('archive/', b''); z.infolist()[0].external_attr = 0o40755<<16|16
        for k,v in parts.items(): o = zipfile.ZipInfo(k); o.external_attr = 0o644<<16; z.writestr(o, v)
    assert equal(weights(mk(tmp_path, seed=1).load('a')), weights(learn))

def test_files_without_checksums(tmp_path):
    "torch can be told to write none"
    learn = mk(tmp_path)
    torch.serialization.set_crc32_options(False)
    try: learn.save('a')
    finally: torch.serialization.set_crc32_options(True)
    assert equal(weights(mk(tmp_path, seed=1).load('a')), weights(learn))

def test_other_files(tmp_path):
    learn = mk(tmp_path)
    before = state(learn)
    torch.jit.script(nn.Linear(3, 2)).save(str(tmp_path/'script.pt'))
    np.save(tmp_path/'a.npy', np.ones(2)); (tmp_path/'a.npy').rename(tmp_path/'npy.pth')
    (tmp_path/'text.pth').write_text('hello\n'*100)
    (tmp_path/'empty.pth').touch(); (tmp_path/'empty.safetensors').touch()
    with zipfile.ZipFile(tmp_path/'zip.pth', 'w') as z: z.writestr('x', 'y')
    with tarfile.open(tmp_path/'tar.pth', 'w') as t: t.add(tmp_path/'text.pth')
    (tmp_path/'pickle.pth').write_bytes(pickle.dumps(dict(model={}), protocol=5))
    for name in ('script.pt','npy.pth','text.pth','empty.pth','empty.safetensors','zip.pth','tar.pth','pickle.pth'):
        with pytest.raises((ValueError,pickle.UnpicklingError), match=f'`{tmp_path}/{name}`'): learn.load(tmp_path/name)
        assert same(learn, before)

def test_a_file_that_is_not_there(tmp_path):
    learn = mk(tmp_path)
    with pytest.raises(FileNotFoundError, match=r'There is no `.*models/best\.pth`'): learn.load('best')
    learn.save('best')
    (tmp_path/'models'/'.best.pth.12ab34cd.tmp').touch()
    for name in ('bets','best.safetensors','best.pt'):
        with pytest.raises(FileNotFoundError, match=r'Did you mean `best\.pth`'): learn.load(name)
    with pytest.raises(FileNotFoundError, match='nowhere.pkl'): load_learner(tmp_path/'nowhere.pkl', trust=True)
    learn.export()
    for trust in True,False:
        with pytest.raises(FileNotFoundError, match=r'Did you mean `export\.pkl`'):
            load_learner(tmp_path/'exprt.pkl', trust=trust)
    with pytest.raises(FileNotFoundError, match=r'Did you mean `best\.pth`'): load_seeds(tmp_path/'models'/'bets')
    with pytest.raises(FileNotFoundError, match='Names are in `.*/models`: write `best`'): learn.load('models/best')
    with pytest.raises(pickle.UnpicklingError, match='is read by `load_learner'): learn.load(tmp_path/'export.pkl')
    with pytest.raises(ValueError, match=r"write `cards\(learn.path/'runs'\)`"): cards(tmp_path/'runs')

# Code in files
class Evil:
    def __init__(self, f, *args): self.f,self.args = f,args
    def __reduce__(self): return self.f,self.args

class EvilState:
    def __init__(self, f, *args): self.how = f,args
    def __reduce__(self): return L,([],),dict(items=Evil(*self.how[:1], *self.how[1]))

def evils(marker):
    touch = f"open({str(marker)!r}, 'w')"
    return dict(system=Evil(os.system, f'touch {marker}'), exec=Evil(exec, touch), eval=Evil(eval, touch),
        open=Evil(open, str(marker), 'w'), path=Evil(Path.touch, marker),
        run=Evil(subprocess.run, ['touch', str(marker)]),
        partial=Evil(partial(exec, touch)), torch_load=Evil(torch.load, str(marker)),
        imports=Evil(__import__, 'antigravity'), map=Evil(L.map, L([touch]), exec), L=EvilState(exec, (touch,)),
        scalar=Evil(np.float64(0).__reduce__()[0], np.dtype('O'), Evil(exec, touch)),
        loads=Evil(np.dtype('f8').__reduce__()[0], Evil(exec, touch)), jit=Evil(torch.hub.load, str(marker), 'x', 'y'))

def tar_file(path, payload):
    "The format before torch 0.1.10: a tar whose parts are pickles"
    with tarfile.open(path, 'w') as t:
        for name in ('sys_info','storages','tensors','pickle'):
            b = pickle.dumps(payload, protocol=2)
            info = tarfile.TarInfo(name); info.size = len(b)
            t.addfile(info, io.BytesIO(b))

writers = dict(zip=lambda o,p: torch.save(o, p),
    legacy=lambda o,p: torch.save(o, p, _use_new_zipfile_serialization=False),
    raw=lambda o,p: p.write_bytes(pickle.dumps(o, protocol=2)),
    raw5=lambda o,p: p.write_bytes(pickle.dumps(o, protocol=5)), tar=lambda o,p: tar_file(p, o))
def places(e, model):
    return dict(itself=e, value=dict(model, head=e), nested=dict(model=dict(model, x=[{1: (e,)}]), opt={}),
        opt=dict(model=model, opt=dict(state={0: e}, param_groups=[])),
        key=dict(model=model, opt={}, more=OrderedDict(a=e)))

@pytest.mark.sample(2)
@pytest.mark.parametrize('fmt', writers)
@pytest.mark.parametrize('kind', evils('x'))
def test_no_file_runs_code(tmp_path, monkeypatch, fmt, kind):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    marker = tmp_path/'marker'
    learn = mk(tmp_path, model=nn.Linear(3, 2))
    model,before = {k:v.clone() for k,v in learn.model.state_dict().items()},state(learn)
    for place,o in places(evils(marker)[kind], model).items():
        for suffix in ('.pth','.safetensors','.pt'):
            file = tmp_path/f'{place}{suffix}'
            writers[fmt](o, file)
            for kw in ({}, dict(strict=False), dict(only='*'), dict(with_opt=False), dict(with_opt=True)):
                with pytest.raises((ValueError,pickle.UnpicklingError), match=str(file)): learn.load(file, **kw)
        with pytest.raises((ValueError,pickle.UnpicklingError)):
            learn.load(io.BytesIO((tmp_path/f'{place}.pth').read_bytes()))
        with pytest.raises((ValueError,pickle.UnpicklingError)): files.read_plain(tmp_path/f'{place}.pth')
        with pytest.raises(ValueError, match='trust=True'): load_learner(tmp_path/f'{place}.pth')
        with pytest.raises(ValueError, match='trust=True'): load_learner(tmp_path/f'{place}.pth', trust=False)
    assert not marker.exists() and same(learn, before)

def test_the_message_about_code(tmp_path):
    torch.save(dict(model=Evil(os.system, 'true')), tmp_path/'a.pth')
    with pytest.raises(pickle.UnpicklingError, match=r"`.*a\.pth`.*could run code.*not read"):
        mk().load(tmp_path/'a.pth')

def test_trust_runs_code(tmp_path):
    "So that the tests above show something"
    marker = tmp_path/'marker'
    torch.save(evils(marker)['system'], tmp_path/'a.pkl')
    with pytest.raises(ValueError, match=r'`.*a\.pkl`'): load_learner(tmp_path/'a.pkl', trust=True)
    assert marker.exists()

@pytest.mark.parametrize('name', ['../x','a/../../x','..','../models/x','a/..','','.','./','x\0y'])
def test_names_that_lead_elsewhere(tmp_path, name):
    learn = mk(tmp_path/'run')
    before = state(learn)
    for f in (learn.save, learn.load, learn.export):
        with pytest.raises(ValueError, match='`.*`.*name'): f(name)
    assert not listing(tmp_path) and same(learn, before)

@pytest.mark.parametrize('name', [None, 3, b'x', ['a'], True], ids=repr)
def test_things_that_are_no_names(tmp_path, name):
    learn = mk(tmp_path)
    for f in (learn.save, learn.load, learn.export):
        with pytest.raises(TypeError, match='a name, a path or an open file, but got'): f(name)
    assert not listing(tmp_path)

@pytest.mark.parametrize('name',
    ['http://127.0.0.1:9/x.pth','file:///etc/passwd','s3://bucket/x','hf://a/b','~/x','$HOME/x','a\\..\\b','%2e%2e/x',
        '-rf','*',' ','con'])
def test_nothing_is_fetched(tmp_path, monkeypatch, name):
    "An address is a name of a local file like any other"
    def refuse(*args, **kwargs): raise AssertionError('a connection')
    monkeypatch.setattr(socket, 'socket', refuse)
    monkeypatch.setattr(socket, 'create_connection', refuse); monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    learn = mk(tmp_path)
    with pytest.raises(FileNotFoundError, match='There is no'): learn.load(name)
    with pytest.raises(FileNotFoundError): load_learner(name, trust=True)
    file = learn.save(name)
    assert tmp_path/'models' in file.resolve().parents and all(o.startswith('models/') for o in listing(tmp_path))
    learn.load(name)

def test_links(tmp_path):
    "A folder can be a link, as for a larger disk; a file that is one is read through it, and written through it"
    (tmp_path/'disk').mkdir(); (tmp_path/'run').mkdir()
    (tmp_path/'run'/'models').symlink_to(tmp_path/'disk')
    of(1., tmp_path/'run').save('a')
    assert listing(tmp_path/'disk')==['a.pth'] and value(tmp_path/'run')==1
    (tmp_path/'precious.pth').write_bytes((tmp_path/'disk'/'a.pth').read_bytes())
    (tmp_path/'disk'/'b.pth').symlink_to(tmp_path/'precious.pth')
    assert value(tmp_path/'run', 'b.pth')==1
    of(2., tmp_path/'run').save('b')
    assert ((tmp_path/'disk'/'b.pth').is_symlink() and value(tmp_path/'run', 'b.pth')==2
        and value(tmp_path, str(tmp_path/'precious.pth'))==2)
    (tmp_path/'disk'/'c.pth').symlink_to(tmp_path/'nowhere')
    with pytest.raises(FileNotFoundError, match='There is no'): of(2., tmp_path/'run').load('c')
    of(3., tmp_path/'run').save('c')
    assert value(tmp_path/'run', 'c.pth')==3 and (tmp_path/'nowhere').exists()
    (tmp_path/'disk'/'d.pth').symlink_to(tmp_path/'disk'/'d.pth') # to itself
    with pytest.raises(OSError, match='There is no|symbolic'): of(2., tmp_path/'run').load('d')
    with pytest.raises(OSError, match='symbolic'): of(4., tmp_path/'run').save('d')

# Files of others, by a path
@pytest.mark.parametrize('name', ['w.pth','w.pt','w.bin','w.ckpt','w'])
@pytest.mark.parametrize('where', ['absolute','current folder','models'])
def test_a_state_dict_is_loaded_by_a_path(tmp_path, monkeypatch, name, where):
    "As `torch.save(model.state_dict(), path)` has written it, wherever it is and whatever its suffix"
    folder = tmp_path/'run'/'models' if where=='models' else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(of(3., tmp_path).model.state_dict(), folder/name)
    monkeypatch.chdir(tmp_path)
    learn = of(1., tmp_path/'run').load(str(folder/name) if where=='absolute' else name)
    assert all((p==3).all() for p in learn.model.parameters())

def test_a_name_in_the_folder_comes_before_one_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(of(3., tmp_path).model.state_dict(), tmp_path/'w.pth')
    of(2., tmp_path).save('w')
    assert value(tmp_path, 'w.pth')==2

@pytest.mark.parametrize('key', ['state_dict','model_state_dict'])
def test_weights_beside_other_things_are_found(tmp_path, key):
    torch.save({key: of(3., tmp_path).model.state_dict(), 'epoch': 3}, tmp_path/'w.ckpt')
    assert value(tmp_path, str(tmp_path/'w.ckpt'))==3

@pytest.mark.parametrize('names', [('model','optimizer'), ('model_state_dict','optimizer_state_dict')])
def test_the_optimizer_of_a_loop_by_hand_is_loaded_on_request_and_else_told_of(tmp_path, names, recwarn):
    def begun(seed=1): return mk(tmp_path, seed, opt_func=partial(torch.optim.Adam, betas=(.8,.9)))
    learn = begun(0).fit(1)
    torch.save(dict(zip(names, (learn.model.state_dict(), learn.opt.state_dict()))) | {'epoch': 3}, tmp_path/'w.pth')
    moments = [s['exp_avg'] for s in learn.opt.state.values()]
    with pytest.warns(UserWarning, match=f'has its state as `{names[1]}`, which `with_opt=True` loads'):
        other = begun().load(tmp_path/'w.pth')
    assert other.opt is None or not other.opt.state
    recwarn.clear()
    begun().load(tmp_path/'w.pth', with_opt=False)
    other = begun().load(tmp_path/'w.pth', with_opt=True)
    assert all(map(torch.equal, [s['exp_avg'] for s in other.opt.state.values()], moments)) and moments
    assert equal(other.model.state_dict(), learn.model.state_dict()) and not recwarn.list

@pytest.mark.parametrize('options', [dict(opt={'lr': .1}), dict(optimizer='adam'), dict(optimizer={'lr': .1})], ids=str)
@pytest.mark.parametrize('key', ['state_dict','model_state_dict'])
def test_options_of_a_script_are_no_state_of_its_optimizer(tmp_path, options, key, recwarn):
    torch.save({key: of(3., tmp_path).model.state_dict()} | options, tmp_path/'w.pth')
    assert value(tmp_path, str(tmp_path/'w.pth'))==3 and not recwarn.list

@pytest.mark.parametrize('name', ['a','a.safetensors'])
def test_load_takes_a_device(tmp_path, name):
    "The file is read to it, and the model stays where it is"
    of(3., tmp_path).save(name)
    for device in ('cpu', torch.device('cpu'), None):
        learn = of(1., tmp_path).load(name, device=device)
        assert all((p==3).all() and p.device.type=='cpu' for p in learn.model.parameters())
    learn = of(1., tmp_path)
    with pytest.raises(ValueError, match="`device` is a device of this machine, such as `cpu`, but got 'nowhere'"):
        learn.load(name, device='nowhere')
    assert all((p==1).all() for p in learn.model.parameters())

# Whole learners
def predictions(learn): return learn.get_preds(dl=batches(2, seed=5))

def test_export(tmp_path):
    learn = mk(tmp_path, metrics=mae).fit(2)
    before = state(learn)
    file = learn.export()
    assert file==tmp_path/'export.pkl' and listing(tmp_path)==['export.pkl'] and same(learn, before)
    there = load_learner(file, trust=True)
    assert (equal(predictions(there), predictions(learn)) and not there.recorder.rows and there.opt is None
        and length(there.dls.train)==0 and there.dls.valid is None)
    assert equal(there.validate(dl=batches(1, seed=1)), learn.validate()) and [o.name for o in there.metrics]==['mae']
    there.dls = DataLoaders(batches(), batches(1, seed=1), device='cpu')
    there.fit(1)
    ref = mk(metrics=mae); ref.model.load_state_dict(learn.model.state_dict()); ref.fit(1)
    assert equal(weights(there), weights(ref)) and there.recorder.rows[-1]['mae']==ref.recorder.rows[-1]['mae']

def test_an_export_has_no_data(tmp_path):
    "Nor optimizer, nor history: as large as the weights"
    small,large = mk(tmp_path),mk(tmp_path)
    large.dls = DataLoaders(batches(200), batches(50), device='cpu')
    large.fit(1)
    a,b = small.export('a.pkl').stat().st_size,large.export('b.pkl').stat().st_size
    assert abs(a-b)<200 and b<15_000

def test_an_export_without_its_optimizer_state(tmp_path):
    torch.manual_seed(0)
    m = nn.Linear(300, 300)
    def batch(): return [(torch.randn(4, 300), torch.randn(4, 300))]
    learn = Learner(DataLoaders(batch(), device='cpu'), m, nn.MSELoss(), opt_func=torch.optim.Adam(m.parameters(), .01),
        path=tmp_path).remove_cb(ProgressCallback).fit(1)
    n = len(learn.opt.state)
    assert learn.export().stat().st_size < 1.1*4*300*301 and len(learn.opt.state)==n
    there = load_learner(tmp_path/'export.pkl', trust=True)
    there.dls = DataLoaders(batch(), device='cpu')
    before = weights(there)
    assert not equal(weights(there.fit(1)), before) and get_hyper(there.opt, 'lr')==[.01]

def test_an_export_to_memory(tmp_path):
    learn,buf = mk(tmp_path).fit(1),io.BytesIO()
    assert learn.export(buf) is buf
    buf.seek(0)
    assert equal(predictions(load_learner(buf, trust=True)), predictions(learn)) and not listing(tmp_path)

class Twice(Net):
    def double(self, x): return 2*Net.forward(self, x)
def ten(o): return 10*o
def third(b): return b[0]/3,*b[1:]
@pytest.mark.parametrize('cbs,by_hand', [
    (lambda: MapPred(ten), lambda m,x: 10*m(x)),
    (lambda: MapBatch(third), lambda m,x: m(x/3)),
    (lambda: Forward(valid='double'), lambda m,x: 2*m(x)),
    (lambda: [MapPred(ten), Forward(valid='double'), MapBatch(third)], lambda m,x: 20*m(x/3))],
    ids=['pred','batch','forward','all'])
def test_an_exported_learner_predicts_with_the_callbacks_that_predicting_needs(tmp_path, cbs, by_hand):
    learn = mk(tmp_path, model=Twice(), cbs=cbs(), metrics=mae).fit(1)
    there = load_learner(learn.export(), trust=True)
    x,y = batches(1)[0]
    with torch.no_grad(): right = by_hand(learn.model.eval(), x)
    torch.testing.assert_close(there.get_preds(dl=[(x, y)])[0], right)
    torch.testing.assert_close(there.predict(x[0])[2], right[0])
    assert len(learn.cbs)==len(there.cbs)-1 # a bar and a table are made anew

def test_an_exported_learner_chooses_fields(tmp_path):
    def named(): return [dict(x=x, idx=torch.arange(6), labels=y) for x,y in batches(1)]
    learn = mk(tmp_path, cbs=[MatchArgs, Trace])
    learn.dls = DataLoaders(named(), device='cpu')
    there = load_learner(learn.export(), trust=True)
    assert equal(there.get_preds(dl=named()), learn.get_preds(dl=named()))
    assert not [o for o in there.cbs if isinstance(o, Trace)]

class Dls(DataLoaders):
    "A dictionary as a batch, and a vocabulary"
    def __init__(self, *args, vocab=(), **kwargs): super().__init__(*args, **kwargs); self.vocab = vocab
    def split(self, b): return (b['x'],),(b['y'],)

def test_how_batches_are_split_travels(tmp_path):
    def named(n=2): return [dict(x=x, y=y) for x,y in batches(n)]
    for dls in (Dls(named(), device='cpu', vocab=['a','b']),
            DataLoaders(named(), device='cpu', split=lambda b: ((b['x'],), (b['y'],)))):
        learn = mk(tmp_path); learn.dls = dls
        learn.fit(1).export()
        there = load_learner(tmp_path/'export.pkl', trust=True)
        assert (equal(there.get_preds(dl=named()), learn.get_preds(dl=named())) and type(there.dls) is type(dls)
            and getattr(there.dls, 'vocab', None)==getattr(dls, 'vocab', None))
        assert length(learn.dls.train)==2 and length(there.dls.train)==0
    learn = mk(tmp_path); learn.dls = DataLoaders([(x,x,y) for x,y in batches()], device='cpu', n_inp=2)
    learn.export()
    assert load_learner(tmp_path/'export.pkl', trust=True).dls.n_inp==2

class Sum(nn.Module):
    "The second input may be left out"
    def __init__(self, n): super().__init__(); self.lin = nn.Linear(n, 2)
    def forward(self, a, b=0.): return self.lin(a+b)

@pytest.mark.parametrize('n_inp', [None, 2])
def test_an_exported_learner_knows_batches_without_targets(tmp_path, n_inp):
    (x,y),*_ = batches(1)
    learn = mk(tmp_path)
    learn.model = Sum(x.shape[1])
    learn.dls = DataLoaders([(x, -x, y)], device='cpu', n_inp=n_inp)
    there = load_learner(learn.export(), trust=True)
    for dl in ([(x, 2*x)], [(x, 2*x, y)], [(x,)]):
        (p,t),(right,targ) = there.get_preds(dl=dl),learn.get_preds(dl=dl)
        assert torch.equal(p, right) and (t is None)==(targ is None)

@pytest.mark.parametrize('n_inp', [1,2])
def test_an_exported_learner_refuses_a_batch_as_the_learner_does(tmp_path, n_inp):
    (x,y),*_ = batches(1)
    learn,inputs = mk(tmp_path),(x,-x)[:n_inp]
    if n_inp==2: learn.model = Sum(x.shape[1])
    learn.dls = DataLoaders([(*inputs, y)], device='cpu', n_inp=n_inp)
    one,two = (tuple(o[rows] for o in inputs) for rows in (0, slice(2)))
    right = learn.predict(one)
    there = load_learner(learn.export(), trust=True)
    for o in (learn, there, load_learner(there.export(tmp_path/'again.pkl'), trust=True)):
        with pytest.raises(ValueError, match=r'one input, as in `dls` of shape \(3,\), but got \(2, 3\), like a batch'):
            o.predict(two)
        assert equal(o.predict(one), right)
    old = torch.load(tmp_path/'export.pkl', weights_only=False)
    del old['dls'].sample_shapes # a file of an earlier version has none
    torch.save(old, tmp_path/'old.pkl')
    assert equal(load_learner(tmp_path/'old.pkl', trust=True).predict(one), right)

@pytest.mark.parametrize('wrap', wrapped())
def test_export_of_wrapped_models(tmp_path, wrap):
    learn = mk(tmp_path)
    expected = predictions(learn)
    learn.model = wrapped()[wrap](learn.model)
    learn.export()
    there = load_learner(tmp_path/'export.pkl', trust=True)
    assert 'OptimizedModule' not in str(type(there.model)) and not isinstance(there.model, nn.DataParallel)
    if wrap in ('plain','compiled','parallel','both','twice'): assert equal(predictions(there), expected)

@pytest.mark.parametrize('what', ['model','loss_func','opt_func','splitter','metrics','split'])
def test_a_failing_export(tmp_path, what):
    class Stuck:
        def __init__(self): self.lock = threading.Lock()
        def __call__(self, *args): return args[0].mean() if args else None
    learn = mk(tmp_path).fit(1)
    learn.export()
    good,dls = (tmp_path/'export.pkl').read_bytes(),learn.dls
    if what=='model': learn.model.lock = threading.Lock()
    elif what=='split': learn.dls = DataLoaders(batches(), device='cpu', split=Stuck())
    else: setattr(learn, what, Stuck())
    before,dls = state(learn),learn.dls
    with pytest.raises(TypeError, match='lock') as e: learn.export()
    assert f'`learn.{"dls" if what=="split" else what}`' in noted(e)
    assert (same(learn, before) and learn.dls is dls and length(dls.train)==4 and learn.opt
        and (tmp_path/'export.pkl').read_bytes()==good and listing(tmp_path)==['export.pkl'])

notebook = '''if True:
    import sys,torch
    sys.path[:0] = [{root!r}, {root!r}+'/tests']
    from torch import nn
    from learner.all import *
    from tests.test_files import batches
    torch.set_num_threads(1)
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(3, 2)
        def forward(self, x): return twice(self.lin(x))
    def twice(x): return 2*x
    torch.manual_seed(0)
    learn = Learner(DataLoaders(batches(), device='cpu'), Net(), lambda p,t: (p-t).abs().mean(), path={path!r},
        metrics=lambda p,t: (p-t).square().mean()).remove_cb(ProgressCallback)
    learn.fit(1)
    torch.save(learn.get_preds(dl=batches(2, seed=5))[0], {path!r}+'/preds')
    {more}
    learn.export()'''

def run_notebook(path, more=''):
    code = notebook.format(root=str(Path(__file__).parent.parent), path=str(path), more=more)
    return run_script(code)

def test_functions_and_classes_of_a_notebook(tmp_path):
    "Another process has made them"
    pytest.importorskip('cloudpickle')
    p = run_notebook(tmp_path)
    assert p.returncode==0, p.stderr
    there = load_learner(tmp_path/'export.pkl', trust=True)
    assert torch.equal(predictions(there)[0], torch.load(tmp_path/'preds')) and type(there.model).__name__=='Net'
    there.dls = DataLoaders(batches(), batches(1), device='cpu')
    there.fit(1)

@pytest.mark.slow
def test_a_notebook_without_the_package(tmp_path):
    p = run_notebook(tmp_path, "sys.modules['cloudpickle'] = None; learn.loss_func,learn.metrics = nn.MSELoss(),[]")
    assert p.returncode and '`learn.model`' in p.stderr and 'pip install cloudpickle' in p.stderr and listing(
        tmp_path)==['preds'], p.stderr

def test_without_cloudpickle(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'cloudpickle', None)
    learn = mk(tmp_path).fit(1)
    learn.export()
    assert equal(predictions(load_learner(tmp_path/'export.pkl', trust=True)), predictions(learn))
    good = (tmp_path/'export.pkl').read_bytes()
    learn.loss_func = lambda p,t: (p-t).mean()
    with pytest.raises(Exception, match='pip install cloudpickle') as e: learn.export()
    assert ('`learn.loss_func`' in noted(e) and (tmp_path/'export.pkl').read_bytes()==good
        and listing(tmp_path)==['export.pkl'])
    learn.loss_func = nn.MSELoss()
    # as in a notebook: without the package, only its name would be in the file
    monkeypatch.setattr(Net, '__module__', '__main__')
    monkeypatch.setattr(sys.modules['__main__'], 'Net', Net, raising=False)
    with pytest.raises(Exception, match='pip install cloudpickle') as e: learn.export()
    assert '`learn.model`' in noted(e) and (tmp_path/'export.pkl').read_bytes()==good

def test_an_export_whose_classes_are_not_here(tmp_path, monkeypatch):
    mk(tmp_path).export()
    monkeypatch.delattr(sys.modules[__name__], 'Net')
    with pytest.raises(AttributeError, match='Net') as e: load_learner(tmp_path/'export.pkl', trust=True)
    assert f'`{tmp_path}/export.pkl`' in noted(e)

def test_an_export_of_another_machine(tmp_path):
    learn = mk(tmp_path)
    learn.dls._device = torch.device('cuda:3')
    assert load_learner(learn.export(), trust=True).device==torch.device('cpu')

def test_a_device_that_is_not_there(tmp_path):
    file = mk(tmp_path).export()
    with pytest.raises(ValueError,
            match="`device` is a device of this machine, such as `cpu`, but got 'cuda'.*(CUDA|NVIDIA)"):
        load_learner(file, 'cuda', trust=True)
    with pytest.raises(ValueError, match="`device` is a device of this machine, such as `cpu`, but got 'nowhere'"):
        load_learner(file, 'nowhere', trust=True)
    with pytest.raises(ValueError,
            match="`device` is a device of this machine, such as `cpu`, but got 'cuda'.*(CUDA|NVIDIA)"):
        files.read_plain(mk(tmp_path).save('a'), 'cuda')

def test_load_learner_mistakes(tmp_path):
    learn = mk(tmp_path)
    for file in (learn.save('a'), learn.fit(1).save('b')):
        with pytest.raises(ValueError, match=fr'`{file}` .*`learn\.load`'): load_learner(file, trust=True)
    file = learn.export()
    raw = file.read_bytes()
    i = raw.index(learn.model.body[0].weight.detach().numpy().tobytes())
    for bad in (raw[:len(raw)//2], raw[:i]+bytes([raw[i]^1])+raw[i+1:]):
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=r'`.*export\.pkl`.*damaged'): load_learner(file, trust=True)
    with pytest.raises(TypeError, match='no argument `trusted`.*`trust`'): load_learner(file, trusted=True)
    with pytest.raises((ValueError,pickle.UnpicklingError), match='export.pkl'):
        file.write_bytes(raw); learn.load(file.rename(tmp_path/'export.pkl.pth'))

def test_device_and_dtype(tmp_path):
    learn = mk(tmp_path, model=Net().double())
    learn.dls = DataLoaders([(x.double(), y.double()) for x,y in batches()], device='cpu')
    learn.fit(1).save('a')
    other = mk(tmp_path, seed=1).load('a', with_opt=False)
    assert (all(p.dtype==torch.float32 for p in other.model.parameters())
        and torch.allclose(other.model.head.bias.double(), learn.model.head.bias))
    other = mk(tmp_path, seed=1).load('a')
    assert all(v.dtype==torch.float32 for s in other.opt.state.values() for v in s.values())

@pytest.mark.cuda
def test_devices(tmp_path):
    def new(device, seed=0):
        learn = mk(tmp_path, seed=seed, opt_func=Adam)
        learn.dls.device = device
        return learn
    a = new('cuda').fit(1)
    for name in ('a.pth','a.safetensors'): a.save(name)
    assert all(o.device.type=='cpu' for o in torch.load(tmp_path/'models'/'a.pth', weights_only=True)['model'].values())
    for device in ('cpu','cuda'):
        for name in ('a.pth','a.safetensors'):
            b = new(device, 1).load(name)
            assert equal([o.cpu() for o in b.model.state_dict().values()],
                [o.cpu() for o in a.model.state_dict().values()])
            b.fit(1)
            assert {p.device.type for p in b.model.parameters()}=={device}
    c = new('cuda', 1).load('a')
    a.fit(1); c.fit(1)
    assert equal(weights(a), weights(c))
    a.export()
    assert {p.device.type for p in load_learner(tmp_path/'export.pkl', trust=True).model.parameters()}=={'cpu'}
    assert {p.device.type for p in load_learner(tmp_path/'export.pkl', 'cuda', trust=True).model.parameters()}=={'cuda'}

def in_parts(file, code=None):
    "Write a file whose tensors are in a folder beside it"
    stand_in,folder = torch.zeros(()).expand(3, 5),parts_folder(file)
    whole = torch.arange(15.).view(3, 5)
    checkpoint.save(dict(w=whole), storage_writer=checkpoint.FileSystemWriter(folder))
    if code: (folder/'.metadata').write_bytes(pickle.dumps(code))
    files = {o.name: hash_of(o) for o in folder.iterdir()}
    rest = dict(a=stand_in, b=[stand_in.detach(), 1], c=torch.eye(2).to_sparse(), d=torch.zeros(3, 5))
    write_plain(dict(parts=dict(files=files, stand_ins=dict(w=stand_in)), rest=rest), file)
    return whole,folder

@pytest.mark.filterwarnings('ignore')
def test_tensors_in_a_folder(tmp_path):
    "Stand-ins become the tensors of the folder, wherever they are; what shared its memory shares it again"
    whole,_ = in_parts(tmp_path/'x.pt')
    res = read_plain(tmp_path/'x.pt')
    assert res.keys()=={*'abcd'} and torch.equal(res['a'], whole) and res['a'].data_ptr()==res['b'][0].data_ptr()
    assert res['b'][1]==1 and torch.equal(res['c'].to_dense(), torch.eye(2)) and not res['d'].any()
    with open(tmp_path/'x.pt', 'rb') as f:
        with pytest.raises(ValueError, match='are in a folder beside it: give its path'): read_plain(f)

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('how', ['changed','missing','folder'])
def test_a_damaged_folder(how, tmp_path):
    _,folder = in_parts(tmp_path/'x.pt')
    part = next(folder.glob('__*'))
    if how=='changed': part.write_bytes(part.read_bytes()[:-1]+b'x')
    else: part.rename(tmp_path/'y') if how=='missing' else folder.rename(tmp_path/'y')
    with pytest.raises((ValueError,FileNotFoundError), match='x.pt.parts' if how!='changed' else 'damaged'):
        read_plain(tmp_path/'x.pt')

class Runs:
    def __reduce__(self): return os.mkdir, ('ran',)

@pytest.mark.filterwarnings('ignore')
def test_a_folder_runs_no_code(tmp_path, monkeypatch):
    "torch's own reader would run what a description of tensors holds"
    monkeypatch.chdir(tmp_path)
    in_parts(tmp_path/'x.pt', Runs())
    with pytest.raises(UnpicklingError, match='could run code'): read_plain(tmp_path/'x.pt')
    assert not (tmp_path/'ran').exists()

def unpacks(): import_module('a_decompressor_that_is_not_installed')
def fills_the_gpu(): raise torch.OutOfMemoryError('CUDA out of memory')
class Packed(io.BytesIO):
    "An open file that is unpacked where it is read"
    def __init__(self, data, unpack): super().__init__(data); self.unpack = unpack
    def read(self, *args): self.unpack(); return super().read(*args)
    def readinto(self, *args): self.unpack(); return super().readinto(*args)

@pytest.mark.parametrize('unpack,exc', [(lambda: bytes(2**60), MemoryError), (unpacks, ModuleNotFoundError),
    (fills_the_gpu, torch.OutOfMemoryError)], ids=['memory','import','gpu'])
def test_what_the_machine_lacks_is_no_damage(unpack, exc):
    file = io.BytesIO()
    write_plain(dict(a=torch.ones(2)), file)
    with pytest.raises(exc) as e: read_plain(Packed(file.getvalue(), unpack))
    assert 'while reading `' in e.value.__notes__[-1]

# Numbers of numpy in an optimizer
@pytest.mark.parametrize('kwargs', [dict(mom=np.float64(.9)), dict(wd=np.float64(.1))], ids=str)
def test_an_optimizer_with_numbers_of_numpy_is_saved_with_those_of_python(tmp_path, kwargs):
    learn = mk(tmp_path, opt_func=partial(Adam, **kwargs)).fit(1)
    other = mk(tmp_path, seed=1, opt_func=Adam).load(learn.save('a', with_opt=True))
    (k,v), = kwargs.items()
    assert get_hyper(other.opt, k)==pytest.approx([float(v)])
    assert equal(weights(other.fit(1)), weights(learn.fit(1)))

def test_a_fit_with_a_scheduler_that_computes_with_numpy_resumes_from_its_checkpoint(tmp_path):
    f = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda e: 1/np.sqrt(e+1))
    def cbs(*more): return [Checkpoint(), Rewind(), TorchScheduler(f), *more]
    def stop(learn):
        if learn.epoch==1: raise KeyboardInterrupt
    whole = mk(tmp_path/'a').fit(3, cbs=cbs())
    with pytest.raises(KeyboardInterrupt): mk(tmp_path/'b').fit(3, cbs=cbs(on(event.before_epoch)(stop)))
    learn = mk(tmp_path/'b', seed=1).fit(3, cbs=cbs(), resume=True)
    assert equal(weights(learn), weights(whole))

@pytest.mark.parametrize('kwargs', [{}, dict(only='*')])
def test_a_file_of_which_nothing_fits_is_refused_also_by_a_model_with_batch_norms(kwargs):
    "torch supplies the count of batches, which old files lack"
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match='Nothing in the file fits the model'):
        load_weights(m, dict(other=torch.ones(2)), strict=False, **kwargs)
    assert load_weights(m, {'0.bias': torch.ones(2), 'other': torch.ones(1)}, strict=False).unexpected==['other']

# Weights that a model leaves out of its `state_dict`
class Partial(nn.Module):
    "Its body is pretrained, and in no file"
    def __init__(self, frozen=True):
        super().__init__()
        self.body,self.head = nn.Linear(3,4).requires_grad_(not frozen),nn.Linear(4,2)
    def forward(self, x): return self.head(self.body(x).relu())
    def state_dict(self, *args, **kwargs):
        res = super().state_dict(*args, **kwargs)
        for k in [k for k in res if k.startswith('body.')]: del res[k]
        return res
    def load_state_dict(self, state, strict=True, assign=False): return super().load_state_dict(state, False, assign)

class PartialByHook(nn.Module):
    "The same by hooks of torch"
    def __init__(self, frozen=True):
        super().__init__()
        self.body,self.head = nn.Linear(3,4).requires_grad_(not frozen),nn.Linear(4,2)
        self._register_state_dict_hook(self._drop)
        self.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    @staticmethod
    def _drop(m, state, prefix, meta):
        for k in [k for k in state if k.startswith(f'{prefix}body.')]: del state[k]
    forward = Partial.forward

partial_models = pytest.mark.parametrize('cls', [Partial, PartialByHook])
def params_in(learn): return clone(dict(learn.model.named_parameters()))

@partial_models
def test_weights_that_the_model_leaves_out_are_not_missing(cls, tmp_path):
    def make(): return mk(tmp_path, model=cls())
    learn = make().fit(2, cbs=[Rewind(every=2), SaveModelCallback(monitor='train_loss')])
    after = params_in(learn)
    learn.save('a')
    learn.save_state('s')
    with torch.no_grad():
        for p in learn.model.head.parameters(): p.zero_()
    assert equal(params_in(learn.load('a')), after)
    with torch.no_grad():
        for p in learn.model.head.parameters(): p.zero_()
    assert equal(params_in(learn.load_state('s')), after)
    assert equal(params_in(learn.rewind(4).resume()), after)
    assert 'body.weight' not in torch.load(tmp_path/'models'/'s.pth')['hidden']['model'] # which may be large

def test_weights_that_are_missing_are_missing(tmp_path):
    "Those that the model's own `state_dict` has"
    learn = mk(tmp_path, model=Partial())
    torch.save({'head.weight': torch.zeros(2,4)}, tmp_path/'a.pth')
    with pytest.raises(ValueError, match=r"missing: `?head.bias"): learn.load(tmp_path/'a.pth')

@partial_models
def test_what_is_trained_is_saved_where_the_model_leaves_it_out(cls, tmp_path):
    def make(): return mk(tmp_path, seed=3, model=cls(frozen=False))
    def save(learn):
        if learn.training and learn.train_iter==5: learn.save_state('s')
    learn = make()
    learn.fit(2, cbs=[Rewind(every=2), Callback(after_batch=save)])
    after = params_in(learn)
    assert equal(params_in(make().load_state('s').resume()), after)
    assert equal(params_in(learn.rewind(3).resume()), after)
    other = make()
    learn.save_state('end')
    assert equal(params_in(other.load_state('end')), after)

class Renames(nn.Module):
    "Its `state_dict` is that of the model inside"
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3,2)
        self.inner.register_buffer('unsaved', torch.zeros(2), persistent=False)
    def forward(self, x): return self.inner(x) + self.inner.unsaved
    def state_dict(self, *args, **kwargs): return self.inner.state_dict(*args, **kwargs)
    def load_state_dict(self, *args, **kwargs): return self.inner.load_state_dict(*args, **kwargs)

def renamed_by_hooks():
    m = nn.Sequential(OrderedDict(inner=nn.Linear(3,2)))
    m.register_buffer('unsaved', torch.zeros(2), persistent=False)
    def rename(state, old, new):
        for k in [k for k in state if k.startswith(old)]: state[new+k.removeprefix(old)] = state.pop(k)
    m.register_state_dict_post_hook(lambda m, state, prefix, meta: rename(state, 'inner.', 'x.'))
    m.register_load_state_dict_pre_hook(lambda m, state, prefix, *args: rename(state, 'x.', 'inner.'))
    return m

@pytest.mark.parametrize('model', [Renames, renamed_by_hooks])
def test_weights_that_the_model_saves_under_other_names_are_saved(model, tmp_path):
    learn = mk(tmp_path, model=model()).fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.save('a')
    learn.save_state('s')
    hidden = torch.load(tmp_path/'models'/'s.pth')['hidden']['model']
    assert [k.split('.')[-1] for k in hidden]==['unsaved']
    assert equal(params_in(mk(tmp_path, model=model()).load('a')), params_in(learn))
    assert equal(params_in(mk(tmp_path, model=model()).load_state('s')), params_in(learn))

def test_weights_that_are_trained_and_in_no_file_are_announced(tmp_path):
    learn = mk(tmp_path, model=Partial(frozen=False)).fit(1)
    with pytest.warns(UserWarning, match=r"`body.weight`, `body.bias`: trained, but not in the `state_dict`"):
        learn.save('a')
    learn.model.body.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.save('a')
