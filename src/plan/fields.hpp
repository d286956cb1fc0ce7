// SPDX-License-Identifier: Apache-2.0
// The options of a question, in one table: their names in C++, in job files, in Python and on the
// command line, how they are written, and what they mean. A new option is a member and a row.
#pragma once

#include "base/text/near.hpp"
#include "format/fault.hpp"
#include "plan/amount.hpp"

#include <penstock/plan.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace penstock::plan {

template <typename Options>
struct Field {
    const char* name;
    Amount amount;
    std::variant<double Options::*, std::optional<double> Options::*, std::string Options::*,
                 bool Options::*>
        member;
    const char* about;
    bool zero = false;  ///< 0 is allowed
};

/// The options of `words`; the others keep the defaults of the struct. Throws Error for a name that
/// is not known, one that comes twice, and what check_fields() refuses.
template <typename Options>
[[nodiscard]] Options options_of(std::string_view verb, std::span<const Field<Options>> fields,
                                 const std::vector<Word>& words);

/// Throws Error for a number that is not finite or not within what its row allows.
template <typename Options>
void check_fields(std::string_view verb, std::span<const Field<Options>> fields,
                  const Options& options) {
    for (const Field<Options>& field : fields) {
        std::visit(
            [&](auto member) {
                using Member = std::remove_cvref_t<decltype(options.*member)>;
                if constexpr (std::is_same_v<Member, double>) {
                    check_amount(verb, field.name, options.*member, field.amount, field.zero);
                } else if constexpr (std::is_same_v<Member, std::optional<double>>) {
                    if (options.*member) {
                        check_amount(verb, field.name, *(options.*member), field.amount,
                                     field.zero);
                    }
                }
            },
            field.member);
    }
}

namespace detail {

template <typename Options>
void set(std::string_view verb, const Field<Options>& field, const std::string& text,
         Options& options) {
    std::visit(
        [&](auto member) {
            using Member = std::remove_cvref_t<decltype(options.*member)>;
            if constexpr (std::is_same_v<Member, std::string>) {
                options.*member = text;
            } else if constexpr (std::is_same_v<Member, bool>) {
                if (text != "true" && text != "false") {
                    refuse(verb, fmt::format("{}: got {}; expected true or false", field.name,
                                             format::shown(text)));
                }
                options.*member = text == "true";
            } else {
                const double value = parse_amount(verb, field.name, text, field.amount);
                check_amount(verb, field.name, value, field.amount, field.zero);
                options.*member = value;
            }
        },
        field.member);
}

}  // namespace detail

template <typename Options>
Options options_of(std::string_view verb, std::span<const Field<Options>> fields,
                   const std::vector<Word>& words) {
    Options options;
    std::vector<std::string_view> names;
    for (const Field<Options>& field : fields) {
        names.emplace_back(field.name);
    }
    std::vector<bool> seen(fields.size());
    for (const Word& word : words) {
        std::size_t at = 0;
        while (at < fields.size() && names[at] != word.name) {
            ++at;
        }
        if (at == fields.size()) {
            const std::string_view near = base::nearest(word.name, names);
            refuse(verb,
                   fmt::format("there is no option {}; {}", format::shown(word.name),
                               near.empty() ? fmt::format("expected {}", fmt::join(names, ", "))
                                            : fmt::format("did you mean '{}'?", near)));
        }
        if (seen[at]) {
            refuse(verb, fmt::format("{}: given twice", word.name));
        }
        seen[at] = true;
        detail::set(verb, fields[at], word.text, options);
    }
    return options;
}

/// The rows as a Verb has them.
template <typename Options>
std::vector<OptionInfo> infos_of(std::span<const Field<Options>> fields) {
    std::vector<OptionInfo> out;
    for (const Field<Options>& field : fields) {
        out.push_back({field.name, field.amount, field.about});
    }
    return out;
}

/// Refuses a word that is not among those known: "model: got 'x'; did you mean 'y'?".
[[noreturn]] inline void refuse_word(std::string_view verb, std::string_view name,
                                     std::string_view word,
                                     std::span<const std::string_view> known) {
    const std::string_view near = base::nearest(word, known);
    refuse(verb,
           fmt::format("{}: got {}; {}", name, format::shown(word),
                       near.empty() ? fmt::format("expected one of {}", fmt::join(known, ", "))
                                    : fmt::format("did you mean '{}'?", near)));
}

}  // namespace penstock::plan
