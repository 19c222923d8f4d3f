// RigL training of LeNet-300-100 on MNIST with truly sparse kernels, one thread per process.
//
// Written to search hyper-parameters: 120,000 iterations take 20 seconds, because only the active weights are
// ever touched, except at mask updates, which need the dense gradient. It shares no code with the Python
// package, so it doubles as an independent check of the package's results.
//
// Build: g++ -O3 -march=native -ffast-math -std=c++17 trainer.cpp -lz -o trainer
// Use:   ./trainer data=DIR key=value ...    (keys and defaults: `Options` below)
//        One JSON line on stdout holds every setting and result.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "sparse_mlp.h"

struct Options {
  std::map<string, string> value = {
      {"data", "mnist"}, {"tag", ""}, {"seed", "0"}, {"verbose", "0"},
      {"holdout", "10000"},    // last images of the training set kept for validation; 0: use the test set
      {"iterations", "120000"},  // SGD steps plus mask updates
      {"batch", "100"},
      {"turn", "0"}, {"stretch", "0"}, {"move", "0"},  // training images: degrees, share, pixels, at most
      {"copies", "24"},        // versions of each image that are made, if one of these is not 0
      {"h1", "300"}, {"h2", "100"},                   // hidden neurons
      {"s1", "0.99"}, {"s2", "0.891"}, {"s3", "0"},   // sparsity per layer
      {"fan", "dense"},        // "sparse": Glorot limit from the fans that the mask leaves
      {"init", "1"},           // multiplies the initial weights
      {"lr", "0.2"}, {"momentum", "0.9"},
      {"schedule", "step"},    // step | cosine | linear
      {"drops", "0.375,0.475"},  // step: lr is divided by `factor` at these fractions of `iterations`
      {"factor", "3"},
      {"hold", "0"},           // cosine, linear: constant lr for this fraction of the run, then the decay
      {"lr_final", "0"},       // cosine, linear: the value approached at the end
      {"warmup", "0"},         // steps of linear warm-up
      {"l2", "1e-4"}, {"l2_1", ""}, {"l2_2", ""}, {"l2_3", ""},  // kernels only; l2_N overrides layer N
      {"alpha", "0.3"}, {"dT", "100"}, {"T_end", "50000"},
      {"anneal", "cosine"},    // cosine | constant | power: alpha * (1 - t/T_end)^power
      {"power", "3"}};

  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const string arg = argv[i];
      const size_t eq = arg.find('=');
      if (eq == string::npos || !value.count(arg.substr(0, eq))) throw std::runtime_error("unknown option " + arg);
      value[arg.substr(0, eq)] = arg.substr(eq + 1);
    }
  }
  const string& str(const string& key) const { return value.at(key); }
  double num(const string& key) const {
    size_t used = 0;
    const double x = std::stod(value.at(key), &used);
    if (used != value.at(key).size()) throw std::runtime_error(key + " is not a number");
    return x;
  }
};

// Learning rate as a function of the step count t, which mask updates do not advance.
struct LearningRate {
  double base, last, factor, hold, warmup, iterations;
  string kind;
  vector<double> drops;

  explicit LearningRate(const Options& o)
      : base(o.num("lr")), last(o.num("lr_final")), factor(o.num("factor")), hold(o.num("hold")),
        warmup(o.num("warmup")), iterations(o.num("iterations")), kind(o.str("schedule")) {
    if (kind != "step" && kind != "cosine" && kind != "linear") throw std::runtime_error("unknown schedule");
    const string& list = o.str("drops");
    for (size_t at = 0; at < list.size(); at = std::min(list.find(',', at), list.size() - 1) + 1)
      drops.push_back(std::stod(list.substr(at)));
  }
  double operator()(double t) const {
    double lr = base;
    if (kind == "step") {
      for (double d : drops) if (t >= std::round(d * iterations)) lr /= factor;
    } else {
      const double p = std::max(0.0, (t / iterations - hold) / (1 - hold));
      lr = last + (base - last) * (kind == "linear" ? 1 - p : 0.5 * (1 + std::cos(M_PI * p)));
    }
    return t < warmup ? lr * (t + 1) / warmup : lr;
  }
};

double drop_fraction(const Options& o, double t) {
  const double alpha = o.num("alpha"), p = t / o.num("T_end");
  const string& kind = o.str("anneal");
  if (kind == "constant") return alpha;
  if (kind == "power") return alpha * std::pow(1 - p, o.num("power"));
  if (kind == "cosine") return alpha / 2 * (1 + std::cos(M_PI * p));
  throw std::runtime_error("unknown anneal");
}

template <int V>
int run(const Options& o) {
  const auto begin = std::chrono::steady_clock::now();
  const int holdout = o.num("holdout"), batch = o.num("batch"), iterations = o.num("iterations");
  Images train = read_images(o.str("data") + "/train", 60000), test;
  if (holdout > 0) {
    train.count -= holdout;
    test = {holdout, {train.pixels.begin() + size_t(train.count) * 784, train.pixels.end()},
            {train.labels.begin() + train.count, train.labels.end()}};
  } else {
    test = read_images(o.str("data") + "/t10k", 10000);
  }
  std::mt19937 rng(static_cast<unsigned>(o.num("seed")));
  const Augmentation by = {o.num("turn"), o.num("stretch"), o.num("move")};
  const bool moved = by.turn || by.stretch || by.move;
  const int copies = moved ? o.num("copies") : 1;
  Network<V> net({int(o.num("h1")), int(o.num("h2"))}, {o.num("s1"), o.num("s2"), o.num("s3")}, o.num("init"),
                 o.str("fan") == "sparse", rng);
  const LearningRate rate(o);
  const float mu = o.num("momentum");
  float l2[3];
  for (int l = 0; l < 3; ++l) {
    const string own = "l2_" + std::to_string(l + 1);
    l2[l] = o.num(o.str(own).empty() ? "l2" : own);
  }
  const long period = o.num("dT"), end = o.num("T_end"), every = 600;
  const Images shown = moved ? augmented(train, copies, by, rng) : train;
  vector<int> order(train.count), version(batch);
  std::iota(order.begin(), order.end(), 0);
  vector<float> dense;
  size_t cursor = order.size();  // the first batch shuffles
  long step = 0, updated_at = -1, updates = 0;
  double error = 100, best = 100, loss_sum = 0, loss_steps = 0, train_loss = 0;

  for (int iteration = 1; iteration <= iterations; ++iteration) {
    if (cursor + batch > order.size()) std::shuffle(order.begin(), order.end(), rng), cursor = 0;
    for (int i = 0; i < batch; ++i) version[i] = order[cursor + i] * copies + (copies > 1 ? int(rng() % copies) : 0);
    cursor += batch;
    load_batch<V>(shown, version.data(), batch, net.x[0]);
    net.forward();
    const double loss = net.loss(shown, version.data(), batch);
    net.backward();
    if (step % period == 0 && step <= end && step != updated_at) {
      // The update takes the place of the SGD step and leaves the step count alone.
      const double fraction = drop_fraction(o, step);
      for (int l = 0; l < 3; ++l) {
        Layer& layer = net.layers[l];
        if (layer.w.size() == size_t(layer.in) * layer.out) continue;  // dense: all would grow back
        layer.template gradients<V>(net.x[l], net.d[l + 1], &dense);
        layer.update_mask(dense, fraction);
      }
      updated_at = step, ++updates;
    } else {
      const float lr = rate(step++);
      for (int l = 0; l < 3; ++l) {
        net.layers[l].template gradients<V>(net.x[l], net.d[l + 1]);
        net.layers[l].sgd(lr, mu, l2[l]);
      }
      loss_sum += loss, ++loss_steps;
    }
    if (iteration % every == 0 || iteration == iterations) {
      error = net.error(test), best = std::min(best, error);
      train_loss = loss_sum / loss_steps, loss_sum = loss_steps = 0;
      if (o.num("verbose"))
        std::fprintf(stderr, "%d lr %.4f loss %.5f error %.2f\n", iteration, rate(step), train_loss, error);
    }
  }

  const auto c = net.compact();
  const double bits = double(c.width[0]) * c.width[1] + double(c.width[1]) * c.width[2];
  const double bytes = 4.0 * c.nnz + 4.0 * (c.width[1] + c.width[2] + 10) + bits / 8;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("{");
  for (const auto& [key, value] : o.value) {
    if (key == "data" || key == "verbose") continue;
    char* rest = nullptr;
    std::strtod(value.c_str(), &rest);
    const char* quote = !value.empty() && value[0] != '.' && *rest == 0 ? "" : "\"";
    std::printf("\"%s\": %s%s%s, ", key.c_str(), quote, value.c_str(), quote);
  }
  std::printf("\"updates\": %ld, \"error\": %.2f, \"best\": %.2f, \"train_loss\": %.6f, \"architecture\": \"%d-%d-%d\", "
              "\"nnz\": %d, \"kflops\": %.3f, \"bytes\": %.1f, \"seconds\": %.1f}\n",
              updates, error, best, train_loss, c.width[0], c.width[1], c.width[2], c.nnz, 2e-3 * c.nnz, bytes,
              seconds.count());
  return 0;
}

int main(int argc, char** argv) try {
  const Options o(argc, argv);
  switch ((static_cast<int>(o.num("batch")) + 15) / 16) {  // one instance per number of vectors
    case 2: return run<2>(o);    // batch 32
    case 4: return run<4>(o);    // batch 50 or 64
    case 7: return run<7>(o);    // batch 100
    case 8: return run<8>(o);    // batch 128
    case 13: return run<13>(o);  // batch 200
    default: throw std::runtime_error("batch must be near 32, 50, 100, 128 or 200");
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "trainer: %s\n", e.what());
  return 2;
}
