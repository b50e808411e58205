// Drives the host runtime from many threads, for a sanitizer to watch: streams, events across them, gates opened elsewhere,
// failures and resets, streams destroyed with work queued, devices closed with gates shut. Built and run by scripts/sanitize.sh.
// Exits 1 when a result is wrong; a data race is the sanitizer's to report.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../csrc/runtime/host.h"

namespace {

constexpr int64_t kSoon = 60000000000;
const AccelRuntime* const rt = accel::host::runtime();

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "runtime_stress: %s (%s)\n", what, rt->last_error());
  std::exit(1);
}

AccelLaunch launch_of(AccelWork work, void* arg) {
  AccelLaunch launch{};
  launch.struct_size = sizeof(launch);
  launch.op = "stress";
  launch.work = work;
  launch.arg = arg;
  return launch;
}

int32_t add_one(void* arg, char*, size_t) {
  static_cast<std::atomic<int>*>(arg)->fetch_add(1);
  return 0;
}

int32_t fail(void*, char* error, size_t size) {
  std::snprintf(error, size, "planned");
  return 1;
}

// q1 = [gate, copy, e!]     q2 = [e?, copy]: plain memory passes from one worker to the other, ordered by the event alone
void pass_on(AccelDevice* device, AccelStream* shared_compute) {
  AccelStream *q1, *q2;
  AccelEvent* event;
  AccelGate* gate;
  require(rt->stream_create(device, &q1) == ACCEL_OK && rt->stream_create(device, &q2) == ACCEL_OK, "stream_create");
  require(rt->event_create(device, 1, &event) == ACCEL_OK, "event_create");
  std::vector<uint8_t> a(4096, 1), b(4096, 0), c(4096, 0);
  const AccelCopy first{b.data(), a.data(), a.size()}, second{c.data(), b.data(), b.size()};
  require(rt->stream_gate(q1, &gate) == ACCEL_OK, "stream_gate");
  rt->copy(q1, &first, 1);
  rt->event_record(event, q1);
  rt->stream_wait_event(q2, event);
  rt->copy(q2, &second, 1);
  std::thread opener([&] { rt->gate_open(gate); });
  require(rt->stream_synchronize(q2, kSoon) == ACCEL_OK, "q2");
  opener.join();
  require(std::memcmp(a.data(), c.data(), a.size()) == 0, "the copy is not what was written");
  require(rt->event_query(event) == ACCEL_OK && rt->stream_query(shared_compute) != ACCEL_INTERNAL, "queries");

  const AccelLaunch bad = launch_of(fail, nullptr);
  rt->launch(q1, &bad);
  require(rt->stream_synchronize(q1, kSoon) == ACCEL_ASYNC_FAILURE, "the failure was not reported");
  require(rt->stream_query(q1) == ACCEL_OK, "the failure was reported twice");
  rt->stream_reset(q1);

  std::atomic<int> count{0};
  const AccelLaunch good = launch_of(add_one, &count);
  for (int i = 0; i < 20; ++i) rt->launch(i % 2 ? q1 : q2, &good);
  rt->event_record(event, q1);
  rt->stream_destroy(q1);  // with work queued
  require(rt->event_synchronize(event, kSoon) == ACCEL_OK && rt->stream_synchronize(q2, kSoon) == ACCEL_OK, "the end");
  require(count == 20, "work was lost");
  rt->stream_destroy(q2);
  rt->gate_destroy(gate);
  rt->event_destroy(event);
}

// Closes a device whose streams wait for each other behind a gate that nobody opens.
void close_shut() {
  AccelDevice* device;
  require(rt->device_open(0, &device) == ACCEL_OK, "device_open");
  AccelStream *q1, *q2;
  AccelEvent* event;
  AccelGate* gate;
  rt->stream_create(device, &q1);
  rt->stream_create(device, &q2);
  rt->event_create(device, 0, &event);
  rt->stream_gate(q1, &gate);
  std::atomic<int> count{0};
  const AccelLaunch work = launch_of(add_one, &count);
  rt->launch(q1, &work);
  rt->event_record(event, q1);
  rt->stream_wait_event(q2, event);
  rt->launch(q2, &work);
  rt->device_close(device);
  require(count == 0 && rt->event_query(event) == ACCEL_OK, "closing ran what it should abandon");
  rt->gate_destroy(gate);
  rt->event_destroy(event);
}

}  // namespace

int main() {
  AccelDevice* device;
  require(rt->device_open(0, &device) == ACCEL_OK, "device_open");
  AccelStream* compute;
  rt->stream_compute(device, &compute);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 60; ++i) pass_on(device, compute);
    });
  }
  threads.emplace_back([] {
    for (int i = 0; i < 60; ++i) close_shut();
  });
  for (std::thread& thread : threads) thread.join();
  require(rt->device_synchronize(device, kSoon) == ACCEL_OK, "device_synchronize");
  rt->device_close(device);
  std::puts("runtime_stress: all results right");
}
