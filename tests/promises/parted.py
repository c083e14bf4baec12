"Pairs of runs that part at a known training batch for a known reason. Either side saves its fingerprint"
import importlib.util,json,random,warnings
from pathlib import Path
from unittest.mock import patch
import numpy as np
import torch
import runs
from learner.all import *
from runs import seed_all,some_case

kinds = 'equal','data','random stream','code','hyper-parameter','arithmetic'

# Code of the user's own, of which there are two versions: they differ in the numbers in braces
source = '''
import torch
from learner.all import Callback
from runs import Net,Samples

class MyNet(Net):
    def forward(self, x, ids):
        return super().forward(x, ids)*{scale}

class MySamples(Samples):
    def __getitem__(self, i):
        x,i,y = super().__getitem__(i)
        return x*{contrast},i,y

class Late(Callback):
    run_valid = False
    def before_batch(self):
        if self.train_iter=={late}:
            self.learn.model.head.bias.data.add_(.01)

def my_loss(pred, y):
    return (pred-y).pow(2).mean()*{weight}
'''
usual = dict(scale=1., contrast=1., late=9, weight=1.)

def version(numbers, path):
    "A module with the user's code"
    file = Path(path)/'mine.py'
    file.write_text(source.format(**numbers))
    spec = importlib.util.spec_from_file_location('mine', file)
    res = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(res)
    return res

# What is done at one batch by functions that both runs have
plan = {}

def due(learn, what): return learn.training and plan.get('do')==what and learn.train_iter==plan['step']

def draw(learn):
    if not due(learn, 'draw'): return
    which = plan['generator']
    random.random() if which=='python' else np.random.rand() if which=='numpy' else torch.rand(1)

def draw_at_epoch(learn):
    if plan.get('do')=='draw at epoch' and learn.epoch==plan['epoch']: torch.rand(1)

def change_hyper(learn):
    if not due(learn, 'set'): return
    vals = get_hyper(learn.opt, plan['name'])
    g = plan['group']%len(vals)
    vals[g] = 1.1*vals[g] + 1e-4 # one can be 0
    learn.set_hyper(plan['name'], vals)

@torch.no_grad()
def change_weight(learn):
    if due(learn, 'weight'): learn.model.head.weight.view(-1)[3].mul_(1+2**-16)
@torch.no_grad()
def change_buffer(learn):
    if due(learn, 'buffer'): learn.model.body[1].running_mean[2].add_(2**-12)
def change_pred(learn):
    if due(learn, 'pred'): learn.pred = learn.pred*(1+2**-6) # seen in half precision too

class Witness(Callback):
    "Which samples came, in which epoch, and when the optimizer took steps, from other sources than a `Fingerprint`"
    order,run_valid,only_fit,writes = -20,False,True,True # before batches are counted
    def __init__(self): self.seen,self.steps = [],[]
    def after_batch(self): self.seen.append([self.learn.epoch, self.learn.batch[1].tolist()])
    def after_step(self): self.steps.append(self.learn.train_iter - ('batch' not in self.learn.scopes))

indexed = 'shuffled','own','sampler','weighted','batch_sampler'

def plan_for(kind, case, rng):
    "What the other run does differently, and with which options of the case, code and learner"
    k = rng.randrange(12)
    if kind=='equal': return {}
    if kind=='data': return dict(index=rng.randrange(16, 42), what=rng.choice('xy'))
    if kind=='random stream':
        which = rng.choice(['seed'] + ['draw']*4 + ['draw at epoch']*(case['loader']!='endless'))
        if which=='seed': return dict(seed=5)
        if which=='draw at epoch': return dict(do=which, epoch=rng.choice([1, 2]))
        return dict(do=which, step=k, generator=rng.choice(['python','numpy','torch']))
    if kind=='code':
        options = ['scale','late'] + ['contrast']*(case['loader'] in indexed) + ['weight']*(case['loss']!='module')
        which = rng.choice(options)
        return dict(numbers={which: rng.choice([5, 7, 11]) if which=='late' else 1.01}, which=which)
    if kind=='hyper-parameter':
        if rng.random()<.2 and case['drop']: return dict(drop=.35)
        name = 'wd' if case['sched'] or case['swa'] else rng.choice(['lr','wd','mom'])
        return dict(do='set', step=rng.choice([0, k]), name=name, group=rng.randrange(2))
    return dict(do=rng.choice(['weight','weight','pred','buffer']), step=k)

def problem(seed):
    "A case, and a plan for each kind of difference"
    rng,case = random.Random(seed),None
    while case is None or runs.lacks(case): case = some_case(rng)
    return case,{k:plan_for(k, case, rng) for k in kinds}

def train(case, how, path, seed):
    "A run and its fingerprint"
    path.mkdir(parents=True)
    mine = version(usual | how.get('numbers', {}), path)
    class Changed(mine.MySamples): # the data are changed, and no code
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if 'index' in plan and len(self.x)==42: getattr(self, plan['what'])[plan['index']] += .5
    plan.clear()
    plan.update(how)
    case = case | ({'drop': how['drop']} if 'drop' in how else {})
    with patch.multiple(runs, Net=mine.MyNet, Samples=Changed), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn,witness = runs.learner(case, path, seed),Witness()
        if case['loss']!='module': learn.loss_func = mine.my_loss
        seed_all(how.get('seed', seed))
        cbs = [on('before_batch')(draw), on('after_pred')(draw), on('after_batch', order=-30)(draw),
            on('before_epoch')(draw_at_epoch),
            on('before_batch', order=90)(change_hyper), on('before_batch')(change_weight),
            on('after_pred')(change_pred), on('after_batch', order=-30)(change_buffer)]
        runs.fit(learn, case, [*cbs, mine.Late(), witness, Fingerprint(file=path/'trail.pth')])
    (path/'witness.json').write_text(json.dumps([witness.seen, witness.steps]))

def expected(kind, how, seen, steps):
    "The first batch that differs; None if there is none"
    if kind=='equal': return None
    if kind=='data': return next((n for n,(_,ids) in enumerate(seen) if how['index'] in ids), None)
    if 'seed' in how or 'drop' in how: return 0
    if 'epoch' in how: return next((n for n,(epoch,_) in enumerate(seen) if epoch==how['epoch']), None)
    if kind=='code': return min(usual['late'], how['numbers']['late']) if how['which']=='late' else 0
    step = how['step'] if how['step']<len(seen) else None
    if how.get('do')=='set': return next((n for n in steps if n>=how['step']), None)
    return step

def train_firsts(out, seeds):
    "The runs that the others part from"
    for seed in seeds: train(problem(seed)[0], {}, Path(out)/f'{seed} a', seed)

def train_others(out, seeds):
    for seed in seeds:
        case,plans = problem(seed)
        for kind,how in plans.items(): train(case, how, Path(out)/f'{seed} {kind}', seed)
