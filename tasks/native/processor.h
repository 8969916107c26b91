// Processor-specific code: vector length, masks and denormal numbers. Everything else uses GCC's vector types, which compile for any
// processor. NUMBER is float or double.
#pragma once
#include <cstdint>
#ifdef __x86_64__
#include <immintrin.h>
#endif

using Number = NUMBER;

#if defined(__AVX512F__)
constexpr long VECTOR_BYTES = 64, STRIP = 4;
#elif defined(__AVX__)
constexpr long VECTOR_BYTES = 32, STRIP = 2;
#else
constexpr long VECTOR_BYTES = 16, STRIP = 2;
#endif
constexpr long LANES = VECTOR_BYTES / sizeof(Number);  // STRIP: adjacent vectors that a product keeps in registers

template <long SIZE> struct IntegerOf;
template <> struct IntegerOf<4> { using type = int32_t; };
template <> struct IntegerOf<8> { using type = int64_t; };
using Integer = IntegerOf<sizeof(Number)>::type;

typedef Number Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Number Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Number)), may_alias));
typedef Integer Integers __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Number Four __attribute__((vector_size(4 * sizeof(Number)), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

#ifdef __AVX512F__
template <long SIZE> struct Masked;
template <> struct Masked<4> {
  using Mask = __mmask16;
  INLINE Mask positive(Vector a) { return _mm512_cmp_ps_mask((__m512)a, _mm512_setzero_ps(), _CMP_NLE_UQ); }
  INLINE Vector only(Mask mask, Vector a) { return (Vector)_mm512_maskz_mov_ps(mask, (__m512)a); }
};
template <> struct Masked<8> {
  using Mask = __mmask8;
  INLINE Mask positive(Vector a) { return _mm512_cmp_pd_mask((__m512d)a, _mm512_setzero_pd(), _CMP_NLE_UQ); }
  INLINE Vector only(Mask mask, Vector a) { return (Vector)_mm512_maskz_mov_pd(mask, (__m512d)a); }
};
#else
template <long SIZE> struct Masked {
  using Mask = Integers;
  INLINE Mask positive(Vector a) { return ~(Integers)(a <= Vector{}); }
  INLINE Vector only(Mask mask, Vector a) { return (Vector)((Integers)a & mask); }
};
#endif
using Mask = Masked<sizeof(Number)>::Mask;
INLINE Mask positive(Vector a) { return Masked<sizeof(Number)>::positive(a); }  // also true for NaN, which passes a ReLU
INLINE Vector only(Mask mask, Vector a) { return Masked<sizeof(Number)>::only(mask, a); }  // 0 elsewhere

// Keeps a vector that is used several times in a register; otherwise GCC reloads it each time.
INLINE void hold(Vector& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

// Flushes denormal numbers to 0 during its lifetime, because they make products up to 180 times slower.
class DenormalsFlushed {
#if defined(__x86_64__)
  unsigned before = _mm_getcsr();
 public:
  DenormalsFlushed() { _mm_setcsr(before | 0x8040); }
  ~DenormalsFlushed() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
 public:
  DenormalsFlushed() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" : : "r"(before | 1ull << 24));
  }
  ~DenormalsFlushed() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#else
 public:
  DenormalsFlushed() {}
#endif
};
