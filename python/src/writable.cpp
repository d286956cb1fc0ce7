// SPDX-License-Identifier: Apache-2.0
#include "writable.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace penstock::python {

namespace {

// By the list of mappings, which takes a hundred times as long. True when it is not to be had.
bool is_mapped_writable(std::uintptr_t address) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                               &std::fclose);
    if (!maps) {
        return true;
    }
    char* line = nullptr;
    std::size_t capacity = 0;
    bool writable = false;
    while (::getline(&line, &capacity, maps.get()) > 0) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        char flags[5] = {};
        const bool read =
            std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, flags) == 3;
        if (read && begin <= address && address < end) {
            writable = flags[1] == 'w';
            break;
        }
    }
    std::free(line);
    return writable;
}

}  // namespace

std::string why_not_writable(const void* address) {
    static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    void* const page = reinterpret_cast<void*>(at - at % page_bytes);
    // Faults the page in for writing, and changes none of its bytes.
    if (at == 0 || ::madvise(page, page_bytes, MADV_POPULATE_WRITE) == 0) {
        return {};
    }
    if (errno == EFAULT) {
        return "its memory is a mapped file that has become shorter, or whose device has no space";
    }
    // No permission, a mapping of a driver's (which may well be written), or an older kernel.
    if ((errno == EINVAL || errno == ENOMEM) && !is_mapped_writable(at)) {
        return "its memory is read-only (a file that was mapped to be read?)";
    }
    return {};
}

}  // namespace penstock::python
