// One decoder layer over a few new tokens in one call: what FusedLayer in fused.py computes, with the same roundings.
//
// The products are oneDNN's on the packed weights. What lies between them is a few thousand numbers, which a plain loop
// passes in a microsecond and a chain of torch operations in a hundred. Built by native.py with the user's compiler.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Vectorised by the compiler: sums may be taken in any order, and no infinities occur.
constexpr float kUnseen = -1e30f;
constexpr int64_t kRows = 4;          // queries that share one reading of the keys and values
constexpr int64_t kParallel = 16384;  // values below which a second thread costs more than it saves

using Product = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, std::string_view,
                       c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
using ProductPlus = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, std::string_view);

struct Linear {
  Tensor weight;  // packed
  OptionalTensor bias;

  Tensor operator()(const Tensor& x) const {
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Product>();
    return op.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
  }

  Tensor add_to(const Tensor& residual, const Tensor& x) const {
    static auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "binary").typed<ProductPlus>();
    return op.call(x, residual, weight, bias, "add");
  }
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
// last `recent` keys). kDim is the head's size, 0 for one known only at run time.
template <int64_t kDim>
void attend(const float* __restrict query, const float* __restrict key, const float* __restrict value, int64_t dim,
            int64_t rows, int64_t length, const bool* const* unseen, int64_t recent, float* __restrict scores,
            float* __restrict out) {
  const int64_t d = kDim ? kDim : dim;
  for (int64_t j = 0; j < length; ++j) {
    const float* k = key + j * d;
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = query + r * d;
      float score = 0;
#pragma omp simd reduction(+ : score)
      for (int64_t c = 0; c < d; ++c) score += q[c] * k[c];
      scores[r * length + j] = score;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* s = scores + r * length;
    for (int64_t j = 0; j < recent; ++j)
      if (unseen[r][j]) s[length - recent + j] = kUnseen;
    float highest = kUnseen, total = 0;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < length; ++j) highest = std::max(highest, s[j]);
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < length; ++j) total += s[j] = std::exp(s[j] - highest);
    const float scale = 1 / total;
#pragma omp simd
    for (int64_t j = 0; j < length; ++j) s[j] *= scale;
    std::fill(out + r * d, out + (r + 1) * d, 0.0f);
  }
  int64_t j = 0;
  for (; j + 4 <= length; j += 4) {
    const float* v = value + j * d;
    for (int64_t r = 0; r < rows; ++r) {
      const float* s = scores + r * length + j;
      float* o = out + r * d;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) o[c] += s[0] * v[c] + s[1] * v[d + c] + s[2] * v[2 * d + c] + s[3] * v[3 * d + c];
    }
  }
  for (; j < length; ++j)
    for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) out[r * d + c] += scores[r * length + j] * value[j * d + c];
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
      std::vector<float> scores(kRows * length), out(kRows * d);
      for (int64_t row = begin; row < end;) {
        const int64_t head = row / per_key_head;
        const int64_t rows = std::min({kRows, end - row, (head + 1) * per_key_head - row});
        const bool* unseen_by[kRows];
        for (int64_t r = 0; r < rows; ++r) unseen_by[r] = mask + (row + r) % n * recent;
        attend_rows(queries.data() + row * d, keys.const_data_ptr<float>() + head * head_stride,
                    values.const_data_ptr<float>() + head * head_stride, d, rows, length, unseen_by, recent,
                    scores.data(), out.data());
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
}
