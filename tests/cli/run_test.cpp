// SPDX-License-Identifier: Apache-2.0
#include "cli/run.hpp"

#include "cli/program.hpp"

#include <penstock/version.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

TEST(RunTest, HelpTeachesWithExamples) {
    for (const std::vector<std::string>& args : {std::vector<std::string>{"--help"},
                                                 {"bench", "--help"},
                                                 {"tune", "--help"},
                                                 {"doctor", "--help"}}) {
        const Outcome outcome = run_cli(args);
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr("Examples:"));
        EXPECT_THAT(outcome.out, HasSubstr("penstock doctor"));
    }
}

TEST(RunTest, HelpFitsATerminalAndSaysRangesInWords) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{},
                                               {"bench"},
                                               {"tune"},
                                               {"doctor"},
                                               {"checkpoint", "convert"},
                                               {"weights", "plan"},
                                               {"features", "simulate"},
                                               {"plan", "checkpoint"},
                                               {"plan", "measure"}}) {
        std::vector<std::string> args = command;
        args.emplace_back("--help");
        const std::string out = run_cli(args).out;
        EXPECT_EQ(out.find(" in ["), std::string::npos) << out;
        EXPECT_EQ(out.find("REQUIRED"), std::string::npos) << out;
        std::istringstream lines(out);
        for (std::string line; std::getline(lines, line);) {
            EXPECT_TRUE(line.size() <= 80 || line.starts_with("  penstock ")) << line;
        }
    }
    EXPECT_THAT(run_cli({"bench", "--help"}).out,
                HasSubstr("  --seconds TIME            Seconds of each run (0.1 to 3600; default: "
                          "1.5)\n"));
    EXPECT_THAT(run_cli({"weights", "plan", "--help"}).out, HasSubstr("8GiB (required)"));
    EXPECT_THAT(run_cli({"checkpoint", "convert", "--help"}).out, HasSubstr("  --no-verify   "));
}

TEST(RunTest, CommandsOfThePythonPackageAreListedAndNamedAsSuch) {
    const Outcome help = run_cli({"--help"});
    for (const std::string name : {"report", "ds_io", "ds_nvme_tune"}) {
        EXPECT_THAT(help.out, HasSubstr("penstock " + name));
        const Outcome outcome = run_cli({name, "--help"});
        EXPECT_EQ(outcome.status, 2);
        EXPECT_THAT(outcome.err, HasSubstr("'" + name + "' comes with the Python package"));
    }
}

TEST(RunTest, AnUnknownCommandIsToldWithTheNearestOrAll) {
    const Outcome nonsense = run_cli({"nonsense"});
    EXPECT_EQ(nonsense.status, 2);
    for (const char* name : {"bench", "tune", "doctor", "checkpoint", "report", "ds_io",
                             "ds_nvme_tune", "'nonsense'"}) {
        EXPECT_THAT(nonsense.err, HasSubstr(name));
    }
    EXPECT_THAT(run_cli({"chekpoint", "ls"}).err, HasSubstr("did you mean 'checkpoint'?"));
    EXPECT_THAT(run_cli({"repotr"}).err, HasSubstr("did you mean 'report'?"));
}

TEST(RunTest, SoIsAnUnknownCommandOfACommand) {
    const auto err_of = [](const std::vector<std::string>& args) {
        const auto ran = run_cli(args);
        EXPECT_EQ(ran.status, 2);
        return ran.err;
    };
    EXPECT_EQ(err_of({"checkpoint", "shwo", "x"}),
              "penstock checkpoint: there is no command 'shwo'; did you mean 'show'?\n"
              "Try: penstock checkpoint --help\n");
    EXPECT_EQ(err_of({"checkpoint"}),
              "penstock checkpoint: expected one of ls, show, verify, diff, convert, bench\n"
              "Try: penstock checkpoint --help\n");
    EXPECT_THAT(err_of({"features", "nothing"}),
                HasSubstr("expected one of import, show, verify, simulate"));
    EXPECT_THAT(err_of({"weights", "paln", "folder"}), HasSubstr("did you mean 'plan'?"));
    EXPECT_THAT(err_of({"weights", "nothing"}), HasSubstr("expected one of plan, bench"));
}

TEST(RunTest, BenchHelpTellsBinaryAndDecimalApart) {
    const Outcome outcome = run_cli({"bench", "--help"});
    EXPECT_THAT(outcome.out, HasSubstr("1 KiB = 1024 bytes"));
    EXPECT_THAT(outcome.out, HasSubstr("1 GB = 10^9 bytes"));
}

TEST(RunTest, VersionIsThatOfTheHeaders) {
    const Outcome outcome = run_cli({"--version"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out, "penstock " PENSTOCK_VERSION "\n");
}

TEST(RunTest, NothingAskedShowsTheHelpAndFails) {
    const Outcome outcome = run_cli({});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.out, HasSubstr("bench"));
}

// stdout as the shell may give it.
void write_to_a_full_disk() {
    ::dup2(::open("/dev/full", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
}

void write_to_nobody() {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST(RunTest, OutputThatCannotBeWrittenIsAnError) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"--help"}, {}, {"--version"}, {"doctor"}, {"doctor", "."}}) {
        const Outcome outcome = run_cli(args, write_to_a_full_disk);
        EXPECT_EQ(outcome.status, 1);
        EXPECT_THAT(outcome.err, HasSubstr("the output could not be written: No space left"));
    }
    // At the first line, not at the end.
    const Outcome outcome = run_cli({"doctor"}, [] {
        write_to_a_full_disk();
        std::setvbuf(stdout, nullptr, _IONBF, 0);
    });
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("No space left"));
}

TEST(RunTest, NobodyReadingOnIsNoNews) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"--help"}, {"doctor"}, {"doctor", "."}}) {
        const Outcome outcome = run_cli(args, write_to_nobody);
        EXPECT_EQ(outcome.status, 128 + SIGPIPE);
        EXPECT_EQ(outcome.err, "");
    }
}

struct Wrong {
    std::vector<std::string> args;
    std::vector<std::string> told;
};

TEST(RunTest, WrongUsageNamesTheOptionAndWhatIsAllowed) {
    const std::vector<Wrong> cases{
        {{"frobnicate"}, {"frobnicate"}},
        {{"bench"}, {"path", "penstock bench --help"}},
        {{"bench", ".", "--rw", "rewrite"}, {"--rw", "'rewrite'", "randread"}},
        {{"bench", ".", "--block-size", "4QiB"}, {"--block-size", "'4QiB'", "64KiB"}},
        {{"bench", ".", "--block-size", "1"}, {"--block-size", "512"}},
        {{"bench", ".", "--depth", "0"}, {"--depth", "4096"}},
        {{"bench", ".", "--size", "12"}, {"--size", "1 MiB or more"}},
        {{"bench", ".", "--backend", "spdk"}, {"--backend", "'spdk'", "uring"}},
        {{"bench", ".", "--cache", "maybe"}, {"--cache", "required"}},
        {{"bench", ".", "--against", "dd"}, {"--against", "fio"}},
        {{"bench", ".", "--seconds", "-1"}, {"--seconds", "0.1 to 3600"}},
        {{"bench", ".", "--seconds", "nan"}, {"--seconds", "'nan'", "0.1 to 3600"}},
        {{"bench", ".", "--seconds", "1x"}, {"--seconds"}},
        {{"tune", ".", "--gain", "nan"}, {"--gain", "'nan'", "0 to 100"}},
        {{"bench", ".", "--repeats", "many"}, {"--repeats"}},
        {{"doctor", ".", "--no-such"}, {"--no-such", "penstock doctor --help"}},
    };
    for (const Wrong& wrong : cases) {
        const Outcome outcome = run_cli(wrong.args);
        EXPECT_EQ(outcome.status, 2) << wrong.args.back();
        for (const std::string& word : wrong.told) {
            EXPECT_THAT(outcome.err, HasSubstr(word));
        }
    }
}

}  // namespace
}  // namespace penstock::cli
