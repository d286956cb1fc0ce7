// SPDX-License-Identifier: Apache-2.0
// penstock features import, show and verify: what they print, refuse and write.
#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::cli {
namespace {

using testing::HasSubstr;

class FeatureFilesCommandTest : public testing::Test {
protected:
    FeatureFilesCommandTest() {
        std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (50, 1024), }";
        header.resize(117, ' ');
        std::ofstream npy(npy_, std::ios::binary);
        npy << std::string("\x93NUMPY\x01\x00v\x00", 10) << header << "\n";
        npy.write(reinterpret_cast<const char*>(data_.data()),
                  static_cast<std::streamsize>(data_.size()));
        std::ofstream raw(raw_, std::ios::binary);
        raw.write(reinterpret_cast<const char*>(data_.data()),
                  static_cast<std::streamsize>(data_.size()));
    }
    static Outcome features(std::vector<std::string> words) {
        words.insert(words.begin(), "features");
        return run_cli(words);
    }
    static void expect_80_columns(const std::string& text) {
        std::istringstream lines(text.substr(text.find('\n') + 1));
        for (std::string line; std::getline(lines, line);) {
            EXPECT_LE(line.size(), 80U) << line;
        }
    }

    support::TempFolder folder_;
    const std::vector<std::byte> data_ = [] {
        std::mt19937 random(1);
        std::vector<std::byte> out(50 * 4096);
        for (std::byte& one : out) {
            one = static_cast<std::byte>(random());
        }
        return out;
    }();
    const std::string npy_ = folder_ / "paper.npy";
    const std::string raw_ = folder_ / "raw.bin";
    const std::string path_ = folder_ / "x.features";
};

TEST_F(FeatureFilesCommandTest, ImportsShowsAndVerifies) {
    const std::string json = folder_ / "out.json";
    const Outcome imported =
        features({"import", path_, npy_, "half=" + raw_, "--dtype", "float16", "--row", "2,1000",
                  "--offset", "800", "--rows", "20", "--json", json});
    EXPECT_EQ(imported.status, 0) << imported.err;
    EXPECT_THAT(imported.out, HasSubstr("2 tables"));
    EXPECT_THAT(imported.out, HasSubstr("paper"));
    EXPECT_THAT(imported.out, HasSubstr("[2, 1000]"));
    expect_80_columns(imported.out);
    const auto engine = std::make_shared<Engine>();
    const FeatureStore store = FeatureStore::open(engine, path_);
    std::vector<std::byte> row(4000);
    const std::vector<std::uint64_t> last{19};
    store.gather(store.table("half"), last, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), data_.begin() + 800 + 19 * 4000));
    EXPECT_EQ(store.tables()[0].rows, 20U);
    const auto written = nlohmann::json::parse(std::ifstream(json));
    EXPECT_EQ(written["file"]["tables"][1]["stride_bytes"], 4096);

    const Outcome shown = features({"show", path_});
    EXPECT_EQ(shown.status, 0) << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("a feature file, 2 tables"));
    expect_80_columns(shown.out);
    const Outcome npy = features({"show", npy_});
    EXPECT_THAT(npy.out, HasSubstr("reads 8192\n"));
    expect_80_columns(npy.out);

    EXPECT_EQ(features({"verify", path_}).status, 0);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file << "x";
    file.close();
    const Outcome verified = features({"verify", path_});
    EXPECT_EQ(verified.status, 1);
    EXPECT_THAT(verified.out, HasSubstr("DAMAGED  table 'paper', from row 0 on"));
}

TEST_F(FeatureFilesCommandTest, WrongCallsSayWhatToDo) {
    Outcome wrong = features({"import", path_, "paper=" + raw_});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("--dtype float32 --row"));
    const std::string headless = folder_ / "headless.npy";  // as IGB's large graphs are given
    std::filesystem::copy_file(raw_, headless);
    EXPECT_EQ(
        features({"import", path_, "paper=" + headless, "--dtype", "float32", "--row", "1024"})
            .status,
        0);
    std::filesystem::remove(headless);
    std::filesystem::remove(path_);
    wrong = features({"import", path_, "paper=" + raw_, "--dtype", "float23", "--row", "4"});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("'float23'"));
    wrong = features({"import", path_, "paper=" + raw_, "--dtype", "float32", "--row", "1000"});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_THAT(wrong.err, HasSubstr("ends within a row"));
    wrong = features({"import", path_, "=" + npy_});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("NAME=FILE"));
    wrong = features({"import", path_, "a=" + npy_, "a=" + npy_});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("comes twice"));
    wrong = features({"import", npy_, "a=" + npy_});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("would replace a source"));
    wrong = features({"import", path_});
    EXPECT_EQ(wrong.status, 2);
    wrong = features({"show", raw_});
    EXPECT_EQ(wrong.status, 2);
    EXPECT_THAT(wrong.err, HasSubstr("expected a feature file or a .npy"));
    wrong = features({"verify", npy_});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_THAT(wrong.err, HasSubstr("no checksums"));
    wrong = features({"show", folder_ / "nothing"});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_FALSE(std::filesystem::exists(path_));
    EXPECT_EQ(names_in(folder_.path()).size(), 2U);
}

TEST_F(FeatureFilesCommandTest, NumbersOfRawFilesAreChecked) {
    const auto refused = [&](const std::vector<std::string>& words, const std::string& reason) {
        std::vector<std::string> all{"import", path_, "paper=" + raw_, "--dtype", "float32"};
        all.insert(all.end(), words.begin(), words.end());
        const Outcome wrong = features(all);
        EXPECT_EQ(wrong.status, 2) << reason;
        EXPECT_THAT(wrong.err, HasSubstr(reason));
    };
    const std::string row = "; expected elements of a row: 1024, or 3,224,224 for several";
    for (const char* const word :
         {"-3", "4,,3", "0", ",", "4,", "x", "4.5", "010", "+4", "99999999999999999999", "4, 3"}) {
        refused({std::string("--row=") + word}, fmt::format("--row: got '{}'", word) + row);
    }
    refused({"--row", "4", "--rows", "0"}, "--rows: got '0'; expected a whole number, 1 or more");
    refused({"--row", "4", "--rows", "-1"}, "--rows: got '-1'; expected a whole number");
    refused({"--row", "4", "--rows", "1.5"}, "--rows: got '1.5'; expected a whole number");
    refused({"--row", "4", "--offset", "-1"}, "--offset: got '-1'; expected bytes");
    EXPECT_FALSE(std::filesystem::exists(path_));
    const Outcome done = features({"import", path_, "paper=" + raw_, "--dtype", "float32", "--row",
                                   "2,0x10,32", "--rows", "3", "--offset", "0"});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("[2, 16, 32]"));
}

// A slip with the arguments of a command that only reads would destroy what it reads.
TEST_F(FeatureFilesCommandTest, JsonReplacesNothingButItsOwnOutput) {
    ASSERT_EQ(features({"import", path_, "paper=" + npy_}).status, 0);
    const auto refused = [&](const std::vector<std::string>& words) {
        const std::string& file = words.back();
        const auto size = std::filesystem::file_size(file);
        const Outcome wrong = features(words);
        EXPECT_EQ(wrong.status, 2) << wrong.out;
        EXPECT_THAT(wrong.err, HasSubstr("--json: '" + file + "' is there"));
        EXPECT_EQ(std::filesystem::file_size(file), size);
    };
    refused({"show", path_, "--json", path_});
    refused({"verify", path_, "--json", path_});
    refused({"import", folder_ / "y.features", "paper=" + npy_, "--json", npy_});
    std::ofstream(folder_ / "config.json") << "{\n  \"command\": [\"mine\"]\n}\n";
    refused({"show", path_, "--json", folder_ / "config.json"});
    const std::string json = folder_ / "out.json";
    std::ofstream(json).flush();  // an empty file is nobody's
    for (int i = 0; i < 2; ++i) {
        const Outcome shown = features({"show", path_, "--json", json});
        EXPECT_EQ(shown.status, 0) << shown.err;
    }
    EXPECT_EQ(nlohmann::json::parse(std::ifstream(json))["file"]["tables"].size(), 1U);
    EXPECT_EQ(features({"verify", path_}).status, 0);
}

TEST_F(FeatureFilesCommandTest, OfSeveralTensorsTheNamesAreTold) {
    const std::string header =
        R"({"x": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},)"
        R"( "n.y": {"dtype": "F32", "shape": [1, 1], "data_offsets": [8, 12]}})";
    const std::string file = folder_ / "two.safetensors";
    std::ofstream(file) << static_cast<char>(header.size()) << std::string(7, '\0') << header
                        << std::string(12, 'a');
    const Outcome wrong = features({"import", path_, file});
    EXPECT_EQ(wrong.status, 2) << wrong.out;
    EXPECT_THAT(wrong.err, HasSubstr("it has 2 tensors; say which, as NAME=FILE with the name of "
                                     "one: 'x', 'n.y'"));
    const Outcome done = features({"import", path_, "x=" + file});
    EXPECT_EQ(done.status, 0) << done.err;
}

TEST_F(FeatureFilesCommandTest, ACommandThatFailsMakesNoJson) {
    const std::string json = folder_ / "out.json";
    EXPECT_EQ(features({"show", folder_ / "absent", "--json", json}).status, 1);
    EXPECT_FALSE(std::filesystem::exists(json));
    const Outcome folder = features({"show", npy_, "--json", folder_ / "absent/out.json"});
    EXPECT_EQ(folder.status, 1);
    EXPECT_THAT(folder.err, HasSubstr("No such file or directory; name a file in a folder"));
}

TEST_F(FeatureFilesCommandTest, TheJsonIsNotTheNewFile) {
    std::filesystem::create_symlink("x.features", folder_ / "link");
    for (const std::string& json : {path_, folder_ / "link"}) {
        const Outcome wrong = features({"import", path_, "paper=" + npy_, "--json", json});
        EXPECT_EQ(wrong.status, 2) << wrong.out;
        EXPECT_THAT(wrong.err, HasSubstr("--json: '" + json + "' is also the file of FEATURES"));
        EXPECT_FALSE(std::filesystem::exists(path_));
    }
}

}  // namespace
}  // namespace penstock::cli
