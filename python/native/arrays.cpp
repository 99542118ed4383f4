#include "python/native/arrays.h"

#include <memory>
#include <string>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::python {
namespace {

namespace py = pybind11;

const char* numpy_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    default:
      fail(ErrorCode::kInternal, "no NumPy type for {}", c10::toString(type));
  }
}

}  // namespace

py::array to_numpy(const at::Tensor& tensor) {
  at::Tensor local = tensor.to(at::kCPU);
  if (local.scalar_type() == at::kBFloat16) local = local.to(at::kFloat);
  local = local.contiguous();
  auto held = std::make_unique<at::Tensor>(local);
  const py::capsule owner(held.get(),
                          [](void* tensor) { delete static_cast<at::Tensor*>(tensor); });
  held.release();
  const std::vector<py::ssize_t> shape(local.sizes().begin(), local.sizes().end());
  return py::array(py::dtype(numpy_type(local.scalar_type())), shape, local.data_ptr(), owner);
}

}  // namespace coppice::python
