// threads.h - the threads of a block as fibers, which give way at __syncthreads() and at the
// collectives of a warp.  Nothing else interrupts a thread.
#pragma once
#include <stdarg.h>
#include "fibers.h"
#include "language.h"

void pagefault_call(void** arguments);  // calls the kernel with what these point to: build.py adds it

namespace cpu {
enum State : char { READY, AT_WARP, AT_BLOCK, DONE };
struct Thread {
  State state;
  bool fence;      // whether the collective it waits at is __syncwarp(), for which lines needn't agree
  int lane;        // its number in its warp
  uint3 index;
  int line;        // of the source, where it waits or last waited
  unsigned mask;   // the lanes that the collective it waits at names
  uint64_t value;  // what it brings to that collective
  uint64_t block;  // where it is in the code: profile.h's
  unsigned copies, groups, instructions;  // instructions_cpu.h's: copies under way, groups of them, collectives so far
  struct Trace* trace;
  fibers::Context context;
  char* stack_end;
};
CPU_STATE Thread threads[1024], *self;
CPU_STATE fibers::Context host;
CPU_STATE uint64_t brought[32];  // by the lanes of the running warp, to the collective they leave
CPU_STATE char error[1024];      // what went wrong; a launch ends at the first
CPU_STATE bool backwards;        // the last thread first: shows where a barrier is missing
CPU_STATE Thread* last;          // of the running warp, in the order in which they run
CPU_STATE int step;              // to the next one: 1 or -1
CPU_STATE void** arguments;

CPU_UNSEEN inline int lane() { return self->lane; }
CPU_UNSEEN inline void leave() { fibers::swap(self->context, host); }
// The running thread has to wait: the next of its warp that can run does, or else the host.
CPU_UNSEEN inline void wait(State why, int line) {
  Thread* from = self;
  from->state = why, from->line = line;
  while (self != last && !error[0]) {  // (an error that a sanitizer reports and goes on after)
    self += step;
    if (self->state == READY) return threadIdx = self->index, fibers::swap(from->context, self->context);
  }
  fibers::swap(from->context, host);
}

// The running thread is in error; it will not go on.
CPU_UNSEEN __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  va_list values;
  va_start(values, format), vsnprintf(error, sizeof error, format, values), va_end(values);
  leave();
}
// The host has found what is wrong with some waiting thread.
CPU_UNSEEN inline bool blame(Thread& t, const char* format, unsigned a, unsigned b) {
  threadIdx = t.index, self = &t;
  snprintf(error, sizeof error, format, a, b);
  return false;
}

CPU_UNSEEN inline void run_thread() {
  for (;;) pagefault_call(arguments), wait(DONE, 0);  // a round for each thread block
}

#ifdef CUDA_CPU_RUNTIME  // run the threads of a block
#ifdef CUDA_CPU_PROFILE
CPU_UNSEEN static void count_requests(int lanes);
#else
inline void count_requests(int) {}
#endif
#ifdef CUDA_CPU_RACES  // what orders accesses to memory
CPU_UNSEEN static void block_begins();
CPU_UNSEEN static void threads_met();
CPU_UNSEEN static void lanes_met(Thread* warp, unsigned group, unsigned live);
#else
inline void block_begins() {}
inline void threads_met() {}
inline void lanes_met(Thread*, unsigned, unsigned) {}
#endif

// Whether lanes wait at the same collective.
CPU_UNSEEN inline bool alike(Thread* warp, unsigned group) {
  Thread& first = warp[__builtin_ctz(group)];
  for (; group; group &= group - 1) {
    Thread& t = warp[__builtin_ctz(group)];
    if (t.fence != first.fence || (!t.fence && t.line != first.line)) return false;
  }
  return true;
}

// Release the waiting lanes of a warp that are complete: all live lanes that their mask names have come.
CPU_UNSEEN inline unsigned release(Thread* warp, unsigned live, unsigned arrived) {
  unsigned released = 0;
  for (uint64_t& b : brought) b = ~0ull;  // not a number, if a shuffle reads from a lane that isn't there
  for (unsigned rest = arrived, group; rest; rest &= ~group) {
    unsigned mask = warp[__builtin_ctz(rest)].mask;
    group = 0;
    for (int i = 0; i < 32; ++i) group |= unsigned(rest >> i & 1 && warp[i].mask == mask) << i;
    if (mask & live & ~group || !alike(warp, group)) continue;
    for (int i = 0; i < 32; ++i)
      if (group >> i & 1) brought[i] = warp[i].value, warp[i].state = READY;
    lanes_met(warp, group, live);
    released |= group;
  }
  return released;
}

// Run the threads of a warp until each is done or at __syncthreads().
CPU_UNSEEN inline bool run_warp(Thread* warp, int lanes) {
  Thread* first = backwards ? warp + lanes - 1 : warp;
  last = backwards ? warp : warp + lanes - 1, step = backwards ? -1 : 1;
  for (;;) {
    for (self = first;; self += step) {
      if (self->state == READY) threadIdx = self->index, fibers::swap(host, self->context);
      if (error[0]) return false;
      if (self == last) break;
    }
    unsigned live = 0, arrived = 0, ready = 0;
    for (int i = 0; i < lanes; ++i)
      live |= unsigned(warp[i].state != DONE) << i, arrived |= unsigned(warp[i].state == AT_WARP) << i,
          ready |= unsigned(warp[i].state == READY) << i;
    count_requests(lanes);
    if (ready) continue;  // these gave way for the count
    if (!arrived) return true;
    if (release(warp, live, arrived)) continue;
    Thread& t = warp[__builtin_ctz(arrived)];
    return blame(t, "divergent warp: the lanes 0x%08x never all come to the collective in line %u", t.mask,
                 unsigned(t.line));
  }
}

CPU_UNSEEN inline bool run_block(unsigned size) {
  for (Thread* t = threads; t < threads + size; ++t) t->state = READY, t->line = 0, t->copies = t->groups = t->instructions = 0;
  block_begins();
  for (unsigned line = 1, warps = (size + 31) / 32; line;) {
    for (unsigned i = 0; i < warps; ++i) {
      unsigned first = 32 * (backwards ? warps - 1 - i : i);
      if (!run_warp(threads + first, min(32u, size - first))) return false;
    }
    line = 0;
    threads_met();
    for (Thread* t = threads; t < threads + size; ++t) {
      if (t->state == DONE) continue;
      if (line && line != unsigned(t->line))
        return blame(*t, "divergent barrier: other threads wait in line %u, this one in line %u", line,
                     unsigned(t->line));
      line = t->line, t->state = READY;
    }
  }
  return true;
}
#endif

// ---- barriers and warp collectives --------------------------------------------------------------
CPU_UNSEEN inline void check_width(int width, int line) {
  if (width < 1 || width > 32 || width & (width - 1))
    fail("width %d of the shuffle in line %d is not 1, 2, 4, 8, 16 or 32", width, line);
}
CPU_UNSEEN inline void bring(unsigned mask, uint64_t value, int line, bool fence = false) {
  if (!(mask >> lane() & 1)) fail("lane %d is not in the mask 0x%08x of its collective in line %d", lane(), mask, line);
  self->mask = mask, self->value = value, self->fence = fence;
  wait(AT_WARP, line);
}
template <class T> CPU_UNSEEN T shuffle(unsigned mask, T value, int from, bool inside, int line) {
  static_assert(sizeof value <= 8, "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bring(mask, bits, line);
  if (inside) memcpy(&value, &brought[from], sizeof value);
  return value;
}
}  // namespace cpu

#define LINE int line = __builtin_LINE()  // of the call
CPU_UNSEEN inline void __syncthreads(LINE) { cpu::wait(cpu::AT_BLOCK, line); }
CPU_UNSEEN inline void __syncwarp(unsigned mask = ~0u, LINE) { cpu::bring(mask, 0, line, true); }
template <class T> CPU_UNSEEN T __shfl_sync(unsigned mask, T value, int from, int width = 32, LINE) {
  cpu::check_width(width, line);
  int first = cpu::lane() & -width;
  return cpu::shuffle(mask, value, first + (from & (width - 1)), true, line);
}
template <class T> CPU_UNSEEN T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, LINE) {
  cpu::check_width(width, line);
  int from = cpu::lane() ^ (flip & 31);
  return cpu::shuffle(mask, value, from, from <= (cpu::lane() | (width - 1)), line);
}
template <class T> CPU_UNSEEN T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, LINE) {
  cpu::check_width(width, line);
  int from = cpu::lane() + int(by & 31);
  return cpu::shuffle(mask, value, from, from <= (cpu::lane() | (width - 1)), line);
}
template <class T> CPU_UNSEEN T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, LINE) {
  cpu::check_width(width, line);
  int from = cpu::lane() - int(by & 31);
  return cpu::shuffle(mask, value, from, from >= (cpu::lane() & -width), line);
}
CPU_UNSEEN inline unsigned __ballot_sync(unsigned mask, bool vote, LINE) {
  unsigned votes = 0;
  cpu::bring(mask, vote, line);
  for (int i = 0; i < 32; ++i) votes |= unsigned(mask >> i & cpu::brought[i] & 1) << i;
  return votes;
}
inline bool __any_sync(unsigned mask, bool vote, LINE) { return __ballot_sync(mask, vote, line); }
inline bool __all_sync(unsigned mask, bool vote, LINE) { return !__ballot_sync(mask, !vote, line); }
#undef LINE

inline void __trap(int line = __builtin_LINE()) { cpu::fail("__trap() in line %d", line); }
#if defined(CUDA_CPU_RUNTIME) && defined(__linux__)  // what a false assert() calls
extern "C" __attribute__((visibility("hidden")))
void __assert_fail(const char* truth, const char*, unsigned line, const char*) throw() {
  cpu::fail("assertion in line %u failed: %s", line, truth);
  abort();
}
#endif
