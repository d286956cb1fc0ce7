// SPDX-License-Identifier: Apache-2.0
// Plain arguments as Python gives them, and lists of them. Where one is wrong, the error names it,
// what came and what is allowed; nanobind's own would list C++ types. Where memory runs out, these
// raise MemoryError; nanobind's converters of strings and lists would end the process.
#pragma once

#include "base/result.hpp"
#include "names.hpp"
#include "nanobind.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {

/// A whole number from 0 to `max`: int, or what has __index__ (NumPy's). `what` it counts is for
/// the message: "requests". TypeError for other types, bool among them; ValueError out of range.
[[nodiscard]] std::uint64_t count_of(nb::handle value, const std::string& argument,
                                     const char* what,
                                     std::uint64_t max = std::numeric_limits<std::uint64_t>::max());
/// Bytes, as a whole number or in words ("4MiB").
[[nodiscard]] std::uint64_t size_of(nb::handle value, const std::string& argument, const char* what,
                                    std::uint64_t max = std::numeric_limits<std::uint64_t>::max());
/// True or False, NumPy's too. TypeError for all else.
[[nodiscard]] bool flag_of(nb::handle value, const char* argument);
/// A str; half characters, which UTF-8 has none of, are spelt out. TypeError for all else.
[[nodiscard]] std::string word_of(nb::handle value, const std::string& argument);
/// Raises ValueError for a word that is not such an amount: "ARGUMENT: got 'WORD'; expected ...".
template <typename T>
[[nodiscard]] T amount_in(nb::handle word, const std::string& argument,
                          base::Result<T> (*parse)(std::string_view)) {
    const auto read = parse(word_of(word, argument));
    if (!read) {
        raise_value((argument.empty() ? "" : argument + ": ") + "got " + shown(word) + "; " +
                    read.error().message);
    }
    return *read;
}

/// Converts each item of a list (or any other iterable) as count_of() and word_of() do. An error
/// names the item, "shape[2]".
[[nodiscard]] std::vector<std::uint64_t> counts_of(nb::handle list, const char* argument,
                                                   const char* what);
[[nodiscard]] std::vector<std::pair<std::string, std::string>> word_pairs_of(nb::handle list,
                                                                             const char* argument);

/// str() of each.
[[nodiscard]] std::vector<std::string> texts_of(const nb::list& words);

/// The argument changing=: "raise" or "torn".
[[nodiscard]] Changing changing_of(nb::handle changing);

}  // namespace penstock::python
