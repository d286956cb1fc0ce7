// SPDX-License-Identifier: Apache-2.0
// Converts one form into another: all tensors, verified, are written by the writer of the form.
#include "base/align.hpp"
#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "cli/checkpoint/command.hpp"
#include "cli/checkpoint/json.hpp"
#include "cli/checkpoint/mapped_source.hpp"
#include "cli/checkpoint/one_by_one.hpp"
#include "cli/checkpoint/part_source.hpp"
#include "format/fault.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/unread.hpp"
#include "report/json_output.hpp"
#include "report/output_file.hpp"
#include "report/progress.hpp"
#include "state/index/index_writer.hpp"
#include "state/source.hpp"
#include "state/state_views.hpp"
#include "state/stored_rows.hpp"
#include "state/structure/structure.hpp"
#include "state/update/checkpoint_folder.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/state_image.hpp"
#include "store/keep/store_folder.hpp"
#include "store/read/stored_source.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

namespace penstock::cli {

namespace {

using format::ValueKind;
using state::FileImage;

constexpr std::uint64_t kMemoryAlignment = 4096;
constexpr std::string_view kStorageSuffix = ".storage";  // which structure.hpp gives

[[noreturn]] void cannot(const std::string& target, std::string_view what) {
    throw Error(ErrorCode::kInvalidArgument, 0, "convert", target, kNoOffset,
                fmt::format("{} cannot hold {}", target, what));
}

std::uint64_t memory_that_may_be_taken(const CheckpointOptions& options) {
    return options.memory ? *options.memory : available_memory_bytes();
}

enum class Form : std::uint8_t { kTorch, kSafetensors, kIndex, kStore };

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> ends) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](std::string_view end) { return name.ends_with(end); });
}

Form form_named(const std::string& target) {
    return ends_with_any(target, {".pt", ".pth", ".bin", ".ckpt"}) ? Form::kTorch
           : target.ends_with(".safetensors")                      ? Form::kSafetensors
           : target.ends_with(format::kIndexSuffix)                ? Form::kIndex
                                                                   : Form::kStore;
}

// Checks options that belong to another form, and names that belong to no form.
void check_target(const std::string& target, Form form, const CheckpointOptions& options) {
    const auto refuse = [&target](const std::string& why) {
        throw Error(ErrorCode::kInvalidArgument, 0, "convert", target, kNoOffset,
                    fmt::format("{}: {}", target, why));
    };
    if (form == Form::kStore && target.ends_with(".json")) {
        refuse(fmt::format("the name of an index ends in {}", format::kIndexSuffix));
    }
    if (form != Form::kIndex && options.shard_bytes) {
        refuse(fmt::format("--shard-bytes is for an index, NAME{}", format::kIndexSuffix));
    }
    if (form != Form::kStore && !options.force && store::is_there(FileSystem::any(), target)) {
        refuse("it is there already; --force replaces it");
    }
    const std::string folder = form == Form::kStore ? target : base::folder_of(target);
    if (state::is_checkpoint_folder(FileSystem::any(), folder)) {
        refuse(
            fmt::format("'{}' is a checkpoint of a store, which alone writes there; give a target "
                        "in another folder",
                        folder));
    }
}

// Refuses to lose objects that are not read without a word.
void refuse_unread(const state::Source& source, const std::string& target,
                   const CheckpointOptions& options) {
    const auto skeleton = options.tensors_only ? std::nullopt : state::skeleton_of(source);
    const std::string why = skeleton ? format::why_not_whole(skeleton->tree) : std::string();
    if (!why.empty()) {
        throw Error(ErrorCode::kUnsupported, 0, "convert", source.path(), kNoOffset,
                    fmt::format("{}: {}; --tensors-only converts the tensors to {}, and --names a "
                                "part of the state",
                                source.path(), why, target));
    }
}

class Conversion {
public:
    /// step: of the source.
    Conversion(std::shared_ptr<Engine> engine, state::Source& source, std::uint64_t step,
               const CheckpointOptions& options)
        : engine_(std::move(engine)), source_(source), step_(step), options_(options) {}

    /// Loads all tensors, verified: into memory, or mapped when there is not enough of it. Tensors
    /// in slices cannot be mapped: they are read one at a time when a file is written.
    void load(Form form, report::Progress& shown) {
        std::uint64_t total = 0;
        for (const TensorEntry& t : source_.tensors()) {
            total += base::align_up(t.bytes, kMemoryAlignment);
        }
        const bool fits = total <= memory_that_may_be_taken(options_);
        one_by_one_ = !fits && form != Form::kStore && has_slices(source_) && is_as_stored();
        if (one_by_one_) {
            return;
        }
        if (options_.verify && !(fits && source_.checks_reads())) {
            verify(shown);
        }
        if (fits) {
            hold(total, shown);
        } else {
            mapped_.emplace(source_);
            data_ = mapped_->tensors();
        }
        for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
            by_name_.emplace(source_.tensors()[i].name, i);
        }
    }

    [[nodiscard]] bool is_held() const { return !mapped_ && !one_by_one_; }

    void write(const std::string& target, Form form, report::Progress& shown) {
        if (one_by_one_) {
            return to_file(target, form, shown);
        }
        try {
            switch (form) {
                case Form::kTorch:
                    return to_torch(target, shown);
                case Form::kSafetensors:
                    return to_safetensors(target, shown);
                case Form::kIndex:
                    return to_index(target, shown);
                case Form::kStore:
                    return to_store(target, shown);
            }
        } catch (const Error& error) {
            if (mapped_) {
                mapped_->explain(error);
            }
            throw;
        }
    }

    [[nodiscard]] const std::string& written() const { return written_; }

private:
    // Whether the target keeps the structure, and with it the layout of tensors in memory.
    [[nodiscard]] bool keeps_structure() const {
        return !options_.tensors_only && source_.structure() != "null";
    }

    // Whether the tensors of the state are the stored ones; a structure that is kept has them.
    [[nodiscard]] bool is_as_stored() const {
        const auto skeleton = keeps_structure() ? std::nullopt : state::skeleton_of(source_);
        return !skeleton ||
               std::ranges::all_of(skeleton->tree.tensors, [&](const format::TensorValue& t) {
                   const auto stored = std::ranges::find(
                       source_.tensors(), skeleton->sources[t.storage], &TensorEntry::name);
                   return stored != source_.tensors().end() && is_stored(t, *stored);
               });
    }

    void to_file(const std::string& target, Form form, report::Progress& shown) {
        TensorStream stream =
            one_by_one(source_, keeps_structure(), memory_that_may_be_taken(options_));
        if (form != Form::kTorch) {
            stream.metadata = source_.metadata();
        }
        save_file(engine_, target, stream,
                  {.shard_bytes = options_.shard_bytes.value_or(state::kShardBytes),
                   .progress = written_by(shown)});
    }

    void to_torch(const std::string& target, report::Progress& shown) {
        FileImage image =
            state::torch_image(state_of(keeps_structure() ? as_stored() : alone()), target).image;
        state::save_file(*engine_, FileSystem::any(), target, image, written_by(shown));
    }

    void to_safetensors(const std::string& target, report::Progress& shown) {
        state::NamedTensors out = named(target);
        FileImage image = FileImage::safetensors(std::move(out.tensors), std::move(out.metadata),
                                                 std::move(out.payloads));
        state::save_file(*engine_, FileSystem::any(), target, image, written_by(shown));
    }

    void to_index(const std::string& target, report::Progress& shown) {
        state::save_index(*engine_, FileSystem::any(), target, named(target),
                          {.shard_bytes = options_.shard_bytes.value_or(state::kShardBytes),
                           .progress = written_by(shown)});
    }

    state::NamedTensors named(const std::string& target) {
        return state::named_tensors(state_of(keeps_structure() ? flat(target) : alone()));
    }

    [[nodiscard]] State state_of(std::vector<StateTensor> tensors) const {
        State state;
        state.tensors = std::move(tensors);
        state.structure = keeps_structure() ? source_.structure() : "null";
        state.metadata = source_.metadata();
        return state;
    }

    void to_store(const std::string& target, report::Progress& shown) {
        const State state = state_of(keeps_structure() ? as_stored() : alone());
        CheckpointStore store(engine_, FileSystem::any(), {target});
        const std::uint64_t step = options_.step_given ? options_.step : step_;
        written_ = store.save(state, {.step = step, .progress = written_by(shown)}).path;
    }

    void verify(report::Progress& shown) {
        const state::Verified found = source_.verify(told_by(shown, "verified"));
        if (!found.problems.empty()) {
            const CheckpointProblem& first = found.problems.front();
            throw Error(
                ErrorCode::kDamaged, 0, "convert", first.path, first.offset,
                fmt::format("{}{}: {}; penstock checkpoint verify says more, --no-verify converts "
                            "it all the same",
                            first.path,
                            first.tensor.empty() ? "" : ", tensor " + format::shown(first.tensor),
                            first.message));
        }
    }

    void hold(std::uint64_t total, report::Progress& shown) {
        memory_ = pool_.take(std::max(total, kMemoryAlignment));
        taken_ = memory_.size();
        std::vector<state::TensorInto> wanted;
        std::uint64_t at = 0;
        for (const TensorEntry& t : source_.tensors()) {
            wanted.push_back({wanted.size(), memory_.bytes().subspan(at, t.bytes)});
            data_.emplace_back(wanted.back().into);
            at += base::align_up(t.bytes, kMemoryAlignment);
        }
        source_.read_tensors(wanted, {.verify = source_.checks_reads()}, told_by(shown, "read"));
    }

    [[nodiscard]] penstock::Progress written_by(report::Progress& shown) const {
        return [this, tell = told_by(shown, "written")](std::uint64_t done, std::uint64_t total) {
            if (mapped_) {
                mapped_->check();
            }
            return tell(done, total);
        };
    }

    [[nodiscard]] StateTensor stored(std::size_t index) const {
        const TensorEntry& t = source_.tensors()[index];
        return {t.name, t.dtype, t.shape, data_[index]};
    }

    [[nodiscard]] std::vector<StateTensor> as_stored() const {
        std::vector<StateTensor> out;
        for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
            out.push_back(stored(i));
        }
        return out;
    }

    [[nodiscard]] bool is_stored(const format::TensorValue& t, std::size_t index) const {
        return is_stored(t, source_.tensors()[index]);
    }
    // Whether the stored tensor is this one, element for element.
    [[nodiscard]] static bool is_stored(const format::TensorValue& t, const TensorEntry& stored) {
        return format::safetensors::type_named(stored.dtype) == t.type && t.offset == 0 &&
               state::is_plain(t) && state::view_bytes(t) == stored.bytes;
    }

    // Its elements contiguously, in memory, even if the other tensors are not held.
    std::span<const std::byte> gathered(const format::TensorValue& t, std::size_t index,
                                        const std::string& name) {
        const std::uint64_t bytes = state::view_bytes(t);
        const std::uint64_t may = memory_that_may_be_taken(options_);
        const std::uint64_t taken = options_.memory ? taken_ : 0;
        if (taken > may || bytes > may - taken) {
            throw Error(ErrorCode::kOutOfMemory, 0, "convert", source_.path(), kNoOffset,
                        fmt::format("{}: tensor {} is not contiguous in memory; a contiguous copy "
                                    "takes {} bytes, and {} may be taken; give more with --memory, "
                                    "or convert it on a machine with more",
                                    source_.path(), format::shown(name), bytes,
                                    may - std::min(may, taken)));
        }
        Buffer& memory = gathered_.emplace_back(pool_.take(std::max(bytes, kMemoryAlignment)));
        taken_ += bytes;
        state::gather(t, data_[index], memory.bytes().first(bytes));
        if (mapped_) {
            mapped_->check();
        }
        return memory.bytes().first(bytes);
    }

    // The tensors only: those that are alone in their memory as they are in the state, others by
    // their stored memory.
    std::vector<StateTensor> alone() {
        std::vector<StateTensor> out = as_stored();
        const std::optional<state::Skeleton> skeleton = state::skeleton_of(source_);
        if (!skeleton) {
            return out;
        }
        std::vector<const format::TensorValue*> seen(out.size(), nullptr);
        std::vector<bool> several(out.size(), false);
        for (const format::TensorValue& t : skeleton->tree.tensors) {
            const std::size_t index = by_name_.at(skeleton->sources[t.storage]);
            several[index] =
                several[index] || (seen[index] != nullptr && !looks_alike(*seen[index], t));
            seen[index] = &t;
        }
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (seen[i] == nullptr || several[i] || is_stored(*seen[i], i) ||
                !state::why_not_gathered(*seen[i], data_[i].size()).empty()) {
                continue;
            }
            const std::string name = out[i].name.substr(0, out[i].name.rfind(kStorageSuffix));
            if (!by_name_.contains(name)) {
                out[i].name = name;
            }
            out[i].dtype = format::safetensors::name_of(seen[i]->type);
            out[i].shape = seen[i]->shape;
            out[i].data = gathered(*seen[i], i, out[i].name);
        }
        return out;
    }

    static bool looks_alike(const format::TensorValue& a, const format::TensorValue& b) {
        return a.type == b.type && a.offset == b.offset && a.shape == b.shape &&
               a.strides == b.strides && a.conjugated == b.conjugated && a.negated == b.negated;
    }

    // The state as names and tensors; an error if it holds anything else.
    std::vector<StateTensor> flat(const std::string& target) {
        const std::optional<state::Skeleton> skeleton = state::skeleton_of(source_);
        if (!skeleton) {
            cannot(target,
                   "JSON that Penstock did not write; --tensors-only saves the tensors alone");
        }
        const format::ValueTree& tree = skeleton->tree;
        const format::Value& root = tree.at(tree.root);
        if (root.kind != ValueKind::kDict && root.kind != ValueKind::kOrderedDict) {
            cannot(target,
                   "a state that is not a dict of tensors; --tensors-only saves these alone");
        }
        std::vector<StateTensor> out;
        std::unordered_map<std::uint32_t, std::string> places;  // one per storage
        for (std::size_t i = 0; i < root.items.size(); i += 2) {
            std::string place = "state";
            format::append_key(place, tree, root.items[i]);
            const format::Value& key = tree.at(root.items[i]);
            const format::Value& value = tree.at(root.items[i + 1]);
            if (key.kind != ValueKind::kString || value.kind != ValueKind::kTensor) {
                cannot(target, place +
                                   ", which is not a tensor by name; --tensors-only saves "
                                   "the tensors alone, named by their place in the state");
            }
            if (value.attributes != format::kNoValue) {
                cannot(target, place +
                                   ", which is a tensor with attributes; --tensors-only saves it "
                                   "without them");
            }
            const auto& t = tree.tensors[static_cast<std::size_t>(value.integer)];
            const auto [first, fresh] = places.try_emplace(t.storage, place);
            if (!fresh) {
                cannot(target, fmt::format("{}, which shares its memory with {}; --tensors-only "
                                           "saves that memory once",
                                           place, first->second));
            }
            out.push_back(
                one(target, place, key.text, t, by_name_.at(skeleton->sources[t.storage])));
        }
        return out;
    }

    StateTensor one(const std::string& target, const std::string& place, const std::string& name,
                    const format::TensorValue& t, std::size_t index) {
        StateTensor out = stored(index);
        out.name = name;
        if (is_stored(t, index)) {
            return out;
        }
        const std::string why = state::why_not_gathered(t, data_[index].size());
        if (!why.empty()) {
            cannot(target, fmt::format("{}, which {}; --tensors-only saves the memory behind it",
                                       place, why));
        }
        out.dtype = format::safetensors::name_of(t.type);
        out.shape = t.shape;
        out.data = gathered(t, index, out.name);
        return out;
    }

    std::shared_ptr<Engine> engine_;
    state::Source& source_;
    std::uint64_t step_;
    const CheckpointOptions& options_;
    MemoryPool pool_;
    Buffer memory_;
    std::vector<Buffer> gathered_;
    std::uint64_t taken_ = 0;  // bytes of memory, for all of these
    std::optional<MappedSource> mapped_;
    bool one_by_one_ = false;
    std::vector<std::span<const std::byte>> data_;  // one per tensor
    std::unordered_map<std::string_view, std::size_t> by_name_;
    std::string written_;
};

}  // namespace

int checkpoint_convert(const CheckpointOptions& options, std::span<const std::string> command) {
    report::refuse_same_output("--json", options.json, "the new file", options.other);
    report::JsonOutput json("--json", options.json);
    const std::string& target = options.other;
    const Form form = form_named(target);
    check_target(target, form, options);
    const auto engine = new_engine(options);
    const auto opened =
        store::open_source(engine, FileSystem::any(), options.path, options.generation);
    const auto* const stored = dynamic_cast<const store::StoredSource*>(opened.get());
    std::optional<PartSource> part;
    if (!options.names.empty()) {
        part.emplace(*opened, options.names);
    }
    state::Source* const source = part ? &*part : opened.get();
    refuse_unread(*source, target, options);
    report::Progress shown;
    Conversion conversion(engine, *source, stored != nullptr ? stored->info().step : 0, options);
    conversion.load(form, shown);
    conversion.write(target, form, shown);
    shown.clear();
    const std::string& made = conversion.written().empty() ? target : conversion.written();
    fmt::print(json.text_stream(), "{}: {}, {}, from {}{}\n", made,
               counted(source->tensors().size(), "tensor"), base::format_bytes(source->bytes()),
               source->path(), conversion.is_held() ? "" : ", which did not fit into memory");
    json.write({{"command", words_of(command)},
                {"source", source->path()},
                {"target", made},
                {"tensors", source->tensors().size()},
                {"tensor_bytes", source->bytes()},
                {"held_in_memory", conversion.is_held()}});
    return 0;
}

}  // namespace penstock::cli
