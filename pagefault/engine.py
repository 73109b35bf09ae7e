"""The other executor: a scheduler's batches, really decoded by a model, on a measured clock."""

from time import perf_counter_ns

import numpy as np

from .blocks import block_tables
from .costs import fed
from .errors import RequestTooLarge, whole
from .host_blocks import HostBlocks
from .simulator import simulate


class Engine:
    """Does what a scheduler's batches ask, with a Decoder; to simulate() it is a cost, whose nanoseconds are measured.

    So the same loop runs the same scheduler; what differs is where time comes from. Each sequence is continued greedily, for as
    many tokens as its request says; of several samples, number i begins with the i-th likeliest token. A prompt
    without token ids gets random ones, by seed and number.

    tokens: {(number, sample): token ids} of all that ran, prompts included. margins, if asked for: {(number, sample,
    position): how far a token's logit was above the second best}. log: a row of LOG a step.
    """

    LOG = "rows", "context_tokens", "prompt_pairs", "compute_ns", "swapped_blocks", "swap_ns"

    def __init__(self, decoder, seed=0, margins=False):
        self.decoder, self.seed = decoder, seed
        self.tokens, self.margins, self.log = {}, {} if margins else None, []
        self._host, self._swap_ns = None, 0

    def serve(self, requests, **rules):
        """Serve requests from an empty cache, through a Scheduler with these rules; returns a Result, as simulate() does.

        At most as many tokens a step as the decoder has rows (token_budget). Raises RequestTooLarge if a request is longer
        than the decoder's max_len, ValueError for a token id beyond its vocabulary, before anything runs.
        """
        decoder = self.decoder
        for request in requests:
            if request.total_tokens > decoder.max_len:
                raise RequestTooLarge(f"a request of {request.total_tokens:,} tokens, and max_len is {decoder.max_len:,}")
            if request.tokens and not 0 <= min(request.tokens) <= max(request.tokens) < decoder.shape.vocabulary:
                raise ValueError(f"token ids from {min(request.tokens):,} to {max(request.tokens):,}, and the vocabulary has "
                                 f"{decoder.shape.vocabulary:,}")
        if rules.get("like_threads") or rules.get("overlap_swap"):
            raise ValueError("an engine writes to blocks that like_threads gives away; its swaps end with the step (overlap_swap)")
        budget = rules.setdefault("token_budget", decoder.row_counts[-1])
        if budget is None or budget > decoder.row_counts[-1]:
            raise ValueError(f"token_budget = {budget}, and the decoder has room for {decoder.row_counts[-1]:,} rows")
        self.tokens, self.log = {}, []
        self._host = HostBlocks(decoder.cache, whole("swap_blocks", rules.get("swap_blocks", 0)) * decoder.shape.num_layers)
        self.margins = None if self.margins is None else {}
        return simulate(requests, decoder.num_blocks, decoder.block_size, cost=self, **rules)

    def compute_ns(self, batch):
        """Do a batch; returns the nanoseconds that it took, without its swaps."""
        self._move(batch)
        start = perf_counter_ns()
        if batch.copies:
            pairs = [self.decoder.in_all_layers(blocks) for blocks in zip(*batch.copies)]
            self.decoder.cache.copy_blocks(np.stack(pairs, axis=1))
        if batch.prefill or batch.decode:
            self._feed(batch)
        ns = self._now() - start
        self.log.append((*fed(batch), ns, batch.swapped_blocks, self._swap_ns))
        return ns

    def transfer_ns(self, num_blocks, block_size):
        """Nanoseconds that the last batch's swaps took."""
        return self._swap_ns

    def _move(self, batch):
        decoder, layers = self.decoder, np.arange(self.decoder.shape.num_layers)
        start = self._now()
        for _, blocks, host in batch.swap_out:
            self._host.swap_out(decoder.in_all_layers(blocks), np.add.outer(np.array(host) * len(layers), layers).ravel())
        for _, host, blocks in batch.swap_in:
            self._host.swap_in(np.add.outer(np.array(host) * len(layers), layers).ravel(), decoder.in_all_layers(blocks))
        self._swap_ns = self._now() - start if batch.swapped_blocks else 0

    def _feed(self, batch):
        """Feed a batch's rows, prompts first, and keep the token that each decoding sequence produces."""
        parts = [*batch.prefill, *((seq, seq.num_tokens - 2, seq.num_tokens - 1) for seq in batch.decode)]
        ids = [token for seq, start, end in parts for token in self._tokens_of(seq)[start:end]]
        positions = [position for _, start, end in parts for position in range(start, end)]
        tables = block_tables([seq.table for seq, _, _ in parts], self.decoder.arrays["tables"].shape[1])
        rows = np.repeat(tables, [end - start for _, start, end in parts], axis=0)
        wanted = np.arange(len(ids) - len(batch.decode), len(ids))
        logits = self.decoder.step(ids, positions, rows, wanted)
        best = logits.argmax(axis=1).tolist()
        for row, seq in enumerate(batch.decode):
            mine, n = self._tokens_of(seq), seq.num_tokens - 1
            if seq.sample and n == seq.prompt_tokens:
                best[row] = int(logits[row].argsort()[-1 - seq.sample])
            del mine[n:]  # of a sequence that has started over
            mine.append(best[row])
        if self.margins is not None and batch.decode:
            self._keep_margins(batch.decode, logits)

    def _keep_margins(self, decode, logits):
        rows, best = np.arange(len(decode)), logits.argmax(axis=1)
        first = logits[rows, best].astype(np.float32)
        logits[rows, best] = -np.inf
        margins = (first - logits.max(axis=1)).tolist()
        self.margins |= {(seq.number, seq.sample, seq.num_tokens - 1): margin for seq, margin in zip(decode, margins)}

    def _tokens_of(self, seq):
        """The token ids of a sequence, to be continued."""
        key = seq.number, seq.sample
        if key not in self.tokens:
            prompt = seq.request.tokens
            if prompt is None:
                random = np.random.RandomState([self.seed, seq.number])
                prompt = random.randint(self.decoder.shape.vocabulary, size=seq.prompt_tokens).tolist()
            self.tokens[key] = list(prompt)
        return self.tokens[key]

    def _now(self):
        """The clock, when the GPU has done all that it was asked for."""
        if self.decoder.xp is not np:
            self.decoder.xp.cuda.Device().synchronize()
        return perf_counter_ns()
