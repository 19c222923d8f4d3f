// A sparse ReLU network with two hidden layers, 784-300-100-10 if nothing else is said: MNIST batches, kernels that touch
// only the active weights, RigL's mask update, and the size that remains without dead neurons. See trainer.cpp.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using std::string;
using std::vector;

// ---------------------------------------------------------------------------------- data

struct Images {
  int count = 0;
  vector<uint8_t> pixels, labels;  // pixels: [count][784]
};

vector<uint8_t> read_idx(const string& path, int header, size_t size) {
  gzFile file = gzopen(path.c_str(), "rb");
  vector<uint8_t> bytes(header + size);
  const bool ok = file && gzread(file, bytes.data(), bytes.size()) == static_cast<int>(bytes.size());
  if (file) gzclose(file);
  if (!ok) throw std::runtime_error("cannot read " + path);
  bytes.erase(bytes.begin(), bytes.begin() + header);
  return bytes;
}

Images read_images(const string& prefix, int count) {
  return {count, read_idx(prefix + "-images-idx3-ubyte.gz", 16, size_t(count) * 784),
          read_idx(prefix + "-labels-idx1-ubyte.gz", 8, count)};
}

// How far an image may be turned (degrees), its sides stretched (share) and itself be moved (pixels).
struct Augmentation { double turn, stretch, move; };

// One image, read between the pixels of another, black around it.
void augment_image(const uint8_t* from, uint8_t* to, const Augmentation& by, std::mt19937& rng) {
  std::uniform_real_distribution<float> one(-1, 1);
  const float angle = by.turn * M_PI / 180 * one(rng), wide = 1 + by.stretch * one(rng), high = 1 + by.stretch * one(rng);
  const float right = by.move * one(rng), down = by.move * one(rng), c = std::cos(angle), s = std::sin(angle);
  float framed[31][31] = {};  // two dark lines before the image and one behind it: what lies outside is as dark
  for (int row = 0; row < 28; ++row) std::copy_n(from + row * 28, 28, framed[row + 2] + 2);
  for (int row = 0; row < 28; ++row)
    for (int column = 0; column < 28; ++column) {
      const float x = (column - 13.5f) * wide, y = (row - 13.5f) * high;
      const float at_x = std::clamp(c * x - s * y + 15.5f + right, 0.f, 29.999f);
      const float at_y = std::clamp(s * x + c * y + 15.5f + down, 0.f, 29.999f);
      const int left = at_x, top = at_y;
      const float u = at_x - left, v = at_y - top;
      const float above = framed[top][left] * (1 - u) + framed[top][left + 1] * u;
      const float below = framed[top + 1][left] * (1 - u) + framed[top + 1][left + 1] * u;
      to[row * 28 + column] = above * (1 - v) + below * v + 0.5f;
    }
}

// `copies` versions of each image, side by side: made once, because making them for each batch takes as long as training.
Images augmented(const Images& set, int copies, const Augmentation& by, std::mt19937& rng) {
  Images out = {set.count * copies, vector<uint8_t>(size_t(set.count) * copies * 784), {}};
  for (int i = 0; i < out.count; ++i) {
    augment_image(&set.pixels[size_t(i / copies) * 784], &out.pixels[size_t(i) * 784], by, rng);
    out.labels.push_back(set.labels[i / copies]);
  }
  return out;
}

// ---------------------------------------------------------------------------------- kernels

// Activations are feature-major, [features][V] blocks of 16 samples, so that one sparse weight meets
// V whole vectors, without any gather. V is a compile-time constant so that a neuron's sums over
// the batch stay in registers.
typedef float Vec __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
using Block = vector<Vec>;
#define EACH_VEC(v) _Pragma("GCC unroll 32") for (int v = 0; v < V; ++v)

float sum(Vec a) {
  typedef float Half __attribute__((vector_size(32)));
  typedef float Quarter __attribute__((vector_size(16)));
  const Half h = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
  const Quarter q = __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
  const Quarter r = q + __builtin_shufflevector(q, q, 2, 3, 2, 3);
  return r[0] + r[1];
}

// Transposes the chosen images into [784][V] floats in [0, 1]; missing samples become zero.
// Four interleavings of row i with row i+8 transpose 16 x 16 bytes.
template <int V>
void load_batch(const Images& set, const int* index, int n, Block& x) {
  static const uint8_t blank[784] = {};
  EACH_VEC(v) {
    const uint8_t* image[16];
    for (int i = 0; i < 16; ++i)
      image[i] = v * 16 + i < n ? &set.pixels[size_t(index[v * 16 + i]) * 784] : blank;
    for (int p = 0; p < 784; p += 16) {
      Bytes a[16], b[16];
      for (int i = 0; i < 16; ++i) std::memcpy(&a[i], image[i] + p, 16);
      for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
          b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
          b[2 * i + 1] =
              __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        std::memcpy(a, b, sizeof a);
      }
      for (int i = 0; i < 16; ++i) {
        float* out = reinterpret_cast<float*>(&x[size_t(p + i) * V + v]);
        for (int l = 0; l < 16; ++l) out[l] = a[i][l] * (1.0f / 255);
      }
    }
  }
}

// A fully connected layer, of which only the active weights exist (CSR, rows are output neurons).
struct Layer {
  int in, out;
  vector<int> row, col;            // CSR: row[o] .. row[o+1] index col, w, m, g
  vector<float> w, m, g;           // weights, their momentum and gradient
  vector<float> b, mb, gb;         // biases, likewise
  vector<int> start, target, slot; // the same by input neuron, for the gradient of the input

  // Takes the active positions (o * in + i, ascending); a weight which was active before keeps its
  // value and momentum, a new one starts at zero with zero momentum.
  void set_active(const vector<int>& active) {
    vector<int> old(size_t(in) * out, -1);
    for (int o = 0; o + 1 < static_cast<int>(row.size()); ++o)
      for (int s = row[o]; s < row[o + 1]; ++s) old[o * in + col[s]] = s;
    const vector<float> w0 = w, m0 = m;
    const int n = active.size();
    w.assign(n, 0), m.assign(n, 0), g.assign(n, 0), col.resize(n), target.resize(n), slot.resize(n);
    row.assign(out + 1, 0), start.assign(in + 1, 0);
    for (int s = 0; s < n; ++s) {
      const int o = active[s] / in, i = active[s] % in, from = old[active[s]];
      if (from >= 0) w[s] = w0[from], m[s] = m0[from];
      col[s] = i, ++row[o + 1], ++start[i + 1];
    }
    std::partial_sum(row.begin(), row.end(), row.begin());
    std::partial_sum(start.begin(), start.end(), start.begin());
    vector<int> next(start.begin(), start.end() - 1);
    for (int s = 0; s < n; ++s) target[next[col[s]]] = active[s] / in, slot[next[col[s]]++] = s;
  }
  vector<int> active() const {
    vector<int> a;
    for (int o = 0; o < out; ++o)
      for (int s = row[o]; s < row[o + 1]; ++s) a.push_back(o * in + col[s]);
    return a;
  }

  Layer(int in, int out, double sparsity, double scale, bool sparse_fan, std::mt19937& rng)
      : in(in), out(out), b(out), mb(out), gb(out) {
    const int size = in * out;
    // The nudge keeps 0.99 * 235200 at 232848, though the product in binary may fall just short of it.
    const int n = size - static_cast<int>(std::floor(sparsity * size + 1e-6));
    vector<int> positions(size);
    std::iota(positions.begin(), positions.end(), 0);
    std::shuffle(positions.begin(), positions.end(), rng);
    positions.resize(n);
    std::sort(positions.begin(), positions.end());
    set_active(positions);
    const double density = sparse_fan ? double(n) / size : 1;
    const double limit = scale * std::sqrt(6 / ((in + out) * density));
    for (float& x : w) x = std::uniform_real_distribution<double>(-limit, limit)(rng);
  }

  template <int V>
  void forward(const Block& x, Block& y, bool relu) const {
    for (int o = 0; o < out; ++o) {
      Vec acc[V];
      EACH_VEC(v) acc[v] = Vec{} + b[o];
      for (int s = row[o]; s < row[o + 1]; ++s) {
        const Vec* xi = &x[size_t(col[s]) * V];
        EACH_VEC(v) acc[v] += w[s] * xi[v];
      }
      EACH_VEC(v) y[size_t(o) * V + v] = relu ? (acc[v] > 0 ? acc[v] : Vec{}) : acc[v];
    }
  }

  // dx = (W^T dy) where the input, the output of a ReLU, is positive.
  template <int V>
  void backward_input(const Block& dy, const Block& x, Block& dx) const {
    for (int i = 0; i < in; ++i) {
      Vec acc[V] = {};
      for (int s = start[i]; s < start[i + 1]; ++s) {
        const Vec* d = &dy[size_t(target[s]) * V];
        const float weight = w[slot[s]];
        EACH_VEC(v) acc[v] += weight * d[v];
      }
      EACH_VEC(v) dx[size_t(i) * V + v] = x[size_t(i) * V + v] > 0 ? acc[v] : Vec{};
    }
  }

  // Gradients of the biases and of the active weights; if `dense` is given, of every weight instead.
  template <int V>
  void gradients(const Block& x, const Block& dy, vector<float>* dense = nullptr) {
    if (dense) dense->resize(size_t(in) * out);
    for (int o = 0; o < out; ++o) {
      Vec d[V], total{};
      EACH_VEC(v) total += d[v] = dy[size_t(o) * V + v];
      gb[o] = sum(total);
      auto dot = [&](int i) {
        const Vec* xi = &x[size_t(i) * V];
        Vec acc{};
        EACH_VEC(v) acc += d[v] * xi[v];
        return sum(acc);
      };
      if (dense) for (int i = 0; i < in; ++i) (*dense)[size_t(o) * in + i] = dot(i);
      else for (int s = row[o]; s < row[o + 1]; ++s) g[s] = dot(col[s]);
    }
  }

  // Nesterov momentum in the form of TensorFlow and PyTorch; no L2 on biases.
  void sgd(float lr, float mu, float l2) {
    for (size_t s = 0; s < w.size(); ++s) {
      const float grad = g[s] + l2 * w[s];
      m[s] = mu * m[s] + grad;
      w[s] -= lr * (grad + mu * m[s]);
    }
    for (int o = 0; o < out; ++o) {
      mb[o] = mu * mb[o] + gb[o];
      b[o] -= lr * (gb[o] + mu * mb[o]);
    }
  }

  // RigL: drop the k smallest active weights, then grow the k inactive ones of the largest gradient.
  // What was just dropped is inactive too: if it grows back at once, set_active keeps its value.
  void update_mask(const vector<float>& dense, double fraction) {
    const int n = w.size(), k = static_cast<int>(n * fraction);
    if (k == 0) return;
    const vector<int> positions = active();
    vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + k, order.end(),
                     [&](int a, int c) { return std::abs(w[a]) < std::abs(w[c]); });
    vector<char> on(dense.size(), 0);
    for (int j = k; j < n; ++j) on[positions[order[j]]] = 1;
    vector<std::pair<float, int>> candidates;  // score first; negative, so that the largest come first
    for (size_t p = 0; p < dense.size(); ++p)
      if (!on[p]) candidates.emplace_back(-std::abs(dense[p]), p);
    std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end());
    for (int j = 0; j < k; ++j) on[candidates[j].second] = 1;
    vector<int> next;
    for (size_t p = 0; p < on.size(); ++p) if (on[p]) next.push_back(p);
    set_active(next);
  }
};

// ---------------------------------------------------------------------------------- network

template <int V>
struct Network {
  vector<Layer> layers;
  Block x[4], d[4];  // x[0] input, x[l] output of layer l; d[l] gradient of the loss by its pre-activation

  Network(const int (&hidden)[2], const double (&sparsity)[3], double scale, bool sparse_fan, std::mt19937& rng) {
    const int width[] = {784, hidden[0], hidden[1], 10};
    for (int l = 0; l < 3; ++l) layers.emplace_back(width[l], width[l + 1], sparsity[l], scale, sparse_fan, rng);
    for (int l = 0; l < 4; ++l) x[l].resize(size_t(width[l]) * V), d[l].resize(size_t(width[l]) * V);
  }

  void forward() {
    for (int l = 0; l < 3; ++l) layers[l].template forward<V>(x[l], x[l + 1], l < 2);
  }

  // Mean cross-entropy of the loaded batch; leaves its gradient by the logits in d[3]. The lanes
  // beyond the batch get a zero gradient, so they never count.
  double loss(const Images& set, const int* index, int n) {
    const float* z = reinterpret_cast<const float*>(x[3].data());
    float* dz = reinterpret_cast<float*>(d[3].data());
    constexpr int lanes = V * 16;
    float top[lanes], total[lanes] = {};
    std::copy(z, z + lanes, top);
    for (int c = 1; c < 10; ++c)
      for (int i = 0; i < lanes; ++i) top[i] = std::max(top[i], z[c * lanes + i]);
    for (int c = 0; c < 10; ++c)
      for (int i = 0; i < lanes; ++i) total[i] += dz[c * lanes + i] = std::exp(z[c * lanes + i] - top[i]);
    for (int i = 0; i < lanes; ++i) total[i] = i < n ? 1 / (n * total[i]) : 0;
    for (int c = 0; c < 10; ++c)
      for (int i = 0; i < lanes; ++i) dz[c * lanes + i] *= total[i];
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      float& own = dz[set.labels[index[i]] * lanes + i];
      sum -= z[set.labels[index[i]] * lanes + i] - top[i] + std::log(total[i] * n);
      own -= 1.0f / n;
    }
    return sum / n;
  }

  void backward() {
    for (int l = 2; l > 0; --l) layers[l].template backward_input<V>(d[l + 1], x[l], d[l]);
  }

  double error(const Images& set) {
    vector<int> index(set.count);
    std::iota(index.begin(), index.end(), 0);
    int wrong = 0;
    for (int first = 0; first < set.count; first += V * 16) {
      const int n = std::min(V * 16, set.count - first);
      load_batch<V>(set, &index[first], n, x[0]);
      forward();
      const float* z = reinterpret_cast<const float*>(x[3].data());
      for (int i = 0; i < n; ++i) {
        int best = 0;
        for (int c = 1; c < 10; ++c) if (z[c * V * 16 + i] > z[best * V * 16 + i]) best = c;
        wrong += best != set.labels[first + i];
      }
    }
    return 100.0 * wrong / set.count;
  }

  // What remains when neurons without an input or without an output go, repeated to a fixpoint.
  struct Compact { int width[4], nnz; };
  Compact compact() const {
    const size_t h1 = layers[0].out, h2 = layers[1].out;
    vector<vector<char>> alive = {vector<char>(784, 1), vector<char>(h1, 1), vector<char>(h2, 1), vector<char>(10, 1)};
    for (bool changed = true; changed;) {
      changed = false;
      vector<vector<char>> has_in = {vector<char>(784, 1), vector<char>(h1), vector<char>(h2), vector<char>(10)};
      vector<vector<char>> has_out = {vector<char>(784), vector<char>(h1), vector<char>(h2), vector<char>(10, 1)};
      Compact c = {};
      for (int l = 0; l < 3; ++l)
        for (int p : layers[l].active()) {
          const int o = p / layers[l].in, i = p % layers[l].in;
          if (alive[l][i] && alive[l + 1][o]) has_out[l][i] = has_in[l + 1][o] = 1, ++c.nnz;
        }
      for (int l = 0; l < 4; ++l)
        for (size_t i = 0; i < alive[l].size(); ++i) {
          // A class is never removed, even if nothing reaches it.
          const char keep = l == 3 || (has_in[l][i] && has_out[l][i]);
          changed |= alive[l][i] != keep, alive[l][i] = keep, c.width[l] += keep;
        }
      if (!changed) return c;
    }
    return {};
  }
};
