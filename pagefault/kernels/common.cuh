// common.cuh - what several kernels need.
#pragma once
#include <cuda_fp16.h>

constexpr float LOWEST = -3.402823466e38f;  // of a float: where a maximum starts
#define NO_SCORE __int_as_float(0xff800000)  // -infinity, of a token that isn't there: whatever the others are, its weight is 0

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
template <typename T> __device__ T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half(x); }

// The maximum, or the sum, of the x of all threads in the thread block, whose number is a power of two.
// partial: [blockDim.x] in shared memory, free to be used again when the call returns.
__device__ inline float block_reduce(float x, float* partial, bool take_max) {
  int t = threadIdx.x;
  partial[t] = x;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) partial[t] = take_max ? fmaxf(partial[t], partial[t + half]) : partial[t] + partial[t + half];
    __syncthreads();
  }
  float total = partial[0];
  __syncthreads();
  return total;
}
