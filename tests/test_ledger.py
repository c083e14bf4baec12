"`Ledger`: what each sample cost, each visit once however the run was stopped, and nothing of the run changed"
import copy,pickle,warnings
from types import SimpleNamespace
import numpy as np, pytest, torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader,Dataset,IterableDataset,TensorDataset
from sklearn.datasets import load_digits
from learner.all import *
from learner.diagnose.ledger import SampleCosts,Visits

from small_fits import mk

n,bs = 26,4 # the last batch of an epoch is short
class Numbered(Dataset):
    "Samples that are augmented in the workers"
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.x,self.y = torch.randn(n, 3, generator=g),torch.randint(0, 2, (n,), generator=g)
    def __len__(self): return n
    def __getitem__(self, i): return self.x[i]+.1*torch.randn(3),self.y[i]

def make(*cbs, dl=None, seed=1, workers=0, **kwargs):
    dl = DataLoader(Numbered(), bs, shuffle=True, num_workers=workers) if dl is None else dl
    learn = mk(*cbs, data=DataLoaders(dl, device='cpu'), **kwargs)
    torch.manual_seed(seed)
    return learn

class Seen(Callback):
    "Ids, losses and decisions of each training batch, noted one by one"
    order,writes,run_valid = -50,True,False
    def __init__(self): self.rows = {}
    def after_batch(self):
        learn = self.learn
        if learn.loss is None: return
        losses = F.cross_entropy(learn.pred.detach(), learn.y, reduction='none')
        right = learn.pred.argmax(1)==learn.y
        self.rows[learn.train_iter] = [*zip(learn.idxs, losses.tolist(), right.tolist())]

def agree(costs, seen):
    "Whether accounts are what a plain loop over the visits gives"
    total,visits,forgotten,last,at = ({} for _ in range(5))
    for k,row in sorted(seen.rows.items()):
        for i,loss,right in row:
            total[i] = total.get(i, 0)+loss
            visits[i] = visits.get(i, 0)+1
            forgotten[i] = forgotten.get(i, 0)+(last.get(i, False) and not right)
            last[i] = right
            at.setdefault(i, []).append(k)
    s = costs.samples()
    assert s.idxs.tolist()==sorted(visits) and s.visits.tolist()==[visits[i] for i in s.idxs]
    assert s.forgotten.tolist()==[forgotten[i] for i in s.idxs]
    assert s.loss.tolist()==pytest.approx([total[i]/visits[i] for i in s.idxs], rel=1e-6)
    assert all(costs.history(i).at.tolist()==at[i][-costs.at.shape[1]:] for i in s.idxs)

def once_an_epoch(costs, n_epoch):
    per_epoch = -(-n//bs)
    assert all((costs.history(i).at//per_epoch).tolist()==[*range(n_epoch)] for i in range(n)) and len(costs)==n

def visit(at, ids, losses, right=None):
    return Visits(at, np.asarray(ids), None, None, torch.as_tensor(losses),
        None if right is None else torch.as_tensor(right))
def equal(a, b):
    "Losses but for their last bits: those of several batches are computed together, and of how many depends on stops"
    def same(v, w): return v.shape==w.shape and np.allclose(v, w, rtol=1e-6, atol=1e-7, equal_nan=v.dtype.kind=='f')
    return vars(a).keys()==vars(b).keys() and all(same(v, vars(b)[k]) for k,v in vars(a).items())

# What it finds
def area(score, positive):
    "Probability that a positive one has the higher score, from all pairs"
    a,b = score[positive][:,None],score[~positive]
    return ((a>b)+.5*(a==b)).mean()

@pytest.mark.parametrize('seed', range(5))
def test_wrong_labels_are_the_hardest(seed):
    "With 5 % of the labels of digits flipped, the area under the curve of flipped against right ones is 0.95 or more"
    torch.manual_seed(seed)
    x,y = [torch.tensor(o) for o in load_digits(return_X_y=True)]
    wrong = torch.randperm(len(y))[:len(y)//20]
    y[wrong] = (y[wrong]+torch.randint(1, 10, wrong.shape))%10
    dls = DataLoaders(DataLoader(TensorDataset(x.float()/16, y), 32, shuffle=True), device='cpu')
    learn = Learner(dls, nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), nn.CrossEntropyLoss(),
        lr=3e-3).remove_cb(ProgressCallback)
    learn.fit(3, cbs=Ledger())
    s = learn.ledger.samples()
    flipped = np.isin(s.idxs, wrong)
    assert s.visits.tolist()==[3]*len(y) and area(s.loss, flipped)>=.95
    for by in ('loss','forgotten'):
        order = learn.ledger.hardest(None, by)['idx']
        assert sorted(order)==[*range(len(y))] and area(-np.arange(len(y)), np.isin(order, wrong))>=.95

# What it holds
@pytest.mark.parametrize('workers', [0, 2])
def test_losses_decisions_and_order(workers):
    learn = make(workers=workers)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*fork')
        learn.fit(4, cbs=[Ledger(), seen := Seen()])
    agree(learn.ledger, seen)
    once_an_epoch(learn.ledger, 4)
    assert learn.ledger.forgotten.sum()>0

@pytest.mark.parametrize('loss',
    [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction='sum'), CrossEntropyLossFlat(), F.cross_entropy,
        lambda p, y: F.cross_entropy(p, y)], ids=['mean','sum','flat','function','own'])
def test_whatever_the_loss_puts_together(loss):
    learn = make(loss_func=loss)
    learn.fit(2, cbs=[Ledger(), seen := Seen()])
    agree(learn.ledger, seen)

def test_batches_of_different_shapes():
    class Words(nn.Module):
        def __init__(self): super().__init__(); self.net = nn.Linear(3, 2)
        def forward(self, x): return self.net(x).movedim(-1, 1)
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(5+i%3, 3, generator=g), torch.randint(0, 2, (5+i%3,), generator=g)) for i in range(18)]
    dl = DataLoader(data, batch_sampler=[[i+3*j for j in range(6)] for i in range(3)])
    learn = make(dl=dl, model=Words()).fit(2, cbs=Ledger())
    assert learn.ledger.visits.tolist()==[2]*18
    learn.fit(1, lr=0., cbs=Ledger()) # the weights stay
    with torch.no_grad(): losses = [F.cross_entropy(learn.model(x[None]), y[None]).item() for x,y in data]
    assert learn.ledger.samples().loss.tolist()==pytest.approx(losses, rel=1e-5)

def test_a_sample_that_comes_several_times_in_a_batch():
    dl = weighted_dl(Numbered(), bs, [20.]*2+[1.]*(n-2))
    learn = make(dl=dl)
    learn.fit(5, cbs=[Ledger(keep=7), seen := Seen()])
    agree(learn.ledger, seen)
    assert learn.ledger.visits.max()>20

def test_accounts_do_not_depend_on_when_visits_are_entered():
    rng = np.random.default_rng(0)
    visits = [visit(i, rng.integers(0, 9, 6), rng.random(6, dtype='float32'), rng.random(6)<.5) for i in range(20)]
    start = Ledger(keep=3).accounts
    whole,parts = start.after(visits),start
    for o in visits: parts = parts.after([o])
    assert equal(whole, parts) and whole.visits.sum()==120 and len(start)==0

def test_memory_is_bounded():
    learn = make()
    learn.fit(9, cbs=Ledger(keep=5))
    arrays = vars(learn.ledger)
    assert sum(o.nbytes for o in arrays.values())==n*(18+8*5)
    assert {k:str(o.dtype) for k,o in arrays.items()}==dict(visits='int32', total='float64', forgotten='int32',
        right='int8', learned='bool', losses='float32', at='int32')
    assert learn.ledger.history(3).at.tolist()==sorted(learn.ledger.at[3].tolist()) and learn.ledger.visits[3]==9

def test_what_waits_on_the_device_is_bounded():
    cb = Ledger()
    learn = make(cb, dl=weighted_dl(Numbered(), 256, [1.]*n, n=2**17))
    most = []
    @learn.on('after_batch', order=2000)
    def note(learn): most.append((len(cb.waiting), sum(o.of is not None for o in cb.waiting)))
    learn.fit(1)
    assert (max(o for o,_ in most)==2**16/256-1 and max(o for _,o in most)<=2**16/512
        and learn.ledger.visits.sum()==2**17)

def test_nothing_is_read_from_the_device_in_a_batch():
    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__=='_local_scalar_dense': reads.append(func)
            return func(*args, **(kwargs or {}))
    def count(*cbs):
        reads.clear()
        learn = make(*cbs)
        with Reads(): learn.fit(2)
        return len(reads)
    reads = []
    assert count(Ledger())==count()

def test_a_snapshot_is_of_its_moment():
    cb = Ledger()
    learn = make(cb)
    shots,states = [],[]
    @learn.on('after_batch', order=2000)
    def note(learn):
        shots.append(cb.state_snapshot())
        if learn.train_iter%3==0: states.append((len(shots)-1, {k:v.copy() for k,v in cb.state_dict().items()}))
        if learn.train_iter%5==0: cb.accounts
    learn.fit(2)
    for i,state in states:
        assert all(np.array_equal(v, shots[i].state_dict()[k], equal_nan=v.dtype.kind=='f') for k,v in state.items())

# Stop, resume, rewind, fork
@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.filterwarnings('ignore:.*fork|The run was stopped in the middle|The workers|.*replaying')
def test_each_visit_once_however_often_the_run_was_stopped(tmp_path, workers):
    whole = make(workers=workers).fit(3, cbs=Ledger()).ledger
    cut = make(path=tmp_path, workers=workers)
    for k in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            cut.fit(3, cbs=[Ledger(), Checkpoint(every=1, unit='iter'), Raise('before_draw', KeyboardInterrupt, k)],
                resume='auto')
        cut = make(path=tmp_path, seed=7, workers=workers) # as in another process
    cut.fit(3, cbs=[Ledger(), Checkpoint(every=1, unit='iter')], resume='auto')
    once_an_epoch(cut.ledger, 3)
    if not workers: assert equal(whole, cut.ledger)

@pytest.mark.sample(2)
@pytest.mark.filterwarnings('ignore:.*fork|.*replays')
@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('back', [1, 8, 12, 19])
def test_after_going_back_it_is_what_it_was(workers, back):
    learn = make(workers=workers)
    learn.fit(3, cbs=[Ledger(), Rewind(every=4, keep=9)])
    whole = learn.ledger
    learn.rewind(back)
    # else callbacks get their states when it resumes
    if back%4: assert learn.ledger.visits.sum()==sum(min(bs, n-b%7*bs) for b in range(back))
    learn.resume()
    assert equal(learn.ledger, whole)
    once_an_epoch(learn.ledger, 3)

def test_a_fork_has_a_ledger_of_its_own():
    learn = make()
    learn.fit(3, cbs=[Ledger(), Rewind(every=4, keep=9)])
    whole = learn.ledger
    alt = learn.fork(9, lr=.01)
    same = learn.fork(9)
    assert same.ledger.visits.sum()==9*bs-2 # one batch of seven is short
    alt.resume(); same.resume()
    assert equal(learn.ledger, whole) and equal(same.ledger, whole) and not equal(alt.ledger, whole)
    once_an_epoch(alt.ledger, 3)

def test_two_learners_that_share_an_instance_have_a_ledger_each():
    cb,own = Ledger(),[make().fit(2, lr=lr, cbs=Ledger()).ledger for lr in (.1, .5)]
    a,b = (make().fit(2, lr=lr, cbs=cb) for lr in (.1, .5))
    assert equal(a.ledger, own[0]) and equal(b.ledger, own[1])
    a.fit(1, cbs=cb)
    assert equal(b.ledger, own[1]) and a.ledger.visits.sum()==n

def test_interrupted_and_resumed():
    cb = Ledger()
    learn = make(cb)
    with pytest.raises(KeyboardInterrupt): learn.fit(2, cbs=Raise('before_draw', KeyboardInterrupt, 5))
    learn.resume(cbs=())
    once_an_epoch(learn.ledger, 2)
    learn.fit(1)
    once_an_epoch(learn.ledger, 1) # a new fit begins a new one

# What it leaves alone
def test_the_run_is_the_same_without_it():
    def noisy(pred, y, reduction='mean'): return F.cross_entropy(F.dropout(pred, .3), y, reduction=reduction)
    a,b = (make(loss_func=noisy).fit(2, cbs=cbs) for cbs in ([], Ledger()))
    assert all(map(torch.equal, a.model.parameters(), b.model.parameters()))

def test_a_loss_that_counts_is_left_as_it_was():
    class Counting(nn.CrossEntropyLoss):
        n = 0
        def forward(self, *args): self.n += 1; return super().forward(*args)
    learn = make(loss_func=Counting()).fit(1, cbs=Ledger())
    other = make(loss_func=Counting()).fit(1)
    assert learn.loss_func.n==other.loss_func.n and learn.loss_func.reduction=='mean'

class Scaled(nn.Module):
    "A loss with a running scale, which keeps a term of its last value"
    def __init__(self): super().__init__(); self.register_buffer('scale', torch.ones(()))
    def forward(self, pred, y):
        self.term = F.cross_entropy(pred, y)
        if self.training: self.scale.lerp_(self.term.detach(), .1)
        return self.term/self.scale

def test_a_loss_with_a_state_is_left_as_it_was():
    a,b = (make(loss_func=Scaled()).fit(2, cbs=cbs) for cbs in ([], Ledger()))
    assert torch.equal(a.loss_func.scale, b.loss_func.scale)
    assert all(map(torch.equal, a.model.parameters(), b.model.parameters()))

def test_a_loss_that_keeps_a_tensor_of_its_graph():
    class Keeping(nn.CrossEntropyLoss):
        def forward(self, *args): self.term = super().forward(*args); return self.term
    learn = make(loss_func=Keeping()).fit(1, cbs=[Ledger(), seen := Seen()])
    agree(learn.ledger, seen)

# A loss that changes
def smoother(learn): learn.loss_func.label_smoothing = .2*learn.epoch
def heavier(learn): learn.loss_func.weight *= torch.tensor([1., 2.])
def other_weights(learn): learn.loss_func.weight = torch.tensor([1., 2.+learn.epoch])
def other_loss(learn): learn.loss_func = nn.CrossEntropyLoss(label_smoothing=.1*learn.epoch)
def steeper(learn): learn.loss_func.gamma = float(learn.epoch)

@pytest.mark.parametrize('at', ['before_epoch','before_batch'])
@pytest.mark.parametrize('change', [smoother, heavier, other_weights, other_loss, steeper], ids=lambda f: f.__name__)
def test_each_visit_costs_what_the_loss_was(change, at):
    noted = {}
    class Noted(Callback):
        writes,run_valid = True,False
        def after_batch(self):
            for i,v in zip(self.learn.idxs, per_sample(self.learn.loss_func)(self.learn.pred.detach(), self.learn.y)):
                noted.setdefault(i, []).append(v.item())
    loss_func = FocalLoss() if change is steeper else nn.CrossEntropyLoss(torch.ones(2))
    learn = make(on(at)(change), loss_func=loss_func).fit(3, cbs=[Ledger(), Noted()])
    for i in range(n): assert learn.ledger.history(i).losses.tolist()==pytest.approx(noted[i], rel=1e-5)

@pytest.mark.parametrize('technique', [lambda: MicroBatch(3), lambda: GradientAccumulation(8), lambda: EMA(.9)],
    ids=['micro','accumulation','ema'])
def test_with_techniques(technique):
    learn = make()
    learn.fit(2, cbs=[technique(), Ledger(), seen := Seen()])
    agree(learn.ledger, seen)

def test_cancelled_batches_cost_nothing():
    @on('before_batch', once=2)
    def skip(learn): raise CancelBatchException
    learn = make(skip)
    learn.fit(1, cbs=[Ledger(), seen := Seen()])
    agree(learn.ledger, seen)
    assert learn.ledger.visits.sum()==n-bs

def test_only_fits_are_accounted():
    learn = make(Ledger())
    learn.fit(1)
    before = learn.ledger
    learn.validate(dl=learn.dls.train); learn.get_preds(0); learn.smoke(); learn.lr_find(show_plot=False)
    assert equal(learn.ledger, before)

def test_regression_has_no_decisions():
    g = torch.Generator().manual_seed(0)
    dl = DataLoader(TensorDataset(torch.randn(n, 3, generator=g), torch.randn(n, 2, generator=g)), bs, shuffle=True)
    learn = make(dl=dl, loss_func=nn.MSELoss()).fit(2, cbs=Ledger())
    assert ((learn.ledger.right==-1).all() and not learn.ledger.forgotten.any()
        and not learn.ledger.samples().learned.any())
    assert learn.ledger.hardest(3)['loss'].tolist()==sorted(learn.ledger.samples().loss, reverse=True)[:3]

def test_losses_that_are_no_number_are_the_hardest():
    costs = Ledger().accounts.after([visit(0, range(3), [1., float('nan'), 2.])])
    assert costs.hardest(2)['idx'].tolist()==[1, 2]

def ignoring(p, t): return F.cross_entropy(p, t) # of its own: nobody can see that -100 does not count
def test_samples_that_are_ignored_are_the_easiest():
    data = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.tensor([-100, 0, 1]*4))
    learn = make(dl=DataLoader(data, 4), loss_func=ignoring).fit(1, cbs=Ledger())
    o = learn.ledger.samples()
    assert (o.loss[::3]==0).all() and (o.loss>0).sum()==8
    assert not {0, 3, 6, 9} & {*learn.ledger.hardest(8)['idx']}

def test_samples_without_a_label_are_not_decided():
    "Neither learned, nor among those that were never learned; where a part has a label, that part decides"
    scores = torch.tensor([0.,9.,0.])[:,None].expand(6, 3, 2).clone() # all decide class 1
    y = torch.tensor([[-100,-100], [-100,-100], [-100,0], [-100,1], [0,1], [1,1]])
    model = nn.Linear(2, 2)
    nn.init.eye_(model.weight)
    learn = make(dl=DataLoader(TensorDataset(scores, y), 3), model=model,
        loss_func=nn.CrossEntropyLoss()).fit(2, cbs=Ledger(), lr=0.)
    costs = learn.ledger
    assert costs.right.tolist()==[-1, -1, 0, 1, 0, 1]
    assert costs.samples().learned.tolist()==[False, False, False, True, False, True]
    assert {*costs.hardest(2, 'forgotten')['idx']}=={2, 4}

def test_a_visit_without_a_label_is_no_decision():
    costs = Ledger().accounts.after([visit(i, range(3), [1.]*3, right)
        for i,right in enumerate([[1, 0, -1], [-1, -1, -1], [0, 0, -1]])])
    assert costs.forgotten.tolist()==[1, 0, 0] and costs.learned.tolist()==[True, False, False]
    assert costs.right.tolist()==[0, 0, -1] and costs.hardest(3, 'forgotten')['idx'].tolist()==[1, 0, 2]

def test_narrow_targets_have_no_label_to_ignore():
    "-100 is no number of 8 bits without a sign, and 156 is a class"
    learn = make(dl=DataLoader(TensorDataset(torch.eye(200)[:4], torch.full((4,), 156, dtype=torch.uint8)), 4),
        model=nn.Linear(200, 200), loss_func=lambda p, t: F.cross_entropy(p, t.long())).fit(1, cbs=Ledger())
    assert (learn.ledger.right==0).all()

def test_samples_that_were_never_learned_come_before_forgotten_ones():
    costs = Ledger().accounts.after(
        [visit(i, range(3), [1., 2., 3.], right) for i,right in enumerate([[False, True, True], [False, False, True]])])
    assert costs.hardest(3, 'forgotten')['idx'].tolist()==[0, 1, 2] and costs.forgotten.tolist()==[0, 1, 0]

# Samples with other numbers
class Stream(IterableDataset):
    def __init__(self, data): self.data = data
    def __iter__(self):
        for i in torch.randperm(n).tolist(): yield *self.data[i],i

def test_numbers_that_are_in_the_batch():
    dl = DataLoader(Stream(Numbered()), bs)
    learn = mk(data=DataLoaders(dl, device='cpu', split=lambda b: (b[:1], b[1:2])))
    learn.fit(3, cbs=Ledger(ids=lambda learn: learn.batch[2]))
    once_an_epoch(learn.ledger, 3)
    with pytest.raises(ValueError, match='no dataset that gives single samples'): learn.show_hardest()

def test_numbers_that_are_no_places_in_the_dataset_show_no_samples():
    learn = mk(data=DataLoaders(DataLoader(Numbered(), bs), device='cpu', split=lambda b: (b[:1], b[1:2])))
    learn.fit(1, cbs=Ledger(ids=lambda learn: torch.arange(len(learn.x))+1000))
    with pytest.raises(ValueError, match='numbers of your own, by `Ledger'): learn.show_hardest()
    assert min(learn.ledger.hardest(3)['idx'])>=1000

def test_losses_of_ones_own():
    learn = make(loss_func=lambda p, y: F.cross_entropy(p, y))
    learn.fit(2, cbs=[Ledger(loss=lambda p, y: F.cross_entropy(p, y, reduction='none')), seen := Seen()])
    agree(learn.ledger, seen)

def test_a_model_with_its_own_loss():
    class Own(nn.Module):
        def __init__(self): super().__init__(); self.net = nn.Linear(3, 2)
        def forward(self, x, labels):
            return SimpleNamespace(loss=F.cross_entropy(self.net(x), labels)*2, logits=self.net(x))
    dl = DataLoader(Numbered(), bs)
    learn = mk(data=DataLoaders(dl, device='cpu', split=lambda b: (dict(x=b[0], labels=b[1]), ())), model=Own(),
        loss_func=None)
    with pytest.raises(ValueError, match='There are no losses of samples'): learn.fit(1, cbs=Ledger())

# What is said
@pytest.mark.parametrize('cbs,kwargs,match', [
    ([], dict(dl=DataLoader(Stream(Numbered()), bs)),
        r'needs the number of each sample.*`DataLoader`.*Ledger\(ids=f\)'),
    ([], dict(dl=[(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]), r'needs the number of each sample.*`list`'),
    ([], dict(dl=DataLoader(Numbered(), bs, num_workers=1, persistent_workers=True)),
        r'needs the number of each sample.*with `persistent_workers=True`: leave that out'),
    ([MixUp()], {}, r'`mix_up` trains on mixtures of two samples.*leave out one of `MixUp` and `Ledger`'),
    ([CutMix()], {}, r'leave out one of `CutMix` and `Ledger`'),
    (dict(ids=lambda learn: learn.idxs[:2]), {}, r'a whole number for each of the 4 samples.*int64 of shape \(2,\)'),
    (dict(ids=lambda learn: learn.y.float()), {}, r'a whole number for each of the 4 samples.*float32'),
    (dict(ids=lambda learn: learn.y-1), {}, 'counted from 0.*from -1'),
    (dict(ids=lambda learn: learn.y+2**40), {}, 'take memory up to the highest'),
    (dict(loss=lambda p, y: F.cross_entropy(p, y)), {},
        r'one loss for each of 4 samples, but `<lambda>` returned losses of shape \(\)')])
def test_errors(cbs, kwargs, match):
    if isinstance(cbs, dict): cbs = [Ledger(**cbs)]
    else: cbs = [*cbs, Ledger()]
    if isinstance(getattr(kwargs.get('dl'), 'dataset', None), Stream):
        kwargs = dict(dl=DataLoader(Stream(Numbered()), bs,
            collate_fn=lambda b: torch.utils.data.default_collate([o[:2] for o in b])))
    learn = make(**kwargs)
    with pytest.raises(ValueError, match=match):
        learn.fit(1, cbs=cbs)
        learn.ledger

def test_errors_of_arguments():
    with pytest.raises(ValueError, match='`keep` is 1 or more'): Ledger(keep=0)
    with pytest.raises(TypeError, match='`ids` is a function'): Ledger(ids=3)
    learn = make()
    assert not hasattr(learn, 'ledger')
    with pytest.raises(AttributeError, match=r'No fit has kept a ledger: give it `cbs=Ledger\(\)`'): learn.ledger
    learn.fit(1, cbs=Ledger())
    with pytest.raises(ValueError,
            match='Sample 26 has not come: 26 samples with 26 visits have, with numbers up to 25'):
        learn.ledger.history(26)
    with pytest.raises(ValueError, match='`by` is one of `loss`, `forgotten`'): learn.ledger.hardest(3, by='los')
    with pytest.raises(ValueError, match='`k` is 1 or more'): learn.ledger.hardest(0)
    with pytest.raises(ValueError, match='The ledger is empty'): Ledger().accounts.plot()

# Copies, pictures
@pytest.mark.parametrize('how', [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=['deepcopy','pickle'])
def test_copies(how):
    learn = make().fit(2, cbs=Ledger())
    assert equal(how(learn).ledger, learn.ledger)

def test_a_table_of_samples_that_are_no_images():
    learn = make().fit(2, cbs=Ledger())
    rows = learn.show_hardest(3)
    hard = learn.ledger.hardest(3)
    assert ([o.loss for o in rows]==[f'{o:.4g}' for o in hard['loss']]
        and [o.target for o in rows]==[str(learn.dls.train.dataset.y[i].item()) for i in hard['idx']])

def test_images_and_plot():
    class Images(Numbered):
        def __getitem__(self, i): return torch.full((1, 5, 5), float(i)).index_fill(2, torch.tensor(0), 0.),self.y[i]
    learn = make(dl=DataLoader(Images(), bs, shuffle=True), model=nn.Sequential(nn.Flatten(), nn.Linear(25, 2)))
    before = torch.get_rng_state()
    learn.fit(3, cbs=Ledger())
    after = torch.get_rng_state()
    axs = learn.show_hardest(4, 'forgotten')
    hard = learn.ledger.hardest(4, 'forgotten')
    assert [o.get_title().split('loss ')[1] for o in axs]==[f'{o:.2f}' for o in hard['loss']]
    left,right = learn.ledger.plot(4)
    assert (len(left.lines)==5 and sum(len(o.get_offsets()) for o in right.collections)==n
        and len(right.collections[1].get_offsets())==4)
    assert np.allclose(left.lines[0].get_ydata(), learn.ledger.history(learn.ledger.hardest(4)[0].idx).losses)
    assert torch.equal(after, torch.get_rng_state()) and not torch.equal(before, after)

def test_a_sample_that_came_seldom_cuts_no_median():
    "Its visits count among the last ones of the others"
    costs = SampleCosts.empty(5, 3) # which keeps three visits
    def enter(ids, loss): costs._enter(np.array(ids), *(np.full(len(ids), o) for o in (loss, -1, 0)))
    for loss,ids in ((1., [0,1]), (2., [0,1,2]), (4., [0,1,2]), (8., [0,1,2,3])): enter(ids, loss)
    left,_ = costs.plot(1)
    median = left.lines[-1]
    assert list(median.get_xdata())==[-3,-2,-1] and list(median.get_ydata())==[2,4,8]
    left,_ = SampleCosts(**{k:v[3:] for k,v in vars(costs).items()}).plot(1)
    assert {o.get_marker() for o in left.lines}=={'o'} # one visit makes no line
