"What a fit does to the weights, and what it leaves behind: exactly what a hand-written loop does, and nothing"
import gc,random,weakref
from collections import namedtuple
from functools import cache,partial
from types import SimpleNamespace
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader,IterableDataset,RandomSampler
from learner.all import *
from parts import Net,Noisy

torch.set_num_threads(1) # threads that share tiny tensors wait for each other

@pytest.fixture
def close():
    "Ends the workers of loaders now: left to the garbage collector, they take torch 5 seconds each"
    loaders = []
    yield loaders.extend
    for o in loaders: vars(o)['_iterator'] = None

def seed(s=0): random.seed(s); np.random.seed(s); torch.manual_seed(s)

def loaders(num_workers=0, **kwargs):
    kwargs |= dict(num_workers=num_workers, **(dict(multiprocessing_context='fork') if num_workers else {}))
    return DataLoader(Noisy(24), 4, shuffle=True, **kwargs),DataLoader(Noisy(10), 4, shuffle=True, **kwargs)

def mae(pred, targ): return (pred-targ).abs().mean()
def weights(model): return {k:v.clone() for k,v in model.state_dict().items()}
def same(a, b): return a.keys()==b.keys() and all(torch.equal(v, b[k]) for k,v in a.items())
def generators(): return random.getstate(),str(np.random.get_state()),torch.get_rng_state().tolist()
def modes(model): return [o.training for o in model.modules()]
def grads(model): return [p.grad for p in model.parameters()]

sgd,adam = partial(torch.optim.SGD, lr=.05, momentum=.9),partial(torch.optim.Adam, lr=.05)

def mk(train=None, valid=None, opt_func=sgd, cbs=None, **kwargs):
    "A learner of `Net`, with what people usually attach, seeded"
    seed()
    dls = DataLoaders(*(loaders() if train is None else (train,valid)), device='cpu')
    learn = Learner(dls, Net(), F.mse_loss, opt_func=opt_func, **dict(metrics=mae, cbs=cbs) | kwargs)
    return learn.remove_cb(ProgressCallback)

def plain_loop(n_epoch, train, opt_func):
    "Training as anybody would write it, with no validation"
    seed()
    model = Net()
    opt = opt_func(model.parameters())
    for _ in range(n_epoch):
        for xb,yb in train:
            F.mse_loss(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
    return model

# The same bits as a hand-written loop
@pytest.mark.parametrize('opt_func,kwargs', [(sgd, {}), (adam, {}), (adam, dict(num_workers=2)),
    (sgd, dict(num_workers=2, persistent_workers=True))], ids=['momentum','adam','2 workers','persistent'])
@pytest.mark.filterwarnings('ignore:This DataLoader will create')
def test_weights_are_those_of_a_plain_training_loop(opt_func, kwargs, close, capsys):
    plain,*ours = dls = [loaders(**kwargs)[0], *loaders(**kwargs)]
    close(dls)
    expected = plain_loop(2, plain, opt_func)
    state = generators()
    learn = mk(*ours, opt_func)
    learn.add_cb(ProgressCallback(every=0)).fit(2)
    assert same(weights(learn.model), weights(expected)) and generators()==state

def test_lean_and_default_learners_train_alike():
    a = mk().fit(2)
    b = mk(default_cbs=False, cbs=TrainEvalCallback).fit(2)
    assert same(weights(a.model), weights(b.model))

def test_two_fits_continue_and_chain():
    expected = plain_loop(3, loaders()[0], adam)
    learn = mk(opt_func=adam)
    assert learn.fit(1).fit(2) is learn
    assert same(weights(learn.model), weights(expected))

def test_reset_opt_begins_with_a_new_optimizer():
    learn = mk(opt_func=adam).fit(1)
    old = learn.opt
    learn.fit(1, reset_opt=True)
    assert learn.opt is not old and {int(o['step']) for o in learn.opt.state.values()}=={6}
    learn.fit(1)
    assert {int(o['step']) for o in learn.opt.state.values()}=={12}

def test_a_validation_before_a_fit_changes_nothing():
    expected,learn = weights(mk().fit(1).model),mk()
    state,before = generators(),weights(learn.model)
    learn.validate(); learn.validate(0); learn.dls.one_batch()
    assert generators()==state and same(weights(learn.model), before) and learn.opt is None
    assert same(weights(learn.fit(1).model), expected)

def draw(self): random.random(); np.random.rand(); torch.rand(1)

@pytest.mark.parametrize('ev', ['before_fit', 'before_validate', 'after_loss', 'after_validate', 'cleanup_fit'])
def test_what_callbacks_draw_in_a_validation_is_put_back(ev):
    learn,state = mk(),generators()
    learn.validate(cbs=Callback(**{ev: draw}))
    assert generators()==state

# Looking from inside a fit
names = '''dl dl_name batch xb yb pred loss loss_grad n_iter iter epoch n_epoch train_iter opt_step pct_train
    training mode stop_reason results'''.split()

class Look(Callback):
    "Validates at the `n`-th `ev`, and sees whether anything of the run has changed"
    def __init__(self, ev, n=2, what=None, order=0):
        self.ev,self.n,self.what,self.count,self.order = ev,n,what or {},0,order
        super().__init__(**{ev: Look.look})
    def found(self):
        learn = self.learn
        return dict({k:id(v) if isinstance(v := getattr(learn, k), (torch.Tensor,tuple,list,DataLoader)) else v
            for k in names},
            generators=generators(), modes=modes(learn.model), grads=[id(o) for o in grads(learn.model)],
            grad=torch.is_grad_enabled(), cbs=list(learn.cbs),
            history=(list(learn.recorder.rows), list(learn.recorder.raw_losses), list(learn.recorder.lrs),
                list(learn.recorder.iters)))
    def look(self):
        self.count += 1
        if self.count!=self.n: return
        learn,before = self.learn,self.found()
        self.result = learn.validate(**self.what)
        after = self.found()
        assert {k:(v, after[k]) for k,v in before.items() if after[k]!=v}=={}

class FreezeBN(Callback):
    def before_train(self): self.model.bn.eval()

seldom = {'before_fit','after_fit','cleanup_fit'}
def columns(learn): return [[v for k,v in dict(o).items() if k!='time'] for o in learn.recorder.rows]

def with_metrics(*cbs):
    return mk(cbs=[*cbs, FreezeBN()]).remove_cb(Recorder).add_cb(Recorder(train_metrics=True)).fit(2)
not_looked_at = cache(with_metrics)

@pytest.mark.parametrize('ev', [o for o in dict(moments()) if 'cancel' not in o])
def test_looking_at_any_event_changes_nothing(ev):
    look = Look(ev, 1 if ev in seldom else 2)
    a,b = not_looked_at(),with_metrics(look)
    assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses
    assert columns(a)==columns(b) and list(look.result.names)==['valid_loss', 'valid_mae']

@pytest.mark.parametrize('kwargs', [{}, dict(num_workers=1), dict(num_workers=1, persistent_workers=True)],
    ids=['0','1','persistent'])
def test_the_train_loader_can_be_looked_at_while_it_is_running(kwargs, close):
    def run(cbs=None):
        train,_ = loaders(**kwargs)
        close([train])
        return mk(train, None, cbs=cbs).fit(2)
    a,look = run(),Look('after_batch', what=dict(ds_idx=0))
    b = run(look)
    assert (same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses
        and look.result.names==('train/loss', 'train/mae'))

def test_generators_of_loaders_and_samplers_are_put_back():
    ds,gs = Noisy(12),[torch.Generator().manual_seed(i) for i in range(3)]
    train = DataLoader(ds, 4, shuffle=True, generator=gs[0])
    valid = dict(a=DataLoader(ds, 4, shuffle=True, generator=gs[1]),
        b=DataLoader(ds, 4, sampler=RandomSampler(ds, generator=gs[2])))
    learn = mk(train, valid)
    before = [g.get_state() for g in gs]
    learn.validate(); learn.validate(0)
    assert all(map(torch.equal, before, [g.get_state() for g in gs]))
    learn.fit(1)
    assert list(map(torch.equal, before, [g.get_state() for g in gs]))==[False, True, True] # training moves its own

def test_a_look_inside_a_look():
    class Deep(Callback):
        depth = 0
        def after_pred(self):
            if not self.training and self.depth<3:
                self.depth += 1
                before = {k:getattr(self.learn, k) for k in names}
                self.learn.validate()
                assert all(before[k] is getattr(self.learn, k) or before[k]==getattr(self.learn, k) for k in names)
    assert columns(mk().fit(1))==columns(mk(cbs=Deep).fit(1))
    assert mk().validate()==mk(cbs=Deep).validate()

def test_a_validation_that_fails_inside_a_fit_leaves_it_as_it_was():
    class Try(Callback):
        def after_loss(self):
            if self.iter!=1 or not self.training: return
            before = {k:getattr(self.learn, k) for k in names}
            with pytest.raises(ZeroDivisionError): self.learn.validate(cbs=Raise('after_pred', ZeroDivisionError))
            assert (all(before[k] is getattr(self.learn, k) or before[k]==getattr(self.learn, k) for k in names)
                and torch.is_grad_enabled())
    a,b = mk().fit(1),mk(cbs=Try).fit(1)
    assert same(weights(a.model), weights(b.model)) and columns(a)==columns(b)

def test_validation_alone_keeps_the_history_of_the_fit():
    learn = mk().fit(2)
    rows,losses,lrs = list(learn.recorder.rows),list(learn.recorder.losses),list(learn.recorder.lrs)
    learn.validate(); learn.validate(0)
    assert (learn.recorder.rows, learn.recorder.losses, learn.recorder.lrs)==(rows, losses, lrs)
    assert (learn.epoch, learn.train_iter, learn.opt_step, learn.pct_train)==(1, 12, 12, 1.)

# What is left behind
ends = dict(success=[], cancel=[Raise, 'after_loss', CancelFitException, 3],
    error=[Raise, 'after_loss', ZeroDivisionError, 3], ctrl_c=[Raise, 'before_step', KeyboardInterrupt, 3],
    early=[Raise, 'before_fit', ZeroDivisionError], validating=[Raise, 'after_pred', ZeroDivisionError, 8],
    at_the_end=[Raise, 'cleanup_fit', ZeroDivisionError])

def ended(how, learn, **kwargs):
    "Let a fit of `learn` end like this"
    cbs = [ends[how][0](*ends[how][1:])] if ends[how] else []
    try: learn.fit(2, cbs=[*cbs, *kwargs.pop('cbs', [])], **kwargs)
    except (ZeroDivisionError, KeyboardInterrupt): assert how not in ('success', 'cancel')
    return learn

@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('how', ends)
def test_modes_hypers_callbacks_and_batch_are_put_back(how, training):
    class Meddle(Callback):
        def before_batch(self): self.learn.set_hyper('mom', .1); self.learn.set_hyper('lr', 1e-3)
        def before_validate(self): self.learn.recorder.run = False
    learn = mk()
    learn.create_opt()
    learn.model.train(training).bn.train(not training)
    before,cbs,state = modes(learn.model),list(learn.cbs),learn.state
    ended(how, learn, lr=.3, wd=.2, cbs=[Meddle()])
    assert (modes(learn.model)==before and list(learn.cbs)==cbs and not hasattr(learn, 'raise')
        and not hasattr(learn, 'meddle'))
    assert [learn.opt.param_groups[0][k] for k in ('lr','momentum','weight_decay')]==[.05, .9, 0]
    assert all(g['weight_decay']==0 for g in learn.opt.param_groups)
    assert [k for k in 'dl dl_name batch xb yb x y pred loss loss_grad exc mode'.split()
        if getattr(learn, k) is not None]==[]
    assert grads(learn.model)==[None]*len(grads(learn.model)) and torch.is_grad_enabled() and learn.state is state
    assert learn.recorder.run
    n = len(learn.fit(1).recorder.raw_losses)
    assert n==6 # and it can be used

def test_validation_leaves_the_mode_of_each_module():
    learn = mk()
    learn.model.bn.eval()
    before = modes(learn.model)
    learn.validate()
    assert modes(learn.model)==before

class SeesMode(nn.Module):
    seen = [] # of the class, because a validation puts back what it finds in the loss
    def __init__(self, net=None): super().__init__(); self.net = net; self.seen.clear()
    def forward(self, pred, targ):
        self.seen.append((self if self.net is None else self.net[0]).training)
        return F.mse_loss(pred, targ)

def test_a_loss_that_is_a_module_follows_the_model_and_gets_its_mode_back():
    learn,loss = mk(),SeesMode()
    learn.loss_func = loss
    learn.fit(1)
    # of the loss nothing is known: the last two calls see whether it gives the same again, and what two batches give
    # together
    assert loss.seen==[True]*6+[False]*5 and loss.training

@pytest.mark.parametrize('whole', [False, True])
def test_what_is_in_evaluation_mode_in_a_loss_stays_so(whole):
    "As of a trained network that compares features; the model itself, which a loss may hold, is trained"
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1,1)).eval()
    loss = SeesMode(net).train(not whole)
    loss.net.train(False)
    learn = mk()
    learn.loss_func = loss
    learn.fit(1)
    assert loss.seen==[False]*11 and loss.training is not whole
    learn.model.eval()
    learn.loss_func = loss = SeesMode(nn.ModuleList([learn.model, nn.Linear(1,1)]))
    learn.fit(1)
    assert loss.seen[:6]==[True]*6 and not any(loss.seen[6:])

def test_a_temporary_class_does_not_remove_the_permanent_instance():
    class Mine(Callback): pass
    mine = Mine()
    learn = mk(cbs=mine).fit(1, cbs=Mine)
    assert learn.mine is mine and sum(isinstance(o, Mine) for o in learn.cbs)==1
    learn.fit(1, cbs=mine)
    assert learn.mine is mine and mine in learn.cbs # it was there already

@pytest.mark.parametrize('how', ['error','ctrl_c','validating','early'])
def test_an_error_keeps_no_graph_or_frame_alive(how):
    class Watch(Callback):
        def after_pred(self): refs.append(weakref.ref(self.pred)); refs.append(weakref.ref(self.batch[0]))
    class Local: pass
    def fail(learn):
        local = Local()
        refs.append(weakref.ref(local))
        ended(how, learn, cbs=[Watch()])
    mk().fit(1) # torch's late imports keep the frames that they come in
    refs,learn = [],mk()
    gc.disable()
    try:
        fail(learn)
        assert [o for o in refs if o() is not None]==[] # reference counts alone free them
    finally: gc.enable()
    ref = weakref.ref(learn.model)
    del learn
    gc.collect()
    assert ref() is None

# Epochs and positions
def test_no_epochs():
    trace = Trace()
    learn = mk(cbs=trace)
    before = weights(learn.model)
    assert learn.fit(0) is learn and same(weights(learn.model), before) and learn.recorder.rows==[]
    assert [o for o in trace.seen if o in event and o!='after_create']==['before_fit', 'after_fit', 'cleanup_fit']

@pytest.mark.parametrize('start', [0, 2, 3])
def test_start_epoch_runs_only_the_epochs_that_are_left(start):
    class Epochs(Callback):
        def before_fit(self): self.seen = []
        def before_epoch(self): self.seen.append(self.epoch)
        def before_batch(self): self.first = getattr(self, 'first', self.pct_train) if self.training else self.first
    cb = Epochs()
    cb.first = None
    learn = mk(cbs=cb)
    del cb.first
    learn.fit(3, start_epoch=start)
    assert cb.seen==list(range(start, 3)) and [o.epoch for o in learn.recorder.rows]==cb.seen
    if start<3: assert cb.first==start/3 and learn.pct_train==1.
    assert all(o.train_loss==o.train_loss for o in learn.recorder.rows) # no empty rows

class Pct(Callback):
    def __init__(self): self.before,self.after,self.epochs = [],[],[]
    def before_batch(self):
        if self.training: self.before.append(self.pct_train)
    def after_batch(self):
        if self.training: self.after.append(self.pct_train)
    def after_epoch(self): self.epochs.append(self.pct_train)

@pytest.mark.parametrize('n_epoch,n', [(1,1), (3,7), (7,3), (10,49)])
def test_pct_train_is_exact(n_epoch, n):
    cb = Pct()
    synth_learner(n_train=n, n_valid=1, cbs=cb, default_cbs=False).add_cb(TrainEvalCallback).fit(n_epoch)
    total = n*n_epoch
    assert cb.before==[i/total for i in range(total)] and cb.after==[(i+1)/total for i in range(total)]
    assert cb.epochs==[(i+1)*n/total for i in range(n_epoch)] and cb.epochs[-1]==1.

def test_pct_train_after_a_train_phase_that_was_cut():
    cb = Pct()
    synth_learner(n_train=4, cbs=[cb, Raise('before_batch', CancelTrainException, 3)]).fit(2)
    assert cb.before[3:]==[.5, .625, .75, .875] and cb.after[-1]==1.

def test_pct_train_is_unknown_where_the_length_is():
    class Stream(IterableDataset):
        def __iter__(self): return ((torch.randn(1), torch.randn(1)) for _ in range(8))
    cb = Pct()
    learn = mk(DataLoader(Stream(), 4), None, cbs=cb).fit(2)
    assert cb.before==[None]*4 and cb.epochs==[None]*2 and learn.train_iter==4

def test_a_fit_inside_a_fit_is_refused():
    class Again(Callback):
        def after_epoch(self): self.learn.fit(1)
    with pytest.raises(RuntimeError, match='`fit` cannot start inside a running `fit`'): mk(cbs=Again).fit(1)

# Validation loaders
def const(v, n=2): return [(torch.zeros(2,1), torch.full((2,1), float(v)))]*n

class Zero(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Parameter(torch.zeros(1))
    def forward(self, x): return x+self.a*0

def zero_learner(*dls, **kwargs):
    return Learner(DataLoaders(*dls, device='cpu'), Zero(), F.mse_loss,
        **dict(metrics=mae) | kwargs).remove_cb(ProgressCallback)

def test_several_validation_loaders():
    class Names(Callback):
        def __init__(self): self.seen = []
        def before_validate(self): self.seen.append((self.dl_name, self.n_iter))
        def cleanup_validate(self): self.seen.append(self.dl_name)
    cb = Names()
    learn = zero_learner(const(1), dict(easy=const(2), hard=const(3, 4)), const(4), cbs=cb)
    learn.fit(1)
    assert cb.seen==[('easy', 2), 'easy', ('hard', 4), 'hard']
    assert learn.recorder.metric_names==['epoch', 'train_loss', 'easy/loss', 'easy/mae', 'hard/loss', 'hard/mae',
        'time']
    expected = {'easy/loss':4., 'easy/mae':2., 'hard/loss':9., 'hard/mae':3.}
    assert (dict(learn.results)==expected==dict(learn.validate())
        and {k:learn.recorder[-1, k] for k in expected}==expected)
    assert dict(learn.validate('hard'))==dict(learn.validate(2))=={'hard/loss':9., 'hard/mae':3.}
    assert list(learn.validate(3))==[16., 4.] and list(learn.validate(-1))==[16., 4.]
    assert dict(learn.validate(dl=const(5)))=={'valid_loss':25., 'mae':5.}

def test_one_validation_loader():
    learn = zero_learner(const(1), const(2)).fit(1)
    assert dict(learn.results)=={'valid_loss':4., 'mae':2.}==dict(learn.validate())
    loss,acc = learn.validate()
    assert (loss, acc)==(4., 2.) and learn.validate().mae==2.

def test_no_validation_loader():
    trace = Trace()
    learn = zero_learner(const(1), cbs=trace).fit(2)
    assert ('before_validate' not in trace.seen and learn.recorder.metric_names==['epoch', 'train_loss', 'time']
        and len(learn.results)==0)
    assert dict(learn.validate(0))=={'train/loss':1., 'train/mae':1.}

@pytest.mark.parametrize('metrics', [None, mae])
def test_validate_needs_no_recorder(metrics):
    learn = zero_learner(const(1), const(2), default_cbs=False, metrics=metrics)
    assert list(learn.validate())==[4., 2.][:1+(metrics is not None)] and list(learn.cbs)==[]
    learn.model.a.data += 1
    learn.dls.valids['valid'] = learn.dls.loaders['valid'] = const(3)
    assert learn.validate().valid_loss==9. # computed anew

# Loaders and batches of all kinds
def xy(n=4): return [(torch.randn(4,1), torch.randn(4,1)) for _ in range(n)]

class Unsized:
    def __init__(self, bs): self.bs = bs
    def __iter__(self): return iter(self.bs)

@pytest.mark.parametrize('kind', [list, tuple, Unsized, iter, lambda bs: (o for o in bs)],
    ids=['list','tuple','unsized','iterator','generator'])
def test_any_iterable_is_a_loader(kind):
    bs = xy()
    learn = mk(kind(bs), bs).fit(1)
    expected = mk(bs, bs).fit(1)
    assert (learn.train_iter==4 and same(weights(learn.model), weights(expected.model))
        and columns(learn)==columns(expected))

Output = namedtuple('Output', 'loss logits')

@pytest.mark.parametrize('output',
    [lambda loss,pred: Output(loss, pred), lambda loss,pred: dict(loss=loss, logits=pred),
    lambda loss,pred: SimpleNamespace(loss=loss, logits=pred), lambda loss,pred: loss],
    ids=['namedtuple','dict','object','loss'])
@pytest.mark.parametrize('with_loss_func', [False, True])
def test_mappings_and_models_that_return_their_loss(output, with_loss_func):
    class HF(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
        def forward(self, x, labels=None): pred = self.l(x); return output(F.mse_loss(pred, labels), pred)
    bs = [dict(x=x, labels=y) for x,y in xy()]
    seed()
    model = HF()
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    expected = weights(model)
    loss_func = ((lambda out,targ: F.mse_loss(out.logits if hasattr(out, 'logits') else out['logits'], targ))
        if with_loss_func else None)
    if with_loss_func and isinstance(output(torch.zeros(()), None), torch.Tensor):
        pytest.skip('the output is the loss already')
    learn = Learner(DataLoaders(bs, bs, device='cpu'), model, loss_func,
        opt_func=partial(torch.optim.SGD, lr=.1)).remove_cb(ProgressCallback)
    losses = learn.fit(1).recorder.raw_losses
    other = HF()
    other.load_state_dict(expected)
    opt,expected = torch.optim.SGD(other.parameters(), lr=.1),[]
    for b in bs:
        loss = F.mse_loss(other.l(b['x']), b['labels'])
        loss.backward(); opt.step(); opt.zero_grad(); expected.append(loss.item())
    assert losses==expected and same(weights(model), weights(other))
    with torch.no_grad(): expected = sum(F.mse_loss(other.l(b['x']), b['labels']).item() for b in bs)/len(bs)
    assert learn.results.valid_loss==pytest.approx(expected, rel=1e-6)

class Two(nn.Module):
    def __init__(self): super().__init__(); self.a,self.unused = nn.Linear(1, 1),nn.Linear(3, 3)
    def forward(self, x, z): return self.a(x)+z

@pytest.mark.parametrize('kwargs',
    [dict(n_inp=2), {}, dict(split=lambda b: (b[:2], b[2:])), dict(split=lambda b: (dict(z=b[1], x=b[0]), (b[2],)))],
    ids=['n_inp','default','split','split to names'])
def test_several_inputs_and_unused_parameters(kwargs):
    bs = [(x, torch.ones_like(x), y) for x,y in xy()]
    seed()
    learn = Learner(DataLoaders(bs, bs, device='cpu', **kwargs), Two(), F.mse_loss, lr=.1, wd=.1,
        wd_bn_bias=True).remove_cb(ProgressCallback)
    before = weights(learn.model)
    learn.fit(1)
    changed = {k:not torch.equal(v, before[k]) for k,v in weights(learn.model).items()}
    assert changed=={'a.weight':True, 'a.bias':True, 'unused.weight':False, 'unused.bias':False}

def test_inputs_without_loss_func_give_the_loss():
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
        def forward(self, x, y): return F.mse_loss(self.l(x), y)
    bs = xy()
    learn = Learner(DataLoaders(bs, bs, device='cpu', n_inp=2), Own(), lr=.1).remove_cb(ProgressCallback).fit(2)
    assert learn.recorder[-1, 'valid_loss']<learn.recorder[0, 'valid_loss']

def test_a_single_tensor_is_one_input():
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(1, 1)
        def forward(self, x): assert x.shape==(4,1); return (self.l(x)**2).mean()
    learn = Learner(DataLoaders([x for x,_ in xy()], device='cpu'), Own()).remove_cb(ProgressCallback).fit(1)
    assert learn.train_iter==4

def test_losses_in_bf16():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    bs = [(torch.randn(4,1,generator=gen).bfloat16(), torch.randn(4,1,generator=gen).bfloat16()) for _ in range(300)]
    model = nn.Linear(1, 1).bfloat16()
    learn = Learner(DataLoaders(bs, bs, device='cpu'), model, F.mse_loss, metrics=mae,
        lr=0.).remove_cb(ProgressCallback).fit(1)
    with torch.no_grad(): each = [F.mse_loss(model(x), y) for x,y in bs]
    assert each[0].dtype==torch.bfloat16 and learn.recorder.raw_losses==[float(o) for o in each]
    # the average is not rounded to 8 bits
    assert learn.results.valid_loss==pytest.approx(np.mean([float(o) for o in each]), rel=1e-5)
    m = AvgSmoothLoss()
    for o in each: m.accumulate(SimpleNamespace(loss=o, yb=()))
    assert float(m.value)==pytest.approx(learn.recorder.smooth_loss, rel=1e-5)

def test_the_train_scope_leaves_no_gradients_to_the_next_epoch():
    class Keep(Callback):
        def before_step(self): raise CancelBatchException # as in accumulation by hand
        def before_validate(self): assert grads(self.model)==[None]*len(grads(self.model))
    mk(cbs=Keep).fit(2)
