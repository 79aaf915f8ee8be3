// Runs a program's main within this process: its exit and its crashes end the program, not the process.
#include "call.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sigjmp_buf start;
static pthread_t runner;
static volatile bool running, finish_follows;
static const int crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { CRASHES = sizeof crashes / sizeof crashes[0] };

static void on_crash(int signal) {
    // Not out of Python: the jump would leave its lock taken.
    if (running && !portable_hip_answering && pthread_equal(runner, pthread_self())) siglongjmp(start, 1 + 256 + signal);
    ::signal(signal, SIG_DFL);
    raise(signal);
}

static void end(int status, bool finishes) {
    finish_follows = finishes;
    if (running && pthread_equal(runner, pthread_self())) siglongjmp(start, 1 + (status & 255));
    if (running) fputs("portable: another thread than main's ended the program: no findings are listed\n", stderr);
    fflush(NULL);
    _exit(status);
}

// The linker leads the program's own calls of these functions here. The stack is left as it is, as they do.
extern "C" EXPORT void __wrap_exit(int status) { end(status, true); }
extern "C" EXPORT void __wrap_quick_exit(int status) { end(status, false); }
extern "C" EXPORT void __wrap__exit(int status) { end(status, false); }
extern "C" EXPORT void __wrap__Exit(int status) { end(status, false); }

// Runs `program`, then `finish`, its destructors and functions of atexit. Returns the exit status; 256 and the signal's
// number after a crash.
extern "C" EXPORT int portable_hip_run(int (*program)(int, char **, char **), void (*finish)(), int count,
                                       char **arguments, char **environment) {
    struct sigaction action, former[CRASHES];
    memset(&action, 0, sizeof action);
    action.sa_handler = on_crash;
    action.sa_flags = SA_NODEFER;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &action, &former[i]);
    runner = pthread_self();
    running = true;
    volatile int status = sigsetjmp(start, 1);
    if (status == 0) {
        finish_follows = true;
        status = 1 + (program(count, arguments, environment) & 255);
    }
    if (status <= 256 && finish_follows) {
        const int ended = sigsetjmp(start, 1);
        if (ended)
            status = ended;
        else
            finish();
    }
    running = false;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &former[i], NULL);
    fflush(NULL);
    return status - 1;
}
