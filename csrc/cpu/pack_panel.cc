#include "cpu/pack_panel.h"

#include <algorithm>
#include <cstring>

#include "cpu/half.h"

namespace penstock::cpu {
namespace {

// The rows of one panel: `count` of them exist in the source.
struct Rows {
    int64_t first;
    int64_t count;
    int64_t lanes;
};

uint32_t load_word(const uint8_t* from) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    return word;
}

void store_word(uint8_t* to, uint32_t word) { std::memcpy(to, &word, 4); }

// Nibbles k0 .. k7 (lowest first) become k0 k4 k1 k5 k2 k6 k3 k7.
uint32_t interleave_nibbles(uint32_t word) {
    word = (word & 0xff0000ffu) | ((word & 0x00ff0000u) >> 8) | ((word & 0x0000ff00u) << 8);
    return (word & 0xf00ff00fu) | ((word & 0x0f000f00u) >> 4) | ((word & 0x00f000f0u) << 4);
}

void pack_quants4(const uint8_t* row, uint8_t* to, int64_t lanes) {
    for (int step = 0; step < 4; ++step) {
        store_word(to + step * lanes * 4, interleave_nibbles(load_word(row + 4 * step)));
    }
}

void pack_quants6(const uint8_t* row, uint8_t* to, int64_t lanes) {
    uint32_t word[8];
    for (int i = 0; i < 8; ++i) word[i] = load_word(row + 4 * i);
    for (int step = 0; step < 4; ++step) {
        const uint32_t low = word[2 * step] & 0x0f0f0f0fu;
        const uint32_t high = word[2 * step + 1] & 0x0f0f0f0fu;
        store_word(to + step * lanes * 4, low | (high << 4));
    }
    for (int half = 0; half < 2; ++half) {
        uint32_t top = 0;
        for (int i = 0; i < 4; ++i) top |= ((word[4 * half + i] >> 4) & 0x03030303u) << (2 * i);
        store_word(to + (4 + half) * lanes * 4, top);
    }
}

void pack_quants8(const uint8_t* row, uint8_t* to, int64_t lanes) {
    for (int step = 0; step < 8; ++step) {
        store_word(to + step * lanes * 4, load_word(row + 4 * step));
    }
}

uint8_t* pack_quants(const MatrixSource& source, const PanelPart& part, Rows rows, int64_t unit,
                     uint8_t* to) {
    const int64_t row_bytes = source.depth * source.bits / 8;
    const uint8_t* from = source.q + rows.first * row_bytes + unit * kUnit * source.bits / 8;
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        uint8_t* words = to + 4 * lane;
        switch (part.encoding) {
        case Encoding::affine4: pack_quants4(from, words, rows.lanes); break;
        case Encoding::affine6: pack_quants6(from, words, rows.lanes); break;
        default: pack_quants8(from, words, rows.lanes); break;
        }
        from += row_bytes;
    }
    const int64_t steps = part.encoding == Encoding::affine4   ? 4
                          : part.encoding == Encoding::affine6 ? 6
                                                               : 8;
    return to + steps * rows.lanes * 4;
}

// One value of scales or minima in float32, exactly. `super` is null for the direct forms.
float float_value(const void* values, DType type, const uint16_t* super, int64_t index,
                  int64_t super_index) {
    switch (type) {
    case DType::f32: return static_cast<const float*>(values)[index];
    case DType::f16: return f16_to_f32(static_cast<const uint16_t*>(values)[index]);
    case DType::i8:
        return f16_to_f32(super[super_index]) *
               static_cast<float>(static_cast<const int8_t*>(values)[index]);
    default:
        return f16_to_f32(super[super_index]) *
               static_cast<float>(static_cast<const uint8_t*>(values)[index]);
    }
}

// The scales or the minima of one group of each row.
uint8_t* pack_values(const MatrixSource& source, ScaleForm form, const void* values, DType type,
                     const uint16_t* super, Rows rows, int64_t group, uint8_t* to) {
    const int64_t groups = source.depth / source.group;
    const int64_t super_length = kUnit * kUnitsPerSuper;
    const int64_t supers = (source.depth + super_length - 1) / super_length;
    const int64_t bytes = scale_bytes(form);
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        const int64_t index = (rows.first + lane) * groups + group;
        if (form == ScaleForm::f32) {
            const int64_t super_index =
                (rows.first + lane) * supers + group * source.group / super_length;
            const float value = float_value(values, type, super, index, super_index);
            std::memcpy(to + lane * 4, &value, 4);
        } else {
            std::memcpy(to + lane * bytes, static_cast<const uint8_t*>(values) + index * bytes,
                        static_cast<size_t>(bytes));
        }
    }
    return to + rows.lanes * bytes;
}

uint8_t* pack_supers(const MatrixSource& source, const uint16_t* super, Rows rows, int64_t index,
                     uint8_t* to) {
    const int64_t super_length = kUnit * kUnitsPerSuper;
    const int64_t supers = (source.depth + super_length - 1) / super_length;
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        std::memcpy(to + 2 * lane, super + (rows.first + lane) * supers + index, 2);
    }
    return to + rows.lanes * 2;
}

void pack_affine(const MatrixSource& source, const PanelPart& part, Rows rows, uint8_t* to) {
    const int64_t groups = kUnit / source.group;
    for (int64_t unit = 0; unit < source.depth / kUnit; ++unit) {
        if (part.scale_form == ScaleForm::two_level && unit % kUnitsPerSuper == 0) {
            const int64_t index = unit / kUnitsPerSuper;
            to = pack_supers(source, source.super_scale, rows, index, to);
            if (part.stored_minimum) to = pack_supers(source, source.super_minimum, rows, index, to);
        }
        for (int64_t group = unit * groups; group < (unit + 1) * groups; ++group) {
            to = pack_values(source, part.scale_form, source.scale, source.scale_dtype,
                             source.super_scale, rows, group, to);
        }
        for (int64_t group = unit * groups; group < (unit + 1) * groups && part.stored_minimum;
             ++group) {
            to = pack_values(source, part.scale_form, source.minimum, source.minimum_dtype,
                             source.super_minimum, rows, group, to);
        }
        to = pack_quants(source, part, rows, unit, to);
    }
}

template <class Element>
void pack_dense(const MatrixSource& source, Rows rows, Element* to) {
    // Tiles of k keep both the rows read and the panel written inside the first-level cache.
    constexpr int64_t kTile = 64;
    const Element* from = static_cast<const Element*>(source.dense) + rows.first * source.depth;
    for (int64_t begin = 0; begin < source.depth; begin += kTile) {
        const int64_t end = std::min(begin + kTile, source.depth);
        for (int64_t lane = 0; lane < rows.count; ++lane) {
            for (int64_t k = begin; k < end; ++k) {
                to[k * rows.lanes + lane] = from[lane * source.depth + k];
            }
        }
    }
}

void pack_bf16(const MatrixSource& source, Rows rows, uint16_t* to) {
    const uint16_t* from = static_cast<const uint16_t*>(source.dense) + rows.first * source.depth;
    for (int64_t lane = 0; lane < rows.count; ++lane) {
        for (int64_t k = 0; k < source.depth; ++k) {
            to[(k / 2) * rows.lanes * 2 + lane * 2 + k % 2] = from[lane * source.depth + k];
        }
    }
}

}  // namespace

void pack_panel(const MatrixSource& source, const PanelPart& part, int64_t lanes, int64_t panel) {
    uint8_t* to = part.data + panel * part.panel_bytes;
    const int64_t first = panel * lanes;
    const Rows rows{first, std::min(lanes, source.rows - first), lanes};
    const bool padded = rows.count < lanes || part.encoding == Encoding::dense_bf16;
    if (padded) std::memset(to, 0, static_cast<size_t>(part.panel_bytes));
    switch (part.encoding) {
    case Encoding::dense_f32: pack_dense(source, rows, reinterpret_cast<uint32_t*>(to)); break;
    case Encoding::dense_f16: pack_dense(source, rows, reinterpret_cast<uint16_t*>(to)); break;
    case Encoding::dense_bf16: pack_bf16(source, rows, reinterpret_cast<uint16_t*>(to)); break;
    default: pack_affine(source, part, rows, to); break;
    }
}

}  // namespace penstock::cpu
