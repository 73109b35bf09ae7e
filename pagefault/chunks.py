"""A batch cut into chunks, a thread block each: kernels/chunks.cuh."""

import numpy as np

from .errors import whole

LEAST_CHUNK = 128  # tokens: below it a thread block has too little to do


def chunked(b, split_tokens, at_once, multiple=1):
    """A Batch's chunks, room for their parts, and how many of these have arrived, as kernels take them.

    split_tokens: what a chunk has at most; if None, an equal share of all tokens for at_once chunks, the number that the GPU
    has in hand at the same time, but not less than LEAST_CHUNK.
    """
    if split_tokens is None:
        split_tokens = max(LEAST_CHUNK, -(-int(b.lengths.sum()) // max(1, at_once)))
    chunks, num_parts = chunk_list(b.lengths, whole("split_tokens", split_tokens, 1, 2**31 - 1), multiple)
    num_seqs, num_heads, head_dim = b.q.shape
    parts = b.xp.empty((num_parts, num_heads, 2 + head_dim), np.float32)
    return b.xp.asarray(chunks), parts, b.xp.zeros((num_seqs, num_heads), np.int32)


def chunk_list(lengths, most, multiple=1):
    """A batch cut into chunks of at most `most` tokens, the longest first; and how many are not a whole sequence.

    lengths: int64 [num_seqs]. Chunks begin at multiples of `multiple` tokens, so that one may have up to multiple - 1 more
    than `most`; those of a sequence are as equal as that allows, and one of 0 tokens has one chunk. Returns int32
    [chunks, 6], whose columns are the members of Chunk in kernels/chunks.cuh.

    >>> chunk_list(np.array([5, 12]), 8)[0].tolist()
    [[1, 0, 6, 0, 2, 0], [1, 6, 12, 1, 2, 0], [0, 0, 5, 0, 1, 0]]
    """
    units = -(-lengths // multiple)
    num_parts = np.maximum(1, np.minimum(units, -(-lengths // most)))
    split = np.where(num_parts > 1, num_parts, 0)
    seq = np.repeat(np.arange(len(lengths)), num_parts)
    part = np.arange(len(seq)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    begin, end = (np.minimum(units[seq] * p // num_parts[seq] * multiple, lengths[seq]) for p in (part, part + 1))
    chunks = np.stack([seq, begin, end, part, num_parts[seq], (np.cumsum(split) - split)[seq]], axis=1)
    return chunks[np.argsort(begin - end, kind="stable")].astype(np.int32), int(split.sum())
