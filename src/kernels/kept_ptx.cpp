// SPDX-License-Identifier: Apache-2.0
#include "kernels/kept_ptx.hpp"

namespace penstock::kernels {

namespace {

struct Kept {
    std::string_view name;
    const char* text;
};

constexpr Kept kKept[] = {
#include <kept_ptx.inc>
};

}  // namespace

const char* kept_ptx(std::string_view name) noexcept {
    for (const Kept& kept : kKept) {
        if (kept.name == name) {
            return kept.text;
        }
    }
    return nullptr;
}

}  // namespace penstock::kernels
