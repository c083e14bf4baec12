"A hyper-parameter that is changed between stop and resume scales what is left of its schedule, as one line says"
import math,re
from functools import partial
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched
from learner.all import *

n,at = 7,9 # batches in an epoch, batches before the stop

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.head = nn.Linear(2, 3),nn.Linear(3, 1)
    def forward(self, x): return self.head(self.body(x))

def split(m): return [list(m.body.parameters()), list(m.head.parameters())]
def bs(n):
    gen = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=gen), torch.randn(4, 1, generator=gen)) for _ in range(n)]
def mk(**kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(bs(n), bs(2), device='cpu'), Net(), F.mse_loss,
        **dict(opt_func=partial(SGD, mom=.9), lr=.05)|kwargs).remove_cb(ProgressCallback)

class Seen(Callback):
    "Hyper-parameters of all groups at each step; stops after `at` batches, and where `stops` says"
    order = 1000
    def __init__(self, *names, stops=(at,)): self.names,self.seen,self.stops = names,{k:[] for k in names},stops
    def before_step(self):
        for k in self.names: self.seen[k].append(get_hyper(self.learn.opt, k))
    def after_batch(self):
        if self.learn.training and self.learn.train_iter in self.stops:
            self.learn.at_pause(self.learn.stop_for_now, stops=True)

def rates(fit, change=None, names=('lr',), stops=(at,), **kwargs):
    """Values at each step of a fit that is stopped, changed by `change(learn)`, which resumes it; or of one that is
    never stopped"""
    seen,learn = Seen(*names, stops=stops if change else ()),mk(**kwargs)
    fit(learn, cbs=seen)
    if change: change(learn)
    assert learn.route.stopped is None and learn.train_iter==len(seen.seen[names[0]])
    return [np.array(seen.seen[k]) for k in names]

def approx(v): return pytest.approx(v, rel=1e-9, abs=1e-15)
def factor(vals, ks, since=at): return np.concatenate([vals[:since], vals[since:]*np.array(ks)])
def cos_(a, b, p): return a + (b-a)*(1-math.cos(math.pi*p))/2

fits = dict(one_cycle=lambda o, **kw: o.fit_one_cycle(3, .2, **kw),
    warming=lambda o, **kw: o.fit_one_cycle(3, .2, pct_start=.8, **kw),
    flat=lambda o, **kw: o.fit_flat_cos(3, .2, **kw),
    sgdr=lambda o, **kw: o.fit_sgdr(2, 1, .2, **kw),
    function=lambda o, cbs: o.fit(3, cbs=[ParamScheduler(dict(lr=lambda pos: .2*(1-pos))), cbs]),
    wsd=lambda o, cbs: o.fit(3, cbs=[ParamScheduler(dict(lr=wsd(.2))), cbs]))
changes = dict(argument=lambda o: o.resume(lr=.05),
    set_hyper=lambda o: o.set_hyper('lr', .1) or o.set_hyper('lr', .05) or o.resume())

@pytest.mark.parametrize('name', fits)
def test_resume_with_a_rate_scales_the_rest_of_a_schedule(name, capsys):
    """`.05` instead of `.2`: the rest is a quarter of what it would have been, and of what a fit with `.05` would have
    done"""
    assert rates(fits[name], changes['argument'])[0]==approx(factor(rates(fits[name])[0], .25))
    assert capsys.readouterr(
        ).out=='The rest of the schedule of `lr` is scaled by 0.25, as if its highest value were 0.05, not 0.2\n'

def test_the_rest_is_that_of_a_fit_with_this_rate():
    seen, = rates(fits['one_cycle'], changes['argument'])
    assert seen[at:]==approx(rates(lambda o, **kw: o.fit_one_cycle(3, .05, **kw))[0][at:])
    assert seen[at:,0]==approx([cos_(.05, .05/1e5, (i/(3*n)-.25)/.75) for i in range(at, 3*n)])
    flat, = rates(fits['flat'], changes['argument'])
    assert flat[:,0]==approx(
        [.2]*at + [.05 if i/(3*n)<.75 else cos_(.05, .05/1e5, (i/(3*n)-.75)/.25) for i in range(at, 3*n)])

@pytest.mark.parametrize('name', fits)
def test_set_hyper_before_resume_is_the_same(name):
    assert rates(fits[name], lambda o: o.set_hyper('lr', .1) or o.resume())[0]==approx(
        rates(fits[name], lambda o: o.resume(lr=.1))[0])

def test_the_default_rate_is_a_change_if_it_is_asked_for():
    "`.05` is what the fit began with, and the schedule goes up to `.2`"
    assert (rates(fits['flat'], lambda o: o.resume(lr=.05))[0][at]==approx([.05])
        and rates(fits['flat'], lambda o: o.resume())[0][at]==approx([.2]))

@pytest.mark.parametrize('lr,ks',
    [(.1, [5., .5]), (slice(.01,.1), [.5, .5]), ([.02,.1], [1., .5]), (slice(.1), [.5, .5])], ids=str)
def test_each_group_has_its_factor(lr, ks, capsys):
    def fit(o, **kw): return o.fit_one_cycle(3, slice(.02,.2), **kw)
    assert rates(fit, lambda o: o.resume(lr=lr), splitter=split)[0]==approx(factor(rates(fit, splitter=split)[0], ks))
    assert capsys.readouterr().out.count('\n')==1

def test_only_the_group_that_was_changed_is_scaled(capsys):
    def fit(o, **kw): return o.fit_one_cycle(3, slice(.02,.2), **kw)
    def change(o): o.opt.param_groups[1]['lr'] = .1; o.resume()
    assert rates(fit, change, splitter=split,
        wd_bn_bias=True)[0]==approx(factor(rates(fit, splitter=split)[0], [1., .5]))
    assert capsys.readouterr(
        ).out==('The rest of the schedule of `lr` is scaled by [1, 0.5], '
            'as if its highest value were [0.02, 0.1], not [0.02, 0.2]\n')

def test_momentum_and_weight_decay_too(capsys):
    "Momentum stays below the value that was asked for, whatever the schedule does"
    lr,mom = rates(fits['one_cycle'], names=('lr','mom'))
    a,b = rates(fits['one_cycle'], lambda o: o.set_hyper('mom', .8) or o.resume(), names=('lr','mom'))
    assert a==approx(lr) and b==approx(factor(mom, .8/.95)) and b[at:].max()<=.8
    def fit(o, cbs): return o.fit(3, cbs=[ParamScheduler(dict(wd=SchedLin(.1, 0))), cbs])
    assert rates(fit, lambda o: o.resume(wd=.05), names=('wd',))[0]==approx(factor(rates(fit, names=('wd',))[0], .5))
    assert [re.search('`(.+?)`', o)[1] for o in capsys.readouterr().out.splitlines()]==['mom','wd']

def test_without_a_schedule_the_rate_holds_from_here_on(capsys, recwarn):
    def fit(o, **kw): return o.fit(3, lr=.2, **kw)
    for change in changes.values(): assert rates(fit, change)[0][:,0]==approx([.2]*at + [.05]*(3*n-at))
    assert rates(fit, lambda o: o.resume(lr=slice(.1)),
        splitter=split)[0]==approx(np.array([[.2,.2]]*at + [[.01,.1]]*(3*n-at)))
    assert not capsys.readouterr().out and not recwarn

def test_factors_are_kept_when_the_fit_stops_again(tmp_path, capsys):
    def again(o): o.resume(lr=.05); o.resume()
    def twice(o): o.resume(lr=.05); o.resume(lr=.1)
    plain, = rates(fits['flat'])
    assert rates(fits['flat'], again, stops=(at,at+4))[0]==approx(factor(plain, .25))
    assert rates(fits['flat'], twice, stops=(at,at+4))[0]==approx(factor(factor(plain, .25), 2., at+4))
    assert capsys.readouterr().out.count('as if its highest value were 0.1, not 0.2')==1

@pytest.mark.filterwarnings('ignore:The run resumes with other settings')
def test_factors_are_saved_in_files(tmp_path):
    plain, = rates(fits['flat'])
    a,seen = mk(),Seen('lr', stops=(at,at+4))
    fits['flat'](a, cbs=seen).resume(lr=.05).save_state(tmp_path/'state.pt')
    b,rest = mk(),Seen('lr', stops=())
    b.load_state(tmp_path/'state.pt').resume(cbs=[a.route.stopped.cbs[0], rest])
    assert np.array(seen.seen['lr']+rest.seen['lr'])==approx(factor(plain, .25))
    c,rest = mk(),Seen('lr', stops=()) # a script with another rate
    c.fit(3, lr=.1, cbs=[ParamScheduler(dict(lr=a.route.stopped.cbs[0].scheds['lr'])), rest],
        resume=tmp_path/'state.pt')
    assert np.array(rest.seen['lr'])==approx(plain[at+4:]*.5)

@pytest.mark.parametrize('stop', [n, 2*n, 3*n])
def test_stops_at_the_end_of_an_epoch(stop):
    "At the last batch of an epoch the pause comes before the validation"
    assert rates(fits['one_cycle'], lambda o: o.resume(lr=.05),
        stops=(stop,))[0]==approx(factor(rates(fits['one_cycle'])[0], .25, stop))

def test_a_new_fit_begins_with_its_own_schedule():
    learn,seen = mk(),Seen('lr')
    cb = ParamScheduler(dict(lr=SchedCos(.2, 0)))
    learn.fit(3, cbs=[cb, seen]).resume(lr=.05)
    seen.seen['lr'].clear()
    learn.fit(1, cbs=[cb, seen])
    assert seen.seen['lr'][0]==[.2]

@pytest.mark.filterwarnings('ignore:The run was stopped in the middle')
@pytest.mark.parametrize('lr,top', [(0, '0.2'), (.1, '0')])
def test_what_cannot_be_scaled_is_refused_and_can_be_resumed(lr, top):
    learn = mk().fit(3, cbs=[ParamScheduler(dict(lr=lambda pos: float(top))), Seen('lr')])
    with pytest.raises(ValueError,
            match=rf'schedule of `lr`, whose highest value is {top}, cannot be scaled to \[{float(lr)}\]'):
        learn.resume(lr=lr)
    assert learn.resume().train_iter==3*n

# torch's own
class Decay(sched.LRScheduler):
    "One that multiplies, as torch's chainable form does"
    def get_lr(self): return [g['lr']*(.9 if self.last_epoch else 1) for g in self.optimizer.param_groups]

made = dict(step=partial(sched.StepLR, step_size=2), exp=partial(sched.ExponentialLR, gamma=.8),
    cos=partial(sched.CosineAnnealingLR, T_max=25), function=partial(sched.LambdaLR, lr_lambda=lambda i: 1/(1+i)),
    own=Decay,
    cycle=partial(sched.OneCycleLR, max_lr=[.3,.1], total_steps=3*n+1),
    chained=lambda o: sched.ChainedScheduler([sched.LinearLR(o, .5, 1., 5), sched.ExponentialLR(o, .9)]),
    sequence=lambda o: sched.SequentialLR(o, [sched.LinearLR(o, .5, 1., 5), sched.StepLR(o, 2)], [6]))
@pytest.mark.sample(2)
@pytest.mark.parametrize('unit', ['step','epoch'])
@pytest.mark.parametrize('name', made)
def test_the_rest_of_a_torch_scheduler_is_scaled(name, unit, recwarn):
    def fit(o, cbs): return o.fit(3, lr=[.1,.2], cbs=[TorchScheduler(made[name], unit), cbs])
    tops = [.3,.1] if name=='cycle' else [.1,.2]
    for change in (lambda o: o.resume(lr=[.05,.4]), lambda o: o.set_hyper('lr', [.05,.4]) or o.resume()):
        assert rates(fit, change,
            splitter=split)[0]==approx(factor(rates(fit, splitter=split)[0], [.05/tops[0], .4/tops[1]]))

def test_a_plateau_is_one_of_the_changed_rate():
    def fit(o, cbs):
        return o.fit(5, lr=.1, cbs=[
            TorchScheduler(partial(sched.ReduceLROnPlateau, factor=.5, patience=0, threshold=.9)), cbs])
    assert rates(fit, lambda o: o.resume(lr=.05))[0]==approx(factor(rates(fit)[0], .5))

@pytest.mark.parametrize('n', [4, 5])
@pytest.mark.parametrize('how', ['resume','set_hyper'])
def test_a_rate_that_is_asked_for_after_going_back_is_not_warned_of(n, how, recwarn):
    learn = synth_learner(8, 0, lr=.01)
    learn.fit(1, cbs=Rewind(every=2))
    learn.rewind(n)
    if how=='set_hyper': learn.set_hyper('lr', .002)
    learn.resume(**({} if how=='set_hyper' else dict(lr=.002)))
    assert not recwarn.list and learn.recorder.lrs==[.01]*n+[.002]*(8-n)

@pytest.mark.parametrize('v,rates', [(.05, [.05,.05]), (slice(.01, .1), [.01,.1]), ([.2,.3], [.2,.3])], ids=str)
def test_what_is_set_between_two_fits_holds_for_those_to_come(v, rates):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    learn = synth_learner(model=model, lr=.5, splitter=lambda m: [[*o.parameters()] for o in m])
    used = []
    def see(learn): used.append(get_hyper(learn.opt, 'lr'))
    with learn.no_logging():
        learn.fit(1, cbs=Callback(before_epoch=see))
        learn.set_hyper('lr', v)
        learn.fit(1, cbs=Callback(before_epoch=see)).fit(1, lr=.7, cbs=Callback(before_epoch=see))
    assert used==[approx([.5,.5]), approx(rates), approx([.7,.7])] and get_hyper(learn.opt, 'lr')==approx(rates)

def test_the_default_of_the_learner_takes_effect_when_a_run_resumes_without_a_schedule(recwarn):
    "As `resume(lr=…)`; and when nothing was changed, the rate of the fit stays"
    def change(learn): learn.lr = .02; learn.resume()
    assert rates(lambda learn, cbs: learn.fit(3, cbs=cbs), change)[0][:,0]==approx([.05]*at + [.02]*(3*n-at))
    def keep(learn): learn.resume()
    assert rates(lambda learn, cbs: learn.fit(3, lr=.01, cbs=cbs), keep)[0][:,0]==approx([.01]*3*n)
    assert not recwarn

def test_the_default_of_the_learner_is_not_used_by_a_schedule_and_that_is_said():
    def fit(learn, cbs): learn.fit_one_cycle(3, .1, cbs=cbs)
    def change(learn):
        learn.lr = .02
        with pytest.warns(UserWarning, match=r'`learn.lr` has been changed, and is not used.*`learn.resume\(lr=…\)`'):
            learn.resume()
    assert rates(fit, change)[0]==approx(rates(fit)[0])
