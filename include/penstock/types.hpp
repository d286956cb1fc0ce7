// SPDX-License-Identifier: Apache-2.0
// The small words that the whole API is spoken in.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

/// What a file is opened for.
enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

/// Whether I/O may bypass the page cache. `kAuto`: direct where the file system can, buffered where
/// it cannot, and `File::info()` says which and why. `kRequired`: an error where it cannot.
/// `kOff`: always through the page cache.
enum class DirectIo : std::uint8_t { kAuto, kRequired, kOff };

/// Classes of transfers on one device; a lower class gets at least 1/16 of the bytes while a higher
/// one has work. Inside a class **flows** take turns, a block each, and so share its bytes equally.
/// A flow is what one group of transfers (TransferOptions::group), one File or one call by path
/// asks for, first in, first out. All transfers of at most a block (EngineOptions::block_bytes) are
/// one flow, whose turn is the next: a small read waits for what is at the device, not for a queue.
enum class Priority : std::uint8_t { kUrgent = 0, kNormal = 1, kBackground = 2 };
inline constexpr std::size_t kPriorityCount = 3;

/// The mechanism that carries requests to the kernel.
enum class BackendKind : std::uint8_t { kAuto, kUring, kAio, kPosix };

/// Where a transfer is in its life.
enum class TransferStatus : std::uint8_t { kRunning, kDone, kFailed, kCancelled };

/// What a name in a folder stands for.
enum class FileKind : std::uint8_t { kFile, kFolder, kSymbolicLink, kOther };

/// One piece of a transfer: `bytes` bytes of memory at `memory`, at `offset` of file number `file`
/// of the transfer's files. Any offset, length (also 0) and address.
struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    void* memory = nullptr;
    std::uint32_t file = 0;
};

}  // namespace penstock
