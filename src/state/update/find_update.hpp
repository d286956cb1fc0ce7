// SPDX-License-Identifier: Apache-2.0
// The log of an update that lies next to a file, as every reader of the file looks for it: an
// update that did not come to its end, or has not come to it yet. A reader takes the new bytes from
// the log, and writes nothing.
//
// A log belongs to a file if the file is as the update may have left it: its size, the bytes around
// its tensors (with the new checksums put over them), and the witnesses, each of which is one
// sector without the update or with it. A log that does not fit is of another file, or of another
// content, and says nothing of this one.
#pragma once

#include "format/byte_source.hpp"
#include "state/update/update_log.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::state {

/// A log that is open. What it says is in effect, whatever becomes of its name.
struct OpenUpdate {
    UpdateLog log;
    File file;
    std::string path;

    /// The range that begins at `offset` of the file and has `bytes`, or nullptr.
    [[nodiscard]] const UpdateLog::Range* range(std::uint64_t offset, std::uint64_t bytes) const;
    /// The one whose new bytes begin at byte `at` of the log, which there is.
    [[nodiscard]] const UpdateLog::Range* range_at(std::uint64_t at) const;
    [[nodiscard]] std::span<const std::uint64_t> sums(const UpdateLog::Range& range) const;
};
using OpenUpdatePtr = std::shared_ptr<const OpenUpdate>;

/// The bytes of a file with the patches of a log over them.
class PatchedBytes final : public format::ByteSource {
public:
    /// Both outlive it.
    PatchedBytes(format::ByteSource& source, std::span<const UpdateLog::Patch> patches)
        : source_(source), patches_(patches) {}
    [[nodiscard]] std::uint64_t size() const override { return source_.size(); }
    [[nodiscard]] format::Result<void> read(std::uint64_t offset,
                                            std::span<std::byte> into) override;
    [[nodiscard]] format::Result<void> read_many(std::span<const format::ByteRead> reads) override;

private:
    void put_over(std::uint64_t offset, std::span<std::byte> into) const;

    format::ByteSource& source_;
    std::span<const UpdateLog::Patch> patches_;
};

/// Sums the bytes of a file before `head_end` and from `tail_begin` on.
[[nodiscard]] std::uint64_t structure_sum(format::ByteSource& file, std::uint64_t head_end,
                                          std::uint64_t tail_begin);

enum class UpdateFound : std::uint8_t {
    kNone,
    kPending,  ///< it fits, and is valid: the file is to be read with it
    kBegun,    ///< it fits, and the log that would make it valid is not there: it says nothing
    kForeign,  ///< it does not fit, or is no log: it says nothing
    kDamaged,  ///< it is a log that was changed: whether the file is whole cannot be known
};

struct FoundUpdate {
    UpdateFound found = UpdateFound::kNone;
    OpenUpdatePtr update;  ///< of kPending and kBegun
    std::string path;      ///< of the log
    std::string why;       ///< of kForeign and kDamaged
};

/// `path`: of the file, without a symbolic link at its end. Throws Error of the system.
[[nodiscard]] FoundUpdate find_update(Engine& engine, const FileSystem& files,
                                      const std::string& path, const File& file);

/// Opens what may be a log, and parses its head; `update` is there if it is one.
[[nodiscard]] FoundUpdate open_update(Engine& engine, const FileSystem& files,
                                      const std::string& path);

/// Throws kDamaged for a log that was damaged.
void refuse_damaged(const FoundUpdate& found, const std::string& path);
/// Says what is to be known of a log that is left alone; empty for any other.
[[nodiscard]] std::string note_of(const FoundUpdate& found);

}  // namespace penstock::state
