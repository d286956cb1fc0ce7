// SPDX-License-Identifier: Apache-2.0
// Trees of /proc and /sys as containers, clusters and systemd make them, and a group of our own.
#include "os/machine/control_groups.hpp"

#include "os/machine/limits.hpp"
#include "os/thread.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace penstock::os {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// A machine of 64 GiB, 40 of them free, below a folder.
class Machine : public ::testing::Test {
protected:
    void SetUp() override {
        put("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 5 kB\nMemAvailable: 41943040 kB\n");
    }
    void put(const std::string& path, const std::string& text) {
        const std::string name = root() + path;
        std::filesystem::create_directories(name.substr(0, name.rfind('/')));
        std::ofstream(name) << text;
    }
    void version_2(const std::string& path, const std::string& mount, const std::string& shows) {
        put("/proc/self/cgroup", "0::" + path + "\n");
        put("/proc/self/mountinfo", "23 1 0:5 / /proc rw - proc proc rw\n31 23 0:28 " + shows +
                                        " " + mount +
                                        " rw,relatime shared:4 - cgroup2 cgroup2 rw\n");
    }
    void version_1(const std::string& path, const std::string& mount, const std::string& shows,
                   const std::string& controllers) {
        put("/proc/self/cgroup",
            "9:pids:/\n4:" + controllers + ":" + path + "\n1:name=systemd:/x\n0::/\n");
        put("/proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
            "35 31 0:32 " +
                shows + " " + mount + " rw - cgroup cgroup rw," + controllers + "\n");
    }
    [[nodiscard]] const std::string& root() const { return folder_.path(); }
    [[nodiscard]] std::uint64_t usable() const { return usable_memory(root()); }
    [[nodiscard]] std::uint64_t available() const { return available_memory(root()); }

private:
    support::TempFolder folder_;
};

TEST_F(Machine, WaitingForMemoryIsCountedByTheNearestGroupElseByTheMachine) {
    using std::chrono::microseconds;
    EXPECT_EQ(memory_stall(root()), std::nullopt);
    put("/proc/pressure/memory",
        "some avg10=1.50 avg60=0.05 avg300=0.00 total=23227125\nfull avg10=0.00 total=7\n");
    EXPECT_EQ(memory_stall(root()), microseconds(23'227'125));
    version_2("/a/b", "/sys/fs/cgroup", "/");
    EXPECT_EQ(memory_stall(root()), microseconds(23'227'125));
    put("/sys/fs/cgroup/a/memory.pressure", "some avg10=0.00 total=12\nfull avg10=0.00 total=0\n");
    EXPECT_EQ(memory_stall(root()), microseconds(12));
    put("/sys/fs/cgroup/a/b/memory.pressure", "some avg10=0.00 total=5\n");
    EXPECT_EQ(memory_stall(root()), microseconds(5));
    // A kernel that counts nothing, and texts that no kernel writes.
    for (const char* text :
         {"", "\n", "some", "some total=", "some total=-1", "full total=3", "12"}) {
        put("/sys/fs/cgroup/a/b/memory.pressure", text);
        EXPECT_EQ(memory_stall(root()), microseconds(12)) << text;
    }
    put("/sys/fs/cgroup/a/b/memory.pressure", "some total=18446744073709551615\n");
    EXPECT_GT(memory_stall(root()).value() * 10, microseconds(12));
}

TEST_F(Machine, WithoutGroupsTheMemoryIsTheMachines) {
    EXPECT_EQ(usable(), 64 * kGiB);
    EXPECT_EQ(available(), 40 * kGiB);
    EXPECT_EQ(usable_processors(root()), usable_cpus());
    EXPECT_THAT(control_groups("", root()), IsEmpty());
    EXPECT_THAT(control_groups("memory", root()), IsEmpty());
}

TEST_F(Machine, Version2TakesTheLeastLimitOfTheGroupAndThoseAboveIt) {
    version_2("/user.slice/job.scope/step", "/sys/fs/cgroup", "/");
    const std::string top = "/sys/fs/cgroup";
    put(top + "/user.slice/job.scope/step/memory.max", "max\n");
    EXPECT_EQ(usable(), 64 * kGiB);
    put(top + "/user.slice/job.scope/memory.max", "8589934592\n");
    EXPECT_EQ(usable(), 8 * kGiB);
    put(top + "/user.slice/memory.max", "4294967296\n");
    EXPECT_EQ(usable(), 4 * kGiB);
    put(top + "/user.slice/job.scope/step/memory.high", "1073741824\n");
    EXPECT_EQ(usable(), kGiB);
    put(top + "/user.slice/job.scope/step/memory.max", "9223372036854771712\n");
    EXPECT_EQ(usable(), kGiB);
    put(top + "/other.slice/memory.max", "4096\n");  // of another group
    EXPECT_EQ(usable(), kGiB);
    EXPECT_THAT(control_groups("", root()),
                ElementsAre(root() + top + "/user.slice/job.scope/step",
                            root() + top + "/user.slice/job.scope", root() + top + "/user.slice",
                            root() + top));
}

TEST_F(Machine, Version2InANamespaceHasItsLimitAtTheTop) {
    version_2("/", "/sys/fs/cgroup", "/");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    EXPECT_EQ(usable(), kGiB);
}

TEST_F(Machine, MountsElsewhereAreFound) {
    version_2("/job", "/mnt/with\\040blank/groups", "/");
    put("/mnt/with blank/groups/job/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/job/memory.max", "4096\n");  // nothing is mounted there
    EXPECT_EQ(usable(), kGiB);
}

TEST_F(Machine, AMountThatShowsAPartOfTheHierarchy) {
    // Docker without a namespace of groups: the mount shows the container's own.
    version_1("/docker/abc/inner", "/sys/fs/cgroup/memory", "/docker/abc", "memory");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n");
    EXPECT_EQ(usable(), kGiB);
    // The process is in a group that it cannot see: what it sees holds for it too.
    version_1("/elsewhere/x", "/sys/fs/cgroup/memory", "/docker/abc", "memory");
    EXPECT_EQ(usable(), 2 * kGiB);
    version_1("/../../x", "/sys/fs/cgroup/memory", "/", "memory");
    EXPECT_EQ(usable(), 2 * kGiB);
}

TEST_F(Machine, Version1TakesTheLeastLimitAndThatOfGroupsOutOfSight) {
    version_1("/slurm/job_7/step_0", "/sys/fs/cgroup/memory", "/", "memory");
    const std::string top = "/sys/fs/cgroup/memory";
    put(top + "/slurm/job_7/step_0/memory.limit_in_bytes", "9223372036854771712\n");
    EXPECT_EQ(usable(), 64 * kGiB);
    put(top + "/slurm/job_7/memory.limit_in_bytes", "8589934592\n");
    EXPECT_EQ(usable(), 8 * kGiB);
    put(top + "/slurm/job_7/step_0/memory.stat",
        "cache 5\nhierarchical_memory_limit 4294967296\ntotal_cache 5\n");
    EXPECT_EQ(usable(), 4 * kGiB);
}

TEST_F(Machine, BothVersionsAtOnce) {
    put("/proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/b\n0::/c\n");
    put("/proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8589934592");
    put("/sys/fs/cgroup/unified/c/memory.max", "4294967296");
    EXPECT_EQ(usable(), 4 * kGiB);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648");
    EXPECT_EQ(usable(), 2 * kGiB);
    put("/sys/fs/cgroup/cpu,cpuacct/b/cpu.cfs_quota_us", "-1");
    put("/sys/fs/cgroup/cpu,cpuacct/b/cpu.cfs_period_us", "100000");
    EXPECT_EQ(usable_processors(root()), usable_cpus());
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    EXPECT_EQ(usable_processors(root()), 1U);
}

TEST_F(Machine, WithoutMountinfoTheUsualPlacesAreTried) {
    put("/proc/self/cgroup", "4:memory:/a\n0::/b\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296");
    EXPECT_EQ(usable(), 4 * kGiB);
    put("/sys/fs/cgroup/b/memory.max", "2147483648");
    EXPECT_EQ(usable(), 2 * kGiB);
}

TEST_F(Machine, WhatIsAvailableIsWhatEachGroupHasLeft) {
    version_2("/job/step", "/sys/fs/cgroup", "/");
    const std::string top = "/sys/fs/cgroup/job";
    put(top + "/memory.max", "8589934592");
    put(top + "/memory.current", "6442450944");
    put(top + "/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 0\n");
    put(top + "/step/memory.max", "max");
    EXPECT_EQ(available(), 3 * kGiB);
    put(top + "/step/memory.max", "4294967296");
    put(top + "/step/memory.current", "2147483648");
    EXPECT_EQ(available(), 2 * kGiB);
    put("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\n");
    EXPECT_EQ(available(), kGiB);
}

TEST_F(Machine, ProcessorsAreThoseOfTheQuotaRoundedUp) {
    version_2("/job", "/sys/fs/cgroup", "/");
    const unsigned all = usable_cpus();
    for (const auto& [text, wanted] :
         std::initializer_list<std::pair<const char*, unsigned>>{{"max 100000", all},
                                                                 {"100000 100000", 1},
                                                                 {"1000 100000", 1},
                                                                 {"100001 100000", 2},
                                                                 {"10000000000 100000", all},
                                                                 {"garbage", all},
                                                                 {"100000 0", all},
                                                                 {"", all}}) {
        put("/sys/fs/cgroup/job/cpu.max", text);
        EXPECT_EQ(usable_processors(root()), std::min(wanted, all)) << text;
    }
}

TEST_F(Machine, GarbageLimitsNothing) {
    put("/proc/self/cgroup", "garbage\n::\n0:\n5:memory\n\n0::/a\n");
    put("/proc/self/mountinfo", "garbage\n - \n1 2 3 - cgroup2\n");
    put("/sys/fs/cgroup/a/memory.max", "-1");
    EXPECT_EQ(usable(), 64 * kGiB);
    put("/proc/meminfo", "garbage");
    EXPECT_GT(usable(), 16U << 20);
    EXPECT_EQ(available(), usable());
}

TEST(ControlGroups, WhatIsLeftToAControlGroupCountsItsPageCacheAsFree) {
    const std::string statistics = "anon 700\ninactive_file 200\nactive_file 50\n";
    EXPECT_EQ(memory_left("max", "900", statistics), kUnlimited);
    EXPECT_EQ(memory_left("", "", ""), kUnlimited);
    EXPECT_EQ(memory_left("1000", "900", statistics), 350U);
    EXPECT_EQ(memory_left("1000", "900", ""), 100U);
    EXPECT_EQ(memory_left("1000", "900", statistics + "total_inactive_file 300\n"), 400U);
    EXPECT_EQ(memory_left("600", "900", statistics), 0U);
    EXPECT_EQ(memory_left("1000", "100", statistics), 1000U);
}

TEST(ControlGroups, AvailableMemoryIsSomeOfTheMachines) {
    const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    EXPECT_GT(available_memory(), std::uint64_t{16} << 20);
    EXPECT_LT(available_memory(), pages * page_bytes);
}

// A group of our own, with a limit, in which a child looks; the folder goes with the object.
class OwnGroup {
public:
    /// Makes groups if possible; otherwise why_not() says what is missing.
    OwnGroup() {
        for (const char* controller : {"", "memory"}) {
            const auto folders = control_groups(controller);
            if (folders.empty()) {
                continue;
            }
            const std::string file = *controller == '\0' ? "memory.max" : "memory.limit_in_bytes";
            const std::string made =
                folders.front() + "/penstock-test-" + std::to_string(::getpid());
            if (::mkdir(made.c_str(), 0755) != 0) {
                continue;
            }
            std::ofstream limit(made + "/" + file);
            limit << kGiB << std::flush;
            if (limit.good()) {
                folder_ = made;
                return;
            }
            ::rmdir(made.c_str());
        }
    }
    OwnGroup(const OwnGroup&) = delete;
    OwnGroup& operator=(const OwnGroup&) = delete;
    ~OwnGroup() {
        for (int i = 0; !folder_.empty() && ::rmdir(folder_.c_str()) != 0 && i < 100; ++i) {
            ::usleep(10'000);  // the child is on its way out of it
        }
    }
    [[nodiscard]] const std::string& folder() const { return folder_; }

private:
    std::string folder_;
};

TEST(ControlGroups, AGroupOfThisMachineLimitsWhoIsInIt) {
    const OwnGroup group;
    if (group.folder().empty()) {
        GTEST_SKIP() << "needs root and a memory controller in which groups can be made";
    }
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        std::ofstream(group.folder() + "/cgroup.procs") << ::getpid() << std::flush;
        const bool right = usable_memory() == kGiB && available_memory() <= kGiB;
        ::_exit(right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock::os
