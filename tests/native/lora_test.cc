// Tests that products with LoRA adapters equal their definition, on every ISA that runs here and
// for every factor type, and that a row's bits depend neither on its neighbours nor on the division
// into tasks.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "check.h"
#include "cpu/isa/dispatch.h"
#include "cpu/lora/pack_adapter.h"
#include "plan/aligned_buffer.h"

using namespace penstock;
using namespace penstock::cpu;

namespace {

using Numbers = std::vector<float>;

Numbers random_numbers(size_t count, unsigned seed) {
    std::mt19937 source(seed);
    std::normal_distribution<float> normal;
    Numbers numbers(count);
    std::generate(numbers.begin(), numbers.end(), [&] { return normal(source); });
    return numbers;
}

struct Shape {
    int64_t depth;
    int64_t rank;
    std::vector<int64_t> rows; // of each slice
};

struct Factors {
    Numbers a, b;
};

// Slots of one linear layer; slot s holds random factors with seed s.
struct Layer {
    Shape shape;
    AdapterSlots slots;
    std::vector<std::vector<Factors>> factors;

    Layer(const Shape& of, AdapterDType dtype, int64_t count)
        : shape(of),
          slots(count, of.rank, dtype, std::vector{AdapterSlots::Shape{of.depth, of.rows}}) {
        for (int64_t slot = 0; slot < count; ++slot) {
            std::vector<Factors> own;
            for (const int64_t rows : shape.rows) {
                const auto seed = static_cast<unsigned>(100 * slot + rows);
                own.push_back({random_numbers(static_cast<size_t>(shape.rank * shape.depth), seed),
                               random_numbers(static_cast<size_t>(rows * shape.rank), seed + 50)});
            }
            std::vector<AdapterFactors> borrowed;
            for (const Factors& one : own)
                borrowed.push_back({one.a.data(), one.b.data(), shape.rank});
            slots.install(slot, std::make_shared<PackedAdapter>(slots, borrowed));
            factors.push_back(std::move(own));
        }
    }

    int64_t columns() const { return slots.table().linears[0].rows; }
};

TensorView view(void* data, DType dtype, int64_t rows, int64_t columns) {
    TensorView view{data, dtype, 2, {}, {}};
    view.shape = {rows, columns, 1, 1};
    view.stride = {columns, 1, 1, 1};
    return view;
}

// The result of `isa` for rows of x, added to zeros; row t has slot of_row[t].
Numbers added(Isa isa, const Layer& layer, Numbers x, const std::vector<int32_t>& of_row,
              int64_t threads) {
    const auto rows = static_cast<int64_t>(of_row.size());
    std::vector<int32_t> order, starts{0}, slots;
    for (int32_t slot = 0; slot < layer.slots.table().capacity; ++slot) {
        for (int32_t row = 0; row < rows; ++row) {
            if (of_row[static_cast<size_t>(row)] == slot)
                order.push_back(row);
        }
        slots.push_back(slot);
        starts.push_back(static_cast<int32_t>(order.size()));
    }
    order.resize(of_row.size(), -1);
    const int64_t inner_width = inner_columns(layer.slots.table(), 0);
    Numbers y(static_cast<size_t>(rows * layer.columns()), 0.0f);
    Numbers inner(static_cast<size_t>(rows * inner_width), NAN);
    Arguments call;
    call.tensor[0] = view(x.data(), DType::f32, rows, layer.shape.depth);
    call.tensor[1] = view(y.data(), DType::f32, rows, layer.columns());
    call.tensor[2] = view(order.data(), DType::i32, rows, 1);
    call.tensor[3] = view(starts.data(), DType::i32, static_cast<int64_t>(starts.size()), 1);
    call.tensor[4] = view(slots.data(), DType::i32, static_cast<int64_t>(slots.size()), 1);
    call.tensor[5] = view(inner.data(), DType::f32, rows, inner_width);
    call.integer = {0, threads};
    call.object = &layer.slots.table();
    const Kernel& kernel = *kernels(isa).find("lora");
    AlignedBuffer memory(kernel.workspace_bytes(call));
    Workspace workspace{memory.data(), memory.bytes()};
    for (int phase = 0; phase < kernel.phases(call); ++phase) {
        for (int64_t task = kernel.tasks(call, phase); task-- > 0;)
            kernel.run(call, phase, task, workspace);
    }
    return y;
}

// The largest error relative to the root mean square of the result.
double error(const Layer& layer, const Numbers& x, const std::vector<int32_t>& of_row,
             const Numbers& got) {
    double largest = 0.0, squares = 0.0;
    size_t at = 0;
    for (size_t row = 0; row < of_row.size(); ++row) {
        for (size_t s = 0; s < layer.shape.rows.size(); ++s) {
            for (int64_t n = 0; n < layer.shape.rows[s]; ++n, ++at) {
                double sum = 0.0;
                for (int64_t r = 0; of_row[row] >= 0 && r < layer.shape.rank; ++r) {
                    const Factors& one = layer.factors[static_cast<size_t>(of_row[row])][s];
                    double inner = 0.0;
                    for (int64_t k = 0; k < layer.shape.depth; ++k) {
                        inner += double{one.a[static_cast<size_t>(r * layer.shape.depth + k)]} *
                                 x[row * static_cast<size_t>(layer.shape.depth) +
                                   static_cast<size_t>(k)];
                    }
                    sum += inner * one.b[static_cast<size_t>(n * layer.shape.rank + r)];
                }
                squares += sum * sum;
                largest = std::max(largest, std::fabs(sum - double{got[at]}));
            }
        }
    }
    return largest / std::sqrt(squares / static_cast<double>(at));
}

void products_equal_the_definition(Isa isa, const Shape& shape, AdapterDType dtype) {
    const Layer layer(shape, dtype, 4);
    const std::vector<int32_t> of_row{2, 0, -1, 0, 1, 3, 0, 2, 1, 1, 1, 3};
    const auto depth = static_cast<size_t>(shape.depth);
    const Numbers x = random_numbers(of_row.size() * depth, 7);
    const Numbers got = added(isa, layer, x, of_row, 1);
    const double bound = dtype == AdapterDType::f32   ? 1e-5
                         : dtype == AdapterDType::f16 ? 4e-3
                                                      : 8e-2;
    CHECK(error(layer, x, of_row, got) < bound);
    CHECK(added(isa, layer, x, of_row, 64) == got);
    const auto width = static_cast<size_t>(layer.columns());
    for (size_t row = 0; row < of_row.size(); ++row) {
        const auto first = x.begin() + static_cast<std::ptrdiff_t>(row * depth);
        const Numbers own(first, first + static_cast<std::ptrdiff_t>(depth));
        const Numbers alone = added(isa, layer, own, {of_row[row]}, 2);
        const auto whole = got.begin() + static_cast<std::ptrdiff_t>(row * width);
        CHECK(std::equal(alone.begin(), alone.end(), whole));
    }
}

} // namespace

// lora_test [ISA...]: tests those ISAs, or all that run here.
int main(int count, char** names) {
    for (const Isa isa : kIsas) {
        const bool named = std::find(names + 1, names + count, isa_name(isa)) != names + count;
        if (count > 1 ? !named : !missing_feature(isa).empty())
            continue;
        for (const AdapterDType dtype : {AdapterDType::f32, AdapterDType::f16, AdapterDType::i8}) {
            products_equal_the_definition(isa, {32, 1, {8}}, dtype);
            products_equal_the_definition(isa, {50, 13, {21, 9, 70}}, dtype);
            products_equal_the_definition(isa, {96, 40, {64, 545}}, dtype);
        }
    }
    return 0;
}
