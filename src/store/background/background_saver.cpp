// SPDX-License-Identifier: Apache-2.0
#include "store/background/background_saver.hpp"

#include "base/assert.hpp"
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
    PENSTOCK_ASSERT(spans.size() == sources.size());
    sweep();
    StagedSave out;
    std::vector<CopyChoice::Range> uncopied = choice.unchanging;
    for (const SourceMemory& source : sources) {
        if (source.copied) {
            uncopied.emplace_back(source.bytes.data, source.bytes.data + source.bytes.bytes);
        }
    }
    if (base::planted("whole_storages")) {
        widen(uncopied, sources);
    }
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
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool stays = spans[i].bytes != 0 && spans[i].data == sources[i].bytes.data;
        out.all = out.all && (!stays || sources[i].copied);
        out.borrows = out.borrows || stays;
    }
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

void BackgroundSaver::raise_failure(const std::string& what, bool has_begun) {
    sweep();
    const auto failed = queue_->take_failure();
    if (!failed) {
        return;
    }
    try {
        std::rethrow_exception(failed->failure());
    } catch (const Error& e) {
        const std::string message =
            what.empty() || failed->name() == what
                ? fmt::format("the save of {} in the background failed: {}", failed->name(),
                              e.what())
                : fmt::format("the earlier save of {} failed, and {} was {}: {}", failed->name(),
                              what,
                              has_begun ? "begun all the same" : "not begun (saving again goes on)",
                              e.what());
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

namespace {

// The look for memory that is read later, by a save that may not take what has changed since now.
MemoryLook look_later(const StagedMemory& staged, Changing changing, MemoryLook look) {
    if (changing == Changing::kTorn) {
        return look;
    }
    std::vector<ConstMemory> memory = staged.memory;
    for (std::size_t i = 0; i < memory.size(); ++i) {
        if (staged.copies[i]) {
            memory[i] = {};
        }
    }
    return stream::with_samples(std::move(look), memory);
}

// Calls `step` until it says true.
template <typename Step, typename Between>
void wait_for(const Step& step, const Between& between) {
    while (!step(base::kWaitSlice)) {
        between();
    }
}

}  // namespace

penstock::PendingSave save_async(BackgroundSaver& saver, AsyncSave save,
                                 const AsyncOptions& options) {
    if (!save.begins_always) {
        saver.raise_failure(save.name);
    }
    CopyChoice choice{.copy = options.copy, .unchanging = {}, .streams = std::move(save.streams)};
    for (const ConstMemory& memory : options.unchanging) {
        choice.unchanging.emplace_back(memory.data, memory.data + memory.bytes);
    }
    StagedMemory now;
    for (const SourceMemory& source : save.memory) {
        now.memory.push_back(source.bytes);
    }
    StagedSave staged = saver.stage(now.memory, save.memory, choice, [&](const auto& step) {
        wait_for(step, [&] {
            if (options.waiting) {
                options.waiting({});
            }
        });
    });
    for (std::size_t i = 0; i < now.memory.size(); ++i) {
        const SourceMemory& source = save.memory[i];
        // Where nothing is read, nothing is looked at: `keeps` may be gone by then.
        now.copies.push_back(source.copied || source.bytes.bytes == 0 ||
                             now.memory[i].data != source.bytes.data);
    }
    now.look = look_later(now, save.changing, std::move(save.look));
    const auto pending = std::make_shared<penstock::PendingSave::Impl>();
    pending->note = saver.reason_of_wait(staged);
    pending->waited_s = staged.waited_s;
    struct Job {
        AsyncSave::Work work;
        StagedCopy copy;
        StreamMark after;
    };
    auto job = std::make_shared<Job>(
        Job{save.work(std::move(now)), std::move(staged.copy), std::move(staged.after)});
    pending->save = saver.add(
        [job = std::move(job), pending](PendingSave& running) {
            job->after.wait();
            CheckpointInfo info;
            job->work(running, info);
            pending->info = std::move(info);
        },
        save.name, staged.all, staged.borrows ? options.keeps : nullptr);
    penstock::PendingSave out(pending);
    if (staged.tight) {
        wait_for([&](auto slice) { return out.wait_staged(slice); },
                 [&] {
                     if (options.waiting) {
                         options.waiting({out.note(), out.done_bytes(), out.total_bytes()});
                     }
                 });
    }
    return out;
}

std::vector<SourceMemory> memory_of(const State& state) {
    std::vector<SourceMemory> out;
    for (const StateTensor& tensor : state.tensors) {
        out.push_back({.bytes = tensor.data, .copied = tensor.is_copy});
    }
    return out;
}

void place(State& state, const StagedMemory& staged) {
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        state.tensors[i].data = staged.memory[i];
        state.tensors[i].is_copy = staged.copies[i];
    }
}

}  // namespace penstock::store
