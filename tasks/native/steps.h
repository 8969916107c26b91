// Common parts of the families whose networks train on a data set: call arguments, linear maps and the loop over steps.
//
// A step processes its batch tile by tile. In the last tile a map is updated as soon as its gradient is complete and still in cache,
// unless the gradient is clipped or requested, which keeps all of it until the end.
#pragma once
#include <vector>

#include "tiles.h"
#include "call.h"

#ifndef SMOOTHED
#define SMOOTHED 0
#endif
using Rectifier = std::conditional_t<SMOOTHED == 2, RootRelu, std::conditional_t<SMOOTHED == 1, SmoothRelu, Relu>>;

EXPORT_LAYOUT(call, Call, CALL_VERSION)

// W x + b, W [OUT, IN] and perhaps b [OUT] behind it among a trial's parameters.
template <long OUTPUTS, long READ> struct Linear {
  static constexpr long OUT = OUTPUTS, IN = READ, LO = padded(OUT), LI = padded(IN), SIZE = OUT * IN;
  static constexpr bool AS_IT_IS = IN % LANES == 0 && OUT * LI * sizeof(Number) <= CACHED_BYTES;  // W is a right-hand side in place
  static constexpr long FORWARD = panels(IN, OUT), BACKWARD = AS_IT_IS ? 0 : panels(OUT, IN), GRADIENT = up(OUT, ROWS) * LI;
  long at;          // among the parameters
  long group;       // of weight decay; negative: none
  long bias_group;  // the same
  bool has_bias;
  Number *forward_panels, *backward_panels, *bias, *d_weight, *d_bias;
  Right as_right;

  // Allocates memory; panels and gradient may share the memory of maps that no longer need theirs.
  void lay_out(Memory& memory, long where, long decay_group, bool with_bias, long decay_group_of_bias = -1, const Linear* panels = nullptr, const Linear* gradient = nullptr) {
    at = where, group = decay_group, bias_group = decay_group_of_bias, has_bias = with_bias;
    forward_panels = panels ? panels->forward_panels : memory.numbers(FORWARD);
    backward_panels = panels ? panels->backward_panels : memory.numbers(BACKWARD);
    d_weight = gradient ? gradient->d_weight : memory.numbers(GRADIENT);
    bias = memory.numbers(LO), d_bias = memory.numbers(LO);
  }
  long end() const { return at + SIZE + (has_bias ? OUT : 0); }
  void begin_step() const { memset(d_bias, 0, LO * sizeof(Number)); }
  void prepare(const Number* theta) { prepare_forward(theta), prepare_backward(theta); }
  void prepare_forward(const Number* theta) {
    transposed_to_panels(theta + at, IN, OUT, IN, forward_panels);
    if (has_bias) memcpy(bias, theta + at + SIZE, OUT * sizeof(Number));
  }
  void prepare_backward(const Number* theta) {
    if constexpr (AS_IT_IS) {
      as_right = rows_of(theta + at, IN);
    } else {
      to_panels(theta + at, OUT, IN, backward_panels);
      as_right = panels_of(backward_panels, OUT);
    }
  }
  // out [m, OUT] <- W in + b.
  template <class After> INLINE_MEMBER void forward(long m, const Number* in, Number* out, After after) const {
    product<IN, vectors(OUT)>(m, IN, {in, LI, 1}, panels_of(forward_panels, IN), out, LO, bias, nothing, after);
  }
  // d_in [m, IN] <- start + d_out W, or d_in += d_out W without a start.
  template <class Before, class After>
  INLINE_MEMBER void backward(long m, const Number* d_out, Number* d_in, const Number* start, Before before, After after) const {
    product<OUT, vectors(IN)>(m, OUT, {d_out, LO, 1}, as_right, d_in, LI, start, before, after);
  }
  // Adds the contribution of m rows to W's gradient, which starts at 0 in the first tile.
  template <class After> INLINE_MEMBER void add_gradient(long m, const Number* d_out, const Number* in, bool is_first, After after) const {
    product<TILE, vectors(IN)>(up(OUT, ROWS), m, {d_out, 1, LO}, rows_of(in, LI), d_weight, LI, is_first ? ZEROS<LI> : nullptr, nothing, after);
  }
  INLINE_MEMBER void add_bias_gradient(const Vector (*v)[vectors(OUT)]) const {
    for (long j = 0; j < vectors(OUT); j++) ::at(d_bias, j) += (v[0][j] + v[1][j]) + (v[2][j] + v[3][j]);
  }
  // use(n, at, g, group) for each piece of the parameters and its gradient.
  template <class Use> void each_piece(Use use) const {
    for (long row = 0; row < OUT; row++) use(IN, at + row * IN, d_weight + row * LI, group);
    if (has_bias) use(OUT, at + SIZE, d_bias, bias_group);
  }
};

// A row's share of the barrier b mean(v / v_i), v_i its variance before the first LayerNorm and v the mean variance.
struct Barrier {
  double b, eps, rows = 0, sum = 0, sum_of_inverses = 0;
  double variance(Number scale) const { return 1 / (double(scale) * double(scale)) - eps; }
  void add(Number scale) { rows += 1, sum += variance(scale), sum_of_inverses += 1 / variance(scale); }
  double value() const { return rows ? b * (sum / rows) * (sum_of_inverses / rows) : 0; }
  // The factor on a row of D LayerNorm outputs in the gradient of its inputs.
  Number slope(Number scale, long d) const {
    const double v = variance(scale);
    return b / (rows * rows) * (sum_of_inverses - sum / (v * v)) * 2 / (d * double(scale));
  }
};

// Data of one trial at one step.
struct Trial {
  Number *theta, *first, *second;
  const Number* decay;  // of group g at [g * num_trials]
  Number momentum, rate, correction, smoothing;
  Number* gradient;     // null: parameters are updated
  int64_t* correct;
  Number *features, *scales;  // what layers give, and 1 / std of LayerNorms: where the latter are asked for, they are all there is
  const Number* state;
};

// A Family derives from this for its network and has prepare(), tile(), embed(), each_piece(), last_pieces(), and perhaps SAMPLES.
template <class Family> struct Step {
  const Call& call;
  // keeps: the whole gradient until the end. So do all evaluations: they share scratch memory, whose padding stays 0 in one layout only.
  const bool clips, keeps, one_tile;
  const long samples;  // of a tile
  const Number ln_eps;
  Memory memory;
  Trial trial;
  Rule rule;
  Rectifier relu;
  Barrier barrier;

  explicit Step(const Call& call, long samples = Family::SAMPLES)
      : call(call), clips(call.clip_norm > 0), keeps(clips || call.gradient || call.scales), one_tile(call.batch <= samples), samples(samples),
        ln_eps(call.ln_eps), memory(call.scratch) {}

  Family& family() { return static_cast<Family&>(*this); }

  // Takes one step over the batch, or computes its gradient if requested; returns the sum of its rows' losses.
  double take(const Trial& given, const int64_t* order) {
    trial = given;
    rule = {bool(call.is_adam), trial.momentum, trial.rate, trial.correction, Number(call.beta1), Number(call.beta2),
            Number(1 - call.beta1), Number(1 - call.beta2), Number(call.adam_eps), 1};
    relu = Rectifier(trial.smoothing);
    barrier = {call.barrier, call.ln_eps};
    family().prepare();
    if constexpr (SMOOTHED)
      if (call.barrier > 0)
        for (long row = 0; row < call.batch; row += samples)
          family().each_scale(row, rows_from(row), [&](Number scale) { barrier.add(scale); });
    double total = 0;
    for (long row = 0; row < call.batch; row += samples)
      total += family().tile(row, rows_from(row), order ? order + row : nullptr, row == 0, row + samples >= call.batch);
    if (trial.scales) return 0;
    if (trial.gradient) {
      family().each_piece([&](long n, long at, const Number* g, long) { memcpy(trial.gradient + at, g, n * sizeof(Number)); });
    } else if (clips) {
      double norm = 0;
      family().each_piece([&](long n, long at, const Number* g, long group) { norm += squares(n, trial.theta + at, g, decay(group)); });
      const Number factor = Number(call.clip_norm) / (Number(std::sqrt(norm)) + Number(1e-6));
      rule.factor = factor > 1 ? 1 : factor;
      family().each_piece([&](long n, long at, const Number* g, long group) { apply(n, at, g, group); });
    } else {
      family().last_pieces([&](long n, long at, const Number* g, long group) { apply(n, at, g, group); });
    }
    return total;
  }

  long rows_from(long row) const { return call.batch - row < samples ? call.batch - row : samples; }
  Number decay(long group) const { return group < 0 ? 0 : trial.decay[group * call.num_trials]; }
  void apply(long n, long at, const Number* g, long group) {
    update(n, trial.theta + at, trial.first + at, trial.second ? trial.second + at : nullptr, g, decay(group), rule);
  }

  // Adds the gradient of m rows of a map; in the last tile updates the map, unless the whole gradient is kept.
  template <class Map>
  INLINE_MEMBER void add_gradient(const Map& map, long m, const Number* d_out, const Number* in, bool is_first, bool is_last) {
    const bool steps = is_last && !keeps;
    map.add_gradient(m, d_out, in, is_first, [&](long o) {
      if (!steps) return;
      for (long row = o; row < Map::OUT && row < o + ROWS; row++) apply(Map::IN, map.at + row * Map::IN, map.d_weight + row * Map::LI, map.group);
    });
    if (steps && map.has_bias) apply(Map::OUT, map.at + Map::SIZE, map.d_bias, map.bias_group);
  }
};

template <long N> INLINE void load(Vector (*v)[vectors(N)], const Number* rows) {
  for (int r = 0; r < ROWS; r++)
    for (long j = 0; j < vectors(N); j++) v[r][j] = at(rows + r * padded(N), j);
}
template <long N> INLINE void store(const Vector (*v)[vectors(N)], Number* rows) {
  for (int r = 0; r < ROWS; r++)
    for (long j = 0; j < vectors(N); j++) at(rows + r * padded(N), j) = v[r][j];
}

// Bytes of scratch memory that a call needs.
template <class Family> int64_t scratch_bytes_of(const Call* call) {
  Call nowhere = *call;
  nowhere.scratch = nullptr;
  return Family(nowhere).memory.end() - (char*)nullptr + 64;
}

// Takes `num_steps` steps of every trial; a diverged trial stops at the check that detects it.
template <class Family> void run_steps(const Call& c) {
  Family family(c);
  const DenormalsFlushed flushed;
  for (long t = 0; t < c.num_trials; t++) {
    if (c.diverged_at[t] >= 0) continue;
    for (long s = 0; s < c.num_steps; s++) {
      const long row = t * c.num_parameters, number = c.first_step + s;
      const Trial trial = {c.theta + row, c.first + row, c.is_adam ? c.second + row : nullptr, c.decay + t, c.momentum[t], c.rate[s * c.num_trials + t], c.correction[s], 0, nullptr, nullptr, nullptr, nullptr, c.state + t * c.num_state};
      c.loss[t] = family.take(trial, c.order ? c.order + t * c.order_row + s * c.batch : nullptr) / c.batch;
      if ((number + 1) % c.look_every == 0 && !std::isfinite(c.loss[t])) {
        c.diverged_at[t] = number;
        break;
      }
    }
  }
}

// Computes every trial's loss over all samples, with smoothing and barrier if requested, and its gradient; or one trial's layers.
template <class Family> void evaluate_all(const Call& c) {
  Family family(c);
  const DenormalsFlushed flushed;
  for (long t = 0; t < c.num_trials; t++) {
    const long row = t * c.num_parameters;
    const Number smoothing = c.smoothing ? c.smoothing[t] : 0;
    const Trial trial = {c.theta + row, nullptr, nullptr, nullptr, 0, 0, 0, smoothing, c.gradient ? c.gradient + row : nullptr, c.correct ? c.correct + t : nullptr, c.features, c.scales, c.state + t * c.num_state};
    c.loss[t] = family.take(trial, nullptr) / c.batch + family.barrier.value();
  }
}
