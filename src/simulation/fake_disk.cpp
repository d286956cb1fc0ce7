// SPDX-License-Identifier: Apache-2.0
#include "simulation/fake_disk.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::simulation {

namespace {

std::uint64_t total_of(std::span<const iovec> pieces) {
    std::uint64_t total = 0;
    for (const iovec& piece : pieces) {
        total += piece.iov_len;
    }
    return total;
}

// Zeroes bytes [begin, end) of the pieces.
void zero_behind(std::span<const iovec> pieces, std::uint64_t begin, std::uint64_t end) {
    for (const iovec& piece : pieces) {
        const std::uint64_t from = std::min<std::uint64_t>(begin, piece.iov_len);
        const std::uint64_t to = std::min<std::uint64_t>(end, piece.iov_len);
        if (from < to) {
            std::memset(static_cast<std::byte*>(piece.iov_base) + from, 0, to - from);
        }
        begin -= from;
        end -= to;
    }
}

}  // namespace

FakeDisk::FakeDisk(DeviceId device, const DiskShape& shape, const DiskModel& model,
                   std::uint64_t seed)
    : device_(device), shape_(shape), model_(model), random_(seed), lane_free_(model.lanes) {}

FakeDisk::FakeDisk(const FakeDisk& other, std::uint64_t seed)
    : device_(other.device_),
      shape_(other.shape_),
      model_(other.model_),
      random_(seed),
      names_(other.names_),
      inodes_(other.inodes_),
      lane_free_(other.model_.lanes) {}

std::shared_ptr<FakeDisk> FakeDisk::fork(std::uint64_t seed) const {
    const std::lock_guard lock(mutex_);
    return std::shared_ptr<FakeDisk>(new FakeDisk(*this, seed));
}

void FakeDisk::set_faults(FaultPlan plan) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(plan);
}

void FakeDisk::set_operation_faults(OperationPlan plan) {
    const std::lock_guard lock(mutex_);
    operation_faults_ = std::move(plan);
}

std::uint64_t FakeDisk::operations() const {
    const std::lock_guard lock(mutex_);
    return operations_;
}

void FakeDisk::cut_off_at(std::uint64_t at) {
    const std::lock_guard lock(mutex_);
    cut_off_at_ = at;
}

std::uint64_t FakeDisk::trace() const {
    const std::lock_guard lock(mutex_);
    return trace_;
}

// Hashes with FNV-1a over 64-bit words.
void FakeDisk::note(std::uint64_t value) {
    trace_ = (trace_ ^ value) * 1099511628211U;
}

void FakeDisk::announce(DiskCall call, const std::string& path) const {
    if (watch_) {
        watch_({operations(), call, path});
    }
}

// Counts an operation; returns the errno that it fails with, or 0.
int FakeDisk::step(DiskCall call, const std::string& path) {
    const std::uint64_t number = operations_++;
    if (number >= cut_off_at_) {
        return EIO;
    }
    return operation_faults_ ? operation_faults_({number, call, path}) : 0;
}

std::uint64_t FakeDisk::draw() {
    const std::lock_guard lock(mutex_);
    return random_();
}

base::Nanos FakeDisk::schedule(base::Nanos now, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto io = std::min_element(lane_free_.begin(), lane_free_.end());
    base::Nanos done = std::max(now, *io) + model_.request_ns;
    if (model_.jitter_ns != 0) {
        done += static_cast<base::Nanos>(random_() % static_cast<std::uint64_t>(model_.jitter_ns));
    }
    if (model_.bytes_per_second > 0) {
        done = std::max(done, pipe_free_) +
               static_cast<base::Nanos>(static_cast<double>(bytes) * 1e9 / model_.bytes_per_second);
        pipe_free_ = done;
    }
    *io = done;
    return done;
}

std::int64_t FakeDisk::access(engine::Op op, os::IoPath io, std::uint64_t inode,
                              std::uint64_t offset, std::span<const iovec> pieces,
                              base::Nanos now) {
    static const std::string no_path;
    announce(DiskCall::kAccess, no_path);
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = total_of(pieces);
    const int refused = step(DiskCall::kAccess, no_path);
    if (offset == kAtEnd) {
        offset = is_file(inode) ? inodes_.at(inode)->bytes() : 0;
    }
    const Fault fault = faults_ ? faults_({accesses_, op, io, offset, bytes}) : Fault{};
    ++accesses_;
    const bool direct = io == os::IoPath::kDirect && shape_.direct;
    const std::uint64_t align =
        !direct ? 1 : (op == engine::Op::kRead ? shape_.read_align : shape_.write_align);
    std::int64_t result = 0;
    if (refused != 0) {
        result = -refused;
    } else if (fault.system_errno != 0) {
        result = -fault.system_errno;
    } else if (!inodes_.contains(inode)) {
        result = -EIO;  // its file was lost in a crash
    } else if (direct && (!base::is_aligned(offset, align) || !base::is_aligned(bytes, align) ||
                          std::any_of(pieces.begin(), pieces.end(), [&](const iovec& piece) {
                              return !base::is_aligned(piece.iov_base, shape_.memory_align) ||
                                     !base::is_aligned(piece.iov_len, align);
                          }))) {
        result = -EINVAL;
    } else {
        const std::uint64_t most = std::max(base::align_down(fault.bytes_max, align), align);
        bytes = fault.bytes_max == 0 ? 0 : std::min(bytes, most);
        if (op == engine::Op::kRead) {
            const std::uint64_t size = inodes_.at(inode)->bytes();
            bytes = offset >= size ? 0 : std::min(bytes, size - offset);
        }
        const int failed = move(op, inode, offset, pieces, bytes, fault);
        result = failed != 0 ? -failed : static_cast<std::int64_t>(bytes);
        if (op == engine::Op::kRead && direct && !shape_.hollow) {
            // A device transfers whole blocks, even if the file ends within one.
            zero_behind(pieces, bytes, base::align_up(bytes, align));
        }
    }
    for (const std::uint64_t value : {static_cast<std::uint64_t>(now), std::uint64_t{inode}, offset,
                                      bytes, static_cast<std::uint64_t>(result)}) {
        note(value);
    }
    return result;
}

int FakeDisk::move(engine::Op op, std::uint64_t inode, std::uint64_t offset,
                   std::span<const iovec> pieces, std::uint64_t bytes, const Fault& fault) {
    FakeInode& file = op == engine::Op::kWrite ? edit(inode) : *inodes_.at(inode);
    std::uint64_t place = offset;
    if (op == engine::Op::kWrite) {
        if (const int refused = resize(inode, std::max(file.bytes(), offset + bytes))) {
            return refused;
        }
        file.set_modified(time());
        place = fault.lands_at.value_or(offset);
        bytes = std::min(bytes, file.bytes() - std::min(file.bytes(), place));
    }
    if (shape_.hollow) {
        return 0;
    }
    for (const iovec& piece : pieces) {
        const std::size_t step_bytes = std::min<std::uint64_t>(piece.iov_len, bytes);
        if (step_bytes == 0) {
            break;
        }
        auto* const memory = static_cast<std::byte*>(piece.iov_base);
        if (op == engine::Op::kRead) {
            file.read(place, {memory, step_bytes});
        } else {
            file.write(place, {memory, step_bytes});
        }
        place += step_bytes;
        bytes -= step_bytes;
    }
    return 0;
}

bool FakeDisk::has_room(std::uint64_t inode, std::uint64_t bytes) const {
    const std::uint64_t held = held_by(inode);
    return bytes <= held || shape_.capacity_bytes == UINT64_MAX ||
           used() - held + bytes <= shape_.capacity_bytes;
}

int FakeDisk::resize(std::uint64_t number, std::uint64_t bytes) {
    FakeInode& inode = edit(number);
    if (bytes > inode.bytes() && !has_room(number, bytes)) {
        return ENOSPC;
    }
    inode.resize(bytes);
    inode.set_modified(time());
    return 0;
}

// Bytes of files that have a name, or are open without one.
std::uint64_t FakeDisk::used() const {
    std::uint64_t total = 0;
    for (const auto& [number, inode] : inodes_) {
        total += nameless_.contains(number) && !opened_.contains(number) ? 0 : held_by(number);
    }
    return total;
}

std::uint64_t FakeDisk::held_by(std::uint64_t inode) const {
    const auto room = room_.find(inode);
    return std::max(inodes_.at(inode)->bytes(), room == room_.end() ? 0 : room->second);
}

// Copies an inode that is shared with a fork.
FakeInode& FakeDisk::edit(std::uint64_t inode) {
    std::shared_ptr<FakeInode>& held = inodes_.at(inode);
    if (held.use_count() > 1) {
        held = std::make_shared<FakeInode>(*held);
    }
    return *held;
}

// The time on this disk: each operation takes one nanosecond.
std::int64_t FakeDisk::time() const {
    return static_cast<std::int64_t>(operations_);
}

bool FakeDisk::is_file(std::uint64_t inode) const {
    return inodes_.contains(inode);
}

int FakeDisk::make(const std::string& path, FileKind kind, const std::string& target,
                   std::uint64_t& inode) {
    const int refused = names_.make(path, kind, target, inode);
    if (refused == 0 && kind == FileKind::kFile) {
        inodes_[inode] = std::make_shared<FakeInode>(shape_.hollow);
    }
    return refused;
}

// Draws which of a row of things survive a crash.
Survival FakeDisk::draw_survival() {
    switch (random_() % 8) {
        case 0:
            return [](std::size_t, std::size_t) { return false; };
        case 1:
            return [](std::size_t, std::size_t) { return true; };
        case 2: {
            const std::uint64_t draw = random_();
            return
                [draw](std::size_t index, std::size_t count) { return index < draw % (count + 1); };
        }
        default: {
            const std::uint64_t odds = random_() % 3;  // 1, 4 or 7 of 8
            return [this, odds](std::size_t, std::size_t) { return random_() % 8 < 1 + 3 * odds; };
        }
    }
}

void FakeDisk::lose_cache(FakeInode& inode) {
    inode.lose_cache(draw_survival(), random_() % 3);
}

void FakeDisk::crash() {
    const std::lock_guard lock(mutex_);
    const Survival survival = draw_survival();
    const std::size_t changes = names_.volatile_changes();
    names_.crash([&, index = std::size_t{0}]() mutable { return survival(index++, changes); });
    std::erase_if(inodes_,
                  [this](const auto& inode) { return names_.node(inode.first) == nullptr; });
    for (const auto& [number, held] : inodes_) {
        FakeInode& inode = edit(number);
        lose_cache(inode);
        inode.restart();
    }
    opened_.clear();
    nameless_.clear();
    locks_.clear();
    cut_off_at_ = UINT64_MAX;
}

void FakeDisk::settle() {
    const std::lock_guard lock(mutex_);
    names_.crash([] { return true; });
    std::erase_if(inodes_,
                  [this](const auto& inode) { return names_.node(inode.first) == nullptr; });
    for (const auto& [number, held] : inodes_) {
        edit(number).sync();
    }
}

bool FakeDisk::damage(const std::string& path,
                      const std::function<void(std::vector<std::byte>&)>& change) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t inode = names_.find(path);
    if (!is_file(inode)) {
        return false;
    }
    edit(inode).damage(change);
    return true;
}

FakeDisk::Opened FakeDisk::open(const std::string& path, const FileOptions& options) {
    announce(DiskCall::kOpen, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kOpen, path)) {
        return {refused, 0};
    }
    std::uint64_t inode = names_.find(path);
    if (inode == FakeNames::kNone) {
        const int failed = options.create ? make(path, FileKind::kFile, "", inode) : ENOENT;
        if (failed != 0) {
            return {failed, 0};
        }
    } else if (options.create && options.exclusive) {
        return {EEXIST, 0};
    } else if (!is_file(inode)) {
        return {names_.node(inode)->kind == FileKind::kFolder ? EISDIR : ELOOP, 0};
    } else if (options.truncate) {
        edit(inode).resize(0);
        edit(inode).set_modified(time());
    }
    ++opened_[inode];
    return {0, inode};
}

void FakeDisk::close(std::uint64_t inode) {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(inode);
    if (found != opened_.end() && --found->second == 0) {
        opened_.erase(found);
        room_.erase(inode);
    }
}

std::uint64_t FakeDisk::size(std::uint64_t inode) const {
    const std::lock_guard lock(mutex_);
    const auto found = inodes_.find(inode);
    return found == inodes_.end() ? 0 : found->second->bytes();
}

std::uint32_t FakeDisk::openings(std::uint64_t inode) const {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(inode);
    return found == opened_.end() ? 0 : found->second;
}

int FakeDisk::truncate(std::uint64_t inode, std::uint64_t bytes) {
    static const std::string no_path;
    announce(DiskCall::kTruncate, no_path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kTruncate, no_path)) {
        return refused;
    }
    return is_file(inode) ? resize(inode, bytes) : EIO;
}

int FakeDisk::preallocate(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes) {
    static const std::string no_path;
    announce(DiskCall::kPreallocate, no_path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kPreallocate, no_path)) {
        return refused;
    }
    if (!shape_.preallocates) {
        return EOPNOTSUPP;
    }
    if (!is_file(inode)) {
        return EIO;
    }
    return resize(inode, std::max(inodes_.at(inode)->bytes(), offset + bytes));
}

int FakeDisk::reserve(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes) {
    static const std::string no_path;
    if (!shape_.reserves) {
        return 0;
    }
    announce(DiskCall::kPreallocate, no_path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kPreallocate, no_path)) {
        return refused;
    }
    if (!is_file(inode)) {
        return EIO;
    }
    if (!has_room(inode, offset + bytes)) {
        return ENOSPC;
    }
    room_[inode] = std::max(held_by(inode), offset + bytes);
    return 0;
}

int FakeDisk::sync(std::uint64_t inode, const std::string& path, bool with_name) {
    announce(DiskCall::kSync, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kSync, path);
    if (!is_file(inode)) {
        return EIO;
    }
    if (refused != 0) {
        lose_cache(edit(inode));
        return refused;
    }
    if (shape_.syncs_data) {
        edit(inode).sync();
    }
    if (with_name && shape_.syncs_names && names_.find(path) == inode) {
        names_.sync_folder(names_.folder_of(path));
    }
    return 0;
}

int FakeDisk::sync_folder(const std::string& path) {
    announce(DiskCall::kSyncFolder, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kSyncFolder, path)) {
        return refused;
    }
    return sync_names(names_.find(path));
}

int FakeDisk::rename(const std::string& from, const std::string& to) {
    announce(DiskCall::kRename, from);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kRename, from)) {
        return refused;
    }
    std::uint64_t gone = FakeNames::kNone;
    const int refused = names_.rename(from, to, gone);
    nameless_.insert(gone);
    return refused;
}

int FakeDisk::exchange(const std::string& one, const std::string& other) {
    announce(DiskCall::kExchange, one);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kExchange, one)) {
        return refused;
    }
    return shape_.exchanges ? names_.exchange(one, other) : EINVAL;
}

int FakeDisk::link(const std::string& from, const std::string& to) {
    announce(DiskCall::kLink, to);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kLink, to);
    return refused != 0 ? refused : names_.link(from, to);
}

int FakeDisk::symbolic_link(const std::string& target, const std::string& path) {
    announce(DiskCall::kSymbolicLink, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kSymbolicLink, path);
    std::uint64_t inode = FakeNames::kNone;
    return refused != 0 ? refused : make(path, FileKind::kSymbolicLink, target, inode);
}

std::optional<std::string> FakeDisk::step_through_link(const std::string& path, bool follow_last,
                                                       const std::string& mount) const {
    const std::lock_guard lock(mutex_);
    return names_.step_through_link(path, follow_last, mount);
}

int FakeDisk::status(const std::string& path, FileStatus& status) const {
    const std::lock_guard lock(mutex_);
    return status_of(names_.find(path), status);
}

int FakeDisk::status_of_open(std::uint64_t inode, FileStatus& status) const {
    const std::lock_guard lock(mutex_);
    return status_of(inode, status);
}

void FakeDisk::set_mode(std::uint64_t inode, std::uint32_t mode) {
    const std::lock_guard lock(mutex_);
    if (is_file(inode)) {
        names_.set_mode(inode, mode);
    }
}

// Not counted as an operation: it need not be durable, and no crash looks different for it.
int FakeDisk::set_modified(const std::string& path, std::int64_t since_1970_ns) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t inode = names_.find(path);
    if (!is_file(inode)) {
        return inode == FakeNames::kNone ? ENOENT : EISDIR;
    }
    edit(inode).set_modified(since_1970_ns);
    return 0;
}

int FakeDisk::remove(const std::string& path) {
    announce(DiskCall::kRemove, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kRemove, path)) {
        return refused;
    }
    std::uint64_t gone = FakeNames::kNone;
    const int refused = names_.remove(path, gone);
    nameless_.insert(gone);
    return refused;
}

int FakeDisk::make_folder(const std::string& path) {
    announce(DiskCall::kMakeFolder, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kMakeFolder, path);
    std::uint64_t inode = FakeNames::kNone;
    return refused != 0 ? refused : make(path, FileKind::kFolder, "", inode);
}

int FakeDisk::list(const std::string& path, std::vector<std::string>& names) const {
    const std::lock_guard lock(mutex_);
    return names_of(names_.find(path), names);
}

Space FakeDisk::space() const {
    const std::lock_guard lock(mutex_);
    const std::uint64_t taken = used();
    return {shape_.capacity_bytes, shape_.capacity_bytes - std::min(taken, shape_.capacity_bytes)};
}

FakeDisk::Opened FakeDisk::lock(const std::string& path, bool make) {
    announce(DiskCall::kLock, path);
    const std::lock_guard guard(mutex_);
    if (const int refused = step(DiskCall::kLock, path)) {
        return {refused, 0};
    }
    std::uint64_t inode = names_.find(path);
    if (inode == FakeNames::kNone && !make) {
        return {ENOENT, 0};
    }
    if (inode == FakeNames::kNone) {
        if (const int failed = this->make(path, FileKind::kFile, "", inode)) {
            return {failed, 0};
        }
    }
    if (!is_file(inode)) {
        return {names_.node(inode)->kind == FileKind::kFolder ? EISDIR : ELOOP, 0};
    }
    return {locks_.insert(inode).second ? 0 : EWOULDBLOCK, inode};
}

void FakeDisk::unlock(std::uint64_t inode) {
    const std::lock_guard guard(mutex_);
    locks_.erase(inode);
}

bool FakeDisk::is_named(std::uint64_t inode, const std::string& path) const {
    const std::lock_guard guard(mutex_);
    return names_.find(path) == inode;
}

}  // namespace penstock::simulation
