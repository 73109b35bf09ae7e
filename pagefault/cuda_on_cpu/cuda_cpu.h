// cuda_cpu.h - run a CUDA C kernel on a CPU: what build.py puts before a kernel's source.
//
//   language.h   keywords, vector types, functions of one thread    cuda_fp16.h  half precision
//   fibers.h     several stacks in one thread                       signature.h  parameters as text
//   threads.h    barriers, warps, thread blocks
//   memory.h     shared memory; which addresses are a kernel's     hooks.h      to see each access
//   profile.h    what warps ask of memory                          races.h      who touched the same bytes before
//   launch.h     the grid; faults, time limit, interrupt
#pragma once
#include "launch.h"
#include "signature.h"
#ifdef CUDA_CPU_HOOKED  // a kernel's own calls of these are seen
#define memcpy(to, from, size) cpu::copy(to, from, size)
#define memmove(to, from, size) cpu::copy(to, from, size)
#define memset(to, byte, size) cpu::fill(to, byte, size)
#endif
