// SPDX-License-Identifier: Apache-2.0
// Pickles: written as torch.save writes them (protocol 2), so that torch.load reads them, also with
// weights_only=True; read by a machine that knows a list of names and builds values of value.hpp,
// nothing else. It imports nothing and calls nothing.
//
// Errors name the place in the state: "state['opt']['groups'][3]".
#pragma once

#include "format/value.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock::format {

inline constexpr std::uint64_t kPickleBytesMax = std::uint64_t{4} << 30;
inline constexpr std::size_t kGlobalNameBytesMax = 512;

struct PickleOptions {
    /// The module of NumPy's functions in pickles: "numpy._core.multiarray" since NumPy 2, which
    /// 1.26 finds too; "numpy.core.multiarray" before. Readers that allow names one by one
    /// (weights_only=True) allow that of the running NumPy.
    std::string numpy_module = "numpy._core.multiarray";
};

/// Storages are named by their number: "0", "1", ... The result was read again and compared.
[[nodiscard]] Result<std::string> write_pickle(const ValueTree& tree,
                                               const PickleOptions& options = {});

struct PickleRead {
    ValueTree tree;
    std::uint64_t bytes = 0;  ///< size of the pickle; others may follow
};
/// Reads the pickle at the beginning of `bytes`. `cut_short`, if given, is set when more bytes
/// might fix the error.
[[nodiscard]] Result<PickleRead> read_pickle(std::span<const std::byte> bytes,
                                             bool* cut_short = nullptr);

}  // namespace penstock::format
