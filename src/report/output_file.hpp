// SPDX-License-Identifier: Apache-2.0
// Files that commands write their results to: which may be replaced, and replacing them as a whole.
#pragma once

#include <string>
#include <string_view>

namespace penstock::report {

/// Returns whether both names are of one file, or would be once it is made. Never of pipes and
/// devices, which several outputs may share.
[[nodiscard]] bool is_same_file(const std::string& one, const std::string& other);

/// Throws Error if the two outputs are one file: the later would replace the earlier.
void refuse_same_output(const std::string& option, const std::string& path,
                        const std::string& other_option, const std::string& other);

/// Tries whether the file can be written, and changes nothing. Returns 0, or what errno says.
[[nodiscard]] int why_not_writable(const std::string& path);

/// Returns whether the file begins as the JSON of a command of Penstock, of this program or of the
/// Python package. True of a file that cannot be read: who gave it gave it for writing.
[[nodiscard]] bool is_json_of_ours(const std::string& path);

/// Replaces a file as a whole, also behind a symbolic link, and keeps its mode: an error leaves it
/// as it was. A pipe, a device and what is our stdout are written to. Returns 0, or what errno
/// says.
[[nodiscard]] int write_output(const std::string& path, std::string_view text);

}  // namespace penstock::report
