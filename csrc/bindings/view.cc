#include "view.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "accel/error.h"

namespace accel::py_bindings {
namespace {

int64_t checked_dim(const Tensor& t, int64_t dim) {
  if (dim < -t.ndim || dim >= t.ndim) {
    throw Error(ErrorKind::kInvalidArgument, "dimension " + std::to_string(dim) + " of a view with " + std::to_string(t.ndim));
  }
  return dim < 0 ? dim + t.ndim : dim;
}

View narrow(const View& view, int64_t dim, int64_t start, int64_t length) {
  const int64_t d = checked_dim(view.tensor, dim);
  if (start < 0 || length < 0 || start > view.tensor.shape[d] - length) {
    throw Error(ErrorKind::kInvalidArgument, "narrow to " + std::to_string(length) + " elements from " + std::to_string(start) +
                                                 " of a dimension of " + std::to_string(view.tensor.shape[d]));
  }
  View out = view;
  out.tensor.data += start * view.tensor.strides[d] * view.tensor.dtype.bytes();
  out.tensor.shape[d] = length;
  return out;
}

View select(const View& view, int64_t dim, int64_t index) {
  const int64_t d = checked_dim(view.tensor, dim);
  View out = narrow(view, d, index, 1);
  std::copy(out.tensor.shape + d + 1, out.tensor.shape + out.tensor.ndim, out.tensor.shape + d);
  std::copy(out.tensor.strides + d + 1, out.tensor.strides + out.tensor.ndim, out.tensor.strides + d);
  --out.tensor.ndim;
  return out;
}

View permute(const View& view, const std::vector<int64_t>& order) {
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int32_t>(order.size()) == view.tensor.ndim;
  for (size_t i = 0; valid && i < sorted.size(); ++i) valid = sorted[i] == static_cast<int64_t>(i);
  if (!valid) throw Error(ErrorKind::kInvalidArgument, "permute needs each dimension once");
  View out = view;
  for (size_t i = 0; i < order.size(); ++i) {
    out.tensor.shape[i] = view.tensor.shape[order[i]];
    out.tensor.strides[i] = view.tensor.strides[order[i]];
  }
  return out;
}

// Elements of a shape that a caller gave; false where an extent is negative or the product does not fit.
bool count_elements(const std::vector<int64_t>& shape, int64_t* count) {
  *count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(*count, extent, count)) return false;
  }
  return true;
}

View reshape(const View& view, const std::vector<int64_t>& shape) {
  if (!view.tensor.contiguous()) throw Error(ErrorKind::kInvalidArgument, "reshape needs a contiguous view");
  if (shape.size() > Tensor::kMaxDims) throw Error(ErrorKind::kInvalidArgument, "a view has at most 8 dimensions");
  View out = view;
  out.tensor.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), out.tensor.shape);
  int64_t count = 0;
  if (!count_elements(shape, &count) || count != view.tensor.numel()) {
    throw Error(ErrorKind::kInvalidArgument, "reshape from " + view.tensor.shape_text() + " to " + out.tensor.shape_text() +
                                                 " changes the number of elements");
  }
  out.tensor.set_row_major();
  return out;
}

View make_view(const py::object& object, const std::optional<std::string>& dtype,
               const std::optional<std::vector<int64_t>>& shape, const std::optional<std::vector<int64_t>>& strides) {
  View view{read_tensor(object, "view", "the object"), object};
  if (dtype) {
    const DataType wanted = parse_dtype(*dtype);
    if (wanted.bits != view.tensor.dtype.bits) {
      throw Error(ErrorKind::kInvalidArgument,
                  "cannot see " + dtype_name(view.tensor.dtype) + " as " + *dtype + ": sizes differ");
    }
    view.tensor.dtype = wanted;
  }
  if (shape) view = reshape(view, *shape);
  if (strides) {
    if (!shape || strides->size() != shape->size())
      throw Error(ErrorKind::kInvalidArgument, "strides need a shape of their length");
    // The farthest element must lie inside the memory that was handed in.
    const bool empty = view.tensor.numel() == 0;
    int64_t last = 0, step = 0;
    bool inside = true;
    for (size_t i = 0; i < strides->size(); ++i) {
      const int64_t stride = (*strides)[i];
      inside =
          inside && stride >= 0 &&
          (empty || (!__builtin_mul_overflow(stride, (*shape)[i] - 1, &step) && !__builtin_add_overflow(last, step, &last)));
      view.tensor.strides[i] = stride;
    }
    if (!inside || (!empty && last >= view.tensor.numel())) {
      throw Error(ErrorKind::kInvalidArgument, "strides lead outside the memory of the object");
    }
  }
  return view;
}

// A NumPy array over the same memory; bfloat16, which NumPy lacks, comes as its bits in uint16.
py::array to_numpy(const View& view) {
  const Tensor& t = view.tensor;
  if (t.device_type != kHostDevice) throw Error(ErrorKind::kInvalidArgument, "the view is not in host memory");
  const std::string name = t.dtype == kBFloat16 ? "uint16" : dtype_name(t.dtype);
  std::vector<py::ssize_t> shape(t.shape, t.shape + t.ndim), strides;
  for (int32_t i = 0; i < t.ndim; ++i) strides.push_back(t.strides[i] * t.dtype.bytes());
  py::array array(py::dtype(name), shape, strides, t.data, view.owner);
  if (t.readonly) array.attr("setflags")(py::arg("write") = false);
  return array;
}

}  // namespace

void bind_view(py::module_& module) {
  py::class_<View>(module, "View", "A borrowed tensor whose address and shape were read once. Ops take it at no cost.")
      .def_property_readonly("shape",
                             [](const View& v) {
                               return py::tuple(py::cast(std::vector<int64_t>(v.tensor.shape, v.tensor.shape + v.tensor.ndim)));
                             })
      .def_property_readonly(
          "strides",
          [](const View& v) {
            return py::tuple(py::cast(std::vector<int64_t>(v.tensor.strides, v.tensor.strides + v.tensor.ndim)));
          })
      .def_property_readonly("dtype", [](const View& v) { return dtype_name(v.tensor.dtype); })
      .def_property_readonly("nbytes", [](const View& v) { return v.tensor.nbytes(); })
      .def_property_readonly("ptr", [](const View& v) { return reinterpret_cast<uintptr_t>(v.tensor.data); })
      .def_property_readonly("contiguous", [](const View& v) { return v.tensor.contiguous(); })
      .def_property_readonly("owner", [](const View& v) { return v.owner; })
      .def("narrow", &narrow, py::arg("dim"), py::arg("start"), py::arg("length"),
           "Elements [start, start + length) of one dimension.")
      .def("select", &select, py::arg("dim"), py::arg("index"), "One index of one dimension, which goes away.")
      .def("permute", &permute, py::arg("order"), "Dimensions in another order; nothing moves.")
      .def("reshape", &reshape, py::arg("shape"), "Another shape over the same contiguous memory.")
      .def("numpy", &to_numpy, "A NumPy array over the same host memory (bfloat16 as its bits in uint16).")
      .def("__repr__", [](const View& v) { return "View(" + dtype_name(v.tensor.dtype) + " " + v.tensor.shape_text() + ")"; });
  module.def("view", &make_view, py::arg("object"), py::kw_only(), py::arg("dtype") = py::none(), py::arg("shape") = py::none(),
             py::arg("strides") = py::none(),
             "A View of a framework tensor, NumPy array or View. `dtype` reinterprets elements of the same size, `shape` and\n"
             "`strides` (in elements, non-negative) rearrange them inside the same memory. Raises InvalidArgument.");
}

}  // namespace accel::py_bindings
