// Counts races of the threads of a block that g++ runs, from the accesses that it reports with -fsanitize=thread.
//
// Between two barriers, no thread may write what another thread reads or writes. From its begin until it is waited for, no thread
// may write a copy's source, or read or write its target.
struct Accesses {
  int written_in, read_in;  // numbers of the last rounds from barrier to barrier
  short writer, reader;
  short copies_from, copies_to;  // that are not waited for
};
static struct {
  uintptr_t number;
  Accesses of[256];  // to four bytes each
} pages[1 << 14];
static int64_t num_races;
UNTRACED static Accesses& accesses(uintptr_t at) {
  uintptr_t i = at / 256 * 0x9E3779B97F4A7C15 >> 50;
  while (pages[i].number && pages[i].number != at / 256) i = (i + 1) % (1 << 14);
  pages[i].number = at / 256;
  return pages[i].of[at % 256];
}
extern "C" int64_t count_races() { return num_races; }
UNTRACED static void access(const void* p, uintptr_t bytes, bool writes) {
  const int own = threads.running + threads.lane, several = -1;
  if ((uintptr_t)p - (uintptr_t)stacks < sizeof stacks) return;  // numbers of a thread, or of a warp in its first thread's place
  for (uintptr_t at = (uintptr_t)p / 4; at <= ((uintptr_t)p + bytes - 1) / 4; at++) {
    Accesses& a = accesses(at);
    const bool is_written = a.written_in == threads.round && a.writer != own, is_read = a.read_in == threads.round && a.reader != own;
    num_races += is_written || a.copies_to || (writes && (is_read || a.copies_from));
    if (writes) a.written_in = threads.round, a.writer = own;
    else a.reader = is_read ? several : own, a.read_in = threads.round;
  }
}
UNTRACED static void add_copy(const Copy& copy, int change) {
  const uintptr_t from = (uintptr_t)copy.from / 4, to = (uintptr_t)copy.to / 4;
  for (uintptr_t i = 0; i < copy.count * sizeof(Number) / 4; i++) accesses(from + i).copies_from += change, accesses(to + i).copies_to += change;
}
UNTRACED static void begin_copy(const Copy& copy) {
  access(copy.from, copy.count * sizeof(Number), false), access(copy.to, copy.count * sizeof(Number), true);
  add_copy(copy, 1);
}
UNTRACED static void end_copy(const Copy& copy) {
  add_copy(copy, -1);
  access(copy.from, copy.count * sizeof(Number), false), access(copy.to, copy.count * sizeof(Number), true);
}
#define ACCESSES(bytes)                                                          \
  void __tsan_read##bytes(void* p) { access(p, bytes, false); }                  \
  void __tsan_write##bytes(void* p) { access(p, bytes, true); }                  \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false); }        \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true); }
extern "C" {
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(void* p, uintptr_t bytes) { access(p, bytes, false); }
void __tsan_write_range(void* p, uintptr_t bytes) { access(p, bytes, true); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
