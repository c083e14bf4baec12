"Numbers that were wrong once without a word, each beside its value by hand"
from dataclasses import dataclass
import copy,os,pickle,re
from functools import partial
from types import SimpleNamespace
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau as OnPlateau
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *
from learner.data.samples import of_entries
from learner.measure.advice import check_shapes
from learner.record.history import Row,missing
from learner.record.run_config import plain

def data(n=64, y=None, x=None, n_out=3, bs=16):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=gen) if x is None else x
    y = torch.randint(n_out, (n,), generator=gen) if y is None else y
    return DataLoader(TensorDataset(x, y), bs)

def mk(loss=None, model=None, metrics=(), opt_func=SGD, **kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(data(**kwargs), data(**kwargs), device='cpu'), model() if model else nn.Linear(4, 3),
        loss or nn.CrossEntropyLoss(), metrics=metrics, opt_func=opt_func).remove_cb(ProgressCallback)

# Training
@pytest.mark.parametrize('when', [dict(every=2), dict(every=6, unit='iter')])
def test_an_epoch_without_a_validation_is_no_plateau(when):
    learn = mk()
    learn.fit(8, lr=.05, cbs=[Validate(**when), TorchScheduler(partial(OnPlateau, patience=0, threshold=0))])
    assert {*learn.recorder.lrs}=={.05} # the loss falls at each validation

def test_a_plateau_is_still_met_where_only_some_epochs_validate():
    sched = TorchScheduler(partial(OnPlateau, patience=0, threshold=10., threshold_mode='abs'))
    learn = mk()
    learn.fit(8, lr=.05, cbs=[Validate(every=2), sched])
    assert learn.recorder.lrs[-1]<.05

class Flat(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(16, 3)
    def forward(self, x): return self.l(x.flatten(1))

ignoring = torch.cat([torch.full((3,), -100), torch.arange(61)%3])
@pytest.mark.parametrize('mix', [CutMix, MixUp, partial(MixUp, by_sample=False)], ids=['CutMix','samples','batch'])
@pytest.mark.parametrize('loss,y', [(nn.CrossEntropyLoss(weight=torch.tensor([1,10,.1])), torch.arange(64)%3),
                                    (nn.CrossEntropyLoss(), ignoring)], ids=['weights','ignored'])
def test_mixed_pieces_take_the_step_of_the_batch(mix, loss, y):
    def fit(*cbs):
        learn = mk(loss, Flat, x=torch.randn(64, 1, 4, 4, generator=torch.Generator().manual_seed(1)), y=y)
        torch.manual_seed(3)
        learn.fit(1, lr=.1, cbs=[mix(), *cbs])
        return learn.model.l.weight.detach(),torch.tensor(learn.recorder.losses)
    for a,b in zip(fit(), fit(MicroBatch(8))): torch.testing.assert_close(a, b)

@pytest.mark.parametrize('mix', [MixUp, partial(MixUp, by_sample=False)], ids=['samples','batch'])
def test_a_mixed_piece_without_targets_of_its_own_adds_nothing(mix):
    y = torch.cat([torch.full((16,), -100), torch.arange(48)%3])
    learn = mk(y=y, bs=32)
    before = learn.model.weight.detach().clone()
    learn.fit(1, cbs=[mix(), MicroBatch(16)])
    assert torch.tensor(learn.recorder.losses).isfinite().all() and learn.model.weight.isfinite().all()
    assert not torch.equal(learn.model.weight, before)

@pytest.mark.parametrize('opt_func', [SGD, RMSProp])
@pytest.mark.parametrize('name', ['weight_decay','wd'])
def test_groups_keep_their_own_decay(opt_func, name):
    a,b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = opt_func([{'params': [a], name: 0.}, dict(params=[b])], lr=.1, wd=.5)
    for p in (a,b): p.grad = torch.zeros(2)
    opt.step()
    assert torch.equal(a, torch.ones(2)) and torch.allclose(b, torch.full((2,), 1-.1*.5))

def test_all_biases_are_found():
    lstm,attention = nn.LSTM(3, 4, 2),nn.MultiheadAttention(4, 2, add_bias_kv=True)
    assert len(norm_bias_params(lstm))==4 and len(norm_bias_params(attention))==4

def test_the_tighter_limit_holds():
    learn = mk(bs=2)
    learn.fit(1, cbs=[Limit(train=2), ShortEpochCallback(.5)])
    assert learn.train_iter==2
    learn.fit(1, cbs=[Limit(train=30), ShortEpochCallback(.5)])
    assert learn.train_iter==16

# Losses
@pytest.mark.parametrize('loss', [MSELossFlat, L1LossFlat])
@pytest.mark.parametrize('shape', [(8,3,3), (8,3,5)])
def test_the_axis_moves_in_predictions_and_targets(loss, shape):
    p = torch.randn(shape)
    assert loss(axis=1)(p, p.clone())==0
    if shape[1]!=shape[2]: assert loss(axis=1)(p, p.movedim(1, -1).clone())==0

def test_the_axis_of_weights_moves_with_it():
    p,t,w = torch.randn(8, 3, 3),torch.randint(2, (8, 3, 3)).float(),torch.tensor([1.,2.,3.])
    got = BCEWithLogitsLossFlat(axis=1, flatten=False, pos_weight=w)(p, t)
    want = F.binary_cross_entropy_with_logits(p, t, pos_weight=w[:,None])
    torch.testing.assert_close(got, want)

@pytest.mark.parametrize('loss', [nn.PoissonNLLLoss(), nn.KLDivLoss(), MSELossFlat(flatten=False), F.poisson_nll_loss])
@pytest.mark.filterwarnings('ignore::UserWarning')
def test_every_loss_that_broadcasts_is_looked_at(loss):
    learn = mk(loss, partial(nn.Linear, 4, 1), y=torch.rand(64))
    with pytest.raises(ValueError, match='would compare 256 pairs'): learn.fit(1)

def columns(sizes):
    "Batches of `sizes`, for a model that predicts `(bs, 1)`; targets are `(bs,)`"
    gen = torch.Generator().manual_seed(0)
    batches = [(torch.randn(n, 3, generator=gen), torch.randn(n, generator=gen)) for n in sizes]
    return Learner(DataLoaders(batches, batches, device='cpu'), nn.Linear(3, 1), nn.MSELoss())

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('run', [lambda o: o.validate(), lambda o: o.get_preds(with_loss=True), lambda o: o.fit(1),
    lambda o: Interpretation.from_learner(o).top_losses(), lambda o: o.lr_find(show_plot=False)],
    ids=['validate','losses','fit','top losses','lr_find'])
@pytest.mark.parametrize('sizes', [(4,4,1), (1,4,4)], ids=['last','first'])
def test_every_way_to_a_loss_looks_at_shapes_also_where_the_first_batch_has_one_sample(run, sizes):
    with pytest.raises(ValueError, match='would compare 16 pairs'): run(columns(sizes))

@pytest.mark.filterwarnings('ignore:Using a target size')
def test_predictions_alone_take_targets_of_any_shape():
    assert columns((4,4,1)).get_preds()[0].shape==(9,1)

def squares(p, t): return ((p-t)**2).mean()
def column(p, t): return F.mse_loss(p[:,0], t)
ranks = lambda p, t: (p.view(-1)-t).abs().mean()
@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('loss,metric,bad', [(squares, None, '`squares`'), (column, squares, '`squares`'),
    (column, lambda p, t: (p-t).abs().mean(), '`metric`'), (F.mse_loss, squares, '`mse_loss`, `squares`')])
def test_functions_of_ones_own_that_broadcast_are_looked_at(loss, metric, bad):
    learn = mk(loss, partial(nn.Linear, 4, 1), y=torch.rand(64), metrics=metric)
    with pytest.raises(ValueError, match=f'{bad} would compare 256 pairs'): learn.fit(1)

@pytest.mark.parametrize('metric', [None, column, ranks, lambda p, t: squares(p.view_as(t), t)])
def test_functions_that_bring_shapes_together_themselves_are_fine(metric):
    learn = mk(column, partial(nn.Linear, 4, 1), y=torch.rand(64), metrics=metric)
    assert learn.fit(1).final_record['valid_loss']>0

def of_column(p, t): return F.mse_loss(p[:,:1], t[:,None])
def of_pairs(p, t): return F.mse_loss(p[:,0], t) + (p-p.T).abs().mean() # the pairs are meant
def of_squeezed(p, t): return F.mse_loss(p.squeeze(), t) + (p-p.T).abs().mean()
def of_outer(p, t): return ((p@p.T-torch.outer(t, t))**2).mean()
def of_nearest(p, t): return ((p-t)**2).min(0).values.mean() + ((p-t)**2).min(1).values.mean()
@pytest.mark.parametrize('loss', [of_column, of_pairs, of_squeezed, of_outer, of_nearest,
    lambda p, t: ((p-t[:,None])**2).mean()])
@pytest.mark.filterwarnings('ignore:.*is no average over samples')
def test_losses_for_targets_without_an_axis_are_fine(loss):
    learn = mk(loss, partial(nn.Linear, 4, 1), y=torch.rand(64))
    got = learn.fit(1).final_record['valid_loss']
    batches = [(learn.model(x), y) for x,y in learn.dls.valid]
    assert got==pytest.approx(sum(loss(*o).item() for o in batches)/len(batches), rel=1e-5)

def with_table(p, t): return squares(p, t) + 1e-5*torch.linspace(0, 1, 1000).sum()
def by_numpy(p, t): return torch.tensor(((p.detach().numpy()-t.numpy())**2).mean(), requires_grad=True)
@pytest.mark.parametrize('loss', [with_table, lambda p, t: torch.dist(p, t),
    lambda p, t: torch.ops.aten.mse_loss(p, t), by_numpy])
@pytest.mark.filterwarnings('ignore::UserWarning')
def test_losses_that_broadcast_are_told_by_their_values(loss):
    learn = mk(loss, partial(nn.Linear, 4, 1), y=torch.rand(64))
    with pytest.raises(ValueError, match='would compare 256 pairs'): learn.fit(1)

def test_compiled_losses_are_looked_at_and_stay_compiled():
    from torch._dynamo.testing import CompileCounter
    count = CompileCounter()
    learn = mk(torch.compile(squares, backend=count), partial(nn.Linear, 4, 1), y=torch.rand(64))
    with pytest.raises(ValueError, match='would compare 256 pairs'): learn.fit(1)
    f,before = torch.compile(of_column, backend=count),count.frame_count
    batch = SimpleNamespace(loss_func=f, pred=torch.randn(8, 1), yb=(torch.randn(8),))
    for n in 0,1: # before it is compiled, and afterwards
        assert check_shapes(batch) and count.frame_count==before+n
        f(batch.pred, *batch.yb)
        assert count.frame_count==before+1

class Reshapes(nn.MSELoss):
    def forward(self, p, t): return super().forward(p.view(-1), t.view(-1))
@pytest.mark.parametrize('loss', [MSELossFlat(), L1LossFlat(), partial(MSELossFlat()), BCEWithLogitsLossFlat(),
    Reshapes()])
def test_losses_that_bring_shapes_together_are_fine(loss):
    learn = mk(loss, partial(nn.Linear, 4, 1), y=torch.rand(64))
    got = learn.fit(1).final_record['valid_loss']
    x,y = learn.dls.valid.dataset.tensors
    assert got==pytest.approx(loss(learn.model(x).view(-1), y).item(), rel=1e-5)

# Without targets
class Encoder(nn.Linear):
    "Has a loss of its own"
    def forward(self, x): z = super().forward(x); return dict(loss=z.pow(2).mean(), z=z)
def apart(o): return ((o['z'] if isinstance(o, dict) else o)-1).pow(2).mean()

@pytest.mark.parametrize('model', [Encoder, nn.Linear])
@pytest.mark.parametrize('size', [16, 50])
def test_a_loss_of_predictions_alone_is_the_loss_of_batches_without_targets(model, size):
    "Also where the model returns another one; the average is that of all samples at once"
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=gen)
    dl = [(o,) for o in x.split(size)]
    torch.manual_seed(0)
    m = model(4, 3)
    by_hand = copy.deepcopy(m)
    opt = torch.optim.SGD(by_hand.parameters(), .1)
    for xb, in dl: apart(by_hand(xb)).backward(); opt.step(); opt.zero_grad()
    learn = Learner(DataLoaders(dl, dl, device='cpu'), m, apart, opt_func=torch.optim.SGD).remove_cb(ProgressCallback)
    learn.fit(1, .1)
    torch.testing.assert_close(m.weight, by_hand.weight)
    assert learn.final_record['valid_loss']==pytest.approx(apart(by_hand(x)).item(), rel=1e-5)

class AnyArguments(nn.Module):
    def __init__(self): super().__init__(); self.f = nn.MSELoss()
    def forward(self, *args): return self.f(*args)
def test_a_loss_that_may_take_targets_leaves_batches_without_them_to_the_model():
    dl = [(torch.randn(4, 4),) for _ in range(2)]
    def run(model, loss=None): return Learner(DataLoaders(dl, device='cpu'), model, loss or nn.MSELoss()).fit(1)
    first = Encoder(4, 3)
    own = [copy.deepcopy(first)(x)['loss'].item() for x, in dl][:1]
    for loss in (nn.MSELoss(), AnyArguments(), lambda *args: F.mse_loss(*args), lambda p, t=None: p['z'].sum()*1e3):
        assert run(copy.deepcopy(first), loss).recorder.raw_losses[:1]==pytest.approx(own)
    with pytest.raises(ValueError, match='`train` has no targets.*A loss of predictions alone is a `loss_func` with'):
        run(nn.Linear(4, 3))

# A length that is not that of the batches
class Long:
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __iter__(self): return iter(data())
@pytest.mark.parametrize('n,told', [(3, True), (4, False), (9, True)])
def test_a_loader_with_more_or_less_batches_than_its_length_is_told(n, told, recwarn):
    learn = Learner(DataLoaders(Long(n), device='cpu'), nn.Linear(4, 3), nn.CrossEntropyLoss())
    learn.fit(3)
    assert [f'gave 4 batches, but its length is {n}' in str(o.message) for o in recwarn]==[True]*told
    learn.fit(2, cbs=ShortEpochCallback(.5)) # where it is not seen whether there are more
    assert len(recwarn)==told

weight = torch.tensor([1.,5.,.1])
@pytest.mark.parametrize('loss', [partial(CrossEntropyLossFlat(weight=weight)), partial(F.cross_entropy, weight=weight),
    BaseLoss(lambda: partial(F.cross_entropy, weight=weight)), partial(partial(F.cross_entropy, weight=weight))])
def test_settings_of_a_loss_are_found_however_deep(loss):
    learn = mk(loss, n=60)
    x,y = learn.dls.valid.dataset.tensors
    want = F.cross_entropy(learn.model(x), y, weight=weight).item()
    assert learn.validate().valid_loss==pytest.approx(want, rel=1e-5)

def test_ignored_targets_are_found_however_deep():
    learn = mk(partial(CrossEntropyLossFlat(ignore_index=2)), metrics=accuracy)
    x,y = learn.dls.valid.dataset.tensors
    kept = y!=2
    want = (learn.model(x).argmax(1)==y)[kept].float().mean().item()
    assert learn.validate().accuracy==pytest.approx(want)
    assert torch.allclose(learn.get_preds()[0].sum(1), torch.ones(64)) # probabilities: its activation is found, too

# Inference and metrics
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=.5, batch_first=True)
        self.body,self.head = nn.TransformerEncoder(layer, 2),nn.Linear(4, 3)
    def forward(self, x): return self.head(self.body(x[:,None])[:,0])

class Recurrent(nn.Module):
    def __init__(self): super().__init__(); self.body,self.head = nn.LSTM(4, 8, 2, dropout=.5),nn.Linear(8, 3)
    def forward(self, x): return self.head(self.body(x[None])[0][0])

@pytest.mark.parametrize('model', [Attending, Recurrent])
def test_dropout_inside_of_layers_varies_too(model):
    learn = mk(model=model)
    a,b = (learn.get_preds(cbs=MCDropoutCallback)[0] for _ in range(2))
    assert (a-b).abs().max()>1e-4
    assert torch.equal(learn.get_preds()[0], learn.get_preds()[0])

class Words(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 21)
    def forward(self, x): return self.l(x).view(-1, 7, 3)

def test_perplexity_is_one_of_targets_for_a_sum_too():
    y = torch.arange(64*7).view(64, 7)%3
    y[:5,3:] = -100
    mean,summed = (mk(CrossEntropyLossFlat(reduction=o), Words, Perplexity(), y=y).validate().perplexity
        for o in ('mean','sum'))
    assert mean==pytest.approx(summed) and mean<10

def test_functions_of_scores_do_not_get_decisions():
    learn = mk(model=partial(nn.Linear, 4, 2), n_out=2, metrics=from_sklearn('roc_auc_score'))
    with pytest.raises(ValueError, match='`roc_auc_score` measures scores.*is_class=False'): learn.validate()
    good = from_sklearn('roc_auc_score', is_class=False, activation=lambda o: o.softmax(-1)[:,1])
    from sklearn.metrics import roc_auc_score
    learn.metrics = [good]
    x,y = learn.dls.valid.dataset.tensors
    assert learn.validate().roc_auc_score==pytest.approx(roc_auc_score(y, learn.model(x).softmax(1)[:,1].detach()))

def test_an_average_is_one_of_labels():
    from sklearn.metrics import f1_score
    y = (torch.rand(64, 5, generator=torch.Generator().manual_seed(2))>.5).float()
    macro = from_sklearn('f1_score', thresh=.5, average='macro')
    learn = mk(nn.BCEWithLogitsLoss(), partial(nn.Linear, 4, 5), macro, y=y)
    pred = learn.model(learn.dls.valid.dataset.tensors[0])>0
    assert learn.validate().f1_score==pytest.approx(f1_score(y, pred, average='macro'))

def test_constant_targets():
    one,ramp = torch.ones(4),torch.arange(4.)
    for score in (R2Score, ExplainedVariance): assert score()(one, one)==1 and score()(ramp, one)==0

@pytest.mark.parametrize('score', [R2Score, ExplainedVariance])
@pytest.mark.parametrize('pred,targ', [([1.,2,3], [1,torch.nan,3]), ([1,torch.nan,3], [1.,2,3]),
    ([1,torch.nan,3], [1.,1,1])], ids=['target','prediction','constant targets'])
def test_a_score_of_a_number_that_is_nan_is_nan(score, pred, targ):
    assert score()(torch.tensor(pred), torch.tensor(targ)).isnan()

def test_true_is_the_class_1():
    pred,targ = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)),torch.arange(20)%2
    assert torch.equal(F1Score(pos_label=True)(pred, targ), F1Score()(pred, targ)) and F1Score()(pred, targ).ndim==0

# Records
def test_one_batch_without_targets_does_not_hide_the_loss():
    y = torch.arange(64)%3
    y[:16] = -100
    learn = mk(y=y)
    learn.fit(2)
    raw = torch.tensor(learn.recorder.raw_losses)
    assert raw.isnan().sum()==2
    avg,n = 0.,0
    for o in raw[~raw.isnan()]: avg,n = avg*.98+o.item()*.02,n+1
    assert learn.recorder.last('train_loss')==pytest.approx(avg/(1-.98**n))

def test_a_loss_that_stays_nan_is_shown():
    learn = mk()
    with torch.no_grad(): learn.model.weight.fill_(float('nan'))
    learn.fit(1)
    assert learn.recorder[-1,'train_loss']!=learn.recorder[-1,'train_loss']

@pytest.mark.parametrize('again', [lambda o: pickle.loads(pickle.dumps(o)), copy.copy, copy.deepcopy])
def test_a_missing_value_is_missing_in_copies(again):
    row = again(Row(a=1., b=missing, c=float('nan')))
    assert row.b is missing and row.c is not missing and row.names==('a','b','c') and row.a==1

def test_other_files_have_another_checksum():
    def files(at): return [f'data/img_{i:04}.png' for i in range(at, at+1000)]
    assert of_entries(files(0), 1000)!=of_entries(files(1000), 1000)
    elsewhere = [os.path.join('somewhere', 'else', o) for o in files(0)]
    assert of_entries(files(0), 1000)==of_entries(elsewhere, 1000)

def test_a_set_has_one_description():
    assert plain({'gamma','alpha','delta','beta'})==('alpha','beta','delta','gamma') # whatever strings hash to here

def test_no_input_at_all_is_refused():
    with pytest.raises(ValueError, match='`n_inp` is 1 or more, but got 0'): DataLoaders([(1,2)], n_inp=0)

# Spikes, ledgers, fingerprints, interpretation
@pytest.mark.parametrize('factor', [5., float('inf')])
@pytest.mark.parametrize('sign,top', [(-1,-10.), (-1,0.), (1,10.)])
def test_usual_losses_are_no_spikes_whatever_their_sign(sign, top, factor):
    from learner.resume.spike_guard import Watch
    def seen(*last):
        watch = Watch('loss', factor, 20)
        for i,v in enumerate([top-i%3 for i in range(20)] + [*last]): watch.append(torch.tensor(float(v)), i, i)
        return watch.spike(wait=True)
    assert seen() is None and seen(top+1) is None
    assert factor>5 or seen(1000.).numbers=={20}

def test_ignored_targets_do_not_make_a_sample_wrong():
    from learner.diagnose.ledger import Judge
    judge = Judge(nn.CrossEntropyLoss(ignore_index=255), None, (torch.zeros(2, 4, dtype=torch.long),))
    pred = F.one_hot(torch.tensor([[0,1,2,0],[0,1,2,0]]), 3).float().movedim(-1, 1)*9
    right = judge._right(pred, (torch.tensor([[0,1,2,255],[0,1,1,255]]),))
    assert right.tolist()==[True,False]

def test_a_confusion_matrix_leaves_out_what_a_partial_ignores():
    y = torch.arange(64)%3
    y[:5] = 255
    learn = mk(partial(F.cross_entropy, ignore_index=255), y=y)
    cm = ClassificationInterpretation.from_learner(learn).confusion_matrix()
    assert cm.shape==(3,3) and cm.sum()==59

def test_sparse_gradients_have_a_norm_in_fingerprints():
    class Bag(nn.Module):
        def __init__(self): super().__init__(); self.e = nn.EmbeddingBag(10, 3, sparse=True)
        def forward(self, x): return self.e(x)
    x = torch.randint(10, (64, 4), generator=torch.Generator().manual_seed(0))
    def fit():
        learn = mk(model=Bag, x=x, opt_func=torch.optim.SGD)
        learn.fit(1, lr=.1, cbs=Fingerprint)
        return learn
    a,b = fit(),fit()
    assert not diff(a, b)

def test_a_state_without_an_optimizer_brings_none(tmp_path):
    learn = mk(opt_func=Adam)
    learn.path = tmp_path
    learn.save_state('init')
    learn.fit(1)
    assert learn.opt.state
    learn.load_state('init')
    assert not learn.opt.state
    learn.fit(1)
    again = mk(opt_func=Adam).fit(1)
    assert torch.equal(learn.model.weight, again.model.weight)

def test_no_number_stands_for_nan():
    from learner.result.predict import same_values
    nan,inf = float('nan'),float('inf')
    def t(*v): return torch.tensor(v)
    assert same_values(t(nan, 1.), t(nan, 1.)) and same_values(t(inf), t(inf))
    assert not same_values(t(nan), t(0.)) and not same_values(t(inf), t(torch.finfo(torch.float32).max))

def test_seeds_up_to_the_limit_are_counted():
    from learner.compare import comparison as c
    found = (c.seeds_needed(e, [1., 1.]) for e in torch.linspace(.045, .038, 30).tolist())
    n = next(n for n in found if n is None or n>8192)
    assert n is not None and 8192<n<=10_000

# Samples of batches that are more than tensors
@dataclass
class Out: value:torch.Tensor

@dataclass(frozen=True)
class Both:
    a:torch.Tensor
    b:object = None

class Plain:
    def __init__(self, value): self.value = value

P,V,W = (torch.randn(8, generator=torch.Generator().manual_seed(i)) for i in range(3))
def weighted_mse(p, y, w): return ((p-y)**2*torch.as_tensor(w)).mean()
@pytest.mark.parametrize('given', [lambda w: w, lambda w: w.numpy(), lambda w: w.tolist(), lambda w: tuple(w.tolist())],
    ids=['tensor','array','list','tuple'])
def test_weights_of_samples_go_with_their_sample(given):
    assert torch.allclose(per_sample(weighted_mse)(P, V, given(W)), (P-V)**2*W)

@pytest.mark.parametrize('pred,targ', [(Out(P), V), (Out(P), Out(V)), (Both(P, b=[Out(V)]), V)])
def test_dataclasses_are_cut_into_samples(pred, targ):
    def tensor(o): return next(o for o in vars(o).values() if isinstance(o, torch.Tensor)) if hasattr(o, '__dict__') \
        and not isinstance(o, torch.Tensor) else o
    losses = per_sample(lambda p, t: ((tensor(p)-tensor(t))**2).mean())(pred, targ)
    assert torch.allclose(losses, (P-V)**2)

def test_what_is_for_all_samples_is_left_whole():
    "Weights of classes, and a hidden state that has its samples along the second axis"
    scores,y,w,h = torch.randn(8, 3),torch.arange(8)%3,torch.tensor([1.,2,3]),torch.randn(2, 8, 4)
    def loss(pred, y, w): return (F.cross_entropy(pred[0], y, reduction='none')*w[y] + pred[1].sum((0,2))).mean()
    expected = F.cross_entropy(scores, y, reduction='none')*w[y] + h.sum((0,2))
    assert torch.allclose(per_sample(loss)((scores, h), y, w), expected, atol=1e-5)

@pytest.mark.parametrize('pred', [Plain(P), torch.distributions.Normal(P, 1.)])
def test_predictions_that_cannot_be_cut_have_no_losses_of_samples(pred):
    def loss(p, y): return ((getattr(p, 'value', None) if isinstance(p, Plain) else p.mean)-y).square().mean()
    with pytest.raises(ValueError, match=f"`loss` cannot be computed for each sample alone. A `{type(pred).__name__}` "
            "cannot be cut into samples: put tensors or arrays in its place"): per_sample(loss)(pred, V)

class Wrapped(nn.Module):
    def __init__(self, wrap): super().__init__(); torch.manual_seed(0); self.net,self.wrap = nn.Linear(3, 1),wrap
    def forward(self, x): return self.wrap(self.net(x)[:,0])
def out_squares(o, y, w=1.): return ((o.value-y)**2*torch.as_tensor(w)).mean()
out_squares.n_items = lambda *targs: len(targs[0])
def wrapped_batch():
    gen = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=gen),torch.randn(8, generator=gen),torch.rand(8, generator=gen)

@pytest.mark.parametrize('given', [lambda w: w.numpy(), lambda w: w.tolist()], ids=['array','list'])
@pytest.mark.parametrize('wrap', [Out, Plain])
def test_pieces_have_their_own_weights(given, wrap):
    x,y,w = wrapped_batch()
    m = Wrapped(wrap)
    out_squares(m(x), y, w).backward()
    dls = DataLoaders([(x, y, given(w))], device='cpu', split=lambda b: ((b[0],), b[1:]))
    seen = []
    learn = Learner(dls, Wrapped(wrap), out_squares, opt_func=torch.optim.SGD, lr=1.)
    learn.fit(1, cbs=[MicroBatch(3), Callback(after_batch=lambda learn: seen.append(learn.pred))])
    assert torch.allclose(learn.model.net.weight, m.net.weight-m.net.weight.grad, atol=1e-6)
    if wrap is Out: assert torch.allclose(seen[0].value, m(x).value)
    else: assert seen[0] is None

def test_inputs_that_cannot_be_cut_are_refused_in_pieces():
    x,y,_ = wrapped_batch()
    dls = DataLoaders([(x, Plain(x), y)], device='cpu')
    with pytest.raises(ValueError, match="A `Plain` cannot be cut into samples: put tensors or arrays in its place"):
        Learner(dls, Wrapped(Out), out_squares).fit(1, cbs=MicroBatch(3))

@pytest.mark.parametrize('given', [lambda w: w.numpy(), lambda w: w.tolist(), Plain], ids=['array','list','object'])
def test_targets_that_would_not_be_mixed_are_refused(given):
    x,y,w = wrapped_batch()
    dls = DataLoaders([(x, y, given(w))], device='cpu', split=lambda b: ((b[0],), b[1:]))
    with pytest.raises(ValueError, match="`MixUp` mixes tensors, but the batch has a `(ndarray|list|Plain)` of 8"):
        Learner(dls, Wrapped(Out), out_squares).fit(1, cbs=MixUp())

def test_targets_in_dataclasses_are_mixed():
    x,y,_ = wrapped_batch()
    seen,dls = [],DataLoaders([(x, Out(y))], device='cpu')
    def loss(o, t): return ((o.value-t.value)**2).mean()
    Learner(dls, Wrapped(Out), loss).fit(1, cbs=[MixUp(), Callback(
        after_batch=lambda learn: seen.append((learn.x, learn.y.value)))])
    A = torch.cat([x, y[:,None]], 1) # each mixed row is on the line between two rows
    B = torch.cat([seen[0][0], seen[0][1][:,None]], 1)
    assert not torch.allclose(B, A)
    for b in B:
        gaps = [((b-q)-(p-q)*((b-q)@(p-q)/((p-q)@(p-q)).clamp(min=1e-9))).abs().max() for p in A for q in A]
        assert min(gaps)<1e-5

def masked(p, *t):
    "An average over what a mask keeps"
    y,m = t if len(t)==2 else t[0].values() if isinstance(t[0], dict) else t[0] if isinstance(t[0], tuple) \
        else vars(t[0]).values()
    return ((p[:,0]-y)**2*m).sum()/m.sum()

@pytest.mark.parametrize('targets', [lambda y,m: dict(y=y, m=m), lambda y,m: (y, m), lambda y,m: Both(y, m)],
    ids=['dict','tuple','dataclass'])
def test_a_loss_of_structured_targets_that_is_no_average_is_named(targets):
    gen = torch.Generator().manual_seed(0)
    x,y,m = torch.randn(12, 4, generator=gen),torch.randn(12, generator=gen),torch.tensor([1.,0,0,0]+[1.]*8)
    data = [(x[i:i+4], targets(y[i:i+4], m[i:i+4])) for i in range(0, 12, 4)]
    torch.manual_seed(0)
    learn = Learner(DataLoaders(data, data, device='cpu'), nn.Linear(4, 1), masked)
    with torch.no_grad(): both = masked(learn.model(x[:8]), y[:8], m[:8]).item()
    with pytest.warns(UserWarning, match='is no average over samples') as said: learn.validate()
    told = re.search('for the first two batches together it is ([0-9.]+), and', str(said[0].message))
    assert float(told[1])==pytest.approx(both, rel=1e-5)

# Losses that are sums
class Squares(nn.Module):
    reduction = 'sum'
    def forward(self, p): return p.pow(2).sum()
class SquaresBeside(Squares):
    "With a target that it does not use"
    def forward(self, p, y): return super().forward(p)

@pytest.mark.parametrize('cbs', [(), GradientAccumulation(24), MicroBatch(4)], ids=str)
@pytest.mark.parametrize('bs', [8, 12])
def test_a_sum_that_takes_no_targets_is_one(cbs, bs):
    "As the loss of an autoencoder may be: shown for one sample, and added up with its weight"
    def fitted(f, parts):
        torch.manual_seed(0)
        x = torch.randn(24, 4)
        batches = [(x[i:i+bs],)*parts for i in range(0, 24, bs)]
        learn = Learner(DataLoaders(batches, batches, device='cpu'), nn.Linear(4, 3), f, opt_func=SGD, lr=.01, cbs=cbs)
        learn.remove_cb(ProgressCallback).fit(2)
        with torch.no_grad(): true = learn.model(x).pow(2).sum().item()/24
        assert learn.recorder[-1,'valid_loss']==pytest.approx(true, rel=1e-5)
        return learn.model.weight.detach(),learn.recorder.raw_losses
    (w,losses),(v,others) = fitted(Squares(), 1),fitted(SquaresBeside(), 2)
    assert torch.allclose(w, v, rtol=1e-5) and losses==pytest.approx(others, rel=1e-5)

@pytest.mark.parametrize('first', ['mean','sum'])
def test_a_loss_that_becomes_a_sum_is_shown_for_a_sample(first):
    def switch(cb):
        if cb.epoch==1: cb.learn.loss_func = nn.MSELoss(reduction='sum')
    torch.manual_seed(0)
    x,y = torch.randn(16, 3),torch.randn(16, 2)
    batches = [(x[i:i+4], y[i:i+4]) for i in range(0, 16, 4)]
    learn = Learner(DataLoaders(batches, batches, device='cpu'), nn.Linear(3, 2), nn.MSELoss(reduction=first),
        opt_func=SGD, lr=0., cbs=Callback(before_epoch=switch)).remove_cb(ProgressCallback).fit(2)
    with torch.no_grad(): true = [F.mse_loss(learn.model(x), y, reduction='sum').item()/4 for x,y in batches]
    assert learn.recorder.raw_losses[4:]==pytest.approx(true, rel=1e-5)
    assert learn.recorder[-1,'valid_loss']==pytest.approx(sum(true)/4, rel=1e-5)

# Metrics of batches with two targets
@pytest.mark.parametrize('metric', [accuracy, error_rate, top_k_accuracy, accuracy_multi,
    partial(accuracy_multi, sigmoid=False)], ids=['accuracy','error rate','top k','multi','multi without sigmoid'])
def test_a_second_target_is_no_setting_of_a_metric(metric):
    "A weight of each sample would be the threshold of `accuracy_multi`"
    torch.manual_seed(0)
    ds = TensorDataset(torch.randn(32, 4), torch.rand(32).round(), torch.rand(32))
    def loss(p, y, w): return (F.binary_cross_entropy_with_logits(p[:,0], y, reduction='none')*w).mean()
    dls = DataLoaders(DataLoader(ds, 8), DataLoader(ds, 8), device='cpu', n_inp=1)
    learn = Learner(dls, nn.Linear(4, 1), loss, metrics=metric).remove_cb(ProgressCallback)
    with pytest.raises(TypeError, match='compares one tensor of predictions with one of targets'): learn.fit(1)

def test_settings_of_a_metric_may_be_given_by_place():
    p,t = torch.tensor([[.1,.9],[.8,.2]]),torch.tensor([1,1])
    assert accuracy(p, t, 1)==.5 and accuracy_multi(p, p.round(), .05, False)==.5
    with pytest.raises(TypeError, match='takes predictions, targets, `axis`, `ignore_index`, but got 5 values'):
        accuracy(p, t, 1, -100, 0)

def test_a_metric_of_ones_own_may_have_an_axis_under_any_name():
    class Axis(AvgMetric): dim_argmax = 1
    learn = mk(nn.CrossEntropyLoss(), lambda: nn.Sequential(nn.Linear(4, 25), nn.Unflatten(1, (5,5))),
        y=torch.randint(0, 5, (64,5)), metrics=Axis(lambda p, t: (p.argmax(1)==t).float().mean(), name='right'))
    assert 0<=learn.fit(1).final_record['right']<=1
