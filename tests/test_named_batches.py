"""Batches of named fields, and models that return their predictions and their own loss in one object, as those of
Hugging Face do: all works as for tuples, or the error says what to write"""
import pickle,warnings
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
import pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from learner.all import *

class Output(OrderedDict):
    "A mapping with attributes"
    __getattr__ = OrderedDict.get

@dataclass
class Fields:
    "An object with attributes"
    loss: object = None
    logits: object = None

class Model(nn.Module):
    "A head on the mean of embedded words"
    n,kind = 3,Output
    def __init__(self):
        super().__init__()
        self.emb,self.head = nn.Embedding(20, 8),nn.Linear(8, self.n)
    def scores(self, input_ids, attention_mask):
        h = self.emb(input_ids)
        return self.head((h*attention_mask[...,None]).sum(1)/attention_mask.sum(1, keepdim=True))
    def loss(self, logits, labels): return F.cross_entropy(logits, labels)
    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.scores(input_ids, attention_mask)
        return self.kind(loss=None if labels is None else self.loss(logits, labels), logits=logits)

class Words(Model):
    "One prediction for each word"
    n = 20
    def scores(self, input_ids, attention_mask): return self.head(self.emb(input_ids))
    def loss(self, logits, labels): return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
class NextWord(Words):
    "As language models: each prediction is of the next word"
    def loss(self, logits, labels): return super().loss(logits[:,:-1], labels[:,1:])
class Amount(Model):
    n = 1
    def loss(self, logits, labels): return F.mse_loss(logits.squeeze(), labels)
class Labels(Model):
    def loss(self, logits, labels): return F.binary_cross_entropy_with_logits(logits, labels)

g = torch.Generator().manual_seed(0)
ids,mask = torch.randint(0, 20, (48,6), generator=g),torch.ones(48, 6)
targets = {Model: ids[:,0]%3, Words: ids, NextWord: ids, Amount: ids[:,0]/20, Labels: (ids[:,:3]>9).float()}

def samples(targ, name='labels', **more):
    return [dict(input_ids=ids[i], attention_mask=mask[i], **{name: targ[i]}, **{k:v[i] for k,v in more.items()})
        for i in range(48)]
def loaders(targ, **kwargs):
    ds = samples(targ, **kwargs)
    return DataLoaders.from_dsets(ds[:32], ds[32:], bs=8, device='cpu', shuffle=False)
def learner(cls=Model, metrics=None, dls=None, **kwargs):
    torch.manual_seed(0)
    return Learner(dls or loaders(targets[cls]), cls(), metrics=metrics, opt_func=torch.optim.SGD, lr=.1,
        **kwargs).remove_cb(ProgressCallback)

def by_hand(cls, n_epoch=2):
    torch.manual_seed(0)
    m,targ = cls(),targets[cls]
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for _ in range(n_epoch):
        for i in range(0, 32, 8):
            m.loss(m.scores(ids[i:i+8], mask[i:i+8]), targ[i:i+8]).backward()
            opt.step(); opt.zero_grad()
    with torch.no_grad(): return m,m.scores(ids[32:], mask[32:]),targ[32:]

def close(a, b): return torch.allclose(a, b, atol=1e-6)
def same(learn, m): return all(close(a, b) for a,b in zip(learn.model.parameters(), m.parameters(), strict=True))

@pytest.mark.parametrize('kind', [Output, Fields])
@pytest.mark.parametrize('cls', [*targets])
def test_the_models_own_loss_trains_it(cls, kind, monkeypatch):
    monkeypatch.setattr(cls, 'kind', kind)
    learn = learner(cls).fit(2)
    m,pred,targ = by_hand(cls)
    assert same(learn, m) and learn.recorder[-1].valid_loss==pytest.approx(m.loss(pred, targ).item(), abs=1e-5)

@pytest.mark.parametrize('cls,metric,value', [
    (Model, accuracy, lambda p,t: (p.argmax(1)==t).float().mean()),
    (Words, accuracy, lambda p,t: (p.argmax(2)==t).float().mean()),
    (NextWord, accuracy, lambda p,t: (p[:,:-1].argmax(2)==t[:,1:]).float().mean()),
    (Amount, mse, lambda p,t: ((p[:,0]-t)**2).mean()),
    (Labels, accuracy_multi, lambda p,t: ((p>0)==(t>.5)).float().mean()),
], ids=lambda o: getattr(o, '__name__', ''))
def test_metrics_compare_predictions_with_targets(cls, metric, value):
    learn = learner(cls, metric).fit(2)
    assert learn.recorder[-1][metric.__name__]==pytest.approx(value(*by_hand(cls)[1:]).item(), abs=1e-6)

probs = {Model: lambda p: p.softmax(-1), Words: lambda p: p.softmax(-1), NextWord: lambda p: p[:,:-1].softmax(-1),
    Amount: lambda p: p, Labels: lambda p: p.sigmoid()}
losses = {Model: lambda p,t: F.cross_entropy(p, t, reduction='none'),
    Words: lambda p,t: F.cross_entropy(p.movedim(2, 1), t, reduction='none').mean(1),
    NextWord: lambda p,t: F.cross_entropy(p[:,:-1].movedim(2, 1), t[:,1:], reduction='none').mean(1),
    Amount: lambda p,t: (p[:,0]-t)**2,
    Labels: lambda p,t: F.binary_cross_entropy_with_logits(p, t, reduction='none').mean(1)}

@pytest.mark.parametrize('trained', [True, False])
@pytest.mark.parametrize('cls', [*targets])
def test_predictions_are_probabilities_and_each_sample_has_a_loss(cls, trained):
    n = 2*trained
    learn = learner(cls).fit(n) if n else learner(cls)
    _,pred,targ = by_hand(cls, n)
    preds,targs = learn.get_preds()
    assert close(preds, probs[cls](pred)) and close(targs, targ[:,1:] if cls is NextWord else targ)
    assert close(Interpretation.from_learner(learn).losses, losses[cls](pred, targ))

@pytest.mark.parametrize('trained', [True, False])
def test_predict_decides_for_a_class(trained):
    learn = learner().fit(2) if trained else learner()
    _,pred,_ = by_hand(Model, 2*trained)
    item = dict(input_ids=ids[32], attention_mask=mask[32])
    cat,dec,p = learn.predict(item)
    assert cat==dec==pred[0].argmax() and close(p, pred[0].softmax(0))
    learn.dls.vocab = 'abc'
    assert learn.predict(item)[0]=='abc'[cat]

def test_looking_at_a_batch_first_leaves_no_trace():
    "An untrained learner has to run a batch to know what predictions mean"
    learn,other = learner(),learner()
    state = torch.get_rng_state()
    learn.get_preds()
    assert torch.equal(state, torch.get_rng_state()) and learn.mode is None and learn.pred is None
    assert same(learn.fit(1), other.fit(1).model)

def test_results_are_shown():
    learn = learner(metrics=accuracy).fit(1)
    shown = learn.show_results(max_n=3, shuffle=False)
    _,pred,targ = by_hand(Model, 1)
    assert ([o.decision for o in shown]==[str(o.item()) for o in pred[:3].argmax(1)]
        and [o.target for o in shown]==[str(o.item()) for o in targ[:3]])
    interp = ClassificationInterpretation.from_learner(learn)
    cm = torch.zeros(3, 3)
    for t,d in zip(targ, pred.argmax(1)): cm[t,d] += 1
    assert interp.confusion_matrix().tolist()==cm.tolist() and len(interp.top_losses(2).losses)==2

@pytest.mark.parametrize('loss_func', [nn.CrossEntropyLoss(), F.cross_entropy, CrossEntropyLossFlat()],
    ids=['module','function','flat'])
@pytest.mark.parametrize('takes_labels', [True, False])
def test_a_loss_of_torch_gets_the_logits(loss_func, takes_labels):
    class Without(Model):
        def forward(self, input_ids, attention_mask): return Output(logits=self.scores(input_ids, attention_mask))
    targets[Without] = targets[Model]
    learn = learner(Model if takes_labels else Without, accuracy, loss_func=loss_func).fit(2)
    m,pred,targ = by_hand(Model)
    assert same(learn, m) and learn.recorder[-1].accuracy==pytest.approx((pred.argmax(1)==targ).float().mean().item())

def test_labels_are_for_the_loss_alone_where_the_model_does_not_take_them():
    class Scores(Model):
        # whatever `self` is called
        def forward(me, input_ids, attention_mask): return me.scores(input_ids, attention_mask)
    targets[Scores] = targets[Model]
    assert same(learner(Scores, accuracy, loss_func=nn.CrossEntropyLoss()).fit(2), by_hand(Model)[0])

@pytest.mark.parametrize('name', ['label','label_ids','target','targets','y'])
def test_targets_have_usual_names(name):
    class Scores(Model):
        def forward(self, input_ids, attention_mask): return self.scores(input_ids, attention_mask)
    assert same(learner(Scores, loss_func=nn.CrossEntropyLoss(), dls=loaders(targets[Model], name=name)).fit(2),
        by_hand(Model)[0])

def test_a_loss_of_ones_own_gets_what_the_model_returned():
    learn = learner(loss_func=lambda out,y: F.cross_entropy(out['logits'], y),
        metrics=lambda out,y: accuracy(out['logits'], y)).fit(2)
    assert same(learn, by_hand(Model)[0])

def test_a_metric_of_tensors_says_that_it_got_the_whole_output():
    with pytest.raises(TypeError, match='`accuracy` compares one tensor.* but the model gives a Output.*and `value`'):
        learner(loss_func=lambda out,y: F.cross_entropy(out['logits'], y), metrics=accuracy).fit(1)

def test_callbacks_see_the_whole_output_until_after_pred_is_over():
    seen = []
    learn = learner(cbs=[Callback(after_pred=lambda self: seen.append(type(self.pred))),
        Callback(after_loss=lambda self: seen.append(type(self.pred)))])
    learn.fit(1)
    assert seen[:2]==[Output, torch.Tensor]
    assert same(learner(cbs=MapPred(lambda o: dict(loss=o.loss))).fit(2), by_hand(Model)[0]) # and may change it

def test_renamed_targets_may_be_absent_where_something_is_predicted():
    learn = learner(dls=loaders(targets[Model], name='label'), cbs=MapBatch(dict(label='labels'))).fit(2)
    assert same(learn, by_hand(Model)[0])
    assert learn.predict(dict(input_ids=ids[32], attention_mask=mask[32]))[0]==by_hand(Model)[1][0].argmax()
    with pytest.raises(KeyError, match='finds no `label`'):
        learn.validate(dl=[dict(input_ids=ids[:2], attention_mask=mask[:2])])

def test_a_loss_that_is_none_of_the_usual_ones_is_kept():
    class Own(Model):
        def loss(self, logits, labels): return F.cross_entropy(logits, labels) + logits.square().mean()
    targets[Own] = targets[Model]
    learn = learner(Own, accuracy).fit(2)
    m,pred,_ = by_hand(Own)
    assert same(learn, m) and learn.known_loss is None and close(learn.get_preds()[0], pred)
    with pytest.raises(ValueError,
            match='no losses of samples: `learn.loss_func` is None, and the loss that the model returns is none of '
            'the usual ones'):
        Interpretation.from_learner(learn).top_losses()
    assert close(Interpretation.from_learner(learn).preds, pred)
    with pytest.raises(ValueError, match='no losses of samples.*Write it as .*`learn.loss_func = f`'):
        learn.get_preds(with_loss=True)
    learn.loss_func = lambda out, labels: F.cross_entropy(out.logits, labels) + out.logits.square().mean()
    losses,n = learn.get_preds(with_loss=True)[2],len(ids)-32
    by_sample = [m.loss(m.scores(ids[i:i+1], mask[i:i+1]), targets[Model][i:i+1]).item() for i in range(32, len(ids))]
    assert (len(losses)==n and close(losses, torch.tensor(by_sample))
        and Interpretation.from_learner(learn).top_losses(1).losses==losses.max())

class Counted(nn.Module):
    "A language model with a loss that only its gradient tells, which counts its calls"
    def __init__(self):
        super().__init__()
        self.emb,self.norm,self.head,self.calls = nn.Embedding(7, 6),nn.BatchNorm1d(5),nn.Linear(6, 7),0
    def forward(self, ids, labels):
        self.calls += 1
        logits = self.head(self.norm(self.emb(ids)))
        return dict(logits=logits, loss=1.7*F.cross_entropy(logits[:,:-1].flatten(0, 1), labels[:,1:].flatten()))

def test_a_loop_of_ones_own_finds_out_about_the_models_loss_without_a_trace():
    torch.manual_seed(0)
    ids = torch.randint(0, 7, (8,5))
    loop,model = Loop(),Counted()
    dls = DataLoaders([dict(ids=ids, labels=ids)]*3, device='cpu')
    loop.model,loop.dls,loop.loss_func,loop.mode = model,dls,None,'fit'
    loop.opt = torch.optim.SGD(model.parameters(), lr=.1)
    loop.add_cbs([TrainEvalCallback])
    loop._fit()
    assert (model.calls, model.norm.num_batches_tracked)==(3, 3) and loop.recognized_loss.shifts

@pytest.mark.parametrize('change', ['model', 'dls'])
def test_the_models_own_loss_is_recognized_anew_for_another_model_and_other_data(change):
    "Predictions are as a new learner gives them: amounts, not probabilities of classes"
    class Either(Model):
        "As models with a `problem_type`: the targets choose the loss"
        n = 1
        def loss(self, logits, labels): return (F.binary_cross_entropy_with_logits if labels.is_floating_point()
            and labels.max()==1 else F.mse_loss)(logits, labels)
    if change=='model':
        learn,new = learner(),learner(Amount)
        learn.fit(1)
        learn.model,learn.dls = new.model,new.dls
    else:
        yes,amount = (ids[:,:1]>9).float(),ids[:,:1]/20+3.
        learn,new = learner(Either, dls=loaders(yes)),learner(Either, dls=loaders(amount))
        learn.get_preds()
        learn.dls,new.model = new.dls,learn.model
    right = new.get_preds(with_decoded=True)
    for _ in range(2): assert all(map(torch.equal, learn.get_preds(with_decoded=True), right))
    one = dict(input_ids=ids[0], attention_mask=mask[0])
    with torch.no_grad(): raw = learn.model(ids[:1], mask[:1])['logits'].flatten()
    assert torch.allclose(learn.predict(one)[1].flatten(), raw)

class Smoothed(Model):
    "Its loss in training is another one than in evaluation"
    def loss(self, logits, labels): return F.cross_entropy(logits, labels, label_smoothing=.3 if self.training else 0.)

def test_predictions_belong_to_the_loss_of_the_evaluation(tmp_path):
    def probabilities(learn): return learn.model(ids[32:], mask[32:])['logits'].softmax(1)
    seen = []
    @on('after_batch')
    def look(learn):
        if learn.training: seen.extend(close(learn.get_preds()[0], probabilities(learn)) for _ in range(2))
    learn = learner(Smoothed, dls=loaders(targets[Model]), path=tmp_path, cbs=look)
    valid = learn.dls.valid
    learn.dls.valids.clear()
    learn.fit(1)
    assert seen and all(seen)
    there = load_learner(learn.export(), trust=True)
    for o in (learn, there): assert close(o.get_preds(dl=valid)[0], probabilities(learn))
    assert Interpretation(learn, dl=valid).losses.mean().item()==pytest.approx(learn.validate(dl=valid).valid_loss)

@pytest.mark.parametrize('copied', [deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=['copy','pickle'])
def test_a_copy_knows_the_models_own_loss(copied):
    learn = learner(NextWord).fit(1)
    there = copied(learn)
    assert isinstance(learn.known_loss, CrossEntropyLossFlat) and isinstance(there.known_loss, CrossEntropyLossFlat)

@pytest.mark.parametrize('cls', [Model, NextWord])
@pytest.mark.parametrize('n_epoch', [0, 1])
def test_an_exported_learner_knows_the_models_own_loss(cls, n_epoch, tmp_path):
    learn = learner(cls, path=tmp_path)
    if n_epoch: learn.fit(n_epoch)
    there = load_learner(learn.export(), trust=True)
    with torch.no_grad(): right = learn.model(ids, mask)['logits'].softmax(-1)
    one = dict(input_ids=ids[3], attention_mask=mask[3])
    assert torch.allclose(there.predict(one)[2], right[3], atol=1e-6)
    assert torch.equal(there.predict(one)[1], right[3].argmax(-1))
    assert torch.allclose(there.get_preds(dl=[dict(input_ids=ids, attention_mask=mask)])[0], right, atol=1e-6)
    there.dls,there.model = loaders(targets[Labels]),Labels() # trained on something else, it forgets
    assert torch.allclose(there.get_preds()[0], there.model(ids[32:], mask[32:])['logits'].sigmoid(), atol=1e-6)

def test_without_data_a_loss_that_was_never_seen_stays_unknown(tmp_path):
    "Predictions are what the model returns"
    learn = learner(dls=DataLoaders([], device='cpu'), path=tmp_path)
    there = load_learner(learn.export(), trust=True)
    one = dict(input_ids=ids[3], attention_mask=mask[3])
    for o in (learn, there): assert torch.allclose(o.predict(one)[2], o.model(ids[3:4], mask[3:4])['logits'][0])
    with pytest.raises(ValueError, match=r"`dls\['train'\]` is empty: it gave no batch"): learn.dls.one_batch()

def test_accumulation_and_bf16_with_the_models_own_loss():
    learn = learner(cbs=[MixedPrecision('bf16'), GradientAccumulation(16)], metrics=accuracy).fit(2)
    torch.manual_seed(0)
    m = Model()
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for _ in range(2):
        for i in range(0, 32, 16):
            m.loss(m.scores(ids[i:i+16], mask[i:i+16]), targets[Model][i:i+16]).backward()
            opt.step(); opt.zero_grad()
    assert (all(torch.allclose(a, b, atol=5e-3) for a,b in zip(learn.model.parameters(), m.parameters()))
        and isinstance(learn.known_loss, CrossEntropyLossFlat))

def test_lbfgs_with_the_models_own_loss():
    data = DataLoaders([dict(input_ids=ids, attention_mask=mask, labels=targets[Model])], device='cpu')
    learn = learner(dls=data)
    learn.opt_func = torch.optim.LBFGS
    learn.fit(3)
    torch.manual_seed(0)
    m = Model()
    opt = torch.optim.LBFGS(m.parameters(), lr=.1)
    def closure():
        opt.zero_grad()
        loss = m.loss(m.scores(ids, mask), targets[Model])
        loss.backward()
        return loss
    for _ in range(3): opt.step(closure)
    assert all(torch.allclose(a, b, atol=1e-4) for a,b in zip(learn.model.parameters(), m.parameters()))

# What cannot be guessed
class Pixels(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(4, 2)
    def forward(self, pixels): return self.lin(pixels)
class WithMask(Pixels):
    def forward(self, pixels, mask): return self.lin(pixels*mask)
class Whole(Pixels):
    def forward(self, batch): return self.lin(batch['image'])
class Own(Pixels):
    def forward(self, pixels, labels=None):
        return Output(logits=self.lin(pixels),
            loss=None if labels is None else F.cross_entropy(self.lin(pixels), labels))
class Pair(Pixels):
    def forward(self, pixels, labels): return self.lin(pixels),F.cross_entropy(self.lin(pixels), labels)

x,y = torch.randn(8, 4, generator=g),torch.randint(0, 2, (8,), generator=g)

@pytest.mark.parametrize('model,batch,kwargs,match', [
    (Pixels, dict(image=x, labels=y), dict(loss_func=F.cross_entropy),
        r"`Pixels.forward` needs `pixels`, but the batch has `image`, `labels`. If that is `image`, write "
        r"`cbs=MapBatch\(dict\(image='pixels'\)\)`"),
    (Pixels, dict(pixels=x, idx=y, labels=y), dict(loss_func=F.cross_entropy),
        "takes `pixels`, but the batch also has `idx`. To leave out what is not taken, write `cbs=MatchArgs`\n"),
    (Pixels, dict(pixels=x, answer=y), dict(loss_func=F.cross_entropy),
        r"also has `answer`.*for a target, `cbs=MapBatch\(dict\(answer='labels'\)\)`"),
    (WithMask, dict(pixels=x, attention_mask=x, labels=y), dict(loss_func=F.cross_entropy),
        r"needs `mask`.*If that is `attention_mask`, write `cbs=MapBatch\(dict\(attention_mask='mask'\)\)`"),
    (WithMask, dict(image=x, masks=x, labels=y), dict(loss_func=F.cross_entropy),
        "needs `pixels`, `mask`, but the batch has `image`, `masks`, `labels`. Did you mean `masks`"),
    (Whole, dict(image=x, index=y, label=y), dict(loss_func=F.cross_entropy),
        r"To pass the batch as a whole, write `DataLoaders\(…, split=lambda b: \(\(b,\), \(b\['label'\],\)\)\)`"),
    (Pixels, dict(pixels=x, labels=y), {},
        r"`loss_func` is None.*such as `Learner\(dls, model, nn.CrossEntropyLoss\(\)\)`"),
    (Pixels, dict(pixels=x, labels=x), {}, r"such as `Learner\(dls, model, nn.MSELoss\(\)\)`"),
    (Pixels, dict(pixels=x), dict(loss_func=F.cross_entropy),
        r"a batch of `train` has no targets.*Its fields are `pixels`"),
    (Own, dict(pixels=x, label=y), {},
        r"`Own.forward` computes it from `labels`: write `cbs=MapBatch\(dict\(label='labels'\)\)`"),
    (Pair, dict(pixels=x, labels=y), {},
        r"returned no loss, but tuple. Write `cbs=MapPred\(lambda o: dict\(loss=o\[1\], logits=o\[0\]\)\)`"),
])
def test_the_error_says_what_to_write(model, batch, kwargs, match):
    learn = Learner(DataLoaders([batch], device='cpu'), model(), **kwargs).remove_cb(ProgressCallback)
    w = learn.model.lin.weight.clone()
    with pytest.raises((TypeError, ValueError), match=match): learn.fit(1)
    assert torch.equal(w, learn.model.lin.weight) and learn.mode is None

class Coordinates(Pixels):
    def forward(self, x, y): return self.lin(x*y)

def pair_loss(pred, label, y): return F.cross_entropy(pred, label)+F.cross_entropy(pred, y)
def weights_after(model, batch, loss_func=F.cross_entropy, split=None, **kwargs):
    torch.manual_seed(0)
    learn = Learner(DataLoaders([batch], device='cpu', split=split), model(), loss_func, **kwargs)
    return learn.remove_cb(ProgressCallback).fit(1).model.lin.weight

def test_no_field_called_like_a_target_is_lost():
    batch = dict(pixels=x, y=y, label=1-y)
    told = ("`label`, `y` are all called like targets: the loss gets `label`, and `y` would be lost. "
        r".*`cbs=MatchArgs`.*`DataLoaders\(…, split=lambda b: \(b, \(b\['label'\], b\['y'\]\)\)\)`")
    for model in (Pixels, Own):
        with pytest.raises(TypeError, match=told): weights_after(model, batch)
    one = weights_after(Pixels, dict(pixels=x, label=1-y))
    assert torch.equal(weights_after(Pixels, batch, cbs=MatchArgs), one)
    both = weights_after(Pixels, batch, pair_loss, split=lambda b: (b, (b['label'], b['y'])))
    by_hand = weights_after(Pixels, (x, 1-y, y), pair_loss, split=lambda b: (b[:1], b[1:]))
    assert torch.equal(both, by_hand) and not torch.equal(both, one)
    inputs = weights_after(Coordinates, dict(x=x, y=x, label=y))
    assert torch.equal(inputs, weights_after(Pixels, dict(pixels=x*x, label=y)))
    told = "`label`, `target` are all called like targets: the loss gets `label`, and `target` would be lost"
    with pytest.raises(TypeError, match=told): weights_after(Coordinates, dict(x=x, y=x, target=1-y, label=y))

class Conditional(Pixels):
    def forward(self, pixels, label): return self.lin(pixels)+label[:,None]
class OfRun(Callback):
    def before_batch(self): self.learn.yb = self.learn.xb['y'],

@pytest.mark.parametrize('kwargs', [
    dict(split=lambda b: (b, (b['y'],))),
    dict(split=lambda b: (b, (b['label'],)), loss_func=lambda p,t: pair_loss(p, t, 1-t)),
    dict(split=lambda b: (b, (torch.stack([b['label'], b['y']], 1),)), loss_func=lambda p,t: pair_loss(p, *t.T)),
    dict(split=lambda b: (b, (b,)), loss_func=lambda p,t: pair_loss(p, t['label'], t['y'])), dict(cbs=OfRun)],
    ids=['another','first','stacked','mapping','callback'])
def test_fields_called_like_targets_may_be_split_by_hand(kwargs):
    own = kwargs.pop('loss_func', None)
    w = weights_after(Pixels, dict(pixels=x, y=y, label=1-y), own or F.cross_entropy, **kwargs)
    expected = weights_after(Pixels, (x, 1-y, y), pair_loss, split=lambda b: (b[:1], b[1:])) if own else \
        weights_after(Pixels, dict(pixels=x, y=y))
    assert torch.allclose(w, expected)

def test_a_model_that_takes_the_first_target_may_leave_out_another():
    "Its own loss, or its input, is of that one"
    one = weights_after(Own, dict(pixels=x, labels=y), None)
    assert torch.equal(weights_after(Own, dict(pixels=x, labels=y, label=1-y), None), one)
    one = weights_after(Conditional, dict(pixels=x, label=y))
    assert torch.equal(weights_after(Conditional, dict(pixels=x, label=y, target=1-y)), one)

@pytest.mark.parametrize('model,batch,kwargs', [
    (Pixels, dict(image=x, labels=y), dict(loss_func=F.cross_entropy, cbs=MapBatch(dict(image='pixels')))),
    (Pixels, dict(pixels=x, idx=y, labels=y), dict(loss_func=F.cross_entropy, cbs=MatchArgs)),
    (Pixels, dict(pixels=x, answer=y), dict(loss_func=F.cross_entropy, cbs=MapBatch(dict(answer='labels')))),
    (Own, dict(pixels=x, label=y), dict(cbs=MapBatch(dict(label='labels')))),
    (Pair, dict(pixels=x, labels=y), dict(cbs=MapPred(lambda o: dict(loss=o[1], logits=o[0])))),
])
def test_what_the_error_says_works(model, batch, kwargs):
    learn = Learner(DataLoaders([batch], [batch], device='cpu'), model(), metrics=accuracy,
        **kwargs).remove_cb(ProgressCallback).fit(1)
    assert 0<=learn.recorder[-1].accuracy<=1

@pytest.mark.parametrize('bs', [2, 7, 48])
@pytest.mark.parametrize('cls', [Words, NextWord])
def test_tokens_that_do_not_count_do_not_depend_on_the_batch_size(cls, bs):
    labels = ids.clone()
    labels[torch.rand(48, 6, generator=torch.Generator().manual_seed(3))<.5] = -100
    data = [dict(input_ids=ids[i:i+bs], attention_mask=mask[i:i+bs], labels=labels[i:i+bs]) for i in range(0, 48, bs)]
    learn = learner(cls, accuracy, DataLoaders(data, data, device='cpu'))
    row = learn.validate()
    with torch.no_grad(): pred,targ = learn.model.scores(ids, mask),labels
    if cls is NextWord: pred,targ = pred[:,:-1],targ[:,1:]
    kept = targ!=-100
    assert row.valid_loss==pytest.approx(F.cross_entropy(pred[kept], targ[kept]).item(), abs=1e-5)
    assert row.accuracy==pytest.approx((pred[kept].argmax(-1)==targ[kept]).float().mean().item(), abs=1e-6)

class SmoothedNextWord(NextWord):
    def loss(self, logits, labels):
        return F.cross_entropy(logits[:,:-1].flatten(0, 1), labels[:,1:].flatten(), label_smoothing=.3)
class PenalizedNextWord(NextWord):
    "Every score has a gradient, also the last"
    def loss(self, logits, labels): return super().loss(logits, labels) + .1*logits.square().mean()
class SmoothedWords(Words):
    def loss(self, logits, labels): return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=.3)
class ZeroNextWord(NextWord):
    "All words cost the same, at their own place and at the next"
    def __init__(self): super().__init__(); nn.init.zeros_(self.head.weight); nn.init.zeros_(self.head.bias)

def of_lengths(*ns): return [dict(input_ids=ids[:2,:n], attention_mask=mask[:2,:n], labels=ids[:2,:n]) for n in ns]

@pytest.mark.parametrize('n_epoch', [0, 1])
@pytest.mark.parametrize('cbs', [None, MixedPrecision('bf16')], ids=['fp32','bf16'])
@pytest.mark.parametrize('cls', [SmoothedNextWord, PenalizedNextWord, ZeroNextWord, SmoothedWords])
def test_a_language_model_whose_loss_is_none_of_the_usual_ones(cls, cbs, n_epoch, recwarn):
    data = of_lengths(2, 6)
    learn = learner(cls, accuracy, DataLoaders(data, data, device='cpu'), cbs=cbs)
    row = learn.fit(1).recorder[-1] if n_epoch else learn.validate()
    with torch.no_grad(): outs = [learn.model(**b) for b in data]
    following = issubclass(cls, NextWord)
    pairs = [(o.logits[:,:-1], b['labels'][:,1:]) if following else (o.logits, b['labels']) for o,b in zip(outs, data)]
    right = torch.cat([(p.argmax(-1)==t).flatten() for p,t in pairs]).float().mean()
    n = [t.numel() for _,t in pairs]
    atol = 5e-2 if cbs else 1e-5
    assert row.accuracy==pytest.approx(right.item(), abs=1e-6)
    assert row.valid_loss==pytest.approx(sum(o.loss.item()*k for o,k in zip(outs, n))/sum(n), abs=atol)
    assert [tuple(p.shape[:2]) for p in learn.get_preds(concat_dim=None)[0]]==[tuple(t.shape) for _,t in pairs]
    assert not [o for o in recwarn if 'place' in str(o.message)]

@pytest.mark.parametrize('cls', [SmoothedNextWord, ZeroNextWord])
def test_accumulated_batches_of_a_language_model_weigh_by_their_words(cls):
    data = of_lengths(2, 6)
    learn = learner(cls, dls=DataLoaders(data, device='cpu'), cbs=GradientAccumulation(4)).fit(1)
    torch.manual_seed(0)
    m,n = cls(),2*(1+5)
    for b in data: (m(**b).loss*2*(b['labels'].shape[1]-1)/n).backward()
    with torch.no_grad():
        for p in m.parameters(): p -= .1*p.grad
    assert same(learn, m)

def test_a_loss_that_does_not_show_its_targets_warns_about_metrics():
    data = of_lengths(6)
    learn = learner(SmoothedNextWord, accuracy, DataLoaders(data, data, device='cpu'))
    learn.model.requires_grad_(False)
    with pytest.warns(UserWarning, match='`SmoothedNextWord` does not show.*each with the target at its own place'):
        learn.validate()

def test_a_loss_that_does_not_show_its_targets_warns_once_and_only_where_a_metric_takes_predictions():
    data = of_lengths(6)
    def said(metrics):
        learn = learner(SmoothedNextWord, metrics, DataLoaders(data, data, device='cpu'))
        learn.model.requires_grad_(False)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            for _ in range(2): learn.validate()
        return [o for o in found if 'does not show' in str(o.message)]
    assert len(said(accuracy))==1 and not said(None)

class Fused(torch.autograd.Function):
    "Computes its gradient in forward, and frees it in backward"
    @staticmethod
    def forward(ctx, scores, targ):
        with torch.enable_grad():
            scores = scores.detach().requires_grad_()
            loss = F.cross_entropy(scores, targ, label_smoothing=.3)
            ctx.grad, = torch.autograd.grad(loss, scores)
        return loss.detach()
    @staticmethod
    def backward(ctx, g):
        res = ctx.grad*g
        del ctx.grad
        return res,None
class FusedNextWord(SmoothedNextWord):
    def loss(self, logits, labels): return Fused.apply(logits[:,:-1].flatten(0, 1), labels[:,1:].flatten())
class CheckpointedNextWord(SmoothedNextWord):
    "Its gradients can be computed for all leaves alone"
    def loss(self, logits, labels): return checkpoint(super().loss, logits, labels, use_reentrant=True)

@pytest.mark.parametrize('cls', [FusedNextWord, CheckpointedNextWord])
def test_a_loss_whose_graph_allows_one_backward_pass_trains(cls):
    def fitted(cls): return learner(cls, dls=DataLoaders(of_lengths(6, 6), device='cpu')).fit(1)
    assert same(fitted(cls), fitted(SmoothedNextWord).model)

class FirstWords(SmoothedWords):
    "The last word does not count"
    def loss(self, logits, labels): return super().loss(logits[:,:-1], labels[:,:-1])

def test_a_first_batch_of_one_class_does_not_tell_whether_targets_are_the_next_ones(recwarn):
    def batches(labels): return [dict(input_ids=ids[i:i+4], attention_mask=mask[i:i+4], labels=labels[i:i+4])
        for i in range(0, 16, 4)]
    labels = ids[:16].clone()
    labels[:4] = 0
    for cls in FirstWords,SmoothedNextWord:
        learn = learner(cls, accuracy, DataLoaders(batches(labels), batches(ids[:16]), device='cpu')).fit(1)
        with torch.no_grad(): pred,targ = learn.model.scores(ids[:16], None),ids[:16]
        if cls is SmoothedNextWord: pred,targ = pred[:,:-1],targ[:,1:]
        assert learn.recorder[-1].accuracy==pytest.approx((pred.argmax(-1)==targ).float().mean().item())
    assert not [o for o in recwarn if 'place' in str(o.message)]

@pytest.mark.parametrize('change',
    [lambda o: o.register_forward_hook(lambda m, xb, out: None), lambda o: torch.nn.utils.spectral_norm(o)],
    ids=['hook','spectral norm'])
@pytest.mark.parametrize('cls', [SmoothedNextWord, SmoothedWords])
def test_a_model_with_hooks_shows_its_targets_in_training(cls, change, recwarn):
    learn = learner(cls, accuracy, DataLoaders(of_lengths(6), of_lengths(6), device='cpu'))
    change(learn.model.head)
    learn.fit(1)
    with torch.no_grad(): pred,targ = learn.model.eval().scores(ids[:2], None),ids[:2]
    if cls is SmoothedNextWord: pred,targ = pred[:,:-1],targ[:,1:]
    assert learn.recorder[-1].accuracy==pytest.approx((pred.argmax(-1)==targ).float().mean().item())
    assert not [o for o in recwarn if 'place' in str(o.message)]

def test_rows_without_targets_do_not_hide_those_that_show_theirs(recwarn):
    labels = ids[:16].clone()
    labels[:4] = -100
    data = [dict(input_ids=ids[:16], attention_mask=mask[:16], labels=labels)]
    learn = learner(PenalizedNextWord, accuracy, DataLoaders(data, data, device='cpu'))
    with torch.no_grad(): pred = learn.model.scores(ids[4:16], None)[:,:-1]
    right = (pred.argmax(-1)==labels[4:,1:]).float().mean().item()
    assert learn.validate().accuracy==pytest.approx(right) and not [o for o in recwarn if 'place' in str(o.message)]

def test_a_piece_of_one_class_joins_those_that_show_their_targets():
    labels = ids.clone()
    labels[:4] = 0
    data = [dict(input_ids=ids[:8], attention_mask=mask[:8], labels=labels[:8])]
    learn = learner(SmoothedNextWord, accuracy, DataLoaders(data, data, device='cpu'),
        cbs=[MicroBatch(4), Recorder(train_metrics=True)])
    with torch.no_grad(): right = learn.model.scores(ids[:8], None)[:,:-1].argmax(-1)==labels[:8,1:]
    assert learn.fit(1).recorder[-1].train_accuracy==pytest.approx(right.float().mean().item())

class Fast:
    "There is no weak reference to it"
    __slots__ = ('f',)
    def __init__(self, f): self.f = f
    def __call__(self, a): return self.f(a)
def test_a_forward_may_be_any_object_that_is_called():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.forward = Fast(model[0])
    b = [dict(a=torch.randn(4, 1), labels=torch.randn(4, 1)) for _ in range(3)]
    assert Learner(DataLoaders(b, device='cpu'), model, torch.nn.functional.mse_loss).fit(1).train_iter==3
