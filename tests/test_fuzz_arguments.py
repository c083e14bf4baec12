"""Bad arguments of every public callable: refused where they are given, by a message that names argument and value.

The matrix is derived from signatures: each argument of each callable × values that have the wrong type, lie out of
range, or are no numbers.
`legal` says which odd values mean something; everything else has to be refused clearly."""
import inspect,warnings
from contextlib import redirect_stdout
from io import StringIO
import pytest,torch
from torch import nn
import learner.all as everything
from learner.all import *

class Odd:
    def __repr__(self): return '<an odd object>'

nan,inf = float('nan'),float('inf')
bad = dict(object=Odd(), text='nonsense', none=None, nan=nan, inf=inf, negative=-1, huge=-1e9, half=.37, number=7,
    bool=True, list=[], items=['a'], dict={}, type=int, function=lambda *a: None, empty='')

# Arguments that a call cannot do without, by name: for all callables, or for one
def two(): return [[torch.nn.Parameter(torch.zeros(2))]]
def opt(): return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=.1)
usual = dict(dls=lambda: synth_dls(2, 1), model=lambda: nn.Linear(1,1), m=lambda: nn.Linear(1,1),
    module=lambda: nn.Linear(1,1), modules=lambda: [nn.Linear(1,1)], ms=lambda: [nn.Linear(1,1)],
    params=lambda: [torch.nn.Parameter(torch.zeros(2))], groups=two, opt=opt,
    n=lambda: 1, n_epoch=lambda: 1, epochs=lambda: 1, n_cycles=lambda: 1, cycle_len=lambda: 1, n_steps=lambda: 100,
    start=lambda: .1, end=lambda: .01, middle=lambda: .2, top=lambda: .1, pct=lambda: .5, pos=lambda: .5,
    power=lambda: 2., sched=lambda: SchedNo(1, 1), pcts=lambda: [.5,.5], scheds=lambda: [SchedNo(1, 1)]*2,
    ev=lambda: 'after_batch', event=lambda: 'after_batch', f=lambda: len, func=lambda: (lambda p, t: 0.),
    hook_func=lambda: print, limit=lambda: 1., k=lambda: 1, v=lambda: .1, name=lambda: 'lr', names=lambda: ['a'],
    beta=lambda: .5, dl=lambda: [(torch.zeros(2,1), torch.zeros(2,1))],
    train=lambda: [(torch.zeros(2,1), torch.zeros(2,1))],
    dataset=lambda: [(torch.zeros(1), torch.zeros(1))]*4, bs=lambda: 2, wgts=lambda: [1.]*4, partial_n=lambda: 2,
    make=lambda: torch.optim.lr_scheduler.ConstantLR, alpha=lambda: .4, attr=lambda: 'loss', attrs=lambda: ['loss'],
    metric=lambda: Sum(), loss_cls=lambda: nn.MSELoss, pred=lambda: torch.rand(4,6),
    targ=lambda: torch.tensor([0,1,0,1]),
    filters=lambda: (), append=lambda: False, loss_func=nn.MSELoss, exc=lambda: ValueError, fname=lambda: 'nowhere',
    file=lambda: 'nowhere', item=lambda: torch.zeros(1), lrs=lambda: [1e-3*1.2**i for i in range(40)],
    losses=lambda: [1./(i+1) for i in range(40)], num_it=lambda: 40, folder=lambda: 'nowhere', cb=lambda: BnFreeze(),
    cbs=lambda: [], opt_func=lambda: torch.optim.SGD, lr=lambda: .1, suffix=lambda: '', cond=None)
special = {'FreezeSchedule.epochs': lambda: {0: 0}, 'ParamScheduler.scheds': lambda: dict(lr=SchedNo(1, 1)),
    'Schedule.f': lambda: sched_lin, 'OnBetter.f': lambda: print, 'accuracy_multi.targ': lambda: torch.zeros(4,6),
    'MapPred.f': lambda: len, 'FocalLoss.weight': lambda: None, 'learn.to_channelslast.use_amp': lambda: True,
    'HookCallback.hook': lambda: print, 'load_learner.trust': lambda: True,
    'load_weights.state': lambda: nn.Linear(1,1).state_dict(),
    'diff.run_a': synth_learner} | {f'learn.{o}.n_epoch': lambda: 1 for o in ('fit','fit_one_cycle','fit_flat_cos')}

class Sum(nn.Module):
    "What torchmetrics' metrics have"
    def update(self, p, t): pass
    def compute(self): return 0.
    def reset(self): pass

# What only our own chapters call, and what has no arguments to check
inner = set('''Repeatability Dispatcher Loop Events Draws keep_random moving_parts random_state
    set_random_state map_batch map_tensors rows_of Rows Position RunConfig LossStream Stopwatch
    ProfileReport MemoryForecast RunTrace Summary Samples Report History Row SuggestedLRs Pieces AnyOf
    CallbackList known_args nearest snake_name scope moments held hold put_back is_summed loss_of
    loss_per_sample items_in_phase n_items n_samples flat_pair as_double check_several declare find_bs
    mk_metric mk_metrics AsFunction html_table show_value text_row text_table Lines Notebook Rich
    atomic_write check_plain file_path sweep_temporary write_plain check_plain unwrapped weights_of Mismatch
    count_elements count_kept activation_of decodes_of has_mixed_means inexact_parts ignore_index_of items_by items_of
    reduction_of kind_of decision named as_image first_batch call_selected path_in check_hyper per_group sched_no
    sched_lin sched_cos sched_exp sched_poly FileLogger restored length to_device twin by_number in_order
    default_device run_config numbers highest valley slide minimum steep SuggestionMethod Checkpoints
    Forward Callback FuncCallback clear_state AMPMode spare func_name has_argument innermost Interpretation
    ClassificationInterpretation show_samples freeze_groups make_opt'''.split())
methods = '''fit fit_one_cycle fit_flat_cos fit_sgdr fine_tune lr_find smoke profile memory trace show_loop
    validate get_preds predict tta show_results summary to_fp16 to_channelslast to_contiguous save load
    export save_state load_state set_hyper freeze_to resume at_pause'''.split()

def parameters(f):
    return {k:p for k,p in inspect.signature(f.__init__ if isinstance(f, type) else f).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and k!='self'}

def callables():
    "Name and function of all that is public, and has arguments"
    for k in sorted({*everything.__dict__}-inner):
        o = getattr(everything, k)
        if (k[0]=='_' or not callable(o) or not (getattr(o, '__module__', '') or '').startswith('learner')
                or isinstance(o, type) and issubclass(o, BaseException)):
            continue
        try: ps = parameters(o)
        except ValueError: continue
        if ps: yield k,o,ps
    for k in methods: yield f'learn.{k}',k,parameters(getattr(Learner, k))

def base(name, ps):
    "Arguments that a call needs"
    res = {}
    for k,p in ps.items():
        make = special.get(f'{name}.{k}') or (usual.get(k) if p.default is p.empty else None)
        if make: res[k] = make()
    return res

several = {'OptimList': lambda: [opt()]} # positional arguments

def two_groups(): return synth_learner(2, 1, splitter=lambda m: [[m.a],[m.b]])
def prepared(method):
    "A method of a learner in the state that it needs"
    learn = two_groups() if method in ('fine_tune','freeze_to') else synth_learner(2, 1)
    if method=='load': learn.save('nowhere')
    if method=='resume': learn.fit(1, cbs=Callback(after_batch=lambda self: self.learn.stop_for_now()))
    return getattr(learn, method)

functions = {name:(f, ps) for name,f,ps in callables()}

# Other words by which a message may name an argument, where these say more
words = {f'{o}_hyper.name': 'hyper-parameter' for o in ('get','set')} | {'set_hyper.v': '`lr`'} | dict(cbs='callback',
    metrics='metric', dls='DataLoaders', file='file', fname='file', log_dir='file', ds_idx='No loader',
    dl='No loader') | {'learn.set_hyper.name': 'hyper-parameter', 'learn.set_hyper.v': '`lr`',
    'from_sklearn.func': '`sklearn.metrics` has no'} | {
    f'learn.{o}.resume': 'to resume from' for o in ('fit','fit_one_cycle','fit_flat_cos','fit_sgdr','fine_tune')}

# Odd values that mean something: by annotation and default, then by name
by_type = {bool: 'bool', int: 'number', float: 'half number', str: 'text', dict: 'dict'}
by_name = dict(axis='negative', dim_argmax='negative', ignore_index='negative', pos_label='bool negative',
    bkg_idx='negative', concat_dim='negative', seed='negative', order='negative bool huge', min_delta='number half',
    a='negative huge', b='negative huge', thresh='negative huge',
    max_norm='inf', norm_type='inf', max_value='inf', limit='inf number half', lr='number half', lr_max='number half',
    start='number half negative huge', end='number half negative huge', middle='number half negative huge',
    top='number half negative huge', start_lr='number half', end_lr='number half',
    cbs='list dict empty', metrics='list dict function', train='list items', valid='list items dict', dl='list items',
    modules='list dict', dataset='text list items dict', moms='list', labels='list items',
    **dict.fromkeys('trace fname folder file path model_dir log_dir save_preds save_targs'.split(), 'text empty'))
functions_of = '''f func hook hook_func count when filter_fn params act dec activation splitter split comp make
    sched shape loss_cls opt_func loss_func only aug monitor suggest_funcs matrices others rule'''.split()

def legal(name, k, p):
    "Kinds of values that may be accepted"
    types = (getattr(p.annotation, '__args__', (p.annotation,))
        if not isinstance(p.annotation, type) else (p.annotation,))
    res = {o for t in types if t in by_type for o in by_type[t].split()} | {*by_name.get(k, '').split(),
        *more.get(f'{name}.{k}', '').split()}
    if str in types: res.add('empty')
    if p.default is None: res.add('none')
    if k in functions_of: res |= {'type','function'}
    return res

# the position of one from the end, or a list of batches: what is in it is seen when it is drawn from
is_loader = 'negative list items'
more = {f'{o}.{k}':is_loader
    for o in ('FetchPredsCallback','learn.validate','learn.get_preds','learn.tta','learn.show_results')
    for k in ('ds_idx','dl')} | {
    # a name: before training it is compared with the columns that are recorded
    **{f'{o}.monitor':'text'
        for o in ('EarlyStoppingCallback','OnBetter','ReduceLROnPlateau','SaveModelCallback','TrackerCallback')},
    'FetchPredsCallback.dl': f'{is_loader} number text', # the same: a position or a name, known when there are loaders
    **dict.fromkeys(['learn.summary.dl','learn.memory.dl'], 'negative list items dict'), # a position, or a batch
    'GatherPredsCallback.to': 'list', # no places for no rows
    'SaveModelCallback.fname': 'none', # keeps the best in memory
    # anything that a dataset may hold: what the model cannot take, the model says
    'learn.predict.item': 'nan inf negative huge half number bool text list items dict empty',
    'learn.tta.beta': 'none', # leaves both predictions apart, as in fastai
    'learn.load.device': 'none', # as in fastai: the CPU
    'learn.set_hyper.v': 'number half', # learning rates
    'learn.freeze_to.n': 'negative', # counts from the end
    'OptimList.every': 'number', 'learn.load.only': 'items', 'LossMetrics.attrs': 'items', 'LossMetrics.names': 'items',
    'Hooks.ms': 'list dict', 'Raise.order': 'half', 'set_hyper.v': 'number half',
    'Ledger.ids': 'type function', 'Ledger.loss': 'type function',
    'diff.run_a': 'text empty', 'diff.run_b': 'text empty', # files
    'Profile.waits_every': 'none', 'learn.profile.waits_every': 'none', # never
    # bounds of a filter, as in `Filter`
    **{f'on.{k}':'number' for k in ('every','once')},
    **{f'on.{k}':'number half negative huge' for k in ('after','before')},
} | {k:'none' for k in ('Checkpoint.keep','GatherPredsCallback.concat_dim','learn.get_preds.concat_dim',
    'ProgressCallback.bars')} | {
    f'{o}.average':'none' for o in 'APScoreMulti ClassScore F1Score F1ScoreMulti FBeta FBetaMulti Jaccard '
    'JaccardMulti LabelScore Precision PrecisionMulti Recall RecallMulti RocAuc RocAucMulti'.split()} | {
    'Learner.lr':'list', 'Learner.wd':'list', 'Distributed.shard':'bool',
    'SWA.lr':'list', 'MapBatch.f':'dict', 'MapPred.f':'dict', 'SaveModelCallback.every_epoch':'bool',
    'ProgressCallback.bars':'none bool', 'on.ev':'text empty', 'Filter.after':'negative huge',
    'Filter.before':'negative huge', 'SpikeGuard.factor':'inf', 'ReduceLROnPlateau.factor':'inf',
    'learn.lr_find.suggest_funcs':'none list', 'HookCallback.modules':'text items'}

# What a message tells of a value instead of the value
def told(name, k, v):
    if k=='dls': return type(v).__name__ # a loader would print thousands of numbers
    if name=='combine_scheds' and k in ('pcts','scheds') and v==[]: return ' 0 '
    if name=='weighted_dl' and k=='wgts' and v==[]: return ' 0 '

shown = dict(text='nonsense', none='None', object='odd', nan='nan', inf='inf', negative='-1', huge='-1', half='.37',
    number='7', bool='True', list='[]', items='a', dict='{}', type='int', function='lambda', empty='')
def outcome(name, k, kind):
    "`accepted`, `refused clearly` or `refused unclearly`, and how"
    f,ps = functions[name]
    kwargs = base(name, ps) | {k: bad[kind]}
    args = several[name]() if name in several else ()
    if isinstance(f, str): f = prepared(f)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()): warnings.simplefilter('ignore'); f(*args, **kwargs)
    except Exception as e:
        text = str(e)
        named = f'`{k}' in text or words.get(f'{name}.{k}', words.get(k, f'`{k}')) in text
        clear = (isinstance(e, (ValueError,TypeError,OSError,RuntimeError,LookupError)) and named
            and (told(name, k, bad[kind]) or shown[kind]).lower() in text.lower())
        return ('refused clearly' if clear else 'refused unclearly'),f'{type(e).__name__}: {text[:140]}'
    return 'accepted',''

kinds = dict(things='object type function none', texts='text empty items bool', floats='nan inf half huge',
    others='negative number list dict')
def results(name, of=bad):
    "What came of each bad value that means nothing"
    ps = functions[name][1]
    return {(k, kind):outcome(name, k, kind) for k,p in ps.items() for kind in of if kind not in legal(name, k, p)}

def test_the_kinds_are_all_bad_values(): assert sorted(' '.join(kinds.values()).split())==sorted(bad)

@pytest.mark.sample(4) # each callable, and each kind of value
@pytest.mark.parametrize('of', kinds)
@pytest.mark.parametrize('name', functions)
def test_bad_arguments_are_refused_where_they_are_given(name, of, tmp_path, monkeypatch, tally):
    monkeypatch.chdir(tmp_path)
    res = results(name, kinds[of].split())
    for how,_ in res.values(): tally(how)
    assert not {key:how for key,how in res.items() if how[0]!='refused clearly'}

