// SPDX-License-Identifier: Apache-2.0
#include "support/text_files.hpp"

#include <fstream>
#include <iterator>

namespace penstock::test {

std::string read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::string& path, std::string_view text) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    EXPECT_TRUE(out) << path;
}

}  // namespace penstock::test
