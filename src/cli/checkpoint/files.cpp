// SPDX-License-Identifier: Apache-2.0
// Safetensors, single and sharded.
#include "base/raise.hpp"
#include "cli/checkpoint/source.hpp"
#include "cli/checkpoint/stream.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "state/sum_table.hpp"
#include "store/store_folder.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace penstock::cli {

namespace {

namespace safetensors = format::safetensors;

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

std::string name_in(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

// What a reader of formats says of a file is an error of that file.
template <typename T>
T sound(format::Result<T>&& result, const std::string& path) {
    if (!result) {
        const bool parsed = result.error().code == ErrorCode::kInvalidArgument;
        throw Error(parsed ? ErrorCode::kDamaged : result.error().code, result.error().system_errno,
                    result.error().operation, path, result.error().offset,
                    fmt::format("{}: {}", path, result.error().message));
    }
    return std::move(*result);
}

struct OpenFile {
    std::string path;
    File file;
    safetensors::Header header;
};

OpenFile open_file(Engine& engine, const std::string& path) {
    OpenFile out{path, FileSystem::local().open(path), {}};
    FileSource source(engine, out.file);
    std::vector<std::byte> head(std::min<std::uint64_t>(8, source.size()));
    base::unwrap(source.read(0, head));
    const std::uint64_t bytes = sound(safetensors::header_bytes(head, source.size()), path);
    std::vector<std::byte> json(bytes);
    base::unwrap(source.read(8, json));
    out.header = sound(safetensors::parse_header(json, source.size()), path);
    return out;
}

class SafetensorsFiles final : public CheckpointSource {
public:
    /// `wanted`: tensors of each file, where an index names them.
    SafetensorsFiles(std::shared_ptr<Engine> engine, const std::string& path, std::string kind,
                     const std::vector<std::string>& files)
        : engine_(std::move(engine)) {
        path_ = path;
        kind_ = std::move(kind);
        for (const std::string& name : files) {
            files_.push_back(open_file(*engine_, name));
            const OpenFile& file = files_.back();
            for (const safetensors::Tensor& t : file.header.tensors) {
                tensors_.push_back({t.name, std::string(safetensors::name_of(t.type)), t.shape,
                                    t.end - t.begin, name_in(name),
                                    file.header.data_begin + t.begin});
                places_.push_back(files_.size() - 1);
            }
            for (const auto& entry : file.header.metadata) {
                if (entry.first != state::kSumTableKey && files_.size() == 1) {
                    metadata_.push_back(entry);
                }
            }
        }
    }

    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override {
        const SourceTensor& t = tensors_[tensor];
        const std::uint64_t row = t.shape.empty() || t.shape[0] == 0 ? 0 : t.bytes / t.shape[0];
        static_cast<void>(end);
        if (!into.empty()) {
            engine_->read(files_[places_[tensor]].file, into, t.offset + begin * row);
        }
    }

    void read_all(std::span<const std::span<std::byte>> into,
                  const penstock::Progress& progress) override {
        TransferRequest request;
        for (const OpenFile& file : files_) {
            request.files.push_back(file.file);
        }
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (!into[i].empty()) {
                request.extents.push_back({tensors_[i].offset, into[i].size(), into[i].data(),
                                           static_cast<std::uint32_t>(places_[i])});
            }
        }
        fetch(*engine_, std::move(request), progress);
    }

    [[nodiscard]] Verified verify(const penstock::Progress& progress) override {
        Verified out;
        std::uint64_t done = 0;
        std::size_t tensor = 0;
        for (const OpenFile& file : files_) {
            std::optional<state::SumTable> table;
            try {
                table = state::parse_sum_table(file.header, file.path);
            } catch (const Error& error) {
                out.problems.push_back({file.path, "", kNoOffset, error.what()});
            }
            if (!table) {
                out.note =
                    "it has no checksums of Penstock: that it can be read, and that its "
                    "header is sound, is all that can be said";
            }
            for (std::size_t i = 0; i < file.header.tensors.size(); ++i, ++tensor) {
                verify_tensor(file, tensors_[tensor], table, table ? table->first[i] : 0, out,
                              [&](std::uint64_t bytes) {
                                  done += bytes;
                                  progress(done, this->bytes());
                              });
            }
        }
        return out;
    }

private:
    void verify_tensor(const OpenFile& file, const SourceTensor& t,
                       const std::optional<state::SumTable>& table, std::uint64_t sum,
                       Verified& out, const std::function<void(std::uint64_t)>& told) {
        constexpr std::uint64_t kStepBytes = std::uint64_t{8} << 20;
        const std::uint64_t piece = table ? table->piece_bytes : kStepBytes;
        std::uint64_t at = t.offset;
        try {
            stream_.run(file.file, t.offset, t.bytes, std::max(piece, kStepBytes),
                        [&](std::span<const std::byte> bytes) {
                            for (std::size_t b = 0; b < bytes.size(); b += piece, at += piece) {
                                const auto part = bytes.subspan(
                                    b, std::min<std::size_t>(piece, bytes.size() - b));
                                if (table && stream::content_hash(part) != table->sums[sum++]) {
                                    out.problems.push_back(
                                        {file.path, t.name, at,
                                         fmt::format("{} bytes are not those that were saved "
                                                     "(their checksum is another one)",
                                                     part.size())});
                                }
                            }
                            told(bytes.size());
                        });
        } catch (const Error& error) {
            out.problems.push_back({file.path, t.name, error.offset(), error.what()});
        }
    }

    std::shared_ptr<Engine> engine_;
    std::vector<OpenFile> files_;
    std::vector<std::size_t> places_;  // of each tensor: its file
    Stream stream_{*engine_};
};

}  // namespace

std::unique_ptr<CheckpointSource> open_safetensors(const std::shared_ptr<Engine>& engine,
                                                   const std::string& path) {
    return std::make_unique<SafetensorsFiles>(engine, path, "safetensors file",
                                              std::vector<std::string>{path});
}

std::unique_ptr<CheckpointSource> open_index(const std::shared_ptr<Engine>& engine,
                                             const std::string& path) {
    const File file = FileSystem::local().open(path, {.direct = DirectIo::kOff});
    std::string text(std::min(file.size(), format::kShardIndexBytesMax + 1), '\0');
    engine->read(file, std::as_writable_bytes(std::span(text)), 0);
    const format::ShardIndex index = sound(format::parse_shard_index(text), path);
    std::set<std::string> files;
    for (const auto& [tensor, name] : index.weight_map) {
        files.insert(folder_of(path) + (folder_of(path) == "." ? "/" : "") + name);
    }
    auto source = std::make_unique<SafetensorsFiles>(
        engine, path, "sharded safetensors", std::vector<std::string>(files.begin(), files.end()));
    std::unordered_map<std::string_view, std::string_view> where(index.weight_map.begin(),
                                                                 index.weight_map.end());
    std::set<std::string_view> seen;
    for (const SourceTensor& t : source->tensors()) {
        const auto found = where.find(t.name);
        if (found == where.end() || found->second != t.file || !seen.insert(t.name).second) {
            throw Error(ErrorCode::kDamaged, 0, "read", path, kNoOffset,
                        fmt::format("{}: tensor {} is in {}, and the index does not say so: the "
                                    "files do not belong together",
                                    path, format::shown(t.name), format::shown(t.file)));
        }
    }
    if (seen.size() != where.size()) {
        throw Error(ErrorCode::kDamaged, 0, "read", path, kNoOffset,
                    fmt::format("{}: it names {} tensors, and the files have {} of them", path,
                                where.size(), seen.size()));
    }
    return source;
}

}  // namespace penstock::cli
