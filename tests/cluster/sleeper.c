/* The program of the test image: sleeps until SIGTERM or SIGINT, or exits immediately if it has an argument. */
#include <signal.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return 0;
    /* PID 1 of a container receives only signals that it handles. */
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    for (;;)
        pause();
}
