// SPDX-License-Identifier: Apache-2.0
// Any bytes as a pickle: an error, or a state that is written and read again as it is; with a
// place-holder in it, one that is refused.
#include "format/pickle/pickle.hpp"
#include "format/unread.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    using namespace penstock::format;  // NOLINT(google-build-using-namespace)
    const auto read = read_pickle(std::as_bytes(std::span(data, bytes)));
    if (!read) {
        return 0;
    }
    // A tree that can be read can be written, and read again.
    const auto text = write_pickle(read->tree);
    if (!unread_in(read->tree, 1).empty()) {
        if (text) {
            std::abort();
        }
        return 0;
    }
    if (!text) {
        std::abort();
    }
    const auto again = read_pickle(std::as_bytes(std::span(*text)));
    if (!again || !same(read->tree, again->tree)) {
        std::abort();
    }
    return 0;
}
