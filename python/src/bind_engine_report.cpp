// SPDX-License-Identifier: Apache-2.0
// The reports of an engine: its options, its counters, and its description.
#include "api/option_table.hpp"
#include "bind.hpp"
#include "casters.hpp"
#include "engine_text.hpp"

#include <penstock/engine.hpp>

#include <string>

namespace penstock::python {

namespace {

void bind_options(nb::module_& m) {
    nb::class_<EngineOptions> c(m, "EngineOptions",
                                "The settings of an engine, as they are in force.");
    for (const api::WordOption& option : api::kWordOptions) {
        c.def_prop_ro(
            option.name, [&option](const EngineOptions& o) { return option.get(o); }, option.about);
    }
    for (const api::Option& option : api::kOptions) {
        c.def_prop_ro(
            option.name, [&option](const EngineOptions& o) { return option.get(o); }, option.about);
    }
    c.def("__repr__",
          [](const EngineOptions& o) { return "EngineOptions(" + options_text(o) + ")"; });
}

void bind_stats(nb::module_& m) {
    nb::class_<LatencyStats>(m, "LatencyStats",
                             "Nanoseconds of a request at the device, to within 12 %.")
        .def_ro("p50", &LatencyStats::p50)
        .def_ro("p90", &LatencyStats::p90)
        .def_ro("p99", &LatencyStats::p99)
        .def_ro("p999", &LatencyStats::p999)
        .def_ro("max", &LatencyStats::max);
    nb::class_<EngineStats>(m, "EngineStats",
                            "Since the engine was made; take differences for an interval.")
        .def_ro("bytes_read", &EngineStats::bytes_read)
        .def_ro("bytes_written", &EngineStats::bytes_written)
        .def_ro("bytes_cached", &EngineStats::bytes_cached,
                "Of reads, from the page cache; in no other figure.")
        .def_ro("cache_questions", &EngineStats::cache_questions,
                "How often the kernel was asked what of a file is in the page cache.")
        .def_ro("requests", &EngineStats::requests)
        .def_ro("inline_requests", &EngineStats::inline_requests, "Of them, on callers' threads.")
        .def_ro("registered_requests", &EngineStats::registered_requests,
                "Of them, from and to memory whose pages the kernel holds: that of empty() and the "
                "engine's own, with io_uring, once it is used again and again.")
        .def_ro("registered_bytes", &EngineStats::registered_bytes, "Of such memory, now.")
        .def_ro("retries", &EngineStats::retries)
        .def_ro("slot_requests", &EngineStats::slot_requests, "Through memory of the engine's.")
        .def_ro("edge_requests", &EngineStats::edge_requests, "Ends of writes, by the cache.")
        .def_ro("copied_bytes", &EngineStats::copied_bytes)
        .def_ro("cufile_requests", &EngineStats::cufile_requests,
                "Straight between files and GPUs.")
        .def_ro("cufile_bytes", &EngineStats::cufile_bytes, "Moved by them.")
        .def_ro("cufile_refusals", &EngineStats::cufile_refusals,
                "Of them, those that went on through host memory.")
        .def_ro("gpu_copied_bytes", &EngineStats::gpu_copied_bytes, "By GPUs' copy engines.")
        .def_ro("gpu_pinned_bytes", &EngineStats::gpu_pinned_bytes, "Pinned for GPUs, now.")
        .def_ro("system_calls", &EngineStats::system_calls)
        .def_ro("running", &EngineStats::running, "Transfers under way.")
        .def_ro("latency", &EngineStats::latency)
        .def("__repr__", [](const EngineStats& s) {
            return "EngineStats(bytes_read=" + std::to_string(s.bytes_read) +
                   ", bytes_written=" + std::to_string(s.bytes_written) +
                   ", requests=" + std::to_string(s.requests) +
                   ", running=" + std::to_string(s.running) + ")";
        });
}

void bind_description(nb::module_& m) {
    using Device = EngineDescription::Device;
    nb::class_<Device>(m, "DeviceDescription",
                       "A device that the engine has moved something from or to.")
        .def_prop_ro("major", [](const Device& device) { return device.id.major; })
        .def_prop_ro("minor", [](const Device& device) { return device.id.minor; })
        .def_ro("channels", &Device::channels)
        .def_ro("backend", &Device::backend)
        .def_ro("memory_refused", &Device::memory_refused,
                "Why the kernel holds no more memory for good, or ''.");
    using OfGpu = EngineDescription::OfGpu;
    nb::class_<OfGpu>(m, "GpuDescription",
                      "A GPU whose memory the engine has moved bytes to or from.")
        .def_ro("number", &OfGpu::number, "As in 'cuda:0'.")
        .def_ro("way", &OfGpu::way, "By which way the bytes go.")
        .def_ro("channels", &OfGpu::channels, "That move them.")
        .def_ro("pinned_bytes", &OfGpu::pinned_bytes, "Of the slots that they share, now.")
        .def_ro("pinned_bytes_max", &OfGpu::pinned_bytes_max, "At most.");
    nb::class_<EngineDescription>(
        m, "EngineDescription",
        "The configuration that runs, and why; str() gives a few lines for people.")
        .def_ro("backend", &EngineDescription::backend, "'io_uring', 'libaio' or 'posix'.")
        .def_ro("detail", &EngineDescription::detail)
        .def_ro("refusals", &EngineDescription::refusals, "Why those before it were not taken.")
        .def_prop_ro(
            "devices", [](const EngineDescription& d) { return list_of(d.devices); },
            nb::sig("def devices(self) -> list[DeviceDescription]"))
        .def_prop_ro(
            "gpus", [](const EngineDescription& d) { return list_of(d.gpus); },
            nb::sig("def gpus(self) -> list[GpuDescription]"),
            "Those whose memory the engine has met. Those of the machine: penstock.gpus().")
        .def_ro("cufile", &EngineDescription::cufile,
                "Whether cuFile is used, by which way, and what it refused last; or why not.")
        .def_ro("page_cache", &EngineDescription::page_cache,
                "Whether this kernel can be asked what of a file is in the page cache.")
        .def_ro("options", &EngineDescription::options)
        .def("__str__", &EngineDescription::text);
}

}  // namespace

void bind_engine_report(nb::module_& m) {
    bind_options(m);
    bind_stats(m);
    bind_description(m);
}

}  // namespace penstock::python
