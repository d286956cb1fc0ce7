// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "format/torch_file.hpp"
#include "format/zip/crc32.hpp"
#include "state/addresses.hpp"
#include "state/source.hpp"
#include "state/structure/structure.hpp"
#include "stream/checksum.hpp"
#include "stream/read_ahead.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace penstock::state {

namespace {

std::uint64_t total_bytes(std::span<const TensorReader::Item> items) {
    return std::accumulate(items.begin(), items.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& item) { return sum + item.bytes; });
}

TableKind kind_of(format::torch_file::Form form) {
    switch (form) {
        case format::torch_file::Form::kZip:
            return TableKind::kTorch;
        case format::torch_file::Form::kLegacy:
            return TableKind::kLegacyTorch;
        case format::torch_file::Form::kNpz:
            break;
    }
    return TableKind::kNpz;
}

}  // namespace

FileSource::FileSource(std::shared_ptr<Engine> engine, const FileSystem& files,
                       const std::string& path)
    : engine_(engine), reader_(std::move(engine), files, path, {}, true) {
    const auto* const torch = reader_.torch_file();
    table_.path = path;
    table_.kind = reader_.is_index() ? TableKind::kIndex
                  : torch == nullptr ? TableKind::kSafetensors
                                     : kind_of(torch->form);
    for (std::size_t i = 0; i < reader_.files(); ++i) {
        table_.files.push_back(reader_.file(i).path);
    }
    if (torch != nullptr) {
        if (torch->big_endian) {
            base::raise(base::error(ErrorCode::kUnsupported, "open",
                                    "a big-endian machine saved it: load() of Python reads it; "
                                    "save what that gives",
                                    path));
        }
        name_tensors(*torch);
        return;
    }
    for (std::size_t i = 0; i < reader_.items().size(); ++i) {
        add_tensor(i);
    }
    if (reader_.files() > 0) {
        for (const auto& entry : header_of(0).metadata) {
            if (entry.first != kSumTableKey) {
                table_.metadata.push_back(entry);
            }
        }
    }
}

const format::safetensors::Header& FileSource::header_of(std::size_t file) const {
    return std::get<format::safetensors::Header>(reader_.file(file).content);
}

void FileSource::add_tensor(std::size_t item) {
    const TensorReader::Item& its = reader_.items()[item];
    const format::safetensors::Tensor& t = reader_.tensor(item);
    const auto& metadata = header_of(its.described_by).metadata;
    const bool summed = std::any_of(metadata.begin(), metadata.end(),
                                    [](const auto& entry) { return entry.first == kSumTableKey; });
    table_.tensors.push_back({.name = t.name,
                              .dtype = std::string(format::safetensors::name_of(t.type)),
                              .shape = t.shape,
                              .strides = {},
                              .bytes = its.bytes,
                              .stretches = {{its.file, its.offset, its.bytes}},
                              .checksum = summed ? ChecksumKind::kXxh3 : ChecksumKind::kNone});
    places_.emplace_back(item, 0);
}

void FileSource::name_tensors(const format::torch_file::File& content) {
    const auto& storages = reader_.items();
    const Addresses addresses(total_bytes(storages));
    std::vector<std::span<const std::byte>> spans;
    std::uint64_t at = 0;
    for (const auto& storage : storages) {
        spans.emplace_back(addresses.begin() + at, storage.bytes);
        at += storage.bytes;
    }
    State state = state_of(content.tree, spans);
    for (StateTensor& t : state.tensors) {
        TensorEntry& entry = table_.tensors.emplace_back();
        entry.name = std::move(t.name);
        entry.dtype = std::move(t.dtype);
        entry.shape = std::move(t.shape);
        entry.bytes = t.data.bytes;
        TensorStretch& place = entry.stretches.emplace_back();
        place.bytes = entry.bytes;
        // Finds the storage of its bytes: the last one that begins before them.
        const auto after =
            std::upper_bound(spans.begin(), spans.end(), t.data.data,
                             [](const std::byte* p, const auto& span) { return p < span.data(); });
        auto& [item, first] = places_.emplace_back();
        if (after != spans.begin() && t.data.bytes != 0) {
            item = static_cast<std::size_t>(after - spans.begin()) - 1;
            first = static_cast<std::uint64_t>(t.data.data - spans[item].data());
            place.offset = storages[item].offset + first;
            entry.checksum = storages[item].crc != 0 ? ChecksumKind::kCrc32 : ChecksumKind::kNone;
        }
    }
    structure_ = std::move(state.structure);
}

void FileSource::read(std::size_t tensor, std::uint64_t begin, std::uint64_t /*end*/,
                      std::span<std::byte> into) {
    const TensorEntry& t = table_.tensors[tensor];
    const std::uint64_t row = t.shape.empty() || t.shape[0] == 0 ? 0 : t.bytes / t.shape[0];
    const Memory memory(into);
    read_parts({{tensor, begin * row, into.size()}}, {&memory, 1}, {.verify = false}, {});
}

void FileSource::read_tensors(std::span<const TensorInto> wanted,
                              const stream::ReadFileOptions& options, const Progress& progress) {
    std::vector<TensorReader::ItemRange> parts;
    std::vector<Memory> into;
    for (const TensorInto& one : wanted) {
        parts.push_back({one.tensor, 0, one.into.size()});
        into.emplace_back(one.into);
    }
    read_parts(std::move(parts), into, options, progress);
}

void FileSource::read_parts(std::vector<TensorReader::ItemRange> parts,
                            std::span<const Memory> into, const stream::ReadFileOptions& options,
                            const Progress& progress) {
    std::uint64_t total = 0;
    std::vector<Memory> data;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const TensorReader::ItemRange& part = parts[i];
        if (part.bytes > 0) {  // an empty tensor may be in no storage
            const auto& [item, first] = places_[part.item];
            parts[kept++] = {item, first + part.begin, part.bytes};
            data.push_back(into[i]);
            total += part.bytes;
        }
    }
    parts.resize(kept);
    const auto reported = [&](std::uint64_t done, std::uint64_t /*with_gaps*/) {
        return !progress || progress(std::min(done, total), total);
    };
    reader_.read(parts, data, options, reported);
}

// One verify(): all items in the order of the files, by their checksums.
class FileSource::Verifying {
public:
    explicit Verifying(const FileSource& source)
        : source_(source),
          items_(source.reader_.items()),
          crcs_(items_.size(), 0),
          unread_(items_.size(), false) {
        for (std::size_t i = 0; i < source.places_.size(); ++i) {
            if (source.tensors()[i].bytes > 0) {
                tensors_.emplace(source.places_[i].first, source.tensors()[i].name);
            }
        }
        out_.note = source.reader_.note(true);
        for (std::size_t i = 0; i < source.reader_.headers(); ++i) {
            try {
                tables_.push_back(source.reader_.sums(i));
            } catch (const Error& error) {
                tables_.emplace_back();
                out_.problems.push_back({path_of(i), "", kNoOffset, error.what()});
            }
            if (!tables_.back() && source.reader_.torch_file() == nullptr) {
                note(
                    "it has no checksums of Penstock: that it can be read, and that its header is "
                    "sound, is all that can be said");
            }
        }
        order_.resize(items_.size());
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
            return std::tuple(items_[a].file, items_[a].offset, a) <
                   std::tuple(items_[b].file, items_[b].offset, b);
        });
    }

    Verified run(const Progress& progress) {
        std::vector<stream::Stretch> stretches;
        for (const std::size_t i : order_) {
            const TensorReader::Item& item = items_[i];
            const auto& table = tables_[item.described_by];
            stretches.push_back({source_.reader_.file(item.file).file, item.offset, item.bytes,
                                 table ? table->piece_bytes : 0});
        }
        stream::ProgressClock clock(progress, "verify", source_.path());
        clock.set_total(total_bytes(items_));
        stream::read_ahead(
            *source_.engine_, stretches,
            [this](std::size_t k, std::uint64_t at, std::span<const std::byte> bytes) {
                look(order_[k], at, bytes);
            },
            [this](std::size_t k, std::uint64_t /*at*/, std::uint64_t /*bytes*/,
                   const Error& error) {
                unread_[order_[k]] = true;
                add(order_[k], error.offset(), error.what());
            },
            clock);
        return std::move(out_);
    }

private:
    void look(std::size_t i, std::uint64_t at, std::span<const std::byte> bytes) {
        const TensorReader::Item& item = items_[i];
        if (source_.reader_.torch_file() != nullptr) {
            look_by_crc(i, at, bytes);
            return;
        }
        const auto& table = tables_[item.described_by];
        for (std::size_t b = 0; table && b < bytes.size(); b += table->piece_bytes) {
            const auto piece =
                bytes.subspan(b, std::min<std::size_t>(table->piece_bytes, bytes.size() - b));
            const std::size_t sum = table->first[item.place] + (at + b) / table->piece_bytes;
            if (stream::content_hash(piece) != table->sums[sum]) {
                add(i, item.offset + at + b,
                    fmt::format("checksum mismatch in {} bytes", piece.size()));
            }
        }
    }

    void look_by_crc(std::size_t i, std::uint64_t at, std::span<const std::byte> bytes) {
        const TensorReader::Item& item = items_[i];
        crcs_[i] = format::crc32(bytes, crcs_[i]);
        if (at + bytes.size() < item.bytes || unread_[i]) {
            return;
        }
        if (item.crc == 0) {
            note("it was written without checksums: that it can be read is all that can be said");
        } else if (crcs_[i] != item.crc) {
            add(i, item.offset,
                fmt::format("the {} bytes of record {} have the CRC {:08x} and should have {:08x}",
                            item.bytes,
                            format::shown(source_.reader_.torch_file()->storages[i].name), crcs_[i],
                            item.crc));
        }
    }

    void note(std::string_view what) {
        if (out_.note.find(what) == std::string::npos) {
            out_.note += (out_.note.empty() ? "" : "; ") + std::string(what);
        }
    }

    // For each tensor in the item, or for none.
    void add(std::size_t item, std::uint64_t offset, const std::string& message) {
        const auto [begin, end] = tensors_.equal_range(item);
        if (begin == end) {
            out_.problems.push_back({path_of(items_[item].file), "", offset, message});
        }
        for (auto tensor = begin; tensor != end; ++tensor) {
            out_.problems.push_back(
                {path_of(items_[item].file), std::string(tensor->second), offset, message});
        }
    }

    [[nodiscard]] const std::string& path_of(std::size_t file) const {
        return source_.table_.files[file];
    }

    const FileSource& source_;
    const std::vector<TensorReader::Item>& items_;
    std::multimap<std::size_t, std::string_view> tensors_;  // that are in an item
    std::vector<std::optional<SumTable>> tables_;           // of each file
    std::vector<std::size_t> order_;
    std::vector<std::uint32_t> crcs_;
    std::vector<bool> unread_;  // not all of the item was read
    Verified out_;
};

Verified FileSource::verify(const Progress& progress) {
    return Verifying(*this).run(progress);
}

}  // namespace penstock::state
