// SPDX-License-Identifier: Apache-2.0
// One load by all ranks. Rank 0 leads; the others follow. Blocking; writes nothing.
//
//     rank 0                                          each other rank
//     finds the newest whole checkpoint: take
//                                                     opens it in its own view of the disk
//     opens it; looks whether it can be loaded        looks whether it can be loaded: checked
//     fill
//     reads                                           reads: filled
//     verdict                                         returns it
//
// So nobody reads into memory of the caller's before all ranks can. A checkpoint that one rank
// finds to be damaged, before that or after, ends the exchange, and the next one is about the
// checkpoint before. There is an exchange for each that is tried, and one, with an empty name, if
// none is left.
//
// The verdict is a message, which only rank 0 can give: nothing on a disk decides a load. A rank
// that does not hear it throws, whatever the others did.
#pragma once

#include "ranks/conversation.hpp"
#include "store/ranks/rank_messages.hpp"

#include <penstock/checkpoint.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::store {

/// The operation, in errors.
inline constexpr const char* kRankLoad = "load checkpoint on all ranks";

/// Holds what both sides need.
struct LoadContext {
    Engine& engine;
    const FileSystem& files;
    const std::string& folder;
    ranks::Group& group;
    const LoadOptions& options;
    const ranks::Waiting& waiting;
    const std::function<void(Loading)>& use;
    std::function<Checkpoint(const std::string& path)> open;
};

/// Rank 0's side. `first`: of its turns; each further exchange takes one more.
class LoadLeader {
public:
    /// Thrown through the search for a checkpoint: it is over, with this error.
    struct Over {
        std::exception_ptr why;
    };

    LoadLeader(const LoadContext& context, ranks::Turn& first);
    LoadLeader(const LoadLeader&) = delete;
    LoadLeader& operator=(const LoadLeader&) = delete;
    ~LoadLeader() = default;

    /// Loads one on all ranks, up to the verdict. Throws an Error if all take the one before, and
    /// Over.
    void load(Checkpoint opened);
    /// The verdict. Throws if no other rank has heard it.
    void end(bool is_loaded, const std::vector<CheckpointInfo>& passed_over);
    void fail(const Error& error) noexcept;

private:
    enum class Exchange : std::uint8_t { kRuns, kIsFollowed, kIsLast };  ///< by another one
    void begin_next();
    void announce(const std::string& path);

    const LoadContext& context_;
    std::unique_ptr<ranks::Turn> turn_;  // of the exchange, unless it is the first
    std::optional<ranks::Conversation> talk_;
    Exchange exchange_ = Exchange::kRuns;
};

/// The side of the others. The info is nothing if no checkpoint was left.
[[nodiscard]] std::optional<CheckpointInfo> follow_load(const LoadContext& context,
                                                        ranks::Turn& first,
                                                        std::vector<CheckpointInfo>* skipped);

}  // namespace penstock::store
