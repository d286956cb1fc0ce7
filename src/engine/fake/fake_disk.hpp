// SPDX-License-Identifier: Apache-2.0
// A disk in memory, with a file system on it that forgets: names and data are volatile until they
// are synced, and a crash keeps of the rest what a seed says. It can be slow by a model, refuse by
// a plan, be cut off at any operation, and be hollow (sizes without bytes) where only time and
// counts matter.
#pragma once

#include "base/clock.hpp"
#include "engine/request.hpp"
#include "os/file.hpp"
#include "os/file_system.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::engine {

/// How long a request takes: `request_ns` in one of `lanes` lanes, then its bytes over one pipe.
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
    bool hollow = false;  ///< keeps no bytes and touches no memory
};

/// One access that a fault plan is asked about.
struct DiskAccess {
    std::uint64_t index = 0;  ///< of all accesses to this disk
    Op op = Op::kRead;
    os::Lane lane = os::Lane::kDirect;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

struct Fault {
    int system_errno = 0;  ///< fails with this
    /// Moves so many at most, cut to the alignment but no fewer than that; 0 moves nothing.
    std::uint64_t bytes_max = UINT64_MAX;
};

class FakeDisk {
public:
    using FaultPlan = std::function<Fault(const DiskAccess&)>;

    FakeDisk(os::DeviceId device, const DiskShape& shape, const DiskModel& model,
             std::uint64_t seed);

    void set_faults(FaultPlan plan);
    /// Operations (accesses and names) so far; from number `at` on every one fails with EIO.
    [[nodiscard]] std::uint64_t operations() const;
    void cut_off_at(std::uint64_t at);
    /// The power goes and comes back: what was synced is there, of the rest what the seed says.
    void crash();
    /// A number made of every access, its time and its result: two runs of one seed agree.
    [[nodiscard]] std::uint64_t trace() const;

    /// When a request of so many bytes that comes now is through.
    [[nodiscard]] base::Nanos schedule(base::Nanos now, std::uint64_t bytes);
    /// Does a request at once; the kernel's convention.
    [[nodiscard]] std::int64_t access(Op op, os::Lane lane, std::uint64_t inode,
                                      std::uint64_t offset, std::span<const iovec> pieces,
                                      base::Nanos now);

    // ---- what FakeFile and FakeFileSystem are made of; errors are errno values, 0 = fine
    struct Opened {
        int system_errno = 0;
        std::uint64_t inode = 0;
    };
    [[nodiscard]] Opened open(const std::string& path, const os::OpenOptions& options);
    [[nodiscard]] std::uint64_t size(std::uint64_t inode) const;
    [[nodiscard]] int truncate(std::uint64_t inode, std::uint64_t bytes);
    [[nodiscard]] int preallocate(std::uint64_t inode, std::uint64_t offset, std::uint64_t bytes);
    [[nodiscard]] int sync(std::uint64_t inode, const std::string& path);
    [[nodiscard]] int sync_folder(const std::string& path);
    [[nodiscard]] int rename(const std::string& from, const std::string& to);
    [[nodiscard]] int link(const std::string& from, const std::string& to);
    [[nodiscard]] int remove(const std::string& path);
    [[nodiscard]] int make_folder(const std::string& path);
    [[nodiscard]] int list(const std::string& path, std::vector<std::string>& names) const;
    [[nodiscard]] os::Space space() const;
    [[nodiscard]] int lock(const std::string& path);
    void unlock(const std::string& path);

    [[nodiscard]] const DiskShape& shape() const { return shape_; }
    [[nodiscard]] os::DeviceId device() const { return device_; }

private:
    static constexpr std::uint64_t kSectorBytes = 512;
    static constexpr std::uint64_t kFolder = 0;  ///< the inode of every folder

    struct Inode {
        std::uint64_t bytes = 0;
        std::uint64_t durable_bytes = 0;
        std::vector<std::byte> data;
        std::vector<std::byte> durable;
        std::set<std::uint64_t> dirty;  ///< sectors written since the last sync
    };
    using Names = std::map<std::string, std::uint64_t>;

    bool step();
    int move(Op op, Inode& inode, std::uint64_t offset, std::span<const iovec> pieces,
             std::uint64_t bytes);
    int resize(Inode& inode, std::uint64_t bytes);
    [[nodiscard]] std::uint64_t used() const;
    void note(std::uint64_t value);
    static std::string folder_of(const std::string& path);

    const os::DeviceId device_;
    const DiskShape shape_;
    const DiskModel model_;
    mutable std::mutex mutex_;
    std::mt19937_64 random_;
    FaultPlan faults_;
    Names names_;
    Names durable_names_;
    std::map<std::uint64_t, Inode> inodes_;
    std::set<std::string> locks_;
    std::uint64_t next_inode_ = 1;
    std::uint64_t accesses_ = 0;
    std::uint64_t operations_ = 0;
    std::uint64_t cut_off_at_ = UINT64_MAX;
    std::uint64_t trace_ = 1469598103934665603U;
    std::vector<base::Nanos> lane_free_;
    base::Nanos pipe_free_ = 0;
};

}  // namespace penstock::engine
