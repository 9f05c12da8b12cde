/* pairs.c - joins a job, examines each rank's host, and tries the pairs of ranks, as a tournament has it
 *
 *      join | bare connections | reports to rank 0 | clocks | round 1 | round 2 | ... | slow pairs again | findings
 *
 * In a round each rank has one partner: n ranks meet in n - 1 rounds. (The circle method: the last rank stays, the
 * others turn.)
 * Of two the lower one measures: gets of 8 bytes, then puts and gets of a growing size, until one takes long enough.
 * Links are held against most others; a host of which all links are slow is named itself. */
#include "member/member.h"
#include "tools/doctor/doctor.h"
#include <stdlib.h>
#include <unistd.h>

enum {
	LINES = 6,
	SILENCE_MS = 5000,
	TIMEOUT_MS = 20000,
	LATENCY_TRIES = 40,
	LEAST = 64 << 10,
	MOST = 4 << 20,
	LONG_MS = 20,
	LATENCY_MS = 200, TRIES = 3,
	ROUNDS_MS = 10000,
	DOORS_MS = 4000,
	BAR_MS = 2000,
	SLOW = 5, SLOW_PAIR = 8, /* times slower than most: all links of a rank; one */
	PAIRS_SAID = 8,
	AGAIN = 24,      /* slow pairs that are measured again */
	CLOCK_MS = 2000, /* apart, beside what asking took */
	REASONS = 8,
	CLOSED = 32,
	TRANSPORTS = 3,
};
static const char *const transports[TRANSPORTS] = { "shm", "verbs", "tcp" };

struct report { /* of a rank, to rank 0 */
	char host[64], version[32], address[96];
	char adapter[96]; /* "mlx5_0:1 (InfiniBand, 200 Gbit/s)"; empty: the rank has none */
	uint32_t mtu;
	int32_t n;
	struct {
		char check[16], text[600];
	} lines[LINES];
};

struct reason {       /* why a pair is on no better transport */
	int32_t peer; /* -1: none */
	char text[300];
};

struct closed { /* whom a rank could not connect to */
	int32_t n, peer[CLOSED], err[CLOSED];
};

struct link {                       /* of a pair, kept by the lower rank; zeroed: not measured */
	double latency_us, out, in; /* out: bytes a second to the higher rank */
	char transport[16];
	bool near;                  /* both ranks are on one host: they differ by what else it does */
};

struct job {
	struct tt_doctor *doctor;
	tutti *all;
	tutti_window *window;
	char *here, *open; /* memory to measure with: source and target; what others write into */
	int rank, size;
	char host[96];              /* its name, as the others know it */
	struct report *reports; /* on rank 0 */
	struct link *links;     /* size x size on all ranks: [a * size + b], a < b; at first only this rank's */
	struct reason reason;
	struct closed closed;
	double usual[TRANSPORTS]; /* bytes a second, by transport */
	int measured;
};

static struct link *link_of(const struct job *j, int a, int b) /* in either order */
{
	return &j->links[(size_t)(a < b ? a : b) * (size_t)j->size + (size_t)(a < b ? b : a)];
}

/* ---- reports ---- */

static void make_report(struct job *j, struct report *r)
{
	struct tt_doctor own = { .rdma = j->doctor->rdma,
		                 .memory = j->doctor->memory,
		                 .ports_are_held = true,
		                 .settings = j->doctor->settings };
	tutti_peer me;

	memset(r, 0, sizeof *r);
	own.ranks = tutti_local_size(j->all);
	tt_doctor_limits(&own);
	tt_doctor_network(&own);
	gethostname(r->host, sizeof r->host - 1);
	snprintf(r->version, sizeof r->version, "%s", tutti_version());
	if (!tutti_group_peer(j->all, j->rank, &me))
		snprintf(r->address, sizeof r->address, "%s", me.address);
	for (int i = j->all->job->engine.count; i--;) /* the first one of the rank's */
		if (*j->all->job->engine.nets[i]->device)
			memcpy(r->adapter, j->all->job->engine.nets[i]->device, sizeof r->adapter);
	r->mtu = *r->address ? tt_doctor_mtu(r->address) : 0;
	for (int i = 0; i < own.n && r->n < LINES; i++)
		if (own.lines[i].verdict == TT_FINDING) {
			memcpy(r->lines[r->n].check, own.lines[i].check, sizeof own.lines[i].check);
			memcpy(r->lines[r->n++].text, own.lines[i].text, sizeof own.lines[i].text);
		}
	free(own.lines);
}

/* "rank 2 (node-b, 10.0.0.7)" */
static struct label {
	char text[112];
} label_of(const struct job *j, int rank)
{
	struct label l;
	tutti_peer p;

	snprintf(l.text, sizeof l.text, "rank %d", rank);
	if (tutti_group_peer(j->all, rank, &p))
		return l;
	p.address[strcspn(p.address, *p.address == '[' ? "]" : ":")] = 0;
	snprintf(l.text, sizeof l.text, "rank %d (%.40s%s%.45s)", rank, p.host, *p.host && *p.address ? ", " : "",
	         p.address + (*p.address == '['));
	return l;
}

/* Ranks of one host say the same: once is enough. */
static bool is_said(const struct job *j, int rank, const char *text)
{
	for (int i = 0; i < rank; i++)
		for (int k = 0; k < j->reports[i].n; k++)
			if (!strcmp(j->reports[i].host, j->reports[rank].host) &&
			    !strcmp(j->reports[i].lines[k].text, text))
				return true;
	return false;
}

static void say_reports(struct job *j)
{
	const struct report *first = &j->reports[0];

	for (int i = 0; i < j->size; i++) {
		const struct report *r = &j->reports[i];
		for (int k = 0; k < r->n && k < LINES; k++)
			if (!is_said(j, i, r->lines[k].text))
				tt_doctor_say(j->doctor, TT_FINDING, r->lines[k].check, "%s: %s", label_of(j, i).text,
				              r->lines[k].text);
		if (strcmp(r->version, first->version) != 0)
			tt_doctor_say(j->doctor, TT_FINDING, "version",
			              "%s runs Tutti %s, and rank 0 %s: install the same on both", label_of(j, i).text,
			              r->version, first->version);
	}
}

static uint32_t usual_mtu(const struct job *j)
{
	uint32_t usual = 0;
	int most = 0;

	for (int i = 0; i < j->size; i++) {
		int same = 0;
		for (int k = 0; k < j->size; k++)
			same += j->reports[k].mtu == j->reports[i].mtu;
		if (same > most && j->reports[i].mtu) {
			most = same;
			usual = j->reports[i].mtu;
		}
	}
	return usual;
}

static void say_mtus(struct job *j)
{
	uint32_t usual = usual_mtu(j);

	for (int i = 0; i < j->size; i++) {
		uint32_t mtu = j->reports[i].mtu;
		if (mtu && mtu != usual &&
		    !(i && !strcmp(j->reports[i].host, j->reports[i - 1].host) && mtu == j->reports[i - 1].mtu))
			tt_doctor_say(
				j->doctor, TT_FINDING, "mtu",
				"the interface of %s has an MTU of %u, and the others have %u: "
				"large packets may vanish between them; set the same with ip link set DEVICE mtu %u",
				label_of(j, i).text, mtu, usual, usual);
	}
}

static void say_adapters(struct job *j)
{
	struct tt_doctor_rank *ranks = calloc((size_t)j->size, sizeof *ranks);

	for (int i = 0; ranks && i < j->size; i++) {
		snprintf(ranks[i].label, sizeof ranks[i].label, "%s", label_of(j, i).text);
		ranks[i].adapter = j->reports[i].adapter;
	}
	if (ranks)
		tt_doctor_adapters(j->doctor, ranks, j->size);
	free(ranks);
}

static int exchange_reports(struct job *j)
{
	struct report own;
	int err;

	make_report(j, &own);
	if ((err = tutti_gather(j->all, &own, sizeof own, j->reports, 0, NULL)) || j->rank)
		return err;
	say_reports(j);
	say_mtus(j);
	say_adapters(j);
	return 0;
}

/* ---- clocks ---- */

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* All read their clocks after the barrier has begun on rank 0, and before it has them: by more they do not differ. */
static int compare_clocks(struct job *j)
{
	uint64_t begun = tt_now(), now, took, usual, *clocks = calloc((size_t)j->size * 2, sizeof *clocks);
	double furthest = 0;
	int err = clocks ? tutti_barrier(j->all, NULL) : tt_fail(-ENOMEM, "no memory for %d clocks", j->size), bad = 0;

	now = tt_calendar();
	if (!err)
		err = tutti_gather(j->all, &now, sizeof now, clocks, 0, NULL);
	took = tt_now() - begun;
	if (!err && !j->rank) {
		memcpy(clocks + j->size, clocks, (size_t)j->size * sizeof *clocks);
		qsort(clocks + j->size, (size_t)j->size, sizeof *clocks, by_time);
		usual = clocks[j->size + j->size / 2];
		for (int i = 0; i < j->size; i++) {
			double apart = ((double)(int64_t)(clocks[i] - usual)) / 1e9,
			       least = (double)took / 1e9 + CLOCK_MS / 1e3;
			double size = apart < 0 ? -apart : apart;
			furthest = size > furthest ? size : furthest;
			if (size > least) {
				bad++;
				tt_doctor_say(j->doctor, TT_FINDING, "clock",
				              "the clock of %s is %.0f s %s that of the other%s: let "
				              "chrony or another NTP client keep it",
				              label_of(j, i).text, size, apart < 0 ? "behind" : "ahead of",
				              j->size > 2 ? "s" : "");
			}
		}
		if (!bad)
			tt_doctor_say(j->doctor, TT_FINE, "clock",
			              "all clocks agree, as far as could be seen within %.3f s",
			              furthest > (double)took / 1e9 ? furthest : (double)took / 1e9);
	}
	free(clocks);
	return err;
}

/* ---- one pair ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int measure_latency(struct job *j, int peer, double *us)
{
	double took[LATENCY_TRIES];
	uint64_t begun = tt_now(), since;
	int n = 0, err = 0;

	for (; !err && n < LATENCY_TRIES && (!n || tt_now() - begun < LATENCY_MS * TT_MS); n++) {
		since = tt_now();
		err = tutti_get(j->window, peer, 0, j->here, 8, NULL);
		took[n] = (double)(tt_now() - since) / 1000;
	}
	if (err)
		return err;
	qsort(took, (size_t)n, sizeof *took, by_size);
	*us = took[n / 2];
	return 0;
}

static int transfer(struct job *j, int peer, bool out, size_t n, uint64_t *took)
{
	uint64_t since = tt_now();
	int err = out ? tutti_put(j->window, peer, 0, j->here, n, NULL)
	              : tutti_get(j->window, peer, 0, j->here, n, NULL);

	*took = tt_now() - since + 1;
	return err;
}

/* Bytes a second, of the largest transfer: a bucket that lets the first ones through hides no slow link. The last size
 * is tried several times: a rank that got no core meanwhile is not slow. */
static int measure_bandwidth(struct job *j, int peer, bool out, double *bytes)
{
	uint64_t took, least = 0;
	int err = 0;

	for (size_t n = LEAST; !err && n <= MOST && least < LONG_MS * TT_MS; n *= 2) {
		least = UINT64_MAX;
		for (int i = 0; !err && i < TRIES && (n == MOST || least >= LONG_MS * TT_MS); i++) {
			err = transfer(j, peer, out, n, &took);
			least = tt_min(least, took);
		}
		*bytes = (double)n * 1e9 / (double)least;
	}
	return err;
}

/* A second measurement counts if it is better: a host that does something else for a moment is not slow. */
static int measure(struct job *j, int peer)
{
	struct link *l = link_of(j, j->rank, peer), again = { .out = 0 };
	tutti_peer p;
	int err;

	if ((err = tutti_get(j->window, peer, 0, j->here, 8, NULL)) ||
	    (err = measure_latency(j, peer, &again.latency_us)) ||
	    (err = measure_bandwidth(j, peer, true, &again.out)) ||
	    (err = measure_bandwidth(j, peer, false, &again.in)))
		return err;
	if (l->out == 0)
		*l = again;
	l->out = again.out > l->out ? again.out : l->out;
	l->in = again.in > l->in ? again.in : l->in;
	if (!tutti_group_peer(j->all, peer, &p)) {
		snprintf(l->transport, sizeof l->transport, "%s", p.transport);
		l->near = *p.host && !strcmp(p.host, j->host);
		if (*p.why_not && j->reason.peer < 0) {
			j->reason.peer = peer;
			memcpy(j->reason.text, p.why_not, sizeof j->reason.text);
		}
	}
	return 0;
}

/* ---- all pairs ---- */

/* The partner of a rank in a round; the rank itself: it pauses, for their number is odd. */
static int partner_in(int round, int rank, int size)
{
	int n = size + size % 2, turn = n - 1, other;

	if (rank == n - 1)
		other = round % turn;
	else if (rank == round % turn)
		other = n - 1;
	else
		other = ((2 * round - rank) % turn + turn) % turn;
	return other < size ? other : rank;
}

static int rounds_of(const struct job *j) { return j->size - 1 + j->size % 2; }

/* By bare connections, which hurt the job in no way if they fail, and before the job needs any. */
static void try_doors(struct job *j)
{
	uint64_t begun = tt_now();
	tutti_peer p;

	for (int r = 0; r < rounds_of(j) && j->closed.n < CLOSED && tt_now() - begun < DOORS_MS * TT_MS; r++) {
		int err, peer = partner_in(r, j->rank, j->size);
		if (peer == j->rank || tutti_group_peer(j->all, peer, &p) || !*p.address ||
		    !(err = tt_doctor_connect(p.address)) || err == EINVAL)
			continue;
		j->closed.peer[j->closed.n] = peer;
		j->closed.err[j->closed.n++] = err;
	}
}

/* A rank whose port is closed may be connected all the same: that rank has connected to this one. A rank that is not
 * reached is evicted. */
static bool may_measure(const struct job *j, int peer)
{
	tutti_peer p;

	for (int i = 0; i < j->closed.n; i++)
		if (j->closed.peer[i] == peer)
			return !tutti_group_peer(j->all, peer, &p) && *p.transport;
	return true;
}

/* Rank 0 says whether there is time for the round. */
static int begin_round(struct job *j, uint64_t begun, bool *go)
{
	uint8_t word = tt_now() - begun < ROUNDS_MS * TT_MS;
	int err = tutti_barrier(j->all, NULL);

	if (!err)
		err = tutti_broadcast(j->all, &word, sizeof word, 0, NULL);
	*go = word;
	return err;
}

static void show(const struct job *j, uint64_t begun, double done)
{
	if (!j->rank && tt_now() - begun > BAR_MS * TT_MS)
		tt_tool_show_bar("pairs", done);
}

static int play_rounds(struct job *j)
{
	int rounds = rounds_of(j), err = 0;
	uint64_t begun = tt_now();
	bool go = true;

	for (int r = 0; !err && r < rounds; r++) {
		int peer = partner_in(r, j->rank, j->size);
		show(j, begun, (double)r / rounds);
		if ((err = begin_round(j, begun, &go)) || !go)
			break;
		if (peer > j->rank && may_measure(j, peer))
			err = measure(j, peer);
	}
	show(j, begun, 1);
	return err;
}

static bool is_over(const struct link *l, const char *transport)
{
	return l->out > 0 && !strcmp(l->transport, transport);
}

/* Both ways of all links over one transport between hosts: three quarters of them are slower. So half the links may be
 * slow, as with one of four hosts; and one that got a core to itself sets no measure. */
static double find_usual(const struct job *j, const char *transport)
{
	double *all = calloc((size_t)j->size * (size_t)j->size, sizeof *all), usual = 0;
	int n = 0;

	for (int a = 0; all && a < j->size; a++)
		for (int b = a + 1; b < j->size; b++)
			if (is_over(link_of(j, a, b), transport) && !link_of(j, a, b)->near) {
				all[n++] = link_of(j, a, b)->out;
				all[n++] = link_of(j, a, b)->in;
			}
	if (n) {
		qsort(all, (size_t)n, sizeof *all, by_size);
		usual = all[n * 3 / 4];
	}
	free(all);
	return usual;
}

static int share_links(struct job *j) /* each rank's row becomes everybody's */
{
	size_t row = (size_t)j->size * sizeof(struct link);

	int err = tutti_allgather(j->all, (char *)j->links + (size_t)j->rank * row, row, j->links, NULL);

	for (int i = 0; !err && i < TRANSPORTS; i++)
		j->usual[i] = find_usual(j, transports[i]);
	return err;
}

static double usual_of(const struct job *j, const char *transport)
{
	for (int i = 0; i < TRANSPORTS; i++)
		if (!strcmp(transports[i], transport))
			return j->usual[i];
	return 0;
}

static double bytes_of(const struct job *j, int from, int to)
{
	return from < to ? link_of(j, from, to)->out : link_of(j, from, to)->in;
}

static bool is_slow(const struct job *j, int from, int to, int times)
{
	const struct link *l = link_of(j, from, to);

	return l->out > 0 && !l->near && bytes_of(j, from, to) * times < usual_of(j, l->transport);
}

/* All ranks have the same numbers, hence the same list. */
static int measure_again(struct job *j)
{
	int again[AGAIN][2], n = 0, err = 0;

	for (int a = 0; a < j->size; a++)
		for (int b = a + 1; b < j->size && n < AGAIN; b++)
			if (is_slow(j, a, b, SLOW) || is_slow(j, b, a, SLOW)) {
				again[n][0] = a;
				again[n++][1] = b;
			}
	for (int i = 0; !err && i < n; i++) {
		if (!(err = tutti_barrier(j->all, NULL)) && again[i][0] == j->rank)
			err = measure(j, again[i][1]);
	}
	return !err && n ? share_links(j) : err;
}

/* ---- findings ---- */

/* The best link, over which this rank sends, or takes, if it has several and all are slow; else one may be slow for its
 * other end. -1: none */
static int best_if_slow(const struct job *j, int rank, bool sends)
{
	int n = 0, best = -1;

	for (int k = 0; k < j->size; k++) {
		int from = sends ? rank : k, to = sends ? k : rank;
		if (k == rank || link_of(j, from, to)->out == 0 || link_of(j, from, to)->near)
			continue;
		if (!is_slow(j, from, to, SLOW))
			return -1;
		if (best < 0 || bytes_of(j, from, to) > bytes_of(j, sends ? rank : best, sends ? best : rank))
			best = k;
		n++;
	}
	return n > 1 ? best : -1;
}

static void say_slow_rank(struct job *j, int rank, bool sends)
{
	int peer = best_if_slow(j, rank, sends);
	double bytes, usual;

	if (peer < 0)
		return;
	bytes = bytes_of(j, sends ? rank : peer, sends ? peer : rank) / 1e6;
	usual = usual_of(j, link_of(j, rank, peer)->transport) / 1e6;
	tt_doctor_say(j->doctor, TT_FINDING, "bandwidth",
	              "the host of %s is slow: it %s %.1f MB/s at most, and other links carry %.1f: look at its "
	              "cable, its switch port, ethtool's speed, tc qdisc and what else it carries",
	              label_of(j, rank).text, sends ? "sends" : "takes", bytes, usual);
}

static void say_slow_pairs(struct job *j)
{
	int n = 0;

	for (int a = 0; a < j->size; a++)
		for (int b = 0; b < j->size; b++) {
			if (a == b || !is_slow(j, a, b, SLOW_PAIR) || best_if_slow(j, a, true) >= 0 ||
			    best_if_slow(j, b, false) >= 0 || n++ >= PAIRS_SAID)
				continue;
			tt_doctor_say(j->doctor, TT_FINDING, "bandwidth",
			              "from %s to %s go %.1f MB/s over %s, and over other links %.1f: look at the path "
			              "between these two", label_of(j, a).text, label_of(j, b).text,
			              bytes_of(j, a, b) / 1e6, link_of(j, a, b)->transport,
			              usual_of(j, link_of(j, a, b)->transport) / 1e6);
		}
	if (n > PAIRS_SAID)
		tt_doctor_say(j->doctor, TT_FINDING, "bandwidth",
		              "of %d more pairs the same is true: look at what else these hosts and their network do",
		              n - PAIRS_SAID);
}

static void say_slow(struct job *j)
{
	for (int i = 0; i < j->size; i++) {
		say_slow_rank(j, i, true);
		say_slow_rank(j, i, false);
	}
	say_slow_pairs(j);
}

struct spread {
	double least, most, sum;
};

static void widen(struct spread *s, double x, int n)
{
	s->least = n == 0 || x < s->least ? x : s->least;
	s->most = n == 0 || x > s->most ? x : s->most;
	s->sum += x;
}

static void say_transport(struct job *j, const char *transport)
{
	struct spread latency = { .sum = 0 }, bytes = { .sum = 0 };
	int n = 0;

	for (int a = 0; a < j->size; a++)
		for (int b = a + 1; b < j->size; b++) {
			const struct link *l = link_of(j, a, b);
			if (!is_over(l, transport))
				continue;
			widen(&latency, l->latency_us, n);
			widen(&bytes, l->out < l->in ? l->out : l->in, n);
			n++;
		}
	j->measured += n;
	if (n)
		tt_doctor_say(j->doctor, TT_FINE, "pairs",
		              "%d over %s: there and back in %.1f us (%.1f to %.1f), %.1f MB/s (%.1f "
		              "to %.1f) the slower way",
		              n, transport, latency.sum / n, latency.least, latency.most, bytes.sum / n / 1e6,
		              bytes.least / 1e6, bytes.most / 1e6);
}

static void say_reasons(struct job *j, const struct reason *all)
{
	int n = 0;

	for (int i = 0; i < j->size && n < REASONS; i++)
		if (all[i].peer >= 0) {
			tt_doctor_say(j->doctor, TT_NOTE, "transport", "%s: %.299s", label_of(j, i).text, all[i].text);
			n++;
		}
}

static int count_closed(const struct job *j, const struct closed *all, int peer)
{
	int n = 0;

	for (int i = 0; i < j->size; i++)
		for (int k = 0; k < all[i].n; k++)
			n += all[i].peer[k] == peer;
	return n;
}

static void say_closed_pair(struct job *j, int from, int peer, int err)
{
	tutti_peer p = { .rank = 0 };

	tutti_group_peer(j->all, peer, &p);
	tt_doctor_say(j->doctor, TT_FINDING, "closed",
	              "%s cannot connect to %s at %s (%s): let the firewalls of both hosts and "
	              "between them pass TCP on the ports of TUTTI_PORTS",
	              label_of(j, from).text, label_of(j, peer).text, p.address, strerror(err));
}

static void say_closed(struct job *j, const struct closed *all, int from, int k)
{
	int peer = all[from].peer[k], n = count_closed(j, all, peer);
	bool first = true;

	for (int i = 0; i < from; i++)
		for (int m = 0; m < all[i].n; m++)
			first &= all[i].peer[m] != peer;
	if (n > 1 && n == j->size - 1 && first)
		tt_doctor_say(j->doctor, TT_FINDING, "closed",
		              "no rank can connect to %s at %s (%s): let the firewall of that host "
		              "accept TCP on the ports of TUTTI_PORTS, or set TUTTI_PORTS to a range that it accepts",
		              label_of(j, peer).text, j->reports[peer].address, strerror(all[from].err[k]));
	else if (n < 2 || n < j->size - 1)
		say_closed_pair(j, from, peer, all[from].err[k]);
}

static int say_doors(struct job *j)
{
	struct closed *all = j->rank ? NULL : calloc((size_t)j->size, sizeof *all);
	int err = tutti_gather(j->all, &j->closed, sizeof j->closed, all, 0, NULL);

	for (int i = 0; all && !err && i < j->size; i++)
		for (int k = 0; k < all[i].n; k++)
			say_closed(j, all, i, k);
	free(all);
	return err;
}

static int say_links(struct job *j)
{
	struct reason *reasons = j->rank ? NULL : calloc((size_t)j->size, sizeof *reasons);
	int err = tutti_gather(j->all, &j->reason, sizeof j->reason, reasons, 0, NULL);

	if (!err && !j->rank) {
		for (int i = 0; i < TRANSPORTS; i++)
			say_transport(j, transports[i]);
		if (j->measured < j->size * (j->size - 1) / 2)
			tt_doctor_say(j->doctor, TT_NOTE, "pairs", "%d of %d were tried: there was no time for more",
			              j->measured, j->size * (j->size - 1) / 2);
		say_slow(j);
		say_reasons(j, reasons);
	}
	free(reasons);
	return err;
}

/* ---- the job ---- */

static int examine_job(struct job *j)
{
	void *here, *open;
	tutti_peer me;
	int err;

	if (!tutti_group_peer(j->all, j->rank, &me))
		memcpy(j->host, me.host, sizeof j->host);
	try_doors(j);
	j->reports = calloc((size_t)j->size, sizeof *j->reports);
	j->links = calloc((size_t)j->size * (size_t)j->size, sizeof *j->links);
	if (!j->reports || !j->links)
		return tt_fail(-ENOMEM, "no memory for the pairs of %d ranks", j->size);
	if ((err = tutti_alloc(j->all, MOST, -1, &here)))
		return err;
	j->here = here;
	if ((err = tutti_alloc(j->all, MOST, -1, &open)))
		return err;
	j->open = open;
	memset(j->here, 1, MOST);
	memset(j->open, 1, MOST);
	if ((err = tutti_window_open(j->all, "tutti doctor", j->open, MOST, &j->window)) ||
	    (err = exchange_reports(j)) || (err = compare_clocks(j)) || (err = play_rounds(j)) ||
	    (err = share_links(j)) || (err = measure_again(j)) || (err = say_doors(j)) || (err = say_links(j)))
		return err;
	return tutti_barrier(j->all, NULL);
}

/* Its answer is wanted soon; what the environment says goes first. */
static int join(tutti **all)
{
	tutti_config config = tutti_config_defaults();

	config.silence_ms = tt_env(TT_SILENCE) ? 0 : SILENCE_MS;
	config.timeout_ms = tt_env(TT_TIMEOUT) ? 0 : TIMEOUT_MS;
	return tutti_join(&config, all);
}

/* Nobody can be told: each rank says what it knows. */
static void say_failure(struct job *j)
{
	struct tt_sentence why = tt_last_sentence();

	for (int i = 0; i < j->closed.n; i++)
		say_closed_pair(j, j->rank, j->closed.peer[i], j->closed.err[i]);
	tt_doctor_say(j->doctor, TT_FINDING, "job", "%s: %.400s", label_of(j, j->rank).text, why.text);
}

int tt_doctor_pairs(struct tt_doctor *d)
{
	struct job j = { .doctor = d, .reason = { .peer = -1 } };
	int err = join(&j.all);

	if (err) {
		gethostname(j.host, sizeof j.host - 1);
		tt_doctor_say(d, TT_FINDING, "join", "%s: %.400s%s", j.host, tutti_why(),
		              err != -ETIMEDOUT ? "" :
		              ": see what the missing rank has written, and whom rank 0 has refused");
		return TT_APART;
	}
	j.rank = tutti_rank(j.all);
	j.size = tutti_size(j.all);
	if (j.size == 1) {
		tutti_leave(j.all);
		return TT_ALONE;
	}
	d->n = 0; /* the settings are fine, and rank 0 alone speaks */
	if ((err = examine_job(&j)))
		say_failure(&j);
	tutti_window_close(j.window);
	tutti_free(j.all, j.here);
	tutti_free(j.all, j.open);
	tutti_leave(j.all);
	free(j.reports);
	free(j.links);
	return 0;
}
