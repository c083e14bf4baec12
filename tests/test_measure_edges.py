"""Metrics, scores, the recorder and what is shown of it, where a fault would be easy to miss; and limits that go
together"""
import sys
from types import ModuleType
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
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

@pytest.mark.parametrize('metric',
    [PrecisionMulti,RecallMulti,F1ScoreMulti,JaccardMulti,lambda **kwargs: FBetaMulti(2, **kwargs),accuracy_multi])
@pytest.mark.parametrize('thresh,sigmoid', [(.5,True), (.9,True), (.1,True), (2.,False), (-2.,False)])
def test_the_threshold_is_for_scores_and_targets_are_yes_or_no(metric, thresh, sigmoid):
    "Right predictions are right, wherever the threshold between them is"
    f = ((lambda pred, targ: accuracy_multi(pred, targ, thresh=thresh, sigmoid=sigmoid))
        if metric is accuracy_multi else metric(thresh=thresh, sigmoid=sigmoid))
    for t in (targ,targ.bool(),targ.long()):
        assert valued(f if metric is accuracy_multi else metric(thresh=thresh, sigmoid=sigmoid), logits,
            t)==pytest.approx(1)

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

# In a notebook
@pytest.fixture
def shown(monkeypatch, tmp_path):
    """A function that runs another one as a cell of a notebook does, and returns what was displayed: lists of `(data,
    id, whether it is an update)`"""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path))
    shell = InteractiveShell.instance(user_module=ModuleType('cell'), config=Config(HistoryManager=dict(enabled=False)))
    def run(f):
        with capture_output() as out: f()
        return [(o.data,o.transient.get('display_id'),o.update) for o in out.outputs],out.stdout
    yield run
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()
    sys.modules.pop('cell', None)

def test_a_notebook_has_one_display_which_ends_as_a_table_with_the_best_rows_in_bold(shown):
    learn = synth_learner(n_train=3, n_valid=1, show=True)
    learn.add_cb(ProgressCallback(every=0, mark_best=True))
    out,text = shown(lambda: learn.fit(2))
    html = [data['text/html'] for data,_,_ in out]
    assert text=='' and len({i for _,i,_ in out})==1 and [new for _,_,new in out]==[False]+[True]*(len(out)-1)
    bars = [o for o in html if '<progress' in o]
    assert (['max="3" value="3"' in bars[2],'epoch 0 train 3/3' in bars[2],'epoch 0 valid 1/1' in bars[3]]==[True]*3
        and len(bars)==8)
    # the row of the first epoch stays above
    assert all('<table' in o for o in bars[4:]) and not any('<table' in o for o in bars[:4])
    assert html[-1].count('<tr>')==3 and '<progress' not in html[-1] and 'valid_loss' in html[-1]
    best = min(learn.recorder['valid_loss'])
    assert f'<b>{best:.6f}</b>' in html[-1] and html[-1].count('<b>')==2

def test_a_fit_that_fails_leaves_its_table_without_a_bar(shown):
    learn = synth_learner(n_train=3, n_valid=1, show=True)
    learn.add_cb(ProgressCallback(every=0))
    def fit():
        # the third of the second epoch
        with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=Raise('after_pred', ZeroDivisionError, n=7))
    html = [data['text/html'] for data,_,_ in shown(fit)[0]]
    assert '2/3' in html[-2] and '<progress' not in html[-1] and html[-1].count('<tr>')==2

def test_a_notebook_without_bars_shows_the_table_alone(shown):
    learn = synth_learner(n_train=3, n_valid=1, show=True)
    with learn.no_bar(): out,text = shown(lambda: learn.fit(2))
    assert (text=='' and not any('<progress' in data['text/html'] for data,_,_ in out)
        and out[-1][0]['text/html'].count('<tr>')==3)

def test_a_bar_of_a_loader_without_a_length_has_no_end(shown):
    class Endless:
        def __iter__(self): yield from synth_dls(2).train
    learn = synth_learner(dls=DataLoaders(Endless(), device='cpu'), show=True)
    learn.add_cb(ProgressCallback(every=0))
    bars = [o for data,_,_ in shown(lambda: learn.fit(1))[0] if '<progress' in (o := data['text/html'])]
    assert len(bars)==2 and 'max=' not in bars[0] and '1/?' in bars[0]

def test_a_graph_is_one_display_that_grows_with_the_epochs(shown):
    import matplotlib.pyplot as plt
    learn = synth_learner(n_train=3, n_valid=1, cbs=ShowGraphCallback)
    out,_ = shown(lambda: learn.fit(2))
    assert [new for _,_,new in out]==[False,True] and len({i for _,i,_ in out})==1 and not plt.get_fignums()
    again,_ = shown(lambda: learn.fit(1))
    assert [new for _,_,new in again]==[False] and again[0][1]!=out[0][1] # a display of its own

def test_a_graph_has_room_for_its_last_point(shown, monkeypatch):
    import matplotlib.pyplot as plt
    figs = []
    monkeypatch.setattr(plt, 'close', figs.append)
    shown(lambda: synth_learner(n_train=3, n_valid=1, cbs=ShowGraphCallback).fit(2))
    monkeypatch.undo()
    plt.close('all')
    assert [o.axes[0].get_xlim()[1]>6 for o in figs]==[True, True] and max(figs[1].axes[0].lines[1].get_xdata())==6

def test_a_graph_of_an_epoch_without_a_batch_ends_no_fit(shown):
    skip = Raise('before_train', CancelTrainException)
    shown(lambda: synth_learner(n_train=3, n_valid=1, cbs=[ShowGraphCallback, skip]).fit(1))

# What was recorded
def test_what_comes_into_the_next_row_can_be_read_before_it_is_written():
    seen = []
    class Look(Callback):
        order = 100
        def after_train(self): seen.append(dict(self.learn.recorder.coming))
        def before_row(self): seen.append(dict(self.learn.recorder.coming))
        def after_row(self): seen.append(dict(self.learn.recorder.coming))
    learn = synth_learner(n_train=2, n_valid=1, cbs=Look).fit(1)
    assert [[*o] for o in seen]==[['train_loss'],['train_loss','valid_loss'],[]]
    assert seen[1]=={k:learn.recorder[-1, k] for k in ('train_loss','valid_loss')}

def test_the_history_is_a_data_frame_where_there_is_pandas():
    pandas = pytest.importorskip('pandas')
    learn = synth_learner(n_train=2, n_valid=1).fit(2)
    df = learn.recorder.rows.to_df()
    assert isinstance(df, pandas.DataFrame) and [*df.columns]==learn.recorder.metric_names and [*df.epoch]==[0,1]

def test_a_setting_whose_class_has_no_signature_is_written_down_by_its_type():
    "As classes in C++ have none"
    tensor = pytest.importorskip('torch.distributed.tensor')
    class Places(Callback):
        def __init__(self, where): self.where = where
    learn = synth_learner(n_train=1, n_valid=0, cbs=Places(tensor.Replicate())).fit(1)
    assert learn.run_config['callbacks']['places']['where']=='Replicate'

@pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning')
def test_a_compiled_loss_is_written_down_by_its_type():
    def loss(pred, y): return ((pred-y)**2).mean()
    learn = synth_learner(n_train=2, n_valid=1,
        loss_func=torch.jit.trace(loss, (torch.zeros(2, 1),torch.zeros(2, 1)))).fit(1)
    assert learn.run_config['loss']=='ScriptFunction' and learn.recorder[-1, 'valid_loss']>0

def test_a_function_without_a_signature_takes_any_argument_as_a_metric():
    "torch's own are such functions"
    pred,y = torch.arange(6.).view(6, 1),torch.zeros(6, 1)
    assert (valued(AccumMetric(torch.dist, p=1), pred, y)==15
        and valued(AccumMetric(torch.dist, p=2), pred, y)==pytest.approx(55**.5))

def test_a_callback_that_is_switched_off_stays_so_through_a_validation_until_the_end_of_the_coming_fit():
    class Counts(Callback):
        n = 0
        def after_batch(self): self.n += 1
    learn = synth_learner(n_train=2, n_valid=1, cbs=Counts)
    learn.counts.run = False
    learn.validate()
    learn.fit(1)
    assert learn.counts.n==0
    learn.fit(1)
    assert learn.counts.n==3 and learn.counts.run

@pytest.mark.parametrize('v', [[1.,2.], np.ones(2)], ids=['list','array'])
def test_a_metric_that_is_called_with_what_is_no_tensor_says_so(v):
    with pytest.raises(TypeError, match=r'`rmse\(pred, targ\)` is of tensors, but got'): rmse(v, v)

# Half precision, ignored targets, and other ways to call
@pytest.mark.parametrize('reduction', ['mean','sum','none'])
def test_perplexity_leaves_out_what_the_loss_ignores_whatever_its_reduction(reduction):
    torch.manual_seed(0)
    pred,targ = torch.randn(10, 4),torch.randint(4, (10,))
    targ[[2,5,6,7]] = -100
    v = Perplexity()(pred, targ, loss_func=nn.CrossEntropyLoss(reduction=reduction))
    assert v.item()==pytest.approx(F.cross_entropy(pred, targ).exp().item())

@pytest.mark.parametrize('flatten', [True, False])
def test_decisions_are_not_compared_with_ignored_targets(flatten):
    pred,targ = torch.eye(3),torch.tensor([0,-100,1])
    acc = AccumMetric(lambda a,b: (a==b).float().mean(), dim_argmax=-1, flatten=flatten)
    assert acc(pred, targ)==.5

@pytest.mark.parametrize('m', [accuracy_multi, F1ScoreMulti(), HammingLossMulti()], ids=['accuracy','f1','hamming'])
def test_half_precision_does_not_move_scores_across_a_threshold(m):
    torch.manual_seed(0)
    pred,targ = (torch.randn(400, 5)*.05).bfloat16(),torch.rand(400, 5)>.5
    assert m(pred, targ)==m(pred.float(), targ)

def test_a_function_of_scikit_learn_gets_numbers_whose_squares_do_not_overflow():
    assert from_sklearn('mean_squared_error')(torch.tensor([300.]).half(), torch.zeros(1).half())==9e4

def test_errors_of_whole_numbers():
    a,b = torch.tensor([1,2,5]),torch.tensor([1,4,1])
    assert mse(a, b)==pytest.approx(20/3) and mae(a, b)==2 and rmse(a, b).item()==pytest.approx((20/3)**.5)

def test_predictions_and_targets_by_name():
    a,b = torch.tensor([1.,2.]),torch.tensor([1.,4.])
    assert rmse(pred=a, targ=b)==rmse(a, targ=b)==rmse(a, b)==2**.5

@pytest.mark.parametrize('m', [accuracy, F1Score(axis=3), RocAuc(axis=3)], ids=['accuracy','f1','roc'])
def test_an_axis_that_predictions_do_not_have_is_named(m):
    with pytest.raises(IndexError, match=r'`axis` is an axis of the predictions, whose shape is \(4, 2\), but got 3'):
        m(torch.randn(4, 2), torch.tensor([0,1,0,1]), **dict(axis=3) if m is accuracy else {})

def test_errors_of_large_whole_numbers_are_exact():
    t = torch.tensor([1_700_000_001, 1_700_000_000])
    assert mse(t.double()+1.5, t)==2.25 and mae(t, t+1)==1 and mse(t, t+2)==4

@pytest.mark.parametrize('loss,n', [(lambda p,t: F.cross_entropy(p, t.float(), reduction='none'), None),
    (lambda p,t: F.kl_div(p.log_softmax(-1), t, reduction='batchmean'), 'batchmean')])
def test_perplexity_of_other_losses_is_that_of_their_average(loss, n):
    torch.manual_seed(0)
    pred,targ = torch.randn(6, 4),torch.rand(6, 4).softmax(-1)
    loss.reduction = n or 'none'
    v = loss(pred, targ)
    assert Perplexity()(pred, targ, loss_func=loss).item()==pytest.approx(v.mean().exp().item())
