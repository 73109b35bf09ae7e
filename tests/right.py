"""Right kernels of many kinds: name -> (source, grid, block, arguments, what gives (got, expected) from the arguments)."""

import numpy as np

random = np.random.default_rng(0)


def floats(*shape):
    return random.random(shape, np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


RIGHT = {
    "matrix product": ("""#define T 16
__global__ void f(const float* a, const float* b, float* c, int n) {
  __shared__ float s[T][T], u[T][T + 1];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x;
  float sum = 0;
  for (int k = 0; k < n; k += T) {
    s[y][x] = a[row * n + k + x], u[y][x] = b[(k + y) * n + col];
    __syncthreads();
    for (int i = 0; i < T; ++i) sum += s[y][i] * u[i][x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}""", (3, 3), (16, 16), (floats(48, 48), floats(48, 48), zeros(48, 48), 48), lambda a: (a[2], a[0] @ a[1])),
    "transpose": ("""__global__ void f(const float* a, float* b, int n) {
  __shared__ float tile[32][33];
  int x = threadIdx.x, y = threadIdx.y;
  for (int j = y; j < 32; j += 8) tile[j][x] = a[(blockIdx.y * 32 + j) * n + blockIdx.x * 32 + x];
  __syncthreads();
  for (int j = y; j < 32; j += 8) b[(blockIdx.x * 32 + j) * n + blockIdx.y * 32 + x] = tile[x][j];
}""", (2, 2), (32, 8), (floats(64, 64), zeros(64, 64), 64), lambda a: (a[1], a[0].T)),
    "running sums": ("""__global__ void f(const float* a, float* b) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = a[t];
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    float v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
    __syncthreads();
  }
  b[t] = s[t];
}""", 1, 128, (floats(128), zeros(128)), lambda a: (a[1], np.cumsum(a[0]))),
    "sums of warps": ("""__global__ void f(const float* a, float* b, int n) {
  __shared__ float part[32];
  int t = threadIdx.x;
  float v = 0;
  for (int i = t; i < n; i += blockDim.x) v += a[blockIdx.x * n + i];
  for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
  if (t % 32 == 0) part[t / 32] = v;
  __syncthreads();
  if (t >= 32) return;
  v = t < blockDim.x / 32 ? part[t] : 0;
  for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
  if (t == 0) b[blockIdx.x] = v;
}""", 5, 256, (floats(5, 1000), zeros(5), 1000), lambda a: (a[1], a[0].sum(1))),
    "a tree a warp": ("""__global__ void f(const float* a, float* b) {
  __shared__ float s[64];
  int t = threadIdx.x, w = t / 32 * 32, l = t % 32;
  s[t] = a[t];
  __syncwarp();
  for (int h = 16; h; h /= 2) {
    if (l < h) s[w + l] += s[w + l + h];
    __syncwarp();
  }
  if (l == 0) b[t / 32] = s[w];
}""", 1, 64, (floats(64), zeros(2)), lambda a: (a[1], a[0].reshape(2, 32).sum(1))),
    "histogram": ("""__global__ void f(const int* a, int* b, int n) {
  __shared__ int h[16];
  int t = threadIdx.x;
  if (t < 16) h[t] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[a[i]], 1);
  __syncthreads();
  if (t < 16) atomicAdd(&b[t], h[t]);
}""", 4, 96, (random.integers(0, 16, 5000, np.int32), np.zeros(16, np.int32), 5000),
                  lambda a: (a[1], np.bincount(a[0], minlength=16))),
    "neighbours with a halo": ("""__global__ void f(const float* a, float* b, int n) {
  __shared__ float s[66];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t + 1] = a[i];
  if (t == 0) s[0] = i ? a[i - 1] : 0;
  if (t == 63) s[65] = i + 1 < n ? a[i + 1] : 0;
  __syncthreads();
  b[i] = s[t] + s[t + 1] + s[t + 2];
}""", 4, 64, (floats(256), zeros(256), 256), lambda a: (a[1], np.convolve(a[0], np.ones(3), "same"))),
    "some leave early": ("""__global__ void f(const float* a, float* b) {
  __shared__ float s[64];
  int t = threadIdx.x;
  if (t >= 40) return;
  s[t] = a[t];
  __syncthreads();
  b[t] = s[39 - t];
}""", 1, 64, (floats(64), zeros(40)), lambda a: (a[1], a[0][39::-1])),
    "half2, in place": ("""#include <cuda_fp16.h>
__global__ void f(__half* x, float* b) {
  __half2* a = (__half2*)x;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float2 v = __half22float2(a[i]);
  b[i] = v.x + v.y, a[i] = __floats2half2_rn(v.y, v.x);
}""", 2, 64, (np.arange(256).astype(np.float16), zeros(128)), lambda a: (a[1], a[0].reshape(128, 2).astype("f").sum(1))),
    "halves of a word": ("""__global__ void f(const float* a, short* b) {
  __shared__ short s[128];
  int t = threadIdx.x;
  s[t] = (short)(a[t] * 100), b[t] = s[t];
}""", 1, 128, (floats(128), np.zeros(128, np.int16)), lambda a: (a[1], (a[0] * 100).astype(np.int16))),
    "a vector's members": ("""__global__ void f(const float* a, float* b) {
  union { float4 v; float f[4]; } u;
  u.v = ((const float4*)a)[threadIdx.x];
  float4 zero = {}, w = {1, 2, 3, 4};
  float sum = zero.x + w.w;
  for (int i = 0; i < 4; ++i) sum += u.f[i];
  b[threadIdx.x] = sum;
}""", 1, 32, (floats(32, 4), zeros(32)), lambda a: (a[1], a[0].sum(1) + 4)),
}
