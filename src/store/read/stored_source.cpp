// SPDX-License-Identifier: Apache-2.0
#include "store/read/stored_source.hpp"

#include "base/path.hpp"
#include "state/model_folder.hpp"
#include "store/keep/store_folder.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

namespace penstock::store {

namespace {

[[noreturn]] void wrong_path(const std::string& path, std::string_view why) {
    throw Error(ErrorCode::kInvalidArgument, 0, "checkpoint", path, kNoOffset,
                fmt::format("{}: {}", path, why));
}

bool is_folder(const FileSystem& files, const std::string& path) {
    return files.status(files.resolve(path)).kind == FileKind::kFolder;
}

std::string newest_of(Engine& engine, const FileSystem& files, const std::string& folder,
                      std::optional<std::uint64_t> generation) {
    const FolderScan scan = scan_folder(files, folder);
    if (generation) {
        const auto same = of_generation(scan.checkpoints, *generation);
        if (same.size() == 1) {
            return base::join(folder, same.front().name);
        }
        wrong_path(folder, same.empty()
                               ? fmt::format("it has no checkpoint of generation {}; penstock "
                                             "checkpoint ls {} lists what it has",
                                             *generation, folder)
                               : why_not_one(same));
    }
    std::string problems;
    for (auto entry = scan.checkpoints.rbegin(); entry != scan.checkpoints.rend(); ++entry) {
        const auto found = inspect(engine, files, folder, *entry);
        if (found && found->info.problem.empty()) {
            return found->info.path;
        }
        problems += found ? fmt::format("; {}: {}", entry->name, found->info.problem) : "";
    }
    wrong_path(folder, fmt::format("it has no whole checkpoint{}", problems));
}

}  // namespace

StoredSource::StoredSource(const std::shared_ptr<Engine>& engine, const FileSystem& files,
                           const std::string& path, CachePolicy cache)
    : manifest_(read_manifest(*engine, files, path)), checkpoint_(engine, files, path, cache) {
    table_.kind = TableKind::kCheckpoint;
    table_.path = path;
    table_.metadata = checkpoint_.metadata();
    structure_ = checkpoint_.structure();
    for (const Shard& shard : manifest_.shards) {
        table_.files.push_back(base::join(path, shard.file));
    }
    for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
        const CheckpointTensor& t = checkpoint_.tensors()[i];
        TensorEntry& entry = table_.tensors.emplace_back();
        entry.name = t.name;
        entry.dtype = t.dtype;
        entry.shape = t.shape;
        entry.bytes = t.bytes;
        for (const Slice& slice : manifest_.tensors[i].slices) {
            entry.stretches.push_back({slice.shard, slice.begin, slice.bytes});
            entry.checksum = slice.sums.empty() ? ChecksumKind::kNone : ChecksumKind::kXxh3;
        }
    }
}

void StoredSource::read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
                        std::span<std::byte> into) {
    const TensorEntry& t = tensors()[tensor];
    TensorRead one{.name = t.name, .into = into};
    if (!t.shape.empty()) {
        one.begin.assign(t.shape.size(), 0);
        one.end = t.shape;
        one.begin[0] = begin;
        one.end[0] = end;
    }
    checkpoint_.read({&one, 1});
}

void StoredSource::read_tensors(std::span<const state::TensorInto> wanted,
                                const stream::ReadFileOptions& options, const Progress& progress) {
    std::vector<TensorRead> reads;
    for (const state::TensorInto& one : wanted) {
        reads.push_back({.name = tensors()[one.tensor].name, .into = one.into});
    }
    checkpoint_.read(reads, options.verify, progress);
}

state::Verified StoredSource::verify(const Progress& progress) {
    return {checkpoint_.verify(progress), {}};
}

bool is_store(const FileSystem& files, const std::string& path) {
    return is_folder(files, path) && !is_there(files, base::join(path, kManifestName)) &&
           !scan_folder(files, path).checkpoints.empty();
}

std::unique_ptr<state::Source> open_source(const std::shared_ptr<Engine>& engine,
                                           const FileSystem& files, const std::string& path,
                                           std::optional<std::uint64_t> generation,
                                           CachePolicy cache) {
    if (is_store(files, path)) {
        return std::make_unique<StoredSource>(engine, files,
                                              newest_of(*engine, files, path, generation), cache);
    }
    if (generation) {
        wrong_path(path, "--generation is for the folder of a store");
    }
    if (is_folder(files, path)) {
        if (is_there(files, base::join(path, kManifestName))) {
            return std::make_unique<StoredSource>(engine, files, path, cache);
        }
        const std::string folder = state::model_folder(files, path);
        if (!state::model_file(files, {&folder, 1})) {
            wrong_path(
                path,
                "there are no checkpoints in this folder, and it is not one itself (it has no "
                "manifest.json) and no model; name a store's folder, one of its checkpoints, a "
                "file, or a folder with one model.safetensors or its index");
        }
    }
    return state::open_source(engine, files, path);
}

}  // namespace penstock::store
