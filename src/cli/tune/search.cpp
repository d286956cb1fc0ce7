// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace penstock::cli {

namespace {

// Shares of the time by which the stages end; the final has the rest.
constexpr double kSpreadShare = 0.35;
constexpr double kNeighboursShare = 0.6;
constexpr std::size_t kRaceRoundsMax = 5;
constexpr std::size_t kRaceRoundsMin = 3;  // before an interval excludes a candidate
constexpr double kFarBehind = -0.3;        // of a logarithm: enough to exclude after two rounds
constexpr double kRaceConfidence = 0.9;    // of being slower than the leader
constexpr double kHopelessConfidence = 0.95;
constexpr std::array<std::size_t, 8> kLookAt{4, 6, 9, 13, 18, 25, 35, 50};
constexpr std::size_t kLooks = kLookAt.size() + 1;  // and one when the time is over
constexpr double kLookConfidence = 1 - 0.05 / static_cast<double>(kLooks);

double log_of(double rate) {
    return rate > 0 ? std::log(rate) : 0;
}

probe::RatioInterval ratio_of_logs(const std::vector<double>& logs, double confidence) {
    if (logs.empty()) {
        return {1, 0, std::numeric_limits<double>::infinity(), 1, 1};
    }
    const probe::MeanInterval interval = probe::mean_interval(logs, confidence);
    const auto [min, max] = std::minmax_element(logs.begin(), logs.end());
    return {std::exp(interval.mean), std::exp(interval.low), std::exp(interval.high),
            std::exp(*min), std::exp(*max)};
}

double mean_of(const std::vector<double>& values) {
    return probe::mean_interval(values, 0.5).mean;
}

}  // namespace

const char* to_string(Goal goal) {
    constexpr std::array<const char*, kGoals> kNames{"read", "write", "together"};
    return kNames[static_cast<std::size_t>(goal)];
}

TuneSearch::TuneSearch(const TuneSettings& defaults, SearchRules rules)
    : rules_(std::move(rules)), random_(rules_.seed) {
    for (const TuneSettings& settings : spread_around(defaults)) {
        candidates_[find_or_add(settings)].racing = true;
    }
    begin_round();
}

std::vector<Goal> TuneSearch::goals() const {
    std::vector<Goal> all;
    if (rules_.read) {
        all.push_back(Goal::kRead);
    }
    if (rules_.write) {
        all.push_back(Goal::kWrite);
    }
    if (rules_.read && rules_.write) {
        all.push_back(Goal::kBoth);
    }
    return all;
}

std::size_t TuneSearch::find_or_add(const TuneSettings& settings) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        if (candidates_[i].settings == settings) {
            return i;
        }
    }
    candidates_.emplace_back();
    candidates_.back().settings = settings;
    return candidates_.size() - 1;
}

std::size_t TuneSearch::racing() const {
    return static_cast<std::size_t>(std::count_if(candidates_.begin(), candidates_.end(),
                                                  [](const Candidate& c) { return c.racing; }));
}

const TuneSettings& TuneSearch::choice() const {
    const GoalVerdict& verdict = verdicts_[index(goals().back())];
    return candidates_[verdict.kind == GoalVerdict::Kind::kBetter ? verdict.candidate : 0].settings;
}

// ---- evaluation of the rates

std::vector<double> TuneSearch::logs(std::size_t candidate, std::size_t against, Goal goal,
                                     std::size_t from_round) const {
    const auto value = [goal](const Candidate::Entry& entry) {
        switch (goal) {
            case Goal::kRead:
                return entry.log_read;
            case Goal::kWrite:
                return entry.log_write;
            case Goal::kBoth:
                break;
        }
        return (entry.log_read + entry.log_write) / 2;
    };
    std::vector<double> differences;
    const auto& others = candidates_[against].entries;
    auto other = others.begin();
    for (const Candidate::Entry& entry : candidates_[candidate].entries) {
        while (other != others.end() && other->round < entry.round) {
            ++other;
        }
        if (entry.round >= from_round && other != others.end() && other->round == entry.round) {
            differences.push_back(value(entry) - value(*other));
        }
    }
    return differences;
}

probe::RatioInterval TuneSearch::ratio_of(std::size_t candidate, Goal goal,
                                          std::size_t from_round) const {
    return ratio_of_logs(logs(candidate, 0, goal, from_round), kHopelessConfidence);
}

// The candidate of the race with the best mean, in the rounds of this stage.
std::size_t TuneSearch::leader(Goal goal) const {
    std::size_t best = 0;
    double best_mean = 0;  // the defaults compared with themselves
    for (std::size_t i = 1; i < candidates_.size(); ++i) {
        const auto differences = logs(i, 0, goal, stage_begin_);
        if (candidates_[i].racing && !differences.empty() && mean_of(differences) > best_mean) {
            best = i;
            best_mean = mean_of(differences);
        }
    }
    return best;
}

// The candidate with the best mean except the defaults, in the race or not, in all rounds.
std::size_t TuneSearch::best_rival(Goal goal) const {
    std::size_t best = 0;
    double best_mean = 0;
    std::size_t rounds = kRaceRoundsMin;  // one lucky round does not count against three
    for (; best == 0 && rounds > 0; --rounds) {
        for (std::size_t i = 1; i < candidates_.size(); ++i) {
            const auto differences = logs(i, 0, goal, 0);
            if (differences.size() >= rounds && (best == 0 || mean_of(differences) > best_mean)) {
                best = i;
                best_mean = mean_of(differences);
            }
        }
    }
    return best;
}

// Whether it is surely not faster than the defaults by gain_min.
bool TuneSearch::hopeless(std::size_t candidate, Goal goal, std::size_t from_round) const {
    const auto differences = logs(candidate, 0, goal, from_round);
    return differences.size() >= kRaceRoundsMin &&
           probe::mean_interval(differences, kHopelessConfidence).high <
               std::log1p(rules_.gain_min);
}

// ---- rounds

void TuneSearch::begin_round() {
    order_.clear();
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        if (candidates_[i].racing) {
            order_.push_back(i);
        }
    }
    std::shuffle(order_.begin(), order_.end(), random_);
    if (round_ == 0) {
        // All are compared with the defaults: a search that ends within its first round has them.
        std::iter_swap(order_.begin(), std::find(order_.begin(), order_.end(), std::size_t{0}));
    }
    if (stage_ == Stage::kFinal) {
        const std::vector<std::size_t> there = order_;
        order_.insert(order_.end(), there.rbegin(), there.rend());
    }
    position_ = 0;
    sums_.assign(candidates_.size(), {});
}

std::optional<std::size_t> TuneSearch::next(double now) {
    now_ = now;
    while (stage_ != Stage::kOver) {
        const bool fresh = position_ == 0;
        const double ahead = step_s_ * static_cast<double>(fresh ? order_.size() : 1);
        double share = 1;
        if (stage_ == Stage::kSpread) {
            share = kSpreadShare;
        } else if (stage_ == Stage::kNeighbours) {
            share = kNeighboursShare;
        }
        const bool has_rounds = round_ > stage_begin_;
        const double end = rules_.seconds * (has_rounds && fresh ? share : 1);
        if (now + ahead <= end) {
            return order_[position_];
        }
        if (stage_ == Stage::kFinal || !has_rounds) {
            stop();
        } else {
            next_stage();
        }
    }
    return std::nullopt;
}

void TuneSearch::add(const Rates& rates, double now) {
    step_s_ = std::max(now - now_, 0.8 * step_s_);
    now_ = now;
    Rates& sum = sums_[order_[position_]];
    sum.read += log_of(rates.read);
    sum.write += log_of(rates.write);
    if (++position_ == order_.size()) {
        close_round();
    }
}

void TuneSearch::close_round() {
    const double passes = stage_ == Stage::kFinal ? 2 : 1;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        if (candidates_[i].racing) {
            candidates_[i].entries.push_back(
                {round_, sums_[i].read / passes, sums_[i].write / passes});
        }
    }
    ++round_;
    if (stage_ == Stage::kFinal) {
        judge(false);
    } else {
        eliminate();
        if (race_is_over()) {
            next_stage();
        }
    }
    if (stage_ != Stage::kOver) {
        begin_round();
    }
}

// ---- the races

void TuneSearch::eliminate() {
    std::vector<bool> stays(candidates_.size(), false);
    stays[0] = true;
    for (const Goal goal : goals()) {
        const std::size_t best = leader(goal);
        for (std::size_t i = 1; i < candidates_.size(); ++i) {
            const auto behind = logs(i, best, goal, stage_begin_);
            const bool far = behind.size() >= 2 && mean_of(behind) < kFarBehind;
            const bool surely = behind.size() >= kRaceRoundsMin && i != best &&
                                probe::mean_interval(behind, kRaceConfidence).high < 0;
            if (i == best || (!far && !surely && !hopeless(i, goal, stage_begin_))) {
                stays[i] = true;
            }
        }
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        candidates_[i].racing = candidates_[i].racing && stays[i];
    }
}

bool TuneSearch::race_is_over() const {
    const std::size_t rounds = round_ - stage_begin_;
    if (rules_.full) {
        return false;  // the time ends it
    }
    if (rounds >= kRaceRoundsMax || racing() <= 1) {
        return true;
    }
    return rounds >= kRaceRoundsMin && racing() == 2;
}

void TuneSearch::next_stage() {
    if (stage_ == Stage::kSpread) {
        begin_neighbours();
    } else {
        begin_final();
    }
    if (stage_ != Stage::kOver) {
        stage_begin_ = round_;
        begin_round();
    }
}

void TuneSearch::begin_neighbours() {
    const std::size_t centre = leader(goals().back());
    std::vector<std::size_t> racers{0, centre};
    for (const Goal goal : goals()) {
        racers.push_back(leader(goal));
    }
    for (const TuneSettings& settings : neighbours(candidates_[centre].settings, rules_.backends)) {
        racers.push_back(find_or_add(settings));
    }
    for (Candidate& candidate : candidates_) {
        candidate.racing = false;
    }
    for (const std::size_t racer : racers) {
        candidates_[racer].racing = true;
    }
    stage_ = Stage::kNeighbours;
}

// ---- the final

void TuneSearch::begin_final() {
    std::vector<std::size_t> finalists{0};
    for (const Goal goal : goals()) {
        // If no candidate is faster than the defaults, the best one has to be shown to be no gain.
        const std::size_t first = leader(goal);
        const bool leads = first != 0 && !rules_.full;
        const std::size_t best = leads ? first : best_rival(goal);
        const bool open =
            best != 0 && (rules_.full || !hopeless(best, goal, leads ? stage_begin_ : 0));
        challengers_[index(goal)] = open ? best : 0;
        decided_[index(goal)] = !open;
        if (open) {
            finalists.push_back(best);
        } else {
            verdicts_[index(goal)] = {
                .kind = GoalVerdict::Kind::kSame,
                .candidate = best,
                .ratio = ratio_of(best, goal, leads ? stage_begin_ : 0),
                .rounds = logs(best, 0, goal, leads ? stage_begin_ : 0).size()};
        }
    }
    if (finalists.size() == 1) {
        stage_ = Stage::kOver;
        return;
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        candidates_[i].racing = std::find(finalists.begin(), finalists.end(), i) != finalists.end();
    }
    stage_ = Stage::kFinal;
}

void TuneSearch::stop() {
    if (stage_ == Stage::kOver) {
        return;
    }
    if (stage_ != Stage::kFinal) {
        // There was no time for a final: nothing is shown.
        for (const Goal goal : goals()) {
            const std::size_t rival = best_rival(goal);
            verdicts_[index(goal)] = {.kind = GoalVerdict::Kind::kUnclear,
                                      .candidate = rival,
                                      .ratio = ratio_of(rival, goal),
                                      .rounds = logs(rival, 0, goal, 0).size()};
        }
    } else {
        judge(true);
    }
    stage_ = Stage::kOver;
}

void TuneSearch::judge(bool last) {
    const std::size_t rounds = round_ - stage_begin_;
    const bool look =
        !rules_.full && std::find(kLookAt.begin(), kLookAt.end(), rounds) != kLookAt.end();
    if (!look && !last) {
        return;
    }
    for (const Goal goal : goals()) {
        if (!decided_[index(goal)]) {
            judge_goal(goal, rounds);
        }
    }
    // Drops candidates that no open goal needs.
    std::vector<bool> needed(candidates_.size(), false);
    for (const Goal goal : goals()) {
        if (!decided_[index(goal)]) {
            needed[challengers_[index(goal)]] = true;
            needed[0] = true;
        }
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        candidates_[i].racing = needed[i];
    }
    if (!needed[0]) {
        stage_ = Stage::kOver;
    }
}

void TuneSearch::judge_goal(Goal goal, std::size_t rounds) {
    const std::size_t challenger = challengers_[index(goal)];
    // With `full` there is one look, at the end.
    const probe::RatioInterval ratio = ratio_of_logs(logs(challenger, 0, goal, stage_begin_),
                                                     rules_.full ? 0.95 : kLookConfidence);
    const double enough = 1 + rules_.gain_min;
    GoalVerdict& verdict = verdicts_[index(goal)];
    verdict = {.kind = GoalVerdict::Kind::kUnclear,
               .candidate = challenger,
               .ratio = ratio,
               .rounds = rounds};
    if (rounds >= kLookAt.front() && ratio.low > enough) {
        verdict.kind = GoalVerdict::Kind::kBetter;
    } else if (rounds >= kLookAt.front() && ratio.high < enough) {
        verdict.kind = GoalVerdict::Kind::kSame;
    }
    decided_[index(goal)] = verdict.kind != GoalVerdict::Kind::kUnclear;
}

}  // namespace penstock::cli
