// SPDX-License-Identifier: Apache-2.0
#include "cli/program.hpp"
#include "cli/tune/command.hpp"
#include "cli/tune/paste.hpp"
#include "support/temp_folder.hpp"

#include <penstock/engine.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace penstock::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::string contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

class TuneTest : public testing::Test {
protected:
    // A search that ends soon; what it finds is not looked at.
    [[nodiscard]] std::vector<std::string> quick(const std::string& path,
                                                 std::vector<std::string> more = {}) const {
        std::vector<std::string> args{"tune", path, "--seconds", "5", "--size", "64MiB"};
        args.insert(args.end(), more.begin(), more.end());
        return args;
    }
    [[nodiscard]] std::string folder() const { return folder_.path(); }

private:
    support::TempFolder folder_;
};

TEST_F(TuneTest, ItTellsWhatWasTriedAndGivesFilesThatLoadTimed) {
    const std::string options = folder() + "/tuned.json";
    const std::string json = folder() + "/all.json";
    // A pair that the file has stays in it.
    std::ofstream(options) << R"({"tuned_gpu_paths": "1:2 0000:01:00.0 cufile"})";
    const Outcome outcome =
        run_cli(quick(folder(), {"-o", options, "--json", json, "--device", "cuda:0"}),
                [] { ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL); });
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* word :
         {"block x depth", "(defaults)", "read", "write", "together", "to defaults", "Settings:",
          "\"intra_op_parallelism\": ", "fio --name=tuned", "written", "--write-limit"}) {
        EXPECT_THAT(outcome.out, HasSubstr(word));
    }
    EXPECT_THAT(names_in(folder()), testing::ElementsAre("all.json", "tuned.json"));

    const auto report = nlohmann::json::parse(contents(json));
    const auto& choice = report.at("tune").at("choice");
    const EngineOptions loaded = load_options(options);
    EXPECT_EQ(loaded.block_bytes, choice.at("block_bytes").get<std::uint32_t>());
    EXPECT_EQ(loaded.channels, choice.at("channels").get<std::uint32_t>());
    EXPECT_EQ(
        std::min<std::uint64_t>(loaded.queue_depth, loaded.in_flight_bytes / loaded.block_bytes),
        choice.at("depth").get<std::uint64_t>());

    EXPECT_EQ(loaded.gap_bytes,
              report.at("tune").at("options").at("gap_bytes").get<std::uint64_t>());
    EXPECT_EQ(outcome.out.find("(gap_bytes)") != std::string::npos,
              report.at("target").at("direct").get<bool>());

    // No machine that runs the tests on the fake has cuFile, so there is no choice.
    EXPECT_THAT(outcome.out, HasSubstr("no direct cuFile"));
    const auto& gpu = report.at("tune").at("gpu");
    EXPECT_EQ(gpu.at("choice"), "bounce");
    EXPECT_EQ(gpu.at("fake"), true);
    EXPECT_GT(gpu.at("bounce").at(0).at("read_bytes_per_s").get<double>(), 0);
    EXPECT_NE(gpu.at("why_no_cufile"), "");
    ASSERT_THAT(loaded.tuned_gpu_paths, SizeIs(2));
    EXPECT_EQ(text_of({loaded.tuned_gpu_paths[0]}), "1:2 0000:01:00.0 cufile");
    EXPECT_EQ(loaded.tuned_gpu_paths[1].gpu, gpu.at("pci").get<std::string>());
    EXPECT_EQ(loaded.tuned_gpu_paths[1].path, GpuPath::kBounce);

    EXPECT_EQ(report.at("tune").at("verdicts").size(), 3U);
    EXPECT_GE(report.at("jobs").size(), 2U);
    std::uint64_t written = 0;
    for (const auto& job : report.at("jobs")) {
        EXPECT_FALSE(job.at("samples").empty());
        for (const auto& sample : job.at("samples")) {
            EXPECT_GT(sample.at("bytes_per_s").get<double>(), 0);
            written += job.at("rw") == "write" ? sample.at("bytes").get<std::uint64_t>() : 0;
        }
    }
    EXPECT_GT(written, 0U);
    EXPECT_GT(report.at("tune").at("written_bytes").get<std::uint64_t>(), written);
    EXPECT_LE(report.at("tune").at("seconds").get<double>(), 12);
}

TEST_F(TuneTest, AGpuThatIsNotThereIsRefusedAtOnce) {
    const auto fake = [] { ::dlopen(PENSTOCK_FAKE_GPU, RTLD_LAZY | RTLD_LOCAL); };
    const auto refused = [&](const char* device) {
        const Outcome outcome = run_cli({"tune", folder(), "--device", device}, fake);
        EXPECT_NE(outcome.status, 0);
        return outcome.err;
    };
    EXPECT_THAT(refused("rocm:0"), HasSubstr("expected cuda:0"));
    EXPECT_THAT(refused("cuda:7"), HasSubstr("sees 1 GPU"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(TuneTest, AFileIsOnlyRead) {
    const std::string path = folder() + "/precious.bin";
    std::ofstream(path) << std::string(std::size_t{64} << 20, 'p');
    const auto before = std::filesystem::last_write_time(path);
    const Outcome outcome = run_cli({"tune", path, "--seconds", "5"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("only read"));
    EXPECT_THAT(outcome.out, Not(HasSubstr("together")));
    EXPECT_EQ(std::filesystem::last_write_time(path), before);
    EXPECT_EQ(contents(path), std::string(std::size_t{64} << 20, 'p'));

    const Outcome refused = run_cli({"tune", path, "--only", "write"});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, HasSubstr("did not make"));
}

// A slip, such as -o for the path, would destroy the only copy of a model.
TEST_F(TuneTest, OnlyAnOptionsFileIsReplaced) {
    const std::string model = folder() + "/model.bin";
    std::ofstream(model) << std::string(std::size_t{64} << 20, 'p');
    std::filesystem::create_hard_link(model, folder() + "/other.bin");
    std::filesystem::create_symlink("model.bin", folder() + "/link.bin");
    const auto refused = [&](const std::string& path, const std::string& output,
                             const std::string& why) {
        const Outcome outcome = run_cli({"tune", path, "--seconds", "5", "-o", output});
        EXPECT_EQ(outcome.status, 2) << outcome.out;
        EXPECT_THAT(outcome.err, HasSubstr("-o: '" + output + "' is " + why));
        EXPECT_THAT(outcome.out, IsEmpty());
    };
    for (const char* const name : {"/model.bin", "/other.bin", "/link.bin"}) {
        refused(model, folder() + name, "the file that is measured");
        refused(folder(), folder() + name, "there, and is no options file");
    }
    EXPECT_EQ(std::filesystem::file_size(model), std::size_t{64} << 20);
    const std::string json = folder() + "/config.json";
    for (const char* const text : {"as it was", R"({"hidden_size": 8})", "[]"}) {
        std::ofstream(json) << text;
        refused(folder(), json, "there, and is no options file");
        EXPECT_EQ(contents(json), text);
    }
}

TEST_F(TuneTest, TwoOutputsAreTwoFiles) {
    const std::string file = folder() + "/t.json";
    std::filesystem::create_directory_symlink(".", folder() + "/here");
    for (const std::string& other : {file, folder() + "/here/t.json"}) {
        const Outcome outcome = run_cli(quick(folder(), {"-o", file, "--json", other}));
        EXPECT_EQ(outcome.status, 2) << outcome.out;
        EXPECT_THAT(outcome.err, HasSubstr("--json: '" + other + "' is also the file of -o"));
        EXPECT_FALSE(std::filesystem::exists(file));
    }
}

TEST_F(TuneTest, TheWriteLimitIsKept) {
    const Outcome outcome =
        run_cli({"tune", folder(), "--seconds", "20", "--size", "64MiB", "--full", "--write-limit",
                 "256MiB", "--only", "write", "--json", "-"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("(--write-limit)"));
    const auto report = nlohmann::json::parse(outcome.out);
    EXPECT_LE(report.at("tune").at("written_bytes").get<std::uint64_t>(), std::uint64_t{256} << 20);
    EXPECT_FALSE(report.at("jobs").empty());
    EXPECT_NE(report.at("tune").at("verdicts").at(0).at("verdict"), "better");

    const auto refused = [&](std::vector<std::string> more, const char* why) {
        more.insert(more.begin(), {"tune", folder(), "--write-limit"});
        const Outcome wrong = run_cli(more);
        EXPECT_EQ(wrong.status, 2) << wrong.out;
        EXPECT_THAT(wrong.err, HasSubstr(why));
    };
    refused({"255MiB", "--size", "64MiB"},
            "--write-limit: got 255 MiB; a scratch file of 64 MiB and the first writes needs "
            "256MiB: give that, a smaller --size, or --only read");
    refused({"1GiB"}, "and the first writes needs 1216MiB");
    refused({"1000MiB", "--only", "read"}, "needs 1024MiB: give that, or a smaller --size");
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(TuneTest, WhatCannotBeIsToldAtOnce) {
    const Outcome absent = run_cli(quick(folder() + "/absent"));
    EXPECT_EQ(absent.status, 1);
    EXPECT_THAT(absent.err, HasSubstr("tune " + folder() + "/absent"));

    const Outcome full =
        run_cli({"tune", folder(), "--size", "8000TiB", "--write-limit", "8001TiB"});
    EXPECT_EQ(full.status, 1);
    EXPECT_THAT(full.err, HasSubstr("are free"));

    const Outcome output = run_cli(quick(folder(), {"-o", folder() + "/absent/tuned.json"}));
    EXPECT_EQ(output.status, 1);
    EXPECT_THAT(output.err, HasSubstr("-o "));
    EXPECT_THAT(output.err, HasSubstr("No such file or directory"));

    std::ofstream(folder() + "/small.bin") << std::string(1 << 20, 'p');
    const Outcome small = run_cli({"tune", folder() + "/small.bin"});
    EXPECT_EQ(small.status, 2);
    EXPECT_THAT(small.err, HasSubstr("64 MiB"));
    std::filesystem::remove(folder() + "/small.bin");

    for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--only", "both"},
                                                  {"--seconds", "0"},
                                                  {"--size", "1MiB"},
                                                  {"--write-limit", "some"},
                                                  {"--gain", "-1"}}) {
        const Outcome outcome = run_cli(quick(folder(), wrong));
        EXPECT_EQ(outcome.status, 2) << wrong[0];
        EXPECT_THAT(outcome.err, HasSubstr(wrong[0]));
    }
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(TuneTest, AFolderThatMayNotBeWrittenIsToldWithTheReason) {
    const Outcome outcome = run_cli(quick("/proc/self"));
    EXPECT_EQ(outcome.status, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("/proc/self"));
}

class TuneSignalTest : public TuneTest, public testing::WithParamInterface<int> {};

TEST_P(TuneSignalTest, TheScratchFileGoesAndTheOptionsFileStays) {
    const std::string options = folder() + "/tuned.json";
    const std::string as_it_was = R"({"queue_depth": 7})";
    std::ofstream(options) << as_it_was;
    Program program({"tune", folder(), "--size", "64MiB", "--seconds", "60", "-o", options});
    for (int i = 0; i < 1000 && names_in(folder()).size() < 2; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(names_in(folder()).size(), 2U);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    program.signal(GetParam());
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.status, 128 + GetParam()) << outcome.err;
    EXPECT_THAT(names_in(folder()), testing::ElementsAre("tuned.json"));
    EXPECT_EQ(contents(options), as_it_was);
}
INSTANTIATE_TEST_SUITE_P(Signals, TuneSignalTest, testing::Values(SIGINT, SIGTERM));

TEST(TunePasteTest, DeepSpeedGetsIntegersAndTrueBooleans) {
    const auto aio = deepspeed_json({.block_bytes = 8 << 20, .depth = 32, .channels = 2}).at("aio");
    EXPECT_EQ(aio.dump(), R"({"block_size":8388608,"queue_depth":32,"intra_op_parallelism":2,)"
                          R"("single_submit":false,"overlap_events":true})");
}

TEST(TunePasteTest, FioGetsTheSameWork) {
    const TuneSettings settings{.block_bytes = 2 << 20, .depth = 8, .channels = 2};
    const std::string ring = fio_command(settings, "io_uring", "/mnt/a b", true, true);
    for (const char* word : {"'/mnt/a b/fio.tmp'", "--ioengine=io_uring", "--rw=write",
                             "--bs=2097152", "--iodepth=8", "--numjobs=2"}) {
        EXPECT_THAT(ring, HasSubstr(word));
    }
    const std::string threads = fio_command(settings, "posix", "/mnt", true, false);
    EXPECT_THAT(threads, HasSubstr("--ioengine=psync --rw=read --bs=2097152 --iodepth=1 "
                                   "--numjobs=16"));
    // A colon would be the end of the first of two names, and an existing file is only read.
    EXPECT_THAT(fio_command(settings, "libaio", "/mnt/a:b", true, false),
                HasSubstr(R"('/mnt/a\:b/fio.tmp' --size=1GiB --unlink=1)"));
    const std::string file = fio_command(settings, "libaio", "/mnt/model.bin", false, false);
    EXPECT_THAT(file, HasSubstr("--filename=/mnt/model.bin --readonly "));
    EXPECT_THAT(file, Not(HasSubstr("--unlink")));
}

// The temporary file has a unique name, so that no link can have been made under it.
TEST(TunePasteTest, ALinkBesideTheFileIsNotWrittenThrough) {
    const support::TempFolder folder;
    const nlohmann::ordered_json options{{"queue_depth", 8}};
    std::ofstream(folder / "decoy") << "the only copy";
    std::filesystem::create_symlink("decoy", fmt::format("{}.{}", folder / "a.json", ::getpid()));
    write_options_file(folder / "a.json", options);
    EXPECT_EQ(contents(folder / "decoy"), "the only copy");
    EXPECT_EQ(nlohmann::ordered_json::parse(contents(folder / "a.json")), options);
    EXPECT_THAT(names_in(folder.path()), SizeIs(3));
}

TEST(TunePasteTest, AFileBehindALinkIsReplacedAndAPipeIsWrittenTo) {
    const support::TempFolder folder;
    const std::string target = folder / "target.json";
    const nlohmann::ordered_json options{{"queue_depth", 8}};
    const auto parsed = [](const std::string& path) {
        return nlohmann::ordered_json::parse(contents(path));
    };
    std::filesystem::create_symlink("target.json", folder / "link.json");
    for (int i = 0; i < 2; ++i) {  // at first the link leads nowhere
        check_options_file(folder / "link.json", folder.path());
        write_options_file(folder / "link.json", options);
        EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.json"));
        EXPECT_EQ(parsed(target), options);
    }
    const std::string pipe = folder / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::string came;
    std::thread reader([&] { came = contents(pipe); });
    write_options_file(pipe, options);
    reader.join();
    EXPECT_EQ(nlohmann::ordered_json::parse(came), options);
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
    EXPECT_THAT(names_in(folder.path()), SizeIs(3));
}

}  // namespace
}  // namespace penstock::cli
