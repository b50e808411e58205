// The runtime table over host memory: the CPU backend's, and the one a third-party backend may start from.
#pragma once

#include "accel/runtime.h"

namespace accel::host {

// The table; lives as long as the process.
const AccelRuntime* runtime();

}  // namespace accel::host
