// A recorded step with its memory, replayed without Python.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/aligned_buffer.h"
#include "plan/recorder.h"
#include "plan/segments.h"
#include "plan/thread_pool.h"

namespace penstock {

class Plan {
  public:
    // Lays out the arena. `output` stays valid after the last step. Steps of more than
    // blocks.least() tokens pass through each segment in blocks of rows. The plan uses the memory
    // of `shared` if that is large enough; the two plans must then not run at the same time, and a
    // run of either invalidates the output of the other.
    Plan(const Recorder& recorder, const PlanTensor& output, const RowBlocks& blocks = {},
         std::shared_ptr<AlignedBuffer> shared = nullptr);

    // Returns the memory of an input or of the output of this plan, at the size set by `resize`.
    TensorView view(const PlanTensor& tensor) const;

    // Sets the free extents. Each must be within 0..largest(). Do not call during a run.
    void resize(const StepSize& size);

    // Runs all steps under `lease`, which must have been acquired with workspace_bytes().
    void run(ThreadPool::Lease& lease);

    // Does the same as `run`, and adds the time of each step to `seconds()`: wall time for a step
    // that runs alone, else the time of the step's blocks divided by the number of threads that
    // share them.
    void run_timed(ThreadPool::Lease& lease);

    const StepSize& largest() const { return largest_; }
    const StepSize& size() const { return size_; }
    size_t workspace_bytes() const { return slab_bytes_ + kernel_bytes_; }
    size_t arena_bytes() const { return arena_->bytes(); }
    const std::shared_ptr<AlignedBuffer>& arena() const { return arena_; }
    const std::vector<PlanStep>& steps() const { return steps_; }
    const std::vector<double>& seconds() const { return seconds_; }
    int64_t timed_runs() const { return timed_runs_; }

  private:
    // One run of a segment, which the segment's tasks share. `nanoseconds` is indexed by step;
    // null: no timing.
    struct SegmentRun {
        const Plan& plan;
        const Segment& segment;
        BlockCut cut;
        std::atomic<int64_t>* nanoseconds;
    };
    static const Kernel segment_kernel;

    // Rows [first, last) of a step.
    struct RowRun {
        int64_t first = 0;
        int64_t last = 0;
    };
    // The runs of rows whose flag is 0, and of those whose flag is 1, for one input of flags.
    struct FlaggedRows {
        int32_t flags = PlanTensor::external;
        Axis axis = Axis::tokens;
        std::array<std::vector<RowRun>, 2> runs;
    };
    // The memory of a block's buffers, which starts with row `first`.
    struct Slab {
        std::byte* data = nullptr; // null: all buffers are in the arena
        int64_t first = 0;
    };

    std::byte* address(const PlanTensor& tensor) const;
    void run(ThreadPool::Lease& lease, std::atomic<int64_t>* nanoseconds);
    void run_block(const SegmentRun& segment_run, int64_t block, const Workspace& workspace) const;
    void run_whole(ThreadPool::Lease& lease, const PlanStep& step) const;
    Arguments arguments_for_rows(const PlanStep& step, const RowRun& rows, const Slab& slab) const;
    void find_runs();
    // Calls f(RowRun) for each run of rows within `rows` that `step` computes.
    template <class Function>
    void for_runs(const PlanStep& step, const RowRun& rows, const Function& f) const;

    StepSize largest_;
    StepSize size_;
    std::vector<PlanStep> steps_;
    std::vector<size_t> offsets_; // of the buffers in the arena
    std::vector<FlaggedRows> flagged_;
    RowBlocks blocks_;
    Segments segments_;
    size_t slab_bytes_ = 0;       // per thread, at the start of the thread's workspace
    size_t kernel_bytes_ = 0;     // workspace of the kernels, after the slab
    std::vector<double> seconds_; // per step, summed over timed_runs_ runs
    int64_t timed_runs_ = 0;
    std::shared_ptr<AlignedBuffer> arena_;
};

} // namespace penstock
