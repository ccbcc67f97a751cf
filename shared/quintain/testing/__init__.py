"""What tests and benchmarks stand on: a real broker to test against, and the suites that every transport passes."""
