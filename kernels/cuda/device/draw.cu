// A token drawn from the softmax of a row of logits: the inverse of its distribution function, in the order of tokens. Sums are in f64 and
// in an order that depends on the width alone, so that a row gives the same token whatever else is drawn. No row leaves the device.
#include "dev.cuh"

constexpr int DRAW_THREADS = 256, DRAW_PART = 2048, DRAW_RUN = 32;

// A row's random number, and what its logits are divided by.
struct DrawnBy {
  double temperature, uniform;
};

// The share of a logit, times what the largest has of 1.
DEV double weight_of(float logit, float largest, double temperature) { return exp(((double)logit - (double)largest) / temperature); }

// Which of `count` shares `left` lies in, less what lies before it. A rest behind the last, by rounding, is the last one's; shares of zero have nothing.
DEV int place_of(const double* shares, int count, double& left) {
  int last = 0;
  double rest = left;
  for (int i = 0; i < count; ++i)
    if (shares[i] > 0.) {
      last = i;
      left = rest;
      rest -= shares[i];
      if (rest < 0.) break;
    }
  return last;
}

// An addend on one logit.
struct Change {
  uint32_t row, token;
  float addend;
};

// logits [rows, width] += addends, each token of a row once; tokens beyond the width are passed over. One thread per change.
KERNEL(DRAW_THREADS, change_logits)(const Change* __restrict__ changes, float* __restrict__ logits, int width, uint32_t count) {
  const uint32_t at = blockIdx.x * DRAW_THREADS + threadIdx.x;
  if (at >= count) return;
  const Change change = changes[at];
  if (change.token < (uint32_t)width) logits[(size_t)change.row * width + change.token] += change.addend;
}
REGISTER(change_logits)

// The weights of each part of each row that is drawn from, added up: sums [draws, parts]. Rows of logits [.., width], and what `top_of_rows`
// found of them, [.., 2 most + 1]. One block per part and draw.
KERNEL(DRAW_THREADS, draw_sums)(const float* __restrict__ logits, const float* __restrict__ found, const uint32_t* __restrict__ rows,
                                const DrawnBy* __restrict__ by, double* __restrict__ sums, int width, int most) {
  SHARED double part[DRAW_THREADS];
  const int thread = threadIdx.x;
  const size_t number = rows[blockIdx.y];
  const float* const row = logits + number * width;
  const float top = found[number * (2 * most + 1) + most];
  const double temperature = by[blockIdx.y].temperature;
  const int first = (int)blockIdx.x * DRAW_PART, end = width - first < DRAW_PART ? width : first + DRAW_PART;
  double sum = 0.;
  for (int i = first + thread; i < end; i += DRAW_THREADS) sum += weight_of(row[i], top, temperature);
  part[thread] = sum;
  for (int half = DRAW_THREADS / 2; half; half >>= 1) {
    sync();
    if (thread < half) part[thread] += part[thread + half];
  }
  if (thread == 0) sums[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = part[0];
}
REGISTER(draw_sums)

// The token of each draw and its logit, and the weight of its row [draws]: the part in which its number lies, then the run of tokens, then the token. One block per draw.
KERNEL(DRAW_THREADS, draw_tokens)(const float* __restrict__ logits, const float* __restrict__ found, const uint32_t* __restrict__ rows,
                                  const DrawnBy* __restrict__ by, const double* __restrict__ sums, uint32_t* __restrict__ tokens,
                                  float* __restrict__ values, double* __restrict__ whole, int width, int most, int parts) {
  SHARED double weights[DRAW_PART], runs[DRAW_PART / DRAW_RUN], left;
  SHARED int first;
  const int thread = threadIdx.x;
  const size_t number = rows[blockIdx.x];
  const float* const row = logits + number * width;
  const float top = found[number * (2 * most + 1) + most];
  const double temperature = by[blockIdx.x].temperature;
  sums += (size_t)blockIdx.x * parts;
  if (thread == 0) {
    double sum = 0., rest;
#pragma unroll 8
    for (int i = 0; i < parts; ++i) sum += sums[i];
    whole[blockIdx.x] = sum;
    rest = by[blockIdx.x].uniform * sum;
    first = place_of(sums, parts, rest) * DRAW_PART;
    left = rest;
  }
  sync();
  for (int i = thread; i < DRAW_PART; i += DRAW_THREADS) weights[i] = first + i < width ? weight_of(row[first + i], top, temperature) : 0.;
  sync();
  if (thread < DRAW_PART / DRAW_RUN) {
    double sum = 0.;
    for (int i = 0; i < DRAW_RUN; ++i) sum += weights[thread * DRAW_RUN + i];
    runs[thread] = sum;
  }
  sync();
  if (thread == 0) {
    double rest = left;
    const int run = place_of(runs, DRAW_PART / DRAW_RUN, rest) * DRAW_RUN;
    const int token = first + run + place_of(weights + run, DRAW_RUN, rest);
    tokens[blockIdx.x] = (uint32_t)token;
    values[blockIdx.x] = row[token];
  }
}
REGISTER(draw_tokens)
