"""Averages of weights against loops by hand and `torch.optim.swa_utils`; in the model for a validation, and never by
accident"""
import copy,io,warnings
from itertools import chain
import numpy as np
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel,SWALR,get_ema_multi_avg_fn,update_bn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8,2))

def dls(n=24, bs=4, more=False, seed=0, shuffle=True):
    gen = torch.Generator().manual_seed(seed)
    def ds(n): return TensorDataset(torch.randn(n, 3, generator=gen), torch.randint(0, 2, (n,), generator=gen))
    valid = dict(valid=DataLoader(ds(10), 4), other=DataLoader(ds(6), 4)) if more else DataLoader(ds(10), 4)
    return DataLoaders(DataLoader(ds(n), bs, shuffle=shuffle), valid, device='cpu')

def sgd(ps, lr=.1): return torch.optim.SGD(ps, lr=lr, momentum=.9)
def mk(*cbs, data=None, lr=.1, **kwargs):
    torch.manual_seed(1)
    return Learner(dls() if data is None else data, net(), nn.CrossEntropyLoss(), opt_func=sgd, lr=lr, cbs=cbs,
        **kwargs).remove_cb(ProgressCallback)

def weights(m): return [o.detach().clone() for o in m.parameters()]
def everything(m): return [o.clone() for o in m.state_dict().values()]
def same(a, b): return all(map(torch.equal, a, b)) and len(a)==len(b)
def close(a, b, tol=1e-6):
    return len(a)==len(b) and all(torch.allclose(x.float(), y.float(), rtol=tol, atol=tol) for x,y in zip(a, b))

def by_hand(n_epoch, each=lambda m, epoch, i: None, after=lambda m, epoch: None, set_lr=None, lr=.1, data=None):
    "The same training, in torch alone"
    torch.manual_seed(1)
    m,dl = net(),(dls() if data is None else data).train
    opt = sgd(m.parameters(), lr)
    for epoch in range(n_epoch):
        m.train()
        for i,(x,y) in enumerate(dl):
            if set_lr: set_lr(opt, epoch, i)
            F.cross_entropy(m(x), y).backward()
            opt.step(); opt.zero_grad()
            each(m, epoch, i)
        after(m, epoch)
    return m

# EMA
@pytest.mark.parametrize('every', [1,4])
@pytest.mark.parametrize('buffers', [False,True])
def test_ema_is_the_average_of_torch(every, buffers):
    avg,n = None,0
    def each(m, epoch, i):
        nonlocal avg,n
        n += 1
        if n%every==0: avg.update_parameters(m)
    torch.manual_seed(1)
    start = net()
    avg = AveragedModel(start, multi_avg_fn=get_ema_multi_avg_fn(.8), use_buffers=buffers)
    avg.n_averaged += 1 # torch's average begins at the first update
    by_hand(3, each)
    ema = EMA(.8, warmup=False, every=every, buffers=buffers)
    mk(ema).fit(3)
    expected = [*avg.module.parameters(), *(b for b in avg.module.buffers() if b.is_floating_point() and buffers)]
    assert close(ema.avg, expected)

def test_ema_warms_up():
    avg,n,decays = weights(net()),0,[]
    def each(m, epoch, i):
        nonlocal avg,n
        n += 1
        d = min(.6, (1+n)/(10+n))
        decays.append(d)
        avg = [d*a+(1-d)*p for a,p in zip(avg, weights(m))]
    by_hand(3, each)
    ema = EMA(.6)
    mk(ema).fit(3)
    assert close(ema.avg, avg) and decays[0]==2/11 and decays[-1]==.6 and ema.n==18

def test_training_goes_on_as_if_there_were_no_average():
    plain = mk().fit(3)
    for cb in (EMA(.5), EMA(.5, validate='both'), EMA(.5, buffers=True), SWA(.9, validate='both'),
            SWA(.9, validate=True)):
        learn = mk(cb).fit(3)
        assert learn.recorder.raw_losses==plain.recorder.raw_losses
        assert isinstance(cb, SWA) or same(everything(learn.model), everything(plain.model))

def test_steps_that_are_skipped_do_not_count():
    class Skip(Callback):
        def before_step(self):
            if self.iter%2: raise CancelStepException
    def count(*cbs):
        ema = EMA(.5)
        mk(ema, *cbs).fit(2)
        return ema.n
    assert (count(), count(Skip), count(GradientAccumulation(8)))==(12, 6, 6)

@pytest.mark.parametrize('more', [False,True])
def test_a_validation_has_the_average(more):
    ema = EMA(.8, buffers=True)
    rows = mk(ema, data=dls(more=more), metrics=accuracy).fit(3).recorder.values
    twin = EMA(.8, buffers=True, validate=False)
    learn,expected = mk(twin, data=dls(more=more), metrics=accuracy),[]
    @learn.on(event.after_epoch)
    def look(learn):
        with twin.averaged(): expected.append(learn.validate())
    learn.fit(3)
    for a,b in zip(rows, expected, strict=True): assert [a[k] for k in b.names]==[*b] and len(b)==(4 if more else 2)

@pytest.mark.parametrize('more,train_metrics', [(False,False),(True,False),(False,True)])
def test_both_have_their_columns(more, train_metrics):
    def run(**kwargs):
        learn = mk(EMA(.8, **kwargs), data=dls(more=more),
            metrics=accuracy).remove_cb(Recorder).add_cb(Recorder(train_metrics=train_metrics)).fit(3)
        return learn.recorder
    both,plain,avg = run(validate='both'),run(validate=False),run(validate=True)
    own = [o for o in plain.metric_names if o not in ('epoch','time') and not o.startswith('train')]
    assert (both.metric_names==[*plain.metric_names[:-1], *(f'ema/{o}' for o in own), 'time']
        and len(own)==(4 if more else 2))
    for o in own:
        assert list(both[o])==list(plain[o]) and list(both[f'ema/{o}'])==list(avg[o])
    assert list(both['train_loss'])==list(plain['train_loss'])

def test_an_average_that_is_not_there_yet_has_no_values():
    rec = mk(EMA(every=7, validate='both')).fit(2).recorder
    assert rec[0,'ema/valid_loss'] is missing and rec[1,'ema/valid_loss']>0
    class Stop(Callback):
        def before_validate(self): raise CancelEpochException
    assert mk(EMA(validate='both'), Stop).fit(1).recorder[0,'ema/valid_loss'] is missing

def test_a_column_of_the_average_can_be_monitored(recwarn):
    for k,better in (('ema/accuracy',np.greater), ('ema/valid_loss',np.less)):
        seen = []
        rec = mk(EMA(.9, validate='both'), OnBetter(lambda learn: seen.append(learn.epoch), k),
            metrics=accuracy).fit(4).recorder
        vals = rec[k]
        assert seen==[i for i,v in enumerate(vals) if all(better(v, o) for o in vals[:i])]
    assert not recwarn.list # both know what is better

@pytest.mark.parametrize('train_metrics', [False, True])
def test_the_recorder_knows_what_is_better_in_a_column_of_the_average(train_metrics, tmp_path, recwarn):
    "The best row, stars of the table, cards and seeds ask it; a callback that monitors the column agrees"
    learn,acc = mk(metrics=accuracy, path=tmp_path),'ema/valid_accuracy' if train_metrics else 'ema/accuracy'
    learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=train_metrics))
    rec = learn.fit(3, cbs=[EMA(.9, validate='both'), SaveModelCallback(acc)]).recorder
    assert rec.higher_is_better[acc] and rec.higher_is_better['ema/valid_loss'] is False
    assert rec.best(acc)[acc]==max(rec[acc]) and rec.best('ema/valid_loss').epoch==np.argmin(rec['ema/valid_loss'])
    assert not recwarn.list

def test_other_data_are_for_the_trained_weights():
    rec = mk(EMA(validate='both'), ExtraValid(dls(seed=1).valid, name='other')).fit(1).recorder
    assert rec[0,'other/loss']>0 and rec[0,'ema/valid_loss']>0 and 'ema/other/loss' not in rec.metric_names

def test_an_average_needs_no_recorder():
    learn = mk(EMA(validate='both')).remove_cb(Recorder).fit(1)
    assert learn.ema.n==6

def test_the_name_of_the_callback_is_that_of_its_columns():
    rec = mk(EMA(.1, validate='both'), EMA(.9, validate='both')).fit(1).recorder
    assert 'ema/valid_loss' in rec.metric_names and 'ema_2/valid_loss' in rec.metric_names
    assert rec[0,'ema/valid_loss']!=rec[0,'ema_2/valid_loss']

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('ev',
    ['before_train', 'after_pred', 'after_loss', 'after_backward', 'after_step', 'before_validate', 'after_validate',
        'after_epoch'])
@pytest.mark.parametrize('make',
    [lambda: EMA(.5), lambda: EMA(.5, buffers=True), lambda: EMA(.5, validate='both'), lambda: SWA(1, validate=True)],
    ids=['ema','buffers','both','swa'])
@pytest.mark.parametrize('amp', [False,True])
def test_a_look_changes_nothing(make, ev, amp):
    seen = []
    class Look(Callback):
        count = 0
        def look(self):
            self.count += 1
            if self.mode=='fit' and self.count in (2,3): seen.append(self.learn.validate().valid_loss)
    def run(look):
        cb = type('Look', (Look,), {ev: lambda self: self.look()}) if look else None
        learn = mk(make(), *([cb] if look else []), *([MixedPrecision('bf16')] if amp else []))
        return learn.fit(3)
    a,b = run(False),run(True)
    assert (a.recorder.raw_losses==b.recorder.raw_losses and same(everything(a.model), everything(b.model))
        and len(seen)>=1)

def test_a_look_inside_a_batch_of_mixed_precision_sees_the_average():
    "Autocast keeps copies of the weights in 16 bits, which are those of before the swap"
    seen = []
    def after_pred(self):
        if self.learn.training and self.learn.train_iter==5: seen.append(self.learn.validate().valid_loss)
    def after_batch(self):
        if self.learn.training and self.learn.train_iter==6: seen.append(self.learn.validate().valid_loss)
    # nothing is stepped between the two, and batch norms look at running statistics that a forward pass has moved
    # already
    class Between(Callback):
        order = 200
        def before_step(self):
            if self.learn.train_iter==5: raise CancelStepException
    mk(EMA(.5), MixedPrecision('bf16'), Callback(after_pred=after_pred), Callback(after_batch=after_batch),
        Between).fit(1)
    assert len(seen)==2 and seen[0]==seen[1]

@pytest.mark.sample(4, together=2)
@pytest.mark.parametrize('exc',
    [ValueError, KeyboardInterrupt, CancelValidException, CancelEpochException, CancelFitException])
@pytest.mark.parametrize('ev', ['before_validate', 'before_batch', 'after_validate', 'cleanup_validate'])
@pytest.mark.parametrize('order', [-50, 100])
@pytest.mark.parametrize('make',
    [lambda: EMA(.5, buffers=True), lambda: EMA(.5, validate='both'), lambda: SWA(1, validate=True),
        lambda: SWA(1, validate='both')], ids=['ema','both','swa','swa both'])
def test_trained_weights_are_back_however_a_validation_ends(make, order, ev, exc):
    cb,trained,learn = make(),[],mk()
    def keep(self): trained.append(everything(self.learn.model))
    def stop(self):
        if self.learn.mode=='fit' and not self.learn.training and self.learn.epoch==2: raise exc
    broken,keep = Callback(**{ev: stop}),Callback(after_train=keep)
    broken.order = order
    try: learn.fit(3, cbs=[cb, keep, broken])
    except (ValueError, KeyboardInterrupt, RuntimeError): finished = False
    else: finished = True
    if not (finished and isinstance(cb, SWA)): assert same(everything(learn.model), trained[-1])
    assert not close(cb.avg, [o for o in learn.model.parameters()]) or finished # it is not the average that has stayed

def test_apply_and_averaged():
    ema = EMA(.8, buffers=True)
    learn = mk(ema).fit(2)
    raw,avg = weights(learn.model),[o.clone() for o in ema.avg]
    assert not close(raw, avg[:6])
    with ema.averaged():
        assert same([*weights(learn.model), *(b for b in learn.model.buffers() if b.is_floating_point())], avg)
    assert same(weights(learn.model), raw) and same(ema.avg, avg)
    with pytest.raises(ZeroDivisionError), ema.averaged(): 1/0
    assert same(weights(learn.model), raw)
    ema.apply()
    assert same(weights(learn.model), avg[:6]) and same(ema.avg, avg)

def test_a_second_fit_continues_the_average():
    ema = EMA(.8)
    mk(ema).fit(1).fit(2)
    other = EMA(.8)
    mk(other).fit(3)
    assert close(ema.avg, other.avg) and ema.n==other.n==18

def test_other_weights_begin_an_average_of_their_own(tmp_path):
    "What is averaged after a load are the weights that came from it"
    torch.manual_seed(7)
    torch.save(nn.Sequential(nn.Linear(3,8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8,2)).state_dict(),
        tmp_path/'other.pt')
    def average(n_before):
        learn = mk(EMA(.9))
        if n_before: learn.fit(n_before)
        learn.load(tmp_path/'other.pt', with_opt=False)
        torch.manual_seed(2)
        learn.fit(1, reset_opt=True)
        return learn.ema.avg
    assert same(average(2), average(0))

def test_its_state_is_all_that_a_new_one_needs():
    def split(at, loaded):
        ema = EMA(.8, every=5)
        learn = mk(ema)
        @learn.on(event.after_batch)
        def swap(learn):
            if not learn.training or learn.train_iter!=at: return
            buf = io.BytesIO()
            torch.save(learn.ema.state_dict(), buf)
            if loaded:
                learn.ema.avg,learn.ema.n,learn.ema.steps = [torch.zeros_like(o) for o in ema.avg],99,99
                learn.ema.load_state_dict(torch.load(io.BytesIO(buf.getvalue()), weights_only=True))
        learn.fit(3)
        return ema.avg
    assert same(split(8, True), split(8, False))
    ema = EMA(.8)
    mk(ema).fit(1)
    new = EMA(.8)
    new.load_state_dict(ema.state_dict()) # not attached yet
    assert new.avg is not None and new.n==6

# SWA
def cos(a, b, t): return b + (a-b)*(1+torch.cos(torch.tensor(t*torch.pi, dtype=torch.double)).item())/2

@pytest.mark.parametrize('start,n_avg', [(.5,2), (2,2), (.3,3), (0,4), (3,1), (.75,1), (.7,2)])
def test_swa_is_the_average_of_torch(start, n_avg):
    begin = start if start>=1 else start*4
    def set_lr(opt, epoch, i):
        done = epoch+i/6-begin
        if done>=-1e-9: opt.param_groups[0]['lr'] = cos(.1, .04, min(1, done/.5))
    avg = AveragedModel(net())
    def after(m, epoch):
        if epoch+1>begin: avg.update_parameters(m)
    by_hand(4, after=after, set_lr=set_lr)
    swa = SWA(start, lr=.04, anneal=.5)
    learn = mk(swa).fit(4)
    assert (swa.n==n_avg==avg.n_averaged.item() and close(weights(learn.model), weights(avg.module))
        and close(swa.avg, weights(avg.module)))
    m = avg.module
    state = torch.get_rng_state()
    update_bn(learn.dls.train, m)
    torch.set_rng_state(state)
    assert close(everything(learn.model), everything(m), 1e-5)
    assert (get_hyper(learn.opt, 'lr')==[.1]
        and all(o.momentum==.1 for o in learn.model.modules() if isinstance(o, nn.BatchNorm1d)))

def test_its_learning_rate_is_that_of_swalr():
    learn = mk(SWA(1, lr=.02, anneal=2)).fit(4)
    opt = sgd(net().parameters())
    sched = SWALR(opt, swa_lr=.02, anneal_epochs=12)
    expected = [.1]*6
    for _ in range(18): expected.append(opt.param_groups[0]['lr']); opt.step(); sched.step()
    assert learn.recorder.lrs==pytest.approx(expected)

class Rates(Callback):
    "Of each group, at each step; stops after some batches"
    order,run_valid = 1000,False
    def __init__(self, *stops): self.stops,self.seen = stops,[]
    def before_step(self): self.seen.append(get_hyper(self.learn.opt, 'lr'))
    def after_batch(self):
        if self.learn.train_iter in self.stops: self.learn.stop_soon()

@pytest.mark.filterwarnings('ignore:The run resumes with other settings')
@pytest.mark.parametrize('anneal', [0, 2])
@pytest.mark.parametrize('fit,change', [('fit','edited script'),
    *((fit, change) for fit in ('fit','fit_one_cycle') for change in ('resume','set_hyper'))])
def test_a_rate_that_is_asked_for_in_the_last_part_is_not_used_and_said_so(fit, change, anneal, capsys, tmp_path):
    "Nor is the schedule, which counts no longer, said to be scaled"
    def new(*stops):
        return mk(SWA(.5, lr=.01, anneal=anneal), Checkpoint(), rates := Rates(*stops), path=tmp_path),rates.seen
    def go(learn, lr, **kwargs): return getattr(learn, fit)(4, lr, **kwargs)
    learn,whole = new()
    go(learn, .1)
    learn,seen = new(14)
    go(learn, .1)
    capsys.readouterr()
    if change=='edited script': learn,seen = new()
    with pytest.warns(UserWarning, match=r"The `lr` with which the run resumes is not used: .* `SWA` sets it to 0.01"):
        if change=='edited script': go(learn, .5, resume=True)
        elif change=='resume': learn.resume(lr=.5)
        else: learn.set_hyper('lr', .5); learn.resume()
    assert seen[-10:]==whole[14:] and 'schedule' not in capsys.readouterr().out

def test_at_once_and_not_at_all():
    assert mk(SWA(1, lr=.02, anneal=0)).fit(2).recorder.lrs==[.1]*6+[.02]*6
    assert mk(SWA(1)).fit(2).recorder.lrs==[.1]*12

@pytest.mark.parametrize('cb',
    [lambda: ParamScheduler(dict(lr=SchedCos(.1, 1e-4))),
        lambda: TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, .1), 'step')])
def test_its_learning_rate_counts(cb):
    swa = SWA(.5, lr=.05, anneal=1)
    before = mk(cb()).fit(4).recorder.lrs
    learn = mk(swa, cb()).fit(4)
    lrs = learn.recorder.lrs
    assert (lrs[:12]==before[:12] and lrs[12]==pytest.approx(before[12]) and lrs[18:]==[.05]*6
        and swa.lrs==[pytest.approx(before[12])])

def test_groups_have_their_own():
    learn = mk(SWA(1, lr=slice(.01, .04), anneal=0), lr=[.1,.2])
    learn.splitter = lambda m: [list(m[:2].parameters()), list(m[2:].parameters())]
    seen = []
    learn.fit(2, cbs=on(event.before_step)(lambda learn: seen.append(get_hyper(learn.opt, 'lr'))))
    assert seen[:6]==[[.1,.2]]*6 and seen[6:]==[[.01,.04]]*6 and get_hyper(learn.opt, 'lr')==[.1,.2]

def test_swa_by_steps():
    seen,n = [],0
    def each(m, epoch, i):
        nonlocal n
        n += 1
        if epoch>=1 and n%4==0: seen.append(weights(m))
    by_hand(3, each)
    swa = SWA(1, every=4)
    learn = mk(swa).fit(3)
    assert swa.n==len(seen)==3 and close(weights(learn.model), [torch.stack(o).mean(0) for o in zip(*seen)])

def test_the_last_pass_moves_no_generator():
    mk(SWA(.5, validate='both')).fit(4)
    a = torch.rand(3)
    mk().fit(4)
    assert torch.equal(a, torch.rand(3))

def test_frozen_batch_norms_keep_their_statistics():
    def run(*cbs):
        learn = mk(SWA(1), *cbs)
        learn.model[1].requires_grad_(False)
        learn.fit(2)
        return learn.model[1].running_mean.clone()
    assert torch.equal(run(BnFreeze), torch.zeros(8)) and not torch.equal(run(), torch.zeros(8))

def test_validation_with_batch_norms_of_the_average():
    swa = SWA(1, validate='both')
    learn = mk(swa, data=dls(shuffle=False)).fit(3)
    assert learn.recorder[0,'swa/valid_loss'] is missing
    assert learn.recorder[-1,'swa/valid_loss']==pytest.approx(learn.validate().valid_loss, abs=1e-6)
    other = mk(SWA(1, validate=True), data=dls(shuffle=False)).fit(3).recorder
    assert list(other['valid_loss'][1:])==list(learn.recorder['swa/valid_loss'][1:])
    assert other[0,'valid_loss']==learn.recorder[0,'valid_loss']

@pytest.mark.parametrize('exc', [ValueError, KeyboardInterrupt])
def test_a_fit_that_is_broken_off_keeps_the_trained_weights(exc):
    learn = mk(SWA(1), Raise('after_batch', exc, n=32)) # in the validation of epoch 3
    with pytest.raises(exc): learn.fit(4)
    plain = mk(Raise('after_batch', exc, n=32))
    with pytest.raises(exc): plain.fit(4)
    assert learn.swa.n==2 and same(everything(learn.model), everything(plain.model))

def test_a_fit_that_is_cancelled_ends_with_the_average():
    learn = mk(SWA(1), Raise('after_epoch', CancelFitException, n=3)).fit(9)
    assert learn.swa.n==2 and close(weights(learn.model), learn.swa.avg)

def test_each_fit_has_an_average_of_its_own():
    swa = SWA(1)
    learn = mk(swa).fit(3)
    learn.fit(2)
    assert swa.n==1

def test_without_a_known_length():
    class Some:
        def __init__(self, dl): self.dl = dl
        def __iter__(self): return iter(self.dl)
    d = dls()
    learn = mk(SWA(.5, lr=.02, anneal=0), data=DataLoaders(Some(d.train), d.valid, device='cpu')).fit(4)
    assert learn.swa.n==2 and learn.recorder.lrs==[.1]*12+[.02]*12

@pytest.mark.parametrize('kwargs,n_avg,n_low',
    [(dict(n_epoch=4), 2, 12), (dict(n_iter=24), 2, 12), (dict(n_step=24), 2, 12), (dict(n_iter=21), 3, 10),
        (dict(n_epoch=9, n_iter=24), 2, 12), (dict(n_epoch=4, start_epoch=1), 2, 12)])
def test_half_of_a_fit_that_is_bounded_otherwise(kwargs, n_avg, n_low):
    learn = mk(SWA(.5, lr=.02, anneal=0)).fit(**kwargs)
    assert (learn.swa.n==n_avg
        and learn.recorder.lrs.count(.02)==n_low==len(learn.recorder.lrs)-learn.recorder.lrs.index(.02))

class InOne:
    "The batches of four epochs as one epoch, without a length"
    def __init__(self, dl): self.dl = dl
    def __iter__(self): return chain(*(self.dl for _ in range(4)))

@pytest.mark.parametrize('long', [False,True], ids=['sized','long'])
@pytest.mark.parametrize('bound', ['n_iter','n_step'])
def test_steps_of_half_of_a_fit_are_those_of_its_second_half(bound, long):
    d,seen = dls(shuffle=False),[]
    data = DataLoaders(InOne(d.train) if long else d.train, device='cpu')
    keep = on(event.after_step)(lambda learn: seen.append(weights(learn.model)))
    learn = mk(SWA(.5, every=1), keep, data=data).fit(**{bound: 24})
    assert learn.swa.n==12 and close(weights(learn.model), [torch.stack(o).mean(0) for o in zip(*seen[12:])])
    learn = mk(SWA(.5, lr=.02, anneal=0), data=data).fit(**{bound: 24})
    assert learn.recorder.lrs==[.1]*12+[.02]*12

def test_a_schedule_is_left_alone_until_half_of_one_long_epoch_is_done():
    d = dls()
    before = mk(data=d).fit_one_cycle(n_iter=24, lr_max=.1).recorder.lrs
    learn = mk(SWA(.5, lr=.02), data=DataLoaders(InOne(d.train), d.valid, device='cpu'))
    lrs = learn.fit_one_cycle(n_iter=24, lr_max=.1).recorder.lrs
    assert lrs[:12]==before[:12] and lrs[12:]==[.02]*12

def test_half_of_short_epochs():
    learn = mk(SWA(.5, lr=.02, anneal=1), ShortEpochCallback(.5)).fit(4)
    assert (learn.swa.n==2 and learn.recorder.lrs
        ==pytest.approx([.1]*6 + [cos(.1, .02, i/3) for i in range(3)] + [.02]*3))

def test_lr_find_and_looks_leave_it_alone():
    swa,ema = SWA(1),EMA(.9, validate='both')
    learn = mk(swa, ema).fit(2)
    before = [o.clone() for o in (*swa.avg, *ema.avg)],swa.n,ema.n,weights(learn.model)
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=6, show_plot=False)
    after = [*swa.avg, *ema.avg],swa.n,ema.n,weights(learn.model)
    assert same(before[0], after[0]) and before[1:3]==after[1:3] and same(before[3], after[3])

# What is refused
@pytest.mark.parametrize('make,match', [
    (lambda: EMA(1.), r'`decay` is in \[0,1\), but got 1'), (lambda: EMA(every=0), '`every` is 1 or more, but got 0'),
    (lambda: EMA(validate='bot'), "`validate` is True, False or 'both', but got 'bot'"),
    (lambda: SWA(-1), '`start` is 0 or more, but got -1'),
    (lambda: SWA(1.5), 'or a whole number of epochs, but got 1.5'),
    (lambda: SWA(anneal=-1), '`anneal` is 0 or more, but got'), (lambda: SWA(every=0), '`every` is 1 or more')])
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match): make()

def test_bad_moments():
    with pytest.raises(ValueError, match='`SWA` begins after 4 epochs, but there are only 3'): mk(SWA(4)).fit(3)
    with pytest.raises(ValueError, match='`lr` has 3 values'): mk(SWA(0, lr=[1,2,3])).fit(1)
    with pytest.raises(RuntimeError, match='`EMA` has no average yet'): mk(EMA()).ema.apply()
    ema = EMA()
    learn = mk()
    learn.fit(1, cbs=ema)
    with pytest.raises(RuntimeError, match='`EMA` belongs to no Learner now. .*`learn.add_cb` brings it back'):
        ema.apply()
    learn.add_cb(ema)
    ema.apply()
    assert same(weights(learn.model), ema.avg)
    learn.model = nn.Linear(3,2)
    with pytest.raises(ValueError, match='average of `EMA` is that of another model'): learn.fit(1, reset_opt=True)

# A fit that is stopped goes on as if it had not been
kinds = dict(ema=lambda: EMA(.8, every=4), both=lambda: EMA(.8, buffers=True, validate='both'),
    swa=lambda: SWA(1, lr=.02), steps=lambda: SWA(1, lr=.02, anneal=2, every=4), valid=lambda: SWA(.5, validate=True))
@pytest.mark.sample(3)
@pytest.mark.parametrize('name', kinds)
@pytest.mark.parametrize('place', ['train 2', 'train 9', 'train 12', 'train 16', 'valid 1', 'valid 2'])
@pytest.mark.parametrize('file', [False,True])
def test_going_on(name, place, file, tmp_path):
    phase,i = place.split()
    def stop(learn):
        at = learn.train_iter if learn.training else learn.epoch
        if learn.mode=='fit' and learn.training==(phase=='train') and at==int(i): learn.at_pause(interrupt, stops=True)
    def interrupt(): raise KeyboardInterrupt
    whole,learn = mk(kinds[name]()).fit(3),mk(kinds[name]())
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=on(event.after_batch)(stop))
    if file:
        learn.save_state(tmp_path/'state.pt')
        torch.manual_seed(99)
        learn = mk(kinds[name]())
        for p in learn.model.parameters(): p.data.zero_()
        learn.load_state(tmp_path/'state.pt')
    learn.resume(cbs=[])
    a,b = (o.cbs[-1] for o in (whole, learn))
    assert same(everything(whole.model), everything(learn.model)) and same(a.avg, b.avg) and a.n==b.n
    assert whole.recorder.raw_losses==learn.recorder.raw_losses and whole.recorder.lrs==learn.recorder.lrs
    assert [[v for k,v in dict(o).items() if k!='time' and v==v] for o in whole.recorder.rows]==[
        [v for k,v in dict(o).items() if k!='time' and v==v] for o in learn.recorder.rows]

# Weights of 16 bits
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('cb', [lambda: EMA(.999, warmup=False), lambda: SWA(.5, every=1)], ids=['ema','swa'])
def test_averages_of_half_precision_are_wide(dtype, cb):
    "Each update moves the average by less than 16 bits can tell; in validations the model has its own type"
    def model(): torch.manual_seed(0); return nn.Sequential(nn.Linear(3,8), nn.ReLU(), nn.Linear(8,2)).to(dtype)
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, generator=gen).to(dtype), torch.randint(0, 2, (4,), generator=gen)) for _ in range(20)]
    def mk(*cbs):
        torch.manual_seed(1)
        return Learner(DataLoaders(data, data[:2], device='cpu'), model(), nn.CrossEntropyLoss(), opt_func=sgd, lr=.1,
            cbs=cbs).remove_cb(ProgressCallback)
    snaps,seen = [],[]
    mk(on(event.after_step)(lambda learn: snaps.append([p.detach().float() for p in learn.model.parameters()]))).fit(4)
    avg = [o.float() for o in weights(model())]
    for i,ws in enumerate(snaps):
        if isinstance(cb(), EMA): avg = [.999*a+.001*w for a,w in zip(avg, ws)]
        elif i>=len(snaps)//2: avg = [a+(w-a)/(i-len(snaps)//2+1) for a,w in zip(avg, ws)]
    look = on(event.before_batch)(lambda learn: seen.extend(p.dtype for p in learn.model.parameters()))
    learn = mk(c := cb(), look).fit(4)
    assert ({o.dtype for o in c.avg}=={torch.float32} and close(c.avg, avg, 1e-4)
        and {*seen}=={p.dtype for p in learn.model.parameters()}=={dtype} and not close(c.avg, weights(model()), 1e-3))
    before = weights(learn.model)
    with c.averaged(): assert same(weights(learn.model), [a.to(dtype) for a in c.avg])
    assert same(before, weights(learn.model))
    c.apply()
    assert same(weights(learn.model), [a.to(dtype) for a in c.avg])
    c.load_state_dict({k:[o.to(dtype) for o in v] if k=='avg' else v for k,v in c.state_dict().items()})
    assert {o.dtype for o in c.avg}=={torch.float32}

@pytest.mark.parametrize('lr,exc,match',
    [([.1,.2], ValueError, r'`lr` has 2 values, \[0.1, 0.2\], but there is 1 parameter group'),
        ('a', TypeError, "`lr` is a number, or one per parameter group, but got")])
def test_a_rate_that_does_not_fit_is_found_at_once(lr, exc, match):
    learn = mk()
    with pytest.raises(exc, match=match): learn.fit(4, cbs=SWA(lr=lr))
    assert learn.train_iter==0

# Weights of all kinds
class Kinds(nn.Module):
    "Complex weights, tied ones, and buffers that count, hold flags, or share memory with another"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp,self.out = nn.Linear(3,3),nn.Linear(3,3)
        self.out.weight = self.inp.weight
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.index = nn.Parameter(torch.tensor([2,0,1]), requires_grad=False)
        self.register_buffer('n', torch.tensor(0))
        self.register_buffer('flags', torch.tensor([True,False,True]))
        self.register_buffer('mean', torch.zeros(3, dtype=torch.complex64))
        self.register_buffer('again', self.mean)
    def forward(self, x):
        z = self.inp(x[:,self.index])*self.phase
        if self.training: self.n += 1; self.flags = ~self.flags; self.mean.lerp_(z.detach().mean(0), .1)
        return self.out((z-self.mean).abs())

def mk_kinds(*cbs):
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, generator=gen), torch.randint(0, 3, (4,), generator=gen)) for _ in range(12)]
    return Learner(DataLoaders(data, data[:2], device='cpu'), Kinds(), nn.CrossEntropyLoss(),
        opt_func=lambda ps, lr=.1: torch.optim.SGD(ps, lr), lr=.1, cbs=cbs).remove_cb(ProgressCallback)

@pytest.mark.parametrize('make',
    [lambda: EMA(.8, warmup=False), lambda: EMA(.8, warmup=False, buffers=True), lambda: SWA(.5, every=1)],
    ids=['ema','buffers','swa'])
def test_complex_weights_are_averaged_and_counts_are_not(make):
    cb,snaps = make(),[{k:v.clone() for k,v in Kinds().state_dict().items()}]
    def note(learn): snaps.append({k:v.clone() for k,v in learn.model.state_dict().items()})
    learn = mk_kinds(cb, on(event.after_step)(note)).fit(2)
    avg = dict(snaps[0])
    for i,s in enumerate(snaps[1:]):
        w = .2 if isinstance(cb, EMA) else 1/(i-len(snaps)//2+1) if i>=len(snaps)//2 else 0.
        for k,v in s.items():
            mine = v.is_floating_point() or v.is_complex()
            averaged = mine and (cb.buffers or k not in ('mean','again'))
            avg[k] = avg[k]*(1-w)+v*w if averaged else v
    assert any((a!=b).any() for a,b in zip(avg.values(), snaps[-1].values()))
    with cb.averaged():
        inside = {k:v.clone() for k,v in learn.model.state_dict().items()}
        tied = learn.model.out.weight is learn.model.inp.weight and learn.model.again is learn.model.mean
    assert tied
    for k,v in inside.items(): assert v.dtype==avg[k].dtype and torch.allclose(v, avg[k], rtol=1e-5, atol=1e-6), k
    if isinstance(cb, EMA): assert same([*learn.model.state_dict().values()], [*snaps[-1].values()]) # as trained

@pytest.mark.filterwarnings('ignore:ComplexHalf support')
@pytest.mark.parametrize('dtype,wide',
    [(torch.complex32, torch.complex64), (torch.complex64, torch.complex64), (torch.complex128, torch.complex128),
        (torch.float64, torch.float64), (torch.bfloat16, torch.float32)], ids=str)
def test_averages_of_complex_weights_are_wide(dtype, wide):
    "The average of a parameter that moves by 1 in each of two updates"
    m = nn.Linear(3,2)
    m.extra = nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)
    cb = EMA(.5, warmup=False)
    @on(event.before_step)
    def move(learn): m.extra.data = m.extra.data+1
    data = [(torch.randn(4,3), torch.randint(0, 2, (4,)))]*2
    learn = Learner(DataLoaders(data, device='cpu'), m, nn.CrossEntropyLoss(), cbs=[cb,move],
        opt_func=sgd).remove_cb(ProgressCallback).fit(1)
    avg = next(a for a,p in zip(cb.avg, m.parameters()) if p is m.extra)
    assert avg.dtype==wide and avg.tolist()==[1.25]*2 and cb.state_dict()['avg']
    assert cb.learn is learn # a callback does not keep its Learner alive
    with cb.averaged(): assert m.extra.dtype==dtype and m.extra.to(wide).tolist()==[1.25]*2

@pytest.mark.parametrize('cb', [EMA, lambda: SWA(0)], ids=['ema','swa'])
def test_an_average_of_weights_without_shapes_says_what_to_write(cb):
    x,y = torch.randn(8, 3),torch.arange(8)%2
    learn = Learner(DataLoaders([(x, y)], [(x, y)], device='cpu'), nn.LazyLinear(2),
        nn.CrossEntropyLoss()).remove_cb(ProgressCallback)
    with pytest.raises(ValueError,
            match='`LazyLinear` has no weights before it has seen a batch, so `(EMA|SWA)` cannot average them: call '):
        learn.fit(1, cbs=cb())
    learn.model(learn.dls.one_batch()[0])
    learn.fit(1, cbs=cb())

def test_the_average_of_a_replaced_model_is_refused():
    "Also if the new model has the same shapes, as in the next fold of a cross-validation"
    learn = synth_learner(cbs=EMA(.9)).fit(1)
    learn.model = type(learn.model)()
    with pytest.raises(ValueError, match='The average of `EMA` is that of another model'): learn.fit(1, reset_opt=True)
    again = copy.deepcopy(synth_learner(cbs=EMA(.9)).fit(1))
    assert again.fit(1).ema.n==20

class NewHead(Callback):
    "Replaces the last layer when an epoch begins"
    def __init__(self, n, epoch): self.n,self.epoch_of = n,epoch
    def before_epoch(self):
        if self.epoch!=self.epoch_of: return
        self.model[-1] = nn.Linear(self.model[-1].in_features, self.n)
        nn.init.constant_(self.model[-1].weight, 5.)
        self.learn.create_opt()

def of_two_layers(*cbs): return Learner(dls(), nn.Sequential(nn.Linear(3,4), nn.Linear(4,2)), nn.CrossEntropyLoss(),
    lr=0., opt_func=sgd, cbs=cbs).remove_cb(ProgressCallback)

@pytest.mark.parametrize('n', [2, 3], ids=['same shape','another'])
@pytest.mark.parametrize('cb', [EMA, lambda: SWA(0, every=1)], ids=['ema','swa'])
def test_a_layer_that_is_replaced_within_a_fit_is_not_averaged_with_the_old_one(cb, n):
    with pytest.raises(ValueError, match='The average of `(EMA|SWA)` is that of another model.*a new `(EMA|SWA)`'):
        of_two_layers(NewHead(n, 1), cb()).fit(2)

@pytest.mark.parametrize('cb', [lambda: EMA(validate=False), lambda: SWA(1)], ids=['ema','swa'])
def test_a_layer_that_is_replaced_before_anything_was_averaged_is_averaged(cb):
    of_two_layers(NewHead(2, 0), cb := cb()).fit(2)
    assert cb.n and (cb.avg[2]==5).all()

def test_the_average_of_a_replaced_layer_is_refused():
    "Its average would be that of the old weights"
    learn = mk(EMA(.9)).fit(1)
    learn.fit(1)
    assert copy.deepcopy(learn).fit(1).ema.n==learn.ema.n+len(learn.dls.train)
    learn.model.load_state_dict({k:v.clone() for k,v in learn.model.state_dict().items()}, assign=True)
    learn.fit(1, reset_opt=True) # other parameters with the same values
    learn.model[3] = nn.Linear(8, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match='The average of `EMA` is that of another model'):
            learn.fit(1, reset_opt=True)

class Doubled(nn.Module):
    "Has a second input, which may be left out"
    def __init__(self): super().__init__(); self.net = net()
    def forward(self, x, gain=None):
        if gain is not None: raise AssertionError('targets are no input')
        return self.net(x)

@pytest.mark.parametrize('make', [net, Doubled])
def test_a_prediction_in_a_fit_has_the_statistics_of_the_average(make):
    "Which are computed on training batches: these have targets, and what is predicted has none"
    found = []
    def fit(at_end):
        torch.manual_seed(1)
        swa = SWA(1, validate=True)
        learn = Learner(dls(shuffle=False), make(), nn.CrossEntropyLoss(), opt_func=sgd, lr=.1, cbs=swa)
        if at_end: learn.on('after_epoch')(lambda learn: found.append(learn.predict(torch.ones(3))[2]))
        return learn.fit(3)
    assert same(everything(fit(True).model), everything(fit(False).model)) and len(found)==3

class Long:
    def __init__(self, dl): self.dl = dl
    def __iter__(self):
        while True: yield from self.dl
def test_statistics_of_an_long_stream_are_those_of_as_many_batches():
    def run(data, **kwargs): return everything(mk(SWA(0), data=DataLoaders(data, device='cpu')).fit(**kwargs).model)
    data = list(dls(shuffle=False).train)
    assert close(run(Long(data), n_iter=len(data)), run(data, n_epoch=1))
def test_what_can_be_iterated_once_is_refused_before_training():
    learn = mk(SWA(0), data=DataLoaders(iter(list(dls().train)), device='cpu'))
    with pytest.raises(ValueError, match=r"`SWA` takes another pass over `dls\['train'\]`"): learn.fit(1)
    assert learn.opt_step==0

class Normed(nn.Module):
    def __init__(self): super().__init__(); self.body = net()
    def forward(self, x): return self.body(x)

@pytest.mark.parametrize('make', [lambda: [EMA(.9)], lambda: [EMA(.9, buffers=True)],
    lambda: [EMA(.9, validate='both')], lambda: [Limit(valid=1)]])
def test_statistics_of_batch_norms_are_for_the_average_alone(make):
    "Not for another average, which validates with its own weights; and of all training batches"
    def run(*cbs): return mk(*cbs, lr=.5, data=dls(shuffle=False)).fit(4)
    learn,alone = run(SWA(.5), *make()),run(SWA(.5))
    assert close(everything(learn.model), everything(alone.model))
    right = copy.deepcopy(learn.model)
    update_bn(learn.dls.train, right)
    assert close(everything(learn.model), everything(right), 1e-5)

def test_an_average_of_buffers_is_the_same_beside_another():
    def run(*cbs): return mk(EMA(.9, buffers=True), *cbs, lr=.5).fit(4).ema.avg
    assert close(run(SWA(.25)), run())

@pytest.mark.parametrize('make,says', [
    (lambda: SWA(.75, every=20), 'SWA` has no average.*`start` is 0.75 and `every` is 20, .* 12 steps'),
    (lambda: EMA(.5, every=20), 'EMA` has no average.*`every` is 20, .* 12 steps')], ids=['swa','ema'])
def test_an_average_that_was_never_taken_is_told(make, says, recwarn):
    learn = mk()
    with pytest.warns(UserWarning, match=f'`{says}'): learn.fit(2, cbs=make())
    recwarn.clear()
    learn.smoke(cbs=make())
    learn.fit(2, cbs=EMA(.5, every=12))
    assert not [o for o in recwarn if 'no average' in str(o.message)]

def test_a_fit_that_stops_for_now_is_not_told_that_there_is_no_average_yet():
    stop = on(event.after_batch(once=2, unit='iter'))(lambda learn: learn.stop_soon())
    learn = synth_learner()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(4, cbs=[swa := SWA(.5), stop]).resume()
    assert swa.n

# Weights that cannot be averaged
class Doubled(torch.Tensor):
    "A wrapper, as a quantized weight is one: half of the values, which no operation changes in place"
    @staticmethod
    def __new__(cls, half): return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype)
    def __init__(self, half): self.half = half
    def __repr__(self): return 'Doubled'
    def __tensor_flatten__(self): return ['half'],None
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ('detach','clone','_to_copy','alias'): return cls(args[0].half)
        if func.overloadpacket.__name__ in ('lerp_','_foreach_lerp_','copy_'): raise NotImplementedError(func)
        return func(*[o.half*2 if isinstance(o, Doubled) else o for o in args], **(kwargs or {}))

class Mixed(nn.Module):
    "A frozen wrapper, a frozen sparse weight, a sparse buffer, and a head that is trained"
    def __init__(self):
        super().__init__()
        gen = torch.Generator().manual_seed(0)
        def w(*shape): return torch.randn(*shape, generator=gen)
        self.wrapped = nn.Parameter(Doubled(w(4, 3)), requires_grad=False)
        self.sparse = nn.Parameter(w(4, 4).to_sparse(), requires_grad=False)
        self.register_buffer('adj', w(4, 4).to_sparse_csr())
        self.head = nn.Linear(4,2)
        with torch.no_grad(): self.head.weight.copy_(w(2, 4)); self.head.bias.zero_()
    def forward(self, x):
        x = nn.functional.linear(x, self.wrapped)
        return self.head((self.adj @ (self.sparse @ x.T)).T)

class Steps(Callback):
    "Calls a function with the model after each step"
    order = -100
    def __init__(self, f): self.f = f
    def after_step(self): self.f(self.learn.model)

@pytest.mark.parametrize('make', [lambda: EMA(.8, warmup=False, buffers=True), lambda: SWA(start=0, every=1)])
def test_weights_that_cannot_be_averaged_stay_as_they_are(make):
    torch.manual_seed(1)
    avg,model = make(),Mixed()
    heads = []
    learn = Learner(dls(), model, nn.CrossEntropyLoss(), opt_func=sgd, lr=.1).remove_cb(ProgressCallback)
    start = weights(model.head)
    learn.fit(2, cbs=[Steps(lambda m: heads.append(weights(m.head))), avg])
    want = start
    for i,h in enumerate(heads):
        k = .2 if isinstance(avg, EMA) else 1/(i+1)
        want = [a.lerp(b, k) for a,b in zip(want, h)]
    assert close(avg.avg, want)
    if isinstance(avg, SWA): assert close(weights(model.head), want)
    fresh = Mixed()
    assert torch.equal(model.wrapped.half, fresh.wrapped.half)
    for k in ('sparse','adj'): assert torch.equal(getattr(model, k).to_dense(), getattr(fresh, k).to_dense())

@pytest.mark.parametrize('cb', [EMA, SWA])
def test_sparse_weights_that_are_trained_are_refused(cb):
    model = Mixed()
    model.sparse.requires_grad_(True)
    learn = Learner(dls(), model, nn.CrossEntropyLoss(), opt_func=sgd, lr=.1).remove_cb(ProgressCallback)
    before = weights(model.head)
    with pytest.raises(ValueError, match=f"`{cb.__name__}` averages dense weights, but `sparse` is trained"):
        learn.fit(1, cbs=cb)
    assert same(before, weights(model.head))

def test_frozen_weights_that_are_trained_later_are_averaged_from_then_on():
    class Thaw(Callback):
        def before_epoch(self):
            for p in self.learn.model[0].parameters(): p.requires_grad_(self.epoch==1)
    avg,seen = EMA(.8, warmup=False),[]
    learn = mk(Thaw, Steps(lambda m: seen.append(weights(m))), avg)
    want = weights(learn.model)
    learn.fit(2)
    for ws in seen: want = [a.lerp(b, .2) for a,b in zip(want, ws)]
    assert close(avg.avg, want)

@pytest.mark.parametrize('cbs,winner', [(lambda: [EMA(.9), SWA(0, validate=True)], 'swa'),
    (lambda: [SWA(0, validate=True), EMA(.9)], 'swa'), (lambda: [EMA(.9), EMA(.5)], 'ema_2'),
    (lambda: [EMA(.9), SWA(0, validate='both')], None),
    (lambda: [EMA(.9, validate=False), SWA(0, validate=True)], None)],
    ids=['ema swa','swa ema','two','both','one'])
def test_of_two_averages_it_is_said_which_one_the_results_are_of(cbs, winner, recwarn):
    def losses(cbs):
        return [o.valid_loss for o in synth_learner(4, opt_func=torch.optim.SGD).fit(2, cbs=cbs).recorder.rows]
    found = losses(cbs())
    said = [str(o.message) for o in recwarn if 'would each validate' in str(o.message)]
    assert len(said)==(winner is not None)
    if winner:
        assert f'the results are those of `{winner}`' in said[0]
        assert found==losses([next(o for o in cbs() if isinstance(o, SWA))] if winner=='swa' else [EMA(.5)])

# Broken samples
def with_broken_row(i=13):
    "Batches of 4, of which the one with row `i` is broken"
    data = dls(shuffle=False)
    data.train.dataset.tensors[0][i] = torch.nan
    return data
class LeaveOut(Callback):
    "Leave broken batches out of training"
    run_valid = False
    def before_batch(self):
        if self.learn.x.isnan().any(): raise CancelBatchException

@pytest.mark.parametrize('make,validate', [(LeaveOut,False), (LeaveOut,'both'), (SpikeGuard,False)])
def test_a_broken_batch_that_training_left_out_is_not_in_the_statistics(make, validate):
    learn = mk(SWA(.5, validate=validate), make(), data=with_broken_row())
    with pytest.warns(UserWarning, match='leave out 1 of 6 training batches'): learn.fit(4)
    right = copy.deepcopy(learn.model)
    update_bn([b for b in learn.dls.train if b[0].isfinite().all()], right)
    assert close(everything(learn.model), everything(right), 1e-5)
    assert np.isfinite(learn.validate().valid_loss)
    if validate: assert np.isfinite(learn.recorder[-1,'swa/valid_loss'])

def test_what_a_guard_goes_back_from_is_not_told_of_the_statistics(recwarn):
    "A broken batch that ends an epoch, with whose weights the average was taken before the guard has judged"
    mk(SWA(.5), SpikeGuard(), data=with_broken_row(23)).fit(4)
    told = [str(o.message) for o in recwarn if 'batch norms' in str(o.message)]
    assert told and all('leave out 1 of 6' in o and 'samples' in o for o in told)

class TwoWays(nn.Module):
    "Two ways through batch norms, of which the second has numbers that are too large"
    def __init__(self):
        super().__init__()
        self.one,self.two,self.out = nn.BatchNorm1d(3),nn.BatchNorm1d(3),nn.Linear(3,2)
    def forward(self, x): return self.out(self.one(x) + self.two(x*torch.inf).nan_to_num()*0)
def test_a_batch_norm_whose_statistics_are_never_finite_leaves_others_theirs():
    learn = Learner(dls(shuffle=False), TwoWays(), nn.CrossEntropyLoss(), lr=.1, cbs=SWA(.5))
    with learn.no_logging(), pytest.warns(UserWarning, match='leave out 6 of 6 .*weights'): learn.fit(2)
    assert torch.allclose(learn.model.one.running_mean, learn.dls.train.dataset.tensors[0].mean(0), atol=1e-6)

@pytest.mark.parametrize('start', [1, 3])
def test_a_trial_may_end_before_the_last_part_begins(start, recwarn):
    learn = mk()
    learn.smoke(cbs=SWA(start))
    mk(SWA(start)).profile()
    learn.fit(4, cbs=[SWA(start), Compile(backend='eager')])
    assert not [o for o in recwarn if 'average' in str(o.message)]
    for cbs in ([], [Limit(train=2)]): # a fit after a trial is none
        with pytest.raises(ValueError, match=f'begins after {start} epochs'): learn.fit(1, cbs=[SWA(start), *cbs])

class Dropping(nn.Module):
    "Dropout of several kinds before a batch norm"
    class Scale(nn.Module): # no kind that is known: it draws because it is in training mode
        def forward(self, x): return x*torch.rand(1) if self.training else x
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen,self.drop,self.scale = nn.Dropout(.5),nn.Dropout(.5),self.Scale()
        self.mix,self.norm,self.out = nn.TransformerEncoderLayer(3, 1, 4),nn.BatchNorm1d(3),nn.Linear(3,2)
    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self
    def forward(self, x):
        res = self.out(self.norm(self.mix(self.scale(self.drop(self.frozen(x))[:,None]))[:,0]))
        return (res,'more') if self.training else res

def first(pred, y): return F.cross_entropy(pred[0] if isinstance(pred, tuple) else pred, y)

@pytest.mark.parametrize('validate', [False,'both'])
@pytest.mark.parametrize('cbs', [[],[MCDropoutCallback]], ids=['alone','mc'])
def test_statistics_are_of_activations_with_dropout(cbs, validate):
    def run(*swa):
        learn = Learner(dls(shuffle=False), Dropping(), first, metrics=accuracy, opt_func=sgd, lr=.1, cbs=[*swa, *cbs])
        with learn.no_logging(): return learn.fit(4)
    learn = run(SWA(.5, validate=validate))
    right,state = copy.deepcopy(learn.model),torch.get_rng_state()
    update_bn(learn.dls.train, right) # which draws the same masks: the pass has put the generator back
    assert close(everything(learn.model), everything(right), 1e-5)
    if cbs and not validate: assert learn.mc_dropout.n_evals==0
    other = run()
    assert other.recorder.raw_losses==learn.recorder.raw_losses and torch.equal(state, torch.get_rng_state())
