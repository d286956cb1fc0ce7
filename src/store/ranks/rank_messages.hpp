// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other during a save or a load. Small: names and sums. The rest goes through
// the folder of the checkpoint.
#pragma once

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::store {

/// The operation, in errors.
inline constexpr const char* kRankSave = "save checkpoint of all ranks";

inline constexpr const char* kOfferStage = "offer";
inline constexpr const char* kStateStage = "state";
inline constexpr const char* kAssignedStage = "assigned";
inline constexpr const char* kReadyStage = "ready";
inline constexpr const char* kGoStage = "go";
inline constexpr const char* kWrittenStage = "written";
inline constexpr const char* kTakeStage = "take";
inline constexpr const char* kCheckedStage = "checked";
inline constexpr const char* kFillStage = "fill";
inline constexpr const char* kFilledStage = "filled";

/// From rank 0: the save, and where it goes. Names without their folders, because ranks may mount
/// them elsewhere.
struct SaveOffer {
    std::uint64_t generation = 0;
    std::uint64_t step = 0;
    std::int64_t saved_unix_ns = 0;
    std::string store;                 ///< its identity
    std::string name;                  ///< of the checkpoint
    std::string unfinished;            ///< of its folder until then; random, so nobody has the same
    std::vector<std::string> written;  ///< the same of its shards, one per further folder
    std::vector<std::string> named;    ///< their final paths, one per further folder
    std::string last;                  ///< the name of the checkpoint to link from, or empty
    std::uint64_t last_hash = 0;
    std::uint64_t shard_bytes = 0;
    bool checksums = true;
    bool incremental = true;
    std::uint64_t structure = 0;  ///< of rank 0's state, as in SaveState
    std::uint64_t tensors = 0;
    std::uint64_t contents = 0;

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static SaveOffer from(std::string_view message);
};

/// To rank 0: what this rank has.
struct SaveState {
    std::uint64_t step = 0;
    std::uint64_t structure = 0;    ///< state::structure_hash()
    std::uint64_t tensors = 0;      ///< hash_of_whole_tensors()
    std::uint64_t contents = 0;     ///< hash_of_contents()
    std::uint64_t description = 0;  ///< stream::content_hash() of the file; 0: as rank 0 has it

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static SaveState from(std::string_view message);
};

/// From rank 0: who writes what.
struct SaveAssigned {
    std::uint64_t writers = 0;  ///< stream::content_hash() of the file; 0: all have the same

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static SaveAssigned from(std::string_view message);
};

/// To rank 0: what its share needs.
struct SaveReady {
    std::vector<std::uint64_t> bytes;  ///< in each folder

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static SaveReady from(std::string_view message);
};

/// To rank 0: its share is durable.
struct SaveWritten {
    std::uint64_t share = 0;  ///< stream::content_hash() of its text
    std::string note;

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static SaveWritten from(std::string_view message);
};

/// From rank 0: the checkpoint to load.
struct LoadOffer {
    std::string name;  ///< of its folder; empty: no checkpoint is left
    std::uint64_t manifest = 0;
    /// As rank 0 was asked, for the others to compare.
    std::optional<std::uint64_t> step;
    std::optional<std::uint64_t> generation;

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static LoadOffer from(std::string_view message);
};

/// The verdict of a load that goes on, or has an end without an error.
struct LoadVerdict {
    bool goes_on = false;  ///< with the checkpoint before: another exchange follows
    bool is_loaded = false;
    /// At the end: the names of the checkpoints that were passed over, and why; some newest ones.
    std::vector<std::pair<std::string, std::string>> passed_over;

    [[nodiscard]] std::string message() const;
    [[nodiscard]] static LoadVerdict from(std::string_view message);
};

/// The verdict of a save that is there: what save() returns, but for the path and the metadata.
[[nodiscard]] std::string verdict_of(const CheckpointInfo& info);
[[nodiscard]] CheckpointInfo info_from(std::string_view verdict);

}  // namespace penstock::store
