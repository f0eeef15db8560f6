// Records a step as a list of kernel calls over tensors that have no memory yet. Does not use
// Python.
//
// A plan is recorded once and replayed for steps of any size up to the largest: the extent of
// dimension 0 of a tensor may be free (tokens, rows, rows + 1, samples) and is filled in per run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/kernel.h"
#include "penstock/kernel_choice.h"

namespace penstock {

// The quantity that dimension 0 of a tensor counts; `fixed` if it is the same in every step.
enum class Axis : uint8_t { fixed, tokens, rows, row_starts, samples };

struct StepSize {
    int64_t tokens = 0;
    int64_t rows = 0;
    int64_t samples = 0;
    bool operator==(const StepSize&) const = default;
};

// Returns the extent of a free axis in a step, or `fixed` if the axis is not free.
constexpr int64_t extent(Axis axis, const StepSize& step, int64_t fixed) {
    switch (axis) {
    case Axis::fixed: return fixed;
    case Axis::tokens: return step.tokens;
    case Axis::rows: return step.rows;
    case Axis::row_starts: return step.rows + 1;
    case Axis::samples: return step.samples;
    }
    return fixed;
}

// A tensor of a plan. It is either external memory (`buffer` is -1 and view.data is set) or a
// window of an arena buffer, whose address is known when the plan is finished.
struct PlanTensor {
    static constexpr int32_t external = -1;
    TensorView view; // with the extents of the largest step
    Axis axis = Axis::fixed;
    int32_t buffer = external;
    int64_t offset = 0; // in elements from the start of the buffer
};

// The rows that a call computes: those whose flag has the value `value`. `flags`: the buffer of an
// input [rows] int32 of zeros and ones; `external`: the call computes all rows.
struct RowFilter {
    int32_t flags = PlanTensor::external;
    int32_t value = 0;
};

struct PlanStep {
    KernelChoice kernels;
    Arguments arguments;
    std::vector<PlanTensor> tensors;
    RowFilter filter;
    // Whether the step reads rows of per-token tensors by their index in the step, so that all rows
    // must be written before.
    bool gathers = false;
};

struct PlanBuffer {
    size_t bytes = 0; // for the largest step
    size_t row_bytes = 0;
    Axis axis = Axis::fixed;
    bool is_input = false;
    int32_t first_step = -1; // -1: not written yet
    int32_t last_step = -1;
    bool kept = false; // read after the last step
};

class Recorder {
  public:
    explicit Recorder(const StepSize& largest) : largest_(largest) {}

    // Creates a tensor that the caller fills before each run.
    PlanTensor input(DType dtype, Axis axis, std::span<const int64_t> trailing);

    // Creates a tensor that a recorded call must write before another call reads it.
    PlanTensor temporary(DType dtype, Axis axis, std::span<const int64_t> trailing);

    // Records one call. Bit i of `written` means that the call writes tensor i. `gathers`: see
    // PlanStep. Throws std::logic_error if the call reads a temporary that no call has written. The
    // kernels, `object` and external tensors must outlive the plan. Only row-wise kernels whose
    // tensors all have the axis of the flags may have a `filter`; it must name an input.
    void record(const KernelChoice& kernels, std::span<const PlanTensor> tensors, uint32_t written,
                std::span<const int64_t> integers, std::span<const float> reals, const void* object,
                bool gathers = false, const RowFilter& filter = {});

    // Keeps the memory of a tensor until the next run, like that of the output. Throws
    // std::logic_error if no call has written it.
    void keep(const PlanTensor& tensor);

    const StepSize& largest() const { return largest_; }
    const std::vector<PlanStep>& steps() const { return steps_; }
    const std::vector<PlanBuffer>& buffers() const { return buffers_; }

  private:
    void check_filter(const KernelChoice& kernels, std::span<const PlanTensor> tensors,
                      const RowFilter& filter) const;
    PlanTensor allocate(DType dtype, Axis axis, std::span<const int64_t> trailing, int32_t first);

    StepSize largest_;
    std::vector<PlanStep> steps_;
    std::vector<PlanBuffer> buffers_;
};

} // namespace penstock
