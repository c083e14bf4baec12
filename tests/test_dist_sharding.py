"Model and optimizer in parts, by FSDP2: the numbers of one process, and files that do not know of parts"
import re,signal
from functools import partial
import pytest,torch
from torch import nn
from learner.all import *
from learner.dist.sharding import Shards
from learner.record.files import parts_folder,read_plain
from test_dist import also,close,compared,goes_on_as_one,one,slow,two_or_three
import dist_cases
from dist_cases import make
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

def test_an_average_without_some_tensors_goes_with_the_parameters_that_it_is_of():
    "A frozen sparse table has no average, and comes before those that have one"
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table,self.lin = nn.Parameter(torch.eye(3).to_sparse_csr(), requires_grad=False),nn.Linear(3, 2)
        def forward(self, x): return self.lin(x)
    learn = Learner(DataLoaders([(torch.randn(4, 3), torch.randn(4, 2))]*4), Net(), nn.MSELoss(), opt_func=SGD,
        cbs=EMA(.5)).remove_cb(ProgressCallback).fit(1)
    shards,seen = Shards(learn, None),[]
    shards.trade_all({}, lambda v,p: seen.append(p) or v)
    assert [id(p) for p in seen]==[id(p) for p in learn.model.lin.parameters()]

def test_modules_keep_what_was_changed_while_they_were_in_parts(tmp_path):
    """Attributes, hooks, layers, and what is frozen: set by the model or by a callback, which may have had the layer
    before. Nothing of FSDP stays"""
    ref = one('changes_modules', str(tmp_path/'one'), shard=False)
    assert ref[0]['counts']==[14, dict(n=14), False] and ref[0]['trained']==[True, True, True, False]
    for res in together(2, 'changes_modules', str(tmp_path), limit=120):
        for a,b in zip(res, ref):
            close(*({k:o[k] for k in o if k not in ('rank','random')} for o in (a, b)))
            assert a['same']
    saved,whole = (newest(o/'2')[1]['attributes'] for o in (tmp_path, tmp_path/'one'))
    assert saved==whole and saved['model']['step']==14

@pytest.mark.parametrize('name', ['LastOfLSTM', *also('CallsAsListed')])
def test_a_layer_that_is_known_by_two_ways(name):
    "Its weights are also in a list, or it is in one itself"
    ref = one('other_modules', name, shard=False)
    for o in together(2, 'other_modules', name): close([o['weights'], o['rows']], [ref['weights'], ref['rows']])

refused = [('Adafactor','`Adafactor`.*another optimizer'), ('Rprop','`Rprop`.*another optimizer'),
    ('fused','`fused=True` of `SGD`.*leave it out'), ('sparse','`table`.*without `sparse=True`'),
    *((o, "`head.weight`, `head.bias` of the loss") for o in ('loss','trained loss')),
    ('hook',"hooks.*on `body.0.weight`.*`before_step`"),
    ('late hook',"hooks on parameters"), ('ignored',"leaves out `model.body.2.weight`.*without `ignored_modules`")]

def test_what_cannot_be_in_parts_is_refused_before_the_first_batch():
    cases = [('refused_in_parts', (name,), {}) for name,_ in refused]
    for res in together(2, 'several', cases, limit=120):
        for (why,n),(_,match) in zip(res, refused): assert re.search(f'^ValueError: `shard`.*{match}', why) and n==0

@pytest.mark.parametrize('name,alone', [('SmallTransformer', 3), ('TiedWords', 3), ('Containers', 4)])
def test_plain_sharding_of_models_with_containers_and_tied_weights(name, alone):
    "Large layers in containers are by themselves, except those that share weights; the numbers are of one process"
    ref = one('sharded_simply', name, shard=False)
    for o in together(2, 'sharded_simply', name, limit=120):
        close([o['weights'], o['rows']], [ref['weights'], ref['rows']], 1e-6)
        assert o['alone']=={alone}

allowed = 'own_loss','layer_in_loss','overlapping_loss','freezes_loss','frozen_loss','replaced','inputs','graphs', \
    'left_out'

def test_what_parts_allow():
    """A loss of the model's own, frozen parameters that the optimizer has and others that it has not, a replaced layer,
    gradients of inputs, and gradients that graphs would overwrite"""
    whole,parts = ([('allowed_in_parts', (o,), dict(shard=shard)) for o in allowed] for shard in (False, True))
    [refs],(first,other) = together(0, 'several', whole),together(2, 'several', parts, limit=120)
    for ref,*res in zip(refs, first, other):
        for o in res: close([o['weights'], o['rows']], [ref['weights'], ref['rows']])
    assert [len(o['warned']) for o in first]==[0]*8+[1] and first[-1]['warned']==refs[-1]['warned']
    assert '`body.2.weight`' in first[-1]['warned'][0]

def test_an_average_of_batch_norms_and_parts():
    refs = together(2, 'norms_averaged', shard=False)
    for o,ref in zip(together(2, 'norms_averaged'), refs):
        close([o['weights'], o['rows'], o['avg']], [ref['weights'], ref['rows'], ref['avg']])

taken = 'RuntimeError: A parameter is used that was taken from the model before the epoch.*`model.parameters'
fails = [('kept', taken), *also(('pairs', taken), ('hook', 'ValueError: .*hooks on parameters, as on `body.0.weight`'),
    ('layer', 'RuntimeError: .*2 parameters whose.*not averaged.*add layers between'),
    ('outside', 'RuntimeError: .*1 parameter whose.*not averaged.*`nn.Module` of a loss'),
    ('average', 'RuntimeError: .*average of `EMA`.*between epochs'), ('save', 'TypeError(?s:.*)save between epochs'),
    ('penalty', 'RuntimeError(?s:.*)outside of that call'))]

@pytest.mark.parametrize('name,match', fails)
def test_what_parts_cannot_do_is_told(name, match, tmp_path):
    "At least in one process, which the other names; the model is whole afterwards"
    res = together(2, 'fails_in_parts', name, str(tmp_path), limit=120)
    assert any(re.search(f'^{match}', why) for why,_ in res),res
    assert all(types=={nn.Parameter} for _,types in res)

def test_a_model_that_torch_cannot_divide_is_left_as_it_was():
    "A part of it was divided before the error: it can be trained without `shard`"
    names = {'Branches':'containers', 'Scaled':r'scalar(?s:.*)`torch.ones\(1\)`'}
    for res in together(2, 'several', [('fails_to_divide', (name,), {}) for name in names], limit=120):
        for name,(why,types,attrs,weights) in zip(names, res):
            model = getattr(dist_cases, name)()
            told = [*model.modules(), *model.parameters()]
            assert re.search(names[name], why) and types==[type(o).__name__ for o in told]
            assert attrs==[sorted(vars(o)) for o in told]
            assert [o.shape for o in weights]==[o.shape for o in model.parameters()]

def test_a_model_that_keeps_a_sum_of_its_weights(tmp_path):
    "It is in parts when files are written, and when an error ends the fit: then it is what it was, as an average is"
    cases = [('watched', (str(tmp_path/str(error)),), dict(error=error)) for error in (False, True)]
    ref = one('watched', str(tmp_path/'one'), shard=False)
    for res,failed in together(2, 'several', cases, limit=120):
        close(res, ref)
        close(failed['before'], ref['before'])
        assert failed['exc']=='oops' and not any(hasattr(o, 'full_tensor') for o in failed['now']['avg'])
        close(failed['now'], failed['before'])
    saved,whole = (read_plain(Checkpoints(tmp_path/o/'checkpoints').found[0])['attributes'] for o in ('False','one'))
    close(saved, whole)
    assert 'sum' in saved['model']

@slow
def test_muon_on_parts():
    "It makes whole matrices orthogonal, in 16 bits; `by_shape` gives it some of the parameters"
    same_as_whole(2, opt_func=by_shape(), eps=.03)

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
    assert all(o['model']=='Head' and o['peers'] is None and o['seconds']<30 for o in res)
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

def newest(folder): return Checkpoints(folder/'checkpoints').newest()
def folders_of(folder): return sorted((folder/'checkpoints').glob('*.parts'))

def test_a_file_in_parts(tmp_path):
    """Killed where the model is in parts: each process has written a part of the tensors, and no file is large; read
    in one process, it holds what a file of the first process alone does, and the run goes on as that of one process"""
    kwargs = dict(every=2, shard=True, cbs=('ema',))
    for sharded in (True, False):
        res = together(2, 'resumed', str(tmp_path/str(sharded)), 6, how='kill', sharded=sharded, fails=True, **kwargs)
        assert -signal.SIGKILL in res.codes
    (file,saved),(_,ref) = newest(tmp_path/'True'),newest(tmp_path/'False')
    assert [o.name for o in folders_of(tmp_path/'True')]==[parts_folder(file).name]
    assert {o.name for o in parts_folder(file).iterdir()}=={'.metadata', '__0_0.distcp', '__1_0.distcp'}
    stand_ins = torch.load(file)['parts']['stand_ins']
    assert all(o.untyped_storage().nbytes()==o.element_size() for o in stand_ins.values())
    assert {k.split('.')[-1] for k in stand_ins if k.startswith('model')}=={'weight','bias','grad','momentum_buffer'}
    for k in 'model','opt','frozen': close(saved[k], ref[k])
    for a,b in zip(saved['at']['hypers_and_grads']['grads'], ref['at']['hypers_and_grads']['grads']): close(a, b)
    close(saved['callbacks']['ema'], ref['callbacks']['ema'])
    learn = make('weights', path=tmp_path).load(file)
    close([*learn.model.parameters()], [*saved['model'].values()])
    goes_on_as_one(together(1, 'resumed', str(tmp_path/'True'), None, **kwargs|dict(shard=False)), tmp_path,
        every=2, cbs=('ema',))

adam = partial(torch.optim.Adam, eps=1e-3)

@slow
@pytest.mark.parametrize('procs,how,shards,opt', [((2,3,1), 'kill', (True,True,True), None),
    ((3,2,2), 'terminate', (True,True,False), adam), ((2,1,3), 'kill', (True,True,True), adam),
    ((2,2,3), 'stop', (True,False,True), None), ((3,3,2), 'kill', (True,False,True), adam)])
def test_files_in_parts(procs, how, shards, opt, tmp_path):
    "Killed or stopped, twice, a run goes on in other numbers of processes, in parts or not, with files in parts or not"
    kwargs = dict(every=2, cbs=('ema','clip'), **(dict(opt_func=opt) if opt else {}))
    for n,stop_at,shard in zip(procs, (4, 10, None), shards):
        res = together(n, 'resumed', str(tmp_path), stop_at, how=how, shard=shard, sharded=shard, fails=True, **kwargs)
        if how=='kill' and stop_at: assert -signal.SIGKILL in res.codes
    goes_on_as_one(res, tmp_path, **kwargs)

@slow
@pytest.mark.parametrize('rank,at,seen', [(0,5,'*.parts.*'), (1,7,'__?_0.distcp'), (0,14,'.metadata'),
    (1,7,'.metadata'), (0,5,'*.parts')])
def test_killed_while_parts_are_written(rank, at, seen, tmp_path):
    "Whichever process is killed at whichever moment of writing: the file counts if it is whole, or the one before does"
    kwargs = dict(every=2, shard=True, sharded=True)
    res = together(2, 'resumed', str(tmp_path), at, how=seen, rank=rank, fails=True, **kwargs)
    assert res.codes[rank]==-signal.SIGKILL and any(res.codes)
    file,_ = newest(tmp_path)
    assert file.exists() and parts_folder(file).exists()
    goes_on_as_one(together(3, 'resumed', str(tmp_path), None, **kwargs), tmp_path, every=2)

@slow
@pytest.mark.parametrize('rank', [0, 1])
def test_a_full_disk_for_parts(rank, tmp_path):
    "One process cannot write its part: the error names it, all end, what was written of that file is gone"
    res = together(2, 'on_a_full_disk', str(tmp_path), 6, rank, shard=True)
    assert res[rank]['exc'][0]=='OSError' and 'File too large' in res[rank]['exc'][1]
    assert f'Process {rank} of 2 has failed: OSError' in res[1-rank]['exc'][1] and max(o['seconds'] for o in res)<30
    file,_ = newest(tmp_path)
    assert folders_of(tmp_path)==[parts_folder(file)]
    goes_on_as_one(together(1, 'resumed', str(tmp_path), None, every=2), tmp_path, every=2)

@slow
@pytest.mark.parametrize('rank', [0, 1])
def test_the_whole_model_while_parts_are_written(rank, tmp_path):
    "One process needs the whole weights at the pause at which the first one writes a file: both have what they need"
    ref,res = one('looks_at_weights', str(tmp_path/'one'), 0),together(2, 'looks_at_weights', str(tmp_path), rank)
    for o in res: close({k:o[k] for k in compared}, {k:ref[k] for k in compared})
    close(res[rank]['seen'], ref['seen'])
    files,refs = (Checkpoints(o/'checkpoints').found for o in (tmp_path, tmp_path/'one'))
    assert len(files)==len(refs) and len(folders_of(tmp_path))==3-(rank==0)
    for file,other in zip(files, refs):
        a,b = ((o['model'], o['opt']['state'], o['callbacks']['ema']) for o in map(read_plain, (file, other)))
        close(a, b)

def test_parts_between_epochs_are_none():
    with pytest.raises(ValueError, match='in the middle of an epoch.*give a `unit`'): Checkpoint(sharded=True)

def test_callbacks_that_look_at_gradients_and_files_warn_of_nothing(tmp_path):
    for name in 'guard','checkpoint': assert together(2, 'sharded_with', name, str(tmp_path), limit=120)==[[], []],name

def test_a_validation_in_the_middle_of_an_epoch_is_refused(tmp_path):
    res = together(2, 'sharded_with', 'validation', str(tmp_path), limit=120, fails=True)
    assert 'With `shard`, a validation or prediction in the middle of an epoch' in res[0]
