// signature.h - a kernel's parameters as text, four characters each: '*' for a pointer, 'c' for one
// to const, the kind of number and its bytes as NumPy writes them ("*cf4" is a const float*, "  i4"
// an int; 'p' is another pointer, '?' another type).  Both compilers read this file, so both sides check arguments alike.
#pragma once
struct __half;  // cuda_fp16.h's, if the kernel includes it
namespace pagefault {
template <class T> struct Kind { static constexpr char value = '?'; };
#define KIND(T, kind) template <> struct Kind<T> { static constexpr char value = kind; };
KIND(bool, 'b') KIND(float, 'f') KIND(double, 'f')
KIND(char, 'i') KIND(signed char, 'i') KIND(short, 'i') KIND(int, 'i') KIND(long, 'i') KIND(long long, 'i')
KIND(unsigned char, 'u') KIND(unsigned short, 'u') KIND(unsigned, 'u') KIND(unsigned long, 'u')
KIND(unsigned long long, 'u') KIND(__half, 'f')
#undef KIND
template <class T> struct Kind<T*> { static constexpr char value = 'p'; };
template <class T> struct Size { static constexpr int value = sizeof(T) < 10 ? sizeof(T) : 0; };
template <> struct Size<void> { static constexpr int value = 1; };

struct Text { char at[4 * 64]; };  // 0 from the end on; room for 63 parameters
template <class T> struct Parameter {
  static constexpr char star = ' ', constant = ' ', kind = Kind<T>::value, size = '0' + Size<T>::value;
};
template <class T> struct Parameter<T*> {
  static constexpr char star = '*', constant = ' ', kind = Kind<T>::value, size = '0' + Size<T>::value;
};
template <class T> struct Parameter<const T*> : Parameter<T*> { static constexpr char constant = 'c'; };
template <class T> struct Parameter<volatile T*> : Parameter<T*> {};
template <class T> struct Parameter<const volatile T*> : Parameter<const T*> {};
template <class... A> __device__ constexpr Text signature(void (*)(A...)) {
  static_assert(sizeof...(A) < 64, "a kernel has at most 63 parameters");
  Text text = {};
  int n = 0;
  ((text.at[n] = Parameter<A>::star, text.at[n + 1] = Parameter<A>::constant,
    text.at[n + 2] = Parameter<A>::kind, text.at[n + 3] = Parameter<A>::size, n += 4), ...);
  return text;
}
}  // namespace pagefault
