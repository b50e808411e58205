// accel.backends.sim._native: simulated devices, and the CPU kernels as their ops.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../sim/runtime.h"
#include "accel/build_tag.h"
#include "cpu_ops.h"
#include "errors.h"
#include "gil.h"

namespace accel::py_bindings {
namespace {

using Release = py::call_guard<GilRelease>;

// Steers one simulated device and reads it; made before the device, which takes it over in `adopt`.
struct Control {
  std::shared_ptr<sim::Machine> machine;
  pid_t process = getpid();  // a forked child has the memory but not the threads, and maybe a lock that nobody opens

  bool here() const { return process == getpid(); }
};

void throw_if(AccelStatus status, const char* op) {
  if (status != ACCEL_OK) throw Error(kind_of(status), sim::last_error(), op);
}

std::unique_ptr<Control> make_control(size_t limit, std::optional<uint64_t> seed, bool check, bool emulated_events,
                                      bool oom_retry, bool memory_info) {
  sim::Options options;
  options.limit = limit;
  options.seeded = seed.has_value();
  options.seed = seed.value_or(0);
  options.check = check;
  options.emulated_events = emulated_events;
  options.memory_info = memory_info;
  options.oom_retry = oom_retry;
  try {
    return std::make_unique<Control>(Control{std::make_shared<sim::Machine>(options)});
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kOutOfMemory, "the system has no address range for a device of " + std::to_string(limit) + " bytes",
                "open", "give a smaller memory");
  }
}

uintptr_t allocate(Control& c, size_t bytes) {
  void* memory = nullptr;
  throw_if(sim::allocate(*c.machine, bytes, &memory), "empty");
  return reinterpret_cast<uintptr_t>(memory);
}

sim::Point parse_point(const std::string& name) {
  for (size_t i = 0; i < sim::kPoints; ++i) {
    if (name == sim::kPointNames[i]) return static_cast<sim::Point>(i);
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown fault point '" + name + "'; known: malloc, copy, launch, event, sync");
}

void plan_fault(Control& c, const std::string& point, uint64_t nth, bool sticky) {
  if (nth < 1) throw Error(ErrorKind::kInvalidArgument, "nth is 0; the next call is 1");
  const sim::Point parsed = parse_point(point);
  const sim::Lock lock(sim::world().mutex);
  c.machine->faults.arm(parsed, nth, sticky);
}

void delay(Control& c, const std::string& op, int64_t others) {
  if (others < 0) throw Error(ErrorKind::kInvalidArgument, "others is " + std::to_string(others) + "; it must be 0 or more");
  const sim::Lock lock(sim::world().mutex);
  c.machine->delays[op] = others;
}

std::map<std::string, uint64_t> counters(const Control& c) {
  const sim::Lock lock(sim::world().mutex);
  const sim::Machine& m = *c.machine;
  std::map<std::string, uint64_t> all = {{"live_allocations", m.memory.live()},
                                         {"live_bytes", m.memory.used()},
                                         {"peak_bytes", m.memory.peak()},
                                         {"live_events", m.events},
                                         {"live_gates", m.gates},
                                         {"frees", m.counters.frees},
                                         {"bytes_copied", m.counters.bytes_copied},
                                         {"fills", m.counters.fills},
                                         {"waits", m.counters.waits},
                                         {"queries", m.counters.queries},
                                         {"executed", m.counters.executed},
                                         {"skipped", m.counters.skipped},
                                         {"races", m.checker.found()}};
  uint64_t streams = 0, queued = 0;
  for (const sim::StreamPtr& s : m.streams()) {
    streams += s->retired ? 0 : 1;
    queued += s->queue.size();
  }
  all["live_streams"] = streams;
  all["queued"] = queued;
  for (size_t i = 0; i < sim::kPoints; ++i) all[sim::kPointNames[i]] = m.faults.count(static_cast<sim::Point>(i));
  return all;
}

std::vector<std::string> races(Control& c) {
  const sim::Lock lock(sim::world().mutex);
  std::vector<std::string> texts;
  for (const sim::Race& race : c.machine->checker.take()) texts.push_back(race.text());
  return texts;
}

void host_access(Control& c, py::handle object, const std::string& mode) {
  const std::map<std::string, AccelAccessMode> modes = {
      {"read", ACCEL_READ}, {"write", ACCEL_WRITE}, {"readwrite", ACCEL_READ_WRITE}};
  const auto found = modes.find(mode);
  if (found == modes.end()) {
    throw Error(ErrorKind::kInvalidArgument, "mode is '" + mode + "'; it must be read, write or readwrite", "host_access");
  }
  const Tensor t = read_tensor(object, "host_access", "memory");
  if (!t.contiguous()) throw Error(ErrorKind::kInvalidArgument, "memory is not contiguous", "host_access");
  const GilRelease released;
  sim::host_access(*c.machine, t.data, static_cast<size_t>(t.nbytes()), found->second);
}

// --- call sites ------------------------------------------------------------------------------------------------------

// "file.py:12" of the innermost Python frame that is not the backend's own.
std::string call_site() {
  if (python_finalizing() || !PyGILState_GetThisThreadState()) return {};
  const GilAcquire gil;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  std::string found;
  while (frame) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    const py::object name =
        py::reinterpret_borrow<py::object>(py::handle(reinterpret_cast<PyObject*>(code)).attr("co_filename"));
    const std::string file = py::str(name);
    Py_DECREF(code);
    const auto ends = [&](const char* tail) {
      const std::string text(tail);
      return file.size() >= text.size() && file.compare(file.size() - text.size(), text.size(), text) == 0;
    };
    if (!ends("accel/runtime_device.py") && !ends("sim/backend.py") && !ends("sim/buffer.py") && !ends("sim/ops.py")) {
      found = file.substr(file.rfind('/') + 1) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      break;
    }
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

// --- ops -------------------------------------------------------------------------------------------------------------

// A name that lives as long as the process, as a launch needs it.
const char* lasting(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard<std::mutex> lock(mutex);
  return names.insert(name).first->c_str();
}

OpContext context_of(AccelDevice* device, OpPhase phase) { return {phase, sim::runtime(), device, &sim::note_running}; }

struct QueuedOp {
  py::function fn;
  py::object stream;
  py::tuple args;
  py::dict attributes;
  AccelDevice* device;  // there as long as its streams run work; the handle's own is cleared when closing begins
};

int32_t run_op(void* arg, char* error, size_t size) {
  const GilAcquire gil;
  auto& op = *static_cast<QueuedOp*>(arg);
  const OpScope scope(context_of(op.device, OpPhase::kRun));
  try {
    op.fn(op.stream, *op.args, **op.attributes);
    return 0;
  } catch (py::error_already_set& raised) {
    const std::string text = py::str(raised.value());
    std::snprintf(error, size, "%s", text.c_str());
    return 1;
  } catch (const std::exception& raised) {
    std::snprintf(error, size, "%s", raised.what());
    return 1;
  }
}

void release_op(void* arg) {
  const GilAcquire gil;
  const py::error_scope kept;
  delete static_cast<QueuedOp*>(arg);
}

// Host arrays go into a launch by value: the caller may change them at once.
py::tuple captured(const py::args& args) {
  py::list list;
  for (const py::handle argument : args) {
    if (py::hasattr(argument, "__array_interface__")) {
      list.append(argument.attr("copy")());
    } else if (py::isinstance<View>(argument) && argument.cast<const View&>().tensor.device_type == kHostDevice) {
      list.append(argument.attr("numpy")().attr("copy")());
    } else {
      list.append(argument);
    }
  }
  return py::tuple(list);
}

// Queues `fn(stream, *args, **attributes)`, an op of this module: checked now as far as can be, run in stream order.
void submit(const std::string& name, const py::function& fn, const py::object& stream_object, const py::args& args,
            const py::kwargs& attributes) {
  StreamHandle& stream = stream_object.cast<StreamHandle&>();
  if (stream.device->runtime != sim::runtime()) {
    throw Error(ErrorKind::kInvalidArgument, "the stream belongs to " + stream.device->name + ", which is not simulated", name);
  }
  const py::tuple kept = captured(args);
  {
    Use use(*stream.device);
    const OpScope scope(context_of(stream.device->device, OpPhase::kCheck));
    fn(stream_object, *kept, **attributes);
  }
  AccelLaunch launch{};
  launch.struct_size = sizeof(AccelLaunch);
  launch.op = lasting(name);
  launch.work = run_op;
  launch.release = release_op;
  std::unique_ptr<QueuedOp, decltype(&release_op)> op(new QueuedOp{fn, stream_object, kept, attributes, stream.device->device},
                                                      release_op);
  const GilRelease released;
  Use use(*stream.device);
  launch.arg = op.release();  // from here on the runtime releases it, whatever it returns
  check(*stream.device, stream.device->runtime->launch(stream.stream, &launch), launch.op);
}

std::unique_ptr<Packed> wrap_on_device(DeviceState& d, const py::object& storage, const std::string& format, int64_t n,
                                       int64_t k) {
  Use use(d);
  const OpScope scope(context_of(d.device, OpPhase::kRun));
  return wrap_packed(storage, format, n, k);
}

}  // namespace

void bind_control(py::module_& module) {
  py::class_<Control>(module, "Control", "Steers one simulated device and reads it.")
      .def(py::init(&make_control), py::kw_only(), py::arg("limit"), py::arg("seed"), py::arg("check"),
           py::arg("emulated_events"), py::arg("oom_retry"), py::arg("memory_info"))
      .def(
          "adopt", [](const Control& c) { sim::set_next(c.machine); },
          "The device this thread opens next is the one of this control.")
      .def("allocate", &allocate, py::arg("bytes"), Release())
      .def(
          "free",
          [](Control& c, uintptr_t address) {
            const GilRelease released;
            throw_if(sim::release(*c.machine, reinterpret_cast<void*>(address)), "free");
          },
          py::arg("address"))
      .def(
          "release",
          [](Control& c, uintptr_t address) {
            if (c.here()) sim::release_in_order(*c.machine, reinterpret_cast<void*>(address));
          },
          py::arg("address"), Release())
      .def("fault", &plan_fault, py::arg("point"), py::kw_only(), py::arg("nth") = 1, py::arg("sticky") = false, Release())
      .def(
          "clear_faults",
          [](Control& c) {
            const sim::Lock lock(sim::world().mutex);
            c.machine->faults.disarm();
          },
          Release())
      .def("delay", &delay, py::arg("op"), py::arg("others"), Release())
      .def("counters", &counters, Release())
      .def("races", &races, Release())
      .def(
          "trace",
          [](const Control& c) {
            const sim::Lock lock(sim::world().mutex);
            return c.machine->trace;
          },
          Release())
      .def("host_access", &host_access, py::arg("memory"), py::arg("mode"));
  module.def(
      "runtime_capsule", [] { return py::capsule(const_cast<AccelRuntime*>(sim::runtime()), ACCEL_RUNTIME_CAPSULE); },
      "The runtime table of simulated devices.");
  module.def("submit", &submit, "Queue an op: submit(name, fn, stream, *tensors, **attributes).");
  module.def("wrap_on_device", &wrap_on_device, py::arg("device"), py::arg("storage"), py::arg("format"), py::arg("n"),
             py::arg("k"), "A PackedWeight over device memory.");
  sim::set_site_hook(call_site);
}

}  // namespace accel::py_bindings

PYBIND11_MODULE(_native, module) {
  using namespace accel::py_bindings;  // NOLINT: the module's own namespace
  module.doc() = "Simulated devices of accel (native).";
  py::module_::import("accel._core");  // brings the classes Stream, View and NativeDevice
  register_errors();
  bind_ops(module);
  bind_control(module);
  module.def(
      "build_tag", [] { return std::string(accel::build_tag()); }, "Compiler, machine and version this module was built with.");
}
