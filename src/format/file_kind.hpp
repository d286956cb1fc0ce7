// SPDX-License-Identifier: Apache-2.0
// What a file is that was given for a checkpoint and is none, by what it begins with.
#pragma once

#include "format/byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock::format {

/// How much of a file other_kind() wants to see.
inline constexpr std::uint64_t kKindBytes = 512;

/// "it is a NumPy array (.npy), which numpy.load() reads", of a file that other programs write;
/// empty for one that it does not know.
[[nodiscard]] std::string known_kind(std::span<const std::byte> head);

/// Fails for a file that is neither a .pt nor a .safetensors and says what it is instead. `named`:
/// the name says .safetensors, so what is unknown is a damaged one, for its reader to describe.
[[nodiscard]] Result<void> refuse_other_kinds(ByteSource& source, bool named);

}  // namespace penstock::format
