// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of calls that the page cache serves on their caller's thread.
// Most make nothing; the first of an engine makes its device's threads and a lane.
#include "allocations/scene.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using allocator::Attempt;
using allocator::each;
using allocator::Scene;

class AtOnceOutOfMemory : public allocator::OutOfMemory {};

TEST_F(AtOnceOutOfMemory, TheFirstCallsOfAnEngine) {
    in_child([](Scene& scene) {
        const std::vector<std::byte> data = support::pattern(50'000, 1);
        const File file(scene.folder + "/file", {.access = Access::kReadWrite, .create = true});
        return each(
            scene,
            [&](Attempt& attempt) -> std::string {
                Engine engine;
                const std::span<const std::byte> some = std::span(data).first(5000);
                std::vector<std::byte> one(5000);
                std::vector<std::byte> list(5000);
                TransferRequest request;
                request.files = {file};
                for (std::size_t i = 0; i < 5; ++i) {
                    request.extents.push_back(
                        {i * 1000, std::span(list).subspan(i * 1000, 1000), 0});
                }
                const bool through = attempt([&] {
                    if (!engine.try_write_at_once(file, some)) {
                        engine.write(file, some);
                    }
                    if (!engine.try_read_at_once(file, one)) {
                        engine.read(file, one);
                    }
                    engine.run(std::move(request)).wait();
                });
                if (through &&
                    (!std::ranges::equal(one, some) || !std::ranges::equal(list, some))) {
                    return "wrong bytes";
                }
                engine.read(file, one);
                return std::ranges::equal(one, some) ? "" : "wrong bytes afterwards";
            },
            1);
    });
}

}  // namespace
}  // namespace penstock
