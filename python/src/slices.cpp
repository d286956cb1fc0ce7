// SPDX-License-Identifier: Apache-2.0
#include "slices.hpp"

#include "arguments.hpp"
#include "base/align.hpp"
#include "names.hpp"
#include "state/structure/structure_tags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>

namespace penstock::python {

namespace {

// No process has memory there.
constexpr std::uintptr_t kNowhere = std::uintptr_t{1} << 63U;

std::uint64_t elements_of(const std::vector<std::uint64_t>& shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) {
        count *= extent;
    }
    return count;
}

// Gives each of them made-up memory: where it begins.
std::vector<std::uintptr_t> places_of(const format::ValueTree& tree,
                                      std::span<const SlicedTensor> sliced) {
    std::vector<std::uintptr_t> places;
    std::uintptr_t next = kNowhere;
    for (const SlicedTensor& one : sliced) {
        places.push_back(next);
        next += base::align_up(tree.storages[one.storage].bytes + 1, base::kPageBytes);
    }
    return places;
}

[[noreturn]] void refuse_part(const StateTensor& tensor, const std::string& why) {
    raise_value(fmt::format("save: {} {}", quoted(tensor.name), why));
}

void check_whole(const StateTensor& tensor, const SlicedTensor& part) {
    std::uint64_t held = 0;
    for (const SlicePiece& piece : part.pieces) {
        held += elements_of(piece.shape);
    }
    if (part.copy != 0 || held != elements_of(tensor.shape)) {
        refuse_part(tensor,
                    fmt::format("is a part of a tensor of [{}], and this store is one process's; "
                                "give each rank a store with ranks=penstock.Ranks.torch()",
                                fmt::join(tensor.shape, ", ")));
    }
}

}  // namespace

HeldPart held_part(nb::handle part) {
    HeldPart out;
    out.local = part.attr("local");
    out.whole.shape = counts_of(part.attr("shape"), "shape", "elements");
    out.sliced.shape = out.whole.shape;
    out.whole.strides = state::packed_strides(out.whole.shape);
    out.whole.requires_grad = nb::cast<bool>(part.attr("requires_grad"));
    out.whole.parameter = nb::cast<bool>(part.attr("is_parameter"));
    out.elements = elements_of(out.whole.shape);
    out.sliced.copy = nb::cast<std::uint32_t>(part.attr("copy"));
    out.is_made = nb::cast<bool>(part.attr("made"));
    out.tie = part.attr("tie");
    for (const nb::handle box : nb::iter(part.attr("boxes"))) {
        out.sliced.pieces.push_back({counts_of(box[0], "offset", "elements"),
                                     counts_of(box[1], "shape", "elements"),
                                     nb::cast<std::uint64_t>(nb::object(box[2]))});
    }
    return out;
}

std::vector<std::span<const std::byte>> spans_of(const format::ValueTree& tree,
                                                 const std::vector<StorageMemory>& storages,
                                                 std::span<const SlicedTensor> sliced) {
    std::vector<std::span<const std::byte>> spans;
    spans.reserve(storages.size());
    for (const StorageMemory& storage : storages) {
        spans.emplace_back(storage.data, storage.bytes);
    }
    const std::vector<std::uintptr_t> places = places_of(tree, sliced);
    for (std::size_t i = 0; i < sliced.size(); ++i) {
        spans[sliced[i].storage] = {reinterpret_cast<const std::byte*>(places[i]),
                                    tree.storages[sliced[i].storage].bytes};
    }
    return spans;
}

void split_slices(penstock::State& state, std::vector<std::size_t>& of,
                  const format::ValueTree& tree, const std::vector<StorageMemory>& storages,
                  std::span<const SlicedTensor> sliced, bool alone) {
    if (sliced.empty()) {
        return;
    }
    std::map<std::uintptr_t, const SlicedTensor*> by_place;
    const std::vector<std::uintptr_t> places = places_of(tree, sliced);
    for (std::size_t i = 0; i < sliced.size(); ++i) {
        by_place.emplace(places[i], &sliced[i]);
    }
    std::vector<StateTensor> tensors;
    std::vector<std::size_t> from;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        StateTensor& whole = state.tensors[i];
        const auto found = by_place.find(reinterpret_cast<std::uintptr_t>(whole.data.data));
        if (found == by_place.end()) {
            tensors.push_back(std::move(whole));
            from.push_back(of[i]);
            continue;
        }
        const SlicedTensor& part = *found->second;
        const StorageMemory& memory = storages[part.storage];
        if (whole.shape != part.shape) {  // it is a storage of bytes
            if (const auto end = whole.name.rfind(".storage"); end != std::string::npos) {
                whole.name.resize(end);  // as the user knows it
            }
            refuse_part(whole,
                        "is of a type that safetensors has not, so it cannot be saved in parts");
        }
        if (alone) {
            check_whole(whole, part);
        }
        const std::uint64_t count = elements_of(whole.shape);
        const std::uint64_t element_bytes = count == 0 ? 0 : whole.data.bytes / count;
        for (const SlicePiece& piece : part.pieces) {
            StateTensor& own = tensors.emplace_back(whole);
            own.shape = piece.shape;
            own.global_shape = whole.shape;
            own.global_offset = piece.offset;
            own.data = memory.memory();
            own.data.data += piece.begin * element_bytes;
            own.data.bytes = elements_of(piece.shape) * element_bytes;
            own.is_copy = memory.copied;
            own.copy = part.copy;
            from.push_back(part.storage);
        }
    }
    state.tensors = std::move(tensors);
    of = std::move(from);
}

}  // namespace penstock::python
