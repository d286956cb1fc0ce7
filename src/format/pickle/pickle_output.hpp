// SPDX-License-Identifier: Apache-2.0
// Appends codes of a pickle and their arguments to a text.
#pragma once

#include "format/pickle/pickle_codes.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::format {

class PickleOutput {
protected:
    using Code = pickle::Code;

    void code(Code c) { out_ += static_cast<char>(c); }
    void number(std::uint64_t value, int bytes) {
        for (int i = 0; i < bytes; ++i) {
            out_ += static_cast<char>(value >> (8 * i));
        }
    }
    void put(std::uint32_t slot) {
        code(slot < 256 ? Code::kBinPut : Code::kLongBinPut);
        number(slot, slot < 256 ? 1 : 4);
    }
    void get(std::uint32_t slot) {
        code(slot < 256 ? Code::kBinGet : Code::kLongBinGet);
        number(slot, slot < 256 ? 1 : 4);
    }

    void integer(std::int64_t v) {
        if (v >= 0 && v < 256) {
            code(Code::kBinInt1);
            number(static_cast<std::uint64_t>(v), 1);
        } else if (v >= 0 && v < 65536) {
            code(Code::kBinInt2);
            number(static_cast<std::uint64_t>(v), 2);
        } else if (v >= INT32_MIN && v <= INT32_MAX) {
            code(Code::kBinInt);
            number(static_cast<std::uint64_t>(v), 4);
        } else {
            int bytes = 8;
            while (bytes > 1 && (v >> (8 * (bytes - 1) - 1)) == (v < 0 ? -1 : 0)) {
                --bytes;
            }
            code(Code::kLong1);
            number(static_cast<std::uint64_t>(bytes), 1);
            number(static_cast<std::uint64_t>(v), bytes);
        }
    }
    void real(double v) {
        code(Code::kBinFloat);
        const auto bits = std::bit_cast<std::uint64_t>(v);
        for (int i = 7; i >= 0; --i) {
            out_ += static_cast<char>(bits >> (8 * i));
        }
    }
    void integers(const std::vector<std::uint64_t>& list) {
        if (list.empty()) {
            code(Code::kEmptyTuple);
            return;
        }
        if (list.size() > 3) {
            code(Code::kMark);
        }
        for (const std::uint64_t v : list) {
            integer(static_cast<std::int64_t>(v));
        }
        tuple_of(list.size());
    }
    void tuple_of(std::size_t items) {
        constexpr Code kCodes[] = {Code::kEmptyTuple, Code::kTuple1, Code::kTuple2, Code::kTuple3};
        code(items < 4 ? kCodes[items] : Code::kTuple);
    }

    std::string out_;
};

}  // namespace penstock::format
