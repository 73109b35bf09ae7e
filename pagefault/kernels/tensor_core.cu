// tensor_core.cu - split_kv.cu with its two products on tensor cores, and its loads in the background.
//
// A warp takes 16 tokens at a time, a tile, and the GROUP query heads of a KV head, 8 to a matrix:
//   scores [16 tokens x 8 heads] += K [16 x 16 dims] . Q^T [16 x 8],        for each 16 dims, and then
//   out^T [16 dims x 8 heads]    += V^T [16 x 16 tokens] . weights [16 x 8], for each 16 dims.
// Meanwhile asynchronous copies bring its next tiles to shared memory, where they wait without taking registers.
// T is __half, or signed char: then K, and V, of a KV head are numbers from -127 to 127 times a scale, of which each
// run of tokens has its own (layout.cuh).
//
// Launch: chunks * num_heads / GROUP thread blocks of WARPS * 32 threads.  Chunks begin at multiples of TILE.
// Shared memory: WARPS * STAGES tiles, dynamic, and at the end in the same place found, 4 * WARPS * GROUP * (HEAD_DIM + 2)
// bytes.  A tile of HEAD_DIM 128 is 8 KiB, or 4 KiB for signed char: with 3 stages 2 thread blocks fit on a processor of
// an H200, with 2 stages 3.
#include "chunks.cuh"
#include "layout.cuh"
#include "tiles.cuh"

constexpr int WARPS = 4;

// One warp's results over a chunk.  The matrices lie over the warp: a lane has to do with heads 8 * c + 2 * (lane % 4)
// and the next, and of a tile with tokens lane / 4 and lane / 4 + 8.
template <typename T, int HEAD_DIM, int GROUP> struct Heads {
  static constexpr int COLUMNS = (GROUP + 7) / 8;
  using Tile = ::Tile<T, HEAD_DIM>;
  unsigned query[COLUMNS][HEAD_DIM / 16][2];
  float out[COLUMNS][HEAD_DIM / 16][4] = {};  // in units of v_scale
  // Weights are 2^(score - base), where base is the largest score - ROOM: halves up to 2^15, so that small ones aren't 0.
  static constexpr float ROOM = 15;
  float base[COLUMNS][2], sum[COLUMNS][2] = {}, v_scale = 1;  // sum: of this lane's tokens alone

  __device__ Heads(const __half* q, int lane) {
    #pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      int head = 8 * c + lane / 4;
      auto pairs = (const unsigned*)(q + head * HEAD_DIM);
      for (int i = 0; i < HEAD_DIM / 8; ++i)
        query[c][i / 2][i % 2] = head < GROUP ? pairs[i / 2 * 8 + Tile::query_pair(lane % 4, i % 2)] : 0;
      base[c][0] = base[c][1] = LOWEST;
    }
  }

  // Take in the first `count` tokens of a tile.  scale: of scores; new_v_scale: of the tile's values.
  __device__ void attend(const Tile& tile, int count, float scale, float new_v_scale, int lane) {
    unsigned a[2][4], weights[COLUMNS][2];
    new_v_scale = fabsf(new_v_scale) < 1e-20f ? 1e-20f : new_v_scale;  // of a block of zeros it may be 0
    float x[COLUMNS][4] = {}, shrink = v_scale / new_v_scale;
    v_scale = new_v_scale;
    #pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; ++i) {
      tile.keys(a, i, lane);
      #pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        multiply_add(x[c], a[0], query[c][2 * i]), multiply_add(x[c], a[1], query[c][2 * i + 1]);
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      for (int i = 0; i < 4; ++i) x[c][i] = lane / 4 + i / 2 * 8 < count ? x[c][i] * scale : NO_SCORE;
      for (int h = 0; h < 2; ++h) {
        float new_base = fmaxf(base[c][h], fmaxf(x[c][h], x[c][h + 2]) - ROOM);
        for (int flip = 4; flip < 32; flip *= 2) new_base = fmaxf(new_base, __shfl_xor_sync(~0u, new_base, flip));
        float keep = exp2f(base[c][h] - new_base);
        base[c][h] = new_base, sum[c][h] *= keep;
        x[c][h] = exp2f(x[c][h] - new_base), x[c][h + 2] = exp2f(x[c][h + 2] - new_base);
        for (int i = 0; i < HEAD_DIM / 8; ++i) out[c][i / 2][i % 2 * 2 + h] *= keep * shrink;
      }
      for (int i = 0; i < 2; ++i) {
        __half2 pair = __floats2half2_rn(x[c][2 * i], x[c][2 * i + 1]);
        sum[c][0] += __low2float(pair), sum[c][1] += __high2float(pair);  // what V is multiplied with
        weights[c][i] = transpose(*(unsigned*)&pair);
      }
    }
    #pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; ++i) {
      tile.values(a, i, lane);
      #pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        multiply_add(out[c][2 * i], a[0], weights[c]), multiply_add(out[c][2 * i + 1], a[1], weights[c]);
    }
  }

  __device__ void store(HeadPartial<HEAD_DIM>* found, int lane) {
    #pragma unroll
    for (int j = 0; j < 2 * COLUMNS; ++j) {
      int c = j / 2, h = j % 2, head = 8 * c + lane % 4 * 2 + h;
      for (int flip = 4; flip < 32; flip *= 2) sum[c][h] += __shfl_xor_sync(~0u, sum[c][h], flip);
      if (head >= GROUP) continue;
      if (lane < 4) found[head].top = base[c][h], found[head].sum = sum[c][h];
      for (int i = 0; i < HEAD_DIM / 8; ++i)
        found[head].out[i / 2 * 16 + Tile::result_dim(lane / 4, i % 2)] = out[c][i / 2][i % 2 * 2 + h] * v_scale;
    }
  }
};

template <typename T, int HEAD_DIM, int GROUP, int STAGES, typename Layout>
__global__ void __launch_bounds__(WARPS * 32, STAGES == 2 ? 3 : 2) tensor_core(
    const __half* __restrict__ q,          // [num_seqs, num_heads, HEAD_DIM]
    const T* __restrict__ k,               // [slots, num_kv_heads,
    const T* __restrict__ v,               //   HEAD_DIM], both
    const float* __restrict__ k_scales,    // [slots / RUN, num_kv_heads],
    const float* __restrict__ v_scales,    //   both; any array if T is __half
    const int* __restrict__ tables,        // of the layout
    const Chunk* __restrict__ chunks,      // the longest first
    __half* __restrict__ out,              // [num_seqs, num_heads, HEAD_DIM]
    HeadPartial<HEAD_DIM>* parts,          // [parts of all sequences, num_heads]
    int* arrived,                          // [num_seqs, num_heads], all 0
    int table_size, int num_heads, int num_kv_heads, float scale) {
  using Tile = ::Tile<T, HEAD_DIM>;
  constexpr int PIECES = Tile::PIECES;
  constexpr bool WHOLE = Layout::RUN % TILE == 0;  // a tile is one run, or a part of one
  extern __shared__ __align__(128) uint4 memory[];
  __shared__ float scales[WARPS][STAGES][2];
  int groups = num_heads / GROUP, head = blockIdx.x % groups * GROUP;
  int kv_head = head / (num_heads / num_kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int piece = lane % PIECES, start = piece * 16 / int(sizeof(T));
  unsigned bytes_per_row = unsigned(sizeof(T)) * HEAD_DIM * num_kv_heads;
  Layout layout = {tables, unsigned(table_size)};
  Chunk chunk = chunks[blockIdx.x / groups];
  k += kv_head * HEAD_DIM + start, v += kv_head * HEAD_DIM + start;

  Tile* ring = (Tile*)memory + warp * STAGES;
  int fetched = 0, used = 0;  // tiles of this warp
  auto fetch = [&] {          // begin to copy the next one; past the chunk's end, nothing
    int token = chunk.begin + (fetched * WARPS + warp) * TILE;
    if (token < chunk.end) {
      int stage = fetched++ % STAGES;
      Tile& tile = ring[stage];
      int last = chunk.end - 1 - token;
      unsigned slot = layout.slot(chunk.seq, WHOLE ? token : token + min(lane % TILE, last));  // else of one token a lane
      #pragma unroll
      for (int i = 0; i < TILE; i += 32 / PIECES) {  // so many rows at once
        int r = i + lane / PIECES;
        unsigned from = WHOLE ? slot + min(r, last) : __shfl_sync(~0u, slot, r);
        copy_async(&tile.k[tile.at(r, piece)], row(k, from, bytes_per_row));
        copy_async(&tile.v[tile.at(r, piece)], row(v, from, bytes_per_row));
      }
      if (sizeof(T) == 1 && lane < 2)
        copy_async(&scales[warp][stage][lane],
                   (lane ? v_scales : k_scales) + (long long)(slot / Layout::RUN) * num_kv_heads + kv_head);
    }
    commit_copies();
  };

  for (int i = 0; i < STAGES - 1; ++i) fetch();
  Heads<T, HEAD_DIM, GROUP> heads(q + ((long long)chunk.seq * num_heads + head) * HEAD_DIM, lane);
  for (int left = chunk.end - chunk.begin - warp * TILE; left > 0; left -= WARPS * TILE) {
    fetch();
    wait_copies<STAGES - 1>();
    __syncwarp();  // the tile is there, for all lanes
    int stage = used++ % STAGES;
    float k_scale = sizeof(T) == 1 ? scales[warp][stage][0] : 1, v_scale = sizeof(T) == 1 ? scales[warp][stage][1] : 1;
    heads.attend(ring[stage], left, scale * LOG2E * k_scale, v_scale, lane);
    __syncwarp();  // and all are done with it
  }
  __syncthreads();  // nobody needs the tiles any more
  auto& found = *(HeadPartial<HEAD_DIM>(*)[WARPS][GROUP])memory;
  heads.store(found[warp], lane);
  __syncthreads();
  finish(found, chunk, out, parts, arrived, num_heads, head);
}
