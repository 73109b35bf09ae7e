// copy_blocks.cu - copy blocks of a pool to other blocks, many in one launch.
//
// Pairs are copied in no order: no block may be the target of one and in another one too.  A block is moved
// in pieces of up to 16 bytes.
//
// Launch: grid (num_pairs, thread blocks for the pieces of a block), thread block of any size.
template <typename Piece>
__global__ void copy_blocks(Piece* k_pool,  // [num_blocks, pieces]
                            Piece* v_pool,
                            const long long* __restrict__ pairs,  // [num_pairs, 2]: source, target
                            int pieces) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= pieces) return;
  const long long* pair = pairs + 2 * blockIdx.x;
  long long from = pair[0] * pieces + i, to = pair[1] * pieces + i;
  k_pool[to] = k_pool[from];
  v_pool[to] = v_pool[from];
}
