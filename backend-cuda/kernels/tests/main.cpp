// Runs the tests of the kernels over the shim; the names of parts as arguments run those alone.
#include <cstring>

#include "harness.h"
#include "tests.h"

int main(int count, char** names) {
  const struct {
    const char* name;
    void (*run)();
  } parts[] = {{"simple", test_simple},   {"dequant", test_dequant}, {"rope", test_rope}, {"decode", test_decode}, {"prefill", test_prefill}, {"sample", test_sample}};
  for (auto& part : parts) {
    bool wanted = count < 2;
    for (int i = 1; i < count; i++) wanted |= !strcmp(names[i], part.name);
    if (wanted) part.run();
  }
  return 0;
}
