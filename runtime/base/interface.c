/* interface.c - what the whole public interface shares: its number, the names of its types and errors,
 * and the words that its structs keep for later */
#include "base/base.h"

int tutti_abi(void) { return TUTTI_ABI; }

const char *tt_type_name(tutti_type type)
{
	static const char *const names[] = { [TUTTI_F32] = "f32", [TUTTI_F64] = "f64", [TUTTI_F16] = "f16",
		                             [TUTTI_BF16] = "bf16", [TUTTI_I32] = "i32", [TUTTI_I64] = "i64",
		                             [TUTTI_I8] = "i8", [TUTTI_U8] = "u8", [TUTTI_BOOL] = "bool" };

	return (size_t)type < TT_COUNT(names) ? names[type] : NULL;
}

static const struct {
	int err;
	const char *name;
} errors[] = {
#define ERROR(name) { name, #name }
	ERROR(EACCES), ERROR(EADDRINUSE), ERROR(EADDRNOTAVAIL), ERROR(EAGAIN), ERROR(EALREADY), ERROR(EBADF),
	ERROR(EBADMSG), ERROR(EBUSY), ERROR(ECANCELED), ERROR(ECHILD), ERROR(ECONNABORTED), ERROR(ECONNREFUSED),
	ERROR(ECONNRESET), ERROR(EDEADLK), ERROR(EDQUOT), ERROR(EEXIST), ERROR(EFAULT), ERROR(EFBIG),
	ERROR(EHOSTDOWN), ERROR(EHOSTUNREACH), ERROR(EINPROGRESS), ERROR(EINTR), ERROR(EINVAL), ERROR(EIO),
	ERROR(EISDIR), ERROR(ELOOP), ERROR(EMFILE), ERROR(EMSGSIZE), ERROR(ENAMETOOLONG), ERROR(ENETDOWN),
	ERROR(ENETUNREACH), ERROR(ENFILE), ERROR(ENOBUFS), ERROR(ENODATA), ERROR(ENODEV), ERROR(ENOENT), ERROR(ENOMEM),
	ERROR(ENOSPC), ERROR(ENOSYS), ERROR(ENOTCONN), ERROR(ENOTDIR), ERROR(ENOTEMPTY), ERROR(ENOTSUP), ERROR(ENXIO),
	ERROR(EOVERFLOW), ERROR(EPERM), ERROR(EPIPE), ERROR(EPROTO), ERROR(ERANGE), ERROR(EROFS), ERROR(ESHUTDOWN),
	ERROR(ESRCH), ERROR(ESTALE), ERROR(ETIMEDOUT), ERROR(EXDEV),
#undef ERROR
};

const char *tutti_error_name(int err)
{
	for (size_t i = 0; i < TT_COUNT(errors); i++)
		if (errors[i].err == err || -errors[i].err == err)
			return errors[i].name;
	return NULL;
}

int tt_reserved(const char *type, const uint64_t *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (words[i])
			return tt_fail(-EINVAL, "%s.reserved[%zu] is %#llx and must be 0: the program has not zeroed "
			               "the struct, or was built for a newer libtutti than this one", type, i,
			               (unsigned long long)words[i]);
	return 0;
}
