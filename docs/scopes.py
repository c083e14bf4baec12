"The loop as a picture: nested boxes, drawn from the table of scopes"
from html import escape
from learner.core.events import training_loop

width,line,pad,step = 640,22,10,16 # of the picture, of a line of text, around the content of a box, between left edges
says = dict(fit='learn.fit(n)', epoch='for each epoch', train='for each batch of dls.train', batch='xb, yb → pred → loss',
    validate='for each batch of dls.valid', backward='loss.backward()', step='opt.step()')

def measure(scope):
    "Height of the box of a scope"
    return 2*line+pad + sum(measure(o)+pad if isinstance(o, tuple) else line for o in scope[1:])

def text(x, y, s, cls, anchor='start'): return f'<text x="{x}" y="{y}" class="{cls}" text-anchor="{anchor}">{escape(s)}</text>'

def box(scope, x, y, depth=0):
    "A scope with its events, and within it the scopes that it consists of"
    name,*body = scope
    h,right = measure(scope),width-x
    yield f'<g class="scope depth{depth}"><rect x="{x}" y="{y}" width="{right-x}" height="{h}" rx="8"/>'
    yield text(x+pad, y+line-5, name, 'name')
    yield text(right-pad, y+line-5, says[name], 'says', 'end')
    yield text(x+pad+90, y+line-5, f'before_{name}', 'event')
    top = y+line+2
    for o in body:
        if isinstance(o, tuple):
            yield from box(o, x+step, top, depth+1)
            top += measure(o)+pad
        else:
            yield text(x+pad+90, top+line-7, o, 'event')
            top += line
    yield text(x+pad+90, y+h-pad+1, f'after_{name}', 'event') + '</g>'

def picture():
    "The picture as SVG, with the words for those who cannot see it"
    h = measure(training_loop)
    title = 'The training loop: seven nested scopes, each with the event before it and the one after it'
    return '\n'.join([f'<figure class="loop"><svg viewBox="-1 -1 {width+2} {h+2}" role="img" aria-label="{title}">',
        f'<title>{title}</title>', *box(training_loop, 0, 0), '</svg>',
        '<figcaption>A scope is a box. Callbacks act on the events in it; every scope also has the events '
        '<code>after_cancel_…</code> and <code>cleanup_…</code>.</figcaption></figure>'])
