// profile.h - what the warps of a kernel ask of memory.  Each thread writes down which basic blocks of the
// code it comes to (-fsanitize-coverage) and which addresses it accesses there.  Then the lanes of a warp
// are played in step, as a GPU runs them: those go on that are deepest in calls, and of them those first
// in the code.  What they access in one block together is one request.
//
// (All that runs here is CPU_QUIET and calls nothing that isn't, or it would be seen itself.)
#pragma once
#include <stddef.h>
#if defined(__clang__) ? __clang_major__ < 13 : __GNUC__ < 12
#error "a profile needs g++ 12 or newer, or clang++ 13 or newer: name one in the environment variable CXX"
#endif

namespace cpu {
constexpr unsigned SITES = 2048, EVENTS = 1000;  // (1024 would let the lanes' traces share cache sets)

struct Site {  // a place in the code, where it accesses one kind of memory, in pieces of one size
  size_t pc, how, shared, size;
  size_t requests, bytes, units, best;  // units: sectors, or wavefronts of shared memory; at best so many
  size_t key;                           // of pc, how and size
  char* begin;                          // where the last access went: to one of `room` addresses from here on,
  size_t room, at;                      // at which begins what lies there on a GPU
};
// A block that a thread came to: where on the stack (the deeper, the less) and in the code, so that the least
// goes on first.  Or an access: the site, and the address on a GPU.
typedef uint64_t Event;
constexpr Event ACCESS = 1ull << 63, END = ACCESS - 1, LOW = (1ull << 48) - 1;
struct Trace {
  unsigned size, last_block;  // events written down, and which of them is the last block
  Event events[EVENTS + 1];
};
static Site sites[SITES];
static Trace traces[32];                  // of the running warp's lanes,
static Event *next_event[32], block[32];  // what of it is to be played next, and the block that was played last
static Region variables;                  // those that are `__device__`
static unsigned site_count;

static bool launch_begins(size_t) {
  memset(sites, 0, sizeof sites);
  for (Trace& t : traces) t.size = 0;
  for (int i = 0; i < 1024; ++i) threads[i].trace = traces + i % 32;
  variables = {image(), image_size(), 1, size_t(1) << 40, nullptr, false};
  site_count = 0;
  return true;
}

// Sectors of 32 bytes that a request touches.
CPU_SMALL unsigned sectors(const size_t* at, size_t size, unsigned lanes) {
  size_t seen[64], least = ~size_t(0), most = 0;
  unsigned n = 0;
  for (; lanes; lanes &= lanes - 1) {
    size_t first = at[__builtin_ctz(lanes)];
    for (size_t sector = first / 32; sector <= (first + size - 1) / 32; ++sector) {
      if (n && sector == seen[n - 1]) continue;
      unsigned i = 0;
      if (sector >= least && sector <= most) while (i < n && seen[i] != sector) ++i;
      else i = n;
      if (i < n) continue;
      seen[n++] = sector;
      if (sector < least) least = sector;
      if (sector > most) most = sector;
    }
  }
  return n;
}
// Wavefronts of shared memory: one gives each of the 32 banks' words to all lanes that ask for it.
CPU_SMALL unsigned wavefronts(const size_t* at, size_t size, unsigned lanes) {
  size_t seen[64];
  unsigned n = 0, most = 0;
  uint8_t bank[32] = {};
  for (; lanes; lanes &= lanes - 1) {
    size_t first = at[__builtin_ctz(lanes)];
    for (size_t word = first / 4; word <= (first + size - 1) / 4; ++word) {
      unsigned i = n;
      while (i && seen[i - 1] != word) --i;
      if (i) continue;
      seen[n++] = word;
      if (++bank[word % 32] > most) most = bank[word % 32];
    }
  }
  return most;
}

// One access of each of some lanes, at one site.
CPU_SMALL void request(Site& s, const size_t* at, unsigned lanes) {
  ++s.requests, s.bytes += s.size * __builtin_popcount(lanes);
  if (!s.shared) return void(s.units += sectors(at, s.size, lanes));
  unsigned at_once = s.size <= 4 ? 32 : s.size <= 8 ? 16 : 8;  // lanes that shared memory serves
  for (unsigned first = 0; first < 32; first += at_once) {
    unsigned served = lanes >> first & unsigned((1ull << at_once) - 1);
    s.units += wavefronts(at + first, s.size, served), s.best += served != 0;
  }
}
// The accesses of some lanes in the block that they are in.
CPU_SMALL void play_block(unsigned lanes) {
  size_t at[32];
  while (lanes == ~0u) {  // the quick way, as long as all do the same
    Event first = *next_event[0], different = 0;
#pragma GCC unroll 8
    for (int i = 0; i < 32; ++i) at[i] = *next_event[i] & LOW, different |= *next_event[i] ^ first;
    if (different & ~LOW) break;
    if (!(first & ACCESS)) return;
#pragma GCC unroll 8
    for (int i = 0; i < 32; ++i) ++next_event[i];
    request(sites[(first & ~ACCESS) >> 48], at, lanes);
  }
  while (lanes) {
    Event site = 0;
    unsigned together = 0;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
      unsigned lane = __builtin_ctz(rest);
      Event e = *next_event[lane];
      if (!(e & ACCESS)) lanes &= ~(1u << lane);
      else if (!together || (e & ~LOW) == site)
        site = e & ~LOW, at[lane] = e & LOW, together |= 1u << lane, ++next_event[lane];
    }
    if (together) request(sites[(site & ~ACCESS) >> 48], at, together);
  }
}
// The lanes that go on, and in which block.
CPU_SMALL unsigned choose(int lanes, unsigned full, Event& where) {
  Event different = 0;
  where = *next_event[0];
  for (int i = 1; i < lanes; ++i) different |= *next_event[i] ^ where;
  if (!different && where < END) return ~0u >> (32 - lanes);  // all of them, in the same
  unsigned chosen = 0;
  where = END;
  for (int i = 0; i < lanes; ++i) {
    Event b = *next_event[i];
    if (b & ACCESS || (b == END && full >> i & 1)) b = block[i];
    if (b < where) where = b, chosen = 0;
    if (b == where) chosen |= 1u << i;
  }
  return where == END ? 0 : chosen;
}
// Play what the lanes of a warp wrote down, as far as it is known what each of them does.
CPU_UNSEEN static void count_requests(int lanes) {
  unsigned full = 0;  // these have more to tell
  for (int i = 0; i < lanes; ++i) {
    Trace& t = traces[i];
    next_event[i] = t.events, t.events[t.size] = END, full |= unsigned(t.size == EVENTS) << i;
  }
  Event where;
  while (unsigned chosen = choose(lanes, full, where)) {
    bool more = false;  // may be to come in the block
    for (unsigned rest = chosen & full; rest; rest &= rest - 1) {
      unsigned i = __builtin_ctz(rest), done = next_event[i] - traces[i].events;
      more = more || (done && done >= traces[i].last_block);
    }
    if (more) break;
    for (int i = 0; i < lanes; ++i)
      if (chosen >> i & 1) block[i] = where, next_event[i] += *next_event[i] == where;
    play_block(chosen);
  }
  for (int i = 0; i < lanes; ++i) {  // keep the rest
    Trace& t = traces[i];
    unsigned done = next_event[i] - t.events;
    memmove(t.events, next_event[i], (t.size - done) * sizeof(Event));
    t.size -= done, t.last_block = t.last_block > done ? t.last_block - done : 0;
  }
}

// The site of an access: `s`, or one of the following that has the same hash; null if there is nothing to count.
CPU_UNSEEN static Site* find_site(Site* s, size_t key, char* a, size_t size, How how, void* pc) {
  if (!counts(a)) return nullptr;
  Region* r = find(a, size);
  if (!r && in_variables(a, size)) r = &variables;
  if (!r) return outside(a, size, how, pc), nullptr;
  while (s->key && (s->key != key || s->shared != r->shared)) s = s == sites + SITES - 1 ? sites : s + 1;
  if (!s->key && ++site_count == SITES) return fail("more than %u places in the code access memory", SITES - 1), nullptr;
  s->pc = size_t(pc), s->how = how, s->size = size, s->shared = r->shared;
  s->key = key, s->begin = r->begin, s->room = r->size - size + 1, s->at = r->at;
  return s;
}
CPU_SMALL void piece(char* a, size_t size, How how, void* pc) {
  size_t key = size_t(pc) << 7 | how << 5 | size;
  Site* s = sites + (key * 0x9e3779b97f4a7c15 >> 53);
  if ((s->key != key || size_t(a - s->begin) >= s->room) && !(s = find_site(s, key, a, size, how, pc))) return;
  Trace& t = *self->trace;
  if (!t.size) t.events[t.size++] = self->block;  // after a barrier a block goes on
  t.events[t.size++] = ACCESS | Event(s - sites) << 48 | (s->at + (a - s->begin));
  while (t.size == EVENTS) leave();
}
CPU_SMALL void touch_vector(char* a, size_t size, How how, void* pc) {
  for (; size > 16; a += 16, size -= 16) piece(a, 16, how, pc);
  piece(a, size, how, pc);
}
// A structure is moved in pieces that are aligned for sure: members of four bytes, as most have.
CPU_SMALL void touch(char* a, size_t size, How how, void* pc) {
  if (size > 8)
    for (; size > 4; a += 4, size -= 4) piece(a, 4, how, pc);
  piece(a, size, how, pc);
}
}  // namespace cpu

extern "C" CPU_UNSEEN void __sanitizer_cov_trace_pc() {  // at the start of each basic block
  using namespace cpu;
  char* here = (char*)__builtin_frame_address(0);
  if (size_t(here - stacks) >= stacks_size) return;
  Trace& t = *self->trace;
  self->block = (0xfff - Event(self->stack_end - here) / 16) << 48 | Event(__builtin_return_address(0));
  t.last_block = t.size, t.events[t.size++] = self->block;
  while (t.size == EVENTS) leave();
}
EXPORT const size_t report_shape[] = {cpu::SITES, sizeof(cpu::Site)};
EXPORT const void* report() { return cpu::sites; }
