"""Ctrl-C in `validate`, `get_preds` and `predict`, at every line of the library: everything is as it was before, and
the next call works. What runs for long is interrupted at once"""
import os,random,signal,sys,threading
from copy import deepcopy
import numpy as np, pytest, torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
import learner
from learner.all import *
from conftest import flags_of
from signals import ctrl_c,handler,python_handler # noqa: F401

if os.name=='nt': pytest.skip('Windows has other signals', allow_module_level=True)

folder = os.path.join(os.path.dirname(learner.__file__), '')

class Press:
    """A trace function that presses Ctrl-C at the `at`-th line of the library. Python calls the handler with the line's
    frame; with `sends`, it is called from a function that the line has called"""
    def __init__(self, at, sends=False): self.at,self.sends,self.seen = at,sends,[]
    def __call__(self, frame, ev, arg):
        if not frame.f_code.co_filename.startswith(folder): return
        if ev=='line':
            self.seen.append((len(self.seen)+1, (frame.f_code, frame.f_lineno)))
            if len(self.seen)==self.at:
                sys.settrace(None)
                if self.sends: ctrl_c()
                else: handler()(signal.SIGINT, frame)
        return self

    def around(self, f):
        "Call `f`; what it has raised"
        old = sys.gettrace()
        sys.settrace(self)
        try: f()
        except KeyboardInterrupt as e: return e
        finally: sys.settrace(old)

def made():
    torch.manual_seed(0)
    ds = TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(.5), nn.Linear(4, 3))
    dls = DataLoaders(DataLoader(ds, 4, shuffle=True), DataLoader(ds, 4, shuffle=True), device='cpu')
    learn = Learner(dls, model, nn.CrossEntropyLoss(), metrics=accuracy, cbs=[first := FuncOf(), EMA(.9)])
    learn.model[2].eval() # a mode of its own
    first.run = False
    return learn.remove_cb(ProgressCallback).fit(1)

class FuncOf(Callback): "Has a `run` of its own"

class Shared(Callback):
    "Comes for a call, and notes whether it has begun and ended"
    begun = ended = 0
    def before_validate(self): self.begun += 1
    def cleanup_validate(self): self.ended += 1

def state(learn):
    "What has to be as it was before"
    own = {k:v if isinstance(v, (int,float,str,type(None))) else id(v) for k,v in vars(learn).items()
        if k not in ('handlers','_tables','results','exc','_announced')}
    return dict(own=own, mode=learn.mode, exc=learn.exc, scopes=[*learn.scopes], cbs=[(id(o), o.name, o.learn is learn,
        vars(o).get('run'), 'learn' in vars(o)) for o in learn.cbs], requests=[*learn.route.requests],
        training=learn.training, modes=[o.training for o in learn.model.modules()], n_outer=learn.n_outer,
        attrs=[sorted(vars(o)) for o in learn.model.modules()], waiting=[*learn.attendance.to_remove],
        weights=[o.tolist() for o in learn.model.state_dict().values()],
        random=(random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()),
        torch=(torch.is_grad_enabled(), torch.is_inference_mode_enabled()), sigint=handler())

item = torch.ones(4)
calls = dict(validate=lambda learn, cb: learn.validate(cbs=cb), get_preds=lambda learn, cb: learn.get_preds(cbs=cb),
    predict=lambda learn, cb: learn.predict(item), tta=lambda learn, cb: learn.tta(n=1),
    inner=lambda learn, cb: learn.get_preds(inner=True, cbs=cb))
def results(learn):
    "What the next calls give"
    preds,targs = learn.get_preds()
    return repr(learn.validate()),preds.tolist(),targs.tolist(),learn.predict(item)[2].tolist()
def fitted(learn):
    "Weights after another fit, of a copy"
    with torch.random.fork_rng():
        return [o.tolist() for o in deepcopy(learn).fit(1).model.state_dict().values()]

def lines(call):
    "Which lines of the library run in `call`: the first and the last time that each does, counting all that run"
    learn,watch = made(),Press(0)
    calls[call](learn, Shared()) # what is looked up at first use
    watch.around(lambda: calls[call](learn, Shared()))
    return sorted({*{o:i for i,o in watch.seen}.values(), *{o:i for i,o in reversed(watch.seen)}.values()})

def different(a, b):
    "What differs between two nested dicts"
    if not isinstance(a, dict): return a,b
    return {k:different(a[k], b[k]) for k in a if a[k]!=b.get(k)} | {k:b[k] for k in b if k not in a}

def check(call, ats, sends):
    "Press at each of the lines `ats`. What the next calls give is seen at every tenth"
    learn = made()
    calls[call](learn, Shared())
    before,expected,fit = state(learn),results(learn),fitted(learn)
    assert state(learn)==before
    for at in ats:
        cb,press = Shared(),Press(at, sends)
        e = press.around(lambda: calls[call](learn, cb))
        after = state(learn)
        assert after==before, (at, press.seen[-1], different(before, after))
        assert cb.begun<=cb.ended and (e is not None or len(press.seen)<at), (at, press.seen[-1])
        if at%10==0: assert results(learn)==expected, (at, press.seen[-1])
    assert results(learn)==expected and fitted(learn)==fit

def some(ats, n, request): return ats if 'slow' in flags_of(request.config) else sorted(random.sample(ats, n))

@pytest.mark.sample(2)
@pytest.mark.parametrize('sends', [False, True], ids=['there','called'])
@pytest.mark.parametrize('call', calls)
def test_at_any_line_everything_is_restored(call, sends, request):
    ats = lines(call)
    assert len(ats)>1000
    check(call, some(ats, 30, request), sends)

# Between changes and their undoing
def with_added(learn, inside):
    with learn.added_cbs([Shared()]): inside()
def with_removed(learn, inside):
    with learn.removed_cbs(EMA): inside()
def with_replaced(learn, inside):
    with learn.added_cbs([EMA(.5)]): inside()
def unchanged(learn, inside):
    with learn.unchanged(learn.dls.valid): inside()
def modes(learn, inside):
    with learn.keep_modes(): inside()
def no_bar(learn, inside):
    with learn.no_bar(): inside()
withs = dict(added=with_added, removed=with_removed, replaced=with_replaced, unchanged=unchanged, modes=modes,
    no_bar=no_bar)

@pytest.mark.parametrize('name', withs)
def test_at_any_line_before_and_after_a_with_everything_is_restored(name, request):
    learn,watch = made().add_cb(ProgressCallback('text')),Press(0)
    def inside():
        if name=='unchanged': torch.rand(1)
        if name=='modes': learn.model.eval()
    watch.around(lambda: withs[name](learn, inside))
    n = len(watch.seen)
    ats = some(range(1, n+1), min(n, 40), request)
    before = state(learn)
    for at in ats:
        press = Press(at)
        e = press.around(lambda: withs[name](learn, inside))
        assert state(learn)==before and (e is not None or len(press.seen)<at), (at, press.seen[-1])
        assert learn.progress.bars=='text', at
    learn.validate()

@pytest.mark.parametrize('name', withs)
def test_the_body_of_a_with_is_interrupted_at_once(name):
    learn,after = made(),[]
    def inside(): ctrl_c(); after.append(1)
    before = state(learn)
    with pytest.raises(KeyboardInterrupt): withs[name](learn, inside)
    assert not after and state(learn)==before

def test_a_fit_in_a_with_stops_where_it_can_be_resumed():
    def stop(learn):
        if learn.training and learn.train_iter==0: ctrl_c(); survived.append(1)
    learn,survived = made(),[]
    with pytest.raises(KeyboardInterrupt, match='Stopped in epoch 0, after batch 1 of 2'):
        with_removed(learn, lambda: learn.fit(2, cbs=on('after_pred')(stop)))
    assert survived and learn.at.counters.train_iter==1 and state(learn)['requests']==[]

def test_after_two_withs_that_do_not_end_in_order_nothing_waits():
    first,second = made(),made()
    one,two = first.added_cbs([Shared()]),second.added_cbs([Shared()])
    one.__enter__(); two.__enter__(); one.__exit__(None, None, None); two.__exit__(None, None, None)
    with pytest.raises(KeyboardInterrupt): ctrl_c()
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What takes long
class Pressing:
    "Ctrl-C where it is called; `survived` says whether it waited"
    survived = pressed = False
    def __call__(self, *args):
        if not self.pressed: self.pressed = True; ctrl_c(); self.survived = True
        return args[0]

def in_model(learn, press): learn.model.insert(0, type('Own', (nn.Module,), dict(forward=lambda self, x: press(x)))())
def in_loss(learn, press):
    def loss(pred, targ): return nn.functional.cross_entropy(press(pred), targ)
    learn.loss_func = loss
def in_dataset(learn, press):
    class Own(TensorDataset):
        def __getitem__(self, i): return press(super().__getitem__(i))
    learn.dls = DataLoaders(learn.dls.train, DataLoader(Own(*learn.dls.valid.dataset.tensors), 4), device='cpu')
def in_loader(learn, press):
    class Own:
        def __iter__(self): yield press(next(iter(learn.dls.train)))
    learn.dls = DataLoaders(learn.dls.train, Own(), device='cpu')
def in_callback(learn, press): learn.add_cb(Callback(after_pred=lambda self: press(0)))
def in_before_fit(learn, press): learn.add_cb(Callback(before_fit=lambda self: press(0)))
def in_own_piece(learn, press):
    class Own(Learner):
        @scope
        def _batch(self): press(0)
    learn.__class__ = Own
long = dict(model=in_model, loss=in_loss, dataset=in_dataset, loader=in_loader, callback=in_callback,
    before_fit=in_before_fit, own_piece=in_own_piece)

@pytest.mark.parametrize('call', [Learner.validate, Learner.get_preds], ids=['validate','get_preds'])
@pytest.mark.parametrize('name', long)
def test_what_takes_long_is_interrupted_at_once(name, call):
    if name=='loss' and call is Learner.get_preds: return # it needs none
    learn,press = made(),Pressing()
    long[name](learn, press)
    before = state(learn)
    with pytest.raises(KeyboardInterrupt, match='Everything is as it was before'): call(learn)
    assert not press.survived and state(learn)==before

def by_metric(learn, press):
    learn.metrics = [lambda pred, targ: (press(pred)[:,0]-targ).abs().mean()]
    learn.validate()
class Slow(TensorDataset):
    def __getitem__(self, i): return self.press(super().__getitem__(i))
def by_sample(learn, press):
    data = Slow(*learn.dls.valid.dataset.tensors)
    data.press = press
    learn.dls = DataLoaders(learn.dls.train, DataLoader(data, 4), device='cpu')
    learn.tta(n=1)
through_library = dict(metric=by_metric, act=lambda learn, press: learn.get_preds(act=press), sample=by_sample,
    map_pred=lambda learn, press: learn.get_preds(cbs=MapPred(press)),
    aug=lambda learn, press: learn.tta(n=1, aug=press))
@pytest.mark.parametrize('name', through_library)
def test_what_the_library_calls_for_the_user_is_interrupted_at_once(name):
    learn,press = made(),Pressing()
    with pytest.raises(KeyboardInterrupt): through_library[name](learn, press)
    assert not press.survived and learn.mode is None and not learn.scopes

@pytest.mark.parametrize('ev', ['after_create','cleanup_validate','cleanup_fit'])
def test_what_sets_up_or_undoes_is_not_cut(ev):
    learn,press = made(),Pressing()
    before = state(learn)
    with pytest.raises(KeyboardInterrupt, match='Everything is as it was before'):
        learn.validate(cbs=Callback(**{ev: lambda self: press(0)}))
    assert press.survived and state(learn)==before

def test_one_that_has_waited_acts_before_the_next_batch():
    learn,press = made(),Pressing()
    cbs = [Callback(cleanup_batch=lambda self: press(0)), trace := Trace('before_batch')]
    with pytest.raises(KeyboardInterrupt): learn.validate(cbs=cbs)
    assert press.survived and trace.seen==['before_batch']

def test_a_second_one_never_waits():
    learn,seen = made(),[]
    def twice(self): seen.append(ctrl_c()); seen.append(ctrl_c())
    with pytest.raises(KeyboardInterrupt): learn.validate(cbs=Callback(cleanup_fit=twice))
    assert len(seen)==1
    learn.validate()

# Around it, or beside it
def test_inside_a_fit_the_handler_of_the_fit_decides():
    learn,press = made(),Pressing()
    in_model(learn, press)
    learn.model[0].forward = lambda x: press(x) if {'train','validate'}<={*learn.scopes} else x
    with pytest.raises(KeyboardInterrupt, match='after batch 1 of 2'):
        learn.fit(1, cbs=Callback(after_step=lambda self: self.learn.validate()))
    assert press.survived and learn.at.counters.train_iter==1

def test_in_an_inference_inside_the_batch_of_another_learner_it_waits_for_that_batch():
    inner,press = made(),Pressing()
    in_model(inner, press)
    outer = made()
    with pytest.raises(KeyboardInterrupt, match='after batch 1 of 2'):
        outer.fit(1, cbs=Callback(after_step=lambda self: inner.validate()))
    assert press.survived and outer.at.counters.train_iter==1 and inner.mode is None

def test_in_another_thread_the_handler_is_left_alone():
    learn,seen = made(),[]
    def run(): learn.validate(cbs=Callback(after_pred=lambda self: seen.append(handler()))); learn.predict(item)
    t = threading.Thread(target=run)
    t.start(); t.join()
    assert {*seen}=={signal.default_int_handler} and learn.mode is None

def test_a_handler_of_the_user_is_called_once_and_the_inference_ends():
    calls,learn = [],made()
    signal.signal(signal.SIGINT, lambda signum, frame: calls.append(signum))
    try: res = learn.validate(cbs=[Callback(after_pred=lambda self: not calls and ctrl_c())])
    finally: signal.signal(signal.SIGINT, signal.default_int_handler)
    assert calls==[signal.SIGINT] and res.valid_loss>0
