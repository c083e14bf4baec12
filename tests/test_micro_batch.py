"Batches cut into pieces give the step of the whole batch"
from collections import OrderedDict,namedtuple
from functools import partial
import numpy as np, pytest, torch
from hypothesis import given,strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from learner.all import *
from small_fits import net,X,Y,T,cut,sgd,mk,weights,same,gap,tokens,token_loss,counted,Recurrent,Room,sequences

def test_one_micro_batch_at_a_time():
    with pytest.raises(ValueError, match='`micro_batch_2` and `micro_batch` would both cut the batch: use one of them'):
        mk(MicroBatch(4), MicroBatch(8)).fit(1)

def test_no_micro_batches_of_a_model_that_carries_a_state():
    def learn(*cbs):
        return mk(RNNCallback, MicroBatch(2), *cbs, data=sequences(), model=Recurrent(), loss_func=F.mse_loss)
    cut = learn(ModelResetter)
    before = weights(cut.model)
    with pytest.raises(ValueError, match='`model_resetter` is for models that carry a state from batch to batch, and '
            '`micro_batch` would hand that of some samples to others'): cut.fit(1)
    assert same(weights(cut.model), before)
    loss,preds = cut.validate(dl=sequences()).valid_loss,cut.get_preds(dl=sequences())[0] # which cut no batch
    whole = cut.remove_cb(MicroBatch)
    assert loss==whole.validate(dl=sequences()).valid_loss
    assert torch.equal(preds, whole.get_preds(dl=sequences())[0])
    trained = weights(whole.fit(1).model)
    assert not same(trained, before)
    for bs in (64, 'auto'):
        uncut = mk(RNNCallback, MicroBatch(bs), ModelResetter, data=sequences(), model=Recurrent(),
            loss_func=F.mse_loss)
        assert same(weights(uncut.fit(1).model), trained)

def test_packed_sequences_are_cut_by_their_lengths():
    class Packs(nn.Module):
        def __init__(self): super().__init__(); torch.manual_seed(0); self.rnn = nn.GRU(3, 2, batch_first=True)
        def forward(self, x, lens=None):
            packed = x if lens is None else pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
            return self.rnn(packed)[1][0]
    x,lens = tokens(n=8)[0],torch.tensor([5,1,3,2,4,4,2,1])
    packed = pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
    def fit(b, *cbs): return weights(mk(*cbs, data=[b], model=Packs()).fit(1).model)
    told = r'A `PackedSequence` cannot be cut into samples: let batches be `\(x, lens, y\)`'
    with pytest.raises(ValueError, match=told): fit((packed, Y[:8]), MicroBatch(3))
    assert gap(fit((x, lens, Y[:8]), MicroBatch(3)), fit((packed, Y[:8])))<1e-6

# Micro-batches
def micro(n, *cbs, bs=30, y=Y, count=None, **kwargs):
    return mk(MicroBatch(n, count), *cbs, data=cut(bs, y), **kwargs).fit(2)

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('bs', [1,7,16,30,60])
@pytest.mark.parametrize('n', [1,2,5,8,30,100,'auto'])
@pytest.mark.parametrize('loss', ['mean','sum'])
def test_micro_batches_are_the_batch(bs, n, loss):
    if bs==1 and n!=1: return
    def crit(): return nn.CrossEntropyLoss(reduction=loss)
    runs = []
    for cbs in ([], [MicroBatch(n)]):
        learn = Learner(DataLoaders(cut(bs), cut(25), device='cpu'), net(), crit(), opt_func=sgd,
            lr=.1 if loss=='mean' else .1/bs, cbs=cbs, metrics=accuracy).remove_cb(ProgressCallback)
        runs.append(learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=True)).fit(2))
    a,b = runs
    assert gap(weights(a.model), weights(b.model))<1e-6
    assert a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, rel=1e-5)
    assert [o for r in a.recorder.values for o in r]==pytest.approx([o for r in b.recorder.values for o in r], rel=1e-5)
    # one piece: the very same bits
    if n in (100,'auto'):
        assert same(weights(a.model), weights(b.model)) and a.recorder.raw_losses==b.recorder.raw_losses

class Terms(nn.Module):
    "A loss that keeps one of its terms"
    def __init__(self, reduction='mean'): super().__init__(); self.reduction = reduction
    def forward(self, pred, y):
        losses = pred.square().mean(1)
        self.size = losses.mean() if self.reduction=='mean' else losses.sum()
        return F.cross_entropy(pred, y, reduction=self.reduction)+self.size

@pytest.mark.parametrize('reduction', ['mean','sum'])
@pytest.mark.parametrize('n', [2,7,'auto'])
def test_terms_of_the_loss_are_those_of_the_batch(n, reduction):
    def run(*cbs):
        learn = mk(*cbs, loss_func=Terms(reduction), metrics=LossMetrics('size'), data=cut(25))
        return learn.remove_cb(Recorder).add_cb(Recorder(train_metrics=True)).fit(2).recorder
    assert run(MicroBatch(n)).last('train_size')==pytest.approx(run().last('train_size'), rel=1e-5)

@given(sizes=st.lists(st.integers(1,20), min_size=1, max_size=5), n=st.integers(1,25), momentum=st.booleans())
def test_batches_of_any_sizes(sizes, n, momentum):
    x,y = [o[:sum(sizes)].split(sizes) for o in (torch.cat([X,X]),torch.cat([T,T]))]
    def run(*cbs): return weights(mk(*cbs, data=list(zip(x,y)), loss_func=F.mse_loss).fit(1).model)
    assert gap(run(), run(MicroBatch(n)))<1e-6

def test_micro_batches_by_tokens():
    x,y = tokens()
    y[4:8] = -100 # a piece without any
    def run(*cbs):
        learn = mk(*cbs, data=list(zip(x.split(12), y.split(12))), loss_func=token_loss).fit(3)
        return weights(learn.model),learn.recorder.raw_losses
    (a,la),(b,lb),(c,_),(d,_) = run(),run(MicroBatch(4, counted)),run(MicroBatch(4)),run(
        MicroBatch(4, lambda learn: len(learn.y)))
    assert gap(a, b)<1e-6 and la==pytest.approx(lb, rel=1e-5) and gap(a, c)<1e-6 and not gap(a, d)<1e-3

def test_micro_batches_by_tokens_with_a_mean_by_hand():
    "0/0 is NaN, and so is its gradient"
    x,y = tokens()
    y[4:8] = -100
    def loss(pred, y):
        mask = y!=-100
        return (F.cross_entropy(pred.flatten(0,1), y.flatten().clamp(0), reduction='none')*mask.flatten()).sum(
            )/mask.sum()
    def run(*cbs): return weights(mk(*cbs, data=list(zip(x.split(12), y.split(12))), loss_func=loss).fit(3).model)
    assert gap(run(), run(MicroBatch(4, lambda learn: (learn.y!=-100).sum().item())))<1e-6

def contrast(p, t):
    d,alike = torch.cdist(p, p),(t[:,None]==t).float()
    return (d.square()*alike + (1-d).clamp(0).square()*(1-alike)).mean()
def mean_of_some(p, t): return F.cross_entropy(p, t, reduction='none')[p.argmax(1)==t].sum()/(p.argmax(1)==t).sum()
@pytest.mark.parametrize('loss', [contrast, mean_of_some])
def test_a_loss_that_is_no_average_over_samples_is_named(loss):
    with pytest.warns(UserWarning,
            match=f'`{loss.__name__}` is no average over samples: for a whole batch it is .* its pieces is .* So '
            f'`MicroBatch` does not give the step of the whole batch.*`MicroBatch\\(count=…\\)`') as w:
        learn = mk(MicroBatch(8), data=cut(30), loss_func=loss).fit(2)
    assert len([o for o in w if 'MicroBatch' in str(o.message)])==1 and learn.opt_step==4

leave_the_loss_alone = [lambda: TerminateOnNaNCallback(), lambda: MixedPrecision('bf16'),
    lambda: Callback(after_loss=lambda cb: cb.learn.loss.detach())]
@pytest.mark.parametrize('cb', [lambda: MicroBatch(8), lambda: GradientAccumulation(60), lambda: None],
    ids=['MicroBatch','GradientAccumulation','none'])
@pytest.mark.parametrize('other', leave_the_loss_alone, ids=['nan','bf16','reads'])
@pytest.mark.parametrize('of_model', [False, True])
def test_callbacks_that_leave_the_loss_alone_silence_no_warning(of_model, other, cb, recwarn):
    weighs = nn.CrossEntropyLoss(torch.tensor([.1,5.]))
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, y=None): return self.net(x) if y is None else weighs(self.net(x).float(), y)
    learn = mk(*filter(None, (cb(), other())), data=cut(30), valid=cut(30), model=Own(),
        loss_func=None if of_model else lambda p,t: weighs(p, t))
    if of_model: learn.dls.n_inp = 2
    learn.fit(1)
    said = [str(o.message) for o in recwarn if 'no average over samples' in str(o.message)]
    name = type(cb()).__name__
    assert len(said)==1+(cb() is not None) and any('the validation loss depends on the batch size' in o for o in said)
    assert cb() is None or any(f'`{name}` does not give the step of the ' in o for o in said)

@pytest.mark.parametrize('cb,bs', [(MicroBatch(4), 12), (GradientAccumulation(12), 4)])
def test_a_loss_is_asked_where_the_first_targets_do_not_count(cb, bs):
    "Their average is NaN"
    y = torch.tensor([-100]*4 + [0,0,0,1, 1,1,0,1]*2 + [0]*4)
    def weighs(p, t): return F.cross_entropy(p, t, weight=torch.tensor([.1,5.]))
    with pytest.warns(UserWarning, match='`weighs` is no average over samples'):
        mk(cb, data=[*zip(X[:24].split(bs), y.split(bs))], loss_func=weighs).fit(1)

class Views(nn.Module):
    "Two views of each sample, as in SimCLR; `own`: it returns the loss itself"
    def __init__(self, own=False): super().__init__(); self.net,self.d,self.own = net(),nn.Dropout(0.),own
    def forward(self, x): pred = self.net(x*1.1),self.net(self.d(x)*.9); return nce(pred) if self.own else pred
def nce(pred):
    a,b = (F.normalize(o, dim=1) for o in pred)
    return F.cross_entropy(a@b.T/.1, torch.arange(len(a)))
def spread(pred): return (pred[0]-pred[1]).square().mean()

@pytest.mark.parametrize('cb', [lambda: MicroBatch(5), lambda: GradientAccumulation(40), lambda: None],
    ids=['MicroBatch','GradientAccumulation','none'])
@pytest.mark.parametrize('loss', [nce, spread, None], ids=['nce','spread','of the model'])
def test_a_loss_that_compares_samples_and_takes_no_targets_is_named(cb, loss, recwarn):
    xs,cb = [(o,) for o in X[:40].split(20)],cb()
    Learner(DataLoaders(xs, xs, n_inp=1, device='cpu'), Views(loss is None), loss, lr=.1, cbs=cb).fit(1)
    said = [str(o.message) for o in recwarn if 'no average over samples' in str(o.message)]
    whose = 'The loss that `Views` returns' if loss is None else '`nce`'
    assert len(said)==(0 if loss is spread else 1+(cb is not None)) and all(o.startswith(whose) for o in said)
    assert cb is None or loss is spread or f'So `{type(cb).__name__}` does not give the step of the ' in said[0]
    assert loss is spread or 'So the validation loss depends on the batch size' in said[-1]

class OwnNorm(nn.Module):
    def forward(self, x): return 9*(x-x.mean(0))/(x.std(0)+1e-3) if self.training else x
class Normed(nn.Module):
    "Its own loss is an average over samples, which a batch norm mixes in training"
    def __init__(self, norm): super().__init__(); self.net = nn.Sequential(norm, nn.Dropout(), net())
    def forward(self, x, y): return F.cross_entropy(self.net(x), y)
@pytest.mark.parametrize('norm', [lambda: nn.BatchNorm1d(3), OwnNorm], ids=['torch','own'])
@pytest.mark.parametrize('cb', [partial(MicroBatch, 5), partial(GradientAccumulation, 40)])
def test_a_model_whose_own_loss_is_a_mean_is_asked_without_a_trace(cb, norm, recwarn):
    def run(cb):
        torch.manual_seed(0)
        batches = [*zip(X[:40].split(20), Y[:40].split(20))]
        return weights(Learner(DataLoaders(batches, n_inp=2, device='cpu'), Normed(norm()), lr=.1, cbs=cb).fit(1).model)
    assert same(run(cb()), run(cb(count=lambda learn: len(learn.xb[0])))) # which asks nothing
    assert not [o for o in recwarn if 'no average' in str(o.message)]

class OneSum(nn.Module):
    "A sum in one mode, and a mean in the other"
    def __init__(self, of): super().__init__(); self.net,self.of = nn.Sequential(nn.Dropout(), net()),of
    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y, reduction='sum' if self.training==self.of else 'mean')
@pytest.mark.parametrize('in_training', [True, False])
@pytest.mark.parametrize('cb', [partial(MicroBatch, 5), partial(GradientAccumulation, 40)])
def test_a_model_is_asked_for_its_own_loss_of_training(cb, in_training, recwarn):
    batches = [*zip(X[:40].split(20), Y[:40].split(20))]
    Learner(DataLoaders(batches, n_inp=2, device='cpu'), OneSum(in_training), lr=.01, cbs=cb()).fit(1)
    assert len([o for o in recwarn if 'does not give the step' in str(o.message)])==in_training

class Sharpening(nn.Module):
    "A loss with a state, which its calls change"
    def __init__(self): super().__init__(); self.n = 0
    def forward(self, p, t): self.n += 1; return F.cross_entropy(p*(1+.1*self.n), t)
def noisy(p, t): return F.cross_entropy(p+torch.rand(()), t)*torch.rand(())
def with_tokens(p, t): return F.cross_entropy(p, t, reduction='none').mean()
@pytest.mark.parametrize('loss',
    [with_tokens, noisy, lambda p,t: F.cross_entropy(p, t), nn.CrossEntropyLoss(weight=torch.tensor([1.,4.])),
        lambda p,t: F.mse_loss(p[:,0], t.float())], ids=['own','random','lambda','weights','mse'])
def test_averages_over_samples_are_not_warned_of(loss, recwarn):
    mk(MicroBatch(8), data=cut(30), loss_func=loss).fit(1)
    assert not [o for o in recwarn if 'MicroBatch' in str(o.message)]

@pytest.mark.filterwarnings('ignore:`Sharpening` is no average')
def test_the_question_leaves_a_loss_with_a_state_alone():
    loss = Sharpening()
    learn = mk(MicroBatch(8), data=cut(30), loss_func=loss).fit(1)
    assert loss.n==8 and learn.opt_step==2 # four pieces of each batch

def test_nothing_to_count_leaves_the_weights():
    x,y = tokens()
    learn = mk(MicroBatch(4, counted), data=[(x, torch.full_like(y, -100))], loss_func=token_loss).fit(1)
    assert torch.tensor(learn.recorder.raw_losses).isnan().all() and same(weights(learn.model), weights(net()))

Pair = namedtuple('Pair', 'a b')
def test_inputs_and_predictions_of_any_nesting():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
        def forward(self, d, pair, names, mask, weight):
            assert (len(names)==len(d['x'])==len(pair.a)==len(pair.b[0]) and mask.shape==(1,3) and weight.ndim==0
                and names==[f'n{o:.4f}' for o in d['x'][:,0].tolist()])
            out = self.net((d['x']+pair.a*pair.b[0]*mask)*weight)
            return OrderedDict(out=out, hidden=(out.T, [out*2]), one=out.mean(), name='net')
    def batches(bs):
        for x,y in cut(bs):
            yield dict(x=x),Pair(x*2,[x*3]),[f'n{o:.4f}' for o in x[:,0].tolist()],torch.ones(1,3),torch.tensor(.5),y
    seen = {}
    def run(*cbs):
        last = on(event.after_batch)(lambda learn: seen.update({bool(cbs): learn.pred}))
        return mk(*cbs, last, data=DataLoaders(list(batches(20)), device='cpu'), model=Net(),
            loss_func=lambda p,y: F.cross_entropy(p['out'], y)+p['hidden'][1][0].pow(2).mean()).fit(2)
    assert gap(weights(run().model), weights(run(MicroBatch(6)).model))<4e-6
    a,b = seen[False],seen[True]
    assert (type(b) is OrderedDict and list(a)==list(b) and a['out'].shape==b['out'].shape==(20,2) and b['name']=='net'
        and a['hidden'][0].shape==b['hidden'][0].shape==(2,20))
    for x,y in ((a['out'], b['out']), (a['hidden'][0], b['hidden'][0]), (a['hidden'][1][0], b['hidden'][1][0]),
            (a['one'], b['one'])):
        assert torch.allclose(x, y, atol=4e-6)

def test_mappings_and_models_that_return_their_loss():
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x, labels):
            logits = self.net(x)
            return dict(loss=F.cross_entropy(logits, labels), logits=logits)
    def run(*cbs): return mk(*cbs, data=[dict(x=x, labels=y) for x,y in cut(20)], model=Net(), loss_func=None).fit(2)
    a,b = run(),run(MicroBatch(6))
    assert (gap(weights(a.model), weights(b.model))<1e-6
        and a.recorder.raw_losses==pytest.approx(b.recorder.raw_losses, rel=1e-5))

def test_what_events_see():
    seen = []
    class See(Callback):
        run_valid = False
        def note(self, ev):
            learn = self.learn
            seen.append((ev, len(learn.xb[0]), len(learn.yb[0]), None if learn.pred is None else len(learn.pred),
                learn.loss is None, any(p.grad is not None for p in learn.model.parameters())))
    for ev in dict(moments()):
        if 'cancel' not in ev:
            setattr(See, ev, lambda self, ev=ev: self.note(ev) if self.learn.training and self.learn.xb else None)
    learn = mk(MicroBatch(4), See, data=cut(10, n=10), valid=cut(5, n=5)).fit(1)
    one = [('before_batch',10,10,None,True,False),
        ('after_pred',3,3,3,True,False), ('after_loss',3,3,3,False,False), ('after_pred',3,3,3,True,True),
        ('after_loss',3,3,3,False,True), ('after_pred',4,4,4,True,True), ('after_loss',4,4,4,False,True),
        ('before_backward',10,10,10,False,False),
        *[(o,10,10,10,False,True)
            for o in ('after_backward', 'cleanup_backward', 'before_step', 'after_step', 'cleanup_step',
                'before_zero_grad')],
        *[(o,10,10,10,False,False) for o in ('after_zero_grad', 'after_batch', 'cleanup_batch')]]
    assert [o for o in seen if o[0] in {e for e,*_ in one}]==one
    assert learn.forward_with is None

def test_a_cancelled_backward_hands_out_nothing():
    class Skip(Callback):
        def before_backward(self):
            if self.iter==0: raise CancelBackwardException
    a,b = mk(MicroBatch(4), Skip).fit(1),mk(Skip).fit(1)
    assert gap(weights(a.model), weights(b.model))<1e-6

@pytest.mark.parametrize('ev', ['after_pred', 'after_loss', 'before_backward', 'after_backward', 'before_step'])
@pytest.mark.parametrize('n', [1,2,4])
def test_a_cancelled_batch_is_gone(ev, n):
    "Whichever piece was running: what other batches have accumulated stays as it was"
    learn = mk(MicroBatch(4), Raise(ev, CancelBatchException, n=n), data=cut(12), valid=cut(12)).fit(1)
    inside = ev in ('after_pred','after_loss')
    assert len(learn.recorder.raw_losses)==(4 if inside else 5)
    plain = mk(Raise(ev, CancelBatchException, n=1+(n-1)//3 if inside else n), data=cut(12), valid=cut(12)).fit(1)
    if inside: assert gap(weights(learn.model), weights(plain.model))<1e-6

def test_the_loss_may_be_added_to():
    class Decay(Callback):
        run_valid = False
        def __init__(self, ev): self.ev = ev; super().__init__(**{ev: Decay.add})
        def add(self):
            self.learn.loss_grad = self.learn.loss_grad + .01*sum(p.pow(2).sum() for p in self.learn.model.parameters())
    for ev in ('after_loss','before_backward'):
        assert gap(weights(mk(Decay(ev), data=cut(30)).fit(2).model), weights(micro(7, Decay(ev)).model))<1e-6

def test_a_validation_inside_a_batch_is_whole():
    seen = []
    look = on(event.after_loss,
        when=lambda f,learn: learn.training)(lambda learn: seen.append(learn.validate().valid_loss))
    a,b = mk(MicroBatch(4), look, valid=cut(30)).fit(1),mk(valid=cut(30)).fit(1)
    assert (gap(weights(a.model), weights(b.model))<1e-6 and len(seen)==18
        and a.recorder[-1,'valid_loss']==pytest.approx(b.recorder[-1,'valid_loss']))

# with others
together = dict(clip=lambda: GradientClip(.2), accumulation=lambda: GradientAccumulation(60), mixup=lambda: MixUp(.4),
    mixup_clip=lambda: [MixUp(.4), GradientClip(.2)],
    mixup_acc=lambda: [MixUp(.4), GradientAccumulation(60), GradientClip(.2)], ema=lambda: EMA(.9),
    schedule=lambda: ParamScheduler(dict(lr=SchedCos(.2,.01))))
@pytest.mark.parametrize('name', together)
@pytest.mark.parametrize('first', [True,False])
@pytest.mark.parametrize('y', [Y,T], ids=['classes','numbers'])
def test_micro_batches_with_others(name, first, y):
    def run(*m):
        cbs = together[name]()
        cbs = cbs if isinstance(cbs, list) else [cbs]
        torch.manual_seed(1)
        return weights(mk(*(m if first else ()), *cbs, *(() if first else m), data=cut(15, y),
            loss_func=F.cross_entropy if y is Y else F.mse_loss).fit(3).model)
    assert gap(run(), run(MicroBatch(4)))<1e-6

# A model whose own loss is about the next tokens
class NextToken(nn.Module):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.e = nn.Embedding(9, 9)
    def forward(self, ids, labels=None):
        o = self.e(ids)
        if labels is None: return dict(logits=o)
        return dict(logits=o, loss=F.cross_entropy(o[:,:-1].reshape(-1, 9), labels[:,1:].reshape(-1)))

def next_tokens(none_in=None):
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (24, 6), generator=gen)
    labels = ids.masked_fill(torch.rand(24, 6, generator=gen)<.4, -100)
    if none_in is not None: labels[none_in] = -100
    return ids,labels

@pytest.mark.parametrize('bs,none_in', [(3, None), (4, None), (1, None), (1, 0), (1, 3), (2, slice(0, 2))])
def test_a_loss_of_next_tokens_in_pieces(bs, none_in):
    "Step, perplexity and accuracy are those of the big batch, by hand"
    ids,labels = next_tokens(none_in)
    data = [dict(ids=ids[i:i+6], labels=labels[i:i+6]) for i in range(0, 24, 6)]
    learn = Learner(DataLoaders(data, device='cpu'), NextToken(), opt_func=torch.optim.SGD, lr=.5,
        metrics=[accuracy, Perplexity()], default_cbs=False, cbs=[TrainEvalCallback, Recorder(train_metrics=True)])
    learn.fit(1, cbs=[GradientAccumulation(24), MicroBatch(bs)])
    m = NextToken()
    scores = m(ids)['logits'][:,:-1]
    loss = F.cross_entropy(scores.reshape(-1, 9), labels[:,1:].reshape(-1)); loss.backward()
    assert torch.allclose(learn.model.e.weight, m.e.weight-.5*m.e.weight.grad, atol=1e-6)
    kept = labels[:,1:]!=-100
    row = learn.recorder.rows[-1]
    assert row.train_perplexity==pytest.approx(loss.exp().item(), rel=1e-5)
    assert row.train_accuracy==pytest.approx((scores.argmax(-1)==labels[:,1:])[kept].float().mean().item())

def test_a_first_batch_without_targets_does_not_hide_the_loss_of_next_tokens():
    ids,labels = next_tokens(slice(0, 6))
    data = [dict(ids=ids[i:i+6], labels=labels[i:i+6]) for i in range(0, 24, 6)]
    learn = Learner(DataLoaders(data, device='cpu'), NextToken(), opt_func=torch.optim.SGD, lr=0.)
    seen = []
    learn.fit(1, cbs=Callback(after_batch=lambda learn: seen.append((learn.pred.shape[1], learn.y.shape[1]))))
    assert seen[1:]==[(5, 5)]*3

def test_accumulated_tokens_of_micro_batches():
    x,y = tokens()
    def run(bs, *cbs):
        return weights(mk(*cbs, data=list(zip(x.split(bs), y.split(bs))), loss_func=token_loss).fit(3).model)
    assert gap(run(24), run(8, MicroBatch(3, counted), GradientAccumulation(24, counted)))<1e-6

def test_cutmix():
    imgs,y = torch.randn(24, 1, 6, 6),torch.randint(0, 3, (24,))
    def run(*cbs):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Flatten(), nn.Linear(36,3))
        return weights(mk(*cbs, data=list(zip(imgs.split(8), y.split(8))), model=m).fit(2).model)
    assert gap(run(CutMix()), run(CutMix(), MicroBatch(3)))<1e-6

@pytest.mark.parametrize('mode', ['bf16','fp16'])
def test_all_pieces_are_in_half_precision(mode):
    seen,dtypes = [],[]
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x):
            out = self.net(x)
            dtypes.append((self.training, out.dtype))
            return out
    grads = on(event.before_step,
        order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    def run(*cbs):
        learn = mk(*cbs, MixedPrecision(mode, init_scale=1024.), grads, model=Net(), data=cut(30), valid=cut(30)).fit(1)
        return weights(learn.model)
    a,b = run(),run(MicroBatch(7))
    assert ({*dtypes}=={(t, torch.float16 if mode=='fp16' else torch.bfloat16) for t in (True,False)}
        and gap(a, b)<2e-3 and gap(seen[0], seen[2])<5e-3)
    assert not torch.is_autocast_enabled('cpu')

def test_the_scaler_keeps_small_gradients():
    "In fp16, what is less than 6e-8 is nothing, unless the loss of each piece is scaled"
    def loss(pred, y): return F.mse_loss(pred, y)*1e-7
    seen = []
    grads = on(event.before_step,
        order=50)(lambda learn: seen.append([p.grad.clone() for p in learn.model.parameters()]))
    mk(MixedPrecision('fp16', init_scale=2.**16), MicroBatch(7), grads, data=cut(30, T), loss_func=loss).fit(1)
    half,seen[:] = list(seen),[]
    mk(grads, data=cut(30, T), loss_func=loss).fit(1)
    for a,b in zip(half[0], seen[0]): assert torch.allclose(a, b, rtol=.05, atol=1e-10) and b.abs().max()<1e-6

def test_overflow_skips_the_step():
    class Spike(Callback):
        run_valid,n = False,0
        def after_loss(self):
            self.n += 1
            if self.n==2: self.learn.loss_grad = self.learn.loss_grad*1e38
    learn = mk(MixedPrecision('fp16', init_scale=1024.), MicroBatch(4), Spike, data=cut(10)).fit(1)
    assert (learn.opt_step==5 and learn.mixed_precision.scaler.get_scale()==512
        and all(p.isfinite().all() for p in learn.model.parameters()))

# running out of memory
errors = dict(torch=torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB'),
    text=RuntimeError('CUDA error: out of memory'),
    cpu=RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
@pytest.mark.parametrize('where', ['forward','backward'])
@pytest.mark.parametrize('error', errors)
def test_auto_finds_the_size(where, error):
    m = Room(7, where, errors[error])
    learn = mk(MicroBatch, model=m, data=cut(30)).fit(2)
    expected = Room(7)
    fixed = mk(MicroBatch(4), model=expected, data=cut(30)).fit(2)
    tried = [30, 15, 7,8, *[3,4,4,4]*2*4] # halves, and pieces as equal as can be
    assert m.tried==tried and learn.micro_batch.fits==4
    # the very same bits: same dropout, same statistics
    assert (same(weights(m), weights(expected)) and same([*m.buffers()], [*expected.buffers()])
        and learn.recorder.raw_losses==fixed.recorder.raw_losses)

class Drops(nn.Module):
    "Dropout that draws from a generator of its own"
    def __init__(self): super().__init__(); self.gen = torch.Generator().manual_seed(0)
    def forward(self, x): return x*torch.bernoulli(torch.full_like(x, .5), generator=self.gen)*2 if self.training else x

class Noise(Callback):
    def __init__(self): self.gen = torch.Generator().manual_seed(1)
    def after_pred(self): self.learn.pred = self.pred+.1*torch.randn(self.pred.shape, generator=self.gen)

def test_a_batch_that_is_run_again_draws_the_same_of_generators_of_model_and_callbacks():
    ms = Room(7),Room(7)
    for m in ms: m.drop = Drops()
    a,b = [mk(MicroBatch(bs), Noise(), model=m, data=cut(30)).fit(1) for m,bs in zip(ms, ('auto', 4))]
    assert a.recorder.raw_losses==b.recorder.raw_losses and same(weights(ms[0]), weights(ms[1]))

def test_the_size_is_remembered():
    m = Room(7)
    learn = mk(MicroBatch, model=m, data=cut(30)).fit(1)
    m.tried.clear()
    learn.fit(1)
    assert max(m.tried)==4 and learn.micro_batch.state_dict()=={'fits': 4}
    other = mk(MicroBatch, model=m, data=cut(30))
    other.micro_batch.load_state_dict({'fits': 5})
    m.tried.clear()
    other.fit(1)
    assert m.tried==[5]*12

def test_what_was_accumulated_before_stays():
    class Late(Room):
        def forward(self, x):
            self.most = 30 if len(self.tried)<2 else 10 # memory gets scarce in the second batch
            return super().forward(x)
    m,plain = Late(30, 'backward'),Room(100)
    for o in (m,plain): o.drop.p = 0.; o.bn = nn.Identity()
    a = mk(MicroBatch, GradientAccumulation(45), model=m, data=cut(15, n=45)).fit(1)
    mk(model=plain, data=cut(45, n=45)).fit(1)
    assert a.micro_batch.fits==8 and gap(weights(m), weights(plain))<1e-6

def test_one_sample_that_does_not_fit_is_an_error():
    m = Room(0)
    m.bn = nn.Identity() # it takes no batch of one
    learn = mk(MicroBatch, model=m, data=cut(4))
    with pytest.raises(torch.OutOfMemoryError, match='out of memory'): learn.fit(1)
    assert m.tried==[4,2,1] and all(p.grad is None for p in m.parameters()) and learn.forward_with is None

@pytest.mark.parametrize('bs,error',
    [('auto', ValueError('out of memory')), ('auto', RuntimeError('shapes do not match')),
        (7, torch.OutOfMemoryError('CUDA out of memory'))])
def test_other_errors_are_not_caught(bs, error):
    m = Room(5, error=error)
    with pytest.raises(type(error), match=str(error)): mk(MicroBatch(bs), model=m, data=cut(30)).fit(1)
    assert len(m.tried)==1

def test_out_of_memory_in_validation_is_not_ours():
    class Net(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, x):
            if not self.training: raise torch.OutOfMemoryError('CUDA out of memory')
            return self.net(x)
    with pytest.raises(torch.OutOfMemoryError): mk(MicroBatch, model=Net(), valid=cut(30)).fit(1)

@pytest.mark.parametrize('order', [-100,100])
def test_a_batch_that_is_run_again_is_mixed_once(order):
    m,plain = Room(7),Room(100)
    for o in (m,plain): o.drop.p = 0.; o.bn = nn.Identity()
    class Mix(MixUp): pass
    Mix.order = order
    a = mk(MicroBatch, Mix(.4), MixedPrecision('bf16'), model=m, data=cut(30)).fit(2)
    mk(Mix(.4), MixedPrecision('bf16'), model=plain, data=cut(30)).fit(2)
    assert a.micro_batch.fits==4 and gap(weights(m), weights(plain))<2e-3 and not torch.is_autocast_enabled('cpu')

# refused
def test_sizes_from_numpy(): assert type(MicroBatch(np.int64(4)).bs) is int

@pytest.mark.parametrize('bs', [0, -1, 2.5, 'automatic', None, True])
def test_bad_micro_batch(bs):
    with pytest.raises(ValueError, match="`bs` is a number of samples, 1 or more, or 'auto', but got"): MicroBatch(bs)

def test_what_cannot_be_cut():
    data = [(torch.randn(6,5,3), torch.randint(0, 2, (5,)))] # sequences first
    with pytest.raises(ValueError,
            match=r'along the first axis, which has 5 samples, but a tensor of the batch has shape \(6, 5, 3\)'):
        mk(MicroBatch(2), data=data).fit(1)
    class Odd(nn.Module):
        def __init__(self): super().__init__(); self.net = net()
        def forward(self, o): return self.net(X)
    with pytest.raises(ValueError, match='cannot know how many samples'):
        mk(MicroBatch(2), data=DataLoaders(['a','b'], device='cpu'), model=Odd(), loss_func=None).fit(1)

@pytest.mark.parametrize('loss,match',
    [(lambda p,y: 3., 'must be a tensor, but'), (lambda p,y: p, 'must be one number, but has shape'),
        (lambda p,y: p.detach().mean(), 'does not depend on any trainable')])
def test_bad_losses_are_named(loss, match):
    with pytest.raises((TypeError,ValueError), match=match): mk(MicroBatch(4), loss_func=loss).fit(1)

@pytest.mark.parametrize('cbs', [[MicroBatch(4)], [MicroBatch('auto')], [MixUp()], [MixUp(by_sample=False)],
    [MixUp(), MicroBatch(3)]])
def test_a_batch_of_nothing_changes_nothing(cbs):
    data = [(X[:8], Y[:8]), (X[:0], Y[:0])]
    learn = mk(*cbs, data=data).fit(1)
    assert all(o.isfinite().all() for o in weights(learn.model)) and learn.train_iter==2

def test_a_loss_that_a_callback_changes_in_later_pieces_is_not_blamed(recwarn):
    "As `MixUp` does where the samples of the first piece have partners of their own class"
    def focal(p, t):
        ce = F.cross_entropy(p, t, reduction='none')
        return ((1-torch.exp(-ce))**2*ce).mean()
    def clamp(cb): cb.learn.loss = cb.learn.loss_grad = cb.loss.clamp(max=limit)
    batch = X[:8],Y[:8]
    torch.manual_seed(0)
    model = net()
    with torch.no_grad(): limit = focal(model(X[:2]), Y[:2]).item()+1e-4
    Learner(DataLoaders([batch], device='cpu'), model, focal, opt_func=sgd, lr=.1,
        cbs=[Callback(after_loss=clamp), MicroBatch(2)]).remove_cb(ProgressCallback).fit(1)
    assert not [o for o in recwarn if 'no average' in str(o.message)]
