// SPDX-License-Identifier: Apache-2.0
#include "state/index/index_shards.hpp"

#include "base/path.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "state/state_views.hpp"

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

[[noreturn]] void not_read(const std::string& path, std::string_view what) {
    base::raise(base::error(
        ErrorCode::kUnsupported, "open",
        fmt::format("as a shard of an index, {}; give the path of the shard itself", what), path));
}

struct OpenShard {
    TensorFile file;  // its content is a Header
    // CRCs of the first tensors of a file of torch; 0: none that fits. The tensors without one here
    // are not plain.
    std::vector<std::uint32_t> crcs;
};

// A plain tensor of torch.save lies in its file as it would in a .safetensors, so the shard gets
// the header that this would have.
void take_torch(OpenShard& shard, const format::torch_file::File& torch) {
    if (torch.form == format::torch_file::Form::kNpz) {
        not_read(shard.file.path, "an archive of NumPy arrays (.npz) is not read");
    }
    if (torch.big_endian) {
        not_read(shard.file.path, "a file of a big-endian machine is not read");
    }
    format::safetensors::Header header;
    std::vector<std::string> others;
    for (StateView& view : views_of(torch.tree)) {
        const format::TensorValue& t = torch.tree.tensors[view.tensor];
        const format::zip::Record& record = torch.storages[t.storage];
        const std::uint64_t bytes = view_bytes(t);
        const std::uint64_t element_bytes = format::torch_type(t.type)->torch_bytes();
        const std::uint64_t begin = t.offset * element_bytes;
        const bool is_inside =
            t.offset <= record.bytes / element_bytes && bytes <= record.bytes - begin;
        if (!is_inside || !is_plain(t) || format::safetensors::name_of(t.type).empty()) {
            others.push_back(std::move(view.name));
            continue;
        }
        header.tensors.push_back({.name = std::move(view.name),
                                  .type = t.type,
                                  .shape = t.shape,
                                  .begin = record.offset + begin,
                                  .end = record.offset + begin + bytes});
        shard.crcs.push_back(bytes == record.bytes ? record.crc : 0);
    }
    for (std::string& name : others) {
        header.tensors.emplace_back().name = std::move(name);
    }
    shard.file.content = std::move(header);
    shard.file.is_header_made = true;
}

OpenShard open_shard(Engine& engine, const FileSystem& files, const std::string& path) {
    OpenShard shard{open_tensor_file(engine, files, path), {}};
    if (std::holds_alternative<ShardIndex>(shard.file.content)) {
        not_read(path, "another index is not read");
    }
    if (auto* const torch = std::get_if<format::torch_file::File>(&shard.file.content)) {
        take_torch(shard, format::torch_file::File(std::move(*torch)));
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
        const std::uint64_t used = FileSystem::any().list("/proc/self/fd").size();
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
    std::vector<OpenShard> open;
    for (const std::size_t i : chosen) {
        const auto& [name, file] = index.weight_map[i];
        const std::uint32_t number = numbers.at(file);
        if (number == out.shards.size()) {
            OpenShard& opened = open.emplace_back(open_shard(engine, files, folder + file));
            TensorFile& shard = out.shards.emplace_back(std::move(opened.file));
            if (out.too_many) {
                shard.file = File();
            }
            const auto& there = std::get<format::safetensors::Header>(shard.content).tensors;
            Places& its = places.emplace_back();
            for (std::size_t k = 0; k < there.size(); ++k) {
                its.emplace(there[k].name, k);
            }
        }
        const std::string& path = out.shards[number].path;
        IndexShards::Tensor& tensor = out.tensors.emplace_back();
        tensor = {number, place_of(places[number], name, out.index.path, path), 0};
        if (out.shards[number].is_header_made) {
            if (tensor.place >= open[number].crcs.size()) {
                not_read(path, fmt::format("its tensor {} is not read, for it is no contiguous one "
                                           "of a type that .safetensors has",
                                           format::shown(name)));
            }
            tensor.crc = open[number].crcs[tensor.place];
        }
    }
}

// A shard that is read without an update that others are read with, or nullptr: the update became
// valid while they were opened, or that shard was saved again after a crash of it.
const TensorFile* shard_left_out(const std::vector<TensorFile>& shards) {
    std::unordered_map<std::string_view, const TensorFile*> named;
    for (const TensorFile& shard : shards) {
        named.emplace(base::last_name(shard.update_path), &shard);
    }
    for (const TensorFile& shard : shards) {
        const UpdateLog* const log = shard.update ? &shard.update->log : nullptr;
        for (std::size_t i = 0; log != nullptr && i < log->followers.size(); ++i) {
            const auto other = named.find(log->followers[i]);
            const TensorFile* const its = other == named.end() ? nullptr : other->second;
            if (its != nullptr && (!its->update || its->update->log.id != log->id)) {
                return its;
            }
        }
    }
    return nullptr;
}

}  // namespace

bool is_still(Engine& engine, const FileSystem& files, const IndexShards& shards) {
    const TensorFile& index = shards.index;
    try {
        const FileStatus now = files.status(files.resolve(index.path));
        if (!is_unwritten(now, shards.status)) {
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
    std::string left_out;
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
        const TensorFile* const shard = failed ? nullptr : shard_left_out(out.shards);
        left_out = shard == nullptr ? std::string() : shard->path;
        if (shard == nullptr && (is_still(engine, files, out) || base::planted("opened_once"))) {
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
    if (!left_out.empty()) {
        base::raise(base::error(
            ErrorCode::kDamaged, "read",
            fmt::format("an update of several of its shards did not come to its end, and '{}' was "
                        "saved again since, or lost its log: the shards do not belong together. "
                        "Restore them from a copy, or save the state again. If '{}' is as you want "
                        "it, finish the others: penstock.update(path of another shard, {{}})",
                        left_out, base::last_name(left_out)),
            out.index.path));
    }
    base::raise(base::error(ErrorCode::kDamaged, "read",
                            fmt::format("it was saved again each of the {} times that its shards "
                                        "were opened; read it when that is over",
                                        kTries),
                            out.index.path));
}

}  // namespace penstock::state
