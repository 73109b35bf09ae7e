// chunks.cuh - a batch cut into chunks, a thread block each, and how their results become one.
//
// A chunk is some of a sequence's tokens.  chunk_list() in attention.py makes them: none is longer than an
// equal share of the GPU, and the longest come first, so that thread blocks end at about the same time
// whatever the lengths are.
#pragma once

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
  return __shfl_sync(~0u, last, 0);
}
