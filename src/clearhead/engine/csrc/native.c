// The door from Python: which kernel this machine can run, and a call on all its threads.
#include <pthread.h>
#include <time.h>
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernel.h"

extern const Kernel amx_f32, avx512bf16_f32, avx512_f32, avx512_f64, avx2_f32, avx2_f64, baseline_f32, baseline_f64;

double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static const char *const NAMES[] = {"baseline", "avx2", "avx512", "avx512bf16", "amx"};

#if defined(__x86_64__)
// Whether the machine multiplies tiles of bfloat16, and the system lets this process keep them.
static int has_tiles(void) {
#if defined(__linux__) && defined(KNOWS_TILES)
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return 0;
  return !syscall(SYS_arch_prctl, 0x1023, 18);  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
#else
  return 0;
#endif
}
#endif

// The number of the best instruction set that this machine has; it has all those below.
int clearhead_best(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return !__builtin_cpu_supports("avx512bf16") ? 2 : has_tiles() ? 4 : 3;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

// Which sources this was built from, for library.py to read; setup.py says it.
#if defined(SOURCES)
const char clearhead_sources[] = "clearhead csrc " SOURCES;
#endif

const char *clearhead_name(int set) { return NAMES[set]; }

static const Kernel *kernel_of(int set, int wide) {
#if defined(__x86_64__)
#if defined(KNOWS_TILES)
  if (set == 4 && !wide) return &amx_f32;
#endif
  if (set == 3 && !wide) return &avx512bf16_f32;
  if (set >= 2) return wide ? &avx512_f64 : &avx512_f32;
  if (set == 1) return wide ? &avx2_f64 : &avx2_f32;
#else
  (void)set;
#endif
  return wide ? &baseline_f64 : &baseline_f32;
}

void clearhead_exp(int set, int wide, const void *x, void *y, int64_t n) {
  kernel_of(set, wide)->exp(x, y, n);
}

// Cuts a call into units; the bytes of room that each of so many threads needs for it.
int64_t clearhead_plan(Call *c, int set, int wide, int threads) {
#if defined(__x86_64__)
  static int asked;  // for leave to use tiles, without which they are illegal instructions
  if (set == 4 && !__atomic_exchange_n(&asked, 1, __ATOMIC_RELAXED)) has_tiles();
#endif
  kernel_of(set, wide)->plan(c, threads);
  return c->room_size;
}

// Has so many threads do the same, each once. `parallel` is GOMP_parallel of the OpenMP that torch
// runs on, whose threads then do it; without it there are threads for this call alone.
typedef void Parallel(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
  void (*one)(void *);
  void *what;
} Job;

static void *thread_of(void *job) {
  ((Job *)job)->one(((Job *)job)->what);
  return NULL;
}

static void on_threads(void (*one)(void *), void *what, int threads, Parallel *parallel) {
  Job job = {one, what};
  if (threads < 2) one(what);
  else if (parallel) parallel(one, what, threads, 0);
  else {
    pthread_t others[threads - 1];
    int started = 0;
    while (started < threads - 1 && !pthread_create(&others[started], NULL, thread_of, &job))
      started++;
    one(what);
    while (started--) pthread_join(others[started], NULL);
  }
}

typedef struct {
  const Kernel *kernel;
  Call *call;
} Team;

static void one_of(void *team) { ((Team *)team)->kernel->work(((Team *)team)->call); }

// Works on a call, planned for as many threads, for so many seconds: whether it is to be called
// again.
int clearhead_attend(Call *c, int set, int wide, int threads, double seconds, Parallel *parallel) {
  Team team = {kernel_of(set, wide), c};
  int64_t left = c->units - c->next;
  if (threads > left) threads = (int)left;
  c->entered = 0;
  c->until = now() + seconds;
  on_threads(one_of, &team, threads, parallel);
  return c->next < c->units;
}

typedef struct {
  const Kernel *kernel;
  int64_t steps, done;
} Sums;

static void some_sums(void *x) {
  Sums *sums = x;
  int64_t done = sums->kernel->multiply_adds(sums->steps);
  __atomic_fetch_add(&sums->done, done, __ATOMIC_RELAXED);
}

// Has each thread do so many steps of multiply-adds; the operations of all of them.
int64_t clearhead_multiply_adds(int set, int wide, int64_t steps, int threads, Parallel *parallel) {
  Sums sums = {kernel_of(set, wide), steps, 0};
  on_threads(some_sums, &sums, threads, parallel);
  return sums.done;
}
