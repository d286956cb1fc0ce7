// SPDX-License-Identifier: Apache-2.0
// Random states over all of the grammar.
#pragma once

#include "format/grammar.hpp"
#include "format/support.hpp"
#include "format/torch_types.hpp"
#include "format/value.hpp"

#include <bit>
#include <string>
#include <utility>
#include <vector>

namespace penstock::format::test {

class RandomTree {
public:
    explicit RandomTree(std::uint64_t seed) : random_(seed) {}

    ValueTree make() {
        const std::uint64_t storages = below(random_, 6);
        for (std::uint64_t i = 0; i < storages; ++i) {
            tree_.storages.push_back({16 * below(random_, 40),
                                      below(random_, 3) == 0 ? "cuda:1" : "cpu",
                                      std::to_string(i)});
        }
        tree_.root = container(0);
        return std::move(tree_);
    }

private:
    static Value of(ValueKind kind, std::string text = {}) {
        Value value;
        value.kind = kind;
        value.text = std::move(text);
        return value;
    }

    std::string text() {
        static constexpr std::string_view kTexts[] = {"",          "a", "weight", "\u00e9\u20ac",
                                                      "_metadata", "0"};
        return std::string(kTexts[below(random_, std::size(kTexts))]) +
               (below(random_, 2) == 0 ? std::to_string(below(random_, 50)) : "");
    }

    std::int64_t integer() {
        const auto bits = below(random_, 64);
        const auto value = static_cast<std::int64_t>(random_() >> bits);
        return below(random_, 2) == 0 ? value : -value;
    }

    ValueId key() {
        Value value;
        switch (below(random_, 5)) {
            case 0:
                value = of(ValueKind::kInt);
                value.integer = integer();
                break;
            case 2:
                value = of(ValueKind::kPickled, text());
                break;
            case 1: {
                value = of(ValueKind::kTuple);
                value.items = {tree_.add(of(ValueKind::kString, text())),
                               tree_.add(of(ValueKind::kNone))};
                break;
            }
            default:
                value = of(ValueKind::kString, text());
        }
        return tree_.add(std::move(value));
    }

    ValueId scalar() {
        Value value;
        switch (below(random_, 11)) {
            case 0:
                value = of(ValueKind::kNone);
                break;
            case 1:
                value = of(ValueKind::kBool);
                value.flag = below(random_, 2) == 0;
                break;
            case 2: {
                value = of(ValueKind::kBigInt, std::string(9 + below(random_, 400), '\x5a'));
                value.text.back() = below(random_, 2) == 0 ? '\x80' : '\x01';
                break;
            }
            case 3:
                value = of(ValueKind::kFloat);
                value.real = std::bit_cast<double>(random_());
                break;
            case 4:
                value = of(ValueKind::kComplex);
                value.real = 1.5;
                value.imaginary = -2;
                break;
            case 5:
            case 6: {
                const Bytes bytes = random_bytes(random_, below(random_, 300));
                constexpr ValueKind kKinds[] = {ValueKind::kBytes, ValueKind::kByteArray,
                                                ValueKind::kPickled};
                value = of(kKinds[below(random_, 3)], std::string(text_of(bytes)));
                break;
            }
            case 7:
                value = of(ValueKind::kDtype,
                           std::string(kTorchTypes[below(random_, kTorchTypes.size())].torch));
                break;
            case 8:
                value = of(ValueKind::kDevice, below(random_, 2) == 0 ? "cpu" : "cuda:7");
                break;
            case 9:
                return key();
            default:
                return numpy();
        }
        return tree_.add(std::move(value));
    }

    ValueId numpy() {
        static constexpr std::pair<std::string_view, std::size_t> kTypes[] = {
            {"<f8", 8}, {"|b1", 1},   {"<U3", 12}, {"|S5", 5},
            {"<U0", 0}, {"<c16", 16}, {"|u1", 1},  {"|S0", 0}};
        const auto& [type, bytes] = kTypes[below(random_, std::size(kTypes))];
        Value value = of(below(random_, 2) == 0 ? ValueKind::kNumpyScalar : ValueKind::kNumpyArray,
                         std::string(type));
        std::size_t count = 1;
        if (value.kind == ValueKind::kNumpyArray) {
            for (std::uint64_t d = below(random_, 3); d > 0; --d) {
                Value extent = of(ValueKind::kInt);
                extent.integer = static_cast<std::int64_t>(below(random_, 4));
                count *= static_cast<std::size_t>(extent.integer);
                value.items.push_back(tree_.add(std::move(extent)));
            }
            value.flag = below(random_, 2) == 0;
        }
        value.data = text_of(random_bytes(random_, count * bytes));
        return tree_.add(std::move(value));
    }

    ValueId tensor() {
        TensorValue t;
        t.storage = static_cast<std::uint32_t>(below(random_, tree_.storages.size()));
        const TorchType& type = kTorchTypes[below(random_, kTorchTypes.size())];
        t.type = type.type;
        const std::uint64_t elements = tree_.storages[t.storage].bytes / type.torch_bytes();
        if (elements == 0 || below(random_, 10) == 0) {
            t.shape = {0, 3};
            t.strides = {3, 1};
            t.offset = below(random_, 2) == 0 ? 0 : below(random_, elements + 20);
        } else {
            t.offset = below(random_, elements);
            const std::uint64_t room = elements - t.offset;
            t.strides = {below(random_, 3), below(random_, 5)};
            t.shape = {1, 1 + (t.strides[1] == 0 ? 7 : (room - 1) / t.strides[1])};
        }
        t.parameter = below(random_, 3) == 0;
        t.requires_grad = below(random_, 2) == 0;
        t.conjugated = below(random_, 8) == 0;
        t.negated = below(random_, 8) == 0;
        Value value = of(ValueKind::kTensor);
        value.integer = static_cast<std::int64_t>(tree_.tensors.size());
        tree_.tensors.push_back(std::move(t));
        return tree_.add(std::move(value));
    }

    ValueId any(int depth) {
        const std::uint64_t which = below(random_, 10);
        if (which < 2 && !shareable_.empty()) {
            return shareable_[below(random_, shareable_.size())];
        }
        if (which < 4 && !tree_.storages.empty()) {
            return tensor();
        }
        return which < 7 && depth < 6 && tree_.values.size() < kValues ? container(depth)
                                                                       : scalar();
    }

    // Lists and dicts may be shared, also before they are complete: then they contain themselves.
    ValueId container(int depth) {
        static constexpr ValueKind kKinds[] = {
            ValueKind::kList,        ValueKind::kTuple,       ValueKind::kDict,
            ValueKind::kOrderedDict, ValueKind::kDefaultDict, ValueKind::kCounter,
            ValueKind::kSet,         ValueKind::kFrozenSet,   ValueKind::kSize};
        const ValueKind kind = kKinds[below(random_, std::size(kKinds))];
        const ValueId id = tree_.add(of(kind));
        std::vector<ValueId> items;
        const std::uint64_t count = below(random_, below(random_, 50) == 0 ? 2500 : 7);
        const bool dict = is_dict(kind);
        if (dict || kind == ValueKind::kList) {
            shareable_.push_back(id);
        }
        for (std::uint64_t i = 0; i < count; ++i) {
            if (dict) {
                items.push_back(key());
                items.push_back(any(depth + 1));
            } else if (kind == ValueKind::kSet || kind == ValueKind::kFrozenSet) {
                items.push_back(key());
            } else if (kind == ValueKind::kSize) {
                Value extent = of(ValueKind::kInt);
                extent.integer = integer();
                items.push_back(tree_.add(std::move(extent)));
            } else {
                items.push_back(any(depth + 1));
            }
        }
        if (kind == ValueKind::kTuple) {
            shareable_.push_back(id);  // also by a list in it
        }
        if (kind == ValueKind::kOrderedDict && below(random_, 2) == 0) {
            Value attributes = of(ValueKind::kDict);
            attributes.items = {tree_.add(of(ValueKind::kString, "_metadata")), scalar()};
            const ValueId made = tree_.add(std::move(attributes));
            tree_.values[id].attributes = made;
        }
        if (kind == ValueKind::kDefaultDict && below(random_, 2) == 0) {
            tree_.values[id].text = kFactories[below(random_, kFactories.size())].name;
        }
        tree_.values[id].items = std::move(items);
        return id;
    }

    static constexpr std::size_t kValues = 300;  // about; then no containers are made any more

    Random random_;
    ValueTree tree_;
    std::vector<ValueId> shareable_;
};

}  // namespace penstock::format::test
