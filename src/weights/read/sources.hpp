// SPDX-License-Identifier: Apache-2.0
// The files that weights are read from, each with its copies in several folders, and how much of
// a read each copy gives.
#pragma once

#include "tier/slot_layout.hpp"
#include "weights/read/copied_read.hpp"
#include "weights/read/copies.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weights.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::weights {

using tier::StoredTensor;

/// A tensor and the memory that it is read into.
struct PlacedTensor {
    const StoredTensor* tensor = nullptr;
    std::byte* at = nullptr;
};

/// Whose memory is read into: the host's, or that of a GPU once these streams have passed.
struct ReadPlace {
    MemoryKind kind = MemoryKind::kHost;
    std::int32_t device = 0;
    std::vector<StreamHandle> streams = {};
    bool is_counted = true;  ///< in folders()
};

/// A tensor with its name, for messages.
struct NamedTensor {
    const StoredTensor* tensor = nullptr;
    std::string name;  ///< "tensor 'a'"
};

class Sources {
public:
    /// Opens the files, and measures the folders where there is a choice. `copies`: as
    /// WeightStreamOptions::copies. Throws Error: kInvalidArgument where they do not fit the table,
    /// kDamaged for a copy of another size; errors of the system.
    Sources(Engine& engine, FileSystem files, const TensorTable& table,
            const std::vector<std::vector<std::string>>& copies);

    [[nodiscard]] std::size_t size() const { return sources_.size(); }
    [[nodiscard]] std::uint64_t bytes(std::size_t source) const {
        return sources_[source][0].status.bytes;
    }
    /// The first copy of a file.
    [[nodiscard]] const File& file(std::size_t source) const { return sources_[source][0].file; }
    [[nodiscard]] const std::string& path(std::size_t source) const {
        return sources_[source][0].path;
    }
    /// An error of reading, with what was read, the tensor, and advice: of those that were read the
    /// tensor at the place of the error or the first after it, for a request may begin before its
    /// tensors.
    [[nodiscard]] Error located(const Error& error, const std::string& what,
                                std::span<const NamedTensor> were_read,
                                std::string_view advice) const;
    /// Throws kDamaged for a tensor that ends beyond its file.
    void check_ends(const StoredTensor& tensor, const std::string& name) const;
    /// Throws kDamaged for a file that was changed in place since it was opened.
    void check_unchanged() const;
    /// Starts to read all of `placed`, in the order of the files, from whichever copies. Nothing
    /// where the engine has no room, unless it is urgent.
    [[nodiscard]] std::optional<CopiedRead> read(Engine& engine,
                                                 std::span<const PlacedTensor> placed,
                                                 Priority priority, const ReadPlace& where = {});
    [[nodiscard]] const std::vector<WeightFolderStats>& folders() const { return folders_; }
    /// Closes the files.
    void close() noexcept { sources_.clear(); }

private:
    struct Copy {
        std::string path;
        File file;
        FileStatus status;
        std::uint32_t number = 0;  // of all copies of all files: its file in a request
    };

    void open(const std::vector<std::string>& paths);
    [[nodiscard]] std::optional<FileStatus> status_now(const Copy& copy) const;
    [[nodiscard]] std::vector<TransferRequest> requests_of(const std::vector<WantedBytes>& wanted,
                                                           Priority priority,
                                                           const ReadPlace& where) const;
    [[nodiscard]] static bool submit(Engine& engine, const std::vector<TransferRequest>& requests,
                                     Priority priority, CopiedRead& out);
    void measure(Engine& engine);

    FileSystem files_;
    std::vector<std::vector<Copy>> sources_;          // by folder, only those that are there
    std::vector<std::vector<std::uint32_t>> having_;  // of each source: the folders of its copies
    std::vector<std::uint32_t> folder_of_;            // of each copy
    std::vector<bool> direct_;                        // of each copy
    std::shared_ptr<FolderSpeeds> speeds_;
    std::vector<WeightFolderStats> folders_;
};

}  // namespace penstock::weights
