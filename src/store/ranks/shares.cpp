// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/shares.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "store/manifest/manifest_check.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

namespace penstock::store {

namespace {

// Below this a tensor costs more as a file of its own than another rank would save.
constexpr std::uint64_t kSmallBytes = std::uint64_t{1} << 20;
// In the metadata of a share: it is never the name of something else there.
constexpr std::string_view kUnwrittenPrefix = "tensor ";

[[noreturn]] void refuse_shares(const std::string& why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save checkpoint", why));
}

// Whether it is a rank's own part, also where that is all of it: other ranks may have none, or an
// empty slice.
bool is_part(const StateTensor& tensor) {
    return !tensor.global_shape.empty();
}

std::vector<std::uint32_t> writers(const State& state, std::uint32_t count) {
    std::vector<std::uint32_t> writers(state.tensors.size(), 0);
    std::vector<std::size_t> large;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = state.tensors[i];
        if (!is_part(tensor) && tensor.data.bytes >= kSmallBytes) {
            large.push_back(i);
        }
    }
    std::sort(large.begin(), large.end(), [&](std::size_t a, std::size_t b) {
        const StateTensor& left = state.tensors[a];
        const StateTensor& right = state.tensors[b];
        return left.data.bytes != right.data.bytes ? left.data.bytes > right.data.bytes
                                                   : left.name < right.name;
    });
    std::vector<std::uint64_t> load(count, 0);
    for (const std::size_t i : large) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += state.tensors[i].data.bytes;
        writers[i] = static_cast<std::uint32_t>(least - load.begin());
    }
    return writers;
}

std::uint64_t elements(std::span<const std::uint64_t> shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

// Several ranks may have an empty slice at one place, where a tensor has fewer rows than there are
// ranks: it is no part of the tensor, unless that is empty, too.
bool writes_slice(const StateTensor& tensor, std::uint32_t rank) {
    if (elements(tensor.global_shape) == 0) {
        return rank == 0;
    }
    return tensor.copy == 0 && elements(tensor.shape) != 0;
}

struct Owner {  // where the joined manifest has a tensor, and who brought it
    std::size_t tensor = 0;
    std::uint32_t rank = 0;
};

// The shards of a share, with the numbers of their folders in the joined manifest.
void add_shards(Manifest& joined, Manifest& share) {
    for (Shard& shard : share.shards) {
        if (shard.folder != 0) {
            const std::string& path = share.folders.at(shard.folder);
            const auto known = std::find(joined.folders.begin(), joined.folders.end(), path);
            shard.folder = static_cast<std::uint32_t>(known - joined.folders.begin());
            if (known == joined.folders.end()) {
                joined.folders.push_back(path);
            }
        }
        joined.shards.push_back(std::move(shard));
    }
}

// The manifest does not have a tensor of which no rank writes a slice, so nothing else misses it.
void check_written(std::string_view name, const std::unordered_map<std::string, Owner>& known,
                   const std::string& rank) {
    const std::string tensor(name.substr(std::min(name.size(), kUnwrittenPrefix.size())));
    if (!known.contains(tensor)) {
        refuse_shares(fmt::format(
            "no rank writes tensor {}, of which {} has a slice; one of the copies of each slice "
            "has number 0, and a tensor without elements is on rank 0",
            format::shown(tensor), rank));
    }
}

void check_tiled(const Manifest& joined) {
    if (const std::string wrong = check_manifest(joined); !wrong.empty()) {
        refuse_shares(fmt::format("the shares of the ranks do not make one state: {}", wrong));
    }
    for (const Tensor& tensor : joined.tensors) {  // slices do not overlap: a sum is a cover
        std::uint64_t there = 0;
        for (const Slice& slice : tensor.slices) {
            there += elements(slice.shape);
        }
        if (there != elements(tensor.shape)) {
            refuse_shares(
                fmt::format("the ranks have {} of the {} elements of tensor {}, of shape [{}]; "
                            "each slice has to be saved by one rank",
                            there, elements(tensor.shape), format::shown(tensor.name),
                            fmt::join(tensor.shape, ", ")));
        }
    }
}

}  // namespace

std::vector<std::size_t> tensors_of_rank(const State& state, std::uint32_t rank,
                                         std::uint32_t count) {
    PENSTOCK_ASSERT(rank < count);
    const std::vector<std::uint32_t> writer = writers(state, count);
    std::vector<std::size_t> own;
    std::unordered_set<std::string_view> empty;  // one slice of such a tensor says all of it
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = state.tensors[i];
        const bool writes = is_part(tensor) ? writes_slice(tensor, rank) : writer[i] == rank;
        const bool again =
            is_part(tensor) && tensor.data.bytes == 0 && !empty.insert(tensor.name).second;
        if (writes && !again) {
            own.push_back(i);
        }
    }
    return own;
}

std::uint64_t hash_of_whole_tensors(const State& state) {
    std::uint64_t sum = 0;
    for (const StateTensor& tensor : state.tensors) {
        if (!is_part(tensor)) {
            const std::string text =
                fmt::format("{}\n{}\n{}", tensor.name, tensor.dtype, fmt::join(tensor.shape, ","));
            sum += stream::content_hash(std::as_bytes(std::span(text)));
        }
    }
    return sum;
}

std::uint64_t hash_of_small_contents(const State& state, const MemoryLook& look) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const StateTensor& tensor = state.tensors[i];
        if (is_part(tensor) || tensor.data.bytes >= kSmallBytes ||
            tensor.data.kind != MemoryKind::kHost) {
            continue;
        }
        if (look && !tensor.is_copy && look({&i, 1})) {
            return 0;  // the save itself reports it
        }
        const std::string text =
            fmt::format("{}\n{}", tensor.name,
                        stream::content_hash(std::span(tensor.data.data, tensor.data.bytes)));
        sum += stream::content_hash(std::as_bytes(std::span(text)));
    }
    return sum;
}

CheckpointMetadata unwritten_tensors(const State& state, std::span<const std::size_t> own) {
    std::unordered_set<std::string_view> names;
    for (const std::size_t i : own) {
        names.insert(state.tensors[i].name);
    }
    CheckpointMetadata out;
    for (const StateTensor& tensor : state.tensors) {
        if (is_part(tensor) && names.insert(tensor.name).second) {
            out.emplace_back(std::string(kUnwrittenPrefix) + tensor.name, std::monostate());
        }
    }
    return out;
}

Manifest join_shares(std::span<Manifest> shares,
                     const std::function<std::string(std::uint32_t)>& name_of) {
    PENSTOCK_ASSERT(!shares.empty());
    Manifest joined = shares.front();
    joined.world = static_cast<std::uint32_t>(shares.size());
    joined.folders = {""};
    joined.shards.clear();
    joined.tensors.clear();
    joined.written_bytes = 0;
    std::unordered_map<std::string, Owner> known;
    for (std::uint32_t rank = 0; rank < shares.size(); ++rank) {
        Manifest& share = shares[rank];
        const auto first = static_cast<std::uint32_t>(joined.shards.size());
        add_shards(joined, share);
        joined.written_bytes += share.written_bytes;
        for (Tensor& tensor : share.tensors) {
            for (Slice& slice : tensor.slices) {
                slice.shard += first;
            }
            const auto [found, is_new] =
                known.emplace(tensor.name, Owner{joined.tensors.size(), rank});
            if (is_new) {
                joined.tensors.push_back(std::move(tensor));
                continue;
            }
            Tensor& other = joined.tensors[found->second.tensor];
            if (other.dtype != tensor.dtype || other.shape != tensor.shape) {
                refuse_shares(fmt::format(
                    "tensor {} is {} [{}] on {}, and {} [{}] on {}", format::shown(tensor.name),
                    other.dtype, fmt::join(other.shape, ", "), name_of(found->second.rank),
                    tensor.dtype, fmt::join(tensor.shape, ", "), name_of(rank)));
            }
            std::move(tensor.slices.begin(), tensor.slices.end(), std::back_inserter(other.slices));
        }
    }
    for (std::uint32_t rank = 0; rank < shares.size(); ++rank) {
        for (const auto& [name, nothing] : shares[rank].metadata) {
            check_written(name, known, name_of(rank));
        }
    }
    check_tiled(joined);
    return joined;
}

}  // namespace penstock::store
