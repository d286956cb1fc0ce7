// SPDX-License-Identifier: Apache-2.0
// What random programs of streams run on: files of any bytes, tensors of odd lengths at odd places
// of them, some tied and some in several stretches, units of any of these, and copies of the files.
#pragma once

#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"
#include "support/text_files.hpp"

#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace penstock::weights {

class ProgramModel {
protected:
    static constexpr std::uint64_t kMiB = 1 << 20;

    [[nodiscard]] std::uint64_t below(std::uint64_t end) { return random_() % end; }
    [[nodiscard]] bool one_in(std::uint64_t n) { return below(n) == 0; }

    std::uint64_t length() {
        constexpr std::array<std::uint64_t, 12> kLengths{0,    1,    63,   64,    65,   511,
                                                         4032, 4095, 4096, 40961, 8193, 130};
        if (one_in(14)) {
            return (1 + below(2)) * kMiB - 130 + below(200);
        }
        return one_in(3) ? below(30'000) : kLengths[below(kLengths.size())];
    }

    // Files of any bytes, tensors of stretches anywhere in them, and units of any of these.
    void make_model() {
        table_ = {};
        data_.clear();
        units_.clear();
        copies_.clear();
        std::vector<std::vector<std::byte>> files;
        const std::uint64_t count = 1 + below(3);
        const bool is_copied = one_in(60);
        for (std::uint64_t i = 0; i < count; ++i) {
            files.push_back(support::pattern(2 * kMiB + 1000 + below(5000), seed_ * 10 + i));
            const std::string path = folder_ / fmt::format("{}", i);
            write(path, files.back());
            table_.files.push_back(path);
            copies_.push_back({path});
            if (is_copied && !one_in(3)) {
                copies_.back().push_back(folder_ / fmt::format("{}.copy", i));
                write(copies_.back().back(), files.back());
            }
        }
        if (!is_copied) {
            copies_.clear();
        }
        const std::uint64_t tensors = 1 + below(24);
        for (std::uint64_t i = 0; i < tensors; ++i) {
            TensorEntry entry;
            entry.name = fmt::format("t{}", i);
            entry.dtype = one_in(2) ? "U8" : "F32";
            const std::uint64_t parts = one_in(4) ? 2 + below(2) : 1;
            std::vector<std::byte> bytes;
            std::uint64_t of_all = length();
            of_all -= entry.dtype == "F32" ? of_all % 4 : 0;
            for (std::uint64_t part = 0; part < parts; ++part) {
                const std::uint64_t size =
                    part + 1 == parts ? of_all - bytes.size() : (of_all - bytes.size()) / 2;
                const auto file = static_cast<std::uint32_t>(below(count));
                const std::uint64_t room = files[file].size() - size;
                const std::uint64_t at = one_in(4)   ? room
                                         : one_in(3) ? below(room) / 64 * 64
                                                     : below(room);
                entry.stretches.push_back({file, at, size});
                bytes.insert(bytes.end(), files[file].begin() + static_cast<std::ptrdiff_t>(at),
                             files[file].begin() + static_cast<std::ptrdiff_t>(at + size));
            }
            if (of_all == 0 && one_in(2)) {
                entry.stretches.clear();
            }
            if (i != 0 && one_in(5)) {  // tied to another
                const std::size_t other = below(i);
                entry = table_.tensors[other];
                entry.name = fmt::format("t{}", i);
                bytes = data_[other];
            } else {
                entry.bytes = of_all;
                entry.shape = {entry.dtype == "F32" ? of_all / 4 : of_all};
            }
            table_.tensors.push_back(entry);
            data_.push_back(std::move(bytes));
        }
        const std::uint64_t units = 1 + below(9);
        numbers_.assign(units, {});
        for (std::uint64_t i = 0; i < units; ++i) {
            WeightUnit& unit = units_.emplace_back();
            unit.name = fmt::format("u{}", i);
            for (std::uint64_t n = one_in(12) ? 0 : 1 + below(5); n != 0; --n) {
                const std::size_t tensor = below(tensors);
                unit.tensors.push_back(table_.tensors[tensor].name);
                numbers_[i].push_back(tensor);
            }
        }
        slots_ = static_cast<std::uint32_t>(2 + below(4));
        total_ = 0;
        for (const std::vector<std::byte>& bytes : data_) {
            total_ += bytes.size();
        }
    }
    static void write(const std::string& path, const std::vector<std::byte>& bytes) {
        test::write_text(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }

    support::TempFolder folder_;
    std::mt19937_64 random_;
    std::uint64_t seed_ = 0;
    TensorTable table_;
    std::vector<std::vector<std::byte>> data_;  // of each tensor
    std::vector<WeightUnit> units_;
    std::vector<std::vector<std::size_t>> numbers_;  // of the tensors of each unit
    std::vector<std::vector<std::string>> copies_;   // none: only the files of the table
    std::uint32_t slots_ = 2;
    std::uint64_t total_ = 0;
};

}  // namespace penstock::weights
