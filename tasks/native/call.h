#pragma once
// Arguments of a call, see tasks/native/library.py.
constexpr int64_t CALL_VERSION = 3;
struct Table;
struct Call {
  int64_t num_trials, num_steps, num_parameters, depth, batch, last_bias, is_mse, is_adam;
  double clip_norm, beta1, beta2, adam_eps, ln_eps;  // clip_norm: 0 for none
  Number *theta, *first, *second;                    // [T, P]
  const void* x;                                     // [N, I]; of unconstrained features [T, N, D]
  const int64_t *labels, *order;                     // [N]; [T, order_row], null where a batch is all samples
  int64_t order_row;
  const Number *decay, *momentum;                    // [G, T], of each group; [T]
  const Number *rate, *correction;                   // [S, T], [S]
  int64_t first_step, look_every;
  Number* loss;                                      // [T], of each trial's last step
  int64_t* diverged_at;                              // [T], first checked step with a non-finite loss; negative: none
  void* scratch;
  const Number* smoothing;                           // [T]; these three for `evaluate`
  double barrier;                                    // b of b mean(v / v_i)
  Number* gradient;                                  // [T, P]
  int64_t* correct;                                  // [T], correctly classified samples; null: not requested
  Number *features, *scales;                         // [L, N, D] and [LayerNorms, N], of one trial: see `Trial`
  const Number* state;                               // [T, num_state], what steps read and do not change
  int64_t num_state;
  const Table* table;                                // of generated steps on a CPU, see generated.h
};
