// SPDX-License-Identifier: Apache-2.0
// One structure of the structures that the ranks of a save have: dicts are joined, a key may be on
// some ranks only, and all else has to be equal. Values of each rank (kPerRank) are joined as the
// dicts that they are.
#pragma once

#include "state/structure/structure.hpp"
#include "state/structure/structure_text.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::state {

class StructureJoin {
public:
    /// `first`: where values without tensors are not equal, the first rank's is taken.
    explicit StructureJoin(bool first = false) : first_(first) {}
    /// Adds the structure of one more rank. `tensors`: those that it names. `rank`: in errors.
    /// Throws kInvalidArgument, with the place and both ranks, for a value that is another one on
    /// an earlier rank, and for a name of a tensor that has another place there; kDamaged for a
    /// text that state_of() did not write. After an error it is of no more use.
    void add(std::string_view structure, std::span<const StoredTensor> tensors, std::string rank);
    /// Empty, or what was not equal first, where the first is taken.
    [[nodiscard]] const std::string& difference() const { return difference_; }
    /// The text of all. `null`, if all are. At least one was added.
    [[nodiscard]] std::string text() const;

private:
    friend class StructureMerge;

    format::ValueTree tree_;            // its tensors are those below
    std::vector<std::size_t> brought_;  // by which rank: each value
    std::vector<WrittenTensor> tensors_;
    std::vector<WrittenStorage> storages_;
    std::vector<std::size_t> storage_brought_;
    std::unordered_map<std::string, std::uint64_t> storage_numbers_;  // by name
    std::vector<std::string> ranks_;
    bool is_null_ = false;
    bool first_;
    std::string difference_;
};

}  // namespace penstock::state
