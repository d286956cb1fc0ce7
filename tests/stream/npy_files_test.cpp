// SPDX-License-Identifier: Apache-2.0
// Many .npy files as one array, by an engine that has few transfers.
#include "support/temp_folder.hpp"

#include <penstock/penstock.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace penstock {
namespace {

TEST(NpyFilesTest, OneTransferIsEnoughForAnyNumberOfFiles) {
    const support::TempFolder folder;
    std::vector<std::string> paths;
    for (unsigned i = 0; i < 2100; ++i) {
        paths.push_back(folder / (std::to_string(i) + ".npy"));
        std::ofstream file(paths.back(), std::ios::binary);
        file << "\x93NUMPY\x01" << '\0' << '\x3a' << '\0'
             << "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
        file << static_cast<char>(i % 256) << static_cast<char>(i / 256) << 'x';
    }
    Engine engine({.transfers_max = 1});
    const NpyHeader header = read_npy_header(engine, paths.front());
    for (const std::size_t files : {std::size_t{1}, std::size_t{1024}, paths.size()}) {
        std::vector<std::byte> out(files * 3);
        ASSERT_EQ(read_npy(engine, std::span(paths).first(files), header, Memory(out)), out.size());
        for (std::size_t i = 0; i < files; ++i) {
            ASSERT_EQ(static_cast<std::size_t>(out[3 * i]), i % 256);
            ASSERT_EQ(static_cast<std::size_t>(out[3 * i + 1]), i / 256);
        }
    }
}

}  // namespace
}  // namespace penstock
