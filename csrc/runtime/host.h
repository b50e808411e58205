// The runtime table over host memory: the CPU backend's, and the one a third-party backend may start from.
#pragma once

#include "accel/runtime.h"

namespace accel::host {

// The table; lives as long as the process.
const AccelRuntime* runtime();

// A question put every 50 ms to whoever embeds the runtime while a launch waits on its own thread, where no caller named a
// limit: non-zero ends the wait with ACCEL_TIMEOUT. Null: never.
void set_interrupted(int32_t (*interrupted)());

}  // namespace accel::host
