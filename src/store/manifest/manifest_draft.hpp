// SPDX-License-Identifier: Apache-2.0
// The manifest of a save as it grows: first from the plan, then with places and checksums.
#pragma once

#include "store/manifest/manifest.hpp"
#include "store/write/chunk_sums.hpp"
#include "store/write/save_plan.hpp"
#include "stream/window_sums.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::store {

class ManifestDraft {
public:
    /// Takes over the plan. `random`: for the ids of shards that are written.
    ManifestDraft(const SavePlan& plan, const std::function<std::uint64_t()>& random);

    /// `parts_folders`: for each of the store's folders, the folder of this checkpoint's shards in
    /// it, or empty.
    void name_folders(const SavePlan& plan, std::span<const std::string> parts_folders);
    /// Fills in the sums of the written shards, `written`: all of them are summed.
    void fill_sums(const SavePlan& plan, ChunkSums& sums, const stream::WindowSums& written);

    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    [[nodiscard]] Manifest take() { return std::move(manifest_); }

private:
    void add_tensors(const SavePlan& plan);
    void add_linked(const SavePlan& plan, const SavePart& part);
    void add_written(const SavePlan& plan, const SavePart& part,
                     const std::function<std::uint64_t()>& random);
    [[nodiscard]] Slice& slice_of(std::size_t tensor);

    Manifest manifest_;
    std::vector<std::pair<std::size_t, std::size_t>> slice_of_;  // tensor -> manifest's, slice
};

}  // namespace penstock::store
