// SPDX-License-Identifier: Apache-2.0
// libcufile.so.0, loaded at run time, once a process: a machine without it is an ordinary answer
// with its reason. Penstock writes no cufile.json and sets no environment variable for it. What
// cuFile is told is told by its own calls, before it opens: no compatibility mode, which is a
// bounce that nobody sees.
#pragma once

#include "base/result.hpp"
#include "device/cufile/cufile_abi.hpp"
#include "device/cufile/cufile_conditions.hpp"

#include <cstdint>
#include <string>

namespace penstock::device {

/// The calls of a libcufile whose driver is open. Lives until the process ends, as the driver does.
/// Thread-safe, as the calls are.
struct CuFileLibrary {
#define PENSTOCK_CUFILE_MEMBER(name, symbol, ...) cufile::name##_type* name = nullptr;
    PENSTOCK_CUFILE_CALLS(PENSTOCK_CUFILE_MEMBER)
    PENSTOCK_CUFILE_OPTIONAL_CALLS(PENSTOCK_CUFILE_MEMBER)  // null where the library lacks it
#undef PENSTOCK_CUFILE_MEMBER

    int version = 0;      ///< 1140 is 1.14; 0: it does not say
    std::string library;  ///< the file
};

/// Loads and opens it at the first call. `way`: one that cufile_conditions() found, never kNone,
/// for opening it elsewhere may not return. kUnsupported, with the reason and what to do, where it
/// is not installed, does not open, or keeps its compatibility mode. Success and failure are both
/// kept. Blocks; a context of CUDA is current. Thread-safe.
[[nodiscard]] base::Result<const CuFileLibrary*> cufile_library(CuFileWay way);

/// Where cufile_library() has had success; else nullptr. Opens nothing.
[[nodiscard]] const CuFileLibrary* loaded_cufile() noexcept;

/// A call of libcufile is under way while this lives. The end of the process waits for those, and
/// allows no more: libcufile ends itself there, whatever it is doing.
class CuFileCall {
public:
    CuFileCall() noexcept;
    CuFileCall(const CuFileCall&) = delete;
    CuFileCall& operator=(const CuFileCall&) = delete;
    ~CuFileCall();
    [[nodiscard]] bool allowed() const { return allowed_; }

private:
    bool allowed_;
};

/// "CU_FILE_DIO_NOT_SET (5020)", or the words for an errno.
[[nodiscard]] std::string cufile_error_text(std::int64_t error);
[[nodiscard]] std::string cufile_error_text(const cufile::CUfileError_t& error);

/// "1.14" of 1140.
[[nodiscard]] std::string cufile_version_text(int version);

}  // namespace penstock::device
