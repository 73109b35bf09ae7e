"""Request traces: when requests came and how long they were, read from a file that the reader gives."""

import csv
import gzip
import json
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np

from .errors import TraceError, whole
from .memory import checked_lengths

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
WHOLE = re.compile("-?[0-9]{1,18}")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order in which they came.

    arrival_ns: int64 [num_requests], nanoseconds since the first, ascending. prompt_tokens, output_tokens: int64
    [num_requests]. hash_ids: for each request the ids of its prompt's blocks (equal ids mean an equal prefix), or None.
    """

    name: str
    arrival_ns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    hash_ids: tuple | None = None

    def __post_init__(self):
        arrival_ns = np.array(self.arrival_ns)
        if arrival_ns.size and arrival_ns.dtype.kind not in "iu":
            raise ValueError(f"{self.name}: arrival_ns are whole nanoseconds, not {arrival_ns.dtype}")
        arrival_ns = arrival_ns.astype(np.int64)
        if arrival_ns.ndim != 1 or arrival_ns[:1].any() or (np.diff(arrival_ns) < 0).any():
            raise ValueError(f"{self.name}: the first request comes at 0, and none before the one before it")
        object.__setattr__(self, "arrival_ns", arrival_ns)
        for field in ("prompt_tokens", "output_tokens"):
            object.__setattr__(self, field, checked_lengths(getattr(self, field)))
        sizes = [len(row) for row in (arrival_ns, self.prompt_tokens, self.output_tokens, self.hash_ids) if row is not None]
        if len(set(sizes)) > 1:
            raise ValueError(f"{self.name}: times, prompts, outputs (and hash_ids) are of {sizes} requests")

    @property
    def total_tokens(self):
        """Tokens in the cache when a request ends, its prompt's and its output's; int64 [num_requests]."""
        return self.prompt_tokens + self.output_tokens


def load_trace(path):
    """The Trace in a file: Azure's CSV or Mooncake's JSONL, either also gzipped, told apart by what is in it.

    Azure's columns are TIMESTAMP (date and time), ContextTokens, GeneratedTokens. A line of Mooncake's is an object with
    timestamp (milliseconds), input_length, output_length and, if it has them, hash_ids. Times are kept to the nanosecond.
    Raises TraceError with the file and the row (counted as an editor does, header and all); also for a request that comes
    before the one above it: sorting would hide that files were joined wrongly or that a clock was set back.
    """
    path = Path(path)
    lines = [(row, line) for row, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
    read = _mooncake_request if lines and lines[0][1].lstrip()[0] in "{[" else None
    requests = []
    try:
        for row, line in lines:
            place = f"{path.name}, row {row}"
            if read is None:
                read = partial(_azure_request, *_azure_columns(line))
                continue
            time, prompt, output, ids = read(line)
            if requests and time < requests[-1][0]:
                raise ValueError("it comes before the request above it; sort the file by time")
            whole("nanoseconds since the first request", time - (requests[0][0] if requests else time), 0, 2**63 - 1)
            whole("prompt tokens", prompt, 0, 2**31 - 1)
            whole("output tokens", output, 0, 2**31 - 1)
            requests.append((time, prompt, output, ids))
            if (ids is None) != (requests[0][3] is None):
                raise ValueError("some requests have hash_ids and others have none")
    except (TypeError, ValueError, ArithmeticError, RecursionError, csv.Error) as error:
        raise TraceError(f"{place}: {error}") from None
    if not requests:
        raise TraceError(f"{path.name} has no requests in it")
    times, prompts, outputs, ids = zip(*requests)
    return Trace(path.name, [time - times[0] for time in times], prompts, outputs, None if ids[0] is None else ids)


def _text(path):
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return data.decode("utf-8-sig")
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{path.name} is a broken gzip file: {error}") from None
    except UnicodeDecodeError as error:
        row = data[: error.start].count(b"\n") + 1
        raise TraceError(f"{path.name}, row {row}: byte {data[error.start]:#04x} is not UTF-8 text") from None


def _fields(line):
    return [field.strip() for field in next(csv.reader([line.rstrip("\r")], strict=True))]


def _azure_columns(line):
    header = _fields(line)
    if missing := [name for name in AZURE_COLUMNS if name not in header]:
        raise ValueError(f"no column {', '.join(missing)} in the header {line.strip()[:60]!r}")
    return len(header), [header.index(name) for name in AZURE_COLUMNS]


def _azure_request(num_columns, places, line):
    fields = _fields(line)
    if len(fields) != num_columns:
        raise ValueError(f"{len(fields)} fields, and the header has {num_columns}")
    time, *tokens = [fields[place] for place in places]
    parts = TIME.fullmatch(time)
    if not parts:
        raise ValueError(f"TIMESTAMP = {time[:40]!r}, a date and time like 2023-11-16 18:15:46.6805900 is needed")
    date, clock, fraction, zone = parts.groups()
    since = datetime.fromisoformat(f"{date} {clock}{zone or 'Z'}") - EPOCH
    nanoseconds = (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))
    for name, value in zip(AZURE_COLUMNS[1:], tokens):
        if not WHOLE.fullmatch(value):
            raise TypeError(f"{name} = {value[:40]!r}, a whole number is needed")
    return nanoseconds, *map(int, tokens), None


def _mooncake_request(line):
    try:
        request = json.loads(line, parse_float=Decimal)  # a float would round times
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos + 1}: {error.msg}") from None
    if not isinstance(request, dict):
        raise TypeError(f"a line is an object with {', '.join(MOONCAKE_KEYS)}, not a {type(request).__name__}")
    if missing := [key for key in MOONCAKE_KEYS if key not in request]:
        raise ValueError(f"no {', '.join(missing)} among the keys {', '.join(request)[:60]!r}")
    milliseconds, prompt, output = [request[key] for key in MOONCAKE_KEYS]
    if type(milliseconds) not in (int, Decimal) or not -(2**53) < milliseconds < 2**53:
        raise TypeError(f"timestamp = {str(milliseconds)[:40]}, a number of milliseconds is needed")
    ids = request.get("hash_ids")
    if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
        raise TypeError("hash_ids is a list of whole numbers")
    return int(milliseconds * 10**6), prompt, output, None if ids is None else tuple(ids)
