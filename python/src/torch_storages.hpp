// SPDX-License-Identifier: Apache-2.0
// The storages of torch under the tensors of a state that is saved, each once.
#pragma once

#include "format/value.hpp"
#include "nanobind.hpp"
#include "storage_memory.hpp"

#include <cstdint>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <vector>

namespace penstock::python {

class TorchStorages {
public:
    /// Adds to both of these. `together`: storages of devices that torch has to copy to the host
    /// are copied by fetch(), all at once.
    TorchStorages(format::ValueTree& tree, std::vector<StorageMemory>& memory, bool together)
        : tree_(tree), memory_(memory), together_(together) {}

    /// The number of the storage that a tensor lies in. Throws Error for memory that the driver of
    /// the GPU does not know.
    std::uint32_t of(nb::handle tensor);
    /// The number of a storage, of `bytes`, for a tensor of which `local` is the part here.
    /// `is_made`: `local` was made for this save. Its location has no number: the ranks of a host
    /// have GPUs of their own.
    std::uint32_t add_part(nb::handle local, std::uint64_t bytes, bool is_made);
    void fetch() { fetch_copies(fetched_, memory_); }

private:
    std::uint32_t add(std::uint64_t bytes, const std::string& location, StorageMemory memory);

    format::ValueTree& tree_;
    std::vector<StorageMemory>& memory_;
    const bool together_;
    nb::list fetched_;  // (number of the storage, the device's storage) each
    std::vector<nb::object> keep_;
    // Their nodes go all at once.
    std::pmr::monotonic_buffer_resource nodes_;
    std::pmr::unordered_map<std::uint64_t, std::uint32_t> by_storage_{&nodes_};
};

}  // namespace penstock::python
