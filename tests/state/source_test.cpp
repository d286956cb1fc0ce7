// SPDX-License-Identifier: Apache-2.0
#include "state/source.hpp"

#include "format/shard_index.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <penstock/tensor_table.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::state {
namespace {

using support::pattern;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::string message_of(const std::function<void()>& call, ErrorCode reason = ErrorCode::kDamaged) {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), reason) << error.what();
        return error.what();
    }
    return "nothing was thrown";
}

class SourceTest : public testing::Test {
protected:
    // Tensors "<prefix>0", "<prefix>1", ... of bytes.
    void save(const std::string& path, const std::string& prefix,
              const std::vector<std::vector<std::byte>>& data) {
        std::vector<format::safetensors::Tensor> tensors;
        for (std::size_t i = 0; i < data.size(); ++i) {
            format::safetensors::Tensor& t = tensors.emplace_back();
            t.name = prefix + std::to_string(i);
            t.shape = {data[i].size()};
        }
        FileImage image = FileImage::safetensors(tensors, {}, {data.begin(), data.end()});
        save_file(*engine_, files_, path, image, {});
    }
    void write(const std::string& path, const std::string& text) const {
        std::ofstream(path, std::ios::binary) << text;
    }
    static std::vector<std::string> names_of(const TensorTable& table) {
        std::vector<std::string> names;
        for (const TensorEntry& tensor : table.tensors) {
            names.push_back(tensor.name);
        }
        return names;
    }
    // Turns the byte of a file round.
    static void damage(const std::string& path, std::uint64_t offset) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(offset));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(offset));
        file.put(static_cast<char>(~byte));
    }

    support::TempFolder folder_;
    // One transfer at a time: whatever keeps several under way waits until there is room.
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>(EngineOptions{.transfers_max = 1});
    FileSystem files_ = FileSystem::local();
};

TEST_F(SourceTest, AFormIsSeenByItsContent) {
    const std::vector<std::vector<std::byte>> data{pattern(10, 1), pattern(5000, 2)};
    save(folder_ / "model.bin", "t", data);
    const TensorTable table = inspect(engine_, folder_ / "model.bin");
    EXPECT_EQ(table.kind, TableKind::kSafetensors);
    EXPECT_THAT(table.files, ElementsAre(folder_ / "model.bin"));
    ASSERT_THAT(table.tensors, SizeIs(2));
    for (const TensorEntry& tensor : table.tensors) {
        const auto& wanted = data[tensor.name == "t0" ? 0 : 1];
        EXPECT_EQ(tensor.dtype, "U8");
        EXPECT_EQ(tensor.checksum, ChecksumKind::kXxh3);
        ASSERT_THAT(tensor.stretches, SizeIs(1));
        std::vector<std::byte> bytes(tensor.stretches[0].bytes);
        engine_->read(files_.open(table.files[0]), bytes, tensor.stretches[0].offset);
        EXPECT_EQ(bytes, wanted);
    }
    write(folder_ / "index", R"({"weight_map": {"t1": "model.bin"}})");
    EXPECT_EQ(inspect(engine_, folder_ / "index").kind, TableKind::kIndex);
    write(folder_ / "text", "hello");
    EXPECT_THAT(message_of([&] { static_cast<void>(inspect(engine_, folder_ / "text")); },
                           ErrorCode::kUnsupported),
                testing::AllOf(HasSubstr(folder_ / "text"), HasSubstr("it is text")));
}

TEST_F(SourceTest, AnIndexGivesWhatItNamesAndNothingElse) {
    save(folder_ / "a.safetensors", "t", {pattern(100, 1), pattern(200, 2)});
    save(folder_ / "b.safetensors", "u", {pattern(300, 3)});
    const std::string index = folder_ / std::string(format::kShardIndexName);
    write(index, R"({"weight_map": {"u0": "b.safetensors", "t1": "a.safetensors"}})");
    EXPECT_THAT(names_of(inspect(engine_, index)), ElementsAre("u0", "t1"));
    EXPECT_THAT(names_of(inspect(engine_, folder_.path())), ElementsAre("u0", "t1"));
    std::filesystem::create_directory(folder_ / "links");
    std::filesystem::create_symlink(index, folder_ / "links/model.index.json");
    const auto source = open_source(engine_, files_, folder_ / "links/model.index.json");
    std::vector<std::byte> u(300);
    std::vector<std::byte> t(200);
    const std::vector<TensorInto> wanted{{0, u}, {1, t}};
    source->read_tensors(wanted, {}, {});
    EXPECT_EQ(u, pattern(300, 3));
    EXPECT_EQ(t, pattern(200, 2));
    write(index, R"({"weight_map": {"t7": "a.safetensors"}})");
    EXPECT_THAT(message_of([&] { static_cast<void>(inspect(engine_, index)); }),
                testing::AllOf(HasSubstr("'t7'"), HasSubstr("a.safetensors"), HasSubstr(index)));
}

TEST_F(SourceTest, VerifyNamesAllThatIsDamaged) {
    const std::string path = folder_ / "model.safetensors";
    save(path, "t", {pattern(40 << 20, 1), pattern(100, 2), pattern(3000, 3)});
    const auto source = open_source(engine_, files_, path);
    std::uint64_t reported = 0;
    const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_EQ(total, source->bytes());
        reported = done;
        return true;
    };
    EXPECT_THAT(source->verify(progress).problems, SizeIs(0));
    EXPECT_EQ(reported, source->bytes());
    std::vector<std::pair<std::string, std::uint64_t>> places;
    for (const TensorEntry& tensor : source->tensors()) {
        places.emplace_back(tensor.name, tensor.stretches[0].offset + tensor.bytes - 1);
        damage(path, places.back().second);
    }
    const Verified found = source->verify({});
    ASSERT_THAT(found.problems, SizeIs(3));
    for (const auto& [name, offset] : places) {
        EXPECT_TRUE(std::any_of(
            found.problems.begin(), found.problems.end(),
            [&](const CheckpointProblem& p) { return p.tensor == name && p.offset <= offset; }))
            << name;
    }
}

TEST_F(SourceTest, VerifyGoesOnAfterWhatCannotBeRead) {
    const std::string path = folder_ / "model.safetensors";
    save(path, "t", {pattern(40 << 20, 1), pattern(20 << 20, 2), pattern(3000, 3)});
    const auto source = open_source(engine_, files_, path);
    const TensorStretch& second = source->tensors()[1].stretches[0];
    std::filesystem::resize_file(path, second.offset + 5);
    const Verified found = source->verify({});
    ASSERT_THAT(found.problems, SizeIs(2));
    EXPECT_EQ(found.problems[0].tensor, source->tensors()[1].name);
    EXPECT_EQ(found.problems[1].tensor, source->tensors()[2].name);
}

}  // namespace
}  // namespace penstock::state
