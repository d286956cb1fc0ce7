// SPDX-License-Identifier: Apache-2.0
// load_file(): a whole state in one block of memory, laid out so that the device writes into it.
#include "base/align.hpp"
#include "base/raise.hpp"
#include "format/unread.hpp"
#include "state/selection.hpp"
#include "state/stored_rows.hpp"
#include "store/read/stored_source.hpp"

#include <penstock/memory.hpp>
#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace penstock {

namespace {

constexpr const char* kLoad = "load";
constexpr std::uint64_t kAlignment = 64;  // of a tensor that has no place of its own in a page

std::unique_ptr<state::Source> opened(const std::shared_ptr<Engine>& engine,
                                      const std::string& path, CachePolicy cache,
                                      const FileSystem& files) {
    if (store::is_store(files, path)) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kLoad,
                                "this is the folder of a store; give the path of one of its "
                                "checkpoints (CheckpointStore::latest() has that of the newest "
                                "whole one)",
                                path));
    }
    return store::open_source(engine, files, path, std::nullopt, cache);
}

void refuse_unread(const state::Source& source) {
    const auto skeleton = state::skeleton_of(source);
    const std::string why = skeleton ? format::why_not_whole(skeleton->tree) : std::string();
    if (!why.empty()) {
        base::raise(base::error(
            ErrorCode::kUnsupported, kLoad,
            fmt::format("{}; names = {{\"*\"}} loads the tensors, and those of objects too", why),
            source.path()));
    }
}

std::vector<state::StoredRow> chosen_rows(const state::Source& source,
                                          const std::vector<std::string>& wanted) {
    std::vector<state::StoredRow> rows = state::rows_of(source, state::skeleton_of(source));
    std::vector<std::string_view> names;
    for (const state::StoredRow& row : rows) {
        names.push_back(row.tensor.name);
    }
    const std::vector<std::string_view> views(wanted.begin(), wanted.end());
    const auto found = state::select(names, views);
    if (!found) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, kLoad, found.error().message, source.path()));
    }
    std::vector<state::StoredRow> out;
    for (const state::Selected& one : *found) {
        out.push_back(rows[one.tensor]);
        if (out.back().view) {
            state::check_view(source, out.back());
        }
    }
    return out;
}

std::vector<state::StoredRow> all_rows(const state::Source& source) {
    std::vector<state::StoredRow> out;
    for (const TensorEntry& t : source.tensors()) {
        out.push_back({t, t.name, {}, out.size()});
    }
    return out;
}

std::uint64_t element_bytes(const TensorEntry& t) {
    const auto type = element_type_named(t.dtype);
    return type ? std::max<std::uint32_t>(bits_of(*type) / 8, 1) : 1;
}

// Places each row in the block; last comes the size of that. A row begins as far into a page as in
// the file, so that those that adjoin there do so here; but for one whose elements are not aligned.
std::vector<std::uint64_t> layout_of(const std::vector<state::StoredRow>& rows) {
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto place = [&](std::size_t i) {
        const TensorStretch& its = rows[i].tensor.stretches[0];
        return std::tuple(its.file, its.offset, i);
    };
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    std::vector<std::uint64_t> out(rows.size() + 1, 0);
    std::uint64_t at = 0;
    for (const std::size_t i : order) {
        const std::uint64_t offset = rows[i].tensor.stretches[0].offset;
        at = !rows[i].view && offset % element_bytes(rows[i].tensor) == 0
                 ? at + (offset - at) % base::kPageBytes
                 : base::align_up(at, kAlignment);
        out[i] = at;
        at += rows[i].tensor.bytes;
    }
    out.back() = at;
    return out;
}

// Fills the block. Tensors that lie in the source as they are wanted go straight into it.
void fill(state::Source& source, const std::vector<state::StoredRow>& rows,
          const std::vector<std::span<std::byte>>& into, MemoryPool& pool,
          const LoadFileOptions& options) {
    std::vector<state::TensorInto> direct;
    std::uint64_t direct_bytes = 0;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        total += into[i].size();
        if (!rows[i].view) {
            direct.push_back({rows[i].index, into[i]});
            direct_bytes += into[i].size();
        }
    }
    std::uint64_t before = 0;
    const auto part = [&](std::uint64_t bytes) -> Progress {
        return [&, bytes](std::uint64_t done, std::uint64_t /*of_part*/) {
            return !options.progress || options.progress(before + std::min(done, bytes), total);
        };
    };
    const stream::ReadFileOptions how{
        .fresh = true, .verify = options.verify, .cache = options.cache};
    source.read_tensors(direct, how, part(direct_bytes));
    before += direct_bytes;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].view) {
            state::read_view(source, rows[i], into[i], pool,
                             {.verify = options.verify, .cache = options.cache},
                             part(into[i].size()));
            before += into[i].size();
        }
    }
}

// Small files are loaded again and again: their memory is kept for the next, as in
// memory/fresh_memory.hpp.
Buffer memory_for(std::uint64_t bytes, MemoryPool& pool) {
    constexpr std::uint64_t kReusedBytesMax = 32 * base::kMiB;
    constexpr std::uint64_t kKeptBytesMax = 64 * base::kMiB;
    static auto* const small = new MemoryPool({.kept_bytes_max = kKeptBytesMax, .touch = false});
    return (bytes <= kReusedBytesMax ? *small : pool).take(std::max<std::uint64_t>(bytes, 1));
}

}  // namespace

LoadedState load_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                      const LoadFileOptions& options, const FileSystem& files) {
    const auto source = opened(engine, path, options.cache, files);
    const bool is_all = options.names.empty();
    if (is_all) {
        refuse_unread(*source);
    }
    std::vector<state::StoredRow> rows =
        is_all ? all_rows(*source) : chosen_rows(*source, options.names);
    const std::vector<std::uint64_t> at = layout_of(rows);
    MemoryPool pool({.kept_bytes_max = 0, .touch = false});
    LoadedState out;
    out.memory = memory_for(at.back(), pool);
    out.state.structure = is_all ? source->structure() : "null";
    out.state.metadata = source->metadata();
    std::vector<std::span<std::byte>> into;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        into.push_back(out.memory.bytes().subspan(at[i], rows[i].tensor.bytes));
    }
    fill(*source, rows, into, pool, options);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        TensorEntry& t = rows[i].tensor;
        out.state.tensors.push_back(
            {std::move(t.name), std::move(t.dtype), std::move(t.shape), into[i]});
    }
    return out;
}

TensorStream stream_of(Checkpoint& checkpoint) {
    struct Reading {
        std::size_t next = 0;
        MemoryPool pool{{.kept_bytes_max = 0, .touch = false}};
        Buffer memory;  // of the tensor that was given last
    };
    TensorStream stream;
    stream.structure = checkpoint.structure();
    stream.like.emplace();
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
        stream.like->push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    }
    stream.next = [&checkpoint,
                   reading = std::make_shared<Reading>()]() -> std::optional<StateTensor> {
        Reading& r = *reading;
        if (r.next == checkpoint.tensors().size()) {
            r.memory = {};
            return std::nullopt;
        }
        const CheckpointTensor& tensor = checkpoint.tensors()[r.next++];
        if (r.memory.size() < tensor.bytes) {
            r.memory = {};
            r.memory = r.pool.take(tensor.bytes);
        }
        const TensorRead wanted{.name = tensor.name, .into = r.memory.bytes().first(tensor.bytes)};
        if (tensor.bytes != 0) {
            checkpoint.read({&wanted, 1});
        }
        StateTensor given{tensor.name, tensor.dtype, tensor.shape, wanted.into};
        given.is_copy = true;
        return given;
    };
    return stream;
}

}  // namespace penstock
