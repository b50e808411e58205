#include "copies.h"

#include <string>
#include <vector>

#include "gil.h"

namespace accel::py_bindings {
namespace {

void refuse_readonly(const Tensor& t, const char* op) {
  if (t.readonly) throw Error(ErrorKind::kInvalidArgument, "dst is read-only", op);
}

}  // namespace

Tensor dense(py::handle object, const char* op, const char* argument) {
  const Tensor t = read_tensor(object, op, argument);
  if (!t.contiguous()) throw Error(ErrorKind::kInvalidArgument, std::string(argument) + " is not contiguous", op);
  return t;
}

void same_device(const DeviceState& d, const StreamHandle& stream, const char* op) {
  if (stream.device.get() != &d) {
    throw Error(ErrorKind::kInvalidArgument,
                "the stream belongs to " + stream.device->name + ", not to this device (" + d.name + ")", op);
  }
}

void copy(DeviceState& d, py::handle dst_object, py::handle src_object, StreamHandle& stream) {
  same_device(d, stream, "copy");
  const Tensor dst = dense(dst_object, "copy", "dst"), src = dense(src_object, "copy", "src");
  refuse_readonly(dst, "copy");
  if (dst.nbytes() != src.nbytes()) {
    throw Error(ErrorKind::kInvalidArgument,
                "dst has " + std::to_string(dst.nbytes()) + " bytes and src " + std::to_string(src.nbytes()), "copy");
  }
  const AccelCopy run{dst.data, src.data, static_cast<size_t>(dst.nbytes())};
  const GilRelease released;
  Use use(d);
  check(d, d.runtime->copy(stream.stream, &run, 1), "copy");
}

void copy_batch(DeviceState& d, const py::sequence& runs, StreamHandle& stream) {
  same_device(d, stream, "copy_batch");
  std::vector<AccelCopy> list;
  list.reserve(runs.size());
  for (const py::handle run : runs) {
    const Tensor dst = dense(run.attr("dst"), "copy_batch", "dst"), src = dense(run.attr("src"), "copy_batch", "src");
    refuse_readonly(dst, "copy_batch");
    const auto dst_offset = run.attr("dst_offset").cast<int64_t>(), src_offset = run.attr("src_offset").cast<int64_t>();
    const auto bytes = run.attr("nbytes").cast<int64_t>();
    const std::string where = "run " + std::to_string(list.size()) + " of " + std::to_string(bytes) + " bytes";
    if (bytes < 0 || dst_offset < 0 || dst_offset > dst.nbytes() - bytes) {
      throw Error(ErrorKind::kInvalidArgument,
                  where + " at " + std::to_string(dst_offset) + " leaves dst of " + std::to_string(dst.nbytes()), "copy_batch");
    }
    if (src_offset < 0 || src_offset > src.nbytes() - bytes) {
      throw Error(ErrorKind::kInvalidArgument,
                  where + " at " + std::to_string(src_offset) + " leaves src of " + std::to_string(src.nbytes()), "copy_batch");
    }
    list.push_back({dst.data + dst_offset, src.data + src_offset, static_cast<size_t>(bytes)});
  }
  const GilRelease released;
  Use use(d);
  check(d, d.runtime->copy(stream.stream, list.data(), list.size()), "copy_batch");
}

void fill(DeviceState& d, py::handle object, int byte, StreamHandle& stream) {
  same_device(d, stream, "fill");
  const Tensor dst = dense(object, "fill", "dst");
  refuse_readonly(dst, "fill");
  if (byte < 0 || byte > 255)
    throw Error(ErrorKind::kInvalidArgument, "byte is " + std::to_string(byte) + "; it must be 0 to 255", "fill");
  const GilRelease released;
  Use use(d);
  check(d, d.runtime->fill(stream.stream, dst.data, static_cast<uint8_t>(byte), static_cast<size_t>(dst.nbytes())), "fill");
}

}  // namespace accel::py_bindings
