// SPDX-License-Identifier: Apache-2.0
#include "store/read/chunk_reader.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "base/start_threads.hpp"
#include "format/fault.hpp"
#include "stream/checksum.hpp"
#include "stream/touch.hpp"
#include "stream/when_room.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{16} << 20;
constexpr std::size_t kBatchPieces = 4096;
// Transfers of one queue with the engine.
constexpr std::size_t kRunningMax = 4;
// Batches of one queue whose memory is faulted in before they are begun.
constexpr std::size_t kTouchedMax = 4;
// Limit on our memory for all queues, from the submission of a batch until it is checked.
constexpr std::uint64_t kHeldBytesMax = std::uint64_t{256} << 20;
// Below this, threads cost more than they bring.
constexpr std::uint64_t kBytesForHelpers = std::uint64_t{64} << 20;
constexpr unsigned kThreadsMax = 8;

std::uint64_t chunks_in(std::uint64_t bytes) {
    return (bytes + kChunkBytes - 1) / kChunkBytes;
}

}  // namespace

ChunkReader::ChunkReader(Engine& engine, MemoryPool& memory, ShardFiles& files,
                         std::span<const SlicePart> parts, const ChunkReadOptions& options,
                         stream::ProgressClock& progress)
    : engine_(engine),
      pool_(memory),
      files_(files),
      parts_(parts),
      options_(options),
      progress_(progress),
      pump_(engine, progress, {kRunningMax * kBatchBytes, kRunningMax}) {}

ChunkReader::~ChunkReader() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
        arrived_.clear();
    }
    work_.notify_all();
    helpers_.clear();
}

const Shard& ChunkReader::shard_of(const SlicePiece& piece) const {
    return files_.manifest().shards[parts_[piece.part].slice().shard];
}

std::uint64_t ChunkReader::in_file(const SlicePiece& piece) const {
    return parts_[piece.part].slice().begin + piece.offset;
}

// Sorts by folder, file and place, so that neighbours go together.
void ChunkReader::cut(std::vector<SlicePiece> pieces) {
    const auto place = [this](const SlicePiece& piece) {
        return std::tuple(shard_of(piece).folder, parts_[piece.part].slice().shard, in_file(piece));
    };
    std::sort(pieces.begin(), pieces.end(),
              [&](const SlicePiece& a, const SlicePiece& b) { return place(a) < place(b); });
    Batch* last = nullptr;
    for (const SlicePiece& piece : pieces) {
        const bool same_folder =
            last != nullptr && shard_of(last->pieces.back()).folder == shard_of(piece).folder;
        if (!same_folder) {
            queues_.emplace_back();
        }
        if (!same_folder || last->bytes + piece.bytes > kBatchBytes ||
            last->pieces.size() == kBatchPieces) {
            queues_.back().push_back(std::make_unique<Batch>());
            last = queues_.back().back().get();
            ++unchecked_;
        }
        last->pieces.push_back(piece);
        last->bytes += piece.bytes;
    }
}

std::uint64_t ChunkReader::run(std::vector<SlicePiece> pieces) {
    std::uint64_t total = 0;
    for (const SlicePiece& piece : pieces) {
        total += piece.bytes;
    }
    progress_.set_total(total);
    cut(std::move(pieces));
    if (total >= kBytesForHelpers) {
        for (const Waiting& queue : queues_) {
            for (const BatchPtr& batch : queue) {
                // Bytes that are verified go through memory of ours, again and again.
                batch->touching = options_.find_all ? Touching::kOver : Touching::kWaits;
            }
        }
        const unsigned threads = std::min(usable_processors(), kThreadsMax);
        base::start_threads(helpers_, threads - 1, [this] { help(); });
    }
    pump_.run(*this, queues_.size());
    raise_first();
    return total;
}

void ChunkReader::make_request(Batch& batch) {
    TransferRequest& request = batch.request;
    batch.may_run = true;
    request.options.cache = options_.cache;
    request.options.priority = options_.priority;
    std::uint64_t ours = 0;
    for (const SlicePiece& piece : batch.pieces) {
        // Memory at the same offset in a page as in the file: some devices take it without a copy.
        ours += piece.memory == nullptr
                    ? base::align_up(piece.bytes, base::kPageBytes) + base::kPageBytes
                    : 0;
    }
    if (ours > 0) {
        batch.ours = pool_.take(ours);
    }
    std::uint64_t at = 0;
    std::uint32_t shard = 0;
    for (const SlicePiece& piece : batch.pieces) {
        Memory memory = place_of(piece);
        const std::uint64_t offset = in_file(piece);
        if (memory.data == nullptr) {
            memory.data = batch.ours.data() + at + offset % base::kPageBytes;
            at += base::align_up(piece.bytes, base::kPageBytes) + base::kPageBytes;
        }
        PENSTOCK_ASSERT(at <= batch.ours.size());
        batch.memory.push_back(memory.data);
        if (request.files.empty() || parts_[piece.part].slice().shard != shard) {
            shard = parts_[piece.part].slice().shard;
            request.files.push_back(files_.open(shard));
        }
        request.extents.push_back(
            {offset, memory, static_cast<std::uint32_t>(request.files.size() - 1)});
    }
}

stream::PumpUnitPtr ChunkReader::next(std::size_t number) {
    Waiting& queue = queues_[number];
    while (!queue.empty()) {  // nobody else takes any
        BatchPtr batch;
        {
            const std::lock_guard lock(mutex_);
            const std::uint64_t bytes = queue.front()->bytes;
            if (queue.front()->touching == Touching::kRuns ||
                (held_bytes_ > 0 && held_bytes_ + bytes > kHeldBytesMax)) {
                return nullptr;
            }
            held_bytes_ += bytes;
            batch = std::move(queue.front());
            queue.pop_front();
        }
        work_.notify_one();  // the next one may be touched
        if (batch->touching == Touching::kWaits) {
            touch(*batch);
        }
        try {
            make_request(*batch);
            return batch;
        } catch (const Error&) {
            if (!options_.find_all) {
                throw;
            }
        }
        check_one_by_one(*batch);
        check_later(std::move(batch));
    }
    return nullptr;
}

void ChunkReader::ended(stream::PumpUnitPtr unit, Transfer transfer) {
    BatchPtr batch(static_cast<Batch*>(unit.release()));
    try {
        transfer.wait();
    } catch (const Error& error) {
        if (!options_.find_all) {
            if (error.reason() == ErrorCode::kEndOfFile) {
                base::raise(base::error(
                    ErrorCode::kDamaged, "read checkpoint",
                    "the file became shorter while it was read; take another checkpoint",
                    error.path(), error.offset()));
            }
            throw;
        }
        check_one_by_one(*batch);
    }
    check_later(std::move(batch));
    raise_first();
}

stream::OwnWork ChunkReader::own_work() {
    raise_first();
    {
        std::unique_lock lock(mutex_);
        if (Batch* const batch = take_untouched()) {
            lock.unlock();
            touch(*batch);
            return stream::OwnWork::kDid;
        }
    }
    if (const BatchPtr batch = take_arrived()) {
        check(*batch);
        return stream::OwnWork::kDid;
    }
    const std::lock_guard lock(mutex_);
    return unchecked_ == 0 ? stream::OwnWork::kOver : stream::OwnWork::kNone;
}

// With the mutex: a batch whose memory may be faulted in. It stays in its queue meanwhile.
ChunkReader::Batch* ChunkReader::take_untouched() {
    for (const Waiting& queue : queues_) {
        for (std::size_t i = 0; i < std::min(kTouchedMax, queue.size()); ++i) {
            if (queue[i]->touching == Touching::kWaits) {
                queue[i]->touching = Touching::kRuns;
                return queue[i].get();
            }
        }
    }
    return nullptr;
}

void ChunkReader::touch(Batch& batch) noexcept {
    {
        stream::Touch touch;
        for (const SlicePiece& piece : batch.pieces) {
            if (piece.memory != nullptr && place_of(piece).kind == MemoryKind::kHost) {
                touch.add(piece.memory, piece.bytes);
            }
        }
    }
    const std::lock_guard lock(mutex_);
    batch.touching = Touching::kOver;
}

// Reads each chunk of a failed batch alone, to find the bad ones.
void ChunkReader::check_one_by_one(Batch& batch) {
    const Buffer chunk = pool_.take(kChunkBytes);
    for (const SlicePiece& whole : batch.pieces) {
        for (std::uint64_t begin = 0; begin < whole.bytes; begin += kChunkBytes) {
            SlicePiece piece = whole;
            piece.offset += begin;
            piece.bytes = std::min(kChunkBytes, whole.bytes - begin);
            try {
                stream::read_when_room(engine_, files_.open(parts_[piece.part].slice().shard),
                                       chunk.bytes().first(piece.bytes), in_file(piece),
                                       options_.cache);
                check_piece(piece, chunk.data());
            } catch (const Error& error) {
                if (!error.is_about_the_file()) {
                    throw;
                }
                found({piece.part, piece.offset, piece.bytes, error.what()});
            }
            progress_.tick();
        }
    }
    batch.pieces.clear();
}

void ChunkReader::check_later(BatchPtr batch) {
    {
        const std::lock_guard lock(mutex_);
        arrived_.push_back(std::move(batch));
    }
    work_.notify_one();
}

ChunkReader::BatchPtr ChunkReader::take_arrived() {
    const std::lock_guard lock(mutex_);
    if (arrived_.empty()) {
        return nullptr;
    }
    BatchPtr batch = std::move(arrived_.front());
    arrived_.pop_front();
    return batch;
}

// Memory comes first: nothing arrives while the device waits for it.
void ChunkReader::help() {
    std::unique_lock lock(mutex_);
    while (true) {
        Batch* untouched = nullptr;
        work_.wait(lock, [&] {
            untouched = over_ ? nullptr : take_untouched();
            return over_ || untouched != nullptr || !arrived_.empty();
        });
        if (over_) {
            return;
        }
        BatchPtr batch;
        if (untouched == nullptr) {
            batch = std::move(arrived_.front());
            arrived_.pop_front();
        }
        lock.unlock();
        if (untouched != nullptr) {
            touch(*untouched);
            pump_.wake();
        } else {
            check(*batch);
            batch.reset();
        }
        lock.lock();
    }
}

void ChunkReader::check(Batch& batch) noexcept {
    std::exception_ptr failure;
    try {
        for (std::size_t i = 0; i < batch.pieces.size(); ++i) {
            check_piece(batch.pieces[i], batch.memory[i]);
        }
    } catch (...) {
        failure = std::current_exception();
    }
    batch.ours = {};
    progress_.add(batch.bytes);
    {
        const std::lock_guard lock(mutex_);
        PENSTOCK_ASSERT(unchecked_ != 0 && held_bytes_ >= batch.bytes);
        --unchecked_;
        held_bytes_ -= batch.bytes;
        failure_ = failure_ ? failure_ : failure;
    }
    pump_.wake();
}

void ChunkReader::check_piece(const SlicePiece& piece, const std::byte* memory) {
    const SlicePart& part = parts_[piece.part];
    if (options_.verify && !part.slice().sums.empty()) {
        ConstMemory there = place_of(piece);
        there.data = memory;
        const bool on_host = there.kind == MemoryKind::kHost;
        const std::uint64_t step = on_host ? piece.bytes : stream::kHostWindowBytes;
        for (std::uint64_t at = 0; at < piece.bytes; at += step) {
            const ConstMemory some(memory + at, std::min(step, piece.bytes - at), there.kind,
                                   there.device);
            windows_.with(some, [&](std::span<const std::byte> bytes) {
                check_chunks(piece.part, piece.offset + at, bytes);
            });
        }
    }
    if (piece.memory == nullptr && !options_.find_all) {
        part.copy_out(piece.offset, {memory, piece.bytes});
    }
}

void ChunkReader::check_chunks(std::size_t part, std::uint64_t first,
                               std::span<const std::byte> bytes) {
    const Slice& slice = parts_[part].slice();
    const Shard& shard = files_.manifest().shards[slice.shard];
    for (std::uint64_t i = 0; i < chunks_in(bytes.size()); ++i) {
        const auto chunk = bytes.subspan(
            i * kChunkBytes, std::min<std::uint64_t>(kChunkBytes, bytes.size() - i * kChunkBytes));
        const std::uint64_t offset = first + i * kChunkBytes;
        if (stream::bind(stream::content_hash(chunk), shard.id, shard.generation,
                         slice.begin + offset) != slice.sums[offset / kChunkBytes]) {
            found({part, offset, chunk.size(), {}});
        }
    }
}

// The caller's memory where it goes straight there; else ours, without an address.
Memory ChunkReader::place_of(const SlicePiece& piece) const {
    return piece.memory == nullptr ? Memory(nullptr, piece.bytes)
                                   : parts_[piece.part].place(piece.memory, piece.bytes);
}

void ChunkReader::found(BadChunks bad) {
    const std::lock_guard lock(mutex_);
    bad_.push_back(std::move(bad));
}

void ChunkReader::raise_first() {
    std::unique_lock lock(mutex_);
    if (failure_) {
        std::rethrow_exception(failure_);
    }
    if (options_.find_all || bad_.empty()) {
        return;
    }
    const BadChunks first = bad_.front();
    lock.unlock();
    raise_bad(first, parts_[first.part], files_.path(parts_[first.part].slice().shard));
}

std::vector<BadChunks> ChunkReader::bad() {
    const std::lock_guard lock(mutex_);
    std::sort(bad_.begin(), bad_.end(), [this](const BadChunks& a, const BadChunks& b) {
        const auto place = [this](const BadChunks& bad) {
            const Slice& slice = parts_[bad.part].slice();
            return std::tuple(slice.shard, slice.begin + bad.offset);
        };
        return place(a) < place(b);
    });
    return bad_;
}

void raise_bad(const BadChunks& bad, const SlicePart& part, const std::string& path) {
    base::raise(base::error(
        ErrorCode::kDamaged, "read checkpoint",
        fmt::format("tensor {}: checksum mismatch in {} bytes; they are damaged. Load an older "
                    "checkpoint, and check the device for errors",
                    format::shown(part.tensor().name), bad.bytes),
        path, part.slice().begin + bad.offset));
}

}  // namespace penstock::store
