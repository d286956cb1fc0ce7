// SPDX-License-Identifier: Apache-2.0
// The adversarial corpus of the fuzzers of manifest and structure (fuzz/corpus), also where no
// fuzzer is built: `ok_*` is read, anything else is refused as damaged.
#include "base/text/hex.hpp"
#include "state/structure/structure.hpp"
#include "store/manifest/manifest.hpp"
#include "store/support.hpp"
#include "stream/checksum.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

namespace penstock::store {
namespace {

void check(const std::string& name, std::size_t least,
           const std::function<void(const std::string&)>& read) {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/fuzz/corpus/" + name)) {
        const std::string file = entry.path().filename().string();
        const std::string text = test::read_text(entry.path().string());
        std::string wrong;
        try {
            read(text);
        } catch (const Error& error) {
            wrong = error.what();
            EXPECT_EQ(error.reason(), ErrorCode::kDamaged) << file;
        }
        EXPECT_EQ(file.starts_with("ok_"), wrong.empty()) << file << ": " << wrong;
        ++count;
    }
    EXPECT_GE(count, least);
}

TEST(CheckpointCorpus, Manifest) {
    check("manifest", 40, [](std::string text) {
        // With the checksum that it should have: that alone must not be what refuses it.
        if (const std::size_t end = text.rfind(",\"checksum\":\""); end != std::string::npos) {
            text.resize(end);
        }
        std::string sum;
        base::append_hex(sum,
                         stream::content_hash(std::as_bytes(std::span(text.data(), text.size()))));
        (void)parse_manifest(text + ",\"checksum\":\"" + sum + "\"}\n", "corpus");
    });
}

TEST(CheckpointCorpus, Structure) {
    const std::vector<CheckpointTensor> tensors{{"w", "F32", {4, 4}, 64, 1},
                                                {"b", "BF16", {3}, 6, 1},
                                                {"w.storage", "U8", {64}, 64, 1},
                                                {"e", "I64", {0}, 0, 1},
                                                {"h", "F4", {2, 4}, 4, 1}};
    check("structure", 40,
          [&](const std::string& text) { (void)state::skeleton_of(text, tensors); });
}

}  // namespace
}  // namespace penstock::store
