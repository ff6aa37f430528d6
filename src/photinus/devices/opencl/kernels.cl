// The products, convolutions and max-pools of a training step, in float32. OpenCL 1.2.
//
// A product is C[m, n] = sum over k of A[m, k] B[n, k]. Of every operand two axes are given: how an
// index along it becomes an offset. So one kernel reads a matrix, its transpose, or the columns of
// a convolution, which are never written out as a whole.

// An axis is (d1, d2, s0, s1, s2): index = (i0 d1 + i1) d2 + i2, offset = i0 s0 + i1 s1 + i2 s2.
typedef int8 Axis;

int at(const int index, const Axis a) {
  const int q = index / a.s1;
  return (q / a.s0) * a.s2 + (q % a.s0) * a.s3 + (index % a.s1) * a.s4;
}

// ---- for processors and FPGAs: panels are packed, then each work item computes a tile alone

#ifndef LANES
#define LANES 16
#endif
#if LANES == 16
#define VECTOR float16
#define LOAD vload16
#define STORE vstore16
#define TILE_ROWS 8
#define EACH_ROW(D) D(0) D(1) D(2) D(3) D(4) D(5) D(6) D(7)
#else
#define VECTOR float8
#define LOAD vload8
#define STORE vstore8
#define TILE_ROWS 6
#define EACH_ROW(D) D(0) D(1) D(2) D(3) D(4) D(5)
#endif
#define TILE_COLUMNS (2 * LANES)
#define PACKED_AT_ONCE 64

// Panel p holds `width` neighbouring rows of X for k in [first, last), k by k. Rows behind the last
// one repeat it: what comes of them is not stored.
#define DEFINE_PACK(NAME, WIDTH) \
__kernel void NAME(const int rows, const int panel, const int first, const int last, \
    __global const float* X, const int start, const int step, const Axis by_row, const Axis by_k, \
    __global float* P, const int room) { \
  const int p = get_global_id(0), from = first + get_global_id(1) * PACKED_AT_ONCE; \
  const int to = min(last, from + PACKED_AT_ONCE), z = get_global_id(2); \
  __global const float* x = X + start + (size_t)z * step; \
  __global float* to_panel = P + (size_t)z * room + ((size_t)p * (last - first) + from - first) * WIDTH; \
  int offset[WIDTH]; \
  for (int j = 0; j < WIDTH; j++) offset[j] = at(min((panel + p) * WIDTH + j, rows - 1), by_row); \
  int is_run = 1; \
  for (int j = 1; j < WIDTH; j++) is_run &= offset[j] == offset[0] + j; \
  int i2 = from % by_k.s1, i1 = (from / by_k.s1) % by_k.s0, i0 = from / by_k.s1 / by_k.s0; \
  for (int k = from; k < to; k++, to_panel += WIDTH) { \
    __global const float* y = x + (i0 * by_k.s2 + i1 * by_k.s3 + i2 * by_k.s4); \
    if (is_run) { \
      __global const float* run = y + offset[0]; \
      for (int j = 0; j < WIDTH; j++) to_panel[j] = run[j]; \
    } else { \
      for (int j = 0; j < WIDTH; j++) to_panel[j] = y[offset[j]]; \
    } \
    if (++i2 == by_k.s1) { i2 = 0; if (++i1 == by_k.s0) { i1 = 0; i0++; } } \
  } \
}
DEFINE_PACK(pack_rows, TILE_ROWS)
DEFINE_PACK(pack_columns, TILE_COLUMNS)

// PA holds panels of all of k, PB those of [first, first + depth); `adds` tells to add to C.
__kernel void tile(const int m, const int n, const int all, const int first, const int depth,
    const int panel, const int adds, __global const float* PA, const int a_room,
    __global const float* PB, const int b_room, __global float* C, const int start, const int step,
    const Axis by_row, const Axis by_column) {
  const int ip = get_global_id(0), jp = get_global_id(1), z = get_global_id(2);
  __global const float* a = PA + (size_t)z * a_room + ((size_t)ip * all + first) * TILE_ROWS;
  __global const float* b = PB + (size_t)z * b_room + (size_t)jp * depth * TILE_COLUMNS;
#define D(i) VECTOR x##i = 0.0f, y##i = 0.0f;
  EACH_ROW(D)
#undef D
  for (int k = 0; k < depth; k++, a += TILE_ROWS, b += TILE_COLUMNS) {
    const VECTOR u = LOAD(0, b), v = LOAD(1, b);
#define D(i) x##i = fma((VECTOR)(a[i]), u, x##i); y##i = fma((VECTOR)(a[i]), v, y##i);
    EACH_ROW(D)
#undef D
  }
  __global float* out = C + start + (size_t)z * step;
  const int row = ip * TILE_ROWS, column = (panel + jp) * TILE_COLUMNS;
  const int count = min(TILE_COLUMNS, n - column);
  int offset[TILE_COLUMNS], is_run = count == TILE_COLUMNS;
  for (int j = 0; j < TILE_COLUMNS; j++) {
    offset[j] = at(min(column + j, n - 1), by_column);
    is_run &= offset[j] == offset[0] + j;
  }
#define D(i) if (row + i < m) { \
    __global float* c = out + at(row + i, by_row); \
    if (is_run) { \
      c += offset[0]; \
      if (adds) { x##i += LOAD(0, c); y##i += LOAD(1, c); } \
      STORE(x##i, 0, c); STORE(y##i, 1, c); \
    } else { \
      float t[TILE_COLUMNS]; STORE(x##i, 0, t); STORE(y##i, 1, t); \
      for (int j = 0; j < count; j++) c[offset[j]] = t[j] + (adds ? c[offset[j]] : 0.0f); \
    } }
  EACH_ROW(D)
#undef D
}

// ---- for GPUs: a work group shares blocks in local memory

#define SIDE 32
#define EACH 4  // columns of a work item
#define ACROSS (SIDE / EACH)

__attribute__((reqd_work_group_size(ACROSS, SIDE, 1)))
__kernel void group(const int m, const int n, const int depth,
    __global const float* A, const int a_start, const int a_step, const Axis a_row, const Axis a_k,
    __global const float* B, const int b_start, const int b_step, const Axis b_row, const Axis b_k,
    __global float* C, const int start, const int step, const Axis by_row, const Axis by_column) {
  const int x = get_local_id(0), y = get_local_id(1), z = get_global_id(2);
  const int row = get_group_id(1) * SIDE, column = get_group_id(0) * SIDE;
  __local float a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
  __global const float* from_a = A + a_start + (size_t)z * a_step + at(min(row + y, m - 1), a_row);
  __global const float* from_b = B + b_start + (size_t)z * b_step + at(min(column + y, n - 1), b_row);
  float sum[EACH];
  for (int w = 0; w < EACH; w++) sum[w] = 0.0f;
  for (int t = 0; t < depth; t += SIDE) {
    for (int w = 0; w < EACH; w++) {
      const int k = t + x + w * ACROSS;
      a[y][x + w * ACROSS] = k < depth ? from_a[at(k, a_k)] : 0.0f;
      b[y][x + w * ACROSS] = k < depth ? from_b[at(k, b_k)] : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < SIDE; k++)
      for (int w = 0; w < EACH; w++) sum[w] = fma(a[y][k], b[x + w * ACROSS][k], sum[w]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  __global float* out = C + start + (size_t)z * step;
  for (int w = 0; w < EACH; w++) {
    const int j = column + x + w * ACROSS;
    if (row + y < m && j < n) out[at(row + y, by_row) + at(j, by_column)] = sum[w];
  }
}

// ---- for both: the first dimension may have any number of work items

// Planes [h, w] of X become planes [rows, columns] of P: each element `by` further apart, and zeros
// between and around.
__kernel void spread(__global const float* X, const int h, const int w, const int top,
    const int left, const int by_h, const int by_w, __global float* P, const int rows,
    const int columns) {
  const int line = get_global_id(1), y = line % rows - top;
  const int is_line = y >= 0 && y % by_h == 0 && y / by_h < h;
  __global const float* x = X + ((size_t)(line / rows) * h + (is_line ? y / by_h : 0)) * w;
  __global float* p = P + (size_t)line * columns;
  for (int j = get_global_id(0); j < columns; j += get_global_size(0)) {
    const int i = j - left;
    p[j] = is_line && i >= 0 && i % by_w == 0 && i / by_w < w ? x[i / by_w] : 0.0f;
  }
}

// The first of the largest, as PyTorch has it; what is not a number is the largest.
__kernel void pool(__global const float* X, const int h, const int w, const int rows,
    const int columns, const int2 window, const int2 by, const int2 pad, __global float* Y,
    __global long* chosen) {
  const int line = get_global_id(1), plane = line / rows, y = line % rows;
  __global const float* x = X + (size_t)plane * h * w;
  const int top = y * by.s0 - pad.s0, from_h = max(top, 0), to_h = min(top + window.s0, h);
  for (int j = get_global_id(0); j < columns; j += get_global_size(0)) {
    const int left = j * by.s1 - pad.s1, from_w = max(left, 0), to_w = min(left + window.s1, w);
    int best = from_h * w + from_w;
    float most = -INFINITY;
    for (int a = from_h; a < to_h; a++)
      for (int b = from_w; b < to_w; b++) {
        const float here = x[a * w + b];
        if (here > most || isnan(here)) { most = here; best = a * w + b; }
      }
    Y[(size_t)line * columns + j] = most;
    chosen[(size_t)line * columns + j] = best;
  }
}

// A work item has a plane alone, so that sums are always made in one order.
__kernel void pool_backward(__global const float* slope, __global const long* chosen,
    const int outputs, const int inputs, __global float* X) {
  const size_t plane = get_global_id(0);
  __global float* x = X + plane * inputs;
  for (int i = 0; i < inputs; i++) x[i] = 0.0f;
  for (int o = 0; o < outputs; o++) x[chosen[plane * outputs + o]] += slope[plane * outputs + o];
}
