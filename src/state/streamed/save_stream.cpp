// SPDX-License-Identifier: Apache-2.0
// save_file() of tensors that come one after another: which writer takes them.
#include "base/handles.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "state/state_views.hpp"
#include "state/streamed/arrivals.hpp"
#include "state/streamed/streamed_file.hpp"
#include "state/streamed/streamed_index.hpp"
#include "state/structure/structure.hpp"
#include "state/writing/state_image.hpp"

#include <penstock/state_file.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

[[noreturn]] void refuse_stream(std::string_view why, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "save", why, path));
}

// Gives what was announced, with the sizes that its types and shapes have.
State announced(const TensorStream& stream, bool for_torch) {
    State state;
    state.structure = stream.structure;
    state.metadata = stream.metadata;
    for (const StateTensor& given : *stream.like) {
        StateTensor tensor = given;
        const auto* const row = tensor::find_row([&](const auto& r) {
            return r.name == given.dtype && (for_torch ? r.torch[0] != 0 : r.in_safetensors);
        });
        const auto bytes = row == nullptr ? std::nullopt : bytes_of(row->type, given.shape);
        if (!bytes) {
            refuse_tensor(given, "save",
                          row == nullptr
                              ? fmt::format("the format has no type {}", format::shown(given.dtype))
                              : "its shape is no possible size");
        }
        tensor.data = {nullptr, *bytes};
        state.tensors.push_back(std::move(tensor));
    }
    return state;
}

// That the structure says no more than the names do.
void check_flat(const State& state, const std::string& path) {
    std::vector<StoredTensor> stored;
    for (const StateTensor& t : state.tensors) {
        stored.push_back({t.name, t.dtype, t.shape, t.data.bytes});
    }
    const Skeleton skeleton = skeleton_of(state.structure, stored);
    const format::ValueTree& tree = skeleton.tree;
    const format::Value& root = tree.at(tree.root);
    bool flat =
        root.kind == format::ValueKind::kDict || root.kind == format::ValueKind::kOrderedDict;
    std::unordered_set<std::string_view> names;
    for (std::size_t i = 0; flat && i < root.items.size(); i += 2) {
        const format::Value& key = tree.at(root.items[i]);
        const format::Value& value = tree.at(root.items[i + 1]);
        flat = key.kind == format::ValueKind::kString && value.kind == format::ValueKind::kTensor;
        if (flat) {
            const auto& t = tree.tensors[static_cast<std::size_t>(value.integer)];
            flat = skeleton.sources[t.storage] == key.text && is_plain(t) && t.offset == 0 &&
                   view_bytes(t) == tree.storages[t.storage].bytes && names.insert(key.text).second;
        }
    }
    if (!flat || names.size() != state.tensors.size()) {
        refuse_stream(
            "a .safetensors holds tensors by name, and this state holds more, or tensors that "
            "share "
            "memory; save as .pt, or use 'penstock checkpoint convert --tensors-only'",
            path);
    }
}

void save_known(Engine& engine, const FileSystem& files, const std::string& path,
                StateFormat format, const TensorStream& stream, Arrivals& arrivals,
                const SaveFileOptions& options) {
    const State state = announced(stream, format == StateFormat::kTorch);
    std::vector<std::size_t> payload_of(state.tensors.size(), kNoPayload);
    if (format == StateFormat::kTorch) {
        TorchImage made = torch_image(state, path);
        for (std::size_t i = 0; i < made.tensors.size(); ++i) {
            payload_of[made.tensors[i]] = i;
        }
        save_placed(engine, files, path, made.image, payload_of, arrivals, options);
        return;
    }
    NamedTensors named = named_tensors(state);
    for (std::size_t i = 0; i < payload_of.size(); ++i) {
        payload_of[i] = i;
    }
    FileImage image = FileImage::safetensors(std::move(named.tensors), std::move(named.metadata),
                                             std::move(named.payloads), options.checksums);
    save_placed(engine, files, path, image, payload_of, arrivals, options);
}

void check_stream(const TensorStream& stream, StateFormat format, const std::string& path) {
    const bool has_structure = stream.structure != "null";
    if (format == StateFormat::kTorch && !stream.metadata.empty()) {
        refuse_stream("a .pt has no metadata; put it into the structure, or save as .safetensors",
                      path);
    }
    if (!stream.like && (format == StateFormat::kSafetensors || has_structure)) {
        refuse_stream(
            has_structure
                ? "the tensors of a structure must be announced (like) before the first one comes"
                : "the header of a .safetensors is at its beginning, so its tensors must be "
                  "announced (like) before the first one comes; announce them, or save as .pt, or "
                  "as an index (*.safetensors.index.json)",
            path);
    }
    if (stream.like) {
        const State state = announced(stream, format == StateFormat::kTorch);
        if (format != StateFormat::kTorch && has_structure) {
            check_flat(state, path);
        }
    }
}

}  // namespace

}  // namespace penstock::state

namespace penstock {

void save_file(const std::shared_ptr<Engine>& engine, const std::string& path,
               const TensorStream& tensors, const SaveFileOptions& options,
               const FileSystem& files) {
    static_cast<void>(base::engine_given(engine, "save"));
    const StateFormat format = state::format_of(path, options.format);
    state::check_stream(tensors, format, path);
    state::Arrivals arrivals(tensors, options, format == StateFormat::kTorch, path);
    if (format == StateFormat::kSafetensors || tensors.structure != "null") {
        if (format != StateFormat::kIndex) {
            state::save_known(*engine, files, path, format, tensors, arrivals, options);
            return;
        }
    }
    try {
        if (format == StateFormat::kTorch) {
            state::save_appended(*engine, files, path, arrivals, options);
            return;
        }
        auto metadata = tensors.metadata;
        if (metadata.empty()) {
            metadata.emplace_back("format", "pt");  // which transformers looks for
        }
        state::save_streamed_index(*engine, files, path, arrivals, metadata, options);
    } catch (const Error&) {
        state::rethrow_full(path);
    }
}

}  // namespace penstock
