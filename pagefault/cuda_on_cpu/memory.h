// memory.h - which memory a kernel may access.  With CUDA_CPU_CHECKED the compiler calls the functions
// below before each load and store (-fsanitize=thread, without its runtime library), and where a fixed
// array's bounds or an address's alignment are violated (-fsanitize=bounds,alignment).
#pragma once
#include <dlfcn.h>
#include "threads.h"

namespace cpu {
struct Region { char* begin; size_t size, itemsize; const char* name; };
static Region regions[128], statics[64];  // of the launch: its arrays; of the kernel: `__shared__` variables
static unsigned region_count, static_count;
static char *dynamic_shared, *stacks, *stopped_at;  // stopped_at: the instruction in error
static size_t stacks_size;

// A `__shared__` variable makes itself known where it is declared, when a thread first comes there.
struct Shared {
  Shared(const char* name, void* begin, size_t size) {
    if (static_count == 64) { fail("more than 64 __shared__ variables"); return; }
    statics[static_count++] = {(char*)begin, size, 1, name};
    memset(begin, 0xff, size);
  }
};
// What nobody wrote is not a number.
UNSEEN inline void poison_shared(size_t dynamic_size) {
  memset(dynamic_shared, 0xff, dynamic_size);
  for (unsigned i = 0; i < static_count; ++i) memset(statics[i].begin, 0xff, statics[i].size);
}

UNSEEN static char* image() {  // where this library lies
  static Dl_info info;
  if (!info.dli_fbase) dladdr((void*)&region_count, &info);
  return (char*)info.dli_fbase;
}
}  // namespace cpu

#ifdef CUDA_CPU_CHECKED
#ifdef __linux__
extern "C" __attribute__((visibility("hidden"))) char _end[];  // the linker's: the end of this library
#endif
namespace cpu {
UNSEEN static bool in_image(char* a) {
#ifdef __linux__
  return a >= image() && a < _end;
#else
  return a - image() > -(1 << 22) && a - image() < 1 << 22;
#endif
}
UNSEEN static void outside(char* a, size_t size, const char* verb, void* pc) {
  Region* near = nullptr;
  size_t least = 1 << 30;
  for (Region* r = regions; r < regions + region_count; ++r) {
    size_t distance = a < r->begin ? r->begin - a : a - r->begin - (r->size < size_t(a - r->begin) ? r->size : a - r->begin);
    if (distance < least) near = r, least = distance;
  }
  stopped_at = (char*)pc - 1;
  if (!near) return fail("%s %zu bytes at %p, far from every array", verb, size, (void*)a);
  long at = long(a - near->begin), each = long(near->itemsize);
  if (near->name) fail("%s %s[%ld], and %s has %ld elements", verb, near->name, (at - (at < 0 ? each - 1 : 0)) / each,
                       near->name, long(near->size) / each);
  else fail("%s byte %ld of the dynamic shared memory, which has %zu bytes", verb, at, near->size);
}
UNSEEN static void touch(void* address, size_t size, const char* verb, void* pc) {
  char* a = (char*)address;
  for (Region* r = regions; r < regions + region_count; ++r)
    if (a >= r->begin && a + size <= r->begin + r->size) return;
  size_t frame = (char*)__builtin_frame_address(0) - stacks;
  if (frame >= stacks_size) return;  // the host's own doing
  if (size_t(a - stacks) < stacks_size || in_image(a)) return;
  outside(a, size, verb, pc);
}
struct Place { const char* file; unsigned line, column; };
struct Type { unsigned short kind, info; char name[1]; };
struct Bounds { Place place; Type *array, *index; };
struct Mismatch { Place place; Type* type; unsigned char log_alignment, kind; };
}  // namespace cpu

#define PC __builtin_return_address(0)
extern "C" {
#define HOOKS(n)                                                                                   \
  UNSEEN void __tsan_read##n(void* a) { cpu::touch(a, n, "reads", PC); }                           \
  UNSEEN void __tsan_write##n(void* a) { cpu::touch(a, n, "writes", PC); }                         \
  UNSEEN void __tsan_unaligned_read##n(void* a) { cpu::touch(a, n, "reads", PC); }                 \
  UNSEEN void __tsan_unaligned_write##n(void* a) { cpu::touch(a, n, "writes", PC); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
#undef HOOKS
UNSEEN void __tsan_read_range(void* a, size_t n) { cpu::touch(a, n, "reads", PC); }
UNSEEN void __tsan_write_range(void* a, size_t n) { cpu::touch(a, n, "writes", PC); }
UNSEEN void* __tsan_memset(void* a, int c, size_t n) { return cpu::touch(a, n, "writes", PC), memset(a, c, n); }
UNSEEN void* __tsan_memcpy(void* a, void* b, size_t n) {
  return cpu::touch(b, n, "reads", PC), cpu::touch(a, n, "writes", PC), memcpy(a, b, n);
}
UNSEEN void __tsan_init() {}
UNSEEN void __tsan_func_entry(void*) {}
UNSEEN void __tsan_func_exit() {}
UNSEEN void __ubsan_handle_out_of_bounds(cpu::Bounds* b, size_t index) {
  long i = b->index->info & 1 && b->index->info >> 1 < 6 ? long(int(index)) : long(index);
  cpu::fail("index %ld in line %u is out of bounds of %s", i, b->place.line, b->array->name);
}
UNSEEN void __ubsan_handle_type_mismatch_v1(cpu::Mismatch* m, void* a) {
  cpu::fail("misaligned address %p in line %u: %s needs a multiple of %d", a, m->place.line, m->type->name,
            1 << m->log_alignment);
}
}
#undef PC
#endif
