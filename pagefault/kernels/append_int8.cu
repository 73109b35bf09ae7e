// append_int8.cu - K and V of new tokens into their slots of a pool of bytes, as numbers from -127 to 127 times a scale.
//
// A block of the pool has one scale for the K, and one for the V, of each KV head.  When a new token is too large for
// it, the scale grows, and what the block holds is rounded once more.  A token in a block's first slot begins it anew:
// what the block held is forgotten.  A number that isn't finite makes the scale infinite.
//
// Launch: grid (blocks that get tokens, num_kv_heads), THREADS threads.  Shared memory: partial, 4 * THREADS bytes.
#include "common.cuh"

constexpr int THREADS = 128;
constexpr float LEAST_SCALE = 4e-10f;  // the least number of a half, divided by 127, is more

struct NewTokens {  // of one block and KV head
  const long long* slots;
  int count, block_size, num_kv_heads, head_dim;
  long long first_slot;  // of the block
};

// Of K, or of V.  x: the new tokens of this head; pool: the block's bytes of this head.
__device__ inline void append_one(NewTokens tokens, const float* x, signed char* pool, float* scale, float* partial) {
  int row = tokens.num_kv_heads * tokens.head_dim, numbers = tokens.count * tokens.head_dim;
  float largest = 0;
  for (int i = threadIdx.x; i < numbers; i += THREADS) {
    float size = fabsf(x[(long long)(i / tokens.head_dim) * row + i % tokens.head_dim]);
    largest = fmaxf(largest, size <= -LOWEST ? size : __uint_as_float(0x7f800000));
  }
  largest = block_reduce(largest, partial, true);
  bool anew = tokens.slots[0] == tokens.first_slot;
  float before = anew ? 0 : *scale, needed = fmaxf(largest / 127, LEAST_SCALE), now = before < needed ? needed : before;
  if (now != before)
    for (int i = threadIdx.x; i < tokens.block_size * tokens.head_dim; i += THREADS) {
      signed char& byte = pool[i / tokens.head_dim * row + i % tokens.head_dim];
      byte = (signed char)rintf(byte * (before / now));
    }
  __syncthreads();
  for (int i = threadIdx.x; i < numbers; i += THREADS) {
    int token = i / tokens.head_dim, dim = i % tokens.head_dim;
    pool[int(tokens.slots[token] - tokens.first_slot) * row + dim] = (signed char)rintf(x[(long long)token * row + dim] / now);
  }
  if (threadIdx.x == 0) *scale = now;
}

extern "C" __global__ void append_int8(
    const float* __restrict__ k,  // [num_tokens, num_kv_heads, head_dim], by slot
    const float* __restrict__ v,
    signed char* k_pool,  // [num_blocks, block_size, num_kv_heads, head_dim]
    signed char* v_pool,
    float* k_scales,  // [num_blocks, num_kv_heads]
    float* v_scales,
    const long long* __restrict__ slots,  // [num_tokens], rising
    const int* __restrict__ first,        // [blocks that get tokens + 1]: the first of each one's tokens
    int block_size, int head_dim) {
  __shared__ float partial[THREADS];
  int num_kv_heads = gridDim.y, head = blockIdx.y, begin = first[blockIdx.x];
  long long block = slots[begin] / block_size, row = (long long)num_kv_heads * head_dim;
  NewTokens tokens = {slots + begin, first[blockIdx.x + 1] - begin, block_size, num_kv_heads, head_dim, block * block_size};
  long long from = begin * row + head * head_dim, to = block * block_size * row + head * head_dim;
  append_one(tokens, k + from, k_pool + to, k_scales + block * num_kv_heads + head, partial);
  append_one(tokens, v + from, v_pool + to, v_scales + block * num_kv_heads + head, partial);
}
