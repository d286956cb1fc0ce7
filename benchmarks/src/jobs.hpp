// SPDX-License-Identifier: Apache-2.0
// The jobs of penstock_bench_ours, over the public API alone. Each fills in the figures of one run.
#pragma once

#include "common.hpp"

#include <penstock/penstock.hpp>

#include <memory>

namespace penstock::benchmarks {

void sequential(const Arguments& arguments, Figures& figures);
void random_reads(const Arguments& arguments, Figures& figures);
/// `count` rows of `block` bytes by random numbers, in one transfer. --memory=pool: to a buffer of
/// a MemoryPool, unless the handicap is `nothing_registered`.
void random_rows(const Arguments& arguments, Figures& figures);
/// The same by an io_uring of its own, with nothing of the library: a peer.
void uring_rows(const Arguments& arguments, Figures& figures);
void latency(const Arguments& arguments, Figures& figures);
void many_small(const Arguments& arguments, Figures& figures);
void syscalls(const Arguments& arguments, Figures& figures);
void idle(const Arguments& arguments, Figures& figures);
void scaling(const Arguments& arguments, Figures& figures);
/// Blocking reads of 4 KiB by several threads, or by preadv (--api=preadv). Handicap `four_lanes`:
/// all but four threads read through the ring.
void threads(const Arguments& arguments, Figures& figures);

/// The defaults, with --block, --depth and --backend.
[[nodiscard]] EngineOptions engine_options(const Arguments& arguments);
/// `count` reads of `block` bytes at random offsets that are multiples of it, into a window of
/// memory.
[[nodiscard]] TransferRequest random_request(const File& file, std::uint64_t count,
                                             std::uint64_t block, const Memory& memory,
                                             std::uint64_t window);
/// Blocks of the file as transfers of their own, each waited for.
void one_by_one(Engine& engine, const TransferRequest& request);
void note_engine(const Engine& engine, Figures& figures);

}  // namespace penstock::benchmarks
