// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a read come from: the page cache, or the device. The plan of a part asks, run
// by run, for files whose policy is `auto` (FileInfo::asks_cache).
//
//   256 KiB or more   asked, 64 MiB at a time; where some of it is cached and some is not, a MiB at
//                     a time. A MiB that is partly cached and dirty counts as cached: direct I/O
//                     would write it back first.
//   shorter           follows what the file's last reads found: after warm ones it is tried without
//                     a question, after cold ones it is asked more and more rarely. What a waiting
//                     caller reads in sequence goes through the cache, where the kernel reads
//                     ahead.
//   many shorter      that lie near one another in a list are asked for together, 64 MiB at a time,
//                     then a MiB; where only some of that is cached, each is a short one.
//
// Files on file systems in memory are always cached, and nothing is asked.
//
// cachestat(2) answers without touching a page. Where it is refused (for files of others, by a
// sandbox, before Linux 6.5) single bytes are read with RWF_NOWAIT instead. Such a probe brings a
// page that is not there into the cache, so of those that found nothing there are logarithmically
// many. mincore(2) is no way: it says "all" of a file that one may not write.
#pragma once

#include "engine/counters.hpp"
#include "os/file.hpp"

#include <cstdint>

namespace penstock::engine {

class CacheLookup {
public:
    struct Stretch {
        std::uint64_t end = 0;  ///< offset in the file
        bool cached = false;
        bool alone = false;  ///< it says nothing of what follows: see shorter
    };

    CacheLookup() = default;
    /// `caller_waits`: one read after the other, so that a sequence is one. `has_missed`: it was
    /// tried from the cache and was not there. That brought some of it in, which says nothing of
    /// the file.
    CacheLookup(Counters& counters, bool caller_waits, bool has_missed = false)
        : counters_(&counters), caller_waits_(caller_waits), has_missed_(has_missed) {}

    /// The stretch that `offset` is in, where an earlier answer covers it; else with `end` 0.
    [[nodiscard]] Stretch known(const os::File& file, std::uint64_t offset) const {
        return &file == file_ && offset >= begin_ ? (offset < stretch_.end ? stretch_ : Stretch{})
                                                  : Stretch{};
    }
    /// The same for a run of `bytes` from there on, asking where need be. `end` is behind `offset`.
    /// `list_bytes`: from `offset` on, as far as others lie near one another; or 0.
    Stretch look(os::File& file, std::uint64_t offset, std::uint64_t bytes,
                 std::uint64_t list_bytes) {
        const bool is_short = bytes < kAlwaysAskBytes && list_bytes == 0 && !file.info().in_memory;
        stretch_ = is_short ? Stretch{offset + bytes, small_is_cached(file, offset, bytes), true}
                            : look_further(file, offset, bytes, list_bytes);
        file_ = &file;
        begin_ = offset;
        return stretch_;
    }

    /// Is all of it in the page cache? One question, of which the file's history learns nothing.
    [[nodiscard]] bool all_cached(os::File& file, std::uint64_t offset, std::uint64_t bytes) {
        return ask(file, offset, bytes) == Answer::kAll;
    }

    static constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20;
    /// A list of extents that are further apart on the average is not worth its questions.
    static constexpr std::uint64_t kListSpacingBytes = std::uint64_t{256} << 10;
    /// From here on a question (0.3 to 0.5 us a MiB) is nothing compared with the read.
    static constexpr std::uint64_t kAlwaysAskBytes = std::uint64_t{256} << 10;

private:
    enum class Answer : std::uint8_t { kNone, kSome, kSomeDirty, kAll };

    [[nodiscard]] Stretch look_further(os::File& file, std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t list_bytes);
    [[nodiscard]] bool small_is_cached(os::File& file, std::uint64_t offset, std::uint64_t bytes);
    [[nodiscard]] Stretch look_at_list(os::File& file, std::uint64_t offset, std::uint64_t bytes);
    [[nodiscard]] Stretch look_at_run(os::File& file, std::uint64_t offset, std::uint64_t bytes);
    [[nodiscard]] Stretch probe_run(os::File& file, std::uint64_t offset, std::uint64_t bytes);
    /// Is `offset` after the last look, and before `end`?
    [[nodiscard]] bool within(const os::File& file, std::uint64_t offset, std::uint64_t end) const {
        return file_ == &file && offset >= begin_ && offset < end;
    }
    [[nodiscard]] Answer ask(os::File& file, std::uint64_t offset, std::uint64_t bytes);
    void found_warm(os::File& file) const {
        if (!has_missed_) {
            file.cache_history().found_warm();
        }
    }
    [[nodiscard]] bool probe(os::File& file, std::uint64_t offset, std::uint64_t bytes);

    Counters* counters_ = nullptr;
    const os::File* file_ = nullptr;
    std::uint64_t begin_ = 0;
    Stretch stretch_;
    std::uint64_t mixed_until_ = 0;  ///< up to here it is asked a MiB at a time
    std::uint64_t each_until_ = 0;   ///< up to here the extents of a list are asked for one by one
    bool caller_waits_ = false;
    bool has_missed_ = false;
};

}  // namespace penstock::engine
