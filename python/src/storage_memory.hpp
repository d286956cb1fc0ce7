// SPDX-License-Identifier: Apache-2.0
// The memory of a torch storage, on the host or on a GPU, and the streams that its work is on.
#pragma once

#include "nanobind.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/gpu.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace penstock::python {

/// The memory of one storage of the tree, of the host or of a GPU, for as long as `keep` lives.
struct StorageMemory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    nb::object keep;
    bool copied = false;  ///< made for this save: nobody else changes it
    MemoryKind where = MemoryKind::kHost;
    std::int32_t device = 0;  ///< of MemoryKind::kDevice: its number
    /// The torch.UntypedStorage that has the memory, or None: nobody can look whether it still has.
    nb::object storage = nb::none();
    /// Its address and its bytes when it was found.
    std::uintptr_t storage_address = 0;
    std::size_t storage_bytes = 0;

    /// Tensors in the memory, with the count of their changes by torch.
    std::vector<std::pair<nb::object, std::int64_t>> tensors = {};

    /// Sets the storage, its address and its bytes, unless it is copied.
    void belongs_to(nb::handle untyped_storage);
    /// Adds to `tensors`, unless it is copied, or torch does not count its changes.
    void holds(nb::handle tensor);

    [[nodiscard]] ConstMemory memory() const { return {data, bytes, where, device}; }
};

/// The look of a save: what it may read is there, and by torch's count unchanged, as long as it may
/// look. With Changing::kTorn it may have changed. `of`: for each number that it is called with,
/// the memory's place in `storages`, or kNoStorage. Keeps no object. Takes the GIL.
inline constexpr std::size_t kNoStorage = static_cast<std::size_t>(-1);
[[nodiscard]] MemoryLook look_of(const std::vector<StorageMemory>& storages, Changing changing,
                                 const std::vector<std::size_t>& of);
/// The same where number i is storage i.
[[nodiscard]] MemoryLook look_of(const std::vector<StorageMemory>& storages, Changing changing);

/// Finds the memory of a CUDA storage at `address`; false where torch has to copy it to the host:
/// there is no driver that is new enough. Throws Error for memory that the driver does not know.
[[nodiscard]] bool place_on_gpu(StorageMemory& memory, std::uintptr_t address);
/// Copies storages of devices, all at once, and makes them the memory of some of `storages`.
/// `rows`: (number, the device's storage) each.
void fetch_copies(const nb::list& rows, std::vector<StorageMemory>& storages);
/// The streams whose work comes before memory of GPUs is read: torch's current ones.
[[nodiscard]] std::vector<StreamHandle> streams_of(const std::vector<StorageMemory>& storages);
/// The same before it is read into: torch may have given memory that its stream still uses.
[[nodiscard]] std::vector<StreamHandle> streams_of(std::span<const Memory> memory);

}  // namespace penstock::python
