"""A CPU on which the last bits of a result depend on shapes, positions and threads, as they do on some: `pytest
--other-cpu`

What compares results of different batch sizes to the last bit may pass on one machine and fail on another. Here it
fails.
So do the few tests that compare with a process of their own, which has another CPU, or that count what Python runs."""
import torch
from torch import library
from torch.utils._pytree import tree_leaves,tree_map

ops = '''mm addmm bmm baddbmm addmv mv dot tanh sigmoid exp log log1p expm1 erf gelu silu softplus _softmax
    _log_softmax sum.dim_IntList mean.dim native_layer_norm native_batch_norm mkldnn_convolution
    mkldnn_rnn_layer _slow_conv2d_forward'''.split() # they sum up, or use vectors of numbers
keep = [] # what replaces a kernel, replaces it as long as it lives

def short(o):
    "Where numbers have so few bits that their sums were exact, in whatever order"
    if o.dtype not in (torch.float32,torch.float64): return torch.zeros_like(o, dtype=torch.bool)
    c = o*4097
    return c-(c-o)==o

def shifted(o, key):
    """`o`, its numbers at most one unit in the last place away; what is left over of vectors of 16 goes another way
    than the rest"""
    if not isinstance(o, torch.Tensor) or not o.is_floating_point() or not o.is_contiguous(): return o
    flat,eps = o.flatten(),torch.finfo(o.dtype).eps
    cut = len(flat)//16*16
    res = flat.clone()
    res[:cut] *= 1+(key%3-1)*eps
    res[cut:] *= 1+(key//3%3-1)*eps
    return torch.where(short(flat), flat, res).view(o.shape)

def replace(lib, op):
    kernel = library.get_kernel(f'aten::{op}', 'CPU')
    def f(keys, *args, **kwargs):
        # nothing to sum
        if op in ('sum.dim_IntList','mean.dim') and args[0].numel()==1: return kernel.call_boxed(keys, *args, **kwargs)
        key = hash((torch.get_num_threads(),
            *(o.shape for o in tree_leaves((args, kwargs)) if isinstance(o, torch.Tensor))))
        return tree_map(lambda o: shifted(o, key), kernel.call_boxed(keys, *args, **kwargs))
    lib.impl(op, f, 'CPU', with_keyset=True)

def install():
    keep.append(library.Library('aten', 'IMPL'))
    for o in ops: replace(keep[-1], o)
