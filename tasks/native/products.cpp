// Steps of gradient descent on deep unconstrained features, W_L relu(... W_2 relu(W_1 H_1)) (tasks/papers/unconstrained/network.py), tile by tile.
//
// Built with NUMBER, WIDTH, CLASSES and RELU (0: the linear model). A trial's parameters are H_1 [N, D], W_1 to W_L; each is a group
// of weight decay. A tile's rows of H_1 are updated as soon as their gradient is known, because no other rows read them.
#include "steps.h"

constexpr long D = WIDTH, K = CLASSES, DV = vectors(D), LD = padded(D), LK = padded(K);
constexpr long FEATURES = 0;  // the group of H_1; W_l has group l

struct Products : Step<Products> {
  static constexpr long SAMPLES = TILE;
  const long depth;
  std::vector<Linear<D, D>> maps;  // W_1 to W_{L-1}
  Linear<K, D> last;
  Number *h, *q, *gradient, *lower, *dense;  // rows of a tile; dense: without padding

  explicit Products(const Call& call) : Step(call), depth(call.depth), maps(call.depth - 1) {
    h = memory.numbers(depth * TILE * LD), q = memory.numbers(TILE * LK);
    gradient = memory.numbers(TILE * LD), lower = memory.numbers(TILE * LD), dense = memory.numbers(TILE * D);
    long end = call.batch * D, group = FEATURES + 1;
    for (auto& map : maps) map.lay_out(memory, end, group++, false), end = map.end();
    last.lay_out(memory, end, group, false);
  }

  Number* rows_of_layer(long layer) const { return h + (layer - 1) * TILE * LD; }  // input of W_layer

  template <class Use> void last_pieces(Use) const {}  // all pieces have been updated by then
  template <class Use> void each_piece(Use) const {}   // nothing is clipped

  void prepare() {
    for (auto& map : maps) map.prepare(trial.theta);
    last.prepare(trial.theta);
  }

  double tile(long row, long count, const int64_t*, bool is_first, bool is_last) {
    const long m = up(count, ROWS);
    gather(trial.theta + row * D, nullptr, count, D, rows_of_layer(1), LD);
    for (long layer = 1; layer < depth; layer++) {
      Number* out = rows_of_layer(layer + 1);
      maps[layer - 1].forward(m, rows_of_layer(layer), out, [&](long i) {
        if constexpr (RELU)
          for (long r = i; r < i + ROWS; r++)
            for (long j = 0; j < DV; j++) at(out + r * LD, j) = only(positive(at(out + r * LD, j)), at(out + r * LD, j));
      });
    }
    const double total = loss(row, count, m);
    last.backward(m, q, gradient, ZEROS<LD>, nothing, [&](long i) { through_relu(i, depth, gradient); });
    add_gradient(last, m, q, rows_of_layer(depth), is_first, is_last);
    for (long layer = depth - 1; layer > 0; layer--) {
      auto& map = maps[layer - 1];
      map.backward(m, gradient, lower, ZEROS<LD>, nothing, [&](long i) { through_relu(i, layer, lower); });
      add_gradient(map, m, gradient, rows_of_layer(layer), is_first, is_last);
      std::swap(gradient, lower);
    }
    for (long r = 0; r < count; r++) memcpy(dense + r * D, gradient + r * LD, D * sizeof(Number));
    apply(count * D, row * D, dense, FEATURES);
    return total;
  }

  // Turns four rows of the gradient of W_layer's input into the gradient before the ReLU.
  INLINE_MEMBER void through_relu(long i, long layer, Number* rows) const {
    if constexpr (RELU)
      if (layer > 1)
        for (long r = i; r < i + ROWS; r++)
          for (long j = 0; j < DV; j++) at(rows + r * LD, j) = only(positive(at(rows_of_layer(layer) + r * LD, j)), at(rows + r * LD, j));
  }

  // Fills q with the gradient of the output.
  double loss(long row, long count, long m) {
    double total = 0;
    last.forward(m, rows_of_layer(depth), q, [&](long i) {
      for (long r = i; r < i + ROWS; r++) {
        if (r < count) total += squared_error<K>(q + r * LK, call.labels[row + r], call.batch);
        else memset(q + r * LK, 0, LK * sizeof(Number));
      }
    });
    return total;
  }
};

extern "C" int64_t scratch_bytes(const Call* call) { return scratch_bytes_of<Products>(call); }
extern "C" void run(const Call* call) { run_steps<Products>(*call); }
