"""Slips in a notebook: parts that are replaced or switched off at the wrong moment are named, and the Learner is usable
afterwards"""
import copy,dis,re
from contextlib import suppress
import pytest,torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from learner.all import *
from small_fits import Y,cut,mk,net,same,weights

# Gradients that are switched off
@pytest.mark.parametrize('off', [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize('train', [lambda o: o.fit(1), lambda o: o.lr_find(num_it=8, show_plot=False)])
def test_training_without_gradients_is_refused_at_once(off, train):
    learn = mk()
    with off(), pytest.raises(RuntimeError, match='Gradients are switched off here, by `torch.no_grad'): train(learn)
    train(learn)

def test_a_model_that_was_made_for_inference_is_named():
    with torch.inference_mode(): model = net()
    with pytest.raises(ValueError, match='`model` was made or loaded within'): mk(model=model).fit(1)

# Models and optimizers that are replaced
def other():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2))

def test_lr_find_refuses_a_model_that_the_optimizer_does_not_have():
    learn = mk().fit(1)
    learn.model = other()
    with pytest.raises(ValueError, match='`model` has parameters that `opt` does not know'): learn.lr_find()
    learn.model = nn.Linear
    with pytest.raises(TypeError, match='`model` is an `nn.Module`'): learn.lr_find()

@pytest.mark.parametrize('ev', ['before_fit', 'before_epoch', 'after_epoch'])
def test_a_model_that_is_replaced_in_a_fit_needs_an_optimizer(ev):
    def replace(self):
        if ev=='before_fit' or self.epoch==1: self.learn.model = new
    new,learn = other(),mk()
    with pytest.raises(ValueError, match=r'opt` does not know.*calls `learn.create_opt\(\)` then'):
        learn.fit(3, cbs=Callback(**{ev: replace}))
    assert learn.fit(1, reset_opt=True).model is new

def test_a_model_that_is_replaced_with_its_optimizer_is_trained():
    def replace(self):
        if self.epoch==1: self.learn.model = other(); self.learn.create_opt()
    learn = mk()
    learn.fit(2, cbs=Callback(before_epoch=replace))
    by_hand = mk(model=other()).fit(1)
    assert same(weights(learn.model), weights(by_hand.model))

def test_an_optimizer_that_is_replaced_by_one_of_another_kind_ends_no_fit():
    def replace(self): self.learn.opt = torch.optim.Adam(self.model.parameters(), lr=.03, eps=1e-3)
    learn = mk()
    learn.fit(1, cbs=Callback(before_fit=replace))
    assert not same(weights(learn.model), weights(net())) and get_hyper(learn.opt, 'eps')==[1e-3]
    assert isinstance(learn.fit(1).opt, torch.optim.Adam)

# Copies
def test_a_shallow_copy_would_take_the_callbacks():
    learn = mk()
    with pytest.raises(TypeError, match='write `copy.deepcopy'): copy.copy(learn)
    assert all(o.learn is learn for o in learn.fit(1).cbs)

# One input
x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
sources = dict(dataset=lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:,0].long()), 8),
    batches=lambda: [(x[:8], x[:8,0].long())])
@pytest.mark.parametrize('source', sources)
def test_predict_refuses_a_batch(source):
    learn = Learner(DataLoaders(sources[source](), device='cpu'), nn.Linear(4, 3), nn.CrossEntropyLoss())
    for many in x[:5], x[:1], x[0].numpy()[None]:
        with pytest.raises(ValueError, match=r'`item` is one input, as in `dls` of shape \(4,\), but got'):
            learn.predict(many)
    one,(all_,_) = learn.predict(x[:5][0]),learn.get_preds(dl=[(x[:5],)]) # as the error says
    torch.testing.assert_close(one[2], all_[0])

class Words(torch.utils.data.Dataset):
    "Sentences of 3 to 5 words, as a tokenizer gives them"
    def __len__(self): return 8
    def __getitem__(self, i): return dict(ids=[1+i]*(3+i%3), mask=[1]*(3+i%3), labels=i%2)
def padded(rows):
    n = max(len(o['ids']) for o in rows)
    fields = {k:torch.tensor([o[k]+[0]*(n-len(o[k])) for o in rows]) for k in ('ids','mask')}
    return fields | dict(labels=torch.tensor([o['labels'] for o in rows]))
class OfWords(nn.Module):
    def __init__(self): super().__init__(); self.emb,self.head = nn.Embedding(10, 4),nn.Linear(4, 2)
    def forward(self, ids, mask):
        n,_ = ids.size()
        return self.head((self.emb(ids)*mask[..., None]).sum(1)/mask.sum(1, keepdim=True)).view(n, 2)

def test_predict_says_what_to_do_with_what_a_tokenizer_returns():
    dl = torch.utils.data.DataLoader(Words(), 4, collate_fn=padded)
    learn = Learner(DataLoaders(dl, device='cpu'), OfWords(), nn.CrossEntropyLoss())
    for lists in dict(ids=[1,2], mask=[1,1]),Words()[1]:
        with pytest.raises(ValueError, match=r"`item\['ids'\]` is a list, and a tensor in a batch of `dls`"):
            learn.predict(lists)
    item = dict(ids=torch.tensor([[1,2]]), mask=torch.tensor([[1,1]])) # the texts of `dls` have other lengths
    with pytest.raises(ValueError, match=r"`item\['ids'\]` is one input.*\(1, 2\), like a batch: .*v\[0\] for k,v in"):
        learn.predict(item)
    one = learn.predict({k:v[0] for k,v in item.items()})[2] # as the errors say
    torch.testing.assert_close(one, learn.get_preds(dl=[item])[0][0])
    assert learn.get_preds(dl=[padded([Words()[1]])])[0].shape==(1,2)

def test_predict_asks_no_loader_that_has_to_be_iterated():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self): raise RuntimeError('asked')
    learn = Learner(DataLoaders(torch.utils.data.DataLoader(Stream(), 2), device='cpu'),
        nn.Linear(4, 3), F.cross_entropy)
    assert learn.predict(x[0])[2].shape==(3,)

def test_predict_draws_no_sample_for_the_run():
    class Counts(torch.utils.data.Dataset):
        n = 0
        def __len__(self): return 8
        def __getitem__(self, i): self.n += 1; return x[i]+torch.rand(4),i%3
    ds = Counts()
    learn = Learner(DataLoaders(torch.utils.data.DataLoader(ds, 4), device='cpu'),
        nn.Linear(4, 3), F.cross_entropy)
    state = torch.get_rng_state()
    learn.predict(x[0])
    assert ds.n==0 and torch.equal(state, torch.get_rng_state())

# Callbacks that would do nothing, or something else
def test_a_handler_that_would_not_run_is_refused_when_it_is_written():
    def waits(self): yield 1
    async def comes(self): pass
    for f,why in ((waits, 'yield'), (comes, 'async')):
        for make in (lambda: type('Mine', (Callback,), dict(after_batch=f)), lambda: Callback(after_batch=f),
                lambda: on('after_batch')(f)):
            with pytest.raises(TypeError, match=f'would never run, because of its `{why}`'): make()
    with pytest.raises(TypeError, match='`Mine.before_fit` runs at the event, so it is a method .*got True'):
        type('Mine', (Callback,), dict(before_fit=True))

def test_a_base_class_may_have_annotations():
    "To look at a class adds attributes to it: Python makes `__annotations__` when they are read"
    class Counts(Callback):
        n:int = 0
        def before_batch(self): self.n += 1
    class CountsTwice(Counts):
        limit,by = 9,2 # one of them is not read
        def before_batch(self): self.n += self.by
        def after_epoch(self): self.most = self.n
    mk(cb := CountsTwice()).fit(1)
    assert cb.most>0 and '__annotations__' not in vars(CountsTwice)

def test_none_switches_an_inherited_handler_off():
    class Fails(Callback):
        def before_batch(self): raise ZeroDivisionError
    class Silent(Fails): before_batch = None
    mk(Silent).fit(1)

def test_an_order_is_a_number():
    class First(Callback): order = 'first'
    with pytest.raises(TypeError, match="`First.order` is a number, lowest first, but got 'first'"): mk(First)
    class Last(Callback): order = float('inf')
    mk(Last)

def test_a_flag_is_whatever_is_true_or_false():
    "A property may ask the Learner"
    class Later(Callback):
        def __init__(self): self.seen = []
        @property
        def run_valid(self): return self.learn.epoch>0
        def before_batch(self): self.seen.append((self.epoch, self.training))
    learn = mk(later := Later(), valid=cut(30)).fit(2)
    assert {*later.seen}=={(0, True), (1, True), (1, False)}
    class Off(Callback):
        run = None
        def before_batch(self): raise ZeroDivisionError
    class TwoOfThree(Callback):
        def __init__(self): self.seen = []
        def before_epoch(self): self.run_train = self.learn.epoch%3
        def before_batch(self): self.seen.append(self.epoch)
    learn.fit(4, cbs=[Off, cb := TwoOfThree()])
    assert {*cb.seen}-{0,3}=={1,2}
    for v in ('no', lambda: True):
        with pytest.raises(TypeError, match='`Later.run_train` is True or False, but got'): later.run_train = v

class Plain:
    def after_batch(self): pass
@pytest.mark.parametrize('cb,hint', [
    (lambda o: torch.optim.lr_scheduler.StepLR(o, 1), '`TorchScheduler` makes one of a `StepLR`'),
    (lambda o: Plain(), r'Write `class Plain\(Callback\)`'), (lambda o: Plain, r'Write `class Plain\(Callback\)`'),
    (lambda o: print, 'Did you mean `@on'),
    (lambda o: 3, 'but got 3. Give numbers by name')])
def test_what_is_no_callback_is_told_how_to_become_one(cb, hint):
    learn = mk()
    with pytest.raises(TypeError, match=hint): learn.fit(1, cbs=cb(learn.create_opt()))

def test_an_addition_in_place_is_not_called_unchanged():
    class Adds(Callback):
        def before_batch(self): self.x += 1
    class Sets(Callback):
        def before_batch(self): self.x = self.x+1
    for cb,text in ((Adds, 'and stays this one in later batches'), (Sets, 'which is unchanged')):
        with pytest.warns(UserWarning, match=f"`{cb.__name__}.x` now hides the Learner's `x`, {text}"): mk(cb).fit(1)

@pytest.mark.parametrize('cbs', [(MixUp, CutMix), (GradientAccumulation(20), GradientAccumulation(40))])
def test_what_is_refused_together_is_not_told_an_order(cbs, recwarn):
    with pytest.raises(ValueError, match='use one of them'): mk(*cbs).fit(1)
    assert not [o for o in recwarn if o.category is Mistake]

def test_callbacks_of_the_library_get_their_order_on_the_learner():
    class Scales(Callback):
        order = GradientClip.order
        def before_step(self): torch._foreach_mul_([p.grad for p in self.model.parameters()], 2.)
    with pytest.warns(Mistake, match='If `gradient_clip` comes second, write `learn.gradient_clip.order = 12`'):
        mk(Scales, GradientClip(.1)).fit(1)

@pytest.mark.parametrize('ev,told', [('before_batch', True), ('before_fit', True), ('after_fit', False)])
def test_a_learning_rate_of_the_next_fit_is_not_that_of_this_one(ev, told, recwarn):
    class Sets(Callback): pass
    def f(self): self.learn.lr = .01
    setattr(Sets, ev, f)
    learn = mk(Sets)
    assert {*learn.fit(1).recorder.lrs}=={.1} and learn.lr==.01
    said = [str(o.message) for o in recwarn if o.category is Mistake]
    assert len(said)==told and all("in this one, write `self.learn.set_hyper('lr', …)`" in o for o in said)

def test_a_value_that_a_handler_returns_is_told(recwarn):
    class Doubles(Callback):
        def after_pred(self): return self.pred*2
    class Early(Callback):
        def after_pred(self):
            if self.iter: return
            with torch.no_grad(): return
        def after_batch(self): return print('', end='')
    @on('after_pred')
    def halves(learn):
        res = learn.pred/2
        return res
    learn = mk(Doubles, Early, halves, Callback(after_batch=lambda self: self.iter))
    said = [o.partition(' a value')[0] for o in told(learn, recwarn)]
    assert said==["`Doubles.after_pred` returns", "`halves` returns"]

def test_a_number_that_a_handler_returns_is_not_told_on_any_python(recwarn, monkeypatch):
    def of_314(code): # it has an operation of its own for small numbers
        ops = dis.get_instructions(code)
        return [o._replace(opname='LOAD_SMALL_INT') if o.opname=='LOAD_CONST' else o for o in ops]
    @on(event.after_pred)
    def done(learn): return 1
    monkeypatch.setattr('learner.diagnose.names.get_instructions', of_314)
    mk(done).fit(1)
    assert not recwarn

# Recorders
def test_the_recorder_of_one_fit_leaves_its_history():
    learn = mk(valid=cut(10), metrics=accuracy).fit(1)
    mine,before = learn.recorder,learn.recorder.rows
    learn.fit(2, cbs=Recorder(train_metrics=True))
    assert learn.recorder is mine and len(mine.rows)==2 and 'train_accuracy' in mine.metric_names
    assert len(mine.losses)==12 and learn.final_record['train_accuracy']==mine.rows[-1].train_accuracy
    learn.fit(1)
    assert len(mine.rows)==len(before)==1 and 'train_accuracy' not in mine.metric_names

def test_a_recorder_that_has_recorded_nothing_leaves_what_there_was():
    learn = mk().fit(1)
    with pytest.raises(ZeroDivisionError): learn.fit(1, cbs=[Recorder(), Callback(before_fit=lambda self: 1/0)])
    assert len(learn.recorder.rows)==1

# Fits that resume, and files
def test_a_fit_that_would_have_ended_before_where_its_run_was_stopped_is_refused(tmp_path):
    def stop(self):
        if self.train_iter==9 and self.training: raise KeyboardInterrupt
    cbs = lambda: Checkpoint(2, 'iter', folder=tmp_path)
    with pytest.raises(KeyboardInterrupt): mk().fit(3, cbs=[cbs(), Callback(after_batch=stop)])
    for bound,match in ((dict(n_epoch=1), '`n_epoch=1` would end it before: give 2 or more'),
            (dict(n_iter=3), '`n_iter=3` would end it before: give 8 or more')):
        learn = mk()
        with pytest.raises(ValueError, match=match): learn.fit(**bound, resume=True, cbs=cbs())
    assert len(mk().fit(3, resume=True, cbs=cbs()).recorder.rows)==3

def test_files_of_every_epoch_have_the_weights_that_were_measured(tmp_path):
    learn = mk(EMA(.5), SaveModelCallback(fname='net', every_epoch=True), valid=[(x[:,:3], x[:,0].long().clamp(0, 1))],
        path=tmp_path).fit(3)
    for i,v in enumerate(learn.recorder['valid_loss']): assert learn.load(f'net_{i}').validate().valid_loss==v

# Loaders
ys = x[:,0].gt(0).long()
def subsets(train, valid, bs=4, **kwargs):
    ds = torch.utils.data.TensorDataset(x[:,:3], ys)
    train,valid = (ds if o is None else torch.utils.data.Subset(ds, o) for o in (train,valid))
    return DataLoaders(torch.utils.data.DataLoader(train, bs), torch.utils.data.DataLoader(valid, bs, **kwargs),
        device='cpu')
def by_sampler(train, valid):
    ds = torch.utils.data.TensorDataset(x[:,:3], ys)
    return DataLoaders(*(torch.utils.data.DataLoader(ds, 4, sampler=torch.utils.data.SubsetRandomSampler(o))
        for o in (train,valid)), device='cpu')
def nested(train, valid):
    dls = subsets([*range(1, 24)], [*range(1, 24)])
    ds = dls.train_ds.dataset
    inner = torch.utils.data.Subset(ds, [*range(23, -1, -1)]) # sample `i` of it is the dataset's `23-i`
    train = torch.utils.data.Subset(inner, [23-o for o in train])
    return DataLoaders(torch.utils.data.DataLoader(train, 4),
        torch.utils.data.DataLoader(torch.utils.data.Subset(ds, valid), 4), device='cpu')

def told(learn, recwarn):
    learn.fit(1)
    return [str(o.message) for o in recwarn if o.category is Mistake]

@pytest.mark.parametrize('make', [subsets, by_sampler, nested])
def test_samples_in_training_and_validation_are_counted(make, recwarn):
    text, = told(mk(data=make([*range(16)], [*range(12, 24)])), recwarn)
    assert text.startswith("4 samples of `dls['valid']` are trained on, too") and 'random_split' in text

@pytest.mark.parametrize('make', [subsets, by_sampler, nested])
def test_a_split_is_fine(make, recwarn):
    assert not told(mk(data=make([*range(16)], [*range(16, 24)])), recwarn)

def test_a_part_of_what_is_trained_on_is_no_validation(recwarn):
    text, = told(mk(data=subsets(None, [1,5,7])), recwarn)
    assert text.startswith('3 samples')

def test_a_whole_dataset_may_be_both(recwarn): assert not told(mk(data=subsets(None, None)), recwarn)

def test_an_incomplete_batch_belongs_to_a_validation(recwarn):
    text, = told(mk(data=subsets([*range(14)], [*range(14, 24)], drop_last=True)), recwarn)
    assert text.startswith("`drop_last=True` leaves 2 of 10 samples of `dls['valid']` out of its results")

@pytest.mark.parametrize('name', ['train', 'valid', 'bs'])
def test_loaders_are_replaced_together(name):
    learn = mk()
    with pytest.raises(AttributeError, match=rf'`dls.{name}` cannot be set: .*`learn.dls = DataLoaders'):
        setattr(learn.dls, name, [])
    learn.dls.vocab = ['a','b'] # what is one's own can be
    class Mine(DataLoaders):
        def __init__(self, dl, bs): self.bs = bs; super().__init__(dl, device='cpu')
    assert Mine([1], 4).bs==4

def test_a_function_that_yields_batches_is_no_loader():
    def batches(): yield x[:,:3],ys
    with pytest.raises(TypeError, match='but got the function `batches`: .* write a class whose `__iter__` does'):
        DataLoaders(batches, device='cpu')

def test_a_loader_that_does_not_start_anew_is_named():
    class Once:
        def __init__(self): self.it = iter([(x[:,:3], ys)]*2)
        def __iter__(self): return self.it
    with pytest.raises(ValueError, match='It gave some before: its `__iter__` has to start anew'):
        mk(data=DataLoaders(Once(), device='cpu')).fit(2)

# What is set on a Learner
def test_a_setting_that_is_changed_after_smoke_is_that_of_the_first_fit():
    learn = mk()
    learn.smoke()
    learn.opt_func = torch.optim.Adam
    assert learn.opt is None and type(learn.fit(1).opt) is torch.optim.Adam

@pytest.mark.parametrize('name,v', [('opt_func', torch.optim.Adam), ('splitter', lambda m: [list(m.parameters())]),
    ('wd_bn_bias', True)])
def test_another_optimizer_is_asked_for(name, v):
    learn = mk().fit(1)
    setattr(learn, name, v)
    for train in learn.fit,learn.lr_find:
        with pytest.raises(ValueError, match=rf'`learn.{name}` changed after the optimizer was made'): train(1)
    assert learn.fit(1, reset_opt=True).opt_as_made.args[name] is v
    copy.deepcopy(learn).fit(1)

def test_an_optimizer_that_is_assigned_after_the_change_is_used():
    learn = mk().fit(1)
    learn.opt_func = torch.optim.Adam
    learn.opt = torch.optim.SGD(learn.model.parameters(), learn.lr)
    assert type(learn.fit(1).opt) is torch.optim.SGD
    learn.opt = torch.optim.SGD(learn.model.parameters(), learn.lr)
    learn.opt_func = torch.optim.AdamW
    for o in learn,copy.deepcopy(learn):
        with pytest.raises(ValueError, match='`learn.opt_func` changed after the optimizer was made'): o.fit(1)

@pytest.mark.parametrize('name,right', [('callbacks', 'cbs'), ('loss_fn', 'loss_func'), ('opt_fun', 'opt_func'),
    ('metric', 'metrics'), ('n_epochs', 'n_epoch'), ('optimizer', 'opt')])
def test_an_attribute_that_nothing_reads_is_told(name, right, recwarn):
    learn = mk()
    setattr(learn, name, 1)
    text, = told(learn, recwarn)
    assert text.startswith(f"`learn.{name}` was set, and nothing reads it. Did you mean `learn.{right}`?")

def test_attributes_of_ones_own_are_fine(recwarn):
    class Reads(Callback):
        def after_batch(self): self.learn.metric += 1
    learn = mk(Reads)
    learn.metric,learn.notes,learn._opt = 0,'mine',1
    assert not told(learn, recwarn) and learn.metric==6

@pytest.mark.parametrize('use,match', [(lambda o: o.to('cpu'), r'`learn.dls.to\(…\)`'),
    (lambda o: o.eval(), r'Write `learn.model.eval\(\)`'),
    (lambda o: o(x), r'To call the model, write `learn.model\(…\)`'),
    (lambda o: Learner(o.dls, o.model, opt_func='adam'), 'Did you mean `torch.optim.Adam`'),
    (lambda o: o.fit(1, cbs='EMA'), 'Write the class itself: `EMA`, without quotes')])
def test_other_habits_are_answered(use, match):
    with pytest.raises((AttributeError,TypeError), match=match) as e: use(mk())
    assert len(str(e.value))<300

def test_the_device_is_that_of_the_loaders():
    learn = mk()
    learn.device = 'meta'
    assert learn.dls.device.type=='meta'

# Names of columns, and metrics of other targets
@pytest.mark.parametrize('monitor,right', [('valid_loss', 'a/loss'), ('accuracy', 'a/accuracy'), (None, 'a/loss')])
def test_a_column_of_a_loader_with_a_name_is_proposed(monitor, right):
    learn = mk(data=DataLoaders(cut(10), dict(a=cut(10), b=cut(10)), device='cpu'), metrics=accuracy)
    with pytest.raises(ValueError, match=f"Write `monitor='{right}'`, for one of the loaders") as e:
        learn.fit(1, cbs=EarlyStoppingCallback(monitor))
    assert 'no validation loader' not in str(e.value)

many = F.one_hot(Y, 2).float()
@pytest.mark.parametrize('loss,y,metric,hint', [
    (nn.BCEWithLogitsLoss(), many, accuracy, r'called `…_multi` and `…Multi`'),
    (nn.BCEWithLogitsLoss(), many, F1Score(), r'called `…_multi` and `…Multi`'),
    (F.cross_entropy, Y, accuracy_multi, 'Targets are one class each, and `accuracy_multi` is for several')])
def test_metrics_of_one_class_and_of_several_are_told_apart(loss, y, metric, hint):
    with pytest.raises(ValueError) as e: mk(data=cut(10, y), loss_func=loss, metrics=metric, valid=cut(10, y)).fit(1)
    assert any(re.search(hint, o) for o in e.value.__notes__)

class Two(nn.Module):
    "A model of two inputs"
    def __init__(self): super().__init__(); self.l = nn.Linear(2, 2)
    def forward(self, a, b): return self.l(b) + a[:,None]

@pytest.mark.parametrize('n', [1, 3])
def test_an_item_has_as_many_inputs_as_a_sample(n):
    data = TensorDataset(torch.rand(8), torch.rand(8, 2), torch.zeros(8, dtype=torch.long))
    learn = Learner(DataLoaders.from_dsets(data, data, bs=4, device='cpu'), Two(), nn.CrossEntropyLoss())
    sample = data[0]
    assert learn.predict(sample[:2])[0] in (0, 1)
    with pytest.raises(ValueError, match=rf'2 inputs, but `item` has {n}: write `learn.predict\(\(x1, x2\)\)`'):
        learn.predict(sample[:n])

def test_an_interpretation_is_of_the_validation_data_if_nothing_else_is_said():
    learn = synth_learner()
    assert torch.equal(Interpretation(learn).preds, Interpretation.from_learner(learn).preds)

class Tries(Callback):
    def after_batch(self):
        try: self.learn.train_itre
        except (KeyError,AttributeError): pass
class Asks(Callback):
    def after_batch(self):
        if hasattr(self.learn, 'train_itre'): self.learn.train_itre
class Suppresses(Callback):
    def after_batch(self):
        with suppress(KeyError, AttributeError): self.learn.train_itre
class TriesOther(Callback):
    def after_batch(self):
        try: self.learn.train_itre
        except ValueError: pass

@pytest.mark.parametrize('cb,told', [(Tries, 0), (Asks, 0), (Suppresses, 0), (TriesOther, 1)])
def test_a_name_that_may_be_missing_is_not_misspelt(cb, told, recwarn):
    try: synth_learner().fit(1, cbs=cb)
    except AttributeError: assert told
    assert sum('Did you mean `train_iter`? (To' in str(o.message) for o in recwarn)==told
