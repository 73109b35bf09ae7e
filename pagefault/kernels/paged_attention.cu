// paged_attention.cu - the naive kernel over a paged cache: it adds the page walk, and nothing else.
//
// A token's K and V lie where the sequence's block table says (layout.cuh).  Launch: as naive_attention.cu.
#include "layout.cuh"
#include "naive_attention.cu"

template <typename T, int BLOCK_SIZE>
__global__ void paged_attention(const T* __restrict__ q,               // [num_seqs, num_heads, head_dim]
                                const T* __restrict__ k,               // [num_blocks, BLOCK_SIZE,
                                const T* __restrict__ v,               //   num_kv_heads, head_dim], both
                                const int* __restrict__ block_tables,  // [num_seqs, max_blocks]
                                const int* __restrict__ seq_lens,      // [num_seqs]
                                T* __restrict__ out,                   // [num_seqs, num_heads, head_dim]
                                int max_blocks, int num_kv_heads, int head_dim, float scale) {
  int seq = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y, kv_head = head / (num_heads / num_kv_heads);
  long long mine = ((long long)seq * num_heads + head) * head_dim;
  Paged<BLOCK_SIZE> layout = {block_tables, unsigned(max_blocks)};
  auto row = [&](int token) {
    return ((long long)layout.slot(seq, token) * num_kv_heads + kv_head) * head_dim;
  };
  attend(q + mine, k, v, seq_lens[seq], out + mine, head_dim, scale, row);
}
