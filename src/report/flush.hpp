// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace penstock::report {

/// Calls fflush(); throws on failure, as fmt::print() does: the output is lost.
inline void flush(std::FILE* out) {
    if (std::fflush(out) != 0) {
        throw std::system_error(errno, std::generic_category(), "flush");
    }
}

}  // namespace penstock::report
