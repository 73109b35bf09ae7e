// cuda_fp16.h - half precision in software: storage and conversions, no arithmetic.
#pragma once
#include "language.h"

struct __half {
  unsigned short bits;
  CPU_MOVES(__half, (unsigned short bits) : bits(bits) {})
};
struct alignas(4) __half2 {
  __half x, y;
  CPU_MOVES(__half2, (__half x, __half y) : x(x), y(y) {})
};
typedef __half half;
typedef __half2 half2;

inline float __half2float(__half h) {
  unsigned sign = (h.bits & 0x8000u) << 16, rest = (h.bits & 0x7fffu) << 13;
  float x = __uint_as_float(rest) * 0x1p112f;  // the exponent's bias is 15, a float's is 127
  if (rest >= 0x0f800000u) x = __uint_as_float(rest | 0x7f800000u);  // infinity or not a number
  return __uint_as_float(__float_as_uint(x) | sign);
}
inline __half __float2half(float x) {  // to the nearest, ties to even
  unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu, h;
  if (rest > 0x7f800000u) h = 0x7e00u;        // not a number
  else if (rest >= 0x477ff000u) h = 0x7c00u;  // infinity
  else if (rest >= 0x38800000u) h = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
  else h = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;  // subnormal
  return {(unsigned short)(sign | h)};
}
inline __half __float2half_rn(float x) { return __float2half(x); }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
