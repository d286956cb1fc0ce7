// SPDX-License-Identifier: Apache-2.0
// The metadata of a checkpoint: plain values under names, which the manifest keeps, and by whose
// numbers checkpoints are compared.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace penstock::store {

/// The name under which the metadata in a manifest has the identity of the store: earlier versions,
/// which know no such field, read the manifest all the same. No metadata of a caller has it.
inline constexpr std::string_view kStoreKey = "penstock.store";
inline constexpr std::size_t kMetadataBytesMax = std::size_t{1} << 20;

/// Throws kInvalidArgument: the manifest of a checkpoint cannot have what the caller gave.
[[noreturn]] void refuse_save(std::string_view why);

/// Joins the values of the options and the texts of the state, which a save keeps. Throws
/// kInvalidArgument for a name that comes twice, for what is not UTF-8 and for more than
/// kMetadataBytesMax.
[[nodiscard]] CheckpointMetadata metadata_of(const SaveOptions& options, const State& state);

/// Bytes of names and texts.
[[nodiscard]] std::size_t bytes_of(const CheckpointMetadata& metadata);

/// A number as JSON writes it, a text as it is; "null", "true", "nan".
[[nodiscard]] std::string text_of(const MetadataValue& value);

/// Anything but a text, as a manifest has it: a JSON scalar, or, where JSON has none, a list of its
/// name (["nan"]).
[[nodiscard]] std::string number_json(const MetadataValue& value);

/// The number that a list of this name stands for.
[[nodiscard]] std::optional<double> special_number(std::string_view name);

/// The number under the name; nothing where it is absent, of another kind, or NaN.
[[nodiscard]] std::optional<double> number_in(const CheckpointMetadata& metadata,
                                              std::string_view name);

/// The name in their metadata that this one may be a typing error of; empty where one of them has
/// this name, and where no name is close.
[[nodiscard]] std::string likely_name(std::span<const CheckpointInfo> checkpoints,
                                      std::string_view name);

}  // namespace penstock::store
