// call.h - how a kernel is called with its arguments, and its printf().
#pragma once
#include <unistd.h>
#include "threads.h"

namespace cpu {
CPU_STATE unsigned most_lines;  // of a launch that are shown
CPU_STATE size_t printed_lines, printed_bytes, lines_left_out;
CPU_STATE bool left_out;
// A notebook reads what is printed through a pipe, and only when the launch has ended: what fills the pipe would wait forever.
constexpr size_t PRINTED_BYTES = 16000;

// A kernel's printf().  (The C library's would keep its lock if the launch ended inside of it.)
CPU_UNSEEN __attribute__((format(printf, 1, 2))) inline int print(const char* format, ...) {
  char text[4096];
  va_list values;
  va_start(values, format);
  int n = vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (n <= 0) return n;
  size_t size = min(size_t(n), sizeof text - 1), lines = 0;
  for (size_t i = 0; i < size; ++i) lines += text[i] == '\n';
  left_out = left_out || printed_lines >= most_lines || printed_bytes + size > PRINTED_BYTES;
  if (left_out) return lines_left_out += lines, n;
  printed_lines += lines, printed_bytes += size;
  return int(write(1, text, size));
}
CPU_UNSEEN inline void begin_printing(unsigned lines) {
  most_lines = lines, printed_lines = printed_bytes = lines_left_out = 0, left_out = false;
}
CPU_UNSEEN inline void end_printing() {
  char text[80] = "... (more was printed)\n";
  int n = int(strlen(text));
  if (size_t more = lines_left_out)
    n = snprintf(text, sizeof text, "... (%zu more line%s printed)\n", more, more == 1 ? " was" : "s were");
  if (left_out && most_lines && write(1, text, n) < 0) left_out = false;
}

// Call a kernel with `args` pointing to its arguments.
template <class... A> struct Call { Call(void (*kernel)(A...), A... a) { kernel(a...); } };
template <class T> CPU_UNSEEN T next(void**& args) { return *(T*)*args++; }
template <class... A> void call(void (*kernel)(A...), void** args) {
  Call<A...>{kernel, next<A>(args)...};  // braces: from left to right
}
}  // namespace cpu
