"""The product of few rows with quantised weights for Apple GPUs, as Metal that MLX compiles.

A group of 32 threads has four outputs and all rows: each thread takes eight inputs of 256, so a
weight is read once, whatever the number of rows. It has been run on no machine of its authors: it
is used where it passes the check and wins the timing that every kernel has at load.
"""

OUTPUTS = 4  # of 32 threads
INPUTS_AT_ONCE = 256  # of 32 threads

SOURCE = r"""
constexpr int PART = 8;  // inputs of a thread, which are of one group of 64
const int inputs = s_shape[1] * 64, groups = s_shape[1];
const int first = thread_position_in_grid.x / 32 * OUTPUTS;
const int outputs = w_shape[0], lane = thread_index_in_simdgroup;
const device uchar* codes = reinterpret_cast<const device uchar*>(w);

float total[OUTPUTS][ROWS];
for (int o = 0; o < OUTPUTS; ++o) {
  for (int r = 0; r < ROWS; ++r) total[o][r] = 0;
}
for (int at = lane * PART; at < inputs; at += 32 * PART) {
  float code[OUTPUTS][PART], scale[OUTPUTS], bias[OUTPUTS];
  for (int o = 0; o < OUTPUTS; ++o) {
    const long element = long(first + o) * inputs + at;
    for (int i = 0; i < PART; ++i) {
      code[o][i] = BITS == 8 ? codes[element + i]
                             : codes[(element + i) / 2] >> (i % 2 * 4) & 15;
    }
    const int group = (first + o) * groups + at / 64;
    scale[o] = s[group];
    bias[o] = b[group];
  }
  for (int r = 0; r < ROWS; ++r) {
    float row[PART], sum = 0;
    for (int i = 0; i < PART; ++i) {
      row[i] = x[r * inputs + at + i];
      sum += row[i];
    }
    for (int o = 0; o < OUTPUTS; ++o) {
      float product = 0;
      for (int i = 0; i < PART; ++i) product += code[o][i] * row[i];
      total[o][r] += scale[o] * product + bias[o] * sum;
    }
  }
}
for (int o = 0; o < OUTPUTS; ++o) {
  for (int r = 0; r < ROWS; ++r) {
    float sum = simd_sum(total[o][r]);
    if (lane == 0) y[r * outputs + first + o] = static_cast<bfloat16_t>(sum);
  }
}
"""
