# Written from the modules by tools/texts.py: run `make lib`
texts = {'AccumMetric.__init__': 'Parameters:\n'
                         '\n'
                         '- `func`: `func(pred, targ)`, or `func(targ, pred)` if `invert_arg`, gets those of a whole '
                         'phase\n'
                         '- `dim_argmax`: Replace predictions by the index of the largest along this axis\n'
                         '- `only_scores`: With `dim_argmax`: only where a target has several scores; a single one '
                         'stays as it is\n'
                         '- `activation`: A function of predictions, such as `torch.sigmoid`\n'
                         '- `thresh`: Predictions above it count as 1, others as 0\n'
                         '- `to_np`: Give `func` numpy arrays\n'
                         "- `invert_arg`: Give `func` targets first; default: only if it is one of scikit-learn's\n"
                         '- `flatten`: Flatten both, if they are of equal size. Unflattened tables keep ignored '
                         'targets\n'
                         '- `name`: Default: that of `func`\n'
                         '- `higher_is_better`: Default: what `func` declares\n'
                         '- `kwargs`: For `func`',
 'AccumMetric.accumulate': 'Take in the batch that `learn` has just done\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                           'those of the batch',
 'AccumMetric.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'ActivationStats.__init__': 'Parameters:\n\n- `with_hist`: Keep histograms too\n- `kwargs`: For `HookCallback`',
 'ActivationStats.color_dim': 'Parameters:\n'
                              '\n'
                              '- `idx`: Position of the layer in `modules`\n'
                              '- `figsize`: Width and height of a new figure, in inches\n'
                              '- `ax`: Where to draw; default: a new figure',
 'ActivationStats.hist': 'Parameters:\n\n- `idx`: Position of the layer in `modules`',
 'ActivationStats.layer_stats': 'Parameters:\n\n- `idx`: Position of the layer in `modules`',
 'ActivationStats.plot_layer_stats': 'Parameters:\n\n- `idx`: Position of the layer in `modules`',
 'Adam': 'Parameters:\n'
         '\n'
         '- `params`: Parameters, or groups of them\n'
         '- `lr`: Learning rate\n'
         "- `mom`: Decay of the average of gradients, torch's `betas[0]`\n"
         '- `sqr_mom`: Decay of the average of squared gradients, `betas[1]`\n'
         '- `eps`: Added to the denominator\n'
         '- `wd`: Weight decay\n'
         '- `decouple_wd`: AdamW, not Adam with an L2 penalty\n'
         '- `fused`: All of a step in one pass over the memory; equal up to rounding',
 'AvgLoss.__init__': 'Parameters:\n'
                     '\n'
                     '- `count`: `count(learn)` returns the number of items that the loss averages; default: as the '
                     'recorder counts',
 'AvgLoss.accumulate': 'Take in the batch that `learn` has just done\n'
                       '\n'
                       'Parameters:\n'
                       '\n'
                       '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are those '
                       'of the batch',
 'AvgLoss.add_loss': 'Parameters:\n'
                     '\n'
                     '- `learn`: The learner after its batch\n'
                     '- `loss`: A value of the loss, as a tensor on the device',
 'AvgMetric.__init__': 'Parameters:\n'
                       '\n'
                       '- `func`: `func(pred, *targs)` returns the average over a batch\n'
                       '- `name`: Default: that of `func`\n'
                       '- `higher_is_better`: Default: what `func` declares',
 'AvgMetric.accumulate': 'Take in the batch that `learn` has just done\n'
                         '\n'
                         'Parameters:\n'
                         '\n'
                         '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                         'those of the batch',
 'AvgMetric.add': 'Parameters:\n'
                  '\n'
                  '- `v`: Average over a batch\n'
                  '- `n`: Number of items in it: a number, or a tensor on the device',
 'AvgMetric.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'AvgMetric.n_averaged': 'Parameters:\n\n- `learn`: The learner after its batch',
 'AvgMetric.says_its_items': 'Parameters:\n\n- `learn`: The learner after its batch',
 'AvgSmoothLoss.__init__': 'Parameters:\n\n- `beta`: Weight of the average so far, in [0,1)',
 'AvgSmoothLoss.accumulate': 'Take in the batch that `learn` has just done\n'
                             '\n'
                             'Parameters:\n'
                             '\n'
                             '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                             'those of the batch',
 'AvgSmoothLoss.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'BCELossFlat.__init__': 'Parameters:\n'
                         '\n'
                         '- `args`: Positional arguments of the torch loss\n'
                         '- `axis`: Where the classes are in the predictions\n'
                         '- `floatify`: Make targets floats\n'
                         '- `kwargs`: For the torch loss, such as `reduction`',
 'BCEWithLogitsLossFlat.__init__': 'Parameters:\n'
                                   '\n'
                                   '- `args`: Positional arguments of the torch loss\n'
                                   '- `axis`: Where the classes are in the predictions\n'
                                   '- `floatify`: Make targets floats\n'
                                   '- `thresh`: A probability above it is a yes\n'
                                   '- `kwargs`: For the torch loss, such as `reduction`',
 'BalancedAccuracy.__init__': 'Parameters:\n'
                              '\n'
                              '- `axis`: Where the classes are in the predictions\n'
                              '- `adjusted`: Rescale it, so that 0 is chance',
 'BaseLoss.__init__': 'Parameters:\n'
                      '\n'
                      '- `loss_cls`: Class of the torch loss, or a function that makes one\n'
                      '- `args`: Positional arguments of `loss_cls`\n'
                      '- `axis`: Where the classes are in the predictions\n'
                      '- `flatten`: Flatten predictions and targets\n'
                      '- `floatify`: Make targets floats\n'
                      '- `is_2d`: Keep the class axis when flattening\n'
                      '- `kwargs`: For `loss_cls`',
 'BoardLogger.figure': 'Parameters:\n\n- `name`: Its name on the board\n- `fig`: A figure of matplotlib',
 'BoardLogger.log_figure': 'Parameters:\n\n- `name`: Its name on the board\n- `fig`: A figure of matplotlib',
 'BoardLogger.log_preds': 'Parameters:\n'
                          '\n'
                          '- `name`: Their name on the board\n'
                          '- `kwargs`: For `learn.show_results`, such as `max_n`, `dl`',
 'BoardLogger.table': 'Parameters:\n'
                      '\n'
                      '- `name`: Its name on the board\n'
                      '- `head`: Name of each column\n'
                      '- `rows`: A list of texts for each row',
 'BrierScore.__init__': 'Parameters:\n\n- `axis`: Where the classes are in the predictions, which are logits',
 'BrierScoreMulti.__init__': 'Parameters:\n\n- `sigmoid`: Apply a sigmoid to the predictions first',
 'CSVLogger.__init__': 'Parameters:\n'
                       '\n'
                       '- `fname`: A name in `learn.path`, or an absolute path\n'
                       '- `append`: Keep the rows of earlier fits',
 'CSVLogger.begins_run': 'Whether another run begins with `line`; unknown in general\n'
                         '\n'
                         'Parameters:\n'
                         '\n'
                         '- `line`: As in `lines()`\n'
                         '- `before`: The line above it',
 'CSVLogger.encoded': 'Bytes of `lines`\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `lines`: As `lines()` returns them\n'
                      '- `head`: Whether the file begins with them',
 'CSVLogger.log': 'Log a row\n'
                  '\n'
                  'Parameters:\n'
                  '\n'
                  '- `row`: A `Row`; `numbers(row)` is a dict of its numbers\n'
                  '- `step`: Batches so far\n'
                  "- `kind`: `'row'` or `'batch'`",
 'CSVLogger.start': 'Open what is needed. Called when a fit has something to log for the first time\n'
                    '\n'
                    'Parameters:\n'
                    '\n'
                    '- `resumed`: Whether something of this fit was logged before',
 'Callback.__init__': 'Parameters:\n\n- `fns`: Functions of the callback, by event: `Callback(before_batch=f)`',
 'Callback.comes_back': 'Parameters:\n\n- `other`: The callback that had its place meanwhile',
 'Callback.forked': 'Parameters:\n\n- `parent`: The learner that was copied\n- `fork`: Its copy',
 'Callback.handler': 'Parameters:\n\n- `ev`: Name of an event',
 'Callback.listens': 'Parameters:\n'
                     '\n'
                     '- `ev`: Name of an event\n'
                     '- `training`: Whether the running phase trains\n'
                     '- `fit`: Whether a fit is running',
 'Callback.load_state_dict': 'Parameters:\n\n- `state`: What `state_dict` has returned, in this process or another',
 'Callback.may_be': 'Parameters:\n\n- `other`: A callback that is attached already',
 'Callback.replaces': 'Parameters:\n\n- `other`: A callback that is attached already',
 'CallbackList.__init__': 'Parameters:\n\n- `owner`: A `Dispatcher`',
 'CallbackList.absent': 'Parameters:\n\n- `cbs`: Callbacks, or classes of them',
 'CallbackList.adopt': 'Parameters:\n\n- `cb`: A callback, or a class of one',
 'CallbackList.attach': 'Parameters:\n\n- `cb`: A callback that is in no list yet',
 'CallbackList.detach': 'Parameters:\n\n- `cbs`: Callbacks in this list',
 'CallbackList.of': 'Parameters:\n\n- `kind`: A class of callbacks',
 'CallbackList.one': 'Parameters:\n\n- `kind`: A class of callbacks',
 'Cards.diff': 'Parameters:\n\n- `a`: A number in the list, a title or a run\n- `b`: Another one',
 'Checkpoint.__init__': 'Parameters:\n'
                        '\n'
                        '- `every`: In `unit`s: save each time so many are done\n'
                        '- `unit`: `epoch`, `iter`: training batches, `step`: optimizer steps, or `s`: seconds\n'
                        '- `keep`: How many of the newest files of each fit to keep; None: all\n'
                        '- `best`: How many files with the best results to keep, in addition to the newest; 0: none\n'
                        '- `monitor`: Column of the recorder that ranks files for `best`; default: `learn.monitor`\n'
                        '- `folder`: Folder for the files: a name in `learn.path`, or an absolute path\n'
                        '- `on_exc`: Save when an error, Ctrl-C or SIGTERM ends the fit\n'
                        '- `sharded`: Where `Distributed(shard=True)` has the model in parts, let each process write '
                        'its own',
 'Checkpoint.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                               '\n'
                               'Parameters:\n'
                               '\n'
                               '- `state`: What `state_dict` has returned, in this process or another',
 'Checkpoints.__init__': 'Parameters:\n\n- `folder`: Path of the folder',
 'Checkpoints.add': 'Parameters:\n'
                    '\n'
                    '- `entry`: Of a file that has been written\n'
                    '- `surplus`: `surplus(entries)` returns those whose files are to be deleted',
 'Checkpoints.new_file': 'Parameters:\n'
                         '\n'
                         '- `run`: Random name of the run\n'
                         '- `epoch`: Number of the epoch that runs or has just ended, from 0\n'
                         '- `iter`: Training batches that are done',
 'Checkpoints.newest': 'Parameters:\n\n- `of`: Only those with these values in their entries',
 'ClassCounts.__init__': 'Parameters:\n\n- `axis`: Where the classes are in the predictions',
 'ClassCounts.decide': 'Parameters:\n\n- `learn`: The learner after its batch',
 'ClassScore.__init__': 'Parameters:\n'
                        '\n'
                        '- `axis`: Where the classes are in the predictions\n'
                        '- `labels`: Classes that take part in an average; default: all that occur\n'
                        '- `pos_label`: The class that a `binary` score is about\n'
                        '- `average`: `binary`, `micro`, `macro`, `weighted`, or None for one value per class',
 'ClassScore.decide': 'Predicted classes and targets, which of them count, and the number of classes\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `learn`: The learner after its batch',
 'ClassificationInterpretation.most_confused': 'Parameters:\n\n- `min_val`: Leave out pairs that are rarer',
 'ClassificationInterpretation.plot_confusion_matrix': 'Parameters:\n'
                                                       '\n'
                                                       '- `normalize`: Show fractions of each actual class, in '
                                                       '[0,1]\n'
                                                       '- `title`: Title of the figure\n'
                                                       '- `cmap`: Name of a colour map of matplotlib\n'
                                                       '- `norm_dec`: Decimals of fractions\n'
                                                       '- `plot_txt`: Write the numbers too; with more than 20 '
                                                       'classes, those that are not 0\n'
                                                       '- `ax`: Where to draw; default: a new figure\n'
                                                       '- `figsize`: Width and height of a new figure, in inches; '
                                                       'default: by the number of classes\n'
                                                       '- `dpi`: Of a new figure, in dots per inch; default: that of '
                                                       'matplotlib',
 'CohenKappa.__init__': 'Parameters:\n'
                        '\n'
                        '- `axis`: Where the classes are in the predictions\n'
                        '- `labels`: Classes that take part; default: all\n'
                        "- `weights`: Cost of a mistake: 1, its distance if 'linear', the square of that if "
                        "'quadratic'",
 'CohenKappa.count': 'Parameters:\n\n- `learn`: The learner after its batch',
 'Compile.__init__': 'Parameters:\n'
                     '\n'
                     '- `with_loss`: Compile the loss together with the model, for training\n'
                     '- `warm_up`: Compile and compare before the fit begins; False: compile in the first batch, '
                     'unchecked\n'
                     '- `tol`: Largest difference of the gradients of a batch, relative to their norm\n'
                     '- `kwargs`: For `torch.compile`',
 'CorpusBLEUMetric.__init__': 'Parameters:\n'
                              '\n'
                              '- `axis`: Where the words are in the predictions, `(bs, length, n_words)`',
 'CorpusBLEUMetric.count': 'Parameters:\n\n- `learn`: The learner after its batch',
 'CountScore.accumulate': 'Take in the batch that `learn` has just done\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                          'those of the batch',
 'CountScore.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'CrossEntropyLossFlat.__init__': 'Parameters:\n'
                                  '\n'
                                  '- `args`: Positional arguments of `loss_cls`\n'
                                  '- `axis`: Where the classes are in the predictions\n'
                                  '- `kwargs`: For `loss_cls`',
 'CutMix.__init__': 'Parameters:\n\n- `alpha`: Both parameters of the Beta distribution of shares of the area',
 'CutMix.mix_target': 'The mixture of two targets; None if their losses are mixed instead\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `y`: The targets of the batch\n'
                      '- `other`: The same targets in the order of the samples they are mixed with',
 'CutMix.paste': 'Parameters:\n'
                 '\n'
                 '- `a`: A tensor; images are `(bs, channels, height, width)`\n'
                 '- `b`: A tensor of the same shape, whose rectangle is taken',
 'DataLoaders.__init__': 'Parameters:\n'
                         '\n'
                         '- `train`: An iterable of batches\n'
                         '- `valid`: Iterable of batches to validate on; several as a dict by name; None: no '
                         'validation\n'
                         '- `more`: More loaders, used only where you name one: `learn.validate(2)`, `dls[2]`\n'
                         '- `device`: Where batches and model go; default: the accelerator if there is one\n'
                         '- `n_inp`: How many parts of a tuple are inputs; default: all but the last, or the only '
                         'one\n'
                         '- `split`: `split(batch)` gives a tuple of inputs, or a mapping for keyword arguments, and '
                         'a tuple of targets',
 'DataLoaders.from_dsets': 'Parameters:\n'
                           '\n'
                           '- `train`: Dataset to train on\n'
                           '- `valid`: Dataset to validate on\n'
                           '- `bs`: Samples in a batch; validation takes twice as many\n'
                           '- `device`: Where batches and model go; default: the accelerator if there is one\n'
                           '- `n_inp`: How many parts of a tuple are inputs; default: all but the last, or the only '
                           'one\n'
                           '- `split`: `split(batch)` gives a tuple of inputs, or a mapping for keyword arguments, '
                           'and a tuple of targets\n'
                           "- `kwargs`: For torch's `DataLoader`, such as `num_workers`; those about order are for "
                           'training',
 'DataLoaders.name': 'Parameters:\n\n- `i`: Position, from 0 for training; or a name, which is returned as it is',
 'DataLoaders.one_batch': 'Parameters:\n\n- `i`: Position or name of a loader',
 'DataLoaders.split': 'Parameters:\n\n- `b`: A batch as the loader gives it: a tensor, a tuple or a dict',
 'DiceLoss.__init__': 'Parameters:\n'
                      '\n'
                      '- `axis`: Where the classes are in the predictions\n'
                      '- `smooth`: Added to numerator and denominator: a class in neither predictions nor targets '
                      'costs 0\n'
                      '- `reduction`: `mean` or `sum` over samples and classes, or `none`: no reduction, `(bs, '
                      'n_classes)`\n'
                      '- `square_in_union`: Square the probabilities in the areas, as in the paper',
 'Dispatcher.add_cb': 'Parameters:\n\n- `cb`: A callback, or a class of one',
 'Dispatcher.add_cbs': 'Parameters:\n\n- `cbs`: Callbacks, or classes of them',
 'Dispatcher.added_cbs': 'Parameters:\n\n- `cbs`: Callbacks, or classes of them',
 'Dispatcher.announce_error': 'Parameters:\n\n- `e`: The exception that ended a scope',
 'Dispatcher.ends_early': 'Parameters:\n\n- `e`: The exception that ends the innermost scope',
 'Dispatcher.hears': 'Parameters:\n\n- `cb`: A callback that is attached\n- `ev`: Name of an event',
 'Dispatcher.ignores_cancel': 'Parameters:\n\n- `e`: What a `before_…` has raised\n- `cb`: The callback',
 'Dispatcher.is_weight': 'Parameters:\n\n- `t`: A tensor',
 'Dispatcher.on': 'Parameters:\n'
                  '\n'
                  '- `ev`: An event, with or without a filter, or several combined with `|`\n'
                  '- `kwargs`: `order`, or a filter: see `on`',
 'Dispatcher.ordered_cbs': 'Parameters:\n\n- `ev`: Name of an event',
 'Dispatcher.remove_cb': 'Parameters:\n\n- `cb`: A callback, or a class: then all its instances',
 'Dispatcher.remove_cbs': 'Parameters:\n\n- `cbs`: Callbacks, or classes of them',
 'Dispatcher.removed_cbs': 'Parameters:\n\n- `cbs`: Callbacks, or classes of them',
 'Dispatcher.watch_handlers': 'Parameters:\n'
                              '\n'
                              '- `watcher`: `handler_began(cb, ev)` and `handler_ended()` are called around '
                              'handlers, or those of its `events`\n'
                              '- `on`: False: stop telling it',
 'Distributed.__init__': 'Parameters:\n'
                         '\n'
                         '- `count`: `count(learn)` returns the number of items that the loss averages; default: '
                         '`items_of` or samples\n'
                         '- `timeout`: Seconds to wait for another process\n'
                         "- `shard`: Divide model and optimizer (FSDP2): True, or accelerate's "
                         '`FullyShardedDataParallelPlugin`\n'
                         '- `sync_bn`: Let batch norms compute their statistics over the whole batch; needs devices\n'
                         "- `kwargs`: For accelerate's `DistributedDataParallelKwargs`, such as "
                         '`find_unused_parameters=True`',
 'Draws.__init__': 'Parameters:\n'
                   '\n'
                   '- `dl`: Any iterable of batches\n'
                   '- `resumable`: Note the generator states that `resume` needs\n'
                   '- `carry`: Let batches carry the generator states of their workers; each pass then has new '
                   'workers\n'
                   "- `parts`: Generators of the run and what moves in the loader, by path; default: the loader's "
                   '`moving_parts`\n'
                   '- `deal`: Deals batches to several processes, see `Deal`',
 'Draws.idxs': 'Parameters:\n\n- `i`: A batch that was drawn just now',
 'Draws.observe': 'Parameters:\n'
                  '\n'
                  '- `carry`: Whether each batch brings the states of the generators along, which it was drawn with\n'
                  '- `states`: States of generators for the workers to begin with; default: as they are',
 'Draws.restore': 'Parameters:\n'
                  '\n'
                  '- `state`: Where a pass over such a loader was\n'
                  '- `begun`: Its iterator has been made: the `stateful` loader has moved on with it, and stays',
 'Draws.resume': 'Parameters:\n'
                 '\n'
                 '- `state`: Where a pass over such a loader was\n'
                 '- `in_memory`: The loader itself is still there, as that pass left it',
 'Draws.state': 'Parameters:\n\n- `n`: Batches drawn',
 'EMA.__init__': 'Parameters:\n'
                 '\n'
                 '- `decay`: Weight of the average so far in each update, in [0,1)\n'
                 '- `warmup`: Begin with a shorter memory: the decay of update `t` is `min(decay, (1+t)/(10+t))`\n'
                 '- `every`: In optimizer steps: update the average each time so many are done\n'
                 '- `buffers`: Average floating point buffers too, such as the statistics of batch norms\n'
                 "- `validate`: In a fit, validate with the average; `'both'`: also, in columns `ema/valid_loss`, …",
 'EarlyStoppingCallback.__init__': 'Parameters:\n'
                                   '\n'
                                   '- `monitor`: A column of the recorder, or a function of a row; default: '
                                   '`learn.monitor`\n'
                                   '- `comp`: `np.less` if lower is better, `np.greater` if higher; default: what '
                                   'the metric declares\n'
                                   '- `min_delta`: An improvement of no more than this does not count\n'
                                   '- `patience`: Stop after so many rows of results (usually one per epoch) without '
                                   'a new best\n'
                                   '- `reset_on_fit`: Each fit begins without a best value; False: the best of '
                                   'earlier fits still counts',
 'EarlyStoppingCallback.act': 'Called after each value, with `new_best` and `best` up to date\n'
                              '\n'
                              'Parameters:\n'
                              '\n'
                              '- `val`: The latest value of the monitored column',
 'Events.__init__': 'Parameters:\n\n- `names`: Names of the events, in the order of the loop',
 'Events.check': 'Parameters:\n'
                 '\n'
                 "- `name`: An event's name\n"
                 '- `who`: What would never run: what the error message starts with',
 'Events.instead': 'Parameters:\n\n- `name`: What was written for an event, with its typing mistake',
 'Events.register': 'Parameters:\n\n- `name`: A new name, with the prefix `before_`, `after_` or `cleanup_`',
 'ExtraValid.__init__': 'Parameters:\n'
                        '\n'
                        '- `dl`: An iterable of batches, or a dict of named ones\n'
                        '- `metrics`: Metrics for these data; default: those of the learner\n'
                        '- `name`: What its columns begin with; default: `extra`, or the names of the dict\n'
                        '- `every`: In `unit`s: validate each time so many are done, such as .5 epochs; default 1\n'
                        '- `unit`: `epoch`, `iter`: training batches, `step`: optimizer steps, or `s`: seconds\n'
                        '- `when`: In place of `every`: whenever `when(learn)` is true; asked between batches and '
                        'after each epoch\n'
                        '- `on_better`: In place of `every`: whenever this column, such as `valid_loss`, has a new '
                        'best',
 'FBeta.__init__': 'Parameters:\n'
                   '\n'
                   '- `beta`: How many times as much recall counts as precision\n'
                   '- `axis`: Where the classes are in the predictions\n'
                   '- `labels`: Classes that take part in an average; default: all that occur\n'
                   '- `pos_label`: The class that a `binary` score is about\n'
                   '- `average`: `binary`, `micro`, `macro`, `weighted`, or None for one value per class',
 'FBetaMulti.__init__': 'Parameters:\n'
                        '\n'
                        '- `beta`: How many times as much recall counts as precision\n'
                        '- `thresh`: A score above it is a yes\n'
                        '- `sigmoid`: Apply a sigmoid to the predictions first\n'
                        '- `labels`: Labels that take part in an average; default: all\n'
                        '- `average`: `macro`: plain mean, `micro`, `weighted`, `samples`, or None for one value per '
                        'label',
 'FetchPredsCallback.__init__': 'Parameters:\n'
                                '\n'
                                '- `ds_idx`: Position or name of a loader in `dls`, or a loader itself\n'
                                '- `dl`: Any other iterable of batches\n'
                                '- `with_input`: Inputs too\n'
                                '- `with_decoded`: Decisions too\n'
                                '- `cbs`: Callbacks, or classes of them, that are removed while it predicts\n'
                                '- `reorder`: In the order of the dataset',
 'FileLogger.__init__': 'Parameters:\n'
                        '\n'
                        '- `fname`: A name in `learn.path`, or an absolute path\n'
                        '- `append`: Keep what earlier fits have written',
 'FileLogger.append_line': 'Parameters:\n\n- `line`: As in `lines()`',
 'FileLogger.begins_run': 'Parameters:\n\n- `line`: As in `lines()`\n- `before`: The line above it',
 'FileLogger.damaged': 'Parameters:\n\n- `why`: What is wrong with the file',
 'FileLogger.encoded': 'Parameters:\n'
                       '\n'
                       '- `lines`: As `lines()` returns them\n'
                       '- `head`: Whether the file begins with them',
 'FileLogger.is_there': 'Whether what was logged until then is still there, to be continued\n'
                        '\n'
                        'Parameters:\n'
                        '\n'
                        '- `state`: Of this logger, where the run resumes',
 'FileLogger.is_whole': 'Parameters:\n\n- `line`: The last one',
 'FileLogger.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                               '\n'
                               'Parameters:\n'
                               '\n'
                               '- `state`: What `state_dict` has returned, in this process or another',
 'FileLogger.rewrite': 'Parameters:\n\n- `lines`: As `lines()` returns them',
 'FileLogger.start': 'Open what is needed. Called when a fit has something to log for the first time\n'
                     '\n'
                     'Parameters:\n'
                     '\n'
                     '- `resumed`: Whether something of this fit was logged before',
 'Filter.__init__': 'Parameters:\n'
                    '\n'
                    '- `event`: Name of the event\n'
                    '- `every`: In calls, or in `unit`s: run each time so many are done\n'
                    '- `once`: Run on this call, or on these, counted from 1\n'
                    '- `after`: Run only on calls that come later than this one\n'
                    '- `before`: Run only on calls that come earlier than this one\n'
                    '- `when`: Run if `when(filter, learn)` is true; `filter.num_called` and `filter.num_executed` '
                    'count\n'
                    '- `unit`: Count `iter` (training batches), `step`, `epoch` or `s` (seconds) instead of calls\n'
                    '- `filter_fn`: Another name for `when`, as in fastNLP\n'
                    '- `valid`: Count calls in the validations of a fit too, and run there',
 'Filter.leaves_out': 'Parameters:\n\n- `learn`: The learner, or another dispatcher, that notifies callbacks',
 'Filter.position': 'Parameters:\n\n- `learn`: The learner, or another dispatcher, that notifies callbacks',
 'Fingerprint.__init__': 'Parameters:\n'
                         '\n'
                         '- `weights`: In training batches: between two checksums of all weights, which cost one '
                         'pass over them\n'
                         '- `ids`: Keep the numbers of the samples in each batch; False: only a checksum of them\n'
                         '- `file`: Where to save at the end of each fit: a name in `learn.path/learn.model_dir`, or '
                         'an absolute path',
 'Fingerprint.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                                '\n'
                                'Parameters:\n'
                                '\n'
                                '- `state`: What `state_dict` has returned, in this process or another',
 'Fingerprint.save': 'Parameters:\n\n- `file`: A name in `learn.path/learn.model_dir`, or an absolute path',
 'FocalLoss.__init__': 'Parameters:\n'
                       '\n'
                       '- `gamma`: Losses are multiplied by `(1-p)**gamma`, `p` the probability of the target; 0 is '
                       'cross-entropy\n'
                       '- `weight`: Weight of each class, `(n_classes,)`\n'
                       '- `reduction`: `mean` (weighted, as in `nn.CrossEntropyLoss`), `sum` or `none` (no '
                       'reduction)\n'
                       '- `ignore_index`: Target that does not count',
 'Forward.__init__': 'Parameters:\n'
                     '\n'
                     '- `train`: Name of the method to train with\n'
                     '- `valid`: Name of the method to validate and predict with',
 'FreezeSchedule.__init__': 'Parameters:\n'
                            '\n'
                            '- `epochs`: For an epoch, the `n` of the `learn.freeze_to(n)` that holds from then on',
 'FuncCallback.__init__': 'Parameters:\n'
                          '\n'
                          '- `f`: Called with the learner\n'
                          '- `filters`: A list of filters for each event, by its name\n'
                          '- `order`: Place among the callbacks: lowest first',
 'FuncCallback.may_be': 'Parameters:\n\n- `other`: A callback that is attached already',
 'FuncCallback.replaces': 'Parameters:\n\n- `other`: A callback that is attached already',
 'GatherPredsCallback.__init__': 'Parameters:\n'
                                 '\n'
                                 '- `with_input`: Keep inputs\n'
                                 '- `with_loss`: Keep the loss of each sample\n'
                                 '- `save_preds`: `.npy` file for the predictions, in `learn.path`, from which they '
                                 'are mapped into memory\n'
                                 '- `save_targs`: `.npy` file for the targets, in `learn.path`\n'
                                 '- `with_preds`: Keep predictions\n'
                                 '- `with_targs`: Keep targets\n'
                                 '- `concat_dim`: Along which predictions are concatenated, see `get_preds`; None '
                                 'for a list of batches\n'
                                 '- `act`: Applied to predictions before they are kept\n'
                                 '- `dec`: Turns those into decisions, kept as `decoded`\n'
                                 '- `n`: Number of samples, if known\n'
                                 '- `to`: For each row, its place in the result; default: one after the other',
 'GradientAccumulation.__init__': 'Parameters:\n'
                                  '\n'
                                  '- `n_acc`: Samples (not batches) to gather before a step\n'
                                  '- `count`: `count(learn)` returns the number of items that the loss averages; '
                                  'default: `items_of` or samples',
 'GradientAccumulation.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their '
                                         'identity\n'
                                         '\n'
                                         'Parameters:\n'
                                         '\n'
                                         '- `state`: What `state_dict` has returned, in this process or another',
 'GradientClip.__init__': 'Parameters:\n'
                          '\n'
                          '- `max_norm`: Largest norm of all gradients together; with a larger one they are scaled '
                          'down to it\n'
                          '- `norm_type`: Order of the norm: 2 is Euclidean, `inf` the largest absolute value\n'
                          '- `max_value`: Largest absolute value of each number; no norm is computed then\n'
                          '- `params`: `params(model)` returns the parameters to clip; default: those that the '
                          'optimizer has',
 'History.__init__': 'Parameters:\n'
                     '\n'
                     '- `rows`: `Row`s, which may lack some columns\n'
                     '- `names`: Columns; default: all that the rows have',
 'History.best': 'Parameters:\n\n- `k`: A column of numbers\n- `higher`: Whether higher is better',
 'History.drop': 'Parameters:\n\n- `k`: Name of the column',
 'History.last': 'Parameters:\n\n- `k`: Name of the column, such as `valid_loss`',
 'Hook.__init__': 'Parameters:\n'
                  '\n'
                  '- `m`: Module to listen to\n'
                  '- `hook_func`: `hook_func(module, input, output)`; `input` is a tuple\n'
                  '- `is_forward`: True: forward; False: backward pass, with tuples of gradients; no layer may be '
                  '`inplace`\n'
                  '- `detach`: Pass detached tensors to it\n'
                  '- `cpu`: Pass copies on the CPU to it, which waits for the device\n'
                  '- `when`: Listen only while `when()` is true',
 'HookCallback.__init__': 'Parameters:\n'
                          '\n'
                          '- `modules`: Modules to listen to; default: layers of the model with parameters\n'
                          '- `every`: In training batches: listen in one of so many, beginning with the first; '
                          'default: in all\n'
                          '- `remove_end`: False: a complete fit ends with hooks on, until `hooks.remove()` or this '
                          'is removed\n'
                          '- `is_forward`: True: forward; False: backward pass, with tuples of gradients; no layer '
                          'may be `inplace`\n'
                          '- `detach`: Detach the tensors that `hook` is given from the graph\n'
                          '- `cpu`: Give `hook` copies on the CPU, which waits for the device\n'
                          '- `include_paramless`: Listen to layers without parameters too\n'
                          '- `hook`: `hook(module, input, output)`; `input` is a tuple',
 'Hooks.__init__': 'Parameters:\n'
                   '\n'
                   '- `ms`: Modules to listen to\n'
                   '- `hook_func`: `hook_func(module, input, output)`; `input` is a tuple\n'
                   '- `is_forward`: True: forward; False: backward pass, with tuples of gradients; no layer may be '
                   '`inplace`\n'
                   '- `detach`: Detach the tensors that `hook_func` is given from the graph\n'
                   '- `cpu`: Copy them to the CPU first\n'
                   '- `when`: Listen only while `when()` is true',
 'HyperScheduler.rescale_hyper': 'Parameters:\n'
                                 '\n'
                                 '- `name`: Name of a hyper-parameter, such as `lr`\n'
                                 '- `values`: The highest value of each parameter group; None leaves the group alone',
 'HyperScheduler.set_scaled': 'Parameters:\n'
                              '\n'
                              '- `name`: Name of a hyper-parameter, such as `lr`\n'
                              '- `v`: What the schedule says, before it is scaled',
 'Interpretation.__init__': 'Parameters:\n'
                            '\n'
                            '- `learn`: The learner to interpret\n'
                            '- `dl`: Any iterable of batches; default: the validation loader\n'
                            '- `act`: Applied to predictions; default: the activation that belongs to the loss\n'
                            '- `vocab`: Names of the classes; default `learn.dls.vocab`, if there is one',
 'Interpretation.from_learner': 'Parameters:\n'
                                '\n'
                                '- `learn`: The learner to interpret\n'
                                '- `ds_idx`: Position or name of a loader in `learn.dls`, or a loader itself\n'
                                '- `dl`: Any other iterable of batches\n'
                                '- `act`: Applied to predictions; default: the activation that belongs to the loss\n'
                                '- `vocab`: Names of the classes; default `learn.dls.vocab`, if there is one',
 'Interpretation.plot_top_losses': 'Parameters:\n'
                                   '\n'
                                   '- `k`: How many, or places in the order of losses: `range(9, 18)` are the next '
                                   'nine\n'
                                   '- `largest`: True: the largest losses; False: the smallest\n'
                                   '- `ncols`: Most images in a row; default: four, or about as many as rows\n'
                                   '- `figsize`: Of the figure, in inches',
 'Interpretation.show_results': 'Parameters:\n'
                                '\n'
                                '- `idxs`: Positions in `preds`: one, several, a slice or a mask\n'
                                '- `ncols`: Most images in a row; default: four, or about as many as rows\n'
                                '- `figsize`: Of the figure, in inches',
 'Interpretation.top_losses': 'Parameters:\n'
                              '\n'
                              '- `k`: How many; default: all\n'
                              '- `largest`: True: the largest losses; False: the smallest\n'
                              '- `items`: Return the samples too, as the dataset gives them',
 'JSONLogger.__init__': 'Parameters:\n'
                        '\n'
                        '- `fname`: A name in `learn.path`, or an absolute path\n'
                        '- `append`: Keep the lines of earlier fits\n'
                        '- `batches`: In training batches: log losses of one of so many; 0: of none',
 'JSONLogger.begins_run': 'Whether another run begins with `line`; unknown in general\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `line`: As in `lines()`\n'
                          '- `before`: The line above it',
 'JSONLogger.is_whole': 'Whether a last line that has no end is whole: an editor may have left out the end. Unknown '
                        'in general\n'
                        '\n'
                        'Parameters:\n'
                        '\n'
                        '- `line`: The last one',
 'JSONLogger.log': 'Log a row\n'
                   '\n'
                   'Parameters:\n'
                   '\n'
                   '- `row`: A `Row`; `numbers(row)` is a dict of its numbers\n'
                   '- `step`: Batches so far\n'
                   "- `kind`: `'row'` or `'batch'`",
 'JSONLogger.log_params': 'Log the settings of a new fit\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `config`: A `RunConfig`; `config.flat()` is a dict of one level',
 'JSONLogger.read_log': 'Parameters:\n\n- `kind`: `row`: results, or `batch`: losses of batches',
 'LRFinder.__init__': 'Parameters:\n'
                      '\n'
                      '- `start_lr`: First learning rate, or one per group\n'
                      '- `end_lr`: Higher one, which would follow the last\n'
                      '- `num_it`: Batches, 6 or more\n'
                      '- `stop_div`: Stop when the loss is more than four times the best',
 'LabelCounts.__init__': 'Parameters:\n'
                         '\n'
                         '- `thresh`: A score above it is a yes\n'
                         '- `sigmoid`: Apply a sigmoid to the predictions first',
 'LabelCounts.decide': 'Parameters:\n\n- `learn`: The learner after its batch',
 'LabelScore.__init__': 'Parameters:\n'
                        '\n'
                        '- `thresh`: A score above it is a yes\n'
                        '- `sigmoid`: Apply a sigmoid to the predictions first\n'
                        '- `labels`: Labels that take part in an average; default: all\n'
                        '- `average`: `macro`: plain mean, `micro`, `weighted`, `samples`, or None for one value per '
                        'label',
 'LabelSmoothingCrossEntropy.__init__': 'Parameters:\n'
                                        '\n'
                                        '- `eps`: Part of the target that is spread over all classes, in [0,1]\n'
                                        '- `weight`: Weight of each class, `(n_classes,)`\n'
                                        '- `reduction`: `mean`, `sum` or `none` (no reduction)\n'
                                        '- `ignore_index`: Target that does not count',
 'Learner.__init__': 'Parameters:\n'
                     '\n'
                     '- `dls`: Where batches come from\n'
                     '- `model`: Called with the inputs of a batch\n'
                     '- `loss_func`: `loss_func(pred, *targets)` returns the loss; None if the model returns it\n'
                     '- `opt_func`: A class of `torch.optim`, a `partial` of one, or an optimizer; default: AdamW, '
                     'see `Adam`\n'
                     '- `lr`: Learning rate: a number, `slice(first, last)` or a list, one per group; default: that '
                     'of `opt_func`\n'
                     '- `splitter`: `splitter(model)` returns parameter groups, lists of parameters; default: one '
                     'group\n'
                     '- `cbs`: Callbacks, or classes of them\n'
                     '- `metrics`: Functions of predictions and targets, or `Metric`s\n'
                     '- `path`: Where files go; default: the folder in which Python runs\n'
                     '- `model_dir`: Folder in `path` for weights\n'
                     '- `wd`: Weight decay; default: that of `opt_func`\n'
                     '- `wd_bn_bias`: Apply weight decay to norm layers and biases too\n'
                     '- `train_bn`: Train norm layers of frozen groups\n'
                     '- `moms`: Momentum at the start, in the middle and at the end of a one-cycle fit\n'
                     '- `default_cbs`: Attach those in `default_cbs`: `TrainEvalCallback`, `Recorder`, '
                     '`ProgressCallback`',
 'Learner.at_pause': 'Parameters:\n'
                     '\n'
                     '- `f`: Called without arguments\n'
                     '- `stops`: `f` only ends the fit, by an exception: called last, and between batches of a '
                     'validation too',
 'Learner.batch_limit': 'Most batches of a phase; None in `predict`, which takes every sample, and in `lr_find`\n'
                        '\n'
                        'Parameters:\n'
                        '\n'
                        '- `phase`: `train` or `valid`',
 'Learner.distrib_ctx': 'Parameters:\n\n- `kwargs`: For `Distributed`',
 'Learner.ends_early': 'Called in each scope that an exception ends, before its cleanup\n'
                       '\n'
                       'Parameters:\n'
                       '\n'
                       '- `e`: The exception that ends the innermost scope',
 'Learner.export': 'Parameters:\n\n- `fname`: A name in `learn.path`, an absolute path, or an open file',
 'Learner.find_state': 'Parameters:\n'
                       '\n'
                       "- `resume`: True: the newest file of the `Checkpoint`; `'auto'`: the same if there is one; "
                       'or a file or folder',
 'Learner.fine_tune': 'Parameters:\n'
                      '\n'
                      '- `epochs`: Epochs with everything trainable\n'
                      '- `base_lr`: Learning rate of the last group while the others are frozen; half of it '
                      'afterwards\n'
                      '- `freeze_epochs`: Epochs with only the last group trainable\n'
                      '- `lr_mult`: Learning rate of the last group divided by that of the first, once all are '
                      'trained\n'
                      '- `pct_start`: Fraction of the second part spent warming up\n'
                      '- `div`: The first learning rate of the second part is the highest one divided by this\n'
                      '- `div_final`: In each part, the rate falls towards the highest one divided by this\n'
                      '- `wd`: Weight decay; default `self.wd`\n'
                      '- `moms`: Momentum at start, top and end; default `self.moms`, if the optimizer uses '
                      'momentum\n'
                      '- `cbs`: Callbacks for this fit only\n'
                      '- `reset_opt`: Begin with a new optimizer\n'
                      '- `start_epoch`: Number of the first epoch; those before count as done\n'
                      "- `resume`: Continue from: a path; True: its newest `Checkpoint` file; `'auto'`: that if any, "
                      'else begin anew\n'
                      '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.fit': 'Parameters:\n'
                '\n'
                '- `n_epoch`: Passes over `dls.train`\n'
                '- `lr`: Learning rate: a number, `slice(first, last)` or a list, one per group; default `self.lr`\n'
                '- `wd`: Weight decay; default `self.wd`\n'
                '- `cbs`: Callbacks for this fit only\n'
                '- `reset_opt`: Begin with a new optimizer\n'
                '- `start_epoch`: Number of the first epoch; those before count as done\n'
                '- `n_iter`: Training batches; of several bounds the one that comes first ends the fit\n'
                '- `n_step`: Optimizer steps; of several bounds the one that comes first ends the fit\n'
                "- `resume`: Continue from: a path; True: its newest `Checkpoint` file; `'auto'`: that if any, else "
                'begin anew\n'
                '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.fit_flat_cos': 'Parameters:\n'
                         '\n'
                         '- `n_epoch`: Passes over `dls.train`\n'
                         '- `lr`: Learning rate; default `self.lr`\n'
                         '- `div_final`: The rate falls towards `lr/div_final`\n'
                         '- `pct_start`: Fraction of training before annealing begins\n'
                         '- `wd`: Weight decay; default `self.wd`\n'
                         '- `cbs`: Callbacks for this fit only\n'
                         '- `reset_opt`: Begin with a new optimizer\n'
                         '- `start_epoch`: Number of the first epoch; those before count as done\n'
                         '- `n_iter`: Training batches; of several bounds the one that comes first ends the fit\n'
                         '- `n_step`: Optimizer steps; of several bounds the one that comes first ends the fit\n'
                         "- `resume`: Continue from: a path; True: its newest `Checkpoint` file; `'auto'`: that if "
                         'any, else begin anew\n'
                         '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.fit_in_processes': 'Parameters:\n'
                             '\n'
                             '- `procs`: Number of worker processes\n'
                             '- `cbs`: Callbacks for this fit only\n'
                             '- `method`: Of the learner: `fit` or `resume`\n'
                             '- `kwargs`: For this method',
 'Learner.fit_one_cycle': 'Parameters:\n'
                          '\n'
                          '- `n_epoch`: Passes over `dls.train`\n'
                          '- `lr_max`: Highest learning rate: a number, `slice(first, last)` or a list, one per '
                          'group; default `self.lr`\n'
                          '- `div`: The first learning rate is `lr_max/div`\n'
                          '- `div_final`: The rate falls towards `lr_max/div_final`\n'
                          '- `pct_start`: Fraction of training spent warming up, in [0,1]\n'
                          '- `wd`: Weight decay; default `self.wd`\n'
                          '- `moms`: Momentum at start, top and end; default `self.moms`, if the optimizer uses '
                          'momentum\n'
                          '- `cbs`: Callbacks for this fit only\n'
                          '- `reset_opt`: Begin with a new optimizer\n'
                          '- `start_epoch`: Number of the first epoch; those before count as done\n'
                          '- `n_iter`: Training batches; of several bounds the one that comes first ends the fit\n'
                          '- `n_step`: Optimizer steps; of several bounds the one that comes first ends the fit\n'
                          "- `resume`: Continue from: a path; True: its newest `Checkpoint` file; `'auto'`: that if "
                          'any, else begin anew\n'
                          '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.fit_sgdr': 'Parameters:\n'
                     '\n'
                     '- `n_cycles`: Number of cycles\n'
                     '- `cycle_len`: Epochs of the first cycle\n'
                     '- `lr_max`: Learning rate at the start of each cycle; default `self.lr`\n'
                     '- `cycle_mult`: Each cycle is so many times as long as the one before\n'
                     '- `wd`: Weight decay; default `self.wd`\n'
                     '- `cbs`: Callbacks for this fit only\n'
                     '- `reset_opt`: Begin with a new optimizer\n'
                     '- `start_epoch`: Number of the first epoch; those before count as done\n'
                     '- `n_iter`: Training batches; of several bounds the one that comes first ends the fit\n'
                     '- `n_step`: Optimizer steps; of several bounds the one that comes first ends the fit\n'
                     "- `resume`: Continue from: a path; True: its newest `Checkpoint` file; `'auto'`: that if any, "
                     'else begin anew\n'
                     '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.fork': 'Parameters:\n'
                 '\n'
                 '- `n_iter`: Training batches done, in a fit with `Rewind`; default: where the fit was stopped\n'
                 '- `lr`: Learning rate from there on, one or one per group; of a schedule, its highest value\n'
                 '- `wd`: Weight decay from there on, one or one per group; of a schedule, its highest value\n'
                 '- `cbs`: More callbacks for the copy\n'
                 '- `without`: Callbacks to leave out: classes, or instances that this learner has',
 'Learner.freeze_to': 'Parameters:\n\n- `n`: The first parameter group to train; negative counts from the end',
 'Learner.get_preds': 'Parameters:\n'
                      '\n'
                      '- `ds_idx`: Position or name of a loader in `dls`, or a loader itself\n'
                      '- `dl`: Any other iterable of batches\n'
                      '- `with_input`: Return inputs too\n'
                      '- `with_decoded`: Return decisions too\n'
                      '- `with_loss`: Return the loss of each sample too\n'
                      '- `act`: Applied to predictions; default: the activation that belongs to the loss, such as a '
                      'softmax\n'
                      '- `inner`: Run the validation only, without the events of a fit and an epoch\n'
                      '- `reorder`: Return samples in the order of the dataset; a list of batches may keep the '
                      "loader's order\n"
                      '- `cbs`: Callbacks for this call only\n'
                      '- `save_preds`: `.npy` file for the predictions, in `learn.path`, mapped into memory; also '
                      'without `with_preds`\n'
                      '- `save_targs`: `.npy` file for the targets, in `learn.path`\n'
                      '- `with_preds`: Return predictions\n'
                      '- `with_targs`: Return targets\n'
                      '- `concat_dim`: Dimension along which predictions are concatenated; None for a list of '
                      'batches',
 'Learner.ignores_cancel': 'Whether to ignore `e`: a run that resumes had begun the innermost scope before it was '
                           'stopped\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `e`: What a `before_…` has raised\n'
                           '- `cb`: The callback',
 'Learner.infer': 'Parameters:\n'
                  '\n'
                  '- `mode`: `validate` or `predict`\n'
                  '- `dls`: Loaders by name\n'
                  '- `inner`: Run only the `validate` scopes, even where nothing is running\n'
                  '- `cbs`: Callbacks that are attached for this inference only',
 'Learner.is_weight': 'Whether `t` belongs to model or loss: a state that has it refers to it, and is no value for '
                      'it\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `t`: A tensor',
 'Learner.load': 'Parameters:\n'
                 '\n'
                 '- `file`: A name in `learn.path/learn.model_dir`, a path, or an open file\n'
                 "- `with_opt`: The optimizer's state too; default: if the file has it and all weights are loaded\n"
                 '- `strict`: The weights must fit; otherwise those that fit are loaded, and a warning names the '
                 'others\n'
                 '- `only`: Patterns of names such as `body.*`, one or several, whose weights alone are loaded; '
                 'default: all\n'
                 '- `device`: Where the file is read to; the model stays where it is',
 'Learner.load_state': 'Parameters:\n'
                       '\n'
                       '- `file`: What `save_state` or a `Checkpoint` has written: a name in '
                       '`learn.path/learn.model_dir`, or a path',
 'Learner.loader': 'Parameters:\n'
                   '\n'
                   '- `ds_idx`: Position or name of a loader in `dls`, or a loader itself\n'
                   '- `dl`: Any other iterable of batches; it goes before `ds_idx`',
 'Learner.lr_find': 'Parameters:\n'
                    '\n'
                    '- `start_lr`: First learning rate\n'
                    '- `end_lr`: Learning rate that would follow the last one, which is higher\n'
                    '- `num_it`: Batches to train, 6 or more; suggestions need 11\n'
                    '- `stop_div`: Stop when the loss is more than four times the best\n'
                    '- `show_plot`: Plot loss against learning rate\n'
                    '- `suggest_funcs`: One or more `f(lrs, losses, num_it)` returning a rate or `(rate, point)`',
 'Learner.memory': 'Parameters:\n'
                   '\n'
                   '- `bs`: Samples in the batch; default: as many as in a batch of the loader\n'
                   '- `dl`: Loader to take a batch from, or its position or name in `dls`; default: that of '
                   'training\n'
                   '- `cbs`: More callbacks, as you would give them to `fit`',
 'Learner.one_thread': 'Parameters:\n\n- `instead`: What else another thread can do about a run',
 'Learner.operations': 'Parameters:\n'
                       '\n'
                       '- `n_iter`: Number of the training batch, counted from 0\n'
                       '- `file`: Where to save them: a name in `learn.path/learn.model_dir`, or an absolute path',
 'Learner.predict': 'Parameters:\n'
                    '\n'
                    '- `item`: One input, as a dataset would return it, without its target; a tuple of several. No '
                    '`collate_fn` is called\n'
                    '- `with_input`: Return the input too',
 'Learner.profile': 'Parameters:\n'
                    '\n'
                    '- `n`: Batches of training and of each validation\n'
                    '- `cbs`: More callbacks, as you would give them to `fit`\n'
                    '- `waits_every`: Count what makes the device wait in one of so many batches, from the 2nd; '
                    'None: never\n'
                    '- `sync`: Wait for the device between phases\n'
                    "- `trace`: Folder to which torch's profiler writes a trace",
 'Learner.repeatable': 'Parameters:\n\n- `cbs`: More callbacks, as you would give them to `fit`',
 'Learner.restore_frozen': 'Parameters:\n\n- `ps`: Parameters that are not trained',
 'Learner.resume': 'Parameters:\n'
                   '\n'
                   '- `cbs`: Callbacks of that fit; default: the ones that it had\n'
                   '- `lr`: Learning rate from here on, one or one per group; of a schedule, its highest value\n'
                   '- `wd`: Weight decay from here on, one or one per group; of a schedule, its highest value\n'
                   '- `procs`: Processes to train in, which are started for this fit; default: this one',
 'Learner.rewind': 'Parameters:\n\n- `n_iter`: Training batches done, counted from the beginning of the fit',
 'Learner.save': 'Parameters:\n'
                 '\n'
                 '- `file`: A name in `learn.path/learn.model_dir`, an absolute path, or an open file\n'
                 "- `with_opt`: The optimizer's state too; default: if there is one and the format can hold it",
 'Learner.save_state': 'Parameters:\n\n- `file`: A name in `learn.path/learn.model_dir`, or an absolute path',
 'Learner.seeds': 'Parameters:\n'
                  '\n'
                  '- `n`: Number of runs, or their seeds\n'
                  '- `n_epoch`: Passes over `dls.train` in each run\n'
                  '- `vary`: Which random numbers differ: `init`, `order`, `dropout`, a list of them, or `all`\n'
                  '- `cbs`: Callbacks for each of the runs, which are copied\n'
                  '- `model`: `model()` makes a new model; default: the model, whose layers draw their weights '
                  'again\n'
                  '- `fit`: The method that trains, such as `fit_one_cycle`\n'
                  '- `kwargs`: Its other arguments, such as `lr`',
 'Learner.set_hyper': 'Parameters:\n'
                      '\n'
                      '- `name`: `lr`, `mom`, `sqr_mom`, `wd`, `eps`, or another that the optimizer has\n'
                      '- `v`: One value, `slice(first, last)`, or a list with one per group',
 'Learner.show_hardest': 'Parameters:\n'
                         '\n'
                         '- `k`: How many\n'
                         '- `by`: `loss`: highest mean first; `forgotten`: never learned first, then most often '
                         'forgotten\n'
                         '- `ncols`: Most images in a row; default: four, or about as many as rows\n'
                         '- `figsize`: Of the figure, in inches',
 'Learner.show_loop': 'Parameters:\n'
                      '\n'
                      '- `n`: Batches of training and of each validation\n'
                      '- `cbs`: More callbacks, as you would give them to `fit`',
 'Learner.show_results': 'Parameters:\n'
                         '\n'
                         '- `ds_idx`: Position or name of a loader in `dls`, or a loader itself\n'
                         '- `dl`: Any other iterable of batches\n'
                         '- `max_n`: How many to show\n'
                         '- `shuffle`: Choose samples at random from the first batch; otherwise its first ones\n'
                         '- `ncols`: Most images in a row; default: four, or about as many as rows\n'
                         '- `figsize`: Of the figure, in inches',
 'Learner.smoke': 'Parameters:\n'
                  '\n'
                  '- `n`: Batches of each training and validation\n'
                  '- `cbs`: More callbacks, as you would give them to `fit`',
 'Learner.stop_for_now': 'Parameters:\n\n- `reason`: Kept in `stop_reason`',
 'Learner.stop_soon': 'Parameters:\n\n- `reason`: Kept in `stop_reason`',
 'Learner.summary': 'Parameters:\n'
                    '\n'
                    '- `dl`: Loader to take a batch from, or its position or name in `dls`; default: the first that '
                    'is no iterator',
 'Learner.to_channelslast': 'Parameters:\n'
                            '\n'
                            '- `use_amp`: In mixed precision too, where accelerators gain most; False leaves the '
                            'precision as it is\n'
                            '- `amp_mode`: `fp16` or `bf16`\n'
                            '- `init_scale`: First scale of the loss, for `fp16`\n'
                            '- `growth_factor`: Multiplies the scale after `growth_interval` steps without overflow\n'
                            '- `backoff_factor`: Multiplies the scale after an overflow\n'
                            '- `growth_interval`: Optimizer steps without overflow after which the scale grows',
 'Learner.to_contiguous': 'Parameters:\n\n- `to_fp32`: In full precision too',
 'Learner.to_distributed': 'Parameters:\n\n- `kwargs`: For `Distributed`',
 'Learner.to_fp16': 'Parameters:\n\n- `kwargs`: For `MixedPrecision`',
 'Learner.trace': 'Parameters:\n'
                  '\n'
                  '- `n`: Batches of training and of each validation\n'
                  '- `cbs`: More callbacks, as you would give them to `fit`',
 'Learner.tta': 'Parameters:\n'
                '\n'
                '- `ds_idx`: Position or name of a loader in `dls`, or a loader itself\n'
                '- `dl`: Any other iterable of batches\n'
                '- `n`: Augmented passes over the samples\n'
                '- `aug`: `aug(*inputs)` returns augmented inputs, and if needed a function that undoes it in '
                'predictions\n'
                '- `beta`: Weight of the plain pass, in [0,1]; None: return both, not averaged. Ignored with '
                '`use_max`\n'
                '- `use_max`: Take the maximum of all passes instead of averages',
 'Learner.unchanged': 'Parameters:\n\n- `loaders`: Loaders that are iterated meanwhile',
 'Learner.validate': 'Parameters:\n'
                     '\n'
                     '- `ds_idx`: Position or name of a loader in `dls`, or a loader; default: all validation '
                     'loaders\n'
                     '- `dl`: Any other iterable of batches\n'
                     '- `cbs`: Callbacks for this validation only',
 'Ledger.__init__': 'Parameters:\n'
                    '\n'
                    '- `keep`: How many visits of each sample to keep one by one: the newest ones, with 8 bytes for '
                    'each\n'
                    '- `ids`: `ids(learn)` returns the sample numbers of a batch, `(bs,)`; default: what the sampler '
                    'drew\n'
                    '- `loss`: `loss(pred, *targets)` returns the losses of samples, `(bs,)`; default: by '
                    '`learn.loss_func`',
 'Ledger.begin': 'Parameters:\n\n- `accounts`: What another ledger has counted, as saved by `state_dict`',
 'Ledger.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `state`: What `state_dict` has returned, in this process or another',
 'Limit.__init__': 'Parameters:\n'
                   '\n'
                   '- `train`: Training batches in an epoch\n'
                   '- `valid`: Batches of each validation loader',
 'Lines.__init__': 'Parameters:\n'
                   '\n'
                   '- `better`: For each column, whether a higher value is better\n'
                   '- `bars`: Whether to draw a bar below the lines\n'
                   '- `out`: A stream to write to, such as `sys.stdout`',
 'Logger.forked': 'Called on a copy, in `fork`, of a callback of `parent`: take its files along\n'
                  '\n'
                  'Parameters:\n'
                  '\n'
                  '- `parent`: The learner that was copied\n'
                  '- `fork`: the fork logs the whole run, in its own place',
 'Logger.is_there': 'Parameters:\n\n- `state`: Of this logger, where the run resumes',
 'Logger.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `state`: What `state_dict` has returned, in this process or another',
 'Logger.log': 'Parameters:\n'
               '\n'
               '- `row`: A `Row`; `numbers(row)` is a dict of its numbers\n'
               '- `step`: Batches so far\n'
               "- `kind`: `'row'` or `'batch'`",
 'Logger.log_params': 'Parameters:\n\n- `config`: A `RunConfig`; `config.flat()` is a dict of one level',
 'Logger.start': 'Parameters:\n\n- `resumed`: Whether something of this fit was logged before',
 'Loop.batch_limit': 'Parameters:\n\n- `phase`: `train` or `valid`',
 'Loop.enter_mode': 'Parameters:\n\n- `mode`: `fit`, `lr_find`, `validate` or `predict`',
 'Loop.has_epoch': 'Parameters:\n\n- `epoch`: Number of an epoch, from 0',
 'Loop.one_batch': 'Parameters:\n\n- `i`: Index of the batch\n- `b`: The batch',
 'Loop.unchanged': 'Parameters:\n\n- `loaders`: Loaders that are iterated meanwhile',
 'Loop.use_loader': 'Parameters:\n'
                    '\n'
                    '- `name`: Name of the loader, such as `valid`\n'
                    '- `dl`: The loader\n'
                    '- `training`: Whether the phase trains',
 'LossMetric.__init__': 'Parameters:\n'
                        '\n'
                        '- `attr`: Name of an attribute of the loss\n'
                        '- `name`: Default: `attr`\n'
                        '- `count`: `count(learn)` returns the number of items that it averages; default: as the '
                        'loss',
 'LossMetric.accumulate': 'Take in the batch that `learn` has just done\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                          'those of the batch',
 'LossMetrics': 'Parameters:\n'
                '\n'
                '- `attrs`: Names of attributes of the loss, or one string with commas between\n'
                '- `names`: Default: `attrs`',
 'LossStream.__init__': 'Parameters:\n'
                        '\n'
                        '- `beta`: Weight of the past in `smooth`, in [0,1)\n'
                        '- `bundle`: Losses that may wait on the device',
 'LossStream.append': 'Parameters:\n\n- `loss`: Of a batch; the mean of it, if it has several values',
 'LossStream.load_state_dict': 'Parameters:\n\n- `state`: What `state_dict` of another stream has returned',
 'LossStream.receive': 'Parameters:\n\n- `wait`: For all that were sent',
 'MapBatch.__init__': 'Parameters:\n\n- `f`: A function of the batch as drawn, or a dict of new names for its fields',
 'MapPred.__init__': 'Parameters:\n'
                     '\n'
                     '- `f`: A function of what the model returned, or a dict of new names for its entries',
 'MemoryForecast.__init__': 'Parameters:\n'
                            '\n'
                            '- `bs`: Samples in the batch\n'
                            '- `fixed`: Of each layer, what does not depend on the batch\n'
                            '- `sizes`: Samples and bytes of each batch that was measured\n'
                            '- `saved`: Activations by layer, of the same batches',
 'MemoryForecast.at': 'Parameters:\n\n- `bs`: Samples in the batch',
 'Metric.accumulate': 'Parameters:\n'
                      '\n'
                      '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are those '
                      'of the batch',
 'Metric.pair': 'Parameters:\n\n- `learn`: The learner after its batch',
 'MicroBatch.__init__': 'Parameters:\n'
                        '\n'
                        '- `bs`: Samples in a piece, or `auto`: as many as fit into memory\n'
                        '- `count`: `count(learn)` returns the number of items that the loss averages; default: '
                        '`items_of` or samples',
 'MicroBatch.in_pieces': 'Parameters:\n\n- `forward`: The usual forward pass, called without arguments',
 'MixHandler.__init__': 'Parameters:\n'
                        '\n'
                        '- `alpha`: Both parameters of the Beta distribution of shares: the smaller, the less is '
                        'mixed',
 'MixHandler.draw': 'Parameters:\n\n- `n`: How many',
 'MixHandler.mix_target': 'Parameters:\n'
                          '\n'
                          '- `y`: The targets of the batch\n'
                          '- `other`: The same targets in the order of the samples they are mixed with',
 'MixUp.__init__': 'Parameters:\n'
                   '\n'
                   '- `alpha`: Both parameters of the Beta distribution of shares: the smaller, the less is mixed\n'
                   '- `by_sample`: A share for each sample, or one for the batch; default: wherever the loss allows '
                   'it',
 'MixedPrecision.__init__': 'Parameters:\n'
                            '\n'
                            '- `amp_mode`: `fp16` or `bf16`, or that dtype\n'
                            '- `init_scale`: First scale of the loss, for `fp16`\n'
                            '- `growth_factor`: Multiplies the scale after `growth_interval` steps without overflow\n'
                            '- `backoff_factor`: Multiplies the scale after an overflow\n'
                            '- `growth_interval`: Optimizer steps without overflow after which the scale grows',
 'Moments.accumulate': 'Take in the batch that `learn` has just done\n'
                       '\n'
                       'Parameters:\n'
                       '\n'
                       '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are those '
                       'of the batch',
 'Moments.add': 'Parameters:\n'
                '\n'
                '- `n`: How many\n'
                '- `mean`: Of the predictions and of the targets, `(2,1)`\n'
                '- `prods`: Sums of products of their differences from `mean`, `(2,2)`',
 'Moments.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'Notebook.__init__': 'Parameters:\n'
                      '\n'
                      '- `better`: For each column, whether a higher value is better\n'
                      '- `put`: A function that shows a dict, as `Display` does, in place of what it showed before\n'
                      '- `every`: In seconds: between two drawings of 100 rows; of more rows, more in proportion\n'
                      '- `first`: A function that returns rows to show before the first call of `row`',
 'OnBetter.__init__': 'Parameters:\n'
                      '\n'
                      '- `f`: Called as `f(learn)`\n'
                      '- `monitor`: A column of the recorder, or a function of a row; default: `learn.monitor`\n'
                      '- `comp`: `np.less` if lower is better, `np.greater` if higher; default: what the metric '
                      'declares\n'
                      '- `min_delta`: An improvement of no more than this does not count\n'
                      '- `reset_on_fit`: Each fit begins without a best value; False: the best of earlier fits still '
                      'counts',
 'OnBetter.act': 'Called after each value, with `new_best` and `best` up to date\n'
                 '\n'
                 'Parameters:\n'
                 '\n'
                 '- `val`: The latest value of the monitored column',
 'OptimList.__init__': 'Parameters:\n'
                       '\n'
                       '- `opts`: No two of them train the same parameter\n'
                       '- `every`: In steps of the whole: each optimizer takes one of so many; a number, or one for '
                       'each optimizer',
 'Overfit.__init__': 'Parameters:\n\n- `k`: Training batches',
 'Overfit.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                            '\n'
                            'Parameters:\n'
                            '\n'
                            '- `state`: What `state_dict` has returned, in this process or another',
 'ParamScheduler.__init__': 'Parameters:\n'
                            '\n'
                            '- `scheds`: Schedules, by the name of their hyper-parameter: `lr`, `mom`, `wd`, …',
 'ParamScheduler.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                                   '\n'
                                   'Parameters:\n'
                                   '\n'
                                   '- `state`: What `state_dict` has returned, in this process or another',
 'Perplexity.add_loss': 'Take in the loss of a batch, or a term of it\n'
                        '\n'
                        'Parameters:\n'
                        '\n'
                        '- `learn`: The learner after its batch\n'
                        '- `loss`: A value of the loss, as a tensor on the device',
 'Pieces.__init__': 'Parameters:\n'
                    '\n'
                    '- `pcts`: Fraction of training for each schedule; they sum to 1\n'
                    '- `scheds`: As many schedules',
 'PixelScore.__init__': 'Parameters:\n\n- `axis`: Where the classes are in the predictions',
 'Position.__init__': 'Parameters:\n'
                      '\n'
                      '- `next`: What comes next: `batch` (in training), `validate`, `epoch` or `end`\n'
                      '- `batch`: Training batches done in the epoch if `next` is `batch`, else 0\n'
                      '- `announced`: `before_draw` has been fired for the next batch\n'
                      '- `exact`: Nothing was half done\n'
                      '- `counters`: Batches and optimizer steps that are done, and the number of the epoch\n'
                      '- `bounds`: Where the fit begins and ends\n'
                      '- `hypers_and_grads`: Of the moment: gradients are those that wait for a step\n'
                      '- `loader`: Which batches come next; its `now` has the states of all generators of the run\n'
                      '- `results`: Of the last validation\n'
                      "- `state`: The user's `learn.state`\n"
                      '- `callbacks`: States of callbacks, by name\n'
                      '- `settings`: What the fit is made of; None until the position is used, or if a fork changes '
                      'them\n'
                      '- `others`: Objects in `state` and `callbacks` that are not copied, with their digests\n'
                      '- `modules`: Digests of modules in callbacks, by callback and attribute\n'
                      '- `attributes`: Of model and loss, by owner and name, where a fit was stopped or failed\n'
                      '- `runs`: flags `run` of callbacks that were switched on or off during the fit, by name\n'
                      '- `stop_reason`: Why a fit that is over was cancelled\n'
                      "- `evaluated`: Modules that are in evaluation mode in the middle of an epoch's training, by "
                      'name',
 'Position.complete': 'Parameters:\n\n- `learn`: The learner whose position it is',
 'Position.of': 'Parameters:\n'
                '\n'
                '- `learn`: In a fit\n'
                '- `next`: What comes next: `batch`, `validate`, `epoch` or `end`\n'
                '- `batch`: Training batches done in the epoch if `next` is `batch`\n'
                '- `announced`: `before_draw` has been fired for the next batch\n'
                '- `exact`: Nothing is half done\n'
                '- `draws`: The pass over the training loader; default: one that begins here',
 'Position.put': 'Parameters:\n'
                 '\n'
                 '- `learn`: In a fit, at the place where the position was read\n'
                 '- `draws`: The pass over the training loader that was resumed or is to begin\n'
                 '- `overrides`: Hyper-parameters that change here, by name: see `overrides_of` in `way_back`\n'
                 '- `in_memory`: Nothing but time has passed since: settings need not be compared\n'
                 '- `by_fit`: Resumed by `fit(…, resume=…)`, and not by `resume`: a warning names the overrides',
 'Position.show': 'Parameters:\n\n- `learn`: The learner that resumes',
 'Position.where': 'Parameters:\n\n- `n_train`: Training batches in an epoch, if known',
 'PrintProgress.__init__': 'Parameters:\n'
                           '\n'
                           '- `every`: In training batches: print their mean loss each time so many are done; '
                           'default: never\n'
                           '- `mark_best`: Mark the best value of each column so far',
 'Profile.__init__': 'Parameters:\n'
                     '\n'
                     '- `waits_every`: Count what makes the device wait in one of so many batches, from the 2nd; '
                     'None: never\n'
                     '- `sync`: Wait for the device between phases, and use the clock. It slows training down\n'
                     "- `trace`: Folder to which torch's profiler writes traces of some batches\n"
                     '- `schedule`: When: `wait`, `warmup`, `active` and `repeat`, of `torch.profiler.schedule`',
 'ProfileReport.__init__': 'Parameters:\n'
                           '\n'
                           '- `phases`: A row for each phase of a batch\n'
                           '- `callbacks`: A row for each callback and event\n'
                           '- `waits`: A row for each line that made the device wait\n'
                           '- `about`: Facts about the machine and the fit, by name',
 'ProfileReport.plot': 'Parameters:\n\n- `ax`: Axes of matplotlib; default: a new figure',
 'ProgressCallback.__init__': 'Parameters:\n'
                              '\n'
                              "- `bars`: `'tqdm'`, `'rich'` (not in notebooks), `'text'` for a log, `'auto'`; None "
                              'or False: a table alone\n'
                              '- `every`: In seconds: from one drawing of a bar to the next\n'
                              "- `print_every`: In training batches, with `bars='text'`: print a line each time so "
                              'many are done\n'
                              '- `mark_best`: Mark the best value of each column so far',
 'RAdam': 'Parameters:\n'
          '\n'
          '- `params`: Parameters, or groups of them\n'
          '- `lr`: Learning rate\n'
          '- `mom`: Decay of the average of gradients\n'
          '- `sqr_mom`: Decay of the average of squared gradients\n'
          '- `eps`: Added to the denominator\n'
          '- `wd`: Weight decay\n'
          '- `decouple_wd`: Decay beside the step, not through the gradient',
 'RMSProp': 'Parameters:\n'
            '\n'
            '- `params`: Parameters, or groups of them\n'
            '- `lr`: Learning rate\n'
            '- `mom`: Momentum\n'
            '- `sqr_mom`: Decay of the average of squared gradients\n'
            '- `eps`: Added to the denominator\n'
            '- `wd`: Weight decay\n'
            '- `decouple_wd`: Decay beside the step, not through the gradient',
 'Raise.__init__': 'Parameters:\n'
                   '\n'
                   '- `ev`: Name of an event\n'
                   '- `exc`: An exception, or a class of them\n'
                   '- `n`: At which call, counted from 1\n'
                   '- `order`: Among the callbacks',
 'Recorder.__init__': 'Parameters:\n'
                      '\n'
                      '- `add_time`: Have a `time` column, in seconds\n'
                      '- `train_metrics`: Compute metrics in training too\n'
                      '- `valid_metrics`: Compute metrics in validation\n'
                      '- `beta`: Smoothing of `losses`: weight of the average so far, in [0,1)\n'
                      '- `count`: `count(learn)`: items that the loss averages, which weigh it in validation; '
                      'default: `n_items`',
 'Recorder.add': 'Parameters:\n\n- `vals`: Values by name; those of other kinds than numbers are fine',
 'Recorder.best': 'Parameters:\n'
                  '\n'
                  '- `k`: A column of numbers\n'
                  '- `higher`: Whether higher is better; default: what its metric declares',
 'Recorder.drop': 'Parameters:\n\n- `k`: A column',
 'Recorder.last': 'Parameters:\n\n- `k`: A column',
 'Recorder.plot_loss': 'Parameters:\n'
                       '\n'
                       '- `skip_start`: Batches to leave out at the beginning; default: a tenth of them, at most 5\n'
                       '- `with_valid`: The validation losses too\n'
                       '- `log`: Both axes logarithmic\n'
                       '- `show_epochs`: A line at the last row of each epoch\n'
                       '- `ax`: Where to draw; default: a new figure\n'
                       '- `label`: Name of the run, where several are drawn on one `ax`',
 'Recorder.plot_metrics': 'Parameters:\n'
                          '\n'
                          '- `names`: Columns, or one of them; default: all metrics\n'
                          "- `axs`: Axes of another recorder's `plot_metrics`, which are found by name; default: "
                          'those of a new figure\n'
                          '- `label`: Name of the run, where several are drawn on the same axes\n'
                          '- `figsize`: Width and height of a new figure, in inches; default: 4 x 3 for each metric, '
                          'four in a row',
 'Recorder.plot_sched': 'Parameters:\n'
                        '\n'
                        '- `keys`: Name of a hyper-parameter, or several; default: all that were scheduled\n'
                        '- `figsize`: In inches',
 'Recorder.tell_skipped': 'Parameters:\n'
                          '\n'
                          '- `what`: What they are missing from, as the first sentence of the warning\n'
                          '- `hint`: More sentences',
 'Recorder.valid_columns': 'Parameters:\n'
                           '\n'
                           '- `dl_name`: A validation loader\n'
                           '- `metrics`: Default: those that the recorder computes in validation',
 'ReduceLROnPlateau.__init__': 'Parameters:\n'
                               '\n'
                               '- `monitor`: A column of the recorder, or a function of a row; default: '
                               '`learn.monitor`\n'
                               '- `comp`: `np.less` if lower is better, `np.greater` if higher; default: what the '
                               'metric declares\n'
                               '- `min_delta`: An improvement of no more than this does not count\n'
                               '- `patience`: Lower the rate after so many rows of results (usually one per epoch) '
                               'without a new best\n'
                               "- `factor`: The learning rate is divided by it; above 1. Torch's `factor=.1` is 10 "
                               'here\n'
                               '- `min_lr`: Lowest learning rate\n'
                               '- `reset_on_fit`: Each fit begins without a best value; False: the best of earlier '
                               'fits still counts',
 'ReduceLROnPlateau.act': 'Called after each value, with `new_best` and `best` up to date\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `val`: The latest value of the monitored column',
 'Repeatability.__init__': 'Parameters:\n'
                           '\n'
                           '- `n`: Operations\n'
                           '- `ops`: Those that get the same and give something else, or that get a value from '
                           'outside',
 'Rewind.__init__': 'Parameters:\n'
                    '\n'
                    '- `every`: In `unit`s: hold a point each time so many are done\n'
                    '- `unit`: `iter`: training batches, `step`: optimizer steps, `epoch`, or `s`: seconds\n'
                    '- `keep`: How many points to hold: the newest ones\n'
                    '- `memory`: Bytes of the largest point to hold in memory, default 1 GiB; larger ones are '
                    'temporary files',
 'Rewind.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `state`: What `state_dict` has returned, in this process or another',
 'Rewind.nearest': 'Parameters:\n\n- `n_iter`: Number of training batches since the beginning of the run',
 'Rewind.put_before': 'Parameters:\n'
                      '\n'
                      '- `learn`: The learner whose run is held\n'
                      '- `n_iter`: Number of training batches since the beginning of the run\n'
                      '- `how`: Why it goes back: `rewind` or `fork`',
 'Rich.__init__': 'Parameters:\n'
                  '\n'
                  '- `better`: For each column, whether a higher value is better\n'
                  '- `out`: A stream to write to, such as `sys.stdout`',
 'RocAuc.__init__': 'Parameters:\n'
                    '\n'
                    '- `axis`: Where the classes are in the predictions, which are logits\n'
                    '- `average`: `macro`: plain mean, `weighted` by frequency, `micro`, or None for one per class',
 'RocAuc.pair': 'Parameters:\n\n- `learn`: The learner after its batch',
 'RocAucBinary.__init__': 'Parameters:\n\n- `axis`: Where the classes are in the predictions, which are logits',
 'RocAucMulti.__init__': 'Parameters:\n'
                         '\n'
                         '- `average`: `macro`: plain mean, `weighted` by frequency, `micro`, or None for one per '
                         'label',
 'RootMean.accumulate': 'Take in the batch that `learn` has just done\n'
                        '\n'
                        'Parameters:\n'
                        '\n'
                        '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are those '
                        'of the batch',
 'Rows.__init__': 'Parameters:\n'
                  '\n'
                  '- `n`: Number of rows, if it is known; default: that of `to`\n'
                  '- `to`: For each row, its place; default: one after the other\n'
                  '- `dim`: Along which to put batches together; None for a list of batches as they are\n'
                  '- `path`: `.npy` file to keep the rows in\n'
                  '- `what`: Name for errors\n'
                  '- `n_batches`: Number of batches, if that is known\n'
                  '- `beside`: They come with predictions, whose samples are along `dim`; theirs may be along the '
                  'first',
 'Rows.add': 'Parameters:\n'
             '\n'
             '- `o`: A batch\n'
             '- `lead`: A function that returns the shape of predictions up to the samples, such as `(bs,)`',
 'RunCard.__init__': 'Parameters:\n'
                     '\n'
                     "- `folder`: Folder for the files, default `learn.path/'runs'`: a name in `learn.path`, or an "
                     'absolute path\n'
                     '- `title`: A short text for lists of cards\n'
                     '- `note`: A longer text',
 'RunCard.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                            '\n'
                            'Parameters:\n'
                            '\n'
                            '- `state`: What `state_dict` has returned, in this process or another',
 'RunTrace.plot': 'Parameters:\n\n- `ax`: Axes of matplotlib; default: a new figure',
 'SGD': 'Parameters:\n'
        '\n'
        '- `params`: Parameters, or groups of them\n'
        '- `lr`: Learning rate\n'
        '- `mom`: Momentum\n'
        '- `wd`: Weight decay\n'
        '- `decouple_wd`: Decay beside the step, not through the gradient\n'
        '- `fused`: All of a step in one pass over the memory; equal up to rounding',
 'SWA.__init__': 'Parameters:\n'
                 '\n'
                 '- `start`: Where the last part begins: a fraction of training, in [0,1), or a whole number of '
                 'epochs\n'
                 '- `lr`: Learning rate of the last part, one or one per parameter group; default: what it is '
                 'without `SWA`\n'
                 '- `anneal`: Epochs in which the rate moves to `lr`, along a cosine; at once if the loader has no '
                 'length\n'
                 '- `every`: In optimizer steps: update the average each time so many are done; default: each epoch\n'
                 "- `validate`: In a fit, validate with the average; `'both'`: also, in columns `swa/valid_loss`, …",
 'SWA.rescale_hyper': 'Parameters:\n\n- `name`: Of the hyper-parameter\n- `values`: One per group',
 'Sanity.__init__': 'Parameters:\n\n- `n`: Batches of each loader',
 'SaveModelCallback.__init__': 'Parameters:\n'
                               '\n'
                               '- `monitor`: A column of the recorder, or a function of a row; default: '
                               '`learn.monitor`\n'
                               '- `comp`: `np.less` if lower is better, `np.greater` if higher; default: what the '
                               'metric declares\n'
                               '- `min_delta`: An improvement of no more than this does not count\n'
                               '- `fname`: A name in `learn.path/learn.model_dir`, or an absolute path; None keeps '
                               'it in memory\n'
                               '- `every_epoch`: In epochs: save every so many (True: each) as `fname_<epoch>`, '
                               'instead of the best\n'
                               '- `at_end`: Save once, at the end of the fit, instead of the best\n'
                               "- `with_opt`: Save, and load, the optimizer's state too\n"
                               '- `reset_on_fit`: Each fit begins without a best value; False: the best of earlier '
                               'fits still counts\n'
                               '- `keep`: How many of the best weights to keep; if several, as `fname_<batches '
                               'trained>`\n'
                               '- `load_best`: Load the best weights at the end of the fit',
 'SaveModelCallback.act': 'Called after each value, with `new_best` and `best` up to date\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `val`: The latest value of the monitored column',
 'SaveModelCallback.keep_file': 'Parameters:\n'
                                '\n'
                                '- `val`: The value of the monitored column that the weights reached\n'
                                '- `file`: Path of the file with the weights',
 'SchedCos': 'Parameters:\n'
             '\n'
             '- `start`: Value at position 0, or one for each parameter group\n'
             '- `end`: Value at position 1, or one for each parameter group',
 'SchedExp': 'Parameters:\n'
             '\n'
             '- `start`: Value at position 0, or one for each parameter group\n'
             '- `end`: Value at position 1, or one for each parameter group',
 'SchedLin': 'Parameters:\n'
             '\n'
             '- `start`: Value at position 0, or one for each parameter group\n'
             '- `end`: Value at position 1, or one for each parameter group',
 'SchedNo': 'Parameters:\n'
            '\n'
            '- `start`: Value at position 0, or one for each parameter group\n'
            '- `end`: Only for the same signature: the value stays at `start`',
 'SchedPoly': 'Parameters:\n'
              '\n'
              '- `start`: Value at position 0, or one for each parameter group\n'
              '- `end`: Value at position 1, or one for each parameter group\n'
              '- `power`: Above 1 the value stays near `start` for long; below 1, near `end`',
 'Schedule.__init__': 'Parameters:\n'
                      '\n'
                      '- `f`: `f(start, end, pos)`, with `pos` in [0,1]\n'
                      '- `start`: Value at 0\n'
                      '- `end`: Value at 1',
 'Scheduled.__init__': 'Parameters:\n'
                       '\n'
                       '- `every`: In `unit`s: act each time so many are done, such as .5 epochs; default 1\n'
                       '- `unit`: `epoch`, `iter`: training batches, `step`: optimizer steps, or `s`: seconds\n'
                       '- `when`: In place of `every`: act whenever `when(learn)` is true; asked between batches and '
                       'after each epoch',
 'ShortEpochCallback.__init__': 'Parameters:\n'
                                '\n'
                                '- `pct`: Fraction of the batches, at least one, in (0,1]\n'
                                '- `short_valid`: Shorten validation too',
 'SpikeGuard.__init__': 'Parameters:\n'
                        '\n'
                        '- `back`: In training batches: from one point that the run can go back to, to the next\n'
                        '- `skip`: Leave the batch out and train on; False: stop before it\n'
                        '- `factor`: A value above `factor` times the highest recent one is a spike\n'
                        '- `window`: How many recent batches a value is compared with\n'
                        '- `most`: Most batches to leave out; instead of leaving out more, the fit stops',
 'SpikeGuard.load_state_dict': 'Restore attributes; modules, optimizers and parameters keep their identity\n'
                               '\n'
                               'Parameters:\n'
                               '\n'
                               '- `state`: What `state_dict` has returned, in this process or another',
 'Stopwatch.__init__': 'Parameters:\n'
                       '\n'
                       '- `phases`: Names\n'
                       '- `wait`: Waits for the device; called before the clock is read\n'
                       '- `event`: Records and returns an event of the device, such as a `torch.cuda.Event`\n'
                       '- `by_clock`: Phases that are always timed by the clock',
 'Stopwatch.collect': 'Parameters:\n\n- `wait`: Wait until the device has reached them all',
 'Stopwatch.start': 'Parameters:\n'
                    '\n'
                    '- `phase`: Name, or None\n'
                    '- `again`: Its time adds to the last one of the same phase',
 'SuggestedLRs.plot': 'Parameters:\n\n- `ax`: Axes to draw on; default: those of a new figure',
 'Summary.__init__': 'Parameters:\n'
                     '\n'
                     '- `title`: Line above the table\n'
                     '- `layers`: A `Row` for each layer\n'
                     '- `total`: Number of parameters\n'
                     '- `trained`: How many of them are trained\n'
                     '- `about`: Lines to show below the table',
 'TensorBoardLogger.__init__': 'Parameters:\n'
                               '\n'
                               '- `log_dir`: Folder for event files, in `learn.path`; default: for each fit a new '
                               "one in `learn.path/'runs'`\n"
                               '- `batches`: In training batches: log losses of one of so many; 0: of none\n'
                               '- `graph`: Trace the model, and log its graph',
 'TensorBoardLogger.figure': 'Log a figure\n'
                             '\n'
                             'Parameters:\n'
                             '\n'
                             '- `name`: Its name on the board\n'
                             '- `fig`: A figure of matplotlib',
 'TensorBoardLogger.log': 'Log a row\n'
                          '\n'
                          'Parameters:\n'
                          '\n'
                          '- `row`: A `Row`; `numbers(row)` is a dict of its numbers\n'
                          '- `step`: Batches so far\n'
                          "- `kind`: `'row'` or `'batch'`",
 'TensorBoardLogger.log_params': 'Log the settings of a new fit\n'
                                 '\n'
                                 'Parameters:\n'
                                 '\n'
                                 '- `config`: A `RunConfig`; `config.flat()` is a dict of one level',
 'TensorBoardLogger.start': 'Open what is needed. Called when a fit has something to log for the first time\n'
                            '\n'
                            'Parameters:\n'
                            '\n'
                            '- `resumed`: Whether something of this fit was logged before',
 'TensorBoardLogger.table': 'Log a table\n'
                            '\n'
                            'Parameters:\n'
                            '\n'
                            '- `name`: Its name on the board\n'
                            '- `head`: Name of each column\n'
                            '- `rows`: in Markdown',
 'TimeLimit.__init__': "Parameters:\n\n- `limit`: Seconds, or a time such as `'90s'`, `'20m'`, `'1h30m'`",
 'Timer.__init__': 'Parameters:\n'
                   '\n'
                   '- `every`: In `unit`s: print a summary each time so many are done; default: print nothing\n'
                   '- `unit`: What `every` counts: `epoch`, or `iter` for training batches\n'
                   '- `sync`: Wait for the device between phases, and use the clock. It slows training down',
 'Timer.begin': 'Parameters:\n\n- `phase`: Name',
 'Timer.summary': 'Parameters:\n'
                  '\n'
                  '- `epochs`: Index of an epoch of this fit, or a `range` of them, also from the end; default: all',
 'TorchMetric.__init__': 'Parameters:\n'
                         '\n'
                         '- `metric`: The object; each phase has a copy of it\n'
                         '- `name`: Default: that of its class',
 'TorchMetric.accumulate': 'Take in the batch that `learn` has just done\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                           'those of the batch',
 'TorchMetric.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes',
 'TorchScheduler.__init__': 'Parameters:\n'
                            '\n'
                            '- `make`: A scheduler of `learn.opt`; or `make(opt)` returns one, as a class or a '
                            '`partial` of it does\n'
                            '- `unit`: Step the scheduler after each `epoch`, training batch (`iter`) or optimizer '
                            '`step`\n'
                            '- `monitor`: What `ReduceLROnPlateau` monitors: a column of the recorder; default: '
                            '`learn.monitor`',
 'Trace.__init__': 'Parameters:\n\n- `events`: Names to keep; default: all',
 'Trace.after': 'Parameters:\n\n- `ev`: An event',
 'TrackerCallback.__init__': 'Parameters:\n'
                             '\n'
                             '- `monitor`: A column of the recorder, or a function of a row; default: '
                             '`learn.monitor`\n'
                             '- `comp`: `np.less` if lower is better, `np.greater` if higher; default: what the '
                             'metric declares\n'
                             '- `min_delta`: An improvement of no more than this does not count\n'
                             '- `reset_on_fit`: Each fit begins without a best value; False: the best of earlier '
                             'fits still counts',
 'TrackerCallback.act': 'Parameters:\n\n- `val`: The latest value of the monitored column',
 'ValueMetric.__init__': 'Parameters:\n'
                         '\n'
                         '- `func`: Returns the value; called when the batches are over, perhaps twice. Model and '
                         'loss are as before them\n'
                         '- `name`: Default: that of `func`\n'
                         '- `higher_is_better`: Whether higher is better',
 'ValueMetric.accumulate': 'Take in the batch that `learn` has just done\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `learn`: The learner after its batch: `learn.pred`, `learn.yb` and `learn.loss` are '
                           'those of the batch',
 'ValueMetric.merge': 'Parameters:\n\n- `states`: What the metric has gathered in each of several processes: nothing',
 'WandbLogger.__init__': 'Parameters:\n'
                         '\n'
                         '- `batches`: In training batches: log losses of one of so many; 0: of none\n'
                         '- `project`: Where W&B puts a new run\n'
                         '- `kwargs`: For `wandb.init`, if there is no active run',
 'WandbLogger.figure': 'Log a figure\n'
                       '\n'
                       'Parameters:\n'
                       '\n'
                       '- `name`: Its name on the board\n'
                       '- `fig`: A figure of matplotlib',
 'WandbLogger.log': 'Log a row\n'
                    '\n'
                    'Parameters:\n'
                    '\n'
                    '- `row`: A `Row`; `numbers(row)` is a dict of its numbers\n'
                    '- `step`: Batches so far\n'
                    "- `kind`: `'row'` or `'batch'`",
 'WandbLogger.log_params': 'Log the settings of a new fit\n'
                           '\n'
                           'Parameters:\n'
                           '\n'
                           '- `config`: A `RunConfig`; `config.flat()` is a dict of one level',
 'WandbLogger.start': 'Open what is needed. Called when a fit has something to log for the first time\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `resumed`: Whether something of this fit was logged before',
 'WandbLogger.table': 'Log a table\n'
                      '\n'
                      'Parameters:\n'
                      '\n'
                      '- `name`: Its name on the board\n'
                      '- `head`: Name of each column\n'
                      '- `rows`: A list of texts for each row',
 'Warmup.__init__': 'Parameters:\n\n- `n_steps`: Optimizer steps',
 'WeightAverage.__init__': 'Parameters:\n'
                           '\n'
                           '- `buffers`: Average floating point buffers too\n'
                           "- `validate`: In a fit, validate with the average; `'both'`: also, in columns of its own",
 'WeightAverage.update': 'Parameters:\n\n- `weight`: Of the current weights, in [0,1]',
 'accuracy': 'Parameters:\n'
             '\n'
             '- `pred`: Scores, `(bs, n_classes)` or with the classes in `axis`\n'
             '- `targ`: Class indices, without that axis\n'
             '- `axis`: Where the classes are\n'
             '- `ignore_index`: Target that does not count; as a metric of a Learner, that of the loss',
 'accuracy_multi': 'Parameters:\n'
                   '\n'
                   '- `pred`: One score for each label, `(bs, n_labels)`\n'
                   '- `targ`: Whether it applies, of the same shape\n'
                   '- `thresh`: A score above it is a yes\n'
                   '- `sigmoid`: Apply a sigmoid to the predictions first',
 'activation_of': 'Parameters:\n\n- `loss_func`: Any loss',
 'as_double': 'Parameters:\n\n- `x`: A tensor',
 'as_image': 'Parameters:\n\n- `x`: One input',
 'atomic_write': 'Parameters:\n\n- `path`: Where the file shall be; missing folders are made',
 'by_number': 'Parameters:\n\n- `dl`: A loader',
 'by_shape': 'Parameters:\n'
             '\n'
             "- `matrices`: Optimizer of the chosen parameters, as `opt_func`; default: Muon, with steps of AdamW's "
             'size\n'
             '- `others`: Optimizer of all others\n'
             '- `rule`: `rule(model)` returns the parameters for `matrices`',
 'call_selected': 'Parameters:\n'
                  '\n'
                  '- `cb`: A callback with a function `cb.f`\n'
                  '- `filters`: The filters of the event, of which one has to select the call\n'
                  '- `args`: Positional arguments for the function\n'
                  '- `kwargs`: Arguments by name for the function',
 'cards': 'Parameters:\n'
          '\n'
          '- `folder`: Where `RunCard` has written files: a path, from the current folder if it is relative',
 'check_hyper': 'Parameters:\n'
                '\n'
                '- `name`: What it is, for errors\n'
                '- `v`: A number, one per group, `slice(first, last)`, `slice(last)`, or None',
 'check_plain': 'Parameters:\n\n- `o`: What is to be saved\n- `where`: What to call it in an error',
 'check_several': 'Parameters:\n\n- `pred`: What the model predicts\n- `axis`: Where the classes are in it',
 'clear_state': 'Parameters:\n\n- `opt`: An optimizer, or several in an `OptimList`',
 'combine_scheds': 'Parameters:\n'
                   '\n'
                   '- `pcts`: Fraction of training for each schedule; they sum to 1\n'
                   '- `scheds`: As many schedules',
 'combined_cos': 'Parameters:\n'
                 '\n'
                 '- `pct`: Fraction of training for the first piece\n'
                 '- `start`: Value at position 0, or one for each parameter group\n'
                 '- `middle`: Value at position `pct`, or one for each parameter group\n'
                 '- `end`: Value at position 1, or one for each parameter group',
 'compare': 'Parameters:\n'
            '\n'
            '- `a`: A group of runs, as `learn.seeds` makes one\n'
            '- `b`: Another one\n'
            '- `name`: A column of results; default: the first metric, or the validation loss\n'
            '- `best`: Compare the best value of each run; default: the last one\n'
            '- `level`: Of the interval, in (0,1)',
 'cosine': 'Parameters:\n'
           '\n'
           '- `top`: Highest value\n'
           '- `end`: Last value\n'
           '- `warm`: Fraction of training to warm up\n'
           '- `cool`: Fraction of training to stay at `end`',
 'count_elements': 'Parameters:\n\n- `targs`: The first has as many elements as the loss averages over',
 'count_kept': 'Parameters:\n\n- `targ`: Targets, of any shape\n- `ignore_index`: Target that does not count',
 'decision': 'Parameters:\n\n- `o`: The decision for one sample\n- `vocab`: Names of the classes',
 'declare': 'Parameters:\n'
            '\n'
            "- `higher_is_better`: Of the function's values\n"
            '- `n_items`: A function of the targets: how many items the function averages over; default: samples',
 'decodes_of': 'Parameters:\n\n- `loss_func`: Any loss',
 'diff': 'Parameters:\n'
         '\n'
         "- `run_a`: A learner, a `Fingerprint`, or its file: a name in the other learner's `model_dir`, or "
         '`models`, or a path\n'
         '- `run_b`: Another one; default: `run_a` since it went back, which is compared with what it was before',
 'error_rate': 'Parameters:\n'
               '\n'
               '- `pred`: Scores, `(bs, n_classes)` or with the classes in `axis`\n'
               '- `targ`: Class indices, without that axis\n'
               '- `axis`: Where the classes are\n'
               '- `ignore_index`: Target that does not count; as a metric of a Learner, that of the loss',
 'file_path': 'Parameters:\n'
              '\n'
              '- `file`: A name, a path, or an open file, which is left as it is\n'
              '- `folder`: Where names live\n'
              '- `suffix`: Unless `file` has one of a file of weights',
 'find_bs': 'Parameters:\n\n- `b`: A tensor, or tuples, lists, mappings and dataclasses of them',
 'find_file': 'Parameters:\n\n- `file`: A name, a path, or an open file\n- `folder`: Where names live',
 'first_batch': 'Parameters:\n\n- `dl`: Any iterable of batches, but not an iterator',
 'flat_pair': 'Parameters:\n\n- `pred`: A tensor\n- `targ`: Another one with as many elements',
 'flatten_model': 'Parameters:\n\n- `m`: A model or a layer',
 'foreground_acc.__init__': 'Parameters:\n'
                            '\n'
                            '- `bkg_idx`: The class of the background\n'
                            '- `axis`: Where the classes are in the predictions',
 'freeze_groups': 'Parameters:\n'
                  '\n'
                  '- `groups`: Lists of parameters\n'
                  '- `n`: The first group to train; negative counts from the end\n'
                  '- `train`: Parameters to train in any case\n'
                  '- `alone`: Parameters to leave alone',
 'from_sklearn': 'Parameters:\n'
                 '\n'
                 '- `func`: A function of targets and predictions, or the name of one in `sklearn.metrics`\n'
                 '- `is_class`: Give `func` classes, not scores; default: if there are several scores for each '
                 'target\n'
                 '- `thresh`: Threshold for each score, after a sigmoid; default: decide for the class with the '
                 'highest score\n'
                 '- `axis`: Where the classes are\n'
                 '- `activation`: A function of predictions, in place of the sigmoid\n'
                 '- `name`: Default: that of `func`\n'
                 '- `higher_is_better`: Default: what the name of `func` says\n'
                 '- `kwargs`: For `func`, or for `AccumMetric`, such as `flatten=False`',
 'full_traceback': 'Parameters:\n\n- `on`: False: leave them out again',
 'func_name': 'Parameters:\n\n- `f`: A function, a `partial` of one, or an object that is called',
 'get_hyper': 'Parameters:\n'
              '\n'
              '- `opt`: Any optimizer of torch\n'
              '- `name`: `lr`, `mom`, `sqr_mom`, `wd`, `eps`, or another that `opt` has',
 'has_argument': 'Parameters:\n\n- `f`: A function or another callable\n- `name`: Name of the argument',
 'has_mixed_means': 'Parameters:\n\n- `loss_func`: Any loss',
 'has_params': 'Parameters:\n\n- `m`: A model or a layer',
 'hidden_matrices': 'Parameters:\n\n- `model`: Whose layers are in the order in which they are called',
 'highest': 'Parameters:\n\n- `sched`: A schedule\n- `n`: Number of groups',
 'hook_output': 'Parameters:\n'
                '\n'
                '- `module`: Module to listen to\n'
                '- `detach`: Keep detached tensors\n'
                '- `cpu`: Keep copies on the CPU\n'
                '- `grad`: Keep the gradients of outputs, a tuple, instead of the outputs',
 'hook_outputs': 'Parameters:\n'
                 '\n'
                 '- `modules`: Modules to listen to\n'
                 '- `detach`: Detach the tensors that are kept from the graph\n'
                 '- `cpu`: Copy them to the CPU first\n'
                 '- `grad`: Keep the gradients of outputs, a tuple for each module, instead of the outputs',
 'html_table': 'Parameters:\n'
               '\n'
               '- `names`: Names of the columns\n'
               '- `rows`: Values, in the same order\n'
               '- `bold`: Pairs `(index of a row, column)` to show in bold',
 'hypers': 'Parameters:\n\n- `opt`: Any optimizer of torch',
 'ignore_index_of': "Parameters:\n\n- `loss_func`: Any loss\n- `default`: For one that says nothing; torch's default",
 'in_order': 'Parameters:\n'
             '\n'
             '- `dl`: A loader\n'
             '- `reorder`: True: dataset order; False: the order in which the loader draws',
 'inexact_parts': 'Parameters:\n\n- `loss_func`: Any loss',
 'innermost': 'Parameters:\n\n- `f`: A function, or a `partial` of one',
 'is_summed': 'Parameters:\n\n- `learn`: The learner with its loss function',
 'items_by': 'Parameters:\n\n- `loss_func`: Any loss, with the settings that it has now',
 'items_of': 'Parameters:\n\n- `loss_func`: Any loss\n- `targs`: What it takes beside predictions',
 'keep_random.__init__': 'Parameters:\n'
                         '\n'
                         '- `loaders`: Their `moving_parts` too\n'
                         '- `parts`: These parts, where they have been found before',
 'kind_of': 'Parameters:\n\n- `loss_func`: Any loss',
 'known_args': 'Parameters:\n'
               '\n'
               '- `f`: A function or method\n'
               '- `params`: Its parameters, if they have been read; default: those of its signature',
 'length': 'Parameters:\n\n- `dl`: A loader, with or without a length',
 'limit_batches': 'Parameters:\n\n- `n`: Batches of each training and validation phase',
 'load_learner': 'Parameters:\n'
                 '\n'
                 '- `fname`: What `learn.export` has written: a path, from the current folder if it is relative, or '
                 'an open file\n'
                 '- `device`: Where the model runs\n'
                 '- `trust`: Whether you trust the file: reading it can run any code',
 'load_seeds': 'Parameters:\n'
               '\n'
               '- `file`: What `save` of the runs of `learn.seeds` has written: a name in the current folder, or a '
               'path',
 'load_weights': 'Parameters:\n'
                 '\n'
                 '- `model`: Perhaps wrapped\n'
                 '- `state`: Tensors by name, as `weights_of` gives them, or with prefixes\n'
                 '- `strict`: Names and shapes must match; otherwise what does is loaded\n'
                 '- `only`: Patterns of names such as `body.*`, one or several; default: all',
 'loss_of': 'Parameters:\n\n- `learn`: A learner, or a batch with a `loss_func`',
 'loss_per_sample': 'Parameters:\n\n- `learn`: The learner after its batch\n- `loss`: The summed loss of that batch',
 'mae': 'Parameters:\n'
        '\n'
        '- `pred`: Predicted numbers, of any shape\n'
        '- `targ`: Actual numbers, as many as predicted ones',
 'make_opt': 'Parameters:\n'
             '\n'
             '- `opt_func`: `opt_func(groups)` returns a `torch.optim.Optimizer`; a group is a dict of `params`, '
             '`group` and `lr`\n'
             '- `groups`: Lists of parameters\n'
             '- `lr`: One learning rate or one per group; default: what `opt_func` has, and no `lr` in the dicts\n'
             '- `no_decay`: Parameters that weight decay spares\n'
             '- `model`: What the groups are of; an `opt_func` that has a method `cut` needs it',
 'map_batch': 'Parameters:\n'
              '\n'
              '- `b`: Tuples, named tuples, lists, mappings and dataclasses of anything\n'
              '- `f`: Applied to what is in them',
 'map_tensors': 'Parameters:\n'
                '\n'
                '- `f`: Of as many tensors as there are structures\n'
                '- `o`: A tensor, or tuples, lists, mappings and dataclasses of them; the rest is left as it is\n'
                '- `others`: Of the same structure',
 'minimum': 'Parameters:\n'
            '\n'
            '- `lrs`: Learning rates that were tried, ascending\n'
            '- `losses`: The smoothed loss at each of them\n'
            '- `num_it`: How many rates the finder was to try',
 'mk_metric': 'Parameters:\n'
              '\n'
              '- `m`: A `Metric` or its class, a function of predictions and targets, or an object of torchmetrics',
 'mk_metrics': 'Parameters:\n\n- `ms`: One metric, or several, or a dict that names them',
 'moments': 'Parameters:\n'
            '\n'
            '- `scope`: A scope of the table, as a tuple\n'
            '- `running`: Scopes around it, outermost first',
 'moving_parts': 'Parameters:\n\n- `loaders`: Any iterables of batches',
 'mse': 'Parameters:\n'
        '\n'
        '- `pred`: Predicted numbers, of any shape\n'
        '- `targ`: Actual numbers, as many as predicted ones',
 'msle': 'Parameters:\n'
         '\n'
         '- `pred`: Predicted numbers, of any shape\n'
         '- `targ`: Actual numbers, as many as predicted ones',
 'n_groups': 'Parameters:\n\n- `opt`: Any optimizer of torch',
 'n_items': 'Parameters:\n\n- `learn`: Has a batch\n- `count`: `count(learn)` decides instead',
 'n_samples': 'Parameters:\n\n- `learn`: Has a batch',
 'named': 'Parameters:\n\n- `o`: A target or a decision; None for none\n- `vocab`: Names of the classes',
 'nearest': 'Parameters:\n'
            '\n'
            '- `name`: What was written, as a text or anything else\n'
            '- `names`: What could have been meant',
 'norm_bias_params': 'Parameters:\n'
                     '\n'
                     '- `m`: The model\n'
                     '- `with_bias`: Include the biases of all layers, not only of norm layers',
 'numbers': 'Parameters:\n\n- `row`: A `Row`',
 'on': 'Parameters:\n'
       '\n'
       '- `ev`: An event, one with a filter such as `event.after_batch(every=2)`, or several combined with `|`\n'
       '- `order`: Among the callbacks: lower orders run first\n'
       '- `every`: In calls, or in `unit`s: run each time so many are done\n'
       '- `once`: Run on this call, or on these, counted from 1\n'
       '- `after`: Run only on later calls than this one\n'
       '- `before`: Run only on earlier calls than this one\n'
       '- `when`: Run if `when(filter, learn)`; `filter.num_called` and `filter.num_executed` count\n'
       '- `unit`: Count `iter` (training batches), `step`, `epoch` or `s` (seconds) instead of calls\n'
       '- `filter_fn`: Another name for `when`, as in fastNLP\n'
       '- `valid`: Count calls in the validations of a fit too, and run there',
 'param_groups': 'Parameters:\n'
                 '\n'
                 '- `model`: What `splitter` splits\n'
                 '- `splitter`: `splitter(model)` gives a list of parameters, or one such list for each group',
 'params': 'Parameters:\n\n- `m`: The model',
 'partial_dl': 'Parameters:\n'
               '\n'
               '- `dataset`: With a length\n'
               '- `bs`: Samples in a batch\n'
               '- `partial_n`: Samples in an epoch, others each time\n'
               "- `kwargs`: For torch's `DataLoader`",
 'path_in': 'Parameters:\n'
            '\n'
            '- `file`: A name or a path\n'
            '- `folder`: Where names live\n'
            '- `kinds`: What `file` can be, for an error',
 'per_group': 'Parameters:\n'
              '\n'
              '- `v`: A number, one per group, `slice(first, last)` in equal ratios, or `slice(last)`: a tenth of it '
              'for the others\n'
              '- `n`: Number of groups\n'
              '- `name`: What it is, for errors',
 'per_sample': 'Parameters:\n\n- `loss_func`: Any loss',
 'places_of': 'Parameters:\n\n- `loaders`: Loaders, or objects that hold some',
 'random_state': 'Parameters:\n'
                 '\n'
                 '- `loaders`: Their `moving_parts` too\n'
                 '- `parts`: These parts, where they have been found before',
 'rank0_first': 'Parameters:\n\n- `f`: Called without arguments',
 'read_plain': 'Parameters:\n\n- `file`: A path, or an open file\n- `device`: Where tensors go',
 'reduction_of': 'Parameters:\n\n- `loss_func`: Any loss',
 'restored': 'Parameters:\n\n- `learn`: Its modules, optimizers and parameters, and its callbacks with theirs',
 'rows_of': 'Parameters:\n'
            '\n'
            '- `o`: A batch: a tensor or array, or tuples, lists, mappings and dataclasses of them; the rest is left '
            'as it is\n'
            '- `idxs`: A number, for one sample, or what a tensor can be indexed with, for a smaller batch',
 'run_config': 'Parameters:\n\n- `learn`: A learner, when a fit begins',
 'sched_cos': 'Parameters:\n'
              '\n'
              '- `start`: Value at position 0\n'
              '- `end`: Value at position 1\n'
              '- `pos`: Fraction of training that is done, from 0 to 1',
 'sched_exp': 'Parameters:\n'
              '\n'
              '- `start`: Value at position 0\n'
              '- `end`: Value at position 1\n'
              '- `pos`: Fraction of training that is done, from 0 to 1',
 'sched_lin': 'Parameters:\n'
              '\n'
              '- `start`: Value at position 0\n'
              '- `end`: Value at position 1\n'
              '- `pos`: Fraction of training that is done, from 0 to 1',
 'sched_no': 'Parameters:\n'
             '\n'
             '- `start`: Value at position 0\n'
             '- `end`: Value at position 1\n'
             '- `pos`: Fraction of training that is done, from 0 to 1',
 'sched_poly': 'Parameters:\n'
               '\n'
               '- `start`: Value at position 0\n'
               '- `end`: Value at position 1\n'
               '- `pos`: Fraction of training that is done, from 0 to 1\n'
               '- `power`: Above 1 the value stays near `start` for long; below 1, near `end`',
 'scope': 'Parameters:\n\n- `f`: A method whose name is `_` and that of the scope, such as `_batch`',
 'set_hyper': 'Parameters:\n'
              '\n'
              '- `opt`: Any optimizer of torch\n'
              '- `name`: `lr`, `mom`, `sqr_mom`, `wd`, `eps`, or another that `opt` has\n'
              '- `v`: One value, or one per group, or a slice: see `per_group`',
 'set_random_state': 'Parameters:\n'
                     '\n'
                     '- `state`: A `random_state`; tensors are fine too\n'
                     '- `loaders`: As they were given to it\n'
                     '- `but`: One of their parts that stays as it is\n'
                     '- `always`: One that is restored even if its state is the same: its next iterator is to begin '
                     'there\n'
                     '- `parts`: Their parts, where they have been found before',
 'show_samples': 'Parameters:\n'
                 '\n'
                 '- `x`: Inputs, as a batch: if the first of several is an image, it is shown; a table shows all\n'
                 '- `targs`: Targets, or None\n'
                 '- `dec`: Decisions\n'
                 '- `preds`: Predictions, for the probability of each decision\n'
                 '- `losses`: Losses of samples\n'
                 '- `vocab`: Names of the classes\n'
                 '- `ignored`: Target of pixels that do not count\n'
                 '- `ncols`: Most images in a row; default: four, or about as many as rows\n'
                 '- `figsize`: Of the figure, in inches',
 'show_value': 'Parameters:\n'
               '\n'
               '- `name`: `time` is shown as minutes and seconds\n'
               '- `v`: A value\n'
               '- `digits`: After the point',
 'silence.__init__': 'Parameters:\n\n- `words`: See `kinds`',
 'slide': 'Parameters:\n'
          '\n'
          '- `lrs`: Learning rates that were tried, ascending\n'
          '- `losses`: The smoothed loss at each of them\n'
          '- `num_it`: How many rates the finder was to try\n'
          '- `lr_diff`: Width of the window, in points\n'
          '- `thresh`: Largest difference of the slopes at its ends\n'
          '- `adjust_value`: Factor of the rate that is found',
 'snake_name': "Parameters:\n\n- `name`: A class's name\n- `suffix`: Removed from its end",
 'spare': 'Parameters:\n\n- `opt`: Any optimizer of torch\n- `no_decay`: Parameters',
 'steep': 'Parameters:\n'
          '\n'
          '- `lrs`: Learning rates that were tried, ascending\n'
          '- `losses`: The smoothed loss at each of them\n'
          '- `num_it`: How many rates the finder was to try',
 'sweep_temporary': 'Parameters:\n'
                    '\n'
                    '- `folder`: A path\n'
                    '- `name`: Pattern of the names of files: what was left of them is deleted\n'
                    '- `age`: Seconds since the last write to it',
 'synth_dls': 'Parameters:\n'
              '\n'
              '- `n_train`: Training batches\n'
              '- `n_valid`: Validation batches; without any, there is no validation loader\n'
              '- `bs`: Samples in a batch\n'
              '- `a`: Slope of the line\n'
              '- `b`: Its height at 0\n'
              '- `seed`: Of the data\n'
              '- `shuffle`: Draw the training samples in a new order each epoch\n'
              '- `num_workers`: Processes that load',
 'synth_learner': 'Parameters:\n'
                  '\n'
                  '- `n_train`: Training batches\n'
                  '- `n_valid`: Validation batches\n'
                  '- `seed`: Of data, weights and order\n'
                  '- `dls`: Other data\n'
                  '- `model`: Another model\n'
                  '- `show`: Show progress\n'
                  '- `kwargs`: For `Learner`',
 'text_row': 'Parameters:\n'
             '\n'
             '- `names`: Names of the columns\n'
             '- `row`: Values, in the same order; default: the head of the table\n'
             '- `marks`: Columns to mark with a star\n'
             '- `digits`: After the point: 6, 4 or 3',
 'text_table': 'Parameters:\n\n- `names`: Head of each column\n- `rows`: A list of texts or numbers for each row',
 'to_device': 'Parameters:\n'
              '\n'
              '- `b`: A tensor, anything with a `.to`, or tuples, lists and mappings of them; the rest is left as it '
              'is\n'
              '- `device`: Where to; default: `default_device()`',
 'top_k_accuracy': 'Parameters:\n'
                   '\n'
                   '- `pred`: Scores, `(bs, n_classes)` or with the classes in `axis`\n'
                   '- `targ`: Class indices, without that axis\n'
                   '- `k`: How many of the highest scores count; fewer than there are classes\n'
                   '- `axis`: Where the classes are\n'
                   '- `ignore_index`: Target that does not count; as a metric of a Learner, that of the loss',
 'total_params': 'Parameters:\n\n- `m`: A model or a layer',
 'trainable_params': 'Parameters:\n\n- `m`: The model',
 'twin': 'Parameters:\n\n- `dl`: A `DataLoader`, or another iterable of batches',
 'unwrapped': 'Parameters:\n\n- `model`: Perhaps compiled or data parallel',
 'valley': 'Parameters:\n'
           '\n'
           '- `lrs`: Learning rates that were tried, ascending\n'
           '- `losses`: The smoothed loss at each of them\n'
           '- `num_it`: How many rates the finder was to try',
 'warmup': 'Parameters:\n'
           '\n'
           '- `pct`: Fraction of training to warm up\n'
           '- `sched`: The schedule that follows\n'
           '- `start`: First value, as a fraction of the first value of `sched`',
 'weighted_dl': 'Parameters:\n'
                '\n'
                '- `dataset`: With a length\n'
                '- `bs`: Samples in a batch\n'
                '- `wgts`: A weight for each sample; they need not sum to 1\n'
                '- `n`: Samples in an epoch; default: as many as there are\n'
                "- `kwargs`: For torch's `DataLoader`",
 'weights_of': 'Parameters:\n\n- `model`: Perhaps wrapped, as may be parts of it',
 'with_closure': 'Parameters:\n\n- `opt_func`: A class of optimizers, a `partial` of one, or a function of groups',
 'write_plain': 'Parameters:\n'
                '\n'
                '- `o`: Tensors, plain values, and lists, tuples and dicts of them\n'
                '- `file`: A path, or an open file\n'
                '- `where`: What to call `o` in an error',
 'wsd': 'Parameters:\n'
        '\n'
        '- `top`: Highest value\n'
        '- `warm`: Fraction of training to warm up\n'
        '- `decay`: Fraction of training to decay\n'
        '- `end`: Last value\n'
        '- `shape`: Schedule of the decay, such as `SchedLin` or `SchedCos`',
 'wsd_steps': 'Parameters:\n'
              '\n'
              '- `n_steps`: Steps of the whole training\n'
              '- `decay`: Fraction of each run that decays\n'
              '- `n`: Number of runs, each twice as long as the one before'}
