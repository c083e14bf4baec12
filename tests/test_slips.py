"""Slips in a notebook: parts that are replaced or switched off at the wrong moment are named, and the Learner is usable
afterwards"""
import copy
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from small_fits import mk,net,same,weights

# Gradients that are switched off
@pytest.mark.parametrize('off', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize('train', [lambda o: o.fit(1), lambda o: o.lr_find(num_it=8, show_plot=False)])
def test_training_without_gradients_is_refused_at_once(off, train):
    learn = mk()
    with off(), pytest.raises(RuntimeError, match='Gradients are switched off here, by `torch.no_grad'): train(learn)
    train(learn)

def test_a_model_that_was_made_for_inference_is_named():
    with torch.inference_mode(): model = net()
    with pytest.raises(ValueError, match='`model` was made or loaded within'): mk(model=model).fit(1)

# Models and optimizers that are replaced
def other():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2))

def test_lr_find_refuses_a_model_that_the_optimizer_does_not_have():
    learn = mk().fit(1)
    learn.model = other()
    with pytest.raises(ValueError, match='`model` has parameters that `opt` does not know'): learn.lr_find()
    learn.model = nn.Linear
    with pytest.raises(TypeError, match='`model` is an `nn.Module`'): learn.lr_find()

@pytest.mark.parametrize('ev', ['before_fit', 'before_epoch', 'after_epoch'])
def test_a_model_that_is_replaced_in_a_fit_needs_an_optimizer(ev):
    def replace(self):
        if ev=='before_fit' or self.epoch==1: self.learn.model = new
    new,learn = other(),mk()
    with pytest.raises(ValueError, match=r'opt` does not know.*calls `learn.create_opt\(\)` then'):
        learn.fit(3, cbs=Callback(**{ev: replace}))
    assert learn.fit(1, reset_opt=True).model is new

def test_a_model_that_is_replaced_with_its_optimizer_is_trained():
    def replace(self):
        if self.epoch==1: self.learn.model = other(); self.learn.create_opt()
    learn = mk()
    learn.fit(2, cbs=Callback(before_epoch=replace))
    by_hand = mk(model=other()).fit(1)
    assert same(weights(learn.model), weights(by_hand.model))

def test_an_optimizer_that_is_replaced_by_one_of_another_kind_ends_no_fit():
    def replace(self): self.learn.opt = torch.optim.Adam(self.model.parameters(), lr=.03, eps=1e-3)
    learn = mk()
    learn.fit(1, cbs=Callback(before_fit=replace))
    assert not same(weights(learn.model), weights(net())) and get_hyper(learn.opt, 'eps')==[1e-3]
    assert isinstance(learn.fit(1).opt, torch.optim.Adam)

# Copies
def test_a_shallow_copy_would_take_the_callbacks():
    learn = mk()
    with pytest.raises(TypeError, match='write `copy.deepcopy'): copy.copy(learn)
    assert all(o.learn is learn for o in learn.fit(1).cbs)

# One input
x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
sources = dict(dataset=lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:,0].long()), 8),
    batches=lambda: [(x[:8], x[:8,0].long())])
@pytest.mark.parametrize('source', sources)
def test_predict_refuses_a_batch(source):
    learn = Learner(DataLoaders(sources[source](), device='cpu'), nn.Linear(4, 3), nn.CrossEntropyLoss())
    for many in x[:5], x[:1], x[0].numpy()[None]:
        with pytest.raises(ValueError, match=r'`item` is one input, as in `dls` of shape \(4,\), but got'):
            learn.predict(many)
    one,(all_,_) = learn.predict(x[:5][0]),learn.get_preds(dl=[(x[:5],)]) # as the error says
    torch.testing.assert_close(one[2], all_[0])

def test_predict_asks_no_loader_that_has_to_be_iterated():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): raise RuntimeError('asked')
    learn = Learner(DataLoaders(torch.utils.data.DataLoader(Stream(), 2), device='cpu'),
        nn.Linear(4, 3), F.cross_entropy)
    assert learn.predict(x[0])[2].shape==(3,)

def test_predict_draws_no_sample_for_the_run():
    class Counts(torch.utils.data.Dataset):
        n = 0
        def __len__(self): return 8
        def __getitem__(self, i): self.n += 1; return x[i]+torch.rand(4),i%3
    ds = Counts()
    learn = Learner(DataLoaders(torch.utils.data.DataLoader(ds, 4), device='cpu'),
        nn.Linear(4, 3), F.cross_entropy)
    state = torch.get_rng_state()
    learn.predict(x[0])
    assert ds.n==0 and torch.equal(state, torch.get_rng_state())
