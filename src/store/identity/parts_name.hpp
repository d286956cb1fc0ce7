// SPDX-License-Identifier: Apache-2.0
// The names of folders with shards in the other folders of a store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::store {

/// The shards of a checkpoint that lie in another of the store's folders lie in
/// "<checkpoint>.<32 digits, the store's identity><8 random digits>" there.
[[nodiscard]] std::string parts_name(std::string_view checkpoint, std::string_view identity,
                                     std::uint64_t random);
/// The name of that folder until the manifest that names it is durable.
[[nodiscard]] std::string unfinished_parts_name(std::string_view parts);
/// The identity in either name; empty for any other one.
[[nodiscard]] std::string_view identity_of_parts(std::string_view name);

/// "<checkpoint>.<identity><8 digits>", or that after ".unfinished-"; all empty for any other name.
struct PartsName {
    bool is_unfinished = false;
    std::string_view checkpoint;
    std::string_view identity;
    std::string_view path_digits;  ///< of an earlier version, which had these and no identity
};
[[nodiscard]] PartsName split_parts(std::string_view name);

}  // namespace penstock::store
