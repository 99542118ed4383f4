// Tensors of ours as NumPy arrays.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/numpy.h>

namespace coppice::python {

// The tensor's values on the CPU, in its shape; bfloat16 becomes float32, which NumPy has. Memory
// is shared where the tensor lies there already, and lives as long as the array. REQUIRES: the GIL.
pybind11::array to_numpy(const at::Tensor& tensor);

}  // namespace coppice::python
