// Memory of large results: with huge pages the system clears and maps it in fewer steps.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rigl {

// Ask for huge pages within memory that is about to be written. It is a hint: where it has no effect, nothing changes.
inline void prefer_huge_pages(float* memory, std::size_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kPage = std::uintptr_t{1} << 21;
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(memory + count) / kPage * kPage;
  if (memory != nullptr && end >= begin + 2 * kPage)
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory;
  (void)count;
#endif
}

}  // namespace rigl
