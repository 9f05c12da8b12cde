/* fork.h - descriptors that a child of fork() must not hold: sockets, and what else keeps a connection alive
 *
 *     parent  socket -+- hold -- ... -- close        fork() in the middle of one of these calls waits for its end
 *                     |
 *     child           +- closed in the handler of pthread_atfork(), before fork() returns there
 *
 * A socket ends when the last process closes it. With a copy in a child, the others would not hear of a rank's end, and
 * the rank's port would stay taken. Processes that vfork() or posix_spawn() starts run no handler: they execute a
 * program, and all these descriptors are closed on exec. */
#ifndef TT_FORK_H
#define TT_FORK_H
#include <sys/socket.h>

int tt_fork_socket(int family, int type); /* as socket(), for TCP or a local socket, closed on exec; held */
int tt_fork_accept(int fd, struct sockaddr *, socklen_t *size); /* as accept4(): non-blocking, closed on exec; held */
void tt_fork_hold(int fd);    /* holds a descriptor that something else has opened */
void tt_fork_release(int fd); /* from now on children inherit it: whoever closes it may not know of all this */
void tt_fork_close(int fd);   /* releases and closes it */
#endif
