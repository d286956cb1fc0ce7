// SPDX-License-Identifier: Apache-2.0
// The life of a window of a transfer: what may block before its first request and after its last.
//
//   next_files -> [wait for room] -> open_files -> move_files -> parts ... parts_done -> settle
//       |                                                                                  |
//       +<--------------------------- more files -----------------------------------------+
//
// A small file that comes through the page cache is read and closed by the thread that
// opens it, and never meets a channel's thread.
//
// A transfer of open files has one window, which begins at move_files (or at preallocating) and
// ends its transfer. One of paths has up to kWindowsMax, each of which takes the next kWindowFiles
// files when it has closed those before, so that while one opens files the others keep the devices
// busy, and a transfer of a million files has few of them open. Near the limit on descriptors a
// window opens fewer, or waits for others to close theirs: it goes over its files again until none
// is left.
//
// open_files and settle, which may block, go device by device, each on a thread of that device's.
//
// Each step goes on to the next or ends the window, and throws nothing. What may throw within one
// does so before the window is anybody else's: then failed() ends it.
#include "base/assert.hpp"
#include "engine/core.hpp"
#include "engine/layout.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock::engine {

namespace {

// More files of 4 KiB than a device gets requests at once.
constexpr std::uint32_t kWindowFiles = 128;
constexpr std::uint32_t kWindowsMax = 4;

const char* name_of(Op op) {
    return op == Op::kRead ? "read" : "write";
}

bool no_descriptor(const base::Error& error) {
    return error.system_errno == EMFILE || error.system_errno == ENFILE;
}

std::uint32_t descriptors_of(const os::File& file) {
    return (file.descriptor(os::IoPath::kBuffered) >= 0 ? 1U : 0U) +
           (file.descriptor(os::IoPath::kDirect) >= 0 ? 1U : 0U);
}

// A short read must know where the file ends: see Plan.
void note_end(const Transfer& transfer, os::File& file) {
    if (transfer.allow_short && (file.geometry().direct || file.info().keeps_cache)) {
        file.note_size(file.size_at_hand());
    }
}

// All files of a window have been made by now, so one sync of a folder is good for all its names.
base::Result<void> sync_one(os::File& file, std::vector<std::string>& folders) {
    std::string folder = file.folder_key();
    if (!folder.empty() && std::find(folders.begin(), folders.end(), folder) != folders.end()) {
        return file.sync_data();
    }
    PENSTOCK_CHECK(file.sync());
    if (!folder.empty()) {
        folders.push_back(std::move(folder));
    }
    return {};
}

// Without its data, a file that this transfer made is not what anybody asked for.
void take_back(const Transfer& transfer, os::File& file) {
    if (transfer.op == Op::kWrite && transfer.stopped()) {
        file.take_back();
    }
}

}  // namespace

template <void (Core::*step)(Window&) noexcept>
void Core::post(Window& window, Executor& executor) noexcept {
    window.run = [](Job& job) noexcept {
        auto& self = static_cast<Window&>(job);
        (self.core->*step)(self);
    };
    executor.post(window);
}

void Core::make_windows(Transfer& transfer) {
    Window& first = transfer.first_window;
    first.core = this;
    first.transfer = &transfer;
    if (transfer.paths.empty()) {
        first.end_file = static_cast<std::uint32_t>(transfer.files.size());
        if (transfer.files.size() > 1) {
            transfer.groups.assign(transfer.files.size(), Transfer::kReady);
        }
        return;
    }
    const auto files = static_cast<std::uint32_t>(transfer.paths.size());
    transfer.files.resize(files);
    transfer.groups.assign(files, Transfer::kNotOpen);
    if (transfer.op == Op::kWrite && transfer.cache == CachePolicy::kAuto && !transfer.sync) {
        transfer.file_bytes.resize(files);
        for (std::uint64_t i = 0; i < transfer.extents.count(); ++i) {
            const Extent extent = transfer.extents[i];
            transfer.file_bytes[extent.file] += extent.memory.bytes;
        }
    }
    for (std::uint64_t i = 1; i < transfer.extents.count() && transfer.in_order; ++i) {
        transfer.in_order = transfer.extents[i - 1].file <= transfer.extents[i].file;
    }
    const std::uint32_t windows = std::min((files + kWindowFiles - 1) / kWindowFiles, kWindowsMax);
    for (std::uint32_t i = 1; i < windows; ++i) {
        auto window = std::make_unique<Window>();
        window->core = this;
        window->transfer = &transfer;
        transfer.more_windows.push_back(std::move(window));
    }
    transfer.windows_left.store(windows);
}

void Core::begin(Transfer& transfer, bool caller_waits) noexcept {
    Window& first = transfer.first_window;
    if (transfer.paths.empty()) {
        auto begun =
            base::as_result(name_of(transfer.op), [&] { return begin_open(first, caller_waits); });
        if (!begun) {
            failed(first, std::move(begun.error()));
        }
        return;
    }
    // The others open theirs while the caller does. The list does not change any more; the transfer
    // is there until the first window, which is begun last, is through.
    for (const auto& window : transfer.more_windows) {
        next_files(*window, false);
    }
    next_files(first, caller_waits);
}

// A transfer of files that are open already.
base::Result<void> Core::begin_open(Window& window, bool caller_waits) {
    Transfer& transfer = *window.transfer;
    for (std::size_t i = 0; transfer.allow_short && i < transfer.files.size(); ++i) {
        note_end(transfer, *transfer.files[i]);
    }
    if (caller_waits && run_inline(window)) {
        return {};
    }
    if (!may_extend(transfer, options_.preallocate_bytes_min)) {
        return lay_out_and_link(window);
    }
    PENSTOCK_CHECK(find_domains(window));
    window.reserves = transfer.extents.count() > 1;
    window.domains_left = static_cast<std::uint32_t>(window.domains.size());
    if (caller_waits) {
        preallocate_by_device(window);
    } else {
        post<&Core::preallocate_by_device>(window, window.domains.front()->blocking());
    }
    return {};
}

// The files of one device after the other's, each on a thread of the device's. No file of several
// is extended before all have their room: where one is refused, the others are as they were.
void Core::preallocate_by_device(Window& window) noexcept {
    for (;;) {
        PENSTOCK_ASSERT(window.domains_left != 0);
        const std::uint32_t group = --window.domains_left;
        auto made = base::as_result("preallocate",
                                    [&] { return preallocate(window, group, window.reserves); });
        if (!made) {
            failed(window, std::move(made.error()));
            return;
        }
        if (group == 0) {
            if (!std::exchange(window.reserves, false)) {
                move_files(window);
                return;
            }
            window.domains_left = static_cast<std::uint32_t>(window.domains.size());
        }
        if (window.domains.size() > 1) {
            post<&Core::preallocate_by_device>(window,
                                               window.domains[window.domains_left - 1]->blocking());
            return;
        }
    }
}

// A run that extends its file gets its room first: extending writes wait for each other, and a full
// disk is better met now. That a file system cannot is normal. `reserves`: the sizes stay.
base::Result<void> Core::preallocate(Window& window, std::uint32_t group, bool reserves) {
    Transfer& transfer = *window.transfer;
    if (transfer.op == Op::kRead || transfer.total_bytes < options_.preallocate_bytes_min) {
        return {};
    }
    for (const FileRange& range : extending_runs(window, options_.preallocate_bytes_min)) {
        if (!transfer.groups.empty() && transfer.groups[range.file] != group) {
            continue;
        }
        os::File& file = *transfer.files[range.file];
        // tmpfs gives the room once more, which takes half as long as the first time.
        if (!reserves && file.info().in_memory && transfer.extents.count() > 1) {
            continue;
        }
        PENSTOCK_TRY(size, file.size());
        file.note_size(size);
        if (range.end <= size) {
            continue;
        }
        const std::uint64_t begin = std::max(range.begin, size);
        auto made = reserves ? file.reserve(begin, range.end - begin)
                             : file.preallocate(begin, range.end - begin);
        if (!made && made.error().code != ErrorCode::kUnsupported) {
            return made;
        }
        if (made && !reserves) {
            file.note_size(range.end);
        }
    }
    return {};
}

// Continues a window that has nothing open.
void Core::next_files(Window& window, bool on_caller) noexcept {
    Transfer& transfer = *window.transfer;
    if (transfer.stopped()) {
        window_done(window);
        return;
    }
    const auto waits = [&](std::uint32_t file) {
        return transfer.groups[file] == Transfer::kNotOpen;
    };
    while (window.first_file < window.end_file && !waits(window.first_file)) {
        ++window.first_file;
    }
    if (window.first_file == window.end_file) {
        const std::uint64_t next = transfer.next_file.fetch_add(kWindowFiles);
        if (next >= transfer.paths.size()) {
            window_done(window);
            return;
        }
        window.first_file = static_cast<std::uint32_t>(next);
        window.end_file = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(next + kWindowFiles, transfer.paths.size()));
    }
    window.opener = nullptr;
    window.domains.clear();
    window.waits_for = &transfer;
    window.files = 0;
    for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
        window.files += waits(i) ? 1 : 0;
    }
    window.admitted = [](RoomWaiter& waiter) noexcept {
        auto& self = static_cast<Window&>(waiter);
        self.core->room_taken(self);
    };
    if (!Descriptors::of_process().take(window)) {
        return;  // it may be anywhere by now
    }
    if (on_caller) {
        window.taken_files = window.to_open = window.files;
        open_files(window);
    } else {
        window.admitted(window);
    }
}

void Core::room_taken(Window& window) noexcept {
    window.taken_files = window.to_open = window.files;
    auto opener = base::as_result("open", [&]() -> base::Result<Executor*> {
        return &openers_.of(window.transfer->paths[window.first_file]);
    });
    if (opener) {
        post_opening(window, **opener);
    } else {
        opened(window, base::fail(std::move(opener.error())));
    }
}

void Core::post_opening(Window& window, Executor& opener) noexcept {
    window.opener = &opener;
    post<&Core::open_files>(window, opener);
}

// Opens what is of this thread's device; where others are left, the window goes on there.
void Core::open_files(Window& window) noexcept {
    Executor* next_opener = nullptr;
    auto some = base::as_result("open", [&] { return open_some(window, next_opener); });
    if (!some) {
        opened(window, base::fail(std::move(some.error())));
    } else if (!*some) {
        return;  // it waits for room
    } else if (next_opener != nullptr) {
        post_opening(window, *next_opener);
    } else {
        opened(window, {});
    }
}

// The window opens no more: its room is what it has open.
void Core::opened(Window& window, base::Result<void> result) noexcept {
    Descriptors::of_process().opened(window.taken_files, window.descriptors,
                                     window.highest_descriptor);
    const bool may_be_inline = window.transfer->more_windows.empty() && window.opener == nullptr;
    if (result) {
        result = base::as_result(name_of(window.transfer->op), [&]() -> base::Result<void> {
            if (may_be_inline && run_inline(window)) {
                return {};
            }
            return room_was_reserved(window) ? extend_files(window) : lay_out_and_link(window);
        });
    }
    if (!result) {
        failed(window, std::move(result.error()));
    }
}

// False when the window waits for room, and is another thread's.
base::Result<bool> Core::open_some(Window& window, Executor*& next_opener) {
    Transfer& transfer = *window.transfer;
    for (std::uint32_t i = window.first_file; i < window.end_file && window.to_open != 0; ++i) {
        if (transfer.groups[i] != Transfer::kNotOpen || transfer.stopped()) {
            continue;
        }
        if (window.opener != nullptr) {
            Executor& opener = openers_.of(transfer.paths[i]);
            if (&opener != window.opener) {
                next_opener = next_opener == nullptr ? &opener : next_opener;
                continue;
            }
        }
        PENSTOCK_TRY(go_on, open_file(window, i));
        if (!go_on) {
            return false;
        }
    }
    PENSTOCK_CHECK(preallocate(window, Transfer::kJustOpen, room_was_reserved(window)));
    for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
        if (transfer.groups[i] == Transfer::kJustOpen) {
            transfer.groups[i] = Transfer::kReady;
        }
    }
    next_opener = window.to_open == 0 ? nullptr : next_opener;
    return true;
}

// Says whether files of the window got their room while they were opened, and no size yet.
bool Core::room_was_reserved(const Window& window) const {
    const Transfer& transfer = *window.transfer;
    return transfer.op == Op::kWrite && transfer.extents.count() > 1 &&
           transfer.total_bytes >= options_.preallocate_bytes_min;
}

base::Result<void> Core::extend_files(Window& window) {
    PENSTOCK_CHECK(find_domains(window));
    window.reserves = false;
    window.domains_left = static_cast<std::uint32_t>(window.domains.size());
    if (window.domains.size() > 1) {
        post<&Core::preallocate_by_device>(window, window.domains.back()->blocking());
    } else if (window.domains.size() == 1) {
        preallocate_by_device(window);
    } else {
        return lay_out_and_link(window);
    }
    return {};
}

base::Result<bool> Core::open_file(Window& window, std::uint32_t index) {
    Transfer& transfer = *window.transfer;
    FileOptions how;
    how.access = transfer.op == Op::kRead ? Access::kRead : Access::kWrite;
    how.create = transfer.op == Op::kWrite;
    // A few bytes that nobody syncs are not worth a second opening, for direct I/O.
    const bool few = !transfer.file_bytes.empty() &&
                     transfer.file_bytes[index] <= options_.domain.channel.block_bytes;
    how.cache = few ? CachePolicy::kCached : transfer.cache;
    Descriptors& room = Descriptors::of_process();
    const std::uint64_t before = room.closings();
    const bool once = few || (transfer.op == Op::kRead && transfer.cache == CachePolicy::kAuto);
    const std::string& path = transfer.paths[index];
    auto file = once ? platform_.file_system->open_once(path, how, options_.inline_bytes_max)
                     : platform_.file_system->open(path, how);
    if (!file && no_descriptor(file.error())) {
        if (window.descriptors != 0) {
            window.to_open = 0;  // the rest when these are closed
            return true;
        }
        window.files = window.taken_files;
        switch (room.refused(window, before)) {
            case Descriptors::Refused::kQueued:
                return false;
            case Descriptors::Refused::kTryAgain:
                window.taken_files = 0;
                next_files(window, window.opener == nullptr);
                return false;
            case Descriptors::Refused::kNoneOfOurs:
                window.taken_files = 0;
                break;
        }
    }
    if (!file) {
        return base::fail(std::move(file.error()));
    }
    openers_.learn(transfer.paths[index], (*file)->info().device);
    transfer.files[index] = std::move(*file);
    if (read_small(window, index)) {
        --window.to_open;
        return true;
    }
    file = transfer.files[index];
    const int highest = std::max((*file)->descriptor(os::IoPath::kBuffered),
                                 (*file)->descriptor(os::IoPath::kDirect));
    window.descriptors += descriptors_of(**file);
    window.highest_descriptor = std::max(window.highest_descriptor, highest);
    note_end(transfer, **file);
    transfer.groups[index] = Transfer::kJustOpen;
    window.to_open = Descriptors::scarce(highest) ? 0 : window.to_open - 1;
    return true;
}

void Core::move_files(Window& window) noexcept {
    auto linked =
        base::as_result(name_of(window.transfer->op), [&] { return lay_out_and_link(window); });
    if (!linked) {
        failed(window, std::move(linked.error()));
    }
}

// The domains of what is ready; each file learns the number of its own.
base::Result<void> Core::find_domains(Window& window) {
    Transfer& transfer = *window.transfer;
    window.domains.clear();
    for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
        if (!transfer.groups.empty() && transfer.groups[i] != Transfer::kReady) {
            continue;
        }
        PENSTOCK_TRY(domain, domain_of(*transfer.files[i]));
        auto found = std::find(window.domains.begin(), window.domains.end(), domain);
        if (found == window.domains.end()) {
            found = window.domains.insert(found, domain);
        }
        if (!transfer.groups.empty()) {
            transfer.groups[i] = static_cast<std::uint32_t>(found - window.domains.begin());
        }
    }
    return {};
}

base::Result<void> Core::lay_out_and_link(Window& window) {
    Transfer& transfer = *window.transfer;
    if (window.domains.empty()) {
        PENSTOCK_CHECK(find_domains(window));
    }
    if (transfer.paths.empty()) {
        lay_out(window);
    } else {
        const std::lock_guard lock(transfer.windows_mutex);
        lay_out(window);
    }
    // The last part that is done may end the transfer, so nothing of it is read after the last
    // link.
    const std::size_t count = window.parts.size();
    Part* const parts = window.parts.data();
    transfer.expect_parts(window);
    if (count == 0) {
        parts_done(window);
        return {};
    }
    for (std::size_t i = 0; i < count; ++i) {
        parts[i].channel->link(parts[i]);
    }
    return {};
}

void Core::parts_done(Window& window) noexcept {
    if (!window.on_caller) {  // else the caller sees it, and goes on
        parts_are_through(window);
    }
}

void Core::parts_are_through(Window& window) noexcept {
    Transfer& transfer = *window.transfer;
    const bool durable = transfer.sync && !transfer.stopped();
    // The last owner closes, which may block.
    const auto ours_alone = [](const auto& file) { return file.use_count() == 1; };
    if (transfer.files.empty() ||
        (!durable && transfer.paths.empty() &&
         std::none_of(transfer.files.begin(), transfer.files.end(), ours_alone))) {
        window_done(window);
        return;
    }
    if (window.on_caller || window.domains.empty()) {
        window.domains_left = 1;
        settle(window);
        return;
    }
    window.domains_left = static_cast<std::uint32_t>(window.domains.size());
    post<&Core::settle>(window, window.domains.back()->blocking());
}

// The files of one device after the other's, each on a thread of the device's.
void Core::settle(Window& window) noexcept {
    Transfer& transfer = *window.transfer;
    PENSTOCK_ASSERT(window.domains_left != 0);
    const std::uint32_t group = --window.domains_left;
    settle_files(window, group);
    if (group != 0) {
        post<&Core::settle>(window, window.domains[group - 1]->blocking());
        return;
    }
    if (transfer.paths.empty()) {
        window_done(window);
        return;
    }
    Descriptors::of_process().closed(std::exchange(window.descriptors, 0));
    window.highest_descriptor = -1;
    next_files(window, false);
}

// Does the blocking work after the last request: durability, and closing.
void Core::settle_files(Window& window, std::uint32_t group) noexcept {
    Transfer& transfer = *window.transfer;
    std::vector<std::string> folders;  // whose names are durable
    for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
        auto& file = transfer.files[i];
        if (file == nullptr || (!transfer.groups.empty() && transfer.groups[i] != group &&
                                transfer.groups[i] != Transfer::kReady)) {
            continue;
        }
        if (transfer.sync && !transfer.stopped()) {
            auto synced = base::as_result("sync", [&] {
                return transfer.files.size() == 1 ? file->sync() : sync_one(*file, folders);
            });
            if (!synced) {
                transfer.fail(std::move(synced.error()));
            }
        }
        if (!transfer.paths.empty()) {
            take_back(transfer, *file);
            auto closed = base::as_result("close", [&] { return file->close(); });
            if (!closed && transfer.op == Op::kWrite) {
                transfer.fail(std::move(closed.error()));
            }
            transfer.groups[i] = Transfer::kThrough;
        }
        file.reset();
    }
}

// Before any part was linked.
void Core::failed(Window& window, base::Error error) noexcept {
    Transfer& transfer = *window.transfer;
    transfer.fail(std::move(error));
    if (!transfer.paths.empty()) {
        for (std::uint32_t i = window.first_file; i < window.end_file; ++i) {
            if (transfer.files[i] != nullptr) {
                take_back(transfer, *transfer.files[i]);
                static_cast<void>(
                    base::as_result("close", [&] { return transfer.files[i]->close(); }));
                transfer.files[i].reset();
            }
        }
        Descriptors::of_process().closed(std::exchange(window.descriptors, 0));
    }
    window_done(window);
}

void Core::window_done(Window& window) noexcept {
    Transfer& transfer = *window.transfer;
    const std::uint32_t left = transfer.windows_left.fetch_sub(1, std::memory_order_acq_rel);
    PENSTOCK_ASSERT(left != 0);
    if (left == 1) {
        transfer.finish();
    }
}

}  // namespace penstock::engine
