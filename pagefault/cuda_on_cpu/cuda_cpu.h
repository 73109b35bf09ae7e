// cuda_cpu.h - run a CUDA C kernel on a CPU: what build.py puts before a kernel's source.
//
//   language.h   keywords, vector types, functions of one thread    cuda_fp16.h  half precision
//   fibers.h     several stacks in one thread                       signature.h  parameters as text
//   threads.h    barriers, warps, thread blocks                     call.h       the call of a kernel
//   memory.h     shared memory                                      hooks.h      to see each access
//
// and what is the same for all kernels, so that build.py compiles it once and links it to each (CUDA_CPU_RUNTIME):
//
//   accesses.h   which addresses are a kernel's                     races.h      who touched the same bytes before
//   launch.h     the grid; faults, time limit, interrupt            profile.h    what warps ask of memory
//
// instructions_cpu.h is for kernels that use them; what it must remember is here.
#pragma once
#include "call.h"
#include "memory.h"
#include "signature.h"
#ifdef CUDA_CPU_RUNTIME
#include "instructions_cpu.h"
#include "launch.h"
#else  // in a kernel
#define printf(...) cpu::print(__VA_ARGS__)
#ifdef CUDA_CPU_HOOKED  // its own calls of these are seen
#define memcpy(to, from, size) cpu::copy(to, from, size)
#define memmove(to, from, size) cpu::copy(to, from, size)
#define memset(to, byte, size) cpu::fill(to, byte, size)
#endif
#endif
