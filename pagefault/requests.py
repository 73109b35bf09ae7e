"""What a scheduler is asked for, what it keeps of a sequence, and what it asks its executor to do in a step."""

from dataclasses import dataclass, field

from .blocks import BlockTable
from .errors import whole


@dataclass(frozen=True)
class Request:
    """A prompt of so many tokens, to be continued by so many.

    arrival_ns: when it comes, in nanoseconds. tokens: the prompt's token ids, needed only to find shared prefixes again.
    samples: how many continuations are wanted of the one prompt.
    """

    prompt_tokens: int
    output_tokens: int
    arrival_ns: int = 0
    tokens: tuple | None = None
    samples: int = 1

    def __post_init__(self):
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("arrival_ns", 0), ("samples", 1)):
            value = getattr(self, name)
            if value.__class__ is not int or value < least:
                object.__setattr__(self, name, whole(name, value, least))
        if self.tokens is not None and len(self.tokens) != self.prompt_tokens:
            raise ValueError(f"{len(self.tokens)} token ids, and a prompt of {self.prompt_tokens:,} tokens")

    @property
    def total_tokens(self):
        """Tokens of the prompt and of one continuation."""
        return self.prompt_tokens + self.output_tokens


class Sequence:
    """One continuation of a request, as the scheduler sees it; what a victim rule may look at.

    number: of its request, in order of arrival. table: its BlockTable. num_tokens: tokens that have a slot, the one just
    produced included, whose K and V are stored in the step after. to_prefill: tokens to feed before the next one is
    produced. stalled: failed steps in a row. loss: tokens to do again if it is preempted now.
    """

    __slots__ = ("number", "sample", "request", "prompt_tokens", "total_tokens", "table", "start_tokens", "to_prefill",
                 "stalled", "preemptions", "shared_tokens", "to_fork", "host_blocks", "active", "plain", "restarts")

    def __init__(self, number, request, pool, restarts, sample=0, to_fork=0):
        self.number, self.sample, self.request, self.to_fork = number, sample, request, to_fork
        self.prompt_tokens, self.total_tokens = request.prompt_tokens, request.total_tokens
        self.table, self.host_blocks, self.restarts = BlockTable(pool), None, restarts
        self.start_tokens = request.prompt_tokens  # that have a slot when it starts, or starts again
        self.to_prefill = self.stalled = self.preemptions = self.shared_tokens = 0
        self.active = self.plain = False  # it runs; and each step is one token for it, no more

    def __repr__(self):
        return f"Sequence({self.number}.{self.sample}, {self.num_tokens} of {self.total_tokens} tokens)"

    @property
    def num_tokens(self):
        return self.table.num_tokens

    @property
    def num_blocks(self):
        """Blocks it has now."""
        return len(self.table.blocks)

    @property
    def generated(self):
        """Tokens produced so far."""
        return max(0, self.num_tokens - self.prompt_tokens)

    @property
    def remaining(self):
        """Tokens still to be produced."""
        return self.total_tokens - self.num_tokens

    @property
    def fed(self):
        """Tokens whose K and V are stored, and which it computed itself."""
        return max(self.num_tokens, self.prompt_tokens) - 1 - self.to_prefill - self.shared_tokens

    @property
    def loss(self):
        """Tokens to do again if it is preempted now: those produced if it starts over from its prompt, else all it has."""
        return self.generated if self.restarts else self.num_tokens


@dataclass(slots=True)
class Batch:
    """What an executor does in one step, in this order, and what the step means for whom.

    swap_out: (sequence, blocks, host blocks) to copy from the pool to the host. swap_in: (sequence, host blocks, blocks), the
    other way. copies: (source, target) blocks of the pool, before anything is written. prefill: (sequence, start, end):
    feed its tokens start to end - 1. decode: sequences to feed the token at num_tokens - 2, which gives them the one
    at num_tokens - 1; a sequence may be in both. admitted, stalled, preempted, finished: sequences, in the order it happened.
    """

    step: int
    prefill: list = field(default_factory=list)
    decode: list = field(default_factory=list)
    admitted: list = field(default_factory=list)
    stalled: list = field(default_factory=list)
    preempted: list = field(default_factory=list)
    finished: list = field(default_factory=list)
    copies: list = field(default_factory=list)
    swap_out: list = field(default_factory=list)
    swap_in: list = field(default_factory=list)

    @property
    def prefill_tokens(self):
        return sum(end - start for _, start, end in self.prefill)

    @property
    def swapped_blocks(self):
        """Blocks that move between the pool and the host, either way."""
        return sum(len(blocks) for _, blocks, _ in self.swap_out + self.swap_in)
