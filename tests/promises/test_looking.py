"""Promise 2: looking never changes the run. Weights, optimizer, order of samples and losses are the same to the last
bit, whatever looks at them, wherever"""
import hashlib,random
from contextlib import redirect_stdout
from io import StringIO
import matplotlib
import matplotlib.pyplot as plt
import numpy as np, pytest, torch
from hypothesis import given,settings,strategies as st
from torch import nn
from torch.utils.data import BatchSampler,DataLoader,Dataset,IterableDataset,RandomSampler,Sampler,Subset, \
    WeightedRandomSampler
from learner.all import *
import runs

matplotlib.use('agg')

class Points(Dataset):
    "Samples that are changed at random, by all three global generators"
    def __init__(self, n, seed):
        self.x,self.y = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)),torch.arange(n)%3
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        return self.x[i]*(1+.1*torch.randn(4)) + random.gauss(0, .1) + .1*float(np.random.randn()),self.y[i]

class Stream(IterableDataset):
    def __iter__(self): return (Points(24, 0)[random.randrange(24)] for _ in range(24))

class Order(Sampler):
    "Has a generator of its own, which is no torch one"
    def __init__(self, n): self.n,self.rng = n,np.random.default_rng(0)
    def __len__(self): return self.n
    def __iter__(self): return iter(self.rng.permutation(self.n).tolist())

class Noisy(Points):
    "Draws from its own generator, and is validated with it too"
    def __init__(self, n, seed): super().__init__(n, seed); self.own = [random.Random(seed)]
    def __getitem__(self, i): x,y = super().__getitem__(i); return x+self.own[0].gauss(0, .1),y

train_ds,valid_ds,other_ds = Points(22, 0),Points(9, 1),Points(10, 2)
def seeded(n=7): return torch.Generator().manual_seed(n)
def shared(g):
    return DataLoader(train_ds, 4, shuffle=True, generator=g),DataLoader(valid_ds, 4, shuffle=True, generator=g)
workers = dict(num_workers=2, multiprocessing_context='fork')

kinds = dict( # the training loader, and one to validate on
    plain=lambda: (DataLoader(train_ds, 4, shuffle=True), DataLoader(valid_ds, 4)),
    shuffled_twice=lambda: (DataLoader(train_ds, 4, shuffle=True, drop_last=True),
        DataLoader(valid_ds, 4, shuffle=True)),
    own_generator=lambda: (DataLoader(train_ds, 4, shuffle=True, generator=seeded()),
        DataLoader(valid_ds, 4, shuffle=True, generator=seeded(8))),
    one_generator_for_both=lambda: shared(seeded()),
    sampler=lambda: (DataLoader(train_ds, 4, sampler=WeightedRandomSampler([1.]*22, 22, generator=seeded())),
        DataLoader(valid_ds, 4, sampler=RandomSampler(valid_ds, generator=seeded(8)))),
    batch_sampler=lambda: (DataLoader(train_ds,
        batch_sampler=BatchSampler(RandomSampler(train_ds, generator=seeded()), 4, False)), DataLoader(valid_ds, 4)),
    numpy_sampler=lambda: (DataLoader(train_ds, 4, sampler=Order(22)), DataLoader(valid_ds, 4, sampler=Order(9))),
    noisy=lambda: (lambda ds: (DataLoader(ds, 4, shuffle=True), DataLoader(Subset(ds, range(9)), 4)))(Noisy(22, 0)),
    knowing=lambda: (DataLoader(runs.Knowing(True), 8,
        collate_fn=lambda o: (torch.stack([x for x,_,_ in o]), torch.tensor([i%3 for _,i,_ in o]))),
        DataLoader(valid_ds, 4)),
    stream=lambda: (DataLoader(Stream(), 4), DataLoader(Stream(), 4)),
    no_loader=lambda: ([(torch.randn(4,4), torch.tensor([0,1,2,0])) for _ in range(6)],
        [(torch.randn(4,4), torch.tensor([0,1,2,0]))]*2))
with_workers = dict(
    two=lambda: (DataLoader(train_ds, 4, shuffle=True, **workers), DataLoader(valid_ds, 4, **workers)),
    two_own_generator=lambda: (DataLoader(train_ds, 4, shuffle=True, generator=seeded(), **workers),
        DataLoader(valid_ds, 4, shuffle=True, generator=seeded(8), **workers)),
    persistent=lambda: (DataLoader(train_ds, 4, shuffle=True, persistent_workers=True, **workers),
        DataLoader(valid_ds, 4, persistent_workers=True, **workers)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4,8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(.3), nn.Linear(8,3))
        self.register_buffer('seen', torch.zeros(()))
        self.register_buffer('calls', torch.zeros(()), persistent=False)
    def forward(self, x):
        if self.training: self.seen += len(x)
        self.calls += 1 # in evaluation too
        x = x*(1+.001*self.calls)
        # noise in evaluation too: it draws from the generator that dropout draws from
        return self.layers(x + .01*torch.rand(4))

def digest(learn):
    "Of weights, buffers and the optimizer's state"
    res = hashlib.sha256()
    for t in (*learn.model.state_dict().values(), learn.model.calls): res.update(t.numpy().tobytes())
    for p in learn.model.parameters():
        for v in learn.opt.state[p].values(): res.update(v.numpy().tobytes())
    return res.hexdigest()[:12]

class Steps(Callback):
    "What happened in each step: the samples, the loss, the state of everything after it"
    order,run_valid,only_fit = 2000,False,True
    def __init__(self): self.seen = []
    def after_batch(self):
        self.seen.append((self.learn.idxs, self.learn.loss.item(), digest(self.learn), self.learn.model.training,
            self.learn.epoch, self.learn.train_iter))

class Looks(Callback):
    "Calls `f(learn)` at the `n`-th `ev` of training or validation"
    def __init__(self, ev, n, f):
        self.ev,self.at,self.f,self.count,self.inside = ev,n,f,0,False
        super().__init__(**{ev: Looks._tell})
        self.only_fit = True
    def _tell(self):
        self.count += not self.inside
        if self.count!=self.at or self.inside: return
        self.inside = True # it does not look at itself
        try: self.f(self.learn)
        finally: self.inside = False
        self.count += 1

def quiet(f):
    def _f(learn):
        with redirect_stdout(StringIO()): f(learn)
        plt.close('all')
    return _f

def look_twice(learn):
    try: learn.tta(n=2, aug=lambda x: x+torch.randn(4))
    except ValueError as e:
        if 'of different samples' not in str(e): raise # a stream that draws them anew each time: refused

def other(): return DataLoader(other_ds, 5, shuffle=True)
def hooked(learn):
    with hook_outputs(flatten_model(learn.model)) as hooks: learn.validate()
    hooks.stored
def interpreted(learn):
    interp = ClassificationInterpretation.from_learner(learn, dl=DataLoader(valid_ds, 4, shuffle=True))
    interp.confusion_matrix(), interp.top_losses(3), interp[0], interp[[1, 0]], interp.show_results(
        [0]), interp.plot_confusion_matrix(), interp.report()
def saved(learn): learn.save('weights'); learn.save(learn.path/'also.pth', with_opt=False)
def plotted(learn):
    if learn.recorder.losses: learn.recorder.plot_loss(skip_start=0)
    str(learn.recorder), learn.recorder._repr_html_(), learn.recorder.values, learn.recorder.log, learn.recorder.losses
def failing(learn):
    with pytest.raises(ZeroDivisionError): learn.validate(cbs=Raise('after_pred', ZeroDivisionError))
def cancelled(learn): learn.validate(cbs=Raise('after_pred', CancelValidException))
def broken_loader(learn):
    def dl(): yield train_ds[0][0][None],train_ds[0][1][None]; torch.rand(3); random.random(); 1/0
    with pytest.raises(ZeroDivisionError): learn.get_preds(dl=dl())

looks = {k:quiet(f) for k,f in dict(
    validate=lambda learn: learn.validate(),
    validate_another=lambda learn: learn.validate(dl=other(), cbs=ShortEpochCallback(.5)),
    validate_on_training=lambda learn: learn.validate(0),
    validate_on_the_loader_in_use=lambda learn: learn.validate(dl=learn.dls.train if learn.dl is None else learn.dl),
    get_preds=lambda learn: learn.get_preds(with_input=True, with_decoded=True, with_loss=True),
    get_preds_of_training=lambda learn: learn.get_preds(0),
    get_preds_as_they_come=lambda learn: learn.get_preds(0, reorder=False),
    get_preds_inner=lambda learn: learn.get_preds(dl=other(), inner=True),
    predict=lambda learn: learn.predict(torch.ones(4), with_input=True),
    tta=look_twice,
    summary=lambda learn: repr(learn.summary()),
    show_results=lambda learn: learn.show_results(),
    show_results_of_training=lambda learn: learn.show_results(0, max_n=2),
    one_batch=lambda learn: (learn.dls.one_batch(), learn.dls.one_batch(1)),
    plots=plotted, save=saved, save_state=lambda learn: learn.save_state('whole'),
    printed=lambda learn: (print(learn), learn.show_training_loop(), learn.dls,
        learn._repr_html_() if hasattr(type(learn), '_repr_html_') else None),
    idxs=lambda learn: (learn.idxs, learn.pct_train, learn.at, learn.x, learn.y),
    interpretation=interpreted, hooks=hooked, an_error=failing, a_cancel=cancelled, an_error_in_a_loader=broken_loader,
).items()}
def finder_fails(learn):
    learn.add_cb(bad := Raise('after_step', ZeroDivisionError, n=3))
    try:
        with pytest.raises(ZeroDivisionError): learn.lr_find(num_it=9)
    finally: learn.remove_cb(bad)

def tries(f):
    def _f(learn):
        with learn.removed_cbs(Steps): f(learn) # its steps are none of the run
    return _f

between = looks | {k:quiet(f) for k,f in dict(
    smoke=tries(lambda learn: learn.smoke()), profile=tries(lambda learn: learn.profile(3, waits_every=1)),
    memory=tries(lambda learn: learn.memory(bs=50)), trace=tries(lambda learn: learn.trace()),
    show_loop=tries(lambda learn: learn.show_loop()),
    lr_find=lambda learn: learn.lr_find(num_it=12, suggest_funcs=(SuggestionMethod.Valley, SuggestionMethod.Steep)),
    lr_find_that_fails=finder_fails).items()}

attached = dict( # for the whole run
    activation_stats=lambda: ActivationStats(with_hist=True),
    some_activation_stats=lambda: ActivationStats(every=2, include_paramless=True),
    gradients=lambda: HookCallback(hook=lambda m,i,o: None, is_forward=False),
    collect=CollectDataCallback, fetch_preds=lambda: FetchPredsCallback(with_input=True),
    fetch_training_preds=lambda: FetchPredsCallback(0), trace=Trace, profile=lambda: Profile(waits_every=2),
    graph=ShowGraphCallback, bar=lambda: ProgressCallback(every=0.),
    checkpoint=Checkpoint, checkpoint_in_epochs=lambda: Checkpoint(2, 'iter', keep=None),
    checkpoint_by_steps=lambda: Checkpoint(3, 'step', folder='steps'), checkpoint_by_time=lambda: Checkpoint(.005, 's'),
    function=lambda: on(event.after_batch(every=2) | event.before_step)(
        lambda learn: (learn.idxs, float(learn.loss.detach()))))
others = dict( # what the learner has besides
    metrics=dict(metrics=dict(first=accuracy, second=lambda pred,y: torch.rand(()))),
    train_metrics=dict(metrics=accuracy, own=lambda: Recorder(train_metrics=True)),
    no_validation=dict(valid=lambda v: None),
    more_validation=dict(valid=lambda v: dict(first=v, second=DataLoader(other_ds, 5, shuffle=True))),
    another_validation=dict(valid=lambda v: other()), a_list=dict(valid=lambda v: [(torch.ones(3,4), torch.arange(3))]),
    no_callbacks=dict(default_cbs=False, own=TrainEvalCallback))

@pytest.fixture(scope='module')
def folder(tmp_path_factory): return tmp_path_factory.mktemp('looking')

def run(kind, folder, inside=(), around=(), cbs=(), valid=lambda v: v, own=None, **kwargs):
    """Two fits, and what happened in each of their steps; `inside` are `(event, n, look)`, and `around` looks before,
    between and after the fits"""
    for f in (random, np.random, torch): (f.manual_seed if f is torch else f.seed)(3)
    train,v = (kinds|with_workers)[kind]()
    model = Net()
    learn = Learner(DataLoaders(train, valid(v), device='cpu'), model, nn.CrossEntropyLoss(),
        opt_func=lambda ps,lr=.01: torch.optim.AdamW(ps, lr=lr), path=folder, **kwargs)
    learn.remove_cb(ProgressCallback)
    if own: learn.remove_cb(Recorder).add_cb(own())
    learn.add_cb(steps := Steps())
    looked = [Looks(ev, n, looks[look]) for ev,n,look in inside]
    with redirect_stdout(StringIO()):
        for i in range(3):
            for o in around: between[o](learn)
            if i<2: learn.fit(2-i, cbs=[*looked, *(attached[o]() for o in cbs)])
    plt.close('all')
    for o in (train, v): getattr(o, '__dict__', {}).pop('_iterator', None) # workers end
    return steps.seen,digest(learn),torch.rand(2).tolist(),random.random(),np.random.rand()

bare = {}
def unwatched(kind, folder):
    "A run at which nobody looks"
    if kind not in bare: bare[kind] = run(kind, folder)
    return bare[kind]

def check(kind, folder, **kwargs):
    ref,res = unwatched(kind, folder),run(kind, folder, **kwargs)
    for i,(a,b) in enumerate(zip(ref[0], res[0])): assert a==b, f'step {i}: {a} → {b}'
    assert res==ref

every = {**kinds, **with_workers}
places = [o for o in dict(moments()) if not o.startswith('after_cancel')]

@pytest.mark.parametrize('kind', every)
def test_a_run_can_be_repeated(kind, folder):
    "Or the others show nothing; and its steps differ from each other"
    a = unwatched(kind, folder)
    assert a==run(kind, folder) and len({o[2] for o in a[0]})==len(a[0])>=15

@pytest.mark.sample(6)
@pytest.mark.parametrize('look', between)
@pytest.mark.parametrize('kind', ['plain','one_generator_for_both','stream','numpy_sampler','noisy','knowing'])
def test_between_fits(kind, look, folder): check(kind, folder, around=[look])

@pytest.mark.sample(9)
@pytest.mark.parametrize('look', looks)
@pytest.mark.parametrize('kind', kinds)
def test_inside(kind, look, folder):
    rng = random.Random(look+kind)
    check(kind, folder, inside=[(rng.choice(places), rng.randint(1, 8), look)])

@pytest.mark.sample(3)
@pytest.mark.parametrize('name', attached)
@pytest.mark.parametrize('kind', ['plain','own_generator','no_loader'])
def test_attached(kind, name, folder): check(kind, folder, cbs=[name])

@pytest.mark.sample(5)
@pytest.mark.parametrize('name', others)
@pytest.mark.parametrize('kind', kinds)
def test_more_or_less(kind, name, folder): check(kind, folder, **others[name])

a_look = st.tuples(st.sampled_from(places), st.integers(1, 12), st.sampled_from(list(looks)))
# without a loader, looks at it are errors
besides = st.sampled_from([{}, *(v for k,v in others.items() if k!='no_validation')])
some = dict(inside=st.lists(a_look, max_size=4), around=st.lists(st.sampled_from(list(between)), max_size=2),
    cbs=st.lists(st.sampled_from(list(attached)), max_size=3, unique=True))

@settings(max_examples=settings().max_examples//2)
@given(st.sampled_from(list(kinds)), st.fixed_dictionaries(some), besides)
def test_anything_anywhere(folder, kind, observers, more):
    check(kind, folder, **observers, **more)

@settings(max_examples=settings().max_examples//15)
@given(st.sampled_from(list(with_workers)), st.fixed_dictionaries(some), besides)
def test_anything_anywhere_with_workers(folder, kind, observers, more):
    # whose workers begin anew in each epoch then
    if kind=='persistent': observers = dict(observers, cbs=[o for o in observers['cbs'] if 'checkpoint' not in o])
    check(kind, folder, **observers, **more)

@pytest.mark.slow
@pytest.mark.parametrize('ev', places)
def test_everything_everywhere(ev, folder):
    for look in looks:
        for n in (1, 4): check('plain', folder, inside=[(ev, n, look)])

@pytest.mark.slow
@pytest.mark.parametrize('look', looks)
@pytest.mark.parametrize('kind', with_workers)
def test_inside_with_workers(kind, look, folder):
    for ev,n in [('before_draw', 3), ('after_batch', 2), ('after_batch', 7), ('before_step', 8)]:
        check(kind, folder, inside=[(ev, n, look)])
