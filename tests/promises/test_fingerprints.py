"Promise 7: `diff` says at which training batch two runs part, and why; of equal runs it claims nothing"
import json
import pytest
from learner.all import *
from processes import run_script
from parted import expected,indexed,kinds,problem,train_firsts

chunk = 10

@pytest.fixture(scope='module')
def pairs(tmp_path_factory):
    "Both sides of some runs, each from an interpreter of its own with other hashes"
    done = {}
    def get(first):
        if first not in done:
            done[first] = out = tmp_path_factory.mktemp('pairs')
            seeds = range(2) if first=='few' else range(first, first+chunk)
            train_firsts(out, seeds)
            p = run_script(f'import parted; parted.train_others({str(out)!r}, {seeds})')
            assert not p.returncode, p.stderr
        return done[first]
    return get

def wrong(out, seed, kind):
    "What is wrong with the answer of `diff`, if anything is"
    case,plans = problem(seed)
    how = plans[kind]
    d = diff(out/f'{seed} a'/'trail.pth', out/f'{seed} {kind}'/'trail.pth')
    step = expected(kind, how, *json.loads((out/f'{seed} {kind}'/'witness.json').read_text()))
    if d.step!=step or d.kind!=(None if step is None else kind): return f'{kind} {how}: expected {step}, but {d}'
    if step is None: return None
    said = d.evidence[0]
    telling = dict(data=str(how.get('index')) if case['loader'] in indexed else 'inputs',
        code=str(how.get('numbers', {}).get(how.get('which'))))
    telling['random stream'] = f"`{how.get('generator', 'torch')}`"
    telling['hyper-parameter'] = f"`{how['name']}` of group" if 'name' in how else 'p=0.35'
    if telling.get(kind, '') not in said: return f'{kind} {how}: {telling[kind]} is not in {said!r}'

def test_step_and_kind(pairs):
    "One change of each kind, between processes"
    assert not [o for seed in range(2) for kind in kinds if (o := wrong(pairs('few'), seed, kind))]

@pytest.mark.slow
@pytest.mark.parametrize('first', range(0, 100, chunk))
def test_step_and_kind_of_a_hundred(pairs, first):
    assert not [o for seed in range(first, first+chunk) for kind in kinds if (o := wrong(pairs(first), seed, kind))]
