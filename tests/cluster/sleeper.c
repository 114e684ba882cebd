/* The only program of the test image: sleeps until it is told to end, or ends at once when given an argument. */
#include <signal.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return 0;
    /* As pid 1 of a container it gets only signals that it handles. */
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    for (;;)
        pause();
}
