"Files and boards that a fit writes: what is in them is compared with the recorder, also after a resume"
import errno,json,math,os,random,shutil,stat,sys
from pathlib import Path,PureWindowsPath
import numpy as np, pytest, torch
from torch import nn
from learner.all import *
from learner.restore.places import all_parts
from learner.inspect.boards import *
from learner.inspect.loggers import *
from learner.record.files import check_folder
from learner.record.history import missing
from learner.record.loss_stream import LossStream

nan = float('nan')
both_files = pytest.mark.parametrize('cls', [CSVLogger, JSONLogger])
def fitted(tmp_path, cbs, n_epoch=3, **kwargs):
    return synth_learner(path=tmp_path, metrics=mae, **kwargs).fit(n_epoch, cbs=cbs)
def dicts(rows): return [dict(o) for o in rows]
def strict(text):
    return [json.loads(o, parse_constant=lambda v: pytest.fail(f'{v} is not JSON')) for o in text.splitlines()]

class Listed(Logger):
    "Keeps what it gets"
    def __init__(self, batches=0): self.batches,self.heard = batches,[]
    def start(self, resumed): self.heard.append(('start', resumed))
    def log_params(self, config): self.heard.append(('params', config))
    def log(self, row, step, kind): self.heard.append((kind, step, row))
    def finish(self): self.heard.append(('finish', self.error))
    def of(self, kind): return [o for o in self.heard if o[0]==kind]

# The base class
def test_a_logger_gets_settings_then_batches_then_rows_then_the_end(tmp_path):
    log = Listed(batches=1)
    learn = fitted(tmp_path, log, n_train=4)
    rec = learn.recorder
    assert [o[0] for o in log.heard]==['start', 'params', *['batch']*4, 'row', *['batch']*4, 'row', *['batch']*4, 'row',
        'finish']
    assert log.heard[0]==('start', False) and log.heard[1][1] is learn.run_config and log.heard[-1]==('finish', None)
    assert [o[1] for o in log.of('row')]==rec.iters==[4,8,12] and [o[2] for o in log.of('row')]==rec.rows
    assert dicts(o[2] for o in log.of('batch'))==[dict(loss=a, smooth_loss=b, lr=c)
        for a,b,c in zip(rec.raw_losses, rec.losses, rec.lrs)]
    assert [o[1] for o in log.of('batch')]==list(range(1,13))

def test_each_so_many_batches(tmp_path):
    log = Listed(batches=4)
    rec = fitted(tmp_path, log, n_train=6).recorder
    assert [(o[1], o[2].loss) for o in log.of('batch')]==[(i, rec.raw_losses[i-1]) for i in (4,8,12,16)]
    assert [o[0] for o in log.heard[2:5]]==['batch','row','batch']

def test_a_second_fit_continues_counting(tmp_path):
    log = Listed(batches=5)
    learn = fitted(tmp_path, log, n_epoch=1, n_train=7)
    learn.fit(1, cbs=log)
    assert [o[:2] for o in log.heard if o[0] in ('batch','row')]==[('batch',5), ('row',7), ('batch',12), ('row',14)]

def test_inference_is_not_logged(tmp_path):
    log = Listed(batches=1)
    learn = fitted(tmp_path, [], n_epoch=1).add_cb(log)
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=10, show_plot=False)
    assert log.heard==[]
    def look(self): self.learn.validate(); self.learn.get_preds()
    learn.fit(1, cbs=Callback(after_step=look))
    assert len(log.of('row'))==1 and len(log.of('batch'))==10

def test_a_validation_in_the_middle_is_a_row_of_its_own(tmp_path):
    def middle(self):
        if self.training and self.iter==4: self.recorder.add_train(); self.learn.validate_now(); self.recorder.write()
    log = Listed(batches=1)
    cb = Callback(after_batch=middle)
    cb.order = 100
    learn = fitted(tmp_path, [log, cb], n_epoch=1)
    assert ([o[0] for o in log.heard]==['start', 'params', *['batch']*5, 'row', *['batch']*5, 'row', 'finish']
        and [o[1] for o in log.of('row')]==[5,10])
    assert [o[2] for o in log.of('row')]==learn.recorder.rows

@pytest.mark.parametrize('exc', [ZeroDivisionError('oh'), KeyboardInterrupt()], ids=repr)
def test_a_logger_is_finished_also_after_an_error_and_knows_it(tmp_path, exc):
    log,said = Listed(batches=1),repr(exc) # an interrupt gets its text when it leaves the fit
    with pytest.raises(type(exc)): fitted(tmp_path, [log, Raise('after_loss', exc, n=15)])
    assert log.heard[-1]==('finish', said) and len(log.of('batch'))==12 # two batches of validation had a loss too
    log.learn = None
    fitted(tmp_path, log, n_epoch=1)
    assert log.heard[-1]==('finish', None)

class Full(Listed):
    "Writes to a disk that gets full"
    full = None
    def log(self, row, step, kind):
        if self.full=='log': raise OSError(errno.ENOSPC, 'No space left')
        super().log(row, step, kind)
    def finish(self):
        super().finish()
        if self.full=='finish': raise OSError(errno.ENOSPC, 'No space left')

@pytest.mark.parametrize('what', ['log','finish'])
def test_a_logger_that_cannot_write_the_last_losses_is_finished_and_ready_for_the_next_fit(tmp_path, what):
    log,stop = Full(batches=1),Raise('after_loss', CancelFitException, n=4)
    log.every = 600. # the first batch is logged at once, the others where the fit ends
    fill = Callback(before_batch=lambda self: self.learn.train_iter and setattr(log, 'full', what))
    with pytest.raises(OSError, match='No space') as e: fitted(tmp_path, [log, fill, stop])
    assert 'raised by `Full.cleanup_fit`' in e.value.__notes__ and log.rec is None
    assert [o[0] for o in log.heard]==['start', 'params', 'batch', *['batch']*2*(what=='finish'), 'finish']
    log.full = log.learn = None
    n = len(log.heard)
    fitted(tmp_path, log, n_epoch=1, n_train=2)
    assert [o[:2] for o in log.heard[n+2:]]==[('batch', 4), ('batch', 5), ('row', 5), ('finish', None)]

def test_a_run_that_resumes_with_nothing_left_to_log_ends_without_its_error(tmp_path):
    log,json_log = Listed(batches=1),JSONLogger()
    learn = synth_learner(path=tmp_path, metrics=mae)
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[log, json_log, Raise('after_fit', KeyboardInterrupt())])
    n = len(log.heard)
    learn.resume()
    assert log.heard[n-1:]==[('finish', 'KeyboardInterrupt()'), ('start', True), ('finish', None)]
    *rows,end = strict(json_log.file.read_text())
    assert end==dict(kind='end', error=None, stop_reason=None) and [o['kind'] for o in rows].count('end')==0

class Fails(Listed):
    "Fails in one of its methods"
    at = None
    def start(self, resumed):
        super().start(resumed)
        if self.at=='start': raise ConnectionError('no server')
    def log_params(self, config):
        if self.at=='log_params': raise ConnectionError('no server')

def test_a_logger_that_was_opened_is_closed_if_its_server_refuses_the_settings(tmp_path):
    log = Fails()
    log.at = 'log_params'
    with pytest.raises(ConnectionError): fitted(tmp_path, log)
    assert [o[0] for o in log.heard]==['start','finish']

def test_a_logger_that_cannot_start_where_a_fit_resumes_is_not_started_twice(tmp_path):
    log = Fails()
    learn = fitted(tmp_path, [log, stops_after(15)])
    log.at,n = 'start',len(log.heard)
    with pytest.raises(ConnectionError) as e: learn.resume()
    assert log.heard[n:]==[('start', True)] and not any('cleanup_fit' in o for o in e.value.__notes__)

def test_a_fit_that_a_logger_refuses_changes_no_log_of_the_fit_before(tmp_path):
    log = JSONLogger()
    learn = fitted(tmp_path, log, n_epoch=1, n_train=2)
    before = log.file.read_text()
    with pytest.raises(ValueError, match='Two loggers write'): learn.fit(1, cbs=[log, JSONLogger()])
    assert log.file.read_text()==before
    log.append = True
    learn.fit(1, cbs=log)
    assert list(log.read_log()['step'])==[2, 4]

def test_a_fit_that_is_over_before_it_began_leaves_nothing_open(tmp_path):
    log = Listed(batches=1)
    with pytest.raises(ZeroDivisionError): fitted(tmp_path, [log, Raise('before_train', ZeroDivisionError)])
    assert log.heard==[]

def test_a_logger_needs_a_recorder():
    learn = synth_learner(default_cbs=False, cbs=[TrainEvalCallback, CSVLogger])
    with pytest.raises(ValueError, match='`CSVLogger` reads the rows of a `Recorder`, and there is none'):
        learn.fit(1)

def test_numbers():
    assert numbers(Row(a=1, b=2., c=missing, d='x', e=None, f=True))==dict(a=1, b=2., f=True)
    assert math.isnan(numbers(Row(a=nan))['a'])

class Ready:
    "An event of a device that is always two queries behind"
    waits,busy = [],False
    def __init__(self): self.looks = 0
    def query(self): self.looks += 1; return self.looks>2
    def synchronize(self):
        if self.looks<=2: Ready.waits.append(Ready.busy)
class SlowStream(LossStream):
    def send(self):
        n = len(self.sent)
        super().send()
        if len(self.sent)>n: self.sent[-1] = self.sent[-1][0],Ready()
class SlowDevice(Recorder):
    name = 'recorder'
    def before_fit(self):
        super().before_fit()
        self.stream = SlowStream(self.beta, self.bundle)
def busy(v):
    def f(self): Ready.busy = v
    return f

@pytest.mark.parametrize('watcher',
    [lambda: Listed(batches=1), lambda: JSONLogger(batches=2), lambda: ProgressCallback('text', print_every=2)],
    ids=['own','json','text'])
def test_nothing_waits_for_the_device_in_a_batch(tmp_path, watcher, capsys):
    Ready.waits = []
    cb = watcher()
    cb.every = 0.
    first,last = Callback(before_batch=busy(True)),Callback(cleanup_batch=busy(False))
    first.order = last.order = -2000 # `cleanup_batch` of this one is the last
    learn = synth_learner(path=tmp_path, n_train=20).remove_cb(Recorder).add_cbs([SlowDevice(), first, last, cb]).fit(2)
    assert Ready.waits and not any(Ready.waits) # at the end of epochs only
    if isinstance(cb, Listed): assert [o[2].loss for o in cb.of('batch')]==learn.recorder.raw_losses
    if isinstance(cb, JSONLogger): assert list(cb.read_log('batch')['loss'])==learn.recorder.raw_losses[1::2]

# Files
def test_csv_has_the_rows_of_the_recorder_exactly(tmp_path):
    log = CSVLogger()
    rec = fitted(tmp_path, log).recorder
    text = (tmp_path/'history.csv').read_text()
    assert (text.splitlines()==[','.join(rec.metric_names), *(','.join(map(repr, o)) for o in rec.rows)]
        and text.endswith('\n'))
    back = log.read_log()
    assert (back==rec.rows and back.names==rec.metric_names and list(back['mae'])==list(rec['mae'])
        and str(back)==str(rec))

def test_csv_is_complete_after_each_row(tmp_path):
    seen = []
    cb = Callback(after_row=lambda self: seen.append(self.csv_logger.read_log()[:]))
    cb.order = 100
    rows = fitted(tmp_path, [CSVLogger('deep/er/log.csv'), cb]).recorder.rows
    assert seen==[rows[:1], rows[:2], rows]

def test_a_csv_that_is_deleted_during_a_fit_begins_again_with_its_names(tmp_path):
    def clean_up(self):
        if self.learn.epoch==1: (tmp_path/'history.csv').unlink() # before the second row
    learn = fitted(tmp_path, [log := CSVLogger(), Callback(after_epoch=clean_up)])
    assert log.read_log()==learn.recorder.rows[1:] and log.read_log().names==learn.recorder.metric_names

def test_inference_leaves_a_csv_as_it_is(tmp_path):
    learn = synth_learner(path=tmp_path, cbs=CSVLogger).fit(2)
    old = (tmp_path/'history.csv').read_bytes()
    # fastai's started a new file here
    learn.validate(); learn.get_preds(); learn.lr_find(num_it=10, show_plot=False); learn.show_results()
    assert (tmp_path/'history.csv').read_bytes()==old

def test_a_new_fit_replaces_the_file_with_its_first_row(tmp_path):
    learn = synth_learner(path=tmp_path, cbs=CSVLogger).fit(2)
    with pytest.raises(ZeroDivisionError): learn.fit(2, cbs=Raise('after_loss', ZeroDivisionError, n=3))
    assert len(learn.csv_logger.read_log())==2 # nothing to say yet
    learn.fit(1)
    assert learn.csv_logger.read_log()==learn.recorder.rows and len(learn.recorder.rows)==1

def test_a_text_with_an_underscore_is_no_number(tmp_path):
    (tmp_path/'history.csv').write_text('epoch,version\n0,1_0\n1,1.5\n')
    log = CSVLogger(tmp_path/'history.csv')
    assert [o.version for o in log.read_log()]==['1_0',1.5]

def test_append_has_one_head_and_all_rows(tmp_path):
    learn,rows = synth_learner(path=tmp_path),[]
    for _ in range(2): rows += learn.fit(2, cbs=CSVLogger(append=True)).recorder.rows
    lines = (tmp_path/'history.csv').read_text().splitlines()
    assert (len(lines)==5 and sum(o.startswith('epoch') for o in lines)==1
        and CSVLogger(tmp_path/'history.csv').read_log()==rows)

@pytest.mark.parametrize('torn', ['', '1', '1,0.5', '1,"tired', '1,"tired\n', '1,"a\nb""c\n', '1,é'.encode()[:-1]],
    ids=repr)
def test_append_after_a_crash(tmp_path, torn):
    "A line without its end is none: `1,0.5` may be what is left of `1,0.55`"
    good = 'epoch,train_loss,note\n0,0.5,"a ""quoted""\nword"\n'.encode()
    (tmp_path/'history.csv').write_bytes(good+(torn if isinstance(torn, bytes) else torn.encode()))
    assert dicts((log := CSVLogger(tmp_path/'history.csv')).read_log())==[
        dict(epoch=0, train_loss=.5, note='a "quoted"\nword')]
    rec = fitted(tmp_path, CSVLogger(append=True), n_epoch=1).recorder
    back = log.read_log()
    assert back[0, 'train_loss']==.5 and dict(back[-1])=={**dict(rec.rows[-1]), 'note': missing} and len(back)==2
    assert (tmp_path/'history.csv').read_bytes().count(b'\n')==1+2+1

@pytest.mark.parametrize('torn', ['', 'epoch', 'epoch,train_loss'])
def test_append_to_a_file_without_a_whole_line(tmp_path, torn):
    (tmp_path/'history.csv').write_text(torn)
    rec = fitted(tmp_path, log := CSVLogger(append=True), n_epoch=1).recorder
    assert log.read_log()==rec.rows and log.read_log().names==rec.metric_names

def test_two_do_not_write_to_one_place(tmp_path):
    for a,b in ((CSVLogger(), CSVLogger(append=True)), (CSVLogger('a'), JSONLogger('a')),
            (CSVLogger('a'), CSVLogger(tmp_path/'a')), (TensorBoardLogger('tb'), TensorBoardLogger('tb')),
            (WandbLogger(), WandbLogger(1))):
        learn = synth_learner(path=tmp_path, cbs=a)
        with pytest.raises(ValueError,
                match=f"Two loggers write to `({tmp_path}/.*|Weights & Biases)`: remove one, or give it another place"):
            learn.fit(1, cbs=b)
    assert list(tmp_path.iterdir())==[]
    rec = fitted(tmp_path, [a := CSVLogger('a'), b := CSVLogger('b'), JSONLogger(), TensorBoardLogger('tb'),
        TensorBoardLogger('tb2')], n_epoch=2).recorder
    assert a.read_log()==b.read_log()==rec.rows

def test_a_logger_that_could_not_log_is_refused(tmp_path):
    class Silent(Logger): pass
    with pytest.raises(TypeError, match=r"`Silent` logs nothing: it has no method `log\(row, step, kind\)`"):
        synth_learner(path=tmp_path, cbs=Silent).fit(1)
    with pytest.raises(TypeError,
            match=r"`Two.log` is called with `\(row, step, kind\)`, but takes `\(self, row, kind\)`"):
        class Two(Logger):
            def log(self, row, kind): pass
    with pytest.raises(TypeError, match=r"`Starts.start` is called with `\(resumed\)`, but takes `\(self\)`"):
        class Starts(Logger):
            def start(self): pass
    class Any(Logger):
        heard = ()
        def log(self, *args): self.heard += (args[1:],)
    assert fitted(tmp_path, log := Any(), n_epoch=1).recorder and log.heard==((10,'row'),)

def test_a_new_column_loses_nothing(tmp_path):
    def note(self):
        if self.epoch==1: self.recorder.add(note='a "quoted", word\nand a line')
    learn = fitted(tmp_path, [log := CSVLogger(), Callback(after_train=note)])
    names = [*learn.recorder.metric_names]
    assert (names[-1]=='note' and log.read_log().names==names
        and [o.get('note') for o in log.read_log()]==[missing, 'a "quoted", word\nand a line', missing])
    assert [dict(o) for o in log.read_log()]==[{k:o.get(k) for k in names} for o in learn.recorder.rows]
    learn.metrics = mse
    learn.fit(1, cbs=CSVLogger(append=True))
    back = log.read_log()
    assert (back.names==[*names, 'mse'] and len(back)==4 and back[0, 'mse'] is missing and back[3, 'mae'] is missing
        and back[3, 'mse']==learn.recorder[0, 'mse'])
    assert list(tmp_path.glob('*.new'))==[]

def test_what_is_missing_is_empty_and_nan_is_not(tmp_path):
    class Bad(nn.Module):
        def __init__(self): super().__init__(); self.a = nn.Parameter(torch.tensor(nan))
        def forward(self, x): return x*self.a
    synth_learner(path=tmp_path, model=Bad(),
        cbs=[log := CSVLogger(), lines := JSONLogger(), Raise('before_validate', CancelValidException)]).fit(1)
    for o in (log, lines):
        row = o.read_log()[0]
        assert row.valid_loss is missing and math.isnan(row.train_loss) and row.train_loss is not missing
    assert (tmp_path/'history.csv').read_text().splitlines()[1].startswith('0,nan,,')
    assert strict((tmp_path/'history.jsonl').read_text())[1]['row'] | dict(time=0)==dict(epoch=0, train_loss='nan',
        valid_loss=None, time=0)

class Adds(Callback):
    "Adds a value in each epoch"
    def __init__(self, v): self.v = v
    def after_train(self): self.learn.recorder.add(x=self.v)

@pytest.mark.parametrize('v', [torch.tensor([.123456789,1/3]), np.array([[1e-20,nan],[math.inf,-math.inf]]),
    torch.tensor([2**60+1,-1]), torch.zeros(0), torch.linspace(-1, 1, 1000), [.1,2]], ids=lambda v: f'{v}'[:20])
def test_csv_has_all_digits_of_tensors_and_arrays(tmp_path, v):
    fitted(tmp_path, [log := CSVLogger(), Adds(v)], n_epoch=2)
    expected = v if isinstance(v, list) else v.tolist()
    assert repr([o.x for o in log.read_log()])==repr([expected]*2)

@pytest.mark.parametrize('v', ['[see "nan"]', '[1, nan', '[1, x]', '[]]', '[1_0]', "['a', 'b']"])
def test_a_text_in_brackets_is_not_always_a_list(tmp_path, v):
    fitted(tmp_path, [log := CSVLogger(), Adds(v)], n_epoch=1)
    assert log.read_log()[0].x==v

def test_tensors_that_are_no_list_do_not_end_a_fit(tmp_path):
    for v in (torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            torch.arange(10_000)):
        fitted(tmp_path, [csv := CSVLogger(), lines := JSONLogger(), Adds(v)], n_epoch=1)
        assert len(csv.read_log()[0].x)<1000 and 'Tensor' in lines.read_log()[0].x

def test_json_has_what_is_not_finite_in_dicts_and_complex_numbers(tmp_path):
    fitted(tmp_path, [log := JSONLogger(), Adds({'cat': nan, 'dog': {'a': [math.inf, 1.]}})], n_epoch=1)
    assert repr(log.read_log()[0].x)==repr({'cat': nan, 'dog': {'a': [math.inf, 1.]}})
    fitted(tmp_path, [log, csv := CSVLogger(), Adds(np.complex128(1+2j))], n_epoch=1)
    assert log.read_log()[0].x==csv.read_log()[0].x=='(1+2j)'

def test_json_lines(tmp_path):
    log = JSONLogger(batches=1)
    learn = fitted(tmp_path, log)
    lines = strict((tmp_path/'history.jsonl').read_text())
    assert [o['kind'] for o in lines]==['params', *(['batch']*10+['row'])*3, 'end']
    assert (lines[0]['config']==json.loads(json.dumps(learn.run_config))
        and lines[-1]==dict(kind='end', error=None, stop_reason=None))
    rows,batches = log.read_log(),log.read_log('batch')
    assert dicts(rows)==[dict(step=i, **o) for i,o in zip((10,20,30), dicts(learn.recorder.rows))]
    assert list(batches['loss'])==learn.recorder.raw_losses and list(batches['step'])==list(range(1,31))
    with pytest.raises(KeyError, match='Did you mean `smooth_loss`'): batches['smoth_loss']

def test_json_after_a_crash(tmp_path):
    fitted(tmp_path, JSONLogger(), n_epoch=1)
    with open(tmp_path/'history.jsonl', 'a') as f: f.write('{"kind": "row", "st')
    rec = fitted(tmp_path, log := JSONLogger(append=True), n_epoch=1).recorder
    assert ([o['kind'] for o in strict((tmp_path/'history.jsonl').read_text())]==['params','row','end']*2
        and log.read_log()[-1].valid_loss==rec[0].valid_loss)

def test_json_has_how_the_fit_ended(tmp_path):
    for exc in (ZeroDivisionError('oh'), CancelFitException('enough')):
        try: fitted(tmp_path, [JSONLogger(append=True), Raise('before_batch', exc, n=14)])
        except ZeroDivisionError: pass
    lines = strict((tmp_path/'history.jsonl').read_text())
    assert [o['kind'] for o in lines]==['params','row','end','params','row','end']
    assert lines[2]['error']=="ZeroDivisionError('oh')" and lines[5]['stop_reason']=='enough'

def test_json_of_a_second_fit(tmp_path):
    learn = fitted(tmp_path, log := JSONLogger(), n_epoch=2)
    learn.fit(1, cbs=log)
    assert dicts(log.read_log())==[dict(step=10, **learn.recorder.rows[0])] # a new file counts anew
    fits = [*learn.recorder.rows]
    for _ in range(2): fits += learn.fit(1, cbs=JSONLogger(append=True)).recorder.rows
    assert list(log.read_log()['valid_loss'])==[o.valid_loss for o in fits]

def test_arguments():
    with pytest.raises(TypeError, match='Did you mean `fname`'): CSVLogger(fnam='x')
    with pytest.raises(TypeError, match='Did you mean `batches`'): JSONLogger(batch=1)
    with pytest.raises(FileNotFoundError): CSVLogger('not there.csv').read_log()
    with pytest.raises(ValueError, match="`kind` is one of `row`, `batch`, but got 'rows'. Did you mean `row`"):
        JSONLogger().read_log('rows')

# A resume: a learner continues from where another one was, whose logger had gone further
class Going(Callback):
    "Restores a state when a fit begins, as a resume does"
    order = 200
    def __init__(self, logger, state, rec): self.logger,self.given,self.rec_given = logger,state,rec
    def before_fit(self):
        self.learn.recorder.load_state_dict(self.rec_given)
        self.logger.load_state_dict(self.given)

def stopped_and_resumed(tmp_path, make, at, upto, same=False):
    """The logger of a fit of 5 epochs that got to `upto`, and was then resumed from a state of epoch `at`; and the
    rows of a whole fit"""
    saved = []
    def save(self):
        if self.epoch==at:
            rec = self.recorder
            saved.append((log.state_dict(), rec.state_dict(),
                [p.detach().clone() for p in self.model.parameters()],
                [{k:v.clone() for k,v in s.items()} for s in self.opt.state.values()], torch.get_rng_state()))
    def learner():
        return synth_learner(path=tmp_path, cbs=Recorder(add_time=False), default_cbs=False).add_cb(TrainEvalCallback)
    whole = learner().fit(5)
    log = make()
    cb = Callback(after_epoch=save)
    cb.order = 100
    with pytest.raises(ZeroDivisionError):
        learner().fit(5, cbs=[log, cb, Raise('after_epoch', ZeroDivisionError, n=upto+1, order=200)])
    state,rec,ps,opt,rng = saved[0]
    json.dumps(state) # plain
    new = learner()
    new.create_opt()
    with torch.no_grad():
        for p,o in zip(new.model.parameters(), ps): p.copy_(o)
    for p,o in zip(new.model.parameters(), opt): new.opt.state[p] = o
    torch.set_rng_state(rng)
    resumed = log if same else make()
    new.fit(5, start_epoch=at+1, cbs=[resumed, Going(resumed, state, rec)])
    assert ([dict(o) for o in new.recorder.rows]==[dict(o) for o in whole.recorder.rows]
        and new.recorder.raw_losses==whole.recorder.raw_losses)
    return resumed,whole.recorder

@pytest.mark.parametrize('at,upto', [(0,0), (1,1), (1,3), (0,3)])
@pytest.mark.parametrize('same', [False, True])
def test_resumed_files_have_each_row_once(tmp_path, at, upto, same):
    log,rec = stopped_and_resumed(tmp_path, CSVLogger, at, upto, same)
    assert log.read_log()==rec.rows
    log,rec = stopped_and_resumed(tmp_path, lambda: JSONLogger(batches=1), at, upto, same)
    lines = strict((tmp_path/'history.jsonl').read_text())
    assert ([o['kind'] for o in lines]==['params', *(['batch']*10+['row'])*5, 'end']
        and list(log.read_log('batch')['loss'])==rec.raw_losses)
    assert list(log.read_log()['step'])==rec.iters

def test_resumed_files_keep_earlier_runs(tmp_path):
    (tmp_path/'history.csv').write_text('epoch,train_loss\n0,0.5\n1,0.25\n')
    log,rec = stopped_and_resumed(tmp_path, lambda: CSVLogger(append=True), 1, 3)
    back = log.read_log()
    assert (list(back[:2, 'train_loss'])==[.5,.25] and list(back[2:, 'train_loss'])==list(rec['train_loss'])
        and len(back)==7)

class Lossfile(FileLogger):
    "A file of one's own needs no more than `log`"
    def log(self, row, step, kind): self.append_line(f"{step} {row['valid_loss']}")

@pytest.mark.parametrize('append', [False, True])
def test_a_file_of_ones_own_is_appended_to_and_has_each_row_once_after_a_resume(tmp_path, append):
    (tmp_path/'mine.txt').write_text('earlier\n')
    log,rec = stopped_and_resumed(tmp_path, lambda: Lossfile('mine.txt', append), 1, 3)
    res = [f'{i} {v}' for i,v in zip(rec.iters, rec['valid_loss'])]
    assert log.read_log()==['earlier']*append+res

def test_a_resumed_logger_that_cannot_rewind_logs_nothing_twice(tmp_path):
    log,rec = stopped_and_resumed(tmp_path, lambda: Listed(batches=1), 1, 3, same=True)
    assert [o for o in log.heard if o[0]=='start']==[('start', False), ('start', True)] and len(log.of('params'))==1
    assert ([o[1] for o in log.of('row')]==rec.iters and [o[1] for o in log.of('batch')]==list(range(1,51))
        and [o[2].loss for o in log.of('batch')]==rec.raw_losses)

# TensorBoard
def board(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    return EventAccumulator(str(folder), size_guidance=dict(scalars=0)).Reload()
def curve(b, k): return [o.step for o in b.Scalars(k)],[o.value for o in b.Scalars(k)]
def of_hparams(b):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    found = [m.plugin_data for m in b.summary_metadata.values() if m.plugin_data.plugin_name=='hparams']
    return [HParamsPluginData.FromString(o.content) for o in found]
def metrics_of(data): return {o.name.tag for d in data for o in d.experiment.metric_infos}
def f32(vals): return [*np.array(vals, dtype=np.float32)]

def test_tensorboard_files_have_rows_batches_and_settings(tmp_path):
    learn = fitted(tmp_path, TensorBoardLogger('tb'))
    rec,b = learn.recorder,board(tmp_path/'tb')
    for k in ('train_loss','valid_loss','mae'): assert curve(b, k)==([10,20,30], f32(rec[k]))
    assert (curve(b, 'batch/loss')==([*range(1,31)], f32(rec.raw_losses))
        and curve(b, 'batch/smooth_loss')[1]==f32(rec.losses) and curve(b, 'batch/lr')[1]==f32(rec.lrs))
    assert b'opt.lr' in b.Tensors('run_config/text_summary')[0].tensor_proto.string_val[0]
    data = of_hparams(b)
    start = next(o.session_start_info for o in data if o.WhichOneof('data')=='session_start_info')
    assert start.hparams['n_epoch'].number_value==3 and start.hparams['model.name'].string_value=='RegModel'
    assert metrics_of(data)=={'train_loss','valid_loss','mae'}

def test_the_number_of_a_batch_is_no_metric_of_a_board(tmp_path):
    learn = fitted(tmp_path, [TensorBoardLogger('tb'), Validate(every=5, unit='iter')])
    assert 'iter' in learn.recorder.metric_names
    assert metrics_of(of_hparams(board(tmp_path/'tb')))=={'train_loss','valid_loss','mae'}

def test_tensorboard_without_batches_and_in_a_folder_for_each_fit(tmp_path):
    log = TensorBoardLogger(batches=0)
    for n in (1,2): synth_learner(path=tmp_path).fit(n, cbs=log); log.learn = None
    folders = sorted((tmp_path/'runs').iterdir())
    assert ([curve(board(o), 'valid_loss')[0] for o in folders]==[[10], [10,20]]
        and not any(o.startswith('batch') for o in board(folders[0]).Tags()['scalars']))

def test_tensorboard_of_two_fits_in_one_folder_continues(tmp_path):
    learn = synth_learner(path=tmp_path, cbs=TensorBoardLogger('tb')).fit(2).fit(1)
    assert curve(board(tmp_path/'tb'), 'valid_loss')[0]==[10,20,30] and learn.tensor_board_logger.writer is None

def test_tensorboard_has_figures_and_graph(tmp_path):
    def picture(self): self.tensor_board_logger.log_figure('losses', self.recorder.plot_loss(skip_start=0).figure)
    import matplotlib; matplotlib.use('Agg')
    import matplotlib.pyplot as plt, warnings
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning) # torch traces
        fitted(tmp_path, [TensorBoardLogger('tb', graph=True), Callback(after_row=picture)],
            model=nn.Sequential(nn.Linear(1,3), nn.BatchNorm1d(3), nn.Dropout(.5), nn.Linear(3,1)))
    plt.close('all')
    b = board(tmp_path/'tb')
    assert [o.step for o in b.Images('losses')]==[10,20,30] and any('Linear' in o.name for o in b.Graph().node)

class Shown(nn.Module):
    "Of images of 4 by 4 it says whether they are light"
    def __init__(self): super().__init__(); self.lin = nn.Linear(16, 2)
    def forward(self, x): return self.lin(x.flatten(1))
def images(seed=0):
    x = torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return [(x[i:i+8], (x[i:i+8].mean((1,2,3))>.5).long()) for i in range(0, 24, 8)]
def look(self):
    for o in self.learn.cbs:
        if hasattr(type(o), 'log_preds'): o.log_preds(max_n=4, shuffle=False)
def image_learner(tmp_path, *cbs, **kwargs):
    torch.manual_seed(0)
    return Learner(DataLoaders(images(), images(1)[:1], device='cpu'), Shown(), nn.CrossEntropyLoss(), path=tmp_path,
        cbs=[*cbs, Callback(after_row=look)], **kwargs).remove_cb(ProgressCallback)

def test_tensorboard_has_predictions(tmp_path):
    import matplotlib; matplotlib.use('Agg')
    import io,matplotlib.pyplot as plt
    before = plt.get_fignums()
    learn = image_learner(tmp_path, TensorBoardLogger('tb')).fit(2)
    b = board(tmp_path/'tb')
    assert [o.step for o in b.Images('preds')]==[3,6] and plt.get_fignums()==before
    axs = learn.show_results(max_n=4, shuffle=False) # images under their captions, as they are now
    assert len([ax for ax in axs if ax.get_title()])==4
    fig = axs[0].figure
    fig.canvas.draw()
    assert np.array_equal(plt.imread(io.BytesIO(b.Images('preds')[-1].encoded_image_string))[...,:3],
        np.asarray(fig.canvas.buffer_rgba())[...,:3]/np.float32(255))
    plt.close(fig)

def test_tensorboard_has_a_table_of_predictions(tmp_path):
    learn = synth_learner(path=tmp_path, cbs=[TensorBoardLogger('tb'), Callback(after_row=look)]).fit(1)
    text = board(tmp_path/'tb').Tensors('preds/text_summary')[0].tensor_proto.string_val[0].decode().splitlines()
    rows = [f'| {o.input} | {o.target} | {o.decision} |' for o in learn.show_results(max_n=4, shuffle=False)]
    assert text==['| input | target | decision |', '| --- | --- | --- |', *rows] and len(text)==6

@pytest.mark.parametrize('mk',
    [lambda tmp_path: image_learner(tmp_path, TensorBoardLogger('tb')),
        lambda tmp_path: synth_learner(path=tmp_path, cbs=[TensorBoardLogger('tb'), Callback(after_row=look)])],
        ids=['images','table'])
def test_logging_predictions_changes_nothing(tmp_path, mk):
    import matplotlib; matplotlib.use('Agg')
    seen,without = mk(tmp_path).fit(3),mk(tmp_path).remove_cb(TensorBoardLogger).fit(3)
    assert (all(torch.equal(a, b) for a,b in zip(seen.model.parameters(), without.model.parameters()))
        and seen.recorder.raw_losses==without.recorder.raw_losses)
    assert list(seen.recorder['valid_loss'])==list(without.recorder['valid_loss'])

def test_predictions_need_a_fit(tmp_path):
    with pytest.raises(RuntimeError, match='`TensorBoardLogger` logs during a fit, and there is none now'):
        image_learner(tmp_path, TensorBoardLogger()).tensor_board_logger.log_preds()

def test_a_figure_needs_a_fit(tmp_path):
    with pytest.raises(RuntimeError, match='`TensorBoardLogger` logs during a fit'):
        synth_learner(cbs=TensorBoardLogger).tensor_board_logger.log_figure('x', None)

def test_a_graph_needs_a_tuple_of_inputs(tmp_path):
    class Named(RegModel):
        def forward(self, x): return super().forward(x)
    dls = DataLoaders([(torch.ones(2,1), torch.ones(2,1))], device='cpu', split=lambda b: (dict(x=b[0]), (b[1],)))
    with pytest.raises(ValueError, match='traces models that are called with a tuple'):
        synth_learner(dls=dls, model=Named(), path=tmp_path).fit(1, cbs=TensorBoardLogger(graph=True))

@pytest.fixture
def numbered_files(monkeypatch):
    "Event files of one second are in the order of their names"
    from tensorboard.summary.writer import event_file_writer
    monkeypatch.setattr(event_file_writer, '_global_uid', event_file_writer.AtomicCounter(100))

@pytest.mark.parametrize('batches', [0,1,3])
def test_resumed_tensorboard_has_each_point_once(tmp_path, batches, numbered_files):
    log,rec = stopped_and_resumed(tmp_path, lambda: TensorBoardLogger('tb', batches=batches), 1, 3)
    b = board(tmp_path/'tb')
    assert curve(b, 'valid_loss')==(rec.iters, f32(rec['valid_loss'])) and len(list((tmp_path/'tb').iterdir()))==2
    if batches: assert curve(b, 'batch/loss')==([*range(batches, 51, batches)], f32(rec.raw_losses[batches-1::batches]))

@on(event.after_epoch(once=1))
def stop_after_an_epoch(learn): learn.stop_soon()

@pytest.mark.parametrize('log_dir', [None, 'tb'])
@pytest.mark.parametrize('move', [shutil.copytree, shutil.move])
def test_a_copied_or_moved_run_continues_its_board_where_it_is_now(tmp_path, move, log_dir, numbered_files):
    "The original's curve stays as it is, and an old folder does not come back"
    old,new = tmp_path/'old',tmp_path/'new'
    def cbs(): return [Checkpoint(), TensorBoardLogger(log_dir)]
    synth_learner(path=old).fit(3, cbs=[*cbs(), stop_after_an_epoch])
    move(old, new)
    files = {o:o.read_bytes() for o in old.rglob('*') if o.is_file()}
    rec = synth_learner(path=new).fit(3, cbs=[*cbs(), stop_after_an_epoch], resume='auto').recorder
    assert {o:o.read_bytes() for o in old.rglob('*') if o.is_file()}==files
    folder, = {o.parent for o in new.rglob('*tfevents*')}
    assert curve(board(folder), 'valid_loss')==(rec.iters, f32(rec['valid_loss']))

@pytest.mark.parametrize('cb', [CSVLogger, JSONLogger, TensorBoardLogger, RunCard, SaveModelCallback, Checkpoint])
def test_a_folder_that_cannot_be_made_is_refused_before_the_first_batch(tmp_path, cb):
    (tmp_path/'file').touch()
    learn = synth_learner(path=tmp_path/'file'/'run')
    with pytest.raises(NotADirectoryError, match=str(tmp_path/'file')): learn.fit(1, cbs=cb)
    assert learn.train_iter==0 and not (learn.at and learn.at.counters.train_iter)

@pytest.mark.parametrize('logger', [CSVLogger, JSONLogger])
def test_a_file_system_that_cannot_append(tmp_path, monkeypatch, logger):
    "As mounted buckets: the file is written anew for each line"
    def opened(file, mode='r', *args, real=open, **kwargs):
        if 'a' in mode and str(tmp_path) in str(file): raise OSError(errno.EOPNOTSUPP, 'Operation not supported')
        return real(file, mode, *args, **kwargs)
    monkeypatch.setattr('builtins.open', opened)
    rec = fitted(tmp_path, log := logger()).recorder
    assert [*(log.read_log() if logger is CSVLogger else log.read_log('row'))['valid_loss']]==[*rec['valid_loss']]

def test_a_log_that_another_program_holds_for_a_moment(tmp_path, monkeypatch):
    "As virus scanners do on Windows"
    held = []
    def opened(file, mode='r', *args, real=open, **kwargs):
        if 'a' in mode and str(tmp_path) in str(file) and len(held)<2:
            held.append(e := PermissionError(errno.EACCES, 'The process cannot access the file'))
            e.winerror = 32
            raise e
        return real(file, mode, *args, **kwargs)
    monkeypatch.setattr('builtins.open', opened)
    rec = fitted(tmp_path, log := CSVLogger()).recorder
    assert len(held)==2 and log.read_log()==rec.rows

def test_a_drive_that_is_not_there_is_named():
    class Drive(PureWindowsPath):
        def exists(self): return False
        is_dir = exists
    with pytest.raises(NotADirectoryError, match='`Z:.* is not a folder'): check_folder(Drive('Z:/runs/first'))

@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid()==0, reason='root can write everywhere')
def test_a_folder_without_permission_is_refused_before_the_first_batch(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match='no permission to write in'):
        synth_learner(path=tmp_path/'run').fit(1, cbs=CSVLogger())

@pytest.mark.skipif(not hasattr(os, 'geteuid') or os.geteuid()!=0, reason='only root can act as another user')
def test_the_permission_is_that_of_the_user_as_whom_the_process_acts():
    from tempfile import TemporaryDirectory
    with TemporaryDirectory(dir='/tmp') as folder:
        os.chmod(folder, 0o555)
        os.seteuid(65534) # nobody
        try:
            with pytest.raises(PermissionError, match='no permission to write in'): check_folder(Path(folder)/'run')
        finally: os.seteuid(0)

@both_files
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.skipif(not hasattr(os, 'seteuid'), reason='needs users')
def test_a_file_that_is_write_protected_is_refused_before_the_first_batch(cls, append):
    "It was replaced with the first row, whose line could then not be appended"
    from tempfile import TemporaryDirectory
    with TemporaryDirectory(dir='/tmp') as folder:
        learn = synth_learner(path=folder, cbs=(trace := Trace('before_train'))).fit(2, cbs=(log := cls()))
        data = log.file.read_bytes()
        log.file.chmod(0o444)
        os.chmod(folder, 0o777)
        trace.seen.clear()
        root = os.geteuid()==0 # who may write everywhere
        if root: os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match=f'Cannot write to `.*/{log.fname}`: it is write-protected'):
                learn.fit(1, cbs=cls(append=append))
        finally:
            if root: os.seteuid(0)
        assert not trace.seen and log.file.read_bytes()==data

def test_a_board_says_where_its_files_are(tmp_path):
    logger = TensorBoardLogger('tb')
    assert logger.folder is None
    synth_learner(path=tmp_path).fit(1, cbs=logger)
    assert logger.folder==str(tmp_path/'tb') and len(os.listdir(logger.folder))==1

# Weights & Biases, offline
def wandb_records(folder):
    "What is in the files of runs in `folder`: blocks of 32 kB, of pieces with a checksum, a length and a type"
    import wandb
    from wandb.proto import wandb_internal_pb2 as pb
    wandb.teardown() # what writes the files is another process
    for f in sorted(folder.rglob('*.wandb'), key=os.path.getmtime): # names of runs of one second are in no order
        data,pos,rec = f.read_bytes(),7,b''
        while pos+7<=len(data):
            if 32768-pos%32768<7: pos += 32768-pos%32768
            n,kind = int.from_bytes(data[pos+4:pos+6], 'little'),data[pos+6]
            rec += data[pos+7:pos+7+n]; pos += 7+n
            if kind in (1,4): yield pb.Record.FromString(rec); rec = b''
def history(records):
    return [{'/'.join(i.nested_key) or i.key: json.loads(i.value_json) for i in o.history.item} for o in records
        if o.WhichOneof('record_type')=='history']

@pytest.fixture
def wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    for k in [o for o in os.environ if o.startswith('WANDB')]: monkeypatch.delenv(k)
    yield dict(mode='offline', dir=str(tmp_path),
        settings=wandb.Settings(silent=True, console='off', x_disable_stats=True, x_disable_meta=True, disable_git=True,
            disable_code=True))
    if wandb.run: wandb.run.finish()
    wandb.teardown()

def test_wandb_has_figures_and_predictions(tmp_path, wandb_offline):
    import matplotlib; matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    def picture(self): self.wandb_logger.log_figure('losses', self.recorder.plot_loss(skip_start=0).figure)
    log = WandbLogger(batches=0, **wandb_offline)
    learn = synth_learner(path=tmp_path, cbs=[log, Callback(after_row=look), Callback(after_row=picture)]).fit(2)
    image_learner(tmp_path, log).fit(1)
    plt.close('all')
    samples = [list(o) for o in learn.show_results(max_n=4, shuffle=False)]
    h = history(wandb_records(tmp_path))
    assert [(o['iter'], o['losses/_type']) for o in h if 'losses/_type' in o]==[(10,'image-file'), (20,'image-file')]
    assert [(o['iter'], o['preds/_type']) for o in h if 'preds/_type' in o]==[(10,'table-file'), (20,'table-file'),
        (3,'image-file')]
    at = {o['iter']:o for o in h if 'valid_loss' in o}
    assert at[20]['valid_loss']==learn.recorder[-1,'valid_loss']
    def file(o, k): return next(tmp_path.rglob(Path(o[f'{k}/path']).name))
    tables,pics = [[file(o, k) for o in h if o.get(f'{k}/_type')==f'{kind}-file']
        for k,kind in (('preds','table'), ('losses','image'))]
    assert (json.loads(tables[-1].read_text())['data']==samples
        and json.loads(tables[-1].read_text())['columns']==['input','target','decision'])
    assert all(plt.imread(o).std()>0 for o in pics)

@pytest.mark.slow
def test_wandb_has_rows_batches_and_settings_and_ends_its_own_run(tmp_path, wandb_offline):
    import wandb
    log = WandbLogger(batches=5, **wandb_offline)
    learn = fitted(tmp_path, log)
    assert wandb.run is None
    rec,records = learn.recorder,list(wandb_records(tmp_path))
    h = history(records)
    rows,batches = [o for o in h if 'valid_loss' in o],[o for o in h if 'batch/loss' in o]
    assert [(o['iter'], o['valid_loss'], o['mae']) for o in rows]==[*zip([10,20,30], rec['valid_loss'], rec['mae'])]
    assert [(o['iter'], o['batch/loss']) for o in batches]==[(i, rec.raw_losses[i-1]) for i in range(5,31,5)]
    config = {tuple(u.nested_key)
        or u.key:json.loads(u.value_json) for o in records if o.WhichOneof('record_type') in ('config','run')
        for u in (o.config if o.HasField('config') else o.run.config).update}
    assert any(v.get('opt', {}).get('lr')==[.05] for v in config.values() if isinstance(v, dict))
    assert {o.metric.step_metric for o in records if o.WhichOneof('record_type')=='metric'
        and o.metric.name=='valid_loss'}=={'iter'}
    assert [o.exit.exit_code for o in records if o.WhichOneof('record_type')=='exit']==[0]

@pytest.mark.slow
def test_wandb_leaves_the_run_of_others_open(tmp_path, wandb_offline):
    import wandb
    run = wandb.init(**wandb_offline)
    learn = synth_learner(path=tmp_path, cbs=WandbLogger(batches=0)).fit(1)
    assert wandb.run is run
    learn.fit(2)
    with pytest.raises(ZeroDivisionError): learn.fit(1, cbs=Raise('after_row', ZeroDivisionError, order=100))
    run.finish()
    records = list(wandb_records(tmp_path))
    assert ([o['iter'] for o in history(records)]==[10,20,30,40]
        and sum(o.WhichOneof('record_type')=='exit' for o in records)==1)

# What is not installed is named, and how to get it
@pytest.mark.parametrize('cb,module,pip',
    [(TensorBoardLogger, 'tensorboard', 'loggers'), (WandbLogger, 'wandb', 'loggers'),
        (lambda: ProgressCallback('rich'), 'rich', 'rich')], ids=['tensorboard','wandb','rich'])
def test_what_is_not_installed(tmp_path, monkeypatch, cb, module, pip):
    for k in [o for o in sys.modules if o.partition('.')[0]==module or o.startswith('torch.utils.tensorboard')]:
        monkeypatch.delitem(sys.modules, k)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f'needs `{module}.*pip install {module}.*with its extra `{pip}`'):
        synth_learner(path=tmp_path).fit(1, cbs=cb())

# Watching changes nothing
def figure(self): self.tensor_board_logger.log_figure('x', self.recorder.plot_loss(skip_start=0).figure)
observers = dict(csv=lambda p: CSVLogger(p/'h.csv'), json=lambda p: JSONLogger(p/'h.jsonl', batches=1),
    own=lambda p: Listed(1), tensorboard=lambda p: TensorBoardLogger(p/'tb'),
    graph=lambda p: TensorBoardLogger(p/'tb', graph=True),
    figure=lambda p: [TensorBoardLogger(p/'tb'), Callback(after_row=figure)], timer=lambda p: Timer(every=1),
    sync=lambda p: Timer(sync=True),
    bars=lambda p: ProgressCallback(every=0), rich=lambda p: ProgressCallback('rich', every=0),
    tqdm=lambda p: ProgressCallback('tqdm', every=0),
    text=lambda p: ProgressCallback('text', print_every=1, mark_best=True))

def trained(cbs=()):
    random.seed(0); np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1,4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(.3), nn.Linear(4,1))
    learn = synth_learner(seed=0, model=model, opt_func=Adam, metrics=[mae, rmse()]).fit(2, cbs=cbs)
    return [*model.state_dict().values(), torch.get_rng_state(),
        torch.tensor(learn.recorder.raw_losses)],[*learn.recorder['valid_loss'], random.random(), np.random.rand()]

@pytest.mark.filterwarnings('ignore:.*torch.jit:DeprecationWarning')
@pytest.mark.parametrize('name', observers)
def test_watching_changes_nothing(tmp_path, name, capsys):
    import matplotlib; matplotlib.use('Agg')
    (a,x),(b,y) = trained(),trained(observers[name](tmp_path))
    assert all(torch.equal(u, v) for u,v in zip(a, b, strict=True)) and x==y
    import matplotlib.pyplot as plt; plt.close('all')

@pytest.mark.slow
def test_wandb_changes_nothing(tmp_path, wandb_offline):
    (a,x),(b,y) = trained(),trained(WandbLogger(1, **wandb_offline))
    assert all(torch.equal(u, v) for u,v in zip(a, b, strict=True)) and x==y

# Names of files
@both_files
@pytest.mark.parametrize('fname,exc,match',
    [('../up.log', ValueError,
        r"'\.\./up\.log' names no file in `learn\.path`: give a name inside, or an absolute path"),
        ('a/../../b', ValueError, 'names no file'), ('', ValueError, "'' names no file"),
    ('x\0y', ValueError, 'names no file'), (3, TypeError, 'A file is a name or a path, but got 3'),
    (None, TypeError, 'A file is a name or a path, but got None')], ids=repr)
def test_names_obey_the_rules_of_other_files(cls, fname, exc, match):
    with pytest.raises(exc, match=match): cls(fname)
    with pytest.raises(exc, match=match.replace('a name or a path',
            'a name, a path or an open file').replace(r'learn\.path', '.*')):
        synth_learner().save(fname)

@pytest.mark.parametrize('log_dir', ['../up', '', 3])
def test_folders_of_boards_obey_them_too(log_dir):
    with pytest.raises((ValueError,TypeError), match='names no file in `learn.path`|`log_dir` is a path, but got 3'):
        TensorBoardLogger(log_dir)

@both_files
def test_a_folder_is_no_file(cls, tmp_path):
    (tmp_path/'log').mkdir()
    with pytest.raises(IsADirectoryError, match=f'`{cls.__name__}` writes a file, but `.*log` is a folder'):
        synth_learner(path=tmp_path).fit(1, cbs=cls('log'))

@both_files
def test_a_link_stays_a_link_and_a_file_keeps_its_mode(cls, tmp_path):
    (tmp_path/'real.log').touch(mode=0o600)
    (tmp_path/'log').symlink_to(tmp_path/'real.log')
    synth_learner(path=tmp_path).fit(2, cbs=(log := cls('log')))
    assert ((tmp_path/'log').is_symlink() and (tmp_path/'real.log').stat().st_mode&0o777==0o600
        and len(log.read_log())==2)
    assert {o.name for o in tmp_path.iterdir()}=={'real.log','log'}

@both_files
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='needs pipes')
def test_a_pipe_gets_the_lines_and_is_not_replaced(cls, append, tmp_path, recwarn):
    os.mkfifo(pipe := tmp_path/'pipe')
    keep = os.open(pipe, os.O_RDWR|os.O_NONBLOCK) # a reader that stays, whose pipe has room for all
    def note(self):
        if self.epoch==1: self.recorder.add(note='new')
    try:
        rec = synth_learner(path=tmp_path).fit(2, cbs=[cls('pipe', append), Callback(after_train=note)]).recorder
        lines = os.read(keep, 10**6).decode().splitlines()
    finally: os.close(keep)
    assert pipe.is_fifo() and not len(recwarn) and [o.name for o in tmp_path.iterdir()]==['pipe']
    if cls is JSONLogger: assert [json.loads(o)['kind'] for o in lines]==['params','row','row','end']
    else: # a new column needs a new line of names
        names = ['epoch','train_loss','valid_loss','time','note']
        assert lines[0].split(',')==names[:4] and lines[2].split(',')==names and len(lines)==4
        assert lines[1].split(',')==[*map(repr, rec.rows[0])] and lines[3].endswith(',new')

def test_a_csv_that_is_deleted_before_a_new_column_has_all_names(tmp_path):
    def note(self):
        if self.epoch==1: (tmp_path/'history.csv').unlink(); self.recorder.add(note='new')
    learn = synth_learner(path=tmp_path).fit(2, cbs=[log := CSVLogger(), Callback(after_train=note)])
    assert log.read_log()==learn.recorder.rows[1:]

@both_files
def test_a_device_is_not_replaced(cls, tmp_path):
    null = tmp_path/'null'
    try: os.mknod(null, 0o666|stat.S_IFCHR, os.makedev(1, 3)); null.write_bytes(b'')
    except (AttributeError,OSError): pytest.skip('only root makes devices, on some file systems')
    learn = synth_learner(path=tmp_path).fit(2, cbs=[cls('null'), stops_after(15)])
    learn.resume()
    assert null.is_char_device() and [o.name for o in tmp_path.iterdir()]==['null']

@pytest.mark.parametrize('make', [JSONLogger, TensorBoardLogger, WandbLogger])
def test_how_often_batches_are_logged_is_checked(make):
    for v,exc in ((-1, ValueError), (2.5, TypeError), ('all', TypeError)):
        with pytest.raises(exc, match='`batches` is'): make(batches=v)

# Damaged files
csv_damage = dict(short=(lambda t: t.replace('1,', '', 1),
    r'row 2 has 3 values for 4 columns, `epoch`, `train_loss`, `valid_loss`, `note`'),
    long=(lambda t: t.replace('2,', '2,7,', 1), 'row 3 has 5 values for 4 columns'),
    bytes=(lambda t: t.replace('1,', '\udcff\udcfe,', 1), r'byte \d+ is no text'),
    quote=(lambda t: t.replace('1,', '"1,', 1), 'a quote is not closed in `"1,'),
    twice=(lambda t: t.replace('valid_loss', 'train_loss', 1), 'two of its columns have one name'),
    after_quote=(lambda t: t.replace('1,', '"1"0,', 1), "',' expected after"))
@pytest.mark.parametrize('name', csv_damage)
def test_damaged_csv(name, tmp_path):
    "In the middle, so that rows would be lost"
    damage,match = csv_damage[name]
    good = 'epoch,train_loss,valid_loss,note\n0,1.5,2.5,a\n1,1.25,2.25,b\n2,1.0,2.0,c\n'
    (file := tmp_path/'history.csv').write_bytes(damage(good).encode('utf-8', 'surrogateescape'))
    data = file.read_bytes()
    with pytest.raises(ValueError, match=f'`.*history.csv` is damaged, or was not written by `CSVLogger`: .*{match}'):
        CSVLogger(file).read_log()
    trace = Trace('before_train')
    with pytest.raises(ValueError, match='is damaged'):
        synth_learner(path=tmp_path, cbs=trace).fit(1, cbs=CSVLogger(append=True))
    assert not trace.seen and file.read_bytes()==data # noticed before training, and nothing is lost
    file.write_text(good)
    assert list(CSVLogger(file).read_log()['valid_loss'])==[2.5,2.25,2.]

json_damage = dict(cut=(lambda t: t.replace('"step"', '"st', 1), r'line 2 is no JSON, `\{"kind"'),
    bytes=(lambda t: t.replace('row', '\udcff', 1), r'byte \d+ is no text'),
    other=(lambda t: t.replace('\n', '\n[1, 2]\n', 1), r'line 2 is none of a log, `\[1, 2\]`'),
    no_kind=(lambda t: t.replace('"kind"', '"find"', 1), 'line 1 is none of a log'),
    no_row=(lambda t: t.replace('"row":', '"raw":', 1), 'line 2 is none of a log'))
@pytest.mark.parametrize('name', json_damage)
def test_damaged_json(name, tmp_path):
    damage,match = json_damage[name]
    synth_learner(path=tmp_path).fit(2, cbs=JSONLogger())
    file = tmp_path/'history.jsonl'
    file.write_bytes(damage(file.read_text()).encode('utf-8', 'surrogateescape'))
    data = file.read_bytes()
    with pytest.raises(ValueError,
            match=f'`.*history.jsonl` is damaged, or was not written by `JSONLogger`: .*{match}'):
        JSONLogger(file).read_log()
    with pytest.raises(ValueError, match='is damaged'): synth_learner(path=tmp_path).fit(1, cbs=JSONLogger(append=True))
    assert file.read_bytes()==data

def test_rows_that_a_crash_has_cut_off_are_dropped():
    "At the end, where nothing is lost but them"
    from tempfile import TemporaryDirectory
    with TemporaryDirectory() as folder:
        learn = synth_learner(path=folder).fit(2, cbs=CSVLogger())
        file = learn.path/'history.csv'
        whole = file.read_text()
        for end in ('2,1.', '2,"a note\n', '2,"a note\nwith lines,\n', '2,"a note\nwith li'):
            file.write_text(whole+end)
            assert len(CSVLogger(file).read_log())==2, end

def test_a_whole_last_line_of_json_stays_where_an_editor_has_cut_off_its_end(tmp_path):
    def note(self): self.recorder.add(note='a "quoted", word\nand a line')
    for n in (2, 1): # a row, and the last line of a fit
        rec = synth_learner(path=tmp_path).fit(n, cbs=[log := JSONLogger(), Callback(after_train=note)]).recorder
        text = log.file.read_text().rstrip('\n')
        log.file.write_text(text)
        assert len(log.read_log())==n
        more = synth_learner(path=tmp_path).fit(1, cbs=(log := JSONLogger(append=True))).recorder
        assert list(log.read_log()['valid_loss'])==[*rec['valid_loss'], *more['valid_loss']]
        assert log.file.read_text().startswith(text+'\n')

@pytest.mark.parametrize('end', ['2,0.5', '2,"a', '2,0.5,"a""', '2,0.5,"a\nb', '2,0.5,2.5'])
def test_a_row_of_csv_without_an_end_is_cut_off(end, tmp_path):
    "Its last number may be too short"
    file = tmp_path/'history.csv'
    file.write_text('epoch,train_loss,note\n1,0.5,a\n'+end)
    assert dicts(CSVLogger(file).read_log())==[dict(epoch=1, train_loss=.5, note='a')]

def test_notes_between_lines_of_json_stay_there(tmp_path, recwarn):
    def note(cb):
        with open(tmp_path/'history.jsonl', 'a') as f: f.write('{"kind": "note"}\n')
    noting = Callback(after_epoch=note)
    noting.order = 100
    synth_learner(path=tmp_path).fit(3, cbs=[log := JSONLogger(), noting])
    kinds = [json.loads(o)['kind'] for o in log.lines()]
    assert not recwarn and log.file==tmp_path/'history.jsonl' and kinds==['params', *['row','note']*3, 'end']

@both_files
def test_a_file_that_is_marked_as_utf_8_is_read_as_such(cls, tmp_path):
    "As Excel does. The mark is no part of the first name"
    synth_learner(path=tmp_path).fit(2, cbs=(log := cls()))
    names = log.read_log().names
    log.file.write_text(log.file.read_text(), encoding='utf-8-sig')
    assert log.read_log().names==names
    synth_learner(path=tmp_path).fit(1, cbs=(log := cls(append=True)))
    assert log.read_log().names==names and list(log.read_log()['epoch'])==[0, 1, 0]

def test_what_a_logger_writes_with_is_not_searched():
    "A writer, or a run of a service, holds thousands of objects, which change with each row"
    looked = []
    class Writer:
        def __getstate__(self): looked.append(1)
        @property
        def __dict__(self): looked.append(1); return {}
    class Mine(Logger):
        def start(self, resumed): self.writer,self.gen = Writer(),torch.Generator()
        def log(self, row, step, kind): pass
    seen = []
    with (learn := synth_learner(cbs=Mine())).no_logging():
        learn.fit(2, cbs=Callback(after_fit=lambda cb: seen.extend(all_parts(cb.learn, cb.learn.dls.train))))
    assert not looked and not [k for k in seen if 'mine' in k]

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger])
@pytest.mark.parametrize('how', ['from a file','rewound'])
def test_a_log_that_is_continued_has_no_row_twice_where_a_fit_resumes_before_its_first_row(tmp_path, make, how):
    def learner(): return synth_learner(n_train=6, path=tmp_path)
    def epochs():
        logger = make(append=True)
        logger.file = tmp_path/logger.fname
        return [o['epoch'] for o in logger.read_log()]
    learner().fit(1, cbs=make(append=True))
    if how=='rewound':
        learn = learner().fit(3, cbs=[Rewind(every=2, keep=99), make(append=True)])
        learn.rewind(4).resume()
    else:
        def kill(learn):
            if learn.training and learn.train_iter==8: raise KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt): learner().fit(3, cbs=[make(append=True),
            Checkpoint(5, 'iter', on_exc=False), on(event.after_batch, order=3000)(kill)])
        learner().fit(3, cbs=[make(append=True), Checkpoint(5, 'iter')], resume=True)
    assert epochs()==[0, 0, 1, 2]

# Others write to the same file
def stops_after(n):
    def stop(cb):
        if cb.train_iter==n: cb.learn.stop_soon()
    return Callback(after_batch=stop)

def losses_in(logger, tmp_path):
    logger.file = tmp_path/logger.fname
    return list(logger.read_log()['valid_loss'])

def a_run(path, lr=.1, **kwargs):
    torch.manual_seed(0)
    return synth_learner(n_train=3, lr=lr, path=path, **kwargs)

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger])
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.parametrize('how', ['in memory','from a file'])
def test_a_run_that_resumes_keeps_its_rows_and_those_of_others_apart(tmp_path, make, append, how):
    """Another fit has written the same file since. With `append`, its rows stay; without, the file is that of the run
    which comes last"""
    def saving(): return [Checkpoint(folder=tmp_path/'points')] if how=='from a file' else []
    a,b = a_run(tmp_path),a_run(tmp_path, lr=.01)
    a.fit(4, cbs=[make(append=append), stops_after(8), *saving()])
    b.fit(4, cbs=make(append=append))
    others = list(b.recorder['valid_loss'])
    if how=='from a file': a = a_run(tmp_path)
    def rest():
        if how=='in memory': a.resume()
        else: a.fit(4, cbs=[make(append=append), *saving()], resume=True)
    if append: rest()
    else:
        with pytest.warns(UserWarning, match='does not have the lines of this run any more'): rest()
    mine = list(a.recorder['valid_loss'])
    assert len({*mine,*others})==8
    assert losses_in(make(), tmp_path)==(mine[:2]+others+mine[2:] if append else mine)

@both_files
def test_a_run_that_is_stopped_again_before_it_logs_leaves_the_rows_of_others(tmp_path, cls):
    a,b = a_run(tmp_path, cbs=cls(append=True)),a_run(tmp_path, lr=.01)
    a.fit(4, cbs=stops_after(7))
    others = list(b.fit(3, cbs=cls(append=True)).recorder['valid_loss'])
    for n in (8,9): a.resume(cbs=stops_after(n))
    a.resume(cbs=[])
    mine = list(a.recorder['valid_loss'])
    assert losses_in(cls(), tmp_path)==mine[:2]+others+mine[2:]

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger])
@pytest.mark.parametrize('n,killed', [(4, 11), (5, 11), (8, 11), (3, 4), (4, 5), (6, 7)])
def test_rows_after_the_point_are_dropped_and_those_of_others_stay(tmp_path, make, n, killed):
    "The run may have logged rows after its last checkpoint, was killed, and two others have appended theirs"
    def saving(): return Checkpoint(n, 'iter', folder=tmp_path/'points', on_exc=False)
    def kill(cb):
        if cb.train_iter==killed: raise KeyboardInterrupt
    a,b = a_run(tmp_path),a_run(tmp_path, lr=.01)
    with pytest.raises(KeyboardInterrupt): a.fit(5, cbs=[make(append=True), saving(), Callback(after_batch=kill)])
    others = []
    for _ in range(2): others += [*b.fit(2, cbs=make(append=True)).recorder['valid_loss']]
    a = a_run(tmp_path)
    a.fit(5, cbs=[make(append=True), saving()], resume=True)
    mine,logged = list(a.recorder['valid_loss']),losses_in(make(), tmp_path)
    done = logged.index(others[0])
    assert logged==mine[:done]+others+mine[done:] and done==(killed-killed%n-1)//3

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger])
def test_a_run_that_resumes_in_another_folder_logs_its_whole_curve(tmp_path, make, recwarn):
    a = a_run(tmp_path/'a')
    a.fit(4, cbs=[make(), stops_after(8)])
    a.save_state(tmp_path/'stopped')
    b = a_run(tmp_path/'b')
    b.fit(4, cbs=make(), resume=tmp_path/'stopped')
    assert len(b.recorder.rows)==4 and losses_in(make(), tmp_path/'b')==list(b.recorder['valid_loss'])
    assert not [o for o in recwarn if 'lines of this run' in str(o.message)]

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger])
def test_rows_that_another_run_appends_meanwhile_stay(tmp_path, make):
    "Two runs of a sweep write one file at a time"
    a,b = a_run(tmp_path),a_run(tmp_path, lr=.01)
    def other(cb):
        if cb.epoch==0: b.fit(2, cbs=make(append=True))
    a.fit(2, cbs=[make(append=True), Callback(before_epoch=other)])
    assert losses_in(make(), tmp_path)==list(b.recorder['valid_loss'])+list(a.recorder['valid_loss'])

def after(epoch, f):
    "Calls `f` when the row of `epoch` has been logged"
    def other(cb):
        if cb.epoch==epoch: f()
    cb = Callback(after_epoch=other)
    cb.order = 100
    return cb

@pytest.mark.parametrize('make', [CSVLogger, JSONLogger, lambda **kw: JSONLogger(batches=1, **kw)],
    ids=['csv','json','batches'])
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.parametrize('epoch', [0, 2])
def test_two_runs_that_write_one_file_at_a_time_are_not_mixed(tmp_path, make, append, epoch, recwarn):
    "Values would be under names of other metrics. The run that notices logs its whole curve to a file of its own"
    a,b = a_run(tmp_path, lr=.01, metrics=mae),a_run(tmp_path, metrics=rmse())
    log,theirs = make(append=append),make(append=append)
    a.fit(3, cbs=[log, after(epoch, lambda: b.fit(2, cbs=theirs))])
    said,file = [str(o.message) for o in recwarn],tmp_path/log.fname
    def rows(o): return [{k:v for k,v in dict(row).items() if k!='step' and v is not missing} for row in o.read_log()]
    if type(log) is JSONLogger and append: # each line says what it is
        mine,others = dicts(a.recorder.rows),dicts(b.recorder.rows)
        assert not said and log.file==file and rows(log)==[*mine[:epoch+1], *others, *mine[epoch+1:]]
        return
    if type(log) is CSVLogger and epoch==2: # there is nothing more to write
        assert not said and [o.name for o in tmp_path.glob('*.csv')]==[file.name]
        return
    assert (len(said)==1 and f'`{file}` has been written by another run' in said[0]
        and f'`{log.file.name}` beside it' in said[0])
    assert log.file==tmp_path/f'{file.stem}.{a.lineage[-1].run}{file.suffix}' and theirs.file==file
    assert rows(log)==dicts(a.recorder.rows)
    assert rows(theirs)==dicts([*a.recorder.rows[:epoch+1]]*append+[*b.recorder.rows])
    if type(log) is JSONLogger:
        kinds = [json.loads(o)['kind'] for o in log.lines()]
        assert kinds[0]=='params' and kinds[-1]=='end' and kinds.count('row')==3 and kinds.count('params')==1
        if log.batches: assert list(log.read_log('batch')['loss'])==a.recorder.raw_losses

def test_a_run_that_is_rewound_leaves_the_rows_of_the_one_that_had_its_file(tmp_path):
    a,b = a_run(tmp_path, lr=.01),a_run(tmp_path)
    log,others = CSVLogger(append=True),[]
    def other():
        if not others: others.extend(b.fit(2, cbs=CSVLogger(append=True)).recorder['valid_loss'])
    with pytest.warns(UserWarning, match='has been written by another run'):
        a.fit(5, cbs=[Rewind(every=3, keep=99), log, after(1, other)])
    a.rewind(6).resume() # before the row of epoch 1
    mine = list(a.recorder['valid_loss'])
    assert log.file==tmp_path/'history.csv' and losses_in(log, tmp_path)==mine[:1]+others+mine[1:]

@both_files
@pytest.mark.parametrize('how', ['deleted','emptied','saved again'])
def test_a_file_that_nobody_else_writes_to_is_continued(tmp_path, cls, how, recwarn):
    log = cls()
    file = tmp_path/log.fname
    def change():
        if how=='deleted': file.unlink()
        else: file.write_bytes(b'' if how=='emptied' else file.read_bytes())
    learn = a_run(tmp_path).fit(3, cbs=[log, after(0, change)])
    assert log.file==file and not len(recwarn)
    assert losses_in(log, tmp_path)==list(learn.recorder['valid_loss'])[how!='saved again':]

class Bytes(FileLogger):
    "Lines that are no text"
    def lines(self): return self.file.read_bytes().split(b'\xff\n')[:-1]
    def encoded(self, lines, head=False): return b''.join(o+b'\xff\n' for o in lines)
    def read_log(self): return self.lines()
    def log(self, row, step, kind): self.append_line(b'\xfe'+f"{step} {row['valid_loss']!r}".encode())

class Seldom(FileLogger):
    "Leaves out the first row"
    def log(self, row, step, kind):
        if row['epoch']>0: self.append_line(f"{step} {row['valid_loss']!r}")

@pytest.mark.parametrize('cls', [Bytes, Seldom])
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.parametrize('n', [4, 8])
def test_files_of_ones_own_are_continued_whatever_is_in_them(tmp_path, cls, append, n, recwarn):
    for nm in ('whole.txt','mine.txt'): (tmp_path/nm).write_bytes(b'earlier\xff\n' if cls is Bytes else b'earlier\n')
    a_run(tmp_path).fit(4, cbs=cls('whole.txt', append))
    learn = a_run(tmp_path).fit(4, cbs=[cls('mine.txt', append), stops_after(n)])
    learn.resume()
    assert (tmp_path/'mine.txt').read_bytes()==(tmp_path/'whole.txt').read_bytes()!=b''
    assert not [o for o in recwarn if 'lines of this run' in str(o.message)]

@pytest.mark.parametrize('gone', [True, False])
def test_a_curve_that_is_logged_again_has_the_steps_that_it_had(tmp_path, gone):
    a,b = a_run(tmp_path),a_run(tmp_path, lr=.01)
    a.fit(4, cbs=[JSONLogger(append=True), stops_after(8)])
    (tmp_path/'history.jsonl').unlink()
    if not gone: b.fit(1, cbs=JSONLogger())
    a.resume()
    log = JSONLogger()
    log.file = tmp_path/'history.jsonl'
    assert list(log.read_log()['step'])[-4:]==[3, 6, 9, 12]

class OwnBegin(Listed):
    "Finds its recorder itself"
    def before_fit(self): self.rec = self.learn.recorder

def test_what_was_logged_is_known_to_each_logger_alone(tmp_path):
    assert not Listed().logged
    for _ in range(2):
        log = OwnBegin()
        fitted(tmp_path, log, 1)
        assert log.logged and log.logged.n_rows==1 and not Listed().logged
