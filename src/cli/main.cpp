// SPDX-License-Identifier: Apache-2.0
#include "cli/run.hpp"

#include <string>
#include <vector>

int main(int argc, char** argv) {
    const std::vector<std::string> args(argv + 1, argv + argc);
    return penstock::cli::run(args);
}
