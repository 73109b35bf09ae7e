"""How LLM servers manage the memory of their KV cache, as an operating system manages pages."""

from .geometry import MODELS, ONE_HEAD, KVGeometry
from .workload import MIXES, PUBLISHED_MIX, bursty_arrivals, mixed_lengths, poisson_arrivals
from .traces import Trace, load_trace
from .traffic import synthetic_trace, traffic_fit
from .memory import Memory, block_sweep, contiguous_memory, paged_memory
from .cache import ContiguousCache, PagedCache
from .host_blocks import HostBlocks
from .int8_cache import Int8Cache
from .blocks import BlockPool, BlockTable, block_tables
from .prefix import PrefixCache
from .buddy import BuddyAllocator
from .paper import ALPACA, FIGURE_2, FIGURE_15, SHAREGPT, paper_lengths
from .reservation import memory_shares
from .sharing import beam_search, figure_15, parallel_sampling
from .errors import Deadlock, DoubleFree, KernelError, Livelock, OutOfBlocks, RequestTooLarge, TraceError
from .kernel import Kernel
from .cpu import on_cpu
from .gpu import gpu_available
from .attention import (
    naive_attention, naive_launch, online_softmax_attention, online_softmax_launch, split_kv_attention, split_kv_launch,
)
from .tensor_core import int8_attention, int8_launch, tensor_core_attention, tensor_core_launch
from .notebook import array_module, compare, kernel_source, show_kernel
from .reference import dequantized, gathered, reference_attention, relative_error, softmax
from .requests import Request
from .scheduler import Scheduler
from .timeline import timeline
from .policies import decaying, least_lost, most_remaining, newest, oldest, optimistic, random_victim, requester, watermark
from .costs import GPUS, SERVED, ConstantCost, RooflineCost
from .jobs import least_steps, published_requests, trace_requests, with_arrivals
from .simulator import simulate
from .serve import policy_grid, policy_table, recorded_policies, serve
from .sweep import grid_of, read_results, sweep, write_results

__all__ = [
    "MODELS", "ONE_HEAD", "KVGeometry", "MIXES", "PUBLISHED_MIX", "mixed_lengths", "bursty_arrivals", "poisson_arrivals",
    "Trace", "load_trace", "synthetic_trace", "traffic_fit",
    "Memory", "block_sweep", "contiguous_memory", "paged_memory",
    "ContiguousCache", "PagedCache", "HostBlocks", "Int8Cache", "BlockPool", "BlockTable", "block_tables", "PrefixCache",
    "BuddyAllocator", "ALPACA", "FIGURE_2", "FIGURE_15", "SHAREGPT", "paper_lengths", "memory_shares",
    "beam_search", "figure_15", "parallel_sampling",
    "Deadlock", "DoubleFree", "KernelError", "Livelock", "OutOfBlocks", "RequestTooLarge", "TraceError",
    "Kernel", "on_cpu", "gpu_available", "naive_attention", "naive_launch",
    "online_softmax_attention", "online_softmax_launch", "split_kv_attention", "split_kv_launch",
    "tensor_core_attention", "tensor_core_launch", "int8_attention", "int8_launch",
    "array_module", "compare", "kernel_source", "show_kernel", "dequantized", "gathered", "reference_attention", "relative_error",
    "softmax",
    "Request", "Scheduler", "decaying", "least_lost", "most_remaining", "newest", "oldest", "optimistic", "random_victim",
    "requester", "watermark", "GPUS", "SERVED", "ConstantCost", "RooflineCost", "least_steps", "published_requests",
    "trace_requests", "with_arrivals", "simulate", "policy_grid", "policy_table", "recorded_policies", "serve",
    "timeline", "grid_of", "read_results", "sweep", "write_results",
]
