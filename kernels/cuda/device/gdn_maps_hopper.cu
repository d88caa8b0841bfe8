// What a chunk of gated delta net prefill needs that does not depend on the state: M, P, decays, and tiles of K and Q.
#include "gdn_chunks.cuh"

// Byte of (token, token) of A and its inverse, which stay in shared memory: swizzled [64][64] fp16, of which only what is on and below the diagonal is there.
DEV uint32_t inverse_at(int row, int column) { return row * 128 + (((column >> 3) ^ (row & 7)) * 16) + (column & 7) * 2; }
// Byte of (token, token) of M or P.
DEV uint32_t map_at(uint32_t i, uint32_t j) {
  const uint32_t row = row_of(i);
  return strip_at(j >> 4) + row * 32 + ((j >> 3 & 1) ^ (row >> 2 & 1)) * 16 + (j & 7) * 2;
}

constexpr int INVERSE = 8192, M_AT = 2 * INVERSE;

// One block per (key head, chunk), for all value heads that share the key head. Also makes the tiles of keys and queries that the scan
// reads: fp16 [chunk, key head][key / 64][row][64], 16-byte chunks xored by the row. bf16 fits into fp16 exactly in the range of unit
// vectors. Rows beyond a sequence's end are zero. Warp w has the tokens 16 w to 16 w + 15.
extern "C" __global__ void __launch_bounds__(128, 4) gdn_chunk_maps(
    const bf16* __restrict__ q, const bf16* __restrict__ k, const float* __restrict__ gate, const float* __restrict__ beta,
    const uint32_t* __restrict__ chunk_row, const uint32_t* __restrict__ chunk_rows, f16* __restrict__ q_tiles, f16* __restrict__ k_tiles,
    uint8_t* __restrict__ maps, ChunkDecays* __restrict__ decays, uint32_t heads, uint32_t key_heads) {
  DYNAMIC_SHARED(shared);  // K, Q; once their products are done A^-1 of two heads takes the place of K, M that of Q
  SHARED float G[2][CHUNK], B[2][CHUNK], diagonal[2][4][16][17];
  const uint32_t k_tile = shared_address(shared), q_tile = k_tile + KEY_TILE;
  const uint32_t thread = threadIdx.x, w = thread >> 5, lane = thread & 31;
  const uint32_t key_head = blockIdx.x, chunk = blockIdx.y, shared_by = heads / key_heads;
  const size_t tile = ((size_t)chunk * key_heads + key_head) * (KEY_TILE / 2);
  const uint32_t row0 = chunk_row[chunk], rows = chunk_rows[chunk];
  float log_decay[2] = {}, strength[2] = {};  // of two tokens, by warps that have a head
  auto read_gates = [&](uint32_t r) {
    if (w >= 2 || r + w >= shared_by) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t t = 2 * lane + e;
      const size_t at = (size_t)(row0 + t) * heads + key_head * shared_by + r + w;
      log_decay[e] = t < rows ? gate[at] * 1.44269504f : 0.f;  // of base 2: an exponential is one instruction
      strength[e] = t < rows ? beta[at] : 0.f;
    }
  };
  auto sum_gates = [&] {
    if (w >= 2) return;
    float sum = log_decay[0] + log_decay[1];
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const float before = __shfl_up_sync(~0u, sum, s);
      if (lane >= s) sum += before;
    }
    *reinterpret_cast<float2*>(&G[w][2 * lane]) = make_float2(sum - log_decay[1], sum);
    *reinterpret_cast<float2*>(&B[w][2 * lane]) = make_float2(strength[0], strength[1]);
  };
  read_gates(0);  // they come together with the rows
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    uint4 raw[8];
    const bf16* const from = part ? q : k;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t t = (thread >> 4) + 8 * i;
      raw[i] = t < rows ? *reinterpret_cast<const uint4*>(from + ((size_t)(row0 + t) * key_heads + key_head) * 128 + (thread & 15) * 8) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = (thread >> 4) + 8 * i, c = thread & 15;
      auto halves = [](uint32_t two) { return pack(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)); };
      *reinterpret_cast<uint4*>(shared + part * KEY_TILE + (c >> 3) * 8192 + row_of(t) * 128 + (((c & 7) ^ (t & 7)) * 16)) =
          make_uint4(halves(raw[i].x), halves(raw[i].y), halves(raw[i].z), halves(raw[i].w));
    }
  }
  sum_gates();
  fence_async();
  sync();
  if (thread == 0) {
    bulk_store(k_tiles + tile, k_tile, KEY_TILE);
    bulk_store(q_tiles + tile, q_tile, KEY_TILE);
  }

  float kk[8][4] = {}, qk[8][4] = {};  // row 16 w + g (+8), column 8 n + c2 (+1)
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    uint32_t a[4], b[4], c[4];
    const int token = 16 * w + (lane & 15);
    const uint32_t at = (s >> 2) * 8192 + row_of(token) * 128 + ((((s & 3) * 2 + (lane >> 4)) ^ (token & 7)) * 16);
    load_matrices(a, k_tile + at);
    load_matrices(b, q_tile + at);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (n <= w) {
        const int other = 16 * n + (lane & 7) + ((lane >> 4) << 3);
        load_matrices(c, k_tile + (s >> 2) * 8192 + row_of(other) * 128 + ((((s & 3) * 2 + ((lane >> 3) & 1)) ^ (other & 7)) * 16));
        mma_f16(kk[2 * n], a, c[0], c[1]);
        mma_f16(kk[2 * n + 1], a, c[2], c[3]);
        mma_f16(qk[2 * n], b, c[0], c[1]);
        mma_f16(qk[2 * n + 1], b, c[2], c[3]);
      }
  }

  if (thread == 0) bulk_store_read();
  sync();
  for (uint32_t r = 0; r < shared_by; r += 2) {  // two heads at a time, so that more warps work on the chain of blocks
    const uint32_t count = shared_by - r < 2 ? 1 : 2, head0 = key_head * shared_by + r;
    if (r) {
      read_gates(r);
      sum_gates();
      if (thread < 2) bulk_store_read();  // M of the heads before has left
      sync();
    }
    for (uint32_t h = 0; h < count; ++h) {
      const uint32_t here = again(lane), g = here >> 2, c2 = (here & 3) * 2;
      const size_t pair = (size_t)chunk * heads + head0 + h;
      uint8_t* const p_bytes = maps + pair * 2 * MAP + MAP;
      uint8_t* const x_bytes = shared + h * INVERSE;
      if (thread < CHUNK) {
        const uint32_t row = row_of(thread);
        decays[pair].from_start[row] = two_to(G[h][thread]);
        decays[pair].to_end[row] = two_to(G[h][CHUNK - 1] - G[h][thread]);
        decays[pair].log[row] = G[h][thread];
        if (thread == 0) decays[pair].all = two_to(G[h][CHUNK - 1]);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (n > 2 * w + 1) continue;  // above the diagonal
        float p[4], a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const uint32_t i = 16 * w + g + 8 * (e >> 1), j = 8 * n + c2 + (e & 1);
          const float decay = j <= i ? two_to(G[h][i] - G[h][j]) : 0.f;
          p[e] = qk[n][e] * decay;
          a[e] = j < i ? B[h][i] * kk[n][e] * decay : 0.f;
        }
        if (n >= 2 * w) {
#pragma unroll
          for (int e = 0; e < 4; ++e) diagonal[h][w][g + 8 * (e >> 1)][(n & 1) * 8 + c2 + (e & 1)] = a[e];
        } else {  // left of the diagonal block: A itself, until the inverse takes its place
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * w + g, 8 * n + c2)) = pack(a[0], a[1]);
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * w + g + 8, 8 * n + c2)) = pack(a[2], a[3]);
        }
        *reinterpret_cast<uint32_t*>(p_bytes + map_at(16 * w + g, 8 * n + c2)) = pack(p[0], p[1]);
        *reinterpret_cast<uint32_t*>(p_bytes + map_at(16 * w + g + 8, 8 * n + c2)) = pack(p[2], p[3]);
      }
    }
    __syncwarp();
    if ((lane >> 4) < count) {  // inverse of the diagonal block: half a warp per head, one column per lane
      const uint32_t h = lane >> 4, column = lane & 15;
      const float b = B[h][16 * w + column];
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        x[i] = i == column ? 1.f : 0.f;
#pragma unroll
        for (int j = 0; j < i; ++j) x[i] -= diagonal[h][w][i][j] * x[j];
        *reinterpret_cast<f16*>(shared + h * INVERSE + inverse_at(16 * w + i, 16 * w + column)) = __float2half_rn(x[i]);
        *reinterpret_cast<f16*>(shared + M_AT + h * MAP + map_at(16 * w + i, 16 * w + column)) = __float2half_rn(x[i] * b);
      }
    }
    // Row of blocks i of the inverse from the rows above it: X_i = -X_ii (A_i X), one warp per head.
#pragma unroll
    for (uint32_t i = 1; i < 4; ++i) {
      sync();
      const uint32_t h = (w - i) & 3;
      if (h >= count) continue;
      const uint32_t me = again(lane), g = me >> 2, c2 = (me & 3) * 2, x_tile = k_tile + h * INVERSE;
      uint8_t* const m_bytes = shared + M_AT + h * MAP;
      uint8_t* const x_bytes = shared + h * INVERSE;
      // The k-th block of 16 columns of row block i as A operand.
      auto block_at = [&](uint32_t k) {
        const uint32_t row = 16 * i + (me & 15);
        return x_tile + row * 128 + (((k * 2 + (me >> 4)) ^ (row & 7)) * 16);
      };
      // Block (k, j) as B operand.
      auto above_at = [&](uint32_t k, uint32_t j) {
        const uint32_t row = 16 * k + (me & 7) + ((me >> 3) & 1) * 8;
        return x_tile + row * 128 + (((j * 2 + (me >> 4)) ^ (row & 7)) * 16);
      };
      uint32_t below[3][4], inverse[4];
#pragma unroll
      for (uint32_t k = 0; k < i; ++k) load_matrices(below[k], block_at(k));
      load_matrices(inverse, block_at(i));
      __syncwarp();
#pragma unroll
      for (uint32_t jb = 0; jb < i; ++jb) {
        float y[2][4] = {};
#pragma unroll
        for (uint32_t k = jb; k < i; ++k) {
          uint32_t b[4];
          load_transposed(b, above_at(k, jb));
          mma_f16(y[0], below[k], b[0], b[1]);
          mma_f16(y[1], below[k], b[2], b[3]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * i + g, 16 * jb + 8 * half + c2)) = pack(y[half][0], y[half][1]);
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * i + g + 8, 16 * jb + 8 * half + c2)) = pack(y[half][2], y[half][3]);
        }
      }
      __syncwarp();
#pragma unroll
      for (uint32_t jb = 0; jb < i; ++jb) {
        uint32_t b[4];
        float x[2][4] = {};
        load_transposed(b, above_at(i, jb));
        mma_f16(x[0], inverse, b[0], b[1]);
        mma_f16(x[1], inverse, b[2], b[3]);
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t column = 16 * jb + 8 * half + c2;
          const float b0 = B[h][column], b1 = B[h][column + 1];
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * i + g, column)) = pack(-x[half][0], -x[half][1]);
          *reinterpret_cast<uint32_t*>(x_bytes + inverse_at(16 * i + g + 8, column)) = pack(-x[half][2], -x[half][3]);
          *reinterpret_cast<uint32_t*>(m_bytes + map_at(16 * i + g, column)) = pack(-x[half][0] * b0, -x[half][1] * b1);
          *reinterpret_cast<uint32_t*>(m_bytes + map_at(16 * i + g + 8, column)) = pack(-x[half][2] * b0, -x[half][3] * b1);
        }
      }
    }
    fence_async();
    sync();
    if (thread < count) bulk_store(maps + ((size_t)chunk * heads + head0 + thread) * 2 * MAP, k_tile + M_AT + thread * MAP, MAP);
  }
  if (thread < 2) bulk_store_read();
}
