"What one of several processes does, all do: cancels, stops, errors; and a run goes on with another number of processes"
import re,signal
import pytest
from learner.all import cancels,moments
from test_dist import close,compared,lone_cancels,one,run,slow,two_or_three,also
from together import together

def cut_off(text):
    "Whether torch says that the other process has ended: whether data were on their way decides how"
    return 'closed by peer' in text or 'reset by peer' in text

in_batch = 'before_batch','after_pred','after_loss','after_step','after_batch'

def all_the_same(res, but=()):
    first = {k:v for k,v in res[0].items() if k not in ('seconds', *but)}
    for o in res: close({k:o[k] for k in first}, first)

@pytest.mark.parametrize('ev',
    [*in_batch[:1], 'after_batch',
        *also(*in_batch[1:-1], 'before_draw', 'after_train', 'before_validate', 'after_epoch', 'before_fit')])
@pytest.mark.parametrize('rank,at', [(1,3), *also((0,3), (1,0), (1,1), (0,1))])
def test_a_cancelled_fit_ends_in_all_processes(ev, rank, at):
    "At the same batch, with the same weights and the same reason"
    res = together(2, 'act', 'cancel', ev, rank, at=0 if ev=='before_fit' else at)
    # what that process has left undone
    all_the_same(res, but=dict(after_step=['done'], after_epoch=['rows']).get(ev, ()))
    assert res[0]['exc'] is None and res[0]['reason']=='enough' and max(o['done'] for o in res)<9

@slow
@pytest.mark.parametrize('what', ['skip','epoch','train'])
@pytest.mark.parametrize('ev', ['before_batch','after_loss'])
def test_other_cancels(what, ev):
    res = together(2, 'act', what, ev)
    all_the_same(res)
    assert res[0]['done']=={'skip': 14, 'epoch': 10, 'train': 10}[what]

@pytest.mark.parametrize('what', ['interrupt', *also('terminate','stop')])
@pytest.mark.parametrize('ev', ['after_loss', 'after_epoch', *also('after_batch', 'before_draw', 'before_validate')])
@two_or_three
def test_stops_are_agreed_on(what, ev, procs):
    """Ctrl-C, SIGTERM and stops that wait for a pause, in one process: all stop between the same two batches, and go
    on from there"""
    res = together(procs, 'act', what, ev, resume=True)
    all_the_same(res)
    kind = dict(interrupt='KeyboardInterrupt', terminate='SystemExit', stop=None)[what]
    assert (res[0]['exc'] and res[0]['exc'][0])==kind and res[0]['done']<14
    close(res[0]['weights'], one('act', 'sleep', at=99)['weights'])

@pytest.mark.parametrize('local,own,said', [(False, ('Preempted', 'node3 ends in 2 minutes'),
    "Preempted('node3 ends in 2 minutes')"), (True, ('Local', 'now'), "Local('now')")])
def test_an_error_of_the_handler_of_a_script_that_cannot_be_sent_is_told(local, own, said):
    assert run(2, 'preempted', (local,), {})==[('RuntimeError', said), own]

@pytest.mark.parametrize('kind', ['limit', *also('validate')])
def test_clocks_that_differ_do_not_part_the_processes(kind):
    res,ref = together(2, 'by_clock', kind),one('by_clock', kind)
    for o in res: close({k:o[k] for k in compared}, {k:ref[k] for k in compared})
    assert [o['reason'] for o in res]==[ref['reason']]*2

@pytest.mark.parametrize('what,rank,n_valid', [('interrupt', 1, 400), *also(('interrupt', 0, 400),
    ('error', 1, 400), ('terminate', 1, 400), ('terminate', 0, 400), ('stop', 0, 400), ('interrupt', 1, 12),
    ('interrupt', 0, 300))])
@two_or_three
def test_a_stop_ends_a_validation(what, rank, n_valid, procs):
    """In one process, or its error, in the middle of a validation: all leave it within some batches, wherever they are,
    and `resume` validates again and goes on, with the numbers of a run that was not stopped"""
    res = run(procs, 'stopped_in_validation', (what, rank), dict(n_valid=n_valid))
    kind = dict(interrupt='KeyboardInterrupt', terminate='SystemExit', stop=None, error='ValueError')[what]
    ref = one('stopped_in_validation', None, n_valid=n_valid)
    for i,o in enumerate(res):
        assert (o['exc'] and o['exc'][0])==('ProcessFailed' if what=='error' and i!=rank else kind)
        assert len(o['cut'])==1 and o['cut'][0]<=min(25, n_valid//4)
        assert o['at']=='validate' or n_valid==12
        close({k:o[k] for k in compared}, {k:ref[k] for k in compared})
        assert o['batches'][-2:]==ref['batches']

reached = [ev for ev,_ in moments() if 'cancel' not in ev]
once = [*dict.fromkeys([*reached, 'before_row', 'after_row'])]

@pytest.mark.parametrize('ev,rank',
    [('before_backward', 1), ('before_backward', 0), *also(*((ev, rank) for ev in once for rank in (0, 1)
        if ev!='before_backward'))])
def test_an_error_ends_all(ev, rank):
    "Within seconds; the error is shown by its process, with its number, and by no other"
    res = together(2, 'act', 'error', ev, rank, at=0 if ev in ('before_fit','before_epoch','before_train') else 3)
    mine,other = res[rank],res[1-rank]
    assert mine['exc'][:2]==('ValueError', 'oops') and all(o['seconds']<20 for o in res)
    assert other['model']=='Head' and other['peers'] is None
    if ev=='cleanup_fit': assert other['exc'] is None; return # all is over, in the other too
    assert f'in process {rank} of 2' in mine['exc'][2]
    kind,text,notes = other['exc']
    # a connection that was closed inside of a backward pass is torch's error; here the first process has the store
    if ev=='before_backward': assert kind=='RuntimeError' and (cut_off(text) or 'has failed' in text+notes)
    else: assert kind=='ProcessFailed' and f'Process {rank} of 2 has failed: ValueError: oops' in text

@pytest.mark.parametrize('ev', ['after_loss', *also('after_batch', 'before_validate')])
def test_a_killed_process_ends_all(ev):
    res = together(3, 'act', 'kill', ev, fails=True)
    assert (res.codes==[0, -signal.SIGKILL, 0]
        and all(o['exc'][0] in ('RuntimeError','ProcessFailed') and o['seconds']<20 for o in (res[0], res[2])))

def refused(res, rank, name):
    """Whether all have ended, and say which process has parted from the others or has raised what, how far each has
    come, and where a cancel can be raised"""
    kind,text,notes = res[rank]['exc']
    assert kind=='RuntimeError'
    if text.startswith(f'`{name}` was raised in one process when the others were averaging gradients'):
        assert text.endswith('raise it in all processes, or before, in `after_loss`, or later, in `after_batch`')
        assert f'in process {rank} of {len(res)}' in notes
        said = f'Process {rank} of {len(res)} has failed: RuntimeError: {text}'
        for i,(kind,text,notes) in enumerate(o['exc'] for o in res):
            if i==rank: continue
            # a connection closed inside of a backward pass is torch's error; here the first process has the store
            assert said in (text if kind=='ProcessFailed' else notes) or (rank==0 and cut_off(text))
        return
    far = ', '.join(rf'Process {i} has trained on {o["counts"][0]} batches with {o["counts"][1]} steps, '
        r'(trains \d+ parameters, )?(accumulates, )?and is in `\w+`' for i,o in enumerate(res))
    why = f'process {rank} has parted from the others. {far}'
    assert re.fullmatch(why + ". Cancel in all processes, or where others can take part: "
        "in `after_loss` or before, or in `after_batch`", text)
    for i,o in enumerate(res):
        if i!=rank: assert o['exc'][0]=='ProcessFailed' and re.fullmatch(why, o['exc'][1])

def places_of_cancels():
    "Each event of training with each cancel that can be raised there"
    for ev,scopes in moments():
        for o in scopes: yield ev,cancels[o].__name__

@pytest.mark.parametrize('ev,name,rank',
    [*lone_cancels, *also(*(o for ev,name in places_of_cancels() for rank in (0, 1)
        if (o := (ev, name, rank)) not in lone_cancels))])
def test_a_cancel_of_one_process(ev, name, rank):
    """Whatever one process cancels, and wherever: phases end with the same weights and counts in both, or both end with
    an error that has the number of the process"""
    at = 0 if ev in ('before_fit','before_train','before_epoch','before_draw','after_draw') else 3
    res = run(2, 'lone_cancel', (name, ev, rank, at), {})
    assert res[rank]['done'] or 'cancel' in ev
    assert all(o['seconds']<20 for o in res)
    if any(o['exc'] for o in res): refused(res, rank, name); return
    if name=='CancelFitException': return # all take over the weights of the first, see above
    a,b = res
    for k in a['weights'].keys() & b['weights'].keys(): close(a['weights'][k], b['weights'][k])
    for k in 'counts','rows': close(a[k], b[k])

@slow
@pytest.mark.parametrize('ev,name', [(ev, f'Cancel{o}Exception') for ev in ('before_batch','after_loss','after_batch')
    for o in ('Batch','Train','Epoch') if (ev,o)!=('after_batch','Batch')]) # then the batch is over
@pytest.mark.parametrize('at', [1,2,3,4])
@pytest.mark.parametrize('rank', [0,1])
def test_a_cancel_of_one_process_where_gradients_wait(ev, name, at, rank):
    "As above: what was added is the same in both, and both expect the same of the next batch"
    a,b = res = together(2, 'lone_cancel', name, ev, rank, at, cbs=('accumulate',))
    assert res[rank]['done'] and not a['exc'] and not b['exc']
    for k in a['weights'].keys() & b['weights'].keys(): close(a['weights'][k], b['weights'][k])
    for k in 'counts','rows': close(a[k], b[k])

def test_a_batch_that_one_process_skips_where_gradients_wait():
    a,b = run(2, 'lone_cancel', ('CancelBatchException', 'before_batch', 0, 1), dict(cbs=('accumulate',)))
    assert not a['exc'] and not b['exc'] and a['counts']==b['counts']
    for k in a['weights'].keys() & b['weights'].keys(): close(a['weights'][k], b['weights'][k])

def test_a_training_that_ends_one_batch_earlier_in_one_process_where_gradients_wait():
    a,b = run(2, 'lone_cancel', ('CancelTrainException', 'after_batch', 0, 3), dict(cbs=('accumulate',)))
    assert not a['exc'] and not b['exc'] and a['counts']==b['counts']
    for k in a['weights'].keys() & b['weights'].keys(): close(a['weights'][k], b['weights'][k])

def test_stop_for_now_of_one_process_is_refused():
    a,b = run(2, 'act', ('stop_now', 'after_batch', 1, 3), {})
    assert a['exc'][0]=='RuntimeError' and 'write `learn.stop_soon()`' in a['exc'][1]
    assert b['exc'][0]=='ProcessFailed' and 'write `learn.stop_soon()`' in b['exc'][1]

def test_a_batch_that_one_process_skips_in_lr_find():
    a,b = run(2, 'lr_find_skips', (), {})
    for k in 'lrs','weights': close([*a[k]], [*b[k]]) # the loss of a batch that is skipped is that of each process
    assert len(a['losses'])>5

def test_an_error_is_heard_by_a_process_that_cancels():
    cancels,fails = run(2, 'error_and_cancel', (), {})
    assert fails==('ValueError', 'oops') and cancels[0]=='ProcessFailed' and 'ValueError: oops' in cancels[1]

@slow
def test_a_slow_process_is_waited_for_until_the_timeout():
    all_the_same(res := together(2, 'act', 'sleep'))
    assert res[0]['exc'] is None
    res = together(2, 'act', 'sleep', timeout=1.)
    assert res[0]['exc'][0]=='RuntimeError' and 'did not answer in time' in res[0]['exc'][1]

@slow # kills and resumes of other tests do the same
@pytest.mark.parametrize('a,b,c', [(1,2,1), (2,1,3), (0,2,0), (3,3,2)])
def test_a_run_goes_on_with_other_numbers_of_processes(a, b, c, tmp_path):
    "Stopped in the middle of epochs and of accumulated batches, and resumed from its files"
    for n,stop_at in zip((a, b, c), (4, 10, None)): res = together(n, 'resumed', str(tmp_path), stop_at)
    for o in res:
        close({k:o[k] for k in ('weights','rows','losses','iters')},
            {k:one('resumed', str(tmp_path/'one'), None)[k] for k in ('weights','rows','losses','iters')})
