/*
 * A static program without libc that a sandbox's processes start from, executed from a sealed memory file.
 *
 *   init                   be PID 1: report "up" on standard output, then reap children until standard input ends
 *   launch PATH ARGV...    become the program at PATH with ARGV and the inherited environment
 *   tied PID PATH ARGV...  the same, outside of the sandbox, and end with the parent PID
 *   steps FD BYTES         make the system calls that the file FD lists (steps.py), the last of which is execve
 *
 * `launch` stands between the supervisor's Python and the sandbox's program. A program of the sandbox that is a script
 * whose interpreter is /proc/self/exe then gets this sealed copy, and never a file of the host (CVE-2019-5736).
 */
#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, SIGACTION = 13, EXECVE = 59, EXIT = 231, PRCTL = 157, CHDIR = 80, GETPPID = 110,
       MMAP = 9, CLONE = 56 };
static long call6(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call run\n");
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, CLOSE = 57, SIGACTION = 134, EXECVE = 221, EXIT = 94, PRCTL = 167, CHDIR = 49, GETPPID = 173,
       MMAP = 222, CLONE = 220 };
static long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
__asm__(".globl _start\n_start: mov x0, sp\n bl run\n");
#else
#error "no system call numbers for this machine"
#endif

static long call(long number, long a, long b, long c, long d) {
    return call6(number, a, b, c, d, 0, 0);
}

enum { SIGKILL = 9, SIGCHLD = 17, SIG_IGN = 1, SIGNAL_SET_BYTES = 8, EINTR = 4, E2BIG = 7, REFUSED = 126 };
enum { PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4, PR_SET_NAME = 15 };

static void be_init(void) {
    /* Ignored: the kernel then collects the children of this process by itself. */
    long ignore[4] = {SIG_IGN, 0, 0, 0};
    char byte;
    long got;
    call(PRCTL, PR_SET_DUMPABLE, 0, 0, 0);
    call(PRCTL, PR_SET_NAME, (long)"init", 0, 0);
    call(SIGACTION, SIGCHLD, (long)ignore, 0, SIGNAL_SET_BYTES);
    call(WRITE, 1, (long)"up", 2, 0);
    call(CLOSE, 1, 0, 0, 0);
    call(CLOSE, 2, 0, 0, 0);
    do got = call(READ, 0, (long)&byte, 1, 0);
    while (got > 0 || got == -EINTR);
    call(EXIT, 0, 0, 0, 0);
}

static void fail(char *path, long number) {
    char digits[24], *start = digits + sizeof digits;
    long length = 0;
    *--start = '\n';
    do *--start = (char)('0' + number % 10);
    while (number /= 10);
    while (path[length]) length++;
    call(WRITE, 2, (long)path, length, 0);
    call(WRITE, 2, (long)": cannot execute: error ", 24, 0);
    call(WRITE, 2, (long)start, digits + sizeof digits - start, 0);
    call(EXIT, REFUSED, 0, 0, 0);
}

static long number_of(const char *digits) {
    long number = 0;
    while (*digits) number = number * 10 + *digits++ - '0';
    return number;
}

static void tie_to(const char *digits) {
    long parent = number_of(digits);
    call(PRCTL, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
    if (call(GETPPID, 0, 0, 0, 0) != parent) call(EXIT, REFUSED, 0, 0, 0); /* it was killed before */
    call(CHDIR, (long)"/", 0, 0, 0);
}

/* The file is mapped there, so that it can hold pointers into itself. These numbers are steps.py's, too. */
enum { STEPS_AT = 0x10000000, PROT_READ_WRITE = 3, MAP_PRIVATE_FIXED = 0x12, FORK = -1, ANY = -1, KEPT = -(1L << 62) };

struct step {
    long number;    /* of the system call; FORK: go on as a child, whose id the parent writes to a[0] before it ends */
    long tolerated; /* the error after which it goes on; ANY: any */
    long least;     /* a smaller result has failed */
    long failed;    /* how many further steps are left out after a tolerated error */
    long done;      /* and after success */
    long keeps;     /* whether a later KEPT is this result */
    const char *what;
    long a[6];
};

struct steps {
    long report; /* where to write an error and what failed */
    struct step *first;
};

static void do_steps(long file, long bytes) {
    struct steps *all = (struct steps *)STEPS_AT;
    long kept = 0, result, a[6];
    call(PRCTL, PR_SET_DUMPABLE, 0, 0, 0);
    result = call6(MMAP, STEPS_AT, bytes, PROT_READ_WRITE, MAP_PRIVATE_FIXED, file, 0);
    if (result < 0) call(EXIT, REFUSED, 0, 0, 0);
    call(CLOSE, file, 0, 0, 0);
    for (struct step *step = all->first;; step++) {
        for (int n = 0; n < 6; n++) a[n] = step->a[n] == KEPT ? kept : step->a[n];
        if (step->number == FORK) {
            result = call(CLONE, SIGCHLD, 0, 0, 0);
            if (result > 0) {
                call(WRITE, a[0], (long)&result, sizeof result, 0);
                call(EXIT, 0, 0, 0, 0);
            }
        } else {
            result = call6(step->number, a[0], a[1], a[2], a[3], a[4], a[5]);
        }
        if (result >= step->least) {
            if (step->keeps) kept = result;
            step += step->done;
        } else if (result < 0 && (step->tolerated == ANY || step->tolerated == -result)) {
            step += step->failed;
        } else {
            if (step->number == EXECVE && result != -E2BIG) fail((char *)a[0], -result);
            long length = 0, error = result < 0 ? -result : 0;
            while (step->what[length]) length++;
            call(WRITE, all->report, (long)&error, sizeof error, 0);
            call(WRITE, all->report, (long)step->what, length, 0);
            call(EXIT, REFUSED, 0, 0, 0);
        }
    }
}

__attribute__((used, noreturn)) void run(long *stack) {
    long count = stack[0];
    char **arguments = (char **)(stack + 1);
    if (count < 3) be_init();
    if (arguments[0][0] == 's') do_steps(number_of(arguments[1]), number_of(arguments[2]));
    if (arguments[0][0] == 't') {
        tie_to(*++arguments);
        count--;
    }
    fail(arguments[1], -call(EXECVE, (long)arguments[1], (long)(arguments + 2), (long)(arguments + count + 1), 0));
    __builtin_unreachable();
}
