#include "coppice/ops/packed_matrix.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/packed_activations.h"
#include "coppice/ops/packed_codes.h"
#include "coppice/ops/packed_data.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr int64_t kChunkValues =
    262144;                              // activations prepared at a time, so that they stay cached
constexpr int64_t kCachedBytes = 24576;  // of weights, while rows of x pass by
constexpr int64_t kLeastPieceBytes = 16384;  // of weights, times the tiles of x, per hand-out

// x [n, cols] with a zero column added, for odd cols.
std::vector<float> pad_columns(const float* x, int64_t n, int64_t cols) {
  std::vector<float> padded(static_cast<std::size_t>(n * (cols + 1)));
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(padded.data() + i * (cols + 1), x + i * cols,
                static_cast<std::size_t>(cols) * sizeof(float));
  }
  return padded;
}

// What one call computes: several matrices, and a chunk of rows of x in the forms they need.
struct Chunk {
  const GemmKernels* kernels = nullptr;
  const float* x = nullptr;  // padded to even cols
  PackedActivations* quantised = nullptr;
  int64_t rows = 0;

  // Blocks begin to end, a few at a time: those stay in the innermost cache while the rows of x
  // pass by, and results are written in longer runs.
  void multiply(const PackedData& data, int64_t begin, int64_t end, float* out) const {
    const int64_t few = std::max<int64_t>(1, kCachedBytes / data.block_bytes);
    for (int64_t from = begin; from < end; from += few) {
      const int64_t to = std::min(end, from + few);
      for (int64_t first = 0; first < rows; first += kTileRows) {
        const Output rows_out{out + first * data.rows, data.rows};
        for (int64_t block = from; block < to; ++block) {
          multiply_tile(data, block, first, rows_out);
        }
      }
    }
  }

  void multiply_tile(const PackedData& data, int64_t block, int64_t first,
                     const Output& out) const {
    if (data.form == WeightForm::kBf16) {
      kernels->multiply_bf16(data.values, block, x + first * data.values.cols,
                             std::min(kTileRows, rows - first), out);
    } else {
      kernels->multiply_codes(data.codes, block, quantised->tile(first / kTileRows), out);
    }
  }
};

void check_input(const at::Tensor& x, int64_t cols) {
  if (x.dim() != 2 || x.size(1) != cols || x.scalar_type() != at::kFloat || !x.device().is_cpu()) {
    fail_argument("packed matrix: expected float32 [N, {}] on the CPU, got {} {} on {}", cols,
                  c10::toString(x.scalar_type()), fmt::join(x.sizes(), " x "), x.device().str());
  }
}

}  // namespace

struct PackedMatrix::Data {
  PackedData packed;
};

WeightForm packed_form(StorageType type) {
  if (!is_quantised(type)) return WeightForm::kBf16;
  return code_shape(type).bits == 4 ? WeightForm::k4Bit : WeightForm::k8Bit;
}

int64_t packed_bytes(StorageType type, int64_t rows, int64_t cols) {
  return plan_packing(type, rows, cols).bytes;
}

PackedMatrix::PackedMatrix(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

PackedMatrix PackedMatrix::pack(const StoredTensor& stored) {
  return PackedMatrix(std::make_shared<const Data>(Data{pack_data(stored)}));
}

int64_t PackedMatrix::rows() const { return data_->packed.rows; }
int64_t PackedMatrix::cols() const { return data_->packed.cols; }
int64_t PackedMatrix::bytes() const { return data_->packed.bytes; }
WeightForm PackedMatrix::form() const { return data_->packed.form; }

// Blocks of all matrices are numbered through, so that one loop shares them out.
void PackedMatrix::multiply_all(std::span<const PackedMatrix* const> matrices, const float* x,
                                int64_t n, std::span<float* const> outs) {
  static thread_local PackedActivations quantised;
  const int64_t cols = matrices.front()->cols();
  bool any_coded = false, any_plain = false;
  int64_t bytes = 0, blocks = 0;
  for (const PackedMatrix* m : matrices) {
    (m->form() == WeightForm::kBf16 ? any_plain : any_coded) = true;
    bytes += m->bytes();
    blocks += m->data_->packed.blocks();
  }
  const bool pad = any_plain && cols % 2 != 0;
  const int64_t chunk_rows = std::max(kTileRows, kChunkValues / cols / kTileRows * kTileRows);
  for (int64_t first = 0; first < n; first += chunk_rows) {
    Chunk chunk{&gemm_kernels(cpu_level()), x + first * cols, &quantised,
                std::min(chunk_rows, n - first)};
    if (any_coded) quantised.fill(*chunk.kernels, chunk.x, chunk.rows, cols);
    std::vector<float> padded;
    if (pad) {
      padded = pad_columns(chunk.x, chunk.rows, cols);
      chunk.x = padded.data();
    }
    const int64_t tiles = (chunk.rows + kTileRows - 1) / kTileRows;
    const int64_t least = kLeastPieceBytes / tiles / (bytes / blocks);
    parallel_for_guided(0, blocks, least, [&](int64_t begin, int64_t end) {
      for (std::size_t i = 0; begin < end; ++i) {
        const PackedData& data = matrices[i]->data_->packed;
        const int64_t count = data.blocks();
        chunk.multiply(data, begin, std::min(end, count), outs[i] + first * data.rows);
        begin = std::max<int64_t>(0, begin - count);
        end -= count;
      }
    });
  }
}

void PackedMatrix::multiply(const float* x, int64_t n, float* out) const {
  const PackedMatrix* const self = this;
  float* const outs[] = {out};
  if (n > 0) multiply_all({&self, 1}, x, n, outs);
}

at::Tensor PackedMatrix::multiply(const at::Tensor& x) const {
  check_input(x, cols());
  const at::Tensor contiguous = x.contiguous();
  at::Tensor out = at::empty({x.size(0), rows()}, at::kFloat);
  multiply(contiguous.const_data_ptr<float>(), x.size(0), out.mutable_data_ptr<float>());
  return out;
}

std::vector<at::Tensor> PackedMatrix::multiply_together(
    std::span<const PackedMatrix* const> matrices, const at::Tensor& x) {
  std::vector<at::Tensor> results;
  std::vector<float*> outs;
  for (const PackedMatrix* m : matrices) {
    check_input(x, m->cols());
    results.push_back(at::empty({x.size(0), m->rows()}, at::kFloat));
    outs.push_back(results.back().mutable_data_ptr<float>());
  }
  if (matrices.empty() || x.size(0) == 0) return results;
  const at::Tensor contiguous = x.contiguous();
  multiply_all(matrices, contiguous.const_data_ptr<float>(), x.size(0), outs);
  return results;
}

at::Tensor PackedMatrix::gather_rows(const at::Tensor& ids) const {
  if (ids.dim() != 1 || ids.scalar_type() != at::kLong || !ids.device().is_cpu()) {
    fail_argument("packed matrix: expected int64 ids [N] on the CPU, got {} with {} dims on {}",
                  c10::toString(ids.scalar_type()), ids.dim(), ids.device().str());
  }
  const at::Tensor contiguous = ids.contiguous();
  const int64_t* id = contiguous.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) {
    if (id[i] < 0 || id[i] >= rows()) {
      fail_argument("packed matrix: id {} at {} is not in [0, {})", id[i], i, rows());
    }
  }
  at::Tensor out = at::empty({ids.size(0), cols()}, at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  parallel_for(0, ids.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) unpack_row(data_->packed, id[i], to + i * cols());
  });
  return out;
}

at::Tensor PackedMatrix::dequantize() const {
  at::Tensor out = at::empty({rows(), cols()}, at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  parallel_for(0, rows(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      unpack_row(data_->packed, row, to + row * cols());
    }
  });
  return out;
}

}  // namespace coppice::ops
