// Python classes over a runtime table: Runtime, NativeDevice, Stream, Event, Gate. Their methods are those of the contract in
// accel/backend.py, which registers them as its implementations.

#include "runtime_classes.h"

#include <pybind11/stl.h>

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "../runtime/host.h"
#include "../runtime/recorder.h"
#include "copies.h"
#include "forbid_new.h"
#include "gil.h"
#include "handles.h"
#include "view.h"

namespace accel::py_bindings {
namespace {

using Release = py::call_guard<GilRelease>;

struct Runtime {
  const AccelRuntime* table;
};

// The first slot that must be filled and is not; null when all are.
const char* empty_slot(const AccelRuntime& t) {
#define ACCEL_SLOT(slot)     \
  {                          \
    t.slot != nullptr, #slot \
  }
  const std::pair<bool, const char*> slots[] = {
      ACCEL_SLOT(name),
      ACCEL_SLOT(build_tag),
      ACCEL_SLOT(last_error),
      ACCEL_SLOT(device_count),
      ACCEL_SLOT(device_open),
      ACCEL_SLOT(device_close),
      ACCEL_SLOT(device_synchronize),
      ACCEL_SLOT(memory_alloc),
      ACCEL_SLOT(memory_free),
      ACCEL_SLOT(stream_compute),
      ACCEL_SLOT(stream_create),
      ACCEL_SLOT(stream_destroy),
      ACCEL_SLOT(stream_query),
      ACCEL_SLOT(stream_synchronize),
      ACCEL_SLOT(stream_reset),
      ACCEL_SLOT(stream_wait_event),
      ACCEL_SLOT(event_create),
      ACCEL_SLOT(event_destroy),
      ACCEL_SLOT(event_record),
      ACCEL_SLOT(event_query),
      ACCEL_SLOT(event_synchronize),
      ACCEL_SLOT(copy),
      ACCEL_SLOT(fill),
      ACCEL_SLOT(launch),
      ACCEL_SLOT(stream_is_inline),
  };
#undef ACCEL_SLOT
  for (const auto& [filled, name] : slots) {
    if (!filled) return name;
  }
  // Optional slots that only make sense together.
  if (!t.host_register != !t.host_unregister) return t.host_register ? "host_unregister" : "host_register";
  if (!t.device_stop != !t.device_ended) return t.device_stop ? "device_ended" : "device_stop";
  if (t.stream_gate && !t.gate_open) return "gate_open";
  if (t.stream_gate && !t.gate_destroy) return "gate_destroy";
  return nullptr;
}

// Bytes of the table of each minor version, from 1.0 on.
constexpr size_t kTableSizes[] = {offsetof(AccelRuntime, work_address), sizeof(AccelRuntime)};
static_assert(sizeof(kTableSizes) / sizeof(kTableSizes[0]) == ACCEL_RUNTIME_ABI_MINOR + 1, "a minor version has no size");

// The table with every slot of this version: slots that an earlier one lacks are null. The same object for the same table,
// because tables are compared by address.
const AccelRuntime* completed(const AccelRuntime* table) {
  if (table->struct_size >= sizeof(AccelRuntime)) return table;
  static std::mutex mutex;
  static std::map<const AccelRuntime*, std::unique_ptr<AccelRuntime>> made;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& whole = made[table];
  if (!whole) {
    whole = std::make_unique<AccelRuntime>();
    std::memcpy(whole.get(), table, table->struct_size);
  }
  return whole.get();
}

// Refuses a table that this build cannot call.
Runtime checked(const AccelRuntime* table, const std::string& origin) {
  if (table->struct_size < offsetof(AccelRuntime, name)) {
    throw Error(
        ErrorKind::kAbiMismatch,
        "the runtime table of " + origin + " has " + std::to_string(table->struct_size) + " bytes, too few for its version", "",
        "set struct_size to sizeof(AccelRuntime)");
  }
  const std::string ours = std::to_string(ACCEL_RUNTIME_ABI_MAJOR) + "." + std::to_string(ACCEL_RUNTIME_ABI_MINOR);
  const std::string theirs = std::to_string(table->abi_major) + "." + std::to_string(table->abi_minor);
  const bool size_fits = table->struct_size >= kTableSizes[std::min<uint32_t>(table->abi_minor, ACCEL_RUNTIME_ABI_MINOR)];
  if (table->abi_major == ACCEL_RUNTIME_ABI_MAJOR && size_fits) {
    const AccelRuntime* const whole = completed(table);
    const char* const slot = empty_slot(*whole);
    if (!slot) return Runtime{whole};
    throw Error(ErrorKind::kAbiMismatch,
                "the runtime table of " + origin + " leaves the slot " + slot + " empty, which is not optional", "",
                "fill it, see accel/runtime.h");
  }
  throw Error(ErrorKind::kAbiMismatch,
              "the runtime table of " + origin + " has ABI " + theirs + " and " + std::to_string(table->struct_size) +
                  " bytes; this build of accel takes ABI " + ours + " and " + std::to_string(sizeof(AccelRuntime)) + " bytes",
              "", "rebuild " + origin + " against accel/runtime.h of this version");
}

Runtime runtime_from_capsule(const py::capsule& capsule, const std::string& origin) {
  if (std::string(capsule.name() ? capsule.name() : "") != ACCEL_RUNTIME_CAPSULE) {
    throw Error(ErrorKind::kInvalidArgument, "the capsule of " + origin + " is not named " ACCEL_RUNTIME_CAPSULE);
  }
  const Runtime runtime = checked(capsule.get_pointer<const AccelRuntime>(), origin);
  capsule.inc_ref();  // for good: devices, streams and events use the table until the process ends
  return runtime;
}

int64_t nanoseconds(double seconds) {
  if (std::isnan(seconds) || seconds < 0) {
    throw Error(ErrorKind::kInvalidArgument, "timeout is " + std::to_string(seconds) + " s; it must be 0 or more");
  }
  constexpr double kMost = 9e18;
  return static_cast<int64_t>(std::min(seconds * 1e9, kMost));
}

bool ready(const DeviceState& device, AccelStatus status, const char* op) {
  if (status == ACCEL_NOT_READY) return false;
  check(device, status, op);
  return true;
}

// Asked by the host runtime while work waits on the caller's thread: non-zero leaves a Python error pending, which is raised in
// place of the runtime's own.
int32_t interrupted() {
  if (python_finalizing() || !PyGILState_GetThisThreadState()) return 0;
  const GilAcquire gil;
  return PyErr_CheckSignals();
}

// Blocks in slices, so that Ctrl-C and the closing of the device are noticed during a long wait. `wait(nanoseconds)` is the
// table's blocking call. The GIL is not held.
template <typename Wait>
void block(DeviceState& d, double seconds, const char* op, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
  constexpr std::chrono::nanoseconds kYear = std::chrono::hours(24 * 365);
  const Clock::time_point limit = Clock::now() + std::min(std::chrono::nanoseconds(nanoseconds(seconds)), kYear);
  for (;;) {
    const std::chrono::nanoseconds left = limit - Clock::now();
    {
      Use use(d);
      const AccelStatus status = wait(std::clamp(left, std::chrono::nanoseconds(0), kSlice).count());
      if (status != ACCEL_TIMEOUT || left <= kSlice) {
        check(d, status, op);
        return;
      }
    }
    const GilAcquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// --- host_call: a Python function on a runtime thread -------------------------------------------------------------

// Above 0 while this thread runs or releases Python for a runtime: closing a device from there would wait for itself.
thread_local int g_inside = 0;
struct Inside {
  Inside() { ++g_inside; }
  ~Inside() { --g_inside; }
};

struct PythonCall {
  py::function fn;
};

// The text of any object; a __str__ that raises and unpaired surrogates have one too.
std::string text_of(py::handle object) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Str(object.ptr()));
  const auto bytes = text
                         ? py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"))
                         : py::object();
  if (bytes) return PyBytes_AsString(bytes.ptr());
  PyErr_Clear();
  return "(no text)";
}

void write_message(const std::string& text, char* error, size_t size) {
  size_t length = std::min(text.size(), size - 1);
  // Cut between characters: 10xxxxxx continues one.
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  std::copy_n(text.data(), length, error);
  error[length] = '\0';
}

int32_t run_python(void* arg, char* error, size_t size) {
  const GilAcquire gil;
  const Inside inside;
  try {
    static_cast<PythonCall*>(arg)->fn();
    return 0;
  } catch (py::error_already_set& raised) {
    write_message(text_of(raised.type().attr("__name__")) + ": " + text_of(raised.value()), error, size);
    return 1;
  }
}

void release_python(void* arg) {
  const GilAcquire gil;
  const Inside inside;
  const py::error_scope kept;  // an interrupted wait releases its work with the error already set
  delete static_cast<PythonCall*>(arg);
}

void host_call(StreamHandle& s, py::function fn) {
  AccelLaunch launch{};
  launch.struct_size = sizeof(AccelLaunch);
  launch.op = "host_call";
  launch.work = run_python;
  launch.release = release_python;
  std::unique_ptr<PythonCall, decltype(&release_python)> call(new PythonCall{std::move(fn)}, release_python);
  const GilRelease released;
  Use use(*s.device);
  launch.arg = call.release();  // from here on the runtime releases it, whatever it returns
  check(*s.device, s.device->runtime->launch(s.stream, &launch), "host_call");
}

// --- devices -------------------------------------------------------------------------------------------------------

// Devices of this process. A forked child has their memory but not their threads, so there they count as closed.
std::mutex g_live_mutex;
std::set<DeviceState*> g_live;

void after_fork_in_child() {
  for (DeviceState* state : g_live) {
    state->closed = true;
    state->device = nullptr;  // its threads do not exist here
    state->name += " (of the parent process)";
    new (&state->closing) std::shared_mutex;  // may have been held by a thread that does not exist here
  }
  g_live_mutex.unlock();
}

// Puts a device back that could not be closed yet.
void put_back(DeviceState& d, AccelDevice* device) {
  std::unique_lock<std::shared_mutex> alone(d.closing);
  d.device = device;
}

// Closes the device, or throws Timeout naming what still runs at the limit (work cannot be cut off); it counts as closed even
// then, and closing it again waits again. The GIL is not held, and no lock is kept while it closes: its threads may need the
// GIL, which the destructor of a handle holds when it asks for the lock.
void close_now(DeviceState& d, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSlice{50};
  const Clock::time_point limit =
      Clock::now() + std::chrono::nanoseconds(std::min<int64_t>(nanoseconds(seconds), int64_t{1} << 55));
  const bool stops = d.runtime->device_stop != nullptr;  // else device_close alone, however long it takes
  const auto past_limit = [&] {
    if (PyGILState_GetThisThreadState() && !python_finalizing()) {
      const GilAcquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    return Clock::now() >= limit;
  };
  const auto timeout = [&](const std::string& op) {
    return Error(ErrorKind::kTimeout, d.name + " is closed to new work, but " + op + " has not ended", "close",
                 "end it, then close the device again");
  };
  d.closed = true;
  // Calls that got in before are let through, woken where they wait; later ones see the flag.
  AccelDevice* device = nullptr;
  for (bool late = false;; late = past_limit()) {
    std::unique_lock<std::shared_mutex> drained(d.closing, std::defer_lock);
    {
      std::shared_lock<std::shared_mutex> beside(d.closing, std::try_to_lock);
      if (beside && d.device && stops) d.runtime->device_stop(d.device);
      if (beside && !d.device) return;  // closed, or another thread closes it
    }
    const Clock::time_point slice = Clock::now() + kSlice;
    while (!drained.try_lock() && Clock::now() < slice) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (drained) {
      device = std::exchange(d.device, nullptr);
      break;
    }
    if (late) throw timeout("a call from another thread");
  }
  if (!device) return;
  if (stops) {
    try {
      d.runtime->device_stop(device);  // also the streams that were made meanwhile
      const auto slice = [&] {
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(limit - Clock::now());
        return std::clamp<int64_t>(left.count(), 0, std::chrono::nanoseconds(kSlice).count());
      };
      for (const char* op = ""; !d.runtime->device_ended(device, slice(), &op);) {
        if (past_limit()) throw timeout(std::string(op) + " on a stream");
      }
    } catch (...) {
      put_back(d, device);
      throw;
    }
  }
  d.runtime->device_close(device);
}

constexpr double kCloseLimit = 10;

void close_device(DeviceState& d, double timeout) {
  if (g_inside > 0) {
    throw Error(ErrorKind::kInvalidArgument, "the device cannot be closed from a host_call, which its closing would wait for",
                "close", "close it from the thread that opened it");
  }
  close_now(d, timeout);
}

// The last reference went without a close(). Closing joins threads: not under the GIL, and not on one of those threads.
void forget_device(DeviceState* state) {
  {
    std::lock_guard<std::mutex> lock(g_live_mutex);
    g_live.erase(state);
  }
  // Work that does not end keeps the native device for good: its threads still use it.
  const auto finish = [state, seconds = state->closed || python_finalizing() ? 0 : kCloseLimit] {
    try {
      close_now(*state, seconds);
    } catch (const Error&) {
    } catch (py::error_already_set&) {
    }
    delete state;
  };
  if (!state->device) {
    delete state;
  } else if (g_inside > 0) {
    std::thread(finish).detach();
  } else if (PyGILState_Check()) {
    const GilRelease released;
    finish();
  } else {
    finish();
  }
}

DevicePtr open_device(const Runtime& runtime, int32_t index, const std::string& name) {
  static const int fork_handler =
      pthread_atfork([] { g_live_mutex.lock(); }, [] { g_live_mutex.unlock(); }, after_fork_in_child);
  if (fork_handler != 0) throw Error(ErrorKind::kInternal, "pthread_atfork failed", "open");
  auto state = std::make_unique<DeviceState>();
  state->runtime = runtime.table;
  state->name = name;
  check(*state, runtime.table->device_open(index, &state->device), "open");
  std::lock_guard<std::mutex> lock(g_live_mutex);
  g_live.insert(state.get());
  return DevicePtr(state.release(), forget_device);
}

std::pair<size_t, size_t> memory(DeviceState& d) {
  Use use(d);
  if (!d.runtime->memory_info) throw Error(ErrorKind::kUnsupported, "memory_info is not offered by " + d.name, "memory");
  size_t free = 0, total = 0;
  check(d, d.runtime->memory_info(d.device, &free, &total), "memory");
  return {free, total};
}

// Closed by close() or when the last reference goes.
struct Registration {
  DevicePtr device;
  void* memory;
  py::object owner;

  Registration(DevicePtr d, void* m, py::object o) : device(std::move(d)), memory(m), owner(std::move(o)) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { undo(); }

  AccelStatus undo() {
    if (!memory) return ACCEL_OK;
    void* const registered = std::exchange(memory, nullptr);
    std::shared_lock<std::shared_mutex> lock(device->closing);
    return device->closed ? ACCEL_OK : device->runtime->host_unregister(device->device, registered);
  }
  void close() { check(*device, undo(), "unregister_host"); }
};

std::unique_ptr<Registration> register_host(const DevicePtr& d, const py::object& object) {
  const Tensor t = dense(object, "register_host", "the buffer");
  Use use(*d);
  if (!d->runtime->host_register)
    throw Error(ErrorKind::kUnsupported, "host_register is not offered by " + d->name, "register_host");
  check(*d, d->runtime->host_register(d->device, t.data, static_cast<size_t>(t.nbytes())), "register_host");
  return std::make_unique<Registration>(d, t.data, object);
}

std::unique_ptr<StreamHandle> compute_stream(const DevicePtr& d) {
  Use use(*d);
  AccelStream* stream = nullptr;
  check(*d, d->runtime->stream_compute(d->device, &stream), "current_stream");
  return std::make_unique<StreamHandle>(d, stream, false);
}

std::unique_ptr<StreamHandle> new_stream(const DevicePtr& d) {
  Use use(*d);
  AccelStream* stream = nullptr;
  check(*d, d->runtime->stream_create(d->device, &stream), "stream");
  return std::make_unique<StreamHandle>(d, stream, true);
}

std::unique_ptr<EventHandle> new_event(const DevicePtr& d, bool timing) {
  Use use(*d);
  AccelEvent* event = nullptr;
  check(*d, d->runtime->event_create(d->device, timing ? 1 : 0, &event), "event");
  return std::make_unique<EventHandle>(d, event);
}

std::unique_ptr<GateHandle> new_gate(StreamHandle& s) {
  Use use(*s.device);
  if (!s.device->runtime->stream_gate) throw Error(ErrorKind::kUnsupported, "gate is not offered by " + s.device->name, "gate");
  AccelGate* gate = nullptr;
  check(*s.device, s.device->runtime->stream_gate(s.stream, &gate), "gate");
  return std::make_unique<GateHandle>(s.device, gate);
}

double elapsed(EventHandle& start, EventHandle& end) {
  if (start.device->runtime != end.device->runtime) {
    throw Error(ErrorKind::kInvalidArgument, "the events belong to different runtimes", "elapsed_ms");
  }
  if (!start.device->runtime->event_elapsed) {
    throw Error(ErrorKind::kUnsupported, "event_timing is not offered by " + start.device->name, "elapsed_ms");
  }
  double milliseconds = 0;
  check(*start.device, start.device->runtime->event_elapsed(start.event, end.event, &milliseconds), "elapsed_ms");
  return milliseconds;
}

void bind_streams(py::module_& m, double timeout) {
  py::class_<GateHandle>(m, "Gate").def("open", [](GateHandle& g) { g.device->runtime->gate_open(g.gate); }, Release());
  py::class_<EventHandle>(m, "Event")
      .def(
          "record",
          [](EventHandle& e, StreamHandle& s) {
            same_device(*e.device, s, "record");
            Use use(*s.device);
            check(*s.device, s.device->runtime->event_record(e.event, s.stream), "record");
          },
          py::arg("stream"), Release())
      .def(
          "query", [](EventHandle& e) { return ready(*e.device, e.device->runtime->event_query(e.event), "query"); }, Release())
      .def(
          "synchronize",
          [](EventHandle& e, double seconds) {
            block(*e.device, seconds, "synchronize",
                  [&](int64_t ns) { return e.device->runtime->event_synchronize(e.event, ns); });
          },
          py::arg("timeout") = timeout, Release())
      .def("elapsed_ms", &elapsed, py::arg("end"), Release());
  py::class_<StreamHandle>(m, "Stream")
      .def(
          "wait",
          [](StreamHandle& s, EventHandle& e) {
            if (e.device->runtime != s.device->runtime) {
              throw Error(ErrorKind::kInvalidArgument, "the event belongs to " + e.device->name + ", of another runtime",
                          "wait");
            }
            Use use(*s.device);
            check(*s.device, s.device->runtime->stream_wait_event(s.stream, e.event), "wait");
          },
          py::arg("event"), Release())
      .def("host_call", &host_call, py::arg("fn"))
      .def("gate", &new_gate, Release())
      .def(
          "query",
          [](StreamHandle& s) {
            Use use(*s.device);
            return ready(*s.device, s.device->runtime->stream_query(s.stream), "query");
          },
          Release())
      .def(
          "synchronize",
          [](StreamHandle& s, double seconds) {
            block(*s.device, seconds, "synchronize",
                  [&](int64_t ns) { return s.device->runtime->stream_synchronize(s.stream, ns); });
          },
          py::arg("timeout") = timeout, Release())
      .def(
          "reset",
          [](StreamHandle& s) {
            Use use(*s.device);
            check(*s.device, s.device->runtime->stream_reset(s.stream), "reset");
          },
          Release())
      .def_property_readonly("runs_inline", [](const StreamHandle& s) { return s.runs_inline; });
}

void bind_device(py::module_& m, double timeout) {
  py::class_<Registration>(m, "HostRegistration").def("close", &Registration::close);
  py::class_<DeviceState, DevicePtr>(m, "NativeDevice")
      .def("memory", &memory, Release())
      .def("register_host", &register_host, py::arg("buffer"))
      .def("current_stream", &compute_stream, Release())
      .def("stream", &new_stream, Release())
      .def("event", &new_event, py::kw_only(), py::arg("timing") = false, Release())
      .def("copy", &copy, py::arg("dst"), py::arg("src"), py::arg("stream"))
      .def("copy_batch", &copy_batch, py::arg("runs"), py::arg("stream"))
      .def("fill", &fill, py::arg("dst"), py::arg("byte"), py::arg("stream"))
      .def(
          "synchronize",
          [](DeviceState& d, double seconds) {
            block(d, seconds, "synchronize", [&](int64_t ns) { return d.runtime->device_synchronize(d.device, ns); });
          },
          py::arg("timeout") = timeout, Release())
      .def("close", &close_device, py::arg("timeout") = kCloseLimit, Release())
      .def_property_readonly("closed", [](const DeviceState& d) { return d.closed.load(); });
}

// [(op, [(address, bytes, stride, index, count, mode)])], mode "read", "write" or "readwrite".
py::list recorded_launches() {
  py::list launches;
  for (const recorder::Launch& launch : recorder::take()) {
    py::list accesses;
    for (const recorder::Access& a : launch.accesses) {
      const char* mode = a.mode == ACCEL_READ ? "read" : a.mode == ACCEL_WRITE ? "write" : "readwrite";
      accesses.append(py::make_tuple(reinterpret_cast<uintptr_t>(a.base), a.bytes, a.stride, a.index, a.count, mode));
    }
    launches.append(py::make_tuple(launch.op, accesses));
  }
  return launches;
}

}  // namespace

void bind_runtime(py::module_& m) {
  const double timeout = py::module_::import("accel.backend").attr("DEFAULT_TIMEOUT").cast<double>();
  py::class_<Runtime>(m, "Runtime", "A checked runtime table (csrc/include/accel/runtime.h).")
      .def_property_readonly("name", [](const Runtime& r) { return std::string(r.table->name); })
      .def_property_readonly("build_tag", [](const Runtime& r) { return std::string(r.table->build_tag); })
      .def_property_readonly("abi", [](const Runtime& r) { return std::make_pair(r.table->abi_major, r.table->abi_minor); })
      .def("device_count",
           [](const Runtime& r) {
             int32_t count = 0;
             if (r.table->device_count(&count) != ACCEL_OK)
               throw Error(ErrorKind::kInternal, r.table->last_error(), "device_count");
             return count;
           })
      .def("open", &open_device, py::arg("index"), py::arg("name"), Release());
  host::set_interrupted(interrupted);
  bind_streams(m, timeout);
  bind_device(m, timeout);
  for (const char* name : {"Runtime", "NativeDevice", "Stream", "Event", "Gate", "HostRegistration"}) forbid_new(m.attr(name));
  m.def(
      "host_runtime", [] { return checked(host::runtime(), "accel"); },
      "The host runtime: streams, events and copies on the CPU.");
  m.def(
      "recording_runtime", [] { return checked(recorder::runtime(), "accel"); },
      "The host runtime with a log of its launches, for tests.");
  m.def("recorded_launches", &recorded_launches,
        "What was launched through recording_runtime since the last call:\n"
        "[(op, [(address, bytes, stride, index, count, 'read' | 'write' | 'readwrite')])].");
  m.def("runtime_from_capsule", &runtime_from_capsule, py::arg("capsule"), py::arg("origin"),
        "A runtime table handed over by a third party in a capsule named '" ACCEL_RUNTIME_CAPSULE "'. Raises AbiMismatch.");
}

}  // namespace accel::py_bindings
