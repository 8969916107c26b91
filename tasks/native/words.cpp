// Steps of gradient descent on an embedding and a linear layer, over sentences (tasks/papers/words/word_trainer.py), position by position.
//
// Built with NUMBER, WIDTH, CLASSES, LENGTH and NORM (1: LayerNorm behind the embedding). At each position a batch has fewer
// distinct words than sentences, so everything is computed once per word: its contribution to the outputs, which sentences then
// gather, and its gradient, since sentences' gradients are summed per word before products. Weight decay is one factor per matrix.
#include "tiles.h"

constexpr long D = WIDTH, K = CLASSES, L = LENGTH, DV = vectors(D), LD = padded(D), LK = padded(K);
constexpr long PART = 64, LP = padded(PART), WHOLE = K / PART * PART;  // classes at a time, so that their weights at a position stay in cache
constexpr long CLASS_ROWS = up(K, ROWS);
constexpr double SMALLEST_SCALE = 1.0 / (1 << 20);  // a smaller factor is multiplied into its matrix

// Arguments of a call, see `WordsCall` in tasks/native/library.py.
struct Call {
  int64_t num_trials, num_steps, batch, vocabulary, first_step, look_every;
  double ln_eps;
  Number *words, *linear;                   // [T, V, D], [T, K, L, D]; their values are scale times the stored numbers
  double *word_scale, *linear_scale;        // [T]
  const double *rate;                       // [S, T]
  const double *word_decay, *linear_decay;  // [T]
  const int32_t* const* sentences;          // [T], each [N, L]: words
  const int64_t* const* order;              // [S, T], each [batch]: sentences
  const int64_t* per_class;                 // [T], sentences per class, which are contiguous
  const int64_t* begins;                    // [S, T], whether the step is the first of an epoch
  double* epoch;                            // [T, 3], of the epoch so far: sum of losses, sentences classified right, sentences
  Number* loss;                             // [T], of each trial's last step
  int64_t* diverged_at;                     // [T], first checked step with a non-finite loss; negative: none
  void* scratch;
};
EXPORT_LAYOUT(call, Call, 1)

// Numbers items in the order of their first occurrence.
struct Numbering {
  int32_t *number, *thing;  // number of an item, counted from 1, 0 before its first occurrence; item of a number
  long count = 0;
  void lay_out(Memory& memory, long things, long most) { number = memory.take<int32_t>(things), thing = memory.take<int32_t>(most); }
  int32_t operator()(long met) {
    if (!number[met]) thing[count] = met, number[met] = ++count;
    return number[met] - 1;
  }
  void forget() {
    for (; count; count--) number[thing[count - 1]] = 0;
  }
};

struct Words {
  const Call& call;
  const long batch, most_here, most;  // maximum number of distinct words at a position and in a batch
  Memory memory;
  Number *words, *linear;             // [V, LD], [L, CLASS_ROWS, LD]
  Number *features, *slopes, *scale;  // of the words of a batch, [most, LD], and 1 / std of LayerNorm
  Number *logits;                     // [batch, LK]; then their gradient
  Number *x, *d_x;                    // of the words at a place, [most_here, LD]
  Number *part, *panels, *last_panels;  // of some classes: [most_here, LP]; weights
  int32_t *place, *here;              // [L, batch], number of a sentence's word at its position; [L, batch], its number in the batch
  int32_t* different;                 // [L], distinct words per position
  Numbering of_batch, of_place;

  explicit Words(const Call& call)
      : call(call), batch(call.batch), most_here(up(batch < call.vocabulary ? batch : call.vocabulary, ROWS)),
        most(up(batch * L < call.vocabulary ? batch * L : call.vocabulary, ROWS)), memory(call.scratch) {
    words = memory.numbers(call.vocabulary * LD), linear = memory.numbers(L * CLASS_ROWS * LD);
    features = memory.numbers(most * LD), slopes = memory.numbers(most * LD), scale = memory.numbers(most);
    logits = memory.numbers(batch * LK), x = memory.numbers(most_here * LD), d_x = memory.numbers(most_here * LD);
    part = memory.numbers(most_here * LP), panels = memory.numbers(::panels(D, PART)), last_panels = memory.numbers(::panels(D, PART));
    place = memory.take<int32_t>(L * batch), here = memory.take<int32_t>(L * batch), different = memory.take<int32_t>(L);
    of_batch.lay_out(memory, call.vocabulary, most), of_place.lay_out(memory, most, most_here);
  }

  Number* weights(long l, long k) const { return linear + (l * CLASS_ROWS + k) * LD; }

  // Copies a trial's matrices into padded rows, and back.
  void begin(const Number* given_words, const Number* given_linear) const {
    for (long v = 0; v < call.vocabulary; v++) memcpy(words + v * LD, given_words + v * D, D * sizeof(Number));
    for (long k = 0; k < K; k++)
      for (long l = 0; l < L; l++) memcpy(weights(l, k), given_linear + (k * L + l) * D, D * sizeof(Number));
  }
  void end(Number* given_words, Number* given_linear) const {
    for (long v = 0; v < call.vocabulary; v++) memcpy(given_words + v * D, words + v * LD, D * sizeof(Number));
    for (long k = 0; k < K; k++)
      for (long l = 0; l < L; l++) memcpy(given_linear + (k * L + l) * D, weights(l, k), D * sizeof(Number));
  }

  // Takes one step of the trial whose matrices were copied; returns the sum of its sentences' losses.
  double take(const int32_t* sentences, const int64_t* order, long per_class, double rate, double& word_scale, double word_decay, double& linear_scale, double linear_decay, double* epoch) {
    read(sentences, order);
    embed(word_scale);
    memset(logits, 0, batch * LK * sizeof(Number));
    for (long l = 0; l < L; l++) {
      gather_features(l, linear_scale);
      each_part([&](auto n, long k) { forward<n.value>(l, k); });
    }
    double total = 0;
    for (long b = 0; b < batch; b++) {
      Number* row = logits + b * LK;
      epoch[1] += is_largest(row, order[b] / per_class);
      total += cross_entropy<K>(row, order[b] / per_class, batch);
    }
    epoch[0] += total, epoch[2] += batch;
    const Number scale_before = linear_scale;  // scale in the words' gradients
    word_scale *= 1 - rate * word_decay, linear_scale *= 1 - rate * linear_decay;
    memset(slopes, 0, up(of_batch.count, ROWS) * LD * sizeof(Number));
    for (long l = 0; l < L; l++) {
      gather_features(l, -rate / linear_scale);  // so that a product with them is a step
      each_part([&](auto n, long k) { backward<n.value>(l, k); });
      for (long i = 0; i < different[l]; i++)
        for (long j = 0; j < DV; j++) at(slopes + here[l * batch + i] * LD, j) += at(d_x + i * LD, j);
    }
    update_words(scale_before, -rate / word_scale);
    of_batch.forget();
    fold(words, call.vocabulary * LD, word_scale), fold(linear, L * CLASS_ROWS * LD, linear_scale);
    return total;
  }

  // Finds the distinct words of the batch and of each position.
  void read(const int32_t* sentences, const int64_t* order) {
    for (long l = 0; l < L; l++) {
      for (long b = 0; b < batch; b++) place[l * batch + b] = of_place(of_batch(sentences[order[b] * L + l]));
      different[l] = of_place.count;
      memcpy(here + l * batch, of_place.thing, of_place.count * sizeof(int32_t));
      of_place.forget();
    }
  }

  // Fills in the features of the batch's words, the input of the linear layer.
  void embed(double word_scale) const {
    for (long i = 0; i < of_batch.count; i += ROWS) {
      Vector v[ROWS][DV] = {};
      for (long r = 0; r < ROWS && i + r < of_batch.count; r++)
        for (long j = 0; j < DV; j++) v[r][j] = at(words + of_batch.thing[i + r] * LD, j) * Number(word_scale);
      if constexpr (NORM) *(Four*)(scale + i) = normalise<D>(v, call.ln_eps);
      for (long r = 0; r < ROWS; r++)
        for (long j = 0; j < DV; j++) at(features + (i + r) * LD, j) = v[r][j];
    }
  }

  // x <- features of the words at a position times a factor, padded with rows of 0 to a multiple of four.
  void gather_features(long l, double factor) const {
    for (long i = 0; i < different[l]; i++)
      for (long j = 0; j < DV; j++) at(x + i * LD, j) = at(features + here[l * batch + i] * LD, j) * Number(factor);
    for (long i = different[l]; i < up(different[l], ROWS); i++) memset(x + i * LD, 0, LD * sizeof(Number));
  }

  // use(n, k) for every n classes from k on.
  template <class Use> INLINE_MEMBER void each_part(Use use) const {
    for (long k = 0; k < WHOLE; k += PART) use(std::integral_constant<long, PART>(), k);
    if constexpr (WHOLE < K) use(std::integral_constant<long, K - WHOLE>(), WHOLE);
  }

  // Adds the contribution of the words at a position to the outputs of N classes.
  template <long N> void forward(long l, long k) const {
    Number* right = N == PART ? panels : last_panels;  // behind whose rows 0 stays
    transposed_to_panels(weights(l, k), LD, N, D, right);
    product<D, vectors(N)>(up(different[l], ROWS), D, {x, LD, 1}, panels_of(right, D), part, LP, ZEROS<LP>, nothing, nothing);
    for (long b = 0; b < batch; b++)
      for (long j = 0; j < vectors(N); j++) at(logits + b * LK + k, j) += at(part + place[l * batch + b] * LP, j);
  }

  // Adds the gradient from N classes to d_x of the words at a position, and updates the classes' weights. d_x starts at 0.
  template <long N> void backward(long l, long k) const {
    const long rows = up(different[l], ROWS);
    memset(part, 0, rows * LP * sizeof(Number));
    for (long b = 0; b < batch; b++)
      for (long j = 0; j < vectors(N); j++) at(part + place[l * batch + b] * LP, j) += at(logits + b * LK + k, j);
    product<N, DV>(rows, N, {part, LP, 1}, rows_of(weights(l, k), LD), d_x, LD, k ? nullptr : ZEROS<LD>, nothing, nothing);
    product<PART, DV>(up(N, ROWS), rows, {part, 1, LP}, rows_of(x, LD), weights(l, k), LD, nullptr, nothing, nothing);
  }

  static bool is_largest(const Number* row, long y) {  // or as large as others
    for (long k = 0; k < K; k++)
      if (row[k] > row[y]) return false;
    return true;
  }

  void update_words(Number linear_scale, Number factor) const {
    for (long i = 0; i < of_batch.count; i += ROWS) {
      Vector v[ROWS][DV];
      for (long r = 0; r < ROWS; r++)
        for (long j = 0; j < DV; j++) v[r][j] = at(slopes + (i + r) * LD, j) * linear_scale;
      if constexpr (NORM) normalise_backward<D>(v, features + i * LD, LD, *(Four*)(scale + i));
      for (long r = 0; r < ROWS && i + r < of_batch.count; r++)
        for (long j = 0; j < DV; j++) at(words + of_batch.thing[i + r] * LD, j) += v[r][j] * factor;
    }
  }

  static void fold(Number* stored, long count, double& scale) {
    if (!(scale < SMALLEST_SCALE)) return;
    for (long i = 0; i < count; i++) stored[i] *= Number(scale);
    scale = 1;
  }
};

extern "C" int64_t scratch_bytes(const Call* call) {
  Call nowhere = *call;
  nowhere.scratch = nullptr;
  return Words(nowhere).memory.end() - (char*)nullptr + 64;
}

// Takes `num_steps` steps of every trial; a diverged trial stops at the check that detects it.
extern "C" void run(const Call* given) {
  const Call& c = *given;
  Words words(c);
  const DenormalsFlushed flushed;
  for (long t = 0; t < c.num_trials; t++) {
    if (c.diverged_at[t] >= 0) continue;
    Number *embedding = c.words + t * c.vocabulary * D, *linear = c.linear + t * K * L * D;
    words.begin(embedding, linear);
    for (long s = 0; s < c.num_steps; s++) {
      const long at = s * c.num_trials + t, number = c.first_step + s;
      double* epoch = c.epoch + t * 3;
      if (c.begins[at]) epoch[0] = epoch[1] = epoch[2] = 0;
      c.loss[t] = words.take(c.sentences[t], c.order[at], c.per_class[t], c.rate[at], c.word_scale[t], c.word_decay[t], c.linear_scale[t], c.linear_decay[t], epoch) / c.batch;
      if ((number + 1) % c.look_every == 0 && !std::isfinite(c.loss[t])) {
        c.diverged_at[t] = number;
        break;
      }
    }
    words.end(embedding, linear);
  }
}
