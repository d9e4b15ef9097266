"""What lies between the products of a decode step, for NVIDIA GPUs, in four launches a layer.

`HEADS_SOURCE` normalises and rotates queries and keys; `ATTEND_SOURCE` is attention of few rows
over any number of keys, split over blocks (flash decoding), and `MERGE_SOURCE` puts the parts
together and applies the gate; `NORMS_SOURCE` ends a block of the residual stream and begins the
next. All round to bfloat16 where the modules of mlx-lm do. Heads have 128 elements.
"""

from models.kernels.cuda_product import HEADER as _PRODUCT_HEADER

HEADER = (
    _PRODUCT_HEADER
    + r"""
#define INFINITE __int_as_float(0x7f800000)
__device__ __forceinline__ float low(unsigned word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(unsigned word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ unsigned packed(float low, float high) {
  return to_half(low) | static_cast<unsigned>(to_half(high)) << 16;
}
"""
)

# Inputs: x [1, rows, (HEADS + 2 KV + HEADS) * 128] are queries, keys, values and gates; `at` [1] is
# the place of the first row; `factors` are epsilon, the scale of queries, log2 of the rotation's
# base. Outputs: q [1, rows, HEADS * 128]; k, v [1, KV, rows, 128]. A warp a head.
HEADS_SOURCE = r"""
const int rows = x_shape[1], lane = threadIdx.x % 32;
const int item = blockIdx.x * 8 + threadIdx.x / 32;
const int row = item / (HEADS + 2 * KV), head = item % (HEADS + 2 * KV);
if (row >= rows) return;
const unsigned* from = reinterpret_cast<const unsigned*>(x) +
    ((long long)row * x_shape[2] + head * 128) / 2;
unsigned first = from[lane], second = from[32 + lane];
if (head >= HEADS + KV) {
  unsigned* to = reinterpret_cast<unsigned*>(v) + ((head - HEADS - KV) * rows + row) * 64;
  to[lane] = first;
  to[32 + lane] = second;
  return;
}
float value[4] = {low(first), high(first), low(second), high(second)};
float squares = 0;
for (int i = 0; i < 4; ++i) squares += value[i] * value[i];
for (int apart = 16; apart; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
const float norm = rsqrtf(squares / 128 + factors[0]);
for (int i = 0; i < 4; ++i) {
  value[i] = rounded(value[i] * norm);
  if (head < HEADS) value[i] = rounded(value[i] * rounded(factors[1]));
}
if constexpr (ROTATES) {
  for (int i = 0; i < 2; ++i) {
    float angle = static_cast<float>(at[0] + row) * exp2f((2 * lane + i) / -64.0f * factors[2]);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    float one = value[i], other = value[i + 2];
    value[i] = one * cosine - other * sine;
    value[i + 2] = one * sine + other * cosine;
  }
}
unsigned* to = head < HEADS
    ? reinterpret_cast<unsigned*>(q) + (row * HEADS + head) * 64
    : reinterpret_cast<unsigned*>(k) + ((head - HEADS) * rows + row) * 64;
to[lane] = packed(value[0], value[1]);
to[32 + lane] = packed(value[2], value[3]);
"""

# Inputs: q as above; k, v [1, KV, keys, 128], sliced as caches slice them; the last of the keys are
# of the rows themselves. Each row sees the keys up to its own, at most WINDOW if that is not 0.
# Outputs: part [rows * HEADS, SPLITS, 128] and stat [rows * HEADS, SPLITS, 2], float32.
ATTEND_SOURCE = r"""
constexpr int RATIO = HEADS / KV, WARPS = 4;
constexpr float SCALE = 0.08838834764831845f * 1.4426950408889634f;  // 128 ** -0.5 * log2(e)
__shared__ float partial[WARPS][16][136];
__shared__ float extent[WARPS][16][2];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4, group = lane / 4;
const int split = blockIdx.x, head = blockIdx.y, start = blockIdx.z * 16;
const int rows = q_shape[1], queries = rows * RATIO, keys = k_shape[2];
const unsigned short* key = reinterpret_cast<const unsigned short*>(k) + head * k_strides[1];
const unsigned short* value = reinterpret_cast<const unsigned short*>(v) + head * v_strides[1];

int last[2];  // the last key that each of this lane's two queries sees
unsigned query[8][4];
#pragma unroll
for (int half = 0; half < 2; ++half) {
  int at = min(start + group + half * 8, queries - 1);
  last[half] = keys - rows + at / RATIO;
  const uint4* from = reinterpret_cast<const uint4*>(
      reinterpret_cast<const unsigned short*>(q) +
      (at / RATIO * HEADS + head * RATIO + at % RATIO) * 128);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4 four = from[i * 4 + quad];
    query[2 * i][half] = four.x;
    query[2 * i][half + 2] = four.y;
    query[2 * i + 1][half] = four.z;
    query[2 * i + 1][half + 2] = four.w;
  }
}

float most[2] = {-INFINITE, -INFINITE}, sum[2] = {0, 0}, out[16][4] = {};
const int each = ((keys + SPLITS - 1) / SPLITS + 15) / 16 * 16;
const int end = min(keys, (split + 1) * each);
for (int base = split * each + warp * 16; base < end; base += WARPS * 16) {
  float score[2][4] = {};
  uint4 seen[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int at = min(base + quad * 2 + i % 2 + i / 2 * 8, keys - 1);
    const uint4* from = reinterpret_cast<const uint4*>(value + at * v_strides[2]) + group * 2;
    seen[i][0] = __ldg(from);
    seen[i][1] = __ldg(from + 1);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int at = min(base + group + half * 8, keys - 1);
    const uint4* from = reinterpret_cast<const uint4*>(key + at * k_strides[2]) + quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 four = __ldg(from + i * 4);
      multiply(score[half], query[2 * i], four.x, four.y);
      multiply(score[half], query[2 * i + 1], four.z, four.w);
    }
  }
  unsigned weight[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // of the two queries
    float top = most[i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int at = base + half * 8 + quad * 2 + j;
        bool is_seen = at <= last[i] && (WINDOW == 0 || at > last[i] - WINDOW);
        float& one = score[half][2 * i + j];
        one = is_seen ? one * SCALE : -INFINITE;
        top = fmaxf(top, one);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float from = top == -INFINITE ? 0 : top, shrink = exp2f(most[i] - from);
    most[i] = top;
    sum[i] *= shrink;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      out[t][2 * i] *= shrink;
      out[t][2 * i + 1] *= shrink;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float one = exp2f(score[half][2 * i] - from), other = exp2f(score[half][2 * i + 1] - from);
      sum[i] += one + other;
      weight[half * 2 + i] = packed(one, other);
    }
  }
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    auto word = [&](int i) {
      const uint4& four = seen[i][t / 8];
      return t / 2 % 4 == 0 ? four.x : t / 2 % 4 == 1 ? four.y : t / 2 % 4 == 2 ? four.z : four.w;
    };
    const unsigned half = t % 2 ? 0x7632 : 0x5410;
    multiply(out[t], weight, __byte_perm(word(0), word(1), half),
             __byte_perm(word(2), word(3), half));
  }
}
#pragma unroll
for (int i = 0; i < 2; ++i) {
  sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
  sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
  if (quad == 0) {
    extent[warp][group + i * 8][0] = most[i];
    extent[warp][group + i * 8][1] = sum[i];
  }
  // Element n * 16 + t is kept at t * 8 + n: what the lanes hold then lies in different banks.
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    *reinterpret_cast<float2*>(&partial[warp][group + i * 8][t * 8 + quad * 2]) =
        make_float2(out[t][2 * i], out[t][2 * i + 1]);
  }
}
__syncthreads();
for (int i = 0; i < 16 && start + i < queries; ++i) {
  float top = -INFINITE, all = 0, whole = 0;
  for (int w = 0; w < WARPS; ++w) top = fmaxf(top, extent[w][i][0]);
  for (int w = 0; w < WARPS; ++w) {
    float share = extent[w][i][0] == -INFINITE ? 0 : exp2f(extent[w][i][0] - top);
    all += share * extent[w][i][1];
    whole += share * partial[w][i][threadIdx.x];
  }
  int at = start + i;
  long long to = (at / RATIO * HEADS + head * RATIO + at % RATIO) * SPLITS + split;
  part[to * 128 + threadIdx.x] = whole;
  if (threadIdx.x == 0) {
    stat[to * 2] = top;
    stat[to * 2 + 1] = all;
  }
}
"""

# Inputs: part and stat; x, whose gates are the last HEADS * 128. Output: [1, rows, HEADS * 128].
MERGE_SOURCE = r"""
const int head = blockIdx.x, row = blockIdx.y, from = threadIdx.x;
const int element = from % 8 * 16 + from / 8;  // as `part` has them
const long long at = (long long)(row * HEADS + head) * SPLITS;
float top = -INFINITE, all = 0, whole = 0;
for (int i = 0; i < SPLITS; ++i) top = fmaxf(top, stat[(at + i) * 2]);
for (int i = 0; i < SPLITS; ++i) {
  float share = exp2f(stat[(at + i) * 2] - top);
  all += share * stat[(at + i) * 2 + 1];
  whole += share * part[(at + i) * 128 + from];
}
const int width = x_shape[2];
unsigned short gate = reinterpret_cast<const unsigned short*>(x)[
    (long long)(row + 1) * width - HEADS * 128 + head * 128 + element];
float open = rounded(1.0f / (1.0f + __expf(-__uint_as_float(static_cast<unsigned>(gate) << 16))));
reinterpret_cast<unsigned short*>(y)[(row * HEADS + head) * 128 + element] =
    to_half(rounded(whole / all) * open);
"""

# Inputs: x, what a block of the model gave; h, the stream before it; `one` and `two`, the weights
# of the norm after it and of that before the next block; `epsilons` of the two. Outputs: the new
# stream, and what the next block takes. A block of threads a row, eight elements a thread.
NORMS_SOURCE = r"""
__shared__ float shared[2][32];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
const int width = blockDim.x * 8;
const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
auto read = [&](float (&to)[8], const void* from, long long index) {
  uint4 words = static_cast<const uint4*>(from)[index];
  unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = low(word[i]);
    to[2 * i + 1] = high(word[i]);
  }
};
auto write = [&](void* to, const float (&value)[8]) {
  static_cast<uint4*>(to)[at] =
      make_uint4(packed(value[0], value[1]), packed(value[2], value[3]),
                 packed(value[4], value[5]), packed(value[6], value[7]));
};
auto norm = [&](const float (&value)[8], int which) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += value[i] * value[i];
#pragma unroll
  for (int apart = 16; apart; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
  if (lane == 0) shared[which][warp] = squares;
  __syncthreads();
  squares = lane < warps ? shared[which][lane] : 0;
#pragma unroll
  for (int apart = 16; apart; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
  return rsqrtf(squares / width + epsilons[which]);
};
float value[8], stream[8], weight[8], next[8];
read(value, x, at);
read(stream, h, at);
read(weight, one, threadIdx.x);
read(next, two, threadIdx.x);
float factor = norm(value, 0);
#pragma unroll
for (int i = 0; i < 8; ++i) {
  stream[i] = rounded(stream[i] + rounded(value[i] * factor * weight[i]));
}
write(h2, stream);
factor = norm(stream, 1);
#pragma unroll
for (int i = 0; i < 8; ++i) stream[i] = stream[i] * factor * next[i];
write(y, stream);
"""
