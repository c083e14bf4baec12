"Muon for matrices and another for the rest, optimizers with two sets of weights, and steps that compute the loss again"
import copy
from functools import cache,partial
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *

gen = torch.Generator().manual_seed(0)
X,Y = torch.randn(48, 3, generator=gen),torch.randint(0, 2, (48,), generator=gen)
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4,4), nn.Dropout(.1), nn.Linear(4,2))
def batches(bs=8): return list(zip(X.split(bs), Y.split(bs)))
def mk(opt_func, *cbs, model=None, bs=8, **kwargs):
    model = net() if model is None else model
    torch.manual_seed(1)
    return Learner(DataLoaders(batches(bs), batches(24), device='cpu'), model, F.cross_entropy, opt_func=opt_func,
        cbs=cbs, **kwargs).remove_cb(ProgressCallback)
def weights(learn): return [p.detach().clone() for p in getattr(learn, 'model', learn).parameters()]
def same(a, b): return len(a)==len(b) and all(map(torch.equal, a, b))
def gap(a, b): return max((p-q).abs().max().item() for p,q in zip(a, b, strict=True))
def by_hand(model, opts, n_epoch=2, before_step=lambda: None, data=None):
    model.train()
    for _ in range(n_epoch):
        for o in opts: getattr(o, 'train', bool)()
        for x,y in data or batches():
            F.cross_entropy(model(x), y).backward()
            before_step()
            for o in opts: o.step(); o.zero_grad()
        for o in opts: getattr(o, 'eval', bool)()
    return weights(model)

def run(learn, n=2, **kwargs):
    torch.manual_seed(1) # for dropout
    return learn.fit(n, **kwargs)

has_muon = pytest.mark.skipif(not hasattr(torch.optim, 'Muon'), reason='this torch has no Muon')

# By shape
class Many(nn.Module):
    "All kinds of parameters"
    def __init__(self):
        super().__init__()
        self.emb,self.bag,self.pos = nn.Embedding(5,4),nn.EmbeddingBag(5,4),nn.Parameter(torch.zeros(1,6,4))
        self.attn,self.rnn,self.conv = nn.MultiheadAttention(4,2),nn.GRU(4,4),nn.Conv1d(4,4,3)
        self.free,self.scale,self.row = nn.Parameter(torch.zeros(4,4)),nn.Parameter(torch.ones(4)),nn.Linear(4,1)
        self.norm,self.tied,self.head = nn.LayerNorm(4),nn.Linear(4,5),nn.Linear(4,2)
        self.tied.weight = self.emb.weight

def named(model, ps): return [k for k,p in model.named_parameters() if any(p is o for o in ps)]

def test_hidden_matrices_are_those_of_no_embedding_and_not_of_the_last_layer():
    m = Many()
    assert sorted(named(m, hidden_matrices(m)))==sorted(
        ['free','attn.in_proj_weight','attn.out_proj.weight','rnn.weight_ih_l0','rnn.weight_hh_l0'])
    m = net()
    assert named(m, hidden_matrices(m))==['0.weight','3.weight']
    with pytest.raises(ValueError,
            match='`LazyLinear` has no weights before it has seen a batch'):
        hidden_matrices(nn.Sequential(nn.LazyLinear(3)))

def shape_opts(model, lrs=(.01,.01)):
    "Both optimizers by hand; norms and biases do not decay"
    ws = [model[0].weight, model[3].weight]
    rest = [p for p in model.parameters() if not any(p is o for o in [*ws, model[5].weight])]
    return [torch.optim.Muon(ws, lr=lrs[0], adjust_lr_fn='match_rms_adamw'),
        torch.optim.AdamW([dict(params=[model[5].weight]), dict(params=rest, weight_decay=0)], lr=lrs[1])]

@has_muon
@pytest.mark.parametrize('lr', [.01,[.02,.005]])
def test_a_fit_by_shape_is_that_of_two_optimizers_by_hand(lr):
    learn = mk(by_shape(), lr=lr)
    model = copy.deepcopy(learn.model)
    learn.fit(2)
    torch.manual_seed(1)
    assert same(by_hand(model, shape_opts(model, lr if isinstance(lr, list) else [lr]*2)), weights(learn))
    assert [type(o).__name__ for o in learn.opt.opts]==['Muon','AdamW']

def halves(m): return [[*m[:2].parameters()], [*m[2:].parameters()]]
sgds = by_shape(partial(SGD, mom=.9, wd=.1), partial(Adam, lr=.002))

def test_each_part_of_a_group_has_hyper_parameters_of_its_own():
    learn = mk(sgds, splitter=halves)
    learn.create_opt()
    # the third is all norms and biases
    assert (n_groups(learn.opt)==4 and learn.lr==[.001,.001,.002,.002] and get_hyper(learn.opt, 'wd')==[.1,.1,0.,.01]
        and get_hyper(learn.opt, 'mom')==[.9]*4)
    assert [[len(g['params']) for g in learn.opt.param_groups if g['group']==i] for i in range(4)]==[[1], [1], [3],
        [1,2]]
    learn.fit(1, lr=slice(.01,.1))
    assert learn.recorder.lrs==[.1]*6 and learn.lr==get_hyper(learn.opt, 'lr')==[.001,.001,.002,.002]
    seen = []
    learn.fit(1, lr=slice(.01,.1), cbs=Callback(before_batch=lambda self: seen.append(get_hyper(self.learn.opt, 'lr'))))
    assert seen[0]==pytest.approx([.01,.1,.01,.1])
    learn.fit(1, lr=[1e-3,2e-3,3e-3,4e-3], wd=.5,
        cbs=Callback(before_batch=lambda self: seen.append(
            get_hyper(self.learn.opt, 'lr')+get_hyper(self.learn.opt, 'wd'))))
    assert seen[-1]==[1e-3,2e-3,3e-3,4e-3]+[.5,.5,0.,.5] and get_hyper(learn.opt, 'wd')==[.1,.1,0.,.01]

def test_a_learner_by_shape_takes_a_slice_of_rates():
    learn = mk(sgds, splitter=halves, lr=slice(.01,.1))
    learn.create_opt()
    assert get_hyper(learn.opt, 'lr')==pytest.approx([.01,.1,.01,.1])
    with pytest.raises(ValueError, match='`lr` has 2 values, .* but there are 4 parameter groups'):
        mk(sgds, splitter=halves, lr=[.1,.2]).fit(1)

@pytest.mark.parametrize('fit',
    [lambda o: o.fit_one_cycle(2, .01), lambda o: o.fine_tune(1, .01), lambda o: o.fit_flat_cos(2, .01),
        lambda o: o.fit(1, wd=.3)], ids=['one_cycle','fine_tune','flat_cos','wd'])
def test_hyper_parameters_of_both_are_as_before_after_a_scheduled_fit(fit):
    learn = mk(sgds, splitter=halves)
    opt = learn.create_opt()
    before = {k:get_hyper(opt, k) for k in hypers(opt)}
    fit(learn)
    assert {k:get_hyper(learn.opt, k) for k in hypers(learn.opt)}==before

def test_frozen_groups_stay_whatever_optimizer_has_them():
    learn = mk(sgds, splitter=halves, train_bn=False).freeze()
    before = weights(learn.model[:2])
    learn.fit(1)
    assert same(before, weights(learn.model[:2])) and not same(before, weights(learn.unfreeze().fit(1).model[:2]))

def test_what_the_splitter_leaves_out_is_left_out():
    learn = mk(sgds, splitter=lambda m: [*m[3:].parameters()])
    learn.fit(1)
    assert same(weights(net()[:3]), weights(learn.model[:3])) and not same(weights(net()[3]), weights(learn.model[3]))

def test_the_learning_rate_finder_leaves_both_as_they_were():
    learn,other = run(mk(sgds)),run(mk(sgds))
    learn.lr_find(num_it=10, show_plot=False)
    assert same(weights(run(learn)), weights(run(other)))

@pytest.mark.parametrize('f,error,match', [
    (lambda: by_shape(rule='all'), TypeError, "`rule` is a function, but got 'all'"),
    (lambda: by_shape(matrices=3), TypeError, '`matrices` is a function, but got 3'),
    (lambda: mk(by_shape(SGD), model=nn.Sequential(nn.Linear(3,2))).fit(1), ValueError,
        'The rule `hidden_matrices` finds no parameter of `Sequential` for `SGD`: use `AdamW` alone, or give another '
        '`rule`'),
    (lambda: by_shape(SGD)([nn.Parameter(torch.ones(2,2))]), TypeError,
        '`by_shape` chooses by layers: make the optimizer by a Learner, or by `make_opt'),
    (lambda: mk(by_shape(SGD, rule=lambda m: 1/0)).fit(1), ZeroDivisionError, 'division')])
def test_wrong_rules_are_refused(f, error, match):
    with pytest.raises(error, match=match): f()

def test_by_shape_works_without_a_learner():
    model = net()
    opt = make_opt(by_shape(SGD, Adam), [params(model)], lr=.1, model=model)
    assert [len(o.param_groups[0]['params']) for o in opt.opts]==[2,6] and get_hyper(opt, 'lr')==[.1,.1]

def test_a_torch_without_muon_says_so(monkeypatch):
    monkeypatch.delattr(torch.optim, 'Muon', raising=False)
    with pytest.raises(ValueError, match='has no `Muon`, which came with 2.9: give another optimizer as `matrices`'):
        by_shape()
    by_shape(SGD)

@pytest.mark.parametrize('first,second', [(False,True), (True,False)])
def test_the_state_of_both_goes_to_a_learner_that_spares_other_parameters(first, second, tmp_path):
    "Weight decay may have split the groups of the one that saves, or of the one that loads"
    def make(decays): return mk(by_shape(partial(SGD, mom=.9), partial(Adam, wd=.1 if decays else 0.)), lr=.01)
    learn,other = make(first).fit(1),make(second)
    learn.save(tmp_path/'w'); other.load(tmp_path/'w')
    state,theirs = ([o.state.get(p, {}) for o in opt.opts for p in o_params]
        for opt,o_params in ((learn.opt, [*learn.model.parameters()]), (other.opt, [*other.model.parameters()])))
    for a,b in zip(state, theirs, strict=True):
        assert (a.keys()==b.keys()
            and all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a if a[k] is not None))
    other.fit(1)

# Two sets of weights
class ScheduleFree(torch.optim.Optimizer):
    "Schedule-free SGD (Defazio et al. 2024, equations 3 to 5) which keeps x and z, and computes y"
    def __init__(self, params, lr=.5, beta=.9):
        super().__init__(params, dict(lr=lr, beta=beta, k=0, weight_sum=0., trains=False))
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            if not g['trains']: raise RuntimeError('a step in evaluation mode')
            g['k'],g['weight_sum'] = g['k']+1,g['weight_sum']+g['lr']**2
            c,b = g['lr']**2/g['weight_sum'],g['beta']
            for p in g['params']:
                if p.grad is None: continue
                z = self.state[p].setdefault('z', p.clone())
                x = p.lerp(z, 1-1/b)
                z.sub_(p.grad, alpha=g['lr'])
                p.copy_(x.lerp(z, c).lerp(z, 1-b))
    def train(self): self._switch(True)
    def eval(self): self._switch(False)
    @torch.no_grad()
    def _switch(self, trains):
        for g in self.param_groups:
            if g['trains']!=trains:
                for p in g['params']:
                    if p in self.state: p.lerp_(self.state[p]['z'], 1-g['beta'] if trains else 1-1/g['beta'])
            g['trains'] = trains

class Mode(torch.optim.SGD):
    "Notes its mode in an attribute: trains w, and w/2 is used"
    training = False
    def train(self):
        if not self.training: self._times(2.)
        self.training = True
    def eval(self):
        if self.training: self._times(.5)
        self.training = False
    def _times(self, k):
        with torch.no_grad():
            for g in self.param_groups:
                for p in g['params']: p.mul_(k)

sf = partial(ScheduleFree, lr=.5)
free = dict(groups=sf, attribute=partial(Mode, lr=.1, momentum=.9), several=by_shape(sf, partial(Adam, lr=.01)),
    both=by_shape(sf, partial(ScheduleFree, lr=.1)))
frees = pytest.mark.parametrize('name', free)

def trained(learn):
    return any(g.get('trains') or getattr(o, 'training', False) for o in parts(learn.opt) for g in o.param_groups)
def parts(opt): return getattr(opt, 'opts', [opt])

def test_a_fit_ends_with_the_average_of_the_formulas():
    "Written once more, with three lists of weights, in double precision"
    learn = mk(sf, model=nn.Sequential(nn.Linear(3,2)).double())
    learn.dls = DataLoaders([(x.double(), y) for x,y in batches()], device='cpu')
    model = copy.deepcopy(learn.model)
    z,x = ([p.detach().clone() for p in model.parameters()] for _ in range(2))
    t = 0
    for _ in range(2):
        for xb,yb in learn.dls.train:
            for p,a,b in zip(model.parameters(), x, z): p.data = .1*b + .9*a
            grads,t = torch.autograd.grad(F.cross_entropy(model(xb), yb), [*model.parameters()]),t+1
            z = [b-.5*g for b,g in zip(z, grads)]
            x = [(1-1/t)*a + b/t for a,b in zip(x, z)]
    learn.fit(2)
    assert gap(x, weights(learn))<1e-12 and not trained(learn)

@frees
def test_fits_one_after_the_other_are_a_loop_by_hand(name):
    learn = mk(free[name])
    model = copy.deepcopy(learn.model)
    opt = make_opt(free[name], [params(model)], no_decay=norm_bias_params(model), model=model)
    run(learn, 1).fit(2)
    torch.manual_seed(1)
    assert same(by_hand(model, parts(opt), 3), weights(learn))

def averaged(learn):
    "What `eval` would put into the model, computed by copies"
    model,opt = copy.deepcopy((learn.model, learn.opt))
    for o,own in zip(parts(opt), parts(learn.opt)):
        if hasattr(own, 'training'): o.training = own.training # torch's copies lack attributes
        getattr(o, 'eval', bool)()
    return weights(model)

looks = dict(validate=lambda o: o.validate(), get_preds=lambda o: o.get_preds(), predict=lambda o: o.predict(X[0]))
def used_in(learn, f):
    "The weights with which `f` predicts"
    seen = []
    h = learn.model.register_forward_hook(lambda m,*args: seen.append(weights(m)))
    f(learn)
    h.remove()
    assert seen and all(same(o, seen[0]) for o in seen)
    return seen[0]

@frees
@pytest.mark.parametrize('look,at',
    [*(('validate',o) for o in ('after_batch','after_pred','after_backward','before_step','after_epoch')),
        ('get_preds','after_pred'), ('predict','after_batch')])
def test_inference_anywhere_has_the_average_and_changes_nothing(name, look, at):
    "Between forward and backward too"
    learn,other = mk(free[name]),run(mk(free[name]))
    used,expected = [],[]
    @on(at)
    def f(learn):
        if learn.training or at=='after_epoch':
            expected.append(averaged(learn))
            before,opt = weights(learn),trained(learn)
            used.append(used_in(learn, looks[look]))
            assert same(before, weights(learn)) and trained(learn)==opt==(at!='after_epoch')
    run(learn, cbs=f)
    assert all(map(same, used, expected)) and len(used)==(2 if at=='after_epoch' else 12)
    assert same(weights(learn), weights(other)) and learn.recorder.raw_losses==other.recorder.raw_losses

def test_a_step_is_taken_in_training_mode_and_rows_and_events_between_epochs_have_the_average():
    modes = []
    def note(ev): return on(ev)(lambda learn: modes.append((ev, trained(learn))))
    run(mk(sf), 1, cbs=[note(o)
        for o in ('before_fit','before_train','before_step','after_train','before_validate','after_validate',
            'after_row','after_epoch','after_fit')])
    assert {*modes}=={('before_fit',False), ('before_train',True), ('before_step',True), ('after_train',True),
        *((o,False) for o in ('before_validate','after_validate','after_row','after_epoch','after_fit'))}

@frees
@pytest.mark.parametrize('exc', [CancelTrainException,CancelEpochException,CancelFitException])
def test_training_that_is_cancelled_is_over(name, exc):
    learn,at = mk(free[name]),[]
    @on(event.after_batch(once=3))
    def f(learn): at.append(averaged(learn)); raise exc
    learn.fit(1, cbs=f)
    assert same(at[0], weights(learn)) and not trained(learn)

@frees
def test_files_hold_the_average(name, tmp_path):
    learn,other,expected = mk(free[name]),run(mk(free[name])),[]
    @on(event.after_batch(once=3))
    def f(learn):
        if len(expected): return
        expected.append(averaged(learn))
        learn.save(tmp_path/'w'); learn.export(tmp_path/'learner.pkl')
    run(learn, cbs=f)
    assert same(weights(learn), weights(other)) # saving has changed nothing
    again = mk(free[name]).load(tmp_path/'w')
    assert same(weights(again), expected[0]) and not trained(again) and again.opt is not None
    assert same(weights(mk(free[name]).load(tmp_path/'w', with_opt=False)), expected[0])
    torch.manual_seed(1)
    more = weights(again.fit(1))
    if name!='several': assert not same(more, expected[0])

def test_an_exported_learner_has_the_average(tmp_path):
    expected = []
    @on(event.after_batch(once=3))
    def f(learn):
        learn.export(tmp_path/'learner.pkl')
        expected.append(averaged(learn))
    learn = mk(ScheduleFree, lr=.5)
    learn.opt_func = torch.optim.SGD # the class of this file cannot be imported from another process
    learn.opt = ScheduleFree(learn.model.parameters(), lr=.5)
    run(learn, cbs=f)
    assert same(weights(load_learner(tmp_path/'learner.pkl', trust=True)), expected[0])

@frees
def test_what_is_loaded_in_the_middle_of_training_is_used_and_trained_on(name, tmp_path):
    learn,seen = mk(free[name]),[]
    learn.save(tmp_path/'w', with_opt=False)
    first = weights(learn)
    @on(event.after_batch(once=3))
    def f(learn):
        learn.load(tmp_path/'w')
        assert trained(learn)
        seen.append(used_in(learn, looks['validate']))
    learn.fit(1, cbs=f)
    assert gap(first, seen[0])<1e-6 and not trained(learn)

@frees
@pytest.mark.parametrize('fname', ['best',None])
def test_the_best_weights_are_the_average_that_was_validated(name, fname, tmp_path):
    learn,seen = mk(free[name], path=tmp_path),{}
    @on(event.after_validate)
    def f(learn): seen[float(learn.results['valid_loss'])] = averaged(learn)
    run(learn, 3, cbs=[SaveModelCallback(fname=fname), f])
    assert (same(weights(learn), seen[min(seen)]) and learn.validate()['valid_loss']==pytest.approx(min(seen))
        and not trained(learn))

def stop_at(n, how):
    def interrupt(): raise KeyboardInterrupt
    @on(event.after_batch)
    def stop(learn):
        if learn.training and learn.train_iter==n:
            learn.at_pause(learn.stop_for_now if how=='stop' else interrupt, stops=True)
    return stop
def stopped(learn, n, how, **kwargs):
    cb = stop_at(n, how)
    if how=='stop': return run(learn, cbs=[cb, *kwargs.pop('cbs', [])], **kwargs)
    with pytest.raises(KeyboardInterrupt): run(learn, cbs=[cb, *kwargs.pop('cbs', [])], **kwargs)
    return learn

resumable = dict(free, muon=by_shape() if hasattr(torch.optim, 'Muon') else sgds, by_shape=sgds)
@cache
def unstopped(name): return run(mk(resumable[name], lr=.1))

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('name', resumable)
@pytest.mark.parametrize('n', [4,6])
@pytest.mark.parametrize('how', ['interrupt','stop','file','checkpoint'])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(name, n, how, tmp_path):
    f = resumable[name]
    whole,learn = unstopped(name),mk(f, lr=.1, path=tmp_path)
    if how=='checkpoint':
        stopped(learn, n, 'interrupt', cbs=[Checkpoint(every=2, unit='iter')])
        again = mk(f, lr=.1, path=tmp_path)
        for p in again.model.parameters(): p.data.zero_()
        again.fit(2, cbs=[Checkpoint(every=2, unit='iter')], resume=True)
    else:
        stopped(learn, n, how)
        learn.validate(); learn.get_preds(); learn.save('w')
        if how=='file':
            learn.save_state(tmp_path/'state')
            again = mk(f, lr=.1).load_state(tmp_path/'state')
            used = used_in(again, looks['validate'])
            assert same(used, used_in(learn, looks['validate']))
        else: again = learn
        again.resume(cbs=[])
    assert (same(weights(whole), weights(again)) and whole.recorder.raw_losses==again.recorder.raw_losses
        and not trained(again))
    states = [[(k, v) for o in parts(l.opt) for p in l.model.parameters()
        for k,v in o.state.get(p, {}).items() if v is not None] for l in (whole, again)]
    for (k,a),(j,b) in zip(*states, strict=True): assert k==j and torch.equal(torch.as_tensor(a), torch.as_tensor(b)), k
    assert [{k:v for k,v in g.items() if k!='params'} for g in whole.opt.param_groups]==[
        {k:v for k,v in g.items() if k!='params'} for g in again.opt.param_groups]

@frees
def test_a_run_that_was_stopped_and_switched_by_hand_resumes(name):
    whole,learn = run(mk(free[name])),stopped(mk(free[name]), 4, 'interrupt')
    for o in parts(learn.opt): getattr(o, 'eval', bool)()
    learn.resume(cbs=[])
    assert gap(weights(whole), weights(learn))<1e-5 and not trained(learn)

@frees
def test_a_new_optimizer_begins_with_the_average(name):
    learn = stopped(mk(free[name]), 4, 'interrupt')
    expected = averaged(learn)
    learn.create_opt()
    assert same(expected, weights(learn)) and not trained(learn)

def test_a_state_file_of_the_middle_of_training_gives_learn_load_the_average(tmp_path):
    learn = stopped(mk(sf), 4, 'interrupt')
    learn.save_state(tmp_path/'state')
    assert same(weights(mk(sf).load(tmp_path/'state.pth')), averaged(learn))

@frees
def test_a_trial_and_the_learning_rate_finder_leave_no_trace(name):
    learn,other = run(mk(free[name])),run(mk(free[name]))
    learn.lr_find(num_it=8, show_plot=False); learn.smoke()
    assert (not trained(learn) and same(weights(learn), weights(other))
        and same(weights(run(learn)), weights(run(other))))

def test_what_an_optimizer_counts_is_not_put_back_at_the_end_of_a_fit():
    learn = run(mk(sf))
    assert (learn.opt.param_groups[0]['weight_sum']==pytest.approx(12*.25) and 'weight_sum' not in hypers(learn.opt)
        and 'beta' in hypers(learn.opt))
    assert learn.opt.param_groups[0]['k']==12

def test_one_cycle_leaves_alone_what_stands_for_momentum():
    class WithMomentum(Mode): pass
    seen = []
    mk(partial(WithMomentum, lr=.1, momentum=.9)).fit_one_cycle(1, .1,
        cbs=Callback(before_step=lambda self: seen.append(get_hyper(self.learn.opt, 'mom')[0])))
    assert {*seen}=={.9}

# With techniques
def sf_by_hand(n_epoch=2, data=None, before_step=None, opt_func=sf):
    model = net()
    opt = opt_func(model.parameters())
    torch.manual_seed(1)
    return by_hand(model, [opt], n_epoch, (lambda: before_step(model)) if before_step else bool, data)

def test_clipping_is_that_of_a_loop_by_hand():
    clip = lambda model: nn.utils.clip_grad_norm_(model.parameters(), .1)
    assert same(weights(run(mk(sf, GradientClip(.1)))), sf_by_hand(before_step=clip))
    learn = run(mk(sgds, GradientClip(.1)))
    opt = make_opt(sgds, [params(model := net())], no_decay=norm_bias_params(model), model=model)
    torch.manual_seed(1)
    assert same(weights(learn), by_hand(model, parts(opt), 2, lambda: clip(model)))

@pytest.mark.parametrize('name', ['groups','several','by_shape'])
@pytest.mark.parametrize('cb', [GradientAccumulation(24), MicroBatch(8)], ids=['accumulation','micro'])
def test_pieces_of_a_batch_are_the_batch(name, cb):
    def make(*cbs, bs):
        return mk(resumable[name], *cbs, bs=bs,
            model=nn.Sequential(nn.Linear(3,4), nn.Tanh(), nn.Linear(4,4), nn.Linear(4,2)).apply(seeded))
    def seeded(m):
        if isinstance(m, nn.Linear): torch.manual_seed(0); m.reset_parameters()
    pieces = make(copy.copy(cb), bs=8 if isinstance(cb, GradientAccumulation) else 24)
    assert gap(weights(run(make(bs=24))), weights(run(pieces)))<1e-5 and pieces.opt_step==4

@pytest.mark.parametrize('name', resumable)
def test_mixed_precision_of_a_validation_inside_a_batch_uses_the_average(name):
    "No weight of the training is left in the cache of autocast"
    losses = []
    def look(learn): losses.append((learn.validate()['valid_loss'], averaged(learn)))
    def make(*cbs): return mk(resumable[name], *cbs).to_bf16()
    learn,other = make(on(event.after_pred(once=4))(lambda learn: learn.training and look(learn))),run(make())
    run(learn)
    assert same(weights(learn), weights(other)) and len(losses)==1
    loss,ws = losses[0]
    check = make()
    for p,w in zip(check.model.parameters(), ws): p.data = w
    assert check.validate()['valid_loss']==loss

@frees
def test_an_ema_averages_what_is_trained_and_validates_with_it(name):
    learn,other,avg,seen = mk(free[name], EMA(decay=.5, warmup=False)),run(mk(free[name])),weights(net()),[]
    @on(event.after_step)
    def f(learn): avg[:] = [.5*a + .5*w for a,w in zip(avg, weights(learn))]
    @on(event.before_batch)
    def g(learn):
        if not learn.training: seen.append((weights(learn), list(avg)))
    run(learn, cbs=[f,g])
    assert gap(learn.ema.avg, avg)<1e-6 and all(gap(a, b)<1e-6 for a,b in seen) and same(weights(learn), weights(other))
    learn.ema.apply()
    assert gap(weights(learn), avg)<1e-6

@frees
def test_the_best_file_of_an_ema_in_the_middle_of_training_has_its_average(name, tmp_path):
    learn,seen = mk(free[name], EMA(decay=.5), path=tmp_path),[]
    @on(event.after_batch(once=3))
    def f(learn):
        if seen: return
        seen.append([o.clone() for o in learn.ema.avg])
        with learn.ema.averaged(): learn.save('w', with_opt=False)
    run(learn, 1, cbs=f)
    assert same(weights(mk(free[name]).load(tmp_path/'models'/'w.pth')), seen[0])

@frees
def test_swa_ends_with_its_average(name):
    learn = run(mk(free[name], SWA(.5, every=1)))
    assert gap(weights(learn), learn.swa.avg)<1e-6 and not trained(learn)

# Steps that compute the loss again
class Sam(torch.optim.Optimizer):
    "Sharpness-aware: the gradient of a place nearby, given to another optimizer"
    def __init__(self, params, rho=.05, lr=.1, momentum=.9):
        super().__init__(params, dict(lr=lr, rho=rho))
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=momentum)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None
        ps = [p for g in self.param_groups for p in g['params'] if p.grad is not None]
        here,norm = [p.clone() for p in ps],torch.stack([p.grad.norm() for p in ps]).norm()
        for p in ps: p.add_(p.grad*(self.param_groups[0]['rho']/norm))
        with torch.enable_grad(): closure()
        for p,v in zip(ps, here): p.copy_(v)
        self.base.step()
    def state_dict(self): return dict(super().state_dict(), base=self.base.state_dict())
    def load_state_dict(self, state):
        super().load_state_dict({k:v for k,v in state.items() if k!='base'})
        self.base.load_state_dict(state['base'])
        self.param_groups = self.base.param_groups

def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3,4), nn.Tanh(), nn.Linear(4,2))

def sam_by_hand(n_epoch=2):
    model = plain()
    opt = Sam(model.parameters())
    for _ in range(n_epoch):
        for x,y in batches():
            def closure():
                opt.zero_grad()
                (loss := F.cross_entropy(model(x), y)).backward()
                return loss
            closure(); opt.step(closure); opt.zero_grad()
    return weights(model)

def test_a_step_that_needs_a_closure_gets_one():
    learn = run(mk(with_closure(Sam), model=plain()))
    assert same(weights(learn), sam_by_hand()) and type(learn.opt) is Sam
    model = plain()
    opt = Sam(model.parameters())
    opt.needs_closure = True
    assert same(weights(run(mk(opt, model=model))), sam_by_hand())
    with pytest.raises(AssertionError): run(mk(Sam, model=plain()))

@pytest.mark.parametrize('cb', [GradientClip(1.), GradientAccumulation(16), MicroBatch(4), MixedPrecision('bf16')],
    ids=lambda o: o.name)
@pytest.mark.parametrize('opt_func', [with_closure(Sam), torch.optim.LBFGS], ids=['Sam','LBFGS'])
def test_techniques_that_take_no_part_in_the_step_refuse_it(cb, opt_func):
    with pytest.raises(ValueError,
            match=f'computes loss and gradients again within its step, without `{cb.name}`: use another optimizer, or '
            f'remove the callback'):
        mk(opt_func, copy.copy(cb), model=plain()).fit(1)

def test_several_as_one_refuse_a_step_that_needs_a_closure():
    m = plain()
    for make in (torch.optim.LBFGS, lambda ps: with_closure(Sam)(ps)):
        opt = make(m.parameters())
        with pytest.raises(ValueError,
                match=f'`{type(opt).__name__}` computes loss and gradients again within its step, so that it cannot '
                f'be one of several'):
            OptimList(opt)

@pytest.mark.parametrize('how', ['interrupt','stop','file'])
@pytest.mark.parametrize('name,f',
    [('sam', with_closure(Sam)), ('lbfgs', partial(torch.optim.LBFGS, max_iter=3, lr=.1))])
def test_a_run_with_closures_that_was_stopped_ends_as_one_that_was_not(name, f, how, tmp_path):
    whole,learn = run(mk(f, EMA(.5), model=plain())),stopped(mk(f, EMA(.5), model=plain()), 4, how)
    learn.lr_find(num_it=6, show_plot=False)
    if how=='file':
        learn.save_state(tmp_path/'state')
        learn = mk(f, EMA(.5), model=plain()).load_state(tmp_path/'state')
    learn.resume(cbs=[])
    assert same(weights(whole), weights(learn)) and same(whole.ema.avg, learn.ema.avg)

@pytest.mark.parametrize('name', [*free, 'sam'])
def test_a_rewound_run_and_a_fork_end_as_the_run(name):
    learn = mk(with_closure(Sam), model=plain()) if name=='sam' else mk(free[name])
    expected = weights(run(learn, cbs=Rewind(every=2)))
    learn.rewind(5)
    fork = learn.fork(5)
    assert same(weights(fork.resume()), expected) and same(weights(learn.resume()), expected)

def test_a_wrapped_optimizer_that_would_be_lost_in_a_file_is_told(tmp_path):
    class Forgetful(Sam):
        "Keeps the momentum of another optimizer out of its state"
        state_dict,load_state_dict = torch.optim.Optimizer.state_dict,torch.optim.Optimizer.load_state_dict
    learn = stopped(mk(with_closure(Forgetful), model=plain()), 4, 'interrupt')
    with pytest.warns(UserWarning,
            match='`learn.opt.base`, of type `SGD`, is not saved: the optimizer needs a `state_dict`'):
        learn.save_state(tmp_path/'state')

@frees
def test_a_validation_that_is_a_part_of_training_gives_it_back_exactly(name):
    learn,other,seen = mk(free[name]),run(mk(free[name])),[]
    @on(event.before_batch)
    def f(learn):
        if not learn.training: seen.append(weights(learn))
    run(learn, cbs=[Validate(every=2, unit='iter'), f])
    assert len(seen)>6 and same(weights(learn), weights(other)) and learn.recorder.raw_losses==other.recorder.raw_losses

@frees
def test_the_checkpoint_of_a_fit_that_is_stopped_for_now_is_that_of_the_training(name, tmp_path):
    "It is written when the fit is over"
    whole,learn = run(mk(free[name])),mk(free[name], path=tmp_path)
    ys = {}
    note = on(event.after_batch)(lambda learn: learn.training and ys.update({learn.train_iter: weights(learn)}))
    stopped(learn, 4, 'stop', cbs=[Checkpoint(), note])
    saved = torch.load(next((tmp_path/'checkpoints').glob('*iter4.pt')))['model']
    assert same([*saved.values()], ys[4]) and same(weights(learn), ys[4]) and trained(learn)
    again = mk(free[name], path=tmp_path).fit(2, cbs=[Checkpoint()], resume=True)
    assert same(weights(whole), weights(again)) and not trained(again)

@frees
def test_an_average_that_is_applied_in_the_middle_of_training_is_what_is_used(name):
    learn = stopped(mk(free[name], EMA(decay=.5)), 4, 'interrupt')
    learn.ema.apply()
    assert trained(learn) and gap(used_in(learn, looks['validate']), learn.ema.avg)<1e-6

@pytest.mark.parametrize('moment', ['before_fit','before_epoch'])
def test_an_optimizer_with_two_sets_of_weights_may_be_assigned_in_a_fit(moment):
    "It is in training mode in the epochs that come, and the fit leaves the average"
    def swap(learn):
        if isinstance(learn.opt, ScheduleFree): return
        learn.opt = ScheduleFree(learn.model.parameters(), lr=.5)
    learn,other = mk(torch.optim.SGD, lr=.5),mk(ScheduleFree, lr=.5)
    assert same(weights(run(learn, cbs=on(moment)(swap))), weights(run(other))) and not trained(learn)
