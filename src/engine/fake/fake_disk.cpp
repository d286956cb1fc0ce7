// SPDX-License-Identifier: Apache-2.0
#include "engine/fake/fake_disk.hpp"

#include "base/align.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace penstock::engine {

namespace {

std::uint64_t total_of(std::span<const iovec> pieces) {
    std::uint64_t total = 0;
    for (const iovec& piece : pieces) {
        total += piece.iov_len;
    }
    return total;
}

}  // namespace

FakeDisk::FakeDisk(os::DeviceId device, const DiskShape& shape, const DiskModel& model,
                   std::uint64_t seed)
    : device_(device), shape_(shape), model_(model), random_(seed), lane_free_(model.lanes) {
    names_["/"] = kFolder;
    durable_names_["/"] = kFolder;
}

void FakeDisk::set_faults(FaultPlan plan) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(plan);
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

// FNV-1a over 64-bit words.
void FakeDisk::note(std::uint64_t value) {
    trace_ = (trace_ ^ value) * 1099511628211U;
}

// Counts an operation; false when the disk is cut off.
bool FakeDisk::step() {
    return operations_++ < cut_off_at_;
}

base::Nanos FakeDisk::schedule(base::Nanos now, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto lane = std::min_element(lane_free_.begin(), lane_free_.end());
    base::Nanos done = std::max(now, *lane) + model_.request_ns;
    if (model_.jitter_ns != 0) {
        done += static_cast<base::Nanos>(random_() % static_cast<std::uint64_t>(model_.jitter_ns));
    }
    if (model_.bytes_per_second > 0) {
        done = std::max(done, pipe_free_) +
               static_cast<base::Nanos>(static_cast<double>(bytes) * 1e9 / model_.bytes_per_second);
        pipe_free_ = done;
    }
    *lane = done;
    return done;
}

std::int64_t FakeDisk::access(Op op, os::Lane lane, std::uint64_t inode, std::uint64_t offset,
                              std::span<const iovec> pieces, base::Nanos now) {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = total_of(pieces);
    const bool alive = step();
    const Fault fault = faults_ ? faults_({accesses_, op, lane, offset, bytes}) : Fault{};
    ++accesses_;
    const bool direct = lane == os::Lane::kDirect && shape_.direct;
    const std::uint64_t align =
        !direct ? 1 : (op == Op::kRead ? shape_.read_align : shape_.write_align);
    std::int64_t result = 0;
    if (!alive) {
        result = -EIO;
    } else if (fault.system_errno != 0) {
        result = -fault.system_errno;
    } else if (direct && (!base::is_aligned(offset, align) || !base::is_aligned(bytes, align) ||
                          std::any_of(pieces.begin(), pieces.end(), [&](const iovec& piece) {
                              return !base::is_aligned(piece.iov_base, shape_.memory_align) ||
                                     !base::is_aligned(piece.iov_len, shape_.memory_align);
                          }))) {
        result = -EINVAL;
    } else {
        const std::uint64_t most = std::max(base::align_down(fault.bytes_max, align), align);
        bytes = fault.bytes_max == 0 ? 0 : std::min(bytes, most);
        Inode& target = inodes_[inode];
        if (op == Op::kRead) {
            bytes = offset >= target.bytes ? 0 : std::min(bytes, target.bytes - offset);
        }
        const int refused = move(op, target, offset, pieces, bytes);
        result = refused != 0 ? -refused : static_cast<std::int64_t>(bytes);
    }
    for (const std::uint64_t value : {static_cast<std::uint64_t>(now), std::uint64_t{inode}, offset,
                                      bytes, static_cast<std::uint64_t>(result)}) {
        note(value);
    }
    return result;
}

int FakeDisk::move(Op op, Inode& inode, std::uint64_t offset, std::span<const iovec> pieces,
                   std::uint64_t bytes) {
    if (op == Op::kWrite) {
        if (const int refused = resize(inode, std::max(inode.bytes, offset + bytes))) {
            return refused;
        }
        for (std::uint64_t s = offset / kSectorBytes;
             !shape_.hollow && s * kSectorBytes < offset + bytes; ++s) {
            inode.dirty.insert(s);
        }
    }
    if (shape_.hollow) {
        return 0;
    }
    std::byte* place = inode.data.data() + offset;
    for (const iovec& piece : pieces) {
        const std::size_t step_bytes = std::min<std::uint64_t>(piece.iov_len, bytes);
        if (step_bytes == 0) {
            break;
        }
        if (op == Op::kRead) {
            std::memcpy(piece.iov_base, place, step_bytes);
        } else {
            std::memcpy(place, piece.iov_base, step_bytes);
        }
        place += step_bytes;
        bytes -= step_bytes;
    }
    return 0;
}

int FakeDisk::resize(Inode& inode, std::uint64_t bytes) {
    if (bytes > inode.bytes && used() - inode.bytes + bytes > shape_.capacity_bytes) {
        return ENOSPC;
    }
    inode.bytes = bytes;
    if (!shape_.hollow) {
        inode.data.resize(bytes);
    }
    return 0;
}

std::uint64_t FakeDisk::used() const {
    std::uint64_t total = 0;
    for (const auto& [number, inode] : inodes_) {
        total += inode.bytes;
    }
    return total;
}

// Sectors and names that were not synced survive or not, by the seed.
void FakeDisk::crash() {
    const std::lock_guard lock(mutex_);
    const auto heads = [this] { return (random_() & 1) != 0; };
    for (auto& [number, inode] : inodes_) {
        std::vector<std::byte> after = inode.durable;
        after.resize(heads() ? inode.bytes : inode.durable_bytes);
        for (const std::uint64_t sector : inode.dirty) {
            const std::uint64_t begin = sector * kSectorBytes;
            const std::uint64_t end =
                std::min<std::uint64_t>({begin + kSectorBytes, after.size(), inode.data.size()});
            if (heads() && begin < end) {
                std::memcpy(after.data() + begin, inode.data.data() + begin, end - begin);
            }
        }
        inode.data = after;
        inode.durable = std::move(after);
        inode.bytes = inode.durable_bytes = inode.data.size();
        inode.dirty.clear();
    }
    Names after;
    Names all = durable_names_;
    all.insert(names_.begin(), names_.end());
    for (const auto& [path, inode] : all) {
        const auto before = durable_names_.find(path);
        const auto now = names_.find(path);
        const auto& kept = heads() ? now : before;
        if (kept != (kept == now ? names_.end() : durable_names_.end())) {
            after.emplace(path, kept->second);
        }
    }
    names_ = durable_names_ = std::move(after);
    locks_.clear();
    cut_off_at_ = UINT64_MAX;
}

FakeDisk::Opened FakeDisk::open(const std::string& path, const os::OpenOptions& options) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return {EIO, 0};
    }
    const auto found = names_.find(path);
    if (found != names_.end()) {
        if (found->second == kFolder) {
            return {EISDIR, 0};
        }
        if (options.create && options.exclusive) {
            return {EEXIST, 0};
        }
        if (options.truncate) {
            static_cast<void>(resize(inodes_[found->second], 0));
        }
        return {0, found->second};
    }
    if (!options.create || !names_.contains(folder_of(path))) {
        return {ENOENT, 0};
    }
    names_[path] = next_inode_;
    inodes_[next_inode_];
    return {0, next_inode_++};
}

std::uint64_t FakeDisk::size(std::uint64_t inode) const {
    const std::lock_guard lock(mutex_);
    return inodes_.at(inode).bytes;
}

int FakeDisk::truncate(std::uint64_t inode, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    return step() ? resize(inodes_[inode], bytes) : EIO;
}

int FakeDisk::preallocate(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    if (!shape_.preallocates) {
        return EOPNOTSUPP;
    }
    Inode& target = inodes_[inode];
    return resize(target, std::max(target.bytes, offset + bytes));
}

int FakeDisk::sync(std::uint64_t inode, const std::string& path) {
    {
        const std::lock_guard lock(mutex_);
        if (!step()) {
            return EIO;
        }
        Inode& target = inodes_[inode];
        target.durable = target.data;
        target.durable_bytes = target.bytes;
        target.dirty.clear();
    }
    return sync_folder(folder_of(path));
}

int FakeDisk::sync_folder(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    if (!names_.contains(path)) {
        return ENOENT;
    }
    const auto inside = [&](const auto& entry) {
        return entry.first != "/" && folder_of(entry.first) == path;
    };
    std::erase_if(durable_names_, inside);
    for (const auto& entry : names_) {
        if (inside(entry)) {
            durable_names_.insert(entry);
        }
    }
    return 0;
}

int FakeDisk::rename(const std::string& from, const std::string& to) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    const auto found = names_.find(from);
    if (found == names_.end() || !names_.contains(folder_of(to))) {
        return ENOENT;
    }
    const std::uint64_t inode = found->second;
    const auto target = names_.find(to);
    if (target != names_.end() && (target->second == kFolder) != (inode == kFolder)) {
        return inode == kFolder ? ENOTDIR : EISDIR;
    }
    // What lies in a folder goes with it.
    Names moved;
    const std::string inside = from + "/";
    for (const auto& [path, number] : names_) {
        if (path == from || path.starts_with(inside)) {
            moved.emplace(to + path.substr(from.size()), number);
        }
    }
    std::erase_if(names_, [&](const auto& entry) {
        return entry.first == from || entry.first.starts_with(inside);
    });
    for (const auto& [path, number] : moved) {
        names_[path] = number;
    }
    return 0;
}

int FakeDisk::link(const std::string& from, const std::string& to) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    const auto found = names_.find(from);
    if (found == names_.end() || !names_.contains(folder_of(to))) {
        return ENOENT;
    }
    if (names_.contains(to)) {
        return EEXIST;
    }
    if (found->second == kFolder) {
        return EPERM;
    }
    names_[to] = found->second;
    return 0;
}

int FakeDisk::remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    const auto found = names_.find(path);
    if (found == names_.end()) {
        return ENOENT;
    }
    const std::string inside = path + "/";
    const auto next = names_.upper_bound(inside);
    if (found->second == kFolder && next != names_.end() && next->first.starts_with(inside)) {
        return ENOTEMPTY;
    }
    names_.erase(found);
    return 0;
}

int FakeDisk::make_folder(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (!step()) {
        return EIO;
    }
    if (names_.contains(path)) {
        return EEXIST;
    }
    if (!names_.contains(folder_of(path))) {
        return ENOENT;
    }
    names_[path] = kFolder;
    return 0;
}

int FakeDisk::list(const std::string& path, std::vector<std::string>& names) const {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(path);
    if (found == names_.end()) {
        return ENOENT;
    }
    if (found->second != kFolder) {
        return ENOTDIR;
    }
    for (const auto& [name, inode] : names_) {
        if (name != "/" && folder_of(name) == path) {
            names.push_back(name.substr(name.rfind('/') + 1));
        }
    }
    return 0;
}

os::Space FakeDisk::space() const {
    const std::lock_guard lock(mutex_);
    const std::uint64_t taken = used();
    return {shape_.capacity_bytes, shape_.capacity_bytes - std::min(taken, shape_.capacity_bytes)};
}

int FakeDisk::lock(const std::string& path) {
    const std::lock_guard guard(mutex_);
    return locks_.insert(path).second ? 0 : EWOULDBLOCK;
}

void FakeDisk::unlock(const std::string& path) {
    const std::lock_guard guard(mutex_);
    locks_.erase(path);
}

std::string FakeDisk::folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

}  // namespace penstock::engine
