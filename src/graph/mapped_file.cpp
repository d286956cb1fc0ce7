// SPDX-License-Identifier: Apache-2.0
#include "graph/mapped_file.hpp"

#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace penstock::graph {

base::Result<MappedFile> MappedFile::open(const std::string& path) {
    const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
        return base::fail(base::system_error(errno, "open", path));
    }
    if (!S_ISREG(status.st_mode)) {
        return base::fail(base::error(ErrorCode::kInvalidArgument, "mmap",
                                      "this is no regular file; give a file", path));
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0) {
        return MappedFile({});
    }
    void* const begin = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (begin == MAP_FAILED) {
        return base::fail(base::system_error(errno, "mmap", path));
    }
    MappedFile mapped({static_cast<const std::byte*>(begin), bytes});
    mapped.expect_all(false);
    return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) {
        ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
}

void MappedFile::expect_all(bool now) const {
    if (!bytes_.empty()) {
        // A hint, whose failure changes nothing but the speed.
        static_cast<void>(::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(),
                                    now ? MADV_SEQUENTIAL : MADV_RANDOM));
    }
}

}  // namespace penstock::graph
