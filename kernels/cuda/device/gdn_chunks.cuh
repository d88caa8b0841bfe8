// Chunk form of gated delta net prefill on sm_90a, with T as extra columns of the same recurrence. Chunks of 64 tokens; per chunk,
// with G the log decays summed within it and X = [S | T], V = 0 in the columns of T, T starting at the identity:
//   A  = I + tril(b_i e^{G_i - G_j} k_i . k_j, -1)        M = A^-1 diag(b)         P = tril(e^{G_i - G_j} q_i . k_j)
//   V' = M (V - e^G K X)        O = e^G Q X + P V'        X <- e^{G_last} X + (e^{G_last - G} K)^T V'
// gdn_chunk_maps makes M, P and the decays, which do not depend on the state, and tiles of K and Q; gdn_chunk_scan runs the recurrence.
//
// All of these lie in blocks of 16 tokens, the last block first, and of M and P only what is on and below the diagonal: a strip for every 16
// columns, with the rows from the diagonal on. So the rows that a strip has are the first ones, and its product fills the first registers
// of an accumulator.
#pragma once
#include "hopper.cuh"

constexpr int CHUNK = 64, KEY_TILE = 16384, MAP = 5120;  // bytes: a tile of 64 keys or queries, and M or P

// Where a token's row lies, and which token lies in a row: it is its own inverse.
DEV uint32_t row_of(uint32_t token) { return token ^ 48; }
// Byte of the strip whose columns are this block of 16 tokens: [row][16] fp16, with the 32-byte swizzle of wgmma.
DEV uint32_t strip_at(uint32_t block) { return 256 * (3 - block) * (4 - block); }

struct ChunkDecays {  // by rows
  float from_start[CHUNK];  // e^{G_i}
  float to_end[CHUNK];      // e^{G_last - G_i}
  float log[CHUNK];         // G_i / ln 2
  float all;                // e^{G_last}
  float unused[3];
};
