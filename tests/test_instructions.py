"""What kernels/instructions.cuh promises, on a CPU as on a GPU."""

import re

import numpy as np
import pytest

from pagefault import Kernel, KernelError
from pagefault.reference import on_host

SOURCE = """#include "instructions.cuh"
__global__ void matrices(const uint4* in, unsigned* plain, unsigned* transposed, unsigned* back) {
  __shared__ __align__(128) uint4 s[32];
  int lane = threadIdx.x;
  s[lane] = in[lane];
  __syncwarp();
  unsigned x[4], y[4];
  load_matrices(x, &s[lane]);
  load_transposed(y, &s[lane]);
  for (int m = 0; m < 4; ++m)
    plain[m * 32 + lane] = x[m], transposed[m * 32 + lane] = y[m], back[m * 32 + lane] = transpose(y[m]);
}
__global__ void product(const unsigned* a, const unsigned* b, float* c) {
  int lane = threadIdx.x;
  unsigned left[4], right[2] = {b[lane], b[32 + lane]};
  float sum[4];
  for (int m = 0; m < 4; ++m) left[m] = a[m * 32 + lane], sum[m] = c[m * 32 + lane];
  multiply_add(sum, left, right);
  for (int m = 0; m < 4; ++m) c[m * 32 + lane] = sum[m];
}
__global__ void halves(const unsigned* bytes, unsigned* out) {
  unsigned x = bytes[threadIdx.x], *to = out + threadIdx.x * 4;
  to[0] = two_of_bytes<0, 1>(x), to[1] = two_of_bytes<2, 3>(x), to[2] = two_of_bytes<0, 2>(x), to[3] = two_of_bytes<1, 3>(x);
}
__global__ void copies(const float* x, float* y, float* z) {
  __shared__ __align__(16) float s[32 * 4], one[32];
  int lane = threadIdx.x, other = lane ^ 1;
  copy_async((void*)&s[4 * lane], x + 4 * lane);
  commit_copies();
  copy_async(&one[lane], x + lane);
  commit_copies();
  wait_copies<WAIT>();
  SYNC;
  for (int i = 0; i < 4; ++i) y[4 * lane + i] = s[4 * other + i];
  wait_copies<0>();
  __syncwarp();
  z[lane] = one[other];
}
"""


def run(xp, name, out, *arrays, wait="1", sync="__syncwarp()"):
    kernel = Kernel(SOURCE.replace("WAIT", wait).replace("SYNC", sync), name)
    outs = [xp.asarray(o) for o in out]
    kernel((1,), (32,), (*(xp.asarray(a) for a in arrays), *outs))
    return [on_host(o) for o in outs]


def over_a_warp(matrix):
    """8 x 8 halves as each lane's pair: [32] of uint32."""
    return np.ascontiguousarray(matrix).view(np.uint32).reshape(32)


def halves(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


def test_matrices_are_loaded_plain_and_transposed(xp):
    x = halves(4, 8, 8)
    plain, transposed, back = run(xp, "matrices", np.zeros((3, 4, 32), np.uint32), x.view(np.uint32).reshape(32, 4))
    for m in range(4):
        assert (plain[m] == over_a_warp(x[m])).all() and (transposed[m] == over_a_warp(x[m].T)).all()
        assert (back[m] == plain[m]).all()


def test_a_product_of_matrices_is_added(xp):
    a, b, c = halves(16, 16), halves(16, 8), np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    left = np.stack([over_a_warp(a[r : r + 8, k : k + 8]) for k in (0, 8) for r in (0, 8)])
    right = np.stack([over_a_warp(b[k : k + 8].T) for k in (0, 8)])
    sums = np.stack([c[r : r + 8].reshape(32, 2)[:, i] for r in (0, 8) for i in (0, 1)])
    (out,) = run(xp, "product", [sums], left, right)
    got = np.concatenate([np.stack(out[i : i + 2], axis=1).reshape(8, 8) for i in (0, 2)])
    np.testing.assert_allclose(got, a.astype(float) @ b + c, rtol=1e-5, atol=1e-5)


def test_any_two_of_four_bytes_are_two_halves(xp):
    bytes_ = np.arange(-128, 128, dtype=np.int8).reshape(2, 32, 4)
    for four in bytes_:
        (out,) = run(xp, "halves", [np.zeros((32, 4), np.uint32)], four.view(np.uint32)[:, 0])
        assert (out.view(np.float16).reshape(32, 4, 2) == four[:, [[0, 1], [2, 3], [0, 2], [1, 3]]]).all()


def test_copies_that_were_waited_for_are_there(xp):
    x = np.arange(128, dtype=np.float32)
    y, z = run(xp, "copies", [np.zeros(128, np.float32), np.zeros(32, np.float32)], x)
    other = np.arange(32) ^ 1
    assert (y.reshape(32, 4) == x.reshape(32, 4)[other]).all() and (z == x[other]).all()


@pytest.mark.parametrize("wait, sync", [("2", "__syncwarp()"), ("1", "")])
def test_on_a_cpu_copies_that_were_not_waited_for_by_all_are_missing(wait, sync):
    y, _ = run(np, "copies", [np.zeros(128, np.float32), np.zeros(32, np.float32)], np.arange(128, dtype=np.float32), wait=wait,
               sync=sync)
    assert np.isnan(y).any()


def copies(sync="__syncwarp()", source="x + 4 * lane"):
    text = SOURCE.replace("WAIT", "1").replace("SYNC", sync).replace("x + 4 * lane)", f"{source})")
    x, y, z = np.arange(128, dtype=np.float32), np.zeros(128, np.float32), np.zeros(32, np.float32)
    return Kernel(text, "copies"), (1,), (32,), (x, y, z)


def test_a_check_takes_a_copy_for_a_write_by_its_thread():
    kernel, *launch = copies()
    assert kernel.check(*launch) == []
    kernel, *launch = copies(sync="")
    assert re.match(r"race on s\[\d+\]: line 34 .*reads .*line 28 .*writes .*no barrier", " ".join(kernel.check(*launch)))


def test_a_misaligned_copy_and_one_beyond_an_array_are_named_where_accesses_are_checked():
    for source, what in (("x + 4 * lane + 1", "asynchronous copy of 16 bytes from"),
                         ("x + 4 * lane + 4", r"reads x\[128\], and x has 128 elements, in line 28")):
        kernel, *launch = copies(source=source)
        with pytest.raises(KernelError, match=what):
            kernel(*launch)


def test_a_copy_is_one_request_of_global_and_one_of_shared_memory():
    kernel, *launch = copies()
    lines = kernel.profile(*launch).lines
    row = lines[lines.line == 28].set_index("access")
    assert row.requests.tolist() == [1, 1] and row.loc["global load", "sectors"] == 16
    assert row.loc["shared store", "wavefronts"] == 4 and row.conflicts.sum() == 0
