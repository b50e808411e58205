// The runtime table over host memory: the CPU backend's, and the one a third-party backend may start from.
#pragma once

#include <chrono>
#include <string>

#include "accel/runtime.h"

namespace accel::host {

// The table; lives as long as the process.
const AccelRuntime* runtime();

// Closing in bounded steps, ahead of the table's device_close, which joins threads however long their work takes.
// begin_close wakes and fails what waits inside the device and lets no more work start; it may be called while other calls
// are inside the device. ended is false while a piece of work still runs at the limit, and then names it.
void begin_close(AccelDevice* device);
bool ended(AccelDevice* device, std::chrono::steady_clock::time_point limit, std::string* op);

// A question put every 50 ms to whoever embeds the runtime while a launch waits on its own thread, where no caller named a
// limit: non-zero ends the wait with ACCEL_TIMEOUT. Null: never.
void set_interrupted(int32_t (*interrupted)());

}  // namespace accel::host
