// One token of many sequences through a linear layer: what `conv_warm` and `compose_seam` do for a run of one row and no bodies, bit for
// bit, with the tails, the gates and the states in two launches. slots [rows]: the slot of each row's sequence.
#include "conv.cuh"
#include "norm.cuh"

namespace step {
constexpr int COLUMNS = 32, QUARTERS = 4;

// The log decay of a head: -e^a_log softplus(a + dt_bias).
DEV float decay_of(float a, float a_log, float dt_bias) {
  const float sum = a + dt_bias;
  return -expf(a_log) * (sum > 20.f ? sum : log1pf(expf(sum)));
}

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
  const Four y = convolved<E>([&](int j) { return weights[j]; }, values[0], values[1], values[2], values[3], is_q || is_k, scale);
  if (!is_q && !is_k && i == 0) {
    const int number = head - 2 * key_heads;
    const size_t at = (size_t)row * heads + number;
    gate[at] = decay_of(f32(a[at]), a_log[number], dt_bias[number]);
    beta[at] = sigmoid(f32(b[at]));
  }
  if (!works) return;
  if (is_q) write_four(q + ((size_t)row * key_heads + head) * width + i, y);
  else if (is_k) write_four(k + ((size_t)row * key_heads + head - key_heads) * width + i, y);
  else write_four(v + ((size_t)row * heads + head - 2 * key_heads) * width + i, y);
}

// S <- e^g S ;  u = b (v - k^T S) ;  S <- S + k u^T ;  q^T S: ROWS rows of a column, which `home` has `stride` values apart. over_quarters
// adds up what the parts of a column say.
template <int ROWS, class Sum>
DEV float advance(float (&s)[ROWS], float* home, size_t stride, const float* keys, const float* queries, float v, float gate, float beta,
                  Sum over_quarters) {
  const float decay = expm1f(gate);
  float read = 0.f, o = 0.f;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    s[i] += s[i] * decay;
    read += keys[i] * s[i];
  }
  const float u = beta * (v - over_quarters(read, 0));
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    s[i] += keys[i] * u;
    o += queries[i] * s[i];
    home[i * stride] = s[i];
  }
  return over_quarters(o, 1);
}

// state: a slot's begins `stride` values behind the last one's, [heads, key, value]. One block for a head of a row and 32 columns: lane =
// column, warp = a quarter of the key rows, in registers.
template <int D, class E>
DEV void gdn_step(const E* __restrict__ q, const E* __restrict__ k, const E* __restrict__ v, const float* __restrict__ gate,
                  const float* __restrict__ beta, const uint32_t* __restrict__ slots, float* state, uint32_t stride, E* __restrict__ out,
                  int heads, int key_heads) {
  SHARED float part[2][QUARTERS][COLUMNS], keys[D], queries[D];
  constexpr int ROWS = D / QUARTERS;
  const int head = blockIdx.x, row = blockIdx.z, key_head = head / (heads / key_heads), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int row0 = warp * ROWS, column = blockIdx.y * COLUMNS + lane;
  float* const home = state + (size_t)slots[row] * stride + ((size_t)head * D + row0) * D + column;
  const size_t at = (size_t)row * heads + head, key_at = ((size_t)row * key_heads + key_head) * D;
  float s[ROWS];
  let_others_start();
#pragma unroll
  for (int i = 0; i < ROWS; ++i) s[i] = home[(size_t)i * D];
  await_inputs();  // `conv_step` lets this start when the last step and this layer's products are done
  for (int i = threadIdx.x; i < D; i += QUARTERS * COLUMNS) {
    keys[i] = f32(k[key_at + i]);
    queries[i] = f32(q[key_at + i]);
  }
  sync();
  auto over_quarters = [&](float x, int number) {
    part[number][warp][lane] = x;
    sync();
    return (part[number][0][lane] + part[number][1][lane]) + (part[number][2][lane] + part[number][3][lane]);
  };
  const float o = advance(s, home, D, keys + row0, queries + row0, f32(v[at * D + column]), gate[at], beta[at], over_quarters);
  if (warp == 0) store(out[at * D + column], o);
}

// Both of few rows, and the gated norm behind them: y [rows, heads, D] of gates z like y and w [D], with the bits of the launches apart. One
// block for a key head of a row and the GROUP heads that share it, so that nobody else reads its tails.
template <int D, int GROUP, class E>
DEV void whole_step(const E* __restrict__ x, const float* __restrict__ taps, const uint32_t* __restrict__ slots, E* tails,
                    uint32_t tail_stride, uint32_t first, const E* __restrict__ a, const E* __restrict__ b, const float* __restrict__ a_log,
                    const float* __restrict__ dt_bias, float* state, uint32_t stride, const E* __restrict__ z, const float* __restrict__ w,
                    E* __restrict__ y, float eps, int heads, int key_heads) {
  DYNAMIC_SHARED(memory);  // [GROUP, D, D]
  constexpr int ROWS = D / QUARTERS, HEADS = 2 + GROUP, THREADS = GROUP * QUARTERS * D, FOURS = D / 4;
  SHARED float part[2][GROUP][QUARTERS][D], near[HEADS][D], decays[GROUP], strengths[GROUP];  // near: queries, keys, values
  SHARED Four outputs[GROUP][FOURS], gates[GROUP][FOURS], near_taps[HEADS][D], near_tails[TAPS - 1][HEADS][FOURS];
  const int key_head = blockIdx.x, row = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, channels = (2 * key_heads + heads) * D;
  const int number = threadIdx.x / (QUARTERS * D), own_warp = warp % (QUARTERS * D / 32), head = key_head * GROUP + number;
  const int column = own_warp / QUARTERS * COLUMNS + lane, quarter = own_warp % QUARTERS, row0 = quarter * ROWS;
  const size_t output = ((size_t)row * heads + head) * D + 4 * lane;
  float* const states = state + (size_t)slots[row] * stride + (size_t)key_head * GROUP * D * D;
  auto channel_of = [&](int h) { return (h < 2 ? h * key_heads + key_head : 2 * key_heads + key_head * GROUP + h - 2) * D; };
  let_others_start();
  // Nothing of this step writes what is read before the wait. States wait in shared memory: registers are short.
  float* const near_states = (float*)memory;
  for (int n = 4 * threadIdx.x; n < GROUP * D * D; n += 4 * THREADS) copy16(near_states + n, states + n, true);
  E* const tail = tails + (size_t)slots[row] * tail_stride + first;
  for (int n = threadIdx.x; n < HEADS * D; n += THREADS) near_taps[n / D][n % D] = read_four(taps + (size_t)(channel_of(n / D) + n % D) * TAPS);
  for (int n = threadIdx.x; n < (TAPS - 1) * HEADS * FOURS; n += THREADS) {
    const int h = n / FOURS % HEADS, tap = n / FOURS / HEADS;
    near_tails[tap][h][n % FOURS] = read_four(tail + (size_t)tap * channels + channel_of(h) + 4 * (n % FOURS));
  }
  sync();
  await_inputs();
  if (warp < HEADS) {
    const bool works = lane < FOURS;
    const int i = works ? lane : 0;
    Four last = {};
    if (works) {
      last = read_four(x + (size_t)row * channels + channel_of(warp) + 4 * lane);
      write_four(tail + (size_t)(TAPS - 2) * channels + channel_of(warp) + 4 * lane, last);
    }
    const auto weights = [&](int j) { return works ? near_taps[warp][4 * i + j] : Four{}; };  // so that others add nothing to the norm
    const Four made = convolved<E>(weights, near_tails[0][warp][i], near_tails[1][warp][i], near_tails[2][warp][i], last, warp < 2,
                                   warp == 0 ? 1.f / sqrtf((float)D) : 1.f);
    if (works)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        E stored;
        store(stored, made.at[j]);
        near[warp][4 * lane + j] = f32(stored);
      }
  } else if (warp == HEADS && lane < GROUP) {
    const int own = key_head * GROUP + lane;
    const size_t own_at = (size_t)row * heads + own;
    decays[lane] = decay_of(f32(a[own_at]), a_log[own], dt_bias[own]);
    strengths[lane] = sigmoid(f32(b[own_at]));
  }
  for (int n = threadIdx.x; n < (TAPS - 2) * HEADS * FOURS; n += THREADS) {
    const int h = n / FOURS % HEADS, tap = n / FOURS / HEADS;
    write_four(tail + (size_t)tap * channels + channel_of(h) + 4 * (n % FOURS), near_tails[tap + 1][h][n % FOURS]);
  }
  if (own_warp == QUARTERS - 1 && lane < FOURS) gates[number][lane] = read_four(z + output);
  copies_wait();
  sync();
  auto over_quarters = [&](float sum, int n) {
    auto& of = part[n][number];
    of[quarter][column] = sum;
    sync();
    return (of[0][column] + of[1][column]) + (of[2][column] + of[3][column]);
  };
  const int first_state = (number * D + row0) * D + column;
  float s[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) s[i] = near_states[first_state + i * D];
  const float o = advance(s, states + first_state, D, near[1] + row0, near[0] + row0, near[2 + number][column], decays[number],
                          strengths[number], over_quarters);
  if (quarter == 0) {
    E stored;
    store(stored, o);
    ((float*)outputs[number])[column] = f32(stored);
  }
  sync();
  if (own_warp != 0) return;
  const float scale = inverse_rms<32>((const float*)outputs[number], lane, D, eps);
  if (lane < FOURS) write_four(y + output, gated(outputs[number][lane], read_four(w + 4 * lane), gates[number][lane], scale));
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

#define WHOLE_STEP(E, suffix, D, GROUP)                                                                                              \
  KERNEL_ALONE(GROUP * 4 * D, whole_step_##D##_##GROUP##_##suffix)(                                                                     \
      const E* x, const float* taps, const uint32_t* slots, E* tails, uint32_t tail_stride, uint32_t first, const E* a, const E* b,  \
      const float* a_log, const float* dt_bias, float* state, uint32_t stride, const E* z, const float* w, E* y, float eps,          \
      int heads, int key_heads) {                                                                                                    \
    step::whole_step<D, GROUP, E>(x, taps, slots, tails, tail_stride, first, a, b, a_log, dt_bias, state, stride, z, w, y, eps,      \
                                  heads, key_heads);                                                                                 \
  }                                                                                                                                  \
  REGISTER(whole_step_##D##_##GROUP##_##suffix)
#define GDN_STEP(E, suffix, D)                                                                                                       \
  KERNEL(128, gdn_step_##D##_##suffix)(const E* q, const E* k, const E* v, const float* gate, const float* beta,                     \
                                       const uint32_t* slots, float* state, uint32_t stride, E* out, int heads, int key_heads) {     \
    step::gdn_step<D, E>(q, k, v, gate, beta, slots, state, stride, out, heads, key_heads);                                          \
  }                                                                                                                                  \
  REGISTER(gdn_step_##D##_##suffix)                                                                                                  \
  WHOLE_STEP(E, suffix, D, 1)                                                                                                        \
  WHOLE_STEP(E, suffix, D, 2)
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
