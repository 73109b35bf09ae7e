// partial.cuh - attention over some of the tokens, and how results over different tokens become one.
//
// Such a result is the largest score (top), the sum of the weights 2^(score - top), and the values summed
// by weight, not yet divided by the sum of weights.  Two results are brought to the larger top and added:
// that is online softmax.  Tokens, lanes, warps and thread blocks are merged in the same way.
#pragma once
#include "common.cuh"

constexpr float LOG2E = 1.44269504f;  // e^x is 2^(LOG2E * x), and a GPU has an instruction for 2^x

__device__ constexpr int power_of_two(int least) { return least > 1 ? 2 * power_of_two((least + 1) / 2) : 1; }

// What a lane has of a row of K or V: 16 bytes, or 32 where 32 lanes would be too few for the row.
template <typename T, int HEAD_DIM> struct alignas(16) Piece {
  static constexpr int DIMS = (HEAD_DIM * sizeof(T) > 512 ? 32 : 16) / sizeof(T);
  static constexpr int LANES = power_of_two(HEAD_DIM / DIMS);  // share a row; of 80 or 96 dims some have no piece
  static constexpr int ROWS = 32 / LANES;                      // that a warp has in hand at once
  T x[DIMS];

  // __ldcs: K and V stream past, and are to leave the caches before tables and queries, which are read again.
  __device__ void load(const T* from) {
    for (int i = 0; i < DIMS * int(sizeof(T)) / 16; ++i) ((uint4*)x)[i] = __ldcs((const uint4*)from + i);
  }
};

template <int DIMS> struct Partial {  // in some dimensions of a head
  float top = LOWEST, sum = 0, out[DIMS] = {};

  __device__ void raise(float new_top) {
    float keep = exp2f(top - new_top);
    top = new_top, sum *= keep;
    for (int i = 0; i < DIMS; ++i) out[i] *= keep;
  }
  // Merge with the lane whose number differs in the bit `flip`: both then have the result.
  __device__ void merge_lane(int flip) {
    raise(fmaxf(top, __shfl_xor_sync(~0u, top, flip)));
    sum += __shfl_xor_sync(~0u, sum, flip);
    for (int i = 0; i < DIMS; ++i) out[i] += __shfl_xor_sync(~0u, out[i], flip);
  }
};

template <int HEAD_DIM> struct HeadPartial {  // in all of them, in memory
  float top, sum, out[HEAD_DIM];

  // Who has the first dimension stores top and sum as well.
  template <int DIMS> __device__ void store(const Partial<DIMS>& piece, int start) {
    if (start == 0) top = piece.top, sum = piece.sum;
    for (int i = 0; i < DIMS; ++i) out[start + i] = piece.out[i];
  }
};

// part(0) to part(n - 1), merged by a warp: a lane has dimensions lane, lane + 32, ...; it loads AT_ONCE parts
// before it uses the first.
template <int HEAD_DIM> using Merged = Partial<(HEAD_DIM + 31) / 32>;

template <int HEAD_DIM, int AT_ONCE = 8, typename Part> __device__ Merged<HEAD_DIM> merged(int n, Part part) {
  constexpr int DIMS = (HEAD_DIM + 31) / 32;
  Merged<HEAD_DIM> all;
  for (int first = 0; first < n; first += AT_ONCE) {
    float top[AT_ONCE], sum[AT_ONCE], out[AT_ONCE][DIMS], largest = all.top;
    #pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const HeadPartial<HEAD_DIM>& one = part(min(first + i, n - 1));
      top[i] = first + i < n ? one.top : LOWEST, sum[i] = one.sum;
      for (int j = 0; j < DIMS; ++j) out[i][j] = one.out[min(int(threadIdx.x) % 32 + 32 * j, HEAD_DIM - 1)];
    }
    for (int i = 0; i < AT_ONCE; ++i) largest = fmaxf(largest, top[i]);
    all.raise(largest);
    #pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      float weight = exp2f(top[i] - largest);
      all.sum += weight * sum[i];
      for (int j = 0; j < DIMS; ++j) all.out[j] += weight * out[i][j];
    }
  }
  return all;
}
