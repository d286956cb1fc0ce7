// SPDX-License-Identifier: Apache-2.0
#include "state/safetensors_source.hpp"

#include "state/sum_table.hpp"
#include "stream/checksum.hpp"
#include "stream/read_ahead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace penstock::state {

namespace {

using format::safetensors::Header;
using format::safetensors::Tensor;

}  // namespace

void SafetensorsSource::set_kind(TableKind kind, std::string path) {
    table_.kind = kind;
    table_.path = std::move(path);
}

std::uint32_t SafetensorsSource::add_file(TensorFile file) {
    headers_.push_back(std::move(std::get<Header>(file.content)));
    files_.push_back(std::move(file.file));
    table_.files.push_back(std::move(file.path));
    for (const auto& entry : headers_.back().metadata) {
        if (entry.first != kSumTableKey && files_.size() == 1) {
            table_.metadata.push_back(entry);
        }
    }
    return static_cast<std::uint32_t>(files_.size() - 1);
}

void SafetensorsSource::add_tensor(std::uint32_t file, std::size_t index) {
    const Header& header = headers_[file];
    const Tensor& t = header.tensors[index];
    const bool summed = std::any_of(header.metadata.begin(), header.metadata.end(),
                                    [](const auto& entry) { return entry.first == kSumTableKey; });
    TensorEntry& entry = table_.tensors.emplace_back();
    entry.name = t.name;
    entry.dtype = format::safetensors::name_of(t.type);
    entry.shape = t.shape;
    entry.bytes = t.end - t.begin;
    entry.stretches = {{file, header.data_begin + t.begin, entry.bytes}};
    entry.checksum = summed ? ChecksumKind::kXxh3 : ChecksumKind::kNone;
    indexes_.push_back(index);
}

void SafetensorsSource::add_sums(std::size_t tensor, stream::Wanted& wanted) {
    std::call_once(tables_made_, [this] {
        std::vector<std::optional<SumTable>> tables;
        for (std::size_t i = 0; i < headers_.size(); ++i) {
            tables.push_back(parse_sum_table(headers_[i], this->table_.files[i]));
        }
        tables_ = std::move(tables);
    });
    const std::uint32_t file = table_.tensors[tensor].stretches[0].file;
    if (const auto& table = tables_[file]) {
        state::add_sums(wanted, headers_[file], *table, indexes_[tensor]);
    }
}

Verified SafetensorsSource::verify(const Progress& progress) {
    Verified out;
    std::vector<std::optional<SumTable>> tables;
    for (std::size_t i = 0; i < files_.size(); ++i) {
        auto& table = tables.emplace_back();
        try {
            table = parse_sum_table(headers_[i], table_.files[i]);
        } catch (const Error& error) {
            out.problems.push_back({table_.files[i], "", kNoOffset, error.what()});
        }
        if (!table) {
            out.note =
                "it has no checksums of Penstock: that it can be read, and that its header is "
                "sound, is all that can be said";
        }
    }
    std::vector<std::size_t> order(tensors().size());  // of the files
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const TensorStretch& x = tensors()[a].stretches[0];
        const TensorStretch& y = tensors()[b].stretches[0];
        return std::pair(x.file, x.offset) < std::pair(y.file, y.offset);
    });
    std::vector<stream::Stretch> stretches;
    for (const std::size_t i : order) {
        const TensorStretch& place = tensors()[i].stretches[0];
        const auto& table = tables[place.file];
        stretches.push_back(
            {files_[place.file], place.offset, place.bytes, table ? table->piece_bytes : 0});
    }
    const auto look = [&](std::size_t k, std::uint64_t at, std::span<const std::byte> bytes) {
        const TensorEntry& t = tensors()[order[k]];
        const TensorStretch& place = t.stretches[0];
        const auto& table = tables[place.file];
        for (std::size_t b = 0; table && b < bytes.size(); b += table->piece_bytes) {
            const auto piece =
                bytes.subspan(b, std::min<std::size_t>(table->piece_bytes, bytes.size() - b));
            const std::size_t sum =
                table->first[indexes_[order[k]]] + (at + b) / table->piece_bytes;
            if (stream::content_hash(piece) != table->sums[sum]) {
                out.problems.push_back(
                    {path_of(t), t.name, place.offset + at + b,
                     fmt::format("checksum mismatch in {} bytes", piece.size())});
            }
        }
    };
    const auto not_read = [&](std::size_t k, const Error& error) {
        const TensorEntry& t = tensors()[order[k]];
        out.problems.push_back({path_of(t), t.name, error.offset(), error.what()});
    };
    stream::ProgressClock clock(progress, "verify", path());
    clock.set_total(bytes());
    stream::read_ahead(*engine_, stretches, look, not_read, clock);
    return out;
}

std::unique_ptr<FileSource> safetensors_source(const std::shared_ptr<Engine>& engine,
                                               TensorFile file) {
    auto source = std::make_unique<SafetensorsSource>(engine);
    source->set_kind(TableKind::kSafetensors, file.path);
    const std::uint32_t number = source->add_file(std::move(file));
    for (std::size_t i = 0; i < source->header(number).tensors.size(); ++i) {
        source->add_tensor(number, i);
    }
    return source;
}

}  // namespace penstock::state
