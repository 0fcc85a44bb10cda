// The kernel for one instruction set and one kind of number: built six times, by the files beside
// it. Those say REAL, INT and NAME, and switch the instruction set on.
#include <math.h>
#include <stdlib.h>

#include "forward.h"
#include "kernel.h"

enum { TOGETHER = 8, NEAR = 1 << 18 };  // blocks that share a packed tile, and bytes of theirs

static int64_t units(Call *c, int64_t threads) {
  int64_t per_head = blocks_per_key_head(c), heads = c->B * c->G;
  int64_t size = sizeof(REAL) * LANES * (c->D + c->Dv);
  int64_t n = least(TOGETHER, NEAR / size);
  n = most(1, least(n, per_head * heads / (threads * 4)));  // so that all threads end together
  c->per_unit = n;
  c->units = heads * ((per_head + n - 1) / n);
  return c->units;
}

// Room for a thread, in one piece: a packed tile, its weights, and the rows of several blocks.
static void *room_for(const Call *c, Room *room) {
  size_t columns = (c->Dv + GROUP - 1) / GROUP * GROUP, keys = KEYS + GROUP;
  size_t sizes[] = {keys * c->D, KEYS * columns, keys * LANES, LANES * c->D, LANES * columns};
  size_t total = 0;
  for (int i = 0; i < 5; i++) {
    sizes[i] = (sizes[i] * sizeof(REAL) + 63) / 64 * 64;
    total += sizes[i] * (i < 3 ? 1 : c->per_unit);
  }
  char *space = aligned_alloc(64, total + (sizeof(Rows) * c->per_unit + 63) / 64 * 64);
  if (!space) return NULL;
  char *next = space;
  room->keys = (REAL *)next;
  room->values = (REAL *)(next += sizes[0]);
  room->s = (REAL *)(next += sizes[1]);
  next += sizes[2];
  room->rows = (Rows *)(space + total);
  for (int64_t r = 0; r < c->per_unit; r++, next += sizes[3] + sizes[4]) {
    room->rows[r].q = (REAL *)next;
    room->rows[r].o = (REAL *)(next + sizes[3]);
  }
  return space;
}

static int work(Call *c) {
  Room room;
  void *space = room_for(c, &room);
  if (!space) return -1;
  do {  // one at least, however late it is
    int64_t unit = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
    if (unit >= c->units) break;
    forward_unit(c, unit, &room);
  } while (now() < c->until);
  free(space);
  return 0;
}

static void exp_of(const void *from, void *to, int64_t n) {
  const REAL *x = from;
  REAL *y = to;
  for (int64_t i = 0; i < n; i += W) {
    REAL some[W];
    int few = (int)least(W, n - i);
    for (int j = 0; j < W; j++) some[j] = j < few ? x[i + j] : 0;
    store(some, exp_(greatest(every(LOWEST), load(some))));
    memcpy(y + i, some, few * sizeof(REAL));
  }
}

const Kernel NAME = {units, work, exp_of};
