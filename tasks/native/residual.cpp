// Training steps of L-RN1 and L-RN2, post-LN and pre-LN (tasks/networks/residual.py), each trial alone, tile by tile.
//
// Built with NUMBER, WIDTH, INPUTS, CLASSES, LINEAR_LAYERS (1 or 2 in a block), PRE_NORM, perhaps SMOOTHED (1 parabola, 2 root) and FIXED_EMBEDDING. A trial's parameters
// are those of its linear maps in order: the embedding, LINEAR_LAYERS a block, the last one, perhaps without b.
#include "steps.h"

constexpr long D = WIDTH, I = INPUTS, K = CLASSES, LINEAR = LINEAR_LAYERS;
constexpr bool PRE = PRE_NORM, TWO = LINEAR == 2;
#ifndef FIXED_EMBEDDING
#define FIXED_EMBEDDING 0
#endif
constexpr bool KEEPS_SLOPES = SMOOTHED || !TWO;  // of ReLUs; otherwise they follow from the input of a block's second map
constexpr long DV = vectors(D), LD = padded(D), LI = padded(I), LK = padded(K);
enum Group { HIDDEN, LAST, BIASES, EMBEDDING };

struct Residual : Step<Residual> {
  static constexpr long SAMPLES = TILE;
  const long depth;
  Linear<D, I> embedding;
  std::vector<Linear<D, D>> maps;  // LINEAR a block
  Linear<K, D> last;
  Number *x, *h, *inner, *stream, *start, *z, *gradient, *lower, *q;  // rows of a tile
  Number *scale, *start_scale;                                        // 1 / std of LayerNorms
  Rectifier::Kept* kept;                                              // of ReLUs

  explicit Residual(const Call& call) : Step(call), depth(call.depth), maps((call.depth - 1) * LINEAR) {
    auto rows = [&](long count, long row) { return memory.numbers(count * TILE * row); };
    x = rows(1, LI), h = rows(depth, LD), inner = rows(TWO ? depth - 1 : 0, LD), stream = rows(PRE, LD), start = rows(PRE, LD);
    z = rows(1, LD), gradient = rows(1, LD), lower = rows(1, LD), q = rows(1, LK), scale = rows(depth, 1), start_scale = rows(1, 1);
    kept = memory.take<Rectifier::Kept>(KEEPS_SLOPES ? (depth - 1) * TILE * DV : 0);
    embedding.lay_out(memory, 0, EMBEDDING, true, EMBEDDING);
    long end = embedding.end();
    for (auto& map : maps) {
      const bool is_first = &map == &maps[0];
      map.lay_out(memory, end, HIDDEN, true, BIASES, one_tile && !is_first ? &maps[0] : nullptr, one_tile && !keeps && !is_first ? &maps[0] : nullptr);
      end = map.end();
    }
    last.lay_out(memory, end, LAST, call.last_bias, BIASES);
  }

  Number* rows_of_layer(long layer) const { return h + (layer - 1) * TILE * LD; }  // input of the maps of block `layer`
  Number* inner_rows(long block) const { return inner + (block - 1) * TILE * LD; }
  Number* scales(long layer) const { return scale + (layer - 1) * TILE; }
  Rectifier::Kept* slopes(long block) const { return kept + (block - 1) * TILE * DV; }
  Linear<D, D>& map(long block, long number = 0) { return maps[(block - 1) * LINEAR + number]; }

  template <class Use> void last_pieces(Use use) const { last.each_piece(use); }
  template <class Use> void each_piece(Use use) const {
    embedding.each_piece(use);
    for (auto& map : maps) map.each_piece(use);
    last_pieces(use);
  }

  // Lays out the weights for this step's products; those of blocks when they are first used.
  void prepare() {
    embedding.begin_step(), last.begin_step();
    for (auto& map : maps) map.begin_step();
    embedding.prepare_forward(trial.theta), last.prepare(trial.theta);
  }

  // Processes `count` samples of the step, from `row` of the batch on; returns the sum of their losses.
  double tile(long row, long count, const int64_t* order, bool is_first, bool is_last) {
    const long m = up(count, ROWS);
    embed(row, count, order);
    for (long block = 1; block < depth; block++) forward(m, block, is_first);
    if (trial.scales) return give_layers(row, count), 0;
    const double total = loss(count, m, call.labels + (order ? 0 : row), order);
    add_gradient(last, m, q, rows_of_layer(depth), is_first, false);
    last.backward(m, q, gradient, ZEROS<LD>, nothing, [&](long i) {
      if constexpr (PRE) {
        Vector v[ROWS][DV];
        load<D>(v, gradient + i * LD);
        normalise_backward<D>(v, rows_of_layer(depth) + i * LD, LD, *(Four*)(scales(depth) + i));
        store<D>(v, gradient + i * LD);
      }
    });
    for (long block = depth - 1; block > 0; block--) backward(m, block, is_first, is_last);
    if (!FIXED_EMBEDDING) embed_backward(count, m, is_first, is_last);  // otherwise its gradient stays 0
    return total;
  }

  // Copies `count` rows of every layer, from sample `row` on, to the caller's buffers.
  void give_layers(long row, long count) const {
    for (long layer = 1; layer <= depth; layer++) {
      for (long r = 0; r < count && trial.features; r++)
        memcpy(trial.features + ((layer - 1) * call.batch + row + r) * D, rows_of_layer(layer) + r * LD, D * sizeof(Number));
      memcpy(trial.scales + (layer - 1) * call.batch + row, scales(layer), count * sizeof(Number));
    }
    if constexpr (PRE) memcpy(trial.scales + depth * call.batch + row, start_scale, count * sizeof(Number));
  }

  void embed(long row, long count, const int64_t* order) {
    Number* first = rows_of_layer(1);
    gather((const Number*)call.x + (order ? 0 : row * I), order, count, I, x, LI);
    embedding.forward(up(count, ROWS), x, first, [&](long i) {
      Vector v[ROWS][DV];
      load<D>(v, first + i * LD);
      *(Four*)((PRE ? start_scale : scales(1)) + i) = normalise<D>(v, ln_eps);
      if constexpr (PRE) {
        store<D>(v, start + i * LD), store<D>(v, stream + i * LD);
        *(Four*)(scales(1) + i) = normalise<D>(v, ln_eps);
      }
      store<D>(v, first + i * LD);
    });
  }

  template <class Use> void each_scale(long row, long count, Use use) {
    embed(row, count, nullptr);
    for (long i = 0; i < count; i++) use((PRE ? start_scale : scales(1))[i]);
  }

  void forward(long m, long block, bool is_first) {
    const Number* in = rows_of_layer(block);
    Number* out = rows_of_layer(block + 1);
    if constexpr (TWO) {
      Number* a = inner_rows(block);
      if (is_first) map(block).prepare_forward(trial.theta);
      map(block).forward(m, in, a, [&](long i) {
        for (long r = i; r < i + ROWS; r++)
          for (long j = 0; j < DV; j++) at(a + r * LD, j) = rectified(at(a + r * LD, j), block, r, j);
      });
      in = a;
    }
    auto& second = map(block, LINEAR - 1);
    if (is_first) second.prepare_forward(trial.theta);
    second.forward(m, in, out, [&](long i) {
      Vector v[ROWS][DV];
      const Number* before = PRE ? stream : rows_of_layer(block);
      for (int r = 0; r < ROWS; r++)
        for (long j = 0; j < DV; j++) {
          const Vector added = at(out + (i + r) * LD, j);
          v[r][j] = at(before + (i + r) * LD, j) + (TWO ? added : rectified(added, block, i + r, j));
        }
      if constexpr (PRE) store<D>(v, stream + i * LD);
      *(Four*)(scales(block + 1) + i) = normalise<D>(v, ln_eps);
      store<D>(v, out + i * LD);
    });
  }

  INLINE_MEMBER Vector rectified(Vector v, long block, long row, long j) const {
    Rectifier::Kept slope;
    v = relu.give(v, slope);
    if constexpr (KEEPS_SLOPES) slopes(block)[row * DV + j] = slope;
    if (SMOOTHED && D % LANES && j == DV - 1) v *= last_vector<D>();  // clears the padding, since the smoothed ReLU of 0 is not 0
    return v;
  }
  INLINE_MEMBER Vector through_relu(Vector v, long block, long row, long j) const {
    if constexpr (KEEPS_SLOPES) return Rectifier::take(slopes(block)[row * DV + j], v);
    else return only(positive(at(inner_rows(block) + row * LD, j)), v);
  }

  // Fills q with the gradient of the output.
  double loss(long count, long m, const int64_t* labels, const int64_t* order) {
    double total = 0;
    last.forward(m, rows_of_layer(depth), q, [&](long i) {
      for (long r = i; r < i + ROWS; r++) {
        Number* row = q + r * LK;
        if (r >= count) {
          memset(row, 0, LK * sizeof(Number));
          continue;
        }
        const long y = labels[order ? order[r] : r];
        if (trial.correct) *trial.correct += is_first_largest<K>(row, y);
        total += call.is_mse ? squared_error<K>(row, y, call.batch) : cross_entropy<K>(row, y, call.batch);
        for (long j = 0; j < vectors(K); j++) at(last.d_bias, j) += at(row, j);
      }
    });
    return total;
  }

  // Replaces the gradient of a block's output by that of its input, in `gradient`.
  void backward(long m, long block, bool is_first, bool is_last) {
    const Number* in = rows_of_layer(block);
    auto& first = map(block);
    if constexpr (TWO) {
      auto& second = map(block, 1);
      if (is_first) second.prepare_backward(trial.theta);
      second.backward(
          m, gradient, z, ZEROS<LD>,
          [&](long i) {
            Vector v[ROWS][DV];
            begin_block(v, i, block);
            second.add_bias_gradient(v);
          },
          [&](long i) {
            Vector v[ROWS][DV];
            for (int r = 0; r < ROWS; r++)
              for (long j = 0; j < DV; j++) v[r][j] = through_relu(at(z + (i + r) * LD, j), block, i + r, j);
            store<D>(v, z + i * LD);
            first.add_bias_gradient(v);
          });
      add_gradient(second, m, gradient, inner_rows(block), is_first, is_last);
    }
    if (is_first) first.prepare_backward(trial.theta);
    Number* below = PRE ? lower : gradient;  // gradient of the block's input
    first.backward(
        m, z, below, PRE ? ZEROS<LD> : nullptr,
        [&](long i) {
          if constexpr (!TWO) {
            Vector v[ROWS][DV];
            begin_block(v, i, block);
            for (int r = 0; r < ROWS; r++)
              for (long j = 0; j < DV; j++) v[r][j] = through_relu(v[r][j], block, i + r, j);
            store<D>(v, z + i * LD);
            first.add_bias_gradient(v);
          }
        },
        [&](long i) {
          if constexpr (PRE) {
            Vector v[ROWS][DV];
            load<D>(v, lower + i * LD);
            normalise_backward<D>(v, in + i * LD, LD, *(Four*)(scales(block) + i));
            for (int r = 0; r < ROWS; r++)
              for (long j = 0; j < DV; j++) at(gradient + (i + r) * LD, j) += v[r][j];
          }
        });
    add_gradient(first, m, z, in, is_first, is_last);
  }

  // v <- gradient of a block's output from the gradient behind it, which it replaces in `gradient`.
  INLINE_MEMBER void begin_block(Vector (*v)[DV], long i, long block) {
    load<D>(v, gradient + i * LD);
    if constexpr (!PRE) {
      normalise_backward<D>(v, rows_of_layer(block + 1) + i * LD, LD, *(Four*)(scales(block + 1) + i));
      store<D>(v, gradient + i * LD);
    }
  }

  void embed_backward(long count, long m, bool is_first, bool is_last) {
    const Number *normal = PRE ? start : rows_of_layer(1), *normal_scale = PRE ? start_scale : scales(1);
    for (long i = 0; i < m; i += ROWS) {
      Vector v[ROWS][DV];
      load<D>(v, gradient + i * LD);
      normalise_backward<D>(v, normal + i * LD, LD, *(Four*)(normal_scale + i));
      if (SMOOTHED && barrier.b > 0)
        for (long r = i; r < i + ROWS && r < count; r++)
          for (long j = 0; j < DV; j++) v[r - i][j] += at(normal + r * LD, j) * barrier.slope(normal_scale[r], D);
      store<D>(v, gradient + i * LD);
      embedding.add_bias_gradient(v);
    }
    add_gradient(embedding, m, gradient, x, is_first, is_last);
  }
};

extern "C" int64_t scratch_bytes(const Call* call) { return scratch_bytes_of<Residual>(call); }
#if SMOOTHED
extern "C" void run(const Call* call) { evaluate_all<Residual>(*call); }
#else
extern "C" void run(const Call* call) { run_steps<Residual>(*call); }
extern "C" void evaluate(const Call* call) { evaluate_all<Residual>(*call); }
#endif
