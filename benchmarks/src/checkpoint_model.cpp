// SPDX-License-Identifier: Apache-2.0
// A save as the model of a disk sees it: the requests of the file's own plan, in its own transfers
// and with its own window, from tensors that lie as torch puts them (64 bytes past a page), so that
// each passes through slots. Neither sync nor commit is in it: the bound has none either.
#include "model.hpp"
#include "state/structure/structure.hpp"
#include "state/writing/write_plan.hpp"

#include <penstock/checkpoint.hpp>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::benchmarks {

namespace {

using format::FileRange;
using format::safetensors::Tensor;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTorchShift = 64;
constexpr std::uint64_t kWidth = 1024;

/// The parameters of a GPT-like model of width 1024, thrice (Adam's moments): 2 GiB in fp32.
std::vector<Tensor> state_of(std::uint64_t bytes_wanted) {
    const std::vector<std::vector<std::uint64_t>> block = {
        {3 * kWidth, kWidth},
        {3 * kWidth},
        {kWidth, kWidth},
        {kWidth},
        {4 * kWidth, kWidth},
        {4 * kWidth},
        {kWidth, 4 * kWidth},
        {kWidth},
        {kWidth},
        {kWidth},
        {kWidth},
        {kWidth},
    };
    std::vector<Tensor> tensors;
    std::uint64_t bytes = 0;
    const auto add = [&](const std::vector<std::uint64_t>& shape) {
        for (const char* part : {"weight", "exp_avg", "exp_avg_sq"}) {
            Tensor tensor;
            tensor.name = std::to_string(tensors.size()) + "." + part;
            tensor.type = tensor::ElementType::kF32;
            tensor.shape = shape;
            bytes += format::safetensors::bytes_of(tensor.type, shape).value();
            tensors.push_back(std::move(tensor));
        }
    };
    add({50'257, kWidth});
    while (bytes < bytes_wanted) {
        for (const auto& shape : block) {
            add(shape);
        }
    }
    return tensors;
}

class Window {
public:
    Window(simulation::Simulation& simulation, std::shared_ptr<os::File> file)
        : simulation_(simulation), file_(std::move(file)) {}

    void send(const state::FileImage& image, FileRange range) {
        const std::uint64_t bytes = range.end - range.begin;
        while (bytes_ != 0 && bytes_ + bytes > state::kWriteWindowBytes) {
            await_oldest();
        }
        engine::TransferSpec spec;
        spec.op = engine::Op::kWrite;
        spec.files = {file_};
        spec.extents = engine::Extents(state::extents_of(image, range));
        sent_.push_back({value_of(simulation_.core().start(std::move(spec))), bytes});
        bytes_ += bytes;
    }

    void await_all() {
        while (!sent_.empty()) {
            await_oldest();
        }
    }

private:
    struct Sent {
        engine::Transfer* transfer;
        std::uint64_t bytes;
    };

    void await_oldest() {
        const Sent sent = sent_.front();
        sent_.pop_front();
        bytes_ -= sent.bytes;
        if (!simulation_.run(*sent.transfer)) {
            throw std::runtime_error("the save hangs: nothing will ever happen again");
        }
        const auto* error = sent.transfer->error();
        const std::string message = error != nullptr ? error->message : "";
        sent.transfer->mark_observed();
        sent.transfer->abandon();
        sent.transfer->release();
        if (error != nullptr) {
            throw std::runtime_error(message);
        }
    }

    simulation::Simulation& simulation_;
    std::shared_ptr<os::File> file_;
    std::deque<Sent> sent_;
    std::uint64_t bytes_ = 0;
};

}  // namespace

void checkpoint_save(const Arguments& arguments, Figures& figures) {
    std::vector<Tensor> tensors = state_of(arguments.number("bytes"));
    std::uint64_t memory_bytes = 0;
    std::vector<std::uint64_t> places;
    for (const Tensor& tensor : tensors) {
        places.push_back(memory_bytes + kTorchShift);
        const std::uint64_t bytes =
            format::safetensors::bytes_of(tensor.type, tensor.shape).value();
        memory_bytes += (kTorchShift + bytes + kPage - 1) / kPage * kPage;
    }
    const Addresses memory(memory_bytes);
    std::vector<state::FileImage::Payload> payloads;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        payloads.emplace_back(
            memory.at(places[i]),
            format::safetensors::bytes_of(tensors[i].type, tensors[i].shape).value());
    }
    const auto image = state::FileImage::safetensors(std::move(tensors), {}, payloads);
    const std::uint64_t bytes = image.file().total_bytes();

    simulation::Simulation simulation(simulation_options(arguments));
    const auto file = value_of(simulation.file_system().open(
        "/state.safetensors", {.access = Access::kReadWrite, .create = true}));
    if (const auto result = file->truncate(bytes); !result) {
        throw std::runtime_error(result.error().message);
    }
    const state::WritePlan plan = state::write_plan(image, kPage);
    const auto start = simulation.now();
    Window window(simulation, file);
    for (const auto* ranges : {&plan.free, &plan.waiting}) {
        for (const FileRange range : *ranges) {
            window.send(image, range);
        }
    }
    window.await_all();
    const auto taken = static_cast<double>(simulation.now() - start);
    figures.set("value", bound_ns(bytes, 1) / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("bytes", bytes);
    figures.set("operations", static_cast<std::uint64_t>(plan.free.size() + plan.waiting.size()));
}

// A store's save of many small tensors, to be counted by callgrind. One thread less sleeps in the
// ring with POSIX calls. The structure is decoded again as often as `--readbacks` says.
void checkpoint_readback(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kBytes = 16 << 10;
    const std::uint64_t count = arguments.number("count");
    const int readbacks =
        static_cast<int>(arguments.number("readbacks")) * (arguments.handicap("twice") ? 2 : 1);
    format::ValueTree tree;
    const auto add = [&tree](format::ValueKind kind, std::string text, std::int64_t integer) {
        format::Value value;
        value.kind = kind;
        value.text = std::move(text);
        value.integer = integer;
        return tree.add(std::move(value));
    };
    const std::vector<std::byte> memory(kBytes, std::byte{7});
    std::vector<std::span<const std::byte>> storages;
    tree.root = add(format::ValueKind::kDict, {}, 0);
    for (std::uint64_t i = 0; i < count; ++i) {
        const format::ValueId key =
            add(format::ValueKind::kString, "model.layers." + std::to_string(i) + ".weight", 0);
        const format::ValueId item =
            add(format::ValueKind::kTensor, {}, static_cast<std::int64_t>(i));
        tree.values[tree.root].items.insert(tree.values[tree.root].items.end(), {key, item});
        tree.storages.push_back({kBytes, "cpu", {}});
        format::TensorValue tensor;
        tensor.storage = static_cast<std::uint32_t>(i);
        tensor.shape = {kBytes / 4};
        tensor.strides = {1};
        tree.tensors.push_back(std::move(tensor));
        storages.emplace_back(memory);
    }
    EngineOptions options;
    options.backend = BackendKind::kPosix;
    CheckpointStore store(std::make_shared<Engine>(options), FileSystem::local(),
                          {arguments.text("dir") + "/readback"}, {.keep = 1});
    const State state = state::state_of(tree, storages, readbacks);
    const CheckpointInfo info = store.save(state);
    figures.set("value", static_cast<double>(info.tensors));
    figures.set("bytes", info.tensor_bytes);
    figures.set("operations", count);
}

}  // namespace penstock::benchmarks
