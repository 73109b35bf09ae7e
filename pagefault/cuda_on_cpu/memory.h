// memory.h - the memory of a launch: its arrays, the shared memory, `__device__` variables.
#pragma once
#include "threads.h"

namespace cpu {
struct Region {
  char* begin;
  size_t size, itemsize;
  size_t at;         // where it would lie on a GPU, as far as sectors and banks depend on that
  const char* name;  // the dynamic shared memory has none
  bool shared;
};
CPU_STATE Region regions[128], statics[64], devices[64];  // the launch's arrays, `__shared__` and `__device__` variables
CPU_STATE unsigned region_count, static_count, device_count;
CPU_STATE char* dynamic_shared;
CPU_STATE char *stacks, *stopped_at;  // stopped_at: the instruction in error
CPU_STATE size_t stacks_size;
CPU_STATE unsigned stacks_made;
CPU_STATE volatile bool busy;  // while there is nowhere to escape to
CPU_STATE volatile int late;   // the signal that came then

template <class T> struct Element { static constexpr size_t size = sizeof(T); };
template <class T, size_t N> struct Element<T[N]> : Element<T> {};

// A `__shared__` variable makes itself known where it is declared, when a thread comes there.
CPU_UNSEEN inline void make_known(const char* name, char* begin, size_t size, size_t itemsize) {
  for (unsigned i = static_count; i--;)
    if (statics[i].begin == begin) return;
  if (static_count == 64) return fail("more than 64 __shared__ variables");
  size_t at = 1 << 20;  // beyond the dynamic shared memory
  if (static_count) at = statics[static_count - 1].at + (statics[static_count - 1].size + 127) / 128 * 128;
  statics[static_count++] = {begin, size, itemsize, at, name, true};
  memset(begin, 0xff, size);
}
struct Shared {
  template <class T> Shared(const char* name, T& v) { make_known(name, (char*)&v, sizeof v, Element<T>::size); }
};
struct Device {
  template <class T> Device(const char* name, T& v) {
    if (device_count < 64) devices[device_count++] = {(char*)&v, sizeof v, Element<T>::size, 0, name, false};
  }
};
// What nobody wrote is not a number.
CPU_UNSEEN inline void poison_shared(size_t dynamic_size) {
  memset(dynamic_shared, 0xff, dynamic_size);
  for (unsigned i = 0; i < static_count; ++i) memset(statics[i].begin, 0xff, statics[i].size);
}
}  // namespace cpu
