// What generated kernels need besides tiles.h: functions of vectors (V) and of four rows' numbers, and a tile's inputs.
#pragma once
#include "tiles.h"

typedef Number FourAnywhere __attribute__((vector_size(4 * sizeof(Number)), aligned(sizeof(Number)), may_alias));
template <class V> constexpr int LENGTH = sizeof(V) / sizeof(Number);
template <class V> INLINE V all(Number a) { return a - V{}; }
INLINE Vector load(const Number* p, long vector = 0) { return ((const Unaligned*)p)[vector]; }

// ---- Functions of numbers; masks are vectors of integers ----

template <class M, class A, class B> INLINE A pick(M mask, A yes, B no) { return mask ? yes : (A)no; }
template <class V> INLINE auto as_mask(V v) {
  if constexpr (std::is_integral_v<std::decay_t<decltype(v[0])>>) return v;
  else return v != 0;
}
template <class M> INLINE auto to_number(M mask) {
  using V = std::conditional_t<sizeof(M) == sizeof(Vector), Vector, Four>;
  return mask ? all<V>(1) : V{};
}
template <class V> INLINE V relu_of(V v) { return v <= 0 ? V{} : v; }
template <class V> INLINE V abs_of(V v) { return v < 0 ? -v : v; }
template <class V, class F> INLINE V each(V v, F f) {
  for (int i = 0; i < LENGTH<V>; i++) v[i] = f(v[i]);
  return v;
}
template <class V> INLINE V sign_of(V v) { return v > 0 ? all<V>(1) : v < 0 ? all<V>(-1) : v; }
template <class V> INLINE V sqrt_of(V v) { return each(v, [](Number a) { return std::sqrt(a); }); }
template <class V> INLINE V rsqrt_of(V v) { return each(v, [](Number a) { return 1 / std::sqrt(a); }); }
template <class V> INLINE V sin_of(V v) { return each(v, [](Number a) { return std::sin(a); }); }
template <class V> INLINE V cos_of(V v) { return each(v, [](Number a) { return std::cos(a); }); }
template <class V> INLINE V atan_of(V v) { return each(v, [](Number a) { return std::atan(a); }); }
template <class V> INLINE V log1p_of(V v) { return each(v, [](Number a) { return std::log1p(a); }); }
template <class V> INLINE V expm1_of(V v) { return each(v, [](Number a) { return std::expm1(a); }); }
template <class V> INLINE V floor_of(V v) { return each(v, [](Number a) { return std::floor(a); }); }
template <class V> INLINE V ceil_of(V v) { return each(v, [](Number a) { return std::ceil(a); }); }
template <class V> INLINE V round_of(V v) { return each(v, [](Number a) { return std::nearbyint(a); }); }

// Infinite above the largest number's logarithm. Four rows' numbers are no vector of the processor.
template <class V> INLINE V exp_of(V x) {
  if constexpr (sizeof(V) != sizeof(Vector)) {
    return each(x, [](Number a) { return std::exp(a); });
  } else {
    const Number most = sizeof(Number) == 4 ? 88.0f : 709.0;
    const V e = exponential(x > most ? all<V>(most) : x);
    return x > most ? all<V>(INFINITY) : e;
  }
}
template <class V> INLINE V sigmoid_of(V x) { return 1 / (1 + exp_of(-x)); }

// The logarithm of positive normal numbers as Cephes computes it, x = m 2^e with m between sqrt(1/2) and sqrt(2), in float32.
template <class V> INLINE V log_of(V x) {
  if constexpr (sizeof(Number) == 8) {
    return each(x, [](Number a) { return std::log(a); });
  } else {
    using B = decltype(x < x);
    const B bits = (B)x, exponent = (bits - 0x3f3504f3) >> 23;
    const V m = (V)(bits - (exponent << 23)) - 1, k = __builtin_convertvector(exponent, V), z = m * m;
    V p = m * Number(7.0376836292e-2) - Number(1.1514610310e-1);
    p = p * m + Number(1.1676998740e-1);
    p = p * m - Number(1.2420140846e-1);
    p = p * m + Number(1.4249322787e-1);
    p = p * m - Number(1.6668057665e-1);
    p = p * m + Number(2.0000714765e-1);
    p = p * m - Number(2.4999993993e-1);
    p = p * m + Number(3.3333331174e-1);
    const V normal = m + (p * m * z + k * Number(-2.12194440e-4) - z * Number(0.5)) + k * Number(0.693359375);
    return x > 0 ? (x < all<V>(INFINITY) ? normal : x) : x == 0 ? all<V>(-INFINITY) : all<V>(NAN);
  }
}

// The error function by its odd series near 0, else by 1 - exp of a polynomial, in float32.
template <class V> INLINE V erf_of(V x) {
  if constexpr (sizeof(Number) == 8) {
    return each(x, [](Number a) { return std::erf(a); });
  } else {
    const V a = x < 0 ? -x : x, s = x * x;
    V p = s * Number(-5.96761703e-4) + Number(4.99119423e-3);
    p = p * s + Number(-2.67681349e-2);
    p = p * s + Number(1.12819925e-1);
    p = p * s + Number(-3.76125336e-1);
    p = p * s + Number(1.28379166e-1);
    V q = a * Number(-1.72853470e-5) + Number(3.83197126e-4);
    const V u = a * Number(-3.88396438e-3) + Number(2.42546219e-2);
    q = q * s + u;
    q = q * a + Number(-1.06777877e-1);
    q = q * a + Number(-6.34846687e-1);
    q = q * a + Number(-1.28717512e-1);
    q = q * a - a;
    const V far = 1 - exp_of(q);
    return a > Number(0.921875) ? (x < 0 ? -far : far) : p * x + x;
  }
}

// tanh by Cephes's polynomial near 0, else by exp, in float32.
template <class V> INLINE V tanh_of(V x) {
  if constexpr (sizeof(Number) == 8) {
    return each(x, [](Number a) { return std::tanh(a); });
  } else {
    const V s = x * x, bounded = x > 15 ? all<V>(15) : x < -15 ? all<V>(-15) : x;
    V p = s * Number(-5.70498872745e-3) + Number(2.06390887954e-2);
    p = p * s + Number(-5.37397155531e-2);
    p = p * s + Number(1.33314422036e-1);
    p = p * s + Number(-3.33332819422e-1);
    const V far = 1 - 2 / (exp_of(2 * bounded) + 1);
    return (x < 0 ? -x : x) < Number(0.625) ? p * s * x + x : far;
  }
}

// ---- Reductions ----

// v in the first n lanes, `rest` behind.
INLINE Vector within(long n, Vector v, Number rest) {
  Integers lane;
  for (long i = 0; i < LANES; i++) lane[i] = i;
  return lane < Integer(n) ? v : all<Vector>(rest);
}
// The largest number of each of four vectors.
INLINE Four maxima(const Vector* v) {
  Four largest;
  for (int row = 0; row < 4; row++) {
    Number most = v[row][0];
    for (long i = 1; i < LANES; i++) most = v[row][i] > most ? v[row][i] : most;
    largest[row] = most;
  }
  return largest;
}

// ---- A tile's inputs: `count` of its samples are there, the others repeat the last one and have weight 0 ----

struct Batch {
  const void* x;
  const int64_t *labels, *order;  // order: from the tile's first sample on; null: the data set's samples from `first` on
  long first, count, size;        // size: samples of the step
  int64_t* correct;               // correctly classified samples; null: not requested
  double loss;                    // the sum over the tile's samples, which its last kernel writes
  long sample(long r) const {
    const long present = r < count ? r : count - 1;
    return order ? order[present] : first + present;
  }
};

template <class Item>
INLINE void gather_samples(const Item* x, const Batch& batch, long samples, long n, Item* to, long row) {
  for (long r = 0; r < samples; r++) memcpy(to + r * row, x + batch.sample(r) * n, n * sizeof(Item));
}
// Targets of `outputs` rows a sample of `classes` numbers: one-hot rows of labels, smoothed, or numbers as they are.
INLINE void gather_targets(const int64_t* labels, bool are_numbers, const Batch& batch, long samples, long outputs, long classes, Number smoothing, Number* to, long row) {
  const Number floor = smoothing / classes;
  for (long r = 0; r < samples; r++) {
    const long sample = batch.sample(r);
    for (long o = 0; o < outputs; o++) {
      Number* target = to + (r * outputs + o) * row;
      if (are_numbers) {
        memcpy(target, (const Number*)labels + (sample * outputs + o) * classes, classes * sizeof(Number));
      } else {
        for (long k = 0; k < classes; k++) target[k] = floor;
        target[labels[sample * outputs + o]] += 1 - smoothing;
      }
    }
  }
}
INLINE int64_t count_correct(const int64_t* labels, const Batch& batch, long outputs, long classes, const Number* q, long row) {
  int64_t correct = 0;
  for (long r = 0; r < batch.count * outputs; r++) {
    const long y = labels[batch.sample(r / outputs) * outputs + r % outputs];
    const Number* own = q + r * row;
    bool is_first_largest = true;
    for (long k = 0; k < classes; k++) is_first_largest &= k < y ? own[k] < own[y] : own[k] <= own[y];
    correct += is_first_largest;
  }
  return correct;
}
// Weights of `outputs` rows a sample in the mean over the step's samples.
INLINE void give_weights(const Batch& batch, long samples, long outputs, Number* weight) {
  for (long r = 0; r < samples * outputs; r++) weight[r] = r < batch.count * outputs ? Number(1) / Number(batch.size * outputs) : 0;
}
INLINE double sum_of_losses(const Batch& batch, long outputs, const Number* loss) {
  double total = 0;
  for (long r = 0; r < batch.count * outputs; r++) total += loss[r];
  return total * batch.size;
}

// Writes a[rows, columns], `row` numbers from one row to the next, into panels as the right-hand side [rows, columns].
INLINE void rows_to_panels(const Number* a, long row, long rows, long columns, Number* p) {
  for (long s = 0; s * STRIP_NUMBERS < columns; s++) {
    const long width = columns - s * STRIP_NUMBERS < STRIP_NUMBERS ? columns - s * STRIP_NUMBERS : STRIP_NUMBERS;
    for (long r = 0; r < rows; r++) memcpy(p + (s * rows + r) * STRIP_NUMBERS, a + r * row + s * STRIP_NUMBERS, width * sizeof(Number));
  }
}
