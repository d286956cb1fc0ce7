// SPDX-License-Identifier: Apache-2.0
// Checkpoints made by hand, so that what reads them is tested apart from what writes them.
#pragma once

#include "checkpoint/manifest.hpp"
#include "format/support.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace penstock::checkpoint::test {

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

}  // namespace penstock::checkpoint::test
