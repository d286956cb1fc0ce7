// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .pt, zip or legacy: an error, or a state whose storages lie in the file and whose
// tensors lie in their storages.
#include "format/torch_file.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    using namespace penstock::format;  // NOLINT(google-build-using-namespace)
    MemorySource source(std::as_bytes(std::span(data, bytes)));
    const auto file = torch_file::read(source, true);
    if (!file) {
        return 0;
    }
    for (std::size_t i = 0; i < file->storages.size(); ++i) {
        const zip::Record& r = file->storages[i];
        if (r.offset > bytes || r.bytes > bytes - r.offset ||
            r.bytes != file->tree.storages[i].bytes) {
            std::abort();
        }
    }
    for (const TensorValue& t : file->tree.tensors) {
        if (!fits(t, file->tree.storages[t.storage].bytes)) {
            std::abort();
        }
    }
    return 0;
}
