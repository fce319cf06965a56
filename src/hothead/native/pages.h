// Memory in large pages. A pass reads every weight once, in order: with pages of 4 KiB, each of which has to be looked up,
// that takes up to a tenth longer.
#pragma once

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace {

constexpr size_t kLargePage = size_t(2) << 20;
constexpr size_t kChunk = 16 * kLargePage;  // tensors smaller than a page stand side by side in one
constexpr size_t kCacheLine = 64;

constexpr size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// An uninitialised tensor in memory that the system is asked to back with large pages. Which it may not do.
inline at::Tensor empty_in_large_pages(at::IntArrayRef sizes, const at::TensorOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<char> latest;  // what holds its tensors alone keeps a chunk: it goes with the last of them
  static size_t used = 0, size = 0;
  const size_t bytes = c10::multiply_integers(sizes) * options.dtype().itemsize();
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<char> chunk = latest.lock();
  if (!chunk || size - used < bytes) {
    size = whole(std::max(bytes, kChunk), kLargePage), used = 0;
    chunk.reset((char*)std::aligned_alloc(kLargePage, size), std::free);
    TORCH_CHECK(chunk, "no memory for ", size, " bytes of weights");
#ifdef MADV_HUGEPAGE
    madvise(chunk.get(), size, MADV_HUGEPAGE);
#endif
    latest = chunk;
  }
  char* at = chunk.get() + used;
  used += whole(bytes, kCacheLine);
  return at::from_blob(at, sizes, [chunk](void*) {}, options);
}

}  // namespace
