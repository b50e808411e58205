// What callers do with memory besides queueing work: allocate, free, and tell the checker.

#include <functional>
#include <string>
#include <utility>

#include "runtime.h"

namespace accel::sim {

namespace {

// How long an allocation waits for memory that the compute stream will free; the caller named no limit.
constexpr int64_t kRetryLimit = int64_t{60} * 1000000000;

}  // namespace

AccelStatus allocate(Machine& machine, size_t bytes, void** memory) {
  Lock lock(world().mutex);
  if (const std::string fault = machine.faults.pass(Point::kMalloc); !fault.empty()) return fail(ACCEL_OUT_OF_MEMORY, fault);
  *memory = machine.memory.allocate(bytes);
  const StreamPtr compute = machine.compute();
  if (!*memory && machine.options.oom_retry && compute && current_stream() != compute.get()) {
    const auto idle = [&] { return compute->idle() || compute->stopped; };
    if (machine.await(idle, limit_after(kRetryLimit), lock)) *memory = machine.memory.allocate(bytes);
  }
  if (*memory) {
    machine.checker.forget(reinterpret_cast<uintptr_t>(*memory), bytes);
    return ACCEL_OK;
  }
  return fail(ACCEL_OUT_OF_MEMORY, std::to_string(bytes) + " bytes do not fit: " + std::to_string(machine.memory.used()) +
                                       " of " + std::to_string(machine.memory.limit()) + " are in use");
}

namespace {

// The end of a life is a write: whoever uses the memory must come before it.
AccelStatus release_now(Machine& machine, void* memory, const std::function<void(const Range&)>& note) {
  const size_t bytes = machine.memory.size_of(memory);
  if (bytes > 0) note(range_of(memory, bytes, ACCEL_WRITE));
  if (const std::string why = machine.memory.free(memory); !why.empty()) return fail(ACCEL_INVALID_ARGUMENT, why);
  ++machine.counters.frees;
  machine.checker.forget(reinterpret_cast<uintptr_t>(memory), bytes);
  return ACCEL_OK;
}

}  // namespace

AccelStatus release(Machine& machine, void* memory) {
  mark_site(machine);
  const Lock lock(world().mutex);
  return release_now(machine, memory, [&](const Range& range) { machine.note_host(range, "free"); });
}

void release_in_order(Machine& machine, void* memory) {
  const Lock lock(world().mutex);
  const StreamPtr compute = machine.compute();
  if (machine.closed || !compute || compute->stopped) {
    (void)release_now(machine, memory, [](const Range&) {});
    return;
  }
  Task task = machine.task("free");
  if (compute->idle()) {
    compute->clock.join(task.submitted);
    const SitePtr site = machine.site("free", compute->name());
    (void)release_now(machine, memory, [&](const Range& range) {
      if (machine.options.check) machine.checker.note(range, compute->actor, compute->clock, site);
    });
    return;
  }
  task.always = true;
  task.run = [&machine, memory, compute](char*, size_t) {
    const Lock inner(world().mutex);
    const SitePtr site = machine.site("free", compute->name());
    (void)release_now(machine, memory, [&](const Range& range) {
      if (machine.options.check) machine.checker.note(range, compute->actor, compute->clock, site);
    });
    return 0;
  };
  machine.submit(*compute, std::move(task));
}

void host_access(Machine& machine, const void* memory, size_t bytes, AccelAccessMode mode) {
  mark_site(machine);
  const Lock lock(world().mutex);
  machine.note_host(range_of(memory, bytes, mode), "host_access");
}

void note_running(const AccelAccess* accesses, size_t count) {
  Stream* const stream = current_stream();
  if (!stream || !stream->machine->options.check) return;
  Machine& machine = *stream->machine;
  const Lock lock(world().mutex);
  const SitePtr site = stream->running_site;
  for (size_t i = 0; i < count; ++i) {
    const AccelAccess& a = accesses[i];
    for (size_t j = 0; j < a.count; ++j) {
      const int64_t step = a.index ? a.index[j] : static_cast<int64_t>(j);
      const void* begin = static_cast<std::byte*>(a.base) + step * a.stride;
      if (const void* const device = machine.memory.device_address(begin)) begin = device;
      machine.checker.note(range_of(begin, a.bytes, a.mode), stream->actor, stream->clock, site);
    }
  }
}

}  // namespace accel::sim
