"A `Checkpoint` keeps the files of the best results besides the newest: sorted by hand, with the weights of their epoch"
import math
from pathlib import Path
import numpy as np,pytest,torch
from hypothesis import given,settings,strategies as st
from learner.all import *
from learner.resume.checkpoint_folder import Checkpoints
from learner.record.files import read_plain

nan = math.nan
class Score(Metric):
    "Has `vals`, one for each validation"
    def __init__(self, vals, higher): self.vals,self.higher_is_better,self.i = vals,higher,-1
    name = 'score'
    def reset(self): self.i += 1
    def accumulate(self, learn): pass
    @property
    def value(self): return self.vals[self.i]

def weights(learn): return torch.cat([o.detach().flatten() for o in learn.model.parameters()])

def fitted(path, vals, higher=True, **kwargs):
    "A fit with a result for each epoch, and the weights after each of them"
    seen = []
    learn = synth_learner(n_train=2, n_valid=1, path=path, metrics=Score(vals, higher))
    learn.fit(len(vals), cbs=[Checkpoint(**dict(monitor='score') | kwargs),
        on('after_epoch')(lambda learn: seen.append(weights(learn).clone()))])
    return learn,seen

def kept(path):
    "By name: epoch and weights of each file"
    res = {}
    for o in Checkpoints(path/'checkpoints').entries:
        saved = read_plain(path/'checkpoints'/o.name)['model']
        res[o.name] = o.epoch,torch.cat([v.flatten() for v in saved.values()])
    assert {*res}=={o.name for o in (path/'checkpoints').glob('*.pt')}
    return res

@settings(max_examples=20)
@given(st.lists(st.one_of(st.just(nan), st.integers(-3, 3).map(float)), min_size=1, max_size=6), st.booleans(),
    st.integers(1, 3), st.integers(1, 2))
def test_the_newest_and_the_best(tmp_path_factory, vals, higher, best, keep):
    path = tmp_path_factory.mktemp('best')
    _,seen = fitted(path, vals, higher, best=best, keep=keep)
    # the earlier of two that are equal
    ranked = sorted([i for i,v in enumerate(vals) if not math.isnan(v)],
        key=lambda i: -vals[i] if higher else vals[i])[:best]
    files = kept(path)
    ends = [i for i,_ in files.values()]
    for i in ranked: assert any(e==i and torch.equal(w, seen[i]) for e,w in files.values())
    newest = [*files.values()][-1]
    assert torch.equal(newest[1], seen[-1]) and len(files)<=best+keep and len(ends)>=min(keep, len(vals))

def test_a_file_that_another_program_reads_is_not_deleted_on_windows_and_training_goes_on(tmp_path, monkeypatch):
    def unlink(self, missing_ok=False): raise PermissionError(f'{self} is used by another process')
    with monkeypatch.context() as m:
        m.setattr(Path, 'unlink', unlink)
        learn = synth_learner(path=tmp_path).fit(3, cbs=[Checkpoint(keep=1), SaveModelCallback(keep=2)])
    assert learn.train_iter==30 and len([*(tmp_path/'models').iterdir()])==3
    files = Checkpoints(tmp_path/'checkpoints')
    assert len(files.found)>1 and [o.name for o in files.entries]==[files.found[-1].name]

def test_resuming_from_the_best(tmp_path):
    "A file of the best is a whole checkpoint"
    vals = [1., 5., 2., 3.]
    learn,seen = fitted(tmp_path, vals, best=1)
    name = next(k for k,(e,w) in kept(tmp_path).items() if torch.equal(w, seen[1]))
    again = synth_learner(n_train=2, n_valid=1, path=tmp_path, metrics=Score(vals[2:], True))
    again.fit(4, resume=tmp_path/'checkpoints'/name)
    assert torch.equal(weights(again), weights(learn)) and len(again.recorder.rows)==4

@pytest.mark.parametrize('monitor,match',
    [('scor', 'Did you mean `score`'), ('nothing', '`nothing` is to be monitored and is not recorded')])
def test_a_wrong_monitor_is_refused_before_anything_is_trained(tmp_path, monitor, match):
    with pytest.raises(ValueError, match=match): fitted(tmp_path, [1.], best=1, monitor=monitor)
    assert not (tmp_path/'checkpoints').exists()

def test_files_are_ranked_by_a_column_and_by_no_function_of_a_row(tmp_path):
    learn = synth_learner(cbs=Checkpoint(best=1), path=tmp_path)
    learn.monitor = lambda row: row['valid_loss']
    with pytest.raises(ValueError, match='`Checkpoint` ranks by a column of the recorder: give its name as `monitor`'):
        learn.fit(1)
    assert not (tmp_path/'checkpoints').exists()

def test_results_belong_to_the_weights_that_they_were_measured_with(tmp_path):
    "A file in the middle of an epoch has other weights than the validation before it"
    learn,seen = fitted(tmp_path, [1., 9., 2., 3.], best=1, every=1, unit='iter')
    assert not learn.recorder.rows[1].score!=9
    best = [w for e,w in kept(tmp_path).values() if torch.equal(w, seen[1])]
    assert len(best)==1

@pytest.mark.parametrize('made', [lambda n: Checkpoint(n, 'iter'), lambda n: Validate(n, 'iter'),
    lambda n: event.after_batch(every=n)])
@pytest.mark.parametrize('n', [np.int64(3), np.float32(3), 3.])
def test_a_number_of_batches_of_any_library_is_kept_as_a_whole_number(made, n):
    assert made(n).every==3 and type(made(n).every) is int
