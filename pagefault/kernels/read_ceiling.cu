// read_ceiling.cu - read an array once and do next to nothing with it: how fast a GPU reads.
//
// Launch: any grid; a thread takes every (threads in all)-th piece of 16 bytes, IN_FLIGHT of them at once.
template <int IN_FLIGHT>
__global__ void read_ceiling(const uint4* __restrict__ data, long long pieces, unsigned* out) {
  long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; first < pieces; first += IN_FLIGHT * step) {
    uint4 piece[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; ++i) piece[i] = first + i * step < pieces ? __ldcs(data + first + i * step) : uint4{};
    for (int i = 0; i < IN_FLIGHT; ++i) sum += piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
  }
  if (sum == 0x9e3779b9) *out = sum;  // which is rare, but nothing of the sum can be left out
}
