// SPDX-License-Identifier: Apache-2.0
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/shard_index.hpp"
#include "state/model_folder.hpp"
#include "state/tensor_file.hpp"

#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

using format::ShardIndex;

constexpr std::string_view kOperation = "open";

[[noreturn]] void refuse(const std::string& message, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kOperation, message, path));
}

bool is_folder(const FileSystem& files, const std::string& path) {
    return files.status(files.resolve(path)).kind == FileKind::kFolder;
}

// Nothing where there is no file of this name.
std::optional<FileStatus> status_of(const FileSystem& files, const std::string& path) {
    try {
        return files.status(files.resolve(path));
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT) {
            return std::nullopt;
        }
        throw;
    }
}

bool is_same(const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.name, a.dtype, a.shape, a.bytes, a.stretches[0].offset) ==
           std::tie(b.name, b.dtype, b.shape, b.bytes, b.stretches[0].offset);
}

[[noreturn]] void refuse_copies(const std::string& what, const std::string& first,
                                const std::string& second) {
    refuse(fmt::format("it differs from its copy '{}': {}; give copies of the same file",
                       format::escaped(first), what),
           second);
}

void check_same(const TensorTable& first, const TensorTable& second) {
    const std::string& path = first.files[0];
    const auto& other = second.files[0];
    const std::size_t count = std::min(first.tensors.size(), second.tensors.size());
    for (std::size_t i = 0; i < count; ++i) {
        if (!is_same(first.tensors[i], second.tensors[i])) {
            refuse_copies(fmt::format("tensor {} is not the same in both headers",
                                      format::shown(first.tensors[i].name)),
                          path, other);
        }
    }
    if (first.tensors.size() != second.tensors.size()) {
        refuse_copies(
            fmt::format("{} tensors here, {} there", second.tensors.size(), first.tensors.size()),
            path, other);
    }
}

class Finder {
public:
    Finder(const std::shared_ptr<Engine>& engine, const std::vector<std::string>& folders,
           const FileSystem& files)
        : engine_(engine), folders_(folders), files_(files) {}

    // The table of a shard, after a look at all its copies; their paths go to the result.
    TensorTable shard(const std::string& name, WeightFolders& out) {
        std::vector<std::string>& paths = out.copies.emplace_back();
        std::optional<TensorTable> first;
        std::uint64_t bytes = 0;
        for (const std::string& folder : folders_) {
            const std::string path = base::join(folder, name);
            const std::optional<FileStatus> status = status_of(files_, path);
            paths.push_back(status ? path : std::string());
            if (!status) {
                continue;
            }
            if (first && status->bytes != bytes) {
                refuse_copies(fmt::format("{} bytes here, {} there", status->bytes, bytes),
                              first->files[0], path);
            }
            TensorTable table = inspect(engine_, path, files_);
            if (table.files.size() > 1) {
                refuse(fmt::format("an update of it did not come to its end, and its new tensors "
                                   "are in '{}'; finish it with penstock.update(path, {{}})",
                                   format::escaped(table.files[1])),
                       path);
            }
            if (first) {
                check_same(*first, table);
            } else {
                first = std::move(table);
                bytes = status->bytes;
            }
        }
        if (!first) {
            refuse(fmt::format("the shard '{}' is in none of the folders {}", format::escaped(name),
                               fmt::join(folders_, ", ")),
                   folders_[0]);
        }
        return std::move(*first);
    }

    // The index, which is the same in each folder that has it.
    ShardIndex index(const std::string& name) {
        std::optional<ShardIndex> out;
        std::string first;
        for (const std::string& folder : folders_) {
            const std::string path = base::join(folder, name);
            if (!status_of(files_, path)) {
                continue;
            }
            state::TensorFile file = state::open_tensor_file(*engine_, files_, path);
            auto* const found = std::get_if<ShardIndex>(&file.content);
            if (found == nullptr) {
                refuse(
                    "its name ends as that of an index of shards does, and its content is that of "
                    "another kind of file; expected JSON with a \"weight_map\"",
                    path);
            }
            if (!out) {
                out = std::move(*found);
                first = path;
            } else if (found->weight_map != out->weight_map) {
                refuse_copies("another tensor, or another shard of one", first, path);
            }
        }
        return std::move(*out);
    }

private:
    const std::shared_ptr<Engine>& engine_;
    const std::vector<std::string>& folders_;
    const FileSystem& files_;
};

// Adds a shard, and those of its tensors that the index names.
void add_shard(TensorTable table, const std::string& name, const ShardIndex& index,
               WeightFolders& out) {
    const auto number = static_cast<std::uint32_t>(out.table.files.size());
    std::unordered_map<std::string_view, std::size_t> places;
    for (std::size_t i = 0; i < table.tensors.size(); ++i) {
        places.emplace(table.tensors[i].name, i);
    }
    for (const auto& [tensor, shard] : index.weight_map) {
        if (shard != name) {
            continue;
        }
        const auto place = places.find(tensor);
        if (place == places.end()) {
            base::raise(base::error(
                ErrorCode::kDamaged, kOperation,
                fmt::format("the index '{}' says that tensor {} is in this file, and it is not",
                            format::escaped(out.table.path), format::shown(tensor)),
                table.files[0]));
        }
        TensorEntry& entry = out.table.tensors.emplace_back(table.tensors[place->second]);
        for (TensorStretch& stretch : entry.stretches) {
            stretch.file = number;
        }
    }
    if (out.table.metadata.empty()) {
        out.table.metadata = std::move(table.metadata);
    }
    out.table.files.push_back(std::move(table.files[0]));
}

WeightFolders of_one(const std::shared_ptr<Engine>& engine, const std::string& path,
                     const FileSystem& files) {
    WeightFolders out{inspect(engine, path, files), {}};
    for (const std::string& file : out.table.files) {
        out.copies.push_back({file});
    }
    return out;
}

}  // namespace

WeightFolders inspect_folders(const std::shared_ptr<Engine>& engine,
                              const std::vector<std::string>& folders, const FileSystem& files) {
    if (folders.empty()) {
        refuse("the list of folders is empty; give one or more", {});
    }
    if (folders.size() == 1 && !is_folder(files, folders[0])) {
        return of_one(engine, folders[0], files);
    }
    std::vector<std::string> places;
    for (const std::string& folder : folders) {
        places.push_back(state::model_folder(files, folder));
    }
    const std::string name = state::the_model_file(files, places);
    if (places.size() == 1) {
        return of_one(engine, base::join(places[0], name), files);
    }
    Finder finder(engine, places, files);
    WeightFolders out;
    if (!name.ends_with(format::kIndexSuffix)) {
        out.table = finder.shard(name, out);
        return out;
    }
    out.table.kind = TableKind::kIndex;
    out.table.path = base::join(places[0], name);
    const ShardIndex index = finder.index(name);
    std::set<std::string_view> known;
    for (const auto& [tensor, shard] : index.weight_map) {
        if (known.insert(shard).second) {
            add_shard(finder.shard(shard, out), shard, index, out);
        }
    }
    return out;
}

}  // namespace penstock
