// SPDX-License-Identifier: Apache-2.0
// The storage that a job needs: arithmetic with its sources. Nothing here touches a disk.
//
//     penstock::plan::TrainOptions job{.model = "resnet50", .accelerators = 8};
//     const penstock::plan::Answer answer = penstock::plan::train(job);
//     const double rate = answer.at("read_bytes_per_second").value;
//     std::puts(penstock::plan::text_of(answer).c_str());
#pragma once

#include <penstock/plan_answer.hpp>
#include <penstock/plan_checkpoint.hpp>
#include <penstock/plan_feeds.hpp>
#include <penstock/plan_interval.hpp>
#include <penstock/plan_mix.hpp>
#include <penstock/plan_model.hpp>
#include <penstock/plan_size.hpp>
#include <penstock/plan_stream.hpp>
#include <penstock/plan_train.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::plan {

/// The kind of value of an option.
enum class Amount {
    kCount,       ///< a whole number
    kNumber,      ///< a number
    kShare,       ///< 0.9 or 90%
    kBytes,       ///< bytes: 4096, 4KiB (binary), 4kB (decimal)
    kRate,        ///< bytes a second: 6.8GB/s, 100Gbit/s
    kSeconds,     ///< 300, 300s, 5min, 2h, 1d, 20ms
    kParameters,  ///< a whole number, 70B (1e9 each), 350M, 1T
    kText,
    kFlag,      ///< true if it is given
    kDocument,  ///< the text of a JSON document; on the command line a file that holds it
};

struct OptionInfo {
    std::string name;  ///< as in the struct of options; with - for _ on the command line
    Amount amount = Amount::kText;
    std::string about;  ///< with its default
};

/// A question that can be asked: a subcommand of `penstock plan`, a function of penstock.plan.
struct Verb {
    std::string name;
    std::string summary;
    std::string details;  ///< for help: what is computed, examples
    std::vector<OptionInfo> options;
};

/// An option as it was written: {"accelerators", "8"}.
struct Word {
    std::string name;
    std::string text;
};

/// All questions. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<Verb> verbs();

/// The answer of a question whose options are words. Throws Error (kInvalidArgument) with the
/// option, its value and what is expected; for an unknown verb, option, preset or model with the
/// nearest name. Thread-safe.
[[nodiscard]] PENSTOCK_API Answer ask(std::string_view verb, const std::vector<Word>& words);

}  // namespace penstock::plan
