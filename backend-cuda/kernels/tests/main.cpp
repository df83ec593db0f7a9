// Runs the tests of the kernels over the shim; the names of parts as arguments run those alone, `--orders N`
// runs each case under fewer orders of threads.
#include <cstring>

#include "harness.h"
#include "tests.h"

int main(int count, char** arguments) {
  const struct {
    const char* name;
    void (*run)();
  } parts[] = {{"simple", test_simple}, {"dequant", test_dequant}, {"rope", test_rope},
               {"decode", test_decode}, {"prefill", test_prefill}, {"sample", test_sample}};
  std::vector<std::string> wanted;
  for (int i = 1; i < count; i++) {
    if (!strcmp(arguments[i], "--orders") && i + 1 < count)
      orders = std::min<size_t>(orders, (size_t)atoi(arguments[++i]));
    else
      wanted.push_back(arguments[i]);
  }
  for (auto& part : parts)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end()) part.run();
  return 0;
}
