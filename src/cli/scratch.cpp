// SPDX-License-Identifier: Apache-2.0
#include "cli/scratch.hpp"

#include "report/interrupt.hpp"

#include <memory>
#include <string>

namespace penstock::cli {

Target make_target(probe::TargetRequest request, report::Progress& progress) {
    request.removal = [](const std::string& path) {
        return std::make_shared<report::RemovedBySignal>(path);
    };
    return probe::make_target(request, progress);
}

}  // namespace penstock::cli
