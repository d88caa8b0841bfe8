// One kernel source, two builds: nvcc (device) and a plain C++17 compiler (every CUDA thread a fiber, see fiber.hpp).
#pragma once
#include <stdint.h>

constexpr uint32_t NOBODY = ~0u;

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
using bf16 = __nv_bfloat16;
using f16 = __half;
#define DEV __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
// KERNEL(threads, name)(parameters) { ... } and, after it, REGISTER(name) for the fiber build.
#define KERNEL(threads, name) extern "C" __global__ void __launch_bounds__(threads) name
// The same for blocks that have a multiprocessor to themselves, or of which two should fit on one; on Ampere that would spill.
#define KERNEL_ALONE(threads, name) extern "C" __global__ void __launch_bounds__(threads, 1) name
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define KERNEL_PAIRED(threads, name) KERNEL_ALONE(threads, name)
#else
#define KERNEL_PAIRED(threads, name) extern "C" __global__ void __launch_bounds__(threads, 2) name
#endif
// The same for blocks of which so many fit on a multiprocessor.
#define KERNEL_OF_MANY(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define REGISTER(name)
#define SHARED __shared__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]
DEV float f32(bf16 x) { return __bfloat162float(x); }
DEV float f32(f16 x) { return __half2float(x); }
DEV float f32(float x) { return x; }
DEV void store(bf16& at, float x) { at = __float2bfloat16_rn(x); }
// Over the range of fp16 the value is clamped to the largest finite one.
DEV void store(f16& at, float x) { at = __float2half_rn(fminf(fmaxf(x, -65504.f), 65504.f)); }
DEV void store(float& at, float x) { at = x; }
DEV uint8_t to_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
DEV float from_e4m3(uint8_t x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3))); }
DEV float from_bits(uint32_t v) { return __uint_as_float(v); }
DEV uint32_t to_bits(float x) { return __float_as_uint(x); }
// 2^x to 22 bits, zero below 2^-126: one instruction, where exp2f takes four.
DEV float two_to(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// To 22 bits, zero where y is over 2^126.
DEV float quotient(float x, float y) { return __fdividef(x, y); }
// The compiler must not see that this number is the same in every pass of a loop: it would keep dozens of addresses in registers, and spill.
template <class T> DEV T again(T number) {
  asm volatile("" : "+r"(number));
  return number;
}
// A launch may overlap the one before it (Launch::overlapping). What a kernel does before it waits may read only what no launch of the
// same step writes; it writes nothing until then, and every kernel that overlaps waits, so that what is done is done for all that follow.
DEV void await_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// A read of what an earlier launch wrote, from where it did: for reads before the wait.
template <class T> DEV T read_fresh(const T* from) { return __ldcg(from); }
// From here on the next launch may start, as far as it overlaps.
DEV void let_others_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEV void sync() { __syncthreads(); }
// A word that some block writes once, where `NOBODY` was before: who needs it waits for it. Of the one word there is nothing to order.
DEV uint32_t await_word(const uint32_t* at) {
  uint32_t word;
  do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
  while (word == NOBODY);
  return word;
}
DEV void write_word(uint32_t* at, uint32_t word) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory"); }
DEV float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV float of_lane(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
// Bit i of the result: what lane i says.
DEV uint32_t lanes_where(bool it_is) { return __ballot_sync(0xffffffffu, it_is); }
DEV int bits_set(uint32_t x) { return __popc(x); }
DEV uint32_t largest_of_warp(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
DEV uint32_t least_of_warp(uint32_t x) { return __reduce_min_sync(0xffffffffu, x); }
DEV void sync_warp() { __syncwarp(); }
DEV uint64_t multiply_high(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
#else
#include "fiber.hpp"
#endif

// Kernels on rows exist for both formats of activations: KERNELS(type, suffix) once for each.
#define FOR_EACH_FLOAT(KERNELS) KERNELS(bf16, bf16) KERNELS(float, f32)

DEV float sigmoid(float x) { return quotient(1.f, 1.f + expf(-x)); }
DEV float silu(float x) { return quotient(x, 1.f + expf(-x)); }

// Sum over the block, the same value in every thread. `part` holds one float per warp.
template <int THREADS> DEV float block_sum(float x, float* part) {
  for (int m = 16; m; m >>= 1) x += shuffle_xor(x, m);
  sync();  // the last use of `part` is over
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  sync();
  float sum = 0.f;
  for (int i = 0; i < THREADS / 32; ++i) sum += part[i];
  return sum;
}
