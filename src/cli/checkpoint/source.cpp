// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/source.hpp"

#include "base/raise.hpp"
#include "store/stock_index.hpp"
#include "store/store_folder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::cli {

namespace {

[[noreturn]] void wrong_path(const std::string& path, std::string_view why) {
    throw Error(ErrorCode::kInvalidArgument, 0, "checkpoint", path, kNoOffset,
                fmt::format("{}: {}", path, why));
}

// One checkpoint of a store.
class StoredCheckpoint final : public CheckpointSource {
public:
    StoredCheckpoint(const std::shared_ptr<Engine>& engine, const std::string& path)
        : manifest_(store::read_manifest(*engine, FileSystem::local(), path)),
          checkpoint_(engine, FileSystem::local(), path) {
        path_ = path;
        kind_ = "checkpoint of a store";
        structure_ = checkpoint_.structure();
        metadata_ = checkpoint_.metadata();
        for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
            const CheckpointTensor& t = checkpoint_.tensors()[i];
            const store::Slice& slice = manifest_.tensors[i].slices[0];
            tensors_.push_back({t.name, t.dtype, t.shape, t.bytes,
                                manifest_.shards[slice.shard].file, slice.begin,
                                manifest_.tensors[i].slices.size() == 1});
        }
    }

    [[nodiscard]] const CheckpointInfo* info() const override { return &checkpoint_.info(); }
    [[nodiscard]] const store::Manifest* manifest() const override { return &manifest_; }
    [[nodiscard]] bool checks_reads() const override { return true; }

    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override {
        TensorRead one{.name = tensors_[tensor].name, .into = into};
        if (!tensors_[tensor].shape.empty()) {
            one.begin.assign(tensors_[tensor].shape.size(), 0);
            one.end = tensors_[tensor].shape;
            one.begin[0] = begin;
            one.end[0] = end;
        }
        checkpoint_.read({&one, 1});
    }

    void read_all(std::span<const std::span<std::byte>> into,
                  const penstock::Progress& progress) override {
        std::vector<TensorRead> wanted;
        wanted.reserve(tensors_.size());
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            wanted.push_back({.name = tensors_[i].name, .into = into[i]});
        }
        checkpoint_.read(wanted, true, progress);
    }

    [[nodiscard]] Verified verify(const penstock::Progress& progress) override {
        return {checkpoint_.verify(progress), {}};
    }

private:
    store::Manifest manifest_;
    Checkpoint checkpoint_;
};

bool has(const FileSystem& files, const std::string& folder, std::string_view name) {
    return store::is_there(files, store::join(folder, name));
}

std::string newest_of(Engine& engine, const FileSystem& files, const std::string& folder,
                      std::optional<std::uint64_t> generation) {
    const store::FolderScan scan = store::scan_folder(files, folder);
    std::string problems;
    for (auto entry = scan.checkpoints.rbegin(); entry != scan.checkpoints.rend(); ++entry) {
        if (generation) {
            if (entry->generation == *generation) {
                return store::join(folder, entry->name);
            }
            continue;
        }
        const auto found = store::inspect(engine, files, folder, *entry);
        if (found && found->info.problem.empty()) {
            return found->info.path;
        }
        problems += found ? fmt::format("; {}: {}", entry->name, found->info.problem) : "";
    }
    wrong_path(folder, generation ? fmt::format("it has no checkpoint of generation {}; penstock "
                                                "checkpoint ls {} lists what it has",
                                                *generation, folder)
                                  : fmt::format("it has no whole checkpoint{}", problems));
}

}  // namespace

std::uint64_t CheckpointSource::bytes() const {
    std::uint64_t total = 0;
    for (const SourceTensor& t : tensors_) {
        total += t.bytes;
    }
    return total;
}

std::string CheckpointSource::path_of(const SourceTensor& tensor) const {
    if (info() != nullptr) {
        return store::join(path_, tensor.file);
    }
    return path_.substr(0, path_.rfind('/') + 1) + tensor.file;
}

PathForm form_of(const std::string& path) {
    const FileSystem files = FileSystem::local();
    const FileStatus status = files.status(files.resolve(path));
    if (status.kind == FileKind::kFolder) {
        if (has(files, path, store::kManifestName)) {
            return PathForm::kCheckpoint;
        }
        if (store::scan_folder(files, path).checkpoints.empty()) {
            if (has(files, path, store::kIndexName)) {
                return PathForm::kIndex;
            }
            wrong_path(path,
                       "there are no checkpoints in this folder, and it is none itself (it has no "
                       "manifest.json); name a store's folder, one of its checkpoints, or a file");
        }
        return PathForm::kStore;
    }
    if (path.ends_with(".json")) {
        return PathForm::kIndex;
    }
    return path.ends_with(".safetensors") ? PathForm::kSafetensors : PathForm::kTorch;
}

std::unique_ptr<CheckpointSource> open_source(const std::shared_ptr<Engine>& engine,
                                              const std::string& path,
                                              std::optional<std::uint64_t> generation) {
    const FileSystem files = FileSystem::local();
    const PathForm form = form_of(path);
    if (generation && form != PathForm::kStore) {
        wrong_path(path, "--generation is for the folder of a store");
    }
    switch (form) {
        case PathForm::kStore:
            return std::make_unique<StoredCheckpoint>(engine,
                                                      newest_of(*engine, files, path, generation));
        case PathForm::kCheckpoint:
            return std::make_unique<StoredCheckpoint>(engine, path);
        case PathForm::kIndex:
            return open_index(
                engine, path.ends_with(".json") ? path : store::join(path, store::kIndexName));
        case PathForm::kSafetensors:
            return open_safetensors(engine, path);
        case PathForm::kTorch:
            break;
    }
    return open_torch(engine, path);
}

}  // namespace penstock::cli
