// SPDX-License-Identifier: Apache-2.0
#include "ranks/conversation.hpp"

#include "ranks/memory_mailbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace penstock::ranks {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kLimit(400);

// A mailbox that can break, as that of a rank 0 which ended.
class BreakingMailbox final : public Mailbox {
public:
    void put(const std::string& key, std::string_view value) override {
        check();
        if (key.ends_with("/verdict") && verdicts_refused_-- > 0) {
            throw std::runtime_error("the socket timed out");
        }
        mailbox_.put(key, value);
    }
    std::optional<std::string> get(const std::string& key,
                                   std::chrono::nanoseconds timeout) override {
        check();
        return mailbox_.get(key, timeout);
    }
    void erase(const std::string& key) override {
        check();
        mailbox_.erase(key);
    }
    void end() { ended_ = true; }
    void refuse_verdicts(int count) { verdicts_refused_ = count; }
    [[nodiscard]] std::size_t keys() const { return mailbox_.keys(); }

private:
    void check() const {
        if (ended_) {
            throw std::runtime_error("connection reset by peer");
        }
    }
    MemoryMailbox mailbox_;
    std::atomic<bool> ended_ = false;
    std::atomic<int> verdicts_refused_ = 0;
};

class Talks : public ::testing::Test {
protected:
    // Runs `work` for each rank on a thread of its own; the errors, by rank, "" for none.
    std::vector<std::string> run(std::uint32_t count,
                                 const std::function<void(Group&, Conversation&)>& work) {
        std::vector<std::string> errors(count);
        std::vector<std::thread> threads;
        for (std::uint32_t rank = 0; rank < count; ++rank) {
            threads.emplace_back([&, rank] {
                Group group(Ranks(rank, count, "node-" + std::to_string(rank), mailbox_), "test",
                            {"offer", "ready"});
                Turn turn(group, "save");
                Conversation talk(turn, {.limit = kLimit, .report = {}});
                try {
                    work(group, talk);
                } catch (const std::exception& error) {
                    errors[rank] = error.what();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        return errors;
    }
    std::shared_ptr<BreakingMailbox> mailbox_ = std::make_shared<BreakingMailbox>();
};

// Rank 0 leads, and tells its failure to all.
void lead(Conversation& talk, const std::function<void()>& work) {
    try {
        work();
    } catch (const Error& error) {
        talk.fail(error);
        static_cast<void>(talk.end());
        throw;
    }
}

TEST_F(Talks, AllHearTheVerdictAndNoKeyIsLeft) {
    std::vector<std::string> ready;
    const auto errors = run(4, [&](Group& group, Conversation& talk) {
        if (talk.leads()) {
            talk.announce("offer", "do it");
            ready = talk.gather("ready");
            talk.agree("done");
            EXPECT_TRUE(talk.end().empty());
            return;
        }
        EXPECT_EQ(talk.hear("offer"), "do it");
        talk.tell("ready", std::to_string(group.ranks().number()));
        EXPECT_EQ(talk.verdict(), "done");
        EXPECT_EQ(talk.verdict(), "done");  // it stays heard
    });
    EXPECT_THAT(errors, ElementsAre("", "", "", ""));
    EXPECT_THAT(ready, ElementsAre("", "1", "2", "3"));
    EXPECT_EQ(mailbox_->keys(), 0U);
}

TEST_F(Talks, AFailureOfOneIsThrownOnAllWithItsRankAndHost) {
    const auto errors = run(3, [](Group& group, Conversation& talk) {
        if (talk.leads()) {
            lead(talk, [&] {
                talk.announce("offer", "");
                static_cast<void>(talk.gather("ready"));
            });
            return;
        }
        static_cast<void>(talk.hear("offer"));
        if (group.ranks().number() == 2) {
            talk.tell_failure(
                Error(ErrorCode::kSystem, 28, "write", "/x", kNoOffset, "the disk is full"));
        } else {
            talk.tell("ready", "");
        }
        static_cast<void>(talk.verdict());
    });
    for (const std::string& error : errors) {
        EXPECT_THAT(error, HasSubstr("rank 2 of 3 (node-2): the disk is full"));
    }
    EXPECT_EQ(mailbox_->keys(), 0U);
}

TEST_F(Talks, ARankThatNeverCallsIsNamed) {
    std::atomic<bool> over = false;
    const auto errors = run(3, [&](Group& group, Conversation& talk) {
        if (talk.leads()) {
            try {
                lead(talk, [&] {
                    talk.announce("offer", "");
                    static_cast<void>(talk.gather("ready"));
                });
            } catch (const Error&) {
                over = true;
                throw;
            }
            return;
        }
        if (group.ranks().number() == 2) {
            while (!over) {  // it is somewhere else, as long as the others wait
                std::this_thread::sleep_for(milliseconds(5));
            }
            return;
        }
        talk.tell("ready", "");
        static_cast<void>(talk.verdict());
    });
    // It has begun a conversation here, and then stood still.
    EXPECT_THAT(errors[0], HasSubstr("rank 2 of 3 (node-2) has stood still for 0.4 s"));
    EXPECT_EQ(errors[1], errors[0]);
}

TEST_F(Talks, ASlowRankIsWaitedFor) {
    const auto errors = run(2, [](Group&, Conversation& talk) {
        if (talk.leads()) {
            static_cast<void>(talk.gather("ready"));
            talk.agree("");
            static_cast<void>(talk.end());
            return;
        }
        for (std::uint64_t step = 1; step <= 3; ++step) {  // longer than the limit, but moving
            std::this_thread::sleep_for(kLimit * 3 / 2);
            talk.moved(step);
            talk.pause(milliseconds(1));
        }
        talk.tell("ready", "");
        static_cast<void>(talk.verdict());
    });
    // Each pause above is longer than the limit: a rank that does nothing meanwhile has failed.
    EXPECT_THAT(errors[0], HasSubstr("has stood still"));
    const auto moving = run(2, [](Group&, Conversation& talk) {
        if (talk.leads()) {
            static_cast<void>(talk.gather("ready"));
            talk.agree("");
            static_cast<void>(talk.end());
            return;
        }
        for (int step = 0; step < 12; ++step) {
            std::this_thread::sleep_for(kLimit / 8);
            talk.pause(milliseconds(1));
        }
        talk.tell("ready", "");
        static_cast<void>(talk.verdict());
    });
    EXPECT_THAT(moving, ElementsAre("", ""));
}

TEST_F(Talks, WhoIsDeadIsNamedAndNotWhoStillWaitsForIt) {
    // Rank 2 dies before it hears the first verdict. Rank 0 waits for it; rank 1 has gone on.
    const auto errors = run(3, [](Group& group, Conversation& talk) {
        const auto exchange = [&](Conversation& own) {
            if (own.leads()) {
                lead(own, [&] {
                    static_cast<void>(own.gather("ready"));
                    own.agree("");
                    static_cast<void>(own.end());
                });
                return;
            }
            own.tell("ready", "");
            if (group.ranks().number() == 1) {
                static_cast<void>(own.verdict());
            }
        };
        exchange(talk);
        if (group.ranks().number() < 2) {
            Turn turn(group, "save");
            Conversation next(turn, {.limit = kLimit});
            exchange(next);
        }
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 2 of 3 (node-2) has not called it within 0.4 s"));
    EXPECT_EQ(errors[1], errors[0]);
}

TEST_F(Talks, ARankThatIsStoppedInAWaitFailsOnAll) {
    for (const std::uint32_t stopped : {0U, 1U}) {
        int looks = 0;
        std::vector<std::string> errors(3);
        std::vector<std::thread> threads;
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
            threads.emplace_back([&, rank] {
                Group group(Ranks(rank, 3, "node", mailbox_), "test", {"ready"});
                Waiting waiting{.limit = std::chrono::seconds(30)};
                if (rank == stopped) {
                    waiting.look = [&looks] {
                        ++looks;
                        throw Error(ErrorCode::kCancelled, 0, "save", "", kNoOffset, "Ctrl-C");
                    };
                }
                Turn turn(group, "save");
                Conversation talk(turn, waiting);
                try {
                    if (rank == 0) {
                        lead(talk, [&] { static_cast<void>(talk.gather("ready")); });
                        return;
                    }
                    try {
                        static_cast<void>(talk.hear("ready"));  // which never comes
                    } catch (const Silence&) {
                        throw;
                    } catch (const Error& error) {
                        talk.has_heard() ? void() : talk.tell_failure(error);
                    }
                    static_cast<void>(talk.verdict());
                } catch (const std::exception& error) {
                    errors[rank] = error.what();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        EXPECT_THAT(errors, ::testing::Each(HasSubstr("Ctrl-C"))) << stopped;
        EXPECT_EQ(looks, 1);  // the answers of the others are waited for
        EXPECT_EQ(mailbox_->keys(), 0U);
    }
}

TEST_F(Talks, ARankThatIsStoppedIsPatientForAWhileOnly) {
    for (const std::uint32_t stopped : {0U, 1U}) {
        Group group(Ranks(stopped, 2, "node", mailbox_), "test", {"ready"});
        Waiting waiting{.limit = std::chrono::minutes(5), .patience = milliseconds(300)};
        waiting.look = [] {
            throw Error(ErrorCode::kCancelled, 0, "save", "", kNoOffset, "Ctrl-C");
        };
        Turn turn(group, "save");
        Conversation talk(turn, waiting);  // the other one never comes
        const auto began = std::chrono::steady_clock::now();
        if (stopped == 0) {
            EXPECT_THROW(lead(talk, [&] { static_cast<void>(talk.gather("ready")); }), Error);
        } else {
            try {
                static_cast<void>(talk.hear("ready"));
            } catch (const Error& error) {
                talk.tell_failure(error);
            }
            EXPECT_THROW(static_cast<void>(talk.verdict()), Silence);
        }
        EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
    }
}

TEST_F(Talks, AMailboxThatIsGoneIsASilence) {
    bool silent = false;
    const auto errors = run(2, [&](Group&, Conversation& talk) {
        if (talk.leads()) {
            talk.announce("offer", "");
            static_cast<void>(talk.gather("ready"));
            mailbox_->end();
            return;
        }
        static_cast<void>(talk.hear("offer"));
        talk.tell("ready", "");
        try {
            static_cast<void>(talk.verdict());
        } catch (const Silence& error) {
            silent = true;
            throw;
        }
    });
    EXPECT_TRUE(silent);
    EXPECT_THAT(errors[1], AllOf(HasSubstr("mailbox"), HasSubstr("connection reset by peer")));
}

// Both would leave records for as long as they wait for each other.
TEST_F(Talks, AVerdictThatTheMailboxRefusesOnceIsHeard) {
    mailbox_->refuse_verdicts(1);
    const auto errors = run(2, [&](Group&, Conversation& talk) {
        if (talk.leads()) {
            lead(talk,
                 [] { throw Error(ErrorCode::kSystem, 5, "save", "", kNoOffset, "no disk"); });
            return;
        }
        static_cast<void>(talk.verdict());
    });
    EXPECT_THAT(errors, ElementsAre("no disk", "no disk"));
    EXPECT_EQ(mailbox_->keys(), 0U);
}

TEST_F(Talks, AVerdictThatTheMailboxRefusesIsASilence) {
    mailbox_->refuse_verdicts(1000);
    bool silent = false;
    const auto errors = run(2, [&](Group&, Conversation& talk) {
        if (talk.leads()) {
            lead(talk,
                 [] { throw Error(ErrorCode::kSystem, 5, "save", "", kNoOffset, "no disk"); });
            return;
        }
        try {
            static_cast<void>(talk.verdict());
        } catch (const Silence&) {
            silent = true;
        }
    });
    EXPECT_THAT(errors, ElementsAre("no disk", ""));
    EXPECT_TRUE(silent);
}

TEST_F(Talks, ARankThatIsSeveralExchangesLateCatchesUp) {
    std::atomic<int> ended = 0;
    std::thread first([&] {
        Group group(Ranks(0, 2, "node-0", mailbox_), "test", {"ready"});
        for (int exchange = 1; exchange <= 4; ++exchange) {
            Turn turn(group, "save");
            Conversation talk(turn, {.limit = kLimit, .report = {}});
            try {
                lead(talk, [&] { static_cast<void>(talk.gather("ready")); });
                talk.agree("done");
                EXPECT_THAT(talk.end(), IsEmpty());
                EXPECT_EQ(exchange, 4);
            } catch (const Error&) {
                EXPECT_LT(exchange, 4);
            }
            ++ended;
        }
    });
    while (ended < 3) {
        std::this_thread::sleep_for(milliseconds(5));
    }
    Group group(Ranks(1, 2, "node-1", mailbox_), "test", {"ready"});
    for (int exchange = 1; exchange <= 3; ++exchange) {
        Turn turn(group, "save");
        Conversation talk(turn, {.limit = kLimit, .report = {}});
        try {
            talk.tell("ready", "");
            static_cast<void>(talk.verdict());
            ADD_FAILURE() << "exchange " << exchange;
        } catch (const Silence& error) {
            ADD_FAILURE() << "exchange " << exchange << ": " << error.what();
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 has not called it"));
        }
    }
    Turn turn(group, "save");
    Conversation talk(turn, {.limit = kLimit, .report = {}});
    talk.tell("ready", "");
    EXPECT_EQ(talk.verdict(), "done");
    first.join();
    EXPECT_EQ(mailbox_->keys(), 0U);
}

// One rank refuses the second exchange, and the last one is of all again: none of them waits long.
TEST_F(Talks, ATurnThatIsNotTakenEndsItOnAll) {
    for (const std::uint32_t refuses : {0U, 1U}) {
        std::vector<std::thread> threads;
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
            threads.emplace_back([&, rank] {
                Group group(Ranks(rank, 3, "node-" + std::to_string(rank), mailbox_), "test",
                            {"ready"});
                for (int exchange = 1; exchange <= 3; ++exchange) {
                    Turn turn(group, "save");
                    if (exchange == 2 && rank == refuses) {
                        continue;
                    }
                    Conversation talk(turn, {.limit = std::chrono::seconds(60), .report = {}});
                    std::string error;
                    try {
                        if (talk.leads()) {
                            lead(talk, [&] { static_cast<void>(talk.gather("ready")); });
                            talk.agree("done");
                            EXPECT_THAT(talk.end(), IsEmpty());
                        } else {
                            talk.tell("ready", "");
                            EXPECT_EQ(talk.verdict(), "done");
                        }
                    } catch (const Error& failed) {
                        error = failed.what();
                    }
                    EXPECT_THAT(error, exchange == 2 ? HasSubstr("rank " + std::to_string(refuses))
                                                     : HasSubstr(""));
                    EXPECT_EQ(error.empty(), exchange != 2);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        EXPECT_EQ(mailbox_->keys(), 0U);
    }
}

TEST(RanksTest, RefuseANumberThatIsNone) {
    EXPECT_THROW(Ranks(2, 2, "", std::make_shared<MemoryMailbox>()), Error);
    EXPECT_THROW(Ranks(0, 2, "", nullptr), Error);
    EXPECT_NO_THROW(Ranks(0, 1, "", nullptr));
}

TEST(MemoryMailboxTest, WaitsForAKeyThatComesAndNotForever) {
    MemoryMailbox mailbox;
    EXPECT_FALSE(mailbox.get("a", milliseconds(0)));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(mailbox.get("a", milliseconds(30)));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(30));
    std::thread other([&] { mailbox.put("a", "1"); });
    EXPECT_EQ(mailbox.get("a", std::chrono::seconds(20)), "1");
    other.join();
    mailbox.put("a", "2");
    EXPECT_EQ(mailbox.get("a", milliseconds(0)), "2");
    mailbox.erase("a");
    mailbox.erase("a");
    EXPECT_EQ(mailbox.keys(), 0U);
}

}  // namespace
}  // namespace penstock::ranks
