// One token of many sequences through a linear layer: what `conv_warm` and `compose_seam` do for a run of one row and no bodies, bit for
// bit, with the tails, the gates and the states in two launches. slots [rows]: the slot of each row's sequence.
#include "conv.cuh"
#include "norm.cuh"

namespace step {
constexpr int COLUMNS = 32, QUARTERS = 4;

// x [rows, channels]: raw queries, keys, values; taps [channels, TAPS]; tails: a slot's begins `stride` values behind the last one's, at
// `first`, [TAPS - 1, channels], and moves on by x. q, k [rows, key heads, width], v [rows, heads, width]. a, b, gate, beta [rows, heads];
// a_log, dt_bias [heads]; width a multiple of 4, at most 128. One warp for a head of a row, four channels in a thread.
template <class E>
DEV void conv_step(const E* __restrict__ x, const float* __restrict__ taps, const uint32_t* __restrict__ slots, E* tails, uint32_t stride,
                   uint32_t first, const E* __restrict__ a, const E* __restrict__ b, const float* __restrict__ a_log,
                   const float* __restrict__ dt_bias, E* __restrict__ q, E* __restrict__ k, E* __restrict__ v, float* __restrict__ gate,
                   float* __restrict__ beta, int key_heads, int heads, int width) {
  const int row = blockIdx.x, head = blockIdx.y * 4 + threadIdx.x / 32, channels = (2 * key_heads + heads) * width;
  const int i = threadIdx.x % 32 * 4, channel = head * width + i;
  const bool works = i < width, is_q = head < key_heads, is_k = !is_q && head < 2 * key_heads;
  Four weights[4] = {}, values[TAPS] = {};
  await_inputs();
  let_others_start();  // not before: the next launch reads states that the last one of this layer may have written
  if (head >= 2 * key_heads + heads) return;
  if (works) {
    E* const tail = tails + (size_t)slots[row] * stride + first + channel;
#pragma unroll
    for (int j = 0; j < 4; ++j) weights[j] = read_four(taps + (size_t)(channel + j) * TAPS);
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
      values[tap] = read_four(tap < TAPS - 1 ? tail + (size_t)tap * channels : x + (size_t)row * channels + channel);
#pragma unroll
    for (int tap = 1; tap < TAPS; ++tap) write_four(tail + (size_t)(tap - 1) * channels, values[tap]);
  }
  const float scale = is_q ? 1.f / sqrtf((float)width) : 1.f;
  const Four y = convolved<E>(weights, values[0], values[1], values[2], values[3], is_q || is_k, scale);
  if (!is_q && !is_k && i == 0) {
    const int number = head - 2 * key_heads;
    const size_t at = (size_t)row * heads + number;
    const float sum = f32(a[at]) + dt_bias[number];
    gate[at] = -expf(a_log[number]) * (sum > 20.f ? sum : log1pf(expf(sum)));
    beta[at] = sigmoid(f32(b[at]));
  }
  if (!works) return;
  if (is_q) write_four(q + ((size_t)row * key_heads + head) * width + i, y);
  else if (is_k) write_four(k + ((size_t)row * key_heads + head - key_heads) * width + i, y);
  else write_four(v + ((size_t)row * heads + head - 2 * key_heads) * width + i, y);
}

// What stands behind a head's outputs where one block has them all: y [rows, heads, D] = gated_norm of o, gate z like y, w [D].
template <class E> struct Behind {
  const E* z;
  const float* w;
  E* y;
  float eps;
};

// S <- e^g S ;  u = b (v - k^T S) ;  S <- S + k u^T ;  o = q^T S. state: a slot's begins `stride` values behind the last one's,
// [heads, key, value]. One block for a head of a row and SPAN columns: lane = column, warp = a quarter of the key rows, in registers.
// Blocks of 32 columns write o to `out`; those of a whole head its gated norm, with the bits of `gated_norm`.
template <int D, int SPAN, class E>
DEV void gdn_step(const E* __restrict__ q, const E* __restrict__ k, const E* __restrict__ v, const float* __restrict__ gate,
                  const float* __restrict__ beta, const uint32_t* __restrict__ slots, float* state, uint32_t stride, E* __restrict__ out,
                  const Behind<E>& behind, int heads, int key_heads) {
  constexpr bool IS_WHOLE = SPAN == D;
  SHARED float part[2][QUARTERS][SPAN], keys[D], queries[D];
  SHARED Four outputs[IS_WHOLE ? D / 4 : 1];
  constexpr int ROWS = D / QUARTERS;
  const int head = blockIdx.x, row = blockIdx.z, key_head = head / (heads / key_heads), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int c = IS_WHOLE ? warp / QUARTERS * COLUMNS + lane : lane, quarter = warp % QUARTERS, row0 = quarter * ROWS, column = blockIdx.y * SPAN + c;
  float* const home = state + (size_t)slots[row] * stride + ((size_t)head * D + row0) * D + column;
  const size_t at = (size_t)row * heads + head, key_at = ((size_t)row * key_heads + key_head) * D;
  const bool is_behind = IS_WHOLE && warp == 0 && 4 * lane < D;
  float s[ROWS];
  Four z = {}, w = {};
  let_others_start();
#pragma unroll
  for (int i = 0; i < ROWS; ++i) s[i] = home[(size_t)i * D];
  if (is_behind) {
    z = read_four_fresh(behind.z + at * D + 4 * lane);
    w = read_four(behind.w + 4 * lane);
  }
  await_inputs();  // `conv_step` lets this start when the last step and this layer's products are done
  for (int i = threadIdx.x; i < D; i += QUARTERS * SPAN) {
    keys[i] = f32(k[key_at + i]);
    queries[i] = f32(q[key_at + i]);
  }
  sync();
  const float decay = expm1f(gate[at]);
  float read = 0.f, o = 0.f;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    s[i] += s[i] * decay;
    read += keys[row0 + i] * s[i];
  }
  auto over_quarters = [&](float x, float (*sums)[SPAN]) {
    sums[quarter][c] = x;
    sync();
    return (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
  };
  const float u = beta[at] * (f32(v[at * D + column]) - over_quarters(read, part[0]));
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    s[i] += keys[row0 + i] * u;
    o += queries[row0 + i] * s[i];
    home[(size_t)i * D] = s[i];
  }
  o = over_quarters(o, part[1]);
  if (!IS_WHOLE) {
    if (quarter == 0) store(out[at * D + column], o);
    return;
  }
  if (quarter == 0) {
    E stored;
    store(stored, o);
    ((float*)outputs)[c] = f32(stored);
  }
  sync();
  if (warp != 0) return;
  const float scale = inverse_rms<32>((const float*)outputs, lane, D, behind.eps);
  if (is_behind) write_four(behind.y + at * D + 4 * lane, gated(outputs[lane], w, z, scale));
}

}  // namespace step

// The token of each row, which is the last that it sees, into the row's list of tokens: (place, position). All [rows].
KERNEL(128, append_tokens)(const uint32_t* __restrict__ places, const uint32_t* __restrict__ positions, const uint32_t* __restrict__ lists,
                           const uint32_t* __restrict__ seen, uint32_t* __restrict__ tokens, int rows) {
  const int row = blockIdx.x * 128 + threadIdx.x;
  if (row >= rows) return;
  uint32_t* const token = tokens + 2 * ((size_t)lists[row] + seen[row] - 1);
  token[0] = places[row];
  token[1] = positions[row];
}
REGISTER(append_tokens)

#define GDN_STEP(E, suffix, D)                                                                                                       \
  KERNEL(128, gdn_step_##D##_##suffix)(const E* q, const E* k, const E* v, const float* gate, const float* beta,                     \
                                       const uint32_t* slots, float* state, uint32_t stride, E* out, int heads, int key_heads) {     \
    step::gdn_step<D, step::COLUMNS, E>(q, k, v, gate, beta, slots, state, stride, out, {}, heads, key_heads);                       \
  }                                                                                                                                  \
  REGISTER(gdn_step_##D##_##suffix)                                                                                                  \
  KERNEL(4 * D, gdn_step_norm_##D##_##suffix)(const E* q, const E* k, const E* v, const float* gate, const float* beta,              \
                                              const uint32_t* slots, float* state, uint32_t stride, const E* z, const float* w,      \
                                              E* y, float eps, int heads, int key_heads) {                                           \
    step::gdn_step<D, D, E>(q, k, v, gate, beta, slots, state, stride, nullptr, {z, w, y, eps}, heads, key_heads);                   \
  }                                                                                                                                  \
  REGISTER(gdn_step_norm_##D##_##suffix)
#define STEP(E, suffix)                                                                                                              \
  KERNEL(128, conv_step_##suffix)(const E* x, const float* taps, const uint32_t* slots, E* tails, uint32_t stride, uint32_t first,   \
                                  const E* a, const E* b, const float* a_log, const float* dt_bias, E* q, E* k, E* v, float* gate,   \
                                  float* beta, int key_heads, int heads, int width) {                                                \
    step::conv_step(x, taps, slots, tails, stride, first, a, b, a_log, dt_bias, q, k, v, gate, beta, key_heads, heads, width);             \
  }                                                                                                                                  \
  REGISTER(conv_step_##suffix)                                                                                                       \
  GDN_STEP(E, suffix, 64)                                                                                                            \
  GDN_STEP(E, suffix, 128)
FOR_EACH_FLOAT(STEP)
