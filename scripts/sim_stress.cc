// Drives simulated devices from many threads, for a sanitizer to watch: memory, streams and events across them, both executors,
// planned faults, devices closed with gates shut. Built and run by scripts/sanitize.sh. Exits 1 when a result is wrong.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../csrc/sim/runtime.h"

namespace {

constexpr int64_t kSoon = 60000000000;
const AccelRuntime* const rt = accel::sim::runtime();

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "sim_stress: %s (%s)\n", what, rt->last_error());
  std::exit(1);
}

AccelDevice* opened(bool seeded, uint64_t seed, std::shared_ptr<accel::sim::Machine>* machine) {
  accel::sim::Options options;
  options.limit = size_t{1} << 22;
  options.seeded = seeded;
  options.seed = seed;
  *machine = std::make_shared<accel::sim::Machine>(options);
  accel::sim::set_next(*machine);
  AccelDevice* device;
  require(rt->device_open(0, &device) == ACCEL_OK, "device_open");
  return device;
}

int32_t fail(void*, char* error, size_t size) {
  std::snprintf(error, size, "planned");
  return 1;
}

// q = [copy in, e!, e?, copy out]
void round_trip(AccelDevice* device) {
  AccelStream* q;
  AccelEvent* event;
  void* memory;
  require(rt->stream_create(device, &q) == ACCEL_OK && rt->event_create(device, 0, &event) == ACCEL_OK, "create");
  std::vector<uint8_t> a(5000, 7), b(5000, 0);
  require(rt->memory_alloc(device, ACCEL_MEMORY_DEVICE, a.size(), &memory) == ACCEL_OK, "memory_alloc");
  const AccelCopy in{memory, a.data(), a.size()}, out{b.data(), memory, b.size()};
  require(rt->copy(q, &in, 1) == ACCEL_OK, "copy in");
  rt->event_record(event, q);
  rt->stream_wait_event(q, event);
  require(rt->copy(q, &out, 1) == ACCEL_OK, "copy out");
  require(rt->stream_synchronize(q, kSoon) == ACCEL_OK && a == b, "the round trip");
  AccelLaunch bad{};
  bad.struct_size = sizeof(bad);
  bad.op = "stress";
  bad.work = fail;
  rt->launch(q, &bad);
  require(rt->stream_synchronize(q, kSoon) == ACCEL_ASYNC_FAILURE, "the failure was not told");
  require(rt->stream_query(q) == ACCEL_OK, "the failure was told twice");
  rt->stream_reset(q);
  require(rt->memory_free(device, memory) == ACCEL_OK, "memory_free");
  require(rt->memory_free(device, memory) == ACCEL_INVALID_ARGUMENT, "a double free went through");
  rt->stream_destroy(q);
  rt->event_destroy(event);
}

// A device that closes with work behind a gate that nobody opens.
void close_shut(bool seeded) {
  std::shared_ptr<accel::sim::Machine> machine;
  AccelDevice* const device = opened(seeded, 1, &machine);
  AccelStream *q1, *q2;
  AccelEvent* event;
  AccelGate* gate;
  rt->stream_create(device, &q1);
  rt->stream_create(device, &q2);
  rt->event_create(device, 0, &event);
  rt->stream_gate(q1, &gate);
  rt->event_record(event, q1);
  rt->stream_wait_event(q2, event);
  rt->device_stop(device);
  rt->device_close(device);
  require(rt->event_query(event) == ACCEL_OK, "somebody waits for ever");
  rt->gate_destroy(gate);
  rt->event_destroy(event);
}

}  // namespace

int main() {
  for (const bool seeded : {false, true}) {
    std::shared_ptr<accel::sim::Machine> machine;
    AccelDevice* const device = opened(seeded, 5, &machine);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 30; ++i) round_trip(device);
      });
    }
    threads.emplace_back([&] {
      for (int i = 0; i < 30; ++i) close_shut(seeded);
    });
    for (std::thread& thread : threads) thread.join();
    require(rt->device_synchronize(device, kSoon) == ACCEL_OK, "device_synchronize");
    require(machine->checker.found() == 0, "a race was reported where there is none");
    require(machine->memory.live() == 0, "memory was left");
    rt->device_close(device);
  }
  std::puts("sim_stress: all results right");
}
