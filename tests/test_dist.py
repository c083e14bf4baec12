"Several processes train together: weights, losses, metrics and predictions are those of one process"
import os,re,subprocess,sys
from functools import cache
from itertools import product
from pathlib import Path
import pytest,torch
from torch.utils.data import TensorDataset
from learner.all import *
from learner.dist.launch import free_port
from learner.dist.shares import identity_of,share_of
from test_cost import bytecodes,only_311,ours,per_batch
from together import together

lone_cancels = ('before_step','CancelStepException',1),('after_step','CancelTrainException',0), \
    ('before_validate','CancelEpochException',1),('after_loss','CancelBatchException',0)

in_loss = '','with_model','by_callback'

refusals = 'split','inside','tensors','metric','pieces'

of_lists = (*product(('lists','tuples'), (False, True), (53, 49)), ('graphs', True, 53),
    ('tuples', False, 49, 'accumulate'))

# quick cases, run one after the other by the same processes: it takes most of a second to start some
quick = {2: [('fit', (), dict(n=49)), ('fit', (), dict(kind='weights', n=41, n_epoch=1)),
    ('fit', (), dict(kind='tokens', n=41, n_epoch=1)),
    ('fit', ('accumulate',), dict(kind='tokens', n=45)), ('fit', ('accumulate',), dict(kind='weights', n=25)),
    ('fit', ('clip','ema'), dict(n_epoch=1)),
    ('fit', (), dict(how='list', n_epoch=1)), ('fit', (), dict(how='arrays', n_epoch=1, n=50)),
    *((name, (), {}) for name in ('kept_in_validation', 'texts', 'validated_inside', 'train_metrics',
        'norms_in_validation')),
    ('dropout_resumed', (), {}), ('fit_with_metrics', (11,), {}), ('preds', ('map',), {}), ('afterwards', (), {}),
    *(('lone_cancel', (name, ev, rank, 3), {}) for ev,name,rank in lone_cancels),
    ('lone_cancel', ('CancelBatchException', 'before_batch', 0, 1), dict(cbs=('accumulate',))),
    ('lone_cancel', ('CancelTrainException', 'after_batch', 0, 3), dict(cbs=('accumulate',))),
    ('act', ('stop_now', 'after_batch', 1, 3), {}), ('lr_find_skips', (), {}), ('error_and_cancel', (), {}),
    ('masked_mean', (), {}), *(('half_accumulated', (end,), {}) for end in ('cancelled','short','unknown')),
    ('half_accumulated', ('unknown', True), {}),
    *(('refrozen', (method, *cbs), {}) for method in ('freeze','unfreeze') for cbs in ((), ('accumulate',))),
    *(('penalized', o, {}) for o in product(('classes','summed'), (False, True), (53, 49))),
    *(('two_views', cbs, {}) for cbs in ((), ('accumulate',))), ('rewound', (), {}),
    *((name, (), {}) for name in ('cancels_the_last_batch', 'own_value', 'hypers_of_the_first')),
    ('augmented_resumed', (0,), {}), ('reweighted', (), {}),
    *(('layer_in_loss', (o,), {}) for o in in_loss),
    ('draws_outside', (), {}), *(('refused_at_once', (o,), {}) for o in refusals),
    *((name, (), {}) for name in ('kept_in_dataset', 'metrics_of_before_fit', 'masked_out')),
    *(('listed', o, {}) for o in of_lists), *(('fit', (o,), dict(n=17, n_epoch=1)) for o in ('mixup','mixup_alike')),
    *(('preempted', (o,), {}) for o in (False, True)),
    *(('not_averaged', (o,), {}) for o in ('loss','callback')),
    ('lists_apart', (), {}), ('stopped_in_accumulation', (), {}), ('sums', (), {}),
    *(('skips_at', ('after_loss', kind, *rank), {}) for kind in ('classes','summed') for rank in ((), (1,))),
    ('skips_at', ('after_pred', 'classes', 1), {}),
    *(('collectives', (n, by_hand), {}) for n in (4, 8) for by_hand in (False, True)),
    *(('collectives', (4, False, n), {}) for n in (2, 3))],
    3: [('fit', (), dict(n=53))]}
several_only = ('lone_cancel','act','lr_find_skips','error_and_cancel','sums','collectives','dropout_resumed',
    'afterwards','augmented_resumed','refused_at_once','not_averaged','preempted','norms_in_validation')
quick[0] = [o for procs in (2, 3) for o in quick[procs] if o[0] not in several_only] # by one process, to compare with

@cache
def quick_results(procs): return together(procs, 'several', quick[procs], limit=120)

def run(procs, *case):
    if case not in quick.get(procs, ()): return together(procs, case[0], *case[1], limit=120, **case[2])
    i = quick[procs].index(case)
    return [o[i] for o in quick_results(procs)]

@cache
def one(name, *args, **kwargs): return run(0, name, args, kwargs)[0]

def close(a, b, eps=1e-6):
    "Whether two results are equal, but for the last bits of numbers"
    if isinstance(a, torch.Tensor): torch.testing.assert_close(a, b, rtol=eps, atol=eps)
    elif isinstance(a, dict):
        assert a.keys()==b.keys()
        for k in a: close(a[k], b[k], eps)
    elif isinstance(a, (list,tuple)):
        assert len(a)==len(b)
        for o in zip(a, b): close(*o, eps)
    elif isinstance(a, float): assert a==pytest.approx(b, rel=5*eps, abs=5*eps, nan_ok=True)
    else: assert a==b

def same_run(procs, name, *args, eps=1e-6, **kwargs):
    "The results of `procs` processes, which are those of one process"
    ref,res = one(name, *args, **kwargs),run(procs, name, args, kwargs)
    for o in res:
        for k in 'weights','rows','losses','iters','random': close(o[k], ref[k], eps)
        assert all(torch.equal(*p) for p in zip(o['weights'], res[0]['weights']))
        # a sum is divided by the samples of each
        assert kwargs.get('kind')=='summed' or repr(o['rows'])==repr(res[0]['rows'])
    return ref,res

compared = 'weights','rows','losses','iters'

def goes_on_as_one(res, folder, **kwargs):
    "Whether a run that `resumed` has ended is that of one process"
    ref = one('resumed', str(folder/'one'), None, **kwargs)
    for o in res: close({k:o[k] for k in compared}, {k:ref[k] for k in compared})

slow = pytest.mark.slow
def also(*cases):
    return [pytest.param(*o, marks=slow) if isinstance(o, tuple) else pytest.param(o, marks=slow) for o in cases]
two_or_three = pytest.mark.parametrize('procs', [2, *also(3)])

def test_parts_cover_a_batch():
    "Whatever the numbers, each sample belongs to one process, and parts differ by one sample at most"
    for n in range(20):
        for procs in range(1, 6):
            rows = [share_of(n, o, procs) for o in range(procs)]
            assert ([i for o in rows for i in range(n)[o]]==[*range(n)]
                and len({o.stop-o.start for o in rows} - {n//procs})<=1)

@pytest.mark.parametrize('procs,n', [(2,49), (3,53), *also((2,53), (3,49), (1,53), (3,8), (3,1))])
def test_weights_of_one_process(procs, n):
    """Sizes that do not divide, and last batches with fewer samples than processes: weights, losses and rows are those
    of one process, and each sample counts once"""
    ref,res = same_run(procs, 'fit', n=n)
    for k,ids in ref['ids'].items():
        assert sorted(i for o in res for i in o['ids'].get(k, ()))==sorted(ids)==[*range(len(ids))]
    assert {o['model'] for o in res}=={'Head'}

@pytest.mark.parametrize('kind', ['weights','tokens', *also('elements','summed','model')])
@two_or_three
def test_means_over_other_items(kind, procs):
    """Weighted classes, tokens of which some do not count, elements, sums and losses of the model: the step is that of
    the whole batch"""
    same_run(procs, 'fit', kind=kind, n=41, n_epoch=1, **(dict(lr=.01) if kind=='summed' else {}))

@pytest.mark.parametrize('kind', ['tokens', *also('classes', 'weights')])
@two_or_three
def test_accumulation(procs, kind):
    "Accumulated batches of several processes are the big batch, and gradients are averaged once for each step"
    ref,res = same_run(procs, 'fit', 'accumulate', kind=kind, n=45)
    assert ref['iters'][1]==4 and res[0]['syncs']==2*[False, False, True, False, False, True]

@pytest.mark.parametrize('cbs', [(), ('accumulate',)], ids=['each','accumulated'])
@pytest.mark.parametrize('method', ['freeze','unfreeze'])
def test_layers_frozen_or_unfrozen_in_the_middle_of_an_epoch(method, cbs):
    "From this batch on, the gradients of what is trained are averaged"
    same_run(2, 'refrozen', method, *cbs)

def test_a_layer_unfrozen_in_one_process():
    res = together(2, 'refrozen', 'unfreeze', rank=1, limit=120, fails=True)
    assert any(res.codes) and 'trains 2 parameters' in res.err[1] and 'trains 4 parameters' in res.err[1]

@pytest.mark.parametrize('n', [53, 49])
@pytest.mark.parametrize('logged', [False, True])
@pytest.mark.parametrize('kind', ['classes','summed'])
def test_what_a_callback_adds_to_the_loss_counts_once(kind, logged, n): same_run(2, 'penalized', kind, logged, n)

@pytest.mark.parametrize('case', of_lists, ids=str)
def test_samples_in_lists_are_divided(case):
    "Losses are weighed by samples, also where tensors have no row for each"
    same_run(2, 'listed', *case)
def test_a_loss_that_is_0_where_nothing_counts_is_logged_as_0():
    ref,_ = same_run(2, 'masked_out')
    assert ref['losses'][:2]==[0,0]
@pytest.mark.parametrize('mix', ['mixup','mixup_alike'])
def test_a_last_batch_with_fewer_samples_than_processes_can_be_mixed(mix):
    "Each process mixes its own samples, so that weights are others than those of one process"
    a,b = run(2, 'fit', (mix,), dict(n=17, n_epoch=1))
    assert all(map(torch.equal, a['weights'], b['weights'])) and a['iters'][:2]==(3, 3)
    assert all(torch.isfinite(o).all() for o in a['weights'])
def test_weights_of_the_loss_may_change_within_an_epoch(): same_run(2, 'reweighted')
@pytest.mark.parametrize('how', in_loss)
def test_layers_that_a_loss_holds_are_trained_in_all_processes(how):
    "Also if the loss is no module itself. What one gathers is that of the first process"
    ref,res = same_run(2, 'layer_in_loss', how)
    for o in res:
        close(o['trained'], ref['trained'])
        assert torch.equal(o['sum'], res[0]['sum']) and o['sum'].abs().sum()>0

@pytest.mark.parametrize('what,said', [('loss', r'1 parameter whose.*of shape `\(3,\)`'),
    ('callback', r'2 parameters whose.*of shape `\(3, 3\)`, `\(3,\)`')])
def test_what_no_module_of_model_or_loss_has_cannot_be_trained(what, said):
    "Each process would train its own"
    for text,n in run(2, 'not_averaged', (what,), {}):
        assert re.search(f'{said}.*into such a module', text) and n==0

def test_a_callback_that_goes_backward_itself_is_refused():
    "Each process has the gradient of its part, and the weights part"
    res = together(2, 'goes_backward', limit=120, fails=True)
    assert all(res.codes) and 'which should have the same weights' in res.err[0] and 'model.body.0.weight' in res.err[0]

def test_a_ledger_knows_one_process_and_is_refused():
    res = together(2, 'refused', 'Ledger', limit=120, fails=True)
    assert '`Ledger`' in res[0] and 'several train' in res[0] and res.codes==[0,1]

def test_a_loss_that_compares_samples_is_told_of_once():
    first,second = together(2, 'said_of_losses', limit=120)
    assert [len(o) for o in first]==[1,0,0] and not any(second)
    assert 'So several processes do not take the step of one' in first[0][0] and '`contrast`' in first[0][0]

def test_a_sampler_that_divides_the_samples_already_is_refused():
    for o in together(2, 'sampled_apart', limit=120): assert 'has a `DistributedSampler`' in o and 'leave out the' in o

@pytest.mark.parametrize('what,said', [
    ('split', r"`dls\['train'\].dataset.indices` is not the same in process 1 as in process 0.*torch.manual_seed"),
    ('inside', r"`dls\['train'\].dataset.dataset.indices` is not the same in process 1"),
    ('tensors', r"`dls\['train'\].dataset.dataset.tensors\[0\]` is not the same in process 1"),
    ('metric', "`counted` sees a part of the samples.*give `Counted` a method `merge"),
    ('pieces', "`MicroBatch` and `Distributed` both run.*`GradientAccumulation`")], ids=refusals)
def test_what_cannot_be_right_in_several_processes_is_refused_before_a_batch(what, said):
    for text,n in run(2, 'refused_at_once', (what,), {}): assert re.search(said, text) and n==0

def test_what_each_process_keeps_in_its_dataset_is_no_other_dataset(): same_run(2, 'kept_in_dataset')
def test_metrics_that_a_callback_has_replaced_are_not_refused(): same_run(2, 'metrics_of_before_fit')

def test_only_the_first_process_needs_the_batches_of_a_list(): same_run(2, 'lists_apart')

def test_what_callbacks_draw_outside_of_batches_is_that_of_one_process():
    assert run(2, 'draws_outside', (), {})==[one('draws_outside')]*2

@pytest.mark.parametrize('by,shard',
    [('launch', False), ('script', False), *also(('launch', True), ('script', True))])
def test_sixteen_bits_of_accelerate_are_left_to_a_callback(by, shard):
    assert together(2, 'asked_for_16_bits', by, shard, limit=120)==[({torch.float32}, 1), ({torch.float32}, 0)]

def test_what_a_metric_gathers_beside_its_kind_needs_a_way_to_be_put_together():
    res = together(2, 'gathers_more', 'Thirds', limit=120, fails=True)
    assert all(res.codes) and 'give `Thirds` a method `merge(self, states)`' in res.err[0] and '`found`' in res.err[0]
    assert together(2, 'gathers_more', 'Renamed', limit=120)==[one('gathers_more', 'Renamed')]*2

def test_metrics_of_torchmetrics_may_gather_in_any_container():
    assert together(2, 'distinct', limit=120)==[one('distinct')]*2==[(3.053,3.011)]*2

def test_all_go_back_together():
    for before,after in run(2, 'rewound', (), {}): assert all(map(torch.equal, before, after))

@pytest.mark.parametrize('workers', [0, *also(2)])
def test_random_augmentation(workers):
    "Each process draws its own numbers, also those of loader workers, and a run from a file draws the same ones"
    res = run(2, 'augmented_resumed', (workers,), {})
    for whole,resumed,_ in res: assert all(map(torch.equal, whole, resumed))
    assert not {*res[0][2]} & {*res[1][2]}

@pytest.mark.parametrize('kind', ['classes','summed'])
def test_a_batch_that_is_cancelled_with_its_loss_has_that_of_the_whole_batch(kind):
    "Whether all cancel it, or one does and the others hear of it"
    ref = one('skips_at', 'after_loss', kind)
    assert len(ref['losses'])==14 and ref['iters'][:2]==(14, 10)
    for rank in (),(1,):
        for o in run(2, 'skips_at', ('after_loss', kind, *rank), {}):
            for k in compared: close(o[k], ref[k])

def test_a_batch_that_one_process_cancels_before_its_loss_has_none():
    a,b = run(2, 'skips_at', ('after_pred', 'classes', 1), {})
    assert len(a['losses'])==10
    for k in 'losses','rows','iters': close(a[k], b[k])

def test_a_batch_to_be_averaged_is_cancelled_before_one_that_only_adds():
    res = run(2, 'cancels_the_last_batch', (), {})
    assert all(map(torch.equal, res[0]['weights'], res[1]['weights']))

def test_a_prediction_in_one_process_only():
    res = together(2, 'predicts_alone', limit=120, fails=True)
    assert all(res.codes) and 'Process 0 does not train' in res.err[0] and '`get_preds`, is called in all' in res.err[0]

def test_all_decide_by_the_row_of_the_first():
    first,second = run(2, 'own_value', (), {})
    assert first==second and min(first[0])<.4

def test_settings_of_groups_are_those_of_the_first(): assert run(2, 'hypers_of_the_first', (), {})==[[.5], [.5]]

@pytest.mark.parametrize('cbs', [(), ('accumulate',)], ids=['each','accumulated'])
def test_more_rows_than_indices(cbs): same_run(2, 'two_views', *cbs)

def test_a_part_in_which_nothing_counts():
    "The mean over nothing is NaN, and so is its gradient, and zero times it; the step is that of the others"
    same_run(2, 'masked_mean')

def test_a_step_of_a_batch_with_fewer_samples_than_processes():
    "Each process knows the weights of the classes in it, whatever it has of the batch itself"
    ref,_ = same_run(2, 'fit', 'accumulate', kind='weights', n=25)
    assert ref['iters'][1]==4

@pytest.mark.parametrize('end', ['cancelled','short','unknown'])
def test_a_step_that_follows_no_batch(end):
    """The last batch of an epoch is cancelled, the loader is shorter than its length, or has none: gradients that were
    only added are averaged before the step"""
    ref,_ = same_run(2, 'half_accumulated', end)
    assert ref['iters'][1]==4

def test_a_step_that_follows_no_batch_in_16_bits():
    ref,_ = same_run(2, 'half_accumulated', 'unknown', True, eps=3e-3)
    assert ref['iters'][1]==4

def test_a_stop_between_accumulated_batches():
    "The position holds the gradients of all processes, and the fit goes on with them"
    ref,res = same_run(2, 'stopped_in_accumulation')
    for o in res:
        assert o['at']==ref['at']==3 and len(o['grads'])==4
        close(o['grads'], ref['grads'])

@two_or_three
def test_techniques(procs):
    "Clipping and averages of weights"
    same_run(procs, 'fit', 'clip', 'ema', n_epoch=1)

@slow
@two_or_three
def test_sixteen_bits(procs): same_run(procs, 'fit', 'bf16', 'clip', 'accumulate', eps=3e-3)

@pytest.mark.parametrize('n_valid', [11, *also(1)])
@two_or_three
def test_metrics(procs, n_valid):
    """Averages, counts, ranks of all predictions and torchmetrics, in training and validation, in a fit and alone,
    also where processes have no sample"""
    ref,res = same_run(procs, 'fit_with_metrics', n_valid)
    for o in res: close([o['alone'], o['after']], [ref['alone'], ref['after']])

def test_what_depends_on_whole_batches():
    "What a validation keeps of each sample, and averages over batches: a process with a spare batch has them too"
    ref,res = same_run(2, 'kept_in_validation')
    for o in res: close([o['kept'], o['results'], o['alone']], [ref['kept'], ref['results'], ref['alone']])

def test_a_validation_is_of_the_model_of_the_first_process():
    "In mid-epoch, and of an average with buffers: a batch norm has gathered other statistics in each process"
    first,other = run(2, 'norms_in_validation', (), {})
    assert [len(alone) for alone,_ in first]==[6,2]
    for (alone,recorded),(_,there) in zip(first, other): assert alone==pytest.approx(recorded, rel=1e-5)==there

@slow
def test_regression_metrics(): same_run(3, 'regression_metrics')

@pytest.mark.parametrize('how', ['map', *also('list','iterable','weighted','workers')])
@two_or_three
def test_predictions(procs, how):
    """Predictions, targets, inputs, decisions and losses of every sample, in order, in every process, whatever the
    loader"""
    ref = one('preds', how)
    for o in run(procs, 'preds', (how,), {}): close(o, ref)

def test_metrics_in_the_middle_of_training():
    "Rows, and positions in memory and in files, have what all processes have gathered; resumed, nothing counts twice"
    ref,res = same_run(2, 'train_metrics')
    for o in (ref, *res):
        assert o['seen']==3*o['seen'][:1]
        for rows in o['others']: close(rows, ref['rows'])

def test_predictions_of_texts():
    "Batches without a tensor; what has no row for each sample and differs between processes is refused"
    preds,seen,refused = one('texts')
    assert len(preds[0])==len(preds[1])==9 and len(seen)==18 and refused is None
    for o in run(2, 'texts', (), {}):
        close(o[:2], (preds, seen))
        assert o[2]=='The predictions of 2 processes, with 2, 2 samples, cannot be put together: they are (3,), (3,)'

@pytest.mark.parametrize('how', ['list','arrays', *also('iterable','weighted','workers')])
@two_or_three
def test_any_loader(procs, how):
    "Lists, iterable datasets, other samplers, indices in arrays, and workers: the batches are those of one process"
    same_run(procs, 'fit', how=how, n_epoch=1, **(dict(n=50) if how=='arrays' else {}))

def test_a_validation_inside_of_a_batch():
    "It leaves the batch as it is, also where both are cut when they have been loaded"
    same_run(2, 'validated_inside')

@slow
@two_or_three
def test_a_stateful_loader(procs, tmp_path):
    "torchdata's, whose position is in files: stopped in one process, and gone on with by several"
    pytest.importorskip('torchdata.stateful_dataloader')
    same_run(procs, 'fit', how='stateful', n_epoch=1)
    for n,stop_at in ((1, 4), (procs, 10), (1, None)):
        res = together(n, 'resumed', str(tmp_path), stop_at, loads='stateful')
    goes_on_as_one(res, tmp_path, loads='stateful')

def test_a_learner_is_as_before():
    "The model is never wrapped; after a distributed fit one process can train alone, and later all together again"
    ref,res = one('afterwards'),run(2, 'afterwards', (), {})
    assert all(o['same'] for o in res)
    for o in res: close(o['weights'], ref['weights'])

@slow
@two_or_three
def test_outputs_of_one(procs, tmp_path):
    """Files, table, bars, loggers and warnings are those of the first process; all have its best weights in the end;
    randomness in the processes differs, and is the same afterwards"""
    for o in 'one','several': (tmp_path/o).mkdir()
    ref,res = one('outputs', str(tmp_path/'one')),together(procs, 'outputs', str(tmp_path/'several'))
    lines = len((tmp_path/'one/history.csv').read_text().splitlines())
    assert len((tmp_path/'several/history.csv').read_text().splitlines())==lines
    assert ('epoch' in res.out[0] and not any(res.out[1:])
        and [o['warned'] for o in res]==[ref['warned'], *[0]*(procs-1)])
    for o in res:
        close(o['weights'], ref['weights'])
        assert o['names']==ref['names'] and torch.equal(o['random'], res[0]['random'])
    assert len({tuple(o['drawn']) for o in res})==procs
    def without_run(names): return [re.sub('-[0-9a-f]{6}-', '-', o) for o in names]
    assert without_run(res[0]['files'])==without_run(ref['files'])

@slow
def test_buffers_are_those_of_the_first():
    "In validation all processes have the same batch norm; torch has nothing to warn of"
    res = together(2, 'batch_norm')
    for k in 'buffers','rows','weights': assert repr(res[0][k])==repr(res[1][k])
    assert not any(res.err)

@slow
def test_synchronized_batch_norms_need_devices():
    for text,kinds in together(2, 'synced_norms'):
        assert '`sync_bn` needs devices' in text and kinds[1]=='BatchNorm1d'

def on_two_devices(f):
    """What `f` prints in two processes that talk by NCCL. Where there is one device only, each is a machine of its own
    to NCCL, and both use the device"""
    if torch.cuda.device_count()>1: cmds = [([*launcher, '--standalone', '--nproc-per-node', '2'], {})]
    else:
        where = ['--nnodes', '2', '--master-addr', '127.0.0.1', '--master-port', str(free_port())]
        cmds = [([*launcher, *where, '--node-rank', str(i)], dict(NCCL_HOSTID=f'machine{i}', NCCL_SOCKET_IFNAME='lo',
            NCCL_IB_DISABLE='1')) for i in range(2)]
    ps = [subprocess.Popen([*cmd, f], env=env|more, stdout=-1, stderr=-1, text=True) for cmd,more in cmds]
    outs = [p.communicate(timeout=200) for p in ps]
    assert not any(p.returncode for p in ps),outs
    return ''.join(out for out,_ in outs)

@pytest.mark.cuda
@pytest.mark.parametrize('norm,setting,cbs', [('BatchNorm1d','sync_bn',''), ('LayerNorm','shard',''),
    ('LayerNorm','static_graph',''),
    ('LayerNorm','gradient_as_bucket_view','GradientAccumulation(16),GradientClip(.5)'),
    ('LayerNorm','gradient_as_bucket_view','EMA(.9),SaveModelCallback()'),
    ('LayerNorm','shard','GradientClip(.5),EMA(.9)'), ('LayerNorm','static_graph',"MixedPrecision('bf16')")])
def test_two_devices(norm, setting, cbs, tmp_path):
    """With NCCL, two processes get the weights and results of one on whole batches: with synchronized batch norms,
    sharded models, and options and callbacks of data-parallel training"""
    (f := tmp_path/'script.py').write_text('''if True:
        import os,sys,torch
        from torch import nn
        from learner.all import *
        torch.manual_seed(0)
        x,y = torch.randn(48, 4),torch.randint(0, 3, (48,))
        batches = [(x[i:i+8], y[i:i+8]) for i in range(0, 48, 8)]
        model = nn.Sequential(nn.Linear(4, 8), nn.NORM(8), nn.ReLU(), nn.Linear(8, 3))
        learn = Learner(DataLoaders(batches, [(x[:7], y[:7])]), model, nn.CrossEntropyLoss(), metrics=accuracy,
            opt_func=torch.optim.SGD, lr=.1, cbs=[CBS], path=PATH)
        with learn.no_logging(), learn.distrib_ctx(SETTING=True): learn.fit(2)
        preds = learn.get_preds()[0]
        flat = torch.cat([p.detach().flatten().cpu() for p in learn.model.parameters()]+[preds.flatten()]).tolist()
        flat += [learn.results['valid_loss'],learn.results['accuracy']]
        line = f'of {num_distrib()}: ' + ' '.join(f'{o:.4f}' for o in flat)
        os.write(1, (line+chr(10)).encode())'''.replace('NORM', norm).replace('SETTING', setting).replace('CBS', cbs)
        .replace('PATH', repr(str(tmp_path))))
    def weights(out):
        return [[float(o) for o in line.split()[2:]] for line in out.splitlines() if line.startswith('of')]
    p = subprocess.run([sys.executable, f], env=env, capture_output=True, text=True, timeout=200)
    assert p.returncode==0,p.stderr
    alone,both = weights(p.stdout),weights(on_two_devices(f))
    assert len(both)==2
    for o in both: close(o, alone[0], 1e-2 if 'bf16' in cbs else 1e-3)

@pytest.mark.cuda
def test_more_processes_than_devices_are_refused():
    n,learn = torch.cuda.device_count(),synth_learner()
    learn.dls.to('cuda')
    with pytest.raises(ValueError, match=f'needs a device for each process, and this machine has {n} of type `cuda`'):
        learn.fit(1, procs=n+1)

@slow
@pytest.mark.parametrize('procs', [1, 2, 3])
def test_early_stopping(procs): assert same_run(procs, 'stop_early')[1][0]['reason']==one('stop_early')['reason']

@slow
@two_or_three
def test_mixed_batches(procs):
    """Each process mixes its samples in its own way; the weights are those of a loop by hand on the whole mixed
    batches"""
    import dist_cases
    res,learn = together(procs, 'fit_mixed'),dist_cases.make()
    opt = torch.optim.SGD(learn.model.parameters(), lr=.1, momentum=.9)
    assert len({o['mixed'][0][3].sum().item() for o in res})==procs
    for parts in zip(*(o['mixed'] for o in res)):
        losses = []
        for x,y,other,lam in parts:
            pred = learn.model(x)
            a,b = (torch.nn.functional.cross_entropy(pred, t, reduction='none') for t in (y, other))
            losses.append(lam*a + (1-lam)*b)
        torch.cat(losses).mean().backward()
        opt.step()
        opt.zero_grad()
    for o in res: close(o['weights'], [p.detach() for p in learn.model.parameters()])

@slow
def test_lr_find():
    ref,res = same_run(2, 'find_lr')
    for o in res: close(o['found'], ref['found'])

def test_numbers_of_devices_are_added_up_apart():
    "With NCCL, news go from host to host, and numbers from device to device"
    for on_host,apart,both in run(2, 'sums', (), {}):
        assert on_host==[3., 10.]==[o.item() for o in apart]==[both[0].item(), both[1]]
        assert all(isinstance(o, torch.Tensor) for o in (*apart, both[0])) and not isinstance(both[1], torch.Tensor)

def test_one_small_message_in_a_batch():
    "Beside those of `DistributedDataParallel`; by hand and in a fit, 4 batches more"
    def more(by_hand): return [b-a for a,b in zip(*(run(2, 'collectives', (n, by_hand), {}) for n in (4, 8)))]
    by_hand = more(True)
    assert min(by_hand)>=4 and more(False)==[o+4 for o in by_hand]

def test_few_messages_between_two_epochs():
    "Each one waits for the slowest process. One more epoch, of 4 batches with a message each beside their gradients"
    four = [b-a for a,b in zip(*(run(2, 'collectives', (n, False), {}) for n in (4, 8)))]
    epoch = [b-a for a,b in zip(*(run(2, 'collectives', (4, False, n), {}) for n in (2, 3)))]
    assert max(e-b for e,b in zip(epoch, four))==14

@only_311
def test_in_one_process_it_costs_nothing():
    "Without a process group the callback takes no part in a batch"
    def run(n):
        learn = ours(n, cbs=[TrainEvalCallback, Distributed])
        return learn
    assert per_batch(bytecodes, run)==per_batch(bytecodes, ours)

def script(folder):
    (f := folder/'script.py').write_text('''if True:
        import os
        from learner.all import *
        learn = synth_learner(n_train=3, show=True)
        with learn.distrib_ctx(): learn.fit(1)
        line = f'of {num_distrib()}: ' + ' '.join(f'{o.item():.5f}' for o in learn.model.parameters())
        os.write(1, (line+chr(10)).encode()) # at once: all write to the same pipe''')
    learn = synth_learner(n_train=3).fit(1)
    return f,'of 2: ' + ' '.join(f'{o.item():.5f}' for o in learn.model.parameters())

env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(Path(__file__).parents[1]))
launcher = [sys.executable, '-m', 'torch.distributed.run']

@slow # a notebook of this part does the same
def test_torchrun(tmp_path):
    "The script of the tutorial under torchrun"
    file,line = script(tmp_path)
    p = subprocess.run([*launcher, '--standalone', '--nproc-per-node', '2', file], env=env, capture_output=True,
        text=True, timeout=100)
    assert p.returncode==0,p.stderr
    assert p.stdout.count(line)==2

@slow
def test_two_hosts(tmp_path):
    "Two launchers at two addresses find each other; the table is shown by the first"
    file,line = script(tmp_path)
    where = ['--nnodes', '2', '--nproc-per-node', '1', '--master-addr', '127.0.0.1', '--master-port', str(free_port())]
    ps = [subprocess.Popen([*launcher, *where, '--node-rank', str(i), '--local-addr', f'127.0.0.{i+1}', file], env=env,
        stdout=-1, stderr=-1, text=True) for i in range(2)]
    outs = [p.communicate(timeout=100) for p in ps]
    assert not any(p.returncode for p in ps),outs
    assert all(line in out for out,_ in outs) and ['epoch' in out for out,_ in outs]==[True, False]

@slow
def test_accelerate_launch(tmp_path):
    "Its way to torchrun is called `multi_gpu`, on a CPU too; `--cpu` alone would start one process, or need MPI"
    file,line = script(tmp_path)
    cmd = [sys.executable, '-m', 'accelerate.commands.launch', '--multi_gpu', '--num_processes', '2', '--num_machines',
        '1', '--mixed_precision', 'no', '--dynamo_backend', 'no', '--main_process_port', str(free_port()), file]
    p = subprocess.run(cmd, env=env | dict(ACCELERATE_USE_CPU='true'), capture_output=True, text=True, timeout=100)
    assert p.returncode==0 and p.stdout.count(line)==2,p.stdout+p.stderr

def test_random_layers_resume_exactly():
    runs = run(2, 'dropout_resumed', (), {})
    for whole,*resumed in runs:
        for weights in resumed: assert all(map(torch.equal, whole, weights))
    assert all(map(torch.equal, runs[0][0], runs[1][0])) # all have the same weights

def test_a_dataset_without_a_hash_is_no_obstacle():
    class Alike(TensorDataset):
        def __eq__(self, other): return len(self)==len(other)
    assert dict(identity_of(Alike(torch.arange(4)), 'train'))=={'train': 4}
