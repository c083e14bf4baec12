"A summary of a model: counts that add up, shapes of everything, and inference that changes nothing"
import copy,random
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,IterableDataset,TensorDataset
from learner.all import *
from learner.inspect.summary import Summary
from learner.loop.inference import run_attrs

def n_hooks(*ms): return sum(len(o._forward_hooks)+len(o._backward_hooks) for m in ms for o in m.modules())

def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1,8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(.5), nn.Linear(8,1))

class Image(nn.Module):
    "Shared layers, tied weights, a parameter of its own, a layer without parameters, and one that is never used"
    def __init__(self):
        super().__init__()
        self.scale,self.a,self.b,self.norm,self.idle = nn.Parameter(torch.ones(3)),nn.Linear(1,3),nn.Linear(3,
            3),nn.BatchNorm1d(3),nn.Linear(2,2)
        self.drop,self.c,self.same = nn.Dropout(.5),nn.Linear(3,3,bias=False),self.b
        self.c.weight = self.b.weight
    def forward(self, x): return self.c(self.drop(self.norm(self.same(self.b(self.a(x))))))*self.scale

def snapshot(learn):
    gen = getattr(learn.dls.train, 'generator', None)
    opt = None if learn.opt is None else copy.deepcopy(learn.opt.state_dict())
    return dict(random=[random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
        None if gen is None else gen.get_state().tolist()],
        weights={k:v.tolist() for k,v in learn.model.state_dict().items()},
        grads=[None if p.grad is None else p.grad.tolist() for p in learn.model.parameters()],
        modes=[o.training for o in learn.model.modules()], opt=str(opt), hooks=n_hooks(learn.model),
        learn={k:repr(getattr(learn, k)) for k in run_attrs if k!='dl'},
        mode=learn.mode, training=learn.training, grad=torch.is_grad_enabled(), rows=repr(learn.recorder.rows),
        runs=[vars(o).get('run') for o in learn.cbs])

@pytest.mark.parametrize('fitted', [False, True])
def test_summary_changes_nothing(fitted):
    trace = Trace()
    dl = DataLoader(TensorDataset(torch.randn(32,1), torch.randn(32,3)), 8, shuffle=True,
        generator=torch.Generator().manual_seed(1))
    learn = synth_learner(dls=DataLoaders(dl, dl, device='cpu'), model=Image(), cbs=trace)
    if fitted: learn.fit(1)
    learn.model.norm.eval() # modes are put back one by one
    learn.recorder.run = False
    trace.seen.clear()
    before = snapshot(learn)
    learn.summary()
    assert snapshot(learn)==before and trace.seen==[]

def test_fits_are_the_same_with_summaries_between_and_inside():
    def weights(look):
        cbs = [Callback(**{ev: lambda cb: cb.learn.summary()})
            for ev in ('before_batch','after_loss','after_epoch')] if look else []
        learn = synth_learner(model=mlp(), cbs=cbs)
        for _ in range(2):
            if look: learn.summary()
            learn.fit(1)
        return {k:v.tolist() for k,v in learn.model.state_dict().items()},learn.recorder.losses
    assert weights(True)==weights(False)

def test_hooks_of_callbacks_do_not_hear_of_it():
    seen = []
    learn = synth_learner(n_train=2, model=mlp(),
        cbs=[HookCallback(hook=lambda m,i,o: seen.append(m)), Callback(after_pred=lambda cb: cb.learn.summary())]).fit(
        1)
    assert isinstance(learn.summary(), Summary) and len(seen)==2*3

def test_summary_counts():
    model = Image()
    learn = synth_learner(model=model,
        splitter=lambda m: [[*m.a.parameters()], [*m.b.parameters()],
            [m.scale, *m.norm.parameters(), *m.idle.parameters()]])
    res = learn.summary()
    n = sum(p.numel() for p in model.parameters())
    assert (res.total, res.trained)==(n, n) and sum(o.params for o in res.layers)==n
    rows = {o.layer:tuple(o)[1:] for o in res.layers}
    # one layer under two names
    assert rows['']==('Image', '16 x 3', 1, 3, 'yes') and rows['b']==('Linear', '16 x 3', 2, 12, 'yes')
    assert rows['c']==('Linear', '16 x 3', 1, 0, '') # its weight is that of `b`
    assert (rows['drop']==('Dropout', '16 x 3', 1, 0, '') and rows['idle']==('Linear', 'not called', 0, 6, 'yes')
        and 'same' not in rows)
    assert res.about['Parameter groups']=='3, unfrozen'
    learn.freeze()
    model.b.weight.requires_grad_(False); model.b.bias.requires_grad_(True)
    res = learn.summary()
    assert res.trained==sum(p.numel() for p in model.parameters() if p.requires_grad)==18
    assert {o.layer:o.trained for o in res.layers}=={'': 'yes', 'a': 'no', 'b': 'partly', 'norm': 'yes', 'idle': 'yes',
        'drop': '', 'c': ''}
    assert (res.about['Parameter groups']=='3, frozen: 6 of 6, 9 of 12, 0 of 15'
        and res.about['Parameters']=='33, of which 18 trained and 15 frozen')

def test_summary_as_text_and_table():
    learn = synth_learner(model=mlp(), loss_func=nn.MSELoss(), opt_func=Adam)
    res = learn.summary()
    text = repr(res)
    assert (text.splitlines()[0]=='Sequential, called with 16 x 1'
        and 'Optimizer: Adam\nLoss: MSELoss\nCallbacks: train_eval, recorder' in text)
    assert [l.split() for l in text.splitlines()[4:9]]==[['0','Linear','16','x','8','16','yes'],
        ['1','ReLU','16','x','8'], ['2','BatchNorm1d','16','x','8','16','yes'], ['3','Dropout','16','x','8'],
        ['4','Linear','16','x','1','9','yes']]
    html = res._repr_html_()
    assert html.count('<tr>')==6 and 'BatchNorm1d' in html and '16 x 8' in html
    learn.loss_func = lambda p,y: F.mse_loss(p, y)
    assert '&lt;lambda&gt;' in learn.summary()._repr_html_()

x,y = torch.randn(12,1),torch.randn(12,1)
class Stream(IterableDataset):
    def __iter__(self): return iter(zip(x, y))
class Words(nn.Module):
    def __init__(self): super().__init__(); self.emb,self.out = nn.Embedding(10,4),nn.Linear(4,2)
    def forward(self, ids, labels=None):
        return dict(logits=(out := self.out(self.emb(ids))), pair=(out, [ids]), loss=out.sum())
class Lengths:
    def __init__(self): self.drawn = 0
    def __iter__(self):
        for i in range(3): self.drawn += 1; yield x[:4],y[:4]

@pytest.mark.parametrize('dl,shape',
    [([(x[:4], y[:4])], '4 x 1'), (DataLoader(TensorDataset(x, y), 3, num_workers=2), '3 x 1'),
        (DataLoader(Stream(), 5), '5 x 1'), (Lengths(), '4 x 1')],
        ids=lambda o: o if isinstance(o, str) else type(o).__name__)
def test_summary_of_any_loader(dl, shape):
    learn = synth_learner(dls=DataLoaders(dl, device='cpu'))
    assert learn.summary().title==f'RegModel, called with {shape}'

def test_summary_of_mappings():
    learn = synth_learner(dls=DataLoaders([dict(ids=torch.zeros(4,7).long())], device='cpu'), model=Words(),
        loss_func=None)
    res = learn.summary()
    assert res.title=='Words, called with ids: 4 x 7' and [o.output for o in res.layers]==['4 x 7 x 4', '4 x 7 x 2']
    assert res.layers[0].params==40

def test_a_target_that_the_model_does_not_take_is_left_out_of_its_call():
    class Net(nn.Module):
        def forward(self, age): return age
    learn = synth_learner(dls=DataLoaders([dict(age=torch.zeros(4), label=torch.zeros(4))], device='cpu'), model=Net())
    assert learn.summary().title=='Net, called with age: 4'

def test_shapes_of_everything():
    class All(nn.Module):
        def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(1))
        def forward(self, x): return dict(a=x.sum()*self.w[0], b=(x, [x, x]), c=None)
    res = synth_learner(model=All()).summary()
    assert res.layers[0].output=='a: a number, b: 16 x 1, (16 x 1, 16 x 1), c: NoneType'

def test_a_summary_inside_a_fit_leaves_its_iterator_alone():
    dl = DataLoader(TensorDataset(x, y), 3, num_workers=1, persistent_workers=True)
    drawn = []
    synth_learner(dls=DataLoaders(dl, device='cpu'),
        cbs=Callback(after_batch=lambda cb: (drawn.append(cb.learn.x[0]),
            cb.learn.iter==1 and cb.learn.summary()))).fit(1)
    assert torch.equal(torch.cat(drawn), x[::3,0])

def test_an_iterator_loses_no_batch():
    batches = [(x[:4], y[:4])]*3
    gen = iter(batches)
    with pytest.raises(ValueError,
            match=r'a batch that is taken from one is gone: give a batch, `summary\(dl=\[batch\]\)`'):
        synth_learner(dls=DataLoaders(gen, device='cpu')).summary()
    learn = synth_learner(dls=DataLoaders(gen, [(x[:2], y[:2])], device='cpu'))
    assert learn.summary().title.endswith('2 x 1') and learn.summary(dl=[(x, y)]).title.endswith('12 x 1')
    assert len(list(gen))==3

def test_summary_of_models_of_many_kinds():
    assert synth_learner(model=nn.ReLU()).summary().about['Parameters'].startswith('0,') # nothing to train
    lazy = nn.Sequential(nn.LazyLinear(3), nn.Linear(3,1))
    res = synth_learner(model=lazy).summary()
    assert res.total==6+4 and torch.nn.parameter.is_lazy(lazy[0].weight)
    assert len(synth_learner(model=nn.DataParallel(mlp())).summary().layers)==5
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    class Seq(nn.Module):
        def __init__(self): super().__init__(); self.inp,self.enc = nn.Linear(1,4),layer
        def forward(self, x): return self.enc(self.inp(x[None]))
    rows = {o.layer:o for o in synth_learner(model=Seq()).summary().layers}
    assert rows['enc.linear1'].output=='1 x 16 x 8' and rows['enc.self_attn'].params==48+12

@pytest.mark.parametrize('layers,total', [((nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Linear(6, 1)), 12+12+7),
    ((nn.LazyBatchNorm1d(affine=False), nn.Linear(1, 1)), 2)], ids=['affine','not affine'])
def test_lazy_norms_are_left_lazy(layers, total):
    "They have buffers without values, which torch does not copy"
    model = nn.Sequential(*layers)
    learn = synth_learner(model=model)
    assert learn.summary().total==total
    norm = next(m for m in model if 'Norm' in type(m).__name__)
    assert type(norm).__name__=='LazyBatchNorm1d' and torch.nn.parameter.is_lazy(norm.running_mean)
    assert learn.fit(1).opt_step==10 and type(norm) is nn.BatchNorm1d

def test_an_error_in_the_model():
    learn = synth_learner(model=nn.Sequential(nn.Linear(2,1)))
    with pytest.raises(RuntimeError) as e: learn.summary()
    assert any('raised by `summary`, which calls the model with inputs as the loader returns them' in o
        for o in e.value.__notes__)
    assert n_hooks(learn.model)==0 and all(o.training for o in learn.model.modules())
    with pytest.raises(TypeError, match='has no argument `ds`'): learn.summary(ds=1)

def test_summary_in_a_fit_sees_the_modes_put_back():
    seen = []
    synth_learner(model=mlp(), n_train=1,
        cbs=Callback(after_pred=lambda cb: (cb.learn.summary(),
            seen.append([o.training for o in cb.learn.model.modules()])))).fit(1)
    assert seen==[[True]*6, [False]*6, [False]*6]

def test_no_batch_to_run():
    x = torch.zeros(4,1)
    with pytest.raises(ValueError, match='The loader is empty: it gave no batch'):
        synth_learner(dls=DataLoaders([], [], device='cpu')).summary()
    with pytest.raises(ValueError, match='A batch that is taken from an iterator is gone: give a batch'):
        synth_learner().summary(iter([(x,)]))
    with pytest.raises(TypeError, match='`dl` is the position or name of a loader in `dls`, or a loader, but got 3.5'):
        synth_learner().summary(3.5)
    assert str(synth_learner().summary('valid'))==str(synth_learner().summary(1))==str(
        synth_learner().summary(synth_learner().dls.valid))
