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
        const int32_t flags = step.filter.flags;
        const auto same = [&](const FlaggedRows& rows) { return rows.flags == flags; };
        if (flags != PlanTensor::external && std::none_of(flagged_.begin(), flagged_.end(), same)) {
            flagged_.push_back({flags, recorder.buffers().at(static_cast<size_t>(flags)).axis, {}});
        }
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

// Returns the arguments of `step` for some of its rows.
Arguments Plan::arguments_for_rows(const PlanStep& step, const RowRun& rows,
                                   const Slab& slab) const {
    Arguments call = step.arguments;
    for (size_t i = 0; i < step.tensors.size(); ++i) {
        const PlanTensor& tensor = step.tensors[i];
        if (tensor.axis == Axis::fixed) {
            continue;
        }
        TensorView& view = call.tensor[i];
        const auto size = static_cast<int64_t>(size_of(view.dtype));
        view.shape[0] = rows.last - rows.first;
        auto* const data = static_cast<std::byte*>(view.data);
        const int64_t row_bytes = view.stride[0] * size;
        view.data = slab.data != nullptr && segments_.in_slab(tensor.buffer)
                        ? slab.data + segments_.slab_offsets[static_cast<size_t>(tensor.buffer)] +
                              tensor.offset * size + (rows.first - slab.first) * row_bytes
                        : data + rows.first * row_bytes;
    }
    return call;
}

// Finds the runs of flagged rows in the inputs, before the first step may overwrite these.
void Plan::find_runs() {
    for (FlaggedRows& rows : flagged_) {
        for (auto& runs : rows.runs) {
            runs.clear();
        }
        const auto* flags = reinterpret_cast<const int32_t*>(
            arena_->data() + offsets_.at(static_cast<size_t>(rows.flags)));
        const int64_t count = extent(rows.axis, size_, 0);
        for (int64_t first = 0, last = 0; first < count; first = last) {
            while (last < count && flags[last] == flags[first]) {
                ++last;
            }
            rows.runs[flags[first] == 0 ? 0 : 1].push_back({first, last});
        }
    }
}

template <class Function>
void Plan::for_runs(const PlanStep& step, const RowRun& rows, const Function& f) const {
    if (step.filter.flags == PlanTensor::external) {
        return f(rows);
    }
    const auto flagged = std::find_if(flagged_.begin(), flagged_.end(), [&](const auto& one) {
        return one.flags == step.filter.flags;
    });
    for (const RowRun& run : flagged->runs[step.filter.value == 0 ? 0 : 1]) {
        const RowRun part{std::max(run.first, rows.first), std::min(run.last, rows.last)};
        if (part.first < part.last) {
            f(part);
        }
    }
}

// Runs one block of rows through a segment.
void Plan::run_block(const SegmentRun& segment_run, int64_t block,
                     const Workspace& workspace) const {
    const RowRun rows{segment_run.cut.first(block), segment_run.cut.first(block + 1)};
    const Slab slab{static_cast<std::byte*>(workspace.data), rows.first};
    Workspace rest{slab.data + slab_bytes_, workspace.bytes - slab_bytes_};
    for (int32_t i = segment_run.segment.first; i < segment_run.segment.last; ++i) {
        const auto started =
            segment_run.nanoseconds != nullptr ? Clock::now() : Clock::time_point{};
        const PlanStep& step = steps_[static_cast<size_t>(i)];
        for_runs(step, rows, [&](const RowRun& run) {
            const Arguments call = arguments_for_rows(step, run, slab);
            const Kernel& kernel = step.kernels.of(run.last - run.first);
            const int phases = kernel.phases(call);
            for (int phase = 0; phase < phases; ++phase) {
                const int64_t tasks = kernel.tasks(call, phase);
                for (int64_t task = 0; task < tasks; ++task) {
                    kernel.run(call, phase, task, rest);
                }
            }
        });
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

// Runs a step over all rows that it computes, shared by all threads.
void Plan::run_whole(ThreadPool::Lease& lease, const PlanStep& step) const {
    if (step.filter.flags == PlanTensor::external) {
        return lease.run(step.kernels.of(step.arguments), step.arguments);
    }
    const RowRun all{0, step.arguments.tensor[0].shape[0]};
    for_runs(step, all, [&](const RowRun& run) {
        lease.run(step.kernels.of(run.last - run.first), arguments_for_rows(step, run, {}));
    });
}

void Plan::run(ThreadPool::Lease& lease, std::atomic<int64_t>* nanoseconds) {
    find_runs();
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
        run_whole(lease, steps_[static_cast<size_t>(i)]);
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
