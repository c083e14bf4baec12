"Where a fit ends: at exactly the batch, step or epoch that bounds it, and at a fraction of exactly 1"
import math
import pytest,torch
from torch.nn import functional as F
from fastcore.foundation import L
from learner.all import *
from parts import Stream

class Watch(Callback):
    "Writes down where training is"
    order = 900
    def before_fit(self): self.pcts,self.places,self.rows,self.batches = [self.learn.pct_train],[],[],[]
    def before_batch(self):
        if self.learn.training:
            self.places.append((self.learn.epoch, self.learn.iter)); self.batches.append(self.learn.x.clone())
    def after_batch(self):
        if self.learn.training: self.pcts.append(self.learn.pct_train)
    def after_row(self): self.rows.append((self.learn.epoch, self.learn.train_iter))
    def after_fit(self): self.end = self.learn.pct_train

def learner(n_train=6, n_valid=1, stream=False, cbs=(), **kwargs):
    dls = synth_dls(n_train, n_valid)
    if stream: dls = DataLoaders(Stream(dls.train), dls.valid, device='cpu')
    return synth_learner(dls=dls, cbs=[Watch, *L(cbs)], **kwargs)
def weights(learn): return torch.cat([o.detach() for o in learn.model.parameters()])

def by_hand(n_iter, n_train=6, n_acc=1):
    "So many batches of as many passes as are needed, and the weights of a plain loop over them"
    learn = learner(n_train) # for its data and first weights
    opt,done,drawn = learn.create_opt(),0,[]
    while done<n_iter:
        for x,y in learn.dls.train:
            (F.mse_loss(learn.model(x), y)/n_acc).backward()
            done += 1
            drawn.append(x)
            if done%n_acc==0: opt.step(); opt.zero_grad()
            if done==n_iter: break
    return drawn,weights(learn)

@pytest.mark.parametrize('n', [1, 5, 6, 7, 12, 20])
@pytest.mark.parametrize('bound', ['n_iter','n_step'])
@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
def test_exactly_so_many(n, bound, stream):
    drawn,expected = by_hand(n)
    learn = learner(stream=stream).fit(**{bound: n})
    assert learn.train_iter==learn.opt_step==n and learn.watch.places==[divmod(i, 6) for i in range(n)]
    assert (all(torch.equal(a, b) for a,b in zip(learn.watch.batches, drawn, strict=True))
        and torch.equal(weights(learn), expected))
    assert learn.watch.pcts==[i/n for i in range(n+1)] and learn.watch.end==learn.pct_train==1
    ends = [*range(6, n, 6), n]
    # the part of an epoch is validated too
    assert (learn.watch.rows==[((o-1)//6, o) for o in ends]
        and all(math.isfinite(o) for o in learn.recorder['valid_loss']))

@pytest.mark.parametrize('bounds,end', [
    (dict(n_epoch=2, n_iter=20), 12), (dict(n_epoch=3, n_iter=12), 12), (dict(n_epoch=3, n_iter=13), 13),
    (dict(n_epoch=3, n_step=4), 4),
    (dict(n_iter=7, n_step=9), 7), (dict(n_iter=9, n_step=7), 7), (dict(n_epoch=1, n_iter=8, n_step=7), 6)], ids=str)
def test_the_first_bound_ends_it(bounds, end):
    learn = learner().fit(**bounds)
    assert learn.train_iter==end
    assert learn.watch.pcts==pytest.approx([i/end for i in range(end+1)], abs=1e-12) and learn.watch.end==1

def test_no_length_and_epochs_only():
    learn = learner(stream=True).fit(2)
    assert learn.train_iter==12 and {*learn.watch.pcts}=={None}

@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
@pytest.mark.parametrize('n', [3, 6, 8])
def test_batches_while_accumulating(n, stream):
    "Windows of 2 batches, closed when the batches are over"
    learn = learner(stream=stream, cbs=GradientAccumulation(32)).fit(n_iter=n)
    assert learn.train_iter==n and learn.opt_step==-(-n//2) and learn.pct_train==1
    if n%2==0: torch.testing.assert_close(weights(learn), by_hand(n, n_acc=2)[1])

@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
@pytest.mark.parametrize('n', [1, 2, 3, 5])
def test_steps_while_accumulating(n, stream):
    "Windows of 4 batches; the second of each epoch of 6 has only 2"
    learn = learner(stream=stream, cbs=GradientAccumulation(64)).fit(n_step=n)
    assert learn.opt_step==n and learn.train_iter==6*(n//2) + 4*(n%2) and learn.pct_train==1
    assert learn.watch.end==1

def test_first_epoch_counts_as_done():
    learn = learner().fit(3, start_epoch=1)
    assert (learn.train_iter==12 and learn.watch.pcts==pytest.approx([(6+i)/18 for i in range(13)])
        and learn.watch.end==1)
    learn = learner().fit(n_iter=8, start_epoch=5)
    assert (learn.train_iter==8 and [o for o,_ in learn.watch.places]==[5]*6+[6]*2
        and learn.watch.pcts==[i/8 for i in range(9)])
    learn = learner().fit(3, start_epoch=3)
    assert learn.train_iter==0 and learn.watch.places==[]

@pytest.mark.parametrize('bounds', [dict(n_epoch=0), dict(n_iter=0), dict(n_step=0), dict(n_epoch=3, n_iter=0)],
    ids=str)
def test_none(bounds):
    learn = learner()
    before = weights(learn)
    learn.fit(**bounds)
    assert learn.train_iter==0 and torch.equal(weights(learn), before) and len(learn.recorder.rows)==0

def test_short_epochs_do_not_shorten_the_fit():
    assert learner(cbs=ShortEpochCallback(.5)).fit(n_iter=20).train_iter==20
    learn = learner()
    learn.limits = {'train': 4}
    learn.fit(n_iter=10)
    assert learn.watch.places==[divmod(i, 4) for i in range(10)] and learn.watch.pcts==[i/10 for i in range(11)]

def test_limits_and_the_fraction_done():
    learn = learner()
    learn.limits = {'train': 4, 'valid': 1}
    learn.fit(3)
    assert learn.train_iter==12 and learn.watch.pcts==pytest.approx([i/12 for i in range(13)]) and learn.watch.end==1

@pytest.mark.parametrize('bounds', [dict(n_iter=10), dict(n_step=10)], ids=str)
@pytest.mark.parametrize('stream', [False, True], ids=['sized','stream'])
def test_schedules_come_to_their_end(bounds, stream):
    learn = learner(stream=stream).fit_one_cycle(lr_max=.1, **bounds)
    one = combined_cos(.25, .1/25, .1, .1/1e5)
    assert learn.recorder.hps['lr']==pytest.approx([one(i/10) for i in range(10)])
    learn = learner(stream=stream).fit_flat_cos(lr=.1, **bounds)
    assert learn.train_iter==10 and learn.recorder.hps['lr'][:8]==pytest.approx([.1]*8)

def test_next_fit_and_looks_know_nothing_of_the_last_bound():
    learn = learner().fit(n_step=3)
    assert math.isfinite(learn.validate().valid_loss)
    learn.results = Row()
    assert 'valid_loss' in learn.validate().names and learn.pct_train==1
    with learn.no_logging(): assert len(learn.lr_find(num_it=20, stop_div=False, show_plot=False).lrs)==20-2-5
    assert len(learn.get_preds()[0])==16 and learn.train_iter==3
    learn.fit(2)
    assert learn.train_iter==12 and learn.watch.pcts[0]==0
    learn.fit(1)
    assert learn.watch.pcts==[i/6 for i in range(7)] # counted from 0, not from the last epoch of the fit before

def test_an_empty_or_cut_epoch():
    learn = learner(n_train=4)
    learn.on(event.before_train(when=lambda f, l: l.epoch==1))(Cancel())
    learn.fit(n_iter=10)
    assert learn.watch.places==[(0,0),(0,1),(0,2),(0,3),(2,0),(2,1),(2,2),(2,3),(3,0),(3,1)]

class Cancel:
    def __call__(self, learn): raise CancelTrainException

@pytest.mark.parametrize('args,exc,match', [
    ({}, TypeError, '`fit` needs an end: `n_epoch`, `n_iter` or `n_step`'),
    (dict(n_iter=-1), ValueError, '`n_iter` is 0 or more, but got -1'),
    (dict(n_step=1.5), TypeError, '`n_step` is a whole number, but got 1.5'),
    (dict(n_iter=True), TypeError, '`n_iter` is a whole number, but got True'),
    (dict(n_epoch=1, n_steps=3), TypeError, 'no argument `n_steps`. Did you mean `n_step`')], ids=str)
def test_bad_bounds(args, exc, match):
    learn = learner()
    with pytest.raises(exc, match=match): learn.fit(**args)
    assert learn.fit(1).train_iter==6

def test_somebody_has_to_count():
    learn = synth_learner(default_cbs=False)
    with pytest.raises(ValueError, match='`n_iter` bounds the training batches that `TrainEvalCallback` counts'):
        learn.fit(n_iter=3)
    assert learn.fit(n_step=3).opt_step==3

def test_a_quick_run_by_the_environment(monkeypatch):
    monkeypatch.setenv('LEARNER_LIMIT_BATCHES', '2')
    learn = learner(n_valid=5).fit(3)
    assert learn.train_iter==6 and learn.watch.pcts==[i/6 for i in range(7)] and learn.watch.end==1
    seen = []
    learn.validate(cbs=Callback(after_batch=lambda self: seen.append(1)))
    assert len(seen)==2 and len(learn.get_preds()[0])==80 # predictions are whole
    learn.limits = {'valid': 1, 'train': 4}
    learn.fit(1)
    assert learn.train_iter==2 # the least of both
    for bad in ('0', '-1', 'two', '1.5'):
        monkeypatch.setenv('LEARNER_LIMIT_BATCHES', bad)
        with pytest.raises(ValueError, match=f"`LEARNER_LIMIT_BATCHES` is a whole number above 0, but is '{bad}'"):
            learn.fit(1)
    monkeypatch.delenv('LEARNER_LIMIT_BATCHES')
    learn.limits = {}
    assert learn.fit(1).train_iter==6

def test_a_trial_puts_back_the_networks_of_callbacks_that_it_is_given():
    class Critic(Callback):
        def __init__(self): self.net = torch.nn.Linear(1, 1); self.steps = torch.optim.SGD(self.net.parameters(), lr=.1)
        def after_loss(self):
            if self.training: self.steps.zero_grad(); self.net(self.learn.x).mean().backward(); self.steps.step()
    cb = Critic()
    before = cb.net.weight.clone()
    learn = synth_learner()
    learn.smoke(cbs=cb)
    assert torch.equal(cb.net.weight, before) and cb not in learn.cbs
    learn.fit(1, cbs=cb)
    assert not torch.equal(cb.net.weight, before)
