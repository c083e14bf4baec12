"""Promise 1 for what callbacks set on the way: a fit that resumes fires `before_fit` and `before_epoch` again, which
set what holds at the beginning"""
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

pytestmark = pytest.mark.filterwarnings('ignore:The run was stopped in the middle of a batch')

class Stop(Callback):
    "Stops the fit for now, or raises, at the `n`-th of an event"
    watches,order = True,500
    def __init__(self, ev, n, e=None):
        self.left,self.e = n,e
        super().__init__(**{ev: Stop.hit})
    def hit(self):
        self.left -= 1
        if self.left: return
        if self.e is not None: raise self.e
        self.learn.at_pause(self.learn.stop_for_now, stops=True)

class Off(Callback):
    "Switches itself off in training batch 3, and another callback on"
    _stateattrs = 'seen',
    def __init__(self, other): self.seen,self.other = [],other
    def before_fit(self): self.seen,self.other.run = [],False
    def after_batch(self):
        if not self.learn.training: return
        self.seen.append(self.learn.train_iter)
        if self.learn.train_iter==3: self.run,self.other.run = False,True # from the next batch on

class Seen(Callback):
    _stateattrs = 'seen',
    def before_fit(self): self.seen = []
    def after_batch(self): self.seen.append(self.learn.train_iter)

@pytest.mark.parametrize('n', [2, 6])
@pytest.mark.parametrize('how', ['stop','error','file'])
def test_callbacks_that_were_switched_off_or_on_stay_so(how, n, tmp_path):
    def made():
        off = Off(late := Seen())
        return synth_learner(n_train=4, n_valid=0, path=tmp_path),off,[off, late, Checkpoint(every=2, unit='iter')]
    learn,off,cbs = made()
    if how=='error':
        with pytest.raises(ValueError): learn.fit(3, cbs=[*cbs, Stop('before_draw', n, ValueError)])
    else: learn.fit(3, cbs=[*cbs, Stop('after_batch', n)])
    if how!='file': learn.resume()
    else:
        learn,off,cbs = made()
        learn.fit(3, cbs=cbs, resume='auto')
    assert off.seen==[1, 2, 3] and off.other.seen==[*range(4, 13)]
    assert off.run and off.other.run # as every callback between two fits

def test_a_run_that_is_over_still_says_what_ended_it(tmp_path):
    def run():
        cbs = [EarlyStoppingCallback(patience=1), Checkpoint()]
        return synth_learner(path=tmp_path).fit(9, lr=0., cbs=cbs, resume='auto') # with `lr=0.` nothing gets better
    first,again = run(),run()
    assert again.stop_reason==first.stop_reason and 'was not better' in first.stop_reason
    with pytest.warns(match='No callback takes the state of `early_stopping`'):
        longer = synth_learner(path=tmp_path).fit(first.epoch+2, lr=0., cbs=Checkpoint(), resume='auto')
    assert longer.stop_reason is None # it went on

@pytest.mark.parametrize('ev,n', [('after_batch', 6), ('after_epoch', 1)])
@pytest.mark.parametrize('how', ['stop','file','load'])
def test_callbacks_that_get_their_state_know_that_the_fit_resumes(how, ev, n, tmp_path):
    class Knows(Callback):
        _stateattrs,n = ('n',),0
        def __init__(self): self.told = []
        def before_fit(self): self.told.append(self.resuming)
        def load_state_dict(self, state): self.told.append((self.mode, self.resuming)); super().load_state_dict(state)
        def before_draw(self): self.told.append(self.resuming)
    learn = synth_learner(path=tmp_path).fit(2, cbs=[cb := Knows(), Stop(ev, n), Checkpoint(every=2, unit='iter')])
    assert not any(cb.told)
    cb.told.clear()
    if how=='stop': learn.resume()
    elif how=='file': synth_learner(path=tmp_path).fit(2, cbs=[cb := Knows(), Checkpoint()], resume='auto')
    else:
        learn = synth_learner(path=tmp_path, cbs=[cb := Knows(), Checkpoint()])
        learn.load_state(next((tmp_path/'checkpoints').glob('*.pt'))).resume()
    first = [] if how=='stop' else [(None, False)] # the file is read before the fit
    assert cb.told[:len(first)+3]==[*first, True, ('fit', True), False]

# Flags of parameters, and attributes
class Net(nn.Module):
    "Two layers and a head, mixed by `alpha`"
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(3, 8), nn.Linear(8, 8)])
        self.head,self.alpha,self.memory,self.cfg = nn.Linear(8, 1),1.,None,{'scale': 1.}
    def forward(self, x):
        for o in self.body: x = torch.tanh(o(x))
        x = self.head(x)*self.alpha*self.cfg['scale']
        if self.memory is not None: x = x+.1*self.memory
        if self.training: self.memory = x.detach().mean()
        return x

class Loss:
    def __init__(self): self.beta = 1.
    def __call__(self, p, y): return F.smooth_l1_loss(p, y, beta=self.beta)

def made(path, seed=1, bs=8, **kwargs):
    torch.manual_seed(seed)
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    ds = TensorDataset(x, x.sum(1, keepdim=True))
    dls = DataLoaders(DataLoader(ds, bs, shuffle=True), DataLoader(ds, 16), device='cpu')
    def splitter(m): return [[*m.body[0].parameters()], [*m.body[1].parameters()], [*m.head.parameters()]]
    return Learner(dls, Net(), Loss(), opt_func=Adam, lr=.01, path=path, splitter=splitter, **kwargs).remove_cb(
        ProgressCallback)

def state(learn):
    "Weights, and what callbacks have left"
    m = learn.model
    return dict(weights=torch.cat([p.detach().flatten() for p in m.parameters()]), losses=learn.recorder.raw_losses,
        trained=[k for k,p in m.named_parameters() if p.requires_grad], alpha=m.alpha, cfg=m.cfg, memory=m.memory,
        beta=learn.loss_func.beta)

def same(a, b):
    a,b = state(a),state(b)
    for k in a: assert torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k]==b[k], k

# Callbacks that set what holds at the beginning, and change it later
def frozen(learn, n):
    for o in learn.model.body[:n]: o.requires_grad_(False)
    for o in learn.model.body[n:]: o.requires_grad_(True)

class Unfreezes(Callback):
    "By hand: in the second epoch more, in its middle all"
    def before_fit(self): frozen(self.learn, 2)
    def before_epoch(self):
        if self.epoch==1: frozen(self.learn, 1)
    def after_batch(self):
        if self.learn.training and self.train_iter==9: frozen(self.learn, 0)

class Groups(Callback):
    "By groups"
    def before_fit(self): self.learn.freeze()
    def after_batch(self):
        if self.learn.training and self.train_iter==4: self.learn.freeze_to(1)
        if self.learn.training and self.train_iter==9: self.learn.unfreeze()

class Freezes(Callback):
    "The other way round"
    def before_fit(self): frozen(self.learn, 0)
    def after_epoch(self): frozen(self.learn, 1+(self.epoch>0))

class Anneals(Callback):
    def before_fit(self): self.learn.model.alpha,self.learn.loss_func.beta = 1.,1.
    def after_batch(self):
        if not self.learn.training: return
        self.learn.model.alpha *= .9
        self.learn.loss_func.beta *= .8
        self.learn.model.cfg['scale'] *= .95
    def before_epoch(self): self.learn.model.cfg['scale'] = 1.

class Undoes(Callback):
    "Sets up and undoes, and changes in between"
    def before_fit(self):
        self.was,self.learn.model.alpha = self.learn.model.alpha,.5
        self.learn.model.body[0].requires_grad_(False)
    def before_epoch(self): self.scale,self.learn.model.cfg = self.learn.model.cfg,{'scale': .7+self.epoch}
    def after_batch(self):
        if self.learn.training: self.learn.model.alpha += .1
    def cleanup_epoch(self): self.learn.model.cfg = self.scale
    def cleanup_fit(self):
        self.learn.model.alpha = self.was
        self.learn.model.body[0].requires_grad_(True)

class Validates(Callback):
    "Sets up and undoes around validations"
    def before_validate(self): self.was,self.learn.model.alpha = self.learn.model.alpha,2.
    def cleanup_validate(self): self.learn.model.alpha = self.was

class Batches(Callback):
    "Sets up and undoes around batches"
    def before_batch(self):
        self.was,self.learn.model.alpha = self.learn.model.alpha,3.
        self.learn.model.body[0].requires_grad_(False)
    def cleanup_batch(self):
        self.learn.model.alpha = self.was
        self.learn.model.body[0].requires_grad_(True)

class Resets(Callback):
    "Forgets the memory where training begins"
    def before_train(self): self.learn.model.memory = None

class Alternates(Callback):
    "As a GAN: each batch trains another part, and the last one of an epoch leaves its flags"
    def before_batch(self):
        if not self.learn.training: return
        for o,v in ((self.learn.model.head, self.train_iter%2), (self.learn.model.body, 1-self.train_iter%2)):
            o.requires_grad_(bool(v))
    def before_fit(self): self.learn.model.requires_grad_(True)

kinds = Unfreezes,Groups,Freezes,Anneals,Undoes,Validates,Batches,Resets,Alternates
stops = [('after_batch', 3), ('before_draw', 8), ('after_batch', 14), ('after_epoch', 1), ('before_validate', 2),
    ('after_pred', 20)]

@pytest.mark.sample(14)
@pytest.mark.parametrize('ev,n', stops, ids=lambda o: str(o))
@pytest.mark.parametrize('cls', kinds)
def test_a_fit_resumes_with_what_callbacks_had_set(cls, ev, n, tmp_path):
    whole,learn = made(tmp_path/'whole').fit(3, cbs=cls),made(tmp_path)
    learn.fit(3, cbs=[cls, Stop(ev, n), Checkpoint(every=5, unit='iter')])
    other = made(tmp_path, seed=7)
    other.fit(3, cbs=[cls, Checkpoint(every=5, unit='iter', folder=tmp_path/'other')],
        resume=learn.path/'checkpoints')
    same(other, whole)
    same(learn.resume(), whole)

@pytest.mark.sample(14)
@pytest.mark.parametrize('ev,n', [('after_batch', 9), ('before_validate', 2), ('before_epoch', 2), ('after_epoch', 1),
    ('after_draw', 14)], ids=lambda o: str(o))
@pytest.mark.parametrize('e', [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize('cls', kinds)
def test_a_fit_that_is_cut_resumes_with_what_callbacks_had_set(cls, ev, n, e, tmp_path):
    "Exactly, if no batch was cut: there, with the flags and attributes of that moment"
    whole,learn = made(tmp_path/'whole').fit(3, cbs=cls),made(tmp_path)
    with pytest.raises(e): learn.fit(3, cbs=[cls, Stop(ev, n, e), Checkpoint(every=100, unit='iter')])
    exact = learn.at.exact
    learn.save_state('at')
    other = made(tmp_path, seed=7)
    def compare(learn):
        if exact: same(learn, whole)
        else: assert {**state(learn), 'weights': 0, 'losses': 0, 'memory': 0}=={
            **state(whole), 'weights': 0, 'losses': 0, 'memory': 0}
    compare(other.fit(3, cbs=cls, resume='at'))
    compare(learn.resume())

class Calms(Callback):
    def after_epoch(self): self.learn.model[1].momentum *= .9

@pytest.mark.parametrize('norm', [nn.LazyBatchNorm1d, lambda: nn.BatchNorm1d(8)], ids=['lazy','batch_norm'])
@pytest.mark.parametrize('how', ['stop','file','same','rewind'])
def test_what_is_set_in_a_layer_that_gets_its_size_from_the_first_batch(how, norm, tmp_path, recwarn):
    def made():
        torch.manual_seed(0)
        x = torch.randn(24, 4)
        dls = DataLoaders(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6), device='cpu')
        model = nn.Sequential(nn.Linear(4, 8), norm(), nn.Linear(8, 1))
        return Learner(dls, model, F.mse_loss, path=tmp_path).remove_cb(ProgressCallback)
    def end(learn): return learn.model[1].momentum,*(t.tolist() for t in learn.model.state_dict().values())
    whole,learn = made().fit(3, cbs=Calms()),made().fit(3, cbs=[Calms(), Rewind(2, keep=9), Stop('after_batch', 6)])
    if how in ('file','same'): learn.save_state('here')
    if how=='same': learn.resume()
    if how=='rewind': learn.resume().rewind(2)
    elif how!='stop': learn = (learn if how=='same' else made()).load_state('here')
    if how in ('file','same'): learn.resume(cbs=Calms())
    while learn.at: learn.resume()
    assert end(learn)==end(whole) and learn.model[1].num_features==8

class Sized(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.lin,self.norm = nn.LazyLinear(4),norm(affine=True)
    def forward(self, x): return self.norm(self.lin(x)[:,:,None].expand(-1, -1, 2)).mean((1, 2))[:,None]

@pytest.mark.parametrize('norm', [nn.LazyInstanceNorm1d, nn.LazyBatchNorm1d])
def test_a_file_of_layers_that_had_their_sizes_leaves_them_to_a_learner_that_has_trained(norm, tmp_path):
    def made():
        torch.manual_seed(0)
        x = torch.randn(12, 3)
        dls = DataLoaders(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6), device='cpu')
        return Learner(dls, Sized(norm), F.mse_loss, path=tmp_path).remove_cb(ProgressCallback)
    first = made()
    with torch.no_grad(): first.model(torch.randn(6, 3))
    first.fit(1).save_state('here')
    model = made().fit(1).load_state('here').fit(1).model
    assert (model.lin.in_features, model.norm.num_features)==(3, 4)
