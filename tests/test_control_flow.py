"""The loop against a model of it, for random programs of callbacks; and the contract of errors, notes, names, filters
and flags"""
import gc,weakref
import pytest,torch
from hypothesis import given,settings,strategies as st
from torch.nn import functional as F
from learner.all import *
from reference_model import Cb,Model,Program,errors,events,scopes

# Programs
class NoArgs(Exception): pass
makers = dict(ValueError=lambda: ValueError('bad', 3), KeyError=lambda: KeyError('k'),
    OSError=lambda: OSError(5, 'bad disk', 'a.txt'),
    NoArgs=NoArgs, StopIteration=StopIteration, KeyboardInterrupt=KeyboardInterrupt)

@st.composite
def programs(draw, at=tuple(events), kinds=('cancel','cancel','error','validate','off'), max_acts=5, cancelled=scopes):
    n_valid = draw(st.integers(0, 2))
    def act(ev):
        kind = draw(st.sampled_from(kinds))
        if kind=='validate' and (not n_valid or ev.startswith('cleanup_')): kind = 'cancel'
        if kind=='cancel':
            return 'cancel',draw(st.sampled_from(cancelled)),draw(st.sampled_from([None, 'why', 'enough']))
        return ('error',draw(st.sampled_from(errors))) if kind=='error' else (kind,)
    def flag(usual): return draw(st.sampled_from([usual, usual, not usual]))
    cbs = [Cb(f'c{i}', draw(st.sampled_from([-200, -5, 0, 0, 7, 70])),
        frozenset(draw(st.sets(st.sampled_from(events), max_size=8))),
        run_train=flag(True), run_valid=flag(True), only_fit=flag(False)) for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, max_acts))):
        ev = draw(st.sampled_from(at))
        draw(st.sampled_from(cbs)).acts[ev,draw(st.integers(1, 3))] = act(ev)
    calls = draw(st.lists(st.sampled_from(['fit','fit','validate'] if n_valid else ['fit']), max_size=2))
    return Program([Cb('witness', -100), *cbs], draw(st.sampled_from([1, 2, 3, 0])), draw(st.integers(1, 3)), n_valid,
        (*calls, 'fit'))

# Playing them
def has_grads(model): return any(p.grad is not None for p in model.parameters())

def actor(c, trace, heard):
    "The callback that `c` describes"
    calls = {}
    def handler(ev):
        def _f(self):
            trace.append((c.name,ev))
            if c.name=='witness' and ev=='before_batch' and self.training: trace.append(('grads',has_grads(self.model)))
            n = calls[ev] = calls.get(ev, 0) + 1
            match c.acts.get((ev,n)):
                case ('cancel',scope,None):   raise cancels[scope]
                case ('cancel',scope,reason): raise cancels[scope](reason)
                case ('error',name):          raise makers[name]()
                case ('validate',):           self.learn.validate()
                case ('off',):                self.run = False
        return _f
    fns = {ev:handler(ev) for ev in events if ev not in c.lacks}
    if c.name=='witness': fns['after_exception'] = lambda self: heard.append(self.exc)
    return type(c.name, (Callback,),
        fns | dict(order=c.order, run_train=c.run_train, run_valid=c.run_valid, only_fit=c.only_fit))()

def play(program, as_temporary):
    "Run `program` in the library and in the model; compare after each call"
    b = torch.ones(2, 1),torch.zeros(2, 1)
    model,trace,heard = Model(program),[],[]
    cbs = [actor(c, trace, heard) for c in program.cbs]
    learn = synth_learner(dls=DataLoaders([b]*program.n_train, [b]*program.n_valid or None, device='cpu'),
        cbs=None if as_temporary else cbs)
    n_cbs = len(learn.cbs)
    for call in program.calls:
        trace.clear(); heard.clear(); model.trace.clear()
        out,e = model.call(call),None
        kwargs = dict(cbs=cbs) if as_temporary else {}
        try: learn.fit(program.n_epoch, **kwargs) if call=='fit' else learn.validate(**kwargs)
        except BaseException as exc: e = exc
        assert trace==model.trace
        assert (e and type(e).__name__)==(out and out.error)
        if e is not None:
            if e.__class__ in (ValueError,KeyError,OSError,NoArgs): assert e.args==makers[type(e).__name__]().args
            if out.cause:
                assert (type(e.__cause__) is cancels[out.cause]
                    and all(o in str(e) for o in (type(e.__cause__).__name__, *out.by)))
            else:
                raised = e.__cause__ if type(e.__cause__) is StopIteration else e
                assert any(f'{out.by[0]}.{out.by[1]}' in o for o in raised.__notes__)
            later = [o for o in getattr(e, '__notes__', []) if o.startswith('then ')]
            assert (len(later)==len(out.later)
                and all(f'{cb}.{ev}' in o and err in o for o,(cb,ev,err) in zip(later, out.later)))
        assert heard==[e][:e is not None]
        assert (learn.train_iter,learn.opt_step,len(learn.recorder.losses))==(model.train_iter,model.opt_step,
            model.losses)
        assert learn.stop_reason==model.stop_reason
        assert learn.mode is None and learn.exc is None and len(learn.cbs)==n_cbs and all(cb.run for cb in cbs)
        assert learn.model.training and not has_grads(learn.model)

many = settings(max_examples=settings().max_examples)

@many
@given(programs(), st.booleans())
def test_any_program_runs_as_the_model_says(program, as_temporary): play(program, as_temporary)

@many
@given(programs(kinds=('cancel',), max_acts=8), st.booleans())
def test_any_cancels(program, as_temporary): play(program, as_temporary)

@many
@given(programs(kinds=('error','error','cancel'), max_acts=8,
    at=(*[o for o in events if o.startswith('cleanup_')], 'before_batch','before_train','after_batch','after_epoch')),
    st.booleans())
def test_any_failing_cleanups(program, as_temporary): play(program, as_temporary)

@many
@given(programs(kinds=('validate','validate','cancel'), max_acts=6,
    at=('before_fit','before_epoch','after_epoch','before_train','before_validate','after_validate',
        'after_cancel_validate',
        'before_draw','after_draw','before_batch','after_pred','after_batch')), st.booleans())
def test_any_nested_validations(program, as_temporary): play(program, as_temporary)

@many
@given(programs(kinds=('cancel','cancel','cancel','off'), cancelled=('batch','batch','backward','step','train'),
    max_acts=8,
    at=('before_batch','before_backward','after_cancel_backward','after_backward','before_step','after_cancel_step',
        'after_step',
        'before_zero_grad','after_zero_grad')), st.booleans())
def test_any_accumulation(program, as_temporary): play(program, as_temporary)

# Errors
class Picky(Exception):
    "Cannot be made from its own `args`"
    def __init__(self, a, *, b): super().__init__(); self.a,self.b = a,b

some_errors = makers | dict(Picky=lambda: Picky(1, b=2), AssertionError=AssertionError,
    UnicodeDecodeError=lambda: UnicodeDecodeError('utf8', b'x', 0, 1, 'why'))

@pytest.mark.parametrize('name', some_errors)
def test_error_keeps_what_it_is_and_says_where_it_was(name):
    e = some_errors[name]()
    args,state = e.args,dict(vars(e))
    class Raises(Callback):
        def after_loss(self):
            if self.training and self.epoch==1 and self.iter==1: raise e
    learn = synth_learner(2, 1, cbs=Raises)
    with pytest.raises(type(e)) as info: learn.fit(2)
    stop = isinstance(e, KeyboardInterrupt) # says itself where it was, and in a notebook nothing else
    if stop: args,state = (str(e),),dict(_render_traceback_=e._render_traceback_)
    assert info.value is e and e.args==args and {k:v for k,v in vars(e).items() if k!='__notes__'}==state
    if isinstance(e, OSError): assert (e.errno,e.filename)==(5,'a.txt')
    assert info.traceback[-1].name=='after_loss'
    notes = ' '.join([str(e)]*stop + e.__notes__)
    for o in ('Raises', 'after_loss', 'epoch 1', 'batch 1', *(() if stop else ('train',))): assert notes.count(o)==1

@pytest.mark.parametrize('validate', [False, True])
def test_error_of_the_model_says_where_it_was(validate):
    class Bad(RegModel):
        def forward(self, x):
            if self.training!=validate: raise ValueError('in the model')
            return super().forward(x)
    with pytest.raises(ValueError, match='in the model') as info: synth_learner(2, 1, model=Bad()).fit(2)
    assert (len(info.value.__notes__)==1
        and all(o in info.value.__notes__[0] for o in ('epoch 0', 'batch 0', 'valid' if validate else 'train')))

def test_error_where_no_batch_runs_names_no_batch():
    with pytest.raises(ValueError) as info: synth_learner(2, 1, cbs=Raise('before_fit', ValueError('early'))).fit(1)
    assert 'batch' not in ' '.join(info.value.__notes__)

@pytest.mark.parametrize('ev',
    ['before_fit','after_draw','after_pred','cleanup_step','after_train','after_validate','cleanup_epoch','after_fit'])
@pytest.mark.parametrize('name', some_errors)
def test_after_exception_fires_once_with_the_error(name, ev):
    e,heard = some_errors[name](),[]
    learn = synth_learner(2, 1, cbs=[Raise(ev, e), Callback(after_exception=lambda self: heard.append(self.exc))])
    with pytest.raises(type(e)): learn.fit(1)
    assert heard==[e] and learn.exc is None
    learn.fit(1)
    assert heard==[e]

@pytest.mark.parametrize('e', [ValueError, CancelStepException])
@pytest.mark.parametrize('call', ['fit','validate'])
def test_after_exception_fires_for_an_error_in_the_last_cleanup(e, call):
    heard = []
    learn = synth_learner(2, 1,
        cbs=[Raise('cleanup_fit', e), Callback(after_exception=lambda self: heard.append(self.exc))])
    with pytest.raises(Exception) as info: learn.fit(1) if call=='fit' else learn.validate()
    assert heard==[info.value] and learn.exc is None

@pytest.mark.parametrize('scope', cancels)
def test_after_exception_is_not_for_cancels(scope):
    heard = []
    synth_learner(2, 1, cbs=[Raise(f'before_{scope}', cancels[scope]),
        Callback(after_exception=lambda self: heard.append(1))]).fit(1)
    assert not heard

def test_after_exception_sees_the_batch_that_failed():
    seen = []
    look = Callback(after_exception=lambda self: seen.append((self.iter, self.xb[0].shape, self.loss.ndim, self.mode)))
    learn = synth_learner(2, 1, cbs=[Raise('after_loss', ValueError, n=2), look])
    with pytest.raises(ValueError): learn.fit(1)
    assert seen==[(1, (16,1), 0, 'fit')]
    assert learn.xb is learn.loss is learn.pred is learn.dl is None

def test_no_traceback_is_kept_alive():
    "Or the tensors of the failed batch would stay in memory"
    refs = []
    def fail(self): refs.append(weakref.ref(self.loss)); raise ValueError('bad')
    learn = synth_learner(2, 1, cbs=Callback(after_loss=fail))
    try: learn.fit(1)
    except ValueError: pass
    gc.collect()
    assert refs[0]() is None

def test_error_in_a_nested_validate_is_announced_once_and_can_be_handled():
    heard,done = [],[]
    def look(self):
        if not self.training or done: return
        done.append(1)
        with pytest.raises(ValueError): self.learn.validate(cbs=Raise('after_pred', ValueError('inside')))
    learn = synth_learner(2, 1,
        cbs=[Callback(after_batch=look), Callback(after_exception=lambda self: heard.append(str(self.exc)))])
    learn.fit(1)
    assert heard==['inside'] and learn.opt_step==2 and len(learn.recorder.losses)==2 and len(learn.recorder.rows)==1

def failing(*evs):
    return [type(f'Fails{i}', (Callback,), {ev: lambda self, i=i: exec(f"raise ValueError({i})")})()
        for i,ev in enumerate(evs)]

def test_first_failing_cleanup_propagates_and_later_ones_are_its_notes():
    trace = Trace()
    learn = synth_learner(2, 1, cbs=[trace, *failing('cleanup_batch', 'cleanup_batch', 'cleanup_train', 'cleanup_fit')])
    with pytest.raises(ValueError) as info: learn.fit(1)
    assert info.value.args==(1,) # in reverse order
    later = [f'then `Fails{i}.cleanup_{s}` raised ValueError({i})' for i,s in ((0,'batch'),(2,'train'),(3,'fit'))]
    assert [o for o in info.value.__notes__ if o.startswith('then')]==later
    assert [o for o in trace.seen if o.startswith('cleanup')][-4:]==['cleanup_batch','cleanup_train','cleanup_epoch',
        'cleanup_fit']

def test_error_before_a_failing_cleanup_propagates():
    with pytest.raises(KeyError) as info:
        synth_learner(2, 1, cbs=[Raise('after_pred', KeyError('first')), *failing('cleanup_batch')]).fit(1)
    assert any('Fails0.cleanup_batch' in o for o in info.value.__notes__)

@pytest.mark.parametrize('scope', ['fit','epoch','train'])
def test_failing_cleanup_is_not_hidden_by_a_cancel_that_passes(scope):
    "A cancel is a signal, not an error: it ends with the scope that it cancels, and a note on it would be lost"
    trace = Trace()
    with pytest.raises(ValueError):
        synth_learner(2, 1, cbs=[trace, Raise('after_pred', cancels[scope]), *failing('cleanup_batch')]).fit(1)
    assert f'after_cancel_{scope}' not in trace.seen

# Gradients
def weights(learn): return [o.item() for o in learn.model.parameters()]

def test_step_after_a_cancelled_backward_does_nothing():
    "Without gradients there is nothing to step with, not even momentum or decay"
    before,after = [],[]
    look = Callback(before_step=lambda self: before.append(weights(self)),
        after_step=lambda self: after.append(weights(self)))
    learn = synth_learner(3, 0, cbs=[Trace(), look, Raise('before_backward', CancelBackwardException, n=3)]).fit(1,
        wd=.1)
    assert [a==b for a,b in zip(before, after)]==[False,False,True] and learn.opt_step==2
    assert learn.tracer.seen.count('before_step')==learn.tracer.seen.count('after_step')==3

def test_step_after_a_cancelled_backward_uses_gradients_made_by_hand():
    def by_hand(self): self.loss_grad.backward(); raise CancelBackwardException
    learn = synth_learner(3, 0, cbs=Callback(before_backward=by_hand)).fit(1)
    assert weights(learn)==weights(synth_learner(3, 0).fit(1)) and learn.opt_step==3

def test_gradients_kept_by_a_cancelled_batch_add_up():
    "Accumulation by hand: two half batches are the batch"
    x,y = torch.randn(8, 1),torch.randn(8, 1)
    halves,whole = [DataLoaders([(x[:4],y[:4]),(x[4:],y[4:])], device='cpu'),DataLoaders([(x,y)], device='cpu')]
    a = synth_learner(dls=halves, loss_func=lambda p,y: F.mse_loss(p, y)/2,
        cbs=Raise('before_step', CancelBatchException, n=1)).fit(1)
    b = synth_learner(dls=whole).fit(1)
    assert weights(a)==pytest.approx(weights(b)) and a.opt_step==b.opt_step==1

def test_a_cancelled_backward_is_forgotten_when_its_batch_fails():
    learn = synth_learner(2, 0,
        cbs=[Raise('before_backward', CancelBackwardException), Raise('after_backward', ValueError)])
    with pytest.raises(ValueError): learn.fit(1)
    assert learn.fit(1).opt_step==2

def test_a_validation_in_between_does_not_bring_a_skipped_step_back():
    learn = synth_learner(1, 1, cbs=[Raise('before_backward', CancelBackwardException),
        Callback(before_step=lambda self: self.learn.validate(cbs=Raise('before_batch', CancelBatchException)))])
    before = weights(learn)
    assert learn.fit(1).opt_step==0 and weights(learn)==before

# Events of one's own, misspelt events
def test_custom_event_passes_arguments():
    class Verify(Callback):
        def verify_batch(self, xb, yb, *, strict=False): self.got = xb,yb,strict
        def after_pred(self): self.learn('verify_batch', self.xb, self.yb)
    learn = synth_learner(1, 0, cbs=Verify).fit(1)
    (x,),(y,),strict = learn.verify.got
    assert x.shape==y.shape==(16,1) and strict is False
    learn('verify_nothing', 1, 2) # nobody listens
    learn.verify.run = False
    learn('verify_batch', 1, 2)
    assert learn.verify.got[0]!=1
    learn.verify.run = True
    learn('verify_batch', 1, yb=2, strict=True)
    assert learn.verify.got==(1, 2, True)

def test_reserved_prefix_needs_registration():
    learn = synth_learner(1, 0)
    with pytest.raises(TypeError, match='after_verify'): learn('after_verify')
    with pytest.raises(TypeError, match='after_verify'): type('V', (Callback,), dict(after_verify=lambda self: 0))
    try:
        event.register('after_verify')
        got = []
        V = type('V', (Callback,), dict(after_verify=lambda self, a: got.append(a)))
        learn.add_cb(V)('after_verify', 3)
        assert got==[3] and event.after_verify=='after_verify'
    finally: del vars(event)['after_verify']
    with pytest.raises(ValueError, match='free|need'): event.register('verify')

def test_a_callback_can_be_called_directly():
    cb = Callback(before_fit=lambda self: 7)
    assert cb('before_fit')==7 and cb('after_fit') is None
    with pytest.raises(TypeError, match='before_fit'): cb('befor_fit')

@pytest.mark.parametrize('name,meant', [('after_cancel_valid','after_cancel_validate'), ('after_epcoh','after_epoch'),
    ('before_bacth','before_batch'), ('cleanup_fits','cleanup_fit')])
def test_misspelt_event_is_refused_with_the_nearest_name(name, meant):
    def f(self): pass
    with pytest.raises(TypeError, match=f'Typo.{name}.*`{meant}`'): type('Typo', (Callback,), {name: f})
    with pytest.raises(TypeError, match=f'Typo.{name}.*`{meant}`'):
        type('Typo', (type('Mixin', (), {name: f}),Callback), {})
    with pytest.raises(TypeError, match=f'`{meant}`'): Callback(**{name: f})
    with pytest.raises(TypeError, match=f'`{meant}`'): on(name)
    with pytest.raises(AttributeError, match=f'`{meant}`'): getattr(event, name)
    type('Fine', (Callback,), {name: 3}) # no function

@pytest.mark.parametrize('name', ['_before_fit','_after_cancel_valid','_cleanup_batch'])
def test_private_helpers_may_be_called_what_they_like(name): type('Fine', (Callback,), {name: lambda self: 0})

def test_model_is_no_listener_and_no_source_of_attributes():
    class Model(RegModel):
        secret,called = 5,0
        def before_epoch(self): self.called += 1
    class Look(Callback):
        def after_fit(self): self.secret
    learn = synth_learner(1, 0, model=Model(), cbs=Look)
    with pytest.raises(AttributeError, match='`Look`.*`secret`') as info: learn.fit(1)
    assert learn.model.called==0 and 'Model' not in str(info.value)
    with pytest.raises(AttributeError, match='Did you mean `loss_func`'): learn.look.loss_fnc

def test_writing_an_attribute_of_the_learner_warns():
    learn = synth_learner(1, 0, cbs=Callback())
    with pytest.warns(UserWarning, match='self.learn.loss'): learn.callback.loss = 3
    assert learn.loss is None

# Names
class Same(Callback): pass

def test_callbacks_of_one_class_are_numbered():
    a,b,c = cbs = [Same(), Same(), Same()]
    learn = synth_learner(1, 0, cbs=cbs)
    assert (learn.same is a and learn.same_2 is b and learn.same_3 is c
        and [o.name for o in cbs]==['same','same_2','same_3'])
    learn.remove_cb(b)
    assert not hasattr(learn, 'same_2') and b.learn is None
    learn.add_cb(Same())
    assert learn.same_2 is learn.cbs[-1]
    learn.remove_cb(Same)
    assert not any(hasattr(learn, o) for o in ('same','same_2','same_3'))

@pytest.mark.parametrize('name', ['ModelCallback','Fit','OptCallback','Loss','Mode','Y','Path'])
def test_a_name_that_the_learner_has_is_refused(name):
    cls,learn = type(name, (Callback,), {}),synth_learner(1, 0)
    before,n = getattr(learn, cls.name),len(learn.cbs)
    for attach in (learn.add_cb, lambda cb: learn.fit(1, cbs=cb), lambda cb: synth_learner(1, 0, cbs=cb)):
        with pytest.raises(ValueError, match=f'`{name}`.*`learn.{cls.name}`'): attach(cls)
    assert getattr(learn, cls.name)==before and len(learn.cbs)==n and learn.mode is None
    learn.fit(1)

# Functions with filters
def fired(n_train=10, n_epoch=1, n_valid=0, event=event.after_batch, **kwargs):
    "Calls of `event`, counted from 1, at which a function with this filter ran"
    calls,res = [],[]
    count = on(event, order=-50)(lambda learn: calls.append(1))
    note = on(event, **kwargs)(lambda learn: res.append(len(calls)))
    synth_learner(n_train, n_valid, cbs=[count, note]).fit(n_epoch)
    return res

@pytest.mark.parametrize('filt,expected', [(dict(every=3), [3,6,9]), (dict(every=1), [*range(1, 11)]),
    (dict(once=3), [3]), (dict(once=[2,7]), [2,7]), (dict(once=11), []),
    (dict(after=8), [9,10]), (dict(before=3), [1,2]), (dict(after=2, before=5), [3,4]),
    (dict(every=2, after=4), [6,8,10]), (dict(every=5, before=10), [5]),
    (dict(when=lambda f,learn: learn.iter in (0,4)), [1,5]), (dict(when=lambda f,learn: f.num_executed<2), [1,2]),
    (dict(filter_fn=lambda f,learn: f.num_called==6), [6])],
    ids=lambda o: ','.join(f'{k}={v}' for k,v in o.items() if not callable(v))
    or 'function' if isinstance(o, dict) else '')
def test_filter(filt, expected):
    assert fired(**filt)==expected
    res = []
    learn = synth_learner(10, 0)
    learn.on(event.after_batch(**filt))(lambda learn: res.append(learn.iter+1))
    learn.fit(1)
    assert res==expected

@given(st.integers(1, 5), st.one_of(st.none(), st.integers(0, 8)), st.one_of(st.none(), st.integers(0, 8)))
def test_filter_is_arithmetic(every, after, before):
    expected = [i for i in range(1, 9) if i%every==0 and (after is None or i>after) and (before is None or i<before)]
    if None not in (after, before) and after>=before:
        with pytest.raises(ValueError, match='It would never run'): Filter('after_batch', after=after, before=before)
        assert not expected
        return
    f = Filter('after_batch', every=every, after=after, before=before)
    assert [i for i in range(1, 9) if f(None)]==expected

@pytest.mark.parametrize('filt,expected',
    [(dict(every=2, unit='iter'), [(2,True),(4,True),(6,True)]), (dict(once=3, unit='iter'), [(3,True)]),
    (dict(every=2, unit='step'), [(2,True),(4,True),(6,True)]), (dict(once=2, unit='epoch'), [(4,True)])], ids=str)
def test_filter_with_unit(filt, expected):
    "Validation passes no training batch, so nothing runs twice"
    res = []
    synth_learner(3, 1, cbs=on(event.after_batch(**filt))(
        lambda learn: res.append((learn.train_iter, learn.training)))).fit(2)
    assert res==expected

@pytest.mark.parametrize('kw,match',
    [(dict(every='a'), "`every` is a number, but got 'a'"), (dict(after='x'), "`after` is a number"),
        (dict(before=[1]), "`before` is a number"), (dict(every=1.5), 'whole number of calls above 0'),
    (dict(once='a'), "`once` is a whole number, or several, counted from 1, but got 'a'"),
    (dict(once=[]), 'but got \\[\\]'), (dict(once=0), 'but got 0'), (dict(once=1.5), 'but got 1.5')], ids=str)
def test_filters_say_what_is_wrong_with_them(kw, match):
    with pytest.raises((TypeError,ValueError), match=match): event.after_batch(**kw)

def test_exclusive_filters_are_named():
    for kw in (dict(every=2, once=3), dict(once=1, when=len), dict(every=1, filter_fn=len)):
        with pytest.raises(ValueError, match='`{}` and `{}`'.format(*kw)): event.after_batch(**kw)
        with pytest.raises(ValueError, match='`{}` and `{}`'.format(*kw)): on(event.after_batch, **kw)(print)

def test_a_union_listens_to_all_of_its_events():
    seen = []
    union = event.before_train | event.after_batch(every=2) | event.after_epoch
    synth_learner(4, 0, cbs=on(union)(lambda learn: seen.append(learn.train_iter))).fit(1)
    assert seen==[0, 2, 4, 4]
    both = []
    synth_learner(4, 0, cbs=on(event.after_batch(once=1) | event.after_batch(once=3))(
        lambda learn: both.append(learn.iter))).fit(1)
    assert both==[0,2]

def test_counts_belong_to_the_handle():
    filt,a,b = event.after_batch(every=2),[],[]
    synth_learner(3, 0, cbs=on(filt)(lambda learn: a.append(learn.iter))).fit(1)
    synth_learner(3, 0, cbs=on(filt)(lambda learn: b.append(learn.iter))).fit(1)
    assert a==b==[1]

def test_a_handle_can_be_removed_or_used_in_with():
    learn,seen = synth_learner(2, 0),[]
    @learn.on(event.after_epoch)
    def note(learn): seen.append(learn.epoch)
    learn.fit(1); note.remove(); learn.fit(1)
    assert seen==[0]
    with learn.on(event.after_epoch)(lambda learn: seen.append('with')): learn.fit(1)
    learn.fit(1)
    assert seen==[0,'with']
    with pytest.raises(ValueError):
        with learn.on(event.before_fit)(lambda learn: int('x')): learn.fit(1)
    learn.fit(1)

def test_running_a_cell_again_replaces_what_it_registered():
    learn,seen = synth_learner(1, 0),[]
    cell = "@learn.on(event.after_fit)\ndef report(learn): seen.append('{}')"
    ns = dict(learn=learn, event=event, seen=seen)
    n = len(learn.cbs)
    for o in ('old','old','new'): exec(compile(cell.format(o), '<cell 1>', 'exec'), ns)
    assert len(learn.cbs)==n+1
    learn.fit(1)
    assert seen==['new']
    exec(compile("@learn.on(event.before_fit)\ndef report(learn): seen.append('other event')", '<cell 2>', 'exec'), ns)
    exec(compile("@learn.on(event.after_fit)\ndef another(learn): seen.append('other name')", '<cell 2>', 'exec'), ns)
    assert len(learn.cbs)==n+3
    for i in range(2): learn.on(event.after_fit)(lambda learn, i=i: seen.append(i)) # made by one line, and yet two
    assert len(learn.cbs)==n+5

@pytest.mark.parametrize('name', ['<module>','<cell line: 1>']) # as IPython 7 calls it, which Colab has
def test_running_a_cell_again_replaces_the_callback_that_it_adds(name):
    learn = synth_learner(1, 0)
    for v in (.5,.2):
        cell = compile(f"learn.add_cb(GradientClip({v}))", '/tmp/cell.py', 'exec').replace(co_name=name)
        exec(cell, dict(learn=learn, GradientClip=GradientClip))
    assert [o.max_norm for o in learn.cbs if isinstance(o, GradientClip)]==[.2]

def test_two_functions_in_one_line_are_two():
    seen = []
    synth_learner(1, 0, cbs=[on(event.after_fit)(lambda learn: seen.append('a')),
        on(event.after_fit)(lambda learn: seen.append('b'))]).fit(1)
    assert seen==['a','b']

# Comings, goings and flags
class Temp(Callback): pass
exits = dict(normal=(), cancel=('after_loss',CancelFitException), error=('after_loss',ValueError),
    interrupt=('after_loss',KeyboardInterrupt),
    stray=('before_fit',CancelStepException), before_fit=('before_fit',ValueError), cleanup=('cleanup_fit',ValueError))

@pytest.mark.parametrize('call', ['fit','validate'])
@pytest.mark.parametrize('how', exits)
def test_temporary_callbacks_are_removed_on_any_exit(how, call):
    learn,cbs = synth_learner(2, 1),[Temp(), *([Raise(*exits[how])] if exits[how] else [])]
    n = len(learn.cbs)
    try: learn.fit(1, cbs=cbs) if call=='fit' else learn.validate(cbs=cbs)
    except (ValueError,KeyboardInterrupt,RuntimeError): pass
    assert len(learn.cbs)==n and not hasattr(learn, 'temp') and not hasattr(learn, 'raise') and cbs[0].learn is None
    synth_learner(1, 0, cbs=cbs[0]).fit(1) # free for another Learner

def test_temporary_callbacks_are_removed_if_one_cannot_start():
    class Bad(Callback):
        def after_create(self): raise ValueError('no')
    learn = synth_learner(1, 0)
    n = len(learn.cbs)
    with pytest.raises(ValueError, match='no'): learn.fit(1, cbs=[Temp(), Bad()])
    assert len(learn.cbs)==n and not hasattr(learn, 'temp')

@pytest.mark.parametrize('e', [None, CancelFitException, ValueError])
def test_run_is_for_one_fit(e):
    "A callback that switches itself off is back in the next fit, however this one ended"
    class Off(Callback):
        n = 0
        def before_batch(self): self.n += 1; self.run = False
    learn = synth_learner(3, 1, cbs=[Off, *([Raise('after_epoch', e)] if e else [])])
    try: learn.fit(1)
    except ValueError: pass
    assert learn.off.n==1 and learn.off.run
    learn.fit(2)
    assert learn.off.n==2
    learn.off.run = False # from outside, before a fit
    learn.fit(1)
    assert learn.off.n==2 and learn.off.run

@pytest.mark.parametrize('call', ['fit','validate'])
def test_run_of_a_temporary_callback_is_for_one_call(call):
    def off(self): self.run = False
    learn,cb = synth_learner(1, 1),Callback(after_batch=off)
    learn.fit(1, cbs=cb) if call=='fit' else learn.validate(cbs=cb)
    assert cb.run

def test_dispatch_follows_changes_at_once():
    "Callbacks that come or go, orders and flags that change, count from the next event on"
    seen = []
    def say(s): return lambda self: seen.append(s)
    a,b = Callback(before_epoch=say('a'), after_epoch=say('a')),Callback(before_epoch=say('b'), after_epoch=say('b'))
    def swap(self): a.order = 1
    learn = synth_learner(1, 0, cbs=[a, b, Callback(before_train=swap)])
    learn.fit(1)
    assert seen==['a','b','b','a']
    late = Callback(before_batch=say('late'))
    brings = Callback(before_train=lambda self: self.learn.add_cb(late),
        after_batch=lambda self: self.learn.remove_cb(late))
    seen.clear()
    synth_learner(2, 0, cbs=brings).fit(1)
    assert seen==['late']

@pytest.mark.parametrize('training', [True, False])
def test_modes_are_put_back_module_by_module(training):
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(), torch.nn.Linear(1, 1)).train(training)
    model[1].train(not training)
    learn,seen = synth_learner(2, 1, model=model),[]
    learn.add_cb(Callback(after_pred=lambda self: seen.append((self.mode, self.training, model[1].training))))
    for run in (lambda: learn.fit(1), learn.validate,
            lambda: learn.fit(1, cbs=Raise('after_loss', CancelFitException))):
        run()
        assert [model.training,model[1].training]==[training,not training] and learn.mode is None
    assert seen==[('fit',True,True)]*2 + [('fit',False,False)] + [('validate',False,False)] + [('fit',True,True)]

# A validation inside a fit changes nothing
in_loop = [ev for ev in events if not ev.startswith(('after_cancel_','cleanup_'))]
state = '''dl_name dl batch xb yb pred loss loss_grad epoch n_epoch iter n_iter train_iter opt_step pct_train
    training mode stop_reason'''.split()

@pytest.mark.parametrize('ev', in_loop)
def test_validating_at_any_event_leaves_the_run_as_it_was(ev):
    def run(look):
        inside = []
        def validate(self):
            if inside: return
            before = [getattr(self.learn, o) for o in state],[o.training for o in model.modules()],torch.get_rng_state()
            inside.append(1)
            inside.append(self.learn.validate())
            inside.pop(0) if ev in ('before_validate','after_validate') else inside.clear()
            after = [getattr(self.learn, o) for o in state],[o.training for o in model.modules()],torch.get_rng_state()
            assert (all(a is b or a==b for a,b in zip(before[0], after[0])) and before[1]==after[1]
                and torch.equal(before[2], after[2]))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        learn = synth_learner(3, 2, model=model, metrics=mae, cbs=Callback(**{ev: validate}) if look else None)
        learn.fit(2)
        return [o.tolist() for o in model.parameters()],learn.recorder.losses,[
            tuple(o)[:-1] for o in learn.recorder.rows]
    assert run(True)==run(False)
