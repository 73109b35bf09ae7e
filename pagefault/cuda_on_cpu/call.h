// call.h - how a kernel is called with its arguments, and its printf().
#pragma once
#include <unistd.h>
#include "threads.h"

namespace cpu {
// A kernel's printf().  (The C library's would keep its lock if the launch ended inside of it.)
CPU_UNSEEN __attribute__((format(printf, 1, 2))) inline int print(const char* format, ...) {
  char text[4096];
  va_list values;
  va_start(values, format);
  int n = vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return n > 0 ? int(write(1, text, min(size_t(n), sizeof text - 1))) : n;
}

// Call a kernel with `args` pointing to its arguments.
template <class... A> struct Call { Call(void (*kernel)(A...), A... a) { kernel(a...); } };
template <class T> CPU_UNSEEN T next(void**& args) { return *(T*)*args++; }
template <class... A> void call(void (*kernel)(A...), void** args) {
  Call<A...>{kernel, next<A>(args)...};  // braces: from left to right
}
}  // namespace cpu
