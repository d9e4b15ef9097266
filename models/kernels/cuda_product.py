"""The product of few rows with quantised weights for NVIDIA GPUs, in CUDA that MLX compiles.

A warp multiplies tiles of 16 outputs by 8 rows on the tensor cores (`mma.m16n8k16`). Of each group
of 64 codes a lane takes the 16 that lie together, of two outputs; since a sum has no order, rows
are read in that same order and nothing is shuffled. One instruction puts two codes into the
mantissas of bfloat16 numbers, so codes are exact and rows keep their range. Scales and biases act
on the float32 sums of a group. Codes come through a ring in shared memory, by asynchronous copies
that go on over the borders of blocks of outputs: the memory never waits. The warps of a block
share out the groups and add up at the end, so a weight is read once, whatever the number of rows.
"""

HEADER = r"""
__device__ __forceinline__ void multiply(
    float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Into shared memory, past the registers and the first cache.
template <int BYTES>
__device__ __forceinline__ void copy_ahead(unsigned to, const void* from) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES));
  }
}

template <int WORDS>
__device__ __forceinline__ void read_words(unsigned (&to)[WORDS], const unsigned char* from) {
  if constexpr (WORDS == 4) {
    uint4 four = *reinterpret_cast<const uint4*>(from);
    to[0] = four.x; to[1] = four.y; to[2] = four.z; to[3] = four.w;
  } else if constexpr (WORDS == 2) {
    uint2 two = *reinterpret_cast<const uint2*>(from);
    to[0] = two.x; to[1] = two.y;
  } else {
    to[0] = *reinterpret_cast<const unsigned*>(from);
  }
}

template <int WORDS>
__device__ __forceinline__ float half_at(const unsigned (&words)[WORDS], int i) {
  unsigned word = words[i / 2];
  return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
}

// Two bytes as bfloat16, in two exact parts that add up to -(128 + code). Behind the upper byte of
// -128, a code is a mantissa of seven bits and the last bit of the exponent: -(128 + code), or
// -2 code from 128 on, where `extra` gives code - 128 back.
__device__ __forceinline__ unsigned with_exponent(unsigned word, int pair) {
  return __byte_perm(word, 0xc3c3c3c3u, pair ? 0x4342 : 0x4140);
}
__device__ __forceinline__ unsigned extra(unsigned part) {
  unsigned other;
  asm("fma.rn.relu.bf16x2 %0, %1, %2, %3;"
      : "=r"(other) : "r"(part), "r"(0xbf00bf00u), "r"(0xc300c300u));  // * -0.5 - 128
  return other;
}

// Two codes of four bits, sixteen bits apart, as bfloat16 of -(128 + code).
__device__ __forceinline__ unsigned widen_nibbles(unsigned word) {
  return (word & 0x000f000fu) | 0xc300c300u;
}

// Adds the product of sixteen outputs and the step's four codes of each lane.
template <int BITS, int COLUMNS, int WORDS>
__device__ __forceinline__ void multiply_step(
    float (&d)[COLUMNS][4], const unsigned (&one)[WORDS], const unsigned (&other)[WORDS],
    const unsigned (&rows)[COLUMNS][8], int step) {
  unsigned a[4];
  if constexpr (BITS == 8) {
    a[0] = with_exponent(one[step], 0);
    a[1] = with_exponent(other[step], 0);
    a[2] = with_exponent(one[step], 1);
    a[3] = with_exponent(other[step], 1);
  } else {
    int shift = step % 2 * 8;
    a[0] = widen_nibbles(one[step / 2] >> shift);
    a[1] = widen_nibbles(other[step / 2] >> shift);
    a[2] = widen_nibbles(one[step / 2] >> (shift + 4));
    a[3] = widen_nibbles(other[step / 2] >> (shift + 4));
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) multiply(d[c], a, rows[c][2 * step], rows[c][2 * step + 1]);
  if constexpr (BITS == 8) {
    unsigned rest[4] = {extra(a[0]), extra(a[1]), extra(a[2]), extra(a[3])};
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      multiply(d[c], rest, rows[c][2 * step], rows[c][2 * step + 1]);
    }
  }
}

// Sixteen elements of a row, in the order of the codes in `multiply_step`.
template <int BITS>
__device__ __forceinline__ void arrange(unsigned (&b)[8], uint4 first, uint4 second) {
  unsigned pair[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if constexpr (BITS == 8) {
      b[2 * step] = pair[2 * step];
      b[2 * step + 1] = pair[2 * step + 1];
    } else {
      int one = step / 2 * 4 + step % 2;
      b[2 * step] = __byte_perm(pair[one], pair[one + 2], 0x5410);
      b[2 * step + 1] = __byte_perm(pair[one], pair[one + 2], 0x7632);
    }
  }
}

__device__ __forceinline__ unsigned short to_half(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ __forceinline__ float rounded(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}
"""

# TILES of 16 outputs a warp, WARPS a block, COLUMNS of 8 rows; GROUPS (2 or 4) are read at a time,
# and STAGES - 1 such reads are on their way. With GATED, the first half of the outputs are gates of
# the second: silu(gate) * up is written.
SOURCE = r"""
constexpr int WORDS = BITS / 2;  // of a lane's 16 codes
constexpr int CODE_BYTES = 16 * GROUPS * 8 * BITS;  // of a tile, read at a time
constexpr int TILE_BYTES = CODE_BYTES + 16 * GROUPS * 4;  // and its scales and biases
constexpr int STAGE_BYTES = TILES * TILE_BYTES;
extern __shared__ __align__(16) unsigned char shared[];

const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
const int outputs = w_shape[0], groups = s_shape[1], width = groups * 64;
const long long row_bytes = (long long)w_shape[1] * 4;
int rows = x_shape[0];
for (int i = 1; i < x_ndim - 1; ++i) rows *= x_shape[i];

constexpr int BLOCK_TILES = GATED ? TILES / 2 : TILES;
const int written = GATED ? outputs / 2 : outputs;
const int blocks = written / (BLOCK_TILES * 16), chunks = groups / GROUPS;
const unsigned short* row[COLUMNS];
#pragma unroll
for (int c = 0; c < COLUMNS; ++c) {
  int at = c * 8 + lane / 4;  // rows that are not there repeat the first, and are not written
  row[c] = reinterpret_cast<const unsigned short*>(x) + (long long)(at < rows ? at : 0) * width +
      quad * 16;
}

unsigned char* ring = shared + warp * STAGES * STAGE_BYTES;
const unsigned ring_at = static_cast<unsigned>(__cvta_generic_to_shared(ring));
constexpr int UNIT = BITS / 2, PIECES = GROUPS * UNIT;  // of 16 bytes: of a group, of a read
constexpr int AT_ONCE = 32 / PIECES;
auto place = [](int o, int piece) {
  // Outputs that lanes read together have their pieces in different banks.
  constexpr int PERIOD = PIECES < 8 ? 8 / PIECES : 1, SLOTS = (PIECES < 8 ? PIECES : 8) / UNIT;
  return o * PIECES + (piece ^ (o / PERIOD % SLOTS * UNIT));
};
auto read = [&](int stage, int block, int chunk) {
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const long long start =
        (block * BLOCK_TILES + t % BLOCK_TILES) * 16 + (t < BLOCK_TILES ? 0 : written);
    const unsigned to = ring_at + stage * STAGE_BYTES + t * TILE_BYTES;
#pragma unroll
    for (int i = 0; i < 16 / AT_ONCE; ++i) {
      int o = i * AT_ONCE + lane / PIECES, piece = lane % PIECES;
      copy_ahead<16>(to + place(o, piece) * 16,
                     reinterpret_cast<const unsigned char*>(w) + (start + o) * row_bytes +
                         (long long)chunk * PIECES * 16 + piece * 16);
    }
    const auto* half = reinterpret_cast<const unsigned short*>(lane < 16 ? s : b);
    copy_ahead<GROUPS * 2>(to + CODE_BYTES + lane * GROUPS * 2,
                           half + (start + lane % 16) * groups + chunk * GROUPS);
  }
};

float total[TILES][COLUMNS][4] = {};
uint4 raw[COLUMNS][GROUPS][2];
auto read_rows = [&](int chunk) {
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      const auto* from = reinterpret_cast<const uint4*>(row[c] + (chunk * GROUPS + g) * 64);
      raw[c][g][0] = __ldg(from);
      raw[c][g][1] = __ldg(from + 1);
    }
  }
};
auto add = [&](int stage, const unsigned (&in_row)[GROUPS][COLUMNS][8]) {
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    float row_sum[COLUMNS][4] = {};
    const unsigned ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply(row_sum[c], ones, in_row[g][c][2 * step], in_row[g][c][2 * step + 1]);
      }
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const unsigned char* tile = ring + stage * STAGE_BYTES + t * TILE_BYTES;
      unsigned code[2][WORDS], scale[2][GROUPS / 2], bias[2][GROUPS / 2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int o = lane / 4 + half * 8, byte = (g * 4 + quad) * WORDS * 4;
        read_words(code[half], tile + place(o, byte / 16) * 16 + byte % 16);
        read_words(scale[half], tile + CODE_BYTES + o * GROUPS * 2);
        read_words(bias[half], tile + CODE_BYTES + (16 + o) * GROUPS * 2);
      }
      float product[COLUMNS][4] = {};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_step<BITS>(product, code[0], code[1], in_row[g], step);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float slope = -half_at(scale[half], g);  // as `product` has -(128 + code)
        float shift = fmaf(128.0f, slope, half_at(bias[half], g));
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            total[t][c][i] = fmaf(slope, product[c][i],
                                  fmaf(shift, row_sum[c][i], total[t][c][i]));
          }
        }
      }
    }
  }
};

// What is read next may belong to the next block of outputs: reading never pauses.
int next_block = blockIdx.x, next_chunk = warp;
auto read_next = [&](int stage) {
  if (next_block < blocks) read(stage, next_block, next_chunk);
  asm volatile("cp.async.commit_group;");
  next_chunk += WARPS;
  if (next_chunk >= chunks) {
    next_chunk = warp;
    next_block += gridDim.x;
  }
};
#pragma unroll
for (int stage = 0; stage < STAGES - 1; ++stage) read_next(stage);
int stage = 0, turn = 0;
for (int block = blockIdx.x; block < blocks; block += gridDim.x) {
  for (int chunk = warp; chunk < chunks; chunk += WARPS) {
    read_rows(chunk);
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncwarp();
    read_next(stage == 0 ? STAGES - 1 : stage - 1);
    unsigned in_row[GROUPS][COLUMNS][8];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) arrange<BITS>(in_row[g][c], raw[c][g][0], raw[c][g][1]);
    }
    add(stage, in_row);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  // Two turns have their own sums, so that one barrier is enough.
  auto sums = reinterpret_cast<float (*)[TILES][COLUMNS][4][32]>(
      shared + WARPS * STAGES * STAGE_BYTES + turn * WARPS * TILES * COLUMNS * 512);
  turn ^= 1;
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[warp][t][c][i][lane] = total[t][c][i];
        total[t][c][i] = 0;
      }
    }
  }
  __syncthreads();
  unsigned short* out = reinterpret_cast<unsigned short*>(y) + block * BLOCK_TILES * 16;
  for (int at = threadIdx.x; at < BLOCK_TILES * 16 * COLUMNS * 8; at += WARPS * 32) {
    int o = at % (BLOCK_TILES * 16), r = at / (BLOCK_TILES * 16);
    if (r >= rows) break;
    int t = o / 16, c = r / 8, i = o % 16 / 8 * 2 + r % 2, from = o % 8 * 4 + r % 8 / 2;
    float value = 0;
#pragma unroll
    for (int each = 0; each < WARPS; ++each) value += sums[each][t][c][i][from];
    if constexpr (GATED) {
      float up = 0;
#pragma unroll
      for (int each = 0; each < WARPS; ++each) up += sums[each][t + BLOCK_TILES][c][i][from];
      value = rounded(value);
      value = rounded(value / (1.0f + __expf(-value))) * rounded(up);
    }
    out[(long long)r * written + o] = to_half(value);
  }
}
"""
