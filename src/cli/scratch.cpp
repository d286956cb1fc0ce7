// SPDX-License-Identifier: Apache-2.0
#include "cli/scratch.hpp"

#include "cli/interrupt.hpp"

#include <memory>
#include <string>

namespace penstock::cli {

Target make_target(probe::TargetRequest request, Progress& progress) {
    request.removal = [](const std::string& path) {
        return std::make_shared<RemovedBySignal>(path);
    };
    return probe::make_target(request, progress);
}

}  // namespace penstock::cli
