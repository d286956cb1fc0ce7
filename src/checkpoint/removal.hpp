// SPDX-License-Identifier: Apache-2.0
// How checkpoints and what is left of them go: renamed first, so that nobody takes a half-removed
// one for whole; then what lies in the other folders, to which its links lead; then the rest.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::checkpoint {

/// The shards of a checkpoint that lie in another of the store's folders lie in
/// "<checkpoint>.<16 digits that say which store><8 random digits>" there.
[[nodiscard]] std::string parts_name(std::string_view checkpoint, const std::string& store_folder,
                                     std::uint64_t random);

class Remover {
public:
    /// folders: of the store, the first has the manifests. All outlive it.
    Remover(const FileSystem& files, const std::vector<std::string>& folders)
        : files_(files), folders_(folders) {}

    /// Checkpoints by their names, whole or not. One that was pinned meanwhile stays. Bytes freed.
    std::uint64_t remove(std::span<const std::string> checkpoints);
    /// What killed processes left: unfinished and removed ones, parts that no checkpoint has. Only
    /// for who holds the store's lock.
    std::uint64_t collect();
    /// A folder with all that is in it; links are not followed. What is not there is fine.
    std::uint64_t remove_tree(const std::string& path);

private:
    [[nodiscard]] std::vector<std::string> names_in(const std::string& folder) const;
    std::uint64_t remove_hidden(const std::string& name);
    std::uint64_t collect_parts(const std::string& folder);
    [[nodiscard]] std::vector<std::string> parts_of(const std::string& name) const;

    const FileSystem& files_;
    const std::vector<std::string>& folders_;
};

}  // namespace penstock::checkpoint
