// Attention of a few queries over float32 keys and values, vectorised by the compiler: sums may be taken in any order,
// and no infinities occur.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "lanes.h"

namespace {

constexpr float kUnseen = -1e30f;
constexpr int64_t kQueries = 4;      // queries that share one reading of the keys and values
constexpr int64_t kScoreBlock = 64;  // scores are summed in whole blocks

int64_t whole_blocks(int64_t length) { return (length + kScoreBlock - 1) / kScoreBlock * kScoreBlock; }

template <typename T>
void rotate(const T* x, const float* cos, const float* sin, int64_t d, float scale, float* to) {
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t c = 0; c < half; ++c) {
    to[c] = (float(x[c]) * cos[c] + float(x[c + half]) * sin[c]) * scale;
    to[c + half] = (float(x[c + half]) * cos[c + half] + float(x[c]) * sin[c + half]) * scale;
  }
}

// Halves the partial sums that each vector holds: those of a's, then those of b's, `kSpan` lanes each.
template <int64_t kSpan, std::size_t... l>
Lanes fold(const Lanes& a, const Lanes& b, std::index_sequence<l...>) {
  return __builtin_shufflevector(a, b, int(l / kSpan * 2 * kSpan + l % kSpan)...) +
         __builtin_shufflevector(a, b, int(l / kSpan * 2 * kSpan + l % kSpan + kSpan)...);
}

// The sums of 16 vectors' lanes, in place, the result in the first.
template <int64_t kSpan = kLanes / 2>
void sum_lanes(Lanes* v) {
  for (int64_t i = 0; i < kSpan; ++i) v[i] = fold<kSpan>(v[2 * i], v[2 * i + 1], std::make_index_sequence<kLanes>());
  if constexpr (kSpan > 1) sum_lanes<kSpan / 2>(v);
}

// q [d] times each of `length` keys [length, d], in whole vectors of keys: what lies behind the last is any number.
template <int64_t kDim>
void score(const float* __restrict q, const float* __restrict key, int64_t dim, int64_t begin, int64_t length,
           float* __restrict scores) {
  if constexpr (kDim % kLanes == 0 && kDim > 0) {
    Lanes sums[kLanes];
    for (int64_t m = 0; m < kLanes; ++m) {
      const float* k = key + std::min(begin + m, length - 1) * kDim;
      sums[m] = *(const Lanes*)q * *(const Lanes*)k;
      for (int64_t c = kLanes; c < kDim; c += kLanes) sums[m] += *(const Lanes*)(q + c) * *(const Lanes*)(k + c);
    }
    sum_lanes(sums);
    *(Lanes*)(scores + begin) = sums[0];
  } else {
    for (int64_t j = begin; j < std::min(begin + kLanes, length); ++j) {
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t c = 0; c < dim; ++c) total += q[c] * key[j * dim + c];
      scores[j] = total;
    }
  }
}

// out [kN, d] = scores [kN, filled] times values [length, d]; kDim 0 stands for any dim.
template <int64_t kN, int64_t kDim>
void mix(const float* __restrict scores, int64_t filled, const float* __restrict value, int64_t dim, int64_t length,
         float* __restrict out) {
  if constexpr (kDim % kLanes == 0 && kDim > 0) {
    constexpr int64_t kPart = 4 * kLanes;  // of each query at a time: what the registers hold
    for (int64_t part = 0; part < kDim; part += kPart) {
      Lanes sums[kN][kPart / kLanes] = {};
      for (int64_t j = 0; j < length; ++j)
        for (int64_t c = 0; c < kPart / kLanes; ++c) {
          const Lanes v = *(const Lanes*)(value + j * kDim + part + c * kLanes);
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
        for (int64_t c = 0; c < dim; ++c) out[r * dim + c] += s * value[j * dim + c];
      }
  }
}

// Attention of kN queries of one key head, over `length` keys but those in `unseen` (per query, of the last `recent`
// keys). kDim is the head's size, 0 for one known only at run time. The scores that count stand together while they are
// summed, filled up to whole blocks with some that do not: a query's sums are the same whatever keys it does not see, be
// they behind those that it sees or, in a tree, between them.
template <int64_t kN, int64_t kDim>
void attend(int64_t n, const float* query, const float* key, const float* value, int64_t dim, int64_t length,
            const bool* const* unseen, int64_t recent, float* __restrict scores, float* __restrict out) {
  if (n < kN) {
    if constexpr (kN > 1) attend<kN - 1, kDim>(n, query, key, value, dim, length, unseen, recent, scores, out);
    return;
  }
  const int64_t filled = whole_blocks(length);
  for (int64_t j = 0; j < length; j += kLanes)
    for (int64_t r = 0; r < kN; ++r) score<kDim>(query + r * dim, key, dim, j, length, scores + r * filled);
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
    for (int64_t j = 0; j < filled; ++j) total += s[j] = std::exp(s[j] - highest);
    const float scale = 1 / total;
#pragma omp simd
    for (int64_t j = 0; j < filled; ++j) s[j] *= scale;
    for (int64_t j = recent - 1; j >= 0; --j) last[j] = unseen[r][j] ? 0 : s[--seen];
  }
  mix<kN, kDim>(scores, filled, value, dim, length, out);
}

using Attend = decltype(&attend<kQueries, 0>);

Attend attend_for(int64_t dim) {
  return dim == 64 ? attend<kQueries, 64> : dim == 128 ? attend<kQueries, 128> : attend<kQueries, 0>;
}

}  // namespace
