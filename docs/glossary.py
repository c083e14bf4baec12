"What is said of parameters that have no comment of their own: that of the base class, or what the name always means"
import inspect
from fastcore.docments import docments,empty

always = dict(
    a='A tensor', accounts='The accounts of a run, as saved', adjust_value='Factor of the result',
    args='Positional arguments, passed on', ax='Axes to draw on; default: new ones', axis='Where the classes are',
    b='A batch', bars='Whether to draw bars', better='For each column, whether higher values are better',
    bounds='How long the run is', by='A factor', callbacks='A row for each callback', cb='A callback',
    cbs='Callbacks, or classes of them', closure='A function that computes the loss again',
    columns='Names of columns',
    comp='A function that says whether its first argument is better: `np.less` or `np.greater`',
    config='Settings of the fit', counters='Where the run is, as numbers', cpu='Whether to copy to the CPU',
    detach='Whether to detach tensors', device='Where batches go', dl='A loader', end='Value at the end',
    every='How often', f='A function', fig='A figure', filters='Filters, by event',
    floatify='Whether to convert targets to floats', folder='A folder of files', fork='The copy', func='A function',
    group='A parameter group', head='Names of the columns', i='A number or a name',
    is_forward='Whether to hook the forward pass; else the backward pass', items='What it holds',
    iterable='What it holds', k='A name', kind='What the row is of: `epoch`, `batch` or another name',
    kwargs='Arguments by name, passed on', layers='A row for each layer', learn='The learner', lines='Lines of text',
    loader='The state of the loader', loaders='Loaders', loss='A loss', losses='Loss at each rate',
    lr_diff='Width of the window, in points', lrs='Learning rates that were tried', m='A model',
    match='Passed to the list', metrics='Metrics', middle='Value in the middle',
    min_delta='Least change that is better', monitor='Column of results to watch; default: that of the learner',
    n_inp='How many parts of a batch are inputs', n_iter='Number of training batches', name='A name', names='Names',
    num_it='How many rates were tried', opt='An optimizer', optimizer='The state of the optimizer',
    originals='What `hold` returned', order='Place among the callbacks: lowest first', other='The other one of two',
    out='Where to write; default: standard output', parent='The run that this one is a copy of',
    pcts='Fraction of training for each schedule; they sum to 1', phase='`train` or `validate`',
    phases='A row for each phase', pos='Position in training, from 0 to 1', power='Power of the position',
    pred='Predictions', rest='Passed to the list', resumed='Whether the fit continues an earlier one',
    row='A row of results, by name', rows='Rows of values', scheds='A schedule for each part',
    set_to_none='Whether to drop gradients rather than to zero them', start='Value at the start',
    state='What `state_dict` returned', states='States of generators', step='Number of training batches so far',
    targ='Targets', thresh='Least difference of slopes', title='A title', total='Number of parameters',
    trained='Number of trained parameters', unit='What `every` counts', use_list='Passed to the list', v='A value',
    val='Value of the monitored column', values='Values, one for each parameter group',
    wait='Whether to wait for the device', waits='What made the device wait',
    carry='Whether batches carry the states of generators', why='The reason',
    with_bias='Whether to include all biases', x='Inputs', y='Targets', about='Facts to show below', run='A run',
    epoch='An epoch', iter='A batch', once='Run on this call, or on these',
    after='Run only on later calls than this one', before='Run only on earlier calls than this one',
    when='Run if this function says so: see `Filter`',
    ev='Name of an event', training='Whether a phase trains', fit='Whether a fit is running', e='An exception',
    resumable='Whether it can be resumed', mode='What runs: see `learn.mode`',
    held='What `hold` returned', put='Shows what it is given',
    file='Path of the file')

def said_by_bases(cls, method, name):
    "What the method of the same name says of a parameter, in the first base class that says anything"
    for o in cls.__mro__[1:]:
        f = vars(o).get(method)
        if inspect.isfunction(f) and (text := docments(f, args_kwargs=True).get(name)): return text

def words(sym, owner=None):
    "What is said of each parameter of `sym`, a method of the class `owner` or a class itself"
    cls = sym if isinstance(sym, type) else owner
    method = '__init__' if isinstance(sym, type) else getattr(sym, '__name__', '')
    own = docments(sym, args_kwargs=True)
    def text(k):
        said = own.get(k)
        return said if said and said is not empty else (cls and said_by_bases(cls, method, k)) or always.get(k, empty)
    return {k:text(k) for k in inspect.signature(sym).parameters if k not in ('self','cls')}
