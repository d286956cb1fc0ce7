// SPDX-License-Identifier: Apache-2.0
#include "base/planted.hpp"

#ifdef PENSTOCK_PLANTED

#include "base/environment.hpp"

#include <string>

namespace penstock::base {

bool planted(std::string_view defect) {
    static const std::string on = environment_text("PLANTED").value_or("");
    return on == defect;
}

}  // namespace penstock::base

#endif
