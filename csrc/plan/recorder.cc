#include "plan/recorder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace penstock {

PlanTensor Recorder::allocate(DType dtype, Axis axis, std::span<const int64_t> trailing,
                              int32_t first) {
    PlanTensor tensor;
    tensor.axis = axis;
    tensor.buffer = static_cast<int32_t>(buffers_.size());
    tensor.view.dtype = dtype;
    tensor.view.rank = static_cast<int>(trailing.size()) + 1;
    tensor.view.shape[0] = extent(axis, largest_, 1);
    int64_t stride = 1;
    for (size_t i = trailing.size(); i > 0; --i) {
        tensor.view.shape[i] = trailing[i - 1];
        tensor.view.stride[i] = stride;
        stride *= trailing[i - 1];
    }
    tensor.view.stride[0] = stride;
    const size_t row_bytes = static_cast<size_t>(stride) * size_of(dtype);
    buffers_.push_back({static_cast<size_t>(tensor.view.shape[0]) * row_bytes, row_bytes, axis,
                        first >= 0, first, first});
    return tensor;
}

PlanTensor Recorder::input(DType dtype, Axis axis, std::span<const int64_t> trailing) {
    return allocate(dtype, axis, trailing, 0);
}

PlanTensor Recorder::temporary(DType dtype, Axis axis, std::span<const int64_t> trailing) {
    return allocate(dtype, axis, trailing, -1);
}

void Recorder::check_filter(const KernelChoice& kernels, std::span<const PlanTensor> tensors,
                            const RowFilter& filter) const {
    if (filter.flags == PlanTensor::external) {
        return;
    }
    const PlanBuffer& flags = buffers_.at(static_cast<size_t>(filter.flags));
    const bool alike = std::all_of(tensors.begin(), tensors.end(), [&](const PlanTensor& tensor) {
        return tensor.axis == flags.axis;
    });
    if (!flags.is_input || !alike || !kernels.row_wise()) {
        throw std::logic_error(std::string(kernels.name()) +
                               ": only a row-wise call over rows that an input flags can be "
                               "restricted to some of them");
    }
}

void Recorder::record(const KernelChoice& kernels, std::span<const PlanTensor> tensors,
                      uint32_t written, std::span<const int64_t> integers,
                      std::span<const float> reals, const void* object, bool gathers,
                      const RowFilter& filter) {
    const auto now = static_cast<int32_t>(steps_.size());
    check_filter(kernels, tensors, filter);
    PlanStep step;
    step.filter = filter;
    step.kernels = kernels;
    step.gathers = gathers;
    step.tensors.assign(tensors.begin(), tensors.end());
    for (size_t i = 0; i < tensors.size(); ++i) {
        step.arguments.tensor[i] = tensors[i].view;
        if (tensors[i].buffer == PlanTensor::external) {
            continue;
        }
        PlanBuffer& buffer = buffers_.at(static_cast<size_t>(tensors[i].buffer));
        if (buffer.first_step < 0) {
            if ((written >> i & 1U) == 0) {
                throw std::logic_error(std::string(kernels.name()) + " reads tensor " +
                                       std::to_string(i) + ", which no call has written");
            }
            buffer.first_step = now;
        }
        buffer.last_step = now;
    }
    std::copy(integers.begin(), integers.end(), step.arguments.integer.begin());
    std::copy(reals.begin(), reals.end(), step.arguments.real.begin());
    step.arguments.object = object;
    steps_.push_back(std::move(step));
}

void Recorder::keep(const PlanTensor& tensor) {
    if (tensor.buffer == PlanTensor::external) {
        throw std::logic_error("keep: the tensor has memory of its own");
    }
    PlanBuffer& buffer = buffers_.at(static_cast<size_t>(tensor.buffer));
    if (buffer.first_step < 0) {
        throw std::logic_error("keep: no call has written the tensor");
    }
    buffer.kept = true;
}

} // namespace penstock
