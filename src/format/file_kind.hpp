// SPDX-License-Identifier: Apache-2.0
// What a file is, by what it begins with: one of the forms that are read, or another program's.
#pragma once

#include "format/byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock::format {

/// How much of a file known_kind() wants to see.
inline constexpr std::uint64_t kKindBytes = 512;

enum class FileForm : std::uint8_t {
    kTorch,        ///< a .pt: the zip of torch.save, or the pickles before it
    kSafetensors,  ///< one file
    kIndex,        ///< JSON, as the index of shards is
};

/// "it is a NumPy array (.npy), which numpy.load() reads", of a file that other programs write;
/// empty for one that it does not know.
[[nodiscard]] std::string known_kind(std::span<const std::byte> head);

/// Fails for a file of no such form and says what it is instead. `named`: the name says
/// .safetensors, so what is unknown is a damaged one, for its reader to describe.
[[nodiscard]] Result<FileForm> form_of(ByteSource& source, bool named);

}  // namespace penstock::format
