// SPDX-License-Identifier: Apache-2.0
#include "state/finding.hpp"

#include <cerrno>

namespace penstock::state {

bool is_finding(const Error& error) {
    switch (error.reason()) {
        case ErrorCode::kDamaged:
        case ErrorCode::kEndOfFile:
        case ErrorCode::kUnsupported:      // a pipe in its place
        case ErrorCode::kInvalidArgument:  // an index that is none
            return true;
        case ErrorCode::kSystem:
            break;
        default:
            return false;
    }
    switch (error.system_errno()) {
        case ENOENT:
        case ENOTDIR:
        case EISDIR:
        case ELOOP:
        // The bytes cannot be had back.
        case EIO:
        case EREMOTEIO:
        case ENODATA:
        case EILSEQ:
        case EBADMSG:
        case EUCLEAN:
            return true;
        default:
            return false;
    }
}

}  // namespace penstock::state
