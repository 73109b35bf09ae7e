// fibers.h - several stacks in one thread.  prepare() makes a context that will call a function which
// never returns; swap() leaves one context for another.  A context is a stack pointer: on the stack lie
// the registers that a call preserves.
#pragma once
#include <stddef.h>
#include <string.h>

namespace fibers {
typedef void** Context;
extern "C" void fibers_swap(Context* from, Context to) asm("fibers_swap");

#if defined(__x86_64__)
constexpr int WORDS = 7, RETURN = 6;  // how many words swap() pops, and which of them it jumps to
asm(".text\nfibers_swap:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
    "pop %rcx\n jmp *%rcx\n");  // a `ret` here would always be mispredicted
#elif defined(__aarch64__)
constexpr int WORDS = 20, RETURN = 11;
asm(".text\n.p2align 2\nfibers_swap:\n sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, 16]\n stp x23, x24, [sp, 32]\n"
    "stp x25, x26, [sp, 48]\n stp x27, x28, [sp, 64]\n stp x29, x30, [sp, 80]\n"
    "stp d8, d9, [sp, 96]\n stp d10, d11, [sp, 112]\n stp d12, d13, [sp, 128]\n"
    "stp d14, d15, [sp, 144]\n mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, 16]\n ldp x23, x24, [sp, 32]\n"
    "ldp x25, x26, [sp, 48]\n ldp x27, x28, [sp, 64]\n ldp x29, x30, [sp, 80]\n"
    "ldp d8, d9, [sp, 96]\n ldp d10, d11, [sp, 112]\n ldp d12, d13, [sp, 128]\n"
    "ldp d14, d15, [sp, 144]\n add sp, sp, #160\n br x30\n");
#else
#error "kernels run on x86-64 and arm64 processors only"
#endif

inline Context prepare(char* stack_end, void (*call)()) {
  Context top = (Context)((size_t)stack_end / 16 * 16) - WORDS - 1;
  memset(top, 0, (WORDS + 1) * sizeof *top);
  top[RETURN] = (void*)call;
  return top;
}
__attribute__((always_inline)) inline void swap(Context& from, Context to) { fibers_swap(&from, to); }
}  // namespace fibers
