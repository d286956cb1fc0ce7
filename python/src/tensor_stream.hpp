// SPDX-License-Identifier: Apache-2.0
// Tensors that Python gives one after another, as a penstock::TensorStream.
#pragma once

#include "nanobind.hpp"
#include "storage_memory.hpp"

#include <penstock/state_file.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::python {

/// Gives memory that tensors have left back to the system. glibc's heap keeps it: tensors are
/// aligned more than its blocks are, so the hole that one leaves is often too small for the next
/// one of the same size, and a stream of them would take as much memory as all of them together.
class LeftMemory {
public:
    /// So many bytes were given and freed.
    void left(std::uint64_t bytes);

private:
    std::uint64_t bytes_ = 0;  // since the last look
    std::uint64_t level_ = 0;  // resident bytes after the last time; 0: there was none
};

/// Made, asked for its failure and destroyed with the GIL; next() takes it.
class GivenStream {
public:
    /// `items`: an iterator. `row`: a function of the number of an item and the item, which gives
    /// (name, type, shape, address, owner).
    GivenStream(nb::handle items, nb::handle row);

    /// The next tensor. Its owner stays until the next call. What Python raises is kept, and ends
    /// the save with kCancelled.
    [[nodiscard]] std::optional<StateTensor> next();
    /// Raises what was kept, if there is something.
    void raise_failure();

private:
    [[nodiscard]] std::optional<StateTensor> next_row();

    const nb::object items_;
    const nb::object row_;
    std::size_t count_ = 0;
    std::vector<StorageMemory> memory_;  // of the last tensor
    std::vector<StreamHandle> streams_;
    LeftMemory left_;
    std::optional<nb::python_error> raised_;
};

/// The list of what will come: (name, type, shape) each; or None.
[[nodiscard]] std::optional<std::vector<StateTensor>> announced(nb::handle rows);

/// Saves the tensors of an iterator; see GivenStream and announced().
void save_given(nb::handle to, nb::handle items, nb::handle row, nb::handle like,
                nb::handle metadata, std::uint64_t shard_bytes, nb::handle progress, bool sync,
                nb::handle changing);

/// update_file() of such rows; KeyError for a name that the file does not have.
void update_given(nb::handle to, nb::handle rows, nb::handle progress);

/// Saves a stream: with a look at signals, and calls of `progress` (or None).
void save_stream(nb::handle path, const TensorStream& stream, nb::handle progress,
                 const SaveFileOptions& options);

}  // namespace penstock::python
