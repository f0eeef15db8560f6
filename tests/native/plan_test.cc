// Tests that replaying a plan equals running its calls one after the other, at every step size.
#include "plan/plan.h"

#include <stdexcept>
#include <vector>

#include "check.h"

using namespace penstock;

namespace {

// out[i, :] = x[i, :] * 3 + 1, row by row.
const Kernel affine{"affine",
                    [](const Arguments&) { return 1; },
                    [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                    [](const Arguments& call, int, int64_t row, Workspace&) {
                        const float* x = call.tensor[0].row<float>(row);
                        float* out = call.tensor[1].row<float>(row);
                        for (int64_t i = 0; i < call.tensor[0].shape[1]; ++i) {
                            out[i] = x[i] * 3 + 1;
                        }
                    },
                    [](const Arguments&) { return size_t{128}; },
                    true};

// out[i, :] = x[rows - 1 - i, :] + i % 3: a row's result depends on another row.
const Kernel mixed{"mixed", [](const Arguments&) { return 1; },
                   [](const Arguments&, int) { return int64_t{1}; },
                   [](const Arguments& call, int, int64_t, Workspace&) {
                       const int64_t rows = call.tensor[0].shape[0];
                       for (int64_t row = 0; row < rows; ++row) {
                           const float* x = call.tensor[0].row<float>(rows - 1 - row);
                           float* out = call.tensor[1].row<float>(row);
                           for (int64_t i = 0; i < call.tensor[0].shape[1]; ++i) {
                               out[i] = x[i] + static_cast<float>(row % 3);
                           }
                       }
                   },
                   [](const Arguments&) { return size_t{0}; }};

// out[i, :] = x[i, :] + y[i, :] * table[:]
const Kernel weighted{"weighted",
                      [](const Arguments&) { return 1; },
                      [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                      [](const Arguments& call, int, int64_t row, Workspace&) {
                          const float* table = call.tensor[2].row<float>(0);
                          for (int64_t i = 0; i < call.tensor[0].shape[1]; ++i) {
                              call.tensor[3].row<float>(row)[i] =
                                  call.tensor[0].row<float>(row)[i] +
                                  call.tensor[1].row<float>(row)[i] * table[i];
                          }
                      },
                      [](const Arguments&) { return size_t{64}; },
                      true};

// out[i, :] = sign * the rows of the call.
template <int sign>
const Kernel counted{"counted",
                     [](const Arguments&) { return 1; },
                     [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                     [](const Arguments& call, int, int64_t row, Workspace&) {
                         for (int64_t i = 0; i < call.tensor[1].shape[1]; ++i) {
                             call.tensor[1].row<float>(row)[i] =
                                 sign * static_cast<float>(call.tensor[0].shape[0]);
                         }
                     },
                     [](const Arguments&) { return sign > 0 ? size_t{64} : size_t{512}; },
                     true};

void chain_is_replayed_at_every_size() {
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

// A step of two layers: row-wise kernels, a kernel that mixes rows, and again row-wise kernels,
// which also read earlier results.
struct Layers {
    static constexpr int64_t width = 24;
    Recorder recorder;
    PlanTensor input, output;
    float table[width];

    explicit Layers(const StepSize& largest) : recorder(largest) {
        for (int64_t i = 0; i < width; ++i) {
            table[i] = static_cast<float>(i % 5) - 2.0f;
        }
        PlanTensor constant;
        constant.view.data = table;
        constant.view.rank = 1;
        constant.view.shape[0] = width;
        input = recorder.input(DType::f32, Axis::tokens, {&width, 1});
        PlanTensor last = input;
        for (int layer = 0; layer < 2; ++layer) {
            const PlanTensor once = apply(affine, {last});
            const PlanTensor twice = apply(affine, {once});
            const PlanTensor back = apply(mixed, {twice});
            const PlanTensor inner = apply(affine, {back});
            const PlanTensor sum = apply(weighted, {inner, once, constant});
            last = apply(weighted, {sum, back, constant});
        }
        output = last;
    }

    PlanTensor apply(const Kernel& kernel, std::vector<PlanTensor> tensors) {
        tensors.push_back(recorder.temporary(DType::f32, Axis::tokens, {&width, 1}));
        recorder.record(kernel, tensors, 1U << (tensors.size() - 1), {}, {}, nullptr);
        return tensors.back();
    }

    std::vector<float> run(Plan& plan, ThreadPool& pool, int64_t tokens, bool timed) const {
        plan.resize({tokens, 1, 1});
        auto* in = static_cast<float*>(plan.view(input).data);
        for (int64_t i = 0; i < tokens * width; ++i) {
            in[i] = static_cast<float>(i % 11) - 4.0f;
        }
        auto lease = pool.acquire(plan.workspace_bytes());
        timed ? plan.run_timed(lease) : plan.run(lease);
        const auto* out = static_cast<const float*>(plan.view(output).data);
        return {out, out + tokens * width};
    }
};

void row_blocks_equal_kernel_by_kernel_results() {
    const StepSize largest{700, 1, 1};
    const Layers layers(largest);
    Plan whole(layers.recorder, layers.output);
    for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        Plan plan(layers.recorder, layers.output, {32, threads});
        CHECK(plan.workspace_bytes() > whole.workspace_bytes());
        CHECK(plan.arena_bytes() < whole.arena_bytes() * 3 / 2);
        for (const int64_t tokens : {700, 1, 32 * threads, 32 * threads + 1, 200, 511, 0}) {
            CHECK(layers.run(plan, pool, tokens, tokens == 200) ==
                  layers.run(whole, pool, tokens, false));
        }
        CHECK(plan.timed_runs() == 1);
        for (const double seconds : plan.seconds()) {
            CHECK(seconds > 0);
        }
    }
}

// out[i, :] = -x[i, :]
const Kernel negative{"negative",
                      [](const Arguments&) { return 1; },
                      [](const Arguments& call, int) { return call.tensor[0].shape[0]; },
                      [](const Arguments& call, int, int64_t row, Workspace&) {
                          for (int64_t i = 0; i < call.tensor[0].shape[1]; ++i) {
                              call.tensor[1].row<float>(row)[i] =
                                  -call.tensor[0].row<float>(row)[i];
                          }
                      },
                      [](const Arguments&) { return size_t{0}; },
                      true};

// Rows whose flag is 0 pass through `affine`, the others through `negative`, twice; with blocks of
// rows and kernel by kernel.
void calls_compute_the_rows_that_are_flagged_for_them() {
    const int64_t width = 5;
    Recorder recorder({100, 1, 1});
    const PlanTensor input = recorder.input(DType::f32, Axis::tokens, {&width, 1});
    const PlanTensor flags = recorder.input(DType::i32, Axis::tokens, {});
    PlanTensor last = input;
    for (int i = 0; i < 2; ++i) {
        const PlanTensor next = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
        const PlanTensor tensors[] = {last, next};
        const RowFilter first{flags.buffer, 0}, second{flags.buffer, 1};
        recorder.record(affine, tensors, 0b10, {}, {}, nullptr, false, first);
        recorder.record(negative, tensors, 0b10, {}, {}, nullptr, false, second);
        last = next;
    }
    ThreadPool pool(2);
    for (const int64_t block_rows : {0, 16}) {
        Plan plan(recorder, last, {block_rows, 2});
        for (const int64_t tokens : {100, 1, 33, 0, 100}) {
            for (const int64_t period : {1, 2, 7, 40, 1000}) {
                plan.resize({tokens, 1, 1});
                const auto flagged = [&](int64_t row) { return row / period % 2 == 0; };
                for (int64_t row = 0; row < tokens; ++row) {
                    plan.view(flags).row<int32_t>(row)[0] = flagged(row);
                    for (int64_t i = 0; i < width; ++i) {
                        plan.view(input).row<float>(row)[i] = static_cast<float>(row + i);
                    }
                }
                auto lease = pool.acquire(plan.workspace_bytes());
                plan.run(lease);
                for (int64_t row = 0; row < tokens; ++row) {
                    for (int64_t i = 0; i < width; ++i) {
                        const auto x = static_cast<float>(row + i);
                        const float want = flagged(row) ? x : x * 9 + 4;
                        CHECK(plan.view(last).row<float>(row)[i] == want);
                    }
                }
            }
        }
    }
}

void calls_over_other_rows_than_the_flagged_ones_are_refused() {
    const int64_t width = 5;
    Recorder recorder({100, 4, 4});
    const PlanTensor input = recorder.input(DType::f32, Axis::samples, {&width, 1});
    const PlanTensor flags = recorder.input(DType::i32, Axis::tokens, {});
    const PlanTensor out = recorder.temporary(DType::f32, Axis::samples, {&width, 1});
    const PlanTensor tensors[] = {input, out};
    bool refused = false;
    try {
        recorder.record(affine, tensors, 0b10, {}, {}, nullptr, false, {flags.buffer, 0});
    } catch (const std::logic_error&) {
        refused = true;
    }
    CHECK(refused);
}

// Buffers that only a segment uses take memory for steps that run kernel by kernel, not for the
// largest step.
void segment_buffers_do_not_grow_with_tokens() {
    const int64_t width = 1024;
    const StepSize largest{4096, 1, 1};
    Recorder recorder(largest);
    const int64_t one = 1;
    const PlanTensor input = recorder.input(DType::f32, Axis::tokens, {&one, 1});
    PlanTensor last = input;
    for (int i = 0; i < 5; ++i) {
        const int64_t columns = i < 4 ? width : 1;
        const PlanTensor next = recorder.temporary(DType::f32, Axis::tokens, {&columns, 1});
        const PlanTensor tensors[] = {last, next};
        recorder.record(affine, tensors, 0b10, {}, {}, nullptr);
        last = next;
    }
    const Plan plan(recorder, last, {32, 2});
    CHECK(plan.arena_bytes() < 2 * 64 * width * 4 + 4096 * 2 * 4 + 1024);
    CHECK(plan.workspace_bytes() == 2 * 32 * width * 4 + 128);
}

void every_token_is_in_one_block() {
    for (const int threads : {1, 2, 5}) {
        for (const int64_t rows : {32, 96}) {
            const RowBlocks blocks{rows, threads};
            for (int64_t tokens = blocks.least() + 1; tokens < 1500; ++tokens) {
                const BlockCut cut = cut_rows(tokens, blocks);
                CHECK(cut.blocks >= threads && cut.first(0) == 0);
                CHECK(cut.first(cut.blocks) == tokens);
                int64_t smallest = rows, largest = 0;
                for (int64_t block = 0; block < cut.blocks; ++block) {
                    const int64_t count = cut.first(block + 1) - cut.first(block);
                    CHECK(cut.first(block) % 16 == 0);
                    smallest = std::min(smallest, count);
                    largest = std::max(largest, count);
                }
                CHECK(smallest > 0 && largest <= rows);
                // at most a unit, and the rows that the last block lacks
                CHECK(largest - smallest < 32);
            }
        }
    }
}

void reading_an_unwritten_tensor_is_refused() {
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

// Kernels for at most 20 and for more rows, in a plan with blocks of at most 16 rows.
void call_uses_the_kernel_for_its_rows() {
    const int64_t width = 8;
    KernelChoice choice;
    choice.add(20, counted<-1>);
    choice.add(KernelChoice::unlimited, counted<1>);
    for (const int64_t block_rows : {0, 16}) {
        Recorder recorder({64, 1, 1});
        const PlanTensor input = recorder.input(DType::f32, Axis::tokens, {&width, 1});
        const PlanTensor inner = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
        const PlanTensor output = recorder.temporary(DType::f32, Axis::tokens, {&width, 1});
        recorder.record(affine, std::vector<PlanTensor>{input, inner}, 0b10, {}, {}, nullptr);
        recorder.record(choice, std::vector<PlanTensor>{inner, output}, 0b10, {}, {}, nullptr);
        Plan plan(recorder, output, {block_rows, 1});
        CHECK(plan.workspace_bytes() >= 512);
        ThreadPool pool(1);
        for (const int64_t tokens : {1, 16, 20, 21, 64}) {
            plan.resize({tokens, 1, 1});
            auto lease = pool.acquire(plan.workspace_bytes());
            plan.run(lease);
            const bool in_blocks = block_rows != 0 && tokens > block_rows;
            const float* out = plan.view(output).row<float>(0);
            CHECK(in_blocks ? out[0] == -16 : out[0] == (tokens > 20 ? tokens : -tokens));
        }
    }
}

int main() {
    call_uses_the_kernel_for_its_rows();
    chain_is_replayed_at_every_size();
    row_blocks_equal_kernel_by_kernel_results();
    calls_compute_the_rows_that_are_flagged_for_them();
    calls_over_other_rows_than_the_flagged_ones_are_refused();
    segment_buffers_do_not_grow_with_tokens();
    every_token_is_in_one_block();
    reading_an_unwritten_tensor_is_refused();
}
