// SPDX-License-Identifier: Apache-2.0
// Reads one checkpoint: checks the manifest, opens the shards early, and puts boxes of tensors
// together from their slices.
#include "base/align.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/safetensors.hpp"
#include "state/selection.hpp"
#include "state/structure/structure.hpp"
#include "store/background/read_back.hpp"
#include "store/keep/store_folder.hpp"
#include "store/manifest/manifest_check.hpp"
#include "store/manifest/metadata.hpp"
#include "store/manifest/stock_index.hpp"
#include "store/read/chunk_reader.hpp"
#include "stream/checksum.hpp"
#include "stream/when_room.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

using format::shown;
using store::BadChunks;
using store::ChunkReader;
using store::Manifest;
using store::Shard;
using store::ShardFiles;
using store::Slice;
using store::SlicePart;
using store::SlicePiece;
using store::Tensor;
using stream::ProgressClock;

constexpr std::uint64_t kKeptBytesMax = std::uint64_t{64} << 20;

[[noreturn]] void wrong_call(std::string_view what, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "read checkpoint", what, path));
}

std::vector<std::string_view> names_of(std::span<const CheckpointTensor> tensors) {
    std::vector<std::string_view> out;
    for (const CheckpointTensor& t : tensors) {
        out.push_back(t.name);
    }
    return out;
}

// Counts the elements of a slice that lie in the box.
std::uint64_t common(const state::TensorBox& box, const Slice& slice) {
    std::uint64_t count = 1;
    for (std::size_t d = 0; d < box.begin.size(); ++d) {
        const std::uint64_t low = std::max(box.begin[d], slice.offset[d]);
        const std::uint64_t high = std::min(box.end[d], slice.offset[d] + slice.shape[d]);
        count *= high > low ? high - low : 0;
    }
    return count;
}

}  // namespace

struct Checkpoint::Impl {
    Impl(std::shared_ptr<Engine> the_engine, const FileSystem& file_system,
         const std::string& the_path, CachePolicy policy)
        : engine(std::move(the_engine)),
          files(file_system),
          cache(policy),
          path(the_path),
          manifest(store::read_manifest(*engine, files, path)),
          shards(files, manifest, path),
          pool(MemoryOptions{.kept_bytes_max = kKeptBytesMax}),
          info(store::info_of(manifest, path)) {
        if (shards.lacks_some()) {
            // A store that has removed the checkpoint since its manifest was read renamed it first.
            // Then this throws: shards of it are gone that were to be open.
            static_cast<void>(store::read_manifest_text(*engine, files, path));
        }
        info.pinned = store::is_there(files, store::join(path, store::kPinnedName));
        for (const auto& [name, value] : manifest.metadata) {
            metadata.emplace_back(name, store::text_of(value));
        }
        tensors.reserve(manifest.tensors.size());
        for (const Tensor& t : manifest.tensors) {
            CheckpointTensor& known =
                tensors.emplace_back(CheckpointTensor{t.name, t.dtype, t.shape, 0, 0});
            known.bytes =
                *format::safetensors::bytes_of(*format::safetensors::type_named(t.dtype), t.shape);
            for (const Slice& slice : t.slices) {
                known.changed_generation = std::max(known.changed_generation, slice.changed);
            }
            by_name.emplace(t.name, &t);
        }
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    [[nodiscard]] const Tensor& named(const std::string& name) const;
    struct Bounce {  // a box that is no single stretch in the file, on its way to a GPU
        Buffer here;
        Memory there;
    };
    void add_parts(const TensorRead& wanted, std::vector<SlicePart>& parts,
                   std::vector<Bounce>& bounces);
    std::uint64_t read(std::span<const TensorRead> wanted, bool verify, const Progress& progress);
    [[nodiscard]] std::vector<CheckpointProblem> verify(const Progress& progress,
                                                        Priority priority);
    void note_whole(std::span<const TensorRead> wanted);
    void verify_header(std::uint32_t shard, std::vector<CheckpointProblem>& problems);
    void verify_index(std::vector<CheckpointProblem>& problems);

    std::shared_ptr<Engine> engine;
    FileSystem files;
    CachePolicy cache;
    std::string path;
    Manifest manifest;
    ShardFiles shards;
    MemoryPool pool;
    CheckpointInfo info;
    std::vector<CheckpointTensor> tensors;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::unordered_map<std::string_view, const Tensor*> by_name;
    std::shared_ptr<store::ReadBack> read_back;  // of the store that opened it, or nullptr
    std::mutex whole_mutex;
    std::unordered_set<std::string_view> whole;  // tensors that were read, and checked
};

const Tensor& Checkpoint::Impl::named(const std::string& name) const {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
        const std::vector<std::string_view> names = names_of(tensors);
        wrong_call(fmt::format("it has {}", state::lacking(name, names)), path);
    }
    return *found->second;
}

void Checkpoint::Impl::add_parts(const TensorRead& wanted, std::vector<SlicePart>& parts,
                                 std::vector<Bounce>& bounces) {
    const Tensor& tensor = named(wanted.name);
    const state::TensorBox box = state::checked_box(
        wanted, {tensor.name, tensor.dtype, tensor.shape}, "read checkpoint", path);
    const std::uint64_t elements = box.elements();
    if (elements == 0) {
        return;
    }
    std::uint64_t held = 0;  // slices do not overlap
    const std::size_t first = parts.size();
    const auto add = [&](Memory into) {
        held = 0;
        for (const Slice& slice : tensor.slices) {
            held += common(box, slice);
            if (auto part = SlicePart::of(tensor, slice, box, into, wanted.strides_bytes)) {
                parts.push_back(std::move(*part));
            }
        }
    };
    add(wanted.into);
    if (wanted.into.kind != MemoryKind::kHost &&
        std::any_of(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end(),
                    [](const SlicePart& part) { return part.runs() > 1; })) {
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end());
        bounces.push_back({pool.take(wanted.into.bytes), wanted.into});
        add(bounces.back().here.bytes());
    }
    if (held != elements) {
        wrong_call(fmt::format("of tensor {} only a part was saved here: {} of the {} elements "
                               "that are wanted",
                               shown(wanted.name), held, elements),
                   path);
    }
}

std::uint64_t Checkpoint::Impl::read(std::span<const TensorRead> wanted, bool verify,
                                     const Progress& progress) {
    shards.check_open();
    std::vector<SlicePart> parts;
    parts.reserve(wanted.size());
    std::vector<Bounce> bounces;
    for (const TensorRead& one : wanted) {
        add_parts(one, parts, bounces);
    }
    std::vector<SlicePiece> pieces;
    pieces.reserve(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
        store::add_pieces(parts[i], i, !verify || parts[i].slice().sums.empty(), pieces);
    }
    stream::ProgressClock clock(progress, "read checkpoint");
    const std::uint64_t bytes =
        ChunkReader(*engine, pool, shards, parts, {.verify = verify, .cache = cache}, clock)
            .run(std::move(pieces));
    for (const Bounce& bounce : bounces) {
        const MemoryCopy copy{bounce.there, bounce.here.bytes()};
        copy_memory({&copy, 1});
    }
    if (verify && read_back) {
        note_whole(wanted);
    }
    return bytes;
}

// A checkpoint of which everything was read is known to be good.
void Checkpoint::Impl::note_whole(std::span<const TensorRead> wanted) {
    const std::lock_guard guard(whole_mutex);
    for (const TensorRead& one : wanted) {
        const auto found = by_name.find(one.name);
        if (one.begin.empty() && one.end.empty()) {
            whole.insert(found->first);
        }
    }
    const bool all =
        std::all_of(manifest.tensors.begin(), manifest.tensors.end(), [this](const Tensor& tensor) {
            return std::all_of(tensor.slices.begin(), tensor.slices.end(), [&](const Slice& slice) {
                return slice.bytes == 0 || (!slice.sums.empty() && whole.contains(tensor.name));
            });
        });
    if (all) {
        read_back->found_good(base::last_name(path));
    }
}

// Verifies the header of a shard.
void Checkpoint::Impl::verify_header(std::uint32_t number,
                                     std::vector<CheckpointProblem>& problems) {
    const Shard& shard = manifest.shards[number];
    try {
        const File file = shards.open(number);
        const Buffer header = pool.take(shard.header_bytes);
        stream::read_when_room(*engine, file, header.bytes(), 0, CachePolicy::kDirect);
        if (shard.header_sum != 0 && stream::bind(stream::content_hash(header.bytes()), shard.id,
                                                  shard.generation, 0) != shard.header_sum) {
            problems.push_back({shards.path(number), "", 0,
                                "its header is not the one that was saved (its checksum is another "
                                "one)"});
        }
    } catch (const Error& error) {
        if (!error.is_about_the_file()) {
            throw;
        }
        problems.push_back({shards.path(number), "", kNoOffset, error.what()});
    }
}

// Verifies the index that stock readers use: it has no checksum, but must agree with the manifest.
void Checkpoint::Impl::verify_index(std::vector<CheckpointProblem>& problems) {
    const std::string name = store::join(path, format::kShardIndexName);
    try {
        const File file = store::open_part(files, name, {.cache = CachePolicy::kCached});
        std::string text(std::min(file.size(), format::kShardIndexBytesMax + 1), '\0');
        stream::read_when_room(*engine, file, std::as_writable_bytes(std::span(text)), 0);
        const auto parsed = format::parse_shard_index(text);
        if (!parsed) {
            problems.push_back(
                {name, "", kNoOffset,
                 fmt::format("stock readers cannot use the index: {}", parsed.error().describe())});
            return;
        }
        const format::ShardIndex& index = *parsed;
        const std::unordered_map<std::string_view, std::string_view> where(index.weight_map.begin(),
                                                                           index.weight_map.end());
        format::ShardIndex saved = store::stock_index(manifest);
        if (index.weight_map.size() != saved.weight_map.size()) {
            format::ShardIndex earlier = store::earlier_stock_index(manifest);
            saved = index.weight_map.size() == earlier.weight_map.size() ? std::move(earlier)
                                                                         : std::move(saved);
        }
        const std::size_t before = problems.size();
        for (const auto& [tensor, shard] : saved.weight_map) {
            const auto found = where.find(tensor);
            if (found == where.end() || found->second != shard) {
                problems.push_back({name, tensor, kNoOffset,
                                    "the index for stock readers does not say where it is"});
            }
        }
        if (problems.size() == before && (index.total_bytes != saved.total_bytes ||
                                          index.weight_map.size() != saved.weight_map.size())) {
            problems.push_back({name, "", kNoOffset,
                                "the index for stock readers says more tensors, or another size, "
                                "than were saved"});
        }
    } catch (const Error& error) {
        if (!error.is_about_the_file()) {
            throw;
        }
        problems.push_back({name, "", kNoOffset,
                            fmt::format("stock readers cannot use the index: {}", error.what())});
    }
}

std::vector<CheckpointProblem> Checkpoint::Impl::verify(const Progress& progress,
                                                        Priority priority) {
    shards.check_open();
    std::vector<CheckpointProblem> problems;
    std::vector<bool> broken(manifest.shards.size(), false);
    for (std::uint32_t i = 0; i < manifest.shards.size(); ++i) {
        const std::size_t before = problems.size();
        verify_header(i, problems);
        broken[i] = problems.size() > before && problems.back().offset == kNoOffset;
    }
    std::vector<SlicePart> parts;
    std::vector<SlicePiece> pieces;
    std::uint64_t without_sums = 0;
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            without_sums += slice.sums.empty() ? slice.bytes : 0;
            if (!broken[slice.shard]) {  // a broken shard is lost as a whole, and reported
                parts.emplace_back(tensor, slice);
                store::add_whole(parts.back(), parts.size() - 1, pieces);
            }
        }
    }
    stream::ProgressClock clock(progress, "verify checkpoint");
    ChunkReader reader(*engine, pool, shards, parts,
                       {.find_all = true, .cache = CachePolicy::kDirect, .priority = priority},
                       clock);
    reader.run(std::move(pieces));
    const std::vector<BadChunks> found = reader.bad();
    for (std::size_t i = 0; i < found.size();) {
        std::size_t end = i + 1;  // chunks that adjoin and are bad for the same reason
        std::uint64_t bytes = found[i].bytes;
        while (end < found.size() && found[end].part == found[i].part &&
               found[end].why == found[i].why && found[end].offset == found[i].offset + bytes) {
            bytes += found[end++].bytes;
        }
        const SlicePart& part = parts[found[i].part];
        problems.push_back({shards.path(part.slice().shard), part.tensor().name,
                            part.slice().begin + found[i].offset,
                            found[i].why.empty()
                                ? fmt::format("checksum mismatch in {} bytes", bytes)
                                : found[i].why});
        i = end;
    }
    verify_index(problems);
    if (std::string wrong = store::wrong_structure(manifest); !wrong.empty()) {
        problems.push_back(
            {store::join(path, store::kManifestName), "", kNoOffset, std::move(wrong)});
    }
    if (without_sums > 0) {
        problems.push_back({path, "", kNoOffset,
                            fmt::format("{} bytes were saved without checksums: that they can be "
                                        "read is all that can be said of them",
                                        without_sums)});
    }
    if (problems.empty() && read_back) {
        read_back->found_good(base::last_name(path));
    }
    return problems;
}

namespace {

template <typename T>
T& there(const std::unique_ptr<T>& impl) {
    if (!impl) {
        wrong_call("it was moved from; use the checkpoint that it was moved to", {});
    }
    return *impl;
}

std::shared_ptr<Engine> given(std::shared_ptr<Engine> engine, const std::string& path) {
    if (!engine) {
        wrong_call("it needs an engine, and this one is null", path);
    }
    return engine;
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<Engine> engine, const FileSystem& files,
                       const std::string& path, CachePolicy cache)
    : impl_(std::make_unique<Impl>(given(std::move(engine), path), files, path, cache)) {}
Checkpoint::Checkpoint(Checkpoint&& other) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept = default;
Checkpoint::~Checkpoint() = default;

const CheckpointInfo& Checkpoint::info() const {
    return there(impl_).info;
}
const std::vector<CheckpointTensor>& Checkpoint::tensors() const {
    return there(impl_).tensors;
}
const std::string& Checkpoint::structure() const {
    return there(impl_).manifest.structure;
}
const std::vector<std::pair<std::string, std::string>>& Checkpoint::metadata() const {
    return there(impl_).metadata;
}

std::uint64_t Checkpoint::read(std::span<const TensorRead> wanted, bool verify,
                               const Progress& progress) {
    return there(impl_).read(wanted, verify, progress);
}

std::vector<CheckpointProblem> Checkpoint::verify(const Progress& progress, Priority priority) {
    return there(impl_).verify(progress, priority);
}

void Checkpoint::report_to(std::shared_ptr<store::ReadBack> read_back) {
    there(impl_).read_back = std::move(read_back);
}

void Checkpoint::close() noexcept {
    if (impl_ != nullptr) {
        impl_->shards.close();
    }
}

}  // namespace penstock
