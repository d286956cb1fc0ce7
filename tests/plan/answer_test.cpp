// SPDX-License-Identifier: Apache-2.0
#include "plan/derive.hpp"

#include <penstock/plan.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::plan {
namespace {

using testing::HasSubstr;

// An answer of each question.
std::vector<Answer> answers() {
    return {ask("train", {{"model", "resnet50"}, {"accelerators", "8"}}),
            ask("train", {{"model", "unet3d"}, {"preset", "storage-2.0"}}),
            ask("train", {{"list", "true"}}),
            ask("size", {{"model", "unet3d"}, {"memory_bytes", "512GiB"}}),
            ask("mix", {{"jobs", R"({"jobs": [{"kind": "train", "model": "flux"},
                {"kind": "checkpoint", "bytes": "1GB", "every": "1h", "within": 60}]})"}})};
}

void expect_same(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.verb, b.verb);
    EXPECT_EQ(a.title, b.title);
    EXPECT_EQ(a.notes, b.notes);
    ASSERT_EQ(a.figures.size(), b.figures.size());
    for (std::size_t i = 0; i < a.figures.size(); ++i) {
        EXPECT_EQ(a.figures[i].name, b.figures[i].name);
        EXPECT_EQ(a.figures[i].value, b.figures[i].value);
        EXPECT_EQ(a.figures[i].formula, b.figures[i].formula);
        ASSERT_EQ(a.figures[i].inputs.size(), b.figures[i].inputs.size());
        for (std::size_t k = 0; k < a.figures[i].inputs.size(); ++k) {
            EXPECT_EQ(a.figures[i].inputs[k].value, b.figures[i].inputs[k].value);
            EXPECT_EQ(a.figures[i].inputs[k].source, b.figures[i].inputs[k].source);
        }
    }
    ASSERT_EQ(a.tables.size(), b.tables.size());
    for (std::size_t i = 0; i < a.tables.size(); ++i) {
        EXPECT_EQ(a.tables[i].rows, b.tables[i].rows);
    }
    ASSERT_EQ(a.series.size(), b.series.size());
    for (std::size_t i = 0; i < a.series.size(); ++i) {
        EXPECT_EQ(a.series[i].x, b.series[i].x);
        EXPECT_EQ(a.series[i].y, b.series[i].y);
    }
}

TEST(PlanAnswers, JsonBringsEachDigitBack) {
    for (const Answer& answer : answers()) {
        const std::string json = json_of(answer);
        const Answer back = answer_of_json(json);
        expect_same(answer, back);
        EXPECT_EQ(json_of(back), json);
        EXPECT_EQ(text_of(back), text_of(answer));
    }
}

TEST(PlanAnswers, TextFitsTheColumns) {
    for (const Answer& answer : answers()) {
        for (const std::string& text : {text_of(answer), explain(answer)}) {
            std::istringstream lines(text);
            for (std::string line; std::getline(lines, line);) {
                std::size_t width = 0;
                for (const char c : line) {
                    width += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
                }
                EXPECT_LE(width, 80) << line;
                EXPECT_FALSE(line.ends_with(' ')) << line;
            }
        }
    }
}

TEST(PlanAnswers, EachInputHasASource) {
    for (const Answer& answer : answers()) {
        for (const Figure& figure : answer.figures) {
            EXPECT_TRUE(std::isfinite(figure.value)) << figure.name;
            EXPECT_FALSE(figure.formula.empty()) << figure.name;
            for (const Input& input : figure.inputs) {
                EXPECT_FALSE(input.source.empty()) << figure.name << " " << input.name;
            }
        }
    }
}

TEST(PlanAnswers, MarkdownHasARowAFigure) {
    const Answer answer = ask("train", {{"model", "resnet50"}});
    EXPECT_THAT(markdown_of(answer), HasSubstr("| read rate | 762.1 MB/s (726.8 MiB/s) | "
                                               "`read_bytes_per_second = samples_per_second * "
                                               "bytes_per_sample` | "));
}

TEST(PlanAnswers, AFigureThatIsNotThereNamesTheNearest) {
    const Answer answer = ask("train", {{"model", "resnet50"}});
    EXPECT_EQ(answer.at("samples_per_second").value, 7075);
    try {
        static_cast<void>(answer.at("sample_per_second"));
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("did you mean 'samples_per_second'?"));
    }
}

TEST(PlanAnswers, WhatIsNotFiniteNamesItsInputs) {
    Answer answer;
    answer.verb = "train";
    const double inf = std::numeric_limits<double>::infinity();
    try {
        add_figure(answer, {"rate", "rate", inf, "B/s", "a * b", {{"a", 1e300, "", "given"}}});
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("rate is out of range with a = 1e+300"));
    }
    EXPECT_TRUE(answer.figures.empty());
}

TEST(PlanAnswers, HostileJsonIsRefused) {
    const std::string good = json_of(ask("train", {{"model", "resnet50"}}));
    for (std::size_t cut = 0; cut + 1 < good.size(); cut += 7) {
        EXPECT_THROW(static_cast<void>(answer_of_json(good.substr(0, cut))), Error);
    }
    for (const char* text :
         {"[]", "{}", "null", R"({"verb": 3})", R"({"verb": "a", "title": []})"}) {
        EXPECT_THROW(static_cast<void>(answer_of_json(text)), Error) << text;
    }
}

TEST(PlanAnswers, VerbsAndOptionsThatAreNotKnownNameTheNearest) {
    const auto said = [](const char* verb, const std::vector<Word>& words) {
        try {
            static_cast<void>(ask(verb, words));
            return std::string("answered");
        } catch (const Error& error) {
            return std::string(error.what());
        }
    };
    EXPECT_THAT(said("trian", {}), HasSubstr("did you mean 'train'?"));
    EXPECT_THAT(said("train", {{"modle", "x"}}), HasSubstr("did you mean 'model'?"));
    EXPECT_THAT(said("train", {{"model", "resnet5"}}), HasSubstr("did you mean 'resnet50'?"));
    EXPECT_THAT(said("train", {{"model", "resnet50"}, {"preset", "snia-2023"}}),
                HasSubstr("did you mean 'snia-2024'?"));
    EXPECT_THAT(said("train", {{"model", "bert"}, {"preset", "storage-2.0"}}),
                HasSubstr("preset 'storage-2.0' has no bert; it is in training-3.1, dlio"));
    EXPECT_THAT(said("train", {{"model", "bert"}, {"model", "bert"}}), HasSubstr("given twice"));
    EXPECT_THAT(said("train", {}), HasSubstr("expected --model"));
    EXPECT_THAT(
        said("size", {{"model", "bert"}, {"preset", "training-3.1"}, {"memory_bytes", "1GiB"}}),
        HasSubstr("bert has no batch in training-3.1"));
}

}  // namespace
}  // namespace penstock::plan
