// A recorded step with its memory, ready to run with no Python in it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/aligned_buffer.h"
#include "plan/recorder.h"
#include "plan/thread_pool.h"

namespace penstock {

class Plan {
  public:
    // Lays out the arena. `output` stays valid after the last step. The memory of `shared` is used
    // where it is large enough: then the plans must not run at the same time, and each invalidates
    // the output of the other.
    Plan(const Recorder& recorder, const PlanTensor& output,
         std::shared_ptr<AlignedBuffer> shared = nullptr);

    // The memory of a tensor of this plan, at the size set by `resize`.
    TensorView view(const PlanTensor& tensor) const;

    // Sets the free extents. Each must be within 0..largest; not while a run is under way.
    void resize(const StepSize& size);

    // Runs all steps under `lease`, which must have been acquired with workspace_bytes().
    void run(ThreadPool::Lease& lease);

    // Like `run`, and adds the time of each step to `seconds()`.
    void run_timed(ThreadPool::Lease& lease);

    const StepSize& largest() const { return largest_; }
    const StepSize& size() const { return size_; }
    size_t workspace_bytes() const { return workspace_bytes_; }
    size_t arena_bytes() const { return arena_->bytes(); }
    const std::shared_ptr<AlignedBuffer>& arena() const { return arena_; }
    const std::vector<PlanStep>& steps() const { return steps_; }
    const std::vector<double>& seconds() const { return seconds_; }
    int64_t timed_runs() const { return timed_runs_; }

  private:
    std::byte* address(const PlanTensor& tensor) const;

    StepSize largest_;
    StepSize size_;
    std::vector<PlanStep> steps_;
    std::vector<size_t> offsets_; // of the buffers, in the arena
    std::vector<double> seconds_; // per step, over timed_runs_ runs
    int64_t timed_runs_ = 0;
    std::shared_ptr<AlignedBuffer> arena_;
    size_t workspace_bytes_ = 0;
};

} // namespace penstock
