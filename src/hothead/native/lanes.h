// Vectors of floats, which the compiler splits where the processor has shorter ones.
#pragma once

#include <cstdint>

namespace {

constexpr int64_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4)));

}  // namespace
