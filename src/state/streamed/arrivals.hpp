// SPDX-License-Identifier: Apache-2.0
// The tensors of a TensorStream as they come: each is checked before anything of it is written.
#pragma once

#include "stream/staged_writer.hpp"

#include <penstock/state_file.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace penstock::state {

class Arrivals {
public:
    /// All outlive it. Throws Error kInvalidArgument for a list that is not possible.
    Arrivals(const TensorStream& stream, const SaveFileOptions& options, bool for_torch,
             const std::string& path);

    struct Arrival {
        StateTensor tensor;
        std::size_t number = 0;  ///< in TensorStream::like; without one, of the arrival
    };
    /// Nothing at the end. Throws Error kInvalidArgument, with the name of the tensor.
    [[nodiscard]] std::optional<Arrival> next();

    /// Writes a tensor at that offset of a file. Returns the sums of its pieces. Throws Error
    /// kChanged for one that changes meanwhile.
    std::vector<std::uint64_t> write(stream::StagedWriter& writer, std::uint64_t offset,
                                     const StateTensor& tensor, const stream::PieceSums& sums);
    /// Copies a tensor to memory of its size, likewise.
    void copy(const StateTensor& tensor, std::byte* to);
    /// Says of a copy that another made whether it is one, likewise.
    void check_copy(const StateTensor& tensor, std::span<const std::byte> copy);

private:
    void check_like(Arrival& arrival);
    [[nodiscard]] bool looks_again(const StateTensor& tensor) const;
    void check_end() const;
    void look_again(const StateTensor& tensor, const stream::PieceSums& sums,
                    const std::vector<std::uint64_t>& before);

    const TensorStream& stream_;
    const SaveFileOptions& options_;
    const bool for_torch_;
    const std::string path_;
    std::unordered_map<std::string, std::size_t> known_;  // of `like`, those that did not come yet
    std::unordered_set<std::string> came_;
};

}  // namespace penstock::state
