#include "cpu/lora/pack_adapter.h"

#include <algorithm>
#include <cmath>

#include "cpu/simd/half.h"
#include "plan/aligned_buffer.h"

namespace penstock::cpu {
namespace {

constexpr float max_i8 = 127.0f;

// Returns the number by which a rank's row or column is divided, given its largest magnitude.
float unit_of(AdapterDType dtype, float largest) {
    if (dtype == AdapterDType::f32 || largest == 0.0f) {
        return 1.0f;
    }
    if (dtype == AdapterDType::i8) {
        return largest / max_i8;
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    return std::ldexp(1.0f, std::clamp(exponent - 1, -126, 126));
}

void put(AdapterDType dtype, void* to, int64_t index, float value) {
    switch (dtype) {
    case AdapterDType::f32: static_cast<float*>(to)[index] = value; return;
    case AdapterDType::f16: static_cast<uint16_t*>(to)[index] = f32_to_f16(value); return;
    case AdapterDType::i8:
        static_cast<int8_t*>(to)[index] =
            static_cast<int8_t>(std::clamp(std::nearbyint(value), -max_i8, max_i8));
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

size_t line_bytes(int64_t elements, size_t item) {
    return round_up(static_cast<size_t>(elements) * item, alignment_bytes);
}

struct SliceBytes {
    size_t a, b, scale;
};

// Returns the number of ranks stored per packed tile of B.
int64_t stored_ranks(AdapterDType dtype, int64_t rank) {
    return dtype == AdapterDType::i8 ? padded_to(rank, 2) : rank;
}

SliceBytes bytes_of(AdapterDType dtype, int64_t rank, int64_t depth, int64_t rows) {
    const auto item = static_cast<size_t>(adapter_dtype_bytes(dtype));
    return {line_bytes(padded_rank(rank) * padded_to(depth, kAdapterTile), item),
            line_bytes(stored_ranks(dtype, rank) * padded_to(rows, kAdapterOutputTile), item),
            line_bytes(padded_rank(rank), sizeof(float))};
}

// Returns the index of A's element (r, k).
int64_t place_in_a(int64_t r, int64_t k, int64_t depth) {
    const int64_t block = r / kAdapterRanks, tile = k / kAdapterTile;
    const int64_t tiles = padded_to(depth, kAdapterTile) / kAdapterTile;
    return ((block * tiles + tile) * kAdapterRanks + r % kAdapterRanks) * kAdapterTile +
           k % kAdapterTile;
}

// Returns the index of B's element (n, r).
int64_t place_in_b(AdapterDType dtype, int64_t n, int64_t r, int64_t rank) {
    const int64_t packed_tile =
        n / kAdapterOutputTile * stored_ranks(dtype, rank) * kAdapterOutputTile;
    const int64_t lane = n % kAdapterOutputTile;
    return dtype == AdapterDType::i8 ? packed_tile + (r / 2 * kAdapterOutputTile + lane) * 2 + r % 2
                                     : packed_tile + r * kAdapterOutputTile + lane;
}

void fill(AdapterDType dtype, const AdapterFactors& factors, int64_t depth, int64_t rows, void* a,
          void* b, float* scale) {
    const int64_t rank = factors.rank;
    for (int64_t r = 0; r < rank; ++r) {
        const float* from = factors.a + r * depth;
        const float a_unit = unit_of(dtype, largest_of(from, depth, 1));
        for (int64_t k = 0; k < depth; ++k) {
            put(dtype, a, place_in_a(r, k, depth), from[k] / a_unit);
        }
        const float b_unit = unit_of(dtype, largest_of(factors.b + r, rows, rank));
        for (int64_t n = 0; n < rows; ++n) {
            put(dtype, b, place_in_b(dtype, n, r, rank), factors.b[n * rank + r] / b_unit);
        }
        scale[r] = a_unit * b_unit;
    }
}

} // namespace

PackedAdapter::PackedAdapter(const AdapterSlots& slots, std::span<const AdapterFactors> factors)
    : dtype_(slots.table().dtype), extents_(slots.extents()) {
    const AdapterTable& table = slots.table();
    const auto bytes = [&](size_t s) {
        return bytes_of(table.dtype, factors[s].rank, slots.depth_of(static_cast<int64_t>(s)),
                        table.shapes[s].rows);
    };
    for (size_t s = 0; s < factors.size(); ++s) {
        size_bytes_ += bytes(s).a + bytes(s).b + bytes(s).scale;
    }
    memory_ = WeightBlock::allocate_unshared(size_bytes_);
    uint8_t* next = memory_.data();
    const auto take = [&next](size_t taken) {
        uint8_t* const first = next;
        next += taken;
        return first;
    };
    slices_.resize(factors.size());
    for (int64_t i = 0; i < table.num_linears; ++i) {
        const auto first = static_cast<size_t>(table.linears[i].first_slice);
        const size_t last = first + static_cast<size_t>(table.linears[i].num_slices);
        std::vector<uint8_t*> a, scale;
        for (size_t s = first; s < last; ++s) {
            scale.push_back(take(bytes(s).scale));
        }
        for (size_t s = first; s < last; ++s) {
            a.push_back(take(bytes(s).a));
        }
        for (size_t s = first; s < last; ++s) {
            uint8_t* b = take(bytes(s).b);
            if (factors[s].rank > 0) {
                auto* scales = reinterpret_cast<float*>(scale[s - first]);
                fill(table.dtype, factors[s], slots.depth_of(static_cast<int64_t>(s)),
                     table.shapes[s].rows, a[s - first], b, scales);
                slices_[s] = {a[s - first], b, scales, factors[s].rank};
            }
        }
    }
}

AdapterSlots::AdapterSlots(int64_t capacity, int64_t max_rank, AdapterDType dtype,
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
    tasks_.resize(static_cast<size_t>(capacity) * linears_.size());
    held_.resize(static_cast<size_t>(capacity));
    table_ = {linears_.data(),
              shapes_.data(),
              slices_.data(),
              tasks_.data(),
              static_cast<int64_t>(linears_.size()),
              static_cast<int64_t>(shapes_.size()),
              capacity,
              max_rank,
              dtype};
}

bool PackedAdapter::fits(const AdapterSlots& slots) const {
    return dtype_ == slots.table().dtype && extents_ == slots.extents();
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
    count_tasks(slot);
}

void AdapterSlots::clear(int64_t slot) {
    const auto first = slices_.begin() + slot * table_.num_slices;
    std::fill(first, first + table_.num_slices, AdapterSlice{});
    held_.at(static_cast<size_t>(slot)).reset();
    count_tasks(slot);
}

void AdapterSlots::count_tasks(int64_t slot) {
    for (int64_t i = 0; i < table_.num_linears; ++i) {
        const AdapterLinear& linear = table_.linears[i];
        AdapterTasks& tasks = tasks_.at(static_cast<size_t>(slot * table_.num_linears + i));
        tasks = {};
        for (int32_t s = linear.first_slice; s < linear.first_slice + linear.num_slices; ++s) {
            const AdapterSlice& slice = table_.slices[slot * table_.num_slices + s];
            for (const int phase : {0, 1}) {
                tasks.of_phase[phase] +=
                    static_cast<int32_t>(tasks_of(slice, table_.shapes[s], phase));
            }
        }
    }
}

} // namespace penstock::cpu
