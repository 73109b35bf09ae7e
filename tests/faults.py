"""Small kernels with one fault each, and right ones that look like them: name -> (lines, threads, what a check must say).

The lines follow `int t = threadIdx.x, b = blockIdx.x;` and start with line 3. What a check must say: patterns, each
found in one of its sentences; none for a right kernel. A grid has 1 thread block, or 2 where the lines name b.
"""

SYNC = "__syncthreads();"
S = "__shared__ float s[256];"
FOUR = "if (t < 32) ((float4*)s)[t] = ((const float4*)x)[t];"


def race(first, second, where="s"):
    """A race of two lines, named in either order."""
    one, other = rf"line {first} .*", rf"line {second} .*"
    return rf"race on {where}\[\d+\]: ({one}{other}|{other}{one})no barrier"


def between_blocks(first, second, where):
    return rf"race on {where}: (line {first} .* line {second} |line {second} .* line {first} ).*no order"


def tree(first=SYNC, loop=SYNC):
    return [S, "s[t] = x[t];", first, "for (int h = 64; h > 0; h /= 2) {", "if (t < h) s[t] += s[t + h];", loop, "}",
            "if (t == 0) y[b] = s[0];"]


def exchange(by, *between):
    return [S, "s[t] = x[t];", *between, f"y[t] = s[t ^ {by}];"]


def halves(by):
    return [S, "unsigned m = t & 16 ? 0xffff0000u : 0xffffu;", "s[t] = x[t];",
            "if (t & 16) __syncwarp(m); else __syncwarp(m);", f"y[t] = s[t ^ {by}];"]


def double_buffer(sync):
    return [S, "s[t] = x[t];", SYNC, "for (int i = 0; i < 8; ++i) {", "s[(i + 1) % 2 * 128 + t] = s[i % 2 * 128 + 127 - t] + 1;",
            sync, "}", SYNC, "y[t] = s[t];"]


def unwritten(what, line):
    return rf"nothing was written to {what} in this thread block: line {line} of f.cu "


FAULTS = {
    "write, barrier, read": ([S, "s[t] = x[t];", SYNC, "y[t] = s[127 - t];"], 128, []),
    "write, read": ([S, "s[t] = x[t];", "", "y[t] = s[127 - t];"], 128, [race(4, 6)]),
    "reduction": (tree(), 128, []),
    "reduction, no first barrier": (tree(first=""), 128, [race(4, 7)]),
    "reduction, no barrier in the loop": (tree(loop=""), 128, [race(7, 7)]),
    "reduction, no barrier within a warp": (tree(loop="if (h > 32) __syncthreads();"), 128, [race(7, 7)]),
    "reduction, __syncwarp within a warp": (tree(loop="if (h > 32) __syncthreads(); else __syncwarp();"), 128, []),
    "lanes exchange, nothing between": (exchange(1, ""), 128, [race(4, 6)]),
    "lanes exchange, __syncwarp": (exchange(1, "__syncwarp();"), 128, []),
    "lanes exchange, shuffle": (exchange(1, "float z = __shfl_sync(~0u, x[t], 0); y[t] = z;"), 128, []),
    "lanes exchange, shuffle (strict)": (exchange(1, "float z = __shfl_sync(~0u, x[t], 0); y[t] = z;"), 128, [race(4, 6)]),
    "half warps, own masks": (halves(1), 128, []),
    "half warps, own masks, reads across": (halves(16), 128, [race(5, 7)]),
    "half warps, one after the other": ([S, "s[t] = x[t];", "if (t < 16) __syncwarp(0xffffu);",
                                         "if (t >= 8) __syncwarp(0xffffff00u);", "if (t == 31) y[0] = s[0];"], 32, []),
    "warps exchange, only __syncwarp": (exchange(32, "__syncwarp();"), 128, [race(4, 6)]),
    "read by all, then written": ([S, "if (t == 0) s[0] = x[0];", SYNC, "float a = s[0];", "", "if (t == 0) s[0] = a + 1;", SYNC,
                                   "y[t] = s[0] + a;"], 128, [race(6, 8)]),
    "read by all, barrier, then written": ([S, "if (t == 0) s[0] = x[0];", SYNC, "float a = s[0];", SYNC,
                                            "if (t == 0) s[0] = a + 1;", SYNC, "y[t] = s[0] + a;"], 128, []),
    "all write one word": ([S, "s[0] = x[0];", SYNC, "y[t] = s[0];"], 128, [race(4, 4)]),
    "atomics": ([S, "if (t == 0) s[0] = 0;", SYNC, "atomicAdd(&s[0], x[t]); atomicAdd(&y[0], 1.f);", SYNC,
                 "if (t == 0) y[1 + b] = s[0];"], 128, []),
    "atomics, reset without a barrier": ([S, "if (t == 0) s[0] = 0;", "", "atomicAdd(&s[0], x[t]);", SYNC,
                                          "if (t == 0) y[1] = s[0];"], 128, [race(4, 6)]),
    "atomics, read without a barrier": (["atomicAdd(&y[0], 1.f);", "y[1 + t] = y[0];"], 64, [race(3, 4, "y")]),
    "two thread blocks write one place": (["y[t] = x[t] + b;"], 64, [between_blocks(3, 3, r"y\[\d+\]")]),
    "stencil in place": (["float a = t || b ? y[b * 64 + t - 1] : 0;", SYNC, "y[b * 64 + t] = a + x[t];"], 64,
                         [between_blocks(3, 5, r"y\[63\]")]),
    "stencil in place, other side": (["float a = y[b * 64 + t + 1];", SYNC, "y[b * 64 + t] = a + x[t];"], 64,
                                     [between_blocks(3, 5, r"y\[64\]")]),
    "thread blocks read one place": (["y[b * 64 + t] = x[t] + x[0];"], 64, []),
    "stencil in place within a thread block": (["y[b * 64 + t] = x[t];", SYNC, "y[b * 64 + t] += y[b * 64 + 63 - t] * 0;"], 64,
                                               [race(5, 5, "y")]),
    "sum not set": (["__shared__ float sum;", "if (t == 0) sum += x[t] + b;", SYNC, "y[t + 64 * b] = sum;"], 64,
                    [unwritten(r"sum\[0\]", 4) + r"reads \(thread \(0, 0, 0\) of thread block \(0, 0, 0\)\)"]),
    "dynamic sum not set": (["extern __shared__ float d[];", "if (t == 0) d[0] += x[t] + b;", SYNC, "y[t + 64 * b] = d[0];"], 64,
                            [unwritten("byte 0 of the dynamic shared memory", 4) + "reads"]),
    "atomics on a sum not set": (["__shared__ float sum;", "atomicAdd(&sum, x[t]);", SYNC, "y[t] = sum;"], 64,
                                 [unwritten(r"sum\[0\]", 4) + "updates"]),
    "the last thread block's values": ([S, "if (b == 0) s[t] = x[t];", SYNC, "y[b * 64 + t] = s[t];"], 64,
                                       [unwritten(r"s\[\d+\]", 6) + r".* of thread block \(1, 0, 0\)"]),
    "tail not set": ([S, "if (t < 100) s[t] = x[t];", *tree()[2:]], 128, [unwritten(r"s\[\d+\]", 7) + "reads"]),
    "bytes beside each other": (["__shared__ char c[128]; __shared__ short h[128];", "c[t] = (char)t; h[t] = (short)t;", SYNC,
                                 "y[t] = c[127 - t] + h[127 - t];"], 128, []),
    "bytes of one float": (["((char*)y)[t] = (char)t; ((short*)y)[64 + t] = (short)t;"], 128, []),
    "float4 stores, scalar loads": ([S, FOUR, SYNC, "y[t] = s[t];"], 128, []),
    "float4 stores, scalar loads, no barrier": ([S, FOUR, "", "y[t] = s[t];"], 128, [race(4, 6)]),
    "double buffer": (double_buffer(SYNC), 128, []),
    "double buffer, every second barrier": (double_buffer("if (i % 2) __syncthreads();"), 128, [race(7, 7)]),
    "__device__ variable": (["if (t == 0) device_total = device_total + b;"], 32, [between_blocks(3, 3, "a __device__ variable")]),
    "missing guard": (["y[t + 512 * b] = x[t + 512 * b + 1];"], 512,
                      [r"outside of the arrays: reads x\[1024\], and x has 1024 elements, in line 3 of f.cu; "
                       r"thread block \(1, 0, 0\), thread \(511, 0, 0\)"]),
    "missing guard, first": (["y[t] = x[t - 1];"], 64, [r"outside of the arrays: reads x\[-1\].* in line 3 "]),
    "past a shared array": (["__shared__ float u[64];", "u[t + 1] = x[t];", SYNC, "y[t] = u[t];"], 64,
                            [r"outside of the arrays: index 64 in line 4 is out of bounds"]),
    "memset past the end": (["if (t == 3) memset(y, 0, 4097);"], 64,
                            [r"outside of the arrays: writes y\[1024\], and y has 1024 .* in line 3 "]),
    "memset of nothing": (["memset(y + 1024, 0, 0);"], 64, []),
    "a counter set by one thread block, updated by all": (["if (b == 0 && t == 0) n[0] = 0;", SYNC, "atomicAdd(&n[0], 1);"], 32,
                                                           [between_blocks(3, 5, r"n\[0\]")]),
    "a shared counter set without a barrier": (["__shared__ int c;", "if (t == 0) c = 0;", "__syncwarp();", "atomicAdd(&c, 1);"],
                                               64, [r"race on c\[0\]: .*no barrier"]),
    "a structure with padding": (["struct Best { float value; short index; };", "__shared__ Best u[64];",
                                  "u[t].value = x[t]; u[t].index = t;", SYNC, "Best best = u[63 - t]; y[t] = best.value;"], 64, []),
    "past the shared array, by pointer": ([S, "volatile float* p = s;", "p[t + 193] = x[t];"], 64,
                                          [r"outside of the arrays: writes s\[256\], and s has 256 elements, in line 5 "]),
    "far away": (["y[t] = x[t + 100000000];"], 64, ["outside of the arrays: reads 4 bytes at 0x.* in line 3 "]),
    # right on a GPU, but a check knows no order between thread blocks
    "the last thread block adds up": (["if (t == 0) y[b] = x[b];", "__threadfence();",
                                       "int k = 0; if (t == 0) k = atomicAdd(&n[0], 1);",
                                       "if (t == 0 && k == 1) y[9] = y[0] + y[1];"], 32, [between_blocks(3, 6, r"y\[\d\]")]),
}


def source(lines):
    return "\n".join(["__device__ int device_total; __global__ void f(const float* x, float* y, int* n) {",
                      "  int t = threadIdx.x, b = blockIdx.x;", *lines, "}"])
