// SPDX-License-Identifier: Apache-2.0
#include "store/background/background_saver.hpp"

#include "base/planted.hpp"
#include "base/text/units.hpp"
#include "base/wait_slice.hpp"
#include "stream/memory_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>

namespace penstock::store {

namespace {

// Seconds that a wait for room in the budget may take before it is reported.
constexpr double kWaitReportedS = 1;

// `ranges` rise, and do not overlap.
bool lies_in(const ConstMemory& piece, const std::vector<CopyChoice::Range>& ranges) {
    const auto after = std::upper_bound(
        ranges.begin(), ranges.end(), piece.data,
        [](const std::byte* begin, const CopyChoice::Range& range) { return begin < range.first; });
    return after != ranges.begin() && piece.data + piece.bytes <= std::prev(after)->second;
}

// A planted defect: takes whole storages for what ranges of them are.
void widen(std::vector<CopyChoice::Range>& ranges, std::span<const SourceMemory> sources) {
    for (CopyChoice::Range& range : ranges) {
        for (const SourceMemory& source : sources) {
            const std::byte* const begin = source.bytes.data;
            if (range.first >= begin && range.first < begin + source.bytes.bytes) {
                range = {begin, begin + source.bytes.bytes};
                break;
            }
        }
    }
}

std::string message_of(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception& e) {
        return e.what();
    } catch (...) {
        return "unknown";
    }
}

}  // namespace

BackgroundSaver::BackgroundSaver(std::uint64_t budget_bytes)
    : staging_({.budget_bytes = budget_bytes, .threads = 0}),
      queue_(std::make_shared<SaveQueue>()) {}

StagedSave BackgroundSaver::stage(std::vector<ConstMemory>& spans,
                                  std::span<const SourceMemory> sources, const CopyChoice& choice,
                                  const Wait& wait) {
    sweep();
    StagedSave out;
    std::vector<CopyChoice::Range> uncopied = choice.unchanging;
    bool all_copied = true;
    for (const SourceMemory& source : sources) {
        all_copied = all_copied && (source.copied || source.bytes.bytes == 0);
        if (source.copied) {
            uncopied.emplace_back(source.bytes.data, source.bytes.data + source.bytes.bytes);
        }
    }
    if (base::planted("whole_storages")) {
        widen(uncopied, sources);
    }
    const bool has_copied = uncopied.size() != choice.unchanging.size();
    std::sort(uncopied.begin(), uncopied.end());
    if (choice.copy) {
        copy(spans, uncopied, choice.streams, out, wait);
    }
    std::vector<std::int32_t> devices;
    for (const ConstMemory& span : spans) {
        if (span.kind == MemoryKind::kDevice && span.bytes != 0 &&
            std::find(devices.begin(), devices.end(), span.device) == devices.end()) {
            devices.push_back(span.device);
        }
    }
    if (!devices.empty()) {
        out.after = StreamMark(choice.streams, devices);
    }
    out.all = !out.tight && (all_copied || (choice.copy && choice.unchanging.empty()));
    out.borrows = !out.all || has_copied;
    return out;
}

void BackgroundSaver::copy(std::vector<ConstMemory>& spans,
                           const std::vector<CopyChoice::Range>& uncopied,
                           std::span<const StreamHandle> streams, StagedSave& out,
                           const Wait& wait) {
    std::vector<std::size_t> which;
    std::vector<ConstMemory> pieces;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].bytes != 0 && !lies_in(spans[i], uncopied)) {
            which.push_back(i);
            pieces.push_back(spans[i]);
        }
    }
    if (pieces.empty()) {
        return;
    }
    out.tight = Staging::area_bytes(pieces) > staging_.budget_bytes();
    if (out.tight) {
        return;
    }
    using Clock = std::chrono::steady_clock;
    const auto began = Clock::now();
    std::optional<StagedCopy> made;
    bool waited = false;
    wait([&](std::chrono::nanoseconds time) {
        const bool alone = queue_->in_flight() == 0;
        sweep();  // what a save kept may be copies, too
        made = staging_.copy(pieces, alone ? kLastLook : time, streams);
        waited = waited || !made;
        if (waited) {
            out.waited_s = std::chrono::duration<double>(Clock::now() - began).count();
        }
        return made.has_value() || alone;
    });
    if (!made) {  // iterators hold the room, which may wait for this save
        out.tight = out.crowded = true;
        return;
    }
    out.copy = std::move(*made);
    for (std::size_t i = 0; i < which.size(); ++i) {
        spans[which[i]] = out.copy.pieces()[i];
    }
}

std::shared_ptr<PendingSave> BackgroundSaver::add(SaveQueue::Work work, const std::string& name,
                                                  bool staged, std::shared_ptr<void> keeps) {
    Keeps& own = *keeps_;
    const std::lock_guard<std::mutex> guard(own.mutex);
    own.list.reserve(own.list.size() + 1);  // emplace_back() below cannot throw
    auto save = queue_->add(std::move(work), name, staged);
    if (keeps != nullptr) {
        own.list.emplace_back(save, std::move(keeps));
    }
    return save;
}

void BackgroundSaver::sweep() {
    std::vector<std::shared_ptr<void>> done;  // destroyed after the unlock: a destructor may call
                                              // this object again
    Keeps& own = *keeps_;
    const std::lock_guard<std::mutex> guard(own.mutex);
    const auto first = std::partition(own.list.begin(), own.list.end(),
                                      [](const auto& keep) { return !keep.first->done(); });
    std::for_each(first, own.list.end(),
                  [&](auto& keep) { done.push_back(std::move(keep.second)); });
    own.list.erase(first, own.list.end());
}

void BackgroundSaver::raise_failure(const std::string& what) {
    sweep();
    const auto failed = queue_->take_failure();
    if (!failed) {
        return;
    }
    try {
        std::rethrow_exception(failed->failure());
    } catch (const Error& e) {
        const std::string message = what.empty()
                                        ? fmt::format("the save of {} in the background failed: {}",
                                                      failed->name(), e.what())
                                        : fmt::format(
                                              "the earlier save of {} failed, and {} was not begun "
                                              "(saving again goes on): {}",
                                              failed->name(), what, e.what());
        throw Error(e.reason(), e.system_errno(), e.operation(), e.path(), e.offset(), message);
    }
}

std::vector<std::string> BackgroundSaver::take_failures() {
    std::vector<std::string> texts;
    while (const auto failed = queue_->take_failure()) {
        texts.push_back(fmt::format("the save of {} failed, and nobody asked for its result: {}",
                                    failed->name(), message_of(failed->failure())));
    }
    return texts;
}

StagedSave stage_state(BackgroundSaver& saver, State& state, const AsyncOptions& options,
                       const std::vector<StreamHandle>& streams) {
    CopyChoice choice{.copy = options.copy, .unchanging = {}, .streams = streams};
    for (const ConstMemory& memory : options.unchanging) {
        choice.unchanging.emplace_back(memory.data, memory.data + memory.bytes);
    }
    std::vector<ConstMemory> spans;
    std::vector<SourceMemory> sources;
    for (const StateTensor& tensor : state.tensors) {
        spans.push_back(tensor.data);
        sources.push_back({.bytes = tensor.data, .copied = tensor.is_copy});
    }
    StagedSave staged = saver.stage(spans, sources, choice, [](const auto& step) {
        while (!step(base::kWaitSlice)) {
        }
    });
    for (std::size_t i = 0; i < spans.size(); ++i) {
        state.tensors[i].is_copy |= state.tensors[i].data.data != spans[i].data;
        state.tensors[i].data = spans[i];
    }
    return staged;
}

MemoryLook look_later(const State& state, Changing changing, MemoryLook look) {
    if (changing == Changing::kTorn) {
        return look;
    }
    std::vector<ConstMemory> memory;
    memory.reserve(state.tensors.size());
    for (const StateTensor& tensor : state.tensors) {
        memory.push_back(tensor.is_copy ? ConstMemory{} : tensor.data);
    }
    return stream::with_samples(std::move(look), memory);
}

std::string BackgroundSaver::reason_of_wait(const StagedSave& staged) const {
    const std::string budget = base::format_bytes(staging_.budget_bytes());
    if (staged.crowded) {
        return fmt::format(
            "a copy of the tensors has no room: host_memory is {}, and iterators that are read "
            "hold the rest of it, so save_async waits until the save is done; raise host_memory, "
            "or use copy=False",
            budget);
    }
    if (staged.tight) {
        return fmt::format(
            "a copy of the tensors does not fit into host_memory ({}), so "
            "save_async waits until the save is done; raise host_memory, or use "
            "copy=False",
            budget);
    }
    if (!staged.copy.note().empty()) {
        return staged.copy.note();
    }
    if (staged.waited_s > kWaitReportedS) {
        return fmt::format(
            "save_async waited {:.1f} s for host memory: {} are the budget, and "
            "saves in flight held them; save less often, or raise host_memory",
            staged.waited_s, budget);
    }
    return {};
}

}  // namespace penstock::store
