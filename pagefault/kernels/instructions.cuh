// instructions.cuh - instructions of a GPU that CUDA C++ has no plain name for.  Compute capability 8.0 and up.
//
// Matrices lie over a warp: a lane has two neighbouring elements of a row in one register, a pair.  Of an
// 8 x 8 matrix of halves lane i has, in row i / 4, the elements 2 * (i % 4) and the next.
#pragma once
#include <cuda_fp16.h>

#ifdef CUDA_ON_CPU
#include "instructions_cpu.h"  // the same, as collectives of fibers
#else
__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copy 16 bytes to shared memory in the background.  wait_copies<N>() waits until of the groups of copies that
// this thread has committed at most the last N are under way.  What is copied streams past (evict_first): it is
// to leave the L2 cache before tables and queries, which are read again.
__device__ inline void copy_async(void* to, const void* from) {
  unsigned long long streams;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(streams));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               ::"r"(shared_address(to)), "l"(from), "l"(streams) : "memory");
}
__device__ inline void copy_async(float* to, const float* from) {  // 4 bytes
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8 x 8 matrices from shared memory: lane i says where row i % 8 of matrix i / 8 is, 16 bytes.
__device__ inline void load_matrices(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
// The same, and each matrix transposed: a lane has a pair of a column.
__device__ inline void load_transposed(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
// An 8 x 8 matrix that lies over the warp, transposed.
__device__ inline unsigned transpose(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// c[16 x 8] += a[16 x 16] . b[16 x 8], halves, with fp32 sums.  a is four 8 x 8 matrices: top left, bottom left, top
// right, bottom right.  b is two, the upper and the lower, transposed.  c is two, the upper and the lower, of floats.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Bytes number i and j of four signed ones, as a pair of halves.  A half whose upper byte is 0x64 is 1024 + its lower
// byte; with the sign's bit flipped that byte is the number + 128.
template <int I, int J> __device__ inline unsigned two_of_bytes(unsigned bytes) {
  unsigned shifted = __byte_perm(bytes ^ 0x80808080, 0x64646464, 0x4040 | I | J << 8), x;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(x) : "r"(shifted), "r"(0x64806480));  // 0x6480 is 1024 + 128
  return x;
}
#endif
