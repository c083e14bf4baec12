"What one of several processes does, all do: cancels, stops, errors; and a run goes on with another number of processes"
import signal
import pytest
from test_dist import close,one,slow,two_or_three,also
from together import together

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
@pytest.mark.parametrize('ev', ['after_loss', *also('after_batch', 'before_draw', 'before_validate', 'after_epoch')])
@two_or_three
def test_stops_are_agreed_on(what, ev, procs):
    """Ctrl-C, SIGTERM and stops that wait for a pause, in one process: all stop between the same two batches, and go
    on from there"""
    res = together(procs, 'act', what, ev, resume=True)
    all_the_same(res)
    kind = dict(interrupt='KeyboardInterrupt', terminate='SystemExit', stop=None)[what]
    assert (res[0]['exc'] and res[0]['exc'][0])==kind and res[0]['done']<14
    close(res[0]['weights'], one('act', 'sleep', at=99)['weights'])

@pytest.mark.parametrize('ev',
    ['before_backward', *also('before_fit', 'before_train', *in_batch, 'after_backward', 'before_step', 'before_draw',
        'after_train',
    'before_validate', 'after_validate', 'after_epoch', 'after_fit')])
def test_an_error_ends_all(ev):
    "Within seconds; the error is shown by its process, with its number, and by no other"
    res = together(2, 'act', 'error', ev, **(dict(at=0) if ev in ('before_fit','before_train') else {}))
    assert res[1]['exc']==('ValueError', 'oops') and res[0]['exc'] is not None and all(o['seconds']<20 for o in res)
    if res[0]['exc'][0]=='ProcessFailed': assert 'Process 1 of 2 has failed: ValueError: oops' in res[0]['exc'][1]
    else: assert ev in ('after_backward','before_backward') and res[0]['exc'][0]=='RuntimeError'
    assert res[0]['model']=='Head' and res[0]['deal'] is None

@pytest.mark.parametrize('ev', ['after_loss', *also('after_batch', 'before_validate')])
def test_a_killed_process_ends_all(ev):
    res = together(3, 'act', 'kill', ev, fails=True)
    assert (res.codes==[0, -signal.SIGKILL, 0]
        and all(o['exc'][0] in ('RuntimeError','ProcessFailed') and o['seconds']<20 for o in (res[0], res[2])))

@slow
def test_a_cancel_among_averages_ends_in_an_error():
    "A cancel between the meeting of the batch and its step, in one process: an error says what to do, without a hang"
    res = together(2, 'lone_cancel', fails=True)
    assert res[1]['exc'][0]=='RuntimeError' and 'when the others were averaging gradients' in res[1]['exc'][1]
    assert all(o['exc'] and o['seconds']<40 for o in res)

@slow
def test_a_slow_process_is_waited_for_until_the_timeout():
    all_the_same(res := together(2, 'act', 'sleep'))
    assert res[0]['exc'] is None
    res = together(2, 'act', 'sleep', timeout=1.)
    assert res[0]['exc'][0]=='RuntimeError' and 'did not answer in time' in res[0]['exc'][1]

@pytest.mark.parametrize('a,b,c', [(1,2,1), *also((2,1,3), (0,2,0), (3,3,2))])
def test_a_run_goes_on_with_other_numbers_of_processes(a, b, c, tmp_path):
    "Stopped in the middle of epochs and of accumulated batches, and resumed from its files"
    for n,stop_at in zip((a, b, c), (4, 10, None)): res = together(n, 'resumed', str(tmp_path), stop_at)
    for o in res:
        close({k:o[k] for k in ('weights','rows','losses','iters')},
            {k:one('resumed', str(tmp_path/'one'), None)[k] for k in ('weights','rows','losses','iters')})
