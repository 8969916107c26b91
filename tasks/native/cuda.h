// What generated steps on a GPU need: one block of threads trains one trial, many steps in a launch. If a batch has many tiles,
// several blocks compute a trial's gradient, and each step takes two launches.
//
// The text is compiled twice: by NVRTC for a card, and by g++ with the threads of a block as contexts, which tests its arithmetic
// and its barriers without a card. A step is a sequence of phases, most with a barrier behind them. In a phase of threads (PHASE)
// `tid` is one thread. In a phase of warps (WARPS_PHASE) an expression stands for 32 lanes: a number on the card, 32 of them in a
// loop on a CPU.
// All sums run in a fixed order, without atomic operations, so a trial's numbers do not depend on its pack.
#pragma once
#ifdef __CUDACC__
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned long long uintptr_t;
#else
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#endif
using Number = NUMBER;
#include "call.h"
#ifndef PARTS  // of a trial's batch, whose gradients several blocks compute; 1: a block takes many steps in a launch
#define PARTS 1
#endif

#ifndef TILES_IN_ROWS  // 1: a product's tiles in the order of its rows, to compare
#define TILES_IN_ROWS 0
#endif
#ifndef UNROLLED_STEPS
#define UNROLLED_STEPS 4
#endif
#ifndef UPDATED_AT_ONCE  // as many on a multiprocessor with one block as with two, whose threads have half the registers
#define UPDATED_AT_ONCE (16 / BLOCKS)
#endif
constexpr int NUM_WARPS = THREADS / 32;
constexpr int up(int n, int step) { return (n + step - 1) / step * step; }
constexpr int parts(int n, int size) { return (n + size - 1) / size; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int row_stride(int columns) { return up(columns, 4) / 4 % 2 ? up(columns, 4) : up(columns, 4) + 4; }  // as `Layout`

template <bool FIRST, class A, class B> struct Choice { using type = A; };
template <class A, class B> struct Choice<false, A, B> { using type = B; };
template <bool FIRST, class A, class B> using choose = typename Choice<FIRST, A, B>::type;
struct alignas(16) Four {
  Number v[4];
};
constexpr int WIDE = 16 / sizeof(Number);  // numbers that one instruction copies

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define FUNCTION static __device__ __noinline__
#define TABLE static __device__ const
#define UNROLL _Pragma("unroll")
#define PHASE { const int tid = threadIdx.x;
#define WARPS_PHASE { const int warp = threadIdx.x / 32; const Ints lane = threadIdx.x % 32;
#define END } __syncthreads();
#define PHASE_END }
#define BARRIER __syncthreads();
#define INFINITY Number(__builtin_bit_cast(double, 0x7ff0000000000000LL))
#define NAN Number(__builtin_bit_cast(double, 0x7ff8000000000000LL))
template <class T> using Each = T;
extern __shared__ __align__(16) char shared_memory[];
// f of every lane's arguments.
template <class F, class... A> MEMBER auto map(F f, A... a) { return f(a...); }
template <class T> DEVICE T shifted(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE Number times(Number a, Number b) {
  if constexpr (sizeof(Number) == 4) return __fmul_rn(a, b);
  else return __dmul_rn(a, b);
}
DEVICE Number plus(Number a, Number b) {
  if constexpr (sizeof(Number) == 4) return __fadd_rn(a, b);
  else return __dadd_rn(a, b);
}
// Copies numbers of global to shared memory; `copied` waits for all of a thread's copies. Until then their sources must not change.
// A copy reads what any thread has written before the last barrier: it is a weak operation of the generic proxy, and .cg is a hint.
template <int COUNT> DEVICE void copy(Number* to, const Number* from) {
#if __CUDA_ARCH__ >= 800
  const unsigned target = (unsigned)__cvta_generic_to_shared(to);
  const size_t source = __cvta_generic_to_global(from);
  if constexpr (COUNT * sizeof(Number) == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(source), "n"(sizeof(Number)) : "memory");
#else
  UNROLL for (int i = 0; i < COUNT; i++) to[i] = from[i];
#endif
}
DEVICE void copied() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#else
#define DEVICE static inline
#define MEMBER inline
#define FUNCTION static __attribute__((noinline))
#define TABLE static const
#define UNROLL
static char* shared_memory;
// The threads of a block. One runs at a time, from one barrier to the next, in an order that is drawn behind each barrier, so a
// missing barrier gives other numbers. Late copies read and write when they are waited for, others at once.
struct Copy {
  Number* to;
  const Number* from;
  int count;
  Copy* next;
};
#define UNTRACED __attribute__((no_sanitize("thread")))
static struct {
  ucontext_t caller, contexts[THREADS];
  Copy* copies[THREADS];
  int order[THREADS], turn, running, lane, finished, round;
  uint64_t seed;  // 0: in the order of their numbers
  bool are_copies_late;
  void (*program)(const Call&);
  const Call* call;
} threads;
static char stacks[THREADS][1 << 19];
extern "C" void set_timing(int64_t seed, int64_t are_copies_late) { threads.seed = seed, threads.are_copies_late = are_copies_late; }
UNTRACED static void begin_round() {
  threads.turn = 0, threads.round++;
  for (int i = 0; i < THREADS; i++) {
    if (threads.seed) threads.seed = threads.seed * 6364136223846793005 + 1442695040888963407;
    const int other = threads.seed ? (threads.seed >> 33) % (i + 1) : i;
    threads.order[i] = threads.order[other], threads.order[other] = i;
  }
}
UNTRACED static ucontext_t* next_thread() {
  if (++threads.turn == THREADS) begin_round();
  return &threads.contexts[threads.running = threads.order[threads.turn]];
}
UNTRACED static void barrier() {
  if (threads.finished) abort();  // not all threads meet the same barriers
  ucontext_t* const own = &threads.contexts[threads.running];
  if (ucontext_t* const next = next_thread(); next != own) swapcontext(own, next);
}
UNTRACED static void run_thread() {
  threads.program(*threads.call);
  if (++threads.finished == THREADS) setcontext(&threads.caller);
  if (threads.turn + 1 == THREADS) abort();
  setcontext(next_thread());
}
UNTRACED static void run_threads(void (*program)(const Call&), const Call& call) {
  threads.program = program, threads.call = &call, threads.finished = 0;
  for (int i = 0; i < THREADS; i++) {
    ucontext_t& context = threads.contexts[i];
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[i], context.uc_stack.ss_size = sizeof stacks[i];
    makecontext(&context, run_thread, 0);
  }
  begin_round();
  swapcontext(&threads.caller, &threads.contexts[threads.running = threads.order[0]]);
}
#ifdef RACES  // a file that counts races, see the tests
#include RACES
UNTRACED static void set_lane(int lane) { threads.lane = lane; }
#else
static void set_lane(int) {}
static void begin_copy(const Copy&) {}
static void end_copy(const Copy&) {}
#endif
#define PHASE { const int tid = threads.running;
#define WARPS_PHASE if (threads.running % 32 == 0) { const int warp = threads.running / 32; const Ints lane = lane_numbers();
#define BARRIER barrier();
#define END } BARRIER
#define PHASE_END }
template <class T> struct Each {
  T v[32];
  Each() = default;
  Each(T a) { for (T& b : v) b = a; }
  template <class U> Each(const Each<U>& a) { for (int l = 0; l < 32; l++) v[l] = T(a.v[l]); }
};
template <class T> struct IsEach : std::false_type {};
template <class T> struct IsEach<Each<T>> : std::true_type {};
template <class T> inline const T& in_lane(const Each<T>& a, int l) { return a.v[l]; }
template <class T, class = std::enable_if_t<!IsEach<T>::value>> inline const T& in_lane(const T& a, int) { return a; }
template <class F, class... A> inline auto map(F f, const A&... a) {
  if constexpr ((IsEach<A>::value || ...)) {
    Each<std::decay_t<decltype(f(in_lane(a, 0)...))>> result;
    for (int l = 0; l < 32; l++) {
      set_lane(l);
      result.v[l] = f(in_lane(a, l)...);
    }
    set_lane(0);
    return result;
  } else {
    return f(a...);
  }
}
#define OPERATOR(sign)                                                                                      \
  template <class A, class B, class = std::enable_if_t<IsEach<A>::value || IsEach<B>::value>>               \
  inline auto operator sign(const A& a, const B& b) { return map([](auto x, auto y) { return x sign y; }, a, b); }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(%) OPERATOR(<) OPERATOR(<=) OPERATOR(>) OPERATOR(>=) OPERATOR(==) OPERATOR(!=)
OPERATOR(&) OPERATOR(|)
template <class T> inline auto operator-(const Each<T>& a) { return map([](auto x) { return -x; }, a); }
template <class T> inline auto operator~(const Each<T>& a) { return map([](auto x) { return ~x; }, a); }
template <class T> inline Each<T> shifted(const Each<T>& a, int mask) {
  Each<T> b;
  for (int l = 0; l < 32; l++) b.v[l] = a.v[l ^ mask];
  return b;
}
static inline Each<int> lane_numbers() {
  Each<int> lane;
  for (int l = 0; l < 32; l++) lane.v[l] = l;
  return lane;
}
#pragma GCC optimize("fp-contract=off")
DEVICE Number times(Number a, Number b) { return a * b; }
DEVICE Number plus(Number a, Number b) { return a + b; }
template <int COUNT> UNTRACED static void copy(Number* to, const Number* from) {
  if (COUNT > 1 && ((uintptr_t)to | (uintptr_t)from) % 16) abort();  // a fault on a card
  Copy*& last = threads.copies[threads.running];
  if (threads.are_copies_late) begin_copy(*(last = new Copy{to, from, COUNT, last}));
  for (int i = 0; i < COUNT; i++) to[i] = threads.are_copies_late ? Number(NAN) : from[i];
}
UNTRACED static void copied() {
  while (Copy* const c = threads.copies[threads.running]) {
    for (int i = 0; i < c->count; i++) c->to[i] = c->from[i];
    end_copy(*c);
    threads.copies[threads.running] = c->next;
    delete c;
  }
}
#endif
#if defined(TIMED_STEPS) && defined(__CUDACC__)  // the cycles of the first block in each statement
__device__ long long statement_cycles[NUM_TIMED];
#define TIMED(number, ...) { TIMED_FROM(began) __VA_ARGS__ TIMED_TO(number, began) }
#define TIMED_FROM(began) const long long began = clock64();
#define TIMED_TO(number, began) if (threadIdx.x + blockIdx.x == 0) statement_cycles[number] += clock64() - began;
#else
#define TIMED(number, ...) __VA_ARGS__
#define TIMED_FROM(began)
#define TIMED_TO(number, began)
#endif
using Lanes = Each<Number>;
using Ints = Each<int>;
using Flags = Each<bool>;
template <class T> DEVICE T* in_shared(int bytes) { return (T*)(shared_memory + bytes); }

// ---- Functions of numbers; a mask is the result of a comparison, or of several ----

struct Mask {
  bool is_set;
  MEMBER explicit operator bool() const { return is_set; }
  MEMBER Mask operator&(Mask other) const { return {is_set && other.is_set}; }
  MEMBER Mask operator|(Mask other) const { return {is_set || other.is_set}; }
  MEMBER Mask operator~() const { return {!is_set}; }
};
template <class V> MEMBER auto as_mask(V v) { return map([](auto a) { return Mask{bool(a)}; }, v); }
template <class V> MEMBER auto as_flags(V v) { return map([](auto a) { return bool(a); }, v); }
template <class V> MEMBER auto to_number(V v) { return map([](auto a) { return bool(a) ? Number(1) : Number(0); }, v); }
template <class M, class A, class B> MEMBER auto pick(M m, A a, B b) { return map([](auto m, auto a, auto b) { return bool(m) ? Number(a) : Number(b); }, m, a, b); }
template <class A> MEMBER auto least(A a, int b) { return map([](auto a, int b) { return a < b ? a : b; }, a, b); }
#define NUMBER_FUNCTION(name, text) template <class V> MEMBER auto name##_of(V v) { return map([](Number a) -> Number { return text; }, v); }
NUMBER_FUNCTION(relu, a <= 0 ? Number(0) : a)
NUMBER_FUNCTION(abs, a < 0 ? -a : a)
NUMBER_FUNCTION(sign, a > 0 ? Number(1) : a < 0 ? Number(-1) : a)
NUMBER_FUNCTION(sigmoid, 1 / (1 + exp(-a)))
NUMBER_FUNCTION(rsqrt, 1 / sqrt(a))
NUMBER_FUNCTION(round, rint(a))
#define STANDARD_FUNCTION(name) NUMBER_FUNCTION(name, name(a))
STANDARD_FUNCTION(exp) STANDARD_FUNCTION(log) STANDARD_FUNCTION(erf) STANDARD_FUNCTION(tanh) STANDARD_FUNCTION(sqrt)
STANDARD_FUNCTION(sin) STANDARD_FUNCTION(cos) STANDARD_FUNCTION(atan) STANDARD_FUNCTION(log1p) STANDARD_FUNCTION(expm1)
STANDARD_FUNCTION(floor) STANDARD_FUNCTION(ceil)

// ---- Loops over rows: a row's numbers are spread over LANES adjacent lanes ----

// The sum, or the maximum, of each group of LANES lanes, in all of its lanes.
template <int LANES, class T> MEMBER T sum_of(T v) {
  UNROLL for (int mask = LANES / 2; mask; mask /= 2) v = v + shifted(v, mask);
  return v;
}
template <int LANES, class T> MEMBER T maximum_of(T v) {
  UNROLL for (int mask = LANES / 2; mask; mask /= 2) v = map([](auto a, auto b) { return a > b ? a : b; }, v, shifted(v, mask));
  return v;
}
// COUNT numbers of each lane, STRIDE from one to the next.
template <int COUNT, bool ALIGNED, int STRIDE> MEMBER void load(Lanes (&to)[COUNT], const Number* p, Ints index) {
#ifdef __CUDACC__
  if constexpr (COUNT == 4 && ALIGNED && STRIDE == 1) {
    const Four four = *(const Four*)(p + index);
    UNROLL for (int e = 0; e < 4; e++) to[e] = four.v[e];
    return;
  }
#endif
  UNROLL for (int e = 0; e < COUNT; e++) to[e] = map([&](int i) { return p[i + e * STRIDE]; }, index);
}
// A number of each lane.
MEMBER Lanes one(const Number* p, Ints index) { return map([&](int i) { return p[i]; }, index); }
template <int COUNT, bool ALIGNED> MEMBER void store(Number* p, Ints index, const Lanes (&from)[COUNT], Flags is_there) {
#ifdef __CUDACC__
  if constexpr (COUNT == 4 && ALIGNED) {
    if (is_there) *(Four*)(p + index) = {{from[0], from[1], from[2], from[3]}};
    return;
  }
#endif
  UNROLL for (int e = 0; e < COUNT; e++) map([&](int i, Number a, bool there) { return there ? (p[i + e] = a, 0) : 0; }, index, from[e], is_there);
}

// ---- Products ----

// A matrix: number k of row i at p[i * ROW + k * COLUMN]. ALIGNED: p is a multiple of 16 bytes.
template <int ROW_, int COLUMN_, bool ALIGNED_> struct Matrix {
  static constexpr int ROW = ROW_, COLUMN = COLUMN_;
  static constexpr bool ALIGNED = ALIGNED_;
  static constexpr bool IS_ALONG_ROWS = ROW == 1 && COLUMN != 1;  // its rows' first numbers are adjacent
  const Number* p;
};
// A thread's COUNT rows of a matrix with SIZE rows, of which TILES threads have others: adjacent groups of GROUP.
template <class M, int COUNT, int SIZE> struct Rows {
  static constexpr int GROUP = M::IS_ALONG_ROWS && COUNT % 4 == 0 ? 4 : 1, TILES = parts(SIZE, COUNT), ROW = M::ROW;
  static constexpr bool IS_WHOLE = SIZE == TILES * COUNT;
  static constexpr bool LOADS_FOUR = M::ALIGNED && (GROUP == 4 ? M::COLUMN % 4 == 0 : M::COLUMN == 1 && ROW % 4 == 0);
  const Number* p;
  int first, last;
  // `size`: its present rows, at most SIZE; a thread beyond them reads the last one.
  MEMBER Rows(M matrix, int tile, int size) : p(matrix.p), first(tile * GROUP), last(size - 1) {}
  MEMBER static int row(int tile, int i) { return (i / GROUP * TILES + tile) * GROUP + i % GROUP; }
  MEMBER int at(int i) const {
    const int row = first + i / GROUP * TILES * GROUP + i % GROUP;
    return (IS_WHOLE || row <= last ? row : last) * ROW;
  }
  MEMBER int group_at(int g) const {
    const int row = first + g * TILES * 4;
    return IS_WHOLE || row <= last ? row : last / 4 * 4;
  }
  // Numbers k to k + 3 of the rows.
  MEMBER void load(Number (&to)[COUNT][4], int k) const {
    if constexpr (LOADS_FOUR && GROUP == 4) {
      UNROLL for (int s = 0; s < 4; s++) UNROLL for (int g = 0; g < COUNT / 4; g++) {
        const Four four = *(const Four*)(p + group_at(g) + (k + s) * M::COLUMN);
        UNROLL for (int e = 0; e < 4; e++) to[4 * g + e][s] = four.v[e];
      }
    } else if constexpr (LOADS_FOUR) {
      UNROLL for (int i = 0; i < COUNT; i++) {
        const Four four = *(const Four*)(p + at(i) + k);
        UNROLL for (int s = 0; s < 4; s++) to[i][s] = four.v[s];
      }
    } else {
      UNROLL for (int i = 0; i < COUNT; i++) UNROLL for (int s = 0; s < 4; s++) to[i][s] = p[at(i) + (k + s) * M::COLUMN];
    }
  }
};
// sum[i][j] += the product of row i of the left and row j of the right matrix, over k numbers in order.
template <int TM, int TN, class A, class B> MEMBER void multiply(Number (&sum)[TM][TN], const A& a, int a_column, const B& b, int b_column, int depth) {
  int k = 0;
  // Several steps at a time, so that the numbers of the next one are loaded while this one is computed.
  _Pragma("unroll UNROLLED_STEPS") for (; k + 4 <= depth; k += 4) {
    Number left[TM][4], right[TN][4];
    a.load(left, k), b.load(right, k);
    UNROLL for (int s = 0; s < 4; s++) UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++) sum[i][j] += left[i][s] * right[j][s];
  }
  for (; k < depth; k++) {
    Number left[TM], right[TN];
    UNROLL for (int i = 0; i < TM; i++) left[i] = a.p[a.at(i) + k * a_column];
    UNROLL for (int j = 0; j < TN; j++) right[j] = b.p[b.at(j) + k * b_column];
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++) sum[i][j] += left[i] * right[j];
  }
}
// Where a product's rows go: to one or two places, after `start` is added; or added to what is at the first.
template <int ROW_, bool ALIGNED_> struct Target {
  static constexpr int ROW = ROW_;
  static constexpr bool ALIGNED = ALIGNED_ && ROW % 4 == 0;
  Number *first, *second;
  const Number* start;
  bool adds;
  MEMBER void put(Number v, int m, int n) const {
    const int at = m * ROW + n;
    if (start) v += start[n];
    if (adds) v += first[at];
    first[at] = v;
    if (second) second[at] = v;
  }
  MEMBER void put(Number (&v)[4], int m, int n) const {
    const int at = m * ROW + n;
    if (start) UNROLL for (int e = 0; e < 4; e++) v[e] += start[n + e];
    Four four = {{v[0], v[1], v[2], v[3]}};
    if (adds) {
      const Four before = *(const Four*)(first + at);
      UNROLL for (int e = 0; e < 4; e++) four.v[e] += before.v[e];
    }
    *(Four*)(first + at) = four;
    if (second) *(Four*)(second + at) = four;
  }
};
template <class A, class B, int N, int TM, int TN, class T>
MEMBER void put(const T& target, Number (&sum)[TM][TN], int tile_m, int tile_n, int m, int n, int to_m, int to_n) {
  UNROLL for (int i = 0; i < TM; i++) {
    const int row = A::row(tile_m, i);
    if (!(A::IS_WHOLE && to_m == 0) && m + row >= to_m) continue;
    if constexpr (B::GROUP == 4 && T::ALIGNED && N % 4 == 0) {
      UNROLL for (int j = 0; j < TN; j += 4) {
        const int column = B::row(tile_n, j);
        Number four[4] = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
        if (n + column < to_n) target.put(four, m + row, n + column);
      }
    } else {
      UNROLL for (int j = 0; j < TN; j++) {
        const int column = B::row(tile_n, j);
        if (n + column < to_n) target.put(sum[i][j], m + row, n + column);
      }
    }
  }
}
// The tiles of 32 threads beside each other are 4 x 8 where they can be, of which lanes beside each other share a column: an
// instruction then reads the fewest banks of shared memory.
struct Place {
  int m, n;
};
template <int TILES_M, int TILES_N> MEMBER Place tile_place(int tile) {
  if constexpr (TILES_M % 4 == 0 && TILES_N % 8 == 0 && !TILES_IN_ROWS) {
    const int warp = tile / 32, lane = tile % 32;
    return {warp / (TILES_N / 8) * 4 + lane / 16 * 2 + lane % 2, warp % (TILES_N / 8) * 8 + lane % 16 / 2};
  } else {
    return {tile / TILES_N, tile % TILES_N};
  }
}
// Z products [M, K] [K, N] of matrices Z_A, Z_B and M rows of the target apart, read where they are. B is given with N as rows.
template <int Z, int M, int N, int K, int TM, int TN, int Z_A, int Z_B, class A, class B, class T> MEMBER void products(A a, B b, T target) {
  using Left = Rows<A, TM, M>;
  using Right = Rows<B, TN, N>;
  PHASE
    for (int tile = tid; tile < Z * Left::TILES * Right::TILES; tile += THREADS) {
      const int z = tile / (Left::TILES * Right::TILES);
      const Place own = tile_place<Left::TILES, Right::TILES>(tile % (Left::TILES * Right::TILES));
      Number sum[TM][TN] = {};
      multiply(sum, Left({a.p + z * Z_A}, own.m, M), A::COLUMN, Right({b.p + z * Z_B}, own.n, N), B::COLUMN, K);
      put<Left, Right, N>(target, sum, own.m, own.n, z * M, 0, (z + 1) * M, N);
    }
  END
}
// A part of a matrix in shared memory: SIZE rows, DEPTH numbers of each.
template <class M, int SIZE, int DEPTH, bool IS_COPIED> struct Part {
  using As = choose<IS_COPIED, choose<M::IS_ALONG_ROWS, Matrix<1, row_stride(SIZE), true>, Matrix<row_stride(DEPTH), 1, true>>, M>;
  static constexpr int NUMBERS = !IS_COPIED ? 0 : M::IS_ALONG_ROWS ? DEPTH * row_stride(SIZE) : SIZE * row_stride(DEPTH);
  // Copies `size` rows from `row` and `depth` numbers from `k` on.
  MEMBER static void fill(Number* to, M from, int row, int size, int k, int depth, int tid) {
    if constexpr (IS_COPIED) {
      constexpr int ALONG = M::IS_ALONG_ROWS ? SIZE : DEPTH, ACROSS = M::IS_ALONG_ROWS ? DEPTH : SIZE;
      constexpr int STEP = M::IS_ALONG_ROWS ? M::COLUMN : M::ROW, UNIT = M::IS_ALONG_ROWS ? M::ROW : M::COLUMN;
      constexpr int COUNT = M::ALIGNED && UNIT == 1 && STEP % WIDE == 0 && ALONG % WIDE == 0 ? WIDE : 1;
      const int along = M::IS_ALONG_ROWS ? size : depth, across = M::IS_ALONG_ROWS ? depth : size;
      from.p += row * M::ROW + k * M::COLUMN;
      for (int at = tid; at < ALONG / COUNT * ACROSS; at += THREADS) {
        const int i = at / (ALONG / COUNT), j = at % (ALONG / COUNT) * COUNT;
        if (i < across && j < along) copy<COUNT>(to + i * row_stride(ALONG) + j, from.p + i * STEP + j * UNIT);
      }
    }
  }
  MEMBER static As as_matrix(const Number* copy, M from, int row, int k) {
    if constexpr (IS_COPIED) return {copy};
    else return {from.p + row * M::ROW + k * M::COLUMN};
  }
};
// A product [M, K] [K, N] in blocks [BM, BN], of which DEPTH numbers are summed at a time. What is not in shared memory is copied.
// IS_AHEAD: `copy_ahead` has begun to copy, before the step in front of this one.
template <int M, int N, int K, int TM, int TN, int BM, int BN, int DEPTH, bool COPIES_A, bool COPIES_B, bool IS_AHEAD, class A, class B, class T>
MEMBER void product(A a, B b, T target, Number* scratch) {
  using PartA = Part<A, BM, DEPTH, COPIES_A>;
  using PartB = Part<B, BN, DEPTH, COPIES_B>;
  using Left = Rows<typename PartA::As, TM, BM>;
  using Right = Rows<typename PartB::As, TN, BN>;
  static_assert(Left::TILES * Right::TILES <= THREADS, "a block of a product has a tile for a thread");
  for (int m = 0; m < M; m += BM)
    for (int n = 0; n < N; n += BN) {
      const int rows = M % BM == 0 ? BM : smaller(BM, M - m), columns = N % BN == 0 ? BN : smaller(BN, N - n);
      Number sum[TM][TN] = {};
      for (int k = 0; k < K; k += DEPTH) {
        const int depth = K % DEPTH == 0 ? DEPTH : smaller(DEPTH, K - k);
        PHASE
          if (!IS_AHEAD) PartA::fill(scratch, a, m, rows, k, depth, tid), PartB::fill(scratch + PartA::NUMBERS, b, n, columns, k, depth, tid);
          copied();
        END
        PHASE
          const Place own = tile_place<Left::TILES, Right::TILES>(tid);
          if (tid < Left::TILES * Right::TILES)
            multiply(sum, Left(PartA::as_matrix(scratch, a, m, k), own.m, rows), PartA::As::COLUMN,
                     Right(PartB::as_matrix(scratch + PartA::NUMBERS, b, n, k), own.n, columns), PartB::As::COLUMN, depth);
        PHASE_END
        if (K > DEPTH && k + DEPTH < K) BARRIER
      }
      PHASE
        const Place own = tile_place<Left::TILES, Right::TILES>(tid);
        if (tid < Left::TILES * Right::TILES) put<Left, Right, N>(target, sum, own.m, own.n, m, n, m + rows, n + columns);
      END
    }
}

// Begins to copy what a product reads from global memory, during the step in front of it, which neither writes it nor uses `scratch`.
template <int M, int N, int K, int BM, int BN, bool COPIES_A, bool COPIES_B, class A, class B> MEMBER void copy_ahead(A a, B b, Number* scratch) {
  PHASE
    Part<A, BM, K, COPIES_A>::fill(scratch, a, 0, M, 0, K, tid);
    Part<B, BN, K, COPIES_B>::fill(scratch + Part<A, BM, K, COPIES_A>::NUMBERS, b, 0, N, 0, K, tid);
  PHASE_END
}

// ---- Sums over rows ----

// Number o of OUTPUTS at out[to(o)] is the sum of TERMS numbers p[from(o, q)], in an order that depends on these numbers only.
template <int OUTPUTS, int TERMS, class From, class To> MEMBER void row_sums(const Number* p, Number* out, bool adds, From from, To to, Number* scratch) {
  constexpr int FITTING = OUTPUTS > THREADS ? 1 : THREADS / OUTPUTS, SPLITS = FITTING < TERMS ? FITTING : TERMS;
  PHASE
    for (int at = tid; at < OUTPUTS * SPLITS; at += THREADS) {
      Number total = 0;
      _Pragma("unroll 16") for (int q = at / OUTPUTS; q < TERMS; q += SPLITS) total += p[from(at % OUTPUTS, q)];
      if (SPLITS > 1) scratch[at] = total;
      else out[to(at)] = adds ? out[to(at)] + total : total;
    }
  END
  if constexpr (SPLITS > 1) {
    PHASE
      for (int o = tid; o < OUTPUTS; o += THREADS) {
        Number total = scratch[o];
        _Pragma("unroll 8") for (int split = 1; split < SPLITS; split++) total += scratch[split * OUTPUTS + o];
        out[to(o)] = adds ? out[to(o)] + total : total;
      }
    END
  }
}

// ---- Tables ----

// Adds rows p[from(r) + j] to rows out[index(r) * ROW + j] of a table, each of its rows by one thread per column, in order.
template <int ENTRIES, int COLUMNS, int COUNT, int ROW, class From, class Index>
MEMBER void scatter(const Number* p, Number* out, bool adds, From from, Index index) {
  constexpr int GROUPS = COLUMNS > THREADS ? 1 : smaller(THREADS / COLUMNS, ENTRIES);
  PHASE
    for (int at = tid; at < COLUMNS * GROUPS; at += THREADS) {
      const int j = at % COLUMNS, group = at / COLUMNS;
      if (!adds)
        for (int entry = group; entry < ENTRIES; entry += GROUPS) out[entry * ROW + j] = 0;
      for (int r = 0; r < COUNT; r++) {
        const int entry = index(r);
        if (entry % GROUPS == group) out[entry * ROW + j] += p[from(r) + j];
      }
    }
  END
}

DEVICE void fill_zero(Number* p, int count) {
  PHASE
    for (int at = tid; at < count; at += THREADS) p[at] = 0;
  END
}

// ---- A tile's inputs: `count` of its samples are there, the others repeat the last one and have weight 0 ----

struct Batch {
  const int64_t* order;  // from the tile's first sample on; null: the data set's samples from `first` on
  int first, count;
  MEMBER int64_t sample(int r) const {
    const int present = r < count ? r : count - 1;
    return order ? order[present] : first + present;
  }
};
template <int SAMPLES, int INPUTS, int ROW, class Item> MEMBER void gather_samples(const Item* x, Batch batch, Item* to, Item* second) {
  struct alignas(16) Group {
    Item v[16 / sizeof(Item)];
  };
  constexpr int COUNT = 16 / sizeof(Item);
  if (INPUTS % COUNT == 0 && ROW % COUNT == 0 && (uintptr_t)x % 16 == 0) {
    constexpr int GROUPS = INPUTS / COUNT, TOTAL = SAMPLES * GROUPS, AT_ONCE = smaller(8, parts(TOTAL, THREADS));
    PHASE
      for (int at0 = tid; at0 < TOTAL; at0 += AT_ONCE * THREADS) {
        Group group[AT_ONCE];  // all are read before the first is written
        UNROLL for (int e = 0; e < AT_ONCE; e++) {
          const int at = smaller(at0 + e * THREADS, TOTAL - 1);
          group[e] = *(const Group*)(x + batch.sample(at / GROUPS) * INPUTS + at % GROUPS * COUNT);
        }
        UNROLL for (int e = 0; e < AT_ONCE; e++) {
          const int at = at0 + e * THREADS, place = at / GROUPS * ROW + at % GROUPS * COUNT;
          if (at >= TOTAL) continue;
          *(Group*)(to + place) = group[e];
          if (second) *(Group*)(second + place) = group[e];
        }
      }
    END
    return;
  }
  PHASE
    _Pragma("unroll 8") for (int at = tid; at < SAMPLES * INPUTS; at += THREADS) {
      const Item item = x[batch.sample(at / INPUTS) * INPUTS + at % INPUTS];
      to[at / INPUTS * ROW + at % INPUTS] = item;
      if (second) second[at / INPUTS * ROW + at % INPUTS] = item;
    }
  END
}
// Targets of OUTPUTS rows a sample: one-hot rows of labels, smoothed, or numbers as they are; and the rows' weights.
template <int SAMPLES, int OUTPUTS, int CLASSES, int ROW, bool ARE_NUMBERS>
MEMBER void gather_targets(const int64_t* labels, Batch batch, int64_t batch_size, Number smoothing, Number* to, Number* weight) {
  const Number low = smoothing / CLASSES, high = low + (1 - smoothing), one = Number(1) / Number(batch_size * OUTPUTS);
  constexpr int TOTAL = SAMPLES * OUTPUTS * CLASSES, AT_ONCE = smaller(8, parts(TOTAL, THREADS));
  PHASE
    for (int at0 = tid; at0 < TOTAL; at0 += AT_ONCE * THREADS) {
      Number target[AT_ONCE];  // all are read before the first is written
      UNROLL for (int e = 0; e < AT_ONCE; e++) {
        const int at = smaller(at0 + e * THREADS, TOTAL - 1), row = at / CLASSES, k = at % CLASSES;
        const int64_t output = batch.sample(row / OUTPUTS) * OUTPUTS + row % OUTPUTS;
        if constexpr (ARE_NUMBERS) target[e] = ((const Number*)labels)[output * CLASSES + k];
        else target[e] = labels[output] == k ? high : low;
      }
      UNROLL for (int e = 0; e < AT_ONCE; e++) {
        const int at = at0 + e * THREADS, row = at / CLASSES, k = at % CLASSES;
        if (at >= TOTAL) continue;
        to[row * ROW + k] = target[e];
        if (k == 0) weight[row] = row < batch.count * OUTPUTS ? one : Number(0);
      }
    }
  END
}
template <int OUTPUTS, int CLASSES, int ROW> MEMBER bool is_correct(const int64_t* labels, Batch batch, const Number* q, int r) {
  const int y = (int)labels[batch.sample(r / OUTPUTS) * OUTPUTS + r % OUTPUTS];
  const Number* own = q + r * ROW;
  bool is_first_largest = true;
  for (int k = 0; k < CLASSES; k++) is_first_largest &= k < y ? own[k] < own[y] : own[k] <= own[y];
  return is_first_largest;
}

// ---- Steps ----

// Data of one trial at one step.
struct Trial {
  Number *theta, *first, *second;
  const Number* decay;  // of group g at [g * num_trials]
  Number momentum;
  int64_t* correct;
  const Number* state;
};
// Numbers that a block's threads share.
struct Shared {
  double total;
  double part[32];
};
DEVICE Shared& block() { return *in_shared<Shared>(0); }
constexpr int BLOCK_BYTES = 288;  // of `Shared`, at the start of shared memory

// Adds up a number of every thread, in a fixed order, into block().total.
#ifdef __CUDACC__
DEVICE void add_up(double own) {
  own = sum_of<32>(own);
  if (threadIdx.x % 32 == 0) block().part[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int warp = 0; warp < NUM_WARPS; warp++) total += block().part[warp];
    block().total = total;
  }
  __syncthreads();
}
#else
static Each<double> all[NUM_WARPS];
static void add_up(double own) {
  all[threads.running / 32].v[threads.running % 32] = own;
  barrier();
  if (threads.running == 0) {
    double total = 0;
    for (int warp = 0; warp < NUM_WARPS; warp++) total += sum_of<32>(all[warp]).v[0];
    block().total = total;
  }
  barrier();
}
#endif

struct Rule {  // of `update`, as in tiles.h
  Number momentum, rate, correction, beta1, beta2, rest1, rest2, eps, factor;
};
// One step of n parameters p with gradient g + decay p, in single operations. `second`: of Adam, else null.
// `at`: number of the first one: pieces begin with different threads, so that many small ones are shared.
FUNCTION void update(int at, int n, Number* __restrict p, Number* __restrict first, Number* __restrict second, const Number* g, Number decay, Rule rule) {
  constexpr int AT_ONCE = smaller(UPDATED_AT_ONCE, 64 / sizeof(Number));
  PHASE
    for (int i0 = (tid + THREADS - at % THREADS) % THREADS; i0 < n; i0 += AT_ONCE * THREADS) {
      Number a[AT_ONCE], w[AT_ONCE], m[AT_ONCE], v[AT_ONCE];
      UNROLL for (int e = 0; e < AT_ONCE; e++) {
        const int i = i0 + e * THREADS < n ? i0 + e * THREADS : i0;  // no other thread's
        a[e] = g[i], w[e] = p[i], m[e] = first[i], v[e] = second ? second[i] : Number(0);
      }
      UNROLL for (int e = 0; e < AT_ONCE; e++) {
        const int i = i0 + e * THREADS;
        if (i >= n) continue;
        const Number slope = times(plus(a[e], times(decay, w[e])), rule.factor);
        Number change = plus(times(m[e], second ? rule.beta1 : rule.momentum), second ? times(slope, rule.rest1) : slope);
        first[i] = change;
        if (second) {
          second[i] = v[e] = plus(times(v[e], rule.beta2), times(times(slope, slope), rule.rest2));
          change = change / plus(sqrt(v[e]) / rule.correction, rule.eps);
        }
        p[i] = plus(w[e], -times(change, rule.rate));
      }
    }
  PHASE_END
}

// A generated Step has tile(), which adds its gradient to that of earlier tiles, piece() for all pieces of the parameters, and places.
// Returns the loss of the batch's samples from `begin` to `end`, and stores its gradient.
template <class Step> DEVICE double take(const Call& c, const Trial& trial, char* arena, Number* gradient, const int64_t* order, int begin, int end) {
  double total = 0;
  for (int row = begin; row < end; row += Step::SAMPLES) {
    const Batch batch = {order ? order + row : nullptr, row, smaller(Step::SAMPLES, end - row)};
    Step::tile(c, trial, arena, gradient, batch, row == begin);
    const Number *loss = Step::loss(arena), *output = Step::output(arena);
    double own = 0;
    TIMED(2, PHASE
      for (int r = tid; r < batch.count * Step::OUTPUTS; r += THREADS) own += loss[r];
    PHASE_END
    add_up(own);)
    total += block().total;
    if (!trial.correct) continue;
    own = 0;
    PHASE
      for (int r = tid; r < batch.count * Step::OUTPUTS; r += THREADS) own += is_correct<Step::OUTPUTS, Step::CLASSES, Step::OUTPUT_ROW>(c.labels, batch, output, r);
    PHASE_END
    add_up(own);
    PHASE
      if (tid == 0) *trial.correct += int64_t(block().total);
    END
  }
  return total;
}
DEVICE Number decay_of(const Call& c, const Trial& trial, int group) { return group < 0 ? Number(0) : trial.decay[group * c.num_trials]; }
template <class Step> DEVICE Number clip_factor(const Call& c, const Trial& trial, const Number* gradient) {
  if (!(c.clip_norm > 0)) return 1;
  double own = 0;
  PHASE
    Step::each_piece([&](int at, int n, int group) {
      const Number decay = decay_of(c, trial, group);
      for (int i = at + tid; i < at + n; i += THREADS) {
        const Number a = plus(gradient[i], times(decay, trial.theta[i]));
        own += double(a) * double(a);
      }
    });
  PHASE_END
  add_up(own);
  const Number factor = Number(c.clip_norm) / (Number(sqrt(block().total)) + Number(1e-6));
  return factor > 1 ? 1 : factor;
}
DEVICE Trial trial_of(const Call& c, int64_t t) {
  const int64_t row = t * c.num_parameters;
  return {c.theta + row, c.first + row, c.is_adam ? c.second + row : nullptr, c.decay + t, c.momentum[t], nullptr, c.state + t * c.num_state};
}
DEVICE const int64_t* order_of(const Call& c, int64_t t, int64_t s) { return c.order ? c.order + t * c.order_row + s * c.batch : nullptr; }
// Takes step s of trial t with the gradient of its batch, and returns whether it has diverged.
template <class Step> DEVICE bool finish(const Call& c, const Trial& trial, int64_t t, int64_t s, const Number* gradient, Number loss) {
  TIMED(3, const Rule rule = {trial.momentum, c.rate[s * c.num_trials + t], c.correction[s], Number(c.beta1), Number(c.beta2),
                              Number(1 - c.beta1), Number(1 - c.beta2), Number(c.adam_eps), clip_factor<Step>(c, trial, gradient)};
           Step::each_piece([&](int at, int n, int group) {
             update(at, n, trial.theta + at, trial.first + at, trial.second ? trial.second + at : nullptr, gradient + at, decay_of(c, trial, group), rule);
           });)
  const bool diverged = (c.first_step + s + 1) % c.look_every == 0 && !(loss - loss == 0);
  PHASE
    if (tid == 0 && (diverged || s + 1 == c.num_steps)) c.loss[t] = loss;
    if (tid == 0 && diverged) c.diverged_at[t] = c.first_step + s;
  END
  return diverged;
}
// Takes `num_steps` steps of a block's trials; a diverged trial stops at the check that detects it.
template <class Step> DEVICE void run_block(const Call& c, int number, int blocks) {
  char* const arena = (char*)c.scratch + number * Step::ARENA_BYTES;
  for (int64_t t = number; t < c.num_trials; t += blocks) {
    if (c.diverged_at[t] >= 0) continue;
    const Trial trial = trial_of(c, t);
    for (int64_t s = 0; s < c.num_steps; s++) {
      TIMED_FROM(began)
      Number* const gradient = (Number*)arena;
      const Number loss = Number(take<Step>(c, trial, arena, gradient, order_of(c, t, s), 0, int(c.batch)));
      const bool diverged = finish<Step>(c, trial, t, s, gradient, loss);
      TIMED_TO(4, began)
      if (diverged) break;
    }
  }
}

// ---- A step of several tiles in two launches: blocks compute the gradients of parts of the batch, then one adds them up ----

// Gradient and loss of a part, in front of the blocks' arenas. Which tiles are a part depends on the batch only.
DEVICE int64_t part_bytes(const Call& c) { return (c.num_parameters * sizeof(Number) + 15) / 16 * 16 + 16; }
DEVICE int64_t bytes_of_parts(const Call& c) { return (c.num_trials * PARTS * part_bytes(c) + 255) / 256 * 256; }
DEVICE Number* gradient_of(const Call& c, int64_t part) { return (Number*)((char*)c.scratch + part * part_bytes(c)); }
DEVICE double& loss_of(const Call& c, int64_t part) { return *(double*)((char*)c.scratch + (part + 1) * part_bytes(c) - 16); }
template <class Step> DEVICE void part_block(const Call& c, int64_t s, int number, int blocks) {
  char* const arena = (char*)c.scratch + bytes_of_parts(c) + number * Step::ARENA_BYTES;
  const int64_t tiles = (c.batch + Step::SAMPLES - 1) / Step::SAMPLES;
  for (int64_t part = number; part < c.num_trials * PARTS; part += blocks) {
    const int64_t t = part / PARTS, i = part % PARTS;
    if (c.diverged_at[t] >= 0) continue;
    const int begin = i * tiles / PARTS * Step::SAMPLES, end = smaller((i + 1) * tiles / PARTS * Step::SAMPLES, c.batch);
    const double loss = take<Step>(c, trial_of(c, t), arena, gradient_of(c, part), order_of(c, t, s), begin, end);
    PHASE
      if (tid == 0) loss_of(c, part) = loss;
    END
  }
}
template <class Step> DEVICE void step_block(const Call& c, int64_t s, int number, int blocks) {
  for (int64_t t = number; t < c.num_trials; t += blocks) {
    if (c.diverged_at[t] >= 0) continue;
    Number* const gradient = gradient_of(c, t * PARTS);
    double loss = 0;
    UNROLL for (int i = 0; i < PARTS; i++) loss += loss_of(c, t * PARTS + i);
    PHASE
      for (int64_t at = tid; at < c.num_parameters; at += THREADS) {
        Number sum = gradient[at];
        UNROLL for (int i = 1; i < PARTS; i++) sum += gradient_of(c, t * PARTS + i)[at];
        gradient[at] = sum;
      }
    END
    finish<Step>(c, trial_of(c, t), t, s, gradient, Number(loss));
  }
}

// Computes the loss of a block's trials over all samples, and its gradient.
template <class Step> DEVICE void evaluate_block(const Call& c, int number, int blocks) {
  char* const arena = (char*)c.scratch + number * Step::ARENA_BYTES;
  for (int64_t t = number; t < c.num_trials; t += blocks) {
    const Trial trial = {c.theta + t * c.num_parameters, nullptr, nullptr, nullptr, 0, c.correct ? c.correct + t : nullptr, c.state + t * c.num_state};
    Number* const gradient = (Number*)arena;
    const Number loss = Number(take<Step>(c, trial, arena, gradient, nullptr, 0, int(c.batch)));
    PHASE
      if (tid == 0) c.loss[t] = loss;
      if (c.gradient)
        for (int i = tid; i < c.num_parameters; i += THREADS) c.gradient[t * c.num_parameters + i] = gradient[i];
    END
  }
}

#ifndef __CUDACC__
extern "C" int64_t call_bytes() { return sizeof(Call); }
extern "C" int64_t call_version() { return CALL_VERSION; }
// All of a block's memory is NaN at first, so that tests find what is read before it is written.
// `static`, because libraries that are loaded together would share the memory of a function that others can see.
template <class Step> static void launch(const Call& c, void (*program)(const Call&), int64_t arena_at = 0) {
  alignas(64) static char memory[Step::SHARED_BYTES];
  shared_memory = (char*)memset(memory, 0xFF, sizeof memory);
  memset((char*)c.scratch + arena_at, 0xFF, Step::ARENA_BYTES);
  run_threads(program, c);
}
static int64_t current_step;
template <class Step> static void launch_steps(const Call& c) {
  if (PARTS == 1) return launch<Step>(c, [](auto& c) { run_block<Step>(c, 0, 1); });
  for (current_step = 0; current_step < c.num_steps; current_step++) {
    launch<Step>(c, [](auto& c) { part_block<Step>(c, current_step, 0, 1); }, bytes_of_parts(c));
    launch<Step>(c, [](auto& c) { step_block<Step>(c, current_step, 0, 1); }, bytes_of_parts(c));
  }
}
#endif
