// One decoder layer over a few new tokens in one call: what FusedLayer in fused.py computes, with the same roundings.
//
// Decoding reads every weight for a few rows of input, and little else: the products run at the memory's speed, and what
// lies between them is a few thousand numbers, which a plain loop passes in a microsecond and a chain of torch operations
// in a hundred. Everything about a token is computed in the same order however many tokens a pass has, so verifying five
// gives the same bits as decoding them one by one. Built by native.py with the user's compiler.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Vectorised by the compiler: sums may be taken in any order, and no infinities occur.
constexpr float kUnseen = -1e30f;
constexpr int64_t kRows = 4;          // queries that share one reading of the keys and values
constexpr int64_t kBlock = 64;        // scores are summed in whole blocks, and
constexpr int64_t kValues = 4;        // values by four
constexpr int64_t kTogether = 12;     // rows of input that share one reading of a weight row: as many sums as registers
constexpr int64_t kAhead = 4096;      // values that memory is asked for in advance
constexpr int64_t kParallel = 16384;  // values below which a second thread costs more than it saves

// Products of one weight row with kN rows of x, all `width` long. Each sum is its own and taken in one order whatever kN
// is: a pass over several tokens gives the bits that one token at a time would give.
template <int64_t kN, typename T>
void dots(const T* __restrict w, const T* __restrict x, int64_t width, float* __restrict sums) {
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    __m512 totals[kN];
    for (auto& total : totals) total = _mm512_setzero_ps();
    for (int64_t j = 0; j < width; j += 32) {
      const __mmask32 some = width - j < 32 ? (__mmask32(1) << (width - j)) - 1 : ~__mmask32(0);
      const __m512bh weights = (__m512bh)_mm512_maskz_loadu_epi16(some, w + j);
      __builtin_prefetch(w + j + kAhead, 0, 2);
      for (int64_t i = 0; i < kN; ++i) {
        const __m512bh inputs = (__m512bh)_mm512_maskz_loadu_epi16(some, x + i * width + j);
        totals[i] = _mm512_dpbf16_ps(totals[i], weights, inputs);
      }
    }
    for (int64_t i = 0; i < kN; ++i) sums[i] = _mm512_reduce_add_ps(totals[i]);
    return;
  }
#endif
  for (int64_t i = 0; i < kN; ++i) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < width; ++j) total += float(w[j]) * float(x[i * width + j]);
    sums[i] = total;
  }
}

// As `dots`, for a number n <= kN known only at run time.
template <int64_t kN, typename T>
void dots_of(int64_t n, const T* w, const T* x, int64_t width, float* sums) {
  if (n == kN) return dots<kN, T>(w, x, width, sums);
  if constexpr (kN > 1) dots_of<kN - 1, T>(n, w, x, width, sums);
}

// x [n, in] times weight [out, in], plus bias [out] and residual [n, out], rounded once.
template <typename T>
Tensor product(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& residual) {
  const int64_t n = x.size(0), width = x.size(1), out = weight.size(0);
  Tensor y = at::empty({n, out}, x.options());
  const T *w = weight.const_data_ptr<T>(), *from = x.const_data_ptr<T>();
  const T* b = bias ? bias->const_data_ptr<T>() : nullptr;
  const T* r = residual ? residual->const_data_ptr<T>() : nullptr;
  T* to = y.mutable_data_ptr<T>();
  at::parallel_for(0, out, std::max<int64_t>(1, kParallel / width), [&](int64_t begin, int64_t end) {
    float sums[kTogether];
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < n; i += kTogether) {
        const int64_t rows = std::min(kTogether, n - i);
        dots_of<kTogether, T>(rows, w + o * width, from + i * width, width, sums);
        for (int64_t m = 0; m < rows; ++m) {
          const int64_t at = (i + m) * out + o;
          to[at] = T(sums[m] + (b ? float(b[o]) : 0.0f) + (r ? float(r[at]) : 0.0f));
        }
      }
  });
  return y;
}

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& residual) {
  return x.scalar_type() == at::kFloat ? product<float>(x.contiguous(), weight, bias, residual)
                                       : product<at::BFloat16>(x.contiguous(), weight, bias, residual);
}

struct Linear {
  Tensor weight;  // [out, in], row-major
  OptionalTensor bias;

  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias, {}); }
  Tensor add_to(const Tensor& residual, const Tensor& x) const { return linear(x, weight, bias, residual); }
};

// [n, width]: normalised and scaled in float32, rounded once.
template <typename T>
Tensor rms_norm(const Tensor& x, const Tensor& weight, float eps) {
  Tensor normed = at::empty_like(x);
  const int64_t width = x.size(1);
  const T* w = weight.const_data_ptr<T>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    const T* from = x.const_data_ptr<T>() + i * width;
    T* to = normed.mutable_data_ptr<T>() + i * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < width; ++j) squares += float(from[j]) * float(from[j]);
    const float scale = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) to[j] = T(float(from[j]) * scale * float(w[j]));
  }
  return normed;
}

// silu(gate) * up of [n, 2 * width] -> [n, width].
template <typename T>
Tensor gated(const Tensor& gate_up, int64_t width) {
  Tensor product = at::empty({gate_up.size(0), width}, gate_up.options());
  const T* gate = gate_up.const_data_ptr<T>();
  T* to = product.mutable_data_ptr<T>();
  at::parallel_for(0, gate_up.size(0), std::max<int64_t>(1, kParallel / width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        const float g = float(gate[2 * i * width + j]);
        to[i * width + j] = T(float(T(g / (1 + std::exp(-g)))) * float(gate[(2 * i + 1) * width + j]));
      }
    }
  });
  return product;
}

int64_t whole_blocks(int64_t length) { return (length + kBlock - 1) / kBlock * kBlock; }

template <typename T>
void rotate(const T* x, const float* cos, const float* sin, int64_t d, float scale, float* to) {
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t c = 0; c < half; ++c) {
    to[c] = (float(x[c]) * cos[c] + float(x[c + half]) * sin[c]) * scale;
    to[c + half] = (float(x[c + half]) * cos[c + half] + float(x[c]) * sin[c + half]) * scale;
  }
}

// Attention of `rows` queries of one key head, all seeing the same `length` keys but those in `unseen` (per row, of the
// last `recent` keys). kDim is the head's size, 0 for one known only at run time. Scores are filled up to whole blocks
// with keys that count for nothing: a query's sums are then the same however many keys come after those it sees.
template <int64_t kDim>
void attend(const float* __restrict query, const float* __restrict key, const float* __restrict value, int64_t dim,
            int64_t rows, int64_t length, const bool* const* unseen, int64_t recent, float* __restrict scores,
            float* __restrict last, float* __restrict out) {
  const int64_t d = kDim ? kDim : dim, filled = whole_blocks(length);
  for (int64_t j = 0; j < length; ++j) {
    const float* k = key + j * d;
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = query + r * d;
      float score = 0;
#pragma omp simd reduction(+ : score)
      for (int64_t c = 0; c < d; ++c) score += q[c] * k[c];
      scores[r * filled + j] = score;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* s = scores + r * filled;
    std::fill(s + length, s + filled, kUnseen);
    for (int64_t j = 0; j < recent; ++j)
      if (unseen[r][j]) s[length - recent + j] = kUnseen;
    float highest = kUnseen, total = 0;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < filled; ++j) highest = std::max(highest, s[j]);
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < filled; ++j) total += s[j] = std::exp(s[j] - highest);
    const float scale = 1 / total;
#pragma omp simd
    for (int64_t j = 0; j < filled; ++j) s[j] *= scale;
    std::fill(out + r * d, out + (r + 1) * d, 0.0f);
  }
  for (int64_t j = 0; j < length; j += kValues) {
    const float* v = value + j * d;
    if (length - j < kValues) {  // what lies behind the last value may be no number
      std::fill(std::copy(v, value + length * d, last), last + kValues * d, 0.0f);
      v = last;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float* s = scores + r * filled + j;
      float* o = out + r * d;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) o[c] += s[0] * v[c] + s[1] * v[d + c] + s[2] * v[2 * d + c] + s[3] * v[3 * d + c];
    }
  }
}

using Attend = decltype(&attend<0>);

Attend attend_for(int64_t dim) {
  return dim == 64 ? attend<64> : dim == 128 ? attend<128> : attend<0>;
}

struct Layer : torch::CustomClassHolder {
  Layer(OptionalTensor input_norm, Tensor mlp_norm, double eps, std::vector<Tensor> weights,
        std::vector<OptionalTensor> biases, int64_t heads, int64_t key_heads, int64_t dim, double scale)
      : input_norm_(std::move(input_norm)),
        mlp_norm_(std::move(mlp_norm)),
        eps_(eps),
        qkv_{weights[0], biases[0]},
        out_{weights[1], biases[1]},
        gate_up_{weights[2], biases[2]},
        down_{weights[3], biases[3]},
        heads_(heads),
        key_heads_(key_heads),
        dim_(dim),
        scale_(scale) {}

  // x [n, H]; attention_input [n, H'] in place of the normed x; cos, sin [n, 1, d]; keys, values float32
  // [1, Hk, capacity, d], of which `past` positions are held and n are written; unseen bool [n, m], over the last m
  // positions, or none: those after a token's own.
  Tensor forward(const Tensor& x, const OptionalTensor& attention_input, const Tensor& cos, const Tensor& sin,
                 const Tensor& keys, const Tensor& values, int64_t past, const OptionalTensor& unseen) const {
    const auto compute = x.scalar_type() == at::kFloat ? &Layer::run<float> : &Layer::run<at::BFloat16>;
    return (this->*compute)(x.contiguous(), attention_input, cos.contiguous(), sin.contiguous(), keys, values, past,
                            unseen);
  }

  template <typename T>
  Tensor run(const Tensor& x, const OptionalTensor& attention_input, const Tensor& cos, const Tensor& sin,
             const Tensor& keys, const Tensor& values, int64_t past, const OptionalTensor& unseen) const {
    const Tensor normed =
        attention_input ? *attention_input : input_norm_ ? rms_norm<T>(x, *input_norm_, eps_) : x;
    const Tensor attended = attention<T>(qkv_(normed), cos, sin, keys, values, past, unseen);
    const Tensor y = out_.add_to(x, attended);
    const Tensor gate_up = gate_up_(rms_norm<T>(y, mlp_norm_, eps_));
    return down_.add_to(y, gated<T>(gate_up, gate_up.size(1) / 2));
  }

  template <typename T>
  Tensor attention(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& keys, const Tensor& values,
                   int64_t past, const OptionalTensor& unseen) const {
    const int64_t n = qkv.size(0), d = dim_, length = past + n, head_stride = keys.stride(1);
    const int64_t per_key_head = heads_ / key_heads_ * n;
    std::vector<float> queries(heads_ * n * d);
    for (int64_t i = 0; i < n; ++i) {
      const T* row = qkv.const_data_ptr<T>() + i * qkv.size(1);
      const float *c = cos.const_data_ptr<float>() + i * d, *s = sin.const_data_ptr<float>() + i * d;
      for (int64_t h = 0; h < heads_; ++h) rotate(row + h * d, c, s, d, scale_, queries.data() + (h * n + i) * d);
      for (int64_t h = 0; h < key_heads_; ++h) {
        const int64_t at = h * head_stride + (past + i) * d;
        rotate(row + (heads_ + h) * d, c, s, d, 1, keys.mutable_data_ptr<float>() + at);
        const T* value = row + (heads_ + key_heads_ + h) * d;
        float* to = values.mutable_data_ptr<float>() + at;
#pragma omp simd
        for (int64_t j = 0; j < d; ++j) to[j] = float(value[j]);
      }
    }
    const int64_t recent = unseen ? unseen->size(1) : n;
    const Tensor hidden = unseen ? unseen->contiguous() : Tensor();
    std::vector<char> causal(unseen ? 0 : n * n);
    if (!unseen)
      for (int64_t i = 0; i < n; ++i) std::fill(causal.begin() + i * n + i + 1, causal.begin() + (i + 1) * n, 1);
    const bool* mask = unseen ? hidden.const_data_ptr<bool>() : reinterpret_cast<const bool*>(causal.data());

    Tensor attended = at::empty({n, heads_ * d}, qkv.options());
    T* to = attended.mutable_data_ptr<T>();
    const Attend attend_rows = attend_for(d);
    at::parallel_for(0, heads_ * n, std::max<int64_t>(1, kParallel / (length * d)), [&](int64_t begin, int64_t end) {
      std::vector<float> scores(kRows * whole_blocks(length)), last(kValues * d), out(kRows * d);
      for (int64_t row = begin; row < end;) {
        const int64_t head = row / per_key_head;
        const int64_t rows = std::min({kRows, end - row, (head + 1) * per_key_head - row});
        const bool* unseen_by[kRows];
        for (int64_t r = 0; r < rows; ++r) unseen_by[r] = mask + (row + r) % n * recent;
        attend_rows(queries.data() + row * d, keys.const_data_ptr<float>() + head * head_stride,
                    values.const_data_ptr<float>() + head * head_stride, d, rows, length, unseen_by, recent,
                    scores.data(), last.data(), out.data());
        for (int64_t r = 0; r < rows; ++r, ++row) {
          T* at = to + (row % n * heads_ + row / n) * d;
          for (int64_t c = 0; c < d; ++c) at[c] = T(out[r * d + c]);
        }
      }
    });
    return attended;
  }

  OptionalTensor input_norm_;
  Tensor mlp_norm_;
  float eps_;
  Linear qkv_, out_, gate_up_, down_;
  int64_t heads_, key_heads_, dim_;
  float scale_;
};

}  // namespace

TORCH_LIBRARY(hothead, m) {
  m.class_<Layer>("Layer")
      .def(torch::init<OptionalTensor, Tensor, double, std::vector<Tensor>, std::vector<OptionalTensor>, int64_t,
                       int64_t, int64_t, double>())
      .def("forward", &Layer::forward);
  m.def("linear", &linear);
}
