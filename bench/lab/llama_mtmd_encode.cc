// Encodes images with llama.cpp's libmtmd: one process, which reads jobs from standard input.
//
//   g++ -O2 -I LLAMA/include -I LLAMA/ggml/include -I LLAMA/tools/mtmd llama_mtmd_encode.cc \
//       -L LLAMA/build/bin -lmtmd -lllama -lggml -lggml-base -Wl,-rpath,LLAMA/build/bin \
//       -o llama-mtmd-encode
//   llama-mtmd-encode MODEL MMPROJ WIDTH HEIGHT THREADS
//
// A line on standard input names a file of RGB bytes; the answer is a line of JSON with the CPU
// seconds of all threads for its tiles, without decoding and resizing, and the number of rows.

#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "llama.h"
#include "mtmd.h"

namespace {

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Silent(ggml_log_level, const char*, void*) {}

std::vector<unsigned char> BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "usage: %s MODEL MMPROJ WIDTH HEIGHT THREADS\n", arguments[0]);
    return 2;
  }
  llama_log_set(Silent, nullptr);
  mtmd_log_set(Silent, nullptr);
  llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
  mtmd_context_params options = mtmd_context_params_default();
  options.use_gpu = false;
  options.warmup = false;
  options.print_timings = false;
  options.n_threads = std::stoi(arguments[5]);
  mtmd_context* context =
      model == nullptr ? nullptr : mtmd_init_from_file(arguments[2], model, options);
  if (context == nullptr) {
    std::fprintf(stderr, "%s or %s was not loaded\n", arguments[1], arguments[2]);
    return 1;
  }
  const auto width = static_cast<uint32_t>(std::stoul(arguments[3]));
  const auto height = static_cast<uint32_t>(std::stoul(arguments[4]));
  std::printf("{}\n");
  std::fflush(stdout);
  for (std::string path; std::getline(std::cin, path);) {
    const std::vector<unsigned char> pixels = BytesOf(path);
    const mtmd_bitmap* bitmap = mtmd_bitmap_init(width, height, pixels.data());
    const std::string marker = mtmd_get_marker(context);
    const mtmd_input_text text{marker.c_str(), marker.size(), false, true};
    mtmd_input_chunks* chunks = mtmd_input_chunks_init();
    if (mtmd_tokenize(context, chunks, &text, &bitmap, 1) != 0) return 1;
    double seconds = 0;
    size_t rows = 0;
    for (size_t index = 0; index < mtmd_input_chunks_size(chunks); ++index) {
      const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks, index);
      if (mtmd_input_chunk_get_type(chunk) != MTMD_INPUT_CHUNK_TYPE_IMAGE) continue;
      const double began = CpuSeconds();
      if (mtmd_encode_chunk(context, chunk) != 0) return 1;
      seconds += CpuSeconds() - began;
      rows += mtmd_input_chunk_get_n_tokens(chunk);
    }
    std::printf("{\"cpu_s\": %.4f, \"rows\": %zu}\n", seconds, rows);
    std::fflush(stdout);
    mtmd_input_chunks_free(chunks);
    mtmd_bitmap_free(const_cast<mtmd_bitmap*>(bitmap));
  }
  mtmd_free(context);
  llama_model_free(model);
}
