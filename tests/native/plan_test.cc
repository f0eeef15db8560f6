// Replays give what the calls would give one after the other, at every size up to the largest.
#include "plan/plan.h"

#include <stdexcept>
#include <vector>

#include "check.h"

using namespace penstock;

namespace {

// out[i, :] = x[i, :] * 3 + 1, row by row.
const Kernel affine{"affine", [](const Arguments&) { return 1; },
                    [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                    [](const Arguments& call, int, int64_t row, Workspace&) {
                        const float* x = call.tensor[0].row<float>(row);
                        float* out = call.tensor[1].row<float>(row);
                        for (int64_t i = 0; i < call.tensor[0].shape[1]; ++i) {
                            out[i] = x[i] * 3 + 1;
                        }
                    },
                    [](const Arguments&) { return size_t{128}; }};

void a_chain_is_replayed_at_every_size() {
    const StepSize largest{17, 3, 5};
    const int64_t width = 40;
    Recorder recorder(largest);
    const PlanTensor input = recorder.input(DType::f32, Axis::tokens, {&width, 1});
    PlanTensor last = input;
    for (int i = 0; i < 6; ++i) {
        const PlanTensor next = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
        const PlanTensor tensors[] = {last, next};
        recorder.record(affine, tensors, 0b10, {}, {}, nullptr);
        last = next;
    }
    Plan plan(recorder, last);
    CHECK(plan.arena_bytes() < 3 * 17 * 40 * 4 + 3 * 64);
    CHECK(plan.workspace_bytes() == 128);

    ThreadPool pool(2);
    for (const int64_t tokens : {17, 1, 5, 16, 0, 17}) {
        plan.resize({tokens, 1, 1});
        const TensorView in = plan.view(input);
        CHECK(in.shape[0] == tokens);
        for (int64_t i = 0; i < tokens * width; ++i) {
            static_cast<float*>(in.data)[i] = static_cast<float>(i % 7);
        }
        auto lease = pool.acquire(plan.workspace_bytes());
        plan.run(lease);
        for (int64_t i = 0; i < tokens * width; ++i) {
            // 3^6 x + (3^6 - 1) / 2
            CHECK(static_cast<float*>(plan.view(last).data)[i] ==
                  static_cast<float>(i % 7) * 729 + 364);
        }
    }
}

void reading_what_nothing_wrote_is_refused() {
    const int64_t width = 8;
    Recorder recorder({4, 4, 4});
    const PlanTensor a = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
    const PlanTensor b = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
    const PlanTensor tensors[] = {a, b};
    bool refused = false;
    try {
        recorder.record(affine, tensors, 0b10, {}, {}, nullptr);
    } catch (const std::logic_error&) {
        refused = true;
    }
    CHECK(refused);
}

} // namespace

int main() {
    a_chain_is_replayed_at_every_size();
    reading_what_nothing_wrote_is_refused();
}
