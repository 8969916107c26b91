// The step of all networks with generated kernels: calls of kernels in the order of a network's table.
#include "steps.h"
#include "generated.h"

// ---- A network's table, mirrored by tasks/native/table.py. Its arrays consist of int64 numbers and addresses ----

enum Base : int64_t { ARENA, THETA, STATE, CONSTANTS, ZERO_ROWS, START, NOTHING, NUM_BASES };  // START: zeros in the first tile, else null
struct Place { int64_t base, at; };  // `at` bytes behind the base
using Kernel = void (*)(Batch& batch, void* const* places);
struct Statement { Kernel kernel; int64_t first_place; };
struct Piece { int64_t rows, numbers, at, gradient, gradient_row, group; };  // gradient: bytes behind the arena's start
struct Table {
  int64_t samples, arena_bytes, num_places, num_prepared, num_cleared, num_tile, num_pieces;
  const char *constants, *zeros;
  const Place* places;
  const Statement* statements;  // at a step's start, at the start of its first tile, and of each tile
  const Piece* pieces;
};
static_assert(sizeof(Place) == 16 && sizeof(Statement) == 16 && sizeof(Piece) == 48, "as arrays of int64");
EXPORT_LAYOUT(table, Table, 1)

struct Generated : Step<Generated> {
  const Table& table;
  char* arena;
  void **in_first, **in_others;  // addresses of all places in a step's first tile, and in its other tiles
  const Number* resolved = nullptr;  // parameters of the trial whose addresses they are
  Batch no_batch = {};

  explicit Generated(const Call& call) : Step(call, call.table->samples), table(*call.table) {
    arena = memory.take<char>(table.arena_bytes);
    in_first = memory.take<void*>(table.num_places), in_others = memory.take<void*>(table.num_places);
  }
  void prepare() {
    if (resolved != trial.theta) resolve(in_first, table.zeros), resolve(in_others, nullptr);
    resolved = trial.theta;
    call_kernels(0, table.num_prepared, no_batch, in_first);
  }
  void resolve(void** addresses, const char* start) {
    const char* const bases[NUM_BASES] = {arena, (const char*)trial.theta, (const char*)trial.state, table.constants, table.zeros, start, nullptr};
    for (long i = 0; i < table.num_places; i++) addresses[i] = (void*)(bases[table.places[i].base] + table.places[i].at);
  }
  void call_kernels(long first, long count, Batch& batch, void* const* addresses) const {
    const Statement *statement = table.statements + first, *const end = statement + count;
    for (; statement != end; statement++) statement->kernel(batch, addresses + statement->first_place);
  }
  double tile(long row, long count, const int64_t* order, bool is_first, bool is_last) {
    Batch batch = {call.x, call.labels, order, row, count, call.batch, trial.correct, 0};
    if (is_first) call_kernels(table.num_prepared, table.num_cleared, batch, in_first);
    call_kernels(table.num_prepared + table.num_cleared, table.num_tile, batch, is_first ? in_first : in_others);
    return batch.loss;
  }
  template <class Use> void each_piece(Use use) {
    for (long i = 0; i < table.num_pieces; i++) {
      const Piece& piece = table.pieces[i];
      const Number* gradient = (const Number*)(arena + piece.gradient);
      for (long r = 0; r < piece.rows; r++) use(piece.numbers, piece.at + r * piece.numbers, gradient + r * piece.gradient_row, piece.group);
    }
  }
  template <class Use> void last_pieces(Use use) { each_piece(use); }
};

extern "C" int64_t scratch_bytes(const Call* call) { return scratch_bytes_of<Generated>(call); }
extern "C" void run(const Call* call) { run_steps<Generated>(*call); }
extern "C" void evaluate(const Call* call) { evaluate_all<Generated>(*call); }
