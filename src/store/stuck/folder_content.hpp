// SPDX-License-Identifier: Apache-2.0
// The content of a folder that goes. Whose it is was decided before (removal.hpp).
#pragma once

#include <penstock/file.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::store {

/// Nothing where there is nothing of that name.
[[nodiscard]] std::optional<FileStatus> status_of(const Folder& folder, const std::string& name);

/// Removes all of a folder but one name, and returns the bytes freed. No link is followed; a mount
/// is an error. What cannot be removed keeps nothing else from going: the first error is thrown
/// after the rest.
std::uint64_t remove_content(const Folder& folder, std::string_view but = {});

/// Bytes of the files directly in a folder. Those that have another name elsewhere are not counted:
/// they stay when the folder goes.
[[nodiscard]] std::uint64_t bytes_in(const Folder& folder);

}  // namespace penstock::store
