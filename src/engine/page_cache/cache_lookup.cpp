// SPDX-License-Identifier: Apache-2.0
#include "engine/page_cache/cache_lookup.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <array>

namespace penstock::engine {

namespace {

constexpr std::uint64_t kFineBytes = base::kMiB;
constexpr std::uint64_t kProbedBytes = 4 * base::kMiB;
// Cold small reads to a question, and to a probe, which costs a page.
constexpr std::uint32_t kPauseMax = 255;
constexpr std::uint32_t kProbePauseMax = UINT32_MAX / 4;

}  // namespace

CacheLookup::Stretch CacheLookup::look_further(os::File& file, std::uint64_t offset,
                                               std::uint64_t bytes, std::uint64_t list_bytes) {
    if (file.info().in_memory) {
        return {offset + bytes, true, false};
    }
    const bool refused = file.cache_history().refused();
    if (bytes >= kAlwaysAskBytes) {
        bytes = std::min(bytes, kWindowBytes);
        return refused ? probe_run(file, offset, bytes) : look_at_run(file, offset, bytes);
    }
    if (list_bytes != 0 && !refused) {
        const Stretch list = look_at_list(file, offset, std::min(list_bytes, kWindowBytes));
        if (list.end != 0) {
            return list;
        }
    }
    return {offset + bytes, small_is_cached(file, offset, bytes), true};
}

bool CacheLookup::small_is_cached(os::File& file, std::uint64_t offset, std::uint64_t bytes) {
    os::CacheHistory& history = file.cache_history();
    if (caller_waits_ && history.in_sequence(offset, bytes)) {
        return true;
    }
    if (history.warm()) {
        return true;
    }
    if (history.skip()) {
        return false;
    }
    const Answer answer = ask(file, offset, bytes);
    const bool cached = answer == Answer::kAll || answer == Answer::kSomeDirty;
    if (cached) {
        found_warm(file);
    } else {
        history.found_cold(history.refused() ? kProbePauseMax : kPauseMax);
    }
    return cached;
}

// With `end` 0 where each extent is to be asked for.
CacheLookup::Stretch CacheLookup::look_at_list(os::File& file, std::uint64_t offset,
                                               std::uint64_t bytes) {
    if (!within(file, offset, mixed_until_)) {
        const Answer whole = ask(file, offset, bytes);
        if (file.cache_history().refused()) {
            return {};
        }
        if (whole == Answer::kAll) {
            found_warm(file);
        }
        if (whole == Answer::kNone || whole == Answer::kAll) {
            return {offset + bytes, whole == Answer::kAll};
        }
        mixed_until_ = offset + bytes;
        each_until_ = offset;
    }
    if (within(file, offset, each_until_)) {
        return {};
    }
    const std::uint64_t end =
        std::min(offset + bytes, base::align_down(offset, kFineBytes) + kFineBytes);
    const Answer fine = ask(file, offset, end - offset);
    if (fine == Answer::kNone || fine == Answer::kAll) {
        return {end, fine == Answer::kAll};
    }
    each_until_ = end;
    return {};
}

CacheLookup::Stretch CacheLookup::look_at_run(os::File& file, std::uint64_t offset,
                                              std::uint64_t bytes) {
    if (!within(file, offset, mixed_until_)) {
        const Answer whole = ask(file, offset, bytes);
        if (whole == Answer::kNone || whole == Answer::kAll) {
            return {offset + bytes, whole == Answer::kAll};
        }
        mixed_until_ = offset + bytes;
    }
    const std::uint64_t end =
        std::min(offset + bytes, base::align_down(offset, kFineBytes) + kFineBytes);
    const Answer fine = ask(file, offset, end - offset);
    return {end, fine == Answer::kAll || fine == Answer::kSomeDirty};
}

CacheLookup::Stretch CacheLookup::probe_run(os::File& file, std::uint64_t offset,
                                            std::uint64_t bytes) {
    os::CacheHistory& history = file.cache_history();
    if (!history.warm() && history.skip()) {
        return {offset + bytes, false};
    }
    const std::uint64_t end =
        std::min(offset + bytes, base::align_down(offset, kProbedBytes) + kProbedBytes);
    if (probe(file, offset, end - offset)) {
        found_warm(file);
        return {end, true};
    }
    history.found_cold(kProbePauseMax);
    return {offset + bytes, false};
}

CacheLookup::Answer CacheLookup::ask(os::File& file, std::uint64_t offset, std::uint64_t bytes) {
    if (!file.cache_history().refused()) {
        os::CachedPages found;
        counters_->cache_questions.add(1);
        if (file.cached_pages(offset, bytes, found) == 0) {
            const std::uint64_t pages = base::align_up(offset + bytes, base::kPageBytes) -
                                        base::align_down(offset, base::kPageBytes);
            if (found.pages >= pages / base::kPageBytes) {
                return Answer::kAll;
            }
            return found.dirty != 0   ? Answer::kSomeDirty
                   : found.pages != 0 ? Answer::kSome
                                      : Answer::kNone;
        }
        file.cache_history().note_refusal();
    }
    return probe(file, offset, bytes) ? Answer::kAll : Answer::kNone;
}

// Its first, its last and its middle byte, as long as they are there.
bool CacheLookup::probe(os::File& file, std::uint64_t offset, std::uint64_t bytes) {
    const std::array<std::uint64_t, 3> places{0, bytes - 1, bytes / 2};
    return std::all_of(places.begin(), places.end(), [&](std::uint64_t place) {
        std::byte byte{};
        const iovec piece{&byte, 1};
        counters_->cache_questions.add(1);
        return file.read_cached(offset + place, {&piece, 1}) == 1;
    });
}

}  // namespace penstock::engine
