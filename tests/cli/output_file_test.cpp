// SPDX-License-Identifier: Apache-2.0
#include "report/output_file.hpp"

#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace penstock::cli {
namespace {

std::string contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// While it exists, no file may have more bytes, as on a disk that is full.
class SmallFiles {
public:
    explicit SmallFiles(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    SmallFiles(const SmallFiles&) = delete;
    SmallFiles& operator=(const SmallFiles&) = delete;
    ~SmallFiles() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        ::signal(SIGXFSZ, handler_);
    }

private:
    rlimit before_{};
    void (*handler_)(int);
};

TEST(OutputFileTest, AFullDiskLeavesWhatWasThere) {
    const support::TempFolder folder;
    const std::string path = folder / "a.json";
    ASSERT_EQ(report::write_output(path, "as it was"), 0);
    {
        const SmallFiles limit(1000);
        EXPECT_EQ(report::write_output(path, std::string(5000, 'x')), EFBIG);
        EXPECT_EQ(report::write_output(folder / "new.json", std::string(5000, 'x')), EFBIG);
    }
    EXPECT_EQ(contents(path), "as it was");
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.json"});
}

TEST(OutputFileTest, TheModeIsKeptAndTheLongestNameWorks) {
    const support::TempFolder folder;
    const std::string path = folder / std::string(255, 'n');
    ASSERT_EQ(report::why_not_writable(path), 0);
    ASSERT_EQ(report::write_output(path, "1"), 0);
    ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
    ASSERT_EQ(report::write_output(path, "2"), 0);
    struct stat is {};
    ASSERT_EQ(::stat(path.c_str(), &is), 0);
    EXPECT_EQ(is.st_mode & 07777U, 0604U);
    EXPECT_EQ(contents(path), "2");
}

TEST(OutputFileTest, WhatCannotBeWrittenIsToldAndNothingIsMade) {
    const support::TempFolder folder;
    EXPECT_EQ(report::why_not_writable(folder / "new"), 0);
    EXPECT_EQ(report::why_not_writable(folder / "absent/new"), ENOENT);
    EXPECT_EQ(report::why_not_writable(folder.path()), EISDIR);
    EXPECT_EQ(report::why_not_writable(folder / "new/"), EISDIR);
    std::filesystem::create_symlink("absent/new", folder / "link");
    EXPECT_EQ(report::why_not_writable(folder / "link"), ENOENT);
    std::filesystem::remove(folder / "link");
    EXPECT_EQ(report::why_not_writable(folder / std::string(256, 'n')), ENAMETOOLONG);
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>());
}

TEST(OutputFileTest, OutputsOfBothFacesAreOurs) {
    const support::TempFolder folder;
    const std::string path = folder / "a.json";
    const auto is_ours = [&](const std::string& text) {
        std::ofstream(path) << text;
        return report::is_json_of_ours(path);
    };
    EXPECT_TRUE(is_ours("{\n  \"command\": [\n    \"penstock\",\n    \"bench\"\n  ]\n}\n"));
    EXPECT_TRUE(is_ours("{\n  \"program\": \"penstock bench gnn\",\n  \"scale\": 8\n}\n"));
    EXPECT_FALSE(is_ours("{\n  \"command\": [\n    \"mine\"\n  ]\n}\n"));
    EXPECT_FALSE(is_ours("{\n  \"program\": \"mine\",\n  \"of\": \"penstock bench\"\n}\n"));
    EXPECT_FALSE(is_ours("[\"program\": \"penstock bench gnn\"]"));
}

// The text that is printed to `> FILE` goes on into the same file.
TEST(OutputFileTest, OurStdoutIsNotReplaced) {
    const support::TempFolder folder;
    const std::string path = folder / "all.txt";
    const int saved = ::dup(STDOUT_FILENO);
    std::fflush(stdout);
    ASSERT_NE(std::freopen(path.c_str(), "w", stdout), nullptr);
    struct stat before {};
    ::stat(path.c_str(), &before);
    const int code = report::write_output("/dev/stdout", "{}\n");
    std::fflush(stdout);
    ::dup2(saved, STDOUT_FILENO);
    ::close(saved);
    struct stat after {};
    ASSERT_EQ(::stat(path.c_str(), &after), 0);
    EXPECT_EQ(code, 0);
    EXPECT_EQ(after.st_ino, before.st_ino);
    EXPECT_EQ(contents(path), "{}\n");
}

}  // namespace
}  // namespace penstock::cli
