// online_softmax.cu - attention in one pass over K and V, without an array of scores.
//
// It adds two things to the paged kernel.  A thread keeps the largest score so far, and scales down what it
// has summed when it meets a larger one (partial.cuh): no context is too long.  And lanes lie along the row:
// a few share a token, and each loads 16 bytes of its K, and of its V, and no sector for 4 of them.
//
// Launch: num_seqs * num_heads thread blocks, one for each head of each sequence, of WARPS * 32 threads.
// Shared memory: found, 4 * WARPS * (HEAD_DIM + 2) bytes.
#include "layout.cuh"
#include "partial.cuh"

constexpr int WARPS = 8;

template <typename T, int HEAD_DIM, typename Layout>
__global__ void __launch_bounds__(WARPS * 32) online_softmax(
    const T* __restrict__ q,           // [num_seqs, num_heads, HEAD_DIM]
    const T* __restrict__ k,           // [slots, num_kv_heads,
    const T* __restrict__ v,           //   HEAD_DIM], both
    const int* __restrict__ tables,    // of the layout
    const int* __restrict__ seq_lens,  // [num_seqs]
    T* __restrict__ out,               // [num_seqs, num_heads, HEAD_DIM]
    int table_size, int num_heads, int num_kv_heads, float scale) {
  using Piece = ::Piece<T, HEAD_DIM>;
  __shared__ HeadPartial<HEAD_DIM> found[WARPS];
  int seq = blockIdx.x / num_heads, head = blockIdx.x % num_heads, kv_head = head / (num_heads / num_kv_heads);
  int seq_len = seq_lens[seq], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int start = lane % Piece::LANES * Piece::DIMS;  // of this lane's piece
  bool has_piece = start < HEAD_DIM;
  if (!has_piece) start = 0;  // it loads another's, and takes it for 0
  unsigned bytes_per_row = unsigned(sizeof(T)) * HEAD_DIM * num_kv_heads;
  Layout layout = {tables, unsigned(table_size)};
  q += (long long)blockIdx.x * HEAD_DIM, out += (long long)blockIdx.x * HEAD_DIM;
  k += kv_head * HEAD_DIM + start, v += kv_head * HEAD_DIM + start;

  float query[Piece::DIMS];
  for (int i = 0; i < Piece::DIMS; ++i) query[i] = has_piece ? to_float(q[start + i]) * (scale * LOG2E) : 0;
  Partial<Piece::DIMS> partial;
  for (int first = warp * Piece::ROWS; first < seq_len; first += WARPS * Piece::ROWS) {
    int token = first + lane / Piece::LANES;
    unsigned slot = layout.slot(seq, min(token, seq_len - 1));
    Piece key, value;
    key.load(row(k, slot, bytes_per_row)), value.load(row(v, slot, bytes_per_row));
    float score = 0;
    for (int i = 0; i < Piece::DIMS; ++i) score += query[i] * to_float(key.x[i]);
    for (int flip = 1; flip < Piece::LANES; flip *= 2) score += __shfl_xor_sync(~0u, score, flip);
    if (token >= seq_len) break;  // it came along for the shuffles, which take a whole warp
    partial.raise(fmaxf(partial.top, score));
    float weight = exp2f(score - partial.top);
    partial.sum += weight;
    for (int i = 0; i < Piece::DIMS; ++i) partial.out[i] += weight * to_float(value.x[i]);
  }

  for (int flip = Piece::LANES; flip < 32; flip *= 2) partial.merge_lane(flip);
  if (lane < Piece::LANES && has_piece) found[warp].store(partial, start);
  __syncthreads();
  if (warp > 0) return;
  auto all = merged<HEAD_DIM>(WARPS, [&](int w) -> auto& { return found[w]; });
  for (int d = lane, j = 0; d < HEAD_DIM; d += 32, ++j)
    out[d] = from_float<T>(seq_len > 0 ? all.out[j] / all.sum : 0);  // attention over nothing is zero
}
