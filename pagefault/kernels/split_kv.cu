// split_kv.cu - attention that reads each K and V once, with the whole GPU at work.
//
// It adds three things to online_softmax.cu.  Contexts are split into chunks, a thread block each, so that a
// few long sequences keep every processor busy too; who finishes a sequence's last chunk merges them all
// (chunks.cuh).  The GROUP query heads of a KV head are done together, so that its K and V are read once for
// all of them.  And a lane loads UNROLL rows before it uses the first, since memory answers late.
//
// Launch: chunks * num_heads / GROUP thread blocks of WARPS * 32 threads, of which 2 fit on a processor (1 if
// GROUP > 4).  Shared memory: found, 4 * WARPS * GROUP * (HEAD_DIM + 2) bytes.
#include "chunks.cuh"
#include "layout.cuh"
#include "partial.cuh"

constexpr int WARPS = 8, UNROLL = 4;

template <typename T, int HEAD_DIM, int GROUP, typename Layout>
__global__ void __launch_bounds__(WARPS * 32, GROUP > 4 ? 1 : 2) split_kv(
    const T* __restrict__ q,           // [num_seqs, num_heads, HEAD_DIM]
    const T* __restrict__ k,           // [slots, num_kv_heads,
    const T* __restrict__ v,           //   HEAD_DIM], both
    const int* __restrict__ tables,    // of the layout
    const Chunk* __restrict__ chunks,  // the longest first
    T* __restrict__ out,               // [num_seqs, num_heads, HEAD_DIM]
    HeadPartial<HEAD_DIM>* parts,      // [parts of all sequences, num_heads]
    int* arrived,                      // [num_seqs, num_heads], all 0
    int table_size, int num_heads, int num_kv_heads, float scale) {
  using Piece = ::Piece<T, HEAD_DIM>;
  constexpr int STEP = WARPS * Piece::ROWS;
  __shared__ HeadPartial<HEAD_DIM> found[WARPS][GROUP];
  int groups = num_heads / GROUP, head = blockIdx.x % groups * GROUP;
  int kv_head = head / (num_heads / num_kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int start = lane % Piece::LANES * Piece::DIMS;
  bool has_piece = start < HEAD_DIM;
  if (!has_piece) start = 0;
  unsigned bytes_per_row = unsigned(sizeof(T)) * HEAD_DIM * num_kv_heads;
  Layout layout = {tables, unsigned(table_size)};
  Chunk chunk = chunks[blockIdx.x / groups];
  q += ((long long)chunk.seq * num_heads + head) * HEAD_DIM;
  k += kv_head * HEAD_DIM + start, v += kv_head * HEAD_DIM + start;

  float query[GROUP][Piece::DIMS];
  Partial<Piece::DIMS> partial[GROUP];
  #pragma unroll
  for (int g = 0; g < GROUP; ++g)
    for (int i = 0; i < Piece::DIMS; ++i)
      query[g][i] = has_piece ? to_float(q[g * HEAD_DIM + start + i]) * (scale * LOG2E) : 0;

  for (int first = chunk.begin + warp * Piece::ROWS; first < chunk.end; first += UNROLL * STEP) {
    int token = first + lane / Piece::LANES;  // the first of UNROLL, each STEP after the one before
    Piece keys[UNROLL], values[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      unsigned slot = layout.slot(chunk.seq, min(token + u * STEP, chunk.end - 1));
      keys[u].load(row(k, slot, bytes_per_row)), values[u].load(row(v, slot, bytes_per_row));
    }
    float weight[UNROLL][GROUP];  // at first the scores
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      float key[Piece::DIMS];
      for (int i = 0; i < Piece::DIMS; ++i) key[i] = to_float(keys[u].x[i]);
      #pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        float score = 0;
        for (int i = 0; i < Piece::DIMS; ++i) score += query[g][i] * key[i];
        for (int flip = 1; flip < Piece::LANES; flip *= 2) score += __shfl_xor_sync(~0u, score, flip);
        weight[u][g] = token + u * STEP < chunk.end ? score : NO_SCORE;
      }
    }
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float top = partial[g].top;
      for (int u = 0; u < UNROLL; ++u) top = fmaxf(top, weight[u][g]);
      partial[g].raise(top);
      for (int u = 0; u < UNROLL; ++u) partial[g].sum += weight[u][g] = exp2f(weight[u][g] - top);
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      float value[Piece::DIMS];
      for (int i = 0; i < Piece::DIMS; ++i) value[i] = to_float(values[u].x[i]);
      #pragma unroll
      for (int g = 0; g < GROUP; ++g)
        for (int i = 0; i < Piece::DIMS; ++i) partial[g].out[i] += weight[u][g] * value[i];
    }
  }

  #pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    for (int flip = Piece::LANES; flip < 32; flip *= 2) partial[g].merge_lane(flip);
    if (lane < Piece::LANES && has_piece) found[warp][g].store(partial[g], start);
  }
  __syncthreads();
  chunk = chunks[blockIdx.x / groups];  // again, not kept: registers are scarce above
  finish(found, chunk, out, parts, arrived, num_heads, head);
}
