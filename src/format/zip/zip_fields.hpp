// SPDX-License-Identifier: Apache-2.0
// Numbers of the zip format (APPNOTE 6.3), shared by its writer and its reader.
#pragma once

#include "format/fault.hpp"
#include "format/zip/zip.hpp"

#include <cstdint>
#include <string_view>

namespace penstock::format::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kDirectorySignature = 0x02014b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr std::uint16_t kVersionPlain = 20;
inline constexpr std::uint16_t kVersionZip64 = 45;
inline constexpr std::uint16_t kFlagEncrypted = 0x0001;
inline constexpr std::uint16_t kFlagDescriptor = 0x0008;
inline constexpr std::uint16_t kFlagUtf8 = 0x0800;
inline constexpr std::uint16_t kExtraZip64 = 0x0001;
inline constexpr std::uint16_t kExtraPadding = 0x4246;  // "FB", as torch's own
inline constexpr std::uint64_t kMark32 = 0xFFFFFFFF;    // "see the zip64 extra"
inline constexpr std::uint64_t kMark16 = 0xFFFF;

inline constexpr std::uint64_t kLocalBytes = 30;
inline constexpr std::uint64_t kDirectoryBytes = 46;
inline constexpr std::uint64_t kEndBytes = 22;
inline constexpr std::uint64_t kZip64EndBytes = 56;
inline constexpr std::uint64_t kLocatorBytes = 20;
inline constexpr std::uint64_t kLocalCrcAt = 14;
inline constexpr std::uint64_t kDirectoryCrcAt = 16;

/// Relative, of UTF-8, without "..", empty parts, backslashes or NULs.
[[nodiscard]] bool is_plain_path(std::string_view path);

}  // namespace penstock::format::zip
