// Products with weights that are read once, by a team of threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kBlock = 64;        // values that are computed together between products
constexpr int64_t kRows = 12;         // rows of input that share one reading of the weights
constexpr int64_t kSums = 24;         // sums that the registers hold
constexpr int64_t kAhead = 4096;      // values that memory is asked for in advance
constexpr int64_t kParallel = 16384;  // values below which a second thread costs more than it saves

// One of the threads that go through a pass together.
struct Member {
  int64_t rank, size;

  // Wait until every member is here.
  void meet() const {
#pragma omp barrier
  }

  // This member's part of 0..n, whole steps long.
  std::pair<int64_t, int64_t> share(int64_t n, int64_t step = 1) const {
    const int64_t steps = (n + step - 1) / step;
    return {std::min(n, steps * rank / size * step), std::min(n, steps * (rank + 1) / size * step)};
  }
};

// Run `work(member)` on every thread of torch's, or on this one alone.
template <typename Work>
void together(bool is_worth_it, const Work& work) {
  const int threads = is_worth_it && !at::in_parallel_region() ? at::get_num_threads() : 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
  work(Member{omp_get_thread_num(), omp_get_num_threads()});
}

// Products of kOut rows of weights with kN rows of x, all `width` long. Each sum is its own and taken in one order
// whatever kN and kOut are: a pass over several tokens gives the bits that one token at a time would give.
template <int64_t kN, int64_t kOut, typename T>
void dots(const T* const* rows, const T* __restrict x, int64_t width, float* __restrict sums) {
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    __m512 totals[kOut * kN];  // in registers, if every loop over them is unrolled
#pragma GCC unroll 24
    for (int64_t t = 0; t < kOut * kN; ++t) totals[t] = _mm512_setzero_ps();
    for (int64_t j = 0; j < width; j += 32) {
      const __mmask32 some = width - j < 32 ? (__mmask32(1) << (width - j)) - 1 : ~__mmask32(0);
      __m512bh weights[kOut];
#pragma GCC unroll 4
      for (int64_t o = 0; o < kOut; ++o) {
        weights[o] = (__m512bh)_mm512_maskz_loadu_epi16(some, rows[o] + j);
        __builtin_prefetch(rows[o] + j + kAhead, 0, 2);
      }
#pragma GCC unroll 12
      for (int64_t i = 0; i < kN; ++i) {
        const __m512bh inputs = (__m512bh)_mm512_maskz_loadu_epi16(some, x + i * width + j);
#pragma GCC unroll 4
        for (int64_t o = 0; o < kOut; ++o)
          totals[o * kN + i] = _mm512_dpbf16_ps(totals[o * kN + i], weights[o], inputs);
      }
    }
#pragma GCC unroll 24
    for (int64_t t = 0; t < kOut * kN; ++t) sums[t] = _mm512_reduce_add_ps(totals[t]);
    return;
  }
#endif
  for (int64_t o = 0; o < kOut; ++o)
    for (int64_t i = 0; i < kN; ++i) {
      const T *w = rows[o], *from = x + i * width;
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t j = 0; j < width; ++j) total += float(w[j]) * float(from[j]);
      sums[o * kN + i] = total;
    }
}

// Products of n <= kN rows of x with weight rows begin..end: row(o) is where a row begins, take(o, sums [n]) takes its
// products. As many rows at a time as there are registers, 4 at most and `step` at least.
template <int64_t kN, int64_t kStep, typename T, typename Row, typename Take>
void products(int64_t n, int64_t begin, int64_t end, const T* x, int64_t width, const Row& row, const Take& take) {
  if (n < kN) {
    if constexpr (kN > 1) products<kN - 1, kStep>(n, begin, end, x, width, row, take);
    return;
  }
  constexpr int64_t kOut = std::max(kStep, std::min<int64_t>(4, kSums / kN / kStep * kStep));
  const T* rows[kOut];
  float sums[kOut * kN];
  int64_t o = begin;
  for (; o + kOut <= end; o += kOut) {
    for (int64_t r = 0; r < kOut; ++r) rows[r] = row(o + r);
    dots<kN, kOut>(rows, x, width, sums);
    for (int64_t r = 0; r < kOut; r += kStep) take(o + r, sums + r * kN);
  }
  for (; o < end; o += kStep) {
    for (int64_t r = 0; r < kStep; ++r) rows[r] = row(o + r);
    dots<kN, kStep>(rows, x, width, sums);
    take(o, sums);
  }
}

struct Linear {
  Tensor weight;  // [out, in], row-major
  OptionalTensor bias;

  int64_t out() const { return weight.size(0); }

  // y [n, out] = x [n, in] times the weight, plus bias and residual [n, out] (which may be y), rounded once: this
  // member's share.
  template <typename T>
  void operator()(const Member& member, const T* x, int64_t n, const T* residual, T* y) const {
    const int64_t width = weight.size(1), outs = out();
    const T *w = weight.const_data_ptr<T>(), *b = bias ? bias->const_data_ptr<T>() : nullptr;
    const auto [begin, end] = member.share(outs, 32);
    for (int64_t first = 0; first < n; first += kRows) {
      const int64_t rows = std::min(kRows, n - first);
      products<kRows, 1>(
          rows, begin, end, x + first * width, width, [=](int64_t o) { return w + o * width; },
          [=](int64_t o, const float* sums) {
            for (int64_t i = 0; i < rows; ++i) {
              const int64_t at = (first + i) * outs + o;
              y[at] = T(sums[i] + (b ? float(b[o]) : 0.0f) + (residual ? float(residual[at]) : 0.0f));
            }
          });
    }
  }

  // y [n, out / 2] = silu(gate) * up of a weight whose first half is gate and whose second is up: this member's share.
  template <typename T>
  void gated(const Member& member, const T* x, int64_t n, T* y) const {
    const int64_t width = weight.size(1), half = out() / 2;
    const T *w = weight.const_data_ptr<T>(), *b = bias ? bias->const_data_ptr<T>() : nullptr;
    const auto [begin, end] = member.share(half, kBlock);
    float gates[kRows][kBlock], ups[kRows][kBlock];
    for (int64_t first = 0; first < n; first += kRows)
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t rows = std::min(kRows, n - first), some = std::min(kBlock, end - at);
        products<kRows, 2>(  // gate and up of one output after the other
            rows, 2 * at, 2 * (at + some), x + first * width, width,
            [=](int64_t o) { return w + (o / 2 + o % 2 * half) * width; },
            [&](int64_t o, const float* sums) {
              for (int64_t i = 0; i < rows; ++i) {
                gates[i][o / 2 - at] = sums[i] + (b ? float(b[o / 2]) : 0.0f);
                ups[i][o / 2 - at] = sums[rows + i] + (b ? float(b[half + o / 2]) : 0.0f);
              }
            });
        for (int64_t i = 0; i < rows; ++i) {
          T* to = y + (first + i) * half + at;
#pragma omp simd
          for (int64_t j = 0; j < some; ++j) {
            const float gate = float(T(gates[i][j]));
            to[j] = T(float(T(gate / (1 + std::exp(-gate)))) * float(T(ups[i][j])));
          }
        }
      }
  }
};

Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  const Tensor x = input.contiguous();
  const Linear product{weight, bias};
  Tensor y = at::empty({x.size(0), product.out()}, x.options());
  together(weight.numel() > kParallel, [&](const Member& member) {
    if (x.scalar_type() == at::kFloat)
      product(member, x.const_data_ptr<float>(), x.size(0), static_cast<const float*>(nullptr),
              y.mutable_data_ptr<float>());
    else
      product(member, x.const_data_ptr<at::BFloat16>(), x.size(0), static_cast<const at::BFloat16*>(nullptr),
              y.mutable_data_ptr<at::BFloat16>());
  });
  return y;
}

struct Norm {
  Tensor weight;
  float eps;

  // Rows begin..end of x [n, width], normalised and scaled in float32, rounded once.
  template <typename T>
  void operator()(const T* x, int64_t begin, int64_t end, T* normed) const {
    const int64_t width = weight.size(0);
    const T* w = weight.const_data_ptr<T>();
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x + i * width;
      T* to = normed + i * width;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t j = 0; j < width; ++j) squares += float(from[j]) * float(from[j]);
      const float scale = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) to[j] = T(float(from[j]) * scale * float(w[j]));
    }
  }
};

}  // namespace
