// Decoder layers over a few new tokens in one call: what FusedLayer in layers.py computes, with the same roundings, but
// for queries and keys, which are rounded to the model's dtype as transformers has them: half as much to read.
//
// Decoding reads every weight for a few rows of input, and little else: the products run at the memory's speed, and what
// lies between them is a few thousand numbers, which a plain loop passes in a microsecond and a chain of torch operations
// in a hundred. One team of threads goes through a whole pass, each with its share of every phase. Everything about a
// token is computed in the same order however many tokens a pass has, so verifying five gives the same bits as decoding
// them one by one. Built by __init__.py with the user's compiler.

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attention.h"
#include "products.h"

namespace {

constexpr int64_t kFewTokens = 32;  // up to here the rows of all heads are taken together

// Keys and values of all layers: keys [layers, Hk, blocks, d / kPerLane, kKeys, kPerLane], values [layers, Hk, blocks *
// kKeys, d].
template <typename T>
struct Held {
  const Tensor &keys, &values;

  int64_t stride() const { return keys.stride(1); }  // of a head, in both
  T* keys_of(int64_t layer) const { return keys.mutable_data_ptr<T>() + layer * keys.stride(0); }
  T* values_of(int64_t layer) const { return values.mutable_data_ptr<T>() + layer * values.stride(0); }
};

// Where the new tokens of a pass stand: cos, sin float32 [n, d]; `past` positions are held and n are written; unseen
// bool [n, recent] over the last of them, or null: those after a token's own.
struct Place {
  int64_t n, past;
  const float *cos, *sin;
  const bool* unseen;
  int64_t recent;

  // The same for the new tokens from `first` on alone, when the others are held.
  Place from(int64_t first, int64_t dim) const {
    return {n - first, past + first, cos + first * dim, sin + first * dim, unseen ? unseen + first * recent : nullptr,
            recent};
  }
};

// [i * kN + j]: whether j comes after i.
template <int64_t kN>
constexpr std::array<bool, kN * kN> later() {
  std::array<bool, kN * kN> after{};
  for (int64_t i = 0; i < kN; ++i)
    for (int64_t j = i + 1; j < kN; ++j) after[i * kN + j] = true;
  return after;
}

// What a pass leaves between its phases, for all members to see.
template <typename T>
struct Between {
  std::vector<T> qkv, queries, attended, gated;
};

struct Layer : torch::CustomClassHolder {
  using Product = c10::intrusive_ptr<Linear>;

  Layer(const OptionalTensor& input_norm, Tensor mlp_norm, double eps, Product qkv, Product out, Product gate,
        Product up, Product down, int64_t heads, int64_t key_heads, int64_t dim, double scale)
      : mlp_norm_{std::move(mlp_norm), float(eps)},
        qkv_(std::move(qkv)),
        out_(std::move(out)),
        gate_(std::move(gate)),
        up_(std::move(up)),
        down_(std::move(down)),
        heads_(heads),
        key_heads_(key_heads),
        dim_(dim),
        scale_(scale) {
    if (input_norm) input_norm_ = Norm{*input_norm, float(eps)};
  }

  // What a member goes through together with the others: x [n, H] becomes what comes out of layer `index`, but for the
  // first `skipped` rows: of them only keys and values are wanted. The attention reads `attention_input` [n, H'] in place
  // of the normed x, if there is one.
  template <typename T>
  void run(const Member& member, T* x, const T* attention_input, const Place& place, const Held<T>& held,
           int64_t index, int64_t skipped, Between<T>& between) const {
    const int64_t n = place.n, width = mlp_norm_.weight.size(0);
    T *keys = held.keys_of(index), *values = held.values_of(index);
    std::vector<T> normed(n * width);  // each member's own: cheaper than to wait for one
    const T* input = attention_input ? attention_input : x;
    if (!attention_input && input_norm_) {
      (*input_norm_)(x, 0, n, normed.data());
      input = normed.data();
    }
    const T* none = nullptr;
    qkv_->run(member, input, skipped, none, between.qkv.data(), heads_ * dim_);
    qkv_->run(member, input + skipped * qkv_->ins, n - skipped, none, between.qkv.data() + skipped * qkv_->outs);
    member.meet();
    rotate_all(member, place, keys, values, held.stride(), skipped, between);
    member.meet();
    const Place rest = place.from(skipped, dim_);
    x += skipped * width;
    attend_all(member, rest, keys, values, held.stride(), between);
    member.meet();
    out_->run(member, between.attended.data(), rest.n, x, x);
    member.meet();
    mlp_norm_(x, 0, rest.n, normed.data());
    gate_->run_gated(member, *up_, normed.data(), rest.n, between.gated.data());
    member.meet();
    down_->run(member, between.gated.data(), rest.n, x, x);
    member.meet();
  }

  template <typename T>
  void make_room(int64_t n, Between<T>& between) const {
    between.qkv.resize(n * qkv_->outs);
    between.attended.resize(n * heads_ * dim_);
    between.gated.resize(n * gate_->outs);
    between.queries.resize(n * heads_ * dim_);
  }

 private:
  template <typename T>
  void rotate_all(const Member& member, const Place& place, T* keys, T* values, int64_t head_stride, int64_t skipped,
                  Between<T>& between) const {
    const int64_t n = place.n, d = dim_, rows = heads_ + key_heads_, queries = n - skipped;
    const auto [begin, end] = member.share(n * rows);
    std::vector<T> key(d);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row / rows, h = row % rows;
      const T* from = between.qkv.data() + i * qkv_->outs + h * d;
      const float *cos = place.cos + i * d, *sin = place.sin + i * d;
      if (h < heads_) {
        if (i >= skipped) rotate(from, cos, sin, d, between.queries.data() + (h * queries + i - skipped) * d);
        continue;
      }
      rotate(from, cos, sin, d, key.data());
      const int64_t at = place.past + i, head = (h - heads_) * head_stride, per_lane = kPerLane<T>;
      T* to = keys + head + at / kKeys * d * kKeys + at % kKeys * per_lane;
      for (int64_t j = 0; j < d; j += per_lane) std::copy_n(key.data() + j, per_lane, to + j * kKeys);
      std::copy_n(from + key_heads_ * d, d, values + head + at * d);
    }
  }

  template <typename T>
  void attend_all(const Member& member, const Place& place, const T* keys, const T* values, int64_t head_stride,
                  Between<T>& between) const {
    const int64_t n = place.n, d = dim_, per_key_head = heads_ / key_heads_ * n;
    const auto attend_rows = attend_for<T>(d);
    std::vector<float> scores(kQueries * whole_blocks(place.past + n)), out(kQueries * d);
    // Tokens in order see all before them: of many, each group needs the keys up to its last one only.
    const bool in_order = !place.unseen, short_of = in_order && n > kFewTokens;
    static constexpr auto after = later<kFewTokens>();
    const auto [begin, end] = member.share(heads_ * n);
    for (int64_t row = begin; row < end;) {
      const int64_t head = row / per_key_head * head_stride, token = row % n;
      const int64_t whole = short_of ? row - token + n : (row / per_key_head + 1) * per_key_head;
      const int64_t rows = std::min({kQueries, end - row, whole - row});
      const int64_t recent = !in_order ? place.recent : short_of ? rows : n;
      const bool* unseen[kQueries];
      for (int64_t r = 0; r < rows; ++r)
        unseen[r] = in_order ? after.data() + (short_of ? r : (row + r) % n) * kFewTokens
                             : place.unseen + (row + r) % n * recent;
      const int64_t length = place.past + (short_of ? token + rows : n);
      attend_rows(rows, between.queries.data() + row * d, keys + head, values + head, d, scale_, length, unseen,
                  recent, scores.data(), out.data());
      for (int64_t r = 0; r < rows; ++r, ++row) {
        T* to = between.attended.data() + (row % n * heads_ + row / n) * d;
        const float* from = out.data() + r * d;
        int64_t c = 0;
        for (; c + kLanes <= d; c += kLanes) store(floats(from + c), to + c);
        for (; c < d; ++c) to[c] = T(from[c]);
      }
    }
  }

  std::optional<Norm> input_norm_;
  Norm mlp_norm_;
  Product qkv_, out_, gate_, up_, down_;
  int64_t heads_, key_heads_, dim_;
  float scale_;
};

// Layers one after the other, and the norm after the last, if there is one.
struct Layers : torch::CustomClassHolder {
  Layers(const OptionalTensor& norm, double eps) {
    if (norm) norm_ = Norm{*norm, float(eps)};
  }

  void add(const c10::intrusive_ptr<Layer>& layer) { layers_.push_back(layer); }

  // x [n, H] and the first layer's attention input, if any, as Layer::run takes them; cos, sin float32 [n, 1, d]; keys
  // and values, of x's dtype, as in Held; unseen bool [n, m], over the last m positions, or none: those after a token's
  // own. Gives what comes out for the last `last` tokens, [last, H], and what went into the layers in `taps`, [n, taps,
  // H].
  std::tuple<Tensor, Tensor> forward(const Tensor& x, const OptionalTensor& attention_input, const Tensor& cos,
                                     const Tensor& sin, const Tensor& keys, const Tensor& values, int64_t past,
                                     const OptionalTensor& unseen, const std::vector<int64_t>& taps,
                                     int64_t last) const {
    return with_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      return pass<T>(x, attention_input, cos.contiguous(), sin.contiguous(), Held<T>{keys, values}, past, unseen, taps,
                     last);
    });
  }

 private:
  template <typename T>
  std::tuple<Tensor, Tensor> pass(const Tensor& input, const OptionalTensor& attention_input, const Tensor& cos,
                                  const Tensor& sin, const Held<T>& held, int64_t past, const OptionalTensor& unseen,
                                  const std::vector<int64_t>& taps, int64_t last) const {
    TORCH_CHECK(held.keys.size(-2) == kKeys && held.keys.size(-1) == kPerLane<T>, "keys in blocks of ",
                held.keys.size(-2), " by ", held.keys.size(-1), "; expected ", kKeys, " by ", kPerLane<T>);
    const int64_t n = input.size(0), width = input.size(1), skipped = n - last;
    Tensor x = input.clone(at::MemoryFormat::Contiguous), out = x.narrow(0, skipped, last);
    Tensor normed = norm_ ? at::empty_like(out) : out;
    Tensor tapped = at::empty({n, int64_t(taps.size()), width}, x.options());
    const Tensor read = attention_input ? attention_input->contiguous() : Tensor();
    const Tensor hidden = unseen ? unseen->contiguous() : Tensor();
    const Place place{n,
                      past,
                      cos.const_data_ptr<float>(),
                      sin.const_data_ptr<float>(),
                      unseen ? hidden.const_data_ptr<bool>() : nullptr,
                      unseen ? hidden.size(1) : 0};
    Between<T> between;
    for (const auto& layer : layers_) layer->make_room(n, between);
    T* at = x.mutable_data_ptr<T>();
    together(true, [&](const Member& member) {
      for (size_t index = 0; index < layers_.size(); ++index) {
        if (member.rank == 0)
          for (size_t tap = 0; tap < taps.size(); ++tap)
            if (taps[tap] == int64_t(index))
              for (int64_t i = 0; i < n; ++i)
                std::copy_n(at + i * width, width, tapped.mutable_data_ptr<T>() + (i * taps.size() + tap) * width);
        layers_[index]->template run<T>(member, at, index == 0 && attention_input ? read.const_data_ptr<T>() : nullptr,
                                        place, held, index, index + 1 == layers_.size() ? skipped : 0, between);
      }
      const auto [begin, end] = member.share(last);
      if (norm_) (*norm_)(at + skipped * width, begin, end, normed.mutable_data_ptr<T>());
    });
    return {normed, tapped};
  }

  std::optional<Norm> norm_;
  std::vector<c10::intrusive_ptr<Layer>> layers_;
};

template <typename T>
void first_of_greatest(const T* row, int64_t width, int64_t* to) {
  constexpr int64_t kPart = 512;  // only the part that holds the greatest is searched for its place
  float greatest = float(row[0]);
  *to = 0;
  for (int64_t start = 0; start < width; start += kPart) {
    const int64_t end = std::min(start + kPart, width);
    float here = float(row[start]);
#pragma omp simd reduction(max : here)
    for (int64_t j = start; j < end; ++j) here = std::max(here, float(row[j]));
    if (here > greatest) greatest = here, *to = start;
  }
  while (*to < width - 1 && !(float(row[*to]) == greatest)) ++*to;
}

constexpr float kNothing = -80;  // a logit this far below the greatest adds nothing to a sum; -inf would not be safe

// Calls take(i, row, width) for each row of x [n, width].
template <typename Take>
void for_each_row(const Tensor& x, const Take& take) {
  with_dtype(x, [&](auto zero) {
    const int64_t width = x.size(1);
    for (int64_t i = 0; i < x.size(0); ++i) take(i, x.const_data_ptr<decltype(zero)>() + i * width, width);
  });
}

// [n, width] -> int64 [n].
Tensor argmax(const Tensor& input) {
  const Tensor x = input.contiguous();
  Tensor found = at::empty({x.size(0)}, at::kLong);
  int64_t* to = found.mutable_data_ptr<int64_t>();
  for_each_row(x, [&](int64_t i, const auto* row, int64_t width) { first_of_greatest(row, width, to + i); });
  return found;
}

// [n, width] -> int64 [n], as argmax, and the logarithm of its share of the softmax, float32 [n].
std::tuple<Tensor, Tensor> likeliest(const Tensor& input) {
  const Tensor x = input.contiguous();
  Tensor found = at::empty({x.size(0)}, at::kLong), log_share = at::empty({x.size(0)}, at::kFloat);
  int64_t* to = found.mutable_data_ptr<int64_t>();
  float* logs = log_share.mutable_data_ptr<float>();
  for_each_row(x, [&](int64_t i, const auto* row, int64_t width) {
    first_of_greatest(row, width, to + i);
    const float greatest = float(row[to[i]]);
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < width; ++j) total += std::exp(std::max(float(row[j]) - greatest, kNothing));
    logs[i] = -std::log(total);
  });
  return {found, log_share};
}

// x [n, H] -> [n, H]. Torch's own is several operations, which take several times as long for a few rows.
Tensor rms_norm(const Tensor& input, const Tensor& weight, double eps) {
  const Tensor x = input.contiguous();
  Tensor normed = at::empty_like(x);
  with_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    Norm{weight, float(eps)}(x.const_data_ptr<T>(), 0, x.size(0), normed.mutable_data_ptr<T>());
  });
  return normed;
}

}  // namespace

TORCH_LIBRARY(hothead, m) {
  m.class_<Linear>("Linear")
      .def(torch::init<Tensor, OptionalTensor>())
      .def("forward", &Linear::forward);
  using Product = Layer::Product;
  m.class_<Layer>("Layer")
      .def(torch::init<OptionalTensor, Tensor, double, Product, Product, Product, Product, Product, int64_t, int64_t,
                       int64_t, double>());
  m.class_<Layers>("Layers")
      .def(torch::init<OptionalTensor, double>())
      .def("add", &Layers::add)
      .def("forward", &Layers::forward);
  m.def("rows_linear", &rows_linear);
  m.def("rms_norm", &rms_norm);
  m.def("argmax", &argmax);
  m.def("likeliest", &likeliest);
}
