"Train a small convolutional network on 1,797 scanned digits, and look at what it learned"
from math import cos,pi
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader,TensorDataset
from sklearn.datasets import load_digits
from learner.all import *

here = Path(__file__).parent
torch.manual_seed(3)

# Data: 8×8 pixels with 17 levels of grey, four fifths of them to train on
images,labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).view(-1,1,8,8)/8 - 1
y = torch.tensor(labels)
order = torch.randperm(len(x))
train,valid = [TensorDataset(x[i], y[i]) for i in order.split([1440,357])]
dls = DataLoaders(DataLoader(train, batch_size=32, shuffle=True), DataLoader(valid, batch_size=119))

# Model
def conv(ni, nf): return nn.Sequential(nn.Conv2d(ni, nf, 3, padding=1), nn.BatchNorm2d(nf), nn.ReLU())
model = nn.Sequential(conv(1,32), conv(32,32), nn.MaxPool2d(2), conv(32,64), conv(64,64), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(.3), nn.Linear(256,10))

# Two callbacks, written where they are needed
class Cosine(Callback):
    "Warm the learning rate up for a quarter of the fit, and let it go down to nothing along a cosine"
    run_valid = False
    def __init__(self, lr_max): self.lr_max = lr_max
    def before_batch(self):
        p = self.pct_train
        self.learn.set_hyper('lr', self.lr_max * (p/.25 if p<.25 else (1+cos(pi*(p-.25)/.75))/2))

class Jitter(Callback):
    "Shift each batch of training images by up to a pixel"
    run_valid = False
    def before_batch(self): self.learn.x = self.x.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(2,3))

learn = Learner(dls, model, nn.CrossEntropyLoss(), metrics=accuracy)
print(learn, '\n')
learn.fit(14, cbs=[Cosine(.005), Jitter])
print(f'\n{learn.validate()}')

# Pictures
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
plt.rcParams.update({'axes.spines.top': False, 'axes.spines.right': False})
plt.rcParams.update({'font.size': 9, 'font.family': 'DejaVu Sans'})
blue,red,ink = '#3b6fb6','#d1495b','#2b2d42'

def plot_fit(rec):
    "Losses by batch, and accuracy by epoch"
    fig,(left,right) = plt.subplots(1, 2, figsize=(9,3.2), width_ratios=(3,2), layout='constrained')
    left.plot(rec.raw_losses, color=blue, alpha=.18, lw=.6)
    left.plot(rec.losses, color=blue, lw=1.6, label='training, smoothed')
    left.plot(rec.iters, rec['valid_loss'], 'o-', color=red, ms=3.5, lw=1.2, label='validation')
    left.set(yscale='log', xlabel='batch', ylabel='cross-entropy loss'); left.legend(frameon=False)
    right.plot(100*rec['accuracy'], 'o-', color=red, ms=3.5, lw=1.2)
    right.set(xlabel='epoch', ylabel='validation accuracy, %', ylim=(max(85, 100*rec['accuracy'].min()-1),100.4))
    best = 100*rec[-1,'accuracy']
    right.annotate(f'{best:.1f} %', (len(rec.rows)-1,best), (0,-24), textcoords='offset points', ha='right', color=red)
    return fig

def plot_digits(x, y, probs, cols=14):
    "A grid of digits: mistakes first and in red, then the least certain; below each, a bar for its probability"
    conf,pred = probs.max(1)
    wrong = pred!=y
    show = torch.argsort(conf + ~wrong)[:cols*5]
    fig,axs = plt.subplots(5, cols, figsize=(cols*.62,5*.84), layout='constrained')
    for ax,i in zip(axs.flat, show):
        color = red if wrong[i] else ink
        ax.imshow(x[i,0], cmap='gray_r', interpolation='bicubic')
        ax.set(xticks=[], yticks=[], title=f'{pred[i]}, is {y[i]}' if wrong[i] else f'{pred[i]}')
        ax.title.set(color=color, fontsize=8, fontweight='bold' if wrong[i] else 'normal')
        for s in ax.spines.values(): s.set(visible=bool(wrong[i]), color=red, linewidth=1.6)
        ax.plot([-.5, -.5+8*conf[i]], [8.2,8.2], color=color, lw=2, clip_on=False, solid_capstyle='butt')
    n = int(wrong.sum())
    fig.suptitle(f"{n} mistake{'s'*(n!=1)} in {len(y)} digits, and those the network was least sure of", color=ink)
    return fig

probs,targs = learn.get_preds()
for nm,fig in dict(loss=plot_fit(learn.recorder), digits=plot_digits(valid.tensors[0], targs, probs)).items():
    fig.savefig(here/f'{nm}.png', dpi=150)
print('Pictures written to demo/loss.png and demo/digits.png')
