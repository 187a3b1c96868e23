/*
 * Makes the directories and files that a plan lists, and syncs their file system:
 *
 *     plainqueues PLAN ROOT
 *
 * It does with the fewest system calls what a dispatcher must do for new queues, so that its time is
 * that of the kernel and of the disk. A plan has an entry after the other: "D PATH\n", or
 * "F PATH SIZE LENGTH\n" and LENGTH bytes, which stand at the beginning of a file of SIZE bytes.
 * Paths have no blanks and are relative to ROOT. The plan is in memory before the clock starts. The
 * answer is a line of JSON: seconds, cpu_seconds, files.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "cannot %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* Returns the plan, which a zero ends. */
static char *read_plan(const char *path, size_t *size)
{
    struct stat found;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &found) != 0)
        fail("open", path);
    *size = (size_t)found.st_size;
    char *plan = malloc(*size + 1);
    if (plan == NULL || fread(plan, 1, *size, file) != *size)
        fail("read", path);
    plan[*size] = 0;
    fclose(file);
    return plan;
}

static void make_file(const char *path, off_t size, const char *data, size_t length)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        fail("create", path);
    if (ftruncate(fd, size) != 0)
        fail("size", path);
    for (size_t done = 0; done < length;) {
        ssize_t written = pwrite(fd, data + done, length - done, (off_t)done);
        if (written < 0)
            fail("write", path);
        done += (size_t)written;
    }
    close(fd);
}

/* Returns the number of files. */
static long carry_out(char *plan, size_t plan_size)
{
    long files = 0;
    for (char *at = plan; at < plan + plan_size;) {
        char *end = strchr(at, '\n');
        if (end == NULL)
            fail("read", "the plan");
        *end = 0;
        char *path = strtok(at + 2, " ");
        if (*at == 'D') {
            if (mkdir(path, 0777) != 0)
                fail("create", path);
            at = end + 1;
        } else {
            off_t size = atoll(strtok(NULL, " "));
            size_t length = (size_t)atoll(strtok(NULL, " "));
            make_file(path, size, end + 1, length);
            at = end + 1 + length;
            files++;
        }
    }
    return files;
}

static void sync_all(void)
{
    int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || syncfs(fd) != 0)
        fail("sync", ".");
    close(fd);
}

static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
        + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: plainqueues PLAN ROOT\n");
        return 2;
    }
    size_t size;
    char *plan = read_plan(arguments[1], &size);
    if (chdir(arguments[2]) != 0)
        fail("enter", arguments[2]);
    double began = clock_seconds(), used = cpu_seconds();
    long files = carry_out(plan, size);
    sync_all();
    printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"files\": %ld}\n",
           clock_seconds() - began, cpu_seconds() - used, files);
    return 0;
}
