// swiglu.cu - gate / (1 + e^-gate) * up, for rows of gates and ups side by side (Shazeer, 2020).
//
// Launch: grid (rows, thread blocks for a row), thread block of any size.
#include "common.cuh"

template <typename T>
__global__ void swiglu(const T* __restrict__ gate_up,  // [rows, 2, size]
                       T* __restrict__ out,            // [rows, size]
                       int size) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const T* row = gate_up + 2ll * blockIdx.x * size;
  float gate = to_float(row[i]), up = to_float(row[size + i]);
  out[(long long)blockIdx.x * size + i] = from_float<T>(gate / (1 + expf(-gate)) * up);
}
