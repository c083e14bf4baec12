"Copies and pickles of learners, and when their memory is free"
import copy,gc,pickle,re,subprocess,sys,threading,warnings,weakref
from dataclasses import dataclass
import numpy as np,pytest,torch
from torch.nn import functional as F
from learner.all import *
from learner.inspect.testing import RegModel,synth_dls
from processes import env

loss_func = F.mse_loss
def made(**kwargs):
    torch.manual_seed(0)
    return Learner(synth_dls(4, 2), RegModel(), loss_func, **dict(lr=.05) | kwargs).remove_cb(ProgressCallback)

def counts(learn): learn.state.n = learn.state.get('n', 0)+1
def stopped(n=6, **kwargs):
    learn = made(**kwargs)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Raise('before_draw', KeyboardInterrupt, n))
    return learn

# How a learner has been used. Each returns it
used = dict(
    new=made,
    fit=lambda: made().fit(2),
    one_cycle=lambda: made().fit_one_cycle(2),
    validated=lambda: (l := made(), l.validate())[0],
    predicted=lambda: (l := made(), l.get_preds(), l.predict(torch.ones(1)))[0],
    lr_find=lambda: (l := made(), l.lr_find(num_it=6, show_plot=False))[0],
    stopped=stopped,
    stopped_in_validation=lambda: stopped(12),
    stopped_for_now=lambda: made().fit(3, cbs=StopsForNow()),
    failed=lambda: failed(),
    resumed=lambda: stopped().resume(cbs=[]),
    callbacks=lambda: made(cbs=[EarlyStoppingCallback(patience=9), GradientClip(1.), EMA(.9),
        SaveModelCallback(fname=None), MixUp()], metrics=mae).fit(2),
    functions=lambda: made(cbs=[on('after_batch', every=2)(counts)]).fit(2),
    scheduler=lambda: made().fit(2, cbs=halving()),
    hooks=lambda: made(cbs=[ActivationStats(), HookCallback(hook=shape)]).fit(1),
    lbfgs=lambda: made(opt_func=torch.optim.LBFGS, lr=.1).fit(1),
    ready_optimizer=lambda: ready(),
    decay=lambda: made(opt_func=SGD, wd=.5, wd_bn_bias=True).fit(1),
    decay_of_two=lambda: made(opt_func=two_that_decay, wd=.5, wd_bn_bias=True).fit(1),
    two_optimizers=lambda: made(opt_func=two, lr=.01).fit(1),
    two_with_a_scheduler=lambda: made(opt_func=two, lr=.01).fit(1, cbs=halving()),
    frozen=lambda: made(splitter=halves).freeze_to(1).fit(1))

class StopsForNow(Callback):
    def before_draw(self):
        if self.learn.train_iter==5: self.learn.stop_for_now()

def shape(m, i, o): return o.shape
def two(groups):
    ps = [p for g in groups for p in g['params']]
    return OptimList(torch.optim.SGD(ps[:1], lr=.01), torch.optim.Adam(ps[1:], lr=.01), every=[1,2])
def two_that_decay(groups): return OptimList(SGD(groups, lr=.01))
def halving(): return TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, .5))
def halves(m): return [[m.a],[m.b]]
def failed():
    learn = made()
    with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=Raise('after_pred', ZeroDivisionError, 3))
    return learn
def ready():
    model = RegModel()
    return Learner(synth_dls(4, 2), model, loss_func,
        opt_func=torch.optim.Adam(model.parameters(), lr=.05)).remove_cb(ProgressCallback).fit(1)

def goes_on(learn):
    "Weights and losses of what comes next"
    torch.manual_seed(3)
    learn.resume(cbs=[]) if learn.at else learn.fit(1)
    return [p.tolist() for p in learn.model.parameters()],learn.recorder.raw_losses,[
        o.valid_loss for o in learn.recorder.rows],learn.state.get('n')

def pickled(learn): return pickle.loads(pickle.dumps(learn))

@pytest.mark.sample(2)
@pytest.mark.filterwarnings('ignore:.*stopped in the middle')
@pytest.mark.parametrize('copied', [copy.deepcopy, pickled], ids=['deepcopy','pickle'])
@pytest.mark.parametrize('how', used)
def test_a_copy_goes_on_as_its_original_and_shares_nothing_with_it(how, copied):
    learn = used[how]()
    twin = copied(learn)
    before = [p.tolist() for p in learn.model.parameters()]
    assert ([type(o) for o in twin.cbs]==[type(o) for o in learn.cbs] and all(o.learn is twin for o in twin.cbs)
        and all(o.learn is learn for o in learn.cbs))
    assert twin.recorder in twin.cbs and twin.route.learn is twin and twin.cbs.owner is twin
    res = goes_on(twin)
    assert [p.tolist() for p in learn.model.parameters()]==before
    assert goes_on(learn)==res

class Logs(Callback):
    "Copies its attributes, without those that cannot be pickled, as Python's documentation has it"
    def __init__(self): self.seen = []; self.open()
    def open(self): self.lock = threading.Lock()
    def after_batch(self): self.seen.append(self.train_iter)
    def __getstate__(self):
        state = self.__dict__.copy()
        del state['lock']
        return state
    def __setstate__(self, state): self.__dict__.update(state); self.open()

@dataclass(eq=False, slots=True)
class Slots(Callback):
    a:int
    def before_fit(self): self.learn.state.n = self.a

class InSlots(Learner):
    __slots__ = 'own',

@pytest.mark.parametrize('copied', [copy.deepcopy, pickled, copy.copy], ids=['deepcopy','pickle','copy'])
@pytest.mark.parametrize('fitted', [False, True])
def test_a_callback_with_a_usual_getstate_can_be_copied(copied, fitted):
    learn = made(cbs=Logs)
    if fitted: learn.fit(1)
    cb = copied(learn.logs)
    assert cb.seen==learn.logs.seen and cb.learn is None and type(cb.lock) is type(threading.Lock())
    if copied is copy.copy: return
    twin = copied(learn)
    assert twin.logs.learn is twin and goes_on(twin)==goes_on(learn) and twin.logs.seen==learn.logs.seen

def test_a_callback_with_a_usual_getstate_can_be_copied_in_a_fit():
    copies = []
    learn = made(cbs=Logs)
    learn.fit(1, cbs=on(event.after_batch(once=2))(lambda learn: copies.append(pickled(learn.logs))))
    assert copies[0].learn is None and copies[0].seen in ([1], [1,2])

@pytest.mark.parametrize('copied', [copy.deepcopy, pickled], ids=['deepcopy','pickle'])
def test_attributes_in_slots_are_copied(copied):
    base = made()
    learn = InSlots(base.dls, base.model, loss_func, lr=.05, cbs=Slots(3)).remove_cb(ProgressCallback)
    learn.own = [7]
    twin = copied(learn)
    assert twin.own==[7] and twin.own is not learn.own and twin.slots.a==3
    assert copy.copy(twin.slots).a==3 and copied(twin.slots).a==3
    assert goes_on(twin)==goes_on(learn) and twin.state.n==3

@dataclass
class Config: scale:float=2.
class Wrapped(RegModel):
    "Holds an object of a dataclass, and has a method with a decorator: their functions hold others that have no pickle"
    def __init__(self): super().__init__(); self.config,self.n = Config(),0
    @torch.no_grad()
    def count(self): self.n += 1
    def forward(self, x): self.count(); return super().forward(x)*self.config.scale

@pytest.mark.filterwarnings('ignore:.*stopped in the middle')
@pytest.mark.parametrize('copied', [copy.deepcopy, pickled], ids=['deepcopy','pickle'])
@pytest.mark.parametrize('stops', [False, True])
def test_a_model_with_wrapped_functions_is_copied_before_and_after_a_fit(stops, copied):
    learn = made()
    learn.model = Wrapped()
    copied(learn)
    if stops:
        with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Raise('before_draw', KeyboardInterrupt, 6))
    else: learn.fit(1)
    twin = copied(learn)
    assert twin.model.n==learn.model.n>0 and goes_on(twin)==goes_on(learn) and twin.model.n==learn.model.n

class Nothing: "What a variable of a function has before there is a value"
def averaged():
    mean = Nothing()
    def loss(p, y):
        nonlocal mean
        res = F.mse_loss(p, y)
        mean = res.item() if isinstance(mean, Nothing) else .5*mean+.5*res.item()
        return res*(1+mean)
    return loss

def test_a_file_of_a_copy_has_variables_that_had_no_value_before(tmp_path):
    def learner():
        torch.manual_seed(0)
        return Learner(synth_dls(4, 0), RegModel(), averaged(), lr=.05, path=tmp_path).remove_cb(ProgressCallback)
    def stop(learn): learn.stop_soon()
    whole = learner().fit(2)
    learn = learner().fit(2, cbs=on(event.before_train(once=1))(stop)) # which notes what there is
    twin = copy.deepcopy(learn)
    twin.resume(cbs=on(event.after_batch(once=5))(stop)).save_state('here')
    other = learner()
    other.load_state('here')
    other.resume(cbs=[])
    assert all(map(torch.equal, other.model.parameters(), whole.model.parameters()))

def test_a_class_that_holds_a_type_beside_what_has_no_copy():
    learn = made()
    class Typed(RegModel): pair = int,threading.Lock()
    learn.model = Typed()
    assert copy.deepcopy(learn.fit(1)).model.pair is Typed.pair

class Locked(torch.nn.Linear):
    "Holds what cannot be copied, and leaves it out of its state"
    def __init__(self, *args): super().__init__(*args); self.scale = 1.; self.open()
    def open(self): self.lock,self.words = threading.Lock(),re.compile('a+')
    def forward(self, x): return super().forward(x)*self.scale
    def __getstate__(self): return {k:v for k,v in vars(self).items() if k not in ('lock','words')}
    def __setstate__(self, d): super().__setstate__(d); self.open()

class Recurrent(torch.nn.Module):
    def __init__(self): super().__init__(); self.rnn,self.head = torch.nn.LSTM(1, 3),Locked(3, 1)
    def forward(self, x): return self.head(self.rnn(x)[0])

@pytest.mark.parametrize('copied', [copy.deepcopy, pickled], ids=['deepcopy','pickle'])
def test_what_a_layer_leaves_out_of_its_state_is_in_no_copy(copied, tmp_path, recwarn):
    "A fit has noted its attributes; a file of the copy has those that training has changed, and warns of none"
    def rescales(learn): learn.model.head.scale = 2.
    torch.manual_seed(0)
    learn = Learner(synth_dls(4, 2), Recurrent(), loss_func, lr=.05).remove_cb(ProgressCallback)
    learn.fit(1, cbs=on(event.before_epoch)(rescales))
    twin = copied(learn)
    assert goes_on(twin)==goes_on(learn)
    twin.path = tmp_path
    twin.fit(1, cbs=Checkpoint())
    torch.manual_seed(0)
    other = Learner(synth_dls(4, 2), Recurrent(), loss_func, lr=.05, path=tmp_path).remove_cb(ProgressCallback)
    other.fit(1, cbs=Checkpoint(), resume=True)
    assert other.model.head.scale==2. and not [o for o in recwarn if 'cannot be saved' in str(o.message)]

def test_inside_a_fit_it_is_refused():
    class Copies(Callback):
        def after_batch(self): copy.deepcopy(self.learn)
    with pytest.raises(RuntimeError, match='cannot be copied or pickled inside a running `fit`'):
        made().fit(1, cbs=Copies)

def test_a_copied_callback_belongs_to_no_learner():
    learn = made(cbs=GradientClip(1.))
    for cb in (copy.copy(learn.gradient_clip), copy.deepcopy(learn.gradient_clip), pickled(learn.gradient_clip)):
        assert cb.learn is None and cb.max_norm==1. and learn.gradient_clip.learn is learn

@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()

@pytest.mark.parametrize('how', used)
def test_a_learner_leaves_memory_with_its_last_name(how, no_collector):
    learn = used[how]()
    refs = dict(learner=weakref.ref(learn), model=weakref.ref(learn.model),
        weights=weakref.ref(next(learn.model.parameters())),
        dls=weakref.ref(learn.dls),
        recorder=weakref.ref(learn.recorder)) | ({} if learn.opt is None else dict(opt=weakref.ref(learn.opt)))
    del learn
    assert [k for k,r in refs.items() if r() is not None]==[]

def looked_into(learn):
    "By what searches a learner, or makes a class of its own for it"
    learn.show_loop()
    learn.fit(1, cbs=[Checkpoint(), Rewind()])
    learn.save_state('here')
    learn.load_state('here').validate()

def test_a_learner_and_its_classes_leave_memory_after_it_was_looked_into(tmp_path, capsys):
    class Net(torch.nn.Linear): "A class whose cell is run again is another one"
    class Counts(torch.nn.MSELoss): n = 0
    learn = Learner(synth_dls(4, 2), Net(1, 1), Counts(), path=tmp_path).remove_cb(ProgressCallback)
    refs = [weakref.ref(o) for o in (learn, learn.model, Net, Counts)]
    looked_into(learn)
    del learn,Net,Counts
    gc.collect()
    assert [o() for o in refs]==[None]*4

def test_in_a_sweep_there_is_one_model_at_a_time(no_collector):
    alive = []
    for lr in (.1, .2, .3, .4):
        learn = made(lr=lr).fit(1)
        alive.append(weakref.ref(learn.model))
        assert sum(o() is not None for o in alive)==1
        del learn
    assert not any(o() is not None for o in alive)

first = '''import gc,weakref
from learner.all import *
gc.disable()
learn = synth_learner().fit(1)
model = weakref.ref(learn.model)
del learn
assert model() is None
'''
@pytest.mark.slow
def test_the_first_learner_of_a_process_leaves_memory_too():
    "What torch imports for it catches errors, whose frames would keep it"
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', first], env=env, capture_output=True, text=True)
    assert res.returncode==0, res.stderr

def test_a_callback_whose_learner_is_gone_can_be_used_again(no_collector):
    cb = EarlyStoppingCallback(patience=9)
    made(cbs=cb).fit(1)
    assert cb.learn is None and cb.best<100
    assert made(cbs=cb).fit(1).early_stopping is cb

def test_a_digest_of_a_large_array_makes_no_copy_of_it():
    "Each held point and each checkpoint takes one of the arrays of a dataset"
    import tracemalloc
    from learner.values.digests import digest
    for v in torch.rand(500, 1000),np.random.rand(500, 1000):
        seen = {digest(v), digest(v.reshape(1000, 500))}
        tracemalloc.start()
        try: seen.add(digest(v)); peak = tracemalloc.get_traced_memory()[1]
        finally: tracemalloc.stop()
        v[250,500] += 1
        assert len(seen)==2 and digest(v) not in seen and peak<100_000
    days = np.array(['2020-01-01','2020-01-02'], dtype='datetime64[D]')
    assert digest(days[:1])!=digest(days[1:])
    assert digest(np.zeros((0,3)))!=digest(np.zeros((3,0))) and digest(torch.rand(3, 4).T) is not None

def test_long_sets_and_dicts_have_no_digest_and_are_not_read():
    from learner.values.digests import digest
    class Unread(list):
        def __repr__(self): raise AssertionError
        __hash__ = object.__hash__
    class Table(dict):
        def items(self): raise AssertionError
    assert digest({Unread() for _ in range(1001)}) is None and digest(Table.fromkeys(range(1001))) is None

def test_a_large_tensor_has_no_digest_and_is_not_copied_from_its_device():
    "A sparse one consists of several"
    from learner.values.digests import digest
    from torch.utils._python_dispatch import TorchDispatchMode
    class Reads(TorchDispatchMode):
        "Refuses operations: reading a tensor takes some, on its device"
        def __torch_dispatch__(self, f, types, args=(), kwargs=None): raise AssertionError('read')
    few,many = torch.zeros(10),torch.zeros(2_600_000)
    with Reads():
        assert digest(many) is None
        with pytest.raises(AssertionError, match='read'): digest(few)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # torch: such tensors are in beta state
        small,large = (torch.ones(n, n).to_sparse_csr() for n in (3, 1700))
    assert digest(large) is None and digest(large.to_sparse_coo()) is None
    assert digest(small)==digest(small.clone())!=digest(small*2)
    z = torch.tensor([1+2j, 3-1j])
    assert digest(z.conj())==digest(z.conj().resolve_conj())!=digest(z) and digest(z.imag)==digest(-z.conj().imag)

# With each callback of this library
class WithNorm(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
def steps(opt): return torch.optim.lr_scheduler.StepLR(opt, 1, .5)
def same(o): return o
builtin = dict(ActivationStats=None, BnFreeze=None, CSVLogger=None, ChannelsLast=None, Checkpoint=None,
    CollectDataCallback=None, EMA=None, EarlyStoppingCallback=None, FetchPredsCallback=None, Fingerprint=None,
    GatherPredsCallback=None, GradientAccumulation=lambda: GradientAccumulation(32), GradientClip=None,
    HookCallback=lambda: HookCallback(hook=shape), JSONLogger=None, Ledger=None, MCDropoutCallback=None,
    MapBatch=lambda: MapBatch(same), MapPred=lambda: MapPred(same), MicroBatch=lambda: MicroBatch(8), MixUp=None,
    MixedPrecision=lambda: MixedPrecision('bf16'), ParamScheduler=lambda: ParamScheduler(dict(lr=SchedCos(.1, .01))),
    Profile=None, ReduceLROnPlateau=None, SWA=None, SaveModelCallback=None, ShortEpochCallback=None, SpikeGuard=None,
    TerminateOnNaNCallback=None, TorchScheduler=lambda: TorchScheduler(steps), Trace=None)

def with_callback(cb, path):
    "A learner that was stopped in its second epoch"
    cb = eval(cb)() if builtin[cb] is None else builtin[cb]()
    torch.manual_seed(0)
    learn = Learner(synth_dls(4, 2), WithNorm(), loss_func, lr=.05, cbs=cb, path=path).remove_cb(ProgressCallback)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=Raise('before_draw', KeyboardInterrupt, 6))
    return learn

@pytest.mark.filterwarnings('ignore')
@pytest.mark.sample(2)
@pytest.mark.parametrize('copied', [copy.deepcopy, pickled], ids=['deepcopy','pickle'])
@pytest.mark.parametrize('cb', builtin)
def test_a_copy_with_any_callback_goes_on_as_its_original(cb, copied, tmp_path):
    learn = with_callback(cb, tmp_path)
    def goes_on(learn): learn.resume(cbs=[]); return [p.tolist() for p in learn.model.parameters()]
    assert goes_on(copied(learn))==goes_on(learn)

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('cb', builtin)
def test_a_learner_and_its_callback_leave_memory_together(cb, tmp_path, no_collector):
    learn = with_callback(cb, tmp_path)
    refs = {k:weakref.ref(o) for k,o in dict(learner=learn, model=learn.model, callback=learn.cbs[-1]).items()}
    del learn
    assert [k for k,r in refs.items() if r() is not None]==[]

def test_a_pickle_of_an_older_version_is_read():
    "Which has the optimizer as `opt`, and nothing of slots"
    learn = made().fit(1)
    state = pickle.loads(pickle.dumps(learn.__getstate__()))
    del state['in_slots'], state['two_weights'], state['needs_closure']
    state['opt'] = state.pop('_current_opt')
    old = Learner.__new__(Learner)
    old.__setstate__(state)
    assert old.opt is not None and old.opt is old.opt_as_made.opt and not old.needs_closure
    torch.manual_seed(1); learn.fit(1)
    torch.manual_seed(1); old.fit(1)
    assert all(map(torch.equal, old.model.parameters(), learn.model.parameters()))
