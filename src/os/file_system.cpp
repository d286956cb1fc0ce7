// SPDX-License-Identifier: Apache-2.0
#include "os/file_system.hpp"

#include <fmt/format.h>

#include <cerrno>

namespace penstock::os {

namespace {

base::Failure lacks(const char* operation, const std::string& path) {
    return base::fail(
        base::error(ErrorCode::kUnsupported, operation, "this file system does not have it", path));
}

}  // namespace

base::Result<void> Folder::take_attributes(const std::string& from) {
    return lacks("take_attributes", from);
}

base::Result<std::unique_ptr<FileLock>> Folder::lock() {
    return lacks("lock folder", path_);
}

base::Result<void> FileSystem::exchange(const std::string& one, const std::string& /*other*/) {
    return base::fail(base::system_error(ENOSYS, "exchange", one));
}

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

base::Result<std::shared_ptr<Folder>> FileSystem::open_folder(const std::string& path) {
    return lacks("open_folder", path);
}

base::Result<void> FileSystem::set_modified(const std::string& path,
                                            std::int64_t /*since_1970_ns*/) {
    return lacks("set_modified", path);
}

base::Result<void> check_name(const char* operation, const std::string& folder,
                              const std::string& name) {
    if (!name.empty() && name != "." && name != ".." &&
        name.find_first_of(std::string_view("/\0", 2)) == std::string::npos) {
        return {};
    }
    return base::fail(base::error(
        ErrorCode::kInvalidArgument, operation,
        fmt::format("'{}' is no name in a folder; give one without '/', and neither '.' nor '..'",
                    name.substr(0, name.find('\0'))),
        folder));
}

std::string path_in(const std::string& folder, const std::string& name) {
    return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

}  // namespace penstock::os
