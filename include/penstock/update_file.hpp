// SPDX-License-Identifier: Apache-2.0
// New bytes for tensors of a saved file, in place: the rest of the file is not written.
//
//     const auto engine = std::make_shared<penstock::Engine>();
//     const penstock::StateTensor bias{.name = "layer.0.bias", .dtype = "F32", .shape = {4096},
//                                      .data = bytes};
//     penstock::update_file(engine, "model.safetensors", {&bias, 1});
//
// The new bytes, and the checksums that cover them, are first made durable in a log next to the
// file
// (`model.safetensors.penstock-update`), then written into the file, which is synced, and then the
// log is removed. After a crash at any point all that reads the file through this library gives all
// of the old tensors or all of the new ones: from the file, or from the file and the log. The next
// update_file() of the file finishes what was interrupted. Readers that do not know the log, such
// as torch.load() and safetensors, may meet a part of the update between a crash and that call.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

struct UpdateFileOptions {
    Progress progress = {};  ///< bytes of the tensors, while they go to the log
    /// As in SaveOptions.
    std::vector<StreamHandle> streams = {};
};

/// Writes tensors into a `.pt`, a `.safetensors` or an index of shards of any writer, recognised by
/// its content. A tensor has the name that inspect() gives, and the type and shape that it has in
/// the file; its data is row-major, of the host or of a GPU, and does not change during the call.
/// Checksums in the file are kept right: those of Penstock, and the CRC-32 of a zip. A call for an
/// index is one update of all its shards. Without tensors the call finishes an interrupted update,
/// and does nothing else.
///
/// A symbolic link is followed. One process at a time updates a file; another waits for some
/// seconds. If the call throws, the old tensors are there; if what failed was to write them into
/// the file, after the log was complete, the new ones are, and the message says so.
///
/// Throws Error, before a byte is written: kInvalidArgument for an unknown name, another type or
/// shape, a tensor that shares its memory with others of the state, a file with several hard links
/// or of a CheckpointStore, and for a log next to the file that does not fit it, which is left;
/// kUnsupported for a tensor that is a part of its storage; kDamaged for a damaged file or log;
/// kChanged for a file that another program writes to, replaces or links meanwhile, which stays (if
/// it is replaced while it is written, too); EACCES for a file that is read-only; ENAMETOOLONG if
/// the name of its log is too long; EWOULDBLOCK while another process updates it; ENOSPC.
/// Blocks; thread-safe.
PENSTOCK_API void update_file(const std::shared_ptr<Engine>& engine, const std::string& path,
                              std::span<const StateTensor> tensors,
                              const UpdateFileOptions& options = {},
                              const FileSystem& files = FileSystem::local());

}  // namespace penstock
