// A block: LANES queries of one key head, each in a lane of its own, and which keys they see.
#pragma once
#include "call.h"
#include "pack.h"

typedef struct {
  int64_t b, g;
  int n, n_vecs;             // how many lanes are used, and how many vectors they fill
  int64_t h[LANES], i[LANES];  // the query of each lane
  int64_t own[LANES];        // the key position at which it stands
  int64_t low[LANES], high[LANES];  // the keys low:high that position and document leave it
  int64_t first, last;       // the keys first:last outside of which no lane sees any
  int64_t all_from, all_to;  // the keys inside of which, by position, every lane sees all
  int64_t document[LANES];
} Block;

// Query heads of a key head share its keys: short sequences of several heads share a block too.
enum { SHORT = LANES / 2 };

static int64_t blocks_per_key_head(const Call *c) {
  int64_t group = c->H / c->G;
  if (c->T <= SHORT) return (group * c->T + LANES - 1) / LANES;
  return group * ((c->T + LANES - 1) / LANES);
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

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
  x->first = x->all_to = c->S;
  x->last = x->all_from = 0;
  for (int lane = 0; lane < LANES; lane++, i++) {
    if (lane >= x->n) {  // an idle lane sees all keys, and nobody looks at what it makes of them
      x->h[lane] = x->i[lane] = x->own[lane] = x->low[lane] = 0;
      x->high[lane] = c->S;
      continue;
    }
    if (i == c->T) i = 0, h++;
    int64_t own = i + c->offset[b], low = 0, high = c->S;
    if (c->before >= 0) low = most(low, own - c->before);
    if (c->after >= 0) high = least(high, own + c->after + 1);
    if (c->document) {
      int64_t at = b * c->T + i;
      x->document[lane] = c->document[at];
      low = most(low, c->first[at]);
      high = least(high, c->last[at] + 1);
    }
    if (low >= high) low = high = 0;
    x->h[lane] = h;
    x->i[lane] = i;
    x->own[lane] = own;
    x->low[lane] = low;
    x->high[lane] = high;
    x->all_from = most(x->all_from, low);
    x->all_to = least(x->all_to, high);
    if (low < high) {
      x->first = least(x->first, low);
      x->last = most(x->last, high);
    }
  }
  if (x->first > x->last) x->first = x->last = 0;
}

INLINE int bias_hides(const char *at, int64_t dtype) {  // -inf, or the lowest number of its dtype
  switch (dtype) {
    case FLOAT32: return *(const float *)at <= -3.402823466e38f;
    case FLOAT64: return *(const double *)at <= -1.7976931348623157e308;
    case FLOAT16: return from_half(*(const uint16_t *)at) <= -65504.0f;
    default: return bits_to_float((uint32_t) * (const uint16_t *)at << 16) <= -3.3895314e38f;
  }
}

// Whether a lane sees key j, all things considered.
static int sees(const Call *c, const Block *x, int lane, int64_t j) {
  if (j < x->low[lane] || j >= x->high[lane]) return 0;
  if (c->key_mask && !c->key_mask[x->b * c->S + j]) return 0;
  if (c->document && c->number[x->b * c->S + j] != x->document[lane]) return 0;
  if (c->mask.data && !at(&c->mask, x->b, x->h[lane], x->i[lane])[j * c->mask.strides[3]]) return 0;
  if (c->bias.data) {
    const char *bias = at(&c->bias, x->b, x->h[lane], x->i[lane]) + j * c->bias.strides[3];
    return !bias_hides(bias, c->bias.dtype);
  }
  return 1;
}

// Whether more than positions hides a key of j0:j1 from a lane.
static int anything_hidden(const Call *c, const Block *x, int64_t j0, int64_t j1) {
  int64_t n = j1 - j0;
  if (c->bias.data) return 1;
  if (c->key_mask && memchr(c->key_mask + x->b * c->S + j0, 0, n)) return 1;
  if (c->document) {
    for (int lane = 1; lane < x->n; lane++)
      if (x->document[lane] != x->document[0]) return 1;
    for (int64_t j = j0; j < j1; j++)
      if (c->number[x->b * c->S + j] != x->document[0]) return 1;
  }
  if (c->mask.data) {
    int64_t step = c->mask.strides[3];
    const char *before = NULL;
    for (int lane = 0; lane < x->n; lane++) {
      const char *row = at(&c->mask, x->b, x->h[lane], x->i[lane]) + j0 * step;
      if (row == before) continue;
      before = row;
      if (step == 0 ? !*row : step == 1 ? memchr(row, 0, n) != NULL : 1) return 1;
    }
  }
  return 0;
}
