// SPDX-License-Identifier: Apache-2.0
#include "engine/page_cache/cached_read.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace penstock::engine {

namespace {

// It stays in a core's first caches, and every thread's stack has room for it.
constexpr std::uint64_t kScratchBytes = 16 << 10;
constexpr std::size_t kPiecesPerCall = 128;

// Pages that were taken for cached may have gone meanwhile. A sandbox may refuse preadv2, with any
// errno, and allow preadv. So no refusal counts: the ordinary read that follows has the error.
bool is_miss(std::int64_t result) {
    return result <= 0;
}

class ListReader {
public:
    /// `only_cached`: it ends where something is not in the page cache.
    ListReader(os::File& file, const Extents& extents, Position at, std::uint64_t end_index,
               std::uint64_t done_bytes, bool only_cached)
        : file_(file),
          extents_(extents),
          at_(at),
          end_index_(end_index),
          only_cached_(only_cached) {
        while (done_bytes != 0) {
            const std::uint64_t here = extents_[at_.index].memory.bytes - at_.skip;
            const std::uint64_t step = std::min(done_bytes, here);
            done_bytes -= step;
            at_ = step == here ? Position{at_.index + 1, 0} : Position{at_.index, at_.skip + step};
        }
        next_ = take_piece();
    }

    CachedRead read() {
        while (take_call() && read_call()) {
        }
        return done_;
    }
    /// After read(): every byte came.
    [[nodiscard]] bool whole() const { return whole_; }

private:
    struct Piece {
        std::uint64_t offset = 0;
        std::byte* memory = nullptr;
        std::uint64_t bytes = 0;
    };

    // Extents that adjoin in the file and in memory are one piece. Without bytes at the end.
    Piece take_piece() {
        Piece piece;
        for (; at_.index < end_index_; at_ = {at_.index + 1, 0}) {
            const Extent extent = extents_[at_.index];
            const Piece here{extent.offset + at_.skip, extent.memory.data + at_.skip,
                             extent.memory.bytes - at_.skip};
            if (here.bytes == 0) {
                continue;
            }
            if (piece.bytes == 0) {
                piece = here;
            } else if (here.offset == piece.offset + piece.bytes &&
                       here.memory == piece.memory + piece.bytes) {
                piece.bytes += here.bytes;
            } else {
                break;
            }
        }
        return piece;
    }

    [[nodiscard]] bool straight() const { return pieces_[0].bytes >= kCachedSmallBytes; }

    // A read that goes on within an extent may be after the begin of the next.
    [[nodiscard]] bool joins(const Piece& piece) const {
        if (straight()) {
            return piece.bytes >= kCachedSmallBytes && piece.offset == call_end_;
        }
        return piece.bytes < kCachedSmallBytes && piece.offset >= pieces_[0].offset &&
               piece.offset <= call_end_ + kCachedGapBytes &&
               piece.offset + piece.bytes <= pieces_[0].offset + kScratchBytes;
    }

    // The pieces of the next call; false at the end.
    bool take_call() {
        count_ = 0;
        call_end_ = next_.offset;
        while (next_.bytes != 0 && count_ < pieces_.size() && (count_ == 0 || joins(next_))) {
            pieces_[count_++] = next_;
            call_end_ = std::max(call_end_, next_.offset + next_.bytes);
            next_ = take_piece();
        }
        return count_ != 0;
    }

    // False where something could not be read.
    bool read_call() {
        const bool scatters = count_ > 1 && !straight();
        const std::uint64_t begin = pieces_[0].offset;
        const std::int64_t got = scatters ? read_scratch() : read_straight();
        if (is_miss(got)) {
            file_.cache_history().missed();
        }
        const std::uint64_t reached =
            begin + static_cast<std::uint64_t>(std::max<std::int64_t>(got, 0));
        for (std::size_t i = 0; i < count_; ++i) {
            const Piece& piece = pieces_[i];
            const std::uint64_t here =
                std::min(reached - std::min(reached, piece.offset), piece.bytes);
            if (scatters) {
                std::memcpy(piece.memory, scratch_.data() + (piece.offset - begin), here);
            }
            count(here);
            done_.cached_bytes += ended_ ? 0 : static_cast<std::uint32_t>(here);
            if (here < piece.bytes && (only_cached_ || !read_rest(piece, here))) {
                whole_ = false;
                return false;
            }
        }
        return true;
    }

    std::int64_t read_straight() {
        std::array<iovec, kPiecesPerCall> parts;  // NOLINT: not zeroed, 2 KiB a call
        for (std::size_t i = 0; i < count_; ++i) {
            parts[i] = {pieces_[i].memory, pieces_[i].bytes};
        }
        return read_call_of(pieces_[0].offset, {parts.data(), count_});
    }

    std::int64_t read_scratch() {
        const std::uint64_t begin = pieces_[0].offset;
        const iovec whole{scratch_.data(), call_end_ - begin};
        return read_call_of(begin, {&whole, 1});
    }

    // What has no device below its page cache is all there.
    std::int64_t read_call_of(std::uint64_t offset, std::span<const iovec> pieces) {
        return file_.info().in_memory ? file_.read_at(os::IoPath::kBuffered, offset, pieces)
                                      : file_.read_cached(offset, pieces);
    }

    // Nothing between the pieces is read here: it may be what could not be read. Extents may lie
    // over one another, so that those after the one in which the file ends may be before its end.
    bool read_rest(const Piece& piece, std::uint64_t done) {
        std::uint32_t refused = 0;
        while (done < piece.bytes) {
            const iovec rest{piece.memory + done, piece.bytes - done};
            const std::int64_t got =
                file_.read_at(os::IoPath::kBuffered, piece.offset + done, {&rest, 1});
            if ((got == -EINTR || got == -EAGAIN) && ++refused < kTriesAtOnce) {
                continue;
            }
            if (got < 0) {
                return stop(got, piece.offset + done);
            }
            if (got == 0) {
                done_.offset = std::min(ended_ ? done_.offset : UINT64_MAX, piece.offset + done);
                ended_ = true;
                return true;
            }
            done += static_cast<std::uint64_t>(got);
            count(static_cast<std::uint64_t>(got));
        }
        return true;
    }

    // Up to where the file ends: who asks for the rest then has it tried again.
    void count(std::uint64_t bytes) {
        done_.result += ended_ ? 0 : static_cast<std::int64_t>(bytes);
    }

    // The next request for the rest then meets the same again.
    bool stop(std::int64_t result, std::uint64_t offset) {
        done_.result = done_.result == 0 ? result : done_.result;
        done_.offset = offset;
        return false;
    }

    os::File& file_;
    const Extents& extents_;
    Position at_;
    const std::uint64_t end_index_;
    const bool only_cached_;
    Piece next_;
    std::array<Piece, kPiecesPerCall> pieces_;
    std::size_t count_ = 0;
    std::uint64_t call_end_ = 0;
    CachedRead done_;
    bool ended_ = false;  ///< the file did, before the end of a piece
    bool whole_ = true;
    alignas(64) std::array<std::byte, kScratchBytes> scratch_;
};

}  // namespace

CachedRead read_cached(os::File& file, std::uint64_t offset, std::span<const iovec> pieces) {
    const std::int64_t got = file.read_cached(offset, pieces);
    if (!is_miss(got)) {
        return {got, static_cast<std::uint32_t>(std::max<std::int64_t>(got, 0)), offset};
    }
    file.cache_history().missed();
    return {file.read_at(os::IoPath::kBuffered, offset, pieces), 0, offset};
}

CachedRead read_cached(os::File& file, const Extents& extents, const Draft& draft,
                       std::uint32_t done_bytes) {
    return ListReader(file, extents, draft.at, draft.at.index + draft.extents, done_bytes, false)
        .read();
}

bool read_where_cached(os::File& file, const Extents& extents, std::uint64_t begin,
                       std::uint64_t end) {
    ListReader reader(file, extents, {begin, 0}, end, 0, true);
    static_cast<void>(reader.read());
    return reader.whole();
}

}  // namespace penstock::engine
