"The loop as a picture: nested boxes, drawn from the table of scopes"
from html import escape
from learner.core.events import training_loop

width,line,pad,step = 640,20,10,16 # of the picture, of a line of text, below what is in a box, between left edges
says = dict(fit='learn.fit(n_epoch)', epoch='each epoch', train='each batch of dls.train', batch='pred = model(*xb)',
    validate='each batch of dls.valid', backward='loss.backward()', step='opt.step()')
light = '--text: #57606a; --name: #2456a6; --says: #8a5a00; --box: #4a6fa5;'
dark  = '--text: #a8b3c0; --name: #8ab8ff; --says: #e3b566; --box: #8ab8ff;'
style = f"""<style>
svg.scopes {{ {light} }}
@media (prefers-color-scheme: dark) {{ svg.scopes {{ {dark} }} }}
body[data-theme="light"] svg.scopes {{ {light} }}
body[data-theme="dark"] svg.scopes {{ {dark} }}
.scopes rect {{ fill: var(--box); fill-opacity: .07; stroke: var(--box); stroke-opacity: .5; }}
.scopes text {{ font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: var(--text); }}
.scopes .name {{ font-weight: 700; fill: var(--name); }}
.scopes .says {{ fill: var(--says); }}
</style>"""
title = 'The training loop as nested boxes: fit, epoch, train and validate, batch, backward and step, with their events'
caption = ('A box is a scope, read from top to bottom. Callbacks act on the events written in it. Every scope '
    '<code>x</code> also has the events <code>after_cancel_x</code> and <code>cleanup_x</code>, which are left out.')

def lines(scope):
    "What is written in the box of a scope: events and inner scopes. A scope without any says it all on one line"
    name,*body = scope
    return [f'before_{name}', *body, f'after_{name}'] if body else []

def height(scope): return line+pad + sum(height(o)+pad if isinstance(o, tuple) else line for o in lines(scope))

def text(x, y, s, cls, anchor='start'):
    return f'<text x="{x}" y="{y}" class="{cls}" text-anchor="{anchor}">{escape(s)}</text>'

def box(scope, x, y):
    "A scope with its events and the scopes within"
    name,h,right = scope[0],height(scope),width-x
    yield f'<g><rect x="{x}" y="{y}" width="{right-x}" height="{h}" rx="6"/>'
    yield text(x+10, y+18, name, 'name')
    if len(scope)==1: yield text(x+110, y+18, f'before_{name}  after_{name}', 'event')
    yield text(right-10, y+18, says[name], 'says', 'end')
    top = y+line+pad//2
    for o in lines(scope):
        if isinstance(o, tuple): yield from box(o, x+step, top+3)
        else: yield text(x+step+10, top+14, o, 'event')
        top += height(o)+pad if isinstance(o, tuple) else line
    yield '</g>'

def picture():
    "The picture as SVG, in the colours of the reader's system"
    h = height(training_loop)
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" class="scopes" viewBox="-1 -1 {width+2} {h+2}" role="img" '
        f'aria-label="{title}">', f'<title>{title}</title>', style, *box(training_loop, 0, 0), '</svg>'])
