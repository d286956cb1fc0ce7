// SPDX-License-Identifier: Apache-2.0
#include "report/style.hpp"

#include "cli/program.hpp"
#include "support/temp_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

namespace penstock::cli {
namespace {

using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::Not;

// A terminal of 80 columns: what a program prints to it comes out of text().
class Terminal {
public:
    Terminal() : ours_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)) {
        ::grantpt(ours_);
        ::unlockpt(ours_);
        std::array<char, 64> name{};
        ::ptsname_r(ours_, name.data(), name.size());
        theirs_ = ::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC);
        winsize size{};
        size.ws_col = 80;
        size.ws_row = 24;
        ::ioctl(theirs_, TIOCSWINSZ, &size);
        file_ = ::fdopen(::dup(theirs_), "w");
    }
    ~Terminal() {
        std::fclose(file_);
        ::close(theirs_);
        ::close(ours_);
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    [[nodiscard]] int descriptor() const { return theirs_; }
    [[nodiscard]] std::FILE* file() const { return file_; }
    [[nodiscard]] std::string text() const {
        std::string all;
        std::array<char, 4096> buffer{};
        for (ssize_t n = 0; (n = ::read(ours_, buffer.data(), buffer.size())) > 0;) {
            all.append(buffer.data(), static_cast<std::size_t>(n));
        }
        return all;
    }

private:
    int ours_;
    int theirs_ = -1;
    std::FILE* file_ = nullptr;
};

using Variables = std::vector<std::pair<const char*, const char*>>;

// A terminal holds some KiB that nobody reads yet, and doctor prints less.
std::string doctor_on_a_terminal(const Variables& variables) {
    const support::TempFolder folder;
    const Terminal terminal;
    const Outcome outcome = run_cli({"doctor", folder.path() + "/absent"}, [&] {
        ::setenv("TERM", "xterm", 1);
        ::unsetenv("NO_COLOR");
        for (const auto& [name, value] : variables) {
            ::setenv(name, value, 1);
        }
        ::dup2(terminal.descriptor(), STDOUT_FILENO);
    });
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    return terminal.text();
}

std::size_t columns(const std::string& line) {
    return static_cast<std::size_t>(
        std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(StyleTest, DoctorHasColoursOnATerminalOnly) {
    const std::string text = doctor_on_a_terminal({});
    EXPECT_THAT(text, HasSubstr("\033[31mPROBLEM \033[0m"));
    EXPECT_THAT(text, HasSubstr("\033[32mok      \033[0m"));
    EXPECT_THAT(run_cli({"doctor", "/absent"}).out, Not(HasSubstr("\033")));
    EXPECT_THAT(doctor_on_a_terminal({{"NO_COLOR", "1"}}), Not(HasSubstr("\033")));
    EXPECT_THAT(doctor_on_a_terminal({{"TERM", "dumb"}}), Not(HasSubstr("\033")));
    EXPECT_THAT(doctor_on_a_terminal({{"NO_COLOR", ""}}), HasSubstr("\033[31m"));
}

TEST(StyleTest, DoctorFitsTheTerminalButForCommands) {
    std::istringstream lines(doctor_on_a_terminal({{"NO_COLOR", "1"}}));
    std::size_t found = 0;
    for (std::string line; std::getline(lines, line); ++found) {
        if (line.find("fix it:") == std::string::npos) {
            EXPECT_THAT(columns(line), Le(82U)) << line;  // with "\r"
        }
    }
    EXPECT_THAT(found, Ge(8U));
}

TEST(StyleTest, LinesAreBrokenAtSpacesOnATerminal) {
    const Terminal terminal;
    const report::Style style(terminal.file());
    const std::string words = "one two three four five six seven eight nine ten eleven twelve";
    const std::string wrapped = style.wrap(words, 30);
    EXPECT_EQ(wrapped, "one two three four five six seven eight nine ten\n" + std::string(30, ' ') +
                           "eleven twelve");
    EXPECT_EQ(style.wrap(std::string(200, 'x'), 30), std::string(200, 'x'));
    EXPECT_EQ(style.wrap("short", 30), "short");

    const support::TempFolder folder;
    std::FILE* const file = std::fopen((folder.path() + "/out").c_str(), "w");
    EXPECT_EQ(report::Style(file).wrap(words, 30), words);
    std::fclose(file);
}

TEST(StyleTest, ABarIsFilledInEighths) {
    EXPECT_EQ(report::bar(0, 4), "    ");
    EXPECT_EQ(report::bar(1, 4), "████");
    EXPECT_EQ(report::bar(0.5, 4), "██  ");
    EXPECT_EQ(report::bar(9.0 / 32, 4), "█▏  ");
    EXPECT_EQ(report::bar(7, 2), "██");
    EXPECT_EQ(report::bar(-1, 2), "  ");
}

TEST(StyleTest, ARatioHasAColourWhereItsIntervalLeavesOutOne) {
    EXPECT_EQ(report::colour_of_ratio(1.01, 1.2), report::Colour::kGreen);
    EXPECT_EQ(report::colour_of_ratio(0.8, 0.99), report::Colour::kRed);
    EXPECT_EQ(report::colour_of_ratio(0.9, 1.1), report::Colour::kNone);
}

// The table of a command, from the line that begins with `head` to the next empty one, and the
// paragraph after it, which explains the table.
void expect_table_fits(const std::string& text, const std::string& head, std::size_t rows) {
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line) && line.find(head) == std::string::npos) {
    }
    std::size_t count = 0;
    for (; std::getline(lines, line) && !line.empty(); ++count) {
        EXPECT_THAT(columns(line), Le(80U)) << line;
    }
    EXPECT_THAT(count, Ge(rows)) << text;
    count = 0;
    for (; std::getline(lines, line) && !line.empty(); ++count) {
        EXPECT_THAT(columns(line), Le(80U)) << line;
    }
    EXPECT_THAT(count, Ge(3U)) << text;
}

TEST(StyleTest, TablesFitEightyColumns) {
    const support::TempFolder one;
    const support::TempFolder two;
    const std::vector<std::string> quick{"--size", "8MiB", "--seconds", "0.1", "--repeats", "2"};
    std::vector<std::string> args{"bench", one.path(), "--block-size", "4KiB,128KiB"};
    args.insert(args.end(), quick.begin(), quick.end());
    expect_table_fits(run_cli(args).out, "test ", 8);
    args.insert(args.begin() + 2, two.path());
    expect_table_fits(run_cli(args).out, "test ", 24);
    expect_table_fits(run_cli({"tune", one.path(), "--seconds", "5", "--size", "64MiB"}).out,
                      "block x depth", 3);
}

TEST(Fitted, LinesAreBrokenAtSpacesAndGoOnWhereTheirTextIs) {
    EXPECT_EQ(report::fitted("Usage: a\n\n  -x   one two three\n", 15),
              "Usage: a\n\n  -x   one two\n  three\n")
        << "too little room next to the option";
    EXPECT_EQ(report::fitted("  --name   one two three four five six\n  --other\n", 31),
              "  --name   one two three four\n           five six\n  --other\n");
    EXPECT_EQ(report::fitted("one two three\nfour five\n\nsix\n", 9),
              "one two\nthree\nfour five\n\nsix\n");
    EXPECT_EQ(report::fitted("one two three\nUsage: x\n", 9), "one two\nthree\nUsage: x\n");
    EXPECT_EQ(report::fitted("a-word-that-is-longer than\n", 9), "a-word-that-is-longer than\n");
    EXPECT_EQ(report::fitted("  penstock plan checkpoint --model 70b\n", 30),
              "  penstock plan checkpoint --model 70b\n")
        << "a command is copied as it stands";
    EXPECT_EQ(report::fitted("  penstock bench /mnt/nvme   compares it\n", 30),
              "  penstock bench /mnt/nvme\n      compares it\n");
    EXPECT_EQ(report::fitted("", 80), "");
}

}  // namespace
}  // namespace penstock::cli
