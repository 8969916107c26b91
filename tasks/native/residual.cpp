// Training steps of L-RN1 and L-RN2, post-LN and pre-LN (tasks/networks/residual.py), each trial alone, tile by tile.
//
// Built with NUMBER, WIDTH, INPUTS, CLASSES, LINEAR_LAYERS (1 or 2 in a block) and PRE_NORM. A trial's parameters are those of its
// linear maps in order, W then b: map 0 is the embedding, maps 1 to M those of blocks, map M + 1 the last one, perhaps without b.
#include "tiles.h"

constexpr long D = WIDTH, I = INPUTS, K = CLASSES, LINEAR = LINEAR_LAYERS;
constexpr bool PRE = PRE_NORM, TWO = LINEAR == 2;
constexpr long DV = vectors(D), IV = vectors(I), KV = vectors(K);
constexpr long LD = padded(D), LI = padded(I), LK = padded(K);  // numbers from one row to the next
constexpr bool AS_IT_IS = D % LANES == 0 && D * LD * sizeof(Number) <= CACHED_BYTES;  // W serves as a right-hand side in place
constexpr long HIDDEN = D * D + D, FORWARD = panels(D, D), BACKWARD = AS_IT_IS ? 0 : panels(D, D);
alignas(64) static const Number ZEROS[(LD > LI ? LD : LI)] = {};

// What all steps of a call share.
struct Plan {
  long depth, batch, num_parameters;
  bool last_bias, is_mse, is_adam;
  Number clip_norm;  // 0: none
  double beta1, beta2;
  Number adam_eps, ln_eps;
};

// Of one trial at one step.
struct Trial {
  Number *theta, *first, *second;
  Number decay_hidden, decay_last, momentum, rate, correction;
};

class Memory {
  char* next;
 public:
  explicit Memory(void* start) : next((char*)(((uintptr_t)start + 63) / 64 * 64)) {}
  template <class Kind> Kind* take(long count) {
    Kind* taken = (Kind*)next;
    next += up(count * sizeof(Kind), 64);
    return taken;
  }
  char* end() const { return next; }
};

struct Step {
  const Plan& plan;
  const long depth, maps;  // maps: of blocks
  const bool one_tile, clips, keeps;  // keeps: all maps have room of their own, else the next takes what the last had
  Memory memory;
  Number *x, *h, *inner, *stream, *start, *z, *gradient, *lower, *q;      // rows of a tile
  Number *scale, *start_scale;                                            // 1 / std of LayerNorms
  Mask* mask;                                                             // of ReLUs
  Number *embedding_t, *hidden_t, *hidden_w, *last_t, *last_w, *bias, *last_b;
  Number *d_embedding, *d_hidden, *d_last, *d_bias, *d_last_b;
  Trial trial;
  Rule rule;

  Step(const Plan& plan, void* scratch)
      : plan(plan), depth(plan.depth), maps((plan.depth - 1) * LINEAR), one_tile(plan.batch <= TILE), clips(plan.clip_norm > 0),
        keeps(!one_tile || clips), memory(scratch) {
    auto numbers = [&](long count) { return memory.take<Number>(count); };
    const long rows = TILE, slots = keeps ? maps : 1, forward_slots = one_tile ? 1 : maps;
    x = numbers(rows * LI), h = numbers(depth * rows * LD), inner = numbers(TWO ? (depth - 1) * rows * LD : 0);
    stream = numbers(PRE ? rows * LD : 0), start = numbers(PRE ? rows * LD : 0);
    z = numbers(rows * LD), gradient = numbers(rows * LD), lower = numbers(rows * LD), q = numbers(rows * LK);
    scale = numbers(depth * rows), start_scale = numbers(rows);
    mask = memory.take<Mask>(TWO ? 0 : (depth - 1) * rows * DV);
    embedding_t = numbers(panels(I, D)), hidden_t = numbers(forward_slots * FORWARD), hidden_w = numbers(forward_slots * BACKWARD);
    last_t = numbers(panels(D, K)), last_w = numbers(panels(K, D)), bias = numbers((maps + 1) * LD), last_b = numbers(LK);
    d_embedding = numbers(up(D, ROWS) * LI), d_hidden = numbers(slots * up(D, ROWS) * LD), d_last = numbers(up(K, ROWS) * LD);
    d_bias = numbers((maps + 1) * LD), d_last_b = numbers(LK);
  }

  Number* weight(long map) const { return trial.theta + offset(map); }
  long offset(long map) const { return map ? D * I + D + (map - 1) * HIDDEN : 0; }
  Number* rows_of_layer(long layer) const { return h + (layer - 1) * TILE * LD; }  // what the maps of block `layer` read
  Number* inner_rows(long block) const { return inner + (block - 1) * TILE * LD; }
  Number* scales(long layer) const { return scale + (layer - 1) * TILE; }
  Mask* masks(long block) const { return mask + (block - 1) * TILE * DV; }
  Right forward_weight(long map) const { return panels_of(hidden_t + (one_tile ? 0 : map - 1) * FORWARD, D); }
  Right backward_weight(long map) const {
    if constexpr (AS_IT_IS) return rows_of(weight(map), D);
    return panels_of(hidden_w + (one_tile ? 0 : map - 1) * BACKWARD, D);
  }
  static Left rows_left(const Number* rows, long row) { return {rows, row, 1}; }
  static Left columns_left(const Number* rows, long row) { return {rows, 1, row}; }

  // One step over the batch; returns the sum of its rows' losses.
  double run(const Trial& given, const Number* data, const int64_t* labels, const int64_t* order) {
    trial = given;
    rule = {plan.is_adam, trial.momentum, trial.rate, trial.correction, Number(plan.beta1), Number(plan.beta2), Number(1 - plan.beta1), Number(1 - plan.beta2), plan.adam_eps, 1};
    prepare();
    double total = 0;
    for (long row = 0; row < plan.batch; row += TILE) {
      const long count = plan.batch - row < TILE ? plan.batch - row : TILE, m = up(count, ROWS);
      const bool is_first = row == 0, is_last = row + TILE >= plan.batch;
      gather(data + (order ? 0 : row * I), order ? order + row : nullptr, count, I, x, LI);
      forward(m, is_first);
      total += loss(count, m, labels + (order ? 0 : row), order ? order + row : nullptr);
      backward(m, is_first, is_last && !clips);
    }
    if (clips) {
      double norm = 0;
      each_piece([&](long n, long at, const Number* g, Number decay) { norm += squares(n, trial.theta + at, g, decay); });
      const Number factor = plan.clip_norm / (Number(std::sqrt(norm)) + Number(1e-6));
      rule.factor = factor > 1 ? 1 : factor;
      each_piece([&](long n, long at, const Number* g, Number decay) { apply(n, at, g, decay); });
    } else {
      last_pieces([&](long n, long at, const Number* g, Number decay) { apply(n, at, g, decay); });
    }
    return total;
  }

  void apply(long n, long at, const Number* g, Number decay) {
    update(n, trial.theta + at, trial.first + at, trial.second ? trial.second + at : nullptr, g, decay, rule);
  }

  template <class Use> void last_pieces(Use use) const {
    const long at = offset(maps + 1);
    for (long k = 0; k < K; k++) use(D, at + k * D, d_last + k * LD, trial.decay_last);
    if (plan.last_bias) use(K, at + K * D, d_last_b, 0);
  }
  template <class Use> void each_piece(Use use) const {
    for (long map = 0; map <= maps; map++) {
      const long n = map ? D : I, row = map ? LD : LI, at = offset(map);
      const Number* g = map ? d_hidden + (map - 1) * up(D, ROWS) * LD : d_embedding;
      for (long o = 0; o < D; o++) use(n, at + o * n, g + o * row, map ? trial.decay_hidden : 0);
      use(D, at + D * n, d_bias + map * LD, 0);
    }
    last_pieces(use);
  }

  // Lays the weights out for the products of this step, those of blocks when they are first used.
  void prepare() {
    memset(d_bias, 0, (maps + 1) * LD * sizeof(Number));
    memset(d_last_b, 0, LK * sizeof(Number));
    memset(last_b, 0, LK * sizeof(Number));
    const Number* last = weight(maps + 1);
    transposed_to_panels(last, K, D, last_t);
    to_panels(last, K, D, last_w);
    if (plan.last_bias) memcpy(last_b, last + K * D, K * sizeof(Number));
    transposed_to_panels(weight(0), D, I, embedding_t);
    memcpy(bias, weight(0) + D * I, D * sizeof(Number));
  }
  void prepare_forward(long map) {
    transposed_to_panels(weight(map), D, D, (Number*)forward_weight(map).at);
    memcpy(bias + map * LD, weight(map) + D * D, D * sizeof(Number));
  }
  void prepare_backward(long map) {
    if constexpr (!AS_IT_IS) to_panels(weight(map), D, D, (Number*)backward_weight(map).at);
  }

  void forward(long m, bool is_first) {
    Number* first = rows_of_layer(1);
    product<I, DV>(m, I, rows_left(x, LI), panels_of(embedding_t, I), first, LD, bias, nothing, [&](long i) {
      Vector v[ROWS][DV];
      load(v, first + i * LD);
      *(Four*)((PRE ? start_scale : scales(1)) + i) = normalise<D>(v, plan.ln_eps);
      if constexpr (PRE) {
        store(v, start + i * LD), store(v, stream + i * LD);
        *(Four*)(scales(1) + i) = normalise<D>(v, plan.ln_eps);
      }
      store(v, first + i * LD);
    });
    for (long block = 1; block < depth; block++) {
      const Number* in = rows_of_layer(block);
      Number* out = rows_of_layer(block + 1);
      const long map = (block - 1) * LINEAR + 1;
      if (is_first) prepare_forward(map);
      if constexpr (TWO) {
        Number* a = inner_rows(block);
        product<D, DV>(m, D, rows_left(in, LD), forward_weight(map), a, LD, bias + map * LD, nothing, [&](long i) {
          for (long r = i; r < i + ROWS; r++)
            for (long j = 0; j < DV; j++) at(a + r * LD, j) = only(positive(at(a + r * LD, j)), at(a + r * LD, j));
        });
        if (is_first) prepare_forward(map + 1);
        product<D, DV>(m, D, rows_left(a, LD), forward_weight(map + 1), out, LD, bias + (map + 1) * LD, nothing, [&](long i) { end_block(i, block, in, out); });
      } else {
        product<D, DV>(m, D, rows_left(in, LD), forward_weight(map), out, LD, bias + map * LD, nothing, [&](long i) { end_block(i, block, in, out); });
      }
    }
  }

  // Rows of `out` hold what a block's last map gave: add what they are added to, and normalise.
  INLINE_MEMBER void end_block(long i, long block, const Number* in, Number* out) {
    Vector v[ROWS][DV];
    const Number* before = PRE ? stream : in;
    for (int r = 0; r < ROWS; r++)
      for (long j = 0; j < DV; j++) {
        Vector added = at(out + (i + r) * LD, j);
        if constexpr (!TWO) {
          const Mask passes = positive(added);
          masks(block)[(i + r) * DV + j] = passes;
          added = only(passes, added);
        }
        v[r][j] = at(before + (i + r) * LD, j) + added;
      }
    if constexpr (PRE) store(v, stream + i * LD);
    *(Four*)(scales(block + 1) + i) = normalise<D>(v, plan.ln_eps);
    store(v, out + i * LD);
  }

  // Fills q with the gradient of the output, and adds what it says of the last map.
  double loss(long count, long m, const int64_t* labels, const int64_t* order) {
    const Number* out = rows_of_layer(depth);
    double total = 0;
    product<D, KV>(m, D, rows_left(out, LD), panels_of(last_t, D), q, LK, last_b, nothing, [&](long i) {
      for (long r = i; r < i + ROWS; r++) {
        Number* row = q + r * LK;
        if (r >= count) {
          memset(row, 0, LK * sizeof(Number));
          continue;
        }
        const long y = labels[order ? order[r] : r];
        total += plan.is_mse ? squared_error<K>(row, y, plan.batch) : cross_entropy<K>(row, y, plan.batch);
        for (long j = 0; j < KV; j++) at(d_last_b, j) += at(row, j);
      }
    });
    return total;
  }

  void backward(long m, bool is_first, bool is_last) {
    const Number* out = rows_of_layer(depth);
    product<TILE, DV>(up(K, ROWS), m, columns_left(q, LK), rows_of(out, LD), d_last, LD, is_first ? ZEROS : nullptr, nothing, nothing);
    product<K, DV>(m, K, rows_left(q, LK), panels_of(last_w, K), gradient, LD, ZEROS, nothing, [&](long i) {
      if constexpr (PRE) {
        Vector v[ROWS][DV];
        load(v, gradient + i * LD);
        normalise_backward<D>(v, out + i * LD, LD, *(Four*)(scales(depth) + i));
        store(v, gradient + i * LD);
      }
    });
    for (long block = depth - 1; block > 0; block--) {
      const Number* in = rows_of_layer(block);
      const long map = (block - 1) * LINEAR + 1;
      if constexpr (TWO) {
        const Number* a = inner_rows(block);
        if (is_first) prepare_backward(map + 1);
        product<D, DV>(
            m, D, rows_left(gradient, LD), backward_weight(map + 1), z, LD, ZEROS,
            [&](long i) {
              Vector v[ROWS][DV];
              begin_block(v, i, block);
              add_to_bias(v, map + 1);
            },
            [&](long i) {
              Vector v[ROWS][DV];
              for (int r = 0; r < ROWS; r++)
                for (long j = 0; j < DV; j++) v[r][j] = only(positive(at(a + (i + r) * LD, j)), at(z + (i + r) * LD, j));
              store(v, z + i * LD);
              add_to_bias(v, map);
            });
        weight_gradient(m, map + 1, gradient, a, is_first, is_last);
      }
      if (is_first) prepare_backward(map);
      Number* below = PRE ? lower : gradient;  // the gradient of what the block reads
      product<D, DV>(
          m, D, rows_left(z, LD), backward_weight(map), below, LD, PRE ? ZEROS : nullptr,
          [&](long i) {
            if constexpr (!TWO) {
              Vector v[ROWS][DV];
              begin_block(v, i, block);
              for (int r = 0; r < ROWS; r++)
                for (long j = 0; j < DV; j++) v[r][j] = only(masks(block)[(i + r) * DV + j], v[r][j]);
              store(v, z + i * LD);
              add_to_bias(v, map);
            }
          },
          [&](long i) {
            if constexpr (PRE) {
              Vector v[ROWS][DV];
              load(v, lower + i * LD);
              normalise_backward<D>(v, in + i * LD, LD, *(Four*)(scales(block) + i));
              for (int r = 0; r < ROWS; r++)
                for (long j = 0; j < DV; j++) at(gradient + (i + r) * LD, j) += v[r][j];
            }
          });
      weight_gradient(m, map, z, in, is_first, is_last);
    }
    for (long i = 0; i < m; i += ROWS) {
      Vector v[ROWS][DV];
      load(v, gradient + i * LD);
      normalise_backward<D>(v, (PRE ? start : rows_of_layer(1)) + i * LD, LD, *(Four*)((PRE ? start_scale : scales(1)) + i));
      store(v, gradient + i * LD);
      add_to_bias(v, 0);
    }
    product<TILE, IV>(up(D, ROWS), m, columns_left(gradient, LD), rows_of(x, LI), d_embedding, LI, is_first ? ZEROS : nullptr, nothing, [&](long o) {
      if (is_last) finish<I, LI>(o, 0, d_embedding, 0);
    });
    if (is_last) apply(D, offset(0) + D * I, d_bias, 0);
  }

  // v <- the gradient of what a block gave, from that of what stands behind it, which it replaces in `gradient`.
  INLINE_MEMBER void begin_block(Vector (*v)[DV], long i, long block) {
    load(v, gradient + i * LD);
    if constexpr (!PRE) {
      normalise_backward<D>(v, rows_of_layer(block + 1) + i * LD, LD, *(Four*)(scales(block + 1) + i));
      store(v, gradient + i * LD);
    }
  }

  INLINE_MEMBER void add_to_bias(const Vector (*v)[DV], long map) {
    Number* sums = d_bias + map * LD;
    for (long j = 0; j < DV; j++) at(sums, j) += (v[0][j] + v[1][j]) + (v[2][j] + v[3][j]);
  }

  // The gradient of a block's map, from that of its output and its input; in the last tile the map takes its step.
  void weight_gradient(long m, long map, const Number* of_output, const Number* in, bool is_first, bool is_last) {
    Number* g = d_hidden + (keeps ? map - 1 : 0) * up(D, ROWS) * LD;
    product<TILE, DV>(up(D, ROWS), m, columns_left(of_output, LD), rows_of(in, LD), g, LD, is_first ? ZEROS : nullptr, nothing, [&](long o) {
      if (is_last) finish<D, LD>(o, map, g, trial.decay_hidden);
    });
    if (is_last) apply(D, offset(map) + D * D, d_bias + map * LD, 0);
  }

  // Rows o to o + 3 of a map's weight take their step.
  template <long N, long ROW> void finish(long o, long map, const Number* g, Number decay) {
    for (long row = o; row < D && row < o + ROWS; row++) apply(N, offset(map) + row * N, g + row * ROW, decay);
  }

  INLINE_MEMBER void load(Vector (*v)[DV], const Number* rows) {
    for (int r = 0; r < ROWS; r++)
      for (long j = 0; j < DV; j++) v[r][j] = at(rows + r * LD, j);
  }
  INLINE_MEMBER void store(const Vector (*v)[DV], Number* rows) {
    for (int r = 0; r < ROWS; r++)
      for (long j = 0; j < DV; j++) at(rows + r * LD, j) = v[r][j];
  }
};

// What a call is given, see tasks/native/library.py.
struct Call {
  int64_t num_trials, num_steps, num_parameters, depth, batch, last_bias, is_mse, is_adam;
  double clip_norm, beta1, beta2, adam_eps, ln_eps;
  Number *theta, *first, *second;           // [T, P]
  const Number* x;                          // [N, I]
  const int64_t *labels, *order;            // [N]; [T, order_row], null where a batch is all samples
  int64_t order_row;
  const Number *decay_hidden, *decay_last, *momentum;  // [T]
  const Number *rate, *correction;                     // [S, T], [S]
  int64_t first_step, look_every;
  Number* loss;                             // [T], of each trial's last step
  int64_t* diverged_at;                     // [T], the first step looked at whose loss was not finite; negative: none
  void* scratch;
};

static Plan plan_of(const Call& c) {
  return {c.depth, c.batch, c.num_parameters, bool(c.last_bias), bool(c.is_mse), bool(c.is_adam), Number(c.clip_norm), c.beta1, c.beta2, Number(c.adam_eps), Number(c.ln_eps)};
}

// Bytes of scratch memory that a call needs.
extern "C" int64_t scratch_bytes(const Call* call) {
  const Plan plan = plan_of(*call);
  return Step(plan, nullptr).memory.end() - (char*)nullptr + 64;
}

// Takes `num_steps` steps of every trial; a trial that is found to have diverged takes no further one.
extern "C" void run(const Call* call) {
  const Call& c = *call;
  const Plan plan = plan_of(c);
  Step step(plan, c.scratch);
  const DenormalsFlushed flushed;
  for (long t = 0; t < c.num_trials; t++) {
    if (c.diverged_at[t] >= 0) continue;
    for (long s = 0; s < c.num_steps; s++) {
      const long row = t * c.num_parameters, number = c.first_step + s;
      const Trial trial = {c.theta + row, c.first + row, c.is_adam ? c.second + row : nullptr, c.decay_hidden[t], c.decay_last[t], c.momentum[t], c.rate[s * c.num_trials + t], c.correction[s]};
      c.loss[t] = step.run(trial, c.x, c.labels, c.order ? c.order + t * c.order_row + s * c.batch : nullptr) / c.batch;
      if ((number + 1) % c.look_every == 0 && !std::isfinite(c.loss[t])) {
        c.diverged_at[t] = number;
        break;
      }
    }
  }
}
