// The recurrence over the chunks of gated delta net prefill, with T as extra columns.
#include "gdn_chunks.cuh"

// Shared memory of the scan, of which three blocks fit on a multiprocessor. The running state: K twice, M, Q, P in a place as large as V,
// which takes the outputs too, V. S: the same without Q and P. T: K three times, M twice. Beside each K its decays. Each tile has a barrier
// that counts its bytes, and behind it one that counts the warps of both blocks of the cluster that are done with it; V, which each block
// brings for itself, has one that counts its threads.
constexpr int HALF_T = 16384, VALUE_TILE = CHUNK * 128, TILES = 3 * KEY_TILE + MAP + 2 * VALUE_TILE, DECAYS = 832;
constexpr int DECAYS_AT = TILES, BARRIERS_AT = DECAYS_AT + 3 * DECAYS, TASK_AT = BARRIERS_AT + 128;

// A tile's descriptor, of which only the lower half depends on the place: no carries.
DEV uint32_t lower_descriptor(uint32_t address, uint32_t far) { return (address & 0x3FFFF) >> 4 | far >> 4 << 16; }
DEV uint64_t descriptor(uint32_t lower) { return (uint64_t)(1024 >> 4 | 1u << 30) << 32 | lower; }
// d = (ACC ? d : 0) + a b with a in registers, b a K-contiguous tile of 64 columns.
template <int ACC, int K_STEPS> DEV void product(float (&d)[32], const uint32_t (&a)[K_STEPS][4], uint32_t b_tile) {
  const uint32_t lower = lower_descriptor(again(b_tile), 16);
  auto b = [&](int k) { return descriptor(lower + (k >> 2) * 512 + (k & 3) * 2); };
  wgmma_fence();
  wgmma_64_chained<ACC>(d, a[0], b(0));
#pragma unroll
  for (int k = 1; k < K_STEPS; ++k) wgmma_64_chained<1>(d, a[k], b(k));
  wgmma_commit();
}
// d = (ACC ? d : 0) + a b with b the strips of a map: each has rows for the first of d's columns.
template <int ACC> DEV void map_product(float (&d)[32], const uint32_t (&a)[4][4], uint32_t map) {
  const uint32_t lower = lower_descriptor(again(map), 16);
  auto b = [&](int block) { return (uint64_t)(256 >> 4 | 3u << 30) << 32 | (lower + (strip_at(block) >> 4)); };
  wgmma_fence();
  wgmma_64_chained<ACC>(d, a[3], b(0));
  wgmma_48_chained(d, a[2], b(1));
  wgmma_32_chained(d, a[1], b(2));
  wgmma_16_chained(d, a[0], b(3));
  wgmma_commit();
}
// Where a lane's matrices lie of a tile [rows][64 columns] whose transpose is an accumulator or an operand; for 8 rows on add 1024.
DEV uint32_t transposed_at(uint32_t tile, uint32_t thread) {
  const uint32_t warp = thread >> 5, matrix = thread >> 3 & 3, r8 = thread & 7;
  return tile + ((matrix >> 1) * 8 + r8) * 128 + (((warp * 2 + (matrix & 1)) ^ r8) * 16);
}
DEV uint32_t multiply(uint32_t x, uint32_t y) {
  const __half2 xy = __hmul2(*reinterpret_cast<__half2*>(&x), *reinterpret_cast<__half2*>(&y));
  return *reinterpret_cast<const uint32_t*>(&xy);
}
DEV float2 two(const float* at) { return *reinterpret_cast<const float2*>(at); }

// What a block needs to know, in shared memory: registers are short.
struct Task {
  const uint8_t *k, *q, *maps, *decays;  // of the sequence's first chunk
  const bf16* v;                         // of its first row, and this block's columns
  bf16* out;
  float* state;     // [key, value], this block's columns
  uint8_t* stored;  // where T or S goes, or null
  uint32_t chunks, rows, skip, keys_to_next, maps_to_next, decays_to_next, row_to_next, resumes;
};
// What src/gdn_chunks.rs takes for them.
static_assert(sizeof(Task) == 96 && sizeof(ChunkDecays) == 784 && DECAYS >= sizeof(ChunkDecays));

// The chunks of one (sequence, head) for 64 columns, which are kept transposed (X^T [64 x 128]) in accumulators:
//   R^T = V^T - (X^T K^T) e^G    V'^T = R^T M^T    O^T = (X^T Q^T) e^G + V'^T P^T    X^T <- e^{G_last} X^T + (V'^T e^{G_last - G}) K
// Each product's result is the register operand of the next.
template <bool IS_T, bool OUTPUTS> DEV void scan_chunks(float (&x)[64], uint8_t* shared) {
  constexpr uint32_t K_STAGES = IS_T ? 3 : 2, M_STAGES = IS_T ? 2 : 1;
  constexpr int M_AT = K_STAGES * KEY_TILE, Q_AT = M_AT + MAP, P_AT = Q_AT + KEY_TILE, V_AT = P_AT + VALUE_TILE;
  const uint32_t thread = threadIdx.x;
  const uint32_t base = shared_address(shared), bars = base + BARRIERS_AT;
  const volatile Task& task = *reinterpret_cast<const volatile Task*>(shared + TASK_AT);
  const uint32_t k_bar = bars, m_bar = bars + 48, q_bar = bars + 80, p_bar = bars + 96, v_bar = bars + 112;
  // Both blocks' warps say that they are done with a tile; by a whole warp.
  auto done = [&](uint32_t bar) {
    __syncwarp();
    if ((again(thread) & 31) < 2) barrier_arrive_at(bar, again(thread) & 31);
  };
  // Tiles of chunk n, by one thread, once all are done with what lay in their place. Each block brings half of a tile to both.
  auto load = [&](uint32_t at, const uint8_t* from, uint32_t bytes, uint32_t bar) {
    const uint32_t part = (again(blockIdx.x) & 1) * bytes / 2;
    bulk_load_both(base + at + part, from + part, bytes / 2, bar);
  };
  auto load_k = [&](uint32_t n) {
    const uint32_t stage = n % K_STAGES, full = k_bar + 16 * stage;
    if (n >= K_STAGES) barrier_wait(full + 8, (n / K_STAGES - 1) & 1);
    barrier_expect(full, KEY_TILE + sizeof(ChunkDecays));
    load(stage * KEY_TILE, task.k + (size_t)n * task.keys_to_next, KEY_TILE, full);
    bulk_load(base + DECAYS_AT + stage * DECAYS, task.decays + (size_t)n * task.decays_to_next, sizeof(ChunkDecays), full);
  };
  auto load_m = [&](uint32_t n) {
    const uint32_t stage = n % M_STAGES, full = m_bar + 16 * stage;
    if (n >= M_STAGES) barrier_wait(full + 8, (n / M_STAGES - 1) & 1);
    barrier_expect(full, MAP);
    load(M_AT + stage * MAP, task.maps + (size_t)n * task.maps_to_next, MAP, full);
  };
  auto load_q = [&](uint32_t n) {
    if (n) barrier_wait(q_bar + 8, (n - 1) & 1);
    barrier_expect(q_bar, KEY_TILE);
    load(Q_AT, task.q + (size_t)n * task.keys_to_next, KEY_TILE, q_bar);
  };
  auto load_p = [&](uint32_t n) {
    if (n) barrier_wait(p_bar + 8, (n - 1) & 1);
    barrier_expect(p_bar, MAP);
    load(P_AT, task.maps + (size_t)n * task.maps_to_next + MAP, MAP, p_bar);
  };
  auto load_v = [&](uint32_t n) {  // by all
    const uint32_t me = again(thread), row0 = n * CHUNK, rows = task.rows, at = me & 7, to_next = task.row_to_next;
    const bf16* const from = task.v + at * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = (me >> 3) + 16 * i, t = row0 + row_of(row);
      const bool there = t < rows;
      copy16(base + V_AT + row * 128 + ((at ^ (row & 7)) * 16), from + (size_t)(there ? t : 0) * to_next, there);
    }
    copies_arrive(v_bar);
  };
  const uint32_t count = task.chunks;
  if (count == 0) return;
  if (!IS_T) load_v(0);
  if (thread == 0)
    for (uint32_t n = 0; n < K_STAGES && n < count; ++n) load_k(n);
  if (thread == 32)
    for (uint32_t n = 0; n < M_STAGES && n < count; ++n) load_m(n);
  if (OUTPUTS && thread == 64) load_q(0);
  if (OUTPUTS && thread == 96) load_p(0);
  __syncwarp();

  for (uint32_t n = 0; n < count; ++n) {
    const uint32_t k_stage = n % K_STAGES, m_stage = n % M_STAGES, phase = n & 1;
    auto decay = [&] { return reinterpret_cast<const ChunkDecays*>(shared + DECAYS_AT + again(k_stage) * DECAYS); };
    // Of this lane's rows c2 (+1); those of 8 j + c2 are 8 j floats on.
    auto of_lane = [&](const float* all) { return all + (again(thread) & 3) * 2; };
    uint32_t a[4][4], xh[8][4];
    float d[32];  // column 16 warp + g (+8), row 8 j + c2 (+1) of the tiles
    auto halves = [&] {  // made anew for each product: between them their registers are wanted
#pragma unroll
      for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(x[i]));
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) xh[k][e] = pack(x[8 * k + 2 * e], x[8 * k + 2 * e + 1]);
    };
    halves();
    barrier_wait(k_bar + 16 * k_stage, n / K_STAGES & 1);
    if (!OUTPUTS && n == 0 && task.skip) {  // the body begins here: rows before it do nothing, and decays count from it
      const uint32_t skip = task.skip;
      ChunkDecays* const decays = reinterpret_cast<ChunkDecays*>(shared + DECAYS_AT);
      if (thread < CHUNK) {
        const uint32_t row = row_of(thread);
        const float from_body = two_to(decays->log[row] - decays->log[row_of(skip - 1)]);
        decays->from_start[row] = thread < skip ? 0.f : from_body;
        if (thread == CHUNK - 1) decays->all = from_body;
      }
      if (!IS_T) {
        barrier_wait(v_bar, 0);
        for (uint32_t i = thread; i < skip * 8; i += 128) *reinterpret_cast<uint4*>(shared + V_AT + row_of(i >> 3) * 128 + (i & 7) * 16) = make_uint4(0, 0, 0, 0);
      }
      fence_async();  // bulk copies come to the decays' place later
      sync();
    }
    const bool nothing_yet = n == 0 && !task.resumes;  // X is zero, or the identity
    if (!nothing_yet) product<0, 8>(d, xh, base + k_stage * KEY_TILE);
    // While that runs: what goes to the places of the chunk before.
    if (thread == 0 && n && n + K_STAGES - 1 < count) load_k(n + K_STAGES - 1);
    if (IS_T && thread == 32 && n && n + 1 < count) load_m(n + 1);
    if (OUTPUTS && thread == 32 && n) load_p(n);
    wgmma_wait<0>();
    if (nothing_yet && IS_T) {  // the product is K^T
      const uint32_t k_at = transposed_at(base + (again(blockIdx.x) & 1) * 8192, again(thread));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        load_transposed(a[k], k_at + k * 2048);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 keys = unpack(a[k][e]);
          d[8 * k + 2 * e] = keys.x;
          d[8 * k + 2 * e + 1] = keys.y;
        }
      }
    } else if (nothing_yet) {
#pragma unroll
      for (int i = 0; i < 32; ++i) d[i] = 0.f;
    }
    if (!IS_T) barrier_wait(v_bar, phase);
    const float* const from_start = of_lane(decay()->from_start);
    const uint32_t v_at = transposed_at(base + V_AT, again(thread));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (IS_T) a[k][0] = a[k][1] = a[k][2] = a[k][3] = 0;
      else  // V^T: the rows of the tile are tokens, transposed on the way
        load_transposed(a[k], v_at + k * 2048);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = 2 * k + (e >> 1), i = 4 * j + 2 * (e & 1);
        const float2 grow = two(from_start + 8 * j);
        a[k][e] = pack(__uint_as_float(a[k][e] << 16) - grow.x * d[i], __uint_as_float(a[k][e] & 0xffff0000u) - grow.y * d[i + 1]);
      }
    }
    if (!IS_T && !OUTPUTS) {
      sync();  // V has been read
      if (n + 1 < count) load_v(n + 1);
    }
    barrier_wait(m_bar + 16 * m_stage, n / M_STAGES & 1);
    map_product<0>(d, a, base + M_AT + m_stage * MAP);
    wgmma_wait<0>();
    done(m_bar + 16 * m_stage + 8);
    auto forget = [&] {
      const float all = decay()->all;
#pragma unroll
      for (int i = 0; i < 64; ++i) x[i] *= all;
    };
    auto update = [&](const uint32_t (&a2)[4][4]) {
      const uint32_t keys = lower_descriptor(again(base) + k_stage * KEY_TILE, 8192);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_128_chained<1>(x, a2[k], descriptor(keys + k * 128));
      wgmma_commit();
    };
    if (OUTPUTS) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[k][e] = pack(d[8 * k + 2 * e], d[8 * k + 2 * e + 1]);
      halves();
      barrier_wait(q_bar, phase);
      if (!nothing_yet) product<0, 8>(d, xh, base + Q_AT);
      if (thread == 64 && n + 1 < count) load_m(n + 1);
      forget();  // the product has X as halves
      wgmma_wait<0>();
      if (nothing_yet) {
#pragma unroll
        for (int i = 0; i < 32; ++i) d[i] = 0.f;
      }
      done(q_bar + 8);
      const float* const from_start = of_lane(decay()->from_start);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 grow = two(from_start + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; ++e) d[4 * j + e] *= e & 1 ? grow.y : grow.x;
      }
      barrier_wait(p_bar, phase);
      map_product<1>(d, a, base + P_AT);
      uint32_t a2[4][4];
      const float* const to_ends = of_lane(decay()->to_end);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 to_end = two(to_ends + 8 * j);
        const uint32_t both = pack(to_end.x, to_end.y);
#pragma unroll
        for (int e = 0; e < 2; ++e) a2[j >> 1][2 * (j & 1) + e] = multiply(a[j >> 1][2 * (j & 1) + e], both);
      }
      update(a2);
      wgmma_wait<1>();
      sync();  // V and P have been read: the tile of P takes the outputs, as rows of 64 columns
      if (n + 1 < count) load_v(n + 1);
      if (thread == 96 && n + 1 < count) load_q(n + 1);
      const uint32_t o_at = transposed_at(base + P_AT, again(thread));
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        store_transposed(o_at + j * 1024, pack_bf16(d[4 * j], d[4 * j + 1]),
                         pack_bf16(d[4 * j + 2], d[4 * j + 3]), pack_bf16(d[4 * j + 4], d[4 * j + 5]), pack_bf16(d[4 * j + 6], d[4 * j + 7]));
      sync();
      const uint32_t row0 = n * CHUNK, rows = task.rows, mine = again(thread), at = mine & 7, to_next = task.row_to_next;
      bf16* const to = task.out + at * 8;
      uint4 o[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t row = (mine >> 3) + 16 * i;
        o[i] = *reinterpret_cast<const uint4*>(shared + P_AT + row * 128 + ((at ^ (row & 7)) * 16));
      }
      fence_async();  // P comes next; and before the stores to memory, for which the fence would wait
      done(p_bar + 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t t = row0 + row_of((mine >> 3) + 16 * i);
        if (t < rows) *reinterpret_cast<uint4*>(to + (size_t)t * to_next) = o[i];
      }
    } else {
      const float* const to_ends = of_lane(decay()->to_end);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 to_end = two(to_ends + 8 * j);
#pragma unroll
        for (int e = 0; e < 2; ++e) a[j >> 1][2 * (j & 1) + e] = pack(d[4 * j + 2 * e] * to_end.x, d[4 * j + 2 * e + 1] * to_end.y);
      }
      forget();
      update(a);
    }
    wgmma_wait<0>();
    done(k_bar + 16 * k_stage + 8);
    if (!OUTPUTS && !IS_T && thread == 64 && n + 1 < count) load_m(n + 1);
  }
}

// One role, from where X begins to what is kept of it.
template <bool IS_T, bool OUTPUTS> DEV void run(bool running, uint8_t* shared) {
  const volatile Task& task = *reinterpret_cast<const volatile Task*>(shared + TASK_AT);
  // Of this thread's column, key row c2.
  auto place = [&](uint32_t me) { return task.state + (me & 3) * 256 + (me >> 5) * 16 + (me >> 2 & 7); };
  float x[64];  // X^T: column 16 warp + g (+8) of this block's 64, key row 8 j + c2 (+1)
  const float* const begin = place(threadIdx.x);
  const bool resumes = !IS_T && task.resumes;
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = (blockIdx.x & 1) * 64 + (threadIdx.x >> 5) * 16 + (threadIdx.x >> 2 & 7) + 8 * (e >> 1), row = 8 * j + (threadIdx.x & 3) * 2 + (e & 1);
      x[4 * j + e] = resumes ? begin[(8 * j + (e & 1)) * 128 + 8 * (e >> 1)] : IS_T && column == row ? 1.f : 0.f;
    }
  scan_chunks<IS_T, OUTPUTS>(x, shared);
  cluster_sync();  // the other block may still have to say something to this one

  const uint32_t thread = again(threadIdx.x), warp = thread >> 5, lane = thread & 31, matrix = lane >> 3, r8 = lane & 7;
  if (!IS_T && (OUTPUTS || running)) {
    float* const end = place(thread);
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) end[(8 * j + (e & 1)) * 128 + 8 * (e >> 1)] = x[4 * j + e];
  }
  uint8_t* const stored = task.stored;
  if (!stored) return;
  // [key 128][64 columns] through the places of K: for T this is half of the stored tile, for S its matrices are the accumulators.
  const uint32_t x_tile = shared_address(shared);
#pragma unroll
  for (int j = 0; j < 16; j += 2)
    store_transposed(transposed_at(x_tile, thread) + j * 1024, pack(x[4 * j], x[4 * j + 1]),
                     pack(x[4 * j + 2], x[4 * j + 3]), pack(x[4 * j + 4], x[4 * j + 5]), pack(x[4 * j + 6], x[4 * j + 7]));
  fence_async();
  sync();
  if (IS_T) {
    if (thread == 0) {
      bulk_store(stored + (again(blockIdx.x) & 1) * HALF_T, x_tile, HALF_T);
      bulk_store_read();
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // a warp takes two blocks of 16 key rows, and of these all 64 columns
      const int k = warp + 4 * (i & 1), pair = i >> 1, row = 16 * k + (matrix & 1) * 8 + r8, block = 2 * pair + (matrix >> 1);
      uint32_t m[4];
      load_matrices(m, x_tile + row * 128 + ((block ^ r8) * 16));
      const int slice = (again(blockIdx.x) & 1) * 2 + (pair >> 1), j = (pair & 1) * 2;
      uint2* to = reinterpret_cast<uint2*>(stored) + ((slice * 8 + k) * 4 + j) * 32 + lane;
      to[0] = make_uint2(m[0], m[1]);
      to[32] = make_uint2(m[2], m[3]);
    }
  }
}

// One cluster = one role for one (sequence, head): the running state, which gives the outputs unless they are not wanted; T of the body; or
// S of the body, where that is not the running state: the body begins behind the first token, or the state does not begin at zero. Each of
// its two blocks has 64 columns, and brings half of every tile to both.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 3) gdn_chunk_scan(
    const f16* __restrict__ q_tiles, const f16* __restrict__ k_tiles, const bf16* __restrict__ v, const uint8_t* __restrict__ maps,
    const ChunkDecays* __restrict__ decays, const uint32_t* __restrict__ first_chunk, const uint32_t* __restrict__ ranges,
    const uint32_t* __restrict__ before_body, const uint8_t* __restrict__ fresh,
    uint8_t* __restrict__ arena, const uint64_t* __restrict__ transition_of, const uint64_t* __restrict__ state_of, float* state,
    const uint32_t* __restrict__ slots, uint32_t slot_stride, bf16* __restrict__ out, uint32_t heads, uint32_t key_heads, uint32_t has_outputs) {
  DYNAMIC_SHARED(shared);
  const uint32_t sequence = blockIdx.y / heads, role = blockIdx.x >> 1;
  const bool running = role == 0, is_t = role == 1;
  const bool is_body = before_body[sequence] == 0 && fresh[sequence];  // the running state is the body's S
  if (threadIdx.x == 0) {
    const uint32_t head = blockIdx.y % heads, half = blockIdx.x & 1, row0 = ranges[2 * sequence], first = first_chunk[sequence];
    const size_t keys = ((size_t)first * key_heads + head / (heads / key_heads)) * KEY_TILE, pair = (size_t)first * heads + head;
    const size_t columns = ((size_t)row0 * heads + head) * 128 + half * 64;
    Task& task = *reinterpret_cast<Task*>(shared + TASK_AT);
    task.k = reinterpret_cast<const uint8_t*>(k_tiles) + keys;
    task.q = reinterpret_cast<const uint8_t*>(q_tiles) + keys;
    task.maps = maps + pair * 2 * MAP;
    task.decays = reinterpret_cast<const uint8_t*>(decays + pair);
    task.v = v + columns;
    task.out = out + columns;
    task.state = state + (size_t)slots[sequence] * slot_stride + (size_t)head * 128 * 128 + half * 64;
    task.chunks = first_chunk[sequence + 1] - first;
    task.rows = ranges[2 * sequence + 1] - row0;
    // The body's summary begins with the body: rows before it do nothing, and decays count from there.
    task.skip = running ? 0 : before_body[sequence];
    task.keys_to_next = key_heads * KEY_TILE;
    task.maps_to_next = heads * 2 * MAP;
    task.decays_to_next = heads * sizeof(ChunkDecays);
    task.row_to_next = heads * 128;
    task.resumes = running && !fresh[sequence];
    const uint64_t stored_at = (is_t ? transition_of : state_of)[blockIdx.y];
    task.stored = stored_at == NONE || (running && !is_body) ? nullptr : arena + stored_at;
    const uint32_t bars = shared_address(shared) + BARRIERS_AT;
    for (int i = 0; i < 7; ++i) {
      barrier_init(bars + 16 * i, 1);
      barrier_init(bars + 16 * i + 8, 8);
    }
    barrier_init(bars + 112, 128);
    barrier_init_done();
  }
  // Both blocks of the cluster, after all that is read has been asked for.
  if (is_t && transition_of[blockIdx.y] == NONE) return;  // a dead head, known from the gates: no T
  if (role == 2 && (state_of[blockIdx.y] == NONE || is_body)) return;
  sync();
  cluster_sync();
  if (is_t) run<true, false>(false, shared);
  else if (running && has_outputs) run<false, true>(true, shared);
  else run<false, false>(running, shared);
}
