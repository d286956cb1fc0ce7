// SPDX-License-Identifier: Apache-2.0
#include "memory/block.hpp"

#include "base/align.hpp"
#include "os/machine/limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::memory {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kLockIsNothing = true;
#else
constexpr bool kLockIsNothing = false;
#endif

using ::testing::AllOf;
using ::testing::HasSubstr;

std::uint64_t resident_pages(const Block& block) {
    const std::uint64_t pages = base::align_up(block.size(), 4096) / 4096;
    std::vector<unsigned char> map(pages);
    EXPECT_EQ(::mincore(block.data(), block.size(), map.data()), 0);
    return static_cast<std::uint64_t>(
        std::count_if(map.begin(), map.end(), [](unsigned char m) { return (m & 1) != 0; }));
}

// A line of /proc/self/smaps of the mapping that starts at the block.
std::string smaps(const Block& block, const std::string& key) {
    std::ostringstream start;
    start << std::hex << reinterpret_cast<std::uintptr_t>(block.data()) << '-';
    std::ifstream lines("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(lines, line);) {
        if (line.find('-') != std::string::npos && line.rfind("VmFlags", 0) != 0 &&
            std::isxdigit(static_cast<unsigned char>(line[0])) != 0 && line.find(':') > 20) {
            inside = line.rfind(start.str(), 0) == 0;
        }
        if (inside && line.rfind(key, 0) == 0) {
            return line;
        }
    }
    return {};
}

bool mapped(const void* address) {
    unsigned char resident = 0;
    return ::mincore(const_cast<void*>(address), 1, &resident) == 0;
}

// Returns the report of a child process, with the limits that `body` sets for itself.
std::string in_child(const std::function<std::string()>& body) {
    int out[2];
    if (::pipe(out) != 0) {
        return "pipe";
    }
    const pid_t child = ::fork();
    if (child == 0) {
        std::string said = "threw";
        try {
            said = body();
        } catch (const std::exception&) {
            // Never back into the test program from here.
        }
        ::_exit(::write(out[1], said.data(), said.size()) >= 0 ? 0 : 1);
    }
    ::close(out[1]);
    std::string said(4096, '\0');
    const ssize_t length = ::read(out[0], said.data(), said.size());
    said.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    ::close(out[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? said : said + " (killed)";
}

TEST(Block, SizesAreAsAskedAndZeroed) {
    for (const std::uint64_t bytes : {1UL, 4095UL, 4096UL, 4097UL, 2UL << 20, (2UL << 20) + 1}) {
        auto block = Block::make(bytes);
        ASSERT_TRUE(block);
        EXPECT_EQ(block->size(), bytes);
        EXPECT_EQ(block->bytes().size(), bytes);
        EXPECT_TRUE(base::is_aligned(block->data(), 4096));
        EXPECT_TRUE(std::all_of(block->data(), block->data() + bytes,
                                [](std::byte b) { return b == std::byte{0}; }));
        block->data()[bytes - 1] = std::byte{1};
    }
}

TEST(Block, ZeroBytes) {
    auto block = Block::make(0, {.touch = true, .lock = true});
    ASSERT_TRUE(block);
    EXPECT_EQ(block->size(), 0U);
    EXPECT_TRUE(block->bytes().empty());
    const Block moved = std::move(*block);
    EXPECT_EQ(moved.size(), 0U);
}

TEST(Block, HugePagesFrom2MiBUp) {
    for (int i = 0; i < 8; ++i) {  // an address that is aligned by chance does not stay so
        auto block = Block::make((2 << 20) + 4096, {.touch = true});
        ASSERT_TRUE(block);
        EXPECT_TRUE(base::is_aligned(block->data(), 2 << 20));
        if (os::huge_page_mode() == "never" || os::huge_page_mode() == "absent") {
            EXPECT_THAT(block->shortfall(), HasSubstr("no huge pages"));
        } else {
            EXPECT_EQ(block->shortfall(), "");
            EXPECT_THAT(smaps(*block, "VmFlags:"), HasSubstr(" hg"));
        }
    }
    auto plain = Block::make(2 << 20, {.huge_pages = false});
    EXPECT_THAT(smaps(*plain, "VmFlags:"), Not(HasSubstr(" hg")));
}

TEST(Block, TouchedMeansResident) {
    constexpr std::uint64_t kBytes = (4 << 20) + 5;
    auto untouched = Block::make(kBytes, {.huge_pages = false});
    EXPECT_EQ(resident_pages(*untouched), 0U);
    auto touched = Block::make(kBytes, {.huge_pages = false, .touch = true});
    EXPECT_EQ(resident_pages(*touched), 1025U);
}

TEST(Block, TooMuchIsAnErrorThatNamesTheSize) {
    for (const std::uint64_t bytes :
         {~std::uint64_t{0}, ~std::uint64_t{0} - 4096, std::uint64_t{1} << 62}) {
        const auto block = Block::make(bytes);
        ASSERT_FALSE(block);
        EXPECT_EQ(block.error().code, ErrorCode::kOutOfMemory);
        EXPECT_EQ(block.error().system_errno, ENOMEM);
        EXPECT_THAT(block.error().describe(),
                    AllOf(HasSubstr("allocate"), HasSubstr(std::to_string(bytes)),
                          HasSubstr("ask for less")));
    }
}

std::uint64_t mapped_pages() {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages;
}

// Extra pages mapped for the alignment are unmapped again, at both ends.
TEST(Block, NothingStaysMapped) {
    (void)Block::make(16 << 20);
    const std::uint64_t before = mapped_pages();
    for (std::uint64_t i = 0; i < 512; i += 5) {  // other sizes, other addresses, other ends
        ASSERT_TRUE(Block::make((16 << 20) + i * 4096));
    }
    // The C library and a sanitizer may map a little of their own.
    EXPECT_LT(mapped_pages(), before + 256);
    const auto held = Block::make(16 << 20);
    EXPECT_GE(mapped_pages(), before + (16 << 20) / 4096);
}

TEST(Block, LimitOfAddressSpaceIsTold) {
    EXPECT_EQ(in_child([] {
                  // Above what is mapped already: a sanitizer reserves terabytes.
                  const rlim_t bytes = mapped_pages() * 4096 + (256 << 20);
                  const rlimit limit{bytes, bytes};
                  ::setrlimit(RLIMIT_AS, &limit);
                  auto block = Block::make(512 << 20);
                  return block ? "made" : std::to_string(block.error().system_errno);
              }),
              std::to_string(ENOMEM));
}

TEST(Block, LocksWhatItMay) {
    if (kLockIsNothing) {
        GTEST_SKIP() << "AddressSanitizer makes mlock a call that does nothing";
    }
    if (os::memlock_limit() < (1 << 20) && ::geteuid() != 0) {
        GTEST_SKIP() << "the limit on locked memory is below 1 MiB";
    }
    auto block = Block::make(64 << 10, {.lock = true});
    ASSERT_TRUE(block);
    EXPECT_TRUE(block->locked());
    EXPECT_EQ(block->shortfall(), "");
    EXPECT_THAT(smaps(*block, "VmFlags:"), HasSubstr(" lo"));
}

TEST(Block, LockThatTheLimitForbidsIsToldAndGoneWithout) {
    if (kLockIsNothing) {
        GTEST_SKIP() << "AddressSanitizer makes mlock a call that does nothing";
    }
    const std::string said = in_child([] {
        rlimit limit{65536, 65536};
        ::setrlimit(RLIMIT_MEMLOCK, &limit);
        if (::geteuid() == 0 && ::setuid(65534) != 0) {
            return std::string("setuid");
        }
        auto block = Block::make(1 << 20, {.lock = true});
        if (!block || block->locked()) {
            return std::string("no block, or locked");
        }
        std::memset(block->data(), 1, block->size());
        return block->shortfall();
    });
    EXPECT_THAT(said,
                AllOf(HasSubstr("not locked"), HasSubstr("RLIMIT_MEMLOCK"), HasSubstr("64 KiB"),
                      HasSubstr("1 MiB"), HasSubstr("ulimit -l unlimited")));
}

TEST(Block, ForkedChildHasItOnlyWhenKept) {
    auto kept = Block::make(4096);
    auto dropped = Block::make(4096, {.keep_on_fork = false});
    const std::byte* kept_data = kept->data();
    const std::byte* dropped_data = dropped->data();
    EXPECT_EQ(in_child([&] {
                  return std::string(mapped(kept_data) ? "kept " : "gone ") +
                         (mapped(dropped_data) ? "kept" : "gone");
              }),
              "kept gone");
}

TEST(Block, ForkedChildLeavesAloneWhatIsInItsPlace) {
    auto dropped = Block::make(4096, {.keep_on_fork = false});
    EXPECT_EQ(in_child([&] {
                  void* other = ::mmap(dropped->data(), 4096, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                  const bool in_place = other == dropped->data();
                  *dropped = Block();
                  return std::string(in_place && mapped(static_cast<std::byte*>(other)) ? "there"
                                                                                        : "gone");
              }),
              "there");
}

TEST(Block, MovesAndGivesBack) {
    auto made = Block::make(4096);
    Block first = std::move(*made);
    const std::byte* address = first.data();
    first.data()[0] = std::byte{7};
    Block second = std::move(first);
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(second.data(), address);
    EXPECT_EQ(second.data()[0], std::byte{7});
    EXPECT_TRUE(mapped(address));
    second = Block();
    EXPECT_FALSE(mapped(address));
}

}  // namespace
}  // namespace penstock::memory
