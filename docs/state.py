"What a Learner holds: each attribute that callbacks can read, what it is, and when it can be read"
from catalogue import every

attributes = dict(
    model='The `nn.Module` that is trained', dls='Loaders by name',
    loss_func='The loss, called with predictions and targets',
    opt_func='Makes the optimizer', lr='Learning rate, or None for that of `opt_func`',
    splitter='Gives the parameter groups of the model', metrics='Of validations',
    path='Folder for files', model_dir='Folder in `path` for weights', wd='Weight decay, or None',
    wd_bn_bias='Whether norm layers and biases decay too',
    train_bn='Whether norm layers of frozen groups are trained',
    moms='Momentum of a one-cycle fit', monitor='The column of results that trackers watch',
    opt='The optimizer; None until it is needed', device='Where batches are moved to',
    cbs='The callbacks, as they were added; `ordered_cbs(event)` has the order in which they run',
    recorder='Losses and results',
    route='Which loaders and batches the run has seen',
    state='A dict of your own, saved with the run', run_config='What the last fit was made of',
    lineage='Where the run began, and left its course',
    mode="What runs: `'fit'`, `'validate'`, `'predict'`, `'lr_find'`, or None",
    scopes='Running scopes, outermost first', n_epoch='Epochs of the fit', epoch='Number of the epoch, from 0',
    train_iter='Training batches so far', n_train_iter='Training batches after which the fit ends, or None',
    opt_step='Optimizer steps so far', n_step='Optimizer steps after which the fit ends, or None',
    epoch_start='`train_iter` when the epoch began', n_train='Training batches in an epoch, or None',
    pct_train='Fraction of training that is done, in [0,1]; None where the length is unknown',
    to_validate='Loaders to validate with, by name', limits='Most batches of a phase',
    training='Whether batches are trained on now',
    dl='The running loader', dl_name='Its name, such as `valid`',
    n_iter='Batches in it, or None', stop_at='The batch at which a bound ends the phase, or None',
    forward_with='Runs the forward pass of a training batch in its own way, if it is set',
    iter='Number of the batch in its loader, from 0',
    idxs='Indices of its samples in the dataset, where they are known',
    batch='The batch, as drawn; later, on the device',
    xb='Inputs: a tuple; of a batch of names, the whole mapping, with its targets', yb='Targets: a tuple',
    x='The only input; all of `xb` if there are several, or if it is a mapping. Setting it sets `xb` to a tuple of one',
    y='The only target; all of `yb` if there are several. Setting it sets `yb`',
    pred='What the model has returned', loss='The loss that is logged', loss_grad='The loss that is differentiated',
    results='Loss and metrics of the last validation', stop_reason='Why the fit was cancelled',
    exc='The error during `after_exception`, and the cancel during `after_cancel_…`',
    file='The file that is saved or loaded, at those events', saved='What goes into it, or came out of it')

def observed():
    "For each attribute, the first event of a fit at which it is there, and whether it still is when the fit is over"
    first = {}
    learn = every.synth_learner()
    def has(k): return getattr(learn, k, None) is not None
    before = {k for k in attributes if has(k)}
    def look(ev): return lambda self: [first.setdefault(k, ev) for k in attributes if has(k)] and None
    handlers = {ev:look(ev) for ev in every.event if ev!='after_create'}
    learn.fit(1, cbs=type('Probe', (every.Callback,), handlers | dict(order=1000))())
    return {k:('always' if k in before else first.get(k), has(k)) for k in attributes}

def rows():
    "Each attribute: its name, what it is, from which event on it can be read, and whether it stays after the fit"
    for k,(since,stays) in observed().items():
        yield k,attributes[k],since,stays
