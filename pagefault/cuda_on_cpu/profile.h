// profile.h - what the warps of a kernel ask of memory.  With -fsanitize-coverage the lanes of a warp go
// in step, from one basic block of the code to the next, as on a GPU.  The n-th accesses of its lanes at
// one place in the code, since they last came to one point, are one request.  (All that runs in between is
// QUIET and calls nothing that isn't, or it would itself be seen.)
#pragma once
#if defined(__clang__) ? __clang_major__ < 13 : __GNUC__ < 12
#error "a profile needs g++ 12 or newer, or clang++ 13 or newer: name one in the environment variable CXX"
#endif

namespace cpu {
constexpr unsigned SITES = 2048, AHEAD = 64;  // AHEAD: accesses that a lane may be ahead of others

struct Site {  // a place in the code, where it accesses one kind of memory, in pieces of one size
  size_t pc, how, shared, size;
  size_t requests, bytes, units, best;  // units: sectors, or wavefronts of shared memory; at best so many
  // since the lanes were at one point:
  unsigned lanes[AHEAD];  // which lanes came so often
  uint8_t count[32];      // how often a lane came
  bool active;            // any lane came
  Region* region;
};
static Site sites[SITES], *active[SITES];
static size_t asked[SITES][AHEAD][32];    // by site and lane: the addresses
static Region variables;                  // those that are `__device__`
static unsigned site_count, active_count;
static unsigned turn, stopped;  // the lanes whose turn it was, and which of them have come to a next block
static Thread* first;           // of these
static bool together;           // the warp's lanes were at one point, and come to one point

static bool launch_begins(size_t) {
  memset(sites, 0, sizeof sites);
  site_count = active_count = 0;
  variables = {image(), image_size(), 1, size_t(1) << 40, nullptr, false};
  return true;
}

// The lanes that go on: those deepest in calls, and of them those first in the code.
UNSEEN static unsigned in_step(Thread* warp, int lanes) {
  Thread* best = nullptr;
  unsigned chosen = 0, ready = 0;
  for (Thread* t = warp; t < warp + lanes; ++t) {
    if (t->state != READY) continue;
    ready |= 1u << (t - warp);
    if (!best || t->depth > best->depth || (t->depth == best->depth && t->pc < best->pc)) best = t, chosen = 0;
    if (t->depth == best->depth && t->pc == best->pc) chosen |= 1u << (t - warp);
  }
  together = chosen == ready, turn = chosen, stopped = 0, first = nullptr;
  return chosen;
}

// Sectors of 32 bytes that a request touches.
QUIET inline unsigned sectors(const size_t* at, size_t size, unsigned lanes) {
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
QUIET inline unsigned wavefronts(const size_t* at, size_t size, unsigned lanes) {
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

// The warp's lanes have come to one point: what they asked for on the way there becomes requests.
UNSEEN static void tally() {
  while (active_count) {
    Site* s = active[--active_count];
    s->active = false, memset(s->count, 0, sizeof s->count);
    unsigned at_once = s->size <= 4 ? 32 : s->size <= 8 ? 16 : 8;  // lanes that shared memory serves
    for (unsigned k = 0; k < AHEAD && s->lanes[k]; s->lanes[k++] = 0) {
      unsigned lanes = s->lanes[k];
      ++s->requests, s->bytes += s->size * __builtin_popcount(lanes);
      if (!s->shared) s->units += sectors(asked[s - sites][k], s->size, lanes);
      else for (unsigned first = 0; first < 32; first += at_once) {
        unsigned served = lanes >> first & unsigned((1ull << at_once) - 1);
        s->units += wavefronts(asked[s - sites][k] + first, s->size, served), s->best += served != 0;
      }
    }
  }
}

// The site of an access: `s`, or one of the following that has the same hash.
UNSEEN static Site* find_site(size_t pc, char* a, size_t size, How how, Site* s) {
  Region* r = find(a, size);
  if (!r && in_image(a)) r = &variables;
  if (!r) return outside(a, size, how, (void*)pc), nullptr;
  while (s->pc && (s->pc != pc || s->how != how || s->size != size || s->shared != r->shared))
    s = s == sites + SITES - 1 ? sites : s + 1;
  if (!s->pc && ++site_count == SITES) return fail("more than %u places in the code access memory", SITES - 1), nullptr;
  s->pc = pc, s->how = how, s->size = size, s->shared = r->shared, s->region = r;
  return s;
}
QUIET inline void touch(char* a, size_t size, How how, void* place) {
  if (!counts(a)) return;
  size_t pc = size_t(place), lane = size_t(self - threads) % 32;
  for (size_t piece; size; a += piece, size -= piece) {
    piece = size < 16 ? size : 16;
    Site* s = sites + ((pc * 4 + how) * 0x9e3779b97f4a7c15 >> 53);
    if (s->pc != pc || s->how != how || s->size != piece || !inside(*s->region, a, piece)) s = find_site(pc, a, piece, how, s);
    if (!s) return;
    if (!s->active) s->active = true, active[active_count++] = s;
    unsigned k = s->count[lane]++;
    asked[s - sites][k][lane] = s->region->at + (a - s->region->begin), s->lanes[k] |= 1u << lane;
    if (k == AHEAD - 1) leave();  // until the other lanes have come so far
  }
}
UNSEEN static void* move(void* to, const void* from, size_t size) {
  return SEE(READ, from, size), SEE(WRITE, to, size), memcpy(to, from, size);
}
}  // namespace cpu


extern "C" UNSEEN void __sanitizer_cov_trace_pc() {  // at the start of each basic block
  using namespace cpu;
  char* here = (char*)__builtin_frame_address(0);
  if (size_t(here - stacks) >= stacks_size) return;
  Thread *me = self, *warp = threads + (me - threads) / 32 * 32;
  me->pc = size_t(__builtin_return_address(0)), me->depth = me->stack_end - here;
  if (!first) first = me;
  together = together && me->pc == first->pc && me->depth == first->depth;
  stopped |= 1u << (me - warp);
  if (!next_lanes && together && stopped == turn) tally(), next_lanes = turn, stopped = 0, first = nullptr;
  if (!next_lanes) return fibers::swap(me->context, host);
  int lane = backwards ? 31 - __builtin_clz(next_lanes) : __builtin_ctz(next_lanes);
  next_lanes &= ~(1u << lane);
  if (warp + lane == me) return;
  self = warp + lane, threadIdx = self->index;
  fibers::swap(me->context, self->context);  // straight to the next lane
}
EXPORT const size_t report_shape[] = {cpu::SITES, sizeof(cpu::Site)};
EXPORT const void* report() { return cpu::sites; }
