// SPDX-License-Identifier: Apache-2.0
// Which file of a folder is the model: by a table that Python's tests read too.
#include "state/model_folder.hpp"
#include "support/temp_folder.hpp"
#include "support/text_files.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/state_file.hpp>
#include <penstock/weights.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr const char* kTable = PENSTOCK_SOURCE_DIR "/tests/weights/model_folders.tsv";

// The one tensor of a file: its name says which file it is from.
std::string tensor_of(const std::string& file) {
    std::string name = std::filesystem::path(file).stem();
    std::replace(name.begin(), name.end(), '.', '_');
    return name + ".weight";
}

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, by);) {
        parts.push_back(part);
    }
    return parts;
}

class ModelFoldersTest : public testing::Test {
protected:
    // Makes the files of a row. Returns the names of the tensors that each file or index has.
    void make(const std::string& folder, const std::string& files) {
        std::filesystem::create_directories(folder);
        for (const std::string& one : split(files, ' ')) {
            const std::string path = folder + "/" + one.substr(0, one.find_first_of("=@"));
            std::filesystem::create_directories(std::filesystem::path(path).parent_path());
            if (const std::size_t at = one.find('='); at != std::string::npos) {
                std::string map;
                for (const std::string& shard : split(one.substr(at + 1), ',')) {
                    map += fmt::format(R"({}"{}": "{}")", map.empty() ? "" : ", ", tensor_of(shard),
                                       shard);
                }
                test::write_text(path, fmt::format(R"({{"weight_map": {{{}}}}})", map));
            } else if (const std::size_t to = one.find('@'); to != std::string::npos) {
                std::filesystem::create_symlink(folder + "/" + one.substr(to + 1), path);
            } else if (path.ends_with(".safetensors")) {
                const std::vector<std::byte> data(16);
                State state;
                state.tensors.push_back({tensor_of(one), "F32", {2, 2}, data});
                save_file(engine_, path, state);
            } else {
                test::write_text(path, "{}");
            }
        }
    }

    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    support::TempFolder folder_;
};

TEST_F(ModelFoldersTest, AllThatTakeAFolderChooseTheSameFile) {
    std::ifstream table(kTable);
    int rows = 0;
    for (std::string line; std::getline(table, line);) {
        if (line.starts_with('#')) {
            continue;
        }
        ++rows;
        const std::vector<std::string> cells = split(line, '\t');
        ASSERT_EQ(cells.size(), 3U) << line;
        const std::string folder = folder_ / cells[0];
        make(folder, cells[1]);
        const std::string& wanted = cells[2];
        SCOPED_TRACE(line);
        if (wanted.starts_with('!')) {
            const auto inspected =
                test::error_of([&] { static_cast<void>(inspect_folders(engine_, {folder})); });
            const auto listed =
                test::error_of([&] { static_cast<void>(inspect(engine_, folder)); });
            EXPECT_THAT(inspected.what(), HasSubstr(wanted.substr(1)));
            EXPECT_THAT(inspected.what(), HasSubstr(folder));
            EXPECT_EQ(listed.reason(), inspected.reason());
            EXPECT_THAT(listed.what(), HasSubstr(wanted.substr(1)));
            continue;
        }
        const WeightFolders model = inspect_folders(engine_, {folder});
        EXPECT_EQ(model.table.path, folder + "/" + wanted);
        EXPECT_EQ(inspect_folders(engine_, {folder, folder}).table.tensors.size(),
                  model.table.tensors.size());
        std::set<std::string> names;
        for (const TensorEntry& tensor : model.table.tensors) {
            names.insert(tensor.name);
        }
        std::set<std::string> listed;
        for (const auto& tensor : inspect(engine_, folder).tensors) {
            listed.insert(tensor.name);
        }
        EXPECT_EQ(listed, names);
        if (wanted.ends_with(".safetensors") && cells[1].find('@') == std::string::npos) {
            EXPECT_EQ(names, std::set<std::string>{tensor_of(wanted)});
        }
    }
    EXPECT_GE(rows, 20);
}

}  // namespace
}  // namespace penstock
