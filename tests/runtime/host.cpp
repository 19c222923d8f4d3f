// A host without Python: opens ONNX Runtime, registers the sparse operators, runs a model once.
//
//     host libonnxruntime.so rigl_kernels.so model.onnx rows columns < inputs > outputs
//
// Inputs and outputs are float32 in the byte order of the machine. Numbers are places in the table of the C interface.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using Table = void* const*;
static Table api;

template <int kPlace, class... Arguments>
static void call(Arguments... arguments) {
  void* status = reinterpret_cast<void* (*)(Arguments...)>(api[kPlace])(arguments...);
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", reinterpret_cast<const char* (*)(void*)>(api[2])(status));
  std::exit(1);
}

int main(int, char** words) {
  void* runtime = dlopen(words[1], RTLD_NOW);
  if (runtime == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  struct Base {
    Table (*get_api)(std::uint32_t);
  };
  api = reinterpret_cast<const Base* (*)()>(dlsym(runtime, "OrtGetApiBase"))()->get_api(18);

  void *environment = nullptr, *options = nullptr, *library = nullptr, *session = nullptr, *memory = nullptr;
  call<3>(3, "host", &environment);                                             // CreateEnv
  call<10>(&options);                                                           // CreateSessionOptions
  call<29>(options, static_cast<const char*>(words[2]), &library);              // RegisterCustomOpsLibrary
  call<7>(environment, static_cast<const char*>(words[3]), options, &session);  // CreateSession

  const std::int64_t shape[] = {std::atoll(words[4]), std::atoll(words[5])};
  std::vector<float> in(static_cast<std::size_t>(shape[0] * shape[1]));
  if (std::fread(in.data(), sizeof(float), in.size(), stdin) != in.size()) return 1;
  void *x = nullptr, *y = nullptr, *info = nullptr, *out = nullptr;
  call<69>(0, 0, &memory);                                                               // CreateCpuMemoryInfo
  call<49>(memory, in.data(), in.size() * sizeof(float), shape, std::size_t{2}, 1, &x);  // a tensor around the inputs
  const char *names[] = {"x"}, *answers[] = {"y"};
  void* none = nullptr;
  call<9>(session, none, names, &x, std::size_t{1}, answers, std::size_t{1}, &y);  // Run
  std::size_t count = 0;
  call<65>(y, &info);      // GetTensorTypeAndShape
  call<64>(info, &count);  // GetTensorShapeElementCount
  call<51>(y, &out);       // GetTensorMutableData
  return std::fwrite(out, sizeof(float), count, stdout) == count ? 0 : 1;
}
