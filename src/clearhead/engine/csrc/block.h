// Which keys a query sees; and a block: LANES queries of one key head, each in a lane of its own.
#pragma once
#include "call.h"
#include "pack.h"

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t within(int64_t x, int64_t low, int64_t high) { return most(low, least(x, high)); }

// A query: the key position at which it stands, and the keys low:high that its position and the
// ends of its document leave it; 0:0 if those are none.
typedef struct {
  int64_t h, i, own, low, high, document;
} Query;

static Query query_of(const Call *c, int64_t b, int64_t h, int64_t i) {
  Query q = {h, i, i + c->offset[b], 0, c->S, 0};
  if (c->before >= 0) q.low = most(q.low, q.own - c->before);
  if (c->after >= 0) q.high = least(q.high, q.own + c->after + 1);
  if (c->document) {
    int64_t at = b * c->T + i;
    q.document = c->document[at];
    q.low = most(q.low, c->first[at]);
    q.high = least(q.high, c->last[at] + 1);
  }
  if (q.low >= q.high) q.low = q.high = 0;
  return q;
}

// Of several queries: the keys first:last outside of which none sees any, and those inside of which,
// by position, all see all.
typedef struct {
  int64_t first, last, all_from, all_to;
} Reach;

INLINE Reach no_reach(const Call *c) { return (Reach){c->S, 0, 0, c->S}; }

INLINE void reach_with(Reach *reach, const Query *q) {
  reach->all_from = most(reach->all_from, q->low);
  reach->all_to = least(reach->all_to, q->high);
  if (q->low < q->high) {
    reach->first = least(reach->first, q->low);
    reach->last = most(reach->last, q->high);
  }
}

typedef struct {
  int64_t b, g;
  int n, n_vecs;  // how many lanes are used, and how many vectors they fill
  Query q[LANES];
  Reach reach;
} Block;

// Query heads of a key head share its keys: short sequences of several heads share a block too.
enum { SHORT = LANES / 2 };

static int64_t blocks_per_key_head(const Call *c) {
  int64_t group = c->H / c->G;
  if (c->T <= SHORT) return (group * c->T + LANES - 1) / LANES;
  return group * ((c->T + LANES - 1) / LANES);
}

// Number n of a key head's blocks, the last queries first: those see most and take longest.
static void begin(const Call *c, int64_t b, int64_t g, int64_t n, Block *x) {
  int64_t group = c->H / c->G, h = g * group, i = 0;
  x->b = b;
  x->g = g;
  if (c->T <= SHORT) {
    h += n * LANES / c->T;
    i = n * LANES % c->T;
    x->n = (int)least(LANES, group * c->T - n * LANES);
  } else {
    int64_t per_head = (c->T + LANES - 1) / LANES;
    h += n % group;
    i = (per_head - 1 - n / group) * LANES;
    x->n = (int)least(LANES, c->T - i);
  }
  x->n_vecs = (x->n + W - 1) / W;
  x->reach = no_reach(c);
  for (int lane = 0; lane < LANES; lane++, i++) {
    if (lane >= x->n) {  // an idle lane sees all keys, and nobody looks at what it makes of them
      x->q[lane] = (Query){0, 0, 0, 0, c->S, 0};
      continue;
    }
    if (i == c->T) i = 0, h++;
    x->q[lane] = query_of(c, b, h, i);
    reach_with(&x->reach, &x->q[lane]);
  }
}

INLINE int64_t row_number(const Call *c, const Block *x, int lane) {  // of (B, H, T)
  return (x->b * c->H + x->q[lane].h) * c->T + x->q[lane].i;
}

INLINE int bias_hides(const char *at, int64_t dtype) {  // -inf, or the lowest number of its dtype
  switch (dtype) {
    case FLOAT32: return *(const float *)at <= -3.402823466e38f;
    case FLOAT64: return *(const double *)at <= -1.7976931348623157e308;
    case FLOAT16: return from_half(*(const uint16_t *)at) <= -65504.0f;
    default: return bits_to_float((uint32_t) * (const uint16_t *)at << 16) <= -3.3895314e38f;
  }
}

// Whether a query sees key j, all things considered.
static int sees(const Call *c, int64_t b, const Query *q, int64_t j) {
  if (j < q->low || j >= q->high) return 0;
  if (c->key_mask && !c->key_mask[b * c->S + j]) return 0;
  if (c->document && c->number[b * c->S + j] != q->document) return 0;
  if (c->mask.data && !at(&c->mask, b, q->h, q->i)[j * c->mask.strides[3]]) return 0;
  if (!c->bias.data) return 1;
  return !bias_hides(at(&c->bias, b, q->h, q->i) + j * c->bias.strides[3], c->bias.dtype);
}

// Which of the keys j0:j0 + n it sees, one byte each, and how many.
static int shown_to(const Call *c, int64_t b, const Query *q, int64_t j0, int n, uint8_t *shown) {
  int low = within(q->low - j0, 0, n), high = within(q->high - j0, 0, n), count = 0;
  for (int j = 0; j < n; j++) shown[j] = j >= low && j < high;
  if (c->key_mask)
    for (int j = low; j < high; j++) shown[j] &= c->key_mask[b * c->S + j0 + j] != 0;
  if (c->document)
    for (int j = low; j < high; j++) shown[j] &= c->number[b * c->S + j0 + j] == q->document;
  if (c->mask.data) {
    int64_t step = c->mask.strides[3];
    const char *row = at(&c->mask, b, q->h, q->i) + j0 * step;
    for (int j = low; j < high; j++) shown[j] &= row[j * step] != 0;
  }
  if (c->bias.data) {
    int64_t step = c->bias.strides[3];
    const char *row = at(&c->bias, b, q->h, q->i) + j0 * step;
    for (int j = low; j < high; j++) shown[j] &= !bias_hides(row + j * step, c->bias.dtype);
  }
  for (int j = 0; j < n; j++) count += shown[j];
  return count;
}

// Whether more than position hides any key of j0:j0 + n from any of several queries.
static int anything_hidden(
    const Call *c, int64_t b, const Query *q, int n_queries, int64_t j0, int n) {
  if (c->bias.data) return 1;
  if (c->key_mask && memchr(c->key_mask + b * c->S + j0, 0, n)) return 1;
  if (c->document) {
    for (int i = 1; i < n_queries; i++)
      if (q[i].document != q[0].document) return 1;
    for (int j = 0; j < n; j++)
      if (c->number[b * c->S + j0 + j] != q[0].document) return 1;
  }
  if (c->mask.data) {
    int64_t step = c->mask.strides[3];
    const char *before = NULL;
    for (int i = 0; i < n_queries; i++) {
      const char *row = at(&c->mask, b, q[i].h, q[i].i) + j0 * step;
      if (row == before) continue;
      before = row;
      if (step == 0 ? !*row : step == 1 ? memchr(row, 0, n) != NULL : 1) return 1;
    }
  }
  return 0;
}

// Whether none of several queries sees any of the keys j0:j0 + n. Where some do, the first of them
// that is looked at nearly always tells.
static int nothing_shown(
    const Call *c, int64_t b, const Query *q, int n_queries, int64_t j0, int n) {
  if (!c->mask.data && !c->bias.data && !c->key_mask && !c->document) return 0;
  uint8_t shown[n];
  for (int i = 0; i < n_queries; i++)
    if (shown_to(c, b, &q[i], j0, n, shown)) return 0;
  return 1;
}
