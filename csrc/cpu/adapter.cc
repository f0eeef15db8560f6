#include "cpu/adapter.h"

#include <algorithm>
#include <cmath>

#include "cpu/half.h"

namespace penstock::cpu {
namespace {

constexpr float most_i8 = 127.0f;

// What the largest magnitude of a rank's row or column is stored over.
float unit_of(AdapterStore store, float largest) {
    if (store == AdapterStore::f32 || largest == 0.0f) {
        return 1.0f;
    }
    if (store == AdapterStore::i8) {
        return largest / most_i8;
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    return std::ldexp(1.0f, std::clamp(exponent - 1, -126, 126));
}

void put(AdapterStore store, void* to, int64_t index, float value) {
    switch (store) {
    case AdapterStore::f32: static_cast<float*>(to)[index] = value; return;
    case AdapterStore::f16: static_cast<uint16_t*>(to)[index] = f32_to_f16(value); return;
    case AdapterStore::i8:
        static_cast<int8_t*>(to)[index] =
            static_cast<int8_t>(std::clamp(std::nearbyint(value), -most_i8, most_i8));
        return;
    }
}

float largest_of(const float* first, int64_t count, int64_t stride) {
    float largest = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::fabs(first[i * stride]));
    }
    return largest;
}

struct SliceBytes {
    size_t a, b, scale;
};

SliceBytes bytes_of(AdapterStore store, int64_t rank, int64_t depth, int64_t rows) {
    const auto item = static_cast<size_t>(store_bytes(store));
    const auto of = [&](int64_t elements) { return static_cast<size_t>(elements); };
    return {round_up(of(rank * padded_to(depth, kAdapterDepth)) * item, alignment_bytes),
            round_up(of(rank * padded_to(rows, kAdapterPanel)) * item, alignment_bytes),
            round_up(of(rank) * sizeof(float), alignment_bytes)};
}

void fill(AdapterStore store, const AdapterFactors& factors, int64_t depth, int64_t rows, void* a,
          void* b, float* scale) {
    const int64_t rank = factors.rank, row_elements = padded_to(depth, kAdapterDepth);
    for (int64_t r = 0; r < rank; ++r) {
        const float* from = factors.a + r * depth;
        const float a_unit = unit_of(store, largest_of(from, depth, 1));
        for (int64_t k = 0; k < depth; ++k) {
            put(store, a, r * row_elements + k, from[k] / a_unit);
        }
        const float b_unit = unit_of(store, largest_of(factors.b + r, rows, rank));
        for (int64_t n = 0; n < rows; ++n) {
            const int64_t panel = n / kAdapterPanel, lane = n % kAdapterPanel;
            put(store, b, (panel * rank + r) * kAdapterPanel + lane,
                factors.b[n * rank + r] / b_unit);
        }
        scale[r] = a_unit * b_unit;
    }
}

} // namespace

PackedAdapter::PackedAdapter(const AdapterSlots& slots, std::span<const AdapterFactors> factors)
    : store_(slots.table().store), extents_(slots.extents()) {
    const AdapterTable& table = slots.table();
    size_t total = 0;
    for (size_t s = 0; s < factors.size(); ++s) {
        const auto bytes = bytes_of(table.store, factors[s].rank,
                                    slots.depth_of(static_cast<int64_t>(s)), table.shapes[s].rows);
        total += bytes.a + bytes.b + bytes.scale;
    }
    memory_ = AlignedBuffer(total);
    if (total != 0) {
        std::fill_n(memory_.data(), memory_.bytes(), std::byte{0});
    }
    std::byte* next = memory_.data();
    for (size_t s = 0; s < factors.size(); ++s) {
        const int64_t rank = factors[s].rank, depth = slots.depth_of(static_cast<int64_t>(s));
        const int64_t rows = table.shapes[s].rows;
        const auto bytes = bytes_of(table.store, rank, depth, rows);
        std::byte *a = next, *b = a + bytes.a, *scale = b + bytes.b;
        next = scale + bytes.scale;
        if (rank == 0) {
            slices_.emplace_back();
            continue;
        }
        fill(table.store, factors[s], depth, rows, a, b, reinterpret_cast<float*>(scale));
        slices_.push_back({a, b, reinterpret_cast<const float*>(scale), rank});
    }
}

AdapterSlots::AdapterSlots(int64_t capacity, int64_t max_rank, AdapterStore store,
                           std::span<const Shape> linears) {
    for (const Shape& shape : linears) {
        AdapterLinear linear{shape.depth, 0, static_cast<int32_t>(shapes_.size()),
                             static_cast<int32_t>(shape.rows.size())};
        for (const int64_t rows : shape.rows) {
            shapes_.push_back({rows, linear.rows});
            depths_.push_back(shape.depth);
            linear.rows += rows;
        }
        linears_.push_back(linear);
    }
    slices_.resize(static_cast<size_t>(capacity) * shapes_.size());
    held_.resize(static_cast<size_t>(capacity));
    table_ = {linears_.data(),
              shapes_.data(),
              slices_.data(),
              static_cast<int64_t>(linears_.size()),
              static_cast<int64_t>(shapes_.size()),
              capacity,
              max_rank,
              store};
}

bool PackedAdapter::fits(const AdapterSlots& slots) const {
    return store_ == slots.table().store && extents_ == slots.extents();
}

std::vector<int64_t> AdapterSlots::extents() const {
    std::vector<int64_t> extents;
    for (size_t s = 0; s < shapes_.size(); ++s) {
        extents.push_back(depths_[s]);
        extents.push_back(shapes_[s].rows);
    }
    return extents;
}

void AdapterSlots::install(int64_t slot, std::shared_ptr<const PackedAdapter> adapter) {
    const auto slices = adapter->slices();
    std::copy(slices.begin(), slices.end(), slices_.begin() + slot * table_.num_slices);
    held_.at(static_cast<size_t>(slot)) = std::move(adapter);
}

void AdapterSlots::clear(int64_t slot) {
    const auto first = slices_.begin() + slot * table_.num_slices;
    std::fill(first, first + table_.num_slices, AdapterSlice{});
    held_.at(static_cast<size_t>(slot)).reset();
}

} // namespace penstock::cpu
