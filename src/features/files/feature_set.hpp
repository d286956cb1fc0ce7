// SPDX-License-Identifier: Apache-2.0
// The files of a feature file while they are written, and their taking the place of older ones.
//
//   striped    each part is a file "NAME.ID.partN", with an id of its own set; once all are
//              durable, the main file, which names them, is replaced
//   old parts  of sets that no main file names any more are removed before and afterwards: their
//              locks are free, and the id in the main file is another. A writer holds the locks of
//              its parts until its main file is in place. So are parts that a killed writer left
//              under their temporary names
#pragma once

#include "state/writing/replace.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock::features {

class FeatureSet {
public:
    /// kInvalidArgument for a path that is no folder, or comes twice.
    /// The engine outlives it.
    FeatureSet(Engine& engine, FileSystem files, const std::string& path,
               const std::vector<std::string>& folders);
    FeatureSet(const FeatureSet&) = delete;
    FeatureSet& operator=(const FeatureSet&) = delete;
    /// Removes its files, unless commit() put the main file in place.
    ~FeatureSet();

    [[nodiscard]] std::uint64_t id() const { return id_; }
    [[nodiscard]] bool is_striped() const { return !parts_.empty(); }
    /// False in a child of fork(), which leaves all files to its parent.
    [[nodiscard]] bool is_of_this_process() const noexcept { return main_.is_of_this_process(); }
    [[nodiscard]] File& main() { return main_.file(); }
    /// Paths of the parts; empty of an unstriped file.
    [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }
    [[nodiscard]] File& part(std::size_t index) { return parts_[index]->file(); }
    void commit(bool sync);

private:
    void remove_old(const std::string& folder) noexcept;

    Engine& engine_;
    FileSystem files_;
    std::uint64_t id_;
    std::vector<std::string> folders_;  ///< resolved
    std::vector<Folder> open_folders_;  ///< of these, and the names of the parts in them: removing
    std::vector<std::string> names_;    ///< a part then takes no memory, which may have run out
    std::vector<std::string> paths_;
    std::vector<std::string> old_folders_;  ///< of the file that is replaced
    std::vector<std::unique_ptr<state::Replacement>> parts_;
    state::Replacement main_;
};

}  // namespace penstock::features
