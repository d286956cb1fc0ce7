// SPDX-License-Identifier: Apache-2.0
// The files of a feature file or `.npy`, open, with their directory.
#pragma once

#include "features/files/feature_layout.hpp"
#include "features/files/unchanged_files.hpp"

#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/features.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::features {

struct OpenedFeatures {
    std::shared_ptr<Engine> engine;
    File main;                ///< the file at `path`
    std::vector<File> parts;  ///< with the rows; of an unstriped file `main`
    std::uint64_t id = 0;     ///< of a feature file
    Directory directory;      ///< of a `.npy`, one table in one part
    FeatureFile described;
    std::shared_ptr<UnchangedFiles> unchanged;  ///< `parts` and `main`
};

/// Throws what inspect_features() throws. Blocks.
[[nodiscard]] OpenedFeatures open_features(const std::shared_ptr<Engine>& engine,
                                           const std::string& path, const FileSystem& files,
                                           CachePolicy cache = CachePolicy::kAuto);

/// The first bytes of a file, which say whether it is a feature file. Throws Error. Blocks.
[[nodiscard]] std::vector<std::byte> read_start(Engine& engine, const File& file);
/// The directory of a feature file that begins with `start`, and the id of its set. Throws Error:
/// kDamaged, or of the reads. Blocks.
[[nodiscard]] Directory read_directory(Engine& engine, const File& file, const std::string& path,
                                       std::span<const std::byte> start, std::uint64_t& id);

/// "row 7 of table 'paper'" for the row that `offset` of a part lies in; empty where none does.
[[nodiscard]] std::string row_name(const OpenedFeatures& opened, const std::string& path,
                                   std::uint64_t offset);
/// Throws the error of a read, with the row concerned where there is one.
[[noreturn]] void raise_with_row(const Error& failed, const OpenedFeatures& opened);

/// The file of a part: "FOLDER/NAME.ID.part3".
[[nodiscard]] std::string part_path(const std::string& folder, std::string_view name,
                                    std::uint64_t id, std::uint32_t part);
/// Whether a file has the name of such a part of `name`, and of which set it is.
[[nodiscard]] bool is_part_name(std::string_view file, std::string_view name, std::uint64_t& id);
/// Whether a file has the name that a part of `name` has until it is complete. Such a name keeps
/// only the first bytes of a long one.
[[nodiscard]] bool is_temporary_part_name(std::string_view file, std::string_view name);

}  // namespace penstock::features
