// Packs weights for the kernels of one ISA. Packing uses no instructions of that ISA (only its
// layout depends on bf16 tiles and paired scales), so the code is compiled for the baseline.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu/isa/isa.h"
#include "cpu/pack/packed_tile.h"
#include "cpu/pack/weight_memory.h"
#include "penstock/dtype.h"

namespace penstock::cpu {

// One matrix [rows, depth]; kernels/weights.py describes its quantization. All arrays are
// C-contiguous and borrowed: they must stay valid until the last pack_tiles call has returned.
struct MatrixSource {
    int64_t rows = 0;
    int64_t depth = 0;

    // Dense matrix: dtype f32, f16 or bf16 and `dense` [rows, depth]. `dense` is null for an affine
    // matrix.
    const void* dense = nullptr;
    DType dense_dtype = DType::f32;

    // Affine matrix: w = scale * q + minimum.
    int bits = 0;  // 4: q [rows, depth / 2], low nibble first; 8: q [rows, depth]
    int group = 0; // 16 or 32
    const uint8_t* q = nullptr;
    const void* scale = nullptr;      // [rows, depth / group]
    DType scale_dtype = DType::f16;   // f16, f32: direct; i8, u8: multipliers of super_scale
    const void* minimum = nullptr;    // [rows, depth / group]; null: -zero_point * scale
    DType minimum_dtype = DType::f16; // f16, f32 with direct scales; i8, u8 with two-level scales
    int zero_point = 0;               // 0..255
    const uint16_t* super_scale = nullptr;   // f16 [rows, ceil(depth / 256)], two-level only
    const uint16_t* super_minimum = nullptr; // the same for the minima, if `minimum` is given
};

// The use of packed matrices. For `products`, scales may be packed in a form that is not exact. For
// `rounded_products`, float16 weights may be, too: with activations, they lose as much as in
// float16 arithmetic. With `rows`, rows gathered from a matrix equal the source's rows.
enum class Use : uint8_t { products, rounded_products, rows };

// Returns why these matrices cannot be packed together, naming the part, or an empty string if they
// can.
std::string refusal(std::span<const MatrixSource> parts);

// The packed matrices of one linear layer (q, k and v; gate and up), or an embedding table (one
// part). Immutable after packing, and then safe for any number of concurrent readers.
//
//     PackedLinear packed(parts, bias, isa);            // refusal(parts) must be empty
//     pool: packed.pack_tiles(begin, end) over [0, packed.num_packed_tiles()), in any order
//     arguments.object = packed.packed_tiles();         // linear_*; embedding too with Use::rows
//
// If the embedding is tied to the LM head, the kernel `embedding` gathers from the LM head's packed
// tiles.
class PackedLinear {
  public:
    // Chooses the encoding and allocates memory. Reads the quants of 8-bit parts once, to find
    // whether 6 bits or the indices of a table can hold them. `bias`: [sum rows] float32 or null;
    // copied.
    PackedLinear(std::span<const MatrixSource> parts, const float* bias, Isa isa,
                 Use use = Use::products);

    PackedLinear(const PackedLinear&) = delete;
    PackedLinear& operator=(const PackedLinear&) = delete;

    // Packs the packed tiles [begin, end), numbered across all parts. Threads may pack disjoint
    // ranges concurrently.
    void pack_tiles(int64_t begin, int64_t end);

    int64_t num_packed_tiles() const { return num_packed_tiles_; }
    const LinearWeights* packed_tiles() const { return &packed_tiles_; }

    // Return which kernels a product needs: quantize_rows and linear_affine if has_affine,
    // linear_dense if has_dense. Each kernel writes the output columns of its own parts.
    bool has_affine() const;
    bool has_dense() const;

    // Returns the use for which the layer was packed.
    Use use() const { return use_; }

    // Returns the bytes of the packed tiles.
    size_t size_bytes() const { return size_bytes_; }

  private:
    LinearWeights packed_tiles_;
    std::vector<PackedMatrix> parts_;
    std::vector<MatrixSource> sources_;
    std::vector<float> bias_;
    WeightBlock memory_;
    Use use_;
    int64_t num_packed_tiles_ = 0;
    size_t size_bytes_ = 0;
};

} // namespace penstock::cpu
