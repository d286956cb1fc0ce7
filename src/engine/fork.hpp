// SPDX-License-Identifier: Apache-2.0
// fork() with engines at work. Before it, each engine stops drawing and waits for what is at the
// device (bounded by depth, not by what is queued; opens and syncs go on through it). Then the
// parent goes on, and in the child the inherited transfers end as cancelled and the engine is dead,
// to be made from scratch at first use. So no device writes into memory that the fork is just about
// to share.
#pragma once

#include <mutex>

namespace penstock::engine {

class Core;

void register_for_fork(Core& core);
void unregister_for_fork(Core& core);

/// Brings every engine to rest and keeps it there for the fork of this thread, which then waits for
/// nothing; end_fork() undoes it where no fork came. Between the two this holds no lock: other
/// threads may fork.
void prepare_fork();
void end_fork();

/// Held while an engine that a fork has left dead is made from scratch; free in a child.
[[nodiscard]] std::mutex& renewal_mutex();

}  // namespace penstock::engine
