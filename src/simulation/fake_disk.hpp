// SPDX-License-Identifier: Apache-2.0
// A disk in memory, with a file system on it that forgets: names and data are volatile until they
// are synced, and a seed decides which of the rest a crash keeps (fake_names.hpp and fake_inode.hpp
// have the rules). It can be slow by a model, refuse by a plan, lie (writes that land elsewhere,
// syncs that do nothing), rot, be cut off at any operation, and be hollow (sizes without bytes) if
// only time and counts matter.
//
// A disk is cheap to fork: inodes are shared until one of the two changes them. A crash test runs
// its work once, forks the disk before each operation, and crashes each fork any number of times.
#pragma once

#include "base/clock.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"
#include "os/file_system.hpp"
#include "simulation/fake_inode.hpp"
#include "simulation/fake_names.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::simulation {

/// Duration of a request: `request_ns` in one of `lanes` lanes, then its bytes over one pipe.
struct DiskModel {
    base::Nanos request_ns = 0;
    std::uint32_t lanes = 32;
    double bytes_per_second = 0;  ///< 0: no limit
    base::Nanos jitter_ns = 0;    ///< 0 to this much more, by the seed: completions out of order
};

struct DiskShape {
    bool direct = true;
    std::uint32_t memory_align = 512;
    std::uint32_t read_align = 512;
    std::uint32_t write_align = 512;
    std::uint32_t block_bytes = 4096;
    std::uint64_t capacity_bytes = UINT64_MAX;
    bool preallocates = true;
    bool reserves = false;    ///< and can without the size; else that does nothing
    bool page_cache = false;  ///< has one, which the seed fills, empties and lets others look into
    bool cachestat = true;    ///< it can be asked; else only tried
    bool hollow = false;      ///< keeps no bytes and touches no memory
    bool syncs_data = true;   ///< false: a sync of a file makes at most its name durable
    bool syncs_names = true;  ///< false: no sync makes a name durable
    bool exchanges = true;    ///< two names, in one operation
};

/// One access, passed to a fault plan.
struct DiskAccess {
    std::uint64_t index = 0;  ///< number among all accesses to this disk
    engine::Op op = engine::Op::kRead;
    os::IoPath io = os::IoPath::kDirect;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

struct Fault {
    int system_errno = 0;  ///< fails with this
    /// Moves at most this many bytes, cut to the alignment but no fewer than that; 0 moves nothing.
    std::uint64_t bytes_max = UINT64_MAX;
    /// A write that is acknowledged, but lands at this offset of the file; past the end it is lost.
    std::optional<std::uint64_t> lands_at = {};
};

enum class DiskCall : std::uint8_t {
    kAccess,
    kOpen,
    kTruncate,
    kPreallocate,
    kSync,
    kSyncFolder,
    kRename,
    kExchange,
    kLink,
    kSymbolicLink,
    kRemove,
    kMakeFolder,
    kLock,
    kOpenFolder,
};

/// One operation of any kind.
struct DiskOperation {
    std::uint64_t number = 0;  ///< number among all operations on this disk
    DiskCall call = DiskCall::kAccess;
    const std::string& path;  ///< empty for an access
};

class FakeDisk {
public:
    using FaultPlan = std::function<Fault(const DiskAccess&)>;
    using OperationPlan = std::function<int(const DiskOperation&)>;
    using Watch = std::function<void(const DiskOperation&)>;

    FakeDisk(DeviceId device, const DiskShape& shape, const DiskModel& model, std::uint64_t seed);
    FakeDisk& operator=(const FakeDisk&) = delete;

    void set_faults(FaultPlan plan);
    /// Sets the errno that an operation fails with, or 0. A failed sync has lost some of the dirty
    /// data for good, and the next one succeeds, as on Linux.
    void set_operation_faults(OperationPlan plan);
    /// Called before each operation, on the thread that does it; may fork this disk. Set it before
    /// anything runs.
    void set_watch(Watch watch) { watch_ = std::move(watch); }
    /// Operations (accesses and names) so far; from number `at` on every one fails with EIO.
    [[nodiscard]] std::uint64_t operations() const;
    void cut_off_at(std::uint64_t at);
    /// This disk as it is now, without its locks, plans and watch: the state after a process is
    /// killed.
    [[nodiscard]] std::shared_ptr<FakeDisk> fork(std::uint64_t seed) const;
    /// Simulates a power cut: synced data survives, and the seed decides about the rest: nothing,
    /// all, the first part, or any sector and any name at odds that differ from file to file.
    void crash();
    /// Makes the current state durable, whatever was synced.
    void settle();
    /// Changes the bytes of a file on the medium: rot, or a block of another file. False when there
    /// is no such file.
    bool damage(const std::string& path,
                const std::function<void(std::vector<std::byte>&)>& change);
    /// A hash of every access, its time and its result: two runs of one seed agree.
    [[nodiscard]] std::uint64_t trace() const;

    /// The time at which a request of so many bytes that arrives now is finished.
    [[nodiscard]] base::Nanos schedule(base::Nanos now, std::uint64_t bytes);
    /// Does a request at once; the kernel's convention.
    /// `offset` kAtEnd: where the file ends.
    static constexpr std::uint64_t kAtEnd = UINT64_MAX;
    [[nodiscard]] std::int64_t access(engine::Op op, os::IoPath io, std::uint64_t inode,
                                      std::uint64_t offset, std::span<const iovec> pieces,
                                      base::Nanos now);

    // ---- used by FakeFile and FakeFileSystem; errors are errno values, 0 = success. Paths begin
    // with "/" and are not followed through symbolic links.
    struct Opened {
        int system_errno = 0;
        std::uint64_t inode = 0;
    };
    [[nodiscard]] Opened open(const std::string& path, const FileOptions& options);
    void close(std::uint64_t inode);
    [[nodiscard]] std::uint64_t size(std::uint64_t inode) const;
    [[nodiscard]] std::uint32_t openings(std::uint64_t inode) const;
    [[nodiscard]] int truncate(std::uint64_t inode, std::uint64_t bytes);
    [[nodiscard]] int preallocate(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes);
    /// The room is given back when the inode is closed for the last time.
    [[nodiscard]] int reserve(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes);
    /// Syncs data and size; with the folder of `path`, if that still names the file, the name too.
    [[nodiscard]] int sync(std::uint64_t inode, const std::string& path, bool with_name);
    [[nodiscard]] int sync_folder(const std::string& path);
    [[nodiscard]] int rename(const std::string& from, const std::string& to);
    [[nodiscard]] int exchange(const std::string& one, const std::string& other);
    [[nodiscard]] int link(const std::string& from, const std::string& to);
    [[nodiscard]] int symbolic_link(const std::string& target, const std::string& path);
    /// FakeNames::step_through_link().
    [[nodiscard]] std::optional<std::string> step_through_link(const std::string& path,
                                                               bool follow_last,
                                                               const std::string& mount) const;
    [[nodiscard]] int status(const std::string& path, FileStatus& status) const;
    void set_mode(std::uint64_t inode, std::uint32_t mode);
    [[nodiscard]] int set_modified(const std::string& path, std::int64_t since_1970_ns);
    [[nodiscard]] int remove(const std::string& path);
    [[nodiscard]] int make_folder(const std::string& path);
    [[nodiscard]] int status_of_open(std::uint64_t inode, FileStatus& status) const;
    [[nodiscard]] int list(const std::string& path, std::vector<std::string>& names) const;
    // Operations in an open folder, by its number; `path` is for people and plans.
    [[nodiscard]] Opened open_folder(const std::string& path);
    [[nodiscard]] Opened open_folder_in(std::uint64_t folder, const std::string& name,
                                        const std::string& path);
    [[nodiscard]] int list_in(std::uint64_t folder, std::vector<std::string>& names) const;
    [[nodiscard]] int status_in(std::uint64_t folder, const std::string& name,
                                FileStatus& status) const;
    [[nodiscard]] int rename_in(std::uint64_t folder, const std::string& from,
                                const std::string& to, const std::string& path);
    [[nodiscard]] int remove_in(std::uint64_t folder, const std::string& name, bool is_folder,
                                const std::string& path);
    [[nodiscard]] int sync_folder_in(std::uint64_t folder, const std::string& path);
    [[nodiscard]] Space space() const;
    /// `make`: makes the file when it is not there.
    [[nodiscard]] Opened lock(const std::string& path, bool make);
    [[nodiscard]] int lock_folder(std::uint64_t folder, const std::string& path);
    void unlock(std::uint64_t inode);
    [[nodiscard]] bool is_named(std::uint64_t inode, const std::string& path) const;

    /// A number from the disk's seed.
    [[nodiscard]] std::uint64_t draw();

    [[nodiscard]] const DiskShape& shape() const { return shape_; }
    [[nodiscard]] DeviceId device() const { return device_; }

private:
    using Inodes = std::map<std::uint64_t, std::shared_ptr<FakeInode>>;

    FakeDisk(const FakeDisk& other, std::uint64_t seed);
    void announce(DiskCall call, const std::string& path) const;
    int step(DiskCall call, const std::string& path);
    [[nodiscard]] FakeInode& edit(std::uint64_t inode);
    [[nodiscard]] bool is_file(std::uint64_t inode) const;
    [[nodiscard]] std::int64_t time() const;
    [[nodiscard]] Opened as_folder(std::uint64_t inode) const;
    [[nodiscard]] int status_of(std::uint64_t inode, FileStatus& status) const;
    [[nodiscard]] int names_of(std::uint64_t folder, std::vector<std::string>& names) const;
    [[nodiscard]] int sync_names(std::uint64_t folder);
    int make(const std::string& path, FileKind kind, const std::string& target,
             std::uint64_t& inode);
    int move(engine::Op op, std::uint64_t inode, std::uint64_t offset,
             std::span<const iovec> pieces, std::uint64_t bytes, const Fault& fault);
    [[nodiscard]] bool has_room(std::uint64_t inode, std::uint64_t bytes) const;
    [[nodiscard]] std::uint64_t held_by(std::uint64_t inode) const;
    int resize(std::uint64_t inode, std::uint64_t bytes);
    Survival draw_survival();
    void lose_cache(FakeInode& inode);
    [[nodiscard]] std::uint64_t used() const;
    void note(std::uint64_t value);

    const DeviceId device_;
    const DiskShape shape_;
    const DiskModel model_;
    mutable std::mutex mutex_;
    std::mt19937_64 random_;
    FaultPlan faults_;
    OperationPlan operation_faults_;
    Watch watch_;
    FakeNames names_;
    Inodes inodes_;                                  ///< of files
    std::map<std::uint64_t, std::uint32_t> opened_;  ///< how often an inode is open
    std::map<std::uint64_t, std::uint64_t> room_;    ///< the end of what an inode has
    std::set<std::uint64_t> nameless_;               ///< inodes whose last name was removed
    std::set<std::uint64_t> locks_;
    std::uint64_t accesses_ = 0;
    std::uint64_t operations_ = 0;
    std::uint64_t cut_off_at_ = UINT64_MAX;
    std::uint64_t trace_ = 1469598103934665603U;
    std::vector<base::Nanos> lane_free_;
    base::Nanos pipe_free_ = 0;
};

}  // namespace penstock::simulation
