"""A Llama over a PagedCache: what it computes for rows of tokens, wherever their sequences' blocks lie."""

from functools import partial

import numpy as np

from .attention import attention_launch
from .batch import TYPES
from .cache import PagedCache
from .chunks import LEAST_CHUNK, chunk_list
from .errors import RequestTooLarge, whole
from .kernel import Launch, ladder_kernel, processors
from .llama import checked_weights
from .storage import move_launch
from .tensor_core import TILE

ROW_COUNTS = (1, 2, 4, *range(8, 129, 8), 192, 256, 384, 512, 768, 1024, 1536, 2048)
THREADS = 128


class Decoder:
    """A model, its cache, and the memory that a step needs; arrays are those of xp.

    A step feeds rows, each one token: the newest of a running sequence, or one of a prompt. A prompt's rows share their
    sequence's block table, and each sees one token more than the one before: to the attention kernel they are rows like any
    others, and nothing is masked. (It reads K and V anew for each; a kernel made for prompts would do many rows at once.)
    A step is filled up to one of row_counts rows. What is done for so many rows is made once; on a GPU its launches are
    checked then, and not again, unless checked=True.

    cache: one PagedCache for all layers, see in_all_layers; a layer has one block more than sequences get, for the rows
    that only fill up. split: long contexts are split over thread blocks, an equal share each. Without it, and with a
    single row count, what a row gives doesn't depend on the others.
    """

    def __init__(self, shape, weights, num_blocks, block_size=16, max_len=2048, row_counts=ROW_COUNTS, dtype=np.float32, xp=np,
                 split=True, checked=False):
        self.shape, self.xp, self.dtype, self.split = shape, xp, np.dtype(dtype), split
        self.num_blocks, self.block_size = whole("num_blocks", num_blocks, 1), whole("block_size", block_size, 1)
        self.max_len, self.row_counts = whole("max_len", max_len, 1), sorted(whole("row_counts", n, 1) for n in row_counts)
        self.weights = checked_weights(shape, weights, dtype, xp)
        heads, kv_heads, size = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.cache = PagedCache(shape.num_layers * (num_blocks + 1), block_size, kv_heads, size, dtype, xp)
        self.packed = xp is not np and not checked
        angles = np.arange(max_len)[:, None] * shape.rope_base ** (-np.arange(0, size, 2) / size)
        self.turns = xp.asarray(np.stack([np.cos(angles), np.sin(angles)], 2).reshape(max_len, size), np.float32)
        sizes = {"h": (shape.hidden,), "delta": (shape.hidden,), "qkv": ((heads + 2 * kv_heads) * size,), "q": (heads, size),
                 "k": (kv_heads, size), "v": (kv_heads, size), "out": (heads, size), "gate_up": (2 * shape.mlp,),
                 "mlp": (shape.mlp,)}
        rows, self.at_once = self.row_counts[-1], 2 * processors(xp)  # chunks, beside one a row
        self.arrays = {name: xp.zeros((rows + 1, *shape), dtype) for name, shape in sizes.items()}  # one for chunks that are none
        self.arrays |= dict(x=xp.zeros((rows, shape.hidden), np.float32), positions=xp.zeros(rows, np.int32),
                            slots=xp.zeros(rows, np.int64), tables=xp.zeros((rows, -(-max_len // block_size)), np.int32),
                            chunks=xp.zeros((rows + self.at_once, 6), np.int32))
        self.parts = xp.empty((rows + self.at_once, heads, 2 + size), np.float32)
        self.arrived = xp.zeros((rows, heads), np.int32)
        self._made = {}

    def in_all_layers(self, blocks):
        """A sequence's blocks as the cache's, each in all layers: block b of layer l is the cache's l * (num_blocks + 1) + b."""
        return np.add.outer(np.asarray(blocks, np.int64), np.arange(self.shape.num_layers) * (self.num_blocks + 1)).reshape(-1)

    def prepare(self):
        """Make what steps need, for every row count, so that none of them has to; returns itself."""
        for rows in self.row_counts:
            self.step([0] * rows, [0] * rows, np.full((rows, self.arrays["tables"].shape[1]), 0), [0])
        return self

    def step(self, tokens, positions, tables, wanted):
        """Feed rows: store their K and V; returns the logits of the rows `wanted`, [wanted, vocabulary].

        tokens, positions: [rows] whole numbers, each row's token, and where in its sequence it is; tables: whole numbers
        [rows, max_len / block_size], its sequence's block table. Raises RequestTooLarge for more rows than there is room
        for, ValueError for a token, position or block that isn't there.
        """
        tokens, positions, tables = (np.asarray(x, np.int64) for x in (tokens, positions, tables))
        rows = next((count for count in self.row_counts if count >= len(tokens)), None)
        if rows is None:
            raise RequestTooLarge(f"a step of {len(tokens):,} rows, and there is room for {self.row_counts[-1]:,}")
        if not 0 < len(tokens) == len(positions) == len(tables):
            raise ValueError(f"{len(tokens)} tokens, {len(positions)} positions, {len(tables)} block tables")
        _check("token", tokens, self.shape.vocabulary)
        _check("position", positions, self.max_len)
        used = tables[np.arange(tables.shape[1]) <= (positions // self.block_size)[:, None]]
        _check("block", used, self.num_blocks)
        xp, arrays = self.xp, self.arrays
        if rows not in self._made:
            self._made[rows] = self._make(rows)
        calls, attentions, groups = self._made[rows]
        size, scratch = self.block_size, self.num_blocks * self.block_size
        slots = tables[np.arange(len(tokens)), positions // size] * size + positions % size
        lengths = np.zeros(rows, np.int64)
        lengths[: len(tokens)] = positions + 1
        most = max(LEAST_CHUNK, -(-int(lengths.sum()) // max(1, self.at_once // groups))) if self.split else self.max_len
        chunks, _ = chunk_list(lengths, most, TILE)
        for attention in attentions:  # where they aren't packed, only as many thread blocks as have something to do
            attention.grid = (len(chunks) * groups,)
        filled = rows + self.at_once if self.packed else len(chunks)
        for name, values, count, filling in (("positions", positions, rows, 0), ("slots", slots, rows, scratch),
                                             ("tables", tables, rows, 0), ("chunks", chunks, filled, [rows, 0, 0, 0, 1, 0])):
            whole_array = np.empty((count, *arrays[name].shape[1:]), arrays[name].dtype)
            whole_array[: len(values)], whole_array[len(values) :] = values, filling
            arrays[name][:count] = xp.asarray(whole_array)
        ids = np.zeros(rows, np.int64)
        ids[: len(tokens)] = tokens
        arrays["x"][:rows] = self.weights["embedding"][xp.asarray(ids)]
        arrays["delta"][:rows] = 0
        for call in calls:
            call()
        return self._logits(xp.asarray(np.asarray(wanted, np.int64)))

    def _logits(self, wanted):
        if not len(wanted):
            return self.xp.empty((0, self.shape.vocabulary), self.dtype)
        x, delta = self.arrays["x"][wanted], self.arrays["delta"][wanted]
        return self._norm(x, delta, self.weights["norm"], self.xp.empty_like(delta))() @ self.weights["output"]

    def _make(self, rows):
        """The calls that do a step of so many rows, between the embedding and the last norm; and the launches of attention
        among them, with the thread blocks that these have for a chunk."""
        xp, shape, a = self.xp, self.shape, {name: array[:rows] for name, array in self.arrays.items()}
        per_layer, calls, attentions = self.num_blocks + 1, [], []
        pools = [[x[layer * per_layer : (layer + 1) * per_layer] for x in (self.cache.k, self.cache.v)]
                 for layer in range(shape.num_layers)]
        nowhere = np.ones(rows, np.int64), np.zeros(a["tables"].shape, np.int32)
        attention = attention_launch(a["q"], *pools[0], *nowhere, out=a["out"])
        groups = attention.grid[0] // rows
        attention = attention.with_args(((rows + self.at_once) * groups,), tables=a["tables"], chunks=self.arrays["chunks"],
                                        parts=self.parts, arrived=self.arrived)
        rope = self._launch("rope", (rows,), a["qkv"], a["positions"], self.turns, a["q"], a["k"], a["v"], shape.num_heads,
                            shape.num_kv_heads, shape.head_dim)
        swiglu = self._launch("swiglu", (rows, -(-shape.mlp // THREADS)), a["gate_up"], a["mlp"], shape.mlp)
        for (k, v), w in zip(pools, self.weights["layers"]):
            attentions.append(attention.with_args(k=k, v=v))
            calls += [self._norm(a["x"], a["delta"], w["attention_norm"], a["h"]), partial(xp.dot, a["h"], w["qkv"], out=a["qkv"]),
                      rope, move_launch(xp, "append", a["slots"], k[0, 0].nbytes, (a["k"], a["v"], k, v)), attentions[-1],
                      partial(xp.dot, a["out"].reshape(rows, -1), w["attention_out"], out=a["delta"]),
                      self._norm(a["x"], a["delta"], w["mlp_norm"], a["h"]),
                      partial(xp.dot, a["h"], w["gate_up"], out=a["gate_up"]), swiglu,
                      partial(xp.dot, a["mlp"], w["down"], out=a["delta"])]
        if self.packed:
            return [call.packed() if isinstance(call, Launch) else call for call in calls], [], groups
        return calls, attentions, groups

    def _launch(self, file, grid, *args, threads=THREADS, shared=0, out=None):
        return Launch(ladder_kernel(f"{file}.cu", f"{file}<{TYPES[self.dtype.name]}>"), grid, (threads,), args, shared, out)

    def _norm(self, x, delta, weight, out):
        return self._launch("rms_norm", (len(x),), x, delta, weight, out, self.shape.hidden, self.shape.norm_epsilon,
                            shared=4 * THREADS, out=out)


def _check(what, numbers, count):
    if len(wrong := numbers[(numbers < 0) | (numbers >= count)]):
        raise ValueError(f"{what} {wrong[0]:,} of {count:,}")
