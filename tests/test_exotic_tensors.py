"Tensors of rare kinds, tensors that grow, and compiled parts of models: they are trained, compared and put back"
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.values.tensors import bytes_of
from learner.values.digests import digest
from learner.diagnose.checksums import Weights,checksum,checksum_of_batch
from learner.restore.tensors import HeldTensor,has_values,put_values

def data(collate=None):
    g = torch.Generator().manual_seed(0)
    ds = TensorDataset(torch.randn(24, 6, generator=g), torch.randint(0, 3, (24,), generator=g))
    return DataLoaders(*(DataLoader(ds, 4, collate_fn=collate) for _ in range(2)))

class Net(nn.Module):
    def __init__(self, **values):
        super().__init__()
        self.l = nn.Linear(6, 3)
        for k,v in values.items():
            if k=='hidden': self.register_buffer(k, v, persistent=False)
            else: setattr(self, k, v)
    def forward(self, x): return self.l(F.dropout(x, .2, self.training))

def make(model, loss_func=F.cross_entropy, **kwargs):
    torch.manual_seed(0)
    for m in model.modules():
        if isinstance(m, nn.Linear): m.reset_parameters()
    return Learner(kwargs.pop('dls', None) or data(), model, loss_func, lr=.1, **kwargs).remove_cb(ProgressCallback)

def weights(learn): return [p.detach().clone() for p in learn.model.parameters()]
def same(a, b): return len(a)==len(b) and all(map(torch.equal, a, b))

# Tensors that grow
class Work(nn.Module):
    "Writes into memory that grows with the first batch, as `out=` lets it"
    def __init__(self, buffer):
        super().__init__()
        self.l = nn.Linear(6, 3)
        if buffer: self.register_buffer('work', torch.empty(0), persistent=False)
        else: self.work = torch.empty(0)
    def forward(self, x):
        with torch.no_grad(): torch.mul(x, 2, out=self.work)
        return self.l(x)+self.work.mean()

@pytest.mark.parametrize('buffer', [False,True])
@pytest.mark.parametrize('cbs', [(),Fingerprint], ids=['plain','fingerprint'])
def test_a_tensor_can_grow_in_a_fit(buffer, cbs):
    learn = make(Work(buffer)).fit(1, cbs=[cbs()] if cbs else [])
    work = learn.model.work
    assert work.shape==(4,6) and work.untyped_storage().nbytes()==work.nbytes
    learn.model(torch.ones(8, 6)) # it still grows

def test_what_is_read_of_a_tensor_leaves_its_memory_free():
    for read in (digest, lambda t: checksum([t]), lambda t: checksum_of_batch((t,)), HeldTensor,
            lambda t: Weights(nn.ParameterList([nn.Parameter(t)])).checksum()):
        t = torch.ones(3)
        read(t)
        t.resize_(1000)

# Kinds of tensors
def _nested(layout): return torch.nested.nested_tensor([torch.arange(6.).view(2, 3), torch.ones(4, 3)], layout=layout)

class Scaled(torch.Tensor):
    "Integers and their scale, which tensor operations see as floats"
    @staticmethod
    def __new__(cls, q, scale): return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=torch.float32)
    def __init__(self, q, scale): self.q,self.scale = q,scale
    def __repr__(self): return f'Scaled({tuple(self.shape)})'
    def __tensor_flatten__(self): return ['q','scale'],{}
    @classmethod
    def __tensor_unflatten__(cls, inner, *args): return cls(**inner)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def plain(o): return o.q*o.scale if isinstance(o, cls) else o
        name = func.overloadpacket.__name__
        if name in ('detach','clone','_to_copy','alias'):
            res = cls(*(o.detach() if name in ('detach','alias') else o.clone() for o in (args[0].q, args[0].scale)))
            return torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs or {}, res)
        if name=='copy_': args[0].q.copy_(args[1].q); args[0].scale.copy_(args[1].scale); return args[0]
        return func(*map(plain, args), **(kwargs or {}))

x = torch.arange(12.).view(3, 4)-5
def _low(dtype): return (lambda: x.to(dtype))
kinds = dict(coo=lambda: x.to_sparse(), csr=lambda: x.to_sparse_csr(), csc=lambda: x.to_sparse_csc(),
    bsr=lambda: x.to_sparse_bsr((1, 2)), nested=lambda: _nested(torch.strided), jagged=lambda: _nested(torch.jagged),
    quantized=lambda: torch.quantize_per_tensor(x, .1, 0, torch.qint8),
    wrapper=lambda: Scaled(x.to(torch.int8), torch.tensor(.1)), expanded=lambda: x[:,:1].expand(3, 4),
    bfloat16=_low(torch.bfloat16), complex32=_low(torch.complex32), float8=_low(torch.float8_e4m3fn),
    **({'float4': lambda: x.byte().view(torch.float4_e2m1fn_x2)} if hasattr(torch, 'float4_e2m1fn_x2') else {}))

def others(kind):
    "Tensors like `kinds[kind]()` with a change each"
    t = kinds[kind]()
    if kind=='coo': t._values()[1] += 1
    elif kind in ('csr','csc','bsr'): t.values()[1] += 1
    elif kind in ('nested','jagged'): t.values().view(-1)[1] += 1
    elif kind=='quantized': return [torch.quantize_per_tensor(o, s, 0, torch.qint8) for o,s in ((x, .3), (x+1, .1))]
    elif kind=='wrapper': return [Scaled(t.q+1, t.scale), Scaled(t.q, t.scale*2)]
    elif kind=='expanded': t = (x[:,:1]+1).expand(3, 4)
    else: t.view(torch.uint8).reshape(-1)[1] ^= 1
    return [t]

@pytest.mark.parametrize('kind', kinds)
def test_checksums_and_digests_know_every_kind(kind):
    a = kinds[kind]()
    assert digest(a)==digest(kinds[kind]()) is not None and checksum([a])==checksum([kinds[kind]()])
    for b in others(kind): assert digest(b)!=digest(a) and checksum([b])!=checksum([a])

@pytest.mark.parametrize('kind', [k for k in kinds if k!='wrapper'])
def test_values_of_every_kind_are_put_back(kind):
    for b in others(kind):
        t,old = kinds[kind](),kinds[kind]()
        put_values(t, b)
        assert has_values(t, b) and not has_values(t, old)
        put_values(t, old)
        assert has_values(t, old)

@pytest.mark.parametrize('name', ['value','hidden'])
@pytest.mark.parametrize('kind', kinds)
def test_a_model_has_tensors_of_every_kind(kind, name):
    "As an attribute or a buffer. Inference, a trial and an interrupt leave its weights as they were"
    want = weights(make(Net()).fit(2))
    def learner(): return make(Net(**{name: kinds[kind]()}))
    learn = learner()
    learn.lr_find(num_it=6, show_plot=False)
    learn.get_preds()
    assert same(weights(learn), weights(make(Net())))
    assert same(weights(learner().fit(2, cbs=Fingerprint())), want)
    learn = learner()
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise('before_draw', KeyboardInterrupt, 9))
    assert same(weights(learn.resume(cbs=[])), want)
    assert digest(getattr(learn.model, name))==digest(kinds[kind]())

@pytest.mark.parametrize('in_parts', [True, False])
@pytest.mark.parametrize('as_parameter', [True, False])
def test_a_jagged_tensor_that_inference_moves_is_put_back(as_parameter, in_parts):
    class Moving(Net):
        def forward(self, x):
            with torch.no_grad(): (self.ragged.values() if in_parts else self.ragged).add_(1)
            return super().forward(x)
    model = Moving()
    rows = nn.Parameter(kinds['jagged']()) if as_parameter else kinds['jagged']()
    model.register_parameter('ragged', rows) if as_parameter else model.register_buffer('ragged', rows)
    make(model).get_preds()
    assert model.ragged is rows and torch.equal(rows.values(), kinds['jagged']().values())

def test_what_is_not_contiguous_is_copied_in_its_own_type():
    "Not byte by byte, which takes several times as long"
    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            if f in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default): copied.append(args[0].dtype)
            return f(*args, **(kwargs or {}))
    images = torch.randn(2, 3, 4, 4)
    for t in (images.to(memory_format=torch.channels_last), images.mT, images[::2, :, 1:, ::3], images[:1, :1, :1, :1]):
        copied = []
        with Copies(): bits = bytes_of(t)
        assert torch.uint8 not in copied and bits.tobytes()==t.numpy().tobytes()

def test_weights_without_values_are_left_out_of_checksums():
    def model(**kwargs): return make(Net(**kwargs)).model
    assert Weights(model(hidden=torch.empty(3, device='meta'))).checksum()==Weights(model()).checksum()

@pytest.mark.parametrize('kind', ['coo','csr','nested','jagged'])
def test_batches_of_every_kind_have_a_fingerprint(kind):
    def convert(x, y):
        if kind in ('coo','csr'): return x.to_sparse() if kind=='coo' else x.to_sparse_csr()
        return torch.nested.nested_tensor([o[:2+int(n)] for o,n in zip(x, y)], 
            layout=torch.jagged if kind=='jagged' else torch.strided)
    def collate(samples):
        x,y = map(torch.stack, zip(*samples))
        return convert(x, y),y
    class Of(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(6, 3)
        def forward(self, x):
            if x.is_nested: x = torch.nested.to_padded_tensor(x, 0., output_size=(x.size(0), 6))
            return self.l(x.to_dense() if x.layout is not torch.strided else x)
    runs = [make(Of(), dls=data(collate)).fit(1, cbs=Fingerprint()) for _ in range(2)]
    assert not diff(*runs)
    inputs = runs[0].held_fingerprint.trail.columns['inputs'].values
    assert len({*inputs})==6

# Values in one place of memory
def test_an_expanded_buffer_is_restored_from_a_file(tmp_path):
    def learner(mask): return make(Net(hidden=mask), path=tmp_path)
    a = learner(torch.ones(1, 3).expand(4, 3)).fit(1)
    a.save_state('s')
    mask = torch.ones(1, 3).expand(4, 3)
    b = learner(mask).load_state('s')
    assert same(weights(a), weights(b)) and b.model.hidden is mask # it has the values already
    c = learner(torch.zeros(1, 3).expand(4, 3)).load_state('s')
    assert torch.equal(c.model.hidden, torch.ones(4, 3))

def test_an_expanded_buffer_that_moved_gets_memory_of_its_own():
    base = torch.ones(1, 3)
    t = base.expand(4, 3)
    held = HeldTensor(t)
    base.add_(1)
    held.restore()
    assert torch.equal(t, torch.ones(4, 3)) and torch.equal(base, torch.full((1, 3), 2.))

# Compiled parts
class Norm(nn.Module):
    def __init__(self): super().__init__(); self.l,self.bn = nn.Linear(6, 3),nn.BatchNorm1d(3)
    def forward(self, x): return self.bn(self.l(x))

class Around(nn.Module):
    def __init__(self, body): super().__init__(); self.body,self.head = body,nn.Linear(3, 3)
    def forward(self, x): return self.head(F.dropout(self.body(x), .2, self.training))

class LossNet(nn.Module):
    def __init__(self, net): super().__init__(); self.net = net
    def forward(self, pred, targ): return F.cross_entropy(self.net(pred), targ)

def loaded(m, path):
    torch.jit.save(torch.jit.script(m), path)
    return torch.jit.load(path)
compiled = dict(script=lambda m, path: torch.jit.script(m), trace=lambda m, path: torch.jit.trace(m, torch.randn(4, 6)),
    load=loaded)
def body(): torch.manual_seed(1); return Norm()
def values(learn): return {k:v.clone() for k,v in learn.model.state_dict().items()}
def equal(a, b): return a.keys()==b.keys() and all(torch.equal(v, b[k]) for k,v in a.items())
pytestmark = pytest.mark.filterwarnings('ignore:.*torch.jit:DeprecationWarning')

@pytest.mark.parametrize('how', compiled)
def test_a_compiled_part_trains_and_is_put_back(how, tmp_path):
    def learner(i=0):
        part = compiled[how](body(), tmp_path/f'{i}.pt')
        torch.manual_seed(2)
        return Learner(data(), Around(part), F.cross_entropy, lr=.1, path=tmp_path).remove_cb(ProgressCallback)
    learn = learner()
    before = values(learn)
    learn.validate()
    learn.lr_find(num_it=6, show_plot=False)
    assert equal(values(learn), before)
    torch.manual_seed(3)
    want = values(learner().fit(2, cbs=Fingerprint()))
    assert not equal(want, before)
    torch.manual_seed(3)
    learn = learner(1)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise('before_draw', KeyboardInterrupt, 9))
    learn.save_state('s')
    assert equal(values(learn.resume(cbs=[])), want)
    assert equal(values(learner(2).load_state('s').resume(cbs=[])), want)

@pytest.mark.parametrize('how', compiled)
def test_inference_leaves_the_buffers_of_a_compiled_part(how, tmp_path):
    "Even of one that moves them in evaluation"
    net = Norm()
    net.bn.train()
    part = compiled[how](net, tmp_path/'a.pt')
    learn = Learner(data(), Around(part), F.cross_entropy, lr=.1)
    class Train(Callback):
        order = 100
        def before_validate(self): part.train()
    before = values(learn)
    learn.validate(cbs=Train())
    assert equal(values(learn), before)

def test_a_loss_may_be_compiled():
    want = weights(make(Net()).fit(1))
    assert same(weights(make(Net(), torch.jit.script(nn.CrossEntropyLoss())).fit(1)), want)
    torch.manual_seed(1)
    learn = make(Net(), LossNet(torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3))))
    was = [p.clone() for p in learn.loss_func.parameters()]
    learn.validate()
    assert same(was, [*learn.loss_func.parameters()])
    learn.fit(1)
    assert not same(weights(learn), weights(make(Net())))

def test_files_cannot_hold_float8(tmp_path):
    with pytest.raises(ValueError, match='float8_e4m3fn, which `.npy` files cannot hold'):
        make(Net()).get_preds(act=lambda o: o.to(torch.float8_e4m3fn), save_preds=tmp_path/'p.npy')
