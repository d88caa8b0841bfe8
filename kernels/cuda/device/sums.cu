// Sums over the ranks of tensor parallel, some of whose parts lie in the memory of another card.
#include "dev.cuh"

constexpr int MOST_RANKS = 16;

// What one load moves: less would leave the link between cards idle.
template <class E> struct alignas(16) Unit {
  static constexpr int LEN = 16 / sizeof(E);
  E values[LEN];
};

// y = base + x0 + x1 + .., in that order in fp32, rounded once: every rank gets the same bits. All of `units` units; without a base it is null.
template <class E> DEV void sum_ranks(const E* base, const E* const (&x)[MOST_RANKS], E* y, uint32_t units, int ranks) {
  constexpr int LEN = Unit<E>::LEN;
  for (uint32_t at = blockIdx.x * 128 + threadIdx.x; at < units; at += gridDim.x * 128) {
    float sum[LEN] = {};
    Unit<E> unit;
    if (base) {
      unit = ((const Unit<E>*)base)[at];
#pragma unroll
      for (int i = 0; i < LEN; ++i) sum[i] = f32(unit.values[i]);
    }
#pragma unroll
    for (int rank = 0; rank < MOST_RANKS; ++rank)
      if (rank < ranks) {
        unit = ((const Unit<E>*)x[rank])[at];
#pragma unroll
        for (int i = 0; i < LEN; ++i) sum[i] += f32(unit.values[i]);
      }
#pragma unroll
    for (int i = 0; i < LEN; ++i) store(unit.values[i], sum[i]);
    ((Unit<E>*)y)[at] = unit;
  }
}

#define SUM_KERNELS(E, suffix)                                                                                                  \
  KERNEL(128, sum_ranks_##suffix)(const E* base, const E* x0, const E* x1, const E* x2, const E* x3, const E* x4, const E* x5,  \
                                  const E* x6, const E* x7, const E* x8, const E* x9, const E* x10, const E* x11, const E* x12, \
                                  const E* x13, const E* x14, const E* x15, E* y, uint32_t units, int ranks) {                  \
    const E* const x[MOST_RANKS] = {x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15};                      \
    sum_ranks(base, x, y, units, ranks);                                                                                        \
  }                                                                                                                             \
  REGISTER(sum_ranks_##suffix)
FOR_EACH_FLOAT(SUM_KERNELS)
