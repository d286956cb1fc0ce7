// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/command.hpp"
#include "cli/bench/gpu_peers.hpp"
#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace penstock::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class BenchTest : public testing::Test {
protected:
    // A run that is over in a moment.
    [[nodiscard]] std::vector<std::string> quick(const std::string& path,
                                                 std::vector<std::string> more = {}) const {
        std::vector<std::string> args{"bench",  path,   "--seconds", "0.1",
                                      "--size", "8MiB", "--repeats", "2"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    }
    [[nodiscard]] std::string make_file(std::size_t bytes) const {
        const std::string path = folder() + "/precious.bin";
        std::ofstream(path) << std::string(bytes, 'p');
        return path;
    }
    [[nodiscard]] std::string folder() const { return folder_.path(); }

private:
    support::TempFolder folder_;
};

std::string contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// Buckets rise, and every percentile is the end of one of them.
void expect_histogram(const nlohmann::json& latency) {
    std::int64_t upper_ns = 0;
    bool has_p99 = false;
    for (const auto& bucket : latency.at("histogram")) {
        EXPECT_GT(bucket.at(0).get<std::int64_t>(), upper_ns);
        EXPECT_GT(bucket.at(1).get<std::uint64_t>(), 0U);
        upper_ns = bucket.at(0).get<std::int64_t>();
        has_p99 = has_p99 || upper_ns == latency.at("p99").get<std::int64_t>();
    }
    EXPECT_TRUE(has_p99);
}

bool have_fio() {
    return std::system("fio --version >/dev/null 2>&1") == 0;
}

TEST_F(BenchTest, AFolderGivesAllFourKindsAndIsLeftEmpty) {
    const Outcome outcome = run_cli(quick(folder()));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    for (const char* word : {"read ", "write ", "randread ", "randwrite ", "GB/s", "GiB/s", "IOPS",
                             "p99.9", "CPU", "removed at the end"}) {
        EXPECT_THAT(outcome.out, HasSubstr(word));
    }
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(BenchTest, JsonHasEverySampleAndWhereItWasMeasured) {
    const std::string file = folder() + "/out.json";
    const Outcome outcome =
        run_cli(quick(folder(), {"--rw", "randread,write", "--block-size", "4KiB,64KiB", "--depth",
                                 "1,8", "--json", file}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto json = nlohmann::json::parse(contents(file));
    EXPECT_EQ(json.at("command").at(1), "bench");
    EXPECT_EQ(json.at("jobs").size(), 8U);
    for (const auto& job : json.at("jobs")) {
        ASSERT_EQ(job.at("samples").size(), 2U);
        for (const auto& sample : job.at("samples")) {
            EXPECT_GT(sample.at("bytes").get<std::uint64_t>(), 0U);
            EXPECT_EQ(sample.at("bytes").get<std::uint64_t>() %
                          job.at("block_bytes").get<std::uint64_t>(),
                      0U);
            EXPECT_GE(sample.at("seconds").get<double>(), 0.09);
            EXPECT_GT(sample.at("latency_ns").at("p50").get<std::int64_t>(), 0);
            EXPECT_LE(sample.at("latency_ns").at("p50").get<std::int64_t>(),
                      sample.at("latency_ns").at("p99").get<std::int64_t>());
            expect_histogram(sample.at("latency_ns"));
        }
    }
    EXPECT_FALSE(json.at("environment").at("kernel").get<std::string>().empty());
    EXPECT_FALSE(json.at("target").at("file_system").get<std::string>().empty());
    EXPECT_FALSE(json.at("engine").at("backend").get<std::string>().empty());
}

TEST_F(BenchTest, JsonOnStdoutIsNothingButJson) {
    const Outcome outcome = run_cli(quick(folder(), {"--rw", "read", "--json", "-"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(nlohmann::json::accept(outcome.out)) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("GiB/s"));
}

TEST_F(BenchTest, SequentialBlocksThatTheEngineDoesNotCutAreTheRowsOwn) {
    const Outcome outcome = run_cli(quick(folder(), {"--rw", "read,write", "--block-size",
                                                     "4KiB,96KiB", "--depth", "4", "--json", "-"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto report = nlohmann::json::parse(outcome.out);
    for (const auto& job : report.at("jobs")) {
        const auto& sample = job.at("samples").at(0);
        EXPECT_EQ(sample.at("operations").get<std::uint64_t>() *
                      job.at("block_bytes").get<std::uint64_t>(),
                  sample.at("bytes").get<std::uint64_t>());
    }
}

TEST_F(BenchTest, EveryBackendCanBeAskedFor) {
    for (const char* backend : {"aio", "posix"}) {
        const Outcome outcome =
            run_cli(quick(folder(), {"--rw", "randread", "--depth", "4", "--backend", backend}));
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr(backend));
    }
}

TEST_F(BenchTest, AFileIsOnlyRead) {
    const std::string path = make_file(1 << 20);
    struct stat before {};
    ASSERT_EQ(::stat(path.c_str(), &before), 0);
    const Outcome outcome = run_cli({"bench", path, "--seconds", "0.1", "--repeats", "1"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("only read"));
    EXPECT_THAT(outcome.out, Not(HasSubstr("write ")));
    struct stat after {};
    ASSERT_EQ(::stat(path.c_str(), &after), 0);
    EXPECT_EQ(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    EXPECT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    EXPECT_EQ(contents(path), std::string(1 << 20, 'p'));
    EXPECT_THAT(names_in(folder()), testing::ElementsAre("precious.bin"));
}

TEST_F(BenchTest, WritingAFileThatItDidNotMakeIsRefused) {
    const std::string path = make_file(1 << 20);
    for (const char* kind : {"write", "randwrite", "read,randwrite"}) {
        const Outcome outcome = run_cli({"bench", path, "--rw", kind, "--seconds", "0.1"});
        EXPECT_EQ(outcome.status, 2);
        EXPECT_THAT(outcome.err, HasSubstr(path));
        EXPECT_THAT(outcome.err, HasSubstr("did not make"));
    }
    EXPECT_EQ(contents(path), std::string(1 << 20, 'p'));
}

TEST_F(BenchTest, AScratchNameThatIsTakenIsNotTouched) {
    const auto take = [&] {
        std::ofstream(folder() + "/penstock-bench-" + std::to_string(::getpid()) + ".tmp") << "p";
    };
    const Outcome outcome = run_cli(quick(folder(), {"--rw", "read"}), take);
    EXPECT_EQ(outcome.status, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("penstock-bench-"));
    EXPECT_THAT(outcome.err, HasSubstr("exists"));
    const auto names = names_in(folder());
    ASSERT_EQ(names.size(), 1U);
    EXPECT_EQ(contents(folder() + "/" + names[0]), "p");
}

TEST_F(BenchTest, BadPathsAreToldWithTheReason) {
    const Outcome absent = run_cli(quick(folder() + "/absent"));
    EXPECT_EQ(absent.status, 1);
    EXPECT_THAT(absent.err, HasSubstr(folder() + "/absent"));
    EXPECT_THAT(absent.err, HasSubstr("No such file or directory"));

    const Outcome device = run_cli(quick("/dev/null"));
    EXPECT_EQ(device.status, 2);
    EXPECT_THAT(device.err, HasSubstr("no folder, file or block device"));

    const Outcome empty = run_cli({"bench", make_file(0), "--seconds", "0.1"});
    EXPECT_EQ(empty.status, 2);
    EXPECT_THAT(empty.err, HasSubstr("0 bytes"));

    const Outcome json = run_cli(quick(folder(), {"--json", folder() + "/absent/out.json"}));
    EXPECT_EQ(json.status, 1);
    EXPECT_THAT(json.err, HasSubstr("--json"));
}

TEST_F(BenchTest, AFullDiskIsToldBeforeAnythingIsWritten) {
    const Outcome outcome = run_cli({"bench", folder(), "--size", "8000TiB"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("8000 TiB"));
    EXPECT_THAT(outcome.err, HasSubstr("are free"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

class BenchSignalTest : public BenchTest, public testing::WithParamInterface<int> {};

TEST_P(BenchSignalTest, TheScratchFileGoesAndTheCodeSaysWhy) {
    Program program({"bench", folder(), "--size", "8MiB", "--seconds", "60", "--rw", "randread"});
    for (int i = 0; i < 1000 && names_in(folder()).empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(names_in(folder()).size(), 1U);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    program.signal(GetParam());
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 128 + GetParam()) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("ended by"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(Signals, BenchSignalTest, testing::Values(SIGINT, SIGTERM, SIGHUP));

// The output cannot be written, there may be no file of this size, stdout is closed: whatever the
// shell did, nothing is left, and what was asked for is whole.
TEST_F(BenchTest, WhateverTheShellGivesNothingIsLeft) {
    const std::vector<std::string> args{"bench",    folder(),    "--size", "8MiB",      "--rw",
                                        "randread", "--seconds", "0.1",    "--repeats", "1"};
    const Outcome full = run_cli(args, [] {
        ::dup2(::open("/dev/full", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
        std::setvbuf(stdout, nullptr, _IONBF, 0);
    });
    EXPECT_EQ(full.status, 1);
    EXPECT_THAT(full.err, HasSubstr("could not be written"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
    const Outcome limited = run_cli(args, [] {
        const rlimit limit{1 << 20, 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    });
    EXPECT_EQ(limited.status, 1);
    EXPECT_THAT(limited.err, HasSubstr("File too large"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
    const support::TempFolder elsewhere;
    const std::string json = elsewhere / "bench.json";
    std::vector<std::string> with_json = args;
    with_json.insert(with_json.end(), {"--json", json});
    EXPECT_EQ(run_cli(with_json, [] { ::close(STDOUT_FILENO); }).status, 0);
    std::ifstream in(json);
    EXPECT_TRUE(nlohmann::json::parse(in).contains("jobs"));
}

TEST_F(BenchTest, BesideFioItPrintsTheRatioOfEachPair) {
    if (!have_fio()) {
        GTEST_SKIP() << "fio is not installed";
    }
    const Outcome outcome =
        run_cli({"bench", folder(), "--size", "8MiB", "--seconds", "0.3", "--repeats", "3", "--rw",
                 "randread,write", "--against", "fio", "--json", "-"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("Penstock / fio ("));
    EXPECT_THAT(outcome.err, HasSubstr("95 % interval"));
    const auto report = nlohmann::json::parse(outcome.out);
    for (const auto& job : report.at("jobs")) {
        const auto& samples = job.at("samples");
        ASSERT_EQ(samples.size(), 6U);
        EXPECT_EQ(std::count_if(samples.begin(), samples.end(),
                                [](const auto& sample) { return sample.at("side") == "fio"; }),
                  3);
        EXPECT_GT(job.at("ratio").at("mean").get<double>(), 0.0);
        for (const auto& sample : samples) {
            EXPECT_FALSE(sample.at("latency_ns").at("histogram").empty());
        }
    }
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(BenchTest, ARunThatFailsLeavesTheJsonOfTheOneBefore) {
    const std::string json = folder() + "/bench.json";
    const std::string before = R"({"command": ["penstock", "bench"]})";
    std::ofstream(json) << before;
    EXPECT_NE(run_cli({"bench", folder() + "/absent", "--json", json}).status, 0);
    EXPECT_EQ(contents(json), before);
    EXPECT_EQ(run_cli(quick(make_file(8 << 20), {"--rw", "read", "--json", json})).status, 0);
    EXPECT_TRUE(nlohmann::json::parse(contents(json)).contains("jobs"));
}

// fio takes what is behind these for a comment, and would work on another file.
TEST_F(BenchTest, APathThatFioCannotBeGivenIsToldAsSuch) {
    if (!have_fio()) {
        GTEST_SKIP() << "fio is not installed";
    }
    const std::string odd = folder() + "/n=1;x";
    std::filesystem::create_directory(odd);
    const Outcome outcome = run_cli({"bench", odd, "--size", "8MiB", "--seconds", "0.1",
                                     "--repeats", "1", "--rw", "read", "--against", "fio"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("takes what follows for a comment"));
    EXPECT_THAT(names_in(odd), IsEmpty());
}

class BenchSeveralTest : public BenchTest {
protected:
    BenchSeveralTest() {
        for (const char* name : {"/a", "/b", "/c"}) {
            paths_.push_back(folder() + name);
            std::filesystem::create_directory(paths_.back());
        }
    }
    [[nodiscard]] std::vector<std::string> several(std::vector<std::string> more) const {
        std::vector<std::string> args{"bench"};
        args.insert(args.end(), paths_.begin(), paths_.end());
        args.insert(args.end(),
                    {"--seconds", "0.1", "--size", "8MiB", "--repeats", "2", "--json", "-"});
        args.insert(args.end(), more.begin(), more.end());
        return args;
    }
    void expect_nothing_left() const {
        for (const std::string& path : paths_) {
            EXPECT_THAT(names_in(path), IsEmpty());
        }
    }

    std::vector<std::string> paths_;
};

TEST_F(BenchSeveralTest, EachAloneThenAllAtOnceAndTheirRatio) {
    const Outcome outcome = run_cli(several({"--rw", "read,randwrite", "--depth", "4"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* word : {"[1]", "[2]", "[3]", "all", "all / the sum of each alone"}) {
        EXPECT_THAT(outcome.err, HasSubstr(word));
    }
    const auto report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report.at("targets").size(), 3U);
    EXPECT_FALSE(report.contains("target"));
    ASSERT_EQ(report.at("jobs").size(), 8U);
    for (std::size_t i = 0; i < 8; ++i) {
        const auto& job = report.at("jobs").at(i);
        const bool all = i % 4 == 3;
        EXPECT_EQ(job.at("paths").size(), all ? 3U : 1U);
        EXPECT_EQ(job.at("samples").size(), 2U);
        EXPECT_EQ(job.contains("ratio_to_sum_of_each"), all);
        if (all) {
            EXPECT_GT(job.at("ratio_to_sum_of_each").at("mean").get<double>(), 0);
        } else {
            EXPECT_THAT(job.at("paths").at(0).get<std::string>(), HasSubstr(paths_[i % 4]));
        }
    }
    expect_nothing_left();
}

TEST_F(BenchSeveralTest, BlocksThatTheEngineDoesNotCutAndDepthOne) {
    const Outcome outcome =
        run_cli(several({"--rw", "read,randread", "--block-size", "4KiB,96KiB", "--depth", "1,3"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto report = nlohmann::json::parse(outcome.out);
    for (const auto& job : report.at("jobs")) {
        for (const auto& sample : job.at("samples")) {
            EXPECT_EQ(sample.at("operations").get<std::uint64_t>() *
                          job.at("block_bytes").get<std::uint64_t>(),
                      sample.at("bytes").get<std::uint64_t>());
        }
    }
}

TEST_F(BenchSeveralTest, BesideFioTheFilesAreJobsOfOneRunTimed) {
    if (!have_fio()) {
        GTEST_SKIP() << "fio is not installed";
    }
    const Outcome outcome = run_cli(several({"--rw", "read", "--against", "fio"}));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto report = nlohmann::json::parse(outcome.out);
    ASSERT_EQ(report.at("jobs").size(), 4U);
    for (const auto& job : report.at("jobs")) {
        ASSERT_EQ(job.at("samples").size(), 4U);
        for (const auto& sample : job.at("samples")) {
            EXPECT_GT(sample.at("bytes").get<std::uint64_t>(), 0U);
            EXPECT_LT(sample.at("seconds").get<double>(), 2);
        }
    }
    expect_nothing_left();
}

TEST_F(BenchSeveralTest, AFileAmongFoldersMeansReadsOnly) {
    const std::string file = make_file(1 << 20);
    const std::vector<std::string> args{"bench", paths_[0], file, "--seconds", "0.1", "--size",
                                        "1MiB",  "--json",  "-",  "--repeats", "1"};
    const Outcome outcome = run_cli(args);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto report = nlohmann::json::parse(outcome.out);
    for (const auto& job : report.at("jobs")) {
        EXPECT_THAT(job.at("rw").get<std::string>(), HasSubstr("read"));
    }
    EXPECT_EQ(contents(file), std::string(1 << 20, 'p'));
}

TEST_F(BenchSeveralTest, APathThatComesTwiceOrIsWrongLeavesNothing) {
    const Outcome twice = run_cli({"bench", paths_[0], paths_[1], paths_[0]});
    EXPECT_EQ(twice.status, 2);
    EXPECT_THAT(twice.err, HasSubstr("came twice"));
    paths_.insert(paths_.begin() + 1, folder() + "/absent");
    const Outcome absent = run_cli(several({}));
    EXPECT_EQ(absent.status, 1);
    EXPECT_THAT(absent.err, HasSubstr("/absent"));
    paths_.erase(paths_.begin() + 1);
    expect_nothing_left();
}

TEST_F(BenchSeveralTest, CtrlCRemovesAllScratchFiles) {
    Program program({"bench", paths_[0], paths_[1], paths_[2], "--size", "8MiB", "--seconds", "60",
                     "--rw", "randread"});
    for (int i = 0; i < 1000 && names_in(paths_[2]).empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_FALSE(names_in(paths_[2]).empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    program.signal(SIGINT);
    EXPECT_EQ(program.wait().status, 128 + SIGINT);
    expect_nothing_left();
}

TEST_F(BenchTest, WithoutFioItTellsWhatToInstall) {
    const std::string path = std::getenv("PATH");
    ASSERT_EQ(::setenv("PATH", folder().c_str(), 1), 0);
    const Outcome outcome = run_cli(quick(folder(), {"--against", "fio"}));
    ASSERT_EQ(::setenv("PATH", path.c_str(), 1), 0);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("apt-get install fio"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

// A command line that finds the fake driver, and as gdsio a program that prints its line.
std::function<void()> with_fake_gpu(const std::string& programs) {
    return [programs] {
        const std::string library = PENSTOCK_FAKE_GPU;
        ::setenv("PENSTOCK_FAKE_GPU", library.substr(0, library.rfind('/')).c_str(), 1);
        ::setenv("PENSTOCK_KVIKIO_PYTHON", "/nonexistent/python", 1);
        ::setenv("PATH", (programs + ":" + ::getenv("PATH")).c_str(), 1);
    };
}

TEST_F(BenchTest, AGpuIsMeasuredNextToWhatIsPossibleAndAFakeOneIsCalledFake) {
    const support::TempFolder programs;
    const std::string gdsio = programs.path() + "/gdsio";
    std::ofstream(gdsio) << "#!/bin/sh\n[ \"$1\" = -v ] && echo gdsio 1.2 && exit 0\n"
                            "echo 'IoType: READ XferType: GPUD Threads: 16 DataSetSize: "
                            "8388608/16384(KiB) IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, "
                            "Avg_Latency: 5104.1 usecs ops: 8192 total_time 2.0 secs'\n";
    std::filesystem::permissions(gdsio, std::filesystem::perms::owner_all);
    const std::string file = folder() + "/out.json";
    const Outcome outcome = run_cli(quick(folder(), {"--device", "cuda:0", "--fake-gpu", "3GB/s",
                                                     "--rw", "read", "--json", file}),
                                    with_fake_gpu(programs.path()));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* word : {"(FAKE)", "penstock FAKE", "pinned copy FAKE", "gdsio FAKE",
                             "lesser of disk and copies (FAKE)", "absent KvikIO"}) {
        EXPECT_THAT(outcome.out, HasSubstr(word));
    }
    const auto json = nlohmann::json::parse(contents(file));
    EXPECT_EQ(json.at("gpu").at("fake"), true);
    EXPECT_THAT(json.at("gpu").at("name"), HasSubstr("FAKE"));
    ASSERT_EQ(json.at("jobs").size(), 1U);
    for (const auto& job : json.at("jobs")) {
        EXPECT_EQ(job.at("fake"), true);
        const auto& rates = job.at("median_bytes_per_s");
        EXPECT_LT(rates.at("pinned copy").get<double>(), 3.3e9);  // as fast as it was told to be
        EXPECT_LT(rates.at("penstock").get<double>(), 3.3e9);     // through the fake, not past it
        EXPECT_GT(rates.at("penstock").get<double>(), 0);
        EXPECT_NEAR(rates.at("gdsio").get<double>(), 4.0 * (1 << 30), 1);
    }
    EXPECT_THAT(names_in(folder()), testing::ElementsAre("out.json"));
}

TEST_F(BenchTest, AGpuThatIsNotThereAndOptionsThatMeanNothingAreRefused) {
    const auto refused = [&](const std::vector<std::string>& more, const std::string& why,
                             const std::function<void()>& first) {
        const Outcome outcome = run_cli(quick(folder(), more), first);
        EXPECT_NE(outcome.status, 0);
        EXPECT_THAT(outcome.err, HasSubstr(why));
    };
    const auto fake = with_fake_gpu(folder());
    refused({"--device", "cuda:7", "--fake-gpu", "3GB/s"}, "sees 1 GPU", fake);
    refused({"--device", "rocm:0"}, "expected cuda:0", {});
    refused({"--fake-gpu", "3GB/s"}, "expected --device", {});
    refused({"--device", "cuda:0", "--fake-gpu", "fast"}, "6.8GB/s", {});
    refused({"/tmp", "--device", "cuda:0"}, "expected one", {});
    refused({"--device", "cuda:0", "--fake-gpu", "3GB/s"}, "target fake_cuda",
            [] { ::setenv("PENSTOCK_FAKE_GPU", "/nonexistent", 1); });
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST(GdsioTest, ItsLineIsReadAndNothingElseIs) {
    const auto sample = gdsio_sample(
        "warning\nIoType: WRITE XferType: GPUD Threads: 4 DataSetSize: 2048/4096(KiB) IOSize: "
        "1024(KiB) Throughput: 2.0 GiB/sec, Avg_Latency: 1 usecs ops: 2 total_time 0.001 secs\n");
    ASSERT_TRUE(sample);
    EXPECT_EQ(sample->bytes, 2048U * 1024);
    EXPECT_DOUBLE_EQ(sample->bytes_per_s(), 2.0 * (1 << 30));
    EXPECT_FALSE(gdsio_sample(""));
    EXPECT_FALSE(gdsio_sample("DataSetSize: 0/0(KiB) Throughput: 0.0 GiB/sec total_time 0"));
}

}  // namespace
}  // namespace penstock::cli
