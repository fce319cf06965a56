// Vectors of floats, which the compiler splits where the processor has shorter ones.
#pragma once

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4)));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2)));

// kLanes words, loaded once: left to itself the compiler loads them again for each use, and then a product of a few rows
// waits for loads and not for memory.
inline Words loaded(const void* from) {
  Words words = *(const Words*)from;
#ifdef __AVX512F__
  __asm__("" : "+v"(words));
#endif
  return words;
}

// A lane is four bytes: one float32 input's weight for one output, or two bfloat16 inputs' weights.
template <typename T>
constexpr int64_t kPerLane = sizeof(float) / sizeof(T);

// sum += the products of each lane's weights with the inputs in `word`.
template <typename T>
void add_products(Lanes& sum, const Words& weights, uint32_t word) {
  if constexpr (kPerLane<T> == 1) {
    float input;
    std::memcpy(&input, &word, sizeof(input));
    sum += (Lanes)weights * input;
  } else {
#ifdef __AVX512BF16__
    sum = (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(int32_t(word)));
#else
    const uint32_t halves[2] = {word << 16, word & 0xffff0000u};  // a bfloat16 is the upper half of a float32
    float inputs[2];
    std::memcpy(inputs, halves, sizeof(inputs));
    sum += (Lanes)(weights << 16) * inputs[0];
    sum += (Lanes)(weights & 0xffff0000u) * inputs[1];
#endif
  }
}

// kLanes numbers as floats.
inline Lanes floats(const float* from) { return *(const Lanes*)from; }

inline Lanes floats(const c10::BFloat16* from) {
  return (Lanes)(__builtin_convertvector(*(const Halves*)from, Words) << 16);
}

inline float sum(const Lanes& x) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t l = 0; l < kLanes; ++l) total += x[l];
  return total;
}

inline Lanes exp(const Lanes& x) {
  Lanes y;
#pragma omp simd
  for (int64_t l = 0; l < kLanes; ++l) y[l] = std::exp(x[l]);
  return y;
}

// To the nearest bfloat16, ties to even, in the upper half of each word.
inline Words rounded_words(const Lanes& x) { return (Words)x + 0x7fff + (((Words)x >> 16) & 1); }

// What is left of x in a T.
template <typename T>
Lanes rounded(const Lanes& x) {
  if constexpr (kPerLane<T> == 1) return x;
  else return (Lanes)(rounded_words(x) & 0xffff0000u);
}

inline void store(const Lanes& x, float* to) { *(Lanes*)to = x; }

inline void store(const Lanes& x, c10::BFloat16* to) {
  *(Halves*)to = __builtin_convertvector(rounded_words(x) >> 16, Halves);
}

}  // namespace
