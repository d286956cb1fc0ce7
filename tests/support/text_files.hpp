// SPDX-License-Identifier: Apache-2.0
// Small files as texts, and the Error that a call throws.
#pragma once

#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

namespace penstock::test {

/// The Error that `call` throws.
inline Error error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::kClosed, 0, "", "", kNoOffset, "nothing was thrown"};
}

std::string read_text(const std::string& path);
void write_text(const std::string& path, std::string_view text);

}  // namespace penstock::test
