// gather_blocks.cu - some blocks of a pool, wherever they lie, into one array; or, with BACK, from it into the pool.
//
// That array, the staging, can then be moved in one piece: to the CPU's memory, or to another pool.
// A block is moved in pieces of up to 16 bytes.
//
// Launch: grid (num_staged, thread blocks for the pieces of a block), thread block of any size.
template <typename Piece, bool BACK>
__global__ void gather_blocks(Piece* k_pool,  // [num_blocks, pieces]
                              Piece* v_pool,
                              Piece* staging,  // [2, num_staged, pieces]: K, then V
                              const long long* __restrict__ blocks,  // [num_staged], each once if BACK
                              int pieces) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= pieces) return;
  long long pooled = blocks[blockIdx.x] * pieces + i, staged = (long long)blockIdx.x * pieces + i;
  Piece *k = staging + staged, *v = k + (long long)gridDim.x * pieces;
  if (BACK) {
    k_pool[pooled] = *k;
    v_pool[pooled] = *v;
  } else {
    *k = k_pool[pooled];
    *v = v_pool[pooled];
  }
}
