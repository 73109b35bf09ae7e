"""The kernels' tests again, compiled with AddressSanitizer and UndefinedBehaviorSanitizer, which g++ brings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagefault.build import compiler

PLANTED = """
import numpy as np
from pagefault import Kernel
x = np.ones(50, np.float32)
Kernel('__global__ void f(float* x) {\\n  %s\\n}', "f")((1,), (64,), (x,), shared_mem=80)
"""
FAULTS = {
    "x[threadIdx.x] = 1;": "KernelError: f: .*heap-buffer-overflow.*WRITE of size 4.*f.cu:2.*thread block .0, 0, 0., thread .50",
    "extern __shared__ float s[]; s[threadIdx.x] = 1;": "KernelError: f: .*heap-buffer-overflow.*f.cu:2.*thread .20, 0, 0",
    "__shared__ float s[9]; float* p = s; p[threadIdx.x] = 1;": "KernelError: f: .*global-buffer-overflow.*f.cu:2.*thread .9, 0, 0",
    "x[0] = (int)threadIdx.x + 2147483647;": "f.cu:2.* runtime error: signed integer overflow",
}


@pytest.fixture(scope="module")
def sanitized():
    """The environment of a Python in which kernels run under the sanitizers."""
    runtime = subprocess.run([*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip(f"{compiler()[0]} has no libasan.so that could be loaded first; g++ on Linux has")
    return dict(os.environ, PAGEFAULT_SANITIZE="1", LD_PRELOAD=runtime, ASAN_OPTIONS="detect_leaks=0:halt_on_error=0")


def test_the_kernels_run_clean_under_the_sanitizers(sanitized):
    here = Path(__file__).parent
    paged, tensor = here / "test_paged_attention.py", here / "test_tensor_core.py"
    files = "test_attention.py", "test_cache.py", "test_int8_cache.py", "test_instructions.py"
    tests = [*(here / file for file in files), f"{here / 'test_kernel.py'}::test_the_language",
             f"{paged}::test_slots_that_are_not_ours_may_hold_anything",
             f"{paged}::test_launch_after_launch_gives_the_same_bytes_however_contexts_are_split",
             f"{tensor}::test_no_tokens_give_zeros_and_one_gives_its_v",
             f"{tensor}::test_launch_after_launch_gives_the_same_bytes_however_contexts_are_split"]
    options = "-q --tb=short -o addopts= -p no:cacheprovider -p no:nbval -p no:hypothesispytest".split()
    command = [sys.executable, "-m", "pytest", *options, *tests, "-k", "not checked and not gpu and not 65536"]
    run = subprocess.run(command, env=sanitized, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "runtime error:" not in run.stderr and "AddressSanitizer:" not in run.stderr


@pytest.mark.parametrize("line", FAULTS)
def test_the_sanitizers_are_awake(sanitized, line):
    run = subprocess.run([sys.executable, "-c", PLANTED % line], env=sanitized, capture_output=True, text=True)
    assert re.search(FAULTS[line], run.stderr, re.S), run.stderr
