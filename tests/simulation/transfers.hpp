// SPDX-License-Identifier: Apache-2.0
// Files and transfers of a test in a simulation; a transfer is released when it has been looked at.
#pragma once

#include "simulation/simulation.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::simulation {

inline engine::TransferSpec spec_of(engine::Op op, std::vector<std::shared_ptr<os::File>> files,
                                    std::vector<Extent> extents,
                                    const TransferOptions& options = {}) {
    engine::TransferSpec spec;
    spec.op = op;
    spec.files = engine::FileList(std::move(files));
    spec.extents = engine::Extents(std::move(extents));
    spec.options = options;
    return spec;
}

inline std::shared_ptr<os::File> open(Simulation& simulation, const std::string& path) {
    auto file = simulation.file_system().open(path, {.access = Access::kReadWrite, .create = true});
    EXPECT_TRUE(file);
    return *file;
}

inline engine::Transfer* start(Simulation& simulation, engine::TransferSpec spec) {
    auto transfer = simulation.core().start(std::move(spec));
    EXPECT_TRUE(transfer) << (transfer ? "" : transfer.error().describe());
    return *transfer;
}

inline void let_go(engine::Transfer* transfer) {
    transfer->mark_observed();
    transfer->abandon();
    transfer->release();
}

}  // namespace penstock::simulation
