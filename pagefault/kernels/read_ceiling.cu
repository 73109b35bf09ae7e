// read_ceiling.cu - read an array once and do next to nothing with it: how fast a GPU reads.
//
// Launch: any grid; a thread takes every (threads in all)-th piece of 16 bytes, four of them in flight.
__global__ void read_ceiling(const uint4* __restrict__ data, long long pieces, unsigned* out) {
  long long step = (long long)gridDim.x * blockDim.x, i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + 3 * step < pieces; i += 4 * step) {
    uint4 a = data[i], b = data[i + step], c = data[i + 2 * step], d = data[i + 3 * step];
    sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
  }
  for (; i < pieces; i += step) {
    uint4 a = data[i];
    sum += a.x ^ a.y ^ a.z ^ a.w;
  }
  atomicAdd(out, sum);  // so that nothing of it can be left out
}
