// SPDX-License-Identifier: Apache-2.0
// The adversarial corpus of the fuzzers (fuzz/corpus), also where no fuzzer is built: `ok_*` is
// read, `unread_*` is read with place-holders in it, anything else is refused. What else may be
// said of a file, its fuzzer says.
#include "format/numpy/npy.hpp"
#include "format/pickle/pickle.hpp"
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "format/support.hpp"
#include "format/torch_file.hpp"
#include "format/unread.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

namespace penstock::format {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

using Reader = std::function<std::string(std::span<const std::byte>)>;  // empty: it was read

template <typename T>
std::string wrong(const base::Result<T>& result) {
    return result ? std::string() : result.error().describe();
}

constexpr const char* kUnread = "not read: ";

std::string wrong(const ValueTree& tree) {
    const std::string why = why_not_whole(tree);
    return why.empty() ? why : kUnread + why;
}

void check(const std::string& name, const Reader& reader, std::size_t least) {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/fuzz/corpus/" + name)) {
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string text((std::istreambuf_iterator<char>(in)), {});
        const std::string file = entry.path().filename().string();
        const std::string why = reader(bytes_of(text));
        EXPECT_EQ(file.starts_with("ok_"), why.empty()) << file << ": " << why;
        EXPECT_EQ(file.starts_with("unread_"), why.starts_with(kUnread)) << file << ": " << why;
        ++count;
    }
    EXPECT_GE(count, least);
}

TEST(FormatCorpus, Safetensors) {
    const auto reader = [](std::span<const std::byte> bytes) {
        const std::string as_file = wrong(safetensors::read_header(bytes, bytes.size()));
        return as_file.empty() ? as_file : wrong(parse_shard_index(text_of(bytes)));
    };
    check("safetensors", reader, 20);
}

TEST(FormatCorpus, TorchFile) {
    const auto reader = [](std::span<const std::byte> bytes) {
        MemorySource source(bytes);
        const auto file = torch_file::read(source, true);
        return file ? wrong(file->tree) : wrong(file);
    };
    check("torch_file", reader, 12);
}

TEST(FormatCorpus, Pickle) {
    const auto reader = [](std::span<const std::byte> bytes) {
        const auto read = read_pickle(bytes);
        return read ? wrong(read->tree) : wrong(read);
    };
    check("pickle", reader, 20);
}

TEST(FormatCorpus, Npy) {
    check(
        "npy",
        [](std::span<const std::byte> bytes) { return wrong(npy::read_header(bytes, true)); }, 20);
}

}  // namespace
}  // namespace penstock::format
