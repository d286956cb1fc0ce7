// SPDX-License-Identifier: Apache-2.0
#include "plan/json_tree.hpp"

#include "base/raise.hpp"

#include <utility>

namespace penstock::plan {

namespace {

class Builder final : public format::JsonHandler {
public:
    std::string key(std::string& name) override {
        open_.back().names.push_back(std::move(name));
        return {};
    }
    std::string scalar(const format::JsonScalar& value) override {
        using Kind = format::JsonScalar::Kind;
        JsonTree node;
        switch (value.kind) {
            case Kind::kNull:
                break;
            case Kind::kBool:
                node.kind = JsonTree::Kind::kBool;
                node.number = static_cast<double>(value.number);
                break;
            case Kind::kUnsigned:
                node.kind = JsonTree::Kind::kNumber;
                node.number = static_cast<double>(value.number);
                break;
            case Kind::kNegative:
            case Kind::kReal:
                node.kind = JsonTree::Kind::kNumber;
                node.number = value.real;
                break;
            case Kind::kString:
                node.kind = JsonTree::Kind::kString;
                node.text = std::move(*value.text);
                break;
        }
        add(std::move(node));
        return {};
    }
    std::string open(bool array) override {
        open_.emplace_back().kind = array ? JsonTree::Kind::kArray : JsonTree::Kind::kObject;
        return {};
    }
    std::string close(bool /*array*/) override {
        JsonTree node = std::move(open_.back());
        open_.pop_back();
        add(std::move(node));
        return {};
    }
    [[nodiscard]] JsonTree take() { return std::move(root_); }

private:
    void add(JsonTree node) {
        if (open_.empty()) {
            root_ = std::move(node);
        } else {
            open_.back().items.push_back(std::move(node));
        }
    }

    JsonTree root_;
    std::vector<JsonTree> open_;
};

}  // namespace

const JsonTree* JsonTree::find(std::string_view name) const {
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i] == name) {
            return &items[i];
        }
    }
    return nullptr;
}

std::string_view JsonTree::kind_name() const {
    switch (kind) {
        case Kind::kNull:
            return "null";
        case Kind::kBool:
            return "true or false";
        case Kind::kNumber:
            return "a number";
        case Kind::kString:
            return "a text";
        case Kind::kArray:
            return "a list";
        case Kind::kObject:
            return "an object";
    }
    return "nothing";
}

JsonTree json_tree(std::string_view text, std::string_view operation) {
    Builder builder;
    base::unwrap(format::read_json(text, builder, operation));
    return builder.take();
}

}  // namespace penstock::plan
