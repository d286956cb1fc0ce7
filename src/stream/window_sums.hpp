// SPDX-License-Identifier: Apache-2.0
// The sums of memory that is being written, made around each window of the write, so that they are
// the sums of the bytes that are in the file, or the save fails.
//
//   source   memory of the caller: a tensor, a storage; or a copy of it that nobody changes
//   piece    what has one sum: a chunk of a source
//   window   what one transfer writes. Pieces that reach over its ends belong to both windows
//
//   ask(window) -> the look, the sum of each of its pieces -> is_ready(): it may be written
//   ended(window) -> the look, the sum of each piece once more -> is_over()
//
// A sum that differs from the first one is a change (kChanged, with the name of the source). Copies
// are summed once.
//
// A change that is undone between the two sums of a window is not seen, and may be in the file: a
// small state is at the device all at once, and an average of weights is swapped in and out
// meanwhile. So pieces of a state of up to copied_bytes_max are copied when they are first asked
// for, summed from the copy and written from it: what is in the file has its sum, whatever happens.
// The source is summed after the write only, to tell of a change. With Changing::kTorn all pieces
// are copied, and their sources are not summed at all. A copy stays until the last window with its
// piece has ended.
//
// Some windows hold sums of other pieces (the header of a zip's record): the pieces that a window
// `needs` are summed with it, if no earlier window did.
//
// One thread calls everything but work(). Sums are made by other threads, no more of them than the
// windows that were asked for give work to: that is the pace. Without threads work() makes them.
#pragma once

#include "stream/host_windows.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/memory.hpp>
#include <penstock/types.hpp>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace penstock::stream {

/// The answer of a save to memory that changes or goes. The look gets numbers of sources.
struct Watch {
    Changing changing = Changing::kFails;
    MemoryLook look = {};
};

/// A look that takes other numbers: i stands for numbers[i] of `look`.
[[nodiscard]] MemoryLook renumbered(const MemoryLook& look, std::vector<std::size_t> numbers);

/// States of up to this size that the caller may change are copied. 256 MiB are two to three times
/// what is at a device at once. Of a larger state, a change would have to be undone sooner than
/// anybody copies 256 MiB twice.
inline constexpr std::uint64_t kCopiedBytesMax = std::uint64_t{256} << 20;

/// The size of a window of a file, for who cuts one: 16 MiB keep a device busy for a while, and are
/// a small step of the progress. Where copies are written, four of 4 MiB do so as well, and take
/// less memory.
[[nodiscard]] constexpr std::uint64_t window_bytes(std::uint64_t file_bytes) {
    constexpr std::uint64_t kBytes = std::uint64_t{16} << 20;
    return file_bytes > kBytes && file_bytes <= kCopiedBytesMax ? kBytes / 4 : kBytes;
}

class WindowSums {
public:
    struct Source {
        ConstMemory memory;
        std::uint64_t offset = 0;  ///< in its file
        bool is_copy = false;      ///< nobody changes it
    };
    /// Pieces [first, last).
    struct Pieces {
        std::size_t first = 0;
        std::size_t last = 0;
    };
    struct Options {
        /// Gives the sum of a piece. Empty: nothing is summed, and only the look is made.
        /// Thread-safe.
        std::function<std::uint64_t(std::span<const std::byte>)> hash;
        std::uint64_t piece_bytes = 0;         ///< pieces are cut from the beginning of each source
        std::vector<std::uint64_t> cuts = {};  ///< and at these offsets of the file, which rise
        Watch watch = {};
        /// Limit on the bytes of all sources in the caller's memory on the host: fewer are copied.
        std::uint64_t copied_bytes_max = kCopiedBytesMax;
        /// For the error, which is rare: a source, as the user knows it ("tensor 'w'").
        std::function<std::string(std::size_t)> name;
        std::string path = {};  ///< for the error
    };

    WindowSums(std::vector<Source> sources, Options options);
    WindowSums(const WindowSums&) = delete;
    WindowSums& operator=(const WindowSums&) = delete;
    ~WindowSums() { stop(); }

    /// `tell`: called on any thread when is_ready() or is_over() may have become true. Starts
    /// threads if there is much to sum.
    void start(std::function<void()> tell = {});
    /// Ends the threads after what they do now; `tell` is not called any more. Copies stay: a
    /// transfer may write from them until it is destroyed.
    void stop() noexcept;
    /// The sums that a source must have; all of them. Before start().
    void expect(std::size_t source, std::span<const std::uint64_t> sums);

    /// The pieces with bytes [begin, end) of a source.
    [[nodiscard]] Pieces pieces(std::size_t source, std::uint64_t begin, std::uint64_t end) const;
    [[nodiscard]] Pieces all_of(std::size_t source) const {
        return {first_[source], first_[source + 1]};
    }
    [[nodiscard]] std::uint64_t bytes_of(std::size_t piece) const { return pieces_[piece].bytes; }

    /// Adds a window, and gives its number. Those that share a piece are added before one of them
    /// is asked for.
    std::size_t add(std::vector<Pieces> pieces, std::vector<Pieces> needs = {});
    /// False: the copies of windows that were asked for take much memory. Ask when one has ended.
    [[nodiscard]] bool has_room() const { return slab_bytes_ < slabs_max_ || open_windows_ == 0; }
    /// Once for each window.
    void ask(std::size_t window);
    /// Whether its pieces and what it needs are summed, if earlier windows that share pieces are
    /// ready, too. Throws Error kChanged, and what another thread threw.
    [[nodiscard]] bool is_ready(std::size_t window);
    /// The memory to write bytes of a source from, in order: its own, or copies.
    [[nodiscard]] std::vector<ConstMemory> written_from(std::size_t source, std::uint64_t begin,
                                                        std::uint64_t bytes) const;
    /// It is written, or will never be.
    void ended(std::size_t window);
    /// Whether all that was begun is done. Throws as is_ready().
    [[nodiscard]] bool is_over();
    /// Sums of a source whose windows are ready.
    [[nodiscard]] std::span<const std::uint64_t> sums(std::size_t source) const {
        return std::span(sums_).subspan(first_[source], first_[source + 1] - first_[source]);
    }

    /// Throws Error kChanged where the look finds that one of them is gone.
    void look_at(std::span<const std::size_t> sources) const;
    /// Sums a source that was copied whole, and is written from that copy. Throws as is_ready().
    void sum_copy(std::size_t source, std::span<const std::byte> copy);

    /// Does a part of the work on the calling thread; false if there is no work, or threads do it.
    bool work();
    /// Works and waits until the window is ready.
    void wait_ready(std::size_t window);
    /// Works and waits until all is over.
    void wait_over();

private:
    struct Piece {
        std::size_t source;
        std::uint64_t begin;  ///< in the source
        std::uint64_t bytes;
    };
    struct Slab {  // the copies of a window
        Buffer memory;
        std::size_t copies = 0;  ///< that are in it
    };
    struct Copy {
        std::byte* data;
        std::list<Slab>::iterator slab;
    };
    struct Item {
        std::size_t piece;
        std::byte* copy;  ///< where the piece is copied to; nullptr: it is not
    };
    struct Window {
        std::vector<Pieces> pieces;
        std::vector<Pieces> needs;
        std::atomic<std::uint32_t> jobs{0};  ///< that are not done, before the write
    };
    struct Job {
        std::vector<Item> items;
        Window* window = nullptr;  ///< nullptr: after the write
    };
    struct Looking {  // comes before the jobs of a window
        std::vector<std::size_t> sources;
        std::list<Job> then;
    };
    enum class Asked : std::uint8_t { kNot, kYes };

    [[nodiscard]] bool is_torn() const { return options_.watch.changing == Changing::kTorn; }
    [[nodiscard]] bool copies(std::size_t piece) const;
    [[nodiscard]] ConstMemory memory_of(const Piece& piece) const;
    void add_pieces(std::size_t source, const Options& options);
    [[nodiscard]] std::vector<Item> items_before(const Window& window);
    void place_copies(std::vector<Item>& items);
    [[nodiscard]] Buffer memory_for_copies(std::uint64_t bytes);
    void drop_copy(std::size_t piece);
    void begin(std::vector<Item> items, Window* window);
    void loop();
    bool run_one(std::unique_lock<std::mutex>& lock);
    void look(Looking& looking);
    void run(Job& job);
    void job_ended(const Job& job);
    std::uint64_t sum_of(const Item& item);
    void settle(std::span<const Item> items, std::span<const std::uint64_t> sums);
    void fail(std::exception_ptr failure) noexcept;
    void check_failure();
    [[noreturn]] void raise_changed(std::size_t source, const char* how) const;
    template <typename Done>
    void wait_until(const Done& done);

    const std::vector<Source> sources_;
    const Options options_;
    std::function<void()> tell_;
    HostWindows windows_of_gpus_;
    std::vector<Piece> pieces_;
    std::vector<std::size_t> first_;  // piece of each source; one more at the end
    std::vector<std::uint64_t> sums_;
    std::vector<Asked> asked_;                      // of each piece
    std::deque<Window> windows_;                    // their addresses stay
    std::vector<std::uint32_t> uses_;               // windows with a piece that have not ended
    std::unordered_map<std::size_t, Copy> copies_;  // by piece
    std::list<Slab> slabs_;
    std::uint64_t slab_bytes_ = 0;
    std::uint64_t slabs_max_ = 0;
    std::size_t open_windows_ = 0;  // asked for, and not ended
    bool copies_own_ = false;       // pieces of the caller's memory on the host

    std::mutex mutex_;  // of the rest, and of the sums while jobs run
    std::condition_variable wake_;
    std::vector<bool> has_sum_;
    std::deque<Looking> lookings_;
    std::list<Job> jobs_;  // a thread that adds to it allocates nothing
    std::exception_ptr failure_;
    bool stopping_ = false;
    std::atomic<bool> failed_{false};
    std::atomic<std::uint32_t> open_jobs_{0};
    std::atomic<std::uint32_t> ended_jobs_{0};  // for those that wait
    std::vector<std::thread> threads_;
};

}  // namespace penstock::stream
