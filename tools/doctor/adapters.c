/* adapters.c - whether the ranks of a job have taken adapters that reach each other: those of one kind and speed */
#include "tools/doctor/doctor.h"

/* "(InfiniBand, 200 Gbit/s)" */
static const char *kind_of(const char *adapter) { return adapter + strcspn(adapter, "("); }

/* That of most ranks; of as many the lowest rank's. */
static const char *usual_adapter(const struct tt_doctor_rank *ranks, int n)
{
	const char *usual = ranks->adapter;
	int most = 0;

	for (int i = 0; i < n; i++) {
		int same = 0;
		for (int k = 0; k < n; k++)
			same += !strcmp(kind_of(ranks[k].adapter), kind_of(ranks[i].adapter));
		if (same > most) {
			most = same;
			usual = ranks[i].adapter;
		}
	}
	return usual;
}

/* As many as a line holds. */
static void list_ports(struct tt_doctor *d, const struct tt_doctor_rank *ranks, int n)
{
	char all[500] = "";
	size_t used = 0;
	int i = 0;

	for (; i < n && used < sizeof all - 120; i++)
		used += (size_t)snprintf(all + used, sizeof all - used, "%srank %d %.95s", i ? ", " : "", i,
		                         *ranks[i].adapter ? ranks[i].adapter : "none");
	tt_doctor_say(d, TT_FINE, "adapter", "%s%s", all, i < n ? " ..." : "");
}

void tt_doctor_adapters(struct tt_doctor *d, const struct tt_doctor_rank *ranks, int n)
{
	const char *usual = usual_adapter(ranks, n);
	bool some = false;

	for (int i = 0; i < n; i++) {
		some |= *ranks[i].adapter;
		if (strcmp(kind_of(ranks[i].adapter), kind_of(usual)) != 0)
			tt_doctor_say(d, TT_FINDING, "adapter",
			              "%s has taken %s, and most ranks %s; pairs of both go over TCP, or at the lower "
			              "speed: see on its host in `tutti info` why, and name adapters of one kind in "
			              "TUTTI_VERBS_DEVICES on all hosts", ranks[i].label,
			              *ranks[i].adapter ? ranks[i].adapter : "no RDMA adapter",
			              *usual ? usual : "none");
	}
	if (some)
		list_ports(d, ranks, n);
}
