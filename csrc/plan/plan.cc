#include "plan/plan.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "plan/arena.h"

namespace penstock {
namespace {

ArenaLayout layout_of(const Recorder& recorder, const PlanTensor& output) {
    std::vector<Lifetime> lifetimes;
    const auto after_last = static_cast<int32_t>(recorder.steps().size());
    for (const PlanBuffer& buffer : recorder.buffers()) {
        lifetimes.push_back(
            {std::max(buffer.first_step, 0), std::max(buffer.last_step, 0), buffer.bytes});
    }
    if (output.buffer != PlanTensor::external) {
        lifetimes.at(static_cast<size_t>(output.buffer)).last = after_last;
    }
    return place(lifetimes);
}

} // namespace

Plan::Plan(const Recorder& recorder, const PlanTensor& output,
           std::shared_ptr<AlignedBuffer> shared)
    : largest_(recorder.largest()), steps_(recorder.steps()), seconds_(recorder.steps().size()) {
    ArenaLayout layout = layout_of(recorder, output);
    offsets_ = std::move(layout.offsets);
    arena_ = shared != nullptr && shared->bytes() >= layout.bytes
                 ? std::move(shared)
                 : std::make_shared<AlignedBuffer>(layout.bytes);
    for (PlanStep& step : steps_) {
        for (size_t i = 0; i < step.tensors.size(); ++i) {
            step.arguments.tensor[i].data = address(step.tensors[i]);
        }
        workspace_bytes_ = std::max(workspace_bytes_, step.kernel->workspace_bytes(step.arguments));
    }
    resize(largest_);
}

std::byte* Plan::address(const PlanTensor& tensor) const {
    if (tensor.buffer == PlanTensor::external) {
        return static_cast<std::byte*>(tensor.view.data);
    }
    return arena_->data() + offsets_.at(static_cast<size_t>(tensor.buffer)) +
           static_cast<size_t>(tensor.offset) * size_of(tensor.view.dtype);
}

TensorView Plan::view(const PlanTensor& tensor) const {
    TensorView view = tensor.view;
    view.data = address(tensor);
    view.shape[0] = extent(tensor.axis, size_, view.shape[0]);
    return view;
}

void Plan::resize(const StepSize& size) {
    if (size == size_) {
        return;
    }
    size_ = size;
    for (PlanStep& step : steps_) {
        for (size_t i = 0; i < step.tensors.size(); ++i) {
            int64_t& rows = step.arguments.tensor[i].shape[0];
            rows = extent(step.tensors[i].axis, size, rows);
        }
    }
}

void Plan::run(ThreadPool::Lease& lease) {
    for (const PlanStep& step : steps_) {
        lease.run(*step.kernel, step.arguments);
    }
}

void Plan::run_timed(ThreadPool::Lease& lease) {
    using Clock = std::chrono::steady_clock;
    auto before = Clock::now();
    for (size_t i = 0; i < steps_.size(); ++i) {
        lease.run(*steps_[i].kernel, steps_[i].arguments);
        const auto after = Clock::now();
        seconds_[i] += std::chrono::duration<double>(after - before).count();
        before = after;
    }
    ++timed_runs_;
}

} // namespace penstock
