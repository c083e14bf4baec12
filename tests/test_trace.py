"What a trace says of callbacks whose deeds are planted, and that it leaves none"
import pytest,torch
from learner.all import *
from learner.inspect import profile as clock_of

class Reads(Callback):
    order = 3
    def before_batch(self): self.kept = self.learn.pct_train,self.epoch # one directly, one forwarded
class Writes(Callback):
    order,run_valid = 4,False
    def before_batch(self): self.learn.x = self.x+0.
    def before_step(self): self.learn.set_hyper('lr', .1)
def of(rows, name, ev=None): return [o for o in rows if o.callback==name and ev in (None, o.event)]

def test_what_is_read_and_written():
    rows = synth_learner(3, 2, cbs=[Reads, Writes]).trace(2)
    assert {(o.event, o.reads, o.writes) for o in of(rows, 'reads')}=={('before_batch', 'pct_train, epoch', '')}
    assert {(o.event, o.reads, o.writes) for o in of(rows, 'writes')}=={('before_batch', 'x', 'x'),
        ('before_step', 'set_hyper()', '')}
    assert [('validate' in o.scopes, o.batch) for o in of(rows, 'reads')]==[(False,0), (False,1), (True,0), (True,1)]
    assert {o.writes for o in of(rows, 'train_eval', 'after_batch')}=={'train_iter'}

def test_rows_are_in_the_order_of_the_calls():
    calls,events = [],['before_fit','before_batch','after_loss','before_step','after_batch','after_epoch',
        'cleanup_batch']
    def make(i, order):
        cb = Callback(**{ev: (lambda self, ev=ev: calls.append((ev, self.name))) for ev in events})
        cb.order = order
        return cb
    learn = synth_learner(2, 2, cbs=[make(i, o) for i,o in enumerate((5,-20,5))])
    rows = [(o.event, o.callback) for o in learn.trace() if o.callback.startswith('callback')]
    assert rows==calls and len(rows)>30

def test_why_a_callback_has_its_place():
    class A(Callback):
        order = 5
        def before_step(self): pass
        def cleanup_batch(self): pass
    class B(A): pass
    class First(A):
        order,first_at = 90,('before_step',)
    rows = synth_learner(1, 1, cbs=[A, B, First]).trace(1)
    assert [(o.callback, o.why) for o in rows if o.event=='before_step']==[('first','first at `before_step`'),
        ('a','order 5'), ('b','order 5, attached after a')]
    assert [(o.callback, o.why) for o in rows if o.event=='cleanup_batch'][:3]==[('first','order 90, in reverse'),
        ('b','order 5, attached after a, in reverse'), ('a','order 5, in reverse')]

def test_each_call_has_its_own_time(monkeypatch):
    t = [0.]
    monkeypatch.setattr(clock_of, 'perf_counter', lambda: t[0])
    def sleep(s): t[0] += s
    class Outer(Callback):
        run_valid = False
        def before_step(self): sleep(1.); self.learn('mine'); sleep(2.)
    class Inner(Callback):
        def mine(self): sleep(10.)
    rows = synth_learner(1, 1, cbs=[Outer, Inner]).trace(1)
    assert [(o.callback, o.event, o.ms, o.start) for o in rows if o.ms]==[('outer','before_step',3000,0),
        ('inner','mine',10000,1000)]

def state(learn):
    return str((learn.model.state_dict(), learn.opt.state_dict(), torch.get_rng_state().tolist(), learn.recorder.log,
        list(learn.cbs), learn.train_iter, type(learn), {ev:len(learn.handlers[ev]) for ev in event}))
def test_a_trace_leaves_none():
    learn = synth_learner(4, 2, cbs=[GradientClip, EMA]).fit(1)
    before = state(learn)
    learn.trace(); learn.show_loop()
    assert state(learn)==before and type(learn) is Learner

@pytest.mark.parametrize('place', ['before_fit','before_batch','before_step','after_epoch'])
def test_an_error_leaves_none_either(place):
    learn = synth_learner(2, 1, cbs=Raise(place, ZeroDivisionError))
    with pytest.raises(ZeroDivisionError): learn.trace()
    assert type(learn) is Learner and not any(type(h).__name__=='Watched' for ev in event for h in learn.handlers[ev])

def test_learners_of_ones_own_are_traced():
    class Mine(Learner):
        def help(self): return self.loss
    dls = synth_dls(2, 1)
    learn = Mine(dls, RegModel(), torch.nn.functional.mse_loss,
        cbs=Callback(after_batch=lambda self: self.learn.help())).remove_cb(ProgressCallback)
    assert 'help()' in of(learn.trace(), 'callback')[0].reads and type(learn) is Mine

def test_learners_that_are_registered_are_traced(capsys):
    "The registry gets no other class, whatever a subclass has to give it"
    kinds = {}
    class Registered(Learner):
        def __init_subclass__(cls, key, **kwargs): super().__init_subclass__(**kwargs); kinds[key] = cls
    class Small(Registered, key='small'): pass
    class Named(Learner):
        def __init_subclass__(cls): super().__init_subclass__(); kinds[cls.__name__] = cls
    class Mine(Named): pass
    class Slots(Named): __slots__ = 'a','b'
    class Mixed(type('Mixin', (), {}), Named): pass
    for cls in Small,Mine,Slots,Mixed:
        learn = cls(synth_dls(2, 1), RegModel(), torch.nn.functional.mse_loss, cbs=Reads).remove_cb(ProgressCallback)
        assert of(learn.trace(), 'reads')[0].reads=='pct_train, epoch' and type(learn) is cls
        learn.show_loop()
    assert kinds==dict(small=Small, Mine=Mine, Slots=Slots, Mixed=Mixed)

def test_cleanups_are_shown_in_reverse(capsys):
    class A(Callback):
        def before_fit(self): pass
        def cleanup_fit(self): order.append('a')
    class B(Callback):
        def before_fit(self): pass
        def cleanup_fit(self): order.append('b')
    order,learn = [],synth_learner(3, 2, cbs=[A, B])
    learn.fit(1)
    learn.show_training_loop()
    line, = (l.split() for l in capsys.readouterr().out.splitlines() if l.split()[:1]==['cleanup_fit'])
    assert order==['b','a'] and ''.join(line).replace(',', ' ').endswith('b a train_eval')

def test_the_loop_is_shown_with_what_was_seen(capsys):
    learn = synth_learner(3, 2, cbs=[Reads, Writes, Callback(after_row=lambda self: None)])
    learn.show_training_loop()
    plain = capsys.readouterr().out.splitlines()
    learn.show_loop()
    shown = capsys.readouterr().out.splitlines()
    i = next(i for i,l in enumerate(shown) if l.strip()=='before_batch')
    assert ([l.strip().split(' × ')[0] for l in shown[i+1:i+3]]==['reads: 2','writes: 2']
        and shown[i+2].endswith('order 4; reads x; writes x'))
    names = [l.split()[0] for l in plain if l.split()[0] in event or l.split()[0] in cancels]
    seen = [l.split()[0] for l in shown if l.split()[0] in event or l.split()[0] in cancels]
    assert [o for o in names if not o.startswith(('cleanup','after_cancel'))]==[
        o for o in seen if not o.startswith('cleanup')
        and o!='after_row'] and 'after_row (in fit > epoch)' in '\n'.join(shown)

def test_it_is_drawn():
    import matplotlib
    matplotlib.use('Agg')
    rows = synth_learner(2, 1, cbs=Writes).trace()
    ax = rows.plot()
    lanes = {y:o.get_text() for y,o in zip(ax.get_yticks(), ax.get_yticklabels())}
    bars = [(lanes[round(o.get_y()+o.get_height()/2)], o.get_x()) for o in ax.patches][:len(rows)]
    assert (bars==[(o.callback, pytest.approx(o.start)) for o in rows]
        and [*lanes.values()]==list(dict.fromkeys(o.callback for o in rows))[::-1])

@pytest.mark.parametrize('call', [lambda l: l.trace(0), lambda l: l.show_loop(0)])
def test_the_number_of_batches_is_checked(call):
    with pytest.raises(ValueError, match='`n` is 1 or more, but got 0'): call(synth_learner(2, 1))

def test_the_loop_lists_those_that_run_in_each_phase(capsys):
    "A callback that takes no part in validation is not listed there, nor one that is switched off anywhere"
    class Noise(Callback):
        run_valid = False
        def before_batch(self): pass
    class Off(Noise): run = False
    synth_learner(cbs=[Noise, Off], default_cbs=False).show_training_loop()
    lines = [o.split() for o in capsys.readouterr().out.splitlines() if 'before_batch' in o]
    assert lines==[['before_batch','noise'],['before_batch']]
