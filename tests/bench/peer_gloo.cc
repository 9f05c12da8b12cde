/* peer_gloo.cc - gloo's all-reduce over TCP as `tutti perf allreduce` measures Tutti's: f32 sums, one after the other,
 * on rank 0's clock
 *   peer_gloo RANKS BYTES SECONDS
 * Starts its own ranks. Prints one JSON line for the fastest of its algorithms.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

using Context = std::shared_ptr<gloo::rendezvous::Context>;

static double now()
{
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static Context connect(int rank, int ranks, const std::string &folder)
{
	gloo::transport::tcp::attr attributes;
	attributes.iface = "lo";
	attributes.ai_family = AF_INET;
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	gloo::rendezvous::FileStore store(folder);
	auto device = gloo::transport::tcp::CreateDevice(attributes);
	context->connectFullMesh(store, device);
	return context;
}

/* gloo::allreduce, which is what its users call today; the others are classes that are set up once. */
static std::function<void()> function_of(const Context &context, std::vector<float> &data,
                                         gloo::AllreduceOptions::Algorithm algorithm)
{
	return [&data, context, algorithm] {
		gloo::AllreduceOptions options(context);
		options.setOutput(data.data(), data.size());
		options.setAlgorithm(algorithm);
		options.setReduceFunction(
			[](void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); });
		gloo::allreduce(options);
	};
}

static std::vector<std::function<void()>> algorithms(const Context &context, std::vector<float> &data)
{
	std::vector<float *> pointers{data.data()};
	auto ring = std::make_shared<gloo::AllreduceRingChunked<float>>(context, pointers, data.size());
	auto halving = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, pointers, data.size());
	return {
		function_of(context, data, gloo::AllreduceOptions::Algorithm::RING),
		function_of(context, data, gloo::AllreduceOptions::Algorithm::BCUBE),
		[ring] { ring->run(); },
		[halving] { halving->run(); },
	};
}

/* All ranks must stop at the same iteration: rank 0 says after how many. */
static int iterations(const Context &context, const std::function<void()> &reduce, double seconds)
{
	double begun = now();
	for (int i = 0; i < 3; i++)
		reduce();
	int n = (int)std::min(100000.0, std::max(5.0, seconds / ((now() - begun) / 3)));
	gloo::BroadcastOptions options(context);
	options.setOutput(&n, 1);
	options.setRoot(0);
	gloo::broadcast(options);
	return n;
}

static double measure(const Context &context, std::vector<float> &data, const std::function<void()> &reduce,
                      double seconds)
{
	int ranks = context->size;
	std::fill(data.begin(), data.end(), context->rank + 1.0f);
	reduce();
	for (float x : data)
		if (x != (float)(ranks * (ranks + 1) / 2)) {
			fprintf(stderr, "wrong: %g\n", (double)x);
			_exit(3);
		}
	std::fill(data.begin(), data.end(), 0.0f);
	std::vector<double> samples(iterations(context, reduce, seconds));
	for (double &us : samples) {
		gloo::BarrierOptions together(context);
		gloo::barrier(together);
		double begun = now();
		reduce();
		us = (now() - begun) * 1e6;
	}
	std::sort(samples.begin(), samples.end());
	return samples[samples.size() / 2];
}

static int run_rank(int rank, int ranks, const std::string &folder, size_t bytes, double seconds)
{
	auto context = connect(rank, ranks, folder);
	std::vector<float> data(bytes / sizeof(float));
	auto all = algorithms(context, data);
	double best = 0;
	for (auto &reduce : all) {
		double us = measure(context, data, reduce, seconds / (double)all.size());
		best = best == 0 || us < best ? us : best;
	}
	if (!rank)
		printf("{\"test\": \"allreduce\", \"bytes\": %zu, \"ranks\": %d, \"p50_us\": %.3f}\n", bytes, ranks,
		       best);
	fflush(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: peer_gloo RANKS BYTES SECONDS\n");
		return 2;
	}
	char folder[] = "/tmp/peer_gloo.XXXXXX";
	int ranks = atoi(argv[1]), status, result;
	if (!mkdtemp(folder))
		return 1;
	for (int rank = 1; rank < ranks; rank++)
		if (!fork())
			_exit(run_rank(rank, ranks, folder, strtoull(argv[2], nullptr, 10), atof(argv[3])));
	result = run_rank(0, ranks, folder, strtoull(argv[2], nullptr, 10), atof(argv[3]));
	while (wait(&status) > 0)
		result = status ? 1 : result;
	std::string remove = std::string("rm -rf ") + folder;
	return system(remove.c_str()) ? 1 : result;
}
