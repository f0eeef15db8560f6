#include "plan/plan.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "plan/arena.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Returns a buffer's lifetime, widened to whole segments: blocks of rows are at different steps of
// a segment at the same time.
Lifetime widened(const PlanBuffer& buffer, const std::vector<Segment>& segments) {
    Lifetime life{std::max(buffer.first_step, 0), std::max(buffer.last_step, 0), buffer.bytes};
    for (const Segment& segment : segments) {
        if (life.first >= segment.first && life.first < segment.last) {
            life.first = segment.first;
        }
        if (life.last >= segment.first && life.last < segment.last) {
            life.last = segment.last - 1;
        }
    }
    return life;
}

// Lays out the arena. A buffer in the slabs needs arena memory only for steps that run kernel by
// kernel.
ArenaLayout layout_of(const Recorder& recorder, int32_t output, const Segments& segments,
                      const RowBlocks& blocks) {
    std::vector<Lifetime> lifetimes;
    const auto& buffers = recorder.buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
        const PlanBuffer& buffer = buffers[i];
        if (buffer.kept) {
            const int32_t first = widened(buffer, segments.all).first;
            lifetimes.push_back(
                {first, static_cast<int32_t>(recorder.steps().size()), buffer.bytes});
        } else if (segments.in_slab(static_cast<int32_t>(i))) {
            const auto rows = static_cast<size_t>(blocks.least());
            lifetimes.push_back({buffer.first_step, buffer.last_step, rows * buffer.row_bytes});
        } else {
            lifetimes.push_back(widened(buffer, segments.all));
        }
    }
    if (output != PlanTensor::external) {
        lifetimes.at(static_cast<size_t>(output)).last =
            static_cast<int32_t>(recorder.steps().size());
    }
    return place(lifetimes);
}

} // namespace

Plan::Plan(const Recorder& recorder, const PlanTensor& output, const RowBlocks& blocks,
           std::shared_ptr<AlignedBuffer> shared)
    : largest_(recorder.largest()), steps_(recorder.steps()), blocks_(blocks),
      segments_(find_segments(recorder, output.buffer, blocks)), seconds_(recorder.steps().size()) {
    ArenaLayout layout = layout_of(recorder, output.buffer, segments_, blocks);
    offsets_ = std::move(layout.offsets);
    arena_ = shared != nullptr && shared->bytes() >= layout.bytes
                 ? std::move(shared)
                 : std::make_shared<AlignedBuffer>(layout.bytes);
    for (PlanStep& step : steps_) {
        for (size_t i = 0; i < step.tensors.size(); ++i) {
            step.arguments.tensor[i].data = address(step.tensors[i]);
        }
        kernel_bytes_ = std::max(kernel_bytes_, step.kernels.workspace_bytes(step.arguments));
    }
    for (const Segment& segment : segments_.all) {
        slab_bytes_ = std::max(slab_bytes_, segment.slab_bytes);
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

// Returns the arguments of `step` for rows [first, first + count), with buffers in a thread's slab.
Arguments Plan::arguments_for_rows(const PlanStep& step, int64_t first, int64_t count,
                                   std::byte* slab) const {
    Arguments call = step.arguments;
    for (size_t i = 0; i < step.tensors.size(); ++i) {
        const PlanTensor& tensor = step.tensors[i];
        if (tensor.axis != Axis::tokens) {
            continue;
        }
        TensorView& view = call.tensor[i];
        const auto size = static_cast<int64_t>(size_of(view.dtype));
        view.shape[0] = count;
        view.data = segments_.in_slab(tensor.buffer)
                        ? slab + segments_.slab_offsets[static_cast<size_t>(tensor.buffer)] +
                              tensor.offset * size
                        : static_cast<std::byte*>(view.data) + first * view.stride[0] * size;
    }
    return call;
}

// Runs one block of rows through a segment.
void Plan::run_block(const SegmentRun& segment_run, int64_t block,
                     const Workspace& workspace) const {
    const int64_t first = segment_run.cut.first(block),
                  count = segment_run.cut.first(block + 1) - first;
    auto* const slab = static_cast<std::byte*>(workspace.data);
    Workspace rest{slab + slab_bytes_, workspace.bytes - slab_bytes_};
    for (int32_t i = segment_run.segment.first; i < segment_run.segment.last; ++i) {
        const auto started =
            segment_run.nanoseconds != nullptr ? Clock::now() : Clock::time_point{};
        const PlanStep& step = steps_[static_cast<size_t>(i)];
        const Arguments call = arguments_for_rows(step, first, count, slab);
        const Kernel& kernel = step.kernels.of(count);
        const int phases = kernel.phases(call);
        for (int phase = 0; phase < phases; ++phase) {
            const int64_t tasks = kernel.tasks(call, phase);
            for (int64_t task = 0; task < tasks; ++task) {
                kernel.run(call, phase, task, rest);
            }
        }
        if (segment_run.nanoseconds != nullptr) {
            segment_run.nanoseconds[i] += nanoseconds_since(started) / blocks_.threads;
        }
    }
}

// Presents a segment as a kernel with one task per block.
const Kernel Plan::segment_kernel{
    "segment", [](const Arguments&) { return 1; },
    [](const Arguments& call, int) {
        return static_cast<const SegmentRun*>(call.object)->cut.blocks;
    },
    [](const Arguments& call, int, int64_t task, Workspace& workspace) {
        const auto& segment_run = *static_cast<const SegmentRun*>(call.object);
        segment_run.plan.run_block(segment_run, task, workspace);
    },
    [](const Arguments&) { return size_t{0}; }};

void Plan::run(ThreadPool::Lease& lease, std::atomic<int64_t>* nanoseconds) {
    const bool in_blocks = size_.tokens > blocks_.least();
    auto segment = segments_.all.begin();
    const auto count = static_cast<int32_t>(steps_.size());
    for (int32_t i = 0; i < count;) {
        if (in_blocks && segment != segments_.all.end() && segment->first == i) {
            const SegmentRun segment_run{*this, *segment, cut_rows(size_.tokens, blocks_),
                                         nanoseconds};
            Arguments call;
            call.object = &segment_run;
            lease.run(segment_kernel, call);
            i = segment->last;
            ++segment;
            continue;
        }
        const auto started = nanoseconds != nullptr ? Clock::now() : Clock::time_point{};
        const PlanStep& step = steps_[static_cast<size_t>(i)];
        lease.run(step.kernels.of(step.arguments), step.arguments);
        if (nanoseconds != nullptr) {
            nanoseconds[i] += nanoseconds_since(started);
        }
        ++i;
    }
}

void Plan::run(ThreadPool::Lease& lease) {
    run(lease, nullptr);
}

void Plan::run_timed(ThreadPool::Lease& lease) {
    std::vector<std::atomic<int64_t>> nanoseconds(steps_.size());
    run(lease, nanoseconds.data());
    for (size_t i = 0; i < steps_.size(); ++i) {
        seconds_[i] += 1e-9 * static_cast<double>(nanoseconds[i].load());
    }
    ++timed_runs_;
}

} // namespace penstock
