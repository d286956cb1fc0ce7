// SPDX-License-Identifier: Apache-2.0
// A state that is cut over ranks: rows of some tensors, one that does not divide, one of which each
// rank has two parts, one that never changes; and tensors that every rank has. `apart`: each rank
// has a value of its own, too (kPerRank), and the last one a key that no other has.
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
              std::uint64_t whole = 300, bool apart = false);
    [[nodiscard]] State state() const;
    /// Empty if that is what the checkpoint has, whole; else what is wrong.
    [[nodiscard]] static std::string compare(Checkpoint& checkpoint, std::uint64_t number,
                                             std::uint64_t whole = 300, bool apart = false);
    /// The same by the shards alone, as torch.distributed.checkpoint reads them.
    [[nodiscard]] static std::string compare_as_stock(Engine& engine, const FileSystem& files,
                                                      const std::string& folder,
                                                      std::uint64_t number,
                                                      std::uint64_t whole = 300,
                                                      bool apart = false);

private:
    void add_rows(const std::string& name, const std::vector<std::byte>& content,
                  std::uint64_t begin, std::uint64_t end, std::uint64_t rows);

    void add_own(std::uint32_t rank, std::uint32_t count);

    std::string structure_;
    std::vector<StateTensor> tensors_;
    std::vector<std::vector<std::byte>> contents_;
};

}  // namespace penstock::store
