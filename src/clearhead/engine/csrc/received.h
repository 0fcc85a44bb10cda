// What each key receives: the sum of a column's weights over the real queries.
#pragma once
#include "crossed.h"

// A thread's room for what is done with keys in the lanes.
typedef struct {
  Packed queries;     // a tile's queries
  REAL *s;            // its scores
  REAL *keys;         // of each block, (D, LANES)
  REAL *turned;       // one of them being turned
} ColumnRoom;

static void received_unit(Call *c, int64_t unit, ColumnRoom *room) {
  int64_t heads = c->B * c->H, row = unit % heads, b = row / c->H, h = row % c->H;
  int64_t g = h / (c->H / c->G), first = unit / heads * c->per_unit * LANES;
  int n = (int)least(c->per_unit, (c->S - first + LANES - 1) / LANES);
  Packed keys[n];
  double sums[n][LANES];
  memset(sums, 0, sizeof sums);
  for (int r = 0; r < n; r++) {
    Keys x = keys_from(b, g, first + r * LANES, c->S);
    keys[r].at = room->keys + r * lanes_size(c->D);
    pack_key_lanes(c, &x, room->turned, &keys[r]);
  }
  const REAL *lse = (const REAL *)c->lse + row * c->T, *low = (const REAL *)c->lse_low + row * c->T;
  for (int64_t i0 = 0; i0 < c->T; i0 += QUERIES) {
    Tile t;
    begin_tile(c, b, h, i0, c->T, &t);
    if (t.reach.last <= first || t.reach.first >= first + (int64_t)n * LANES) continue;
    pack_tile_queries(c, &t, &room->queries);
    for (int r = 0; r < n; r++) {
      Keys x = keys_from(b, g, first + r * LANES, c->S);
      Span span = span_of(&t, &x);
      int m = span.to - span.from;
      if (!m || nothing_shown(c, b, t.q + span.from, m, x.j0, x.n)) continue;
      score_crossed(c, &t, span, &x, room->queries, keys[r], room->s, NULL);
      for (int i = span.from; i < span.to; i++) {  // a spoiled row spoils all that it sees
        if (lse[i0 + i] == lse[i0 + i] || (c->query_mask && !c->query_mask[b * c->T + i0 + i])) continue;
        uint8_t shown[LANES];
        shown_to(c, b, &t.q[i], x.j0, x.n, shown);
        for (int j = 0; j < x.n; j++) sums[r][j] += shown[j] ? NAN : 0;
      }
      for (int at = 0; at < x.n_vecs * W; at += W) {
        vec sum = {0}, log_p;
        for (int i = span.from; i < span.to; i++) {
          if (c->query_mask && !c->query_mask[b * c->T + i0 + i]) continue;
          if (lse[i0 + i] != lse[i0 + i]) continue;
          vec high = every(finite_or_0(lse[i0 + i])), lows = every(low[i0 + i]);
          sum += weight_of(load(room->s + i * LANES + at), high, lows, &log_p);
        }
        for (int j = 0; j < W; j++) sums[r][at + j] += sum[j];
      }
    }
  }
  REAL *to = (REAL *)c->received + row * c->S;
  for (int r = 0; r < n; r++) {
    Keys x = keys_from(b, g, first + r * LANES, c->S);
    for (int j = 0; j < x.n; j++) to[x.j0 + j] = sums[r][j];
  }
}
