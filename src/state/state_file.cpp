// SPDX-License-Identifier: Apache-2.0
#include "base/handles.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/shard_index.hpp"
#include "format/torch_types.hpp"
#include "state/box_runs.hpp"
#include "state/index/index_writer.hpp"
#include "state/state_views.hpp"
#include "state/stored_rows.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/state_image.hpp"

#include <penstock/memory.hpp>
#include <penstock/state_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr const char* kSave = "save";
constexpr const char* kRead = "read";
constexpr std::size_t kPartsMax = 65536;  // that are planned at a time

[[noreturn]] void wrong(const char* operation, std::string_view why, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, operation, why, path));
}

}  // namespace

void save_file(const std::shared_ptr<Engine>& engine, const std::string& path, const State& state,
               const SaveFileOptions& options, const FileSystem& files) {
    static_cast<void>(base::engine_given(engine, "save"));
    const StateFormat format = state::check_state(state, path, options.format);
    state::wait_for_streams(state.tensors, options.streams);
    if (format == StateFormat::kIndex) {
        state::save_index(*engine, files, path, state::named_tensors(state),
                          {.shard_bytes = std::max<std::uint64_t>(options.shard_bytes, 1),
                           .checksums = options.checksums,
                           .sync = options.sync,
                           .progress = options.progress,
                           .watch = {options.changing, options.look},
                           .note = options.note});
        return;
    }
    if (format == StateFormat::kTorch) {
        state::TorchImage made = state::torch_image(state, path);
        state::save_file(
            *engine, files, path, made.image, options.progress, options.sync,
            {options.changing, stream::renumbered(options.look, std::move(made.tensors))});
        return;
    }
    state::NamedTensors named = state::named_tensors(state);
    auto image = state::FileImage::safetensors(std::move(named.tensors), std::move(named.metadata),
                                               std::move(named.payloads), options.checksums);
    image.set_copies(std::move(named.copies));
    state::save_file(*engine, files, path, image, options.progress, options.sync,
                     {options.changing, options.look});
}

struct StateFile::Impl {
    Impl(const std::shared_ptr<Engine>& engine, const std::string& path, const FileSystem& files)
        : source(state::open_source(engine, files, path)),
          structure(source->structure()),
          table(source->table()) {
        table.tensors.clear();
        rows = state::rows_of(*source, state::skeleton_of(*source));
        for (std::size_t i = 0; i < rows.size(); ++i) {
            table.tensors.push_back(rows[i].tensor);
        }
        for (std::size_t i = 0; i < rows.size(); ++i) {
            by_name.emplace(table.tensors[i].name, i);
        }
    }

    [[nodiscard]] std::vector<std::string_view> names() const {
        std::vector<std::string_view> out;
        for (const TensorEntry& t : table.tensors) {
            out.push_back(t.name);
        }
        return out;
    }

    [[nodiscard]] std::size_t named(const std::string& name) const {
        const auto found = by_name.find(name);
        if (found == by_name.end()) {
            wrong(kRead, fmt::format("it has {}", state::lacking(name, names())), table.path);
        }
        return found->second;
    }

    [[nodiscard]] state::FileSource& open_source() const {
        if (!source) {
            base::raise(
                base::error(ErrorCode::kClosed, kRead, "it is closed; open it again", table.path));
        }
        return *source;
    }

    std::unique_ptr<state::FileSource> source;  // until it is closed
    CachePolicy cache = CachePolicy::kAuto;
    std::string structure;
    TensorTable table;
    std::vector<state::StoredRow> rows;
    std::unordered_map<std::string_view, std::size_t> by_name;
};

namespace {

// One read(): runs of boxes, gathered by file, and tensors with strides, which come whole.
class Reading {
public:
    Reading(state::FileSource& source, const std::string& path, const stream::ReadFileOptions& how,
            const Progress& progress)
        : source_(source), path_(path), how_(how), progress_(progress) {}

    void add(const TensorRead& wanted, const state::StoredRow& row) {
        const state::StoredShape shape{row.tensor.name, row.tensor.dtype, row.tensor.shape};
        const state::TensorBox box = state::checked_box(wanted, shape, kRead, path_);
        if (box.elements() == 0) {
            return;
        }
        auto runs = *state::BoxRuns::of(shape, box, wanted.into, wanted.strides_bytes, kRead);
        if (wanted.into.kind != MemoryKind::kHost &&
            (runs.runs() > 1 || !row.tensor.strides.empty())) {
            bounces_.emplace_back(pool_.take(wanted.into.bytes), wanted.into);
            runs = *state::BoxRuns::of(shape, box, bounces_.back().first.bytes(), {}, kRead);
        }
        boxes_.push_back({&row, std::move(runs)});
        total_bytes_ += boxes_.back().runs.runs() * boxes_.back().runs.run_bytes();
        if (!row.tensor.strides.empty()) {
            state::check_view(source_, row);
        }
    }

    std::uint64_t run() {
        for (const Box& box : boxes_) {
            if (box.row->tensor.strides.empty()) {
                add_runs(box);
            }
        }
        flush();
        for (const Box& box : boxes_) {
            if (!box.row->tensor.strides.empty()) {
                read_view(box);
            }
        }
        for (const auto& [here, there] : bounces_) {
            const MemoryCopy copy{there, here.bytes()};
            copy_memory({&copy, 1});
        }
        return total_bytes_;
    }

private:
    struct Box {
        const state::StoredRow* row;
        state::BoxRuns runs;
    };
    void add_runs(const Box& box) {
        const std::size_t tensor = box.row->index;
        const std::uint64_t first =
            box.row->tensor.stretches[0].offset - source_.tensors()[tensor].stretches[0].offset;
        for (std::uint64_t i = 0; i < box.runs.runs(); ++i) {
            parts_.push_back({tensor, first + box.runs.source(i), box.runs.run_bytes()});
            into_.push_back(box.runs.place(box.runs.target(i), box.runs.run_bytes()));
            if (parts_.size() == kPartsMax) {
                flush();
            }
        }
    }

    void flush() {
        std::uint64_t bytes = 0;
        for (const auto& part : parts_) {
            bytes += part.bytes;
        }
        source_.read_parts(std::move(parts_), into_, how_, reported(bytes));
        done_bytes_ += bytes;
        parts_.clear();
        into_.clear();
    }

    void read_view(const Box& box) {
        const std::uint64_t view_bytes = box.row->tensor.bytes;
        const Buffer view = pool_.take(std::max<std::uint64_t>(view_bytes, 1));
        const std::uint64_t bytes = box.runs.runs() * box.runs.run_bytes();
        state::read_view(source_, *box.row, view.bytes().first(view_bytes), pool_, how_,
                         reported(bytes));
        box.runs.copy_out(0, view.bytes().first(view_bytes));
        done_bytes_ += bytes;
    }

    // Progress of a part: of a tensor with strides more is read than is wanted.
    [[nodiscard]] Progress reported(std::uint64_t bytes) const {
        if (!progress_) {
            return {};
        }
        return [this, bytes](std::uint64_t done, std::uint64_t /*of_part*/) {
            return progress_(done_bytes_ + std::min(done, bytes), total_bytes_);
        };
    }

    state::FileSource& source_;
    const std::string& path_;
    const stream::ReadFileOptions how_;
    const Progress& progress_;
    MemoryPool pool_;
    std::vector<Box> boxes_;
    std::vector<state::TensorReader::ItemRange> parts_;
    std::vector<Memory> into_;
    /// Boxes that are no single stretch of the file, on their way to a GPU.
    std::vector<std::pair<Buffer, Memory>> bounces_;
    std::uint64_t done_bytes_ = 0;
    std::uint64_t total_bytes_ = 0;
};

template <typename T>
T& there(const std::unique_ptr<T>& impl) {
    if (!impl) {
        wrong("state file", "it was moved from; use the one that it was moved to", {});
    }
    return *impl;
}

}  // namespace

StateFile::StateFile(std::shared_ptr<Engine> engine, const std::string& path,
                     const FileSystem& files, CachePolicy cache)
    : impl_(std::make_unique<Impl>(engine, path, files)) {
    impl_->cache = cache;
}
StateFile::StateFile(StateFile&& other) noexcept = default;
StateFile& StateFile::operator=(StateFile&& other) noexcept = default;
StateFile::~StateFile() = default;

const TensorTable& StateFile::table() const {
    return there(impl_).table;
}

const std::string& StateFile::structure() const {
    return there(impl_).structure;
}

std::vector<std::string> StateFile::select(std::span<const std::string> wanted) const {
    const Impl& impl = there(impl_);
    const std::vector<std::string_view> views(wanted.begin(), wanted.end());
    auto found = state::select(impl.names(), views);
    if (!found) {
        wrong("select", found.error().message, impl.table.path);
    }
    std::vector<std::string> out;
    for (const state::Selected& one : *found) {
        out.push_back(impl.table.tensors[one.tensor].name);
    }
    return out;
}

std::uint64_t StateFile::read(std::span<const TensorRead> wanted, bool verify,
                              const Progress& progress) {
    const Impl& impl = there(impl_);
    Reading reading(impl.open_source(), impl.table.path, {.verify = verify, .cache = impl.cache},
                    progress);
    for (const TensorRead& one : wanted) {
        reading.add(one, impl.rows[impl.named(one.name)]);
    }
    return reading.run();
}

VerifiedFile StateFile::verify(const Progress& progress) {
    return there(impl_).open_source().verify(progress);
}

void StateFile::close() noexcept {
    if (impl_) {
        impl_->source.reset();
    }
}

}  // namespace penstock
