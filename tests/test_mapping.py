"Batches that do not fit the model, several optimizers, pieces of the loop replaced: results against the same by hand"
import pytest, torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 2)
    def forward(self, pixels, mask=None): return dict(logits=self.lin(pixels if mask is None else pixels*mask))
    def doubled(self, pixels): return dict(logits=self.lin(2*pixels))

def batches(n=3, **more):
    g = torch.Generator().manual_seed(0)
    return [dict(image=torch.randn(8, 4, generator=g), labels=torch.randint(0, 2, (8,), generator=g),
        index=torch.arange(8), **more) for _ in range(n)]

def learner(cbs, data=None, **kwargs):
    torch.manual_seed(0)
    data = data or batches()
    return Learner(DataLoaders(data, data[:1], device='cpu'), Net(), F.cross_entropy,
        opt_func=lambda ps: torch.optim.SGD(ps, lr=.1), cbs=cbs, **kwargs).remove_cb(ProgressCallback)

def by_hand(f, data=None):
    torch.manual_seed(0)
    m = Net()
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for b in data or batches():
        F.cross_entropy(f(m, b), b['labels']).backward()
        opt.step(); opt.zero_grad()
    return m

def same(learn, m): assert all(torch.equal(a, b) for a,b in zip(learn.model.parameters(), m.parameters()))

cbs = MapBatch(dict(image='pixels')),MatchArgs,MapPred(lambda o: o['logits'])

def test_renamed_matched_and_mapped():
    same(learner(list(cbs)).fit(1), by_hand(lambda m,b: m(b['image'])['logits']))

def test_an_argument_with_a_default_is_given_if_it_is_there():
    data = batches(mask=torch.tensor([1.,0,1,0]))
    same(learner(list(cbs), data).fit(1), by_hand(lambda m,b: m(b['image'], b['mask'])['logits'], data))

def test_predictions_are_mapped_too():
    learn = learner(list(cbs))
    preds,_ = learn.get_preds(act=lambda o: o)
    assert torch.allclose(preds, learn.model(batches()[0]['image'])['logits'])

@pytest.mark.parametrize('cb,exc,match', [
    (lambda: MapBatch(dict(imgae='pixels')), KeyError, 'Did you mean `image`'),
    (lambda: MapPred(dict(logits='x', logit='y')), KeyError, 'finds no `logit`.*Did you mean `logits`'),
    (MatchArgs, KeyError, 'needs `pixels`, but the batch has `image`, `labels`, `index`'),
    (lambda: MapBatch(dict(image='labels')), ValueError,
        'would give two of the fields `image`, `labels`, `index` one name'),
    (lambda: MapBatch(dict(image='x', index='x')), ValueError, 'would give two of the fields'),
    (lambda: Forward(train='doublet'), AttributeError, 'has no method `doublet`. Did you mean'),
])
def test_bad_names(cb, exc, match):
    learn = learner([cb()] if 'Pred' not in match
        and 'logit' not in match else [MapBatch(dict(image='pixels')), MatchArgs, cb()])
    with pytest.raises(exc, match=match): learn.fit(1)
    assert learn.mode is None and 'forward' not in vars(learn.model)

def test_fields_change_places():
    data = [dict(image=b['labels'], labels=b['image']) for b in batches()]
    same(learner([MapBatch(dict(image='labels', labels='image')), *cbs], data).fit(1),
        by_hand(lambda m,b: m(b['image'])['logits']))

def test_all_missing_arguments_are_named():
    class Three(Net):
        def forward(self, pixels, lenghts, mask, weight=None, *args): pass
    learn = learner([MatchArgs], batches(lengths=torch.ones(8)))
    learn.model = Three()
    with pytest.raises(KeyError, match='`Three.forward` needs `pixels`, `lenghts`, `mask`, but the batch has `image`, '
            '`labels`, `index`, `lengths`. Did you mean `lengths`'):
        learn.fit(1)

class This(Net):
    def forward(this, pixels, mask=None): return Net.forward(this, pixels, mask)
class Unbound(nn.Module):
    "Its `forward` is a function of its own, and has no instance"
    def __init__(self):
        super().__init__()
        lin = self.lin = nn.Linear(4, 2)
        self.forward = lambda pixels, self=None: dict(logits=lin(pixels))
@pytest.mark.parametrize('model', [This, Unbound, lambda: nn.DataParallel(This())], ids=['this','unbound','wrapped'])
def test_the_instance_may_have_any_name(model):
    learn = learner(list(cbs))
    torch.manual_seed(0)
    learn.model = model()
    learn.fit(1)
    same(learn, by_hand(lambda m,b: m(b['image'])['logits']))
    learn.remove_cbs(MapBatch)
    with pytest.raises(KeyError, match='needs `pixels`, but the batch has `image`, `labels`, `index`'): learn.fit(1)

def test_map_batch_takes_a_function_or_a_dict():
    with pytest.raises(TypeError, match='takes a function, or a dict'): MapBatch(3)
    with pytest.raises(TypeError, match='renames fields, but got a tuple'):
        synth_learner(cbs=MapBatch(dict(a='b')), dls=DataLoaders([(torch.ones(1,1),torch.ones(1,1))])).fit(1)

def test_forward_by_phase():
    learn = learner([*cbs, Forward(train='doubled')]).fit(1)
    same(learn, by_hand(lambda m,b: m.doubled(b['image'])['logits']))
    assert 'forward' not in vars(learn.model)
    x = batches()[0]
    with torch.no_grad(): loss = F.cross_entropy(learn.model(x['image'])['logits'], x['labels'])
    assert learn.recorder.rows[-1].valid_loss==pytest.approx(loss.item())

def test_a_method_in_the_place_of_forward_may_call_the_model():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
        def forward(self, x): return self.w*x
        def train_step(self, x): return self(x)+self.forward(x)
        def evaluate_step(self, x): return 3*self(x)
    x,y = torch.ones(4, 1),torch.zeros(4, 1)
    learn = Learner(DataLoaders([(x, y)], [(x, y)], device='cpu'), Steps(), F.mse_loss, opt_func=SGD, lr=.1,
        cbs=Forward('train_step', 'evaluate_step')).fit(1)
    w = learn.model.w.item()
    assert w==pytest.approx(1-.1*8) and learn.recorder.rows[-1].train_loss==pytest.approx(4)
    assert learn.validate().valid_loss==pytest.approx(9*w*w) and 'forward' not in vars(learn.model)

@pytest.mark.parametrize('exc', [CancelBatchException, CancelFitException, ZeroDivisionError])
def test_forward_is_undone(exc):
    learn = learner([*cbs, Forward(train='doubled'), Raise('after_pred', exc)])
    try: learn.fit(1)
    except ZeroDivisionError: pass
    assert 'forward' not in vars(learn.model)

def test_only_in_one_phase():
    data = [(torch.ones(2,1), torch.ones(2,1))]
    seen = []
    cb = MapBatch(lambda b: (b[0]*2, b[1]))
    cb.run_valid = False
    learn = synth_learner(dls=DataLoaders(data, data),
        cbs=[cb, Callback(before_batch=lambda self: seen.append((self.training, self.x.sum().item())))])
    learn.fit(1)
    assert seen==[(True, 4.), (False, 2.)]

# Several optimizers
class Two(nn.Module):
    def __init__(self): super().__init__(); self.a,self.b = nn.Linear(1, 4),nn.Linear(4, 1)
    def forward(self, x): return self.b(self.a(x))

def two_opts(every=1):
    return lambda groups: OptimList(torch.optim.SGD(groups[:1], lr=.1), torch.optim.Adam(groups[1:], lr=.01),
        every=every)
def split(m): return [list(m.a.parameters()), list(m.b.parameters())]

@pytest.mark.parametrize('every', [1, [1,3], [2,1]])
def test_several_optimizers(every):
    torch.manual_seed(0)
    learn = synth_learner(n_train=7, model=Two(), opt_func=two_opts(every), splitter=split, lr=None)
    torch.manual_seed(1)
    learn.fit(1)
    torch.manual_seed(0)
    data,m = synth_learner(n_train=7).dls.train,None
    torch.manual_seed(0); m = Two()
    opts,ks = ([torch.optim.SGD(m.a.parameters(), lr=.1), torch.optim.Adam(m.b.parameters(), lr=.01)],
        every if isinstance(every, list) else [every]*2)
    torch.manual_seed(1)
    for i,(x,y) in enumerate(data, 1):
        F.mse_loss(m(x), y).backward()
        for o,k in zip(opts, ks):
            if i%k==0: o.step()
        for o in opts: o.zero_grad()
    same(learn, m)

def test_several_optimizers_have_one_set_of_hyper_parameters():
    torch.manual_seed(0)
    learn = synth_learner(model=Two(), opt_func=two_opts(), splitter=split, lr=None)
    learn.create_opt()
    learn.set_hyper('lr', [.3,.2])
    assert [g['lr'] for o in learn.opt.opts for g in o.param_groups]==[.3,.2]
    learn.fit_one_cycle(1, lr_max=[.1,.01])
    assert [g['lr'] for o in learn.opt.opts for g in o.param_groups]==[.3,.2]

def test_several_optimizers_are_saved(tmp_path):
    def new():
        torch.manual_seed(0)
        return synth_learner(model=Two(), opt_func=two_opts([1,2]), splitter=split, lr=None, path=tmp_path)
    torch.manual_seed(5)
    whole = new().fit(1)
    whole.save('a')
    torch.manual_seed(6)
    whole.fit(1)
    other = new().load('a')
    torch.manual_seed(6)
    other.fit(1)
    same(other, whole.model)

def test_a_parameter_has_one_optimizer():
    m = Two()
    with pytest.raises(ValueError, match='some are in two'):
        OptimList(torch.optim.SGD(m.parameters()), torch.optim.SGD(m.b.parameters()))

# Pieces of the loop
def test_a_replaced_scope_must_keep_its_events():
    with pytest.raises(TypeError, match='`Mine._step` has lost its events.*@scope'):
        class Mine(Learner):
            def _step(self): pass

def test_a_replaced_step_fires_its_events():
    class Sign(Learner):
        @scope
        def _step(self):
            with torch.no_grad():
                for p in self.model.parameters(): p -= .1*p.grad.sign()
            self.opt_step += 1
    torch.manual_seed(0)
    trace,data = Trace('before_step','after_step'),batches(2)
    learn = Sign(DataLoaders([(b['image'],b['labels']) for b in data]), nn.Linear(4, 2), F.cross_entropy,
        cbs=trace).remove_cb(ProgressCallback)
    w = learn.model.weight.detach().clone()
    learn.fit(1)
    assert trace.seen==['before_step','after_step']*2 and learn.opt_step==2
    assert set(((learn.model.weight-w)/.1).round().abs().flatten().tolist())<={0.,2.}

def test_every_module_goes_to_the_device():
    seen = []
    class Critic(nn.Linear):
        def to(self, device): seen.append(device); return super().to(device)
    class Uses(Callback):
        def __init__(self): self.critic = Critic(1, 1)
    learn = synth_learner(cbs=Uses)
    learn.judge = Critic(1, 1)
    learn.fit(1)
    assert seen==[torch.device('cpu')]*2

def test_a_validation_within_a_training_batch_calls_its_own_method():
    called = [] # elsewhere than in the model, which a validation leaves as it was
    class Two(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(4, 2)
        def forward(self, x): called.append('forward'); return self.lin(x)
        def hard(self, x): called.append('hard'); return self.lin(x)
    data = [(b['image'], b['labels']) for b in batches(2)]
    learn = Learner(DataLoaders(data, data[:1], device='cpu'), Two(), F.cross_entropy, cbs=Forward(train='hard')
        ).remove_cb(ProgressCallback)
    learn.fit(1, cbs=Callback(after_pred=lambda cb: cb.training and cb.learn.validate()))
    assert called==['hard','forward']*2+['forward'] and 'forward' not in vars(learn.model)

def test_predictions_are_not_mapped_where_the_optimizer_computes_its_own():
    learn = learner(list(cbs))
    learn.opt_func = torch.optim.LBFGS
    with pytest.raises(ValueError, match='computes loss and gradients again within its step, without `map_pred`'):
        learn.fit(1)
