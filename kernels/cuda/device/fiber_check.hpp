// Two wrong kernels: the fibers must notice both.
#pragma once
#include "dev.cuh"

// Reads a neighbour's value without a barrier in between: the result depends on the order of the threads.
KERNEL(64, check_missing_barrier)(float* out) {
  SHARED float values[64];
  values[threadIdx.x] = -1.f;
  sync();
  values[threadIdx.x] = (float)threadIdx.x;
  out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
}
REGISTER(check_missing_barrier)

// A barrier that one thread does not reach.
KERNEL(64, check_partial_barrier)(float* out) {
  if (threadIdx.x != 0) sync();
  sync();
  sync();
  out[threadIdx.x] = 0.f;
}
REGISTER(check_partial_barrier)
