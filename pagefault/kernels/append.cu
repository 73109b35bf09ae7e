// append.cu - K and V of new tokens into their slots of a pool, wherever these lie.
//
// A pool is a row of slots: slot = block_id * block_size + offset.  A token's K, or V, of all its heads lies
// in one piece, and is moved in pieces as large as its size and its address allow, of up to 16 bytes:
// neighbouring threads move neighbouring pieces.
//
// Launch: grid (num_tokens, thread blocks for the pieces of a token), thread block of any size.
template <typename Piece>
__global__ void append(const Piece* __restrict__ k,  // [num_tokens, pieces]
                       const Piece* __restrict__ v,
                       Piece* k_pool,  // [num_blocks * block_size, pieces]
                       Piece* v_pool,
                       const long long* __restrict__ slots,  // [num_tokens], each once
                       int pieces) {
  int i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= pieces) return;
  long long from = (long long)blockIdx.x * pieces + i, to = slots[blockIdx.x] * pieces + i;
  k_pool[to] = k[from];
  v_pool[to] = v[from];
}
