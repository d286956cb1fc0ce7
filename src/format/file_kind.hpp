// SPDX-License-Identifier: Apache-2.0
// Detects the kind of a file by its first bytes: a form that is read here, or another program's.
#pragma once

#include "format/byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::format {

/// Bytes of a file that known_kind() needs.
inline constexpr std::uint64_t kKindBytes = 512;

/// The magic number of torch's legacy form as pickles of protocols 0 and 1 have it. All later ones
/// begin with 0x80.
inline constexpr std::string_view kLegacyText = "L119547037146038801333356L\n";

enum class FileForm : std::uint8_t {
    kTorch,        ///< a .pt: the zip of torch.save, or the pickles before it
    kSafetensors,  ///< one file
    kIndex,        ///< JSON, as the index of shards is
};

/// "it is a NumPy array (.npy), which numpy.load() reads", for a file of another program; empty for
/// one that it does not know.
[[nodiscard]] std::string known_kind(std::span<const std::byte> head);

/// Fails for a file of no such form, with the detected kind. `name`: of the file, or empty. An
/// unknown file is a damaged one only if its name ends as those of these forms do.
[[nodiscard]] Result<FileForm> form_of(ByteSource& source, std::string_view name);

}  // namespace penstock::format
