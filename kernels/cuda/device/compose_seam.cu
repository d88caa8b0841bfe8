// Compose + seam of one layer, every request of a batch in one launch: the plain form.
//
// A step is the live rows between two tuples and then the tuple:  rows advance the state and yield outputs ;  S <- T S + S_C.
// One block: (request, head, 32 value columns), the state in shared memory. Lane = column, warp = a quarter of the key rows.
#include "layout.cuh"

constexpr int COLUMNS = 32, QUARTERS = 4;
constexpr uint32_t NO_SLOT = ~0u;

DEV float transition_at(const f16* t, int at, int, const f16*) { return f32(t[at]); }
DEV float transition_at(const f16* t, int at, int tile, const float*) { return f32(t[at]) + f32(t[tile + at]); }

// Sum of one number per thread over the quarters, per column. `part` is [2][QUARTERS][COLUMNS], the halves in turn.
DEV float over_quarters(float x, float (*part)[COLUMNS]) {
  part[threadIdx.x >> 5][threadIdx.x & 31] = x;
  sync();
  const int c = threadIdx.x & 31;
  return (part[0][c] + part[1][c]) + (part[2][c] + part[3][c]);
}

// Stored: the type S is stored in; T is fp16 tiles beside fp16 S, pairs of them beside fp32 S. Without the delta rule T is a number,
// or one per key row, in `factors` [steps, heads (, D)].
// A request's state is number `slots[request]` of `state`, `stride` values apart; a request without a slot (NO_SLOT) is left alone.
// Without `slots` states lie side by side. The offsets of summaries count from `arena`, and are addresses where that is null.
template <int D, class Stored, bool VECTOR_GATE, bool DELTA, class In, class Out>
DEV void compose_seam(const In* __restrict__ q, const In* __restrict__ k, const In* __restrict__ v, const float* __restrict__ gate,
                      const float* __restrict__ beta, const uint32_t* __restrict__ slots, uint32_t stride,
                      const uint32_t* __restrict__ first_step, const uint32_t* __restrict__ first_row,
                      const uint8_t* __restrict__ arena, const uint64_t* __restrict__ transition_of, const uint64_t* __restrict__ state_of,
                      const float* __restrict__ factors, float* state, Out* __restrict__ out, int heads, int key_heads) {
  SHARED float s[2][D][COLUMNS], part[2][QUARTERS][COLUMNS];
  constexpr int ROWS = D / QUARTERS;
  const int head = blockIdx.x, slice = blockIdx.y, request = blockIdx.z, key_head = head / (heads / key_heads);
  const int c = threadIdx.x & 31, row0 = (threadIdx.x >> 5) * ROWS, column = slice * COLUMNS + c;
  const uint32_t slot = slots == nullptr ? request : slots[request];
  if (slot == NO_SLOT) return;
  float* home = state + (size_t)slot * stride + (size_t)head * D * D + column;
  int now = 0;
  for (int i = row0; i < row0 + ROWS; ++i) s[0][i][c] = home[(size_t)i * D];

  for (uint32_t step = first_step[request]; step < first_step[request + 1]; ++step) {
    for (uint32_t t = first_row[step]; t < first_row[step + 1]; ++t) {
      const size_t row = t, at = (row * heads + head) * D, key_at = (row * key_heads + key_head) * D;
      const float decay = VECTOR_GATE ? 0.f : expm1f(gate[row * heads + head]);
      float read = 0.f, o = 0.f;
      for (int i = row0; i < row0 + ROWS; ++i) {
        s[now][i][c] += s[now][i][c] * (VECTOR_GATE ? expm1f(gate[at + i]) : decay);
        if (DELTA) read += f32(k[key_at + i]) * s[now][i][c];
      }
      float u = f32(v[at + column]);
      if (DELTA) u = beta[row * heads + head] * (u - over_quarters(read, part[0]));
      else sync();  // the last row's part[1] has been read
      for (int i = row0; i < row0 + ROWS; ++i) {
        s[now][i][c] += f32(k[key_at + i]) * u;
        o += f32(q[key_at + i]) * s[now][i][c];
      }
      o = over_quarters(o, part[1]);
      if (row0 == 0) store(out[at + column], o);
    }
    const uint64_t state_offset = state_of[(size_t)step * heads + head];
    if (state_offset == NONE) continue;  // rows without a tuple after them
    sync();                              // all rows of S are up to date
    const uint64_t offset = DELTA ? transition_of[(size_t)step * heads + head] : NONE;
    const Stored* sc = (const Stored*)(arena + state_offset);
    for (int i = row0; i < row0 + ROWS; ++i) {
      float x = f32(sc[state_at<D>(i, column)]);
      if (!DELTA) {
        const size_t at = (size_t)step * heads + head;
        x += factors[VECTOR_GATE ? at * D + i : at] * s[now][i][c];
      } else if (offset != NONE) {
        const f16* tile = (const f16*)(arena + offset);
        float product = 0.f;
        for (int j = 0; j < D; ++j) product += transition_at(tile, tile_at<D>(i, j), D * D, (const Stored*)nullptr) * s[now][j][c];
        x += product;
      }
      s[now ^ 1][i][c] = x;
    }
    now ^= 1;
  }
  for (int i = row0; i < row0 + ROWS; ++i) home[(size_t)i * D] = s[now][i][c];
}

#define COMPOSE_SEAM_AS(name, D, Stored, VECTOR_GATE, DELTA, In, Out)                                                               \
  KERNEL(128, name)(const In* q, const In* k, const In* v, const float* gate, const float* beta, const uint32_t* slots,             \
                    uint32_t stride, const uint32_t* first_step, const uint32_t* first_row, const uint8_t* arena,                   \
                    const uint64_t* transition_of, const uint64_t* state_of, const float* factors, float* state, Out* out,          \
                    int heads, int key_heads) {                                                                                     \
    compose_seam<D, Stored, VECTOR_GATE, DELTA>(q, k, v, gate, beta, slots, stride, first_step, first_row, arena, transition_of,    \
                                                state_of, factors, state, out, heads, key_heads);                                   \
  }                                                                                                                                 \
  REGISTER(name)
#define COMPOSE_SEAM(name, D, Stored, VECTOR_GATE, DELTA) COMPOSE_SEAM_AS(name, D, Stored, VECTOR_GATE, DELTA, bf16, float)
#define EVERY_FORMAT(family, VECTOR_GATE, DELTA)                                                                                    \
  COMPOSE_SEAM(compose_seam_##family##_64_f16, 64, f16, VECTOR_GATE, DELTA)                                                         \
  COMPOSE_SEAM(compose_seam_##family##_64_f32, 64, float, VECTOR_GATE, DELTA)                                                       \
  COMPOSE_SEAM(compose_seam_##family##_128_f16, 128, f16, VECTOR_GATE, DELTA)                                                       \
  COMPOSE_SEAM(compose_seam_##family##_128_f32, 128, float, VECTOR_GATE, DELTA)

EVERY_FORMAT(gdn, false, true)
EVERY_FORMAT(kda, true, true)
EVERY_FORMAT(lightning, false, false)
EVERY_FORMAT(gla, true, false)

// For rows whose outputs go on in the format of the inputs.
COMPOSE_SEAM_AS(compose_seam_gdn_64_bf16, 64, f16, false, true, bf16, bf16)
COMPOSE_SEAM_AS(compose_seam_gdn_128_bf16, 128, f16, false, true, bf16, bf16)
COMPOSE_SEAM_AS(compose_seam_gdn_64_exact, 64, float, false, true, float, float)
COMPOSE_SEAM_AS(compose_seam_gdn_128_exact, 128, float, false, true, float, float)
