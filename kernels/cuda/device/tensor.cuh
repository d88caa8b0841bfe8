// What every card since Ampere has behind plain names, emulated for fibers: copies that run beside the threads, 8x8 matrices between
// shared memory and the fragments of mma, and mma itself.
#pragma once
#include "dev.cuh"

#ifdef __CUDACC__
DEV uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// ---- copies of 16 bytes by each thread; where `there` is false, zeros
DEV void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEV void copy16(void* to, const void* from, bool there) { copy16(shared_address(to), from, there); }
// Until all copies of this thread are done.
DEV void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last N commits of this thread are done.
template <int N> DEV void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// A read of constant memory that the compiler does not move behind what follows, so that it is on its way while others are waited for.
DEV uint4 read_ahead(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
// A read of what nobody reads again: it does not push out of the L1 what others do.
DEV uint4 read_once(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
// ---- 8x8 matrices; lane 8 i + r names row r of matrix i
DEV void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void load_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEV void load_matrices(uint32_t (&r)[4], const void* at) { load_matrices(r, shared_address(at)); }
DEV void load_transposed(uint32_t (&r)[4], const void* at) { load_transposed(r, shared_address(at)); }
// ---- mma.sync, 16x8 += 16x16 16x8
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV uint32_t pack(float x, float y) { __half2 h = __floats2half2_rn(x, y); return *reinterpret_cast<uint32_t*>(&h); }
DEV uint32_t pack_bf16(float x, float y) { __nv_bfloat162 h = __floats2bfloat162_rn(x, y); return *reinterpret_cast<uint32_t*>(&h); }
#else
DEV void copy16(void* to, const void* from, bool there) { there ? memcpy(to, from, 16) : memset(to, 0, 16); }
DEV void copies_wait() {}
DEV void copies_commit() {}
template <int N> DEV void copies_wait() {}
DEV uint4 read_ahead(const uint4* from) { return *from; }
DEV uint4 read_once(const uint4* from) { return *from; }
namespace sim {
DEV uint32_t word(uint64_t row, int i) { uint32_t v; memcpy(&v, (const uint8_t*)row + 4 * i, 4); return v; }
DEV uint16_t half(uint64_t row, int i) { uint16_t v; memcpy(&v, (const uint8_t*)row + 2 * i, 2); return v; }
}  // namespace sim
DEV void load_matrices(uint32_t (&r)[4], const void* at) {
  const sim::Exchanged rows = sim::exchange({(uint64_t)at});
  const int lane = sim::current & 31;
  for (int m = 0; m < 4; ++m) r[m] = sim::word(rows.of(8 * m + lane / 4)[0], lane % 4);
}
DEV void load_transposed(uint32_t (&r)[4], const void* at) {
  const sim::Exchanged rows = sim::exchange({(uint64_t)at});
  const int lane = sim::current & 31, row = 2 * (lane % 4);
  for (int m = 0; m < 4; ++m)
    r[m] = sim::half(rows.of(8 * m + row)[0], lane / 4) | (uint32_t)sim::half(rows.of(8 * m + row + 1)[0], lane / 4) << 16;
}
namespace sim {
template <class T> DEV float low(uint32_t two) { return f32(T{(uint16_t)two}); }
template <class T> DEV float high(uint32_t two) { return f32(T{(uint16_t)(two >> 16)}); }
template <class T> DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto both = [](uint32_t x, uint32_t y) { return (uint64_t)x << 32 | y; };
  const Exchanged all = exchange({both(a[1], a[0]), both(a[3], a[2]), both(b1, b0)});
  const int lane = current & 31;
  for (int k = 0; k < 8; ++k) {  // pairs of the inner index; the second half of them lies in the second registers
    const int quad = k & 3, later = k >> 2;
    const uint64_t rows = all.of(lane / 4 * 4 + quad)[later];
    for (int e = 0; e < 4; ++e) {
      const uint64_t columns = all.of((lane % 4 * 2 + (e & 1)) * 4 + quad)[2];
      const uint32_t x = (uint32_t)(e >> 1 ? rows >> 32 : rows), y = (uint32_t)(later ? columns >> 32 : columns);
      d[e] += low<T>(x) * low<T>(y) + high<T>(x) * high<T>(y);
    }
  }
}
template <class T> DEV uint32_t pack(float x, float y) {
  T low, high;
  store(low, x);
  store(high, y);
  return low.bits | (uint32_t)high.bits << 16;
}
}  // namespace sim
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { sim::mma<f16>(d, a, b0, b1); }
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { sim::mma<bf16>(d, a, b0, b1); }
DEV uint32_t pack(float x, float y) { return sim::pack<f16>(x, y); }
DEV uint32_t pack_bf16(float x, float y) { return sim::pack<bf16>(x, y); }
#endif
DEV float low_bf16(uint32_t two) { return from_bits(two << 16); }
DEV float high_bf16(uint32_t two) { return from_bits(two & 0xffff0000u); }

// Byte of the 16-byte chunk (row, eight channels) in a tile of N rows: [channel / 64][row][64], chunks xored by the row. The 128-byte
// swizzle of wgmma, and free of bank conflicts for 8x8 matrices.
template <int N> DEV int chunk_at(int row, int chunk) { return (chunk >> 3) * N * 128 + row * 128 + ((chunk & 7) ^ (row & 7)) * 16; }
