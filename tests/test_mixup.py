"Mixtures of two samples: what is asked of the model is what it is shown, for any loss, and nothing else is touched"
from functools import partial
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.nn import functional as F
from learner.all import *
from parts import shown

n_cls,bs,hw = 4,6,(8,10)
def imgs(n=3, y=None, n_inp=1, seed=0, bs=bs):
    gen = torch.Generator().manual_seed(seed)
    y = y or (lambda: torch.randint(n_cls, (bs,), generator=gen))
    return [(*(torch.randn(bs, 2, *hw, generator=gen) for _ in range(n_inp)), y()) for _ in range(n)]

class Net(nn.Module):
    def __init__(self, n_out=n_cls): super().__init__(); self.lin = nn.Linear(2*hw[0]*hw[1], n_out)
    def forward(self, *xs): return self.lin(sum(xs).flatten(1))

def fixed(cls, lam, **kwargs):
    "Always the same share"
    return type('Fixed', (cls,), dict(draw=lambda self, n: torch.full((n,), lam)))(**kwargs)

class Look(Callback):
    "What the model and the loss get, and what comes of it"
    order,run_valid = 100,False
    def __init__(self): self.seen = []
    def before_batch(self): self.seen.append(dict(batch=self.batch, xb=self.xb, yb=self.yb))
    def after_loss(self):
        self.seen[-1] |= dict(pred=self.pred.detach(), loss=self.loss.detach(), loss_grad=self.loss_grad.detach())

def mk(*cbs, data=None, loss_func=None, n_out=n_cls, valid=True, **kwargs):
    torch.manual_seed(0)
    data = imgs() if data is None else data
    return Learner(DataLoaders(data, imgs(2, seed=1) if valid else None, device='cpu'), Net(n_out),
        loss_func or nn.CrossEntropyLoss(), opt_func=SGD, lr=.1, cbs=cbs, **kwargs).remove_cb(ProgressCallback)

def weights(m): return [p.detach().clone() for p in m.parameters()]
def same(a, b): return all(map(torch.equal, a, b))
def lerp(a, b, lam): return a*lam + b*(1-lam)
def share(cb):
    "That of all samples"
    return cb.lam.unique().item()
both = pytest.mark.parametrize('cls', [MixUp, CutMix])

# Shares
@both
def test_a_share_of_one_changes_nothing(cls):
    a,b = mk(valid=False).fit(2),mk(fixed(cls, 1.), valid=False).fit(2)
    assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses

class Noted(Callback):
    "The permutation, from a generator that goes the same way"
    order,run_valid = -100,False
    def __init__(self): self.perms = []
    def before_batch(self):
        state = torch.get_rng_state()
        self.perms.append(torch.randperm(len(self.xb[0])))
        torch.set_rng_state(state)

def run(cls, lam, **kwargs):
    look,noted = Look(),Noted()
    learn = mk(cb := fixed(cls, lam), look, noted, **kwargs).fit(1)
    return learn,cb,look.seen,noted.perms

@pytest.mark.parametrize('lam', [0., .1, .3, .5, .75])
def test_mixup_inputs_are_weighted_averages(lam):
    data = imgs()
    _,cb,seen,perms = run(MixUp, lam, data=data)
    lam = max(lam, 1-lam)
    for s,p,(x,_) in zip(seen, perms, data, strict=True):
        assert torch.allclose(s['xb'][0], lerp(x, x[p], lam), atol=1e-6)
    assert torch.allclose(cb.lam, torch.full((bs,), lam))

@pytest.mark.parametrize('lam', [0., .1, .3, .5, .75, .99])
def test_cutmix_pastes_one_rectangle_whose_area_is_its_share(lam):
    torch.manual_seed(3)
    data,lams = imgs(20),[]
    learn,cb,seen,perms = run(CutMix, lam, data=data)
    for s,p,(x,y) in zip(seen, perms, data, strict=True):
        mixed = s['xb'][0]
        moved = (mixed!=x).flatten(0, 1).any(0)
        ys,xs = [torch.nonzero(moved.any(d))[:,0].tolist() for d in (1, 0)]
        if ys: # one rectangle, the same in each image and channel, from the partner
            assert ys==list(range(ys[0], ys[-1]+1)) and xs==list(range(xs[0], xs[-1]+1))
            box = slice(ys[0], ys[-1]+1),slice(xs[0], xs[-1]+1)
            assert (torch.equal(mixed[...,*box], x[p][...,*box]) and len(ys)<=round(hw[0]*(1-lam)**.5)+1
                and len(xs)<=round(hw[1]*(1-lam)**.5)+1)
        share = 1-len(ys)*len(xs)/(hw[0]*hw[1])
        assert torch.allclose(s['loss'], lerp(F.cross_entropy(s['pred'], y), F.cross_entropy(s['pred'], y[p]), share),
            atol=1e-6)
        lams.append(share)
    assert min(lams)<=lam+.1 and all(o>=lam-.1 for o in lams)

@given(st.floats(0, 1), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
def test_cutmix_share_is_the_area(lam, seed, h, w):
    torch.manual_seed(seed)
    a,b = torch.zeros(2, 1, h, w),torch.ones(2, 1, h, w)
    (mixed,),share = CutMix().mix((a,), (b,), lam)
    assert share==pytest.approx(1-mixed[0].mean().item(), abs=1e-6) and 0<=share<=1 and not a.any() and b.all()

@both
def test_shares_come_from_a_beta_distribution(cls):
    torch.manual_seed(0)
    for alpha in (.2, 1., 5.):
        draws = cls(alpha).draw(2000).numpy()
        assert (draws.min()>=0 and draws.max()<=1 and draws.mean()==pytest.approx(.5, abs=.03)
            and draws.var()==pytest.approx(1/(4*(2*alpha+1)), rel=.1))
    assert MixUp().alpha==.4 and CutMix().alpha==1.

@both
@pytest.mark.parametrize('alpha', [0, -1, float('nan')])
def test_alpha_is_above_zero(cls, alpha):
    with pytest.raises(ValueError, match='`alpha` is above 0'): cls(alpha)

# Losses
weight = torch.tensor([1., 2., 3., 4.])
def onehot(y): return F.one_hot(y, n_cls).float()

@pytest.mark.parametrize('loss_func,kwargs',
    [(nn.CrossEntropyLoss(), {}), (F.cross_entropy, {}), (CrossEntropyLossFlat(), {}),
        (nn.CrossEntropyLoss(label_smoothing=.2), dict(label_smoothing=.2)),
    (LabelSmoothingCrossEntropy(.2), dict(label_smoothing=.2)),
    (LabelSmoothingCrossEntropyFlat(.2), dict(label_smoothing=.2)),
    (nn.CrossEntropyLoss(reduction='sum'), dict(reduction='sum'))], ids=shown)
def test_classes_as_soft_targets(loss_func, kwargs):
    data = imgs()
    _,cb,seen,perms = run(MixUp, .3, data=data, loss_func=loss_func)
    hard = partial(F.cross_entropy, **kwargs)
    for s,p,(x,y) in zip(seen, perms, data, strict=True):
        assert (torch.allclose(s['loss'], hard(s['pred'], lerp(onehot(y), onehot(y[p]), .7)), atol=1e-5)
            and torch.equal(s['loss'], s['loss_grad']))
        assert s['yb'][0] is s['batch'][1]

@both
@pytest.mark.parametrize('loss_func',
    [nn.CrossEntropyLoss(weight=weight), CrossEntropyLossFlat(weight=weight), nn.CrossEntropyLoss(ignore_index=2),
        partial(F.cross_entropy, ignore_index=2),
    lambda p,y: F.multi_margin_loss(p, y), nn.MultiMarginLoss(), lambda p,y: F.nll_loss(p.log_softmax(1), y)],
    ids=['weight','flat','ignore','partial','lambda','margin','nll'])
def test_any_loss_of_classes_is_the_weighted_sum_of_two(cls, loss_func):
    data = imgs()
    learn,cb,seen,perms = run(cls, .7, data=data, loss_func=loss_func)
    for s,p,(x,y) in zip(seen[-1:], perms[-1:], data[-1:]):
        assert torch.allclose(s['loss'], lerp(loss_func(s['pred'], y), loss_func(s['pred'], y[p]), share(cb)),
            atol=1e-6)
    assert learn.loss_func is loss_func and learn.recorder.raw_losses==pytest.approx([s['loss'].item() for s in seen])

def test_ignored_samples_have_no_gradient():
    "Neither where they are shown, nor where they are the others"
    x,y = imgs(1)[0]
    y[:] = 2
    learn = mk(fixed(MixUp, .7), data=[(x, y)], loss_func=nn.CrossEntropyLoss(ignore_index=2, reduction='sum'))
    before = weights(learn.model)
    assert same(before, weights(learn.fit(1).model))

@both
@pytest.mark.parametrize('loss_func',
    [nn.BCEWithLogitsLoss(), BCEWithLogitsLossFlat(), nn.MSELoss(), MSELossFlat(), F.l1_loss], ids=shown)
def test_numbers_are_averaged(cls, loss_func):
    data = imgs(y=lambda: torch.rand(bs, n_cls).round())
    learn,cb,seen,perms = run(cls, .7, data=data, loss_func=loss_func, valid=False)
    for s,p,(x,y) in zip(seen[-1:], perms[-1:], data[-1:]):
        assert (torch.allclose(s['yb'][0], lerp(y, y[p], share(cb)))
            and torch.allclose(s['loss'], loss_func(s['pred'], lerp(y, y[p], share(cb)))))

def test_integer_targets_of_a_float_loss():
    "`BCEWithLogitsLossFlat` takes integers: their losses are mixed"
    data = imgs(y=lambda: torch.randint(2, (bs, n_cls)))
    _,cb,seen,perms = run(MixUp, .3, data=data, loss_func=BCEWithLogitsLossFlat(), valid=False)
    for s,p,(x,y) in zip(seen, perms, data):
        assert torch.allclose(s['loss'],
            F.binary_cross_entropy_with_logits(s['pred'], lerp(y.float(), y[p].float(), .7)), atol=1e-6)

def test_gradients_are_those_of_the_mixed_loss():
    data = imgs(1)
    learn,_,_,perms = run(MixUp, .3, data=data, valid=False)
    torch.manual_seed(0)
    model,(x,y),p = Net(),data[0],perms[0]
    F.cross_entropy(model(lerp(x, x[p], .7)), lerp(onehot(y), onehot(y[p]), .7)).backward()
    assert all(torch.allclose(a.detach(), b-.1*b.grad, atol=1e-6)
        for a,b in zip(learn.model.parameters(), model.parameters()))

# Batches
@both
def test_inputs_and_targets_of_several_kinds(cls):
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(bs, 2, *hw, generator=gen), torch.randn(bs, 2, *hw, generator=gen),
        torch.randint(n_cls, (bs,), generator=gen), torch.rand(bs, n_cls, generator=gen)) for _ in range(3)]
    def loss(pred, c, v): return F.cross_entropy(pred, c) + F.mse_loss(pred, v)
    look,noted = Look(),Noted()
    torch.manual_seed(0)
    Learner(DataLoaders(data, device='cpu', n_inp=2), Net(), loss, opt_func=SGD,
        cbs=[fixed(cls, .7), look, noted]).remove_cb(ProgressCallback).fit(1)
    for s,p,(a,b,c,v) in zip(look.seen, noted.perms, data, strict=True):
        if cls is MixUp:
            assert (torch.allclose(s['xb'][0], lerp(a, a[p], .7), atol=1e-6)
                and torch.allclose(s['xb'][1], lerp(b, b[p], .7), atol=1e-6))
        else: # the same rectangle in both
            same_box = [(m!=o).flatten(0, 1).any(0) for m,o in zip(s['xb'], (a, b))]
            assert torch.equal(*same_box) and same_box[0].any()
        lam = 1-same_box[0].float().mean().item() if cls is CutMix else .7
        mixed = lerp(v, v[p], lam)
        assert (torch.allclose(s['yb'][1], mixed, atol=1e-6)
            and torch.allclose(s['loss'], lerp(loss(s['pred'], c, mixed), loss(s['pred'], c[p], mixed), lam),
                atol=1e-5))

@both
def test_batch_of_one(cls):
    a,b = mk(data=imgs(3, bs=1), valid=False).fit(1),mk(fixed(cls, .4), data=imgs(3, bs=1), valid=False).fit(1)
    assert all(torch.allclose(x, y, atol=1e-6) for x,y in zip(weights(a.model), weights(b.model))) # mixed with itself

@both
def test_batches_are_not_changed(cls):
    data = imgs()
    copies,ids = [[o.clone() for o in b] for b in data],[list(map(id, b)) for b in data]
    look = Look()
    mk(cls(), look, data=data).fit(2)
    assert all(same(a, b) for a,b in zip(data, copies)) and [list(map(id, b)) for b in data]==ids
    assert all(s['batch'] is b for s,b in zip(look.seen, data*2)) # as drawn

@both
def test_data_of_which_batches_are_views_are_not_changed(cls):
    x,y = torch.randn(18, 2, *hw),torch.randint(n_cls, (18,))
    copies = x.clone(),y.clone()
    mk(cls(), data=list(zip(x.split(6), y.split(6))), valid=False).fit(2)
    assert same((x, y), copies)

@both
@pytest.mark.parametrize('data', [[dict(x=torch.ones(2,3), labels=torch.ones(2))], [torch.ones(2,3)]],
    ids=['mapping','no targets'])
def test_what_cannot_be_mixed_says_so(cls, data):
    class Own(Net):
        def forward(self, x, labels=None): return self.lin.weight.sum()
    with pytest.raises(ValueError, match=f'`{cls.__name__}` needs batches of inputs and targets'):
        Learner(DataLoaders(data, device='cpu'), Own(), opt_func=SGD, cbs=cls).remove_cb(ProgressCallback).fit(1)

@both
def test_what_has_other_samples_says_so(cls):
    with pytest.raises(ValueError,
            match=rf'`{cls.__name__}` mixes samples along the first axis, which has 6, but a tensor of the batch has '
            rf'shape \(4,\)'):
        mk(cls(), data=[(torch.randn(6, 2, *hw), torch.randint(n_cls, (4,)))]).fit(1)

@both
def test_only_training_is_mixed(cls):
    learn = mk(cls(), metrics=accuracy).fit(1)
    plain = mk(metrics=accuracy)
    plain.model.load_state_dict(learn.model.state_dict())
    assert (dict(plain.validate())==dict(learn.validate()) and learn.recorder['valid_loss'][-1]==plain.validate()[0]
        and same(plain.get_preds(), learn.get_preds()))

@both
def test_two_fits_with_the_same_seed_are_the_same(cls):
    assert same(*(weights(mk(cls()).fit(2).model) for _ in range(2)))

def test_the_device_is_not_read():
    "Tensors without values: who reads one fails"
    for cls in (MixUp, CutMix):
        learn = Learner(DataLoaders([tuple(o.to('meta') for o in b) for b in imgs(5)], device='meta'), Net(),
            nn.CrossEntropyLoss(), opt_func=SGD, cbs=[TrainEvalCallback, cls()], default_cbs=False)
        assert learn.fit(1).opt_step==5

# What others have added
class Decay(Callback):
    run_valid = False
    def after_loss(self): self.learn.loss_grad = self.learn.loss_grad + self.learn.model.lin.weight.pow(2).sum()

class Adds(Callback):
    run_valid = False
    def after_loss(self): self.learn.loss,self.learn.loss_grad = self.loss+1000,self.loss_grad+1000

@pytest.mark.parametrize('cbs', [lambda: CutMix(), lambda: MixUp(by_sample=False), lambda: MixUp()])
def test_shares_are_those_of_the_loss_and_not_of_what_others_have_added(cbs):
    def run(*first): return mk(*first, cbs(), valid=False).fit(2).recorder.raw_losses
    assert run(Adds())==pytest.approx([o+1000 for o in run()], abs=1e-3)

@both
@pytest.mark.parametrize('y', [None, lambda: torch.rand(bs, n_cls)], ids=['classes','numbers'])
def test_what_is_added_to_the_loss_stays(cls, y):
    "Whichever comes first"
    data = imgs(y=y)
    runs = [mk(*cbs, data=data, valid=False).fit(2)
        for cbs in ((fixed(cls, .7), Decay()), (Decay(), fixed(cls, .7)), (fixed(cls, .7),))]
    a,b,plain = (weights(o.model) for o in runs)
    assert (all(torch.allclose(x, z, atol=1e-6) for x,z in zip(a, b)) and not torch.allclose(a[0], plain[0], atol=1e-3)
        and runs[0].recorder.raw_losses==pytest.approx(runs[1].recorder.raw_losses, abs=1e-6))

@pytest.mark.parametrize('cbs,match',
    [([MixUp, CutMix], '`cut_mix` and `mix_up` would both mix the batch'),
        ([MixUp(.2), MixUp(.4)], '`mix_up_2` and `mix_up` would both mix the batch: use one of them')])
def test_one_mixture_at_a_time(cbs, match):
    trace = Trace('before_epoch')
    with pytest.raises(ValueError, match=match): mk(trace).fit(1, cbs=cbs)
    assert not trace.seen
    learn = mk(MixUp(), CutMix())
    learn.mix_up.run = False
    assert learn.fit(1).opt_step==3

class Brings(Callback):
    "Adds a callback within the first batch"
    run_valid = False
    def __init__(self, cb, ev): self.cb,self._fns = cb,{ev: Brings.add}
    def add(self):
        if self.cb.learn is None: self.learn.add_cb(self.cb)

@both
@pytest.mark.parametrize('pieces', [False,True])
@pytest.mark.parametrize('ev', ['before_batch','after_pred','after_loss'])
def test_what_comes_within_a_batch_begins_with_the_next(cls, ev, pieces):
    look = Look()
    learn = mk(look, Brings(fixed(cls, .75), ev), *[MicroBatch(3)]*pieces).fit(1)
    plain = [all(map(torch.equal, o['xb'], o['batch'])) for o in look.seen]
    assert learn.opt_step==3 and plain==[True,False,False]

@both
def test_terms_of_a_loss_of_two_targets_are_refused(cls):
    class Terms(nn.Module):
        def forward(self, pred, y): self.size = pred.square().mean(); return self.size+self.of(pred, y)
    def learner(of, **kwargs):
        Terms.of = staticmethod(of)
        learn = mk(loss_func=Terms(), metrics=LossMetrics('size'), valid=False, **kwargs)
        return learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=True))
    with pytest.raises(ValueError, match=f'`{cls.__name__}` mixes the losses for two targets, and `size` of the loss '
            f'would be that for one of them: leave out `{cls.__name__}`, or the `LossMetric` of training'):
        learner(F.cross_entropy).fit(1, cbs=cls())
    numbers = imgs(1, y=lambda: torch.rand(bs, n_cls))
    assert learner(F.mse_loss, data=numbers).fit(1, cbs=cls()).opt_step==1 # targets are mixed, and there is one loss

# Nested batches
class Nested(Net):
    def forward(self, a, more): return self.lin((a+more['b']+more['c'][0]).flatten(1))

@both
def test_nested_inputs_and_targets(cls):
    gen = torch.Generator().manual_seed(0)
    def img(): return torch.randn(bs, 2, *hw, generator=gen)
    data = [((img(), dict(b=img(), c=[img(), 'name', torch.tensor(1.)])),
        dict(cl=torch.randint(n_cls, (bs,), generator=gen), num=[torch.rand(bs, n_cls, generator=gen)]))
        for _ in range(3)]
    def loss(pred, t): return F.cross_entropy(pred, t['cl']) + F.mse_loss(pred, t['num'][0])
    look,noted = Look(),Noted()
    torch.manual_seed(0)
    cb = fixed(cls, .7)
    Learner(DataLoaders(data, device='cpu', split=lambda b: (b[0], (b[1],))), Nested(), loss, opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    for s,p,(x,t) in zip(look.seen, noted.perms, data, strict=True):
        (a,more),(y,) = s['xb'],s['yb']
        ins = (a, x[0]),(more['b'], x[1]['b']),(more['c'][0], x[1]['c'][0])
        if cls is MixUp: assert all(torch.allclose(m, lerp(o, o[p], .7), atol=1e-6) for m,o in ins)
        else:
            boxes = [(m!=o).flatten(0, 1).any(0) for m,o in ins]
            assert (all(torch.equal(boxes[0], o) for o in boxes)
                and all(torch.equal(m, torch.where(boxes[0], o[p], o)) for m,o in ins))
        lam = .7 if cls is MixUp else 1-boxes[0].float().mean().item()
        mixed = lerp(t['num'][0], t['num'][0][p], lam)
        assert (torch.allclose(y['num'][0], mixed, atol=1e-6) and torch.equal(y['cl'], t['cl'])
            and more['c'][1:]==['name', torch.tensor(1.)])
        assert torch.allclose(s['loss'],
            lerp(loss(s['pred'], dict(t, num=[mixed])), loss(s['pred'], dict(cl=t['cl'][p], num=[mixed])), lam),
            atol=1e-5)

def test_cutmix_wants_images():
    class Flat(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(5, n_cls)
        def forward(self, x): return self.lin(x)
    learn = Learner(DataLoaders([(torch.randn(bs, 5), torch.randint(n_cls, (bs,)))], device='cpu'), Flat(),
        nn.CrossEntropyLoss(), cbs=CutMix).remove_cb(ProgressCallback)
    with pytest.raises(ValueError,
            match=r'pastes pieces of images, `\(bs, …, height, width\)`, but inputs have shape \(6, 5\): `MixUp` '
            r'mixes anything'):
        learn.fit(1)

def test_the_first_image_says_how_large_all_are():
    class Both(nn.Module):
        def __init__(self): super().__init__(); self.a,self.b = nn.Linear(5, n_cls),nn.Linear(2*hw[0]*hw[1], n_cls)
        def forward(self, v, img): return self.a(v)+self.b(img.flatten(1))
    gen = torch.Generator().manual_seed(0)
    data = [(torch.randn(bs, 5, generator=gen), torch.randn(bs, 2, *hw, generator=gen),
        torch.randint(n_cls, (bs,), generator=gen)) for _ in range(3)]
    look,noted,cb = Look(),Noted(),fixed(CutMix, .5)
    torch.manual_seed(0)
    Learner(DataLoaders(data, device='cpu', n_inp=2), Both(), nn.CrossEntropyLoss(), opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    for s,p,(v,img,y) in zip(look.seen, noted.perms, data, strict=True):
        box = (s['xb'][1]!=img).flatten(0, 1).any(0)
        share = 1-box.float().mean().item()
        assert (torch.equal(s['xb'][0], v) and share<1
            and torch.allclose(s['loss'], lerp(F.cross_entropy(s['pred'], y), F.cross_entropy(s['pred'], y[p]), share),
                atol=1e-5))

@pytest.mark.parametrize('alpha,exc',
    [('a', TypeError), (None, TypeError), (0, ValueError), (-1, ValueError), (float('nan'), ValueError)])
def test_bad_alpha(alpha, exc):
    for cls in (MixUp, CutMix, MixHandler):
        with pytest.raises(exc, match='`alpha` is .*above 0, but got'): cls(alpha)

# However it ends
@pytest.mark.sample(8)
@both
@pytest.mark.parametrize('order', [-5, 5])
@pytest.mark.parametrize('exc', [*cancels.values(), ValueError, KeyboardInterrupt], ids=lambda o: o.__name__)
@pytest.mark.parametrize('ev',
    ['before_fit','before_epoch','before_train','before_batch','after_pred','after_loss','before_backward',
        'before_step','after_batch','before_validate'])
def test_the_loss_is_left_alone(cls, ev, exc, order):
    cb = cls()
    learn = mk(cb)
    loss_func = learn.loss_func
    learn.create_opt()
    try: learn.fit(1, cbs=Raise(ev, exc, 2 if 'batch' in ev or 'loss' in ev else 1, order=order))
    except (ValueError, KeyboardInterrupt, RuntimeError): pass
    assert learn.loss_func is loss_func and getattr(cb, 'others', None) is None
    learn.remove_cb(cb).fit(1) # without it, nothing of it

@both
@pytest.mark.parametrize('ev', ['before_batch','after_pred','after_loss','before_step'])
def test_a_look_inside_a_batch_leaves_it_as_it_is(cls, ev):
    class LookIn(Callback):
        run_valid,order = False,20
        def look(self): self.learn.validate(); self.learn.get_preds(0)
    cb = LookIn(); cb._fns = {ev: LookIn.look}
    a,b = mk(cls()).fit(2),mk(cls(), cb).fit(2)
    assert same(weights(a.model), weights(b.model)) and a.recorder.losses==b.recorder.losses

@both
def test_a_batch_cancelled_before_its_loss_does_not_count(cls):
    def cancel(self):
        if self.training and self.iter==1: raise CancelBatchException
    learn = mk(cls(), Callback(after_pred=cancel)).fit(1)
    assert learn.opt_step==len(learn.recorder.losses)==2

@pytest.mark.parametrize('mode', ['to_bf16','to_fp16'])
@both
def test_with_mixed_precision(cls, mode):
    a,b = mk(cls()).fit(2),getattr(mk(cls()), mode)().fit(2)
    assert a.recorder.losses==pytest.approx(b.recorder.losses, rel=.05) and b.opt_step==6

def test_a_mixture_of_your_own():
    "A handler that only says how to mix"
    class Halves(MixHandler):
        def mix(self, x, other, lam): return tuple(torch.cat([a[...,:5], b[...,5:]], -1) for a,b in zip(x, other)),.5
    look,noted,data = Look(),Noted(),imgs()
    mk(Halves(1.), look, noted, data=data).fit(1)
    for s,p,(x,y) in zip(look.seen, noted.perms, data):
        assert torch.allclose(s['loss'], lerp(F.cross_entropy(s['pred'], y), F.cross_entropy(s['pred'], y[p]), .5),
            atol=1e-6)

# A share for each sample
def by_hand(cb, s, p, y, weight=None, ignore=None, one=F.cross_entropy, summed=False):
    "The loss of a batch, one pair of sample and target after the other"
    total,n = 0.,0.
    for i,pred in enumerate(s['pred']):
        for t,share in ((y[i], cb.lam[i]), (y[p[i]], 1-cb.lam[i])):
            kept = 0. if t==ignore else 1. if weight is None else weight[t]
            total += share*kept*one(pred[None], t[None])
        n += 0. if y[i]==ignore else 1. if weight is None else weight[y[i]]
    return total if summed else total/n

class OwnMargin(nn.Module):
    "A loss of a user's, with a reduction, of which it is said that it averages over samples"
    reduction,n_items = 'mean',staticmethod(len)
    def forward(self, pred, y): return F.multi_margin_loss(pred, y, reduction=self.reduction)

smooth = partial(F.cross_entropy, label_smoothing=.2)
asked = dict(cross_entropy=(nn.CrossEntropyLoss(), {}), function=(F.cross_entropy, {}),
    partial=(partial(F.cross_entropy, ignore_index=2), dict(ignore=2)),
    flat=(CrossEntropyLossFlat(weight=weight), dict(weight=weight)),
    weight=(nn.CrossEntropyLoss(weight=weight), dict(weight=weight)),
    both=(nn.CrossEntropyLoss(weight=weight, ignore_index=1), dict(weight=weight, ignore=1)),
    sum=(nn.CrossEntropyLoss(weight=weight, reduction='sum'), dict(weight=weight, summed=True)),
    smooth=(nn.CrossEntropyLoss(label_smoothing=.2), dict(one=smooth)),
    ours=(LabelSmoothingCrossEntropy(.2), dict(one=smooth)),
    ours_sum=(LabelSmoothingCrossEntropyFlat(.2, reduction='sum'), dict(one=smooth, summed=True)),
    focal=(FocalLoss(1.), dict(one=lambda p,t: (1-p.softmax(1)[0,t])*F.cross_entropy(p, t))),
    margin=(nn.MultiMarginLoss(), dict(one=F.multi_margin_loss)), own=(OwnMargin(), dict(one=F.multi_margin_loss)))
@pytest.mark.parametrize('name', asked)
def test_each_sample_has_its_own_share(name):
    loss_func,kwargs = asked[name]
    data,look,noted,cb = imgs(1, seed=4),Look(),Noted(),MixUp(1.)
    mk(cb, look, noted, data=data, loss_func=loss_func, valid=False).fit(1)
    (x,y),s,p = data[0],look.seen[0],noted.perms[0]
    assert cb.lam.shape==(bs,) and len(cb.lam.unique())==bs and .5<=cb.lam.min() and cb.lam.max()<=1
    for i in range(bs): assert torch.allclose(s['xb'][0][i], lerp(x[i], x[p[i]], cb.lam[i].item()), atol=1e-6)
    assert torch.allclose(s['loss'], by_hand(cb, s, p, y, **kwargs).float(), atol=1e-5)

def test_gradients_are_those_of_each_samples_mixture():
    data,noted,cb = imgs(1),Noted(),MixUp(1.)
    learn = mk(cb, noted, data=data, valid=False).fit(1)
    torch.manual_seed(0)
    model,(x,y),p = Net(),data[0],noted.perms[0]
    w,v = cb.lam[:,None,None,None],cb.lam[:,None]
    F.cross_entropy(model(w*x+(1-w)*x[p]), v*onehot(y)+(1-v)*onehot(y[p])).backward()
    assert all(torch.allclose(a.detach(), b-.1*b.grad, atol=1e-6)
        for a,b in zip(learn.model.parameters(), model.parameters()))

@pytest.mark.parametrize('reduction,n', [('mean', bs*15), ('sum', 1)])
def test_each_pixel_has_the_share_of_its_sample(reduction, n):
    "Of a segmentation with a loss for pixels"
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(bs, 2, 3, 5, generator=gen),torch.randint(n_cls, (bs,3,5), generator=gen)
    look,noted,cb = Look(),Noted(),MixUp(1.)
    torch.manual_seed(0)
    Learner(DataLoaders([(x, y)], device='cpu'), nn.Conv2d(2, n_cls, 1),
        CrossEntropyLossFlat(axis=1, reduction=reduction), opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    s,p = look.seen[0],noted.perms[0]
    soft = torch.stack([lam*onehot(y[i])+(1-lam)*onehot(y[p[i]]) for i,lam in enumerate(cb.lam)])
    assert torch.allclose(s['loss'], -(soft.movedim(-1, 1)*s['pred'].log_softmax(1)).sum()/n,
        atol=1e-3 if n==1 else 1e-5)

def test_numbers_have_the_share_of_their_sample():
    "With any loss, even one that has no reduction"
    data,look,noted,cb = imgs(1, y=lambda: torch.rand(bs, n_cls)),Look(),Noted(),MixUp(1.)
    mk(cb, look, noted, data=data, loss_func=lambda p,y: (p-y).abs().max(), valid=False).fit(1)
    y,s,p = data[0][1],look.seen[0],noted.perms[0]
    assert cb.lam.shape==(bs,) and torch.allclose(s['yb'][0], y*cb.lam[:,None]+y[p]*(1-cb.lam[:,None]), atol=1e-6)

def own_weighted(p, y, reduction='mean'): return F.cross_entropy(p, y, weight=weight, reduction=reduction)
class OwnMean(nn.CrossEntropyLoss):
    "Averages over what counts, as the class that it inherits from does not"
    def forward(self, p, y):
        losses = F.cross_entropy(p, y, reduction='none')[y!=1]
        return losses.mean() if self.reduction=='mean' else losses

@pytest.mark.parametrize('loss_func', [lambda p,y: F.cross_entropy(p, y),
    LabelSmoothingCrossEntropy(.2, weight=weight), own_weighted, OwnMean()],
    ids=['function','two means','function with a reduction','class of your own'])
def test_a_loss_that_only_averages_has_one_share(loss_func):
    "Or one of which nothing says what its mean is divided by"
    data,look,noted,cb = imgs(1),Look(),Noted(),MixUp(1.)
    mk(cb, look, noted, data=data, loss_func=loss_func).fit(1)
    y,s,p = data[0][1],look.seen[0],noted.perms[0]
    assert (cb.lam.shape==()
        and torch.allclose(s['loss'], lerp(loss_func(s['pred'], y), loss_func(s['pred'], y[p]), cb.lam), atol=1e-6))
    with pytest.raises(ValueError, match='`by_sample` needs a loss for each sample, but `.*` has only one for the '
            'batch.* one of your own with a `reduction`, if an attribute `n_items` says what its mean is divided by'):
        mk(data=data, loss_func=loss_func).fit(1, cbs=MixUp(by_sample=True))

@pytest.mark.parametrize('cbs', [[], [MicroBatch(4)], [GradientAccumulation(bs)]], ids=['whole','pieces','accumulated'])
def test_a_function_that_says_its_items_has_the_losses_of_the_same_loss_of_torch(cbs):
    def own(p, y, reduction='mean'): return own_weighted(p, y, reduction)
    own.n_items = lambda y: weight[y].sum()
    learns = [mk(MixUp(1.), *cbs, loss_func=f).fit(2) for f in (own, nn.CrossEntropyLoss(weight=weight))]
    a,b = (o.recorder.raw_losses for o in learns)
    assert learns[0].mix_up.lam.ndim and a==pytest.approx(b)

class Letters(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(10, 6*n_cls)
    def forward(self, x): return self.lin(x).view(len(x), 6, n_cls).log_softmax(2).transpose(0, 1)

def test_losses_that_are_divided_by_lengths_have_one_share():
    torch.manual_seed(0)
    batch = torch.randn(bs, 10),torch.randint(1, n_cls, (bs, 3)),torch.full((bs,), 6),torch.tensor([1,2,3,1,2,3])
    look,noted,cb = Look(),Noted(),MixUp(1.)
    Learner(DataLoaders([batch], device='cpu', n_inp=1), Letters(), nn.CTCLoss(), opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    s,y = look.seen[0],batch[1:]
    other = [o[noted.perms[0]] for o in y]
    assert torch.allclose(s['loss'], lerp(F.ctc_loss(s['pred'], *y), F.ctc_loss(s['pred'], *other), share(cb)))

def test_one_share_on_demand():
    for cb in (MixUp(by_sample=False), CutMix()):
        mk(cb).fit(1)
        assert isinstance(cb.lam, torch.Tensor) and cb.lam.shape==()
    with pytest.raises(TypeError, match="`by_sample` is True or False, but got 'yes'"): MixUp(by_sample='yes')

def test_a_reduction_that_is_not_used_says_so():
    class Averages(nn.Module):
        reduction,n_items = 'mean',staticmethod(len)
        def forward(self, pred, y): return F.cross_entropy(pred, y)
    with pytest.raises(ValueError,
            match=r"`Averages` has no loss for each sample: of 6 samples, with `reduction='none'`, it has shape "
            r"\(\)\. `MixUp\(by_sample=False\)` needs one"):
        mk(loss_func=Averages()).fit(1, cbs=MixUp)
    assert mk(loss_func=Averages()).fit(1, cbs=MixUp(by_sample=False)).opt_step==3

def test_shares_of_samples_are_those_of_the_larger_halves():
    lams,cb = [],MixUp(.4)
    mk(cb, Callback(after_batch=lambda cb: cb.training and lams.append(cb.mix_up.lam)), data=imgs(300)).fit(1)
    draws = np.random.default_rng(0).beta(.4, .4, 10**5)
    assert (torch.cat(lams).mean().item()==pytest.approx(np.maximum(draws, 1-draws).mean(), abs=.02)
        and len(torch.cat(lams).unique())>1700)

@pytest.mark.parametrize('loss_func',
    [nn.CrossEntropyLoss(weight=weight, ignore_index=2), nn.CrossEntropyLoss(reduction='sum')], ids=['weight','sum'])
def test_pieces_of_a_batch_keep_their_shares(loss_func):
    a,b = (mk(MixUp(1.), *cbs, loss_func=loss_func, valid=False).fit(2) for cbs in ((), (MicroBatch(4),)))
    assert (all(torch.allclose(x, y, atol=1e-5) for x,y in zip(weights(a.model), weights(b.model)))
        and a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, abs=1e-5))

def kept(learn): return (learn.y!=-100).sum()
def mean_of_kept(p, t): return F.cross_entropy(p, t.clamp(0), reduction='none')[t!=-100].sum()/(t!=-100).sum()
class MeanOfKept(nn.Module):
    def forward(self, p, t): return mean_of_kept(p, t)
    def n_items(self, t): return (t!=-100).sum()

@pytest.mark.parametrize('loss,count', [(nn.CrossEntropyLoss(), None), (nn.CrossEntropyLoss(reduction='sum'), None),
    (nn.CrossEntropyLoss(weight=weight*torch.tensor([0.,1,1,1])), None), (FocalLoss(), None), (MeanOfKept(), None),
    (mean_of_kept, kept), (mean_of_kept, lambda learn: kept(learn).item())],
    ids=['mean','sum','weight','focal','items','count','number'])
@pytest.mark.parametrize('make', [lambda: MixUp(), lambda: MixUp(by_sample=False), lambda: CutMix()],
    ids=['samples','batch','cut'])
@pytest.mark.parametrize('n', [4, 3, 1])
def test_pieces_in_which_only_some_targets_count(loss, count, make, n):
    "A piece may have targets that count in the first samples only, in the others only, or in none"
    data = imgs(2, lambda: torch.tensor([0,1,2,0,-100,-100,-100,-100]), bs=8)
    a,b = (mk(make(), *cbs, loss_func=loss, data=data, valid=False).fit(2) for cbs in ((), (MicroBatch(n, count),)))
    assert (all(torch.allclose(x, y, atol=1e-6) for x,y in zip(weights(a.model), weights(b.model)))
        and a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, abs=1e-5))

@pytest.mark.parametrize('dtype', [torch.float64, torch.float16, torch.bfloat16])
def test_mixtures_keep_their_type(dtype):
    x = torch.rand(4, 3, dtype=dtype)
    (mixed,),lam = MixUp().mix((x,), (x.flip(0),), torch.rand(4))
    assert (mixed.dtype is dtype
        and torch.allclose(mixed.double(), lam.double()[:,None]*x+(1-lam.double()[:,None])*x.flip(0), atol=1e-2))

@both
@pytest.mark.parametrize('at', [1, 4, 6])
def test_a_stopped_fit_resumes_with_the_same_shares(cls, at):
    def made(): return mk(cls(), data=imgs(5))
    def stop(learn):
        if learn.training and learn.train_iter==at: learn.at_pause(interrupt, stops=True)
    def interrupt(): raise KeyboardInterrupt
    whole,learn = made().fit(2),made()
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=on(event.after_batch)(stop))
    torch.manual_seed(99)
    learn.resume(cbs=[])
    assert same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses
    name = 'mix_up' if cls is MixUp else 'cut_mix'
    assert torch.equal(getattr(whole, name).lam, getattr(learn, name).lam)

# Masks
@pytest.mark.parametrize('float_mask', [False, True])
def test_cutmix_pastes_masks(float_mask):
    "The same rectangle into image and mask; no loss is mixed"
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(bs, 2, *hw, generator=gen),torch.randint(n_cls, (bs,*hw), generator=gen)
    targ = y[:,None].float() if float_mask else y
    loss_func = (lambda p,t: F.mse_loss(p[:,:1], t)) if float_mask else nn.CrossEntropyLoss()
    look,noted,cb = Look(),Noted(),fixed(CutMix, .6)
    torch.manual_seed(0)
    Learner(DataLoaders([(x, targ)], device='cpu'), nn.Conv2d(2, n_cls, 1), loss_func, opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    s,p = look.seen[0],noted.perms[0]
    box = (s['xb'][0]!=x).flatten(0, 1).any(0)
    assert 0<box.float().mean()<1 and torch.equal(s['yb'][0], torch.where(box, targ[p], targ)) and cb.others is None
    assert (torch.equal(s['loss'], loss_func(s['pred'], s['yb'][0]))
        and cb.lam.item()==pytest.approx(1-box.float().mean().item()))
    assert torch.equal(look.seen[0]['batch'][1], targ) # which is not changed

def test_cutmix_of_a_mask_and_a_class():
    "The mask is pasted, and the loss of the class is mixed"
    gen = torch.Generator().manual_seed(0)
    x,m,c = torch.randn(bs, 2, *hw, generator=gen),torch.randint(n_cls, (bs,*hw), generator=gen),torch.randint(n_cls,
        (bs,), generator=gen)
    def loss(p, m, c): return F.cross_entropy(p, m)+F.cross_entropy(p.mean((2,3)), c)
    look,noted,cb = Look(),Noted(),fixed(CutMix, .6)
    torch.manual_seed(0)
    Learner(DataLoaders([(x, m, c)], device='cpu', n_inp=1), nn.Conv2d(2, n_cls, 1), loss, opt_func=SGD,
        cbs=[cb, look, noted]).remove_cb(ProgressCallback).fit(1)
    s,p = look.seen[0],noted.perms[0]
    pasted = torch.where((s['xb'][0]!=x).flatten(0, 1).any(0), m[p], m)
    assert (torch.equal(s['yb'][0], pasted)
        and torch.allclose(s['loss'], lerp(loss(s['pred'], pasted, c), loss(s['pred'], pasted, c[p]), cb.lam.item()),
            atol=1e-6))

@pytest.mark.parametrize('loss',
    [lambda r: DiceLoss(reduction=r), lambda r: nn.MultiMarginLoss(reduction=r),
        lambda r: nn.KLDivLoss(reduction='batchmean' if r=='mean' else r)], ids=['dice','margin','batchmean'])
@pytest.mark.parametrize('reduction', ['mean','sum'])
def test_shares_of_1_give_the_loss_itself(loss, reduction):
    "With losses whose mean is over samples, though each sample has several numbers"
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(6, 3, generator=gen),torch.randint(0, 4, (6,), generator=gen)
    f = loss(reduction)
    if isinstance(f, nn.KLDivLoss): y = torch.rand(6, 4, generator=gen).softmax(1)
    model,seen = nn.Linear(3, 4),[]
    class All(MixUp):
        def draw(self, n): return torch.ones(n)
    learn = Learner(DataLoaders([(x, y)], device='cpu'), model, f, lr=0.,
        cbs=[All(), Callback(after_batch=lambda cb: seen.append(cb.loss.item()))]).remove_cb(ProgressCallback)
    expected = f(model(x), y).item()
    learn.fit(1)
    assert seen==[pytest.approx(expected, rel=1e-5)]

class EverySecond(MixUp):
    def before_batch(self):
        if self.learn.iter%2==0: super().before_batch()
class Later(MixUp):
    others,lam = None,torch.ones(())
    def before_batch(self):
        if self.learn.epoch: super().before_batch()
@pytest.mark.parametrize('cls', [EverySecond, Later])
def test_batches_that_are_not_mixed_can_be_cut_into_pieces(cls):
    whole,pieces = (mk(cls(), *cbs).fit(2) for cbs in ([], [MicroBatch(4)]))
    for p,o in zip(pieces.model.parameters(), whole.model.parameters()): torch.testing.assert_close(p, o)

# Inputs that are no floats
def floats_of(o): return o.abs().float() if o.is_complex() else o.float()

class AnyNet(Net):
    def forward(self, *xs): return super().forward(*map(floats_of, xs))

def any_inputs(f, n=2):
    "Batches whose inputs are made by `f` of a tensor of floats"
    return [(*f(x), y) for x,y in imgs(n)]

@pytest.mark.parametrize('dtype', [torch.uint8, torch.int64, torch.bool])
def test_inputs_that_cannot_be_averaged_are_refused_before_training(dtype):
    "Targets would be mixed, and inputs would not"
    learn = mk(MixUp, data=any_inputs(lambda x: (x.abs().to(dtype),)))
    learn.model = AnyNet()
    before = weights(learn.model)
    with pytest.raises(ValueError, match=rf"`MixUp` averages floating point inputs, .* are {dtype}, .*make floats"):
        learn.fit(1, reset_opt=True)
    assert same(before, weights(learn.model))

@pytest.mark.parametrize('f', [lambda x: (x.byte(), x[:1]), lambda x: (x.byte(), x.mean())])
def test_floats_for_all_samples_do_not_make_a_mixture(f):
    with pytest.raises(ValueError, match='are torch.uint8'): mk(MixUp, data=any_inputs(f)).fit(1)

def test_integers_beside_floats_stay_as_they_are():
    look,mix = Look(),MixUp()
    data = any_inputs(lambda x: (x, x.abs().byte()))
    learn = mk(mix, look, data=data)
    learn.model = AnyNet()
    learn.fit(1, reset_opt=True)
    for o,(x,ids,_) in zip(look.seen, data): assert torch.equal(o['xb'][1], ids) and not torch.equal(o['xb'][0], x)

def test_complex_inputs_and_targets_are_averaged():
    data,noted,look,mix = any_inputs(lambda x: (torch.complex(x, x.flip(0)),), 1),Noted(),Look(),fixed(MixUp, .7)
    learn = mk(noted, mix, look, data=data)
    learn.model = AnyNet()
    learn.fit(1, reset_opt=True)
    x,perm = data[0][0],noted.perms[0]
    assert look.seen[0]['xb'][0].dtype is torch.complex64
    torch.testing.assert_close(look.seen[0]['xb'][0], lerp(x, x[perm], .7))
