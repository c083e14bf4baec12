"Metrics, scores, the recorder and what is shown of it, where a fault would be easy to miss; and limits that go together"
import sys
import pytest,torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from learner.all import *

# Limits that go together
@pytest.mark.parametrize('limit,n,expected', [(1,3,1), (4,2,2), (None,3,3), (None,9,5)])
def test_a_sanity_check_takes_the_smaller_limit(limit, n, expected):
    "Of five validation batches"
    seen = []
    class Count(Callback):
        def before_sanity(self): self.checking = True
        def after_sanity(self): self.checking = False
        def after_batch(self):
            if not self.learn.training and self.checking: seen.append(self.learn.iter)
    cbs = [Count(), Sanity(n), *([Limit(valid=limit)] if limit else [])]
    synth_learner(n_train=2, n_valid=5, cbs=cbs).fit(1)
    assert seen==[*range(expected)]

def test_after_a_sanity_check_the_limits_are_those_of_before():
    synth_learner(n_train=2, n_valid=5, cbs=[Sanity(1), trace := Trace('before_batch','before_validate')]).fit(1)
    assert trace.after('before_validate').count('before_batch')==5

@pytest.mark.parametrize('how', ['environment','limits'])
def test_a_search_for_a_learning_rate_and_predictions_are_not_limited(how):
    learn = synth_learner(n_train=6, n_valid=3)
    with limit_batches(2) if how=='environment' else learn.no_logging():
        if how=='limits': learn.limits = {'train': 2, 'valid': 2}
        seen = []
        with learn.added_cbs(Callback(after_batch=lambda self: seen.append((self.mode,self.iter)))):
            learn.lr_find(num_it=14, stop_div=False, show_plot=False)
            assert seen==[('lr_find',i%6) for i in range(14)]
            seen.clear()
            assert len(learn.get_preds()[0])==3*16 and len(seen)==3
            seen.clear()
            learn.fit(1)
            assert seen==[('fit',0),('fit',1)]*2

# Scores
def valued(metric, pred, *yb, parts=3):
    "The value of `metric` over a validation of batches"
    class Same(nn.Module):
        def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(1))
        def forward(self, x): return x*self.w
    n = -(-len(pred)//parts)
    dls = DataLoaders([(pred,*yb)], DataLoader(TensorDataset(pred, *yb), n), n_inp=1, device='cpu')
    learn = Learner(dls, Same(), lambda pred, *yb: pred.float().mean(), metrics=metric).remove_cb(ProgressCallback)
    return learn.validate()[1]

targ = torch.tensor([[1.,0.,1.],[0.,1.,1.],[1.,1.,0.],[0.,0.,1.]])
logits = torch.where(targ>.5, 3., -3.)

@pytest.mark.parametrize('metric', [PrecisionMulti,RecallMulti,F1ScoreMulti,JaccardMulti,lambda **kwargs: FBetaMulti(2, **kwargs),accuracy_multi])
@pytest.mark.parametrize('thresh,sigmoid', [(.5,True), (.9,True), (.1,True), (2.,False), (-2.,False)])
def test_the_threshold_is_for_scores_and_targets_are_yes_or_no(metric, thresh, sigmoid):
    "Right predictions are right, wherever the threshold between them is"
    f = (lambda pred, targ: accuracy_multi(pred, targ, thresh=thresh, sigmoid=sigmoid)) if metric is accuracy_multi else metric(thresh=thresh, sigmoid=sigmoid)
    for t in (targ,targ.bool(),targ.long()): assert valued(f if metric is accuracy_multi else metric(thresh=thresh, sigmoid=sigmoid), logits, t)==pytest.approx(1)

@pytest.mark.parametrize('thresh,sigmoid', [(.5,True), (2.,False), (-2.,False)])
def test_wrong_labels_are_counted_wherever_the_threshold_is(thresh, sigmoid):
    pred = logits.clone()
    pred[0] = -pred[0]
    assert valued(HammingLossMulti(thresh=thresh, sigmoid=sigmoid), pred, targ)==pytest.approx(3/12)

# What is shown
class Terminal:
    "A stdout that says it is a terminal, or not"
    encoding,closed = 'utf-8',False
    def __init__(self, terminal=True): self.text,self.terminal = '',terminal
    def isatty(self): return self.terminal
    def write(self, s): self.text += s; return len(s)
    def flush(self): pass

@pytest.mark.parametrize('bars', ['auto','tqdm',True,'text',None,False])
def test_without_bars_there_is_none_whatever_was_asked_for_and_then_it_is_back(bars, monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, 'stdout', out)
    learn = synth_learner(n_train=3, n_valid=1, show=True)
    learn.add_cb(ProgressCallback(bars=bars, every=0)) # it takes the place of the one that is there
    with learn.no_bar() as same: learn.fit(1)
    assert same is learn and '\r' not in out.text and '%' not in out.text
    assert out.text.count('\n')==2 and 'valid_loss' in out.text # the table, of one epoch
    out.text = ''
    learn.fit(1)
    assert ('%' in out.text)==(bars in ('auto','tqdm',True)) and learn.progress.bars is bars
