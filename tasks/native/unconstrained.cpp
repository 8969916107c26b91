// Steps of gradient descent on unconstrained features H_1 to H_L, each pulled to the one before it and H_1 to X, below a linear map W
// (tasks/papers/unconstrained/network.py), tile by tile.
//
// Built with NUMBER, WIDTH and CLASSES. A trial's parameters are H_1 to H_L, each [N, D], and W [K, D]; its X [N, D] is in
// `x` [T, N, D]. Rows of H are updated as soon as the gradient of H_L is known, because no other rows read them.
#include "steps.h"

constexpr long D = WIDTH, K = CLASSES, LD = padded(D), LK = padded(K);
enum Given { WEIGHT_DECAY, PULL, WEIGHT_RATE, FEATURE_RATE };  // of each trial: rates are in units of the learning rate

// A vector or a single number at an address.
template <class Some> INLINE Some from(const Number* p) { Some a; return memcpy(&a, p, sizeof a), a; }
template <class Some> INLINE void to(Number* p, const Some& a) { memcpy(p, &a, sizeof a); }

// Updates some numbers of H_1 to H_L by one step, all from their previous values.
struct Move {
  long depth, layer;  // numbers from one H to the next
  Number rate, pull;

  // At numbers of H_1, below those of X, with the gradient g of the loss by those of H_L.
  template <class Some> INLINE_MEMBER void at(Number* place, const Number* x, const Number* g) const {
    Some here = from<Some>(place), way = here - from<Some>(x);
    for (long l = 1; l < depth; l++, place += layer) {
      const Some next = from<Some>(place + layer), onward = next - here;
      to(place, here - pull * (way - onward));
      here = next, way = onward;
    }
    to(place, here - (pull * way + rate * from<Some>(g)));
  }
};

struct Unconstrained : Step<Unconstrained> {
  static constexpr long SAMPLES = TILE;
  const long depth;
  Linear<K, D> last;
  Number *h, *q, *gradient, *dense;  // rows of a tile; dense: without padding

  explicit Unconstrained(const Call& call) : Step(call), depth(call.depth) {
    h = memory.numbers(TILE * LD), q = memory.numbers(TILE * LK);
    gradient = memory.numbers(TILE * LD), dense = memory.numbers(TILE * D);
    last.lay_out(memory, depth * call.batch * D, WEIGHT_DECAY, false);
  }

  template <class Use> void last_pieces(Use) const {}  // all pieces have been updated by then
  template <class Use> void each_piece(Use) const {}   // nothing is clipped

  void prepare() {
    last.prepare(trial.theta);
    rule.rate = trial.rate * decay(WEIGHT_RATE);
  }

  double tile(long row, long count, const int64_t*, bool is_first, bool is_last) {
    const long m = up(count, ROWS);
    double total = 0;
    gather(trial.theta + ((depth - 1) * call.batch + row) * D, nullptr, count, D, h, LD);
    last.forward(m, h, q, [&](long i) {
      for (long r = i; r < i + ROWS; r++) {
        if (r >= count) memset(q + r * LK, 0, LK * sizeof(Number));
        else if (call.is_mse) total += squared_error<K>(q + r * LK, call.labels[row + r], call.batch);
        else total += cross_entropy<K>(q + r * LK, call.labels[row + r], call.batch);
      }
    });
    last.backward(m, q, gradient, ZEROS<LD>, nothing, nothing);
    for (long r = 0; r < count; r++) memcpy(dense + r * D, gradient + r * LD, D * sizeof(Number));
    move(row, count);
    add_gradient(last, m, q, h, is_first, is_last);
    return total;
  }

  void move(long row, long count) const {
    const long layer = call.batch * D, index = (trial.theta - call.theta) / call.num_parameters, n = count * D;
    const Number rate = trial.rate * decay(FEATURE_RATE), *x = (const Number*)call.x + index * layer + row * D, *g = dense;
    const Move step = {depth, layer, rate, rate * decay(PULL)};
    Number* place = trial.theta + row * D;
    long i = 0;
    for (; i + LANES <= n; i += LANES) step.at<Vector>(place + i, x + i, g + i);
    for (; i < n; i++) step.at<Number>(place + i, x + i, g + i);
  }
};

extern "C" int64_t scratch_bytes(const Call* call) { return scratch_bytes_of<Unconstrained>(call); }
extern "C" void run(const Call* call) { run_steps<Unconstrained>(*call); }
