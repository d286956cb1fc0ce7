// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/command.hpp"
#include "cli/program.hpp"
#include "os/machine/limits.hpp"
#include "support/temp_folder.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

namespace penstock::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

nlohmann::json findings_of(const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out).at("findings");
}

nlohmann::json finding(const nlohmann::json& findings, const std::string& topic) {
    const auto found = std::find_if(findings.begin(), findings.end(),
                                    [&](const auto& f) { return f.at("topic") == topic; });
    return found == findings.end() ? nlohmann::json{} : *found;
}

TEST(DoctorTest, EveryFindingHasItsEvidence) {
    const support::TempFolder folder;
    const Outcome outcome = run_cli({"doctor", folder.path(), "--json", "-"});
    EXPECT_EQ(outcome.status, 0) << outcome.out;
    const auto findings = findings_of(outcome);
    for (const char* topic :
         {"kernel", "gpu", "io_uring", "backend", "cachestat", "locked memory", "huge pages",
          "direct I/O", "page cache", "disk", "I/O limit", "free space", "round trip"}) {
        EXPECT_FALSE(finding(findings, topic).is_null()) << topic;
    }
    for (const auto& one : findings) {
        EXPECT_FALSE(one.at("what").get<std::string>().empty()) << one;
        EXPECT_FALSE(one.at("evidence").get<std::string>().empty()) << one;
    }
    EXPECT_THAT(outcome.err, HasSubstr("0 problems"));
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(DoctorTest, GpusAreNamedWithTheirDriver) {
    const auto on_fake = [](const char* version) {
        return [version] {
            ::setenv("FAKE_GPU_DEVICES", "2", 1);
            ::setenv("FAKE_GPU_DRIVER_VERSION", version, 1);
            ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL);  // found by its name from now on
        };
    };
    const support::TempFolder folder;
    auto findings =
        findings_of(run_cli({"doctor", folder.path(), "--json", "-"}, on_fake("13000")));
    EXPECT_THAT(finding(findings, "gpu").at("what"), HasSubstr("2 by a driver of CUDA 13.0"));
    EXPECT_THAT(finding(findings, "gpu").at("evidence"), HasSubstr("libcuda.so.1"));
    EXPECT_EQ(finding(findings, "gpu").at("verdict"), "ok");
    for (const char* topic : {"gpu 0", "gpu 1"}) {
        EXPECT_THAT(finding(findings, topic).at("evidence"), HasSubstr("PCI ")) << topic;
    }
    EXPECT_THAT(finding(findings, "gpu 0 way").at("what"), HasSubstr("through pinned memory"));
    EXPECT_THAT(finding(findings, "gpu 1 way").at("what"), HasSubstr("and GPU 1"));
    const Outcome absent =
        run_cli({"doctor", folder.path(), "--options", folder.path() + "/tuned.json"});
    EXPECT_NE(absent.status, 0);
    EXPECT_THAT(absent.err, HasSubstr("tuned.json"));
    findings = findings_of(run_cli({"doctor", folder.path(), "--json", "-"}, on_fake("12020")));
    EXPECT_EQ(finding(findings, "gpu").at("verdict"), "could be better");
    EXPECT_THAT(finding(findings, "gpu").at("what"), HasSubstr("cuMemcpyBatchAsync"));
    findings = findings_of(run_cli({"doctor", folder.path(), "--json", "-"}, on_fake("11040")));
    EXPECT_THAT(finding(findings, "gpu").at("what"), HasSubstr("CUDA 11.4"));
    EXPECT_TRUE(finding(findings, "gpu 0").is_null());
}

TEST(DoctorTest, WhatIsBrokenIsAProblemAndTheExitCode) {
    const support::TempFolder folder;
    const Outcome outcome = run_cli({"doctor", folder.path() + "/absent"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.out, HasSubstr("PROBLEM"));
    EXPECT_THAT(outcome.out, HasSubstr("No such file or directory"));
    EXPECT_THAT(outcome.out, HasSubstr("1 problem."));
    EXPECT_THAT(outcome.out, HasSubstr("kernel"));  // the rest is still told
}

TEST(DoctorTest, AFileIsAskedAndNotWritten) {
    const support::TempFolder folder;
    const std::string path = folder.path() + "/precious.bin";
    std::ofstream(path) << "precious";
    const Outcome outcome = run_cli({"doctor", path, "--json", "-"});
    EXPECT_EQ(outcome.status, 0) << outcome.out;
    EXPECT_TRUE(finding(findings_of(outcome), "round trip").is_null());
    std::string kept;
    std::ifstream(path) >> kept;
    EXPECT_EQ(kept, "precious");
}

TEST(DoctorTest, MemoryIsNoDisk) {
    constexpr long kTmpfs = 0x01021994;
    struct statfs status {};
    if (::statfs("/dev/shm", &status) != 0 || status.f_type != kTmpfs) {
        GTEST_SKIP() << "/dev/shm is no tmpfs here";
    }
    const auto findings = findings_of(run_cli({"doctor", "/dev/shm", "--json", "-"}));
    EXPECT_EQ(finding(findings, "direct I/O").at("verdict"), "could be better");
    EXPECT_THAT(finding(findings, "direct I/O").at("what").get<std::string>(), HasSubstr("tmpfs"));
    EXPECT_THAT(finding(findings, "page cache").at("what").get<std::string>(),
                HasSubstr("tmpfs has no device"));
}

// From here on the limit on locked memory binds this process, also when it is root's.
void give_up_locking() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> sets{};
    ASSERT_EQ(::syscall(SYS_capget, &header, sets.data()), 0);
    sets[0].effective &= ~(1U << CAP_IPC_LOCK);
    ASSERT_EQ(::syscall(SYS_capset, &header, sets.data()), 0);
}

TEST(DoctorTest, ALowLimitIsFoundWithTheCommandThatMendsIt) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
    rlimit low = before;
    low.rlim_cur = 64 << 10;
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
    const Outcome outcome = run_cli({"doctor", "/", "--json", "-"}, give_up_locking);
    const bool above_limits = os::may_lock(1 << 20);
    const Outcome may = run_cli({"doctor", "/", "--json", "-"});
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
    if (above_limits) {  // root's limit binds nobody, and is no fault
        const auto found = finding(findings_of(may), "locked memory");
        EXPECT_EQ(found.at("verdict"), "ok");
        EXPECT_THAT(found.at("evidence").get<std::string>(), HasSubstr("CAP_IPC_LOCK"));
    }
    const auto memlock = finding(findings_of(outcome), "locked memory");
    EXPECT_EQ(memlock.at("verdict"), "could be better");
    EXPECT_THAT(memlock.at("evidence").get<std::string>(), HasSubstr("64 KiB"));
    EXPECT_THAT(memlock.at("cure").get<std::string>(), HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace penstock::cli
