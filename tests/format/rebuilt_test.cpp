// SPDX-License-Identifier: Apache-2.0
// Objects of torch that are made of others: what a damaged or hostile pickle makes of them is an
// error, or a state that is written and read again as it is.
#include "format/rebuilt.hpp"

#include "format/grammar.hpp"
#include "format/pickle/pickle.hpp"
#include "format/pickle/pickle_names.hpp"
#include "format/support.hpp"
#include "format/unread.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace penstock::format {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using namespace test;  // NOLINT(google-build-using-namespace)

std::string corpus(const std::string& name) {
    std::ifstream in(PENSTOCK_SOURCE_DIR "/fuzz/corpus/pickle/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// Whether it was read whole. What was is written; what has an object that is not read is refused.
bool holds(const std::string& pickle, const std::string& what) {
    const auto read = read_pickle(bytes_of(pickle));
    if (!read) {
        return false;
    }
    const auto text = write_pickle(read->tree);
    const std::string unread = why_not_whole(read->tree);
    EXPECT_EQ(text.has_value(), unread.empty()) << what << ": " << why(text) << "; " << unread;
    return unread.empty();
}

TEST(Rebuilt, EveryFlippedByteIsAnErrorOrAStateThatCanBeSaved) {
    int refused = 0;
    for (const char* name : {"ok_sparse_coo", "ok_sparse_bsr", "ok_quantized", "ok_quint4x2",
                             "ok_nested", "ok_attributes", "ok_storage", "ok_meta", "ok_bits",
                             "ok_constants", "ok_layouts", "ok_python2", "ok_jagged"}) {
        const std::string good = corpus(name);
        ASSERT_TRUE(holds(good, name)) << name;
        for (std::size_t at = 0; at < good.size(); ++at) {
            for (const int value : {1, 4, 0x10, 0x80, 0xFF}) {
                std::string damaged = good;
                damaged[at] = static_cast<char>(damaged[at] ^ value);
                refused += holds(damaged, std::string(name) + " at " + std::to_string(at)) ? 0 : 1;
            }
        }
    }
    EXPECT_GT(refused, 3000);
}

// A state of a storage "a" of 4 floats, and of `value`, which may name it.
std::string state_of(const std::string& value) {
    return "\x80\x02}X\x01\0\0\0v"s + value + "s.";
}
std::string storage_of(const std::string& type, int elements) {
    return "(X\x07\0\0\0storagectorch\n"s + type + "\nX\x01\0\0\0aX\x03\0\0\0cpuK"s +
           static_cast<char>(elements) + "tQ";
}
const std::string kNoHooks = "ccollections\nOrderedDict\n)R";

TEST(Rebuilt, PartsThatDoNotFitAreNoTensor) {
    const std::string layout =
        "ctorch.serialization\n_get_layout\nX\x10\0\0\0torch.sparse_coo\x85R"s;
    const std::string quantized = "ctorch._utils\n_rebuild_qtensor\n(";
    const std::string affine = "(ctorch\nper_tensor_affine\nG?\xf0\0\0\0\0\0\0K\0t"s;
    for (const std::string& value : {
             "ctorch._utils\n_rebuild_sparse_tensor\n"s + layout + "(K\x01K\x02K\x03t\x86R",
             quantized + storage_of("QInt8Storage", 4) + "K\0K\x05\x85K\x01\x85"s + affine +
                 "\x89" + kNoHooks + "tR",
             quantized + storage_of("FloatStorage", 4) + "K\0K\x04\x85K\x01\x85"s + affine +
                 "\x89" + kNoHooks + "tR",
             quantized + storage_of("QInt8Storage", 4) + "K\0K\x04\x85K\x01\x85"s +
                 "(ctorch\nper_channel_affine\nG?\xf0\0\0\0\0\0\0K\0t"s + "\x89" + kNoHooks + "tR",
             "ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\nK\x02\x85)\x89tR"s,
             "ctorch._utils\n_rebuild_nested_tensor\n(NNNNtR"s,
         }) {
        const auto read = read_pickle(bytes_of(state_of(value)));
        if (read) {  // as something that is not read, and certainly as no tensor
            for (const Value& one : read->tree.values) {
                EXPECT_NE(one.kind, ValueKind::kRebuilt);
            }
        }
    }
    EXPECT_TRUE(read_pickle(
        bytes_of(state_of(quantized + storage_of("QInt8Storage", 4) + "K\0K\x04\x85K\x01\x85"s +
                          affine + "\x89" + kNoHooks + "tR"))));
}

TEST(Rebuilt, ItemsAreNotAppendedToOne) {
    const std::string bare = storage_of("FloatStorage", 4);
    EXPECT_TRUE(read_pickle(bytes_of(state_of(bare))));
    const std::string quantized = corpus("ok_quantized");
    const std::size_t end = quantized.rfind('R');
    ASSERT_NE(end, std::string::npos);
    EXPECT_FALSE(read_pickle(bytes_of(quantized.substr(0, end + 1) + "K\x01"
                                                                     "as.")));
}

TEST(Rebuilt, ValuesOfTheTreeAreChecked) {
    ValueTree tree;
    Value value;
    value.kind = ValueKind::kRebuilt;
    value.text = "sparse_coo";
    EXPECT_THAT(wrong_with(tree, value), HasSubstr("too few parts"));
    value.text = "other";
    EXPECT_THAT(wrong_with(tree, value), HasSubstr("not read"));
    EXPECT_EQ(torch_constant("float32"), Constant::kDtype);
    EXPECT_EQ(torch_constant("cuda.sparse.HalfTensor"), Constant::kClass);
    EXPECT_EQ(torch_constant("cuda.Tensor"), Constant::kNone);
    EXPECT_EQ(torch_constant("load"), Constant::kNone);
    EXPECT_TRUE(is_name_read("torch.cuda", "FloatStorage"));
    EXPECT_FALSE(is_name_read("torch", "load"));
}

}  // namespace
}  // namespace penstock::format
