// SPDX-License-Identifier: Apache-2.0
// Tensors that come one after another, for a save that writes them later: each is copied before the
// next one is asked for, into memory of the staging, so the budget holds for them too.
//
// The end of the stream must come before the budget is full: nothing of it can be written earlier,
// because a checkpoint is planned from all of its tensors. A tensor counts with its bytes and a
// little more, so that a stream of empty ones ends, too. Room that saves in flight hold is waited
// for; where none is in flight, other streams hold it, which may wait for this one: that is an
// error at once.
#pragma once

#include "store/background/background_saver.hpp"

#include <penstock/state_file.hpp>

#include <vector>

namespace penstock::store {

struct Collected {
    std::vector<StateTensor> tensors;  ///< in the order in which they came; they lie in the copies
    std::vector<StagedCopy> copies;
};

/// `stream`: without `like`. Throws Error as save_file() of a TensorStream does, kOutOfMemory with
/// the name of the first tensor that has no room, and what the stream throws. `wait`: as in
/// BackgroundSaver::stage(); for as long as it takes.
[[nodiscard]] Collected collect(BackgroundSaver& saver, const TensorStream& stream,
                                Changing changing, const BackgroundSaver::Wait& wait);

}  // namespace penstock::store
