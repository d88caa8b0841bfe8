// A mixture of experts for few rows: every weight that somebody chose streams once, and nothing is sorted. A block finds the rows of its
// expert in the choices by itself. The expert that all rows share rides along.
#include "stream.cuh"

constexpr int MOST_MEMBERS = 256;  // of an expert: twice the rows of a step, as a row without a number may choose one twice

// The rows of a block: those that chose its expert, as assignments (row times `top`, plus the place among the row's choices), or eight rows
// of the shared expert.
struct Members {
  const uint32_t* list;  // null: rows from `first` on
  int first, count;
  uint32_t expert;
  DEV_MEMBER int of(int i) const { return i >= count ? -1 : list == nullptr ? first + i : (int)list[i]; }
};
// blockIdx.y: first the eights of rows of the shared expert, then the experts; where there are fewer assignments than experts, the
// assignments, of which the first of an expert has them all. Every warp makes its own list.
DEV Members find_members(const uint32_t* chosen, int rows, int top, int experts, int is_shared) {
  SHARED uint32_t lists[STREAM_WARPS][MOST_MEMBERS];
  const int lane = threadIdx.x & 31, assignments = rows * top, eights = is_shared ? (rows + STREAM_ROWS - 1) / STREAM_ROWS : 0;
  const int number = (int)blockIdx.y - eights;
  if (number < 0) {
    const int first = blockIdx.y * STREAM_ROWS;
    return {nullptr, first, rows - first < STREAM_ROWS ? rows - first : STREAM_ROWS, 0};
  }
  const bool by_assignment = assignments < experts;
  const uint32_t expert = by_assignment ? chosen[number] : (uint32_t)number;
  uint32_t* const list = lists[threadIdx.x >> 5];
  int count = 0;
  for (int base = 0; base < assignments; base += 128) {
    uint32_t ids[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) ids[i] = base + 32 * i + lane < assignments ? chosen[base + 32 * i + lane] : ~0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t found = lanes_where(ids[i] == expert);
      if (found >> lane & 1) list[count + bits_set(found & ((1u << lane) - 1))] = base + 32 * i + lane;
      count += bits_set(found);
    }
  }
  sync_warp();
  if (by_assignment && list[0] != (uint32_t)number) count = 0;
  return {list, 0, count, expert};
}

// The gates and ups of one expert's rows: those of `weight` from row `expert` on.
template <int AHEAD, class W>
DEV void gate_up_of(const Members& members, const bf16* __restrict__ x, const W* weight, const float* factors, size_t expert,
                    bf16* __restrict__ inner, int top, int hidden, int wide, int split) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split;
  const bool is_there = tile * 8 < wide;
  const size_t row_of_gate = expert + (is_there ? tile * 8 + g : 0);
  const WeightRow<W> gate = row_of(weight, factors, row_of_gate, hidden), up = row_of(weight, factors, row_of_gate + wide, hidden);
  for (int first = 0; first < members.count; first += STREAM_ROWS) {
    float sums[4] = {};
    const int mine = members.of(first + g);
    const bf16* const row = mine < 0 ? nullptr : x + (size_t)(mine / top) * hidden;
    if (is_there) stream_product<AHEAD, false>(sums, gate, up, hidden, split, row);
    add_shares(sums, split);
    if (!is_there || warp % split) continue;
    for (int e = 0; e < 2; ++e) {
      const int member = members.of(first + 2 * t + e);
      if (member >= 0) store(inner[(size_t)member * wide + tile * 8 + g], silu(sums[e]) * sums[2 + e]);
    }
  }
}
// inner [assignments, width] = silu(x gate^T) * (x up^T) with the matrices of each row's expert, gate_up [experts, 2 width, hidden], and
// shared_inner [rows, shared_width] likewise; weights with factors are codes. A tile is eight outputs: eight rows of gate and eight of up.
// `split` warps for each tile.
template <int AHEAD, int CODES>
DEV void gate_up_few(const bf16* __restrict__ x, const void* gate_up, const void* shared_gate_up, const float* factors, const float* shared_factors,
                     const uint32_t* __restrict__ chosen, bf16* __restrict__ inner, bf16* __restrict__ shared_inner, int rows, int top,
                     int experts, int hidden, int width, int shared_width, int split) {
  let_others_start();
  await_inputs();
  const Members members = find_members(chosen, rows, top, experts, shared_width > 0);
  if (members.count == 0) return;
  const bool is_shared = members.list == nullptr;
  const int wide = is_shared ? shared_width : width;
  const size_t expert = is_shared ? 0 : (size_t)members.expert * 2 * width;
  const void* const weight = is_shared ? shared_gate_up : gate_up;
  const float* const scale = is_shared ? shared_factors : factors;
  bf16* const out = is_shared ? shared_inner : inner;
  const int sharing = is_shared ? 1 : top;
  if (CODES > 0 && scale != nullptr)
    gate_up_of<(CODES > 0 ? CODES : 1)>(members, x, (const uint8_t*)weight, scale, expert, out, sharing, hidden, wide, split);
  else
    gate_up_of<AHEAD>(members, x, (const bf16*)weight, nullptr, expert, out, sharing, hidden, wide, split);
}
#define GATE_UP_FEW(name, AHEAD)                                                                                                     \
  KERNEL(32 * STREAM_WARPS, name)(const bf16* x, const bf16* gate_up, const bf16* shared_gate_up, const uint32_t* chosen, bf16* inner, \
                                  bf16* shared_inner, int rows, int top, int experts, int hidden, int width, int shared_width,       \
                                  int split) {                                                                                       \
    gate_up_few<AHEAD, 0>(x, gate_up, shared_gate_up, nullptr, nullptr, chosen, inner, shared_inner, rows, top, experts, hidden, width, \
                          shared_width, split);                                                                                      \
  }                                                                                                                                  \
  REGISTER(name)
GATE_UP_FEW(experts_few_gate_up, 6)
// Of few jobs all blocks fit the device at once with fewer registers, and none runs behind the others.
GATE_UP_FEW(experts_few_gate_up_wide, 4)
KERNEL(32 * STREAM_WARPS, experts_few_gate_up_codes)(const bf16* x, const void* gate_up, const void* shared_gate_up, const float* factors,
                                                     const float* shared_factors, const uint32_t* chosen, bf16* inner, bf16* shared_inner,
                                                     int rows, int top, int experts, int hidden, int width, int shared_width, int split) {
  gate_up_few<6, 4>(x, gate_up, shared_gate_up, factors, shared_factors, chosen, inner, shared_inner, rows, top, experts, hidden, width,
                    shared_width, split);
}
REGISTER(experts_few_gate_up_codes)

// The downs of one expert's rows: those of `weight` from row `expert` on.
template <int AHEAD, class W>
DEV void down_of(const Members& members, const bf16* __restrict__ inner, const W* weight, const float* factors, size_t expert,
                 float* __restrict__ said, int hidden, int wide, int split) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split;
  const bool is_there = tile * STREAM_OUTER < hidden;
  const size_t first_row = expert + (is_there ? tile * STREAM_OUTER + g : 0);
  const WeightRow<W> near = row_of(weight, factors, first_row, wide), far = row_of(weight, factors, first_row + 8, wide);
  for (int first = 0; first < members.count; first += STREAM_ROWS) {
    float sums[4] = {};
    const int mine = members.of(first + g);
    const bf16* const row = mine < 0 ? nullptr : inner + (size_t)mine * wide;
    if (is_there) stream_product<AHEAD, false>(sums, near, far, wide, split, row);
    add_shares(sums, split);
    if (!is_there || warp % split) continue;
    for (int e = 0; e < 4; ++e) {
      const int member = members.of(first + 2 * t + (e & 1));
      if (member >= 0) said[(size_t)member * hidden + tile * STREAM_OUTER + g + 8 * (e >> 1)] = sums[e];
    }
  }
}
// said [assignments, hidden] = inner down^T with the matrix of each row's expert, down [experts, hidden, width], and shared_said [rows,
// hidden] likewise; weights with factors are codes. A tile is 16 outputs.
template <int AHEAD, int CODES>
DEV void down_few(const bf16* __restrict__ inner, const bf16* __restrict__ shared_inner, const void* down, const void* shared_down,
                  const float* factors, const float* shared_factors, const uint32_t* __restrict__ chosen, float* __restrict__ said,
                  float* __restrict__ shared_said, int rows, int top, int experts, int hidden, int width, int shared_width, int split) {
  let_others_start();
  await_inputs();
  const Members members = find_members(chosen, rows, top, experts, shared_width > 0);
  if (members.count == 0) return;
  const bool is_shared = members.list == nullptr;
  const int wide = is_shared ? shared_width : width;
  const size_t expert = is_shared ? 0 : (size_t)members.expert * hidden;
  const void* const weight = is_shared ? shared_down : down;
  const float* const scale = is_shared ? shared_factors : factors;
  const bf16* const in = is_shared ? shared_inner : inner;
  float* const out = is_shared ? shared_said : said;
  if (CODES > 0 && scale != nullptr)
    down_of<(CODES > 0 ? CODES : 1)>(members, in, (const uint8_t*)weight, scale, expert, out, hidden, wide, split);
  else
    down_of<AHEAD>(members, in, (const bf16*)weight, nullptr, expert, out, hidden, wide, split);
}
KERNEL(32 * STREAM_WARPS, experts_few_down)(const bf16* inner, const bf16* shared_inner, const bf16* down, const bf16* shared_down,
                                            const uint32_t* chosen, float* said, float* shared_said, int rows, int top, int experts,
                                            int hidden, int width, int shared_width, int split) {
  down_few<6, 0>(inner, shared_inner, down, shared_down, nullptr, nullptr, chosen, said, shared_said, rows, top, experts, hidden, width,
                 shared_width, split);
}
REGISTER(experts_few_down)
KERNEL(32 * STREAM_WARPS, experts_few_down_codes)(const bf16* inner, const bf16* shared_inner, const void* down, const void* shared_down,
                                                  const float* factors, const float* shared_factors, const uint32_t* chosen, float* said,
                                                  float* shared_said, int rows, int top, int experts, int hidden, int width,
                                                  int shared_width, int split) {
  down_few<6, 3>(inner, shared_inner, down, shared_down, factors, shared_factors, chosen, said, shared_said, rows, top, experts, hidden, width,
                 shared_width, split);
}
REGISTER(experts_few_down_codes)

// out [rows, hidden] += the sum over a row's assignments of weight times what its expert said, in the order of the choices, and of
// sigmoid(gate) times what the shared expert said, where there is one. Grid: rows, 128 values.
KERNEL(128, experts_few_sum)(const float* __restrict__ said, const float* __restrict__ shared_said, const float* __restrict__ weights,
                             const float* __restrict__ gate, bf16* __restrict__ out, int hidden, int top, int is_shared) {
  let_others_start();
  await_inputs();
  const int row = blockIdx.x, i = blockIdx.y * 128 + threadIdx.x;
  if (i >= hidden) return;
  float sum = f32(out[(size_t)row * hidden + i]);
  for (int k = 0; k < top; ++k) sum += weights[row * top + k] * said[((size_t)row * top + k) * hidden + i];
  if (is_shared) sum += sigmoid(gate[row]) * shared_said[(size_t)row * hidden + i];
  store(out[(size_t)row * hidden + i], sum);
}
REGISTER(experts_few_sum)
