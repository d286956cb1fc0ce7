// SPDX-License-Identifier: Apache-2.0
#include "store/manifest/manifest_check.hpp"

#include "base/align.hpp"
#include "format/fault.hpp"
#include "format/safetensors.hpp"
#include "format/utf8.hpp"
#include "state/structure/structure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_set>

namespace penstock::store {

namespace {

using format::shown;
namespace safetensors = format::safetensors;

constexpr std::size_t kFileNameBytesMax = 255;
constexpr std::size_t kIdDigits = 32;
// Limit on comparisons of boxes in a manifest. Slices as writers cut them need n log n of them.
constexpr std::uint64_t kComparisonsMax = std::uint64_t{1} << 26;

bool is_id(std::string_view id) {
    return id.size() == kIdDigits && std::all_of(id.begin(), id.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

std::string check_shard(const Shard& shard, const Manifest& manifest) {
    const auto wrong = [&shard](std::string_view what) {
        return fmt::format("shard {}: {}", shown(shard.file), what);
    };
    if (!is_file_name(shard.file)) {
        return wrong("that is no name of a file in the checkpoint's own folder");
    }
    if (!is_id(shard.id)) {
        return wrong("its id is not 32 hexadecimal digits");
    }
    if (shard.folder != 0 && shard.folder >= manifest.folders.size()) {
        return wrong(fmt::format("it is in folder {}, which is not named", shard.folder));
    }
    if (shard.generation > manifest.generation) {
        return wrong("it was written by a later generation than the checkpoint's own");
    }
    if (shard.bytes > INT64_MAX || shard.header_bytes > shard.bytes ||
        shard.header_bytes > kShardHeaderBytesMax || shard.header_bytes < 8) {
        return wrong(fmt::format("it cannot have {} bytes with a header of {}", shard.bytes,
                                 shard.header_bytes));
    }
    return {};
}

std::string check_slice(const Slice& slice, const Tensor& tensor, const Manifest& manifest) {
    if (slice.shape.size() != tensor.shape.size() || slice.offset.size() != tensor.shape.size()) {
        return "a slice of it has another number of dimensions";
    }
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        if (slice.offset[d] > tensor.shape[d] ||
            slice.shape[d] > tensor.shape[d] - slice.offset[d]) {
            return fmt::format("a slice of it reaches past dimension {}", d);
        }
    }
    const auto bytes = safetensors::bytes_of(*safetensors::type_named(tensor.dtype), slice.shape);
    if (!bytes || *bytes != slice.bytes) {
        return "a slice of it has another number of bytes than its shape needs";
    }
    if (slice.shard >= manifest.shards.size()) {
        return fmt::format("a slice of it is in shard number {}, and there are {}", slice.shard,
                           manifest.shards.size());
    }
    const Shard& shard = manifest.shards[slice.shard];
    if (slice.begin < shard.header_bytes || slice.begin > shard.bytes ||
        slice.bytes > shard.bytes - slice.begin) {
        return fmt::format("a slice of it is at bytes {} to {} of {}, which has {}", slice.begin,
                           slice.begin + slice.bytes, shown(shard.file), shard.bytes);
    }
    const std::uint64_t chunks = (slice.bytes + kChunkBytes - 1) / kChunkBytes;
    if (!slice.sums.empty() && slice.sums.size() != chunks) {
        return fmt::format("a slice of it has {} checksums and {} chunks", slice.sums.size(),
                           chunks);
    }
    if (slice.changed > manifest.generation) {
        return "it changed in a later generation than the checkpoint's own";
    }
    return {};
}

// Checks that boxes do not overlap. If a plane separates them (as in every regular sharding), each
// side is checked alone; boxes that no plane separates are compared in pairs.
class Boxes {
public:
    enum class Verdict : std::uint8_t { kApart, kOverlap, kTooMany };

    explicit Boxes(std::uint64_t& work) : work_(work) {}

    Verdict check(std::vector<const Slice*> boxes, std::size_t rank) {
        open_.push_back(std::move(boxes));
        while (!open_.empty()) {
            std::vector<const Slice*> group = std::move(open_.back());
            open_.pop_back();
            if (group.size() < 2 || parted(group, rank)) {
                continue;
            }
            if (overlap(group, rank)) {
                return Verdict::kOverlap;
            }
            if (work_ > kComparisonsMax) {
                return Verdict::kTooMany;
            }
        }
        return Verdict::kApart;
    }

private:
    static std::uint64_t end(const Slice& s, std::size_t d) { return s.offset[d] + s.shape[d]; }

    bool parted(std::vector<const Slice*>& group, std::size_t rank) {
        for (std::size_t d = 0; d < rank && work_ <= kComparisonsMax; ++d) {
            work_ += group.size();
            std::sort(group.begin(), group.end(),
                      [d](const Slice* a, const Slice* b) { return a->offset[d] < b->offset[d]; });
            std::vector<std::size_t> cuts;
            std::uint64_t reach = 0;
            for (std::size_t i = 0; i < group.size(); ++i) {
                if (i > 0 && reach <= group[i]->offset[d]) {
                    cuts.push_back(i);
                }
                reach = std::max(reach, end(*group[i], d));
            }
            if (cuts.empty()) {
                continue;
            }
            cuts.push_back(group.size());
            std::size_t begin = 0;
            for (const std::size_t cut : cuts) {
                if (cut - begin > 1) {
                    open_.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(begin),
                                       group.begin() + static_cast<std::ptrdiff_t>(cut));
                }
                begin = cut;
            }
            return true;
        }
        return false;
    }

    bool overlap(const std::vector<const Slice*>& group, std::size_t rank) {
        for (std::size_t i = 0; i < group.size(); ++i) {
            for (std::size_t k = i + 1; k < group.size(); ++k) {
                if (++work_ > kComparisonsMax) {
                    return false;
                }
                bool meet = true;
                for (std::size_t d = 0; d < rank && meet; ++d) {
                    meet = group[i]->offset[d] < end(*group[k], d) &&
                           group[k]->offset[d] < end(*group[i], d);
                }
                if (meet) {
                    return true;
                }
            }
        }
        return false;
    }

    std::uint64_t& work_;
    std::vector<std::vector<const Slice*>> open_;
};

std::string check_tensor(const Tensor& tensor, const Manifest& manifest, std::uint64_t& work) {
    const auto wrong = [&tensor](std::string_view what) {
        return fmt::format("tensor {}: {}", shown(tensor.name), what);
    };
    const auto type = safetensors::type_named(tensor.dtype);
    if (!type) {
        return wrong("its type " + shown(tensor.dtype) + " is unknown");
    }
    if (tensor.shape.size() > safetensors::kRankMax ||
        !safetensors::bytes_of(*type, tensor.shape)) {
        return wrong(
            "its shape is no whole number of bytes below 2^61, or has too many dimensions");
    }
    if (tensor.slices.empty()) {
        return wrong("it has no slice");
    }
    std::vector<const Slice*> boxes;
    for (const Slice& slice : tensor.slices) {
        if (const std::string why = check_slice(slice, tensor, manifest); !why.empty()) {
            return wrong(why);
        }
        if (slice.bytes > 0) {
            boxes.push_back(&slice);
        }
    }
    switch (boxes.size() < 2 ? Boxes::Verdict::kApart
                             : Boxes(work).check(std::move(boxes), tensor.shape.size())) {
        case Boxes::Verdict::kOverlap:
            return wrong("two slices of it overlap");
        case Boxes::Verdict::kTooMany:
            return wrong("its slices are cut in a way that no writer cuts them");
        case Boxes::Verdict::kApart:
            break;
    }
    return {};
}

// As in every safetensors file: no byte between two tensors, none after the last.
std::string check_tiling(const Manifest& manifest) {
    std::vector<std::vector<const Slice*>> slices(manifest.shards.size());
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            slices[slice.shard].push_back(&slice);
        }
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
        std::sort(slices[i].begin(), slices[i].end(), [](const Slice* a, const Slice* b) {
            return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
        });
        const Shard& shard = manifest.shards[i];
        std::uint64_t at = shard.header_bytes;
        for (const Slice* slice : slices[i]) {
            if (slice->begin != at) {
                return fmt::format("shard {}: its tensors {} at byte {}", shown(shard.file),
                                   slice->begin < at ? "overlap" : "leave a hole", at);
            }
            at += slice->bytes;
        }
        if (at != shard.bytes) {
            return fmt::format("shard {}: its tensors end at byte {}, and it has {}",
                               shown(shard.file), at, shard.bytes);
        }
    }
    return {};
}

std::string check_folders(const Manifest& manifest) {
    for (std::size_t i = 0; i < manifest.folders.size(); ++i) {
        const std::string& folder = manifest.folders[i];
        const bool good =
            i == 0 ? folder.empty() : folder.starts_with('/') && folder.find('\0') == folder.npos;
        if (!good) {
            return fmt::format("folder {} is not an absolute path", shown(folder));
        }
    }
    return {};
}

}  // namespace

bool is_file_name(std::string_view name) {
    return !name.empty() && name.size() <= kFileNameBytesMax && name.front() != '.' &&
           name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
           format::is_utf8(name);
}

std::string check_manifest(const Manifest& manifest) {
    if (manifest.world == 0) {
        return "it was written by no process";
    }
    if (std::string wrong = check_folders(manifest); !wrong.empty()) {
        return wrong;
    }
    std::unordered_set<std::string_view> names{kManifestName};
    for (const Shard& shard : manifest.shards) {
        if (std::string wrong = check_shard(shard, manifest); !wrong.empty()) {
            return wrong;
        }
        if (!names.insert(shard.file).second || !names.insert(shard.id).second) {
            return fmt::format("shard {}: its name or its id comes twice", shown(shard.file));
        }
    }
    std::uint64_t work = 0;
    for (const Tensor& tensor : manifest.tensors) {
        if (std::string wrong = check_tensor(tensor, manifest, work); !wrong.empty()) {
            return wrong;
        }
    }
    return check_tiling(manifest);
}

std::string wrong_structure(const Manifest& manifest) {
    std::vector<state::StoredTensor> tensors;
    tensors.reserve(manifest.tensors.size());
    for (const Tensor& t : manifest.tensors) {
        const auto type = format::safetensors::type_named(t.dtype);
        const auto bytes = type ? format::safetensors::bytes_of(*type, t.shape) : std::nullopt;
        tensors.push_back({t.name, t.dtype, t.shape, bytes.value_or(0)});
    }
    return state::wrong_structure(manifest.structure, tensors);
}

}  // namespace penstock::store
