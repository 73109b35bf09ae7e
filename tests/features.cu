// One kernel for the rest of the language: what the course's own kernels don't use.
#include <cuda_fp16.h>
#include "features.cuh"
__constant__ int primes[4] = {2, 3, 5, 7};
__device__ int launches;
extern __shared__ __align__(16) float at_file_scope[];

template <int SIZE, typename T> __global__ void features(int* out, float* fout, __half* hout, unsigned long long big, T one) {
  __shared__ int total, votes[2];  // a comment that says __shared__ int nothing;
  extern __shared__ float dynamic[];
  int t = threadIdx.x + blockDim.x * threadIdx.y, lane = t % 32, x = t;
  if (t == 0) total = votes[0] = votes[1] = 0, launches += 1;
  __syncthreads();
  atomicAdd(&total, t), atomicMax(&votes[0], t), atomicMin(&votes[1], -t);
  atomicAdd(fout, one);
  dynamic[t] = t;
  __syncthreads();
  if (t == 0) out[0] = launches, out[1] = total, out[2] = primes[3], out[3] = (int)(big >> 40), out[4] = votes[0] + votes[1];
  for (int d = 16; d; d /= 2) x += __shfl_down_sync(~0u, x, d);
  if (lane == 0) out[5 + t / 32] = x;
  unsigned odd = __ballot_sync(~0u, t & 1);
  if (t == 0) out[9] = (int)odd, out[10] = twice(SIZE), out[11] = (int)sizeof(float4);
  out[16 + t] = __shfl_sync(~0u, t, 5) + 1000 * __shfl_up_sync(~0u, t, 1);
  if (t >= 32 && t < 48) out[12] = __shfl_xor_sync(0x0000ffff, t, 1);  // a partial mask
  if (__any_sync(~0u, t == 40) && lane == 0) out[13] = t;
  if (__all_sync(~0u, t >= 96) && lane == 0) out[14] = t;
  float4 four = ((const float4*)dynamic)[t / 4];
  if (t == 9) out[15] = (int)(four.x + four.y + four.z + four.w);
  if (t >= 64) return;  // some leave early
  __syncthreads();
  hout[t] = __float2half(0.1f * t);
  fout[1 + t] = __half2float(hout[t]) + (at_file_scope == dynamic ? 0 : 1);
}
