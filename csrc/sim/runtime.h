// The runtime table over simulated devices.
#pragma once

#include <memory>

#include "accel/runtime.h"
#include "machine.h"

namespace accel::sim {

// The table; lives as long as the process.
const AccelRuntime* runtime();

// Memory for callers without a device handle: as memory_alloc and memory_free do, which go through these.
AccelStatus allocate(Machine& machine, size_t bytes, void** memory);
AccelStatus release(Machine& machine, void* memory);
// Frees in the order of the compute stream, as a framework's allocator reuses what was dropped: work of that stream that is
// queued already may still use it, work of another stream may not.
void release_in_order(Machine& machine, void* memory);

// Tells the checker that the host touches memory itself.
void host_access(Machine& machine, const void* memory, size_t bytes, AccelAccessMode mode);
// Tells the checker what work of the running stream touches; addresses of either range.
void note_running(const AccelAccess* accesses, size_t count);

}  // namespace accel::sim
