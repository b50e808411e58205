/* The runtime table: what a device must do so that everything above it can run. C ABI, no framework, no vendor.
 *
 * One table per runtime library (host, simulator, CUDA dialect, HIP). A backend that lives outside this repository fills
 * the same table and hands it over in a capsule named ACCEL_RUNTIME_CAPSULE. A table lives as long as the process.
 *
 * Compatibility. `struct_size` comes first. Fields are only ever appended, never moved, removed or given a new meaning; an
 * addition raises ACCEL_RUNTIME_ABI_MINOR and gets a line in the changelog below. A loader accepts a table of its own major
 * version whose struct_size covers the fields of the minor version it states, and refuses everything else (AbiMismatch).
 * A slot marked (optional) may be null where the capability of the same name is NONE; every other slot must be filled.
 *
 * Semantics that every table must keep
 *   1. A stream runs in submission order. Two streams are unordered unless an event joins them. There is no implicit
 *      default-stream synchronisation.
 *   2. An event that was never recorded is complete. wait_event captures the newest record at call time; recording again
 *      does not disturb earlier waiters.
 *   3. A query never blocks: ACCEL_OK when done, ACCEL_NOT_READY when not.
 *   4. Argument errors are returned before anything is queued. An error of queued work is returned exactly once, by the next
 *      query or synchronise of that stream, and names the op; its message is "<op>: <what happened>". What was queued
 *      behind it is skipped (its `release` still runs) even after stream_reset, which makes the stream take new work.
 *      ACCEL_DEVICE_LOST is permanent.
 *   5. Every blocking call takes a timeout in nanoseconds and returns ACCEL_TIMEOUT when it passes; the work goes on.
 *   6. Calls may come from any thread; one object must not be used by two threads at once, except that a gate may be opened
 *      and an event queried from anywhere.
 *   7. Zero bytes always succeed. Overlapping copies are ACCEL_INVALID_ARGUMENT.
 *
 * Changelog
 *   1.0  first version.
 *   1.1  work_address, device_stop, device_ended (all optional).
 */
#ifndef ACCEL_RUNTIME_H_
#define ACCEL_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ACCEL_RUNTIME_ABI_MAJOR 1
#define ACCEL_RUNTIME_ABI_MINOR 1
#define ACCEL_RUNTIME_CAPSULE "accel.runtime"

typedef enum AccelStatus {
  ACCEL_OK = 0,
  ACCEL_NOT_READY = 1,        /* only from queries */
  ACCEL_INVALID_ARGUMENT = 2, /* nothing was queued */
  ACCEL_OUT_OF_MEMORY = 3,
  ACCEL_TIMEOUT = 4,
  ACCEL_ASYNC_FAILURE = 5, /* queued work failed; returned once */
  ACCEL_DEVICE_LOST = 6,   /* permanent */
  ACCEL_UNSUPPORTED = 7,
  ACCEL_INTERNAL = 8
} AccelStatus;

typedef enum AccelMemoryKind {
  ACCEL_MEMORY_DEVICE = 0,
  ACCEL_MEMORY_HOST = 1 /* pinned where the device has a notion of it */
} AccelMemoryKind;

typedef enum AccelAccessMode { ACCEL_READ = 1, ACCEL_WRITE = 2, ACCEL_READ_WRITE = 3 } AccelAccessMode;

/* What a launch touches: `count` ranges of `bytes`, the i-th at base + index[i] * stride (index null: i * stride).
 * Attention declares the pages of its block tables this way, anything dense a single range. */
typedef struct AccelAccess {
  void* base;
  size_t bytes;
  int64_t stride;
  const int32_t* index;
  size_t count;
  AccelAccessMode mode;
} AccelAccess;

typedef struct AccelCopy {
  void* dst;
  const void* src;
  size_t bytes;
} AccelCopy;

/* Queued host work. Returns 0, or non-zero after writing a message (always terminated) to `error`. */
typedef int32_t (*AccelWork)(void* arg, char* error, size_t error_size);
typedef void (*AccelRelease)(void* arg);

/* One launch. `work` runs in stream order on a host-executed device; other devices get a `native` kernel of their own module
 * in the same closure. `release` (may be null) runs exactly once, after the work ran or was skipped. `accesses` is read during
 * the call only. `op` must outlive the process (a literal). */
typedef struct AccelLaunch {
  size_t struct_size;
  const char* op;
  AccelWork work;
  void* arg;
  AccelRelease release;
  const AccelAccess* accesses;
  size_t num_accesses;
} AccelLaunch;

typedef struct AccelDevice AccelDevice;
typedef struct AccelStream AccelStream;
typedef struct AccelEvent AccelEvent;
typedef struct AccelGate AccelGate;

typedef struct AccelRuntime {
  size_t struct_size; /* sizeof(AccelRuntime) of the implementer */
  uint32_t abi_major;
  uint32_t abi_minor;
  const char* name;      /* e.g. "host" */
  const char* build_tag; /* compiler, version, target: shown by `accel doctor` and in AbiMismatch */

  /* 1 when the runtime looks at the accesses of a launch (simulator, recorder). Where it is 0 a caller may leave them out. */
  int32_t tracks_accesses;

  /* Message of the last call on this thread that did not return ACCEL_OK or ACCEL_NOT_READY. Never null. */
  const char* (*last_error)(void);

  /* Devices. */
  AccelStatus (*device_count)(int32_t* count);
  AccelStatus (*device_open)(int32_t index, AccelDevice** device);
  /* Abandons queued work, joins threads, destroys the streams. Never fails. Events and gates may outlive it. */
  void (*device_close)(AccelDevice* device);
  AccelStatus (*device_synchronize)(AccelDevice* device, int64_t timeout_ns);
  AccelStatus (*memory_info)(AccelDevice* device, size_t* free, size_t* total); /* (optional) */

  /* Memory. Aligned to 64 bytes at least. host_register makes caller-owned memory copyable without staging. */
  AccelStatus (*memory_alloc)(AccelDevice* device, AccelMemoryKind kind, size_t bytes, void** memory);
  AccelStatus (*memory_free)(AccelDevice* device, void* memory);
  AccelStatus (*host_register)(AccelDevice* device, void* memory, size_t bytes); /* (optional) */
  AccelStatus (*host_unregister)(AccelDevice* device, void* memory);             /* (optional) */

  /* Streams. The compute stream belongs to the device: it wraps the framework's current stream and is never destroyed. */
  AccelStatus (*stream_compute)(AccelDevice* device, AccelStream** stream);
  AccelStatus (*stream_create)(AccelDevice* device, AccelStream** stream);
  void (*stream_destroy)(AccelStream* stream); /* does not block; queued work still runs unless the device closes */
  AccelStatus (*stream_query)(AccelStream* stream);
  AccelStatus (*stream_synchronize)(AccelStream* stream, int64_t timeout_ns);
  AccelStatus (*stream_reset)(AccelStream* stream);
  AccelStatus (*stream_wait_event)(AccelStream* stream, AccelEvent* event);
  AccelStatus (*stream_gate)(AccelStream* stream, AccelGate** gate); /* (optional) */
  void (*gate_open)(AccelGate* gate);                                /* idempotent */
  void (*gate_destroy)(AccelGate* gate);                             /* opens it first */

  /* Events. */
  AccelStatus (*event_create)(AccelDevice* device, int32_t timing, AccelEvent** event);
  void (*event_destroy)(AccelEvent* event);
  AccelStatus (*event_record)(AccelEvent* event, AccelStream* stream);
  AccelStatus (*event_query)(AccelEvent* event);
  AccelStatus (*event_synchronize)(AccelEvent* event, int64_t timeout_ns);
  AccelStatus (*event_elapsed)(AccelEvent* start, AccelEvent* end, double* milliseconds); /* (optional) */

  /* Work. copy checks all runs before it queues the first. */
  AccelStatus (*copy)(AccelStream* stream, const AccelCopy* runs, size_t count);
  AccelStatus (*fill)(AccelStream* stream, void* dst, uint8_t byte, size_t bytes);
  AccelStatus (*launch)(AccelStream* stream, const AccelLaunch* launch);

  /* 1 when `stream` runs work on the calling thread inside launch, so that closures may live on the stack. */
  int32_t (*stream_is_inline)(AccelStream* stream);

  /* Since 1.1. What `work` of a launch may dereference for [address, address + bytes): on a device whose memory the host cannot
   * touch, another address of the same bytes. ACCEL_INVALID_ARGUMENT unless the range lies in one live allocation; memory that
   * is not the device's comes back as it is. Null: every address is its own. */
  AccelStatus (*work_address)(AccelDevice* device, const void* address, size_t bytes, void** usable); /* (optional) */
  /* Since 1.1. Closing in bounded steps, ahead of device_close, which joins threads however long their work takes. device_stop
   * wakes and fails what waits inside the device and lets no more work start; it may be called while other calls are inside the
   * device. device_ended is 0 while a piece of work still runs at the limit, and then names it. */
  void (*device_stop)(AccelDevice* device);                                          /* (optional) */
  int32_t (*device_ended)(AccelDevice* device, int64_t timeout_ns, const char** op); /* (optional) */
} AccelRuntime;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* ACCEL_RUNTIME_H_ */
