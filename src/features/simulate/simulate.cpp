// SPDX-License-Identifier: Apache-2.0
// The caches over a trace.
#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "features/gather/whole_caches.hpp"
#include "format/fault.hpp"
#include "tier/cache/hinted_keys.hpp"
#include "tier/cache/key_cache.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace penstock {

namespace {

constexpr std::string_view kOperation = "simulate";
constexpr std::array<std::string_view, 8> kPolicies{"static", "clock", "s3fifo",       "window",
                                                    "fifo",   "lru",   "s3fifo_whole", "belady"};
constexpr std::size_t kOfRowPolicy = 4;  // of these, in the order of RowPolicy

[[noreturn]] void refuse_simulation(const std::string& message) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kOperation, message));
}

void check_options(const RowSimulationOptions& options) {
    if (options.slots > tier::kSlotsMax) {
        refuse_simulation(
            fmt::format("slots: got {}; expected at most {}", options.slots, tier::kSlotsMax));
    }
    if (options.window >= tier::HintedKeys::kHints) {
        refuse_simulation(fmt::format("window: got {}; expected 0 to {}", options.window,
                                      tier::HintedKeys::kHints - 1));
    }
}

void check_trace(const RowTrace& trace) {
    const bool in_order = std::is_sorted(trace.ends.begin(), trace.ends.end());
    if (!in_order || (trace.ends.empty() ? 0 : trace.ends.back()) != trace.ids.size()) {
        refuse_simulation("trace: expected ends in ascending order, the last at the end of ids");
    }
}

// The trace with rows numbered from 0 on without gaps, each once a batch.
struct Numbered {
    std::vector<std::uint32_t> rows;
    std::vector<std::size_t> ends;
    std::vector<std::uint64_t> ids;  // of each number

    explicit Numbered(const RowTrace& trace) : ids((check_trace(trace), trace.ids)) {
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        if (ids.size() >= std::numeric_limits<std::uint32_t>::max()) {
            refuse_simulation("trace: expected fewer than 2^32 different rows");
        }
        std::vector<std::uint64_t> seen(ids.size());  // the last batch, from 1 on
        rows.reserve(trace.ids.size());
        for (std::size_t i = 0; i < trace.ends.size(); ++i) {
            for (const std::uint64_t id : trace.batch(i)) {
                const auto row = static_cast<std::uint32_t>(
                    std::lower_bound(ids.begin(), ids.end(), id) - ids.begin());
                if (seen[row] != i + 1) {
                    seen[row] = i + 1;
                    rows.push_back(row);
                }
            }
            ends.push_back(rows.size());
        }
    }
    [[nodiscard]] std::size_t begin_of(std::size_t batch) const {
        return batch == 0 ? 0 : ends[batch - 1];
    }
    [[nodiscard]] std::span<const std::uint32_t> batch(std::size_t i) const {
        return std::span(rows).subspan(begin_of(i), ends[i] - begin_of(i));
    }
};

// For each use: the next batch that has the row.
std::vector<std::uint64_t> next_uses(const Numbered& trace) {
    std::vector<std::uint64_t> next(trace.rows.size());
    std::vector<std::uint64_t> of_row(trace.ids.size(), features::WholeCache::kNever);
    for (std::size_t i = trace.ends.size(); i-- > 0;) {
        for (std::size_t use = trace.begin_of(i); use < trace.ends[i]; ++use) {
            next[use] = of_row[trace.rows[use]];
            of_row[trace.rows[use]] = i;
        }
    }
    return next;
}

// The hot rows that fit; those that the trace does not have take slots too.
std::vector<std::uint64_t> fitting(const RowSimulationOptions& options) {
    const std::span<const std::uint64_t> hot =
        options.hot.first(std::min<std::size_t>(options.hot.size(), options.slots));
    return {hot.begin(), hot.end()};
}

RowSimulation simulate_whole(const Numbered& trace, std::span<const std::uint64_t> next,
                             std::string_view policy, const RowSimulationOptions& options) {
    const auto cache =
        features::make_whole_cache(policy, options.slots, trace.ids.size(), trace.ends.size());
    RowSimulation out;
    const std::vector<std::uint64_t> hot = fitting(options);
    std::vector<std::uint64_t> first(hot.empty() ? 0 : trace.ids.size(),
                                     features::WholeCache::kNever);
    for (std::size_t i = trace.ends.size(); i-- > 0 && !hot.empty();) {
        for (const std::uint32_t row : trace.batch(i)) {
            first[row] = i;
        }
    }
    for (const std::uint64_t id : hot) {
        const auto found = std::lower_bound(trace.ids.begin(), trace.ids.end(), id);
        if (found != trace.ids.end() && *found == id) {
            const auto row = static_cast<std::uint32_t>(found - trace.ids.begin());
            if (!cache->has(row)) {
                cache->add(row, first[row]);
            }
        }
        ++out.preloaded;
    }
    std::vector<std::size_t> missed;
    for (std::size_t i = 0; i < trace.ends.size(); ++i) {
        missed.clear();
        for (std::size_t use = trace.begin_of(i); use < trace.ends[i]; ++use) {
            if (cache->has(trace.rows[use])) {
                cache->use(trace.rows[use], next[use]);
            } else {
                missed.push_back(use);
            }
        }
        for (const std::size_t use : missed) {
            cache->add(trace.rows[use], next[use]);
        }
        if (i >= options.warm_up) {
            ++out.batches;
            out.rows += trace.batch(i).size();
            out.rows_read += missed.size();
        }
    }
    return out;
}

// A gather of each batch, whose hints are `window` batches ahead.
RowSimulation simulate_cache(const Numbered& trace, RowPolicy policy,
                             const RowSimulationOptions& options) {
    const std::vector<std::uint64_t> hot = fitting(options);
    // More slots than all of these rows need would be memory for nothing.
    const std::uint64_t slots =
        std::min(options.slots, tier::slots_for_all(std::uint64_t{trace.ids.size()} + hot.size()));
    tier::KeyCache cache(static_cast<std::uint32_t>(slots), policy);
    RowSimulation out;
    std::vector<tier::KeyPlace> places;
    places.resize(hot.size());
    cache.preload(hot, places);
    cache.commit(places);
    cache.release(places);
    out.preloaded = cache.stats().preloaded;

    std::vector<std::uint64_t> ids;
    const auto ids_of = [&](std::size_t i) -> std::span<const std::uint64_t> {
        ids.clear();
        for (const std::uint32_t row : trace.batch(i)) {
            ids.push_back(trace.ids[row]);
        }
        return ids;
    };
    std::vector<std::uint64_t> numbers(trace.ends.size(), tier::kNoHint);
    std::size_t hinted = 0;
    for (std::size_t i = 0; i < trace.ends.size(); ++i) {
        for (; hinted < trace.ends.size() && options.window != 0 && hinted <= i + options.window;
             ++hinted) {
            numbers[hinted] = cache.hint(ids_of(hinted));
        }
        places.assign(trace.batch(i).size(), {});
        cache.lookup(ids_of(i), places, numbers[i]);
        const auto read = std::count_if(
            places.begin(), places.end(),
            [](const tier::KeyPlace& place) { return place.state == tier::KeyState::kRead; });
        cache.commit(places);
        cache.release(places);
        if (i >= options.warm_up) {
            ++out.batches;
            out.rows += places.size();
            out.rows_read += static_cast<std::uint64_t>(read);
        }
    }
    return out;
}

}  // namespace

std::span<const std::string_view> row_simulation_policies() noexcept {
    return kPolicies;
}

struct RowSimulator::Impl {
    Numbered trace;
    std::vector<std::uint64_t> next;

    explicit Impl(const RowTrace& of) : trace(of), next(next_uses(trace)) {}
};

RowSimulator::RowSimulator(const RowTrace& trace) : impl_(std::make_shared<const Impl>(trace)) {}

RowSimulation RowSimulator::run(std::string_view policy,
                                const RowSimulationOptions& options) const {
    const auto found = std::find(kPolicies.begin(), kPolicies.end(), policy);
    if (found == kPolicies.end()) {
        const std::string_view near = base::nearest(policy, kPolicies);
        refuse_simulation(
            near.empty()
                ? fmt::format("policy: got {}; expected one of {}", format::shown(policy),
                              fmt::join(kPolicies, ", "))
                : fmt::format("policy: got {}; did you mean '{}'?", format::shown(policy), near));
    }
    check_options(options);
    const auto number = static_cast<std::size_t>(found - kPolicies.begin());
    return number < kOfRowPolicy
               ? simulate_cache(impl_->trace, static_cast<RowPolicy>(number), options)
               : simulate_whole(impl_->trace, impl_->next, policy, options);
}

}  // namespace penstock
