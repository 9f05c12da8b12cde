/* inquiry.h - a page of memory in which other processes of this host ask what a rank does: `tutti doctor PID`
 *
 * The page is a memory file that the rank keeps open: /proc/PID/fd/N leads there, for the same user alone. The rank's
 * number and job stand there always, also while the process is stopped. The rank writes what it waits for when
 * somebody asks. */
#ifndef TT_INQUIRY_H
#define TT_INQUIRY_H
#include "engine/engine.h"

#define TT_INQUIRY_FILE "tutti-inquiry"
enum { TT_INQUIRY_SIZE = 4096, TT_INQUIRY_MAGIC = 0x54490003, /* the last digits: the layout */
       TT_INQUIRY_AWAITED = 16 };

struct tt_inquiry { /* on one host, hence in the order of its processor */
	uint32_t magic;
	int32_t rank, size;
	uint32_t serial;            /* of the job in that process */
	uint64_t job;               /* the job's id */
	_Atomic uint32_t asked;     /* an asker adds one */
	_Atomic uint32_t answered;  /* `asked` at the time of the text; written last */
	_Atomic uint32_t turn;      /* odd while the text is being written */
	uint32_t waited_ms;         /* the longest of its calls under way; 0: there is none */
	uint32_t evicted;           /* 1: the others have evicted it, and the text says why */
	uint32_t awaits;            /* how many of ... */
	int32_t awaited[TT_INQUIRY_AWAITED]; /* ... these ranks its calls wait for, the first ones */
	char name[68];              /* the job's; "": none */
	char label[112];            /* "rank 2 (node-b, 10.0.0.7)" */
	char text[TT_INQUIRY_SIZE - 304]; /* parts of a sentence, behind the label, one a line */
};
_Static_assert(sizeof(struct tt_inquiry) <= TT_INQUIRY_SIZE, "an inquiry is one page");

int tt_inquiry_open(struct tt_job *); /* 0 also without a page: there was no file */
void tt_inquiry_close(struct tt_job *);
void tt_inquiry_beat(struct tt_job *); /* answers, if somebody has asked */
#endif
