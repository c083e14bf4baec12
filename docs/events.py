"What there is to say of each event: when it fires, what is new there, what can be cancelled, and who listens"
import catalogue as cat
from catalogue import every

scopes = dict(fit='the whole fit', epoch='one epoch: training, then validation',
    train='all training batches of an epoch',
    validate='all batches of a validation loader', batch='one batch', backward='the backward pass',
    step='the optimizer step')
points = dict(
    before_draw='A batch is about to be taken from the loader; also before the draw that finds it empty. A resumed '
        'fit does not fire it a second time for the batch before which it was stopped',
    after_draw='The batch has come, as the loader gave it; it is not on the device yet',
    after_pred='The model has been run',
    after_loss='The loss is computed',
    before_zero_grad='Gradients are about to be cleared',
    after_zero_grad='Gradients are cleared',
    after_backward='The backward pass is over, or was cancelled: gradients may then be those of earlier batches',
    after_step='The step is over, or was cancelled: `opt_step` is then as before. Gradients are still there, and '
        '`train_iter` does not count the batch yet',
    after_batch='The batch is over, finished or cancelled; in training, `train_iter` counts it',
    after_create='The callback is attached to a learner',
    before_row='The recorder is about to write a row of results',
    after_row='A row of results is written',
    before_sanity='`Sanity` is about to validate a few batches',
    after_sanity='`Sanity` has validated',
    before_save='`learn.save` is about to write `saved`',
    after_save='`learn.save` has written the file',
    before_load='`learn.load` is about to read the file',
    after_load='`learn.load` has put everything in place',
    before_save_state='A state file is about to be written, by `Checkpoint` too: what it will hold is in `saved`',
    after_save_state='A state file has been written',
    before_load_state='What a state file holds is in `saved`, and about to be put in place',
    after_load_state='What a state file holds has been put in place',
    after_exception='An error or Ctrl-C leaves the loop, and is in `exc`')

def when(ev):
    "When an event fires, in words"
    if ev in points: return points[ev]
    kind,scope = ev.rsplit('_', 1)
    return dict(before=f'Before {scopes[scope]}', after='The scope is over, finished or cancelled',
        after_cancel=f'Only if the scope was cancelled, by `{every.cancels[scope].__name__}`',
        cleanup='Always, also after an error or Ctrl-C, callbacks in reverse: undo what you changed')[kind]

attrs = ('mode scopes n_epoch epoch n_train pct_train train_iter opt_step to_validate results training dl dl_name '
    'n_iter iter idxs batch xb yb x y pred loss loss_grad run_config').split()

def new_at():
    "Attributes that are new or have changed at each event of training and validation, as a callback sees them in a fit"
    seen,before = {},{}
    def look(ev):
        def f(self):
            now = {o:v for o in attrs if (v := getattr(self.learn, o, None)) is not None}
            now = {o:(str(v) if isinstance(v, (int,float,str,list,dict)) else id(v)) for o,v in now.items()}
            phase = 'train' if self.learn.training else 'validate'
            seen.setdefault((ev, phase), [o for o in now if before.get(o)!=now[o]])
            before.clear()
            before.update(now)
        return f
    handlers = {ev:look(ev) for ev in every.event if ev!='after_create'}
    every.synth_learner().fit(1, cbs=type('Probe', (every.Callback,), handlers | dict(order=1000))())
    return seen

def modes():
    "The calls besides `fit` in which each event fires"
    res,called = {},None
    def look(ev): return lambda self: res.setdefault(ev, {}).update({called:None}) if called else None
    learn = every.synth_learner(cbs=type('Probe', (every.Callback,), {ev:look(ev) for ev in every.event})())
    for called in ('validate','get_preds'): getattr(learn, called)()
    return res

def listeners(ev):
    "Callbacks that act on an event"
    return [k for k,o in cat.callbacks().items() if 'Abstract' not in (o.__doc__ or '') and hasattr(o, ev)]

def in_loop():
    "Each event of the loop, in order: its name, when it fires, what is new there, the scopes that run, and who listens"
    seen,moments = new_at(),{}
    for ev,running in every.moments(): moments.setdefault(ev, set()).update(running) # of training and validation
    for ev,found in moments.items():
        running = tuple(o for o in every.cancels if o in found)
        new = seen.get((ev, 'train')) or seen.get((ev, 'validate')) or []
        yield ev,when(ev),new,running,listeners(ev)

def outside():
    "Each event that the loop itself does not fire: its name, when it fires, and who listens"
    for ev in every.outside_loop: yield ev,when(ev),listeners(ev)
