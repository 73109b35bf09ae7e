// races.h - who touched the same bytes before.  For each element of the launch's memory a cell remembers
// its last write and its last reads, and when they were: time advances at barriers and at the collectives
// of warps, which are what orders two accesses.
#pragma once
#include <signal.h>

namespace cpu {
typedef uint32_t Time;  // 0 is never
enum What { RACE, UNWRITTEN };
constexpr unsigned SITES = 4096, FINDINGS = 64;

struct Site { size_t pc, how; };  // in the code
struct Access {
  Time when;
  uint16_t thread, site : 12, bytes : 4;  // bytes: which ones of the cell's
};
struct Cell {  // of up to four bytes
  Access write, plain; // the last write, and the last one that wasn't atomic
  Access read, other;  // the last read, and the last one by another warp
  uint32_t lanes;      // of the last read's warp: which ones joined it
};
static_assert(sizeof(Cell) == 36, "as in races.py");
struct Finding {
  size_t what, shared, offset, itemsize, pc[2], how[2], block[2], thread[2];
  char name[64];
};

static Site sites[SITES];
static Finding findings[FINDINGS];
static unsigned site_count, finding_count;
static Region variables;           // those that are `__device__`
static Cell* cells[64 + 128 + 1];  // by region: of statics, of regions, of variables
static Time now, block_began, barrier_passed, *block_times;
static Time warp_met[32];     // when all live lanes of a warp met,
static Time known[1024][32];  // and up to when a thread knows what each lane of its warp did
static unsigned block;        // counted from 1
static bool strict;           // of the collectives only __syncwarp() orders memory

static void forget() {
  for (Cell*& c : cells) free(c), c = nullptr;
  free(block_times), block_times = nullptr;
}
static bool launch_begins(size_t blocks) {
  forget();
  memset(sites, 0, sizeof sites), memset(warp_met, 0, sizeof warp_met), memset(known, 0, sizeof known);
  memset(findings, 0, sizeof findings);
  now = block_began = barrier_passed = block = site_count = finding_count = 0;
  variables = {image(), image_size(), 1, 0, "", false};
  block_times = (Time*)calloc(blocks + 1, sizeof(Time));
  return block_times;
}

CPU_UNSEEN static void threads_met() { barrier_passed = ++now; }
CPU_UNSEEN static void block_begins() { threads_met(), block_times[++block] = block_began = now; }
// Lanes of a warp met at a collective: now each knows what any of them knew.
CPU_UNSEEN static void lanes_met(Thread* warp, unsigned group, unsigned live) {
  Time(*k)[32] = known + (warp - threads), best;
  ++now;
  if (strict && !warp[__builtin_ctz(group)].fence) return;
  if (group == live) return void(warp_met[(warp - threads) / 32] = now);
  for (int of = 0; of < 32; ++of) {
    best = group >> of & 1 ? now : 0;
    for (int i = 0; i < 32; ++i) if (group >> i & 1 && k[i][of] > best) best = k[i][of];
    for (int i = 0; i < 32; ++i) if (group >> i & 1) k[i][of] = best;
  }
}

// Whether an access comes before what the running thread does now.
CPU_SMALL bool ordered(Access a, Region* r) {
  int me = int(self - threads);
  if (a.when < block_began) return !a.when || r->shared;  // (each thread block has its own shared memory)
  if (a.when < barrier_passed || a.thread == me) return true;
  return a.thread / 32 == me / 32 && (a.when < warp_met[me / 32] || a.when < known[me][a.thread % 32]);
}

CPU_SMALL size_t number(Region* r) {
  return r == &variables ? 192 : r >= statics && r < statics + 64 ? r - statics : 64 + (r - regions);
}
CPU_UNSEEN static void found(What what, Region* r, size_t offset, Access a, Access b) {
  Site *p = sites + a.site, *q = sites + b.site;
  for (Finding* f = findings; f < findings + finding_count; ++f)
    if (f->what == what && f->pc[0] == p->pc && f->pc[1] == q->pc) return;
  if (finding_count == FINDINGS) return;
  size_t of = block;
  while (of > 1 && block_times[of] > a.when) --of;
  Finding* f = findings + finding_count++;
  *f = {what, r->shared, offset, r->itemsize, {p->pc, q->pc}, {p->how, q->how}, {of - 1, block - 1}, {a.thread, b.thread}, ""};
  snprintf(f->name, sizeof f->name, "%s", r->name ? r->name : "");
}

CPU_SMALL bool race(Access a, Access mine, Region* r) { return a.bytes & mine.bytes && !ordered(a, r); }
CPU_UNSEEN static void check(Region* r, Cell* c, size_t offset, Access mine) {
  How how = How(sites[mine.site].how);
  bool last_atomic = c->write.when && sites[c->write.site].how == ATOMIC, both_atomic = how == ATOMIC && last_atomic;
  bool after = ordered(c->write, r);  // the last write
  if (race(c->plain, mine, r)) found(RACE, r, offset, c->plain, mine);
  if (last_atomic && how != ATOMIC && race(c->write, mine, r)) found(RACE, r, offset, c->write, mine);
  if (how == READ) {
    bool near = c->read.when >= block_began && c->read.thread / 32 == mine.thread / 32;
    if (!near && (r->shared || !c->other.when || c->other.when >= block_began)) c->other = c->read;
    c->lanes = (near && c->read.when == now ? c->lanes : 0) | 1u << mine.thread % 32;
    c->read = mine;
    return;
  }
  if (race(c->other, mine, r)) found(RACE, r, offset, c->other, mine);
  for (; c->lanes; c->lanes &= c->lanes - 1) {
    c->read.thread = c->read.thread / 32 * 32 + __builtin_ctz(c->lanes);
    if (race(c->read, mine, r)) found(RACE, r, offset, c->read, mine);
  }
  c->read = c->other = {};  // (what is in no order with an earlier write of ours would be lost)
  if (how == WRITE) c->plain = mine;
  if (both_atomic ? after : how != ATOMIC || c->write.when != now || c->write.thread != mine.thread) c->write = mine;
}

CPU_SMALL unsigned find_site(size_t pc, How how) {
  unsigned i = (pc * 4 + how) * 0x9e3779b97f4a7c15 >> 52;
  while (sites[i].pc && (sites[i].pc != pc || sites[i].how != how)) i = (i + 1) % SITES;
  if (!sites[i].pc && ++site_count == SITES) fail("more than %u sites in the code access memory", SITES - 1);
  sites[i] = {pc, how};
  return i;
}
// (Not inlined: it would be in six hooks.)
CPU_UNSEEN static void touch(char* a, size_t size, How how, void* pc) {
  if (!counts(a)) return;
  Region* r = find(a, size);
  if (!r && in_variables(a, size)) r = &variables;
  if (!r) return outside(a, size, how, pc);
  size_t grain = r->shared ? 1 : r->itemsize < 4 ? r->itemsize : 4, offset = a - r->begin;
  Cell*& of = cells[number(r)];
  if (!of) {
    busy = true, of = (Cell*)calloc(r->size / grain + 1, sizeof(Cell)), busy = false;
    if (late) raise(late);  // the signal that came meanwhile
    if (!of) return fail("no memory to remember who touched %s", r->name ? r->name : "the dynamic shared memory");
  }
  Access mine = {now, uint16_t(self - threads), uint16_t(find_site(size_t(pc), how)), 0};
  size_t first = offset / grain, last = (offset + size - 1) / grain;
  bool written = !r->shared || how == WRITE;  // at least in part: a structure may have bytes that nobody writes
  for (size_t i = first; i <= last && !written; ++i) written = of[i].write.when >= block_began;
  if (!written) found(UNWRITTEN, r, offset, mine, mine);
  for (size_t i = first; i <= last; ++i) {
    size_t begin = i * grain < offset ? offset - i * grain : 0, end = offset + size - i * grain;
    mine.bytes = (1 << (end < grain ? end : grain)) - (1 << begin);
    check(r, of + i, offset, mine);
  }
}
}  // namespace cpu
EXPORT const size_t report_shape[] = {cpu::FINDINGS, sizeof(cpu::Finding)};
EXPORT const void* report() { return cpu::findings; }
EXPORT void only_fences(bool only) { cpu::strict = only; }
EXPORT void forget() { cpu::forget(); }
