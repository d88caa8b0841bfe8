// The choice of a row's experts by one warp.
#pragma once
#include "dev.cuh"

constexpr int MOST_CHOICES = 1024;

// A logit as a whole number of the same order, above zero; zero for one that is no number.
DEV uint32_t order_of(float x) {
  const uint32_t bits = to_bits(x + 0.f);  // of the two zeros one
  return x != x ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEV float logit_of(uint32_t order) { return from_bits(order >> 31 ? order & 0x7fffffffu : ~order); }

// The largest of a lane's, and its place; of equal ones the first.
struct Leader {
  uint32_t order;
  int at;
};
// In pairs and pairs of pairs: what waits for each other is not all of them.
template <int COUNT> DEV Leader leader_of(const uint32_t* left, int at) {
  if constexpr (COUNT == 1) {
    return {left[0], at};
  } else {
    const Leader near = leader_of<COUNT / 2>(left, at), far = leader_of<COUNT / 2>(left + COUNT / 2, at + COUNT / 2);
    return far.order > near.order ? far : near;
  }
}

template <int EACH>
DEV void choose_of(const float* row, uint32_t* chosen, float* weights, int experts, int most, int renormalise) {
  const int lane = threadIdx.x & 31;
  const bool weighs = weights != nullptr;  // of most blocks that choose nobody asks: they are done sooner
  float largest = 0.f, sum = 0.f, of_chosen = 0.f;
  uint32_t left[EACH];  // those that nobody took
#pragma unroll
  for (int i = 0; i < EACH; ++i) left[i] = 32 * i + lane < experts ? order_of(read_fresh(row + 32 * i + lane)) : 0;
  if (weighs) {
    largest = logit_of(largest_of_warp(leader_of<EACH>(left, 0).order));
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += 32 * i + lane < experts ? expf(logit_of(left[i]) - largest) : 0.f;
    for (int m = 16; m; m >>= 1) sum += shuffle_xor(sum, m);
  }
  float mine = 0.f;  // the weight of the choice whose number is this lane's, of the last 32
  for (int first = 0; first < most; first += 32) {
    const int count = most - first < 32 ? most - first : 32;
    uint32_t own = 0, own_number = 0;
    for (int n = 0; n < count; ++n) {
      const Leader best = leader_of<EACH>(left, 0);
      const uint32_t highest = largest_of_warp(best.order);
      uint32_t number = least_of_warp(best.order == highest ? 32 * best.at + lane : ~0u);
      if (highest == 0) number = first + n;  // logits that are no numbers: other experts, a weight that is none
#pragma unroll
      for (int i = 0; i < EACH; ++i) left[i] = 32 * i + lane == (int)number ? 0 : left[i];
      own = lane == n ? highest : own;
      own_number = lane == n ? number : own_number;
    }
    if (lane < count) chosen[first + lane] = own_number;
    if (!weighs) continue;
    // What is made of the chosen, all lanes at once.
    mine = expf(logit_of(own) - largest) / sum;
    for (int n = 0; n < count; ++n) of_chosen += of_lane(mine, n);
    if (lane < count) weights[first + lane] = mine;
  }
  if (!renormalise || !weighs) return;
  for (int n = lane; n < most; n += 32) weights[n] = (most <= 32 ? mine : weights[n]) / of_chosen;
}

// The `most` experts of largest logits of `row` [experts], largest first, equal ones by number, with the softmax over all experts as
// weights, made to sum to 1 over the chosen if `renormalise`. One warp; chosen [most], weights [most] or null where nobody asks for them.
DEV void choose(const float* row, uint32_t* chosen, float* weights, int experts, int most, int renormalise) {
  if (experts <= 256) choose_of<8>(row, chosen, weights, experts, most, renormalise);
  else choose_of<MOST_CHOICES / 32>(row, chosen, weights, experts, most, renormalise);
}
