"""`loss` is logged and `loss_grad` is differentiated: where a callback can change one in place, it does not change the
other"""
import pytest,torch
from torch.nn import functional as F
from learner.all import *
from small_fits import cut,mk,weights,X,Y

def plus(ev):
    "Adds 1 to `loss_grad`, in place, as fastai's own callbacks do"
    class Plus(Callback):
        run_valid = False
        def add(self): self.learn.loss_grad += 1
    setattr(Plus, ev, Plus.add)
    return Plus()

def losses(*cbs, **kwargs):
    learn = mk(*cbs, **kwargs).fit(2)
    return learn.recorder.raw_losses,learn.recorder.rows[-1].train_loss,weights(learn.model)

@pytest.mark.parametrize('ev', ['after_loss', 'before_backward'])
@pytest.mark.parametrize('more',
    [(), (GradientClip,), (lambda: MicroBatch(4),), (lambda: GradientAccumulation(20),), (MixUp,)],
    ids=['alone','clip','micro','accumulation','mixup'])
def test_what_is_added_to_the_gradient_is_not_logged(ev, more):
    "A constant has no gradient, so that nothing else changes either"
    plain,changed = losses(*(o() for o in more)),losses(*(o() for o in more), plus(ev))
    assert (changed[0]==pytest.approx(plain[0], rel=1e-6) and changed[1]==pytest.approx(plain[1], rel=1e-6)
        and all(torch.allclose(a, b) for a,b in zip(changed[2], plain[2])))

@pytest.mark.parametrize('ev', ['after_loss', 'before_backward'])
def test_both_are_what_they_are_said_to_be(ev):
    seen = []
    @on('after_backward')
    def note(learn): seen.append((learn.loss.item(), learn.loss_grad.item(), learn.loss is learn.loss_grad))
    learn = mk(plus(ev), note, data=[(X, Y)]).fit(1)
    (loss,loss_grad,one), = seen
    assert loss_grad==pytest.approx(loss+1) and not one and learn.recorder.raw_losses==[loss]

def test_penalties_and_factors_in_place():
    "Against the same training by hand"
    class Penalty(Callback):
        def after_loss(self): self.learn.loss_grad += self.model[0].weight.square().sum()
        def before_backward(self): self.learn.loss_grad *= 2
    learn,hand = mk(Penalty, data=[(X, Y)]),mk().model
    opt,logged = torch.optim.SGD(hand.parameters(), .1, momentum=.9),[]
    for _ in range(3):
        logged.append(F.cross_entropy(hand(X), Y))
        ((logged[-1]+hand[0].weight.square().sum())*2).backward()
        opt.step(); opt.zero_grad()
    learn.fit(3)
    assert (learn.recorder.raw_losses==pytest.approx([o.item() for o in logged], rel=1e-5)
        and all(torch.allclose(a, b, atol=1e-6) for a,b in zip(weights(hand), weights(learn.model))))

@pytest.mark.parametrize('when', ['during a batch', 'during an epoch', 'for a fit'])
def test_listeners_that_come_and_go(when):
    "The two are one tensor again as soon as no callback could tell the difference"
    same_,cb = [],Callback(before_backward=lambda self: None)
    @on('after_batch')
    def note(learn):
        if not learn.training: return
        same_.append(learn.loss is learn.loss_grad)
        if when=='during an epoch' and learn.train_iter==2: learn.add_cb(cb)
        if when=='during an epoch' and learn.train_iter==4: learn.remove_cb(cb)
    @on('before_batch')
    def add(learn):
        if when=='during a batch' and learn.training and learn.train_iter==2: learn.add_cb(cb)
    learn = mk(note, add).fit(1, cbs=cb if when=='for a fit' else None)
    n = learn.n_train
    if when=='for a fit': assert same_==[False]*n and learn.fit(1) and same_[n:]==[True]*n
    else: assert same_[:2]==[True]*2 and not same_[3] and (when=='during a batch' or same_[5:]==[True]*(n-5))

def test_losses_that_are_no_tensors_are_still_refused():
    class Hear(Callback):
        def after_loss(self): pass
    with pytest.raises(TypeError, match='The loss must be a tensor'): mk(Hear, loss_func=lambda p, t: 1.).fit(1)
    assert mk(Hear, valid=cut(20)).validate().valid_loss>0
