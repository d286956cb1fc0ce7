// SPDX-License-Identifier: Apache-2.0
#include "report/message.hpp"

namespace penstock::report {

std::string message_of(const Error& error) {
    std::string text = error.what();
    const std::string suffix = ": " + error.code().message();
    if (text.ends_with(suffix)) {
        text.resize(text.size() - suffix.size());
    }
    return text;
}

}  // namespace penstock::report
