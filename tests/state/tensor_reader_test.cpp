// SPDX-License-Identifier: Apache-2.0
// What loads read of an index that others save meanwhile. Loads next to a writer that never stops,
// and all else that a load does, are in python/tests.
#include "state/tensor_reader.hpp"

#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "support/temp_folder.hpp"
#include "support/test_engine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace penstock::state {
namespace {

using support::pattern;
using testing::HasSubstr;

constexpr std::size_t kBytes = 5000;
constexpr std::size_t kTensors = 4;

std::vector<std::size_t> all(std::span<const std::string_view> names) {
    std::vector<std::size_t> out(names.size());
    std::iota(out.begin(), out.end(), std::size_t{0});
    return out;
}

class TensorReaderTest : public testing::Test {
protected:
    TensorReaderTest() { save(); }

    // Tensors of one seed, each in a shard of its own. Each other save has the same names of
    // shards; those of the one between are free then.
    void save() {
        ++seed_;
        std::string map;
        for (std::size_t i = 0; i < kTensors; ++i) {
            const std::string name = shard(i, seed_);
            map += (i == 0 ? "" : ", ") + ("\"t" + std::to_string(i)) + "\": \"" + name + "\"";
            const std::vector<std::byte> data = pattern(kBytes, seed_);
            format::safetensors::Tensor t;
            t.name = "t" + std::to_string(i);
            t.shape = {kBytes};
            FileImage image = FileImage::safetensors({t}, {}, {data});
            save_file(*engine_, files_, folder_ / name, image, {});
        }
        std::ofstream(folder_ / "new") << "{\"weight_map\": {" << map << "}}";
        std::filesystem::rename(folder_ / "new", index_);
        for (std::size_t i = 0; i < kTensors; ++i) {
            std::filesystem::remove(folder_ / shard(i, seed_ + 1));
        }
    }
    static std::string shard(std::size_t i, std::uint64_t seed) {
        return std::to_string(i) + (seed % 2 == 0 ? "-even" : "-odd") + ".safetensors";
    }
    // The seeds of what is read.
    [[nodiscard]] std::set<std::uint64_t> read(const TensorReader& reader) const {
        std::vector<std::vector<std::byte>> memory(reader.items().size(),
                                                   std::vector<std::byte>(kBytes));
        std::vector<TensorReader::ItemRange> parts;
        std::vector<Memory> into;
        for (std::size_t i = 0; i < memory.size(); ++i) {
            parts.push_back({i, 0, kBytes});
            into.emplace_back(std::span(memory[i]));
        }
        reader.read(parts, into, {}, {});
        std::set<std::uint64_t> out;
        for (const auto& data : memory) {
            for (std::uint64_t seed = 1; seed <= seed_; ++seed) {
                if (data == pattern(kBytes, seed)) {
                    out.insert(seed);
                }
            }
        }
        return out;
    }

    support::TempFolder folder_;
    std::string index_ = folder_ / "model.safetensors.index.json";
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    FileSystem files_ = FileSystem::local();
    std::uint64_t seed_ = 0;
};

TEST_F(TensorReaderTest, ShardsAreOfOneSaveWhateverComesWhileTheyAreOpened) {
    for (int saves = 1; saves <= 3; ++saves) {
        int left = saves;
        const TensorReader reader(engine_, files_, index_, [&](auto names) {
            for (; left > 0; --left) {
                save();
            }
            return all(names);
        });
        EXPECT_EQ(left, 0);
        EXPECT_TRUE(reader.is_still(true));
        const std::set<std::uint64_t> newest = {seed_};
        EXPECT_EQ(read(reader), newest);
        save();
        save();
        EXPECT_TRUE(reader.is_still(false));
        EXPECT_FALSE(reader.is_still(true));
        EXPECT_EQ(read(reader), newest);  // of those that are open
    }
}

TEST_F(TensorReaderTest, AnIndexThatIsSavedAgainAndAgainIsAnError) {
    try {
        const TensorReader reader(engine_, files_, index_, [&](auto names) {
            save();
            return all(names);
        });
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.reason(), ErrorCode::kDamaged);
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(index_), HasSubstr("saved again each")));
    }
}

TEST_F(TensorReaderTest, ShardsThatCannotAllBeOpenAreOpenedWhenTheyAreRead) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const std::filesystem::directory_iterator open_now("/proc/self/fd");
    rlimit few = before;
    few.rlim_cur =
        static_cast<rlim_t>(std::distance(begin(open_now), end(open_now))) + 4 * kTensors - 2;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const TensorReader reader(engine_, files_, index_, {});
    EXPECT_EQ(read(reader), std::set<std::uint64_t>{seed_});
    EXPECT_TRUE(reader.is_still(false));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    save();
    save();
    EXPECT_FALSE(reader.is_still(false));
}

TEST_F(TensorReaderTest, OnlyShardsOfWhatIsChosenAreOpened) {
    std::filesystem::remove(folder_ / shard(0, seed_));
    const TensorReader reader(engine_, files_, index_, [](auto /*names*/) {
        return std::vector<std::size_t>{2, 1};
    });
    ASSERT_EQ(reader.items().size(), 2U);
    EXPECT_EQ(reader.tensor(0).name, "t2");
    EXPECT_EQ(reader.shard(1), folder_ / shard(1, seed_));
    EXPECT_EQ(read(reader), std::set<std::uint64_t>{seed_});
}

}  // namespace
}  // namespace penstock::state
