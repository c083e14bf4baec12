"""What a batch costs above the loop by hand, in training, validation and inference, and what an epoch costs besides"""
from functools import partial
import torch
from .shared import *

class Idle(Callback):
    def after_epoch(self): pass

class Busy(Callback):
    count = 0
    def before_batch(self): self.count += 1
class Busier(Busy): pass
class Busiest(Busy): pass

def busy_by_hand(m, opt, n):
    cbs,step = [Busy(), Busier(), Busiest()],plain_step(m, opt, n)
    Dispatcher().add_cbs(cbs)
    def calling(i, xb, yb):
        for o in cbs: o.before_batch()
        step(i, xb, yb)
    return calling

def fits(train, valid=None, name='tiny', **contenders):
    "Functions of the number of epochs: the fit by hand, and by Learners with other settings"
    def run(kwargs): return lambda n: ours(seeded(name), train, valid, n, **kwargs)
    return {'by hand': lambda n: by_hand(seeded(name), train, valid, n), **{k:run(v) for k,v in contenders.items()}}

n_batch = 150 # of an epoch

def training(repeats):
    "Whole fits, with all that happens between batches and epochs"
    train,valid = Marked(batches(n_batch)),batches(1)
    for name,valid_,kwargs,allowed in (('lean', None, lean, 9),
            ('defaults: bar, recorder, validation, a metric', valid, defaults, 16)):
        seconds = interleaved(name, fits(train, valid_, ours=kwargs), repeats, 4)
        yield above('batch', name, 'µs a batch', seconds, n_batch, allowed)
    idle = [type(f'Idle{i}', (Idle,), {}) for i in range(10)]
    runs = fits(train, few=lean, many=dict(lean, cbs=[*lean['cbs'], *idle]))
    del runs['by hand']
    yield above('batch', 'ten idle callbacks', 'µs a batch', interleaved('idle', runs, repeats, 4), n_batch, .5,
        'above the lean loop')
    runs = fits(train, lean=lean, busy=dict(lean, cbs=[*lean['cbs'], Busy, Busier, Busiest]))
    runs['bodies'] = lambda n: by_hand(seeded(), train, None, n, busy_by_hand)
    s = interleaved('busy', runs, repeats, 4)
    bodies,events = ([b-a for a,b in zip(s[k], s[v])] for k,v in (('by hand','bodies'), ('lean','busy')))
    yield above('batch', 'three busy callbacks', 'µs a batch', dict(bodies=bodies, events=events), n_batch, 3,
        'above the lean loop and the bodies by hand')

def slope(f, dl):
    "A lap: how much longer `f` takes for two more passes over `dl`, for one of them"
    start = laps.clock()
    f(dl)
    mid = laps.clock()
    res = f(dl*3)
    laps.taken.append((laps.clock()-mid - (mid-start))/2)
    return res

def validation(repeats):
    valid = batches(n_batch)
    def run(n):
        learn = learner(seeded(), [], valid, **recorded)
        def validate(dl): return outcome(learn.model, [*map(float, dict(learn.validate(dl=dl)).values())])
        return [slope(validate, valid) for _ in range(n)][-1]
    def hand(n):
        m = seeded()
        return [outcome(m, slope(lambda dl: validate_by_hand(m, dl), valid)) for _ in range(n)][-1]
    seconds = interleaved('validation', dict(hand=hand, ours=run), repeats, 4, atol=1e-5)
    yield above('batch', 'validation, with a metric', 'µs a batch', seconds, n_batch, 30)

def epochs(repeats):
    "Epochs of one batch, above the same by hand"
    one,valid = Marked(batches(1)),batches(1)
    for name,train,valid_,kwargs,allowed in (('lean', one, None, lean, 120),
            ('lean, a loader that holds 100 batches', Marked(batches(100), 1), None, lean, 120),
            ('lean, a DataLoader that shuffles', loader(1), None, lean, 120),
            ('recorder, validation, a metric', one, valid, recorded, 300)):
        seconds = interleaved(name, fits(train, valid_, ours=kwargs), repeats, 150)
        yield above('epoch', name, 'µs an epoch', seconds, 1, allowed)

def whole_epochs(repeats):
    "Epochs of 150 batches from a DataLoader that shuffles, a validation of 15 batches, and the defaults"
    for name in ('MLP 784-256-10', 'digits network', '200 small tensors'):
        train,valid = loader(n_batch, models[name][1]),batches(n_batch//10, models[name][1])
        seconds = interleaved(name, fits(train, valid, name, ours=defaults), max(2*repeats//3, 3), 3, atol=1e-5)
        yield times('whole epochs', name, seconds, n_batch, 'µs a batch', 1.015)

def preds_by_hand(m, dl):
    m.eval()
    with torch.no_grad(): preds,targs = zip(*((m(xb).softmax(1), yb) for xb,yb in dl))
    return [torch.cat(preds),torch.cat(targs)]

def inference(repeats):
    for name,unit,allowed in (('tiny', 'µs', None), ('MLP 784-256-10', '×', 1.05), ('digits network', '×', 1.05)):
        dl = batches(n_batch, models[name][1])
        def run(n):
            learn = learner(seeded(name), [], dl, default_cbs=False, cbs=TrainEvalCallback)
            return [slope(lambda dl: [*learn.get_preds(dl=dl)], dl) for _ in range(n)][-1]
        def hand(n):
            m = seeded(name)
            return [slope(lambda dl: preds_by_hand(m, dl), dl) for _ in range(n)][-1]
        seconds = interleaved(name, dict(hand=hand, ours=run), repeats, 3)
        if unit=='×': yield times('get_preds', name, seconds, n_batch, 'µs a batch', allowed)
        else: yield above('get_preds', name, 'µs a batch', seconds, n_batch, allowed)

def beginnings(repeats):
    "A Learner and a fit of one batch, above the same by hand; the loop and the recorder alone, and with the defaults"
    one,valid = batches(1),batches(1)
    for name,valid_,kwargs in (('lean', None, lean), ('recorder, validation, a metric', valid, recorded),
            ('defaults', valid, defaults)):
        runs = {k:partial(f, 1) for k,f in fits(one, valid_, ours=kwargs).items()}
        seconds = interleaved(name, runs, 5*repeats)
        yield above('beginning of a fit', f'{name}: a new Learner, a fit of one batch', 'ms', seconds)

groups = training,validation,epochs,whole_epochs,inference,beginnings
