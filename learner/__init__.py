"""Trains PyTorch models: callbacks can change any step, runs stop and resume exactly, typos fail early

`learner` trains PyTorch models, from a notebook or a script. It takes any `nn.Module`, any iterable of batches and any `torch.optim` optimizer, and runs the training loop. Callbacks read and change what it does.

Everything comes from one import, `from learner.all import *`.

Modules:

- `learner.compare.card_page`: A run card as one page of HTML, which needs nothing but itself
- `learner.compare.comparison`: Whether a difference between two groups of runs is real, or within the noise of their random numbers
- `learner.compare.diff`: At which training batch two runs part, and why: `diff(run_a, run_b)`
- `learner.compare.fingerprint`: A few numbers for each training batch, by which two runs can be compared
- `learner.compare.operations`: The first operation that differs between two runs, and those that do not repeat in one
- `learner.compare.run_card`: A run as one file: settings, lineage, curves, fingerprint, and the code that took part
- `learner.compare.seeds`: The same training several times, where only the random numbers of one kind are others
- `learner.core.callback`: Callbacks see and change anything in training, in ten lines of your own
- `learner.core.dispatch`: Events reach the callbacks that listen, in order; callbacks are added and removed at any time
- `learner.core.events`: Every moment of training that a callback can act on, and the exceptions that end a part of it early
- `learner.core.scopes`: A scope is a piece of the loop with its events: how it begins, ends, is cancelled and is cleaned up
- `learner.data.batches`: Batches of any structure: moved to a device, read, cut along their samples, and joined again
- `learner.data.draws`: One pass over a loader, which can be resumed in the middle
- `learner.data.generators`: Evaluation draws random numbers, and training does not notice
- `learner.data.loader_state`: Where a pass over a loader is, as plain values, and what has changed in the loader since
- `learner.data.loaders`: Any iterables of batches side by side, and how a batch is split into inputs and targets
- `learner.data.sampling`: Rare samples drawn more often, small epochs from large datasets, an order of your own, and that of the dataset
- `learner.diagnose.code`: What the code of a callback reads and writes, before it is run
- `learner.diagnose.first_batches`: What only batches can tell: a parameter without a gradient, a loss that stays the same, dropout in validation
- `learner.diagnose.ledger`: What each training sample cost over time, how often it was forgotten, and in which batches it came
- `learner.diagnose.mistakes`: What is wrong although nothing fails is told once, with what to write
- `learner.diagnose.names`: Misspelt names and wrong moments in the code of callbacks, found before training
- `learner.diagnose.order`: Two callbacks that change the same value, where nothing says which of them comes first, or where the second undoes the first
- `learner.diagnose.trace`: Who runs when, for how long, what it reads and writes, and why in this order
- `learner.dist.agreement`: What one of several processes does, all do: cancels, stops, errors
- `learner.dist.launch`: Train in several processes from a notebook: `learn.fit(5, procs=2)`
- `learner.dist.processes`: Rank and number of processes, and all communication between them
- `learner.dist.sharding`: Each process holds a part of weights, gradients and optimizer state while batches run: FSDP2
- `learner.dist.shares`: Each process loads its part of every batch, and what metrics gather from these parts is merged
- `learner.inspect.activations`: Mean, standard deviation and histograms of what each layer returns during training
- `learner.inspect.boards`: Curves, figures and predictions of a fit on a board
- `learner.inspect.hooks`: Reading the outputs and gradients of a model's layers while it runs
- `learner.inspect.loggers`: Settings, results and losses of a fit in files; and the base class of every logger
- `learner.inspect.memory`: What a batch will need before it is run: parameters, gradients, optimizer state and activations, layer by layer
- `learner.inspect.profile`: Where the time of a fit goes, by phase, callback and event, and what makes the device wait
- `learner.inspect.summary`: The layers of a model, the shapes they return, and which of their parameters are trained
- `learner.loop.learner`: Data, model, loss and optimizer in one object that trains, validates and resumes
- `learner.loop.position`: Where a run is: everything that is needed to resume it, except weights and the optimizer's state
- `learner.measure.metrics`: Averages over samples, kept on the device until they are read
- `learner.model.groups`: Splitters, per-group values and freezing
- `learner.model.hypers`: One name for each hyper-parameter, one value per group, for any `torch.optim` optimizer as it is
- `learner.model.mapping`: Rename the fields of batches, choose the arguments of the model, change predictions, call another method than `forward`
- `learner.model.optimizer`: Any `torch.optim` optimizer as it is: made for parameter groups, with fastai's defaults, or several as one
- `learner.model.own_losses`: Which loss a model has computed itself, and whether it is one of the next word
- `learner.model.weights`: Weights by name, saved from a model and loaded into it, however it is wrapped
- `learner.record.files`: Written whole or not at all, read without running code
- `learner.record.history`: Rows of named values, and the table they make
- `learner.record.progress`: Bars and a table in a terminal, one display in a notebook, plain lines in a log
- `learner.record.recorder`: Losses of every batch, and a row of results for every epoch
- `learner.restore.attributes`: Attributes of modules and objects that have changed since a run began, named so that a file can hold them
- `learner.restore.contents`: What many objects hold, read into one list and compared at once
- `learner.restore.held`: Everything that can be reached from a model, noted with what it holds and put back
- `learner.restore.loader_counts`: Numbers that datasets, samplers and collate functions keep, noted before an inference and put back after it
- `learner.restore.snapshot`: Values that can be restored: the model around an inference, everything around a trial or a resume
- `learner.restore.tensors`: Tensors and arrays of all kinds: noted with their values, compared by value, and put back
- `learner.result.confusion`: Which classes a classifier confuses; precision, recall and F1 of each class
- `learner.result.export`: A whole learner in one file, to predict with elsewhere
- `learner.result.interpret`: The samples with the highest losses, and everything else about each sample of a loader
- `learner.result.predict`: `predict` answers for a single input; `tta` averages predictions over augmented copies of each sample
- `learner.result.preds`: Predictions, targets and losses of every sample, in the order of the dataset
- `learner.result.saving`: `learn.save` and `learn.load`: weights and optimizer in a file, and back
- `learner.result.show`: Samples with predictions and targets: images under their captions, masks, or a table
- `learner.result.tracker`: Callbacks that monitor a metric: early stopping, saving the best model, a lower learning rate on a plateau
- `learner.resume.checkpoint`: Save the whole run now and then, and resume it in another process
- `learner.resume.rewind`: Hold positions of a run while it trains, go back to any batch of it, and continue from there in two ways
- `learner.resume.saved_run`: All that training is made of, part by part: taken from a learner, and given to another
- `learner.resume.spike_guard`: Go back before a batch that spoils the run, leave it out, and train on
- `learner.resume.state_file`: All that training is made of, in one file, and back: `learn.save_state` and `learn.load_state`
- `learner.schedule.fits`: `fit_one_cycle`, `fit_flat_cos`, `fit_sgdr` and `fine_tune`
- `learner.schedule.limits`: Fewer batches, the same batches again, or less time
- `learner.schedule.lr_find`: Suggests a learning rate after a hundred batches, and restores everything
- `learner.schedule.schedulers`: Callbacks that change hyper-parameters, or freeze parameter groups, in the course of a fit
- `learner.schedule.schedules`: Functions of the position in training, which say what value a hyper-parameter has
- `learner.schedule.trial`: Train a few batches to see whether everything works, then restore everything
- `learner.schedule.validation`: Validation every so many batches, steps or seconds, on other data, and before training
- `learner.speed.compile`: One compiled program in place of many small operations, checked before the fit begins
- `learner.speed.timer`: How long the phases of a batch take, on the CPU and on a GPU that works on its own
- `learner.technique.averaging`: Trained weights jump about a good solution, and their average lies in its middle: EMA and SWA
- `learner.technique.gradients`: Steps that are bounded in length, and steps that use the gradients of several batches
- `learner.technique.mixup`: Training on mixtures of two samples, with any loss
- `learner.technique.optimizers`: Muon for matrices with AdamW for the rest, schedule-free optimizers, and steps that compute the loss again"""

__version__ = "0.0.1"

from .core.tracebacks import full_traceback as full_traceback # `learner.full_traceback(True)`
