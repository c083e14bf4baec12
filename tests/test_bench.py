"Benchmarks compare contenders that do the same work, and say what they were measured on"
import json,sys
from pathlib import Path
import numpy as np,pytest,torch
from torch import nn
from learner.all import Callback

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import __main__ as bench,batches,fresh,peers,processes,states,techniques
from bench.shared import (Laps,Marked,SkipsWork,above,by_hand,check_same,defaults,interleaved,laps,lean,loader,models,
    ours,outcome,seeded,spread,times)

@pytest.fixture
def work():
    laps.begin()
    return Marked(batches.batches(3)),batches.batches(2)

@pytest.mark.parametrize('name', models)
@pytest.mark.parametrize('settings', [lean, defaults], ids=['lean','defaults'])
def test_a_learner_does_the_work_of_the_loop_by_hand(name, settings):
    laps.begin()
    shape = models[name][1]
    train,valid = loader(2, shape, 4),batches.batches(1, shape, 4) if settings is defaults else None
    hand,mine = by_hand(seeded(name), train, valid, 2),ours(seeded(name), train, valid, 2, **settings)
    check_same(name, dict(hand=hand, ours=mine), 1e-5)
    assert len(hand[-1])==(2 if valid else 0) and len(laps.taken)==3

def test_a_contender_that_skips_work_is_rejected(work):
    train,valid = work
    def hand(n): return by_hand(seeded(), train, valid, n)
    def no_step(m, opt, n):
        def step(i, xb, yb):
            if i: opt.step()
        return step
    runs = dict(batches=lambda n: by_hand(seeded(), Marked(train.batches[:2]), valid, n),
        step=lambda n: by_hand(seeded(), train, valid, n, no_step), epochs=lambda n: hand(n-1),
        validation=lambda n: by_hand(seeded(), train, valid[:1], n),
        model=lambda n: by_hand(nn.Linear(64,10), train, valid, n))
    for k,run in runs.items():
        with pytest.raises(SkipsWork, match=k): interleaved('a fit', dict(hand=hand)|{k:run}, 1, 2)
    interleaved('a fit', dict(hand=hand, again=hand), 1, 2)

def test_a_library_that_fails_or_skips_work_is_told(work, capsys):
    train,valid = work
    def hand(n): return by_hand(seeded(), train, None, n)
    def fails(n): raise ImportError("No module named 'sklearn'")
    runs = dict(same=hand, fails=fails, lazy=lambda n: hand(1))
    assert [*peers.usable('tiny', 2, hand, runs)]==['same']
    err = capsys.readouterr().err
    assert "fails is left out: ImportError: No module named 'sklearn'" in err and 'lazy is left out: SkipsWork' in err

def test_ours_is_among_the_peers(work):
    assert [*peers.contenders]==['learner','fastai','lightning','ignite','accelerate','skorch','transformers',
        'pytorch-accelerated']
    train = work[0]
    def hand(n): return by_hand(seeded(), train, None, n)
    run = peers.contender(peers.learner_, 'tiny', train, None)
    assert 'learner' in peers.usable('tiny', 2, hand, dict(learner=run))

def test_rows_are_medians_of_differences_of_the_same_run():
    base,run = [1e-3,2e-3,3e-3],[1.5e-3,2.1e-3,9e-3]
    row = above('group', 'name', 'µs a batch', dict(hand=base, ours=run), 10, 20)
    assert row.base==pytest.approx(200) and row.value==pytest.approx(50) and not row.holds
    assert (row.low,row.high)==pytest.approx(tuple(np.quantile([50,10,600], [.25,.75])))
    row = times('group', 'name', dict(hand=base, ours=run), allowed=2)
    assert row.value==pytest.approx(1.5) and row.base==pytest.approx(2000) and row.holds
    assert spread([3.])==(3.,3.,3.)

def test_the_first_lap_is_left_out():
    laps = Laps()
    laps.clock = iter([0.,10.,11.,13.,16.]).__next__
    for _ in range(5): laps.mark()
    assert [*laps.taken]==[10.,1.,2.,3.] and laps.median(4)==2.

def test_the_time_in_the_handlers_of_one_callback(monkeypatch):
    "By a clock that moves only where a callback takes time: that of others is no part of it"
    now = [0.]
    monkeypatch.setattr(techniques, 'process_time', lambda: now[0])
    class Own(Callback):
        def before_batch(self): now[0] += 2.
        def after_epoch(self): now[0] += 4.
    class Other(Own): pass
    laps.begin()
    train = Marked(batches.batches(3))
    def fit(make): return lambda k: ours(seeded(), train, None, k, [*make(), Other()], **lean)
    row = techniques.in_handlers('own', fit, Own, [6.], 3, 2, allowed=1)
    assert row.value==pytest.approx(1e6*(3*2+4)/3) and row.base==pytest.approx(2e6) and not row.holds

def test_every_row_of_the_issue_has_a_group():
    names = [f.__name__ for m in (batches,techniques,states,processes,fresh) for f in m.groups]
    assert names==['training','validation','epochs','whole_epochs','inference','beginnings',
        'each_technique','watched','accounts','compiled','draws','files','two_processes','start','memory','growth']

def test_a_file_says_what_it_was_measured_on_and_keeps_other_rows_of_that(tmp_path):
    file,row = tmp_path/'r.json',dict(group='a', name='b', value=1.)
    about = bench.hardware()
    assert about['cpu'] and about['cores']>0 and about['torch']==torch.__version__
    assert about['threads']==torch.get_num_threads()
    bench.write(file, about, [row, row|dict(name='c')])
    bench.write(file, about, [row|dict(value=2.), row|dict(name='d')])
    res = json.loads(file.read_text(encoding='utf-8'))
    assert res['hardware']==about and [(o['name'],o['value']) for o in res['rows']]==[('b',2.), ('c',1.), ('d',1.)]
    bench.write(file, about|dict(cpu='another'), [row])
    assert len(json.loads(file.read_text(encoding='utf-8'))['rows'])==1

def test_single_rows_can_be_run(monkeypatch, tmp_path, capsys):
    def one(repeats): yield above('batch', f'of {repeats} repeats', 'µs a batch', dict(hand=[1.], ours=[2.]))
    monkeypatch.setattr(batches, 'groups', (one,))
    bench.main(['-k', 'one', '--quick', '--out', f'{tmp_path}/r.json'])
    assert 'of 3 repeats' in capsys.readouterr().out and (tmp_path/'r.json').exists()
    with pytest.raises(SystemExit, match="No group has 'batches' in its name: there are one, each_technique"):
        bench.main(['-k', 'batches'])

def test_growth_is_told_from_the_marks_of_a_run():
    marks = [(float(i), 100*i) for i in range(21)]
    assert fresh.grown(marks)==dict(seconds=20., first=1., last=1., bytes1=900, bytes2=900)
    slower = [(i**2/10, i**3) for i in range(21)]
    res = fresh.grown(slower)
    assert res['last']>5*res['first'] and res['bytes2']>5*res['bytes1']

def test_outcomes_have_weights_buffers_and_results():
    m = nn.Sequential(nn.Linear(2,2), nn.BatchNorm1d(2))
    assert [tuple(o.shape) for o in outcome(m, (1.,2.))]==[(2,2), (2,), (2,), (2,), (2,), (2,), (), (2,)]

def test_the_page_shows_every_row_that_was_measured():
    root = Path(__file__).parents[1]
    page = (root/'nbs/performance.ipynb').read_text(encoding='utf-8')
    rows = json.loads((root/'bench/results.json').read_text(encoding='utf-8'))['rows']
    assert rows and all(f"'{o['group']}'" in page for o in rows)
    known = {'batch','epoch','whole epochs','get_preds','beginning of a fit','technique','observer','resume','compiled',
        'start','growth','two_processes'}
    assert {o for o in known if f"'{o}'" in page}==known
