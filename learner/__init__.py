"""A training Learner for PyTorch, used from notebooks: two-way callbacks, exact cancels, nothing hidden

Modules:

- `learner.bounds`: When to validate, on what, how much of everything, and for how long
- `learner.callback`: Listeners that see and change anything in training, in ten lines of their own
- `learner.checkpoint`: Never lose a run: everything that training is made of, in a file, and exactly back
- `learner.data`: Any iterables of batches, on the right device, split into inputs and targets; and whose randomness is whose
- `learner.events`: Every moment of training that a callback can act on, and the exceptions that end a part of it early
- `learner.files`: Written whole or not at all, read without running code
- `learner.hooks`: Looking into a model while it runs: activations, gradients, and their statistics
- `learner.interpret`: Where the model is wrong: the samples with the highest losses, the classes that are confused
- `learner.learner`: Data, model, loss and optimizer, and what is done with them
- `learner.loggers`: What a fit writes down, in files and on boards
- `learner.lr_find`: Choosing a learning rate in a hundred steps, without leaving a trace
- `learner.mapping`: When the loader's batches, the model's arguments and the loss's predictions do not meet by themselves
- `learner.metrics`: Averages that respect the size of each batch, kept on the device until somebody wants to see them
- `learner.mixup`: Training on mixtures of two samples, with any loss
- `learner.optimizer`: Parameter groups, hyper-parameters and freezing, for any `torch.optim` optimizer as it is
- `learner.position`: Where training is, and how to get back there
- `learner.preds`: What the model says of every sample, in the order of the data, without filling the memory
- `learner.progress`: Showing what happens while it happens: bars and a table in a terminal, one display in a notebook, plain lines in a log
- `learner.recorder`: Writing down what happened, and its plots
- `learner.saving`: `learn.save`, `learn.load`, and a whole learner in a file
- `learner.schedule`: Hyper-parameters that move while training: functions of its position, and the fits that use them
- `learner.summary`: What a model is made of: its layers, what comes out of them, and which of their parameters are trained
- `learner.timer`: Where the time of training goes
- `learner.tracker`: Keep the best, stop in time: callbacks that watch a number
- `learner.weights`: Tensors by name, into a model and out of it, however it is wrapped"""

__version__ = "0.0.1"
