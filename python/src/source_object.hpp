// SPDX-License-Identifier: Apache-2.0
// What a load reads: a tree of values, and items, which have the bytes of the storages of its
// tensors. A file and a checkpoint of a store differ in this alone.
//
//   item   storage i of the tree: a storage of a .pt, a tensor of a .safetensors or of a shard
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"
#include "state/box_runs.hpp"
#include "state/selection.hpp"
#include "state/subtree.hpp"
#include "state/tensor_reader.hpp"
#include "stream/file_reader.hpp"

#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::python {

using ItemRange = state::TensorReader::ItemRange;

/// Bytes of an item, or a box of what is stored as it, and the memory for them.
struct ItemRead {
    ItemRange part;
    Memory into;
    state::TensorBox box = {};                      ///< where the source has stored() the item
    std::vector<std::uint64_t> strides_bytes = {};  ///< as in TensorRead; likewise
};

/// With the GIL, but for read().
class SourceObject {
public:
    struct Place {
        std::size_t file = 0;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };

    SourceObject() = default;
    SourceObject(SourceObject&&) = default;
    SourceObject& operator=(SourceObject&&) = delete;
    virtual ~SourceObject() = default;

    [[nodiscard]] virtual const char* kind() const = 0;
    /// Throws Error: kUnsupported, kDamaged for a tensor that torch cannot have.
    [[nodiscard]] virtual const format::ValueTree& tree() = 0;
    /// Gives its tensors a type: see set_types() in subtree.hpp.
    virtual std::vector<std::optional<ElementType>> set_types(ElementType to) = 0;
    /// The place of the bytes of an item. Memory that lies so is filled without a copy.
    [[nodiscard]] virtual Place place(std::size_t item) const = 0;
    /// Row-major without gaps. Nothing if the source reads no boxes of an item.
    [[nodiscard]] virtual std::optional<state::StoredShape> stored(std::size_t item) const = 0;
    /// The part to read so that the one given can be read, and checked.
    [[nodiscard]] virtual ItemRange checkable(const ItemRange& part) const = 0;
    /// Reads and checks. A part is one that checkable() gives. `fresh`: all memory is as in
    /// ReadFileOptions.
    virtual void read(std::span<const ItemRead> wanted, bool fresh, bool faulted_in,
                      const Progress& progress) = 0;

    std::string path;
    bool is_part = false;  ///< of the state: names that were wanted mean nothing any more
};

/// The names and patterns that a load was given, and what they have chosen.
class Choice {
public:
    /// `wanted`: a list, or None for all. `as_wanted`: in that order, and not the one of the names.
    /// `one`: the name was given alone, and stands for the part of the state that has it.
    explicit Choice(nb::handle wanted, bool as_wanted, bool one = false);

    [[nodiscard]] state::Choose chooser();
    std::vector<std::size_t> choose(std::span<const std::string_view> names);
    /// The part of a state that is wanted, or nothing; see state::named_parts().
    [[nodiscard]] std::optional<state::Subtree> part_of(const format::ValueTree& tree);
    /// Bytes at the beginning of each name that are the name of the part, and a dot.
    [[nodiscard]] std::size_t prefix() const { return below_ ? (*wanted_)[0].size() + 1 : 0; }
    /// By what the i-th was chosen.
    [[nodiscard]] std::size_t wanted(std::size_t i) const { return chosen_[i].wanted; }
    /// KeyError where it was this that failed.
    void raise_lacking(const std::string& path) const;

private:
    std::optional<std::vector<std::string>> wanted_;
    bool as_wanted_;
    bool one_;
    bool below_ = false;
    std::vector<state::Selected> chosen_;
    std::string lacking_;
};

/// Reads that go straight to tensors that exist, which stay as long as this.
struct FillPlan {
    std::vector<ItemRead> reads;
    nb::list tensors;
};

/// Plans to fill tensors[i] with views[i] of items[i], so that its elements get their values and no
/// other byte changes. ValueError naming one of names[i] that cannot be filled. `rest`: all of the
/// state is wanted, also what is in none of the tensors. (FillPlan, the numbers of those that are
/// to be copied from their item, the items to read whole, and {item: address} of memory that the
/// rest of the state has to share.) `boxes`: tensors that get a box of what is stored as an item:
/// (item, view, tensor, begin, end, name) each. A tensor that is None has its box already.
[[nodiscard]] nb::tuple plan_fill(SourceObject& source, const nb::list& items,
                                  const nb::list& views, const nb::list& tensors,
                                  const nb::list& names, bool rest, const nb::list& boxes);

void bind_sources(nb::module_& format);

}  // namespace penstock::python
