// SPDX-License-Identifier: Apache-2.0
#include "os/machine/limits.hpp"

#include "os/machine/sysfs.hpp"
#include "os/thread.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace penstock::os {
namespace {

TEST(Limits, FollowTheProcess) {
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &old), 0);
    rlimit changed = old;
    changed.rlim_cur = 65536;
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &changed), 0);
    EXPECT_EQ(memlock_limit(), 65536U);
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &old), 0);
    EXPECT_EQ(memlock_limit(), old.rlim_cur == RLIM_INFINITY ? kUnlimited : old.rlim_cur);
    EXPECT_GT(open_files_limit(), 0U);
    EXPECT_GE(seccomp_mode(), 0);
}

TEST(Limits, ReleasesCompareAsNumbers) {
    EXPECT_TRUE(release_at_least("6.1.0-18-amd64", 6, 1));
    EXPECT_TRUE(release_at_least("6.18.5", 6, 2));
    EXPECT_TRUE(release_at_least("10.0", 6, 18));
    EXPECT_FALSE(release_at_least("5.15.0", 6, 1));
    EXPECT_FALSE(release_at_least("4.4.0", 5, 1));
    EXPECT_FALSE(release_at_least("nonsense", 0, 0));
    EXPECT_TRUE(release_at_least(kernel_release(), 3, 0));
}

TEST(Limits, ChosenWord) {
    EXPECT_EQ(chosen_word("always [madvise] never"), "madvise");
    EXPECT_EQ(chosen_word("[none] mq-deadline"), "none");
    EXPECT_EQ(chosen_word("none"), "none");
    EXPECT_EQ(chosen_word("broken [x"), "broken [x");
    EXPECT_FALSE(huge_page_mode().empty());
}

TEST(Limits, IoMaxOfVersion2) {
    const auto limits = parse_io_max(
        "8:16 rbps=2097152 wbps=max riops=max wiops=120\n259:0 rbps=max wbps=7 riops=9 wiops=max\n",
        "io.max");
    ASSERT_EQ(limits.size(), 2U);
    EXPECT_EQ(limits[0].device, (DeviceId{8, 16}));
    EXPECT_EQ(limits[0].read_bytes_per_s, 2097152U);
    EXPECT_EQ(limits[0].write_bytes_per_s, 0U);
    EXPECT_EQ(limits[0].writes_per_s, 120U);
    EXPECT_EQ(limits[1].write_bytes_per_s, 7U);
    EXPECT_EQ(limits[1].reads_per_s, 9U);
    EXPECT_TRUE(parse_io_max("", "").empty());
    EXPECT_TRUE(parse_io_max("garbage\n", "").empty());
    (void)io_limits();  // whatever this machine has must be readable
}

TEST(Sysfs, TextAndNumbers) {
    const support::TempFolder folder;
    std::ofstream(folder / "n") << " \n";
    EXPECT_EQ(read_text(folder / "n"), "");
    EXPECT_FALSE(read_number(folder / "n"));
    std::ofstream(folder / "n") << "-12 rest\n";
    EXPECT_EQ(read_text(folder / "n"), "-12 rest");
    EXPECT_EQ(read_number(folder / "n"), -12);
    EXPECT_FALSE(read_text(folder / "none"));
    EXPECT_FALSE(read_text(folder.path()));
    const DeviceId nothing{4000, 4000};
    EXPECT_EQ(whole_disk(nothing), nothing);
}

TEST(Thread, CpusFollowTheAffinity) {
    std::thread([] {
        cpu_set_t old;
        ASSERT_EQ(::sched_getaffinity(0, sizeof old, &old), 0);
        EXPECT_EQ(usable_cpus(), static_cast<unsigned>(CPU_COUNT(&old)));
        int first = 0;
        while (!CPU_ISSET(first, &old)) {
            ++first;
        }
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
        EXPECT_EQ(usable_cpus(), 1U);
    }).join();
}

}  // namespace
}  // namespace penstock::os
