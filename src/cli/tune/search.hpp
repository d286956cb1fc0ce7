// SPDX-License-Identifier: Apache-2.0
// Chooses the settings to try next, and judges the rates: the whole decision of `penstock tune`,
// without any access to a disk.
//
//   spread      settings that lie well apart, in rounds; a candidate that is surely slower leaves
//   neighbours  the leaders, one step around the best of them, channels, backends: the same way
//   final       the leader of each goal against the defaults, on fresh samples, in mirrored rounds
//               (D A B, B A D), so that a drift affects all alike
//
// Only the final says that something is better. The best of twenty noisy means is high by chance,
// so the data that chose a leader must not also judge it. Only the ratio of a rate to the defaults
// in the same round counts. The final is looked at kLooks times at most, each at a twentieth over
// kLooks, so that looking often finds no more than one false winner in twenty (in truth half of
// that: only one side of the interval matters). The defaults win ties.
#pragma once

#include "cli/tune/settings.hpp"
#include "probe/statistics.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace penstock::cli {

enum class Goal : std::uint8_t { kRead, kWrite, kBoth };
inline constexpr std::size_t kGoals = 3;

[[nodiscard]] const char* to_string(Goal goal);

/// Bytes a second of one slice each; 0 if it was not measured.
struct Rates {
    double read = 0;
    double write = 0;
};

struct SearchRules {
    double seconds = 40;     ///< of the search, on the clock that next() is given
    double gain_min = 0.02;  ///< less than this is no gain
    bool read = true;
    bool write = true;
    bool full = false;  ///< no early end; one look, when the time is over
    std::uint64_t seed = 1;
    std::vector<BackendKind> backends;  ///< to try besides the one in use
};

/// The result for one goal at the end.
struct GoalVerdict {
    enum class Kind : std::uint8_t {
        kBetter,   ///< the settings are shown to be faster by more than gain_min
        kSame,     ///< nothing tried is faster by gain_min
        kUnclear,  ///< the best may be faster, but there was not enough time to show it
    };
    Kind kind = Kind::kUnclear;
    std::size_t candidate = 0;   ///< kBetter: the choice; else the best rival of the defaults, or 0
    probe::RatioInterval ratio;  ///< rate of the candidate to that of the defaults
    std::size_t rounds = 0;      ///< number of rounds in the interval
};

/// One setting with all that was measured of it.
struct Candidate {
    TuneSettings settings;
    struct Entry {
        std::size_t round = 0;
        double log_read = 0;
        double log_write = 0;
    };
    std::vector<Entry> entries;  ///< of whole rounds
    bool racing = false;         ///< in the stage that runs, or ran last
};

class TuneSearch {
public:
    enum class Stage : std::uint8_t { kSpread, kNeighbours, kFinal, kOver };

    TuneSearch(const TuneSettings& defaults, SearchRules rules);

    /// The candidate to measure now, or nothing at the end. `now` is in seconds since the start.
    [[nodiscard]] std::optional<std::size_t> next(double now);
    /// Takes the rates of the candidate of the last next().
    void add(const Rates& rates, double now);
    /// Ends the search with the data so far.
    void stop();

    [[nodiscard]] const std::vector<Candidate>& candidates() const { return candidates_; }
    [[nodiscard]] Stage stage() const { return stage_; }
    /// The measured goals; the one that settings are chosen by comes last.
    [[nodiscard]] std::vector<Goal> goals() const;
    [[nodiscard]] const GoalVerdict& verdict(Goal goal) const { return verdicts_[index(goal)]; }
    /// The ratio to the defaults over the whole rounds from one on, 95 %: for tables, not for the
    /// verdict.
    [[nodiscard]] probe::RatioInterval ratio_of(std::size_t candidate, Goal goal,
                                                std::size_t from_round = 0) const;
    /// The candidates that are still in the race, the defaults included.
    [[nodiscard]] std::size_t racing() const;
    /// Settings to recommend: the defaults unless something is shown to be better.
    [[nodiscard]] const TuneSettings& choice() const;

private:
    static constexpr std::size_t index(Goal goal) { return static_cast<std::size_t>(goal); }

    [[nodiscard]] std::size_t find_or_add(const TuneSettings& settings);
    [[nodiscard]] std::vector<double> logs(std::size_t candidate, std::size_t against, Goal goal,
                                           std::size_t from_round) const;
    [[nodiscard]] std::size_t leader(Goal goal) const;
    [[nodiscard]] std::size_t best_rival(Goal goal) const;
    [[nodiscard]] bool hopeless(std::size_t candidate, Goal goal, std::size_t from_round) const;
    void begin_round();
    void close_round();
    void eliminate();
    [[nodiscard]] bool race_is_over() const;
    void next_stage();
    void begin_neighbours();
    void begin_final();
    void judge(bool last);
    void judge_goal(Goal goal, std::size_t rounds);

    SearchRules rules_;
    std::mt19937_64 random_;
    Stage stage_ = Stage::kSpread;
    std::vector<Candidate> candidates_;  // 0: the defaults

    std::vector<std::size_t> order_;  // of the current round
    std::size_t position_ = 0;
    std::vector<Rates> sums_;  // sums of logarithms, one per candidate
    std::size_t round_ = 0;
    std::size_t stage_begin_ = 0;  // its first round
    double now_ = 0;
    double step_s_ = 0;  // the longest of the last measurements, with a slow decline

    std::array<GoalVerdict, kGoals> verdicts_;
    std::array<bool, kGoals> decided_{};
    std::array<std::size_t, kGoals> challengers_{};  // 0: none
};

}  // namespace penstock::cli
