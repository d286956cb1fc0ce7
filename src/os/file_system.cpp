// SPDX-License-Identifier: Apache-2.0
#include "os/file_system.hpp"

namespace penstock::os {

namespace {

base::Failure lacks(const char* operation, const std::string& path) {
    return base::fail(
        base::error(ErrorCode::kUnsupported, operation, "this file system does not have it", path));
}

}  // namespace

base::Result<void> FileSystem::symbolic_link(const std::string& /*target*/,
                                             const std::string& path) {
    return lacks("symbolic_link", path);
}

base::Result<FileStatus> FileSystem::status(const std::string& path) {
    return lacks("status", path);
}

base::Result<std::string> FileSystem::resolve(const std::string& path) {
    return lacks("resolve", path);
}

base::Result<void> FileSystem::take_attributes(const std::string& from, File& /*to*/) {
    return lacks("take_attributes", from);
}

base::Result<void> FileSystem::set_modified(const std::string& path,
                                            std::int64_t /*since_1970_ns*/) {
    return lacks("set_modified", path);
}

}  // namespace penstock::os
