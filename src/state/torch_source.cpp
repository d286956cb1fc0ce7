// SPDX-License-Identifier: Apache-2.0
// A .pt: its tensors have the names that a store would give them.
#include "format/crc32.hpp"
#include "format/torch_file.hpp"
#include "state/source.hpp"
#include "state/structure.hpp"
#include "stream/read_ahead.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <unordered_map>

namespace penstock::state {

namespace {

// Placeholder addresses of storages, none of which is ever accessed: state_of() finds the storage
// and offset of each tensor by the address of its bytes.
class Addresses {
public:
    explicit Addresses(std::uint64_t bytes) : bytes_(std::max<std::uint64_t>(bytes, 1)) {
        void* const begin =
            ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (begin == MAP_FAILED) {
            throw Error(ErrorCode::kOutOfMemory, 0, "mmap", "", kNoOffset,
                        fmt::format("there are no {} bytes of addresses for the storages of the "
                                    "file",
                                    bytes_));
        }
        begin_ = static_cast<const std::byte*>(begin);
    }
    Addresses(const Addresses&) = delete;
    Addresses& operator=(const Addresses&) = delete;
    ~Addresses() { ::munmap(const_cast<std::byte*>(begin_), bytes_); }
    [[nodiscard]] const std::byte* begin() const { return begin_; }

private:
    std::uint64_t bytes_;
    const std::byte* begin_ = nullptr;
};

class TorchSource final : public FileSource {
public:
    TorchSource(const std::shared_ptr<Engine>& engine, TensorFile file) : FileSource(engine) {
        auto& content = std::get<format::torch_file::File>(file.content);
        table_.kind = content.form == format::torch_file::Form::kZip ? TableKind::kTorch
                                                                     : TableKind::kLegacyTorch;
        table_.path = file.path;
        table_.files = {std::move(file.path)};
        files_ = {std::move(file.file)};
        storages_ = std::move(content.storages);
        for (const format::zip::Record& storage : storages_) {
            if (storage.bytes != 0) {
                by_offset_.emplace(storage.offset, &storage);
            }
        }
        name_tensors(content.tree);
    }

    [[nodiscard]] Verified verify(const Progress& progress) override {
        Verified out;
        std::vector<stream::Stretch> stretches;
        for (const auto& storage : storages_) {
            stretches.push_back({files_[0], storage.offset, storage.bytes});
        }
        std::vector<std::uint32_t> crcs(storages_.size(), 0);
        std::vector<bool> read(storages_.size(), true);
        stream::ProgressClock clock(progress, "verify", path());
        clock.set_total(total_bytes());
        stream::read_ahead(
            *engine_, stretches,
            [&](std::size_t i, std::uint64_t /*at*/, std::span<const std::byte> bytes) {
                crcs[i] = format::crc32(bytes, crcs[i]);
            },
            [&](std::size_t i, const Error& error) {
                read[i] = false;
                out.problems.push_back({path(), "", error.offset(), error.what()});
            },
            clock);
        for (std::size_t i = 0; i < storages_.size(); ++i) {
            if (storages_[i].crc == 0 && storages_[i].bytes > 0) {
                out.note =
                    "it was written without checksums: that it can be read is all that can "
                    "be said";
            } else if (read[i] && crcs[i] != storages_[i].crc) {
                wrong(storages_[i], crcs[i], out);
            }
        }
        return out;
    }

private:
    // Only a storage that is wanted whole has a checksum.
    void add_sums(std::size_t /*tensor*/, stream::Wanted& wanted) override {
        const auto storage = by_offset_.find(wanted.offset);
        if (storage != by_offset_.end() && storage->second->bytes == wanted.into.size()) {
            wanted.crc = storage->second->crc;
        }
    }

    [[nodiscard]] std::uint64_t total_bytes() const {
        std::uint64_t total = 0;
        for (const auto& storage : storages_) {
            total += storage.bytes;
        }
        return total;
    }

    void name_tensors(const format::ValueTree& tree) {
        const Addresses addresses(total_bytes());
        std::vector<std::span<const std::byte>> spans;
        std::uint64_t at = 0;
        for (const auto& storage : storages_) {
            spans.emplace_back(addresses.begin() + at, storage.bytes);
            at += storage.bytes;
        }
        State state = state_of(tree, spans);
        for (StateTensor& t : state.tensors) {
            // Finds the storage of its bytes: the last one that begins before them.
            const auto after = std::upper_bound(
                spans.begin(), spans.end(), t.data.data,
                [](const std::byte* p, const auto& span) { return p < span.data(); });
            TensorEntry& entry = table_.tensors.emplace_back();
            entry.name = std::move(t.name);
            entry.dtype = std::move(t.dtype);
            entry.shape = std::move(t.shape);
            entry.bytes = t.data.bytes;
            TensorStretch& place = entry.stretches.emplace_back();
            place.bytes = entry.bytes;
            if (after != spans.begin() && t.data.bytes != 0) {
                const auto i = static_cast<std::size_t>(after - spans.begin()) - 1;
                place.offset =
                    storages_[i].offset + static_cast<std::uint64_t>(t.data.data - spans[i].data());
                entry.checksum = storages_[i].crc != 0 ? ChecksumKind::kCrc32 : ChecksumKind::kNone;
            }
        }
        structure_ = std::move(state.structure);
    }

    void wrong(const format::zip::Record& storage, std::uint32_t crc, Verified& out) const {
        const std::string message =
            fmt::format("the {} bytes of record {} have the CRC {:08x} and should have {:08x}",
                        storage.bytes, format::shown(storage.name), crc, storage.crc);
        bool named = false;
        for (const TensorEntry& t : tensors()) {
            const std::uint64_t begin = t.stretches[0].offset;
            if (t.bytes > 0 && begin >= storage.offset && begin < storage.offset + storage.bytes) {
                out.problems.push_back({path(), t.name, storage.offset, message});
                named = true;
            }
        }
        if (!named) {
            out.problems.push_back({path(), "", storage.offset, message});
        }
    }

    std::vector<format::zip::Record> storages_;
    std::unordered_map<std::uint64_t, const format::zip::Record*> by_offset_;
};

}  // namespace

std::unique_ptr<FileSource> torch_source(const std::shared_ptr<Engine>& engine, TensorFile file) {
    return std::make_unique<TorchSource>(engine, std::move(file));
}

}  // namespace penstock::state
