// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/rank_load.hpp"

#include "base/assert.hpp"
#include "base/path.hpp"
#include "store/keep/store_folder.hpp"
#include "store/ranks/rank_save.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace penstock::store {

namespace {

using ranks::Conversation;
using ranks::Silence;
using ranks::Turn;

// A client of NFS may not see a new checkpoint for some seconds.
constexpr int kLooksForIt = 30;
constexpr auto kLookForItEvery = std::chrono::milliseconds(100);
// Reasons that are sent to the others; values of a mailbox are small.
constexpr std::size_t kReasonsMax = 16;
constexpr std::size_t kReasonMax = 300;

std::uint64_t hash_of_manifest(const LoadContext& context, const std::string& path) {
    const std::string text = read_manifest_text(context.engine, context.files, path);
    return stream::content_hash(std::as_bytes(std::span(text)));
}

Error refused(const std::string& path, const std::string& why) {
    return {ErrorCode::kInvalidArgument, 0, kRankLoad, path, kNoOffset, why};
}

// Thrown by ready() and progress() of a rank whose load is over; it goes through functions of the
// caller's, so what comes out of them is not looked at.
Error stopped() {
    return {
        ErrorCode::kCancelled, 0, kRankLoad, {}, kNoOffset, "the load was ended by another rank"};
}

std::string asked(const LoadOffer& offer) {
    return offer.generation ? fmt::format("generation {}", *offer.generation)
           : offer.step     ? fmt::format("step {}", *offer.step)
                            : "the newest checkpoint";
}

// ---- the others

// One exchange of a rank that follows.
class Followed {
public:
    Followed(const LoadContext& context, Turn& turn)
        : context_(context),
          name_(context.group.name_of(context.group.ranks().number())),
          talk_(turn, context.waiting) {}

    // Throws the verdict if that is a failure, and what a function of the caller's threw.
    [[nodiscard]] LoadVerdict run() {
        std::exception_ptr thrown;
        try {
            try {
                load();
            } catch (...) {
                thrown = std::current_exception();
            }
            if (gone_) {
                std::rethrow_exception(gone_);
            }
            if (thrown != nullptr && !talk_.has_heard()) {
                return failed(thrown);
            }
            return LoadVerdict::from(talk_.verdict());
        } catch (const Silence&) {
            talk_.leave_silently();
            throw;
        }
    }
    // Returns the info of the checkpoint of this exchange.
    [[nodiscard]] const std::optional<CheckpointInfo>& info() const { return info_; }

private:
    // Rank 0 looks for the failure of this rank until the verdict comes.
    [[nodiscard]] LoadVerdict failed(const std::exception_ptr& thrown) {
        talk_.tell_failure(error_of(thrown, kRankLoad));
        bool is_of_caller = false;  // who gets back what it threw, unless the load goes on
        try {
            std::rethrow_exception(thrown);
        } catch (const Error&) {
            is_of_caller = false;
        } catch (...) {
            is_of_caller = true;
        }
        try {
            return LoadVerdict::from(talk_.verdict());
        } catch (const Silence&) {
            if (is_of_caller) {
                talk_.leave_silently();
                std::rethrow_exception(thrown);
            }
            throw;
        } catch (const Error&) {
            if (is_of_caller) {
                std::rethrow_exception(thrown);
            }
            throw;
        }
    }
    // Calls what may end the exchange. The Silence is kept: the caller's functions may change it.
    template <typename Call>
    void talk(const Call& call) {
        try {
            call();
        } catch (const Silence&) {
            gone_ = std::current_exception();
            throw;
        }
        if (talk_.has_heard()) {
            throw stopped();
        }
    }
    void load() {
        LoadOffer offer;
        talk([&] { offer = LoadOffer::from(talk_.hear(kTakeStage)); });
        const LoadOffer own{.name = {},
                            .manifest = 0,
                            .step = context_.options.step,
                            .generation = context_.options.generation};
        if (own.step != offer.step || own.generation != offer.generation) {
            throw refused({}, fmt::format("it asks for {}, and rank 0 for {}; each rank asks for "
                                          "the same",
                                          asked(own), asked(offer)));
        }
        if (offer.name.empty()) {
            ready();
            return;
        }
        const std::string path = join(context_.folder, offer.name);
        wait_until_there(path);
        check(path, offer);
        Checkpoint opened = context_.open(path);
        info_ = opened.info();
        context_.use({.checkpoint = std::move(opened),
                      .ready = [this] { ready(); },
                      .progress = [this](std::uint64_t done,
                                         std::uint64_t /*total*/) { return moved(done); }});
        ready();
        talk_.tell(kFilledStage, {});
    }
    void wait_until_there(const std::string& path) {
        for (int looks = 0; !is_there(context_.files, path); ++looks) {
            if (looks == kLooksForIt) {
                throw refused(path,
                              fmt::format("'{}', which rank 0 loads, is not there on {}; give "
                                          "all ranks the same folder, on storage that all "
                                          "of them mount",
                                          path, name_));
            }
            talk([&] { talk_.pause(kLookForItEvery); });
        }
    }
    void check(const std::string& path, const LoadOffer& offer) {
        if (!offer.generation) {  // one that is asked for may lack shards that are not needed
            const auto entry = parse_checkpoint_name(offer.name);
            const auto found =
                entry ? inspect(context_.engine, context_.files, context_.folder, *entry)
                      : std::nullopt;
            if (!found) {
                throw refused(path, fmt::format("'{}' was removed meanwhile", path));
            }
            if (found->error) {
                throw Error(*found->error);
            }
            if (!found->info.problem.empty()) {
                throw Error(ErrorCode::kDamaged, 0, kRankLoad, path, kNoOffset,
                            found->info.problem);
            }
        }
        if (hash_of_manifest(context_, path) != offer.manifest) {
            throw refused(path, fmt::format("'{}' of {} is another checkpoint than that of rank 0; "
                                            "give all ranks the same folder",
                                            path, name_));
        }
    }
    void ready() {
        if (!is_ready_) {
            is_ready_ = true;
            talk([&] { talk_.tell(kCheckedStage, {}); });
            talk([&] { static_cast<void>(talk_.hear(kFillStage)); });
        }
    }
    [[nodiscard]] bool moved(std::uint64_t done) {
        talk([&] {
            talk_.moved(done);
            talk_.stop_if_failed();
        });
        return true;
    }

    const LoadContext& context_;
    const std::string name_;
    Conversation talk_;
    std::optional<CheckpointInfo> info_;
    std::exception_ptr gone_;
    bool is_ready_ = false;
};

}  // namespace

std::optional<CheckpointInfo> follow_load(const LoadContext& context, Turn& first,
                                          std::vector<CheckpointInfo>* skipped) {
    std::unique_ptr<Turn> next;
    for (;;) {
        Followed one(context, next ? *next : first);
        const LoadVerdict verdict = one.run();
        if (verdict.goes_on) {
            next = std::make_unique<Turn>(context.group, kRankLoad);
            continue;
        }
        for (const auto& [name, why] : verdict.passed_over) {
            CheckpointInfo info;
            info.path = join(context.folder, name);
            info.problem = why;
            skipped != nullptr ? skipped->push_back(std::move(info)) : void();
        }
        return verdict.is_loaded ? one.info() : std::nullopt;
    }
}

// ---- rank 0

LoadLeader::LoadLeader(const LoadContext& context, Turn& first) : context_(context) {
    talk_.emplace(first, context.waiting);
}

void LoadLeader::begin_next() {
    if (exchange_ == Exchange::kIsFollowed) {
        turn_ = std::make_unique<Turn>(context_.group, kRankLoad);
        talk_.emplace(*turn_, context_.waiting);
        exchange_ = Exchange::kRuns;
    }
}

void LoadLeader::announce(const std::string& path) {
    talk_->announce(kTakeStage,
                    LoadOffer{.name = std::string(path.empty() ? "" : base::last_name(path)),
                              .manifest = path.empty() ? 0 : hash_of_manifest(context_, path),
                              .step = context_.options.step,
                              .generation = context_.options.generation}
                        .message());
}

void LoadLeader::load(Checkpoint opened) {
    const std::string path = opened.info().path;
    try {
        begin_next();
        std::exception_ptr failure;  // of another rank: the caller's functions may change it
        bool is_ready = false;
        const auto ready = [&] {
            if (std::exchange(is_ready, true)) {
                return;
            }
            try {
                static_cast<void>(talk_->gather(kCheckedStage));
            } catch (...) {
                failure = std::current_exception();
                throw;
            }
            talk_->announce(kFillStage, {});
        };
        try {
            announce(path);
            context_.use({.checkpoint = std::move(opened),
                          .ready = ready,
                          .progress = [this](std::uint64_t done, std::uint64_t /*total*/) {
                              talk_->moved(done);
                              return true;
                          }});
            ready();
            static_cast<void>(talk_->gather(kFilledStage));
        } catch (...) {
            failure ? std::rethrow_exception(failure) : throw;
        }
    } catch (const Error& error) {
        const bool goes_on = !context_.options.generation &&
                             (error.is_about_the_file() || !is_there(context_.files, path));
        if (!goes_on) {
            throw Over{std::current_exception()};
        }
        talk_->agree(LoadVerdict{.goes_on = true, .is_loaded = false, .passed_over = {}}.message());
        static_cast<void>(talk_->end());
        exchange_ = Exchange::kIsFollowed;
        throw;
    } catch (...) {
        throw Over{std::current_exception()};
    }
}

void LoadLeader::end(bool is_loaded, const std::vector<CheckpointInfo>& passed_over) {
    PENSTOCK_ASSERT(exchange_ == Exchange::kRuns || !is_loaded);
    LoadVerdict verdict{.goes_on = false, .is_loaded = is_loaded, .passed_over = {}};
    for (const CheckpointInfo& info : passed_over) {
        if (verdict.passed_over.size() < kReasonsMax) {
            verdict.passed_over.emplace_back(base::last_name(info.path),
                                             info.problem.substr(0, kReasonMax));
        }
    }
    if (!is_loaded) {
        begin_next();
        announce({});
        static_cast<void>(talk_->gather(kCheckedStage));
        talk_->announce(kFillStage, {});
    }
    talk_->agree(verdict.message());
    exchange_ = Exchange::kIsLast;
    const std::vector<std::uint32_t> deaf = talk_->end();
    if (deaf.size() + 1 == context_.group.ranks().count()) {
        throw Error(ErrorCode::kSystem, ETIMEDOUT, kRankLoad, {}, kNoOffset,
                    fmt::format("this rank had loaded it, but {} was not heard from after that",
                                context_.group.name_of(deaf.front())));
    }
}

void LoadLeader::fail(const Error& error) noexcept {
    try {
        begin_next();
    } catch (...) {  // then the others find out that this rank is silent
        return;
    }
    if (exchange_ == Exchange::kRuns) {
        talk_->fail(error);
        static_cast<void>(talk_->end());
        exchange_ = Exchange::kIsLast;
    }
}

}  // namespace penstock::store
