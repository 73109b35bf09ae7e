// instructions_cpu.h - the instructions of kernels/instructions.cuh on a CPU.
#pragma once
#include "cuda_fp16.h"
#include "threads.h"

namespace cpu {
// An instruction of a whole warp: each lane shows its operands, and reads what it needs of the others'.  A lane may be
// one instruction ahead of another, not two; so there is room for two.
struct Shown { alignas(16) unsigned char bytes[64]; };
CPU_STATE Shown shown[2][32];
CPU_UNSEEN inline const Shown* together(const void* operands, size_t size, int line) {
  Shown* all = shown[self->instructions++ % 2];
  __builtin_memcpy(all[lane()].bytes, operands, size);
  bring(~0u, 0, line);
  return all;
}
template <class T> CPU_QUIET inline const T& of(const Shown* all, int lane) { return *(const T*)all[lane].bytes; }

// Copies in the background happen as late as they may: when their thread waits for them.
struct Copy { void* to; unsigned size, group; uint4 bytes; };
constexpr unsigned MOST = 64;
CPU_STATE Copy copies[1024][MOST];
CPU_UNSEEN inline void land(unsigned groups) {  // all copies of the first so many groups
  Copy* c = copies[self - threads];
  unsigned kept = 0;
  for (unsigned i = 0; i < self->copies; ++i)
    if (c[i].group < groups) __builtin_memcpy(c[i].to, &c[i].bytes, c[i].size);
    else __builtin_memcpy(&c[kept++], &c[i], sizeof(Copy));
  self->copies = kept;
}
CPU_UNSEEN inline void begin_copy(void* to, const void* from, unsigned size) {
  if ((size_t(to) | size_t(from)) % size) fail("an asynchronous copy of %u bytes from %p to %p, which aren't multiples of %u",
                                               size, from, to, size);
  if (self->copies == MOST) land(self->groups);
  if (self->copies == MOST) fail("more than %u asynchronous copies under way", MOST);
  Copy& c = copies[self - threads][self->copies++];
  c.to = to, c.size = size, c.group = self->groups;
  __builtin_memcpy(&c.bytes, from, size);
}
CPU_UNSEEN inline void show_row(const void* row) {
  if (size_t(row) % 16) fail("a matrix's row begins at %p, which isn't a multiple of 16", row);
}
}  // namespace cpu

#ifdef CUDA_CPU_HOOKED
#define SEE_COPY(how, address, size) cpu::see_vector(address, size, how, __builtin_return_address(0))
#else
#define SEE_COPY(how, address, size) (void)0
#endif

// A check sees a copy's write when it begins, the earliest, and its bytes are there at the end: so it shows whoever reads
// too soon, and whoever still reads what was there before.
CPU_UNSEEN inline void copy_async(void* to, const void* from) {
  SEE_COPY(cpu::READ, from, 16), SEE_COPY(cpu::WRITE, to, 16), cpu::begin_copy(to, from, 16);
}
CPU_UNSEEN inline void copy_async(float* to, const float* from) {
  SEE_COPY(cpu::READ, from, 4), SEE_COPY(cpu::WRITE, to, 4), cpu::begin_copy(to, from, 4);
}
CPU_UNSEEN inline void commit_copies() { ++cpu::self->groups; }
template <int N> CPU_UNSEEN void wait_copies() { cpu::land(cpu::self->groups < N ? 0 : cpu::self->groups - N); }

#define LINE int line = __builtin_LINE()
// A lane's row is read when that lane comes: copies of others that no __syncwarp() has waited for are missing.
CPU_UNSEEN inline void load_matrices(unsigned (&x)[4], const void* row, LINE) {
  SEE_COPY(cpu::READ, row, 16), cpu::show_row(row);
  const cpu::Shown* all = cpu::together(row, 16, line);
  int i = cpu::lane();
  for (int m = 0; m < 4; ++m) x[m] = (&cpu::of<unsigned>(all, 8 * m + i / 4))[i % 4];
}
CPU_UNSEEN inline void load_transposed(unsigned (&x)[4], const void* row, LINE) {
  SEE_COPY(cpu::READ, row, 16), cpu::show_row(row);
  const cpu::Shown* all = cpu::together(row, 16, line);
  int i = cpu::lane();
  for (int m = 0; m < 4; ++m) {
    int from = 8 * m + 2 * (i % 4);
    x[m] = (&cpu::of<unsigned short>(all, from))[i / 4] | (&cpu::of<unsigned short>(all, from + 1))[i / 4] << 16;
  }
}
CPU_UNSEEN inline unsigned transpose(unsigned x, LINE) {
  const cpu::Shown* all = cpu::together(&x, 4, line);
  int r = cpu::lane() / 4, s = cpu::lane() % 4 * 2;
  unsigned low = cpu::of<unsigned>(all, s * 4 + r / 2), high = cpu::of<unsigned>(all, (s + 1) * 4 + r / 2);
  return (low >> r % 2 * 16 & 0xffff) | (high >> r % 2 * 16 & 0xffff) << 16;
}
CPU_UNSEEN inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], LINE) {
  struct Operands { float a[4][2], b[2][2]; } mine;
  for (int k = 0; k < 2; ++k) {
    for (int m = 0; m < 4; ++m) mine.a[m][k] = __half2float({(unsigned short)(a[m] >> 16 * k)});
    for (int m = 0; m < 2; ++m) mine.b[m][k] = __half2float({(unsigned short)(b[m] >> 16 * k)});
  }
  const cpu::Shown* all = cpu::together(&mine, sizeof mine, line);
  int r = cpu::lane() / 4, s = cpu::lane() % 4 * 2;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k)
      c[i] += cpu::of<Operands>(all, r * 4 + k % 8 / 2).a[i / 2 + k / 8 * 2][k % 2] *
              cpu::of<Operands>(all, (s + i % 2) * 4 + k % 8 / 2).b[k / 8][k % 2];
}
#undef LINE
#undef SEE_COPY

template <int I, int J> unsigned two_of_bytes(unsigned bytes) {
  __half low = __float2half((signed char)(bytes >> 8 * I)), high = __float2half((signed char)(bytes >> 8 * J));
  return low.bits | high.bits << 16;
}
