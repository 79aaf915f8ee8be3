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
static volatile bool running;
static const int crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { CRASHES = sizeof crashes / sizeof crashes[0] };

static void on_crash(int signal) {
    // Not out of Python: the jump would leave its lock taken.
    if (running && !portable_hip_answering && pthread_equal(runner, pthread_self())) siglongjmp(start, 1 + 256 + signal);
    ::signal(signal, SIG_DFL);
    raise(signal);
}

// The linker leads the program's own calls of exit, _exit and quick_exit here. The stack is left as it is, as exit does.
extern "C" EXPORT void __wrap_exit(int status) {
    if (running && pthread_equal(runner, pthread_self())) siglongjmp(start, 1 + (status & 255));
    if (running) fputs("portable: exit was called by another thread than main's: the findings are not listed\n", stderr);
    fflush(NULL);
    _exit(status);
}

// Returns the exit status; 256 and the signal's number after a crash.
extern "C" EXPORT int portable_hip_run(int (*program)(int, char **, char **), int count, char **arguments,
                                       char **environment) {
    struct sigaction action, former[CRASHES];
    memset(&action, 0, sizeof action);
    action.sa_handler = on_crash;
    action.sa_flags = SA_NODEFER;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &action, &former[i]);
    runner = pthread_self();
    int status = sigsetjmp(start, 1);
    if (status == 0) {
        running = true;
        status = 1 + (program(count, arguments, environment) & 255);
    }
    running = false;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &former[i], NULL);
    fflush(NULL);
    return status - 1;
}
