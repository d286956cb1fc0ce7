// SPDX-License-Identifier: Apache-2.0
// Memory for slots of one size, of the host or of a GPU. Their number changes, and those that
// remain keep their addresses and content.
#pragma once

#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::tier {

/// Not thread-safe.
class Slots {
public:
    Slots() = default;
    /// None yet. Memory of the host is addresses for `most` slots, and pages are taken as they are
    /// written. Throws Error: kOutOfMemory where the system refuses the addresses.
    Slots(std::size_t most, std::uint64_t slot_bytes, std::optional<std::int32_t> gpu);

    [[nodiscard]] std::size_t size() const { return size_; }
    /// At most `most`. No transfer and no copy may use the slots that go. Throws Error:
    /// kOutOfMemory where a GPU has no room; then there are as many as before.
    void resize(std::size_t slots);
    /// Bytes of a slot, and what keeps their address valid.
    [[nodiscard]] Memory memory(std::size_t slot, std::uint64_t offset, std::uint64_t bytes) const;
    [[nodiscard]] std::shared_ptr<void> owner(std::size_t slot) const;

private:
    std::uint64_t slot_bytes_ = 0;
    std::optional<std::int32_t> gpu_;
    std::size_t size_ = 0;
    std::size_t most_ = 0;
    std::shared_ptr<Region> host_;
    std::vector<std::shared_ptr<Region>> regions_;  // of each slot, on a GPU
};

}  // namespace penstock::tier
