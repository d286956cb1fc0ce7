// SPDX-License-Identifier: Apache-2.0
// The table of questions. A new one is a function that makes its row (verb.hpp), named here.
#include "plan/fields.hpp"
#include "plan/verb.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

namespace {

constexpr std::array kVerbs{train_verb,  checkpoint_verb, restore_verb, interval_verb,
                            stream_verb, size_verb,       mix_verb,     feeds_verb};

}  // namespace

std::vector<Verb> verbs() {
    std::vector<Verb> out;
    for (const auto& make : kVerbs) {
        out.push_back(make().info);
    }
    return out;
}

Answer ask(std::string_view verb, const std::vector<Word>& words) {
    std::vector<VerbRow> rows;
    std::vector<std::string_view> names;
    rows.reserve(kVerbs.size());
    for (const auto& make : kVerbs) {
        rows.push_back(make());
        names.emplace_back(rows.back().info.name);
        if (names.back() == verb) {
            return rows.back().ask(words);
        }
    }
    refuse_word({}, "question", verb, names);
}

}  // namespace penstock::plan
