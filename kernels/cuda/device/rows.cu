// Element-wise work on packed rows, and the choice of experts.
#include "choice.cuh"
#include "four.cuh"

// y = table[ids], rows of `units` times 16 bytes, of an embedding or of activations. One block per row.
KERNEL(128, gather_rows)(const uint8_t* __restrict__ table, const uint32_t* __restrict__ ids, uint8_t* __restrict__ y, int units) {
  const uint4* const from = (const uint4*)table + (size_t)ids[blockIdx.x] * units;
  uint4* const to = (uint4*)y + (size_t)blockIdx.x * units;
  for (int i = threadIdx.x; i < units; i += 128) to[i] = from[i];
}
REGISTER(gather_rows)

// y[i] = x[i] for elements [first, end): fp32 results that go on as bf16.
KERNEL(128, narrow_rows)(const float* __restrict__ x, bf16* __restrict__ y, uint32_t first, uint32_t end) {
  for (uint32_t i = first + blockIdx.x * 128 + threadIdx.x; i < end; i += gridDim.x * 128) store(y[i], x[i]);
}
REGISTER(narrow_rows)

// Element-wise: a fixed number of blocks passes over all elements, in fours.
#define EACH_FOUR(i, count) for (uint32_t i = 4 * (blockIdx.x * 128 + threadIdx.x); i < (count); i += gridDim.x * 512)

// x += y.
template <class E> DEV void add_rows(E* x, const E* __restrict__ y, uint32_t count) {
  EACH_FOUR(i, count) {
    const uint32_t left = count - i;
    Four sum = read_part(x + i, left >= 4, left);
    const Four more = read_part(y + i, left >= 4, left);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.at[j] += more.at[j];
    write_part(x + i, sum, left >= 4, left);
  }
}
// x *= sigmoid(gate), one gate for `each` values.
template <class E> DEV void sigmoid_gate(E* x, const E* __restrict__ gate, uint32_t count, uint32_t each) {
  EACH_FOUR(i, count) {
    const uint32_t left = count - i;
    Four scaled = read_part(x + i, left >= 4, left), gates = {};
    if (each == 1) {
      gates = read_part(gate + i, left >= 4, left);
    } else {
      uint32_t number = i / each, place = i % each;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j)
        if (j < left) {
          gates.at[j] = f32(gate[number]);
          if (++place == each) {
            place = 0;
            ++number;
          }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scaled.at[j] *= sigmoid(gates.at[j]);
    write_part(x + i, scaled, left >= 4, left);
  }
}
// y [rows, width] = silu(x[.., :width]) * x[.., width:], width a multiple of 4.
template <class E> DEV void swiglu(const E* __restrict__ x, E* __restrict__ y, uint32_t count, uint32_t width) {
  EACH_FOUR(i, count) {
    const E* const from = x + (size_t)(i / width) * 2 * width + i % width;
    Four gate = read_four(from);
    const Four up = read_four(from + width);
#pragma unroll
    for (int j = 0; j < 4; ++j) gate.at[j] = silu(gate.at[j]) * up.at[j];
    write_four(y + i, gate);
  }
}

#define ROW_KERNELS(E, suffix)                                                                                                       \
  KERNEL(128, add_rows_##suffix)(E* x, const E* y, uint32_t count) { add_rows(x, y, count); }                                        \
  REGISTER(add_rows_##suffix)                                                                                                        \
  KERNEL(128, sigmoid_gate_##suffix)(E* x, const E* gate, uint32_t count, uint32_t each) { sigmoid_gate(x, gate, count, each); }     \
  REGISTER(sigmoid_gate_##suffix)                                                                                                    \
  KERNEL(128, swiglu_##suffix)(const E* x, E* y, uint32_t count, uint32_t width) { swiglu(x, y, count, width); }                     \
  REGISTER(swiglu_##suffix)
FOR_EACH_FLOAT(ROW_KERNELS)

// The experts of each row (choice.cuh). One warp per row; logits [rows, experts], chosen and weights [rows, most].
KERNEL(32, choose_experts)(const float* logits, uint32_t* chosen, float* weights, int experts, int most, int renormalise) {
  let_others_start();
  await_inputs();
  const size_t row = blockIdx.x;
  choose(logits + row * experts, chosen + row * most, weights + row * most, experts, most, renormalise);
}
REGISTER(choose_experts)

// What a sampler needs of logits [rows, width], so that no row leaves the device: the `most` largest of each row, largest first, equal ones
// by number, with their numbers; and the logarithm of the sum of all exponentials, NaN if a logit is not finite. A row is cut into parts,
// one block for each; then one warp for each row.
constexpr int TOP_THREADS = 512;
// Takes the best of what comes after the last one taken, over the block. `value` and `id` are this thread's best.
struct Best { float value; int id; };
DEV bool is_before(float x, int i, float y, int j) { return x > y || (x == y && i < j); }
DEV Best best_of_warp(Best best) {
  // Numbers of a vocabulary are exact as floats.
  for (int m = 16; m; m >>= 1) {
    const float other = shuffle_xor(best.value, m);
    const int other_id = (int)shuffle_xor((float)best.id, m);
    if (is_before(other, other_id, best.value, best.id)) best = {other, other_id};
  }
  return best;
}
// parts [rows, parts]: ids and values [.., most], log_sum.
KERNEL(TOP_THREADS, top_of_parts)(const float* __restrict__ logits, uint32_t* __restrict__ ids, float* __restrict__ values,
                                  float* __restrict__ log_sum, int width, int most, int each) {
  SHARED float part[TOP_THREADS / 32], best_of[TOP_THREADS / 32];
  SHARED int id_of[TOP_THREADS / 32];
  const float* const row = logits + (size_t)blockIdx.x * width;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, begin = blockIdx.y * each;
  const int end = begin + each < width ? begin + each : width;
  const size_t at = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
  Best last = {INFINITY, -1};
  float largest = 0.f;
  for (int n = 0; n < most; ++n) {
    Best best = {-INFINITY, width};
#pragma unroll 4
    for (int i = begin + thread; i < end; i += TOP_THREADS) {
      const float x = row[i];
      if (is_before(last.value, last.id, x, i) && is_before(x, i, best.value, best.id)) best = {x, i};
    }
    best = best_of_warp(best);
    sync();  // the last pass has been read
    if (lane == 0) {
      best_of[warp] = best.value;
      id_of[warp] = best.id;
    }
    sync();
    best = {best_of[0], id_of[0]};
    for (int w = 1; w < TOP_THREADS / 32; ++w)
      if (is_before(best_of[w], id_of[w], best.value, best.id)) best = {best_of[w], id_of[w]};
    if (thread == 0) {
      ids[at * most + n] = (uint32_t)best.id;
      values[at * most + n] = best.value;
    }
    if (n == 0) largest = best.value;
    last = best;
  }
  float sum = 0.f;
#pragma unroll 4
  for (int i = begin + thread; i < end; i += TOP_THREADS) sum += fabsf(row[i]) < INFINITY ? expf(row[i] - largest) : NAN;
  sum = block_sum<TOP_THREADS>(sum, part);
  if (thread == 0) log_sum[at] = largest + logf(sum);
}
REGISTER(top_of_parts)
// found [rows, 2 most + 1]: numbers, values, and the logarithm, of the parts of each row.
KERNEL(32, top_of_rows)(const uint32_t* __restrict__ ids, const float* __restrict__ values, const float* __restrict__ log_sums,
                        uint32_t* __restrict__ found, int width, int most, int parts) {
  const size_t first = (size_t)blockIdx.x * parts;
  uint32_t* const out = found + (size_t)blockIdx.x * (2 * most + 1);
  const int lane = threadIdx.x;
  Best last = {INFINITY, -1};
  for (int n = 0; n < most; ++n) {
    Best best = {-INFINITY, width};
    for (int i = lane; i < parts * most; i += 32) {
      const float x = values[first * most + i];
      const int id = (int)ids[first * most + i];
      if (is_before(last.value, last.id, x, id) && is_before(x, id, best.value, best.id)) best = {x, id};
    }
    best = best_of_warp(best);
    if (lane == 0) {
      out[n] = (uint32_t)(best.id < width ? best.id : width - 1);  // logits that are no numbers
      ((float*)out)[most + n] = best.value;
    }
    last = best;
  }
  float largest = -INFINITY, sum = 0.f;
  for (int i = lane; i < parts; i += 32) largest = fmaxf(largest, log_sums[first + i]);
  for (int m = 16; m; m >>= 1) largest = fmaxf(largest, shuffle_xor(largest, m));
  for (int i = lane; i < parts; i += 32) sum += expf(log_sums[first + i] - largest);
  for (int m = 16; m; m >>= 1) sum += shuffle_xor(sum, m);
  if (lane == 0) ((float*)out)[2 * most] = largest + logf(sum);
}
REGISTER(top_of_rows)
