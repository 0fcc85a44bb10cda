// One call: what comes in, what goes out, and the work that is left. native.py has the same list.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const char *data;
  int64_t strides[4];  // in bytes, for b, h, i and the last axis; 0 where it is broadcast
  int64_t dtype;       // of Dtype
} Array;

enum Dtype { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, BOOL, TWO_OF_BFLOAT16 };  // the last: pack.h

// What a call is to do. All but the first need its rows, lse and lse_low.
enum Kind { FORWARD, RECEIVED, QUERY_GRADIENT, KEY_GRADIENTS, CELLS };

typedef struct {
  int64_t B, H, G, T, S, D, Dv;
  double scale, softcap;  // softcap 0: none
  int64_t before, after;  // keys seen to either side of a query's own; -1: all of them
  Array q, k, v;          // (B, H, T, D), (B, G, S, D), (B, G, S, Dv)
  Array mask, bias;       // (B, H, T, S), NULL where there is none
  const int64_t *offset;                      // (B,)
  const uint8_t *key_mask, *query_mask;       // (B, S), (B, T)
  const int64_t *document, *first, *last;     // (B, T): of each query, with its first and last key
  const int64_t *number;                      // (B, S): the document of each key
  const double *alibi, *sinks;                // (H,)
  // Results, each (B, H, T) in REAL; out (B, H, T, Dv) in the dtype of q, NULL without values;
  // key_scores (B, H, T, 3).
  void *out, *lse, *lse_low, *entropy, *max_score, *mean_key, *visible;
  void *distance, *key_scores;                // NULL: not asked for
  int64_t *top_key;
  const int64_t *first_key;                   // (B, T), for key_scores
  int64_t figures;                            // 0: out and lse alone
  void *received;                             // (B, H, S)
  // Backward: what comes back into each row, and the gradients. g (B, H, T, Dv), NULL where nothing
  // comes back, with the out that was made; fixed = -d_lse + d_entropy H, to which the pass for q
  // adds g . out; d_entropy NULL for none.
  Array g, made;
  const void *fixed;                          // (B, H, T); with g . out, which the pass for q
  void *total;                                // adds, it is the total
  const void *d_entropy;                      // (B, H, T)
  void *dq, *dk, *dv;                         // like q, k and v, in REAL, side by side
  // Cells: rows i0:i1 and columns j0:j1 of the map, (B, H, i1 - i0, j1 - j0); its weights, by the lse
  // of these rows, or its scores where lse is NULL.
  int64_t i0, i1, j0, j1;
  void *cells;
  // The work. `bad` becomes 1 where a key or a value that forward reads is not finite.
  int64_t kind, next, units, per_unit, bad;   // kind: of Kind
  int64_t pairs, depth;                       // whether bfloat16 is multiplied in pairs, and how
                                              // many numbers a packed query or key has: D or D / 2
  char *room;                                 // for tiles: so many bytes for each thread, and how
  int64_t room_size, entered;                 // many threads have taken theirs
  double until;                               // when to come back, on the clock of `now`
} Call;
