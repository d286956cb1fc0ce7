// SPDX-License-Identifier: Apache-2.0
#include <penstock/plan.hpp>

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace penstock::plan {
namespace {

using ::testing::HasSubstr;

// The minimum of a function that falls and then rises, by golden sections of the logarithm.
template <typename Function>
double lowest(Function function, double low, double high) {
    const double ratio = (std::sqrt(5.0) - 1) / 2;
    double a = std::log(low);
    double b = std::log(high);
    for (int i = 0; i < 200; ++i) {
        const double c = b - ratio * (b - a);
        const double d = a + ratio * (b - a);
        (function(std::exp(c)) < function(std::exp(d)) ? b : a) =
            function(std::exp(c)) < function(std::exp(d)) ? d : c;
    }
    return std::exp((a + b) / 2);
}

// A job second by second in long doubles: the mean time from one durable save to the next, from
// the equations of a renewal, not solved by hand.
double mean_time(const FailureModel& model, double interval) {
    const long double rate = 1 / static_cast<long double>(model.mtbf);
    const long double period =
        interval + model.stall + static_cast<long double>(model.slowdown) * model.write;
    const long double retry = static_cast<long double>(interval) + model.stall + model.write;
    // A restore that failures begin again, each after a downtime.
    const long double restored =
        model.downtime + std::expm1(rate * model.restore) * (1 / rate + model.downtime);
    const long double again = std::expm1(rate * retry) * (1 / rate + restored);
    return static_cast<double>(-std::expm1(-rate * period) * (1 / rate + restored + again));
}

std::vector<FailureModel> models() {
    std::vector<FailureModel> out;
    for (const double mtbf : {600.0, 10'000.0, 1e6, 3e8}) {
        for (const double save : {1e-4, 0.01, 0.1, 0.5, 2.0}) {
            for (const double stalled : {1.0, 0.3, 0.01}) {
                FailureModel model;
                model.mtbf = mtbf;
                model.stall = save * mtbf * stalled;
                model.write = save * mtbf * (1 - stalled);
                model.slowdown = stalled < 1 ? 0.2 : 0;
                model.restore = 0.05 * mtbf;
                model.downtime = 0.1 * mtbf;
                out.push_back(model);
            }
        }
    }
    return out;
}

TEST(PlanInterval, GoodputIsThatOfTheRenewal) {
    for (const FailureModel& model : models()) {
        const double best = best_interval(model);
        for (const double factor : {1.0, 2.0, 5.0}) {
            const double interval = best * factor;
            EXPECT_NEAR(goodput(model, interval) / (interval / mean_time(model, interval)), 1,
                        1e-9);
        }
    }
}

TEST(PlanInterval, BestIsTheMinimum) {
    for (const FailureModel& model : models()) {
        const double least = std::max(1e-6, (1 - model.slowdown) * model.write);
        const double found =
            lowest([&](double at) { return mean_time(model, at) / at; }, least, 50 * model.mtbf);
        EXPECT_NEAR(best_interval(model) / found, 1, 1e-4) << model.mtbf << " " << model.stall;
    }
}

TEST(PlanInterval, SmallCostsKeepTheirDigits) {
    FailureModel model;
    model.mtbf = 1e12;
    for (const double cost : {1e-6, 1e-3, 1.0, 1e3}) {
        model.stall = cost;
        // Young's rule is the limit: the next term of the series is cost / 3.
        EXPECT_NEAR(best_interval(model) / (std::sqrt(2 * cost * model.mtbf) - 2 * cost / 3), 1,
                    1e-6);
    }
}

TEST(PlanInterval, SimulationAgrees) {
    for (const FailureModel& model : models()) {
        if (model.stall + model.write > model.mtbf) {
            continue;  // too few saves become durable
        }
        const double best = best_interval(model);
        const SimulatedJob job = simulate_job(model, best, 300'000, 1);
        EXPECT_NEAR(job.goodput / goodput(model, best), 1, 0.01)
            << model.mtbf << " " << model.stall;
        EXPECT_NEAR(job.goodput + job.lost + job.saving + job.restoring, 1, 1e-9);
    }
    FailureModel model;
    model.mtbf = 86400;
    model.stall = 60;
    EXPECT_DOUBLE_EQ(simulate_job(model, 3000, 1000, 7).goodput,
                     simulate_job(model, 3000, 1000, 7).goodput);
    EXPECT_NE(simulate_job(model, 3000, 1000, 7).goodput,
              simulate_job(model, 3000, 1000, 8).goodput);
}

TEST(PlanInterval, BetterMachinesKeepMore) {
    std::mt19937_64 random(2);
    std::uniform_real_distribution<double> any(0.001, 1);
    for (int i = 0; i < 1000; ++i) {
        FailureModel model;
        model.mtbf = 1e5 * any(random);
        model.stall = 100 * any(random);
        model.write = 100 * any(random);
        model.slowdown = 0.5 * any(random);
        model.restore = 100 * any(random);
        model.downtime = 100 * any(random);
        const double kept = goodput(model, best_interval(model));
        EXPECT_GT(kept, 0);
        EXPECT_LT(kept, 1);
        for (double FailureModel::*worse :
             {&FailureModel::stall, &FailureModel::write, &FailureModel::slowdown,
              &FailureModel::restore, &FailureModel::downtime}) {
            FailureModel other = model;
            other.*worse *= 1.5;
            EXPECT_LT(goodput(other, best_interval(other)), kept);
        }
        FailureModel other = model;
        other.mtbf *= 2;
        EXPECT_GT(goodput(other, best_interval(other)), kept);
    }
}

TEST(PlanInterval, AnswersWithAllRules) {
    IntervalOptions options;
    options.accelerator_mtbf = 50'000 * 3600.0;
    options.accelerators = 16384;
    options.save = 60;
    options.simulate = 100'000;
    const Answer answer = interval(options);
    EXPECT_NEAR(answer.at("mtbf_seconds").value, 3.05 * 3600, 36);
    EXPECT_NEAR(answer.at("simulated_goodput").value, answer.at("goodput").value, 0.002);
    ASSERT_EQ(answer.tables.size(), 1U);
    ASSERT_EQ(answer.tables[0].rows.size(), 4U);
    for (const auto& row : answer.tables[0].rows) {
        EXPECT_LE(std::get<double>(row[2]), answer.at("goodput").value * (1 + 1e-12));
        EXPECT_NEAR(std::get<double>(row[1]) / answer.at("interval_seconds").value, 1, 0.06);
    }
    ASSERT_EQ(answer.series.size(), 1U);
    for (const double y : answer.series[0].y) {
        EXPECT_LE(y, answer.at("goodput").value * (1 + 1e-12));
    }
}

std::string message_of(const IntervalOptions& options) {
    try {
        (void)interval(options);
        return "no error";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(PlanInterval, RefusesByName) {
    IntervalOptions options;
    EXPECT_THAT(message_of(options), HasSubstr("save"));
    options.save = 60;
    EXPECT_THAT(message_of(options), HasSubstr("mtbf"));
    options.mtbf = 86400;
    options.stall = 61;
    EXPECT_THAT(message_of(options), HasSubstr("stall"));
    options.stall = 1;
    options.slowdown = 1;
    EXPECT_THAT(message_of(options), HasSubstr("slowdown"));
    options.slowdown = 0;
    options.interval = 10;
    EXPECT_THAT(message_of(options), HasSubstr("interval"));
    options.interval.reset();
    options.accelerators = 8;
    EXPECT_THAT(message_of(options), HasSubstr("accelerators"));
    options.accelerators = 1;
    options.simulate = 1e12;
    EXPECT_THAT(message_of(options), HasSubstr("simulate"));
    options.simulate.reset();
    options.mtbf = 1;
    options.save = 36000;
    options.stall.reset();
    EXPECT_THAT(message_of(options), HasSubstr("nothing would be kept"));
    FailureModel model;
    EXPECT_THROW((void)goodput(model, 1), Error);
    model.mtbf = 1;
    EXPECT_THROW((void)best_interval(model), Error);
    model.stall = 1;
    for (const double wrong : {-1.0, std::nan(""), HUGE_VAL, 1e16}) {
        EXPECT_THROW((void)goodput(model, wrong), Error);
        FailureModel other = model;
        other.restore = wrong;
        EXPECT_THROW((void)goodput(other, 1), Error);
    }
    EXPECT_THROW((void)simulate_job(model, 1, 0, 1), Error);
    EXPECT_THROW((void)simulate_job(model, 1, 10'000'001, 1), Error);
}

}  // namespace
}  // namespace penstock::plan
