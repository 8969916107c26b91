// Fused multiply-adds of one core at full speed: sixteen independent vectors, which hide the latency and stay in registers.
#include "../tasks/native/processor.h"

extern "C" double fma_rounds(long rounds, double* result) {
  Vector sums[16], factor = Vector{} + Number(*result);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) sums[i] = factor * Number(i);  // different ones, or one would be computed for all
  for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) sums[i] = sums[i] * factor + factor;
  }
  double total = 0;
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) total += sums[i][0];
  *result = total / 1e6;
  return 16.0 * LANES * 2 * rounds;
}
