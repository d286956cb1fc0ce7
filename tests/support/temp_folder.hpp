// SPDX-License-Identifier: Apache-2.0
// A folder of its own for a test, removed with all that is in it.
#pragma once

#include <string>

namespace penstock::support {

class TempFolder {
public:
    /// Below `parent`, or below $TMPDIR (else /tmp) when that is empty. Throws when it cannot be
    /// made.
    explicit TempFolder(const std::string& parent = {});
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    ~TempFolder();

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string operator/(const std::string& name) const {
        return path_ + "/" + name;
    }

private:
    std::string path_;
};

}  // namespace penstock::support
