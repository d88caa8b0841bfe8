// Layout 1 of tuples, the device tiles. The numbers here are part of the kernel ABI; src/layout.rs has the same ones.
#pragma once
#include "dev.cuh"

// T of one head: [key / 64][row][64] fp16, the 16-byte chunks of a row xored by its number: the 128-byte swizzle of wgmma, and free
// of bank conflicts for ldmatrix. fp32 T is two such tiles, hi then lo, with T = hi + lo.
template <int D> DEV int tile_at(int row, int col) {
  return (col >> 6) * D * 64 + row * 64 + (((col >> 3 & 7) ^ (row & 7)) << 3) + (col & 7);
}
// S of one head, in the order of mma accumulators: [value / 32][key / 16][4][lane 32][4].
template <int D> DEV int state_at(int row, int col) {
  int fragment = ((col >> 5) * (D / 16) + (row >> 4)) * 4 + (col >> 3 & 3);
  int lane = (row & 7) * 4 + (col >> 1 & 3), element = (col & 1) + 2 * (row >> 3 & 1);
  return (fragment * 32 + lane) * 4 + element;
}
// "No T is stored": the head is dead in this segment.
constexpr uint64_t NONE = ~0ull;
