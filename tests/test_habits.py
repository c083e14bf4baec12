"What people do in notebooks: run cells again, change a layer, pass the nearest thing at hand"
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from learner.all import *

def cell(src, **names):
    "Run `src` as a cell of its own"
    exec(compile(src, f'<cell {hash(src)}>', 'exec'), names := dict(globals(), __name__='__main__', **names))
    return names

def test_an_edited_function_replaces_the_one_before():
    learn,seen = synth_learner(),[]
    for n in (10, 5):
        cell(f"@learn.on(event.after_batch(every={n}, unit='iter'))\ndef f(learn): seen.append(learn.train_iter)",
            learn=learn, seen=seen)
    learn.fit(1)
    assert seen==[5,10]

def test_a_class_defined_again_replaces_the_one_before():
    learn,seen = synth_learner(),[]
    for n in (1, 2):
        cell(f"class Note(Callback):\n    def before_fit(self): seen.append({n})\nlearn.add_cb(Note)", learn=learn,
            seen=seen)
    learn.fit(1)
    assert seen==[2] and learn.note in learn.cbs

def test_a_new_version_that_cannot_start_leaves_the_old_one():
    learn = synth_learner()
    names = cell("class Note(Callback): pass\nlearn.add_cb(Note)", learn=learn)
    old = learn.note
    with pytest.raises(ValueError):
        cell("class Note(Callback):\n    def after_create(self): raise ValueError\nlearn.add_cb(Note)", learn=learn)
    assert learn.note is old and isinstance(old, names['Note']) and old.learn is learn

def test_a_class_whose_cell_ran_again_still_stands_for_its_instances():
    define,learn = "class Note(Callback): pass\nclass Finer(Note): pass",synth_learner()
    def again(**names): return cell(define, **names)['Note']
    learn.add_cbs([again(), cell(define)['Finer']])
    n = len(learn.cbs)
    with learn.removed_cbs(again()): assert len(learn.cbs)==n-2
    assert len(learn.cbs)==n and len(learn.remove_cbs([again()]).cbs)==n-2
    def local(): return type('Note', (Callback,), dict(__qualname__='f.<locals>.Note'))
    assert len(learn.add_cb(local()).remove_cb(local()).cbs)==n-1 # two functions may each have a class of this name

def test_two_of_one_class_are_two():
    learn = synth_learner(cbs=[GradientClip(1.), GradientClip(2.)])
    assert (learn.gradient_clip.max_norm, learn.gradient_clip_2.max_norm)==(1., 2.)

def test_a_function_for_one_fit_stands_in_for_the_same_one():
    learn,seen = synth_learner(),[]
    def f(learn): seen.append(1)
    mine = learn.on(event.after_fit)(f)
    learn.fit(1, cbs=on(event.after_fit)(f))
    assert seen==[1] and any(o is mine for o in learn.cbs)
    learn.fit(1)
    assert seen==[1,1]

def test_a_callback_that_is_off_stays_off():
    class Off(Callback):
        run = False
        def before_fit(self): raise AssertionError
    learn = synth_learner(cbs=Off)
    learn.fit(1); learn.validate(); learn.fit(1)

@pytest.mark.parametrize('change',
    [lambda learn: setattr(learn.model, '2', nn.Linear(4,1)), lambda learn: setattr(learn, 'model', RegModel())],
    ids=['layer','model'])
def test_new_parameters_need_a_new_optimizer(change):
    learn = synth_learner(model=nn.Sequential(nn.Linear(1,4), nn.ReLU(), nn.Linear(4,1))).fit(1)
    change(learn)
    before = [p.detach().clone() for p in learn.model.parameters()]
    with pytest.raises(ValueError, match='reset_opt=True'): learn.fit(1)
    learn.fit(1, reset_opt=True)
    assert all(not torch.equal(a, b) for a,b in zip(before, learn.model.parameters()))

ds = TensorDataset(torch.randn(10,1), torch.randn(10,1))
def test_a_dataset_is_no_loader():
    with pytest.raises(TypeError, match='from_dsets'): DataLoaders(ds, ds)

def test_from_dsets_takes_what_loaders_take():
    dls = DataLoaders.from_dsets(ds, ds, bs=4, shuffle=False, drop_last=False, n_inp=1, device='cpu')
    assert ((len(dls.train), len(dls.valid), dls.n_inp)==(3, 2, 1)
        and torch.equal(torch.cat([x for x,_ in dls.train]), ds.tensors[0]))
    with pytest.raises(TypeError, match='Did you mean `bs`'): DataLoaders.from_dsets(ds, batch_size=4)

def test_a_column_has_one_meaning():
    with pytest.raises(ValueError, match='would be called `time`'): synth_learner(metrics=dict(time=mae)).fit(1)

@pytest.mark.parametrize('kwargs', [dict(loss_func=nn.MSELoss), dict(model=RegModel)])
def test_a_class_instead_of_an_instance(kwargs):
    with pytest.raises(TypeError, match=r'Did you mean `(MSELoss|RegModel)\(\)`'):
        Learner(synth_dls(), **dict(dict(model=RegModel(), loss_func=F.mse_loss), **kwargs))

def test_the_only_input_and_target_can_be_set():
    class Double(Callback):
        def before_batch(self): self.learn.x,self.learn.y = self.x*2,self.y*2
        def after_pred(self):
            self.ok = torch.equal(self.xb[0], self.batch[0]*2) and torch.equal(self.yb[0], self.batch[1]*2)
    assert synth_learner(cbs=Double).fit(1).double.ok
    def wrong(cb): cb.learn.xb = cb.x
    with pytest.raises(TypeError, match=r'`xb` is a tuple of inputs.*`self.learn.x = …`'):
        synth_learner(cbs=Callback(before_batch=wrong)).fit(1)

def test_a_loader_at_hand():
    learn = synth_learner()
    assert (learn.validate(learn.dls.valid)==learn.validate()
        and torch.equal(learn.get_preds(learn.dls.valid)[0], learn.get_preds()[0]))

def test_hyper_parameters_before_the_first_fit():
    learn = synth_learner()
    learn.set_hyper('mom', .8)
    assert get_hyper(learn.opt, 'mom')==[.8]

def test_a_generator_is_gone_over_once():
    with pytest.raises(ValueError, match='iterated once'):
        synth_learner(dls=DataLoaders((b for b in list(synth_dls().train)), device='cpu')).fit(2)

def test_functions_of_one_name_have_names_of_their_own(tmp_path):
    def make():
        def tick(k):
            @on(event.after_train(every=k))
            def tick(learn): pass
            return tick
        return synth_learner(path=tmp_path, cbs=[tick(2), tick(3)])
    learn = make().fit(4)
    assert [o.name for o in learn.cbs[-2:]]==['tick','tick_2']
    learn.save_state('ticks')
    other = make().load_state('ticks')
    assert [o.counts[0]['num_executed'] for o in other.cbs[-2:]]==[2,1]
    other.cbs[-2].remove()
    with on(event.after_train)(other.cbs[-1].f) as third: assert other.add_cb(third).cbs[-1].name=='tick'

def test_a_given_bar_takes_the_place_of_the_usual_one(capsys):
    learn = synth_learner(show=True, cbs=ProgressCallback('text'))
    assert [o.name for o in learn.cbs]==['train_eval','recorder','progress'] and learn.progress.bars=='text'
    learn.fit(1)
    assert capsys.readouterr().out.count('train_loss')==1
    usual = synth_learner(show=True)
    before = list(usual.cbs)
    usual.fit(1, cbs=ProgressCallback('text')) # for this fit only
    assert capsys.readouterr().out.count('train_loss')==1 and list(usual.cbs)==before

def test_a_recorder_of_ones_own_takes_the_place_of_the_usual_one():
    class Mine(Recorder): pass
    learn = synth_learner(metrics=lambda p,y: (p-y).abs().mean(), cbs=Mine(train_metrics=True))
    assert sum(isinstance(o, Recorder) for o in learn.cbs)==1 and learn.recorder.train_metrics
    learn.fit(1, cbs=EarlyStoppingCallback('train_loss'))
    assert len(learn.recorder.rows)==1

def test_what_reads_the_recorder_reads_one_of_ones_own():
    class Mine(Recorder): pass
    class Named(Recorder): name = 'named'
    class Next(Named): pass
    assert (Mine.name,Named.name,Next.name)==('recorder','named','named')
    def plateau(opt): return torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=1e9)
    usual,learn = (synth_learner(lr=.1, cbs=[*cbs, TorchScheduler(plateau)]).fit(3) for cbs in ([], [Mine]))
    assert learn.recorder.rows[-1].valid_loss==usual.recorder.rows[-1].valid_loss # after two rates
    assert learn.final_record.valid_loss==usual.final_record.valid_loss and learn.smooth_loss==usual.smooth_loss
    learn = synth_learner(lr=.1, cbs=[Named, TorchScheduler(plateau)]).fit(3)
    assert learn.named.rows[-1].valid_loss==usual.recorder.rows[-1].valid_loss

def test_files_go_where_python_runs_if_no_path_is_given(tmp_path, monkeypatch):
    "As in fastai, whose scripts write `path=None`"
    monkeypatch.chdir(tmp_path)
    dls = DataLoaders([(torch.randn(4, 2), torch.randn(4, 1))], device='cpu')
    for kwargs in ({}, dict(path=None), dict(path='.')):
        assert Learner(dls, nn.Linear(2, 1), nn.MSELoss(), **kwargs).save('here').resolve().is_relative_to(tmp_path)

def test_files_of_one_run_stay_together_if_python_goes_to_another_folder(tmp_path, monkeypatch):
    "As a callback does, or a library that it uses"
    pytest.importorskip('tensorboard')
    from learner.inspect.boards import TensorBoardLogger
    from learner.inspect.loggers import CSVLogger
    (here := tmp_path/'here').mkdir()
    (there := tmp_path/'there').mkdir()
    monkeypatch.chdir(here)
    learn = synth_learner(path=None, cbs=[CSVLogger(), RunCard(), SaveModelCallback(), TensorBoardLogger()])
    @on(event.before_train(once=1, unit='epoch'))
    def go(learn): monkeypatch.chdir(there)
    learn.fit(2, cbs=[Checkpoint(), go])
    learn.save('last')
    assert not [*there.iterdir()]
    assert {o.name for o in here.iterdir()}=={'checkpoints','history.csv','models','runs'}
