"A fit with techniques that is stopped and resumed equals one that was never stopped"
from functools import cache
import pytest,torch
from torch import nn
from torch.nn import functional as F
from learner.all import *
from small_fits import net,cut,mk,weights,same,Room,Recurrent,sequences

kinds = dict(clip=lambda: [GradientClip(.3)], accumulation=lambda: [GradientAccumulation(25)],
    tokens=lambda: [GradientAccumulation(25, lambda learn: len(learn.y))], micro=lambda: [MicroBatch],
    several=lambda: [MicroBatch(4), GradientAccumulation(25), MixUp(), GradientClip(.3)],
    short=lambda: [ShortEpochCallback(.5)], rnn=lambda: [ModelResetter, RNNCallback])
def make(name):
    torch.manual_seed(1)
    if name=='rnn':
        return mk(*kinds[name](), data=sequences(), valid=sequences(2), model=Recurrent(), loss_func=F.mse_loss)
    model = Room(4) if name=='micro' else nn.Sequential(net(), nn.Dropout(.1))
    return mk(*kinds[name](), model=model, valid=cut(20))
@cache
def unstopped(name): return make(name).fit(3)

@pytest.mark.sample(2, together=2)
@pytest.mark.parametrize('name', kinds)
@pytest.mark.parametrize('at', [1, 4, 8])
@pytest.mark.parametrize('file', [False,True])
def test_a_stopped_fit_resumes_exactly(name, at, file, tmp_path):
    def stop(learn):
        if learn.training and learn.train_iter==at: learn.at_pause(interrupt, stops=True)
    def interrupt(): raise KeyboardInterrupt
    whole,learn = unstopped(name),make(name)
    with pytest.raises(KeyboardInterrupt): learn.fit(3, cbs=on(event.after_batch)(stop))
    if file:
        learn.save_state(tmp_path/'state.pt')
        learn = make(name)
        for p in learn.model.parameters(): p.data.zero_()
        learn.load_state(tmp_path/'state.pt')
    learn.resume(cbs=[])
    assert (same(weights(whole.model), weights(learn.model)) and whole.recorder.raw_losses==learn.recorder.raw_losses
        and whole.opt_step==learn.opt_step)
    if name=='clip': assert torch.equal(whole.gradient_clip.norms, learn.gradient_clip.norms)
    if name=='micro': assert learn.micro_batch.fits==3 and max(learn.model.tried)==(3 if file else 10)
