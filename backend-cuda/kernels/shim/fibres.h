// Runs the threads of a CUDA block as fibres of one OS thread. A thread that meets no barrier runs to
// its end without a switch: its fibre then takes the next thread that has not begun. Included once in
// a program, by the file that includes the kernels.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launch.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

struct Worker;

// A stack with what runs on it.
struct Fibre {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  Worker* worker = nullptr;
  // The thread that it begins when it is resumed without one.
  int begins = -1;
};

// An asynchronous copy into shared memory that nobody has waited for.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes, kept;
  int group;
};

struct Thread {
  Index index;
  int number = 0, lane = 0, warp = 0;
  Fibre* fibre = nullptr;
  bool begun = false;
  std::vector<Copy> copies;
  int group = 0;
};

// Lanes of a warp that exchange something: each leaves a pointer, the last one does the work.
struct Meeting {
  unsigned mask, arrived;
  int line;
  void* left[32];
};

struct Slot {
  void* bytes = nullptr;
  size_t size = 0;
};

constexpr size_t STACK = 256 << 10;
constexpr size_t GUARD = 4096;
constexpr int MOST_THREADS = 1024;

// A number for a declaration of shared memory.
inline int new_slot() {
  static std::atomic<int> made{0};
  return made++;
}

// Everything that one OS thread needs to run blocks. Kept from launch to launch: stacks are dear.
struct Worker {
  Thread threads[MOST_THREADS];
  std::vector<Meeting> meetings[MOST_THREADS / 32];
  Index grid, block, place;
  int count = 0, live = 0, begun = 0, running = -1;
  int order[MOST_THREADS];
  std::vector<int> ready;
  size_t ready_head = 0;
  std::vector<int> at_barrier;
  int barrier_line = 0;
  std::vector<Fibre*> idle;
  Fibre* starting = nullptr;
  Fibre home;
  std::vector<Slot> slots;
  std::vector<int> used_slots;
  void* dynamic = nullptr;
  size_t dynamic_bytes = 0;
  uint64_t random = 0;
  bool shuffled = false, failed = false;
  const ShimKernel* kernel = nullptr;
  void** parameters = nullptr;

  int draw(size_t below) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return (int)((random >> 20) % below);
  }
  size_t waiting_to_run() const { return ready.size() - ready_head; }
};

// The OS thread's worker and the CUDA thread that runs on it.
inline __thread Worker* worker_now = nullptr;
inline __thread Thread* thread_now = nullptr;

#if defined(__x86_64__)
extern "C" void plimsoll_shim_switch(void** save, void* load);
// Saves what a function must keep (System V: rbx, rbp, r12 to r15) on the one stack and takes it from
// the other.
asm(R"(
.text
.weak plimsoll_shim_switch
.type plimsoll_shim_switch,@function
plimsoll_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size plimsoll_shim_switch,.-plimsoll_shim_switch
)");
inline void go(Fibre& from, Fibre& to) { plimsoll_shim_switch(&from.stack_pointer, to.stack_pointer); }
#else
inline void go(Fibre& from, Fibre& to) { swapcontext(&from.context, &to.context); }
#endif

// The next thread to run, -1 when none can. In order: those that have not begun, then as they woke.
inline int pick(Worker& w) {
  size_t fresh = w.count - w.begun, awake = w.waiting_to_run();
  if (fresh + awake == 0) return -1;
  if (!w.shuffled) {
    if (fresh) return w.order[w.begun++];
    int next = w.ready[w.ready_head++];
    if (w.ready_head == w.ready.size()) w.ready.clear(), w.ready_head = 0;
    return next;
  }
  size_t at = w.draw(fresh + awake);
  if (at < fresh) return w.order[w.begun++];
  at = w.ready_head + (at - fresh);
  int next = w.ready[at];
  w.ready[at] = w.ready.back();
  w.ready.pop_back();
  return next;
}

inline void describe(Worker& w, const char* what) {
  w.failed = true;
  fprintf(stderr, "kernel %s, block (%u,%u,%u): %s\n", w.kernel->name, w.place.x, w.place.y, w.place.z,
          what);
}

inline void stuck(Worker& w) {
  char text[256];
  int exchanging = 0, line = 0;
  for (auto& warp : w.meetings)
    for (auto& meeting : warp) exchanging += __builtin_popcount(meeting.arrived), line = meeting.line;
  snprintf(text, sizeof text,
           "divergent barrier: %d of %d threads wait at the barrier of line %d, %d in a warp's exchange "
           "(line %d), %d have ended",
           (int)w.at_barrier.size(), w.count, w.barrier_line, exchanging, line, w.count - w.live);
  describe(w, text);
}

void leave(Worker& w, Fibre& self, int next);

// Runs threads from their beginning on this fibre, for ever. (A compiler that sees that tells the address
// checker, which then takes the stack for another one.)
inline void fibre_body(Fibre& self) {
  Worker& w = *self.worker;
  while (self.worker == &w) {
    Thread& thread = w.threads[self.begins];
    thread.fibre = &self;
    thread.begun = true;
    thread.copies.clear();
    thread.group = 0;
    w.running = self.begins;
    thread_now = &thread;
    w.kernel->call(w.parameters);
    w.live--;
    int next = pick(w);
    if (next >= 0 && !w.threads[next].begun) {
      self.begins = next;
      continue;
    }
    w.idle.push_back(&self);
    if (next < 0 && w.live > 0) stuck(w);
    leave(w, self, next);
  }
}

#if defined(__x86_64__)
inline void fibre_entry() { fibre_body(*worker_now->starting); }
#else
inline void fibre_entry(unsigned low, unsigned high) {
  fibre_body(*(Fibre*)(((uintptr_t)high << 32) | low));
}
#endif

// A fibre on a new stack, with a page below it that faults.
inline Fibre* new_fibre(Worker& w) {
  char* stack = (char*)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE)) {
    fprintf(stderr, "no memory for the stack of a fibre\n");
    abort();
  }
  auto* fibre = new Fibre;
  fibre->worker = &w;
#if defined(__x86_64__)
  void** top = (void**)(stack + GUARD + STACK);
  *--top = nullptr;  // Keeps the stack as a call leaves it: 8 off a multiple of 16.
  *--top = (void*)fibre_entry;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fibre->stack_pointer = top;
#else
  getcontext(&fibre->context);
  fibre->context.uc_stack.ss_sp = stack + GUARD;
  fibre->context.uc_stack.ss_size = STACK;
  fibre->context.uc_link = nullptr;
  auto address = (uintptr_t)fibre;
  makecontext(&fibre->context, (void (*)())fibre_entry, 2, (unsigned)address, (unsigned)(address >> 32));
#endif
  return fibre;
}

// Switches to `next`, to the worker's own stack when there is none. Comes back when it is resumed.
// `noinline`: an address of a thread-local variable must not live across a switch.
__attribute__((noinline)) inline void leave(Worker& w, Fibre& self, int next) {
  Fibre* to = &w.home;
  if (next >= 0) {
    Thread& thread = w.threads[next];
    if (thread.begun) {
      to = thread.fibre;
      w.running = next;
      thread_now = &thread;
    } else {
      if (w.idle.empty()) w.idle.push_back(new_fibre(w));
      to = w.idle.back();
      w.idle.pop_back();
      to->begins = next;
      w.starting = to;
    }
  }
  go(self, *to);
}

// The running thread cannot go on until somebody wakes it.
inline void wait(Worker& w) {
  Thread& me = w.threads[w.running];
  int next = pick(w);
  if (next == me.number) return;
  if (next < 0) stuck(w);
  leave(w, *me.fibre, next);
}

// Wakes `number`; where the order is shuffled it is drawn with the others.
inline void wake(Worker& w, int number) { w.ready.push_back(number); }

// Whoever wakes others goes on itself; shuffled, it may have to stand back.
inline void woke_others(Worker& w) {
  if (w.shuffled && w.draw(2)) {
    wake(w, w.running);
    wait(w);
  }
}

// Gives the block up: control goes home and this fibre is never resumed.
inline void give_up(Worker& w, const char* what) {
  describe(w, what);
  leave(w, *w.threads[w.running].fibre, -1);
}

// All threads of the block meet. They must come to the same line.
inline void barrier(int line) {
  Worker& w = *worker_now;
  if (w.at_barrier.empty()) w.barrier_line = line;
  if (line != w.barrier_line) {
    char text[128];
    snprintf(text, sizeof text, "divergent barrier: line %d, others wait in line %d", line, w.barrier_line);
    give_up(w, text);
  }
  if ((int)w.at_barrier.size() + 1 < w.count) {
    w.at_barrier.push_back(w.running);
    wait(w);
    return;
  }
  for (int number : w.at_barrier) wake(w, number);
  w.at_barrier.clear();
  woke_others(w);
}

// The lanes of `mask` meet at `line`, each with a pointer; the last one calls `work` with all of them.
template <class Work>
inline void meet(unsigned mask, int line, void* mine, Work&& work) {
  Worker& w = *worker_now;
  Thread& me = w.threads[w.running];
  int lanes = std::min(32, w.count - me.warp * 32);
  if (lanes < 32) mask &= (1u << lanes) - 1;
  if (!(mask >> me.lane & 1)) give_up(w, "a warp's exchange by a lane that its mask leaves out");
  auto& meetings = w.meetings[me.warp];
  size_t at = 0;
  while (at < meetings.size() && (meetings[at].mask != mask || meetings[at].line != line)) at++;
  if (at == meetings.size()) meetings.push_back({mask, 0, line, {}});
  Meeting& meeting = meetings[at];
  meeting.arrived |= 1u << me.lane;
  meeting.left[me.lane] = mine;
  if (meeting.arrived != mask) {
    wait(w);
    return;
  }
  Meeting complete = meeting;
  meetings.erase(meetings.begin() + at);
  work(complete.left, mask);
  for (int lane = 0; lane < 32; lane++)
    if ((mask >> lane & 1) && lane != me.lane) wake(w, me.warp * 32 + lane);
  if (mask & (mask - 1)) woke_others(w);
}

// Shared memory of one declaration: on the heap and just as large, so that a checker sees its ends.
inline void* shared_slot(int slot, size_t bytes) {
  Worker& w = *worker_now;
  if ((int)w.slots.size() <= slot) w.slots.resize(slot + 1);
  Slot& own = w.slots[slot];
  if (!own.bytes) {
    if (posix_memalign(&own.bytes, 128, bytes)) abort();
    own.size = bytes;
    memset(own.bytes, 0xff, bytes);
    w.used_slots.push_back(slot);
  }
  return own.bytes;
}

inline void run_block(Worker& w) {
  w.live = w.count, w.begun = 0;
  w.ready.clear(), w.ready_head = 0, w.at_barrier.clear();
  for (auto& warp : w.meetings) warp.clear();
  // What a block before left in shared memory is no number.
  for (int slot : w.used_slots) memset(w.slots[slot].bytes, 0xff, w.slots[slot].size);
  if (w.dynamic_bytes) memset(w.dynamic, 0xff, w.dynamic_bytes);
  for (int i = 0; i < w.count; i++) w.order[i] = i, w.threads[i].begun = false;
  if (w.shuffled)
    for (int i = w.count - 1; i > 0; i--) std::swap(w.order[i], w.order[w.draw(i + 1)]);
  leave(w, w.home, pick(w));
}

struct Pool {
  std::mutex lock;
  std::vector<Worker*> free;
};

inline Pool& pool() {
  static Pool* kept = new Pool;
  return *kept;
}

inline Worker* take_worker() {
  std::lock_guard<std::mutex> hold(pool().lock);
  if (pool().free.empty()) return new Worker;
  Worker* worker = pool().free.back();
  pool().free.pop_back();
  return worker;
}

struct Launch {
  const ShimKernel* kernel;
  Index grid, block;
  size_t shared;
  void** parameters;
  unsigned seed;
  uint64_t blocks;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
};

inline void prepare(Worker& w, const Launch& launch) {
  w.kernel = launch.kernel, w.parameters = launch.parameters;
  w.grid = launch.grid, w.block = launch.block;
  w.count = launch.block.x * launch.block.y * launch.block.z;
  w.shuffled = launch.seed != 0;
  for (int i = 0; i < w.count; i++) {
    Thread& thread = w.threads[i];
    thread.number = i, thread.lane = i & 31, thread.warp = i >> 5;
    thread.index = {i % w.block.x, i / w.block.x % w.block.y, i / (w.block.x * w.block.y)};
  }
  w.dynamic_bytes = launch.shared;
  w.dynamic = nullptr;
  if (launch.shared && posix_memalign(&w.dynamic, 128, launch.shared)) abort();
  // Another kernel's declarations are none of this one's.
  for (int slot : w.used_slots) free(w.slots[slot].bytes), w.slots[slot].bytes = nullptr;
  w.used_slots.clear();
}

inline void run_blocks(Launch& launch) {
  Worker* w = take_worker();
  worker_now = w;
  prepare(*w, launch);
  for (uint64_t i; !launch.failed && (i = launch.next++) < launch.blocks;) {
    w->place = {(unsigned)(i % launch.grid.x), (unsigned)(i / launch.grid.x % launch.grid.y),
                (unsigned)(i / launch.grid.x / launch.grid.y)};
    w->random = (launch.seed * 0x9E3779B97F4A7C15ull) ^ (i * 0xD1B54A32D192ED03ull) ^ 0x5DEECE66Dull;
    run_block(*w);
    if (w->failed) launch.failed = true;
  }
  free(w->dynamic);
  worker_now = nullptr, thread_now = nullptr;
  // The fibres of a block that did not end hold what nobody will finish: they are left alone.
  if (w->failed) return;
  std::lock_guard<std::mutex> hold(pool().lock);
  pool().free.push_back(w);
}

inline std::map<std::string, ShimKernel>& registry() {
  static auto* kept = new std::map<std::string, ShimKernel>;
  return *kept;
}

template <auto F>
struct Caller;

template <class... Parameters, void (*F)(Parameters...)>
struct Caller<F> {
  template <size_t... I>
  static void spread(void** at, std::index_sequence<I...>) {
    F(*(Parameters*)at[I]...);
  }
  static void call(void** at) { spread(at, std::index_sequence_for<Parameters...>{}); }
  static ShimKernel kernel(const char* name) { return {name, {sizeof(Parameters)...}, &call}; }
};

struct Registration {
  explicit Registration(const ShimKernel& kernel) { registry()[kernel.name] = kernel; }
};

}  // namespace shim

const ShimKernel* shim_find(const char* name) {
  auto found = shim::registry().find(name);
  return found == shim::registry().end() ? nullptr : &found->second;
}

std::vector<const ShimKernel*> shim_all() {
  std::vector<const ShimKernel*> all;
  for (auto& entry : shim::registry()) all.push_back(&entry.second);
  return all;
}

int shim_launch(const ShimKernel* kernel, const unsigned grid[3], const unsigned block[3],
                       size_t shared_bytes, void** parameters, int threads, unsigned seed) {
  uint64_t count = (uint64_t)block[0] * block[1] * block[2];
  shim::Launch launch{kernel, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
                      shared_bytes, parameters, seed, (uint64_t)grid[0] * grid[1] * grid[2]};
  bool sizes = count >= 1 && count <= shim::MOST_THREADS && launch.blocks >= 1 && grid[0] <= 0x7fffffffu &&
               grid[1] <= 65535 && grid[2] <= 65535 && shared_bytes <= 101376;
  if (!sizes) {
    fprintf(stderr, "kernel %s: grid (%u,%u,%u), block (%u,%u,%u), %zu bytes shared: no device takes that\n",
            kernel->name, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes);
    return 1;
  }
  // A thread of the system costs more than a few blocks.
  uint64_t most = std::min<uint64_t>(threads, launch.blocks / 4);
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < most; i++) others.emplace_back([&launch] { shim::run_blocks(launch); });
  shim::run_blocks(launch);
  for (auto& other : others) other.join();
  return launch.failed ? 2 : 0;
}
