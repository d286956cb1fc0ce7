// SPDX-License-Identifier: Apache-2.0
// `instructions --what=1m|4k|blocking --path=FILE --count=N`: N reads, of 1 MiB at depth 16, of 4
// KiB at random and depth 128, or of 4 KiB one after the other on the caller's thread.
#pragma once

#include "common.hpp"

namespace penstock::benchmarks {

void instructions(const Arguments& arguments, Figures& figures);

}  // namespace penstock::benchmarks
