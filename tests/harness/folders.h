/* folders.h - for tests that write files: a folder without those that it had */
#ifndef TT_TEST_FOLDERS_H
#define TT_TEST_FOLDERS_H
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

static inline void clear_folder(const char *path)
{
	DIR *dir = opendir(path);

	for (struct dirent *e; dir && (e = readdir(dir));)
		if (*e->d_name != '.')
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
}
#endif
