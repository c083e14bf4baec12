"Edges of `Fingerprint` and `diff`: what a run can do without, where fingerprints come from, and what is said"
import copy,gc,pickle,random,warnings,weakref
import numpy as np,pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.compare.fingerprint import Setup,Trail
from learner.diagnose.checksums import Weights,checksum,checksum_of_batch
from small_fits import mk

def data(n=24):
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 3, generator=g), torch.randint(0, 2, (n,), generator=g))
def make(*cbs, dl=None, seed=1, **kwargs):
    learn = mk(*cbs, data=DataLoaders(DataLoader(data(), 4, shuffle=True) if dl is None else dl, device='cpu'),
        **kwargs)
    torch.manual_seed(seed)
    return learn
def fitted(*cbs, n=2, **kwargs): return make(*cbs, **kwargs).fit(n, cbs=Fingerprint())

def test_equal_runs_are_equal():
    d = diff(fitted(), fitted())
    assert (not d and (d.step, d.kind, d.evidence, d.idle, d.n)==(None, None, [], [], 12)
        and 'equal in 12 training batches' in repr(d))

def test_a_longer_run_is_no_difference():
    assert not diff(fitted(n=1), fitted(n=3))

def test_fingerprints_change_nothing():
    assert all(map(torch.equal, fitted().model.parameters(), make().fit(2).model.parameters()))

@pytest.mark.parametrize('dtype',
    [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize('shape', [(), (3,), (0,), (5,7)], ids=str)
def test_checksums_know_every_type(dtype, shape):
    t = torch.ones(shape, dtype=dtype)
    assert checksum([t])==checksum([t.clone()])
    if t.numel(): assert checksum([t])!=checksum([torch.zeros_like(t)])
    assert checksum([torch.arange(6.).view(2,3).t()])==checksum([torch.arange(6.).view(2,3).t().contiguous()])

@pytest.mark.parametrize('device', ['cpu','meta'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.bool, torch.complex64], ids=str)
def test_a_column_of_a_batch_has_a_checksum(dtype, device):
    "As the target is if `split` gives `b[:,0]`; its memory has gaps, or the same value several times"
    t = torch.tensor([[0.,1.],[2.,3.],[0.,5.]]).to(dtype).to(device)
    views = [t[:,0], t[:,1], t[:1,0], t[:0,0], t[0,:1].expand(3), t.T, *([t[:,0].conj(), t[0].conj().imag] if
        t.is_complex() else [])]
    for v in views:
        a,b = checksum([v]),checksum([v.clone(memory_format=torch.contiguous_format)])
        if device=='cpu': assert a==b
        else: assert a.dtype==torch.int64 and not a.ndim # not every device has doubles

def test_the_gpu_of_a_run_is_that_of_its_learner(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device=None: f'the card {device}')
    learn = make()
    learn.create_opt()
    assert 'gpu' not in Setup.of(learn).machine
    monkeypatch.setattr(Learner, 'device', torch.device('cuda:1'))
    assert Setup.of(learn).machine['gpu']=='the card cuda:1'

def test_all_that_is_in_a_batch_counts():
    x,y = torch.ones(2),dict(a=[torch.zeros(1)], name=['u','v'])
    one = checksum_of_batch((x,), (y,))
    assert one==checksum_of_batch((x,), (y,))
    assert one not in (checksum_of_batch((x,), (dict(y, name=['u','w']),)),
        checksum_of_batch((x,), (dict(y, a=[torch.ones(1)]),)), checksum_of_batch((x+1,), (y,)))

class Graph:
    "An object with tensors, as graphs are: it refers to itself, too"
    def __init__(self, x, name='a'): self.x,self.store,self.me = x,dict(name=name),self

@pytest.mark.parametrize('a,b', [(Graph(torch.ones(2)), Graph(torch.ones(2)*1.1)), (Graph(1), Graph(1, 'b')),
    ([Graph(1)], [Graph(2)]), (np.float32(1), np.float32(2)), (1j, 2j), ({1,2}, {1,3}),
    (np.array(['u','v']), np.array(['u','w'])), (np.array([1,[2]], object), np.array([1,[3]], object)),
    (np.array(['2020','2021'], 'M8[Y]'), np.array(['2020','2022'], 'M8[Y]')),
    (np.arange(3)[::-1], np.arange(1, 4)[::-1]), (np.arange(3.).astype('>f4'), np.arange(1., 4).astype('>f4')),
    ({Graph(1),Graph(2)}, {Graph(1),Graph(3)})], ids=['object','its attribute','in a list','numpy scalar','complex',
    'set','texts','array of objects','dates','backwards','big-endian','set of objects'])
def test_other_values_of_any_kind_have_another_checksum(a, b):
    x = torch.ones(2)
    assert checksum_of_batch((x,), (a,))==checksum_of_batch((x,), (copy.deepcopy(a),))!=checksum_of_batch((x,), (b,))

def test_modules_and_long_chains_in_a_batch_are_left_out():
    class Holds:
        def __init__(self, **kwargs): vars(self).update(kwargs)
    chain = Holds(x=1)
    for _ in range(3000): chain = Holds(next=chain)
    x = torch.ones(2)
    assert checksum_of_batch((x,), (Holds(lib=np, chain=chain),))==checksum_of_batch((x,), (Holds(),))
    assert checksum_of_batch((x,), (Holds(lib=np, y=x),))!=checksum_of_batch((x,), (Holds(lib=np, y=x+1),))

def test_an_order_that_differs_names_the_samples():
    d = diff(fitted(dl=DataLoader(data(), 4)), fitted(dl=DataLoader(data(), 4, sampler=[1,0,*range(2, 24)])))
    assert ((d.step, d.kind)==(0, 'data')
        and 'same samples are in another order: 0, 1, 2, 3 in a, and 1, 0, 2, 3 in b' in repr(d))
    d = diff(fitted(dl=DataLoader(data(), 4)),
        fitted(dl=DataLoader(data(), 4, sampler=[*range(5), 9, 6, 7, 8, 5, *range(10, 24)])))
    assert (d.step, d.kind)==(1, 'data') and 'samples 5 are in a only; samples 9 are in b only' in repr(d)

def test_another_batch_size_is_data():
    d = diff(fitted(), fitted(dl=DataLoader(data(), 8, shuffle=True)))
    assert (d.step, d.kind)==(0, 'data') and '`batch_size` is 4 in a, and 8 in b' in repr(d)

def test_another_seed_is_a_random_stream_before_training():
    d = diff(fitted(), fitted(seed=2))
    assert d.kind=='random stream'

def test_other_weights_before_training():
    a,b = fitted(),make()
    with torch.no_grad(): b.model[0].bias[0] += 1
    d = diff(a, b.fit(1, cbs=Fingerprint()))
    assert (d.step, d.kind, d.at)==(0, 'weights', None) and 'before the first training batch: weights' in repr(d)

def test_the_group_of_a_hyper_parameter_is_named():
    def split(m): return [list(m[0].parameters()), list(m[2].parameters())]
    def change(learn):
        if learn.train_iter in when: learn.set_hyper('lr', [.1, .3])
    when = set()
    a = fitted(on('before_batch')(change), splitter=split)
    when = {5}
    d = diff(a, fitted(on('before_batch')(change), splitter=split))
    assert (d.step, d.kind)==(5, 'hyper-parameter') and d.evidence[0]=='`lr` of group 1 is 0.1 in a, and 0.3 in b'

def test_a_callback_in_one_run_only():
    class Add(Callback):
        def before_step(self): self.learn.model[0].bias.grad.add_(1)
    d = diff(fitted(), fitted(Add))
    assert (d.step, d.kind)==(0, 'code') and '`add` is in b only' in repr(d)
    assert not diff(fitted(), fitted(Trace)) # it only watches

def test_settings_of_callbacks_and_losses():
    d = diff(fitted(GradientClip(1e-3)), fitted(GradientClip(1e-4)))
    assert ((d.step, d.kind)==(0, 'hyper-parameter')
        and '`callbacks.gradient_clip.max_norm` is 0.001 in a, and 0.0001 in b' in repr(d))
    d = diff(*(fitted(loss_func=nn.CrossEntropyLoss(label_smoothing=o)) for o in (0., .1)))
    assert (d.step, d.kind)==(0, 'hyper-parameter') and 'label_smoothing' in repr(d)

def test_code_that_cannot_be_the_cause_is_not_accused():
    def other(pred, y): return F.cross_entropy(pred, y)
    d = diff(fitted(loss_func=F.cross_entropy), fitted(loss_func=other, dl=DataLoader(data(), 4)))
    assert d.kind in ('data','random stream') and any('other' in o for o in d.idle)

def test_changed_code_without_effect_is_no_difference():
    def loss(pred, y): return F.cross_entropy(pred, y)
    a = fitted(loss_func=loss)
    def loss(pred, y): return 1*F.cross_entropy(pred, y)
    d = diff(a, fitted(loss_func=loss))
    assert not d and any('loss' in o for o in d.idle) and 'without effect so far' in repr(d)

def test_the_changed_line_is_named():
    class Fix(Callback):
        run_valid = False
        def before_step(self):
            k = 1.
            self.learn.model[0].weight.grad.mul_(k)
    a = fitted(Fix)
    class Fix(Callback):
        run_valid = False
        def before_step(self):
            k = 2.
            self.learn.model[0].weight.grad.mul_(k)
    d = diff(a, fitted(Fix))
    assert (d.step, d.kind)==(0, 'code') and 'in `before_step`: `k = 1.` in a and `k = 2.` in b' in d.evidence[0]

@pytest.mark.filterwarnings('ignore:The run was stopped in the middle')
def test_a_run_has_one_fingerprint_however_often_it_was_stopped(tmp_path):
    whole = fitted()
    cut = make(path=tmp_path)
    for n in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            cut.fit(2, cbs=[Fingerprint(), Checkpoint(every=1, unit='iter'),
                Raise('before_draw', KeyboardInterrupt, n)], resume='auto')
        cut = make(path=tmp_path, seed=7) # as in another process
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        cut.fit(2, cbs=[Fingerprint(), Checkpoint(every=1, unit='iter')], resume='auto')
    assert not diff(whole, cut) and diff(whole, cut).n==12
    assert whole.held_fingerprint.trail.state_dict()['columns']['at'][0].tolist(
        )==cut.held_fingerprint.trail.state_dict()['columns']['at'][0].tolist()

@pytest.mark.filterwarnings('ignore:The run was stopped in the middle')
def test_an_interrupted_fit_continues_its_fingerprint():
    whole,cb = fitted(),Fingerprint()
    cut = make(cb)
    with pytest.raises(KeyboardInterrupt): cut.fit(2, cbs=Raise('before_draw', KeyboardInterrupt, 5))
    cut.resume(cbs=())
    assert not diff(whole, cut) and len(cb.trail)==13

def test_files(tmp_path):
    learn = make(path=tmp_path).fit(1, cbs=[Fingerprint(file='a'), Checkpoint()])
    assert not diff('a', learn) and not diff(tmp_path/'models'/'a.pth', tmp_path/'models'/'a.pth')
    state = next((tmp_path/'checkpoints').glob('*.pt'))
    assert diff(state, learn).n==6 and not diff(learn, state)
    learn.save('weights')
    with pytest.raises(ValueError, match=r'has no fingerprint: .*Fingerprint\(file=…\)'): diff('weights', learn)
    with pytest.raises(FileNotFoundError): diff('b', learn)

def test_a_file_is_written_even_after_an_error(tmp_path):
    learn = make(path=tmp_path)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1, cbs=[Fingerprint(file='a'), Raise('before_batch', ZeroDivisionError, 4)])
    d = diff('a', fitted(path=tmp_path))
    assert not d and d.n==3

def test_what_has_no_fingerprint_says_what_to_do():
    with pytest.raises(ValueError, match=r'cbs=Fingerprint\(\)'): diff(make().fit(1), fitted())
    with pytest.raises(ValueError, match='has not gone back'): diff(fitted())
    with pytest.raises(ValueError, match='`weights` is 1 or more'): Fingerprint(weights=0)
    with pytest.raises(ValueError, match='format 0'): Trail.from_state(dict(format=0))

def test_rare_checksums_of_weights_and_no_ids():
    cb = Fingerprint(weights=4, ids=False)
    learn = make().fit(2, cbs=cb)
    assert not diff(learn, fitted())
    assert ([len(cb.trail.columns['weights'][i]) for i in range(13)]==[1,0,0,0,1,0,0,0,1,0,0,0,1]
        and all(len(cb.trail.columns['ids'][i])==1 for i in range(1, 13)))

def test_accumulated_and_cancelled_batches():
    def cbs(skip): return [GradientAccumulation(8), on('before_batch')(lambda learn: skip_if(learn, skip))]
    def skip_if(learn, n):
        if learn.train_iter==n: raise CancelBatchException
    assert not diff(fitted(*cbs(4)), fitted(*cbs(4)))
    d = diff(fitted(*cbs(5)), fitted(*cbs(9)))
    assert d.step==5 and 'in b only' in repr(d)

def test_a_trail_is_copied_in_constant_time():
    learn = fitted(n=1)
    cb = learn.held_fingerprint
    shot = cb.state_snapshot()
    before = cb.state_dict()
    cb.trail.append(dict(at=[6, 1, 0]))
    def columns(state): return {k:[o.tolist() for o in v] for k,v in state['columns'].items()}
    assert columns(shot.state_dict())==columns(before)

def test_a_step_after_the_last_batch_of_an_epoch_has_a_row():
    "Without a length, the end of an epoch is known when no batch comes any more"
    from small_fits import NoLength
    when = set()
    def change(learn):
        if learn.train_iter in when: learn.set_hyper('lr', .3)
    def run(): return fitted(GradientAccumulation(16), on('before_batch')(change), dl=NoLength(DataLoader(data(), 4)))
    a = run()
    assert 5.5 in a.held_fingerprint.trail.columns['at'].values and not diff(a, run())
    when = {5}
    d = diff(a, run())
    assert (d.step, d.kind)==(5, 'hyper-parameter')

# Code that takes part by way of other code
def of_source(code, name, **names):
    "What `name` is after `code` was run as a module of one's own would be; its source is found"
    import linecache
    file = f'<{hash(code)}>'
    linecache.cache[file] = len(code),None,code.splitlines(True),file
    here = dict(__name__='mine', F=F, nn=nn, torch=torch, Callback=Callback) | names
    exec(compile(code, file, 'exec'), here)
    return here[name]

LOSS = '''
POWER = {power}
def inner(x): return {inner}*x
def helper(x): return inner(x)
def loss(p, y): return helper(F.cross_entropy(p, y))*POWER
'''
DATA = '''
class Scale:
    def __init__(self, k): self.k = k
    def __call__(self, x): return self.k*x*{scale}
def shift(x): return x+{shift}
class Data(torch.utils.data.Dataset):
    def __init__(self, base): self.base,self.transforms = base,[Scale(1.), [shift]]
    def __len__(self): return len(self.base)
    def __getitem__(self, i):
        x,y = self.base[i]
        return self.transforms[1][0](self.transforms[0](x)),y
def collate(batch):
    x,y = torch.utils.data.default_collate(batch)
    return x*{collate},y
'''
@pytest.mark.parametrize('change,culprit,line',
    [(dict(power=2.), 'loss', 'POWER = 2.0'), (dict(inner=2.), 'inner', 'return 2.0*x')], ids=str)
def test_helpers_and_constants_of_a_loss(change, culprit, line):
    a,b = (fitted(loss_func=of_source(LOSS.format(**dict(power=1., inner=1.)|o), 'loss')) for o in ({}, change))
    d = diff(a, b)
    assert ((d.step, d.kind)==(0, 'code') and f'`{culprit}` (loss_func) differs' in d.evidence[0]
        and line in d.evidence[0])
    assert len([o for o in d.evidence if 'differs' in o and 'loss_func' in o])==1

@pytest.mark.parametrize('change,culprit',
    [(dict(scale=2.), '`Scale` (dataset)'), (dict(shift=1.), '`shift` (dataset)'),
        (dict(collate=2.), '`collate` (loader)')], ids=str)
def test_transforms_in_the_dataset_and_the_loader(change, culprit):
    def run(**change):
        code = DATA.format(**dict(scale=1., shift=0., collate=1.)|change)
        return fitted(dl=DataLoader(of_source(code, 'Data')(data()), 4, shuffle=True,
            collate_fn=of_source(code, 'collate')))
    d = diff(run(), run(**change))
    assert (d.step, d.kind)==(0, 'code') and culprit in d.evidence[0] and not diff(run(**change), run(**change))

def test_functions_that_callbacks_were_given():
    def run(k): return fitted(MapBatch(of_source(f'def twice(b): return b[0]*{k},b[1]', 'twice')))
    d = diff(run(1.), run(2.))
    assert (d.step, d.kind)==(0, 'code') and '`twice` (map_batch)' in d.evidence[0]

def test_a_helper_in_a_module_of_ones_own():
    import types
    def run(k):
        mod = types.ModuleType('helpers')
        exec(f'def scale(x): return x*{k}', vars(mod))
        vars(mod)['scale'].__module__ = 'helpers'
        return fitted(loss_func=of_source('def loss(p, y): return helpers.scale(F.cross_entropy(p, y))', 'loss',
            helpers=mod))
    d = diff(run(1.), run(2.))
    assert (d.step, d.kind)==(0, 'code') and '`scale` (loss_func)' in d.evidence[0]

def test_what_functions_count_is_no_code():
    code = '''
n = 0
def count():
    global n
    n += 1
def loss(p, y):
    count()
    return F.cross_entropy(p, y) + 0*n
'''
    a,b = (fitted(loss_func=of_source(code, 'loss')) for _ in range(2))
    assert a.loss_func.__globals__['n']>0
    c = fitted(loss_func=a.loss_func)
    assert not diff(a, b) and not diff(a, c) and not diff(a, c).idle

def test_functions_of_libraries_are_not_followed():
    from learner.resume.origin import definitions
    learn = make(loss_func=of_source(
        'import sklearn.metrics\ndef loss(p, y): return F.cross_entropy(p, y)+0*(sklearn.metrics is None)', 'loss'))
    assert [name for name,role,_ in definitions(learn) if role!='opt_func']==['`loss` (loss_func)']

def test_weights_that_move_to_other_memory():
    """Their arrays are kept, so a parameter with other memory, size or type, and a buffer that is replaced, must be
    noticed"""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    held = Weights(model)
    def now():
        res = held.checksum()
        assert res==Weights(model).checksum()==checksum(
            [t for m in model.modules() for o in (m._parameters, m._buffers) for t in o.values()])
        return res
    seen = [now()]
    with torch.no_grad(): model[0].weight[1,1] += 1
    seen.append(now())
    model[0].weight.data = torch.ones(4, 3)
    seen.append(now())
    model[0].weight.data = torch.arange(12.).view(3, 4).t()
    seen.append(now())
    model[1].running_mean = torch.ones(4)
    seen.append(now())
    model[0].bias.data = torch.zeros(2)
    seen.append(now())
    model.bfloat16()
    seen.append(now())
    assert len({*seen})==7
    assert Weights(nn.Sequential(nn.LazyLinear(3))).checksum() is None

def first_buffer(m, v): m.register_buffer('mean', torch.full((3,), v)) # the container has none so far
def other_layer(m, v):
    m[2] = nn.Linear(8, 2)
    m[2].weight.data.fill_(v)
def inner_layer(m, v): m[1].scale = nn.PReLU(init=v) # of a layer without any
class Late(Callback):
    "Stands for something outside, which is no setting"
    watches = True
    def __init__(self, change, v): self.change,self.v = change,v
    def after_batch(self):
        if self.training and self.train_iter==8: self.change(self.model, self.v) # of twelve, in the second epoch
@pytest.mark.filterwarnings('ignore:.*came into the model')
@pytest.mark.parametrize('change', [first_buffer, other_layer, inner_layer])
def test_what_comes_into_the_model_during_an_epoch_counts(change):
    a,b,c = (fitted(Late(change, v)) for v in (1., 1., 2.))
    d = diff(a, c)
    assert not diff(a, b) and d.step==7 and 'the weights differ after the batch' in d.evidence

def test_a_layer_that_is_added_may_have_no_weights_yet():
    model = nn.Sequential(nn.Linear(3, 2))
    held = Weights(model)
    before = held.checksum()
    model.append(nn.LazyLinear(4))
    assert held.checksum() is None
    model(torch.ones(2, 3))
    assert held.checksum()==Weights(model).checksum()!=before

class Valued(nn.Linear):
    "Is equal by its values, as a data class is"
    def __eq__(self, other): return self.weight==other.weight
    __hash__ = nn.Module.__hash__
def test_layers_that_compare_by_value_may_be_replaced():
    model = nn.Sequential(Valued(3, 2))
    held = Weights(model)
    before = held.checksum()
    model[0] = Valued(3, 2)
    assert held.checksum()==Weights(model).checksum()!=before

def changes_of(t):
    "Tensors like `t` with a small change each"
    flat = t.reshape(-1)
    for i in (0, len(flat)//2, len(flat)-1):
        res = flat.clone()
        res[i] += 1
        yield res
    yield flat.flip(0)
    yield flat.roll(1)
    yield torch.cat([flat[:-1], flat[-1:]*2])

@pytest.mark.parametrize('n', [4095, 8191, 32_767, 32_768, 32_769, 200_001])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_checksums_of_large_tensors_read_every_value(n, dtype):
    t = (torch.arange(n)%251+1).to(dtype)
    sums = [checksum([o]) for o in (t, *changes_of(t))]
    assert len({*sums})==len(sums) and checksum([t.clone()])==sums[0]

@pytest.mark.parametrize('shape', [(3,32,32), (1,28,28), (3,224,224), (64,), (512,), (768,)], ids=str)
def test_checksums_notice_samples_in_another_order(shape):
    x = torch.randn(16, *shape)
    for i,j in ((0, 1), (3, 11), (7, 15)):
        order = list(range(16))
        order[i],order[j] = j,i
        assert checksum([x])!=checksum([x[order]])

def test_frozen_layers_are_a_setting():
    "The loss of the first batch is the same, and some of its gradients are not there"
    a,b = fitted(),make()
    b.model[0].requires_grad_(False)
    d = diff(a, b.fit(2, cbs=Fingerprint()))
    assert (d.step, d.kind)==(0, 'hyper-parameter')
    assert d.evidence[0].startswith('4 tensors have gradients in a, and 2 in b')

def test_class_weights_of_a_loss_are_weights():
    a,b = (fitted(loss_func=nn.CrossEntropyLoss(weight=torch.tensor([1.,w]))) for w in (1., 2.))
    d = diff(a, b)
    assert (d.kind, d.at)==('weights', None) and 'of model or loss differ before training' in d.evidence[0]

class Drawing(TensorDataset):
    "Draws a number for each sample, which changes nothing"
    def __getitem__(self, i): torch.rand(1); return super().__getitem__(i)

def test_a_setting_of_the_loader_may_move_a_generator():
    "Workers draw for themselves: inputs are the same, and dropout is not"
    def run(n):
        torch.manual_seed(0) # the same weights
        dl = DataLoader(Drawing(*data().tensors), 4, num_workers=n)
        return fitted(dl=dl, model=nn.Sequential(nn.Linear(3, 4), nn.Dropout(.5), nn.Linear(4, 2)), n=1)
    d = diff(run(0), run(1))
    assert d.kind=='data' and d.evidence[0]=='`num_workers` is 0 in a, and 1 in b'

def test_a_run_that_went_back_is_known_as_far_as_it_had_come():
    "Until it takes another course: then only what it is now counts"
    def run(): return make().fit(2, cbs=[Fingerprint(), Rewind(every=4)])
    a,b = run(),run()
    b.rewind(8)
    b.resume(lr=.02)
    assert diff(a, b).step==8
    for n in (10, 8, 9): a.rewind(n) # at a held point, and between two of them
    assert diff(a, b).step==8 and diff(a, a).n==12
    d = diff(a) # it has only gone back so far
    assert not d and d.n==9
    a.resume(lr=.03)
    assert diff(a).step==9 and diff(a, b).step==8 and diff(run(), a).step==9

def test_a_scheduler_that_is_removed_takes_its_hyper_parameters_along():
    schedule,cb = TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1)),Fingerprint()
    leave = on('after_batch')(lambda learn: learn.remove_cb(schedule) if learn.train_iter==2 else None)
    synth_learner(4, 1, cbs=[schedule, cb, leave]).fit(1)
    assert len(cb.trail)==5 # with the weights at the end

def last_hypers(learn):
    trail = learn.held_fingerprint.trail
    return [*trail.columns['hypers'][len(trail)-1]]

class AddsGroup(Callback):
    def before_epoch(self):
        if self.epoch==1: self.opt.add_param_group(dict(params=[*self.model[0].parameters()], lr=.02))
@pytest.mark.parametrize('own', [True, False])
def test_a_group_that_is_added_in_a_fit_has_its_hyper_parameters(own, tmp_path):
    def run(*cbs):
        learn = make(splitter=lambda m: [*m[2].parameters()], path=tmp_path)
        with silence('optimizer'): return learn.fit(2, cbs=[*cbs, Fingerprint() if own else RunCard()])
    learn = run(AddsGroup())
    if not own: assert cards(tmp_path/'runs')[0].rows and len(learn.opt.param_groups)==2; return
    assert last_hypers(learn)==[.1, .9, 0., .02, .9, 0.]
    d = diff(run(), learn)
    assert d.step==6 and 'there are 3 hyper-parameters in a, and 6 in b' in d.evidence

class Switches(Callback):
    def __init__(self, at, opt): self.at,self.made = at,opt
    def _switch(self):
        if self.train_iter==7 and self.training: self.learn.opt = self.made(self.model.parameters(), lr=.003)
    def before_batch(self): self.at=='before_batch' and self._switch()
    def after_backward(self): self.at=='after_backward' and self._switch()
@pytest.mark.parametrize('at', ['before_batch','after_backward'])
def test_another_optimizer_in_a_fit_has_its_hyper_parameters(at):
    assert last_hypers(fitted(Switches(at, torch.optim.SGD)))[:2]==[.003, 0.]
    adam = fitted(Switches(at, torch.optim.Adam))
    assert last_hypers(adam)==[.003, .9, .999, 0., 1e-8]
    trail = adam.held_fingerprint.trail
    assert [o.hypers for _,o in trail.setups]==[['lr','mom','wd'], ['lr','mom','sqr_mom','wd','eps']]

def test_another_source_of_numpys_numbers_is_noticed():
    "Its memory is somewhere else, and one that is let go may leave its place to the next"
    from learner.data.generators import numpy_state,same_state
    old,seen = np.random.get_bit_generator(),[numpy_state()]
    try:
        for cls,seed in (np.random.MT19937, 1),(np.random.MT19937, 2),(np.random.PCG64, 1),(np.random.PCG64, 2):
            np.random.set_bit_generator(cls(seed))
            for _ in range(2):
                seen.append(numpy_state())
                assert same_state(seen[-1], numpy_state())
                np.random.rand()
    finally: np.random.set_bit_generator(old)
    assert same_state(seen[0], numpy_state())
    assert not any(same_state(a, b) for i,a in enumerate(seen) for b in seen[:i])

class Planned(Callback):
    "Draws from Python's generator, and sets a learning rate, at batches that are no setting"
    run_valid = False
    def before_batch(self):
        if self.train_iter in self.plan['draw']: random.random()
        if self.train_iter in self.plan['lr']: self.learn.set_hyper('lr', .3)

def apart(draw=(), lr=(), **kwargs):
    "A run that begins with another state of Python's generator than any other run, as in another process"
    cb = Planned()
    cb.plan = dict(draw=draw, lr=lr)
    random.seed(None)
    return fitted(cb, **kwargs)

def test_a_generator_from_which_no_run_draws_is_no_cause():
    "Scripts rarely seed Python's, so it differs between any two processes"
    a,said = apart(),['`python` is in another state, and neither run draws from it']
    d = diff(a, apart())
    assert (bool(d), d.n, d.idle)==(False, 12, said)
    d = diff(a, apart(lr=[7]))
    assert (d.step, d.kind, d.n, d.idle)==(7, 'hyper-parameter', 7, said)
    d = diff(a, apart(seed=2))
    assert (d.kind, d.at, d.evidence, d.idle)==('random stream', None, ['`torch` is in another state'], said)

@pytest.mark.parametrize('a,b', [([5], [5]), ([], [5])], ids=['in both','in one'])
def test_a_generator_that_differs_is_the_cause_once_a_run_draws_from_it(a, b):
    d = diff(apart(a), apart(b, lr=[9]))
    assert (d.kind, d.at, d.evidence, d.idle)==('random stream', None, ['`python` is in another state'], [])

# What is said of seeds, lengths and files
def begun(seed, n=1, path='.', **kwargs):
    learn = synth_learner(2, seed=seed, dls=synth_dls(2, seed=0), path=path)
    return learn.fit(n, cbs=Fingerprint(**kwargs))

def test_other_weights_of_another_seed_name_its_generator():
    d = diff(begun(1), begun(2))
    assert (d.kind, d.at, d.idle)==('weights', None, [])
    assert '`torch` is in another state: is the same seed set' in d.evidence[0]

def test_runs_of_different_lengths_say_which_is_longer():
    a,b = begun(1),begun(1, 3)
    d = diff(a, b)
    assert (bool(d), d.n, d.more, repr(d))==(False, 2, (0, 4),
        'The runs are equal in 2 training batches, and b has 4 more')
    assert diff(b, a).more==(4, 0) and diff(a, begun(1)).more==(0, 0) and 'more' not in repr(diff(a, begun(1)))

def test_names_of_files_are_looked_for_in_one_way(tmp_path, monkeypatch):
    "In the folder of weights, with a learner and without one, and then in the current folder"
    monkeypatch.chdir(tmp_path)
    learn,_ = begun(1, file='monday'),begun(1, file='tuesday')
    assert (tmp_path/'models'/'monday.pth').is_file()
    whole = tmp_path/'models/monday'
    for a,b in (('monday', learn), ('monday', 'tuesday'), ('models/monday', learn), (whole, learn)):
        assert not diff(a, b) and not diff(b, a)
    other = begun(1, path=tmp_path/'other')
    with pytest.raises(FileNotFoundError) as e: diff('monda', learn)
    assert all(f'`{tmp_path/o}`' in str(e.value) for o in ('models/monda.pth','monda.pth'))
    assert 'Did you mean `monday.pth`' in str(e.value)
    (tmp_path/'other/models').mkdir(parents=True)
    (tmp_path/'models/monday.pth').rename(tmp_path/'other/models/monday.pth')
    assert not diff('monday', other) and not diff(other, 'monday') and not diff('other/models/monday', 'tuesday')

# One instance in fits of two learners
def test_runs_that_share_a_fingerprint_are_told_apart():
    cb = Fingerprint()
    a,b = make().fit(1, cbs=cb),make().fit(1, lr=.01, cbs=cb)
    d = diff(a, b)
    assert (d.step, d.kind)==(0, 'hyper-parameter') and not diff(a, fitted(n=1)) and not diff(b, cb)
    a.fit(1, lr=.05, cbs=cb)
    assert diff(a, b) and not diff(b, make().fit(1, lr=.01, cbs=Fingerprint()))

@pytest.mark.filterwarnings('ignore:The run was stopped in the middle')
def test_a_stopped_run_takes_back_the_fingerprint_that_another_has_used():
    cb,a = Fingerprint(),make()
    with pytest.raises(KeyboardInterrupt): a.fit(2, cbs=[cb, Raise('before_draw', KeyboardInterrupt, 5)])
    b = make(seed=3).fit(1, cbs=cb)
    a.resume()
    assert diff(a, fitted()).n==12 and not diff(a, fitted()) and not diff(b, make(seed=3).fit(1, cbs=Fingerprint()))

class Uncopied(nn.Module):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l,self.act = nn.Linear(3, 2),lambda x: x.relu()
    def forward(self, x): return self.act(self.l(x))
@pytest.mark.parametrize('cb', [Fingerprint(), RunCard()], ids=['fingerprint','card'])
def test_a_fingerprint_holds_no_model_when_the_fit_is_over(cb, tmp_path):
    learn = make(model=Uncopied(), path=tmp_path).fit(1, cbs=cb)
    model,own = weakref.ref(learn.model),learn.held_fingerprint
    assert not diff(learn, pickle.loads(pickle.dumps(own)))
    del learn
    gc.collect()
    assert model() is None and len(own.trail)==7

# Data and loaders of validation, and what batches look like
def wrong(ds, i):
    x,y = (o.clone() for o in ds.tensors)
    y[i] = 1-y[i]
    return TensorDataset(x, y)
def validating(train=data(), valid=data(), bs=4, n=3, lr=.1, cbs=()):
    dls = DataLoaders(DataLoader(train, 4), DataLoader(valid, bs), device='cpu')
    torch.manual_seed(1)
    return mk(data=dls).fit(n, lr=lr, cbs=[Fingerprint(), *cbs])

def test_samples_of_validation_explain_a_schedule_that_follows_its_results():
    def run(valid): return validating(valid=valid, n=5, cbs=[ReduceLROnPlateau(monitor='valid_loss', patience=1)])
    a,b = run(data()),run(wrong(data(), slice(None)))
    d = diff(a, b)
    assert d.kind=='hyper-parameter' and d.at[1]==0 and d.evidence[0].startswith('`lr` of group 0')
    assert d.evidence[1]=='`valid.dataset.tensors[1]` has other entries in b than in a' and not d.idle

def test_samples_of_validation_explain_nothing_else():
    words = '`valid.dataset.tensors[1]` has other entries in b than in a'
    other = wrong(data(), 0)
    d = diff(validating(), validating(valid=other, lr=.2))
    assert (d.step, words in d.idle)==(0, True) # no validation has run
    d = diff(validating(), validating(other, other)) # the inputs differ
    assert (d.step, d.kind, words in d.idle)==(0, 'data', True)

@pytest.mark.parametrize('cbs, valid_first', [((), False), ([Validate(1, 'iter')], True)])
def test_a_loader_of_validation_is_no_cause_before_it_is_used(cbs, valid_first):
    d = diff(validating(cbs=cbs), validating(wrong(data(), 10), bs=8, cbs=cbs))
    sizes = ['`bs.valid` is 4 in a, and 8 in b','`n_batches.valid` is 6 in a, and 3 in b']
    assert d.step==2 and (d.evidence if valid_first else d.idle)[:2]==sizes
    assert (d.kind=='data') is not valid_first

def test_a_run_card_knows_when_a_validation_has_run(tmp_path):
    cb = RunCard(tmp_path)
    assert validating(cbs=[cb]).held_fingerprint.trail.validated==7 # a row before training, and six batches
    mk(data=DataLoaders(DataLoader(data(), 4), DataLoader(data(), 4), device='cpu')).fit(1, cbs=cb)
    assert cb.taken.trail.validated==7

class Narrow(nn.Module):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.l = nn.Linear(1, 2)
    def forward(self, x): return self.l(x.flatten(1)[:,:1]+x.shape[1])
def of_shape(*shape):
    g = torch.Generator().manual_seed(0)
    ds = TensorDataset(torch.randn(24, 6, generator=g).view(24, *shape), torch.randint(0, 2, (24,), generator=g))
    return fitted(dl=DataLoader(ds, 4), model=Narrow(), n=1)

def test_another_shape_of_the_same_values_is_data():
    d = diff(of_shape(2, 3), of_shape(3, 2))
    assert (d.step, d.kind, d.evidence[0])==(0, 'data', 'inputs or targets have another shape or type')
    assert '`train.dataset.tensors[0]` has other entries in b than in a' in d.evidence and not diff(*[of_shape(2, 3)]*2)

class Counted(dict):
    "Counts how often it is read"
    n = 0
    def values(self): Counted.n += 1; return super().values()
class OfDict(nn.Linear):
    def forward(self, d): return super().forward(d['x'])
def test_a_batch_is_read_once():
    def reads(n):
        Counted.n = 0
        fitted(dl=[(Counted(x=torch.ones(2, 3)), torch.tensor([0, 1]))]*4, model=OfDict(3, 2), n=n)
        return Counted.n
    assert reads(2)-reads(1)==4 # in the second epoch

def test_a_file_of_an_older_format_is_refused():
    state = fitted().held_fingerprint.trail.state_dict()
    assert len(Trail.from_state(state))==13
    with pytest.raises(ValueError, match=f'saved in format 2, but this version reads format {state["format"]}'):
        Trail.from_state(state | dict(format=2))

# Attributes of model and loss
class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.l,self.scale,self.calls,self._id = nn.Linear(3, 2),scale,0,id(self)
    def forward(self, x): self.calls += 1; return self.l(x)*self.scale
class Weighted:
    def __init__(self, k): self.k = k
    def loss(self, pred, y): return F.cross_entropy(pred, y)*self.k
def scaled(scale=1., k=1., n_before=0, cb=None, **kwargs):
    learn = make(model=nn.Sequential(Scaled(scale)), loss_func=Weighted(k).loss, **kwargs)
    with torch.no_grad(), torch.random.fork_rng():
        for _ in range(n_before): learn.model(torch.ones(2, 3))
    return learn.fit(2, cbs=cb or Fingerprint())

@pytest.mark.parametrize('kwargs, words', [(dict(scale=2.), '`model.0.scale` is 1.0 in a, and 2.0 in b'),
    (dict(k=2.), '`loss.k` is 1.0 in a, and 2.0 in b')], ids=['model','loss'])
def test_an_attribute_is_a_setting(kwargs, words):
    d = diff(scaled(), scaled(**kwargs))
    assert (d.step, d.kind, d.evidence[0])==(0, 'hyper-parameter', words)

def test_what_a_model_counts_is_no_setting():
    a = scaled()
    d = diff(a, scaled(n_before=3)) # its `summary` was printed before, for example
    assert not d and not d.idle
    cut = make(model=nn.Sequential(Scaled(1.)), loss_func=Weighted(1.).loss)
    @on('after_batch')
    def stop(learn):
        if learn.train_iter==5: learn.stop_soon()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        cut.fit(2, cbs=[Fingerprint(), stop])
        cut.resume()
    d = diff(a, cut)
    assert d.n==12 and not d and not any('`model' in o for o in d.idle)

def test_what_a_model_counts_is_no_setting_of_a_run_card(tmp_path):
    d = diff(*(scaled(n_before=n, cb=RunCard(), path=tmp_path) for n in (0, 3)))
    assert not d and not d.idle

def test_attributes_are_no_cause_of_other_inputs_and_not_missed_in_older_files():
    d = diff(scaled(), scaled(2., dl=DataLoader(wrong(data(), slice(None)), 4, shuffle=True)))
    assert d.kind=='data' and '`model.0.scale` is 1.0 in a, and 2.0 in b' in d.idle
    old,new = (scaled().held_fingerprint.trail for _ in range(2))
    for _,o in old.setups: o.settings = {k:v for k,v in o.settings.items() if not k.startswith('attributes.')}
    assert not diff(old, new) and not diff(old, new).idle and not diff(new, old).idle

class Dated(nn.Module):
    def __init__(self, date, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.l,self.drop,self.date = nn.Linear(3, 2),nn.Dropout(.5),date
    def forward(self, x): return self.drop(self.l(x))
def dated(date, weights=0, seed=1, lr=.1):
    return make(model=Dated(date, weights), seed=seed).fit(1, lr=lr, cbs=Fingerprint())
@pytest.mark.parametrize('kwargs, kind, words', [(dict(weights=2, seed=2), 'weights', 'before training'),
    (dict(seed=2), 'random stream', 'torch'), (dict(lr=.2), 'hyper-parameter', '`lr` of group 0')], ids=str)
def test_an_attribute_is_no_cause_of_what_has_another(kwargs, kind, words):
    d = diff(dated('09:00'), dated('09:05', **kwargs))
    assert (d.step, d.kind)==(0, kind) and words in d.evidence[0]
    assert "`model.date` is '09:00' in a, and '09:05' in b" in d.idle

def test_a_long_text_is_shown_in_brief():
    d = diff(dated('x'*10_000), dated('y'*10_000))
    assert not d and len(repr(d))<600 and 'model.date' in repr(d)

class Own(Learner):
    def plain_loss(self, pred, y): return F.cross_entropy(pred, y)
def test_a_loss_that_is_a_method_of_the_learner_has_no_attributes():
    def run(note):
        dls = DataLoaders(DataLoader(data(), 4), device='cpu')
        torch.manual_seed(0)
        learn = Own(dls, nn.Linear(3, 2), F.cross_entropy, lr=.1).remove_cb(ProgressCallback)
        learn.loss_func,learn.note = learn.plain_loss,note
        return learn.fit(1, cbs=Fingerprint())
    d = diff(run('one'), run('two'))
    assert not d and not d.idle

class WithLoss(Scaled):
    def loss(self, pred, y): return F.cross_entropy(pred, y)*self.scale
def test_attributes_of_a_model_with_the_loss_are_named_once():
    def run(scale):
        model = WithLoss(scale)
        return make(model=model, loss_func=model.loss).fit(1, cbs=Fingerprint())
    assert [o for o in diff(run(1.), run(2.)).evidence if 'scale' in o]==['`model.scale` is 1.0 in a, and 2.0 in b']

class Named(nn.Module):
    "`model.name` is a setting of the fit, too: the name of the class"
    def __init__(self, name): super().__init__(); torch.manual_seed(0); self.l,self.name = nn.Linear(3, 2),name
    def forward(self, x): return self.l(x)*len(self.name)
def test_an_attribute_may_have_the_name_of_a_setting():
    d = diff(*(make(model=Named(k)).fit(1, cbs=Fingerprint()) for k in ('one', 'three')))
    assert d.evidence[0]=="`model.name` is 'one' in a, and 'three' in b"

class Itself(str):
    def __str__(self): return self
class NoSelf:
    @property
    def __self__(self): raise ZeroDivisionError
    def __call__(self, pred, y): return F.cross_entropy(pred, y)
@pytest.mark.parametrize('name, v', [('x', Itself('x')), ('', 1)], ids=['text','no_name'])
def test_attributes_of_any_kind_are_no_error(name, v, tmp_path):
    def run():
        model = Scaled(1.)
        setattr(model, name, v)
        return make(model=model, loss_func=NoSelf(), path=tmp_path).fit(1, cbs=Fingerprint(file='odd'))
    learn = run()
    assert not diff('odd', learn)
