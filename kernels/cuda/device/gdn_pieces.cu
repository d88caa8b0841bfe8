// Pieces of one long sequence that run side by side: where each begins, from what the ones before it do to a state.
#include "four.cuh"
#include "layout.cuh"

// states [pieces, heads, 128, 128]: what a piece's rows make of a zero state (the last piece's is not read); afterwards the state at which
// each begins, X <- T X + S from `first` [heads, 128, 128] on. transitions [pieces - 1, heads]: tiles of T in fp16. One block for 32 value
// columns of a head, one thread for a key row.
KERNEL(128, gdn_join_pieces)(const f16* __restrict__ transitions, const float* __restrict__ first, float* states, int pieces, int heads) {
  SHARED Four x[128][8];
  const int head = blockIdx.x, row = threadIdx.x;
  const size_t place = ((size_t)head * 128 + row) * 128 + blockIdx.y * 32;
  Four now[8], next[8];
  for (int j = 0; j < 8; ++j) now[j] = read_four(first + place + 4 * j);
  for (int piece = 0; piece < pieces; ++piece) {
    float* const at = states + (size_t)piece * heads * 128 * 128 + place;
    for (int j = 0; j < 8; ++j) {
      next[j] = read_four(at + 4 * j);
      write_four(at + 4 * j, now[j]);
    }
    if (piece + 1 == pieces) return;
    sync();  // the last piece's state has been read
    for (int j = 0; j < 8; ++j) x[row][j] = now[j];
    sync();
    const f16* const tile = transitions + ((size_t)piece * heads + head) * 128 * 128;
#pragma unroll 8
    for (int key = 0; key < 128; ++key) {
      const float t = f32(tile[tile_at<128>(row, key)]);
      for (int j = 0; j < 8; ++j)
        for (int e = 0; e < 4; ++e) next[j].at[e] += t * x[key][j].at[e];
    }
    for (int j = 0; j < 8; ++j) now[j] = next[j];
  }
}
REGISTER(gdn_join_pieces)
