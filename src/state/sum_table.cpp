// SPDX-License-Identifier: Apache-2.0
#include "state/sum_table.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace penstock::state {

namespace {

constexpr std::string_view kAlgorithm = "xxh3-64";
constexpr std::size_t kDigits = 16;
constexpr std::uint64_t kPieceBytesMin = 256 * base::kKiB;
constexpr std::uint64_t kPieceBytesMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kSumsMax = std::uint64_t{1} << 20;

using format::safetensors::Tensor;

std::uint64_t header_sum(std::span<const Tensor> tensors) {
    std::string text;
    for (const Tensor& t : tensors) {
        fmt::format_to(std::back_inserter(text), "{} {} {} [{}] {} {}\n", t.name.size(), t.name,
                       format::safetensors::name_of(t.type), fmt::join(t.shape, ","), t.begin,
                       t.end);
    }
    return stream::content_hash(std::as_bytes(std::span(text)));
}

std::uint64_t pieces_of(const Tensor& t, std::uint64_t piece_bytes) {
    const std::uint64_t bytes = t.end - t.begin;
    return bytes / piece_bytes + (bytes % piece_bytes != 0 ? 1 : 0);
}

std::optional<std::uint64_t> number(std::string_view text, int base) {
    std::uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole ? std::optional(out) : std::nullopt;
}

std::string_view word(std::string_view& text) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view out = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    return out;
}

[[noreturn]] void damaged(const std::string& path, std::string_view what) {
    base::raise(base::error(ErrorCode::kDamaged, "read safetensors",
                            fmt::format("{}: the file was damaged; restore it from a copy", what),
                            path));
}

}  // namespace

std::uint64_t table_piece_bytes(std::uint64_t data_bytes) {
    std::uint64_t bytes = kPieceBytesMin;
    while (bytes < kPieceBytesMax && data_bytes / bytes > kSumsMax) {
        bytes *= 2;
    }
    return bytes;
}

std::string render_sum_table(std::span<const Tensor> tensors, std::uint64_t data_begin,
                             std::uint64_t piece_bytes, std::span<const std::uint64_t> sums) {
    std::string out = fmt::format("{} {} {:016x} {:016x} ", kAlgorithm, piece_bytes, data_begin,
                                  header_sum(tensors));
    out.reserve(out.size() + sums.size() * kDigits);
    for (const std::uint64_t sum : sums) {
        fmt::format_to(std::back_inserter(out), "{:016x}", sum);
    }
    return out;
}

std::optional<SumTable> parse_sum_table(const format::safetensors::Header& header,
                                        const std::string& path) {
    const auto found = std::find_if(header.metadata.begin(), header.metadata.end(),
                                    [](const auto& entry) { return entry.first == kSumTableKey; });
    if (found == header.metadata.end()) {
        return std::nullopt;
    }
    std::string_view rest = found->second;
    if (word(rest) != kAlgorithm) {
        return std::nullopt;
    }
    const auto piece_bytes = number(word(rest), 10);
    const auto data_begin = number(word(rest), 16);
    const auto tensors = number(word(rest), 16);
    // Other programs take the metadata along when they write a file again, with other values.
    if (!header.is_of_layout || data_begin != header.data_begin) {
        return std::nullopt;
    }
    if (!piece_bytes || *piece_bytes < kPieceBytesMin || *piece_bytes > kPieceBytesMax ||
        !base::is_power_of_two(*piece_bytes)) {
        damaged(path, "its table of checksums makes no sense");
    }
    if (tensors != header_sum(header.tensors)) {
        damaged(path, "its header does not fit its checksum");
    }
    SumTable table;
    table.piece_bytes = *piece_bytes;
    std::uint64_t count = 0;
    for (const Tensor& t : header.tensors) {
        table.first.push_back(count);
        count += pieces_of(t, *piece_bytes);
    }
    if (rest.size() % kDigits != 0 || rest.size() / kDigits != count) {
        damaged(path, fmt::format("its table of checksums has {} digits, where {} pieces have {}",
                                  rest.size(), count, count * kDigits));
    }
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto sum = number(rest.substr(i * kDigits, kDigits), 16);
        if (!sum) {
            damaged(path, "its table of checksums makes no sense");
        }
        table.sums.push_back(*sum);
    }
    return table;
}

void add_sums(stream::Wanted& wanted, const format::safetensors::Header& header,
              const SumTable& table, std::size_t index) {
    const format::safetensors::Tensor& t = header.tensors.at(index);
    const std::uint64_t at = wanted.offset;
    const std::uint64_t end = at + wanted.into.bytes;
    if (wanted.into.bytes == 0 || at % table.piece_bytes != 0 ||
        (end % table.piece_bytes != 0 && end != t.end - t.begin)) {
        return;
    }
    wanted.piece_bytes = table.piece_bytes;
    wanted.sums = std::span(table.sums)
                      .subspan(table.first[index] + at / table.piece_bytes,
                               (wanted.into.bytes + table.piece_bytes - 1) / table.piece_bytes);
}

}  // namespace penstock::state
