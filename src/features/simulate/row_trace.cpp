// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"

#include <penstock/features.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace penstock {

namespace {

constexpr std::string_view kReadTrace = "read_row_trace";
constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::uint64_t kIdBytes = sizeof(std::uint64_t);

[[noreturn]] void refuse_trace(const std::string& path, const std::string& message,
                               std::uint64_t offset = kNoOffset) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kReadTrace, message, path, offset));
}

template <typename Number>
std::vector<std::uint64_t> widened(const std::string& path, std::span<const std::byte> bytes) {
    std::vector<std::uint64_t> ids(bytes.size() / sizeof(Number));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        Number number = 0;
        std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
        ids[i] = static_cast<std::uint64_t>(number);
        if (ids[i] > INT64_MAX) {
            refuse_trace(
                path, fmt::format("element {} is {}; expected rows from 0 to 2^63 - 1", i, number));
        }
    }
    return ids;
}

std::vector<std::uint64_t> ids_of(const std::string& path, const NpyHeader& header,
                                  std::span<const std::byte> bytes) {
    if (header.dtype == "<i8") {
        return widened<std::int64_t>(path, bytes);
    }
    if (header.dtype == "<u8") {
        return widened<std::uint64_t>(path, bytes);
    }
    if (header.dtype == "<i4") {
        return widened<std::int32_t>(path, bytes);
    }
    if (header.dtype == "<u4") {
        return widened<std::uint32_t>(path, bytes);
    }
    refuse_trace(path, fmt::format("its elements are {}; expected int32, int64, uint32 or uint64",
                                   header.dtype));
}

RowTrace npy_trace(Engine& engine, const File& file, std::uint64_t batch) {
    const std::string& path = file.path();
    const NpyHeader header = read_npy_header(engine, path);
    if (header.shape.size() != 1 && header.shape.size() != 2) {
        refuse_trace(path,
                     fmt::format("its shape is [{}]; expected one dimension, or two with a batch "
                                 "a row",
                                 fmt::join(header.shape, ", ")));
    }
    if (header.shape.size() == 2) {
        batch = header.shape[1];
    } else if (batch == 0) {
        refuse_trace(path,
                     "it has one dimension; say how many of its ids are a batch "
                     "(--batch 1024)");
    }
    const std::uint64_t size = file.size();
    if (header.data_bytes > size - std::min(size, header.header_bytes)) {
        refuse_trace(path, fmt::format("it has {} bytes, and its header says {}: it is cut short",
                                       size, header.header_bytes + header.data_bytes));
    }
    std::vector<std::byte> bytes(header.data_bytes);
    read_npy(engine, std::span(&path, 1), header, bytes);
    RowTrace trace;
    trace.ids = ids_of(path, header, bytes);
    for (std::uint64_t end = 0; end < trace.ids.size();) {
        end += std::min(batch, trace.ids.size() - end);
        trace.ends.push_back(end);
    }
    return trace;
}

RowTrace plain_trace(Engine& engine, const File& file) {
    const std::string& path = file.path();
    const std::uint64_t size = file.size();
    if (size % kIdBytes != 0) {
        refuse_trace(path,
                     fmt::format("it has {} bytes; expected a multiple of 8, or a .npy", size));
    }
    std::vector<std::uint64_t> words(size / kIdBytes);
    const auto bytes = std::as_writable_bytes(std::span(words));
    if (engine.read(file, bytes) != size) {
        refuse_trace(path, "it was cut while it was read");
    }
    RowTrace trace;
    trace.ids.reserve(words.size());
    for (std::uint64_t at = 0; at < words.size();) {
        const std::uint64_t count = words[at];
        const std::uint64_t left = words.size() - at - 1;
        if (count > left) {
            refuse_trace(path,
                         fmt::format("batch {} has {} ids, and {} are left; expected a .npy, or "
                                     "batches with their number of ids before them",
                                     trace.ends.size(), count, left),
                         at * kIdBytes);
        }
        const std::span<const std::uint64_t> ids = std::span(words).subspan(at + 1, count);
        const auto negative =
            std::find_if(ids.begin(), ids.end(), [](std::uint64_t id) { return id > INT64_MAX; });
        if (negative != ids.end()) {
            refuse_trace(path,
                         fmt::format("batch {} has the row {}; expected 0 to 2^63 - 1",
                                     trace.ends.size(), *negative),
                         (at + 1 + static_cast<std::uint64_t>(negative - ids.begin())) * kIdBytes);
        }
        trace.add(ids);
        at += 1 + count;
    }
    return trace;
}

}  // namespace

void RowTrace::add(std::span<const std::uint64_t> batch) {
    ends.reserve(ends.size() + 1);
    ids.insert(ids.end(), batch.begin(), batch.end());
    ends.push_back(ids.size());
}

std::span<const std::uint64_t> RowTrace::batch(std::uint64_t i) const {
    const std::uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return std::span(ids).subspan(begin, ends[i] - begin);
}

RowTrace read_row_trace(Engine& engine, const std::string& path, std::uint64_t batch) {
    const File file(path);
    std::array<char, kNpyMagic.size()> first{};
    const bool is_npy =
        file.size() >= first.size() &&
        engine.read(file, std::as_writable_bytes(std::span(first))) == first.size() &&
        std::string_view(first.data(), first.size()) == kNpyMagic;
    return is_npy ? npy_trace(engine, file, batch) : plain_trace(engine, file);
}

}  // namespace penstock
