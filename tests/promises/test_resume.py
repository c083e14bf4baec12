"""Promise 1: a run that was stopped anywhere, and is resumed in another process with other seeds, ends as one that was
never stopped, to the last bit"""
import json,os,random,re,time,warnings
from pathlib import Path
import numpy as np
import pytest,torch
from torch.utils.data import DataLoader,RandomSampler
from learner.all import *
from parts import shown
from processes import run_script
import runs
from runs import CtrlC,differences,fit,lacks,learner,outcome,whole

here = Path(__file__).parent

# In this process: errors instead of kills, and a new learner with other seeds
def new_saver(case, **kwargs):
    return Checkpoint(**dict(every=case.get('every', 1), unit=case.get('unit', 'iter'), keep=case.get('keep', 1),
        on_exc=False) | kwargs)

def stopped_and_resumed(case, path, stops, **kwargs):
    "An event and how often it comes, for each time that the run is stopped; then it may come to its end"
    log = runs.Log(path/'cut')
    log.file.parent.mkdir()
    for i,stop in enumerate([*stops, None]):
        learn = learner(case, path/'cut', 1 if not i else 1000+i)
        cbs = [new_saver(case, **kwargs), log,
            *([Raise(*stop[:1], InterruptedError, *stop[1:], order=500)] if stop else [])]
        try: fit(learn, case, cbs, resume='auto')
        except InterruptedError:
            if not [*(path/'cut').rglob('*.pt')]: return # nothing has been saved: the next one would begin anew
            continue
        if stop: return # the event did not come so often
    return outcome(learn, log)

def check(case, path, stops, **kwargs):
    if lacking := lacks(case): pytest.xfail(f"{lacking} do not keep their state")
    path.mkdir(exist_ok=True)
    cut = stopped_and_resumed(case, path, stops, **kwargs)
    if cut is not None: assert not differences(whole(case), cut)

@pytest.fixture(autouse=True)
def only_known_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', '.*will see no batch', Mistake) # `valid=False`
        warnings.filterwarnings('ignore',
            '.*lr_scheduler.step|.*pin_memory|.*fork|.*are persistent, but begin anew|.*other settings than it had: '
            '`(raise|callback)[^;]*(; `(raise|callback)[^;]*)*$')
        yield

places = [('after_pred', 3), ('after_batch', 7), ('after_loss', 12), ('before_draw', 8), ('before_validate', 1),
    ('cleanup_validate', 2), ('after_epoch', 1), ('before_epoch', 2), ('after_fit', 1)]
one_by_one = [dict(loader=o) for o in runs.kinds] + [dict(acc=True), dict(ema=True), dict(mix=True), dict(amp='bf16'),
    dict(amp='fp16'), dict(amp='fp16', acc=True), dict(filters=True), dict(short=True), dict(train_metrics=True),
    dict(between=True), dict(best=True), dict(swa=True), dict(micro=True), dict(loss='module'), dict(groups='several'),
    dict(groups='two'), dict(groups='frozen'), dict(valid=False), dict(bounds=dict(n_iter=10)),
    dict(bounds=dict(n_step=10)), dict(bounds=dict(n_step=5), acc=True), dict(bounds=dict(n_epoch=4, start_epoch=1)),
    dict(bounds=dict(n_epoch=2, n_iter=9)),
    dict(sched='one_cycle'), dict(sched='step_lr'), dict(sched='torch_cycle'), dict(sched='plateau'),
    dict(sched='torch_cycle', acc=True), dict(sched='one_cycle', bounds=dict(n_iter=14), loader='endless')]
@pytest.mark.parametrize('case', one_by_one, ids=lambda o: ' '.join(f'{k}={v}' for k,v in o.items()))
def test_each_technique(case, tmp_path):
    rng = random.Random(str(case))
    unit = rng.choice(['iter','step','epoch'])
    check(case | dict(unit=unit, every=1 if unit=='epoch' else rng.choice([1,2,3])), tmp_path,
        rng.sample(places, rng.choice([1,2])))

@pytest.mark.sample(2, together=0)
@pytest.mark.parametrize('i', range(16))
def test_all_together(i, tmp_path):
    rng = random.Random(i)
    case = runs.some_case(rng) | dict(workers=0)
    while lacks(case): case = runs.some_case(rng) | dict(workers=0)
    check(case, tmp_path, rng.sample(places, rng.choice([1,2,3])))

@pytest.mark.slow
@pytest.mark.parametrize('case', one_by_one, ids=lambda o: ' '.join(f'{k}={v}' for k,v in o.items()))
def test_everywhere(case, tmp_path):
    for i,ev in enumerate(runs.events):
        for n in (1, 2, 5, 11): check(case | dict(every=2), tmp_path/f'{i}-{n}', [(ev, n)])

@pytest.mark.parametrize('case,n',
    [(dict(workers=2), 9), (dict(workers=2, loader='stream'), 9), (dict(workers=2, persistent=True, drop=0.), 9)],
    ids=str)
def test_workers(case, n, tmp_path):
    case = case | dict(every=2)
    # the second time before every worker has made a batch
    cut = stopped_and_resumed(case, tmp_path, [('after_pred', n), ('after_pred', 1)])
    ref = whole(case) if not case.get('persistent') else whole_saved(case, tmp_path)
    assert not differences(ref, cut)

def whole_saved(case, path):
    "Persistent workers are made anew in each epoch if the run is saved, which changes their random numbers"
    log = runs.Log(path/'saved')
    log.file.parent.mkdir()
    learn = learner(case, path/'saved', 1)
    fit(learn, case, [new_saver(case), log])
    return outcome(learn, log)

@pytest.mark.parametrize('case', [dict(), dict(workers=2), dict(filters=True, ema=True)], ids=str)
def test_saving_changes_nothing(case, tmp_path):
    assert not differences(whole(case), whole_saved(case, tmp_path))

def test_weight_decay_that_splits_groups(tmp_path):
    with pytest.raises(InterruptedError):
        learner({}, tmp_path, 1).fit(3, wd=.1, cbs=[new_saver({}), Raise('after_pred', InterruptedError, 9)])
    assert not differences(outcome(learner({}, tmp_path, 1).fit(3, wd=.1)),
        outcome(learner({}, tmp_path, 2).fit(3, wd=.1, cbs=Checkpoint(), resume=True)))

# Bounds
def test_a_fit_that_is_over_is_not_repeated(tmp_path):
    case = dict(filters=True)
    learn = learner(case, tmp_path, 1)
    fit(learn, case, new_saver(case))
    again = learner(case, tmp_path, 2)
    fit(again, case, new_saver(case), resume=True)
    assert not differences(outcome(learn), outcome(again)) and len(again.recorder.rows)==3

@pytest.mark.parametrize('cb,where', [(lambda n: CtrlC('after_pred', 2*n), 'in epoch 0, after batch 2 of 6'),
    (lambda n: Raise('before_validate', InterruptedError, n), 'in epoch 0, after its training')],
    ids=['Ctrl-C','error'])
def test_a_stop_names_the_file_that_holds_the_run_and_a_resume_says_where(cb, where, tmp_path, capsys):
    with pytest.raises((KeyboardInterrupt,InterruptedError)) as e:
        learner({}, tmp_path, 1).fit(2, cbs=[Checkpoint(), cb(1)])
    file, = re.findall(r'`(\S+\.pt)` holds the run', '\n'.join(e.value.__notes__))
    assert Path(file).is_file()
    learn = learner({}, tmp_path, 2).fit(2, cbs=[Checkpoint(), cb(99)], resume=True)
    assert f'Resumes a run that was stopped {where}\n' in capsys.readouterr().out
    assert not differences(outcome(learner({}, tmp_path, 1).fit(2)), outcome(learn))

def test_a_stop_inside_a_batch_names_no_file_since_the_run_resumes_from_another(tmp_path):
    with pytest.raises(InterruptedError) as e:
        learner({}, tmp_path, 1).fit(2, cbs=[Checkpoint(), Raise('before_step', InterruptedError, 9)])
    assert 'holds the run' not in '\n'.join(e.value.__notes__)

def test_more_epochs(tmp_path):
    learner({}, tmp_path, 1).fit(2, cbs=Checkpoint(every=2, unit='iter'))
    learn = learner({}, tmp_path, 2).fit(4, cbs=Checkpoint(every=2, unit='iter'), resume=True)
    assert not differences(outcome(learner({}, tmp_path, 1).fit(4)), outcome(learn))
    assert [o.epoch for o in learn.recorder.rows]==[0,1,2,3] and learn.recorder.iters==[6,12,18,24]

def test_more_batches(tmp_path):
    learner({}, tmp_path, 1).fit(n_iter=10, cbs=Checkpoint())
    learn = learner({}, tmp_path, 2).fit(n_iter=20, cbs=Checkpoint(), resume=True)
    assert learn.train_iter==learn.opt_step==20 and len(learn.recorder.lrs)==20

def test_resuming_where_nothing_was_saved(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint.*`resume='auto'` would begin"):
        learner({}, tmp_path, 1).fit(1, cbs=Checkpoint(), resume=True)
    assert learner({}, tmp_path, 1).fit(1, cbs=Checkpoint(), resume='auto').train_iter==6
    with pytest.raises(ValueError, match='the fit has none'): learner({}, tmp_path, 1).fit(1, resume='auto')

# Changed data and callbacks are named
def cut_at(path, n=9, seed=1, train=None, every=1, **case):
    learn = learner(case, path, seed)
    if train is not None: learn.dls.loaders['train'] = train
    with pytest.raises(InterruptedError):
        learn.fit(3, cbs=[Checkpoint(every=every, unit='iter', on_exc=False), Raise('after_pred', InterruptedError, n)])

def resumed(path, train=None, cbs=(), **case):
    learn = learner(case, path, 2)
    if train is not None: learn.dls.loaders['train'] = train
    return learn.fit(3, cbs=[Checkpoint(every=4, unit='iter'), *cbs], resume=True)

def loader(bs=8, n=42, **kwargs): return DataLoader(runs.Samples(n), bs, **dict(shuffle=True) | kwargs)

@pytest.mark.parametrize('after,match',
    [(dict(bs=6), '`batch_size` was 8, and is 6'), (dict(n=50), '`batches` was 6, and is 7'),
        (dict(n=44), 'gives other batches than before'),
    (dict(shuffle=False), 'gives other batches than before'),
    (dict(sampler=RandomSampler(range(42), replacement=True), shuffle=False), 'gives other batches than before')],
    ids=shown)
def test_changed_data_are_noticed(after, match, tmp_path):
    cut_at(tmp_path, train=loader())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        resumed(tmp_path, loader(**after), cbs=[Raise('after_pred', InterruptedError, 99)])
    assert any(match in str(o.message) for o in seen)

@pytest.mark.parametrize('before,after', [(0,2), (2,0)])
def test_another_number_of_workers_is_noticed(before, after, tmp_path):
    cut_at(tmp_path, train=loader(num_workers=before))
    with pytest.warns(UserWarning, match=f'`num_workers` was {before}, and is {after}'):
        resumed(tmp_path, loader(num_workers=after), [Callback()])

def test_a_missing_callback_is_noticed(tmp_path):
    learner({}, tmp_path, 1).fit(1, cbs=[Checkpoint(), EMA()])
    with pytest.warns(UserWarning, match='No callback takes the state of `ema`'):
        learner({}, tmp_path, 1).fit(2, cbs=Checkpoint(), resume=True)

def test_a_schedule_that_is_missing_in_a_new_process_names_the_fit_that_adds_it(tmp_path):
    stop = on(event.after_batch(once=8, unit='iter'))(lambda learn: learn.stop_soon())
    file = synth_learner(path=tmp_path).fit_one_cycle(2, .1, cbs=stop).save_state('stopped')
    with pytest.warns(UserWarning, match=r'the state of `param_scheduler`.*`fit_one_cycle\(…, resume=file\)`'):
        synth_learner(path=tmp_path).load_state(file).resume(cbs=stop)

def test_a_loader_that_cannot_say_where_it_is(tmp_path):
    class Batches:
        def __len__(self): return 6
        def __iter__(self): yield from loader(shuffle=False)
    cut_at(tmp_path, 11, train=Batches())
    with pytest.warns(UserWarning, match='replays its batches up to batch 2'): resumed(tmp_path, Batches())

def test_samples_are_passed_over_without_loading(tmp_path):
    class Counting(runs.Samples):
        loaded = 0
        def __getitem__(self, i): self.loaded += 1; return super().__getitem__(i)
    cut_at(tmp_path, n=5, train=loader())
    ds = Counting()
    resumed(tmp_path, DataLoader(ds, 8, shuffle=True))
    assert ds.loaded==42*3-4*8

# State of callbacks
class Keeps(Callback):
    _stateattrs = ('losses','array','pair','t')
    def before_fit(self): self.losses,self.array,self.pair,self.t = [],np.zeros(3),(1,[2.]),torch.zeros(2)
    def after_batch(self):
        if self.training:
            self.losses.append(self.loss.item()); self.array = self.array+1; self.t = self.t+self.loss.detach()

def test_state_comes_back_as_it_was(tmp_path):
    "Long lists of numbers are saved as tensors, but are lists again"
    def make(seed): return learner({}, tmp_path, seed)
    ref = make(1).fit(25, cbs=(a := Keeps())) and a
    with pytest.raises(InterruptedError):
        make(1).fit(25, cbs=[Keeps(), Checkpoint(every=5, unit='iter', on_exc=False),
            Raise('after_pred', InterruptedError, 190)])
    make(2).fit(25, cbs=[b := Keeps(), Checkpoint(every=5, unit='iter')], resume=True)
    assert not differences({k:getattr(ref, k) for k in Keeps._stateattrs}, {k:getattr(b, k) for k in Keeps._stateattrs})

def test_another_unit_or_clock_goes_on_saving(tmp_path):
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint(every=2, unit='iter', keep=None))
    learner({}, tmp_path, 1).fit(2, cbs=Checkpoint(every=1e-9, unit='s', keep=None), resume=True)
    learner({}, tmp_path, 1).fit(4, cbs=Checkpoint(keep=None), resume=True)
    names = [(o.epoch, o.iter) for o in Checkpoints(tmp_path/'checkpoints').entries]
    assert names==[(0,0),(0,2),(0,4),(0,6),(0,6), *[(1,i) for i in range(6,13)],(1,12), (2,18),(3,24)], names

def test_seconds_of_another_process(tmp_path, monkeypatch):
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint(every=1e-9, unit='s'))
    now = time.monotonic()
    monkeypatch.setattr(time, 'monotonic', lambda: now-1e6) # the computer was started anew
    learner({}, tmp_path, 1).fit(2, cbs=Checkpoint(every=0.5, unit='s', keep=None, folder='b'),
        resume=tmp_path/'checkpoints')
    assert len(Checkpoints(tmp_path/'b').entries)>0

def test_saved_in_the_last_moment(tmp_path):
    "What is asked for when no batch comes any more is done too"
    learn = learner({}, tmp_path, 1)
    learn.fit(1, cbs=Callback(after_fit=lambda self: self.learn.save_state('late')))
    assert learner({}, tmp_path, 2).load_state('late').at.next=='end'

def test_a_fit_that_a_callback_ended_is_over(tmp_path):
    "After an early stop there is nothing to resume: neither weights nor counters move"
    @on('after_epoch')
    def early(learn):
        if learn.epoch==1: raise CancelFitException
    first = learner({}, tmp_path, 1)
    first.fit(3, cbs=[Checkpoint, early])
    again = learner({}, tmp_path, 2)
    assert again.load_state(Checkpoints(tmp_path/'checkpoints').newest()[0]).at.next=='end'
    assert 'after the last epoch' in repr(again.at)
    again = learner({}, tmp_path, 2)
    again.fit(3, cbs=[Checkpoint, early], resume=True)
    assert again.train_iter==first.train_iter and again.recorder.losses==first.recorder.losses
    assert all(map(torch.equal, again.model.parameters(), first.model.parameters()))

# Files
def test_rotation(tmp_path):
    def iters(**kwargs):
        learner({}, tmp_path, 1).fit(3, cbs=(cb := Checkpoint(**kwargs)))
        return [(o.epoch, o.iter) for o in Checkpoints(cb.last_saved_path.parent).entries]
    assert iters(keep=2, folder='a')==[(1,12),(2,18)] and iters(keep=None, folder='b')==[(0,0),(0,6),(1,12),(2,18)]
    files = Checkpoints(tmp_path/'a')
    assert {o.name for o in files.folder.iterdir()}=={'manifest.json', *(o.name for o in files.entries)}

def test_files_of_other_runs_stay(tmp_path):
    for i in range(2): learner({}, tmp_path, i).fit(1, cbs=Checkpoint())
    assert len({o.run for o in Checkpoints(tmp_path/'checkpoints').entries})==2

def test_a_folder_is_for_one_checkpoint(tmp_path):
    with pytest.raises(ValueError, match='Two `Checkpoint`s save to'):
        learner({}, tmp_path, 1).fit(1, cbs=[Checkpoint(), Checkpoint(every=2)])

@pytest.mark.parametrize('resume', [None, 'auto', True])
@pytest.mark.parametrize('folder', ['taken','taken/more'])
def test_a_folder_that_is_a_file_is_refused_before_training(folder, resume, tmp_path):
    (tmp_path/'taken').touch()
    learn = learner({}, tmp_path, 1)
    with pytest.raises(NotADirectoryError, match='Cannot write to `.*taken` is not a folder'):
        learn.fit(1, cbs=Checkpoint(folder=folder), resume=resume)
    assert learn.opt_step==0

@pytest.mark.parametrize('damage',
    [lambda b: b[:len(b)//2], lambda b: b'', lambda b: b'\xff'+b[1:], lambda b: b'[1]', lambda b: b'{}', None])
def test_a_manifest_that_is_damaged_or_gone(damage, tmp_path):
    cut_at(tmp_path)
    files = Checkpoints(tmp_path/'checkpoints')
    names = [o.name for o in files.entries]
    files.manifest.unlink() if damage is None else files.manifest.write_bytes(damage(files.manifest.read_bytes()))
    assert [o.name for o in files.entries]==names
    assert not differences(outcome(learner({}, tmp_path, 1).fit(3)), outcome(resumed(tmp_path)))

def test_an_error_in_a_batch_after_the_manifest_was_lost(tmp_path):
    cut_at(tmp_path, n=3)
    Checkpoints(tmp_path/'checkpoints').manifest.unlink()
    learn = learner({}, tmp_path, 3)
    with pytest.raises(InterruptedError): # the manifest now lists files that it has seen, and one of a cut batch
        learn.fit(3, cbs=[Checkpoint(keep=None), Raise('before_step', InterruptedError, 2)], resume=True)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Mistake|.* was saved where an error had cut a batch')
        again = resumed(tmp_path)
    assert not differences(outcome(learner({}, tmp_path, 1).fit(3)), outcome(again))

def test_what_a_killed_process_leaves_is_swept_later(tmp_path):
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint())
    folder = tmp_path/'checkpoints'
    half = ['.00009-abcdef-epoch0-iter1.pt.1f3a9c07.tmp', '.manifest.json.1f3a9c07.tmp']
    for name in half: (folder/name).write_text('half')
    half.append('.00009-abcdef-epoch0-iter1.pt.parts.1f3a9c07.tmp')
    (folder/half[-1]/'inside').mkdir(parents=True)
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint())
    assert all((folder/o).exists() for o in half) # somebody might be at it
    for o in folder.iterdir(): os.utime(o, (time.time()-1200,)*2)
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint())
    assert {o.name for o in folder.iterdir()}=={'manifest.json', *(o.name for o in Checkpoints(folder).entries)}

foreign = ['2024-05-01-best.pt', '1e5-run.pt', '12-notes.pt', '7.pt', '00001-abcdef-epoch0-iter1 (copy).pt',
    'best-00001-abcdef-epoch0-iter1.pt',
    '.hidden.tmp', '.00009-abcdef-epoch0-iter1.pt.backup.tmp', '.manifest.json.old.tmp', '.mine.1f3a9c07.tmp',
    '00009-abcdef-epoch0-iter1.pt', '00009-abcdef-epoch0-iter1.pt.parts']
@pytest.mark.parametrize('name', foreign)
def test_files_that_are_not_half_written_by_us_stay(name, tmp_path):
    folder = tmp_path/'checkpoints'
    folder.mkdir()
    (folder/name).write_text('mine')
    (folder/'1-dir.pt').mkdir()
    for _ in range(2):
        for o in folder.iterdir(): os.utime(o, (0, 0))
        learner({}, tmp_path, 1).fit(2, cbs=Checkpoint(best=1))
    assert (folder/name).read_text()=='mine' and (folder/'1-dir.pt').is_dir()
    assert Checkpoints(folder).newest()[0].name.split('-')[0]==max(o.name for o in Checkpoints(folder).found).split(
        '-')[0]

def test_an_older_manifest_that_was_restored_costs_no_file(tmp_path):
    "The files of the newer manifest stay, and no number is used twice"
    learner({}, tmp_path, 1).fit(1, cbs=Checkpoint(keep=None))
    files = Checkpoints(tmp_path/'checkpoints')
    older = files.manifest.read_bytes()
    learner({}, tmp_path, 2).fit(2, cbs=Checkpoint(keep=None))
    newer = {o.name:o.read_bytes() for o in files.found}
    files.manifest.write_bytes(older)
    for o in files.folder.iterdir(): os.utime(o, (0, 0))
    learner({}, tmp_path, 3).fit(1, cbs=Checkpoint())
    assert {o.name:o.read_bytes() for o in files.found if o.name in newer}==newer
    assert len({o.name.split('-')[0] for o in files.found})==len(files.found)

def test_a_file_without_a_run_changes_nothing_when_it_is_refused(tmp_path):
    file = synth_learner(path=tmp_path).fit(1).save_state('between')
    learn = synth_learner(path=tmp_path, cbs=TrackerCallback)
    learn.state['mine'] = 2
    weights = [p.clone() for p in learn.model.parameters()]
    with pytest.raises(ValueError, match='was saved between fits'): learn.fit(2, resume=file)
    assert (learn.state,learn.lineage,learn.at)==({'mine': 2},(),None)
    assert all(map(torch.equal, weights, learn.model.parameters()))

def test_a_copy_set_aside_stays_when_its_file_is_replaced(tmp_path):
    learner({}, tmp_path, 1).fit(1, cbs=(cb := Checkpoint()))
    copies = [cb.last_saved_path.with_name(o) for o in ('best.pt', cb.last_saved_path.name.replace('0000', '0099'))]
    for o in copies: o.write_bytes(cb.last_saved_path.read_bytes()); os.utime(o, (0, 0))
    learner({}, tmp_path, 1).fit(3, cbs=Checkpoint(), resume=True)
    assert not cb.last_saved_path.exists() and all(o.exists() for o in copies)

def test_numbers_above_99999_are_in_order(tmp_path):
    files = Checkpoints(tmp_path)
    for i in (99_999, 100_000, 9, 1_000_000): (tmp_path/f'{i:05}-abcdef-epoch0-iter1.pt').touch()
    assert [int(o.name.split('-')[0]) for o in files.found]==[9, 99_999, 100_000, 1_000_000]
    assert [o.name for o in files.entries]==[o.name for o in files.found] # without a manifest, too
    assert files.new_file('abcdef', 0, 0).name.startswith('1000001-')

@pytest.mark.parametrize('folder', ['../up','a/../../b','','x\0y'])
def test_folders_of_checkpoints_obey_the_rules_of_other_names(folder, tmp_path):
    with pytest.raises(ValueError, match='names no file in `learn.path`: give a name inside, or an absolute path'):
        Checkpoint(folder=folder)
    learner({}, tmp_path/'run', 1).fit(1, cbs=Checkpoint(folder=tmp_path/'elsewhere'))
    learner({}, tmp_path/'run', 1).fit(1, cbs=Checkpoint(folder='in/side'))
    assert {o.relative_to(tmp_path).as_posix() for o in tmp_path.rglob('manifest.json')}=={'elsewhere/manifest.json',
        'run/in/side/manifest.json'}

def test_a_resume_that_fails_can_be_tried_again(tmp_path):
    learn = learner({}, tmp_path, 1)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=runs.CtrlC('after_pred', 9))
    for ev in ('before_fit','before_epoch','before_train'):
        with pytest.raises(InterruptedError), learn.added_cbs(Raise(ev, InterruptedError)): learn.resume()
    learn.resume(cbs=[])
    assert not differences(outcome(learner({}, tmp_path, 1).fit(3)), outcome(learn))

# SIGTERM
script = '''
import os,signal,torch
import runs
from learner.all import *
torch.set_num_threads(1)
case = dict(workers=WORKERS, ema=True)
class Term(Callback):
    left = N
    def EVENT(self):
        self.left -= 1
        if self.left==0: os.GROUP(os.GROUPID, signal.SIGTERM)
learn = runs.learner(case, PATH, SEED)
runs.fit(learn, case, [Checkpoint(every=100, unit='iter'), runs.Log(PATH), *([Term()] if N else [])], resume='auto')
torch.save(runs.outcome(learn, runs.Log(PATH)), PATH+'/out')
'''
def program(path, seed, n, ev='after_pred', workers=0, group=False):
    code = script.replace('PATH', repr(str(path))).replace('SEED', str(seed)).replace('WORKERS',
        str(workers)).replace('N else', f'{n} else').replace('= N', f'= {n}').replace('EVENT', ev)
    code = code.replace('os.GROUPID', '0' if group else 'os.getpid()').replace('os.GROUP',
        'os.killpg' if group else 'os.kill')
    return run_script(code)

@pytest.mark.parametrize('ev,n,workers,group',
    [('after_pred', 9, 2, False), ('after_pred', 9, 2, True),
        pytest.param('before_draw', 8, 2, True, marks=pytest.mark.slow),
        pytest.param('before_validate', 2, 0, False, marks=pytest.mark.slow),
        pytest.param('after_fit', 1, 0, False, marks=pytest.mark.slow),
        pytest.param('after_loss', 18, 0, False, marks=pytest.mark.slow)])
def test_sigterm_saves_and_exits_with_143(ev, n, workers, group, tmp_path):
    "Also where workers get it too, as from a cluster"
    res = program(tmp_path, 1, n, ev, workers, group)
    line = r'Stopped .+\. `\S+\.pt` holds the run: `fit\(…, resume=True\)` continues it in any process\n'
    if ev=='after_fit': line = '' # nothing is left to resume
    assert res.returncode==143 and re.fullmatch(line, res.stderr), res.stderr
    res = program(tmp_path, 2, 0, workers=workers)
    assert res.returncode==0 and res.stderr=='', res.stderr
    assert not differences(whole(dict(workers=workers, ema=True)),
        torch.load(tmp_path/'out', weights_only=False))

own_handlers = '''
import os,signal,subprocess,time
from learner.all import *
from learner.inspect.testing import synth_learner
ended = []
def mine(signum, frame): ended.append(signum)
signal.signal(signal.SIGCHLD, mine)
if OWN: signal.signal(signal.SIGTERM, lambda *args: None)
learn = synth_learner(path=PATH).remove_cb(ProgressCallback)
term = on('after_step', once=2)(lambda learn: os.kill(os.getpid(), signal.SIGTERM) or subprocess.run('true'))
try: learn.fit(1, cbs=[Checkpoint(), term])
except SystemExit as e: assert e.code==143 and not OWN
assert (learn.train_iter==2)!=OWN and signal.getsignal(signal.SIGCHLD) is mine and ended
'''
@pytest.mark.parametrize('own', [True, False])
def test_handlers_of_the_script_are_there_again_after_sigterm(own, tmp_path):
    res = run_script(own_handlers.replace('PATH', repr(str(tmp_path))).replace('OWN', str(own)))
    assert res.returncode==0, res.stderr

# Kills
def kills(n, seed):
    res = run_script(f'import runs; runs.main({n}, {seed})', timeout=3600)
    assert res.returncode==0, res.stderr[-3000:]
    return json.loads(res.stdout.splitlines()[-1]) # a run that is over says so

def check_figures(figures):
    assert not figures['mismatches'] and not figures['unreadable'] and not figures['warned'], figures

def test_kills(): check_figures(kills(6, 1))

@pytest.mark.slow
def test_many_kills(capsys):
    figures = kills(250, random.randrange(10**6))
    with capsys.disabled():
        print('\nkill test:', {k:v for k,v in figures.items() if k not in ('mismatches','unreadable','warned')},
            f"mismatches: {len(figures['mismatches'])}, unreadable: {len(figures['unreadable'])}")
    check_figures(figures)
