/* older.c - for doctor.sh: knocks at ADDRESS PORT as a rank of an older Tutti would, until it is turned away */
#include "transport/frame.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct tt_hello old = { .version = TT_FRAME_VERSION - 1, .flags = TT_HELLO_SECRET, .epoch = 1 };
	struct sockaddr_in to = { .sin_family = AF_INET };
	uint8_t bytes[TT_HELLO_SIZE], answer[TT_HELLO_SIZE];
	int fd = -1;

	if (argc < 3 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	tt_hello_pack(&old, bytes);
	for (int i = 0; i < 200; i++) { /* rank 0 may not listen yet */
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (!connect(fd, (struct sockaddr *)&to, sizeof to))
			break;
		close(fd);
		usleep(50000);
	}
	if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
		return 1;
	while (recv(fd, answer, sizeof answer, 0) > 0)
		;
	return 0;
}
