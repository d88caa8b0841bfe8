// Attention with wgmma over keys and values that gather_kv brought into tiles: for many rows that share their tokens. Bulk copies fill a
// ring; two warpgroups have 64 query rows each and go through the tiles on their own, so that the softmax of one runs beside the products
// of the other.
#include "attention.cuh"
#include "attention_wgmma.cuh"

// D [64 x 96] = (accumulates ? D : 0) + A [64 x 16] B [16 x 96], both in shared memory, K contiguous.
DEV void wgmma_scores_96(float (&d)[12][4], uint64_t a, uint64_t b, int accumulates) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
    "%48, %49, p, 1, 1, 0, 0;\n}"
    : THIRTY_TWO(d, 0), FOUR(d, 8), FOUR(d, 9), FOUR(d, 10), FOUR(d, 11) : "l"(a), "l"(b), "r"(accumulates));
}

// A tile comes in items of at most 128 channels: those of its keys, then those of its values.
constexpr int PLACES = 6, WARPGROUP = 128, CONSUMERS = 2 * WARPGROUP;
template <int D> constexpr int slabs() { return D < 128 ? 1 : 2; }  // of 64 channels in an item
template <int D> constexpr int item_bytes() { return slabs<D>() * GATHERED * 128; }

// s = Q K^T over the channels of item `part`, for the 64 query rows at `queries`.
template <int D> DEV void scores(float (&s)[GATHERED / 8][4], uint32_t queries, uint32_t keys, int part) {
  const uint64_t a = tile_descriptor(queries + part * slabs<D>() * ROWS * 128, 16, 1024), b = tile_descriptor(keys, 16, 1024);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < slabs<D>() * 4; ++k)
    wgmma_scores_96(s, a + (k >> 2) * (ROWS * 8) + (k & 3) * 2, b + (k >> 2) * (GATHERED * 8) + (k & 3) * 2, part | k);
}
// o += P V over the channels of item PART.
template <int D, int PART> DEV void weigh(float (&o)[D / 8][4], const uint32_t (&weights)[GATHERED / 16][4], uint32_t values) {
  const uint64_t b = tile_descriptor(values, GATHERED * 128, 1024);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < GATHERED / 16; ++k) {
    if constexpr (D == 64) wgmma_weigh<0>(o, weights[k], b + k * 128);
    else wgmma_weigh_128<16 * PART>(o, weights[k], b + k * 128);
  }
}

// Shared memory: queries; the ring; a barrier "full" and one "empty" for each of its places. `tokens`: of all lists.
template <int D> DEV void attend(const AttentionStep& step, int tokens) {
  DYNAMIC_SHARED(shared);
  constexpr int RING = queries_bytes<D>(), BARRIERS = RING + PLACES * item_bytes<D>(), PARTS = D / 64 / slabs<D>();
  const Attending<D> block(step);
  const uint32_t base = shared_address(shared);
  const int busy = block.used > 64 ? 2 : 1, tiles = (int)(block.job.end - block.job.begin + GATHERED - 1) / GATHERED;
  auto full = [&](int place) { return base + BARRIERS + place * 16; };
  auto empty = [&](int place) { return full(place) + 8; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < PLACES; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), 4 * busy);
    }
    barrier_init_done();
  }
  sync();
  int place = 0, phase = 0;
  auto next = [&] {
    if (++place == PLACES) {
      place = 0;
      phase ^= 1;
    }
  };

  // Registers: 24 + 2 x 240 is what three warpgroups of 168 were given; with more, the increase would wait for ever.
  if (threadIdx.x >= CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != CONSUMERS) return;
    const size_t first = ((size_t)block.kv_head * tokens + block.job.list + block.job.begin) * D * 2;
    const uint8_t *keys = (const uint8_t*)step.key + first, *values = (const uint8_t*)step.value + first;
    auto bring = [&](const uint8_t*& from) {
      barrier_wait(empty(place), phase ^ 1);
      barrier_expect(full(place), item_bytes<D>());
      bulk_load(base + RING + place * item_bytes<D>(), from, item_bytes<D>(), full(place));
      from += item_bytes<D>();
      next();
    };
    for (int t = 0; t < tiles; ++t) {
      for (int part = 0; part < PARTS; ++part) bring(keys);
      for (int part = 0; part < PARTS; ++part) bring(values);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int group = threadIdx.x >> 7, thread = threadIdx.x & (WARPGROUP - 1), rows0 = 64 * group, lane = thread & 31;
    if (group >= busy) return;
    block.template load_queries<WARPGROUP>(shared, rows0, 64, thread);
    named_sync(1 + group, WARPGROUP);
    block.template rotate_queries<WARPGROUP>(shared, rows0, 64, thread);
    fence_async();
    named_sync(1 + group, WARPGROUP);
    RowSums<D, GATHERED> rows(block, rows0 + (thread >> 5) * 16);
    // Items of the ring that this warpgroup still reads: of keys, and of values.
    int held[2][PARTS];
    auto take = [&](int& item) {
      item = place;
      barrier_wait(full(place), phase);
      next();
      return base + RING + item * item_bytes<D>();
    };
    auto release = [&](const int (&items)[PARTS]) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        if (lane == 0) barrier_arrive(empty(items[part]));
    };
    float s[GATHERED / 8][4];
    uint32_t weights[GATHERED / 16][4];
    auto multiply_keys = [&] {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) scores<D>(s, base + rows0 * 128, take(held[0][part]), part);
      wgmma_commit();
    };
    multiply_keys();
    wgmma_wait<0>();
    release(held[0]);
    for (int t = 0; t < tiles; ++t) {
      rows.take(s, block.job.begin + t * GATHERED, weights);
      weigh<D, 0>(rows.o, weights, take(held[1][0]));
      if constexpr (PARTS == 2) weigh<D, 1>(rows.o, weights, take(held[1][1]));
      wgmma_commit();
      // The next scores wait behind these products, not for them.
      if (t + 1 < tiles) {
        multiply_keys();
        wgmma_wait<1>();
        release(held[1]);
        wgmma_wait<0>();
        release(held[0]);
      } else {
        wgmma_wait<0>();
      }
    }
    rows.write(Attending<D>(step));  // made again: registers are short while tiles go by
  }
}

#define GATHERED_ATTENTION(D)                                                                                                        \
  KERNEL_ALONE(CONSUMERS + WARPGROUP, attention_gathered_##D)(const bf16* q, const bf16* keys, const bf16* values, const Job* jobs,   \
                                                              const Token* table, const uint32_t* positions, const uint32_t* seen,   \
                                                              const float* rope, bf16* out, float* partial_out, float* partial_sum,  \
                                                              float scale, int heads, int kv_heads, int tokens, int rotary,          \
                                                              int log2_rotary) {                                                     \
    attend<D>({q, keys, values, jobs, table, positions, seen, rope, out, partial_out, partial_sum, scale, heads, kv_heads, 0,        \
               rotary, log2_rotary}, tokens);                                                                                        \
  }
GATHERED_ATTENTION(64)
GATHERED_ATTENTION(128)
GATHERED_ATTENTION(256)
