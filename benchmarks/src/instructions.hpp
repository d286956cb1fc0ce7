// SPDX-License-Identifier: Apache-2.0
// `instructions --what=1m|4k|blocking|rows --path=FILE --count=N`: N reads, of 1 MiB at depth 16,
// of 4 KiB at random and depth 128, of 4 KiB one after the other on the caller's thread, or of rows
// of 4 KiB as a gather asks for them.
#pragma once

#include "common.hpp"

namespace penstock::benchmarks {

void instructions(const Arguments& arguments, Figures& figures);

}  // namespace penstock::benchmarks
