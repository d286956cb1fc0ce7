// SPDX-License-Identifier: Apache-2.0
// Explains names of a file that do not fit a model: those of one side have a prefix that the others
// lack, as torch.compile() ("_orig_mod.") and wrappers for several GPUs ("module.") give it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace penstock::state {

/// The difference between the names that only a model has (`missing`) and those that only a file
/// has (`unexpected`), and what to do; empty where no prefix explains half of them. verb:
/// "load_into", "load" or "stream". under: the part of the file that was asked for, or nothing.
[[nodiscard]] std::string prefix_hint(std::string_view verb, std::span<const std::string> missing,
                                      std::span<const std::string> unexpected,
                                      std::string_view under);

}  // namespace penstock::state
