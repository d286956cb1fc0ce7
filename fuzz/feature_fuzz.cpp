// SPDX-License-Identifier: Apache-2.0
// Any bytes as the header of a feature file: a Directory whose tables lie in their parts, or an
// error. The checksums are made right, for an attacker can make them, too.
#include "features/files/feature_layout.hpp"
#include "stream/checksum.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace penstock::features;
    const auto bytes = std::as_bytes(std::span(data, size));
    static_cast<void>(decode_preamble(bytes, size));
    static_cast<void>(decode_part(bytes, size));
    const Preamble preamble{.file_bytes = kFileBytesMax,
                            .directory_offset = std::uint64_t{1} << 40,
                            .directory_bytes = size,
                            .directory_sum = penstock::stream::content_hash(bytes),
                            .id = 1};
    const auto directory = decode_directory(bytes, preamble);
    if (!directory) {
        return 0;
    }
    for (const Table& table : directory->tables) {
        for (std::uint32_t part = 0; part < directory->parts.size(); ++part) {
            const std::uint64_t all = bytes_in_part(table, directory->parts.size(), part);
            if (table.bases[part] + all > directory->parts[part].data_end) {
                std::abort();
            }
        }
    }
    return 0;
}
