// SPDX-License-Identifier: Apache-2.0
// What a store may remove: whether its first folder, and what lies in the others, is its own.
//
// A store has a random identity. It is in its first folder (".store"), in each manifest, and in the
// names of what lies in other folders. So a folder that another run, or another machine, uses under
// the same path is not taken for this store's.
//
// An identity moves with a copy of the first folder, and both copies then lead to the same shards
// in the other folders. Neither may remove them. Two things tell a copy:
//
//   its place     ".store" says which file it is. A copy of it is another file.
//   the record    each other folder has ".store-<identity>", with a random word of the save that
//                 wrote there last. The first folder knows the word. Each save checks the words,
//                 then writes new ones, and begins to remove only after that.
//
// A store that finds itself to be one of two copies takes a new identity, and remembers the old
// one: checkpoints in its own first folder stay its own. The record of the old identity loses its
// word, so that the other copy finds out as well. What lies under the old identity in the other
// folders is nobody's from then on: it is left, and reported.
//
// A crash at any point: ".store" has both words, the one that the record has and the one that it
// gets, and is durable before the record is. So a store knows its own record again.
#pragma once

#include "store/identity/identity.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::store {

/// Reads ".store" of a folder, without a lock. Nothing if it is missing or cannot be read.
[[nodiscard]] std::optional<StoreIdentity> known_identity(Engine& engine, const FileSystem& files,
                                                          const std::string& folder);
/// Whether a checkpoint in the first folder is that store's: its manifest has the identity, one
/// that the store had before, or, written by an earlier version, none.
[[nodiscard]] bool is_own(const StoreIdentity& store, std::string_view manifest_identity);

class Ownership {
public:
    /// `folders`: those of the store. All arguments outlive it.
    Ownership(Engine& engine, const FileSystem& files, const std::vector<std::string>& folders)
        : engine_(engine), files_(files), folders_(folders) {}

    /// Makes the identity of a new store, looks whose the other folders are, and writes the
    /// record of this save there. Under the store's lock, before anything is written or removed.
    /// Throws Error.
    void begin(std::uint64_t generation);
    /// For another lock: what the last one knew may have changed.
    void forget() { known_ = false; }

    // After begin().
    [[nodiscard]] const std::string& identity() const { return mine_.identity; }
    [[nodiscard]] bool is_own(std::string_view manifest_identity) const {
        return store::is_own(mine_, manifest_identity);
    }
    /// Whether the record of another folder is this store's last one, read from it now. Nothing is
    /// removed there otherwise. Throws Error where that cannot be found out.
    [[nodiscard]] bool holds(std::size_t folder) const;
    /// Anything out of the ordinary that begin() found.
    [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

private:
    enum class Finding : std::uint8_t {
        kMissing,  // there is no such folder
        kNew,      // neither a record nor shards of this identity
        kOwn,      // the record has a word of this store's
        kForeign,  // it has another one, or cannot be understood
        kUnknown,  // the system did not let it be read
    };
    struct FolderFinding {
        Finding finding = Finding::kMissing;
        std::size_t words = 0;  // kOwn: index into mine_.records
        std::uint64_t word = 0;
    };

    bool read_identity();
    void write_identity();
    [[nodiscard]] FolderFinding look(std::size_t folder);
    [[nodiscard]] bool has_parts(std::size_t folder) const;
    void take_new_identity(std::string_view why);
    void give_up(const std::string& identity);
    void announce(std::uint64_t generation, bool must_write);
    void write_record(std::size_t folder, const FolderRecord& record) const;

    Engine& engine_;
    const FileSystem& files_;
    const std::vector<std::string>& folders_;
    bool known_ = false;
    bool is_at_its_place_ = false;
    StoreIdentity mine_;
    std::vector<FolderFinding> found_;  // one per folder; of the first one unused
    std::vector<RecordWords> held_;     // one per folder: the words that its record may have
    std::vector<std::string> notes_;
};

}  // namespace penstock::store
