// SPDX-License-Identifier: Apache-2.0
#include "state/writing/state_image.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/shard_index.hpp"
#include "stream/checksum.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

constexpr const char* kSave = "save";

[[noreturn]] void refuse_format(std::string_view why, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kSave, why, path));
}

}  // namespace

StateFormat format_of(const std::string& path, StateFormat given) {
    const bool is_index = path.ends_with(format::kIndexSuffix);
    if (given == StateFormat::kIndex && !is_index) {
        refuse_format(fmt::format("the name of an index ends in {}, which readers know it by",
                                  format::kIndexSuffix),
                      path);
    }
    if (given > StateFormat::kIndex) {
        refuse_format("there is no such format; give kBySuffix, kTorch, kSafetensors or kIndex",
                      path);
    }
    if (given != StateFormat::kBySuffix) {
        return given;
    }
    if (is_index) {
        return StateFormat::kIndex;
    }
    if (path.ends_with(".safetensors")) {
        return StateFormat::kSafetensors;
    }
    if (path.ends_with(".json")) {
        refuse_format(
            fmt::format("readers take what ends in .json for an index of shards; end it in {} for "
                        "that, in .safetensors for one file of tensors, or in .pt",
                        format::kIndexSuffix),
            path);
    }
    return StateFormat::kTorch;
}

void refuse_tensor(const StateTensor& tensor, const char* operation, std::string_view why) {
    base::raise(base::error(ErrorCode::kInvalidArgument, operation,
                            fmt::format("tensor {}: {}", format::shown(tensor.name), why)));
}

namespace {

// Asks the driver before anything is written: memory that was freed would be found in the middle.
void check_device_memory(const StateTensor& tensor, const char* operation) {
    try {
        const ConstMemory there =
            device_memory(const_cast<std::byte*>(tensor.data.data), tensor.data.bytes);
        if (tensor.data.bytes == 0 ||
            (there.kind == tensor.data.kind && there.device == tensor.data.device)) {
            return;
        }
    } catch (const Error& error) {
        throw Error(
            error.reason(), error.system_errno(), operation, "", kNoOffset,
            fmt::format("{}: tensor {}: {}", operation, format::shown(tensor.name), error.what()));
    }
    refuse_tensor(tensor, operation,
                  fmt::format("its memory was given as that of GPU {}, and the driver says that it "
                              "is another's; give what device_memory() returns",
                              tensor.data.device));
}

}  // namespace

tensor::ElementType check_tensor(const StateTensor& given, const char* operation, bool for_torch) {
    namespace safetensors = format::safetensors;
    if (given.data.data == nullptr && given.data.bytes != 0) {
        refuse_tensor(given, operation,
                      fmt::format("{} bytes have no memory (null pointer)", given.data.bytes));
    }
    if (given.data.kind != MemoryKind::kHost) {
        check_device_memory(given, operation);
    }
    const auto* const row = tensor::find_row([&](const tensor::ElementTypeRow& r) {
        return r.name == given.dtype && (for_torch ? r.torch[0] != 0 : r.in_safetensors);
    });
    if (row == nullptr) {
        refuse_tensor(
            given, operation,
            fmt::format("{} has no type {}; {}", for_torch ? "torch" : "safetensors",
                        format::shown(given.dtype),
                        for_torch ? "save it as .safetensors (types have the names that name_of() "
                                    "gives: F32, C128)"
                                  : "convert it, save its bytes as U8, or save as .pt"));
    }
    if (given.shape.size() > safetensors::kRankMax) {
        refuse_tensor(given, operation,
                      fmt::format("it has {} dimensions; {} are the most", given.shape.size(),
                                  safetensors::kRankMax));
    }
    const auto bytes = bytes_of(row->type, given.shape);
    if (!bytes || *bytes != given.data.bytes) {
        refuse_tensor(
            given, operation,
            fmt::format("[{}] of {} is {} bytes, and {} were given", fmt::join(given.shape, ", "),
                        given.dtype, bytes ? fmt::to_string(*bytes) : "no whole number of",
                        given.data.bytes));
    }
    return row->type;
}

void wait_for_streams(std::span<const StateTensor> tensors, std::span<const StreamHandle> streams) {
    std::vector<std::int32_t> devices;
    for (const StateTensor& tensor : tensors) {
        if (tensor.data.kind == MemoryKind::kDevice && tensor.data.bytes != 0 &&
            std::find(devices.begin(), devices.end(), tensor.data.device) == devices.end()) {
            devices.push_back(tensor.data.device);
        }
    }
    if (!devices.empty()) {
        StreamMark(streams, devices).wait();
    }
}

void check_structure(const State& state, std::span<const StoredTensor> tensors,
                     const char* operation) {
    const std::string& text = state.structure;
    if (text == "null" || stream::content_hash(std::as_bytes(
                              std::span(text.data(), text.size()))) == state.structure_sum) {
        return;
    }
    if (const std::string wrong = wrong_structure(text, tensors); !wrong.empty()) {
        base::raise(base::error(ErrorCode::kInvalidArgument, operation, wrong));
    }
}

TorchImage torch_image(const State& state, const std::string& path) {
    std::vector<StoredTensor> tensors;
    std::unordered_map<std::string_view, std::size_t> numbers;
    for (const StateTensor& t : state.tensors) {
        tensors.push_back({t.name, t.dtype, t.shape, t.data.bytes});
        numbers.emplace(t.name, numbers.size());
    }
    Skeleton skeleton = skeleton_of(state.structure, tensors);
    std::vector<FileImage::Payload> payloads;
    std::vector<bool> copies;
    std::vector<std::size_t> own;
    for (const std::string& name : skeleton.sources) {
        own.push_back(numbers.at(name));
        payloads.push_back(state.tensors[own.back()].data);
        copies.push_back(state.tensors[own.back()].is_copy);
    }
    std::string stem = path.substr(path.rfind('/') + 1);
    stem = stem.substr(0, stem.rfind('.'));
    FileImage image = FileImage::torch_zip(std::move(skeleton.tree),
                                           stem.empty() ? "archive" : stem, std::move(payloads));
    image.set_copies(std::move(copies));
    return {std::move(image), std::move(own)};
}

NamedTensors named_tensors(const State& state) {
    NamedTensors out;
    for (const StateTensor& t : state.tensors) {
        out.tensors.push_back({t.name, *format::safetensors::type_named(t.dtype), t.shape, 0, 0});
        out.payloads.push_back(t.data);
        out.copies.push_back(t.is_copy);
    }
    out.metadata = state.metadata;
    if (out.metadata.empty()) {
        out.metadata.emplace_back("format", "pt");  // which transformers looks for
    }
    return out;
}

StateFormat check_state(const State& state, const std::string& path, StateFormat given) {
    const StateFormat format = format_of(path, given);
    std::vector<StoredTensor> tensors;
    for (const StateTensor& t : state.tensors) {
        check_tensor(t, kSave, format == StateFormat::kTorch);
        if (!t.global_shape.empty() && t.global_shape != t.shape) {
            refuse_tensor(t, kSave,
                          "it is a slice of a larger one; a file holds whole tensors, a "
                          "CheckpointStore slices too");
        }
        tensors.push_back({t.name, t.dtype, t.shape, t.data.bytes});
    }
    if (format == StateFormat::kTorch) {
        if (!state.metadata.empty()) {
            refuse_format(
                "a .pt has no metadata; put it into the structure, or save as .safetensors", path);
        }
        check_structure(state, tensors, kSave);
    } else if (state.structure != "null") {
        refuse_format(
            "a .safetensors holds tensors by name and no structure; save as .pt, or leave the "
            "structure out",
            path);
    }
    return format;
}

}  // namespace penstock::state
