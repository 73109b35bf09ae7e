// hooks.h - what the code must say about itself where the compiler calls functions of ours before each
// load and store (-fsanitize=thread, without its runtime library): accesses.h has these functions.
//
//   CUDA_CPU_HOOKED   is each access inside of the launch's arrays?
//   CUDA_CPU_PROFILE  that, and what warps ask of memory (profile.h)
//   CUDA_CPU_RACES    that, and who touched the same bytes before (races.h)
#pragma once
#include <stddef.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
#if defined(CUDA_CPU_PROFILE) || defined(CUDA_CPU_RACES)
#define CUDA_CPU_HOOKED
#endif

#ifdef CUDA_CPU_HOOKED
#ifdef __clang__
#define CPU_QUIET __attribute__((no_sanitize("thread", "coverage")))  // what is not the kernel's own code isn't seen
#else
#define CPU_QUIET __attribute__((no_sanitize("thread"), no_sanitize_coverage, optimize("O3")))
#endif
#define CPU_SMALL CPU_QUIET __attribute__((always_inline)) inline
#define CPU_UNSEEN CPU_QUIET __attribute__((noinline))
#ifdef __APPLE__
#define CPU_SECTION(name) __attribute__((section("__DATA," #name)))
#else
#define CPU_SECTION(name) __attribute__((section(#name)))
#endif
#else
#define CPU_QUIET
#define CPU_UNSEEN
#define CPU_SECTION(name)
#endif
#ifdef CUDA_CPU_RUNTIME
#define CPU_STATE CPU_SECTION(cuda_cpu)  // not the kernel's: it may read, but not write it
#else
#define CPU_STATE extern __attribute__((visibility("hidden")))
#endif
#if defined(CUDA_CPU_HOOKED) && __GNUC__ >= 10 && !defined(__clang__)
#define CPU_SHARED static __constinit  // or g++ would guard some against being set up twice, and look at the guard
#else
#define CPU_SHARED static
#endif
#ifdef CUDA_CPU_PROFILE
#define __restrict  // clang++ makes more of it than g++, and they are to load alike
#define __restrict__
#define CPU_CONSTANT CPU_SECTION(cuda_constants) static  // not global memory: it has a cache of its own
#else
#define CPU_CONSTANT static
#endif
namespace cpu {
enum How { READ, WRITE, ATOMIC };
#ifdef CUDA_CPU_HOOKED
void see(const void* address, size_t size, How how, void* pc);  // these are accesses.h's
void see_vector(const void* address, size_t size, How how, void* pc);
void* move(void* to, const void* from, size_t size);
void* copy(void* to, const void* from, size_t size);
void* fill(void* to, int byte, size_t size);
#define CPU_SEE(how, address, size) cpu::see(address, size, how, __builtin_return_address(0))
// A vector is loaded and stored in one piece, whatever the compiler makes of its members.
#define CPU_MOVES(name, ...)                                                                           \
  name() = default;                                                                                \
  name __VA_ARGS__                                                                                 \
  __attribute__((always_inline)) name(const name& v) { cpu::move(this, &v, sizeof v); }            \
  __attribute__((always_inline)) name& operator=(const name& v) {                                  \
    return *(name*)cpu::move(this, &v, sizeof v);                                                  \
  }
#else
#define CPU_SEE(how, address, size)
#define CPU_MOVES(name, ...)
#endif
}  // namespace cpu
