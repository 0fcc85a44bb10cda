// The kernel for one instruction set and one kind of number: built seven times, by the files beside
// it. Those say REAL, INT and NAME, and switch the instruction set on.
#include <math.h>

#include "forward.h"

#include "backward.h"
#include "cells.h"
#include "kernel.h"
#include "peak.h"

// Blocks that share a packed tile, and bytes of theirs; and steps of vectors in a unit, which are about
// a fifth of a second, for Ctrl-C is heard between units.
enum { TOGETHER = 16 + SPLIT * 16, NEAR = 1 << 19, LONG = 1 << 29 };

// The steps of vectors that a block takes, if it sees all: a sum of products for each cell, and the
// rest of what is done to it.
static int64_t steps_of_block(const Call *c, int64_t size) {
  int64_t others = c->S, rest = 32;
  if (c->kind == RECEIVED) others = c->T;
  if (c->kind == KEY_GRADIENTS) others = c->T * (c->H / c->G);
  if (c->kind == CELLS) others = QUERIES;
  if (c->mask.data || c->bias.data || c->key_mask || c->document) rest += 4 * W;  // cell by cell
  return most(1, others * VECS * (size + rest));
}

// Cuts a call into units of work: some blocks of a head each, the longest first. How many blocks
// share a unit changes no bit of what any of them computes.
static void cut(Call *c, int64_t threads) {
  int64_t heads = c->B * c->G, blocks = blocks_per_key_head(c), size = c->D + c->Dv;
  if (c->kind == RECEIVED) heads = c->B * c->H;
  if (c->kind == RECEIVED || c->kind == KEY_GRADIENTS) blocks = (c->S + LANES - 1) / LANES;
  if (c->kind == CELLS) {
    heads = c->B * c->H * tiles_of(c);
    blocks = (c->j1 - c->j0 + LANES - 1) / LANES;
  }
  if (c->kind == QUERY_GRADIENT || c->kind == KEY_GRADIENTS) size *= 2;
  int64_t n = least(TOGETHER, NEAR / (int64_t)(sizeof(REAL) * LANES * size));
  n = least(n, LONG / steps_of_block(c, size));
  // Two for each thread, if there are no more: of causal rows the longest goes with the shortest then, so that
  // all end together, and few keys are packed twice.
  c->per_unit = most(1, least(n, blocks * heads / (threads * 2)));
  c->units = heads * ((blocks + c->per_unit - 1) / c->per_unit);
}

// A build that watches addresses leaves gaps between the parts of a room, which nobody may touch.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define WATCHED
#endif
#if defined(WATCHED)
#include <sanitizer/asan_interface.h>
enum { GAP = 256 };
#else
#define __asan_poison_memory_region(at, bytes) ((void)0)
#define __asan_unpoison_memory_region(at, bytes) ((void)0)
enum { GAP = 0 };
#endif

// Memory in one piece, in parts that begin on a line of the cache. Where there is none yet, the same
// calls only say how much it takes.
typedef struct {
  char *base;
  size_t used;
} Space;

static void *part(Space *space, size_t bytes) {
  char *at = space->base ? space->base + space->used : NULL;
  size_t taken = (bytes + 63) / 64 * 64 + GAP;
  if (at) __asan_poison_memory_region(at + bytes, taken - bytes);
  space->used += taken;
  return at;
}

static REAL *numbers(Space *space, int64_t n) { return part(space, n * sizeof(REAL)); }

typedef union {
  Room forward;
  ColumnRoom column;
  QueryRoom query;
  KeyRoom key;
} AnyRoom;

static void lay_out(const Call *c, Space *space, AnyRoom *room) {
  int64_t D = c->D, Dv = c->Dv, n = c->per_unit, tile = KEYS + GROUP, tall = QUERIES + GROUP;
  switch (c->kind) {
    case FORWARD: {
      Room *r = &room->forward;
      r->keys.at = numbers(space, rows_size(KEYS, D));
      r->values.at = numbers(space, columns_size(KEYS, Dv));
      r->s[0] = r->s[1] = numbers(space, tile * LANES);
      if (SPLIT) r->s[1] = numbers(space, tile * LANES);
      for (int turn = 0; turn < 2; turn++) r->weights[turn] = numbers(space, SPLIT * lanes_size(KEYS));
      r->turned = numbers(space, SPLIT * D * LANES);
      r->made = numbers(space, SPLIT * LANES * whole_groups(Dv));
      r->rows = part(space, n * sizeof(Rows));
      for (int64_t i = 0; i < n; i++) {
        REAL *q = numbers(space, lanes_size(D)), *o = numbers(space, LANES * whole_groups(Dv));
        if (space->base) r->rows[i].q.at = q, r->rows[i].o = o;
      }
      break;
    }
    case CELLS:
    case RECEIVED: {
      ColumnRoom *r = &room->column;
      r->queries.at = numbers(space, rows_size(QUERIES, D));
      r->s = numbers(space, tall * LANES);
      r->keys = numbers(space, n * lanes_size(D));
      r->turned = numbers(space, SPLIT * D * LANES);
      break;
    }
    case QUERY_GRADIENT: {
      QueryRoom *r = &room->query;
      r->keys.at = numbers(space, rows_size(KEYS, D));
      r->columns.at = numbers(space, columns_size(KEYS, D));
      r->values.at = numbers(space, rows_size(most(KEYS, SPLIT * GROUP), Dv));
      r->s = numbers(space, tile * LANES);
      r->d = numbers(space, tile * LANES);
      r->slope = numbers(space, c->softcap > 0 ? tile * LANES : 0);
      r->gradients = numbers(space, SPLIT * lanes_size(KEYS));
      r->turned = numbers(space, LANES * most(D, Dv));
      r->rows = part(space, n * sizeof(QueryRows));
      for (int64_t i = 0; i < n; i++) {
        REAL *q = numbers(space, lanes_size(D)), *g = numbers(space, lanes_size(Dv));
        REAL *dq = numbers(space, LANES * whole_groups(D));
        if (space->base) r->rows[i].q.at = q, r->rows[i].g.at = g, r->rows[i].dq = dq;
      }
      break;
    }
    default: {
      KeyRoom *r = &room->key;
      r->queries.at = numbers(space, rows_size(QUERIES, D));
      r->query_columns.at = numbers(space, columns_size(QUERIES, D));
      r->g.at = numbers(space, rows_size(QUERIES, Dv));
      r->g_columns.at = numbers(space, columns_size(QUERIES, Dv));
      r->s = numbers(space, tall * LANES);
      r->d = numbers(space, tall * LANES);
      r->slope = numbers(space, c->softcap > 0 ? tall * LANES : 0);
      r->weights = numbers(space, SPLIT * lanes_size(QUERIES));
      r->gradients = numbers(space, SPLIT * lanes_size(QUERIES));
      r->turned = numbers(space, SPLIT * LANES * most(D, Dv));
      r->columns = part(space, n * sizeof(KeyColumns));
      for (int64_t i = 0; i < n; i++) {
        REAL *k = numbers(space, lanes_size(D)), *v = numbers(space, lanes_size(Dv));
        REAL *dk = numbers(space, LANES * whole_groups(D)), *dv = numbers(space, LANES * whole_groups(Dv));
        if (space->base) r->columns[i] = (KeyColumns){{0, 0, 0, 0, 0}, {k, 0}, {v, 0}, dk, dv};
      }
    }
  }
}

// Whether scores are made of pairs of bfloat16, as the machine can multiply them. It takes subnormal
// numbers for 0, which a huge scale would show. Gradients are made of the same scores, to the bit: else
// exp(s - lse) is far off where scores are large.
static int comes_in_pairs(const Call *c) {
#if defined(PAIRS) || defined(AMX)
  return c->q.dtype == BFLOAT16 && (SPLIT || c->D % 2 == 0) && fabs(c->scale) <= 65536;
#else
  (void)c;
  return 0;
#endif
}

static void plan(Call *c, int64_t threads) {
  Space space = {NULL, 0};
  AnyRoom room;
  c->pairs = comes_in_pairs(c);
  c->depth = c->pairs && !SPLIT ? c->D / 2 : c->D;
  cut(c, threads);
  lay_out(c, &space, &room);
  c->room_size = (int64_t)space.used;
}

// Does units of a call until none is left, or no time is: one at least, however late it is.
static void work(Call *c) {
  Space space = {c->room + __atomic_fetch_add(&c->entered, 1, __ATOMIC_RELAXED) * c->room_size, 0};
  AnyRoom room;
  lay_out(c, &space, &room);
#if defined(AMX)
  begin_tiles();
#endif
  do {
    int64_t unit = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
    if (unit >= c->units) break;
    if (c->kind == FORWARD) forward_unit(c, unit, &room.forward);
    else if (c->kind == RECEIVED) received_unit(c, unit, &room.column);
    else if (c->kind == CELLS) cells_unit(c, unit, &room.column);
    else if (c->kind == QUERY_GRADIENT) query_unit(c, unit, &room.query);
    else key_unit(c, unit, &room.key);
  } while (now() < c->until);
#if defined(AMX)
  end_tiles();
#endif
  __asan_unpoison_memory_region(space.base, c->room_size);  // it goes back to torch
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

const Kernel NAME = {plan, work, exp_of, multiply_adds};

#if defined(__clang__) && (defined(AVX512) || defined(AVX2))
#pragma clang attribute pop
#endif
