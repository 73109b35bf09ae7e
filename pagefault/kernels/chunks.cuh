// chunks.cuh - a batch cut into chunks, a thread block each, and how their results become one.
//
// A chunk is some of a sequence's tokens.  chunk_list() in chunks.py makes them: none is longer than an
// equal share of the GPU, and the longest come first, so that thread blocks end at about the same time
// whatever the lengths are.
#pragma once
#include "partial.cuh"

struct Chunk {
  int seq, begin, end;              // tokens begin to end - 1
  int part, num_parts, first_part;  // part 0 to num_parts - 1 of its sequence; where part 0 is among all parts
};

// For a warp that has written a part: whether it is the last to arrive, so that all num_parts can be read.
// arrived: how many are there, 0 between launches.
__device__ inline bool is_last(int* arrived, int num_parts) {
  bool last = false;
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    __threadfence();  // the part is there before it is counted,
    last = atomicAdd(arrived, 1) == num_parts - 1;
    __threadfence();  // and all are counted before they are read
    if (last) atomicExch(arrived, 0);
  }
  __syncwarp();
  return __shfl_sync(~0u, last, 0);
}

// For all threads, when `found` has what each warp found for each query head, `head` being the first: the chunk's
// result, a warp for a head.  It is an output if the chunk is a whole sequence, else a part; and who brings a
// sequence's last part merges them all.
template <int WARPS, int GROUP, int HEAD_DIM, typename T>
__device__ void finish(const HeadPartial<HEAD_DIM> (&found)[WARPS][GROUP], Chunk chunk, T* out,
                       HeadPartial<HEAD_DIM>* parts, int* arrived, int num_heads, int head) {
  int lane = threadIdx.x % 32;
  long long first = (long long)chunk.seq * num_heads + head;
  parts += (long long)chunk.first_part * num_heads + head;
  for (int g = threadIdx.x / 32; g < GROUP; g += WARPS) {
    auto all = merged<HEAD_DIM>(WARPS, [&](int w) -> auto& { return found[w][g]; });
    if (chunk.num_parts > 1) {
      auto& part = parts[(long long)chunk.part * num_heads + g];
      if (lane == 0) part.top = all.top, part.sum = all.sum;
      for (int d = lane, j = 0; d < HEAD_DIM; d += 32, ++j) part.out[d] = all.out[j];
      if (!is_last(&arrived[first + g], chunk.num_parts)) continue;
      all = merged<HEAD_DIM, 16>(chunk.num_parts, [&](int p) -> auto& { return parts[(long long)p * num_heads + g]; });
    }
    for (int d = lane, j = 0; d < HEAD_DIM; d += 32, ++j)
      out[(first + g) * HEAD_DIM + d] = from_float<T>(chunk.begin < chunk.end ? all.out[j] / all.sum : 0);
  }
}
