// Arithmetic of a tile, i.e. rows of samples that stay in cache, as functions shared by all families of networks.
//
// A number depends on its row only, and all sums run in a fixed order, so a trial's numbers do not depend on its pack. Rows are
// processed four at a time; a row of n numbers takes padded(n) in memory, padded with 0.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "processor.h"

// Exports the size and the version of a structure that Python mirrors, which tasks/native/library.py compares with its own before
// the first call. Raise the version in both places if a field changes its meaning but not its size.
#define EXPORT_LAYOUT(NAME, STRUCT, VERSION)                     \
  extern "C" int64_t NAME##_bytes() { return sizeof(STRUCT); }   \
  extern "C" int64_t NAME##_version() { return VERSION; }

constexpr long ROWS = 4;   // of a product's block in registers
constexpr long TILE = 64;  // rows of a tile; fixed, because it affects how sums round

constexpr long up(long n, long step) { return (n + step - 1) / step * step; }
constexpr long vectors(long n) { return (n + LANES - 1) / LANES; }
// Row stride in numbers; wide rows avoid powers of two, which map to few cache lines.
constexpr long padded(long n) {
  const long whole = up(n, LANES > ROWS ? LANES : ROWS);
  return whole * sizeof(Number) >= 512 && whole * sizeof(Number) % 512 == 0 ? whole + 64 / sizeof(Number) : whole;
}
constexpr long STRIP_NUMBERS = STRIP * LANES;
constexpr long panels(long k, long n) { return up(vectors(n), STRIP) * LANES * k; }  // numbers of a matrix [k, n] in panels

INLINE Vector& at(Number* p, long vector = 0) { return ((Vector*)p)[vector]; }
INLINE Vector at(const Number* p, long vector = 0) { return ((const Vector*)p)[vector]; }
template <long N> alignas(64) static const Number ZEROS[N] = {};  // static: a process with several libraries would share an inline one
INLINE Vector splat(Number a) { return a - Vector{}; }

INLINE Number sum(Vector a) {
  Number total = 0;
  for (long lane = 0; lane < LANES; lane++) total += a[lane];
  return total;
}

// The sums of four vectors.
INLINE Four sums(const Vector* v) {
  if constexpr (LANES < 4) return Four{sum(v[0]), sum(v[1]), sum(v[2]), sum(v[3])};
  Four part[4];
  for (int row = 0; row < 4; row++) {
    const Four* pieces = (const Four*)(v + row);
    part[row] = pieces[0];
    for (long piece = 1; piece < LANES / 4; piece++) part[row] += pieces[piece];
  }
  const Four a = __builtin_shufflevector(part[0], part[1], 0, 4, 2, 6) + __builtin_shufflevector(part[0], part[1], 1, 5, 3, 7);
  const Four b = __builtin_shufflevector(part[2], part[3], 0, 4, 2, 6) + __builtin_shufflevector(part[2], part[3], 1, 5, 3, 7);
  return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

// 1 in the first n lanes, 0 behind.
INLINE Vector first_lanes(long n) {
  Vector v;
  for (long lane = 0; lane < LANES; lane++) v[lane] = lane < n ? 1 : 0;
  return v;
}
template <long N> INLINE Vector last_vector() { return first_lanes(N - (vectors(N) - 1) * LANES); }

// e to the power x, accurate to one or two units in the last place; at least the smallest normal number.
INLINE Vector exponential(Vector x) {
  constexpr bool single = sizeof(Number) == 4;
  const Number least = single ? -87 : -708, round = single ? 12582912 : 6755399441055744;
  const Number high = single ? 0.693359375 : 6.93145751953125e-1, low = single ? -2.12194440e-4 : 1.42860682030941723212e-6;
  constexpr int terms = single ? 7 : 13, mantissa = single ? 23 : 52, bias = single ? 127 : 1023;
  x = x < least ? splat(least) : x;
  const Vector t = x * Number(1.442695040888963407) + round, n = t - round;
  x = x - n * high - n * low;
  Number factorial[terms + 1] = {1};
  for (int i = 1; i <= terms; i++) factorial[i] = factorial[i - 1] * i;
  Vector p = splat(1 / factorial[terms]);
  for (int i = terms - 1; i >= 0; i--) p = p * x + 1 / factorial[i];
  return p * (Vector)((__builtin_convertvector(n, Integers) + bias) << mantissa);
}

// ---- Memory: pieces of a call's scratch memory, each aligned to a cache line ----

class Memory {
  char* next;
 public:
  explicit Memory(void* start) : next((char*)(((uintptr_t)start + 63) / 64 * 64)) {}
  template <class Kind> Kind* take(long count) {
    Kind* taken = (Kind*)next;
    next += up(count * sizeof(Kind), 64);
    return taken;
  }
  Number* numbers(long count) { return take<Number>(count); }
  char* end() const { return next; }
};

// ---- Products ----

// A[i, k] is at at[i * row + k * column].
struct Left { const Number* at; long row, column; };
// B[k, :] is stored in strips of STRIP vectors: strip s of row k at at[s * strip + k * row].
struct Right { const Number* at; long strip, row; };
INLINE Right rows_of(const Number* at, long row) { return {at, STRIP_NUMBERS, row}; }            // a matrix as it is
INLINE Right panels_of(const Number* at, long k) { return {at, STRIP_NUMBERS * k, STRIP_NUMBERS}; }  // see to_panels

// C[4, N vectors] = start + A B, or C + A B without a start; k numbers are summed in order, in registers.
template <int N> INLINE void block(long k, const Number* a, long row, long column, const Number* b, long b_row, Number* c, long c_row, const Number* start) {
  Vector sum[ROWS][N];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < N; j++) sum[i][j] = start ? at(start, j) : at(c + i * c_row, j);
  for (long step = 0; step < k; step++) {
    Vector right[N];
    for (int j = 0; j < N; j++) {  // hold a local: GCC 12 would leave an array whose element is held on the stack
      Vector loaded = ((const Unaligned*)(b + step * b_row))[j];
      hold(loaded);
      right[j] = loaded;
    }
    for (int i = 0; i < ROWS; i++) {
      const Vector left = splat(a[i * row + step * column]);
      for (int j = 0; j < N; j++) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < N; j++) at(c + i * c_row, j) = sum[i][j];
}

template <long NV> INLINE void strip(long s, long k, const Number* a, long row, long column, const Number* b, long b_row, Number* c, long c_row, const Number* start) {
  constexpr long rest = NV % STRIP;
  if (rest == 0 || s + STRIP <= NV) block<STRIP>(k, a, row, column, b, b_row, c, c_row, start);
  else block<rest ? rest : 1>(k, a, row, column, b, b_row, c, c_row, start);
}

constexpr long CACHED_BYTES = 24 << 10;  // of a right-hand side that stays in cache while rows are processed
constexpr long AT_ONCE = 256;            // number of summed terms at a time if it does not

// C[m, NV vectors] = start + A B (or C + A B) for m rows, four at a time; before(i) and after(i) are called for rows i to i + 3.
// K: maximum number of summed terms. If B is small, four rows use all of it at a time; otherwise one strip of it stays in cache.
template <long K, long NV, class Before, class After>
INLINE void product(long m, long k, Left a, Right b, Number* c, long c_row, const Number* start, Before before, After after) {
  if constexpr (K * NV * VECTOR_BYTES <= CACHED_BYTES) {
    for (long i = 0; i < m; i += ROWS) {
      before(i);
      for (long s = 0; s < NV; s += STRIP)
        strip<NV>(s, k, a.at + i * a.row, a.row, a.column, b.at + s / STRIP * b.strip, b.row, c + i * c_row + s * LANES, c_row, start ? start + s * LANES : nullptr);
      after(i);
    }
  } else {
    for (long i = 0; i < m; i += ROWS) before(i);
    for (long k0 = 0; k0 < k; k0 += AT_ONCE) {
      const long part = k - k0 < AT_ONCE ? k - k0 : AT_ONCE;
      for (long s = 0; s < NV; s += STRIP)
        for (long i = 0; i < m; i += ROWS)
          strip<NV>(s, part, a.at + i * a.row + k0 * a.column, a.row, a.column, b.at + s / STRIP * b.strip + k0 * b.row, b.row, c + i * c_row + s * LANES, c_row, start && !k0 ? start + s * LANES : nullptr);
    }
    for (long i = 0; i < m; i += ROWS) after(i);
  }
}
constexpr auto nothing = [](long) {};

// ---- Layouts ----

// Writes a[rows, columns] into panels as the right-hand side [rows, columns].
INLINE void to_panels(const Number* a, long rows, long columns, Number* p) {
  for (long s = 0; s * STRIP_NUMBERS < columns; s++) {
    const long width = columns - s * STRIP_NUMBERS < STRIP_NUMBERS ? columns - s * STRIP_NUMBERS : STRIP_NUMBERS;
    for (long r = 0; r < rows; r++) memcpy(p + (s * rows + r) * STRIP_NUMBERS, a + r * columns + s * STRIP_NUMBERS, width * sizeof(Number));
  }
}

// Writes a[rows, columns], `row` numbers from one row to the next, transposed into panels, as the right-hand side [columns, rows].
static void transposed_to_panels(const Number* a, long row, long rows, long columns, Number* p) {
  typedef Number FourAnywhere __attribute__((vector_size(4 * sizeof(Number)), aligned(sizeof(Number)), may_alias));
  for (long r = 0; r < rows; r += 4)
    for (long c = 0; c < columns; c += 4) {
      Number* block = p + r / STRIP_NUMBERS * STRIP_NUMBERS * columns + r % STRIP_NUMBERS + c * STRIP_NUMBERS;
      if (r + 4 > rows || c + 4 > columns) {
        for (long i = 0; i < 4 && r + i < rows; i++)
          for (long j = 0; j < 4 && c + j < columns; j++) block[j * STRIP_NUMBERS + i] = a[(r + i) * row + c + j];
        continue;
      }
      Four v[4];
      for (long i = 0; i < 4; i++) v[i] = *(const FourAnywhere*)(a + (r + i) * row + c);
      const Four low01 = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), low23 = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), high23 = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
      *(FourAnywhere*)block = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      *(FourAnywhere*)(block + STRIP_NUMBERS) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      *(FourAnywhere*)(block + 2 * STRIP_NUMBERS) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      *(FourAnywhere*)(block + 3 * STRIP_NUMBERS) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
}

// Writes n numbers of each of `count` rows of x, selected by `order` or else the first ones, into rows of a tile. Up to a multiple
// of four it repeats the last row, whose LayerNorm is finite if the row's own is, while a row of zeros is not finite for ln_eps 0.
INLINE void gather(const Number* x, const int64_t* order, long count, long n, Number* tile, long row) {
  for (long r = 0; r < count; r++) memcpy(tile + r * row, x + (order ? order[r] : r) * n, n * sizeof(Number));
  for (long r = count; r < up(count, ROWS); r++) memcpy(tile + r * row, tile + (count - 1) * row, row * sizeof(Number));
}

// ---- ReLU: `give` returns its value and stores the factor that `take` multiplies a gradient with ----

struct Relu {
  using Kept = Mask;
  Relu(Number = 0) {}
  INLINE_MEMBER Vector give(Vector z, Kept& kept) const { return kept = positive(z), only(kept, z); }
  INLINE_MEMBER static Vector take(Kept kept, Vector v) { return only(kept, v); }
};

// The kink smoothed over |z| < width: with its slope p = clamp(z / 2 width + 1/2, 0, 1) it is p (z + width (1 - p)).
struct SmoothRelu {
  using Kept = Vector;
  Number width, half;
  SmoothRelu(Number width = 1) : width(width), half(Number(0.5) / width) {}
  INLINE_MEMBER Vector give(Vector z, Kept& kept) const {
    Vector p = z * half + Number(0.5);
    p = p < 0 ? Vector{} : p;
    kept = p = p > 1 ? splat(1) : p;
    return p * (z + width * (1 - p));
  }
  INLINE_MEMBER static Vector take(Kept kept, Vector v) { return kept * v; }
};

// (z + sqrt(z^2 + width^2)) / 2; its slope is its value over the root.
struct RootRelu {
  using Kept = Vector;
  Number square;
  RootRelu(Number width = 1) : square(width * width) {}
  INLINE_MEMBER Vector give(Vector z, Kept& kept) const {
    Vector root = z * z + square;
    for (long i = 0; i < LANES; i++) root[i] = std::sqrt(root[i]);
    const Vector value = (z + root) * Number(0.5);
    kept = value / root;
    return value;
  }
  INLINE_MEMBER static Vector take(Kept kept, Vector v) { return kept * v; }
};

// ---- LayerNorm, of N numbers without parameters, four rows at a time ----

// v <- (v - mean) / sqrt(variance + eps); returns 1 / sqrt(variance + eps).
template <long N> INLINE Four normalise(Vector (*v)[vectors(N)], Number eps) {
  constexpr long NV = vectors(N);
  Vector total[ROWS];
  for (int i = 0; i < ROWS; i++) {
    total[i] = v[i][0];
    for (long j = 1; j < NV; j++) total[i] += v[i][j];
  }
  const Four mean = sums(total) / Number(N);
  for (int i = 0; i < ROWS; i++) {
    for (long j = 0; j < NV; j++) v[i][j] -= mean[i];
    if (N % LANES) v[i][NV - 1] *= last_vector<N>();
    total[i] = v[i][0] * v[i][0];
    for (long j = 1; j < NV; j++) total[i] += v[i][j] * v[i][j];
  }
  Four scale = sums(total) / Number(N) + eps;
  for (int i = 0; i < ROWS; i++) scale[i] = 1 / std::sqrt(scale[i]);
  for (int i = 0; i < ROWS; i++)
    for (long j = 0; j < NV; j++) v[i][j] *= scale[i];
  return scale;
}

// v <- gradient of LayerNorm's input, from v, the gradient of its output `out`, and its scale.
template <long N> INLINE void normalise_backward(Vector (*v)[vectors(N)], const Number* out, long row, Four scale) {
  constexpr long NV = vectors(N);
  Vector total[ROWS], along[ROWS];
  for (int i = 0; i < ROWS; i++) {
    total[i] = v[i][0], along[i] = v[i][0] * at(out + i * row);
    for (long j = 1; j < NV; j++) total[i] += v[i][j], along[i] += v[i][j] * at(out + i * row, j);
  }
  const Four mean = sums(total) / Number(N), slope = sums(along) / Number(N);
  for (int i = 0; i < ROWS; i++) {
    for (long j = 0; j < NV; j++) v[i][j] = (v[i][j] - mean[i] - at(out + i * row, j) * slope[i]) * scale[i];
    if (N % LANES) v[i][NV - 1] *= last_vector<N>();
  }
}

// ---- Losses of a row of K outputs q with class y; q <- gradient, for a mean over `batch` rows ----

// Whether q[y] is the largest, and none before it is as large.
template <long K> INLINE bool is_first_largest(const Number* q, long y) {
  for (long k = 0; k < K; k++)
    if (k < y ? q[k] >= q[y] : q[k] > q[y]) return false;
  return true;
}

// Returns log sum exp(q) - q[y] in float64.
template <long K> INLINE double cross_entropy(Number* q, long y, Number batch) {
  constexpr long KV = vectors(K);
  Number top = q[0];
  for (long k = 1; k < K; k++) top = q[k] > top ? q[k] : top;
  const Number own = q[y];
  Vector e[KV], all = {};
  for (long j = 0; j < KV; j++) {
    e[j] = exponential(at(q, j) - top);
    if (j == KV - 1) e[j] *= last_vector<K>();
    all += e[j];
  }
  const Number z = sum(all), factor = 1 / (z * batch);
  for (long j = 0; j < KV; j++) at(q, j) = e[j] * factor;
  q[y] -= 1 / batch;
  return std::log(double(z)) - (double(own) - double(top));
}

// Returns half the squared distance from the y-th unit vector in float64.
template <long K> INLINE double squared_error(Number* q, long y, Number batch) {
  q[y] -= 1;
  double total = 0;
  for (long k = 0; k < K; k++) {
    total += double(q[k]) * double(q[k]);
    q[k] /= batch;
  }
  return total / 2;
}

// ---- The optimiser ----

struct Rule {
  bool is_adam;
  Number momentum, rate, correction;  // as in `StepNumbers`
  Number beta1, beta2, rest1, rest2, eps;  // Adam; rest: 1 - beta
  Number factor;  // of clipping
};

// One step of n parameters p with gradient g + decay p, in single operations: a fused multiply-add would round differently in a
// vector and in the remainder behind the last one.
__attribute__((noinline, optimize("fp-contract=off")))
static void update(long n, Number* __restrict p, Number* __restrict first, Number* __restrict second, const Number* __restrict g, Number decay, const Rule& rule) {
  const Rule r = rule;
  if (r.is_adam) {
    for (long i = 0; i < n; i++) {
      const Number a = (g[i] + decay * p[i]) * r.factor;
      first[i] = first[i] * r.beta1 + a * r.rest1;
      second[i] = second[i] * r.beta2 + a * a * r.rest2;
      p[i] -= first[i] / (std::sqrt(second[i]) / r.correction + r.eps) * r.rate;
    }
    return;
  }
  for (long i = 0; i < n; i++) {
    const Number a = (g[i] + decay * p[i]) * r.factor;
    first[i] = first[i] * r.momentum + a;
    p[i] -= first[i] * r.rate;
  }
}

// The sum of the squares of g + decay p.
__attribute__((noinline, optimize("fp-contract=off")))
static double squares(long n, const Number* p, const Number* g, Number decay) {
  double total[8] = {};
  for (long i = 0; i < n; i++) {
    const Number a = g[i] + decay * p[i];
    total[i % 8] += double(a) * double(a);
  }
  return ((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7]));
}
