// SPDX-License-Identifier: Apache-2.0
// A state that is cut over ranks: rows of two tensors, one of them that does not divide, a part
// that never changes, and tensors that every rank has.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::store {

class RankState {
public:
    /// `whole`: elements of the large tensor that all ranks have.
    RankState(std::uint32_t rank, std::uint32_t count, std::uint64_t number,
              std::uint64_t whole = 300);
    [[nodiscard]] State state() const;
    /// Empty if that is what the checkpoint has, whole; else what is wrong.
    [[nodiscard]] static std::string compare(Checkpoint& checkpoint, std::uint64_t number,
                                             std::uint64_t whole = 300);

private:
    std::uint64_t number_;
    std::vector<StateTensor> tensors_;
    std::vector<std::vector<std::byte>> contents_;
};

}  // namespace penstock::store
