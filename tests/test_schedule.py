"Schedules against their formulas, batch by batch; torch's own schedulers as by hand; and everything restored"
import copy,math,sys,warnings
from functools import partial
import numpy as np, pytest, torch
from hypothesis import assume,example,given,strategies as st
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched
from learner.all import *

class Probe(Callback):
    "Hyper-parameters of all groups in each training batch, when it takes its step"
    order = 1000
    def __init__(self, *names): self.names,self.seen = names,{k:[] for k in names}
    def before_step(self):
        for k in self.names: self.seen[k].append(get_hyper(self.learn.opt, k))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body,self.neck,self.head = nn.Linear(2, 3),nn.Linear(3, 3),nn.Linear(3, 1)
    def forward(self, x): return self.head(self.neck(self.body(x)))

def split(m): return [list(o.parameters()) for o in (m.body, m.neck, m.head)]
def bs(n, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 2, generator=gen), torch.randn(4, 1, generator=gen)) for _ in range(n)]

def mk(n=7, opt_func=partial(SGD, mom=.9), **kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(bs(n), bs(2, 1), device='cpu'), Net(), F.mse_loss, opt_func=opt_func,
        **kwargs).remove_cb(ProgressCallback)

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b))
def approx(v): return pytest.approx(np.array(v), rel=1e-9, abs=1e-15)
def hyper_params(opt): return {k:get_hyper(opt, k) for k in hypers(opt)}

# Formulas, written independently
def cos_(a, b, p): return a + (b-a)*(1-math.cos(math.pi*p))/2
def lin_(a, b, p): return a + (b-a)*p
def one_cycle(p, pct, a, b, c): return cos_(a, b, p/pct) if p<pct else cos_(b, c, (p-pct)/(1-pct))

formulas = dict(SchedNo=lambda a,b,p: a, SchedLin=lin_, SchedCos=cos_, SchedExp=lambda a,b,p: a*(b/a)**p,
    SchedPoly=lambda a,b,p: a+(b-a)*p**2, SchedRoot=lambda a,b,p: a+(b-a)*p**.5)
shapes = dict(SchedNo=SchedNo, SchedLin=SchedLin, SchedCos=SchedCos, SchedExp=SchedExp,
    SchedPoly=partial(SchedPoly, power=2), SchedRoot=partial(SchedPoly, power=.5))
unit = st.floats(0, 1)
values = st.floats(1e-6, 10)

@pytest.mark.parametrize('name', shapes)
@given(values, values, unit)
def test_shapes(name, a, b, p):
    f,g = shapes[name](a, b),formulas[name]
    assert f(p)==pytest.approx(g(a, b, p), rel=1e-9)
    assert min(a, b)*(1-1e-9)<=f(p)<=max(a, b)*(1+1e-9)
    assert f(0)==f(0.)==a and f(1)==f(1.)==(a if name=='SchedNo' else b)
    assert shapes[name]([a, b], (b, a))(p)==[f(p), shapes[name](b, a)(p)]

def test_raw_functions_are_the_shapes():
    for raw,f in ((sched_no, SchedNo), (sched_lin, SchedLin), (sched_cos, SchedCos), (sched_exp, SchedExp)):
        assert raw(1., .5, .3)==f(1., .5)(.3)
    assert sched_poly(1., .5, .3, power=2)==SchedPoly(1., .5, 2)(.3)

@pytest.mark.parametrize('f,match', [
    (lambda: SchedLin([1,2], [1,2,3]), r'the same number of values, but got \[1, 2\] and \[1, 2, 3\]'),
    (lambda: SchedCos((1.,), [1.,2.]), 'the same number of values'),
    (lambda: SchedExp(0., 1.), 'above 0, but got 0.0 and 1.0'), (lambda: SchedExp([1.,-1.], [1.,1.]), 'above 0'),
    (lambda: combine_scheds([.5,.4], [SchedNo(1,1)]*2), r'must sum to 1, but \[0.5, 0.4\] sum to 0.9'),
    (lambda: combine_scheds([1.5,-.5], [SchedNo(1,1)]*2), 'must sum to 1'),
    (lambda: combine_scheds([.5,.5], [SchedNo(1,1)]), '1 schedules and 2 `pcts`'),
    (lambda: combined_cos(1.5, 0, 1, 0), r'`pct` is in \[0,1\], but got 1.5'),
    (lambda: TorchScheduler(sched.StepLR, unit='epochs'),
        "`unit` is one of `epoch`, `iter`, `step`, but got 'epochs'. Did you mean `epoch`"),
        (lambda: wsd(1., warm=.95, decay=.1), 'must sum to 1'), (lambda: cosine(1., warm=.6, cool=.5), 'must sum to 1'),
    (lambda: combine_scheds([float('nan'),.5], [SchedNo(1,1)]*2), '`pcts` is finite, but got nan'),
    (lambda: cosine(1., warm=float('nan')), r'`warm` is in \[0,1\], but got nan'),
    (lambda: combine_scheds([], []), 'must sum to 1')])
def test_bad_values(f, match):
    with pytest.raises(ValueError, match=match): f()

@pytest.mark.parametrize('f,match', [
    (lambda: SchedCos('a', 0), "`start` is a number, or a list with one per parameter group, but got 'a'"),
    (lambda: SchedLin([.1,None], 0), r"but got \[0.1, None\]"),
    (lambda: combine_scheds([.5,.5], [SchedNo(1,1), .1]),
        "function of the position in training, such as .* but got 0.1"),
    (lambda: ParamScheduler(dict(lr=.1)),
        r"schedules, which are functions, by the name of their hyper-parameter, such as .* but got \{'lr': 0.1\}"),
        (lambda: ParamScheduler(SchedCos(.1, 0)), 'by the name of their hyper-parameter'),
    (lambda: TorchScheduler('StepLR'),
        "a class of `torch.optim.lr_scheduler`, or a `partial` of one, .* but got 'StepLR'")])
def test_bad_types(f, match):
    with pytest.raises(TypeError, match=match): f()

arrays = dict(list=list, tuple=tuple, numpy=np.array, tensor=torch.tensor)
@pytest.mark.parametrize('kind', arrays)
@pytest.mark.parametrize('name', shapes)
def test_values_of_any_kind_become_floats(kind, name):
    "One number beside a list is for all groups"
    make,a,b = arrays[kind],[.1,.2],[.01,.02]
    for f,g in ((shapes[name](make(a), make(b)), shapes[name](a, b)),
            (shapes[name](make(a), .05), shapes[name](a, [.05]*2)),
            (shapes[name](.3, make(b)), shapes[name]([.3]*2, b))):
        assert f(.3)==pytest.approx(g(.3), rel=1e-6) and {*map(type, f(.3))}=={float}
    for one in (np.float32(.5), np.array(.5), torch.tensor(.5)): assert type(shapes[name](one, 1)(.3)) is float

def test_the_optimizer_gets_floats():
    "The history has floats, whatever schedules return"
    for f in (SchedCos(np.float64(.1), torch.tensor(.01)), SchedLin(np.array([.1]*3), 0), lambda p: np.float32(.1),
            lambda p: torch.tensor([.1,.2,.3]), lambda p: slice(.01, .1)):
        seen = []
        learn = mk(2, splitter=split).fit(1,
            cbs=[ParamScheduler(dict(lr=f)),
                Callback(before_step=lambda self: seen.extend(g['lr'] for g in self.opt.param_groups))])
        assert ({*map(type, seen)}=={*map(type, learn.recorder.hps['lr'])}=={float}
            and learn.recorder.hps['lr']==seen[2::3])

# Pieces
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 30))
@example([1]*10, 1)
@example([1,2,4], 7)
def test_each_piece_starts_at_its_batch(lens, n):
    "`n` batches for each unit: at its first batch a piece decides, whatever the rounded sum of fractions is"
    f = combine_scheds([o/sum(lens) for o in lens], [SchedLin(2*i, 2*i+1) for i in range(len(lens))])
    expected = [2*i + j/(l*n) for i,l in enumerate(lens) for j in range(l*n)]
    assert [f(j/(sum(lens)*n)) for j in range(sum(lens)*n)]==pytest.approx(expected, abs=1e-7)
    assert f(1)==pytest.approx(2*len(lens)-1, abs=1e-9)

@pytest.mark.parametrize('pcts',
    [[.1]*10, [1/3]*3, [.7,.2,.1], [.1,.2,.7], [1/7]*7, [.25,.75], [.5,.5+5e-7], [.5,.5-5e-7], [0,1], [1,0],
        [0,.5,0,.5,0], [1]])
def test_fractions_sum_to_one_up_to_rounding(pcts):
    f = combine_scheds(iter(pcts), [SchedLin(i, i+1) for i in range(len(pcts))])
    last = max(i for i,o in enumerate(pcts) if o)
    assert f(1)==pytest.approx(last+1, abs=1e-5) and f(0)==min(i for i,o in enumerate(pcts) if o)

def test_the_end_is_exact():
    for i in range(1, 100):
        for j in range(1, 100-i):
            assert (wsd(1., warm=i/100, decay=j/100)(1.)==0. and cosine(1., .3, warm=i/100, cool=j/100)(1.)==.3
                and combine_scheds([i/100, j/100, 1-i/100-j/100], [SchedLin(0, 1), SchedLin(1, 2), SchedCos(2, .7)])(1.)
                ==.7)
    assert wsd(1.)(1.)==wsd(1.)(1.5)==0. and combine_scheds([.5,.5-9e-7], [SchedNo(1, 1), SchedLin(1, 0)])(1)==0.

@pytest.mark.parametrize('a,b', [(.9,.1), (.7,.3), (.6,.4), (.1,.9), (1.,0.), (0.,1.), (.3,.7)])
def test_a_piece_may_be_the_whole_schedule(a, b):
    f,g = cosine(1., .5, warm=a, cool=b),wsd(1., warm=a, decay=b)
    for p in (.05, .35, .65, .95):
        assert f(p)==pytest.approx(p/a if p<a else .5) and g(p)==pytest.approx(p/a if p<a else 1-(p-a)/b)

def test_one_value_for_all_groups():
    for f in (cosine([1.,2.]), wsd([1.,2.]), cosine((1.,2.), warm=.1), wsd(np.array([1.,2.]), shape=SchedCos)):
        assert f(1.)==[0.,0.] and f(.3)[1]==2*f(.3)[0]>0

def bytecodes(f, *args):
    "Number of bytecodes that a call executes"
    n = 0
    def trace(frame, ev, arg):
        nonlocal n
        frame.f_trace_opcodes = True
        n += ev=='opcode'
        return trace
    old = sys.gettrace()
    sys.settrace(trace)
    try: f(*args)
    finally: sys.settrace(old)
    return n

@pytest.mark.skipif(sys.version_info[:2]!=(3,11), reason='the bound is for the bytecodes of CPython 3.11')
def test_schedules_are_cheap():
    "The interpreter takes some ten nanoseconds for each bytecode"
    for f in (*(o(.1, .01) for o in shapes.values()), combined_cos(.25, .01, .1, 0.), cosine(1., warm=.1, cool=.1),
            wsd(1.)):
        assert max(bytecodes(f, p) for p in (0., .1, .5, 1.))<=130

@given(unit, values, values, values, unit)
def test_combined_cos(pct, a, b, c, p):
    assume(pct in (0,1) or 1e-3<pct<1-1e-3)
    f = combined_cos(pct, a, b, c)
    assert f(p)==pytest.approx(cos_(b, c, p) if pct==0 else cos_(a, b, p) if pct==1 else one_cycle(p, pct, a, b, c),
        rel=1e-6)
    assert f(0)==(a if pct else b) and f(1)==(b if pct==1 else c)

fractions = st.floats(.02, .45)
def continuous(f, slope, p, eps=1e-6):
    assert abs(f(min(1., p+eps))-f(p))<=slope*eps*1.01+1e-9

@given(values, unit, st.sampled_from([0, .1]), fractions, fractions, unit)
def test_cosine_is_continuous_and_bounded(top, part, w0, warm, cool, p):
    end = top*part
    f = cosine(top, end, warm=warm*(w0>0), cool=cool)
    continuous(f, 2*top*(1/.02 if w0 else math.pi/2/.5), p)
    assert -1e-9<=f(p)<=top*(1+1e-9) and f(1)==end and f(0)==(0 if w0 else top)
    if p>=1-cool+1e-9: assert f(p)==pytest.approx(end)
    if w0 and p<=warm: assert f(p)==pytest.approx(top*p/warm, abs=1e-9)
    if w0 and warm<=p<=1-cool: assert f(p)==pytest.approx(cos_(top, end, (p-warm)/(1-cool-warm)), rel=1e-6)

@given(values, unit, fractions, fractions, unit, st.sampled_from([SchedLin, SchedCos]))
def test_wsd_is_continuous_and_bounded(top, part, warm, decay, p, shape):
    end,s = top*part,lin_ if shape is SchedLin else cos_
    f = wsd(top, warm=warm, decay=decay, end=end, shape=shape)
    continuous(f, 2*top/.02, p)
    expected = top*p/warm if p<warm else top if p<1-decay else s(top, end, (p-1+decay)/decay)
    assert (f(p)==pytest.approx(expected, rel=1e-6, abs=1e-9) and f(0)==0
        and f(1)==pytest.approx(end, rel=1e-12, abs=1e-12))

@given(st.floats(.01, .99), unit, unit,
    st.sampled_from([SchedCos(1., 0.), SchedExp(.5, .1), SchedNo(2., 2.), SchedCos([1.,2.], [0.,0.])]))
def test_warmup_goes_before_anything(pct, start, p, after):
    f,top = warmup(pct, after, start),after(0.)
    if p<pct:
        expected = [lin_(o*start, o, p/pct) for o in top] if isinstance(top, list) else lin_(top*start, top, p/pct)
    else: expected = after((p-pct)/(1-pct))
    assert f(p)==pytest.approx(expected, rel=1e-6, abs=1e-9) and f(1)==after(1)

@pytest.mark.parametrize('n_steps,decay,n', [(1000,.1,3), (999,.25,2), (10,.5,1), (777,.1,4)])
def test_wsd_steps(n_steps, decay, n):
    res = wsd_steps(n_steps, decay, n)
    assert len(res)==n and res[-1][1]==n_steps and all(0<a<b for a,b in res) and sorted(res)==res
    assert [b/n_steps for _,b in res]==pytest.approx([2.**-i for i in range(n)][::-1], abs=.6/n_steps)
    assert all(a==pytest.approx(b*(1-decay), abs=.6) for a,b in res)

# Fits
lrs = pytest.mark.parametrize('lr,groups',
    [(.1, [.1]*3), (slice(.1), [.01,.01,.1]), (slice(1e-3,1e-1), [1e-3,1e-2,1e-1]), ([.3,.2,.1], [.3,.2,.1]),
        (np.float64(.1), [.1]*3),
    (torch.tensor([.3,.2,.1], dtype=torch.double), [.3,.2,.1]), (None, [.05]*3)], ids=repr)

@lrs
@pytest.mark.parametrize('opt_func,mom',
    [(partial(SGD, mom=.5), 'mom'), (torch.optim.Adam, 'mom'), (RMSProp, None), (torch.optim.Adagrad, None),
        (SGD, None)], ids=['SGD','Adam','RMSProp','Adagrad','no mom'])
def test_fit_one_cycle(lr, groups, opt_func, mom):
    probe,n = Probe('lr', *([mom] if mom else [])),3*7
    learn = mk(opt_func=opt_func, splitter=split, lr=.05)
    learn.create_opt()
    before = hyper_params(learn.opt)
    learn.fit_one_cycle(3, lr, cbs=probe)
    assert np.array(probe.seen['lr'])==approx([[one_cycle(i/n, .25, g/25, g, g/1e5) for g in groups] for i in range(n)])
    assert learn.recorder.hps['lr']==learn.recorder.lrs==[o[-1] for o in probe.seen['lr']]
    if mom:
        assert np.array(probe.seen['mom'])==approx([[one_cycle(i/n, .25, .95, .85, .95)]*3 for i in range(n)])
        assert learn.recorder.hps['mom']==[o[-1] for o in probe.seen['mom']]
    assert [*learn.recorder.hps]==['lr', *([mom] if mom else [])] and hyper_params(learn.opt)==before

def test_arguments_of_fit_one_cycle():
    probe,n = Probe('lr','mom','wd'),2*7
    mk(splitter=split, moms=(.1,.2,.3)).fit_one_cycle(2, .2, div=10, div_final=100, pct_start=.5, wd=.01, cbs=[probe])
    assert np.array(probe.seen['lr'])[:,0]==approx([one_cycle(i/n, .5, .02, .2, .002) for i in range(n)])
    assert (np.array(probe.seen['mom'])[:,0]==approx([one_cycle(i/n, .5, .1, .2, .3) for i in range(n)])
        and {*map(tuple, probe.seen['wd'])}=={(.01,)*3})
    probe = Probe('mom')
    mk(opt_func=SGD).fit_one_cycle(2, .2, moms=(.5,.4,.3), cbs=probe) # asked for, so it is there
    assert np.array(probe.seen['mom'])[:,0]==approx([one_cycle(i/n, .25, .5, .4, .3) for i in range(n)])
    with pytest.raises(ValueError, match='`Adagrad` has no hyper-parameter `mom`'):
        mk(opt_func=torch.optim.Adagrad).fit_one_cycle(1, .1, moms=(.9,.8,.9))
    for k,right in dict(pct_strat='pct_start', lr='lr_max', max_lr='lr_max').items():
        with pytest.raises(TypeError, match=f'no argument `{k}`. Did you mean `{right}`'):
            mk().fit_one_cycle(1, **{k: .3})

@lrs
def test_fit_flat_cos(lr, groups):
    probe,n = Probe('lr','mom'),3*7
    mk(splitter=split, lr=.05).fit_flat_cos(3, lr, div_final=10, pct_start=.6, cbs=probe)
    assert np.array(probe.seen['lr'])==approx(
        [[g if i/n<.6 else cos_(g, g/10, (i/n-.6)/.4) for g in groups] for i in range(n)])
    assert {*map(tuple, probe.seen['mom'])}=={(.9,)*3}

@pytest.mark.parametrize('n_cycles,cycle_len,mult',
    [(3,1,2), (2,2,2), (3,1,1), (10,1,1), (7,1,1), (1,2,2), (3,1,3), (3,2,1.5)])
@pytest.mark.parametrize('lr,groups', [(.1, [.1]*3), (slice(1e-3,1e-1), [1e-3,1e-2,1e-1])], ids=repr)
def test_fit_sgdr(n_cycles, cycle_len, mult, lr, groups):
    probe,lens = Probe('lr'),[round(cycle_len*mult**i) for i in range(n_cycles)]
    learn = mk(3, splitter=split).fit_sgdr(n_cycles, cycle_len, lr, cycle_mult=mult, cbs=probe)
    assert np.array(probe.seen['lr'])==approx([[cos_(g, 0, j/(3*l)) for g in groups] for l in lens for j in range(3*l)])
    assert learn.epoch+1==sum(lens)

@pytest.mark.parametrize('base,mult', [(2e-3, 100), (.1, 10)])
def test_fine_tune(base, mult):
    probe,frozen = Probe('lr','mom'),[]
    learn = mk(splitter=split)
    learn.fine_tune(2, base, freeze_epochs=2, lr_mult=mult,
        cbs=[probe, Callback(before_epoch=lambda self: frozen.append(
            [not p[0].requires_grad for p in split(self.learn.model)]))])
    first,second,n = [base/10,base/10,base],[base/2/mult, base/2/mult**.5, base/2],2*7
    assert np.array(probe.seen['lr'])==approx(
        [[one_cycle(i/n, .99, g/25, g, g/1e5) for g in first] for i in range(n)]
        + [[one_cycle(i/n, .3, g/5, g, g/1e5) for g in second] for i in range(n)])
    assert np.array(probe.seen['mom'])[:,
        0]==approx([one_cycle(i/n, pct, .95, .85, .95) for pct in (.99,.3) for i in range(n)])
    assert frozen==[[True,True,False]]*2+[[False]*3]*2

def test_fine_tune_is_one_fit():
    learn = mk(splitter=split).fine_tune(2, .1, freeze_epochs=2)
    assert learn.recorder['epoch'].tolist()==[0,1,2,3] and len(learn.recorder.lrs)==len(learn.recorder.hps['lr'])==28
    a,b = mk(splitter=split).fine_tune(2, .1),mk(splitter=split)
    b.freeze(); b.fit_one_cycle(1, slice(.1), pct_start=.99) # as it is told
    b.unfreeze(); b.fit_one_cycle(2, slice(.05/100, .05), pct_start=.3, div=5)
    assert all(torch.allclose(x, y, atol=1e-7) for x,y in zip(weights(a.model), weights(b.model)))

@pytest.mark.parametrize('epochs,freeze_epochs', [(2,0), (0,2), (0,0)])
def test_fine_tune_without_a_part(epochs, freeze_epochs):
    probe = Probe('lr')
    learn = mk(splitter=split).fine_tune(epochs, .1, freeze_epochs=freeze_epochs, cbs=probe)
    n = 7*(epochs or freeze_epochs)
    expected = [one_cycle(i/n, .3, .01, .05, .05/1e5) if epochs else one_cycle(i/n, .99, .1/25, .1, .1/1e5)
        for i in range(n)] if epochs or freeze_epochs else []
    assert ([o[-1] for o in probe.seen['lr']]==approx(expected)
        and all(p.requires_grad for p in learn.model.parameters()))

class Stop(Callback):
    "Ctrl-C after `n` batches"
    def __init__(self, n): self.n,self.seen = n,0
    def after_batch(self):
        self.seen += self.training
        if self.seen==self.n and self.training: self.seen += 1; self.learn.at_pause(interrupt, stops=True)
def interrupt(): raise KeyboardInterrupt

@pytest.mark.parametrize('n', [1, 6, 7, 10, 20])
def test_fine_tune_resumes_after_a_stop(n):
    whole,learn,probe = mk(splitter=split).fine_tune(2, .1),mk(splitter=split),Probe('lr')
    with pytest.raises(KeyboardInterrupt): learn.fine_tune(2, .1, cbs=[Stop(n), probe])
    learn.resume()
    assert (same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses
        and whole.recorder.hps==learn.recorder.hps)
    assert len(probe.seen['lr'])==21 and all(p.requires_grad for p in learn.model.parameters())

@pytest.mark.parametrize('n', [3, 7, 16])
def test_fine_tune_resumes_in_another_process(n, tmp_path):
    def run(learn, *cbs):
        return learn.fine_tune(2, .1, cbs=[Checkpoint(1, 'iter', folder=tmp_path), *cbs], resume='auto')
    with pytest.raises(KeyboardInterrupt): run(mk(splitter=split), Stop(n))
    learn,whole = mk(splitter=split),mk(splitter=split).fine_tune(2, .1)
    run(learn)
    assert (same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses
        and all(p.requires_grad for p in learn.model.parameters()))

def test_fine_tune_in_an_empty_folder(tmp_path):
    learn = mk(splitter=split).fine_tune(2, .1, cbs=Checkpoint(folder=tmp_path), resume='auto')
    assert (len(learn.recorder.rows)==3 and all(p.requires_grad for p in learn.model.parameters())
        and same(weights(learn.model), weights(mk(splitter=split).fine_tune(2, .1).model)))

def test_fine_tune_passes_arguments_on():
    probe = Probe('lr','wd')
    mk(splitter=split).fine_tune(1, .1, div_final=10, wd=.5, cbs=probe)
    assert probe.seen['lr'][-1][-1]==pytest.approx(one_cycle(6/7, .3, .01, .05, .005)) and probe.seen['wd'][0]==[.5]*3
    for k in ('divv','n_iter','n_step'):
        with pytest.raises(TypeError, match=f'no argument `{k}`'): mk(splitter=split).fine_tune(1, **{k: 3})

@pytest.mark.parametrize('f,exc,match', [
    (lambda l: l.fit_one_cycle(1, .1, div=0), ValueError, '`div` is above 0, but got 0'),
    (lambda l: l.fit_one_cycle(1, .1, div_final=0), ValueError, '`div_final` is above 0, but got 0'),
    (lambda l: l.fit_one_cycle(1, .1, div='a'), TypeError, "`div` is a number above 0, but got 'a'"),
    (lambda l: l.fit_flat_cos(1, .1, div_final=0), ValueError, '`div_final` is above 0'),
    (lambda l: l.fit_one_cycle(1, .1, moms=(.9,.8)), ValueError, r'`moms` are three values, .* but got \(0.9, 0.8\)'),
    (lambda l: l.fit_one_cycle(1, .1, moms=.9), ValueError, '`moms` are three values, .* but got 0.9'),
    (lambda l: l.fit_sgdr(2, 0), ValueError, '`cycle_len` is 1 or more, but got 0'),
    (lambda l: l.fit_sgdr(0, 1), ValueError, '`n_cycles` is 1 or more, but got 0'),
    (lambda l: l.fit_sgdr(2, 1, cycle_mult=0), ValueError, '`cycle_mult` is above 0, but got 0'),
    (lambda l: l.fit_sgdr(3, 1, cycle_mult=.4), ValueError,
        '`cycle_len=1` and `cycle_mult=0.4` give cycles of 1, 0, 0 epochs, and each needs 1 or more'),
    (lambda l: l.fit(1, -1.), ValueError, '`lr` is 0 or more, but got -1.0$'),
    (lambda l: l.fit(1, [.1,.1,-1.]), ValueError, r'`lr` is 0 or more, but got \[0.1, 0.1, -1.0\]$'),
    (lambda l: l.fit(1, slice(1e-3, 1e-2, 3)), ValueError, r'`lr=slice\(first, last\)` has no third value'),
    (lambda l: l.fine_tune(1, slice(1e-3, 1e-2)), TypeError,
        r'`base_lr` is a number above 0, but got slice\(0.001, 0.01, None\)'),
        (lambda l: l.fine_tune(1, lr_mult=0), ValueError, '`lr_mult` is above 0'),
    (lambda l: l.fine_tune(1.5), TypeError, '`epochs` is a whole number, but got 1.5'),
    (lambda l: l.fine_tune(1, freeze_epochs=-1), ValueError, '`freeze_epochs` is 0 or more, but got -1')])
def test_settings_of_fits(f, exc, match):
    learn = mk(splitter=split)
    with pytest.raises(exc, match=match): f(learn)
    assert learn.fit(1).train_iter==7 and all(p.requires_grad for p in learn.model.parameters())

def test_fine_tune_needs_groups():
    with pytest.raises(ValueError, match=r'`freeze_to\(-1\)`, but there is 1 parameter group: give a `splitter`'):
        mk().fine_tune(1)

@pytest.mark.parametrize('fit',
    [lambda l: l.fit_one_cycle(0, .1), lambda l: l.fit_one_cycle(None, .1, n_iter=0), lambda l: l.fit_flat_cos(0),
        lambda l: l.fit_one_cycle(n_step=0), lambda l: l.fit(0, cbs=ParamScheduler(dict(lr=SchedCos(.1, 0))))])
def test_fits_of_zero_epochs_need_no_length(fit):
    learn = mk()
    before = weights(learn.model)
    fit(learn)
    assert same(before, weights(learn.model)) and learn.recorder.lrs==[]

@pytest.mark.parametrize('fit', [Learner.fit_one_cycle, Learner.fit_flat_cos, partial(Learner.fit_sgdr, cycle_len=4)])
def test_start_epoch_begins_in_the_middle(fit):
    whole,rest,n = Probe('lr'),Probe('lr'),1 if isinstance(fit, partial) else 4
    for probe,start in ((whole, 0), (rest, 2)):
        fit(mk(), n, lr_max=.1, cbs=probe, start_epoch=start) if fit is not Learner.fit_flat_cos else fit(mk(), n,
            lr=.1, cbs=probe, start_epoch=start)
    assert len(rest.seen['lr'])==14 and rest.seen['lr']==whole.seen['lr'][14:]

@pytest.mark.parametrize('fit',
    [Learner.fit_one_cycle, Learner.fit_flat_cos, partial(Learner.fit_sgdr, cycle_len=1), Learner.fine_tune])
def test_fits_chain_and_reset(fit):
    learn = mk(splitter=split)
    learn.create_opt()
    opt = learn.opt
    assert fit(learn, 1) is learn and learn.opt is opt
    assert fit(learn, 1, reset_opt=True).opt is not opt

# Frozen groups
@pytest.mark.parametrize('epochs,by_hand',
    [({0:-1, 2:0}, [(-1, 2), (0, 2)]), ({1:1}, [(0, 1), (1, 3)]), ({3:0, 0:1, 2:-1}, [(1, 2), (-1, 1), (0, 1)])],
    ids=str)
def test_freeze_schedule(epochs, by_hand):
    "One fit with a schedule, and fits between which groups are frozen by hand"
    one = mk(cbs=FreezeSchedule(epochs), splitter=split).fit(4)
    hand = mk(splitter=split)
    for n,n_epoch in by_hand: hand.freeze_to(n); hand.fit(n_epoch)
    assert (same(weights(one.model), weights(hand.model))
        and [p.requires_grad for p in one.model.parameters()]==[p.requires_grad for p in hand.model.parameters()])
    assert not same(weights(one.model), weights(mk(splitter=split).fit(4).model))

@pytest.mark.parametrize('epochs', [{}, {-1: 0}, {0: .5}, {'first': 0}, [0,1], None, 3], ids=str)
def test_bad_freeze_schedules(epochs):
    with pytest.raises(ValueError, match='says from which epoch on what is frozen'): FreezeSchedule(epochs)

def test_freeze_schedules_fail_before_training():
    learn = mk(splitter=split)
    with pytest.raises(ValueError, match=r'`freeze_to\(4\)`, but there are 3 parameter groups'):
        learn.fit(4, cbs=FreezeSchedule({0: 1, 3: 4}))
    # nothing would be frozen
    with pytest.raises(ValueError, match=r'`freeze_to\(-1\)`, but there is 1 parameter group'):
        mk().fit(4, cbs=FreezeSchedule({0: -1, 1: 0}))
    assert learn.train_iter==0 and same(weights(learn.model), weights(mk().model))

# The callback
def test_any_hyper_parameter_for_each_group():
    probe = Probe('lr','wd','eps','sqr_mom')
    mk(2, Adam, splitter=split, wd_bn_bias=True).fit(1,
        cbs=[probe, ParamScheduler(dict(wd=SchedLin([.1,.2,.3], [.3,.4,.5]), eps=SchedNo(1e-4, 1e-4))),
            ParamScheduler(dict(sqr_mom=SchedLin(.5, .7)))])
    assert (np.array(probe.seen['wd'])==approx([[.1,.2,.3],[.2,.3,.4]]) and probe.seen['eps']==[[1e-4]*3]*2
        and np.array(probe.seen['sqr_mom'])==approx([[.5]*3,[.6]*3]))

def test_two_schedulers_are_both_recorded():
    learn = mk(2).fit(2, cbs=[ParamScheduler(dict(lr=SchedLin(0., 1.))), ParamScheduler(dict(wd=lambda p: p*2))])
    assert learn.recorder.hps==dict(lr=[0., .25, .5, .75], wd=[0., .5, 1., 1.5])
    assert len(learn.recorder.plot_sched())==2 and len(learn.recorder.plot_sched('wd'))==1
    drawn = learn.recorder.plot_sched('lr')[0].lines[0].get_xdata()
    assert list(drawn)==list(learn.recorder.plot_loss(skip_start=0).lines[0].get_xdata())==[1,2,3,4]
    with pytest.raises(ValueError, match='`mo` was not scheduled in the last fit, but `lr`, `wd`'):
        learn.recorder.plot_sched('mo')
    with pytest.raises(ValueError, match='Nothing was scheduled'): learn.fit(1).recorder.plot_sched()

def test_a_plot_of_schedules_says_which_of_several_groups_it_shows():
    "A rate of the body is a tenth of it"
    def plotted(**kwargs):
        learn = synth_learner(model=nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), **kwargs)
        lr = SchedLin([.001,.01], [.002,.02]) if kwargs else SchedLin(0., .01)
        ax, = learn.fit(1, cbs=ParamScheduler(dict(lr=lr))).recorder.plot_sched()
        return ax.get_ylabel(),ax.lines[0].get_ydata()[0]
    assert plotted()==('lr', 0.)
    assert plotted(splitter=lambda m: [[*o.parameters()] for o in m])==('lr of the last group', approx(.01))

lr_writers = dict(schedule=lambda: ParamScheduler(dict(lr=SchedNo(1., 1.))),
    both=lambda: ParamScheduler(dict(wd=SchedNo(1., 1.), lr=SchedNo(1., 1.))),
    torch=lambda: TorchScheduler(partial(sched.StepLR, step_size=1)))
@pytest.mark.parametrize('a', lr_writers)
@pytest.mark.parametrize('b', lr_writers)
def test_two_schedulers_of_the_learning_rate_are_refused(a, b):
    "In any order, also if one of them belongs to the Learner"
    trace,match = Trace('before_epoch'), \
        r"`(param|torch)_scheduler(_2)?` and `(param|torch)_scheduler(_2)?` would both set `(lr|wd)`: use one of them"
    learn = mk(cbs=trace)
    with pytest.raises(ValueError, match=match): learn.fit(1, cbs=[lr_writers[a](), lr_writers[b]()])
    with pytest.raises(ValueError, match=match): mk(cbs=[lr_writers[a](), trace]).fit_one_cycle(1, .1)
    assert not trace.seen and learn.fit(1, cbs=lr_writers[a]()).train_iter==7

@pytest.mark.parametrize('first', [True, False])
def test_torch_schedulers_that_cycle_momentum_set_it_too(first):
    cbs = [TorchScheduler(partial(sched.CyclicLR, base_lr=.01, max_lr=.1), 'step'),
        ParamScheduler(dict(mom=SchedNo(.9, .9)))]
    with pytest.raises(ValueError, match='would both set `mom`'):
        mk(opt_func=torch_sgd).fit(1, cbs=cbs if first else cbs[::-1])

def test_history_has_the_values_of_each_batch():
    "Also where a later callback sets the rate again, as `SWA` does"
    learn = mk().fit_one_cycle(4, .1, cbs=SWA(.5, lr=.05, anneal=0))
    assert learn.recorder.hps['lr']==learn.recorder.lrs and learn.recorder.lrs[-1]==.05

@pytest.mark.parametrize('name', ['StepLR','CyclicLR'])
def test_history_of_torch_schedulers(name):
    probe = Probe('lr','mom')
    rec = mk(opt_func=torch_sgd, lr=.1).fit(2, cbs=[TorchScheduler(by_step[name], 'step'), probe]).recorder
    assert (rec.hps=={k:[o[-1] for o in probe.seen[k]] for k in (['lr','mom'] if name=='CyclicLR' else ['lr'])}
        and len({*rec.hps['lr']})>1 and len(rec.plot_sched())==len(rec.hps))

@pytest.mark.parametrize('n_acc', [12, 8, 1000])
def test_schedules_with_accumulation(n_acc, bs=4):
    "Rates are those of the position, batch by batch; each step takes the rate of its last batch"
    seen,n = [],3*7
    learn = mk().fit_one_cycle(3, .1,
        cbs=[GradientAccumulation(n_acc),
            Callback(after_step=lambda self: seen.append((self.train_iter, get_hyper(self.opt, 'lr')[0])))])
    assert learn.recorder.lrs==approx([one_cycle(i/n, .25, .1/25, .1, .1/1e5) for i in range(n)])
    per = min(n_acc//bs, 7) # batches in a window; an epoch ends the last one
    ends = [e*7+min(j, 7)-1 for e in range(3) for j in range(per, 7+per, per)]
    assert [i for i,_ in seen]==ends and [lr for _,lr in seen]==[learn.recorder.lrs[i] for i in ends]

@pytest.mark.parametrize('ends', ['well','error','KeyboardInterrupt','fit','epoch','batch','step'])
def test_hyper_parameters_are_restored(ends):
    exc = dict(well=None, error=ValueError, KeyboardInterrupt=KeyboardInterrupt).get(ends, cancels.get(ends))
    learn = mk(splitter=split, lr=[.1,.2,.3])
    learn.create_opt()
    before = hyper_params(learn.opt)
    cbs = [ParamScheduler(dict(wd=SchedNo(.5, .5)))] + ([Raise('before_step', exc, 3, order=2000)] if exc else [])
    try: learn.fit_one_cycle(2, .4, cbs=cbs)
    except (ValueError, KeyboardInterrupt): assert ends in ('error','KeyboardInterrupt')
    assert hyper_params(learn.opt)==before and {o[-1] for o in [get_hyper(learn.opt, 'lr')]}=={.3}
    assert learn.fit(1).recorder.lrs==[.3]*7 and learn.recorder.hps=={}

def test_unknown_hyper_parameter():
    learn,trace = mk(),Trace('before_epoch')
    with pytest.raises(ValueError, match='`SGD` has no hyper-parameter `lrr`.*Did you mean `lr`'):
        learn.fit(1, cbs=[ParamScheduler(dict(lrr=SchedNo(1,1))), trace])
    with pytest.raises(ValueError, match='`lr` has 2 values.*3 parameter groups'):
        mk(splitter=split).fit(1, cbs=ParamScheduler(dict(lr=SchedLin([1.,1.], [0.,0.]))))
    assert not trace.seen

def test_a_loader_without_length_is_refused_before_training():
    class Stream:
        def __iter__(self): return iter(bs(3))
    trace = Trace('before_batch')
    learn = Learner(DataLoaders(Stream(), device='cpu'), Net(), F.mse_loss, cbs=trace).remove_cb(ProgressCallback)
    with pytest.raises(ValueError, match='no length'): learn.fit_one_cycle(1, .1)
    assert not trace.seen and len(learn.fit(1).recorder.lrs)==3

def test_validation_and_lr_find_do_not_move_a_schedule():
    "Nested validations leave the schedule where it was"
    class Look(Callback):
        run_valid = False
        def after_loss(self):
            lr = get_hyper(self.learn.opt, 'lr')
            self.learn.validate(); self.learn.get_preds()
            assert get_hyper(self.learn.opt, 'lr')==lr
    a,b = mk().fit_one_cycle(2, .1),mk().fit_one_cycle(2, .1, cbs=Look())
    assert a.recorder.hps==b.recorder.hps and same(weights(a.model), weights(b.model))

def test_other_modes_need_no_schedule():
    learn = mk(cbs=ParamScheduler(dict(lr=SchedNo(5., 5.))))
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=8, show_plot=False)
    assert learn.fit(1).recorder.lrs==[5.]*7

# Schedulers of torch
by_epoch = dict(StepLR=partial(sched.StepLR, step_size=2, gamma=.5),
    ExponentialLR=partial(sched.ExponentialLR, gamma=.7), CosineAnnealingLR=partial(sched.CosineAnnealingLR, T_max=4),
    LambdaLR=partial(sched.LambdaLR, lr_lambda=lambda e: 1/(e+1)),
    ReduceLROnPlateau=partial(sched.ReduceLROnPlateau, patience=0, factor=.3, threshold=.5))
by_step = dict(OneCycleLR=partial(sched.OneCycleLR, max_lr=.2, total_steps=4*7+1),
    CyclicLR=partial(sched.CyclicLR, base_lr=.01, max_lr=.1, step_size_up=3), StepLR=partial(sched.StepLR, step_size=5),
    SequentialLR=lambda opt: sched.SequentialLR(opt,
        [sched.LinearLR(opt, .1, total_iters=5), sched.CosineAnnealingLR(opt, 20)], milestones=[5]))

def by_hand(model, make, unit, n_epoch=4, skip=(), n=7, lr=.1):
    "A plain loop, without the steps in `skip`"
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=.9)
    s,lrs = make(opt),[]
    for e in range(n_epoch):
        for i,(x,y) in enumerate(bs(n)):
            lrs.append(opt.param_groups[0]['lr'])
            F.mse_loss(model(x), y).backward()
            if e*n+i not in skip:
                opt.step()
                if unit=='step': s.step()
            opt.zero_grad()
        with torch.no_grad(): valid_loss = sum(F.mse_loss(model(x), y).item() for x,y in bs(2, 1))/2
        if unit=='epoch': s.step(*([valid_loss] if isinstance(s, sched.ReduceLROnPlateau) else []))
    return weights(model),lrs

torch_sgd = partial(torch.optim.SGD, momentum=.9)

@pytest.mark.parametrize('skip', [(), (2, 9, 10)], ids=['', 'steps cancelled'])
@pytest.mark.parametrize('unit,name', [('epoch',o) for o in by_epoch] + [('step',o) for o in by_step])
def test_torch_schedulers_equal_a_loop_by_hand(unit, name, skip):
    make = (by_epoch if unit=='epoch' else by_step)[name]
    learn = mk(opt_func=torch_sgd, lr=.1)
    expected,lrs = by_hand(copy.deepcopy(learn.model), make, unit, skip=skip)
    def cancel(self):
        if self.learn.train_iter in skip: raise CancelStepException
    learn.fit(4, cbs=[TorchScheduler(make, unit), Callback(before_step=cancel)])
    assert (same(weights(learn.model), expected) and learn.recorder.lrs==lrs and get_hyper(learn.opt, 'lr')==[.1]
        and get_hyper(learn.opt, 'mom')==[.9])

@pytest.mark.parametrize('name', ['StepLR','CosineAnnealingLR','LambdaLR'])
def test_a_torch_scheduler_begins_anew_with_each_fit(name):
    learn = mk(opt_func=torch_sgd, lr=.1)
    for lr in (.1, .01):
        _,lrs = by_hand(Net(), by_epoch[name], 'epoch', lr=lr)
        assert learn.fit(4, lr=lr, cbs=TorchScheduler(by_epoch[name])).recorder.lrs==pytest.approx(lrs)

def by_batches(name, n):
    return partial(sched.OneCycleLR, max_lr=.1, total_steps=n) if name=='total_steps' else partial(
        sched.CosineAnnealingLR, T_max=n)

@pytest.mark.parametrize('how', [dict(n_epoch=3), dict(n_iter=21), dict(n_epoch=9, n_iter=21)], ids=str)
@pytest.mark.parametrize('name', ['total_steps','T_max'])
def test_a_scheduler_that_counts_batches_and_steps_by_epoch_is_told(name, how):
    told = (f"`torch_scheduler` steps after each epoch, but its .* has `{name}=21`, which is the number of batches of "
        r"the fit: write `TorchScheduler\(…, unit='iter'\)`")
    with pytest.warns(UserWarning, match=told):
        mk(opt_func=torch_sgd, lr=.1).fit(**how, cbs=TorchScheduler(by_batches(name, 21)))

@pytest.mark.parametrize('name', ['total_steps','T_max'])
def test_schedulers_that_count_something_else_are_not_warned_of(name, recwarn):
    for n,steps,unit in ((7, 22, 'epoch'), (7, 3, 'epoch'), (7, 21, 'iter'), (1, 3, 'epoch')):
        mk(n, opt_func=torch_sgd, lr=.1).fit(3, cbs=TorchScheduler(by_batches(name, steps), unit))
    assert not [o for o in recwarn if 'batches of the fit' in str(o.message)]

def test_a_scheduler_of_several_fits_may_have_as_many_steps_as_one_has_batches(recwarn):
    learn = mk(2, torch_sgd, lr=.1)
    learn.create_opt()
    s = sched.CosineAnnealingLR(learn.opt, T_max=8)
    for _ in range(2): learn.fit(4, cbs=TorchScheduler(s))
    assert s.last_epoch==8 and s.get_last_lr()[0]==pytest.approx(0, abs=1e-9)
    assert not [o for o in recwarn if 'batches of the fit' in str(o.message)]

def test_a_scheduler_that_counts_epochs_and_steps_by_batch_is_told():
    def fit(**kwargs): mk(opt_func=torch_sgd, lr=.1).fit(4, cbs=TorchScheduler(by_batches('total_steps', 4), **kwargs))
    for unit in ('iter','step'):
        with pytest.raises(ValueError, match='Tried to step 5 times') as e: fit(unit=unit)
        assert any("write `TorchScheduler(…, unit='epoch')`" in o for o in e.value.__notes__)
    fit(unit='epoch')

def test_one_torch_scheduler_serves_several_fits():
    learn = mk(opt_func=torch_sgd, lr=.1, cbs=TorchScheduler(by_epoch['StepLR']))
    assert learn.fit(4).recorder.lrs==learn.fit(4).recorder.lrs==pytest.approx([.1]*14+[.05]*14)

def test_torch_scheduler_with_accumulation_by_hand_counts_steps():
    class Accumulate(Callback):
        def before_step(self):
            if self.train_iter%2==0: raise CancelBatchException
    learn = mk(8, torch_sgd, lr=.1).fit(1,
        cbs=[Accumulate(), TorchScheduler(partial(sched.StepLR, step_size=1, gamma=.5), 'step')])
    assert learn.recorder.lrs==[.1,.1,.05,.05,.025,.025,.0125,.0125]

def test_torch_scheduler_follows_a_step_at_the_end_of_training():
    "Four batches of 8 and one of 2 in a loader without a length, which accumulation leaves for the end"
    class NoLength:
        def __iter__(self): return zip(torch.ones(34, 2).split(8), torch.ones(34, 1).split(8))
    learn,lrs = mk(opt_func=torch_sgd, lr=.1),[]
    learn.dls = DataLoaders(NoLength(), device='cpu')
    learn.fit(2, cbs=[GradientAccumulation(8), TorchScheduler(partial(sched.StepLR, step_size=1, gamma=.5), 'step'),
        on(event.after_step)(lambda learn: lrs.append(learn.opt.param_groups[0]['lr']))])
    assert lrs==[.1*.5**i for i in range(10)]

@pytest.mark.parametrize('monitor', ['valid_loss','train_loss','mae'])
def test_plateau_monitors_any_column(monitor):
    seen = []
    class Plateau(sched.ReduceLROnPlateau):
        def step(self, v, epoch=None): seen.append(v); super().step(v)
    learn = mk(opt_func=torch_sgd, lr=.1, metrics=mae).fit(3, cbs=TorchScheduler(Plateau, monitor=monitor))
    assert seen==learn.recorder[monitor].tolist()
    learn.monitor,seen[:] = monitor,[]
    assert seen==learn.fit(2, cbs=TorchScheduler(Plateau)).recorder[monitor].tolist() and len(seen)==2
    trace = Trace('before_epoch')
    with pytest.raises(ValueError,
            match='`maee` is to be monitored and is not recorded, but `train_loss`, `valid_loss`, `mae`. Did you mean '
            '`mae`'):
        learn.fit(1, cbs=[TorchScheduler(Plateau, monitor='maee'), trace])
    with pytest.raises(ValueError, match="results of an epoch: give `unit='epoch'`"):
        learn.fit(1, cbs=[TorchScheduler(Plateau, 'step'), trace])
    with pytest.raises(ValueError, match="reads the rows of a `Recorder`, and there is none"):
        mk(default_cbs=False, cbs=[TrainEvalCallback, TorchScheduler(Plateau), trace]).fit(1)
    assert not trace.seen

@pytest.mark.parametrize('metric,mode,right', [(R2Score, 'min', 'max'), (R2Score, 'max', None), (mae, 'max', 'min'),
    (mae, 'min', None), (lambda p,t: p.mean(), 'min', None)])
def test_a_plateau_in_the_wrong_direction_is_told(metric, mode, right, recwarn):
    make = partial(sched.ReduceLROnPlateau, mode=mode)
    mk(metrics=dict(score=metric)).fit(1, cbs=TorchScheduler(make, monitor='score'))
    said = [str(o.message) for o in recwarn if 'mode=' in str(o.message)]
    assert len(said)==bool(right) and (not right or f"`mode='{right}'`" in said[0])

# Ready schedulers
def by_torch(make, n_epoch, unit, n=7, lrs=(.1,)):
    "Rates of each batch, as torch alone would set them"
    opt = torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))], lr=o) for o in lrs], .1)
    s,res = make(opt),[]
    for _ in range(n_epoch):
        for _ in range(n):
            res.append([g['lr'] for g in opt.param_groups])
            opt.step()
            if unit!='epoch': s.step()
        if unit=='epoch': s.step()
    return np.array(res)

ready = dict(step=partial(sched.StepLR, step_size=2), warm=partial(sched.LinearLR, total_iters=5),
    cos=partial(sched.CosineAnnealingLR, T_max=25), function=partial(sched.LambdaLR, lr_lambda=lambda i: 1/(1+i)),
    sequence=lambda o: sched.SequentialLR(o, [sched.LinearLR(o, .5, 1., 5), sched.ExponentialLR(o, .9)], [5]))
@pytest.mark.parametrize('unit', ['epoch','iter','step'])
@pytest.mark.parametrize('name', ready)
def test_a_ready_scheduler_goes_on_where_it_is(name, unit):
    "Over two fits, as in torch alone"
    learn,probe = mk(splitter=split, lr=[.1,.2,.3]),Probe('lr')
    cb = TorchScheduler(ready[name](learn.create_opt()), unit)
    learn.fit(1, cbs=[cb, probe]).fit(2, cbs=[cb, probe])
    assert np.array(probe.seen['lr'])==approx(by_torch(ready[name], 3, unit, lrs=(.1,.2,.3)))
    # these change the rates when they are made
    assert get_hyper(learn.opt, 'lr')==[.1,.2,.3] or name in ('warm','sequence')

@pytest.mark.parametrize('name', ready)
def test_a_ready_scheduler_is_stopped_and_resumed(name):
    learn,probe = mk(lr=.1),Probe('lr')
    @on(event.after_batch(once=4, unit='iter'))
    def stop(learn): learn.at_pause(learn.stop_for_now, stops=True)
    learn.fit(2, cbs=[TorchScheduler(ready[name](learn.create_opt()), 'iter'), probe, stop])
    assert learn.at.batch==4
    learn.resume()
    assert np.array(probe.seen['lr'])==approx(by_torch(ready[name], 2, 'iter'))

@pytest.mark.filterwarnings('ignore:Detected call of')
def test_iterations_count_where_steps_are_skipped():
    learn = mk(8, torch_sgd, lr=.1).fit(1,
        cbs=[GradientAccumulation(16), TorchScheduler(partial(sched.StepLR, step_size=1, gamma=.5), 'iter')])
    assert learn.opt_step==2 and learn.recorder.lrs==approx([.1*.5**i for i in range(8)])

def test_a_scheduler_of_another_optimizer_is_refused():
    learn = mk()
    with pytest.raises(ValueError,
            match='`StepLR` is a scheduler of another optimizer than `learn.opt`: make it after'):
        learn.fit(1, cbs=TorchScheduler(sched.StepLR(torch.optim.SGD([torch.zeros(1)], .1), 1)))
    learn = mk()
    s = sched.StepLR(learn.create_opt(), 1)
    with pytest.raises(ValueError, match='is a scheduler of 1 groups of parameters, but the optimizer has 2 now'):
        learn.fit(1, wd=.1, cbs=TorchScheduler(s))

again = dict(exp=partial(sched.ExponentialLR, gamma=.5), cos=partial(sched.CosineAnnealingLR, T_max=9),
    cycle=partial(sched.OneCycleLR, max_lr=.2, total_steps=9),
    function=partial(sched.LambdaLR, lr_lambda=lambda i: 1/(1+i)),
    warm=partial(sched.CosineAnnealingWarmRestarts, T_0=3))
class NewHead(Callback):
    "Replaces a layer in the middle of a fit"
    def before_epoch(self):
        if self.epoch!=4: return
        self.learn.model.head = nn.Linear(3, 1)
        self.learn.create_opt()

@pytest.mark.parametrize('name', [*again, 'one cycle', 'plateau'])
def test_a_schedule_goes_on_with_an_optimizer_that_is_made_during_the_fit(name):
    "In the optimizer, and in what is recorded"
    def run(*cbs):
        learn,probe = mk(2, torch_sgd),Probe('lr')
        if name=='one cycle': learn.fit_one_cycle(9, .1, cbs=[probe, *cbs])
        elif name=='plateau':
            learn.fit(9, .1, cbs=[probe, ReduceLROnPlateau(patience=2, min_delta=10., factor=2.), *cbs])
        else: learn.fit(9, .1, cbs=[probe, TorchScheduler(again[name]), *cbs])
        return probe.seen['lr'],learn.recorder.lrs,learn.recorder.hps.get('lr'),get_hyper(learn.opt, 'lr')
    plain,replaced = run(),run(NewHead())
    assert replaced[0]==plain[0] and replaced[1:]==plain[1:] and len({*plain[1]})>2

def test_a_ready_scheduler_of_an_optimizer_that_is_gone_is_refused():
    learn = mk(2, torch_sgd, lr=.1)
    with pytest.raises(ValueError, match='`torch_scheduler` cannot go on with the optimizer that was made during'):
        learn.fit(9, cbs=[NewHead(), TorchScheduler(sched.ExponentialLR(learn.create_opt(), .5))])

def test_schedulers_of_torch_say_what_they_do_not_know():
    with pytest.warns(UserWarning, match='begins anew: schedulers of torch do not know the 2 epochs'):
        mk(2, torch_sgd).fit(3, .1, start_epoch=2, cbs=TorchScheduler(again['exp']))
    learn = mk(2, torch_sgd, lr=.1)
    ready = sched.StepLR(learn.create_opt(), 1, .5)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        learn.fit(1, cbs=TorchScheduler(ready)).fit(3, start_epoch=1, cbs=TorchScheduler(ready))
    assert learn.recorder.lrs==approx([.05,.05,.025,.025])
    make = partial(sched.OneCycleLR, max_lr=[.1,.2,.3], total_steps=9)
    with pytest.raises(ValueError) as e: mk(2, splitter=split).fit(1, wd=.1, cbs=TorchScheduler(make))
    assert any('6 groups of parameters where the learner has 3' in o for o in e.value.__notes__)
    mk(2, splitter=split, wd_bn_bias=True).fit(1, wd=.1, cbs=TorchScheduler(make))

# Warm-up
@pytest.mark.parametrize('n_steps', [1, 4, 10, 30])
@lrs
def test_warmup_raises_the_rates_of_all_groups_from_the_first_step_on(n_steps, lr, groups):
    probe = Probe('lr')
    learn = mk(splitter=split, lr=.05)
    learn.fit(3, lr, cbs=[Warmup(n_steps), probe])
    assert np.array(probe.seen['lr'])==approx([[g*min(1, (i+1)/n_steps) for g in groups] for i in range(21)])

def test_warmup_counts_steps_and_leaves_rates_alone_afterwards():
    learn,seen = mk(lr=.1),[]
    @on(event.after_step(once=4))
    def lower(learn): learn.set_hyper('lr', .01)
    learn.fit(3, cbs=[GradientAccumulation(8), Warmup(3), lower,
        Callback(before_step=lambda self: seen.append(get_hyper(self.learn.opt, 'lr')[0]))])
    assert seen==approx([.1/3, .2/3, .1, .1] + [.01]*8) and get_hyper(learn.opt, 'lr')==[.1]
    with pytest.raises(ValueError,
            match='`param_scheduler` and `warmup` would both set `lr`|`warmup` and `param_scheduler` would both set '
            '`lr`'):
        learn.fit_one_cycle(1, cbs=Warmup(3))
    for v,exc in ((0, ValueError), (-1, ValueError), (.5, TypeError), ('a', TypeError), (None, TypeError)):
        with pytest.raises(exc, match=rf'`n_steps` is .*but got {v!r}'): Warmup(v)

# A new optimizer
@pytest.mark.parametrize('name,args,top', [('fit_one_cycle', dict(n_epoch=1), 'lr_max'),
    ('fit_flat_cos', dict(n_epoch=1), 'lr'), ('fit_sgdr', dict(n_cycles=1, cycle_len=1), 'lr_max')])
@pytest.mark.parametrize('rates', [slice(1e-4,1e-2), [1e-4,1e-3,1e-2]])
def test_schedules_are_those_of_the_new_optimizer(name, args, top, rates):
    learn,probe = mk(),Probe('lr')
    learn.fit(1)
    learn.splitter = split
    getattr(learn, name)(**args, **{top: rates}, reset_opt=True, cbs=probe)
    highest = np.array(probe.seen['lr']).max(0)
    assert highest==pytest.approx([1e-4,1e-3,1e-2], rel=.2) and len(learn.opt.param_groups)==3
def test_fine_tuning_with_a_new_splitter():
    learn,probe = mk(),Probe('lr')
    learn.fit(1)
    learn.splitter = split
    learn.fine_tune(1, 1e-2, reset_opt=True, cbs=probe)
    assert np.array(probe.seen['lr'])[7:].max(0)==pytest.approx([5e-5,5e-4,5e-3], rel=.2)
def test_momentum_is_that_of_the_new_optimizer():
    learn = mk(opt_func=Adam)
    learn.fit(1)
    learn.opt_func = torch.optim.SGD
    learn.fit_one_cycle(1, 1e-2, reset_opt=True)
    assert list(learn.recorder.hps)==['lr'] and get_hyper(learn.opt, 'mom')==[0.]

scheduled = [Learner.fit_one_cycle, Learner.fit_flat_cos, partial(Learner.fit_sgdr, cycle_len=1), Learner.fine_tune]
@pytest.mark.parametrize('ready', [False,True])
def test_without_a_file_to_resume_from_the_optimizer_stays(tmp_path, ready):
    learn = mk(path=tmp_path)
    if ready: learn.opt_func = torch.optim.SGD(learn.model.parameters(), lr=.1, momentum=.9)
    opt = learn.fit(1).opt
    def momentum(): return [o['momentum_buffer'].clone() for o in opt.state.values()]
    before = momentum()
    for resume in (True,tmp_path/'missing.pth'):
        with pytest.raises(FileNotFoundError): learn.fit(1, reset_opt=True, resume=resume, cbs=Checkpoint())
        assert learn.opt is opt and len(momentum())==len(before) and same(momentum(), before)

@pytest.mark.sample(2)
@pytest.mark.parametrize('fit', scheduled)
@pytest.mark.parametrize('opt_func', [torch.optim.Adam, partial(SGD, mom=0.), partial(SGD, mom=.5)])
def test_a_scheduled_fit_with_another_optimizer_than_before_resumes(tmp_path, fit, opt_func):
    "`reset_opt` makes the optimizer that the file belongs to"
    def run(resume, *cbs):
        learn = mk(path=tmp_path, splitter=split).fit(1)
        learn.opt_func = opt_func
        return weights(fit(learn, 2, reset_opt=True, resume=resume, cbs=[Checkpoint(), *cbs]).model)
    whole = run(None)
    class Stop(Callback):
        def after_batch(self):
            if self.learn.training and self.learn.train_iter==3: self.learn.stop_soon()
    run(None, Stop())
    assert same(run(True), whole)

def test_the_rate_of_the_optimizer_is_that_of_each_new_one():
    learn = mk(opt_func=Adam)
    learn.fit(1)
    assert learn.lr==1e-3
    learn.opt_func = partial(torch.optim.SGD, lr=.1)
    learn.fit(1, reset_opt=True)
    assert learn.lr==.1 and get_hyper(learn.opt, 'lr')==[.1]
    learn.lr = .5
    learn.opt_func = Adam
    learn.fit(1, reset_opt=True)
    assert learn.lr==.5 and get_hyper(learn.opt, 'lr')==[.5]

def test_weight_decay_and_a_scheduler_of_torch():
    "Weight decay splits the groups, before the scheduler counts them"
    probe = Probe('lr','wd')
    learn = mk(opt_func=torch.optim.SGD, lr=.1).fit(2, cbs=[probe, ParamScheduler(dict(wd=SchedLin(0., .1))),
        TorchScheduler(partial(sched.LambdaLR, lr_lambda=lambda i: .5**i))])
    assert probe.seen['lr']==[[.1]]*7+[[.05]]*7
    assert probe.seen['wd']==approx([[.1*i/14] for i in range(14)]) and len(learn.opt.param_groups)==2

class Ease: pass
def eased(start, end, pos, ease, by=1): return start+(end-start)*pos**by
def test_a_schedule_shows_no_addresses_so_that_a_resume_knows_it_again():
    for ease in (Ease, lambda: (lambda a: a), lambda: eased):
        a,b = (repr(Schedule(partial(eased, ease=ease(), by=2), .1, .2)) for _ in range(2))
        assert a==b and '0x' not in a and a.startswith('eased(0.1 → 0.2, ease=') and a.endswith('by=2)')

def test_one_cycle_leaves_a_part_of_the_optimizer_without_momentum():
    "As it is without where it trains alone; momentum that was asked for is for all"
    def seen(**kwargs):
        model,moms = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)),[]
        def two(groups): return OptimList(torch.optim.SGD(groups[:1], lr=.1), torch.optim.AdamW(groups[1:], lr=.1))
        learn = synth_learner(4, 0, model=model, opt_func=two, splitter=lambda m: [[*o.parameters()] for o in m])
        learn.fit_one_cycle(1, .1, cbs=Callback(before_step=lambda learn: moms.append(get_hyper(learn.opt, 'mom'))),
            **kwargs)
        return [*zip(*moms)]
    plain,adam = seen()
    assert plain==(0.,)*4 and adam==seen(moms=(.95,.85,.95))[0] and max(adam)==.95

refused = [lambda learn: learn.fit(2, lr=[1,2], reset_opt=True), lambda learn: learn.fit(n_iter=-1, reset_opt=True),
    lambda learn: learn.fit_one_cycle(2, lr_max=[1,2], reset_opt=True),
    lambda learn: learn.fit_one_cycle(2, moms=(1,2), reset_opt=True),
    lambda learn: learn.fine_tune(1, moms=(1,2), reset_opt=True),
    lambda learn: learn.fit_flat_cos(1, resume='nowhere', reset_opt=True),
    lambda learn: learn.fit_sgdr(1, 1, lr_max=[1,2], reset_opt=True)]
@pytest.mark.parametrize('call', refused)
@pytest.mark.parametrize('ready', [False, True])
def test_a_call_that_is_refused_leaves_the_optimizer_as_it_was(ready, call):
    "The stopped run, and what its optimizer remembers, are there as if nothing had been called"
    def learner():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.Adam(net.parameters(), lr=.1) if ready else Adam
        dls = DataLoaders(bs(7), bs(2, 1), device='cpu')
        return Learner(dls, net, F.mse_loss, opt_func=opt).remove_cb(ProgressCallback)
    whole,learn = learner().fit(2),learner()
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Stop(5))
    opt,lr,made = learn.opt,learn.lr,learn.opt_as_made
    with pytest.raises((ValueError,TypeError,OSError)): call(learn)
    assert learn.opt is opt and learn.lr==lr and learn.opt_as_made is made and len(opt.state)==len(weights(learn.model))
    assert same(weights(learn.resume().model), weights(whole.model))

def test_a_refused_call_leaves_the_turns_of_an_optimizer_of_several():
    "Which of the parts steps depends on how many steps there were"
    net = Net()
    opt = OptimList(*[torch.optim.Adam(o.parameters(), lr=.1) for o in (net.body, net.neck, net.head)], every=[1,2,3])
    learn = Learner(DataLoaders(bs(5), device='cpu'), net, F.mse_loss, opt_func=opt).remove_cb(ProgressCallback).fit(1)
    with pytest.raises(ValueError): learn.fit(1, lr=[1,2], reset_opt=True)
    assert learn.opt is opt and opt.n==5 and all(o.state for o in opt.opts)

def test_a_resume_that_is_refused_has_loaded_the_optimizer_too(tmp_path):
    "Weights of the file with a new optimizer would be neither run"
    learn = mk(opt_func=Adam, path=tmp_path)
    with pytest.raises(KeyboardInterrupt): learn.fit_one_cycle(3, .1, cbs=Stop(10))
    file = learn.save_state('here')
    other = mk(opt_func=Adam, path=tmp_path)
    with pytest.raises(ValueError): other.fit_one_cycle(1, .1, resume=file)
    assert same(weights(other.model), weights(learn.model)) and len(other.opt.state)==len(learn.opt.state)>0

def test_a_new_optimizer_stays_where_the_fit_has_begun():
    learn = mk(opt_func=Adam).fit(1)
    old = learn.opt
    with pytest.raises(ZeroDivisionError): learn.fit(1, cbs=Raise('before_batch', ZeroDivisionError, 3), reset_opt=True)
    assert learn.opt is not old

def test_a_scheduler_that_cycles_is_scaled_by_its_highest_rate():
    def run(*cbs):
        make = partial(sched.CyclicLR, base_lr=.01, max_lr=.1, step_size_up=4, cycle_momentum=False)
        return mk(opt_func=torch_sgd, lr=.1),[TorchScheduler(make, 'iter'), *cbs]
    learn,cbs = run()
    whole = learn.fit(2, cbs=cbs).recorder.lrs
    for lr in (.1, .05):
        learn,cbs = run(Stop(3))
        with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=cbs)
        learn.resume(lr=lr)
        assert learn.recorder.lrs==approx([*whole[:3], *(o*lr/.1 for o in whole[3:])])

def test_a_schedule_that_was_changed_in_the_script_has_the_rates_that_are_written_there(tmp_path):
    "A run whose schedule was scaled by half resumes with a schedule of half as much, or with the same"
    def run(lr, n, **kwargs):
        learn = mk(path=tmp_path)
        try: learn.fit_one_cycle(3, lr, cbs=[Checkpoint(1, 'iter'), Stop(n)], **kwargs)
        except KeyboardInterrupt: pass
        return learn
    whole = mk().fit_one_cycle(3, .05).recorder.lrs
    learn = run(.1, 4)
    learn.add_cb(Stop(4))
    with pytest.raises(KeyboardInterrupt): learn.resume(lr=.05)
    for lr in (.05, .1): assert run(lr, 100, resume=True).recorder.lrs[8:]==approx(whole[8:])

@pytest.mark.parametrize('cb', [Limit(train=2), Overfit(2), ShortEpochCallback(.2)], ids=['limit','overfit','short'])
def test_the_length_of_an_epoch_is_known_when_a_schedule_is_made(cb):
    "Also in `before_fit`, by what bounds it; a loader that has no length gets one from `Overfit`"
    seen = []
    def make(opt):
        seen.append(learn.n_train)
        return sched.OneCycleLR(opt, .1, total_steps=learn.n_epoch*learn.n_train)
    learn = mk(opt_func=torch_sgd)
    learn.fit(6, cbs=[cb, TorchScheduler(make, 'iter')])
    assert seen==[2] and len(learn.recorder.lrs)==12 and learn.recorder.lrs[-1]<1e-4<.09<max(learn.recorder.lrs)

def test_a_schedule_over_batches_that_are_repeated_needs_no_other_length():
    class Stream:
        def __iter__(self): return iter(bs(3))
    learn = Learner(DataLoaders(Stream(), device='cpu'), Net(), F.mse_loss).remove_cb(ProgressCallback)
    lrs = learn.fit_one_cycle(3, .1, cbs=Overfit(2)).recorder.lrs
    assert lrs==approx([one_cycle(i/6, .25, .1/25, .1, .1/1e5) for i in range(6)])

@pytest.mark.parametrize('kwargs,cb,said', [
    (dict(lr=.5), lambda learn: ParamScheduler(dict(lr=SchedNo(.01,.01))), '`lr` of this fit is not used'),
    (dict(lr=.5, wd=.1), lambda learn: ParamScheduler(dict(lr=SchedNo(.01,.01), wd=SchedNo(0.,0.))),
        '`lr`, `wd` of this fit are not used'),
    (dict(lr=.5), lambda learn: TorchScheduler(sched.StepLR(learn.opt, 2)), '`lr` of this fit is not used'),
    (dict(lr=.5), lambda learn: TorchScheduler(partial(sched.StepLR, step_size=2)), None),
    (dict(lr=.5), lambda learn: Warmup(3), None),
    (dict(wd=.1), lambda learn: ParamScheduler(dict(lr=SchedNo(1,1))), None),
    ({}, lambda learn: ParamScheduler(dict(lr=SchedNo(.01,.01))), None)])
def test_a_rate_that_is_given_beside_a_schedule_of_its_own_rates_is_named(kwargs, cb, said):
    learn = mk(opt_func=torch_sgd, lr=.1)
    learn.create_opt()
    with warnings.catch_warnings(record=True) as ws:
        warnings.simplefilter('always')
        learn.fit(1, cbs=cb(learn), **kwargs)
    found = [str(o.message) for o in ws if 'of this fit' in str(o.message)]
    assert found==[] if said is None else len(found)==1 and found[0].startswith(said)

@pytest.mark.parametrize('n', [3, 6, 7, 12, 24, 41])
def test_warmup_ends_at_the_very_rate(n):
    lrs = mk(n=50).fit(1, .1, cbs=Warmup(n)).recorder.lrs
    assert lrs[:n]==approx([.1*(i+1)/n for i in range(n)]) and {*lrs[n-1:]}=={.1}

class Falls(HyperScheduler):
    "A schedule of the user's, that begins with the rate of the fit"
    sets = 'lr',
    def before_fit(self): self.lrs = get_hyper(self.learn.opt, 'lr'); super().before_fit()
    def tops(self, name): return self.lrs
    def before_batch(self): self.set_scaled('lr', [o*(1-self.learn.pct_train) for o in self.lrs])
def test_nothing_is_said_of_a_schedule_of_which_it_is_not_known_where_it_begins(recwarn):
    assert mk().fit(1, .3, cbs=Falls()).recorder.lrs[0]==.3 and not recwarn

def test_states_of_a_schedule_load_anywhere():
    "Without a learner, without an optimizer, and from before what they scale was noted"
    def new(): return ParamScheduler(dict(lr=SchedNo(.1,.1)))
    for cb in (new(), mk(cbs=new()).param_scheduler):
        cb.load_state_dict(dict(scales=dict(lr=[.5]), scaled=dict(lr=[.1]), hps={}))
        assert cb.scales==dict(lr=[.5])
    learn = mk(cbs=new())
    learn.create_opt()
    for scaled,scales in (dict(lr=[.1]), dict(lr=[.5])),(dict(lr=[.2]), {}):
        learn.param_scheduler.load_state_dict(dict(scales=dict(lr=[.5]), scaled=scaled, hps={}))
        assert learn.param_scheduler.scales==scales
    learn.param_scheduler.scaled = {}
    learn.param_scheduler.load_state_dict(dict(scales=dict(lr=[.5]), hps={}))
    assert learn.param_scheduler.scales==dict(lr=[.5])
