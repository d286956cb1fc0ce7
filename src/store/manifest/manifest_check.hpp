// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/manifest/manifest.hpp"

#include <string>
#include <string_view>

namespace penstock::store {

/// Bytes that a shard's header may have: what safetensors allows.
inline constexpr std::uint64_t kShardHeaderBytesMax = 100'000'008;

/// Whether it names a file of the checkpoint's own folder, and nothing else.
[[nodiscard]] bool is_file_name(std::string_view name);

/// Empty, or the first contradiction. Afterwards: every slice lies in its shard and in its tensor,
/// the slices of a shard tile it, those of a tensor do not overlap, there are as many sums as
/// chunks or none, and no arithmetic on its numbers overflows.
[[nodiscard]] std::string check_manifest(const Manifest& manifest);

/// Empty, or the reason why no state can be made of its structure.
[[nodiscard]] std::string wrong_structure(const Manifest& manifest);

}  // namespace penstock::store
