// accesses.h - which memory a kernel may access.  With CUDA_CPU_HOOKED the compiler calls the functions
// below before each load and store (-fsanitize=thread, without its runtime library), and where a fixed
// array's bounds or an address's alignment are violated (-fsanitize=bounds,alignment).
#pragma once
#include <dlfcn.h>
#include "memory.h"

namespace cpu {
CPU_UNSEEN static char* image() {  // where this library lies
  static Dl_info info;
  if (!info.dli_fbase) dladdr((void*)&region_count, &info);
  return (char*)info.dli_fbase;
}
}  // namespace cpu

#ifdef CUDA_CPU_HOOKED
#ifdef __linux__
#define BOUNDS(section) extern "C" __attribute__((weak, visibility("hidden"))) char __start_##section[], __stop_##section[];
extern "C" __attribute__((visibility("hidden"))) char _end[];  // the linker's: the end of this library
#else
#define BOUNDS(name) extern char __start_##name[] asm("section$start$__DATA$" #name); \
  extern char __stop_##name[] asm("section$end$__DATA$" #name);
#endif
BOUNDS(cuda_cpu)
BOUNDS(cuda_constants)
namespace cpu {
#ifdef __linux__
CPU_SMALL size_t image_size() { return _end - image(); }
#else
CPU_SMALL size_t image_size() { return 1 << 22; }
#endif
CPU_SMALL bool in_image(char* a) { return size_t(a - image()) < image_size(); }
CPU_SMALL bool inside(const Region& r, char* a, size_t size) { return a >= r.begin && a + size <= r.begin + r.size; }
CPU_SMALL Region* find(char* a, size_t size) {
  for (Region* r = regions; r < regions + region_count; ++r)
    if (inside(*r, a, size)) return r;
  for (Region* r = statics; r < statics + static_count; ++r)
    if (inside(*r, a, size)) return r;
  return nullptr;
}
// The region nearest to an address, and how far away it is.
CPU_UNSEEN static Region* nearest(char* a, size_t& least) {
  Region *near = nullptr, *lists[] = {regions, statics, devices};
  unsigned counts[] = {region_count, static_count, device_count};
  least = -1;
  for (int i = 0; i < 3; ++i)
    for (Region* r = lists[i]; r < lists[i] + counts[i]; ++r) {
      size_t distance = a < r->begin ? r->begin - a : a < r->begin + r->size ? 0 : a - (r->begin + r->size) + 1;
      if (distance < least) near = r, least = distance;
    }
  return near;
}
CPU_UNSEEN static void outside(char* a, size_t size, How how, void* pc) {
  static const char* verbs[] = {"reads", "writes", "updates"};
  const char* verb = verbs[how];
  size_t distance;
  Region* near = nearest(a, distance);
  if (near && distance > near->size + (1 << 20)) near = nullptr;
  stopped_at = (char*)pc - 1;
  if (!near) return fail("%s %zu bytes at %p, far from every array", verb, size, (void*)a);
  long at = long(a - near->begin), each = long(near->itemsize);
  if (at >= 0 && size_t(at) < near->size) at += long(size) - 1;  // what begins inside and ends outside
  if (near->name) fail("%s %s[%ld], and %s has %ld elements", verb, near->name, (at - (at < 0 ? each - 1 : 0)) / each,
                       near->name, long(near->size) / each);
  else fail("%s byte %ld of the dynamic shared memory, which has %zu bytes", verb, at, near->size);
}
// Whether this is a thread's access to memory that it shares with others: not to its stack, CPU_STATE or a constant.
CPU_SMALL bool counts(char* a) {
  return size_t((char*)__builtin_frame_address(0) - stacks) < stacks_size && size_t(a - stacks) >= stacks_size &&
         size_t(a - __start_cuda_cpu) >= size_t(__stop_cuda_cpu - __start_cuda_cpu) &&
         size_t(a - __start_cuda_constants) >= size_t(__stop_cuda_constants - __start_cuda_constants);
}
// Whether this is some other variable of the kernel's; just beside a `__shared__` one it is taken for a mistake.
CPU_UNSEEN static bool in_variables(char* a, size_t size) {
  for (Region* r = devices; r < devices + device_count; ++r)
    if (inside(*r, a, size)) return true;
  for (Region* r = statics; r < statics + static_count; ++r)
    if (a + size > r->begin - 64 && a < r->begin + r->size + 64) return false;
  return in_image(a);
}
}  // namespace cpu
#if defined(CUDA_CPU_PROFILE)
#include "profile.h"
#elif defined(CUDA_CPU_RACES)
#include "races.h"
#else
namespace cpu {
CPU_UNSEEN static void touch_other(char* a, size_t size, How how, void* pc) {
  bool allowed = counts(a) ? in_variables(a, size)
                           : !in_image(a) || how == READ || size_t((char*)__builtin_frame_address(0) - stacks) >= stacks_size;
  if (!allowed) outside(a, size, how, pc);
}
CPU_SMALL void touch(char* a, size_t size, How how, void* pc) {
  if (!find(a, size)) touch_other(a, size, how, pc);
}
}  // namespace cpu
#endif
#ifndef CUDA_CPU_PROFILE
namespace cpu {
CPU_SMALL void touch_vector(char* a, size_t size, How how, void* pc) { touch(a, size, how, pc); }
}  // namespace cpu
#endif

namespace cpu {
CPU_UNSEEN void see(const void* a, size_t size, How how, void* pc) {
  if (size) touch((char*)a, size, how, pc);
}
CPU_UNSEEN void see_vector(const void* a, size_t size, How how, void* pc) { touch_vector((char*)a, size, how, pc); }
CPU_UNSEEN void* move(void* to, const void* from, size_t size) {
  touch_vector((char*)from, size, READ, __builtin_return_address(0));
  touch_vector((char*)to, size, WRITE, __builtin_return_address(0));
  return memmove(to, from, size);
}
CPU_UNSEEN void* copy(void* to, const void* from, size_t size) {
  return CPU_SEE(READ, from, size), CPU_SEE(WRITE, to, size), memmove(to, from, size);
}
CPU_UNSEEN void* fill(void* to, int byte, size_t size) { return CPU_SEE(WRITE, to, size), memset(to, byte, size); }
struct Place { const char* file; unsigned line, column; };
struct Type { unsigned short kind, info; char name[1]; };
struct Bounds { Place place; Type *array, *index; };
struct Mismatch { Place place; Type* type; unsigned char log_alignment, kind; };
}  // namespace cpu

#define PC __builtin_return_address(0)
extern "C" {
#define HOOKS(n)                                                                                   \
  CPU_UNSEEN void __tsan_read##n(char* a) { cpu::touch(a, n, cpu::READ, PC); }                         \
  CPU_UNSEEN void __tsan_write##n(char* a) { cpu::touch(a, n, cpu::WRITE, PC); }                       \
  CPU_UNSEEN void __tsan_unaligned_read##n(char* a) { cpu::touch(a, n, cpu::READ, PC); }               \
  CPU_UNSEEN void __tsan_unaligned_write##n(char* a) { cpu::touch(a, n, cpu::WRITE, PC); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
#undef HOOKS
CPU_UNSEEN void __tsan_read_range(char* a, size_t n) { CPU_SEE(cpu::READ, a, n); }
CPU_UNSEEN void __tsan_write_range(char* a, size_t n) { CPU_SEE(cpu::WRITE, a, n); }
CPU_UNSEEN void* __tsan_memset(void* a, int c, size_t n) { return cpu::see(a, n, cpu::WRITE, PC), memset(a, c, n); }
CPU_UNSEEN void* __tsan_memcpy(void* a, const void* b, size_t n) {
  return cpu::see(b, n, cpu::READ, PC), cpu::see(a, n, cpu::WRITE, PC), memmove(a, b, n);
}
#if defined(__clang__) && __clang_major__ < 15  // it copies structures with this
__attribute__((visibility("hidden"))) CPU_UNSEEN void* memcpy(void* a, const void* b, size_t n) throw() {
  return cpu::see(b, n, cpu::READ, PC), cpu::see(a, n, cpu::WRITE, PC), memmove(a, b, n);
}
#endif
CPU_UNSEEN void* __tsan_memmove(void* a, const void* b, size_t n) {
  return cpu::see(b, n, cpu::READ, PC), cpu::see(a, n, cpu::WRITE, PC), memmove(a, b, n);
}
CPU_UNSEEN void __tsan_vptr_update(void**, void*) {}
CPU_UNSEEN void __tsan_vptr_read(void**) {}
CPU_UNSEEN void __tsan_init() {}
CPU_UNSEEN void __tsan_func_entry(void*) {}
CPU_UNSEEN void __tsan_func_exit() {}
CPU_UNSEEN void __ubsan_handle_out_of_bounds(cpu::Bounds* b, size_t index) {
  long i = b->index->info & 1 && b->index->info >> 1 < 6 ? long(int(index)) : long(index);
  cpu::fail("index %ld in line %u is out of bounds of %s", i, b->place.line, b->array->name);
}
CPU_UNSEEN void __ubsan_handle_type_mismatch_v1(cpu::Mismatch* m, void* a) {
  cpu::fail("misaligned address %p in line %u: %s needs a multiple of %d", a, m->place.line, m->type->name,
            1 << m->log_alignment);
}
}
#undef PC
#endif
#if !defined(CUDA_CPU_PROFILE) && !defined(CUDA_CPU_RACES)
namespace cpu {
inline bool launch_begins(size_t) { return true; }
}
#endif
