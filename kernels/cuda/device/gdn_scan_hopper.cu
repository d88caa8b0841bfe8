// The recurrence over the chunks of gated delta net prefill, with T as extra columns.
#include "gdn_chunks.cuh"

// Shared memory of the scan. K, decays | M | Q, P are groups with a barrier each: a group is refilled for the next chunk as soon as both
// warpgroups are done with it. A warpgroup's 64 columns of V it loads itself; once read they make room for R and V', the A operands of
// the next products. (V by bulk copies of 128 bytes a row made the copy engine the bottleneck.)
constexpr int X_TILE = 16384, V_BLOCK = CHUNK * 128;
constexpr int K_AT = 2 * X_TILE, Q_AT = K_AT + KEY_TILE, M_AT = Q_AT + KEY_TILE, P_AT = M_AT + MAP, V_AT = P_AT + MAP,
              DECAYS_AT = V_AT + 2 * V_BLOCK, BARRIERS_AT = DECAYS_AT + 832, GROUPS = 3;

// The three products of a chunk with X or V' as A tile [64][64 k], and a K-contiguous B tile of 64 columns.
template <int ACC, int K_STEPS> DEV void tile_product(float (&d)[32], uint32_t a_tile, uint32_t b_tile) {
  const uint64_t a = tile_descriptor(again(a_tile), 16, 1024), b = tile_descriptor(again(b_tile), 16, 1024);
  wgmma_fence();
  wgmma_64<1, ACC>(d, a, b);
#pragma unroll
  for (int k = 1; k < K_STEPS; ++k) wgmma_64<1, 1>(d, a + (k >> 2) * 512 + (k & 3) * 2, b + (k >> 2) * 512 + (k & 3) * 2);
  wgmma_commit();
}
// Where a lane's matrices of an A tile [64 columns][64] lie that are, or become, the registers of an accumulator; for columns 8 j on,
// j even, xor with 16 j.
DEV uint32_t operand_at(uint32_t tile, int thread) {
  const int warp = thread >> 5 & 3, matrix = thread >> 3 & 3, r8 = thread & 7;
  return tile + (warp * 16 + (matrix & 1) * 8 + r8) * 128 + ((matrix >> 1) ^ r8) * 16;
}
// The same for their transpose, a tile [rows][64 columns]; for row block j add 1024 j.
DEV uint32_t transposed_at(uint32_t tile, int thread) {
  const int warp = thread >> 5 & 3, matrix = thread >> 3 & 3, r8 = thread & 7;
  return tile + ((matrix >> 1) * 8 + r8) * 128 + (((warp * 2 + (matrix & 1)) ^ r8) * 16);
}
DEV void store_operand(uint32_t tile, const uint32_t (&a)[4][4], int thread) {
  const uint32_t at = operand_at(tile, again(thread));
#pragma unroll
  for (int k = 0; k < 4; ++k) store_matrices(at ^ (k * 32), a[k][0], a[k][1], a[k][2], a[k][3]);
}

// One block = one role for one (sequence, head): the running state, which gives the outputs unless they are not wanted; T of the body; or S of the body, where that
// is not the running state: the body begins behind the first token, or the state does not begin at zero. Each of its two warpgroups has 64 columns, kept transposed (X^T [64 x 128]) in accumulators:
//   R^T = V^T - (X^T K^T) e^G    V'^T = R^T M^T    O^T = (X^T Q^T) e^G + V'^T P^T    X^T <- e^{G_last} X^T + (V'^T e^{G_last - G}) K
// The operands go through shared memory: with them in registers no four warpgroups fit on a multiprocessor (C7512).
extern "C" __global__ void __launch_bounds__(256, 2) gdn_chunk_scan(
    const f16* __restrict__ q_tiles, const f16* __restrict__ k_tiles, const bf16* __restrict__ v, const uint8_t* __restrict__ maps,
    const ChunkDecays* __restrict__ decays, const uint32_t* __restrict__ first_chunk, const uint32_t* __restrict__ ranges,
    const uint32_t* __restrict__ before_body, const uint8_t* __restrict__ fresh,
    uint8_t* __restrict__ arena, const uint64_t* __restrict__ transition_of, const uint64_t* __restrict__ state_of, float* state,
    const uint32_t* __restrict__ slots, uint32_t slot_stride, bf16* __restrict__ out, uint32_t heads, uint32_t key_heads, uint32_t has_outputs) {
  DYNAMIC_SHARED(shared);
  const uint32_t sequence = blockIdx.y / heads, head = blockIdx.y % heads, key_head = head / (heads / key_heads);
  const bool running = blockIdx.x == 0, outputs = running && has_outputs, is_t = blockIdx.x == 1;
  if (is_t && transition_of[blockIdx.y] == NONE) return;  // a dead head, known from the gates: no T
  const bool is_body = before_body[sequence] == 0 && fresh[sequence];  // the running state is the body's S
  if (blockIdx.x == 2 && (state_of[blockIdx.y] == NONE || is_body)) return;
  const uint32_t thread = threadIdx.x, group = thread >> 7, warp = (thread >> 5) & 3, lane = thread & 31;
  const uint32_t g = lane >> 2, c2 = (lane & 3) * 2, matrix = lane >> 3, r8 = lane & 7;
  const uint32_t base = shared_address(shared), full = base + BARRIERS_AT, x_tile = base + group * X_TILE;
  auto y_tile = [&] { return base + V_AT + (again(thread) >> 7) * V_BLOCK; };
  auto meet = [&] { named_sync(1 + (again(thread) >> 7), 128); };  // of this warpgroup
  // After the barriers: how many warps are done with a group, over all chunks.
  auto done = [&](int part) { return reinterpret_cast<int*>(shared + BARRIERS_AT + 48) + part; };

  // First and last chunk of the sequence, the rows before its body, its first and last row, its slot, and whether its running state is its
  // body's, also there: registers are short.
  auto range = [&](int end) { return reinterpret_cast<volatile uint32_t*>(shared + BARRIERS_AT + 64) + end; };
  if (thread < 2) {
    *range(thread) = first_chunk[sequence + thread];
    *range(3 + thread) = ranges[2 * sequence + thread];
  }
  // The body's summary begins with the body: rows before it do nothing, and decays count from there.
  if (thread == 2) *range(2) = running ? 0 : before_body[sequence];
  if (thread == 3) *range(5) = slots[sequence];
  if (thread == 4) *range(6) = is_body;
  auto place = [&] { return state + (size_t)*range(5) * slot_stride + (size_t)(blockIdx.y % heads) * 128 * 128; };  // [key, value]
  auto skipped = [&](uint32_t c) { return c == *range(0) ? *range(2) : 0u; };
  if (thread == 0) {
    for (int i = 0; i < GROUPS; ++i) { barrier_init(full + 8 * i, 1); *done(i) = 0; }
    for (int i = 0; i < 2; ++i) barrier_init(full + 8 * (GROUPS + i), 128);
    barrier_init_done();
  }
  sync();
  auto load = [&](int part, uint32_t c) {  // by a whole warp
    const size_t chunk = c, pair = chunk * heads + head, keys = (chunk * key_heads + key_head) * (KEY_TILE / 2);
    const uint32_t bar = full + 8 * part;
    if (lane != 0) return;
    if (part == 0) {
      barrier_expect(bar, KEY_TILE + sizeof(ChunkDecays));
      bulk_load(base + K_AT, k_tiles + keys, KEY_TILE, bar);
      bulk_load(base + DECAYS_AT, decays + pair, sizeof(ChunkDecays), bar);
    }
    if (part == 1) {
      barrier_expect(bar, MAP);
      bulk_load(base + M_AT, maps + pair * 2 * MAP, MAP, bar);
    }
    if (part == 2 && outputs) {
      barrier_expect(bar, KEY_TILE + MAP);
      bulk_load(base + Q_AT, q_tiles + keys, KEY_TILE, bar);
      bulk_load(base + P_AT, maps + pair * 2 * MAP + MAP, MAP, bar);
    }
  };
  auto load_v = [&](uint32_t c) {  // by a whole warpgroup
    const uint32_t me = again(thread), row0 = *range(3) + (c - *range(0)) * CHUNK, end = *range(4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t t = (me >> 3 & 15) + 16 * i, at = me & 7;
      const bool there = row0 + t < end;
      copy16(y_tile() + t * 128 + ((at ^ (t & 7)) * 16), v + ((size_t)(there ? row0 + t : 0) * heads + head) * 128 + (me >> 7) * 64 + at * 8, there);
    }
    copies_arrive(full + 8 * (GROUPS + (me >> 7)));
  };
  // The warp that is last to be done with a group of chunk c loads it for the next: nobody waits for the slower warpgroup.
  auto release = [&](int part, uint32_t c) {
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) {
      __threadfence_block();
      before = atomicAdd(done(part), 1);
    }
    before = __shfl_sync(~0u, before, 0);
    if (c + 1 < *range(1) && before == 8 * (c + 1 - *range(0)) - 1) load(part, c + 1);
  };
  const uint32_t first = *range(0);
  if (thread < 32 && first < *range(1))
    for (int part = 0; part < GROUPS; ++part) load(part, first);
  if (!is_t && first < *range(1)) load_v(first);

  float* const begin = place();
  float x[64];  // X^T: column 16 warp + g (+8) of this warpgroup's 64, key row 8 j + c2 (+1)
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = group * 64 + warp * 16 + g + 8 * (e >> 1), row = 8 * j + c2 + (e & 1);
      const bool resumes = running && !fresh[sequence];
      x[4 * j + e] = resumes ? begin[row * 128 + column] : is_t && column == row ? 1.f : 0.f;
    }

  for (uint32_t c = first; c < *range(1); ++c) {
    const ChunkDecays* decay = reinterpret_cast<const ChunkDecays*>(shared + DECAYS_AT);
    const uint32_t x_at = operand_at(x_tile, again(thread));
#pragma unroll
    for (int j = 0; j < 16; j += 2)  // fp16 copy of X^T as A tile
      store_matrices((x_at ^ ((j & 7) * 16)) + (j >> 3) * 8192, pack(x[4 * j], x[4 * j + 1]), pack(x[4 * j + 2], x[4 * j + 3]),
                     pack(x[4 * j + 4], x[4 * j + 5]), pack(x[4 * j + 6], x[4 * j + 7]));
    fence_async();
    meet();
    barrier_wait(full, (c - *range(0)) & 1);
    float d[32];  // column as x, token 8 j + c2 (+1)
    tile_product<0, 8>(d, x_tile, base + K_AT);
    const uint32_t skip = skipped(c);
    if (!is_t) barrier_wait(full + 8 * (GROUPS + (again(thread) >> 7)), (c - *range(0)) & 1);
    wgmma_wait<0>();
    uint32_t a[4][4];
    const uint32_t me = again(thread), token0 = (me & 3) * 2;
    const uint32_t v_at = y_tile() + ((me >> 4 & 1) * 8 + (me & 7)) * 128 + ((((me >> 5 & 3) * 2 + (me >> 3 & 1)) ^ (me & 7)) * 16);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (is_t) a[k][0] = a[k][1] = a[k][2] = a[k][3] = 0;
      else  // V^T: the rows of the tile are tokens, transposed on the way
        load_transposed(a[k], v_at + k * 2048);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = 2 * k + (e >> 1), i = 4 * j + 2 * (e & 1), token = 8 * j + token0;
        float2 grow = *reinterpret_cast<const float2*>(decay->from_start + token);
        if (skip) {
          grow.x = token < skip ? 0.f : expf(decay->log[token] - decay->log[skip - 1]);
          grow.y = token + 1 < skip ? 0.f : expf(decay->log[token + 1] - decay->log[skip - 1]);
          if (token < skip) a[k][e] &= 0xffff0000u;
          if (token + 1 < skip) a[k][e] &= 0xffffu;
        }
        a[k][e] = pack(__uint_as_float(a[k][e] << 16) - grow.x * d[i], __uint_as_float(a[k][e] & 0xffff0000u) - grow.y * d[i + 1]);
      }
    }
    meet();  // V has been read
    store_operand(y_tile(), a, thread);
    fence_async();
    meet();
    barrier_wait(full + 8, (c - *range(0)) & 1);
    tile_product<0, 4>(d, y_tile(), base + M_AT);
    wgmma_wait<0>();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) a[k][e] = pack(d[8 * k + 2 * e], d[8 * k + 2 * e + 1]);
    release(1, c);
    if (outputs) {
      meet();  // R has been read
      store_operand(y_tile(), a, thread);
      fence_async();
      meet();
      barrier_wait(full + 16, (c - *range(0)) & 1);
      tile_product<0, 8>(d, x_tile, base + Q_AT);
      const uint32_t pair0 = (again(thread) & 3) * 2;
      wgmma_wait<0>();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 grow = *reinterpret_cast<const float2*>(decay->from_start + 8 * j + pair0);
#pragma unroll
        for (int e = 0; e < 4; ++e) d[4 * j + e] *= e & 1 ? grow.y : grow.x;
      }
      tile_product<1, 4>(d, y_tile(), base + P_AT);
      wgmma_wait<0>();
      meet();  // X has been read: its tile takes the outputs, as rows of 64 columns
      const uint32_t o_at = transposed_at(x_tile, again(thread));
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        store_transposed(o_at + j * 1024, pack_bf16(d[4 * j], d[4 * j + 1]),
                         pack_bf16(d[4 * j + 2], d[4 * j + 3]), pack_bf16(d[4 * j + 4], d[4 * j + 5]), pack_bf16(d[4 * j + 6], d[4 * j + 7]));
      release(2, c);
      meet();
      const uint32_t row0 = *range(3) + (c - *range(0)) * CHUNK, end = *range(4);
      const uint32_t mine = again(thread);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t t = (mine >> 3 & 15) + 16 * i, at = mine & 7;
        const uint4 o = *reinterpret_cast<const uint4*>(shared + (mine >> 7) * X_TILE + t * 128 + ((at ^ (t & 7)) * 16));
        if (row0 + t < end) *reinterpret_cast<uint4*>(out + ((size_t)(row0 + t) * heads + head) * 128 + (mine >> 7) * 64 + at * 8) = o;
      }
      const uint32_t y_at = operand_at(y_tile(), again(thread));
#pragma unroll
      for (int k = 0; k < 4; ++k) load_matrices(a[k], y_at ^ (k * 32));
    }
    const uint32_t last0 = (again(thread) & 3) * 2;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 to_end = *reinterpret_cast<const float2*>(decay->to_end + 8 * (2 * k + (e >> 1)) + last0), value = unpack(a[k][e]);
        a[k][e] = pack(value.x * to_end.x, value.y * to_end.y);
      }
    const uint32_t left_out = skipped(c);
    const float all = left_out ? expf(decay->log[CHUNK - 1] - decay->log[left_out - 1]) : decay->all;
#pragma unroll
    for (int i = 0; i < 64; ++i) x[i] *= all;
    const uint64_t keys = tile_descriptor(again(base) + K_AT, 8192, 1024);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_128_chained<1, 1>(x, a[k], keys + k * 128);
    wgmma_commit();
    wgmma_wait<0>();
    release(0, c);
    meet();  // the tiles may be written again
    if (!is_t && c + 1 < *range(1)) load_v(c + 1);
  }

  if (running) {
    float* const end = place();
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        end[(8 * j + c2 + (e & 1)) * 128 + group * 64 + warp * 16 + g + 8 * (e >> 1)] = x[4 * j + e];
  }
  const uint64_t stored_at = (is_t ? transition_of : state_of)[blockIdx.y];
  if (stored_at == NONE || (running && !*range(6))) return;
  // [key 128][64 columns] through this warpgroup's tile: for T this is half of the stored tile, for S its matrices are the accumulators.
#pragma unroll
  for (int j = 0; j < 16; j += 2)
    store_transposed(transposed_at(x_tile, thread) + j * 1024, pack(x[4 * j], x[4 * j + 1]),
                     pack(x[4 * j + 2], x[4 * j + 3]), pack(x[4 * j + 4], x[4 * j + 5]), pack(x[4 * j + 6], x[4 * j + 7]));
  fence_async();
  meet();
  if (is_t) {
    if ((thread & 127) == 0) {
      bulk_store(arena + stored_at + group * X_TILE, x_tile, X_TILE);
      bulk_store_wait();
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // a warp takes two blocks of 16 key rows, and of these all 64 columns
    const int k = warp + 4 * (i & 1), pair = i >> 1, row = 16 * k + (matrix & 1) * 8 + r8, block = 2 * pair + (matrix >> 1);
    uint32_t s[4];
    load_matrices(s, x_tile + row * 128 + ((block ^ r8) * 16));
    const int slice = group * 2 + (pair >> 1), j = (pair & 1) * 2;
    uint2* to = reinterpret_cast<uint2*>(arena + stored_at) + ((slice * 8 + k) * 4 + j) * 32 + lane;
    to[0] = make_uint2(s[0], s[1]);
    to[32] = make_uint2(s[2], s[3]);
  }
}
