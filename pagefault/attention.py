"""The ladder of attention kernels, one Python function a rung: checks, chooses, launches.

All rungs have one signature (where contexts are split, with split_tokens too). Each computes the attention of one new token
a sequence over what is cached for it:

q, out: [num_seqs, num_heads, head_dim]; all arrays are float32 or all float16, and all NumPy's, or all on one GPU.
k, v: a contiguous cache [num_seqs, max_seq_len, num_kv_heads, head_dim], or, with block_tables, a pool
[num_blocks, block_size, num_kv_heads, head_dim].
seq_lens: [num_seqs] whole numbers, the new token counted; a sequence of 0 tokens gives a row of zeros.
block_tables: [num_seqs, max_blocks] whole numbers; past a sequence's last block anything may stand, -1 say.
scale: of the scores, 1 / sqrt(head_dim) unless given.

A rung returns out, a new array unless one is given. Arrays of other libraries come in, out too, through DLPack or the CUDA
array interface, without a copy. The tokens of a prompt are rows that share one table, with lengths that rise by one: so
causal prefill is a batch like any other. A rung's `_launch` gives the same as a Launch, which can be run many times.
"""

from .batch import address, check_pieces, checked_batch
from .chunks import chunked
from .errors import RequestTooLarge
from .kernel import Launch, ladder_kernel, processors, shared_limit, tensor_cores
from .tensor_core import tensor_core_launch

THREADS = 128  # of the naive kernels; a power of two
WARP_THREADS = 32 * 8  # of online_softmax and split_kv: WARPS in their source


def naive_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention with all scores in shared memory: kernels/naive_attention.cu, with a page walk in paged_attention.cu.

    The module's docstring says what the arguments are. Returns out.
    Raises RequestTooLarge for a context whose scores exceed a thread block's shared memory.
    """
    return naive_launch(q, k, v, seq_lens, block_tables, scale, out)()


def naive_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that naive_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    longest = int(b.lengths.max(initial=0))
    shared, limit = 4 * (THREADS + longest), shared_limit(b.xp)
    if shared > limit:
        raise RequestTooLarge(f"a context of {longest:,} tokens needs {shared:,} bytes of shared memory for its scores; "
                              f"a thread block has at most {limit:,}, enough for {limit // 4 - THREADS:,} tokens")
    num_seqs, num_heads, head_dim = b.q.shape
    if b.tables is None:
        kernel, where = ladder_kernel("naive_attention.cu", f"naive_attention<{b.type}>"), (b.seq_lens,)
    else:
        kernel = ladder_kernel("paged_attention.cu", f"paged_attention<{b.type}, {b.k.shape[1]}>")
        where = b.tables, b.seq_lens
    args = (b.q, b.k, b.v, *where, b.out, b.layout[2], b.k.shape[2], head_dim, b.scale)
    return Launch(kernel, (num_seqs, num_heads), (THREADS,), args, shared, b.out)


def online_softmax_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention in one pass over K and V, whatever the context's length: kernels/online_softmax.cu.

    The module's docstring says what the arguments are; head_dim is a multiple of 8, at most 256. Returns out.
    """
    return online_softmax_launch(q, k, v, seq_lens, block_tables, scale, out)()


def online_softmax_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that online_softmax_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    check_pieces(b)
    num_seqs, num_heads, head_dim = b.q.shape
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("online_softmax.cu", f"online_softmax<{b.type}, {head_dim}, {layout}>")
    args = (b.q, b.k, b.v, tables, b.seq_lens, b.out, table_size, num_heads, b.k.shape[2], b.scale)
    return Launch(kernel, (num_seqs * num_heads,), (WARP_THREADS,), args, 0, b.out)


def split_kv_attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """Attention that splits contexts over thread blocks and reads each K and V once: kernels/split_kv.cu.

    The module's docstring says what the arguments are; head_dim is a multiple of 8, at most 256. split_tokens: a thread
    block takes at most so many tokens; unless given, an equal share of all, if that is 128 or more. (For groups
    of more than 8 query heads, or of 4 and a head_dim above 128, K and V are read as often as it takes.) Returns out.
    """
    return split_kv_launch(q, k, v, seq_lens, block_tables, scale, out, split_tokens)()


def split_kv_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None, split_tokens=None):
    """The Launch that split_kv_attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    check_pieces(b)
    num_seqs, num_heads, head_dim = b.q.shape
    group = max(g for g in range(1, 9) if num_heads // b.k.shape[2] % g == 0 and (g == 1 or g * head_dim <= 1024))
    at_once = processors(b.xp) * (1 if group > 4 else 2) * group // num_heads
    layout, tables, table_size = b.layout
    kernel = ladder_kernel("split_kv.cu", f"split_kv<{b.type}, {head_dim}, {group}, {layout}>")
    chunks, parts, arrived = chunked(b, split_tokens, at_once)
    args = (b.q, b.k, b.v, tables, chunks, b.out, parts, arrived, table_size, num_heads, b.k.shape[2], b.scale)
    return Launch(kernel, (len(chunks) * num_heads // group,), (WARP_THREADS,), args, 0, b.out, arrived)


def attention(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """Attention by the best rung that takes these arguments on this machine; the module's docstring says what they are.

    That is tensor_core_attention for float16 and a head_dim of 64 or 128 (on a GPU of compute capability 8.0 or more), else
    split_kv_attention for a head_dim that is a multiple of 8 up to 256, else naive_attention. Returns out.
    """
    return attention_launch(q, k, v, seq_lens, block_tables, scale, out)()


def attention_launch(q, k, v, seq_lens, block_tables=None, scale=None, out=None):
    """The Launch that attention makes of its arguments."""
    b = checked_batch(q, k, v, seq_lens, block_tables, scale, out)
    head_dim = b.q.shape[2]
    if head_dim % 8 or head_dim > 256 or address(b.k) % 16 or address(b.v) % 16:
        rung = naive_launch
    elif b.type == "__half" and head_dim in (64, 128) and address(b.q) % 4 == 0 and tensor_cores(b.xp):
        rung = tensor_core_launch
    else:
        rung = split_kv_launch
    return rung(q, k, v, seq_lens, block_tables, scale, out)
