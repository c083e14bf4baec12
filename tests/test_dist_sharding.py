"Model and optimizer in parts, by FSDP2: the numbers of one process, and files that do not know of parts"
import pytest
from test_dist import also,close,goes_on_as_one,one,slow,two_or_three
from together import together

def same_as_whole(procs, *cbs, eps=1e-6, **kwargs):
    "The results of `procs` processes with parts, which are those of one process without"
    ref,res = one('fit_sharded', *cbs, shard=False, **kwargs),together(procs, 'fit_sharded', *cbs, **kwargs)
    for o in res:
        for k in 'weights','rows','losses','iters': close(o[k], ref[k], eps)
        assert o['plain'] and o['model']==ref['model']
    return ref,res

@two_or_three
def test_weights_in_parts(procs):
    """Sizes that do not divide: the weights are those of one process; a process has a part of weights and state in
    training, and all of them in validation"""
    ref,res = same_as_whole(procs, n=49)
    total = ref['sizes'][False][0]
    assert [sum(o['sizes'][True][i] for o in res) for i in (0, 1)]==[total, total]
    assert all(o['sizes'][False][:2]==(total, total) for o in res)
    assert all(o['sizes'][True][0]<.8*total and o['sizes'][True][2].startswith('FSDP') for o in res)

@pytest.mark.parametrize('cbs,kwargs', [(('clip','ema'), {}),
    *also((('accumulate','clip'), dict(kind='tokens', n=45)), ((), dict(kind='model', n=41)), (('ema_buffers',), {}))])
@two_or_three
def test_techniques_on_parts(procs, cbs, kwargs):
    "Norms of all gradients, averages of weights, accumulated gradients, losses with parameters"
    same_as_whole(procs, *cbs, n_epoch=2, **kwargs)

@slow
def test_a_part_in_which_nothing_counts():
    ref = one('masked_mean')
    for o in together(2, 'masked_mean', shard=True): close([o['weights'], o['rows']], [ref['weights'], ref['rows']])

@slow
@two_or_three
def test_sixteen_bits_of_parts(procs): same_as_whole(procs, 'bf16', 'clip', 'accumulate', eps=3e-3)

@pytest.mark.parametrize('a,b,c', [(2,3,1), *also((1,2,3), (3,3,2))])
@pytest.mark.parametrize('shards', [(True,True,True),
    *(pytest.param(o, marks=slow) for o in ((True,False,True), (False,True,False)))])
def test_files_of_parts(a, b, c, shards, tmp_path):
    "A run in parts, saved inside of an accumulated batch, goes on in other numbers of processes, in parts or not"
    for n,stop_at,shard in zip((a, b, c), (4, 10, None), shards):
        res = together(n, 'resumed', str(tmp_path), stop_at, shard=shard, cbs=('ema',))
    goes_on_as_one(res, tmp_path, cbs=('ema',))

@pytest.mark.parametrize('ev', ['after_pred', *also('before_batch', 'after_loss', 'before_backward', 'after_backward',
    'before_step', 'after_batch', 'after_train', 'before_validate')])
@pytest.mark.parametrize('what', ['cancel', *also('interrupt','error')])
def test_what_one_does_in_parts(ev, what, tmp_path):
    """A cancel or a stop in one process is one in all; after an error, the model is that of the last whole moment,
    and the fit cannot be resumed from the middle"""
    res = together(2, 'act', what, ev, shard=True, folder=str(tmp_path))
    assert all(o['model']=='Head' and o['deal'] is None and o['seconds']<30 for o in res)
    if what=='error':
        assert res[1]['exc'][:2]==('ValueError', 'oops') and res[0]['exc'][0] in ('ProcessFailed','RuntimeError')
        if ev not in ('after_train','before_validate'): assert all(o['at'] is None for o in res)
    else:
        for o in res: close(o['weights'], res[0]['weights'])
        assert res[0]['done']==res[1]['done']<14

@slow
@pytest.mark.parametrize('ev,name', [('before_step','CancelStepException'),
    ('before_backward','CancelBackwardException'), ('after_step','CancelTrainException'),
    ('after_backward','CancelBatchException')])
def test_a_cancel_of_one_in_parts(ev, name):
    "Agreed on, or an error that has the number of the process"
    a,b = together(2, 'lone_cancel', name, ev, 1, 3, shard=True, fails=True)
    if a['exc']: assert b['exc'][0]=='RuntimeError' and 'process 1 has parted' in b['exc'][1]
    else: close([a['weights'], a['counts']], [b['weights'], b['counts']])
