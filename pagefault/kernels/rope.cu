// rope.cu - part rows of q, k and v, and turn q and k by their positions (RoPE: Su et al., RoFormer, 2021).
//
// Dims 2 i and 2 i + 1 of a head are a point in the plane, which is turned by position * base^(-2 i / head_dim).
// Scores then depend on how far two tokens are apart, and a cached key carries its position in itself.
//
// Launch: a thread block of any size for each row.
#include "common.cuh"

template <typename T>
__global__ void rope(const T* __restrict__ qkv,          // [rows, num_heads + 2 * num_kv_heads, head_dim]
                     const int* __restrict__ positions,  // [rows]
                     const float* __restrict__ turns,    // [positions, head_dim]: cosine and sine of each pair's angle
                     T* __restrict__ q,                  // [rows, num_heads, head_dim]
                     T* __restrict__ k,                  // [rows, num_kv_heads, head_dim], both
                     T* __restrict__ v, int num_heads, int num_kv_heads, int head_dim) {
  int q_size = num_heads * head_dim, kv_size = num_kv_heads * head_dim;
  long long row = blockIdx.x;
  qkv += row * (q_size + 2 * kv_size), turns += (long long)positions[row] * head_dim;
  q += row * q_size, k += row * kv_size, v += row * kv_size;
  for (int i = 2 * threadIdx.x; i < q_size + kv_size; i += 2 * blockDim.x) {
    float a = to_float(qkv[i]), b = to_float(qkv[i + 1]), cosine = turns[i % head_dim], sine = turns[i % head_dim + 1];
    T* to = i < q_size ? q + i : k + i - q_size;
    to[0] = from_float<T>(a * cosine - b * sine);
    to[1] = from_float<T>(a * sine + b * cosine);
  }
  for (int i = threadIdx.x; i < kv_size; i += blockDim.x) v[i] = qkv[q_size + kv_size + i];
}
