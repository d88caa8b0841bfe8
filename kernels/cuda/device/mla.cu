// Attention of MLA on the tensor cores of every card: one key for all heads of a token, [latent | rope part], and the latent is the value
// too. Queries are absorbed: [rows, heads, 576] against keys of 576; outputs are [rows, heads, 512]. Where `rotary` is not 0, the last 64
// channels of queries and keys are rotated to their global position, channel i with channel i + 32.
//
// Jobs, tables and partial sums are those of attention.cuh. One block takes half the query rows of a job, 64 of them. Two warps share 16
// rows: each scores half of a tile's tokens, and adds up half of the outputs' channels.
#include "attention.cuh"

constexpr int MLA_THREADS = 256, MLA_ROWS = 64, MLA_KEY = 576, MLA_LATENT = 512, MLA_ROPE = 64;
constexpr int MLA_COLUMNS = MLA_LATENT / 2;  // outputs of a warp
constexpr int MLA_LANES = MLA_THREADS / MLA_ROWS;  // threads that bring one row
constexpr int MLA_TILE = MLA_ROWS * MLA_KEY * 2;   // bytes, of queries or of keys
static_assert(MLA_ROWS == TOKENS, "queries and keys lie alike");
static_assert(MLA_LANES * 16 == MLA_ROPE, "a thread rotates one piece, which it copied itself");

// Brings a thread's share of one row of a tile, zeros where there is none.
DEV void copy_row(uint8_t* tile, const bf16* row, bool there, int thread) {
  const int to = thread / MLA_LANES, chunk = thread % MLA_LANES;
#pragma unroll
  for (int i = 0; i < MLA_KEY / 8; i += MLA_LANES) copy16(tile + chunk_at<TOKENS>(to, i + chunk), row + (i + chunk) * 8, there);
}
// Rotates a thread's share of its row, which stands at `position`.
DEV void rotate_row(uint8_t* tile, const float* rope, uint32_t position, int thread) {
  const int row = thread / MLA_LANES, chunk = thread % MLA_LANES, first = MLA_LATENT / 8 + chunk;
  const Angles angles = load_angles(rope + (size_t)position * MLA_ROPE + chunk * 8, MLA_ROPE / 2);
  rotate_pairs(tile + chunk_at<TOKENS>(row, first), tile + chunk_at<TOKENS>(row, first + MLA_LANES), angles);
}

// Shared memory: queries, a tile of keys, and scores.
DEV void attend_latent(const AttentionStep& step) {
  DYNAMIC_SHARED(shared);
  const Attending<MLA_COLUMNS> block(step);
  const int begin = blockIdx.z * MLA_ROWS, left = block.used - begin;
  if (left <= 0) return;
  uint8_t* const keys = shared + MLA_TILE;
  const int mine = threadIdx.x / MLA_LANES, warps_first = ((int)threadIdx.x >> 6) * 16;  // rows: that this thread brings, of its warp
  const int m = begin + (mine < left ? mine : 0), row = block.row_of(m);
  copy_row(shared, step.q + ((size_t)row * step.heads + block.head_of(m)) * MLA_KEY, mine < left, threadIdx.x);
  copies_wait();
  if (step.rotary && mine < left) rotate_row(shared, step.rope, step.positions[row], threadIdx.x);
  RowSums<MLA_COLUMNS> rows(block, begin + warps_first);
#pragma unroll 1
  for (int t = 0; t < block.tiles; ++t) {
    const int thread = again((int)threadIdx.x), lane = thread & 31, half = thread >> 5 & 1, first = (thread >> 6) * 16, mine = thread / MLA_LANES;
    const bool has_rows = first < left;
    const bool there = mine < block.tokens_of(t);
    const Token token = block.tokens(t)[there ? mine : 0];
    sync();  // everyone is done with the tile before
    copy_row(keys, step.key + (size_t)token.place * MLA_KEY, there, thread);
    copies_wait();
    if (step.rotary && there) rotate_row(keys, step.rope, token.position, thread);
    sync();
    // [warp][element][lane]: the two warps that share rows hold them alike.
    float* const own = (float*)(keys + MLA_TILE) + first * TOKENS;
    if (has_rows) {
      float s[TOKENS / 16][4] = {};
#pragma unroll 4
      for (int k = 0; k < MLA_KEY / 16; ++k) {
        uint32_t a[4], b[4];
        load_matrices(a, shared + chunk_at<TOKENS>(first + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < TOKENS / 32; ++n) {
          load_matrices(b, keys + chunk_at<TOKENS>(half * (TOKENS / 2) + 16 * n + (lane & 7) + (lane >> 4) * 8, 2 * k + (lane >> 3 & 1)));
          mma_bf16(s[2 * n], a, b[0], b[1]);
          mma_bf16(s[2 * n + 1], a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < TOKENS / 16; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) own[((half * (TOKENS / 16) + n) * 4 + e) * 32 + lane] = s[n][e];
    }
    sync();
    if (!has_rows) continue;
    float s[TOKENS / 8][4];
#pragma unroll
    for (int n = 0; n < TOKENS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = own[(n * 4 + e) * 32 + lane];
    uint32_t weights[TOKENS / 16][4];
    rows.take(s, block.job.begin + t * TOKENS, weights);
#pragma unroll
    for (int k = 0; k < TOKENS / 16; ++k)
#pragma unroll
      for (int n = 0; n < MLA_COLUMNS / 16; ++n) {
        uint32_t b[4];
        load_transposed(b, keys + chunk_at<TOKENS>(16 * k + (lane & 15), half * (MLA_COLUMNS / 8) + 2 * n + (lane >> 4)));
        mma_bf16(rows.o[2 * n], weights[k], b[0], b[1]);
        mma_bf16(rows.o[2 * n + 1], weights[k], b[2], b[3]);
      }
  }
  if (warps_first < left) rows.write(block, MLA_LATENT, ((int)threadIdx.x >> 5 & 1) * MLA_COLUMNS);
}

KERNEL_ALONE(MLA_THREADS, attention_mla)(const bf16* q, const bf16* key, const Job* jobs, const Token* table, const uint32_t* positions,
                                         const uint32_t* seen, const float* rope, bf16* out, float* partial_out, float* partial_sum, float scale,
                                         int heads, int rotary) {
  attend_latent({q, key, nullptr, jobs, table, positions, seen, rope, out, partial_out, partial_sum, scale, heads, 1, 0, rotary, 0});
}
REGISTER(attention_mla)
