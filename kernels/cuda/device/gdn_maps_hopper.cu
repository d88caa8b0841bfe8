// What a chunk of gated delta net prefill needs that does not depend on the state: M, P, decays, and tiles of K and Q.
#include "gdn_chunks.cuh"

// Byte of (row, column) in a swizzled [64][64] fp16 tile.
DEV uint32_t map_at(int row, int column) { return row * 128 + (((column >> 3) ^ (row & 7)) * 16) + (column & 7) * 2; }

// One block per (key head, chunk), for all value heads that share the key head. Also makes the tiles of keys and queries that the scan
// reads: fp16 [chunk, key head][key / 64][token][64], 16-byte chunks xored by the token. bf16 fits into fp16 exactly in the range of unit
// vectors. Rows beyond a sequence's end are zero. Warp w has token rows 16 w to 16 w + 15.
extern "C" __global__ void __launch_bounds__(128, 4) gdn_chunk_maps(
    const bf16* __restrict__ q, const bf16* __restrict__ k, const float* __restrict__ gate, const float* __restrict__ beta,
    const uint32_t* __restrict__ chunk_row, const uint32_t* __restrict__ chunk_rows, f16* __restrict__ q_tiles, f16* __restrict__ k_tiles,
    uint8_t* __restrict__ maps, ChunkDecays* __restrict__ decays, uint32_t heads, uint32_t key_heads) {
  DYNAMIC_SHARED(shared);  // K, Q; once their products are done M, A^-1, P take their place
  SHARED float G[CHUNK], B[CHUNK], diagonal[4][16][17];
  const uint32_t k_tile = shared_address(shared), q_tile = k_tile + KEY_TILE, x_tile = k_tile + MAP;
  uint8_t* const m_bytes = shared;
  uint8_t* const x_bytes = shared + MAP;
  uint8_t* const p_bytes = shared + 2 * MAP;
  const uint32_t thread = threadIdx.x, w = thread >> 5, lane = thread & 31;
  const uint32_t key_head = blockIdx.x, chunk = blockIdx.y, shared_by = heads / key_heads;
  const size_t tile = ((size_t)chunk * key_heads + key_head) * (KEY_TILE / 2);
  const uint32_t row0 = chunk_row[chunk], rows = chunk_rows[chunk];
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
      *reinterpret_cast<uint4*>(shared + part * KEY_TILE + (c >> 3) * 8192 + t * 128 + (((c & 7) ^ (t & 7)) * 16)) =
          make_uint4(halves(raw[i].x), halves(raw[i].y), halves(raw[i].z), halves(raw[i].w));
    }
  }
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
    const int row = 16 * w + (lane & 15);
    const uint32_t at = (s >> 2) * 8192 + row * 128 + ((((s & 3) * 2 + (lane >> 4)) ^ (row & 7)) * 16);
    load_matrices(a, k_tile + at);
    load_matrices(b, q_tile + at);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (n <= w) {
        const int column = 16 * n + (lane & 7) + ((lane >> 4) << 3);
        load_matrices(c, k_tile + (s >> 2) * 8192 + column * 128 + ((((s & 3) * 2 + ((lane >> 3) & 1)) ^ (column & 7)) * 16));
        mma_f16(kk[2 * n], a, c[0], c[1]);
        mma_f16(kk[2 * n + 1], a, c[2], c[3]);
        mma_f16(qk[2 * n], b, c[0], c[1]);
        mma_f16(qk[2 * n + 1], b, c[2], c[3]);
      }
  }

  if (thread == 0) bulk_store_read();
  sync();
  // The blocks above the diagonal are never written again.
  for (uint32_t i = thread; i < 3 * MAP / 16; i += 128) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);

  for (uint32_t r = 0; r < shared_by; ++r) {
    const uint32_t head = key_head * shared_by + r, here = again(lane), g = here >> 2, c2 = (here & 3) * 2;
    const size_t pair = (size_t)chunk * heads + head;
    if (w == 0) {
      float x[2], sum;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int t = 2 * lane + e;
        const size_t at = (size_t)(row0 + t) * heads + head;
        x[e] = t < rows ? gate[at] : 0.f;
        B[t] = t < rows ? beta[at] : 0.f;
      }
      sum = x[0] + x[1];
#pragma unroll
      for (int s = 1; s < 32; s *= 2) {
        const float y = __shfl_up_sync(~0u, sum, s);
        if (lane >= s) sum += y;
      }
      G[2 * lane] = sum - x[1];
      G[2 * lane + 1] = sum;
    }
    if (r && thread == 0) bulk_store_read();  // the last head's M and P have left
    sync();
    if (thread < CHUNK) {
      decays[pair].from_start[thread] = expf(G[thread]);
      decays[pair].to_end[thread] = expf(G[CHUNK - 1] - G[thread]);
      decays[pair].log[thread] = G[thread];
      if (thread == 0) decays[pair].all = expf(G[CHUNK - 1]);
    }
    uint32_t below[3][4];  // rows of A left of the diagonal block, as A operands
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (n <= 2 * w + 1) {
        float p[4], a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = 16 * w + g + 8 * (e >> 1), j = 8 * n + c2 + (e & 1);
          const float decay = j <= i ? __expf(G[i] - G[j]) : 0.f;
          p[e] = qk[n][e] * decay;
          a[e] = j < i ? B[i] * kk[n][e] * decay : 0.f;
        }
        *reinterpret_cast<uint32_t*>(p_bytes + map_at(16 * w + g, 8 * n + c2)) = pack(p[0], p[1]);
        *reinterpret_cast<uint32_t*>(p_bytes + map_at(16 * w + g + 8, 8 * n + c2)) = pack(p[2], p[3]);
        if (n >= 2 * w) {
#pragma unroll
          for (int e = 0; e < 4; ++e) diagonal[w][g + 8 * (e >> 1)][(n & 1) * 8 + c2 + (e & 1)] = a[e];
        } else if (n < 6) {
          below[n >> 1][(n & 1) * 2] = pack(a[0], a[1]);
          below[n >> 1][(n & 1) * 2 + 1] = pack(a[2], a[3]);
        }
      }
    __syncwarp();
    {  // inverse of the diagonal block, column lane & 15 per lane
      const int column = lane & 15;
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        x[i] = i == column ? 1.f : 0.f;
#pragma unroll
        for (int j = 0; j < i; ++j) x[i] -= diagonal[w][i][j] * x[j];
      }
      if (lane < 16) {
        const float b = B[16 * w + column];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const uint32_t at = map_at(16 * w + i, 16 * w + column);
          *reinterpret_cast<f16*>(x_bytes + at) = __float2half_rn(x[i]);
          *reinterpret_cast<f16*>(m_bytes + at) = __float2half_rn(x[i] * b);
        }
      }
    }
    // Row of blocks i of the inverse from the rows above it: X_i = -X_ii (A_i X).
#pragma unroll
    for (uint32_t i = 1; i < 4; ++i) {
      sync();
      if (w != i) continue;
      const uint32_t lane = again(here), g = lane >> 2, c2 = (lane & 3) * 2;
#pragma unroll
      for (int jb = 0; jb < i; ++jb) {
        float y[2][4] = {};
#pragma unroll
        for (int k = jb; k < i; ++k) {
          uint32_t b[4];
          const int row = 16 * k + (lane & 7) + ((lane >> 3) & 1) * 8;
          load_transposed(b, x_tile + row * 128 + (((jb * 2 + (lane >> 4)) ^ (row & 7)) * 16));
          mma_f16(y[0], below[k], b[0], b[1]);
          mma_f16(y[1], below[k], b[2], b[3]);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<uint32_t*>(x_bytes + map_at(16 * i + g, 16 * jb + 8 * h + c2)) = pack(y[h][0], y[h][1]);
          *reinterpret_cast<uint32_t*>(x_bytes + map_at(16 * i + g + 8, 16 * jb + 8 * h + c2)) = pack(y[h][2], y[h][3]);
        }
      }
      __syncwarp();
      uint32_t inverse[4];
      const int row = 16 * i + (lane & 15), back = 16 * i + (lane & 7) + ((lane >> 3) & 1) * 8;
      load_matrices(inverse, x_tile + row * 128 + (((i * 2 + (lane >> 4)) ^ (row & 7)) * 16));
#pragma unroll
      for (int jb = 0; jb < i; ++jb) {
        uint32_t b[4];
        float x[2][4] = {};
        load_transposed(b, x_tile + back * 128 + (((jb * 2 + (lane >> 4)) ^ (back & 7)) * 16));
        mma_f16(x[0], inverse, b[0], b[1]);
        mma_f16(x[1], inverse, b[2], b[3]);
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = 16 * jb + 8 * h + c2;
          const float b0 = B[column], b1 = B[column + 1];
          *reinterpret_cast<uint32_t*>(x_bytes + map_at(16 * i + g, column)) = pack(-x[h][0], -x[h][1]);
          *reinterpret_cast<uint32_t*>(x_bytes + map_at(16 * i + g + 8, column)) = pack(-x[h][2], -x[h][3]);
          *reinterpret_cast<uint32_t*>(m_bytes + map_at(16 * i + g, column)) = pack(-x[h][0] * b0, -x[h][1] * b1);
          *reinterpret_cast<uint32_t*>(m_bytes + map_at(16 * i + g + 8, column)) = pack(-x[h][2] * b0, -x[h][3] * b1);
        }
      }
    }
    fence_async();
    sync();
    if (thread == 0) {
      bulk_store(maps + pair * 2 * MAP, k_tile, MAP);
      bulk_store(maps + pair * 2 * MAP + MAP, q_tile, MAP);
    }
  }
  if (thread == 0) bulk_store_wait();
}
