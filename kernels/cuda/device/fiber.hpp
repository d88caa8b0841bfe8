// The host side of dev.cuh: a CUDA block as fibers of one thread.
//
// Barriers and warp operations are rendezvous points. Dynamic shared memory starts as NaN. Threads run forward, backward or shuffled:
// a result that depends on the order is a missing barrier. A barrier that only a part of the threads reaches is reported.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define DEV static inline
#define DEV_MEMBER inline
#define __restrict__ __restrict
#define KERNEL(threads, name) static void name
#define KERNEL_ALONE(threads, name) static void name
#define KERNEL_PAIRED(threads, name) static void name
#define KERNEL_OF_MANY(threads, blocks, name) static void name
#define REGISTER(name) static const sim::Registered name##_registered(#name, &sim::call<name>);
#define SHARED static thread_local
#define DYNAMIC_SHARED(name) uint8_t* name = sim::shared_memory()

struct dim3 { unsigned x = 1, y = 1, z = 1; };
static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
DEV float from_bits(uint32_t v) { float f; memcpy(&f, &v, 4); return f; }
DEV uint32_t to_bits(float f) { uint32_t v; memcpy(&v, &f, 4); return v; }
template <class T> DEV T again(T number) { return number; }
DEV float two_to(float x) { return exp2f(x); }
DEV float quotient(float x, float y) { return x / y; }
DEV float f32(bf16 x) { return from_bits((uint32_t)x.bits << 16); }
DEV float f32(f16 x) {
  uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31, mantissa = x.bits & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) return (sign ? -1.f : 1.f) * ldexpf((float)mantissa, -24);
  return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}
DEV float f32(float x) { return x; }
DEV void store(bf16& at, float x) {
  uint32_t v = to_bits(x);
  at.bits = (v & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((v + 0x7fff + ((v >> 16) & 1)) >> 16);
}
DEV void store(f16& at, float x) {
  uint16_t sign = (uint16_t)(to_bits(x) >> 16 & 0x8000);
  if (isnan(x)) { at.bits = 0x7fff; return; }
  float a = fminf(fabsf(x), 65504.f);
  if (a < 6.103515625e-5f) { at.bits = (uint16_t)(sign | (uint16_t)nearbyintf(a * 16777216.f)); return; }
  uint32_t v = to_bits(a);
  at.bits = (uint16_t)(sign | (((v + 0xfff + ((v >> 13) & 1)) >> 13) - (112u << 10)));
}
DEV void store(float& at, float x) { at = x; }
DEV float from_e4m3(uint8_t x) {
  int exponent = x >> 3 & 15, mantissa = x & 7;
  float a = exponent == 15 && mantissa == 7 ? NAN
            : exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
  return x & 0x80 ? -a : a;
}
DEV uint8_t to_e4m3(float x) {
  uint8_t sign = (uint8_t)(to_bits(x) >> 24 & 0x80);
  if (isnan(x)) return 0x7f;
  float a = fminf(fabsf(x), 448.f);
  int exponent;
  frexpf(a, &exponent);
  float step = ldexpf(1.f, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
  a = nearbyintf(a / step) * step;
  if (a == 0.f) return sign;
  frexpf(a, &exponent);
  exponent -= 1;
  if (exponent < -6) return (uint8_t)(sign | (int)(a * 512.f));
  return (uint8_t)(sign | (exponent + 7) << 3 | ((int)ldexpf(a, 3 - exponent) & 7));
}
DEV uint64_t multiply_high(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }

namespace sim {
enum State { Ready, AtBlock, AtWarp, Done };
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  jmp_buf here;
  bool begun;
  State state;
  dim3 thread;
  unsigned warp_operations;
  std::array<uint64_t, 3> exchange[2];
};
constexpr size_t STACK = 128 << 10;
static thread_local std::vector<Fiber> fibers;
static thread_local std::vector<uint8_t> shared;
static thread_local jmp_buf home;
static thread_local int current;
static thread_local std::function<void()> body;

DEV uint8_t* shared_memory() { return (uint8_t*)(((uintptr_t)shared.data() + 1023) & ~(uintptr_t)1023); }
static void entry() {
  body();
  fibers[current].state = Done;
  _longjmp(home, 1);
}
__attribute__((noinline)) static void pause(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  if (_setjmp(fiber.here) == 0) _longjmp(home, 1);
}
__attribute__((noinline)) static void resume(int i) {
  current = i;
  threadIdx = fibers[i].thread;
  if (_setjmp(home) != 0) return;
  if (fibers[i].begun) _longjmp(fibers[i].here, 1);
  fibers[i].begun = true;
  setcontext(&fibers[i].start);
}
// Runs one block until all threads are done; what went wrong, or null.
static const char* run_block(const std::vector<int>& order) {
  const int n = (int)fibers.size();
  for (;;) {
    bool ran = false, waiting = false, moved = false;
    for (int i : order)
      if (fibers[i].state == Ready) { resume(i); ran = true; }
    for (int w = 0; w < n; w += 32) {
      int end = w + 32 < n ? w + 32 : n, arrived = 0;
      for (int i = w; i < end; ++i) arrived += fibers[i].state == AtWarp;
      if (arrived == end - w) { for (int i = w; i < end; ++i) fibers[i].state = Ready; moved = true; }
      waiting |= arrived > 0;
    }
    int done = 0, at_block = 0;
    for (Fiber& f : fibers) { done += f.state == Done; at_block += f.state == AtBlock; }
    if (done == n) return nullptr;
    if (at_block == n) { for (Fiber& f : fibers) f.state = Ready; moved = true; }
    if (!ran && !moved)
      return waiting ? "a warp operation was not reached by the whole warp" : "a barrier was not reached by the whole block";
  }
}
// order: 0 forward, 1 backward, other: shuffled by that seed.
static const char* launch(dim3 grid, dim3 block, size_t bytes, uint32_t order, std::function<void()> kernel) {
  gridDim = grid; blockDim = block; body = std::move(kernel);
  const int n = (int)(block.x * block.y * block.z);
  fibers.resize(n);
  std::vector<int> turns(n);
  for (int i = 0; i < n; ++i) turns[i] = order == 1 ? n - 1 - i : i;
  if (order > 1)
    for (int i = n - 1; i > 0; --i) { order = order * 1664525u + 1013904223u; std::swap(turns[i], turns[(order >> 8) % (i + 1)]); }
  for (unsigned z = 0; z < grid.z; ++z) for (unsigned y = 0; y < grid.y; ++y) for (unsigned x = 0; x < grid.x; ++x) {
    blockIdx = {x, y, z};
    shared.assign(bytes + 1024, 0xff);
    for (int i = 0; i < n; ++i) {
      Fiber& f = fibers[i];
      if (!f.stack) f.stack.reset(new char[STACK]);
      getcontext(&f.start);
      f.start.uc_stack.ss_sp = f.stack.get(); f.start.uc_stack.ss_size = STACK; f.start.uc_link = nullptr;
      makecontext(&f.start, entry, 0);
      f.begun = false; f.state = Ready; f.warp_operations = 0;
      f.thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    }
    if (const char* fault = run_block(turns)) return fault;
  }
  return nullptr;
}
using Call = const char* (*)(dim3, dim3, size_t, uint32_t, void**);
static std::map<std::string, Call>& registry() { static std::map<std::string, Call> calls; return calls; }
struct Registered { Registered(const char* name, Call call) { registry()[name] = call; } };
// Parameters come as the driver takes them: one pointer per argument.
template <class... A, size_t... I>
const char* unpack(void (*kernel)(A...), dim3 g, dim3 b, size_t s, uint32_t order, void** a, std::index_sequence<I...>) {
  return launch(g, b, s, order, [=] { kernel(*(std::remove_reference_t<A>*)a[I]...); });
}
template <class... A> const char* invoke(void (*kernel)(A...), dim3 g, dim3 b, size_t s, uint32_t order, void** a) {
  return unpack(kernel, g, b, s, order, a, std::index_sequence_for<A...>());
}
template <auto KERNEL_> const char* call(dim3 g, dim3 b, size_t s, uint32_t order, void** a) { return invoke(KERNEL_, g, b, s, order, a); }
}  // namespace sim

DEV void sync() { sim::pause(sim::AtBlock); }
namespace sim {
// What the lanes of a warp gave to one operation.
struct Exchanged {
  int first, slot;
  const std::array<uint64_t, 3>& of(int lane) const { return fibers[first + lane].exchange[slot]; }
};
// One rendezvous per operation: the slot alternates, and nobody can be two operations ahead.
DEV Exchanged exchange(std::array<uint64_t, 3> mine) {
  const int me = current, slot = (int)(fibers[me].warp_operations++ & 1);
  fibers[me].exchange[slot] = mine;
  pause(AtWarp);
  return {me & ~31, slot};
}
}  // namespace sim
DEV float shuffle_xor(float v, int mask) {
  const sim::Exchanged all = sim::exchange({to_bits(v)});
  return from_bits((uint32_t)all.of((sim::current ^ mask) & 31)[0]);
}
DEV float of_lane(float v, int lane) {
  const sim::Exchanged all = sim::exchange({to_bits(v)});
  return from_bits((uint32_t)all.of(lane)[0]);
}
DEV void await_inputs() {}
template <class T> DEV T read_fresh(const T* from) { return *from; }
DEV void let_others_start() {}
DEV uint32_t await_word(const uint32_t* at) { return *at; }  // launches run one by one
DEV void write_word(uint32_t* at, uint32_t word) { *at = word; }
DEV uint32_t lanes_where(bool it_is) {
  const sim::Exchanged all = sim::exchange({it_is});
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= (uint32_t)all.of(lane)[0] << lane;
  return bits;
}
DEV int bits_set(uint32_t x) { return __builtin_popcount(x); }
DEV uint32_t largest_of_warp(uint32_t x) {
  const sim::Exchanged all = sim::exchange({x});
  for (int lane = 0; lane < 32; ++lane) x = x < (uint32_t)all.of(lane)[0] ? (uint32_t)all.of(lane)[0] : x;
  return x;
}
DEV uint32_t least_of_warp(uint32_t x) { return ~largest_of_warp(~x); }
DEV void sync_warp() { sim::exchange({}); }

// Runs kernel `name`; null, or what went wrong.
extern "C" const char* hypic_fiber_launch(const char* name, const uint32_t* grid, const uint32_t* block, size_t shared, uint32_t order,
                                          void** arguments) {
  auto found = sim::registry().find(name);
  if (found == sim::registry().end()) return "no such kernel";
  return found->second({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, order, arguments);
}
