// Training steps of the transformers L-T11 to L-T22, post-LN and pre-LN (tasks/networks/transformer.py), a tile of whole samples at a
// time.
//
// Built with NUMBER, WIDTH, POSITIONS, CLASSES, ATTENTION_LAYERS and MLP_LAYERS (1 or 2), PRE_NORM, and PATCH (numbers of a patch) or
// VOCABULARY (of tokens; the other is 0). A trial's parameters: W_e, W_p, of each block the maps of its attention (QK and VO, or Q,
// K, V and O) and of its MLP, and the last map, perhaps without b. A sample takes PLACES rows; rows behind its positions have no effect.
// Only the last position is read out, so the last block's queries and MLP have only the last ROWS rows of a sample.
#include "steps.h"

constexpr long D = WIDTH, S = POSITIONS, K = CLASSES, I = PATCH ? PATCH : 1;
constexpr bool PRE = PRE_NORM, TWO_MAPS = ATTENTION_LAYERS == 2, TWO = MLP_LAYERS == 2, TOKENS = VOCABULARY > 0;
constexpr long PLACES = up(S, ROWS), AT_TWICE = TILE / PLACES > 1 ? TILE / PLACES : 1, M = AT_TWICE * PLACES;  // M: rows of a tile
constexpr long DV = vectors(D), SV = vectors(S), LD = padded(D), LI = padded(I), LK = padded(K), LS = padded(S);
constexpr long VALUE = TWO_MAPS ? 3 : 1, MLP = TWO_MAPS ? 4 : 2, BLOCK_MAPS = MLP + MLP_LAYERS;  // numbers of maps in a block
enum Group { HIDDEN, LAST };

// A block's activations of a tile for the backward pass.
struct Kept {
  long places;  // rows of a sample from the queries on
  Number *normal, *query_in, *query, *key, *value_in, *value, *attention, *middle, *inner;  // inputs and outputs of its maps; attention [PLACES, LS] per sample
  Number *scale, *middle_scale;                                                  // 1 / std of the LayerNorms of `normal` and `middle`
  Mask* slope;
};

struct Transformer : Step<Transformer> {
  static constexpr long SAMPLES = AT_TWICE;
  const long depth, places_at;
  Linear<D, I> embedding;  // of patches
  std::vector<Linear<D, D>> maps;
  Linear<K, D> last;
  std::vector<Kept> kept;
  Number *x, *h, *u, *start, *start_scale, *z, *gradient, *lower, *d_query, *d_key, *d_value, *scores, *panels_S;  // of a tile
  Number *read, *read_scale, *d_read, *q;                                                                            // of last positions
  Number *causal, *places, *d_places, *d_places_as_kept, *table, *d_table, *d_table_as_kept;

  explicit Transformer(const Call& call)
      : Step(call), depth(call.depth), places_at(TOKENS ? D * VOCABULARY : D * I), maps(depth * BLOCK_MAPS), kept(depth) {
    auto rows = [&](long row) { return memory.numbers(M * row); };
    x = rows(LI), h = rows(LD), u = rows(LD), start = rows(LD), start_scale = rows(1), z = rows(LD), gradient = rows(LD), lower = rows(LD);
    d_query = rows(LD), d_key = rows(LD), d_value = rows(LD), scores = memory.numbers(PLACES * LS), panels_S = memory.numbers(panels(D, S));
    const long samples = up(SAMPLES, ROWS);
    read = memory.numbers(samples * LD), read_scale = memory.numbers(samples), d_read = memory.numbers(samples * LD), q = memory.numbers(samples * LK);
    causal = memory.numbers(PLACES * LS), places = memory.numbers(PLACES * LD), d_places = memory.numbers(PLACES * LD);
    d_places_as_kept = memory.numbers(D * S);
    table = memory.numbers(VOCABULARY * LD), d_table = memory.numbers(VOCABULARY * LD), d_table_as_kept = memory.numbers(VOCABULARY * D);
    for (auto& block : kept) {
      const bool is_short = &block == &kept.back() && PLACES > ROWS;
      Number* normal = rows(LD);
      block = {is_short ? ROWS : PLACES, normal, is_short ? rows(LD) : normal, rows(LD), TWO_MAPS ? rows(LD) : nullptr, TWO_MAPS ? rows(LD) : nullptr, rows(LD), rows(LS), rows(LD), TWO ? rows(LD) : nullptr, rows(1), rows(1), memory.take<Mask>(TWO ? 0 : M * DV)};
    }
    if (!TOKENS) embedding.lay_out(memory, 0, -1, false);
    long end = places_at + D * S;
    for (unsigned long map = 0; map < maps.size(); map++) {
      maps[map].lay_out(memory, end, HIDDEN, long(map) % BLOCK_MAPS >= MLP);
      end = maps[map].end();
    }
    last.lay_out(memory, end, LAST, call.last_bias);
  }

  Linear<D, D>& map(long block, long number) { return maps[block * BLOCK_MAPS + number]; }
  const Number* keys(long block) const { return TWO_MAPS ? kept[block].key : kept[block].normal; }

  template <class Use> void last_pieces(Use use) const { last.each_piece(use); }
  template <class Use> void each_piece(Use use) const {
    if constexpr (TOKENS) use(D * VOCABULARY, 0, d_table_as_kept, -1);
    else embedding.each_piece(use);
    use(D * S, places_at, d_places_as_kept, -1);
    for (auto& map : maps) map.each_piece(use);
    last_pieces(use);
  }

  void prepare() {
    for (long i = 0; i < PLACES; i++)
      for (long j = 0; j < S; j++) causal[i * LS + j] = j <= i ? 1 : 0;
    transpose(trial.theta + places_at, D, S, S, places, LD);
    memset(d_places, 0, PLACES * LD * sizeof(Number));
    if constexpr (TOKENS) {
      transpose(trial.theta, D, VOCABULARY, VOCABULARY, table, LD);
      memset(d_table, 0, VOCABULARY * LD * sizeof(Number));
    } else {
      embedding.begin_step(), embedding.prepare_forward(trial.theta);
    }
    for (auto& map : maps) map.begin_step(), map.prepare(trial.theta);
    last.begin_step(), last.prepare(trial.theta);
  }

  double tile(long row, long count, const int64_t* order, bool is_first, bool is_last) {
    embed(row, count, order);
    for (long block = 0; block < depth; block++) {
      attend(count, block);
      transform(count, block);
    }
    const double total = loss(count, call.labels + (order ? 0 : row), order, is_first);
    for (long block = depth - 1; block >= 0; block--) {
      transform_backward(count, block, is_first, is_last);
      attend_backward(count, block, is_first, is_last);
    }
    embed_backward(row, count, order, is_first, is_last);
    return total;
  }

  const int64_t* tokens(long sample, long row, const int64_t* order) const {
    return (const int64_t*)call.x + (order ? order[sample] : row + sample) * S;
  }

  // h <- embedded samples, normalised for pre-LN.
  void embed(long row, long count, const int64_t* order) {
    for (long sample = 0; sample < count; sample++)
      for (long i = 0; i < PLACES; i++) {
        const long r = sample * PLACES + i, place = i < S ? i : S - 1;  // rows behind the last position repeat it, see `gather`
        if constexpr (TOKENS) memcpy(h + r * LD, table + tokens(sample, row, order)[place] * LD, LD * sizeof(Number));
        else memcpy(x + r * LI, (const Number*)call.x + ((order ? order[sample] : row + sample) * S + place) * I, I * sizeof(Number));
      }
    if constexpr (!TOKENS) embedding.forward(count * PLACES, x, h, nothing);
    for (long i = 0; i < count * PLACES; i += ROWS) {
      Vector v[ROWS][DV];
      load<D>(v, h + i * LD);
      for (long r = 0; r < ROWS; r++)
        for (long j = 0; j < DV; j++) v[r][j] += at(places + (i + r) % PLACES * LD, j);
      if constexpr (PRE) {
        *(Four*)(start_scale + i) = normalise<D>(v, ln_eps);
        store<D>(v, start + i * LD);
      }
      store<D>(v, h + i * LD);
    }
  }

  // u <- stream after a block's attention; the MLP reads `middle`.
  void attend(long count, long block) {
    const Kept& to = kept[block];
    const long m = count * PLACES, skipped = PLACES - to.places;  // skipped: rows of a sample that are not needed
    for (long i = 0; i < m; i += ROWS) normalised(i, h, to.normal, to.scale);
    if (skipped)
      for (long sample = 0; sample < count; sample++)
        memcpy(to.query_in + sample * ROWS * LD, to.normal + (sample * PLACES + skipped) * LD, ROWS * LD * sizeof(Number));
    map(block, 0).forward(count * to.places, to.query_in, to.query, nothing);
    if constexpr (TWO_MAPS) {
      map(block, 1).forward(m, to.normal, to.key, nothing);
      map(block, 2).forward(m, to.normal, to.value_in, nothing);
    }
    map(block, VALUE).forward(m, TWO_MAPS ? to.value_in : to.normal, to.value, nothing);
    for (long sample = 0; sample < count; sample++) {
      const long all = sample * PLACES, first = sample * to.places;  // first rows of the sample
      const Number* before = (PRE ? h : to.normal) + (all + skipped) * LD;
      Number* weights = to.attention + first * LS;
      transposed_to_panels(keys(block) + all * LD, LD, S, D, panels_S);
      product<D, SV>(to.places, D, {to.query + first * LD, LD, 1}, panels_of(panels_S, D), weights, LS, ZEROS<LS>, nothing, [&](long i) {
        for (long r = i; r < i + ROWS; r++) softmax<S>(weights + r * LS, causal + (skipped + r) * LS, factor());
      });
      product<S, DV>(to.places, S, {weights, LS, 1}, rows_of(to.value + all * LD, LD), u + first * LD, LD, ZEROS<LD>, nothing, [&](long i) {
        for (long r = i; r < i + ROWS; r++)
          for (long j = 0; j < DV; j++) at(u + (first + r) * LD, j) += at(before + r * LD, j);
        normalised(first + i, u, to.middle, to.middle_scale);
      });
    }
  }

  // h <- stream after a block.
  void transform(long count, long block) {
    const Kept& to = kept[block];
    const long m = count * to.places;
    const Number *in = to.middle, *before = PRE ? u : to.middle;
    if constexpr (TWO) {
      map(block, MLP).forward(m, in, to.inner, [&](long i) {
        for (long r = i; r < i + ROWS; r++)
          for (long j = 0; j < DV; j++) at(to.inner + r * LD, j) = only(positive(at(to.inner + r * LD, j)), at(to.inner + r * LD, j));
      });
      in = to.inner;
    }
    map(block, BLOCK_MAPS - 1).forward(m, in, h, [&](long i) {
      for (long r = i; r < i + ROWS; r++)
        for (long j = 0; j < DV; j++) {
          Vector added = at(h + r * LD, j);
          if constexpr (!TWO) added = only(to.slope[r * DV + j] = positive(added), added);
          at(h + r * LD, j) = at(before + r * LD, j) + added;
        }
    });
  }

  // Row of a sample's last position after the last block.
  static long last_row(long sample) { return sample * ROWS + S - 1 - (PLACES - ROWS); }

  // Computes the output at the last positions; `gradient` <- gradient of h.
  double loss(long count, const int64_t* labels, const int64_t* order, bool is_first) {
    const long m = up(count, ROWS);
    for (long sample = 0; sample < m; sample++)
      memcpy(read + sample * LD, h + last_row(sample < count ? sample : count - 1) * LD, LD * sizeof(Number));
    for (long i = 0; i < m; i += ROWS) normalised(i, read, read, read_scale);
    double total = 0;
    last.forward(m, read, q, [&](long i) {
      for (long r = i; r < i + ROWS; r++) {
        if (r >= count) {
          memset(q + r * LK, 0, LK * sizeof(Number));
          continue;
        }
        const long y = labels[order ? order[r] : r];
        total += call.is_mse ? squared_error<K>(q + r * LK, y, call.batch) : cross_entropy<K>(q + r * LK, y, call.batch);
        for (long j = 0; j < vectors(K); j++) at(last.d_bias, j) += at(q + r * LK, j);
      }
    });
    add_gradient(last, m, q, read, is_first, false);
    memset(gradient, 0, count * ROWS * LD * sizeof(Number));
    last.backward(m, q, d_read, ZEROS<LD>, nothing, [&](long i) {
      Vector v[ROWS][DV];
      load<D>(v, d_read + i * LD);
      normalise_backward<D>(v, read + i * LD, LD, *(Four*)(read_scale + i));
      for (long r = i; r < i + ROWS && r < count; r++)
        for (long j = 0; j < DV; j++) at(gradient + last_row(r) * LD, j) = v[r - i][j];
    });
    return total;
  }

  // Replaces `gradient` after a block by the gradient after its attention.
  void transform_backward(long count, long block, bool is_first, bool is_last) {
    const Kept& of = kept[block];
    const long m = count * of.places;
    auto &first = map(block, MLP), &second = map(block, BLOCK_MAPS - 1);
    if constexpr (TWO) {
      second.backward(
          m, gradient, z, ZEROS<LD>,
          [&](long i) {
            Vector v[ROWS][DV];
            load<D>(v, gradient + i * LD);
            second.add_bias_gradient(v);
          },
          [&](long i) {
            Vector v[ROWS][DV];
            for (long r = 0; r < ROWS; r++)
              for (long j = 0; j < DV; j++) v[r][j] = only(positive(at(of.inner + (i + r) * LD, j)), at(z + (i + r) * LD, j));
            store<D>(v, z + i * LD);
            first.add_bias_gradient(v);
          });
      add_gradient(second, m, gradient, of.inner, is_first, is_last);
    }
    Number* below = PRE ? lower : gradient;
    first.backward(
        m, z, below, PRE ? ZEROS<LD> : nullptr,
        [&](long i) {
          if constexpr (!TWO) {
            Vector v[ROWS][DV];
            for (long r = 0; r < ROWS; r++)
              for (long j = 0; j < DV; j++) v[r][j] = only(of.slope[(i + r) * DV + j], at(gradient + (i + r) * LD, j));
            store<D>(v, z + i * LD);
            first.add_bias_gradient(v);
          }
        },
        [&](long i) { through_norm(i, below, of.middle, of.middle_scale); });
    add_gradient(first, m, z, of.middle, is_first, is_last);
  }

  // Replaces `gradient` after a block's attention by the gradient of the block's input.
  void attend_backward(long count, long block, bool is_first, bool is_last) {
    const Kept& of = kept[block];
    const long m = count * PLACES;
    for (long sample = 0; sample < count; sample++) {
      const long all = sample * PLACES, first = sample * of.places;
      const Number *weights = of.attention + first * LS, *d_out = gradient + first * LD;
      transposed_to_panels(of.value + all * LD, LD, S, D, panels_S);
      product<D, SV>(of.places, D, {d_out, LD, 1}, panels_of(panels_S, D), scores, LS, ZEROS<LS>, nothing, [&](long i) {
        for (long r = i; r < i + ROWS; r++) softmax_backward<S>(scores + r * LS, weights + r * LS, factor());
      });
      product<PLACES, DV>(PLACES, of.places, {weights, 1, LS}, rows_of(d_out, LD), d_value + all * LD, LD, ZEROS<LD>, nothing, nothing);
      product<S, DV>(of.places, S, {scores, LS, 1}, rows_of(keys(block) + all * LD, LD), d_query + first * LD, LD, ZEROS<LD>, nothing, nothing);
      product<PLACES, DV>(PLACES, of.places, {scores, 1, LS}, rows_of(of.query + first * LD, LD), d_key + all * LD, LD, ZEROS<LD>, nothing, nothing);
    }
    Number* below = lower;
    if constexpr (TWO_MAPS) {
      map(block, 1).backward(m, d_key, below, ZEROS<LD>, nothing, nothing);
      add_gradient(map(block, 1), m, d_key, of.normal, is_first, is_last);
      map(block, VALUE).backward(m, d_value, z, ZEROS<LD>, nothing, nothing);
      add_gradient(map(block, VALUE), m, d_value, of.value_in, is_first, is_last);
    } else {
      below = d_key;
    }
    const Number* d_inner = TWO_MAPS ? z : d_value;  // of the map that reads `normal` for the values
    auto &query = map(block, 0), &value = map(block, TWO_MAPS ? 2 : VALUE);
    if (of.places == PLACES) {
      query.backward(m, d_query, below, nullptr, nothing, nothing);
    } else {
      query.backward(count * of.places, d_query, u, ZEROS<LD>, nothing, nothing);
      memset(h, 0, m * LD * sizeof(Number));
      for (long row = 0; row < count * ROWS; row++) {
        const long there = row / ROWS * PLACES + PLACES - ROWS + row % ROWS;
        for (long j = 0; j < DV; j++) at(below + there * LD, j) += at(u + row * LD, j);
        memcpy(h + there * LD, gradient + row * LD, LD * sizeof(Number));
      }
      std::swap(h, gradient);
    }
    add_gradient(query, count * of.places, d_query, of.query_in, is_first, is_last);
    value.backward(m, d_inner, below, nullptr, nothing, [&](long i) {
      if constexpr (!PRE)
        for (long r = i; r < i + ROWS; r++)
          for (long j = 0; j < DV; j++) at(below + r * LD, j) += at(gradient + r * LD, j);
      through_norm(i, below, of.normal, of.scale);
    });
    add_gradient(value, m, d_inner, of.normal, is_first, is_last);
  }

  void embed_backward(long row, long count, const int64_t* order, bool is_first, bool is_last) {
    for (long i = 0; i < count * PLACES; i += ROWS) {
      Vector v[ROWS][DV];
      load<D>(v, gradient + i * LD);
      if constexpr (PRE) {
        normalise_backward<D>(v, start + i * LD, LD, *(Four*)(start_scale + i));
        store<D>(v, gradient + i * LD);
      }
      for (long r = 0; r < ROWS; r++)
        for (long j = 0; j < DV; j++) at(d_places + (i + r) % PLACES * LD, j) += v[r][j];
    }
    if constexpr (TOKENS) {
      for (long sample = 0; sample < count; sample++)
        for (long place = 0; place < S; place++)
          for (long j = 0; j < DV; j++) at(d_table + tokens(sample, row, order)[place] * LD, j) += at(gradient + (sample * PLACES + place) * LD, j);
    } else {
      add_gradient(embedding, count * PLACES, gradient, x, is_first, is_last);
    }
    if (!is_last) return;
    transpose(d_places, S, D, LD, d_places_as_kept, S);
    if constexpr (TOKENS) transpose(d_table, VOCABULARY, D, LD, d_table_as_kept, VOCABULARY);
    if (keeps) return;
    apply(D * S, places_at, d_places_as_kept, -1);
    if constexpr (TOKENS) apply(D * VOCABULARY, 0, d_table_as_kept, -1);
  }

  static Number factor() { return 1 / std::sqrt(Number(D)); }

  // Rows i to i + 3 of `normal` <- LayerNorm of those of `from`.
  INLINE_MEMBER void normalised(long i, const Number* from, Number* normal, Number* scale) const {
    Vector v[ROWS][DV];
    load<D>(v, from + i * LD);
    *(Four*)(scale + i) = normalise<D>(v, ln_eps);
    store<D>(v, normal + i * LD);
  }

  // Rows i to i + 3 of `gradient` <- gradient of a LayerNorm's input, `below` being that of its output; pre-LN adds it.
  INLINE_MEMBER void through_norm(long i, const Number* below, const Number* normal, const Number* scale) {
    Vector v[ROWS][DV];
    load<D>(v, below + i * LD);
    normalise_backward<D>(v, normal + i * LD, LD, *(const Four*)(scale + i));
    for (long r = 0; r < ROWS; r++)
      for (long j = 0; j < DV; j++) at(gradient + (i + r) * LD, j) = PRE ? at(gradient + (i + r) * LD, j) + v[r][j] : v[r][j];
  }
};

extern "C" int64_t scratch_bytes(const Call* call) { return scratch_bytes_of<Transformer>(call); }
extern "C" void run(const Call* call) { run_steps<Transformer>(*call); }
