// launch.h - run all thread blocks of a grid, and come back whatever they do.
#pragma once
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include "accesses.h"
#ifdef CUDA_CPU_ASAN
extern "C" void __asan_set_error_report_callback(void (*)(const char*));
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
#endif

namespace cpu {
constexpr size_t STACK = 64 << 10;  // of a thread
CPU_STATE double time_limit;           // in seconds of processor time
CPU_STATE sigjmp_buf escape;
CPU_STATE pthread_t launcher;
CPU_STATE bool interruptible;
CPU_STATE volatile int ended_by;  // the signal that ended the launch

inline void say(int why, char* address) {
  ended_by = why;
  if (why == SIGVTALRM) snprintf(error, sizeof error, "still running after %g s of processor time: an endless loop?", time_limit);
  else if (why == SIGINT) snprintf(error, sizeof error, "interrupted");
  else if (why == SIGFPE) snprintf(error, sizeof error, "integer division by zero");
  else if (why == SIGABRT) snprintf(error, sizeof error, "abort()");
  else if (why == SIGILL || why == SIGTRAP) snprintf(error, sizeof error, "illegal instruction");
  else if (size_t(self->stack_end - address) < 64 * STACK)
    snprintf(error, sizeof error, "a thread's local variables need more than %zu KiB of stack", STACK >> 10);
  else snprintf(error, sizeof error, "illegal memory access at address %p", (void*)address);
}
inline void on_signal(int why, siginfo_t* info, void* context) {
  if (!pthread_equal(pthread_self(), launcher)) return (void)pthread_kill(launcher, why);
  if (busy && (why == SIGVTALRM || why == SIGINT)) return (void)(late = why);
  auto& machine = ((ucontext_t*)context)->uc_mcontext;
#if defined(__linux__) && defined(__x86_64__)
  stopped_at = (char*)machine.gregs[REG_RIP];
#elif defined(__linux__)
  stopped_at = (char*)machine.pc;
#elif defined(__aarch64__)
  stopped_at = (char*)machine->__ss.__pc;
#else
  stopped_at = (char*)machine->__ss.__rip;
#endif
  say(why, (char*)info->si_addr);
  siglongjmp(escape, 1);
}
struct Guard {  // while it lives, faults, the time limit and an interrupt end the launch
  static constexpr int ALL = 8, SIGNALS[ALL] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGTRAP, SIGVTALRM, SIGINT};
  const int COUNT = interruptible ? ALL : ALL - 1;
  struct sigaction ours = {}, before[ALL];
  stack_t stack = {}, old;
  itimerval timer = {}, other;
  Guard() {
    static char memory[64 << 10];
    stack.ss_sp = memory, stack.ss_size = sizeof memory;
    ours.sa_sigaction = on_signal, ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    launcher = pthread_self(), late = 0, busy = true;
    sigaltstack(&stack, &old);
    for (int i = 0; i < COUNT; ++i) sigaction(SIGNALS[i], &ours, before + i);
    timer.it_value.tv_sec = time_t(time_limit);
    timer.it_value.tv_usec = max(1, int((time_limit - time_t(time_limit)) * 1e6));
    setitimer(ITIMER_VIRTUAL, &timer, &other);
  }
  ~Guard() {
    setitimer(ITIMER_VIRTUAL, &other, nullptr);
    for (int i = 0; i < COUNT; ++i) sigaction(SIGNALS[i], before + i, nullptr);
    sigaltstack(&old, nullptr);
  }
};

// A stack for each thread, kept from launch to launch, with a page before it that nobody may touch.
inline bool prepare_threads(dim3 block) {
  unsigned size = block.x * block.y * block.z, page = sysconf(_SC_PAGESIZE), each = STACK + page;
  if (!stacks) {
    void* m = mmap(nullptr, 1024 * size_t(each), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return snprintf(error, sizeof error, "no memory for the threads' stacks"), false;
    stacks = (char*)m, stacks_size = 1024 * size_t(each);
  }
  for (; stacks_made < size; ++stacks_made) mprotect(stacks + stacks_made * size_t(each), page, PROT_NONE);
#ifdef CUDA_CPU_ASAN
  __asan_unpoison_memory_region(stacks, stacks_size);
#endif
  for (unsigned i = 0; i < size; ++i) {  // (staggered, or the stacks would share cache sets)
    threads[i].lane = i % 32;
    threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    threads[i].stack_end = stacks + (i + 1) * size_t(each) - i % 64 * 64;
    threads[i].context = fibers::prepare(threads[i].stack_end, run_thread);
  }
  return true;
}

// Give the stacks back; the next launch makes new ones.
CPU_UNSEEN inline void give_stacks_back() {
#ifdef CUDA_CPU_ASAN
  __asan_unpoison_memory_region(stacks, stacks_size);
#endif
  if (stacks) munmap(stacks, stacks_size);
  stacks = nullptr, stacks_size = 0, stacks_made = 0;
}

inline void say_where() {
  size_t n = strlen(error);
  if (n > sizeof error - 200) n = sizeof error - 200;  // (of a long assertion)
  snprintf(error + n, sizeof error - n, "; thread block (%u, %u, %u), thread (%u, %u, %u)", blockIdx.x, blockIdx.y,
           blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  n = strlen(error);
  if (stopped_at && self->line) snprintf(error + n, sizeof error - n, ", past the barrier in line %d", self->line);
}
#ifdef CUDA_CPU_ASAN
inline void on_report(const char* text) {
  if (!error[0]) snprintf(error, sizeof error - 99, "%s", text);
}
#endif

CPU_UNSEEN inline const char* launch(dim3 grid, dim3 block, size_t shared, void** args) {
  gridDim = grid, blockDim = block, arguments = args, error[0] = 0, stopped_at = nullptr, ended_by = 0;
  if (!prepare_threads(block)) return error;
  if (posix_memalign((void**)&dynamic_shared, 128, max(shared, size_t(1)))) return "no memory for shared memory";
  regions[region_count++] = {dynamic_shared, shared, 1, 0, nullptr, true};
#ifdef CUDA_CPU_ASAN
  __asan_set_error_report_callback(on_report);
#endif
  uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (!launch_begins(blocks)) return free(dynamic_shared), "no memory to watch this launch";
  {
    Guard guard;
    if (sigsetjmp(escape, 1)) {
      busy = true, say_where();
    } else {
      busy = false;
      for (uint64_t i = 0; i < blocks && !late; ++i) {
        blockIdx = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
        poison_shared(shared);
        if (!run_block(block.x * block.y * block.z)) { say_where(); break; }
      }
      busy = true;
    }
  }
  if (late && !error[0]) say(late, nullptr), say_where();  // (now that no more signals come here)
  free(dynamic_shared);
  end_printing();
  return error[0] ? error : nullptr;
}
}  // namespace cpu

EXPORT const char* launch(const unsigned* s, size_t shared, void** args, const cpu::Region* arrays, unsigned count,
                          bool backwards, bool interruptible, double time_limit, unsigned lines) {
  cpu::backwards = backwards, cpu::interruptible = interruptible, cpu::time_limit = time_limit, cpu::region_count = count;
  memcpy(cpu::regions, arrays, count * sizeof *arrays);
  cpu::begin_printing(lines);
  return cpu::launch({s[0], s[1], s[2]}, {s[3], s[4], s[5]}, shared, args);
}
EXPORT size_t stopped_at() { return cpu::stopped_at ? cpu::stopped_at - cpu::image() : 0; }
EXPORT void give_stacks_back() { cpu::give_stacks_back(); }
EXPORT int ended_by() { return cpu::ended_by; }
EXPORT void* image() { return cpu::image(); }
