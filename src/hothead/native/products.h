// Products with weights that are read once, by a team of threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "lanes.h"
#include "pages.h"

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kBlock = 2 * kLanes;  // outputs that are computed together
#ifdef __AVX512F__
constexpr int64_t kRows = 12;  // rows of input that share one reading of a block: what the registers hold
#else
constexpr int64_t kRows = 3;
#endif
constexpr int64_t kManyRows = 20 * kRows;  // rows of input that stay in the cache while all blocks go by
constexpr int64_t kAhead = 8192;           // bytes that memory is asked for in advance ...
constexpr int64_t kFewRows = 5;            // ... but not for so few rows: the processor's own guess is better then
constexpr int64_t kParallel = 16384;       // weights below which a second thread costs more than it saves

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

// Call `work(T())` with the tensor's dtype.
template <typename Work>
auto with_dtype(const Tensor& x, const Work& work) {
  return x.scalar_type() == at::kFloat ? work(float()) : work(at::BFloat16());
}

// sums [kN, kBlock] = kN rows of x, `width` long, times one block of weights [width / kPerLane, kBlock, kPerLane]. A sum
// has a lane of its own and is taken in one order whatever kN is: a pass over several tokens gives the bits that one
// token at a time would give.
template <int64_t kN, typename T>
void block_product(const T* __restrict weights, const T* __restrict x, int64_t width, float (*__restrict sums)[kBlock]) {
  Lanes totals[kN][2] = {};  // in registers, if every loop over them is unrolled
  const auto step = [&](const T* w, const T* from, int64_t inputs) {
    const Words left = loaded(w), right = loaded(w + kLanes * kPerLane<T>);
    if constexpr (kN > kFewRows) {
      __builtin_prefetch((const char*)w + kAhead, 0, 2);
      __builtin_prefetch((const char*)w + kAhead + sizeof(Words), 0, 2);
    }
#pragma GCC unroll 12
    for (int64_t i = 0; i < kN; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, from + i * width, inputs * sizeof(T));
      add_products<T>(totals[i][0], left, word);
      add_products<T>(totals[i][1], right, word);
    }
  };
  int64_t j = 0;
  for (; j + kPerLane<T> <= width; j += kPerLane<T>, weights += kBlock * kPerLane<T>) step(weights, x + j, kPerLane<T>);
  if (j < width) step(weights, x + j, width - j);
#pragma GCC unroll 12
  for (int64_t i = 0; i < kN; ++i) {
    *(Lanes*)sums[i] = totals[i][0];
    *(Lanes*)(sums[i] + kLanes) = totals[i][1];
  }
}

// The same for n <= kN rows.
template <int64_t kN, typename T>
void block_products(int64_t n, const T* weights, const T* x, int64_t width, float (*sums)[kBlock]) {
  if (n == kN) return block_product<kN>(weights, x, width, sums);
  if constexpr (kN > 1) block_products<kN - 1>(n, weights, x, width, sums);
}

// Call take(o, first, rows) for every block o of outputs begin..end and n rows of input, in groups of nearly the same
// size, kRows at most.
template <typename Take>
void for_each_block(int64_t begin, int64_t end, int64_t n, const Take& take) {
  for (int64_t start = 0; start < n; start += kManyRows) {
    const int64_t many = std::min(kManyRows, n - start), groups = (many + kRows - 1) / kRows;
    for (int64_t o = begin; o < end; o += kBlock)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = many * g / groups;
        take(o, start + first, many * (g + 1) / groups - first);
      }
  }
}

// kBlock numbers for reading: those `from` on, with zeros behind the last of `count`; all zeros if there are none.
template <typename T>
struct Numbers {
  const T* at;

  Numbers(const T* from, int64_t count) : at(from) {
    if (from && count >= kBlock) return;
    if (from) std::copy_n(from, count, copy_);
    at = copy_;
  }
  Numbers(const Numbers&) = delete;

 private:
  T copy_[kBlock] = {};
};

// kBlock numbers for writing, the first `count` of which go `to` their place.
template <typename T>
struct Outcome {
  T* at;

  Outcome(T* to, int64_t count) : at(count < kBlock ? copy_ : to), to_(to), count_(count) {}
  Outcome(const Outcome&) = delete;
  ~Outcome() {
    if (at != to_) std::copy_n(copy_, count_, to_);
  }

 private:
  T* to_;
  int64_t count_;
  T copy_[kBlock];
};

// A weight [outs, ins], kept in blocks that are read from one end to the other: [outs / kBlock, ins / kPerLane, kBlock,
// kPerLane], with zeros behind the last output and input.
struct Linear : torch::CustomClassHolder {
  Linear(const Tensor& weight, const OptionalTensor& bias) : outs(weight.size(0)), ins(weight.size(1)), bias_(bias) {
    const int64_t per_lane = sizeof(float) / weight.element_size();
    const int64_t more_ins = (per_lane - ins % per_lane) % per_lane, more_outs = (kBlock - outs % kBlock) % kBlock;
    const Tensor blocks = at::constant_pad_nd(weight, {0, more_ins, 0, more_outs})
                              .view({-1, kBlock, (ins + more_ins) / per_lane, per_lane})
                              .transpose(1, 2);
    blocks_ = empty_in_large_pages(blocks.sizes(), blocks.options()).copy_(blocks);
  }

  // y [n, outs] = x [n, ins] times the weight, plus bias and residual [n, outs] (which may be y), rounded once: this
  // member's share of the outputs, all of them or those from about `from` on.
  template <typename T>
  void run(const Member& member, const T* x, int64_t n, const T* residual, T* y, int64_t from = 0) const {
    const T* b = bias<T>();
    const int64_t skipped = from / kBlock * kBlock;
    const auto [begin, end] = member.share(outs - skipped, kBlock);
    for_each_block(skipped + begin, skipped + end, n, [&](int64_t o, int64_t first, int64_t rows) {
      float sums[kRows][kBlock];
      product(o, x + first * ins, rows, sums);
      const Numbers<T> added(b ? b + o : nullptr, outs - o);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = (first + i) * outs + o;
        const Numbers<T> more(residual ? residual + at : nullptr, outs - o);
        const Outcome<T> out(y + at, outs - o);
        for (int64_t c = 0; c < kBlock; c += kLanes)
          store(floats(sums[i] + c) + floats(added.at + c) + floats(more.at + c), out.at + c);
      }
    });
  }

  // y [n, outs] = silu(x times this weight) * (x times `up`'s), each rounded as torch would: this member's share.
  template <typename T>
  void run_gated(const Member& member, const Linear& up, const T* x, int64_t n, T* y) const {
    const T *gate_bias = bias<T>(), *up_bias = up.bias<T>();
    const auto [begin, end] = member.share(outs, kBlock);
    for_each_block(begin, end, n, [&](int64_t o, int64_t first, int64_t rows) {
      float gates[kRows][kBlock], ups[kRows][kBlock];
      product(o, x + first * ins, rows, gates);
      up.product(o, x + first * ins, rows, ups);
      const Numbers<T> gate_added(gate_bias ? gate_bias + o : nullptr, outs - o);
      const Numbers<T> up_added(up_bias ? up_bias + o : nullptr, outs - o);
      for (int64_t i = 0; i < rows; ++i) {
        const Outcome<T> out(y + (first + i) * outs + o, outs - o);
        for (int64_t c = 0; c < kBlock; c += kLanes) {
          const Lanes gate = rounded<T>(floats(gates[i] + c) + floats(gate_added.at + c));
          const Lanes value = rounded<T>(floats(ups[i] + c) + floats(up_added.at + c));
          store(rounded<T>(gate / (1 + exp(-gate))) * value, out.at + c);
        }
      }
    });
  }

  // [n, ins] -> [n, outs].
  Tensor forward(const Tensor& input) const {
    const Tensor x = input.contiguous();
    Tensor y = at::empty({x.size(0), outs}, x.options());
    with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      together(outs * ins > kParallel, [&](const Member& member) {
        run(member, x.const_data_ptr<T>(), x.size(0), static_cast<const T*>(nullptr), y.mutable_data_ptr<T>());
      });
    });
    return y;
  }

  const int64_t outs, ins;

 private:
  template <typename T>
  const T* bias() const {
    return bias_ ? bias_->const_data_ptr<T>() : nullptr;
  }

  template <typename T>
  void product(int64_t o, const T* x, int64_t rows, float (*sums)[kBlock]) const {
    block_products<kRows>(rows, blocks_.const_data_ptr<T>() + o * blocks_.stride(0) / kBlock, x, ins, sums);
  }

  Tensor blocks_;
  OptionalTensor bias_;
};

// x [n, ins] times row-major rows [outs, ins], plus bias: for the few rows that are written between two products. A sum
// is taken in one order whatever n is.
template <typename T>
void rows_product(const Member& member, const T* x, int64_t n, const T* rows, const T* bias, int64_t outs, int64_t ins,
                  T* y) {
  const auto [begin, end] = member.share(outs, kBlock);
  for (int64_t o = begin; o < end; ++o)
    for (int64_t i = 0; i < n; ++i) {
      const T *w = rows + o * ins, *from = x + i * ins;
#ifdef __AVX512BF16__
      if constexpr (kPerLane<T> == 2) {
        __m512 totals = _mm512_setzero_ps();
        for (int64_t j = 0; j < ins; j += kBlock) {
          const __mmask32 some = ins - j < kBlock ? (__mmask32(1) << (ins - j)) - 1 : ~__mmask32(0);
          totals = _mm512_dpbf16_ps(totals, (__m512bh)_mm512_maskz_loadu_epi16(some, w + j),
                                    (__m512bh)_mm512_maskz_loadu_epi16(some, from + j));
        }
        y[i * outs + o] = T(_mm512_reduce_add_ps(totals) + (bias ? float(bias[o]) : 0.0f));
        continue;
      }
#endif
      float total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t j = 0; j < ins; ++j) total += float(w[j]) * float(from[j]);
      y[i * outs + o] = T(total + (bias ? float(bias[o]) : 0.0f));
    }
}

Tensor rows_linear(const Tensor& input, const Tensor& rows, const OptionalTensor& bias) {
  const Tensor x = input.contiguous();
  const int64_t outs = rows.size(0), ins = rows.size(1);
  Tensor y = at::empty({x.size(0), outs}, x.options());
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    together(rows.numel() > kParallel, [&](const Member& member) {
      rows_product(member, x.const_data_ptr<T>(), x.size(0), rows.const_data_ptr<T>(),
                   bias ? bias->const_data_ptr<T>() : nullptr, outs, ins, y.mutable_data_ptr<T>());
    });
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
      const int64_t whole = width / kLanes * kLanes;
      Lanes totals = {};
      for (int64_t j = 0; j < whole; j += kLanes) totals += floats(from + j) * floats(from + j);
      float squares = sum(totals);
      for (int64_t j = whole; j < width; ++j) squares += float(from[j]) * float(from[j]);
      const float scale = 1 / std::sqrt(squares / width + eps);
      for (int64_t j = 0; j < whole; j += kLanes) store(floats(from + j) * scale * floats(w + j), to + j);
      for (int64_t j = whole; j < width; ++j) to[j] = T(float(from[j]) * scale * float(w[j]));
    }
  }
};

}  // namespace
