"""Files of one format have the same keys: a change of the keys without a new `file_format` would let older files be
misread"""
import re
from pathlib import Path
import pytest
from fastcore.nbio import read_nb
from learner.all import *
from learner.inspect.testing import synth_learner
from learner.record.history import missing
from learner.resume.encoding import decode,encode
from learner.resume.saved_run import file_format

# What the keys of a file are, by format. A change of these lines comes with a new format
keys = {9: '''format versions versions.learner versions.python versions.torch code model loss hidden attributes opt
    outside opt_attrs at at.next at.batch at.announced at.exact at.results at.settings
    at.counters at.counters.epoch at.counters.train_iter at.counters.opt_step at.counters.epoch_start
    at.bounds at.bounds.n_epoch at.bounds.start_epoch at.bounds.n_train_iter at.bounds.n_step
    at.hypers_and_grads at.hypers_and_grads.outside at.hypers_and_grads.rates at.hypers_and_grads.groups
    at.hypers_and_grads.grads
    at.loader at.loader.n at.loader.at_start at.loader.now at.loader.idxs at.loader.workers
    at.loader.exhausted at.loader.old_workers at.loader.description at.loader.counts at.loader.moved
    callbacks callbacks.recorder state lineage frozen'''}
kinds = {9: 'missing weight grad device array number row numbers dict list bytes complex'}
random_states = {9: 'python numpy torch own'} # in `at.loader.now`, besides those of devices

deep = 'versions','at','at.counters','at.bounds','at.hypers_and_grads','at.loader','callbacks'
def found(o, where=''):
    for k,v in o.items():
        yield f'{where}{k}'
        if f'{where}{k}' in deep: yield from found(v, f'{where}{k}.')

@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    learn = synth_learner(path=tmp_path_factory.mktemp('format'))
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=Raise('after_pred', KeyboardInterrupt, 3))
    return read_plain(learn.save_state('here'))

def test_the_keys_of_a_file_are_those_of_its_format(saved):
    assert file_format in keys, 'a new format: list its keys here'
    assert sorted(found(saved))==sorted(keys[file_format].split())
    assert saved['format']==file_format

def test_kinds_of_values_are_those_of_the_format(saved):
    from learner.resume.encoding import kinds as now
    assert [*now]==kinds[file_format].split()
    assert {*saved['at']['loader']['now']}-{'cuda','mps'}=={*random_states[file_format].split()}

def test_the_table_in_the_chapter_lists_every_key(saved):
    root = Path(__file__).parents[2]
    text = next(o.source for o in read_nb(root/'nbs/resume/03_saved_run.ipynb').cells if o.id=='overview')
    listed = {k for line in text.splitlines() if line.startswith('| `')
        for k in re.findall(r'`([^`]+)`', line.split('|')[1])}
    top = {k for k in found(saved) if k.count('.')==0 or (k.startswith('at.') and k.count('.')==1)}
    assert listed==top

@pytest.mark.parametrize('values', [[*range(625)], (*range(625),), [.5]*101, (.5,)*101, [True]*101, [1, .5]*60,
    [2**63]+[0]*100, [-2**63]+[0]*100, [2**63-1]*101, [missing]+[.5]*100, [None]+[1]*100, []],
    ids=lambda o: f'{type(o).__name__} of {len(o)} from {o[:1]}')
def test_long_lists_come_back_as_they_were(values):
    back = decode(encode(values, 'values'), 'cpu')
    assert type(back) is type(values) and [*map(repr, back)]==[*map(repr, values)]
