"Run cards: what is in them, what differs between two of them, and their pages"
import json,re
from xml.dom import minidom
import pytest,torch
from torch import nn
from learner.all import *
from learner.compare.card_page import svg_plot,ticks
from learner.compare.run_card import Card
from learner.record.run_config import plain
from small_fits import mk

def squared(pred, y): return ((pred-y)**2).mean()
def absolute(pred, y): return (pred-y).abs().mean()

class Halve(Callback):
    "Halves the gradients"
    def before_step(self):
        for p in self.learn.model.parameters(): p.grad /= 2

def fitted(path, card=None, cbs=(), n_epoch=2, **kwargs):
    learn = synth_learner(path=path, **(dict(loss_func=squared) | kwargs))
    return learn.fit(n_epoch, cbs=[RunCard() if card is None else card, *cbs])

def card_in(path): return cards(path/'runs')[-1]

def test_a_card_holds_the_run(tmp_path):
    "Settings, results, curves, lineage, fingerprint, layers and source, as plain JSON"
    learn = fitted(tmp_path, RunCard(title='one', note='why'), [Halve()])
    file, = (tmp_path/'runs').iterdir()
    card = json.loads(file.read_text())
    assert (file.stem==card['run']==learn.lineage[-1].run
        and (card['title'],card['note'],card['status'])==('one','why','finished'))
    assert (card['settings']['opt.lr']==[.05] and card['settings']['n_epoch']==2
        and 'callbacks.halve' in card['settings'])
    assert [o['valid_loss'] for o in card['results']]==pytest.approx(learn.recorder['valid_loss'].tolist())
    assert ([v for _,v in card['curves']['loss']]==pytest.approx(learn.recorder.raw_losses)
        and len(card['curves']['lr'])==20)
    assert card['lineage']==[o._asdict() for o in learn.lineage]
    texts = card['setup']['texts']
    assert 'p.grad /= 2' in texts['`Halve` (halve)'] and 'def squared' in texts['`squared` (loss_func)']
    assert card['setup']['layers']==repr(learn.model).splitlines() and card['fingerprint']['batches']==20
    assert not any(k.startswith('callbacks.run_card') for k in card['settings'])

def test_a_card_changes_nothing_in_the_run(tmp_path):
    a,b = synth_learner(path=tmp_path).fit(2),synth_learner(path=tmp_path).fit(2, cbs=RunCard())
    assert (all(map(torch.equal, a.model.parameters(), b.model.parameters())) and [o for o in b.cbs]!=[]
        and not any(isinstance(o, RunCard) for o in b.cbs))

def test_a_card_uses_the_fingerprint_of_the_learner(tmp_path):
    own = fitted(tmp_path/'a')
    given = fitted(tmp_path/'b', cbs=[Fingerprint(), EMA()])
    assert (card_in(tmp_path/'a')['fingerprint']==card_in(tmp_path/'b')['fingerprint']
        and card_in(tmp_path/'b')['fingerprint']['batches']==20)
    assert not diff(own, given)

def test_a_card_counts_batches_and_not_the_steps_between_them(tmp_path):
    "Where the length is not known, the last batches wait for a step that comes after them, in a row of its own"
    dl = torch.utils.data.DataLoader([(torch.ones(1), torch.ones(1))]*29, 5)
    class Unknown:
        "A loader that does not know its length"
        def __iter__(self): return iter(dl)
    learn = Learner(DataLoaders(Unknown(), device='cpu'), torch.nn.Linear(1,1), squared, lr=.01, path=tmp_path)
    learn.remove_cb(ProgressCallback).fit(3, cbs=[f := Fingerprint(), RunCard(), GradientAccumulation(20)])
    assert len(f.trail)>1+learn.train_iter and card_in(tmp_path)['fingerprint']['batches']==learn.train_iter==18

def test_equal_runs_have_equal_cards(tmp_path):
    for k in 'ab': fitted(tmp_path/k)
    d = card_in(tmp_path/'a').diff(card_in(tmp_path/'b'))
    assert not d and 'the same, in all 20 training batches' in repr(d)

def test_cards_of_the_same_training_with_other_results_are_not_the_same(tmp_path):
    "As of other validation data, or of a metric that counts otherwise"
    def close(limit): return AvgMetric(lambda p,y: ((p-y).abs()<limit).float().mean(), name='close')
    def card(k, limit=1., factor=1):
        learn = synth_learner(path=tmp_path/k, loss_func=squared, metrics=close(limit))
        learn.dls = DataLoaders(learn.dls.train, [(x, y*factor) for x,y in learn.dls.valid], device='cpu')
        learn.fit(1, cbs=RunCard())
        return card_in(tmp_path/k)
    a,b,c,again = card('a'),card('b', limit=2.),card('c', factor=2),card('again')
    assert a.diff(b) and a.diff(b).other_results==['close'] and not a.diff(b).unlike
    assert 'fingerprints: the same\n- results: other valid_loss, close\n' in repr(a.diff(c)) and a.diff(c)
    assert not a.diff(again) and not a.diff(again).other_results

@pytest.mark.parametrize('kwargs, words, unlike, alike', [
    (dict(lr=.1), '`opt.lr` is [0.05] in a, and [0.1] in b', 'hypers', ['ids','inputs','weights_before']),
    (dict(loss_func=absolute), '`absolute` (loss_func) takes part in b only', 'loss',
        ['ids','inputs','weights_before']),
    (dict(cbs=[Halve()]), 'the callback `halve` is in b only', 'weights', ['ids','hypers','weights_before']),
    (dict(n_epoch=3), '`n_epoch` is 2 in a, and 3 in b', 'ids', ['weights_before']),
    (dict(seed=1), None, 'inputs', ['hypers']),
    (dict(n_train=5), '`n_batches.train` is 10 in a, and 5 in b', 'ids', [])])
def test_what_differs_between_two_cards(tmp_path, kwargs, words, unlike, alike):
    fitted(tmp_path/'a'); fitted(tmp_path/'b', **kwargs)
    d = card_in(tmp_path/'a').diff(card_in(tmp_path/'b'))
    assert d and unlike in d.unlike and {*alike}<={*d.alike}
    assert (words is None and not d.changed) or words in d.changed
    assert repr(d) and d.results()[0].a!=d.results()[0].b

def test_changed_source_is_shown_by_line(tmp_path):
    def of(f): f.__qualname__ = 'loss'; return f
    def loss(pred, y): return ((pred-y)**2).mean()
    fitted(tmp_path/'a', loss_func=of(loss))
    def loss(pred, y): return ((pred-y)**2).mean()*2
    fitted(tmp_path/'b', loss_func=of(loss))
    changed, = card_in(tmp_path/'a').diff(card_in(tmp_path/'b')).changed
    assert '.mean()` in a' in changed and '.mean()*2` in b' in changed

def test_a_resumed_run_writes_its_card_again(tmp_path):
    whole = fitted(tmp_path/'a')
    learn = synth_learner(path=tmp_path/'b', loss_func=squared)
    learn.fit(2, cbs=[RunCard(),
        Callback(after_batch=lambda self: self.train_iter==7
            and self.learn.at_pause(self.learn.stop_for_now, stops=True))])
    first = card_in(tmp_path/'b')
    assert first['status']=='stopped' and first['fingerprint']['batches']==7
    file, = (tmp_path/'b'/'runs').iterdir()
    file.write_text(json.dumps(first | dict(seconds=60.))) # it had trained for a minute
    learn.resume()
    again, = cards(tmp_path/'b'/'runs')
    assert (again['status']=='finished' and [o['how'] for o in again['lineage']]==['fit','resume']
        and again['run']==first['run'] and again['began']==first['began'] and again['seconds']>=60)
    sums = card_in(tmp_path/'a')['fingerprint'],again['fingerprint']
    assert whole and sums[0]==sums[1]

def test_a_card_is_written_when_the_fit_fails(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fitted(tmp_path, cbs=[Raise('after_batch', ZeroDivisionError('by zero'), 13)])
    card = card_in(tmp_path)
    assert card['status'].startswith('ZeroDivisionError: by zero') and len(card['results'])==1 and card.html()

def test_a_fit_that_never_began_has_a_card(tmp_path):
    with pytest.raises(ZeroDivisionError): fitted(tmp_path, cbs=[Raise('before_train', ZeroDivisionError)])
    card = card_in(tmp_path)
    assert (card['fingerprint']['batches']==0 and card.rows==[] and card.html() and repr(card)
        and cards(tmp_path/'runs').table())

def test_numbers_that_json_lacks(tmp_path):
    def bad(pred, y): return ((pred-y)**2).mean()*float('nan')
    fitted(tmp_path, loss_func=bad, n_epoch=1)
    card = card_in(tmp_path)
    assert card['results'][0]['valid_loss']=='nan' and card.html() and repr(cards(tmp_path/'runs'))

def test_rows_of_a_card_and_of_a_log_are_those_of_the_recorder(tmp_path):
    "Losses that are not finite, values that are missing, and metrics of several values"
    class Several(Metric):
        def reset(self): pass
        def accumulate(self, learn): pass
        value = torch.tensor([.25,float('nan')])
    def bad(pred, y): return ((pred-y)**2).mean() + (0. if log.learn.training else float('inf'))
    log = JSONLogger()
    learn = fitted(tmp_path, loss_func=bad, metrics=[Several(), mae], cbs=[log, Validate(2)], n_epoch=3)
    card,rec = card_in(tmp_path),learn.recorder
    for rows in card.rows,log.read_log():
        assert rows['valid_loss'].dtype==float
        assert rows['valid_loss']==pytest.approx(rec['valid_loss'], nan_ok=True)
        assert [o.mae is missing for o in rows]==[True, False, False]
        assert rows[-1].several==pytest.approx([.25,float('nan')], nan_ok=True)
    assert card.final['valid_loss']==float('inf') and card.html() and repr(card)

def test_long_curves_are_thinned(tmp_path):
    fitted(tmp_path, n_train=1201, n_epoch=2)
    points = card_in(tmp_path)['curves']['loss']
    assert 600<len(points)<=1001 and points[0][0]==1 and points[-1][0]==2402

def test_cards_are_listed_by_time_and_found_by_name(tmp_path):
    for title,lr in (('low',.01), ('high',.1)): fitted(tmp_path, RunCard(title=title), lr=lr)
    for f,i in zip(sorted((tmp_path/'runs').iterdir(), key=lambda f: json.loads(f.read_text())['title']), '21'):
        card = json.loads(f.read_text())
        f.write_text(json.dumps(card | dict(began=f'2030-01-0{i}T00:00:00')))
    (tmp_path/'runs'/'other.json').write_text('{"a": 1}')
    found = cards(tmp_path/'runs')
    assert ([o['title'] for o in found]==['low','high'] and found['low'] is found[0]
        and found[found[1]['run']] is found[1])
    assert found.table().names[-1]=='opt.lr' and found.diff().changed==["`opt.lr` is [0.01] in a, and [0.1] in b"]
    with pytest.raises(KeyError, match='Did you mean `high`'): found['hihg']

def test_two_cards_of_one_title(tmp_path):
    for _ in range(2): fitted(tmp_path, RunCard(title='same'))
    with pytest.raises(KeyError, match='2 cards are called `same`'): cards(tmp_path/'runs')['same']

def test_files_that_are_no_cards(tmp_path):
    with pytest.raises(ValueError, match='no folder'): cards(tmp_path/'none')
    assert cards(tmp_path)==[] and repr(cards(tmp_path))=='No cards'
    (tmp_path/'a.json').write_text('{')
    with pytest.raises(ValueError, match='a.json` is damaged'): cards(tmp_path)
    (tmp_path/'a.json').write_text(json.dumps(dict(format=9, run='x', setup={}, settings={})))
    with pytest.raises(ValueError, match='written in format 9'): cards(tmp_path)

def test_mistakes(tmp_path):
    with pytest.raises(TypeError, match='Did you mean `title`'): RunCard(titel='x')
    with pytest.raises(TypeError, match='`folder` is a path'): RunCard(3)
    with pytest.raises(ValueError, match='Recorder'):
        synth_learner(path=tmp_path).remove_cbs(Recorder).fit(1, cbs=RunCard())
    fitted(tmp_path)
    with pytest.raises(TypeError, match='`other` is a card'): card_in(tmp_path).diff('runs')

def test_a_fork_writes_a_card_of_its_own(tmp_path):
    learn = synth_learner(path=tmp_path).fit(2, cbs=[RunCard(), Rewind(every=5)])
    learn.fork(10).resume()
    assert len([*tmp_path.rglob('*.json')])==2

# Pages

def test_the_page_needs_nothing_else_and_escapes_what_it_shows(tmp_path):
    fitted(tmp_path, RunCard(title='<script>alert(1)</script>', note='a & b'),
        metrics=AvgMetric(squared, higher_is_better=False))
    file = card_in(tmp_path).html(tmp_path/'page.html')
    html = open(file).read()
    assert "default-src 'none'" in html and not re.search(r'https?://|(src|href)\s*=|@import|url\(|<script', html)
    assert '&lt;script&gt;' in html and 'a &amp; b' in html and 'prefers-color-scheme: dark' in html
    assert 'def squared' in html and html.count('<svg')==4 # loss, validation loss, metric, learning rate
    for o in re.findall('<svg.*?</svg>', html): minidom.parseString(o)

@pytest.mark.parametrize('low, high', [(0,1), (-3e-7,2e-7), (1e6,1.0001e6), (5,5.5), (0,997)])
def test_ticks_are_few_and_inside(low, high):
    t = ticks(low, high)
    assert 2<=len(t)<=8 and low-1e-9*abs(high)<=t[0] and t[-1]<=high+1e-9*abs(high)

def test_a_tick_at_the_end_is_not_lost_by_rounding(): assert ticks(.1, .3)[-1]==pytest.approx(.3)

def test_a_plot_of_one_point_or_of_equal_values():
    for points in ([(1,2.)], [(1,0.),(2,0.)]):
        minidom.parseString(re.search('<svg.*</svg>', svg_plot([('a',points)], 'x', 'y'))[0])

def test_cards_of_other_learners(tmp_path):
    learn = mk(RunCard(), path=tmp_path).fit(1)
    assert isinstance(card_in(tmp_path), Card) and card_in(tmp_path)['run']==learn.lineage[-1].run

class NoReduction(nn.Module):
    def forward(self, pred, y): return (pred-y).pow(2).mean()
class OwnFlat(BaseLoss):
    def __init__(self, k=2):
        super().__init__(NoReduction, is_2d=False)
        self.k = k

@pytest.mark.parametrize('loss,reduction', [(MSELossFlat(reduction='sum'), 'sum'), (CrossEntropyLossFlat(), 'mean'),
    (OwnFlat(), None)], ids=lambda o: type(o).__name__)
def test_the_reduction_of_a_flat_loss_is_recorded(loss, reduction):
    found = dict(plain(loss))
    assert found.get('reduction')==reduction
