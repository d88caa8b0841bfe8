// A mixture of experts for few rows: every weight that somebody chose streams once, and nothing is sorted. A block finds the rows of its
// expert in the choices by itself; of one row it makes the choice for gates and ups too: all blocks run at once then, and that is less than a
// launch. The expert that all rows share rides along.
#include "choice.cuh"
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
// assignments, of which the first of an expert has them all. What is left of it behind the eights: below zero for the shared expert.
DEV int number_of(int rows, bool is_shared) { return (int)blockIdx.y - (is_shared ? (rows + STREAM_ROWS - 1) / STREAM_ROWS : 0); }
DEV Members members_of_shared(int rows) {
  const int first = blockIdx.y * STREAM_ROWS;
  return {nullptr, first, rows - first < STREAM_ROWS ? rows - first : STREAM_ROWS, 0};
}
// Of one row, each of whose experts is chosen once; `id_of` says which one choice i is.
template <class Ids> DEV Members member_of_row(Ids id_of, int top, int experts, int number) {
  if (top < experts) return {nullptr, number, 1, id_of(number)};
  int i = 0;
  while (i + 1 < top && id_of(i) != (uint32_t)number) ++i;
  return {nullptr, i, 1, (uint32_t)number};
}
// Every warp makes its own list.
DEV Members find_members(const uint32_t* chosen, int rows, int top, int experts, int number) {
  SHARED uint32_t lists[STREAM_WARPS][MOST_MEMBERS];
  const int lane = threadIdx.x & 31, assignments = rows * top;
  const bool by_assignment = assignments < experts;
  const uint32_t expert = by_assignment ? chosen[number] : (uint32_t)number;
  uint32_t* const list = lists[threadIdx.x >> 5];
  int count = 0;
  for (int base = 0; base < assignments; base += 128) {
    uint32_t ids[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) ids[i] = base + 32 * i + lane < assignments ? chosen[base + 32 * i + lane] : NOBODY;
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

// The gates and ups of one expert's rows: those of `weight` from row `expert` on. `wait` waits once the first of them are asked for.
template <int AHEAD, class W, class Wait>
DEV void gate_up_of(const Members& members, const bf16* __restrict__ x, const W* weight, const float* factors, size_t expert,
                    bf16* __restrict__ inner, int top, int hidden, int wide, int split, Wait wait) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split;
  const bool is_there = tile * 8 < wide;
  const size_t row_of_gate = expert + (is_there ? tile * 8 + g : 0);
  const WeightRow<W> gate = row_of(weight, factors, row_of_gate, hidden), up = row_of(weight, factors, row_of_gate + wide, hidden);
  const int first_of_lane = first_term<W>(hidden, split);
  const auto asked = [&] { return ask_share<AHEAD>(gate, up, hidden, split, is_there); };
  auto stream = asked();
  wait();
  for (int first = 0;;) {
    float sums[4] = {};
    const int mine = members.of(first + g);
    stream.multiply(sums, mine < 0 ? nullptr : x + (size_t)(mine / top) * hidden + first_of_lane);
    add_shares(sums, split);
    if (is_there && warp % split == 0)
      for (int e = 0; e < 2; ++e) {
        const int member = members.of(first + 2 * t + e);
        if (member >= 0) store(inner[(size_t)member * wide + tile * 8 + g], silu(sums[e]) * sums[2 + e]);
      }
    first += STREAM_ROWS;
    if (first >= members.count) break;
    stream = asked();
  }
}
// What experts are chosen by, logits [rows, experts], where the choice is made here, and where it goes: chosen, weights [rows, top].
struct Scores {
  const float* logits;
  uint32_t* chosen;
  float* weights;
  int renormalise;
};
// inner [assignments, width] = silu(x gate^T) * (x up^T) with the matrices of each row's expert, gate_up [experts, 2 width, hidden], and
// shared_inner [rows, shared_width] likewise; weights with factors are codes. chosen [rows, top]; with MAKES, of one row, it is made here. A
// tile is eight outputs: eight rows of gate and eight of up. `split` warps for each tile.
template <int AHEAD, int CODES, bool MAKES>
DEV void gate_up_few(const bf16* __restrict__ x, const void* gate_up, const void* shared_gate_up, const float* factors,
                     const float* shared_factors, const uint32_t* chosen, const Scores& scores, bf16* __restrict__ inner,
                     bf16* __restrict__ shared_inner, int rows, int top, int experts, int hidden, int width, int shared_width, int split) {
  SHARED uint32_t made[MAKES ? MOST_MEMBERS : 1];
  const int number = number_of(rows, shared_width > 0);
  const bool is_shared = number < 0;
  if (!MAKES) let_others_start();
  const auto arrive = [] {
    await_inputs();
    if (MAKES) let_others_start();  // not before: the next launch waits for the choice, of which nobody must be left from before
  };
  if (!is_shared) arrive();  // what the shared expert reads is known before the rows are there
  if (MAKES && !is_shared) {
    const bool gives = blockIdx.x == 0 && number == 0;
    if (threadIdx.x < 32) choose(scores.logits, made, gives ? scores.weights : nullptr, experts, top, scores.renormalise);
    sync();
    for (int i = threadIdx.x; gives && i < top; i += blockDim.x) write_word(scores.chosen + i, made[i]);
  }
  const Members members = is_shared ? members_of_shared(rows)
                          : MAKES   ? member_of_row([&](int i) { return made[i]; }, top, experts, number)
                                    : find_members(chosen, rows, top, experts, number);
  if (members.count == 0) return;
  const int wide = is_shared ? shared_width : width, each = is_shared ? 1 : top;
  const size_t expert = is_shared ? 0 : (size_t)members.expert * 2 * width;
  const void* const weight = is_shared ? shared_gate_up : gate_up;
  const float* const scale = is_shared ? shared_factors : factors;
  bf16* const out = is_shared ? shared_inner : inner;
  const auto wait = [&] {
    if (is_shared) arrive();
  };
  if (CODES > 0 && scale != nullptr)
    gate_up_of<(CODES > 0 ? CODES : 1)>(members, x, (const uint8_t*)weight, scale, expert, out, each, hidden, wide, split, wait);
  else
    gate_up_of<AHEAD>(members, x, (const bf16*)weight, nullptr, expert, out, each, hidden, wide, split, wait);
}
KERNEL(32 * STREAM_WARPS, experts_few_gate_up)(const bf16* x, const bf16* gate_up, const bf16* shared_gate_up, const uint32_t* chosen,
                                               bf16* inner, bf16* shared_inner, int rows, int top, int experts, int hidden, int width,
                                               int shared_width, int split) {
  gate_up_few<6, 0, false>(x, gate_up, shared_gate_up, nullptr, nullptr, chosen, {}, inner, shared_inner, rows, top, experts, hidden, width,
                           shared_width, split);
}
REGISTER(experts_few_gate_up)
KERNEL(32 * STREAM_WARPS, experts_few_gate_up_codes)(const bf16* x, const void* gate_up, const void* shared_gate_up, const float* factors,
                                                     const float* shared_factors, const uint32_t* chosen, bf16* inner, bf16* shared_inner,
                                                     int rows, int top, int experts, int hidden, int width, int shared_width, int split) {
  gate_up_few<6, 4, false>(x, gate_up, shared_gate_up, factors, shared_factors, chosen, {}, inner, shared_inner, rows, top, experts, hidden,
                           width, shared_width, split);
}
REGISTER(experts_few_gate_up_codes)
#define CHOOSE_GATE_UP_FEW(entry, name, AHEAD)                                                                                       \
  entry(const bf16* x, const bf16* gate_up, const bf16* shared_gate_up, const float* logits, uint32_t* chosen, float* weights,       \
        bf16* inner, bf16* shared_inner, int rows, int top, int experts, int hidden, int width, int shared_width, int split,         \
        int renormalise) {                                                                                                           \
    gate_up_few<AHEAD, 0, true>(x, gate_up, shared_gate_up, nullptr, nullptr, nullptr, {logits, chosen, weights, renormalise},       \
                                inner, shared_inner, rows, top, experts, hidden, width, shared_width, split);                        \
  }                                                                                                                                  \
  REGISTER(name)
CHOOSE_GATE_UP_FEW(KERNEL(32 * STREAM_WARPS, experts_few_choose_gate_up), experts_few_choose_gate_up, 6)
// Of few jobs all blocks, of four warps, fit the device at once with fewer registers, and none runs behind the others.
CHOOSE_GATE_UP_FEW(KERNEL_OF_MANY(128, 5, experts_few_choose_gate_up_wide), experts_few_choose_gate_up_wide, 4)
KERNEL(32 * STREAM_WARPS, experts_few_choose_gate_up_codes)(const bf16* x, const void* gate_up, const void* shared_gate_up,
                                                            const float* factors, const float* shared_factors, const float* logits,
                                                            uint32_t* chosen, float* weights, bf16* inner, bf16* shared_inner, int rows,
                                                            int top, int experts, int hidden, int width, int shared_width, int split,
                                                            int renormalise) {
  gate_up_few<6, 4, true>(x, gate_up, shared_gate_up, factors, shared_factors, nullptr, {logits, chosen, weights, renormalise}, inner,
                          shared_inner, rows, top, experts, hidden, width, shared_width, split);
}
REGISTER(experts_few_choose_gate_up_codes)

// The downs of one expert's rows: those of `weight` from row `expert` on. `wait` waits once the first of them are asked for.
template <int AHEAD, class W, class Wait>
DEV void down_of(const Members& members, const bf16* __restrict__ inner, const W* weight, const float* factors, size_t expert,
                 float* __restrict__ said, int hidden, int wide, int split, Wait wait) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x * ((int)blockDim.x / 32 / split) + warp / split;
  const bool is_there = tile * STREAM_OUTER < hidden;
  const size_t first_row = expert + (is_there ? tile * STREAM_OUTER + g : 0);
  const WeightRow<W> near = row_of(weight, factors, first_row, wide), far = row_of(weight, factors, first_row + 8, wide);
  const int first_of_lane = first_term<W>(wide, split);
  const auto asked = [&] { return ask_share<AHEAD>(near, far, wide, split, is_there); };
  auto stream = asked();
  wait();
  for (int first = 0;;) {
    float sums[4] = {};
    const int mine = members.of(first + g);
    stream.multiply(sums, mine < 0 ? nullptr : inner + (size_t)mine * wide + first_of_lane);
    add_shares(sums, split);
    if (is_there && warp % split == 0)
      for (int e = 0; e < 4; ++e) {
        const int member = members.of(first + 2 * t + (e & 1));
        if (member >= 0) said[(size_t)member * hidden + tile * STREAM_OUTER + g + 8 * (e >> 1)] = sums[e];
      }
    first += STREAM_ROWS;
    if (first >= members.count) break;
    stream = asked();
  }
}
// said [assignments, hidden] = inner down^T with the matrix of each row's expert, down [experts, hidden, width], and shared_said [rows,
// hidden] likewise; weights with factors are codes. A tile is 16 outputs. Where the choice is made by the launch before this one, which
// lets it start then, the first weights are asked for before what lies between is there.
template <int CODES>
DEV void down_few(const bf16* __restrict__ inner, const bf16* __restrict__ shared_inner, const void* down, const void* shared_down,
                  const float* factors, const float* shared_factors, const uint32_t* chosen, float* __restrict__ said,
                  float* __restrict__ shared_said, int rows, int top, int experts, int hidden, int width, int shared_width, int split, int is_made) {
  let_others_start();
  if (is_made) await_inputs();
  const int number = number_of(rows, shared_width > 0);
  const bool is_shared = number < 0;
  const Members members = is_shared ? members_of_shared(rows)
                          : is_made ? find_members(chosen, rows, top, experts, number)
                                    : member_of_row([&](int i) { return await_word(chosen + i); }, top, experts, number);
  if (members.count == 0) {
    await_inputs();  // who is done says so for all before it
    return;
  }
  const int wide = is_shared ? shared_width : width;
  const size_t expert = is_shared ? 0 : (size_t)members.expert * hidden;
  const void* const weight = is_shared ? shared_down : down;
  const float* const scale = is_shared ? shared_factors : factors;
  const bf16* const in = is_shared ? shared_inner : inner;
  float* const out = is_shared ? shared_said : said;
  const auto wait = [] { await_inputs(); };
  if (CODES > 0 && scale != nullptr)
    down_of<(CODES > 0 ? CODES : 1)>(members, in, (const uint8_t*)weight, scale, expert, out, hidden, wide, split, wait);
  else
    down_of<6>(members, in, (const bf16*)weight, nullptr, expert, out, hidden, wide, split, wait);
}
KERNEL(32 * STREAM_WARPS, experts_few_down)(const bf16* inner, const bf16* shared_inner, const bf16* down, const bf16* shared_down,
                                            const uint32_t* chosen, float* said, float* shared_said, int rows, int top, int experts,
                                            int hidden, int width, int shared_width, int split, int is_made) {
  down_few<0>(inner, shared_inner, down, shared_down, nullptr, nullptr, chosen, said, shared_said, rows, top, experts, hidden, width,
              shared_width, split, is_made);
}
REGISTER(experts_few_down)
KERNEL(32 * STREAM_WARPS, experts_few_down_codes)(const bf16* inner, const bf16* shared_inner, const void* down, const void* shared_down,
                                                  const float* factors, const float* shared_factors, const uint32_t* chosen, float* said,
                                                  float* shared_said, int rows, int top, int experts, int hidden, int width,
                                                  int shared_width, int split, int is_made) {
  down_few<3>(inner, shared_inner, down, shared_down, factors, shared_factors, chosen, said, shared_said, rows, top, experts, hidden, width,
              shared_width, split, is_made);
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

// The downs of one row and their sum: out [hidden] += as `experts_few_sum`, bit for bit. A block has 16 outputs and a warp for each expert
// that the row chose, then for the shared one; of at most 512 terms, so that a warp has a whole sum. chosen, weights [top].
constexpr int ONE_ROW_WARPS = 16;
template <int AHEAD, int CODES>
DEV void down_one(const bf16* __restrict__ inner, const bf16* __restrict__ shared_inner, const void* down, const void* shared_down,
                  const float* factors, const float* shared_factors, const uint32_t* chosen, const float* weights, const float* gate, bf16* out,
                  int top, int hidden, int width, int shared_width, int is_made) {
  SHARED float said[ONE_ROW_WARPS][STREAM_OUTER], shares[ONE_ROW_WARPS];
  let_others_start();
  if (is_made) await_inputs();
  const int number = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
  const bool is_shared = number == top;
  const int wide = is_shared ? shared_width : width;
  const size_t row = (is_shared ? 0 : (size_t)(is_made ? chosen[number] : await_word(chosen + number)) * hidden) + blockIdx.x * STREAM_OUTER + g;
  const bf16* const in = is_shared ? shared_inner : inner + (size_t)number * width;
  const float* const scale = is_shared ? shared_factors : factors;
  const void* const all = is_shared ? shared_down : down;
  float sums[4] = {}, share = 0.f, sum = 0.f;
  const int own = blockIdx.x * STREAM_OUTER + threadIdx.x % STREAM_OUTER;
  // The weights are on their way before the row is there.
  auto multiply = [&](auto stream, int first) {
    await_inputs();
    // What comes behind the product is read before it.
    share = is_shared ? sigmoid(gate[0]) : weights[number];
    sum = f32(out[own]);
    stream.multiply(sums, g == 0 ? in + first : nullptr);
  };
  if (CODES > 0 && scale != nullptr) {
    const auto of = [&](size_t row) { return row_of((const uint8_t*)all, scale, row, wide); };
    multiply(ask_share<(CODES > 0 ? CODES : 1)>(of(row), of(row + 8), wide, 1, true), first_term<uint8_t>(wide, 1));
  } else {
    const auto of = [&](size_t row) { return row_of((const bf16*)all, nullptr, row, wide); };
    multiply(ask_share<AHEAD>(of(row), of(row + 8), wide, 1, true), first_term<bf16>(wide, 1));
  }
  if (lane % 4 == 0) {
    said[number][g] = sums[0];
    said[number][g + 8] = sums[2];
  }
  if (lane == 0) shares[number] = share;
  sync();
  if (threadIdx.x >= STREAM_OUTER) return;
  for (int k = 0; k < top + (shared_width > 0); ++k) sum += shares[k] * said[k][threadIdx.x];
  store(out[own], sum);
}
KERNEL(32 * ONE_ROW_WARPS, experts_few_down_one)(const bf16* inner, const bf16* shared_inner, const bf16* down, const bf16* shared_down,
                                                 const uint32_t* chosen, const float* weights, const float* gate, bf16* out, int top,
                                                 int hidden, int width, int shared_width, int is_made) {
  down_one<8, 0>(inner, shared_inner, down, shared_down, nullptr, nullptr, chosen, weights, gate, out, top, hidden, width, shared_width, is_made);
}
REGISTER(experts_few_down_one)
KERNEL(32 * ONE_ROW_WARPS, experts_few_down_one_codes)(const bf16* inner, const bf16* shared_inner, const void* down,
                                                       const void* shared_down, const float* factors, const float* shared_factors,
                                                       const uint32_t* chosen, const float* weights, const float* gate, bf16* out, int top,
                                                       int hidden, int width, int shared_width, int is_made) {
  down_one<8, 4>(inner, shared_inner, down, shared_down, factors, shared_factors, chosen, weights, gate, out, top, hidden, width, shared_width, is_made);
}
REGISTER(experts_few_down_one_codes)
