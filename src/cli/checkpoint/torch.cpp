// SPDX-License-Identifier: Apache-2.0
// A .pt as a checkpoint: its tensors have the names that a store would give them.
#include "base/raise.hpp"
#include "cli/checkpoint/source.hpp"
#include "cli/checkpoint/stream.hpp"
#include "format/crc32.hpp"
#include "format/torch_file.hpp"
#include "state/structure.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

namespace penstock::cli {

namespace {

// Addresses that stand for the bytes of storages, none of which is ever touched: state_of() says of
// each tensor which part of which storage it is by where its bytes lie.
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

class TorchFile final : public CheckpointSource {
public:
    TorchFile(std::shared_ptr<Engine> engine, const std::string& path)
        : engine_(std::move(engine)), file_(FileSystem::local().open(path)) {
        path_ = path;
        FileSource source(*engine_, file_);
        auto read = format::torch_file::read(source);
        if (!read) {
            const bool parsed = read.error().code == ErrorCode::kInvalidArgument;
            throw Error(parsed ? ErrorCode::kDamaged : read.error().code, read.error().system_errno,
                        read.error().operation, path, read.error().offset,
                        fmt::format("{}: {}", path, read.error().message));
        }
        kind_ = read->form == format::torch_file::Form::kZip ? "torch file" : "legacy torch file";
        storages_ = std::move(read->storages);
        name_tensors(read->tree);
    }

    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override {
        const SourceTensor& t = tensors_[tensor];
        const std::uint64_t row = t.shape.empty() || t.shape[0] == 0 ? 0 : t.bytes / t.shape[0];
        static_cast<void>(end);
        if (!into.empty()) {
            engine_->read(file_, into, t.offset + begin * row);
        }
    }

    void read_all(std::span<const std::span<std::byte>> into,
                  const penstock::Progress& progress) override {
        TransferRequest request;
        request.files.push_back(file_);
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (!into[i].empty()) {
                request.extents.push_back({tensors_[i].offset, into[i].size(), into[i].data(), 0});
            }
        }
        fetch(*engine_, std::move(request), progress);
    }

    [[nodiscard]] Verified verify(const penstock::Progress& progress) override {
        constexpr std::uint64_t kStepBytes = std::uint64_t{8} << 20;
        Verified out;
        std::uint64_t total = 0;
        for (const auto& storage : storages_) {
            total += storage.bytes;
        }
        std::uint64_t done = 0;
        Stream stream(*engine_);
        for (const auto& storage : storages_) {
            std::uint32_t crc = 0;
            try {
                stream.run(file_, storage.offset, storage.bytes, kStepBytes,
                           [&](std::span<const std::byte> bytes) {
                               crc = format::crc32(bytes, crc);
                               done += bytes.size();
                               progress(done, total);
                           });
            } catch (const Error& error) {
                out.problems.push_back({path_, "", error.offset(), error.what()});
                continue;
            }
            if (storage.crc == 0 && storage.bytes > 0) {
                out.note =
                    "it was written without checksums: that it can be read is all that can "
                    "be said";
            } else if (crc != storage.crc) {
                wrong(storage, crc, out);
            }
        }
        return out;
    }

private:
    void name_tensors(const format::ValueTree& tree) {
        std::uint64_t total = 0;
        for (const auto& storage : storages_) {
            total += storage.bytes;
        }
        const Addresses addresses(total);
        std::vector<std::span<const std::byte>> spans;
        std::uint64_t at = 0;
        for (const auto& storage : storages_) {
            spans.emplace_back(addresses.begin() + at, storage.bytes);
            at += storage.bytes;
        }
        State state = state::state_of(tree, spans);
        for (const StateTensor& t : state.tensors) {
            // The storage that its bytes lie in: the last one that begins before them.
            const auto behind = std::upper_bound(
                spans.begin(), spans.end(), t.data.data(),
                [](const std::byte* p, const auto& span) { return p < span.data(); });
            std::uint64_t offset = 0;
            if (behind != spans.begin() && !t.data.empty()) {
                const auto i = static_cast<std::size_t>(behind - spans.begin()) - 1;
                offset = storages_[i].offset +
                         static_cast<std::uint64_t>(t.data.data() - spans[i].data());
            }
            const std::size_t slash = path_.rfind('/');
            tensors_.push_back({t.name, t.dtype, t.shape, t.data.size(),
                                slash == std::string::npos ? path_ : path_.substr(slash + 1),
                                offset});
        }
        structure_ = std::move(state.structure);
    }

    void wrong(const format::zip::Record& storage, std::uint32_t crc, Verified& out) const {
        const std::string message =
            fmt::format("the {} bytes of record {} have the CRC {:08x} and should have {:08x}",
                        storage.bytes, format::shown(storage.name), crc, storage.crc);
        bool named = false;
        for (const SourceTensor& t : tensors_) {
            if (t.bytes > 0 && t.offset >= storage.offset &&
                t.offset < storage.offset + storage.bytes) {
                out.problems.push_back({path_, t.name, storage.offset, message});
                named = true;
            }
        }
        if (!named) {
            out.problems.push_back({path_, "", storage.offset, message});
        }
    }

    std::shared_ptr<Engine> engine_;
    File file_;
    std::vector<format::zip::Record> storages_;
};

}  // namespace

std::unique_ptr<CheckpointSource> open_torch(const std::shared_ptr<Engine>& engine,
                                             const std::string& path) {
    return std::make_unique<TorchFile>(engine, path);
}

}  // namespace penstock::cli
