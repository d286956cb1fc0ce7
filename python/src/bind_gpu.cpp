// SPDX-License-Identifier: Apache-2.0
// gpus(): the GPUs whose memory can be moved, or the reason without one.
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "casters.hpp"
#include "file_object.hpp"
#include "names.hpp"

#include <penstock/gpu.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

namespace {

std::string text_of(const Gpu& gpu) {
    return "Gpu(number=" + std::to_string(gpu.number) + ", name=" + quoted(gpu.name) +
           ", memory_bytes=" + std::to_string(gpu.memory_bytes) + ", compute_capability=(" +
           std::to_string(gpu.compute_major) + ", " + std::to_string(gpu.compute_minor) +
           "), pci=" + quoted(gpu.pci) + ")";
}

std::string joined(const std::vector<std::string>& reasons) {
    std::string text;
    for (const std::string& reason : reasons) {
        text += (text.empty() ? "" : "; ") + reason;
    }
    return text;
}

void bind_cufile(nb::module_& m) {
    nb::class_<CuFileReport>(
        m, "CuFileReport",
        "Whether cuFile (GPUDirect Storage) can carry bytes straight between storage and a GPU; "
        "true where it can.")
        .def_ro("usable", &CuFileReport::usable)
        .def_ro("way", &CuFileReport::way, "'nvidia-fs' or 'PCI P2PDMA'; '' where not usable.")
        .def_ro("reasons", &CuFileReport::reasons, "What is missing, and what to do.")
        .def("__bool__", [](const CuFileReport& report) { return report.usable; })
        .def("__repr__", [](const CuFileReport& report) {
            return "<penstock.CuFileReport: " +
                   (report.usable ? report.way : "none: " + joined(report.reasons)) + ">";
        });
    m.def(
        "cufile_conditions",
        [](const Gpu& gpu, nb::handle path) {
            const std::string text = path_bytes(path, "path", "");
            const nb::gil_scoped_release nogil;
            return cufile_conditions(gpu, text);
        },
        nb::arg("gpu"), nb::arg("path"),
        nb::sig("def cufile_conditions(gpu: Gpu, path: str | bytes | os.PathLike) -> CuFileReport"),
        "Whether files at `path` (a file or folder that is there) and this GPU, one of "
        "`gpus().gpus`, can do without a copy in host memory, or what is missing. Opens neither "
        "libcufile nor a disk. OSError where `path` cannot be looked at. Thread-safe.");
}

void bind_gpu_type(nb::module_& m) {
    nb::class_<Gpu>(m, "Gpu", "A GPU of NVIDIA's, as its driver describes it.")
        .def_ro("number", &Gpu::number, "As in 'cuda:0'; CUDA_VISIBLE_DEVICES counts.")
        .def_ro("name", &Gpu::name)
        .def_ro("memory_bytes", &Gpu::memory_bytes)
        .def_prop_ro(
            "compute_capability",
            [](const Gpu& gpu) { return nb::make_tuple(gpu.compute_major, gpu.compute_minor); },
            nb::sig("def compute_capability(self) -> tuple[int, int]"))
        .def_ro("pci", &Gpu::pci, "Its address on the bus: '0000:3b:00.0'.")
        .def_ro("numa_node", &Gpu::numa_node, "The memory node next to it; -1: not known.")
        .def_ro("cufile", &Gpu::cufile,
                "Whether cuFile can reach it on this machine; cufile_conditions() looks at a disk.")
        .def("__repr__", [](const Gpu& gpu) { return text_of(gpu); });
}

// Host memory of a Python object that is pinned for copies of a GPU; keeps it.
struct PinnedObject {
    Keep keep;
    PinnedMemory pinned;  // let go before the memory
};

// For FastFileWriter. None where it cannot be pinned, or is already.
nb::object pin_for_gpu(nb::handle memory, std::int32_t device) {
    BorrowedMemory host = borrow(memory, "memory", true);
    try {
        PinnedMemory pinned({host.data, host.bytes}, device);
        return nb::cast(new PinnedObject{std::move(host.keep), std::move(pinned)},
                        nb::rv_policy::take_ownership);
    } catch (const Error&) {
        return nb::none();  // copies are made without, slower
    }
}

// After torch's current stream.
void copy_from_gpu(nb::handle into, nb::handle tensor) {
    const BorrowedMemory to = borrow(into, "into", true);
    const BorrowedMemory from = borrow_anywhere(tensor, "data", false, std::nullopt);
    const MemoryCopy copy{to.memory(), from.memory()};
    const nb::gil_scoped_release nogil;
    copy_memory({&copy, 1}, {&from.stream, 1});
}

}  // namespace

void bind_gpu(nb::module_& m) {
    bind_cufile(m);
    bind_gpu_type(m);
    nb::class_<PinnedObject>(m, "_PinnedMemory");
    m.def("_pin_for_gpu", pin_for_gpu, nb::arg("memory"), nb::arg("device"));
    m.def("_copy_from_gpu", copy_from_gpu, nb::arg("into"), nb::arg("tensor"));
    nb::class_<GpuReport>(
        m, "GpuReport",
        "The GPUs of this process, or the reason without one; true where there are.")
        .def_ro("available", &GpuReport::available, "Whether memory of a GPU can be moved.")
        .def_ro("reason", &GpuReport::reason, "Why not; '' where it can.")
        .def_ro("driver_version", &GpuReport::driver_version,
                "The CUDA that the driver knows, 12080 for 12.8; 0 without a driver.")
        .def_ro("library", &GpuReport::library, "The driver's library that was loaded, or ''.")
        .def_prop_ro(
            "gpus", [](const GpuReport& report) { return list_of(report.gpus); },
            nb::sig("def gpus(self) -> list[Gpu]"))
        .def_ro("missing_features", &GpuReport::missing_features,
                "Calls that this driver is too old for; what needs them is done in other ways.")
        .def("__bool__", [](const GpuReport& report) { return report.available; })
        .def("__repr__", [](const GpuReport& report) {
            return report.available
                       ? "<penstock.GpuReport: " + std::to_string(report.gpus.size()) + " GPUs>"
                       : "<penstock.GpuReport: none: " + report.reason + ">";
        });
    m.def(
        "gpus",
        [] {
            const nb::gil_scoped_release nogil;
            return gpus();
        },
        nb::sig("def gpus() -> GpuReport"),
        "The GPUs whose memory read() and write() take, or the reason without one: no driver, too "
        "old, "
        "a forked child.\n"
        "The first call loads NVIDIA's driver, where there is one. Never raises. Thread-safe.");
    m.def(
        "gpu_count",
        [] {
            const nb::gil_scoped_release nogil;
            return gpu_count();
        },
        nb::sig("def gpu_count() -> int"), "How many GPUs gpus() would report.");
}

}  // namespace penstock::python
