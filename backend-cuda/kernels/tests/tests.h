// The parts of the test program.
#pragma once

void test_simple();
void test_dequant();
void test_rope();
void test_decode();
void test_prefill();
void test_sample();
