"""The same training by other libraries: their leanest way, and their default one with validation, metric and bar

Each is imported when its turn comes; a library that is not installed, fails, or skips work is told and left out. All
train on the same batches in the same order, by the same optimizer, and end with the weights of the loop by hand.
"""
import logging,os,sys,tempfile,warnings
from contextlib import contextmanager,redirect_stderr,redirect_stdout
from functools import partial
from torch.utils.data import SequentialSampler,default_collate
from .shared import *

def in_order(n, shape, bs=64, **kwargs):
    "A loader that does not shuffle, since libraries draw random numbers of their own; a lap begins with each pass"
    xs,ys = zip(*batches(n, shape, bs))
    data = TensorDataset(torch.cat(xs), torch.cat(ys))
    return DataLoader(data, batch_sampler=MarkedSampler(SequentialSampler(data), bs, False), **kwargs)

def correct(pred, y): return (pred.argmax(-1)==y).float().mean()

# Each: (model, training loader, validation loader or None, epochs). With a validation it is the default way
def learner_(m, train, valid, n): ours(m, train, valid, n, **defaults if valid else lean)

def fastai(m, train, valid, n):
    from fastai.learner import Learner,OptimWrapper
    from fastai.data.core import DataLoaders
    from fastai.callback.core import TrainEvalCallback
    from fastai.callback.progress import ProgressCallback
    kwargs = dict(cbs=ProgressCallback, metrics=correct) if valid else dict(default_cbs=False, cbs=TrainEvalCallback())
    dls = DataLoaders(train, valid or [], device='cpu')
    opt = partial(OptimWrapper, opt=torch.optim.SGD, momentum=.9)
    Learner(dls, m, loss_func, opt_func=opt, lr=.01, **kwargs).fit(n)

def lightning(m, train, valid, n):
    import lightning as L
    class Module(L.LightningModule):
        def __init__(self): super().__init__(); self.m = m
        def configure_optimizers(self): return opt_func(self.m.parameters())
        def training_step(self, batch, i): return loss_func(self.m(batch[0]), batch[1])
        def validation_step(self, batch, i):
            pred = self.m(batch[0])
            self.log_dict(dict(valid_loss=loss_func(pred, batch[1]), accuracy=correct(pred, batch[1])), prog_bar=True)
    kwargs = dict(num_sanity_val_steps=0) if valid else dict(barebones=True)
    L.Trainer(max_epochs=n, accelerator='cpu', default_root_dir=os.getcwd(), **kwargs).fit(Module(), train, valid)

def ignite(m, train, valid, n):
    from ignite.contrib.handlers import ProgressBar
    from ignite.engine import Engine,Events,create_supervised_evaluator,create_supervised_trainer
    from ignite.metrics import Accuracy,Loss
    opt = opt_func(m.parameters())
    if valid is None:
        step = plain_step(m, opt, 0)
        m.train()
        Engine(lambda engine, b: step(0, *b)).run(train, max_epochs=n)
        return
    trainer = create_supervised_trainer(m, opt, loss_func)
    evaluator = create_supervised_evaluator(m, dict(loss=Loss(loss_func), accuracy=Accuracy()))
    ProgressBar().attach(trainer, output_transform=lambda o: dict(loss=o))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(valid))
    trainer.run(train, max_epochs=n)

def pytorch_accelerated(m, train, valid, n):
    from pytorch_accelerated import Trainer
    from pytorch_accelerated.trainer import DEFAULT_CALLBACKS
    class Ours(Trainer):
        def create_train_dataloader(self, *args, **kwargs): return train
        def create_eval_dataloader(self, *args, **kwargs): return valid
    trainer = Ours(m, loss_func, opt_func(m.parameters()), callbacks=DEFAULT_CALLBACKS if valid else ())
    trainer.train(train.dataset, n, valid and valid.dataset, per_device_batch_size=64)

def accelerate(m, train, valid, n):
    from accelerate import Accelerator
    acc = Accelerator(cpu=True)
    m,opt,dl = acc.prepare(m, opt_func(m.parameters()), train)
    for _ in range(n):
        m.train()
        for xb,yb in dl:
            acc.backward(loss_func(m(xb), yb))
            opt.step()
            opt.zero_grad()
        if valid: validate_by_hand(m, valid)

def skorch(m, train, valid, n):
    from skorch import NeuralNet
    from skorch.callbacks import ProgressBar
    from skorch.helper import predefined_split
    class Net(NeuralNet):
        def get_iterator(self, dataset, training=False): return train if training else valid
    kwargs = dict(train_split=predefined_split(valid.dataset), callbacks=[ProgressBar()]) if valid else dict(
        train_split=None, callbacks='disable', verbose=0)
    net = Net(m, loss_func, optimizer=torch.optim.SGD, optimizer__momentum=.9, lr=.01, max_epochs=n, **kwargs)
    net.fit(train.dataset)

def transformers(m, train, valid, n):
    from transformers import Trainer,TrainingArguments
    class Ours(Trainer):
        def get_train_dataloader(self): return named(train)
        def get_eval_dataloader(self, dataset=None): return named(valid)
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            pred = model(inputs['x'])
            loss = loss_func(pred, inputs['labels'])
            return (loss,dict(logits=pred)) if return_outputs else loss
    def named(dl):
        return DataLoader(dl.dataset, batch_sampler=dl.batch_sampler,
            collate_fn=lambda b: dict(zip(('x','labels'), default_collate(b))))
    def scores(o): return dict(accuracy=float((o.predictions.argmax(-1)==o.label_ids).mean()))
    kwargs = dict(eval_strategy='epoch') if valid else dict(disable_tqdm=True, logging_strategy='no')
    args = TrainingArguments(os.getcwd(), num_train_epochs=n, use_cpu=True, save_strategy='no', report_to=[],
        max_grad_norm=0, label_names=['labels'], **kwargs)
    opt = opt_func(m.parameters())
    constant = torch.optim.lr_scheduler.LambdaLR(opt, lambda _: 1.)
    Ours(m, args, train_dataset=train.dataset, eval_dataset=valid and valid.dataset, optimizers=(opt, constant),
        compute_metrics=scores if valid else None).train()

contenders = dict(learner=learner_, fastai=fastai, lightning=lightning, ignite=ignite, accelerate=accelerate,
    skorch=skorch, transformers=transformers) | {'pytorch-accelerated': pytorch_accelerated}

@contextmanager
def quiet():
    "Bars are drawn into the void; files go to a temporary folder"
    here = os.getcwd()
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings(), redirect_stdout(Terminal()), \
                redirect_stderr(Terminal()):
            warnings.simplefilter('ignore')
            os.chdir(tmp)
            try: yield
            finally: os.chdir(here)
    finally: logging.disable(logging.NOTSET)

def contender(f, name, train, valid):
    def run(n):
        m = seeded(name)
        with quiet(): f(m, train, valid, n)
        return outcome(m)
    return run

def usable(name, n_epoch, by_hand, runs):
    "Those that run and do the whole work; the others are told"
    res,ref = {},by_hand(n_epoch)
    for k,run in runs.items():
        try: laps.begin(); check_same(name, {'by hand':ref, k:run(n_epoch)}, 1e-4); laps.median(n_epoch-1)
        except Exception as e: print(f'{k} is left out: {type(e).__name__}: {str(e)[:200]}', file=sys.stderr)
        else: res[k] = run
    return res

def whole_epochs(name, repeats):
    "Epochs of 100 batches, and by default a validation of 10"
    for how,n_valid in dict(leanest=0, default=10).items():
        train,valid = (in_order(n, models[name][1]) for n in (100, 10))
        valid = DataLoader(valid.dataset, 64) if n_valid else None # its passes are no laps
        def hand(n): return by_hand(seeded(name), train, valid, n)[:-1] + [torch.tensor(())]
        runs = usable(name, 3, hand, {k:contender(f, name, train, valid) for k,f in contenders.items()})
        s = interleaved(name, {'by hand':hand} | runs, max(repeats//2, 3), 2, atol=1e-4)
        for k in runs: yield times(f'{how}: {name}', k, {'by hand':s['by hand'], k:s[k]}, 100)

def tiny(repeats): yield from whole_epochs('tiny', repeats)
def mlp(repeats): yield from whole_epochs('MLP 784-256-10', repeats)
def digits(repeats): yield from whole_epochs('digits network', repeats)
def small_tensors(repeats): yield from whole_epochs('200 small tensors', repeats)

groups = tiny,mlp,digits,small_tensors
libraries = 'fastai','lightning','pytorch-ignite','pytorch-accelerated','accelerate','skorch','transformers'
