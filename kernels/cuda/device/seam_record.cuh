// What seam_prep hands to the chain, per (step, head). src/compose_seam.rs has the same sizes.
#pragma once
#include "hopper.cuh"

// W hi, W lo, q' hi, q' lo, K: five fp16 tiles [key / 64][row 8][64], 16-byte chunks xored by the row; then the gates.
constexpr int RECORD_BYTES = 10368, GATES_AT = 10240;
// U and O0 in fp32, as [column / 8][lane 32][U U O0 O0].
constexpr int WRITE_FLOATS = 2048;

struct SeamGates {
  float to_end[8];  // decay from each row to the last
  float all;        // decay over all rows
  uint32_t live;    // whether the body has a T
  uint32_t row, rows;
};
