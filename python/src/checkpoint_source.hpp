// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a store as a source of loads.
#pragma once

#include "base/align.hpp"
#include "names.hpp"
#include "source_object.hpp"
#include "state/structure/per_rank.hpp"
#include "state/structure/structure.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock::python {

class CheckpointSource final : public SourceObject {
public:
    explicit CheckpointSource(std::shared_ptr<Checkpoint> checkpoint)
        : checkpoint_(std::move(checkpoint)),
          skeleton_(state::skeleton_of(checkpoint_->structure(), checkpoint_->tensors())) {
        for (const CheckpointTensor& t : checkpoint_->tensors()) {
            by_name_.emplace(t.name, &t);
        }
        path = checkpoint_->info().path;
        place_items();
    }

    /// Puts what `rank` has for itself in its place, or a list of what each has; nothing: loses it.
    void take_per_rank(std::optional<std::uint32_t> rank, bool as_list) {
        state::take_per_rank(skeleton_.tree,
                             as_list ? std::nullopt : std::optional(rank ? *rank : UINT32_MAX),
                             checkpoint_->info().ranks);
        keep_only(state::subtree_of(skeleton_.tree, skeleton_.tree.root));
    }
    [[nodiscard]] bool has_per_rank() const {
        return state::place_of_per_rank(skeleton_.tree).has_value();
    }
    /// The place of the first value that each rank has for itself, or None.
    [[nodiscard]] nb::object per_rank_place() const {
        const auto place = state::place_of_per_rank(skeleton_.tree);
        return place ? path_object(*place) : nb::none();
    }

    /// Makes a part of the state all of it, if one is wanted, and not a tensor of that name.
    void cut(Choice& choice, std::string_view alone) {
        auto part = choice.part_of(skeleton_.tree);
        if (part && by_name_.count(alone) == 0) {
            keep_only(std::move(*part));
            is_part = true;
        }
    }
    /// Adds a stored tensor, which need not be in the state: (item, type, shape), or None.
    nb::object add(nb::handle name) {
        const auto found = by_name_.find(text(name));
        if (found == by_name_.end()) {
            return nb::none();
        }
        const CheckpointTensor& t = *found->second;
        skeleton_.sources.push_back(t.name);
        skeleton_.tree.storages.push_back({t.bytes, "cpu", t.name});
        place_items();
        return nb::make_tuple(places_.size() - 1, t.dtype, nb::cast(t.shape));
    }

    [[nodiscard]] const char* kind() const override { return "checkpoint"; }
    const format::ValueTree& tree() override { return skeleton_.tree; }
    std::vector<std::optional<ElementType>> set_types(ElementType to) override {
        return state::set_types(skeleton_.tree, to);
    }
    [[nodiscard]] Place place(std::size_t item) const override { return places_.at(item); }
    [[nodiscard]] std::optional<state::StoredShape> stored(std::size_t item) const override {
        const CheckpointTensor& t = tensor(item);
        return state::StoredShape{t.name, t.dtype, t.shape};
    }
    [[nodiscard]] ItemRange checkable(const ItemRange& part) const override {
        const CheckpointTensor& t = tensor(part.item);
        const bool of_bytes = t.dtype == "U8" && t.shape.size() == 1;
        return part.bytes == 0 || of_bytes ? part : ItemRange{part.item, 0, t.bytes};
    }
    void read(std::span<const ItemRead> wanted, bool /*fresh*/, bool /*faulted_in*/,
              const Progress& progress) override {
        std::vector<TensorRead> reads;
        for (const ItemRead& one : wanted) {
            if (one.into.bytes == 0) {
                continue;
            }
            const CheckpointTensor& t = tensor(one.part.item);
            TensorRead& read = reads.emplace_back(
                TensorRead{t.name, one.into, one.box.begin, one.box.end, one.strides_bytes});
            if (one.box.begin.empty() && one.part.bytes != t.bytes) {
                read.begin = {one.part.begin};
                read.end = {one.part.begin + one.part.bytes};
            }
        }
        checkpoint_->read(reads, true, progress);
    }

private:
    void keep_only(state::Subtree&& part) {
        std::vector<std::string> sources;
        for (const std::uint32_t storage : part.storages) {
            sources.push_back(std::move(skeleton_.sources[storage]));
        }
        skeleton_ = {std::move(part.tree), std::move(sources)};
        place_items();
    }
    // In the order of the state: parts of an item may lie in several shards. Large ones begin at a
    // page, as in their files.
    void place_items() {
        constexpr std::uint64_t kSmallAlignment = 64;
        places_.clear();
        std::uint64_t at = 0;
        for (const std::string& source : skeleton_.sources) {
            const std::uint64_t bytes = by_name_.at(source)->bytes;
            at = base::align_up(at, bytes >= base::kPageBytes ? base::kPageBytes : kSmallAlignment);
            places_.push_back({0, at, bytes});
            at += bytes;
        }
    }
    [[nodiscard]] const CheckpointTensor& tensor(std::size_t item) const {
        return *by_name_.at(skeleton_.sources[item]);
    }

    std::shared_ptr<Checkpoint> checkpoint_;
    std::unordered_map<std::string_view, const CheckpointTensor*> by_name_;
    state::Skeleton skeleton_;
    std::vector<Place> places_;
};

}  // namespace penstock::python
