// Attention of a few queries over keys and values in the model's dtype, summed in float32, vectorised by the compiler:
// sums may be taken in any order, and no infinities occur.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace {

constexpr float kUnseen = -1e30f;
#ifdef __AVX512F__
constexpr int64_t kQueries = 6;  // queries that share one reading of the keys and values: what the registers hold
#else
constexpr int64_t kQueries = 2;
#endif
constexpr int64_t kKeys = 2 * kLanes;  // keys that stand side by side, a lane each
constexpr int64_t kScoreBlock = 64;    // scores are summed in whole blocks

int64_t whole_blocks(int64_t length) { return (length + kScoreBlock - 1) / kScoreBlock * kScoreBlock; }

template <typename T>
void rotate(const T* x, const float* cos, const float* sin, int64_t d, T* to) {
  const int64_t half = d / 2, whole = half / kLanes * kLanes;
  for (int64_t c = 0; c < whole; c += kLanes) {
    const Lanes left = floats(x + c), right = floats(x + c + half);
    store(left * floats(cos + c) + right * floats(sin + c), to + c);
    store(right * floats(cos + c + half) + left * floats(sin + c + half), to + c + half);
  }
  for (int64_t c = whole; c < half; ++c) {
    to[c] = T(float(x[c]) * cos[c] + float(x[c + half]) * sin[c]);
    to[c + half] = T(float(x[c + half]) * cos[c + half] + float(x[c]) * sin[c + half]);
  }
}

// scores [kN, filled] = query [kN, d] times `length` keys, in whole blocks of keys [length / kKeys, d / kPerLane, kKeys,
// kPerLane]: what lies behind the last key is any number.
template <int64_t kN, typename T>
void score(const T* __restrict query, const T* __restrict keys, int64_t dim, int64_t length, int64_t filled,
           float* __restrict scores) {
  for (int64_t j = 0; j < length; j += kKeys, keys += dim * kKeys) {
    Lanes sums[kN][2] = {};
    for (int64_t c = 0; c < dim; c += kPerLane<T>) {
      const T* from = keys + c * kKeys;
      const Words left = loaded(from), right = loaded(from + kLanes * kPerLane<T>);
#pragma GCC unroll 6
      for (int64_t r = 0; r < kN; ++r) {
        uint32_t word;
        std::memcpy(&word, query + r * dim + c, sizeof(word));
        add_products<T>(sums[r][0], left, word);
        add_products<T>(sums[r][1], right, word);
      }
    }
#pragma GCC unroll 6
    for (int64_t r = 0; r < kN; ++r) {
      *(Lanes*)(scores + r * filled + j) = sums[r][0];
      *(Lanes*)(scores + r * filled + j + kLanes) = sums[r][1];
    }
  }
}

// out [kN, d] = scores [kN, filled] times values [length, d]; kDim 0 stands for any dim.
template <int64_t kN, int64_t kDim, typename T>
void mix(const float* __restrict scores, int64_t filled, const T* __restrict value, int64_t dim, int64_t length,
         float* __restrict out) {
  if constexpr (kDim % kLanes == 0 && kDim > 0) {
    constexpr int64_t kPart = 4 * kLanes;  // of each query at a time: what the registers hold
    for (int64_t part = 0; part < kDim; part += kPart) {
      Lanes sums[kN][kPart / kLanes] = {};
      for (int64_t j = 0; j < length; ++j)
        for (int64_t c = 0; c < kPart / kLanes; ++c) {
          const Lanes v = floats(value + j * kDim + part + c * kLanes);
          for (int64_t r = 0; r < kN; ++r) sums[r][c] += scores[r * filled + j] * v;
        }
      for (int64_t r = 0; r < kN; ++r)
        for (int64_t c = 0; c < kPart / kLanes; ++c) *(Lanes*)(out + r * kDim + part + c * kLanes) = sums[r][c];
    }
  } else {
    std::fill(out, out + kN * dim, 0.0f);
    for (int64_t j = 0; j < length; ++j)
      for (int64_t r = 0; r < kN; ++r) {
        const float s = scores[r * filled + j];
#pragma omp simd
        for (int64_t c = 0; c < dim; ++c) out[r * dim + c] += s * float(value[j * dim + c]);
      }
  }
}

// Attention of kN queries of one key head over `length` keys, in blocks as `score` reads them, but those in `unseen` (per
// query, of the last `recent` keys); scores are multiplied by `scale`. kDim is the head's size, 0 for one known only at
// run time. The scores that count stand together while they are summed, filled up to whole blocks with some that do not:
// a query's sums are the same whatever keys it does not see, be they behind those that it sees or, in a tree, between.
template <int64_t kN, int64_t kDim, typename T>
void attend(int64_t n, const T* query, const T* key, const T* value, int64_t dim, float scale, int64_t length,
            const bool* const* unseen, int64_t recent, float* __restrict scores, float* __restrict out) {
  if (n < kN) {
    if constexpr (kN > 1)
      attend<kN - 1, kDim, T>(n, query, key, value, dim, scale, length, unseen, recent, scores, out);
    return;
  }
  const int64_t filled = whole_blocks(length);
  score<kN>(query, key, dim, length, filled, scores);
  float scales[kN];
  for (int64_t r = 0; r < kN; ++r) {
    float *s = scores + r * filled, *last = s + length - recent;
    int64_t seen = length - recent;
    for (int64_t j = 0; j < recent; ++j)
      if (!unseen[r][j]) s[seen++] = last[j];
    std::fill(s + seen, s + filled, kUnseen);
    float highest = kUnseen, total = 0;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < filled; ++j) highest = std::max(highest, s[j]);
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < filled; ++j) total += s[j] = std::exp((s[j] - highest) * scale);
    scales[r] = 1 / total;
    for (int64_t j = recent - 1; j >= 0; --j) last[j] = unseen[r][j] ? 0 : s[--seen];
  }
  mix<kN, kDim>(scores, filled, value, dim, length, out);
  for (int64_t r = 0; r < kN; ++r)
#pragma omp simd
    for (int64_t c = 0; c < dim; ++c) out[r * dim + c] *= scales[r];
}

template <typename T>
auto attend_for(int64_t dim) {
  return dim == 64 ? attend<kQueries, 64, T> : dim == 128 ? attend<kQueries, 128, T> : attend<kQueries, 0, T>;
}

}  // namespace
