// Products of experts with wgmma, for many rows: every expert's places times its own weights. Blocks stay and take tiles of 128 places x
// 256 rows of a weight in turn, an expert's tiles one behind the other, so that its weights stay in the L2. A warpgroup brings slices of
// 64 channels into a ring: rows of activations by copies of each thread, which go to where a place's row lies, and rows of weights by
// boxes of the copy engine. Two warpgroups have 64 places each.
#include "four.cuh"
#include "hopper.cuh"

constexpr int WARPGROUP = 128, CONSUMERS = 2 * WARPGROUP, STAGES = 4;
constexpr int TILE_M = 128, TILE_N = 256, SLICE = 64;
constexpr int A_BYTES = TILE_M * SLICE * 2, BOX = TILE_N / 2 * SLICE * 2, STAGE = A_BYTES + 2 * BOX;
// Shared memory: the ring; 16 rows of 64 outputs for each warp; a barrier "full" and one "empty" for each stage; the tiles of 128 places
// up to and with each expert.
constexpr int STAGING = STAGES * STAGE, BARRIERS = STAGING + CONSUMERS / 32 * 2048, TILES_UP_TO = BARRIERS + STAGES * 16;

// D [64 x 256] = (accumulates ? D : 0) + A [64 x 16] B [16 x 256], both in shared memory, K contiguous.
DEV void wgmma_256(float (&d)[32][4], uint64_t a, uint64_t b, int accumulates) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
    "%128, %129, p, 1, 1, 0, 0;\n}"
    : THIRTY_TWO(d, 0), THIRTY_TWO(d, 8), THIRTY_TWO(d, 16), THIRTY_TWO(d, 24) : "l"(a), "l"(b), "r"(accumulates));
}

// first [experts]: where each expert's places begin. tiles [experts]: how many tiles there are up to and with each. By one warp.
DEV void count_tiles(const uint32_t* __restrict__ first, uint32_t* tiles, int experts, uint32_t places) {
  const int lane = threadIdx.x & 31;
  uint32_t before = 0;
  for (int expert = lane; expert < (experts + 31 & ~31); expert += 32) {
    const uint32_t begin = expert < experts ? first[expert] : places, end = expert + 1 < experts ? first[expert + 1] : places;
    uint32_t sum = (end - begin + TILE_M - 1) / TILE_M;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    if (expert < experts) tiles[expert] = before + sum;
    before += __shfl_sync(~0u, sum, 31);
  }
}

// The tiles of a block: every gridDim-th of all, those of the same places next to each other.
struct Tiles {
  const uint32_t *const first, *const up_to;
  const uint32_t columns, all, places;  // tiles of 256 weight rows in an expert, and of everything
  const int experts;
  uint32_t tile = blockIdx.x, expert = 0;

  DEV_MEMBER Tiles(const uint32_t* first, const uint32_t* up_to, int experts, uint32_t places, uint32_t columns)
      : first(first), up_to(up_to), columns(columns), all(up_to[experts - 1] * columns), places(places), experts(experts) {}

  // Whether there is one more. Its first place, how many places it has, and its column of tiles.
  DEV_MEMBER bool take(uint32_t& place, uint32_t& count, uint32_t& column) {
    if (tile >= all) return false;
    const uint32_t row = tile / columns;
    column = tile % columns;
    while (up_to[expert] <= row) ++expert;
    const uint32_t end = (int)expert + 1 < experts ? first[expert + 1] : places;
    place = first[expert] + (row - (expert ? up_to[expert - 1] : 0)) * TILE_M;
    count = end - place < TILE_M ? end - place : TILE_M;
    tile += gridDim.x;
    return true;
  }
};

// y [places, width] = the place's row of x times its expert's matrix [outer, inner] of `weight`, transposed; with GATED its rows are gates
// and below them ups, outer = 2 width, and y = silu(gate) up. A place's row is its assignment over `top`, or the place itself where `top`
// is 0. inner is a multiple of 64, width of 8.
template <bool GATED>
DEV void multiply_experts(const TensorMap& weight, const bf16* __restrict__ x, bf16* __restrict__ y, const uint32_t* __restrict__ first,
                          const uint32_t* __restrict__ order, int experts, uint32_t places, int outer, int inner, int top) {
  DYNAMIC_SHARED(shared);
  constexpr int WIDE = GATED ? TILE_N / 2 : TILE_N;  // outputs of a tile
  const int width = GATED ? outer / 2 : outer, slices = inner / SLICE, thread = threadIdx.x & (WARPGROUP - 1), lane = thread & 31;
  const uint32_t base = shared_address(shared);
  uint32_t* const up_to = (uint32_t*)(shared + TILES_UP_TO);
  auto full = [&](int stage) { return base + BARRIERS + stage * 16; };
  auto empty = [&](int stage) { return base + BARRIERS + stage * 16 + 8; };
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full(i), WARPGROUP + 1);
      barrier_init(empty(i), CONSUMERS / 32);
    }
    barrier_init_done();
  }
  if (threadIdx.x < 32) count_tiles(first, up_to, experts, places);
  sync();
  Tiles tiles(first, up_to, experts, places, (width + WIDE - 1) / WIDE);
  uint32_t place, count, column;
  int stage = 0, phase = 0;
  auto next = [&] {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  };

  // Registers: 56 + 2 x 224 is what three warpgroups of 168 were given; with more, the increase would wait for ever.
  if (threadIdx.x >= CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    // Thread `t` copies chunk t % 8 of rows t / 8 + 16 i.
    const int row = thread / 8, chunk = thread % 8;
    const uint8_t* const from = (const uint8_t*)x + chunk * 16;
    const uint32_t to = base + chunk_at<TILE_M>(row, chunk), row_units = inner / 8;
    while (tiles.take(place, count, column)) {
      // Where they begin, in units of 16 bytes; beyond `count` some row that is there, or what lay there before: no output is written of it.
      uint32_t rows[TILE_M / 16];
#pragma unroll
      for (int i = 0; i < TILE_M / 16; ++i) {
        const uint32_t at = place + ((uint32_t)(row + 16 * i) < count ? row + 16 * i : 0);
        rows[i] = (top ? order[at] / (uint32_t)top : at) * row_units;
      }
      const int near = tiles.expert * outer + column * WIDE, far = near + (GATED ? width : TILE_N / 2);
      for (int slice = 0; slice < slices; ++slice) {
        barrier_wait(empty(stage), phase ^ 1);
        if (thread == 0) {
          barrier_expect(full(stage), 2 * BOX);
          load_box(base + stage * STAGE + A_BYTES, weight, slice * SLICE, near, full(stage));
          load_box(base + stage * STAGE + A_BYTES + BOX, weight, slice * SLICE, far, full(stage));
        }
#pragma unroll
        for (int i = 0; i < TILE_M / 16; ++i)
          if (16u * i < count) copy16(to + stage * STAGE + i * 2048, from + (size_t)rows[i] * 16 + slice * (SLICE * 2), true);
        copies_arrive(full(stage));
        next();
      }
    }
    copies_wait();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const int group = threadIdx.x >> 7, warp = thread >> 5;
    uint8_t* const staging = shared + STAGING + (threadIdx.x >> 5) * 2048;
    auto release = [&](int stage) {
      if (lane == 0) barrier_arrive(empty(stage));
    };
    while (tiles.take(place, count, column)) {
      if (count <= 64u * group) {  // no place of this warpgroup
        for (int slice = 0; slice < slices; ++slice) {
          barrier_wait(full(stage), phase);
          release(stage);
          next();
        }
        continue;
      }
      float d[TILE_N / 8][4];
      int last = 0;
      for (int slice = 0; slice < slices; ++slice) {
        barrier_wait(full(stage), phase);
        // What the producers wrote is shown to wgmma here: their own fence would wait for every copy that is on its way.
        fence_async();
        const uint64_t a = tile_descriptor(base + stage * STAGE + group * 64 * 128, 16, 1024);
        const uint64_t b = tile_descriptor(base + stage * STAGE + A_BYTES, 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < SLICE / 16; ++k) wgmma_256(d, a + k * 2, b + k * 2, slice | k);
        wgmma_commit();
        wgmma_wait<1>();
        if (slice) release(last);
        last = stage;
        next();
      }
      wgmma_wait<0>();
      release(last);

      // Through this warp's 16 rows of 64 outputs, so that whole lines are written.
      const uint32_t from = shared_address(staging);
      const int first_row = 64 * group + 16 * warp;
#pragma unroll
      for (int part = 0; part < WIDE / 64; ++part) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {  // two blocks of 8 columns, each of two blocks of 8 rows
          uint32_t out[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int n = 8 * part + j + (e >> 1), low = 2 * (e & 1);
            float left = d[n][low], right = d[n][low + 1];
            if (GATED) {
              left = quick_silu(left) * d[n + TILE_N / 16][low];
              right = quick_silu(right) * d[n + TILE_N / 16][low + 1];
            }
            out[e] = pack_bf16(left, right);
          }
          store_matrices(from + (lane & 15) * 128 + (((j + (lane >> 4)) ^ (lane & 7)) * 16), out[0], out[1], out[2], out[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = lane / 8 + 4 * i, at = column * WIDE + part * 64 + lane % 8 * 8;
          if (first_row + row < (int)count && at < width)
            *(uint4*)(y + (size_t)(place + first_row + row) * width + at) = *(const uint4*)(staging + row * 128 + ((lane % 8) ^ (row & 7)) * 16);
        }
      }
    }
  }
}

#define EXPERTS(name, GATED)                                                                                                         \
  KERNEL_ALONE(CONSUMERS + WARPGROUP, name)(const __grid_constant__ TensorMap weight, const bf16* x, bf16* y, const uint32_t* first,  \
                                            const uint32_t* order, int experts, uint32_t places, int outer, int inner, int top) {    \
    multiply_experts<GATED>(weight, x, y, first, order, experts, places, outer, inner, top);                                         \
  }
EXPERTS(experts_gated_hopper, true)
EXPERTS(experts_hopper, false)
