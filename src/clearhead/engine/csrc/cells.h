// A rectangle of the map of each head: its weights, or its scores.
#pragma once
#include "received.h"

INLINE int64_t tiles_of(const Call *c) { return (c->i1 - c->i0 + QUERIES - 1) / QUERIES; }

static void cells_unit(Call *c, int64_t unit, ColumnRoom *room) {
  int64_t head = unit % (c->B * c->H), b = head / c->H, h = head % c->H, g = h / (c->H / c->G);
  int64_t i0 = c->i0 + unit / (c->B * c->H) % tiles_of(c) * QUERIES;
  int64_t first = c->j0 + unit / (c->B * c->H) / tiles_of(c) * c->per_unit * LANES;
  int64_t wide = c->j1 - c->j0, row0 = head * (c->i1 - c->i0) + i0 - c->i0;  // of the result
  REAL nothing = c->lse ? 0 : -INFINITY;
  Tile t;
  begin_tile(c, b, h, i0, c->i1, &t);
  Packed keys = {room->keys, 0};
  pack_tile_queries(c, &t, &room->queries);
  for (int64_t j0 = first; j0 < least(first + c->per_unit * LANES, c->j1); j0 += LANES) {
    Keys x = keys_from(b, g, j0, c->j1);
    Span span = span_of(&t, &x);
    REAL *to = (REAL *)c->cells + row0 * wide + (j0 - c->j0);
    if (span.from < span.to) {
      pack_key_lanes(c, &x, room->turned, &keys);
      score_crossed(c, &t, span, &x, room->queries, keys, room->s, NULL);
    }
    for (int i = 0; i < t.n; i++, to += wide) {
      REAL *row = room->s + i * LANES;
      if (i < span.from || i >= span.to) {
        for (int j = 0; j < x.n; j++) to[j] = nothing;
        continue;
      }
      REAL lse = c->lse ? ((const REAL *)c->lse)[row0 + i] : 0;
      if (lse != lse) {
        uint8_t shown[LANES];
        shown_to(c, b, &t.q[i], x.j0, x.n, shown);
        for (int j = 0; j < x.n; j++) row[j] = shown[j] ? NAN : 0;
      } else if (c->lse) {
        vec high = every(finite_or_0(lse)), log_p;
        vec low = every(((const REAL *)c->lse_low)[row0 + i]);
        for (int at = 0; at < x.n_vecs * W; at += W)
          store(row + at, weight_of(load(row + at), high, low, &log_p));
      }
      if (x.n == LANES)
        for (int at = 0; at < LANES; at += W) store(to + at, load(row + at));
      else memcpy(to, row, sizeof(REAL) * x.n);
    }
  }
}
