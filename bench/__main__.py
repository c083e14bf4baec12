"""What `learner` costs, as one table and one JSON file

    python -m bench [-k WORDS] [--quick] [--peers] [--out FILE]

Contenders do the same work in interleaved runs, and what they come to is compared. Shown are the medians of what the
counterpart takes (mostly the loop by hand), of what comes on top of it or how many times as long it takes, between
which values half of the runs lie, and what is allowed. CPU time of the process on one thread, so that other processes
matter less; wall-clock time where files are written, and on a GPU, until it has done its work.
"""
import argparse,json,os,sys
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
import torch
from . import batches,fresh,gpu,processes,states,techniques
from .shared import hardware

def show(row):
    allowed = '' if row.allowed is None else f'{row.allowed:9.4g}' + ('' if row.holds else ' !')
    half = f'{row.low:.4g} … {row.high:.4g}'
    print(f'{row.group:27}{row.name:55.55}{row.base:10.4g} {row.base_unit:12}{row.value:9.4g} {row.unit:12}{half:>18}'
        f'{allowed}', flush=True)

def write(file, about, rows):
    "Write rows to a file, and keep others that are there if they are of the same hardware and versions"
    old,now = [],{(o['group'],o['name']):o for o in rows}
    if file.exists():
        was = json.loads(file.read_text(encoding='utf-8'))
        if was['hardware']==about: old = [now.pop((o['group'],o['name']), o) for o in was['rows']]
    load = round(os.getloadavg()[0], 1) # above 1: other processes ran as well
    res = dict(date=f'{date.today()}', load=load, hardware=about, rows=[*old, *now.values()])
    file.write_text(json.dumps(res, indent=1, ensure_ascii=False)+'\n', encoding='utf-8')

def main(argv=None):
    p = argparse.ArgumentParser(prog='python -m bench', description=__doc__.splitlines()[0])
    p.add_argument('-k', default='', metavar='WORDS', help='only groups whose name has one of these words')
    p.add_argument('--quick', action='store_true', help='few repeats, to see that it runs')
    p.add_argument('--peers', action='store_true', help='other libraries, on the same models')
    p.add_argument('--out', type=Path, metavar='FILE', help='where to write rows')
    args,modules,about = p.parse_args(argv),[batches,techniques,states,processes,fresh,gpu],hardware()
    if args.peers:
        from . import peers
        modules = [peers]
        about |= {k:version(k) for k in peers.libraries}
    groups = {f.__name__:f for m in modules for f in m.groups}
    chosen = [f for k,f in groups.items() if not args.k or any(o in k for o in args.k.split())]
    if not chosen: sys.exit(f"No group has {args.k!r} in its name: there are {', '.join(groups)}")
    rows,start = [],perf_counter()
    for f in chosen:
        begin = perf_counter()
        for row in f(3 if args.quick else 9):
            show(row)
            rows.append(asdict(row))
        if args.out: write(args.out, about, rows)
        print(f'{f.__name__}: {perf_counter()-begin:.0f} s', file=sys.stderr)
    print(f'All in {(perf_counter()-start)/60:.1f} minutes', file=sys.stderr)

if __name__=='__main__':
    torch.set_num_threads(1)
    main()
