"""Checks of a reader's kernels over pages: exercises 3.1, 3.6 and 3.7."""

import numpy as np

from ..reference import gathered, reference_attention
from .base import Wrong, draws, exercise
from .cuda import compiled, launch, same_source

WALK = """
#include "naive_attention.cu"

__global__ void my_attention(const float* q, const float* k, const float* v, const int* block_tables, const int* seq_lens,
                             float* out, int max_blocks, int block_size, int num_kv_heads, int head_dim, float scale) {
  int seq = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y, kv_head = head / (num_heads / num_kv_heads);
  long long mine = ((long long)seq * num_heads + head) * head_dim;
  auto row = [&](int token) -> long long {
    return 0;  // three lines: the token's block, its row among all rows of head_dim numbers, and where that begins
  };
  attend(q + mine, k, v, seq_lens[seq], out + mine, head_dim, scale, row);
}"""

READERS = """
__device__ int head_of(int kv_head, int i, int num_heads, int num_kv_heads) {
  return 0;  // one line
}

__global__ void readers(int* out, int num_heads, int num_kv_heads) {  // a thread block a KV head, a thread a query head of it
  out[blockIdx.x * 32 + threadIdx.x] = head_of(blockIdx.x, threadIdx.x, num_heads, num_kv_heads);
}"""

UNMASKED = """
__global__ void decode(const float* q, const float* k, const float* v, const int* tables, const int* seq_lens, float* out,
                       int max_blocks) {  // one head of 32 numbers, pages of 4; a warp for each sequence
  int seq = blockIdx.x, d = threadIdx.x, seq_len = seq_lens[seq];
  float top = -1e30f, sum = 0, total = 0;
  for (int page = 0; page < (seq_len + 3) / 4; ++page) {
    long long block = tables[seq * max_blocks + page];
    for (int offset = 0; offset < 4; ++offset) {
      long long at = (block * 4 + offset) * 32 + d;
      float score = q[seq * 32 + d] * k[at];
      for (int flip = 16; flip > 0; flip /= 2) score += __shfl_xor_sync(~0u, score, flip);
      float new_top = fmaxf(top, score), keep = expf(top - new_top), weight = expf(score - new_top);
      top = new_top, sum = sum * keep + weight, total = total * keep + weight * v[at];
    }
  }
  out[seq * 32 + d] = total / sum;
}"""


BYTES = "The result is in numbers, not in bytes: k is a pointer to floats."
OUTSIDE = ("That row isn't in the pool: is the entry read at seq * max_blocks + token / block_size? A block has num_kv_heads "
           "times block_size rows, not num_heads times. And what is returned counts numbers, not bytes.")
PAST = ("The table ends with the last sequence's last page, and only entries of its pages may be read. token / block_size is the "
        "page, token % block_size the offset in it.")


def paged_case(random, lengths, block_size, num_kv_heads, head_dim, poison=np.nan, behind=-1):
    """k, v, tables of sequences in a shuffled pool. What holds no token is poison, or old numbers if that is None; behind a
    sequence's last block the table has -1, or another's block if `behind` is None."""
    counts = [-(-n // block_size) for n in lengths]
    ids = random.permutation(sum(counts) + 3).astype(np.int32)
    ids = ids if ids[0] else ids[::-1]  # a first page in block 0 would hide who takes the page's number for the block
    tables = np.full((len(lengths), max(counts) + 1), ids[-1] if behind is None else behind, np.int32)
    k, v = 2 * random.standard_normal((2, len(ids), block_size, num_kv_heads, head_dim)).astype("f")
    if poison is not None:
        k[:], v[:] = poison, poison
    for seq, (n, count) in enumerate(zip(lengths, counts)):
        tables[seq, :count], ids = ids[:count], ids[count:]
        at = tables[seq, np.arange(n) // block_size], np.arange(n) % block_size
        k[at], v[at] = random.standard_normal((2, n, num_kv_heads, head_dim)) + seq
    return k, v, tables


def as_given(tables, lengths, block_size):
    """Block tables as the kernels get them: row after row, and the array ends with the last page of the last sequence."""
    behind = tables.shape[1] - -(-lengths[-1] // block_size)
    return tables.ravel()[: tables.size - behind].copy()


def attention_from(q, k, v, lengths, start):
    """Attention whose token's row for a head starts at element start(seq, head, tokens) of k and v; None if one isn't there."""
    tokens, heads, head_dim = np.arange(max(lengths)), range(q.shape[1]), q.shape[2]
    at = np.array([[start(seq, head, np.minimum(tokens, n - 1)) for head in heads] for seq, n in enumerate(lengths)])
    if at.min() < 0 or at.max() + head_dim > k.size:
        return None
    at = at.transpose(0, 2, 1)[..., None] + np.arange(head_dim)
    return reference_attention(q, k.ravel()[at], v.ravel()[at], lengths)


@exercise(blank=lambda source: source is None or same_source(source, WALK))
def walk(source):
    """Exercise 3.1: the page walk in the plain kernel."""
    def part(size, num_heads, kv_heads, lengths, dim=8, **case):
        def run():
            kernel, random = compiled(source, "my_attention"), draws(f"3.1 {kv_heads} {len(lengths)}")
            *pools, tables = paged_case(random, lengths, size, kv_heads, dim, **case)
            k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in pools)  # [blocks, heads, block_size, head_dim]
            q = random.standard_normal((len(lengths), num_heads, dim)).astype("f")
            width, group = tables.shape[1], num_heads // kv_heads
            entries = np.concatenate([tables.ravel(), np.zeros(64, np.int32)])

            def starts(entry=lambda seq, t: seq * width + t // size, offset=lambda t: t % size, row=lambda head: head // group,
                       block=lambda entry, t: entries[entry].astype(int), rows=kv_heads, each=dim, page=size):
                return attention_from(q, k, v, lengths, lambda seq, head, t: (
                    (block(entry(seq, t), t) * rows + row(head)) * page + offset(t)) * each)

            def where(formula):
                """The attention if rows of `each` numbers begin at a formula of block, offset and KV head."""
                return attention_from(q, k, v, lengths, lambda seq, head, t: formula(
                    tables[seq, t // size].astype(int), t % size, head // group) * dim)

            def slips():
                found = {"The page size is the argument block_size, and not always 16.":
                             starts(lambda seq, t: seq * width + t // 16, lambda t: t % 16, page=16),
                         "Row seq of the table begins at seq * max_blocks.": starts(lambda seq, t: seq + t // size),
                         "Each sequence has its own row of the table, from seq * max_blocks on.": starts(lambda seq, t: t // size),
                         "token / block_size is the page, token % block_size the offset in it.":
                             starts(lambda seq, t: seq * width + t % size, lambda t: t // size),
                         "The table has an entry for each page: token / block_size.": starts(lambda seq, t: seq * width + t % size),
                         "That takes the page's number for the block: the table says where the page lies.":
                             starts(block=lambda entry, t: t // size),
                         "Each KV head has block_size rows of a block: those of kv_head begin at kv_head * block_size in it.":
                             starts(row=lambda head: 0),
                         "Rows are KV heads', not query heads': kv_head, not head.": starts(row=lambda head: head),
                         "A block has num_kv_heads * block_size rows.": where(lambda b, o, h: b * size + h * size + o),
                         "That is the other layout, token by token: here a block's rows lie head by head.":
                             where(lambda b, o, h: (b * size + o) * kv_heads + h),
                         "The head's rows come one behind the other: + offset, and kv_head times block_size.":
                             where(lambda b, o, h: (b * size) * kv_heads + o + h),
                         "A row has head_dim numbers: times head_dim.": starts(each=1),
                         "Each head has block_size rows of a block: times block_size before the offset.": starts(page=1),
                         "The offset in the page is token % block_size.": starts(offset=lambda t: t),
                         "A row of the table has max_blocks entries: seq * max_blocks.":
                             starts(lambda seq, t: seq * size + t // size),
                         BYTES: starts(each=4 * dim),
                         "The offset in the block is missing.": starts(offset=lambda t: 0 * t)}
                return {hint: value for hint, value in found.items() if value is not None}

            exact = reference_attention(q, *(gathered(pool, tables, lengths) for pool in pools), lengths)
            args = (q, k, v, as_given(tables, lengths, size), np.array(lengths, np.int32), np.zeros_like(q), width, size, kv_heads)
            try:
                launch(kernel, (len(lengths), num_heads), (32,), (*args, dim, dim**-0.5),
                       f"lengths {lengths}, pages of {size}, {num_heads} query and {kv_heads} KV heads of {dim}, a shuffled pool",
                       {5: exact}, slips, "Rows of the wrong tokens were read.", shared_mem=4 * (32 + max(lengths)), rtol=1e-4,
                       outside=OUTSIDE)
            except Wrong as wrong:
                wrong.hint = PAST if wrong.hint == OUTSIDE and "block_tables" in wrong.got else wrong.hint
                raise
        return run

    old = dict(poison=None, behind=None)
    return [(1, "one sequence, one head", part(4, 1, 1, [10], **old)), (1, "several sequences", part(4, 1, 1, [3, 16, 5], **old)),
            (1, "groups of query heads", part(4, 4, 2, [7, 12], **old)),
            (1, "NaN in free slots, and -1 in the table", part(8, 4, 2, [17, 31, 1]))]


@exercise(blank=lambda source: source is None or same_source(source, UNMASKED))
def masked(source):
    """Exercise 3.6: the kernel that never masks its partial last page, repaired."""
    def part(lengths, poison, hint):
        def run():
            kernel, random = compiled(source, "decode"), draws(f"3.6 {len(lengths)}")
            k, v, tables = paged_case(random, lengths, 4, 1, 32, poison)
            q = (random.standard_normal((len(lengths), 1, 32)) / 4).astype("f")

            def out(some, v=v):
                return reference_attention(q, gathered(k, tables, some), gathered(v, tables, some), some, scale=1)

            whole = [-(-n // 4) * 4 for n in lengths]

            def slips():
                no_v = v.copy()
                for seq, n in enumerate(lengths):
                    no_v[tables[seq, (n - 1) // 4], (n - 1) % 4 + 1 :] = 0
                return {"The last page was left out, with the tokens in it.": out([n // 4 * 4 for n in lengths]),
                        "The last token is number seq_len - 1.": out([n - 1 for n in lengths]),
                        "Those are all slots of the last page: only seq_len tokens count.": out(whole),
                        "One slot too many: the last token is number seq_len - 1.":
                            out([min(n + 1, w) for n, w in zip(lengths, whole)]),
                        "The sum of weights still counts the empty slots.": out(whole, no_v),
                        "out is written behind the loops: who returns in one writes nothing. Leave the loop instead.":
                            out(lengths) * (np.array(lengths) % 4 == 0)[:, None, None]}

            args = (q, k, v, as_given(tables, lengths, 4), np.array(lengths, np.int32), np.zeros_like(q), tables.shape[1])
            launch(kernel, (len(lengths),), (32,), args, f"lengths {lengths}, {'NaN' if poison else 'old numbers'} in empty slots",
                   {5: out(lengths)}, slips, hint, rtol=1e-4,
                   outside="Outside of the pool, or of the table: it ends with the last page of the last sequence.")
        return run

    nan = "A weight of 0 doesn't help: 0 times NaN is NaN. An empty slot's V must not be read, or must not count."
    return [(1, "pages that are full", part([8, 4, 16], np.nan,
                                             "The kernel was right for full pages; it still must be. (And 8 % 4 is 0.)")),
            (1, "a partial last page, old numbers behind it", part([5, 11, 6, 16], None, "Only seq_len tokens count.")),
            (1, "a partial last page, NaN behind it", part([7, 1, 10], np.nan, nan))]


@exercise(blank=lambda source: source is None or same_source(source, READERS))
def readers(source):
    """Exercise 3.7: the query heads that read a KV head."""
    def run(shapes):
        kernel = compiled(source, "readers")
        for heads, kv in shapes:
            group = heads // kv
            i, first = np.arange(group), np.arange(kv)[:, None]

            def rows(numbers, kv=kv, group=group):
                out = np.full((kv, 32), -1, np.int32)
                out[:, :group] = numbers
                return out.ravel()

            slips = {"Neighbours share a KV head: heads 0 to 6 of 28 read KV head 0.": rows(first + i * kv),
                     "7 is the group of one model: num_heads / num_kv_heads.": rows(first * 7 + i),
                     "Whole groups come before those of kv_head, and i counts within one: not the other way round.":
                         rows(i * group + first),
                     "Before them stand kv_head groups, not kv_head times all query heads.": rows(first * heads + i),
                     "That numbers the KV heads; query heads are asked for.": rows(0 * first + i % kv),
                     "That is the next group: kv_head is numbered from 0.": rows((first + 1) * group + i),
                     "Before them stand kv_head whole groups, each of num_heads / num_kv_heads.": rows(first * kv + i),
                     "That forgets i: the threads of a block do different heads.": rows(first * group + 0 * i),
                     "That is i alone: each KV head's readers are others.": rows(0 * first + i),
                     "That way round it is known already: here the KV head is given.": rows(0 * first + i // group),
                     "KV heads are numbered from 0, and so is i.": rows(first * group + i + 1),
                     "The groups overlap: the next begins where this one ends.": rows(first + i)}
            launch(kernel, (kv,), (group,), (rows(-1), heads, kv), f"{heads} query heads, {kv} KV heads",
                   {0: rows(first * group + i)}, lambda slips=slips: slips)
    random = draws("3.7")
    shapes = [(int(kv * group), int(kv)) for kv, group in zip(random.permutation([2, 3, 4]), random.permutation([3, 5, 8]))]
    return [(1, "28 query heads, 4 KV heads", lambda: run([(28, 4)])), (1, "other models", lambda: run([*shapes, (8, 1), (4, 4)]))]
