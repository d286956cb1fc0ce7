// SPDX-License-Identifier: Apache-2.0
// `penstock plan`: questions in words, files of jobs, and what measuring leaves.
#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class PlanCliTest : public testing::Test {
protected:
    [[nodiscard]] static Outcome plan(std::vector<std::string> more) {
        more.insert(more.begin(), "plan");
        return run_cli(more);
    }
    [[nodiscard]] std::vector<std::string> quick(std::vector<std::string> more = {}) const {
        std::vector<std::string> words{"measure", folder(), "--seconds", "0.4", "--size", "16MiB"};
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    /// The text as one line. Where a sentence wraps depends on the figures that were measured.
    [[nodiscard]] static std::string unwrapped(const std::string& text) {
        std::istringstream words(text);
        std::string line;
        for (std::string word; words >> word;)
            line += word + ' ';
        return line;
    }
    [[nodiscard]] std::string folder() const { return folder_.path(); }

    support::TempFolder folder_;
};

TEST_F(PlanCliTest, AnswersInTextDerivationMarkdownAndJson) {
    const std::vector<std::string> question{"train", "--model", "resnet50", "--accelerators", "8"};
    const auto with = [&](const char* flag) {
        std::vector<std::string> words = question;
        words.emplace_back(flag);
        return plan(words);
    };
    EXPECT_THAT(plan(question).out, HasSubstr("6.097 GB/s        5.678 GiB/s"));
    EXPECT_THAT(with("--explain").out, HasSubstr("MLPerf Training v3.1"));
    EXPECT_THAT(with("--markdown").out, HasSubstr("| read rate | 6.097 GB/s (5.678 GiB/s) |"));
    std::vector<std::string> words = question;
    words.insert(words.end(), {"--json", "-"});
    const Outcome found = plan(words);
    EXPECT_THAT(found.err, HasSubstr("6.097 GB/s"));
    const auto json = nlohmann::json::parse(found.out);
    EXPECT_EQ(json.at("verb"), "train");
    EXPECT_EQ(json.at("command").at(1), "plan");
    EXPECT_EQ(json.at("figures").at(0).at("value"), 56600);
}

TEST_F(PlanCliTest, EachQuestionHasHelpThatTeaches) {
    const Outcome all = plan({"--help"});
    EXPECT_EQ(all.status, 0);
    for (const char* verb : {"train", "size", "mix", "feeds", "measure"}) {
        EXPECT_THAT(all.out, HasSubstr(verb));
        const Outcome one = plan({verb, "--help"});
        EXPECT_EQ(one.status, 0) << verb;
        EXPECT_THAT(one.out, HasSubstr("Examples:")) << verb;
        EXPECT_THAT(one.out, HasSubstr("--explain")) << verb;
    }
    EXPECT_THAT(plan({"train", "--list"}).out, HasSubstr("training-5.1 flux"));
}

TEST_F(PlanCliTest, WrongUsageIsTwoAndNamesTheInput) {
    const auto refused = [](const std::vector<std::string>& words, const char* text) {
        const Outcome found = plan(words);
        EXPECT_EQ(found.status, 2) << text << found.out;
        EXPECT_THAT(found.err, HasSubstr(text));
    };
    refused({}, "penstock plan: expected one of train, ");
    refused({"trian"}, "there is no command 'trian'; did you mean 'train'?");
    refused({"train", "resnet50"}, "resnet50");
    refused({"train", "--model", "resnet5"}, "did you mean 'resnet50'?");
    refused({"train", "--model", "resnet50", "--accelerators", "8GB"}, "no size");
    refused({"train", "--modle", "resnet50"}, "--modle");
    refused({"mix"}, "expected a file of jobs");
    refused({"measure"}, "path is required");
    refused({"measure", folder(), "--model", "resnet5"}, "did you mean 'resnet50'?");
    refused({"measure", folder(), "--seconds", "nan"}, "0.1 to 3600 seconds");
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(PlanCliTest, JobsComeFromAFile) {
    const std::string path = folder_ / "jobs.json";
    std::ofstream(path) << R"({"jobs": [{"kind": "train", "model": "flux"}]})";
    EXPECT_THAT(plan({"mix", path}).out, HasSubstr("A mix: 1 job in 24 h"));
    EXPECT_THAT(plan({"mix", path, "--length", "2h"}).out, HasSubstr("1 job in 2 h"));
    EXPECT_THAT(plan({"mix", folder_ / "none.json"}).err, HasSubstr("No such file"));
    EXPECT_THAT(plan({"mix", folder()}).err, HasSubstr("Is a directory"));
    std::ofstream(path) << "jobs:\n  - kind: train\n";
    EXPECT_EQ(plan({"mix", path}).status, 2);
    std::filesystem::resize_file(path, (16 << 20) + 1);
    EXPECT_THAT(plan({"mix", path}).err, HasSubstr("longer than 16 MiB"));
}

TEST_F(PlanCliTest, AnEmptyDocumentIsNamed) {
    for (const char* const verb : {"checkpoint", "restore", "stream", "mix"}) {
        const Outcome outcome = run_cli({"plan", verb, "/dev/null"});
        EXPECT_EQ(outcome.status, 2) << outcome.out;
        EXPECT_THAT(outcome.err, HasSubstr("'/dev/null': this is empty; expected a JSON document"));
    }
}

TEST_F(PlanCliTest, MeasuresAllPatternsAndLeavesTheFolderEmpty) {
    const std::string json = folder_ / "out.json";
    const Outcome found = plan(quick({"--checkpoint-bytes", "1GB", "--json", json}));
    ASSERT_EQ(found.status, 0) << found.err;
    for (const char* text : {"reads in sequence", "random reads of 128 KiB", "durable writes",
                             "95 % interval", "It feeds", "A checkpoint of 1 GB", "direct I/O"}) {
        EXPECT_THAT(unwrapped(found.out), HasSubstr(text));
    }
    EXPECT_EQ(names_in(folder()), std::vector<std::string>{"out.json"});
    std::ifstream file(json);
    const auto answer = nlohmann::json::parse(file);
    EXPECT_EQ(answer.at("verb"), "measure");
    EXPECT_GT(answer.at("figures").at(0).at("value"), 0);
}

TEST_F(PlanCliTest, MeasuresSeveralFoldersForAModel) {
    const std::string other = folder_ / "other";
    std::filesystem::create_directory(other);
    const Outcome found = plan(quick({other, "--model", "unet3d"}));
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_THAT(unwrapped(found.out), HasSubstr("h100 (snia-2024); reads in sequence bind."));
    EXPECT_THAT(found.out, Not(HasSubstr("random reads")));
    EXPECT_THAT(names_in(other), IsEmpty());
}

TEST_F(PlanCliTest, AFileIsOnlyRead) {
    const std::string path = folder_ / "precious.bin";
    std::ofstream(path) << std::string(8 << 20, 'p');
    const Outcome found = plan({"measure", path, "--seconds", "0.5"});
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_THAT(unwrapped(found.out), HasSubstr("durable writes were not measured"));
    EXPECT_EQ(std::filesystem::file_size(path), 8U << 20);
    const Outcome refused =
        plan({"measure", path, "--seconds", "0.5", "--checkpoint-bytes", "1GB"});
    EXPECT_THAT(refused.err, HasSubstr("checkpoint_bytes needs 'writes'"));
}

TEST_F(PlanCliTest, NoFigureComesFromACache) {
    const support::TempFolder memory("/dev/shm");
    const Outcome found = plan({"measure", memory.path(), "--seconds", "0.5", "--size", "16MiB"});
    EXPECT_NE(found.status, 0);
    EXPECT_THAT(found.err, HasSubstr("direct"));
    EXPECT_THAT(found.out, IsEmpty());
    EXPECT_THAT(names_in(memory.path()), IsEmpty());
}

TEST_F(PlanCliTest, AFolderThatCannotBeWrittenIsAnError) {
    EXPECT_THAT(plan({"measure", folder_ / "none"}).err, HasSubstr("No such file"));
    EXPECT_THAT(plan({"measure", folder(), "--size", "1000TiB"}).err, HasSubstr("are free"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(PlanCliTest, ASmallFileAndAPathThatComesTwiceAreErrors) {
    const std::string path = folder_ / "small";
    std::ofstream(path) << "small";
    EXPECT_THAT(plan({"measure", path}).err, HasSubstr("got 5 B; expected 4 MiB or more"));
    EXPECT_THAT(plan({"measure", folder(), "--size", "1KiB"}).err,
                HasSubstr("size: got 1024; expected"));
    EXPECT_THAT(plan({"measure", folder(), folder() + "/."}).err, HasSubstr("are the same"));
    EXPECT_EQ(names_in(folder()), std::vector<std::string>{"small"});
}

TEST_F(PlanCliTest, CtrlCRemovesTheScratchFilesTimed) {
    Program program({"plan", "measure", folder(), "--seconds", "30", "--size", "64MiB"});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    program.signal(SIGINT);
    const Outcome found = program.wait();
    EXPECT_EQ(found.status, 130);
    EXPECT_THAT(found.err, HasSubstr("no scratch file is left"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(PlanCliTest, TrainMeasuresToo) {
    const Outcome found = plan({"train", "--model", "bert", "--accelerators", "8", "--measure",
                                folder(), "--measure-seconds", "0.5", "--measure-size", "16MiB"});
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_THAT(found.out, HasSubstr("read rate"));
    EXPECT_THAT(unwrapped(found.out), HasSubstr("the job needs 19.4 MB/s: it is"));
    EXPECT_THAT(unwrapped(found.out), HasSubstr("95 % interval)"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
}

TEST_F(PlanCliTest, SavesRestoresAndStreamsAreMeasured) {
    const auto measured = [&](std::vector<std::string> words) {
        for (const char* more :
             {"--measure-seconds", "0.4", "--measure-size", "16MiB", "--measure"}) {
            words.emplace_back(more);
        }
        words.push_back(folder());
        const Outcome found = plan(words);
        EXPECT_EQ(found.status, 0) << found.err;
        return unwrapped(found.out);
    };
    EXPECT_THAT(measured({"checkpoint", "--model", "3b", "--interval", "2h"}),
                HasSubstr("it may take 6 min"));
    EXPECT_THAT(measured({"restore", "--model", "3b"}), HasSubstr("it may take 5 min"));
    EXPECT_THAT(measured({"stream", "--model", "3b"}), HasSubstr("which bounds the tokens to"));
    EXPECT_THAT(names_in(folder()), IsEmpty());
    EXPECT_THAT(plan({"stream", "--model", "3b", "--rate", "1GB/s", "--measure", folder()}).err,
                HasSubstr("expected one of them"));
}

}  // namespace
}  // namespace penstock::cli
