// SPDX-License-Identifier: Apache-2.0
#include "state/index_shards.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace penstock::state {

namespace {

constexpr int kTries = 20;            // to open all shards between two saves, which takes moments
constexpr std::uint64_t kFactor = 4;  // of files held: as many for the engine, mappings and others

using format::ShardIndex;
using Places = std::unordered_map<std::string_view, std::size_t>;

// The folder of a path, with its slash; empty for a name alone.
std::string folder_of(const std::string& path) {
    return path.substr(0, path.size() - base::last_name(path).size());
}

bool is_reachable(const FileSystem& files, const std::string& path) {
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
        return
            [&files, &folder](const auto& row) { return is_reachable(files, folder + row.second); };
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

// Whether so many files can be open at once, with room left for whatever else opens files.
bool can_hold(std::uint64_t count) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return false;
    }
    try {
        const std::uint64_t used = FileSystem::local().list("/proc/self/fd").size();
        return count * kFactor + used <= limit.rlim_cur;
    } catch (const Error&) {  // no /proc here, or no descriptor left
        return false;
    }
}

std::vector<std::size_t> chosen_of(const ShardIndex& index, const Choose& choose) {
    std::vector<std::size_t> all(index.weight_map.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    if (!choose) {
        return all;
    }
    std::vector<std::string_view> names;
    for (const auto& row : index.weight_map) {
        names.push_back(row.first);
    }
    return choose(names);
}

std::size_t place_of(const Places& places, const std::string& name, const std::string& index,
                     const std::string& shard) {
    const auto place = places.find(name);
    if (place == places.end()) {
        base::raise(base::error(
            ErrorCode::kDamaged, "read",
            fmt::format("the index '{}' says that tensor {} is in this file, and it is not", index,
                        format::shown(name)),
            shard));
    }
    return place->second;
}

void open_shards(Engine& engine, const FileSystem& files, const Choose& choose, bool hold_all,
                 IndexShards& out) {
    out.shards.clear();
    out.tensors.clear();
    const auto& index = std::get<ShardIndex>(out.index.content);
    const std::vector<std::size_t> chosen = chosen_of(index, choose);
    const std::string folder = folder_of_shards(files, out.index.path, index);
    std::unordered_map<std::string_view, std::uint32_t> numbers;
    for (const std::size_t i : chosen) {
        numbers.try_emplace(index.weight_map[i].second, numbers.size());
    }
    out.too_many = !hold_all && !can_hold(numbers.size());
    std::vector<Places> places;
    for (const std::size_t i : chosen) {
        const auto& [name, file] = index.weight_map[i];
        const std::uint32_t number = numbers.at(file);
        if (number == out.shards.size()) {
            TensorFile& shard = out.shards.emplace_back(open_shard(engine, files, folder + file));
            if (out.too_many) {
                shard.file = File();
            }
            const auto& there = std::get<format::safetensors::Header>(shard.content).tensors;
            Places& its = places.emplace_back();
            for (std::size_t k = 0; k < there.size(); ++k) {
                its.emplace(there[k].name, k);
            }
        }
        out.tensors.push_back(
            {number, place_of(places[number], name, out.index.path, out.shards[number].path)});
    }
}

bool is_same(const FileStatus& a, const FileStatus& b) {
    return a.device == b.device && a.inode == b.inode && a.bytes == b.bytes &&
           a.modified_ns == b.modified_ns;
}

}  // namespace

bool is_still(Engine& engine, const FileSystem& files, const IndexShards& shards) {
    const TensorFile& index = shards.index;
    try {
        const FileStatus now = files.status(files.resolve(index.path));
        if (!is_same(now, shards.status)) {
            return false;
        }
        const TensorFile again = open_tensor_file(engine, files, index.path);
        const auto* found = std::get_if<ShardIndex>(&again.content);
        return found != nullptr &&
               found->weight_map == std::get<ShardIndex>(index.content).weight_map;
    } catch (const Error&) {
        return false;
    }
}

IndexShards open_index(Engine& engine, const FileSystem& files, TensorFile index,
                       const Choose& choose, bool hold_all) {
    IndexShards out;
    out.index = std::move(index);
    for (int i = 0; i < kTries; ++i) {
        out.status = files.status(files.resolve(out.index.path));
        std::optional<Error> failed;
        try {
            open_shards(engine, files, choose, hold_all, out);
        } catch (const Error& error) {
            if (error.reason() != ErrorCode::kDamaged && error.system_errno() != ENOENT) {
                throw;
            }
            failed = error;
        }
        if (is_still(engine, files, out)) {
            if (failed) {
                throw *failed;
            }
            return out;
        }
        out.index = open_tensor_file(engine, files, out.index.path);
        if (!std::holds_alternative<ShardIndex>(out.index.content)) {
            break;
        }
    }
    base::raise(base::error(ErrorCode::kDamaged, "read",
                            fmt::format("it was saved again each of the {} times that its shards "
                                        "were opened; read it when that is over",
                                        kTries),
                            out.index.path));
}

}  // namespace penstock::state
