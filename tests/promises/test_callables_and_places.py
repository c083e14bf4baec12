"Metrics of the loss as functions, one rule for files and folders, arguments of fastai: a clear result or a clear error"
import numpy as np
import pytest,torch
import matplotlib
from torch import nn
from torch.nn import functional as F
from learner.all import *
from learner.inspect.testing import synth_learner

matplotlib.use('agg')
g = torch.Generator().manual_seed(0)
P,T = torch.randn(4, 5, 3, generator=g),torch.randint(0, 3, (4, 5), generator=g)

# Metrics of the loss
def test_perplexity_of_predictions_is_the_exponential_of_their_cross_entropy():
    padded = T.clone()
    padded[:,3:] = -100
    for t in (T, padded): assert Perplexity()(P, t).item()==pytest.approx(F.cross_entropy(P.mT, t).exp().item())
    assert Perplexity()(P, T, loss_func=CrossEntropyLossFlat(ignore_index=1)).item()==pytest.approx(
        F.cross_entropy(P.mT, T, ignore_index=1).exp().item())

def test_averages_of_a_loss_take_the_loss():
    pred,targ = P[...,0],P[...,1]
    for m in (AvgSmoothLoss(), AvgLoss()):
        assert float(m(pred, targ, loss_func=F.mse_loss))==pytest.approx(F.mse_loss(pred, targ).item())

class TwoTerms(nn.Module):
    def forward(self, p, y): self.size = p.pow(2).mean(); return F.mse_loss(p, y)+self.size
def test_a_term_of_a_loss_is_that_of_these_predictions():
    assert float(LossMetric('size')(P, P, loss_func=TwoTerms()))==pytest.approx(P.pow(2).mean().item())

@pytest.mark.parametrize('m', [AvgSmoothLoss(), AvgLoss(), LossMetric('size')])
def test_without_a_loss_the_error_says_what_to_write(m):
    match = r"is computed from the loss: give the loss function too, as in `metric\("
    with pytest.raises(TypeError, match=match): m(P, P)

# Files and folders
outside = '../x'
named = dict(model_dir=lambda: synth_learner(model_dir=outside),
    save_preds=lambda: GatherPredsCallback(save_preds=outside+'.npy'),
    save_targs=lambda: synth_learner().get_preds(save_targs=outside+'.npy'),
    wandb=lambda: WandbLogger(dir=outside), tensorboard=lambda: TensorBoardLogger(outside),
    csv=lambda: CSVLogger(outside+'.csv'), checkpoint=lambda: Checkpoint(folder=outside),
    save=lambda: synth_learner().save(outside))
@pytest.mark.parametrize('kind', named)
def test_a_name_that_leads_out_of_its_folder_is_refused_where_it_is_given(kind):
    with pytest.raises(ValueError, match='names no file in .* give a name inside, or an absolute path'): named[kind]()

def test_predictions_are_saved_in_the_path_of_the_learner_or_at_an_absolute_one(tmp_path):
    learn = synth_learner(path=tmp_path/'run')
    preds,_ = learn.get_preds(save_preds='sub/p.npy', save_targs=tmp_path/'t.npy')
    assert np.allclose(np.load(tmp_path/'run'/'sub'/'p.npy'), preds) and (tmp_path/'t.npy').exists()
    learn.validate(cbs=GatherPredsCallback(save_preds='q.npy'))
    assert np.allclose(np.load(tmp_path/'run'/'q.npy'), preds)

def test_weights_may_be_in_the_path_itself_or_at_an_absolute_one(tmp_path):
    for k,where in {'.':tmp_path, '':tmp_path, str(tmp_path/'w'):tmp_path/'w'}.items():
        assert synth_learner(path=tmp_path, model_dir=k).save('m').parent==where

# Arguments of fastai
def test_the_figure_of_a_confusion_matrix_has_the_dots_that_were_asked_for():
    x,y = torch.randn(12, 3, generator=g),torch.arange(12)%3
    learn = Learner(DataLoaders([(x, y)], [(x, y)], device='cpu'), nn.Linear(3, 3), CrossEntropyLossFlat())
    interp = ClassificationInterpretation.from_learner(learn)
    assert interp.plot_confusion_matrix(figsize=(4, 4), dpi=50).figure.dpi==50
    with pytest.raises((TypeError,ValueError), match='`dpi`'): interp.plot_confusion_matrix(dpi=0)
    matplotlib.pyplot.close('all')

@pytest.mark.parametrize('k', ['n_workers','num_workers'])
def test_workers_belong_to_a_loader(k):
    with pytest.raises(TypeError, match=rf'no argument `{k}`. Workers belong to a loader: make it with `DataLoader\('):
        synth_learner().get_preds(**{k: 2})
