// SPDX-License-Identifier: Apache-2.0
// An index of shards. The names of the shards are free once the index is replaced, and the next
// save may take them: a name alone does not identify the save of a file. So a reader that has
// opened all of them checks that the index is still the same one, and starts again if it is not.
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "state/safetensors_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <unordered_map>
#include <utility>

namespace penstock::state {

namespace {

constexpr int kTries = 20;  // to open all shards between two saves, which takes moments

using Places = std::unordered_map<std::string_view, std::size_t>;

// With its slash; empty of a name alone.
std::string folder_of(const std::string& path) {
    return path.substr(0, path.size() - base::last_name(path).size());
}

bool is_there(const FileSystem& files, const std::string& path) {
    try {
        static_cast<void>(files.status(files.resolve(path)));
        return true;
    } catch (const Error&) {
        return false;
    }
}

// The folder of an index's shards: that of the index, or of the target of a symbolic link.
std::string folder_of_shards(const FileSystem& files, const std::string& path,
                             const format::ShardIndex& index) {
    const std::string here = folder_of(path);
    const std::string there = folder_of(files.resolve(path));
    const auto is_in = [&](const std::string& folder) {
        return [&files, &folder](const auto& row) { return is_there(files, folder + row.second); };
    };
    const auto& rows = index.weight_map;
    return std::all_of(rows.begin(), rows.end(), is_in(here))    ? here
           : std::any_of(rows.begin(), rows.end(), is_in(there)) ? there
                                                                 : here;
}

TensorFile open_shard(Engine& engine, const FileSystem& files, const std::string& path) {
    TensorFile shard = open_tensor_file(engine, files, path);
    if (!std::holds_alternative<format::safetensors::Header>(shard.content)) {
        base::raise(base::error(ErrorCode::kUnsupported, "open",
                                "it is a shard of an index and no .safetensors; give the path of "
                                "the shard itself",
                                path));
    }
    return shard;
}

std::unique_ptr<FileSource> open_shards(const std::shared_ptr<Engine>& engine,
                                        const FileSystem& files, const std::string& path,
                                        const format::ShardIndex& index) {
    const std::string folder = folder_of_shards(files, path, index);
    auto source = std::make_unique<SafetensorsSource>(engine);
    source->set_kind(TableKind::kIndex, path);
    std::unordered_map<std::string_view, std::uint32_t> shards;
    std::vector<Places> tensors;
    for (const auto& [name, file] : index.weight_map) {
        const auto [found, is_new] = shards.try_emplace(file, 0);
        if (is_new) {
            found->second = source->add_file(open_shard(*engine, files, folder + file));
            tensors.emplace_back();
        }
        const auto& there = source->header(found->second).tensors;
        Places& places = tensors[found->second];
        for (std::size_t i = 0; is_new && i < there.size(); ++i) {
            places.emplace(there[i].name, i);
        }
        const auto place = places.find(name);
        if (place == places.end()) {
            base::raise(base::error(
                ErrorCode::kDamaged, "read",
                fmt::format("the index '{}' says that tensor {} is in this file, and it is not",
                            path, format::shown(name)),
                folder + file));
        }
        source->add_tensor(found->second, place->second);
    }
    return source;
}

// Whether the file under the path is still the one that was read.
bool is_still(Engine& engine, const FileSystem& files, const TensorFile& index,
              const FileStatus& before) {
    try {
        const FileStatus now = files.status(files.resolve(index.path));
        if (now.bytes != before.bytes || now.modified_ns != before.modified_ns) {
            return false;
        }
        const TensorFile again = open_tensor_file(engine, files, index.path);
        const auto* found = std::get_if<format::ShardIndex>(&again.content);
        return found != nullptr &&
               found->weight_map == std::get<format::ShardIndex>(index.content).weight_map;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

std::unique_ptr<FileSource> index_source(const std::shared_ptr<Engine>& engine,
                                         const FileSystem& files, TensorFile index) {
    for (int i = 0; i < kTries; ++i) {
        const FileStatus before = files.status(files.resolve(index.path));
        std::unique_ptr<FileSource> source;
        std::optional<Error> failed;
        try {
            source =
                open_shards(engine, files, index.path, std::get<format::ShardIndex>(index.content));
        } catch (const Error& error) {
            if (error.reason() != ErrorCode::kDamaged && error.system_errno() != ENOENT) {
                throw;
            }
            failed = error;
        }
        if (is_still(*engine, files, index, before)) {
            if (failed) {
                throw *failed;
            }
            return source;
        }
        index = open_tensor_file(*engine, files, index.path);
        if (!std::holds_alternative<format::ShardIndex>(index.content)) {
            break;
        }
    }
    base::raise(base::error(ErrorCode::kDamaged, "read",
                            fmt::format("it was saved again each of the {} times that its shards "
                                        "were opened; read it when that is over",
                                        kTries),
                            index.path));
}

}  // namespace penstock::state
