"Where a model is wrong: numbers equal those of numpy and scikit-learn, from one pass over any loader"
import random
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader,Dataset,IterableDataset,Subset,SubsetRandomSampler,TensorDataset, \
    WeightedRandomSampler,default_collate
from sklearn.metrics import classification_report,confusion_matrix
import matplotlib
from learner.all import *
from learner.result.predict import same_values
from elsewhere import Elsewhere
matplotlib.use('agg')
import matplotlib.pyplot as plt

gen = torch.Generator().manual_seed(0)
x,y = torch.randn(50, 1, 4, 4, generator=gen),torch.randint(0, 5, (50,), generator=gen)
ds = TensorDataset(x, y)

def learner(dl=None, loss_func=None, n_out=5, vocab=None, cbs=None, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, n_out))
    dls = DataLoaders(DataLoader(ds, 8, shuffle=True), DataLoader(ds, 8) if dl is None else dl, device='cpu')
    if vocab is not None: dls.vocab = vocab
    return synth_learner(dls=dls, model=model, loss_func=nn.CrossEntropyLoss() if loss_func is None else loss_func,
        cbs=cbs, **kwargs)

def fake(targs, dec, preds=None, vocab=None, loss_func=None):
    "An interpretation of given targets and decisions"
    res = ClassificationInterpretation.from_learner(learner(loss_func=loss_func), vocab=vocab)
    res._seen = (torch.zeros(*dec.shape, 1) if preds is None else preds),targs,dec,None
    return res

@torch.no_grad()
def expected(learn, x=x, y=y):
    pred = learn.model(x)
    return pred,F.cross_entropy(pred, y, reduction='none')

# One pass
def test_one_pass_made_when_it_is_needed():
    trace = Trace('before_validate')
    learn = learner(cbs=trace)
    interp = ClassificationInterpretation.from_learner(learn)
    assert trace.seen==[]
    interp.top_losses()
    interp.confusion_matrix()
    interp.most_confused()
    interp.report()
    interp.plot_confusion_matrix(); interp.plot_top_losses(2); interp.show_results([0]); interp[3]; interp.preds
    assert len(trace.seen)==1
    plt.close('all')

def test_an_interpretation_changes_nothing():
    dl = DataLoader(ds, 8, sampler=WeightedRandomSampler(torch.ones(50), 30,
        generator=torch.Generator().manual_seed(3)))
    learn = learner(dl).fit(1)
    def state():
        return [torch.get_rng_state().tolist(), dl.sampler.generator.get_state().tolist(),
            [o.training for o in learn.model.modules()], str(learn.model.state_dict()), repr(learn.recorder.rows)]
    before = state()
    ClassificationInterpretation.from_learner(learn).plot_top_losses(3)
    assert state()==before
    plt.close('all')

def test_predictions_are_those_of_get_preds():
    learn = learner()
    interp = Interpretation.from_learner(learn, 0)
    preds,targs,dec,losses = learn.get_preds(0, with_decoded=True, with_loss=True)
    assert all(torch.equal(a, b)
        for a,b in zip((interp.preds, interp.targs, interp.decoded, interp.losses),
            (preds,targs,dec,losses))) and torch.equal(targs, y)
    assert torch.equal(Interpretation.from_learner(learn, act=lambda o: o*2).preds,
        learn.get_preds(act=lambda o: o*2)[0])

class Noisy(Dataset):
    def __len__(self): return 50
    def __getitem__(self, i): return x[i]+torch.rand(1),y[i]

def test_a_dataset_that_draws_moves_no_generator():
    interp = Interpretation.from_learner(learner(DataLoader(Noisy(), 8)))
    interp.preds
    before = torch.get_rng_state()
    interp[0]; interp.show_results([1,2])
    assert torch.equal(torch.get_rng_state(), before)

# Losses
@pytest.mark.parametrize('k,largest', [(None, True), (3, True), (7, False), (1000, True)])
def test_top_losses(k, largest):
    learn = learner()
    losses,idxs = Interpretation.from_learner(learn).top_losses(k, largest)
    exp = expected(learn)[1].numpy()
    order = np.argsort(-exp if largest else exp)[:k]
    assert idxs.tolist()==order.tolist()
    np.testing.assert_allclose(losses, exp[order], rtol=1e-5)

class Samples(Dataset):
    def __len__(self): return 50
    def __getitem__(self, i): return dict(image=x[i], labels=y[i])
class Stream(IterableDataset):
    def __iter__(self): return iter(zip(x, y))
class Wrap(nn.Module):
    def __init__(self): super().__init__(); self.m = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    def forward(self, image, labels=None): return self.m(image)

every_other = list(range(49, -1, -2))
@pytest.mark.parametrize('dl', [
    DataLoader(ds, 8), DataLoader(ds, 8, shuffle=True, drop_last=True), DataLoader(Subset(ds, every_other), 8),
    DataLoader(ds, 8, sampler=SubsetRandomSampler(every_other)),
    DataLoader(ds, batch_sampler=[[3,1],[40],[7,2,9]]),
    DataLoader(ds, 8, sampler=WeightedRandomSampler(torch.ones(50), 30)), DataLoader(ds, 8, num_workers=1),
], ids=['plain', 'shuffled', 'subset', 'subset_sampler', 'batch_sampler', 'weighted', 'workers'])
def test_samples_are_found(dl):
    learn = learner(dl)
    interp = ClassificationInterpretation.from_learner(learn)
    idxs = interp.top_losses(4).idxs
    xb,preds,targs,dec,losses = interp[idxs]
    with torch.no_grad(): torch.testing.assert_close(learn.model(xb).softmax(1), preds)
    at = [next(j for j in range(50) if torch.equal(x[j], o)) for o in xb]
    assert (torch.equal(targs, y[at]) and torch.equal(dec, preds.argmax(1))
        and torch.equal(losses, interp.top_losses(4).losses))
    assert interp.confusion_matrix().sum()==len(interp.preds)==len(interp.losses)
    assert len(interp.plot_top_losses(4))==4
    plt.close('all')

class Sized(Stream):
    def __len__(self): return 50
class Shuffles:
    "A loader of one's own, in another order each time"
    def __init__(self, draw): self.draw = draw
    def __iter__(self): return iter([(x[i], y[i]) for i in torch.as_tensor(self.draw()).split(8)])
own = np.random.default_rng(0)

@pytest.mark.parametrize('dl',
    [[(x[:30], y[:30]), (x[30:], y[30:])], DataLoader(Stream(), 8), DataLoader(Sized(), 8),
        DataLoader(Stream(), 8, num_workers=1), DataLoader(ds, 8),
    Shuffles(lambda: torch.arange(50))], ids=['list', 'stream', 'sized_stream', 'workers', 'loader', 'own'])
def test_any_loader(dl):
    learn = learner()
    interp = ClassificationInterpretation.from_learner(learn, dl=dl)
    pred,losses = expected(learn)
    assert (interp.confusion_matrix()==confusion_matrix(y, pred.argmax(1))).all()
    torch.testing.assert_close(interp.top_losses().losses, losses.sort(descending=True)[0])
    some = interp[[41,3,3,29,30,49]] # in the order asked for
    assert torch.equal(some.inputs, x[[41,3,3,29,30,49]]) and torch.equal(some.targs, y[[41,3,3,29,30,49]])
    assert len(interp.plot_top_losses(2))==2
    plt.close('all')

@pytest.mark.parametrize('draw',
    [lambda: torch.randperm(50), lambda: np.random.permutation(50), lambda: random.sample(range(50), 50)],
    ids=['torch','numpy','python'])
def test_a_loader_that_shuffles_itself_gives_the_same_samples_again(draw):
    interp = Interpretation.from_learner(learn := learner(), dl=Shuffles(draw))
    interp.preds
    draw() # time goes by
    before = draw_state()
    b = interp[[7,40,12]]
    with torch.no_grad(): torch.testing.assert_close(learn.model(b.inputs).softmax(1), b.preds)
    assert draw_state()==before

def draw_state(): return random.getstate(),np.random.get_state()[1].tolist(),torch.get_rng_state().tolist()

class Growing(Dataset):
    "An augmentation that grows with each sample, with random numbers or without"
    def __init__(self, noise): self.n,self.noise = 0,noise
    def __len__(self): return 50
    def __getitem__(self, i):
        self.n += 1
        return x[i]+.1*self.n+self.noise*torch.randn(1),y[i]

class GrowingStream(IterableDataset):
    n = 0
    def __iter__(self):
        self.n += 1
        return ((a+.1*self.n, b) for a,b in zip(x, y))

@pytest.mark.parametrize('make', [lambda: Growing(0), lambda: Growing(.1), GrowingStream])
def test_what_a_dataset_counts_stays_and_inputs_are_those_that_were_predicted(make):
    data = make()
    learn = learner(DataLoader(data, 8))
    interp = ClassificationInterpretation.from_learner(learn)
    some = interp[[3, 40]]
    with torch.no_grad(): assert torch.allclose(learn.model(some.inputs).softmax(1), some.preds, atol=1e-5)
    interp.show_results([0, 7])
    if isinstance(data, Growing): interp.top_losses(2, items=True)
    assert data.n==0
    plt.close('all')

class Noting(Dataset):
    "Notes what was read last, and keeps it as a list of numbers: its samples stay the same"
    def __init__(self): self.last,self.cache = None,{}
    def __len__(self): return 50
    def __getitem__(self, i):
        self.last = i
        return torch.tensor(self.cache.setdefault(i, x[i].tolist())),y[i]

class Shapes(TorchDispatchMode):
    "Shapes of all tensors that functions get"
    def __init__(self): super().__init__(); self.seen = set()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen |= {tuple(o.shape) for o in args if isinstance(o, torch.Tensor)}
        return func(*args, **kwargs or {})

def test_samples_are_read_alone_where_a_dataset_only_notes_what_was_read():
    interp = Interpretation.from_learner(learner(DataLoader(Noting(), 8)))
    interp.preds
    with Shapes() as shapes: some = interp[[3, 40]]
    assert same_values(some.inputs, x[[3, 40]]) and (1,4,4) in shapes.seen
    assert (8,1,4,4) not in shapes.seen # batches of the loader
    assert (5,16) not in shapes.seen # the weights: no model runs, and nothing of one is noted

def test_samples_that_are_gone():
    interp = Interpretation.from_learner(learner(), dl=iter([(x, y)]))
    assert len(interp.preds)==50
    with pytest.raises(ValueError, match='Samples of an iterator are gone when the model has seen them: give a list'):
        interp[0]
    Interpretation.from_learner(learner(), dl=Shuffles(lambda: own.permutation(50)))[:20] # a global generator is found
    orders = (own.permutation(50) for _ in range(9)) # but nothing can go back here
    interp = Interpretation.from_learner(learner(), dl=Shuffles(lambda: next(orders)))
    with pytest.raises(ValueError,
            match='other samples in a second pass: does it draw them with a generator of its own'):
        interp[:20]

@pytest.mark.parametrize('idxs,rows',
    [(7, [7]), (-1, [49]), ([3,1], [3,1]), ((3,1), [3,1]), (slice(2,8,3), [2,5]), (torch.tensor([4,4]), [4,4]),
        (np.array([9,0]), [9,0]), (range(3), [0,1,2]),
    (y==2, (y==2).nonzero()[:,0].tolist()), ((y==2).numpy(), (y==2).nonzero()[:,0].tolist()),
    ((y==2).tolist(), (y==2).nonzero()[:,0].tolist()), (torch.tensor(5), [5])], ids=str)
def test_choosing_samples(idxs, rows):
    learn = learner()
    interp = Interpretation.from_learner(learn)
    b = interp[idxs]
    if type(idxs) is int or getattr(idxs, 'ndim', 1)==0: rows, = rows # one sample, without the axis of a batch
    pred,losses = (o[rows] for o in expected(learn))
    assert (b.names==('inputs','preds','targs','decoded','losses') and torch.equal(b.inputs, x[rows])
        and torch.equal(b.targs, y[rows]))
    torch.testing.assert_close((b.preds, b.losses), (pred.softmax(-1), losses))
    assert torch.equal(b.decoded, pred.argmax(-1))

@pytest.mark.parametrize('idxs', [50, -51, [3,99], 'abc', 1.5, torch.ones(7).bool()], ids=str)
def test_samples_that_are_not_there(idxs):
    with pytest.raises(IndexError, match='Samples have positions from 0 to 49, but got '):
        Interpretation.from_learner(learner())[idxs]

def test_mappings():
    dl = DataLoader(Samples(), 8)
    dls = DataLoaders(dl, dl, device='cpu', split=lambda b: (dict(image=b['image']), (b['labels'],)))
    interp = ClassificationInterpretation.from_learner(
        synth_learner(dls=dls, model=Wrap(), loss_func=nn.CrossEntropyLoss()))
    assert torch.equal(interp[7].inputs['image'], x[7])
    interp.plot_top_losses(2)
    plt.close('all')

def test_titles_of_the_plot():
    learn = learner(vocab=list('abcde'))
    interp = Interpretation.from_learner(learn)
    axs = interp.plot_top_losses(8)
    losses,idxs = interp.top_losses(8)
    titles = [ax.get_title() for ax in axs]
    assert len(titles)==8 and len(axs[0].figure.axes)==9 # three rows of three
    for t,l,i in zip(titles, losses, idxs):
        p = expected(learn)[0].softmax(1)[i]
        assert t==f"{'abcde'[p.argmax()]}, {p.max():.0%}\nis {'abcde'[y[i]]}, loss {l:.2f}"
    plt.close('all')

def test_results_are_shown():
    interp = Interpretation.from_learner(learn := learner(vocab=list('abcde')))
    pred,losses = expected(learn)
    right = pred.argmax(1)==y
    axs = interp.show_results(right)
    assert (len([o for o in axs if o.images])==len(axs)==right.sum()
        and {o.title.get_color() for o in axs}=={'0.3'})
    assert {o.title.get_color() for o in interp.show_results(~right)}=={'C3'}
    ax, = interp.show_results(5)
    np.testing.assert_allclose(ax.images[0].get_array(), (x[5,0]-x[5].min())/(x[5].max()-x[5].min()), atol=1e-6)
    no_targets = Interpretation.from_learner(learn, dl=[(x,)])
    assert no_targets.show_results(0)[0].get_title(
        )==f"{'abcde'[pred[0].argmax()]}, {pred[0].softmax(0).max():.0%}"
    raw = Interpretation.from_learner(learn, act=lambda o: o) # no probabilities
    assert raw.show_results(0)[0].get_title().startswith(f"{'abcde'[pred[0].argmax()]}\nis ")
    with pytest.raises(ValueError, match=r'There are 50 samples, and none of them is chosen by \[\]'):
        interp.show_results([])
    plt.close('all')

@pytest.mark.parametrize('shape,ok',
    [((1,4,4), True), ((3,4,4), True), ((4,4), True), ((2,4,4), False), ((16,), False)])
def test_what_is_an_image(shape, ok):
    data = TensorDataset(torch.randn(6, *shape)*9, torch.zeros(6).long())
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    model(data.tensors[0])
    interp = Interpretation.from_learner(
        synth_learner(dls=DataLoaders(DataLoader(data, 3), DataLoader(data, 3), device='cpu'), model=model,
            loss_func=nn.CrossEntropyLoss()))
    if ok: assert interp.plot_top_losses(1)[0].images[0].get_array().shape in (shape[-2:], (4,4,3))
    else: assert interp.plot_top_losses(1)[0].input==f"({' x '.join(map(str, shape))})"
    plt.close('all')

def test_errors_of_losses():
    with pytest.raises(ValueError, match='`k` is 1 or more, but got 0'):
        Interpretation.from_learner(learner()).top_losses(0)
    with pytest.raises(ValueError, match='no losses of samples: the loader has no targets'):
        Interpretation.from_learner(learner(), dl=[(x,)]).top_losses()
    with pytest.raises(TypeError, match='has no argument `vocb`. Did you mean `vocab`'):
        Interpretation(learner(), [], vocb=1)
    with pytest.raises(TypeError, match='`Interpretation.from_learner` has no argument `ds`'):
        Interpretation.from_learner(learner(), ds=1)
    with pytest.raises(IndexError, match='there is nothing to validate on'):
        Interpretation.from_learner(synth_learner(n_valid=0))

# Confusion
@pytest.mark.parametrize('n,n_classes', [(1,2), (40,3), (500,20)])
def test_report_equals_that_of_sklearn(n, n_classes):
    g = np.random.default_rng(n)
    t,d = g.integers(0, n_classes, n),g.integers(0, max(n_classes//2, 2), n) # half of the classes are never said
    vocab = [f'c{i}' for i in range(n_classes)]
    interp = fake(torch.tensor(t), torch.tensor(d), vocab=vocab)
    labels = list(range(n_classes))
    assert (interp.confusion_matrix()==confusion_matrix(t, d, labels=labels)).all()
    theirs = classification_report(t, d, labels=labels, target_names=vocab, output_dict=True, zero_division=0)
    ours = interp.report()
    assert list(ours)==[*vocab, 'macro avg', 'weighted avg']
    for k,v in ours.items():
        assert tuple(v)==pytest.approx([theirs[k][o] for o in ('precision','recall','f1-score','support')])
    assert ours.accuracy==pytest.approx((t==d).mean())

def test_report_is_shown(capsys):
    interp = fake(torch.tensor([0,0,1]), torch.tensor([0,1,1]), vocab=['a<b', 'c'])
    interp.print_classification_report()
    lines = capsys.readouterr().out.splitlines()
    assert [o.split() for o in lines]==[['class','precision','recall','f1','support'], ['a<b','1.00','0.50','0.67','2'],
        ['c','0.50','1.00','0.67','1'],
        ['macro','avg','0.75','0.75','0.67','3'], ['weighted','avg','0.83','0.67','0.67','3'], ['accuracy:','0.6667']]
    html = interp.report()._repr_html_()
    assert 'a&lt;b' in html and 'a<b' not in html and html.count('<tr>')==5

def test_targets_of_a_loader_on_a_gpu_are_compared_with_those_that_were_gathered():
    a,b = torch.tensor([1.,torch.nan]),torch.tensor([2.,torch.nan])
    assert same_values(a, Elsewhere(a)) and not same_values(a, Elsewhere(b))

class Largest(TorchDispatchMode):
    "The number of elements of the largest tensor that is made"
    n = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        res = func(*args, **(kwargs or {}))
        if isinstance(res, torch.Tensor): self.n = max(self.n, res.numel())
        return res

def test_memory_does_not_grow_with_classes_times_classes_times_samples():
    t,d = torch.randint(0, 1000, (2,50_000))
    interp = fake(t, d, vocab=range(1000))
    with Largest() as o: cm = interp.confusion_matrix()
    assert o.n==1000*1000 and (cm==confusion_matrix(t, d, labels=range(1000))).all()

def test_most_confused():
    t,d = torch.tensor([0]*5+[1]*6+[2]*4),torch.tensor([0,0,1,1,1, 1,1,2,2,0,1, 2,1,1,1])
    interp = fake(t, d, vocab=['a','b','c'])
    assert interp.most_confused()==[('a','b',3), ('c','b',3), ('b','c',2), ('b','a',1)]
    assert interp.most_confused(3)==[('a','b',3), ('c','b',3)] and interp.most_confused(9)==[]
    assert fake(t, d).most_confused(3)==[(0,1,3), (2,1,3)]
    assert interp.most_confused(0)==interp.most_confused() and interp.confusion_matrix()[0,0]==2 # it is not changed

@pytest.mark.parametrize('normalize', [False, True])
def test_plot_of_the_matrix(normalize):
    t,d = torch.tensor([0,0,0,1]),torch.tensor([0,0,1,1])
    interp = fake(t, d, vocab=['a','b','c']) # there is no c
    ax = interp.plot_confusion_matrix(normalize=normalize, title='T', cmap='Reds', norm_dec=1)
    texts = [o.get_text() for o in ax.texts]
    assert texts==(['0.7','0.3','0.0','0.0','1.0','0.0','0.0','0.0','0.0']
        if normalize else ['2','1','0','0','1','0','0','0','0'])
    assert ([o.get_text() for o in ax.get_yticklabels()]==['a','b','c']
        and (ax.get_title(), ax.get_xlabel(), ax.get_ylabel())==('T', 'predicted', 'actual'))
    assert ax.images[0].get_cmap().name=='Reds'
    ax = plt.subplots()[1]
    assert interp.plot_confusion_matrix(plot_txt=False, ax=ax) is ax and not ax.texts
    plt.close('all')

def test_classes():
    learn = learner(vocab=list('abcde'))
    assert ClassificationInterpretation.from_learner(learn).names==list('abcde')
    assert ClassificationInterpretation.from_learner(learn, vocab='vwxyz').names==list('vwxyz')
    # as many as there are scores
    assert ClassificationInterpretation.from_learner(learner(n_out=9)).names==list(range(9))

def test_kinds_of_classifiers():
    learn = learner(loss_func=lambda p,t: F.cross_entropy(p, t)) # does not say how it decides: by the highest score
    pred = expected(learn)[0]
    assert (ClassificationInterpretation.from_learner(learn).confusion_matrix()
        ==confusion_matrix(y, pred.argmax(1))).all()
    yes = DataLoader(TensorDataset(x, (y>2).float()[:,None]), 8)
    learn = learner(yes, nn.BCEWithLogitsLoss(), n_out=1)
    with torch.no_grad():
        assert (ClassificationInterpretation.from_learner(learn).confusion_matrix()
            ==confusion_matrix(y>2, learn.model(x)[:,0]>0)).all()
    t,p = torch.randint(0, 3, (4,6,6)),torch.randn(4,3,6,6) # a class for each pixel
    t[0,0] = 255
    cm = fake(t, p.argmax(1), p, loss_func=nn.CrossEntropyLoss(ignore_index=255)).confusion_matrix()
    assert (cm==confusion_matrix(t[t!=255], p.argmax(1)[t!=255])).all()
    cm = fake(t, p.argmax(1), p, loss_func=CrossEntropyLossFlat(axis=1, ignore_index=255)).confusion_matrix()
    assert cm.sum()==4*36-6

@pytest.mark.parametrize('targs,dec,kwargs,match', [
    (torch.tensor([0,7]), torch.tensor([0,1]), dict(vocab='ab'), '`vocab` names 2 classes, but there is a class 7'),
    (torch.tensor([0,-3]), torch.tensor([0,1]), {}, 'Targets are classes from 0, but there is -3'),
    (torch.tensor([.5,1]), torch.tensor([0,1]), {},
        'Targets are no classes but torch.float32 of shape .2,., such as 0.5'),
    (torch.tensor([0.,1]), torch.tensor([.3,.2]), {},
        'Decisions are no classes but torch.float32 of shape .2,.: give a loss with `decodes`'),
    (torch.zeros(2,3), torch.zeros(2,3).bool(), {}, 'Each sample has 3 labels, yes or no'),
    (torch.zeros(3), torch.zeros(2).long(), {}, 'one target for each decision'),
    ((torch.zeros(3),)*2, torch.zeros(3).long(), {}, 'one target and one prediction, but targets are tuple'),
], ids=lambda o: '')
def test_errors_of_classes(targs, dec, kwargs, match):
    with pytest.raises(ValueError, match=match): fake(targs, dec, torch.zeros(2), **kwargs).confusion_matrix()

def test_regression_has_losses_too():
    interp = Interpretation.from_learner(learn := synth_learner())
    vx,vy = next(iter(DataLoader(learn.dls.valid_ds, 999)))
    with torch.no_grad(): torch.testing.assert_close(interp.losses, ((learn.model(vx)-vy)**2)[:,0])
    table = interp.plot_top_losses(2)
    worst = ((learn.model(vx)-vy)**2)[:,0].argsort(descending=True)[:2]
    assert [tuple(o) for o in table]==[
        (f'{vx[i].item():.4g}', f'{vy[i].item():.4g}', f'{learn.model(vx)[i].item():.4g}', f'{interp.losses[i]:.4g}')
        for i in worst]
    assert table[0].names==('input','target','decision','loss')

# Size of the picture
def test_names_have_room_in_the_matrix():
    "The matrix itself is as large as with short names"
    def axes(vocab):
        ax = fake(torch.tensor([0,1]), torch.tensor([0,1]), vocab=vocab).plot_confusion_matrix()
        ax.figure.draw_without_rendering()
        return ax.get_window_extent().width/ax.figure.dpi
    assert axes(['a rather long name of a class', 'another'])>.9*axes(['a','b'])
    plt.close('all')

@pytest.mark.parametrize('n,zeros', [(20, True), (21, False), (100, False)])
def test_zeros_of_many_classes_are_not_written(n, zeros):
    t = torch.arange(n)
    ax = fake(t, t.roll(1), vocab=range(n)).plot_confusion_matrix()
    texts = {o.get_position():o.get_text() for o in ax.texts}
    assert len(texts)==(n*n if zeros else n) and all(texts[(j, i)]=='1' for i,j in zip(t.tolist(), t.roll(1).tolist()))
    assert ax.texts[0].get_fontsize()<=8
    plt.close('all')

def test_classes_of_the_same_name():
    interp = fake(torch.tensor([0,1,2,2]), torch.tensor([1,1,0,2]), vocab=['a','a','b'])
    assert interp.most_confused()==[('a (0)','a (1)',1), ('b','a (0)',1)]
    report = interp.report()
    assert ([*report]==['a (0)','a (1)','b','macro avg','weighted avg']
        and [report[o].support for o in ('a (0)','a (1)','b')]==[1,1,2])
    assert report['a (1)'].precision==.5 and report['macro avg'].recall==pytest.approx((0+1+.5)/3)

@pytest.mark.parametrize('vocab,names', [(['a','a','a (1)'], ['a (0)','a (1) (1)','a (1)']),
    (['macro avg','b','weighted avg'], ['macro avg (0)','b','weighted avg (2)']),
    (['accuracy','macro avg','macro avg (1)'], ['accuracy','macro avg (1) (1)','macro avg (1)'])], ids=str)
def test_no_name_of_a_class_hides_another_row(vocab, names):
    report = (interp := fake(torch.tensor([0,1,1,2,2,2]), torch.tensor([0,1,1,2,2,0]), vocab=vocab)).report()
    assert (interp.names==names and [*report]==[*names, 'macro avg', 'weighted avg']
        and [o.support for o in report.values()]==[1,2,3,6,6])

# Arguments
@pytest.mark.parametrize('f,match',
    [(lambda o: o.top_losses(2, larges=False),
        '`Interpretation.top_losses` has no argument `larges`. Did you mean `largest`'),
        (lambda o: o.most_confused(minval=2), 'most_confused` has no argument `minval`. Did you mean `min_val`'),
    (lambda o: o.plot_confusion_matrix(normalise=True),
        'plot_confusion_matrix` has no argument `normalise`. Did you mean `normalize`'),
        (lambda o: o.plot_top_losses(bigest=1), 'plot_top_losses` has no argument `bigest`'),
    (lambda o: o.top_losses(2.5), '`k` is a whole number, but got 2.5')],
    ids=['top_losses','most_confused','plot','plot_top_losses','k'])
def test_misspelt_arguments(f, match):
    with pytest.raises(TypeError, match=match): f(ClassificationInterpretation.from_learner(learner()))

@pytest.mark.parametrize('dl',
    [DataLoader(ds, 8, shuffle=True), DataLoader(Subset(ds, every_other), 8),
        DataLoader(ds, 8, sampler=WeightedRandomSampler(torch.ones(50), 30))], ids=['shuffled','subset','weighted'])
def test_items_of_the_largest_losses(dl):
    interp = Interpretation.from_learner(learner(), dl)
    losses,idxs,items = interp.top_losses(5, items=True)
    b = interp[idxs]
    assert (all(torch.equal(a, c) and torch.equal(t, u) for (a,t),c,u in zip(items, b.inputs, b.targs, strict=True))
        and torch.equal(losses, b.losses))
    with pytest.raises(ValueError, match=r'no dataset that gives single samples: `interp\[idxs\]` has them'):
        Interpretation.from_learner(learner(), [(x, y)]).top_losses(2, items=True)

def test_a_loader_in_the_place_of_its_number():
    learn = learner()
    assert len(ClassificationInterpretation.from_learner(learn, [(x[:7], y[:7])]).preds)==7
    with pytest.raises(TypeError,
            match='`ds_idx` is the position or name of a loader in `dls`, or a loader, but got 1.0'):
        Interpretation.from_learner(learn, 1.)

def test_batches_that_the_dataset_makes():
    class Whole(Dataset):
        def __len__(self): return 10
        def __getitem__(self, i): return x[5*i:5*i+5],y[5*i:5*i+5]
    interp = Interpretation.from_learner(learner(), DataLoader(Whole(), batch_size=None, shuffle=True))
    assert torch.equal(interp.targs, y) and torch.equal(interp[[41,3]].inputs, x[[41,3]])

def test_several_targets_are_compared_when_a_loader_is_gone_over_again():
    draws = iter([torch.arange(50), torch.arange(50).flip(0)])
    class Pairs(Shuffles):
        def __iter__(self): return ((a, (t, t)) for a,t in super().__iter__())
    interp = Interpretation.from_learner(learner(loss_func=lambda p,t: F.cross_entropy(p, t[0])),
        Pairs(lambda: next(draws)))
    with pytest.raises(ValueError, match='other samples in a second pass'): interp[:20]

def test_several_outputs_are_shown_and_not_counted():
    class Two(nn.Module):
        def __init__(self): super().__init__(); self.m = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
        def forward(self, x): o = self.m(x); return o,o*2
    dl = DataLoader(ds, 8)
    interp = ClassificationInterpretation.from_learner(
        synth_learner(dls=DataLoaders(dl, dl, device='cpu'), model=Two(),
            loss_func=lambda p,t: F.cross_entropy(p[0], t)))
    losses,idxs = interp.top_losses(3)
    torch.testing.assert_close(losses, F.cross_entropy(interp.preds[0], y, reduction='none').topk(3)[0])
    assert len(interp.plot_top_losses(3))==3
    with pytest.raises(ValueError, match='one target and one prediction.*decisions tuple: an `act` can choose one'):
        interp.confusion_matrix()
    chosen = ClassificationInterpretation(interp.learn, dl, act=lambda o: o[1].softmax(1))
    assert (chosen.confusion_matrix()==confusion_matrix(y, interp.preds[1].argmax(1))).all()
    plt.close('all')

def test_several_inputs_are_a_tuple():
    class Sum(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(16, 5)
        def forward(self, a, b): return self.lin((a+b).flatten(1))
    dl = DataLoader(TensorDataset(x, -x, y), 8)
    b = Interpretation.from_learner(
        synth_learner(dls=DataLoaders(dl, dl, device='cpu'), model=Sum(), loss_func=nn.CrossEntropyLoss()))[3]
    assert torch.equal(b.inputs[0], x[3]) and torch.equal(b.inputs[1], -x[3]) and b.targs==y[3] and b.preds.shape==(5,)

@pytest.mark.parametrize('largest', [True, False])
def test_top_losses_from_a_place_on(largest):
    interp = Interpretation.from_learner(learn := learner(vocab=list('abcde')))
    all_titles = [ax.get_title() for ax in interp.plot_top_losses(16, largest)]
    order = np.argsort(expected(learn)[1].numpy()*(-1 if largest else 1))
    assert [o.get_title() for o in interp.plot_top_losses(range(7, 16), largest)]==all_titles[7:]==[
        o.get_title() for o in interp.show_results(order[7:16])]
    assert interp.plot_top_losses([4], largest)[0].get_title()==all_titles[4]
    with pytest.raises(IndexError, match=r'Samples have positions from 0 to 49, but got range\(45, 60\)'):
        interp.plot_top_losses(range(45, 60))
    plt.close('all')

def test_sizes_of_figures():
    interp = ClassificationInterpretation.from_learner(learn := learner())
    assert interp.plot_confusion_matrix(figsize=(5,4)).figure.get_size_inches().tolist()==[5,4]
    for show in (interp.plot_top_losses, lambda **kwargs: interp.show_results(range(9), **kwargs),
            lambda **kwargs: learn.show_results(max_n=9, **kwargs)):
        fig = show(figsize=(8,3), ncols=5)[0].figure
        assert fig.get_size_inches().tolist()==[8,3] and len(fig.axes)==10
    with pytest.raises(ValueError, match='`ncols` is 1 or more, but got 0'): learn.show_results(ncols=0)
    with pytest.raises(TypeError, match='no argument `nrows`. Did you mean `ncols`'): learn.show_results(nrows=3)
    plt.close('all')

def test_losses_that_are_no_number_are_the_largest():
    interp = Interpretation(synth_learner())
    interp.__dict__['_seen'] = None,None,None,torch.tensor([2., float('nan'), float('inf'), 3.])
    assert interp.top_losses().idxs.tolist()==[1, 2, 3, 0]
    assert interp.top_losses(largest=False).idxs.tolist()==[0, 3, 2, 1]

class Best(nn.Module):
    "The two highest scores and their classes, in torch's own named tuple"
    def __init__(self): super().__init__(); self.lin = nn.Linear(16, 5)
    def forward(self, x): return self.lin(x.flatten(1)).topk(2)

def test_a_named_tuple_with_values():
    learn = learner(loss_func=lambda o,y: o.values.square().mean())
    learn.model = Best()
    with torch.no_grad(): right = learn.model(x)
    assert find_bs(right)==50 and find_bs({'a': x[:3]})==3
    values,indices = Interpretation(learn, dl=[(x, y)])[7].preds
    assert torch.allclose(values, right.values[7]) and torch.equal(indices, right.indices[7])

class NextWord(nn.Module):
    def __init__(self): super().__init__(); torch.manual_seed(0); self.emb = nn.Embedding(9, 9)
    def forward(self, ids, labels=None):
        o = self.emb(ids)
        if labels is None: return dict(logits=o)
        return dict(logits=o, loss=F.cross_entropy(o[:,:-1].flatten(0, 1), labels[:,1:].flatten()))

def test_samples_of_a_list_whose_targets_are_shifted():
    ids = torch.randint(0, 9, (24,6), generator=torch.Generator().manual_seed(1))
    data = [dict(ids=ids[i:i+6], labels=ids[i:i+6]) for i in range(0, 24, 6)]
    one = Interpretation(Learner(DataLoaders(data, data, device='cpu'), NextWord()))[9]
    assert torch.equal(one.inputs['ids'], ids[9]) and torch.equal(one.targs, ids[9,1:])

# Datasets that draw random numbers
class Drawn(Dataset):
    "Adds noise to an image, or draws another one, from a generator of any kind"
    def __init__(self, kind): self.kind = kind
    def __len__(self): return 50
    def __getitem__(self, i):
        if self.kind=='other': i = torch.randint(0, 50, ()).item()
        noise = dict(torch=lambda: torch.rand(()).item(), numpy=np.random.rand, python=random.random).get(self.kind)
        return x[i]+(noise() if noise else 0),y[i]

@pytest.mark.sample(2)
@pytest.mark.parametrize('kind', ['torch','numpy','python','other'])
@pytest.mark.parametrize('kwargs', [{}, dict(shuffle=True), dict(num_workers=2, shuffle=True)])
def test_inputs_are_those_that_were_predicted_where_a_dataset_draws_random_numbers(kind, kwargs):
    learn = learner(DataLoader(Drawn(kind), 8, **kwargs))
    interp = Interpretation.from_learner(learn)
    before = torch.get_rng_state()
    for idxs in ([3,1,40], [7], range(50)):
        got = interp[[*idxs]]
        pred,losses = expected(learn, got.inputs, got.targs)
        torch.testing.assert_close(got.preds, pred.softmax(1))
        torch.testing.assert_close(got.losses, losses)
    assert torch.equal(before, torch.get_rng_state())

own_orders = dict(subset=lambda ds: DataLoader(ds, 8, sampler=SubsetRandomSampler(range(20, 40))),
    weighted=lambda ds: weighted_dl(ds, 8, torch.ones(50)), partial=lambda ds: partial_dl(ds, 8, 20),
    batches=lambda ds: DataLoader(ds, batch_sampler=[[7,3],[1,40,5],[3]]))
@pytest.mark.parametrize('targets', [True, False])
@pytest.mark.parametrize('how', own_orders)
def test_inputs_are_those_that_were_predicted_where_a_loader_has_an_order_of_its_own(how, targets):
    "And the dataset draws random numbers. Targets that agree, or none, tell nothing of what is mixed up"
    class Two(Drawn):
        def __getitem__(self, i): return (super().__getitem__(i)[0], i%2)[:1+targets]
    dl = own_orders[how](Two('torch'))
    learn = learner(dl)
    interp = Interpretation.from_learner(learn)
    n = len(interp.preds)
    for idxs in ([2,1,n-1,1], [0], range(n)):
        got = interp[[*idxs]]
        torch.testing.assert_close(got.preds, learn.model(got.inputs).softmax(1))

def test_targets_that_callbacks_change_where_a_loader_has_an_order_of_its_own():
    ds = TensorDataset(x, torch.arange(len(x))%2)
    dl = DataLoader(ds, 8, sampler=SubsetRandomSampler(range(20, 40)))
    learn = learner(dl).add_cb(MapBatch(lambda b: (b[0], F.one_hot(b[1], 5).float())))
    assert torch.equal(Interpretation.from_learner(learn)[[1,4]].inputs, x[[21,24]])

class Repeats:
    "Batches without end"
    def __init__(self, batches): self.batches = batches
    def __iter__(self):
        while True: yield from self.batches
class KeepsWorkers(DataLoader):
    "Goes on with one iterator in each epoch, as timm's and YOLO's loaders do"
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n = len(self.batch_sampler)
        object.__setattr__(self, 'batch_sampler', Repeats(self.batch_sampler))
        self.kept = super().__iter__()
    def __len__(self): return self.n
    def __iter__(self): return (next(self.kept) for _ in range(self.n))

@pytest.mark.parametrize('shuffle', [False, True])
def test_a_loader_that_goes_on_with_one_iterator_gives_samples_as_it_draws_them(shuffle, recwarn):
    dl = KeepsWorkers(TensorDataset(x, torch.arange(len(x))%3), 8, shuffle=shuffle)
    learn = learner(dl)
    learn.fit(1)
    pred,targ = learn.get_preds(with_input=True)[0],learn.get_preds()[1]
    told = [o for o in recwarn if 'in the order in which it draws them' in str(o.message)]
    assert len(pred)==len(targ)==50 and bool(told)==shuffle
    if not shuffle: assert torch.equal(pred, x)

# Loaders that do not give the samples of their dataset one by one
class Broken(Dataset):
    def __init__(self, x, y): self.x,self.y = x,y
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return None if i in (2,5) else (self.x[i],self.y[i])
class Backwards(DataLoader):
    def __iter__(self):
        for x,y in super().__iter__(): yield x.flip(0),y.flip(0)
class Chosen(DataLoader):
    def __iter__(self):
        for x,y in super().__iter__(): yield x[y!=1],y[y!=1]
def without_broken(b): return default_collate([o for o in b if o is not None])
def backwards(b): return default_collate(b[::-1])

@pytest.mark.parametrize('make', [lambda x,y: DataLoader(Broken(x, y), 4, collate_fn=without_broken),
    lambda x,y: DataLoader(TensorDataset(x, y), 4, collate_fn=backwards), lambda x,y: Backwards(TensorDataset(x, y), 4),
    lambda x,y: Chosen(TensorDataset(x, y), 4)], ids=['leaves out','reverses','iterates backwards','chooses'])
def test_losses_are_those_of_their_samples_whatever_a_loader_makes_of_the_dataset(make):
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(12, 3, generator=gen),torch.randint(0, 3, (12,), generator=gen)
    dl = make(x, y)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), nn.Linear(3, 3), nn.CrossEntropyLoss())
    interp = Interpretation.from_learner(learn)
    top = interp.top_losses(4)
    rows = interp[top.idxs]
    alone = F.cross_entropy(learn.model(rows.inputs), rows.targs, reduction='none')
    assert torch.allclose(rows.losses, alone, atol=1e-6) and torch.equal(rows.losses, top.losses)
    with pytest.raises(ValueError, match='other samples than the dataset has|no dataset that gives single samples'):
        interp.top_losses(4, items=True)

@pytest.mark.parametrize('change', [lambda y: y.float()/2, lambda y: y.unsqueeze(-1).float()])
def test_targets_that_callbacks_change(change):
    gen = torch.Generator().manual_seed(0)
    x,y = torch.randn(12, 3, generator=gen),torch.randint(0, 3, (12,), generator=gen)
    dl = DataLoader(TensorDataset(x, y), 4)
    class Changes(Callback):
        def before_batch(self): self.learn.y = change(self.y)
    def loss(p, t): return F.mse_loss(p[:,0], t.reshape(-1))
    learn = Learner(DataLoaders(dl, dl, device='cpu'), nn.Linear(3, 3), loss, cbs=Changes)
    top = Interpretation.from_learner(learn).top_losses(3, items=True)
    assert all(torch.equal(a[0], x[i]) for a,i in zip(top['items'], top.idxs))
    assert torch.equal(Interpretation.from_learner(learn)[[1,2]].inputs, x[1:3])

@pytest.mark.parametrize('keeps', [False, True])
def test_a_loader_with_a_harmless_iterator_keeps_the_order_of_the_dataset(keeps):
    class Counts(DataLoader):
        n = 0
        def __iter__(self):
            self.n,it = self.n+1,super().__iter__()
            if keeps: self.latest = it
            return it
    x,y = torch.randn(12, 3),torch.arange(12)%3
    dl = Counts(TensorDataset(x, y), 4, shuffle=True)
    learn = Learner(DataLoaders(dl, dl, device='cpu'), nn.Linear(3, 3), nn.CrossEntropyLoss())
    for _ in dl: pass
    assert torch.equal(learn.get_preds()[1], y)
    assert all(torch.equal(a[0], x[i]) for a,i in zip(*[(o['items'], o.idxs) for o in
        [Interpretation.from_learner(learn).top_losses(3, items=True)]][0]))
