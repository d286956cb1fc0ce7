// SPDX-License-Identifier: Apache-2.0
// Small states of a model, by their number, for tests that save many of them and want to know which
// one they have found. Some tensors change every time, some now and then, some never.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::store {

class NumberedState {
public:
    /// `scale`: of all sizes; 1 makes about 20 KB.
    explicit NumberedState(std::uint64_t number, std::uint64_t scale = 1);
    [[nodiscard]] State state() const;

private:
    std::uint64_t number_;
    std::vector<StateTensor> tensors_;
    std::vector<std::vector<std::byte>> contents_;
};

/// Empty when it is the state of that number, whole; else what is wrong. What a checksum finds is
/// thrown.
[[nodiscard]] std::string compare(Checkpoint& checkpoint, std::uint64_t number,
                                  std::uint64_t scale = 1);

}  // namespace penstock::store
