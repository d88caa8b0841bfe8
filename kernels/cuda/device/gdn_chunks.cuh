// Chunk form of gated delta net prefill on sm_90a, with T as extra columns of the same recurrence. Chunks of 64 tokens; per chunk,
// with G the log decays summed within it and X = [S | T], V = 0 in the columns of T, T starting at the identity:
//   A  = I + tril(b_i e^{G_i - G_j} k_i . k_j, -1)        M = A^-1 diag(b)         P = tril(e^{G_i - G_j} q_i . k_j)
//   V' = M (V - e^G K X)        O = e^G Q X + P V'        X <- e^{G_last} X + (e^{G_last - G} K)^T V'
// gdn_chunk_maps makes M, P and the decays, which do not depend on the state, and tiles of K and Q; gdn_chunk_scan runs the recurrence.
#pragma once
#include "hopper.cuh"

constexpr int CHUNK = 64, KEY_TILE = 16384, MAP = 8192;  // bytes: a tile of 64 keys or queries, and M or P

struct ChunkDecays {
  float from_start[CHUNK];  // e^{G_i}
  float to_end[CHUNK];      // e^{G_last - G_i}
  float log[CHUNK];         // G_i
  float all;                // e^{G_last}
  float unused[3];
};
