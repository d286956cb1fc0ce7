// SPDX-License-Identifier: Apache-2.0
#include "store/background/read_back.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"

#include <fmt/format.h>

namespace penstock::store {

std::string text_of(const DamagedCheckpoint& damaged) {
    const CheckpointProblem& problem = damaged.problem;
    const std::string tensor =
        problem.tensor.empty() ? "" : fmt::format(", tensor {}", format::shown(problem.tensor));
    return fmt::format("checkpoint '{}' was read back and is damaged: '{}'{}: {}", damaged.path,
                       problem.path, tensor, problem.message);
}

void raise_damaged(const DamagedCheckpoint& damaged) {
    base::raise(base::error(
        ErrorCode::kDamaged, "save checkpoint",
        fmt::format("{}. Older checkpoints that are good were kept. Look at the device and the "
                    "memory (dmesg, 'penstock checkpoint verify'), and save again",
                    text_of(damaged)),
        damaged.problem.path, damaged.problem.offset));
}

std::vector<CheckpointProblem> read_all(const std::shared_ptr<Engine>& engine,
                                        const FileSystem& files, const std::string& path,
                                        const Progress& progress) {
    try {
        return Checkpoint(engine, files, path).verify(progress, Priority::kBackground);
    } catch (const Error& error) {
        if (!error.is_about_the_file()) {
            throw;
        }
        return {{path, "", error.offset(), error.what()}};
    }
}

}  // namespace penstock::store
