// language.h - what CUDA C has and C++ has not: its keywords, built-in variables, vector types, and
// functions of one thread.
#pragma once
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // Bessel functions and their like in <math.h> would take a third of a kernel's compilation
#include <math.h>
#include "hooks.h"

#define CUDA_ON_CPU 1
#define __global__
#define __device__
#define __host__
#define __constant__ CPU_CONSTANT
#define __shared__ CPU_SHARED  // thread blocks run one after another; translate.py adds a cpu::Shared
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define VECTORS(T, name)                                                                           \
  struct alignas(2 * sizeof(T)) name##2 {                                                          \
    T x, y;                                                                                        \
    CPU_MOVES(name##2, (T x, T y) : x(x), y(y) {})                                                     \
  };                                                                                               \
  struct name##3 { T x, y, z; };  /* (loaded member by member on a GPU too) */                     \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 {                                     \
    T x, y, z, w;                                                                                  \
    CPU_MOVES(name##4, (T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {})                               \
  };                                                                                               \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                       \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                               \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(unsigned, uint)
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(long long, longlong)
VECTORS(signed char, char)
VECTORS(unsigned char, uchar)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
#undef VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
CPU_STATE uint3 threadIdx, blockIdx;
CPU_STATE dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define ORDERED(T)                                                                                 \
  inline T min(T a, T b) { return a < b ? a : b; }                                                 \
  inline T max(T a, T b) { return a > b ? a : b; }
ORDERED(int)
ORDERED(unsigned)
ORDERED(long)
ORDERED(unsigned long)
ORDERED(long long)
ORDERED(unsigned long long)
ORDERED(float)
ORDERED(double)
#undef ORDERED
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <class To, class From> To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }

template <class T> __forceinline__ T __ldg(const T* p) { return *p; }
template <class T> __forceinline__ T __ldcs(const T* p) { return *p; }
inline void __threadfence() {}
inline void __threadfence_block() {}

// No thread is interrupted between the two halves of these, so they are atomic.
template <class T> struct Same { typedef T type; };  // (a value converts to what it is added to)
#define ATOMIC(name, new_value)                                                                    \
  template <class T> CPU_UNSEEN T name(T* p, typename Same<T>::type value) {                           \
    CPU_SEE(cpu::ATOMIC, p, sizeof *p);                                                                \
    T old = *p;                                                                                    \
    return *p = new_value, old;                                                                    \
  }
ATOMIC(atomicAdd, old + value)
ATOMIC(atomicSub, old - value)
ATOMIC(atomicExch, value)
ATOMIC(atomicMin, min(old, value))
ATOMIC(atomicMax, max(old, value))
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicXor, old ^ value)
#undef ATOMIC
template <class T> CPU_UNSEEN T atomicCAS(T* p, typename Same<T>::type expected, typename Same<T>::type value) {
  CPU_SEE(cpu::ATOMIC, p, sizeof *p);
  T old = *p;
  if (old == expected) *p = value;
  return old;
}
