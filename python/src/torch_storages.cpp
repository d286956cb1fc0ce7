// SPDX-License-Identifier: Apache-2.0
#include "torch_storages.hpp"

#include "names.hpp"

#include <string>

namespace penstock::python {

namespace {

const Name& pointer_name() {
    static const Name name("data_ptr");
    return name;
}

const Name& size_name() {
    static const Name name("nbytes");
    return name;
}

nb::object untyped_storage_of(nb::handle tensor) {
    static const Name name("untyped_storage");
    return call(tensor, name);
}

std::uintptr_t pointer_of(nb::handle object) {
    return nb::cast<std::uintptr_t>(call(object, pointer_name()));
}

// A device's text takes longer than all the rest.
std::string torch_location_of(nb::handle tensor, nb::handle storage) {
    static const Name is_cpu("is_cpu");
    static const Name device("device");
    return truth(get(tensor, is_cpu)) ? "cpu" : text(get(storage, device));
}

}  // namespace

std::uint32_t TorchStorages::of(nb::handle tensor) {
    static const Name cdata("_cdata");
    static const Name is_cuda("is_cuda");
    static const Name cpu("cpu");
    nb::object own = untyped_storage_of(tensor);
    const auto [known, fresh] = by_storage_.try_emplace(nb::cast<std::uint64_t>(get(own, cdata)),
                                                        static_cast<std::uint32_t>(memory_.size()));
    if (!fresh) {
        return known->second;
    }
    keep_.push_back(own);  // its address stays its own
    const std::string location = torch_location_of(tensor, own);
    StorageMemory memory;
    memory.bytes = nb::cast<std::size_t>(call(own, size_name()));
    const bool on_gpu =
        location != "cpu" && truth(get(tensor, is_cuda)) && place_on_gpu(memory, pointer_of(own));
    memory.copied = location != "cpu" && !on_gpu;
    if (memory.copied && together_) {
        fetched_.append(nb::make_tuple(known->second, own));
    } else if (memory.copied) {
        own = call(own, cpu);
    }
    memory.data = reinterpret_cast<std::byte*>(pointer_of(own));
    memory.keep = own;
    memory.belongs_to(own);
    return add(memory.bytes, location, std::move(memory));
}

std::uint32_t TorchStorages::add_part(nb::handle local, std::uint64_t bytes, bool is_made) {
    static const Name is_cpu("is_cpu");
    const std::uintptr_t address = pointer_of(local);
    const nb::object own = untyped_storage_of(local);
    StorageMemory memory;
    memory.bytes = nb::cast<std::size_t>(get(local, size_name()));
    memory.copied = is_made;
    if (memory.bytes != 0 && !truth(get(local, is_cpu))) {
        static_cast<void>(place_on_gpu(memory, address));
    }
    memory.data = reinterpret_cast<std::byte*>(address);
    memory.keep = own;
    memory.belongs_to(own);
    memory.holds(local);
    const std::string location = torch_location_of(local, own);
    return add(bytes, location.substr(0, location.find(':')), std::move(memory));
}

std::uint32_t TorchStorages::add(std::uint64_t bytes, const std::string& location,
                                 StorageMemory memory) {
    const auto number = static_cast<std::uint32_t>(memory_.size());
    tree_.storages.push_back({bytes, location, std::to_string(number)});
    memory_.push_back(std::move(memory));
    return number;
}

}  // namespace penstock::python
