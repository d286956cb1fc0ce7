// SPDX-License-Identifier: Apache-2.0
// The files that weights are read from, each with its copies in several folders, and how much of
// a read each copy gives.
#pragma once

#include "weights/copies.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/weight_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::weights {

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
    /// Whether this is the path of one of its copies.
    [[nodiscard]] bool has_path(std::size_t source, const std::string& path) const;
    /// Throws kDamaged for a file that was changed in place since it was opened.
    void check_unchanged() const;
    /// Adds extents for all of `wanted` (in the order of the files), from whichever copies.
    void add_reads(const std::vector<WantedBytes>& wanted, TransferRequest& request);
    /// Counts a request of add_reads() that was submitted.
    void count(const TransferRequest& request);
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
    void measure(Engine& engine);

    FileSystem files_;
    std::vector<std::vector<Copy>> sources_;          // by folder, only those that are there
    std::vector<std::vector<std::uint32_t>> having_;  // of each source: the folders of its copies
    std::vector<std::uint32_t> folder_of_;            // of each copy
    std::vector<double> speeds_;                      // of each folder
    std::vector<WeightFolderStats> folders_;
};

}  // namespace penstock::weights
