/* stuck.c - for run.sh: `stuck FILE` holds up whoever executes FILE, as a file system that hangs does, until it ends.
 * It says "stuck" once it does */
#include <fcntl.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);

	if (fd < 0 || fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, AT_FDCWD, argc > 1 ? argv[1] : "")) {
		perror("stuck");
		return 77;
	}
	puts("stuck");
	fflush(stdout);
	sleep(60);
	return 0;
}
