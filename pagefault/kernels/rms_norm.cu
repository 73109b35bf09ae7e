// rms_norm.cu - add to the rows of x, and divide each by its root mean square (Zhang and Sennrich, 2019).
//
//   x += delta,  out = x / sqrt(mean(x^2) + epsilon) * weight
//
// Launch: a thread block of threads, a power of two, for each row.  Shared memory: 4 * threads bytes, dynamic.
#include "common.cuh"

template <typename T>
__global__ void rms_norm(float* __restrict__ x,         // [rows, size]
                         const T* __restrict__ delta,   // [rows, size]
                         const T* __restrict__ weight,  // [size]
                         T* __restrict__ out,           // [rows, size]
                         int size, float epsilon) {
  extern __shared__ float partial[];
  long long row = (long long)blockIdx.x * size;
  float sum = 0;
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    float value = x[row + i] + to_float(delta[row + i]);
    x[row + i] = value;
    sum += value * value;
  }
  float factor = rsqrtf(block_reduce(sum, partial, false) / size + epsilon);
  for (int i = threadIdx.x; i < size; i += blockDim.x)
    out[row + i] = from_float<T>(x[row + i] * factor * to_float(weight[i]));
}
