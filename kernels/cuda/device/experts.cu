// A mixture of experts: assignments (row, place among the row's chosen) in the order of experts, products of each expert's rows with its
// own weights, and the weighted sum of what a row's experts say.
#include "four.cuh"

constexpr int PORTION = 1024;  // assignments that one block counts and places
constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 64, STAGES = 3;

// Every block reads its portion of `chosen` [assignments] once; a thread looks for every 256th expert.
DEV int read_portion(const uint32_t* chosen, int assignments, uint32_t* ids) {
  const int first = blockIdx.x * PORTION, count = assignments - first < PORTION ? assignments - first : PORTION;
  for (int i = threadIdx.x; i < count; i += 256) ids[i] = chosen[first + i];
  sync();
  return count;
}
// counts [portions, experts]: how many assignments of a portion go to an expert.
KERNEL(256, count_experts)(const uint32_t* __restrict__ chosen, uint32_t* __restrict__ counts, int assignments, int experts) {
  SHARED uint32_t ids[PORTION];
  const int count = read_portion(chosen, assignments, ids);
  for (int expert = threadIdx.x; expert < experts; expert += 256) {
    uint32_t found = 0;
    for (int i = 0; i < count; ++i) found += ids[i] == (uint32_t)expert;
    counts[(size_t)blockIdx.x * experts + expert] = found;
  }
}
REGISTER(count_experts)

// counts become the first place of every (portion, expert) in the order of experts. jobs: (expert, first place, places) of tiles of at
// most TILE_M places; job_count [1] how many there are. One block, at most 1024 experts.
KERNEL(256, place_experts)(uint32_t* counts, uint32_t* __restrict__ jobs, uint32_t* __restrict__ job_count, int portions, int experts) {
  SHARED uint32_t total[1024], places[1024], tiles[1024];
  for (int expert = threadIdx.x; expert < experts; expert += 256) {
    uint32_t sum = 0;
    for (int portion = 0; portion < portions; ++portion) sum += counts[(size_t)portion * experts + expert];
    total[expert] = places[expert] = sum;
    tiles[expert] = (sum + TILE_M - 1) / TILE_M;
  }
  sync();
  // Sums up to and with each expert, in steps that double.
  for (int step = 1; step < experts; step <<= 1) {
    uint32_t place[4], tile[4];
    for (int i = 0; i < 4; ++i) {
      const int expert = threadIdx.x + 256 * i;
      const bool adds = expert >= step && expert < experts;
      place[i] = adds ? places[expert - step] : 0;
      tile[i] = adds ? tiles[expert - step] : 0;
    }
    sync();
    for (int i = 0; i < 4; ++i) {
      const int expert = threadIdx.x + 256 * i;
      if (expert < experts) {
        places[expert] += place[i];
        tiles[expert] += tile[i];
      }
    }
    sync();
  }
  if (threadIdx.x == 0) job_count[0] = tiles[experts - 1];
  for (int expert = threadIdx.x; expert < experts; expert += 256) {
    uint32_t place = places[expert] - total[expert];
    const uint32_t first_job = tiles[expert] - (total[expert] + TILE_M - 1) / TILE_M;
    for (uint32_t tile = 0; tile * TILE_M < total[expert]; ++tile) {
      uint32_t* const job = jobs + 3 * (size_t)(first_job + tile);
      const uint32_t rest = total[expert] - tile * TILE_M;
      job[0] = expert;
      job[1] = place + tile * TILE_M;
      job[2] = rest < TILE_M ? rest : TILE_M;
    }
    for (int portion = 0; portion < portions; ++portion) {
      uint32_t* const at = counts + (size_t)portion * experts + expert;
      const uint32_t here = *at;
      *at = place;
      place += here;
    }
  }
}
REGISTER(place_experts)

// order [places]: the assignment at each place; place_of [assignments] the other way round.
KERNEL(256, order_experts)(const uint32_t* __restrict__ chosen, const uint32_t* __restrict__ first, uint32_t* __restrict__ order,
                           uint32_t* __restrict__ place_of, int assignments, int experts) {
  SHARED uint32_t ids[PORTION];
  const int count = read_portion(chosen, assignments, ids);
  for (int expert = threadIdx.x; expert < experts; expert += 256) {
    uint32_t place = first[(size_t)blockIdx.x * experts + expert];
    for (int i = 0; i < count; ++i)
      if (ids[i] == (uint32_t)expert) {
        order[place] = blockIdx.x * PORTION + i;
        place_of[blockIdx.x * PORTION + i] = place++;
      }
  }
}
REGISTER(order_experts)

// y [places, outer] = the place's row of x, times its expert's weight [outer, inner] transposed. A place's row is its assignment over
// `top`, or the place itself where `top` is 0. inner is a multiple of 64. Grid: 128 outputs, jobs.
KERNEL(128, experts_bf16)(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* __restrict__ y, const uint32_t* __restrict__ jobs,
                          const uint32_t* __restrict__ job_count, const uint32_t* __restrict__ order, int outer, int inner, int top) {
  DYNAMIC_SHARED(shared);
  if (blockIdx.y >= job_count[0]) return;
  const uint32_t* const job = jobs + 3 * (size_t)blockIdx.y;
  const uint32_t expert = job[0], first = job[1], places = job[2];
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, tiles = inner / TILE_K, column0 = blockIdx.x * TILE_N;
  constexpr int A = TILE_M * TILE_K * 2, STAGE = A + TILE_N * TILE_K * 2;
  // Thread `t` copies chunk t % 8 of rows t / 8 + 16 i.
  const bf16* rows[TILE_M / 16];
  for (int i = 0; i < TILE_M / 16; ++i) {
    const uint32_t place = thread / 8 + 16 * i < (int)places ? first + thread / 8 + 16 * i : first;
    rows[i] = x + (size_t)(top ? order[place] / top : place) * inner + thread % 8 * 8;
  }
  const bf16* const columns = weight + ((size_t)expert * outer + column0 + thread / 8) * inner + thread % 8 * 8;
  auto load = [&](int t) {
    uint8_t* const stage = shared + t % STAGES * STAGE;
#pragma unroll
    for (int i = 0; i < TILE_M / 16; ++i)
      copy16(stage + chunk_at<TILE_M>(thread / 8 + 16 * i, thread % 8), rows[i] + t * TILE_K, thread / 8 + 16 * i < (int)places);
#pragma unroll
    for (int i = 0; i < TILE_N / 16; ++i) {
      const bool there = column0 + thread / 8 + 16 * i < outer;
      copy16(stage + A + chunk_at<TILE_N>(thread / 8 + 16 * i, thread % 8), there ? columns + (size_t)16 * i * inner + t * TILE_K : weight, there);
    }
  };
  float sums[2][8][4] = {};
  const int row0 = (warp & 1) * 32, near0 = (warp >> 1) * 64;
  for (int t = 0; t < STAGES - 1; ++t) {
    if (t < tiles) load(t);
    copies_commit();
  }
  for (int t = 0; t < tiles; ++t) {
    copies_wait<STAGES - 2>();
    sync();  // the tile is there, and everyone is done with the one before
    if (t + STAGES - 1 < tiles) load(t + STAGES - 1);
    copies_commit();
    if (row0 >= (int)places) continue;  // rows of nobody: in decode few tiles are half full
    const uint8_t* const stage = shared + t % STAGES * STAGE;
#pragma unroll
    for (int k = 0; k < TILE_K / 16; ++k) {
      uint32_t a[2][4], b[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrices(a[i], stage + chunk_at<TILE_M>(row0 + 16 * i + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        load_matrices(b, stage + A + chunk_at<TILE_N>(near0 + 16 * n + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_bf16(sums[i][2 * n], a[i], b[0], b[1]);
          mma_bf16(sums[i][2 * n + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int row = row0 + 16 * i + 8 * low + lane / 4, column = column0 + near0 + 8 * n + lane % 4 * 2;
        if (row < (int)places && column < outer)
          *(uint32_t*)(y + (size_t)(first + row) * outer + column) = pack_bf16(sums[i][n][2 * low], sums[i][n][2 * low + 1]);
      }
}
REGISTER(experts_bf16)

// The same in fp32, the plain form: one warp per place and 64 outputs. chosen [assignments].
KERNEL(32, experts_f32)(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y, const uint32_t* __restrict__ chosen,
                        const uint32_t* __restrict__ order, int outer, int inner, int top) {
  const uint32_t place = blockIdx.x, assignment = order[place];
  const float* const row = x + (size_t)(top ? assignment / top : place) * inner;
  const float* const matrix = weight + (size_t)chosen[assignment] * outer * inner;
  for (int o = blockIdx.y * 64 + threadIdx.x; o < outer && o < (int)blockIdx.y * 64 + 64; o += 32) {
    float sum = 0.f;
    for (int i = 0; i < inner; ++i) sum += row[i] * matrix[(size_t)o * inner + i];
    y[(size_t)place * outer + o] = sum;
  }
}
REGISTER(experts_f32)

// out [rows, width] = the sum over a row's `top` assignments of weight times what its expert said; width a multiple of 4. One block per
// row.
template <class E>
DEV void combine_experts(const E* __restrict__ y, const float* __restrict__ weights, const uint32_t* __restrict__ place_of, E* __restrict__ out,
                         int width, int top) {
  const size_t first = (size_t)blockIdx.x * top;
  for (int i = 4 * threadIdx.x; i < width; i += 512) {
    Four sum = {};
#pragma unroll 8
    for (int k = 0; k < top; ++k) {
      const Four said = read_four(y + (size_t)place_of[first + k] * width + i);
      const float weight = weights[first + k];
#pragma unroll
      for (int j = 0; j < 4; ++j) sum.at[j] += weight * said.at[j];
    }
    write_four(out + (size_t)blockIdx.x * width + i, sum);
  }
}
#define COMBINE(E, suffix)                                                                                                           \
  KERNEL(128, combine_experts_##suffix)(const E* y, const float* weights, const uint32_t* place_of, E* out, int width, int top) {    \
    combine_experts(y, weights, place_of, out, width, top);                                                                          \
  }                                                                                                                                  \
  REGISTER(combine_experts_##suffix)
FOR_EACH_FLOAT(COMBINE)
