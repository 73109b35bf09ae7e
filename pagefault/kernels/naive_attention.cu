// naive_attention.cu - one new token's attention over a contiguous cache, the plain way.
//
// A thread block works for one head of one sequence.  It computes the scores of all cached tokens into
// shared memory, turns them into weights, and sums the values by weight.  A query head reads the K and V
// of the KV head that its group shares (num_heads / num_kv_heads query heads a group).
//
// Launch: grid (num_seqs, num_heads), thread block of a power of two threads, shared memory
// 4 * (threads + longest seq_len) bytes: that is what limits a context.
#include "common.cuh"

// q and out are the head's, [head_dim]; row(token) is where the K, or V, of a token starts.
template <typename T, typename Row>
__device__ void attend(const T* q, const T* k, const T* v, int seq_len, T* out, int head_dim, float scale, Row row) {
  extern __shared__ float shared[];
  float* partial = shared;               // [threads]
  float* scores = shared + blockDim.x;   // [seq_len]
  int t = threadIdx.x;

  // 1. Scores: a thread takes every blockDim.x-th token and the dot product of its K with q.
  float largest = LOWEST;
  for (int token = t; token < seq_len; token += blockDim.x) {
    const T* key = k + row(token);
    float dot = 0;
    for (int d = 0; d < head_dim; ++d) {
      float q_d = to_float(q[d]);
      dot += q_d * to_float(key[d]);
    }
    scores[token] = dot * scale;
    largest = fmaxf(largest, scores[token]);
  }
  largest = block_reduce(largest, partial, true);

  // 2. Softmax: exponents of the scores less the largest, so that none overflows, and their sum.
  float sum = 0;
  for (int token = t; token < seq_len; token += blockDim.x) {
    scores[token] = expf(scores[token] - largest);
    sum += scores[token];
  }
  sum = block_reduce(sum, partial, false);

  // 3. Output: a thread takes every blockDim.x-th dimension and sums the V of all tokens by weight.
  for (int d = t; d < head_dim; d += blockDim.x) {
    float total = 0;
    for (int token = 0; token < seq_len; ++token) total += scores[token] * to_float(v[row(token) + d]);
    out[d] = from_float<T>(seq_len > 0 ? total / sum : 0);  // attention over nothing is zero
  }
}

template <typename T>
__global__ void naive_attention(const T* __restrict__ q,           // [num_seqs, num_heads, head_dim]
                                const T* __restrict__ k,           // [num_seqs, max_seq_len,
                                const T* __restrict__ v,           //   num_kv_heads, head_dim], both
                                const int* __restrict__ seq_lens,  // [num_seqs]
                                T* __restrict__ out,               // [num_seqs, num_heads, head_dim]
                                int max_seq_len, int num_kv_heads, int head_dim, float scale) {
  int seq = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y, kv_head = head / (num_heads / num_kv_heads);
  long long mine = ((long long)seq * num_heads + head) * head_dim;
  auto row = [&](int token) {
    return (((long long)seq * max_seq_len + token) * num_kv_heads + kv_head) * head_dim;
  };
  attend(q + mine, k, v, seq_lens[seq], out + mine, head_dim, scale, row);
}
