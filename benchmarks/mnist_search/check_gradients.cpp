// Numerical test of the derivatives in sparse_mlp.h; exits with 1 if one is off by more than 1 %.
//
// Build: g++ -O3 -march=native -ffast-math -std=c++17 check_gradients.cpp -lz -o check_gradients
// Use:   ./check_gradients [DIR [SEED]]

#include <cstdio>
#include <cstdlib>

#include "sparse_mlp.h"

// Compares analytic and central-difference gradients: of active weights, of biases, and (dense
// gradient) of inactive weights, which are switched on for the purpose.
template <int V>
int check_gradients(Network<V>& net, const Images& set, int n, std::mt19937& rng) {
  vector<int> index(n);
  for (int& i : index) i = rng() % set.count;
  load_batch<V>(set, index.data(), n, net.x[0]);
  auto loss = [&] { net.forward(); return net.loss(set, index.data(), n); };
  // Biases of both signs, large enough that no ReLU is near its kink.
  for (int l = 0; l < 3; ++l)
    for (int o = 0; o < net.layers[l].out; ++o) net.layers[l].b[o] = (o % 2 ? 1.f : -1.f) * (l + 1);
  loss(), net.backward();
  double worst = 0;
  vector<vector<float>> dense(3);
  for (int l = 0; l < 3; ++l) {
    net.layers[l].template gradients<V>(net.x[l], net.d[l + 1], &dense[l]);
    net.layers[l].template gradients<V>(net.x[l], net.d[l + 1]);
  }
  auto compare = [&](const char* what, int l, float& parameter, double analytic, double largest) {
    const float old = parameter, h = 1e-2f;
    parameter = old + h; const double up = loss();
    parameter = old - h; const double down = loss();
    parameter = old;
    const double off = std::abs((up - down) / (2 * h) - analytic) / largest;
    worst = std::max(worst, off);
    if (off > 1e-2) std::printf("layer %d %s: %g numerically, %g\n", l + 1, what, (up - down) / (2 * h), analytic);
  };
  for (int l = 0; l < 3; ++l) {
    Layer& layer = net.layers[l];
    double largest = 0;
    for (float g : dense[l]) largest = std::max<double>(largest, std::abs(g));
    for (int trial = 0; trial < 100; ++trial) {
      const int s = rng() % layer.w.size(), o = rng() % layer.out, p = rng() % dense[l].size();
      compare("weight", l, layer.w[s], layer.g[s], largest);
      compare("weight, dense gradient", l, layer.w[s], dense[l][layer.active()[s]], largest);
      compare("bias", l, layer.b[o], layer.gb[o], largest);
      vector<int> active = layer.active();
      const auto at = std::lower_bound(active.begin(), active.end(), p);
      if (at != active.end() && *at == p) continue;
      const Layer saved = layer;
      const int slot = at - active.begin();
      active.insert(at, p), layer.set_active(active);
      compare("inactive weight", l, layer.w[slot], dense[l][p], largest);
      layer = saved;
    }
  }
  std::printf("largest difference, relative to the layer's largest gradient: %.2g\n", worst);
  return worst > 1e-2;
}

int main(int argc, char** argv) {
  const string data = argc > 1 ? argv[1] : "mnist";
  std::mt19937 rng(argc > 2 ? std::atoi(argv[2]) : 0);
  const Images train = read_images(data + "/train", 60000);
  Network<7> net({300, 100}, {0.99, 0.891, 0}, 1, false, rng);
  return check_gradients<7>(net, train, 100, rng);
}
