// layout.cuh - where a token's K and V lie: in slot number `slot` of [slots, num_kv_heads, head_dim].
//
// A contiguous cache is a paged one with one huge block a sequence.  A kernel that takes its layout as a
// template parameter is both, and what the two differ by in time is the cost of paging.
//
// RUN: so many tokens, from a multiple on, lie one behind the other; in a cache of int8 they share a scale.
#pragma once

struct Contiguous {
  static constexpr int RUN = 16;
  const int* no_tables;
  unsigned max_seq_len;
  __device__ unsigned slot(unsigned seq, unsigned token) const { return seq * max_seq_len + token; }
};

template <int BLOCK_SIZE> struct Paged {
  static constexpr int RUN = BLOCK_SIZE;
  const int* block_tables;  // [num_seqs, max_blocks]
  unsigned max_blocks;
  __device__ unsigned slot(unsigned seq, unsigned token) const {  // the page walk
    unsigned block = block_tables[(long long)seq * max_blocks + token / BLOCK_SIZE];
    return block * BLOCK_SIZE + token % BLOCK_SIZE;
  }
};

// Where the row of a slot starts.  A large cache has more than 2^32 bytes: their number, a product of 32-bit
// numbers, is a 64-bit one, and takes one instruction.
template <typename T> __device__ const T* row(const T* first, unsigned slot, unsigned bytes_per_row) {
  return (const T*)((const char*)first + (unsigned long long)slot * bytes_per_row);
}
