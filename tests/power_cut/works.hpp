// SPDX-License-Identifier: Apache-2.0
// What is done on a disk that will lose its power: eight saves of about 3 MB, the two newest kept,
// by one protocol or another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::power_cut {

inline constexpr std::uint64_t kSaves = 8;
inline constexpr std::uint64_t kKept = 2;

/// The result of a reader.
struct Found {
    std::uint64_t newest = 0;  ///< number of the newest save that is whole; 0: none is
    std::string damaged;       ///< something under a final name that is not whole, and why
};

class Work {
public:
    virtual ~Work() = default;
    /// Acknowledged when it returns. Throws.
    virtual void save(const std::string& folder, std::uint64_t number) = 0;
    [[nodiscard]] virtual Found look(const std::string& folder) = 0;
    /// Nothing of it is open or running any more on the folder.
    virtual void leave() {}
};

/// "store", "store_no_folder_sync", "save", "index", "torch.save". `python`: of the last. Throws
/// std::invalid_argument for another name.
[[nodiscard]] std::unique_ptr<Work> make_work(const std::string& name, const std::string& python);

}  // namespace penstock::power_cut
