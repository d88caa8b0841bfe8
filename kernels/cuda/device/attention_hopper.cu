// Attention with wgmma. Two warpgroups have 64 query rows each and go through the tiles on their own, so that the softmax
// of one runs beside the products of the other; a third brings and rotates keys, a fourth brings values.
#include "attention.cuh"
#include "attention_wgmma.cuh"

// D [64 x 64] += A [64 x 16] B [16 x 64], both in shared memory, K contiguous.
DEV void wgmma_scores(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
    "%32, %33, 1, 1, 1, 0, 0;\n"
    : THIRTY_TWO(d, 0) : "l"(a), "l"(b));
}
// s = Q K^T for the 64 query rows at `queries`.
template <int D> DEV void scores(float (&s)[TOKENS / 8][4], uint32_t queries, uint32_t keys) {
  const uint64_t a = tile_descriptor(queries, 16, 1024), b = tile_descriptor(keys, 16, 1024);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) wgmma_scores(s, a + (k >> 2) * (ROWS * 8) + (k & 3) * 2, b + (k >> 2) * (TOKENS * 8) + (k & 3) * 2);
  wgmma_commit();
  wgmma_wait<0>();
}
// o += P V
template <int D> DEV void weigh(float (&o)[D / 8][4], const uint32_t (&weights)[TOKENS / 16][4], uint32_t values) {
  const uint64_t b = tile_descriptor(values, TOKENS * 128, 1024);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < TOKENS / 16; ++k) {
    if constexpr (D == 64) {
      wgmma_weigh<0>(o, weights[k], b + k * 128);
    } else {
      wgmma_weigh_128<0>(o, weights[k], b + k * 128);
      if constexpr (D == 256) wgmma_weigh_128<16>(o, weights[k], b + 2 * TOKENS * 8 + k * 128);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Shared memory: queries; a ring of tiles, keys and values in turn; a barrier "full" and one "empty" for each place of the ring.
constexpr int PLACES = 5, WARPGROUP = 128, CONSUMERS = 2 * WARPGROUP;

template <int N> struct Count { DEV_MEMBER constexpr int operator()() const { return N; } };

template <int D> DEV void attend(const AttentionStep& step) {
  DYNAMIC_SHARED(shared);
  constexpr int RING = queries_bytes<D>(), BARRIERS = RING + PLACES * tile_bytes<D>();
  const Attending<D> block(step);
  const uint32_t base = shared_address(shared);
  auto place = [&](int item) { return RING + item % PLACES * tile_bytes<D>(); };
  auto full = [&](int item) { return base + BARRIERS + item % PLACES * 16; };
  auto empty = [&](int item) { return full(item) + 8; };
  const int busy = block.used > 64 ? 2 : 1;  // warpgroups with query rows
  if (threadIdx.x == 0) {
    for (int i = 0; i < PLACES; ++i) {
      barrier_init(full(i), WARPGROUP);
      barrier_init(empty(i), 4 * busy);
    }
    barrier_init_done();
  }
  sync();

  // Registers: 80 + 48 + 2 x 192 is what four warpgroups of 128 were given; with more, the increase would wait for ever.
  typename Attending<D>::template Places<WARPGROUP> places;
  const int thread = threadIdx.x & (WARPGROUP - 1);
  auto wait_empty = [&](int item) {
    if (item >= PLACES) barrier_wait(empty(item), (item / PLACES - 1) & 1);
  };
  if (threadIdx.x >= CONSUMERS + WARPGROUP) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    block.template find_rows<WARPGROUP>(places, 0, thread);
    for (int t = 0; t < block.tiles; ++t) {
      wait_empty(2 * t + 1);
      block.template copy_rows<WARPGROUP>(shared + place(2 * t + 1), step.value, places, block.tokens_of(t), thread);
      copies_arrive(full(2 * t + 1));
      block.template find_rows<WARPGROUP>(places, t + 1, thread);
    }
    copies_wait();
  } else if (threadIdx.x >= CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    // A tile is rotated while the next one is on its way.
    auto publish = [&](int t, auto later) {
      Angles angles = {};
      block.ask_angles(angles, t, thread);
      copies_wait<later()>();
      named_sync(1, WARPGROUP);  // a pair of channels may have come by two threads
      block.template rotate_tile<WARPGROUP>(shared + place(2 * t), angles, t, thread);
      barrier_arrive(full(2 * t));
    };
    block.template find_rows<WARPGROUP>(places, 0, thread);
    for (int t = 0; t < block.tiles; ++t) {
      wait_empty(2 * t);
      block.template copy_rows<WARPGROUP>(shared + place(2 * t), step.key, places, block.tokens_of(t), thread);
      copies_commit();
      if (t > 0) publish(t - 1, Count<1>());
      block.template find_rows<WARPGROUP>(places, t + 1, thread);
    }
    publish(block.tiles - 1, Count<0>());
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
    const int group = threadIdx.x >> 7, first = 64 * group, lane = thread & 31;
    if (group >= busy) return;
    block.template load_queries<128>(shared, first, 64, thread);
    named_sync(2 + group, 128);
    block.template rotate_queries<128>(shared, first, 64, thread);
    fence_async();
    named_sync(2 + group, 128);
    RowSums<D> rows(block, first + (thread >> 5) * 16);
    // What the producers wrote is shown to wgmma here: their own fence would wait for every copy that is on its way.
    auto take = [&](int item) {
      barrier_wait(full(item), item / PLACES & 1);
      fence_async();
    };
    auto release = [&](int item) {
      if (lane == 0) barrier_arrive(empty(item));
    };
    for (int t = 0; t < block.tiles; ++t) {
      const int keys = 2 * t, values = 2 * t + 1;
      float s[TOKENS / 8][4] = {};
      uint32_t weights[TOKENS / 16][4];
      take(keys);
      scores<D>(s, base + first * 128, base + place(keys));
      release(keys);
      rows.take(s, block.job.begin + t * TOKENS, weights);
      take(values);
      weigh<D>(rows.o, weights, base + place(values));
      release(values);
    }
    rows.write(block);
  }
}
ATTENTION(attention_hopper_64, 64, CONSUMERS + 2 * WARPGROUP, attend)
ATTENTION(attention_hopper_128, 128, CONSUMERS + 2 * WARPGROUP, attend)
ATTENTION(attention_hopper_256, 256, CONSUMERS + 2 * WARPGROUP, attend)
