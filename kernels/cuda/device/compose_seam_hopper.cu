// Compose + seam of one layer, every request of a batch in one launch: the chain over the steps, on sm_90a.
//
// One block = (request, head, 32 of its 128 value columns). Per step, with everything state-independent folded by seam_prep:
//   u = U - W S    o = O0 + q' S    S <- T (e8 S + K^T u~) + S_C = e8 (T S) + P u~ + S_C,    P = T K^T,  u~_t = to_end_t u_t
// T S does not wait for u: both products start from S, and u~ joins at the end as a rank-8 update.
//   warpgroups 0, 1 (64 key rows each): T [S hi | S lo | K^T] as one chain of N = 32 + 32 + 8, epilogue, new S tile
//   warpgroup 2: [W hi; W lo; q' hi; q' lo] [S hi | S lo], outputs, u~ to shared memory
//   warp 12: bulk copies into a ring
// S stays in fp32 in the accumulators; its fp16 pair (22 bits) is what the tensor cores read. Two block barriers per step: the S tile
// is ready, u~ is ready. S tiles alternate, so nobody waits for readers.
//
// HYPIC_PLAIN_COPIES builds the ring from ordinary loads, stores and barriers, for race checkers: they follow neither bulk copies nor
// mbarriers.
#include "seam_record.cuh"

constexpr int THREADS = 416, S_TILE = 18432, U_TILE = 1024, TILE = 32768, SLICE_WRITES = WRITE_FLOATS;  // bytes of a slice: a quarter of 4x
template <class Stored> struct Ring {
  static constexpr int TILES = sizeof(Stored) / 2;                  // fp32: T is a pair of tiles
  static constexpr int STAGES = 4 - TILES, T_BYTES = TILES * TILE, S_BYTES = 4096 * (int)sizeof(Stored);
  static constexpr int WRITES_AT = T_BYTES + RECORD_BYTES, S_AT = WRITES_AT + SLICE_WRITES;
  static constexpr int STAGE = (S_AT + S_BYTES + 1023) / 1024 * 1024;
};

// The ring between the producer warp and the twelve others: a copy by the whole warp, and a stage that is full or free again.
#ifdef HYPIC_PLAIN_COPIES
DEV void ring_init(uint32_t, int) {}
DEV void ring_load(uint8_t* to, const void* from, uint32_t bytes, uint32_t, int lane) {
  for (uint32_t i = lane * 16; i < bytes; i += 512) *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>((const uint8_t*)from + i);
}
DEV void ring_expect(uint32_t, uint32_t, int) {}
DEV void ring_filled(int stage) { fence_async(); named_arrive(4 + stage, THREADS); }
DEV void ring_wait_full(uint32_t, int stage, int) { named_sync(4 + stage, THREADS); }
DEV void ring_release(uint32_t, int stage, bool again, int) { if (again) named_arrive(8 + stage, THREADS); }
DEV void ring_wait_free(uint32_t, int stage, int) { named_sync(8 + stage, THREADS); }
#else
DEV void ring_init(uint32_t full, int stages) {
  for (int i = 0; i < stages; ++i) { barrier_init(full + 8 * i, 1); barrier_init(full + 8 * (stages + i), 12); }
  barrier_init_done();
}
DEV void ring_load(uint8_t* to, const void* from, uint32_t bytes, uint32_t full, int lane) {
  if (lane == 0) bulk_load(shared_address(to), from, bytes, full);
}
DEV void ring_expect(uint32_t full, uint32_t bytes, int lane) { if (lane == 0) barrier_expect(full, bytes); }
DEV void ring_filled(int) {}
DEV void ring_wait_full(uint32_t full, int, int round) { barrier_wait(full, round & 1); }
DEV void ring_release(uint32_t empty, int, bool, int lane) {  // one arrival per warp
  __syncwarp();
  if (lane == 0) barrier_arrive(empty);
}
DEV void ring_wait_free(uint32_t empty, int, int round) { barrier_wait(empty, round & 1); }
#endif

template <class Stored>
DEV void compose_chain(const uint32_t* __restrict__ first_step, const uint8_t* __restrict__ arena, const uint64_t* __restrict__ transition_of,
                       const uint64_t* __restrict__ state_of, const uint8_t* __restrict__ records, const float* __restrict__ writes,
                       float* state, float* __restrict__ out, int heads) {
  using R = Ring<Stored>;
  DYNAMIC_SHARED(shared);
  uint8_t* const s_tiles = shared + R::STAGES * R::STAGE;
  const uint32_t s_tile = shared_address(s_tiles), u_tile = s_tile + 2 * S_TILE, full = u_tile + U_TILE, empty = full + 8 * R::STAGES;
  const int head = blockIdx.x >> 2, slice = blockIdx.x & 3, thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;
  const int g = lane >> 2, c2 = (lane & 3) * 2, matrix = lane >> 3, r8 = lane & 7;
  const uint32_t step0 = first_step[blockIdx.y];
  const int steps = (int)(first_step[blockIdx.y + 1] - step0);
  if (steps == 0) return;  // the state stays as it is
  float* const home = state + ((size_t)blockIdx.y * heads + head) * 128 * 128 + slice * 32;
  if (thread == 0) ring_init(full, R::STAGES);
  sync();
  auto release = [&](int n) { ring_release(empty + 8 * (n % R::STAGES), n % R::STAGES, n + R::STAGES < steps, lane); };

  if (warp == 12) {  // ---- producer
    uint64_t t_offset = 0, s_offset = 0;
    for (int n = 0; n < steps; ++n) {
      if ((n & 31) == 0 && n + lane < steps) {  // the offsets of 32 steps in one round trip
        t_offset = transition_of[(size_t)(step0 + n + lane) * heads + head];
        s_offset = state_of[(size_t)(step0 + n + lane) * heads + head];
      }
      const uint64_t t = __shfl_sync(~0u, t_offset, n & 31), s = __shfl_sync(~0u, s_offset, n & 31);
      const int stage = n % R::STAGES;
      uint8_t* const to = shared + stage * R::STAGE;
      const uint32_t bar = full + 8 * stage;
      if (n >= R::STAGES) ring_wait_free(empty + 8 * stage, stage, n / R::STAGES - 1);
      const size_t pair = (size_t)(step0 + n) * heads + head;
      ring_expect(bar, (t != NONE ? R::T_BYTES : 0) + RECORD_BYTES + SLICE_WRITES + R::S_BYTES, lane);
      if (t != NONE) ring_load(to, arena + t, R::T_BYTES, bar, lane);
      ring_load(to + R::T_BYTES, records + pair * RECORD_BYTES, RECORD_BYTES, bar, lane);
      ring_load(to + R::WRITES_AT, (const uint8_t*)writes + (pair * 4 + slice) * SLICE_WRITES, SLICE_WRITES, bar, lane);
      ring_load(to + R::S_AT, arena + s + slice * R::S_BYTES, R::S_BYTES, bar, lane);
      ring_filled(stage);
    }
  } else if (warp >= 8) {  // ---- seam warpgroup
    // A = the record itself: its tiles are 8-row groups 2048 bytes apart, so rows are W hi, W lo, q' hi, q' lo, K (and 24 rows of noise
    // that only reach accumulators nobody reads). Row g of warp 0 meets W hi, row g + 8 W lo: their sum is within a thread.
    const int part = warp - 8;
    for (int n = 0; n < steps; ++n) {
      const int stage = n % R::STAGES;
      const uint8_t* at = shared + stage * R::STAGE;
      const SeamGates* gates = reinterpret_cast<const SeamGates*>(at + R::T_BYTES + GATES_AT);
      ring_wait_full(full + 8 * stage, stage, n / R::STAGES);
      // K of this step becomes rows 64-71 of the B tile.
      *reinterpret_cast<uint4*>(s_tiles + (n & 1) * S_TILE + ((thread >> 6) & 1) * 9216 + 8192 + (thread & 63) * 16) =
          *reinterpret_cast<const uint4*>(at + R::T_BYTES + 8192 + (thread & 127) * 16);
      const float to_end = gates->to_end[g];
      const bool live = gates->live;
      float2 write[4];  // warp 0: U, warp 1: O0
#pragma unroll
      for (int j = 0; j < 4; ++j) write[j] = *reinterpret_cast<const float2*>(at + R::WRITES_AT + (j * 32 + lane) * 16 + (part & 1) * 8);
      fence_async();
      named_sync(1, 384);  // the S tile is ready
      float d[32];
      const uint64_t a = tile_descriptor(shared_address(at) + R::T_BYTES, 16, 2048), b = tile_descriptor(s_tile + (n & 1) * S_TILE, 16, 1024);
      wgmma_fence();
      wgmma_64<0>(d, a, b);
#pragma unroll
      for (int k = 1; k < 8; ++k) wgmma_64<1>(d, a + (k >> 2) * 64 + (k & 3) * 2, b + (k >> 2) * 576 + (k & 3) * 2);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int e = 0; e < 32; ++e) asm volatile("" : "+f"(d[e])::"memory");
      float r[4][2];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) r[j][e] = (d[4 * j + e] + d[4 * j + 16 + e]) + (d[4 * j + 2 + e] + d[4 * j + 18 + e]);
      if (part == 0 && live) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          uint32_t h[2], l[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) split(to_end * (write[j + e].x - r[j + e][0]), to_end * (write[j + e].y - r[j + e][1]), h[e], l[e]);
          store_transposed(u_tile + (matrix & 1) * 512 + ((j + (matrix >> 1)) * 8 + r8) * 16, h[0], l[0], h[1], l[1]);  // [hi/lo][column][row]
        }
        named_arrive(2, 288);  // u~ is ready
      }
      if (part == 1 && g < gates->rows) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          *reinterpret_cast<float2*>(out + ((size_t)(gates->row + g) * heads + head) * 128 + slice * 32 + 8 * j + c2) =
              make_float2(write[j].x + r[j][0], write[j].y + r[j][1]);
      }
      release(n);
    }
  } else {  // ---- two warpgroups on T S
    const int row = warp * 16 + g;
    const uint32_t publish_to = s_tile + (warp >> 2) * 9216 + (r8 + (matrix >> 1) * 32) * 128 + ((((warp & 3) * 2 + (matrix & 1)) ^ r8) * 16);
    float s[4][4];  // rows row, row + 8; columns 8 j + c2, + 1
    auto publish = [&](int tile) {  // the fp16 pair of S as B tile [key / 64][hi 32, lo 32, K 8][64], transposed on the way
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t h0, l0, h1, l1;
        split(s[j][0], s[j][1], h0, l0);
        split(s[j][2], s[j][3], h1, l1);
        store_transposed(publish_to + tile * S_TILE + j * 1024, h0, h1, l0, l1);
      }
      fence_async();
    };
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = home[(size_t)(row + 8 * (e >> 1)) * 128 + 8 * j + c2 + (e & 1)];
    float sc[4][4], all;
    bool live;
    auto fetch = [&](int n) {  // S_C and gates of step n, read while the state before it is still being published
      const int stage = n % R::STAGES;
      ring_wait_full(full + 8 * stage, stage, n / R::STAGES);
      const SeamGates* gates = reinterpret_cast<const SeamGates*>(shared + stage * R::STAGE + R::T_BYTES + GATES_AT);
      const Stored* p = reinterpret_cast<const Stored*>(shared + stage * R::STAGE + R::S_AT) + (warp * 128 + lane) * 4;
      all = gates->all;
      live = gates->live;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (sizeof(Stored) == 4) *reinterpret_cast<float4*>(sc[j]) = *reinterpret_cast<const float4*>(p + j * 128);
        else {
          const uint2 x = *reinterpret_cast<const uint2*>(p + j * 128);
          const float2 a = unpack(x.x), b = unpack(x.y);
          sc[j][0] = a.x; sc[j][1] = a.y; sc[j][2] = b.x; sc[j][3] = b.y;
        }
      }
    };
    fetch(0);
    publish(0);
    for (int n = 0; n < steps; ++n) {
      const int stage = n % R::STAGES;
      named_sync(1, 384);  // the S tile is ready
      if (live) {  // one straight block: ptxas serializes wgmmas that are in flight across branches
        const uint64_t a = tile_descriptor(shared_address(shared + stage * R::STAGE) + (warp >> 2) * 8192, 16, 1024);
        const uint64_t b = tile_descriptor(s_tile + (n & 1) * S_TILE, 16, 1024);
        float d[36];
        wgmma_fence();
        wgmma_72<0>(d, a, b);
#pragma unroll
        for (int k = 1; k < 8; ++k) wgmma_72<1>(d, a + (k >> 2) * 1024 + (k & 3) * 2, b + (k >> 2) * 576 + (k & 3) * 2);
        if (R::TILES == 2) {  // T lo, one tile further
#pragma unroll
          for (int k = 0; k < 8; ++k) wgmma_72<1>(d, a + 2048 + (k >> 2) * 1024 + (k & 3) * 2, b + (k >> 2) * 576 + (k & 3) * 2);
        }
        wgmma_commit();
        named_sync(2, 288);  // u~ is ready
        uint32_t uh[4], ul[4], p[4];
        load_matrices(uh, u_tile + lane * 16);
        load_matrices(ul, u_tile + 512 + lane * 16);
        wgmma_wait<0>();
        // P, the last 8 columns, has the layout of an A operand: hi in k 0-7, lo in k 8-15.
        split(d[32], d[33], p[0], p[2]);
        split(d[34], d[35], p[1], p[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[j][e] = sc[j][e] + all * (d[4 * j + e] + d[16 + 4 * j + e]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_f16(s[j], p, uh[j], uh[j]);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_f16(s[j], p, ul[j], 0u);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[j][e] = sc[j][e];
      }
      release(n);
      if (n + 1 < steps) { fetch(n + 1); publish((n + 1) & 1); }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) home[(size_t)(row + 8 * (e >> 1)) * 128 + 8 * j + c2 + (e & 1)] = s[j][e];
  }
}

#define COMPOSE_CHAIN(name, Stored)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                                            \
      name(const uint32_t* first_step, const uint8_t* arena, const uint64_t* transition_of, const uint64_t* state_of,                 \
           const uint8_t* records, const float* writes, float* state, float* out, int heads) {                                        \
    compose_chain<Stored>(first_step, arena, transition_of, state_of, records, writes, state, out, heads);                            \
  }
COMPOSE_CHAIN(compose_chain_f16, f16)
COMPOSE_CHAIN(compose_chain_f32, float)
