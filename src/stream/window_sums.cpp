// SPDX-License-Identifier: Apache-2.0
#include "stream/window_sums.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/futex.hpp"
#include "base/planted.hpp"
#include "base/raise.hpp"
#include "base/start_threads.hpp"
#include "base/wait_slice.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

namespace penstock::stream {

namespace {

// Below this, threads cost more than they bring.
constexpr std::uint64_t kSumBytesForThreads = 4 * base::kMiB;
// A core sums 8 GB/s and more: this many are faster than any device.
constexpr unsigned kSumThreadsMax = 8;
// Bytes of one job: large enough that handing it out costs nothing, small enough that several
// threads share a window.
constexpr std::uint64_t kJobBytes = 4 * base::kMiB;
// Copies of this size and more lie in memory as in the file, so that a device reads them where they
// are.
constexpr std::uint64_t kPageFromBytes = 64 * base::kKiB;
constexpr std::uint64_t kCopyAlign = 64;
// Keeps memory as long as the process lives: making it for each save takes longer than the sums of
// what is written from it.
constexpr std::uint64_t kKeptBytesMax = 32 * base::kMiB;
// Blocks have few sizes, so that the next window can use one: a window of 4 MiB with what lies
// between its copies, or several of those. A small state has a block of its own size.
constexpr std::uint64_t kKeptBlockBytes = 4 * base::kMiB + 128 * base::kKiB;
constexpr std::uint64_t kSmallBlockBytes = 512 * base::kKiB;
// Memory of copies at a time, in windows: what is at the devices of several folders, and what is
// summed meanwhile.
constexpr std::uint64_t kCopiedWindowsMax = 6;

Buffer take_kept(std::uint64_t bytes) {
    static MemoryPool pool(
        {.kept_bytes_max = kKeptBytesMax, .touch = false, .keep_on_fork = false});
    const std::uint64_t blocks = (bytes + kKeptBlockBytes - 1) / kKeptBlockBytes;
    return pool.take(bytes <= kSmallBlockBytes ? bytes : blocks * kKeptBlockBytes);
}

// The next address from `at` on for a copy of bytes of the file at `offset`.
std::uint64_t place_from(std::uint64_t at, std::uint64_t offset, std::uint64_t bytes) {
    if (bytes < kPageFromBytes) {
        return base::align_up(at, kCopyAlign);
    }
    const std::uint64_t wanted = offset % base::kPageBytes;
    const std::uint64_t here = at % base::kPageBytes;
    return at + (wanted + base::kPageBytes - here) % base::kPageBytes;
}

}  // namespace

MemoryLook renumbered(const MemoryLook& look, std::vector<std::size_t> numbers) {
    if (!look) {
        return {};
    }
    return [look, numbers = std::move(numbers)](
               std::span<const std::size_t> given) -> std::optional<std::size_t> {
        std::vector<std::size_t> asked;
        asked.reserve(given.size());
        for (const std::size_t i : given) {
            asked.push_back(numbers[i]);
        }
        const auto gone = look(asked);
        if (!gone) {
            return std::nullopt;
        }
        const auto place = std::find(asked.begin(), asked.end(), *gone) - asked.begin();
        return given[static_cast<std::size_t>(place)];
    };
}

WindowSums::WindowSums(std::vector<Source> sources, Options options)
    : sources_(std::move(sources)), options_(std::move(options)) {
    PENSTOCK_ASSERT(options_.piece_bytes != 0);
    first_.reserve(sources_.size() + 1);
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        first_.push_back(pieces_.size());
        add_pieces(i, options_);
    }
    first_.push_back(pieces_.size());
    sums_.resize(pieces_.size());
    asked_.assign(pieces_.size(), Asked::kNot);
    has_sum_.assign(pieces_.size(), false);
    std::uint64_t own_bytes = 0;
    for (const Source& source : sources_) {
        const bool is_own = !source.is_copy && source.memory.kind == MemoryKind::kHost;
        own_bytes += is_own ? source.memory.bytes : 0;
    }
    slabs_max_ = kCopiedWindowsMax * window_bytes(std::max(own_bytes, kCopiedBytesMax / 2));
    copies_own_ = is_torn() || own_bytes <= options_.copied_bytes_max;
    if (copies_own_ && options_.hash) {
        uses_.resize(pieces_.size());
    }
}

void WindowSums::add_pieces(std::size_t source, const Options& options) {
    const Source& from = sources_[source];
    auto cut = std::upper_bound(options.cuts.begin(), options.cuts.end(), from.offset);
    for (std::uint64_t begin = 0; begin < from.memory.bytes;) {
        std::uint64_t end = base::align_down(begin, options.piece_bytes) + options.piece_bytes;
        end = std::min(end, from.memory.bytes);
        if (cut != options.cuts.end() && *cut - from.offset <= end) {
            end = *cut++ - from.offset;
        }
        pieces_.push_back({source, begin, end - begin});
        begin = end;
    }
}

void WindowSums::stop() noexcept {
    {
        const std::lock_guard guard(mutex_);
        stopping_ = true;
        jobs_.clear();
        lookings_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
    threads_.clear();
}

void WindowSums::start(std::function<void()> tell) {
    tell_ = std::move(tell);
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces_) {
        bytes += piece.bytes;
    }
    if (bytes >= kSumBytesForThreads) {
        const unsigned cores = std::max(2U, usable_processors());
        base::start_threads(threads_, std::min(cores - 1, kSumThreadsMax), [this] { loop(); });
    }
}

void WindowSums::expect(std::size_t source, std::span<const std::uint64_t> sums) {
    const Pieces all = all_of(source);
    PENSTOCK_ASSERT(sums.size() == all.last - all.first);
    for (std::size_t p = all.first; p < all.last; ++p) {
        sums_[p] = sums[p - all.first];
        has_sum_[p] = true;
    }
}

WindowSums::Pieces WindowSums::pieces(std::size_t source, std::uint64_t begin,
                                      std::uint64_t end) const {
    const Pieces all = all_of(source);
    const auto from = pieces_.begin();
    const auto stop = from + static_cast<std::ptrdiff_t>(all.last);
    const auto first = std::partition_point(
        from + static_cast<std::ptrdiff_t>(all.first), stop,
        [&](const Piece& piece) { return piece.begin + piece.bytes <= begin; });
    const auto last =
        std::partition_point(first, stop, [&](const Piece& piece) { return piece.begin < end; });
    return {static_cast<std::size_t>(first - from), static_cast<std::size_t>(last - from)};
}

std::size_t WindowSums::add(std::vector<Pieces> pieces, std::vector<Pieces> needs) {
    Window& window = windows_.emplace_back();
    window.pieces = std::move(pieces);
    window.needs = std::move(needs);
    if (!uses_.empty()) {
        for (const Pieces& range : window.pieces) {
            for (std::size_t p = range.first; p < range.last; ++p) {
                ++uses_[p];
            }
        }
    }
    return windows_.size() - 1;
}

bool WindowSums::copies(std::size_t piece) const {
    const Source& source = sources_[pieces_[piece].source];
    if (!options_.hash || source.is_copy) {
        return false;
    }
    return is_torn() || copies_.contains(piece) ||
           (copies_own_ && source.memory.kind == MemoryKind::kHost);
}

// A piece that is written from the caller's memory is summed for each window, since time has passed
// since an earlier one. All others are summed once.
std::vector<WindowSums::Item> WindowSums::items_before(const Window& window) {
    std::vector<Item> items;
    const auto add = [&](const std::vector<Pieces>& ranges, bool written) {
        for (const Pieces& range : ranges) {
            for (std::size_t p = range.first; p < range.last; ++p) {
                const bool once = !written || copies(p) || sources_[pieces_[p].source].is_copy;
                if (!once || asked_[p] == Asked::kNot) {
                    asked_[p] = Asked::kYes;
                    items.push_back({p, nullptr});
                }
            }
        }
    };
    add(window.pieces, true);
    add(window.needs, false);
    return items;
}

void WindowSums::place_copies(std::vector<Item>& items) {
    std::vector<std::uint64_t> places;
    std::uint64_t end = 0;
    for (const Item& item : items) {
        const Piece& piece = pieces_[item.piece];
        if (copies(item.piece)) {
            end = place_from(end, sources_[piece.source].offset + piece.begin, piece.bytes);
            places.push_back(end);
            end += piece.bytes;
        }
    }
    Buffer memory = places.empty() ? Buffer() : memory_for_copies(end);
    if (memory.size() == 0) {
        return;
    }
    const auto slab = slabs_.insert(slabs_.end(), {std::move(memory), places.size()});
    slab_bytes_ += slab->memory.size();
    auto place = places.begin();
    for (Item& item : items) {
        if (copies(item.piece)) {
            item.copy = slab->memory.data() + *place++;
            copies_.emplace(item.piece, Copy{item.copy, slab});
        }
    }
}

// Empty where there is no memory, and the caller's can be written: from here on nothing is copied.
Buffer WindowSums::memory_for_copies(std::uint64_t bytes) {
    try {
        return take_kept(bytes);
    } catch (const Error& error) {
        if (is_torn() || error.reason() != ErrorCode::kOutOfMemory) {
            throw;
        }
        copies_own_ = false;
        return {};
    }
}

void WindowSums::drop_copy(std::size_t piece) {
    const auto copy = copies_.find(piece);
    const auto slab = copy->second.slab;
    copies_.erase(copy);
    if (--slab->copies == 0) {
        slab_bytes_ -= slab->memory.size();
        slabs_.erase(slab);
    }
}

void WindowSums::ask(std::size_t window) {
    Window& asked = windows_[window];
    ++open_windows_;
    std::vector<Item> items = items_before(asked);
    place_copies(items);
    begin(std::move(items), &asked);
}

// The look is made once for a window: it may have to wait for a lock of the caller's.
void WindowSums::begin(std::vector<Item> items, Window* window) {
    Looking looking;
    std::uint64_t bytes = kJobBytes;
    for (const Item& item : items) {
        if (bytes >= kJobBytes) {
            looking.then.emplace_back().window = window;
            bytes = 0;
        }
        looking.then.back().items.push_back(item);
        bytes += pieces_[item.piece].bytes;
        const std::size_t source = pieces_[item.piece].source;
        if (looking.sources.empty() || looking.sources.back() != source) {
            looking.sources.push_back(source);
        }
    }
    const auto count = static_cast<std::uint32_t>(looking.then.size());
    open_jobs_.fetch_add(count);
    if (window != nullptr) {
        window->jobs.store(count);
    }
    if (count == 0) {
        return;
    }
    {
        const std::lock_guard guard(mutex_);
        if (options_.watch.look) {
            lookings_.push_back(std::move(looking));
        } else {
            jobs_.splice(jobs_.end(), looking.then);
        }
    }
    wake_.notify_all();
}

bool WindowSums::is_ready(std::size_t window) {
    check_failure();
    return windows_[window].jobs.load() == 0;
}

std::vector<ConstMemory> WindowSums::written_from(std::size_t source, std::uint64_t begin,
                                                  std::uint64_t bytes) const {
    ConstMemory own = sources_[source].memory;
    own.data += begin;
    own.bytes = bytes;
    const Pieces range = pieces(source, begin, begin + bytes);
    if (range.first == range.last || !copies_.contains(range.first)) {
        return {own};
    }
    std::vector<ConstMemory> out;
    for (std::size_t p = range.first; p < range.last; ++p) {
        const Piece& piece = pieces_[p];
        const std::uint64_t from = std::max(begin, piece.begin);
        const std::uint64_t to = std::min(begin + bytes, piece.begin + piece.bytes);
        out.push_back({copies_.at(p).data + (from - piece.begin), to - from});
    }
    return out;
}

void WindowSums::ended(std::size_t window) {
    --open_windows_;
    std::vector<Item> items;
    for (const Pieces& range : windows_[window].pieces) {
        for (std::size_t p = range.first; p < range.last; ++p) {
            if (copies_.contains(p)) {
                if (--uses_[p] != 0) {
                    continue;
                }
                drop_copy(p);
            }
            if (!is_torn() && !sources_[pieces_[p].source].is_copy) {
                items.push_back({p, nullptr});
            }
        }
    }
    begin(std::move(items), nullptr);
}

bool WindowSums::is_over() {
    const bool over = open_jobs_.load() == 0;
    check_failure();
    return over;
}

void WindowSums::look_at(std::span<const std::size_t> sources) const {
    if (!options_.watch.look) {
        return;
    }
    std::vector<std::size_t> own;
    std::copy_if(sources.begin(), sources.end(), std::back_inserter(own),
                 [this](std::size_t source) { return !sources_[source].is_copy; });
    if (own.empty()) {
        return;
    }
    if (const auto gone = options_.watch.look(own)) {
        raise_changed(*gone, "its memory was freed, resized or changed while it was saved");
    }
}

void WindowSums::sum_copy(std::size_t source, std::span<const std::byte> copy) {
    if (!options_.hash) {
        return;
    }
    std::vector<Item> items;
    std::vector<std::uint64_t> sums;
    const Pieces all = all_of(source);
    for (std::size_t p = all.first; p < all.last; ++p) {
        items.push_back({p, nullptr});
        sums.push_back(options_.hash(copy.subspan(pieces_[p].begin, pieces_[p].bytes)));
    }
    settle(items, sums);
    check_failure();
}

void WindowSums::loop() {
    std::unique_lock lock(mutex_);
    while (true) {
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty() || !lookings_.empty(); });
        if (stopping_) {
            return;
        }
        run_one(lock);
    }
}

bool WindowSums::work() {
    if (!threads_.empty()) {
        return false;
    }
    std::unique_lock lock(mutex_);
    return run_one(lock);
}

// Jobs come first: what waits for a window is nearer to its end.
bool WindowSums::run_one(std::unique_lock<std::mutex>& lock) {
    if (!jobs_.empty()) {
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        run(job);
        lock.lock();
        return true;
    }
    if (lookings_.empty()) {
        return false;
    }
    Looking looking = std::move(lookings_.front());
    lookings_.pop_front();
    lock.unlock();
    look(looking);
    lock.lock();
    jobs_.splice(jobs_.end(), looking.then);
    wake_.notify_all();
    return true;
}

void WindowSums::look(Looking& looking) {
    try {
        if (!failed_.load(std::memory_order_relaxed)) {
            look_at(looking.sources);
        }
    } catch (...) {
        fail(std::current_exception());  // its jobs sum nothing
    }
}

void WindowSums::run(Job& job) {
    try {
        if (options_.hash && !failed_.load(std::memory_order_relaxed)) {
            std::vector<std::uint64_t> sums;
            sums.reserve(job.items.size());
            for (const Item& item : job.items) {
                sums.push_back(sum_of(item));
            }
            settle(job.items, sums);
        }
    } catch (...) {
        fail(std::current_exception());
    }
    job_ended(job);
}

// The waiting thread is woken for the last job of a window, and for the last one of all.
void WindowSums::job_ended(const Job& job) {
    bool tells = job.window != nullptr && job.window->jobs.fetch_sub(1) == 1;
    tells = open_jobs_.fetch_sub(1) == 1 || tells || failed_.load();
    ended_jobs_.fetch_add(1);
    base::futex_wake_all(ended_jobs_);
    if (tells && tell_) {
        tell_();
    }
}

ConstMemory WindowSums::memory_of(const Piece& piece) const {
    ConstMemory memory = sources_[piece.source].memory;
    memory.data += piece.begin;
    memory.bytes = piece.bytes;
    return memory;
}

std::uint64_t WindowSums::sum_of(const Item& item) {
    const ConstMemory memory = memory_of(pieces_[item.piece]);
    if (item.copy == nullptr) {
        return windows_of_gpus_.with(memory, options_.hash);
    }
    const std::span<std::byte> copy(item.copy, memory.bytes);
    if (memory.kind == MemoryKind::kHost) {
        std::memcpy(copy.data(), memory.data, memory.bytes);
    } else {
        const std::array copies = {MemoryCopy{Memory(copy), memory}};
        copy_memory(copies);
    }
    return options_.hash(copy);
}

// The first sum of a piece is the one that is kept, and all others are compared with it.
void WindowSums::settle(std::span<const Item> items, std::span<const std::uint64_t> sums) {
    const std::lock_guard guard(mutex_);
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::size_t p = items[i].piece;
        if (!has_sum_[p]) {
            sums_[p] = sums[i];
            has_sum_[p] = true;
        } else if (sums_[p] != sums[i] && !base::planted("unseen_change")) {
            raise_changed(pieces_[p].source, "it changed while it was saved");
        }
    }
}

void WindowSums::fail(std::exception_ptr failure) noexcept {
    const std::lock_guard guard(mutex_);
    if (!failure_) {
        failure_ = std::move(failure);
    }
    failed_.store(true);
}

void WindowSums::check_failure() {
    if (failed_.load()) {
        const std::lock_guard guard(mutex_);
        std::rethrow_exception(failure_);
    }
}

void WindowSums::raise_changed(std::size_t source, const char* how) const {
    base::raise(base::error(
        ErrorCode::kChanged, "save",
        fmt::format("{}: {}, so what was written is of no use, and nothing was saved. Let nothing "
                    "change the tensors before the save is done, or save a copy (save_async() "
                    "makes one), or save what is found, torn, with changing=\"torn\" (C++: "
                    "Changing::kTorn)",
                    options_.name(source), how),
        options_.path));
}

template <typename Done>
void WindowSums::wait_until(const Done& done) {
    while (true) {
        const std::uint32_t seen = ended_jobs_.load();
        if (done()) {
            return;
        }
        if (!work()) {
            base::futex_wait(ended_jobs_, seen, base::kWaitSlice.count());
        }
    }
}

void WindowSums::wait_ready(std::size_t window) {
    wait_until([&] { return is_ready(window); });
}

void WindowSums::wait_over() {
    wait_until([&] { return is_over(); });
}

}  // namespace penstock::stream
