// Integer weights for blocks of many rows, at levels without tiles: the same integers and the same
// float sums as multiply_panels, so which one computes a row changes none of its bits.
//
// A few units of two panels are unpacked into the first cache level, all rows of a task multiplied
// with them, then come the next units; sums wait in memory meanwhile. What is left in the inner
// loop are the products and the float operations that no form of them can spare, and all registers
// go to sums. Included by linear_affine.inl.h.
#pragma once

#include "cpu/affine_sums.h"
#include "cpu/bf16_pairs.h"
#include "cpu/linear_cut.h"
#include "cpu/panel_ahead.h"
#include "cpu/processor.h"
#include "cpu/unpacked_panel.h"

namespace penstock::cpu::PENSTOCK_LEVEL {
namespace {

constexpr bool kUnpacks = kPanelVectors == 1 && !kTiles;
// Most units that are unpacked at once: with their activations they fill half of a first level.
constexpr int64_t kMostUnits = 12;

// Whether so many rows repay the unpacking. Intel's processors unpack on the ports that multiply.
// AMD's do it on others: there it pays only where panels share few rows otherwise.
template <int kGroup>
PENSTOCK_INLINE bool unpacking_pays(int64_t rows) {
    if (kBf16Pairs && processor() != Processor::other)
        return kGroup < kUnit && rows >= 32;
    return rows >= 16;
}

// What a task has of its own.
template <int kGroup>
struct UnpackedBuffers {
    UnpackedUnit<kGroup> panel[kPanelsBeside][kMostUnits];
    alignas(64) float sums[kRowBlock][kPanelsBeside][kPanelRows];
};

PENSTOCK_INLINE size_t unpacked_workspace_bytes() {
    return sizeof(UnpackedBuffers<kUnit / 2>);
}

#if !defined(PENSTOCK_SIMD_AVX2)

// Adds the products of `units` units to the sums.
template <int kGroup, bool kMinimum, int kRows>
PENSTOCK_INLINE void add_units(const UnpackedUnit<kGroup>* const (&panel)[kPanelsBeside],
                               int64_t units, int32_t zero, const QuantizedUnit* const (&in)[kRows],
                               F32 (&acc)[kRows][kPanelsBeside]) {
    using D = Dot<8>;
    constexpr int kSteps = kGroup / 4;
    for (int64_t unit = 0; unit < units; ++unit) {
        unrolled<kUnit / kGroup>([&](auto g) {
            constexpr int group = decltype(g)::value;
            I32 dot[kRows][kPanelsBeside];
            unrolled<kSteps>([&](auto s) {
                constexpr int step = decltype(s)::value, word = group * kSteps + step;
                Words weight[kPanelsBeside];
                for (int j = 0; j < kPanelsBeside; ++j)
                    weight[j] = load_words(panel[j][unit].quants[word]);
                unrolled<kRows>([&](auto m) {
                    const QuantizedUnit& row = in[m.value][unit];
                    const Words values = broadcast_word(row.value + 4 * word);
                    for (int j = 0; j < kPanelsBeside; ++j) {
                        I32& sum = dot[m.value][j];
                        if constexpr (kMinimum || step > 0) {
                            D::template mac<step>(sum, weight[j], values);
                        } else {
                            sum = zero_sums<kGroup, group>(row, zero);
                            D::template mac<1>(sum, weight[j], values);
                        }
                    }
                });
            });
            F32 scale[kPanelsBeside], minimum[kPanelsBeside];
            for (int j = 0; j < kPanelsBeside; ++j) {
                scale[j] = load(panel[j][unit].scale[group]);
                if (kMinimum)
                    minimum[j] = load(panel[j][unit].minimum[group]);
            }
            unrolled<kRows>([&](auto m) {
                const QuantizedUnit& row = in[m.value][unit];
                const F32 sum_x = broadcast(scaled_sum<kGroup, group>(row));
                for (int j = 0; j < kPanelsBeside; ++j) {
                    F32& a = acc[m.value][j];
                    a = fma(to_float(dot[m.value][j]), broadcast(row.scale) * scale[j], a);
                    if (kMinimum)
                        a = fma(minimum[j], sum_x, a);
                }
            });
        });
    }
}

// Units [unit, unit + units) of a task's panels [first, first + panels), unpacked, and its rows
// from `row` on.
template <int kGroup>
struct UnpackedProduct {
    const AffineOperands* operands;
    const LinearTask* task;
    UnpackedBuffers<kGroup>* buffers;
    int64_t first;
    int64_t panels; // at most kPanelsBeside
    int64_t unit = 0;
    int64_t units = 0;
    int64_t row = 0;

    int64_t end() const { return unit + units; }
    int64_t all_units() const { return operands->linear->depth / kUnit; }
};

template <int kGroup, bool kMinimum, int kRows>
void multiply_unpacked_rows(const UnpackedProduct<kGroup>& product) {
    const AffineOperands& operands = *product.operands;
    const PanelPart& part = *product.task->part;
    // Where no panel is left beside, the only one is multiplied twice.
    const UnpackedUnit<kGroup>* panel[kPanelsBeside];
    for (int j = 0; j < kPanelsBeside; ++j)
        panel[j] = product.buffers->panel[j < product.panels ? j : 0];
    const QuantizedUnit* in[kRows];
    for (int m = 0; m < kRows; ++m) {
        const uint8_t* x = operands.x + (product.row + m) * operands.x_stride;
        in[m] = reinterpret_cast<const QuantizedUnit*>(x) + product.unit;
    }
    auto* sums = product.buffers->sums + (product.row - product.task->row_begin);
    const bool begins = product.unit == 0;
    F32 acc[kRows][kPanelsBeside];
    unrolled<kRows>([&](auto m) {
        for (int j = 0; j < kPanelsBeside; ++j)
            acc[m.value][j] = begins ? broadcast(0.0f) : load(sums[m.value][j]);
    });
    add_units<kGroup, kMinimum, kRows>(panel, product.units, -part.zero_point, in, acc);
    const bool ends = product.end() == product.all_units();
    for (int m = 0; m < kRows; ++m) {
        for (int j = 0; j < kPanelsBeside; ++j) {
            const F32 total[kPanelVectors] = {acc[m][j]};
            if (!ends)
                store(sums[m][j], acc[m][j]);
            else if (j < product.panels)
                store_panel(*operands.linear, part, product.first + j, total,
                            operands.out + (product.row + m) * operands.out_stride);
        }
    }
}

// What is unpacked after the units of a product: those at `from`, or, at the end of a panel, the
// first ones of the panels that follow.
template <int kGroup>
PENSTOCK_INLINE const uint8_t* units_after(const UnpackedProduct<kGroup>& product,
                                           const uint8_t* from) {
    if (product.end() < product.all_units())
        return from;
    const PanelPart& part = *product.task->part;
    const int64_t next = product.first + kPanelsBeside;
    return next < product.task->panel_end ? part.data + next * part.panel_bytes
                                          : product.task->next;
}

// All rows of a task with unpacked units, after which those at `from` come.
template <int kGroup>
void multiply_unpacked_units(UnpackedProduct<kGroup> product, const uint8_t* from) {
    const LinearTask& task = *product.task;
    const int64_t rows = task.row_end - task.row_begin, blocks = ceil_div(rows, kRegisterRows);
    const PanelPart& part = *task.part;
    LinesAhead ahead[kPanelsBeside];
    if (const uint8_t* next = units_after(product, from); next != nullptr) {
        const int64_t bytes = product.units * unit_bytes(part) + super_bytes(part);
        for (int j = 0; j < kPanelsBeside; ++j)
            ahead[j] = LinesAhead(next + j * part.panel_bytes, bytes, blocks);
    }
    for (int64_t block = 0; block < blocks; ++block) { // nearly equal ones
        product.row = task.row_begin + quotient(rows * block, blocks);
        const int64_t end = task.row_begin + quotient(rows * (block + 1), blocks);
        LinesAhead::step(ahead);
        with_count<kRegisterRows>(end - product.row, [&](auto count) {
            // A panel has minima or a zero point, not both.
            part.stored_minimum ? multiply_unpacked_rows<kGroup, true, count.value>(product)
                                : multiply_unpacked_rows<kGroup, false, count.value>(product);
        });
    }
}

// All rows of a task, kRowBlock at most.
template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE void multiply_unpacked(const AffineOperands& operands, const LinearTask& task,
                                       Workspace& workspace) {
    const PanelPart& part = *task.part;
    auto& buffers = *static_cast<UnpackedBuffers<kGroup>*>(workspace.data);
    for (int64_t first = task.panel_begin; first < task.panel_end; first += kPanelsBeside) {
        const int64_t left = task.panel_end - first;
        UnpackedProduct<kGroup> product{&operands, &task, &buffers, first,
                                        left < kPanelsBeside ? left : kPanelsBeside};
        const int64_t all = product.all_units();
        const int64_t each = part.scale_form == ScaleForm::two_level
                                 ? kUnitsPerSuper
                                 : ceil_div(all, ceil_div(all, kMostUnits));
        const uint8_t* from[kPanelsBeside];
        for (int64_t j = 0; j < product.panels; ++j)
            from[j] = part.data + (first + j) * part.panel_bytes;
        for (; product.unit < all; product.unit += each) {
            product.units = product.unit + each < all ? each : all - product.unit;
            for (int64_t j = 0; j < product.panels; ++j) {
                from[j] =
                    unpack_panel<kEncoding, kGroup>(part, from[j], product.units, buffers.panel[j]);
            }
            multiply_unpacked_units(product, from[0]);
        }
    }
}

#else

template <Encoding kEncoding, int kGroup>
PENSTOCK_INLINE void multiply_unpacked(const AffineOperands&, const LinearTask&, Workspace&) {}

#endif

} // namespace
} // namespace penstock::cpu::PENSTOCK_LEVEL
