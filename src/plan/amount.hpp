// SPDX-License-Identifier: Apache-2.0
// Numbers with units, as people write and read them.
#pragma once

#include <penstock/plan.hpp>

#include <string>
#include <string_view>

namespace penstock::plan {

/// The number of a word. Throws Error (kInvalidArgument), "plan VERB: NAME: got 'TEXT'; expected
/// ...", for what is no such amount, has a unit of another kind, or does not fit. `verb` may be
/// empty.
[[nodiscard]] double parse_amount(std::string_view verb, std::string_view name,
                                  std::string_view text, Amount amount);

/// Throws Error (kInvalidArgument) unless the number is finite and within what the amount allows: a
/// whole number where it is a count, at most 1 where it is a share, above 0 unless `zero`.
void check_amount(std::string_view verb, std::string_view name, double value, Amount amount,
                  bool zero = false);

/// "plan VERB: MESSAGE" as an Error of kInvalidArgument.
[[noreturn]] void refuse(std::string_view verb, std::string_view message);

/// "56,600", "7,075", "0.1253", "1.183e+12": four digits, whole numbers with all of theirs.
[[nodiscard]] std::string number_text(double value);

/// "6.097 GB/s" and "5.678 GiB/s"; the second is empty where there is no other base.
struct InTwoBases {
    std::string decimal;
    std::string binary;
};
[[nodiscard]] InTwoBases in_two_bases(double value, std::string_view unit);

}  // namespace penstock::plan
