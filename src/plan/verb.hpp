// SPDX-License-Identifier: Apache-2.0
// What a question brings to the table of verbs (verbs.cpp).
#pragma once

#include <penstock/plan.hpp>

#include <vector>

namespace penstock::plan {

struct VerbRow {
    Verb info;
    Answer (*ask)(const std::vector<Word>& words);
};

[[nodiscard]] VerbRow train_verb();
[[nodiscard]] VerbRow size_verb();
[[nodiscard]] VerbRow mix_verb();
[[nodiscard]] VerbRow feeds_verb();
[[nodiscard]] VerbRow checkpoint_verb();
[[nodiscard]] VerbRow restore_verb();
[[nodiscard]] VerbRow interval_verb();
[[nodiscard]] VerbRow stream_verb();

}  // namespace penstock::plan
