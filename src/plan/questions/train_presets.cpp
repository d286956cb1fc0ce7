// SPDX-License-Identifier: Apache-2.0
// Published throughputs of training jobs, one table. MLPerf Training logs what an accelerator took;
// MLPerf Storage and DLIO set a time of computation that storage has to hide behind.
#include <penstock/plan.hpp>

#include <string>
#include <vector>

namespace penstock::plan {

namespace {

constexpr const char* kEos =
    "MLPerf Training v3.1, NVIDIA, eos_ngc23, 8 x H100: tracked_stats.throughput of the log";
constexpr const char* kDlio = "DLIO, workload files of argonne-lcf/dlio_benchmark";
constexpr const char* kStorage1 = "MLPerf Storage v1.0, workload files: batch / computation_time";
constexpr const char* kStorage2 = "MLPerf Storage v2.0, workload files: batch / computation_time";
constexpr const char* kStorage3 =
    "MLPerf Storage v3.0, workload files of mlcommons/storage: batch / computation_time";
constexpr const char* kRecord = "record_length_bytes of the workload file";

// A throughput that a log has for so many accelerators together.
TrainPreset logged(const char* preset, const char* model, const char* accelerator, double samples,
                   double accelerators, double bytes, std::string source,
                   const char* bytes_source) {
    TrainPreset row;
    row.preset = preset;
    row.model = model;
    row.accelerator = accelerator;
    row.samples_per_second = samples / accelerators;
    row.bytes_per_sample = bytes;
    row.source = std::move(source);
    row.bytes_source = bytes_source;
    return row;
}

// A batch and the time that it takes to compute.
TrainPreset timed(const char* preset, const char* model, const char* accelerator, double batch,
                  double seconds, double bytes, double utilisation, double samples_per_file,
                  const char* source, const char* bytes_source = kRecord) {
    TrainPreset row;
    row.preset = preset;
    row.model = model;
    row.accelerator = accelerator;
    row.samples_per_second = batch / seconds;
    row.bytes_per_sample = bytes;
    row.batch = batch;
    row.utilisation = utilisation;
    row.samples_per_file = samples_per_file;
    row.source = source;
    row.bytes_source = bytes_source;
    return row;
}

void add_logged(std::vector<TrainPreset>& out) {
    constexpr const char* kImageNet = "ImageNet, 138 GB of JPEG / 1,281,167 images";
    constexpr double kImageNetBytes = 138e9 / 1'281'167;
    const std::string eos = kEos;
    out.push_back(
        logged("snia-2024", "resnet50", "h100", 56'600, 8, kImageNetBytes, eos, kImageNet));
    out.push_back(logged("snia-2024", "unet3d", "h100", 560, 8, 73.3e6, eos,
                         "KiTS19, half of DLIO's record: 16-bit voxels"));
    constexpr const char* k31 = "training-3.1";
    out.push_back(logged(k31, "resnet50", "h100", 56'600, 8, kImageNetBytes, eos, kImageNet));
    out.push_back(logged(k31, "unet3d", "h100", 560, 8, 146'600'628, eos,
                         "KiTS19, record_length_bytes of DLIO: 32-bit voxels"));
    out.push_back(logged(k31, "bert", "h100", 7'760, 8, 2'500, eos,
                         "Wikipedia, record_length_bytes of DLIO"));
    out.push_back(logged(k31, "maskrcnn", "h100", 1'578, 8, 161e3, eos,
                         "COCO 2017, mean of the JPEG files (estimate)"));
    out.push_back(logged(k31, "rnnt", "h100", 13'900, 8, 216e3, eos,
                         "LibriSpeech, mean of the FLAC files (estimate); 390 kB as WAV"));
    out.push_back(logged(k31, "retinanet", "h100", 282.9 * 8, 8, 322'957,
                         eos + ", which is of one accelerator: 4,572 iterations of 256 in 517.4 s",
                         "OpenImages, record_length_bytes of MLPerf Storage; 300 kB elsewhere"));
    out.push_back(logged(k31, "dlrm", "h100", 13.5e6, 8, 160, eos,
                         "Criteo, 40 columns of 4 bytes; 906 bytes of a multi-hot sample"));
    out.push_back(logged(k31, "stable-diffusion", "h100", 6'850, 64, 131'072,
                         "MLPerf Training v3.1, NVIDIA, 64 x H100: throughput of the log",
                         "LAION, latents of 4 x 64 x 64 in 32 bits with their moments; 32,768 in "
                         "16 bits without"));
    out.push_back(logged(k31, "gpt3", "h100", 2048.0 * 2048 / 11.04, 512, 4,
                         "MLPerf Training v3.1, NVIDIA, 512 x H100: 4.19 M tokens in 11.04 s",
                         "C4, a token in 32 bits; 2 bytes in 16"));
    out.push_back(logged("training-5.1", "flux", "gb200", 2'304 / 0.5105, 72, 2'164'832,
                         "MLPerf Training v5.1, NVIDIA, 72 x GB200: 2,304 samples in 0.5105 s",
                         "record_length_bytes of MLPerf Storage: 541,208 floats"));
}

// The three models and two accelerators of both v1.0 and v2.0.
void add_storage(std::vector<TrainPreset>& out, const char* preset, const char* source) {
    out.push_back(timed(preset, "unet3d", "a100", 7, 0.636, 146'600'628, 0.9, 1, source));
    out.push_back(timed(preset, "unet3d", "h100", 7, 0.323, 146'600'628, 0.9, 1, source));
    out.push_back(timed(preset, "resnet50", "a100", 400, 0.435, 114'660, 0.9, 1251, source));
    out.push_back(timed(preset, "resnet50", "h100", 400, 0.224, 114'660, 0.9, 1251, source));
    out.push_back(timed(preset, "cosmoflow", "a100", 1, 0.00551, 2'828'486, 0.7, 1, source));
    out.push_back(timed(preset, "cosmoflow", "h100", 1, 0.0035, 2'828'486, 0.7, 1, source));
}

void add_storage_3(std::vector<TrainPreset>& out) {
    constexpr const char* k3 = "storage-3.0";
    constexpr const char* kColumns = "40 of 200 columns of 4 bytes; a whole row is 761 bytes";
    out.push_back(timed(k3, "unet3d", "b200", 7, 0.162, 146'600'628, 0.9, 1, kStorage3));
    out.push_back(timed(k3, "retinanet", "b200", 24, 0.04755, 322'957, 0.85, 1, kStorage3));
    out.push_back(timed(k3, "retinanet", "mi355", 36, 0.071325, 322'957, 0.85, 1, kStorage3));
    out.push_back(timed(k3, "retinanet", "h100", 16, 0.18, 153'600, 0.85, 1, kStorage3));
    out.push_back(timed(k3, "flux", "b200", 48, 1.35, 2'164'832, 0.9, 288, kStorage3));
    out.push_back(timed(k3, "flux", "mi355", 72, 2.025, 2'164'832, 0.9, 288, kStorage3));
    out.push_back(timed(k3, "dlrm", "b200", 16'384, 0.000375, 160, 0.7, 1, kStorage3, kColumns));
    out.push_back(timed(k3, "dlrm", "mi355", 16'384, 0.0005625, 160, 0.7, 1, kStorage3, kColumns));
}

}  // namespace

std::vector<TrainPreset> train_presets() {
    std::vector<TrainPreset> out;
    add_logged(out);
    add_storage(out, "storage-1.0", kStorage1);
    add_storage(out, "storage-2.0", kStorage2);
    add_storage_3(out);
    out.push_back(timed("dlio", "bert", "v100", 48, 0.968, 2'500, 0, 313'532, kDlio));
    out.push_back(timed("dlio", "dlrm", "a100", 1, 0.0643, 671e6, 0, 1, kDlio,
                        "record of indexed_binary: 671 MB, a whole batch of rows"));
    return out;
}

}  // namespace penstock::plan
